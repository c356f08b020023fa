//! Conversations with anybody, by the million: a hostile client with the server, a hostile program with the tools.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dormouse_abi::wire::{
    Announcement, BudgetState, FRAME_SIZE_MAX_BYTES, Grant, Message, Snapshot, Status, VERSION, printable,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::client::Take;
use crate::error::Error;
use crate::frame::{self, Connection};
use crate::peer::Peer;
use crate::process;
use crate::processes::Processes;
use crate::program::within;
use crate::server::{Accepted, CLIENT_COUNT_MAX, Joining, Next, PATIENCE, Server, Service, THREAD_COUNT_MAX};

/// Environment variable: how many conversations are held.
const ENV_CONVERSATIONS: &str = "DORMOUSE_CONVERSATIONS";
/// Environment variable: what replays a failure.
const ENV_SEED: &str = "DORMOUSE_CONVERSATIONS_SEED";

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// How many conversations, and the generator; its seed is printed where a test fails.
fn generator() -> (u64, SmallRng) {
    let seed = variable(ENV_SEED).unwrap_or_else(|| SmallRng::from_os_rng().random());
    println!("{ENV_SEED}={seed} draws the same again");
    (variable(ENV_CONVERSATIONS).unwrap_or(20_000), SmallRng::seed_from_u64(seed))
}

/// A session that notes what it was asked for.
#[derive(Debug)]
struct Noted {
    memory: OwnedFd,
    joined: AtomicU64,
    refused: Mutex<Vec<String>>,
}

impl Service for Noted {
    fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
    fn join(&self, joining: &Joining<'_>) {
        assert_ne!(joining.number, 0);
        self.joined.fetch_add(1, Ordering::Relaxed);
    }
    fn grants(&self, classes: &[Announcement], _program: &str) -> Vec<Grant> {
        vec![Grant { id: 0, armed: true }; classes.len()]
    }
    fn refuse(&self, _program: &str, reason: &str) {
        let mut refused = self.refused.lock().unwrap();
        if refused.len() < 10 {
            refused.push(reason.into());
        }
    }
    fn leave(&self, number: u16) {
        assert_ne!(number, 0);
    }
    fn snapshot(&self, wanted: &Take) -> Result<Snapshot, Error> {
        assert!(wanted.dir.as_ref().is_none_or(|dir| dir.is_absolute()));
        Err("none".to_string().into())
    }
    fn budget(&self, _bytes: u64) -> Result<BudgetState, Error> {
        Err("none".to_string().into())
    }
    fn describe(&self, status: &mut Status) {
        status.classes = 7;
    }
}

fn noted() -> Arc<Noted> {
    let memory = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    Arc::new(Noted { memory, joined: AtomicU64::new(0), refused: Mutex::default() })
}

/// What the other side does next.
#[derive(Debug, Clone)]
enum Step {
    Bytes(Vec<u8>),
    /// Nothing has come, or there is no room.
    Block,
    End,
    Broken,
}

/// A connection whose other side follows a script, and takes answers in pieces.
#[derive(Debug, Default)]
struct Scripted {
    steps: VecDeque<Step>,
    /// How much is taken each time; 0: there is no room.
    room: VecDeque<usize>,
    told: Vec<u8>,
    descriptors: usize,
    /// The process is in another PID namespace, and the kernel is too old for a pidfd of it.
    is_hidden: bool,
}

impl Scripted {
    fn of(bytes: &[u8]) -> Scripted {
        Scripted { steps: [Step::Bytes(bytes.into())].into(), ..Scripted::default() }
    }

    fn answer(&self) -> Option<Message> {
        Message::decode(self.told.get(4..)?).ok()
    }
}

impl Connection for Scripted {
    fn receive(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        match self.steps.pop_front() {
            Some(Step::Bytes(bytes)) => {
                let count = bytes.len().min(target.len());
                target[..count].copy_from_slice(&bytes[..count]);
                if count < bytes.len() {
                    self.steps.push_front(Step::Bytes(bytes[count..].into()));
                }
                // Nothing at all would be the end.
                if count == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
            }
            Some(Step::Block) | None => Err(ErrorKind::WouldBlock.into()),
            Some(Step::End) => Ok(0),
            Some(Step::Broken) => Err(ErrorKind::ConnectionReset.into()),
        }
    }

    fn send(&mut self, bytes: &[u8], with: Option<BorrowedFd<'_>>) -> std::io::Result<usize> {
        let count = self.room.pop_front().unwrap_or(bytes.len()).min(bytes.len());
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.descriptors += usize::from(with.is_some());
        self.told.extend(&bytes[..count]);
        Ok(count)
    }
}

impl Accepted for Scripted {
    fn pidfd(&self, _peer: &Peer) -> std::io::Result<Option<OwnedFd>> {
        if self.is_hidden { Ok(None) } else { Ok(Some(process::open(std::process::id())?)) }
    }
}

/// The server keeps its connections to itself: they tell the test here what they were told.
#[derive(Debug, Default)]
struct Shared(Arc<Mutex<Scripted>>);

impl Connection for Shared {
    fn receive(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().receive(target)
    }
    fn send(&mut self, bytes: &[u8], with: Option<BorrowedFd<'_>>) -> std::io::Result<usize> {
        self.0.lock().unwrap().send(bytes, with)
    }
}

impl Accepted for Shared {
    fn pidfd(&self, peer: &Peer) -> std::io::Result<Option<OwnedFd>> {
        self.0.lock().unwrap().pidfd(peer)
    }
}

fn server(may_be_stopped: bool, now: Instant) -> (Server<Noted, Shared>, Arc<Noted>) {
    let (service, processes) = (noted(), Arc::new(Processes::new().unwrap()));
    (Server::new(Arc::clone(&service), processes, may_be_stopped, 1_000, now), service)
}

fn me() -> Peer {
    Peer { pid: Some(std::process::id()), uid: rustix::process::geteuid().as_raw() }
}

fn hello(program: &str) -> Message {
    Message::Hello { version: VERSION, vpid: 7, program: program.into(), command_line: "x".into(), classes: vec![] }
}

/// One question of this process, at once. What it is told, and whether a descriptor came with it.
fn ask(server: &mut Server<Noted, Shared>, peer: Peer, connection: Scripted, now: Instant) -> (Option<Message>, bool) {
    let connection = Arc::new(Mutex::new(connection));
    let token = server.accept(Shared(Arc::clone(&connection)), peer, now);
    if let Next::Later(mut client, job) = server.turn(token, now) {
        frame::send_all(&mut client, &job().encode(), None).unwrap();
    }
    let connection = connection.lock().unwrap();
    (connection.answer(), connection.descriptors > 0)
}

/// Any message, mostly one that the other side might send.
fn message(rng: &mut SmallRng) -> Message {
    let text = |rng: &mut SmallRng| -> String {
        let len = rng.random_range(0..40);
        (0..len).map(|_| char::from(rng.random_range(0..128_u8))).collect()
    };
    let trigger = |rng: &mut SmallRng| ["event:x", "duration:y", "command", ""][rng.random_range(0..4)].to_string();
    let class = |rng: &mut SmallRng| Announcement {
        provider: text(rng),
        name: text(rng),
        fields: (0..rng.random_range(0..4)).map(|_| (text(rng), rng.random())).collect(),
    };
    let classes = |rng: &mut SmallRng| (0..rng.random_range(0..20)).map(|_| class(rng)).collect::<Vec<_>>();
    match rng.random_range(0..16) {
        0..4 => hello("/bin/x"),
        4 => Message::Hello {
            version: rng.random_range(0..4),
            vpid: rng.random(),
            program: text(rng),
            command_line: text(rng),
            classes: classes(rng),
        },
        5 => Message::MoreClasses { process: rng.random(), classes: classes(rng) },
        6 => Message::Stop { pid: if rng.random() { std::process::id() } else { rng.random() } },
        7 => {
            let dir = [String::new(), "relative".into(), "/absolute".into(), text(rng)][rng.random_range(0..4)].clone();
            Message::Snapshot { dir, last_ns: rng.random(), bytes_max: rng.random(), trigger: trigger(rng) }
        }
        8 => Message::Budget { bytes: rng.random() },
        9 => Message::Status,
        10 => Message::List,
        11 => Message::Error { text: text(rng) },
        12 => Message::Changed { matched: rng.random(), changed: 0, armed: 0, session: path(rng) },
        13 => Message::Classes { session: path(rng), classes: vec![], patching: text(rng) },
        14 => Message::Attach { session: path(rng) },
        _ => Message::Stopped { summary: text(rng) },
    }
}

/// Paths that somebody might like to have used.
fn path(rng: &mut SmallRng) -> String {
    let pieces = [
        "/run/user/7/dormouse",
        "/tmp/dormouse-7",
        "/",
        "..",
        ".",
        "session-1-0.sock",
        "7.0.sock",
        "session-",
        ".sock",
        "\0",
        "//",
        "/etc/passwd",
        "/proc/self/fd/3",
        "session-/../x.sock",
        "/tmp/dormouse-0",
        "é",
    ];
    (0..rng.random_range(0..6))
        .map(|_| pieces[rng.random_range(0..pieces.len())])
        .collect::<Vec<_>>()
        .join(["", "/"][rng.random_range(0..2)])
}

/// What somebody might send in place of a frame, piece by piece.
fn steps(rng: &mut SmallRng) -> VecDeque<Step> {
    let mut bytes = message(rng).encode();
    match rng.random_range(0..8) {
        0 => {
            let at = rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        1 => bytes.truncate(rng.random_range(0..bytes.len())),
        2 => bytes = (0..rng.random_range(1..200)).map(|_| rng.random()).collect(),
        3 => bytes[..4]
            .copy_from_slice(&[0, FRAME_SIZE_MAX_BYTES as u32, u32::MAX][rng.random_range(0..3)].to_le_bytes()),
        _ => {}
    }
    let mut steps = VecDeque::new();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() && steps.len() < 50 {
        let count = if rng.random_range(0..4) == 0 { rng.random_range(1..=rest.len()) } else { rest.len() };
        if rng.random_range(0..4) == 0 {
            steps.push_back(Step::Block);
        }
        steps.push_back(Step::Bytes(rest[..count].into()));
        rest = &rest[count..];
    }
    match rng.random_range(0..4) {
        0 => steps.push_back(Step::End),
        1 => steps.push_back(Step::Broken),
        _ => {}
    }
    steps
}

#[test]
fn whatever_clients_do_the_others_are_answered() {
    let (count, mut rng) = generator();
    let mut now = Instant::now();
    let (mut server, service) = server(true, now);
    let mut live: VecDeque<(u64, Instant, Arc<Mutex<Scripted>>, bool)> = VecDeque::new();
    let (mut answered, mut with_memory, mut honest) = (0_u64, 0_u64, 0_u64);
    for conversation in 0..count {
        let room = (0..rng.random_range(0..3)).map(|_| rng.random_range(0..40)).collect();
        let is_hidden = rng.random_range(0..8) == 0;
        let connection =
            Arc::new(Mutex::new(Scripted { steps: steps(&mut rng), room, is_hidden, ..Scripted::default() }));
        let is_stranger = rng.random_range(0..8) == 0;
        let peer = Peer {
            pid: me().pid.filter(|_| !is_hidden),
            uid: if is_stranger { me().uid.wrapping_add(1) } else { [me().uid, 0][rng.random_range(0..2)] },
        };
        let token = server.accept(Shared(Arc::clone(&connection)), peer, now);
        live.push_back((token, now, connection, is_stranger && peer.uid != 0));
        // Anybody may have a turn at any time, also one whose conversation is over.
        for _ in 0..rng.random_range(0..8) {
            let (token, _, connection, _) = &live[rng.random_range(0..live.len())];
            // Nobody's turn, or that of one who has been answered.
            if rng.random_range(0..50) == 0 {
                assert!(matches!(server.turn(rng.random_range(1 << 40..1 << 50), now), Next::Closed));
            }
            let before = connection.lock().unwrap().told.len();
            match server.turn(*token, now) {
                Next::Wait { to_write } => assert!(!to_write || connection.lock().unwrap().told.len() >= before),
                Next::Closed => {}
                Next::Later(mut client, job) => {
                    // A thread that ends at once, or is at work for some time.
                    let answer = job();
                    assert!(matches!(answer, Message::Error { .. } | Message::StatusIs { .. }), "{answer:?}");
                    client.send(&answer.encode(), None).ok();
                    server.threads = rng.random_range(0..=THREAD_COUNT_MAX);
                }
                Next::Stop(_) => {}
            }
        }
        assert!(server.client_count() <= CLIENT_COUNT_MAX);
        if rng.random_range(0..16) == 0 {
            now += Duration::from_millis(rng.random_range(0..400));
            server.expire(now);
            assert!(server.next_deadline().is_none_or(|deadline| deadline > now && deadline <= now + PATIENCE));
        }
        while live.front().is_some_and(|(_, begun, ..)| *begun + PATIENCE <= now) {
            let Some((token, _, connection, is_stranger)) = live.pop_front() else { break };
            assert!(server.connection(token).is_none(), "conversation {conversation} has not ended");
            let connection = connection.lock().unwrap();
            answered += u64::from(connection.answer().is_some());
            with_memory += connection.descriptors as u64;
            assert!(connection.descriptors <= 1 && !(is_stranger && connection.descriptors > 0));
            if connection.descriptors == 1 && connection.answer().is_some() {
                assert!(matches!(connection.answer(), Some(Message::Welcome { .. })));
            }
        }
        // Somebody who means well asks in between, in one go.
        if conversation % 64 == 0 {
            server.threads = 0;
            let (answer, _) = ask(&mut server, me(), Scripted::of(&Message::Status.encode()), now);
            let Some(Message::StatusIs { status }) = answer else { panic!("{answer:?}") };
            assert!(status.classes == 7 && status.clients <= status.clients_max);
            honest += 1;
        }
    }
    now += PATIENCE;
    server.expire(now);
    assert_eq!(server.client_count(), 0);
    // The test has tested something.
    assert!(answered > count / 4 && with_memory > 100 && honest > count / 100, "{answered} {with_memory} {honest}");
    assert!(service.joined.load(Ordering::Relaxed) > 0 && server.counts.programs_refused.load(Ordering::Relaxed) > 0);
}

#[test]
fn slow_clients_hold_nobody_up() {
    let begin = Instant::now();
    let (mut server, _) = server(false, begin);
    let at = |ms| begin + Duration::from_millis(ms);
    // More than may be served at once, and none of them says more than a byte.
    for number in 0..1_000 {
        let token = server.accept(Shared(Arc::new(Mutex::new(Scripted::of(&[5])))), me(), at(number));
        assert!(matches!(server.turn(token, at(number)), Next::Wait { to_write: false }));
        assert!(server.client_count() <= CLIENT_COUNT_MAX);
    }
    let (answer, with_memory) = ask(&mut server, me(), Scripted::of(&hello("/bin/x").encode()), at(1_000));
    assert!(matches!(answer, Some(Message::Welcome { process: 1, .. })) && with_memory, "{answer:?}");
    assert_eq!(server.client_count(), CLIENT_COUNT_MAX - 1);
    // One byte more each second does not buy more time.
    let dribbling =
        Scripted { steps: [5, 0, 0, 0, 26].map(|byte| Step::Bytes(vec![byte])).into(), ..Scripted::default() };
    let dribbling = Arc::new(Mutex::new(Scripted { steps: [Step::Block].into(), ..dribbling }));
    let token = server.accept(Shared(Arc::clone(&dribbling)), me(), at(1_001));
    for second in 0..2 {
        let now = at(1_001 + second * 1_000);
        server.expire(now);
        assert!(matches!(server.turn(token, now), Next::Wait { .. }), "second {second}");
        dribbling.lock().unwrap().steps.push_back(Step::Bytes(vec![5]));
    }
    server.expire(at(3_001));
    assert!(server.connection(token).is_none() && server.client_count() == 0);
    // Who asks a thread for its answer does so a limited number of times.
    server.threads = THREAD_COUNT_MAX;
    let (answer, _) = ask(&mut server, me(), Scripted::of(&Message::Budget { bytes: 1 }.encode()), at(4_000));
    assert!(matches!(&answer, Some(Message::Error { text }) if text.contains("at work on 64 answers")), "{answer:?}");
    assert!(matches!(
        ask(&mut server, me(), Scripted::of(&Message::Status.encode()), at(4_000)).0,
        Some(Message::StatusIs { .. })
    ));
}

#[test]
fn strangers_and_those_who_cannot_be_watched_are_refused_with_the_reason() {
    let now = Instant::now();
    let (mut server, service) = server(true, now);
    let text = |answer: Option<Message>| match answer {
        Some(Message::Error { text }) => text,
        other => panic!("{other:?}"),
    };
    let question = || Scripted::of(&hello("/bin/x").encode());
    let stranger = Peer { uid: me().uid.wrapping_add(1), ..me() };
    if stranger.uid != 0 {
        let (answer, with_memory) = ask(&mut server, stranger, question(), now);
        assert!(text(answer).contains("belongs to another user") && !with_memory);
    }
    // A process id of 0, as the kernel gives it for another PID namespace.
    let hidden = Peer { pid: None, ..me() };
    let (answer, _) = ask(&mut server, hidden, Scripted { is_hidden: true, ..question() }, now);
    assert!(text(answer).contains("in a PID namespace that the session's owner cannot see"));
    // Where there is a pidfd all the same, its end will be heard of.
    let (answer, with_memory) = ask(&mut server, hidden, question(), now);
    assert!(matches!(answer, Some(Message::Welcome { .. })) && with_memory);
    // Not the session that this process is in: it has joined as one that cannot be seen.
    let pid = std::process::id();
    let stop = || Scripted::of(&Message::Stop { pid }.encode());
    assert!(text(ask(&mut server, me(), stop(), now).0).contains(&format!("process {pid} is not in this session")));
    assert!(matches!(ask(&mut server, me(), question(), now).0, Some(Message::Welcome { .. })));
    let token = server.accept(Shared(Arc::new(Mutex::new(stop()))), me(), now);
    assert!(matches!(server.turn(token, now), Next::Stop(_)));
    assert_eq!(server.counts.programs_refused.load(Ordering::Relaxed), 1);
    assert_eq!(service.refused.lock().unwrap().len(), 1);
}

#[test]
fn whatever_programs_answer_no_other_place_is_used() {
    let (count, mut rng) = generator();
    let directories = [PathBuf::from("/run/user/7/dormouse"), "/tmp/dormouse-7".into()];
    let (mut used, mut errors) = (0_u64, 0_u64);
    for _ in 0..count {
        let mut connection = Scripted { steps: steps(&mut rng), ..Scripted::default() };
        // The program's silence is a timeout for who asks.
        let said = match frame::ask(&mut connection, &Message::List, None) {
            Ok(Message::Classes { session, .. } | Message::Changed { session, .. } | Message::Attach { session }) => {
                session
            }
            Ok(Message::Error { text }) => {
                assert!(!dormouse_abi::wire::shown(&text).contains(|c: char| c.is_control()));
                continue;
            }
            Ok(_) => continue,
            Err(_) => {
                errors += 1;
                path(&mut rng)
            }
        };
        if let Some((index, name)) = within(&said, &directories) {
            used += 1;
            let path = directories[index].join(name);
            assert!(path.parent() == Some(&directories[index]) && path.to_str() == Some(said.as_str()), "{said:?}");
            assert!(!name.contains(['/', '\0']) && name.starts_with("session-"), "{said:?}");
        }
        assert_eq!(Message::decode(&connection.told[4..]), Ok(Message::List));
    }
    assert!(used > 0 && errors > count / 20, "{used} {errors}");
    assert_eq!(printable("a\u{1b}b"), "a\u{fffd}b");
}

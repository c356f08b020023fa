//! Conversations with arbitrary peers, up to millions: hostile clients with the server, and hostile programs with the
//! tools.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dormouse_abi::message::{
    BudgetState, Edge, HEAD_SIZE_BYTES, Message, OwnerToProgram, OwnerToTool, Preamble, ProgramToOwner, ProgramToTool,
    RulesState, Snapshot, SnapshotRequest, Status, ToolToOwner, ToolToProgram,
};
use dormouse_transport::{Conversation, Deadline, Incoming, Peer};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::directory::within;
use crate::process;
use crate::processes::{NewProcess, Processes};
use crate::server::{CLIENT_COUNT_MAX, Counts, Joining, Next, PATIENCE, Server, Service, THREAD_COUNT_MAX, Take};

/// Environment variable: the number of conversations.
const ENV_CONVERSATIONS: &str = "DORMOUSE_CONVERSATIONS";
/// Environment variable: the seed that replays a failure.
const ENV_SEED: &str = "DORMOUSE_CONVERSATIONS_SEED";

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns the number of conversations, and the generator. Its seed is printed if a test fails.
fn generator() -> (u64, SmallRng) {
    let seed = variable(ENV_SEED).unwrap_or_else(rand::random);
    println!("{ENV_SEED}={seed} draws the same again");
    (variable(ENV_CONVERSATIONS).unwrap_or(20_000), SmallRng::seed_from_u64(seed))
}

/// A session that notes what it was asked for.
#[derive(Debug)]
struct Noted {
    memory: OwnedFd,
    processes: Arc<Processes>,
    joined: AtomicU64,
    refused: Mutex<Vec<String>>,
    counts: Counts,
}

impl Service for Noted {
    fn counts(&self) -> &Counts {
        &self.counts
    }
    fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
    fn enter(&self, joining: &Joining<'_>, pidfd: OwnedFd) -> Result<u16, String> {
        let number = self.joined.fetch_add(1, Ordering::Relaxed) % 4_000 + 1;
        let pid = Some(joining.pid).filter(|pid| *pid != 0);
        let number = number as u16;
        self.processes.admit(NewProcess {
            number,
            pid,
            image: joining.image,
            name: joining.name.into(),
            pidfd: Some(pidfd),
        });
        Ok(number)
    }
    fn refuse(&self, _program: &str, reason: &str) {
        let mut refused = self.refused.lock().unwrap();
        if refused.len() < 10 {
            refused.push(reason.into());
        }
    }
    fn leave(&self, ended: &dyn Fn() -> Vec<u16>) {
        assert!(!ended().contains(&0));
    }
    fn snapshot(&self, wanted: &Take) -> Result<Snapshot, String> {
        assert!(wanted.dir.as_ref().is_none_or(|dir| dir.is_absolute()));
        Err("none".to_string())
    }
    fn budget(&self, _bytes: u64) -> Result<BudgetState, String> {
        Err("none".to_string())
    }
    fn rules(&self, new: Option<&[String]>) -> Result<RulesState, String> {
        let rules = new.map_or_else(|| vec!["*".to_string()], <[String]>::to_vec);
        Ok(RulesState { rules, processes: Vec::new() })
    }
    fn describe(&self, status: &mut Status) {
        status.classes = 7;
    }
}

fn noted() -> Arc<Noted> {
    let memory = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
    let processes = Arc::new(Processes::new().unwrap());
    Arc::new(Noted {
        memory,
        processes,
        joined: AtomicU64::new(0),
        refused: Mutex::default(),
        counts: Counts::default(),
    })
}

fn server(may_be_stopped: bool, now: Instant) -> (Server<Noted>, Arc<Noted>) {
    let service = noted();
    (Server::new(Arc::clone(&service), Arc::clone(&service.processes), may_be_stopped, 1_000, now), service)
}

fn me() -> Peer {
    let (socket, _other) = UnixStream::pair().unwrap();
    Peer::of(&socket).unwrap()
}

fn stranger() -> Peer {
    Peer { uid: me().uid.wrapping_add(1), ..me() }
}

fn hello() -> ProgramToOwner {
    ProgramToOwner::Hello { vpid: 7, image: 8, program: "/bin/x".into(), command_line: "x".into() }
}

/// Returns a connection: the server's end, and the client's, which does not block.
fn pair() -> (OwnedFd, UnixStream) {
    let (server, client) = UnixStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    (server.into(), client)
}

/// Returns a question's bytes as they are sent.
fn bytes<M: Message>(question: &M) -> Vec<u8> {
    [Preamble::of(M::EDGE).encode().to_vec(), question.encode()].concat()
}

/// Returns the answer that has arrived, and whether a descriptor came with it.
fn answer<M: Message>(client: &UnixStream) -> Option<(M, bool)> {
    let mut incoming = Incoming::new();
    incoming.preamble(client).ok()??.check_answerer(M::EDGE).unwrap();
    let (message, fd) = incoming.message_with_fd(client).ok()??;
    Some((message, fd.is_some()))
}

/// Asks one question and returns the answer.
fn ask<A: Message>(server: &mut Server<Noted>, peer: Peer, question: &[u8], now: Instant) -> Option<(A, bool)> {
    let (socket, mut client) = pair();
    client.write_all(question).unwrap();
    let token = server.accept(socket, peer, now);
    if let Next::Later(socket, _, job) = server.turn(token, now) {
        job().tell(socket);
    }
    answer(&client)
}

fn text(rng: &mut SmallRng) -> String {
    (0..rng.random_range(0..40)).map(|_| char::from(rng.random_range(0..128_u8))).collect()
}

/// Returns a path that a hostile program might name.
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
    let chosen: Vec<&str> = (0..rng.random_range(0..5)).map(|_| pieces[rng.random_range(0..pieces.len())]).collect();
    chosen.join(["", "/"][rng.random_range(0..2)])
}

/// Returns an arbitrary question to an owner.
fn question(rng: &mut SmallRng) -> Vec<u8> {
    let trigger = ["event:x", "duration:y", "command", ""][rng.random_range(0..4)].to_string();
    let dir = ["", "relative", "/absolute", "/../x"][rng.random_range(0..4)].into();
    let request = SnapshotRequest { dir, last_ns: rng.random(), bytes_max: rng.random(), trigger };
    match rng.random_range(0..11) {
        0..3 => bytes(&hello()),
        3 => {
            let (program, command_line) = (text(rng), text(rng));
            bytes(&ProgramToOwner::Hello { vpid: rng.random(), image: rng.random(), program, command_line })
        }
        4 => bytes(&ProgramToOwner::Snapshot { request }),
        5 => bytes(&ToolToOwner::Stop { pid: [std::process::id(), rng.random()][rng.random_range(0..2)] }),
        6 => bytes(&ToolToOwner::Snapshot { request }),
        7 => bytes(&ToolToOwner::Budget { bytes: rng.random() }),
        8 => bytes(&ToolToOwner::Rules),
        9 => bytes(&ToolToOwner::SetRules { rules: vec![text(rng), text(rng)] }),
        _ => bytes(&ToolToOwner::Status),
    }
}

/// Damages what a client sends, in half of the cases.
fn damage(rng: &mut SmallRng, bytes: &mut Vec<u8>) {
    match rng.random_range(0..10) {
        0 | 1 => {
            let at = rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        2 => bytes.truncate(rng.random_range(0..bytes.len())),
        3 => *bytes = (0..rng.random_range(1..200)).map(|_| rng.random()).collect(),
        // Replaces the frame's size.
        4 => bytes[Preamble::SIZE_BYTES + 1..][..4]
            .copy_from_slice(&[0, 60_000, u32::MAX][rng.random_range(0..3)].to_le_bytes()),
        5 => bytes.extend([0; 30]),
        _ => {}
    }
}

/// A client that has connected to the server.
struct Other {
    token: u64,
    begun: Instant,
    /// Its end of the connection. `None`: it has disconnected.
    client: Option<UnixStream>,
    to_send: VecDeque<u8>,
    is_stranger: bool,
}

impl Other {
    /// Sends a part of what it has to send, or disconnects.
    fn act(&mut self, rng: &mut SmallRng) {
        let Some(client) = &mut self.client else { return };
        match rng.random_range(0..20) {
            0 => drop(client.shutdown(std::net::Shutdown::Write)),
            1 => self.client = None,
            _ => {
                let count =
                    if rng.random() { self.to_send.len() } else { rng.random_range(0..=self.to_send.len().min(30)) };
                let piece: Vec<u8> = self.to_send.drain(..count).collect();
                // The server no longer reads from a client that it has answered.
                let _ = client.write_all(&piece);
            }
        }
    }
}

#[test]
fn whatever_clients_do_the_others_are_answered() {
    let (count, mut rng) = generator();
    let mut now = Instant::now();
    let (mut server, service) = server(true, now);
    let (me, mut others) = (me(), VecDeque::<Other>::new());
    let (mut answered, mut with_memory, mut honest) = (0_u64, 0_u64, 0_u64);
    for conversation in 0..count {
        let (socket, client) = pair();
        let mut to_send = question(&mut rng);
        damage(&mut rng, &mut to_send);
        let is_stranger = rng.random_range(0..8) == 0;
        let uid = if is_stranger { stranger().uid } else { [me.uid, 0][rng.random_range(0..2)] };
        let peer = Peer { pid: me.pid.filter(|_| rng.random_range(0..8) != 0), uid, ..me };
        server.find_pidfd =
            |_, peer| if peer.pid.is_none() { Ok(None) } else { Ok(Some(process::open(std::process::id())?)) };
        let token = server.accept(socket, peer, now);
        let is_stranger = is_stranger && uid != 0;
        others.push_back(Other { token, begun: now, client: Some(client), to_send: to_send.into(), is_stranger });
        // Any client may act and have a turn at any time, even one whose conversation is over.
        for _ in 0..rng.random_range(0..8) {
            let index = if rng.random() { others.len() - 1 } else { rng.random_range(0..others.len()) };
            others[index].act(&mut rng);
            match server.turn(others[index].token, now) {
                Next::Wait { .. } | Next::Closed | Next::Stop(_) => {}
                Next::Later(socket, edge, job) => {
                    assert!(edge != Edge::ToolProgram && !others[index].is_stranger);
                    // Either the thread ends at once, or others are busy for some time.
                    job().tell(socket);
                    server.threads = rng.random_range(0..=THREAD_COUNT_MAX);
                }
            }
        }
        assert!(server.client_count() <= CLIENT_COUNT_MAX);
        if rng.random_range(0..16) == 0 {
            now += Duration::from_millis(rng.random_range(0..400));
            server.expire(now);
            assert!(server.next_deadline().is_none_or(|deadline| deadline > now && deadline <= now + PATIENCE));
        }
        while others.front().is_some_and(|other| other.begun + PATIENCE <= now) {
            let Some(other) = others.pop_front() else { break };
            assert!(server.socket(other.token).is_none(), "conversation {conversation} has not ended");
            let Some(client) = other.client else { continue };
            let mut incoming = Incoming::new();
            let Ok(Some(preamble)) = incoming.preamble(&client) else { continue };
            answered += 1;
            if preamble.edge == Edge::ProgramOwner as u32
                && let Ok(Some((message, fd))) = incoming.message_with_fd::<OwnerToProgram>(&client)
            {
                with_memory += u64::from(fd.is_some());
                assert!(fd.is_none() || matches!(message, OwnerToProgram::Welcome { .. }) && !other.is_stranger);
                assert!(!other.is_stranger || matches!(message, OwnerToProgram::Error { .. }));
            }
        }
        // A well-behaved client asks in between, in one write.
        if conversation % 64 == 0 {
            server.threads = 0;
            let answer = ask(&mut server, me, &bytes(&ToolToOwner::Status), now);
            let Some((OwnerToTool::StatusIs { status }, false)) = answer else { panic!("{answer:?}") };
            assert!(status.classes == 7 && status.clients <= status.clients_max);
            honest += 1;
        }
    }
    server.expire(now + PATIENCE);
    assert_eq!(server.client_count(), 0);
    // Checks that the test has tested something. At the end, this process has as many numbers as it may have.
    let joined = service.joined.load(Ordering::Relaxed);
    assert!(answered > count / 4 && with_memory > 50 && honest > count / 100, "{answered} {with_memory} {honest}");
    assert!(joined >= with_memory && service.counts.programs_refused.load(Ordering::Relaxed) > 0);
    println!(
        "{answered} answered, {with_memory} joined, {} dropped",
        service.counts.clients_dropped.load(Ordering::Relaxed)
    );
}

#[test]
fn slow_clients_do_not_delay_others() {
    let begin = Instant::now();
    let (mut server, _) = server(false, begin);
    let at = |ms| begin + Duration::from_millis(ms);
    // More clients than are served at once, none of which sends more than a byte.
    let mut clients = Vec::new();
    for number in 0..500 {
        let (socket, mut client) = pair();
        client.write_all(b"d").unwrap();
        clients.push(client);
        let token = server.accept(socket, me(), at(number));
        assert!(matches!(server.turn(token, at(number)), Next::Wait { to_write: false }));
        assert!(server.client_count() <= CLIENT_COUNT_MAX);
    }
    let answer = ask::<OwnerToProgram>(&mut server, me(), &bytes(&hello()), at(500));
    assert!(matches!(answer, Some((OwnerToProgram::Welcome { process: 1, .. }, true))), "{answer:?}");
    assert_eq!(server.client_count(), CLIENT_COUNT_MAX - 1);
    // A further byte each second does not extend the deadline.
    let (socket, mut client) = pair();
    let token = server.accept(socket, me(), at(1_000));
    for (second, byte) in (1..3).zip(b"do") {
        let now = at(second * 1_000);
        server.expire(now);
        client.write_all(&[*byte]).unwrap();
        assert!(matches!(server.turn(token, now), Next::Wait { .. }), "second {second}");
    }
    server.expire(at(3_000));
    assert!(server.socket(token).is_none() && server.client_count() == 0);
    // Answers that need a thread are limited.
    server.threads = THREAD_COUNT_MAX;
    let answer = ask::<OwnerToTool>(&mut server, me(), &bytes(&ToolToOwner::Budget { bytes: 1 }), at(7_000));
    assert!(
        matches!(&answer, Some((OwnerToTool::Error { text }, _)) if text.contains("at work on 64 answers")),
        "{answer:?}"
    );
    let answer = ask::<OwnerToTool>(&mut server, me(), &bytes(&ToolToOwner::Status), at(7_000));
    assert!(matches!(answer, Some((OwnerToTool::StatusIs { .. }, _))), "{answer:?}");
}

#[test]
fn other_users_and_unwatchable_processes_are_refused_with_the_reason() {
    let now = Instant::now();
    let (mut server, service) = server(true, now);
    let of_program = |answer: Option<(OwnerToProgram, bool)>| match answer {
        Some((OwnerToProgram::Error { text }, false)) => text,
        other => panic!("{other:?}"),
    };
    let of_tool = |answer: Option<(OwnerToTool, bool)>| match answer {
        Some((OwnerToTool::Error { text }, false)) => text,
        other => panic!("{other:?}"),
    };
    if stranger().uid != 0 {
        assert!(of_program(ask(&mut server, stranger(), &bytes(&hello()), now)).contains("belongs to another user"));
    }
    // The kernel reports process id 0 for another PID namespace.
    let hidden = Peer { pid: None, ..me() };
    server.find_pidfd = |_, _| Ok(None);
    let text = of_program(ask(&mut server, hidden, &bytes(&hello()), now));
    assert!(text.contains("in a PID namespace that the session's owner cannot see"), "{text}");
    // If there is a pidfd all the same, the process's end can be noticed.
    server.find_pidfd = |_, _| Ok(Some(process::open(std::process::id())?));
    let answer = ask(&mut server, hidden, &bytes(&hello()), now);
    assert!(matches!(answer, Some((OwnerToProgram::Welcome { .. }, true))), "{answer:?}");
    // This process is not in the session: it has joined as one that is not visible.
    let pid = std::process::id();
    let stop = bytes(&ToolToOwner::Stop { pid });
    assert!(of_tool(ask(&mut server, me(), &stop, now)).contains(&format!("process {pid} is not in this session")));
    assert!(matches!(ask(&mut server, me(), &bytes(&hello()), now), Some((OwnerToProgram::Welcome { .. }, true))));
    let (socket, mut client) = pair();
    client.write_all(&stop).unwrap();
    let token = server.accept(socket, me(), now);
    assert!(matches!(server.turn(token, now), Next::Stop(_)));
    assert_eq!(service.counts.programs_refused.load(Ordering::Relaxed), 1);
    // A client of another version, or without a preamble, is reported at the session's end.
    for preamble in [Preamble { version: 1, ..Preamble::of(Edge::ProgramOwner) }.encode(), [7; 16]] {
        assert_eq!(ask::<OwnerToProgram>(&mut server, me(), &preamble, now).map(drop), None);
    }
    let refused = service.refused.lock().unwrap();
    assert!(refused.len() == 3 && refused[1].contains("version 1") || refused[1].contains('1'), "{refused:?}");
}

#[test]
fn whatever_programs_answer_no_other_place_is_used() {
    let (count, mut rng) = generator();
    let directories = [PathBuf::from("/run/user/7/dormouse"), "/tmp/dormouse-7".into()];
    let (mut used, mut errors) = (0_u64, 0_u64);
    for _ in 0..count {
        let (socket, mut program) = pair();
        let session = path(&mut rng);
        let mut answer = match rng.random_range(0..4) {
            0 => bytes(&ProgramToTool::Changed {
                matched: rng.random(),
                changed: 0,
                armed: 0,
                sessions: vec![(session, 0)],
            }),
            1 => bytes(&ProgramToTool::Error { text: text(&mut rng) }),
            _ => bytes(&ProgramToTool::Classes { sessions: vec![session], classes: vec![], patching: text(&mut rng) }),
        };
        damage(&mut rng, &mut answer);
        program.write_all(&answer).unwrap();
        // It sends no more, now or later. A silent program would be waited for until the deadline, which the
        // transport's tests cover.
        program.shutdown(std::net::Shutdown::Write).unwrap();
        let mut conversation = Conversation::begin(socket, Edge::ToolProgram, Deadline::after(Duration::from_secs(60)));
        let said = match conversation.ask(&ToolToProgram::List) {
            Ok(ProgramToTool::Classes { sessions, patching, .. }) => {
                assert!(!patching.contains(|c: char| c.is_control()));
                sessions
            }
            Ok(ProgramToTool::Changed { sessions, .. }) => sessions.into_iter().map(|(session, _)| session).collect(),
            Ok(ProgramToTool::Error { text }) => {
                assert!(!text.contains(|c: char| c.is_control()));
                continue;
            }
            Ok(_) => continue,
            // Messages are checked for forbidden contents, not only for their type.
            Err(_) => {
                errors += 1;
                vec![path(&mut rng)]
            }
        };
        let known = said.iter().filter_map(|said| Some((within(said, &directories)?, said)));
        for ((index, name), said) in known {
            used += 1;
            let path = directories[index].join(name);
            assert!(path.parent() == Some(&directories[index]) && path.to_str() == Some(said.as_str()), "{said:?}");
            assert!(!name.contains(['/', '\0']) && name.starts_with("session-"), "{said:?}");
        }
    }
    assert!(used > 0 && errors > count / 20, "{used} {errors}");
    println!("{used} paths were sockets of sessions, {errors} answers were none");
    assert_eq!(HEAD_SIZE_BYTES, 5);
}

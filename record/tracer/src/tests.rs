//! Random conversations by the million: a hostile owner with a program that joins, and hostile tools with a program
//! that listens. Events are recorded into whatever these hand out as a session's memory.
//!
//! One thread plays both sides: the tests' clock stands still except when a call would block, and then the other side
//! acts.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dormouse_abi::message::{Message, OwnerToProgram, Preamble, ProgramToTool, Snapshot, ToolToOwner, ToolToProgram};
use dormouse_abi::record::RecordKind;
use dormouse_abi::register::{Entrant, PROCESS_COUNT};
use dormouse_abi::rule::value::Operator;
use dormouse_abi::rule::{Condition, Literal, Name, Next, Operand, Part, Question, Rule, Test};
use dormouse_abi::session::{CLOCK_MONOTONIC, CLOCK_TSC, Geometry, MODE_DISCARD, MODE_OVERWRITE, Reason};
use dormouse_abi::tag::TagNames;
use dormouse_backing::{MemoryOptions, Pool};
use dormouse_relay::{Memory, Setup};
use dormouse_testing::{Lack, is_emulated, skip_part};
use dormouse_transport::{Clock, Deadline, Incoming};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::control::lock;
use crate::join::{PATIENCE, ask_for_memory};
use crate::session::sessions;

/// Environment variable: number of conversations.
const ENV_CONVERSATIONS: &str = "DORMOUSE_CONVERSATIONS";
/// Environment variable: seed that replays a failure.
const ENV_SEED: &str = "DORMOUSE_CONVERSATIONS_SEED";

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns the number of conversations, and the random generator. Its seed is printed if a test fails.
fn generator() -> (u64, SmallRng) {
    let seed = variable(ENV_SEED).unwrap_or_else(rand::random);
    println!("{ENV_SEED}={seed} draws the same again");
    (variable(ENV_CONVERSATIONS).unwrap_or(5_000), SmallRng::seed_from_u64(seed))
}

/// Lets one test run at a time, because they share the process's sessions.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Action of the other side while a call blocks. Its argument is the time limit, its result the time that it takes.
type Act<'a> = Box<dyn FnMut(Duration) -> Duration + Send + 'a>;

/// A clock that stands still except while a call blocks.
pub(crate) struct Simulated<'a> {
    now: Mutex<Duration>,
    act: Mutex<Act<'a>>,
    calls: AtomicU64,
}

impl<'a> Simulated<'a> {
    pub(crate) fn new(act: impl FnMut(Duration) -> Duration + Send + 'a) -> Simulated<'a> {
        Simulated { now: Mutex::default(), act: Mutex::new(Box::new(act)), calls: AtomicU64::new(0) }
    }

    /// Returns the total time that calls have blocked.
    pub(crate) fn elapsed(&self) -> Duration {
        *self.now.lock().unwrap()
    }
}

impl Clock for Simulated<'_> {
    fn now_ns(&self) -> u64 {
        self.elapsed().as_nanos() as u64
    }

    fn before_wait(&self, left: Duration) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let spent = (self.act.lock().unwrap())(left);
        assert!(spent <= left);
        *self.now.lock().unwrap() += spent;
    }
}

/// Runs `act` as another user, for this thread alone. Returns `None` if not permitted.
fn as_stranger<T>(act: impl FnOnce() -> T) -> Option<T> {
    const STRANGER: u32 = 61_235;
    // System calls, which change this thread alone; libc's functions would change all threads.
    let become_user = |uid: u32| {
        // SAFETY: setresuid(2) takes numbers.
        (unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) }) == 0
    };
    let me = rustix::process::geteuid();
    if !me.is_root() || !become_user(STRANGER) {
        return None;
    }
    let result = act();
    assert!(become_user(me.as_raw()));
    Some(result)
}

/// Returns descriptors of all kinds that are not a session's memory.
fn wrong_files(place: &Path) -> Vec<OwnedFd> {
    let memory_file = |len: u64, seals: SealFlags| {
        let fd = rustix::fs::memfd_create("wrong", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, len).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let file = |name: &str, len: u64| {
        let file = File::options().create(true).truncate(true).read(true).write(true).open(place.join(name)).unwrap();
        file.set_len(len).unwrap();
        OwnedFd::from(file)
    };
    let open = |path: &Path, flags: OFlags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let (read_end, write_end) = rustix::pipe::pipe().unwrap();
    let (socket, _) = UnixStream::pair().unwrap();
    let sized = SealFlags::SHRINK | SealFlags::GROW;
    drop(file("read-only", 1 << 20));
    vec![
        read_end,
        write_end,
        socket.into(),
        open(place, OFlags::DIRECTORY),
        open(place, OFlags::PATH),
        open(Path::new("/dev/null"), OFlags::RDWR),
        open(Path::new("/dev/zero"), OFlags::RDWR),
        open(Path::new("/proc/self/stat"), OFlags::RDONLY),
        open(&place.join("read-only"), OFlags::RDONLY),
        file("empty", 0),
        file("zeroes", 1 << 20),
        memory_file(1 << 20, SealFlags::empty()),
        memory_file(0, sized),
        memory_file(1, sized),
        memory_file(4095, sized),
        memory_file(4096, sized),
        memory_file(1 << 40, sized),
        memory_file(1 << 20, sized | SealFlags::WRITE),
    ]
}

/// Returns the rules of a session that records all events.
fn everything() -> [Rule; 1] {
    [Rule::all("*")]
}

/// A session's memory, laid out like an owner's. Any of its words may be changed.
struct Hostile {
    pool: Pool,
    geometry: Geometry,
    setup: Setup<'static>,
    /// Initial contents, without the register.
    image: Vec<u64>,
    changed: Vec<(usize, u64)>,
}

impl Hostile {
    fn new(geometry: Geometry, setup: Setup<'static>) -> Hostile {
        let pool = Pool::new("hostile", geometry.size_bytes(), MemoryOptions::new().prefault(false)).unwrap();
        // SAFETY: the pool has the geometry's size, is mapped as long as it exists, is zero, and is used here alone.
        let memory = unsafe { Memory::initialise(pool.base(), &geometry, &setup) };
        let hostile = Hostile { pool, geometry, setup, image: Vec::new(), changed: Vec::new() };
        if let Some(register) = memory.register() {
            assert!(register.set_rules(&everything(), "*"));
        }
        let end = geometry.register_offset().unwrap_or(geometry.size_bytes()) / 8;
        let image = hostile.words()[..end].iter().map(|word| word.load(Ordering::Relaxed)).collect();
        Hostile { image, ..hostile }
    }

    /// Enters this process, like an owner that accepts it.
    fn offer(&self) -> Option<u16> {
        // SAFETY: mapped as long as the pool, with the size of the geometry, which the header states after a reset.
        let memory = unsafe { Memory::from_raw(self.pool.base(), self.geometry.size_bytes()) }.ok()?;
        let (register, vpid) = (memory.register()?, std::process::id());
        let number = register.claim_process(vpid)?;
        register.offer(number, &Entrant { vpid, ..Entrant::default() }).then_some(number)
    }

    /// Returns all words: header, owner words, control blocks, rings, pages, register.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped as long as the pool, aligned, and accessed by atomics only.
        unsafe { core::slice::from_raw_parts(self.pool.base().cast(), self.geometry.size_bytes() / 8) }
    }

    /// Restores the initial contents, except for the register's entries, with the given identity.
    fn reset(&mut self, uuid: [u8; 16]) {
        let (image, words) = (core::mem::take(&mut self.image), self.words());
        image.iter().zip(words).for_each(|(value, word)| word.store(*value, Ordering::Relaxed));
        self.image = image;
        while let Some((index, former)) = self.changed.pop() {
            self.words()[index].store(former, Ordering::Relaxed);
        }
        let offset = core::mem::offset_of!(dormouse_abi::session::SessionLayout, uuid) / 8;
        for (word, bytes) in self.words()[offset..].iter().zip(uuid.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Changes random words, mostly at the beginnings of parts. With `spares_header`, none of those that a view is made
    /// from.
    fn scribble(&mut self, rng: &mut SmallRng, count: usize, spares_header: bool) {
        let geometry = self.geometry;
        let layout_words = size_of::<dormouse_abi::session::SessionLayout>() / 8;
        for _ in 0..count {
            let begin = match rng.random_range(0..8) {
                0 if !spares_header => 0,
                0 | 1 => layout_words * 8,
                2 => geometry.owners_offset(),
                3 | 4 => geometry.streams_offset() + rng.random_range(0..geometry.stream_count as usize) * 4096,
                5 => geometry.rings_offset(),
                6 => geometry.pages_offset(),
                _ => geometry.register_offset().unwrap_or(geometry.pages_offset()),
            };
            let reach = [4, layout_words, 512, 1 << 17][rng.random_range(0..4)];
            let index = (begin / 8 + rng.random_range(0..reach)).min(self.words().len() - 1);
            let former = self.words()[index].load(Ordering::Relaxed);
            let value = match rng.random_range(0..6) {
                0 => 0,
                1 => u64::MAX,
                2 => former.wrapping_add([1, u64::MAX, 1 << 32, 1 << 16][rng.random_range(0..4)]),
                3 => former ^ 1 << rng.random_range(0..64),
                4 => rng.random_range(0..1 << 20),
                _ => rng.random(),
            };
            if index * 8 >= geometry.register_offset().unwrap_or(usize::MAX) {
                self.changed.push((index, former));
            }
            self.words()[index].store(value, Ordering::Relaxed);
        }
    }

    /// Forgets all entries of the register.
    fn clear_register(&mut self) {
        let Some(offset) = self.geometry.register_offset() else { return };
        self.changed.clear();
        self.words()[offset / 8..].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        // SAFETY: mapped as long as the pool, with the size of the geometry, which the header states again afterwards.
        let memory = unsafe { Memory::initialise(self.pool.base(), &self.geometry, &self.setup) };
        assert!(memory.register().unwrap().set_rules(&everything(), "*"));
    }

    /// Returns the number of streams that have begun to write pages.
    fn used_pages(&self) -> usize {
        let words = &self.words()[self.geometry.streams_offset() / 8..];
        let control_blocks = words.chunks(4096 / 8).take(self.geometry.stream_count as usize);
        control_blocks.filter(|block| block[0].load(Ordering::Relaxed) != 0).count()
    }
}

/// The machine's counter as a clock, if it has one.
const COUNTER: u32 = if cfg!(target_arch = "x86_64") { CLOCK_TSC } else { CLOCK_MONOTONIC };

/// Returns sessions of all kinds; the last has no register.
fn hostile_memories() -> Vec<Hostile> {
    let kinds = [
        (MODE_DISCARD, COUNTER, RecordKind::Ids, 8, 64, true),
        (MODE_DISCARD, COUNTER, RecordKind::Compact, 8, 2, true),
        (MODE_OVERWRITE, COUNTER, RecordKind::Ids, 16, 64, true),
        (MODE_OVERWRITE, CLOCK_MONOTONIC, RecordKind::Compact, 3, 64, true),
        (MODE_DISCARD, CLOCK_MONOTONIC, RecordKind::Ids, 1, 0, false),
    ];
    let hostile = |(mode, clock, kind, page_count, cpu_count, has_register): (_, _, _, u32, u32, _)| {
        let geometry =
            Geometry { page_size_bytes: 4096, page_count, cpu_count, stream_count: cpu_count + 2, has_register };
        assert!(geometry.is_valid());
        let setup = Setup {
            mode,
            clock,
            uuid: [7; 16],
            kind,
            tags: TagNames::NONE,
            page_count_limit: page_count,
            kept_for: &[],
            kept_each: 0,
        };
        Hostile::new(geometry, setup)
    };
    kinds.map(hostile).into()
}

/// Records events of all forms. Nothing but the session's memory may be written, whatever the memory contains.
fn record(rng: &mut SmallRng) {
    let (number, text) = (rng.random::<u64>(), "x".repeat(rng.random_range(0..100)));
    crate::event!(hostile.none);
    crate::event!(hostile.word, number);
    crate::event!(hostile.run, number, text = text.as_str(), bytes = text.as_bytes());
    if rng.random_range(0..16) == 0 {
        // Fills pages, so that they are switched.
        let text = "y".repeat(rng.random_range(0..5_000));
        (0..rng.random_range(0..64)).for_each(|_| crate::event!(hostile.run, number, text = text.as_str()));
    }
}

impl Hostile {
    /// Makes the program record. In an honest session the events must be in the memory; otherwise the memory is changed
    /// between events. Returns 1 for an honest session, else 0.
    fn record(&mut self, rng: &mut SmallRng, is_honest: bool) -> u64 {
        record(rng);
        if is_honest {
            assert!(self.used_pages() > 0);
            return 1;
        }
        let scribbled = rng.random_range(0..8);
        self.scribble(rng, scribbled, false);
        record(rng);
        0
    }
}

/// Descriptors sent with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gift {
    Nothing,
    Memory,
    Wrong(usize),
    Many,
}

impl Gift {
    fn draw(rng: &mut SmallRng, wrong_count: usize) -> Gift {
        match rng.random_range(0..8) {
            0 => Gift::Nothing,
            1 | 2 => Gift::Wrong(rng.random_range(0..wrong_count)),
            3 => Gift::Many,
            _ => Gift::Memory,
        }
    }
}

fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    // A peer that has read enough has closed the connection.
    let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Damages bytes to be sent, in some of the cases.
fn damage(rng: &mut SmallRng, bytes: &mut Vec<u8>) {
    match rng.random_range(0..12) {
        0 | 1 => {
            let at = rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        2 => bytes.truncate(rng.random_range(0..bytes.len())),
        3 => *bytes = (0..rng.random_range(1..200)).map(|_| rng.random()).collect(),
        // The frame's size.
        4 if bytes.len() >= Preamble::SIZE_BYTES + 5 => bytes[Preamble::SIZE_BYTES + 1..][..4]
            .copy_from_slice(&[0, 60_000, u32::MAX][rng.random_range(0..3)].to_le_bytes()),
        5 => bytes.extend([0; 30]),
        _ => {}
    }
}

/// Returns the bytes of a question or an answer.
fn bytes<M: Message>(message: &M) -> Vec<u8> {
    [Preamble::of(M::EDGE).encode().to_vec(), message.encode()].concat()
}

fn text(rng: &mut SmallRng) -> String {
    (0..rng.random_range(0..40)).map(|_| char::from(rng.random_range(0..128_u8))).collect()
}

/// A peer that sends bytes in pieces.
struct Sender<'a> {
    bytes: &'a [u8],
    sent: usize,
    /// Index of the byte with whose piece the descriptors are sent.
    gift_at: usize,
    fds: Vec<BorrowedFd<'a>>,
    /// Whether it is silent after its last byte instead of closing.
    is_silent: bool,
    /// Maximum number of bytes in a piece.
    piece_len: usize,
}

impl<'a> Sender<'a> {
    fn new(
        rng: &mut SmallRng,
        bytes: &'a [u8],
        gift: Gift,
        memory: BorrowedFd<'a>,
        wrong: &'a [OwnedFd],
    ) -> Sender<'a> {
        let fds = match gift {
            Gift::Nothing => Vec::new(),
            Gift::Memory => vec![memory],
            Gift::Wrong(index) => vec![wrong[index].as_fd()],
            Gift::Many => (0..rng.random_range(2..6)).map(|index| [memory, wrong[index].as_fd()][index % 2]).collect(),
        };
        let gift_at =
            if rng.random_range(0..8) == 0 { rng.random_range(0..bytes.len().max(1)) } else { Preamble::SIZE_BYTES };
        let piece_len = [1, 3, 16, bytes.len()][rng.random_range(0..4)].max(1);
        Sender { bytes, sent: 0, gift_at, fds, is_silent: rng.random_range(0..16) == 0, piece_len }
    }

    /// Sends a piece, or closes after the last. Returns the time that it takes.
    fn act(&mut self, socket: &UnixStream, left: Duration, pace: &mut Pace) -> Duration {
        if self.sent == self.bytes.len() {
            if self.is_silent {
                return left;
            }
            let _ = socket.shutdown(std::net::Shutdown::Both);
        } else {
            self.send_piece(socket);
        }
        // If nothing more will arrive, the next call blocks as long as it may, by the real clock.
        let is_over = self.is_silent && self.sent == self.bytes.len();
        if is_over { left.saturating_sub(Duration::from_micros(20)) } else { pace.next().min(left) }
    }

    fn send_piece(&mut self, socket: &UnixStream) {
        let mut end = (self.sent + self.piece_len).min(self.bytes.len());
        if self.sent < self.gift_at && self.gift_at < end {
            end = self.gift_at;
        }
        let fds = if (self.sent..end).contains(&self.gift_at) { self.fds.as_slice() } else { &[] };
        send(socket, &self.bytes[self.sent..end], fds);
        self.sent = end;
    }
}

/// Time between a peer's pieces: ever longer, or none.
struct Pace {
    next_ns: u64,
}

impl Pace {
    fn draw(rng: &mut SmallRng, patience: Duration) -> Pace {
        let next_ns = if rng.random_range(0..4) == 0 { rng.random_range(0..patience.as_nanos() as u64 / 8) } else { 0 };
        Pace { next_ns }
    }

    fn next(&mut self) -> Duration {
        self.next_ns += self.next_ns / 4;
        Duration::from_nanos(self.next_ns)
    }
}

fn descriptor_count() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the number of descriptors once those of other tests are closed: at most `before`, unless there is a leak. In an
/// emulator it returns 0, see [`skip_descriptors`].
fn settled_descriptor_count(before: Option<usize>) -> usize {
    if is_emulated() {
        return 0;
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let now = descriptor_count();
        if before.is_none_or(|before| now <= before) || Instant::now() > deadline {
            return now;
        }
        // Nothing signals when another test closes its own. The deadline ends the wait.
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_one_printable_line(reason: &str) -> bool {
    reason.len() < 10_000 && !reason.contains(|c: char| c.is_control())
}

#[test]
fn whatever_an_owner_answers_a_program_goes_on() {
    let _alone = alone();
    let (count, mut rng) = generator();
    let place = tempfile::tempdir().unwrap();
    let (wrong, mut memories) = (wrong_files(place.path()), hostile_memories());
    let own_path = place.path().join("own");
    let own = UnixListener::bind(&own_path).unwrap();
    own.set_nonblocking(true).unwrap();
    // The user of a listening socket is that of listen(2).
    let strange_path = place.path().join("strange");
    let strange = UnixListener::bind(&strange_path).unwrap();
    strange.set_nonblocking(true).unwrap();
    let has_stranger = as_stranger(|| rustix::net::listen(&strange, 16).unwrap()).is_some();
    lock().leave_all();
    let (mut joined, mut recorded, mut refused, mut timed_out) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut descriptors = None;
    for conversation in 0..count {
        let is_stranger = has_stranger && rng.random_range(0..16) == 0;
        let (listener, path) = if is_stranger { (&strange, &strange_path) } else { (&own, &own_path) };
        // Periodically an honest owner, whose memory has a register.
        let is_honest = conversation % 64 == 0 && !is_stranger;
        let index = rng.random_range(0..memories.len() - usize::from(is_honest));
        let hostile = &mut memories[index];
        // Sometimes it is the session that the program is in, or was in.
        hostile.reset(if rng.random() { [index as u8; 16] } else { rng.random() });
        let offered = hostile.offer().filter(|_| is_honest || rng.random_range(0..8) > 0);
        let mut answer = match rng.random_range(0..8) {
            _ if is_honest => bytes(&OwnerToProgram::Welcome { process: offered.unwrap() }),
            0 => bytes(&OwnerToProgram::Error { text: text(&mut rng) }),
            1 => {
                let (dir, events) = (text(&mut rng), rng.random());
                let snapshot = Snapshot { dir, events, bytes: 0, span_ns: 0, pages_missed: 0, pages_refused: 0 };
                bytes(&OwnerToProgram::Snapshotted { snapshot })
            }
            2 => bytes(&ToolToOwner::Stop { pid: rng.random() }),
            _ => bytes(&OwnerToProgram::Welcome { process: offered.unwrap_or_else(|| rng.random()) }),
        };
        let gift = if is_honest { Gift::Memory } else { Gift::draw(&mut rng, wrong.len()) };
        let preamble = Preamble { version: rng.random_range(0..5), edge: rng.random_range(0..5) }.encode();
        if !is_honest {
            if rng.random_range(0..16) == 0 {
                answer[..Preamble::SIZE_BYTES].copy_from_slice(&preamble);
            }
            damage(&mut rng, &mut answer);
            if rng.random() {
                let (scribbled, spares_header) = (rng.random_range(1..8), rng.random());
                hostile.scribble(&mut rng, scribbled, spares_header);
            }
        }
        let mut sender = Sender::new(&mut rng, &answer, gift, hostile.pool.file(), &wrong);
        if is_honest {
            (sender.gift_at, sender.is_silent) = (Preamble::SIZE_BYTES, false);
        }
        let mut pace = if is_honest { Pace { next_ns: 0 } } else { Pace::draw(&mut rng, PATIENCE) };
        let mut peer: Option<UnixStream> = None;
        let mut is_connected = false;
        let clock = Simulated::new(|left| {
            // The first call connects.
            if !core::mem::replace(&mut is_connected, true) {
                return Duration::ZERO;
            }
            let socket = peer.get_or_insert_with(|| listener.accept().unwrap().0);
            sender.act(socket, left, &mut pace)
        });
        let memory = ask_for_memory(path, Deadline::by(&clock, PATIENCE));
        assert!(clock.elapsed() <= PATIENCE, "conversation {conversation}: {:?}", clock.elapsed());
        let calls = clock.calls.load(Ordering::Relaxed);
        drop(clock);
        // A connection that was not accepted is in the backlog.
        drop(peer.or_else(|| listener.accept().ok().map(|(socket, _)| socket)));
        assert!(calls <= 2 + 2 * answer.len() as u64 + 2, "{calls} calls for {} bytes", answer.len());
        assert!(!is_stranger || memory.as_ref().is_err_and(|reason| reason.ends_with("belongs to another user")));
        // A session is joined once.
        lock().leave_all();
        let entered = memory.and_then(|answer| lock().join(|joining| joining.join_answered(answer, path)));
        match entered {
            Ok(()) => {
                assert_eq!(gift, Gift::Memory);
                joined += 1;
                recorded += memories[index].record(&mut rng, is_honest);
            }
            Err(reason) => {
                assert!(!is_honest, "{reason}");
                assert!(is_one_printable_line(&reason), "{reason:?}");
                assert!(!is_stranger || sessions().next().is_none());
                refused += 1;
                timed_out += u64::from(reason.ends_with("no answer in time"));
            }
        }
        if conversation % 1024 == 1023 {
            lock().leave_all();
            memories.iter_mut().for_each(Hostile::clear_register);
            // Reading the directory takes one descriptor, always.
            let now = settled_descriptor_count(descriptors);
            assert!(
                descriptors.is_none_or(|before| now <= before),
                "conversation {conversation}: {now}, {descriptors:?}"
            );
            descriptors = Some(now);
        }
    }
    lock().leave_all();
    println!("{joined} joined, {recorded} times all was recorded, {refused} refused, {timed_out} of them late");
    assert!(joined > count / 16 && recorded > count / 128 && refused > count / 8 && timed_out > count / 100);
    skip_descriptors();
    if !has_stranger {
        skip_part("owners of another user", no_stranger());
    }
}

/// Says that descriptors were not counted, if the program is emulated.
fn skip_descriptors() {
    if is_emulated() {
        let why = "the emulator loses descriptors that a message has beyond those that a program has room for";
        skip_part("counting descriptors", Lack::emulated(why));
    }
}

fn no_stranger() -> Lack {
    Lack::machine("this user cannot become another", "run the tests as root")
}

/// Returns a random question of a tool.
#[cfg(feature = "listen")]
fn tool_question(rng: &mut SmallRng, place: &Path) -> Vec<u8> {
    let mut patterns = || ["*", "hostile:*", "none:*", "", "hostile:w?rd"][rng.random_range(0..5)].to_string();
    let patterns = vec![patterns(), patterns()];
    let sessions = ["/nowhere/session-1-0.sock".into(), "relative".into(), String::new(), "/".repeat(200)];
    let session = match rng.random_range(0..6) {
        4 => place.to_string_lossy().into_owned(),
        5 => text(rng),
        index => sessions[index].clone(),
    };
    match rng.random_range(0..12) {
        0 => bytes(&ToolToProgram::List),
        1 => bytes(&ToolToProgram::Arm { session: String::new(), patterns }),
        2 => bytes(&ToolToProgram::Disarm { session: String::new(), patterns }),
        3 => bytes(&ToolToProgram::Detach { session: String::new() }),
        4 => bytes(&ToolToProgram::ListTunables),
        5 => bytes(&ToolToProgram::SetTunables { values: vec![(text(rng), text(rng))] }),
        6 => {
            let uuid = [[rng.random_range(0..5); 16], rng.random()][rng.random_range(0..2)];
            let offset = [0, 1, rng.random_range(0..1 << 17), rng.random()][rng.random_range(0..4)];
            let size_bytes = rng.random_range(0..=dormouse_abi::message::MEMORY_PART_SIZE_BYTES_MAX);
            bytes(&ToolToProgram::ReadMemory { uuid, offset, size_bytes })
        }
        7 => bytes(&ToolToProgram::FollowRules),
        _ => bytes(&ToolToProgram::Attach { session }),
    }
}

#[test]
#[cfg(feature = "listen")]
fn whatever_tools_ask_a_program_goes_on() {
    let _alone = alone();
    let (count, mut rng) = generator();
    let place = tempfile::tempdir().unwrap();
    let (wrong, mut memories) = (wrong_files(place.path()), hostile_memories());
    let has_stranger = as_stranger(|| ()).is_some();
    lock().leave_all();
    let (mut answered, mut joined, mut recorded, mut refused, mut strange) = (0_u64, 0_u64, 0_u64, 0_u64, 0_u64);
    let mut descriptors = None;
    for conversation in 0..count {
        let is_stranger = has_stranger && rng.random_range(0..16) == 0;
        // The user of a socket pair is the one that created it.
        let pair = || UnixStream::pair().unwrap();
        let (program, tool) = if is_stranger { as_stranger(pair).unwrap() } else { pair() };
        tool.set_nonblocking(true).unwrap();
        let is_honest = conversation % 64 == 0 && !is_stranger;
        let index = rng.random_range(0..memories.len() - usize::from(is_honest));
        let hostile = &mut memories[index];
        hostile.reset(if rng.random() { [index as u8; 16] } else { rng.random() });
        let before = sessions().next().map(core::ptr::from_ref);
        let attach = || bytes(&ToolToProgram::Attach { session: "/nowhere/session-1-0.sock".into() });
        let mut question = if is_honest { attach() } else { tool_question(&mut rng, place.path()) };
        let gift = if is_honest { Gift::Memory } else { Gift::draw(&mut rng, wrong.len()) };
        if !is_honest {
            damage(&mut rng, &mut question);
            if rng.random() {
                let (scribbled, spares_header) = (rng.random_range(1..8), rng.random());
                hostile.scribble(&mut rng, scribbled, spares_header);
            }
        }
        let mut sender = Sender::new(&mut rng, &question, gift, hostile.pool.file(), &wrong);
        if is_honest {
            (sender.gift_at, sender.is_silent) = (Preamble::SIZE_BYTES, false);
        }
        let patience = dormouse_listener::PATIENCE;
        let mut pace = if is_honest { Pace { next_ns: 0 } } else { Pace::draw(&mut rng, patience) };
        let clock = Simulated::new(|left| sender.act(&tool, left, &mut pace));
        let _ = dormouse_listener::converse(program.into(), &clock, &crate::control::answer);
        assert!(clock.elapsed() <= 2 * patience, "conversation {conversation}: {:?}", clock.elapsed());
        drop(clock);
        let mut incoming = Incoming::new();
        let answer = match incoming.preamble(&tool) {
            Ok(Some(_)) => incoming.message::<ProgramToTool>(&tool).ok().flatten(),
            _ => None,
        };
        answered += u64::from(answer.is_some());
        if is_stranger {
            strange += 1;
            let Some(ProgramToTool::Error { text }) = answer else { panic!("{answer:?}") };
            assert_eq!(text, "only the program's own user may talk to it");
            assert_eq!(sessions().next().map(core::ptr::from_ref), before);
            continue;
        }
        match answer {
            Some(ProgramToTool::Changed { armed, .. }) if armed > 0 => {
                joined += 1;
                recorded += memories[index].record(&mut rng, is_honest);
            }
            Some(ProgramToTool::Error { text }) => {
                assert!(!is_honest, "{text}");
                assert!(is_one_printable_line(&text), "{text:?}");
                refused += 1;
            }
            answer => assert!(!is_honest, "{answer:?}"),
        }
        if rng.random_range(0..4) == 0 {
            lock().leave_all();
        }
        if conversation % 1024 == 1023 {
            lock().leave_all();
            memories.iter_mut().for_each(Hostile::clear_register);
            let now = settled_descriptor_count(descriptors);
            assert!(
                descriptors.is_none_or(|before| now <= before),
                "conversation {conversation}: {now}, {descriptors:?}"
            );
            descriptors = Some(now);
        }
    }
    lock().leave_all();
    println!("{answered} answered, {joined} had something armed, {recorded} times all was recorded, {refused} refused");
    assert!(answered > count / 4 && joined > count / 16 && recorded > count / 128 && refused > count / 8);
    assert!(strange > 0 || !has_stranger);
    skip_descriptors();
    if !has_stranger {
        skip_part("tools of another user", no_stranger());
    }
}

/// A session whose rules reject all events of `counted:rejected`, for a program that joins and leaves.
struct Rejecting(Hostile);

impl Rejecting {
    fn new() -> Rejecting {
        Rejecting::with_uuid([9; 16])
    }

    fn with_uuid(uuid: [u8; 16]) -> Rejecting {
        let (page_size_bytes, cpu_count) = (4096, 64);
        let geometry =
            Geometry { page_size_bytes, page_count: 8, cpu_count, stream_count: cpu_count + 2, has_register: true };
        let (mode, kind) = (MODE_DISCARD, RecordKind::Ids);
        let setup = Setup {
            mode,
            clock: COUNTER,
            uuid,
            kind,
            tags: TagNames::NONE,
            page_count_limit: 8,
            kept_for: &[],
            kept_each: 0,
        };
        let session = Rejecting(Hostile::new(geometry, setup));
        session.set_rules(&[&[1]]);
        session
    }

    /// Replaces the rules. Each is true for events with one of its numbers.
    fn set_rules(&self, rules: &[&[i128]]) {
        let rule = |numbers: &&[i128]| {
            let test = |(index, number): (usize, &i128)| {
                let literal = Operand::Literal(Literal::Integer(*number));
                let question = Question::Compare(Operand::Name(0), Operator::Equal, literal);
                let is_last = index + 1 == numbers.len();
                let failed = if is_last { Next::Reject } else { Next::Test(index as u8 + 1) };
                Test { question, wanted: true, passed: Next::Accept, failed }
            };
            let name = Name { parts: vec![Part::Member("number".into())] };
            let condition = Condition { tests: numbers.iter().enumerate().map(test).collect(), names: vec![name] };
            Rule { condition, ..Rule::all("counted:*") }
        };
        let rules: Vec<Rule> = rules.iter().map(rule).collect();
        assert!(self.memory().register().unwrap().set_rules(&rules, "numbers"));
    }

    fn memory(&self) -> Memory {
        // SAFETY: mapped as long as the pool, with the size of the geometry, which the header states.
        unsafe { Memory::from_raw(self.0.pool.base(), self.0.geometry.size_bytes()) }.unwrap()
    }

    /// Returns the name by which a tool asks for the session.
    fn socket(&self) -> String {
        format!("/nowhere/{}", self.memory().uuid()[0])
    }

    fn join(&self) {
        let socket = self.socket();
        lock().join(|joining| joining.join_brought(self.0.pool.file(), Path::new(&socket))).unwrap();
    }

    fn leave(&self) {
        crate::control::answer(ToolToProgram::Detach { session: self.socket() }, None);
        self.free_processes();
    }

    /// Does the owner's part: the register has room for a limited number of processes.
    fn free_processes(&self) {
        let memory = self.memory();
        let register = memory.register().unwrap();
        (1..PROCESS_COUNT as u16)
            .filter(|number| register.process(*number).is_some())
            .for_each(|number| register.free(number));
    }

    /// Returns the number of rejected events of all classes.
    fn rejected(&self) -> u64 {
        let counts = self.memory().unrecorded_by_class().unwrap();
        assert_eq!(counts[Reason::SampledOut as usize].iter().sum::<u64>(), 0);
        counts[Reason::Rejected as usize].iter().sum()
    }

    /// Emits events that are rejected from several threads while it calls `disturb` so many times with their numbers, and
    /// returns the number of events.
    fn emit(&self, disturbances: usize, disturb: impl FnMut(usize)) -> u64 {
        emit_from(3, disturbances, disturb)
    }
}

/// See [`Rejecting::emit`].
fn emit_from(thread_count: usize, disturbances: usize, mut disturb: impl FnMut(usize)) -> u64 {
    let (emitted, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..thread_count {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    (0..1_000).for_each(|_| crate::event!(counted.rejected, number = 0_u64));
                    emitted.fetch_add(1_000, Ordering::Relaxed);
                }
            });
        }
        (0..disturbances).for_each(&mut disturb);
        is_over.store(true, Ordering::Relaxed);
    });
    emitted.into_inner()
}

#[test]
fn rejected_events_are_counted_once_each_while_the_memory_comes_and_goes() {
    let _alone = alone();
    lock().leave_all();
    let session = Rejecting::new();
    session.join();
    let emitted = session.emit(100, |_| lock().joining.apart(std::thread::yield_now));
    assert_eq!(session.rejected(), emitted);
    let listed = crate::control::answer(ToolToProgram::List, None);
    let ProgramToTool::Classes { classes, .. } = listed else { panic!("{listed:?}") };
    let counted = classes.iter().map(|class| (class.decl.full_name(), class.sessions[0]));
    let counted = counted.filter(|(_, session)| session.rejected > 0);
    let counted: Vec<_> = counted.map(|(name, session)| (name, session.rejected, session.sampled_out)).collect();
    assert_eq!(counted, [("counted:rejected".to_string(), emitted, 0)]);
    lock().leave_all();
    assert_eq!((session.rejected(), session.0.used_pages()), (emitted, 0));
}

#[test]
fn threads_that_reject_events_do_not_miss_the_memory_that_the_process_leaves() {
    let _alone = alone();
    lock().leave_all();
    let session = Rejecting::new();
    session.join();
    let emitted = session.emit(100, |_| {
        lock().leave_all();
        std::thread::yield_now();
        session.free_processes();
        session.join();
        std::thread::yield_now();
    });
    lock().leave_all();
    let rejected = session.rejected();
    assert!(rejected <= emitted, "{rejected} of {emitted}");
    println!("{rejected} of {emitted} events were counted");
}

/// One comparison is made by a section, several by the slow path, and events change from one to the other.
#[test]
fn rejected_events_are_counted_once_each_while_the_rules_change() {
    let _alone = alone();
    lock().leave_all();
    let session = Rejecting::new();
    session.join();
    let emitted = session.emit(300, |change| {
        session.set_rules([&[&[1][..]][..], &[&[2, 3]], &[&[4]], &[&[5], &[6]]][change % 4]);
        crate::control::answer(ToolToProgram::FollowRules, None);
    });
    assert_eq!(session.rejected(), emitted);
    lock().leave_all();
    assert_eq!((session.rejected(), session.0.used_pages()), (emitted, 0));
}

/// A session with rules and one without, and one that comes and goes: each has what it wants, and nothing else.
#[test]
fn sessions_do_not_change_what_others_record() {
    let _alone = alone();
    lock().leave_all();
    let [first, second, third] = [[1; 16], [2; 16], [3; 16]].map(Rejecting::with_uuid);
    // No session is left out because of another's rules, whichever path decides.
    second.set_rules(&[&[1, 3]]);
    third.set_rules(&[&[2]]);
    first.join();
    second.join();
    let is_in_third = AtomicBool::new(false);
    let emitted = first.emit(200, |round| {
        if is_in_third.load(Ordering::Relaxed) {
            third.leave();
        } else {
            third.join();
        }
        is_in_third.fetch_xor(true, Ordering::Relaxed);
        second.set_rules(&[&[1, 3 + round as i128 % 2]]);
        crate::control::answer(ToolToProgram::FollowRules, None);
    });
    assert_eq!((first.rejected(), second.rejected()), (emitted, emitted));
    assert!(third.rejected() < emitted);
    lock().leave_all();
    first.emit(1, |_| {});
    assert_eq!((first.rejected(), second.rejected()), (emitted, emitted));
    let pages = [&first, &second, &third].map(|session| session.0.used_pages());
    assert_eq!(pages, [0; 3], "nothing is recorded");
}

/// Returns the number of bytes that are allocated.
fn allocated_bytes() -> usize {
    // SAFETY: mallinfo2(3) has no conditions.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

/// Rules of one session are replaced, and events are armed and disarmed in another one, which also ends and begins, while
/// eight threads emit. `DORMOUSE_SESSION_CHANGES` is the number of changes of each kind.
#[test]
fn sessions_that_change_all_the_time_count_everything() {
    let _alone = alone();
    lock().leave_all();
    let asked = variable("DORMOUSE_SESSION_CHANGES");
    let changes = asked.unwrap_or(300) as usize;
    let [constant, ruled, armed] = [[1; 16], [2; 16], [3; 16]].map(Rejecting::with_uuid);
    constant.join();
    ruled.join();
    armed.join();
    let (mut is_armed, mut is_joined) = (true, true);
    let (begun, mut allocated) = (Instant::now(), 0);
    let patterns = || vec!["counted:*".to_string()];
    let emitted = emit_from(8, changes, |change| {
        ruled.set_rules([&[&[1][..]][..], &[&[2, 3]], &[&[4]], &[&[5], &[6]]][change % 4]);
        crate::control::answer(ToolToProgram::FollowRules, None);
        if is_joined {
            let session = armed.socket();
            is_armed = !is_armed;
            let question = match is_armed {
                true => ToolToProgram::Arm { session, patterns: patterns() },
                false => ToolToProgram::Disarm { session, patterns: patterns() },
            };
            let answer = crate::control::answer(question, None);
            assert!(matches!(answer, ProgramToTool::Changed { matched: 1.., .. }), "{answer:?}");
        }
        if change % (changes / 16).max(1) == 0 {
            if is_joined {
                armed.leave();
                let counted = armed.rejected();
                std::thread::yield_now();
                assert_eq!(armed.rejected(), counted, "an event after the session's end");
            } else {
                armed.join();
                is_armed = true;
            }
            is_joined = !is_joined;
        }
        if change == changes / 2 {
            allocated = allocated_bytes();
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let grown = allocated_bytes().saturating_sub(allocated);
    println!(
        "{changes} changes of each kind in {seconds:.1} s; {emitted} events; {grown} bytes more in the second half"
    );
    assert_eq!((constant.rejected(), ruled.rejected()), (emitted, emitted));
    assert!(armed.rejected() < emitted);
    // Other tests of this program allocate, too. What a process knows of a session that it has left stays.
    assert!(asked.is_none() || grown < 1 << 16, "{grown} bytes");
    lock().leave_all();
    let pages = [&constant, &ruled, &armed].map(|session| session.0.used_pages());
    assert_eq!(pages, [0; 3], "nothing is recorded");
}

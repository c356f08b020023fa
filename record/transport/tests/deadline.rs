//! The times passed to blocking calls end at the conversation's deadline, whatever the peer does.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use dormouse_abi::message::{Edge, Message, Preamble, ProgramToTool, ToolToProgram};
use dormouse_transport::{Clock, Conversation, Deadline, Error, is_answered, try_connect};
use proptest::prelude::*;
use rustix::io::Errno;

/// Action while a call blocks. Its argument is the time limit, its result the time that it takes.
type Act<'a> = Box<dyn FnMut(Duration) -> Duration + Send + 'a>;

/// A clock that stands still except while a call blocks.
struct Simulated<'a> {
    now: Mutex<Duration>,
    /// Time limits passed to the calls.
    passed: Mutex<Vec<Duration>>,
    act: Mutex<Act<'a>>,
    patience: Duration,
}

impl<'a> Simulated<'a> {
    fn new(patience: Duration, act: impl FnMut(Duration) -> Duration + Send + 'a) -> Simulated<'a> {
        Simulated { now: Mutex::default(), passed: Mutex::default(), act: Mutex::new(Box::new(act)), patience }
    }

    fn deadline(&self) -> Deadline<'_> {
        Deadline::by(self, self.patience)
    }

    /// Checks the total time, and returns the number of calls that blocked.
    fn check(&self) -> usize {
        let (now, passed) = (*self.now.lock().unwrap(), self.passed.lock().unwrap());
        assert!(now <= self.patience, "{now:?} of {:?}: {passed:?}", self.patience);
        passed.len()
    }
}

impl Clock for Simulated<'_> {
    fn now_ns(&self) -> u64 {
        self.now.lock().unwrap().as_nanos() as u64
    }

    fn before_wait(&self, left: Duration) {
        self.passed.lock().unwrap().push(left);
        let spent = (self.act.lock().unwrap())(left);
        assert!(spent <= left);
        *self.now.lock().unwrap() += spent;
    }
}

/// Maximum time that a program waits in total.
const PATIENCE: Duration = Duration::from_millis(50);
/// Time limit for calls that really block, by the real clock, because nothing happens.
const SHORT: Duration = Duration::from_millis(5);

/// Returns a question that is larger than any socket buffer.
fn long_question() -> ToolToProgram {
    ToolToProgram::SetTunables { values: vec![("name".repeat(50), "x".repeat(4_000)); 1_000] }
}

fn short_question() -> ToolToProgram {
    ToolToProgram::List
}

fn long_answer() -> ProgramToTool {
    ProgramToTool::MemoryPart { memory_size_bytes: 1 << 20, bytes: vec![7; 50_000] }
}

/// Returns all bytes that a program sends.
fn answer_bytes(answer: &ProgramToTool) -> Vec<u8> {
    [&Preamble::of(Edge::ToolProgram).encode()[..], &answer.encode()].concat()
}

fn begin<'a>(deadline: Deadline<'a>) -> (Conversation<'a>, UnixStream) {
    let (own, peer) = UnixStream::pair().expect("sockets");
    (Conversation::begin(own.into(), Edge::ToolProgram, deadline), peer)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The peer sends a few bytes at a time, at once, after some time, or at the last moment.
    #[test]
    fn a_slow_peer_has_until_the_deadline(
        pieces in proptest::collection::vec((1usize..20, prop_oneof![Just(0u64), 0..2_000_000u64, Just(u64::MAX)]), 1..400),
        is_long: bool,
    ) {
        let answer = if is_long { long_answer() } else { ProgramToTool::Error { text: "no".into() } };
        let bytes = answer_bytes(&answer);
        let (own, mut peer) = UnixStream::pair().expect("sockets");
        let (mut sent, mut turns) = (0, pieces.iter().cycle());
        let clock = Simulated::new(PATIENCE, |left| {
            let (len, spent_ns) = *turns.next().expect("without end");
            let end = (sent + len).min(bytes.len());
            peer.write_all(&bytes[sent..end]).expect("a peer");
            sent = end;
            // At the last moment, but before the deadline.
            Duration::from_nanos(spent_ns).min(left - Duration::from_nanos(1))
        });
        let mut conversation = Conversation::begin(own.into(), Edge::ToolProgram, clock.deadline());
        let result = conversation.ask(&short_question());
        clock.check();
        match &result {
            Ok(arrived) => prop_assert_eq!(arrived, &answer),
            Err(error) => prop_assert_eq!(*error, Error::TimedOut),
        }
        if pieces.iter().all(|(_, spent_ns)| *spent_ns == 0) {
            prop_assert!(result.is_ok());
        }
    }
}

#[test]
fn a_peer_that_sends_a_byte_each_time_at_the_last_moment_is_given_up() {
    let bytes = answer_bytes(&long_answer());
    let (own, mut peer) = UnixStream::pair().expect("sockets");
    let mut rest = bytes.as_slice();
    let clock = Simulated::new(PATIENCE, |left| {
        peer.write_all(rest.split_off(..1).expect("a byte")).expect("a peer");
        left - left / 2
    });
    let mut conversation = Conversation::begin(own.into(), Edge::ToolProgram, clock.deadline());
    assert_eq!(conversation.ask(&short_question()), Err(Error::TimedOut));
    assert!(clock.check() > 20);
}

#[test]
fn a_peer_that_says_nothing_is_given_up() {
    let clock = Simulated::new(SHORT, |left| left);
    let (mut conversation, _peer) = begin(clock.deadline());
    assert_eq!(conversation.ask(&short_question()), Err(Error::TimedOut));
    assert_eq!(clock.check(), 1);
    // Later calls do not wait.
    assert_eq!(conversation.receive::<ProgramToTool>(), Err(Error::TimedOut));
    assert_eq!(clock.check(), 1);
}

#[test]
fn a_peer_that_never_reads_is_given_up() {
    let clock = Simulated::new(SHORT, |left| left);
    let (mut conversation, _peer) = begin(clock.deadline());
    assert_eq!(conversation.ask(&long_question()), Err(Error::TimedOut));
    assert_eq!(clock.check(), 1);
}

#[test]
fn a_peer_that_reads_little_is_given_up() {
    let (own, mut peer) = UnixStream::pair().expect("sockets");
    rustix::net::sockopt::set_socket_send_buffer_size(&own, 1).expect("a buffer");
    let mut buffer = [0; 8192];
    let clock = Simulated::new(PATIENCE, |left| {
        assert!(peer.read(&mut buffer).expect("a peer") > 0);
        left.min(Duration::from_millis(3))
    });
    let mut conversation = Conversation::begin(own.into(), Edge::ToolProgram, clock.deadline());
    assert_eq!(conversation.send(&long_question()), Err(Error::TimedOut));
    assert_eq!(clock.check(), 17, "50 ms in turns of 3 ms");
}

/// Returns a listener whose backlog is full, and the connections that fill it.
fn full(path: &Path) -> (UnixListener, Vec<OwnedFd>) {
    let listener = UnixListener::bind(path).expect("a socket");
    rustix::net::listen(&listener, 1).expect("a backlog");
    let mut waiting = Vec::new();
    loop {
        match try_connect(path) {
            Ok(socket) => waiting.push(socket),
            Err(error) => {
                assert_eq!(error, Errno::AGAIN);
                return (listener, waiting);
            }
        }
    }
}

#[test]
fn a_peer_that_never_accepts_is_given_up() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("socket");
    let (listener, _waiting) = full(&path);
    let clock = Simulated::new(SHORT, |left| left);
    let conversation = Conversation::connect(&path, Edge::ToolProgram, clock.deadline());
    assert_eq!(conversation.map(|_| ()), Err(Error::TimedOut));
    assert_eq!(clock.check(), 1);
    assert!(is_answered(&path));
    drop(listener);
    assert!(!is_answered(&path));
    let refused = Conversation::connect(&path, Edge::ToolProgram, Deadline::after(PATIENCE));
    assert_eq!(refused.map(|_| ()), Err(Error::System(Errno::CONNREFUSED)));
}

#[test]
fn connecting_uses_up_part_of_the_deadline() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("socket");
    let (listener, mut waiting) = full(&path);
    let mut accepted = None;
    let bytes = answer_bytes(&long_answer());
    let mut rest = bytes.as_slice();
    let clock = Simulated::new(PATIENCE, |left| {
        match &mut accepted {
            // Accepts the earlier connections to make room for this one, and closes them; then accepts this one.
            None if !waiting.is_empty() => {
                for _ in waiting.drain(..) {
                    drop(listener.accept());
                }
            }
            None => accepted = Some(listener.accept().expect("a connection").0),
            Some(_) => {}
        }
        if let Some(peer) = &mut accepted {
            peer.write_all(rest.split_off(..1).expect("a byte")).expect("a peer");
        }
        left.min(Duration::from_millis(7))
    });
    let conversation = Conversation::connect(&path, Edge::ToolProgram, clock.deadline());
    let mut conversation = conversation.expect("there is room now");
    assert_eq!(conversation.ask(&short_question()), Err(Error::TimedOut));
    assert_eq!(clock.check(), 8, "50 ms in turns of 7 ms");
}

extern "C" fn ignore(_: libc::c_int) {}

/// Calls `wait` while the calling thread is interrupted repeatedly.
fn interrupted<T>(wait: impl FnOnce() -> T) -> T {
    // SAFETY: the fields are integers, a bit set and a nullable pointer, for which zeroes are valid.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // Without SA_RESTART.
    action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler does nothing.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, core::ptr::null_mut()) }, 0);
    // SAFETY: pthread_self(3) has no conditions.
    let thread = unsafe { libc::pthread_self() } as usize;
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                // SAFETY: the thread waits for the end of this scope, so it exists.
                unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR1) };
                // So that the thread blocks in between.
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        // Also if it panics, because the scope waits for its threads.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait));
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        result.expect("it does not panic")
    })
}

#[test]
fn signals_do_not_prolong_a_wait() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("socket");
    let (_listener, _waiting) = full(&path);
    // By the real clock it would take 20 s: a signal interrupts each wait.
    let patience = Duration::from_secs(20);
    let clock = Simulated::new(patience, |left| left.min(Duration::from_secs(3)));
    let conversation = interrupted(|| Conversation::connect(&path, Edge::ToolProgram, clock.deadline()).map(|_| ()));
    assert_eq!(conversation, Err(Error::TimedOut));
    assert_eq!(clock.check(), 7);

    let clock = Simulated::new(patience, |left| left.min(Duration::from_secs(3)));
    let (mut conversation, _peer) = begin(clock.deadline());
    assert_eq!(interrupted(|| conversation.ask(&short_question())), Err(Error::TimedOut));
    assert_eq!(clock.check(), 7);
}

#[test]
fn an_answer_has_one_deadline_too() {
    let (own, mut peer) = UnixStream::pair().expect("sockets");
    let bytes = [&Preamble::of(Edge::ToolProgram).encode()[..], &long_question().encode()].concat();
    let mut rest = bytes.as_slice();
    let clock = Simulated::new(PATIENCE, |left| {
        peer.write_all(rest.split_off(..1).expect("a byte")).expect("a peer");
        left.min(Duration::from_millis(1))
    });
    let conversation = Conversation::answer(own.into(), &[Edge::ToolProgram], clock.deadline());
    let mut conversation = conversation.expect("16 bytes in 16 ms");
    assert_eq!(conversation.receive::<ToolToProgram>(), Err(Error::TimedOut));
    assert_eq!(clock.check(), 50);
}

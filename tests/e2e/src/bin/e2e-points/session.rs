//! The session's memory, and the processes that share it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse_abi::page;
use dormouse_abi::session::State;
use dormouse_e2e::emit;
use dormouse_relay::Memory;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::{CpuSet, futex};

use crate::{machine, tracee};

/// Number of events that a sibling writes at a time: more than a page of 4 KiB holds.
const BURST: u64 = 128;
/// Watchdog: nothing takes longer unless it hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Shared state of the processes.
#[derive(Debug, Default)]
pub struct Board {
    /// Number of bursts that each sibling should write.
    go: [AtomicU32; 2],
    /// Number of bursts that each has written.
    done: [AtomicU32; 2],
    /// Nonzero when the siblings must end.
    is_over: AtomicU32,
    /// Number of events that the victim has finished.
    pub finished: AtomicU64,
    /// Number of events that it has seen counted as lost.
    pub lost: AtomicU64,
    /// The stream that it writes to.
    pub stream: AtomicU32,
}

/// Returns a new board that child processes share.
pub fn board() -> &'static Board {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let mapped = unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), size_of::<Board>(), protection, MapFlags::SHARED)
    };
    let board = mapped.expect("a mapping").cast::<Board>();
    // SAFETY: the memory is zeroed, aligned, large enough and never unmapped, and consists of atomics.
    unsafe { &*board }
}

/// Returns a stream's state.
pub fn state(memory: &Memory, stream: u32) -> State {
    State::from_word(memory.stream(stream).state.load(Ordering::Acquire))
}

/// Whether a stream's current page is closed already, while the state word still names it.
pub fn is_half_switched(memory: &Memory, stream: u32) -> bool {
    let state = state(memory, stream);
    memory.page(state.unit).is_some()
        && memory.page_field(state.unit, page::OFFSET_CONTENT_SIZE) == u64::from(state.offset) * 8
}

/// Returns the number of streams that are claimed.
pub fn claim_count(memory: &Memory) -> usize {
    let count = memory.geometry().stream_count;
    (0..count).filter(|stream| memory.stream(*stream).claim.load(Ordering::Relaxed) != 0).count()
}

/// Waits until a condition is met.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "hangs: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Forks. The child only executes `run`.
pub fn fork(run: impl FnOnce()) -> libc::pid_t {
    // SAFETY: this process has only one thread.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        run();
        // SAFETY: _exit(2) ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    pid
}

/// Returns the first and the last CPU that this process may run on.
pub fn processors() -> [usize; 2] {
    let allowed = rustix::thread::sched_getaffinity(None).expect("the processors that there are");
    let mut all = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let first = all.next().expect("a processor");
    [first, all.next_back().unwrap_or(first)]
}

/// Binds the calling thread to a CPU.
fn run_on(cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu);
    rustix::thread::sched_setaffinity(None, &one).expect("a processor that was allowed before");
}

/// The two siblings.
#[derive(Debug)]
pub struct Siblings {
    board: &'static Board,
    pids: [libc::pid_t; 2],
}

impl Siblings {
    /// Starts them.
    pub fn start(board: &'static Board) -> Siblings {
        let cpus = processors();
        let start = |index: usize| {
            fork(|| {
                run_on(cpus[index]);
                sibling(board, index);
            })
        };
        Siblings { board, pids: [start(0), start(1)] }
    }

    /// Makes one of them write a burst.
    pub fn go(&self, index: usize) {
        self.board.go[index].fetch_add(1, Ordering::Release);
        let _ = futex::wake(&self.board.go[index], futex::Flags::empty(), 1);
    }

    /// Waits until both have written all requested bursts.
    pub fn wait(&self) {
        for (go, done) in self.board.go.iter().zip(&self.board.done) {
            wait_until("a sibling goes on", || done.load(Ordering::Acquire) == go.load(Ordering::Relaxed));
        }
    }

    /// Returns the number of events that each has finished.
    pub fn finished(&self) -> [u64; 2] {
        [0, 1].map(|index| BURST * u64::from(self.board.done[index].load(Ordering::Acquire)))
    }

    /// Makes them end, and returns their ids.
    pub fn end(&self) -> [libc::pid_t; 2] {
        self.board.is_over.store(1, Ordering::Release);
        for (index, pid) in self.pids.into_iter().enumerate() {
            self.go(index);
            let mut status = -1;
            // SAFETY: waits for a child of this process and writes its status to a live integer.
            unsafe { libc::waitpid(pid, &mut status, 0) };
            assert_eq!(status, 0, "sibling {pid}");
        }
        self.pids
    }
}

fn sibling(board: &Board, index: usize) {
    let (go, done) = (&board.go[index], &board.done[index]);
    let mut number = 0;
    loop {
        let (wanted, written) = (go.load(Ordering::Acquire), done.load(Ordering::Relaxed));
        if wanted == written {
            // Interrupted, or changed meanwhile: the loop checks again.
            let _ = futex::wait(go, futex::Flags::empty(), wanted, None);
            continue;
        }
        if board.is_over.load(Ordering::Acquire) != 0 {
            return;
        }
        for _ in 0..BURST {
            emit::step(0, number);
            number += 1;
        }
        done.store(written + 1, Ordering::Release);
    }
}

/// The event at which a victim dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fatal {
    /// An event of three words.
    Step,
    /// An event with a run of bytes.
    Filled,
    /// An event larger than a page: it is counted as lost.
    Big,
    /// An event of one word.
    Word,
}

/// Situation of a victim.
#[derive(Debug, Clone, Copy)]
pub struct Scene {
    /// The event at which it dies.
    pub fatal: Fatal,
    /// Whether the event needs a new page.
    pub is_full: bool,
}

/// Bytes of an event that does not fit into a page of 4 KiB.
static BIG: [u8; 5_000] = [7; 5_000];

/// Exit code of a victim that may not be traced.
pub const FORBIDDEN: i32 = 3;
/// Exit code of a victim that found no room for its first event.
pub const NO_ROOM: i32 = 4;

fn exit(code: i32) -> ! {
    // SAFETY: _exit(2) ends a forked child without running the parent's exit handlers.
    unsafe { libc::_exit(code) }
}

/// Writes until the next event is the chosen one, stops, and writes that event.
pub fn victim(board: &Board, memory: &Memory, scene: Scene) {
    if !tracee::trace_me() {
        exit(FORBIDDEN);
    }
    run_on(processors()[0]);
    let states = || (0..memory.geometry().stream_count).map(|stream| state(memory, stream)).collect::<Vec<State>>();
    let mut number = 0;
    let step = |number: &mut u64| {
        emit::step(0, *number);
        *number += 1;
        board.finished.store(*number, Ordering::Release);
    };
    board.finished.store(0, Ordering::Release);
    board.lost.store(0, Ordering::Release);
    if scene.fatal == Fatal::Word {
        // The class is announced by its first event.
        word(0);
    }
    let mut size = 0;
    let mut place = None;
    loop {
        let is_class = number % 4 == 3;
        if let Some((stream, offset)) = place {
            board.stream.store(stream, Ordering::Release);
            let room = memory.geometry().page_size_bytes - page::SLACK_BYTES as u32 - offset;
            // A filled event is longer by at least its filler.
            let needed = if is_class { size + emit::filler_len(number) as u32 } else { size };
            let has_room = if scene.is_full { size > 0 && room < needed } else { room >= 256 };
            let is_other = matches!(scene.fatal, Fatal::Big | Fatal::Word);
            if has_room && (is_class == (scene.fatal == Fatal::Filled) || is_other) {
                break;
            }
        }
        let before = states();
        step(&mut number);
        let after = states();
        // The siblings rest, so only this thread's stream changes. It is another stream after a claim was taken back.
        let Some(stream) = (0..after.len()).find(|stream| before[*stream] != after[*stream]) else { exit(NO_ROOM) };
        if !is_class && before[stream].unit == after[stream].unit {
            size = after[stream].offset - before[stream].offset;
        }
        place = Some((stream as u32, after[stream].offset));
    }
    machine::stop();
    match scene.fatal {
        Fatal::Step | Fatal::Filled => step(&mut number),
        Fatal::Big => {
            let filler = &BIG[..];
            dormouse::event!(e2e.huge, number, filler);
            board.lost.store(1, Ordering::Release);
        }
        Fatal::Word => word(number),
    }
    machine::stop();
}

#[inline(never)]
fn word(number: u64) {
    dormouse::event!(e2e.word, number);
}

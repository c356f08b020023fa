//! A program that keeps a ledger of what it does: requests that change threads, locks that are held and waited for, a
//! queue with a condition, and bytes of files. `e2e-ledger SEED DIR` draws everything from the seed, and prints a line
//! for each entry of the ledger:
//!
//! ```text
//!   request ID ENDPOINT STATUS  BEGIN0 BEGIN1 START0 START1 END0 END1    times before and after each event
//!   did ID TID  LOCKS READS WRITES CALL_NS                               what its thread did from START to END; as for file
//!   held MUTEX TID  LOCK0 LOCK1 UNLOCK0 UNLOCK1                          times before and after the two calls
//!   wait MUTEX WAITER HOLDER  SURE_NS CALL_NS                            a wait that surely happened
//!   file PATH  READS READ_BYTES WRITES WRITTEN_BYTES  CALL_NS            the time before each call to that after it, in all
//!   leak SIZE BLOCKS
//!   thread TID EVENTS                                                    events of the program's own classes
//! ```
//! Times are in nanoseconds since the program's begin, by its own clock.

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Size of the blocks that are not freed. Nothing else in the program allocates this much.
const LEAK_BYTES: usize = 7919;

/// A generator of pseudo-random numbers (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    /// `of`: what the numbers are for, so that two purposes do not share them.
    fn new(seed: u64, of: u64) -> Random {
        Random((seed ^ of.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_add(1) | 1 << 40)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % end
    }
}

thread_local! {
    static EVENTS: Cell<u64> = const { Cell::new(0) };
}

fn count_events(count: u64) {
    EVENTS.set(EVENTS.get() + count);
}

fn tid() -> i32 {
    // SAFETY: gettid(2) has no preconditions.
    unsafe { libc::gettid() }
}

/// The lines of the ledger and the clock.
struct Ledger {
    begin: Instant,
    lines: Mutex<Vec<String>>,
}

impl Ledger {
    fn now(&self) -> u128 {
        self.begin.elapsed().as_nanos()
    }

    fn write(&self, line: String) {
        self.lines.lock().expect("nobody panics").push(line);
    }
}

/// A mutex of the C library, with a variable that it protects.
struct PthreadMutex<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is only used by the thread that has locked the mutex (`with`, `wait`).
unsafe impl<T: Send> Sync for PthreadMutex<T> {}

/// Times before and after a call.
type Call = (u128, u128);

impl<T> PthreadMutex<T> {
    fn new(value: T) -> PthreadMutex<T> {
        PthreadMutex { mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }

    fn address(&self) -> usize {
        self.mutex.get().addr()
    }

    /// Locks in one of three ways. `None`: the mutex was held, and the thread did not wait.
    fn lock(&self, way: u64, ledger: &Ledger) -> Option<Call> {
        let before = ledger.now();
        let result = match way {
            // SAFETY: the mutex is initialised and does not move while it is borrowed.
            0 => unsafe { libc::pthread_mutex_trylock(self.mutex.get()) },
            1 => {
                let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                // SAFETY: clock_gettime(2) writes to a variable of this function.
                unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until) };
                until.tv_sec += 1000;
                // SAFETY: as for the first; the time is a variable of this function.
                unsafe { libc::pthread_mutex_timedlock(self.mutex.get(), &raw const until) }
            }
            // SAFETY: as for the first.
            _ => unsafe { libc::pthread_mutex_lock(self.mutex.get()) },
        };
        assert!(result == 0 || way == 0 && result == libc::EBUSY, "{result}");
        (result == 0).then(|| (before, ledger.now()))
    }

    /// Unlocks a mutex that this thread has locked at `locked`, and writes down how long it was held.
    fn unlock(&self, locked: Call, ledger: &Ledger) {
        let before = ledger.now();
        // SAFETY: the mutex is initialised, and this thread holds it.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(self.mutex.get()) }, 0);
        self.was_held(locked, (before, ledger.now()), ledger);
    }

    fn was_held(&self, locked: Call, unlocked: Call, ledger: &Ledger) {
        let ((lock0, lock1), (unlock0, unlock1)) = (locked, unlocked);
        ledger.write(format!("held {:x} {} {lock0} {lock1} {unlock0} {unlock1}", self.address(), tid()));
    }
}

/// The queue of requests, and the condition that it is not empty or will stay so.
struct Queue {
    state: PthreadMutex<(VecDeque<u64>, bool)>,
    filled: UnsafeCell<libc::pthread_cond_t>,
}

// SAFETY: a condition variable is made for use by several threads; `state` has its own argument.
unsafe impl Sync for Queue {}

impl Queue {
    fn push(&self, id: Option<u64>, ledger: &Ledger) {
        let locked = self.state.lock(2, ledger).expect("it waits");
        // SAFETY: this thread holds the mutex.
        let (queue, is_closed) = unsafe { &mut *self.state.value.get() };
        match id {
            Some(id) => queue.push_back(id),
            None => *is_closed = true,
        }
        self.state.unlock(locked, ledger);
        // SAFETY: the condition variable is initialised and does not move.
        unsafe { libc::pthread_cond_broadcast(self.filled.get()) };
    }

    /// Returns the next request; `None` if there will be no more.
    fn pop(&self, ledger: &Ledger) -> Option<u64> {
        let mut locked = self.state.lock(2, ledger).expect("it waits");
        loop {
            // SAFETY: this thread holds the mutex; the borrow ends before it is given up.
            let (queue, is_closed) = unsafe { &mut *self.state.value.get() };
            if !queue.is_empty() || *is_closed {
                let id = queue.pop_front();
                self.state.unlock(locked, ledger);
                return id;
            }
            let before = ledger.now();
            // SAFETY: both are initialised, and this thread holds the mutex.
            unsafe { libc::pthread_cond_wait(self.filled.get(), self.state.mutex.get()) };
            let after = ledger.now();
            // The mutex is given up and taken again at unknown times within the call.
            self.state.was_held(locked, (before, after), ledger);
            locked = (before, after);
        }
    }
}

/// Calls of a file by all threads.
#[derive(Default, Clone, Copy)]
struct Calls {
    reads: u64,
    read_bytes: u64,
    writes: u64,
    written_bytes: u64,
    call_ns: u128,
}

fn open(path: &str) -> i32 {
    let path = CString::new(path).expect("a path");
    // SAFETY: the path ends in NUL and lives as long as the call.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_CREAT | libc::O_RDWR, 0o600) };
    assert!(fd >= 0, "{path:?} is opened");
    fd
}

fn use_file(path: &str, random: &mut Random) -> Calls {
    let (fd, mut bytes, mut calls) = (open(path), [7_u8; 512], Calls::default());
    for _ in 0..random.below(4) {
        let size = 1 + random.below(512) as usize;
        let is_write = random.below(2) == 0;
        let begin = Instant::now();
        if is_write {
            // SAFETY: the buffer has `size` bytes, and the descriptor is this function's.
            let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), size) };
            calls.writes += 1;
            calls.written_bytes += u64::try_from(written).expect("it is written");
        } else {
            // SAFETY: as for the write.
            let read = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), size) };
            calls.reads += 1;
            calls.read_bytes += u64::try_from(read).expect("it is read");
        }
        calls.call_ns += begin.elapsed().as_nanos();
    }
    // SAFETY: the descriptor is this function's, and is not used any more.
    assert_eq!(unsafe { libc::close(fd) }, 0);
    calls
}

fn spin(duration: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < duration {
        std::hint::spin_loop();
    }
}

/// Returns when the thread sleeps in a call of the kernel.
fn until_it_sleeps(tid: i32) {
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).expect("the thread lives");
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
    };
    while state() != Some('S') {
        std::thread::yield_now();
    }
}

/// Holds a mutex until another thread sleeps because of it.
fn make_wait(mutex: &PthreadMutex<()>, ledger: &Ledger) {
    let (waiter, holder) = (AtomicI32::new(0), tid());
    let locked = mutex.lock(2, ledger).expect("it waits");
    let (sure_ns, call_ns) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            waiter.store(tid(), Ordering::Relaxed);
            let (before, after) = mutex.lock(2, ledger).expect("it waits");
            mutex.unlock((before, after), ledger);
            ledger.write(format!("thread {} {}", tid(), EVENTS.get()));
            after - before
        });
        while waiter.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        until_it_sleeps(waiter.load(Ordering::Relaxed));
        let begin = ledger.now();
        spin(Duration::from_micros(200));
        let sure_ns = ledger.now() - begin;
        mutex.unlock(locked, ledger);
        (sure_ns, waiting.join().expect("it does not panic"))
    });
    let waiter = waiter.load(Ordering::Relaxed);
    ledger.write(format!("wait {:x} {waiter} {holder} {sure_ns} {call_ns}", mutex.address()));
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seed: u64 = arguments.next().and_then(|seed| seed.parse().ok()).expect("a seed");
    let dir = arguments.next().expect("a directory for files");
    let random = &mut Random::new(seed, 0);
    let (workers, requests, leaks) = (2 + random.below(4), 20 + random.below(80), random.below(9));
    let mutexes: Vec<PthreadMutex<()>> = (0..1 + random.below(3)).map(|_| PthreadMutex::new(())).collect();
    let paths: Vec<String> = (0..1 + random.below(4)).map(|file| format!("{dir}/file{file}")).collect();
    let queue = Queue {
        state: PthreadMutex::new((VecDeque::new(), false)),
        filled: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
    };
    let ledger = &Ledger { begin: Instant::now(), lines: Mutex::default() };
    let (calls, begins) =
        (Mutex::new(vec![Calls::default(); paths.len()]), Mutex::new(vec![(0, 0); requests as usize]));

    for _ in 0..leaks {
        // SAFETY: malloc(3) has no preconditions.
        std::hint::black_box(unsafe { libc::malloc(LEAK_BYTES) });
    }
    ledger.write(format!("leak {LEAK_BYTES} {leaks}"));
    mutexes.iter().for_each(|mutex| make_wait(mutex, ledger));

    let serve = |id: u64| {
        let random = &mut Random::new(seed, 1 + id);
        let endpoint = ["/a", "/b", "/c"][random.below(3) as usize];
        let start0 = ledger.now();
        dormouse::event!(ledger.request_start, id);
        let start1 = ledger.now();
        let mut locks = 0;
        for _ in 0..random.below(3) {
            let mutex = &mutexes[random.below(mutexes.len() as u64) as usize];
            let Some(locked) = mutex.lock(random.below(3), ledger) else { continue };
            spin(Duration::from_micros(random.below(50)));
            mutex.unlock(locked, ledger);
            locks += 1;
        }
        let file = random.below(paths.len() as u64) as usize;
        let made = use_file(&paths[file], random);
        let sum = &mut calls.lock().expect("nobody panics")[file];
        sum.reads += made.reads;
        sum.read_bytes += made.read_bytes;
        sum.writes += made.writes;
        sum.written_bytes += made.written_bytes;
        sum.call_ns += made.call_ns;
        let status = [200_u16, 200, 404, 500, 503][random.below(5) as usize];
        let end0 = ledger.now();
        dormouse::event!(ledger.request_end, id, status);
        let end1 = ledger.now();
        count_events(2);
        let (begin0, begin1) = begins.lock().expect("nobody panics")[id as usize];
        let Calls { reads, writes, call_ns, .. } = made;
        ledger.write(format!("did {id} {} {locks} {reads} {writes} {call_ns}", tid()));
        ledger.write(format!("request {id} {endpoint} {status} {begin0} {begin1} {start0} {start1} {end0} {end1}"));
    };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(id) = queue.pop(ledger) {
                    serve(id);
                }
                ledger.write(format!("thread {} {}", tid(), EVENTS.get()));
            });
        }
        for id in 0..requests {
            let endpoint = ["/a", "/b", "/c"][Random::new(seed, 1 + id).below(3) as usize];
            let begin0 = ledger.now();
            dormouse::event!(ledger.request_begin, id, endpoint);
            begins.lock().expect("nobody panics")[id as usize] = (begin0, ledger.now());
            count_events(1);
            queue.push(Some(id), ledger);
            if random.below(4) == 0 {
                spin(Duration::from_micros(random.below(100)));
            }
        }
        queue.push(None, ledger);
    });
    ledger.write(format!("thread {} {}", tid(), EVENTS.get()));
    for (path, Calls { reads, read_bytes, writes, written_bytes, call_ns }) in
        paths.iter().zip(calls.into_inner().expect("nobody panics"))
    {
        ledger.write(format!("file {path} {reads} {read_bytes} {writes} {written_bytes} {call_ns}"));
    }
    ledger.lines.lock().expect("nobody panics").iter().for_each(|line| println!("{line}"));
}

//! A traced program that listens by a signal: `e2e-signal MODE`. It does a step for each byte that it reads, and writes `ready` before and after.
//!
//! At a byte `p` it passes a tracepoint, at `h` it passes one in a signal's handler, at `r` it stops to listen and begins anew, at any other nothing.
//!
//! | mode | |
//! | --- | --- |
//! | `alone` | one thread |
//! | `fork` | a child does the steps |
//! | `taken` | the signal is the program's own, and it says what came of asking to be listened to |
//! | `given-up` | the program ignores the signal |
//! | `workers` | a thread that blocks all signals does the steps, and another waits for input |
//! | `no-defer` | a handler may be interrupted by its own signal |
//! | `small-stack` | handlers run on an alternate stack of 8 KiB with a guard below |
//! | `leaves` | the first thread ends, and another does the steps |
//! | `pause` | it waits for a signal and then writes which it was; no steps |
//! | `poll`, `epoll`, `select`, `nanosleep`, `sem`, `read`, `cond` | between steps it sleeps in this call, and writes at its end how often that returned `EINTR` |

use std::io::{Read, Write};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;

static SEEN: AtomicI32 = AtomicI32::new(0);

extern "C" fn passing(signal: c_int) {
    SEEN.store(signal, Ordering::Relaxed);
    dormouse::event!(e2e.handled);
}

fn handle(signal: c_int, handler: usize, flags: c_int) {
    // SAFETY: integers, a set of bits and a pointer that may be null, of which zeroes are values.
    let mut action: libc::sigaction = unsafe { zeroed() };
    (action.sa_sigaction, action.sa_flags) = (handler, flags);
    // SAFETY: the action is filled in, and lives for the call. Its function does what a handler may: a tracepoint is async-signal-safe.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const action, null_mut()) }, 0);
}

fn passing_at(signal: c_int, flags: c_int) {
    handle(signal, passing as extern "C" fn(c_int) as usize, flags);
}

fn step(byte: u8) {
    match byte {
        b'p' => dormouse::event!(e2e.passed),
        // SAFETY: takes a number; the signal has a handler, which does what a handler may.
        b'h' => drop(unsafe { libc::raise(libc::SIGUSR1) }),
        b'r' => {
            dormouse::stop_listening().expect("it stops");
            dormouse::listen_by(dormouse::Way::Signal).expect("it listens");
        }
        _ => (),
    }
}

fn ready() {
    println!("ready");
    std::io::stdout().flush().expect("somebody reads");
}

fn steps() {
    ready();
    let mut byte = [0];
    while std::io::stdin().read(&mut byte).is_ok_and(|count| count > 0) {
        step(byte[0]);
        ready();
    }
}

fn block_all_signals() {
    // SAFETY: integers, of which zeroes are values.
    let mut all: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: fills what it is given.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: a set that was filled in.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, null_mut()) };
}

/// The first page is not there: who goes beyond the stack is killed.
fn use_small_stack() {
    let (page, size) = (4096, 8192);
    // SAFETY: new memory.
    let stack = unsafe {
        libc::mmap(
            null_mut(),
            page + size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    // SAFETY: the memory's first page, which nobody has used.
    assert_eq!(unsafe { libc::mprotect(stack, page, libc::PROT_NONE) }, 0);
    let stack = libc::stack_t { ss_sp: stack.wrapping_byte_add(page), ss_flags: 0, ss_size: size };
    // SAFETY: memory that nobody else uses, and that stays.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, null_mut()) }, 0);
}

const PAUSE_MS: c_int = 5;

fn soon() -> libc::timespec {
    // SAFETY: integers, of which zeroes are values.
    let mut now: libc::timespec = unsafe { zeroed() };
    // SAFETY: room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    now.tv_nsec += i64::from(PAUSE_MS) * 1_000_000;
    if now.tv_nsec >= 1_000_000_000 {
        (now.tv_sec, now.tv_nsec) = (now.tv_sec + 1, now.tv_nsec - 1_000_000_000);
    }
    now
}

/// Sleeps for some milliseconds in a call, and says whether it was interrupted.
fn sleeper(call: &str) -> Box<dyn FnMut() -> bool> {
    let is_interrupted =
        |result: c_int| result == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
    let short = libc::timespec { tv_sec: 0, tv_nsec: i64::from(PAUSE_MS) * 1_000_000 };
    match call {
        // SAFETY: no descriptors.
        "poll" => Box::new(move || is_interrupted(unsafe { libc::poll(null_mut(), 0, PAUSE_MS) })),
        "epoll" => {
            // SAFETY: has no conditions.
            let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
            Box::new(move || {
                let mut event = MaybeUninit::uninit();
                // SAFETY: room for one event.
                is_interrupted(unsafe { libc::epoll_wait(epoll, event.as_mut_ptr(), 1, PAUSE_MS) })
            })
        }
        "select" => Box::new(move || {
            let mut timeout = libc::timeval { tv_sec: 0, tv_usec: i64::from(PAUSE_MS) * 1000 };
            // SAFETY: no descriptors.
            is_interrupted(unsafe { libc::select(0, null_mut(), null_mut(), null_mut(), &raw mut timeout) })
        }),
        // SAFETY: a time, and nothing to be told.
        "nanosleep" => Box::new(move || is_interrupted(unsafe { libc::nanosleep(&raw const short, null_mut()) })),
        "sem" => {
            let sem: &'static mut MaybeUninit<libc::sem_t> = Box::leak(Box::new(MaybeUninit::uninit()));
            let sem = sem.as_mut_ptr();
            // SAFETY: memory for a semaphore, which stays.
            assert_eq!(unsafe { libc::sem_init(sem, 0, 0) }, 0);
            Box::new(move || {
                let until = soon();
                // SAFETY: the semaphore that was made above.
                is_interrupted(unsafe { libc::sem_timedwait(sem, &raw const until) })
            })
        }
        "cond" => {
            let (mutex, cond) = (
                Box::leak(Box::new(libc::PTHREAD_MUTEX_INITIALIZER)),
                Box::leak(Box::new(libc::PTHREAD_COND_INITIALIZER)),
            );
            Box::new(move || {
                let until = soon();
                // SAFETY: a mutex that stays.
                unsafe { libc::pthread_mutex_lock(&raw mut *mutex) };
                // SAFETY: a mutex that this thread has, and a condition that stays.
                let waited = unsafe { libc::pthread_cond_timedwait(&raw mut *cond, &raw mut *mutex, &raw const until) };
                // SAFETY: a mutex that this thread has.
                unsafe { libc::pthread_mutex_unlock(&raw mut *mutex) };
                waited == libc::EINTR
            })
        }
        "read" => {
            let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
            // Its signals are blocked, so that it is the reader that is called.
            std::thread::spawn(move || {
                block_all_signals();
                // Between two bytes; it ends with the program.
                while writer.write_all(b"x").is_ok() {
                    std::thread::sleep(std::time::Duration::from_millis(PAUSE_MS as u64));
                }
            });
            Box::new(move || reader.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::Interrupted))
        }
        other => panic!("no mode `{other}`"),
    }
}

/// Sleeps and passes a tracepoint in turns, until there is no more input.
fn sleeps(call: &str) {
    let mut sleep = sleeper(call);
    ready();
    let (mut count, mut interrupted) = (0_u64, 0_u64);
    loop {
        count += 1;
        interrupted += u64::from(sleep());
        dormouse::event!(e2e.passed);
        let mut input = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor. It does not wait.
        if unsafe { libc::poll(&raw mut input, 1, 0) } == 1 {
            let mut byte = [0];
            if std::io::stdin().read(&mut byte).expect("input") == 0 {
                break;
            }
            step(byte[0]);
            ready();
        }
    }
    println!("interrupted {interrupted} of {count}");
}

fn main() {
    let mode = std::env::args().nth(1).expect("a mode");
    match mode.as_str() {
        "alone" => passing_at(libc::SIGUSR1, 0),
        "no-defer" => passing_at(libc::SIGUSR1, libc::SA_NODEFER),
        "small-stack" => {
            passing_at(libc::SIGUSR1, libc::SA_ONSTACK);
            use_small_stack();
        }
        "fork" => {
            // SAFETY: no tool has come yet, so a program that listens by a signal has no other thread, whose locks the child could find taken.
            let child = unsafe { libc::fork() };
            if child != 0 {
                let mut status = 0;
                // SAFETY: room for an answer (waitpid(2)).
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                return;
            }
        }
        "taken" => {
            dormouse::stop_listening().expect("it stops");
            passing_at(libc::SIGURG, 0);
            let refused = dormouse::listen_by(dormouse::Way::Signal).expect_err("the signal is the program's");
            println!("refused: {refused}");
        }
        "given-up" => handle(libc::SIGURG, libc::SIG_IGN, 0),
        "workers" => {
            passing_at(libc::SIGUSR1, 0);
            passing_at(libc::SIGTERM, 0);
            let (sender, bytes) = std::sync::mpsc::channel();
            let worker = std::thread::spawn(move || {
                block_all_signals();
                for byte in bytes {
                    step(byte);
                    ready();
                }
            });
            ready();
            let mut byte = [0];
            while std::io::stdin().read(&mut byte).is_ok_and(|count| count > 0) {
                sender.send(byte[0]).expect("the worker waits");
            }
            drop(sender);
            return worker.join().expect("the worker ends");
        }
        "leaves" => {
            std::thread::spawn(steps);
            // SAFETY: ends this thread alone, whose frames nobody uses any more.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        "pause" => {
            passing_at(libc::SIGUSR1, 0);
            ready();
            // SAFETY: has no conditions.
            unsafe { libc::pause() };
            return println!("signal {}", SEEN.load(Ordering::Relaxed));
        }
        call => return sleeps(call),
    }
    steps();
}

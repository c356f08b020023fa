//! A traced program that listens by a signal: `e2e-signal MODE`. It does a step for each byte that it reads, and writes
//! `ready` before and after.
//!
//! At a byte `p` it passes a tracepoint; at `h` it passes one in a signal handler; at `r` it stops listening and starts
//! again; at any other it does nothing.
//!
//! | mode | |
//! | --- | --- |
//! | `alone` | one thread |
//! | `fork` | a child does the steps |
//! | `taken` | the program uses the signal itself, and prints the result of a request to listen |
//! | `given-up` | the program ignores the signal |
//! | `workers` | a thread that blocks all signals does the steps, and another waits for input |
//! | `no-defer` | a handler may be interrupted by its own signal |
//! | `small-stack` | handlers run on an alternate stack of 8 KiB with a guard below |
//! | `leaves` | the first thread ends, and another does the steps |
//! | `pause` | it waits for a signal and then prints which one it was; no steps |
//! | `poll`, `epoll`, `select`, `nanosleep`, `sem`, `read`, `cond` | sleeps in this call between steps, and at the end prints how often it returned `EINTR` |

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
    // SAFETY: sigaction consists of integers, a set of bits and a pointer that may be null, for which zero is a valid
    // value.
    let mut action: libc::sigaction = unsafe { zeroed() };
    (action.sa_sigaction, action.sa_flags) = (handler, flags);
    // SAFETY: the action is complete and lives during the call. Its function only does what a handler may: a tracepoint
    // is async-signal-safe.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const action, null_mut()) }, 0);
}

fn passing_at(signal: c_int, flags: c_int) {
    handle(signal, passing as extern "C" fn(c_int) as usize, flags);
}

fn step(byte: u8) {
    match byte {
        b'p' => dormouse::event!(e2e.passed),
        // SAFETY: raise(3) takes a number; the signal has a handler, which only does what a handler may.
        b'h' => drop(unsafe { libc::raise(libc::SIGUSR1) }),
        b'r' => {
            dormouse::stop_listening().expect("it stops");
            dormouse::listen_by(dormouse::ListenMode::Signal).expect("it listens");
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
    // SAFETY: sigset_t consists of integers, for which zero is a valid value.
    let mut all: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: sigfillset(3) writes one set through the pointer to `all`.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: `all` is live and initialised; a null pointer for the old set is allowed.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, null_mut()) };
}

/// Makes handlers run on a small alternate stack. The page below it is inaccessible: a stack overflow kills the
/// program.
fn use_small_stack() {
    let (page, size) = (rustix::param::page_size(), 8192);
    // SAFETY: a new mapping at an address that the kernel chooses.
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
    // SAFETY: the page is the first one of the new mapping, and no code has used it.
    assert_eq!(unsafe { libc::mprotect(stack, page, libc::PROT_NONE) }, 0);
    let stack = libc::stack_t { ss_sp: stack.wrapping_byte_add(page), ss_flags: 0, ss_size: size };
    // SAFETY: the stack is memory that no other code uses, and that stays mapped.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, null_mut()) }, 0);
}

const PAUSE_MS: c_int = 5;

fn soon() -> libc::timespec {
    // SAFETY: timespec consists of integers, for which zero is a valid value.
    let mut now: libc::timespec = unsafe { zeroed() };
    // SAFETY: `now` has room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    now.tv_nsec += i64::from(PAUSE_MS) * 1_000_000;
    if now.tv_nsec >= 1_000_000_000 {
        (now.tv_sec, now.tv_nsec) = (now.tv_sec + 1, now.tv_nsec - 1_000_000_000);
    }
    now
}

/// Returns a function that sleeps for some milliseconds in a call, and returns whether it was interrupted.
fn sleeper(call: &str) -> Box<dyn FnMut() -> bool> {
    let is_interrupted =
        |result: c_int| result == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
    let short = libc::timespec { tv_sec: 0, tv_nsec: i64::from(PAUSE_MS) * 1_000_000 };
    match call {
        // SAFETY: there are no descriptors, so the null pointer is not accessed.
        "poll" => Box::new(move || is_interrupted(unsafe { libc::poll(null_mut(), 0, PAUSE_MS) })),
        "epoll" => {
            // SAFETY: epoll_create1(2) takes a number.
            let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
            Box::new(move || {
                let mut event = MaybeUninit::uninit();
                // SAFETY: `event` has room for one event.
                is_interrupted(unsafe { libc::epoll_wait(epoll, event.as_mut_ptr(), 1, PAUSE_MS) })
            })
        }
        "select" => Box::new(move || {
            let mut timeout = libc::timeval { tv_sec: 0, tv_usec: i64::from(PAUSE_MS) * 1000 };
            // SAFETY: there are no descriptor sets, and the timeout is live.
            is_interrupted(unsafe { libc::select(0, null_mut(), null_mut(), null_mut(), &raw mut timeout) })
        }),
        // SAFETY: the time is live, and a null pointer for the remaining time is allowed.
        "nanosleep" => Box::new(move || is_interrupted(unsafe { libc::nanosleep(&raw const short, null_mut()) })),
        "sem" => {
            let sem: &'static mut MaybeUninit<libc::sem_t> = Box::leak(Box::new(MaybeUninit::uninit()));
            let sem = sem.as_mut_ptr();
            // SAFETY: the memory has room for a semaphore, and is never freed.
            assert_eq!(unsafe { libc::sem_init(sem, 0, 0) }, 0);
            Box::new(move || {
                let until = soon();
                // SAFETY: the semaphore was initialised above.
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
                // SAFETY: the mutex is initialised and never freed.
                unsafe { libc::pthread_mutex_lock(&raw mut *mutex) };
                // SAFETY: this thread holds the mutex, and the condition variable is initialised and never freed.
                let waited = unsafe { libc::pthread_cond_timedwait(&raw mut *cond, &raw mut *mutex, &raw const until) };
                // SAFETY: this thread holds the mutex.
                unsafe { libc::pthread_mutex_unlock(&raw mut *mutex) };
                waited == libc::EINTR
            })
        }
        "read" => {
            let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
            // This thread blocks all signals, so that the reader is called.
            std::thread::spawn(move || {
                block_all_signals();
                // Pauses between two bytes; ends with the program.
                while writer.write_all(b"x").is_ok() {
                    std::thread::sleep(std::time::Duration::from_millis(PAUSE_MS as u64));
                }
            });
            Box::new(move || reader.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::Interrupted))
        }
        other => panic!("no mode `{other}`"),
    }
}

/// Alternately sleeps and passes a tracepoint, until the end of input.
fn sleeps(call: &str) {
    let mut sleep = sleeper(call);
    ready();
    let (mut count, mut interrupted) = (0_u64, 0_u64);
    loop {
        count += 1;
        interrupted += u64::from(sleep());
        dormouse::event!(e2e.passed);
        let mut input = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
        // SAFETY: poll(2) accesses one live entry. With timeout 0 it does not wait.
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
            // SAFETY: no tool has come yet, so a program that listens by a signal has no other thread, which could hold
            // locks that the child needs.
            let child = unsafe { libc::fork() };
            if child != 0 {
                let mut status = 0;
                // SAFETY: `status` has room for the answer (waitpid(2)).
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                return;
            }
        }
        "taken" => {
            dormouse::stop_listening().expect("it stops");
            passing_at(libc::SIGURG, 0);
            let refused = dormouse::listen_by(dormouse::ListenMode::Signal).expect_err("the signal is the program's");
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
            // SAFETY: ends only this thread, whose stack frames no code uses any more.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        "pause" => {
            passing_at(libc::SIGUSR1, 0);
            ready();
            // SAFETY: pause(2) has no preconditions.
            unsafe { libc::pause() };
            return println!("signal {}", SEEN.load(Ordering::Relaxed));
        }
        call => return sleeps(call),
    }
    steps();
}

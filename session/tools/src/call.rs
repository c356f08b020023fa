//! Calls a program that listens by a signal and has no socket yet: which of its threads gets the signal, and when.
//!
//! A handler that runs in a thread interrupts the system call in which the thread sleeps. The kernel restarts most
//! calls by itself (signal(7), "Interruption of system calls"); `poll`, `nanosleep` and some others return `EINTR`, and
//! `pause` and `sigwait` return. So the signal goes to the thread that it disturbs least, and if necessary a better
//! moment is awaited:
//!
//! | the thread | `Cost` | the signal is sent |
//! | --- | --- | --- |
//! | runs, or cannot be interrupted | `None` | at once |
//! | sleeps in a call that is restarted: `read`, `accept`, `wait4`, a lock … | `Restarted` | at once |
//! | waits for a lock with a timeout; the C library retries | `Retried` | after [`PATIENCE_FOR_MOMENT`] |
//! | sleeps in a call that returns `EINTR`: `poll`, `epoll_wait`, `nanosleep` … | `Interrupted` | after [`PATIENCE_FOR_MOMENT`] |
//! | waits for signals: `pause`, `sigsuspend`, `sigwait`; or blocks this one | cannot be called | never |

use std::time::Duration;

use dormouse_abi::call::CALL;
use rustix::io::Errno;

use dormouse_control::process::{Stat, Status};

/// How long to wait for a moment at which no call of the program would return `EINTR`.
pub(crate) const PATIENCE_FOR_MOMENT: Duration = Duration::from_millis(300);

/// Effect of a signal on a thread's current system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cost {
    /// There is no call that could be interrupted.
    None,
    /// The kernel restarts the call.
    Restarted,
    /// The call returns `EINTR`, after which the C library retries it (locks and condition variables).
    Retried,
    /// The call returns `EINTR`.
    Interrupted,
}

/// Returns the thread that the signal disturbs least, and the effect. `None` if no thread can be called now.
pub(crate) fn cheapest_thread(pid: u32) -> Option<(Cost, u32)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    tids.filter_map(|tid| Some((cost(pid, tid)?, tid))).min()
}

/// Returns the effect on a thread. `None` if it cannot be called.
fn cost(pid: u32, tid: u32) -> Option<Cost> {
    if Status::of_task(pid, tid)?.has_signal("SigBlk:", libc::SIGURG) {
        return None;
    }
    match Stat::of_task(pid, tid)?.field(3) {
        "Z" | "X" => None,
        "S" => cost_of_sleep(&format!("/proc/{pid}/task/{tid}")),
        _ => Some(Cost::None),
    }
}

/// Finds the effect on a sleeping thread by its system call's number and arguments (proc_pid_syscall(5)), or else by
/// the place in the kernel where it sleeps (proc_pid_wchan(5)), which is also shown to users who may not trace the
/// process.
fn cost_of_sleep(path: &str) -> Option<Cost> {
    let read = |name: &str| std::fs::read_to_string(format!("{path}/{name}")).ok();
    match read("syscall") {
        Some(call) => cost_of_call(&call),
        None => cost_of_place(&read("wchan").unwrap_or_default()),
    }
}

fn cost_of_call(call: &str) -> Option<Cost> {
    let mut words = call.split_whitespace();
    let number = match words.next() {
        Some("running") => return Some(Cost::None),
        number => number?.parse::<i64>().ok()?,
    };
    let argument = |index: usize| {
        let word = call.split_whitespace().nth(index + 1)?;
        u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
    };
    match number {
        // Not in a call: it waits for a page, for example.
        -1 => Some(Cost::None),
        libc::SYS_futex if argument(3) == Some(0) => Some(Cost::Restarted),
        libc::SYS_futex => Some(Cost::Retried),
        _ if WAITS_FOR_SIGNALS.contains(&number) => None,
        _ if RESTARTED.contains(&number) => Some(Cost::Restarted),
        _ => Some(Cost::Interrupted),
    }
}

/// Calls that exist to be ended by a signal.
#[cfg(target_arch = "x86_64")]
const WAITS_FOR_SIGNALS: [i64; 3] = [libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigsuspend, libc::SYS_pause];
#[cfg(not(target_arch = "x86_64"))]
const WAITS_FOR_SIGNALS: [i64; 2] = [libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigsuspend];

/// Calls that are restarted after a handler with `SA_RESTART` (signal(7)).
const RESTARTED: &[i64] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_ioctl,
    libc::SYS_openat,
    libc::SYS_wait4,
    libc::SYS_waitid,
    // s390x has accept4(2) alone.
    #[cfg(not(target_arch = "s390x"))]
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_flock,
    libc::SYS_fcntl,
];

fn cost_of_place(place: &str) -> Option<Cost> {
    let is_in = |names: &[&str]| names.iter().any(|name| place.contains(name));
    if is_in(&["sigtimedwait", "sigsuspend", "pause"]) {
        None
    } else if is_in(&["pipe_", "do_wait", "wait_woken", "unix_stream", "skb_wait", "accept", "n_tty"]) {
        Some(Cost::Restarted)
    } else if is_in(&["futex"]) {
        Some(Cost::Retried)
    } else {
        Some(Cost::Interrupted)
    }
}

/// Sends the signal to a thread.
///
/// # Errors
/// `SRCH`: the thread no longer exists. `PERM`: the caller may not send it.
pub(crate) fn send(pid: u32, tid: u32) -> Result<(), Errno> {
    // The beginning of siginfo_t for SI_QUEUE, in the kernel's layout; padded to its size, which is the same on all
    // machines.
    #[repr(C)]
    struct Queued {
        signal: i32,
        errno: i32,
        code: i32,
        #[cfg(target_pointer_width = "64")]
        pad: i32,
        pid: i32,
        uid: u32,
        value: usize,
        rest: [u8; 96],
    }
    const _: () = assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>());
    let info = Queued {
        signal: libc::SIGURG,
        errno: 0,
        code: libc::SI_QUEUE,
        #[cfg(target_pointer_width = "64")]
        pad: 0,
        pid: std::process::id() as i32,
        uid: rustix::process::getuid().as_raw(),
        value: CALL,
        rest: [0; 96],
    };
    // SAFETY: rt_tgsigqueueinfo(2) only reads a whole siginfo_t through the pointer; `info` is live and has that size
    // (asserted above).
    let sent = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, libc::SIGURG, &raw const info) };
    if sent == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    #[test]
    fn a_call_interrupts_what_signal_7_documents() {
        let futex = libc::SYS_futex;
        for (call, cost) in [
            ("running\n".into(), Some(Cost::None)),
            ("-1 0x7ffc 0x7f00\n".into(), Some(Cost::None)),
            (format!("{} 0x0 0x7ff0 0x1 0x0 0x0 0x0 0x7ffd 0x7f1a\n", libc::SYS_read), Some(Cost::Restarted)),
            (format!("{futex} 0x7f 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x7f\n"), Some(Cost::Restarted)),
            (format!("{futex} 0x7f 0x189 0x0 0x7f10 0x0 0xffffffff 0x7f 0x7f\n"), Some(Cost::Retried)),
            (format!("{} 0x0 0x0 0x7f 0x0 0x0 0x0 0x7f 0x7f\n", libc::SYS_clock_nanosleep), Some(Cost::Interrupted)),
            (format!("{} 0x7f 0x0 0x0 0x8 0x0 0x0 0x7f 0x7f\n", libc::SYS_rt_sigtimedwait), None),
        ] {
            assert_eq!(cost_of_call(&call), cost, "{call}");
        }
        for (place, cost) in [
            ("do_sigtimedwait", None),
            ("pipe_read", Some(Cost::Restarted)),
            ("futex_wait_queue", Some(Cost::Retried)),
            ("hrtimer_nanosleep", Some(Cost::Interrupted)),
            ("0", Some(Cost::Interrupted)),
        ] {
            assert_eq!(cost_of_place(place), cost, "{place}");
        }
    }

    /// The kernel reports what real programs wait for.
    #[test]
    fn a_waiting_program_is_recognised() {
        let start = |command: &mut Command| command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let cost_soon = |child: &mut Child, expected: Option<Cost>| {
            dormouse_testing::wait_until("the child's call", || {
                cheapest_thread(child.id()).map(|(cost, _)| cost) == expected
            });
            child.kill().unwrap();
            child.wait().unwrap();
        };
        if dormouse_testing::is_emulated() {
            let lack = dormouse_testing::Lack::emulated("the kernel shows the numbers of another machine's calls");
            dormouse_testing::skip_part("calls that a signal interrupts", lack);
        } else {
            cost_soon(&mut start(&mut Command::new("cat")), Some(Cost::Restarted));
            cost_soon(&mut start(Command::new("sleep").arg("600")), Some(Cost::Interrupted));
        }

        let mut blocks = Command::new("sleep");
        let block = || {
            // SAFETY: sigset_t consists of integers, for which zero is a valid value.
            let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: sigfillset(3) writes one sigset_t through the pointer; `all` is live and is not borrowed.
            unsafe { libc::sigfillset(&raw mut all) };
            // SAFETY: sigprocmask(2) reads `all`, which is initialised and live; a null pointer for the old set is
            // allowed.
            unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut()) };
            Ok(())
        };
        // SAFETY: between fork and exec, `block` only makes async-signal-safe calls (sigfillset, sigprocmask).
        unsafe { blocks.arg("600").pre_exec(block) };
        cost_soon(&mut start(&mut blocks), None);
    }

    #[test]
    fn an_ended_thread_cannot_be_called() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert_eq!(send(pid, pid), Err(Errno::SRCH));
    }
}

//! What the kernel tells of processes.

use std::os::fd::OwnedFd;
use std::path::Path;

use dormouse_backing::BackingError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// What a process calls itself, as `ps` shows it: the name by which it was executed (a link's, where it was a link), or what it has set
/// by `prctl(PR_SET_NAME)` since. Control characters, and bytes that are not UTF-8, are replaced, so that it can be printed. `None`: there
/// is no such process, or it may not be looked at.
pub fn process_name(pid: u32) -> Option<String> {
    Stat::of(pid).map(|stat| stat.name)
}

/// What proc_pid_stat(5) says, at one moment.
pub(crate) struct Stat {
    /// See [`process_name`].
    pub(crate) name: String,
    fields: String,
}

impl Stat {
    pub(crate) fn of(pid: u32) -> Option<Stat> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name in parentheses may hold anything, parentheses too.
        let (before, fields) = stat.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        Some(Stat { name: dormouse_abi::wire::printable(name), fields: fields.into() })
    }

    /// A field, from the third on; empty where there is none.
    pub(crate) fn field(&self, number: usize) -> &str {
        self.fields.split_whitespace().nth(number - 3).unwrap_or_default()
    }
}

/// When a process started, in clock ticks since the boot; empty if there is none.
pub(crate) fn start_of(pid: u32) -> String {
    Stat::of(pid).map(|stat| stat.field(22).into()).unwrap_or_default()
}

/// A pidfd is readable once the last thread of the process has ended.
pub(crate) fn is_dead(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
}

/// Has a write that would make a file larger than this process may make it (`ulimit -f`) fail, instead of ending the process.
pub(crate) fn survive_file_size_limits() {
    // SAFETY: no handler; other parts of this process would die of this signal, and get an error of their own instead.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Whether memory could not be made because it is a file to the kernel.
pub(crate) fn is_limit_of_file_sizes(error: &BackingError) -> bool {
    matches!(error, BackingError::System { errno: Errno::FBIG, .. })
}

/// Whether somebody listens at a socket. Does not wait, however many others wait there.
pub(crate) fn is_listened_to(socket: &Path) -> bool {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let connect = || {
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&fd, &SocketAddrUnix::new(socket)?)
    };
    // What connect(2) says of a socket whose backlog is full.
    matches!(connect(), Ok(()) | Err(Errno::AGAIN))
}

/// The identity of this boot; empty where the kernel does not tell.
pub(crate) fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}

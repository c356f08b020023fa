//! What the kernel tells of processes.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

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
        Some(Stat { name: dormouse_abi::text::printable(name), fields: fields.into() })
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

/// The namespace of process ids that this process is in; 0 where the kernel does not tell.
pub(crate) fn pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

/// The id by which this process sees the one that is `vpid` in a namespace below, of those that started at `joined` ticks after the boot or
/// before: the last of them.
pub(crate) fn pid_in_namespace(vpid: u32, joined: u64) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let innermost = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        let ids: Vec<u32> = line.split_whitespace().filter_map(|id| id.parse().ok()).collect();
        // In the own namespace it has one id.
        (ids.len() > 1).then(|| ids[ids.len() - 1])
    };
    let started = |pid: u32| Stat::of(pid)?.field(22).parse::<u64>().ok().filter(|started| *started <= joined);
    let found = pids.filter(|pid| innermost(pid) == Some(vpid)).filter_map(|pid| Some((started(pid)?, pid)));
    found.max().map(|(_, pid)| pid)
}

/// A pidfd is readable once the last thread of the process has ended.
pub(crate) fn is_dead(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
}

/// Nanoseconds since the boot, of the clock by which processes start.
pub(crate) fn boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The identity of this boot; empty where the kernel does not tell.
pub(crate) fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}

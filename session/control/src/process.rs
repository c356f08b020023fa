//! What the kernel tells of processes.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use dormouse_abi::register::place_of;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

/// What a process calls itself, as `ps` shows it: the name by which it was executed (a link's, where it was a link), or what it has set
/// by `prctl(PR_SET_NAME)` since. Control characters, and bytes that are not UTF-8, are replaced, so that it can be printed. `None`: there
/// is no such process, or it may not be looked at.
pub fn process_name(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    Some(dormouse_abi::text::printable(&String::from_utf8_lossy(name)))
}

/// What proc_pid_stat(5) says, at one moment.
#[derive(Debug, Clone)]
pub struct Stat {
    /// See [`process_name`].
    pub name: String,
    fields: String,
}

impl Stat {
    /// Of a process; `None` if there is none, or it may not be looked at.
    pub fn of(pid: u32) -> Option<Stat> {
        Stat::at(&format!("/proc/{pid}/stat"))
    }

    /// The same file of a thread.
    pub fn of_task(pid: u32, tid: u32) -> Option<Stat> {
        Stat::at(&format!("/proc/{pid}/task/{tid}/stat"))
    }

    fn at(path: &str) -> Option<Stat> {
        let stat = std::fs::read(path).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        // The name in parentheses may hold anything, parentheses too.
        let (before, fields) = stat.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        Some(Stat { name: dormouse_abi::text::printable(name), fields: fields.into() })
    }

    /// A field, from the third on; empty where there is none.
    pub fn field(&self, number: usize) -> &str {
        self.fields.split_whitespace().nth(number - 3).unwrap_or_default()
    }
}

/// Whether a process is the program with this [`image`](dormouse_abi::register::image) just now, as far as its stack tells: not once it has
/// executed another one, and not if it may not be looked at.
pub fn is_image(pid: u32, image: u64) -> bool {
    image_place(pid) == Some(place_of(image))
}

/// Whether a process is to be seen as another program than the one with this image.
pub fn is_other_image(pid: u32, image: u64) -> bool {
    image_place(pid).is_some_and(|place| place != place_of(image))
}

/// Where the kernel has put the random bytes of the program that a process is.
pub fn image_place(pid: u32) -> Option<u64> {
    let auxv = std::fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let words: Vec<u64> = auxv.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let entry = words.as_chunks::<2>().0.iter().find(|[kind, _]| *kind == libc::AT_RANDOM)?;
    Some(place_of(entry[1]))
}

/// proc_pid_status(5).
#[derive(Debug)]
pub struct Status(String);

impl Status {
    pub fn of(pid: u32) -> Option<Status> {
        Status::at(&format!("/proc/{pid}/status"))
    }

    /// The same file of a thread.
    pub fn of_task(pid: u32, tid: u32) -> Option<Status> {
        Status::at(&format!("/proc/{pid}/task/{tid}/status"))
    }

    fn at(path: &str) -> Option<Status> {
        // Its name may be any bytes.
        Some(Status(String::from_utf8_lossy(&std::fs::read(path).ok()?).into()))
    }

    fn numbers(&self, name: &str) -> impl Iterator<Item = u64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().map_while(|number| number.parse().ok())
    }

    pub fn number(&self, name: &str, index: usize) -> Option<u64> {
        self.numbers(name).nth(index)
    }

    /// Whether a set has a signal.
    pub fn has_signal(&self, name: &str, signal: i32) -> bool {
        let set = self.0.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set >> (signal - 1) & 1 == 1)
    }

    /// Whether a filter of system calls is in force.
    pub fn has_filter(&self) -> bool {
        self.number("Seccomp:", 0).is_some_and(|mode| mode != 0)
    }

    /// The group that it makes files as, and those that it has besides.
    pub fn groups(&self) -> Vec<u32> {
        self.numbers("Gid:").skip(3).chain(self.numbers("Groups:")).map(|group| group as u32).collect()
    }
}

/// The namespace of process ids that this process is in; 0 where the kernel does not tell.
pub fn pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

/// The id by which this process sees the one that is `vpid` in a namespace below, of those that started at `joined` ticks after the boot or
/// before: the last of them. `namespace` is the inode of that namespace, or 0: then one that has this id in the own namespace will do too.
pub fn pid_in_namespace(vpid: u32, namespace: u64, joined: u64) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // One that may not be looked at may be it: two namespaces have the same ids.
    let is_there = |pid: u32| {
        namespace == 0
            || std::fs::metadata(format!("/proc/{pid}/ns/pid")).map_or(true, |there| there.ino() == namespace)
    };
    let started = |pid: u32| {
        let identity = Identity::of(pid)?;
        let is_below = identity.ids.len() > 1;
        let is_it = identity.ids.last() == Some(&vpid) && (is_below || namespace == 0) && is_there(pid);
        let started = identity.start.parse::<u64>().ok().filter(|started| is_it && *started <= joined)?;
        Some((is_below, started, pid))
    };
    pids.filter_map(started).max().map(|(_, _, pid)| pid)
}

/// When a process started, in clock ticks since the boot; empty if there is none.
pub fn start_of(pid: u32) -> String {
    Stat::of(pid).map(|stat| stat.field(22).into()).unwrap_or_default()
}

/// Whether a process started less than so long ago; not if there is none.
pub fn is_young(pid: u32, age: Duration) -> bool {
    let Ok(start) = start_of(pid).parse::<u64>() else { return false };
    let start = Duration::from_millis(start.saturating_mul(1000) / clock_ticks_per_second().max(1));
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0));
    now.saturating_sub(start) < age
}

/// A pidfd is readable once the last thread of the process has ended.
pub fn is_dead(pidfd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
}

/// A pidfd of a process that is there, dead or alive.
///
/// # Errors
/// `SRCH` if there is none, or what keeps descriptors from being opened.
pub fn open(pid: u32) -> rustix::io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
    pidfd_open(pid, PidfdFlags::empty())
}

/// Who a process is: two processes that have the same id one after the other differ in this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user as whom it runs.
    pub uid: u32,
    /// See [`start_of`].
    pub start: String,
    /// Its id in each PID namespace that it is in, this one's first.
    pub ids: Vec<u32>,
}

impl Identity {
    /// Whether the process may have given this name to a socket: it knows itself by its id in its own PID namespace.
    pub fn may_have(&self, name: &str) -> bool {
        let number = name.split_once('.').and_then(|(number, _)| number.parse::<u32>().ok());
        number.is_some_and(|number| self.ids.contains(&number))
    }

    /// Of a process; `None` if there is none, or it may not be looked at.
    pub fn of(pid: u32) -> Option<Identity> {
        // Not the owner of the directory, which is root for a process that cannot be dumped.
        let status = Status::of(pid)?;
        let ids: Vec<u32> = status.numbers("NSpid:").map(|id| id as u32).collect();
        let ids = if ids.is_empty() { vec![pid] } else { ids };
        Some(Identity { uid: status.number("Uid:", 1)? as u32, start: start_of(pid), ids })
    }
}

/// The identity of this boot; empty where the kernel does not tell.
pub fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}

//! Facts about processes that the kernel provides.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use dormouse_abi::register::place_of;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};

/// Returns the name of a process, as `ps` shows it: the name it was executed by (a link's, if it was a link), or the
/// one it has since set with `prctl(PR_SET_NAME)`. Control characters and bytes that are not UTF-8 are replaced, so
/// that it can be printed. Returns `None` if there is no such process or it may not be inspected.
pub fn process_name(pid: u32) -> Option<String> {
    name_at(&format!("/proc/{pid}/comm"))
}

fn name_at(path: &str) -> Option<String> {
    let name = std::fs::read(path).ok()?;
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    Some(dormouse_abi::text::printable(&String::from_utf8_lossy(name)))
}

/// Returns the ids of a process's threads except the first, whose id is the process's, by rising id; none if the process
/// may not be inspected.
pub(crate) fn further_threads(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    tids.retain(|tid| *tid != pid);
    tids.sort_unstable();
    tids
}

/// Returns the name of a thread, like [`process_name`].
pub(crate) fn thread_name(pid: u32, tid: u32) -> Option<String> {
    name_at(&format!("/proc/{pid}/task/{tid}/comm"))
}

/// Returns the id that a thread has in its own PID namespace.
pub(crate) fn vtid_of(pid: u32, tid: u32) -> Option<u32> {
    let status = Status::at(&format!("/proc/{pid}/task/{tid}/status"))?;
    Some(status.numbers("NSpid:").last().map_or(tid, |vtid| vtid as u32))
}

/// Contents of proc_pid_stat(5) at one moment.
#[derive(Debug, Clone)]
pub struct Stat {
    /// See [`process_name`].
    pub name: String,
    fields: String,
}

impl Stat {
    /// Reads it for a process. Returns `None` if there is no such process or it may not be inspected.
    pub fn of(pid: u32) -> Option<Stat> {
        Stat::at(&format!("/proc/{pid}/stat"))
    }

    /// Reads it for a thread.
    pub fn of_task(pid: u32, tid: u32) -> Option<Stat> {
        Stat::at(&format!("/proc/{pid}/task/{tid}/stat"))
    }

    fn at(path: &str) -> Option<Stat> {
        Stat::from_bytes(&std::fs::read(path).ok()?)
    }

    fn from_bytes(stat: &[u8]) -> Option<Stat> {
        let stat = String::from_utf8_lossy(stat);
        // The name in parentheses may contain anything, even parentheses.
        let (before, fields) = stat.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        Some(Stat { name: dormouse_abi::text::printable(name), fields: fields.into() })
    }

    /// Returns a field by number, from 3 on; empty if there is no such field.
    pub fn field(&self, number: usize) -> &str {
        self.fields.split_whitespace().nth(number - 3).unwrap_or_default()
    }
}

/// Whether a process is currently the program with this [`image`](dormouse_abi::register::image), by the address of its
/// stack. False after it has executed another program, and if it may not be inspected.
pub fn is_image(pid: u32, image: u64) -> bool {
    image_place(pid) == Some(place_of(image))
}

/// Whether a process is visibly another program than the one with this image. False if it may not be inspected.
pub fn is_other_image(pid: u32, image: u64) -> bool {
    image_place(pid).is_some_and(|place| place != place_of(image))
}

/// Returns the address at which the kernel has put the random bytes (`AT_RANDOM`) of the process's current program.
pub fn image_place(pid: u32) -> Option<u64> {
    let auxv = std::fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let words: Vec<u64> = auxv.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let entry = words.as_chunks::<2>().0.iter().find(|[kind, _]| *kind == libc::AT_RANDOM)?;
    Some(place_of(entry[1]))
}

/// Contents of proc_pid_status(5).
#[derive(Debug)]
pub struct Status(String);

impl Status {
    /// Reads the file of a process; `None` if there is no such process, or it may not be looked at.
    pub fn of(pid: u32) -> Option<Status> {
        Status::at(&format!("/proc/{pid}/status"))
    }

    /// Reads it for a thread.
    pub fn of_task(pid: u32, tid: u32) -> Option<Status> {
        Status::at(&format!("/proc/{pid}/task/{tid}/status"))
    }

    fn at(path: &str) -> Option<Status> {
        // The process's name may contain any bytes.
        Some(Status(String::from_utf8_lossy(&std::fs::read(path).ok()?).into()))
    }

    fn numbers(&self, name: &str) -> impl Iterator<Item = u64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().map_while(|number| number.parse().ok())
    }

    /// Returns a number of the line that begins with `name`, by its index in that line.
    pub fn number(&self, name: &str, index: usize) -> Option<u64> {
        self.numbers(name).nth(index)
    }

    /// Whether a signal is in the set called `name`.
    pub fn has_signal(&self, name: &str, signal: i32) -> bool {
        let set = self.0.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        u64::from_str_radix(set.trim(), 16).is_ok_and(|set| set >> (signal - 1) & 1 == 1)
    }

    /// Whether a filter of system calls is in force.
    pub fn has_filter(&self) -> bool {
        self.number("Seccomp:", 0).is_some_and(|mode| mode != 0)
    }

    /// Returns the group that it creates files with (fsgid), and its supplementary groups.
    pub fn groups(&self) -> Vec<u32> {
        self.numbers("Gid:").skip(3).chain(self.numbers("Groups:")).map(|group| group as u32).collect()
    }
}

/// Returns the inode of the calling process's PID namespace; 0 if the kernel does not tell.
pub fn pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

/// Returns the id by which this process sees process `vpid` of a PID namespace below, or `None`. Of several, it is the
/// one that started last, at `joined` ticks after the boot or earlier. `namespace` is the inode of that namespace; if
/// it is 0, a process with this id in this process's own namespace matches too.
pub fn pid_in_namespace(vpid: u32, namespace: u64, joined: u64) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // A process that may not be inspected counts as a match: two namespaces have the same ids.
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

/// Returns when a process started, in clock ticks since the boot; empty if there is no such process.
pub fn start_of(pid: u32) -> String {
    Stat::of(pid).map(|stat| stat.field(22).into()).unwrap_or_default()
}

/// Whether a process started less than `age` ago. False if there is no such process.
pub fn is_young(pid: u32, age: Duration) -> bool {
    let Ok(start) = start_of(pid).parse::<u64>() else { return false };
    let start = Duration::from_millis(start.saturating_mul(1000) / clock_ticks_per_second().max(1));
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0));
    now.saturating_sub(start) < age
}

/// Whether the process that [`open`] has opened is dead: its last thread has ended.
pub fn is_dead(process: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let is_ready = matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1));
    // A pidfd is readable then. The directory cannot be polled.
    if is_ready && fds[0].revents().contains(PollFlags::NVAL) { is_dead_in(process) } else { is_ready }
}

/// Whether the process of a directory of proc(5) is dead. The directory is not that of a later process with the same id.
fn is_dead_in(directory: &impl AsFd) -> bool {
    let stat = match read_in(directory, c"stat") {
        Ok(stat) => stat,
        // Any other error, such as too many open files, says nothing about the process.
        Err(error) => return error == Errno::SRCH,
    };
    let Some(stat) = Stat::from_bytes(&stat) else { return false };
    // The first thread may have ended before the others.
    matches!(stat.field(3), "Z" | "X") && stat.field(20).parse().is_ok_and(|threads: u32| threads <= 1)
}

/// Reads a file of a directory of proc(5).
///
/// # Errors
/// `SRCH` if the process has been waited for, or the reason why the file cannot be read.
fn read_in(directory: &impl AsFd, name: &CStr) -> rustix::io::Result<Vec<u8>> {
    let file = openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let file = file.map_err(|error| if error == Errno::NOENT { Errno::SRCH } else { error })?;
    let mut bytes = Vec::new();
    File::from(file).read_to_end(&mut bytes).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(bytes)
}

/// Opens an existing process, dead or alive: a pidfd, or before Linux 5.3 its directory of proc(5), of which nothing
/// signals the end. Neither can refer to a later process with the same id.
///
/// # Errors
/// `SRCH` if there is no such process, or the reason why no descriptor can be opened.
pub fn open(pid: u32) -> rustix::io::Result<OwnedFd> {
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    match pidfd_open(id, PidfdFlags::empty()) {
        Err(Errno::NOSYS) => open_directory(pid),
        result => result,
    }
}

fn open_directory(pid: u32) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT => Errno::SRCH,
        error => error,
    })?;
    // Threads have such directories too.
    let status = read_in(&directory, c"status")?;
    let status = Status(String::from_utf8_lossy(&status).into());
    if status.number("Tgid:", 0) == Some(pid.into()) { Ok(directory) } else { Err(Errno::INVAL) }
}

/// Sends a signal to a process that [`open`] has opened, whose id is `pid`. Without a pidfd, a process that ends at this
/// moment and is awaited by its parent could leave its id to another.
///
/// # Errors
/// `SRCH` if it is dead, or the reason why it gets no signal.
pub fn send_signal(process: &impl AsFd, pid: u32, signal: Signal) -> rustix::io::Result<()> {
    match pidfd_send_signal(process, signal) {
        // The kernel has no pidfds, or this is none.
        Err(Errno::NOSYS | Errno::BADF) if !is_dead(process) => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
            kill_process(pid, signal)
        }
        Err(Errno::NOSYS | Errno::BADF) => Err(Errno::SRCH),
        result => result,
    }
}

/// Identity of a process: tells apart two processes that have the same id one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Effective user id.
    pub uid: u32,
    /// See [`start_of`].
    pub start: String,
    /// Its id in each PID namespace that it is in, the caller's first.
    pub ids: Vec<u32>,
}

impl Identity {
    /// Whether the process may have given this name to a socket: a process knows itself by its id in its own PID
    /// namespace.
    pub fn may_have(&self, name: &str) -> bool {
        let number = name.split_once('.').and_then(|(number, _)| number.parse::<u32>().ok());
        number.is_some_and(|number| self.ids.contains(&number))
    }

    /// Returns a process's identity. `None` if there is no such process or it may not be inspected.
    pub fn of(pid: u32) -> Option<Identity> {
        // Not the owner of `/proc/PID`, which is root for a process that cannot be dumped.
        let status = Status::of(pid)?;
        let ids: Vec<u32> = status.numbers("NSpid:").map(|id| id as u32).collect();
        let ids = if ids.is_empty() { vec![pid] } else { ids };
        Some(Identity { uid: status.number("Uid:", 1)? as u32, start: start_of(pid), ids })
    }
}

/// Returns the id of this boot; empty if the kernel does not tell.
pub fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// A program that ends when its input does.
    fn program() -> std::process::Child {
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn a_process_is_watched_by_its_directory_without_a_pidfd() {
        for open in [open, open_directory] {
            let mut child = program();
            let opened = open(child.id()).unwrap();
            assert!(!is_dead(&opened));
            // It stays a zombie, which is dead, until it is waited for.
            drop(child.stdin.take());
            while !is_dead(&opened) {
                std::thread::yield_now();
            }
            assert!(!is_dead(&open(std::process::id()).unwrap()));
            child.wait().unwrap();
            assert!(is_dead(&opened));
            assert_eq!(send_signal(&opened, child.id(), Signal::KILL), Err(Errno::SRCH));
            assert_eq!(open(child.id()).map(drop), Err(Errno::SRCH));
            assert_eq!(open(0).map(drop), Err(Errno::SRCH));
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_no_death() {
        let place = tempfile::tempdir().unwrap();
        let directory = || rustix::fs::open(place.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert!(is_dead(&directory()), "no file: the process has been waited for");
        // Reading a directory fails.
        std::fs::create_dir(place.path().join("stat")).unwrap();
        assert!(!is_dead(&directory()));
    }

    #[test]
    fn a_process_is_killed_by_its_directory_too() {
        for open in [open, open_directory] {
            let mut child = program();
            let opened = open(child.id()).unwrap();
            send_signal(&opened, child.id(), Signal::KILL).unwrap();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(libc::SIGKILL));
        }
    }

    #[test]
    fn a_thread_is_no_process() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                assert!(open(tid).is_err());
                assert_eq!(open_directory(tid).map(drop), Err(Errno::INVAL));
            });
        });
    }
}

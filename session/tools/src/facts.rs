//! Facts about a process that can be seen in one look, from what the kernel tells other processes (proc(5)), without
//! asking the process.
//!
//! A process controls its own environment and files: they explain why it cannot be reached, and no action follows from
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dormouse_abi::environment::{self, ENV_LISTEN, ENV_SESSION};
use rustix::fs::{FileType, Mode, OFlags, Stat as FileStat, StatVfsMountFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::call::cheapest_thread;
use crate::executable::Executable;
use dormouse_control::directory::ProcessRoot;
use dormouse_control::process::{Stat, Status, process_name};

/// Maximum number of bytes read from a file below `/proc`.
const PROC_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of mapped files that are inspected.
const OBJECT_COUNT_MAX: usize = 4_096;
/// `PF_KTHREAD` in field 9 of proc_pid_stat(5).
pub(crate) const PF_KTHREAD: u32 = 0x0020_0000;
/// The id that the kernel shows for a user unknown to a namespace (proc_sys_kernel(5), `overflowuid`).
const OVERFLOW_UID: u32 = 65_534;
/// `AT_SECURE`, getauxval(3).
const AT_SECURE: u64 = 23;
/// Name of the tracer's thread that listens.
const LISTENER: &str = "dormouse";
/// Memory that a thread of the tracer needs, in bytes: its stack, and what libc adds.
const THREAD_BYTES: u64 = 1 << 20;

/// What prevents a process from making its socket in a directory, as far as it can be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DirectoryObstacle {
    /// Its path is too long for a socket.
    PathTooLong,
    /// This directory above it does not exist.
    Missing(PathBuf),
    /// The user may not search this directory, which is the directory itself or above it.
    NotSearchable {
        /// The user.
        user: u32,
        /// The directory.
        path: PathBuf,
    },
    /// It belongs to this other user.
    OtherOwner(u32),
    /// Others may write to it.
    WritableByOthers,
    /// The directory itself, or the one in which it must be made, is on a file system that is mounted read-only.
    ReadOnly(PathBuf),
    /// The user may not write to the directory itself, or to the one in which it must be made.
    NotWritable {
        /// The user.
        user: u32,
        /// The directory.
        path: PathBuf,
    },
}

/// Facts about a process. Those that could not be seen are left out, and `unseen` gives the reason.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) uid: u32,
    /// State letter of proc_pid_stat(5).
    pub(crate) state: char,
    pub(crate) thread_count: u64,
    pub(crate) is_kernel_thread: bool,
    /// Its debugger's id and name.
    pub(crate) debugger: Option<(u32, String)>,
    /// Reason why the caller may not inspect it further.
    pub(crate) unseen: Option<String>,
    /// Whether it was given privileges that its caller did not have.
    pub(crate) is_secure: bool,
    /// Its executable file. `None` if it is not an ELF file or cannot be read.
    pub(crate) executable: Option<Executable>,
    /// Mapped files that contain a tracer.
    pub(crate) tracers: Vec<String>,
    /// Number of mapped files that could not be read.
    pub(crate) unread: usize,
    /// Variables of the environment that it was started with.
    pub(crate) listen: Option<String>,
    pub(crate) sessions: Vec<String>,
    pub(crate) xdg_runtime_dir: Option<String>,
    /// Whether its environment says that filters of system calls do not kill it (`DORMOUSE_SECCOMP=0`).
    pub(crate) has_mild_filter: bool,
    /// Whether a filter of system calls is in force in at least one of its threads, and whether `exec` can gain no
    /// privileges.
    pub(crate) has_filter: bool,
    pub(crate) has_no_new_privileges: bool,
    /// Whether it has a handler for the signal by which a program listens, and whether it has a thread that could run
    /// the handler now.
    pub(crate) handles_sigurg: bool,
    pub(crate) has_callable_thread: bool,
    /// Namespaces that it is in and the caller is not.
    pub(crate) namespaces: Vec<&'static str>,
    /// Whether its root directory differs from that of its mount namespace.
    pub(crate) is_in_chroot: bool,
    /// Whether its user has no id in its user namespace.
    pub(crate) is_unmapped: bool,
    /// Whether the tracer's thread exists, and the path of its socket.
    pub(crate) has_thread: bool,
    pub(crate) listens_at: Option<String>,
    /// Directories where it would make its socket, each with what prevents it.
    pub(crate) places: Vec<(PathBuf, Option<DirectoryObstacle>)>,
    /// Threads that its user may have, and has.
    pub(crate) threads: Option<(u64, u64)>,
    /// Bytes that it may still map.
    pub(crate) memory_left: Option<u64>,
}

impl Process {
    /// Looks at a process. Returns `None` if there is none, or if not even that much may be seen.
    pub(crate) fn look(pid: u32) -> Option<Process> {
        let stat = Stat::of(pid)?;
        let status = Status::of(pid)?;
        let mut seen = Process {
            pid,
            name: process_name(pid).unwrap_or_default(),
            uid: status.number("Uid:", 1)? as u32,
            state: stat.field(3).chars().next().unwrap_or('?'),
            thread_count: status.number("Threads:", 0).unwrap_or(1),
            is_kernel_thread: stat.field(9).parse::<u32>().is_ok_and(|flags| flags & PF_KTHREAD != 0),
            has_filter: tasks(pid).filter_map(|tid| Status::of_task(pid, tid)).any(|status| status.has_filter()),
            has_no_new_privileges: status.number("NoNewPrivs:", 0) == Some(1),
            handles_sigurg: status.has_signal("SigCgt:", libc::SIGURG),
            has_callable_thread: cheapest_thread(pid).is_some(),
            ..Process::default()
        };
        let debugger = status.number("TracerPid:", 0).filter(|pid| *pid != 0).map(|pid| pid as u32);
        seen.debugger = debugger.map(|pid| (pid, process_name(pid).unwrap_or_default()));
        if !seen.is_kernel_thread {
            seen.look_at_thread();
            seen.look_at_limits(&status);
            if let Err(error) = seen.look_closer(&status) {
                seen.unseen = Some(error.to_string());
            }
        }
        Some(seen)
    }

    /// Collects what only a process that may read its memory can see.
    fn look_closer(&mut self, status: &Status) -> std::io::Result<()> {
        // The kernel does not show these for a first thread that has ended.
        let tid = tasks(self.pid).find(|tid| Stat::of_task(self.pid, *tid).is_some_and(|stat| stat.field(3) != "Z"));
        let path = |name: &str| format!("/proc/{}/task/{}/{name}", self.pid, tid.unwrap_or(self.pid));
        let maps = read(path("maps"))?;
        self.is_secure = is_secure(&read(path("auxv"))?);
        let environment = read(path("environ"))?;
        let variable = |name: &str| {
            let entries = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
            entries.filter_map(|entry| Some(entry.strip_prefix(name)?.strip_prefix('=')?.to_string())).next()
        };
        self.listen = variable(ENV_LISTEN);
        self.has_mild_filter = variable("DORMOUSE_SECCOMP").is_some_and(|value| value == "0");
        let sockets = variable(ENV_SESSION).unwrap_or_default();
        self.sessions = environment::sessions(&sockets, "").map(|(socket, _)| socket.into()).collect();
        self.xdg_runtime_dir = variable("XDG_RUNTIME_DIR");
        let root = ProcessRoot::of_thread(self.pid, tid.unwrap_or(self.pid))?;
        self.look_at_objects(&root, &path("exe"), &String::from_utf8_lossy(&maps));
        self.look_at_namespaces();
        let uid = inner_uid(self.pid, self.uid);
        self.is_unmapped = uid.is_none();
        let dirs = [self.xdg_runtime_dir.as_deref(), None];
        let dirs = dirs.map(|xdg| PathBuf::from(environment::socket_dir(xdg, uid.unwrap_or(OVERFLOW_UID))));
        let user = User { uid: self.uid, groups: status.groups() };
        for dir in dirs {
            if self.places.iter().all(|(known, _)| *known != dir) {
                let obstacle = user.obstacle(&root, &dir);
                self.places.push((dir, obstacle));
            }
        }
        Ok(())
    }

    fn look_at_objects(&mut self, root: &ProcessRoot, exe: &str, maps: &str) {
        let exe = open_checked(rustix::fs::open(exe, PATH_FLAGS, Mode::empty()), None);
        let exe_inode = exe.as_ref().and_then(|file| Some(file.metadata().ok()?.ino()));
        self.executable = exe.and_then(|file| Executable::of(&file));
        let objects = mapped_files(maps);
        for MappedName { range, inode, name, .. } in objects {
            // The executable's file may be deleted.
            if exe_inode == Some(inode) {
                if self.executable.as_ref().is_some_and(|executable| executable.has_events) {
                    self.tracers.push(name.into());
                }
                continue;
            }
            let file = open_mapped(self.pid, root, range, inode, name);
            match file {
                Some(file) if Executable::of(&file).is_some_and(|object| object.has_events) => {
                    self.tracers.push(name.into());
                }
                Some(_) => {}
                None => self.unread += usize::from(name.contains(".so") || name.ends_with(" (deleted)")),
            }
        }
    }

    fn look_at_namespaces(&mut self) {
        let of = |who: &str, name: &str| std::fs::metadata(format!("/proc/{who}/ns/{name}")).ok().map(|is| is.ino());
        let known = [
            ("user", "user namespace"),
            ("pid", "PID namespace"),
            ("mnt", "mount namespace"),
            ("net", "network namespace"),
        ];
        let is_other = |name: &str| of("self", name) != of(&self.pid.to_string(), name);
        self.namespaces = known.into_iter().filter(|(name, _)| is_other(name)).map(|(_, shown)| shown).collect();
        let root = std::fs::read_link(format!("/proc/{}/root", self.pid));
        self.is_in_chroot = root.is_ok_and(|root| root != Path::new("/"));
    }

    fn look_at_thread(&mut self) {
        for tid in listeners(self.pid) {
            let task = PathBuf::from(format!("/proc/{}/task/{tid}", self.pid));
            self.has_thread = true;
            // The thread has a descriptor table of its own, and its socket is in it.
            let fds = std::fs::read_dir(task.join("fd")).into_iter().flatten().flatten();
            let links = fds.filter_map(|entry| std::fs::read_link(entry.path()).ok());
            let inodes: BTreeSet<String> = links
                .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_string()))
                .collect();
            let sockets = read(task.join("net/unix")).unwrap_or_default();
            let sockets = String::from_utf8_lossy(&sockets);
            // Fields: address, references, protocol, flags, type, state, inode, path.
            let listens = sockets.lines().filter_map(|line| {
                let inode = line.split_ascii_whitespace().nth(6)?;
                let path = &line[line.find('/')?..];
                (inodes.contains(inode) && path.ends_with(".sock")).then(|| path.to_string())
            });
            self.listens_at = self.listens_at.take().or(listens.into_iter().next());
        }
    }

    fn look_at_limits(&mut self, status: &Status) {
        let limits = read(format!("/proc/{}/limits", self.pid)).unwrap_or_default();
        let limits = String::from_utf8_lossy(&limits);
        let soft = |name: &str| {
            let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        // Root is exempt from this limit (setrlimit(2)).
        if let Some(max) = soft("Max processes").filter(|_| status.number("Uid:", 0) != Some(0)) {
            self.threads = Some((max, threads_of(status.number("Uid:", 0).unwrap_or_default())));
        }
        let size = status.number("VmSize:", 0).map(|kib| kib * 1024);
        self.memory_left = soft("Max address space").zip(size).map(|(max, size)| max.saturating_sub(size));
    }

    /// Whether its user can start no more threads.
    pub(crate) fn has_no_thread_left(&self) -> bool {
        self.threads.is_some_and(|(max, has)| has >= max)
    }

    pub(crate) fn has_no_memory_left(&self) -> bool {
        self.memory_left.is_some_and(|left| left < THREAD_BYTES)
    }

    /// Whether its control group is frozen.
    pub(crate) fn is_frozen(&self) -> bool {
        let groups = read(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        let groups = String::from_utf8_lossy(&groups);
        let events = groups
            .lines()
            .find_map(|line| line.strip_prefix("0::"))
            .and_then(|group| read(format!("/sys/fs/cgroup{group}/cgroup.events")).ok());
        events.is_some_and(|events| String::from_utf8_lossy(&events).lines().any(|line| line == "frozen 1"))
    }
}

/// A file that a process has mapped, as proc_pid_maps(5) shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MappedName<'m> {
    /// Address range of its first mapping.
    pub(crate) range: &'m str,
    /// Device, `major:minor` in hexadecimal.
    pub(crate) device: &'m str,
    pub(crate) inode: u64,
    /// Its path, perhaps followed by ` (deleted)`.
    pub(crate) name: &'m str,
    /// Whether writes to the mapping are shared with other processes.
    pub(crate) is_shared: bool,
}

/// Returns each mapped file once, at most [`OBJECT_COUNT_MAX`].
pub(crate) fn mapped_files(maps: &str) -> Vec<MappedName<'_>> {
    let mut files = BTreeMap::new();
    for line in maps.lines() {
        // Fields: address range, permissions, offset, device, inode, path.
        let mut words = line.split_ascii_whitespace();
        let [range, permissions, _, device, inode] = std::array::from_fn(|_| words.next().unwrap_or_default());
        let name = line.find('/').map(|at| &line[at..]);
        if let (Some(name), Ok(inode)) = (name, inode.parse::<u64>())
            && files.len() < OBJECT_COUNT_MAX
        {
            let is_shared = permissions.ends_with('s');
            files.entry((inode, name)).or_insert(MappedName { range, device, inode, name, is_shared });
        }
    }
    files.into_values().collect()
}

/// Opens a file that a process has mapped, if it is a regular file and may be read. `root` is the process's.
pub(crate) fn open_mapped(pid: u32, root: &ProcessRoot, range: &str, inode: u64, name: &str) -> Option<File> {
    let by_range = format!("/proc/{pid}/map_files/{range}");
    let file = open_checked(rustix::fs::open(by_range, PATH_FLAGS, Mode::empty()), Some(inode));
    file.or_else(|| open_checked(root.find(Path::new(name)), Some(inode)))
}

/// Returns ids of a process's threads.
fn tasks(pid: u32) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the tracer's listening threads.
fn listeners(pid: u32) -> impl Iterator<Item = u32> {
    let name = move |tid: u32| read(format!("/proc/{pid}/task/{tid}/comm"));
    let is_listener = move |tid: &u32| name(*tid).is_ok_and(|name| name.trim_ascii_end() == LISTENER.as_bytes());
    tasks(pid).filter(move |tid| *tid != pid).filter(is_listener)
}

/// Returns a thread of a process that listens.
pub(crate) fn listener_of(pid: u32) -> Option<u32> {
    listeners(pid).next()
}

/// Whether a thread of a process runs, waits for a CPU, or cannot be interrupted.
pub(crate) fn is_running(pid: u32) -> bool {
    tasks(pid).any(|tid| Stat::of_task(pid, tid).is_some_and(|stat| matches!(stat.field(3), "R" | "D")))
}

/// Returns the process that a thread belongs to, unless it is that process's first thread.
pub(crate) fn process_of_thread(tid: u32) -> Option<u32> {
    let process = Status::of(tid)?.number("Tgid:", 0)? as u32;
    (process != tid).then_some(process)
}

/// Returns the number of threads of all processes of a user.
fn threads_of(uid: u64) -> u64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of_user = pids.filter_map(Status::of).filter(|status| status.number("Uid:", 0) == Some(uid));
    of_user.filter_map(|status| status.number("Threads:", 0)).sum()
}

/// Returns a user's id in a process's user namespace.
pub(crate) fn inner_uid(pid: u32, uid: u32) -> Option<u32> {
    let namespace = |who: &str| std::fs::metadata(format!("/proc/{who}/ns/user")).ok().map(|there| there.ino());
    if namespace("self") == namespace(&pid.to_string()) {
        return Some(uid);
    }
    // Fields: first id inside, first id outside, count (user_namespaces(7)).
    let map = read(format!("/proc/{pid}/uid_map")).ok()?;
    String::from_utf8_lossy(&map).lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let at = uid.checked_sub(outside).filter(|at| *at < count)?;
        inside.checked_add(at)
    })
}

/// Whether files or users may have other names for a process than for the caller.
pub(crate) fn names_otherwise(pid: u32) -> bool {
    let of = |who: &str, name: &str| {
        std::fs::metadata(format!("/proc/{who}/{name}")).ok().map(|there| (there.dev(), there.ino()))
    };
    ["root", "ns/mnt", "ns/user"].into_iter().any(|name| of("self", name) != of(&pid.to_string(), name))
}

/// Returns directories below its own root where a process of user `uid` may have its sockets. `uid` is the id that the
/// caller sees.
pub(crate) fn inner_directories(pid: u32, uid: u32) -> [PathBuf; 2] {
    let uid = inner_uid(pid, uid).unwrap_or(OVERFLOW_UID);
    [format!("/run/user/{uid}/dormouse").into(), environment::socket_dir(None, uid).into()]
}

/// A user, by the ids that the caller sees.
struct User {
    uid: u32,
    groups: Vec<u32>,
}

impl User {
    /// Returns what prevents a process of this user from making its socket in a directory below its root, or from
    /// making that directory; `None` if nothing visible does.
    fn obstacle(&self, root: &ProcessRoot, dir: &Path) -> Option<DirectoryObstacle> {
        if dir.as_os_str().len() > 80 {
            return Some(DirectoryObstacle::PathTooLong);
        }
        let mut last = None;
        for path in dir.ancestors().collect::<Vec<_>>().into_iter().rev() {
            let found = if path == Path::new("/") { root.directory() } else { root.find(path) };
            let file = match found {
                Ok(file) => file,
                Err(Errno::NOENT) => {
                    // The program creates its socket directory, but not the directories above it.
                    let parent: &OwnedFd = last.as_ref()?;
                    return if path == dir {
                        self.cannot_write(parent, path.parent()?)
                    } else {
                        Some(DirectoryObstacle::Missing(path.into()))
                    };
                }
                // A symbolic link is on the way, and links are not followed here; the program itself may get past it.
                Err(_) => return None,
            };
            let stat = rustix::fs::fstat(&file).ok()?;
            if !self.may(&stat, 1) {
                return Some(DirectoryObstacle::NotSearchable { user: self.uid, path: path.into() });
            }
            if path == dir {
                if stat.st_uid != self.uid {
                    return Some(DirectoryObstacle::OtherOwner(stat.st_uid));
                }
                if stat.st_mode & 0o022 != 0 {
                    return Some(DirectoryObstacle::WritableByOthers);
                }
                return self.cannot_write(&file, path);
            }
            last = Some(file);
        }
        None
    }

    fn cannot_write(&self, directory: &OwnedFd, path: &Path) -> Option<DirectoryObstacle> {
        let mount = rustix::fs::fstatvfs(directory).ok()?;
        if mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Some(DirectoryObstacle::ReadOnly(path.into()));
        }
        let stat = rustix::fs::fstat(directory).ok()?;
        (!self.may(&stat, 2)).then(|| DirectoryObstacle::NotWritable { user: self.uid, path: path.into() })
    }

    /// Whether the permissions of a file grant the user this bit (path_resolution(7)). Root may do everything.
    fn may(&self, stat: &FileStat, bit: u32) -> bool {
        let shift = if stat.st_uid == self.uid {
            6
        } else if self.groups.contains(&stat.st_gid) {
            3
        } else {
            0
        };
        self.uid == 0 || stat.st_mode >> shift & bit != 0
    }
}

/// Whether the kernel runs a process in secure-execution mode (`AT_SECURE`), in which it must not trust its
/// environment.
fn is_secure(auxv: &[u8]) -> bool {
    let words: Vec<u64> = auxv.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    words.as_chunks::<2>().0.iter().any(|[kind, value]| *kind == AT_SECURE && *value != 0)
}

/// Does not open the file itself yet: opening a FIFO would block, and opening a device may have effects.
const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Opens for reading the file that a descriptor stands for, if it is a regular file with this inode.
fn open_checked(found: Result<OwnedFd, Errno>, inode: Option<u64>) -> Option<File> {
    let found = found.ok()?;
    let stat = rustix::fs::fstat(&found).ok()?;
    let is_it = FileType::from_raw_mode(stat.st_mode).is_file() && inode.is_none_or(|inode| inode == stat.st_ino);
    is_it.then(|| File::open(format!("/proc/self/fd/{}", found.as_raw_fd())).ok())?
}

pub(crate) fn read(path: impl AsRef<Path>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(PROC_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn this_process_is_seen_as_it_is() {
        let pid = std::process::id();
        let seen = Process::look(pid).unwrap();
        assert_eq!((seen.pid, seen.uid, seen.unseen), (pid, rustix::process::geteuid().as_raw(), None));
        assert!(!seen.is_secure && !seen.is_kernel_thread && !seen.is_in_chroot && !seen.is_unmapped);
        assert!(seen.namespaces.is_empty() && !names_otherwise(pid), "{:?}", seen.namespaces);
        // This test contains no tracer.
        assert_eq!((seen.tracers, seen.has_thread, seen.listens_at), (Vec::new(), false, None));
        assert_eq!(seen.xdg_runtime_dir, std::env::var("XDG_RUNTIME_DIR").ok());
        assert!(Process::look(0).is_none());
        std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            assert_eq!((process_of_thread(tid), process_of_thread(pid)), (Some(pid), None));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_kernels_auxiliary_vector_says_whether_it_is_secure() {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        assert!(is_secure(&words(&[6, 4096, 23, 1, 0, 0])));
        assert!(!is_secure(&words(&[6, 23, 23, 0, 0, 0])) && !is_secure(&[23, 0, 0]));
    }

    #[test]
    fn what_keeps_a_user_from_a_directory_is_told() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let root = ProcessRoot::of(std::process::id()).unwrap();
        let me = rustix::process::geteuid().as_raw();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        let obstacle = |uid, dir: &Path| User { uid, groups: Vec::new() }.obstacle(&root, dir);
        let (dir, stranger) = (place.join("dormouse"), 4_242);
        let (user, missing) = (stranger, place.join("none"));
        let is = |found, obstacle| assert_eq!(found, Some(obstacle));
        // The directory can be created.
        assert_eq!(obstacle(me, &dir), None);
        mode(&place, 0o755);
        is(obstacle(stranger, &dir), DirectoryObstacle::NotWritable { user, path: place.clone() });
        mode(&place, 0o700);
        is(obstacle(stranger, &dir), DirectoryObstacle::NotSearchable { user, path: place.clone() });
        mode(&place, 0o755);
        is(obstacle(me, &missing.join("dormouse")), DirectoryObstacle::Missing(missing));
        is(obstacle(me, &place.join("x".repeat(80))), DirectoryObstacle::PathTooLong);
        std::fs::create_dir(&dir).unwrap();
        mode(&dir, 0o755);
        assert_eq!(obstacle(me, &dir), None);
        is(obstacle(stranger, &dir), DirectoryObstacle::OtherOwner(me));
        mode(&dir, 0o777);
        is(obstacle(me, &dir), DirectoryObstacle::WritableByOthers);
    }
}

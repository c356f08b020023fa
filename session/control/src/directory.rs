//! Directories of sockets: of this user's sessions and programs, and for root those of other users too.
//!
//! A directory is opened once, without following symbolic links, and checked; all operations in it use its descriptor.
//! So no process can replace a checked directory by another one or by another user's socket.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use dormouse_abi::environment::{self, UNHEARD_EXTENSION};
use dormouse_transport::{Deadline, try_connect};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::{Error, Problem, Refusal};

/// Environment variable of tools: a further directory in which they look for sockets, for programs that have another
/// `XDG_RUNTIME_DIR`.
pub const ENV_SOCKET_DIR: &str = "DORMOUSE_SOCKET_DIR";

/// Maximum number of entries read from a directory.
const ENTRY_COUNT_MAX: usize = 10_000;

/// Connections that may wait to be accepted; the kernel's limit may be lower.
const BACKLOG: i32 = 4_096;

/// Maximum length of a socket's path, so that any program can connect to it (unix(7): 108 bytes with the NUL).
const PATH_LEN_MAX: usize = 107;

/// Returns the directory of the sockets of the calling user's programs.
pub fn socket_dir() -> PathBuf {
    let xdg = std::env::var("XDG_RUNTIME_DIR").ok();
    environment::socket_dir(xdg.as_deref(), rustix::process::geteuid().as_raw()).into()
}

/// Opens a file of `size_bytes` bytes in that directory, which all of the user's sessions share, and returns it with
/// its path. A missing file is created with zeroes.
///
/// # Errors
/// [`Error::OwnDirectory`], [`Error::Directory`], [`Error::File`]: the directory or the file does not belong to this user
/// alone, or the file has another size.
pub fn user_file(name: &str, size_bytes: u64) -> Result<(File, PathBuf), Error> {
    user_file_in(&socket_dir(), name, size_bytes)
}

fn user_file_in(dir: &Path, name: &str, size_bytes: u64) -> Result<(File, PathBuf), Error> {
    let directory = SocketDirectory::create(dir)?;
    let path = directory.path_of(name);
    match private_file(&directory, name, size_bytes) {
        Ok(file) => Ok((file, path)),
        Err(problem) => Err(Error::File { path, problem }),
    }
}

fn private_file(directory: &SocketDirectory, name: &str, size_bytes: u64) -> Result<File, Problem> {
    // With `NONBLOCK`, opening a FIFO or a device does not block.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(&directory.fd, name, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => File::from(fd),
        Err(Errno::LOOP) => return Err(Problem::Link),
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&file)?;
    let is_own = stat.st_uid == directory.uid && stat.st_mode & 0o077 == 0;
    if !FileType::from_raw_mode(stat.st_mode).is_file() || !is_own {
        return Err(Problem::NotPrivate);
    }
    match stat.st_size as u64 {
        0 => file.set_len(size_bytes).map_err(Problem::System)?,
        len if len != size_bytes => return Err(Problem::OtherSize),
        _ => {}
    }
    Ok(file)
}

/// Returns the directories where sockets of a user's programs and sessions may be. Ignores what programs say, in their
/// environment or otherwise.
pub fn directories_of(uid: u32) -> Vec<PathBuf> {
    let is_own = uid == rustix::process::geteuid().as_raw();
    let [own, named] = directories_named();
    let usual = [PathBuf::from(format!("/run/user/{uid}/dormouse")), environment::socket_dir(None, uid).into()];
    let mut all: Vec<PathBuf> = own.filter(|_| is_own).into_iter().chain(named).chain(usual).collect();
    let mut seen = Vec::new();
    all.retain(|dir| {
        let is_fresh = !seen.contains(dir);
        seen.push(dir.clone());
        is_fresh
    });
    all
}

/// Returns the directories of sockets by the caller's environment: its own, and the further one that it names, if any.
pub fn directories_named() -> [Option<PathBuf>; 2] {
    [Some(socket_dir()), directory_besides()].map(|dir| dir.map(|dir| resolved(&dir)))
}

/// Returns the further directory that the caller names, unresolved.
pub fn directory_besides() -> Option<PathBuf> {
    std::env::var_os(ENV_SOCKET_DIR).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// Resolves symbolic links in a path that the caller names, except for the last component, which is checked itself.
fn resolved(dir: &Path) -> PathBuf {
    let parent = dir.parent().and_then(|parent| parent.canonicalize().ok());
    parent.zip(dir.file_name()).map_or_else(|| dir.into(), |(parent, name)| parent.join(name))
}

/// A directory of sockets that only its owner or root can change.
#[derive(Debug)]
pub struct SocketDirectory {
    fd: OwnedFd,
    path: PathBuf,
    /// Its owner.
    pub uid: u32,
}

impl SocketDirectory {
    /// Opens a directory of `uid` or root. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Directory`].
    pub fn open(path: &Path, uid: u32) -> Result<Option<SocketDirectory>, Error> {
        SocketDirectory::open_from(rustix::fs::open("/", ROOT_FLAGS, Mode::empty()), path, path.into(), uid)
    }

    /// Opens a directory below a process's own root, like [`SocketDirectory::open`].
    ///
    /// # Errors
    /// [`Error::Directory`].
    pub fn open_in(root: &ProcessRoot, path: &Path, uid: u32) -> Result<Option<SocketDirectory>, Error> {
        SocketDirectory::open_from(rustix::io::dup(&root.fd), path, root.path_of(path), uid)
    }

    /// Opens a directory by its path below `root`. `name` is the path by which the caller would reach it.
    fn open_from(
        root: Result<OwnedFd, Errno>,
        path: &Path,
        name: PathBuf,
        uid: u32,
    ) -> Result<Option<SocketDirectory>, Error> {
        let failed = |problem| Err(Error::Directory { path: name.clone(), problem });
        let fd = match root.and_then(|root| walk(root, path, OFlags::RDONLY | OFlags::DIRECTORY)) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return failed(Problem::LinkOnTheWay);
            }
            Err(errno) => return failed(errno.into()),
        };
        let stat = match rustix::fs::fstat(&fd) {
            Ok(stat) => stat,
            Err(errno) => return failed(errno.into()),
        };
        if stat.st_uid != uid && stat.st_uid != 0 {
            return failed(Problem::OfOtherUser { owner: stat.st_uid, user: uid });
        }
        if stat.st_mode & 0o022 != 0 {
            return failed(Problem::OpenToOthers);
        }
        Ok(Some(SocketDirectory { fd, path: name, uid: stat.st_uid }))
    }

    /// Opens the calling user's directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`Error::OwnDirectory`], [`Error::Directory`].
    pub fn create(path: &Path) -> Result<SocketDirectory, Error> {
        let failed = |problem| Error::OwnDirectory { path: path.into(), problem };
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        // If something exists that is not a directory, such as a symbolic link, it is reported below.
        made.or_else(
            |error| if path.symlink_metadata().is_ok() { Ok(()) } else { Err(failed(Problem::System(error))) },
        )?;
        let uid = rustix::process::geteuid().as_raw();
        match SocketDirectory::open(&resolved(path), uid)? {
            None => Err(failed(Problem::Gone)),
            Some(directory) if directory.uid != uid => Err(failed(Problem::OfRoot)),
            Some(directory) => Ok(directory),
        }
    }

    /// Returns the path of a name in it.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the names of sockets in it, sorted, at most `ENTRY_COUNT_MAX`.
    pub fn names(&self) -> Vec<String> {
        let entries = Dir::read_from(&self.fd).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| Some(entry.file_name().to_str().ok()?.to_string()));
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".sock")).take(ENTRY_COUNT_MAX).collect();
        names.sort();
        names
    }

    /// Connects to a socket in it that belongs to one of these users and to which no other user may connect.
    pub fn connect(&self, name: &str, uids: &[u32], deadline: &Deadline<'_>) -> Result<OwnedFd, Refusal> {
        let file = self.find(name, uids)?;
        Ok(dormouse_transport::connect(Path::new(&by_descriptor(&file, "")), deadline)?)
    }

    /// Opens the file of a socket that belongs to one of these users. Connections go to this file, even if its name is
    /// replaced meanwhile.
    fn find(&self, name: &str, uids: &[u32]) -> Result<OwnedFd, Refusal> {
        if name.contains('/') {
            return Err(Refusal::NotAName);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
        check_socket(&rustix::fs::fstat(&file)?, uids)?;
        Ok(file)
    }

    /// Makes a listening socket. From the first moment, only the user may connect.
    pub fn listen(&self, name: &str) -> std::io::Result<OwnedFd> {
        if self.path_of(name).as_os_str().len() > PATH_LEN_MAX {
            let text = format!("its path is longer than {PATH_LEN_MAX} bytes");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // bind(2) creates the file with the socket's own mode, so it never has another one.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(by_descriptor(&self.fd, name))?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    }

    /// Opens a file in it that is not a socket.
    pub fn open_file(&self, name: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.fd, name, flags, mode)
    }

    /// Removes a socket, and the file that counts the programs that have not reached it.
    pub fn remove(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, Path::new(name).with_extension(UNHEARD_EXTENSION), AtFlags::empty());
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
    }

    /// Removes sockets at which no process answers any more, of programs and session owners that were killed or called
    /// `_exit`. Tries at most `count_max` sockets. Returns how many were removed.
    pub fn sweep(&self, count_max: usize) -> usize {
        // Live programs are not woken: only a socket whose id belongs to no process here is tried. Its process may be
        // dead, or in another PID namespace.
        let may_be_dead = |name: &String| owner_of(name).is_none_or(|pid| !is_there(pid));
        let suspects = self.names().into_iter().filter(may_be_dead).take(count_max);
        suspects.filter(|name| self.is_deserted(name)).map(|name| self.remove(&name)).count()
    }

    fn is_deserted(&self, name: &str) -> bool {
        // A socket that was made just now refuses connections too, until its owner listens.
        let Ok(stat) = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
        let is_old = now.saturating_sub(stat.st_mtime) > LISTENED_TO_AFTER_S;
        let refuses = || -> Result<bool, Refusal> {
            let file = self.find(name, &[stat.st_uid])?;
            // A full backlog belongs to a live listener.
            Ok(try_connect(Path::new(&by_descriptor(&file, ""))).is_err_and(|errno| errno == Errno::CONNREFUSED))
        };
        is_old && FileType::from_raw_mode(stat.st_mode).is_socket() && refuses().unwrap_or(false)
    }
}

/// Age in seconds after which a socket is certainly listened to, if it ever will be.
const LISTENED_TO_AFTER_S: i64 = 2;

fn is_there(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// Returns the process that made a socket, by its name, with the id that the process sees: `PID.….sock` or
/// `session-PID-….sock`.
pub fn owner_of(name: &str) -> Option<u32> {
    let rest = name.strip_prefix("session-").unwrap_or(name);
    rest.split_once(['.', '-'])?.0.parse().ok()
}

fn by_descriptor(fd: &impl AsFd, name: &str) -> String {
    format!("/proc/self/fd/{}{}{name}", fd.as_fd().as_raw_fd(), if name.is_empty() { "" } else { "/" })
}

/// Checks that a file is a socket of one of these users to which no other user may connect.
fn check_socket(stat: &Stat, uids: &[u32]) -> Result<(), Refusal> {
    if !FileType::from_raw_mode(stat.st_mode).is_socket() {
        return Err(Refusal::NotASocket);
    }
    if !uids.contains(&stat.st_uid) {
        return Err(Refusal::OfUser(stat.st_uid));
    }
    if stat.st_mode & 0o022 != 0 { Err(Refusal::OpenToOthers) } else { Ok(()) }
}

const ROOT_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the file at this absolute path below a root. Follows no symbolic link on the way.
fn walk(root: OwnedFd, path: &Path, access: OFlags) -> Result<OwnedFd, Errno> {
    let mut fd = root;
    let mut components = path.components();
    if components.next() != Some(Component::RootDir) {
        return Err(Errno::INVAL);
    }
    let mut components = components.peekable();
    while let Some(component) = components.next() {
        let Component::Normal(name) = component else { return Err(Errno::INVAL) };
        let flags = if components.peek().is_some() {
            ROOT_FLAGS
        } else {
            // Only the last component is opened with `access`.
            access | OFlags::NOFOLLOW | OFlags::CLOEXEC
        };
        fd = rustix::fs::openat(&fd, name, flags, Mode::empty())?;
    }
    Ok(fd)
}

/// The root directory of a process, in its mount namespace and chroot. Symbolic links in it are not followed.
#[derive(Debug)]
pub struct ProcessRoot {
    fd: OwnedFd,
    pid: u32,
}

impl ProcessRoot {
    /// Opens the root of a process. The caller must hold its pidfd, and must check afterwards that it still lives.
    ///
    /// # Errors
    /// `ACCES` or `PERM` if the caller may not inspect it.
    pub fn of(pid: u32) -> Result<ProcessRoot, Errno> {
        ProcessRoot::of_thread(pid, pid)
    }

    /// Opens the root of one of its threads.
    ///
    /// # Errors
    /// See [`ProcessRoot::of`].
    pub fn of_thread(pid: u32, tid: u32) -> Result<ProcessRoot, Errno> {
        // This link is the kernel's own and leads to the directory itself.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(ProcessRoot { fd: rustix::fs::open(format!("/proc/{pid}/task/{tid}/root"), flags, Mode::empty())?, pid })
    }

    /// Returns the path by which the caller reaches the process's `path`.
    pub fn path_of(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.pid, path.display()))
    }

    /// Returns a descriptor of the root itself.
    pub fn directory(&self) -> Result<OwnedFd, Errno> {
        rustix::io::dup(&self.fd)
    }

    /// Returns a descriptor of the file at this path, which can be queried but not read.
    pub fn find(&self, path: &Path) -> Result<OwnedFd, Errno> {
        walk(rustix::io::dup(&self.fd)?, path, OFlags::PATH)
    }
}

/// Splits a path into the index of one of these directories and a session socket's plain name. `None` if it does not
/// have this form.
pub fn within<'a>(path: &'a str, directories: &[PathBuf]) -> Option<(usize, &'a str)> {
    let (parent, name) = path.rsplit_once('/')?;
    let is_plain = name.starts_with("session-") && name.ends_with(".sock") && !name.contains('\0');
    // Compared as text: a path that reaches the same place by other names is not accepted.
    let index = directories
        .iter()
        .position(|directory| directory.as_path() == Path::new(parent) && directory.as_os_str() == parent)?;
    is_plain.then_some((index, name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use std::time::Duration;

    use rustix::fs::{CWD, Timespec, Timestamps};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn open(path: &Path) -> Result<Option<SocketDirectory>, String> {
        SocketDirectory::open(path, me()).map_err(|error| error.to_string())
    }

    #[test]
    fn directories_of_others_and_links_are_refused_with_the_remedy() {
        let place = tempfile::tempdir().unwrap();
        let (real, link) = (place.path().join("real"), place.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        assert!(open(&real).unwrap().is_some());
        assert!(open(&place.path().join("none")).unwrap().is_none());
        let text = open(&link).unwrap_err();
        assert!(text.contains("is a symbolic link"), "{text}");
        // Also for a link on the way.
        std::fs::create_dir(real.join("dormouse")).unwrap();
        assert!(open(&real.join("dormouse")).unwrap().is_some());
        assert!(open(&link.join("dormouse")).unwrap_err().contains("is a symbolic link"));
        assert!(SocketDirectory::create(&link).unwrap_err().to_string().contains("is a symbolic link"));
        assert!(open(Path::new("relative")).is_err() && open(&real.join("../real")).is_err());
        std::fs::set_permissions(&real, PermissionsExt::from_mode(0o777)).unwrap();
        let text = open(&real).unwrap_err();
        assert!(text.contains("others may write to it; `chmod go-w` mends that"), "{text}");
        std::fs::set_permissions(&real, PermissionsExt::from_mode(0o700)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&real, Some(65_534), None).unwrap();
            let text = SocketDirectory::open(&real, 65_533).unwrap_err().to_string();
            assert!(
                text.contains("user 65534 has made it; remove it as that user or as root, or set XDG_RUNTIME_DIR"),
                "{text}"
            );
            assert!(SocketDirectory::open(&real, 65_534).unwrap().is_some());
            assert!(SocketDirectory::create(&real).unwrap_err().to_string().contains("user 65534 has made it"));
        }
    }

    /// Models a program in another mount namespace or a chroot, which has files of its own.
    #[test]
    fn links_below_a_programs_root_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let (inside, outside) = (place.join("root"), place.join("outside"));
        for dir in [inside.join("run/dormouse"), inside.join("tmp"), outside.join("dormouse")] {
            std::fs::create_dir_all(dir).unwrap();
        }
        // Links by an absolute path, which names another directory below the root, and upwards.
        symlink(&outside, inside.join("absolute")).unwrap();
        symlink("../outside", inside.join("upwards")).unwrap();
        symlink("/proc/self/root", inside.join("magic")).unwrap();
        symlink("/outside/dormouse", inside.join("tmp/dormouse-7")).unwrap();
        let fd = rustix::fs::open(&inside, ROOT_FLAGS, Mode::empty()).unwrap();
        let root = ProcessRoot { fd, pid: 7 };
        let open =
            |path: &str| SocketDirectory::open_in(&root, Path::new(path), me()).map_err(|error| error.to_string());
        let found = open("/run/dormouse").unwrap().unwrap();
        assert_eq!(found.path_of("x"), Path::new("/proc/7/root/run/dormouse/x"));
        let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
        let there = rustix::fs::stat(inside.join("run/dormouse")).unwrap();
        assert_eq!(identity(rustix::fs::fstat(&found.fd).unwrap()), identity(there));
        for link in ["/absolute/dormouse", "/upwards/dormouse", "/magic/tmp", "/tmp/dormouse-7"] {
            let text = open(link).unwrap_err();
            assert!(text.contains("is a symbolic link"), "{link}: {text}");
            assert!(root.find(Path::new(link)).is_err() || link == "/tmp/dormouse-7", "{link}");
        }
        // Finds the link itself, not its target.
        let link = root.find(Path::new("/tmp/dormouse-7")).unwrap();
        assert!(FileType::from_raw_mode(rustix::fs::fstat(&link).unwrap().st_mode).is_symlink());
        assert!(open("/../outside/dormouse").is_err() && open("run/dormouse").is_err());
        assert!(open("/outside/dormouse").unwrap().is_none());
    }

    #[test]
    fn a_socket_belongs_to_its_user_from_the_start() {
        let place = tempfile::tempdir().unwrap();
        // Models a user without an umask: bind(2) alone would let every user connect.
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let mode_before = rustix::fs::fstat(&socket).unwrap().st_mode & 0o777;
        assert_eq!(mode_before, 0o777);
        let directory = SocketDirectory::create(place.path()).unwrap();
        let watched = place.path().to_owned();
        let modes = std::thread::scope(|scope| {
            let watcher = scope.spawn(move || {
                let mut modes = std::collections::BTreeSet::new();
                while !watched.join("199.0.sock").exists() {
                    let entries = std::fs::read_dir(&watched).unwrap().flatten();
                    modes.extend(entries.filter_map(|entry| Some(entry.metadata().ok()?.mode() & 0o777)));
                }
                modes
            });
            let made: Vec<OwnedFd> =
                (0..200).map(|number| directory.listen(&format!("{number}.0.sock")).unwrap()).collect();
            drop(made);
            watcher.join().unwrap()
        });
        assert!(modes.iter().all(|mode| *mode == 0o600), "{modes:?}");
        for name in directory.names() {
            assert_eq!(place.path().join(name).metadata().unwrap().mode() & 0o777, 0o600);
        }
        let long = format!("{}.0.sock", "1".repeat(PATH_LEN_MAX));
        assert!(directory.listen(&long).unwrap_err().to_string().contains("longer than 107 bytes"));
    }

    #[test]
    fn unsafe_sockets_are_not_connected_to() {
        let place = tempfile::tempdir().unwrap();
        let directory = SocketDirectory::create(place.path()).unwrap();
        let path = |name: &str| place.path().join(name);
        let _good = directory.listen("1.0.sock").unwrap();
        let _open = UnixListener::bind(path("2.0.sock")).unwrap();
        std::fs::set_permissions(path("2.0.sock"), PermissionsExt::from_mode(0o666)).unwrap();
        symlink(path("1.0.sock"), path("3.0.sock")).unwrap();
        std::fs::write(path("4.0.sock"), "").unwrap();
        rustix::fs::mknodat(CWD, path("5.0.sock"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let connect = |name: &str, uid| {
            directory.connect(name, &[uid], &Deadline::after(PATIENCE)).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(connect("1.0.sock", me()), Ok(()));
        assert_eq!(connect("1.0.sock", me().wrapping_add(1)), Err(format!("it belongs to user {}", me())));
        assert_eq!(connect("2.0.sock", me()), Err("others may connect to it".into()));
        for name in ["3.0.sock", "4.0.sock", "5.0.sock"] {
            assert_eq!(connect(name, me()), Err("it is no socket".into()), "{name}");
        }
        assert!(connect("../x", me()).is_err() && connect("6.0.sock", me()).is_err());
        drop(_good);
        let refusal = directory.connect("1.0.sock", &[me()], &Deadline::after(PATIENCE)).unwrap_err();
        assert_eq!(refusal, Errno::CONNREFUSED.into());
    }

    #[test]
    fn a_file_of_all_sessions_is_private_to_its_user() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let open =
            |name: &str| user_file_in(place.path(), name, 100).map(|(file, _)| file).map_err(|error| error.to_string());
        for _ in 0..2 {
            let found = open("disk").unwrap().metadata().unwrap();
            assert_eq!((found.len(), found.mode() & 0o777), (100, 0o600));
        }
        std::fs::write(path("short"), "x").unwrap();
        std::fs::set_permissions(path("short"), PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(path("open"), [0; 100]).unwrap();
        std::fs::set_permissions(path("open"), PermissionsExt::from_mode(0o644)).unwrap();
        symlink(path("disk"), path("link")).unwrap();
        rustix::fs::mknodat(CWD, path("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for (name, told) in
            [("short", "another size"), ("open", "alone"), ("link", "symbolic link"), ("fifo", "no file")]
        {
            let text = open(name).unwrap_err();
            assert!(text.contains(told) && text.contains("remove it"), "{text}");
        }
        let unmade = user_file_in(&path("short").join("below"), "disk", 100).unwrap_err().to_string();
        assert!(unmade.contains("XDG_RUNTIME_DIR"), "{unmade}");
    }

    /// Models 500 children that call `_exit` and leave their sockets.
    #[test]
    fn sockets_of_dead_processes_are_removed_in_bounded_batches() {
        let place = tempfile::tempdir().unwrap();
        let directory = SocketDirectory::create(place.path()).unwrap();
        let old = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        let set_time = |name: &str, time| {
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(&directory.fd, name, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        };
        let age = |name: &str| set_time(name, old);
        // Ids that no process has: the kernel's maximum is lower.
        let dead: Vec<String> = (0..500).map(|number| format!("{}.0.sock", 4_200_000 + number)).collect();
        for name in &dead {
            drop(directory.listen(name).unwrap());
            age(name);
        }
        let alive =
            [format!("{}.0.sock", std::process::id()), "4300000.0.sock".into(), "session-4300001-0.sock".into()];
        let listeners = alive.each_ref().map(|name| directory.listen(name).unwrap());
        alive.iter().for_each(|name| age(name));
        drop(directory.listen("4300002.0.sock").unwrap());
        // It stays new, however slow the machine is.
        set_time("4300002.0.sock", Timespec { tv_sec: 1 << 33, tv_nsec: 0 });
        std::fs::write(place.path().join("4300003.0.sock"), "no socket").unwrap();
        age("4300003.0.sock");
        assert_eq!(directory.sweep(100), 100);
        assert_eq!(directory.sweep(1_000), 400);
        // A socket that was made just now and a file that is not a socket stay, beside those that are listened to.
        assert_eq!(directory.names().len(), 5);
        // No live process here was woken: no connection waits to be accepted.
        assert_eq!(rustix::net::accept(&listeners[0]).unwrap_err(), Errno::AGAIN);
        assert!(rustix::net::accept(&listeners[1]).is_ok());
    }

    #[test]
    fn sockets_are_recognised_by_their_names() {
        assert_eq!(owner_of("7.0.sock"), Some(7));
        assert_eq!(owner_of("7.4026531836-1.sock"), Some(7));
        assert_eq!(owner_of("session-8-1.sock"), Some(8));
        assert_eq!((owner_of("x.0.sock"), owner_of("session-x-1.sock"), owner_of("")), (None, None, None));
    }
}

//! The listening socket, and the directory that it is in.

use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use dormouse_abi::environment::{is_program_socket, program_socket_name, socket_dir};
use dormouse_transport::{Clock, Monotonic, is_answered};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;

use crate::environment::variable;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// Age at which a socket that will ever be listened to has certainly reached listen(2).
const LISTENED_TO_AFTER: Duration = Duration::from_secs(2);

/// Gives the calling thread an empty descriptor table of its own. Returns false if the kernel refuses.
pub(crate) fn leave_descriptors() -> bool {
    // SAFETY: close_range(2) unshares the table first, so no other thread's descriptors are closed; this thread has
    // opened none.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) == 0 }
}

/// Returns the possible directories for this user's sockets. One that the environment names is left out if it belongs
/// to another user because the program has changed its own.
pub(crate) fn directories() -> impl Iterator<Item = PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let xdg = variable("XDG_RUNTIME_DIR");
    let dirs = [socket_dir(xdg.as_deref(), uid), socket_dir(None, uid)];
    dirs.into_iter().map(PathBuf::from).filter(move |dir| {
        let _ = std::fs::DirBuilder::new().mode(0o700).create(dir);
        // In /tmp any user could have created it: only a directory of this user that no other user can write to is
        // accepted.
        let metadata = std::fs::symlink_metadata(dir);
        metadata.is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == uid && metadata.mode() & 0o022 == 0)
    })
}

/// A listening socket.
pub(crate) struct Socket {
    pub(crate) fd: OwnedFd,
    pub(crate) path: PathBuf,
    /// Device and inode, which identify the socket.
    identity: (u64, u64),
    /// User that it belongs to.
    pub(crate) uid: u32,
}

impl Socket {
    pub(crate) fn bind(dir: &Path, is_shared: bool) -> Option<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        if is_shared {
            // Programs pass on the first three descriptors, closed or not.
            fd = rustix::io::fcntl_dupfd_cloexec(&fd, 3).ok()?;
        }
        // Before it has a name: other users must not be able to connect at any time.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).ok()?;
        // The name contains the time as well, because programs in several PID namespaces may share the directory and
        // have the same id.
        let path = (0..8).find_map(|_| {
            let path = dir.join(program_socket_name(std::process::id(), Monotonic.now_ns() as u32));
            rustix::net::bind(&fd, &SocketAddrUnix::new(&path).ok()?).is_ok().then_some(path)
        })?;
        let socket = Socket { identity: identity(&fd)?, fd, path, uid: rustix::process::geteuid().as_raw() };
        if rustix::net::listen(&socket.fd, BACKLOG).is_err() {
            socket.unlink();
            return None;
        }
        Some(socket)
    }

    /// Whether the descriptor still refers to the socket: in a table that is shared with the program, it may not.
    pub(crate) fn is_own(&self) -> bool {
        identity(&self.fd) == Some(self.identity)
    }

    /// Removes the socket's name. Returns the descriptor, unless it is the program's by now.
    pub(crate) fn unlink(self) -> Option<OwnedFd> {
        let _ = std::fs::remove_file(&self.path);
        if self.is_own() {
            return Some(self.fd);
        }
        let _ = self.fd.into_raw_fd();
        None
    }
}

fn identity(fd: impl AsFd) -> Option<(u64, u64)> {
    rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Removes the socket names of processes that have ended from the directory of this socket.
pub(crate) fn sweep(own: &Path) {
    let own_pid = std::process::id();
    for entry in own.parent().into_iter().flat_map(std::fs::read_dir).flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let pid = name.to_str().and_then(|name| {
            let pid = name.split_once('.')?.0.parse().ok()?;
            is_program_socket(name, pid).then_some(pid)
        });
        let Some(pid) = pid else { continue };
        let is_gone = || {
            let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
            pid == own_pid || raw.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH))
        };
        // A process in another PID namespace is not visible here, but it answers, unless it has bound the socket just
        // now.
        let is_old = || {
            let made = entry.metadata().and_then(|metadata| metadata.modified());
            made.is_ok_and(|made| SystemTime::now().duration_since(made).is_ok_and(|age| age >= LISTENED_TO_AFTER))
        };
        if path != own && is_gone() && is_old() && !is_answered(&path) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_socket_belongs_to_its_user_from_the_start() {
        const COUNT: usize = 200;
        let place = tempfile::tempdir().unwrap();
        let sockets = |dir: &Path| {
            let entries = std::fs::read_dir(dir).unwrap().flatten().filter_map(|entry| entry.metadata().ok());
            entries.map(|metadata| metadata.mode() & 0o777).collect::<Vec<u32>>()
        };
        let modes = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut modes = BTreeSet::new();
                loop {
                    let seen = sockets(place.path());
                    modes.extend(&seen);
                    if seen.len() == COUNT {
                        return modes;
                    }
                }
            });
            let made: Vec<Socket> = (0..COUNT).map(|_| Socket::bind(place.path(), false).unwrap()).collect();
            let modes = watcher.join().unwrap();
            made.into_iter().for_each(|socket| drop(socket.unlink()));
            modes
        });
        assert_eq!(modes, BTreeSet::from([0o600]));
        assert_eq!(sockets(place.path()), Vec::<u32>::new());
    }
}

//! Credentials of the other side, from the kernel.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::process::Pid;

/// The credentials of a peer when its socket was connected, or listened on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id, or `None` if it has none in this process's PID namespace.
    pub pid: Option<Pid>,
    /// Effective user id, in this process's user namespace.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

impl Peer {
    /// Returns the peer of a connected Unix socket (`SO_PEERCRED`).
    ///
    /// # Errors
    /// The error of getsockopt(2).
    pub fn of(socket: impl AsFd) -> Result<Peer, Errno> {
        // Not rustix's function: its process id is never 0, and the kernel writes 0 for a process in another PID
        // namespace.
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let (fd, option) = (socket.as_fd().as_raw_fd(), (libc::SOL_SOCKET, libc::SO_PEERCRED));
        // SAFETY: getsockopt(2): `len` is the size of `credentials`, and any three integers are valid credentials.
        let result = unsafe { libc::getsockopt(fd, option.0, option.1, (&raw mut credentials).cast(), &raw mut len) };
        if result != 0 {
            let errno = std::io::Error::last_os_error();
            return Err(Errno::from_io_error(&errno).unwrap_or(Errno::INVAL));
        }
        // A socket without credentials, for example a datagram socket, has no known peer. (A socket pair has
        // credentials.)
        if len as usize != size_of::<libc::ucred>() {
            return Err(Errno::NOTCONN);
        }
        Ok(Peer { pid: Pid::from_raw(credentials.pid.max(0)), uid: credentials.uid, gid: credentials.gid })
    }

    /// Whether the peer is this process's user, or root: only these may own a session that a program joins, or
    /// communicate with a program.
    pub fn is_own_user_or_root(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

//! Who is on the other side, as the kernel says.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::process::Pid;

/// The credentials of a peer when its socket was connected, or listened on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its process; `None` where this process's PID namespace has none for it.
    pub pid: Option<Pid>,
    /// Its effective user, in this process's user namespace.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl Peer {
    /// The peer of a connected Unix socket (`SO_PEERCRED`).
    ///
    /// # Errors
    /// What getsockopt(2) says.
    pub fn of(socket: impl AsFd) -> Result<Peer, Errno> {
        // Not rustix's: its credentials hold a process id that is never 0, and the kernel writes 0 for one of another PID namespace.
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let (fd, option) = (socket.as_fd().as_raw_fd(), (libc::SOL_SOCKET, libc::SO_PEERCRED));
        // SAFETY: getsockopt(2): `len` says how much room there is, and any three integers are credentials.
        let result = unsafe { libc::getsockopt(fd, option.0, option.1, (&raw mut credentials).cast(), &raw mut len) };
        if result != 0 {
            let errno = std::io::Error::last_os_error();
            return Err(Errno::from_io_error(&errno).unwrap_or(Errno::INVAL));
        }
        // A peer without credentials (a socket pair that was never connected has them, a datagram socket has not) is nobody's.
        if len as usize != size_of::<libc::ucred>() {
            return Err(Errno::NOTCONN);
        }
        Ok(Peer { pid: Pid::from_raw(credentials.pid.max(0)), uid: credentials.uid, gid: credentials.gid })
    }

    /// Whether it is this process's user, or root: only these may own a session that a program joins, or talk to a program.
    pub fn is_own_user_or_root(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

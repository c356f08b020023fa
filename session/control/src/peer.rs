//! Who is at the other end of a connection, as the kernel says.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::process;

/// The process that connected, or that listens: for a listening socket, the one that called `listen(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// `None`: it is in a PID namespace that this process cannot see.
    pub pid: Option<u32>,
    /// The user as whom it ran then.
    pub uid: u32,
}

impl Peer {
    /// Of a connected socket.
    pub(crate) fn of(socket: &impl AsFd) -> std::io::Result<Peer> {
        // Not by rustix: its structure holds a process id that is not 0, and the kernel gives 0 for one that cannot be seen.
        let credentials: libc::ucred = option(socket, libc::SO_PEERCRED)?;
        let pid = u32::try_from(credentials.pid).ok().filter(|pid| *pid != 0);
        Ok(Peer { pid, uid: credentials.uid })
    }

    /// A pidfd of the process at the other end, also of one that cannot be seen.
    ///
    /// Before Linux 6.5 it is found by its id, which another process may have by now; `None` then for one that cannot be seen.
    pub(crate) fn pidfd(&self, socket: &impl AsFd) -> std::io::Result<Option<OwnedFd>> {
        match exact_pidfd(socket)? {
            Some(pidfd) => Ok(Some(pidfd)),
            None => Ok(self.pid.map(process::open).transpose()?),
        }
    }

    /// Whether the process is known to have ended, from Linux 6.5 on: others may still hold its socket.
    pub(crate) fn is_dead(socket: &impl AsFd) -> bool {
        match exact_pidfd(socket) {
            Ok(Some(pidfd)) => process::is_dead(&pidfd),
            Ok(None) => false,
            // How kernels refuse a pidfd of a process that is gone.
            Err(error) => matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL)),
        }
    }
}

/// `SO_PEERPIDFD`, where the kernel has it.
fn exact_pidfd(socket: &impl AsFd) -> std::io::Result<Option<OwnedFd>> {
    match option::<RawFd>(socket, libc::SO_PEERPIDFD) {
        // SAFETY: unix(7) and the kernel's `sk_getsockopt`: the option's value is a descriptor that was made for this call, and is nobody else's.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Types all of whose bits mean something.
trait Plain: Copy {}
impl Plain for libc::ucred {}
impl Plain for RawFd {}

/// `getsockopt(2)` at the level of sockets.
fn option<T: Plain>(socket: &impl AsFd, name: libc::c_int) -> std::io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: a descriptor that is open as long as `socket` is borrowed; room for `len` bytes, which is what `value` has.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, value.as_mut_ptr().cast(), &mut len) };
    if result != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: zeroed above, and filled as far as the kernel has written; by `Plain`, any bits are a value.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&socket).unwrap();
        assert_eq!((peer.pid, peer.uid), (Some(std::process::id()), rustix::process::geteuid().as_raw()));
        let pidfd = peer.pidfd(&socket).unwrap().unwrap();
        assert!(!process::is_dead(&pidfd) && !Peer::is_dead(&socket));
    }
}

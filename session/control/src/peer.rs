//! The process at the other end of a connection, by a descriptor that is of no other.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use dormouse_transport::Peer;

use crate::process;

/// A pidfd of the process at the other end, also of one that cannot be seen.
///
/// Before Linux 6.5 it is found by its id, which another process may have by now; `None` then for one that cannot be seen.
pub fn pidfd(socket: &OwnedFd, peer: &Peer) -> std::io::Result<Option<OwnedFd>> {
    match exact_pidfd(socket)? {
        Some(pidfd) => Ok(Some(pidfd)),
        None => Ok(process_id(peer).map(process::open).transpose()?),
    }
}

/// The process id of a peer that can be seen.
pub fn process_id(peer: &Peer) -> Option<u32> {
    peer.pid.map(|pid| pid.as_raw_nonzero().get().unsigned_abs())
}

/// Whether the process is known to have ended, from Linux 6.5 on: others may still hold its socket.
pub fn is_dead(socket: &impl AsFd) -> bool {
    match exact_pidfd(socket) {
        Ok(Some(pidfd)) => process::is_dead(&pidfd),
        Ok(None) => false,
        // How kernels refuse a pidfd of a process that is gone.
        Err(error) => matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL)),
    }
}

/// `SO_PEERPIDFD`, where the kernel has it.
fn exact_pidfd(socket: &impl AsFd) -> std::io::Result<Option<OwnedFd>> {
    let mut value: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    let (fd, level) = (socket.as_fd().as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: getsockopt(2): a descriptor that is open as long as `socket` is borrowed, and `len` says how much room there is.
    let result = unsafe { libc::getsockopt(fd, level, libc::SO_PEERPIDFD, (&raw mut value).cast(), &raw mut len) };
    if result == 0 {
        // SAFETY: the kernel's `sk_getsockopt`: the option's value is a descriptor that was made for this call, and is nobody else's.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(value) }));
    }
    let error = std::io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOPROTOOPT) { Ok(None) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let socket = OwnedFd::from(socket);
        let peer = Peer::of(&socket).unwrap();
        assert_eq!(process_id(&peer), Some(std::process::id()));
        let pidfd = pidfd(&socket, &peer).unwrap().unwrap();
        assert!(!process::is_dead(&pidfd) && !is_dead(&socket));
    }
}

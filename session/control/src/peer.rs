//! The process at the other end of a connection, by a descriptor that cannot refer to another process.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use dormouse_transport::Peer;

use crate::process;

/// Returns a pidfd of the process at the other end, even of one that is not visible.
///
/// Before Linux 6.5 the process is found by its id, which another process may have by now; `None` then if it is not
/// visible.
pub fn pidfd(socket: &OwnedFd, peer: &Peer) -> std::io::Result<Option<OwnedFd>> {
    match exact_pidfd(socket)? {
        Some(pidfd) => Ok(Some(pidfd)),
        None => Ok(process_id(peer).map(process::open).transpose()?),
    }
}

/// Returns the process id of a peer, if it is visible.
pub fn process_id(peer: &Peer) -> Option<u32> {
    peer.pid.map(|pid| pid.as_raw_nonzero().get().unsigned_abs())
}

/// Whether the process is known to have ended (from Linux 6.5 on): other processes may still hold its socket.
pub fn is_dead(socket: &impl AsFd) -> bool {
    match exact_pidfd(socket) {
        Ok(Some(pidfd)) => process::is_dead(&pidfd),
        Ok(None) => false,
        // Errors by which kernels refuse a pidfd of a process that has ended.
        Err(error) => matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL)),
    }
}

/// Returns the value of `SO_PEERPIDFD`, or `None` if the kernel does not have it.
fn exact_pidfd(socket: &impl AsFd) -> std::io::Result<Option<OwnedFd>> {
    let mut value: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    let (fd, level) = (socket.as_fd().as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: getsockopt(2): the descriptor is open as long as `socket` is borrowed. `value` and `len` are live
    // variables, and `len` is the size of `value` in bytes.
    let result = unsafe { libc::getsockopt(fd, level, libc::SO_PEERPIDFD, (&raw mut value).cast(), &raw mut len) };
    if result == 0 {
        // SAFETY: by the kernel's `sk_getsockopt`, the option's value is a descriptor that was made for this call and
        // has no other owner.
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

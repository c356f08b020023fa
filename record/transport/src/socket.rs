//! Connecting to a socket.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::deadline::Deadline;
use crate::error::Error;

fn socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None)
}

/// Connects, and waits for room in the listener's backlog.
///
/// # Errors
/// [`Error`]
pub fn connect(path: &Path, deadline: &Deadline<'_>) -> Result<OwnedFd, Error> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket(SocketFlags::empty())?;
    let connected = deadline.spend(|left| {
        set_socket_timeout(&socket, Timeout::Send, Some(left))?;
        rustix::net::connect(&socket, &address)
    });
    match connected {
        Ok(()) => Ok(socket),
        // The kernel's error when the time has passed.
        Err(Error::System(Errno::AGAIN)) => Err(Error::TimedOut),
        Err(error) => Err(error),
    }
}

/// Connects if there is room in the listener's backlog; otherwise the error is `AGAIN`. The socket is non-blocking.
///
/// Wait-free except for the kernel; async-signal-safe for a path of at most 107 bytes; preserves errno.
///
/// # Errors
/// The error of connect(2).
pub fn try_connect(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket(SocketFlags::NONBLOCK)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// Whether a process listens at this socket, though it may not answer soon. Wait-free except for the kernel.
pub fn is_answered(path: &Path) -> bool {
    matches!(try_connect(path), Ok(_) | Err(Errno::AGAIN))
}

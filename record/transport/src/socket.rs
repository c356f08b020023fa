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
        // What the kernel says when the time was over.
        Err(Error::System(Errno::AGAIN)) => Err(Error::TimedOut),
        Err(error) => Err(error),
    }
}

/// Connects if there is room in the listener's backlog; otherwise the error is `AGAIN`. Nothing that is done with the socket waits.
///
/// Wait-free but for the kernel; async-signal-safe for a path of at most 107 bytes; leaves errno as it is.
///
/// # Errors
/// What connect(2) says.
pub fn try_connect(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket(SocketFlags::NONBLOCK)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// Whether somebody listens at this socket, though perhaps without answering soon. Wait-free but for the kernel.
pub fn is_answered(path: &Path) -> bool {
    matches!(try_connect(path), Ok(_) | Err(Errno::AGAIN))
}

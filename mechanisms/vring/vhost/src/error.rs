use std::io;
use std::path::PathBuf;

use dormouse_backing::BackingError;
use dormouse_vring::RingError;
use rustix::io::Errno;

/// Why a device cannot be driven or served, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody listens on the socket.
    #[error("cannot connect to {}: {error}; start the device first, it makes the socket", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// The socket cannot be made.
    #[error("cannot listen on {}: {error}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// The other side refused a message, or what it said is wrong.
    #[error("cannot {purpose}: {error}; is it a vhost-user device of the right kind?")]
    Protocol {
        /// What the message was for.
        purpose: &'static str,
        /// What went wrong.
        error: vhost::Error,
    },
    /// The other side does not answer.
    #[error("the device does not answer; is it stopped, or in use by somebody else?")]
    Silent,
    /// The device is no block device, or lacks a feature that is needed.
    #[error("the device offers no {feature}{remedy}")]
    NotOffered {
        /// What is missing.
        feature: &'static str,
        /// What to do, or nothing.
        remedy: &'static str,
    },
    /// The device has fewer queues.
    #[error("{wanted} queues are wanted and the device has {offered}; choose --queues {offered}")]
    Queues {
        /// Queues asked for.
        wanted: u16,
        /// Queues that there are.
        offered: u64,
    },
    /// Something that was asked for is out of range.
    #[error("{0}")]
    Options(String),
    /// The machine or the control group does not have enough memory.
    #[error("there is no memory for {wanted_bytes} bytes of buffers; choose a smaller --depth, --queues or --size")]
    Memory {
        /// Bytes of it.
        wanted_bytes: u64,
    },
    /// The memory cannot be shared.
    #[error(transparent)]
    Backing(BackingError),
    /// The other side closed the connection, or ended.
    #[error("the device is gone; start it again")]
    Gone,
    /// The device that came back is a different one: smaller, or with fewer features.
    #[error("the device came back with {0}; its requests cannot be repeated")]
    Changed(&'static str),
    /// All of the queue's requests are in flight: complete some first.
    #[error("the queue is full; complete requests first")]
    Full,
    /// A request that the device cannot take.
    #[error("a request of {len} bytes at sector {sector}: {reason}")]
    Request {
        /// Where it begins, in sectors of 512 bytes.
        sector: u64,
        /// Its bytes.
        len: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The other side has damaged the ring.
    #[error("the other side broke the queue: {0}")]
    Ring(#[from] RingError),
    /// The kernel refused a call.
    #[error("cannot {purpose}: {error}")]
    System {
        /// What it was to do.
        purpose: &'static str,
        /// What it said.
        error: io::Error,
    },
}

impl Error {
    /// For `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(purpose: &'static str) -> impl Fn(E) -> Error {
        move |error| Error::System { purpose, error: error.into() }
    }

    /// For `map_err`: distinguishes the end of the connection from an error on it.
    pub(crate) fn protocol(purpose: &'static str) -> impl Fn(vhost::Error) -> Error {
        use vhost::vhost_user::Error as Message;
        move |error| match error {
            vhost::Error::VhostUserProtocol(Message::Disconnected | Message::SocketBroken(_)) => Error::Gone,
            error => Error::Protocol { purpose, error },
        }
    }

    /// Memory for buffers, which the command sizes by options of its own.
    pub(crate) fn memory(wanted_bytes: usize) -> impl Fn(BackingError) -> Error {
        move |error| match error {
            BackingError::NotEnough { .. }
            | BackingError::Size { .. }
            | BackingError::System { errno: Errno::NOMEM | Errno::NOSPC | Errno::FAULT, .. } => {
                Error::Memory { wanted_bytes: wanted_bytes as u64 }
            }
            error => Error::Backing(error),
        }
    }
}

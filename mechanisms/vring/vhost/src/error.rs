use std::io;
use std::path::PathBuf;

use dormouse_backing::BackingError;
use dormouse_vring::RingError;
use rustix::io::Errno;

/// An error of a device or driver, with a remedy in its message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No process listens on the socket.
    #[error("cannot connect to {}: {error}; start the device first, which creates the socket", path.display())]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The socket cannot be created.
    #[error("cannot listen on {}: {error}", path.display())]
    Listen {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The other side refused a message, or sent an invalid one.
    #[error("cannot {purpose}: {error}; check that it is a vhost-user device of the right kind")]
    Protocol {
        /// Purpose of the message.
        purpose: &'static str,
        /// Error of the protocol.
        error: vhost::Error,
    },
    /// The other side does not answer.
    #[error("the device does not answer; check whether it is stopped, or in use by another program")]
    Silent,
    /// The device is not a block device, or lacks a feature that is needed.
    #[error("the device does not offer {feature}{remedy}")]
    NotOffered {
        /// Name of the missing feature.
        feature: &'static str,
        /// Advice that follows the message; may be empty.
        remedy: &'static str,
    },
    /// The device has fewer queues than requested.
    #[error("the device has {offered} queues, not {wanted}; choose --queues {offered}")]
    Queues {
        /// Number of queues requested.
        wanted: u16,
        /// Number of queues that the device has.
        offered: u64,
    },
    /// An option is out of range.
    #[error("{0}")]
    Options(String),
    /// The machine or the control group does not have enough memory.
    #[error("there is no memory for {wanted_bytes} bytes of buffers; choose a smaller --depth, --queues or --size")]
    Memory {
        /// Number of bytes requested.
        wanted_bytes: u64,
    },
    /// The memory cannot be shared.
    #[error(transparent)]
    Backing(BackingError),
    /// The other side closed the connection, or ended.
    #[error("the device has ended; start it again")]
    Gone,
    /// The device that came back is a different one: smaller, or with fewer features.
    #[error("the restarted device has {0}; its requests cannot be repeated")]
    Changed(&'static str),
    /// All of the queue's requests are in flight: complete some first.
    #[error("the queue is full; complete requests first")]
    Full,
    /// A request that the device cannot take.
    #[error("a request of {len} bytes at sector {sector}: {reason}")]
    Request {
        /// First sector of the request, in sectors of 512 bytes.
        sector: u64,
        /// Length of the request, in bytes.
        len: u64,
        /// Description of the error.
        reason: &'static str,
    },
    /// The other side has damaged the ring.
    #[error("the other side violated the queue's protocol: {0}")]
    Ring(#[from] RingError),
    /// The kernel refused a call.
    #[error("cannot {purpose}: {error}")]
    System {
        /// Purpose of the call.
        purpose: &'static str,
        /// Error of the kernel.
        error: io::Error,
    },
}

impl Error {
    /// Wraps an error of the kernel, for `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(purpose: &'static str) -> impl Fn(E) -> Error {
        move |error| Error::System { purpose, error: error.into() }
    }

    /// Wraps an error of the protocol, for `map_err`. Distinguishes the end of the connection from an error on it.
    pub(crate) fn protocol(purpose: &'static str) -> impl Fn(vhost::Error) -> Error {
        use vhost::vhost_user::Error as Message;
        move |error| match error {
            vhost::Error::VhostUserProtocol(Message::Disconnected | Message::SocketBroken(_)) => Error::Gone,
            error => Error::Protocol { purpose, error },
        }
    }

    /// Wraps an error of allocating buffers, for `map_err`. The command has options that change their size.
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

//! What can go wrong in a conversation.

use core::fmt;

use dormouse_abi::message::{Malformed, Mismatch};
use rustix::io::Errno;

/// Why a conversation ended early. In one line, and not in libc's words: for these it may load a translation and a converter of character
/// sets, and so call the loader, under a lock of the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// The deadline has passed.
    TimedOut,
    /// The peer has closed the connection.
    Closed,
    /// The peer's answer is none.
    Malformed(Malformed),
    /// The peer is something else, or of another version.
    Mismatch(Mismatch),
    /// Descriptors came that belong to no message, or more than there is room for.
    Descriptors,
    /// A message is longer than its reader takes.
    TooLong,
    /// What the kernel says.
    System(Errno),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::TimedOut => f.write_str("no answer in time"),
            Error::Closed => f.write_str("the connection was closed without an answer"),
            Error::Malformed(malformed) => malformed.fmt(f),
            Error::Mismatch(mismatch) => mismatch.fmt(f),
            Error::Descriptors => f.write_str("the peer sent descriptors that were not asked for"),
            Error::TooLong => f.write_str("the message is longer than its reader takes"),
            Error::System(errno) => {
                let kind = std::io::Error::from(*errno).kind();
                write!(f, "{kind} (os error {})", errno.raw_os_error())
            }
        }
    }
}

impl core::error::Error for Error {}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::System(errno)
    }
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Error {
        Error::Malformed(malformed)
    }
}

impl From<Mismatch> for Error {
    fn from(mismatch: Mismatch) -> Error {
        Error::Mismatch(mismatch)
    }
}

//! Errors of a conversation.

use core::fmt;

use dormouse_abi::message::{Malformed, Mismatch};
use rustix::io::Errno;

/// Reason why a conversation ended early. Shown in one line, and not in libc's text, for which libc may load a
/// translation and a character set converter, and so call the loader while the caller holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// The deadline has passed.
    TimedOut,
    /// The peer has closed the connection.
    Closed,
    /// The peer's message is not valid.
    Malformed(Malformed),
    /// The peer is not Dormouse, or has another version.
    Mismatch(Mismatch),
    /// Descriptors arrived that belong to no message, or more than there is room for.
    Descriptors,
    /// A message is longer than its reader accepts.
    TooLong,
    /// Error of a system call.
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

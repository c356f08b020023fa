//! Why there is no session.

use std::path::PathBuf;

use dormouse_backing::BackingError;

use crate::options::OptionsError;
use crate::trace::TraceError;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The options cannot be met.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The memory is not to be had.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The memory cannot be where it was wanted.
    #[error("cannot put the buffers into {path}: {error}")]
    Buffers {
        /// Where.
        path: PathBuf,
        /// Why.
        error: BackingError,
    },
    /// The trace cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The socket cannot be made.
    #[error("cannot make the session's socket {path}: {error}; set XDG_RUNTIME_DIR to a directory of your own")]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A thread cannot be made.
    #[error("cannot start a thread: {0}; is the limit of processes (ulimit -u) reached?")]
    Thread(std::io::Error),
    /// Something else that the system refused.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
}

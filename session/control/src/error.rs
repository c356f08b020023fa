//! Errors of sockets, of their directories, and of the thread that serves a session's socket.

use std::path::PathBuf;

use dormouse_transport::Error as Failure;
use rustix::io::Errno;

/// Why a session's socket, or a directory or file that it needs, cannot be used. Shown in one line, with the remedy if
/// there is one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory of sockets cannot be used.
    #[error("cannot use the directory of sockets {}: {problem}", path.display())]
    Directory {
        /// Its path.
        path: PathBuf,
        /// The reason.
        problem: Problem,
    },
    /// The calling user's directory of sockets cannot be made.
    #[error("cannot make the session's socket in {}: {problem}; set XDG_RUNTIME_DIR to a directory of your own", path.display())]
    OwnDirectory {
        /// Its path.
        path: PathBuf,
        /// The reason.
        problem: Problem,
    },
    /// A file in the calling user's directory cannot be used.
    #[error("cannot use {}: {problem}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The reason.
        problem: Problem,
    },
    /// A session's socket cannot be made.
    #[error("cannot make the session's socket {}: {error}; set XDG_RUNTIME_DIR to a directory of your own", path.display())]
    Listen {
        /// Its path.
        path: PathBuf,
        /// The reason.
        error: std::io::Error,
    },
    /// The path of an inherited socket has no directory or no name.
    #[error("the session's socket has no name")]
    Unnamed,
    /// All names of sockets of this process are taken.
    #[error("there are too many sessions")]
    TooManySessions,
    /// The event loop cannot be set up.
    #[error("cannot serve the session's socket: {0}")]
    Serve(Errno),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}; is the limit of processes (ulimit -u) reached?")]
    Thread(std::io::Error),
}

/// The fault of a directory of sockets, or of a file in it.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A component of the directory's path is a symbolic link.
    #[error("it, or what leads to it, is a symbolic link")]
    LinkOnTheWay,
    /// The directory belongs to another user.
    #[error(
        "user {owner} has made it; remove it as that user or as root, or set XDG_RUNTIME_DIR to a directory of user {user}"
    )]
    OfOtherUser {
        /// The user to whom it belongs.
        owner: u32,
        /// The user for whom it was opened.
        user: u32,
    },
    /// Other users may write to the directory.
    #[error("others may write to it; `chmod go-w` mends that")]
    OpenToOthers,
    /// The directory was removed after it was made.
    #[error("it is gone")]
    Gone,
    /// The directory belongs to root, and the calling user is another.
    #[error("it is root's")]
    OfRoot,
    /// The file is a symbolic link.
    #[error("it is a symbolic link; remove it")]
    Link,
    /// The file is not a regular file of this user alone.
    #[error("it is no file that this user alone can read and write; remove it")]
    NotPrivate,
    /// The file has another size.
    #[error("it is of another size than Dormouse makes it; remove it")]
    OtherSize,
    /// Error of a system call.
    #[error("{0}")]
    System(std::io::Error),
}

impl From<Errno> for Problem {
    fn from(errno: Errno) -> Problem {
        Problem::System(errno.into())
    }
}

/// Why a socket was not connected to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The name has a slash.
    #[error("it is no name")]
    NotAName,
    /// The file is not a socket.
    #[error("it is no socket")]
    NotASocket,
    /// The socket belongs to this user, who is none of those allowed.
    #[error("it belongs to user {0}")]
    OfUser(u32),
    /// Other users may connect to the socket.
    #[error("others may connect to it")]
    OpenToOthers,
    /// The process that listens there is not the one that was looked for, in one line.
    #[error("{0}")]
    OtherListener(String),
    /// It belongs to another process, which has the same id in another PID namespace.
    #[error("it is another process's, with the same id in another PID namespace")]
    Namesake,
    /// The transport failed.
    #[error("{0}")]
    Failed(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal::Failed(failure)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal::Failed(Failure::System(errno))
    }
}

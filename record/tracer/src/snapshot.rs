//! Snapshots that the program itself asks for.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use dormouse_abi::message::{Edge, OwnerToProgram, Preamble, ProgramToOwner, SnapshotRequest};
use dormouse_transport::{Conversation, Deadline, Outgoing, try_connect};
use rustix::net::SendFlags;

use crate::{join, session, thread};

/// How long an owner may take to write a snapshot.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A snapshot to ask for: what the session's flight recorder (`--mode overwrite`) holds, of all programs in it.
///
/// ```no_run
/// use std::time::Duration;
///
/// let taken = dormouse::Snapshot::new().last(Duration::from_secs(5)).dir("/tmp/slow-request").take()?;
/// eprintln!("{} events in {}", taken.events, taken.dir.display());
/// # Ok::<(), dormouse::SnapshotError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    dir: Option<PathBuf>,
    last: Option<Duration>,
    bytes_max: Option<u64>,
}

/// What a snapshot came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The trace.
    pub dir: PathBuf,
    /// Events in it.
    pub events: u64,
    /// Bytes of its streams.
    pub bytes: u64,
    /// From its oldest event to the snapshot.
    pub span: Duration,
    /// Pages that were overwritten before they could be copied.
    pub pages_missed: u64,
}

/// Why there is no snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotError {
    /// The program is in no session.
    NoSession,
    /// The session's owner could not be asked, or refused; in its words.
    Refused(String),
}

impl core::fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SnapshotError::NoSession => {
                f.write_str("the program is in no session; `dormouse record --mode overwrite -- CMD` starts one")
            }
            SnapshotError::Refused(text) => f.write_str(text),
        }
    }
}

impl core::error::Error for SnapshotError {}

/// Takes a snapshot of everything that is retained, into a fresh directory beside the session's. See [`Snapshot::take`].
///
/// # Errors
/// See [`SnapshotError`].
pub fn snapshot() -> Result<Taken, SnapshotError> {
    Snapshot::new().take()
}

impl Snapshot {
    /// Of everything that is retained, into a fresh directory beside the session's.
    pub fn new() -> Snapshot {
        Snapshot::default()
    }

    /// Into this directory, which must not exist or be empty. A relative one is taken from the program's current directory.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Snapshot {
        self.dir = Some(dir.into());
        self
    }

    /// Leaves out events that are older.
    pub fn last(mut self, last: Duration) -> Snapshot {
        self.last = Some(last);
        self
    }

    /// Takes the newest pages up to so many bytes. Goes before [`Snapshot::last`].
    pub fn bytes_max(mut self, bytes: u64) -> Snapshot {
        self.bytes_max = Some(bytes);
        self
    }

    fn question(&self, trigger: &str) -> ProgramToOwner {
        // Where there is no current directory, the owner refuses a relative one.
        let dir = self.dir.as_ref().map(|dir| std::path::absolute(dir).unwrap_or_else(|_| dir.clone()));
        let request = SnapshotRequest {
            dir: dir.map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default(),
            last_ns: self.last.map_or(0, |last| (last.as_nanos().min(u64::MAX.into()) as u64).max(1)),
            bytes_max: self.bytes_max.map_or(0, |bytes| bytes.max(1)),
            trigger: trigger.into(),
        };
        ProgramToOwner::Snapshot { request }
    }

    /// Asks the session's owner, and waits until the trace is complete. Blocking; not async-signal-safe.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub fn take(&self) -> Result<Taken, SnapshotError> {
        let _inside = thread::enter_tracer();
        let session = session::current().ok_or(SnapshotError::NoSession)?;
        let conversation = Conversation::connect(&session.socket, Edge::ProgramOwner, Deadline::after(PATIENCE));
        let answer = join::ask(&session.socket, conversation, &self.question("program"));
        let (answer, _) = answer.map_err(SnapshotError::Refused)?;
        match answer {
            OwnerToProgram::Snapshotted { snapshot } => Ok(Taken {
                dir: snapshot.dir.into(),
                events: snapshot.events,
                bytes: snapshot.bytes,
                span: Duration::from_nanos(snapshot.span_ns),
                pages_missed: snapshot.pages_missed,
            }),
            answer => Err(SnapshotError::Refused(join::refusal(answer))),
        }
    }

    /// A request that can be sent from a signal handler. `trigger` is for the trace.
    pub fn prepare(&self, trigger: &str) -> Prepared {
        let mut outgoing = Outgoing::preamble(Preamble::of(Edge::ProgramOwner));
        // A request is always short enough: its texts are cut.
        let _ = outgoing.add(&self.question(trigger));
        Prepared { bytes: outgoing.bytes().into() }
    }
}

/// A request for a snapshot, ready to be sent.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// All that is sent: preamble and frame.
    bytes: Box<[u8]>,
}

impl Prepared {
    /// Sends it to the owner of the session that the process is in, and does not wait for the snapshot: the session's memory
    /// outlives the program. Returns whether it was sent.
    ///
    /// Wait-free but for the kernel; async-signal-safe; leaves errno as it is.
    pub fn request(&self) -> bool {
        self.send().is_ok()
    }

    /// The same, and gives the socket on which the answer will come. Where the owner has too much to do, the error is `AGAIN`.
    pub(crate) fn send(&self) -> rustix::io::Result<OwnedFd> {
        // rustix reaches the kernel past libc, and errno with it.
        let session = session::current().ok_or(rustix::io::Errno::NOTCONN)?;
        // A path of a session's socket is short, so no memory is allocated for it.
        let socket = try_connect(&session.socket)?;
        // The socket's buffer holds as much as this whole.
        let len = rustix::net::send(&socket, &self.bytes, SendFlags::NOSIGNAL)?;
        if len == self.bytes.len() { Ok(socket) } else { Err(rustix::io::Errno::MSGSIZE) }
    }
}

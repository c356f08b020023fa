//! Snapshots that the program itself requests.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use dormouse_abi::message::{Edge, OwnerToProgram, Preamble, ProgramToOwner, SnapshotRequest};
use dormouse_transport::{Conversation, Deadline, Outgoing, try_connect};
use rustix::net::SendFlags;

use crate::{join, session, thread};

/// Maximum time for an owner to write a snapshot.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A request for a snapshot of all events that the session's flight recorder (`--mode overwrite`) retains, of all
/// programs in the session.
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

/// A snapshot that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenSnapshot {
    /// Directory of the trace.
    pub dir: PathBuf,
    /// Number of events in it.
    pub events: u64,
    /// Size of its streams, in bytes.
    pub bytes: u64,
    /// Time from its oldest event to the snapshot.
    pub span: Duration,
    /// Number of pages that were overwritten before they could be copied.
    pub pages_missed: u64,
}

/// Reason why there is no snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotError {
    /// The program is in no session.
    NoSession,
    /// The session's owner could not be asked, or refused. Contains its message.
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

/// Takes a snapshot of all retained events, into a fresh directory beside the session's. See [`Snapshot::take`].
///
/// # Errors
/// See [`SnapshotError`].
pub fn snapshot() -> Result<TakenSnapshot, SnapshotError> {
    Snapshot::new().take()
}

impl Snapshot {
    /// Returns a request for all retained events, into a fresh directory beside the session's.
    pub fn new() -> Snapshot {
        Snapshot::default()
    }

    /// Sets the directory, which must be empty or not exist. A relative path is resolved in the program's current
    /// directory.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Snapshot {
        self.dir = Some(dir.into());
        self
    }

    /// Leaves out events that are older than this.
    pub fn last(mut self, last: Duration) -> Snapshot {
        self.last = Some(last);
        self
    }

    /// Limits the snapshot to the newest pages of up to this many bytes. Applied before [`Snapshot::last`].
    pub fn bytes_max(mut self, bytes: u64) -> Snapshot {
        self.bytes_max = Some(bytes);
        self
    }

    fn question(&self, trigger: &str) -> ProgramToOwner {
        // If there is no current directory, the owner refuses a relative one.
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
    pub fn take(&self) -> Result<TakenSnapshot, SnapshotError> {
        let _inside = thread::enter_tracer();
        let session = session::flight_recorder().ok_or(SnapshotError::NoSession)?;
        let conversation = Conversation::connect(&session.socket, Edge::ProgramOwner, Deadline::after(PATIENCE));
        let answer = join::ask(&session.socket, conversation, &self.question("program"));
        let (answer, _) = answer.map_err(SnapshotError::Refused)?;
        match answer {
            OwnerToProgram::Snapshotted { snapshot } => Ok(TakenSnapshot {
                dir: snapshot.dir.into(),
                events: snapshot.events,
                bytes: snapshot.bytes,
                span: Duration::from_nanos(snapshot.span_ns),
                pages_missed: snapshot.pages_missed,
            }),
            answer => Err(SnapshotError::Refused(join::refusal(answer))),
        }
    }

    /// Returns a request that can be sent from a signal handler. `trigger` is recorded in the trace.
    pub fn prepare(&self, trigger: &str) -> PreparedRequest {
        let mut outgoing = Outgoing::preamble(Preamble::of(Edge::ProgramOwner));
        // A request always fits, because its texts are cut.
        let _ = outgoing.add(&self.question(trigger));
        PreparedRequest { bytes: outgoing.bytes().into() }
    }
}

/// A snapshot request that is ready to send.
#[derive(Debug, Clone)]
pub struct PreparedRequest {
    /// All bytes to send: preamble and frame.
    bytes: Box<[u8]>,
}

impl PreparedRequest {
    /// Sends the request to the owner of the first session in overwrite mode, or else of the first session. Does not wait
    /// for the snapshot, because the session's memory outlives the program. Returns whether the request was sent.
    ///
    /// Wait-free except for the kernel; async-signal-safe; preserves errno.
    pub fn request(&self) -> bool {
        self.send().is_ok()
    }

    /// Sends the request, and returns the socket on which the answer will arrive. The error is `AGAIN` if too many
    /// requests wait for the owner.
    pub(crate) fn send(&self) -> rustix::io::Result<OwnedFd> {
        // rustix calls the kernel directly, so errno does not change.
        let session = session::flight_recorder().ok_or(rustix::io::Errno::NOTCONN)?;
        // The path of a session's socket is short, so no memory is allocated for it.
        let socket = try_connect(&session.socket)?;
        // The socket's buffer has room for the whole request.
        let len = rustix::net::send(&socket, &self.bytes, SendFlags::NOSIGNAL)?;
        if len == self.bytes.len() { Ok(socket) } else { Err(rustix::io::Errno::MSGSIZE) }
    }
}

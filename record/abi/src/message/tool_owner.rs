//! A tool and a session's owner.

use alloc::string::String;

use super::codec::{Codec, Line, Lines, Malformed, structures};
use super::frame::{Question, messages};
use super::snapshot::{Snapshot, SnapshotRequest};

/// A session's memory, in bytes of whole pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetState {
    /// Bytes of a page.
    pub page_size_bytes: u32,
    /// Streams that were ever written to.
    pub streams: u32,
    /// The budget.
    pub bytes: u64,
    /// What it may grow to.
    pub bytes_max: u64,
    /// Additional memory that exists while snapshots are taken.
    pub room: u64,
    /// Pages that are free.
    pub free: u64,
    /// Pages that are written to, or are about to be.
    pub drawn: u64,
    /// Pages that are closed: on their way to the trace, or retained.
    pub queued: u64,
    /// Pages that are beyond the budget now, and still in use.
    pub beyond: u64,
    /// Whether closed pages are retained.
    pub is_overwrite: bool,
}

/// What a session has of everything that is bounded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Process id of the owner, as it sees it itself.
    pub owner: u32,
    /// How often it was started again.
    pub owner_restarts: u64,
    /// The trace's directory.
    pub dir: String,
    /// Descriptors that the owner has open.
    pub descriptors: u64,
    /// Descriptors that it may open.
    pub descriptors_max: u64,
    /// Processes in the session.
    pub processes: u32,
    /// Processes that there may be at once.
    pub processes_max: u32,
    /// Processes that have joined so far.
    pub processes_joined: u64,
    /// Programs that asked to join and were refused.
    pub programs_refused: u64,
    /// Connections that are being served.
    pub clients: u32,
    /// Connections that may be served at once.
    pub clients_max: u32,
    /// Connections that were ended because they were slow.
    pub clients_dropped: u64,
    /// Event classes.
    pub classes: u32,
    /// Event classes that a trace can have.
    pub classes_max: u32,
    /// Event classes that were refused, as many as are named.
    pub classes_refused: u32,
    /// Snapshots that were written.
    pub snapshots_taken: u64,
    /// Snapshots that were refused because there were too many.
    pub snapshots_refused: u64,
    /// Bytes on disk of the trace.
    pub disk_bytes: u64,
    /// Bytes that it may have; 0: as many as the disk has.
    pub disk_bytes_max: u64,
    /// Bytes on disk of all live sessions of the user that have a maximum together, with what each keeps for its state; 0: this one has none.
    pub disk_bytes_user: u64,
    /// Bytes that these may have; 0: this session has no such maximum.
    pub disk_bytes_user_max: u64,
}

structures! {
    Status {
        owner: u32, owner_restarts: u64, dir: Line<4096>, descriptors: u64, descriptors_max: u64, processes: u32, processes_max: u32, processes_joined: u64,
        programs_refused: u64, clients: u32, clients_max: u32, clients_dropped: u64, classes: u32, classes_max: u32, classes_refused: u32,
        snapshots_taken: u64, snapshots_refused: u64, disk_bytes: u64, disk_bytes_max: u64, disk_bytes_user: u64,
        disk_bytes_user_max: u64,
    }
    BudgetState {
        page_size_bytes: u32, streams: u32, bytes: u64, bytes_max: u64, room: u64, free: u64, drawn: u64, queued: u64, beyond: u64,
        is_overwrite: bool,
    }
}

messages! {
    /// What a tool asks a session's owner.
    ToolOwner, ToolToOwner {
        /// Of a session of attached programs: ends it. The answer is [`OwnerToTool::Stopped`] once the trace is complete.
        1, 4 => Stop {
            /// A process that is in the session. Another session's owner refuses: it was named by somebody who is not believed.
            pid: u32,
        },
        /// Of a session in overwrite mode: writes what is retained as a trace of its own. The answer is [`OwnerToTool::Snapshotted`] once it
        /// is complete.
        2, 8 << 10 => Snapshot {
            /// Which.
            request: SnapshotRequest,
        },
        /// Sets the session's memory budget while it is live, or asks for it. The answer is [`OwnerToTool::BudgetIs`].
        3, 8 => Budget {
            /// Bytes of all pages. Zero: do not change it.
            bytes: u64,
        },
        /// Asks how much of everything there is, and how much there may be. The answer is [`OwnerToTool::StatusIs`].
        4, 0 => Status,
    }
}

messages! {
    /// What a session's owner answers a tool.
    ToolOwner, OwnerToTool {
        /// The session has ended.
        1, 64 << 10 => Stopped {
            /// What `record` prints at its end.
            summary: String as Lines<32768>,
        },
        /// The snapshot is complete.
        2, 8 << 10 => Snapshotted {
            /// The new trace.
            snapshot: Snapshot,
        },
        /// What is where.
        3, 128 => BudgetIs {
            /// The session's memory.
            state: BudgetState,
        },
        /// How much of everything there is.
        5, 8 << 10 => StatusIs {
            /// The session's.
            status: Status,
        },
        /// One line that says what is wrong.
        4, 8 << 10 => Error {
            /// The line.
            text: String as Line<4096>,
        },
    }
}

impl Question for ToolToOwner {
    type Answer = OwnerToTool;
}

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

structures! {
    BudgetState {
        page_size_bytes: u32, streams: u32, bytes: u64, bytes_max: u64, room: u64, free: u64, drawn: u64, queued: u64, beyond: u64,
        is_overwrite: bool,
    }
}

messages! {
    /// What a tool asks a session's owner.
    ToolOwner, ToolToOwner {
        /// Of a session of attached programs: ends it. The answer is [`OwnerToTool::Stopped`] once the trace is complete.
        1, 0 => Stop,
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

//! Messages between a tool and a session's owner.

use alloc::string::String;
use alloc::vec::Vec;

use super::codec::{Codec, Line, Lines, List, Malformed, structures};
use super::frame::{Question, messages};
use super::snapshot::{Snapshot, SnapshotRequest};
use crate::rule::{RULE_COUNT_MAX, RULES_SIZE_BYTES_MAX};

/// State of a session's memory. Sizes are in bytes of whole pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetState {
    /// Size of a page, in bytes.
    pub page_size_bytes: u32,
    /// Number of streams that were ever written to.
    pub streams: u32,
    /// The budget, in bytes.
    pub bytes: u64,
    /// Maximum that the budget may grow to, in bytes.
    pub bytes_max: u64,
    /// Additional memory that exists while snapshots are taken, in bytes.
    pub room: u64,
    /// Number of pages that are free.
    pub free: u64,
    /// Number of pages that are being written, or are drawn ahead.
    pub drawn: u64,
    /// Number of pages that are closed: waiting to be written to the trace, or retained.
    pub queued: u64,
    /// Number of pages that are beyond the budget now, and still in use.
    pub beyond: u64,
    /// Whether closed pages are retained.
    pub is_overwrite: bool,
}

/// Usage and limits of a session's resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Process id of the owner, in its own namespace.
    pub owner: u32,
    /// Number of times that the owner was started again.
    pub owner_restarts: u64,
    /// Directory of the trace.
    pub dir: String,
    /// Number of descriptors that the owner has open.
    pub descriptors: u64,
    /// Maximum number of descriptors that it may open.
    pub descriptors_max: u64,
    /// Number of processes in the session.
    pub processes: u32,
    /// Maximum number of processes at once.
    pub processes_max: u32,
    /// Number of processes that have joined so far.
    pub processes_joined: u64,
    /// Number of programs that asked to join and were refused.
    pub programs_refused: u64,
    /// Number of connections that are being served.
    pub clients: u32,
    /// Maximum number of connections served at once.
    pub clients_max: u32,
    /// Number of connections that were ended because they were slow.
    pub clients_dropped: u64,
    /// Number of event classes.
    pub classes: u32,
    /// Maximum number of event classes in a trace.
    pub classes_max: u32,
    /// Number of event classes that were refused and are named in the trace.
    pub classes_refused: u32,
    /// Number of snapshots that were written.
    pub snapshots_taken: u64,
    /// Number of snapshots that were refused because there were too many.
    pub snapshots_refused: u64,
    /// Size of the trace on disk, in bytes.
    pub disk_bytes: u64,
    /// Maximum size of the trace, in bytes; 0: limited by the disk only.
    pub disk_bytes_max: u64,
    /// Size on disk, in bytes, of all live sessions of the user that have a common maximum, including what each
    /// reserves for its state; 0: this session has no common maximum.
    pub disk_bytes_user: u64,
    /// Common maximum of these sessions, in bytes; 0: this session has none.
    pub disk_bytes_user_max: u64,
    /// Number of events that the session's rules have rejected so far.
    pub events_rejected: u64,
    /// Number of events that sampling has left out so far.
    pub events_sampled_out: u64,
    /// Number of events that programs have recorded and no tail has kept so far.
    pub events_not_kept: u64,
}

/// Rules of a session, and which processes follow them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulesState {
    /// The rules as a user wrote them.
    pub rules: Vec<String>,
    /// Process id of each process in the session, as the owner sees it, and whether the process follows these rules; 0
    /// for a process whose id the owner does not see.
    pub processes: Vec<(u32, bool)>,
}

/// A rule as a user wrote it.
type RuleLine = Line<RULES_SIZE_BYTES_MAX>;

/// Maximum size of a list of rules in a message, in bytes. The rules of a session have at most [`RULES_SIZE_BYTES_MAX`]
/// bytes of text.
const RULE_LIST_SIZE_BYTES_MAX: usize = RULES_SIZE_BYTES_MAX + 4 + 2 * RULE_COUNT_MAX;

structures! {
    RulesState { rules: List<RuleLine, RULE_COUNT_MAX>, processes: List<(u32, bool)> }
    Status {
        owner: u32, owner_restarts: u64, dir: Line<4096>, descriptors: u64, descriptors_max: u64, processes: u32, processes_max: u32, processes_joined: u64,
        programs_refused: u64, clients: u32, clients_max: u32, clients_dropped: u64, classes: u32, classes_max: u32, classes_refused: u32,
        snapshots_taken: u64, snapshots_refused: u64, disk_bytes: u64, disk_bytes_max: u64, disk_bytes_user: u64,
        disk_bytes_user_max: u64, events_rejected: u64, events_sampled_out: u64, events_not_kept: u64,
    }
    BudgetState {
        page_size_bytes: u32, streams: u32, bytes: u64, bytes_max: u64, room: u64, free: u64, drawn: u64, queued: u64, beyond: u64,
        is_overwrite: bool,
    }
}

messages! {
    /// Question of a tool to a session's owner.
    ToolOwner, ToolToOwner {
        /// Ends a session of attached programs. The answer is [`OwnerToTool::Stopped`] once the trace is complete.
        1, 4 => Stop {
            /// A process in the session. The owner of another session refuses, since the program that named its socket
            /// cannot be trusted.
            pid: u32,
        },
        /// Writes what a session in overwrite mode retains as a trace of its own. The answer is
        /// [`OwnerToTool::Snapshotted`] once it is complete.
        2, 8 << 10 => Snapshot {
            /// Options of the snapshot.
            request: SnapshotRequest,
        },
        /// Sets the session's memory budget while it is live, or asks for it. The answer is [`OwnerToTool::BudgetIs`].
        3, 8 => Budget {
            /// Size of all pages, in bytes. Zero: do not change it.
            bytes: u64,
        },
        /// Asks for the session's resource usage and limits. The answer is [`OwnerToTool::StatusIs`].
        4, 0 => Status,
        /// Asks for the session's rules. The answer is [`OwnerToTool::RulesAre`].
        5, 0 => Rules,
        /// Replaces the session's rules while it is live. The answer is [`OwnerToTool::RulesAre`], which says which
        /// processes follow them already.
        6, RULE_LIST_SIZE_BYTES_MAX => SetRules {
            /// The new rules, as a user writes them.
            rules: Vec<String> as List<RuleLine, RULE_COUNT_MAX>,
        },
    }
}

messages! {
    /// Answer of a session's owner to a tool.
    ToolOwner, OwnerToTool {
        /// The session has ended.
        1, 64 << 10 => Stopped {
            /// Summary that `record` prints at its end.
            summary: String as Lines<32768>,
        },
        /// The snapshot is complete.
        2, 8 << 10 => Snapshotted {
            /// The snapshot that was taken.
            snapshot: Snapshot,
        },
        /// The memory budget and its use.
        3, 128 => BudgetIs {
            /// State of the session's memory.
            state: BudgetState,
        },
        /// Resource usage and limits.
        5, 8 << 10 => StatusIs {
            /// Status of the session.
            status: Status,
        },
        /// The rules, and which processes follow them.
        6, RULE_LIST_SIZE_BYTES_MAX + (32 << 10) => RulesAre {
            /// State of the session's rules.
            state: RulesState,
        },
        /// The request failed.
        4, 8 << 10 => Error {
            /// Error message of one line.
            text: String as Line<4096>,
        },
    }
}

impl Question for ToolToOwner {
    type Answer = OwnerToTool;
}

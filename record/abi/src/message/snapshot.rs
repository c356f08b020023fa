//! Snapshot requests and results, for programs and tools alike.

use alloc::string::String;

use super::codec::{Codec, Line, Malformed, Path, structures};

/// A request for a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// Directory of the new trace, absolute; if empty, it is chosen beside the session's.
    pub dir: String,
    /// Age limit in nanoseconds: older pages are left out. Zero: no limit.
    pub last_ns: u64,
    /// Maximum size of the newest pages that are taken, in bytes. Zero: all.
    pub bytes_max: u64,
    /// Cause of the request, recorded in the trace.
    pub trigger: String,
}

/// A snapshot that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Directory of the new trace.
    pub dir: String,
    /// Number of events in it.
    pub events: u64,
    /// Size of its streams, in bytes.
    pub bytes: u64,
    /// Time from the beginning of its oldest page to the snapshot, in nanoseconds.
    pub span_ns: u64,
    /// Number of pages that were overwritten before they could be copied.
    pub pages_missed: u64,
    /// Number of pages that were not valid.
    pub pages_refused: u64,
}

structures! {
    SnapshotRequest { dir: Path, last_ns: u64, bytes_max: u64, trigger: Line<1024> }
    Snapshot { dir: Line<4096>, events: u64, bytes: u64, span_ns: u64, pages_missed: u64, pages_refused: u64 }
}

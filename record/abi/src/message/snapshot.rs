//! What is said of snapshots, by programs and tools alike.

use alloc::string::String;

use super::codec::{Codec, Line, Malformed, Path, structures};

/// A snapshot that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// The new trace's directory, absolute; empty: beside the session's.
    pub dir: String,
    /// Nanoseconds: older pages are left out. Zero: none is.
    pub last_ns: u64,
    /// Bytes of the newest pages that are taken. Zero: all.
    pub bytes_max: u64,
    /// What asked for it, for the trace.
    pub trigger: String,
}

/// What a snapshot came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The new trace's directory.
    pub dir: String,
    /// Events in it.
    pub events: u64,
    /// Bytes of its streams.
    pub bytes: u64,
    /// Nanoseconds from the beginning of its oldest page to the snapshot.
    pub span_ns: u64,
    /// Pages that were overwritten before they could be copied.
    pub pages_missed: u64,
    /// Pages that were not valid.
    pub pages_refused: u64,
}

structures! {
    SnapshotRequest { dir: Path, last_ns: u64, bytes_max: u64, trigger: Line<1024> }
    Snapshot { dir: Line<4096>, events: u64, bytes: u64, span_ns: u64, pages_missed: u64, pages_refused: u64 }
}

//! Requests to the engine of the experiment `zero-page`, and its answers. Each is one run of its codec, in a process of
//! its own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Size of a huge page, in bytes, on x86-64 and on AArch64 with small pages of 4 KiB.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Maximum size of a frame, in bytes.
pub const BUFFER_BYTES_MAX: usize = 256 << 20;

/// A request to the engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// Runs over frames; the answer is an [`Outcome`].
    Frames(Order),
    /// Threads that touch memory and give it back, all at once. The answer is their mean CPU time for a page, in
    /// nanoseconds.
    Touch {
        /// Number of threads; each has memory of its own.
        threads: usize,
        /// Whether each page is written; otherwise it is read, which maps the zero page.
        is_written: bool,
    },
    /// Counts the mappings of the zero page in all processes that may be examined. The answer is a number, or none if
    /// the zero page cannot be told from memory.
    Machine,
}

/// Parameters of a run. The names of its values are those of labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// CPU to run on.
    pub cpu: u32,
    /// Scheduling policy.
    pub policy: Scheduling,
    /// Kind of memory of the frame buffer.
    pub memory: Memory,
    /// Advice to the kernel about huge pages for the frame buffer.
    pub thp: Thp,
    /// Treatment of the frame buffer before the first frame.
    pub state: State,
    /// Operation on a frame.
    pub part: Part,
    /// Sizes of the frames in bytes, in order. Each frame starts at the buffer's first byte, so bytes that they share
    /// are touched first once.
    pub sizes: Vec<usize>,
}

/// Kind of memory of the frame buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// An array in .bss.
    Bss,
    /// A mapping without a file, `MAP_PRIVATE`.
    Anonymous,
    /// `/dev/zero`, mapped `MAP_PRIVATE`.
    DevZeroPrivate,
    /// `/dev/zero`, mapped `MAP_SHARED`.
    DevZeroShared,
}

/// A scheduling policy of Linux (sched(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduling {
    /// `SCHED_OTHER`.
    Other,
    /// `SCHED_BATCH`.
    Batch,
    /// `SCHED_IDLE`.
    Idle,
    /// `SCHED_FIFO` at the lowest real-time priority.
    Fifo,
    /// `SCHED_RR` at the lowest real-time priority.
    Rr,
}

/// Advice about huge pages for the frame buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Thp {
    /// `MADV_NOHUGEPAGE`: like on a machine that is set to `never`.
    Never,
    /// No advice: the machine's setting decides.
    Unasked,
    /// `MADV_HUGEPAGE`: like on a machine that is set to `always`, or to `madvise` for a program that asks.
    Asked,
}

/// Treatment of the frame buffer before the first frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// No treatment.
    Never,
    /// Each byte was written once.
    Written,
    /// `MADV_POPULATE_READ`.
    PopulateRead,
    /// `MADV_POPULATE_WRITE`.
    PopulateWrite,
    /// The buffer was filled by `read(2)` of `/dev/zero`.
    ReadFromDevZero,
}

/// Operation on a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Reads the frame, word by word.
    Read,
    /// Reads and decodes the frame block by block: copies, transforms and sums.
    Decode,
    /// Writes the frame, word by word.
    Write,
    /// Decodes a frame of Motion JPEG into it, with a third-party decoder.
    Codec,
}

macro_rules! names {
    ($($kind:ident: $($value:ident $name:literal)+;)+) => {$(
        impl $kind {
            /// Returns the label of the value.
            pub fn as_str(self) -> &'static str {
                match self { $($kind::$value => $name,)+ }
            }
        }
    )+};
}

names! {
    Scheduling: Other "other" Batch "batch" Idle "idle" Fifo "fifo" Rr "rr";
    Memory: Bss "bss" Anonymous "anonymous" DevZeroPrivate "dev-zero-private" DevZeroShared "dev-zero-shared";
    Thp: Never "never" Unasked "unasked" Asked "asked";
    State: Never "never-written" Written "written" PopulateRead "populate-read" PopulateWrite "populate-write"
        ReadFromDevZero "read-from-dev-zero";
    Part: Read "read" Decode "decode" Write "write" Codec "codec";
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Settings that were requested and not available: `cpu`, `policy`, `thp` or `state`, with the cause.
    pub refused: BTreeMap<String, String>,
    /// Results for each frame, in the order of their sizes.
    pub frames: Vec<Frame>,
    /// Whether [`Census::zero`] can be distinguished on this kernel.
    pub sees_zero: bool,
}

/// All passes over a frame of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// Size of the frame, in bytes.
    pub bytes: usize,
    /// Time of each pass, in nanoseconds.
    pub ns: Vec<f64>,
    /// Time of each pass by `gettimeofday`, which counts whole microseconds, in nanoseconds.
    pub ns_by_time_of_day: Vec<f64>,
    /// Time of reading 16 KiB of written memory after each pass, in nanoseconds; only of a run of one size.
    #[serde(default)]
    pub ns_beside: Vec<f64>,
    /// Times of those parts of later passes, each times the number of parts, during which the CPU took no interrupt; only of
    /// a run of one size, where the kernel tells it.
    #[serde(default)]
    pub ns_undisturbed: Vec<f64>,
    /// Page faults of this thread in each pass, minor and major.
    pub faults: Vec<u64>,
    /// Census of the frame's pages after the last pass.
    pub census: Census,
}

/// Bytes of a frame, by their backing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    /// Bytes that are not backed.
    pub unbacked: u64,
    /// Bytes backed by the small zero page.
    pub zero: u64,
    /// Bytes backed by the huge zero page.
    pub huge_zero: u64,
    /// Bytes backed by memory in small pages.
    pub small: u64,
    /// Bytes backed by memory in huge pages.
    pub huge: u64,
}

//! What the engine of the experiment `zero-page` is asked, and what it answers: one run of its codec, in a process of its own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Bytes of a huge page, on x86-64 and on AArch64 with small ones of 4 KiB.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes that the largest frame may have.
pub const BUFFER_BYTES_MAX: usize = 256 << 20;

/// What the engine can be asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// Frames; the answer is an [`Outcome`].
    Frames(Order),
    /// Threads that touch memory and give it back, all at once; the answer is nanoseconds of CPU time for a page, their mean.
    Touch {
        /// How many; each thread has memory of its own.
        threads: usize,
        /// Whether each page is written; otherwise read, which maps the zero page.
        is_written: bool,
    },
    /// Mappings of the zero page in all processes that may be looked at; the answer is a number, or none where it cannot be told from memory.
    Machine,
}

/// A run. Names of what there is are those of labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The processor.
    pub cpu: u32,
    /// How the kernel schedules it.
    pub policy: Scheduling,
    /// What the frame buffer is.
    pub memory: Memory,
    /// What the kernel is advised of huge pages for the frame buffer.
    pub thp: Thp,
    /// What was done to the frame buffer before the first frame.
    pub state: State,
    /// What is done to a frame.
    pub part: Part,
    /// Bytes of the frames, one after the other; each frame begins at the buffer's first byte. What they share is touched once.
    pub sizes: Vec<usize>,
}

/// What the frame buffer is.
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

/// Which pages the frame buffer is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Thp {
    /// `MADV_NOHUGEPAGE`: as on a machine that says `never`.
    Never,
    /// Nothing is advised: what the machine says.
    Unasked,
    /// `MADV_HUGEPAGE`: as on a machine that says `always`, or `madvise` to who asks.
    Asked,
}

/// What was done to the frame buffer before the first frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Nothing.
    Never,
    /// Each byte was written once.
    Written,
    /// `MADV_POPULATE_READ`.
    PopulateRead,
    /// `MADV_POPULATE_WRITE`.
    PopulateWrite,
    /// It was filled by `read(2)` of `/dev/zero`.
    ReadFromDevZero,
}

/// What is done to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// It is read, word by word.
    Read,
    /// It is read and decoded: block by block, copied, transformed and summed.
    Decode,
    /// It is written, word by word.
    Write,
    /// A frame of Motion JPEG is decoded into it, by a decoder of others.
    Codec,
}

macro_rules! names {
    ($($kind:ident: $($value:ident $name:literal)+;)+) => {$(
        impl $kind {
            /// Its label.
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

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What could not be had as it was asked for: `cpu`, `policy`, `thp` or `state`, with the cause.
    pub refused: BTreeMap<String, String>,
    /// The frames, in the order of their sizes.
    pub frames: Vec<Frame>,
    /// Whether [`Census::zero`] can be told here.
    pub sees_zero: bool,
}

/// All passes over a frame of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// Its size.
    pub bytes: usize,
    /// How long each pass took.
    pub ns: Vec<f64>,
    /// The same by `gettimeofday`, which counts whole microseconds.
    pub ns_by_time_of_day: Vec<f64>,
    /// Faults in each, of this thread: those that needed no disk, and those that did.
    pub faults: Vec<u64>,
    /// What the frame's pages were after the last.
    pub census: Census,
}

/// Bytes of a frame by what is behind them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    /// Nothing.
    pub unbacked: u64,
    /// The small zero page.
    pub zero: u64,
    /// The huge zero page.
    pub huge_zero: u64,
    /// Memory in small pages.
    pub small: u64,
    /// Memory in huge pages.
    pub huge: u64,
}

//! What the engine of the experiment `zero-page` is asked, and what it answers: one run of its codec, in a process of its own.

use serde::{Deserialize, Serialize};

/// Bytes of a huge page, on x86-64 and on AArch64 with small ones of 4 KiB.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes that the largest frame may have.
pub const BUFFER_BYTES_MAX: usize = 256 << 20;

/// A run. Names of what there is are those of labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The processor.
    pub cpu: u32,
    /// How the kernel schedules it.
    pub policy: Scheduling,
    /// What the kernel is advised of huge pages for the frame buffer.
    pub thp: Thp,
    /// What was done to the frame buffer before the first frame.
    pub state: State,
    /// What is done to a frame.
    pub part: Part,
    /// Bytes of the frames, one after the other; each frame begins at the buffer's first byte. What they share is touched once.
    pub sizes: Vec<usize>,
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

/// What was done to the frame buffer, an array in .bss, before the first frame.
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
    Thp: Never "never" Unasked "unasked" Asked "asked";
    State: Never "never-written" Written "written" PopulateRead "populate-read" PopulateWrite "populate-write";
    Part: Read "read" Decode "decode" Write "write";
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What could not be had as it was asked for, with the cause: the processor, the policy, the advice, the populating.
    pub refused: Vec<String>,
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

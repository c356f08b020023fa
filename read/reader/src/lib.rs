//! Opens traces, whoever has written them, and reads their streams: in order of time, or as fast as they can be read.
//!
//! ```text
//!   DIR/…/metadata, streams ─▶ find ─┐                            ┌─▶ Merge: events in order       view
//!   .tar, .tar.gz, .tar.zst, - ─▶ archive ─▶ Found ─▶ TraceFiles ─┼─▶ Stats: parts of streams, in parallel    stats
//!   stream.zst ─▶ spool (unnamed file) ─┘     Extent ─▶ Window ─▶ └─▶ counts: no order
//! ```
//!
//! * A stream is a part of a file ([`extent`]), of which a window is in memory ([`Window`]): 16 to 128 KiB, all windows together 64 MiB where
//!   streams are not too many, and as much as one record needs while one is longer. Nothing is mapped: a file that is shortened while it is
//!   read is an error of its stream, and no SIGBUS. A packet may be of any size, for it is never in memory as a whole.
//! * Archives are read where they lie if they are not compressed. What is compressed is unpacked into an unnamed file, in `TMPDIR`, up to half
//!   of what is free there ([`spool`]).
//! * What in a trace is no stream of it, or is one twice, is left out and said; what belongs there without being a stream is passed over, and
//!   is in [`TraceFiles::notes`].
//! * Index files (`index/*.idx` of LTTng) are used to find the place where a time begins, if the header of the packet there says the same
//!   ([`index`]).
//! * The order of events is that of [`dormouse_ctf::merge`]: time, then trace and stream in the order of [`TraceFiles::names`], then place.
//!
//! * Commands read in one loop, [`Reading`]: it tells events that are asked for from others, whose events are whose, what is wrong, and what was lost in the
//!   time that is asked for.
//!
//! # Memory
//! At most 64 MiB, and 1 MiB for each stream. Besides, metadata and what is counted; while a record is longer than a window, twice the record
//! (16 MiB at most); and the window of a zstd frame while it is unpacked (32 MiB at most, 8 MiB as `zstd` writes it).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod extent;
pub mod index;
pub mod spool;

mod ahead;
mod archive;
mod bounds;
mod counts;
mod find;
mod lost;
mod parts;
mod reading;
mod streams;
mod traces;

pub use ahead::Ahead;
pub use bounds::Bounds;
pub use counts::{ClassCount, Counts};
pub use dormouse_directory::{Dir, Error, is_stream_name, open_dir, read_metadata};
pub use extent::Window;
pub use parts::{Part, Parts};
pub use reading::{Item, Reading, Said};
pub use traces::{Events, TraceFiles};

//! Opens traces of Dormouse and of other tracers, and reads their streams: in the order of time, or as fast as
//! possible.
//!
//! ```text
//!   DIR/…/metadata, streams ─▶ find ─┐                            ┌─▶ Merge: events in order       view
//!   .tar, .tar.gz, .tar.zst, - ─▶ archive ─▶ Found ─▶ TraceFiles ─┼─▶ Stats: parts of streams, in parallel    stats
//!   stream.zst ─▶ spool (unnamed file) ─┘     Extent ─▶ Window ─▶ └─▶ counts: no order
//! ```
//!
//! * A stream is a part of a file ([`extent`]), of which a window is in memory ([`Window`]): 16 to 128 KiB. All windows
//!   together have 64 MiB unless there are too many streams; a window grows while a record is longer. Nothing is
//!   mapped: shortening a file while it is read causes an error of its stream, not SIGBUS. A packet can have any size,
//!   since it is never in memory as a whole.
//! * Uncompressed archives are read in place. Compressed data is unpacked into an unnamed file in `TMPDIR`, up to half
//!   of the free space there ([`spool`]).
//! * Files in a trace that are not streams, or that repeat a stream, are left out and reported. Files that belong to a
//!   trace without being streams are passed over, and listed in [`TraceFiles::notes`].
//! * Index files (`index/*.idx` of LTTng) are used to find the packet at which a time begins, if the packet's header
//!   matches the index ([`index`]).
//! * Events are ordered as in [`dormouse_ctf::merge`]: by time, then by trace and stream in the order of
//!   [`TraceFiles::names`], then by position.
//!
//! * Commands read in one loop, [`Reading`]: it separates selected events from others, tracks the writers of events,
//!   and collects errors and the losses in the selected time.
//! * A [`Follower`] reads a trace while it is recorded. A [`ParallelFormatter`] has several threads make text of events
//!   that are read in order; a [`LineOrder`] holds back lines that are printed in reverse, or only at the end.
//!
//! # Memory
//! At most 64 MiB, and 1 MiB for each stream. In addition: metadata and counts; while a record is longer than a window,
//! twice the record (16 MiB at most); and the window of a zstd frame while it is unpacked (32 MiB at most, 8 MiB as
//! `zstd` writes it).
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
mod follower;
mod horizon;
mod line_order;
mod lost;
mod ordered_pool;
mod parallel_formatter;
mod parts;
mod reading;
mod streams;
mod traces;

pub use ahead::Ahead;
pub use bounds::Bounds;
pub use counts::{ClassCount, Counts};
pub use dormouse_directory::{Dir, Error, is_stream_name, open_dir, read_metadata};
pub use extent::Window;
pub use follower::{FollowEnd, FollowOptions, Follower, Show};
pub use line_order::LineOrder;
pub use ordered_pool::OrderedPool;
pub use parallel_formatter::ParallelFormatter;
pub use parts::{Part, Parts};
pub use reading::{Item, ReadSummary, Reading};
pub use traces::{Events, TraceFiles};

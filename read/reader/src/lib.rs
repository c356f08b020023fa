//! Opens traces of Dormouse and of other tracers, and reads their streams: in time order, or faster in parallel and
//! without order.
//!
//! ```text
//!   DIR/…/metadata, streams ─▶ find ─┐                            ┌─▶ Merge: events in order       view
//!   .tar, .tar.gz, .tar.zst, - ─▶ archive ─▶ Found ─▶ TraceFiles ─┼─▶ Stats: parts of streams, in parallel    stats
//!   stream.zst ─▶ spool (unnamed file) ─┘     Extent ─▶ Window ─▶ └─▶ counts: no order
//! ```
//!
//! * A stream is a range of a file ([`extent`]). One window of it ([`Window`]), of 16 to 128 KiB, is in memory at a
//!   time. All windows together take at most 64 MiB, or 16 KiB for each stream if there are more than 4,096; a window
//!   grows for a record that is longer. Packets of any size can be read, since no packet is in memory as a whole.
//!   Nothing is memory-mapped: if a file is truncated while it is read, its stream yields a read error, and there is no
//!   SIGBUS.
//! * Uncompressed archives are read in place. Compressed data is unpacked into an unnamed file in `TMPDIR`, up to half
//!   of the free space there ([`spool`]).
//! * A file is left out with a warning if it repeats another stream, or if it does not begin like a stream and neither
//!   its name nor the metadata says that it is one. Directories and hidden files, such as those of editors, are passed
//!   over, and listed in [`TraceFiles::notes`].
//! * Index files (`index/*.idx` of LTTng) are used to find the packet at which a time range begins, if the packet's
//!   header matches the index ([`index`]).
//! * Events are ordered as in [`dormouse_ctf::merge`]: by time, then by trace and stream in the order of
//!   [`TraceFiles::names`], then by position.
//! * All commands share one loop, [`Reading`]: it separates selected events from others, finds out which process and
//!   thread wrote each, and collects errors and the losses in the selected time range.
//! * [`State`] is the account of the state streams, losses and processes. Consumers that keep more decode the records
//!   again: a timeline its tracks' names and its checkpoints, an analysis the programs that were replaced.
//! * A [`Follower`] reads a trace while it is recorded. A [`ParallelFormatter`] uses several threads to format events
//!   that are read in order; a [`LineOrder`] holds back lines, to print them in reverse, or only the last ones, or
//!   both.
//!
//! # Memory
//! Reading takes at most 64 MiB plus 1 MiB for each stream. To this are added: metadata and counts; for a record that
//! is longer than a window, twice its length (a record is at most 16 MiB long); and the window of a zstd frame that is
//! being unpacked (at most 32 MiB; 8 MiB as `zstd` writes it by default).
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
mod state;
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
pub use state::{ProgramNames, State};
pub use traces::{Events, TraceFiles};

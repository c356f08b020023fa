//! A trace as one HTML page that needs nothing else: no network, no server, no other file.
//!
//! A trace has millions of events. A browser can neither hold all of them as text nor draw millions of rectangles in a
//! frame.
//!
//! ```text
//!   events ─▶ Timeline ─▶ Gather ─▶ items (slices, instants)
//!   items ─▶ rows, of threads and of CPUs ─▶ levels of detail ─▶ columns ─▶ deflate ─▶ base64 ─┐
//!   items ─▶ summary: counts, times, percentiles, heat map, call trees, slowest ──────────────────────────────────────────┼─▶ page
//!   fields of events ─▶ chunks, unpacked in the page when an item is clicked ─────────────────────────────────────────────┘
//! ```
//!
//! * [`Gather`]: collects the items of a timeline.
//! * [`Contents`]: the contents of a report. Tables and distributions are made from all of them.
//! * [`levels`]: rows at several levels of detail: neighbours that are too short to be distinguished are merged.
//! * [`Contents::finish`]: makes the page, within a maximum size. Items that do not fit are merged or left out; the
//!   page reports their number.
//! * [`Contents::beside`], [`Contents::compare`]: another trace, and the differences.
//! * [`page`]: bundles script and style, with their hashes in the page's content policy.
//!
//! * [`Survey`], [`Served`], [`serve`]: the same page on loopback, for a trace of any size. The page requests what it
//!   lacks when it is looked at, and the trace is read again for each request.
//!
//! # Trust
//! All texts of a trace are untrusted. The page contains them only as base64, which cannot end an element, and the
//! script puts them into the document as text only. The content policy permits no other script, and no requests to
//! other hosts.
//!
//! # Cost
//! Memory of a report: 192 bytes for each item while it is made, and its compressed fields. Memory of a served page: as much as it is
//! given. In the page an item takes 36 bytes for each of two groupings.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod bins;
mod columns;
mod compare;
mod contents;
mod counters;
mod details;
mod finish;
mod gather;
pub mod levels;
pub mod page;
mod rows;
mod scene;
pub mod serve;
mod served;
mod stacks;
mod summary;
mod survey;

pub use compare::{Beside, Difference};
pub use contents::{Contents, Cpu, Fields, Item, Kind, Loss, Process, Thread};
pub use finish::{LeftOut, Written};
pub use gather::{Gather, Kept};
pub use served::{Asked, PAGE_BYTES, Part, Served, Show, Source};
pub use survey::{Held, MEMORY_BYTES, MEMORY_BYTES_MIN, Survey, Surveyed};

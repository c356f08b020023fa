//! A trace as one page of HTML that needs nothing else: no network, no server, no other file.
//!
//! The problem: a person wants to see what happened, a trace has millions of events, and a browser can neither hold all of them as text nor draw
//! millions of rectangles in a frame.
//!
//! ```text
//!   events ─▶ Timeline ─▶ Gather ─▶ items (slices, instants)
//!   items ─▶ rows, of threads and of CPUs ─▶ levels of detail ─▶ columns ─▶ deflate ─▶ base64 ─┐
//!   items ─▶ summary: counts, times, percentiles, heat map, call trees, slowest ──────────────────────────────────────────┼─▶ page
//!   fields of events ─▶ chunks, unpacked in the page when somebody clicks ────────────────────────────────────────────────┘
//! ```
//!
//! * [`Gather`]: takes what a timeline consists of.
//! * [`Contents`]: what is put into a report. Tables and distributions are made of all of it.
//! * [`levels`]: what a row looks like from farther away: neighbours that are too short to be seen apart become one.
//! * [`Contents::finish`]: makes the page, no longer than it may be. What has no room is merged or left out, counted, and told in the page.
//! * [`Contents::beside`], [`Contents::compare`]: another trace, and what differs.
//! * [`page`]: script and style, as one each, with their hashes in the page's content policy.
//!
//! * [`Survey`], [`Served`], [`serve`]: the same page on loopback, of a trace of any size: it asks for what it has no room for when it is looked at, and the trace is read again for it.
//!
//! # Trust
//! All texts of a trace are hostile. They are in the page only as base64, whose letters end no element, and the script puts them into the
//! document as text alone. The content policy lets no other script run, and nothing be fetched.
//!
//! # Cost
//! Memory of a report: 56 bytes for each item, and what its fields take when they are compressed. Of a page that is served: what it is given. In the page an item takes 36 bytes for each of two groupings.
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
mod summary;
mod survey;

pub use compare::{Beside, Difference};
pub use contents::{Contents, Cpu, Fields, Item, Kind, Loss, Process, Thread};
pub use finish::{LeftOut, Written};
pub use gather::{Gather, Kept};
pub use served::{Asked, PAGE_BYTES, Part, Served, Show, Source};
pub use survey::{Held, MEMORY_BYTES, MEMORY_BYTES_MIN, Survey, Surveyed};

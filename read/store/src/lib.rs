//! Traces of many machines as Parquet, in a directory or an object store.
//!
//! The problem: questions to thousands of traces are asked of tables, wherever these lie, while new ones arrive, and while some of those who bring them
//! are killed.
//!
//! ```text
//!   STORE/events/host=H/day=2026-11-26/class=http%3Arequest/CHUNK.parquet     in the order of time
//!   STORE/pairs/host=H/day=D/CHUNK.parquet                                    in the order of begins
//!   STORE/processes, losses, totals/host=H/CHUNK.parquet
//!   STORE/manifest/host=H/CHUNK.json                                          last, and only if it is not there
//! ```
//! * A chunk is what is put there at a time: a trace. It is there when its manifest is; a reader takes the files that manifests name.
//! * Keys are made of the trace, so that whoever puts a chunk twice, or together with another, puts the same rows under the same keys, and nothing is
//!   ever overwritten.
//! * [`mod@place`]: opening; [`mod@manifest`]: what a chunk consists of; [`layout`]: names; [`mod@put`]: writing; [`pairs`] and [`facts`]: rows of tables that are not
//!   those of events.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod error;
pub mod facts;
pub mod files;
pub mod layout;
pub mod manifest;
pub mod pairs;
pub mod place;
pub mod put;
mod sort;
mod spool;

pub use error::{Error, Result, reason};
pub use files::Format;
pub use manifest::{ClassOf, FileOf, Manifest, Unpaired};
pub use place::{Store, is_store};
pub use put::{Identity, Options, Put, Watch, put};

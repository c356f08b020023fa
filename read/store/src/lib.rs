//! Traces of many machines as Parquet, in a directory or an object store.
//!
//! Queries over thousands of traces read tables. The tables may be local or remote, new traces arrive during a query,
//! and a process that writes them may be killed at any time.
//!
//! ```text
//!   STORE/events/host=H/day=2026-11-26/class=http%3Arequest/CHUNK.parquet     sorted by time
//!   STORE/pairs/host=H/day=D/CHUNK.parquet                                    sorted by begin
//!   STORE/processes, losses, totals/host=H/CHUNK.parquet
//!   STORE/manifest/host=H/CHUNK.json                                          written last, unless it exists
//! ```
//! * A chunk holds one trace. It exists once its manifest exists: a reader takes only files that manifests name.
//! * Keys are made of the trace. A process that puts a chunk again, or at the same time as another process, writes the
//!   same rows under the same keys. Nothing is ever overwritten.
//! * [`mod@place`]: opening; [`mod@manifest`]: the files of a chunk; [`layout`]: names; [`mod@put`]: writing; [`pairs`]
//!   and [`facts`]: rows of the tables other than `events`.
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

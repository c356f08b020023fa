//! Exports timelines of traces in the formats of other tools.
//!
//! Other tools that show timelines read their own formats. A trace is larger than memory, its names can be any text,
//! and the picture must not show anything that is not known.
//!
//! ```text
//!   events ─▶ Exporter: Timeline ─▶ Recorder ─▶ Batch: operations, events ─▶ Encoder (any thread) ─▶ bytes ─▶ in the order of batches
//!                          └─▶ Folded ─▶ stacks at the end
//! ```
//!
//! * [`Exporter`]: decides, event by event, what is written. Only the exporter knows the earlier events.
//! * [`Batch`]: operations to be written, and their events. Batches are encoded independently, so several threads can
//!   do it.
//! * [`Encoder`]: encodes a batch as bytes (`perfetto`, `chrome`).
//! * `folded`: stacks of slices with their own time. `otlp`: spans of OpenTelemetry. Both are written by the thread
//!   that reads.
//! * [`Collector`]: sends spans to a collector while they are written.
//!
//! In Perfetto's and Chrome's formats an end closes the slice that began last on its track. If slices overlap without
//! being nested, the inner one is cut: it ends with the outer one and begins again, marked as `continued` (`nest`).
//!
//! # Cost
//! Memory is that of the timeline and of batches in progress. The wire format of protocol buffers is written by hand
//! (`wire`): eight messages of a few fields each, written straight from the bytes of the record, with names that are
//! encoded once. Libraries instead write messages that were built as structures, with a vector of annotations for each
//! event; writing by hand avoids that copy.
//!
//! # Source
//! Perfetto, `protos/perfetto/trace/**/*.proto` and "Synthetic TrackEvent"; "Trace Event Format" (Chrome); Brendan Gregg, `stackcollapse.pl`;
//! OpenTelemetry, `opentelemetry-proto`.
#![forbid(unsafe_code)]
// The caller decides what is printed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod address;
mod annotation;
mod chrome;
mod collector;
mod encoder;
mod exporter;
mod fields;
mod folded;
mod nest;
mod op;
mod otlp;
mod perfetto;
mod wire;

pub use collector::{Collector, CollectorAnswers};
pub use encoder::Encoder;
pub use exporter::{Exporter, Format};
pub use op::Batch;

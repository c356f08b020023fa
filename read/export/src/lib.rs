//! Timelines of traces in the formats of other tools.
//!
//! The problem: people have tools that show timelines, and these read their own formats. A trace is larger than memory, names in it may be anything,
//! and a picture must not show what is not known.
//!
//! ```text
//!   events ─▶ Exporter: Timeline ─▶ Recorder ─▶ Batch: operations, events ─▶ Encoder (any thread) ─▶ bytes ─▶ in the order of batches
//!                          └─▶ Folded ─▶ stacks at the end
//! ```
//!
//! * [`Exporter`]: decides, event by event, what is written. It alone knows what came before.
//! * [`Batch`]: what is to be written, with the events that it is of. Batches are encoded apart from one another, so that several threads can.
//! * [`Encoder`]: makes bytes of a batch (`perfetto`, `chrome`).
//! * `folded`: stacks of slices with their own time. `otlp`: spans of OpenTelemetry. Both are written by the thread that reads.
//!
//! In Perfetto's and Chrome's formats an end closes what has begun last on its track. Where slices overlap without lying in one another, the inner one
//! is cut: it ends with the outer one and begins anew, marked as `continued` (`nest`).
//!
//! # Cost
//! Memory is that of the timeline, and of batches that are under way. The wire format of protocol buffers is written by hand (`wire`): what is written
//! are eight messages of a few fields each, straight from the bytes of the record, with names that are encoded once. Libraries write messages that
//! have been built as structures with a vector of annotations for each event; that is the copy which is spared here.
//!
//! # Source
//! Perfetto, `protos/perfetto/trace/**/*.proto` and "Synthetic TrackEvent"; "Trace Event Format" (Chrome); Brendan Gregg, `stackcollapse.pl`;
//! OpenTelemetry, `opentelemetry-proto`.
#![forbid(unsafe_code)]
// Who calls says what there is to say.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod address;
mod annotation;
mod chrome;
mod encoder;
mod exporter;
mod fields;
mod folded;
mod nest;
mod op;
mod otlp;
mod perfetto;
mod wire;

pub use encoder::Encoder;
pub use exporter::{Exporter, Format};
pub use op::Batch;

//! Engine `tracing`: events of the tracing crate, formatted as text into tracing-appender's non-blocking writer.
//!
//! # Configuration
//! tracing-subscriber's `fmt` subscriber with its defaults (time, level, target, fields) without colours, at level
//! INFO; the non-blocking writer with its defaults: 128,000 lines in its channel, lossy, one writing thread. That
//! thread writes to a sink that counts lines and drops them, so the cost of a file is not measured.
//!
//! # Cases
//! Events at level INFO, one line each. Dormant: the same events at level DEBUG, which the level in force filters out.
//!
//! # Counts
//! The sink's lines, and the lines that the writer dropped because its channel was full.
//!
//! Source: documentation of tracing_subscriber::fmt and tracing_appender::non_blocking.

use std::process::ExitCode;

use cases::{LEVEL, cases};
use dormouse_lab_harness::Engine;
use dormouse_lab_peer::version;
use lines::{arrived, writer};

mod cases;
mod lines;

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_max_level(LEVEL).with_ansi(false).with_writer(writer()).init();
    dormouse_lab_harness::main(&Engine {
        name: "tracing",
        version: version("tracing"),
        cases: cases(),
        arrived: Some(arrived),
    })
}

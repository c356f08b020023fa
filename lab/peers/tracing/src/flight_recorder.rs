//! Engine `tracing-flight-recorder`: events of the tracing crate, recorded in the ring of the crate
//! tracing_flight_recorder.
//!
//! # Configuration
//! Its layer on tracing-subscriber's registry, without the capture of spans' fields, as its documentation recommends
//! for many events, under a global filter at level INFO. One ring of 8,192 events for all threads, behind a lock. An
//! event allocates each of its strings: level, target, message, names and values of fields.
//!
//! # Cases
//! The cases of the engine `tracing`; one event is one element.
//!
//! # Counts
//! The elements of a snapshot.
//!
//! Source: documentation of tracing_flight_recorder.

use std::process::ExitCode;
use std::sync::OnceLock;

use cases::{LEVEL, cases};
use dormouse_lab_harness::Engine;
use dormouse_lab_peer::{report, version};
use tracing_flight_recorder::{FlightRecorder, FlightRecorderLayer};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

mod cases;

/// Number of events that the ring keeps.
const CAPACITY: usize = 8192;

static RECORDER: OnceLock<FlightRecorder> = OnceLock::new();

fn arrived() -> Result<u64, String> {
    let count = RECORDER.get().map_or(0, |recorder| recorder.snapshot().len());
    report(count as u64, 0, "elements of a snapshot")
}

fn main() -> ExitCode {
    let recorder = RECORDER.get_or_init(|| FlightRecorder::new(CAPACITY));
    let layer = FlightRecorderLayer::with_span_capture(recorder.clone(), false);
    tracing_subscriber::registry().with(layer).with(LevelFilter::from_level(LEVEL)).init();
    let (name, version) = ("tracing-flight-recorder", version("tracing-flight-recorder"));
    dormouse_lab_harness::main(&Engine { name, version, cases: cases(), arrived: Some(arrived) })
}

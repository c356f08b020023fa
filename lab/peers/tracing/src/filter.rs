//! Engine `tracing-filter`: events of the tracing crate behind an `EnvFilter` that asks for a value.
//!
//! # Configuration
//! As the engine `tracing`, with the filter `[request{number=5}]=info` in place of a level. The filter asks for a field
//! of the spans that an event is in: of an event's own fields it knows the names, but not the values. Since it asks for
//! a value, it is called for every event that no other directive enables, also for those of lower levels.
//!
//! # Cases
//! Events at level INFO in one span `request`, which is entered before the loop: `accepted_span` with the number 5,
//! `rejected_span` with another one. Dormant: events at level DEBUG, in no span.
//!
//! # Counts
//! As in the engine `tracing`.
//!
//! Source: documentation of tracing_subscriber::filter::EnvFilter.

use std::process::ExitCode;

use dormouse_lab_harness::Engine;
use dormouse_lab_peer::{EMPTY, cases, each, version};
use lines::{arrived, writer};
use tracing::Level;
use tracing::span::EnteredSpan;
use tracing_subscriber::EnvFilter;

mod lines;

/// The filter, which accepts events in a span with the number [`WANTED`].
const FILTER: &str = "[request{number=5}]=info";
const WANTED: u64 = 5;

fn enter(number: u64) -> EnteredSpan {
    tracing::info_span!("request", number).entered()
}

extern "C" fn accepted_span(iterations: u64, first: u64) {
    let _entered = enter(WANTED);
    each(iterations, first, |number| tracing::event!(Level::INFO, number, "u64"));
}

extern "C" fn rejected_span(iterations: u64, first: u64) {
    let _entered = enter(WANTED + 1);
    each(iterations, first, |number| tracing::event!(Level::INFO, number, "u64"));
}

extern "C" fn dormant_u64(iterations: u64, first: u64) {
    each(iterations, first, |number| tracing::event!(Level::DEBUG, number, "u64"));
}

fn main() -> ExitCode {
    let filter = match EnvFilter::try_new(FILTER) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("tracing-filter: {error}");
            return ExitCode::from(2);
        }
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(writer()).init();
    let mut cases = vec![EMPTY];
    cases.extend(cases![accepted_span, rejected_span, dormant_u64]);
    let (name, version) = ("tracing-filter", version("tracing-subscriber"));
    dormouse_lab_harness::main(&Engine { name, version, cases, arrived: Some(arrived) })
}

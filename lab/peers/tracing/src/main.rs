//! Engine `tracing`: events of the tracing crate, formatted as text into tracing-appender's non-blocking writer.
//!
//! # Configuration
//! tracing-subscriber's `fmt` subscriber as it comes (time, level, target, fields) without colours, at level INFO; the non-blocking
//! writer as it comes: 128,000 lines in its channel, lossy, one thread that writes. That thread writes to a sink which counts
//! lines and drops them: a file's cost is not in it.
//!
//! # Cases
//! Events at level INFO, one line each. Dormant: the same events at level DEBUG, which the level in force leaves out.
//!
//! # Counts
//! The sink's lines, and the lines that the writer dropped as its channel was full.
//!
//! Source: documentation of tracing_subscriber::fmt and tracing_appender::non_blocking.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use dormouse_lab_harness::{Case, Engine};
use dormouse_lab_peer::{
    EMPTY, EMPTY_SITES_CASES, Sites, each, each_site, flat, report, settled, sites, text, version,
};
use tracing::Level;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, WorkerGuard};

static LINES: AtomicU64 = AtomicU64::new(0);
static GUARD: Mutex<Option<WorkerGuard>> = Mutex::new(None);
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Counts lines.
struct Sink;

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
        LINES.fetch_add(lines as u64, Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

extern "C" fn armed_none(iterations: u64, first: u64) {
    each(iterations, first, |_| tracing::event!(Level::INFO, "none"));
}

extern "C" fn armed_u64(iterations: u64, first: u64) {
    each(iterations, first, |number| tracing::event!(Level::INFO, number, "u64"));
}

extern "C" fn armed_ints3(iterations: u64, first: u64) {
    each(iterations, first, |number| {
        tracing::event!(Level::INFO, a = number, b = -(number as i64), c = number as u32, "ints3");
    });
}

extern "C" fn armed_str32(iterations: u64, first: u64) {
    each(iterations, first, |number| tracing::event!(Level::INFO, text = text(number), "str32"));
}

extern "C" fn dormant_u64(iterations: u64, first: u64) {
    each(iterations, first, |number| tracing::event!(Level::DEBUG, number, "u64"));
}

/// A function of its own, with an event of its own.
macro_rules! site {
    ($level:ident, $number:expr) => {{
        #[inline(never)]
        fn site(value: u64) {
            // Its number is in it, so that no two are the same function; the empty sites have theirs too.
            std::hint::black_box(value ^ $number);
            tracing::event!(Level::$level, number = value, "site");
        }
        site
    }};
}

macro_rules! armed_site {
    ($a:literal $b:literal $c:literal) => {
        site!(INFO, $a * 100 + $b * 10 + $c)
    };
}

macro_rules! dormant_site {
    ($a:literal $b:literal $c:literal) => {
        site!(DEBUG, $a * 100 + $b * 10 + $c)
    };
}

static ARMED_SITES: Sites = sites!(armed_site);
static DORMANT_SITES: Sites = sites!(dormant_site);

extern "C" fn armed_sites_10(iterations: u64, first: u64) {
    each_site::<10>(iterations, first, flat(&ARMED_SITES));
}

extern "C" fn armed_sites_1000(iterations: u64, first: u64) {
    each_site::<1000>(iterations, first, flat(&ARMED_SITES));
}

extern "C" fn dormant_sites_10(iterations: u64, first: u64) {
    each_site::<10>(iterations, first, flat(&DORMANT_SITES));
}

extern "C" fn dormant_sites_1000(iterations: u64, first: u64) {
    each_site::<1000>(iterations, first, flat(&DORMANT_SITES));
}

fn arrived() -> Result<u64, String> {
    // Dropping it has the thread write what it has been sent; a second at most is waited for.
    drop(GUARD.lock().map_err(|error| error.to_string())?.take());
    let lines = settled(|| LINES.load(Ordering::Relaxed));
    let dropped = DROPPED.get().map_or(0, ErrorCounter::dropped_lines) as u64;
    report(lines, dropped, "lines; lost as the writer's channel was full")
}

fn main() -> ExitCode {
    let (writer, guard) = NonBlocking::new(Sink);
    let _ = DROPPED.set(writer.error_counter());
    if let Ok(mut slot) = GUARD.lock() {
        *slot = Some(guard);
    }
    tracing_subscriber::fmt().with_max_level(Level::INFO).with_ansi(false).with_writer(writer).init();
    let mut cases = vec![EMPTY];
    cases.extend(EMPTY_SITES_CASES);
    cases.extend([
        Case { name: "armed_none", run: armed_none, events_per_iteration: 1 },
        Case { name: "armed_u64", run: armed_u64, events_per_iteration: 1 },
        Case { name: "armed_ints3", run: armed_ints3, events_per_iteration: 1 },
        Case { name: "armed_str32", run: armed_str32, events_per_iteration: 1 },
        Case { name: "armed_sites_10", run: armed_sites_10, events_per_iteration: 1 },
        Case { name: "armed_sites_1000", run: armed_sites_1000, events_per_iteration: 1 },
        Case { name: "dormant_u64", run: dormant_u64, events_per_iteration: 0 },
        Case { name: "dormant_sites_10", run: dormant_sites_10, events_per_iteration: 0 },
        Case { name: "dormant_sites_1000", run: dormant_sites_1000, events_per_iteration: 0 },
    ]);
    dormouse_lab_harness::main(&Engine { name: "tracing", version: version("tracing"), cases, arrived: Some(arrived) })
}

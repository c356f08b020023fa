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

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use cases::{LEVEL, cases};
use dormouse_lab_harness::Engine;
use dormouse_lab_peer::{report, settled, version};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, WorkerGuard};

mod cases;

static LINES: AtomicU64 = AtomicU64::new(0);
static GUARD: Mutex<Option<WorkerGuard>> = Mutex::new(None);
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// A writer that counts lines and drops them.
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

fn arrived() -> Result<u64, String> {
    // Dropping the guard makes the thread write the lines that it was sent; the drop waits a second at most.
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
    tracing_subscriber::fmt().with_max_level(LEVEL).with_ansi(false).with_writer(writer).init();
    dormouse_lab_harness::main(&Engine {
        name: "tracing",
        version: version("tracing"),
        cases: cases(),
        arrived: Some(arrived),
    })
}

//! tracing-appender's non-blocking writer, in front of a sink that counts lines and drops them.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use dormouse_lab_peer::{report, settled};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, WorkerGuard};

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

/// Starts the writer, with its defaults: 128,000 lines in its channel, lossy, one writing thread.
pub fn writer() -> NonBlocking {
    let (writer, guard) = NonBlocking::new(Sink);
    let _ = DROPPED.set(writer.error_counter());
    if let Ok(mut slot) = GUARD.lock() {
        *slot = Some(guard);
    }
    writer
}

/// Ends the writer. Reports the sink's lines, and those that the writer has dropped because its channel was full.
pub fn arrived() -> Result<u64, String> {
    // Dropping the guard makes the thread write the lines that it was sent; the drop waits a second at most.
    drop(GUARD.lock().map_err(|error| error.to_string())?.take());
    let lines = settled(|| LINES.load(Ordering::Relaxed));
    let dropped = DROPPED.get().map_or(0, ErrorCounter::dropped_lines) as u64;
    report(lines, dropped, "lines; lost as the writer's channel was full")
}

//! Progress of reading: shown on standard error if it is a terminal and the work takes more than a second.

use std::io::IsTerminal;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::source::Source;

/// Time after which progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval between updates.
const TICK: Duration = Duration::from_millis(100);

/// Does work, and meanwhile shows how much of the traces has been read.
pub(crate) async fn during<T>(source: Source, work: impl Future<Output = T>) -> T {
    // For stores, progress is not counted.
    let Source::Traces(traces) = source else { return work.await };
    traces.read_bytes.store(0, Ordering::Relaxed);
    traces.all_bytes.store(0, Ordering::Relaxed);
    let position = || (traces.read_bytes.load(Ordering::Relaxed), traces.all_bytes.load(Ordering::Relaxed));
    of(position, "{bar:40} {bytes} of {total_bytes}", work).await
}

/// Does work, and meanwhile shows how much of it is done.
pub(crate) async fn of<T>(position: impl Fn() -> (u64, u64), template: &str, work: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(PATIENCE, &mut work).await {
        return done;
    }
    let bar = ProgressBar::new(0);
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    loop {
        let (done, all) = position();
        bar.set_length(all);
        bar.set_position(done);
        if let Ok(done) = tokio::time::timeout(TICK, &mut work).await {
            bar.finish_and_clear();
            return done;
        }
    }
}

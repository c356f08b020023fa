//! Progress of long work, shown on standard error if that is a terminal and the work takes more than a second.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use dormouse_reader::Reading;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time before anything is shown. Work that ends earlier shows nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// Steps between two updates of the bar.
const STEPS: u32 = 1 << 14;

/// A progress bar for reading traces, whose size is known.
pub(crate) struct Progress {
    bar: ProgressBar,
    begin: Instant,
    steps: u32,
    is_shown: bool,
}

impl Progress {
    /// Returns the progress of `reading`. `is_wanted`: whether a bar may be shown.
    pub(crate) fn of(reading: &Reading<'_>, is_wanted: bool) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(reading.size_bytes()), ProgressDrawTarget::hidden());
        Progress { bar, begin: Instant::now(), steps: 0, is_shown: !is_wanted || !std::io::stderr().is_terminal() }
    }

    /// Hides the bar while `say` runs.
    pub(crate) fn hidden(&self, say: impl FnOnce()) {
        self.bar.suspend(say);
    }

    /// Counts one more item. Updates the bar every `STEPS` items.
    pub(crate) fn step(&mut self, reading: &Reading<'_>) {
        self.steps += 1;
        if self.steps >= STEPS {
            self.steps = 0;
            self.show(reading);
        }
    }

    /// Updates the bar, and shows it once `PATIENCE` has passed.
    pub(crate) fn show(&mut self, reading: &Reading<'_>) {
        if !self.is_shown && self.begin.elapsed() >= PATIENCE {
            self.is_shown = true;
            let style = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left");
            self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(reading.read_bytes());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Runs `work`, whose progress is not known, with a spinner and the message `what`.
pub(crate) fn during<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    let (sender, receiver) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if receiver.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let spinner = ProgressBar::new_spinner().with_message(what);
                // The spinner's frame rate.
                spinner.enable_steady_tick(Duration::from_millis(100));
                // Waits until the sender is dropped.
                let _ = receiver.recv();
                spinner.finish_and_clear();
            }
        });
        let result = work();
        drop(sender);
        result
    })
}

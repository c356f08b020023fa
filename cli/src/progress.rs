//! How far work has come: on standard error, if that is a terminal and the work takes more than a second.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use dormouse_reader::Reading;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Nothing is shown of work that is done before.
const PATIENCE: Duration = Duration::from_secs(1);
/// Steps between two looks at the clock.
const STEPS: u32 = 1 << 14;

/// Reading, whose size is known.
pub(crate) struct Progress {
    bar: ProgressBar,
    begin: Instant,
    steps: u32,
    is_shown: bool,
}

impl Progress {
    /// Of reading; `is_wanted`: whether a bar is in nothing's way.
    pub(crate) fn of(reading: &Reading<'_>, is_wanted: bool) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(reading.size_bytes()), ProgressDrawTarget::hidden());
        Progress { bar, begin: Instant::now(), steps: 0, is_shown: !is_wanted || !std::io::stderr().is_terminal() }
    }

    /// Does something without the bar, which is there again afterwards.
    pub(crate) fn hidden(&self, say: impl FnOnce()) {
        self.bar.suspend(say);
    }

    /// One item of it more.
    pub(crate) fn step(&mut self, reading: &Reading<'_>) {
        self.steps += 1;
        if self.steps >= STEPS {
            self.steps = 0;
            self.show(reading);
        }
    }

    /// So far it has come.
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

/// Does work of which nobody knows how far it has come.
pub(crate) fn during<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    let (sender, receiver) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if receiver.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let spinner = ProgressBar::new_spinner().with_message(what);
                // Often enough to look alive.
                spinner.enable_steady_tick(Duration::from_millis(100));
                // Until the sender is gone.
                let _ = receiver.recv();
                spinner.finish_and_clear();
            }
        });
        let result = work();
        drop(sender);
        result
    })
}

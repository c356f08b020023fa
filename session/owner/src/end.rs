//! The end of a session: how long it may take, whatever programs do.
//!
//! ```text
//!   Session::finish ── server closed? ─┐ each in a thread of its own, which is left behind when the time is up
//!                   ── programs left? ─┤
//!                                      ▼
//!   stopped = 1 (a process that has not left does so at its next page)  ──▶  drain  ──▶  files
//! ```
//! [`END_MAX`] bounds the waits for other processes. Waits for a disk cannot be bounded: leaving early would lose the
//! data to be written.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Total time for which a session's end waits for programs and tools.
pub(crate) const END_MAX: Duration = Duration::from_millis(1500);

/// Maximum number of programs asked at once, each by a thread that may have to wait.
const ASKING_MAX: usize = 64;

/// Interval at which a wait reads the clock.
const CLOCK_INTERVAL: Duration = Duration::from_millis(10);

/// Time limit of an operation.
pub(crate) struct Deadline<'a> {
    end: Duration,
    /// Returns the time since a fixed moment.
    now: &'a dyn Fn() -> Duration,
}

/// Returns a clock that counts from `begin`.
pub(crate) fn since(begin: Instant) -> impl Fn() -> Duration {
    move || begin.elapsed()
}

impl<'a> Deadline<'a> {
    /// Returns the deadline at `duration` from now.
    pub(crate) fn after(duration: Duration, now: &'a dyn Fn() -> Duration) -> Deadline<'a> {
        Deadline { end: now() + duration, now }
    }

    fn is_over(&self) -> bool {
        (self.now)() >= self.end
    }

    /// Returns the next item; `None` once the deadline is over, or no item can come any more.
    fn next<T>(&self, from: &Receiver<T>) -> Option<T> {
        loop {
            match from.recv_timeout(CLOCK_INTERVAL) {
                Ok(item) => return Some(item),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) if self.is_over() => return None,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Runs an action that may wait for other processes, and waits for it until the deadline. Returns false if it has
    /// not ended by then; its thread is left behind.
    pub(crate) fn bound(&self, name: &str, action: impl FnOnce() + Send + 'static) -> bool {
        let (done, is_done) = channel();
        let run = move || {
            action();
            let _ = done.send(());
        };
        // If no thread can be created, the action is dropped, not run.
        std::thread::Builder::new().name(name.into()).spawn(run).is_ok() && self.next(&is_done).is_some()
    }

    /// Asks each of `whom`, many at once, and waits for the answers until the deadline. Returns how many have not
    /// agreed.
    pub(crate) fn ask_all<T: Send + 'static>(
        &self,
        whom: Vec<T>,
        ask: impl Fn(T) -> bool + Clone + Send + 'static,
    ) -> usize {
        let count = whom.len();
        let (sender, answers) = channel();
        let whom = Arc::new(Mutex::new(whom));
        for _ in 0..count.min(ASKING_MAX) {
            let (whom, ask, sender) = (Arc::clone(&whom), ask.clone(), sender.clone());
            let next = move || whom.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let run = move || {
                while let Some(one) = next() {
                    let _ = sender.send(ask(one));
                }
            };
            // Fewer threads take longer; without any, nothing is asked.
            let _ = std::thread::Builder::new().name("dormouse-end".into()).spawn(run);
        }
        drop(sender);
        let answers = std::iter::from_fn(|| self.next(&answers)).take(count);
        count - answers.filter(|has_agreed| *has_agreed).count()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc::sync_channel;

    use super::*;

    /// A clock for tests that advances by a second at each look.
    fn leaping() -> impl Fn() -> Duration {
        let seconds = Cell::new(0);
        move || Duration::from_secs(seconds.replace(seconds.get() + 1))
    }

    #[test]
    fn programs_that_do_not_answer_are_left_at_the_deadline() {
        let clock = leaping();
        let deadline = Deadline::after(Duration::from_secs(4), &clock);
        // The senders never send: these threads wait until the test has ended.
        let (kept, never) = sync_channel::<()>(0);
        let never = Arc::new(Mutex::new(never));
        let ask = move |number: u32| match number % 10 {
            0 => never.lock().is_ok_and(|never| never.recv().is_ok()),
            1 => false,
            _ => true,
        };
        assert_eq!(deadline.ask_all((0..100).collect(), ask), 20);
        let (also_kept, never) = sync_channel::<()>(0);
        assert!(!deadline.bound("never", move || assert!(never.recv().is_err())));
        assert!(deadline.is_over());
        drop((kept, also_kept));
    }

    #[test]
    fn waiting_ends_with_the_last_answer() {
        // A clock that stands still: only answers end the wait.
        let clock = || Duration::ZERO;
        let deadline = Deadline::after(END_MAX, &clock);
        assert_eq!(deadline.ask_all((0..1000).collect(), |number| number != 500), 1);
        assert_eq!(deadline.ask_all(Vec::new(), |_: u32| true), 0);
        assert!(deadline.bound("at once", || {}));
    }
}

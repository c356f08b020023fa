//! Which signals that ask for an end are one request. A second request ends at once what still waits after the first.
//!
//! timeout(1) sends its signal to its child and to the group, and a wrapper passes on what a terminal has sent to the whole foreground group: both reach a
//! process twice within a few milliseconds, and nobody has asked twice. A person does so later.

use core::time::Duration;

/// Signals within so much of the first one are the same request.
pub const REQUEST: Duration = Duration::from_millis(200);

/// The requests so far.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    /// When the last one came.
    last: Option<Duration>,
}

impl Requests {
    /// Takes note of a signal that came at `now`, by a clock that does not go back. True if it is a request of its own, and not one more signal of
    /// the last.
    pub fn is_new(&mut self, now: Duration) -> bool {
        let is_new = self.last.is_none_or(|last| now.saturating_sub(last) > REQUEST);
        if is_new {
            self.last = Some(now);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_soon_after_a_request_are_the_same_one() {
        let mut requests = Requests::default();
        let heard = [1_000u64, 1_000, 1_001, 1_200, 1_201, 1_300, 1_401, 1_402]
            .map(|ms| requests.is_new(Duration::from_millis(ms)));
        assert_eq!(heard, [true, false, false, false, true, false, false, true]);
    }
}

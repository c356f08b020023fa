//! Grouping of signals that ask for an end into requests. A second request ends at once whatever still waits after the
//! first.
//!
//! timeout(1) sends its signal to its child and to the group, and a wrapper forwards the signal that a terminal has
//! sent to the whole foreground group. In both cases a process receives the signal twice within a few milliseconds, for
//! one request. A second request by a person comes later.

use core::time::Duration;

/// Maximum time from the first signal of a request to its repetitions.
pub const REQUEST: Duration = Duration::from_millis(200);

/// The requests received so far.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    /// Time of the last request.
    last: Option<Duration>,
}

impl Requests {
    /// Records a signal at time `now` of a clock that does not go back. Returns true if it is a new request, and false
    /// if it repeats the last one.
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
    fn signals_soon_after_a_request_count_as_the_same_request() {
        let mut requests = Requests::default();
        let heard = [1_000u64, 1_000, 1_001, 1_200, 1_201, 1_300, 1_401, 1_402]
            .map(|ms| requests.is_new(Duration::from_millis(ms)));
        assert_eq!(heard, [true, false, false, false, true, false, false, true]);
    }
}

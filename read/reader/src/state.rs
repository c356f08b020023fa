//! The account of the state streams: losses, and the processes that write events.

use dormouse_ctf::{Event, Merge, StatedLosses, Writers};

use crate::TraceFiles;

/// Losses and writers, as known from the state records so far.
#[derive(Debug, Default)]
pub struct State {
    /// Losses that no packet states.
    pub losses: StatedLosses,
    /// Writers of events.
    pub writers: Writers,
}

impl State {
    /// Takes the next event, of which only state records matter.
    #[inline]
    pub(crate) fn note(&mut self, event: &Event<'_>) {
        if event.is_state() {
            self.note_record(event);
        }
    }

    /// State records are rare.
    #[cold]
    fn note_record(&mut self, event: &Event<'_>) {
        if let Some(record) = event.state_record() {
            self.losses.note(&record);
            self.writers.note(event, &record);
        }
    }
}

impl TraceFiles {
    /// Returns the account at the ends of the state streams. Damage is passed over.
    pub fn state(&self) -> State {
        let indices = (0..self.stream_count()).filter(|index| self.is_state(*index));
        let mut events = Merge::new(indices.map(|index| self.reader(index)));
        let mut state = State::default();
        while let Some(item) = events.next_event() {
            if let Ok(event) = item {
                state.note(&event);
            }
        }
        state
    }
}

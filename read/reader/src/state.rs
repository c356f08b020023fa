//! The account of the state streams: losses, and the processes that write events.

use std::collections::HashMap;

use dormouse_ctf::{Event, Merge, StateRecord, StatedLosses, Writers};

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

/// A program that a process executed, and what it called itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramNames {
    /// Process id that its events carry.
    pub pid: u32,
    /// Its names, in the order in which it had them, each once.
    pub names: Vec<String>,
}

impl TraceFiles {
    /// Calls `each` with the events of the state streams, in the order of time. Damage is passed over.
    fn each_of_state(&self, mut each: impl FnMut(&Event<'_>)) {
        let indices = (0..self.stream_count()).filter(|index| self.is_state(*index));
        let mut events = Merge::new(indices.map(|index| self.reader(index)));
        while let Some(item) = events.next_event() {
            if let Ok(event) = item {
                each(&event);
            }
        }
    }

    /// Returns the programs of all processes with their names, as the state streams say.
    pub fn program_names(&self) -> Vec<ProgramNames> {
        let mut programs: Vec<ProgramNames> = Vec::new();
        // Index of the program, by stream and the process's number in the session.
        let mut current = HashMap::new();
        self.each_of_state(|event| match event.state_record() {
            Some(StateRecord::Process { process, vpid, name, .. }) => {
                current.insert((event.stream, process), programs.len());
                programs.push(ProgramNames { pid: vpid, names: vec![name.into()] });
            }
            Some(StateRecord::ProcessName { process, name }) => {
                if let Some(index) = current.get(&(event.stream, process)) {
                    let names = &mut programs[*index].names;
                    if !names.iter().any(|known| known == name) {
                        names.push(name.into());
                    }
                }
            }
            _ => {}
        });
        programs
    }

    /// Returns the account at the ends of the state streams.
    pub fn state(&self) -> State {
        let mut state = State::default();
        self.each_of_state(|event| state.note(event));
        state
    }
}

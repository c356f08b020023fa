//! What a report is made of.

use std::collections::HashMap;

use dormouse_abi::text::printable;
use dormouse_analysis::timeline::Totals;
use dormouse_ctf::Event;
use dormouse_ctf::text::FieldTexts;
use serde::Serialize;

use crate::compare::{Beside, Samples};
use crate::counters::Counter;
use crate::details::Details;

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It has a begin and an end.
    Slice,
    /// It has a time.
    Instant,
}

/// Something that happened in a thread.
#[derive(Debug, Clone, Copy)]
pub struct Item {
    /// What it is.
    pub kind: Kind,
    /// Nanoseconds since the epoch.
    pub begin_ns: i64,
    /// Of an instant 0.
    pub duration_ns: u64,
    /// As [`Contents::add_name`] has numbered it.
    pub name: u32,
    /// As [`Contents::thread`] has numbered it.
    pub thread: u32,
    /// The CPU on which it began, as [`Contents::cpu`] has numbered it.
    pub cpu: u32,
    /// What items in other threads have in common with it; 0: nothing.
    pub key: u32,
    /// As [`Contents::fields`] has numbered them, plus 1; 0: it has none.
    pub fields: u32,
}

/// A process, or one of the programs that it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// What it calls itself.
    pub name: String,
    /// Its id as it sees it itself.
    pub pid: Option<u64>,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Thread {
    /// Its process, as [`Contents::process`] has numbered it.
    pub process: u32,
    /// Its id.
    pub tid: Option<u64>,
    /// What it is called, if it is no thread.
    pub label: Option<String>,
}

/// A CPU, `None`: not known which.
pub type Cpu = Option<u32>;

/// A loss.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Not before, nanoseconds since the epoch; `None`: not known.
    pub begin_ns: Option<i64>,
    /// Not after.
    pub end_ns: Option<i64>,
    /// How many events; 0: not known.
    pub events: u64,
    /// On which CPU, as [`Contents::cpu`] has numbered it.
    pub cpu: Option<u32>,
    /// The stream that tells of it.
    pub stream: String,
    /// What it tells.
    pub text: String,
}

/// The fields of an item, as text: written by [`Fields::put`], read in the page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields(pub(crate) Vec<u8>);

/// Between parts of [`Fields`]; texts have none of these, because [`printable`] has removed them.
const FIELD: u8 = 0;
const EVENT: u8 = 1;
/// What one event has in a report.
const EVENT_BYTES_MAX: usize = 16 << 10;

impl Fields {
    /// Begins with the fields of an event.
    pub fn event(&mut self, name: &str) {
        self.0.push(EVENT);
        self.0.extend(printable(name).as_bytes());
    }

    /// An event with all its fields.
    pub(crate) fn of(&mut self, event: &Event<'_>, texts: &mut FieldTexts) {
        self.event(&event.class.full_name);
        for (name, value) in texts.of(event) {
            self.put(name, &String::from_utf8_lossy(value));
        }
    }

    /// One field more, of the event at hand. What is long beyond reason is cut.
    pub fn put(&mut self, name: &str, value: &str) {
        for text in [name, value] {
            let room = EVENT_BYTES_MAX.saturating_sub(self.0.len());
            self.0.push(FIELD);
            // Most are of this kind, and are not copied first.
            if text.len() <= room && text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
                self.0.extend(text.as_bytes());
                continue;
            }
            let text = printable(text);
            match text.len() <= room {
                true => self.0.extend(text.as_bytes()),
                false => {
                    let end = (0..=room).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
                    self.0.extend(&text.as_bytes()[..end]);
                    self.0.extend("…".as_bytes());
                }
            }
        }
    }
}

/// What is put into a report.
#[derive(Debug, Default)]
pub struct Contents {
    /// What the report is called: the trace's path.
    pub title: String,
    /// Where it was recorded, and when: lines for people.
    pub about: Vec<String>,
    /// What is to be said at the top: losses, damage, what could not be paired. A line each.
    pub notes: Vec<String>,
    /// Events that were read.
    pub events: u64,
    /// Of the timeline that it was made of.
    pub totals: Option<Totals>,
    /// Whether more can be read later.
    pub is_growing: bool,
    pub(crate) names: Vec<String>,
    pub(crate) processes: Vec<Process>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) items: Vec<Item>,
    pub(crate) losses: Vec<Loss>,
    pub(crate) counters: Vec<Counter>,
    /// Of each counter; more are thrown together.
    pub(crate) counter_values_max: Option<usize>,
    pub(crate) details: Details,
    /// Of what is compared.
    pub(crate) samples: Option<Samples>,
    pub(crate) beside: Option<Beside>,
    thread_numbers: HashMap<Thread, u32>,
    value_count: usize,
    loss_bytes: usize,
}

/// What an item takes while a page is made.
const ITEM_BYTES: usize = 192;
/// What a value of a counter takes.
const VALUE_BYTES: usize = 64;

impl Contents {
    /// What items, their fields, values of counters and losses take, about.
    pub fn memory_bytes(&self) -> usize {
        ITEM_BYTES * self.items.len() + self.details.memory_bytes() + VALUE_BYTES * self.value_count + self.loss_bytes
    }

    /// One name more. Names are numbered as they come.
    pub fn add_name(&mut self, name: &str) -> u32 {
        self.names.push(printable(name));
        self.names.len() as u32 - 1
    }

    /// One process more.
    pub fn process(&mut self, process: Process) -> u32 {
        self.processes.push(Process { name: printable(&process.name), ..process });
        self.processes.len() as u32 - 1
    }

    /// A process gets another name.
    pub fn rename(&mut self, process: u32, name: &str) {
        if let Some(process) = self.processes.get_mut(process as usize) {
            process.name = printable(name);
        }
    }

    /// The number of a thread.
    pub fn thread(&mut self, thread: Thread) -> u32 {
        if let Some(number) = self.thread_numbers.get(&thread) {
            return *number;
        }
        let number = self.threads.len() as u32;
        self.threads.push(Thread { label: thread.label.as_deref().map(printable), ..thread });
        self.thread_numbers.insert(thread, number);
        number
    }

    /// The number of a CPU.
    pub fn cpu(&mut self, cpu: Cpu) -> u32 {
        let known = self.cpus.iter().position(|known| *known == cpu);
        known.unwrap_or_else(|| {
            self.cpus.push(cpu);
            self.cpus.len() - 1
        }) as u32
    }

    /// The number of an item's fields.
    pub fn fields(&mut self, fields: &Fields) -> u32 {
        self.details.add(&fields.0)
    }

    /// One item more.
    pub fn item(&mut self, item: Item) {
        self.items.push(item);
    }

    /// One counter more, of a process. Counters are numbered as they come.
    pub fn counter(&mut self, process: u32, name: &str) -> u32 {
        self.counters.push(Counter::new(process, printable(name)));
        self.counters.len() as u32 - 1
    }

    /// A counter has this value from now on. Values come in the order of time.
    pub fn count(&mut self, counter: u32, ns: i64, value: f64) {
        if let Some(counter) = self.counters.get_mut(counter as usize) {
            counter.add(ns, value, self.counter_values_max.unwrap_or(usize::MAX));
            self.value_count += 1;
        }
    }

    /// One loss more.
    pub fn loss(&mut self, loss: Loss) {
        self.loss_bytes += 2 * (size_of::<Loss>() + loss.stream.len() + loss.text.len());
        self.losses.push(Loss { stream: printable(&loss.stream), text: printable(&loss.text), ..loss });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cannot_be_taken_for_others_and_are_cut_at_letters() {
        let mut fields = Fields::default();
        fields.event("p:\u{1}e");
        fields.put("a\0b", "1");
        let parts: Vec<_> = fields.0.split(|byte| *byte == FIELD).collect();
        assert_eq!(parts.len(), 3, "{parts:?}");
        assert_eq!(fields.0.iter().filter(|byte| **byte == EVENT).count(), 1);
        fields.put("long", &"ä".repeat(EVENT_BYTES_MAX));
        assert!(fields.0.len() < EVENT_BYTES_MAX + 16);
        assert!(std::str::from_utf8(&fields.0).is_ok_and(|text| text.ends_with('…')));
    }

    #[test]
    fn threads_and_cpus_have_one_number() {
        let mut contents = Contents::default();
        let thread = Thread { process: 0, tid: Some(1), label: None };
        assert_eq!([contents.thread(thread.clone()), contents.thread(thread)], [0, 0]);
        assert_eq!([Some(0), None, Some(0)].map(|cpu| contents.cpu(cpu)), [0, 1, 0]);
    }
}

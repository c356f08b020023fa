//! The contents of a report.

use std::collections::HashMap;

use dormouse_abi::text::printable;
use dormouse_analysis::timeline::Totals;
use dormouse_ctf::Event;
use dormouse_print::FieldTexts;
use serde::Serialize;

use crate::compare::{Beside, Samples};
use crate::counters::Counter;
use crate::details::Details;
use crate::stacks::Owner;

/// Kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It has a begin and an end.
    Slice,
    /// It has one time.
    Instant,
}

/// Something that happened on a thread.
#[derive(Debug, Clone, Copy)]
pub struct Item {
    /// Kind of the item.
    pub kind: Kind,
    /// Time of its begin, in nanoseconds since the epoch.
    pub begin_ns: i64,
    /// Duration in nanoseconds; 0 for an instant.
    pub duration_ns: u64,
    /// Number of its name, from [`Contents::add_name`].
    pub name: u32,
    /// Number of its thread, from [`Contents::thread`].
    pub thread: u32,
    /// Number of its lane, for a slice that belongs to a process and not to a thread.
    pub lane: Option<u32>,
    /// Number of the CPU on which it began, from [`Contents::cpu`].
    pub cpu: u32,
    /// Key that it shares with items of other threads; 0 for none.
    pub key: u32,
    /// Number of its fields, from [`Contents::fields`]; 0 for none.
    pub fields: u32,
}

impl Item {
    /// Returns the thread and the lane that it belongs to.
    pub(crate) fn owner(&self) -> Owner {
        (self.thread, self.lane.unwrap_or(0))
    }
}

/// A process, or one of the programs that it ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Name of the process.
    pub name: String,
    /// Process id in its own namespace.
    pub pid: Option<u64>,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Thread {
    /// Number of its process, from [`Contents::process`].
    pub process: u32,
    /// Thread id.
    pub tid: Option<u64>,
    /// Label, if it is not a thread.
    pub label: Option<String>,
    /// Name, if the thread has one of its own ([`Contents::name_thread`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A CPU; `None` if it is unknown.
pub type Cpu = Option<u32>;

/// A loss.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Earliest time, in nanoseconds since the epoch; `None` if unknown.
    pub begin_ns: Option<i64>,
    /// Latest time, in nanoseconds since the epoch; `None` if unknown.
    pub end_ns: Option<i64>,
    /// Number of lost events; 0 if unknown.
    pub events: u64,
    /// Number of its CPU, from [`Contents::cpu`].
    pub cpu: Option<u32>,
    /// The stream that reports it.
    pub stream: String,
    /// Text of the report.
    pub text: String,
}

/// The fields of an item as text, written by [`Fields::put`] and read by the page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields(pub(crate) Vec<u8>);

/// Separators in [`Fields`]. Texts do not contain them, because [`printable`] has removed them.
const FIELD: u8 = 0;
const EVENT: u8 = 1;
/// Maximum size of the fields of an item.
const EVENT_BYTES_MAX: usize = 16 << 10;

impl Fields {
    /// Starts the fields of an event.
    pub fn event(&mut self, name: &str) {
        self.0.push(EVENT);
        self.0.extend(printable(name).as_bytes());
    }

    /// Adds an event with all its fields.
    pub(crate) fn of(&mut self, event: &Event<'_>, texts: &mut FieldTexts) {
        self.event(&event.class.full_name);
        for (name, value) in texts.of(event) {
            self.put(name, &String::from_utf8_lossy(value));
        }
    }

    /// Adds a field to the event that was started last. A text that exceeds the limit is cut.
    pub fn put(&mut self, name: &str, value: &str) {
        for text in [name, value] {
            let room = EVENT_BYTES_MAX.saturating_sub(self.0.len());
            self.0.push(FIELD);
            // Most texts are printable ASCII and are added without a copy.
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

/// The contents of a report.
#[derive(Debug, Default)]
pub struct Contents {
    /// Title of the report: the path of the trace.
    pub title: String,
    /// Where and when it was recorded, as lines of text.
    pub about: Vec<String>,
    /// Notes at the top of the page: losses, damage, events that could not be paired. One line each.
    pub notes: Vec<String>,
    /// Number of events that were read.
    pub events: u64,
    /// Counts of the timeline that it was made from.
    pub totals: Option<Totals>,
    /// Whether the trace still grows.
    pub is_growing: bool,
    /// Time from which times in the page count, in nanoseconds since the epoch; `None`: the first item.
    pub zero_ns: Option<i64>,
    /// Names of the fields that events can have.
    pub field_names: Vec<String>,
    /// What begins and ends of each name are paired by: fields, `pid`, `tid`, `cpu`; empty for pairs of a thread.
    pub keys: Vec<Vec<String>>,
    /// Text of slices at first: names of fields in braces stand for their values. Empty: their name.
    pub label: String,
    /// Numbers of names of which no slice is certain.
    pub(crate) doubtful: Vec<u32>,
    pub(crate) names: Vec<String>,
    pub(crate) processes: Vec<Process>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) cpus: Vec<Cpu>,
    pub(crate) items: Vec<Item>,
    pub(crate) losses: Vec<Loss>,
    pub(crate) counters: Vec<Counter>,
    /// Maximum number of values for each counter; beyond it, values are merged.
    pub(crate) counter_values_max: Option<usize>,
    pub(crate) details: Details,
    /// Data for the comparison.
    pub(crate) samples: Option<Samples>,
    pub(crate) beside: Option<Beside>,
    thread_numbers: HashMap<Thread, u32>,
    value_count: usize,
    loss_bytes: usize,
}

/// Memory that is counted for an item while a page is made.
const ITEM_BYTES: usize = 192;
/// Memory that is counted for a value of a counter.
const VALUE_BYTES: usize = 64;

impl Contents {
    /// Returns the approximate memory in bytes of items, their fields, values of counters, and losses.
    pub fn memory_bytes(&self) -> usize {
        ITEM_BYTES * self.items.len() + self.details.memory_bytes() + VALUE_BYTES * self.value_count + self.loss_bytes
    }

    /// Adds a name and returns its number. Names are numbered in the order of addition.
    pub fn add_name(&mut self, name: &str) -> u32 {
        self.names.push(printable(name));
        self.names.len() as u32 - 1
    }

    /// Adds a process and returns its number.
    pub fn process(&mut self, process: Process) -> u32 {
        self.processes.push(Process { name: printable(&process.name), ..process });
        self.processes.len() as u32 - 1
    }

    /// Renames a process.
    pub fn rename(&mut self, process: u32, name: &str) {
        if let Some(process) = self.processes.get_mut(process as usize) {
            process.name = printable(name);
        }
    }

    /// Returns the number of a thread.
    pub fn thread(&mut self, thread: Thread) -> u32 {
        if let Some(number) = self.thread_numbers.get(&thread) {
            return *number;
        }
        let number = self.threads.len() as u32;
        let label = thread.label.as_deref().map(printable);
        self.threads.push(Thread { label, ..thread.clone() });
        self.thread_numbers.insert(thread, number);
        number
    }

    /// Gives a thread a name.
    pub fn name_thread(&mut self, thread: u32, name: &str) {
        if let Some(thread) = self.threads.get_mut(thread as usize) {
            thread.name = Some(printable(name));
        }
    }

    /// Returns the number of a CPU.
    pub fn cpu(&mut self, cpu: Cpu) -> u32 {
        let known = self.cpus.iter().position(|known| *known == cpu);
        known.unwrap_or_else(|| {
            self.cpus.push(cpu);
            self.cpus.len() - 1
        }) as u32
    }

    /// Adds the fields of an item and returns their number plus 1; 0 if there are too many.
    pub fn fields(&mut self, fields: &Fields) -> u32 {
        self.details.add(&fields.0)
    }

    /// Adds an item.
    pub fn item(&mut self, item: Item) {
        self.items.push(item);
    }

    /// Adds a counter of a process and returns its number. Counters are numbered in the order of addition.
    pub fn counter(&mut self, process: u32, name: &str) -> u32 {
        self.counters.push(Counter::new(process, printable(name)));
        self.counters.len() as u32 - 1
    }

    /// Adds a value of a counter. Values must be added in the order of time.
    pub fn count(&mut self, counter: u32, ns: i64, value: f64) {
        if let Some(counter) = self.counters.get_mut(counter as usize) {
            counter.add(ns, value, self.counter_values_max.unwrap_or(usize::MAX));
            self.value_count += 1;
        }
    }

    /// Adds a loss.
    pub fn loss(&mut self, loss: Loss) {
        self.loss_bytes += 2 * (size_of::<Loss>() + loss.stream.len() + loss.text.len());
        self.losses.push(Loss { stream: printable(&loss.stream), text: printable(&loss.text), ..loss });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_unambiguous_and_are_cut_between_letters() {
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
        let thread = Thread { process: 0, tid: Some(1), label: None, name: None };
        assert_eq!([contents.thread(thread.clone()), contents.thread(thread)], [0, 0]);
        assert_eq!([Some(0), None, Some(0)].map(|cpu| contents.cpu(cpu)), [0, 1, 0]);
    }
}

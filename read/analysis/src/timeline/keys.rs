//! Finds the fields by which begins and ends belong together.
//!
//! Slices are paired by thread unless a key is given. A task that an executor moves between threads begins on one and
//! ends on another: pairs by thread then join different tasks. So the events are looked at once before the timeline is
//! made. Each pair of classes is paired by thread and, at the same time, by each field that both classes have:
//!
//! ```text
//!   by thread:  begins and ends left alone + pairs whose ends have different values of the field
//!   by field:   begins and ends left alone
//! ```
//! The field with the smallest number is the key, if its number is smaller than that of the thread. If there is no such
//! field, and threads have ends without a begin again and again, no pair of these classes is certain.
//!
//! # Limits
//! At most 8 fields of a pair are compared, alone and all together. Memory is bounded by the caller of [`find_keys`]: a
//! pair of classes for whose open begins there is none is left as it is.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use dormouse_ctf::{ClassRef, Event, Notice, Problem, Trace, TraceRef, Writers};
use dormouse_filter::parse_name;

use super::Options;
use super::room::Room;
use super::rules::Bound;
use crate::found_key::FoundKey;
use crate::key;
use crate::pick::{Picker, Said};

/// Memory that is counted for a thread of a pair of classes.
const THREAD_BYTES: usize = 192;
/// Maximum number of fields of a pair of classes that are compared.
const FIELDS_MAX: usize = 8;

/// Begins of a thread that wait for their end: the hashed values of the common fields of each.
#[derive(Debug, Default)]
struct Thread {
    open: Vec<Box<[u64]>>,
    has_begun: bool,
}

/// Trace, process and hashed value of a key.
type KeyValue = (usize, Option<u64>, u64);

/// The events of one name of slices.
#[derive(Debug, Default)]
struct Candidate {
    /// Names of the common fields of each possible key.
    keys: Vec<Vec<String>>,
    /// Indices of the common fields in the picker.
    fields: Vec<usize>,
    /// By trace, process and thread.
    threads: HashMap<(usize, Option<u64>, Option<u64>), Thread>,
    /// Number of open begins, one map for each key.
    open: Vec<HashMap<KeyValue, u32>>,
    open_count: usize,
    is_full: bool,
    /// Ends without a begin on their thread.
    alone: u64,
    /// The number of these on a thread that had a begin before.
    elsewhere: u64,
    /// Ends without a begin with the same values, for each key.
    alone_by_key: Vec<u64>,
    /// Pairs by thread whose ends have different values, for each key.
    contradicted: Vec<u64>,
}

impl Candidate {
    /// Returns the memory that is counted for an open begin: its values, and an entry of each map.
    fn begin_bytes(&self) -> usize {
        // A growing vector has up to twice the capacity that it needs, a map more.
        64 + self.keys.len() * (8 + 3 * size_of::<(KeyValue, u32)>())
    }

    /// Whether events are left out from now on: there is no room for this many bytes more.
    fn is_out_of(&mut self, room: &mut Room, bytes: usize) -> bool {
        self.is_full |= !room.take(bytes);
        if self.is_full {
            room.give(self.open_count * self.begin_bytes() + self.threads.len() * THREAD_BYTES);
            (self.threads, self.open, self.open_count) = Default::default();
        }
        self.is_full
    }

    fn begin(&mut self, trace: usize, pid: Option<u64>, tid: Option<u64>, values: &[u64], room: &mut Room) {
        let is_new = !self.threads.contains_key(&(trace, pid, tid));
        let bytes = self.begin_bytes() + if is_new { THREAD_BYTES } else { 0 };
        if self.is_full || self.is_out_of(room, bytes) {
            return;
        }
        self.open_count += 1;
        let thread = self.threads.entry((trace, pid, tid)).or_default();
        thread.has_begun = true;
        thread.open.push(values.into());
        for (open, value) in self.open.iter_mut().zip(values) {
            *open.entry((trace, pid, *value)).or_default() += 1;
        }
    }

    fn end(&mut self, trace: usize, pid: Option<u64>, tid: Option<u64>, values: &[u64], room: &mut Room) {
        let is_new = !self.threads.contains_key(&(trace, pid, tid));
        if self.is_full || is_new && self.is_out_of(room, THREAD_BYTES) {
            return;
        }
        let begin_bytes = self.begin_bytes();
        let thread = self.threads.entry((trace, pid, tid)).or_default();
        match thread.open.pop() {
            Some(begin) => {
                self.open_count -= 1;
                room.give(begin_bytes);
                for (at, count) in self.contradicted.iter_mut().enumerate() {
                    *count += u64::from(begin[at] != values[at]);
                }
            }
            None => {
                self.alone += 1;
                self.elsewhere += u64::from(thread.has_begun);
            }
        }
        for (at, value) in values.iter().enumerate() {
            let key = (trace, pid, *value);
            match self.open[at].get_mut(&key) {
                Some(open) if *open > 1 => *open -= 1,
                Some(_) => drop(self.open[at].remove(&key)),
                None => self.alone_by_key[at] += 1,
            }
        }
    }

    /// Returns the key of these slices; `None` if they are paired by thread. `lost`: number of lost events.
    fn finish(self, name: &str, lost: u64) -> Option<FoundKey> {
        if self.is_full {
            return None;
        }
        let begins = |open: &HashMap<_, u32>| open.values().map(|count| u64::from(*count)).sum::<u64>();
        let by_thread = self.alone + self.open_count as u64;
        let counts = self.alone_by_key.iter().zip(&self.open).map(|(ends, open)| ends + begins(open));
        let best = counts.zip(&self.contradicted).enumerate().min_by_key(|(_, (alone, _))| *alone);
        if let Some((at, (alone, contradicted))) = best
            && alone < by_thread + contradicted
        {
            let fields = self.keys[at].clone();
            return Some(FoundKey { name: name.into(), fields, alone, alone_by_thread: by_thread + contradicted });
        }
        // A thread that is within a slice when the recording begins or ends has an end or a begin alone, and a lost event
        // leaves one more. Tasks that move leave both.
        let is_doubtful = self.elsewhere.min(self.open_count as u64) > self.threads.len() as u64 + lost;
        let found = FoundKey { name: name.into(), fields: Vec::new(), alone: by_thread, alone_by_thread: by_thread };
        is_doubtful.then_some(found)
    }
}

/// Returns the keys that the events of traces show, by name of the slices; none if no slice is paired by thread.
///
/// `traces_of_streams`: the index of each stream's trace; `memory_bytes`: maximum memory; `read`: passes the events in
/// the order of time and the notices to the survey. It is not called if no key is to be found.
///
/// # Errors
/// As for [`Timeline::new`](super::Timeline::new).
pub fn find_keys(
    options: &Options,
    traces: &[Trace],
    traces_of_streams: impl IntoIterator<Item = usize>,
    memory_bytes: usize,
    read: impl FnOnce(&mut KeySurvey),
) -> Result<Vec<FoundKey>, String> {
    let traces: Vec<&Trace> = traces.iter().collect();
    let mut survey = KeySurvey::new(options, &traces, traces_of_streams, memory_bytes)?;
    if survey.candidates.is_empty() {
        return Ok(Vec::new());
    }
    read(&mut survey);
    Ok(survey.finish())
}

/// The state of [`find_keys`].
#[derive(Debug)]
pub struct KeySurvey {
    bound: Bound,
    picker: Picker,
    /// Writers, of which only the ids are needed.
    writers: Writers,
    /// Trace of each stream.
    traces: Vec<usize>,
    /// By the index of the slices' name.
    candidates: BTreeMap<u32, Candidate>,
    lost: u64,
    /// Memory for open begins and threads.
    room: Room,
}

impl KeySurvey {
    /// Creates a survey, without candidates if no slice is paired by thread.
    fn new(
        options: &Options,
        traces: &[&Trace],
        traces_of_streams: impl IntoIterator<Item = usize>,
        memory_bytes: usize,
    ) -> Result<KeySurvey, String> {
        let mut picker = Picker::default();
        let bound = Bound::new(options, traces, &mut picker)?;
        // Fields of all classes that begin, and of all that end, the slices of a name.
        let mut names: BTreeMap<u32, [Option<Vec<String>>; 2]> = BTreeMap::new();
        for class in traces.iter().flat_map(|trace| ClassRef::all(TraceRef::from(*trace))) {
            let Some(kind) = bound.kind_by_class.get(&std::ptr::from_ref(class.class).addr()) else { continue };
            for role in bound.kinds[*kind].roles.iter().filter(|role| role.key.is_none() && !role.is_wait) {
                let common = &mut names.entry(role.pair).or_default()[usize::from(role.is_begin)];
                let has = |name: &str| {
                    class.field(&parse_name(&format!("fields.{name}"))).is_some_and(|(_, kind)| kind.is_some())
                };
                *common = Some(match common.take() {
                    None => class.class.names().into_iter().filter(|name| has(name)).collect(),
                    Some(known) => known.into_iter().filter(|name| has(name)).collect(),
                });
            }
        }
        let mut candidates = BTreeMap::new();
        for (pair, ends) in names {
            let [Some(of_ends), Some(of_begins)] = ends else { continue };
            let mut common: Vec<String> = of_begins.into_iter().filter(|name| of_ends.contains(name)).collect();
            common.truncate(FIELDS_MAX);
            let fields = common.iter().map(|name| picker.want(&format!("fields.{name}"))).collect();
            let mut keys: Vec<Vec<String>> = common.iter().map(|name| vec![name.clone()]).collect();
            if common.len() > 1 {
                keys.push(common);
            }
            let count = keys.len();
            let (open, zeroes) = (keys.iter().map(|_| HashMap::new()).collect(), vec![0; count]);
            let candidate = Candidate {
                keys,
                fields,
                open,
                alone_by_key: zeroes.clone(),
                contradicted: zeroes,
                ..Candidate::default()
            };
            candidates.insert(pair, candidate);
        }
        let traces = traces_of_streams.into_iter().collect();
        let writers = Writers::default();
        let room = Room::new(memory_bytes / 4 * 3);
        Ok(KeySurvey { bound, picker, writers, traces, candidates, lost: 0, room })
    }

    /// Takes the next event or notice.
    pub fn take(&mut self, next: Result<Event<'_>, Notice>) {
        match next {
            Ok(event) => self.event(&event),
            Err(notice) => self.notice(&notice),
        }
    }

    fn event(&mut self, event: &Event<'_>) {
        let Some(kind) = self.bound.kind_by_class.get(&std::ptr::from_ref(event.class).addr()) else { return };
        let roles = &self.bound.kinds[*kind].roles;
        if !roles.iter().any(|role| self.candidates.contains_key(&role.pair)) {
            return;
        }
        self.picker.read(event);
        let writer = self.writers.of(event);
        let (pid, tid, trace) = (writer.pid, writer.tid, self.traces.get(event.stream).copied().unwrap_or(0));
        let mut bytes = Vec::new();
        let mut values = Vec::new();
        for role in roles.iter().filter(|role| role.key.is_none() && !role.is_wait) {
            let Some(candidate) = self.candidates.get_mut(&role.pair) else { continue };
            values.clear();
            let mut all = DefaultHasher::new();
            for field in &candidate.fields {
                bytes.clear();
                let cell = self.picker.cell(*field);
                if cell.said != Said::Nothing {
                    key::put_cell(cell, &mut bytes);
                }
                bytes.hash(&mut all);
                let mut one = DefaultHasher::new();
                bytes.hash(&mut one);
                values.push(one.finish());
            }
            if values.len() > 1 {
                values.push(all.finish());
            }
            match role.is_begin {
                true => candidate.begin(trace, pid, tid, &values, &mut self.room),
                false => candidate.end(trace, pid, tid, &values, &mut self.room),
            }
        }
    }

    fn notice(&mut self, notice: &Notice) {
        let count = if let Problem::Discarded { count, .. } = notice.problem { count } else { 1 };
        self.lost = self.lost.saturating_add(count);
    }

    fn finish(self) -> Vec<FoundKey> {
        let KeySurvey { bound, candidates, lost, .. } = self;
        candidates
            .into_iter()
            .filter_map(|(pair, candidate)| candidate.finish(&bound.names[pair as usize].text, lost))
            .collect()
    }
}

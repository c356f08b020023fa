//! Writers of events: process, thread, the name that the process gave itself, and where it runs.
//!
//! The writer is found in contexts (`vpid`, `vtid`, `procname`; in kernel traces `pid`, `tid`), in the environment of a
//! trace of one process, or in the state stream of a Dormouse trace.

use std::borrow::Cow;
use std::collections::HashMap;

use dormouse_filter::{Name, Part};
use dormouse_format::StateRecord;

use super::ClassRef;
use crate::hash::QuickMap;
use crate::model::EnvValue;
use crate::plan::{Pick, Picked};
use crate::processes::{Named, ProcessPlaces, Processes};
use crate::stream::{Event, EventFields, Scratch, TraceRef};

/// Writer of an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writer<'a> {
    /// Process id; the one that the process itself sees, if the trace has it.
    pub pid: Option<u64>,
    /// Thread id.
    pub tid: Option<u64>,
    /// Name of the process; it need not be UTF-8.
    pub name: Option<Cow<'a, [u8]>>,
    /// Name of the thread, if it has one of its own.
    pub thread: Option<&'a str>,
    /// Where the process runs.
    pub places: ProcessPlaces<'a>,
}

/// Writers of events, as known from the events so far.
#[derive(Debug, Default)]
pub struct Writers {
    /// Locations of writer fields, by address of the class.
    places: QuickMap<usize, Places>,
    /// Processes of Dormouse's traces. Traces are identified by the addresses of their plans.
    processes: Processes,
    scratch: Scratch,
}

impl Clone for Writers {
    fn clone(&self) -> Writers {
        let Writers { places, processes, scratch: _ } = self;
        Writers { places: places.clone(), processes: processes.clone(), scratch: Scratch::default() }
    }
}

/// Locations of the writer in the records of a class.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    pid: Option<Pick>,
    tid: Option<Pick>,
    name: Option<Pick>,
    /// Process id from the environment.
    env_pid: Option<u64>,
    env_name: Option<Box<str>>,
    is_own: bool,
}

impl Places {
    pub(super) fn of(class: &ClassRef<'_>) -> Places {
        let pick = |names: &[&str]| {
            let find = |name: &&str| {
                class.field(&Name { parts: ["context", name].map(|part| Part::Member(part.into())).into() })
            };
            names.iter().find_map(find).map(|(pick, _)| pick)
        };
        let env = |name: &str| class.trace.env().iter().find(|(key, _)| key == name).map(|(_, value)| value);
        Places {
            pid: pick(&["vpid", "pid"]),
            tid: pick(&["vtid", "tid"]),
            name: pick(&["procname", "comm"]),
            env_pid: match env("vpid") {
                Some(EnvValue::Number(pid)) => u64::try_from(*pid).ok(),
                _ => None,
            },
            env_name: match env("procname") {
                Some(EnvValue::Text(name)) => Some(name.as_str().into()),
                _ => None,
            },
            is_own: class.trace.is_own(),
        }
    }

    pub(super) fn has_pid(&self) -> bool {
        self.pid.is_some() || self.env_pid.is_some()
    }

    pub(super) fn has_tid(&self) -> bool {
        self.tid.is_some()
    }

    pub(super) fn has_name(&self) -> bool {
        self.name.is_some() || self.env_name.is_some() || self.has_places()
    }

    /// Whether the state stream can say where the process runs.
    pub(super) fn has_places(&self) -> bool {
        self.is_own && self.pid.is_some()
    }
}

/// Returns a key that identifies a trace.
fn key(trace: TraceRef<'_>) -> usize {
    std::ptr::from_ref(trace.plan).addr()
}

impl Writers {
    /// Returns the processes that state streams have named.
    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// Continues with the same traces after they were reopened. Each pair has the old and the new trace.
    pub fn reopened<'a>(&mut self, pairs: impl Iterator<Item = (TraceRef<'a>, TraceRef<'a>)>) {
        let now: HashMap<usize, usize> = pairs.map(|(before, now)| (key(before), key(now))).collect();
        self.places.clear();
        self.processes.renumber(|trace| now.get(&trace).copied());
    }

    /// Limits the memory for names to `bytes`.
    pub fn limit(&mut self, bytes: usize) {
        self.processes.limit(bytes);
    }

    /// Takes a record of the state stream, see [`Processes::note`].
    pub fn note<'r>(&mut self, event: &Event<'_>, record: &StateRecord<'r>) -> Option<Named<'r>> {
        self.processes.note(key(event.trace()), event.timestamp, record)
    }

    /// Returns the writer of an event.
    pub fn of<'a>(&'a mut self, event: &Event<'a>) -> Writer<'a> {
        self.of_fields(&ClassRef::of(event), &event.body())
    }

    /// Returns the writer of an event with this class and these fields.
    pub fn of_fields<'a>(&'a mut self, class: &ClassRef<'_>, event: &EventFields<'a>) -> Writer<'a> {
        let places = self.places.entry(class.key()).or_insert_with(|| Places::of(class));
        let scratch = &mut self.scratch;
        let mut number = |pick: &Option<Pick>| match event.pick(pick.as_ref()?, scratch)? {
            Picked::Integer(number, _) => Some(number),
            _ => None,
        };
        let (pid, tid) = (number(&places.pid).or(places.env_pid), number(&places.tid));
        let name = match places.name.as_ref().and_then(|pick| event.pick(pick, scratch)) {
            Some(Picked::Text(name)) => Some(name),
            _ if places.is_own => {
                let name = pid.and_then(|pid| self.processes.name(key(class.trace), pid.try_into().ok()?));
                name.map(|name| Cow::Borrowed(name.as_bytes()))
            }
            _ => places.env_name.as_ref().map(|name| Cow::Borrowed(name.as_bytes())),
        };
        let thread = match (pid.map(u32::try_from), tid.map(u32::try_from)) {
            (Some(Ok(pid)), Some(Ok(tid))) if places.is_own => self.processes.thread_name(key(class.trace), pid, tid),
            _ => None,
        };
        let places = match pid.map(u32::try_from) {
            Some(Ok(pid)) if places.is_own => self.processes.places(key(class.trace), pid),
            _ => ProcessPlaces::default(),
        };
        Writer { pid, tid, name, thread, places }
    }
}

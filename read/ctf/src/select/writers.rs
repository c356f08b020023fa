//! Writers of events: process, thread, and the name that the process gave itself.
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
}

/// Writers of events, as known from the events so far.
#[derive(Debug, Default)]
pub struct Writers {
    /// Locations of writer fields, by address of the class.
    places: QuickMap<usize, Places>,
    /// Names of processes, by trace and by the id that the process itself sees.
    names: QuickMap<(usize, u64), Box<str>>,
    /// Process ids, by trace and by the process's number in the session.
    ids: HashMap<(usize, u32), u64>,
    scratch: Scratch,
    /// Number of bytes by which names and ids may still grow; `None` means no limit.
    room_bytes: Option<usize>,
    names_not_kept: u64,
}

impl Clone for Writers {
    fn clone(&self) -> Writers {
        let Writers { places, names, ids, scratch: _, room_bytes, names_not_kept } = self;
        Writers {
            places: places.clone(),
            names: names.clone(),
            ids: ids.clone(),
            scratch: Scratch::default(),
            room_bytes: *room_bytes,
            names_not_kept: *names_not_kept,
        }
    }
}

/// Overhead of a name besides its text, in bytes.
const NAME_BYTES: usize = 128;

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
        self.name.is_some() || self.env_name.is_some() || (self.is_own && self.pid.is_some())
    }
}

/// Returns a key that identifies a trace.
fn key(trace: TraceRef<'_>) -> usize {
    std::ptr::from_ref(trace.plan).addr()
}

impl Writers {
    /// Returns the number of known processes.
    pub fn count(&self) -> usize {
        self.names.len() + self.ids.len()
    }

    /// Continues with the same traces after they were reopened. Each pair has the old and the new trace.
    pub fn reopened<'a>(&mut self, pairs: impl Iterator<Item = (TraceRef<'a>, TraceRef<'a>)>) {
        let now: HashMap<usize, usize> = pairs.map(|(before, now)| (key(before), key(now))).collect();
        let at = |trace: usize| now.get(&trace).copied();
        self.places.clear();
        let names = std::mem::take(&mut self.names).into_iter();
        self.names = names.filter_map(|((trace, pid), name)| Some(((at(trace)?, pid), name))).collect();
        let ids = std::mem::take(&mut self.ids).into_iter();
        self.ids = ids.filter_map(|((trace, process), pid)| Some(((at(trace)?, process), pid))).collect();
    }

    /// Limits the memory for names to `bytes`.
    pub fn limit(&mut self, bytes: usize) {
        self.room_bytes = Some(bytes);
    }

    /// Returns the number of names that were not kept for want of memory.
    pub fn names_not_kept(&self) -> u64 {
        self.names_not_kept
    }

    /// Updates the names from a record of the state stream.
    pub fn note(&mut self, event: &Event<'_>, record: &StateRecord<'_>) {
        let trace = key(event.trace());
        let (id, name) = match *record {
            StateRecord::Process { process, vpid, name, .. } => {
                if self.has_room(&(trace, vpid.into()), name) {
                    self.ids.insert((trace, process), vpid.into());
                }
                (Some(vpid.into()), name)
            }
            StateRecord::ProcessName { process, name } => (self.ids.get(&(trace, process)).copied(), name),
            _ => return,
        };
        let Some(key) = id.map(|id| (trace, id)) else { return };
        match self.has_room(&key, name) {
            true => {
                let before = self.names.insert(key, name.into()).map(|name| NAME_BYTES + name.len());
                if let Some(room) = &mut self.room_bytes {
                    *room = room.saturating_add(before.unwrap_or(0)).saturating_sub(NAME_BYTES + name.len());
                }
            }
            // A missing name is better than a wrong one.
            false => {
                let before = self.names.remove(&key).map_or(0, |name| NAME_BYTES + name.len());
                self.room_bytes = self.room_bytes.map(|room| room.saturating_add(before));
                self.names_not_kept += 1;
            }
        }
    }

    /// Whether a name can be kept in place of the known one.
    fn has_room(&self, key: &(usize, u64), name: &str) -> bool {
        let before = || self.names.get(key).map_or(0, |name| NAME_BYTES + name.len());
        self.room_bytes.is_none_or(|room| room.saturating_add(before()) >= NAME_BYTES + name.len())
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
                pid.and_then(|pid| self.names.get(&(key(class.trace), pid))).map(|name| Cow::Borrowed(name.as_bytes()))
            }
            _ => places.env_name.as_ref().map(|name| Cow::Borrowed(name.as_bytes())),
        };
        Writer { pid, tid, name }
    }
}

//! What events are grouped by, and paired by.
//!
//! While events are read, a key is bytes: no memory is taken for a key that was seen before.

use std::collections::HashMap;

use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_ctf::Event;
use serde::{Serialize, Serializer};

use crate::distribution::Number;
use crate::pick::{Cell, Said};

/// Longer texts are cut, so that the memory of keys is bounded.
const TEXT_BYTES_MAX: usize = 256;
/// Programs that are told apart.
const PROCESSES_MAX: usize = 1 << 20;

/// What a group is made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dimension {
    Interval,
    Event,
    Cpu,
    Pid,
    Tid,
    Process,
    /// By the picker's index.
    Field(usize),
}

/// One part of a group's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyValue {
    /// The events do not say.
    Unknown,
    /// An integer.
    Integer(i128),
    /// One that is shown as a hexadecimal number.
    Hexadecimal(u64),
    /// A float, as its bits.
    Real(u64),
    /// Text.
    Text(String),
}

impl KeyValue {
    /// A negative one stays as it is.
    pub(crate) fn make_hexadecimal(&mut self) {
        if let KeyValue::Integer(value) = self
            && let Ok(value) = u64::try_from(*value)
        {
            *self = KeyValue::Hexadecimal(value);
        }
    }

    /// For people.
    pub(crate) fn shown(&self) -> String {
        match self {
            KeyValue::Unknown => "unknown".into(),
            KeyValue::Integer(value) => value.to_string(),
            KeyValue::Hexadecimal(value) => format!("0x{value:X}"),
            KeyValue::Real(bits) => f64::from_bits(*bits).to_string(),
            KeyValue::Text(text) => dormouse_abi::text::printable(text),
        }
    }
}

impl Serialize for KeyValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            KeyValue::Unknown => serializer.serialize_none(),
            KeyValue::Integer(value) => Number::Whole(*value).serialize(serializer),
            KeyValue::Hexadecimal(value) => serializer.serialize_u64(*value),
            KeyValue::Real(bits) => serializer.serialize_f64(f64::from_bits(*bits)),
            KeyValue::Text(text) => serializer.serialize_str(text),
        }
    }
}

const UNKNOWN: u8 = 0;
const INTEGER: u8 = 1;
const REAL: u8 = 2;
const TEXT: u8 = 3;
const PROCESS: u8 = 4;
const CLASS: u8 = 5;

pub(crate) fn put_integer(value: i128, out: &mut Vec<u8>) {
    out.push(INTEGER);
    out.extend(value.to_le_bytes());
}

pub(crate) fn put_class(name: u32, out: &mut Vec<u8>) {
    out.push(CLASS);
    out.extend(name.to_le_bytes());
}

pub(crate) fn put_process(row: u32, out: &mut Vec<u8>) {
    out.push(PROCESS);
    out.extend(row.to_le_bytes());
}

pub(crate) fn put_cpu(cpu_id: u32, out: &mut Vec<u8>) {
    match cpu_id {
        CPU_UNKNOWN => out.push(UNKNOWN),
        cpu => put_integer(cpu.into(), out),
    }
}

pub(crate) fn put_id(id: Option<u32>, out: &mut Vec<u8>) {
    match id {
        None => out.push(UNKNOWN),
        Some(id) => put_integer(id.into(), out),
    }
}

pub(crate) fn put_cell(cell: &Cell, out: &mut Vec<u8>) {
    match cell.said {
        Said::Nothing => out.push(UNKNOWN),
        Said::Number(Number::Whole(value)) => put_integer(value, out),
        Said::Number(Number::Real(value)) => {
            out.push(REAL);
            out.extend(value.to_bits().to_le_bytes());
        }
        Said::Text => {
            out.push(TEXT);
            let is_cut = cell.text.len() > TEXT_BYTES_MAX;
            let text = &cell.text[..cell.text.len().min(TEXT_BYTES_MAX)];
            let mark = if is_cut { "…" } else { "" };
            out.extend((text.len() as u32 + mark.len() as u32).to_le_bytes());
            out.extend(text);
            out.extend(mark.as_bytes());
        }
    }
}

/// The values of a key.
pub(crate) fn decode(mut key: &[u8], classes: &[String], processes: &Processes, names_alone: bool) -> Vec<KeyValue> {
    fn take<'a>(key: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (taken, rest) = key.split_at(count);
        *key = rest;
        taken
    }
    fn number<const N: usize>(key: &mut &[u8]) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(take(key, N));
        bytes
    }
    let mut values = Vec::new();
    while !key.is_empty() {
        values.push(match take(&mut key, 1)[0] {
            INTEGER => KeyValue::Integer(i128::from_le_bytes(number(&mut key))),
            REAL => KeyValue::Real(u64::from_le_bytes(number(&mut key))),
            TEXT => {
                let size_bytes = u32::from_le_bytes(number(&mut key)) as usize;
                KeyValue::Text(String::from_utf8_lossy(take(&mut key, size_bytes)).into_owned())
            }
            PROCESS => KeyValue::Text(processes.label(u32::from_le_bytes(number(&mut key)), names_alone)),
            CLASS => KeyValue::Text(classes[u32::from_le_bytes(number(&mut key)) as usize].clone()),
            _ => KeyValue::Unknown,
        });
    }
    values
}

/// Who has written an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Who {
    pub pid: Option<u32>,
    pub tid: Option<u32>,
}

impl Who {
    /// `cells`: what the contexts say that are called `vpid`, `pid`, `vtid`, `tid`.
    pub(crate) fn of(event: &Event<'_>, cells: impl Fn(usize) -> Option<u32>) -> Who {
        match event.context {
            Some((pid, tid)) => Who { pid: Some(pid), tid: Some(tid) },
            None => Who { pid: cells(0).or_else(|| cells(1)), tid: cells(2).or_else(|| cells(3)) },
        }
    }
}

/// The programs of traces: a process that becomes another program is another one.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    rows: Vec<(Option<u32>, String)>,
    /// Which program a process of a trace is at the time at hand.
    current: HashMap<(usize, Option<u32>), u32>,
    /// By trace and the session's number.
    joined: HashMap<(usize, u32), u32>,
    /// By trace and process: those that have had other names.
    named: HashMap<(usize, Option<u32>), Vec<u32>>,
}

impl Processes {
    fn add(&mut self, trace: usize, pid: Option<u32>, name: &str) -> u32 {
        if self.rows.len() < PROCESSES_MAX {
            self.rows.push((pid, name.into()));
        }
        // Those beyond are one with the last.
        let row = self.rows.len() as u32 - 1;
        self.current.insert((trace, pid), row);
        row
    }

    /// A process that had events before it had a name gets it for these too.
    pub(crate) fn join(&mut self, trace: usize, process: u32, vpid: u32, name: &str) {
        let nameless = self.current.get(&(trace, Some(vpid))).copied();
        let row = nameless
            .filter(|row| self.rows[*row as usize].1.is_empty())
            .unwrap_or_else(|| self.add(trace, Some(vpid), name));
        self.rows[row as usize].1 = name.into();
        self.joined.insert((trace, process), row);
    }

    pub(crate) fn rename(&mut self, trace: usize, process: u32, name: &str) {
        if let Some(row) = self.joined.get(&(trace, process)) {
            self.rows[*row as usize].1 = name.into();
        }
    }

    /// The program that writes events of a process; `name`: what they say that it is called.
    pub(crate) fn row(&mut self, trace: usize, pid: Option<u32>, name: Option<&[u8]>) -> u32 {
        let current = self.current.get(&(trace, pid)).copied();
        let Some(name) = name else { return current.unwrap_or_else(|| self.add(trace, pid, "")) };
        let is_named = |row: &u32| self.rows[*row as usize].1.as_bytes() == name;
        if let Some(row) = current.filter(is_named) {
            return row;
        }
        let known = self.named.get(&(trace, pid)).and_then(|rows| rows.iter().copied().find(|row| is_named(row)));
        let row = known.unwrap_or_else(|| {
            let row = self.add(trace, pid, &String::from_utf8_lossy(name));
            self.named.entry((trace, pid)).or_default().push(row);
            row
        });
        self.current.insert((trace, pid), row);
        row
    }

    /// `name (pid)`; `is_name_alone`: the name, if there is one.
    pub(crate) fn label(&self, row: u32, is_name_alone: bool) -> String {
        match self.rows.get(row as usize) {
            None | Some((None, _)) if self.rows.get(row as usize).is_none_or(|(_, name)| name.is_empty()) => {
                "unknown".into()
            }
            Some((Some(pid), name)) if name.is_empty() => format!("unknown ({pid})"),
            Some((Some(pid), name)) if !is_name_alone => format!("{name} ({pid})"),
            Some((_, name)) => name.clone(),
            None => "unknown".into(),
        }
    }
}

//! Keys by which events are grouped and paired.
//!
//! While events are read, a key is a sequence of bytes: a key that was seen before needs no allocation.

use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_ctf::processes::{ProcessProperty, PropertyValue};
use dormouse_ctf::{Event, Processes};
use serde::{Serialize, Serializer};

use crate::distribution::Number;
use crate::pick::{Cell, Said};

/// Maximum length of a text, in bytes. Longer texts are cut, so that the memory of keys is bounded.
const TEXT_BYTES_MAX: usize = 256;
/// Maximum number of programs that are distinguished. A process that executes another program counts as a new one.
pub(crate) const PROGRAMS_MAX: usize = 1 << 20;

/// A property by which events are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dimension {
    Interval,
    Event,
    Cpu,
    Pid,
    Tid,
    Process,
    Thread,
    /// Where the process runs.
    Property(ProcessProperty),
    /// Field, by its index in the picker.
    Field(usize),
}

/// One part of a group's key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyValue {
    /// The event does not have it.
    Unknown,
    /// An integer.
    Integer(i128),
    /// An integer that is shown in hexadecimal.
    Hexadecimal(u64),
    /// A float, as its bits.
    Real(u64),
    /// Text.
    Text(String),
}

impl KeyValue {
    /// Makes an integer hexadecimal; a negative one stays as it is.
    pub(crate) fn make_hexadecimal(&mut self) {
        if let KeyValue::Integer(value) = self
            && let Ok(value) = u64::try_from(*value)
        {
            *self = KeyValue::Hexadecimal(value);
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
const THREAD: u8 = 6;

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

/// Writes a thread of the program with this index.
pub(crate) fn put_thread(row: u32, tid: u32, out: &mut Vec<u8>) {
    out.push(THREAD);
    out.extend(row.to_le_bytes());
    out.extend(tid.to_le_bytes());
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
        Said::Text => put_text(&cell.text, out),
    }
}

fn put_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(TEXT);
    let is_cut = text.len() > TEXT_BYTES_MAX;
    let text = &text[..text.len().min(TEXT_BYTES_MAX)];
    let mark = if is_cut { "…" } else { "" };
    out.extend((text.len() as u32 + mark.len() as u32).to_le_bytes());
    out.extend(text);
    out.extend(mark.as_bytes());
}

pub(crate) fn put_property(value: Option<PropertyValue<'_>>, out: &mut Vec<u8>) {
    match value {
        None => out.push(UNKNOWN),
        Some(PropertyValue::Number(number)) => put_integer(number.into(), out),
        Some(PropertyValue::Text(text)) => put_text(text.as_bytes(), out),
    }
}

/// Splits the first value from the rest of a key.
pub(crate) fn split_first(key: &[u8]) -> (&[u8], &[u8]) {
    let len = match key {
        [INTEGER, ..] => 1 + size_of::<i128>(),
        [REAL, ..] => 1 + size_of::<u64>(),
        [TEXT, a, b, c, d, ..] => 5 + u32::from_le_bytes([*a, *b, *c, *d]) as usize,
        [PROCESS | CLASS, ..] => 1 + size_of::<u32>(),
        [THREAD, ..] => 1 + 2 * size_of::<u32>(),
        _ => 1,
    };
    key.split_at(len)
}

/// Whether a value is unknown.
pub(crate) fn is_unknown(value: &[u8]) -> bool {
    value == [UNKNOWN]
}

/// Decodes the values of a key.
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
            PROCESS => KeyValue::Text(label(processes, u32::from_le_bytes(number(&mut key)), names_alone)),
            THREAD => {
                let [row, tid] = [(); 2].map(|()| u32::from_le_bytes(number(&mut key)));
                KeyValue::Text(thread_label(processes, row, tid, names_alone))
            }
            CLASS => KeyValue::Text(classes[u32::from_le_bytes(number(&mut key)) as usize].clone()),
            _ => KeyValue::Unknown,
        });
    }
    values
}

/// The thread that wrote an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Who {
    pub pid: Option<u32>,
    pub tid: Option<u32>,
}

impl Who {
    /// Returns the writer of an event. `cells`: values of the contexts `vpid`, `pid`, `vtid` and `tid`, by index.
    pub(crate) fn of(event: &Event<'_>, cells: impl Fn(usize) -> Option<u32>) -> Who {
        match event.context {
            Some((pid, tid)) => Who { pid: Some(pid), tid: Some(tid) },
            None => Who { pid: cells(0).or_else(|| cells(1)), tid: cells(2).or_else(|| cells(3)) },
        }
    }
}

/// Returns `name (tid)` of a thread of the program with this index: its last name, or the program's. `is_name_alone`: only the name.
pub(crate) fn thread_label(processes: &Processes, row: u32, tid: u32, is_name_alone: bool) -> String {
    let program = processes.program(row);
    let own = program.and_then(|program| processes.thread_name(program.trace(), program.pid?, tid));
    match own.or(program.map(|program| program.name())).filter(|name| !name.is_empty()) {
        Some(name) if is_name_alone => name.into(),
        Some(name) => format!("{name} ({tid})"),
        None => format!("unknown ({tid})"),
    }
}

/// Returns `name (pid)` of the program with this index. `is_name_alone`: only the name, if there is one.
pub(crate) fn label(processes: &Processes, row: u32, is_name_alone: bool) -> String {
    match processes.program(row).map(|program| (program.pid, program.name())) {
        None | Some((None, "")) => "unknown".into(),
        Some((Some(pid), "")) => format!("unknown ({pid})"),
        Some((Some(pid), name)) if !is_name_alone => format!("{name} ({pid})"),
        Some((_, name)) => name.into(),
    }
}

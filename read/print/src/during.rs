//! Slices with the events that belong to them.

use std::io::{self, Write};

use dormouse_abi::text::printable;
use dormouse_analysis::PairFields;
use dormouse_analysis::during::{Slice, Worked};
use dormouse_ctf::select::Writer;
use serde_json::{Map, Value, json};

use crate::events::ClockFormat;
use crate::report::{Look, pair_text, shown, since};
use crate::units::duration;

/// An end of a slice.
#[derive(Debug, Default)]
pub struct SliceEnd {
    /// Name of the process; empty if it is unknown.
    pub process: String,
    /// Name of the thread; empty if it has none of its own.
    pub thread: String,
    /// Fields of the event.
    pub fields: Option<PairFields>,
}

impl SliceEnd {
    /// Returns the end whose event has this writer and these fields.
    pub fn new(writer: &Writer<'_>, fields: PairFields) -> SliceEnd {
        let process = String::from_utf8_lossy(writer.name.as_deref().unwrap_or_default()).into_owned();
        SliceEnd { process, thread: writer.thread.unwrap_or_default().into(), fields: Some(fields) }
    }
}

/// What precedes the events of a slice.
#[derive(Debug)]
pub struct SliceHead<'a> {
    /// Number of the slice, from 1 on.
    pub number: u64,
    /// The slice.
    pub slice: &'a Slice,
    /// Times at which threads worked on it.
    pub worked: &'a Worked,
    /// Its begin and its end.
    pub ends: [SliceEnd; 2],
}

impl SliceHead<'_> {
    /// Returns the rule by which events belong to the slice.
    fn rule(&self) -> String {
        let SliceHead { slice, worked, .. } = self;
        if slice.key.is_empty() {
            return "the events of its thread from begin to end".into();
        }
        let fields: Vec<String> =
            slice.key.iter().map(|(name, value)| format!("{}={}", printable(name), shown(value))).collect();
        let with_key = format!("the events with {}", fields.join(" "));
        let names: Vec<String> = worked.names.iter().map(|name| printable(name)).collect();
        let mut parts = vec![with_key];
        if worked.is_of_thread {
            parts.push("those of its thread from begin to end".into());
        }
        if !names.is_empty() {
            parts.push(format!("those of threads within {} with the same key", names.join(", ")));
        }
        let rule = match parts.as_slice() {
            [with_key] => format!("{with_key}: no thread worked on it alone"),
            [first @ .., last] => format!("{}, and {last}", first.join(", ")),
            [] => String::new(),
        };
        let left_out = match worked.left_out {
            0 => String::new(),
            count => format!("; {count} times of threads are left out"),
        };
        format!("{rule}{left_out}")
    }

    /// Writes the lines for people.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write(&self, out: &mut dyn Write, look: Look<'_>) -> io::Result<()> {
        let SliceHead { slice, ends, .. } = self;
        let (on, off) = look.marks;
        let fields = pair_text(&ends.each_ref().map(|end| end.fields.as_ref()));
        let took = duration(slice.latency_ns as f64);
        writeln!(out, "{on}{} {took}{off} {fields}", printable(&slice.name))?;
        let threads = [0, 1].map(|at| {
            let tid = slice.threads[at].tid.map_or("unknown".into(), |tid| tid.to_string());
            match ends[at].thread.as_str() {
                "" => format!("thread {tid}"),
                name => format!("{} (thread {tid})", printable(name)),
            }
        });
        let pid = slice.threads[0].pid.map_or("unknown".into(), |pid| pid.to_string());
        let [begin, end] = &threads;
        let threads = if slice.threads[0] == slice.threads[1] { begin.clone() } else { format!("{begin} → {end}") };
        let relative = look.zero.map(|(zero_ns, _)| format!(" ({} s)", since(slice.begin_ns, zero_ns)));
        writeln!(
            out,
            "  begins {}{}, {threads} of {} ({pid})",
            look.time(ClockFormat::TimeOfDay, slice.begin_ns),
            relative.unwrap_or_default(),
            printable(&ends[0].process),
        )?;
        writeln!(out, "  {}", self.rule())
    }

    /// Returns the slice as an object.
    pub fn json(&self) -> Value {
        let SliceHead { number, slice, ends, .. } = self;
        let key: Map<String, Value> = slice.key.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let thread = |at: usize| {
            let name = Some(&ends[at].thread).filter(|name| !name.is_empty());
            json!({ "tid": slice.threads[at].tid, "name": name })
        };
        json!({
            "slice": number,
            "name": slice.name,
            "begin_ns": slice.begin_ns,
            "latency_ns": slice.latency_ns,
            "pid": slice.threads[0].pid,
            "process": ends[0].process,
            "begin_thread": thread(0),
            "end_thread": thread(1),
            "key": key,
            "begin_fields": ends[0].fields,
            "end_fields": ends[1].fields,
            "rule": self.rule(),
        })
    }
}

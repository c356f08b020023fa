//! Reads a trace.

use std::collections::BTreeMap;
use std::path::Path;

use dormouse_ctf::stream::Problem;
use dormouse_ctf::{Event, Merge, Metadata, PacketHeader, StateRecord, Stats, StreamReader, Value};

use crate::emit;

/// A trace in memory.
#[derive(Debug)]
pub struct Trace {
    /// Metadata of the trace.
    pub metadata: Metadata,
    /// Names and bytes of the streams, the state stream first.
    streams: Vec<(String, Vec<u8>)>,
}

/// Numbers of the events of [`emit::step`] by process and thread, in order of time.
pub type Steps = BTreeMap<(u32, u32), Vec<u64>>;

/// A process of the session: its id and its program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its process id, as the process sees it.
    pub vpid: u32,
    /// Its name when it joined.
    pub name: String,
    /// Path of the executable.
    pub program: String,
}

/// Whether a session's owner has recorded a process of this name. Works for a trace that is being written, whose files
/// do not show one moment.
pub fn has_joined(dir: &Path, name: &str) -> bool {
    let wanted = [&[0], name.as_bytes(), &[0]].concat();
    std::fs::read(dir.join("state")).is_ok_and(|state| state.windows(wanted.len()).any(|bytes| bytes == wanted))
}

impl Trace {
    /// Reads a trace's files. Panics if the metadata are not valid.
    pub fn read(dir: &Path) -> Trace {
        let mut streams: Vec<(String, Vec<u8>)> = std::fs::read_dir(dir)
            .expect("the trace has a directory")
            .map(|entry| entry.expect("an entry"))
            .filter(|entry| entry.file_name() != "metadata" && !entry.file_name().to_string_lossy().starts_with('.'))
            .map(|entry| {
                (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path()).expect("a file"))
            })
            .collect();
        // Read last: in a live trace the metadata then declare all classes of the packets that were read before.
        let metadata = std::fs::read_to_string(dir.join("metadata")).expect("the trace has metadata");
        let metadata = Metadata::parse(&metadata).expect("the metadata are valid");
        streams.sort_by_key(|(name, _)| (name != "state", name.clone()));
        Trace { metadata, streams }
    }

    /// Returns the counts of `dormouse-ctf`.
    pub fn stats(&self) -> Stats {
        let streams: Vec<(&str, &[u8])> =
            self.streams.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        Stats::collect(&self.metadata, &streams)
    }

    /// Returns all events in order of time, including those of the state stream. Panics at any problem except a stated
    /// loss.
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        let readers = self.streams.iter().enumerate();
        Merge::new(readers.map(|(index, (_, bytes))| StreamReader::new(&self.metadata, index, bytes))).filter_map(
            |item| match item {
                Ok(event) => Some(event),
                Err(notice) if matches!(notice.problem, Problem::Discarded { .. }) => None,
                Err(notice) => panic!("{}: {notice}", self.streams[notice.stream].0),
            },
        )
    }

    /// Returns the values of every event of a class, in order of time, in the format of [`render`].
    pub fn values(&self, class: &str) -> Vec<String> {
        let events = self.events().filter(|event| event.class.full_name == class);
        let line = |event: Event<'_>| {
            let fields: Vec<String> =
                event.fields().map(|(name, value)| format!("{name}={}", render(&value))).collect();
            fields.join(" ")
        };
        events.map(line).collect()
    }

    /// Returns the process table, in the order of joining.
    pub fn processes(&self) -> Vec<Process> {
        let process = |event: Event<'_>| match event.state_record() {
            Some(StateRecord::Process { vpid, name, program, .. }) => {
                Some(Process { vpid, name: name.into(), program: program.into() })
            }
            _ => None,
        };
        self.events().filter_map(process).collect()
    }

    /// Returns the losses that the session owner states: reason and count.
    pub fn stated_losses(&self) -> Vec<(String, u64)> {
        let (name, state) = &self.streams[0];
        assert_eq!(name, "state");
        let lost = |event: Event<'_>| match event.state_record() {
            Some(StateRecord::Lost { reason, count }) => Some((reason.to_string(), count)),
            _ => None,
        };
        StreamReader::new(&self.metadata, 0, state).flatten().filter_map(lost).collect()
    }

    /// Returns the time from which on nothing was overwritten in any stream, in ticks.
    pub fn complete_since(&self) -> u64 {
        let first = self.streams[1..].iter().filter_map(|(_, bytes)| PacketHeader::decode(bytes).ok());
        first.filter(|header| header.packet_seq_num > 0).map(|header| header.timestamp_begin).max().unwrap_or(0)
    }

    /// Returns the numbers of the events of [`emit::step`]. Panics if one is torn, or if a thread's numbers do not
    /// rise.
    pub fn steps(&self) -> Steps {
        self.steps_since(0)
    }

    /// Returns the numbers like [`Trace::steps`], of events that are not earlier than a time in ticks.
    pub fn steps_since(&self, earliest: u64) -> Steps {
        let mut steps = Steps::new();
        for event in self.events().filter(|event| event.timestamp >= earliest) {
            let filled = match event.class.full_name.as_str() {
                "e2e:step" => false,
                "e2e:filled" => true,
                _ => continue,
            };
            let fields: Vec<(&str, Value<'_>)> = event.fields().collect();
            let [
                ("thread", Value::U32(thread)),
                ("number", Value::U64(number)),
                ("check", Value::U64(check)),
                rest @ ..,
            ] = fields.as_slice()
            else {
                panic!("not the fields of a step: {fields:?}")
            };
            let (thread, number) = (*thread, *number);
            assert_eq!(*check, emit::check(thread, number), "torn: {fields:?}");
            assert_eq!(filled, number % 4 == 3, "another event's class: {fields:?}");
            if let [("filler", Value::Bytes(filler))] = rest {
                assert_eq!(*filler, vec![number as u8; emit::filler_len(number)], "torn: {fields:?}");
            }
            let (vpid, thread) = match event.context {
                Some((vpid, vtid)) => {
                    assert!(vpid != 0 && vtid != 0, "no context: {fields:?}");
                    (vpid, thread)
                }
                None => emit::unmarked(thread),
            };
            let numbers = steps.entry((vpid, thread)).or_default();
            if let Some(last) = numbers.last() {
                assert!(number > *last, "process {vpid}, thread {thread}: {number} comes after {last}");
            }
            numbers.push(number);
        }
        steps
    }

    /// Returns the numbers of the events `e2e:signal`, in rising order. Panics if one is torn or occurs twice.
    pub fn signals(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        for event in self.events().filter(|event| event.class.full_name == "e2e:signal") {
            let fields: Vec<(&str, Value<'_>)> = event.fields().collect();
            let [("number", Value::U64(number)), ("check", Value::U64(check))] = fields[..] else {
                panic!("not the fields of a signal: {fields:?}")
            };
            assert_eq!(check, emit::check(emit::HANDLER, number), "torn: {fields:?}");
            numbers.push(number);
        }
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "a number comes twice");
        numbers
    }

    /// Asserts that the timestamps of no stream decrease.
    pub fn check_times(&self) {
        for (index, (name, bytes)) in self.streams.iter().enumerate() {
            let mut last = 0;
            for event in StreamReader::new(&self.metadata, index, bytes).flatten() {
                assert!(event.timestamp >= last, "{name}: {} comes after {last}", event.timestamp);
                last = event.timestamp;
            }
        }
    }
}

/// Returns a value with its type, as tests compare it: `u8 7`, `str "x"`, `[u16 1, u16 2]`.
pub fn render(value: &Value<'_>) -> String {
    match value {
        Value::U8(value) => format!("u8 {value}"),
        Value::U16(value) => format!("u16 {value}"),
        Value::U32(value) => format!("u32 {value}"),
        Value::U64(value) => format!("u64 {value}"),
        Value::I8(value) => format!("i8 {value}"),
        Value::I16(value) => format!("i16 {value}"),
        Value::I32(value) => format!("i32 {value}"),
        Value::I64(value) => format!("i64 {value}"),
        Value::F32(value) => format!("f32 {value:?}"),
        Value::F64(value) => format!("f64 {value:?}"),
        Value::Bool(value) => format!("bool {value}"),
        Value::Pointer(value) => format!("pointer {value:#x}"),
        Value::Str(text) => format!("str {:?}", String::from_utf8_lossy(text)),
        Value::Bytes(bytes) => format!("bytes {bytes:?}"),
        Value::Sequence(sequence) => {
            let elements: Vec<String> = sequence.iter().map(|value| render(&value)).collect();
            format!("[{}]", elements.join(", "))
        }
    }
}

//! What begins and what ends it: pairs of events as rows. `dormouse_analysis` pairs them, as `dormouse stats --latency` does: what begins and ends while
//! events can have been lost is left out.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use arrow_array::builder::{Int64Builder, StringBuilder, TimestampNanosecondBuilder, UInt32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, TimestampNanosecondType, UInt32Type};
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use dormouse_abi::class::matches;
use dormouse_analysis::Pairs;
use dormouse_analysis::timeline::slice_rules;
use dormouse_columns::{Batches, Damage, Extra, Gap, Layout, Request};
use dormouse_ctf::{ClassRef, TraceRef};
use dormouse_reader::TraceFiles;

use crate::error::{Error, Failed, Result};
use crate::manifest::Unpaired;

/// What belongs together.
#[derive(Debug, Clone)]
pub struct Rule {
    /// What begins and ends is called.
    pub name: String,
    /// Patterns of classes.
    pub begins: Vec<String>,
    /// Patterns of classes.
    pub ends: Vec<String>,
    /// Begins of which this is not true begin nothing.
    pub only: Option<&'static str>,
}

/// Rules that have one key, of one trace or of all.
#[derive(Debug, Clone)]
pub struct Group {
    /// The index of the trace; `None`: all, because a key is not of one trace.
    pub trace: Option<usize>,
    /// Names of fields; none: the thread.
    pub key: Vec<String>,
    /// What begins and ends.
    pub rules: Vec<Rule>,
}

fn time() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

/// The columns of pairs.
pub fn schema() -> SchemaRef {
    let number = |name: &str| Field::new(name, DataType::UInt32, true);
    Arc::new(Schema::new(vec![
        Field::new("name", DataType::Utf8, false),
        Field::new("begin_time", time(), false),
        Field::new("end_time", time(), false),
        Field::new("duration_ns", DataType::Int64, false),
        Field::new("process", DataType::Utf8, true),
        number("pid"),
        number("tid"),
        number("cpu"),
        Field::new("key", DataType::Utf8, false),
    ]))
}

/// The column by which pairs are sorted.
pub const BEGIN_TIME: usize = 1;

/// What the names of classes say.
pub fn of_names(files: &TraceFiles) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, trace) in files.traces().enumerate() {
        for rule in slice_rules(trace) {
            let key: Vec<String> = rule.key.iter().map(ToString::to_string).collect();
            let found = Rule { name: rule.name, begins: rule.begins, ends: rule.ends, only: rule.only };
            match groups.iter_mut().find(|group| group.trace == Some(index) && group.key == key) {
                Some(group) => group.rules.push(found),
                None => groups.push(Group { trace: Some(index), key, rules: vec![found] }),
            }
        }
    }
    groups
}

/// Batches that are read while those before them are looked at.
const BATCHES_AHEAD: usize = 2;

/// What is kept of a begin.
struct Begun {
    /// `pid`, `tid` and `cpu`.
    who: [Option<u32>; 3],
    process: Option<Arc<str>>,
}

type Open = Pairs<(u32, Key), Begun>;

impl Group {
    fn keys(&self) -> Vec<String> {
        if self.key.is_empty() { vec!["pid".into(), "tid".into()] } else { self.key.clone() }
    }

    /// What is read for it. `is_named`: with the names of processes.
    ///
    /// # Errors
    /// The traces have not what a rule or the key says.
    pub fn layout<'a>(&self, files: &'a TraceFiles, is_named: bool) -> Result<Layout<'a>> {
        let all: Vec<TraceRef<'a>> = files.traces().collect();
        let classes: Vec<ClassRef<'a>> = all.iter().flat_map(|trace| ClassRef::all(*trace)).collect();
        let has = |pattern: &String| classes.iter().any(|class| matches(pattern, &class.class.full_name));
        let mut columns: Vec<String> = ["time", "cpu", "pid", "tid", "event"].map(String::from).to_vec();
        for key in self.keys() {
            if !columns.contains(&key) {
                columns.push(key);
            }
        }
        let patterns = self.rules.iter().flat_map(|rule| rule.begins.iter().chain(&rule.ends));
        let events: Vec<String> = patterns.filter(|pattern| has(pattern)).cloned().collect();
        let conditions = self.rules.iter().filter_map(|rule| {
            let only = rule.only?;
            let ends: Vec<String> = rule.ends.iter().map(|end| format!("event == \"{end}\"")).collect();
            Some(format!("{} or {only}", ends.join(" or ")))
        });
        // Rules of one key that differ in what must be true are those of libc, whose begins are of different classes.
        let mut conditions: Vec<String> = conditions.collect();
        if conditions.len() > 1 {
            conditions.clear();
            let parts = self.rules.iter().map(|rule| {
                let is = |names: &[String]| {
                    let each: Vec<String> = names.iter().map(|name| format!("event == \"{name}\"")).collect();
                    format!("({})", each.join(" or "))
                };
                match rule.only {
                    Some(only) => format!("{} or {} and {only}", is(&rule.ends), is(&rule.begins)),
                    None => format!("{} or {}", is(&rule.ends), is(&rule.begins)),
                }
            });
            conditions.push(parts.collect::<Vec<_>>().join(" or "));
        }
        let extras = if is_named { vec![Extra::Process] } else { Vec::new() };
        let request = Request { events, columns: Some(columns), conditions, extras, ..Request::default() };
        Layout::new(&all, &request).failed(|| "pairs".into())
    }

    /// Gives the pairs in the order of their ends, until `give` says that nobody wants more; `None` then. What is not among them, and what was wrong
    /// with the streams.
    ///
    /// # Errors
    /// As those of [`Group::layout`]; a field cannot be read, or is no key; or that of `give`.
    pub fn run<E: From<Error>>(
        &self,
        files: &TraceFiles,
        is_named: bool,
        mut give: impl FnMut(RecordBatch) -> Result<bool, E>,
    ) -> Result<Option<(Unpaired, Damage)>, E> {
        let layout = self.layout(files, is_named)?;
        let of_group = |trace: usize| self.trace.is_none_or(|of| of == trace);
        std::thread::scope(|scope| {
            let ahead = files.chosen(scope, layout.times(), |trace| of_group(trace).then(|| layout.choice(trace)));
            let (to, read) = sync_channel(BATCHES_AHEAD);
            let layout = &layout;
            let reading = scope.spawn(move || {
                let mut batches = Batches::of(layout, ahead).with_gaps();
                while let Some(batch) = batches.next() {
                    let gaps = batches.take_gaps();
                    if to.send((batch, gaps)).is_err() {
                        break;
                    }
                }
                batches.damage().clone()
            });
            let mut pairs = Open::new();
            let mut process: Option<Arc<str>> = None;
            for (batch, gaps) in read {
                let batch = batch.failed(|| "pairs".into())?;
                for Gap { stream, begin_ns, end_ns, is_damage } in gaps {
                    match end_ns {
                        Some(end_ns) if is_damage => pairs.goes_on(0, stream, end_ns),
                        end_ns => pairs.lost(0, stream, begin_ns, end_ns),
                    }
                }
                let found = self.pairs(&batch, &mut pairs, &mut process)?;
                if found.num_rows() > 0 && !give(found)? {
                    return Ok(None);
                }
            }
            let damage = reading.join().unwrap_or_else(|panic| resume_unwind(panic));
            let (unpaired, _) = pairs.finish();
            let dormouse_analysis::Unpaired { begins, ends, across_losses, not_followed, .. } = unpaired;
            Ok(Some((Unpaired { begins, ends, across_losses, not_followed }, damage)))
        })
    }

    /// The pairs that end in a batch.
    fn pairs(&self, batch: &RecordBatch, pairs: &mut Open, process: &mut Option<Arc<str>>) -> Result<RecordBatch> {
        let column = |name: &str| {
            let found = batch.column_by_name(name);
            found.ok_or_else(|| Error(format!("pairs: there is no column `{name}`")))
        };
        let times = column("time")?.as_primitive::<TimestampNanosecondType>();
        let [pid, tid, cpu] =
            [column("pid")?, column("tid")?, column("cpu")?].map(|array| array.as_primitive::<UInt32Type>());
        let names = batch.column_by_name("process").map(|array| array.as_string::<i32>());
        let events = column("event")?.as_dictionary::<Int32Type>();
        // By class: which rules it ends, and which it begins.
        let any = |patterns: &[String], name: &str| patterns.iter().any(|pattern| matches(pattern, name));
        let numbers = |is: &dyn Fn(&Rule) -> bool| -> Vec<u32> {
            self.rules.iter().enumerate().filter(|(_, rule)| is(rule)).map(|(at, _)| at as u32).collect()
        };
        let classes = events.values().as_string::<i32>();
        let roles: Vec<(Vec<u32>, Vec<u32>)> = classes
            .iter()
            .map(|name| name.unwrap_or_default())
            .map(|name| (numbers(&|rule| any(&rule.ends, name)), numbers(&|rule| any(&rule.begins, name))))
            .collect();
        let keys = self.keys().iter().map(|key| KeyColumn::of(key, column(key)?)).collect::<Result<Vec<_>>>()?;
        let mut found = Found::default();
        for row in (0..batch.num_rows()).filter(|row| times.is_valid(*row)) {
            let key = Key::of(&keys, row);
            let (ends, begins) = &roles[events.keys().value(row) as usize];
            let time_ns = times.value(row);
            for rule in ends {
                if let Some(pair) = pairs.end(0, &(*rule, key.clone()), time_ns)
                    && pair.is_believed
                {
                    let key = text_of(&keys, row);
                    found.push(&self.rules[*rule as usize].name, pair.begin_ns, time_ns, &pair.kept, &key);
                }
            }
            for rule in begins {
                if !pairs.has_room() {
                    continue;
                }
                let name = names.filter(|names| names.is_valid(row)).map(|names| names.value(row));
                if process.as_deref() != name {
                    *process = name.map(Arc::from);
                }
                let who = [pid, tid, cpu].map(|array| array.is_valid(row).then(|| array.value(row)));
                pairs.begin((*rule, key.clone()), time_ns, Begun { who, process: process.clone() });
            }
        }
        found.finish()
    }
}

/// What cannot be a key.
pub fn no_key(name: &str, of: &DataType) -> Error {
    Error(format!("pairs: `{name}` is {of}, which is no key; a key is a number, text or an enumeration"))
}

/// What a pair has in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// Of at most two columns of whole numbers; negative ones as their bits.
    Numbers([Option<u64>; 2]),
    Text(Box<str>),
}

impl Key {
    fn of(columns: &[KeyColumn], row: usize) -> Key {
        let number = |at: usize| columns.get(at).map_or(Some(None), |column| column.number(row));
        match (number(0), number(1)) {
            (Some(first), Some(second)) if columns.len() <= 2 => Key::Numbers([first, second]),
            _ => Key::Text(text_of(columns, row).into()),
        }
    }
}

/// A column of a key.
enum KeyColumn {
    Signed(Int64Array),
    Unsigned(UInt64Array),
    Text(StringArray),
}

impl KeyColumn {
    fn of(name: &str, array: &ArrayRef) -> Result<KeyColumn> {
        let whole = |of| cast(array, &of).failed(|| "pairs".into());
        let of = array.data_type();
        Ok(match (of.is_signed_integer(), of.is_unsigned_integer()) {
            (true, _) => KeyColumn::Signed(whole(DataType::Int64)?.as_primitive().clone()),
            (_, true) => KeyColumn::Unsigned(whole(DataType::UInt64)?.as_primitive().clone()),
            _ => KeyColumn::Text(text(name, array)?.as_string().clone()),
        })
    }

    /// The number of a row, if these are numbers.
    fn number(&self, row: usize) -> Option<Option<u64>> {
        match self {
            KeyColumn::Signed(array) => Some(array.is_valid(row).then(|| array.value(row) as u64)),
            KeyColumn::Unsigned(array) => Some(array.is_valid(row).then(|| array.value(row))),
            KeyColumn::Text(_) => None,
        }
    }
}

/// A row's key as people read it.
fn text_of(columns: &[KeyColumn], row: usize) -> String {
    let mut text = String::new();
    for (at, column) in columns.iter().enumerate() {
        if at > 0 {
            text.push_str(", ");
        }
        // Nothing of what is null.
        match column {
            KeyColumn::Signed(array) if array.is_valid(row) => text += &array.value(row).to_string(),
            KeyColumn::Unsigned(array) if array.is_valid(row) => text += &array.value(row).to_string(),
            KeyColumn::Text(array) if array.is_valid(row) => text += array.value(row),
            _ => {}
        }
    }
    text
}

/// The values of a key as text.
fn text(name: &str, array: &ArrayRef) -> Result<ArrayRef> {
    if array.data_type().is_nested() || matches!(array.data_type(), DataType::Binary) {
        return Err(no_key(name, array.data_type()));
    }
    cast(array, &DataType::Utf8).failed(|| "pairs".into())
}

/// Columns of pairs.
#[derive(Default)]
struct Found {
    name: StringBuilder,
    begin: TimestampNanosecondBuilder,
    end: TimestampNanosecondBuilder,
    duration: Int64Builder,
    process: StringBuilder,
    who: [UInt32Builder; 3],
    key: StringBuilder,
}

impl Found {
    fn push(&mut self, name: &str, begin_ns: i64, end_ns: i64, begun: &Begun, key: &str) {
        self.name.append_value(name);
        self.begin.append_value(begin_ns);
        self.end.append_value(end_ns);
        self.duration.append_value(end_ns.saturating_sub(begin_ns));
        self.process.append_option(begun.process.as_deref());
        self.who.iter_mut().zip(begun.who).for_each(|(column, value)| column.append_option(value));
        self.key.append_value(key);
    }

    fn finish(mut self) -> Result<RecordBatch> {
        let [pid, tid, cpu] = self.who.each_mut().map(|column| Arc::new(column.finish()) as ArrayRef);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.name.finish()),
            Arc::new(self.begin.finish().with_timezone("UTC")),
            Arc::new(self.end.finish().with_timezone("UTC")),
            Arc::new(self.duration.finish()),
            Arc::new(self.process.finish()),
            pid,
            tid,
            cpu,
            Arc::new(self.key.finish()),
        ];
        RecordBatch::try_new(schema(), columns).failed(|| "pairs".into())
    }
}

//! Pairs of begin and end events, as rows. `dormouse_analysis` pairs the events, as for `dormouse stats --latency`: a
//! pair is left out if events can have been lost between its begin and its end.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use arrow_array::builder::{Int64Builder, StringBuilder, TimestampNanosecondBuilder, UInt32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, TimestampNanosecondType, UInt32Type};
use arrow_array::{
    Array, ArrayRef, Int64Array, RecordBatch, RecordBatchOptions, StringArray, TimestampNanosecondArray, UInt32Array,
    UInt64Array,
};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use dormouse_abi::class::matches;
use dormouse_analysis::Pairs;
use dormouse_analysis::timeline::{FoundKey, GivenPair, Options, find_keys, slice_rules};
use dormouse_columns::{Batches, COMMON, Damage, Extra, Gap, Layout, Request};
use dormouse_ctf::{ClassRef, Selection, TraceRef};
use dormouse_reader::{Bounds, Reading, TraceFiles};

use crate::error::{Error, Failed, Result};
use crate::manifest::Unpaired;

/// A rule that pairs events: classes that begin and classes that end the same thing.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Name of the pairs.
    pub name: String,
    /// Patterns of the classes that begin.
    pub begins: Vec<String>,
    /// Patterns of the classes that end.
    pub ends: Vec<String>,
    /// Condition that a begin must meet; other events begin nothing.
    pub only: Option<&'static str>,
    /// Whether an end without a begin is a call that did not wait.
    pub is_wait: bool,
}

/// Rules with the same pairing key and the same condition, for one trace or for all.
#[derive(Debug, Clone)]
pub struct Group {
    /// Index of the trace. `None`: all traces, because the key matches across traces.
    pub trace: Option<usize>,
    /// Names of the fields that make up the pairing key. If empty, events are paired by thread.
    pub key: Vec<String>,
    /// Rules of the group.
    pub rules: Vec<Rule>,
}

fn time() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

/// Returns the columns of pairs.
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
        Field::new("thread", DataType::Utf8, true),
    ]))
}

/// Index of the column by which pairs are sorted.
pub const BEGIN_TIME: usize = 1;
const NAME: usize = 0;
const END_TIME: usize = 2;
const DURATION: usize = 3;
/// Index of the column of the process; `pid`, `tid` and `cpu` follow it.
const PROCESS: usize = 4;
const KEY: usize = 8;
const THREAD: usize = 9;
/// Index of the column of the host, if there is one.
const HOST: usize = 10;

/// Returns the groups of rules that the names of classes define, for each trace.
pub fn of_names(files: &TraceFiles) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, trace) in files.traces().enumerate() {
        for rule in slice_rules(trace) {
            let key: Vec<String> = rule.key.iter().map(ToString::to_string).collect();
            let dormouse_analysis::timeline::SliceRule { name, begins, ends, only, is_wait, .. } = rule;
            let found = Rule { name, begins, ends, only, is_wait };
            let is_like = |group: &Group| group.key == key && group.rules[0].only == found.only;
            match groups.iter_mut().find(|group| group.trace == Some(index) && is_like(group)) {
                Some(group) => group.rules.push(found),
                None => groups.push(Group { trace: Some(index), key, rules: vec![found] }),
            }
        }
    }
    groups
}

/// Memory for open begins while keys are looked for, in bytes.
const SURVEY_BYTES: usize = 256 << 20;

/// Finds the keys of pairs that groups match by thread, in one pass over the events. `given`: the pair, if the groups
/// are not those of [`of_names`].
///
/// # Errors
/// The traces lack a class that the pair names.
pub fn survey(files: &TraceFiles, groups: &[Group], given: Option<GivenPair>) -> Result<Vec<FoundKey>> {
    let rules: Vec<&Rule> = groups.iter().filter(|group| group.key.is_empty()).flat_map(|group| &group.rules).collect();
    if rules.is_empty() {
        return Ok(Vec::new());
    }
    let options = Options { pairs: given.into_iter().collect(), ..Options::default() };
    let patterns = rules.iter().flat_map(|rule| rule.begins.iter().chain(&rule.ends)).cloned().collect();
    let all = Bounds::new(files, (i64::MIN, i64::MAX), None, None);
    let mut reading = Reading::new(files, Selection::unchecked(patterns, Vec::new()), all);
    let traces_of_streams = files.readers().map(|(trace, _)| trace);
    find_keys(&options, files.described(), traces_of_streams, SURVEY_BYTES, |survey| {
        reading.each_wanted(|next| survey.take(next), |_| {});
    })
    .map_err(Error)
}

/// Number of batches that are read ahead of pairing.
const BATCHES_AHEAD: usize = 2;

/// Data that is kept of a begin until its end.
#[derive(Debug)]
struct Begun {
    /// `pid`, `tid` and `cpu`.
    who: [Option<u32>; 3],
    process: Option<Arc<str>>,
    thread: Option<Arc<str>>,
}

impl Group {
    /// Divides a group whose events are paired by thread: rules with a found key form groups with this key.
    pub fn by_found(self, found: &[FoundKey]) -> Vec<Group> {
        if !self.key.is_empty() {
            return vec![self];
        }
        let mut groups: Vec<Group> = Vec::new();
        for rule in self.rules {
            let fields = found.iter().find(|found| found.name == rule.name).map_or(&[][..], |found| &found.fields);
            let is_common = |field: &String| COMMON.contains(&field.as_str());
            let columns =
                fields.iter().map(|field| if is_common(field) { format!("fields.{field}") } else { field.clone() });
            let key: Vec<String> = (!fields.is_empty()).then(|| "pid".to_string()).into_iter().chain(columns).collect();
            match groups.iter_mut().find(|group| group.key == key) {
                Some(group) => group.rules.push(rule),
                None => groups.push(Group { trace: self.trace, key, rules: vec![rule] }),
            }
        }
        groups
    }

    fn keys(&self) -> Vec<String> {
        if self.key.is_empty() { vec!["pid".into(), "tid".into()] } else { self.key.clone() }
    }

    /// Returns the layout of the batches that the group reads. `is_named`: with the names of processes and threads.
    ///
    /// # Errors
    /// The traces lack a class or field that a rule or the key names.
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
        let only = self.rules.iter().find_map(|rule| rule.only);
        let ends = self.rules.iter().flat_map(|rule| &rule.ends).map(|end| format!("event == \"{end}\" or "));
        let conditions = only.map(|only| ends.collect::<String>() + only).into_iter().collect();
        let extras = if is_named { vec![Extra::Process, Extra::Thread] } else { Vec::new() };
        let request = Request { events, columns: Some(columns), conditions, extras, ..Request::default() };
        Layout::new(&all, &request).failed(|| "pairs".into())
    }

    /// Passes these columns of the pairs to `give`, in the order of their ends. Returns counts of what is not among the
    /// pairs, and the damage found in the streams; `None` if `give` has returned false, which stops the run.
    ///
    /// # Errors
    /// An error of [`Group::layout`] or of `give`; or a field cannot be read, or cannot be a key.
    pub fn run<E: From<Error>>(
        &self,
        files: &TraceFiles,
        columns: &[usize],
        mut give: impl FnMut(RecordBatch) -> Result<bool, E>,
    ) -> Result<Option<(Unpaired, Damage)>, E> {
        let is_named = columns.contains(&PROCESS) || columns.contains(&THREAD);
        let layout = self.layout(files, is_named)?;
        let of_group = |trace: usize| self.trace.is_none_or(|of| of == trace);
        std::thread::scope(|scope| {
            let ahead = files.chosen(scope, layout.times(), |trace| of_group(trace).then(|| layout.choice(trace)));
            let (to, read) = sync_channel(BATCHES_AHEAD);
            let layout = &layout;
            let reading = scope.spawn(move || {
                let mut batches = Batches::of(layout, ahead).with_gaps();
                if is_named {
                    batches = batches.with_writers(files.state().writers);
                }
                while let Some(batch) = batches.next() {
                    let gaps = batches.take_gaps();
                    if to.send((batch, gaps)).is_err() {
                        break;
                    }
                }
                batches.damage().clone()
            });
            let mut finder = Finder::new(schema(), columns)?;
            for (batch, gaps) in read {
                let batch = batch.failed(|| "pairs".into())?;
                for Gap { stream, begin_ns, end_ns, is_damage } in gaps {
                    match end_ns {
                        Some(end_ns) if is_damage => finder.pairs.goes_on(0, stream, end_ns),
                        end_ns => finder.pairs.lost(0, stream, begin_ns, end_ns),
                    }
                }
                self.find(&batch, &mut finder)?;
                if finder.count() > 0 && !give(finder.take()?)? {
                    return Ok(None);
                }
            }
            let damage = reading.join().unwrap_or_else(|panic| resume_unwind(panic));
            let (unpaired, _) = finder.pairs.finish();
            let dormouse_analysis::Unpaired { begins, ends, across_losses, not_followed, .. } = unpaired;
            Ok(Some((Unpaired { begins, ends, across_losses, not_followed, doubtful: 0 }, damage)))
        })
    }

    /// Passes the events of a batch to the finder.
    fn find(&self, batch: &RecordBatch, finder: &mut Finder) -> Result<()> {
        let names = self.keys();
        let keys = names.iter().map(|name| KeyColumn::of(name, batch.column_by_name(name), None));
        let events = Events::of(batch, keys.collect::<Result<_>>()?)?;
        let classes = batch.column_by_name("event").ok_or_else(|| Error("pairs: there is no column `event`".into()))?;
        let classes = classes.as_dictionary::<Int32Type>();
        // For each class, the rules that it ends and the rules that it begins.
        let any = |patterns: &[String], name: &str| patterns.iter().any(|pattern| matches(pattern, name));
        let numbers = |is: &dyn Fn(&Rule) -> bool| -> Vec<u32> {
            self.rules.iter().enumerate().filter(|(_, rule)| is(rule)).map(|(at, _)| at as u32).collect()
        };
        let known = classes.values().as_string::<i32>();
        let roles: Vec<(Vec<u32>, Vec<u32>)> = known
            .iter()
            .map(|name| name.unwrap_or_default())
            .map(|name| (numbers(&|rule| any(&rule.ends, name)), numbers(&|rule| any(&rule.begins, name))))
            .collect();
        for row in 0..batch.num_rows() {
            let Some(time_ns) = events.time_ns(row) else { continue };
            let (ends, begins) = &roles[classes.keys().value(row) as usize];
            let ends_alone = finder.pairs.unpaired.ends;
            let (mut has_begun, mut is_alone) = (false, false);
            for rule in ends {
                let Rule { name, is_wait, .. } = &self.rules[*rule as usize];
                let has_begin = finder.end(&Of { rule: *rule, name, host: None }, &events, row, time_ns);
                has_begun |= has_begin;
                is_alone |= !has_begin && !is_wait;
            }
            // An end of several rules counts once, and only if it has ended a pair of none.
            finder.pairs.unpaired.ends = ends_alone + u64::from(is_alone && !has_begun);
            for rule in begins {
                if finder.pairs.has_room() {
                    finder.begin(*rule, &events, row, time_ns);
                }
            }
        }
        Ok(())
    }
}

/// Returns the error for a column whose type cannot be a pairing key.
pub fn no_key(name: &str, of: &DataType) -> Error {
    Error(format!("pairs: `{name}` is {of}, which is no key; a key is a number, text or an enumeration"))
}

/// Pairing key: the value that the begin and the end of a pair share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// Values of at most three integer columns; negative numbers as their bits.
    Numbers([Option<u64>; 3]),
    Text(Box<str>),
}

impl Key {
    fn of(columns: &[KeyColumn], row: usize) -> Key {
        let number = |at: usize| columns.get(at).map_or(Some(None), |column| column.number(row));
        match (number(0), number(1), number(2)) {
            (Some(first), Some(second), Some(third)) if columns.len() <= 3 => Key::Numbers([first, second, third]),
            _ => Key::Text(text_of(columns, row).into()),
        }
    }
}

/// Type in which the values of a key are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum KeyKind {
    /// Signed integers.
    Signed,
    /// Unsigned integers.
    Unsigned,
    /// The values as text.
    Text,
}

impl KeyKind {
    /// Returns the kind for a column of this type.
    ///
    /// # Errors
    /// The type cannot be a key.
    pub fn of(name: &str, of: &DataType) -> Result<KeyKind> {
        match of {
            of if of.is_signed_integer() => Ok(KeyKind::Signed),
            of if of.is_unsigned_integer() => Ok(KeyKind::Unsigned),
            of if of.is_nested() || *of == DataType::Binary => Err(no_key(name, of)),
            _ => Ok(KeyKind::Text),
        }
    }
}

/// A column of a key.
#[derive(Debug)]
pub enum KeyColumn {
    /// Values of [`KeyKind::Signed`].
    Signed(Int64Array),
    /// Values of [`KeyKind::Unsigned`].
    Unsigned(UInt64Array),
    /// Values of [`KeyKind::Text`].
    Text(StringArray),
}

impl KeyColumn {
    /// Converts a column to a column of a key. `kind`: type of the comparison; `None`: by the column's type.
    ///
    /// # Errors
    /// The column is missing, its type cannot be a key, or the conversion fails.
    pub fn of(name: &str, array: Option<&ArrayRef>, kind: Option<KeyKind>) -> Result<KeyColumn> {
        let array = array.ok_or_else(|| Error(format!("pairs: there is no column `{name}`")))?;
        let own = KeyKind::of(name, array.data_type())?;
        let whole = |of| cast(array, &of).failed(|| "pairs".into());
        Ok(match kind.unwrap_or(own) {
            KeyKind::Signed => KeyColumn::Signed(whole(DataType::Int64)?.as_primitive().clone()),
            KeyKind::Unsigned => KeyColumn::Unsigned(whole(DataType::UInt64)?.as_primitive().clone()),
            KeyKind::Text => KeyColumn::Text(whole(DataType::Utf8)?.as_string().clone()),
        })
    }

    /// Returns a column of nulls.
    pub fn none(rows: usize, kind: KeyKind) -> KeyColumn {
        match kind {
            KeyKind::Signed => KeyColumn::Signed(Int64Array::new_null(rows)),
            KeyKind::Unsigned => KeyColumn::Unsigned(UInt64Array::new_null(rows)),
            KeyKind::Text => KeyColumn::Text(StringArray::new_null(rows)),
        }
    }

    /// Returns the number in a row (`None` inside if it is null), or `None` if the column is text.
    fn number(&self, row: usize) -> Option<Option<u64>> {
        match self {
            KeyColumn::Signed(array) => Some(array.is_valid(row).then(|| array.value(row) as u64)),
            KeyColumn::Unsigned(array) => Some(array.is_valid(row).then(|| array.value(row))),
            KeyColumn::Text(_) => None,
        }
    }
}

/// Returns a row's key as text.
fn text_of(columns: &[KeyColumn], row: usize) -> String {
    let mut text = String::new();
    for (at, column) in columns.iter().enumerate() {
        if at > 0 {
            text.push_str(", ");
        }
        // Null adds nothing.
        match column {
            KeyColumn::Signed(array) if array.is_valid(row) => text += &array.value(row).to_string(),
            KeyColumn::Unsigned(array) if array.is_valid(row) => text += &array.value(row).to_string(),
            KeyColumn::Text(array) if array.is_valid(row) => text += array.value(row),
            _ => {}
        }
    }
    text
}

/// Columns of events that pairing uses.
#[derive(Debug)]
pub struct Events {
    times: TimestampNanosecondArray,
    /// `pid`, `tid` and `cpu`, if the batch has them.
    who: [Option<UInt32Array>; 3],
    processes: Option<StringArray>,
    threads: Option<StringArray>,
    keys: Vec<KeyColumn>,
}

impl Events {
    /// Takes the columns from a batch, which must have a column `time`.
    ///
    /// # Errors
    /// The batch does not have a column `time`.
    pub fn of(batch: &RecordBatch, keys: Vec<KeyColumn>) -> Result<Events> {
        let times = batch.column_by_name("time").and_then(|array| array.as_primitive_opt::<TimestampNanosecondType>());
        let times = times.ok_or_else(|| Error("pairs: there is no column `time`".into()))?.clone();
        let who = ["pid", "tid", "cpu"]
            .map(|name| batch.column_by_name(name).and_then(|array| array.as_primitive_opt::<UInt32Type>()).cloned());
        let texts = |name| batch.column_by_name(name).and_then(|array| array.as_string_opt::<i32>()).cloned();
        Ok(Events { times, who, processes: texts("process"), threads: texts("thread"), keys })
    }

    /// Returns the number of events.
    pub fn count(&self) -> usize {
        self.times.len()
    }

    /// Returns the time of an event, in nanoseconds since the epoch.
    #[inline]
    pub fn time_ns(&self, row: usize) -> Option<i64> {
        self.times.is_valid(row).then(|| self.times.value(row))
    }
}

/// Attributes of an end event and of the pair that it completes.
#[derive(Debug, Clone, Copy)]
pub struct Of<'a> {
    /// Index of the rule. Only events of the same rule are paired.
    pub rule: u32,
    /// Name of the pair.
    pub name: &'a str,
    /// Host of the pair, if it is a column.
    pub host: Option<&'a str>,
}

/// Finds pairs among events that arrive in the order of time.
#[derive(Debug)]
pub struct Finder {
    /// Open begins, by rule and key.
    pairs: Open,
    /// Names of process and thread of the last begin.
    names: [Option<Arc<str>>; 2],
    found: Found,
}

/// Open begins, by rule and key.
type Open = Pairs<(u32, Key), Begun>;

impl Finder {
    /// Returns a finder that makes these columns of `of`. `of` has the columns of [`schema`] and may have the host
    /// after them.
    ///
    /// # Errors
    /// A column does not exist.
    pub fn new(of: SchemaRef, columns: &[usize]) -> Result<Finder> {
        let projected = Arc::new(of.project(columns).failed(|| "pairs".into())?);
        let found = Found {
            schema: projected,
            columns: columns.to_vec(),
            count: 0,
            name: StringBuilder::new(),
            begin: TimestampNanosecondBuilder::new(),
            end: TimestampNanosecondBuilder::new(),
            duration: Int64Builder::new(),
            process: StringBuilder::new(),
            thread: StringBuilder::new(),
            who: Default::default(),
            key: StringBuilder::new(),
            host: StringBuilder::new(),
        };
        Ok(Finder { pairs: Open::new(), names: [None, None], found })
    }

    /// Starts with other events: forgets open begins and noted losses.
    pub fn restart(&mut self) {
        self.pairs = Open::new();
    }

    /// Takes an event that begins something.
    pub fn begin(&mut self, rule: u32, events: &Events, row: usize, time_ns: i64) {
        for (known, names) in self.names.iter_mut().zip([&events.processes, &events.threads]) {
            let name = names.as_ref().filter(|names| names.is_valid(row)).map(|names| names.value(row));
            if known.as_deref() != name {
                *known = name.map(Arc::from);
            }
        }
        let [process, thread] = self.names.clone();
        let value = |array: &Option<UInt32Array>| {
            array.as_ref().filter(|array| array.is_valid(row)).map(|array| array.value(row))
        };
        let who = events.who.each_ref().map(value);
        let key = (rule, Key::of(&events.keys, row));
        self.pairs.begin(key, time_ns, Begun { who, process, thread });
    }

    /// Takes an event that ends something. Returns whether it had begun.
    pub fn end(&mut self, of: &Of<'_>, events: &Events, row: usize, time_ns: i64) -> bool {
        let key = (of.rule, Key::of(&events.keys, row));
        let Some(pair) = self.pairs.end(0, &key, time_ns) else { return false };
        if pair.is_believed {
            self.found.push(of, pair.begin_ns, time_ns, &pair.kept, || text_of(&events.keys, row));
        }
        true
    }

    /// Notes that events were lost between these times. `end_ns` is `None` if the loss lasts to the end.
    pub fn lost(&mut self, begin_ns: i64, end_ns: Option<i64>) {
        self.pairs.lost(0, 0, begin_ns, end_ns);
    }

    /// Returns the number of pairs that were found and not taken yet.
    pub fn count(&self) -> usize {
        self.found.count
    }

    /// Takes the pairs that were found.
    ///
    /// # Errors
    /// The columns do not form a table, which no input is known to cause.
    pub fn take(&mut self) -> Result<RecordBatch> {
        self.found.finish()
    }

    /// Returns the estimated memory of open begins, in bytes.
    pub fn open_bytes(&self) -> usize {
        self.pairs.open_count() * OPEN_BYTES
    }
}

/// Estimated memory of an open begin, in bytes: two entries of the table, and a list with room for four begins.
const OPEN_BYTES: usize = 2 * size_of::<(u32, Key, Vec<u8>)>() + 4 * size_of::<(i64, Begun)>();

/// Builders of the columns of found pairs.
#[derive(Debug)]
struct Found {
    schema: SchemaRef,
    /// Indices of the columns that are made.
    columns: Vec<usize>,
    count: usize,
    name: StringBuilder,
    begin: TimestampNanosecondBuilder,
    end: TimestampNanosecondBuilder,
    duration: Int64Builder,
    process: StringBuilder,
    thread: StringBuilder,
    who: [UInt32Builder; 3],
    key: StringBuilder,
    host: StringBuilder,
}

impl Found {
    fn push(&mut self, of: &Of<'_>, begin_ns: i64, end_ns: i64, begun: &Begun, key: impl Fn() -> String) {
        self.count += 1;
        for column in &self.columns {
            match *column {
                NAME => self.name.append_value(of.name),
                BEGIN_TIME => self.begin.append_value(begin_ns),
                END_TIME => self.end.append_value(end_ns),
                DURATION => self.duration.append_value(end_ns.saturating_sub(begin_ns)),
                PROCESS => self.process.append_option(begun.process.as_deref()),
                THREAD => self.thread.append_option(begun.thread.as_deref()),
                KEY => self.key.append_value(key()),
                HOST => self.host.append_option(of.host),
                // `pid`, `tid` and `cpu` follow the process.
                other => self.who[other - PROCESS - 1].append_option(begun.who[other - PROCESS - 1]),
            }
        }
    }

    fn finish(&mut self) -> Result<RecordBatch> {
        let columns = self.columns.iter().map(|column| -> ArrayRef {
            match *column {
                NAME => Arc::new(self.name.finish()),
                BEGIN_TIME => Arc::new(self.begin.finish().with_timezone("UTC")),
                END_TIME => Arc::new(self.end.finish().with_timezone("UTC")),
                DURATION => Arc::new(self.duration.finish()),
                PROCESS => Arc::new(self.process.finish()),
                THREAD => Arc::new(self.thread.finish()),
                KEY => Arc::new(self.key.finish()),
                HOST => Arc::new(self.host.finish()),
                other => Arc::new(self.who[other - PROCESS - 1].finish()),
            }
        });
        let options = RecordBatchOptions::new().with_row_count(Some(std::mem::take(&mut self.count)));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns.collect(), &options)
            .failed(|| "pairs".into())
    }
}

//! The table `pairs`: what begins and what ends it, as the names of classes say; and `pairs('BEGIN', 'END', 'KEY')`, as somebody says.
//!
//! Pairs are found by `dormouse_analysis`, as `dormouse stats --latency` finds them: what begins and ends while events can have been lost is left out.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use datafusion::arrow::array::builder::{Int64Builder, StringBuilder, TimestampNanosecondBuilder, UInt32Builder};
use datafusion::arrow::array::cast::AsArray;
use datafusion::arrow::array::types::{Int32Type, TimestampNanosecondType, UInt32Type};
use datafusion::arrow::array::{Array, ArrayRef, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::catalog::{Session, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use dormouse_abi::class::matches;
use dormouse_analysis::Pairs;
use dormouse_analysis::timeline::slice_rules;
use dormouse_columns::{Batches, Extra, Gap, Layout, Request};
use dormouse_ctf::{ClassRef, TraceRef};

use crate::leaf::{Leaf, Work};
use crate::traces::Traces;

/// What belongs together.
#[derive(Debug, Clone)]
struct Rule {
    name: String,
    /// Patterns of classes.
    begins: Vec<String>,
    ends: Vec<String>,
    /// Begins of which this is not true begin nothing.
    only: Option<&'static str>,
}

/// Rules that have one key, of one trace or of all.
#[derive(Debug, Clone)]
struct Group {
    /// The index of the trace; `None`: all, because a key is not of one trace.
    trace: Option<usize>,
    /// Names of fields; none: the thread.
    key: Vec<String>,
    rules: Vec<Rule>,
}

/// The table.
#[derive(Debug)]
pub(crate) struct PairsTable {
    traces: &'static Traces,
    groups: Vec<Group>,
    schema: SchemaRef,
}

fn time() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

fn schema() -> SchemaRef {
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

impl PairsTable {
    /// What the names of classes say.
    pub(crate) fn of_names(traces: &'static Traces) -> PairsTable {
        let mut groups: Vec<Group> = Vec::new();
        for (index, trace) in traces.files.traces().enumerate() {
            for rule in slice_rules(trace) {
                let key: Vec<String> = rule.key.iter().map(ToString::to_string).collect();
                let found = Rule { name: rule.name, begins: rule.begins, ends: rule.ends, only: rule.only };
                match groups.iter_mut().find(|group| group.trace == Some(index) && group.key == key) {
                    Some(group) => group.rules.push(found),
                    None => groups.push(Group { trace: Some(index), key, rules: vec![found] }),
                }
            }
        }
        PairsTable { traces, groups, schema: schema() }
    }

    /// What somebody says.
    fn of(traces: &'static Traces, begin: String, end: String, key: Vec<String>) -> Result<PairsTable> {
        let classes: Vec<ClassRef<'_>> = traces.files.traces().flat_map(ClassRef::all).collect();
        for pattern in [&begin, &end] {
            if !classes.iter().any(|class| matches(pattern, &class.class.full_name)) {
                let names = crate::push::class_names(traces);
                let near = crate::fault::nearest(pattern, names.iter().map(String::as_str));
                return Err(DataFusionError::Plan(format!("pairs: no event class matches '{pattern}'{near}")));
            }
        }
        let name = format!("{begin}..{end}");
        let rule = Rule { name, begins: vec![begin], ends: vec![end], only: None };
        // As of `stats --latency`: threads are those of a trace, other keys are not.
        let trace_count = traces.files.traces().count();
        let of_traces: Vec<Option<usize>> =
            if key.is_empty() { (0..trace_count).map(Some).collect() } else { vec![None] };
        let group = |trace| Group { trace, key: key.clone(), rules: vec![rule.clone()] };
        let table = PairsTable { traces, groups: of_traces.into_iter().map(group).collect(), schema: schema() };
        for group in &table.groups {
            group.layout(traces, false)?;
        }
        Ok(table)
    }
}

impl Group {
    fn keys(&self) -> Vec<String> {
        if self.key.is_empty() { vec!["pid".into(), "tid".into()] } else { self.key.clone() }
    }

    fn layout(&self, traces: &'static Traces, is_named: bool) -> Result<Layout<'static>> {
        let has = |pattern: &String, trace: Option<usize>| {
            let mut of =
                traces.files.traces().enumerate().filter(|(index, _)| trace.is_none_or(|trace| trace == *index));
            of.any(|(_, trace)| ClassRef::all(trace).any(|class| matches(pattern, &class.class.full_name)))
        };
        let mut columns: Vec<String> = ["time", "cpu", "pid", "tid", "event"].map(String::from).to_vec();
        for key in self.keys() {
            if !columns.contains(&key) {
                columns.push(key);
            }
        }
        let patterns = self.rules.iter().flat_map(|rule| rule.begins.iter().chain(&rule.ends));
        let events: Vec<String> = patterns.filter(|pattern| has(pattern, None)).cloned().collect();
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
        let all: Vec<TraceRef<'static>> = traces.files.traces().collect();
        Layout::new(&all, &request).map_err(|error| DataFusionError::Plan(format!("pairs: {error}")))
    }
}

#[async_trait]
impl TableProvider for PairsTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all: Vec<usize> = (0..self.schema.fields().len()).collect();
        let projection = projection.unwrap_or(&all).clone();
        let schema = Arc::new(self.schema.project(&projection)?);
        let is_named = projection.contains(&self.schema.index_of("process")?);
        let about =
            format!("TraceExec: pairs of {} names", self.groups.iter().map(|group| group.rules.len()).sum::<usize>());
        let work = PairWork { traces: self.traces, groups: self.groups.clone(), projection, is_named };
        Ok(Arc::new(Leaf::new(about, schema, self.groups.len().max(1), Arc::new(work))))
    }
}

struct PairWork {
    traces: &'static Traces,
    groups: Vec<Group>,
    projection: Vec<usize>,
    is_named: bool,
}

/// What is kept of a begin.
struct Begun {
    /// `pid`, `tid` and `cpu`.
    who: [Option<u32>; 3],
    process: Option<Arc<str>>,
}

impl Work for PairWork {
    fn run(&self, partition: usize, _: usize, give: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()> {
        let Some(group) = self.groups.get(partition) else { return Ok(()) };
        let layout = group.layout(self.traces, self.is_named)?;
        let files = &self.traces.files;
        let of_group = |trace: usize| group.trace.is_none_or(|of| of == trace);
        let streams: Vec<usize> =
            files.readers().enumerate().filter(|(_, (trace, _))| of_group(*trace)).map(|(stream, _)| stream).collect();
        let size_bytes: u64 = streams.iter().map(|stream| files.stream_size_bytes(*stream)).sum();
        self.traces.all_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let ahead = files.chosen(scope, layout.times(), |trace| of_group(trace).then(|| layout.choice(trace)));
            let mut batches = Batches::of(&layout, ahead).with_gaps();
            let mut pairs: Pairs<(u32, Box<str>), Begun> = Pairs::new();
            let mut process: Option<Arc<str>> = None;
            while let Some(batch) = batches.next() {
                let batch = batch?;
                for Gap { stream, begin_ns, end_ns, is_damage } in batches.take_gaps() {
                    match end_ns {
                        Some(end_ns) if is_damage => pairs.goes_on(0, stream, end_ns),
                        end_ns => pairs.lost(0, stream, begin_ns, end_ns),
                    }
                }
                let found = group.pairs(&batch, &mut pairs, &mut process)?;
                if found.num_rows() > 0 && !give(found.project(&self.projection)?) {
                    return Ok(());
                }
            }
            self.traces.note(batches.damage());
            self.traces.read_bytes.fetch_add(size_bytes, Ordering::Relaxed);
            let (unpaired, _) = pairs.finish();
            for (count, what) in [
                (unpaired.across_losses, "pairs are left out: events can have been lost between begin and end"),
                (unpaired.not_followed, "events that begin something are left out: too many were open"),
            ] {
                if count > 0 {
                    self.traces.warn(format!("{count} {what}"));
                }
            }
            Ok(())
        })
    }
}

impl Group {
    /// The pairs that end in a batch.
    fn pairs(
        &self,
        batch: &RecordBatch,
        pairs: &mut Pairs<(u32, Box<str>), Begun>,
        process: &mut Option<Arc<str>>,
    ) -> Result<RecordBatch> {
        let column = |name: &str| {
            let found = batch.column_by_name(name);
            found.ok_or_else(|| DataFusionError::Internal(format!("there is no column `{name}`")))
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
        let keys: Vec<ArrayRef> = self.keys().iter().map(|key| text(key, column(key)?)).collect::<Result<_>>()?;
        let keys: Vec<_> = keys.iter().map(|key| key.as_string::<i32>()).collect();
        let mut found = Found::default();
        let mut key = String::new();
        for row in (0..batch.num_rows()).filter(|row| times.is_valid(*row)) {
            key.clear();
            for (at, column) in keys.iter().enumerate() {
                if at > 0 {
                    key.push_str(", ");
                }
                if column.is_valid(row) {
                    key.push_str(column.value(row));
                }
            }
            let (ends, begins) = &roles[events.keys().value(row) as usize];
            let time_ns = times.value(row);
            for rule in ends {
                let of = (*rule, Box::<str>::from(key.as_str()));
                if let Some(pair) = pairs.end(0, &of, time_ns)
                    && pair.is_believed
                {
                    found.push(&self.rules[*rule as usize].name, pair.begin_ns, time_ns, &pair.kept, &key);
                }
            }
            for rule in begins.iter().filter(|_| pairs.has_room()).collect::<Vec<_>>() {
                let name = names.filter(|names| names.is_valid(row)).map(|names| names.value(row));
                if process.as_deref() != name {
                    *process = name.map(Arc::from);
                }
                let who = [pid, tid, cpu].map(|array| array.is_valid(row).then(|| array.value(row)));
                pairs.begin((*rule, key.as_str().into()), time_ns, Begun { who, process: process.clone() });
            }
        }
        found.finish()
    }
}

/// What cannot be a key.
pub(crate) fn no_key(name: &str, of: &DataType) -> DataFusionError {
    DataFusionError::Plan(format!(
        "pairs: `{name}` is {of}, which is no key; a key is a number, text or an enumeration"
    ))
}

/// The values of a key as text.
fn text(name: &str, array: &ArrayRef) -> Result<ArrayRef> {
    if array.data_type().is_nested() || matches!(array.data_type(), DataType::Binary) {
        return Err(no_key(name, array.data_type()));
    }
    Ok(cast(array, &DataType::Utf8)?)
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
        Ok(RecordBatch::try_new(schema(), columns)?)
    }
}

/// `pairs('BEGIN', 'END', 'KEY')`.
#[derive(Debug)]
pub(crate) struct PairsFunction(pub &'static Traces);

impl TableFunctionImpl for PairsFunction {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        let Asked { begin, end, key } = Asked::of(args.exprs())?;
        Ok(Arc::new(PairsTable::of(self.0, begin, end, key)?))
    }
}

/// What `pairs(…)` is asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub begin: String,
    pub end: String,
    /// Names of fields; none: the thread.
    pub key: Vec<String>,
}

impl Asked {
    /// Reads the arguments.
    pub(crate) fn of(arguments: &[Expr]) -> Result<Asked> {
        let text = |expr: &Expr| match expr {
            Expr::Literal(ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)), _) => Ok(text.clone()),
            other => Err(DataFusionError::Plan(format!("pairs: an argument is a text in single quotes, not {other}"))),
        };
        let texts = arguments.iter().map(text).collect::<Result<Vec<_>>>()?;
        match texts.as_slice() {
            [begin, end] => Ok(Asked { begin: begin.clone(), end: end.clone(), key: Vec::new() }),
            [begin, end, key] => {
                let key = key.split(',').map(|name| name.trim().to_string()).collect();
                Ok(Asked { begin: begin.clone(), end: end.clone(), key })
            }
            _ => Err(DataFusionError::Plan("pairs takes ('BEGIN', 'END') or ('BEGIN', 'END', 'KEY,KEY')".into())),
        }
    }
}

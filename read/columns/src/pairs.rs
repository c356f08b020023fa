//! Pairs of events: a begin and its end.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{StringBuilder, UInt32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, TimestampNanosecondType, UInt32Type};
use arrow_array::{Array, ArrayRef, DurationNanosecondArray, RecordBatch, TimestampNanosecondArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use dormouse_abi::class::matches;

use crate::layout::Request;

/// Which events form pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairRequest {
    /// Pattern for the classes of begins.
    pub begin: String,
    /// Pattern for the classes of ends.
    pub end: String,
    /// Columns in which begin and end have equal values. An end belongs to the latest open begin. If empty: `pid` and
    /// `tid`.
    pub key: Vec<String>,
    /// Earliest time of events, in nanoseconds since the epoch.
    pub since_ns: Option<i64>,
    /// Time that all events precede, in nanoseconds since the epoch.
    pub until_ns: Option<i64>,
    /// Conditions on events, see [`Request`].
    pub conditions: Vec<String>,
}

/// Maximum number of open begins. Further begins are counted and dropped.
const OPEN_MAX: usize = 1 << 20;

impl PairRequest {
    fn keys(&self) -> Vec<String> {
        if self.key.is_empty() { vec!["pid".into(), "tid".into()] } else { self.key.clone() }
    }

    /// Returns the request for the events that are needed.
    pub fn events(&self) -> Request {
        let mut columns: Vec<String> = ["time", "cpu", "pid", "tid", "event"].map(String::from).to_vec();
        columns.extend(self.keys().into_iter().filter(|key| !matches!(key.as_str(), "cpu" | "pid" | "tid")));
        Request {
            events: vec![self.begin.clone(), self.end.clone()],
            columns: Some(columns),
            since_ns: self.since_ns,
            until_ns: self.until_ns,
            conditions: self.conditions.clone(),
            ..Request::default()
        }
    }
}

/// Returns the columns of pairs: `begin` and `end` (timestamps), `duration`, `cpu`, `pid` and `tid` of the begin, `key`
/// as text.
pub fn pair_schema() -> SchemaRef {
    let time = || DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
    let number = |name: &str| Field::new(name, DataType::UInt32, true);
    Arc::new(Schema::new(vec![
        Field::new("begin", time(), false),
        Field::new("end", time(), false),
        Field::new("duration", DataType::Duration(TimeUnit::Nanosecond), false),
        number("cpu"),
        number("pid"),
        number("tid"),
        Field::new("key", DataType::Utf8, false),
    ]))
}

/// An open begin.
#[derive(Debug, Clone, Copy)]
struct Begun {
    time_ns: i64,
    /// `cpu`, `pid` and `tid` of the begin.
    who: [Option<u32>; 3],
}

/// Finds pairs in batches of [`PairRequest::events`]. Pairs are returned in the order of their ends.
#[derive(Debug)]
pub struct Pairs {
    request: PairRequest,
    open: HashMap<String, Vec<Begun>>,
    open_count: usize,
    /// Number of begins that were dropped because too many were open.
    pub dropped: u64,
    /// Number of ends without a begin.
    pub unmatched: u64,
}

impl Pairs {
    /// Creates a finder without open begins.
    pub fn new(request: PairRequest) -> Pairs {
        Pairs { request, open: HashMap::new(), open_count: 0, dropped: 0, unmatched: 0 }
    }

    /// Number of begins without an end so far.
    pub fn open_count(&self) -> usize {
        self.open_count
    }

    /// Returns the pairs that end in the next batch.
    ///
    /// # Errors
    /// The batch does not have the columns of [`PairRequest::events`], or a key has lists or structures.
    pub fn batch(&mut self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let column = |name: &str| {
            let found = batch.column_by_name(name);
            found.ok_or_else(|| ArrowError::InvalidArgumentError(format!("there is no column `{name}`")))
        };
        let times = column("time")?.as_primitive::<TimestampNanosecondType>();
        let who = [column("cpu")?, column("pid")?, column("tid")?].map(|array| array.as_primitive::<UInt32Type>());
        let events = column("event")?.as_dictionary::<Int32Type>();
        let names = events.values().as_string::<i32>();
        let roles: Vec<(bool, bool)> = names
            .iter()
            .map(|name| name.unwrap_or_default())
            .map(|name| (matches(&self.request.begin, name), matches(&self.request.end, name)))
            .collect();
        let keys = self.request.keys().iter().map(|key| Key::new(key, column(key)?)).collect::<Result<Vec<_>, _>>()?;
        let mut found = Found::default();
        for row in (0..batch.num_rows()).filter(|row| times.is_valid(*row)) {
            let key = keys.iter().map(|key| key.text(row)).collect::<Vec<_>>().join(", ");
            let (begins, ends) = roles[events.keys().value(row) as usize];
            let time_ns = times.value(row);
            if ends {
                match self.open.get_mut(&key).and_then(Vec::pop) {
                    Some(begun) => {
                        self.open_count -= 1;
                        if self.open.get(&key).is_some_and(Vec::is_empty) {
                            self.open.remove(&key);
                        }
                        found.push(begun, time_ns, &key);
                    }
                    // The first event of a class that both begins and ends has nothing to end.
                    None if begins => {}
                    None => self.unmatched += 1,
                }
            }
            if begins && self.open_count < OPEN_MAX {
                self.open_count += 1;
                let who = who.map(|array| array.is_valid(row).then(|| array.value(row)));
                self.open.entry(key).or_default().push(Begun { time_ns, who });
            } else if begins {
                self.dropped += 1;
            }
        }
        found.finish()
    }
}

/// A key column. Keys are compared by their texts.
enum Key<'a> {
    Text(&'a arrow_array::StringArray),
    Label(&'a arrow_array::DictionaryArray<Int32Type>),
    Bool(&'a arrow_array::BooleanArray),
    Number(Vec<Option<i128>>),
}

impl<'a> Key<'a> {
    fn new(name: &str, array: &'a ArrayRef) -> Result<Key<'a>, ArrowError> {
        use arrow_array::types::*;
        macro_rules! numbers {
            ($type:ty) => {
                Key::Number(array.as_primitive::<$type>().iter().map(|value| value.map(i128::from)).collect())
            };
        }
        Ok(match array.data_type() {
            DataType::Utf8 => Key::Text(array.as_string()),
            DataType::Dictionary(..) => Key::Label(array.as_dictionary()),
            DataType::Boolean => Key::Bool(array.as_boolean()),
            DataType::Int8 => numbers!(Int8Type),
            DataType::Int16 => numbers!(Int16Type),
            DataType::Int32 => numbers!(Int32Type),
            DataType::Int64 => numbers!(Int64Type),
            DataType::UInt8 => numbers!(UInt8Type),
            DataType::UInt16 => numbers!(UInt16Type),
            DataType::UInt32 => numbers!(UInt32Type),
            DataType::UInt64 => numbers!(UInt64Type),
            other => {
                return Err(ArrowError::InvalidArgumentError(format!(
                    "`{name}` is {other}, which is no key; a key is a number, text or an enumeration"
                )));
            }
        })
    }

    fn text(&self, row: usize) -> String {
        let text = match self {
            Key::Text(array) => array.is_valid(row).then(|| array.value(row).to_string()),
            Key::Label(array) => {
                let names = array.values().as_string::<i32>();
                array.is_valid(row).then(|| names.value(array.keys().value(row) as usize).to_string())
            }
            Key::Bool(array) => array.is_valid(row).then(|| array.value(row).to_string()),
            Key::Number(values) => values[row].map(|value| value.to_string()),
        };
        text.unwrap_or_default()
    }
}

/// The columns of found pairs.
#[derive(Default)]
struct Found {
    begin: Vec<i64>,
    end: Vec<i64>,
    who: [UInt32Builder; 3],
    key: StringBuilder,
}

impl Found {
    fn push(&mut self, begun: Begun, end_ns: i64, key: &str) {
        self.begin.push(begun.time_ns);
        self.end.push(end_ns);
        self.who.iter_mut().zip(begun.who).for_each(|(column, value)| column.append_option(value));
        self.key.append_value(key);
    }

    fn finish(mut self) -> Result<RecordBatch, ArrowError> {
        let durations: Vec<i64> =
            self.begin.iter().zip(&self.end).map(|(begin, end)| end.saturating_sub(*begin)).collect();
        let time = |values: Vec<i64>| TimestampNanosecondArray::from(values).with_timezone("UTC");
        let [cpu, pid, tid] = self.who.each_mut().map(|column| Arc::new(column.finish()) as ArrayRef);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(time(self.begin)),
            Arc::new(time(self.end)),
            Arc::new(DurationNanosecondArray::from(durations)),
            cpu,
            pid,
            tid,
            Arc::new(self.key.finish()),
        ];
        RecordBatch::try_new(pair_schema(), columns)
    }
}

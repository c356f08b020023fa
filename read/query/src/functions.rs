//! Functions for queries of traces, in addition to DataFusion's.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::cast::AsArray;
use datafusion::arrow::array::types::{Float64Type, TimestampNanosecondType};
use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, StringArray, TimestampNanosecondArray};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::arrow::json::LineDelimitedWriter;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use dormouse_terminal::parse_duration;
use serde_json::Value;

use crate::carried::locf;
use crate::descriptors::descriptor_path;
use crate::quantile::quantile;

/// Call and description of each function, for `--help`.
pub(crate) const FUNCTIONS: [(&str, &str); 7] = [
    ("time_bucket('100ms', time)", "the begin of the interval that contains a time"),
    ("duration_text(ns)", "nanoseconds as text for people: 1.24 ms"),
    ("quantile(x, 0.99)", "a quantile, within 0.2 % (DDSketch)"),
    ("field(fields, 'bytes')", "one field from the JSON of `events`, as text; 'peer.port' in a structure"),
    ("locf(x) over (partition by … order by time)", "the last x that is not null, up to this row"),
    (
        "descriptor_path(first, last, fd, oldfd, path) over (partition by pid order by time)",
        "the file of a descriptor; `dormouse query --named io-by-file --show` is an example",
    ),
    ("pairs('BEGIN', 'END', 'KEY')", "a table of begins and their ends; without KEY on the same thread"),
];

/// Implementation of a function, on columns of its arguments.
pub(crate) type Run = fn(&[ArrayRef]) -> Result<ArrayRef>;

/// A scalar function.
#[derive(Debug)]
pub(crate) struct Function {
    pub name: &'static str,
    pub signature: Signature,
    /// Type of the result. `None`: the type of the first argument.
    pub returns: Option<DataType>,
    /// Whether a constant first argument is passed as one row.
    pub is_first_short: bool,
    pub run: Run,
}

// Names are unique.
impl PartialEq for Function {
    fn eq(&self, other: &Function) -> bool {
        self.name == other.name
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        let returns = self.returns.as_ref().or(arguments.first());
        returns.cloned().ok_or_else(|| DataFusionError::Plan(format!("{} takes an argument", self.name)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let array = |(at, value): (usize, &ColumnarValue)| match value {
            ColumnarValue::Scalar(value) if self.is_first_short && at == 0 => value.to_array(),
            value => value.to_array(args.number_rows),
        };
        let arrays = args.args.iter().enumerate().map(array).collect::<Result<Vec<_>>>()?;
        Ok(ColumnarValue::Array((self.run)(&arrays)?))
    }
}

/// Registers the functions.
pub(crate) fn register(context: &SessionContext) {
    let time = DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()));
    let text = DataType::Utf8;
    let all: [(_, _, _, Run); 2] = [
        ("time_bucket", vec![text.clone(), time.clone()], time, time_bucket),
        ("field", vec![text.clone(), text.clone()], text.clone(), field),
    ];
    for (name, takes, returns, run) in all {
        let signature = Signature::exact(takes, Volatility::Immutable);
        context.register_udf(ScalarUDF::new_from_impl(Function {
            name,
            signature,
            returns: Some(returns),
            is_first_short: name == "time_bucket",
            run,
        }));
    }
    let signature = Signature::any(1, Volatility::Immutable);
    context.register_udf(ScalarUDF::new_from_impl(Function {
        name: "duration_text",
        signature,
        returns: Some(text),
        is_first_short: false,
        run: duration_text,
    }));
    context.register_udf(fields_json().as_ref().clone());
    context.register_udaf(quantile());
    context.register_udwf(locf());
    context.register_udwf(descriptor_path());
}

/// Returns the function with which a store's tables make the column `fields`. Its first argument lists names as JSON;
/// the others are the columns with these names.
pub(crate) fn fields_json() -> Arc<ScalarUDF> {
    let signature = Signature::variadic_any(Volatility::Immutable);
    Arc::new(ScalarUDF::new_from_impl(Function {
        name: "dormouse_fields_json",
        signature,
        returns: Some(DataType::Utf8),
        is_first_short: false,
        run: to_json,
    }))
}

fn to_json(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let Some((names, columns)) = arguments.split_first() else {
        return Err(DataFusionError::Internal("dormouse_fields_json takes names".into()));
    };
    let count = names.len();
    let names: Vec<String> = match count {
        0 => Vec::new(),
        _ => serde_json::from_str(names.as_string::<i32>().value(0))
            .map_err(|error| DataFusionError::External(error.into()))?,
    };
    if names.is_empty() || columns.is_empty() {
        return Ok(Arc::new(std::iter::repeat_n(Some(r#"{"fields":{}}"#), count).collect::<StringArray>()));
    }
    let columns = names.iter().zip(columns).map(|(name, column)| (name, Arc::clone(column), true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns)?;
    let mut writer = LineDelimitedWriter::new(Vec::new());
    writer.write(&batch)?;
    writer.finish()?;
    // One line for each row: line ends in texts are escaped.
    let lines = String::from_utf8_lossy(&writer.into_inner()).into_owned();
    let texts = lines.lines().map(|line| Some(format!("{{\"fields\":{line}}}")));
    Ok(Arc::new(texts.collect::<StringArray>()))
}

fn time_bucket(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let [lengths, times] = arguments else { return Err(DataFusionError::Internal("time_bucket takes two".into())) };
    let (lengths, times) = (lengths.as_string::<i32>(), times.as_primitive::<TimestampNanosecondType>());
    // Usually all rows have the same length.
    let is_one = lengths.len() == 1;
    let nulls = if is_one { times.nulls().cloned() } else { NullBuffer::union(lengths.nulls(), times.nulls()) };
    if is_one && lengths.is_null(0) {
        return Ok(Arc::new(TimestampNanosecondArray::new_null(times.len()).with_timezone("UTC")));
    }
    let (mut text, mut length) = ("", 1);
    if is_one && times.null_count() < times.len() {
        (text, length) = (lengths.value(0), bucket_ns(lengths.value(0))?);
    }
    // Bucket of the previous row, which most rows share. `i64::MIN` if there is none.
    let mut bucket = i64::MIN;
    let mut buckets = Vec::with_capacity(times.len());
    for (row, time) in times.values().iter().enumerate() {
        if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            buckets.push(0);
            continue;
        }
        if !is_one && lengths.value(row) != text {
            (text, length, bucket) = (lengths.value(row), bucket_ns(lengths.value(row))?, i64::MIN);
        }
        if !(0..length).contains(&time.wrapping_sub(bucket)) || bucket == i64::MIN {
            bucket = time.saturating_sub(time.rem_euclid(length));
        }
        buckets.push(bucket);
    }
    Ok(Arc::new(TimestampNanosecondArray::try_new(buckets.into(), nulls)?.with_timezone("UTC")))
}

/// Parses the length of an interval.
pub(crate) fn bucket_ns(text: &str) -> Result<i64> {
    let length = parse_duration(text).map_err(|error| DataFusionError::Execution(format!("time_bucket: {error}")))?;
    let length = i64::try_from(length.as_nanos()).ok().filter(|length| *length > 0);
    length.ok_or_else(|| DataFusionError::Execution(format!("time_bucket: `{text}` is not a length of an interval")))
}

fn duration_text(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let given = &arguments[0];
    let numbers = match given.data_type() {
        // Differences of times.
        DataType::Duration(_) => cast(
            &cast(&cast(given, &DataType::Duration(TimeUnit::Nanosecond))?, &DataType::Int64)?,
            &DataType::Float64,
        )?,
        _ => cast(given, &DataType::Float64)?,
    };
    let texts = numbers.as_primitive::<Float64Type>().iter().map(|ns| ns.map(dormouse_print::duration));
    Ok(Arc::new(texts.collect::<StringArray>()))
}

fn field(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let [jsons, names] = arguments else { return Err(DataFusionError::Internal("field takes two".into())) };
    let (jsons, names) = (jsons.as_string::<i32>(), names.as_string::<i32>());
    let mut known = HashMap::new();
    let one = |row: usize| {
        if jsons.is_null(row) || names.is_null(row) {
            return None;
        }
        let path: &Vec<&str> = known.entry(names.value(row)).or_insert_with(|| names.value(row).split('.').collect());
        let all: Value = serde_json::from_str(jsons.value(row)).ok()?;
        let within = |mut value: &'_ Value| {
            for part in path {
                value = match (value, part.parse::<usize>()) {
                    (Value::Array(_), Ok(index)) => value.get(index)?,
                    _ => value.get(part)?,
                };
            }
            Some(value.clone())
        };
        // If both the payload and the context have the name, the payload's field is used, as elsewhere.
        match ["fields", "context"].iter().find_map(|scope| within(all.get(scope)?))? {
            Value::Null => None,
            Value::String(text) => Some(text),
            other => Some(other.to_string()),
        }
    };
    Ok(Arc::new((0..jsons.len()).map(one).collect::<StringArray>()))
}

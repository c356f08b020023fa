//! Specification of the count.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampNanosecondArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use serde::{Deserialize, Serialize};

use crate::functions::bucket_ns;

/// A column to group by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum By {
    /// A text column in which all rows of a batch have the same value.
    Part { column: usize, is_dictionary: bool },
    /// The interval that contains a time, which is a column.
    Interval { column: usize, length_ns: i64 },
}

/// The groups to count, and the names of the result's columns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// Columns to group by, with their names in the result.
    pub(super) by: Vec<(By, String)>,
    /// Name of the column with the count.
    count: String,
}

impl Spec {
    /// Returns the specification of an aggregation that only counts rows, otherwise `None`. `is_part` says whether all
    /// rows of a batch have the same value in a column.
    pub(super) fn of(aggregate: &AggregateExec, is_part: impl Fn(usize) -> bool) -> Option<Spec> {
        let [count] = aggregate.aggr_expr() else { return None };
        let is_of_rows = count.fun().name() == "count"
            && !count.is_distinct()
            && aggregate.filter_expr().iter().all(Option::is_none)
            && count.expressions().iter().all(|of| literal(of).is_some_and(|value| !value.is_null()));
        let groups = aggregate.group_expr();
        if !is_of_rows || groups.has_grouping_set() {
            return None;
        }
        let input = aggregate.input().schema();
        let one = |(expression, name): &(Arc<dyn PhysicalExpr>, String)| {
            let by = match expression.downcast_ref::<Column>().map(Column::index) {
                Some(column) => {
                    let is_dictionary = matches!(input.field(column).data_type(), DataType::Dictionary(..));
                    is_part(column).then_some(By::Part { column, is_dictionary })
                }
                None => interval(expression),
            };
            Some((by?, name.clone()))
        };
        let by = groups.expr().iter().map(one).collect::<Option<Vec<_>>>()?;
        let count = count.state_fields().ok()?.first()?.name().clone();
        let is_one = by.iter().filter(|(by, _)| matches!(by, By::Interval { .. })).count() <= 1;
        is_one.then_some(Spec { by, count })
    }

    /// Length of the intervals, if there are any.
    pub(super) fn length_ns(&self) -> Option<i64> {
        self.by.iter().find_map(|(by, _)| if let By::Interval { length_ns, .. } = by { Some(*length_ns) } else { None })
    }

    pub(super) fn schema(&self) -> SchemaRef {
        let field = |(by, name): &(By, String)| {
            let of = match by {
                By::Part { is_dictionary: true, .. } => {
                    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
                }
                By::Part { .. } => DataType::Utf8,
                By::Interval { .. } => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
            };
            Field::new(name, of, true)
        };
        let count = Field::new(&self.count, DataType::Int64, false);
        Arc::new(Schema::new(self.by.iter().map(field).chain([count]).collect::<Vec<_>>()))
    }

    /// Makes a batch of groups: begin of the interval, texts, count.
    pub(super) fn batch<'c, T: IntoIterator<Item = Option<&'c str>>>(
        &self,
        groups: impl Iterator<Item = (Option<i64>, T, i64)>,
    ) -> Result<RecordBatch> {
        let parts = self.by.iter().filter(|(by, _)| matches!(by, By::Part { .. })).count();
        let (mut begins, mut counts) = (Vec::new(), Vec::new());
        let mut texts = vec![Vec::new(); parts];
        for (begin, of, count) in groups {
            begins.push(begin);
            counts.push(count);
            texts.iter_mut().zip(of).for_each(|(texts, text)| texts.push(text));
        }
        let schema = self.schema();
        let (mut texts, mut columns) = (texts.into_iter(), Vec::<ArrayRef>::new());
        for ((by, _), field) in self.by.iter().zip(schema.fields()) {
            columns.push(match by {
                By::Part { .. } => cast(&StringArray::from(texts.next().unwrap_or_default()), field.data_type())?,
                By::Interval { .. } => {
                    Arc::new(TimestampNanosecondArray::from(std::mem::take(&mut begins)).with_timezone("UTC"))
                }
            });
        }
        columns.push(Arc::new(Int64Array::from(counts)));
        Ok(RecordBatch::try_new(schema, columns)?)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = self.by.iter().map(|(_, name)| name.as_str());
        write!(f, "counts by [{}]", by.collect::<Vec<_>>().join(", "))
    }
}

fn literal(expression: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    expression.downcast_ref::<Literal>().map(Literal::value)
}

/// Returns the interval whose begin an expression computes: `time_bucket('1s', time)`, `date_trunc('second', time)`.
fn interval(expression: &Arc<dyn PhysicalExpr>) -> Option<By> {
    let call = expression.downcast_ref::<ScalarFunctionExpr>()?;
    let [length, time] = call.args() else { return None };
    let (text, column) = (literal(length)?.try_as_str()??, time.downcast_ref::<Column>()?.index());
    let length_ns = match call.fun().name() {
        "time_bucket" => bucket_ns(text).ok()?,
        "date_trunc" => TRUNCATED.iter().find(|(name, _)| text.eq_ignore_ascii_case(name))?.1,
        _ => return None,
    };
    Some(By::Interval { column, length_ns })
}

/// Units of `date_trunc` with a fixed length, in nanoseconds.
const TRUNCATED: [(&str, i64); 6] = [
    ("microsecond", 1_000),
    ("millisecond", 1_000_000),
    ("second", 1_000_000_000),
    ("minute", 60_000_000_000),
    ("hour", 3_600_000_000_000),
    ("day", 86_400_000_000_000),
];

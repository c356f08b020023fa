//! Conditions of a query that are evaluated while the trace is read.
//!
//! A condition is pushed down only if the reader's answer is the same as SQL's. In both, a comparison with a field that
//! an event lacks is neither true nor false. The reader compares a field and SQL a column, so the column must hold that
//! field for all classes with the table's name. Left to DataFusion: floating-point numbers (SQL orders NaN, the filter
//! language does not), labels of enumerations (a value can have several), names that mean more than one field, and the
//! event's process and thread.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::array::{Array, BooleanArray, RecordBatch, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use dormouse_columns::{classes as all_classes, filled};
use dormouse_ctf::ClassRef;
use dormouse_ctf::plan::Shape;

use crate::traces::Traces;

/// A condition that the reader evaluates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// The condition only concerns the class, see [`classes`].
    Classes,
    /// Earliest time of the events, in nanoseconds since the epoch.
    Since(i64),
    /// Time that all events are before, in nanoseconds since the epoch.
    Until(i64),
    /// A condition in the filter language.
    Condition(String),
}

/// Translates a condition of a table for the reader. `None` leaves it to DataFusion.
pub(crate) fn pushed(filter: &Expr, class: Option<&str>, traces: &Traces) -> Option<Pushed> {
    let columns = filter.column_refs();
    let is_of = |name: &str| !columns.is_empty() && columns.iter().all(|column| column.name == name);
    let Some(class) = class else {
        return if is_about(filter, &["class"]) {
            Some(Pushed::Classes)
        } else {
            is_of("time").then(|| time(filter)).flatten()
        };
    };
    if is_of("time") { time(filter) } else { condition(filter, class, traces).map(Pushed::Condition) }
}

/// Whether a condition has only these columns and literals.
pub(crate) fn is_about(filter: &Expr, names: &[&str]) -> bool {
    let columns = filter.column_refs();
    let is_of = !columns.is_empty() && columns.iter().all(|column| names.contains(&column.name.as_str()));
    is_of && !filter.is_volatile() && is_plain(filter)
}

/// Whether a condition has only columns, literals and plain operators.
fn is_plain(filter: &Expr) -> bool {
    match filter {
        Expr::Column(_) | Expr::Literal(..) => true,
        Expr::BinaryExpr(binary) => is_plain(&binary.left) && is_plain(&binary.right),
        Expr::Like(like) | Expr::SimilarTo(like) => is_plain(&like.expr) && is_plain(&like.pattern),
        Expr::InList(list) => is_plain(&list.expr) && list.list.iter().all(is_plain),
        Expr::Not(inner) | Expr::IsNull(inner) | Expr::IsNotNull(inner) => is_plain(inner),
        Expr::Cast(cast) => is_plain(&cast.expr),
        _ => false,
    }
}

/// Whether a class is one of the state stream's, which describe the session.
pub(crate) fn is_state(traces: &Traces, class: &str) -> bool {
    traces.files.traces().flat_map(ClassRef::all).any(|one| one.class.full_name == class && one.is_state())
}

/// Returns the classes for which a condition is true, among `among`, or among the programs' classes if that is empty.
pub(crate) fn classes(
    filter: &Expr,
    schema: &SchemaRef,
    among: &[String],
    traces: &Traces,
    state: &dyn Session,
) -> Result<Vec<String>> {
    let names: Vec<String> = match among {
        [] => {
            let of_programs = traces.files.traces().flat_map(ClassRef::all).filter(|class| !class.is_state());
            let names: BTreeSet<&str> = of_programs.map(|class| class.class.full_name.as_str()).collect();
            names.into_iter().map(String::from).collect()
        }
        among => among.to_vec(),
    };
    let field = schema.field_with_name("class")?.clone();
    let texts = StringArray::from(names.clone());
    let column = cast(&texts, field.data_type())?;
    let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![column])?;
    let kept = is_true(filter, &batch, state)?;
    Ok(names.into_iter().zip(kept).filter(|(_, is_true)| *is_true).map(|(name, _)| name).collect())
}

/// Returns for each row whether a condition is true.
pub(crate) fn is_true(filter: &Expr, rows: &RecordBatch, state: &dyn Session) -> Result<Vec<bool>> {
    let bare = unqualified(filter.clone())?;
    let expression = state.create_physical_expr(bare, &DFSchema::try_from(rows.schema())?)?;
    let result = expression.evaluate(rows)?.into_array(rows.num_rows())?;
    let result = cast(&result, &DataType::Boolean)?;
    // A result that is not Boolean keeps all rows.
    let found = result.as_any().downcast_ref::<BooleanArray>();
    Ok((0..rows.num_rows()).map(|row| found.is_none_or(|found| found.is_valid(row) && found.value(row))).collect())
}

/// Returns the condition with the table names removed from its columns.
fn unqualified(filter: Expr) -> Result<Expr> {
    use datafusion::common::tree_node::{Transformed, TreeNode};
    let transformed = filter.transform(|one| {
        Ok(match one {
            Expr::Column(column) => {
                Transformed::yes(Expr::Column(datafusion::common::Column::new_unqualified(column.name)))
            }
            other => Transformed::no(other),
        })
    })?;
    Ok(transformed.data)
}

/// Splits a comparison of a column and a literal into column, operator and value, with the column on the left.
fn comparison(filter: &Expr) -> Option<(&str, Operator, &ScalarValue)> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = filter else { return None };
    match (left.as_ref(), right.as_ref()) {
        (Expr::Column(column), Expr::Literal(value, _)) => Some((&column.name, *op, value)),
        (Expr::Literal(value, _), Expr::Column(column)) => Some((&column.name, op.swap()?, value)),
        _ => None,
    }
}

/// Translates a comparison of a time column with a literal.
pub(crate) fn time(filter: &Expr) -> Option<Pushed> {
    let (_, operator, value) = comparison(filter)?;
    let ScalarValue::TimestampNanosecond(Some(ns), _) = value else { return None };
    match operator {
        Operator::GtEq => Some(Pushed::Since(*ns)),
        Operator::Gt => Some(Pushed::Since(ns.checked_add(1)?)),
        Operator::Lt => Some(Pushed::Until(*ns)),
        Operator::LtEq => Some(Pushed::Until(ns.checked_add(1)?)),
        _ => None,
    }
}

/// Translates a condition on fields of a class to the filter language.
fn condition(filter: &Expr, class: &str, traces: &Traces) -> Option<String> {
    let name = |column: &str| field(column, class, traces);
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
            let (left, right) = (condition(left, class, traces)?, condition(right, class, traces)?);
            Some(format!("({left}) {} ({right})", if *op == Operator::And { "and" } else { "or" }))
        }
        Expr::InList(list) if !list.negated && !list.list.is_empty() => {
            let Expr::Column(column) = list.expr.as_ref() else { return None };
            let kind = name(&column.name)?;
            let each = list.list.iter().map(|value| {
                let Expr::Literal(value, _) = value else { return None };
                Some(format!("{} == {}", column.name, literal(value, kind, true)?))
            });
            Some(each.collect::<Option<Vec<_>>>()?.join(" or "))
        }
        _ => {
            let (column, operator, value) = comparison(filter)?;
            let kind = name(column)?;
            let operator = match operator {
                Operator::Eq => "==",
                Operator::NotEq => "!=",
                Operator::Lt => "<",
                Operator::LtEq => "<=",
                Operator::Gt => ">",
                Operator::GtEq => ">=",
                _ => return None,
            };
            let value = literal(value, kind, operator == "==")?;
            Some(format!("{column} {operator} {value}"))
        }
    }
}

/// Kind of a field that the filter language compares as SQL does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldKind {
    Integer,
    Text,
}

/// Words of the filter language that do not name a field.
const WORDS: [&str; 16] = [
    "and", "or", "not", "true", "false", "event", "time", "cpu", "pid", "tid", "process", "comm", "fields", "context",
    "procname", "cpu_id",
];

/// Returns the kind of a column, if it is one field of the class and a filter finds that field by the same name.
fn field(column: &str, class: &str, traces: &Traces) -> Option<FieldKind> {
    let is_word = column.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && column.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_word || WORDS.contains(&column) || matches!(column, "vpid" | "vtid") {
        return None;
    }
    let mut found = None;
    for members in filled(traces.files.traces(), class) {
        let mut fills = members.iter().filter(|(_, filled)| filled.as_deref() == Some(column));
        let mut of_name = members.iter().filter(|(member, _)| member.name == column);
        // In each class with this name, the column must hold the values of this member and of no other.
        let ((member, _), None) = (fills.next()?, fills.next()) else { return None };
        if member.name != column || of_name.nth(1).is_some() {
            return None;
        }
        let kind = match (member.declared.map(|declared| declared.kind), member.field.shape()) {
            (Some(dormouse_abi::class::Kind::Bool | dormouse_abi::class::Kind::Bytes), _) => return None,
            (_, Shape::Integer(node))
                if node.labels.is_none() && node.meaning == dormouse_ctf::model::Meaning::Number =>
            {
                FieldKind::Integer
            }
            (_, Shape::Text) => FieldKind::Text,
            _ => return None,
        };
        if found.is_some_and(|before| before != kind) {
            return None;
        }
        found = Some(kind);
    }
    found
}

/// Returns a value in the syntax of the filter language.
fn literal(value: &ScalarValue, kind: FieldKind, is_equal: bool) -> Option<String> {
    match (kind, value) {
        (FieldKind::Text, ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text))) if is_equal => {
            // In a column, invalid UTF-8 has become U+FFFD, and a text of a trace ends at a NUL.
            let is_exact = !text.contains(['\u{fffd}', '\0']) && !text.chars().any(char::is_control);
            is_exact.then(|| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
        }
        (FieldKind::Text, _) => None,
        (FieldKind::Integer, ScalarValue::Int8(Some(n))) => Some(n.to_string()),
        (FieldKind::Integer, ScalarValue::Int16(Some(n))) => Some(n.to_string()),
        (FieldKind::Integer, ScalarValue::Int32(Some(n))) => Some(n.to_string()),
        (FieldKind::Integer, ScalarValue::Int64(Some(n))) => Some(n.to_string()),
        (FieldKind::Integer, ScalarValue::UInt8(Some(n))) => Some(n.to_string()),
        (FieldKind::Integer, ScalarValue::UInt16(Some(n))) => Some(n.to_string()),
        (FieldKind::Integer, ScalarValue::UInt32(Some(n))) => Some(n.to_string()),
        (FieldKind::Integer, ScalarValue::UInt64(Some(n))) => Some(n.to_string()),
        (FieldKind::Integer, ScalarValue::Decimal128(Some(n), _, 0)) => integer(*n),
        _ => None,
    }
}

/// Returns an integer as text if its magnitude is at most 2^64; the filter language has no greater ones.
fn integer(n: i128) -> Option<String> {
    (n.unsigned_abs() <= 1 << 64).then(|| n.to_string())
}

/// Returns the names of all classes, in alphabetical order.
pub(crate) fn class_names(traces: &Traces) -> Vec<String> {
    all_classes(traces.files.traces()).into_iter().map(|class| class.name).collect()
}

//! Exact arithmetic where DataFusion's own is not exact: its operators and sums of 64-bit integers wrap; the other
//! cases are listed here.
//!
//! | operation | implementation |
//! | --- | --- |
//! | `sum`, `avg` | [`total`]: in 128 bits, for groups, distinct values and windows alike |
//! | `min`, `max` | [`extreme`]: groups of floating-point numbers with infinity or NaN |
//! | `+` `-` `*`, `-x` | [`rule`]: in a type that holds every result; 64-bit signed operands stay in 64 bits, and overflow is an error |
//! | `<<` `>>` | [`rule`]: a shift that loses bits, or that is as wide as the number, is an error |
//! | `x in (…)` | [`rule`]: for floating-point numbers, which DataFusion compares by their bits |
//! | literals beyond 64 bits | [`literal`]: decimals; DataFusion would use the nearest floating-point number |
//!
//! Results that do not fit in 64 bits are `decimal(p, 0)`. Results that do not fit in 128 bits are an error that says
//! overflow. The functions in a plan have names, so that a cluster can find them.

mod extreme;
mod literal;
mod operators;
mod rule;
mod total;

use datafusion::arrow::datatypes::DataType;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionContext;

pub(crate) use literal::with_decimals;
pub(crate) use rule::analyzer_rules;

/// Number of digits of the widest decimals.
const DIGITS_MAX: u8 = 38;
/// Type that holds every 64-bit integer, signed or not.
const WIDE: DataType = DataType::Decimal128(20, 0);

fn overflow(what: impl std::fmt::Display) -> DataFusionError {
    DataFusionError::Execution(format!("overflow: {what}"))
}

/// Registers the functions.
pub(crate) fn register(context: &SessionContext) {
    operators::all().for_each(|operator| context.register_udf(operator.as_ref().clone()));
    extreme::all().into_iter().chain(total::all()).for_each(|function| context.register_udaf(function));
}

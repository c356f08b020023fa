//! Numbers are right where DataFusion's own are not: its operators and sums of 64-bit integers wrap, and others are listed here.
//!
//! | asked | answered by |
//! | --- | --- |
//! | `sum`, `avg` | [`total`]: 128 bits, whatever is grouped, distinct or in a window |
//! | `min`, `max` | [`extreme`]: groups of floating-point numbers with infinity or NaN |
//! | `+` `-` `*`, `-x` | [`rule`]: in a type that holds every result; where both sides are signed 64-bit integers, in that type or as an error |
//! | `<<` `>>` | [`rule`]: a shift that loses bits, or that is as wide as the number, is an error |
//! | `x in (…)` | [`rule`]: floating-point numbers, of which DataFusion's lists have bits |
//! | literals beyond 64 bits | [`literal`]: decimals, where DataFusion has the nearest floating-point number |
//!
//! Results are `decimal(p, 0)` where 64 bits do not hold them. What 128 bits do not hold ends in an error that says overflow.
//! The functions in a plan have names, by which a cluster knows them.

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

/// Digits of the widest decimals.
const DIGITS_MAX: u8 = 38;
/// What holds every integer of 64 bits, signed or not.
const WIDE: DataType = DataType::Decimal128(20, 0);

fn overflow(what: impl std::fmt::Display) -> DataFusionError {
    DataFusionError::Execution(format!("overflow: {what}"))
}

/// Makes the functions known.
pub(crate) fn register(context: &SessionContext) {
    operators::all().for_each(|operator| context.register_udf(operator.as_ref().clone()));
    extreme::all().into_iter().chain(total::all()).for_each(|function| context.register_udaf(function));
}

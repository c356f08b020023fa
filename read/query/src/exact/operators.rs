//! The operators of 64-bit integers as functions that return an error if the result does not fit in 64 bits.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::cast::AsArray;
use datafusion::arrow::array::types::{ArrowPrimitiveType, Int64Type, UInt64Type};
use datafusion::arrow::array::{Array, ArrayRef, PrimitiveArray};
use datafusion::arrow::compute::kernels::numeric;
use datafusion::arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::logical_expr::{ScalarUDF, Signature, TypeSignature, Volatility};

use super::overflow;
use crate::functions::{Function, Run};

/// A checked operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checked {
    Add,
    Subtract,
    Multiply,
    Negate,
    ShiftLeft,
    ShiftRight,
}

/// Each operator with its name and its implementation.
const ALL: [(Checked, &str, Run); 6] = [
    (Checked::Add, "dormouse_add", |of| checked(of, |of| numeric::add(&of[0], &of[1]))),
    (Checked::Subtract, "dormouse_subtract", |of| checked(of, |of| numeric::sub(&of[0], &of[1]))),
    (Checked::Multiply, "dormouse_multiply", |of| checked(of, |of| numeric::mul(&of[0], &of[1]))),
    (Checked::Negate, "dormouse_negate", |of| checked(of, |of| numeric::neg(&of[0]))),
    (Checked::ShiftLeft, "dormouse_shift_left", |of| shift(of, true)),
    (Checked::ShiftRight, "dormouse_shift_right", |of| shift(of, false)),
];

static FUNCTIONS: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
    let exact = |types: &[&DataType]| TypeSignature::Exact(types.iter().copied().cloned().collect());
    let function = |(operator, name, run): &(Checked, &'static str, Run)| {
        let takes = match operator {
            Checked::Negate => exact(&[&DataType::Int64]),
            Checked::ShiftLeft | Checked::ShiftRight => TypeSignature::OneOf(vec![
                exact(&[&DataType::Int64, &DataType::Int64]),
                exact(&[&DataType::UInt64, &DataType::Int64]),
            ]),
            _ => exact(&[&DataType::Int64, &DataType::Int64]),
        };
        Arc::new(ScalarUDF::new_from_impl(Function {
            name,
            signature: Signature::new(takes, Volatility::Immutable),
            returns: None,
            is_first_short: false,
            run: *run,
        }))
    };
    ALL.iter().map(function).collect()
});

/// Returns all functions.
pub(super) fn all() -> impl Iterator<Item = &'static Arc<ScalarUDF>> {
    FUNCTIONS.iter()
}

impl Checked {
    /// Returns the function for this operator.
    pub(super) fn function(self) -> Arc<ScalarUDF> {
        let at = ALL.iter().position(|(operator, ..)| *operator == self).unwrap_or(0);
        Arc::clone(&FUNCTIONS[at])
    }
}

fn checked(
    of: &[ArrayRef],
    run: fn(&[ArrayRef]) -> Result<ArrayRef, datafusion::arrow::error::ArrowError>,
) -> Result<ArrayRef> {
    run(of).map_err(|error| match error {
        datafusion::arrow::error::ArrowError::ArithmeticOverflow(what) => {
            let what = what.strip_prefix("Overflow happened on: ").unwrap_or(&what).to_string();
            overflow(format!("{what} is beyond 64 bits; cast to decimal(38, 0) first"))
        }
        other => other.into(),
    })
}

/// Shifts the values in the first column by the counts in the second.
fn shift(of: &[ArrayRef], is_left: bool) -> Result<ArrayRef> {
    match of[0].data_type() {
        DataType::UInt64 => each::<UInt64Type>(of, |value, count| match is_left {
            true => value.checked_shl(count).filter(|shifted| shifted >> count == value),
            false => value.checked_shr(count),
        }),
        _ => each::<Int64Type>(of, |value, count| match is_left {
            true => value.checked_shl(count).filter(|shifted| shifted >> count == value),
            false => value.checked_shr(count),
        }),
    }
}

fn each<T: ArrowPrimitiveType>(
    of: &[ArrayRef],
    shifted: impl Fn(T::Native, u32) -> Option<T::Native>,
) -> Result<ArrayRef> {
    let (values, counts) = (of[0].as_primitive::<T>(), of[1].as_primitive::<Int64Type>());
    let one = |row: usize| {
        if values.is_null(row) || counts.is_null(row) {
            return Ok(None);
        }
        let (value, count) = (values.value(row), counts.value(row));
        let shifted = u32::try_from(count).ok().and_then(|count| shifted(value, count));
        shifted.map(Some).ok_or_else(|| overflow(format!("a shift of {value:?} by {count} loses bits")))
    };
    Ok(Arc::new((0..values.len()).map(one).collect::<Result<PrimitiveArray<T>>>()?))
}

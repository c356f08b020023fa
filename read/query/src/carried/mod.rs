//! The window function `locf`: the last value that was not null, up to a row.
//!
//! The SQL for it is `last_value(x) ignore nulls`, for which DataFusion looks at all earlier rows for each row.
//!
//! ```text
//!   before                                          after the rule
//!   BoundedWindowAggExec: locf(x) by key            CarryExec: x by key        the last x of each key, row by row
//!     (sorted by key and time)                        (sorted by time)
//! ```
//! A window is left as it is if its key or order is not a plain column, or if it has other functions too.

mod exec;
mod files;
mod rule;
mod spec;
mod state;

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{PartitionEvaluator, Signature, Volatility, WindowUDF, WindowUDFImpl};

pub(crate) use exec::CarryExec;
pub(crate) use rule::replace;
pub(crate) use spec::Spec;

/// Returns the window function `locf`.
pub(crate) fn locf() -> WindowUDF {
    WindowUDF::new_from_impl(Locf { signature: Signature::any(1, Volatility::Immutable) })
}

/// Last observation carried forward.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Locf {
    signature: Signature,
}

impl WindowUDFImpl for Locf {
    fn name(&self) -> &str {
        "locf"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn partition_evaluator(&self, _: PartitionEvaluatorArgs) -> Result<Box<dyn PartitionEvaluator>> {
        Ok(Box::new(Last(ScalarValue::Null)))
    }

    fn field(&self, of: WindowUDFFieldArgs) -> Result<FieldRef> {
        let data_type = of.get_input_field(0).map_or(DataType::Null, |field| field.data_type().clone());
        Ok(Arc::new(Field::new(of.name(), data_type, true)))
    }
}

/// The last value of a partition that was not null.
#[derive(Debug)]
struct Last(ScalarValue);

impl PartitionEvaluator for Last {
    fn evaluate(&mut self, values: &[ArrayRef], range: &Range<usize>) -> Result<ScalarValue> {
        // DataFusion evaluates the rows in order.
        if values[0].is_valid(range.start) {
            self.0 = ScalarValue::try_from_array(&values[0], range.start)?;
        } else if self.0.is_null() {
            self.0 = ScalarValue::try_from(values[0].data_type())?;
        }
        Ok(self.0.clone())
    }

    fn supports_bounded_execution(&self) -> bool {
        true
    }

    fn is_causal(&self) -> bool {
        true
    }
}

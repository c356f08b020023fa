//! The aggregate `quantile(x, 0.99)`: its value does not depend on how the rows are split into parts.
//!
//! Values are counted in buckets whose bounds grow by a constant factor. The counts of parts are added, so the order
//! and number of parts do not matter. (A t-digest gives other values for other parts, and a cluster has other parts
//! than one machine.) A quantile is within [`RELATIVE_ERROR`] of the value with its rank.
//!
//! Source: Ch. Masson, J. Rim, H. Lee, *DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees*, 2019.

use std::collections::VecDeque;
use std::sync::Arc;

use datafusion::arrow::array::cast::AsArray;
use datafusion::arrow::array::types::Float64Type;
use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};
use datafusion::physical_expr::expressions::Literal;

/// Maximum relative error of a quantile, compared with the value of its rank.
const RELATIVE_ERROR: f64 = 0.002;
/// Magnitude below which a value counts as 0.
const LEAST: f64 = 1e-9;

/// Returns the aggregate function `quantile`.
pub(crate) fn quantile() -> AggregateUDF {
    AggregateUDF::from(Quantile { signature: Signature::any(2, Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Quantile {
    signature: Signature,
}

impl AggregateUDFImpl for Quantile {
    fn name(&self) -> &str {
        "quantile"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments.first() {
            Some(of) if of.is_numeric() || of.is_null() => Ok(DataType::Float64),
            of => Err(DataFusionError::Plan(format!(
                "quantile takes numbers, not {}",
                of.map_or_else(String::new, ToString::to_string)
            ))),
        }
    }

    fn state_fields(&self, arguments: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        Ok(vec![Arc::new(Field::new(format_state_name(arguments.name, "sketch"), DataType::Binary, true))])
    }

    fn accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        let wrong = || DataFusionError::Plan("quantile takes a number from 0 to 1: quantile(x, 0.99)".into());
        let literal = arguments.exprs.get(1).and_then(|expr| expr.downcast_ref::<Literal>()).ok_or_else(wrong)?;
        match literal.value().cast_to(&DataType::Float64) {
            Ok(ScalarValue::Float64(Some(at))) if (0.0..=1.0).contains(&at) => {
                Ok(Box::new(Counts { at, sketch: Sketch::default() }))
            }
            _ => Err(wrong()),
        }
    }
}

/// Counts of consecutive buckets.
#[derive(Debug, Default, Clone, PartialEq)]
struct Buckets {
    /// Index of the first bucket.
    first: i32,
    counts: VecDeque<u64>,
}

impl Buckets {
    fn add(&mut self, index: i32, count: u64) {
        if self.counts.is_empty() {
            self.first = index;
        }
        while index < self.first {
            self.counts.push_front(0);
            self.first -= 1;
        }
        let at = (index - self.first) as usize;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += count;
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = (i32, u64)> {
        let numbered = self.counts.iter().enumerate().map(|(at, count)| (self.first + at as i32, *count));
        numbered.filter(|(_, count)| *count > 0)
    }
}

/// Distribution of values.
#[derive(Debug, Clone, PartialEq)]
struct Sketch {
    count: u64,
    zeros: u64,
    /// Buckets by the logarithm of the magnitude.
    negative: Buckets,
    positive: Buckets,
    least: f64,
    greatest: f64,
}

impl Default for Sketch {
    fn default() -> Sketch {
        let (negative, positive) = (Buckets::default(), Buckets::default());
        Sketch { count: 0, zeros: 0, negative, positive, least: f64::INFINITY, greatest: f64::NEG_INFINITY }
    }
}

/// Returns the ratio of consecutive bucket bounds.
fn gamma() -> f64 {
    (1.0 + RELATIVE_ERROR) / (1.0 - RELATIVE_ERROR)
}

impl Sketch {
    fn add(&mut self, value: f64) {
        // NaN and infinities have no rank.
        if !value.is_finite() {
            return;
        }
        self.count += 1;
        (self.least, self.greatest) = (self.least.min(value), self.greatest.max(value));
        if value.abs() < LEAST {
            self.zeros += 1;
            return;
        }
        let index = (value.abs().ln() / gamma().ln()).ceil() as i32;
        if value < 0.0 { self.negative.add(index, 1) } else { self.positive.add(index, 1) }
    }

    fn at(&self, quantile: f64) -> Option<f64> {
        let rank = ((quantile * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let value = |index: i32| 2.0 * gamma().powi(index) / (gamma() + 1.0);
        let negative = self.negative.iter().rev().map(|(index, count)| (-value(index), count));
        let positive = self.positive.iter().map(|(index, count)| (value(index), count));
        let mut below = 0;
        let mut all = negative.chain([(0.0, self.zeros)]).chain(positive);
        let found = all.find(|(_, count)| {
            below += count;
            below >= rank
        });
        found.filter(|_| self.count > 0).map(|(value, _)| value.clamp(self.least, self.greatest))
    }

    /// Encodes the sketch as little-endian words of 8 bytes.
    fn encode(&self) -> Vec<u8> {
        let mut words = vec![self.count, self.zeros, self.least.to_bits(), self.greatest.to_bits()];
        for buckets in [&self.negative, &self.positive] {
            words.push(buckets.iter().count() as u64);
            words.extend(buckets.iter().flat_map(|(index, count)| [u64::from(index as u32), count]));
        }
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Adds a sketch encoded by [`Sketch::encode`].
    fn merge(&mut self, bytes: &[u8]) -> Option<()> {
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        self.count += words.next()?;
        self.zeros += words.next()?;
        self.least = self.least.min(f64::from_bits(words.next()?));
        self.greatest = self.greatest.max(f64::from_bits(words.next()?));
        for buckets in [&mut self.negative, &mut self.positive] {
            for _ in 0..words.next()? {
                buckets.add(words.next()? as u32 as i32, words.next()?);
            }
        }
        Some(())
    }
}

/// Accumulator for one group.
#[derive(Debug)]
struct Counts {
    at: f64,
    sketch: Sketch,
}

impl Accumulator for Counts {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = cast(&values[0], &DataType::Float64)?;
        values.as_primitive::<Float64Type>().iter().flatten().for_each(|value| self.sketch.add(value));
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let states = states[0].as_binary::<i32>();
        for row in (0..states.len()).filter(|row| states.is_valid(*row)) {
            let merged = self.sketch.merge(states.value(row));
            merged.ok_or_else(|| DataFusionError::Internal("quantile: a part is cut short".into()))?;
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::Binary(Some(self.sketch.encode()))])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Float64(self.sketch.at(self.at)))
    }

    fn size(&self) -> usize {
        size_of_val(self) + 8 * (self.sketch.negative.counts.capacity() + self.sketch.positive.counts.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = f64>) -> Sketch {
        let mut sketch = Sketch::default();
        values.into_iter().for_each(|value| sketch.add(value));
        sketch
    }

    #[test]
    fn a_quantile_is_within_its_error_of_the_value_at_its_rank() {
        let sketch = of((1..=10_000).map(f64::from));
        for quantile in [0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact = (quantile * 10_000.0_f64).ceil().max(1.0);
            let found = sketch.at(quantile).unwrap();
            assert!((found / exact - 1.0).abs() <= RELATIVE_ERROR, "{quantile}: {found}, not {exact}");
        }
        let mixed = of([-5.0, -4.0, 0.0, 0.0, 7.0, f64::NAN, f64::INFINITY]);
        let near = |found: Option<f64>, value: f64| (found.unwrap() - value).abs() <= value.abs() * RELATIVE_ERROR;
        assert!(near(mixed.at(0.0), -5.0) && near(mixed.at(0.4), -4.0) && near(mixed.at(1.0), 7.0));
        assert_eq!((mixed.at(0.5), of([]).at(0.5), of([2000.0; 2]).at(0.5)), (Some(0.0), None, Some(2000.0)));
    }

    #[test]
    fn parts_can_be_merged_in_any_order() {
        let values: Vec<f64> = (0..5000).map(|n| f64::from((n * 7919) % 10_007) * 1e3 - 1e6).collect();
        let whole = of(values.iter().copied());
        for size in [1, 7, 1000] {
            let parts: Vec<Vec<u8>> = values.chunks(size).map(|part| of(part.iter().copied()).encode()).collect();
            for reversed in [false, true] {
                let mut merged = Sketch::default();
                let mut add = |part: &Vec<u8>| merged.merge(part).unwrap();
                if reversed {
                    parts.iter().rev().for_each(&mut add)
                } else {
                    parts.iter().for_each(&mut add)
                }
                assert_eq!(merged, whole);
            }
        }
        assert_eq!(Sketch::default().merge(&whole.encode()[..100]), None);
    }
}

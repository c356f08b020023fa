//! `sum` and `avg` of integers, decimals and durations, in 128 bits. Other types are left to DataFusion's functions.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::cast::AsArray;
use datafusion::arrow::array::types::{Decimal128Type, DecimalType, Int64Type, UInt64Type};
use datafusion::arrow::array::{Array, ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int64Array, UInt64Array};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility,
};

use super::{DIGITS_MAX, overflow};

/// Returns both functions.
pub(super) fn all() -> [AggregateUDF; 2] {
    [(false, sum_udaf()), (true, avg_udaf())].map(|(is_mean, other)| {
        let signature = Signature::user_defined(Volatility::Immutable);
        AggregateUDF::new_from_impl(Total { is_mean, signature, other })
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Total {
    is_mean: bool,
    signature: Signature,
    /// DataFusion's function with this name.
    other: Arc<AggregateUDF>,
}

/// Result of summing or averaging values.
#[derive(Debug, Clone)]
struct Output {
    is_mean: bool,
    /// Scale of the values and of their sum.
    scale: i8,
    data_type: DataType,
}

impl Total {
    /// Returns the result for values of this type, or `None` if DataFusion's function handles them.
    fn output(&self, of: &DataType, data_type: &DataType) -> Option<Output> {
        let scale = match of {
            DataType::Int64 | DataType::UInt64 | DataType::Duration(_) => 0,
            DataType::Decimal128(_, scale) => *scale,
            _ => return None,
        };
        Some(Output { is_mean: self.is_mean, scale, data_type: data_type.clone() })
    }

    fn output_of(&self, args: &AccumulatorArgs<'_>) -> Option<Output> {
        self.output(args.expr_fields.first()?.data_type(), args.return_type())
    }
}

impl AggregateUDFImpl for Total {
    fn name(&self) -> &str {
        self.other.name()
    }

    fn aliases(&self) -> &[String] {
        self.other.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let wrong = |what: String| DataFusionError::Plan(format!("{} takes numbers, {what}", self.name()));
        let [of] = types else { return Err(wrong(format!("one at a time, not {}", types.len()))) };
        let widened = match of {
            DataType::Null => DataType::Int64,
            of if of.is_signed_integer() => DataType::Int64,
            of if of.is_unsigned_integer() => DataType::UInt64,
            of if of.is_floating() => DataType::Float64,
            DataType::Decimal32(digits, scale)
            | DataType::Decimal64(digits, scale)
            | DataType::Decimal128(digits, scale)
            | DataType::Decimal256(digits, scale) => DataType::Decimal128(DIGITS_MAX.min(*digits), *scale),
            DataType::Duration(_) => of.clone(),
            DataType::Interval(_) if !self.is_mean => of.clone(),
            of => return Err(wrong(format!("not {of}"))),
        };
        Ok(vec![widened])
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [DataType::Int64 | DataType::UInt64 | DataType::Decimal128(..)] if self.is_mean => Ok(DataType::Float64),
            [DataType::Int64 | DataType::UInt64] => Ok(DataType::Decimal128(DIGITS_MAX, 0)),
            [DataType::Decimal128(_, scale)] => Ok(DataType::Decimal128(DIGITS_MAX, *scale)),
            _ => self.other.return_type(types),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let of = args.input_fields.first().map(|field| field.data_type());
        let Some(output) = of.and_then(|of| self.output(of, args.return_type())) else {
            return self.other.state_fields(args);
        };
        let field = |name: &str, of| Arc::new(Field::new(format_state_name(args.name, name), of, true));
        Ok(match args.is_distinct {
            true => vec![field("values", DataType::new_list(output.sums(), true))],
            false => vec![field("sum", output.sums()), field("count", DataType::UInt64)],
        })
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match self.output_of(&args) {
            Some(output) => Ok(Box::new(One::new(output, args.is_distinct))),
            None => self.other.accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match self.output_of(&args) {
            Some(output) => Ok(Box::new(One::new(output, args.is_distinct))),
            None => self.other.create_sliding_accumulator(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        match self.output_of(&args) {
            Some(_) => !args.is_distinct,
            None => self.other.groups_accumulator_supported(args),
        }
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        match self.output_of(&args) {
            Some(output) => Ok(Box::new(Groups { output, sums: Vec::new(), counts: Vec::new() })),
            None => self.other.create_groups_accumulator(args),
        }
    }
}

fn plus(sum: i128, value: i128) -> Result<i128> {
    sum.checked_add(value).ok_or_else(|| overflow("a sum is beyond 128 bits"))
}

impl Output {
    /// Type of the sums.
    fn sums(&self) -> DataType {
        DataType::Decimal128(DIGITS_MAX, self.scale)
    }

    /// Returns sums as an array, as passed between partial aggregations.
    fn states(&self, sums: Vec<i128>, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let sums = Decimal128Array::try_new(sums.into(), nulls)?;
        Ok(Arc::new(sums.with_precision_and_scale(DIGITS_MAX, self.scale)?))
    }

    /// Returns the results for sums and their counts of values. A result without values is null.
    fn finish(&self, sums: Vec<i128>, counts: &[u64]) -> Result<ArrayRef> {
        let nulls = Some(NullBuffer::from_iter(counts.iter().map(|count| *count > 0)));
        let each = || sums.iter().zip(counts);
        match &self.data_type {
            DataType::Float64 => {
                let unit = 10f64.powi(self.scale.into());
                let means = each().map(|(sum, count)| *sum as f64 / *count as f64 / unit).collect::<Vec<_>>();
                Ok(Arc::new(Float64Array::try_new(means.into(), nulls)?))
            }
            DataType::Duration(_) => {
                let one = |(sum, count): (&i128, &u64)| {
                    let whole = if self.is_mean { sum / i128::from(*count).max(1) } else { *sum };
                    i64::try_from(whole).map_err(|_| overflow(format!("a duration of {whole} is beyond 64 bits")))
                };
                let whole = each().map(one).collect::<Result<Vec<_>>>()?;
                Ok(cast(&Int64Array::try_new(whole.into(), nulls)?, &self.data_type)?)
            }
            _ => {
                let fits = |sum: &i128| Decimal128Type::is_valid_decimal_precision(*sum, DIGITS_MAX);
                if let Some(sum) = sums.iter().find(|sum| !fits(sum)) {
                    return Err(overflow(format!("a sum of {sum} has more than {DIGITS_MAX} digits")));
                }
                self.states(sums, nulls)
            }
        }
    }
}

/// Calls `see` for each value that is not null, with its row.
fn each(values: &ArrayRef, mut see: impl FnMut(usize, i128) -> Result<()>) -> Result<()> {
    fn all<T: Copy + Into<i128>>(
        values: &[T],
        nulls: Option<&NullBuffer>,
        see: &mut impl FnMut(usize, i128) -> Result<()>,
    ) -> Result<()> {
        match nulls.filter(|nulls| nulls.null_count() > 0) {
            None => values.iter().enumerate().try_for_each(|(row, value)| see(row, (*value).into())),
            Some(nulls) => nulls.valid_indices().try_for_each(|row| see(row, values[row].into())),
        }
    }
    let nulls = values.nulls();
    match values.data_type() {
        DataType::Int64 => all(values.as_primitive::<Int64Type>().values(), nulls, &mut see),
        DataType::UInt64 => all(values.as_primitive::<UInt64Type>().values(), nulls, &mut see),
        DataType::Duration(_) => {
            all(cast(values, &DataType::Int64)?.as_primitive::<Int64Type>().values(), nulls, &mut see)
        }
        _ => all(values.as_primitive::<Decimal128Type>().values(), nulls, &mut see),
    }
}

/// Accumulator for one group or window.
#[derive(Debug)]
struct One {
    output: Output,
    sum: i128,
    count: u64,
    /// Number of occurrences of each value, for `distinct`.
    distinct: Option<HashMap<i128, u64>>,
}

impl One {
    fn new(output: Output, is_distinct: bool) -> One {
        One { output, sum: 0, count: 0, distinct: is_distinct.then(HashMap::new) }
    }

    fn add(&mut self, values: &ArrayRef) -> Result<()> {
        each(values, |_, value| {
            if let Some(known) = &mut self.distinct {
                let times = known.entry(value).or_default();
                *times += 1;
                if *times > 1 {
                    return Ok(());
                }
            }
            self.count += 1;
            self.sum = plus(self.sum, value)?;
            Ok(())
        })
    }
}

impl Accumulator for One {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(&values[0])
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        each(&values[0], |_, value| {
            if let Some(known) = &mut self.distinct
                && let Some(times) = known.get_mut(&value)
            {
                *times -= 1;
                if *times > 0 {
                    return Ok(());
                }
                known.remove(&value);
            }
            self.count -= 1;
            self.sum = plus(self.sum, -value)?;
            Ok(())
        })
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        if self.distinct.is_some() {
            let lists = states[0].as_list::<i32>();
            return lists.iter().flatten().try_for_each(|values| self.add(&values));
        }
        each(&states[1], |_, count| {
            self.count += count as u64;
            Ok(())
        })?;
        each(&states[0], |_, sum| {
            self.sum = plus(self.sum, sum)?;
            Ok(())
        })
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let sums = self.output.sums();
        let decimal = |value| ScalarValue::Decimal128(Some(value), DIGITS_MAX, self.output.scale);
        Ok(match &self.distinct {
            Some(known) => {
                let values: Vec<ScalarValue> = known.keys().map(|value| decimal(*value)).collect();
                vec![ScalarValue::List(ScalarValue::new_list(&values, &sums, true))]
            }
            None => vec![decimal(self.sum), self.count.into()],
        })
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        ScalarValue::try_from_array(&self.output.finish(vec![self.sum], &[self.count])?, 0)
    }

    fn size(&self) -> usize {
        let known = self.distinct.as_ref().map_or(0, HashMap::capacity);
        size_of_val(self) + known * size_of::<(i128, u64)>()
    }
}

/// Accumulator for many groups.
#[derive(Debug)]
struct Groups {
    output: Output,
    sums: Vec<i128>,
    counts: Vec<u64>,
}

impl Groups {
    fn grow(&mut self, groups: usize) {
        self.sums.resize(groups, 0);
        self.counts.resize(groups, 0);
    }
}

/// Whether a filter lets a row pass.
fn passes(filter: Option<&BooleanArray>, row: usize) -> bool {
    filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row))
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.grow(count);
        each(&values[0], |row, value| {
            if passes(filter, row) {
                self.counts[groups[row]] += 1;
                self.sums[groups[row]] = plus(self.sums[groups[row]], value)?;
            }
            Ok(())
        })
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.grow(count);
        each(&states[1], |row, count| {
            self.counts[groups[row]] += count as u64;
            Ok(())
        })?;
        each(&states[0], |row, sum| {
            self.sums[groups[row]] = plus(self.sums[groups[row]], sum)?;
            Ok(())
        })
    }

    fn state(&mut self, emit: EmitTo) -> Result<Vec<ArrayRef>> {
        let (sums, counts) = (emit.take_needed(&mut self.sums), emit.take_needed(&mut self.counts));
        Ok(vec![self.output.states(sums, None)?, Arc::new(UInt64Array::from(counts))])
    }

    fn evaluate(&mut self, emit: EmitTo) -> Result<ArrayRef> {
        let (sums, counts) = (emit.take_needed(&mut self.sums), emit.take_needed(&mut self.counts));
        self.output.finish(sums, &counts)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let rows = values[0].len();
        let (mut sums, mut counts) = (vec![0; rows], vec![0u64; rows]);
        each(&values[0], |row, value| {
            if passes(filter, row) {
                (sums[row], counts[row]) = (value, 1);
            }
            Ok(())
        })?;
        Ok(vec![self.output.states(sums, None)?, Arc::new(UInt64Array::from(counts))])
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.sums.capacity() * size_of::<i128>() + self.counts.capacity() * size_of::<u64>()
    }
}

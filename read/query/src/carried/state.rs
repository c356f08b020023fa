//! The carried values, by key.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, new_null_array};
use datafusion::arrow::compute::{filter, interleave, is_not_null};
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::error::Result;
use datafusion::logical_expr::EmitTo;
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;

use super::spec::Spec;

/// Number of arrays, and number of values beyond one for each key, from which on values are compacted into one array.
const ARRAYS_MAX: usize = 64;
const SPARE_MAX: usize = 64 << 10;

/// The last value of each key up to the current row.
pub(super) struct Carried {
    spec: Arc<Spec>,
    /// Table of keys; `None` if there are no key columns, so that all rows have the same key.
    keys: Option<Box<dyn GroupValues>>,
    /// Number of the key of each row in the current batch.
    of_rows: Vec<usize>,
    values: Vec<Values>,
}

impl Carried {
    /// Creates the state. `input` is the schema of the rows to come.
    pub(super) fn new(spec: &Arc<Spec>, input: &Schema) -> Result<Carried> {
        let keys = match spec.keys.is_empty() {
            true => None,
            false => Some(new_group_values(Arc::new(input.project(&spec.keys)?), &GroupOrdering::None)?),
        };
        let values = spec.values.iter().map(|(column, _)| Values::new(input.field(*column).data_type()));
        Ok(Carried { spec: Arc::clone(spec), keys, of_rows: Vec::new(), values: values.collect() })
    }

    /// Adds `rows` rows and returns the carried columns for them.
    pub(super) fn add(&mut self, columns: &[ArrayRef], rows: usize) -> Result<Vec<ArrayRef>> {
        let keys_count = match &mut self.keys {
            None => {
                self.of_rows.clear();
                self.of_rows.resize(rows, 0);
                1
            }
            Some(keys) => {
                let of_keys: Vec<ArrayRef> = self.spec.keys.iter().map(|key| Arc::clone(&columns[*key])).collect();
                keys.intern(&of_keys, &mut self.of_rows)?;
                keys.len()
            }
        };
        let values = self.values.iter_mut().zip(&self.spec.values);
        values.map(|(values, (column, _))| values.carry(&self.of_rows, keys_count, &columns[*column])).collect()
    }

    pub(super) fn size_bytes(&self) -> usize {
        let of_keys = self.keys.as_ref().map_or(0, |keys| keys.size());
        of_keys + self.values.iter().map(Values::size_bytes).sum::<usize>()
    }

    /// Returns a row for each key with its last values. All other columns are null.
    pub(super) fn into_rows(mut self, input: &Schema) -> Result<Vec<ArrayRef>> {
        let count = self.values.first().map_or(0, |values| values.last.len());
        let mut columns: Vec<_> = input.fields().iter().map(|field| new_null_array(field.data_type(), count)).collect();
        if let Some(keys) = &mut self.keys {
            for (key, column) in self.spec.keys.iter().zip(keys.emit(EmitTo::All)?) {
                columns[*key] = column;
            }
        }
        for (values, (column, _)) in self.values.iter().zip(&self.spec.values) {
            // A carried column can also be a key.
            if !self.spec.keys.contains(column) {
                columns[*column] = interleave_all(&values.arrays, &values.last)?;
            }
        }
        Ok(columns)
    }
}

/// The last values of one column.
struct Values {
    /// Arrays of values: the first has one null, the others hold the non-null values of batches.
    arrays: Vec<ArrayRef>,
    /// Number of values in the arrays after the first.
    count: usize,
    /// Last value of each key: index of the array, and row in it.
    last: Vec<(usize, usize)>,
}

impl Values {
    fn new(of: &DataType) -> Values {
        Values { arrays: vec![new_null_array(of, 1)], count: 0, last: Vec::new() }
    }

    /// Adds `column`, and returns the value carried to each of its rows. `keys` has the key of each row, below
    /// `keys_count`.
    fn carry(&mut self, keys: &[usize], keys_count: usize, column: &ArrayRef) -> Result<ArrayRef> {
        self.last.resize(keys_count, (0, 0));
        let valid = is_not_null(column)?;
        let array = self.arrays.len();
        if valid.true_count() > 0 {
            self.arrays.push(filter(column, &valid)?);
        }
        let mut row = 0;
        let mut take = |(key, is_valid): (&usize, bool)| {
            if is_valid {
                self.last[*key] = (array, row);
                row += 1;
            }
            self.last[*key]
        };
        let indices: Vec<_> = keys.iter().zip(valid.values().iter()).map(&mut take).collect();
        self.count += row;
        let carried = interleave_all(&self.arrays, &indices)?;
        if self.arrays.len() > ARRAYS_MAX || self.count > self.last.len() + SPARE_MAX {
            self.shrink()?;
        }
        Ok(carried)
    }

    /// Compacts the arrays so that they hold only the last values.
    fn shrink(&mut self) -> Result<()> {
        let known: Vec<_> = self.last.iter().copied().filter(|(array, _)| *array > 0).collect();
        let kept = interleave_all(&self.arrays, &known)?;
        self.arrays.truncate(1);
        self.arrays.push(kept);
        self.count = known.len();
        for (row, last) in self.last.iter_mut().filter(|(array, _)| *array > 0).enumerate() {
            *last = (1, row);
        }
        Ok(())
    }

    fn size_bytes(&self) -> usize {
        let arrays: usize = self.arrays.iter().map(|array| array.get_array_memory_size()).sum();
        arrays + self.last.capacity() * size_of::<(usize, usize)>()
    }
}

fn interleave_all(arrays: &[ArrayRef], indices: &[(usize, usize)]) -> Result<ArrayRef> {
    let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    Ok(interleave(&arrays, indices)?)
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;

    use datafusion::arrow::array::{DictionaryArray, Int32Array, RecordBatch, StringArray, UInt64Array};
    use datafusion::arrow::datatypes::Int32Type;
    use datafusion::arrow::util::display::array_value_to_string;

    use super::*;

    /// Makes batches of a key, a number, a text and the same text in a dictionary, many of them null, and the row
    /// number.
    pub(in super::super) fn batches(keys_count: u64, rows: usize, count: usize) -> Vec<RecordBatch> {
        let mut seed = 1u64;
        let mut next = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let one = |batch: usize| {
            let mut column = |below: u64| -> Vec<Option<u64>> {
                (0..rows).map(|_| Some(next(below)).filter(|_| next(10) > 0)).collect()
            };
            let keys = UInt64Array::from(column(keys_count));
            let numbers: Int32Array =
                column(7).into_iter().map(|value| value.map(|value| value as i32).filter(|value| *value > 3)).collect();
            let texts = column(7).into_iter().map(|value| value.filter(|value| *value == 0).map(|_| next(1000)));
            let texts: StringArray = texts.map(|value| value.map(|value| format!("text {value}"))).collect();
            let dictionary: DictionaryArray<Int32Type> = texts.iter().collect();
            let first = (batch * rows) as u64;
            let numbers_of_rows = UInt64Array::from_iter_values(first..first + rows as u64);
            let columns: [(_, ArrayRef); 5] = [
                ("key", Arc::new(keys)),
                ("number", Arc::new(numbers)),
                ("text", Arc::new(texts)),
                ("dictionary", Arc::new(dictionary)),
                ("row", Arc::new(numbers_of_rows)),
            ];
            RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
        };
        (0..count).map(one).collect()
    }

    fn spec(keys: Vec<usize>) -> Arc<Spec> {
        let values = (1..4).map(|column| (column, format!("last {column}"))).collect();
        Arc::new(Spec { keys, order: Vec::new(), values })
    }

    #[test]
    fn each_row_has_the_last_value_of_its_key() {
        for (keys, keys_count, rows, count) in
            [(vec![], 1, 100, 200), (vec![0], 5, 100, 200), (vec![0], 3000, 5000, 40)]
        {
            let batches = batches(keys_count, rows, count);
            let (spec, input) = (spec(keys.clone()), batches[0].schema());
            let mut carried = Carried::new(&spec, &input).unwrap();
            let mut last = HashMap::new();
            for batch in batches {
                let found = carried.add(batch.columns(), rows).unwrap();
                for row in 0..rows {
                    let key = (!keys.is_empty()).then(|| array_value_to_string(batch.column(0), row).unwrap());
                    for column in 1..4 {
                        let text = array_value_to_string(batch.column(column), row).unwrap();
                        let expected: &mut String = last.entry((key.clone(), column)).or_default();
                        if !text.is_empty() {
                            *expected = text;
                        }
                        assert_eq!(array_value_to_string(&found[column - 1], row).unwrap(), *expected);
                    }
                }
            }
            for values in &carried.values {
                assert!(values.arrays.len() <= ARRAYS_MAX && values.count <= values.last.len() + SPARE_MAX);
            }
        }
    }

    #[test]
    fn untyped_values_are_null() {
        let nulls = new_null_array(&DataType::Null, 3);
        let batch = RecordBatch::try_from_iter([("x", nulls)]).unwrap();
        let spec = Arc::new(Spec { keys: Vec::new(), order: Vec::new(), values: vec![(0, "last".into())] });
        let mut carried = Carried::new(&spec, &batch.schema()).unwrap();
        assert_eq!(carried.add(batch.columns(), 3).unwrap()[0].logical_null_count(), 3);
    }
}

//! The operator that carries values on, by key.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, new_null_array};
use datafusion::arrow::compute::{SortOptions, filter, interleave, is_not_null};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{
    Distribution, EquivalenceProperties, LexOrdering, OrderingRequirements, PhysicalExpr, PhysicalSortExpr,
};
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, SendableRecordBatchStream,
};
use futures::StreamExt;
use serde::{Deserialize, Serialize};

/// Arrays and values that are kept besides one for each key, before they become one array.
const ARRAYS_MAX: usize = 64;
const SPARE_MAX: usize = 64 << 10;

/// What is carried: columns are those of the child, by number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub keys: Vec<usize>,
    pub order: Vec<Order>,
    /// With the names that they get.
    pub values: Vec<(usize, String)>,
}

/// What rows are in the order of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub column: usize,
    pub is_descending: bool,
    pub is_null_first: bool,
}

impl Spec {
    fn columns(&self) -> impl Iterator<Item = usize> {
        let values = self.values.iter().map(|(column, _)| *column);
        self.keys.iter().copied().chain(self.order.iter().map(|order| order.column)).chain(values)
    }

    fn schema(&self, input: &Schema) -> SchemaRef {
        let value = |(column, name): &(usize, String)| {
            Arc::new(Field::new(name, input.field(*column).data_type().clone(), true))
        };
        let fields = input.fields().iter().cloned().chain(self.values.iter().map(value));
        Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), input.metadata().clone()))
    }
}

/// The operator.
#[derive(Debug)]
pub(crate) struct CarryExec {
    pub spec: Arc<Spec>,
    child: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl CarryExec {
    /// # Errors
    /// The child does not have the columns.
    pub(crate) fn new(spec: Arc<Spec>, child: Arc<dyn ExecutionPlan>) -> Result<CarryExec> {
        let input = child.schema();
        if spec.columns().any(|column| column >= input.fields().len()) {
            return Err(DataFusionError::Internal("CarryExec: the child is not as it was planned".into()));
        }
        // Rows stay in their order, and columns where they are.
        let orderings = child.equivalence_properties().oeq_class().iter().cloned();
        let properties = PlanProperties::new(
            EquivalenceProperties::new_with_orderings(spec.schema(&input), orderings),
            child.output_partitioning().clone(),
            child.pipeline_behavior(),
            child.boundedness(),
        );
        Ok(CarryExec { spec, child, properties: Arc::new(properties) })
    }

    fn column(&self, index: usize) -> Arc<dyn PhysicalExpr> {
        Arc::new(Column::new(self.child.schema().field(index).name(), index))
    }
}

impl DisplayAs for CarryExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let input = self.child.schema();
        let name = |column: &usize| input.field(*column).name().as_str();
        let keys: Vec<&str> = self.spec.keys.iter().map(name).collect();
        let values: Vec<&str> = self.spec.values.iter().map(|(column, _)| name(column)).collect();
        write!(f, "CarryExec: [{}] by [{}]", values.join(", "), keys.join(", "))
    }
}

impl ExecutionPlan for CarryExec {
    fn name(&self) -> &str {
        "CarryExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.child]
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        let keys: Vec<_> = self.spec.keys.iter().map(|key| self.column(*key)).collect();
        vec![if keys.is_empty() { Distribution::SinglePartition } else { Distribution::KeyPartitioned(keys) }]
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        let one = |order: &Order| {
            let options = SortOptions { descending: order.is_descending, nulls_first: order.is_null_first };
            PhysicalSortExpr::new(self.column(order.column), options)
        };
        vec![LexOrdering::new(self.spec.order.iter().map(one)).map(OrderingRequirements::from)]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(child), true) => Ok(Arc::new(CarryExec::new(Arc::clone(&self.spec), child)?)),
            _ => Err(DataFusionError::Internal("CarryExec has one child".into())),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let memory = MemoryConsumer::new("values that are carried on, by key").register(context.memory_pool());
        let stream = self.child.execute(partition, context)?;
        let mut carried = Carried::new(&self.spec, &self.child.schema(), self.schema(), memory)?;
        let rows = stream.map(move |batch| carried.add(&batch?));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// The last values of all keys, up to a row.
struct Carried {
    spec: Arc<Spec>,
    schema: SchemaRef,
    /// Keys by number; none where all rows have the same.
    keys: Option<Box<dyn GroupValues>>,
    /// The numbers of the keys of a batch.
    of_rows: Vec<usize>,
    values: Vec<Values>,
    memory: MemoryReservation,
}

impl Carried {
    fn new(spec: &Arc<Spec>, input: &Schema, schema: SchemaRef, memory: MemoryReservation) -> Result<Carried> {
        let keys = match spec.keys.is_empty() {
            true => None,
            false => Some(new_group_values(Arc::new(input.project(&spec.keys)?), &GroupOrdering::None)?),
        };
        let values = spec.values.iter().map(|(column, _)| Values::new(input.field(*column).data_type()));
        Ok(Carried { spec: Arc::clone(spec), schema, keys, of_rows: Vec::new(), values: values.collect(), memory })
    }

    /// The rows with what is carried to them.
    fn add(&mut self, batch: &RecordBatch) -> Result<RecordBatch> {
        let keys_count = match &mut self.keys {
            None => {
                self.of_rows.clear();
                self.of_rows.resize(batch.num_rows(), 0);
                1
            }
            Some(keys) => {
                let columns: Vec<ArrayRef> = self.spec.keys.iter().map(|key| Arc::clone(batch.column(*key))).collect();
                keys.intern(&columns, &mut self.of_rows)?;
                keys.len()
            }
        };
        let mut columns = batch.columns().to_vec();
        for (values, (column, _)) in self.values.iter_mut().zip(&self.spec.values) {
            columns.push(values.carry(&self.of_rows, keys_count, batch.column(*column))?);
        }
        let of_keys = self.keys.as_ref().map_or(0, |keys| keys.size());
        self.memory.try_resize(of_keys + self.values.iter().map(Values::size_bytes).sum::<usize>())?;
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

/// The last values of one column.
struct Values {
    /// The first is null; the others are of batches, without nulls.
    arrays: Vec<ArrayRef>,
    /// How many values these have.
    count: usize,
    /// The last one of each key: array and row.
    last: Vec<(usize, usize)>,
}

impl Values {
    fn new(of: &DataType) -> Values {
        Values { arrays: vec![new_null_array(of, 1)], count: 0, last: Vec::new() }
    }

    /// `keys`: those of the rows of `column`, of so many that there are.
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

    /// Keeps no other values than the last ones.
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
mod tests {
    use std::collections::HashMap;

    use datafusion::arrow::array::{DictionaryArray, Int32Array, StringArray, UInt64Array};
    use datafusion::arrow::datatypes::Int32Type;
    use datafusion::arrow::util::display::array_value_to_string;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};

    use super::*;

    /// Batches of a key, a number, and a text twice, of which many are null.
    fn batches(keys_count: u64, rows: usize, count: usize) -> Vec<RecordBatch> {
        let mut seed = 1u64;
        let mut next = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let one = |_| {
            let mut column = |below: u64| -> Vec<Option<u64>> {
                (0..rows).map(|_| Some(next(below)).filter(|_| next(10) > 0)).collect()
            };
            let keys = UInt64Array::from(column(keys_count));
            let numbers: Int32Array =
                column(7).into_iter().map(|value| value.map(|value| value as i32).filter(|value| *value > 3)).collect();
            let texts = column(7).into_iter().map(|value| value.filter(|value| *value == 0).map(|_| next(1000)));
            let texts: StringArray = texts.map(|value| value.map(|value| format!("text {value}"))).collect();
            let dictionary: DictionaryArray<Int32Type> = texts.iter().collect();
            let columns: [(_, ArrayRef); 4] = [
                ("key", Arc::new(keys)),
                ("number", Arc::new(numbers)),
                ("text", Arc::new(texts)),
                ("dictionary", Arc::new(dictionary)),
            ];
            RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
        };
        (0..count).map(one).collect()
    }

    fn carried(schema: &SchemaRef, keys: Vec<usize>, pool: &Arc<dyn MemoryPool>) -> Carried {
        let values = (1..4).map(|column| (column, format!("last {column}"))).collect();
        let spec = Arc::new(Spec { keys, order: Vec::new(), values });
        let memory = MemoryConsumer::new("values").register(pool);
        Carried::new(&spec, schema, spec.schema(schema), memory).unwrap()
    }

    #[test]
    fn each_row_has_the_last_value_of_its_key() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 30));
        for (keys, keys_count, rows, count) in
            [(vec![], 1, 100, 200), (vec![0], 5, 100, 200), (vec![0], 3000, 5000, 40)]
        {
            let batches = batches(keys_count, rows, count);
            let mut carried = carried(&batches[0].schema(), keys.clone(), &pool);
            let mut last = HashMap::new();
            for batch in batches {
                let found = carried.add(&batch).unwrap();
                assert_eq!(found.columns()[..4], batch.columns()[..]);
                for row in 0..rows {
                    let key = (!keys.is_empty()).then(|| array_value_to_string(batch.column(0), row).unwrap());
                    for column in 1..4 {
                        let text = array_value_to_string(batch.column(column), row).unwrap();
                        let expected: &mut String = last.entry((key.clone(), column)).or_default();
                        if !text.is_empty() {
                            *expected = text;
                        }
                        assert_eq!(array_value_to_string(found.column(column + 3), row).unwrap(), *expected);
                    }
                }
            }
            for values in &carried.values {
                assert!(values.arrays.len() <= ARRAYS_MAX && values.count <= values.last.len() + SPARE_MAX);
            }
        }
        assert_eq!(pool.reserved(), 0, "given back");
    }

    #[test]
    fn values_of_no_type_are_null() {
        let nulls = new_null_array(&DataType::Null, 3);
        let batch = RecordBatch::try_from_iter([("x", nulls)]).unwrap();
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 20));
        let spec = Arc::new(Spec { keys: Vec::new(), order: Vec::new(), values: vec![(0, "last".into())] });
        let memory = MemoryConsumer::new("values").register(&pool);
        let schema = spec.schema(&batch.schema());
        let mut carried = Carried::new(&spec, &batch.schema(), schema, memory).unwrap();
        assert_eq!(carried.add(&batch).unwrap().column(1).logical_null_count(), 3);
    }

    #[test]
    fn more_keys_than_the_memory_has_room_for() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 20));
        let batches = batches(u64::from(u32::MAX), 8192, 20);
        let mut carried = carried(&batches[0].schema(), vec![0], &pool);
        let error = batches.iter().find_map(|batch| carried.add(batch).err()).unwrap();
        assert!(matches!(error, DataFusionError::ResourcesExhausted(_)), "{error}");
    }
}

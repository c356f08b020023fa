//! Rows in temporary files, divided by their keys.

use std::sync::Arc;

use datafusion::arrow::array::cast::AsArray;
use datafusion::arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use datafusion::arrow::compute::kernels::boolean::not;
use datafusion::arrow::compute::{filter, take_arrays};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::error::Result;
use datafusion::execution::SpillFile;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::metrics::SpillMetrics;
use datafusion::physical_plan::spill::SpillManager;
use futures::StreamExt;

/// Number of files that rows are divided among.
const FILES: usize = 32;
/// Rows per batch when the carried values are written to files.
const ROWS: usize = 8192;

/// Writes and reads the files. Their columns are those of the child, all nullable because rows with carried values have
/// nulls in the other columns, and a flag `told` that marks these rows.
pub(super) struct Files {
    schema: SchemaRef,
    spilled: SpillManager,
}

impl Files {
    pub(super) fn new(input: &Schema, runtime: Arc<RuntimeEnv>, metrics: SpillMetrics) -> Files {
        let nullable = input.fields().iter().map(|field| Arc::new(field.as_ref().clone().with_nullable(true)));
        let told = Arc::new(Field::new("told", DataType::Boolean, false));
        let schema = Arc::new(Schema::new(nullable.chain([told]).collect::<Vec<_>>()));
        Files { spilled: SpillManager::new(runtime, metrics, Arc::clone(&schema)), schema }
    }

    pub(super) fn read(&self, file: Arc<dyn SpillFile>) -> Result<SendableRecordBatchStream> {
        self.spilled.read_spill_as_stream(file, None)
    }

    /// Divides the carried values in `last`, and the remaining `rows`, among files. If `depth` is not 0, `rows` come
    /// from a file and have the flag. All rows of a key are in one file, in their order.
    pub(super) async fn divide(
        &self,
        keys: &[usize],
        last: Vec<ArrayRef>,
        mut rows: SendableRecordBatchStream,
        depth: usize,
    ) -> Result<Vec<Arc<dyn SpillFile>>> {
        let new = |_| self.spilled.create_in_progress_file("values that are carried on");
        let mut files = (0..FILES).map(new).collect::<Result<Vec<_>>>()?;
        // Each depth has another seed. DataFusion divides rows among threads by a hash of its own.
        let state = RandomState::with_seed(depth as u64 + 1);
        let mut add = |columns: &[ArrayRef], count: usize| -> Result<()> {
            let mut hashes = vec![0; count];
            create_hashes(keys.iter().map(|key| &columns[*key]), &state, &mut hashes)?;
            let mut of_files = vec![Vec::<u32>::new(); FILES];
            for (row, hash) in (0u32..).zip(hashes) {
                of_files[(hash % FILES as u64) as usize].push(row);
            }
            for (file, rows) in files.iter_mut().zip(of_files).filter(|(_, rows)| !rows.is_empty()) {
                let columns = take_arrays(columns, &UInt32Array::from(rows), None)?;
                file.append_batch(&RecordBatch::try_new(Arc::clone(&self.schema), columns)?)?;
            }
            Ok(())
        };
        let told = |columns: Vec<ArrayRef>, is_told: bool, count: usize| {
            let told: ArrayRef = Arc::new(BooleanArray::from(vec![is_told; count]));
            columns.into_iter().chain([told]).collect::<Vec<_>>()
        };
        let count = last.first().map_or(0, |column| column.len());
        for begin in (0..count).step_by(ROWS) {
            let count = ROWS.min(count - begin);
            let columns = last.iter().map(|column| column.slice(begin, count)).collect();
            add(&told(columns, true, count), count)?;
        }
        drop(last);
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            let (columns, count) = (batch.columns().to_vec(), batch.num_rows());
            add(&if depth > 0 { columns } else { told(columns, false, count) }, count)?;
        }
        let finished = files.iter_mut().map(|file| file.finish()).collect::<Result<Vec<_>>>()?;
        Ok(finished.into_iter().flatten().collect())
    }
}

/// Returns the child's columns and, if the rows come from a file, the flag that marks rows with carried values.
pub(super) fn columns(batch: &RecordBatch, is_of_file: bool) -> (Vec<ArrayRef>, Option<BooleanArray>) {
    let mut columns = batch.columns().to_vec();
    let told = if is_of_file { columns.pop() } else { None };
    (columns, told.map(|told| told.as_boolean().clone()))
}

/// Removes the rows that only have carried values.
pub(super) fn without(columns: Vec<ArrayRef>, told: Option<BooleanArray>) -> Result<Vec<ArrayRef>> {
    let Some(told) = told else { return Ok(columns) };
    let kept = not(&told)?;
    Ok(columns.iter().map(|column| filter(column, &kept)).collect::<Result<_, _>>()?)
}

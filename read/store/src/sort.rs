//! Sorts rows by a time in bounded memory: sorted runs go to unnamed files, which are merged at the end. The sort is
//! stable, so the result does not depend on the memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Seek};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_select::interleave::interleave_record_batch;

use crate::error::{Failed, Result};

/// Number of rows in an output batch.
const ROWS: usize = 8 << 10;

const FAILED: &str = "cannot sort pairs by files in the directory for temporary ones (TMPDIR)";

/// Sorts the rows of batches that arrive in any order.
#[derive(Debug)]
pub(crate) struct Sorter {
    /// Index of the column of times.
    column: usize,
    bytes_max: usize,
    waiting: Vec<RecordBatch>,
    waiting_bytes: usize,
    runs: Vec<File>,
}

impl Sorter {
    pub(crate) fn new(column: usize, bytes_max: usize) -> Sorter {
        Sorter { column, bytes_max, waiting: Vec::new(), waiting_bytes: 0, runs: Vec::new() }
    }

    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<()> {
        self.waiting_bytes += batch.get_array_memory_size();
        self.waiting.push(batch);
        if self.waiting_bytes > self.bytes_max {
            self.spill()?;
        }
        Ok(())
    }

    /// Takes the waiting rows and returns them sorted.
    fn sorted(&mut self) -> impl Iterator<Item = Result<RecordBatch>> + use<> {
        let batches = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        let mut rows: Vec<(i64, usize, usize)> = Vec::new();
        for (at, batch) in batches.iter().enumerate() {
            let times = batch.column(self.column).as_primitive::<TimestampNanosecondType>();
            rows.extend((0..times.len()).map(|row| (times.value(row), at, row)));
        }
        rows.sort_unstable();
        let chunks: Vec<Vec<(usize, usize)>> =
            rows.chunks(ROWS).map(|rows| rows.iter().map(|(_, batch, row)| (*batch, *row)).collect()).collect();
        chunks.into_iter().map(move |rows| {
            let of: Vec<&RecordBatch> = batches.iter().collect();
            interleave_record_batch(&of, &rows).failed(|| FAILED.into())
        })
    }

    fn spill(&mut self) -> Result<()> {
        let Some(schema) = self.waiting.first().map(RecordBatch::schema) else { return Ok(()) };
        let mut file = tempfile::tempfile().failed(|| FAILED.into())?;
        let mut writer = StreamWriter::try_new(BufWriter::new(&mut file), &schema).failed(|| FAILED.into())?;
        for batch in self.sorted() {
            writer.write(&batch?).failed(|| FAILED.into())?;
        }
        writer.finish().failed(|| FAILED.into())?;
        drop(writer);
        file.rewind().failed(|| FAILED.into())?;
        self.runs.push(file);
        Ok(())
    }

    /// Passes all rows to `give`, sorted.
    pub(crate) fn finish(mut self, mut give: impl FnMut(RecordBatch) -> Result<()>) -> Result<()> {
        if self.runs.is_empty() {
            return self.sorted().try_for_each(|batch| give(batch?));
        }
        self.spill()?;
        let mut runs = Vec::new();
        for file in std::mem::take(&mut self.runs) {
            runs.push(StreamReader::try_new(BufReader::new(file), None).failed(|| FAILED.into())?);
        }
        // Current batch of each run, and the next row in it.
        let mut at: Vec<Option<(RecordBatch, usize)>> = Vec::new();
        let mut next = BinaryHeap::new();
        for (run, reader) in runs.iter_mut().enumerate() {
            at.push(next_batch(reader)?.map(|batch| (batch, 0)));
            next.extend(self.time(&at[run]).map(|time| Reverse((time, run))));
        }
        // Input batches and rows of the next output batch. `places`: for each run, index of its current batch in `of`.
        let (mut of, mut rows) = (Vec::<RecordBatch>::new(), Vec::new());
        let mut places: Vec<Option<usize>> = vec![None; runs.len()];
        while let Some(Reverse((_, run))) = next.pop() {
            let Some((batch, row)) = &mut at[run] else { continue };
            let place = *places[run].get_or_insert_with(|| {
                of.push(batch.clone());
                of.len() - 1
            });
            rows.push((place, *row));
            *row += 1;
            if *row == batch.num_rows() {
                at[run] = next_batch(&mut runs[run])?.map(|batch| (batch, 0));
                places[run] = None;
            }
            next.extend(self.time(&at[run]).map(|time| Reverse((time, run))));
            if rows.len() == ROWS || next.is_empty() {
                let all: Vec<&RecordBatch> = of.iter().collect();
                give(interleave_record_batch(&all, &rows).failed(|| FAILED.into())?)?;
                of.clear();
                rows.clear();
                places.fill(None);
            }
        }
        Ok(())
    }

    fn time(&self, at: &Option<(RecordBatch, usize)>) -> Option<i64> {
        let (batch, row) = at.as_ref()?;
        Some(batch.column(self.column).as_primitive::<TimestampNanosecondType>().value(*row))
    }
}

fn next_batch(reader: &mut StreamReader<BufReader<File>>) -> Result<Option<RecordBatch>> {
    reader.find(|batch| batch.as_ref().map_or(true, |batch| batch.num_rows() > 0)).transpose().failed(|| FAILED.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::UInt32Type;
    use arrow_array::{ArrayRef, TimestampNanosecondArray, UInt32Array};

    use super::*;

    /// The result is that of a stable sort, independent of the memory.
    #[test]
    fn rows_are_sorted_by_time_and_stable() {
        let mut random = 7_u64;
        let rows: Vec<(i64, u32)> = (0..50_000)
            .map(|number| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((random >> 52) as i64, number)
            })
            .collect();
        let mut expected = rows.clone();
        expected.sort_by_key(|(time, _)| *time);
        for (bytes_max, is_in_runs) in [(usize::MAX, false), (100 << 10, true), (0, true)] {
            let mut sorter = Sorter::new(0, bytes_max);
            for rows in rows.chunks(1000) {
                let times: TimestampNanosecondArray = rows.iter().map(|(time, _)| *time).collect::<Vec<_>>().into();
                let numbers: UInt32Array = rows.iter().map(|(_, number)| *number).collect::<Vec<_>>().into();
                let columns = [("time", Arc::new(times) as ArrayRef), ("number", Arc::new(numbers) as ArrayRef)];
                sorter.push(RecordBatch::try_from_iter(columns).unwrap()).unwrap();
            }
            assert_eq!(sorter.runs.len() > 1, is_in_runs);
            let mut found = Vec::new();
            sorter
                .finish(|batch| {
                    let times = batch.column(0).as_primitive::<TimestampNanosecondType>();
                    let numbers = batch.column(1).as_primitive::<UInt32Type>();
                    found.extend((0..batch.num_rows()).map(|row| (times.value(row), numbers.value(row))));
                    Ok(())
                })
                .unwrap();
            assert!(found == expected, "{bytes_max}");
        }
    }
}

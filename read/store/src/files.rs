//! Writes the files of a chunk, many at a time, in bounded memory.
//!
//! ```text
//!   batch ─▶ file of its table, class and day ─▶ row group, encoded ─▶ spool ─▶ complete file ─▶ object
//!              too much memory in all row groups: the least recently used file's group is written
//! ```
//! The assignment of rows to files depends on the rows alone, not on the memory: a process that makes the chunk again
//! makes files with the same rows.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use arrow_array::{Array, RecordBatch};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::{Error, Failed, Result};
use crate::layout::{NS_PER_DAY, PARTITIONS, day_of, escaped};
use crate::manifest::FileOf;
use crate::place::Store;
use crate::spool::{Spool, Spooled};

/// Memory of a row group, in bytes, above which the group is written.
const GROUP_BYTES_MAX: usize = 64 << 20;
/// Size of a file's rows as Arrow arrays, in bytes, above which the file ends and another begins.
const FILE_BYTES_MAX: usize = 512 << 20;
/// Limits of concurrent uploads: number of objects, and their size in bytes.
const ON_THE_WAY_MAX: usize = 8;
const ON_THE_WAY_BYTES_MAX: usize = 64 << 20;

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// A store: all tables, and manifests.
    #[default]
    Parquet,
    /// Arrow (Feather) files with events only.
    Arrow,
}

/// Returns the properties of Parquet files: compressed, with statistics of each page, which let readers skip pages that
/// they do not need.
pub fn properties() -> WriterProperties {
    let all = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_created_by("dormouse".into());
    // Rows are sorted by time, so differences of consecutive times are stored.
    let of_times = ["time", "begin_time", "end_time"].map(ColumnPath::from);
    let all = of_times.into_iter().fold(all, |all, column| {
        all.set_column_dictionary_enabled(column.clone(), false)
            .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED)
    });
    all.build()
}

/// Returns the schema with columns renamed to `fields.NAME` if a directory is named by a column of their name.
pub fn renamed(schema: &Schema) -> SchemaRef {
    let rename = |field: &Arc<arrow_schema::Field>| match PARTITIONS.contains(&field.name().as_str()) {
        true => Arc::new(field.as_ref().clone().with_name(format!("fields.{}", field.name()))),
        false => Arc::clone(field),
    };
    Arc::new(Schema::new(schema.fields().iter().map(rename).collect::<Vec<_>>()))
}

/// Splits a batch into days. `column` is the index of the column of times, by which the rows are sorted.
pub(crate) fn by_day(batch: &RecordBatch, column: usize) -> Vec<(String, RecordBatch)> {
    let times = batch.column(column).as_primitive::<TimestampNanosecondType>();
    let time = |row: usize| times.is_valid(row).then(|| times.value(row));
    let day = |row: usize| time(row).map(|ns| ns.div_euclid(NS_PER_DAY));
    let (mut found, mut begin) = (Vec::new(), 0);
    for row in 1..=batch.num_rows() {
        if row == batch.num_rows() || day(row) != day(begin) {
            found.push((day_of(time(begin)), batch.slice(begin, row - begin)));
            begin = row;
        }
    }
    found
}

/// Table, class and day of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Of {
    pub table: &'static str,
    pub class: Option<String>,
    pub day: Option<String>,
}

enum Writer {
    Parquet(Box<ArrowWriter<Spooled>>),
    Arrow(Box<FileWriter<Spooled>>),
}

/// A file that is being made.
struct Open {
    writer: Writer,
    /// Size of its rows as Arrow arrays, in bytes.
    size_bytes: usize,
    rows: u64,
    times_ns: Option<(i64, i64)>,
    /// Number of the batch that was added last.
    used: u64,
    /// Memory of its current row group, in bytes.
    group_bytes: usize,
}

/// Writer of the files of a chunk.
pub(crate) struct Files<'s> {
    store: &'s Store,
    runtime: &'s Handle,
    format: Format,
    host: &'s str,
    chunk: &'s str,
    /// Maximum memory of all row groups together, in bytes.
    memory_bytes: usize,
    group_bytes: usize,
    spool: Spool,
    open: HashMap<Of, Open>,
    /// Number of completed files, by table, class and day.
    numbers: HashMap<Of, u64>,
    batches: u64,
    on_the_way: VecDeque<(usize, JoinHandle<Result<FileOf>>)>,
    done: Vec<FileOf>,
}

impl<'s> Files<'s> {
    pub(crate) fn new(
        store: &'s Store,
        runtime: &'s Handle,
        format: Format,
        (host, chunk): (&'s str, &'s str),
        memory_bytes: usize,
    ) -> Result<Files<'s>> {
        Ok(Files {
            store,
            runtime,
            format,
            host,
            chunk,
            memory_bytes,
            group_bytes: 0,
            spool: Spool::new().failed(spooling)?,
            open: HashMap::new(),
            numbers: HashMap::new(),
            batches: 0,
            on_the_way: VecDeque::new(),
            done: Vec::new(),
        })
    }

    /// Adds rows to a file. `column` is the index of the column of times, by which the rows are sorted.
    pub(crate) fn write(&mut self, of: &Of, column: Option<usize>, batch: &RecordBatch) -> Result<()> {
        self.batches += 1;
        if !self.open.contains_key(of) {
            self.begin(of, &batch.schema())?;
        }
        let Some(open) = self.open.get_mut(of) else { return Ok(()) };
        self.group_bytes -= open.group_bytes;
        open.write(batch).failed(spooling)?;
        open.used = self.batches;
        open.rows += batch.num_rows() as u64;
        open.size_bytes += size_bytes(batch)?;
        if let Some((begin_ns, end_ns)) = column.and_then(|column| times(batch, column)) {
            open.times_ns = Some((open.times_ns.map_or(begin_ns, |(begin_ns, _)| begin_ns), end_ns));
        }
        if open.group_size_bytes() > GROUP_BYTES_MAX {
            open.flush().failed(spooling)?;
        }
        open.group_bytes = open.group_size_bytes();
        self.group_bytes += open.group_bytes;
        if open.size_bytes > FILE_BYTES_MAX {
            self.end(of)?;
        }
        while self.group_bytes > self.memory_bytes
            && let Some(open) = self.open.values_mut().filter(|open| open.group_bytes > 0).min_by_key(|open| open.used)
        {
            self.group_bytes -= open.group_bytes;
            open.flush().failed(spooling)?;
            open.group_bytes = 0;
        }
        Ok(())
    }

    fn begin(&mut self, of: &Of, schema: &SchemaRef) -> Result<()> {
        // Rows arrive in the order of time, so the open file of an earlier day is complete.
        let before = self.open.keys().find(|open| open.table == of.table && open.class == of.class).cloned();
        before.map_or(Ok(()), |before| self.end(&before))?;
        let file = self.spool.file();
        let writer = match self.format {
            Format::Arrow => Writer::Arrow(Box::new(FileWriter::try_new(file, schema).failed(spooling)?)),
            Format::Parquet => {
                let writer = ArrowWriter::try_new(file, Arc::clone(schema), Some(properties()));
                Writer::Parquet(Box::new(writer.failed(spooling)?))
            }
        };
        let open = Open { writer, size_bytes: 0, rows: 0, times_ns: None, used: 0, group_bytes: 0 };
        self.open.insert(of.clone(), open);
        Ok(())
    }

    /// Completes a file and starts its upload.
    fn end(&mut self, of: &Of) -> Result<()> {
        let Some(open) = self.open.remove(of) else { return Ok(()) };
        self.group_bytes -= open.group_bytes;
        let Open { writer, rows, times_ns, .. } = open;
        let bytes = Bytes::from(writer.finish()?);
        let number = self.numbers.entry(of.clone()).or_default();
        let path = path(of, self.host, self.chunk, *number, self.format);
        *number += 1;
        let mut file = FileOf {
            table: of.table.into(),
            class: of.class.clone(),
            day: of.day.clone(),
            path,
            size_bytes: bytes.len() as u64,
            rows,
            begin_ns: times_ns.map(|(begin_ns, _)| begin_ns),
            end_ns: times_ns.map(|(_, end_ns)| end_ns),
        };
        let on_the_way_bytes = |files: &Self| files.on_the_way.iter().map(|(size_bytes, _)| size_bytes).sum::<usize>();
        while self.on_the_way.len() >= ON_THE_WAY_MAX || on_the_way_bytes(self) > ON_THE_WAY_BYTES_MAX {
            self.arrive()?;
        }
        let store = self.store.clone();
        let size_bytes = bytes.len();
        let put = self.runtime.spawn(async move {
            if !store.put_new(&file.path, bytes.clone()).await? {
                file.size_bytes = same_rows(&store, &file, &bytes).await?;
            }
            Ok(file)
        });
        self.on_the_way.push_back((size_bytes, put));
        Ok(())
    }

    /// Waits until the oldest upload is done.
    fn arrive(&mut self) -> Result<()> {
        let Some((_, put)) = self.on_the_way.pop_front() else { return Ok(()) };
        let put = self.runtime.block_on(put).map_err(|error| Error(format!("cannot write: {error}")))?;
        self.done.push(put?);
        Ok(())
    }

    /// Completes all files and waits until they are in the store. Returns them sorted by path.
    pub(crate) fn finish(mut self) -> Result<Vec<FileOf>> {
        let mut open: Vec<Of> = self.open.keys().cloned().collect();
        open.sort_by(|a, b| (a.table, &a.class, &a.day).cmp(&(b.table, &b.class, &b.day)));
        open.iter().try_for_each(|of| self.end(of))?;
        while !self.on_the_way.is_empty() {
            self.arrive()?;
        }
        let mut done = std::mem::take(&mut self.done);
        done.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(done)
    }
}

impl Drop for Files<'_> {
    fn drop(&mut self) {
        // Uploads are left here only after an error, and then the chunk is not put.
        self.on_the_way.iter().for_each(|(_, put)| put.abort());
    }
}

fn spooling() -> String {
    "cannot make a file in the directory for temporary ones (TMPDIR)".into()
}

fn size_bytes(batch: &RecordBatch) -> Result<usize> {
    let size = |array: &arrow_array::ArrayRef| array.to_data().get_slice_memory_size();
    let sizes = batch.columns().iter().map(size).collect::<Result<Vec<_>, _>>();
    Ok(sizes.failed(spooling)?.into_iter().sum())
}

/// Returns the first and the last time.
fn times(batch: &RecordBatch, column: usize) -> Option<(i64, i64)> {
    let times = batch.column(column).as_primitive::<TimestampNanosecondType>();
    let is_timed = !times.is_empty() && times.is_valid(0);
    is_timed.then(|| (times.value(0), times.value(times.len() - 1)))
}

fn path(of: &Of, host: &str, chunk: &str, number: u64, format: Format) -> String {
    let mut path = format!("{}/host={}", of.table, escaped(host));
    of.day.iter().for_each(|day| path += &format!("/day={day}"));
    of.class.iter().for_each(|class| path += &format!("/class={}", escaped(class)));
    let number = if number == 0 { String::new() } else { format!("-{number}") };
    let extension = if format == Format::Arrow { "arrow" } else { "parquet" };
    format!("{path}/{chunk}{number}.{extension}")
}

impl Open {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), Box<dyn std::error::Error>> {
        match &mut self.writer {
            Writer::Parquet(writer) => writer.write(batch)?,
            Writer::Arrow(writer) => writer.write(batch)?,
        }
        Ok(())
    }

    fn group_size_bytes(&self) -> usize {
        match &self.writer {
            Writer::Parquet(writer) => writer.memory_size(),
            Writer::Arrow(_) => 0,
        }
    }

    fn flush(&mut self) -> Result<(), parquet::errors::ParquetError> {
        match &mut self.writer {
            Writer::Parquet(writer) => writer.flush(),
            Writer::Arrow(_) => Ok(()),
        }
    }
}

impl Writer {
    fn finish(self) -> Result<Vec<u8>> {
        let file = match self {
            Writer::Parquet(writer) => writer.into_inner().failed(spooling)?,
            Writer::Arrow(mut writer) => {
                writer.finish().failed(spooling)?;
                writer.into_inner().failed(spooling)?
            }
        };
        file.read().failed(spooling)
    }
}

/// Returns the length of an object that was already in the store. Its row groups may differ from those in `bytes`; a
/// different schema or number of rows is an error.
async fn same_rows(store: &Store, file: &FileOf, bytes: &Bytes) -> Result<u64> {
    let path = &file.path;
    let there = store.get(path).await?.ok_or_else(|| Error(format!("{path} was there, and is not any more")))?;
    if there == *bytes {
        return Ok(there.len() as u64);
    }
    let size_bytes = there.len() as u64;
    let (there, own) =
        (ParquetRecordBatchReaderBuilder::try_new(there), ParquetRecordBatchReaderBuilder::try_new(bytes.clone()));
    let is_same = match (there, own) {
        (Ok(there), Ok(own)) => {
            there.schema() == own.schema()
                && there.metadata().file_metadata().num_rows() == own.metadata().file_metadata().num_rows()
        }
        _ => false,
    };
    match is_same {
        true => Ok(size_bytes),
        false => Err(Error(format!(
            "{path} is in {} already, has other rows, and no manifest names it: another version of Dormouse has left it; remove it",
            store.place()
        ))),
    }
}

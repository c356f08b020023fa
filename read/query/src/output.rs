//! Results as a table, JSON, CSV, Arrow or Parquet, batch by batch.

use std::cell::Cell;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::csv;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::ipc::writer::FileWriter;
use datafusion::arrow::json::writer::{LineDelimited, WriterBuilder};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::arrow::util::pretty::pretty_format_batches_with_options;
use dormouse_store::files::properties;
use dormouse_terminal::{Output, say};
use parquet::arrow::ArrowWriter;
use tempfile::NamedTempFile;

/// Output format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns, for people
    Table,
    /// A JSON object on each line
    Json,
    /// The names of the columns, then a line for each row
    Csv,
    /// An Arrow file (Feather)
    Arrow,
    /// A Parquet file
    Parquet,
}

impl Format {
    pub(crate) fn is_text(self) -> bool {
        !matches!(self, Format::Arrow | Format::Parquet)
    }
}

/// Destination of a result: standard output, or a file that gets its name when it is complete.
pub(crate) enum Target<'o> {
    Stream(&'o mut Output),
    File(Output, Option<NamedTempFile>, PathBuf),
}

impl<'o> Target<'o> {
    /// Opens the destination.
    ///
    /// # Errors
    /// It cannot be written, or the format is not text and standard output is a terminal.
    pub(crate) fn open(path: Option<&Path>, format: Format, out: &'o mut Output) -> Result<Target<'o>> {
        let Some(path) = path.filter(|path| *path != Path::new("-")) else {
            if !format.is_text() && std::io::stdout().is_terminal() {
                bail!("binary data is not written to a terminal; name a file with -o, or use a pipe");
            }
            return Ok(Target::Stream(out));
        };
        let name = path.display().to_string();
        let failed = || format!("cannot write to {name}");
        if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            let file = File::options().write(true).open(path).with_context(failed)?;
            return Ok(Target::File(Output::to_file(file, name), None, path.into()));
        }
        // A symbolic link stays one: its target is replaced.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let prefix = format!(".{}.partial-", path.file_name().unwrap_or_default().to_string_lossy());
        let partial = tempfile::Builder::new().prefix(&prefix).tempfile_in(dir).with_context(failed)?;
        let stream = partial.as_file().try_clone().with_context(failed)?;
        Ok(Target::File(Output::to_file(stream, name), Some(partial), path))
    }

    pub(crate) fn output(&mut self) -> &mut Output {
        match self {
            Target::Stream(out) => out,
            Target::File(out, ..) => out,
        }
    }

    /// Completes the output, and renames the temporary file.
    ///
    /// # Errors
    /// Something could not be written. An existing file is then unchanged.
    pub(crate) fn finish(self) -> Result<()> {
        let Target::File(out, partial, path) = self else { return Ok(()) };
        out.finish()?;
        let Some(partial) = partial else { return Ok(()) };
        partial.persist(&path).map(drop).with_context(|| format!("cannot write to {}", path.display()))
    }
}

/// An output, borrowed by a writer, that tells whether it is still read.
pub(crate) struct Tap<'t> {
    out: &'t mut Output,
    is_over: Rc<Cell<bool>>,
}

impl Write for Tap<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes);
        self.is_over.set(self.out.is_over());
        written
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Writes the batches of a result.
pub(crate) struct Printer<'t> {
    writer: Writer<'t>,
    is_over: Rc<Cell<bool>>,
}

enum Writer<'t> {
    Table {
        out: Tap<'t>,
        schema: SchemaRef,
        rows: Vec<RecordBatch>,
        count: usize,
        rows_max: usize,
    },
    Csv(csv::Writer<Tap<'t>>),
    Json(datafusion::arrow::json::writer::Writer<Tap<'t>, LineDelimited>),
    Arrow(FileWriter<Tap<'t>>),
    /// Writes to its own buffer, because `ArrowWriter` requires a writer that is `Send`.
    Parquet(Box<ArrowWriter<Vec<u8>>>, Tap<'t>),
}

impl<'t> Printer<'t> {
    pub(crate) fn new(format: Format, rows_max: usize, schema: &SchemaRef, out: &'t mut Output) -> Result<Printer<'t>> {
        let is_over = Rc::new(Cell::new(out.is_over()));
        let writer = Writer::new(format, rows_max, schema, Tap { out, is_over: Rc::clone(&is_over) })?;
        Ok(Printer { writer, is_over })
    }

    /// Writes a batch. Returns false if no more batches are wanted or the output is no longer read.
    pub(crate) fn batch(&mut self, batch: &RecordBatch) -> Result<bool> {
        Ok(self.writer.batch(batch)? && !self.is_over.get())
    }

    /// Completes the result.
    pub(crate) fn finish(self) -> Result<()> {
        self.writer.finish()
    }
}

impl<'t> Writer<'t> {
    fn new(format: Format, rows_max: usize, schema: &SchemaRef, out: Tap<'t>) -> Result<Writer<'t>> {
        Ok(match format {
            Format::Table => Writer::Table { out, schema: Arc::clone(schema), rows: Vec::new(), count: 0, rows_max },
            Format::Csv => {
                let mut writer = csv::WriterBuilder::new().with_header(true).build(out);
                // The header is written even if there are no rows.
                writer.write(&flat(&RecordBatch::new_empty(Arc::clone(schema)))?)?;
                Writer::Csv(writer)
            }
            Format::Json => Writer::Json(WriterBuilder::new().with_explicit_nulls(true).build(out)),
            Format::Arrow => Writer::Arrow(FileWriter::try_new(out, schema)?),
            Format::Parquet => {
                let writer = ArrowWriter::try_new(Vec::new(), Arc::clone(schema), Some(properties()))?;
                Writer::Parquet(Box::new(writer), out)
            }
        })
    }

    fn batch(&mut self, batch: &RecordBatch) -> Result<bool> {
        match self {
            Writer::Table { rows, count, rows_max, .. } => {
                let left = rows_max.saturating_sub(*count);
                *count += batch.num_rows();
                if left > 0 {
                    rows.push(batch.slice(0, left.min(batch.num_rows())));
                }
                return Ok(*count <= *rows_max);
            }
            Writer::Csv(writer) => writer.write(&flat(batch)?)?,
            Writer::Json(writer) => writer.write(batch)?,
            Writer::Arrow(writer) => writer.write(batch)?,
            Writer::Parquet(writer, out) => {
                writer.write(batch)?;
                out.write_all(&std::mem::take(writer.inner_mut()))?;
            }
        }
        Ok(true)
    }

    fn finish(self) -> Result<()> {
        match self {
            Writer::Table { out, schema, rows, count, rows_max } => {
                let rows = if rows.is_empty() { vec![RecordBatch::new_empty(schema)] } else { rows };
                let text = pretty_format_batches_with_options(&rows, &shown())?;
                out.out.lines(format!("{text}\n").as_bytes())?;
                if count > rows_max {
                    say(format_args!(
                        "only {rows_max} rows are shown; --rows N shows more, --format csv or json shows all"
                    ));
                }
            }
            Writer::Csv(_) => {}
            Writer::Json(mut writer) => writer.finish()?,
            Writer::Arrow(mut writer) => writer.finish()?,
            Writer::Parquet(writer, mut out) => out.write_all(&writer.into_inner()?)?,
        }
        Ok(())
    }
}

fn shown() -> FormatOptions<'static> {
    FormatOptions::default().with_display_error(true)
}

/// Turns lists, structures and bytes into text, because CSV has no other form for them.
fn flat(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let is_flat = |data_type: &DataType| !data_type.is_nested() && !matches!(data_type, DataType::Binary);
    let schema = batch.schema();
    let (mut fields, mut columns) = (Vec::new(), Vec::<ArrayRef>::new());
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        if is_flat(field.data_type()) {
            fields.push(field.as_ref().clone());
            columns.push(Arc::clone(column));
            continue;
        }
        let options = shown();
        let formatter = ArrayFormatter::try_new(column, &options)?;
        let text = |row: usize| column.is_valid(row).then(|| formatter.value(row).to_string());
        fields.push(Field::new(field.name(), DataType::Utf8, true));
        columns.push(Arc::new((0..column.len()).map(text).collect::<StringArray>()));
    }
    let options = datafusion::arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
}

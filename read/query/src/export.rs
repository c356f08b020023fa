//! All events as files of Parquet or Arrow, for the programs of others.
//!
//! ```text
//!   DIR/host=HOST/day=2026-11-26/class=http%3Arequest/part-0.parquet      in the order of time
//! ```
//! Directories are named as Hive names partitions, which DuckDB, pyarrow and others take for columns. Files are written beside DIR and get their place when
//! all of them are whole.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use datafusion::arrow::array::cast::AsArray;
use datafusion::arrow::array::types::TimestampNanosecondType;
use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::arrow::ipc::writer::FileWriter;
use dormouse_columns::{Batches, Extra, Layout, Request};
use dormouse_ctf::model::EnvValue;
use dormouse_ctf::{ClassRef, TraceRef};
use parquet::arrow::ArrowWriter;

use crate::output::{Format, properties};
use crate::traces::Traces;

/// Bytes of a group of rows that is being made, beyond which it is written.
const GROUP_BYTES_MAX: usize = 64 << 20;
const NS_PER_DAY: i64 = 86_400_000_000_000;
/// How Hive calls what has no value.
const NO_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";
/// What directories are named by.
const PARTITIONS: [&str; 3] = ["host", "day", "class"];

/// What was written.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub events: u64,
    pub files: u64,
}

/// Writes all events of programs. `is_over`: whether nobody wants it any more.
///
/// # Errors
/// DIR is there and not empty, or something cannot be written.
pub(crate) fn export(traces: &'static Traces, dir: &Path, format: Format, is_over: &AtomicBool) -> Result<Written> {
    if dir.read_dir().is_ok_and(|mut entries| entries.next().is_some()) || dir.is_file() {
        bail!("{} is there and not empty; name a new directory", dir.display());
    }
    let failed = || format!("cannot write to {}", dir.display());
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let prefix = format!(".{}.partial-", dir.file_name().unwrap_or_default().to_string_lossy());
    let partial = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent).with_context(failed)?;
    let mut hosts: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, trace) in traces.files.traces().enumerate() {
        hosts.entry(host(trace)).or_default().push(index);
    }
    // Only classes that have events are looked for.
    let busy: BTreeSet<String> = traces.files.counts().classes.into_iter().map(|class| class.name).collect();
    let mut written = Written::default();
    for (host, of_host) in &hosts {
        let all: Vec<TraceRef<'static>> = traces.files.traces().collect();
        let classes = of_host.iter().flat_map(|index| ClassRef::all(all[*index])).filter(|class| !class.is_state());
        let names: BTreeSet<&str> = classes.map(|class| class.class.full_name.as_str()).collect();
        for name in names.into_iter().filter(|name| busy.contains(*name)) {
            let place = partial.path().join(format!("host={}", escaped(host)));
            one_class(traces, of_host, name, &place, format, is_over, &mut written)?;
        }
    }
    // An empty directory gives its place.
    let _ = std::fs::remove_dir(dir);
    let made = partial.keep();
    std::fs::rename(&made, dir).with_context(failed)?;
    Ok(written)
}

/// The host of a trace, as its environment says.
fn host(trace: TraceRef<'_>) -> String {
    if let Some(own) = trace.own() {
        return own.options.hostname.clone();
    }
    let found = trace.env().iter().find(|(name, _)| name == "hostname").map(|(_, value)| value);
    match found {
        Some(EnvValue::Text(name)) if !name.is_empty() => name.clone(),
        _ => NO_VALUE.into(),
    }
}

fn one_class(
    traces: &'static Traces,
    of_host: &[usize],
    name: &str,
    place: &Path,
    format: Format,
    is_over: &AtomicBool,
    written: &mut Written,
) -> Result<()> {
    let all: Vec<TraceRef<'static>> = traces.files.traces().collect();
    let request = Request { events: vec![name.into()], ..Request::default() };
    let columns = Layout::new(&all, &request)?.schema();
    let has_process = columns.column_with_name("process").is_some();
    let columns: Vec<String> =
        columns.fields().iter().map(|field| field.name().clone()).filter(|column| column != "event").collect();
    let extras = if has_process { Vec::new() } else { vec![Extra::Process] };
    let layout = Layout::new(&all, &Request { columns: Some(columns), extras, ..request })?;
    let schema = renamed(&layout.schema());
    let mut days: HashMap<String, u64> = HashMap::new();
    let mut current: Option<(String, Writer)> = None;
    std::thread::scope(|scope| {
        let chosen = |trace: usize| of_host.contains(&trace).then(|| layout.choice(trace));
        let mut batches = Batches::of(&layout, traces.files.chosen(scope, layout.times(), chosen));
        for batch in &mut batches {
            let batch = RecordBatch::try_new(Arc::clone(&schema), batch?.columns().to_vec())?;
            // Nothing else is handed over by it.
            if is_over.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            for (day, rows) in by_day(&batch) {
                if current.as_ref().is_none_or(|(of, _)| *of != day) {
                    if let Some((_, writer)) = current.take() {
                        writer.finish()?;
                    }
                    let number = days.entry(day.clone()).or_default();
                    let dir = place.join(format!("day={day}")).join(format!("class={}", escaped(name)));
                    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
                    current = Some((day, Writer::new(&dir, *number, format, &schema)?));
                    *number += 1;
                    written.files += 1;
                }
                written.events += rows.num_rows() as u64;
                if let Some((_, writer)) = &mut current {
                    writer.write(&rows)?;
                }
            }
        }
        traces.note(batches.damage());
        current.take().map_or(Ok(()), |(_, writer)| writer.finish())
    })
}

/// Columns that are called as a directory is.
fn renamed(schema: &SchemaRef) -> SchemaRef {
    let rename = |field: &Arc<Field>| match PARTITIONS.contains(&field.name().as_str()) {
        true => Arc::new(field.as_ref().clone().with_name(format!("fields.{}", field.name()))),
        false => Arc::clone(field),
    };
    Arc::new(Schema::new(schema.fields().iter().map(rename).collect::<Vec<_>>()))
}

/// The rows of a batch, day by day.
fn by_day(batch: &RecordBatch) -> Vec<(String, RecordBatch)> {
    let times = batch.column(0).as_primitive::<TimestampNanosecondType>();
    let day = |row: usize| times.is_valid(row).then(|| times.value(row).div_euclid(NS_PER_DAY));
    let (mut found, mut begin) = (Vec::new(), 0);
    for row in 1..=batch.num_rows() {
        if row == batch.num_rows() || day(row) != day(begin) {
            found.push((day(begin).map_or_else(|| NO_VALUE.into(), date), batch.slice(begin, row - begin)));
            begin = row;
        }
    }
    found
}

/// A day since 1970 as it is written (Howard Hinnant, chrono-compatible low-level date algorithms: civil_from_days).
fn date(days: i64) -> String {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// A value in the name of a directory.
fn escaped(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => text.push(char::from(byte)),
            b'.' if !text.is_empty() => text.push('.'),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

enum Writer {
    Parquet(Box<ArrowWriter<File>>, PathBuf),
    Arrow(Box<FileWriter<std::io::BufWriter<File>>>, PathBuf),
}

impl Writer {
    fn new(dir: &Path, number: u64, format: Format, schema: &SchemaRef) -> Result<Writer> {
        let extension = if format == Format::Arrow { "arrow" } else { "parquet" };
        let path = dir.join(format!("part-{number}.{extension}"));
        let file = File::create_new(&path).with_context(|| format!("cannot write to {}", path.display()))?;
        Ok(match format {
            Format::Arrow => Writer::Arrow(Box::new(FileWriter::try_new_buffered(file, schema)?), path),
            _ => Writer::Parquet(Box::new(ArrowWriter::try_new(file, Arc::clone(schema), Some(properties()))?), path),
        })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        match self {
            Writer::Parquet(writer, path) => {
                writer.write(batch).with_context(|| format!("cannot write to {}", path.display()))?;
                if writer.in_progress_size() > GROUP_BYTES_MAX {
                    writer.flush()?;
                }
            }
            Writer::Arrow(writer, path) => {
                writer.write(batch).with_context(|| format!("cannot write to {}", path.display()))?;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        match self {
            Writer::Parquet(writer, path) => {
                writer.close().map(drop).with_context(|| format!("cannot write to {}", path.display()))
            }
            Writer::Arrow(mut writer, path) => {
                writer.finish().with_context(|| format!("cannot write to {}", path.display()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_names_of_directories() {
        assert_eq!(
            [0, 19_675, -1, 20_783, 11_016].map(date),
            ["1970-01-01", "2023-11-14", "1969-12-31", "2026-11-26", "2000-02-29"]
        );
        assert_eq!(["http:request", "../x", "a.b", "é"].map(escaped), ["http%3Arequest", "%2E.%2Fx", "a.b", "%C3%A9"]);
    }
}

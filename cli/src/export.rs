//! `dormouse export`: writes traces in formats of other tools.

mod ctf2;

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use dormouse_analysis::timeline::{GivenPair, Options, Totals};
use dormouse_ctf::Trace;
use dormouse_export::{Batch, Collector, CollectorAnswers, Encoder, Exporter, Format};
use dormouse_reader::{Item, OrderedPool, ReadSummary, Reading};
use dormouse_terminal::{Output, parse_size, say};
use serde_json::json;

use crate::external::become_program;
use crate::pairing::find_keys;
use crate::progress::Progress;
use crate::selection::{SelectionOptions, zero_line, zero_ns};
use crate::target::Target;
use crate::view::{self, Printed, View};

/// Convert traces for other tools: timelines, flame graphs, tables
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Export {
    /// Trace directories, directories that contain traces, archives of these (.tar, .tar.gz, .tar.zst), or `-` for an archive on standard input
    #[arg(required = true, value_name = "TRACE")]
    dirs: Vec<PathBuf>,
    /// Format to write
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: To,
    /// File or directory to write; `-` is standard output; with --to otlp also `http://HOST:4318`, an OpenTelemetry collector
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    #[command(flatten)]
    selection: SelectionOptions,

    /// Draw a slice from each BEGIN event to the END event on the same thread, besides the slices that names define; may be given several times
    #[arg(long, value_name = "[NAME=]BEGIN..END", help_heading = "Slices and counters")]
    pairs: Vec<GivenPair>,
    /// Pair BEGIN with END by equal values of these instead of by thread: fields, `pid`, `tid`, `cpu`
    #[arg(long, value_name = "FIELD", value_delimiter = ',', requires = "pairs", help_heading = "Slices and counters")]
    key: Vec<String>,
    /// Draw the values of a field as a counter, such as `net:queue/len`; may be given several times
    #[arg(long, value_name = "EVENT/FIELD", value_parser = parse_counter, help_heading = "Slices and counters")]
    counter: Vec<(String, String)>,
    /// Maximum memory for open slices, tracks and stacks; beyond it, slices are simplified where possible, and counted
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G", help_heading = "Slices and counters")]
    memory: u64,
    /// Print as JSON what was written and what was left out
    #[arg(long, help_heading = "Output")]
    json: bool,
}

const HELP: &str = "\
Examples:
  dormouse export TRACE --to perfetto -o trace.pftrace            for https://ui.perfetto.dev
  dormouse export TRACE --to chrome -o trace.json                 chrome://tracing, speedscope
  dormouse export TRACE --to folded -o - | inferno-flamegraph > flame.svg
  dormouse export TRACE --to perfetto -o req.pftrace --pairs req:in..req:out --key id
  dormouse export TRACE --to perfetto -o net.pftrace --counter 'net:queue/len' --process nginx
  dormouse export TRACE --to csv -o requests.csv -e http:request
  dormouse export TRACE --to parquet -o DIR                       for DuckDB, pyarrow and others
  dormouse export TRACE --to ctf2 -o DIR                          for tools that read CTF 2
  dormouse export TRACE --to otlp -o http://localhost:4318        spans, sent to a collector

perfetto: tracks by process and thread; slices with the fields of both events; instants; counters; flows; where events were lost. \
chrome: the same as JSON. folded: stacks of slices with their own time in nanoseconds. otlp: slices as spans, other events as \
events of these spans; the fields trace_id, span_id and parent_span_id of a begin event are used for the span. json, csv: as `dormouse view --format`.

Slices: an event whose class is called X_begin, X_entry, X_enter, X_start, X_in or X:begin … begins a slice if the trace has the matching end class (X_end, X_exit, X_leave, \
X_stop, X_out, X:end …); syscall_entry_X and syscall_exit_X form slices too. --pairs defines slices of other classes, and takes precedence over names. Slices are paired by thread, \
or by --key: these have tracks of their own beside the threads, and a slice that ends on another thread than the one it began on is a flow. Other events are instants. \
docs/looking.md has the details.

The options that select events are described in `dormouse view --help`.

FILE appears only when it is complete: until then it is written under a temporary name. A full disk is an error.

Exit code: 0; 1 if the trace is damaged or incomplete (what can be read is written); 2 if the trace cannot be read, FILE cannot be written, or an option \
names something that no event of the trace has.";

/// Format to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum To {
    /// Perfetto (https://ui.perfetto.dev, its trace processor)
    Perfetto,
    /// Chrome's trace event format, which speedscope and other tools also read
    Chrome,
    /// Stacks for flame graphs: inferno, flamegraph.pl, speedscope
    Folded,
    /// OpenTelemetry spans, as a request to a collector (OTLP, protobuf)
    Otlp,
    /// A JSON object for each event, one on each line
    Json,
    /// A table of events
    Csv,
    /// A Parquet store in a directory, as `dormouse query TRACE --export DIR` writes it
    Parquet,
    /// Arrow files in a directory, as `dormouse query TRACE --export DIR --format arrow` writes them
    Arrow,
    /// A directory with the trace's streams, unchanged, and metadata in CTF 2
    Ctf2,
}

pub(crate) fn parse_counter(text: &str) -> Result<(String, String), String> {
    match text.rsplit_once('/') {
        Some((event, field)) if !event.is_empty() && !field.is_empty() => Ok((event.into(), field.into())),
        _ => Err(format!("`{text}` is not EVENT/FIELD; write an event class and a field with a slash between them")),
    }
}

impl To {
    /// Returns the format of a timeline, or else that of lines.
    fn timeline(self) -> anyhow::Result<Result<Format, view::Format>> {
        Ok(match self {
            To::Perfetto => Ok(Format::Perfetto),
            To::Chrome => Ok(Format::Chrome),
            To::Folded => Ok(Format::Folded),
            To::Otlp => Ok(Format::Otlp),
            To::Json => Err(view::Format::Json),
            To::Csv => Err(view::Format::Csv),
            To::Parquet | To::Arrow | To::Ctf2 => bail!("Parquet, Arrow and CTF 2 are not written here"),
        })
    }
}

/// Batches queued for each thread. Few, because batches are large and `--memory` does not cover them.
const BATCHES_EACH: usize = 2;

/// Result of an export, printed when everything is written.
struct ExportSummary {
    is_damaged: bool,
    /// Totals of a timeline; `None` for other formats.
    totals: Option<Totals>,
    events: u64,
    /// Losses in words, if there are any.
    losses: Option<String>,
    warnings: Vec<String>,
    /// Parts left out for lack of memory, a line each.
    left_out: Vec<String>,
}

impl ExportSummary {
    /// Prints the result, as JSON too if `json` has the file, its format and its size in bytes. Returns the exit code.
    fn finish(
        self,
        out: &mut Output,
        json: Option<(&Path, To, u64)>,
        answers: Option<&CollectorAnswers>,
    ) -> anyhow::Result<u8> {
        self.warnings.iter().for_each(|line| say(format_args!("warning: {line}")));
        self.left_out.iter().chain(&self.losses).for_each(say);
        let rejected = answers.map_or(0, |answers| answers.rejected_spans);
        match answers.map_or("", |answers| &answers.message) {
            "" if rejected == 0 => {}
            message if rejected == 0 => say(format_args!("warning: the collector says: {message}")),
            message => say(format_args!("warning: the collector rejected {rejected} spans: {message}")),
        }
        if let Some((path, to, written_bytes)) = json {
            let mut summary = json!({
                "file": path.to_string_lossy(),
                "format": to.to_possible_value().map(|value| value.get_name().to_owned()),
                "written_bytes": written_bytes,
                "events": self.events,
                "timeline": self.totals,
                "losses": self.losses,
                "warnings": self.warnings,
            });
            if let Some(answers) = answers {
                summary["collector"] = json!(answers);
            }
            out.json(&summary)?;
        }
        Ok((self.is_damaged || rejected > 0).into())
    }
}

/// Returns a line for each kind of thing that was left out for lack of memory.
fn left_out(totals: &Totals) -> Vec<String> {
    let lines = [
        (
            totals.begins_not_followed,
            "begins of slices became instants: too many were open for --memory, or they were nested too deeply",
        ),
        (
            totals.events_on_other_tracks,
            "events are on the track of another thread: --memory has no room for a track of their own",
        ),
        (totals.names_not_kept, "process names are missing: --memory has no room for them"),
        (
            totals.slices_without_stack,
            "slices are counted with the slices around them: --memory has no room for their stacks",
        ),
    ];
    lines.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
}

impl Export {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        if matches!(self.to, To::Parquet | To::Arrow) {
            return self.hand_over();
        }
        if self.to == To::Ctf2 {
            return self.write_ctf2(out);
        }
        let format = self.to.timeline()?;
        let is_text = format.is_err() || format == Ok(Format::Folded);
        let is_stream = self.output == Path::new("-");
        if self.json && is_stream {
            bail!("--json prints to standard output, and so does the export with `-o -`; name a file with -o");
        }
        if format.is_err() && !(self.pairs.is_empty() && self.counter.is_empty()) {
            bail!("--pairs and --counter are for timelines; --to json and --to csv write events");
        }
        if format == Ok(Format::Otlp) && !self.counter.is_empty() {
            bail!("--counter is for timelines; --to otlp writes spans");
        }
        let (path, is_json, to) = (self.output.clone(), self.json, self.to);
        let url = path.to_str().map_or(Ok(None), Collector::url).map_err(anyhow::Error::msg)?;
        if let Some(url) = url {
            if format != Ok(Format::Otlp) {
                bail!(
                    "{} is a collector, which takes only --to otlp; for another format name a file with -o",
                    path.display()
                );
            }
            let (collector, pipe) = Collector::start(url.clone()).context("cannot make a pipe")?;
            let mut pipe = Output::to_file(File::from(OwnedFd::from(pipe)), url);
            let summary = self.timeline(Format::Otlp, &mut pipe)?;
            let (written_bytes, written) = (pipe.written_bytes(), pipe.finish());
            // If the collector does not take the spans, the pipe is broken too: the collector's reason is the error.
            let answers = collector.finish().map_err(anyhow::Error::msg)?;
            written?;
            return summary.finish(out, is_json.then_some((&path, to, written_bytes)), Some(&answers));
        }
        let mut target = Target::open(&path, is_text, out)?;
        let summary = match format {
            Ok(format) => self.timeline(format, target.output())?,
            Err(format) => {
                let Printed { is_damaged, events } = View::export(self.dirs, self.selection, format, target.output())?;
                ExportSummary {
                    is_damaged,
                    totals: None,
                    events,
                    losses: None,
                    warnings: Vec::new(),
                    left_out: Vec::new(),
                }
            }
        };
        let written_bytes = target.finish()?;
        summary.finish(out, is_json.then_some((&path, to, written_bytes)), None)
    }

    /// Writes a copy of the trace with metadata in CTF 2.
    fn write_ctf2(self, out: &mut Output) -> anyhow::Result<u8> {
        if !self.selection.events.is_empty() || self.selection.is_choosy() || self.selection.clocks().is_some() {
            bail!(
                "--to ctf2 copies the streams of the trace: it cannot select events or correct times; leave such options out"
            );
        }
        if !self.pairs.is_empty() || !self.counter.is_empty() || self.output == Path::new("-") {
            bail!("--to ctf2 writes a directory; name it with -o; --pairs and --counter are for timelines");
        }
        let files = self.selection.open(&self.dirs)?;
        let written_bytes = ctf2::write(&files, &self.output)?;
        files.left_out.iter().for_each(|line| say(format_args!("warning: {line}")));
        if self.json {
            out.json(&json!({
                "file": self.output.to_string_lossy(),
                "format": "ctf2",
                "written_bytes": written_bytes,
                "warnings": files.left_out,
            }))?;
        }
        Ok((!files.left_out.is_empty()).into())
    }

    /// Becomes `dormouse-query`, the program that writes Parquet and Arrow.
    fn hand_over(self) -> anyhow::Result<u8> {
        if !self.selection.events.is_empty() || self.selection.is_choosy() {
            bail!(
                "--to parquet and --to arrow write all events; `dormouse query TRACE 'select … where …' --format parquet -o FILE` writes some: docs/query.md"
            );
        }
        if !self.pairs.is_empty() || !self.counter.is_empty() || self.json || self.output == Path::new("-") {
            bail!(
                "--to parquet and --to arrow write a directory; name it with -o, and leave out --pairs, --counter and --json: docs/query.md"
            );
        }
        let mut arguments: Vec<OsString> = self.dirs.into_iter().map(Into::into).collect();
        arguments.extend([OsString::from("--export"), self.output.into()]);
        if self.to == To::Arrow {
            arguments.extend(["--format", "arrow"].map(OsString::from));
        }
        if let Some(clocks) = self.selection.clocks() {
            arguments.extend([OsString::from("--clocks"), clocks.into()]);
        }
        become_program("query", &arguments)?;
        Ok(2)
    }

    fn timeline(self, format: Format, out: &mut Output) -> anyhow::Result<ExportSummary> {
        let files = self.selection.open(&self.dirs)?;
        let (pairs, key, counters) = (self.pairs.clone(), self.key.clone(), self.counter.clone());
        let mut options = Options { pairs, key, counters, ..Options::default() };
        let memory = usize::try_from(self.memory).unwrap_or(usize::MAX);
        find_keys(&mut options, &files, &self.selection, memory / 2, "")?;
        let mut reading = self.selection.reading(&files)?;
        // The reading keeps names too: as many as the timeline.
        reading.limit_names(memory / 16);
        let traces: Vec<&Trace> = files.described().iter().collect();
        let streams = files.names().zip(files.readers().map(|(trace, _)| trace));
        let zero_ns = zero_ns(&files);
        let base_ns = zero_ns.unwrap_or(0);
        // The other formats have absolute times, or none.
        if format == Format::Chrome {
            zero_ns.map(zero_line).iter().for_each(say);
        }
        let mut exporter = Exporter::new(format, &options, &traces, streams, base_ns).map_err(anyhow::Error::msg)?;
        exporter.limit(memory);
        std::thread::scope(|scope| {
            let pool = exporter.encoder().and_then(|_| {
                OrderedPool::start(scope, BATCHES_EACH, || {
                    let mut encoder = exporter.encoder();
                    move || move |batch: &mut Batch<'_>| encoder.iter_mut().for_each(|encoder| encoder.encode(batch))
                })
            });
            let writing = Writing { batch: Batch::default(), pool, encoder: exporter.encoder(), out };
            write(reading, exporter, writing)
        })
    }
}

fn write<'f>(
    mut reading: Reading<'f>,
    mut exporter: Exporter,
    mut writing: Writing<'f, '_>,
) -> anyhow::Result<ExportSummary> {
    let mut progress = Progress::of(&reading, true);
    writing.begin();
    loop {
        // If all events are wanted, those of programs need not be checked one by one.
        while !writing.batch.is_full() && reading.keep_next(&mut writing.batch.block) {
            exporter.take(&mut writing.batch);
        }
        if writing.batch.is_full() {
            refuse(&exporter)?;
            progress.show(&reading);
            writing.flush();
            if writing.out.is_over() {
                break;
            }
            continue;
        }
        let Some(item) = reading.next_item() else { break };
        let is_kept = match item {
            Item::Wanted(event, _) => exporter.event(&event, &mut writing.batch),
            Item::Other(event) => {
                exporter.pass(&event, &mut writing.batch);
                false
            }
            Item::Notice(notice) => {
                exporter.notice(&notice, reading.time_ns(notice.stream), &mut writing.batch);
                false
            }
        };
        if is_kept {
            reading.keep(&mut writing.batch.block);
        }
        progress.step(&reading);
    }
    drop(progress);
    refuse(&exporter)?;
    let totals = writing.end(exporter)?;
    let ReadSummary { warnings, losses, .. } = reading.finish(!writing.out.is_over());
    let (is_damaged, left_out) = (!warnings.is_empty(), left_out(&totals));
    Ok(ExportSummary { is_damaged, events: totals.events, totals: Some(totals), losses, warnings, left_out })
}

/// Returns an error if the exporter refuses the trace.
fn refuse(exporter: &Exporter) -> anyhow::Result<()> {
    exporter.refusal().map_or(Ok(()), |why| Err(anyhow::Error::msg(why)))
}

/// An export while it is written.
struct Writing<'f, 'o> {
    batch: Batch<'f>,
    /// Threads that encode batches; `None`: the calling thread encodes them.
    pool: Option<OrderedPool<Batch<'f>>>,
    /// Encoder of the format; `None` if the format is written only at the end.
    encoder: Option<Encoder>,
    out: &'o mut Output,
}

impl<'f> Writing<'f, '_> {
    /// Writes the text that precedes all events.
    fn begin(&mut self) {
        let mut text = Vec::new();
        self.encoder.iter().for_each(|encoder| encoder.begin(&mut text));
        // `Output` reports errors at the end.
        let _ = self.out.write_all(&text);
    }

    /// Has the batch encoded, and replaces it with an empty one.
    fn flush(&mut self) {
        if self.batch.is_empty() {
            // Stacks are written only at the end: the exporter has taken the events, and the batch holds no output.
            return self.batch.clear();
        }
        let Writing { batch, pool, encoder, out } = self;
        let mut done = |batch: &mut Batch<'f>| {
            let _ = out.write_all(batch.bytes());
            batch.clear();
        };
        match (pool, encoder) {
            (Some(pool), _) => *batch = pool.give(std::mem::take(batch), &mut done),
            (None, encoder) => {
                encoder.iter_mut().for_each(|encoder| encoder.encode(batch));
                done(batch);
            }
        }
    }

    /// Writes everything that is left.
    fn end(&mut self, exporter: Exporter) -> anyhow::Result<Totals> {
        let totals = exporter.finish(&mut self.batch, &mut std::io::BufWriter::new(&mut *self.out))?;
        self.flush();
        let Writing { pool, encoder, out, .. } = self;
        pool.iter_mut().for_each(|pool| {
            pool.finish(&mut |batch: &mut Batch<'f>| {
                let _ = out.write_all(batch.bytes());
                batch.clear();
            });
        });
        let mut text = Vec::new();
        encoder.iter().for_each(|encoder| encoder.end(&mut text));
        let _ = out.write_all(&text);
        Ok(totals)
    }
}

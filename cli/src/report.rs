//! `dormouse report`: writes a trace as one page of HTML.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use dormouse_analysis::Figure;
use dormouse_analysis::timeline::{Options, Timeline};
use dormouse_ctf::Trace;
use dormouse_ctf::loss::NOT_CLOSED;
use dormouse_owner::is_owner_alive;
use dormouse_reader::{Item, ReadSummary, TraceFiles};
use dormouse_report::{Contents, Gather, Written};
use dormouse_terminal::{Output, parse_size, say};
use serde_json::json;

use crate::progress::Progress;
use crate::selection::SelectionOptions;
use crate::target::Target;

/// Make a page of a trace: a timeline, tables and distributions, in one file that needs no network
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse report TRACE -o report.html                     all of it; open the file in a browser
  dormouse report TRACE -o slow.html --since +2s --until +3s   one second of it, with every event
  dormouse report TRACE -o r.html --pairs req:in..req:out --key id   what is a slice, where names do not say it
  dormouse report TRACE -o r.html --counter 'net:queue/len'          values of a field over time
  dormouse report TRACE -o r.html --max-size 100M          with more of a large trace
  dormouse report A --diff B -o r.html                     what differs between two, besides all of A
  dormouse report TRACE -o - > report.html                 to standard output

Slices are pairs of events of one thread whose names belong together: X_begin and X_end, entry and exit, enter and leave, start and stop, and others that \
docs/looking.md lists; with --pairs also those that you name. Everything else is an instant.

The page is as long as --max-size allows at most. First each event has its fields in it; then only the longest slices have; then neighbours that are \
shorter than some time are drawn as one. Tables, percentiles, heat maps and the slowest are of all events always. The page says at its top what was lost in \
the recording and what it leaves out. Its keys are shown by `?`.

--diff adds a view of what differs: of each class and each name of slices counts, rates, the middle and the 99th percentile of durations, with the intervals \
of `dormouse stats --diff`, that which differs most first; histograms and call trees of both. Timeline and tables are those of A. Damage and losses of both are told.

Nothing in the page is fetched from anywhere, and no text of the trace can become script there.

Exit code: 0; 1 if the trace is damaged or something is missing (the page says so, and has what can be read); 2 if it cannot be read or written, or if an \
option names what is in none of its events. The file is in its place only when all of it is written.")]
pub(crate) struct ReportCommand {
    /// Traces: directories of one or with several below, archives of such (.tar, .tar.gz, .tar.zst), or `-`
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    selection: SelectionOptions,
    /// The page; `-`: standard output
    #[arg(short, long, value_name = "FILE", help_heading = "What is written")]
    output: PathBuf,
    #[command(flatten)]
    drawn: Drawn,
    /// Put another trace beside it, and show what differs: the trace is A, this one is B
    #[arg(long, value_name = "OTHER", help_heading = "What is written")]
    diff: Option<PathBuf>,
    /// The page is not larger: 24M, 500K
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "24M", help_heading = "What is written")]
    max_size: u64,
    /// Keep no more than about so much in memory: what comes then is left out, and counted
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4G", help_heading = "Memory")]
    memory: u64,
    /// Print what was written and what is left out, as JSON
    #[arg(long, help_heading = "What is written")]
    json: bool,
}

/// Options for slices and counters.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is drawn")]
pub(crate) struct Drawn {
    /// Slices from events of BEGIN to events of END, which are patterns of classes; may be given several times
    #[arg(long, value_name = "BEGIN..END", value_parser = crate::stats::parse_pair)]
    pairs: Vec<(String, String)>,
    /// What both ends of these have in common, in place of the thread: fields, `pid`, `tid`, `cpu`
    #[arg(long, value_name = "FIELD", value_delimiter = ',', requires = "pairs")]
    key: Vec<String>,
    /// A field whose values are drawn as a counter, such as `net:queue/len`; may be given several times
    #[arg(long, value_name = "EVENT/FIELD", value_parser = crate::export::parse_counter)]
    counter: Vec<(String, String)>,
}

/// Opens traces. Returns them, whether they are still being written, and a line for each correction of a clock.
pub(crate) fn opened(
    dirs: &[PathBuf],
    selection: &SelectionOptions,
) -> anyhow::Result<(TraceFiles, bool, Vec<String>)> {
    let growing = match dirs {
        [dir] if dir.is_dir() && is_owner_alive(dir) == Some(true) => Some(dir),
        _ => None,
    };
    let mut files = match growing {
        Some(dir) => TraceFiles::open_growing(dir)?,
        None => TraceFiles::open_all(dirs.iter().map(PathBuf::as_path))?,
    };
    let corrections = selection.correct(&mut files)?;
    corrections.iter().for_each(say);
    Ok((files, growing.is_some(), corrections))
}

/// Whether traces say that their sessions have ended properly.
pub(crate) fn are_closed(files: &TraceFiles) -> bool {
    files.described().iter().filter_map(|trace| trace.own.as_ref()).all(|own| own.totals.is_closed())
}

/// Prints notes on traces that have been read, each after the prefix `before`. Returns them without the prefix, after
/// the corrections, for the page.
pub(crate) fn notes(files: &TraceFiles, summary: &ReadSummary, corrections: Vec<String>, before: &str) -> Vec<String> {
    let not_closed = (!are_closed(files)).then(|| format!("{NOT_CLOSED}, and more can be lost than is known"));
    let notes: Vec<String> = summary.lines().chain(not_closed).collect();
    notes.iter().for_each(|note| say(format_args!("{before}{note}")));
    corrections.into_iter().chain(notes).collect()
}

/// Role of a trace in a report.
#[derive(Clone, Copy)]
enum Side {
    Alone,
    First,
    Other,
}

/// Returns the title of a report.
pub(crate) fn title(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(" ")
}

impl Drawn {
    pub(crate) fn options(&self) -> Options {
        Options { pairs: self.pairs.clone(), key: self.key.clone(), counters: self.counter.clone() }
    }
}

/// Reads traces for a report.
fn gather(dirs: &[PathBuf], asked: &ReportCommand, side: Side) -> anyhow::Result<(Contents, ReadSummary)> {
    let ReportCommand { selection, drawn, memory, .. } = asked;
    let (files, is_growing, corrections) = opened(dirs, selection)?;
    let mut reading = selection.reading(&files)?;
    // The reading keeps names too: as many as the timeline.
    let memory = usize::try_from(*memory).unwrap_or(usize::MAX);
    let memory = if matches!(side, Side::Alone) { memory } else { memory / 2 };
    reading.limit_names(memory / 16);
    let traces: Vec<&Trace> = files.described().iter().collect();
    let streams = files.names().zip(files.readers().map(|(trace, _)| trace));
    let mut timeline = Timeline::new(&drawn.options(), &traces, streams).map_err(anyhow::Error::msg)?;
    timeline.limit(memory / 4);
    let mut gather = Gather::new(&title(dirs), timeline.names());
    gather.limit(memory / 4 * 3);
    let (mut gather, before) = match side {
        Side::Alone => (gather, ""),
        Side::First => (gather.compared(), "A: "),
        Side::Other => (gather.compared().without_fields(), "B: "),
    };
    let mut progress = Progress::of(&reading, true);
    while let Some(item) = reading.next_item() {
        match item {
            Item::Wanted(event, _) => {
                gather.seen(&event, true);
                timeline.event(&event, &mut gather);
            }
            Item::Other(event) => {
                gather.seen(&event, false);
                timeline.pass(&event, &mut gather);
            }
            Item::Notice(notice) => timeline.notice(&notice, reading.time_ns(notice.stream), &mut gather),
        }
        progress.step(&reading);
    }
    drop(progress);
    let totals = timeline.finish(&mut gather);
    let summary = reading.finish(true);
    let notes = notes(&files, &summary, corrections, before);
    let mut contents = gather.finish(&totals, about(&traces), notes);
    contents.is_growing = is_growing && !are_closed(&files);
    Ok((contents, summary))
}

impl ReportCommand {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let mut target = Target::open(&self.output, true, out)?;
        // The other trace is read first, because less of it is kept.
        let other = match &self.diff {
            Some(other) => Some(gather(std::slice::from_ref(other), &self, Side::Other)?),
            None => None,
        };
        let side = if other.is_some() { Side::First } else { Side::Alone };
        let (mut contents, summary) = gather(&self.dirs, &self, side)?;
        let other = other.map(|(other, summary)| {
            contents.compare(other.beside());
            summary
        });
        let mut page = BufWriter::with_capacity(1 << 20, target.output());
        let written = contents.finish(self.max_size, &mut page)?;
        page.flush()?;
        drop(page);
        target.finish()?;
        self.tell(&written, &summary, other.as_ref(), out)?;
        let is_whole = summary.warnings.is_empty() && other.is_none_or(|other| other.warnings.is_empty());
        Ok((!is_whole).into())
    }

    fn tell(
        &self,
        written: &Written,
        summary: &ReadSummary,
        other: Option<&ReadSummary>,
        out: &mut Output,
    ) -> anyhow::Result<()> {
        if self.json && self.output != Path::new("-") {
            let mut value = serde_json::to_value(written)?;
            value["file"] = json!(self.output);
            value["events_lost"] = json!(summary.events_lost);
            value["warnings"] = json!(summary.warnings);
            if let Some(other) = other {
                value["other"] = json!({ "events_lost": other.events_lost, "warnings": other.warnings });
            }
            return out.json(&value);
        }
        let left_out = &written.left_out;
        let merged: u64 = left_out.merged.values().sum();
        let mut parts = Vec::new();
        let mut part = |count: u64, what: &str| {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        };
        part(merged, "short ones are drawn as one with their neighbours");
        part(left_out.fields, "are without their fields");
        part(left_out.too_deep, "are nested too deep to be drawn");
        let left = if parts.is_empty() { "nothing is left out".into() } else { parts.join(", ") };
        let Written { events, slices, instants, size_bytes, .. } = written;
        let line =
            format!("{events} events, {slices} slices and {instants} instants of them, {size_bytes} bytes; {left}");
        match self.output == Path::new("-") {
            true => say(line),
            false => writeln!(out, "{line}; open it in a browser: {}", self.output.display())?,
        }
        let told = |figure: &Figure| figure.verdict != "cannot be told";
        if let Some(differences) = &written.differences {
            let differ = differences.iter().filter(|difference| difference.figures.iter().any(told)).count();
            say(format_args!(
                "of {} classes and names of slices {differ} differ, as far as that can be told",
                differences.len()
            ));
        }
        Ok(())
    }
}

/// Returns lines that say on which hosts and by which tracers the traces were recorded.
pub(crate) fn about(traces: &[&Trace]) -> Vec<String> {
    let of = |trace: &&Trace| {
        let said = |name: &str| trace.class.env_text(name).filter(|text| !text.is_empty());
        let host = said("hostname").map(|host| format!("recorded on {host}"));
        let tracer = said("tracer_name").map(|name| format!("by {name}"));
        let parts: Vec<String> = [host, tracer].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(" "))
    };
    let mut lines: Vec<String> = traces.iter().filter_map(of).collect();
    lines.dedup();
    lines
}

//! `dormouse report`: writes a trace as one page of HTML.

use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use dormouse_analysis::Figure;
use dormouse_analysis::timeline::{GivenPair, Options, Timeline};
use dormouse_ctf::loss::NOT_CLOSED;
use dormouse_ctf::{ClassRef, Trace};
use dormouse_owner::is_owner_alive;
use dormouse_reader::{Item, ReadSummary, TraceFiles};
use dormouse_report::{Contents, Gather, Written};
use dormouse_terminal::{Output, parse_size, say};
use serde_json::json;

use crate::pairing::find_keys;
use crate::patterns::instead;
use crate::progress::Progress;
use crate::selection::{SelectionOptions, zero_ns};
use crate::target::Target;

/// Write a trace as one HTML page with a timeline, tables and distributions, which needs no network
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse report TRACE -o report.html                               the whole trace
  dormouse report TRACE -o slow.html --since +2s --until +3s         one second, with every event
  dormouse report TRACE -o r.html --pairs req:in..req:out --key id   slices of your own
  dormouse report TRACE -o r.html --counter 'net:queue/len'          values of a field over time
  dormouse report TRACE -o r.html --label '{endpoint} {id}'          slices named by their fields
  dormouse report TRACE -o r.html --max-size 100M                    more details of a large trace
  dormouse report A --diff B -o r.html                               A, and its differences from B
  dormouse report TRACE -o - > report.html                           to standard output

Slices are pairs of events of one thread whose names belong together: X_begin and X_end, entry and exit, enter and leave, start and stop, and others that \
docs/looking.md lists; --pairs adds more. All other events are instants.

The page is at most as large as --max-size. If it would be larger, first only the longest slices keep their fields; then short neighbours are drawn as one. \
Tables, percentiles, heat maps and the lists of slowest slices always cover all events. The top of the page says what was lost in \
the recording and what the page leaves out. In the page, `?` shows its keys.

--diff adds a view of the differences: for each event class and each slice name, counts, rates, the median and the 99th percentile of durations, with the intervals \
of `dormouse stats --diff`, largest difference first; and histograms and call trees of both. The timeline and the tables are those of A. The page reports damage and losses of both.

The page fetches nothing from anywhere, and no text of the trace can become a script in it.

Exit code: 0; 1 if the trace is damaged or incomplete (the page says so, and shows what can be read); 2 if the trace cannot be read, the page cannot be written, or an \
option names something that no event of the trace has. The file appears only when it is complete.")]
pub(crate) struct ReportCommand {
    /// Trace directories, directories that contain traces, archives of these (.tar, .tar.gz, .tar.zst), or `-` for an archive on standard input
    #[arg(required = true, value_name = "TRACE")]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    selection: SelectionOptions,
    /// File for the page; `-` is standard output
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: PathBuf,
    #[command(flatten)]
    drawn: Drawn,
    /// Write this on slices and instants instead of their name: {FIELD} stands for a value, as in '{endpoint} {id}'. The page can change it, and colours them by it
    #[arg(long, value_name = "TEXT", help_heading = "Slices and counters")]
    label: Option<String>,
    /// Also show what differs between the trace (A) and this other trace (B)
    #[arg(long, value_name = "OTHER", help_heading = "Output")]
    diff: Option<PathBuf>,
    /// Largest size of the page, such as 24M or 500K
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "24M", help_heading = "Output")]
    max_size: u64,
    /// Approximate maximum memory for the page's data; what exceeds it is left out, and counted
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4G", help_heading = "Memory")]
    memory: u64,
    /// Print as JSON what was written and what was left out
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Options for slices and counters.
#[derive(Debug, Args)]
#[command(next_help_heading = "Slices and counters")]
pub(crate) struct Drawn {
    /// Draw slices from events of BEGIN to events of END, which are patterns of event classes; may be given several times
    #[arg(long, value_name = "[NAME=]BEGIN..END")]
    pairs: Vec<GivenPair>,
    /// Pair BEGIN with END by equal values of these instead of by thread: fields, `pid`, `tid`, `cpu`
    #[arg(long, value_name = "FIELD", value_delimiter = ',', requires = "pairs")]
    key: Vec<String>,
    /// Draw the values of a field as a counter, such as `net:queue/len`; may be given several times
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
    let not_closed =
        (!are_closed(files)).then(|| format!("{NOT_CLOSED}, and more events may be lost than were counted"));
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
        let (pairs, key, counters) = (self.pairs.clone(), self.key.clone(), self.counter.clone());
        Options { pairs, key, counters, has_calls: true, ..Options::default() }
    }
}

/// Reads traces for a report.
fn gather(dirs: &[PathBuf], asked: &ReportCommand, side: Side) -> anyhow::Result<(Contents, ReadSummary)> {
    let ReportCommand { selection, drawn, memory, .. } = asked;
    let (files, is_growing, mut corrections) = opened(dirs, selection)?;
    let before = match side {
        Side::Alone => "",
        Side::First => "A: ",
        Side::Other => "B: ",
    };
    let memory = usize::try_from(*memory).unwrap_or(usize::MAX);
    let memory = if matches!(side, Side::Alone) { memory } else { memory / 2 };
    let mut options = drawn.options();
    corrections.extend(find_keys(&mut options, &files, selection, memory / 2, before)?);
    let mut reading = selection.reading(&files)?;
    // The reading keeps names too: as many as the timeline.
    reading.limit_names(memory / 16);
    let traces: Vec<&Trace> = files.described().iter().collect();
    let streams = files.names().zip(files.readers().map(|(trace, _)| trace));
    let mut timeline = Timeline::new(&options, &traces, streams).map_err(anyhow::Error::msg)?;
    timeline.limit(memory / 4);
    let mut gather = Gather::new(&title(dirs), timeline.names());
    gather.limit(memory / 4 * 3);
    let mut gather = match side {
        Side::Alone => gather,
        Side::First => gather.compared(),
        Side::Other => gather.compared().without_fields(),
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
    let alone = totals.ends_unpaired + totals.slices_unfinished;
    if !selection.conditions.is_empty() && alone > 0 {
        let line = format!(
            "{alone} begins and ends are alone: --where selects events, and may have left out their other ends; \
             `dormouse stats --latency BEGIN..END --where` selects pairs"
        );
        say(format_args!("{before}{line}"));
        corrections.push(line);
    }
    let summary = reading.finish(true);
    let notes = notes(&files, &summary, corrections, before);
    let mut contents = gather.finish(&totals, about(&traces), notes);
    contents.is_growing = is_growing && !are_closed(&files);
    contents.zero_ns = zero_ns(&files);
    contents.field_names = field_names(&files);
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
        contents.label = self.checked_label(&contents.field_names)?;
        let zero_ns = contents.zero_ns;
        let other = other.map(|(other, summary)| {
            contents.compare(other.beside());
            summary
        });
        let mut page = BufWriter::with_capacity(1 << 20, target.output());
        let written = contents.finish(self.max_size, &mut page)?;
        page.flush()?;
        drop(page);
        target.finish()?;
        self.tell(&written, zero_ns, &summary, other.as_ref(), out)?;
        let is_whole = summary.warnings.is_empty() && other.is_none_or(|other| other.warnings.is_empty());
        Ok((!is_whole).into())
    }

    /// Returns the label of slices.
    ///
    /// # Errors
    /// It names a field that no event has.
    fn checked_label(&self, field_names: &[String]) -> anyhow::Result<String> {
        let label = self.label.clone().unwrap_or_default();
        let fields: Vec<&str> = label.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0)).collect();
        if fields.is_empty() && self.label.is_some() {
            bail!(
                "--label {label}: it has no field, so all slices would have the same text; write a name in braces, such as {{id}}"
            );
        }
        if let Some(unknown) = fields.iter().find(|field| !field_names.iter().any(|name| name == *field)) {
            bail!("--label: no event of this trace has a field {unknown}; {}", instead(&[unknown], field_names));
        }
        Ok(label)
    }

    fn tell(
        &self,
        written: &Written,
        zero_ns: Option<i64>,
        summary: &ReadSummary,
        other: Option<&ReadSummary>,
        out: &mut Output,
    ) -> anyhow::Result<()> {
        if self.json && self.output != Path::new("-") {
            let mut value = serde_json::to_value(written)?;
            value["file"] = json!(self.output);
            value["zero_ns"] = json!(zero_ns);
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
        part(merged, "short items are drawn as one with their neighbours");
        part(left_out.fields, "lack their fields");
        part(left_out.too_deep, "are nested too deeply to be drawn");
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
            say(format_args!("{differ} of {} event classes and slice names differ measurably", differences.len()));
        }
        Ok(())
    }
}

/// Returns the names of all fields, sorted.
fn field_names(files: &TraceFiles) -> Vec<String> {
    let classes = files.traces().flat_map(ClassRef::all).filter(|class| !class.is_state());
    let names: BTreeSet<String> =
        classes.flat_map(|class| class.class.member_names().map(str::to_owned).collect::<Vec<_>>()).collect();
    names.into_iter().collect()
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

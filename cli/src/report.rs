//! `dormouse report`: a trace as one page of HTML.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use dormouse_analysis::timeline::{Options, Timeline};
use dormouse_consumer::is_owner_alive;
use dormouse_ctf::Trace;
use dormouse_ctf::loss::NOT_CLOSED;
use dormouse_reader::{Item, Said, TraceFiles};
use dormouse_report::{Contents, Gather, Written};
use dormouse_terminal::{Output, parse_size, say};
use serde_json::json;

use crate::progress::Progress;
use crate::target::Target;
use crate::wanted::Wanted;

/// Make a page of a trace: a timeline, tables and distributions, in one file that needs no network
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse report TRACE -o report.html                     all of it; open the file in a browser
  dormouse report TRACE -o slow.html --since +2s --until +3s   one second of it, with every event
  dormouse report TRACE -o r.html --pairs req:in..req:out --key id   what is a slice, where names do not say it
  dormouse report TRACE -o r.html --counter 'net:queue/len'          values of a field over time
  dormouse report TRACE -o r.html --max-size 100M          with more of a large trace
  dormouse report TRACE -o - > report.html                 to standard output

Slices are pairs of events of one thread whose names belong together: X_begin and X_end, entry and exit, enter and leave, start and stop, and others that \
docs/report.md lists; with --pairs also those that you name. Everything else is an instant.

The page is as long as --max-size allows at most. First each event has its fields in it; then only the longest slices have; then neighbours that are \
shorter than some time are drawn as one. Tables, percentiles, heat maps and the slowest are of all events always. The page says at its top what was lost in \
the recording and what it leaves out. Its keys are shown by `?`.

Nothing in the page is fetched from anywhere, and no text of the trace can become script there.

Exit code: 0; 1 if the trace is damaged or something is missing (the page says so, and has what can be read); 2 if it cannot be read or written, or if an \
option names what is in none of its events. The file is in its place only when all of it is written.")]
pub(crate) struct ReportCommand {
    /// Traces: directories of one or with several below, archives of such (.tar, .tar.gz, .tar.zst), or `-`
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    wanted: Wanted,
    /// The page; `-`: standard output
    #[arg(short, long, value_name = "FILE", help_heading = "What is written")]
    output: PathBuf,
    #[command(flatten)]
    drawn: Drawn,
    /// The page is not larger: 24M, 500K
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "24M", help_heading = "What is written")]
    max_size: u64,
    /// Print what was written and what is left out, as JSON
    #[arg(long, help_heading = "What is written")]
    json: bool,
}

/// What is drawn as a slice.
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
    /// Keep no more than about so much in memory: what comes then is left out, and counted
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4G", help_heading = "Memory")]
    memory: u64,
}

/// Reads traces for a report.
pub(crate) fn gather(dirs: &[PathBuf], wanted: &Wanted, drawn: &Drawn) -> anyhow::Result<(Contents, Said)> {
    let growing = match dirs {
        [dir] if dir.is_dir() && is_owner_alive(dir) == Some(true) => Some(dir),
        _ => None,
    };
    let files = match growing {
        Some(dir) => wanted.corrected(TraceFiles::open_growing(dir)?)?,
        None => wanted.open(dirs)?,
    };
    let mut reading = wanted.reading(&files)?;
    // Of names the reading has as many as the timeline.
    let memory = usize::try_from(drawn.memory).unwrap_or(usize::MAX);
    reading.limit_names(memory / 16);
    let traces: Vec<&Trace> = files.described().iter().collect();
    let streams = files.names().zip(files.readers().map(|(trace, _)| trace));
    let options = Options { pairs: drawn.pairs.clone(), key: drawn.key.clone(), counters: drawn.counter.clone() };
    let mut timeline = Timeline::new(&options, &traces, streams).map_err(anyhow::Error::msg)?;
    timeline.limit(memory / 4);
    let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    let mut gather = Gather::new(&dirs.join(" "), timeline.names());
    gather.limit(memory / 4 * 3);
    let mut progress = Progress::of(&reading, true);
    while let Some(item) = reading.next_item() {
        match item {
            Item::Wanted(event, _) => timeline.event(&event, &mut gather),
            Item::Other(event) => timeline.pass(&event, &mut gather),
            Item::Notice(notice) => timeline.notice(&notice, reading.time_ns(notice.stream), &mut gather),
        }
        progress.step(&reading);
    }
    drop(progress);
    let totals = timeline.finish(&mut gather);
    let said = reading.finish(true);
    let is_closed = traces.iter().filter_map(|trace| trace.own.as_ref()).all(|own| own.totals.is_closed());
    let not_closed = (!is_closed).then(|| format!("{NOT_CLOSED}, and more can be lost than is known"));
    let notes: Vec<String> = said.lines().chain(not_closed).collect();
    notes.iter().for_each(say);
    let mut contents = gather.finish(&totals, about(&traces), notes);
    contents.is_growing = growing.is_some() && !is_closed;
    Ok((contents, said))
}

impl ReportCommand {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let mut target = Target::open(&self.output, true, out)?;
        let (contents, said) = gather(&self.dirs, &self.wanted, &self.drawn)?;
        let mut page = BufWriter::with_capacity(1 << 20, target.output());
        let written = contents.finish(self.max_size, &mut page)?;
        page.flush()?;
        drop(page);
        target.finish()?;
        self.tell(&written, &said, out)?;
        Ok((!said.warnings.is_empty()).into())
    }

    fn tell(&self, written: &Written, said: &Said, out: &mut Output) -> anyhow::Result<()> {
        if self.json && self.output != Path::new("-") {
            let mut value = serde_json::to_value(written)?;
            value["file"] = json!(self.output);
            value["events_lost"] = json!(said.events_lost);
            value["warnings"] = json!(said.warnings);
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
        Ok(())
    }
}

/// Where and when traces were recorded.
fn about(traces: &[&Trace]) -> Vec<String> {
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

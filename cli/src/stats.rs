//! `dormouse stats`: the contents of traces, and answers to questions about them.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use dormouse_abi::class::matches;
use dormouse_analysis::timeline::{FoundKey, GivenPair, Options, SliceRule, slice_rules};
use dormouse_analysis::{Analysis, Diff, Latency, Measure, Query, Report, SlowPair};
use dormouse_ctf::{Selection, Trace};
use dormouse_print::{Look, StatsTable, pair_fields, write_diff, write_report};
use dormouse_reader::{Bounds, Item, Reading, TraceFiles};

use dormouse_terminal::{Output, parse_duration, say, style};

use crate::pairing::{SURVEY_BYTES, survey};
use crate::patterns::instead;
use crate::progress::{self, Progress};
use crate::selection::{SelectionOptions, Verbose, zero_line, zero_ns};
use crate::view::utc_offset;

/// Print what a trace contains, and answer questions about its events
#[derive(Debug, Args)]
#[command(after_help = "\
Without options: events by class, by CPU and by process, losses by class and where they happened, time span. With options: the answer to a \
question, from one pass over the events in order of time.

Examples:
  dormouse stats trace                                     what it contains
  dormouse stats trace --by event,cpu --top 10             which classes, on which CPUs
  dormouse stats trace -e 'libc:*' --by process            which processes call libc
  dormouse stats trace --field bytes                       count, sum, mean, percentiles by class
  dormouse stats trace --field bytes --by process          the same for each class and program
  dormouse stats trace --latency http:begin..http:end      time from one to the other, the slowest
  dormouse stats trace --latency req:in..req:out --where 'status >= 500' --by endpoint
                                                           failed requests by endpoint
  dormouse stats trace --latency libc:malloc..libc:free --key pid,ptr
  dormouse stats trace --interval 100ms --field bytes      how the values changed over time
  dormouse stats trace --where 'bytes > 4K' --last 10s     large ones in the last ten seconds
  dormouse stats before --diff after --by event            which differences are significant
  dormouse stats A B                                       two traces as one

FIELD is a field of the payload or of a context (`fd`; `peer.port` in a structure, `a[2]` in an array; `fields.pid` and `context.pid` to name only one of them), `event` (the class), `cpu`, `pid`, `tid`, \
`process` (name and pid), `thread` (last name and tid), or `user`, `uid`, `cgroup`, `container` of the process. If payload and context have a field of the same name, the payload's is used. Enumerations are counted by label.

The options that select events are described in `dormouse view --help`. If they select a time range, losses are those in that range.

Counts, sums, means, minima and maxima are exact. Percentiles come from a DDSketch (Masson, Rim, Lee, 2019): the value at the \
percentile's rank, within 1 %. Values of --field are counted separately for each class, because fields of the same name can mean different things; with \
--interval they are counted together.

--latency: an END belongs to the last BEGIN of its thread that has no END yet, so the inner one of nested pairs ends first. If a field that both have leaves \
fewer events alone or joined wrongly than the thread does, events are paired by it, and the output says so; --key names fields and switches this off. BEGIN and END are \
patterns of classes. Begins and ends without a partner are counted. A pair is left out, and counted as such, if events of its trace (with --key: of any \
trace) may have been lost between the two, on any CPU: BEGIN and END could belong to different pairs. The options that select events by value select pairs here. In them and in --by, a name is the \
BEGIN's field, or the END's if the BEGIN has none; `begin.NAME` and `end.NAME` choose one, and `latency` is the pair's, in nanoseconds. Rows with the greatest sum of latencies come first. --interval uses the time of the BEGIN.

--diff: A is TRACE, B is OTHER. B/A has a 95 % interval; if the interval contains 1, the verdict on the difference is `cannot be told`. Of 20 rows that do not differ, one \
is likely to seem different. Rates: Wilson's interval of B's share of all events, both counts divided by their index of dispersion (variance by mean of the counts \
in 64 to 128 slices of time), because events come in bursts. Percentiles: bootstrap, 2000 resamples, fixed seed, widened by the sketch's \
error; p50 from 10 values on, p90 from 100, p99 from 1000. Means: normal for the logarithm (delta method), from 30 values on. This compares two recordings, not \
two programs: another recording of the same program can differ by more, so record each several times.

A trace whose rules have samples (`record -e 'PATTERN sample 1/N'`) is told: ESTIMATED is about how many events of a class happened for which a rule's condition was true: \
the sum of 1 / the probability that each was recorded (Horvitz, Thompson, 1952), by the rules at its time. ERROR is its standard error; it is not known (-) for samples by a field. \
Counts by class, of --by and --interval and of --field, and sums of --field are estimated; in a group of --by FIELD, all events of which a sample by FIELD has, they are not scaled by it. \
`sample N/s` and `tail` have no known probability, so classes that they decided are not scaled. Not scaled either: rates, bytes, CPUs, processes, means, percentiles, pairs of --latency, --diff.

Memory is bounded: at most --groups-max groups are kept, and the events of all others are counted together as (other).

Without a terminal there is no colour and no progress bar. docs/reading.md lists the keys of --json; names end in their unit (_ns, _s, bytes).

Reads traces in the Common Trace Format 1.8 and 2 from any tracer. Only Dormouse's traces have names of processes, losses by class, and totals of each stream.

`lost at least N`, or `unknown`, means that something happened that can lose an unknown number of events; each cause is named. Lost events are counted by \
class when a session ends; a trace whose session was killed has only their sum. The counts of the classes can add up to less than the sum: the \
class of an event is unknown if its program was killed while writing it, and events that did not fit on the disk are not counted by class. \
Missing packets (overwritten, for example) are reported with the time between their neighbours.

NAME is the last name of the process, as ps shows it; a name that the process took in its last tenth of a second may be missing. A PROGRAM that is \
started through several links has several names. A class that the session refused is named with its program and the reason: its events are neither \
recorded nor counted.

Streams that are missing, empty, too short or duplicated are named, unless the trace was not closed (the session is live, or was killed): then \
missing streams cannot be detected.

Exit code: 0; 1 if the trace is damaged or incomplete (what can be read is counted), or classes were refused; 2 if the trace cannot be \
read, or an option names something that the trace does not have.")]
pub(crate) struct StatsCommand {
    /// Trace directories, directories that contain traces, archives of these (.tar, .tar.gz, .tar.zst), or `-` for an archive on standard input
    #[arg(required = true, value_name = "TRACE")]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    selection: SelectionOptions,
    /// Group events by these
    #[arg(long, value_name = "FIELD", value_delimiter = ',', help_heading = "Question")]
    by: Vec<String>,
    /// Summarise the values of a field: count, sum, min, mean, percentiles, max
    #[arg(long, value_name = "NAME", conflicts_with = "latency", help_heading = "Question")]
    field: Option<String>,
    /// Measure the time from each BEGIN event to the END event on the same thread; NAME stands for NAME_begin..NAME_end and other classes that make slices of this name
    #[arg(long, value_name = "NAME|BEGIN..END", value_parser = parse_latency, help_heading = "Question")]
    latency: Option<(String, String)>,
    /// Pair BEGIN with END by equal values of these instead of by thread: fields, `pid`, `tid`, `cpu`
    #[arg(long, value_name = "FIELD", value_delimiter = ',', requires = "latency", help_heading = "Question")]
    key: Vec<String>,
    /// Show the N slowest pairs [default: 5]
    #[arg(long, value_name = "N", requires = "latency", value_parser = clap::value_parser!(u32).range(..=100_000), help_heading = "Question")]
    slowest: Option<u32>,
    /// Print a row for each interval of time, such as 100ms
    #[arg(long, value_name = "DURATION", value_parser = parse_interval, conflicts_with = "top", help_heading = "Question")]
    interval: Option<Duration>,
    /// Show the first N rows, those with the most events or most time, and the sum of the others
    #[arg(long, value_name = "N", help_heading = "Question")]
    top: Option<usize>,
    /// Keep at most N groups [default: 10000; with --field and --latency 1000, of up to 64 KiB each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Question")]
    groups_max: Option<u32>,
    /// Compare with another trace
    #[arg(long, value_name = "OTHER", conflicts_with = "interval", help_heading = "Question")]
    diff: Option<PathBuf>,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    verbose: Verbose,
}

/// Number of events that are looked up one by one. More are found in one pass.
const SEEKS_MAX: usize = 64;

pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once("..") {
        Some((begin, end)) if !begin.is_empty() && !end.is_empty() => Ok((begin.into(), end.into())),
        _ => Err(format!("`{text}` is not BEGIN..END; write two event classes with two dots between them")),
    }
}

/// Returns BEGIN and END, or the name of slices and an empty END.
fn parse_latency(text: &str) -> Result<(String, String), String> {
    if text.contains("..") { parse_pair(text) } else { Ok((text.into(), String::new())) }
}

/// Returns the classes that begin and end slices of this name on one thread.
///
/// # Errors
/// There are no such slices, or more than two classes or a condition make them.
fn ends_of(name: &str, files: &TraceFiles) -> anyhow::Result<(String, String)> {
    let rules: Vec<SliceRule> = files.traces().flat_map(slice_rules).collect();
    let is_plain = |rule: &&SliceRule| rule.only.is_none() && (rule.key.is_empty() || rule.is_wait);
    let of_name: Vec<&SliceRule> = rules.iter().filter(|rule| rule.name == name).collect();
    match of_name.iter().find(|rule| is_plain(rule)).map(|rule| (&rule.begins[..], &rule.ends[..])) {
        Some(([begin], [end])) => Ok((begin.clone(), end.clone())),
        _ if of_name.is_empty() => {
            let mut names: Vec<String> = rules.into_iter().map(|rule| rule.name).collect();
            names.sort();
            names.dedup();
            bail!("--latency: no slices are called {name}; {}", instead(&[name], &names));
        }
        _ => bail!("--latency: {name} is not begun and ended by one class each; name them: BEGIN..END"),
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_duration(text).and_then(|interval| match interval.is_zero() {
        true => Err("an interval must be longer than 0".into()),
        false => Ok(interval),
    })
}

impl StatsCommand {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let Some(query) = self.query() else { return self.whole(out) };
        let (report, zero_ns) = self.read(&self.dirs, &query)?;
        let marks = (style::BOLD.render().to_string(), style::BOLD.render_reset().to_string());
        let marks = (marks.0.as_str(), marks.1.as_str());
        let Some(other) = &self.diff else {
            if self.json {
                out.json(&report)?
            } else {
                let view = self.view();
                let line = zero_ns.map(zero_line);
                let zero = zero_ns.zip(line.as_deref());
                let look = Look { marks, zero, utc_offset_s: &utc_offset(), view: &view };
                write_report(&report, &mut out.styled(), look)?
            }
            return Ok((!report.warnings.is_empty()).into());
        };
        let diff = Diff::new(report, self.read(std::slice::from_ref(other), &query)?.0, self.top);
        let dirs: Vec<String> = self.dirs.iter().map(|dir| dir.display().to_string()).collect();
        let names = [dirs.join(" "), other.display().to_string()];
        match self.json {
            true => out.json(&diff)?,
            false => write_diff(&diff, &mut out.styled(), marks, names.each_ref().map(String::as_str))?,
        }
        Ok([&diff.a, &diff.b].iter().any(|report| !report.warnings.is_empty()).into())
    }

    /// Returns the command that prints what happened during the pairs.
    fn view(&self) -> String {
        let dirs = self.dirs.iter().map(|dir| dir.display().to_string());
        let mut words: Vec<String> = ["dormouse", "view"].map(String::from).into_iter().chain(dirs).collect();
        if let Some((begin, end)) = &self.latency {
            words.extend(["--during".into(), if end.is_empty() { begin.clone() } else { format!("{begin}..{end}") }]);
        }
        if !self.key.is_empty() {
            words.extend(["--key".into(), self.key.join(",")]);
        }
        words.extend(self.selection.words());
        words.iter().map(|word| shell_quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// Returns the question that the options ask, if they ask one.
    fn query(&self) -> Option<Query> {
        let measure = match (&self.field, &self.latency) {
            (Some(name), _) => Measure::Field(name.clone()),
            (None, Some((begin, end))) => Measure::Latency(Latency {
                begin: begin.clone(),
                end: end.clone(),
                key: self.key.clone(),
                slowest: self.slowest.unwrap_or(5) as usize,
                ..Latency::default()
            }),
            (None, None) => Measure::Count,
        };
        let is_asked = self.selection.is_choosy()
            || !self.selection.events.is_empty()
            || !self.by.is_empty()
            || !matches!(measure, Measure::Count);
        let is_shaped =
            self.interval.is_some() || self.top.is_some() || self.groups_max.is_some() || self.diff.is_some();
        (is_asked || is_shaped).then(|| Query {
            events: self.selection.events.clone(),
            by: self.by.clone(),
            measure,
            interval_ns: self.interval.map(|interval| u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX)),
            groups_max: self.groups_max.map(|groups| groups as usize),
            top: self.top,
            is_compared: self.diff.is_some(),
        })
    }

    fn whole(&self, out: &mut Output) -> anyhow::Result<u8> {
        let files = self.selection.open(&self.dirs)?;
        self.verbose.notes(&files, Vec::new()).for_each(say);
        let stats = progress::during("reading the trace", || files.stats());
        if self.json {
            out.json(&stats)?;
        } else {
            write!(out, "{}", StatsTable(&stats))?;
        }
        Ok((!stats.warnings.is_empty() || !stats.classes_refused.is_empty()).into())
    }

    /// Returns the answer, and the time of the first event in nanoseconds since the epoch.
    fn read(&self, dirs: &[PathBuf], query: &Query) -> anyhow::Result<(Report, Option<i64>)> {
        let files = self.selection.open(dirs)?;
        let traces: Vec<&Trace> = files.described().iter().collect();
        let streams = files.names().zip(files.readers().map(|(trace, _)| trace));
        let mut query = query.clone();
        if let Measure::Latency(latency) = &mut query.measure
            && latency.end.is_empty()
        {
            (latency.begin, latency.end) = ends_of(&latency.begin, &files)?;
        }
        query.check(&traces).map_err(anyhow::Error::msg)?;
        let mut reading = match &mut query.measure {
            Measure::Latency(latency) => {
                // Conditions hold for pairs, not for single events.
                latency.conditions = self.selection.conditions(Some(&files))?;
                if latency.key.is_empty() {
                    latency.found = self.found(&files, latency)?;
                }
                self.selection.reading_of(&files, Vec::new())?
            }
            _ => self.selection.reading(&files)?,
        };
        let mut analysis = Analysis::new(&query, &traces, streams).map_err(anyhow::Error::msg)?;
        let bounds = reading.bounds();
        if bounds.are_set() {
            analysis.within(bounds.first_ns, bounds.last_ns);
        }
        self.verbose.notes(&files, std::mem::take(&mut reading.index_notes)).for_each(say);
        let mut progress = Progress::of(&reading, true);
        while let Some(item) = reading.next_item() {
            match item {
                Item::Wanted(event, _) => analysis.event(&event),
                Item::Other(event) => analysis.pass(&event),
                Item::Notice(notice) => analysis.notice(&notice, reading.time_ns(notice.stream)),
            }
            progress.step(&reading);
        }
        drop(progress);
        let mut report = analysis.finish(&files.left_out, reading.missing());
        if let (Some(found), Measure::Latency(asked)) = (&mut report.latency, &query.measure) {
            add_fields(&files, &[&asked.begin, &asked.end], &mut found.slowest);
        }
        Ok((report, zero_ns(&files)))
    }

    /// Returns the fields by which the events belong together, if not by thread.
    fn found(&self, files: &TraceFiles, latency: &Latency) -> anyhow::Result<Option<FoundKey>> {
        let Latency { begin, end, .. } = latency;
        let pair = GivenPair { name: format!("{begin}..{end}"), begin: begin.clone(), end: end.clone() };
        let options = Options { pairs: vec![pair], ..Options::default() };
        let reading = self.selection.reading_of(files, vec![begin.clone(), end.clone()])?;
        Ok(survey(&options, files, reading, SURVEY_BYTES)?.pop())
    }
}

/// Adds their fields to the slowest pairs. `patterns`: those of the classes that begin and end a pair.
fn add_fields(files: &TraceFiles, patterns: &[&str; 2], slowest: &mut [SlowPair]) {
    let mut wanted: HashMap<(usize, i64), Vec<(usize, usize)>> = HashMap::new();
    for (at, pair) in slowest.iter().enumerate() {
        let end_ns = pair.begin_ns.saturating_add_unsigned(pair.latency_ns);
        for (end, ns) in [pair.begin_ns, end_ns].into_iter().enumerate() {
            wanted.entry((pair.streams[end], ns)).or_default().push((at, end));
        }
    }
    let times = wanted.keys().map(|(_, ns)| *ns);
    let ranges: Vec<(i64, i64)> = match times.clone().min().zip(times.clone().max()) {
        Some(whole) if wanted.len() > SEEKS_MAX => vec![whole],
        _ => times.map(|ns| (ns, ns)).collect(),
    };
    for range in ranges {
        let all = Selection::unchecked(Vec::new(), Vec::new());
        let mut reading = Reading::new(files, all, Bounds::new(files, range, None, None));
        while let Some(item) = reading.next_item() {
            let Item::Wanted(event, _) = item else { continue };
            let pairs = event.time_ns.and_then(|ns| wanted.get(&(event.stream, ns)));
            for (at, end) in pairs.into_iter().flatten() {
                if matches(patterns[*end], &event.class.full_name) {
                    slowest[*at].fields[*end].get_or_insert_with(|| pair_fields(&event));
                }
            }
        }
    }
}

/// Returns a text as one word of a shell.
fn shell_quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

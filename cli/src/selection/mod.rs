//! The options that select events, shared by the commands that read traces.

mod time;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use dormouse_analysis::clocks::File;
use dormouse_ctf::{ClassRef, Selection};
use dormouse_filter::{Filter, matches};
use dormouse_reader::{Bounds, ProgramNames, Reading, TraceFiles};
use dormouse_terminal::{parse_duration, say};

use crate::patterns::{instead, unmatched};
use time::TimeOption;
pub(crate) use time::{zero_line, zero_ns};

/// Options that select events.
#[derive(Debug, Args)]
#[command(next_help_heading = "Event selection")]
pub(crate) struct SelectionOptions {
    /// Select events of classes whose name matches, such as 'http:*'; may be given several times
    #[arg(short, long = "event", value_name = "PATTERN")]
    pub events: Vec<String>,
    /// Select events for which this is true: `bytes > 4096 and process == "nginx"`; if given several times, all must be true
    #[arg(long = "where", value_name = "EXPR")]
    pub conditions: Vec<String>,
    /// Select events from this time on: `10:15`, `2026-11-26 10:15:00.5`, `1700000000.25`, `+1.5s` (from the first event), `-2s` (from the end), `event:NAME`
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_hyphen_values = true)]
    since: Option<TimeOption>,
    /// Select events up to this time, in the same forms
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_hyphen_values = true)]
    until: Option<TimeOption>,
    /// Select events from --since on for this long
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, requires = "since", conflicts_with = "until")]
    for_: Option<Duration>,
    /// Select events of the last DURATION of the trace: `500ms`, `10s`, `2m`
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "since")]
    last: Option<Duration>,
    /// Select events of this process, by its id in its own PID namespace
    #[arg(long, value_name = "PID")]
    pid: Vec<u64>,
    /// Select events of this thread
    #[arg(long, value_name = "TID")]
    tid: Vec<u64>,
    /// Select events of this CPU
    #[arg(long, value_name = "CPU")]
    cpu: Vec<u64>,
    /// Select events of programs of which a name matches, at whatever time they had it
    #[arg(long, value_name = "PATTERN")]
    process: Vec<String>,
    /// Correct the times of traces with FILE.json, which `dormouse clocks` writes
    #[arg(long, value_name = "FILE.json", help_heading = "Clocks")]
    clocks: Option<PathBuf>,
}

impl SelectionOptions {
    /// Returns the file of clock corrections, if one was given.
    pub(crate) fn clocks(&self) -> Option<&PathBuf> {
        self.clocks.as_ref()
    }

    /// Opens traces, corrects their clocks and prints each correction.
    pub(crate) fn open(&self, dirs: &[PathBuf]) -> anyhow::Result<TraceFiles> {
        self.corrected(TraceFiles::open_all(dirs.iter().map(PathBuf::as_path))?)
    }

    /// Corrects the clocks of open traces, and prints each correction.
    pub(crate) fn corrected(&self, mut files: TraceFiles) -> anyhow::Result<TraceFiles> {
        self.correct(&mut files)?.iter().for_each(say);
        Ok(files)
    }

    /// Corrects the clocks of open traces. Returns a line for each correction.
    pub(crate) fn correct(&self, files: &mut TraceFiles) -> anyhow::Result<Vec<String>> {
        let Some(path) = &self.clocks else { return Ok(Vec::new()) };
        let found = File::read(path, files.described()).map_err(anyhow::Error::msg)?;
        let correct = |(trace, correction, line)| {
            files.correct(trace, correction);
            line
        };
        Ok(found.into_iter().map(correct).collect())
    }

    /// Returns the options that select by time and value, as words of a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let texts = |name, texts: &[String]| texts.iter().map(|text| (name, text.clone())).collect::<Vec<_>>();
        let numbers = |name, numbers: &[u64]| numbers.iter().map(|number| (name, number.to_string())).collect();
        let time = |name, time: &Option<TimeOption>| time.iter().map(|time| (name, time.to_string())).collect();
        let duration = |name, duration: Option<Duration>| {
            duration.iter().map(|duration| (name, format!("{}ns", duration.as_nanos()))).collect()
        };
        let path = self.clocks.iter().map(|path| ("--clocks", path.display().to_string()));
        let all: [Vec<(&str, String)>; 10] = [
            texts("--where", &self.conditions),
            time("--since", &self.since),
            time("--until", &self.until),
            duration("--for", self.for_),
            duration("--last", self.last),
            numbers("--pid", &self.pid),
            numbers("--tid", &self.tid),
            numbers("--cpu", &self.cpu),
            texts("--process", &self.process),
            path.collect(),
        ];
        let word = |(name, value): (&str, String)| match value.starts_with('-') {
            true => vec![format!("{name}={value}")],
            false => vec![name.to_string(), value],
        };
        all.into_iter().flatten().flat_map(word).collect()
    }

    /// Whether the options can select some events of a class and not others.
    pub(crate) fn is_choosy(&self) -> bool {
        let numbers = [&self.pid, &self.tid, &self.cpu].into_iter().any(|numbers| !numbers.is_empty());
        let texts = [&self.conditions, &self.process].into_iter().any(|texts| !texts.is_empty());
        numbers || texts || self.since.is_some() || self.until.is_some() || self.last.is_some()
    }

    /// Returns an error if a pattern matches no event class.
    fn check_patterns(&self, files: &TraceFiles) -> anyhow::Result<()> {
        let mut names: Vec<String> =
            files.traces().flat_map(ClassRef::all).map(|class| class.class.full_name.clone()).collect();
        names.sort();
        names.dedup();
        let of_times = [&self.since, &self.until].into_iter().flatten().filter_map(TimeOption::event);
        let patterns: Vec<&str> = self.events.iter().map(String::as_str).chain(of_times).collect();
        if let Some(pattern) = unmatched(&patterns, &names).first() {
            bail!("no event class of this trace matches {pattern}; {}", instead(&[pattern], &names));
        }
        Ok(())
    }

    /// Returns the conditions on values, each with the name of its option. `files`: the traces, as far as they are known.
    pub(crate) fn conditions(&self, files: Option<&TraceFiles>) -> anyhow::Result<Vec<(String, Filter)>> {
        let filter = |(option, text): (String, String)| {
            let filter = Filter::parse(&text).with_context(|| option.clone())?;
            Ok((option, filter))
        };
        self.questions(files).map(filter).collect()
    }

    /// Returns the selection by event class and by values.
    fn selection(&self, files: &TraceFiles) -> anyhow::Result<Selection> {
        let mut filters = Vec::new();
        for (option, filter) in self.conditions(Some(files))? {
            // Each filter is checked by itself, so that an error names its option.
            Selection::new(self.events.clone(), vec![filter.clone()], files.traces()).context(option)?;
            filters.push(filter);
        }
        Ok(Selection::new(self.events.clone(), filters, files.traces())?)
    }

    /// Returns the selection for a trace to which event classes may still be added. It is not checked against the
    /// classes.
    pub(crate) fn selection_of_live(&self) -> anyhow::Result<Selection> {
        let filters = self.conditions(None)?.into_iter().map(|(_, filter)| filter).collect();
        Ok(Selection::unchecked(self.events.clone(), filters))
    }

    /// Returns the options that were given, each with its filter expression.
    fn questions(&self, files: Option<&TraceFiles>) -> impl Iterator<Item = (String, String)> {
        let number = |name: &str, numbers: &[u64]| {
            let each: Vec<_> = numbers.iter().map(|number| format!("{name} == {number}")).collect();
            (format!("--{name}"), each.join(" or "))
        };
        let quoted = |name: &String| format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
        let mut processes: Vec<String> =
            self.process.iter().map(|name| format!("process ~ {}", quoted(name))).collect();
        // A program that changes its name is wanted under all of its names.
        let programs = files.filter(|_| !processes.is_empty()).map(TraceFiles::program_names).unwrap_or_default();
        let has = |name: &String| self.process.iter().any(|pattern| matches(pattern.as_bytes(), name.as_bytes()));
        for ProgramNames { pid, names } in programs.iter().filter(|program| program.names.iter().any(has)) {
            let others = names.iter().filter(|name| !has(name));
            processes.extend(others.map(|name| format!("pid == {pid} and process == {}", quoted(name))));
        }
        let options = [
            number("pid", &self.pid),
            number("tid", &self.tid),
            number("cpu", &self.cpu),
            ("--process".into(), processes.join(" or ")),
        ];
        let options = options.into_iter().filter(|(_, text)| !text.is_empty());
        options.chain(self.conditions.iter().map(|text| ("--where".to_string(), text.clone())))
    }

    /// Returns the time range in which events are wanted.
    pub(crate) fn bounds(&self, files: &TraceFiles) -> anyhow::Result<Bounds> {
        let within = (self.since.as_ref(), self.until.as_ref());
        time::bounds(files, within, self.for_, self.last)
    }

    /// Begins to read the wanted events. Returns an error if a pattern matches no event class.
    pub(crate) fn reading<'f>(&self, files: &'f TraceFiles) -> anyhow::Result<Reading<'f>> {
        self.check_patterns(files)?;
        self.reading_within(files, self.bounds(files)?)
    }

    /// Begins to read the events of these classes, whatever their values. Returns an error if a pattern matches no event
    /// class.
    pub(crate) fn reading_of<'f>(&self, files: &'f TraceFiles, classes: Vec<String>) -> anyhow::Result<Reading<'f>> {
        self.check_patterns(files)?;
        Ok(Reading::new(files, Selection::unchecked(classes, Vec::new()), self.bounds(files)?))
    }

    /// Begins to read the wanted events within `bounds`.
    pub(crate) fn reading_within<'f>(&self, files: &'f TraceFiles, bounds: Bounds) -> anyhow::Result<Reading<'f>> {
        Ok(Reading::new(files, self.selection(files)?, bounds))
    }
}

/// The option that prints notes besides warnings.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct Verbose {
    /// Print on standard error what was skipped, which index files could not be used, and how clocks were read
    #[arg(short, long, help_heading = "Output")]
    verbose: bool,
}

impl Verbose {
    /// Returns notes on traces, a line each, if `--verbose` was given. `indexes`: notes on index files.
    pub(crate) fn notes(self, files: &TraceFiles, indexes: Vec<String>) -> impl Iterator<Item = String> + use<'_> {
        self.verbose.then(|| notes(files, indexes)).into_iter().flatten()
    }
}

fn notes(files: &TraceFiles, indexes: Vec<String>) -> impl Iterator<Item = String> + use<'_> {
    let clocks = files.traces().flat_map(|trace| trace.clocks()).map(|clock| {
        let seconds = clock.offset_s as f64 + clock.offset_cycles as f64 / clock.frequency_hz.max(1) as f64;
        format!("the clock {} counts {} Hz from {seconds:.9} s since 1970 on", clock.name, clock.frequency_hz)
    });
    files.notes.iter().cloned().chain(indexes).chain(clocks).map(|line| format!("note: {line}"))
}

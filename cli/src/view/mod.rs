//! `dormouse view`: the events of traces on disk.

mod order;
mod printer;
mod sink;
mod when;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use dormouse_abi::class::matches;
use dormouse_ctf::loss::DAMAGED;
use dormouse_ctf::text::ClockFormat;
use dormouse_ctf::{ClassRef, Event, Problem, Selection, StateRecord, StatedLosses, StreamReader, Writers};
use dormouse_filter::Filter;
use dormouse_reader::TraceFiles;
use dormouse_terminal::{Output, parse_duration};

use crate::patterns::{instead, unmatched};
use order::Order;
use printer::Printer;
use sink::Sink;
use when::{Bounds, When};

/// Print the events of traces in order of time
///
/// On a terminal lines are for people: time, process, thread, CPU, event, fields. Into a pipe they are what babeltrace2 prints, unless
/// --format says otherwise.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct View {
    /// Directory of the trace, one with traces in directories below, an archive of such (.tar, .tar.gz, .tar.zst), or `-`
    dir: PathBuf,

    /// Only events of classes whose name matches; may be given several times
    #[arg(short, long = "event", value_name = "PATTERN", help_heading = "Which events")]
    events: Vec<String>,
    /// Only events of which this is true: `bytes > 4096 and process == "nginx"`; of several all
    #[arg(long = "where", value_name = "EXPR", help_heading = "Which events")]
    conditions: Vec<String>,
    /// Only events from this time on: `10:15`, `2026-11-26 10:15:00.5`, `1700000000.25`, `+1.5s` (from the beginning), `-2s` (from the end), `event:NAME`
    #[arg(long, value_name = "TIME", value_parser = when::parse, allow_hyphen_values = true, help_heading = "Which events")]
    since: Option<When>,
    /// Only events up to this time, which is written in the same ways
    #[arg(long, value_name = "TIME", value_parser = when::parse, allow_hyphen_values = true, help_heading = "Which events")]
    until: Option<When>,
    /// Only events of the last so long: `500ms`, `10s`, `2m`
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "since", help_heading = "Which events")]
    last: Option<Duration>,
    /// Only events of this process, by its id as it sees it itself
    #[arg(long, value_name = "PID", help_heading = "Which events")]
    pid: Vec<u64>,
    /// Only events of this thread
    #[arg(long, value_name = "TID", help_heading = "Which events")]
    tid: Vec<u64>,
    /// Only events of this CPU
    #[arg(long, value_name = "CPU", help_heading = "Which events")]
    cpu: Vec<u64>,
    /// Only events of processes whose name matches
    #[arg(long, value_name = "PATTERN", help_heading = "Which events")]
    process: Vec<String>,
    /// No more than the first N of them
    #[arg(short = 'n', long = "count", value_name = "N", help_heading = "Which events")]
    count: Option<u64>,
    /// No more than the last N of them
    #[arg(long, value_name = "N", conflicts_with = "count", help_heading = "Which events")]
    tail: Option<usize>,
    /// The last event first; with -n N the last N
    #[arg(long, help_heading = "Which events")]
    reverse: bool,

    /// How events are printed [default: people on a terminal or with --fields, otherwise babeltrace]
    #[arg(long, value_enum, help_heading = "How they are printed")]
    format: Option<Format>,
    /// Show these fields alone (and contexts of these names)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', help_heading = "How they are printed")]
    fields: Option<Vec<String>>,
    /// How times are printed, in the formats people and babeltrace
    #[arg(long, value_enum, default_value = "time", help_heading = "How they are printed")]
    clock: ClockArgument,
    /// When lines have colours; NO_COLOR in the environment is respected
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN", help_heading = "How they are printed")]
    color: ColorArgument,
    /// Print to the terminal itself, not by way of $PAGER
    #[arg(long, help_heading = "How they are printed")]
    no_pager: bool,
}

const HELP: &str = "\
Examples:
  dormouse view TRACE                                      all of it, page by page
  dormouse view TRACE -e 'http:*' --where 'bytes > 4K'     large requests
  dormouse view TRACE --where 'path ~ \"/api/*\" and not (status == 200 or status == 304)'
  dormouse view TRACE --process nginx --last 10s           what nginx did at the end
  dormouse view TRACE --since event:shop:order_end -n 20   twenty events from the first order on
  dormouse view TRACE --since 14:03:05 --until 14:03:06    one second
  dormouse view TRACE -e 'http:request' --format csv --fields id,path > requests.csv
  dormouse view TRACE --format json | jq 'select(.fields.bytes > 4096)'

--where: == != < <= > >= compare, ~ matches a pattern with * and ?; and, or, not, parentheses. Values: 10, 0x1f, 64K (1024), 10ms \
(durations are nanoseconds), 1.5, \"text\", true, false; labels of enumerations are compared with text. Names: event, time, cpu, pid, tid, process; a \
field or context by its name, or fields.NAME and context.NAME; a.b and a[2] are parts of one. An event without a field that is compared does \
not match, nor does it match the `not` of that. docs/reading.md has all of it.

Reads traces of the Common Trace Format 1.8 and 2, whoever has written them: Dormouse, LTTng, barectf, babeltrace2, perf.

When a session of Dormouse ends, it writes into the metadata what each stream holds. Streams that are missing, empty, too short or \
duplicated are named on standard error, and the last line there says what was lost, if anything was; not so with --since, --until, --last and -n, which do not \
read all of the trace. In a trace that was not closed (the session is live, or was killed), missing streams cannot be noticed.

Exit code: 0; 1 if the trace is damaged or something is missing (what can be read is printed); 2 if it cannot be read, or if an option \
names what is in none of its events. If the reader of the output closes it, `view` stops with 0, or with 1 if there was damage before.";

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ClockArgument {
    /// Time of day, local
    Time,
    /// Date and time of day, local
    Date,
    /// Seconds since 1970
    Seconds,
    /// Seconds since the first event of the trace
    Relative,
}

/// How events are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Aligned columns; labels and truth values by name; what is too long for the terminal is cut
    People,
    /// As babeltrace2 prints them
    Babeltrace,
    /// A JSON object in each line
    Json,
    /// A table with a column for each field
    Csv,
    /// name=value pairs
    Logfmt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ColorArgument {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Bytes of text gathered before they are written.
const CHUNK_BYTES: usize = 64 << 10;

impl View {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let files = TraceFiles::open(&self.dir)?;
        let is_terminal = std::io::stdout().is_terminal();
        let format = self.format.unwrap_or(match is_terminal || self.fields.is_some() {
            true => Format::People,
            false => Format::Babeltrace,
        });
        if format == Format::Babeltrace && self.fields.is_some() {
            bail!("--format babeltrace prints all fields; --fields is for people, json, csv and logfmt");
        }
        self.check_names(&files)?;
        let mut selection = self.selection(&files)?;
        let bounds = Bounds::new(&files, self.since.as_ref(), self.until.as_ref(), self.last)?;
        let clock = match self.clock {
            ClockArgument::Time => ClockFormat::TimeOfDay,
            ClockArgument::Date => ClockFormat::DateTime,
            ClockArgument::Seconds => ClockFormat::Seconds,
            ClockArgument::Relative => ClockFormat::Since(when::begin_ns(&files).unwrap_or(0)),
        };
        let has_color = match self.color {
            ColorArgument::Auto => dormouse_terminal::style::has_color(),
            color => color == ColorArgument::Always,
        };
        let width = if is_terminal { dormouse_terminal::style::width() } else { None };
        let columns = || self.columns(&files, &selection);
        let mut printer = Printer::new(format, clock, width, has_color, self.fields.clone(), columns);
        let mut sink = Sink::new(out, is_terminal && !self.no_pager, format == Format::People);
        let result = self.print(&files, &mut selection, bounds, &mut printer, &mut sink);
        sink.finish();
        result
    }

    fn print(
        &self,
        files: &TraceFiles,
        selection: &mut Selection,
        mut bounds: Bounds,
        printer: &mut Printer,
        sink: &mut Sink<'_>,
    ) -> anyhow::Result<u8> {
        let names: Vec<&str> = files.names().collect();
        let mut order = Order::new(self.reverse, if self.reverse { self.tail_count() } else { self.tail })?;
        let mut left = if self.reverse { u64::MAX } else { self.count.unwrap_or(u64::MAX) };
        let is_whole = !bounds.are_set() && left == u64::MAX;
        files.left_out.iter().for_each(|line| sink.say(format!("warning: {line}")));
        let (is_left_out, mut is_damaged) = (!files.left_out.is_empty(), false);
        let (mut losses, mut writers) = (StatedLosses::default(), Writers::default());
        let mut text = Vec::with_capacity(2 * CHUNK_BYTES);
        printer.begin(&mut text);
        sink.write(&text);
        text.clear();
        let mut events = files.events_within(bounds.first_ns, bounds.last_ns);
        while left > 0
            && let Some(item) = events.next_event()
        {
            match item {
                Ok(event) => {
                    if let Some(record) = StateRecord::decode(&event) {
                        losses.note(&record);
                        writers.note(&event, &record);
                    }
                    if bounds.are_over(&event) {
                        break;
                    }
                    if bounds.have(&event) && selection.wants(&event, &mut writers) {
                        left -= 1;
                        let begin = text.len();
                        printer.event(&event, &mut writers, &mut text);
                        order.take(&mut text, begin)?;
                    }
                }
                // What was lost at other times is not asked for.
                Err(notice) if matches!(notice.problem, Problem::Discarded { .. }) && bounds.are_set() => {}
                Err(notice) => {
                    // What comes before the notice comes out before it.
                    sink.write(&text);
                    text.clear();
                    is_damaged |= !matches!(notice.problem, Problem::Discarded { .. });
                    sink.say(printer.warning(&notice, names[notice.stream]));
                }
            }
            if text.len() >= CHUNK_BYTES {
                sink.write(&text);
                text.clear();
            }
            if sink.is_over() {
                return Ok((is_left_out || is_damaged).into());
            }
        }
        sink.write(&text);
        order.finish(|line| {
            sink.write(line);
            !sink.is_over()
        })?;
        let missing = if is_whole { files.missing(&events) } else { Vec::new() };
        missing.iter().for_each(|line| sink.say(format!("warning: {line}")));
        is_damaged |= !missing.is_empty();
        if is_damaged {
            losses.add(DAMAGED, 0);
        }
        let totals = events.streams().iter().filter_map(StreamReader::totals);
        let stated = totals.fold(0, |sum: u64, totals| sum.saturating_add(totals.events_discarded));
        if is_whole && (losses.unstated > 0 || stated > 0 || !losses.uncounted.is_empty()) {
            sink.say(losses.told(stated).to_string());
        }
        Ok((is_left_out || is_damaged).into())
    }

    /// How many events from the end on are printed, in reverse.
    fn tail_count(&self) -> Option<usize> {
        self.tail.or(self.count.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
    }

    /// Patterns that match no class, and fields that no class has, are mistakes.
    fn check_names(&self, files: &TraceFiles) -> anyhow::Result<()> {
        let classes: Vec<ClassRef<'_>> = files.traces().flat_map(ClassRef::all).collect();
        let mut names: Vec<String> = classes.iter().map(|class| class.class.full_name.clone()).collect();
        names.sort();
        names.dedup();
        let of_times = [&self.since, &self.until].into_iter().flatten().filter_map(When::event);
        let patterns: Vec<&str> = self.events.iter().map(String::as_str).chain(of_times).collect();
        if let Some(pattern) = unmatched(&patterns, &names).first() {
            bail!("no event class of this trace matches {pattern}; {}", instead(&[pattern], &names));
        }
        let mut fields: Vec<String> = classes.iter().flat_map(|class| class.class.member_names()).map(str::to_string).collect();
        fields.sort();
        fields.dedup();
        let mut wanted = self.fields.iter().flatten();
        if let Some(wanted) = wanted.find(|wanted| !fields.contains(wanted)) {
            bail!("--fields {wanted}: no event of this trace has such a field; {}", instead(&[wanted], &fields));
        }
        Ok(())
    }

    fn selection(&self, files: &TraceFiles) -> anyhow::Result<Selection> {
        let number = |name: &str, numbers: &[u64]| {
            let each: Vec<_> = numbers.iter().map(|number| format!("{name} == {number}")).collect();
            (format!("--{name}"), each.join(" or "))
        };
        let process = |name: &String| format!("process ~ \"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
        let processes: Vec<String> = self.process.iter().map(process).collect();
        let options = [
            number("pid", &self.pid),
            number("tid", &self.tid),
            number("cpu", &self.cpu),
            ("--process".into(), processes.join(" or ")),
        ];
        let options = options.into_iter().filter(|(_, text)| !text.is_empty());
        let conditions = self.conditions.iter().map(|text| ("--where".to_string(), text.clone()));
        let mut filters = Vec::new();
        for (option, text) in options.chain(conditions) {
            let filter = Filter::parse(&text).with_context(|| option.clone())?;
            // Each by itself, so that an error is told of its option.
            Selection::new(Vec::new(), vec![filter.clone()], files.traces()).context(option)?;
            filters.push(filter);
        }
        Ok(Selection::new(self.events.clone(), filters, files.traces())?)
    }

    /// The columns of a table: the fields that are asked for, or those of all classes that can be wanted.
    fn columns(&self, files: &TraceFiles, selection: &Selection) -> Vec<String> {
        if let Some(fields) = &self.fields {
            return fields.clone();
        }
        let mut columns: Vec<String> = Vec::new();
        for class in files.traces().flat_map(ClassRef::all).filter(|class| selection.may_want(class)) {
            for name in class.class.member_names() {
                if !columns.iter().any(|known| known == name) {
                    columns.push(name.to_string());
                }
            }
        }
        columns
    }
}

/// Whether an event's class has a name that matches.
fn is_named(event: &Event<'_>, pattern: &str) -> bool {
    matches(pattern, &event.class.full_name)
}

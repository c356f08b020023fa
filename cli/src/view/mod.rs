//! `dormouse view`: prints the events of traces.

mod crew;
mod follow;
mod horizon;
mod order;
mod printer;
mod sink;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use dormouse_ctf::{ClassRef, Notice, Problem, Selection};
use dormouse_print::ClockFormat;
use dormouse_reader::{Item, Reading, TraceFiles};
use dormouse_terminal::{Output, parse_duration};

use crate::patterns::instead;
use crate::progress::Progress;
use crate::wanted::{Verbose, Wanted, begin_ns};
use crew::Crew;
use order::Order;
use printer::Printer;
use sink::Sink;

/// Print the events of traces in order of time
///
/// On a terminal lines are for people: time, process, thread, CPU, event, fields. Into a pipe they are what babeltrace2 prints, unless
/// --format says otherwise.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct View {
    /// Traces: directories of one or with several below, archives of such (.tar, .tar.gz, .tar.zst), or `-`
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,

    #[command(flatten)]
    wanted: Wanted,
    /// No more than the first N of them
    #[arg(short = 'n', long = "count", value_name = "N", help_heading = "Which events")]
    count: Option<u64>,
    /// No more than the last N of them
    #[arg(long, value_name = "N", conflicts_with = "count", help_heading = "Which events")]
    tail: Option<usize>,
    /// The last event first; with -n N the last N
    #[arg(long, help_heading = "Which events")]
    reverse: bool,
    /// Go on with what is recorded meanwhile, until the session ends or Ctrl-C
    #[arg(short, long, conflicts_with_all = ["tail", "reverse"])]
    follow: bool,
    /// With --follow, hold events back until every stream has shown a later time, or nothing has come in it for so long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s", requires = "follow")]
    delay: Duration,

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
    #[command(flatten)]
    verbose: Verbose,
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
  dormouse view TRACE --follow -e 'shop:*'                  what is recorded now
  dormouse view A B                                        two traces in one order
  dormouse view TRACE --format json | jq 'select(.fields.bytes > 4096)'

--where: == != < <= > >= compare, ~ matches a pattern with * and ?; and, or, not, parentheses. Values: 10, 0x1f, 64K (1024), 10ms \
(durations are nanoseconds), 1.5, \"text\", true, false; labels of enumerations are compared with text. Names: event, time, cpu, pid, tid, process; a \
field or context by its name, or fields.NAME and context.NAME; a.b and a[2] are parts of one. An event without a field that is compared does \
not match, nor does it match the `not` of that. docs/reading.md has all of it.

--follow reads the directory of one trace again and again, and prints what has come: whole packets, which a session writes when they are full and when a \
program ends. Events wait until every stream has shown a later time. A stream in which nothing has come for --delay is not waited for: events that it has after all \
stand behind those of later times, and are counted. It ends with the \
session, with -n, or with Ctrl-C, and says why. The trace of another tracer does not say that it is complete: there Ctrl-C ends it. Options may name classes and fields \
that have not come yet.

Reads traces of the Common Trace Format 1.8 and 2, whoever has written them: Dormouse, LTTng, barectf, babeltrace2, perf.

When a session of Dormouse ends, it writes into the metadata what each stream holds. Streams that are missing, empty, too short or \
duplicated are named on standard error, unless --since, --until, --last or -n have only a part of the trace read. The last line there says what was lost, if \
anything was, in the time that is shown. In a trace that was not closed (the session is live, or was killed), missing streams cannot be noticed.

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

/// Result of printing.
pub(crate) struct Printed {
    /// Whether the trace is damaged, or a part of it is missing.
    pub is_damaged: bool,
    /// Number of events. Events that are handed on unseen (a whole trace in babeltrace's format) and those of
    /// `--follow` are not counted.
    pub events: u64,
}

/// How events are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
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

/// Size at which gathered text is written, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

impl View {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        Ok(self.print_to(out, std::io::stdout().is_terminal())?.is_damaged.into())
    }

    /// Prints all wanted events, as lines for programs.
    ///
    /// # Errors
    /// A trace cannot be opened or read, or an option names an event class or field that does not exist.
    pub(crate) fn export(
        dirs: Vec<PathBuf>,
        wanted: Wanted,
        format: Format,
        out: &mut Output,
    ) -> anyhow::Result<Printed> {
        let view = View {
            dirs,
            wanted,
            count: None,
            tail: None,
            reverse: false,
            follow: false,
            delay: Duration::ZERO,
            format: Some(format),
            fields: None,
            clock: ClockArgument::Time,
            color: ColorArgument::Never,
            no_pager: true,
            verbose: Verbose::default(),
        };
        view.print_to(out, false)
    }

    fn print_to(self, out: &mut Output, is_terminal: bool) -> anyhow::Result<Printed> {
        let files = self.wanted.open(&self.dirs)?;
        let format = self.format.unwrap_or(match is_terminal || self.fields.is_some() {
            true => Format::People,
            false => Format::Babeltrace,
        });
        if format == Format::Babeltrace && self.fields.is_some() {
            bail!("--format babeltrace prints all fields; --fields is for people, json, csv and logfmt");
        }
        let reading = match self.follow {
            true => Reading::new(&files, self.wanted.selection_of_live()?, self.wanted.bounds(&files)?),
            false => {
                self.check_fields(&files)?;
                self.wanted.reading(&files)?
            }
        };
        let selection = reading.selection();
        let clock = match self.clock {
            ClockArgument::Time => ClockFormat::TimeOfDay,
            ClockArgument::Date => ClockFormat::DateTime,
            ClockArgument::Seconds => ClockFormat::Seconds,
            ClockArgument::Relative => ClockFormat::Since(begin_ns(&files).unwrap_or(0)),
        };
        let has_color = match self.color {
            ColorArgument::Auto => dormouse_terminal::style::has_color(),
            color => color == ColorArgument::Always,
        };
        let width = if is_terminal { dormouse_terminal::style::width() } else { None };
        let columns = || self.columns(&files, selection);
        let mut printer = Printer::new(format, clock, width, has_color, self.fields.clone(), columns);
        // Classes of the session's state events are left out.
        let classes = files.traces().flat_map(ClassRef::all);
        let classes = classes.filter(|class| !class.is_state() && selection.may_want(class));
        printer.expect(classes.map(|class| class.class.full_name.as_str()));
        let is_paged = is_terminal && !self.no_pager && !self.follow;
        let mut sink = Sink::new(out, is_paged, format == Format::People);
        if self.follow {
            let bounds = reading.bounds().clone();
            let code = self.print_following(files, bounds, &mut printer, &mut sink)?;
            return Ok(Printed { is_damaged: code != 0, events: 0 });
        }
        let is_simple = format == Format::Babeltrace && !self.reverse && self.tail.is_none();
        let result = std::thread::scope(|scope| {
            let crew = if is_simple { Crew::start(scope, clock) } else { None };
            self.print(&files, reading, &mut printer, crew, &mut sink)
        });
        sink.finish();
        result
    }

    fn print<'f>(
        &self,
        files: &'f TraceFiles,
        mut reading: Reading<'f>,
        printer: &mut Printer,
        mut crew: Option<Crew<'f>>,
        sink: &mut Sink<'_>,
    ) -> anyhow::Result<Printed> {
        let mut order = Order::new(self.reverse, if self.reverse { self.tail_count() } else { self.tail })?;
        let mut left = if self.reverse { u64::MAX } else { self.count.unwrap_or(u64::MAX) };
        let is_all = left == u64::MAX;
        files.left_out.iter().for_each(|line| sink.say(format!("warning: {line}")));
        let mut text = Vec::with_capacity(2 * CHUNK_BYTES);
        printer.begin(&mut text);
        sink.write(&text);
        text.clear();
        self.verbose.notes(files, std::mem::take(&mut reading.index_notes)).for_each(|line| sink.say(line));
        // No progress bar on a terminal, which shows the events themselves.
        let mut progress = Progress::of(&reading, !std::io::stdout().is_terminal());
        let (mut shown, mut last_ns, mut is_damaged) = (0, None, !files.left_out.is_empty());
        while left > 0 {
            // If all events are wanted, those of programs need not be checked one by one.
            if let Some(crew) = crew.as_mut().filter(|_| is_all) {
                crew.take_all(&mut reading, sink, |reading| progress.show(reading));
            }
            let mut is_for_crew = false;
            match reading.next_item() {
                None => break,
                Some(Item::Wanted(event, writers)) => {
                    left -= 1;
                    shown += 1;
                    last_ns = event.time_ns.or(last_ns);
                    is_for_crew = crew.is_some();
                    if !is_for_crew {
                        let (begin, ns) = (text.len(), event.time_ns);
                        printer.event(&event, writers, &mut text);
                        order.take(&mut text, begin, ns)?;
                    }
                }
                Some(Item::Other(_)) => {}
                // With `--tail`, the sum of lost events is printed at the end.
                Some(Item::Notice(Notice { problem: Problem::Discarded { .. }, .. })) if self.tail.is_some() => {}
                Some(Item::Notice(notice)) => {
                    // Events before the notice are printed before it.
                    crew.iter_mut().for_each(|crew| crew.finish(sink));
                    sink.write(&text);
                    text.clear();
                    sink.flush();
                    // Events are read ahead of their lines. If the reader is gone, notices after its last line are not
                    // printed.
                    if !sink.is_over() {
                        is_damaged |= !matches!(notice.problem, Problem::Discarded { .. });
                        let line = printer.warning(&notice, reading.stream_name(notice.stream));
                        progress.hidden(|| sink.say(line));
                    }
                }
            }
            if let Some(crew) = crew.as_mut().filter(|_| is_for_crew) {
                crew.take(&reading, sink);
            }
            if text.len() >= CHUNK_BYTES {
                sink.write(&text);
                text.clear();
            }
            if sink.is_over() {
                return Ok(Printed { is_damaged, events: shown });
            }
            progress.step(&reading);
        }
        drop(progress);
        crew.iter_mut().for_each(|crew| crew.finish(sink));
        sink.write(&text);
        if let Some(ns) = last_ns.filter(|_| left == 0) {
            reading.ends_with(ns);
        }
        if let Some(ns) = order.first_ns() {
            reading.begins_with(ns);
        }
        order.finish(|line| {
            sink.write(line);
            !sink.is_over()
        })?;
        let missing = if is_all { reading.missing() } else { Vec::new() };
        missing.iter().for_each(|line| sink.say(format!("warning: {line}")));
        let said = reading.finish(is_all);
        said.losses.into_iter().for_each(|line| sink.say(line));
        Ok(Printed { is_damaged: !said.warnings.is_empty(), events: shown })
    }

    /// Returns the number of events to print in reverse, counted from the end.
    fn tail_count(&self) -> Option<usize> {
        self.tail.or(self.count.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
    }

    /// Returns an error if `--fields` names a field that no class has.
    fn check_fields(&self, files: &TraceFiles) -> anyhow::Result<()> {
        let classes: Vec<ClassRef<'_>> = files.traces().flat_map(ClassRef::all).collect();
        let mut fields: Vec<String> =
            classes.iter().flat_map(|class| class.class.member_names()).map(str::to_string).collect();
        fields.sort();
        fields.dedup();
        let mut wanted = self.fields.iter().flatten();
        if let Some(wanted) = wanted.find(|wanted| !fields.contains(wanted)) {
            bail!("--fields {wanted}: no event of this trace has such a field; {}", instead(&[wanted], &fields));
        }
        Ok(())
    }

    /// Returns the columns of a table: the fields of `--fields`, or those of all classes that can be selected.
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

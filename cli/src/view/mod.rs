//! `dormouse view`: prints the events of traces.

mod during;
mod follow;
mod printer;
mod sink;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use dormouse_ctf::stream::Block;
use dormouse_ctf::{ClassRef, Notice, Problem, Selection};
use dormouse_print::{Buffer, ClockFormat, Formatter};
use dormouse_reader::{Item, LineOrder, ParallelFormatter, Reading, TraceFiles};
use dormouse_terminal::{Output, parse_duration};

use crate::patterns::instead;
use crate::progress::Progress;
use crate::selection::{SelectionOptions, Verbose, zero_line, zero_ns};
use printer::Printer;
pub(crate) use printer::utc_offset;
use sink::Sink;

/// Print the events of traces in order of time
///
/// On a terminal, lines are for people: time, process, thread, CPU, event, fields. In a pipe, lines are those of babeltrace2, unless
/// --format says otherwise.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct View {
    /// Trace directories, directories that contain traces, archives of these (.tar, .tar.gz, .tar.zst), or `-` for an archive on standard input
    #[arg(required = true, value_name = "TRACE")]
    dirs: Vec<PathBuf>,

    #[command(flatten)]
    selection: SelectionOptions,
    /// Print only the first N selected events
    #[arg(short = 'n', long = "count", value_name = "N", help_heading = "Event selection")]
    count: Option<u64>,
    /// Print only the last N selected events
    #[arg(long, value_name = "N", conflicts_with = "count", help_heading = "Event selection")]
    tail: Option<usize>,
    /// Print the last event first; with -n N the last N
    #[arg(long, help_heading = "Event selection")]
    reverse: bool,
    /// Print what happened during the slices of this name, or from each BEGIN event to its END: the events that belong to each
    #[arg(
        long,
        value_name = "NAME|BEGIN..END",
        conflicts_with_all = ["count", "tail", "reverse", "follow", "clock"],
        help_heading = "Event selection"
    )]
    during: Option<String>,
    /// With --during, only the N slowest, the slowest first
    #[arg(long, value_name = "N", requires = "during", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Event selection")]
    slowest: Option<u32>,
    /// Pair BEGIN with END by equal values of these: fields, `pid`, `tid`, `cpu`
    #[arg(long, value_name = "FIELD", value_delimiter = ',', requires = "during", help_heading = "Event selection")]
    key: Vec<String>,
    /// Continue with events as they are recorded, until the session ends or Ctrl-C
    #[arg(short, long, conflicts_with_all = ["tail", "reverse"])]
    follow: bool,
    /// With --follow, hold events back until every stream has a later time or has been silent for this long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s", requires = "follow")]
    delay: Duration,

    /// Format of the events [default: people on a terminal or with --fields, otherwise babeltrace]
    #[arg(long, value_enum, help_heading = "Output")]
    format: Option<Format>,
    /// Print only these fields (and contexts of these names)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', help_heading = "Output")]
    fields: Option<Vec<String>>,
    /// Format of times, in the formats people and babeltrace
    #[arg(long, value_enum, default_value = "time", help_heading = "Output")]
    clock: ClockArgument,
    /// When to colour lines; NO_COLOR in the environment disables colours
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN", help_heading = "Output")]
    color: ColorArgument,
    /// Print directly to the terminal, without $PAGER
    #[arg(long, help_heading = "Output")]
    no_pager: bool,
    #[command(flatten)]
    verbose: Verbose,
}

const HELP: &str = "\
Examples:
  dormouse view TRACE                                      the whole trace, page by page
  dormouse view TRACE -e 'http:*' --where 'bytes > 4K'     large requests
  dormouse view TRACE --where 'path ~ \"/api/*\" and not (status == 200 or status == 304)'
  dormouse view TRACE --process nginx --last 10s           what nginx did at the end
  dormouse view TRACE --since event:shop:order_end -n 20   twenty events from the first order on
  dormouse view TRACE --since 14:03:05 --until 14:03:06    one second
  dormouse view TRACE -e 'http:request' --format csv --fields id,path > requests.csv
  dormouse view TRACE --follow -e 'shop:*'                 events as they are recorded
  dormouse view TRACE --during shop:request --slowest 5    what happened during the five slowest requests
  dormouse view TRACE --during req:in..req:out --where 'status >= 500'
  dormouse view A B                                        two traces in one order
  dormouse view TRACE --format json | jq 'select(.fields.bytes > 4096)'

--where: == != < <= > >= compare, ~ matches a pattern with * and ?; and, or, not, parentheses. Values: 10, 0x1f, 64K (1024), 10ms \
(durations are in nanoseconds), 1.5, \"text\", true, false; labels of enumerations are compared as text. Names: event, time, cpu, pid, tid, process; a \
field or context by its name, or fields.NAME and context.NAME; the event's level, and user, uid, cgroup, container of its process, if nothing else is called so; a.b and a[2] are parts of a field. An event that lacks a field that is compared \
does not match, with or without `not`. docs/reading.md has the details.

--during NAME takes the slices that the names of classes define (`X_begin` to `X_end`), BEGIN..END any two classes; they are paired as in `dormouse stats --latency`. Each slice has its \
name, duration and fields, then its events: the time since its begin, the duration of what the event ends, and an indentation by what encloses it on its thread. If it is \
paired by thread, the events are those of its thread. If it is paired by a key, they are those with the same values, and on each thread those within other slices whose \
begin has the same values; what a thread does outside of these is not found. The third line says which rule holds. --where and the options of process, thread and CPU select \
slices, as in stats; -e selects the events that are printed. In json each slice is an object with `slice`, `name`, `latency_ns`, `key`, `begin_fields`, `end_fields` and others, \
followed by its events, which have `slice`, `since_begin_ns`, `depth`, `ended` and `ended_ns` too.

--follow reads the directory of one trace repeatedly, and prints new events: those in complete packets, which a session writes when they are full and when a \
program ends. Events are held back until every stream has a later time. A stream that has been silent for --delay is not waited for: if it has earlier events after all, they \
are printed after later ones, and counted. --follow ends with the \
session, after -n events, or with Ctrl-C, and says why. Traces of other tracers do not say when they are complete: Ctrl-C ends --follow. Options may name classes and fields \
that are not in the trace yet.

Reads traces in the Common Trace Format 1.8 and 2 from any tracer: Dormouse, LTTng, barectf, babeltrace2, perf.

When a session of Dormouse ends, it writes the totals of each stream to the metadata. Streams that are missing, empty, too short or \
duplicated are named on standard error, unless only a part of the trace is read because of --since, --until, --last or -n. The last line on standard error says what was lost, if \
anything was, in the time that is shown. In a trace that was not closed (the session is live, or was killed), missing streams cannot be detected.

Exit code: 0; 1 if the trace is damaged or incomplete (what can be read is printed); 2 if the trace cannot be read, or an option \
names something that no event of the trace has. If the reader closes the output, `view` exits with 0, or with 1 if it has found damage before.";

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
    /// Aligned columns; enumerations and Booleans by name; lines are cut at the width of the terminal
    People,
    /// Lines as babeltrace2 prints them
    Babeltrace,
    /// A JSON object on each line
    Json,
    /// A table with a column for each field
    Csv,
    /// name=value pairs
    Logfmt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ColorArgument {
    /// If standard output is a terminal
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
        selection: SelectionOptions,
        format: Format,
        out: &mut Output,
    ) -> anyhow::Result<Printed> {
        let view = View {
            dirs,
            selection,
            count: None,
            tail: None,
            reverse: false,
            during: None,
            slowest: None,
            key: Vec::new(),
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
        let files = self.selection.open(&self.dirs)?;
        let format = self.format.unwrap_or(match is_terminal || self.fields.is_some() || self.during.is_some() {
            true => Format::People,
            false => Format::Babeltrace,
        });
        if format == Format::Babeltrace && self.fields.is_some() {
            bail!("--format babeltrace prints all fields; use --fields with --format people, json, csv or logfmt");
        }
        if format == Format::Babeltrace && self.during.is_some() {
            bail!("--format babeltrace cannot show slices; use --during with --format people, json, csv or logfmt");
        }
        let reading = match (self.follow, &self.during) {
            (true, _) => Reading::new(&files, self.selection.selection_of_live()?, self.selection.bounds(&files)?),
            (false, during) => {
                self.check_fields(&files)?;
                match during {
                    // The conditions hold for slices, not for events.
                    Some(_) => self.selection.reading_of(&files, self.selection.events.clone())?,
                    None => self.selection.reading(&files)?,
                }
            }
        };
        let selection = reading.selection();
        let is_relative = matches!(self.clock, ClockArgument::Relative);
        let zero_ns = if is_relative { zero_ns(&files) } else { None };
        if is_relative && self.follow && zero_ns.is_none() {
            bail!(
                "--clock relative counts from the first event, and the trace has none yet; use --clock time, or start again when it has one"
            );
        }
        let clock = match self.clock {
            ClockArgument::Time => ClockFormat::TimeOfDay,
            ClockArgument::Date => ClockFormat::DateTime,
            ClockArgument::Seconds => ClockFormat::Seconds,
            ClockArgument::Relative => ClockFormat::Since(zero_ns.unwrap_or(0)),
        };
        let has_color = match self.color {
            ColorArgument::Auto => dormouse_terminal::style::has_color(),
            color => color == ColorArgument::Always,
        };
        let width = if is_terminal { dormouse_terminal::style::width() } else { None };
        let columns = || self.columns(&files, selection);
        let is_within = self.during.is_some();
        let mut printer = Printer::new(format, clock, width, has_color, self.fields.clone(), is_within, columns);
        if !self.follow && (is_within || format == Format::People) {
            printer = printer.with_last_names(files.state().writers);
        }
        // Classes of the session's state events are left out.
        let classes = files.traces().flat_map(ClassRef::all);
        let classes = classes.filter(|class| !class.is_state() && selection.may_want(class));
        printer.expect(classes.map(|class| class.class.full_name.as_str()));
        let is_paged = is_terminal && !self.no_pager && !self.follow;
        let mut sink = Sink::new(out, is_paged, format == Format::People);
        let has_clock = matches!(format, Format::People | Format::Babeltrace);
        zero_ns.filter(|_| has_clock).map(zero_line).into_iter().for_each(|line| sink.say(line));
        if let Some(during) = &self.during {
            let result = self.print_during(during, &files, (format, has_color), &mut printer, &mut sink);
            sink.finish();
            return result;
        }
        if self.follow {
            let bounds = reading.bounds().clone();
            let code = self.print_following(files, bounds, &mut printer, &mut sink)?;
            return Ok(Printed { is_damaged: code != 0, events: 0 });
        }
        let is_simple = format == Format::Babeltrace && !self.reverse && self.tail.is_none();
        let result = std::thread::scope(|scope| {
            let prepare = move || {
                let mut formatter = Formatter::new(clock, utc_offset());
                move |block: &Block<'_>, last_ns: Option<i64>, text: &mut Buffer| {
                    text.clear();
                    formatter.block(block, last_ns, text);
                }
            };
            let parallel = if is_simple { ParallelFormatter::start(scope, prepare) } else { None };
            self.print(&files, reading, &mut printer, parallel, &mut sink)
        });
        sink.finish();
        result
    }

    fn print<'f>(
        &self,
        files: &'f TraceFiles,
        mut reading: Reading<'f>,
        printer: &mut Printer,
        mut parallel: Option<ParallelFormatter<'f, Buffer>>,
        sink: &mut Sink<'_>,
    ) -> anyhow::Result<Printed> {
        let order = LineOrder::new(self.reverse, if self.reverse { self.tail_count() } else { self.tail });
        let mut order = order.context("cannot create the temporary file of --reverse")?;
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
            if let Some(parallel) = parallel.as_mut().filter(|_| is_all) {
                while parallel.fill(&mut reading) {
                    progress.show(&reading);
                    parallel.hand_over(|text| sink.write(text.as_bytes()));
                    if sink.is_over() {
                        break;
                    }
                }
            }
            let mut is_parallel = false;
            match reading.next_item() {
                None => break,
                Some(Item::Wanted(event, writers)) => {
                    left -= 1;
                    shown += 1;
                    last_ns = event.time_ns.or(last_ns);
                    is_parallel = parallel.is_some();
                    if !is_parallel {
                        let (begin, ns) = (text.len(), event.time_ns);
                        printer.event(&event, writers, &mut text);
                        let taken = order.take(&mut text, begin, ns);
                        taken.context("cannot write to the temporary file of --reverse")?;
                    }
                }
                Some(Item::Other(_)) => {}
                // With `--tail`, the sum of lost events is printed at the end.
                Some(Item::Notice(Notice { problem: Problem::Discarded { .. }, .. })) if self.tail.is_some() => {}
                Some(Item::Notice(notice)) => {
                    // Events before the notice are printed before it.
                    parallel.iter_mut().for_each(|parallel| parallel.finish(|text| sink.write(text.as_bytes())));
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
            if let Some(parallel) = parallel.as_mut().filter(|_| is_parallel) {
                parallel.take(&reading, |text| sink.write(text.as_bytes()));
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
        parallel.iter_mut().for_each(|parallel| parallel.finish(|text| sink.write(text.as_bytes())));
        sink.write(&text);
        if let Some(ns) = last_ns.filter(|_| left == 0) {
            reading.ends_with(ns);
        }
        if let Some(ns) = order.first_ns() {
            reading.begins_with(ns);
        }
        let finished = order.finish(|line| {
            sink.write(line);
            !sink.is_over()
        });
        finished.context("cannot read the temporary file of --reverse")?;
        let missing = if is_all { reading.missing() } else { Vec::new() };
        missing.iter().for_each(|line| sink.say(format!("warning: {line}")));
        let summary = reading.finish(is_all);
        summary.losses.into_iter().for_each(|line| sink.say(line));
        Ok(Printed { is_damaged: !summary.warnings.is_empty(), events: shown })
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
            bail!("--fields {wanted}: no event of this trace has that field; {}", instead(&[wanted], &fields));
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
            let members = class.class.members();
            let is_count = |name: &str| members.iter().any(|member| member.is_count && member.name == name);
            for name in class.class.member_names().filter(|name| !is_count(name)) {
                if !columns.iter().any(|known| known == name) {
                    columns.push(name.to_string());
                }
            }
        }
        columns
    }
}

//! `dormouse clocks`: the offsets between the clocks of several hosts, and their errors.

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use dormouse_analysis::clocks::{Corrected, File, MessageClasses, Messages, Stored, Unfit, name, uuid};
use dormouse_ctf::{Selection, Trace};
use dormouse_reader::{Bounds, Item, Reading, TraceFiles};
use dormouse_terminal::{Output, say};

use crate::progress::Progress;
use crate::stats::parse_pair;
use crate::target::Target;

/// Find the offsets between the clocks of several hosts, from messages that they exchanged
///
/// A message is never received before it is sent. So each message bounds one host's clock relative to the other's. Of all clocks of constant drift that
/// no message contradicts, the one in the middle is the result, and the distance to the farthest is its error. Clocks are corrected to that of the
/// first trace. A host that exchanged no messages with it is corrected by way of other hosts.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct Clocks {
    /// Traces of several hosts, first the one whose clock stays: trace directories, directories that contain traces, or archives of these
    #[arg(required = true, value_name = "TRACE")]
    dirs: Vec<PathBuf>,
    /// Patterns of the event classes that record the sending and the receipt of a message
    #[arg(long, value_name = "SEND..RECEIVE", value_parser = parse_pair)]
    messages: (String, String),
    /// Fields that both events of a message have, and whose values identify the message
    #[arg(long, value_name = "FIELD", value_delimiter = ',', required = true)]
    key: Vec<String>,
    /// Write the corrections to FILE.json, for --clocks of other commands
    #[arg(short, long, value_name = "FILE.json")]
    output: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  dormouse clocks web db --messages msg:sent..msg:received --key id -o clocks.json
  dormouse view web db --clocks clocks.json
  dormouse stats web db --clocks clocks.json --latency msg:sent..msg:received --key id

FILE.json has `clocks`, an array of objects: `trace` (the UUID in its metadata), `at_ns` (a time of the trace's own clock, nanoseconds since \
the epoch), `offset_ns` (the correction at that time, which is added), `drift` (the change of the correction each nanosecond) and `error_ns` (the \
largest error of a corrected time). Offsets that PTP or NTP report can be written in the same form and given to --clocks.

Exit code: 0; 1 if a trace cannot be corrected, or is damaged; 2 if one cannot be read.";

impl Clocks {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let files = TraceFiles::open_all(self.dirs.iter().map(PathBuf::as_path))?;
        if files.described().len() < 2 {
            bail!("clocks are compared between traces of at least two hosts; name another trace as well");
        }
        let (send, receive) = self.messages.clone();
        let selection = Selection::new(vec![send.clone(), receive.clone()], Vec::new(), files.traces())?;
        let traces: Vec<&Trace> = files.described().iter().collect();
        let classes = MessageClasses { send, receive, key: self.key.clone() };
        let mut messages = Messages::new(classes, &traces).map_err(anyhow::Error::msg)?;
        let trace_by_stream: Vec<usize> = files.readers().map(|(trace, _)| trace).collect();
        let mut reading = Reading::new(&files, selection, Bounds::new(&files, (i64::MIN, i64::MAX), None, None));
        let mut progress = Progress::of(&reading, true);
        while let Some(item) = reading.next_item() {
            match item {
                Item::Wanted(event, _) => messages.event(trace_by_stream[event.stream], &event, true),
                Item::Other(event) => messages.event(trace_by_stream[event.stream], &event, false),
                Item::Notice(_) => {}
            }
            progress.step(&reading);
        }
        drop(progress);
        let summary = reading.finish(true);
        summary.lines().for_each(say);
        let found = messages.corrections(files.described().len());
        if messages.not_followed > 0 {
            say(format_args!(
                "{} events of messages were left out: too many messages were open at once",
                messages.not_followed
            ));
        }
        let stored = self.stored(files.described(), &found)?;
        if let Some(path) = &self.output {
            let mut target = Target::open(path, true, out)?;
            serde_json::to_writer_pretty(target.output(), &File { clocks: stored.clone() })?;
            target.finish()?;
        }
        if self.json {
            out.json(&File { clocks: stored })?;
        } else {
            self.print(files.described(), &found, out)?;
        }
        let is_whole = found.iter().all(Result::is_ok) && summary.warnings.is_empty();
        Ok((!is_whole).into())
    }

    fn stored(&self, traces: &[Trace], found: &[Result<Corrected, Unfit>]) -> anyhow::Result<Vec<Stored>> {
        let mut stored = Vec::new();
        for Corrected { trace, correction, error_ns, .. } in found.iter().flatten() {
            let Some(trace) = uuid(&traces[*trace]) else {
                bail!("{} has no UUID, by which the file of corrections names a trace", name(&traces[*trace]));
            };
            stored.push(Stored::new(trace, correction, *error_ns));
        }
        Ok(stored)
    }

    fn print(&self, traces: &[Trace], found: &[Result<Corrected, Unfit>], out: &mut Output) -> anyhow::Result<()> {
        if let Some(first) = traces.first() {
            writeln!(out, "{}: reference clock, not corrected", name(first))?;
        }
        for (trace, result) in traces.iter().skip(1).zip(found) {
            let name_of = name(trace);
            match result {
                Err(why) => writeln!(out, "{name_of}: not corrected: it {why}")?,
                Ok(Corrected { messages: [to, from], beside, correction, error_ns, .. }) => writeln!(
                    out,
                    "{name_of}: corrected by {:.9} s, and by {:.3} us more each second; error at most {:.3} us, from {to} messages from {} and {from} to it",
                    correction.offset_ns as f64 / 1e9,
                    correction.drift() * 1e6,
                    *error_ns as f64 / 1e3,
                    name(&traces[*beside]),
                )?,
            }
        }
        Ok(())
    }
}

//! `--during`: slices, each with the events that belong to it.

use anyhow::bail;
use dormouse_abi::class::matches;
use dormouse_analysis::during::{Asked, Chooser, Contents, Slice, Windows};
use dormouse_analysis::timeline::{GivenPair, Options};
use dormouse_ctf::{PairEnd, Selection, Trace, Writers};
use dormouse_print::{Look, SliceEnd, SliceHead, Within, pair_fields};
use dormouse_reader::{Bounds, Item, Reading, TraceFiles};

use super::printer::{Printer, utc_offset, writer_of};
use super::sink::Sink;
use super::{CHUNK_BYTES, Format, Printed, View};
use crate::pairing::{SURVEY_BYTES, survey};
use crate::progress::Progress;
use crate::selection::zero_ns;

/// The traces, and the pairing of all their slices.
struct Read<'f> {
    files: &'f TraceFiles,
    traces: Vec<&'f Trace>,
    streams: Vec<(&'f str, usize)>,
    /// Last names of threads.
    last: Writers,
    /// Keys of the slices that the names of the classes define.
    options: Options,
}

impl View {
    pub(super) fn print_during(
        &self,
        name: &str,
        files: &TraceFiles,
        (format, has_color): (Format, bool),
        printer: &mut Printer,
        sink: &mut Sink<'_>,
    ) -> anyhow::Result<Printed> {
        let pairs: Vec<GivenPair> =
            if name.contains("..") { vec![name.parse().map_err(anyhow::Error::msg)?] } else { Vec::new() };
        if pairs.is_empty() && !self.key.is_empty() {
            bail!("--key is for --during BEGIN..END; slices that are named by `{name}` have their own");
        }
        let found = |options: &Options, classes: Vec<String>| {
            survey(options, files, self.selection.reading_of(files, classes)?, SURVEY_BYTES)
        };
        let mut options = Options { has_calls: true, ..Options::default() };
        options.found = found(&options, Vec::new())?;
        let name = pairs.first().map_or(name, |pair| &pair.name).to_string();
        let asked = Asked {
            name,
            conditions: self.selection.conditions(Some(files))?,
            slowest: self.slowest.map(|max| max as usize),
        };
        let of_asked = match pairs.first() {
            None => options.clone(),
            Some(GivenPair { begin, end, .. }) => {
                let classes = vec![begin.clone(), end.clone()];
                let given = Options { pairs, key: self.key.clone(), ..Options::default() };
                let found = if self.key.is_empty() { found(&given, classes)? } else { Vec::new() };
                Options { found, ..given }
            }
        };
        let traces: Vec<&Trace> = files.described().iter().collect();
        let streams: Vec<(&str, usize)> = files.names().zip(files.readers().map(|(trace, _)| trace)).collect();
        let last = files.state().writers;
        let mut read = Read { files, traces, streams, last, options };
        of_asked
            .found
            .iter()
            .filter(|found| found.fields.is_empty() && matches(&asked.name, &found.name))
            .for_each(|found| sink.say(format!("note: {}", found.text())));

        let mut reading = self.selection.reading_of(files, Vec::new())?;
        files.left_out.iter().for_each(|line| sink.say(format!("warning: {line}")));
        self.verbose.notes(files, std::mem::take(&mut reading.index_notes)).for_each(|line| sink.say(line));
        let chooser = Chooser::new(&asked, &of_asked, &read.traces, read.streams.iter().copied());
        let mut chooser = chooser.map_err(anyhow::Error::msg)?;
        let mut progress = Progress::of(&reading, true);
        while let Some(item) = reading.next_item() {
            match item {
                Item::Wanted(event, _) => chooser.event(&event),
                Item::Other(event) => chooser.pass(&event),
                Item::Notice(notice) => {
                    chooser.notice(&notice, reading.time_ns(notice.stream));
                    let line = printer.warning(&notice, reading.stream_name(notice.stream));
                    progress.hidden(|| sink.say(line));
                }
            }
            progress.step(&reading);
        }
        drop(progress);
        let chosen = chooser.finish();
        let zero_ns = zero_ns(files);
        let bold = if has_color { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        let look =
            Look { marks: bold, zero: zero_ns.map(|ns| (ns, "")), utc_offset_s: &utc_offset(), view: "dormouse view" };
        let (mut text, mut events) = (Vec::new(), 0);
        printer.begin(&mut text);
        for (slice, number) in chosen.slices.iter().zip(1..) {
            if format == Format::People && number > 1 {
                text.push(b'\n');
            }
            events += self.print_slice(&mut read, slice, number, (format, look), printer, &mut text, sink)?;
            if sink.is_over() {
                break;
            }
        }
        sink.write(&text);
        sink.flush();
        let kept = chosen.slices.len() as u64;
        match self.slowest {
            _ if chosen.count == 0 => sink.say("no slice meets the conditions".into()),
            None if kept < chosen.count => {
                sink.say(format!("the first {kept} of {} slices; --slowest and --where choose others", chosen.count))
            }
            _ => {}
        }
        if chosen.across_losses > 0 {
            let count = chosen.across_losses;
            sink.say(format!("left out, because events were lost between begin and end: {count} slices"));
        }
        let missing = reading.missing();
        missing.iter().for_each(|line| sink.say(format!("warning: {line}")));
        let summary = reading.finish(true);
        summary.losses.into_iter().for_each(|line| sink.say(line));
        Ok(Printed { is_damaged: !summary.warnings.is_empty(), events })
    }

    /// Prints a slice. Returns the number of its events.
    #[allow(clippy::too_many_arguments)]
    fn print_slice(
        &self,
        read: &mut Read<'_>,
        slice: &Slice,
        number: u64,
        (format, look): (Format, Look<'_>),
        printer: &mut Printer,
        text: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> anyhow::Result<u64> {
        let Read { files, traces, streams, last, options } = read;
        let reading = || {
            let bounds = Bounds::new(files, (slice.begin_ns, slice.end_ns()), None, None);
            Reading::new(files, Selection::unchecked(Vec::new(), Vec::new()), bounds)
        };
        let (mut windows, mut reader) = Windows::new(slice, options, traces, streams).map_err(anyhow::Error::msg)?;
        let (mut first, mut ends) = (reading(), [SliceEnd::default(), SliceEnd::default()]);
        while let Some(item) = first.next_item() {
            let Item::Wanted(event, writers) = item else { continue };
            if let Some(end) = windows.event(&event, &mut reader) {
                let writer = writer_of(&event, writers, Some(last));
                ends[usize::from(end == PairEnd::End)] = SliceEnd::new(&writer, pair_fields(&event));
            }
        }
        let worked = windows.finish();
        let head = SliceHead { number, slice, worked: &worked, ends };
        match format {
            Format::People => head.write(text, look)?,
            Format::Json => text.extend_from_slice(format!("{}\n", head.json()).as_bytes()),
            _ => {}
        }
        let mut contents = Contents::new(slice, worked, options, traces, streams).map_err(anyhow::Error::msg)?;
        let (mut second, mut events) = (reading(), 0);
        while let Some(item) = second.next_item() {
            let Item::Wanted(event, writers) = item else { continue };
            let Some(part) = contents.event(&event) else { continue };
            let patterns = &self.selection.events;
            if !patterns.is_empty() && !patterns.iter().any(|pattern| matches(pattern, &event.class.full_name)) {
                continue;
            }
            events += 1;
            let ended = part.ended.as_ref().map(|(name, ns)| (name.as_str(), *ns));
            let within = Within { slice: number, since_ns: part.since_ns, depth: part.depth, ended };
            printer.event_within(&event, writers, &within, text);
            if text.len() >= CHUNK_BYTES {
                sink.write(text);
                text.clear();
                if sink.is_over() {
                    break;
                }
            }
        }
        Ok(events)
    }
}

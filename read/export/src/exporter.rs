//! Decides, event by event, what is written.

use std::io::Write;
use std::sync::Arc;

use dormouse_analysis::timeline::{NameText, Options, Timeline, Totals};
use dormouse_ctf::time::utc_date;
use dormouse_ctf::{Event, Notice, Problem, Trace};

use crate::encoder::Encoder;
use crate::fields::Fields;
use crate::folded::Folded;
use crate::op::{Batch, Recorder, Recording};
use crate::otlp::Otlp;
use crate::perfetto::Known;

/// The format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Perfetto's protocol buffers.
    Perfetto,
    /// JSON of Chrome's trace event format.
    Chrome,
    /// Folded stacks, the input of flame graphs.
    Folded,
    /// Spans of OpenTelemetry.
    Otlp,
}

/// Decides what is written of the events of traces. The caller must show it all events in the order of time, and each
/// notice at its place among them.
#[derive(Debug)]
pub struct Exporter {
    timeline: Timeline<()>,
    output: Output,
    /// Earliest time that the format cannot hold.
    not_held_ns: Option<i64>,
}

#[derive(Debug)]
enum Output {
    Perfetto(Recorder, Arc<Known>),
    Chrome(Recorder, Arc<Vec<NameText>>, i64),
    Folded(Folded),
    Otlp(Box<Otlp>),
}

/// Calls a method of the timeline with the sink of the format.
macro_rules! with_sink {
    ($self:ident, $batch:ident, |$timeline:ident, $sink:ident| $call:expr) => {{
        let Exporter { timeline: $timeline, output, .. } = $self;
        match output {
            Output::Folded(folded) => {
                let $sink = folded;
                $call;
                false
            }
            Output::Otlp(otlp) => {
                let $sink = &mut **otlp;
                $call;
                if otlp.is_full() {
                    otlp.write(&mut $batch.out);
                }
                false
            }
            Output::Perfetto(recorder, _) | Output::Chrome(recorder, ..) => {
                let event = $batch.block.len() as u32;
                let mut recording =
                    Recording { recorder, ops: &mut $batch.ops, more: &mut $batch.more, event, is_kept: false };
                let $sink = &mut recording;
                $call;
                recording.is_kept
            }
        }
    }};
}

impl Exporter {
    /// Creates an exporter. `streams`: the name of each stream, and the index of its trace; `base_ns`: base of times in
    /// formats without absolute times, in nanoseconds since the epoch.
    ///
    /// # Errors
    /// The traces lack something that the options name; the text names the nearest.
    pub fn new<'s>(
        format: Format,
        options: &Options,
        traces: &[&Trace],
        streams: impl IntoIterator<Item = (&'s str, usize)>,
        base_ns: i64,
    ) -> Result<Exporter, String> {
        let timeline = Timeline::new(options, traces, streams)?;
        let names = timeline.names().to_vec();
        let output = match format {
            Format::Perfetto => {
                // Corrected times are not those of the trace's clock.
                let first = traces.first().filter(|trace| trace.correction.is_none());
                let clock = first.and_then(|trace| trace.own.as_ref()).map(|own| own.options.clock.clone());
                Output::Perfetto(Recorder::default(), Arc::new(Known::new(names, Fields::of(traces), clock)))
            }
            Format::Chrome => Output::Chrome(Recorder::default(), Arc::new(names), base_ns),
            Format::Folded => Output::Folded(Folded::new(usize::MAX)),
            Format::Otlp => {
                let host = traces.iter().find_map(|trace| trace.class.env_text("hostname")).map(String::from);
                Output::Otlp(Box::new(Otlp::new(names, Fields::of(traces), host, base_ns)))
            }
        };
        Ok(Exporter { timeline, output, not_held_ns: None })
    }

    /// Limits the memory of open slices, tracks and stacks to `bytes` ([`Timeline::limit`]). The totals count anything
    /// beyond. Call it before the first event.
    pub fn limit(&mut self, bytes: usize) {
        self.timeline.limit(bytes / 2);
        match &mut self.output {
            Output::Folded(folded) => *folded = Folded::new(bytes / 2),
            Output::Otlp(otlp) => otlp.limit(bytes / 2),
            Output::Perfetto(..) | Output::Chrome(..) => {}
        }
    }

    /// Notes a time that is, or could be, written.
    #[inline]
    fn note_time(&mut self, ns: Option<i64>) {
        if let Some(ns @ ..0) = ns
            && matches!(self.output, Output::Perfetto(..) | Output::Otlp(_))
        {
            self.not_held_ns = Some(self.not_held_ns.unwrap_or(ns).min(ns));
        }
    }

    /// Returns why the events so far cannot be written; `None` if they can.
    pub fn refusal(&self) -> Option<String> {
        let ns = self.not_held_ns?;
        let format = if matches!(self.output, Output::Otlp(_)) { "OTLP" } else { "Perfetto's format" };
        let date = utc_date(ns.div_euclid(1_000_000_000));
        Some(format!(
            "{format} holds no time before 1970, and there is one of {date} ({ns} ns since 1970); --since 1970-01-01T00:00:00Z leaves it out, --to chrome and --to json hold it"
        ))
    }

    /// Returns an encoder for its batches; `None` if there is nothing to encode: stacks are written at the end
    /// ([`Exporter::finish`]), spans when they end.
    pub fn encoder(&self) -> Option<Encoder> {
        match &self.output {
            Output::Perfetto(_, known) => Some(Encoder::perfetto(known)),
            Output::Chrome(_, names, base_ns) => Some(Encoder::chrome(names, *base_ns)),
            Output::Folded(_) | Output::Otlp(_) => None,
        }
    }

    /// Takes the next event. Returns true if it must be kept as the next event in the batch's block.
    #[inline]
    pub fn event(&mut self, event: &Event<'_>, batch: &mut Batch<'_>) -> bool {
        self.note_time(event.time_ns);
        with_sink!(self, batch, |timeline, sink| timeline.event(event, sink))
    }

    /// Takes the next event, which was kept as the last event in the batch's block.
    #[inline]
    pub fn take(&mut self, batch: &mut Batch<'_>) {
        let Some(index) = batch.block.len().checked_sub(1) else { return };
        self.note_time(batch.block.time_ns(index));
        let Exporter { timeline, output, .. } = self;
        let Batch { block, ops, more, .. } = &mut *batch;
        if let (Output::Perfetto(recorder, _) | Output::Chrome(recorder, ..), Some(event)) = (output, block.get(index))
        {
            let mut recording = Recording { recorder, ops, more, event: index as u32, is_kept: false };
            if timeline.quick(&event, &mut recording) {
                return;
            }
        }
        self.take_slowly(index, batch);
    }

    #[inline(never)]
    fn take_slowly(&mut self, index: usize, batch: &mut Batch<'_>) {
        let Exporter { timeline, output, .. } = self;
        let Batch { block, ops, more, out } = batch;
        let Some(event) = block.get(index) else { return };
        match output {
            Output::Folded(folded) => timeline.event(&event, folded),
            Output::Otlp(otlp) => {
                timeline.event(&event, &mut **otlp);
                if otlp.is_full() {
                    otlp.write(out);
                }
            }
            Output::Perfetto(recorder, _) | Output::Chrome(recorder, ..) => {
                let mut recording = Recording { recorder, ops, more, event: index as u32, is_kept: false };
                timeline.event(&event, &mut recording);
            }
        }
    }

    /// Takes the next event if it was not selected.
    pub fn pass(&mut self, event: &Event<'_>, batch: &mut Batch<'_>) {
        with_sink!(self, batch, |timeline, sink| timeline.pass(event, sink));
    }

    /// Takes a notice. `time_ns`: the time that its stream has reached.
    pub fn notice(&mut self, notice: &Notice, time_ns: Option<i64>, batch: &mut Batch<'_>) {
        if let Problem::Discarded { begin_ns, .. } = notice.problem {
            self.note_time(begin_ns);
        }
        with_sink!(self, batch, |timeline, sink| timeline.notice(notice, time_ns, sink));
    }

    /// Ends the export. Remaining data goes into the last batch or into `out`.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn finish(self, batch: &mut Batch<'_>, out: &mut impl Write) -> std::io::Result<Totals> {
        let Exporter { timeline, output, .. } = self;
        match output {
            Output::Folded(mut folded) => {
                let names = timeline.names().to_vec();
                let totals = timeline.finish(&mut folded);
                folded.write(&names, out)?;
                let Folded { slices_cut, slices_without_stack, .. } = folded;
                Ok(Totals { slices_cut, slices_without_stack, ..totals })
            }
            Output::Otlp(mut otlp) => {
                let totals = timeline.finish(&mut *otlp);
                otlp.write(&mut batch.out);
                Ok(Totals { events_outside: otlp.events_outside, ..totals })
            }
            Output::Perfetto(mut recorder, _) | Output::Chrome(mut recorder, ..) => {
                let event = batch.block.len() as u32;
                let Batch { ops, more, .. } = batch;
                let mut recording = Recording { recorder: &mut recorder, ops, more, event, is_kept: false };
                let totals = timeline.finish(&mut recording);
                Ok(Totals { slices_cut: recorder.slices_cut, ..totals })
            }
        }
    }
}

//! Collects the content of state streams, and the results for parts of the other streams, which several threads can
//! read.

use std::collections::BTreeMap;

use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_format::loss::{DAMAGED, NOT_CLOSED};
use dormouse_format::{Refusal, StateRecord, StatedLosses, StreamTotals};

use super::missing::of_totals;
use super::programs;
use super::tally::{Facts, Sampled, Tally};
use super::{ClassStats, CpuStats, LossPlaces, LostStats, Span, Stats, UnrecordedStats};
use crate::processes::{History, Processes};
use crate::select::RuleTimes;
use crate::stream::{Notice, Problem, Source, StreamReader, TraceRef};

/// Content of the state streams of traces. It assigns events to processes and combines the counts.
pub struct Collector<'a> {
    traces: Vec<TraceRef<'a>>,
    streams: Vec<Stream<'a>>,
    /// Times of the session owner's records, by trace.
    state_times: Vec<Vec<u64>>,
    /// Warnings with their positions in time order, see [`Collector::place`].
    warnings: Vec<((usize, usize), String)>,
    is_damaged: bool,
    state_events: u64,
    losses: StatedLosses,
    places: LossPlaces,
    lost: BTreeMap<String, u64>,
    /// Numbers of events that rules rejected, and that sampling left out.
    unrecorded: BTreeMap<String, [u64; 3]>,
    classes_refused: Vec<Refusal>,
    processes: Processes,
    history: History,
    /// Rules, by trace.
    rules: Vec<RuleTimes>,
    has_processes: bool,
}

/// Ticks, and nanoseconds since the epoch.
type Time = (u64, Option<i64>);

/// A stream and its results.
struct Stream<'a> {
    name: &'a str,
    trace: usize,
    size_bytes: u64,
    is_state: bool,
    totals: Option<StreamTotals>,
    /// Time of the last event so far.
    last: Option<Time>,
    /// Whether the rest of the stream cannot be read.
    is_over: bool,
}

/// Result for a part of a stream, besides the sums.
#[derive(Debug, Default)]
pub struct Part {
    /// Notices, each with the time of the previous event and the current time of the stream.
    notices: Vec<(Notice, Option<Time>, Option<i64>)>,
    /// Times of the first and the last event, in ticks.
    ticks: Option<(u64, u64)>,
    span_ns: Option<(i64, i64)>,
    totals: Option<StreamTotals>,
    is_over: bool,
}

impl std::fmt::Debug for Collector<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}

impl<'a> Collector<'a> {
    /// Reads the state streams among these streams. Each stream has the index of its trace, a name for warnings, and an
    /// unread reader.
    pub fn new<S: Source>(
        traces: &[TraceRef<'a>],
        streams: impl IntoIterator<Item = (usize, &'a str, StreamReader<'a, S>)>,
    ) -> Collector<'a> {
        let mut collector = Collector {
            traces: traces.to_vec(),
            streams: Vec::new(),
            state_times: vec![Vec::new(); traces.len()],
            warnings: Vec::new(),
            is_damaged: false,
            state_events: 0,
            losses: StatedLosses::default(),
            places: LossPlaces::default(),
            lost: BTreeMap::new(),
            unrecorded: BTreeMap::new(),
            classes_refused: Vec::new(),
            processes: Processes::with_past(usize::MAX),
            history: History::default(),
            rules: vec![RuleTimes::default(); traces.len()],
            has_processes: false,
        };
        let mut of_state: Vec<Vec<(usize, StreamReader<'a, S>)>> = traces.iter().map(|_| Vec::new()).collect();
        for (index, (trace, name, mut reader)) in streams.into_iter().enumerate() {
            collector.has_processes |= reader.has_who();
            let mut notices = Vec::new();
            let is_state = reader.trace().is_own() && reader.is_state(|notice| notices.push(notice));
            let size_bytes = reader.size_bytes();
            collector.streams.push(Stream {
                name,
                trace,
                size_bytes,
                is_state,
                totals: None,
                last: None,
                is_over: false,
            });
            if is_state {
                notices.iter().for_each(|notice| collector.note(index, notice, None, (None, None)));
                of_state[trace].push((index, reader));
            }
        }
        of_state.into_iter().enumerate().for_each(|(trace, streams)| collector.read_state(trace, streams));
        collector.history = collector.processes.history();
        collector
    }

    /// Returns the indices of the streams that must be counted.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<'_, 'a> {
        (0..self.streams.len()).filter(|index| !self.streams[*index].is_state)
    }

    /// Processes the records of the session owner in time order.
    fn read_state<S: Source>(&mut self, trace: usize, mut streams: Vec<(usize, StreamReader<'a, S>)>) {
        loop {
            let times = streams.iter_mut().enumerate().filter_map(|(at, (index, reader))| {
                Some((reader.look_ahead(|notice| self.note(*index, &notice, Some(u64::MAX), (None, None)))?, at))
            });
            let Some((time, at)) = times.min() else { break };
            self.state_times[trace].push(time);
            let (index, reader) = &mut streams[at];
            self.state_record(*index, time, reader);
        }
        for (index, reader) in streams {
            self.streams[index].totals = reader.totals();
        }
    }

    /// Returns the sort position of a message about a stream after an event at `before`: after the records that the
    /// session owner had written until then. `u64::MAX` means after all of its records so far.
    fn place(&self, trace: usize, before: Option<u64>) -> (usize, usize) {
        let said = before.map_or(0, |before| self.state_times[trace].partition_point(|time| *time <= before) + 1);
        (trace, said)
    }

    /// Records a notice. `before` is the time of the previous event in ticks; `around_ns` holds the same time and the
    /// current time of the stream, in nanoseconds.
    fn note(&mut self, stream: usize, notice: &Notice, before: Option<u64>, around_ns: (Option<i64>, Option<i64>)) {
        let Stream { name, trace, .. } = self.streams[stream];
        self.places.note(name, notice, around_ns);
        // The reader counts discarded events.
        if !matches!(notice.problem, Problem::Discarded { .. }) {
            self.warnings.push((self.place(trace, before), format!("{name}: {notice}")));
            self.is_damaged = true;
        }
    }

    /// Counts the events of a part of a stream.
    pub fn count<S: Source>(&self, tally: &mut Tally<'a>, mut reader: StreamReader<'a, S>) -> Part {
        let index = self.streams[reader.stream()].trace;
        let rules = Some(&self.rules[index]).filter(|rules| rules.have_samples());
        let facts = Facts { index, trace: self.traces[index], history: &self.history, rules };
        let (mut part, end_bytes) = (Part::default(), reader.end_bytes());
        loop {
            if let Some((plan, cpu_id)) = reader.packet_at_hand() {
                let mut packet = tally.packet(plan, facts);
                let mut ticks = part.ticks;
                reader.pass_records_at_hand(|passed, memory| {
                    packet.pass(passed, memory);
                    ticks = Some((ticks.map_or(passed.timestamp, |(first, _)| first), passed.timestamp));
                    true
                });
                part.ticks = ticks;
                if packet.events > 0 {
                    let events = packet.events;
                    *tally.cpus.entry(cpu_id).or_default() += events;
                }
            }
            // The rest needs the slow path: the next packet, the next window, or damage.
            match reader.count_next() {
                Some(Ok(counted)) => {
                    let first = part.ticks.map_or(counted.timestamp, |(first, _)| first);
                    part.ticks = Some((first, counted.timestamp));
                    let who = reader.who(&counted);
                    tally.event(&counted, who, || reader.chosen_fields(), facts);
                }
                Some(Err(notice)) => {
                    let before = part.ticks.map(|(_, last)| (last, reader.epoch_ns(last)));
                    part.notices.push((notice, before, reader.time_ns()));
                }
                None => break,
            }
        }
        tally.end_part();
        let ns = |ticks| reader.epoch_ns(ticks);
        part.span_ns = part.ticks.and_then(|(first, last)| Some((ns(first)?, ns(last)?)));
        part.totals = reader.totals();
        part.is_over = reader.end_bytes() < end_bytes;
        part
    }

    /// Adds the result for a part. The parts of a stream must be added in order.
    fn take(&mut self, index: usize, part: Part) {
        if self.streams[index].is_over {
            return;
        }
        for (notice, before, now_ns) in part.notices {
            let before = before.or(self.streams[index].last);
            self.note(index, &notice, before.map(|(ticks, _)| ticks), (before.and_then(|(_, ns)| ns), now_ns));
        }
        let stream = &mut self.streams[index];
        if let Some((_, ticks)) = part.ticks {
            stream.last = Some((ticks, part.span_ns.map(|(_, last)| last)));
        }
        stream.is_over = part.is_over;
        if let Some(totals) = part.totals {
            let events = totals.events + stream.totals.map_or(0, |before| before.events);
            stream.totals = Some(StreamTotals { events, ..totals });
        }
    }

    /// Processes the session owner's record at the current position of a stream.
    fn state_record<S: Source>(&mut self, index: usize, ticks: u64, stream: &mut StreamReader<'a, S>) {
        if !matches!(stream.count_next(), Some(Ok(_))) {
            return;
        }
        let Stream { name, trace, .. } = self.streams[index];
        let place = self.place(trace, Some(u64::MAX));
        let Some(event) = stream.event() else { return };
        self.state_events += 1;
        let Some(record) = event.state_record() else { return };
        self.losses.note(&record);
        self.processes.note(trace, ticks, &record);
        match record {
            StateRecord::Lost { reason, count } => {
                self.warnings.push((place, format!("{name}: {count} events lost: {reason}")));
            }
            StateRecord::LossPossible { cause, count } => {
                self.warnings.push((place, format!("{name}: an unknown number of events lost: {cause} ({count})")));
            }
            StateRecord::LostClass { class, count } => {
                let lost = self.lost.entry(class.into()).or_default();
                *lost = lost.saturating_add(count);
            }
            StateRecord::Unrecorded { class, rejected, sampled_out } => {
                let sums = self.unrecorded.entry(class.into()).or_default();
                sums[0] = sums[0].saturating_add(rejected);
                sums[1] = sums[1].saturating_add(sampled_out);
            }
            StateRecord::NotKept { class, count } => {
                let sums = self.unrecorded.entry(class.into()).or_default();
                sums[2] = sums[2].saturating_add(count);
            }
            StateRecord::Rules { rules } => self.rules[trace].note(ticks, rules),
            StateRecord::ClassRefused { class, program, reason } => self.classes_refused.push(Refusal {
                name: class.into(),
                program: program.into(),
                reason: reason.into(),
            }),
            StateRecord::Salvage { missing, .. } if !missing.is_empty() => {
                self.warnings.push((place, format!("{name}: salvaged, but not whole: {missing}")));
            }
            _ => {}
        }
    }

    /// Combines the counts. `parts` must have the parts of each stream in order.
    pub fn finish(mut self, tally: Tally<'a>, parts: Vec<(usize, Part)>) -> Stats {
        let mut span_ns: Option<(i64, i64)> = None;
        for (index, part) in parts {
            if let Some((begin, end)) = part.span_ns {
                let span = span_ns.unwrap_or((begin, end));
                span_ns = Some((span.0.min(begin), span.1.max(end)));
            }
            self.take(index, part);
        }
        // The sort is stable: messages at one position stay in the order of the streams.
        self.warnings.sort_by_key(|(place, _)| *place);
        let mut classes: BTreeMap<(u64, &str), (u64, u64, Sampled)> = BTreeMap::new();
        for (plan, counts) in &tally.classes {
            for (index, (count, bytes)) in counts.iter().enumerate().filter(|(_, (count, _))| *count > 0) {
                let class = plan.class_at(index);
                let (events, size_bytes, sampled) = classes.entry((class.id, &class.full_name)).or_default();
                (*events, *size_bytes) = (*events + count, *size_bytes + bytes);
                if let Some(of_class) = tally.sampled.get(&std::ptr::from_ref(class).addr()) {
                    sampled.add(of_class);
                }
            }
        }
        let row = |((id, name), (count, bytes, sampled)): ((u64, &str), (u64, u64, Sampled))| {
            let estimate = sampled.weights.estimate(count);
            ClassStats {
                name: name.into(),
                id,
                count,
                bytes,
                estimated: estimate.map(|estimate| estimate.events),
                estimated_error: estimate.and_then(|estimate| estimate.error),
                samples: sampled.samples.into_iter().collect(),
            }
        };
        let mut classes: Vec<_> = classes.into_iter().map(row).collect();
        // The sort is stable: classes with equal counts stay in the order of their ids.
        classes.sort_by_key(|class| std::cmp::Reverse(class.count));
        let mut lost_by_class: Vec<_> = self.lost.into_iter().map(|(name, count)| LostStats { name, count }).collect();
        // The sort is stable: classes with equal counts stay in the order of their names.
        lost_by_class.sort_by_key(|lost| std::cmp::Reverse(lost.count));
        let row = |(name, counts): (String, [u64; 3])| {
            let [rejected, sampled_out, not_kept] = counts;
            UnrecordedStats { name, rejected, sampled_out, not_kept }
        };
        let mut unrecorded: Vec<_> = self.unrecorded.into_iter().map(row).collect();
        // Stable too.
        unrecorded.sort_by_key(|class| std::cmp::Reverse(class.count()));
        let mut processes = programs::rows(&self.processes, &tally.rows, &tally.nameless, self.has_processes);
        if self.has_processes {
            processes.sort_by(|a, b| b.count.cmp(&a.count).then(a.vpid.cmp(&b.vpid)));
        }
        let read = self
            .streams
            .iter()
            .map(|stream| (stream.name, self.traces[stream.trace], (stream.size_bytes, stream.totals)));
        let missing = of_totals(self.traces.iter().copied(), read);
        let is_own = self.traces.iter().any(TraceRef::is_own);
        if self.is_damaged || !missing.is_empty() {
            self.losses.add(DAMAGED, 0);
        }
        let is_closed = self.traces.iter().filter_map(|trace| trace.own()).all(|metadata| metadata.totals.is_closed());
        if !is_closed {
            self.losses.add(NOT_CLOSED, 0);
        }
        let warnings = self.warnings.into_iter().map(|(_, warning)| warning).chain(missing).collect();
        let totals: Vec<StreamTotals> = self.streams.iter().filter_map(|stream| stream.totals).collect();
        let discarded = totals.iter().map(|stream| stream.events_discarded);
        let events_lost = self.losses.sum(discarded);
        let events = classes.iter().map(|class| class.count).sum();
        let span = span_ns.map(|(begin_ns, end_ns)| Span { begin_ns, end_ns, duration_ns: end_ns.abs_diff(begin_ns) });
        let seconds = span.map(|span| span.duration_ns as f64 / 1e9).filter(|seconds| *seconds > 0.0);
        Stats {
            events,
            state_events: self.state_events,
            events_lost,
            loss_places: self.places.sorted(),
            loss_possible: self.losses.uncounted,
            lost_by_class,
            unrecorded,
            classes_refused: self.classes_refused,
            packets: totals.iter().map(|stream| stream.packets).sum(),
            bytes: self.streams.iter().map(|stream| stream.size_bytes).sum(),
            threads: self.has_processes.then_some(tally.threads.len() as u64),
            span,
            events_per_s: seconds.map(|seconds| events as f64 / seconds),
            classes,
            // CPU_UNKNOWN is the largest number, so it is last.
            cpus: tally
                .cpus
                .into_iter()
                .map(|(cpu, count)| CpuStats { cpu: (cpu != CPU_UNKNOWN).then_some(cpu), count })
                .collect(),
            processes,
            is_own,
            is_closed,
            warnings,
        }
    }
}

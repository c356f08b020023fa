//! Reads the streams of a trace, and counts.

use std::collections::{BTreeMap, HashSet};

use dormouse_abi::page::CPU_UNKNOWN;

use super::processes::Processes;
use super::{ClassStats, CpuStats, LossPlaces, LostStats, Refusal, Span, Stats, missing};
use crate::loss::{DAMAGED, NOT_CLOSED, StatedLosses};
use crate::plan::StreamPlan;
use crate::state::StateRecord;
use crate::stream::{Notice, Problem, Source, StreamReader, TraceRef};
use crate::totals::StreamTotals;

/// Counts as far as it has come.
#[derive(Default)]
pub(super) struct Collector<'a> {
    warnings: Vec<String>,
    is_damaged: bool,
    state_events: u64,
    losses: StatedLosses,
    places: LossPlaces,
    lost: BTreeMap<String, u64>,
    classes_refused: Vec<Refusal>,
    /// Events and bytes, by stream class (its plan's place in memory) and index of the class.
    classes: Vec<(&'a StreamPlan, Vec<(u64, u64)>)>,
    cpus: BTreeMap<u32, u64>,
    processes: Processes,
    has_processes: bool,
    threads: HashSet<(u32, u32)>,
    span_ns: Option<(i64, i64)>,
}

impl<'a> Collector<'a> {
    /// Reads the streams of one trace. Between two records of the session owner the order of events does not count.
    pub(super) fn read<S: Source>(&mut self, streams: &mut [(&str, StreamReader<'a, S>)]) {
        for (name, stream) in streams.iter_mut() {
            stream.look_ahead(|notice| self.note(name, &notice, (None, None)));
            self.has_processes |= stream.has_who();
        }
        let is_state: Vec<bool> = streams.iter().map(|(_, stream)| stream.is_at_state()).collect();
        loop {
            let state = (0..streams.len()).filter(|index| is_state[*index]);
            let times = state.filter_map(|index| {
                let (name, stream) = &mut streams[index];
                Some((stream.look_ahead(|notice| self.note(name, &notice, (None, None)))?, index))
            });
            let next = times.min();
            let limit = next.map_or(u64::MAX, |(time, _)| time);
            let others = streams.iter_mut().zip(&is_state).filter(|(_, is_state)| !**is_state);
            others.for_each(|((name, stream), _)| self.count(name, stream, limit));
            let Some((_, index)) = next else { break };
            let (name, stream) = &mut streams[index];
            self.state_record(name, stream);
        }
    }

    /// `around_ns`: the event before, and where the stream is.
    fn note(&mut self, name: &str, notice: &Notice, around_ns: (Option<i64>, Option<i64>)) {
        self.places.note(name, notice, around_ns);
        // Counted by the reader.
        if !matches!(notice.problem, Problem::Discarded { .. }) {
            self.warnings.push(format!("{name}: {notice}"));
            self.is_damaged = true;
        }
    }

    /// Counts the events of a stream that are earlier than `limit`.
    fn count<S: Source>(&mut self, name: &str, stream: &mut StreamReader<'a, S>, limit: u64) {
        let mut counts = Counts::default();
        loop {
            match stream.count_next(limit) {
                Some(Ok(counted)) => {
                    if !counts.plan.is_some_and(|plan| std::ptr::eq(plan, counted.plan)) {
                        self.add(&mut counts, stream);
                        counts.plan = Some(counted.plan);
                    }
                    if counts.classes.len() <= counted.class {
                        counts.classes.resize(counted.class + 1, (0, 0));
                    }
                    let class = &mut counts.classes[counted.class];
                    class.0 += 1;
                    class.1 += counted.size_bytes;
                    if counts.cpu.0 != counted.cpu_id {
                        counts.pass_cpu(&mut self.cpus, counted.cpu_id);
                    }
                    counts.cpu.1 += 1;
                    counts.ticks =
                        Some((counts.ticks.map_or(counted.timestamp, |(begin, _)| begin), counted.timestamp));
                    if let Some(who) = stream.who(&counted) {
                        if counts.who != Some(who) {
                            counts.pass_who(&mut self.processes, &mut self.threads, who);
                        }
                        counts.who_count += 1;
                    }
                }
                Some(Err(notice)) => {
                    let last_ns = counts.ticks.and_then(|(_, last)| stream.epoch_ns(last));
                    self.note(name, &notice, (last_ns, stream.time_ns()));
                }
                None => break,
            }
        }
        self.add(&mut counts, stream);
    }

    fn add<S: Source>(&mut self, counts: &mut Counts<'a>, stream: &StreamReader<'a, S>) {
        let Counts { plan: Some(plan), classes, ticks, .. } = counts else { return };
        let plan: &'a StreamPlan = plan;
        let sums = match self.classes.iter_mut().find(|(known, _)| std::ptr::eq(*known, plan)) {
            Some((_, sums)) => sums,
            None => {
                self.classes.push((plan, Vec::new()));
                &mut self.classes.last_mut().expect("pushed above").1
            }
        };
        sums.resize(sums.len().max(classes.len()), (0, 0));
        for (sum, (count, bytes)) in sums.iter_mut().zip(classes.iter()) {
            sum.0 += count;
            sum.1 += bytes;
        }
        if let Some((begin, end)) = ticks
            && let (Some(begin), Some(end)) = (stream.epoch_ns(*begin), stream.epoch_ns(*end))
        {
            let span = self.span_ns.unwrap_or((begin, end));
            self.span_ns = Some((span.0.min(begin), span.1.max(end)));
        }
        counts.pass_cpu(&mut self.cpus, 0);
        counts.flush_who(&mut self.processes);
        *counts = Counts::default();
    }

    /// Takes the record of the session owner that a stream has come to.
    fn state_record<S: Source>(&mut self, name: &str, stream: &mut StreamReader<'a, S>) {
        if !matches!(stream.count_next(u64::MAX), Some(Ok(_))) {
            return;
        }
        let Some(event) = stream.event() else { return };
        self.state_events += 1;
        let record = StateRecord::decode(&event);
        record.iter().for_each(|record| self.losses.note(record));
        match record {
            Some(StateRecord::Process { process, vpid, name, program, .. }) => {
                self.processes.join(process, vpid, name, program);
            }
            Some(StateRecord::ProcessName { process, name }) => self.processes.rename(process, name),
            Some(StateRecord::Lost { reason, count }) => {
                self.warnings.push(format!("{name}: {count} events lost: {reason}"));
            }
            Some(StateRecord::LossPossible { cause, count }) => {
                self.warnings.push(format!("{name}: an unknown number of events lost: {cause} ({count})"));
            }
            Some(StateRecord::LostClass { class, count }) => {
                let lost = self.lost.entry(class.into()).or_default();
                *lost = lost.saturating_add(count);
            }
            Some(StateRecord::ClassRefused { class, program, reason }) => self.classes_refused.push(Refusal {
                name: class.into(),
                program: program.into(),
                reason: reason.into(),
            }),
            Some(StateRecord::Salvage { missing, .. }) if !missing.is_empty() => {
                self.warnings.push(format!("{name}: salvaged, but not whole: {missing}"));
            }
            _ => {}
        }
    }

    pub(super) fn finish<S: Source>(
        mut self,
        traces: &[TraceRef<'a>],
        streams: &[&(&str, StreamReader<'a, S>)],
    ) -> Stats {
        let mut classes: BTreeMap<(u64, &str), (u64, u64)> = BTreeMap::new();
        for (plan, counts) in &self.classes {
            for (index, (count, bytes)) in counts.iter().enumerate().filter(|(_, (count, _))| *count > 0) {
                let class = plan.class_at(index);
                let sum = classes.entry((class.id, &class.full_name)).or_default();
                *sum = (sum.0 + count, sum.1 + bytes);
            }
        }
        let row = |((id, name), (count, bytes)): ((u64, &str), (u64, u64))| ClassStats {
            name: name.into(),
            id,
            count,
            bytes,
        };
        let mut classes: Vec<_> = classes.into_iter().map(row).collect();
        // Stable: those of one count stay in the order of their ids.
        classes.sort_by_key(|class| std::cmp::Reverse(class.count));
        let mut lost_by_class: Vec<_> = self.lost.into_iter().map(|(name, count)| LostStats { name, count }).collect();
        // Stable: those of one count stay in the order of their names.
        lost_by_class.sort_by_key(|lost| std::cmp::Reverse(lost.count));
        let mut processes = self.processes.finish(self.has_processes);
        if self.has_processes {
            processes.sort_by(|a, b| b.count.cmp(&a.count).then(a.vpid.cmp(&b.vpid)));
        }
        let missing = missing(traces.iter().copied(), streams.iter().map(|(name, stream)| (*name, stream)));
        let is_own = traces.iter().any(TraceRef::is_own);
        if self.is_damaged || !missing.is_empty() {
            self.losses.add(DAMAGED, 0);
        }
        let is_closed = traces.iter().filter_map(|trace| trace.own()).all(|metadata| metadata.totals.is_closed());
        if !is_closed {
            self.losses.add(NOT_CLOSED, 0);
        }
        self.warnings.extend(missing);
        let totals: Vec<StreamTotals> = streams.iter().filter_map(|(_, stream)| stream.totals()).collect();
        let discarded = totals.iter().map(|stream| stream.events_discarded);
        let events = classes.iter().map(|class| class.count).sum();
        let span =
            self.span_ns.map(|(begin_ns, end_ns)| Span { begin_ns, end_ns, duration_ns: end_ns.abs_diff(begin_ns) });
        let seconds = span.map(|span| span.duration_ns as f64 / 1e9).filter(|seconds| *seconds > 0.0);
        Stats {
            events,
            state_events: self.state_events,
            events_lost: discarded.fold(self.losses.unstated, u64::saturating_add),
            loss_places: self.places.sorted(),
            loss_possible: self.losses.uncounted,
            lost_by_class,
            classes_refused: self.classes_refused,
            packets: totals.iter().map(|stream| stream.packets).sum(),
            bytes: streams.iter().map(|(_, stream)| stream.size_bytes()).sum(),
            threads: self.has_processes.then_some(self.threads.len() as u64),
            span,
            events_per_s: seconds.map(|seconds| events as f64 / seconds),
            classes,
            // CPU_UNKNOWN is the largest number, so it comes last.
            cpus: self
                .cpus
                .into_iter()
                .map(|(cpu, count)| CpuStats { cpu: (cpu != CPU_UNKNOWN).then_some(cpu), count })
                .collect(),
            processes,
            is_own,
            is_closed,
            warnings: self.warnings,
        }
    }
}

/// Counts of one stream while it is read: of what changes seldom, only the last is at hand.
#[derive(Default)]
struct Counts<'a> {
    plan: Option<&'a StreamPlan>,
    /// Events and bytes, by the index of the class.
    classes: Vec<(u64, u64)>,
    cpu: (u32, u64),
    /// Of the first and the last event.
    ticks: Option<(u64, u64)>,
    who: Option<(u32, u32)>,
    who_count: u64,
}

impl Counts<'_> {
    #[cold]
    fn pass_cpu(&mut self, cpus: &mut BTreeMap<u32, u64>, next: u32) {
        let (cpu, count) = std::mem::replace(&mut self.cpu, (next, 0));
        if count > 0 {
            *cpus.entry(cpu).or_default() += count;
        }
    }

    #[cold]
    fn flush_who(&mut self, processes: &mut Processes) {
        let count = std::mem::take(&mut self.who_count);
        if let Some((vpid, _)) = self.who.filter(|_| count > 0) {
            processes.count(vpid, count);
        }
    }

    #[cold]
    fn pass_who(&mut self, processes: &mut Processes, threads: &mut HashSet<(u32, u32)>, next: (u32, u32)) {
        self.flush_who(processes);
        threads.insert(next);
        self.who = Some(next);
    }
}

//! What a whole trace holds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_abi::text::printable;
use serde::{Serialize, Serializer};

use crate::loss::{DAMAGED, StatedLosses, Uncounted};
use crate::metadata::Metadata;
use crate::plan::StreamPlan;
use crate::state::StateRecord;
use crate::stream::{Notice, Problem, Source, StreamReader, TraceRef};
use crate::totals::StreamTotals;

/// What a whole trace holds. Events are those of programs, if not said otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Events recorded.
    pub events: u64,
    /// Events of the session owner itself, in the state stream: who joined, what was lost.
    pub state_events: u64,
    /// Events lost: what packets tell, and what the session owner has stated besides.
    pub events_lost: u64,
    /// What can have lost more events, which nobody has counted; empty: no other event is lost.
    pub loss_possible: Vec<Uncounted>,
    /// Of these, what the session owner has told of single classes, most first. Together at most as many as `events_lost`, if
    /// programs were honest: those that a program had no time to assign (it was killed) and those that did not fit on the disk are
    /// not among them.
    pub lost_by_class: Vec<LostStats>,
    /// Classes whose events are not in the trace, and not among `events_lost`: the session owner refused them.
    pub classes_refused: Vec<Refusal>,
    /// Packets of all streams.
    pub packets: u64,
    /// Bytes of all streams, padding included.
    pub bytes: u64,
    /// Threads that have at least one event; `None` where records do not tell.
    pub threads: Option<u64>,
    /// Time from the first to the last event; `None` without events.
    pub span: Option<Span>,
    /// Event classes that have at least one event, most frequent first.
    pub classes: Vec<ClassStats>,
    /// Processors that have at least one event, unknown ones last.
    pub cpus: Vec<CpuStats>,
    /// Programs, most busy first, or in the order of joining where records do not tell whose they are.
    pub processes: Vec<ProcessStats>,
    /// Whether it is one of Dormouse; others do not say what is in them.
    #[serde(skip)]
    pub is_own: bool,
    /// Whether the session has closed the trace, and said what is in it. Where it has not, nobody can tell whether a stream is missing.
    pub is_closed: bool,
    /// What is wrong with the trace, one line each.
    pub warnings: Vec<String>,
}

/// Time from the first to the last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// The first event, nanoseconds since the epoch.
    pub begin_ns: i64,
    /// The last event, nanoseconds since the epoch.
    pub end_ns: i64,
    /// The time between them, nanoseconds.
    pub duration_ns: u64,
}

/// Events of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClassStats {
    /// `provider:name`.
    pub name: String,
    /// The id in this trace.
    pub id: u64,
    /// How many.
    pub count: u64,
    /// Bytes of their records, headers included.
    pub bytes: u64,
}

/// Lost events of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostStats {
    /// `provider:name`, or `(other classes)`.
    pub name: String,
    /// How many.
    pub count: u64,
}

/// A class, or several, whose events are not in the trace: the session owner refused them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// `provider:name`, or in parentheses what classes.
    pub name: String,
    /// Path of the executable that announced it.
    pub program: String,
    /// Why, and what to do.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not recorded: {} of {}: {}", self.name, self.program, self.reason)
    }
}

/// Events of one processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CpuStats {
    /// The processor; `"unknown"` in JSON where the writer did not know it.
    #[serde(serialize_with = "serialize_cpu")]
    pub cpu: Option<u32>,
    /// How many.
    pub count: u64,
}

/// Events of one program. A process that has become another program by `exec` has several entries; what it did before it
/// joined the session counts with the first. One that has changed its name has one, with the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessStats {
    /// Its id as it sees it itself.
    pub vpid: u32,
    /// What it calls itself, as `ps` shows it; empty where the session owner has not named it.
    pub name: String,
    /// Path of the executable; empty where the session owner has not named it.
    pub program: String,
    /// How many; `None` where records do not tell.
    pub count: Option<u64>,
}

fn serialize_cpu<S: Serializer>(cpu: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    match cpu {
        Some(cpu) => serializer.serialize_u32(*cpu),
        None => serializer.serialize_str("unknown"),
    }
}

impl Stats {
    /// Reads the streams of a trace, each with a name for the warnings.
    ///
    /// Processes are told apart by `vpid`, so processes of several containers that share one count as one program after
    /// another.
    pub fn collect(metadata: &Metadata, streams: &[(&str, &[u8])]) -> Stats {
        let streams = streams.iter().map(|(name, bytes)| (0, *name, *bytes));
        Stats::of_traces(&[TraceRef::from(metadata)], streams)
    }

    /// As [`Stats::collect`], of traces of anybody, whose streams come piece by piece. A stream has the index of its trace.
    pub fn of_traces<'a, S: Source>(
        traces: &[TraceRef<'a>],
        streams: impl IntoIterator<Item = (usize, &'a str, S)>,
    ) -> Stats {
        let mut collector = Collector::default();
        let mut by_trace: Vec<Vec<(&str, StreamReader<'a, S>)>> = traces.iter().map(|_| Vec::new()).collect();
        for (index, (trace, name, source)) in streams.into_iter().enumerate() {
            by_trace[trace].push((name, StreamReader::of_source(traces[trace], index, source)));
        }
        by_trace.iter_mut().for_each(|streams| collector.read(streams));
        let streams: Vec<_> = by_trace.iter().flatten().collect();
        collector.finish(traces, &streams)
    }
}

/// What is missing in traces of Dormouse whose streams, each with its name, have been read to their ends: one line each.
pub fn missing<'a, 'b, S: Source + 'b>(
    traces: impl IntoIterator<Item = TraceRef<'a>>,
    streams: impl IntoIterator<Item = (&'b str, &'b StreamReader<'a, S>)>,
) -> Vec<String>
where
    'a: 'b,
{
    let streams: Vec<_> = streams.into_iter().collect();
    let mut lines = Vec::new();
    for metadata in traces.into_iter().filter_map(|trace| trace.own()) {
        let is_of_trace =
            |reader: &StreamReader<'a, S>| reader.trace().own().is_some_and(|own| std::ptr::eq(own, metadata));
        let of_trace: Vec<_> = streams.iter().filter(|(_, reader)| is_of_trace(reader)).collect();
        // The names of the totals are those of files in the trace's directory.
        let prefix = of_trace.first().and_then(|(name, _)| name.rfind('/')).map_or("", |at| &of_trace[0].0[..=at]);
        let found = of_trace
            .iter()
            .map(|(name, reader)| (name.strip_prefix(prefix).unwrap_or(name), (reader.size_bytes(), reader.totals())));
        lines.extend(metadata.totals.compare(found).into_iter().map(|line| format!("{prefix}{line}")));
    }
    lines
}

/// Counts as far as it has come.
#[derive(Default)]
struct Collector<'a> {
    warnings: Vec<String>,
    is_damaged: bool,
    state_events: u64,
    losses: StatedLosses,
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
    fn read<S: Source>(&mut self, streams: &mut [(&str, StreamReader<'a, S>)]) {
        for (name, stream) in streams.iter_mut() {
            stream.look_ahead(|notice| self.note(name, &notice));
            self.has_processes |= stream.has_who();
        }
        let is_state: Vec<bool> = streams.iter().map(|(_, stream)| stream.is_at_state()).collect();
        loop {
            let state = (0..streams.len()).filter(|index| is_state[*index]);
            let times = state.filter_map(|index| {
                let (name, stream) = &mut streams[index];
                Some((stream.look_ahead(|notice| self.note(name, &notice))?, index))
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

    fn note(&mut self, name: &str, notice: &Notice) {
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
                Some(Err(notice)) => self.note(name, &notice),
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

    fn finish<S: Source>(mut self, traces: &[TraceRef<'a>], streams: &[&(&str, StreamReader<'a, S>)]) -> Stats {
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
            self.losses.add("the trace was not closed: its session is live or was killed", 0);
        }
        self.warnings.extend(missing);
        let totals: Vec<StreamTotals> = streams.iter().filter_map(|(_, stream)| stream.totals()).collect();
        let discarded = totals.iter().map(|stream| stream.events_discarded);
        Stats {
            events: classes.iter().map(|class| class.count).sum(),
            state_events: self.state_events,
            events_lost: discarded.fold(self.losses.unstated, u64::saturating_add),
            loss_possible: self.losses.uncounted,
            lost_by_class,
            classes_refused: self.classes_refused,
            packets: totals.iter().map(|stream| stream.packets).sum(),
            bytes: streams.iter().map(|(_, stream)| stream.size_bytes()).sum(),
            threads: self.has_processes.then_some(self.threads.len() as u64),
            span: self.span_ns.map(|(begin_ns, end_ns)| Span {
                begin_ns,
                end_ns,
                duration_ns: end_ns.abs_diff(begin_ns),
            }),
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

/// Which program a `vpid` is at the time that the merge has reached.
#[derive(Default)]
struct Processes {
    /// One for each program that joined.
    rows: Vec<ProcessStats>,
    current: HashMap<u32, usize>,
    /// By the session's number.
    joined: HashMap<u32, usize>,
}

impl Processes {
    /// A process that had events before it had a name (a `vfork` child on its way to `exec`) gets it for these too.
    fn join(&mut self, process: u32, vpid: u32, name: &str, program: &str) {
        let nameless = self.current.get(&vpid).copied().filter(|row| self.rows[*row].program.is_empty());
        let row = nameless.unwrap_or_else(|| self.add(vpid));
        (self.rows[row].name, self.rows[row].program) = (name.into(), program.into());
        self.joined.insert(process, row);
    }

    fn add(&mut self, vpid: u32) -> usize {
        let row = self.rows.len();
        self.rows.push(ProcessStats { vpid, name: String::new(), program: String::new(), count: Some(0) });
        self.current.insert(vpid, row);
        row
    }

    fn rename(&mut self, process: u32, name: &str) {
        if let Some(row) = self.joined.get(&process) {
            self.rows[*row].name = name.into();
        }
    }

    fn count(&mut self, vpid: u32, events: u64) {
        let row = self.current.get(&vpid).copied().unwrap_or_else(|| self.add(vpid));
        let count = &mut self.rows[row].count;
        *count = count.map(|count| count + events);
    }

    /// Programs of the same process that are called the same are one. Whether they have counts is known by now.
    fn finish(mut self, has_counts: bool) -> Vec<ProcessStats> {
        if !has_counts {
            self.rows.iter_mut().for_each(|row| row.count = None);
        }
        let mut rows: Vec<ProcessStats> = Vec::new();
        let mut row_of = HashMap::new();
        for process in self.rows {
            let who = (process.vpid, process.name.clone(), process.program.clone());
            let row = *row_of.entry(who).or_insert(rows.len());
            match rows.get_mut(row) {
                Some(same) => same.count = same.count.zip(process.count).map(|(a, b)| a + b),
                None => rows.push(process),
            }
        }
        rows
    }
}

impl fmt::Display for Stats {
    /// A table for people: columns aligned, no colour.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let duration = self.span.map_or(0.0, |span| span.duration_ns as f64 / 1e9);
        match self.is_own {
            true => writeln!(f, "events    {} (and {} of the session itself)", self.events, self.state_events)?,
            false => writeln!(f, "events    {}", self.events)?,
        }
        match self.loss_possible.is_empty() {
            true => writeln!(f, "lost      {}", self.events_lost)?,
            false => writeln!(f, "lost      at least {}", self.events_lost)?,
        }
        for Uncounted { cause, count } in &self.loss_possible {
            let count = if *count > 0 { format!(" ({count})") } else { String::new() };
            writeln!(f, "          because {}{count}", printable(cause))?;
        }
        writeln!(f, "duration  {duration:.6} s")?;
        match self.threads {
            Some(threads) => writeln!(f, "threads   {threads}")?,
            None if self.is_own => writeln!(f, "threads   not recorded (--context none)")?,
            None => writeln!(f, "threads   not recorded")?,
        }
        writeln!(f, "packets   {}", self.packets)?;
        writeln!(f, "bytes     {}", self.bytes)?;
        let rows = self.classes.iter().map(|class| {
            vec![class.count.to_string(), class.bytes.to_string(), class.id.to_string(), class.name.clone()]
        });
        table(f, &["EVENTS", "BYTES", "ID", "CLASS"], rows.collect())?;
        let rows = self.lost_by_class.iter().map(|lost| vec![lost.count.to_string(), printable(&lost.name)]);
        table(f, &["LOST", "CLASS"], rows.collect())?;
        let rows = self
            .cpus
            .iter()
            .map(|cpu| vec![cpu.count.to_string(), cpu.cpu.map_or("unknown".to_string(), |cpu| cpu.to_string())]);
        table(f, &["EVENTS", "CPU"], rows.collect())?;
        let shown = |text: &str| if text.is_empty() { "unknown".into() } else { printable(text) };
        let width = self.processes.iter().map(|process| shown(&process.name).chars().count()).max().unwrap_or(0).max(4);
        let rows = self.processes.iter().map(|process| {
            let count = process.count.map(|count| count.to_string());
            let who = format!("{:width$}  {}", shown(&process.name), shown(&process.program));
            count.into_iter().chain([process.vpid.to_string(), who]).collect()
        });
        let who = format!("{:width$}  PROGRAM", "NAME");
        let heads = ["EVENTS", "VPID", &who];
        // Whose events they are is not recorded, so there is no column for it.
        table(f, if self.threads.is_some() { &heads } else { &heads[1..] }, rows.collect())?;
        for refusal in &self.classes_refused {
            writeln!(f, "\n{}", printable(&refusal.to_string()))?;
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "\nwarning: {}", printable(warning)))?;
        if !self.is_closed {
            writeln!(f, "\nnote: this trace was not closed, so a stream that is missing cannot be told")?;
        }
        Ok(())
    }
}

/// Columns to the right, but for the last one.
fn table(f: &mut fmt::Formatter<'_>, heads: &[&str], rows: Vec<Vec<String>>) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let heads: Vec<String> = heads.iter().map(|head| head.to_string()).collect();
    let last = heads.len() - 1;
    let width = |column: usize| rows.iter().chain([&heads]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..last).map(width).collect();
    writeln!(f)?;
    for row in [&heads].into_iter().chain(&rows) {
        for (cell, width) in row.iter().zip(&widths) {
            write!(f, "{cell:>width$}  ")?;
        }
        writeln!(f, "{}", row[last])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TraceBuilder;
    use crate::value::Value;
    use dormouse_abi::class::{FieldType, Kind};
    use dormouse_abi::record::RecordKind;

    #[test]
    fn a_trace_in_figures() {
        let mut trace = TraceBuilder::new();
        let u32 = FieldType::scalar(Kind::U32);
        let (request, idle) = (trace.class("http", "request", &[("id", u32)]), trace.class("sched", "idle", &[]));
        let (cpu3, unknown) = (trace.stream(3), trace.stream(CPU_UNKNOWN));
        let process =
            |vpid, name, program| StateRecord::Process { process: vpid, pid: 9, vpid, name, program, command_line: "" };
        trace.state(10, &process(7, "sh", "/bin/sh"));
        trace.state(30, &process(7, "ls", "/bin/ls"));
        trace.state(31, &process(8, "clear\n", "/bin/\x1b[2J"));
        trace.state(32, &StateRecord::ProcessName { process: 7, name: "list" });
        trace.state(32, &StateRecord::ProcessName { process: 6, name: "nobody" });
        trace.state(40, &StateRecord::Lost { reason: "the disk is full", count: 100 });
        trace.state(40, &StateRecord::LossPossible { cause: "a \x1b[2Jword", count: 2 });
        trace.state(41, &StateRecord::ClassRefused { class: "größe:a", program: "/bin/\x1b[ls", reason: "no name" });
        for (class, count) in [("http:request", 2), ("sched:idle", 3), ("(other classes)", 2), ("http:request", 1)] {
            trace.state(50, &StateRecord::LostClass { class, count });
        }
        trace.event(cpu3, 20, 7, 7, request, &[Value::U32(1)]);
        trace.packet(cpu3, 256, 5);
        trace.event(cpu3, 35, 7, 70, request, &[Value::U32(1)]);
        trace.event(cpu3, 36, 8, 8, request, &[Value::U32(1)]);
        trace.packet(cpu3, 256, 2);
        trace.event(unknown, 25, 5, 5, idle, &[]);
        trace.event(unknown, 1_000_000_020, 7, 7, idle, &[]);
        trace.packet(unknown, 0, 1);
        let trace = trace.finish();
        let metadata = trace.parse();
        let names = ["state", "cpu3", "other"];
        let mut streams: Vec<_> = names.into_iter().zip(trace.streams.iter().map(Vec::as_slice)).collect();
        streams.push(("odd", b"?"));
        let stats = Stats::collect(&metadata, &streams);

        let bytes = trace.streams.iter().map(Vec::len).sum::<usize>() + 1;
        assert_eq!(
            serde_json::to_value(&stats).unwrap(),
            serde_json::json!({
                "events": 5, "state_events": 12, "events_lost": 108, "packets": 4, "bytes": bytes, "threads": 4,
                "loss_possible": [
                    {"cause": "a \x1b[2Jword", "count": 2},
                    {"cause": "parts of the trace are missing or damaged", "count": 0},
                    {"cause": "the trace was not closed: its session is live or was killed", "count": 0},
                ],
                "lost_by_class": [
                    {"name": "http:request", "count": 3},
                    {"name": "sched:idle", "count": 3},
                    {"name": "(other classes)", "count": 2},
                ],
                "classes_refused": [{"name": "größe:a", "program": "/bin/\x1b[ls", "reason": "no name"}],
                "span": {
                    "begin_ns": 1_700_000_000_000_000_020u64,
                    "end_ns": 1_700_000_001_000_000_020u64,
                    "duration_ns": 1_000_000_000,
                },
                "classes": [
                    {"name": "http:request", "id": 0, "count": 3, "bytes": 60},
                    {"name": "sched:idle", "id": 1, "count": 2, "bytes": 32},
                ],
                "cpus": [{"cpu": 3, "count": 3}, {"cpu": "unknown", "count": 2}],
                "processes": [
                    {"vpid": 7, "name": "list", "program": "/bin/ls", "count": 2},
                    {"vpid": 5, "name": "", "program": "", "count": 1},
                    {"vpid": 7, "name": "sh", "program": "/bin/sh", "count": 1},
                    {"vpid": 8, "name": "clear\n", "program": "/bin/\x1b[2J", "count": 1},
                ],
                "is_closed": false,
                "warnings": [
                    "odd: packet 0 at byte 0 is cut off: 1 of 80 bytes",
                    "state: 100 events lost: the disk is full",
                    "state: an unknown number of events lost: a \x1b[2Jword (2)",
                ],
            })
        );
        let expected = format!(
            "\
events    5 (and 12 of the session itself)
lost      at least 108
          because a \u{fffd}[2Jword (2)
          because parts of the trace are missing or damaged
          because the trace was not closed: its session is live or was killed
duration  1.000000 s
threads   4
packets   4
bytes     {bytes}

EVENTS  BYTES  ID  CLASS
     3     60   0  http:request
     2     32   1  sched:idle

LOST  CLASS
   3  http:request
   3  sched:idle
   2  (other classes)

EVENTS  CPU
     3  3
     2  unknown

EVENTS  VPID  NAME     PROGRAM
     2     7  list     /bin/ls
     1     5  unknown  unknown
     1     7  sh       /bin/sh
     1     8  clear\u{fffd}   /bin/\u{fffd}[2J

not recorded: größe:a of /bin/\u{fffd}[ls: no name

warning: odd: packet 0 at byte 0 is cut off: 1 of 80 bytes

warning: state: 100 events lost: the disk is full

warning: state: an unknown number of events lost: a \u{fffd}[2Jword (2)

note: this trace was not closed, so a stream that is missing cannot be told
"
        );
        assert_eq!(stats.to_string(), expected);
    }

    #[test]
    fn whose_events_they_are_is_not_told_where_it_is_not_recorded() {
        let mut trace = TraceBuilder::of_records(RecordKind::Compact);
        let idle = trace.class("sched", "idle", &[]);
        let stream = trace.stream(0);
        for (vpid, name, program) in [(9, "sh", "/bin/sh"), (3, "ls", "/bin/ls")] {
            trace.state(10, &StateRecord::Process { process: 1, pid: 9, vpid, name, program, command_line: "" });
        }
        trace.event(stream, 20, 9, 9, idle, &[]);
        let trace = trace.finish();
        let metadata = trace.parse();
        let streams: Vec<_> = ["state", "cpu"].into_iter().zip(trace.streams.iter().map(Vec::as_slice)).collect();
        let stats = Stats::collect(&metadata, &streams);
        assert_eq!((stats.events, stats.state_events), (1, 2));
        let json = serde_json::to_value(&stats).unwrap();
        assert_eq!(json["threads"], serde_json::Value::Null);
        assert_eq!(
            json["processes"],
            serde_json::json!([
                {"vpid": 9, "name": "sh", "program": "/bin/sh", "count": null},
                {"vpid": 3, "name": "ls", "program": "/bin/ls", "count": null},
            ])
        );
        let text = stats.to_string();
        assert!(text.contains("threads   not recorded (--context none)\n"), "{text}");
        assert!(text.contains("\nVPID  NAME  PROGRAM\n   9  sh    /bin/sh\n   3  ls    /bin/ls\n\nnote: "), "{text}");
    }

    #[test]
    fn what_came_before_the_name_counts_with_it() {
        let mut trace = TraceBuilder::new();
        let idle = trace.class("sched", "idle", &[]);
        let cpu = trace.stream(0);
        let process =
            |program| StateRecord::Process { process: 1, pid: 9, vpid: 7, name: "cc1", program, command_line: "" };
        trace.event(cpu, 10, 7, 7, idle, &[]);
        trace.state(20, &process("/bin/cc1"));
        trace.event(cpu, 30, 7, 7, idle, &[]);
        trace.packet(cpu, 0, 0);
        let trace = trace.finish();
        let metadata = trace.parse();
        let streams: Vec<_> = ["state", "cpu"].into_iter().zip(trace.streams.iter().map(Vec::as_slice)).collect();
        let processes = Stats::collect(&metadata, &streams).processes;
        assert_eq!(
            processes,
            [ProcessStats { vpid: 7, name: "cc1".into(), program: "/bin/cc1".into(), count: Some(2) }]
        );
    }
}

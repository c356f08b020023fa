//! Reads the events of a trace, in order, to answer a question.

use std::cmp::Reverse;
use std::collections::HashMap;

use dormouse_abi::class::matches;
use dormouse_ctf::loss::{AT_AN_EDGE, DAMAGED, NOT_CLOSED};
use dormouse_ctf::plan::Class;
use dormouse_ctf::select::Weight;
use dormouse_ctf::stats::{LossPlaces, Span};
use dormouse_ctf::time::since_ns;
use dormouse_ctf::{
    Event, KeptValues, Notice, PairEnd, PairFilter, Problem, Processes, StateRecord, StatedLosses, Trace, Weights,
    Writers,
};
use dormouse_filter::parse_name;

use crate::distribution::Number;
use crate::group::{Counted, Groups};
use crate::key::{self, Dimension, Who};
use crate::pair::{Pair, Pairs, Slow, Slowest};
use crate::pick::{Picker, Said};
use crate::query::{Measure, Query};
use crate::report::{self, ClassSamples, Report};
use crate::schema::{Schema, environment_pid, is_matched};

/// Names of the fields in which contexts of other tracers hold process, thread and the name of the process.
const WHO: [&str; 5] = ["context.vpid", "context.pid", "context.vtid", "context.tid", "context.procname"];

/// Maximum number of warnings that are reported one by one.
const WARNINGS_MAX: usize = 1000;

/// Properties of an event class.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// Index of the class's name in `Analysis::names`.
    name: u32,
    is_counted: bool,
    is_begin: bool,
    is_end: bool,
}

/// Data that is kept of an event that begins a pair.
#[derive(Debug)]
struct Begin {
    /// Values of the group's key, except those of the end.
    group: Box<[u8]>,
    /// Values that the conditions name, for each of them.
    values: Box<[KeptValues]>,
    process: u32,
    tid: Option<u32>,
    size_bytes: u64,
    stream: usize,
}

#[derive(Debug)]
struct Stream {
    name: String,
    trace: usize,
    last_ns: Option<i64>,
    is_halted: bool,
}

/// An answer in progress. The caller must show it all events of the traces in the order of time, and each notice at its
/// place among them.
#[derive(Debug)]
pub struct Analysis<'q> {
    query: &'q Query,
    /// Properties of the group's key. Those of pairs can be of a certain end.
    dimensions: Vec<(Option<PairEnd>, Dimension)>,
    picker: Picker,
    measured: Option<usize>,
    keys: Vec<Dimension>,
    /// Whether the key is one of the process within its trace: the key was found and not given.
    is_key_of_process: bool,
    filters: Vec<PairFilter>,
    writers: Writers,
    weights: Weights,
    pairs_not_selected: u64,
    /// Indexes in the picker of the fields that [`WHO`] names.
    who: Option<[usize; 5]>,
    /// Kinds, by the address of the class.
    kinds: HashMap<usize, Kind>,
    names: Vec<String>,
    streams: Vec<Stream>,
    /// Process and its name, for each trace of a single process.
    origins: Vec<(Option<u32>, Option<String>)>,
    processes: Processes,
    groups: Groups,
    pairs: Option<Pairs<Box<[u8]>, Begin>>,
    slowest: Slowest,
    span_ns: Option<(i64, i64)>,
    part_ns: Option<(i64, i64)>,
    events: u64,
    bytes: u64,
    places: LossPlaces,
    discarded: u64,
    losses: StatedLosses,
    is_closed: bool,
    is_damaged: bool,
    warnings: Vec<String>,
    warnings_more: u64,
    key: Vec<u8>,
}

impl<'q> Analysis<'q> {
    /// Creates an analysis. `streams`: the name of each stream, and the index of its trace.
    ///
    /// # Errors
    /// The traces lack something that the query needs, see [`Query::check`].
    pub fn new<'s>(
        query: &'q Query,
        traces: &[&Trace],
        streams: impl IntoIterator<Item = (&'s str, usize)>,
    ) -> Result<Analysis<'q>, String> {
        query.check(traces)?;
        let mut picker = Picker::default();
        let schema = Schema::of(traces);
        let has_thread_field = schema.check_field("thread", &[], &[]).is_ok();
        let dimensions: Vec<_> = query
            .dimensions()
            .iter()
            .map(|name| {
                let (end, name) = query.split(name);
                let property = schema.process_property(name, &query.patterns_of(end));
                let of = match property.map(Dimension::Property) {
                    Some(property) => property,
                    None if name == "thread" && !has_thread_field => Dimension::Thread,
                    None => dimension(name, &mut picker),
                };
                (end, of)
            })
            .collect();
        let measured = match &query.measure {
            Measure::Field(name) => Some(picker.want(name)),
            _ => None,
        };
        let (mut keys, mut pairs, mut slowest, mut is_key_of_process) = (Vec::new(), None, 0, false);
        if let Measure::Latency(latency) = &query.measure {
            keys = latency.key.iter().map(|name| dimension(name, &mut picker)).collect();
            if keys.is_empty() {
                let field = |name: &String| Dimension::Field(picker.want(&format!("fields.{name}")));
                keys = latency.found_fields().iter().map(field).collect();
                is_key_of_process = !keys.is_empty();
            }
            (pairs, slowest) = (Some(Pairs::new()), latency.slowest);
        }
        let needs_who = pairs.is_some()
            || dimensions
                .iter()
                .any(|(_, of)| matches!(of, Dimension::Pid | Dimension::Tid | Dimension::Process | Dimension::Thread));
        // Dormouse's own traces record them in the event's context, which is read without a look at the fields.
        let is_foreign = traces.iter().any(|trace| trace.own.is_none());
        let who = (needs_who && is_foreign).then(|| WHO.map(|name| picker.want(name)));
        let origin = |trace: &&Trace| (environment_pid(trace), trace.class.env_text("procname").map(str::to_string));
        let stream =
            |(name, trace): (&str, usize)| Stream { name: name.into(), trace, last_ns: None, is_halted: false };
        Ok(Analysis {
            query,
            dimensions,
            picker,
            measured,
            keys,
            is_key_of_process,
            filters: query.pair_filters(&schema)?,
            writers: Writers::default(),
            // The events of a group have these values in common.
            weights: Weights::new(query.by.iter().map(|name| parse_name(name)).collect()),
            pairs_not_selected: 0,
            who,
            kinds: HashMap::new(),
            names: Vec::new(),
            streams: streams.into_iter().map(stream).collect(),
            origins: traces.iter().map(origin).collect(),
            processes: Processes::with_past(key::PROGRAMS_MAX),
            groups: Groups::new(query.groups_max(), query.is_compared),
            pairs,
            slowest: Slowest::new(slowest),
            span_ns: None,
            part_ns: None,
            events: 0,
            bytes: 0,
            places: LossPlaces::default(),
            discarded: 0,
            losses: StatedLosses::default(),
            is_closed: traces.iter().filter_map(|trace| trace.own.as_ref()).all(|own| own.totals.is_closed()),
            is_damaged: false,
            warnings: Vec::new(),
            warnings_more: 0,
            key: Vec::new(),
        })
    }

    /// Limits the analysis to a part of the time. The caller will show all events between the two times, in nanoseconds
    /// since the epoch.
    pub fn within(&mut self, first_ns: i64, last_ns: i64) {
        self.part_ns = Some((first_ns, last_ns));
    }

    /// Takes the next event without counting it. It advances the time; a state record also adds names of processes and
    /// losses.
    pub fn pass(&mut self, event: &Event<'_>) {
        let trace = self.streams[event.stream].trace;
        if event.is_state() {
            return self.state(event, trace);
        }
        if let Some(ns) = event.time_ns {
            self.span_ns = Some(self.span_ns.map_or((ns, ns), |(begin, end)| (begin.min(ns), end.max(ns))));
            let stream = &mut self.streams[event.stream];
            stream.last_ns = Some(ns);
            if std::mem::take(&mut stream.is_halted) {
                let domain = self.domain(trace);
                self.pairs.iter_mut().for_each(|pairs| pairs.goes_on(domain, event.stream, ns));
            }
        }
    }

    /// Takes the next event.
    pub fn event(&mut self, event: &Event<'_>) {
        self.pass(event);
        if event.is_state() {
            return;
        }
        let trace = self.streams[event.stream].trace;
        let kind = self.kind(event.class);
        if !kind.is_counted {
            return;
        }
        self.events += 1;
        self.bytes += event.size_bytes as u64;
        self.picker.read(event);
        let weight = self.weights.of(trace, event);
        if self.pairs.is_some() { self.pair(event, kind, trace) } else { self.count(event, kind, trace, weight) }
    }

    fn kind(&mut self, class: &Class) -> Kind {
        let (query, names) = (self.query, &mut self.names);
        *self.kinds.entry(std::ptr::from_ref(class).addr()).or_insert_with(|| {
            let name = names.iter().position(|name| *name == class.full_name).unwrap_or_else(|| {
                names.push(class.full_name.clone());
                names.len() - 1
            });
            let (is_begin, is_end) = match &query.measure {
                Measure::Latency(latency) => {
                    (matches(&latency.begin, &class.full_name), matches(&latency.end, &class.full_name))
                }
                _ => (false, false),
            };
            let is_measured = is_begin || is_end || !matches!(query.measure, Measure::Latency(_));
            let is_counted = is_measured && is_matched(&query.events, &class.full_name);
            Kind { name: name as u32, is_counted, is_begin, is_end }
        })
    }

    /// Returns the domain in which losses affect pairs: the trace if pairs are matched by thread, else one for all
    /// traces.
    fn domain(&self, trace: usize) -> usize {
        if self.keys.is_empty() || self.is_key_of_process { trace } else { 0 }
    }

    fn count(&mut self, event: &Event<'_>, kind: Kind, trace: usize, weight: Weight) {
        let number = match self.measured.map(|measured| self.picker.cell(measured)) {
            None => None,
            Some(cell) => match (cell.said, cell.number) {
                (Said::Nothing, _) | (_, None) => return,
                (_, number) => number,
            },
        };
        let mut key = std::mem::take(&mut self.key);
        self.put_key(event, kind, trace, &mut key);
        let since_ns = self.since_ns(event.time_ns.unwrap_or_default());
        self.groups.add(&key, &Counted { number, size_bytes: event.size_bytes as u64, since_ns, weight });
        self.key = key;
    }

    fn since_ns(&self, ns: i64) -> u64 {
        since_ns(ns, self.span_ns.map_or(ns, |(begin, _)| begin))
    }

    fn pair(&mut self, event: &Event<'_>, kind: Kind, trace: usize) {
        let Some(ns) = event.time_ns else { return };
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        let who = self.who(event, trace);
        let is_keyed = match self.keys.is_empty() {
            true => {
                key::put_integer(trace as i128, &mut key);
                key::put_id(who.pid, &mut key);
                key::put_id(who.tid, &mut key);
                who.tid.is_some()
            }
            false => {
                if self.is_key_of_process {
                    key::put_integer(trace as i128, &mut key);
                    key::put_id(who.pid, &mut key);
                }
                let keys = std::mem::take(&mut self.keys);
                keys.iter().for_each(|dimension| self.put(*dimension, event, kind, trace, &mut key));
                let is_said = |dimension: &Dimension| match dimension {
                    Dimension::Field(index) => self.picker.cell(*index).said != Said::Nothing,
                    _ => true,
                };
                let is_keyed = keys.iter().all(is_said);
                self.keys = keys;
                is_keyed
            }
        };
        let domain = self.domain(trace);
        let Some(mut pairs) = self.pairs.take() else { return };
        if !is_keyed {
            pairs.unpaired.without_key += 1;
        } else {
            // An event that is both a begin and an end first ends one pair, then begins the next.
            let ended = if kind.is_end { Some(pairs.end(domain, key.as_slice(), ns)) } else { None };
            if let Some(None) = ended {
                let (filters, writers) = (self.filters.iter_mut(), &mut self.writers);
                let may_be_wanted = filters.into_iter().all(|filter| filter.may_want_end(event, writers));
                pairs.unpaired.ends -= u64::from(!may_be_wanted);
            }
            if let Some(pair) = ended.flatten().filter(|pair| pair.is_believed) {
                let Pair { begin_ns, latency_ns, kept, .. } = pair;
                let Begin { group, values, process, tid, size_bytes, stream } = kept;
                let (filters, writers) = (self.filters.iter_mut().zip(&values), &mut self.writers);
                if filters.into_iter().all(|(filter, begin)| filter.wants(begin, latency_ns, event, writers)) {
                    self.slowest.add(latency_ns, || Slow {
                        latency_ns,
                        begin_ns: Reverse(begin_ns),
                        process,
                        tid,
                        key: key.as_slice().into(),
                        streams: [stream, event.stream],
                    });
                    let (number, since_ns) = (Some(Number::Whole(latency_ns.into())), self.since_ns(begin_ns));
                    let mut whole = Vec::new();
                    self.put_key_of_pair(&group, event, kind, trace, &mut whole);
                    self.groups.add(&whole, &Counted { number, size_bytes, since_ns, weight: Weight::ONE });
                } else {
                    self.pairs_not_selected += 1;
                }
            }
            if kind.is_begin && pairs.has_room() {
                let mut group = Vec::new();
                for (end, dimension) in self.dimensions.clone() {
                    if end != Some(PairEnd::End) {
                        self.put(dimension, event, kind, trace, &mut group);
                    }
                }
                let (filters, writers) = (self.filters.iter_mut(), &mut self.writers);
                let values = filters.map(|filter| filter.keep(event, writers)).collect();
                let process = self.process(who, trace);
                let size_bytes = event.size_bytes as u64;
                let begin =
                    Begin { group: group.into(), values, process, tid: who.tid, size_bytes, stream: event.stream };
                pairs.begin(key.as_slice().into(), ns, begin);
            }
        }
        self.pairs = Some(pairs);
        self.key = key;
    }

    fn put_key(&mut self, event: &Event<'_>, kind: Kind, trace: usize, key: &mut Vec<u8>) {
        key.clear();
        for index in 0..self.dimensions.len() {
            self.put(self.dimensions[index].1, event, kind, trace, key);
        }
    }

    /// Writes the group's key of a pair. `begin`: the values that its begin has; `event`: its end.
    fn put_key_of_pair(&mut self, mut begin: &[u8], event: &Event<'_>, kind: Kind, trace: usize, key: &mut Vec<u8>) {
        for index in 0..self.dimensions.len() {
            let (end, dimension) = self.dimensions[index];
            let of_begin;
            (of_begin, begin) = if end == Some(PairEnd::End) { (&[][..], begin) } else { key::split_first(begin) };
            let is_field = matches!(dimension, Dimension::Field(_));
            match end {
                Some(PairEnd::End) => self.put(dimension, event, kind, trace, key),
                None if is_field && key::is_unknown(of_begin) => self.put(dimension, event, kind, trace, key),
                _ => key.extend(of_begin),
            }
        }
    }

    fn put(&mut self, dimension: Dimension, event: &Event<'_>, kind: Kind, trace: usize, key: &mut Vec<u8>) {
        match dimension {
            Dimension::Interval => {
                let interval_ns = self.query.interval_ns.unwrap_or(u64::MAX).max(1);
                let begin = self.span_ns.map_or(0, |(begin, _)| begin);
                let since_ns = self.since_ns(event.time_ns.unwrap_or(begin));
                key::put_integer(i128::from(begin) + i128::from(since_ns / interval_ns * interval_ns), key);
            }
            Dimension::Event => key::put_class(kind.name, key),
            Dimension::Cpu => key::put_cpu(event.cpu_id, key),
            Dimension::Pid => key::put_id(self.who(event, trace).pid, key),
            Dimension::Tid => key::put_id(self.who(event, trace).tid, key),
            Dimension::Process => {
                let who = self.who(event, trace);
                let row = self.process(who, trace);
                key::put_process(row, key);
            }
            Dimension::Thread => {
                let who = self.who(event, trace);
                let row = self.process(who, trace);
                match who.tid {
                    Some(tid) => key::put_thread(row, tid, key),
                    None => key::put_id(None, key),
                }
            }
            Dimension::Property(property) => {
                let places = self.who(event, trace).pid.map(|pid| self.processes.places(trace, pid));
                key::put_property(places.and_then(|places| places.get(property)), key);
            }
            Dimension::Field(index) => key::put_cell(self.picker.cell(index), key),
        }
    }

    fn who(&self, event: &Event<'_>, trace: usize) -> Who {
        let id = |index: usize| match self.picker.cell(self.who?[index]).number? {
            Number::Whole(id) => u32::try_from(id).ok(),
            Number::Real(_) => None,
        };
        let who = Who::of(event, id);
        Who { pid: who.pid.or(self.origins[trace].0), ..who }
    }

    fn process(&mut self, who: Who, trace: usize) -> u32 {
        let cell = self.who.map(|cells| self.picker.cell(cells[4])).filter(|cell| cell.said == Said::Text);
        let name = cell.map(|cell| cell.text.as_slice()).or(self.origins[trace].1.as_deref().map(str::as_bytes));
        self.processes.of_event(trace, who.pid, name)
    }

    fn state(&mut self, event: &Event<'_>, trace: usize) {
        let Some(record) = event.state_record() else { return };
        self.losses.note(&record);
        self.processes.note(trace, event.timestamp, &record);
        if let StateRecord::Rules { rules } = record {
            self.weights.note(trace, rules);
        }
        if !self.filters.is_empty() {
            self.writers.note(event, &record);
        }
    }

    /// Takes a notice. `time_ns`: the time that its stream has reached.
    pub fn notice(&mut self, notice: &Notice, time_ns: Option<i64>) {
        let stream = &self.streams[notice.stream];
        let (last_ns, trace) = (stream.last_ns, stream.trace);
        self.places.note(&stream.name, notice, (last_ns, time_ns));
        let domain = self.domain(trace);
        let since = last_ns.unwrap_or(i64::MIN);
        let (begin, end) = match notice.problem {
            Problem::Discarded { count, begin_ns, end_ns }
                if self.part_ns.is_some_and(|(first, last)| {
                    begin_ns.is_none_or(|begin| begin < first) || end_ns.is_none_or(|end| end > last)
                }) =>
            {
                self.losses.add(AT_AN_EDGE, count);
                (begin_ns.unwrap_or(since), Some(end_ns.unwrap_or(i64::MAX)))
            }
            Problem::Discarded { count, begin_ns, end_ns } => {
                self.discarded = self.discarded.saturating_add(count);
                (begin_ns.unwrap_or(since), Some(end_ns.unwrap_or(i64::MAX)))
            }
            _ => {
                self.is_damaged = true;
                if self.warnings.len() < WARNINGS_MAX {
                    self.warnings.push(format!("{}: {notice}", stream.name));
                } else {
                    self.warnings_more += 1;
                }
                self.streams[notice.stream].is_halted = true;
                (since, None)
            }
        };
        self.pairs.iter_mut().for_each(|pairs| pairs.lost(domain, notice.stream, begin, end));
    }

    /// Returns the answer. `left_out`: inputs that were not read; `missing`: parts that the traces lack. Each is one
    /// line of text.
    pub fn finish(mut self, left_out: &[String], missing: Vec<String>) -> Report {
        if self.is_damaged || !missing.is_empty() {
            self.losses.add(DAMAGED, 0);
        }
        if !self.is_closed {
            self.losses.add(NOT_CLOSED, 0);
        }
        if self.part_ns.is_some() {
            self.losses = self.losses.of_a_part();
        }
        let mut warnings = left_out.to_vec();
        warnings.append(&mut self.warnings);
        if self.warnings_more > 0 {
            warnings.push(format!("{} warnings more", self.warnings_more));
        }
        warnings.extend(missing);
        let span =
            self.span_ns.map(|(begin_ns, end_ns)| Span { begin_ns, end_ns, duration_ns: end_ns.abs_diff(begin_ns) });
        let is_hexadecimal = |dimension: &Dimension| match dimension {
            Dimension::Field(index) => self.picker.cell(*index).is_hexadecimal,
            _ => false,
        };
        let decode = |key: &[u8], dimensions: &mut dyn Iterator<Item = Dimension>| {
            let mut values = key::decode(key, &self.names, &self.processes, self.query.is_compared);
            let hexadecimal = values.iter_mut().zip(dimensions).filter(|(_, dimension)| is_hexadecimal(dimension));
            hexadecimal.for_each(|(value, _)| value.make_hexadecimal());
            values
        };
        let groups =
            self.groups.iter().map(|(key, group)| (decode(key, &mut self.dimensions.iter().map(|(_, of)| *of)), group));
        let rows = report::rows(self.query, span, groups);
        let asked = if let Measure::Latency(asked) = &self.query.measure { Some(asked) } else { None };
        let latency = self.pairs.zip(asked).map(|(pairs, asked)| {
            let (mut unpaired, open) = pairs.finish();
            let mut filters = self.filters;
            unpaired.begins = open
                .filter(|(_, begin)| {
                    filters.iter_mut().zip(&begin.values).all(|(filter, begin)| filter.may_want_begin(begin))
                })
                .count() as u64;
            report::latency(asked, (unpaired, self.pairs_not_selected), self.slowest.finish(), &self.processes, |key| {
                // A found key begins with trace and process.
                let before = if self.is_key_of_process { key::split_first(key::split_first(key).1).1 } else { key };
                if self.keys.is_empty() { Vec::new() } else { decode(before, &mut self.keys.iter().copied()) }
            })
        });
        let other = self.groups.other.as_ref();
        let losses = report::Lost {
            events: self.losses.sum([self.discarded]),
            unplaced: self.losses.unstated,
            possible: self.losses.uncounted,
            places: self.places.sorted(),
        };
        let samples = self
            .weights
            .samples()
            .iter()
            .map(|(class, samples)| ClassSamples { class: class.clone(), samples: samples.iter().cloned().collect() });
        let samples = samples.collect();
        Report {
            samples,
            warnings,
            ..report::report(self.query, span, (self.events, self.bytes), rows, other, latency, losses)
        }
    }
}

fn dimension(name: &str, picker: &mut Picker) -> Dimension {
    match name {
        "interval_begin_ns" => Dimension::Interval,
        "event" => Dimension::Event,
        "cpu" => Dimension::Cpu,
        "pid" => Dimension::Pid,
        "tid" => Dimension::Tid,
        "process" => Dimension::Process,
        field => Dimension::Field(picker.want(field)),
    }
}

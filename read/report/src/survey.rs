//! Reads a trace for a page that requests data, in memory that does not grow with the trace.
//!
//! ```text
//!   events ─▶ Timeline ─▶ rows (short neighbours are merged), tables, checkpoints ─▶ Served
//!                                                                                     │ a part of the time, fields
//!   events from a checkpoint on ─▶ Timeline as it was there ─▶ requested items ◀──────┘
//! ```
//! Rows keep each item that is longer than their resolution, which grows when memory is used up. Shorter items begin
//! and end within that time, so they are found again by reading a little more than the requested part of the time. A
//! checkpoint is the state of the timeline at some event, so that items are paired, nested and numbered as in the first
//! reading.

use dormouse_analysis::timeline::{
    self, Begin, Counter, End, Flow, Instant, Loss, Lost, Sink, Timeline, Totals, Track,
};
use dormouse_ctf::{Event, Notice};

use crate::contents::Kind;
use crate::finish::{DEPTH_OF_THREAD, LeftOut, Picture, RowOf, RowPlace};
use crate::gather::key_of;
use crate::levels::Entry;
use crate::rows::Rows;
use crate::scene::{Scene, key};
use crate::stacks::{DEPTH_OF_CPU, Level, STACKS_OF_CPU, Stacks};
use crate::summary::Tables;

/// Default memory of a survey.
pub const MEMORY_BYTES: u64 = 512 << 20;
/// Minimum memory of a survey; no trace can be read with less.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// Memory that is counted for an entry while its row grows.
const ENTRY_BYTES: u64 = 80;
/// Shares of the memory, as one part in this many: for entries, checkpoints, values of counters, and losses that are
/// listed one by one.
const ENTRIES_SHARE: u64 = 3;
const CHECKPOINTS_SHARE: u64 = 8;
const COUNTERS_SHARE: u64 = 16;
const LOSSES_SHARE: u64 = 16;
const VALUE_BYTES: u64 = 64;
/// Number of events between two checkpoints while memory lasts.
const CHECKPOINT_EVENTS: u64 = 1 << 16;

/// Data that is kept of the begin of a slice.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    cpu: u32,
    /// Stack and depth on its CPU; `None` if there are too many, or if it is on a lane.
    on_cpu: Option<Level>,
}

/// The stacks of open slices of each CPU.
#[derive(Debug, Clone, Default)]
pub(crate) struct CpuRows(Vec<Stacks>);

impl CpuRows {
    /// Begins a slice.
    pub(crate) fn begin(&mut self, scene: &Scene, begin: &Begin<'_>, cpu: u32) -> Held {
        let place = scene.place(begin.track).filter(|place| place.lane.is_none());
        let on_cpu = place.and_then(|place| {
            let index = cpu as usize;
            if self.0.len() <= index {
                self.0.resize_with(index + 1, Stacks::default);
            }
            self.0[index].begin(place.owner(), begin.ns, i64::MAX, (STACKS_OF_CPU, DEPTH_OF_CPU))
        });
        Held { cpu, on_cpu }
    }

    /// Ends a slice and returns its entries by thread and by CPU. `begin_ns`: begin of the report.
    pub(crate) fn slice(&mut self, scene: &Scene, begin_ns: i64, end: &End<'_>, held: &Held) -> Drawn {
        if let (Some(stacks), Some(level)) = (self.0.get_mut(held.cpu as usize), held.on_cpu) {
            stacks.end(level, end.ns);
        }
        let Some(place) = scene.place(end.track) else { return [None, None] };
        let begin = since(end.begin_ns, begin_ns);
        let entry = |other: u32| Entry {
            begin,
            // Damaged times can exceed the range.
            duration: end.ns.abs_diff(end.begin_ns).min(u64::MAX - begin),
            name: end.name,
            count: 1,
            key: if place.lane.is_some() { key(end.id) } else { 0 },
            fields: 1,
            other: other + 1,
            is_kept: false,
        };
        let row = |is_cpu, of, lane, depth: u32| {
            let depth = depth as usize;
            RowPlace { is_cpu, of, lane, depth, kind: Kind::Slice }
        };
        let (thread, lane) = place.owner();
        let by_thread = ((end.depth as usize) < DEPTH_OF_THREAD).then(|| row(false, thread, lane, end.depth));
        let by_cpu = held.on_cpu.map(|(stack, depth)| row(true, held.cpu, stack, depth));
        [by_thread.map(|row| (row, entry(held.cpu))), by_cpu.map(|row| (row, entry(place.thread)))]
    }
}

/// Returns nanoseconds since the report's begin; 0 for times of a damaged trace that are before it.
fn since(ns: i64, begin_ns: i64) -> u64 {
    if ns < begin_ns { 0 } else { ns.abs_diff(begin_ns) }
}

/// An item with its row, by thread and by CPU; `None` if there are too many rows, or the item is not of a CPU.
pub(crate) type Drawn = [Option<(RowPlace, Entry)>; 2];

/// Returns the entries of an instant.
pub(crate) fn instant(scene: &Scene, begin_ns: i64, instant: &Instant<'_>, cpu: u32) -> Drawn {
    let Some(place) = scene.place(instant.track) else { return [None, None] };
    let (begin, key) = (since(instant.ns, begin_ns), key_of(&instant.what));
    let name = instant.name;
    let entry =
        |other: u32| Entry { begin, duration: 0, name, count: 1, key, fields: 1, other: other + 1, is_kept: false };
    let row = |is_cpu, of| RowPlace { is_cpu, of, lane: 0, depth: 0, kind: Kind::Instant };
    [Some((row(false, place.thread), entry(cpu))), Some((row(true, cpu), entry(place.thread)))]
}

/// A point from which a trace can be read again.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// All events that follow have this time or a later one.
    pub ns: i64,
    pub timeline: timeline::Checkpoint<Held>,
    pub cpu_rows: CpuRows,
}

/// The first reading of a trace, up to its current end.
#[derive(Debug)]
pub struct Survey {
    timeline: Timeline<Held>,
    overview: Overview,
    checkpoints: Vec<Checkpoint>,
    checkpoints_bytes: u64,
    checkpoints_bytes_max: u64,
    /// Number of events between two checkpoints, and since the last one.
    spacing: u64,
    since: u64,
    last_ns: i64,
}

/// The result of a survey.
#[derive(Debug)]
pub struct Surveyed {
    pub(crate) scene: Scene,
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) lost: Lost,
    pub(crate) begin_ns: i64,
    pub(crate) span: u64,
    pub(crate) rows: Vec<RowOf>,
    pub(crate) resolution: u64,
    tables: Tables,
    slices: u64,
    instants: u64,
    left_out: LeftOut,
}

/// Collects the items of the timeline.
#[derive(Debug)]
struct Overview {
    scene: Scene,
    rows: Rows,
    tables: Tables,
    cpu_rows: CpuRows,
    begin_ns: Option<i64>,
    /// End of the last item, in nanoseconds since `begin_ns`.
    end: u64,
    slices: u64,
    instants: u64,
    too_deep: u64,
    too_many_on_cpu: u64,
    loss_bytes_max: usize,
    losses_not_kept: u64,
}

impl Survey {
    /// Starts a survey. `timeline`: before its first event; `memory_bytes`: limit of the memory, not counting the
    /// reader's.
    pub fn new(title: &str, timeline: Timeline<Held>, memory_bytes: u64) -> Survey {
        let mut scene = Scene::new(title, timeline.names());
        let values = memory_bytes / COUNTERS_SHARE / VALUE_BYTES / 64;
        scene.contents.counter_values_max = Some(values.max(1024) as usize);
        let overview = Overview {
            scene,
            rows: Rows::new((memory_bytes / ENTRIES_SHARE / ENTRY_BYTES) as usize),
            tables: Tables::default(),
            cpu_rows: CpuRows::default(),
            begin_ns: None,
            end: 0,
            slices: 0,
            instants: 0,
            too_deep: 0,
            too_many_on_cpu: 0,
            loss_bytes_max: (memory_bytes / LOSSES_SHARE) as usize,
            losses_not_kept: 0,
        };
        let mut survey = Survey {
            timeline,
            overview,
            checkpoints: Vec::new(),
            checkpoints_bytes: 0,
            checkpoints_bytes_max: memory_bytes / CHECKPOINTS_SHARE,
            spacing: CHECKPOINT_EVENTS,
            since: 0,
            last_ns: i64::MIN,
        };
        survey.check(i64::MIN);
        survey
    }

    /// Takes the next event. `is_wanted`: whether it is selected.
    pub fn event(&mut self, event: &Event<'_>, is_wanted: bool) {
        if let Some(ns) = event.time_ns.filter(|_| !event.is_state()) {
            self.since += 1;
            if self.since >= self.spacing && ns > self.last_ns {
                self.check(ns);
            }
            self.last_ns = self.last_ns.max(ns);
        }
        match is_wanted {
            true => self.timeline.event(event, &mut self.overview),
            false => self.timeline.pass(event, &mut self.overview),
        }
    }

    /// Takes a notice. `time_ns`: the time that its stream has reached.
    pub fn notice(&mut self, notice: &Notice, time_ns: Option<i64>) {
        self.timeline.notice(notice, time_ns, &mut self.overview);
    }

    /// Adds a checkpoint before an event of this time.
    fn check(&mut self, ns: i64) {
        self.since = 0;
        let (timeline, cpu_rows) = (self.timeline.checkpoint(), self.overview.cpu_rows.clone());
        self.checkpoints_bytes += timeline.size_bytes() as u64;
        self.checkpoints.push(Checkpoint { ns, timeline, cpu_rows });
        while self.checkpoints_bytes > self.checkpoints_bytes_max && self.checkpoints.len() > 2 {
            // Every second checkpoint is removed; the first one stays.
            let mut number = 0;
            self.checkpoints.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.spacing *= 2;
            let bytes = self.checkpoints.iter().map(|checkpoint| checkpoint.timeline.size_bytes() as u64);
            self.checkpoints_bytes = bytes.sum();
        }
    }

    /// Ends the survey at the current end of the trace, and returns it with the timeline's counts.
    pub fn finish(mut self) -> (Surveyed, Totals) {
        let lost = self.timeline.lost();
        let totals = self.timeline.finish(&mut self.overview);
        let totals = Totals { items_not_kept: self.overview.losses_not_kept, ..totals };
        let Overview { scene, rows, tables, begin_ns, end, slices, instants, too_deep, too_many_on_cpu, .. } =
            self.overview;
        let (rows, resolution) = rows.finish();
        let left_out = LeftOut { too_deep, too_many_on_cpu, resolution_ns: resolution, ..LeftOut::default() };
        let (begin_ns, span) = match begin_ns {
            Some(begin_ns) => (begin_ns, end.max(1)),
            None => (0, 1),
        };
        let checkpoints = self.checkpoints;
        let surveyed =
            Surveyed { scene, checkpoints, lost, begin_ns, span, rows, resolution, tables, slices, instants, left_out };
        (surveyed, totals)
    }
}

impl Surveyed {
    /// Adds the remaining data. `about`: where the trace was recorded; `notes`: notes for the top of the page;
    /// `is_growing`: whether the trace still grows; `zero_ns`: see [`crate::Contents::zero_ns`].
    pub fn told(
        mut self,
        totals: &Totals,
        about: Vec<String>,
        notes: Vec<String>,
        is_growing: bool,
        zero_ns: Option<i64>,
    ) -> Surveyed {
        self.scene.finish(totals, about, notes);
        self.scene.contents.is_growing = is_growing;
        self.scene.contents.zero_ns = zero_ns;
        self.scene.contents.counter_values_max = None;
        self
    }

    /// Returns the picture that the page shows.
    pub(crate) fn picture(&mut self) -> Picture {
        let rows = self.rows.iter().map(|row| RowOf { place: row.place, entries: row.entries.clone() }).collect();
        let (summary, density) = std::mem::take(&mut self.tables).finish(self.span);
        let left_out = std::mem::take(&mut self.left_out);
        let (slices, instants) = (self.slices, self.instants);
        let span = (self.begin_ns, self.span);
        Picture { span, rows, summary, density, slices, instants, left_out, is_served: true }
    }
}

impl Overview {
    fn begin_ns(&mut self, ns: i64) -> i64 {
        *self.begin_ns.get_or_insert(ns)
    }

    fn put(&mut self, drawn: Drawn) {
        for (place, mut entry) in drawn.into_iter().flatten() {
            entry.is_kept = place.kind == Kind::Slice && self.tables.is_slow(&entry);
            self.end = self.end.max(entry.begin.saturating_add(entry.duration));
            if self.rows.push(place, &entry) {
                let tables = &self.tables;
                self.rows.coarsen(|entry| tables.is_slow(entry));
            }
        }
    }
}

impl Sink for Overview {
    type Kept = Held;

    fn track(&mut self, track: &Track<'_>) {
        self.scene.track(track);
    }

    fn begin(&mut self, begin: &Begin<'_>) -> Held {
        self.begin_ns(begin.ns);
        self.tables.begin(begin.track, begin.id, begin.name);
        let cpu = self.scene.cpu(begin.event.stream, begin.cpu);
        self.cpu_rows.begin(&self.scene, begin, cpu)
    }

    fn end(&mut self, end: &End<'_>, held: Held) {
        if let Some(event) = end.event {
            self.scene.cpu(event.stream, end.cpu);
        }
        let begin_ns = self.begin_ns(end.begin_ns);
        let drawn = self.cpu_rows.slice(&self.scene, begin_ns, end, &held);
        let (thread, is_lane) =
            self.scene.place(end.track).map_or((0, false), |place| (place.thread, place.lane.is_some()));
        let (begin, duration) = (since(end.begin_ns, begin_ns), end.ns.abs_diff(end.begin_ns));
        self.tables.end((end.track, end.id), end.name, (thread, None), begin, duration);
        self.slices += 1;
        self.too_deep += u64::from(drawn[0].is_none());
        self.too_many_on_cpu += u64::from(drawn[1].is_none() && !is_lane);
        self.end = self.end.max(begin.saturating_add(duration));
        self.put(drawn);
    }

    fn instant(&mut self, event: &Instant<'_>) {
        let begin_ns = self.begin_ns(event.ns);
        let cpu = self.scene.cpu(event.event.stream, event.cpu);
        self.instants += 1;
        self.tables.instant(event.name, since(event.ns, begin_ns));
        self.put(instant(&self.scene, begin_ns, event, cpu));
    }

    fn counter(&mut self, counter: &Counter) {
        self.scene.counter(counter);
    }

    /// Both ends of a flow are instants with the key of the slice.
    fn flow(&mut self, _: &Flow) {}

    fn loss(&mut self, loss: &Loss) {
        match self.scene.loss_bytes < self.loss_bytes_max {
            true => self.scene.loss(loss),
            false => self.losses_not_kept += 1,
        }
    }
}

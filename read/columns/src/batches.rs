//! Record batches of the chosen events, in order of time.

mod split;
mod together;

pub use split::{ByClass, Split};
pub use together::{Together, TogetherRows};

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{
    ArrayRef, DictionaryArray, Int32Array, RecordBatch, RecordBatchOptions, TimestampNanosecondArray, UInt32Array,
};
use arrow_buffer::{NullBufferBuilder, ScalarBuffer};
use arrow_schema::ArrowError;
use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_ctf::select::Writer;
use dormouse_ctf::stream::{Chosen, ChosenOf, EventFields, Viewer};
use dormouse_ctf::{Notice, Problem, Scratch, Selection, Source, StreamReader, Writers};
use dormouse_print::JsonFields;

use crate::column::Column;
use crate::layout::{Chosen as Class, Layout, Origin, STATE};

/// Maximum number of rows in a batch.
const ROWS_MAX: usize = 64 << 10;
/// Maximum size of a batch's records, in bytes.
const RECORD_BYTES_MAX: usize = 8 << 20;
/// Maximum number of elements in the lists of one column of a batch.
const ELEMENTS_MAX: usize = 16 << 20;
/// Maximum size of a batch's texts of [`Extra`](crate::Extra), in bytes.
const EXTRA_BYTES_MAX: usize = 16 << 20;
/// Maximum number of notices that are kept.
const NOTICES_MAX: usize = 1000;

/// Damage found in the streams.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Damage {
    /// The first thousand notices of damage. Losses stated by packets are not among them.
    pub notices: Vec<Notice>,
    /// Number of notices of damage, including those that are not kept.
    pub count: u64,
    /// Number of lost events, as stated by packets.
    pub lost: u64,
}

impl Damage {
    /// Records a notice.
    pub fn note(&mut self, notice: Notice) {
        if let Problem::Discarded { count, .. } = notice.problem {
            self.lost = self.lost.saturating_add(count);
            return;
        }
        self.count += 1;
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(notice);
        }
    }
}

/// A time range in which events of a stream may have been lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Number of the stream among those that are read.
    pub stream: usize,
    /// Begin, in nanoseconds since the epoch.
    pub begin_ns: i64,
    /// End, in nanoseconds since the epoch. `None`: the end of the stream, as far as is known.
    pub end_ns: Option<i64>,
    /// Whether the stream is damaged. Otherwise a packet says that events were lost.
    pub is_damage: bool,
}

/// Iterator over batches of the events that a [`Layout`] chooses.
pub struct Batches<'l, 'a, C> {
    layout: &'l Layout<'a>,
    streams: Vec<C>,
    /// Time, stream and class of the next event of each stream.
    heap: BinaryHeap<Reverse<(i64, usize, usize)>>,
    /// Streams whose next event is not known. The last one is asked first.
    pending: Vec<usize>,
    damage: Damage,
    gaps: Gaps,
    scratch: Scratch,
    /// Present if there are conditions.
    selection: Option<Selection>,
    /// Processes that wrote the events, if a condition or a column needs them.
    writers: Option<Writers>,
    /// Whether `writers` was given for the whole trace, so that events do not update it.
    are_writers_known: bool,
    json: JsonFields,
    json_text: Vec<u8>,
    rows: Rows,
    is_over: bool,
}

/// The rows of the current batch.
struct Rows {
    count: usize,
    record_bytes: usize,
    times: Vec<i64>,
    times_valid: NullBufferBuilder,
    cpus: Vec<u32>,
    cpus_valid: NullBufferBuilder,
    names: Vec<i32>,
    processes: StringBuilder,
    threads: StringBuilder,
    json: StringBuilder,
    extra_bytes: usize,
    columns: Vec<Column>,
    /// Indices of the columns that have lists.
    with_elements: Vec<usize>,
    needs: [bool; 6],
}

/// Time ranges in which events may have been lost.
#[derive(Default)]
struct Gaps {
    /// Whether gaps are collected.
    are_wanted: bool,
    found: Vec<Gap>,
    /// For each stream: time of the last event, and begin of damage that no later event has ended yet.
    streams: Vec<(Option<i64>, Option<i64>)>,
}

impl Gaps {
    fn note(&mut self, stream: usize, notice: &Notice) {
        if !self.are_wanted {
            return;
        }
        let (last_ns, since_ns) = &mut self.streams[stream];
        let since = last_ns.unwrap_or(i64::MIN);
        match notice.problem {
            Problem::Discarded { begin_ns, end_ns, .. } => {
                let end_ns = Some(end_ns.unwrap_or(i64::MAX));
                self.found.push(Gap { stream, begin_ns: begin_ns.unwrap_or(since), end_ns, is_damage: false });
            }
            _ => {
                let begin_ns = *since_ns.get_or_insert(since);
                self.found.push(Gap { stream, begin_ns, end_ns: None, is_damage: true });
            }
        }
    }

    /// Records that a stream has an event at this time.
    #[inline]
    fn goes_on(&mut self, stream: usize, time_ns: Option<i64>) {
        if self.are_wanted {
            let (last_ns, since_ns) = &mut self.streams[stream];
            *last_ns = time_ns.or(*last_ns);
            if let (Some(begin_ns), Some(_)) = (*since_ns, time_ns) {
                *since_ns = None;
                self.found.push(Gap { stream, begin_ns, end_ns: time_ns, is_damage: true });
            }
        }
    }
}

impl<C> std::fmt::Debug for Batches<'_, '_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batches").field("schema", &self.layout.schema()).finish_non_exhaustive()
    }
}

impl<'l, 'a, S: Source> Batches<'l, 'a, ChosenOf<'l, 'a, S>> {
    /// Reads the streams. Each has the index of its trace among those of the layout.
    pub fn new(
        layout: &'l Layout<'a>,
        readers: impl IntoIterator<Item = (usize, StreamReader<'a, S>)>,
    ) -> Batches<'l, 'a, ChosenOf<'l, 'a, S>> {
        let (first_ns, last_ns) = layout.times();
        let chosen = |(trace, reader): (usize, StreamReader<'a, S>)| {
            ChosenOf::new(reader.within(first_ns, last_ns), layout.choice(trace))
        };
        Batches::of(layout, readers.into_iter().map(chosen))
    }
}

impl<'l, 'a, C: Chosen> Batches<'l, 'a, C> {
    /// Reads streams whose events were chosen by the layout ([`Layout::choice`]). They may contain events outside of
    /// the requested times; these are skipped one by one.
    pub fn of(layout: &'l Layout<'a>, streams: impl IntoIterator<Item = C>) -> Batches<'l, 'a, C> {
        let streams: Vec<C> = streams.into_iter().collect();
        let rows = Rows::new(layout);
        let has_conditions = !layout.filters.is_empty();
        Batches {
            layout,
            heap: BinaryHeap::with_capacity(streams.len()),
            pending: (0..streams.len()).rev().collect(),
            gaps: Gaps { streams: vec![(None, None); streams.len()], ..Gaps::default() },
            streams,
            damage: Damage::default(),
            scratch: Scratch::default(),
            selection: has_conditions.then(|| Selection::unchecked(Vec::new(), layout.filters.clone())),
            writers: (has_conditions || rows.needs_writers()).then(Writers::default),
            are_writers_known: false,
            json: JsonFields::default(),
            json_text: Vec::new(),
            rows,
            is_over: false,
        }
    }

    /// Uses these processes instead of those found while reading, for a part of a trace.
    pub fn with_writers(mut self, writers: Writers) -> Self {
        (self.writers, self.are_writers_known) = (Some(writers), true);
        self
    }

    /// Returns the processes that wrote the events, for the next part.
    pub fn into_writers(self) -> Option<Writers> {
        self.writers
    }

    /// Collects the time ranges in which events may have been lost, for [`Batches::take_gaps`].
    pub fn with_gaps(mut self) -> Self {
        self.gaps.are_wanted = true;
        self
    }

    /// Returns the time ranges in which events may have been lost that were found so far and not taken before. All that
    /// begin before the last row of the last batch are included.
    pub fn take_gaps(&mut self) -> Vec<Gap> {
        std::mem::take(&mut self.gaps.found)
    }

    /// Returns the damage found so far.
    pub fn damage(&self) -> &Damage {
        &self.damage
    }

    /// Returns time and class of the next chosen event of a stream within the requested times.
    #[inline]
    fn next_of(&mut self, index: usize) -> Option<(i64, usize)> {
        let stream = self.streams.get_mut(index)?;
        loop {
            let (number, time_ns) = match stream.next()? {
                Ok(found) => found,
                Err(notice) => {
                    self.gaps.note(index, &notice);
                    self.damage.note(notice);
                    continue;
                }
            };
            self.gaps.goes_on(index, time_ns);
            // State records are needed whatever their time: they describe the processes of later events.
            let is_state =
                self.writers.is_some() && self.layout.chosen.get(number).is_none_or(|chosen| chosen.is_state);
            if is_state || self.layout.request.is_within(time_ns) {
                return Some((time_ns.unwrap_or(i64::MIN), number));
            }
        }
    }

    /// Moves on to the next event, and returns its stream and class.
    #[inline]
    fn advance(&mut self) -> Option<(usize, usize)> {
        while let Some(index) = self.pending.pop() {
            if let Some((time, number)) = self.next_of(index) {
                let next = (time, index, number);
                if !self.pending.is_empty() {
                    self.heap.push(Reverse(next));
                    continue;
                }
                // If the first event in the heap precedes this one, they change places.
                let first = match self.heap.peek_mut() {
                    Some(mut first) if first.0 < next => std::mem::replace(&mut *first, Reverse(next)).0,
                    _ => next,
                };
                self.pending.push(first.1);
                return Some((first.1, first.2));
            }
        }
        let Reverse((_, index, number)) = self.heap.pop()?;
        self.pending.push(index);
        Some((index, number))
    }

    /// Reads an event and adds a row for it, if it is requested. Returns false at the end.
    #[inline]
    fn row(&mut self) -> Result<bool, ArrowError> {
        let Some((index, number)) = self.advance() else { return Ok(false) };
        if let Some(writers) = &mut self.writers {
            let Some(event) = self.streams[index].event() else { return Ok(true) };
            if !self.are_writers_known
                && let Some(record) = event.state_record()
            {
                writers.note(&event, &record);
            }
            let is_asked_for = number != STATE && self.layout.request.is_within(event.time_ns);
            if !is_asked_for || self.selection.as_mut().is_some_and(|selection| !selection.wants(&event, writers)) {
                return Ok(true);
            }
            if self.rows.needs_writers() {
                self.rows.writer(&writers.of(&event));
            }
        }
        if self.rows.needs[4]
            && let Some(event) = self.streams[index].event()
        {
            self.json_text.clear();
            self.json_text.push(b'{');
            self.json.put(&event, &mut self.json_text);
            self.json_text.push(b'}');
            self.rows.json(&self.json_text);
        }
        let Some(event) = self.streams[index].fields() else { return Ok(true) };
        self.rows.add(&self.layout.chosen[number], &event, &mut self.scratch)?;
        Ok(true)
    }

    /// Adds the rows of a batch. Returns false at the end.
    fn fill(&mut self) -> Result<bool, ArrowError> {
        let are_writers_told = self.writers.is_some() && !self.are_writers_known;
        if self.streams.len() == 1 && !are_writers_told && !self.rows.needs[4] && !self.gaps.are_wanted {
            return self.fill_alone();
        }
        while !self.rows.is_full() {
            if !self.row()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds the rows of a batch from a single stream, which needs no merging and no state records.
    fn fill_alone(&mut self) -> Result<bool, ArrowError> {
        let Batches { layout, streams, rows, scratch, damage, writers, selection, .. } = self;
        let mut adding = Adding { layout, rows, scratch, selection, writers, failed: None };
        let is_there = loop {
            match streams[0].show(&mut adding) {
                Some(Ok(())) => break true,
                Some(Err(notice)) => damage.note(notice),
                None => break false,
            }
        };
        adding.failed.map_or(Ok(is_there), Err)
    }

    fn batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        self.is_over = !self.fill()?;
        if self.rows.count == 0 {
            return Ok(None);
        }
        self.rows.finish(self.layout).map(Some)
    }
}

/// Visitor that adds rows of one stream until a batch is full.
struct Adding<'b, 'l, 'a> {
    layout: &'l Layout<'a>,
    rows: &'b mut Rows,
    scratch: &'b mut Scratch,
    selection: &'b mut Option<Selection>,
    writers: &'b mut Option<Writers>,
    failed: Option<ArrowError>,
}

impl Viewer for Adding<'_, '_, '_> {
    #[inline(always)]
    fn see(&mut self, number: usize, event: &EventFields<'_>) -> bool {
        let Some(class) = self.layout.chosen.get(number) else { return true };
        if !self.layout.request.is_within(event.time_ns) {
            return true;
        }
        if let Some(writers) = self.writers {
            let selection = self.selection.as_mut();
            if selection.is_some_and(|selection| !selection.wants_fields(&class.class, event, writers)) {
                return true;
            }
            if self.rows.needs_writers() {
                self.rows.writer(&writers.of_fields(&class.class, event));
            }
        }
        match self.rows.add(class, event, self.scratch) {
            Ok(()) => !self.rows.is_full(),
            Err(error) => {
                self.failed = Some(error);
                false
            }
        }
    }
}

impl Rows {
    fn new(layout: &Layout<'_>) -> Rows {
        let columns = layout.columns();
        let with_elements = (0..columns.len()).filter(|index| columns[*index].has_elements()).collect();
        let origins = [Origin::Time, Origin::Cpu, Origin::Event, Origin::Process, Origin::Json, Origin::Thread];
        Rows {
            count: 0,
            record_bytes: 0,
            times: Vec::new(),
            times_valid: NullBufferBuilder::new(0),
            cpus: Vec::new(),
            cpus_valid: NullBufferBuilder::new(0),
            names: Vec::new(),
            processes: StringBuilder::new(),
            threads: StringBuilder::new(),
            json: StringBuilder::new(),
            extra_bytes: 0,
            columns,
            with_elements,
            needs: origins.map(|origin| layout.origins.contains(&origin)),
        }
    }

    /// Adds an event. Its writer and its JSON text must have been added before.
    #[inline(always)]
    fn add(&mut self, class: &Class<'_>, event: &EventFields<'_>, scratch: &mut Scratch) -> Result<(), ArrowError> {
        if !class.columns.is_empty() {
            self.members(class, event, scratch)?;
        }
        if self.needs[0] {
            self.times.push(event.time_ns.unwrap_or(0));
            self.times_valid.append(event.time_ns.is_some());
        }
        if self.needs[1] {
            self.cpus.push(event.cpu_id);
            self.cpus_valid.append(event.cpu_id != CPU_UNKNOWN);
        }
        if self.needs[2] {
            self.names.push(class.name);
        }
        self.count += 1;
        self.record_bytes += event.size_bytes;
        Ok(())
    }

    #[inline]
    fn members(&mut self, class: &Class<'_>, event: &EventFields<'_>, scratch: &mut Scratch) -> Result<(), ArrowError> {
        class.columns.iter().for_each(|column| self.columns[*column].fill(self.count));
        let mut shown = event.project(&class.projection, scratch, &mut self.columns);
        for (part, column) in &class.parts {
            shown = shown.and_then(|()| event.show(part, scratch, &mut self.columns[*column]));
        }
        shown.map_err(|error| ArrowError::ParseError(format!("a field {error}")))
    }

    #[inline]
    fn is_full(&self) -> bool {
        let has_many = |column: &usize| self.columns[*column].element_count() >= ELEMENTS_MAX;
        self.count >= ROWS_MAX
            || self.extra_bytes >= EXTRA_BYTES_MAX
            || self.record_bytes >= RECORD_BYTES_MAX
            || self.with_elements.iter().any(has_many)
    }

    /// Size of its records and texts, in bytes.
    fn waiting_bytes(&self) -> usize {
        self.record_bytes + self.extra_bytes
    }

    /// Whether a column needs the writers of events.
    fn needs_writers(&self) -> bool {
        self.needs[3] || self.needs[5]
    }

    /// Adds the names of the process and the thread that wrote the next event.
    fn writer(&mut self, writer: &Writer<'_>) {
        if self.needs[3] {
            let name = writer.name.as_deref().map(String::from_utf8_lossy);
            self.extra_bytes += name.as_deref().map_or(0, str::len);
            self.processes.append_option(name);
        }
        if self.needs[5] {
            self.extra_bytes += writer.thread.map_or(0, str::len);
            self.threads.append_option(writer.thread);
        }
    }

    fn json(&mut self, text: &[u8]) {
        self.extra_bytes += text.len();
        self.json.append_value(String::from_utf8_lossy(text));
    }

    fn finish(&mut self, layout: &Layout<'_>) -> Result<RecordBatch, ArrowError> {
        let count = std::mem::take(&mut self.count);
        (self.record_bytes, self.extra_bytes) = (0, 0);
        let times = ScalarBuffer::from(std::mem::replace(&mut self.times, room(self.needs[0], count)));
        let times: ArrayRef =
            Arc::new(TimestampNanosecondArray::try_new(times, self.times_valid.finish())?.with_timezone("UTC"));
        let cpus = ScalarBuffer::from(std::mem::replace(&mut self.cpus, room(self.needs[1], count)));
        let cpus: ArrayRef = Arc::new(UInt32Array::try_new(cpus, self.cpus_valid.finish())?);
        let keys = Int32Array::from(std::mem::replace(&mut self.names, room(self.needs[2], count)));
        let names: ArrayRef = Arc::new(DictionaryArray::try_new(keys, Arc::clone(&layout.names) as ArrayRef)?);
        let processes: ArrayRef = Arc::new(self.processes.finish());
        let threads: ArrayRef = Arc::new(self.threads.finish());
        let json: ArrayRef = Arc::new(self.json.finish());
        let columns = self.columns.iter_mut().map(|column| column.finish(count));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let arrays = layout.origins.iter().map(|origin| match origin {
            Origin::Time => Arc::clone(&times),
            Origin::Cpu => Arc::clone(&cpus),
            Origin::Event => Arc::clone(&names),
            Origin::Process => Arc::clone(&processes),
            Origin::Thread => Arc::clone(&threads),
            Origin::Json => Arc::clone(&json),
            Origin::Members(index) => Arc::clone(&columns[*index]),
        });
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(layout.schema(), arrays.collect(), &options)
    }
}

/// Returns an empty vector, with room for `count` values if it is needed.
fn room<T>(is_needed: bool, count: usize) -> Vec<T> {
    Vec::with_capacity(if is_needed { count } else { 0 })
}

impl<C: Chosen> Iterator for Batches<'_, '_, C> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let batch = self.batch();
        self.is_over |= batch.is_err();
        batch.transpose()
    }
}

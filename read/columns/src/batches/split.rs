//! Separate batches for each class, with the class's own columns, in one pass over the streams.
//!
//! ```text
//!   streams ─▶ merge by time (Batches) ─▶ class ─▶ its rows ─▶ full, or the largest if too many bytes wait ─▶ batch
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use dormouse_ctf::stream::{Choice, Chosen};
use dormouse_ctf::{TraceRef, Writers};

use super::{Batches, Damage, Rows};
use crate::layout::{Extra, Layout, Request, RequestError, STATE};

/// Maximum size of the records and texts that wait in the rows of all classes, in bytes.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Layouts of several classes, one for each.
#[derive(Debug)]
pub struct ByClass<'a> {
    /// Layout of all classes, which chooses the events to read.
    all: Layout<'a>,
    classes: Vec<(String, Layout<'a>)>,
    /// For each class number in `all`: index in `classes`, and class number in that layout.
    places: Vec<(usize, usize)>,
}

impl<'a> ByClass<'a> {
    /// Creates layouts for the classes with these names. Each has all columns of its class, `process` and `thread` unless the
    /// class has a field with this name.
    ///
    /// # Errors
    /// See [`Layout::new`].
    pub fn new(traces: &[TraceRef<'a>], names: &[String]) -> Result<ByClass<'a>, RequestError> {
        let request = Request {
            events: names.to_vec(),
            columns: Some(vec!["time".into(), "event".into()]),
            extras: vec![Extra::Process, Extra::Thread],
            ..Request::default()
        };
        let all = Layout::new(traces, &request)?;
        let mut index = HashMap::new();
        let (mut classes, mut places) = (Vec::<(String, Layout<'a>)>::new(), Vec::new());
        // For each layout: number of its classes that are placed.
        let mut placed: Vec<usize> = Vec::new();
        for chosen in &all.chosen {
            let name = all.names.value(chosen.name as usize);
            let at = match index.entry(name.to_owned()) {
                Entry::Occupied(at) => *at.get(),
                Entry::Vacant(new) => {
                    classes.push((name.to_owned(), of_class(traces, name)?));
                    placed.push(0);
                    *new.insert(classes.len() - 1)
                }
            };
            // Classes with one name have the same order in both layouts. A name can also be a pattern that matches
            // others.
            let layout = &classes[at].1;
            let mut own = layout.chosen.iter().enumerate().skip(placed[at]);
            let own = own.find(|(_, chosen)| layout.names.value(chosen.name as usize) == name);
            let number = own.map_or(0, |(number, _)| number);
            placed[at] = number + 1;
            places.push((at, number));
        }
        Ok(ByClass { all, classes, places })
    }

    /// Returns the names and layouts of the classes.
    pub fn classes(&self) -> impl Iterator<Item = (&str, &Layout<'a>)> {
        self.classes.iter().map(|(name, layout)| (name.as_str(), layout))
    }

    /// Returns which events to read, see [`Layout::choice`].
    pub fn choice(&self, trace: usize) -> &Choice<'a> {
        self.all.choice(trace)
    }

    /// Returns the requested times, see [`Layout::times`].
    pub fn times(&self) -> (i64, i64) {
        self.all.times()
    }
}

fn of_class<'a>(traces: &[TraceRef<'a>], name: &str) -> Result<Layout<'a>, RequestError> {
    let request = Request { events: vec![name.into()], ..Request::default() };
    let schema = Layout::new(traces, &request)?.schema();
    let extras = [(Extra::Process, "process"), (Extra::Thread, "thread")].into_iter();
    let extras = extras.filter(|(_, name)| schema.column_with_name(name).is_none()).map(|(extra, _)| extra).collect();
    let columns = schema.fields().iter().map(|field| field.name().clone()).filter(|column| column != "event").collect();
    Layout::new(traces, &Request { columns: Some(columns), extras, ..request })
}

/// Iterator over batches of single classes: the index of the class in [`ByClass::classes`], and rows of it in order of
/// time.
pub struct Split<'l, 'a, C> {
    by_class: &'l ByClass<'a>,
    merge: Batches<'l, 'a, C>,
    /// Rows of each class, once it has had an event.
    rows: Vec<Option<Box<Rows>>>,
    /// Size of the records and texts in all rows, in bytes.
    waiting_bytes: usize,
    is_at_end: bool,
}

impl<C> std::fmt::Debug for Split<'_, '_, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Split").field("classes", &self.by_class.classes.len()).finish_non_exhaustive()
    }
}

impl<'l, 'a, C: Chosen> Split<'l, 'a, C> {
    /// Splits streams whose events were chosen by [`ByClass::choice`].
    pub fn of(by_class: &'l ByClass<'a>, streams: impl IntoIterator<Item = C>) -> Split<'l, 'a, C> {
        let rows = by_class.classes.iter().map(|_| None).collect();
        Split { by_class, merge: Batches::of(&by_class.all, streams), rows, waiting_bytes: 0, is_at_end: false }
    }

    /// Takes the processes of all events, which are otherwise those that the state records before an event tell of.
    pub fn with_writers(mut self, writers: Writers) -> Self {
        self.merge = self.merge.with_writers(writers);
        self
    }

    /// Returns the damage found so far.
    pub fn damage(&self) -> &Damage {
        self.merge.damage()
    }

    /// Adds a row to its class. Returns the class whose batch is due, if there is one.
    #[inline]
    fn row(&mut self) -> Result<Option<usize>, ArrowError> {
        let Some((stream, number)) = self.merge.advance() else {
            self.is_at_end = true;
            return Ok(None);
        };
        let Batches { streams, writers, are_writers_known, scratch, .. } = &mut self.merge;
        let (Some(writers), Some(event)) = (writers, streams[stream].event()) else { return Ok(None) };
        if !*are_writers_known && let Some(record) = event.state_record() {
            writers.note(&event, &record);
        }
        if number == STATE {
            return Ok(None);
        }
        let (class, own) = self.by_class.places[number];
        let layout = &self.by_class.classes[class].1;
        let rows = self.rows[class].get_or_insert_with(|| Box::new(Rows::new(layout)));
        let before = rows.waiting_bytes();
        if rows.needs_writers() {
            rows.writer(&writers.of(&event));
        }
        let Some(fields) = streams[stream].fields() else { return Ok(None) };
        rows.add(&layout.chosen[own], &fields, scratch)?;
        self.waiting_bytes += rows.waiting_bytes() - before;
        if rows.is_full() {
            return Ok(Some(class));
        }
        Ok((self.waiting_bytes > WAITING_BYTES_MAX).then(|| self.largest()))
    }

    #[cold]
    fn largest(&self) -> usize {
        let size = |class: &usize| self.rows[*class].as_ref().map_or(0, |rows| rows.waiting_bytes());
        // In reverse, so that the first of equally large ones is found.
        (0..self.rows.len()).rev().max_by_key(size).unwrap_or(0)
    }

    fn batch(&mut self) -> Result<Option<(usize, RecordBatch)>, ArrowError> {
        let mut full = None;
        while full.is_none() && !self.is_at_end {
            full = self.row()?;
        }
        let rest = || self.rows.iter().position(|rows| rows.as_ref().is_some_and(|rows| rows.count > 0));
        let Some(class) = full.or_else(rest) else { return Ok(None) };
        let Some(rows) = &mut self.rows[class] else { return Ok(None) };
        self.waiting_bytes -= rows.waiting_bytes();
        rows.finish(&self.by_class.classes[class].1).map(|batch| Some((class, batch)))
    }
}

impl<C: Chosen> Iterator for Split<'_, '_, C> {
    type Item = Result<(usize, RecordBatch), ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.batch();
        if batch.is_err() {
            // The rows that are left may be affected by the error.
            self.is_at_end = true;
            self.rows.iter_mut().for_each(|rows| *rows = None);
        }
        batch.transpose()
    }
}

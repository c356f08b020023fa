//! Batches of several layouts, filled in one pass over a stream.
//!
//! ```text
//!   stream ─▶ chosen event ─▶ its layout ─▶ rows of that layout ─▶ full, or end of the last stream ─▶ batch
//! ```

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use dormouse_ctf::stream::{Choice, Chosen, EventFields, Viewer};
use dormouse_ctf::{Scratch, Selection, Writers};

use super::{Adding, Damage, Rows};
use crate::layout::{Layout, Origin, STATE};

/// Layouts that are filled in one pass.
pub struct Together<'l, 'a> {
    layouts: Vec<&'l Layout<'a>>,
    /// Choice of events for each trace.
    choices: Vec<Choice<'a>>,
    /// For each class number: index of the layout, and class number in that layout.
    places: Vec<(usize, usize)>,
}

impl std::fmt::Debug for Together<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.layouts.iter().map(|layout| layout.schema())).finish()
    }
}

impl<'l, 'a> Together<'l, 'a> {
    /// Combines layouts of the same traces. Returns `None` if two layouts have a class in common or different times, or
    /// if a layout needs whole events.
    pub fn new(layouts: Vec<&'l Layout<'a>>) -> Option<Together<'l, 'a>> {
        let traces = layouts.first()?.choices.len();
        let (mut choices, mut places) = (vec![Choice::default(); traces], Vec::new());
        for (index, layout) in layouts.iter().enumerate() {
            if layout.times() != layouts[0].times() || layout.origins.contains(&Origin::Json) {
                return None;
            }
            let base = places.len();
            let number = |number| if number == STATE { STATE } else { base + number };
            for (choice, of) in choices.iter_mut().zip(&layout.choices) {
                if !choice.join(of, number) {
                    return None;
                }
            }
            places.extend((0..layout.chosen.len()).map(|number| (index, number)));
        }
        Some(Together { layouts, choices, places })
    }

    /// Returns which events to read of a trace, see [`Layout::choice`].
    pub fn choice(&self, trace: usize) -> &Choice<'a> {
        &self.choices[trace]
    }

    /// Whether a condition or a column needs the processes that wrote the events.
    pub fn needs_writers(&self) -> bool {
        let is_of_writer = |origin: &Origin| matches!(origin, Origin::Process | Origin::Thread);
        self.layouts.iter().any(|layout| !layout.filters.is_empty() || layout.origins.iter().any(is_of_writer))
    }

    /// Returns empty rows for all layouts. `writers` has the processes that wrote the events, if they are needed.
    pub fn rows(&'l self, writers: Option<Writers>) -> TogetherRows<'l, 'a> {
        let selection = |layout: &&Layout<'_>| {
            (!layout.filters.is_empty()).then(|| Selection::unchecked(Vec::new(), layout.filters.clone()))
        };
        TogetherRows {
            together: self,
            rows: self.layouts.iter().map(|layout| Rows::new(layout)).collect(),
            selections: self.layouts.iter().map(selection).collect(),
            writers,
            scratch: Scratch::default(),
            full: None,
            failed: None,
        }
    }
}

/// The current rows of all layouts.
pub struct TogetherRows<'l, 'a> {
    together: &'l Together<'l, 'a>,
    rows: Vec<Rows>,
    selections: Vec<Option<Selection>>,
    writers: Option<Writers>,
    scratch: Scratch,
    /// Layout whose batch is due.
    full: Option<usize>,
    failed: Option<ArrowError>,
}

impl std::fmt::Debug for TogetherRows<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TogetherRows").field("together", self.together).finish_non_exhaustive()
    }
}

impl TogetherRows<'_, '_> {
    /// Returns the next batch of a stream whose events were chosen by [`Together::choice`], with the index of its
    /// layout. Returns `None` at the end of the stream: remaining rows wait for the next stream or
    /// [`TogetherRows::rest`].
    ///
    /// # Errors
    /// A column has more values than Arrow can hold.
    pub fn next(
        &mut self,
        stream: &mut impl Chosen,
        damage: &mut Damage,
    ) -> Option<Result<(usize, RecordBatch), ArrowError>> {
        loop {
            match stream.show(self) {
                Some(Ok(())) => {
                    let layout = self.full.take().unwrap_or(0);
                    return Some(self.failed.take().map_or_else(|| self.batch(layout), Err));
                }
                Some(Err(notice)) => damage.note(notice),
                None => return None,
            }
        }
    }

    /// Returns a batch of remaining rows, with the index of its layout, or `None` if there are none.
    ///
    /// # Errors
    /// A column has more values than Arrow can hold.
    pub fn rest(&mut self) -> Option<Result<(usize, RecordBatch), ArrowError>> {
        self.rows.iter().position(|rows| rows.count > 0).map(|layout| self.batch(layout))
    }

    fn batch(&mut self, layout: usize) -> Result<(usize, RecordBatch), ArrowError> {
        Ok((layout, self.rows[layout].finish(self.together.layouts[layout])?))
    }
}

impl Viewer for TogetherRows<'_, '_> {
    #[inline]
    fn see(&mut self, number: usize, event: &EventFields<'_>) -> bool {
        let Some((layout, number)) = self.together.places.get(number).copied() else { return true };
        let TogetherRows { together, rows, selections, writers, scratch, .. } = self;
        let (rows, selection) = (&mut rows[layout], &mut selections[layout]);
        let mut adding = Adding { layout: together.layouts[layout], rows, scratch, selection, writers, failed: None };
        let goes_on = adding.see(number, event);
        if !goes_on {
            (self.failed, self.full) = (adding.failed, Some(layout));
        }
        goes_on
    }
}

//! Events of chosen classes, and of these the chosen members.

use super::{Event, Notice, Scratch, Source, StreamReader};
use crate::plan::{FieldError, Projection, StreamPlan, Visitor};
use crate::select::ClassRef;

/// Which classes of a trace are read, and what of each.
#[derive(Debug, Clone, Default)]
pub struct Choice<'a> {
    /// By the index of the class, its number.
    streams: Vec<(&'a StreamPlan, Vec<Option<usize>>)>,
}

impl<'a> Choice<'a> {
    /// Chooses a class. `number` is what [`StreamReader::next_chosen`] tells of its events.
    pub fn add(&mut self, class: ClassRef<'a>, number: usize) {
        let at = self.streams.iter().position(|(plan, _)| std::ptr::eq(*plan, class.plan)).unwrap_or_else(|| {
            self.streams.push((class.plan, Vec::new()));
            self.streams.len() - 1
        });
        let Some(index) = class.plan.class_index(class.class.id) else { return };
        let numbers = &mut self.streams[at].1;
        numbers.resize(numbers.len().max(index + 1), None);
        numbers[index] = Some(number);
    }

    #[inline(always)]
    fn number(&self, plan: &StreamPlan, class: usize) -> Option<usize> {
        let (_, numbers) = self.streams.iter().find(|(known, _)| std::ptr::eq(*known, plan))?;
        *numbers.get(class)?
    }
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// Goes to the next event of a chosen class, and gives the class's number and the event's time in nanoseconds since the epoch
    /// (`None` without a clock). Of other events no more is read than where they end.
    pub fn next_chosen(&mut self, choice: &Choice<'a>) -> Option<Result<(usize, Option<i64>), Notice>> {
        loop {
            match self.count_next(u64::MAX)? {
                Ok(counted) => {
                    if let Some(number) = choice.number(counted.plan, counted.class) {
                        return Some(Ok((number, self.time_ns())));
                    }
                }
                Err(notice) => return Some(Err(notice)),
            }
        }
    }

    /// The event that [`StreamReader::next_chosen`] has come to.
    pub fn chosen(&self) -> Option<Event<'_>> {
        self.event()
    }
}

impl Event<'_> {
    /// Shows chosen members of contexts and fields, each to its visitor.
    ///
    /// # Errors
    /// The projection is that of another class.
    #[inline]
    pub fn project<V: Visitor>(
        &self,
        projection: &Projection,
        scratch: &mut Scratch,
        visitors: &mut [V],
    ) -> Result<(), FieldError> {
        scratch.0.restart(&self.body.outer);
        projection.show(&mut self.cursor(), &mut scratch.0, visitors)
    }
}

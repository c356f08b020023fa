//! Events of chosen classes, with their chosen members.

use super::block::Measured;
use super::records::{At, Next, Way};
use super::{Block, Event, EventFields, Notice, Passed, Source, StreamReader};
use crate::plan::{Memory, NOT_PLAIN, PlainRecords, Skimming, StreamPlan};
use crate::select::ClassRef;
use crate::time::Scale;

/// A choice of classes of a trace.
#[derive(Debug, Clone, Default)]
pub struct Choice<'a> {
    streams: Vec<OfStreams<'a>>,
}

/// Chosen classes of one stream class.
#[derive(Debug, Clone)]
struct OfStreams<'a> {
    plan: &'a StreamPlan,
    /// Numbers of the chosen classes, by index of the class.
    numbers: Vec<Option<usize>>,
    /// Records that are not chosen, by id of the class.
    others: Vec<Other>,
}

/// Value of [`Skimming::step_bytes`] for records that are not chosen.
#[derive(Debug, Clone, Copy)]
struct Other(usize);

impl Skimming for Other {
    #[inline(always)]
    fn step_bytes(&self) -> usize {
        self.0
    }

    #[inline(always)]
    fn count(&self) {}
}

impl<'a> Choice<'a> {
    /// Chooses a class. [`StreamReader::next_chosen`] returns `number` for its events.
    pub fn add(&mut self, class: ClassRef<'a>, number: usize) {
        let Some(index) = class.plan.class_index(class.class.id) else { return };
        let of = self.of_mut(class.plan);
        of.numbers.resize(of.numbers.len().max(index + 1), None);
        of.numbers[index] = Some(number);
        if let Some(other) = of.others.get_mut(class.class.id as usize) {
            *other = Other(NOT_PLAIN);
        }
    }

    fn of_mut(&mut self, plan: &'a StreamPlan) -> &mut OfStreams<'a> {
        let at = self.streams.iter().position(|of| std::ptr::eq(of.plan, plan)).unwrap_or_else(|| {
            let others = plan.steps_bytes().map(Other).collect();
            self.streams.push(OfStreams { plan, numbers: Vec::new(), others });
            self.streams.len() - 1
        });
        &mut self.streams[at]
    }

    fn of(&self, plan: &StreamPlan) -> Option<&OfStreams<'a>> {
        self.streams.iter().find(|of| std::ptr::eq(of.plan, plan))
    }

    /// Returns the numbers of the chosen classes, by index of the class.
    fn numbers(&self, plan: &StreamPlan) -> &[Option<usize>] {
        self.of(plan).map_or(&[], |of| &of.numbers)
    }

    /// Adds the classes of another choice, with their numbers mapped by `number`. Returns false if a class is in both
    /// choices with different numbers.
    #[must_use]
    pub fn join(&mut self, other: &Choice<'a>, number: impl Fn(usize) -> usize) -> bool {
        for theirs in &other.streams {
            let of = self.of_mut(theirs.plan);
            of.numbers.resize(of.numbers.len().max(theirs.numbers.len()), None);
            for (mine, theirs) in of.numbers.iter_mut().zip(&theirs.numbers) {
                let Some(theirs) = theirs.map(&number) else { continue };
                if mine.replace(theirs).is_some_and(|mine| mine != theirs) {
                    return false;
                }
            }
            for (mine, theirs) in of.others.iter_mut().zip(&theirs.others) {
                *mine = Other(mine.0.max(theirs.0));
            }
        }
        true
    }
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// Advances to the next event of a chosen class. Returns the class's number and the event's time in nanoseconds
    /// since the epoch (`None` without a clock). Other events are only measured.
    pub fn next_chosen(&mut self, choice: &Choice<'a>) -> Option<Result<(usize, Option<i64>), Notice>> {
        loop {
            // Records of other classes are skipped in place.
            let mut number = None;
            if let Some(packet) = self.packet
                && let numbers = choice.numbers(packet.plan)
                && self.pass_records_at_hand(|passed, _| {
                    number = numbers.get(passed.record.class).copied().flatten();
                    number.is_none()
                })
                && let Some(number) = number
            {
                return Some(Ok((number, self.time_ns())));
            }
            match self.count_next()? {
                Ok(counted) => {
                    if let Some(Some(number)) = choice.numbers(counted.plan).get(counted.class) {
                        return Some(Ok((*number, self.time_ns())));
                    }
                }
                Err(notice) => return Some(Err(notice)),
            }
        }
    }

    /// Returns the event to which [`StreamReader::next_chosen`] advanced.
    pub fn chosen(&self) -> Option<Event<'_>> {
        self.event()
    }

    /// Returns only the fields of that event.
    #[inline(always)]
    pub fn chosen_fields(&self) -> Option<EventFields<'_>> {
        let Event { time_ns, cpu_id, size_bytes, body, .. } = self.event()?;
        Some(EventFields { time_ns, cpu_id, size_bytes, body })
    }

    /// Passes events of chosen classes to `viewer` until a notice, which is returned, until the end (`None`), or until
    /// `viewer` returns false.
    pub fn show_chosen(&mut self, choice: &Choice<'a>, viewer: &mut impl Viewer) -> Option<Result<(), Notice>> {
        loop {
            if let Some(packet) = self.packet {
                let (numbers, others) =
                    choice.of(packet.plan).map_or((&[][..], &[][..]), |of| (&of.numbers, &of.others));
                let (scale, cpu_id) = (self.scale, packet.cpu_id);
                if self.pass_in_way(&mut Showing { numbers, others, scale, cpu_id, viewer }) {
                    return Some(Ok(()));
                }
            }
            match self.count_next()? {
                Ok(counted) => {
                    if let Some(Some(number)) = choice.numbers(counted.plan).get(counted.class)
                        && self.chosen_fields().is_some_and(|fields| !viewer.see(*number, &fields))
                    {
                        return Some(Ok(()));
                    }
                }
                Err(notice) => return Some(Err(notice)),
            }
        }
    }

    /// Keeps events of chosen classes and their classes' numbers, until a notice, which is returned, or until the end.
    pub fn keep_chosen(&mut self, choice: &Choice<'a>, block: &mut Block<'a>, kept: &mut Vec<usize>) -> Option<Notice> {
        loop {
            if let Some(packet) = self.packet {
                let numbers = choice.numbers(packet.plan);
                let place = self.packet_in(block, packet.plan, packet.cpu_id);
                self.pass_records_at_hand(|passed, memory| {
                    if let Some(Some(number)) = numbers.get(passed.record.class) {
                        let Passed { record, begin, timestamp, .. } = *passed;
                        let event = Measured { record, begin, timestamp, time_ns: None, outer: memory.outer() };
                        block.push(place, event, passed.body());
                        kept.push(*number);
                    }
                    true
                });
            }
            match self.count_next()? {
                Ok(counted) => {
                    if let Some(Some(number)) = choice.numbers(counted.plan).get(counted.class) {
                        self.keep(block, None);
                        kept.push(*number);
                    }
                }
                Err(notice) => return Some(notice),
            }
        }
    }
}

/// The chosen events of a stream.
pub trait Chosen {
    /// Advances to the next event, see [`StreamReader::next_chosen`].
    fn next(&mut self) -> Option<Result<(usize, Option<i64>), Notice>>;

    /// Returns the event to which [`Chosen::next`] advanced.
    fn event(&self) -> Option<Event<'_>>;

    /// Returns only the fields of that event.
    fn fields(&self) -> Option<EventFields<'_>>;

    /// Passes the events one after another to `viewer`, see [`StreamReader::show_chosen`].
    #[inline]
    fn show(&mut self, viewer: &mut impl Viewer) -> Option<Result<(), Notice>> {
        loop {
            match self.next()? {
                Ok((number, _)) => {
                    if self.fields().is_some_and(|fields| !viewer.see(number, &fields)) {
                        return Some(Ok(()));
                    }
                }
                Err(notice) => return Some(Err(notice)),
            }
        }
    }
}

/// Receiver of chosen events.
pub trait Viewer {
    /// Receives an event with its class's number. Returns false to stop.
    fn see(&mut self, number: usize, event: &EventFields<'_>) -> bool;
}

/// Passes the chosen records to a viewer in place.
struct Showing<'c, V> {
    /// Numbers of the chosen classes, by index of the class.
    numbers: &'c [Option<usize>],
    others: &'c [Other],
    scale: Option<Scale>,
    cpu_id: u32,
    viewer: &'c mut V,
}

/// Number of consecutive unchosen records after which the next ones are skimmed.
const OTHERS: u32 = 8;

impl<V: Viewer> Showing<'_, V> {
    #[inline(always)]
    fn one(&mut self, passed: &Passed<'_>, memory: &Memory) -> bool {
        let Some(Some(number)) = self.numbers.get(passed.record.class) else { return true };
        let time_ns = self.scale.map(|scale| scale.epoch_ns(passed.timestamp));
        let fields = EventFields { time_ns, cpu_id: self.cpu_id, ..passed.fields(memory) };
        self.viewer.see(*number, &fields)
    }
}

impl<V: Viewer> Way for Showing<'_, V> {
    #[inline(always)]
    fn pass_plain(&mut self, at: &At<'_>, passed: &mut Passed<'_>) -> (u64, Next) {
        let (mut cursor, mut events) = (at.cursor.clone(), 0);
        loop {
            let skimmed = at.plan.skim(&cursor, passed.timestamp, at.timestamp_end, self.others);
            events += skimmed.events;
            (passed.record.end, passed.timestamp, cursor.position) = (skimmed.end, skimmed.timestamp, skimmed.end);
            let mut others = 0;
            let mut plain = at.plan.plain_records(&cursor);
            while others < OTHERS {
                let Some(record) = plain.as_mut().and_then(PlainRecords::next) else { return (events, Next::Other) };
                let Some(next) = passed.next(record, at.timestamp_end) else { return (events, Next::Said) };
                *passed = next;
                events += 1;
                if !self.one(passed, at.memory) {
                    return (events, Next::Seen);
                }
                let is_chosen = matches!(self.numbers.get(passed.record.class), Some(Some(_)));
                others = if is_chosen { 0 } else { others + 1 };
            }
            cursor.position = passed.record.end;
        }
    }

    // Not inlined, so that the loop over plain records stays small.
    #[inline(never)]
    fn see(&mut self, passed: &Passed<'_>, memory: &Memory) -> bool {
        self.one(passed, memory)
    }
}

/// The chosen events of a stream, which are read on demand.
#[derive(Debug)]
pub struct ChosenOf<'c, 'a, S> {
    reader: StreamReader<'a, S>,
    choice: &'c Choice<'a>,
}

impl<'c, 'a, S> ChosenOf<'c, 'a, S> {
    /// Returns the chosen events of this reader.
    pub fn new(reader: StreamReader<'a, S>, choice: &'c Choice<'a>) -> ChosenOf<'c, 'a, S> {
        ChosenOf { reader, choice }
    }
}

impl<S: Source> Chosen for ChosenOf<'_, '_, S> {
    #[inline]
    fn next(&mut self) -> Option<Result<(usize, Option<i64>), Notice>> {
        self.reader.next_chosen(self.choice)
    }

    #[inline(always)]
    fn event(&self) -> Option<Event<'_>> {
        self.reader.chosen()
    }

    #[inline(always)]
    fn fields(&self) -> Option<EventFields<'_>> {
        self.reader.chosen_fields()
    }

    #[inline]
    fn show(&mut self, viewer: &mut impl Viewer) -> Option<Result<(), Notice>> {
        self.reader.show_chosen(self.choice, viewer)
    }
}

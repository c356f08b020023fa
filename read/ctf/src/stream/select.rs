//! Events of chosen classes, and of these the chosen members.

use super::block::Measured;
use super::event::Body;
use super::records::{At, Next, Way};
use super::{Block, Event, EventFields, Notice, Passed, Source, StreamReader};
use crate::plan::{Memory, NOT_PLAIN, PlainRecords, Record, Skimming, StreamPlan};
use crate::select::ClassRef;
use crate::time::Scale;

/// Which classes of a trace are read, and what of each.
#[derive(Debug, Clone, Default)]
pub struct Choice<'a> {
    streams: Vec<OfStreams<'a>>,
}

/// The chosen classes of a class of streams.
#[derive(Debug, Clone)]
struct OfStreams<'a> {
    plan: &'a StreamPlan,
    /// By the index of the class, its number.
    numbers: Vec<Option<usize>>,
    /// By the id of the class, of records that are passed by.
    others: Vec<Other>,
}

/// [`Skimming::step_bytes`] of records that are not chosen.
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
    /// Chooses a class. `number` is what [`StreamReader::next_chosen`] tells of its events.
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

    /// By the index of the class.
    fn numbers(&self, plan: &StreamPlan) -> &[Option<usize>] {
        self.of(plan).map_or(&[], |of| &of.numbers)
    }

    /// Chooses what another one does, too, its numbers changed by `number`; false: a class is in both already, and with other numbers.
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
    /// Goes to the next event of a chosen class, and gives the class's number and the event's time in nanoseconds since the epoch
    /// (`None` without a clock). Of other events no more is read than where they end.
    pub fn next_chosen(&mut self, choice: &Choice<'a>) -> Option<Result<(usize, Option<i64>), Notice>> {
        loop {
            // Records of other classes are passed by where they are.
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

    /// The event that [`StreamReader::next_chosen`] has come to.
    pub fn chosen(&self) -> Option<Event<'_>> {
        self.event()
    }

    /// Its fields alone.
    #[inline(always)]
    pub fn chosen_fields(&self) -> Option<EventFields<'_>> {
        let Event { time_ns, cpu_id, size_bytes, body, .. } = self.event()?;
        Some(EventFields { time_ns, cpu_id, size_bytes, body })
    }

    /// Shows events of chosen classes, up to the next notice, which it gives, the end (`None`), or an event with which `viewer` has enough.
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

    /// Keeps events of chosen classes with their classes' numbers, up to the next notice, which it gives, or the end.
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
    /// Goes to the next one, see [`StreamReader::next_chosen`].
    fn next(&mut self) -> Option<Result<(usize, Option<i64>), Notice>>;

    /// The one that [`Chosen::next`] has come to.
    fn event(&self) -> Option<Event<'_>>;

    /// Its fields alone.
    fn fields(&self) -> Option<EventFields<'_>>;

    /// Shows them one after another, see [`StreamReader::show_chosen`].
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

/// Whoever is shown chosen events.
pub trait Viewer {
    /// Looks at one, with its class's number; false: that is enough for now.
    fn see(&mut self, number: usize, event: &EventFields<'_>) -> bool;
}

/// Those that are chosen are shown where they are.
struct Showing<'c, V> {
    /// By the index of the class.
    numbers: &'c [Option<usize>],
    others: &'c [Other],
    scale: Option<Scale>,
    cpu_id: u32,
    viewer: &'c mut V,
}

/// So many records that are not chosen follow one another before others are passed by without a look.
const OTHERS: u32 = 8;

impl<V: Viewer> Showing<'_, V> {
    #[inline(always)]
    fn one(&mut self, passed: &Passed<'_>, memory: &Memory) -> bool {
        let Some(Some(number)) = self.numbers.get(passed.record.class) else { return true };
        let Record { body, end, .. } = passed.record;
        let fields = EventFields {
            time_ns: self.scale.map(|scale| scale.epoch_ns(passed.timestamp)),
            cpu_id: self.cpu_id,
            size_bytes: passed.size_bytes() as usize,
            body: Body { bytes: passed.body(), begin: body, end, outer: memory.outer() },
        };
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

    // Apart, so that the loop over plain ones is small.
    #[inline(never)]
    fn see(&mut self, passed: &Passed<'_>, memory: &Memory) -> bool {
        self.one(passed, memory)
    }
}

/// The chosen events of a stream, which are read when they are asked for.
#[derive(Debug)]
pub struct ChosenOf<'c, 'a, S> {
    reader: StreamReader<'a, S>,
    choice: &'c Choice<'a>,
}

impl<'c, 'a, S> ChosenOf<'c, 'a, S> {
    /// Reads this stream.
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

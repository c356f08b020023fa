//! Events of chosen classes, and of these the chosen members.

use super::block::Measured;
use super::event::Body;
use super::records::{At, Next, Shown, Way};
use super::{Block, Event, EventFields, Notice, Passed, Source, StreamReader};
use crate::plan::{Memory, Record, StreamPlan};
use crate::select::ClassRef;
use crate::time::Scale;

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

    /// By the index of the class.
    fn numbers(&self, plan: &StreamPlan) -> &[Option<usize>] {
        self.streams.iter().find(|(known, _)| std::ptr::eq(*known, plan)).map_or(&[], |(_, numbers)| numbers)
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
                let (numbers, scale, cpu_id) = (choice.numbers(packet.plan), self.scale, packet.cpu_id);
                if self.pass_in_way(&mut Showing { numbers, scale, cpu_id, viewer }) {
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
    scale: Option<Scale>,
    cpu_id: u32,
    viewer: &'c mut V,
}

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
        Shown(|passed: &Passed<'_>, memory: &Memory| self.one(passed, memory)).pass_plain(at, passed)
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

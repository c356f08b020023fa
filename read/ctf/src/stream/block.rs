//! Events that are kept while reading of their streams continues, so that another thread can process them.

use super::event::{Body, PacketStartRef};
use super::trace::TraceRef;
use super::{Current, Event, EventFields, Source, StreamReader};
use crate::plan::{Class, Cursor, Outer, Record, StreamPlan};
use crate::time::Scale;

/// A sequence of events, copied out of their streams.
#[derive(Debug, Default)]
pub struct Block<'a> {
    /// Contexts and fields of the events, and headers and contexts of the packets.
    bytes: Vec<u8>,
    packets: Vec<Packet<'a>>,
    /// Values of header fields. Consecutive elements differ.
    outers: Vec<Outer>,
    events: Vec<Kept>,
    /// Sequence number and index in `packets` of the last packet, by stream.
    last: Vec<Option<(u64, u32)>>,
}

/// Properties that the events of a packet share.
#[derive(Debug)]
struct Packet<'a> {
    stream: usize,
    trace: TraceRef<'a>,
    plan: &'a StreamPlan,
    cpu_id: u32,
    scale: Option<Scale>,
    index: u64,
    /// Range of header and context in the block's bytes.
    bytes: (usize, usize),
    context: u64,
    outer: Outer,
}

/// An event in a block. The structure is small because another thread's CPU must fetch it.
#[derive(Debug)]
struct Kept {
    /// Indices of its packet, its class, and its values of header fields.
    packet: u32,
    class: u32,
    outer: u32,
    timestamp: u64,
    /// Time in nanoseconds since the epoch. Meaningless without a clock.
    time_ns: i64,
    /// Offset of the event in the block's bytes.
    offset: usize,
    /// Start of the record, start of its contexts, and end, in bits from the packet's start.
    record: u64,
    begin: u64,
    end: u64,
}

impl Kept {
    #[inline(always)]
    fn size_bytes(&self) -> usize {
        (self.end - self.record).div_ceil(8) as usize
    }
}

/// A reader's knowledge about an event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub record: Record,
    /// Start of the record, in bits from the packet's start.
    pub begin: u64,
    pub timestamp: u64,
    /// Time in nanoseconds since the epoch; `None` if it has not been computed yet. Meaningless without a clock.
    pub time_ns: Option<i64>,
    pub outer: Outer,
}

/// Readable bytes after an event's last byte, which allow reading numbers a word at a time.
const PADDING: [u8; 8] = [0; 8];

impl<'a> Block<'a> {
    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns the number of bytes that are kept for the events.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the time of the last event that has one.
    pub fn last_ns(&self) -> Option<i64> {
        self.events.iter().rev().find_map(|event| self.time_of(event))
    }

    /// Removes all events and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
        self.outers.clear();
        self.events.clear();
        self.last.clear();
    }

    /// Returns the events.
    #[inline]
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        self.events.iter().filter_map(|kept| self.event(kept))
    }

    /// Returns an event by its index.
    #[inline(always)]
    pub fn get(&self, index: usize) -> Option<Event<'_>> {
        self.event(self.events.get(index)?)
    }

    /// Returns an event's class and fields, by its index.
    #[inline(always)]
    pub fn fields(&self, index: usize) -> Option<(&'a Class, EventFields<'_>)> {
        let kept = self.events.get(index)?;
        let packet = self.packets.get(kept.packet as usize)?;
        let fields = EventFields {
            time_ns: packet.scale.map(|_| kept.time_ns),
            cpu_id: packet.cpu_id,
            size_bytes: kept.size_bytes(),
            body: self.body(kept)?,
        };
        Some((packet.plan.class_at(kept.class as usize), fields))
    }

    #[inline(always)]
    fn body(&self, kept: &Kept) -> Option<Body<'_>> {
        let outer = *self.outers.get(kept.outer as usize)?;
        Some(Body { bytes: self.bytes.get(kept.offset..)?, begin: kept.begin, end: kept.end, outer })
    }

    /// Returns the time of an event in nanoseconds since the epoch, if it has one.
    #[inline(always)]
    pub fn time_ns(&self, index: usize) -> Option<i64> {
        self.time_of(self.events.get(index)?)
    }

    #[inline(always)]
    fn time_of(&self, kept: &Kept) -> Option<i64> {
        self.packets.get(kept.packet as usize)?.scale.map(|_| kept.time_ns)
    }

    /// Adds an event of the packet with this index. `body` starts at the byte in which the contexts begin, and extends
    /// at least to the event's end.
    #[inline(never)]
    pub(super) fn push(&mut self, packet: u32, event: Measured, body: &[u8]) {
        let Measured { record, begin, timestamp, time_ns, outer } = event;
        let size_bytes = (record.end - record.body / 8 * 8).div_ceil(8) as usize;
        let offset = self.bytes.len();
        match body.get(..size_bytes + PADDING.len()) {
            // The bytes that follow the event serve as padding.
            Some(body) => self.bytes.extend_from_slice(body),
            None => {
                self.bytes.extend_from_slice(body.get(..size_bytes).unwrap_or(body));
                self.bytes.extend_from_slice(&PADDING);
            }
        }
        // Compares number by number: a combined load of two would wait until both stores are complete.
        let is_same =
            |last: &Outer| last.iter().zip(outer).fold(0, |differ, (last, next)| differ | (*last ^ next)) == 0;
        if !self.outers.last().is_some_and(is_same) {
            self.outers.push(outer);
        }
        self.events.push(Kept {
            packet,
            class: record.class as u32,
            outer: self.outers.len() as u32 - 1,
            timestamp,
            time_ns: time_ns
                .or_else(|| Some(self.packets.get(packet as usize)?.scale?.epoch_ns(timestamp)))
                .unwrap_or(0),
            offset,
            record: begin,
            begin: record.body,
            end: record.end,
        });
    }

    #[inline(always)]
    fn event(&self, kept: &Kept) -> Option<Event<'_>> {
        let packet = self.packets.get(kept.packet as usize)?;
        let class = kept.class as usize;
        let body = self.body(kept)?;
        Some(Event {
            stream: packet.stream,
            timestamp: kept.timestamp,
            time_ns: packet.scale.map(|_| kept.time_ns),
            class: packet.plan.class_at(class),
            cpu_id: packet.cpu_id,
            context: packet.plan.who(&Cursor::new(body.bytes, kept.begin / 8 * 8, kept.begin, kept.end)),
            size_bytes: kept.size_bytes(),
            trace: packet.trace,
            plan: packet.plan,
            class_index: class,
            body,
            packet: PacketStartRef {
                index: packet.index,
                bytes: self.bytes.get(packet.bytes.0..packet.bytes.1)?,
                context: packet.context,
                outer: packet.outer,
            },
        })
    }
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// Keeps the reader's current event. `time_ns` is its time, if it is known.
    #[inline]
    pub(crate) fn keep(&self, block: &mut Block<'a>, time_ns: Option<i64>) {
        let Some(current) = &self.current else { return };
        let packet = self.packet_in(block, current.plan, current.cpu_id);
        let Current { record, begin, timestamp, .. } = *current;
        let event = Measured { record, begin, timestamp, time_ns, outer: self.memory.outer() };
        block.push(packet, event, self.source.fetched(current.body_offset()));
    }

    /// Returns the index of the reader's current packet in the block, and adds the packet if it is new.
    #[inline]
    pub(super) fn packet_in(&self, block: &mut Block<'a>, plan: &'a StreamPlan, cpu_id: u32) -> u32 {
        match block.last.get(self.stream) {
            Some(Some((index, packet))) if *index == self.at.1 => *packet,
            _ => self.keep_packet(block, plan, cpu_id),
        }
    }

    #[cold]
    fn keep_packet(&self, block: &mut Block<'a>, plan: &'a StreamPlan, cpu_id: u32) -> u32 {
        let begin = block.bytes.len();
        block.bytes.extend_from_slice(&self.header);
        let end = block.bytes.len();
        block.bytes.extend_from_slice(&PADDING);
        let (context, outer) = self.last.map_or((0, Outer::default()), |opened| (opened.context, opened.outer));
        let number = block.packets.len() as u32;
        block.packets.push(Packet {
            stream: self.stream,
            trace: self.trace,
            plan,
            cpu_id,
            scale: self.scale,
            index: self.at.1,
            bytes: (begin, end),
            context,
            outer,
        });
        if block.last.len() <= self.stream {
            block.last.resize(self.stream + 1, None);
        }
        block.last[self.stream] = Some((self.at.1, number));
        number
    }
}

//! Streams that somebody still writes: read as far as they are there, and later from there on.

use super::notice::Problem;
use super::{Opened, Packet, Source, StreamReader};
use crate::plan::Memory;
use crate::totals::StreamTotals;

/// How far a stream has been read.
#[derive(Debug, Clone)]
pub struct Position {
    next: (u64, u64),
    time: u64,
    last: Option<Opened>,
    size_bytes_last: u64,
    discarded_most: Option<u64>,
    totals: StreamTotals,
    is_over: bool,
    inside: Option<Inside>,
}

/// A packet that has not been read to its end.
#[derive(Debug, Clone)]
struct Inside {
    at: (u64, u64),
    /// Header and context.
    header: Vec<u8>,
    /// Of the next record, in bits from the packet's start.
    position: u64,
    end: u64,
    timestamp_end: u64,
    cpu_id: u32,
    is_partly: bool,
    cut_bytes: Option<(u64, u64)>,
}

impl Position {
    /// As [`StreamTotals::events_discarded`].
    pub fn events_discarded(&self) -> u64 {
        self.totals.events_discarded
    }

    /// Whether nothing that comes later is read: it is damaged there, or behind the time that is asked for.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// Ends before the first packet that is not whole within so many bytes: it is still being written.
    #[must_use]
    pub fn growing(mut self, size_bytes: u64) -> StreamReader<'a, S> {
        self.end = self.end.min(size_bytes);
        self.growing = Some(self.end);
        self
    }

    /// How far it has been read: to its end, or to the event that it has come to, which is still to come.
    pub fn position(&self) -> Position {
        // Its time is what it will be taken for again: no time before it is left to be told.
        let ahead = self.current.as_ref();
        let inside = self.packet.as_ref().map(|packet| Inside {
            at: self.at,
            header: self.header.clone(),
            position: ahead.map_or(packet.position, |ahead| ahead.begin),
            end: packet.end,
            timestamp_end: packet.timestamp_end,
            cpu_id: packet.cpu_id,
            is_partly: packet.is_partly,
            cut_bytes: packet.cut_bytes,
        });
        let events = self.totals.events - u64::from(ahead.is_some());
        Position {
            next: self.next,
            time: self.time,
            last: self.last,
            size_bytes_last: self.size_bytes_last,
            discarded_most: self.discarded_most,
            totals: StreamTotals { events, ..self.totals },
            is_over: self.end < self.growing.unwrap_or(self.source.size_bytes()),
            inside,
        }
    }

    /// Goes on where another reader of the same stream has come to.
    #[must_use]
    pub fn resumed(mut self, position: &Position) -> StreamReader<'a, S> {
        let Position { next, time, last, size_bytes_last, discarded_most, totals, is_over, inside } = position.clone();
        self = StreamReader { next, time, last, size_bytes_last, discarded_most, totals, ..self };
        if let Some(opened) = self.last
            && let Some(plan) = self.trace.plan.stream(opened.stream_id)
        {
            self.set_scale(plan);
            self.memory = Memory::with_outer(&opened.outer);
            self.packet = inside.map(|inside| {
                (self.at, self.header) = (inside.at, inside.header);
                Packet {
                    plan,
                    offset: inside.at.0,
                    position: inside.position,
                    end: inside.end,
                    timestamp_end: inside.timestamp_end,
                    cpu_id: inside.cpu_id,
                    is_partly: inside.is_partly,
                    cut_bytes: inside.cut_bytes,
                }
            });
        }
        if is_over {
            self.end = 0;
        }
        self
    }

    pub(super) fn is_whole_here(&mut self) -> bool {
        match self.next_header().and_then(|(_, start)| self.sizes(&start)) {
            Ok((_, packet_size_bytes)) => packet_size_bytes <= self.end - self.next.0,
            Err(Problem::CutOff { .. }) => false,
            // What is wrong is told when it is opened.
            Err(_) => true,
        }
    }
}

//! Streams that are still being written. They are read up to their current end, and later continued from there.

use super::notice::Problem;
use super::{Opened, Packet, Source, StreamReader};
use crate::plan::Memory;
use dormouse_format::StreamTotals;

/// Position in a stream up to which it has been read.
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
    /// Bytes of header and context.
    header: Vec<u8>,
    /// Position of the next record, in bits from the packet's start.
    position: u64,
    end: u64,
    timestamp_end: u64,
    cpu_id: u32,
    is_partly: bool,
    cut_bytes: Option<(u64, u64)>,
}

impl Position {
    /// Number of discarded events, see [`StreamTotals::events_discarded`].
    pub fn events_discarded(&self) -> u64 {
        self.totals.events_discarded
    }

    /// Whether nothing more will be read, because the stream is damaged or has passed the requested time.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// Ends the reader before the first packet that is not complete within `size_bytes`, because it is still being
    /// written.
    #[must_use]
    pub fn growing(mut self, size_bytes: u64) -> StreamReader<'a, S> {
        self.end = self.end.min(size_bytes);
        self.growing = Some(self.end);
        self
    }

    /// Returns the position of the reader: its end, or the current event, which will be read again.
    pub fn position(&self) -> Position {
        // The time stays that of the current event. Reading the event again results in the same time.
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

    /// Continues at the position of another reader of the same stream.
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
            // Faults are reported when the packet is opened.
            Err(_) => true,
        }
    }
}

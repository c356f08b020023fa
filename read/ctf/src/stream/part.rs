//! Parts of a stream that can be read independently.
//!
//! ```text
//!   stream   ┌ packet ┬ packet ┬ packet ┬ packet ┬ packet ┐     The reader that is cut reads only packet headers, up to the first
//!   parts    └────── first ────┴───── second ────┴─ third ┘     fault. Everything from there on is one part.
//! ```
//! Each part starts with the reader's state at its first packet, so the parts of a stream in order give the same events
//! and notices as the whole stream. This requires packets with begin times; other streams form one part.

use super::{Source, StreamReader};
use crate::plan::Memory;
use dormouse_format::StreamTotals;

impl<'a, S: Source> StreamReader<'a, S> {
    /// Cuts off the next packets of at least `size_bytes` in total, or all remaining ones, to be read from `source`,
    /// which must have the same bytes. Returns `None` at the end. No event may be read from this reader, before or
    /// after.
    pub fn cut<T: Source>(&mut self, size_bytes: u64, source: T) -> Option<StreamReader<'a, T>> {
        if self.next.0 >= self.end {
            return None;
        }
        let mut part = StreamReader {
            trace: self.trace,
            stream: self.stream,
            source,
            end: self.end,
            next: self.next,
            at: self.at,
            packet: None,
            current: None,
            is_ahead: false,
            memory: Memory::default(),
            time: self.time,
            scale: self.scale,
            last_held: self.last_held,
            last: self.last,
            size_bytes_last: self.size_bytes_last,
            discarded_most: self.discarded_most,
            do_packets_begin_late: self.do_packets_begin_late,
            growing: self.growing,
            bounds: self.bounds,
            header: Vec::new(),
            totals: StreamTotals { events: 0, ..self.totals },
            notices: Vec::new(),
        };
        let limit = self.next.0.saturating_add(size_bytes);
        while self.next.0 < limit.min(self.end) {
            let is_sound = matches!(self.open(), Some(Ok(())));
            self.notices.clear();
            // Packets outside the requested time have been skipped.
            let is_apart = self.packet.take().map_or(self.bounds.is_some(), |packet| packet.plan.begins_wholly());
            // If packets can have late begin times, the time of a packet's first event depends on the previous packet.
            if !is_sound || !is_apart || self.do_packets_begin_late {
                self.end = 0;
                return Some(part);
            }
        }
        part.end = self.next.0.min(part.end);
        Some(part)
    }

    /// Returns the source of the bytes.
    pub fn into_source(self) -> S {
        self.source
    }

    /// Returns the number of bytes from the next packet on.
    pub fn rest_bytes(&self) -> u64 {
        self.end.saturating_sub(self.next.0)
    }

    /// Returns the offset at which reading ends. It is lower after a fault that made the rest unreadable.
    pub fn end_bytes(&self) -> u64 {
        self.end
    }
}

//! Parts of a stream, which can be read apart from one another.
//!
//! ```text
//!   stream   ┌ packet ┬ packet ┬ packet ┬ packet ┬ packet ┐     The reader that is cut looks at headers of packets alone, and goes on as far
//!   parts    └────── first ────┴───── second ────┴─ third ┘     as nothing is wrong with them; what is behind that is one part.
//! ```
//! A part is read as the whole is: it begins with what the reader knew there of the packets in front. So the parts of a stream, one after
//! another, give the same events and notices as the stream. That needs packets that say when they begin; other streams are one part.

use super::{Source, StreamReader};
use crate::plan::Memory;
use crate::totals::StreamTotals;

impl<'a, S: Source> StreamReader<'a, S> {
    /// Cuts off the packets in front that have `size_bytes` together, or all that is left, to be read from `source`, which has the same bytes.
    /// `None` at the end. No event has been read of this reader, and none can be from now on.
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
            // One that is outside of the time that is asked for has been passed by.
            let is_apart = self.packet.take().map_or(self.bounds.is_some(), |packet| packet.plan.begins_wholly());
            // Where a packet begins late, its first event counts on from the one before it.
            if !is_sound || !is_apart || self.do_packets_begin_late {
                self.end = 0;
                return Some(part);
            }
        }
        part.end = self.next.0.min(part.end);
        Some(part)
    }

    /// What it reads from.
    pub fn into_source(self) -> S {
        self.source
    }

    /// Bytes from the next packet on.
    pub fn rest_bytes(&self) -> u64 {
        self.end.saturating_sub(self.next.0)
    }

    /// Where the part ends; or, where it has been read and nothing behind can be, before that.
    pub fn end_bytes(&self) -> u64 {
        self.end
    }
}

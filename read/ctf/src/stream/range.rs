//! Which packets and events are of a time that was asked for.

use dormouse_abi::page::STREAM_STATE;

use super::{Opened, Source, StreamReader};
use crate::plan::PacketFields;

/// What a packet's header says of its place and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketSpan {
    /// From the stream's start.
    pub offset_bytes: u64,
    /// Content and padding.
    pub packet_size_bits: u64,
    /// Header and records.
    pub content_size_bits: u64,
    /// Ticks.
    pub timestamp_begin: u64,
    /// Ticks.
    pub timestamp_end: u64,
    /// Of the stream, so far.
    pub events_discarded: u64,
}

/// How a packet's time lies to the time that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lies {
    Before,
    Within,
    Across,
    Behind,
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// Gives the events from the first to the last of these times alone, in nanoseconds since the epoch. Packets that are wholly outside are
    /// passed by their headers, if these have times of 64 bits; what is wrong with such a packet is not said. Streams without a clock give
    /// all, and so does the state stream of Dormouse, which says whose the events are that come later.
    ///
    /// [`StreamReader::totals`] does not tell what the stream holds then.
    #[must_use]
    pub fn within(mut self, first_ns: i64, last_ns: i64) -> StreamReader<'a, S> {
        self.bounds = Some((first_ns, last_ns)).filter(|bounds| *bounds != (i64::MIN, i64::MAX));
        self
    }

    /// The time of the last event, in nanoseconds since the epoch. Of packets but the last that has events only the headers are read, unless
    /// these do not say when it begins.
    pub fn end_ns(mut self) -> Option<i64> {
        let mut last = None;
        while self.open().is_some() {
            self.notices.clear();
            let is_timed = self.last.is_some_and(|opened| opened.fields.timestamp_begin_bits == 64);
            if self.packet.is_some_and(|packet| packet.position < packet.end) {
                last = Some(self.at);
            }
            if !is_timed {
                self.pass_records();
            }
            self.packet = None;
        }
        self.next = last?;
        self.end = self.source.size_bytes();
        self.open()?.ok()?;
        self.pass_records();
        self.time_ns()
    }

    /// Goes to the end of the packet, or to what is no record.
    fn pass_records(&mut self) {
        while let Some(Ok(_)) = self.next_record() {}
    }

    /// Whether only events of some time are given.
    pub fn is_bounded(&self) -> bool {
        self.bounds.is_some()
    }

    /// Goes on with the packet at this offset, which is the one with this index, if a header of a packet that belongs to the stream is
    /// there and says what is expected. The stream has not been read before. False, and nothing is changed, otherwise.
    pub fn seek(&mut self, index: u64, expected: &PacketSpan) -> bool {
        let before = self.next;
        self.next = (expected.offset_bytes, index);
        let is_so = self.next.0 < self.end && self.span_here().as_ref() == Some(expected);
        if !is_so {
            self.next = before;
        }
        is_so
    }

    /// What the header of the next packet says; `None` if it is none, or has no times or sizes.
    fn span_here(&mut self) -> Option<PacketSpan> {
        let offset_bytes = self.next.0;
        let (_, start) = self.next_header().ok()?;
        if self.why_foreign(&start.fields).is_some() {
            return None;
        }
        self.sizes(&start).ok()?;
        let fields = start.fields;
        Some(PacketSpan {
            offset_bytes,
            packet_size_bits: fields.packet_size_bits?,
            content_size_bits: fields.content_size_bits?,
            timestamp_begin: fields.timestamp_begin?,
            timestamp_end: fields.timestamp_end?,
            events_discarded: fields.events_discarded?,
        })
    }

    /// Nanoseconds since the epoch of a time that the stream's packets have.
    pub fn nanoseconds(&mut self, ticks: u64) -> Option<i64> {
        if self.scale.is_none() {
            let (plan, _) = self.next_header().ok()?;
            self.set_scale(plan);
        }
        self.epoch_ns(ticks)
    }

    /// How a packet that has been opened lies to the time that is asked for.
    pub(super) fn lies(&self, stream_id: u64, fields: &PacketFields) -> Lies {
        let (Some((first, last)), Some(scale)) = (self.bounds, self.scale) else { return Lies::Within };
        if self.trace.is_own() && stream_id == u64::from(STREAM_STATE) {
            return Lies::Within;
        }
        let (Some(begin), Some(end), 64) = (fields.timestamp_begin, fields.timestamp_end, fields.timestamp_begin_bits)
        else {
            return Lies::Across;
        };
        let (begin_ns, end_ns) = (scale.epoch_ns(begin), scale.epoch_ns(end));
        match () {
            // Some write no end.
            () if end < begin => Lies::Across,
            () if end_ns < first => Lies::Before,
            () if begin_ns > last => Lies::Behind,
            () if begin_ns >= first && end_ns <= last => Lies::Within,
            () => Lies::Across,
        }
    }

    /// Passes over the records of the packet that was just opened, or over all that is left of the stream.
    pub(super) fn pass_by(&mut self, lies: Lies) {
        if !matches!(lies, Lies::Before | Lies::Behind) {
            return;
        }
        // Between the packet before and this one, events can have been lost in the time that is asked for.
        let bounds = self.bounds.unwrap_or((i64::MIN, i64::MAX));
        self.notices.retain(|problem| problem.may_be_within(bounds));
        self.packet = None;
        if lies == Lies::Behind {
            self.end = 0;
        }
        // The time goes on from there.
        if let Some(Opened { fields: PacketFields { timestamp_end: Some(end), .. }, .. }) = self.last {
            self.time = end;
        }
    }

    /// Whether an event of this time is asked for; `None`: nor is any behind it.
    pub(super) fn is_asked_for(&mut self, time: u64) -> Option<bool> {
        let (Some((first, last)), Some(ns)) = (self.bounds, self.epoch_ns(time)) else { return Some(true) };
        if ns > last {
            (self.end, self.packet, self.current) = (0, None, None);
            return None;
        }
        Some(ns >= first)
    }
}

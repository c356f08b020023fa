//! Selection of packets and events by time.

use dormouse_abi::page::STREAM_STATE;

use super::{Opened, Source, StreamReader};
use crate::plan::PacketFields;

/// Position and times from a packet's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketSpan {
    /// Offset from the stream's start, in bytes.
    pub offset_bytes: u64,
    /// Size of content and padding, in bits.
    pub packet_size_bits: u64,
    /// Size of header and records, in bits.
    pub content_size_bits: u64,
    /// Begin time, in ticks.
    pub timestamp_begin: u64,
    /// End time, in ticks.
    pub timestamp_end: u64,
    /// Number of events that the stream has discarded so far.
    pub events_discarded: u64,
}

/// Relation of a packet's time to the requested time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lies {
    Before,
    Within,
    Across,
    Behind,
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// Restricts the reader to events from the first to the last of these times, in nanoseconds since the epoch.
    /// Packets that are entirely outside are skipped by their headers, if these have times of 64 bits; faults in these
    /// packets are not reported. Streams without a clock are not restricted, nor is Dormouse's state stream, which
    /// identifies the processes of later events.
    ///
    /// After this, [`StreamReader::totals`] does not describe the whole stream.
    #[must_use]
    pub fn within(mut self, first_ns: i64, last_ns: i64) -> StreamReader<'a, S> {
        self.bounds = Some((first_ns, last_ns)).filter(|bounds| *bounds != (i64::MIN, i64::MAX));
        self
    }

    /// Returns the time of the last event, in nanoseconds since the epoch. Only headers are read, except in the last
    /// packet with events and in packets without a begin time.
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

    /// Skips the records up to the end of the packet or the first fault.
    fn pass_records(&mut self) {
        while let Some(Ok(_)) = self.next_record() {}
    }

    /// Whether only events of a requested time are returned.
    pub fn is_bounded(&self) -> bool {
        self.bounds.is_some()
    }

    /// Moves to the packet at this offset, which has this index, if its header belongs to the stream and matches
    /// `expected`. The stream must not have been read before. Otherwise returns false and changes nothing.
    pub fn seek(&mut self, index: u64, expected: &PacketSpan) -> bool {
        let before = self.next;
        self.next = (expected.offset_bytes, index);
        let is_so = self.next.0 < self.end && self.span_here().as_ref() == Some(expected);
        if !is_so {
            self.next = before;
        }
        is_so
    }

    /// Returns the content of the next packet's header; `None` if it is not valid, or has no times or sizes.
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

    /// Converts a time of the stream's packets to nanoseconds since the epoch.
    pub fn nanoseconds(&mut self, ticks: u64) -> Option<i64> {
        if self.scale.is_none() {
            let (plan, _) = self.next_header().ok()?;
            self.set_scale(plan);
        }
        self.epoch_ns(ticks)
    }

    /// Returns the relation of an opened packet's time to the requested time.
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
            // Some tracers write no end.
            () if end < begin => Lies::Across,
            () if end_ns < first => Lies::Before,
            () if begin_ns > last => Lies::Behind,
            () if begin_ns >= first && end_ns <= last => Lies::Within,
            () => Lies::Across,
        }
    }

    /// Skips the records of the packet that was just opened, or the rest of the stream.
    pub(super) fn pass_by(&mut self, lies: Lies) {
        if !matches!(lies, Lies::Before | Lies::Behind) {
            return;
        }
        // Events between the previous packet and this one can have been lost within the requested time.
        let bounds = self.bounds.unwrap_or((i64::MIN, i64::MAX));
        self.notices.retain(|problem| problem.may_be_within(bounds));
        self.packet = None;
        if lies == Lies::Behind {
            self.end = 0;
        }
        // The time continues from the end of the skipped packet.
        if let Some(Opened { fields: PacketFields { timestamp_end: Some(end), .. }, .. }) = self.last {
            self.time = end;
        }
    }

    /// Whether an event of this time is requested; `None` if neither it nor any later one is.
    pub(super) fn is_asked_for(&mut self, time: u64) -> Option<bool> {
        let (Some((first, last)), Some(ns)) = (self.bounds, self.epoch_ns(time)) else { return Some(true) };
        if ns > last {
            (self.end, self.packet, self.current) = (0, None, None);
            return None;
        }
        Some(ns >= first)
    }
}

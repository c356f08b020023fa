//! From one record of a packet to the next.

use super::notice::{Problem, RecordError};
use super::{Current, Packet, Source, StreamReader, shortened, unreadable};
use crate::plan::{Cursor, Memory, PlainRecords, Record, StreamPlan, Time};

/// No record is longer than a page, and no page nearly as long. A sparse file can claim any length.
pub(super) const RECORD_SIZE_BYTES_MAX: usize = 16 << 20;

impl<'a, S: Source> StreamReader<'a, S> {
    /// Goes to the next event of the current packet, and gives its time; `None` at the packet's end.
    pub(super) fn next_record(&mut self) -> Option<Result<u64, Problem>> {
        let packet = self.packet.as_mut()?;
        if packet.position >= packet.end {
            return None;
        }
        let begin = packet.position;
        let base = begin / 8 * 8;
        let offset = packet.offset + begin / 8;
        let rest_bytes = (packet.end - base).div_ceil(8);
        let (stream_size_bytes, mut size_bytes_min) = (self.source.size_bytes(), 1);
        let record = loop {
            let bytes = match self.source.fetch(offset, size_bytes_min) {
                Ok(bytes) => bytes,
                Err(error) => return Some(Err(self.stop(unreadable(error)))),
            };
            let mut cursor = Cursor::new(bytes, base, begin, packet.end);
            let plain = packet.plan.plain_records(&cursor).and_then(|mut records| records.next());
            let error = match plain.map_or_else(|| packet.plan.record(&mut cursor, &mut self.memory), Ok) {
                Ok(record) => break record,
                Err(error) => RecordError::from(error),
            };
            // Most likely there is more of it.
            let is_all = bytes.len() as u64 >= rest_bytes || bytes.len() >= RECORD_SIZE_BYTES_MAX;
            if is_all || matches!(error, RecordError::UnknownClass(_)) {
                packet.position = packet.end;
                // The last record of a packet that is cut off is cut off too, which is not worth a second notice.
                let expected = packet.cut_bytes.is_some() && !matches!(error, RecordError::UnknownClass(_));
                return (!expected).then_some(Err(Problem::Record { record_offset_bytes: begin / 8, error }));
            }
            if bytes.len() < size_bytes_min {
                let problem = shortened(offset, bytes, stream_size_bytes);
                return Some(Err(self.stop(problem)));
            }
            size_bytes_min = 2 * bytes.len();
        };
        if record.end == begin {
            // Records without size would have no end.
            packet.position = packet.end;
            return None;
        }
        match record.time.after(self.time) {
            Some(timestamp) if timestamp <= packet.timestamp_end => self.time = timestamp,
            timestamp => {
                packet.position = packet.end;
                let is_earlier = timestamp.is_none() && matches!(record.time, Time::Full(_));
                let is_beyond = timestamp.is_some_and(|ticks| self.last_held.is_none_or(|last| ticks > last));
                let error = match (is_earlier, is_beyond) {
                    (true, _) => RecordError::Older,
                    (_, true) => RecordError::Beyond(self.trace.clock_said(packet.plan.clock)),
                    _ => RecordError::Younger,
                };
                return Some(Err(Problem::Record { record_offset_bytes: begin / 8, error }));
            }
        }
        packet.position = record.end;
        let Packet { plan, offset: packet_offset, cpu_id, .. } = *packet;
        self.current = Some(Current { plan, record, timestamp: self.time, begin, packet_offset, cpu_id });
        self.totals.events += 1;
        Some(Ok(self.time))
    }

    /// There is nothing further behind.
    pub(super) fn stop(&mut self, problem: Problem) -> Problem {
        self.end = 0;
        self.packet = None;
        problem
    }

    /// Passes the records of the packet that are in memory already, as long as there is nothing to be said of them. Each is shown; where `see` gives
    /// false, the reader has come to that event, and this gives true.
    #[inline(always)]
    pub(crate) fn pass_records_at_hand(&mut self, see: impl FnMut(&Passed<'_>, &Memory) -> bool) -> bool {
        self.pass_in_way(&mut Shown(see))
    }

    /// The same, with what is done for them left to `way`.
    #[inline(always)]
    pub(super) fn pass_in_way(&mut self, way: &mut impl Way) -> bool {
        let Some(packet) = self.packet.as_mut().filter(|packet| !packet.is_partly && !self.is_ahead) else {
            return false;
        };
        if packet.position >= packet.end || !self.notices.is_empty() {
            return false;
        }
        let base = packet.position / 8 * 8;
        let Ok(bytes) = self.source.fetch(packet.offset + base / 8, 1) else { return false };
        let (plan, end, timestamp_end) = (packet.plan, packet.end, packet.timestamp_end);
        let (mut cursor, mut events) = (Cursor::new(bytes, base, packet.position, end), 0);
        let begun = Record { end: packet.position, ..Record::default() };
        let mut passed = Passed { record: begun, begin: packet.position, timestamp: self.time, bytes, base };
        let is_seen = loop {
            // Most are plain. They have a loop and a cursor of their own, so that where the next one begins stays in a register.
            let at = At { plan, cursor: &cursor, timestamp_end, memory: &self.memory };
            let next = way.pass_plain(&at, &mut passed);
            events += next.0;
            cursor.position = passed.record.end;
            if next.1 != Next::Other || cursor.position >= end {
                break next.1 == Next::Seen;
            }
            let Ok(record) = plan.record(&mut cursor, &mut self.memory) else { break false };
            let Some(next) = passed.next(record, timestamp_end) else { break false };
            passed = next;
            events += 1;
            if !way.see(&passed, &self.memory) {
                break true;
            }
        };
        packet.position = passed.record.end;
        self.time = passed.timestamp;
        self.totals.events += events;
        if is_seen {
            let Packet { plan, offset: packet_offset, cpu_id, .. } = *packet;
            let Passed { record, begin, timestamp, .. } = passed;
            self.current = Some(Current { plan, record, timestamp, begin, packet_offset, cpu_id });
        }
        is_seen
    }
}

/// What is done with records that are passed.
pub(super) trait Way {
    /// Passes the plain ones from there on, and says how many those were, and what comes next.
    fn pass_plain(&mut self, at: &At<'_>, passed: &mut Passed<'_>) -> (u64, Next);

    /// Looks at another one; false: the reader is to stay there.
    fn see(&mut self, passed: &Passed<'_>, memory: &Memory) -> bool;
}

/// Where records are passed.
pub(super) struct At<'r> {
    pub plan: &'r StreamPlan,
    pub cursor: &'r Cursor<'r>,
    /// The last time that they can have.
    pub timestamp_end: u64,
    pub memory: &'r Memory,
}

/// What comes behind plain records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// A record that is not plain, or not there as a whole.
    Other,
    /// Something is to be said of it.
    Said,
    /// The last one is where the reader is to stay.
    Seen,
}

/// Each is shown.
pub(super) struct Shown<F>(pub F);

impl<F: FnMut(&Passed<'_>, &Memory) -> bool> Way for Shown<F> {
    #[inline(always)]
    fn pass_plain(&mut self, at: &At<'_>, passed: &mut Passed<'_>) -> (u64, Next) {
        let (mut plain, mut events) = (at.plan.plain_records(at.cursor), 0);
        while let Some(record) = plain.as_mut().and_then(PlainRecords::next) {
            let Some(next) = passed.next(record, at.timestamp_end) else { return (events, Next::Said) };
            *passed = next;
            events += 1;
            if !(self.0)(passed, at.memory) {
                return (events, Next::Seen);
            }
        }
        (events, Next::Other)
    }

    #[inline(always)]
    fn see(&mut self, passed: &Passed<'_>, memory: &Memory) -> bool {
        (self.0)(passed, memory)
    }
}

/// A record that is passed by.
#[derive(Debug)]
pub(crate) struct Passed<'r> {
    pub record: Record,
    /// Where it begins, in bits from the packet's start.
    pub begin: u64,
    pub timestamp: u64,
    /// The bytes at hand, and the position at which they start.
    bytes: &'r [u8],
    base: u64,
}

impl Passed<'_> {
    /// The record behind this one, unless there is something to be said of it.
    #[inline(always)]
    pub(super) fn next(&self, record: Record, timestamp_end: u64) -> Option<Self> {
        let begin = self.record.end;
        let timestamp = record.time.after(self.timestamp).filter(|next| *next <= timestamp_end)?;
        (record.end > begin).then_some(Passed { record, begin, timestamp, ..*self })
    }

    /// Header included.
    #[inline(always)]
    pub fn size_bytes(&self) -> u64 {
        (self.record.end - self.begin).div_ceil(8)
    }

    /// What there is from the byte on in which its contexts begin.
    #[inline(always)]
    pub fn body(&self) -> &[u8] {
        self.bytes.get(((self.record.body - self.base) / 8) as usize..).unwrap_or_default()
    }

    /// `vpid` and `vtid`.
    #[inline(always)]
    pub fn who(&self, plan: &StreamPlan) -> Option<(u32, u32)> {
        plan.who(&Cursor::new(self.bytes, self.base, self.record.body, u64::MAX))
    }
}

//! Steps from one record of a packet to the next.

use dormouse_abi::page::CPU_UNKNOWN;

use super::event::Body;
use super::notice::{Problem, RecordError};
use super::{Current, EventFields, Packet, Source, StreamReader, shortened, unreadable};
use crate::plan::{Cursor, Memory, PlainRecords, Record, StreamPlan, Time};

/// Maximum size of a record, in bytes. Pages are much smaller, but a sparse file can claim any size.
pub(super) const RECORD_SIZE_BYTES_MAX: usize = 16 << 20;

impl<'a, S: Source> StreamReader<'a, S> {
    /// Advances to the next event of the current packet and returns its time; `None` at the packet's end.
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
            // Usually the record only extends beyond the available bytes.
            let is_all = bytes.len() as u64 >= rest_bytes || bytes.len() >= RECORD_SIZE_BYTES_MAX;
            if is_all || matches!(error, RecordError::UnknownClass(_)) {
                packet.position = packet.end;
                // If the packet is cut off, its last record is too. That needs no second notice.
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
            // Records of size zero would repeat forever.
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

    /// Ends the stream with a fault.
    pub(super) fn stop(&mut self, problem: Problem) -> Problem {
        self.end = 0;
        self.packet = None;
        problem
    }

    /// Skips the records of the packet that are already in memory, up to the first one that causes a notice. Each
    /// record is passed to `see`. If `see` returns false, the reader stops at that event, and this function returns
    /// true.
    #[inline(always)]
    pub(crate) fn pass_records_at_hand(&mut self, see: impl FnMut(&Passed<'_>, &Memory) -> bool) -> bool {
        self.pass_in_way(&mut Shown(see))
    }

    /// Skips records like `pass_records_at_hand`, and lets `way` process them.
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
            // Most records are plain. They have a separate loop and cursor, so that the position of the next record
            // stays in a register.
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

/// Processing of skipped records.
pub(super) trait Way {
    /// Skips the plain records from the cursor on. Returns their number and the reason for stopping.
    fn pass_plain(&mut self, at: &At<'_>, passed: &mut Passed<'_>) -> (u64, Next);

    /// Processes a record that is not plain. Returns false if the reader must stop at it.
    fn see(&mut self, passed: &Passed<'_>, memory: &Memory) -> bool;
}

/// Position of plain records that are skipped.
pub(super) struct At<'r> {
    pub plan: &'r StreamPlan,
    pub cursor: &'r Cursor<'r>,
    /// Latest time that a record can have.
    pub timestamp_end: u64,
    pub memory: &'r Memory,
}

/// Reason why a sequence of plain records ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The next record is not plain or not complete.
    Other,
    /// The next record causes a notice.
    Said,
    /// The reader must stop at the last record.
    Seen,
}

/// Passes each record to a function.
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

/// A skipped record.
#[derive(Debug)]
pub(crate) struct Passed<'r> {
    pub record: Record,
    /// Start of the record, in bits from the packet's start.
    pub begin: u64,
    pub timestamp: u64,
    /// Available bytes, and the position of the first one.
    bytes: &'r [u8],
    base: u64,
}

impl Passed<'_> {
    /// Returns the next record, unless it causes a notice.
    #[inline(always)]
    pub(super) fn next(&self, record: Record, timestamp_end: u64) -> Option<Self> {
        let begin = self.record.end;
        let timestamp = record.time.after(self.timestamp).filter(|next| *next <= timestamp_end)?;
        (record.end > begin).then_some(Passed { record, begin, timestamp, ..*self })
    }

    /// Returns the size in bytes, including the header.
    #[inline(always)]
    pub fn size_bytes(&self) -> u64 {
        (self.record.end - self.begin).div_ceil(8)
    }

    /// Returns the available bytes, from the one in which the contexts begin.
    #[inline(always)]
    pub fn body(&self) -> &[u8] {
        self.bytes.get(((self.record.body - self.base) / 8) as usize..).unwrap_or_default()
    }

    /// Returns contexts and fields, without time and CPU.
    #[inline(always)]
    pub fn fields(&self, memory: &Memory) -> EventFields<'_> {
        let Record { body, end, .. } = self.record;
        EventFields {
            time_ns: None,
            cpu_id: CPU_UNKNOWN,
            size_bytes: self.size_bytes() as usize,
            body: Body { bytes: self.body(), begin: body, end, outer: memory.outer() },
        }
    }

    /// Returns `vpid` and `vtid`.
    #[inline(always)]
    pub fn who(&self, plan: &StreamPlan) -> Option<(u32, u32)> {
        plan.who(&Cursor::new(self.bytes, self.base, self.record.body, u64::MAX))
    }
}

//! From one record of a packet to the next.

use super::notice::{Notice, Problem, RecordError};
use super::{Current, Packet, Source, StreamReader, shortened, unreadable};
use crate::plan::{Class, Cursor, Memory, PlainRecords, Record, StreamPlan, Time};

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
                let error = if is_earlier { RecordError::Older } else { RecordError::Younger };
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
}

/// How many events of each class a stream has. Of the records the headers are read, and what tells where they end.
#[derive(Debug, Clone, Default)]
pub struct ClassCounts<'a> {
    /// By stream class (its plan's place in memory) and index of the class.
    of_plans: Vec<(&'a StreamPlan, Vec<u64>)>,
}

impl<'a> ClassCounts<'a> {
    fn of(&mut self, plan: &'a StreamPlan) -> &mut Vec<u64> {
        let index = self.of_plans.iter().position(|(known, _)| std::ptr::eq(*known, plan)).unwrap_or_else(|| {
            self.of_plans.push((plan, vec![0; plan.classes().count()]));
            self.of_plans.len() - 1
        });
        &mut self.of_plans[index].1
    }

    /// Adds those of another stream.
    pub fn add(&mut self, other: &ClassCounts<'a>) {
        for (plan, counts) in &other.of_plans {
            self.of(plan).iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    /// Classes that have events, each with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'a Class, u64)> + use<'a, '_> {
        let of_plan = |(plan, counts): &'_ (&'a StreamPlan, Vec<u64>)| {
            let (plan, counts) = (*plan, counts.clone());
            counts
                .into_iter()
                .enumerate()
                .filter(|(_, count)| *count > 0)
                .map(move |(at, count)| (plan.class_at(at), count))
        };
        self.of_plans.iter().flat_map(of_plan)
    }
}

impl<'a, S: Source> StreamReader<'a, S> {
    /// Reads the stream to its end and counts its events by class. What is wrong with it is passed to `told`.
    pub fn count_classes(&mut self, counts: &mut ClassCounts<'a>, mut told: impl FnMut(Notice)) {
        loop {
            self.count_fast(counts);
            // What comes next is no record that is at hand as a whole: the next packet, the next window, damage.
            match self.advance() {
                Some(Ok(_)) => counts.of_current(self.current.as_ref()),
                Some(Err(notice)) => told(notice),
                None => return,
            }
        }
    }

    /// Counts the records that are in memory already, as long as there is nothing to be said of them.
    fn count_fast(&mut self, counts: &mut ClassCounts<'a>) {
        if let Some(packet) = self.packet {
            let of_plan = counts.of(packet.plan);
            self.pass_records_at_hand(|passed, _| {
                of_plan[passed.record.class] += 1;
                true
            });
        }
    }

    /// Passes the records of the packet that are in memory already, as long as there is nothing to be said of them. Each is shown; where `see` gives
    /// false, the reader has come to that event, and this gives true.
    #[inline(always)]
    pub(crate) fn pass_records_at_hand(&mut self, mut see: impl FnMut(&Passed<'_>, &Memory) -> bool) -> bool {
        let Some(packet) = self.packet.as_mut().filter(|packet| !packet.is_partly && !self.is_ahead) else {
            return false;
        };
        if packet.position >= packet.end || !self.notices.is_empty() {
            return false;
        }
        let base = packet.position / 8 * 8;
        let Ok(bytes) = self.source.fetch(packet.offset + base / 8, 1) else { return false };
        let (plan, end, timestamp_end) = (packet.plan, packet.end, packet.timestamp_end);
        let (mut cursor, mut events, mut is_seen) = (Cursor::new(bytes, base, packet.position, end), 0, false);
        let begun = Record { end: packet.position, ..Record::default() };
        let mut passed = Passed { record: begun, begin: packet.position, timestamp: self.time, bytes, base };
        'records: loop {
            // Most are plain. They have a loop and a cursor of their own, so that where the next one begins stays in a register.
            let mut plain = plan.plain_records(&cursor);
            while let Some(record) = plain.as_mut().and_then(PlainRecords::next) {
                let Some(next) = passed.next(record, timestamp_end) else { break 'records };
                passed = next;
                events += 1;
                if !see(&passed, &self.memory) {
                    is_seen = true;
                    break 'records;
                }
            }
            cursor.position = passed.record.end;
            if cursor.position >= end {
                break;
            }
            let Ok(record) = plan.record(&mut cursor, &mut self.memory) else { break };
            let Some(next) = passed.next(record, timestamp_end) else { break };
            passed = next;
            events += 1;
            if !see(&passed, &self.memory) {
                is_seen = true;
                break;
            }
        }
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
    fn next(&self, record: Record, timestamp_end: u64) -> Option<Self> {
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

impl<'a> ClassCounts<'a> {
    fn of_current(&mut self, current: Option<&Current<'a>>) {
        if let Some(current) = current {
            self.of(current.plan)[current.record.class] += 1;
        }
    }
}

//! Plain records that are only counted or left out. Only their end and the order of their times are checked.

use std::cell::Cell;

use super::bits::Cursor;
use super::{PlainRecords, StreamPlan};

/// Knowledge about the records of one id.
pub(crate) trait Skimming {
    /// Returns the size of contexts and fields in bytes; [`NOT_PLAIN`] if it is not constant, or if the records must
    /// not be skipped.
    fn step_bytes(&self) -> usize;

    fn count(&self);
}

/// Size of records that end the loop.
pub(crate) const NOT_PLAIN: usize = usize::MAX;

/// Counter of the records of one id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    step_bytes: usize,
    pub events: Cell<u64>,
}

impl Skimming for Tally {
    #[inline(always)]
    fn step_bytes(&self) -> usize {
        self.step_bytes
    }

    #[inline(always)]
    fn count(&self) {
        self.events.set(self.events.get() + 1);
    }
}

/// Result of skipping records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Skimmed {
    pub events: u64,
    /// End of the last record, in bits from the packet's start.
    pub end: u64,
    /// Time of the last record.
    pub timestamp: u64,
}

impl StreamPlan {
    /// Returns counters at zero, by id.
    pub(crate) fn tallies(&self) -> Vec<Tally> {
        self.steps_bytes().map(|step_bytes| Tally { step_bytes, events: Cell::new(0) }).collect()
    }

    /// Returns sizes by id, see [`Skimming::step_bytes`].
    pub(crate) fn steps_bytes(&self) -> impl Iterator<Item = usize> {
        self.classes.dense_ids().map(|id| {
            let size_bits =
                self.classes.plain(id).map(|(_, size_bits)| size_bits).filter(|bits| bits.is_multiple_of(8));
            size_bits.map_or(NOT_PLAIN, |size_bits| size_bits as usize / 8)
        })
    }

    /// Skips and counts records from the cursor on, as long as they are plain and complete, and their times increase
    /// without a carry into the bits that a short header lacks. `before` is the time of the previous record.
    #[inline(always)]
    pub(crate) fn skim(
        &self,
        cursor: &Cursor<'_>,
        before: u64,
        timestamp_end: u64,
        known: &[impl Skimming],
    ) -> Skimmed {
        let nothing = Skimmed { events: 0, end: cursor.position, timestamp: before };
        let Some(PlainRecords { short, at, .. }) = self.plain_records(cursor) else { return nothing };
        let (bytes, begin, end) = at.whole_bytes();
        let time_max = short.time.mask;
        let high = before & !time_max;
        let tags = short.bounds.1.min(short.tag.mask).checked_sub(short.bounds.0);
        let (Some(tags), Some(time_span)) = (tags, timestamp_end.checked_sub(high)) else { return nothing };
        // Tag and time are compared at their places in the word, without shifts.
        let (tag_mask, tag_first) = (short.tag.in_place(), short.bounds.0 << short.tag.shift);
        let tag_span = tags << short.tag.shift;
        let (time_mask, time_end) = (short.time.in_place(), time_span.min(time_max) << short.time.shift);
        let header_bytes = short.size_bits as usize / 8;
        let mut time = (before & time_max) << short.time.shift;
        let (mut offset, mut events) = (begin, 0);
        // Size of the previous record: bytes after its header, and total bytes, see `PlainRecords`. The initial value
        // stands for no record, and would not fit.
        let mut last = (NOT_PLAIN, end + 1);
        while let Some(word) = bytes.get(offset..).and_then(|bytes| bytes.first_chunk()) {
            let word = u64::from_le_bytes(*word);
            let next_time = word & time_mask;
            let is_tag = (word & tag_mask).wrapping_sub(tag_first) <= tag_span;
            if !is_tag || next_time < time || next_time > time_end {
                break;
            }
            let Some(of_id) = known.get(short.id.get(word) as usize) else { break };
            if of_id.step_bytes() != last.0 {
                if of_id.step_bytes() == NOT_PLAIN {
                    break;
                }
                last = (of_id.step_bytes(), header_bytes + of_id.step_bytes());
            }
            let next = offset + last.1;
            if next > end {
                break;
            }
            of_id.count();
            events += 1;
            (offset, time) = (next, next_time);
        }
        if events == 0 {
            return nothing;
        }
        let end = cursor.position.next_multiple_of(8) + 8 * (offset - begin) as u64;
        Skimmed { events, end, timestamp: high | time >> short.time.shift }
    }
}

//! Steps from one packet of a stream to the next.

use dormouse_abi::page::{CPU_UNKNOWN, MAGIC};

use super::notice::{Foreign, Problem};
use super::range::Lies;
use super::{Opened, Packet, Source, StreamReader, shortened, unreadable};
use crate::plan::{Memory, PacketFields, PacketStart, StreamPlan, advance};
use dormouse_format::HeaderError;

/// Maximum size of a packet header, in bytes.
const HEADER_SIZE_BYTES_MAX: usize = 1 << 20;

impl<'a, S: Source> StreamReader<'a, S> {
    /// Opens the next packet; `None` at the end.
    pub(super) fn open(&mut self) -> Option<Result<(), Problem>> {
        self.at = self.next;
        if self.growing.is_some() && self.at.0 < self.end && !self.is_whole_here() {
            return None;
        }
        (self.at.0 < self.end).then(|| {
            let opened = self.open_next();
            match opened {
                Ok(()) | Err(Problem::LeftOut { .. }) => {}
                Err(Problem::Header(_)) if self.next.0 == self.at.0 => match self.behind_damaged_header() {
                    Some(offset) => self.next = (offset, self.at.1 + 1),
                    None => self.end = self.at.0,
                },
                Err(_) => self.end = self.next.0,
            }
            opened
        })
    }

    /// Returns the offset of the packet after one with a damaged header. The size that the header claims, or that of
    /// the previous packet, must lead to a valid header.
    fn behind_damaged_header(&mut self) -> Option<u64> {
        let (begin, plan) = (self.next, self.trace.plan);
        let bytes = self.source.fetch(begin.0, plan.header_size_bytes_min().max(1) as usize).ok()?;
        let fields = plan.packet_header(bytes).ok();
        let stream = fields.and_then(|fields| match self.last {
            Some(last) => plan.stream(last.stream_id),
            None => fields.stream_id.and_then(|id| plan.stream(id)).or(plan.streams.first()),
        });
        let claimed = stream.and_then(|stream| stream.packet_context(bytes, fields?).ok()).map(|start| start.fields);
        let claimed_bits = claimed.map(|fields| [fields.packet_size_bits, fields.content_size_bits]);
        let claimed_bytes =
            claimed_bits.into_iter().flatten().flatten().filter(|bits| bits % 8 == 0).map(|bits| bits / 8);
        let sizes: Vec<u64> = claimed_bytes.chain([self.size_bytes_last]).collect();
        let found = sizes.into_iter().filter(|size| *size > 0).find_map(|size_bytes| {
            let offset = begin.0.checked_add(size_bytes).filter(|offset| *offset < self.end)?;
            self.next.0 = offset;
            let (_, start) = self.next_header().ok()?;
            // Without a magic or a UUID, any bytes look like a header.
            let is_known = start.fields.magic.is_some() || start.fields.uuid.count == 16;
            (is_known && self.why_foreign(&start.fields).is_none() && self.sizes(&start).is_ok()).then_some(offset)
        });
        self.next = begin;
        found
    }

    fn open_next(&mut self) -> Result<(), Problem> {
        let mut left_out: Option<(Foreign, u64)> = None;
        while self.next.0 < self.end {
            let start = self.next_header();
            let foreign = start.as_ref().ok().and_then(|(_, start)| self.why_foreign(&start.fields));
            match (foreign, &mut left_out) {
                (None, None) => return start.and_then(|(plan, start)| self.open_with(plan, start)),
                (Some(why), None) => left_out = Some((why, 1)),
                (Some(why), Some((first, count))) if why == *first => *count += 1,
                _ => break,
            }
            let (_, start) = start?;
            let (_, packet_size_bytes) = self.sizes(&start)?;
            self.pass(packet_size_bytes);
        }
        left_out.map_or(Ok(()), |(why, count)| Err(Problem::LeftOut { why, count }))
    }

    /// Reads header and context of the next packet.
    pub(super) fn next_header(&mut self) -> Result<(&'a StreamPlan, PacketStart), Problem> {
        let (offset, size_bytes) = (self.next.0, self.source.size_bytes());
        let plan = self.trace.plan;
        let expected_bytes = plan.header_size_bytes_min();
        let present_bytes = self.end - offset;
        let mut size_bytes_min = expected_bytes.max(1) as usize;
        loop {
            let bytes = self.source.fetch(offset, size_bytes_min).map_err(unreadable)?;
            let is_short = bytes.len() < size_bytes_min;
            if (bytes.len() as u64) < expected_bytes.min(present_bytes) {
                return Err(shortened(offset, bytes, size_bytes));
            }
            if (bytes.len() as u64) < expected_bytes {
                return Err(Problem::CutOff { present_bytes, expected_bytes });
            }
            // A packet with an unknown stream id is read with the packet context of the other streams, if all of these
            // have the same one.
            let header = plan.packet_header(bytes);
            if let Ok(PacketFields { magic: Some(magic), .. }) = header
                && magic != u64::from(MAGIC)
            {
                return Err(HeaderError::Magic(magic as u32).into());
            }
            let start = header.and_then(|fields| {
                let stream = match fields.stream_id {
                    Some(id) => plan.stream(id).or_else(|| plan.any_stream()),
                    None => plan.streams.first(),
                };
                stream.map(|stream| Ok((stream, stream.packet_context(bytes, fields)?))).transpose()
            });
            match start {
                Ok(Some((stream, start))) => {
                    self.header.clear();
                    self.header.extend_from_slice(&bytes[..(start.end.div_ceil(8) as usize).min(bytes.len())]);
                    return Ok((stream, start));
                }
                Ok(None) => return Err(Problem::NoStream),
                Err(_) if is_short && (bytes.len() as u64) < present_bytes => {
                    return Err(shortened(offset, bytes, size_bytes));
                }
                Err(_) if bytes.len() as u64 >= present_bytes => {
                    return Err(Problem::CutOff { present_bytes, expected_bytes: present_bytes + 1 });
                }
                Err(error) if bytes.len() >= HEADER_SIZE_BYTES_MAX => return Err(Problem::HeaderField(error)),
                Err(_) => size_bytes_min = 2 * bytes.len().max(16),
            }
        }
    }

    /// Returns the size of the content in bits and of the packet in bytes, from its header and context.
    pub(super) fn sizes(&self, start: &PacketStart) -> Result<(u64, u64), Problem> {
        let fields = &start.fields;
        let rest_bits = self.end.saturating_sub(self.next.0).saturating_mul(8);
        let content = fields.content_size_bits.or(fields.packet_size_bits).unwrap_or(rest_bits);
        let packet = fields.packet_size_bits.or(fields.content_size_bits).unwrap_or(rest_bits);
        if self.trace.is_own() && !content.is_multiple_of(8) {
            return Err(HeaderError::Bits(content).into());
        }
        // If only the content has a size, the packet ends with the last byte of the content.
        if !packet.is_multiple_of(8) && fields.packet_size_bits.is_some() {
            return Err(HeaderError::Bits(packet).into());
        }
        let packet_size_bytes = packet.div_ceil(8);
        if content < start.end || packet < content {
            let content_size_bytes = content.div_ceil(8);
            return Err(HeaderError::Sizes { content_size_bytes, packet_size_bytes }.into());
        }
        Ok((content, packet_size_bytes))
    }

    /// Whether the packet's UUID differs from that of the metadata.
    fn is_of_another(&self, fields: &PacketFields) -> bool {
        fields.uuid.count == 16 && self.trace.uuid.is_some_and(|uuid| fields.uuid.bytes != *uuid)
    }

    /// At the end of a packet, advances the time to the end time of its context. Later records without a time have this
    /// time, and partial times are extended from it.
    pub(super) fn go_to_end(&mut self) {
        let fields = self.last.map(|opened| opened.fields).unwrap_or_default();
        if let Some(end) = fields.timestamp_end.filter(|_| !self.trace.is_own()) {
            // Some tracers write no end, or one before the last record.
            self.time = self.time.max(advance(self.time, end, fields.timestamp_end_bits));
        }
    }

    pub(super) fn why_foreign(&self, fields: &PacketFields) -> Option<Foreign> {
        if self.trace.is_own() && self.is_of_another(fields) {
            return Some(Foreign::Uuid);
        }
        if let Some(id) = fields.stream_id
            && self.trace.plan.stream(id).is_none()
        {
            return Some(Foreign::StreamId(id));
        }
        let last = self.last?.fields;
        let pairs = [
            ("stream_id", last.stream_id, fields.stream_id),
            ("stream_instance_id", last.stream_instance_id, fields.stream_instance_id),
            ("cpu_id", last.cpu_id, fields.cpu_id),
        ];
        // Only Dormouse is known to write one file for each CPU.
        let count = if self.trace.is_own() { 3 } else { 1 };
        pairs.into_iter().take(count).find(|(_, before, now)| before != now).map(|(name, ..)| Foreign::Changed(name))
    }

    /// Advances past a packet of this size. Returns the number of available bytes.
    fn pass(&mut self, packet_size_bytes: u64) -> u64 {
        let (offset, index) = self.next;
        let present_bytes = packet_size_bytes.min(self.end - offset);
        self.next = (offset + present_bytes, index + 1);
        present_bytes
    }

    fn open_with(&mut self, plan: &'a StreamPlan, start: PacketStart) -> Result<(), Problem> {
        let (content_bits, packet_size_bytes) = self.sizes(&start)?;
        let fields = start.fields;
        self.set_scale(plan);
        if let Some(begin) = fields.timestamp_begin {
            self.time = match self.trace.is_own() {
                true => begin,
                false if self.do_packets_begin_late && self.last.is_some() => self.time,
                false => advance(self.time, begin, fields.timestamp_begin_bits),
            };
        }
        let lies = self.lies(plan.id, &fields);
        // If packets have no begin time, the first record decides.
        let begin = fields.timestamp_begin.map_or(0, |_| self.time);
        if lies != Lies::Behind && self.last_held.is_none_or(|last| begin > last) {
            return Err(Problem::Beyond(self.trace.clock_said(plan.clock)));
        }
        let last_held = self.last_held.unwrap_or(0);
        let is_early = self.scale.is_some_and(|scale| self.time <= last_held && scale.held_ns(self.time).is_none());
        self.note_header(&fields);
        let times_valid = match (fields.timestamp_begin, fields.timestamp_end) {
            (Some(begin), Some(end)) if self.trace.is_own() => begin <= end,
            _ => true,
        };
        if !times_valid {
            self.notices.push(Problem::Times);
        }
        self.notices.reverse();
        self.last = Some(Opened { fields, stream_id: plan.id, context: start.context, outer: start.outer });
        self.memory = Memory::with_outer(&start.outer);
        self.totals.packets += 1;
        let offset = self.next.0;
        let present_bytes = self.pass(packet_size_bytes);
        let end = content_bits.min(8 * present_bytes);
        // If the packet's times are invalid, its records have no valid times either.
        let position = if times_valid { start.end } else { end };
        let timestamp_end = if self.trace.is_own() { fields.timestamp_end } else { None };
        self.packet = Some(Packet {
            plan,
            offset,
            position,
            end,
            timestamp_end: timestamp_end.unwrap_or(u64::MAX).min(last_held),
            cpu_id: fields.cpu_id.and_then(|cpu| u32::try_from(cpu).ok()).unwrap_or(CPU_UNKNOWN),
            is_partly: lies == Lies::Across || is_early,
            cut_bytes: (packet_size_bytes > present_bytes).then_some((present_bytes, packet_size_bytes)),
        });
        self.size_bytes_last = packet_size_bytes;
        self.pass_by(lies);
        Ok(())
    }

    /// Returns by how much another tracer's packet exceeds the highest count of discarded events so far. The counter
    /// wraps at the size of its field. A counter that decreases by less than half of its range (as in LTTng's last
    /// packet) reports no loss. The count in the first packet was lost before the trace began.
    fn newly_discarded(&mut self, fields: &PacketFields) -> u64 {
        let Some(found) = fields.events_discarded else { return 0 };
        let most = most(fields.events_discarded_bits);
        let ahead = self.discarded_most.map_or(0, |before| found.wrapping_sub(before) & most);
        let is_back = ahead > most / 2;
        if !is_back {
            self.discarded_most = Some(found);
        }
        if is_back { 0 } else { ahead }
    }

    /// Compares a packet's header with the previous one and adds notices.
    fn note_header(&mut self, fields: &PacketFields) {
        let last = self.last.map(|opened| opened.fields);
        let mut discarded = fields.events_discarded.unwrap_or(0);
        if !self.trace.is_own() && self.is_of_another(fields) && last.is_none_or(|last| last.uuid != fields.uuid) {
            self.notices.push(Problem::OtherUuid);
        }
        if let Some(last) = last {
            if let (Some(begin), Some(end)) = (fields.timestamp_begin, last.timestamp_end)
                && begin < end
                && fields.timestamp_begin_bits == 64
            {
                self.notices.push(Problem::Overlap);
            }
            let before = last.events_discarded.unwrap_or(0);
            if discarded < before && self.trace.is_own() {
                self.notices.push(Problem::DiscardedDecreases);
            }
            if let (Some(before), Some(found)) = (last.packet_seq_num, fields.packet_seq_num)
                && let expected = before.wrapping_add(1) & most(fields.packet_seq_num_bits)
                && expected != found
            {
                self.notices.push(Problem::SequenceGap { expected, found });
            }
        }
        if !self.trace.is_own() {
            discarded = self.totals.events_discarded.saturating_add(self.newly_discarded(fields));
        }
        if discarded > self.totals.events_discarded {
            let ns = |ticks: Option<u64>| self.scale?.held_ns(ticks?);
            let end_of_last = last.map_or(fields.timestamp_begin, |last| last.timestamp_end);
            self.notices.push(Problem::Discarded {
                count: discarded - self.totals.events_discarded,
                begin_ns: ns(end_of_last),
                end_ns: ns(fields.timestamp_end),
            });
            self.totals.events_discarded = discarded;
        }
    }
}

/// Returns the highest value of a counter with this many bits. The size of a variable-length number is unknown.
fn most(size_bits: u32) -> u64 {
    if (1..64).contains(&size_bits) { (1 << size_bits) - 1 } else { u64::MAX }
}

//! Packets of a trace that may be damaged: where each begins, and how far it can be read.

use dormouse_abi::page::HEADER_SIZE_BYTES;
use dormouse_ctf::stream::Problem;
use dormouse_ctf::{Metadata, StreamReader};
use dormouse_format::PacketHeader;

use crate::pages::is_possible;

/// Iterates over consecutive packets, until one has no valid header.
pub(super) struct Packets<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> Iterator for Packets<'a> {
    /// A header, and the existing part of its packet.
    type Item = (PacketHeader, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header = PacketHeader::decode(self.rest).ok()?;
        let len = usize::try_from(header.packet_size_bytes).unwrap_or(usize::MAX).min(self.rest.len());
        let (packet, rest) = self.rest.split_at(len);
        self.rest = rest;
        Some((header, packet))
    }
}

/// Whether a packet is complete.
pub(super) fn is_whole(header: &PacketHeader, packet: &[u8]) -> bool {
    header.packet_size_bytes == packet.len() as u64
}

/// Result of reading a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) events: u64,
    /// Length of the header and the whole records that are not later than requested, in bytes.
    pub(super) len: usize,
    /// Time of the last record, or the packet's begin.
    pub(super) end: u64,
    /// Why reading ended.
    pub(super) stop: Stop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    End,
    Later,
    Damage,
}

/// Reads a packet whose header is `header`; `packet` may be shorter than the header says. `None` if it is not a packet
/// of this trace.
pub(super) fn content(metadata: &Metadata, header: &PacketHeader, packet: &[u8], latest: u64) -> Option<Content> {
    if header.uuid != metadata.options.uuid || !is_possible(header) {
        return None;
    }
    let wanted = usize::try_from(header.content_size_bytes).ok()?;
    // The header for reading states the available length, so that a record that is cut off is reported.
    let available = wanted.min(packet.len());
    let whole = PacketHeader { content_size_bytes: available as u64, packet_size_bytes: available as u64, ..*header };
    let mut bytes = packet.get(..available)?.to_vec();
    bytes.get_mut(..HEADER_SIZE_BYTES)?.copy_from_slice(&whole.encode());
    let mut found = Content { events: 0, len: HEADER_SIZE_BYTES, end: header.timestamp_begin, stop: Stop::End };
    for item in StreamReader::new(metadata, 0, &bytes) {
        match item {
            Ok(event) if event.timestamp > latest => return Some(Content { stop: Stop::Later, ..found }),
            Ok(event) => {
                found = Content { events: found.events + 1, len: found.len + event.size_bytes, ..found };
                found.end = event.timestamp;
            }
            Err(notice) if matches!(notice.problem, Problem::Discarded { .. }) => {}
            Err(_) => return Some(Content { stop: Stop::Damage, ..found }),
        }
    }
    if available < wanted {
        found.stop = Stop::Damage;
    }
    Some(found)
}

/// Whether a packet with this header may follow the one with the header `last`, if any, in the same stream.
pub(super) fn may_follow(last: Option<&PacketHeader>, header: &PacketHeader) -> bool {
    last.is_none_or(|last| {
        (last.stream_id, last.stream_instance_id, last.cpu_id)
            == (header.stream_id, header.stream_instance_id, header.cpu_id)
            && header.packet_seq_num > last.packet_seq_num
            && header.timestamp_begin >= last.timestamp_end
            && header.events_discarded >= last.events_discarded
    })
}

#[cfg(test)]
pub(super) mod tests {
    use dormouse_abi::class::{FieldType, Kind};
    use dormouse_ctf::Value;
    use dormouse_traces::TraceBuilder;

    use super::*;

    /// Returns metadata, and a stream of two packets with three events each.
    pub(in crate::salvage) fn trace() -> (String, Vec<u8>) {
        let mut trace = TraceBuilder::new();
        let class = trace.class("p", "e", &[("n", FieldType::scalar(Kind::U32))]);
        let stream = trace.stream(0);
        for number in 0..6 {
            trace.event(stream, 100 + 10 * number, 1, 2, class, &[Value::U32(number as u32)]);
            if number % 3 == 2 {
                trace.packet(stream, 4096, 0);
            }
        }
        let mut trace = trace.finish();
        // The state stream is the first one.
        (trace.metadata, trace.streams.pop().unwrap())
    }

    #[test]
    fn packets_are_given_up_to_the_last() {
        let (_, bytes) = trace();
        let found = |bytes: &[u8]| {
            let mut packets = Packets { rest: bytes };
            let found: Vec<(u64, usize)> =
                packets.by_ref().map(|(header, packet)| (header.packet_seq_num, packet.len())).collect();
            (found, packets.rest.len())
        };
        assert_eq!(found(&bytes), (vec![(0, 4096), (1, 4096)], 0));
        assert_eq!(found(&bytes[..8000]), (vec![(0, 4096), (1, 3904)], 0));
        assert_eq!(found(&bytes[..4096 + 79]), (vec![(0, 4096)], 79));
        let mut odd = bytes.clone();
        odd[4096] ^= 1;
        assert_eq!(found(&odd), (vec![(0, 4096)], 4096));
        assert_eq!(found(&[]), (vec![], 0));
    }

    #[test]
    fn a_packet_is_read_to_its_end_or_to_the_damage() {
        let (text, bytes) = trace();
        let metadata = Metadata::parse(&text).unwrap();
        let header = PacketHeader::decode(&bytes).unwrap();
        let of = |header: &PacketHeader, bytes: &[u8], latest| content(&metadata, header, bytes, latest);
        let whole = of(&header, &bytes[..4096], u64::MAX).unwrap();
        assert_eq!((whole.events, whole.len as u64, whole.end), (3, header.content_size_bytes, 120));
        assert_eq!(whole.stop, Stop::End);
        // The packet is as good without padding.
        assert_eq!(of(&header, &bytes[..whole.len], u64::MAX), Some(whole));
        let size = (whole.len - HEADER_SIZE_BYTES) / 3;
        let two = Content { events: 2, len: whole.len - size, end: 110, stop: Stop::Later };
        assert_eq!(of(&header, &bytes[..4096], 119), Some(two));
        for cut in 1..=size {
            let torn = of(&header, &bytes[..whole.len - cut], u64::MAX);
            assert_eq!(torn, Some(Content { stop: Stop::Damage, ..two }), "{cut}");
        }
        assert_eq!(of(&header, &bytes[..79], u64::MAX), None);
        assert_eq!(of(&PacketHeader { uuid: [0; 16], ..header }, &bytes[..4096], u64::MAX), None);
        assert_eq!(of(&PacketHeader { timestamp_end: 0, ..header }, &bytes[..4096], u64::MAX), None);
        let mut odd = bytes.clone();
        odd[whole.len - size] ^= 0x55;
        let damaged = of(&header, &odd[..4096], u64::MAX);
        assert_eq!(damaged, Some(Content { stop: Stop::Damage, ..two }));
    }
}

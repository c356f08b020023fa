//! The packet header, and a writer of whole packets.

use dormouse_abi::page::*;
use dormouse_abi::record::{
    COMPACT_ID_MAX, COMPACT_TIMESTAMP_BITS, RecordKind, compact_header, context_word, extended_header, head_word,
};

use crate::bytes::{array, u32_at, u64_at};
use crate::state::StateRecord;
use crate::value::Value;

/// Header and context of a packet (clause 5), which are also the header of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketHeader {
    /// The trace's identity.
    pub uuid: [u8; 16],
    /// [`STREAM_EVENTS`] or [`STREAM_STATE`].
    pub stream_id: u32,
    /// Which of the streams with that `stream_id`.
    pub stream_instance_id: u32,
    /// The processor, or [`CPU_UNKNOWN`].
    pub cpu_id: u32,
    /// No record is older, ticks.
    pub timestamp_begin: u64,
    /// No record is younger, ticks.
    pub timestamp_end: u64,
    /// Header and records.
    pub content_size_bytes: u64,
    /// Content and padding.
    pub packet_size_bytes: u64,
    /// Counts the stream's packets.
    pub packet_seq_num: u64,
    /// Events that the stream has lost since its beginning.
    pub events_discarded: u64,
}

/// Why bytes are no packet header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Fewer than [`HEADER_SIZE_BYTES`].
    #[error("is shorter than its header")]
    Short,
    /// Another magic.
    #[error("does not start with the magic of CTF but with {0:#010x}")]
    Magic(u32),
    /// A size that is no whole number of bytes.
    #[error("has a size of {0} bits, which is no whole number of bytes")]
    Bits(u64),
    /// Not header ≤ content ≤ packet.
    #[error("claims {content_size_bytes} bytes of content in {packet_size_bytes} bytes")]
    Sizes {
        /// `content_size`.
        content_size_bytes: u64,
        /// `packet_size`.
        packet_size_bytes: u64,
    },
}

impl PacketHeader {
    /// The header as a packet starts with it. Sizes of 2^61 bytes and more do not fit a header.
    pub fn encode(&self) -> [u8; HEADER_SIZE_BYTES] {
        let mut header = [0; HEADER_SIZE_BYTES];
        let mut put = |offset: usize, bytes: &[u8]| header[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(OFFSET_MAGIC, &MAGIC.to_le_bytes());
        put(OFFSET_UUID, &self.uuid);
        put(OFFSET_STREAM_ID, &self.stream_id.to_le_bytes());
        put(OFFSET_INSTANCE, &self.stream_instance_id.to_le_bytes());
        put(OFFSET_CPU_ID, &self.cpu_id.to_le_bytes());
        put(OFFSET_TIMESTAMP_BEGIN, &self.timestamp_begin.to_le_bytes());
        put(OFFSET_TIMESTAMP_END, &self.timestamp_end.to_le_bytes());
        put(OFFSET_CONTENT_SIZE, &(self.content_size_bytes << 3).to_le_bytes());
        put(OFFSET_PACKET_SIZE, &(self.packet_size_bytes << 3).to_le_bytes());
        put(OFFSET_SEQ, &self.packet_seq_num.to_le_bytes());
        put(OFFSET_DISCARDED, &self.events_discarded.to_le_bytes());
        header
    }

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`HeaderError`] unless the magic is right, both sizes are whole bytes, and header ≤ content ≤ packet.
    pub fn decode(bytes: &[u8]) -> Result<PacketHeader, HeaderError> {
        if bytes.len() < HEADER_SIZE_BYTES {
            return Err(HeaderError::Short);
        }
        let magic = u32_at(bytes, OFFSET_MAGIC);
        if magic != MAGIC {
            return Err(HeaderError::Magic(magic));
        }
        let size = |offset| match u64_at(bytes, offset) {
            bits if bits % 8 == 0 => Ok(bits / 8),
            bits => Err(HeaderError::Bits(bits)),
        };
        let (content_size_bytes, packet_size_bytes) = (size(OFFSET_CONTENT_SIZE)?, size(OFFSET_PACKET_SIZE)?);
        if content_size_bytes < HEADER_SIZE_BYTES as u64 || packet_size_bytes < content_size_bytes {
            return Err(HeaderError::Sizes { content_size_bytes, packet_size_bytes });
        }
        Ok(PacketHeader {
            uuid: array(bytes, OFFSET_UUID),
            stream_id: u32_at(bytes, OFFSET_STREAM_ID),
            stream_instance_id: u32_at(bytes, OFFSET_INSTANCE),
            cpu_id: u32_at(bytes, OFFSET_CPU_ID),
            timestamp_begin: u64_at(bytes, OFFSET_TIMESTAMP_BEGIN),
            timestamp_end: u64_at(bytes, OFFSET_TIMESTAMP_END),
            content_size_bytes,
            packet_size_bytes,
            packet_seq_num: u64_at(bytes, OFFSET_SEQ),
            events_discarded: u64_at(bytes, OFFSET_DISCARDED),
        })
    }
}

/// Writes the packets of one stream, one after another. A packet grows with its records and has no padding, unless
/// [`PacketWriter::finish`] is asked for some.
#[derive(Debug, Clone)]
pub struct PacketWriter {
    header: PacketHeader,
    kind: RecordKind,
    /// Room for the header, then the records of the packet at hand.
    content: Vec<u8>,
    /// Time of the first and the last record of the packet at hand.
    span: Option<(u64, u64)>,
}

impl PacketWriter {
    /// Starts a stream of records of another kind than those with context.
    pub fn of_records(self, kind: RecordKind) -> PacketWriter {
        PacketWriter { kind, ..self }
    }

    /// Starts a stream.
    pub fn new(uuid: [u8; 16], stream_id: u32, stream_instance_id: u32, cpu_id: u32) -> PacketWriter {
        let header = PacketHeader {
            uuid,
            stream_id,
            stream_instance_id,
            cpu_id,
            timestamp_begin: 0,
            timestamp_end: 0,
            content_size_bytes: 0,
            packet_size_bytes: 0,
            packet_seq_num: 0,
            events_discarded: 0,
        };
        PacketWriter { header, kind: RecordKind::Ids, content: vec![0; HEADER_SIZE_BYTES], span: None }
    }

    /// Starts the session owner's state stream.
    pub fn state(uuid: [u8; 16]) -> PacketWriter {
        PacketWriter::new(uuid, STREAM_STATE, 0, CPU_UNKNOWN)
    }

    /// Goes on with a stream behind its packet with this header. Records are those with context.
    pub fn behind(last: &PacketHeader) -> PacketWriter {
        let header = PacketHeader { packet_seq_num: last.packet_seq_num.wrapping_add(1), ..*last };
        PacketWriter { header, kind: RecordKind::Ids, content: vec![0; HEADER_SIZE_BYTES], span: None }
    }

    /// Bytes of the packet at hand.
    pub fn len_bytes(&self) -> usize {
        self.content.len()
    }

    /// Whether the packet at hand has no record.
    pub fn is_empty(&self) -> bool {
        self.span.is_none()
    }

    /// Appends a record of a program. `timestamp` in ticks; timestamps of a stream must not decrease. The values must be
    /// those that the class with this id declares. Where records have no context, the ids are not written, and a record is compact
    /// wherever a reader finds its time.
    pub fn push(&mut self, timestamp: u64, vpid: u32, vtid: u32, id: u16, values: &[Value<'_>]) {
        match self.kind {
            RecordKind::Ids => {
                self.head(timestamp, id);
                self.content.extend(context_word(vpid, vtid).to_le_bytes());
            }
            RecordKind::Compact => self.head_without_context(timestamp, id),
        }
        values.iter().for_each(|value| value.encode(&mut self.content));
    }

    /// Appends a record of the session owner. `timestamp` in ticks, as for [`PacketWriter::push`].
    pub fn push_state(&mut self, timestamp: u64, record: &StateRecord<'_>) {
        self.head(timestamp, record.id());
        record.encode(&mut self.content);
    }

    fn head(&mut self, timestamp: u64, id: u16) {
        self.pass(timestamp);
        self.content.extend(head_word(id, timestamp).to_le_bytes());
    }

    fn head_without_context(&mut self, timestamp: u64, id: u16) {
        let before = self.pass(timestamp);
        if id <= u16::from(COMPACT_ID_MAX) && timestamp.wrapping_sub(before) >> COMPACT_TIMESTAMP_BITS == 0 {
            self.content.extend(compact_header(id as u8, timestamp));
        } else {
            self.content.extend(extended_header(id, timestamp));
        }
    }

    /// Goes on to the time of a record, and gives that of the one before, or of itself: a packet begins with its first record.
    fn pass(&mut self, timestamp: u64) -> u64 {
        let (begin, before) = self.span.unwrap_or((timestamp, timestamp));
        self.span = Some((begin, timestamp));
        before
    }

    /// Ends the packet at hand and starts the next. The packet is padded to `size_bytes_min`; `events_discarded` counts
    /// from the beginning of the stream; an empty packet spans no time and stands where the one before ended.
    pub fn finish(&mut self, size_bytes_min: usize, events_discarded: u64) -> Vec<u8> {
        let (begin, end) = self.span.take().unwrap_or((self.header.timestamp_end, self.header.timestamp_end));
        let mut packet = std::mem::replace(&mut self.content, vec![0; HEADER_SIZE_BYTES]);
        self.header.timestamp_begin = begin;
        self.header.timestamp_end = end;
        self.header.content_size_bytes = packet.len() as u64;
        packet.resize(packet.len().max(size_bytes_min), 0);
        self.header.packet_size_bytes = packet.len() as u64;
        self.header.events_discarded = events_discarded;
        packet[..HEADER_SIZE_BYTES].copy_from_slice(&self.header.encode());
        self.header.packet_seq_num = self.header.packet_seq_num.wrapping_add(1);
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_bad_ones_are_told_apart() {
        let mut writer = PacketWriter::new([7; 16], STREAM_EVENTS, 2, 5);
        writer.push(40, 1, 2, 3, &[Value::U8(4)]);
        writer.push(50, 1, 2, 3, &[Value::U8(4)]);
        let packet = writer.finish(4096, 9);
        assert_eq!(packet.len(), 4096);
        let header = PacketHeader::decode(&packet).unwrap();
        assert_eq!(header.encode(), packet[..HEADER_SIZE_BYTES]);
        assert_eq!((header.timestamp_begin, header.timestamp_end, header.events_discarded), (40, 50, 9));
        assert_eq!(header.content_size_bytes, 80 + 2 * 17);
        let next = PacketHeader::decode(&writer.finish(0, 9)).unwrap();
        assert_eq!((next.packet_seq_num, next.timestamp_begin, next.packet_size_bytes), (1, 50, 80));
        let mut other = PacketWriter::behind(&header);
        assert_eq!(other.finish(0, 9), next.encode());

        let with = |offset: usize, byte: u8| {
            let mut packet = packet.clone();
            packet[offset] = byte;
            PacketHeader::decode(&packet)
        };
        assert_eq!(PacketHeader::decode(&packet[..79]), Err(HeaderError::Short));
        assert_eq!(with(OFFSET_MAGIC, 0), Err(HeaderError::Magic(0xC1FC_1F00)));
        assert_eq!(with(OFFSET_PACKET_SIZE, 1), Err(HeaderError::Bits(4096 * 8 + 1)));
        assert!(matches!(with(OFFSET_CONTENT_SIZE + 7, 1), Err(HeaderError::Sizes { .. })));
    }
}

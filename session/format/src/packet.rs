//! The packet header, and a writer for packets of the state stream.

use dormouse_abi::page::*;
use dormouse_abi::record::head_word;

use crate::state::StateRecord;

/// Header and context of a packet (clause 5). A page begins with the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketHeader {
    /// UUID of the trace.
    pub uuid: [u8; 16],
    /// [`STREAM_EVENTS`] or [`STREAM_STATE`].
    pub stream_id: u32,
    /// Number of the stream among those with this `stream_id`.
    pub stream_instance_id: u32,
    /// CPU, or [`CPU_UNKNOWN`].
    pub cpu_id: u32,
    /// Lower bound of the records' times, in ticks.
    pub timestamp_begin: u64,
    /// Upper bound of the records' times, in ticks.
    pub timestamp_end: u64,
    /// Size of header and records, in bytes.
    pub content_size_bytes: u64,
    /// Size of content and padding, in bytes.
    pub packet_size_bytes: u64,
    /// Sequence number of the packet in its stream.
    pub packet_seq_num: u64,
    /// Number of events that the stream has lost since its beginning.
    pub events_discarded: u64,
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[offset..offset + N]);
    array
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(array(bytes, offset))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(array(bytes, offset))
}

/// A reason why bytes are not a packet header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// There are fewer than [`HEADER_SIZE_BYTES`] bytes.
    #[error("is shorter than its header")]
    Short,
    /// The magic is wrong.
    #[error("does not start with the magic of CTF but with {0:#010x}")]
    Magic(u32),
    /// A size is not a whole number of bytes.
    #[error("has a size of {0} bits, which is no whole number of bytes")]
    Bits(u64),
    /// The sizes do not satisfy header ≤ content ≤ packet.
    #[error("claims {content_size_bytes} bytes of content in {packet_size_bytes} bytes")]
    Sizes {
        /// Value of `content_size`.
        content_size_bytes: u64,
        /// Value of `packet_size`.
        packet_size_bytes: u64,
    },
}

impl PacketHeader {
    /// Encodes the header. Sizes of 2^61 bytes and more do not fit.
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

    /// Returns the header of a stream's first packet, before the packet is complete.
    pub fn first(uuid: [u8; 16], stream_id: u32, stream_instance_id: u32, cpu_id: u32) -> PacketHeader {
        PacketHeader {
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
        }
    }

    /// Completes a packet, which consists of room for the header and of records. `span` holds the times of the first
    /// and the last record. Pads the packet to `size_bytes_min`, writes its header, and turns this header into that of
    /// the next packet. An empty packet has both times equal to the end of the previous packet.
    ///
    /// # Panics
    /// Panics if the packet is shorter than a header.
    pub fn end(&mut self, packet: &mut Vec<u8>, span: Option<(u64, u64)>, size_bytes_min: usize) {
        (self.timestamp_begin, self.timestamp_end) = span.unwrap_or((self.timestamp_end, self.timestamp_end));
        self.content_size_bytes = packet.len() as u64;
        packet.resize(packet.len().max(size_bytes_min), 0);
        self.packet_size_bytes = packet.len() as u64;
        packet[..HEADER_SIZE_BYTES].copy_from_slice(&self.encode());
        self.packet_seq_num = self.packet_seq_num.wrapping_add(1);
    }
}

/// Writes the packets of the state stream one after another. A packet grows with its records and has no padding.
#[derive(Debug, Clone)]
pub struct PacketWriter {
    header: PacketHeader,
    /// Current packet: room for the header, then the records.
    content: Vec<u8>,
    /// Times of the first and the last record of the current packet.
    span: Option<(u64, u64)>,
}

impl PacketWriter {
    /// Returns a writer at the start of the stream.
    pub fn state(uuid: [u8; 16]) -> PacketWriter {
        PacketWriter::at(PacketHeader::first(uuid, STREAM_STATE, 0, CPU_UNKNOWN))
    }

    /// Returns a writer that continues after the packet with this header.
    pub fn behind(last: &PacketHeader) -> PacketWriter {
        PacketWriter::at(PacketHeader { packet_seq_num: last.packet_seq_num.wrapping_add(1), ..*last })
    }

    fn at(header: PacketHeader) -> PacketWriter {
        PacketWriter { header, content: vec![0; HEADER_SIZE_BYTES], span: None }
    }

    /// Appends a record. `timestamp` is in ticks; timestamps of a stream must not decrease.
    pub fn push(&mut self, timestamp: u64, record: &StateRecord<'_>) {
        self.span = Some((self.span.map_or(timestamp, |(begin, _)| begin), timestamp));
        self.content.extend(head_word(record.id(), timestamp).to_le_bytes());
        record.encode(&mut self.content);
    }

    /// Ends the current packet, returns it, and starts the next one.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut packet = std::mem::replace(&mut self.content, vec![0; HEADER_SIZE_BYTES]);
        self.header.end(&mut packet, self.span.take(), 0);
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn headers_are_read_back_and_invalid_ones_are_distinguished() {
        let mut stream = PacketHeader { events_discarded: 9, ..PacketHeader::first([7; 16], STREAM_EVENTS, 2, 5) };
        let mut packet = vec![1; HEADER_SIZE_BYTES + 34];
        stream.end(&mut packet, Some((40, 50)), 4096);
        assert_eq!(packet.len(), 4096);
        let header = PacketHeader::decode(&packet).unwrap();
        assert_eq!(header.encode(), packet[..HEADER_SIZE_BYTES]);
        assert_eq!((header.timestamp_begin, header.timestamp_end, header.events_discarded), (40, 50, 9));
        assert_eq!(header.content_size_bytes, 80 + 34);
        let mut next = vec![0; HEADER_SIZE_BYTES];
        stream.end(&mut next, None, 0);
        let next = PacketHeader::decode(&next).unwrap();
        assert_eq!((next.packet_seq_num, next.timestamp_begin, next.packet_size_bytes), (1, 50, 80));
        let mut other = PacketWriter::behind(&header);
        assert_eq!(other.finish(), next.encode());

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

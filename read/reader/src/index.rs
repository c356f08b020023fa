//! Index files of LTTng, which contain the locations of a stream's packets. They are hints and are never trusted.
//!
//! `index/NAME.idx` belongs to the stream `NAME`. All numbers are big-endian:
//!
//! ```text
//!   magic u32, major u32, minor u32, size of an entry u32,
//!   then for each packet: offset, packet_size (bits), content_size (bits), timestamp_begin, timestamp_end, events_discarded, stream_id: u64
//! ```
//!
//! Source: `lttng-ctf-index.h` of lttng-tools, version 1.0 and 1.1 (which appends two numbers).

use dormouse_ctf::{PacketSpan, Source, StreamReader};

const MAGIC: u32 = 0xC1F1_DCC1;
const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 7 * 8;
/// Maximum size of an entry; no version has longer ones.
const ENTRY_BYTES_MAX: usize = 4096;

/// An index file with a valid header.
#[derive(Debug)]
pub struct Index<I> {
    source: I,
    entry_bytes: u64,
    count: u64,
}

/// Reason why an index is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// Its header is not that of a known version.
    #[error("is no index of LTTng")]
    Header,
    /// It is cut off, or cannot be read.
    #[error("cannot be read")]
    Unreadable,
    /// Its description of a packet does not match the packet.
    #[error("does not say what is in its stream")]
    Wrong,
}

/// Returns the size of an entry from the header of an index.
fn entry_bytes(header: &[u8; HEADER_BYTES]) -> Option<u64> {
    let (numbers, _) = header.as_chunks::<4>();
    let at = |index: usize| u32::from_be_bytes(numbers[index]);
    let (magic, major, entry_bytes) = (at(0), at(1), at(3));
    let is_known = magic == MAGIC && major == 1 && (ENTRY_BYTES..=ENTRY_BYTES_MAX).contains(&(entry_bytes as usize));
    is_known.then_some(entry_bytes.into())
}

fn span(entry: &[u8; ENTRY_BYTES]) -> PacketSpan {
    let (numbers, _) = entry.as_chunks::<8>();
    let at = |index: usize| u64::from_be_bytes(numbers[index]);
    PacketSpan {
        offset_bytes: at(0),
        packet_size_bits: at(1),
        content_size_bits: at(2),
        timestamp_begin: at(3),
        timestamp_end: at(4),
        events_discarded: at(5),
    }
}

impl<I: Source> Index<I> {
    /// Reads the header.
    ///
    /// # Errors
    /// The header is invalid or cannot be read.
    pub fn open(mut source: I) -> Result<Index<I>, IndexError> {
        let size_bytes = source.size_bytes();
        if size_bytes < HEADER_BYTES as u64 {
            return Err(IndexError::Header);
        }
        let bytes = source.fetch(0, HEADER_BYTES).map_err(|_| IndexError::Unreadable)?;
        let header = bytes.first_chunk().ok_or(IndexError::Unreadable)?;
        let entry_bytes = entry_bytes(header).ok_or(IndexError::Header)?;
        let count = (size_bytes - HEADER_BYTES as u64) / entry_bytes;
        Ok(Index { source, entry_bytes, count })
    }

    /// Returns the entry of a packet.
    ///
    /// # Errors
    /// The entry cannot be read.
    pub fn entry(&mut self, index: u64) -> Result<PacketSpan, IndexError> {
        if index >= self.count {
            return Err(IndexError::Unreadable);
        }
        let offset = HEADER_BYTES as u64 + index * self.entry_bytes;
        let bytes = self.source.fetch(offset, ENTRY_BYTES).map_err(|_| IndexError::Unreadable)?;
        bytes.first_chunk().map(span).ok_or(IndexError::Unreadable)
    }

    /// Moves a stream that has not been read yet to the last packet that ends before `first_ns`, if that packet's
    /// header matches the index. Packets of a stream are in the order of time, so no earlier packet is needed. Other
    /// entries of the index are not checked.
    ///
    /// # Errors
    /// The index cannot be used; the stream has not moved.
    pub fn seek<S: Source>(&mut self, reader: &mut StreamReader<'_, S>, first_ns: i64) -> Result<(), IndexError> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let end = self.entry(middle)?.timestamp_end;
            let Some(end_ns) = reader.nanoseconds(end) else { return Ok(()) };
            if end_ns < first_ns { low = middle + 1 } else { high = middle }
        }
        // Packets from here on are examined one by one, so starting one packet earlier does no harm.
        let Some(last) = low.checked_sub(1) else { return Ok(()) };
        match reader.seek(last, &self.entry(last)?) {
            true => Ok(()),
            false => Err(IndexError::Wrong),
        }
    }
}

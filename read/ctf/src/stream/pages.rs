//! Records of pages that are no packets yet.

use dormouse_abi::page::HEADER_SIZE_BYTES;
use dormouse_abi::record::{self, RecordKind};

use super::notice::RecordError;
use crate::class::Classes;
use crate::plan::{Cursor, Memory};

/// Counts the records of a page whose header need not be filled in yet: a page of an event stream with
/// `content_size_bytes` of header and records, of which no more is read than the page holds.
///
/// # Errors
/// The offset from the page's start of the first bytes that are no record, and why. Records before it are whole.
pub fn count_records(page: &[u8], content_size_bytes: usize, classes: &Classes) -> Result<u64, (usize, RecordError)> {
    let content = &page[..content_size_bytes.min(page.len())];
    let (mut offset, mut count) = (HEADER_SIZE_BYTES, 0);
    let mut memory = Memory::default();
    while offset < content.len() {
        offset += record_size_bytes(&content[offset..], classes, &mut memory).map_err(|error| (offset, error))?;
        count += 1;
    }
    Ok(count)
}

/// Size of the record at the start of `rest`.
fn record_size_bytes(rest: &[u8], classes: &Classes, memory: &mut Memory) -> Result<usize, RecordError> {
    // Most records need no more than a look at their id: their size is that of their class.
    let id = match classes.record_kind() {
        RecordKind::Ids => rest.first_chunk::<2>().map(|id| u16::from_le_bytes(*id)),
        RecordKind::Compact => rest.first().filter(|id| **id != record::EXTENDED).map(|id| (*id).into()),
    };
    match id.and_then(|id| classes.record_size_bytes(id)) {
        Some(size_bytes) if size_bytes <= rest.len() => Ok(size_bytes),
        _ => {
            let mut cursor = Cursor::new(rest, 0, 0, u64::MAX);
            classes.of_events().record(&mut cursor, memory)?;
            Ok((cursor.position / 8) as usize)
        }
    }
}

/// Offset and timestamp of a page's first record that is not earlier than `earliest`, if there is one. The page is as for
/// [`count_records`] and begins at `timestamp_begin`.
///
/// # Errors
/// As [`count_records`], for records up to that one.
pub fn first_record_since(
    page: &[u8],
    content_size_bytes: usize,
    classes: &Classes,
    timestamp_begin: u64,
    earliest: u64,
) -> Result<Option<(usize, u64)>, (usize, RecordError)> {
    let content = &page[..content_size_bytes.min(page.len())];
    let mut offset = HEADER_SIZE_BYTES;
    let mut timestamp = timestamp_begin;
    let mut memory = Memory::default();
    while offset < content.len() {
        let mut cursor = Cursor::new(&content[offset..], 0, 0, u64::MAX);
        let Ok((_, time)) = classes.of_events().head(&mut cursor, &mut memory) else { break };
        // After the last moment that there is, none is earlier. A time that goes back is one for whoever reads the packet.
        timestamp = time.after(timestamp).unwrap_or(u64::MAX);
        if timestamp >= earliest {
            return Ok(Some((offset, timestamp)));
        }
        offset += record_size_bytes(&content[offset..], classes, &mut memory).map_err(|error| (offset, error))?;
    }
    Ok(None)
}

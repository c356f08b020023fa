//! Records of pages that are not packets yet.

use dormouse_abi::page::HEADER_SIZE_BYTES;
use dormouse_abi::record::{self, RecordKind};

use super::notice::RecordError;
use crate::own_classes::Classes;
use crate::plan::{Cursor, Memory};

/// Counts the records of an event stream's page. The page's header need not be filled in. `content_size_bytes` is the
/// size of header and records; bytes beyond the page are not read.
///
/// # Errors
/// Returns the offset from the page's start of the first bytes that are not a record, and the reason. The records
/// before it are complete.
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

/// Returns the size of the record at the start of `rest`.
fn record_size_bytes(rest: &[u8], classes: &Classes, memory: &mut Memory) -> Result<usize, RecordError> {
    // The size of most records is determined by their class.
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

/// Returns offset and timestamp of a page's first record that is not earlier than `earliest`, if there is one. The page
/// is as for [`count_records`] and begins at `timestamp_begin`.
///
/// # Errors
/// Errors of [`count_records`], for records up to that one.
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
        // A time that decreases or overflows counts as the latest possible time. The reader of the packet reports it.
        timestamp = time.after(timestamp).unwrap_or(u64::MAX);
        if timestamp >= earliest {
            return Ok(Some((offset, timestamp)));
        }
        offset += record_size_bytes(&content[offset..], classes, &mut memory).map_err(|error| (offset, error))?;
    }
    Ok(None)
}

//! Records of pages that are not packets yet.

use dormouse_abi::page::{CPU_UNKNOWN, HEADER_SIZE_BYTES};
use dormouse_abi::record::{self, COMPACT_HEADER_SIZE_BYTES, COMPACT_TIMESTAMP_BITS, RecordKind, extended_header};

use super::event::{Body, EventFields};
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

/// A place between two records of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PagePlace {
    /// Offset from the page's start.
    pub offset: usize,
    /// Time of the record before, or the page's `timestamp_begin`.
    pub timestamp: u64,
}

impl PagePlace {
    /// Returns the place before the first record of a page.
    pub fn begin(timestamp_begin: u64) -> PagePlace {
        PagePlace { offset: HEADER_SIZE_BYTES, timestamp: timestamp_begin }
    }
}

/// A record of a page.
#[derive(Debug, Clone, Copy)]
pub struct PageRecord<'p> {
    /// Index of its class among those of the events.
    pub class_index: usize,
    /// Id of its class.
    pub class_id: u64,
    /// Time of the event, in ticks.
    pub timestamp: u64,
    /// Offsets of its bytes from the page's start.
    pub begin: usize,
    /// End of its bytes.
    pub end: usize,
    /// Contexts and fields, without time and CPU.
    pub fields: EventFields<'p>,
}

/// Records of a page that is not a packet yet. After an error there are no more.
#[derive(Debug)]
pub struct PageRecords<'p> {
    content: &'p [u8],
    classes: &'p Classes,
    /// The place of the next record.
    pub place: PagePlace,
    memory: Memory,
}

impl<'p> PageRecords<'p> {
    /// Returns the records of an event stream's page from a place on. The page is as for [`count_records`].
    pub fn new(page: &'p [u8], content_size_bytes: usize, classes: &'p Classes, place: PagePlace) -> PageRecords<'p> {
        let content = &page[..content_size_bytes.min(page.len())];
        PageRecords { content, classes, place, memory: Memory::default() }
    }

    fn measure(&mut self) -> Result<PageRecord<'p>, RecordError> {
        let (plan, begin) = (self.classes.of_events(), self.place.offset);
        let mut cursor = Cursor::new(self.content, 0, 8 * begin as u64, u64::MAX);
        let record = plan.record(&mut cursor, &mut self.memory)?;
        let timestamp = record.time.after(self.place.timestamp).ok_or(RecordError::Older)?;
        let (end, body) = ((record.end / 8) as usize, (record.body / 8) as usize);
        let fields = EventFields {
            time_ns: None,
            cpu_id: CPU_UNKNOWN,
            size_bytes: end - begin,
            body: Body {
                bytes: self.content.get(body..).unwrap_or_default(),
                begin: record.body,
                end: record.end,
                outer: self.memory.outer(),
            },
        };
        let class_id = plan.class_at(record.class).id;
        Ok(PageRecord { class_index: record.class, class_id, timestamp, begin, end, fields })
    }
}

impl<'p> Iterator for PageRecords<'p> {
    /// The record, or the offset from the page's start of the first bytes that are none, and the reason.
    type Item = Result<PageRecord<'p>, (usize, RecordError)>;

    fn next(&mut self) -> Option<Self::Item> {
        let begin = self.place.offset;
        if begin >= self.content.len() {
            return None;
        }
        let measured = self.measure().map_err(|error| (begin, error));
        self.place = match &measured {
            Ok(record) => PagePlace { offset: record.end, timestamp: record.timestamp },
            Err(_) => PagePlace { offset: self.content.len(), ..self.place },
        };
        Some(measured)
    }
}

/// Copies some records of a page to another one. Readers find the same times there, although compact records have only
/// the low bits of theirs.
#[derive(Debug)]
pub struct PageCopy<'p> {
    page: &'p [u8],
    kind: RecordKind,
    timestamp: u64,
    /// The other page, without a valid header.
    pub bytes: Vec<u8>,
}

impl<'p> PageCopy<'p> {
    /// Returns a copy without records of a page that begins at `timestamp_begin`.
    pub fn new(page: &'p [u8], kind: RecordKind, timestamp_begin: u64) -> PageCopy<'p> {
        let mut bytes = Vec::with_capacity(page.len() + 8);
        bytes.resize(HEADER_SIZE_BYTES, 0);
        PageCopy { page, kind, timestamp: timestamp_begin, bytes }
    }

    /// Adds a record of the page, which must come after those before it.
    pub fn push(&mut self, record: &PageRecord<'_>) {
        let PageRecord { timestamp, begin, end, .. } = *record;
        let bytes = &self.page[begin..end];
        let is_far = (timestamp - self.timestamp) >> COMPACT_TIMESTAMP_BITS != 0;
        if self.kind == RecordKind::Compact && bytes[0] != record::EXTENDED && is_far {
            self.bytes.extend(extended_header(bytes[0].into(), timestamp));
            self.bytes.extend_from_slice(&bytes[COMPACT_HEADER_SIZE_BYTES..]);
        } else {
            self.bytes.extend_from_slice(bytes);
        }
        self.timestamp = timestamp;
    }
}

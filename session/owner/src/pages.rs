//! Pages of a session's memory: the pages of a stream, their copies, and the check of a copy.
//!
//! Programs may at any time write to a page, and to the words that locate pages. So a page is first copied and then
//! checked, and only the copy is used. Both steps are implemented here, once. Their callers get pages in different
//! ways: pages are offered on a ring, or left when a session stops (`drain`); they are retained while writers continue
//! (`snapshot`); or they are in memory whose owner is dead (`salvage`, which reads that memory by system calls).
//!
//! Memory that other processes write is only read as atomic words here: code without `unsafe` has no other way.
#![forbid(unsafe_code)]

use std::sync::atomic::{Ordering, fence};

use dormouse_abi::page::{self, CPU_UNKNOWN, HEADER_SIZE_BYTES, STREAM_EVENTS};
use dormouse_abi::session::State;
use dormouse_format::PacketHeader;
use dormouse_relay::Memory;

/// No clock reaches this value in a hundred years, and readers can still convert smaller ones to nanoseconds since
/// 1970.
const TIMESTAMP_MAX: u64 = 1 << 62;

/// Maximum number of events that a stream can have lost. No stream loses more, and other tools take 2^64 - 1 for a
/// missing number.
pub(crate) const DISCARDED_MAX: u64 = u64::MAX - 1;

/// Whether a packet can have this header: its times and counts are consistent, and readers can handle them.
pub(crate) fn is_possible(header: &PacketHeader) -> bool {
    header.timestamp_begin <= header.timestamp_end
        && header.timestamp_end < TIMESTAMP_MAX
        && header.events_discarded <= DISCARDED_MAX
}

/// A page, as the words of its stream describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) stream: u32,
    /// Number of the page in its stream.
    pub(crate) seq: u64,
    pub(crate) unit: u32,
    /// Length of header and records, in bytes; at most the size of a page.
    pub(crate) len: usize,
    /// Further state of a page that was never closed.
    pub(crate) current: Option<CurrentPage>,
}

/// State that the header of a stream's current page does not have yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CurrentPage {
    /// The stream's state.
    pub(crate) state: State,
    /// The stream's losses, read after the state.
    pub(crate) discarded: u64,
}

/// The pages of a session's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pages {
    /// Must stay mapped as long as any copy of this is used.
    pub(crate) memory: Memory,
}

impl Pages {
    /// Returns the closed pages of a stream from number `oldest` on, which must have been read before, and its current
    /// page. `None` if it never had one.
    pub(crate) fn of_stream(self, stream: u32, oldest: u64) -> Option<impl Iterator<Item = Page>> {
        let control = self.memory.stream(stream);
        // (C) pairs with (A): every byte below the offset is there.
        let state = State::from_word(control.state.load(Ordering::Acquire));
        let current = CurrentPage { state, discarded: self.memory.discarded(stream) };
        self.memory.page(state.unit)?;
        let closed = u64::from(state.seq.wrapping_sub(oldest as u16));
        // A stream has no more pages than the session: a greater number is damage.
        let listed = closed.min(self.memory.geometry().page_count.into());
        let closed_pages = (0..listed).map(move |step| self.closed_page(stream, oldest.wrapping_add(step)));
        let len = (state.offset as usize).clamp(HEADER_SIZE_BYTES, self.size_bytes());
        let current = Page { stream, seq: oldest.wrapping_add(closed), unit: state.unit, len, current: Some(current) };
        Some(closed_pages.chain([current]))
    }

    /// Returns closed page number `seq` of a stream.
    pub(crate) fn closed_page(self, stream: u32, seq: u64) -> Page {
        let unit = self.memory.chain(stream, seq);
        let len = self.memory.page_field(unit, page::OFFSET_CONTENT_SIZE) / 8;
        let len = len.clamp(HEADER_SIZE_BYTES as u64, self.size_bytes() as u64) as usize;
        Page { stream, seq, unit, len, current: None }
    }

    fn size_bytes(self) -> usize {
        self.memory.geometry().page_size_bytes as usize
    }

    /// Copies the beginning of a page, word by word. Returns false if there is no such page, or it is shorter, or
    /// `target` has no room for a header.
    ///
    /// Writers may write after the committed bytes at the same time. Committed bytes do not change, and others have no
    /// meaning.
    pub(crate) fn copy(self, unit: u32, target: &mut [u8]) -> bool {
        let is_long_enough = (HEADER_SIZE_BYTES..=self.size_bytes()).contains(&target.len());
        let Some(page) = self.memory.page_words(unit).filter(|_| is_long_enough) else { return false };
        let (words, rest) = target.as_chunks_mut::<8>();
        let mut copies = page.iter().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        words.iter_mut().zip(&mut copies).for_each(|(target, copy)| *target = copy);
        copies.next().into_iter().for_each(|copy| rest.copy_from_slice(&copy[..rest.len()]));
        true
    }

    /// Returns the number of the first page that a stream retains (overwrite mode).
    pub(crate) fn oldest(self, stream: u32) -> u64 {
        // (E') pairs with (E).
        self.memory.stream(stream).reclaimed.load(Ordering::Acquire)
    }

    /// Whether page number `seq` of a stream was overwritten, or was about to be, before the caller finished its copy.
    pub(crate) fn is_overwritten(self, stream: u32, seq: u64) -> bool {
        // (E'') The copy precedes this load: pairs with (E), after which the page gets new bytes.
        fence(Ordering::Acquire);
        self.memory.is_overwrite() && self.oldest(stream) > seq
    }

    /// Returns the name of a stream's file.
    pub(crate) fn name_of(self, stream: u32) -> String {
        let cpu_count = self.memory.geometry().cpu_count;
        if stream < cpu_count { format!("cpu_{stream}") } else { format!("claimed_{}", stream - cpu_count) }
    }

    /// Returns the header for the packet in `copy`, which begins like the page, if the stream's writers can have left
    /// it. `now` must have been read after the words that `page` was made from.
    pub(crate) fn check(self, page: &Page, copy: &[u8], now: u64) -> Option<PacketHeader> {
        let Page { stream, seq, len, current, .. } = *page;
        match current {
            Some(CurrentPage { state, discarded }) if state.offset as usize == len => {
                let begin = copy.get(page::OFFSET_TIMESTAMP_BEGIN..).and_then(|rest| rest.first_chunk());
                Some(PacketHeader {
                    // A page cannot have begun later.
                    timestamp_begin: u64::from_le_bytes(*begin.unwrap_or(&[0; 8])).min(now),
                    content_size_bytes: len as u64,
                    packet_size_bytes: (len as u64).next_multiple_of(8),
                    packet_seq_num: seq,
                    ..self.empty_header(stream, now, discarded)
                })
            }
            Some(_) => None,
            None => self.check_closed(stream, copy, len as u64).filter(|header| header.packet_seq_num == seq),
        }
    }

    /// Returns the header of a closed page of `content_len` bytes, if the stream's writers can have left it.
    pub(crate) fn check_closed(self, stream: u32, copy: &[u8], content_len: u64) -> Option<PacketHeader> {
        PacketHeader::decode(copy).ok().filter(|header| {
            is_possible(header)
                && header.uuid == self.memory.uuid()
                && header.stream_id == STREAM_EVENTS
                && header.stream_instance_id == stream
                && header.cpu_id == self.cpu_of(stream)
                && header.content_size_bytes == content_len
                && header.packet_size_bytes == self.size_bytes() as u64
        })
    }

    /// Whether a page with this beginning was drawn by a writer of the stream, which has filled in the constant fields.
    pub(crate) fn was_drawn_for(self, stream: u32, copy: &[u8]) -> bool {
        let is_at = |offset: usize, bytes: &[u8]| copy.get(offset..).is_some_and(|rest| rest.starts_with(bytes));
        is_at(page::OFFSET_MAGIC, &page::MAGIC.to_le_bytes())
            && is_at(page::OFFSET_UUID, &self.memory.uuid())
            && is_at(page::OFFSET_STREAM_ID, &STREAM_EVENTS.to_le_bytes())
            && is_at(page::OFFSET_INSTANCE, &stream.to_le_bytes())
    }

    /// Returns the header of a packet that only states losses.
    pub(crate) fn empty_header(self, stream: u32, now: u64, discarded: u64) -> PacketHeader {
        PacketHeader {
            uuid: self.memory.uuid(),
            stream_id: STREAM_EVENTS,
            stream_instance_id: stream,
            cpu_id: self.cpu_of(stream),
            timestamp_begin: now,
            timestamp_end: now,
            content_size_bytes: HEADER_SIZE_BYTES as u64,
            packet_size_bytes: HEADER_SIZE_BYTES as u64,
            packet_seq_num: 0,
            events_discarded: discarded.min(DISCARDED_MAX),
        }
    }

    /// Returns the CPU in the packets of a stream.
    fn cpu_of(self, stream: u32) -> u32 {
        if stream < self.memory.geometry().cpu_count { stream } else { CPU_UNKNOWN }
    }
}

#[cfg(test)]
mod tests {
    use dormouse_abi::record::RecordKind;
    use dormouse_abi::session::MODE_OVERWRITE;

    use super::*;
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    use crate::first_touch::is_first_touched_by_this_program;
    use crate::fuzzing::Owner;
    use crate::testing::{GEOMETRY, Writer};

    fn pages(memory: Memory) -> Vec<Page> {
        let pages = Pages { memory };
        pages.of_stream(0, pages.oldest(0)).unwrap().collect()
    }

    #[test]
    fn a_copy_equals_the_page_at_every_length() {
        let place = tempfile::tempdir().unwrap();
        let owner = Owner::new(&place.path().join("trace"), GEOMETRY, RecordKind::Ids);
        owner.reset(MODE_OVERWRITE);
        Writer::new(owner.memory(), 0).write(0, 100);
        let [Page { unit, len, .. }] = pages(owner.memory())[..] else { panic!("one page") };
        let pages = Pages { memory: owner.memory() };
        let mut all = vec![0; 4096];
        assert!(pages.copy(unit, &mut all));
        assert!(all[..len].ends_with(&99u64.to_le_bytes()), "the last number ends what is committed");
        for len in HEADER_SIZE_BYTES..=4096 {
            let mut copy = vec![0; len];
            assert!(pages.copy(unit, &mut copy));
            assert_eq!(copy, all[..len]);
        }
        assert!(!pages.copy(unit, &mut [0; HEADER_SIZE_BYTES - 1]) && !pages.copy(unit, &mut [0; 4097]));
        assert!(!pages.copy(unit + GEOMETRY.page_count, &mut all) && !pages.copy(0, &mut all));
    }

    #[test]
    fn a_page_is_checked_against_the_words_that_describe_it() {
        let place = tempfile::tempdir().unwrap();
        let owner = Owner::new(&place.path().join("trace"), GEOMETRY, RecordKind::Ids);
        owner.reset(MODE_OVERWRITE);
        let mut writer = Writer::new(owner.memory(), 0);
        writer.write(0, 300);
        let (all, pages) = (pages(owner.memory()), Pages { memory: owner.memory() });
        assert!(all.len() > 1 && all.iter().filter(|page| page.current.is_some()).count() == 1);
        for page in &all {
            let mut copy = vec![0; page.len];
            assert!(
                pages.copy(page.unit, &mut copy) && pages.was_drawn_for(0, &copy) && !pages.was_drawn_for(1, &copy)
            );
            let header = pages.check(page, &copy, TIMESTAMP_MAX - 1).unwrap();
            assert_eq!((header.packet_seq_num, header.content_size_bytes), (page.seq, page.len as u64));
            assert_eq!(pages.check(&Page { len: page.len - 8, ..*page }, &copy, 0), None);
            if page.current.is_none() {
                assert_eq!(pages.check(&Page { seq: page.seq + 1, ..*page }, &copy, 0), None);
                assert_eq!(pages.check(&Page { stream: 1, ..*page }, &copy, 0), None);
            }
        }
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn a_page_is_not_copied_by_libc() {
        let place = tempfile::tempdir().unwrap();
        let owner = Owner::new(&place.path().join("trace"), GEOMETRY, RecordKind::Ids);
        let (pages, unit) = (Pages { memory: owner.memory() }, GEOMETRY.unit_of_page(3));
        let page = owner.memory().page(unit).unwrap();
        let mut copy = vec![0; 4096];
        assert!(is_first_touched_by_this_program(page, || assert!(pages.copy(unit, &mut copy))));
    }
}

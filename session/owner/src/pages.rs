//! Pages of a session's memory: what a stream has of them, their copies, and the check of a copy.
//!
//! Programs may write to a page at any time, and to the words that say where pages are. So a page is copied first and checked then, and
//! the copy is what is used. Both are written here, once. How pages are had differs: they are offered on a ring, or left when a session
//! stops (`drain`); they are retained while writers go on (`snapshot`); or they are in memory whose owner is dead (`salvage`, which reads
//! that memory by system calls).
//!
//! What others write is read as atomic words here, and in no other way: code without `unsafe` has no other.
#![forbid(unsafe_code)]

use std::sync::atomic::{Ordering, fence};

use dormouse_abi::page::{self, CPU_UNKNOWN, HEADER_SIZE_BYTES, STREAM_EVENTS};
use dormouse_abi::session::State;
use dormouse_ctf::PacketHeader;
use dormouse_relay::Memory;

/// No clock gets there in a hundred years, and readers can still make nanoseconds since 1970 of what is below.
const TIMESTAMP_MAX: u64 = 1 << 62;

/// Events that a stream can have lost. No stream loses more, and other tools take 2^64 - 1 for no number.
pub(crate) const DISCARDED_MAX: u64 = u64::MAX - 1;

/// Whether a packet can have this header: its times and counts are in order, and readers can handle them.
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
    /// Header and records, in bytes; not more than a page has.
    pub(crate) len: usize,
    /// Of the page that was never closed.
    pub(crate) current: Option<Current>,
}

/// What the header of a stream's current page does not have yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Current {
    /// The stream's state.
    pub(crate) state: State,
    /// The stream's losses, read after the state.
    pub(crate) discarded: u64,
}

/// The pages of a session's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pages {
    /// Mapped as long as any copy of this is used.
    pub(crate) memory: Memory,
}

impl Pages {
    /// The closed pages of a stream from number `oldest` on, which was read before, and its current page. `None` if it never had one.
    pub(crate) fn of_stream(self, stream: u32, oldest: u64) -> Option<impl Iterator<Item = Page>> {
        let control = self.memory.stream(stream);
        // (C) pairs with (A): every byte below the offset is there.
        let state = State::from_word(control.state.load(Ordering::Acquire));
        let current = Current { state, discarded: self.memory.discarded(stream) };
        self.memory.page(state.unit)?;
        let closed = u64::from(state.seq.wrapping_sub(oldest as u16));
        // A stream has no more pages than there are: a greater number is damage.
        let listed = closed.min(self.memory.geometry().page_count.into());
        let closed_pages = (0..listed).map(move |step| self.closed_page(stream, oldest.wrapping_add(step)));
        let len = (state.offset as usize).clamp(HEADER_SIZE_BYTES, self.size_bytes());
        let current = Page { stream, seq: oldest.wrapping_add(closed), unit: state.unit, len, current: Some(current) };
        Some(closed_pages.chain([current]))
    }

    /// Page number `seq` of a stream, which is closed.
    pub(crate) fn closed_page(self, stream: u32, seq: u64) -> Page {
        let unit = self.memory.chain(stream, seq);
        let len = self.memory.page_field(unit, page::OFFSET_CONTENT_SIZE) / 8;
        let len = len.clamp(HEADER_SIZE_BYTES as u64, self.size_bytes() as u64) as usize;
        Page { stream, seq, unit, len, current: None }
    }

    fn size_bytes(self) -> usize {
        self.memory.geometry().page_size_bytes as usize
    }

    /// Copies the beginning of a page, word by word. False where there is no such page, or it is not so long, or `target` does not hold a
    /// header.
    ///
    /// Writers may write above what is committed at the same time. Bytes that are committed do not change, and others mean nothing.
    pub(crate) fn copy(self, unit: u32, target: &mut [u8]) -> bool {
        let is_long_enough = (HEADER_SIZE_BYTES..=self.size_bytes()).contains(&target.len());
        let Some(page) = self.memory.page_words(unit).filter(|_| is_long_enough) else { return false };
        let (words, rest) = target.as_chunks_mut::<8>();
        let mut copies = page.iter().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        words.iter_mut().zip(&mut copies).for_each(|(target, copy)| *target = copy);
        copies.next().into_iter().for_each(|copy| rest.copy_from_slice(&copy[..rest.len()]));
        true
    }

    /// Number of the first page that a stream retains (overwrite mode).
    pub(crate) fn oldest(self, stream: u32) -> u64 {
        // (E') pairs with (E).
        self.memory.stream(stream).reclaimed.load(Ordering::Acquire)
    }

    /// Whether page number `seq` of a stream was overwritten, or was about to be, by the end of what the caller has copied.
    pub(crate) fn is_overwritten(self, stream: u32, seq: u64) -> bool {
        // (E'') The copy comes before the look: pairs with (E), behind which the page gets new bytes.
        fence(Ordering::Acquire);
        self.memory.is_overwrite() && self.oldest(stream) > seq
    }

    /// Name of a stream's file.
    pub(crate) fn name_of(self, stream: u32) -> String {
        let cpu_count = self.memory.geometry().cpu_count;
        if stream < cpu_count { format!("cpu_{stream}") } else { format!("claimed_{}", stream - cpu_count) }
    }

    /// The header of the packet that `copy`, which begins as the page does, is to be, if it is what the stream's writers leave. `now` was
    /// read after the words that `page` was made from.
    pub(crate) fn check(self, page: &Page, copy: &[u8], now: u64) -> Option<PacketHeader> {
        let Page { stream, seq, len, current, .. } = *page;
        match current {
            Some(Current { state, discarded }) if state.offset as usize == len => {
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

    /// The header of a closed page of `content_len` bytes, if it is what the stream's writers leave.
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

    /// Whether a page that begins so was drawn by a writer of the stream, who has filled in what never changes.
    pub(crate) fn was_drawn_for(self, stream: u32, copy: &[u8]) -> bool {
        let is_at = |offset: usize, bytes: &[u8]| copy.get(offset..).is_some_and(|rest| rest.starts_with(bytes));
        is_at(page::OFFSET_MAGIC, &page::MAGIC.to_le_bytes())
            && is_at(page::OFFSET_UUID, &self.memory.uuid())
            && is_at(page::OFFSET_STREAM_ID, &STREAM_EVENTS.to_le_bytes())
            && is_at(page::OFFSET_INSTANCE, &stream.to_le_bytes())
    }

    /// The header of a packet that states nothing but losses.
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

    /// The CPU in the packets of a stream.
    fn cpu_of(self, stream: u32) -> u32 {
        if stream < self.memory.geometry().cpu_count { stream } else { CPU_UNKNOWN }
    }
}

#[cfg(test)]
mod tests {
    use dormouse_abi::record::RecordKind;
    use dormouse_abi::session::MODE_OVERWRITE;

    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::first_touch::is_first_touched_by_this_program;
    use crate::fuzzing::Owner;
    use crate::testing::{GEOMETRY, Writer};

    fn pages(memory: Memory) -> Vec<Page> {
        let pages = Pages { memory };
        pages.of_stream(0, pages.oldest(0)).unwrap().collect()
    }

    #[test]
    fn a_copy_is_what_the_page_holds_to_any_length() {
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

    #[cfg(target_arch = "x86_64")]
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

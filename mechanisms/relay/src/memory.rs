//! The session's memory as writers and readers see it: typed access by offset, drawing pages, planning transactions.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dormouse_abi::page;
use dormouse_abi::record::RecordKind;
use dormouse_abi::register::Register;
use dormouse_abi::session::{
    Geometry, LOST_CLASS_COUNT, MAGIC, MODE_OVERWRITE, Owner, STREAM_STRIDE_BYTES, SessionHeader, SessionLayout, State,
    StreamControl, UNIT_BYTES, VERSION, claim, expiry, spare,
};
use dormouse_abi::txn::{Store, Txn};

use crate::retained::Retained;

/// How often a reader looks for two words that belong together. Honest writers change them less often.
const LOOKS_MAX: u32 = 10_000;

/// The session's number for its owner. Processes have others.
const OWNER: u16 = 0;

/// How many of its own pages a stream gives up until it looks again for one that has more.
const EVICTIONS_PER_LOOK: u64 = 8;

/// How a session's memory is to begin, beside its geometry.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// [`MODE_DISCARD`](dormouse_abi::session::MODE_DISCARD) or [`MODE_OVERWRITE`].
    pub mode: u32,
    /// [`CLOCK_TSC`](dormouse_abi::session::CLOCK_TSC) or [`CLOCK_MONOTONIC`](dormouse_abi::session::CLOCK_MONOTONIC).
    pub clock: u32,
    /// The trace's identity.
    pub uuid: [u8; 16],
    /// Of all event records.
    pub kind: RecordKind,
    /// Pages that may be drawn; those beyond are withheld.
    pub page_limit: u32,
    /// Streams that have pages of their own.
    pub kept_for: &'a [u32],
    /// How many pages each of them has.
    pub kept_each: u32,
}

impl Setup<'_> {
    /// What the header of a session of this geometry says for ever.
    pub fn layout(&self, geometry: &Geometry) -> SessionLayout {
        SessionLayout {
            magic: MAGIC,
            version: VERSION,
            mode: self.mode,
            size_bytes: geometry.size_bytes() as u64,
            page_size_bytes: geometry.page_size_bytes,
            page_count: geometry.page_count,
            cpu_count: geometry.cpu_count,
            stream_count: geometry.stream_count,
            ring_size: geometry.ring_size(),
            clock: self.clock,
            register_offset: geometry.register_offset().unwrap_or(0) as u64,
            streams_offset: geometry.streams_offset() as u64,
            rings_offset: geometry.rings_offset() as u64,
            ring_stride_bytes: geometry.ring_stride_bytes() as u64,
            pages_offset: geometry.pages_offset() as u64,
            uuid: self.uuid,
            kept_page_count: self.kept_for.len() as u32 * self.kept_each,
            record_kind: self.kind as u32,
        }
    }
}

/// Where a page is, as its owner word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census {
    /// Pages that may be drawn.
    pub limit: u32,
    /// Of these, pages that nobody holds.
    pub free: u32,
    /// Pages that are written to, or are about to be.
    pub drawn: u32,
    /// Pages that are closed, and offered or retained.
    pub queued: u32,
    /// Pages beyond the limit that are still in use.
    pub beyond: u32,
}

/// A view of a session's memory. Copying it copies the address only; whoever made it keeps the mapping alive.
///
/// What the session is made with was read once and checked: whatever is written over the header since, the view stays as it is.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    base: *mut u8,
    geometry: Geometry,
    kept_page_count: u32,
    is_overwrite: bool,
    record_kind: RecordKind,
    clock: u32,
    uuid: [u8; 16],
}

/// What the budget asks of who draws from it. A function from streams to used pages does.
pub trait Drawer {
    /// How many pages of a stream are no longer needed: a page queued with a lower number is as good as free.
    fn used(&self, stream: u32) -> u64;

    /// Page `index` is the caller's, and is about to be written to.
    fn make_ready(&self, _index: u32) {}
}

impl<F: Fn(u32) -> u64> Drawer for F {
    fn used(&self, stream: u32) -> u64 {
        self(stream)
    }
}

// SAFETY: the view is an address and numbers; everything behind it that can change is reached through atomics, through raw
// copies of bytes that only one writer owns at a time (module documentation), or under rseq.
unsafe impl Send for Memory {}
// SAFETY: nothing of the view itself changes; what is behind it is reached through atomics, through raw copies of bytes that
// one writer owns at a time, or under rseq.
unsafe impl Sync for Memory {}

impl Memory {
    /// Views `size_bytes` bytes at `base`.
    ///
    /// # Errors
    /// A sentence that says why the memory is not a session's.
    ///
    /// # Safety
    /// The bytes are mapped for reading and writing, aligned to 4 KiB, and stay mapped while any copy of the view is used.
    pub unsafe fn from_raw(base: *mut u8, size_bytes: usize) -> Result<Memory, &'static str> {
        if size_bytes < dormouse_abi::session::HEADER_SIZE_BYTES {
            return Err("the session's memory is smaller than its header");
        }
        // SAFETY: mapped, aligned and large enough by the caller's word and the check above; a header is atomics.
        let layout = unsafe { &*base.cast::<SessionHeader>() }.layout();
        // SAFETY: the caller has promised memory of this size, mapped as long as the view; the layout is the one that was read from it.
        unsafe { Memory::with_layout(base, size_bytes, &layout) }
    }

    /// As [`Memory::from_raw`], by a layout that the caller knows, whatever the header says by now.
    ///
    /// # Errors
    /// A sentence that says why no such memory is a session's.
    ///
    /// # Safety
    /// That of [`Memory::from_raw`].
    pub unsafe fn with_layout(
        base: *mut u8,
        size_bytes: usize,
        layout: &SessionLayout,
    ) -> Result<Memory, &'static str> {
        let geometry = Geometry::from_layout(layout, size_bytes)?;
        Ok(Memory::view(base, geometry, layout))
    }

    /// Of a layout that is valid.
    fn view(base: *mut u8, geometry: Geometry, layout: &SessionLayout) -> Memory {
        Memory {
            base,
            geometry,
            kept_page_count: layout.kept_page_count,
            is_overwrite: layout.mode == MODE_OVERWRITE,
            record_kind: RecordKind::from_u32(layout.record_kind).unwrap_or_default(),
            clock: layout.clock,
            uuid: layout.uuid,
        }
    }

    /// Lays a session out: the header, and whose pages are whose. Zeroes are empty streams and rings already.
    ///
    /// # Safety
    /// `geometry` is valid; its `size_bytes` bytes at `base` are mapped for reading and writing, aligned to 4 KiB, zero,
    /// nobody else's yet, and stay mapped while any copy of the view is used. The streams of `setup` are the geometry's, its pages fit.
    pub unsafe fn initialise(base: *mut u8, geometry: &Geometry, setup: &Setup<'_>) -> Memory {
        let layout = setup.layout(geometry);
        debug_assert!(layout.kept_page_count <= setup.page_limit && setup.page_limit <= geometry.page_count);
        // SAFETY: the caller's word; the geometry begins with room for a header.
        unsafe { base.cast::<SessionHeader>().write(SessionHeader::new(layout, setup.page_limit)) };
        let memory = Memory::view(base, *geometry, &layout);
        for (place, &stream) in setup.kept_for.iter().enumerate() {
            let first = place as u64 * setup.kept_each as u64;
            memory.stream(stream).kept.store(first << 32 | setup.kept_each as u64, Ordering::Relaxed);
        }
        for index in setup.page_limit..geometry.page_count {
            memory.owner(index).store(Owner::Withheld.to_word(), Ordering::Relaxed);
        }
        memory
    }

    /// What headers event records have.
    pub fn record_kind(&self) -> RecordKind {
        self.record_kind
    }

    /// The session's clock: [`CLOCK_TSC`](dormouse_abi::session::CLOCK_TSC) or [`CLOCK_MONOTONIC`](dormouse_abi::session::CLOCK_MONOTONIC).
    pub fn clock(&self) -> u32 {
        self.clock
    }

    /// The trace's identity.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Where the memory starts.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The session's header, of which every word may change at any time.
    pub fn header(&self) -> &SessionHeader {
        // SAFETY: there is room for a header where the geometry begins, mapped by the word of who made the view; it is atomics.
        unsafe { &*self.base.cast::<SessionHeader>() }
    }

    /// Where programs enter themselves, if the session has such a place.
    pub fn register(&self) -> Option<&Register> {
        let offset = self.geometry.register_offset()?;
        // SAFETY: inside the memory by the geometry, aligned as a register is, and all of it is atomics.
        Some(unsafe { &*self.at(offset).cast::<Register>() })
    }

    /// Whether full pages stay with the producer.
    pub fn is_overwrite(&self) -> bool {
        self.is_overwrite
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.geometry.size_bytes());
        self.base.wrapping_add(offset)
    }

    /// Offset of the control blocks, for those who compute addresses themselves.
    pub fn streams_base(&self) -> *mut u8 {
        self.at(self.geometry.streams_offset())
    }

    /// Control block of a stream. Panics when there is no such stream.
    pub fn stream(&self, stream: u32) -> &StreamControl {
        assert!(stream < self.geometry.stream_count);
        let offset = self.geometry.streams_offset() + stream as usize * STREAM_STRIDE_BYTES;
        // SAFETY: the geometry keeps every control block inside the memory; all its fields are atomics.
        unsafe { &*self.at(offset).cast::<StreamControl>() }
    }

    /// Where the virtqueue of a stream starts.
    pub fn ring(&self, stream: u32) -> *mut u8 {
        assert!(stream < self.geometry.stream_count);
        self.at(self.geometry.rings_offset() + stream as usize * self.geometry.ring_stride_bytes())
    }

    fn owner(&self, index: u32) -> &AtomicU64 {
        assert!(index < self.geometry.page_count);
        let offset = self.geometry.owners_offset() + 8 * index as usize;
        // SAFETY: inside the memory by the geometry, aligned to 8, and only ever used as an atomic or by a transaction.
        unsafe { &*self.at(offset).cast::<AtomicU64>() }
    }

    /// Who owns page `index` of the budget; `None` for a word that nobody writes.
    pub fn owner_of(&self, index: u32) -> Option<Owner> {
        // (B) pairs with (D).
        Owner::from_word(self.owner(index).load(Ordering::Acquire))
    }

    fn chain_slot(&self, stream: u32, seq: u64) -> &AtomicU32 {
        // The size is a power of two.
        let index = seq as usize & (self.geometry.ring_size() as usize - 1);
        let offset = self.geometry.chain_in_ring_region() + 4 * index;
        // SAFETY: inside the stream's ring region by the geometry, aligned to 4, only used as an atomic or by a transaction.
        unsafe { &*self.ring(stream).wrapping_add(offset).cast::<AtomicU32>() }
    }

    /// Unit of page number `seq` of a stream, as long as the page is retained or was not yet used.
    pub fn chain(&self, stream: u32, seq: u64) -> u32 {
        // (C) pairs with (A): a slot is written before the state word that counts it.
        self.chain_slot(stream, seq).load(Ordering::Acquire)
    }

    /// Where the page at `unit` starts, if a page of the budget does.
    pub fn page(&self, unit: u32) -> Option<*mut u8> {
        self.geometry.page_of_unit(unit).map(|_| self.at(unit as usize * UNIT_BYTES))
    }

    /// All of it, for those who copy from it: others may write to it at any time, so every word is loaded once and by itself.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many bytes are mapped by the word of who made the view, and aligned to 4 KiB; an atomic may change at any time.
        unsafe { core::slice::from_raw_parts(self.base.cast::<AtomicU64>(), self.geometry.size_bytes() / 8) }
    }

    /// The words of the page at `unit`, if a page of the budget starts there. What is committed does not change; the other words mean nothing.
    pub fn page_words(&self, unit: u32) -> Option<&[AtomicU64]> {
        let start = unit as usize * UNIT_BYTES / 8;
        self.page(unit)?;
        self.words().get(start..start + self.geometry.page_size_bytes as usize / 8)
    }

    fn page_word(&self, unit: u32, field: usize) -> &AtomicU64 {
        let page = self.page(unit).unwrap_or(self.at(self.geometry.pages_offset()));
        // SAFETY: inside a page's header, aligned to 8, shared only as an atomic or by a transaction.
        unsafe { &*page.wrapping_add(field).cast::<AtomicU64>() }
    }

    /// A 64-bit field of a page's header ([`dormouse_abi::page`]'s offsets from `timestamp_begin` on).
    pub fn page_field(&self, unit: u32, field: usize) -> u64 {
        // (C) pairs with (A): a header is written before the state word that opens or closes its page.
        self.page_word(unit, field).load(Ordering::Acquire)
    }

    pub(crate) fn store_bytes<const N: usize>(&self, offset: usize, bytes: &[u8; N]) {
        // SAFETY: `bytes` is readable for its length.
        unsafe { self.copy_in(offset, bytes.as_ptr(), N) }
    }

    /// Copies into the memory.
    ///
    /// # Safety
    /// `len` bytes at `source` may be read, and the caller owns that part of the memory for now.
    pub(crate) unsafe fn copy_in(&self, offset: usize, source: *const u8, len: usize) {
        assert!(offset + len <= self.geometry.size_bytes());
        // SAFETY: the source by the caller's word, the target by the check; they cannot overlap in any way that matters,
        // because nobody else writes a page that is drawn or claimed.
        unsafe { core::ptr::copy(source, self.at(offset), len) }
    }

    /// Number of the page that `state` speaks of, not wrapping. Zero for a stream that never had one.
    fn seq_full(&self, state: State) -> u64 {
        if state.unit == 0 { 0 } else { self.page_field(state.unit, page::OFFSET_SEQ) }
    }

    /// Says that a stream is written to, or loses an event, before it happens. Wait-free; async-signal-safe.
    pub fn use_stream(&self, stream: u32) {
        let Some(word) = self.header().used_streams.get(stream as usize / 64) else { return };
        let bit = 1 << (stream % 64);
        // Relaxed: who has set it, has done so before.
        if word.load(Ordering::Relaxed) & bit == 0 {
            // (U) pairs with (U'): whoever sees what is written to the stream sees the bit.
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// The streams that were ever written to, or have lost an event.
    pub fn used_streams(&self) -> impl Iterator<Item = u32> + use<'_> {
        let count = self.geometry.stream_count;
        (0..count.div_ceil(64))
            .flat_map(move |index| {
                // (U') pairs with (U). The geometry has no more streams than there are bits.
                let word = self.header().used_streams[index as usize].load(Ordering::Acquire);
                let bits = core::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
                bits.take_while(|word| *word != 0).map(move |word| index * 64 + word.trailing_zeros())
            })
            // Bits beyond the streams are nobody's.
            .take_while(move |stream| *stream < count)
    }

    /// How many pages are kept for one stream or another: the first ones of the budget.
    pub fn kept_page_count(&self) -> u32 {
        self.kept_page_count
    }

    /// How many pages may be drawn: the first ones of the budget.
    pub fn page_limit(&self) -> u32 {
        // (V) pairs with (V'): pages below it are there.
        self.header().page_limit.0.load(Ordering::Acquire).min(self.geometry.page_count)
    }

    /// Pages of the budget that nobody but `stream` draws.
    fn kept(&self, stream: u32) -> core::ops::Range<u32> {
        // Relaxed: written before the memory is handed out.
        let word = self.stream(stream).kept.load(Ordering::Relaxed);
        let first = (word >> 32) as u32;
        let end = first.saturating_add(word as u32).min(self.kept_page_count);
        first.min(end)..end
    }

    /// Draws a free page for `stream` and fills in the part of its header that never changes. Those that are kept for the stream come last.
    ///
    /// Lock-free; async-signal-safe.
    pub fn draw(&self, process: u16, stream: u32, drawer: impl Drawer) -> Option<u32> {
        let limit = self.page_limit();
        let kept = self.kept_page_count.min(limit);
        // Processors begin far apart, so that the words of their pages do not share cache lines; so do the other streams.
        let Geometry { cpu_count, stream_count, .. } = self.geometry;
        let (place, places) =
            if stream < cpu_count { (stream, cpu_count) } else { (stream - cpu_count, stream_count - cpu_count) };
        let first = kept + (place as u64 * (limit - kept) as u64 / places as u64) as u32;
        let own = self.kept(stream);
        let own = own.start.min(limit)..own.end.min(limit);
        let drawn = Owner::Drawn { process, stream: stream as u16 };
        let index =
            (first..limit).chain(kept..first).chain(own).find(|index| self.take_if_free(*index, drawn, &drawer))?;
        Some(self.prepared(index, stream, &drawer))
    }

    /// As [`Memory::draw`], of one page only. Panics when there is no page `index`. Wait-free; async-signal-safe.
    pub fn draw_page(&self, process: u16, stream: u32, index: u32, drawer: impl Drawer) -> Option<u32> {
        let is_kept_for_another = index < self.kept_page_count && !self.kept(stream).contains(&index);
        if is_kept_for_another || index >= self.page_limit() {
            return None;
        }
        let drawn = Owner::Drawn { process, stream: stream as u16 };
        self.take_if_free(index, drawn, &drawer).then(|| self.prepared(index, stream, &drawer))
    }

    /// The unit of a page that was just drawn, with its header.
    fn prepared(&self, index: u32, stream: u32, drawer: &impl Drawer) -> u32 {
        drawer.make_ready(index);
        let unit = self.geometry.unit_of_page(index);
        self.prepare(unit, stream);
        unit
    }

    /// Makes a page that nobody needs `taker`'s.
    fn take_if_free(&self, index: u32, taker: Owner, drawer: &impl Drawer) -> bool {
        // (B) Acquire pairs with the Release of whoever freed the page (D), so that its bytes are no longer read.
        let word = self.owner(index).load(Ordering::Acquire);
        let is_free = match Owner::from_word(word) {
            Some(Owner::Free) => true,
            Some(Owner::Queued { stream, seq }) if (stream as u32) < self.geometry.stream_count => {
                seq < drawer.used(stream as u32)
            }
            _ => false,
        };
        is_free && self.change_owner(index, word, taker)
    }

    /// Makes a page `to`'s whose owner word still is `from`. False if it is another one.
    fn change_owner(&self, index: u32, from: u64, to: Owner) -> bool {
        // (B) again, and (D) for whoever looks at the word next.
        self.owner(index).compare_exchange(from, to.to_word(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn prepare(&self, unit: u32, stream: u32) {
        let mut header = [0u8; page::HEADER_SIZE_BYTES];
        let cpu = if stream < self.geometry.cpu_count { stream } else { page::CPU_UNKNOWN };
        let packet_size_bits = self.geometry.page_size_bytes as u64 * 8;
        header[page::OFFSET_MAGIC..][..4].copy_from_slice(&page::MAGIC.to_le_bytes());
        header[page::OFFSET_UUID..][..16].copy_from_slice(&self.uuid);
        header[page::OFFSET_STREAM_ID..][..4].copy_from_slice(&page::STREAM_EVENTS.to_le_bytes());
        header[page::OFFSET_INSTANCE..][..4].copy_from_slice(&stream.to_le_bytes());
        header[page::OFFSET_CPU_ID..][..4].copy_from_slice(&cpu.to_le_bytes());
        header[page::OFFSET_PACKET_SIZE..][..8].copy_from_slice(&packet_size_bits.to_le_bytes());
        self.store_bytes(unit as usize * UNIT_BYTES, &header);
    }

    /// Gives a page back that was drawn and not linked. Wait-free; async-signal-safe.
    pub fn give_back(&self, process: u16, stream: u32, unit: u32) {
        if let Some(index) = self.geometry.page_of_unit(unit) {
            let drawn = Owner::Drawn { process, stream: stream as u16 }.to_word();
            // A failure means that the owner has taken it from a process it believes dead.
            let _ = self.change_owner(index, drawn, Owner::Free);
            // (J') pairs with (J): whoever sees the count finds the page.
            self.header().freed.0.fetch_add(1, Ordering::Release);
        }
    }

    /// Takes back what a process held that writes no more, its number last. Gives how many streams it had claimed, each for a write that it has
    /// not ended.
    pub fn take_back(&self, process: u16) -> u64 {
        let claimed_count = self.release_claims(process);
        self.reclaim_drawn(process);
        if let Some(register) = self.register() {
            register.free(process);
        }
        claimed_count
    }

    /// Releases the streams that a process has claimed, which writes no more. Gives how many.
    pub fn release_claims(&self, process: u16) -> u64 {
        let mut count = 0;
        for stream in self.used_streams().filter(|stream| *stream >= self.geometry.cpu_count) {
            let claimed = &self.stream(stream).claim;
            // (H) pairs with (I), the claimant's last.
            let word = claimed.load(Ordering::Acquire);
            if claim::process(word) == Some(process) {
                // What the claimant had not committed is above the stream's offset, and means nothing.
                // (I) pairs with (H), the next claimant's.
                let released = claimed.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
                count += u64::from(released.is_ok());
            }
        }
        count
    }

    /// Frees every page that `process` had drawn and not linked. For the session owner, once the process is dead.
    ///
    /// Returns how many there were.
    pub fn reclaim_drawn(&self, process: u16) -> u32 {
        let mut reclaimed = 0;
        for index in 0..self.geometry.page_count {
            // (B) pairs with (D).
            let word = self.owner(index).load(Ordering::Acquire);
            let Some(Owner::Drawn { process: drawer, stream }) = Owner::from_word(word) else { continue };
            if drawer != process || stream as u32 >= self.geometry.stream_count {
                continue;
            }
            if !self.is_linked(stream as u32, self.geometry.unit_of_page(index)) {
                // The owner word is read again by the exchange: a page that was linked and closed meanwhile is QUEUED.
                reclaimed += self.change_owner(index, word, Owner::Free) as u32;
            }
        }
        // (J') pairs with (J).
        self.header().freed.0.fetch_add(1, Ordering::Release);
        reclaimed
    }

    /// Whether a page is the current or the next one of a stream. A dead process cannot link it any more.
    fn is_linked(&self, stream: u32, unit: u32) -> bool {
        let control = self.stream(stream);
        for _ in 0..LOOKS_MAX {
            // (C) pairs with (A); the spare is read between two equal readings of the state.
            let before = control.state.load(Ordering::Acquire);
            let next = control.spare.load(Ordering::Acquire);
            if control.state.load(Ordering::Acquire) != before {
                core::hint::spin_loop();
                continue;
            }
            let state = State::from_word(before);
            return state.unit == unit || spare::unit_for(next, state.seq.wrapping_add(1)) == Some(unit);
        }
        // Better a page too few than one that two streams write.
        true
    }

    /// Pages of a stream that are closed and not yet taken back (overwrite mode).
    pub fn retained(&self, stream: u32) -> u32 {
        self.retained_by(stream).count
    }

    fn retained_by(&self, stream: u32) -> Retained {
        let control = self.stream(stream);
        Retained::of(&control.reclaimed, &control.state)
    }

    /// Overwrite mode: gives up the oldest page of the stream that retains the most (as it was found a few pages ago), so that [`Memory::draw_page`] can have it.
    ///
    /// Returns its index in the budget, or `None` when no stream retains any. Lock-free; async-signal-safe.
    pub fn evict(&self, stream: u32) -> Option<u32> {
        let (victim, retained) = self.victim(stream)?;
        // A failure means that somebody else has just given it up: as good.
        let _ = retained.give_up(&self.stream(victim).reclaimed);
        // A slot that somebody has scribbled over names another page, which is drawn only if it is free.
        Some(self.geometry.page_of_unit(self.chain(victim, retained.oldest)).unwrap_or(0))
    }

    /// The stream that retains the most, and what it retains.
    fn victim(&self, stream: u32) -> Option<(u32, Retained)> {
        let mut victim = (stream, self.retained_by(stream));
        let Retained { oldest, count } = victim.1;
        // All streams together retain no more pages than there are. Who has the most of them need not look at the others, each
        // of which lies in an `os_page` of its own. Who shares with others looks now and then, and as long as that finds
        // somebody who has more: its own count stays where it is meanwhile.
        let may_lead = self.page_limit().saturating_sub(count) > count.saturating_add(1);
        let is_turn = oldest.is_multiple_of(EVICTIONS_PER_LOOK);
        let looks = may_lead && (is_turn || count == 0);
        for other in self.used_streams().take_while(|_| looks) {
            let retained = self.retained_by(other);
            // A tie goes to the stream that asks; a lead of one is not worth another stream's history.
            if retained.count > victim.1.count.saturating_add(1) {
                victim = (other, retained);
            }
        }
        (victim.1.count > 0).then_some(victim)
    }

    /// Session owner: sets how many pages may be drawn. More of them: the memory of those that come is there, zeroed or as it was left.
    /// Fewer: whoever holds one of the others keeps it until it is closed, and [`Memory::withhold`] takes it then. At least the pages
    /// that are kept for a stream stay.
    pub fn set_page_limit(&self, limit: u32) {
        // Whatever a stray pointer has left in the header, there are no more pages than there are.
        let least = self.kept_page_count.clamp(1, self.geometry.page_count);
        let limit = limit.clamp(least, self.geometry.page_count);
        for index in 0..limit {
            let _ = self.change_owner(index, Owner::Withheld.to_word(), Owner::Free);
        }
        // (V') pairs with (V).
        self.header().page_limit.0.store(limit, Ordering::Release);
        // (J') pairs with (J): whoever has found no page looks again.
        self.header().freed.0.fetch_add(1, Ordering::Release);
    }

    /// Session owner: takes page `index` out of the budget if it lies beyond the limit and nobody needs it. True if it did, and the
    /// page's memory may go.
    pub fn withhold(&self, index: u32, used: impl Fn(u32) -> u64) -> bool {
        index >= self.page_limit() && self.take_if_free(index, Owner::Withheld, &used)
    }

    /// Session owner, overwrite mode: moves a retained page from beyond the limit to below it, at the price of the oldest one if need be.
    /// True if it did, and the page's memory may go. Nobody else may read retained pages meanwhile.
    pub fn relocate(&self, index: u32) -> bool {
        let Some(queued @ Owner::Queued { stream, seq }) = self.owner_of(index) else { return false };
        let stream = stream as u32;
        // (E') pairs with (E).
        let used = |stream: u32| self.stream(stream).reclaimed.load(Ordering::Acquire);
        if index < self.page_limit() || stream >= self.geometry.stream_count || seq < used(stream) {
            return false;
        }
        let from = self.geometry.unit_of_page(index);
        // Held, so that nobody draws it and no later page of the stream is in it, even if writers give it up meanwhile.
        if !self.hold(stream, seq, from) {
            return false;
        }
        let drawn = self.draw(OWNER, stream, used).or_else(|| {
            (0..self.geometry.page_count).find_map(|_| {
                let evicted = self.evict(stream)?;
                self.draw_page(OWNER, stream, evicted, used)
            })
        });
        let Some(to) = drawn else {
            // Everything else is being written to: the page stays where it is, for now. (D) pairs with (B).
            self.owner(index).store(queued.to_word(), Ordering::Release);
            return false;
        };
        // A closed page is changed by nobody who keeps to the protocol, and the other one is this caller's. Relaxed: the slot below says where
        // the page is.
        if let (Some(from), Some(to)) = (self.page_words(from), self.page_words(to)) {
            from.iter().zip(to).for_each(|(from, to)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
        }
        let slot = self.chain_slot(stream, seq);
        // (C') Release pairs with (C). A failure means that the stream has given the page up, and has another one there.
        let is_moved = slot.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if let Some(target) = self.geometry.page_of_unit(to) {
            let now = if is_moved { queued } else { Owner::Free };
            // (D) pairs with (B).
            self.owner(target).store(now.to_word(), Ordering::Release);
        }
        // (D) pairs with (B).
        self.owner(index).store(Owner::Withheld.to_word(), Ordering::Release);
        true
    }

    /// Session owner, overwrite mode: keeps what a closed page holds until [`Memory::let_go`], whatever writers give up meanwhile. False if it
    /// is given up already. While pages are held, writers need others.
    pub fn hold(&self, stream: u32, seq: u64, unit: u32) -> bool {
        let Some(index) = self.geometry.page_of_unit(unit) else { return false };
        let queued = Owner::Queued { stream: stream as u16, seq }.to_word();
        // A page that was given up may still be there, but somebody may be about to draw it: one of us does.
        self.change_owner(index, queued, Owner::Drawn { process: OWNER, stream: stream as u16 })
    }

    /// Session owner: ends a hold. The page is the stream's again or, if it was given up meanwhile, free.
    pub fn let_go(&self, stream: u32, seq: u64, unit: u32) {
        if let Some(index) = self.geometry.page_of_unit(unit) {
            // (D) pairs with (B): what the holder has read, it has read.
            self.owner(index).store(Owner::Queued { stream: stream as u16, seq }.to_word(), Ordering::Release);
            // (J') pairs with (J).
            self.header().freed.0.fetch_add(1, Ordering::Release);
        }
    }

    /// Session owner that takes a session up: ends the holds of an owner that has ended amid them, and frees the pages that it was moving others to.
    pub fn end_holds(&self) {
        for index in 0..self.geometry.page_count {
            let Some(Owner::Drawn { process: OWNER, stream }) = self.owner_of(index) else { continue };
            let (stream, unit) = (u32::from(stream), self.geometry.unit_of_page(index));
            let seq = self.page_field(unit, page::OFFSET_SEQ);
            // The slot says which page of the stream is where: of two copies, the one that counts.
            if stream < self.geometry.stream_count && self.chain(stream, seq) == unit && self.is_closed(stream, seq) {
                self.let_go(stream, seq, unit);
            }
        }
        self.reclaim_drawn(OWNER);
    }

    /// Whether a stream's page of this number is closed, and not given up.
    fn is_closed(&self, stream: u32, seq: u64) -> bool {
        let Retained { oldest, count } = self.retained_by(stream);
        seq.checked_sub(oldest).is_some_and(|place| place < u64::from(count))
    }

    /// Where the pages are at about this moment.
    pub fn census(&self, used: impl Fn(u32) -> u64) -> Census {
        let mut census = Census { limit: self.page_limit(), ..Census::default() };
        for index in 0..self.geometry.page_count {
            let count = match self.owner_of(index) {
                Some(Owner::Withheld) | None => continue,
                _ if index >= census.limit => &mut census.beyond,
                Some(Owner::Free) => &mut census.free,
                Some(Owner::Drawn { .. }) => &mut census.drawn,
                Some(Owner::Queued { stream, seq }) => {
                    let is_known = (stream as u32) < self.geometry.stream_count;
                    if is_known && seq >= used(stream as u32) { &mut census.queued } else { &mut census.free }
                }
            };
            *count += 1;
        }
        census
    }

    /// Plans to keep a drawn page as the stream's next one. The guard is the spare word itself.
    pub fn plan_spare(&self, stream: u32, seen: u64, seq_next: u16, unit: u32) -> Txn {
        let word = &self.stream(stream).spare;
        let last = Store { target: word.as_ptr().cast(), value: spare::to_word(seq_next, unit), width: 8 };
        Txn::new(word.as_ptr(), seen, last)
    }

    /// Plans to close the current page (if there is one) and to make `unit` the next, which [`Memory::open`] opens.
    ///
    /// `timestamp` was read after `seen`, the stream's state word: the guard makes sure that nothing was written since, so it
    /// is neither before the old page's last record nor after the new page's first.
    pub fn plan_switch(&self, stream: u32, seen: u64, unit: u32, timestamp: u64) -> Txn {
        let control = self.stream(stream);
        let state = State::from_word(seen);
        let next = State { seq: state.seq.wrapping_add(1), unit, offset: page::HEADER_SIZE_BYTES as u32 };
        let last = Store { target: control.state.as_ptr().cast(), value: next.to_word(), width: 8 };
        let mut txn = Txn::new(control.state.as_ptr(), seen, last);
        let mut seq_next = 0;
        if let Some(index) = self.geometry.page_of_unit(state.unit) {
            let seq = self.seq_full(state);
            seq_next = seq.wrapping_add(1);
            let field = |offset| self.page_word(state.unit, offset).as_ptr().cast::<u8>();
            txn.store(field(page::OFFSET_CONTENT_SIZE), state.offset as u64 * 8, 8);
            txn.store(field(page::OFFSET_TIMESTAMP_END), timestamp, 8);
            txn.store(field(page::OFFSET_DISCARDED), self.discarded(stream), 8);
            txn.store(self.chain_slot(stream, seq).as_ptr().cast(), state.unit as u64, 4);
            let queued = Owner::Queued { stream: stream as u16, seq };
            txn.store(self.owner(index).as_ptr().cast(), queued.to_word(), 8);
        }
        let field = |offset| self.page_word(unit, offset).as_ptr().cast::<u8>();
        txn.store(field(page::OFFSET_SEQ), seq_next, 8);
        txn.store(field(page::OFFSET_TIMESTAMP_BEGIN), timestamp, 8);
        txn.store(control.begin_timestamp.as_ptr().cast(), timestamp, 8);
        // Until the new page is open: whoever dies before that leaves the old one to be closed by the next writer, and not to be
        // written to for longer than it may be.
        txn.store(control.expiry.as_ptr().cast(), 0, 8);
        txn
    }

    /// After a switch with this timestamp was committed: lets records go into the page. However late that is, it does no harm: later pages
    /// have later expiries, and an earlier one only has a page closed early.
    pub fn open(&self, stream: u32, timestamp: u64) {
        // (A) pairs with (C).
        self.stream(stream).expiry.store(expiry(timestamp), Ordering::Release);
    }

    /// Events of a stream that were dropped so far, for whatever cause.
    pub fn discarded(&self, stream: u32) -> u64 {
        let control = self.stream(stream);
        // Two counters, each exact; their sum is read without stopping anybody and is exact once the writers rest.
        // (C) as the state word: what was counted before the caller looked is counted.
        let lost_full = control.records_lost_full.0.load(Ordering::Acquire);
        lost_full.wrapping_add(control.records_lost_big.load(Ordering::Acquire))
    }

    /// Events that were dropped so far, of all streams, by [`lost_class_index`](dormouse_abi::session::lost_class_index). `None`
    /// beyond the last index.
    pub fn discarded_by_class(&self, index: usize) -> Option<u64> {
        // (C) as the counts of all classes together.
        let count = |stream| self.stream(stream).records_lost_by_class[index].load(Ordering::Acquire);
        let sum = || self.used_streams().fold(0, |sum: u64, stream| sum.saturating_add(count(stream)));
        (index < LOST_CLASS_COUNT).then(sum)
    }
}

//! A view of the session's memory for writers and readers: typed access by offset, drawing of pages, planning of
//! transactions.

use dormouse_abi::page;
use dormouse_abi::record::RecordKind;
use dormouse_abi::register::Register;
use dormouse_abi::tag::TagNames;
use dormouse_abi::txn::{Store, Txn};

use crate::abi::session::{
    Geometry, LOST_CLASS_COUNT, MAGIC, MODE_OVERWRITE, Owner, REASON_COUNT, STREAM_STRIDE_BYTES, SessionHeader,
    SessionLayout, State, StreamControl, UNIT_BYTES, Unrecorded, VERSION, claim, expiry, spare,
};
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::retained::Retained;

/// Maximum number of attempts of a reader to see two words that belong together. Correct writers change them less
/// often.
const READ_ATTEMPTS_MAX: u32 = 10_000;

/// Process number of the session owner. Processes have other numbers.
const OWNER: u16 = 0;

/// Number of its own pages that a stream gives up until it searches again for a stream that retains more.
const EVICTIONS_PER_SEARCH: u64 = 8;

/// Options for a session's memory, beside its geometry.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// [`MODE_DISCARD`](dormouse_abi::session::MODE_DISCARD) or [`MODE_OVERWRITE`].
    pub mode: u32,
    /// [`CLOCK_TSC`](dormouse_abi::session::CLOCK_TSC) or [`CLOCK_MONOTONIC`](dormouse_abi::session::CLOCK_MONOTONIC).
    pub clock: u32,
    /// Identity of the trace.
    pub uuid: [u8; 16],
    /// Kind of all event records.
    pub kind: RecordKind,
    /// Tags of all event records.
    pub tags: TagNames,
    /// Number of pages that may be drawn; pages beyond it are withheld.
    pub page_count_limit: u32,
    /// Streams that have kept pages.
    pub kept_for: &'a [u32],
    /// Number of kept pages of each of them.
    pub kept_each: u32,
}

impl Setup<'_> {
    /// Returns the layout in the header of a session of this geometry, which never changes.
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
            tags: self.tags,
        }
    }
}

/// Numbers of pages, by the state in their owner words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census {
    /// Pages that may be drawn.
    pub limit: u32,
    /// Pages below the limit that are free.
    pub free: u32,
    /// Pages that are written to, or are about to be.
    pub drawn: u32,
    /// Pages that are closed, and offered or retained.
    pub queued: u32,
    /// Pages beyond the limit that are still in use.
    pub beyond: u32,
}

/// A view of a session's memory. Copying it copies only the address; the code that made it keeps the mapping alive.
///
/// The session's layout was read once and checked: if the header is overwritten later, the view does not change.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    base: *mut u8,
    geometry: Geometry,
    kept_page_count: u32,
    is_overwrite: bool,
    record_kind: RecordKind,
    tags: TagNames,
    clock: u32,
    uuid: [u8; 16],
}

/// The callbacks through which the budget draws a page. A function from streams to numbers of used pages implements it.
pub trait Drawer {
    /// Returns the number of pages of a stream that are no longer needed: a page queued with a lower number counts as
    /// free.
    fn used(&self, stream: u32) -> u64;

    /// Prepares page `index`, which the caller has drawn and is about to write to.
    fn make_ready(&self, _index: u32) {}
}

impl<F: Fn(u32) -> u64> Drawer for F {
    fn used(&self, stream: u32) -> u64 {
        self(stream)
    }
}

// SAFETY: the view is an address and numbers; the memory behind it is accessed through atomics, through raw copies of
// bytes that only one writer owns at a time (module documentation), or under rseq.
unsafe impl Send for Memory {}
// SAFETY: nothing in the view itself changes; the memory behind it is accessed through atomics, through raw copies of
// bytes that only one writer owns at a time, or under rseq.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns a view of `size_bytes` bytes at `base`.
    ///
    /// # Errors
    /// A sentence that says why the memory is not a session's.
    ///
    /// # Safety
    /// The bytes are mapped for reading and writing, aligned to 4 KiB, and stay mapped while any copy of the view is used.
    pub unsafe fn from_raw(base: *mut u8, size_bytes: usize) -> Result<Memory, &'static str> {
        if size_bytes < crate::abi::session::HEADER_SIZE_BYTES {
            return Err("the session's memory is smaller than its header");
        }
        // SAFETY: the caller guarantees mapped and aligned memory, and the check above that it is large enough; a
        // header consists of atomics.
        let layout = unsafe { &*base.cast::<SessionHeader>() }.layout();
        // SAFETY: the caller guarantees memory of this size, mapped as long as the view; the layout was read from it.
        unsafe { Memory::with_layout(base, size_bytes, &layout) }
    }

    /// Like [`Memory::from_raw`], but with a layout that the caller knows; the header is not read.
    ///
    /// # Errors
    /// A sentence that says why memory of this layout is not a session's.
    ///
    /// # Safety
    /// The conditions of [`Memory::from_raw`].
    pub unsafe fn with_layout(
        base: *mut u8,
        size_bytes: usize,
        layout: &SessionLayout,
    ) -> Result<Memory, &'static str> {
        let geometry = Geometry::from_layout(layout, size_bytes)?;
        Ok(Memory::view(base, geometry, layout))
    }

    /// Returns a view with a layout that is valid.
    fn view(base: *mut u8, geometry: Geometry, layout: &SessionLayout) -> Memory {
        Memory {
            base,
            geometry,
            kept_page_count: layout.kept_page_count,
            is_overwrite: layout.mode == MODE_OVERWRITE,
            record_kind: RecordKind::from_u32(layout.record_kind).unwrap_or_default(),
            tags: layout.tags,
            clock: layout.clock,
            uuid: layout.uuid,
        }
    }

    /// Lays a session out: writes the header, the kept pages and the withheld pages. Zeroes are already empty streams
    /// and rings.
    ///
    /// # Safety
    /// `geometry` is valid; its `size_bytes` bytes at `base` are mapped for reading and writing, aligned to 4 KiB,
    /// zero, not used by any other thread yet, and stay mapped while any copy of the view is used. The streams of
    /// `setup` exist in the geometry, and its pages fit.
    pub unsafe fn initialise(base: *mut u8, geometry: &Geometry, setup: &Setup<'_>) -> Memory {
        let layout = setup.layout(geometry);
        debug_assert!(
            layout.kept_page_count <= setup.page_count_limit && setup.page_count_limit <= geometry.page_count
        );
        // SAFETY: the caller guarantees zeroed memory that is mapped and not shared yet; the geometry begins with room
        // for a header.
        unsafe { base.cast::<SessionHeader>().write(SessionHeader::new(layout, setup.page_count_limit)) };
        let memory = Memory::view(base, *geometry, &layout);
        for (place, &stream) in setup.kept_for.iter().enumerate() {
            let first = place as u64 * setup.kept_each as u64;
            memory.stream(stream).kept.store(first << 32 | setup.kept_each as u64, Ordering::Relaxed);
        }
        for index in setup.page_count_limit..geometry.page_count {
            memory.owner(index).store(Owner::Withheld.to_word(), Ordering::Relaxed);
        }
        memory
    }

    /// Returns the kind of headers that event records have.
    pub fn record_kind(&self) -> RecordKind {
        self.record_kind
    }

    /// Returns the names of the tags that event records have.
    pub fn tags(&self) -> &TagNames {
        &self.tags
    }

    /// Returns the session's clock: [`CLOCK_TSC`](dormouse_abi::session::CLOCK_TSC) or
    /// [`CLOCK_MONOTONIC`](dormouse_abi::session::CLOCK_MONOTONIC).
    pub fn clock(&self) -> u32 {
        self.clock
    }

    /// Returns the trace's identity.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Returns the start of the memory.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the session's header, of which every word may change at any time.
    pub fn header(&self) -> &SessionHeader {
        // SAFETY: the geometry begins with room for a header, and the code that made the view guarantees that it is
        // mapped; it consists of atomics.
        unsafe { &*self.base.cast::<SessionHeader>() }
    }

    /// Returns the register of processes, if the session has one.
    pub fn register(&self) -> Option<&Register> {
        let offset = self.geometry.register_offset()?;
        // SAFETY: inside the memory by the geometry, aligned for a register, which consists of atomics.
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

    /// Returns the start of the control blocks, for code that computes addresses itself.
    pub fn streams_base(&self) -> *mut u8 {
        self.at(self.geometry.streams_offset())
    }

    /// Returns the control block of a stream. Panics if there is no such stream.
    pub fn stream(&self, stream: u32) -> &StreamControl {
        assert!(stream < self.geometry.stream_count);
        let offset = self.geometry.streams_offset() + stream as usize * STREAM_STRIDE_BYTES;
        // SAFETY: the geometry keeps every control block inside the memory; all its fields are atomics.
        unsafe { &*self.at(offset).cast::<StreamControl>() }
    }

    /// Returns the start of the tables of events that are not recorded, for code that computes addresses itself.
    pub fn unrecorded_base(&self) -> *mut u8 {
        self.at(self.geometry.unrecorded_offset())
    }

    /// Returns a stream's table of events that are not recorded. Panics if there is no such stream.
    pub fn unrecorded(&self, stream: u32) -> &Unrecorded {
        assert!(stream < self.geometry.stream_count);
        let offset = self.geometry.unrecorded_offset() + stream as usize * size_of::<Unrecorded>();
        // SAFETY: the geometry keeps every table inside the memory and aligns it; all its fields are atomics.
        unsafe { &*self.at(offset).cast::<Unrecorded>() }
    }

    /// Returns the start of a stream's virtqueue.
    pub fn ring(&self, stream: u32) -> *mut u8 {
        assert!(stream < self.geometry.stream_count);
        self.at(self.geometry.rings_offset() + stream as usize * self.geometry.ring_stride_bytes())
    }

    fn owner(&self, index: u32) -> &AtomicU64 {
        assert!(index < self.geometry.page_count);
        let offset = self.geometry.owners_offset() + 8 * index as usize;
        // SAFETY: inside the memory by the geometry, aligned to 8, and only used as an atomic or by a transaction.
        unsafe { &*self.at(offset).cast::<AtomicU64>() }
    }

    /// Returns the owner of page `index` of the budget; `None` for a word that is not valid.
    pub fn owner_of(&self, index: u32) -> Option<Owner> {
        // (B) pairs with (D).
        Owner::from_word(self.owner(index).load(Ordering::Acquire))
    }

    fn chain_slot(&self, stream: u32, seq: u64) -> &AtomicU32 {
        // The size is a power of two.
        let index = seq as usize & (self.geometry.ring_size() as usize - 1);
        let offset = self.geometry.chain_in_ring_region() + 4 * index;
        // SAFETY: inside the stream's ring region by the geometry, aligned to 4, only used as an atomic or by a
        // transaction.
        unsafe { &*self.ring(stream).wrapping_add(offset).cast::<AtomicU32>() }
    }

    /// Returns the unit of page number `seq` of a stream, as long as the page is retained or was not yet used.
    pub fn chain(&self, stream: u32, seq: u64) -> u32 {
        // (C) pairs with (A): a slot is written before the state word that counts it.
        self.chain_slot(stream, seq).load(Ordering::Acquire)
    }

    /// Returns the start of the page at `unit`, if a page of the budget starts there.
    pub fn page(&self, unit: u32) -> Option<*mut u8> {
        self.geometry.page_of_unit(unit).map(|_| self.at(unit as usize * UNIT_BYTES))
    }

    /// Returns the whole memory, for code that copies from it: it may be written at any time, so each word is loaded
    /// once and separately.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the code that made the view guarantees that this many bytes are mapped and aligned to 4 KiB; an
        // atomic may change at any time.
        unsafe { core::slice::from_raw_parts(self.base.cast::<AtomicU64>(), self.geometry.size_bytes() / 8) }
    }

    /// Returns the words of the page at `unit`, if a page of the budget starts there. Committed words do not change;
    /// the others are undefined.
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

    /// Returns a 64-bit field of a page's header ([`dormouse_abi::page`]'s offsets from `timestamp_begin` on).
    pub fn page_field(&self, unit: u32, field: usize) -> u64 {
        // (C) pairs with (A): a header is written before the state word that opens or closes its page.
        u64::from_le(self.page_word(unit, field).load(Ordering::Acquire))
    }

    pub(crate) fn store_bytes<const N: usize>(&self, offset: usize, bytes: &[u8; N]) {
        // SAFETY: `bytes` is readable for its length; the callers own the page that they write to.
        unsafe { self.copy_in(offset, bytes.as_ptr(), N) }
    }

    /// Copies `len` bytes into the memory.
    ///
    /// # Safety
    /// `len` bytes at `source` may be read, and the caller currently owns that part of the memory.
    pub(crate) unsafe fn copy_in(&self, offset: usize, source: *const u8, len: usize) {
        assert!(offset + len <= self.geometry.size_bytes());
        // SAFETY: the caller guarantees that the source may be read, and the check that the target is inside the
        // memory. No other thread writes a page that is drawn or claimed.
        unsafe { core::ptr::copy(source, self.at(offset), len) }
    }

    /// Reverses the bytes of each number of a part that was copied in.
    #[cfg(target_endian = "big")]
    pub(crate) fn reverse(&self, offset: usize, len: usize, number_size_bytes: usize) {
        assert!(offset + len <= self.geometry.size_bytes());
        for number in (0..len / number_size_bytes).filter(|_| number_size_bytes > 1) {
            let start = offset + number * number_size_bytes;
            for byte in 0..number_size_bytes / 2 {
                // SAFETY: both bytes are inside the memory, by the check on it; no other thread writes a page that is
                // drawn or claimed.
                unsafe { core::ptr::swap(self.at(start + byte), self.at(start + number_size_bytes - 1 - byte)) };
            }
        }
    }

    /// Returns the number of the page in `state`, not wrapped. Zero for a stream that never had a page.
    fn seq_full(&self, state: State) -> u64 {
        if state.unit == 0 { 0 } else { self.page_field(state.unit, page::OFFSET_SEQ) }
    }

    /// Marks a stream as used, before it is written to or counts an event that is not. Wait-free; async-signal-safe.
    pub fn use_stream(&self, stream: u32) {
        let Some(word) = self.header().used_streams.get(stream as usize / 64) else { return };
        let bit = 1 << (stream % 64);
        // Relaxed: a thread that has set the bit did so before it wrote.
        if word.load(Ordering::Relaxed) & bit == 0 {
            // (U) pairs with (U'): a reader that sees a write to the stream sees the bit.
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    /// Iterates over the streams that were ever written to, or have counted an event that was not.
    pub fn used_streams(&self) -> impl Iterator<Item = u32> + use<'_> {
        let count = self.geometry.stream_count;
        (0..count.div_ceil(64))
            .flat_map(move |index| {
                // (U') pairs with (U). The geometry has no more streams than there are bits.
                let word = self.header().used_streams[index as usize].load(Ordering::Acquire);
                let bits = core::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
                bits.take_while(|word| *word != 0).map(move |word| index * 64 + word.trailing_zeros())
            })
            // Bits beyond the streams have no meaning.
            .take_while(move |stream| *stream < count)
    }

    /// Returns the number of kept pages of all streams: the first pages of the budget.
    pub fn kept_page_count(&self) -> u32 {
        self.kept_page_count
    }

    /// Returns the number of pages that may be drawn: the first pages of the budget.
    pub fn page_count_limit(&self) -> u32 {
        // (V) pairs with (V'): the memory of pages below the limit exists.
        self.header().page_count_limit.0.load(Ordering::Acquire).min(self.geometry.page_count)
    }

    /// Returns the pages of the budget that only `stream` draws.
    fn kept(&self, stream: u32) -> core::ops::Range<u32> {
        // Relaxed: written before the memory is shared.
        let word = self.stream(stream).kept.load(Ordering::Relaxed);
        let first = (word >> 32) as u32;
        let end = first.saturating_add(word as u32).min(self.kept_page_count);
        first.min(end)..end
    }

    /// Draws a free page for `stream` and writes the part of its header that never changes. Pages that are kept for the
    /// stream are drawn last.
    ///
    /// Lock-free; async-signal-safe.
    pub fn draw(&self, process: u16, stream: u32, drawer: impl Drawer) -> Option<u32> {
        let limit = self.page_count_limit();
        let kept = self.kept_page_count.min(limit);
        // CPUs begin far apart, so that the words of their pages do not share cache lines; so do the other streams.
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

    /// Draws page `index`, if it is free and not kept for another stream. Panics if there is no page `index`.
    /// Wait-free; async-signal-safe.
    pub fn draw_page(&self, process: u16, stream: u32, index: u32, drawer: impl Drawer) -> Option<u32> {
        let is_kept_for_another = index < self.kept_page_count && !self.kept(stream).contains(&index);
        if is_kept_for_another || index >= self.page_count_limit() {
            return None;
        }
        let drawn = Owner::Drawn { process, stream: stream as u16 };
        self.take_if_free(index, drawn, &drawer).then(|| self.prepared(index, stream, &drawer))
    }

    /// Prepares a page that was just drawn, writes its header, and returns its unit.
    fn prepared(&self, index: u32, stream: u32, drawer: &impl Drawer) -> u32 {
        drawer.make_ready(index);
        let unit = self.geometry.unit_of_page(index);
        self.prepare(unit, stream);
        unit
    }

    /// Makes `taker` the owner of a page that is free; returns whether it was.
    fn take_if_free(&self, index: u32, taker: Owner, drawer: &impl Drawer) -> bool {
        // (B) Acquire pairs with the Release (D) of the thread that freed the page, so that its bytes are no longer
        // read.
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

    /// Makes `to` the owner of a page if its owner word is still `from`. False if it is another one.
    fn change_owner(&self, index: u32, from: u64, to: Owner) -> bool {
        // (B), and (D) for the next thread that reads the word.
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

    /// Returns a page that was drawn and not linked. Wait-free; async-signal-safe.
    pub fn give_back(&self, process: u16, stream: u32, unit: u32) {
        if let Some(index) = self.geometry.page_of_unit(unit) {
            let drawn = Owner::Drawn { process, stream: stream as u16 }.to_word();
            // A failure means that the owner has taken it from a process that it believes dead.
            let _ = self.change_owner(index, drawn, Owner::Free);
            // (J') pairs with (J): a thread that sees the count finds the page.
            self.header().freed.0.fetch_add(1, Ordering::Release);
        }
    }

    /// Takes back everything that a process held that writes no more: claims, pages and, last, its process number.
    /// Returns the number of streams that it had claimed, each for a write that it has not ended.
    pub fn take_back(&self, process: u16) -> u64 {
        let claimed_count = self.release_claims(process);
        self.reclaim_drawn(process);
        if let Some(register) = self.register() {
            register.free(process);
        }
        claimed_count
    }

    /// Releases the streams that a process has claimed, which writes no more. Returns their number.
    pub fn release_claims(&self, process: u16) -> u64 {
        let mut count = 0;
        for stream in self.used_streams().filter(|stream| *stream >= self.geometry.cpu_count) {
            let claimed = &self.stream(stream).claim;
            // (H) pairs with (I) of the last claimant.
            let word = claimed.load(Ordering::Acquire);
            if claim::process(word) == Some(process) {
                // Bytes that the claimant had not committed are above the stream's offset, and are undefined. (I) pairs
                // with (H) of the next claimant.
                let released = claimed.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
                count += u64::from(released.is_ok());
            }
        }
        count
    }

    /// Session owner: frees every page that `process` had drawn and not linked, once the process is dead.
    ///
    /// Returns the number of these pages.
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
                // The exchange reads the owner word again: a page that was linked and closed in the meantime is QUEUED.
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
        for _ in 0..READ_ATTEMPTS_MAX {
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
        // Losing a page is better than one that two streams write.
        true
    }

    /// Returns the number of pages of a stream that are closed and not yet given up (overwrite mode).
    pub fn retained(&self, stream: u32) -> u32 {
        self.retained_by(stream).count
    }

    fn retained_by(&self, stream: u32) -> Retained {
        let control = self.stream(stream);
        Retained::of(&control.reclaimed, &control.state)
    }

    /// Overwrite mode: gives up the oldest page of the stream that retains the most (according to a count that may be a
    /// few pages old), so that [`Memory::draw_page`] can draw it.
    ///
    /// Returns its index in the budget, or `None` if no stream retains any. Lock-free; async-signal-safe.
    pub fn evict(&self, stream: u32) -> Option<u32> {
        let (victim, retained) = self.victim(stream)?;
        // A failure means that another thread has just given it up, which is as good.
        let _ = retained.give_up(&self.stream(victim).reclaimed);
        // A slot that was overwritten by a stray pointer names another page, which is drawn only if it is free.
        Some(self.geometry.page_of_unit(self.chain(victim, retained.oldest)).unwrap_or(0))
    }

    /// Returns the stream that retains the most, and its retained pages.
    fn victim(&self, stream: u32) -> Option<(u32, Retained)> {
        let mut victim = (stream, self.retained_by(stream));
        let Retained { oldest, count } = victim.1;
        // All streams together retain no more pages than there are. A stream that has more than half of them need not
        // read the others' words, each of which is in an `os_page` of its own. A stream that shares with others
        // searches once in `EVICTIONS_PER_SEARCH` pages, and at each page while another stream has more: its own
        // `oldest` does not change meanwhile.
        let may_lead = self.page_count_limit().saturating_sub(count) > count.saturating_add(1);
        let is_turn = oldest.is_multiple_of(EVICTIONS_PER_SEARCH);
        let searches = may_lead && (is_turn || count == 0);
        for other in self.used_streams().take_while(|_| searches) {
            let retained = self.retained_by(other);
            // A tie goes to the stream that asks; a lead of one page is not worth another stream's history.
            if retained.count > victim.1.count.saturating_add(1) {
                victim = (other, retained);
            }
        }
        (victim.1.count > 0).then_some(victim)
    }

    /// Session owner: sets the number of pages that may be drawn. To raise it, the memory of the added pages must
    /// exist, zeroed or as it was left. If it is lowered, the holder of a page beyond the limit keeps it until it is
    /// closed, and then [`Memory::withhold`] takes it. The limit is never below the number of kept pages.
    pub fn set_page_count_limit(&self, limit: u32) {
        // If a stray pointer has overwritten the header, the limit still does not exceed the number of pages.
        let least = self.kept_page_count.clamp(1, self.geometry.page_count);
        let limit = limit.clamp(least, self.geometry.page_count);
        for index in 0..limit {
            let _ = self.change_owner(index, Owner::Withheld.to_word(), Owner::Free);
        }
        // (V') pairs with (V).
        self.header().page_count_limit.0.store(limit, Ordering::Release);
        // (J') pairs with (J): a thread that has found no page looks again.
        self.header().freed.0.fetch_add(1, Ordering::Release);
    }

    /// Session owner: takes page `index` out of the budget if it is beyond the limit and free. True if it did, and the
    /// page's memory may be released.
    pub fn withhold(&self, index: u32, used: impl Fn(u32) -> u64) -> bool {
        index >= self.page_count_limit() && self.take_if_free(index, Owner::Withheld, &used)
    }

    /// Session owner, overwrite mode: moves a retained page from beyond the limit to below it, giving up the oldest one
    /// if necessary. True if it did, and the page's memory may be released. No other thread may read retained pages
    /// during the call.
    pub fn relocate(&self, index: u32) -> bool {
        let Some(queued @ Owner::Queued { stream, seq }) = self.owner_of(index) else { return false };
        let stream = stream as u32;
        // (E') pairs with (E).
        let used = |stream: u32| self.stream(stream).reclaimed.load(Ordering::Acquire);
        if index < self.page_count_limit() || stream >= self.geometry.stream_count || seq < used(stream) {
            return false;
        }
        let from = self.geometry.unit_of_page(index);
        // The page is held, so that it is not drawn and the stream stores no later page in it, even if writers give it
        // up in the meantime.
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
            // All other pages are being written to: the page stays where it is for now. (D) pairs with (B).
            self.owner(index).store(queued.to_word(), Ordering::Release);
            return false;
        };
        // Processes that keep to the protocol do not change a closed page, and the other page is this caller's.
        // Relaxed: the slot below publishes the page's place.
        if let (Some(from), Some(to)) = (self.page_words(from), self.page_words(to)) {
            from.iter().zip(to).for_each(|(from, to)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
        }
        let slot = self.chain_slot(stream, seq);
        // (C') Release pairs with (C). A failure means that the stream has given the page up, and has another one in
        // the slot.
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

    /// Session owner, overwrite mode: keeps the contents of a closed page until [`Memory::let_go`], even if writers
    /// give the page up in the meantime. False if it is already given up. While pages are held, writers need others.
    pub fn hold(&self, stream: u32, seq: u64, unit: u32) -> bool {
        let Some(index) = self.geometry.page_of_unit(unit) else { return false };
        let queued = Owner::Queued { stream: stream as u16, seq }.to_word();
        // A page that was given up may still be there, but a writer may be about to draw it: only one of the exchanges
        // succeeds.
        self.change_owner(index, queued, Owner::Drawn { process: OWNER, stream: stream as u16 })
    }

    /// Session owner: ends a hold. The page is the stream's again or, if it was given up in the meantime, free.
    pub fn let_go(&self, stream: u32, seq: u64, unit: u32) {
        if let Some(index) = self.geometry.page_of_unit(unit) {
            // (D) pairs with (B): the holder's reads are complete.
            self.owner(index).store(Owner::Queued { stream: stream as u16, seq }.to_word(), Ordering::Release);
            // (J') pairs with (J).
            self.header().freed.0.fetch_add(1, Ordering::Release);
        }
    }

    /// Session owner that takes over a session: ends the holds of the previous owner, if it ended with pages held, and
    /// frees the pages to which it was moving others.
    pub fn end_holds(&self) {
        for index in 0..self.geometry.page_count {
            let Some(Owner::Drawn { process: OWNER, stream }) = self.owner_of(index) else { continue };
            let (stream, unit) = (u32::from(stream), self.geometry.unit_of_page(index));
            let seq = self.page_field(unit, page::OFFSET_SEQ);
            // The slot names the unit of the stream's page: of two copies, it selects the valid one.
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

    /// Counts the pages by state, at about this moment.
    pub fn census(&self, used: impl Fn(u32) -> u64) -> Census {
        let mut census = Census { limit: self.page_count_limit(), ..Census::default() };
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

    /// Plans to store a drawn page as the stream's next one. The guard is the spare word itself.
    pub fn plan_spare(&self, stream: u32, seen: u64, seq_next: u16, unit: u32) -> Txn {
        let word = &self.stream(stream).spare;
        let last = Store { target: word.as_ptr().cast(), value: spare::to_word(seq_next, unit), width: 8 };
        Txn::new(word.as_ptr(), seen, last)
    }

    /// Plans to close the current page (if there is one) and to make `unit` the next one, which [`Memory::open`] opens.
    ///
    /// `timestamp` was read after `seen`, the stream's state word: the guard ensures that nothing was written since, so
    /// the timestamp is neither before the old page's last record nor after the new page's first.
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
            txn.store(field(page::OFFSET_CONTENT_SIZE), (state.offset as u64 * 8).to_le(), 8);
            txn.store(field(page::OFFSET_TIMESTAMP_END), timestamp.to_le(), 8);
            txn.store(field(page::OFFSET_DISCARDED), self.discarded(stream).to_le(), 8);
            txn.store(self.chain_slot(stream, seq).as_ptr().cast(), state.unit as u64, 4);
            let queued = Owner::Queued { stream: stream as u16, seq };
            txn.store(self.owner(index).as_ptr().cast(), queued.to_word(), 8);
        }
        let field = |offset| self.page_word(unit, offset).as_ptr().cast::<u8>();
        txn.store(field(page::OFFSET_SEQ), seq_next.to_le(), 8);
        txn.store(field(page::OFFSET_TIMESTAMP_BEGIN), timestamp.to_le(), 8);
        txn.store(control.begin_timestamp.as_ptr().cast(), timestamp, 8);
        // The expiry is 0 until the new page is open: a writer that dies before that leaves a current page to which no
        // record is written, and which the next writer closes.
        txn.store(control.expiry.as_ptr().cast(), 0, 8);
        txn
    }

    /// Opens the page for records, after a switch with this timestamp was committed. A late call does no harm: later
    /// pages have later expiries, and an earlier expiry only makes a page close early.
    pub fn open(&self, stream: u32, timestamp: u64) {
        // (A) pairs with (C).
        self.stream(stream).expiry.store(expiry(timestamp), Ordering::Release);
    }

    /// Returns the number of events of a stream that were dropped so far, for any reason.
    pub fn discarded(&self, stream: u32) -> u64 {
        let control = self.stream(stream);
        // Two counters, each exact; their sum is read without stopping writers and is exact once they rest. (C), like
        // the state word: events that were counted before the caller read the state are included.
        let lost_full = control.records_lost_full.0.load(Ordering::Acquire);
        lost_full.wrapping_add(control.records_lost_big.load(Ordering::Acquire))
    }

    /// Returns the number of events of all streams that were dropped so far, by
    /// [`lost_class_index`](dormouse_abi::session::lost_class_index). `None` beyond the last index.
    pub fn discarded_by_class(&self, index: usize) -> Option<u64> {
        // (C), like the counts of all classes together.
        let count = |stream| self.stream(stream).records_lost_by_class[index].load(Ordering::Acquire);
        let sum = || self.used_streams().fold(0, |sum: u64, stream| sum.saturating_add(count(stream)));
        (index < LOST_CLASS_COUNT).then(sum)
    }

    /// Returns the number of events of all streams that are not recorded so far, by
    /// [`Reason`](dormouse_abi::session::Reason) and [`lost_class_index`](dormouse_abi::session::lost_class_index).
    /// `None`, and no table is read, unless the session [has had rules](Register::has_had_rules).
    pub fn unrecorded_by_class(&self) -> Option<[[u64; LOST_CLASS_COUNT]; REASON_COUNT]> {
        self.register().filter(|register| register.has_had_rules())?;
        let mut sums = [[0u64; LOST_CLASS_COUNT]; REASON_COUNT];
        for table in self.used_streams().map(|stream| self.unrecorded(stream)) {
            for (sum, count) in sums.iter_mut().flatten().zip(table.by_class.iter().flatten()) {
                // Relaxed: a number by itself.
                *sum = sum.saturating_add(count.load(Ordering::Relaxed));
            }
        }
        Some(sums)
    }
}

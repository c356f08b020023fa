//! Reserving, writing and committing records.

use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::compiler_fence;

use dormouse_relay_chain::copy_bytes;

use crate::Channel;
use crate::atomic::{AtomicU64, Ordering};
use crate::frame::{CANCELLED, COMMITTED, RESERVED, words_of};
use crate::layout::{BUFFER_LOST_BIG, BUFFER_LOST_FULL, BUFFER_STATE, State};

/// Why a record was not written. It is counted in [`crate::Counts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// No page is free, and none can be overwritten.
    Full,
    /// The record is larger than a page.
    Big,
}

impl fmt::Display for Lost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Lost::Full => "no page is free",
            Lost::Big => "the record is larger than a page",
        })
    }
}

impl std::error::Error for Lost {}

/// The bytes of a record that is reserved; they begin as zeroes, at a multiple of 8.
///
/// Dropping it cancels the record: readers skip it. It may be sent to another thread. If it is leaked, its page cannot be
/// reused.
#[derive(Debug)]
#[must_use = "dropping it cancels the record"]
pub struct Reservation<'a> {
    frame: NonNull<AtomicU64>,
    len: usize,
    channel: PhantomData<&'a Channel>,
}

// SAFETY: the bytes belong to the holder alone until it commits, and the frame is an atomic word.
unsafe impl Send for Reservation<'_> {}
// SAFETY: a shared reference only reads the bytes.
unsafe impl Sync for Reservation<'_> {}

impl Reservation<'_> {
    /// Commits the record: a reader that takes its page finds it. Wait-free; async-signal-safe.
    #[inline]
    pub fn commit(self) {
        ManuallyDrop::new(self).end(COMMITTED);
    }

    #[inline]
    fn end(&self, status: u64) {
        // SAFETY: the frame is in the channel's memory, which the lifetime keeps mapped; it is accessed by atomic operations.
        let frame = unsafe { self.frame.as_ref() };
        // (A) Release pairs with (B): the bytes are stored before.
        frame.store(status | self.len as u64, Ordering::Release);
    }

    #[inline]
    fn bytes(&self) -> *mut u8 {
        self.frame.as_ptr().wrapping_add(1).cast()
    }
}

impl Deref for Reservation<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the reserved bytes follow the frame, are initialised (zero at first), and belong to the holder alone.
        unsafe { core::slice::from_raw_parts(self.bytes(), self.len) }
    }
}

impl DerefMut for Reservation<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the reserved bytes follow the frame, are initialised (zero at first), and belong to the holder alone.
        unsafe { core::slice::from_raw_parts_mut(self.bytes(), self.len) }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.end(CANCELLED);
    }
}

impl Channel {
    /// Returns the buffer of the CPU that the thread runs on. It may run on another one at any time; then the record is
    /// in the buffer of the CPU where it was, which costs time and nothing else.
    #[inline]
    pub fn this_buffer(&self) -> u32 {
        // SAFETY: the call has no conditions. Without the system call it returns -1, which is a number too.
        let cpu = unsafe { libc::sched_getcpu() } as u32;
        if cpu < self.geometry.buffer_count { cpu } else { cpu % self.geometry.buffer_count }
    }

    /// Reserves `len` bytes in the buffer of this CPU. Lock-free; async-signal-safe.
    ///
    /// # Errors
    /// [`Lost`]; the record is counted.
    #[inline]
    pub fn reserve(&self, len: usize) -> Result<Reservation<'_>, Lost> {
        self.reserve_in(self.this_buffer(), len)
    }

    /// Reserves `len` bytes in a buffer, or in the first if there is no such buffer. Lock-free; async-signal-safe.
    ///
    /// # Errors
    /// [`Lost`]; the record is counted.
    #[inline]
    pub fn reserve_in(&self, buffer: u32, len: usize) -> Result<Reservation<'_>, Lost> {
        let buffer = if buffer < self.geometry.buffer_count { buffer } else { 0 };
        if len <= self.record_size_max_bytes() {
            let state = self.buffer_word(buffer, BUFFER_STATE);
            // (D) pairs with (C): the page is zero.
            let seen = State(state.load(Ordering::Acquire));
            if let Some(reservation) = self.try_reserve(state, seen, len) {
                return Ok(reservation);
            }
        }
        self.reserve_slow(buffer, len)
    }

    /// Reserves in the state `seen`; `None` if there is no room or the state has changed.
    #[inline]
    fn try_reserve(&self, state: &AtomicU64, seen: State, len: usize) -> Option<Reservation<'_>> {
        if !self.has_room(seen, len) {
            return None;
        }
        let place = self.geometry.pages + seen.page() as usize * self.geometry.page_words + seen.offset();
        // Relaxed: the bytes are published by their frame. The exchange continues what (C) hands over.
        let after = seen.0 + words_of(len) as u64;
        state.compare_exchange(seen.0, after, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        self.words()[place].store(RESERVED | len as u64, Ordering::Relaxed);
        // If the thread is killed, its frame is there before any of the record's bytes.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the page is one of the memory's, and the frame in it.
        let frame = unsafe { self.memory.add(place) };
        Some(Reservation { frame, len, channel: PhantomData })
    }

    /// Whether the page of this state is open and has room. Only a state that a stray pointer has overwritten has a page that
    /// does not exist; it is closed like a full one.
    #[inline]
    fn has_room(&self, seen: State, len: usize) -> bool {
        seen.is_open()
            && seen.offset() + words_of(len) <= self.geometry.page_words
            && seen.page() < self.geometry.page_count
    }

    #[cold]
    #[inline(never)]
    fn reserve_slow(&self, buffer: u32, len: usize) -> Result<Reservation<'_>, Lost> {
        let lost = |word| self.buffer_word(buffer, word).fetch_add(1, Ordering::Relaxed);
        if len > self.record_size_max_bytes() {
            lost(BUFFER_LOST_BIG);
            return Err(Lost::Big);
        }
        let state = self.buffer_word(buffer, BUFFER_STATE);
        loop {
            // (D) pairs with (C).
            let seen = State(state.load(Ordering::Acquire));
            if let Some(reservation) = self.try_reserve(state, seen, len) {
                return Ok(reservation);
            }
            if !self.has_room(seen, len) && !self.switch(buffer, seen) {
                lost(BUFFER_LOST_FULL);
                return Err(Lost::Full);
            }
        }
    }

    /// Writes a record that consists of these parts, for example a header and a text, to the buffer of this CPU. Lock-free;
    /// async-signal-safe.
    ///
    /// # Errors
    /// [`Lost`]; the record is counted.
    #[inline]
    pub fn write<const N: usize>(&self, parts: [&[u8]; N]) -> Result<(), Lost> {
        let len = parts.iter().fold(0, |len: usize, part| len.saturating_add(part.len()));
        let reservation = self.reserve(len)?;
        let mut at = 0;
        for part in parts {
            // SAFETY: the parts fit in the reserved bytes, of which no slice can be a part.
            unsafe { copy_bytes(reservation.bytes().wrapping_add(at), part.as_ptr(), part.len()) };
            at += part.len();
        }
        reservation.commit();
        Ok(())
    }
}

//! A buffer that looks contiguous and is made of pages, drawn from a budget that several buffers share.
//!
//! # The problem
//! If each CPU has a buffer that is large enough for its worst moment, most of that memory is unused at any time. A
//! buffer made of pages grows where there is much to write and shrinks where there is little, from one budget, and
//! needs no contiguous address space. The cost: the page must be found at each write, and a record may span two pages.
//!
//! # Picture
//! ```text
//!   budget: one region          links, in an array beside it
//!   ┌────┬────┬────┬────┬────┐   offset   0 ⇄ 4096 ⇄ 8192 ⇄ (0)
//!   │ p0 │ p1 │ p2 │ p3 │ p4 │   page    p3    p0     p4           in any order
//!   └────┴────┴────┴────┴────┘            ▲     ▲
//!      free: p1, p2                     read  written last: the cached pages, from which searches begin
//!
//!   write(offset, bytes):   cached page's offset ≤ offset, and the bytes end in it?   copy, done        inlined
//!                           otherwise the page is found from there, and cached        `#[cold]`
//! ```
//!
//! # Types
//! | type | contents |
//! | --- | --- |
//! | [`PageBudget`] | the pages, free or drawn, and the number of free ones that are promised |
//! | [`Share`] | the number of pages that one chain has drawn, and is promised |
//! | [`Chain`] | the buffer: grow, shrink, write, read, address |
//!
//! A page is free, or drawn by one share. The pages of a chain change only through exclusive access (`&mut`). Its bytes
//! may also be written by writers that share it ([`Chain::write_shared`]), each to its own part of the buffer.
//!
//! # Nested writers
//! A signal handler may write to a chain even if it interrupted a write to that chain. The cached page is a hint, one
//! word, read and written as a whole; the page to which it leads is identified by its own offset. If the handler has
//! advanced the hint, the interrupted writer goes back a page or two, and leaves the hint where the handler has put it,
//! because the next record is written there.
//!
//! # Ordering
//! A page that is given back and drawn again passes through the word of free pages (Q → P), so its previous owner no
//! longer uses its bytes when the next one has it. Promised or available pages are counted after the page was freed (R
//! → S), so a share that takes from the count finds a page. Everything else is relaxed: it belongs to one thread, or is
//! a hint. A chain does not know records: the layer above agrees by reserve and commit which thread writes a record,
//! and which may read it.
//!
//! # Cost
//! A write to the cached page is four loads, a comparison, and the copy. A write to the next page is a call and one
//! step. Among `n` pages, none is more than `n / 2` steps away. A link is 32 bytes for each page.
//!
//! # Limits
//! A chain has at least one page, so that there is always a cached one. A new page contains what its last owner left.
//! Chains work within one process, because links are addresses.
//!
//! # Source
//! Mathieu Desnoyers, "LTTng optimize write to page function", 2009: the circle, the caches, the search and its bias.

#![cfg_attr(not(test), no_std)]

mod budget;
mod copy;
mod free;
mod linked;
#[cfg(all(test, target_pointer_width = "64"))]
mod model;
#[cfg(test)]
mod tests;

/// The atomics that [`free`] uses; its model replaces them.
mod atomic {
    pub(crate) use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

use core::fmt;
use core::ptr::NonNull;

use crate::linked::{Access, Linked, Run};

pub use budget::{BudgetError, DrawnPage, Link, PAGE_SIZE_BYTES_MAX, PAGE_SIZE_BYTES_MIN, PageBudget, Share};
pub use copy::copy_bytes;
#[doc(hidden)]
pub use linked::LAYOUT;

/// The error of bytes that end beyond the buffer's end, or begin there. Nothing was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfBounds;

impl fmt::Display for OutOfBounds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the bytes end beyond the buffer's end")
    }
}

impl core::error::Error for OutOfBounds {}

/// A buffer of pages. See the [module](self).
///
/// Writing, reading and `address` are wait-free and async-signal-safe; growing and shrinking are lock-free. Dropping a
/// chain gives all its pages back.
#[repr(C)]
#[derive(Debug)]
pub struct Chain<'a> {
    pages: Linked<'a>,
    share: Share<'a>,
}

impl<'a> Chain<'a> {
    /// Makes a buffer of `page_count` pages, which can always have `promised_count` pages, whatever other chains draw.
    ///
    /// # Errors
    /// [`BudgetError::NoPage`], [`BudgetError::Exhausted`].
    pub fn new(budget: &'a PageBudget<'a>, page_count: usize, promised_count: usize) -> Result<Chain<'a>, BudgetError> {
        let further = page_count.checked_sub(1).ok_or(BudgetError::NoPage)?;
        let mut share = budget.share(promised_count)?;
        let first = share.draw()?;
        let mut chain = Chain { pages: Linked::new(first, budget.page_size_bytes()), share };
        chain.grow(further)?;
        Ok(chain)
    }

    /// Returns the size of the buffer, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.pages.size_bytes
    }

    /// Returns the number of pages of the buffer.
    pub fn page_count(&self) -> usize {
        self.share.drawn_count
    }

    /// Returns the number of pages that the buffer can always have.
    pub fn promised_count(&self) -> usize {
        self.share.promised_count
    }

    /// Changes the promise, like [`Share::set_promised_count`].
    ///
    /// # Errors
    /// The errors of [`Share::set_promised_count`].
    pub fn set_promised_count(&mut self, promised_count: usize) -> Result<(), BudgetError> {
        self.share.set_promised_count(promised_count)
    }

    /// Adds `page_count` pages after the last one. The contents of the buffer stay where they are.
    ///
    /// # Errors
    /// [`BudgetError::Exhausted`]; then the buffer is unchanged.
    pub fn grow(&mut self, page_count: usize) -> Result<(), BudgetError> {
        for added in 0..page_count {
            match self.share.draw() {
                Ok(page) => self.pages.append(page),
                Err(error) => {
                    self.give_back_last(added);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Gives back the last `page_count` pages; their contents are lost.
    ///
    /// # Errors
    /// [`BudgetError::NoPage`]: no page would be left. The buffer is unchanged.
    pub fn shrink(&mut self, page_count: usize) -> Result<(), BudgetError> {
        if page_count >= self.page_count() {
            return Err(BudgetError::NoPage);
        }
        self.give_back_last(page_count);
        Ok(())
    }

    fn give_back_last(&mut self, page_count: usize) {
        for _ in 0..page_count {
            self.share.give_back(self.pages.remove_last());
        }
    }

    /// Copies `bytes` into the buffer at `offset`, in the quickest way on this machine. Inlined, except for the search
    /// for a page.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline(always)]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        // SAFETY: the slice is readable, and the chain is borrowed exclusively.
        unsafe { self.write_shared(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Like [`Chain::write`], for a field that the caller has in registers. It stays there, unless a page must be
    /// searched.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    #[inline(always)]
    pub fn write_array<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) -> Result<(), OutOfBounds> {
        match self.cached(offset, N) {
            Some(address) => {
                // SAFETY: `N` bytes of the cached page, and the chain is borrowed exclusively.
                unsafe { copy_bytes(address.as_ptr(), bytes.as_ptr(), N) };
                Ok(())
            }
            None => {
                // A copy, so that the bytes must be in memory only in this case.
                let held = bytes;
                // SAFETY: the array is readable, and the chain is borrowed exclusively.
                unsafe { self.write_slow(offset, held.as_ptr(), N) }
            }
        }
    }

    /// Like [`Chain::write`], for writers that share the chain: threads, or a signal handler and the code that it has
    /// interrupted.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    ///
    /// # Safety
    /// `len` bytes may be read at `source`, which is not in the buffer. No other thread or handler reads or writes
    /// these bytes of the buffer during the call.
    #[inline(always)]
    pub unsafe fn write_shared(&self, offset: usize, source: *const u8, len: usize) -> Result<(), OutOfBounds> {
        match self.cached(offset, len) {
            Some(address) => {
                // SAFETY: the caller guarantees that the source may be read, and that these bytes of the page are its
                // own.
                unsafe { copy_bytes(address.as_ptr(), source, len) };
                Ok(())
            }
            // SAFETY: the caller guarantees that the source may be read, and that these bytes of the buffer are its
            // own.
            None => unsafe { self.write_slow(offset, source, len) },
        }
    }

    /// Like [`Chain::write`], for an offset that only grows: it is taken modulo the size of the buffer, and bytes that
    /// would end beyond the buffer's end continue at its beginning. If the size is a power of two, the offset may
    /// overflow.
    ///
    /// # Errors
    /// [`OutOfBounds`]: there are more bytes than the buffer has.
    #[inline(always)]
    pub fn write_wrapping(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        // SAFETY: the slice is readable, and the chain is borrowed exclusively.
        unsafe { self.write_wrapping_shared(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Like [`Chain::write_wrapping`], for writers that share the chain.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    ///
    /// # Safety
    /// The conditions of [`Chain::write_shared`].
    #[inline(always)]
    pub unsafe fn write_wrapping_shared(
        &self,
        offset: usize,
        source: *const u8,
        len: usize,
    ) -> Result<(), OutOfBounds> {
        let offset = self.wrapped(offset);
        let left = self.size_bytes() - offset;
        if len <= left {
            // SAFETY: the caller guarantees that the source may be read, and that these bytes of the buffer are its own.
            return unsafe { self.write_shared(offset, source, len) };
        }
        self.check(0, len)?;
        // SAFETY: the caller guarantees that the source may be read, and that these bytes of the buffer are its own.
        unsafe { self.write_shared(offset, source, left) }?;
        // SAFETY: the rest of the source, whose bytes of the buffer are the caller's as well.
        unsafe { self.write_shared(0, source.wrapping_add(left), len - left) }
    }

    /// Returns the offset modulo the size of the buffer.
    #[inline(always)]
    fn wrapped(&self, offset: usize) -> usize {
        let size_bytes = self.size_bytes();
        if size_bytes.is_power_of_two() { offset & (size_bytes - 1) } else { offset % size_bytes }
    }

    /// Returns the address of the bytes, if they are in the page that was last written to.
    #[doc(hidden)]
    #[inline(always)]
    pub fn cached(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        self.pages.quick(Access::Write, offset, len)
    }

    /// # Safety
    /// The conditions of [`Chain::write_shared`].
    #[cold]
    #[inline(never)]
    unsafe fn write_slow(&self, offset: usize, source: *const u8, len: usize) -> Result<(), OutOfBounds> {
        self.runs(Access::Write, offset, len, |run, done| {
            // SAFETY: the run is in one page, and the caller guarantees that these bytes are its own and that `len`
            // bytes may be read at the source, which is the size of all runs together.
            unsafe { copy_bytes(run.address.as_ptr(), source.wrapping_add(done), run.size_bytes) }
        })
    }

    /// Calls `each` with the contiguous runs of a part of the buffer, in order, and the number of bytes before each.
    fn runs(
        &self,
        access: Access,
        mut offset: usize,
        len: usize,
        mut each: impl FnMut(Run, usize),
    ) -> Result<(), OutOfBounds> {
        self.check(offset, len)?;
        let mut done = 0;
        while done < len {
            let Run { address, size_bytes } = self.pages.find(access, offset).ok_or(OutOfBounds)?;
            let size_bytes = size_bytes.min(len - done);
            each(Run { address, size_bytes }, done);
            done += size_bytes;
            offset += size_bytes;
        }
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        let left = self.size_bytes().checked_sub(offset).ok_or(OutOfBounds)?;
        if len <= left { Ok(()) } else { Err(OutOfBounds) }
    }

    /// Fills `bytes` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        // SAFETY: the slice is writable. These bytes are not written while the chain is borrowed; the callers of
        // `write_shared` guarantee it.
        unsafe { self.read_shared(offset, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Like [`Chain::read`], into memory that need not be initialised.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    ///
    /// # Safety
    /// `len` bytes may be written at `target`, which is not in the buffer. Nothing writes to these bytes of the buffer
    /// during the call.
    pub unsafe fn read_shared(&self, offset: usize, target: *mut u8, len: usize) -> Result<(), OutOfBounds> {
        if let Some(address) = self.pages.quick(Access::Read, offset, len) {
            // SAFETY: the bytes are in one page, initialised, and the caller guarantees that they are not written and
            // that the target may be.
            unsafe { target.copy_from_nonoverlapping(address.as_ptr(), len) };
            return Ok(());
        }
        self.runs(Access::Read, offset, len, |run, done| {
            // SAFETY: the run is in one page, initialised; the caller guarantees that it is not written, and that the
            // target has room for all runs together.
            unsafe { target.wrapping_add(done).copy_from_nonoverlapping(run.address.as_ptr(), run.size_bytes) }
        })
    }

    /// Like [`Chain::read`], for an offset that only grows: see [`Chain::write_wrapping`].
    ///
    /// # Errors
    /// [`OutOfBounds`]: more bytes are asked for than the buffer has.
    pub fn read_wrapping(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        // SAFETY: the slice is writable. These bytes are not written while the chain is borrowed; the callers of
        // `write_shared` guarantee it.
        unsafe { self.read_wrapping_shared(offset, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Like [`Chain::read_wrapping`], into memory that need not be initialised.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    ///
    /// # Safety
    /// The conditions of [`Chain::read_shared`].
    pub unsafe fn read_wrapping_shared(&self, offset: usize, target: *mut u8, len: usize) -> Result<(), OutOfBounds> {
        self.check(0, len)?;
        let offset = self.wrapped(offset);
        let before_end = len.min(self.size_bytes() - offset);
        // SAFETY: the caller guarantees that the target may be written, and that these bytes of the buffer are not.
        unsafe { self.read_shared(offset, target, before_end) }?;
        // SAFETY: the rest of the target; the caller guarantees that these bytes of the buffer are not written, either.
        unsafe { self.read_shared(0, target.wrapping_add(before_end), len - before_end) }
    }

    /// Like [`Chain::address`], for an offset that only grows: see [`Chain::write_wrapping`].
    #[inline]
    pub fn address_wrapping(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        self.address(self.wrapped(offset), len)
    }

    /// Returns the address of the `len` bytes at `offset`, for example of a header that is filled in later. `None` if
    /// they end beyond the buffer's end, or span more than one page.
    #[inline]
    pub fn address(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        self.pages.quick(Access::Address, offset, len).or_else(|| self.address_slow(offset, len))
    }

    #[cold]
    #[inline(never)]
    fn address_slow(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        self.check(offset, len).ok()?;
        // An empty range at the very end is in no page.
        let run = self.pages.find(Access::Address, offset)?;
        (len <= run.size_bytes).then_some(run.address)
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        self.give_back_last(self.page_count());
    }
}

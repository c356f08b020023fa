//! A buffer that looks contiguous and is made of pages, drawn from a budget that several buffers share.
//!
//! # The problem
//! If each CPU has a buffer that is large enough for its worst moment, most of that memory is unused at any time. A buffer made of
//! pages grows where there is much to write and shrinks where there is little, out of one budget, and needs no contiguous address space.
//! The cost: the page must be found at each write, and a record may lie in two pages.
//!
//! # Picture
//! ```text
//!   budget: one region          links, in an array beside it
//!   ┌────┬────┬────┬────┬────┐   offset   0 ⇄ 4096 ⇄ 8192 ⇄ (0)
//!   │ p0 │ p1 │ p2 │ p3 │ p4 │   page    p3    p0     p4           in any order
//!   └────┴────┴────┴────┴────┘            ▲     ▲
//!      free: p1, p2                     read  written last: the cached pages, which say where to begin
//!
//!   write(offset, bytes):   cached page's offset ≤ offset, and the bytes end in it?   copy, done        inlined
//!                           otherwise the page is found from there, and cached        `#[cold]`
//! ```
//!
//! # What is where
//! | | |
//! | --- | --- |
//! | [`PageBudget`] | the pages, free or drawn, and how many of the free ones are promised |
//! | [`Share`] | what one chain has drawn, and is promised |
//! | [`Chain`] | the buffer: grow, shrink, write, read, address |
//! | [`Linked`] | its pages in a circle; the default |
//! | [`Table`] | its pages in a table, for comparison |
//!
//! A page is free, or drawn by one share. The pages of a chain change only through exclusive access (`&mut`). Its bytes may also be written by
//! writers that share it ([`Chain::write_shared`]), each to a part of the buffer of its own.
//!
//! # Nested writers
//! A signal handler may write to a chain even if it interrupted a write to the same chain. The cached page is a hint, one word, read and written
//! as a whole; the page that it leads to is identified by its own offset. If the handler has moved the hint on, the interrupted writer goes back
//! a page or two, and leaves the hint where the handler has put it, because the next record goes there.
//!
//! # Ordering
//! A page that is given back and drawn again passes through the word of free pages (Q → P), so its previous owner no longer uses its
//! bytes when the next one has it. Promised or available pages are counted after the page was freed (R → S), so
//! a share that takes from the count finds a page. Everything else is relaxed: it belongs to one thread, or is a hint. A chain does not know
//! records: who has written what, and who may read it, is agreed by reserve and commit above it.
//!
//! # Cost
//! A write to the cached page: four loads, a comparison, and the copy. To the next page: a call and one step. Of `n` pages, none
//! is more than `n / 2` steps away. A link is 32 bytes for each page, a table's entry 8.
//!
//! # Limits
//! A chain has at least one page, so that there always is a cached one. A fresh page contains what its last owner left.
//! Chains work within one process, because links are addresses.
//!
//! # Source
//! Mathieu Desnoyers, "LTTng optimize write to page function", 2009: the circle, the caches, the search and its bias.

#![cfg_attr(not(test), no_std)]

mod budget;
pub mod copy;
mod free;
mod linked;
mod table;
#[cfg(test)]
mod tests;

use core::fmt;
use core::ptr::NonNull;

use crate::copy::{CopyBytes, Native, Plain, Specialised};

pub use budget::{BudgetError, Drawn, Link, PAGE_SIZE_BYTES_MAX, PAGE_SIZE_BYTES_MIN, PageBudget, Share};
#[doc(hidden)]
pub use linked::LAYOUT;
pub use linked::Linked;
pub use table::{Entry, Table};

/// The bytes end beyond the buffer's end, or begin there. Nothing was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beyond;

impl fmt::Display for Beyond {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the bytes end beyond the buffer's end")
    }
}

impl core::error::Error for Beyond {}

/// Why bytes have no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressError {
    /// They end beyond the buffer's end.
    Beyond,
    /// They lie in more than one page.
    Crosses,
}

impl fmt::Display for AddressError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressError::Beyond => Beyond.fmt(formatter),
            AddressError::Crosses => formatter.write_str("the bytes lie in more than one page"),
        }
    }
}

impl core::error::Error for AddressError {}

/// The purpose for which a page is searched. Each has a cached page of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Writing.
    Write = 0,
    /// Reading.
    Read = 1,
    /// Asking for an address.
    Address = 2,
}

/// Contiguous bytes of the buffer: up to the end of their page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Of the first.
    pub address: NonNull<u8>,
    /// How many.
    pub size_bytes: usize,
}

/// How a chain finds its pages: [`Linked`] or [`Table`].
pub trait Pages<'a>: sealed::Sealed {
    /// The address of the bytes, if no search is needed and they are in one page of the buffer.
    fn quick(&self, access: Access, offset: usize, len: usize) -> Option<NonNull<u8>>;
    /// The address of `offset`, which must be below the buffer's size.
    fn find(&self, access: Access, offset: usize) -> Option<Run>;
    /// Bytes of all pages.
    fn size_bytes(&self) -> usize;
    /// Bytes of a page.
    fn page_size_bytes(&self) -> usize;
    /// Adds a page at the end.
    ///
    /// # Errors
    /// The page, if there is no room for it.
    fn append(&mut self, page: Drawn<'a>) -> Result<(), Drawn<'a>>;
    /// Takes the last page away, if there is one; `share` has drawn it. After the last page of a circle is taken, the circle must not be used.
    fn remove_last(&mut self, share: &Share<'a>) -> Option<Drawn<'a>>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Linked<'_> {}
    impl Sealed for super::Table<'_> {}
}

/// A buffer of pages. See the [module](self).
///
/// Writing, reading and asking for addresses is wait-free and async-signal-safe; growing and shrinking lock-free. Dropped, it gives
/// all its pages back.
#[repr(C)]
#[derive(Debug)]
pub struct Chain<'a, P: Pages<'a> = Linked<'a>> {
    pages: P,
    share: Share<'a>,
}

impl<'a> Chain<'a> {
    /// A buffer of `page_count` pages, which can always have `promised_count` pages, whatever other chains draw.
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
}

impl<'a> Chain<'a, Table<'a>> {
    /// As [`Chain::new`], with pages found by a table. The chain can grow to as many pages as there are entries.
    ///
    /// # Errors
    /// As there, and [`BudgetError::TableFull`].
    pub fn with_table(
        budget: &'a PageBudget<'a>,
        page_count: usize,
        promised_count: usize,
        entries: &'a mut [Entry],
    ) -> Result<Chain<'a, Table<'a>>, BudgetError> {
        if page_count == 0 {
            return Err(BudgetError::NoPage);
        }
        let share = budget.share(promised_count)?;
        let mut chain = Chain { pages: Table::new(entries, budget.page_size_bytes()), share };
        chain.grow(page_count)?;
        Ok(chain)
    }
}

impl<'a, P: Pages<'a>> Chain<'a, P> {
    /// Bytes of the buffer.
    pub fn size_bytes(&self) -> usize {
        self.pages.size_bytes()
    }

    /// Bytes of a page.
    pub fn page_size_bytes(&self) -> usize {
        self.pages.page_size_bytes()
    }

    /// Pages of the buffer.
    pub fn page_count(&self) -> usize {
        self.share.drawn_count()
    }

    /// Pages that the buffer can always have.
    pub fn promised_count(&self) -> usize {
        self.share.promised_count()
    }

    /// As [`Share::set_promised_count`].
    ///
    /// # Errors
    /// As there.
    pub fn set_promised_count(&mut self, promised_count: usize) -> Result<(), BudgetError> {
        self.share.set_promised_count(promised_count)
    }

    /// Adds so many pages behind the last one. The contents of the buffer stay where they are.
    ///
    /// # Errors
    /// [`BudgetError::Exhausted`], [`BudgetError::TableFull`]; then the buffer is unchanged.
    pub fn grow(&mut self, page_count: usize) -> Result<(), BudgetError> {
        for added in 0..page_count {
            let appended = self.share.draw().and_then(|page| {
                self.pages.append(page).map_err(|page| {
                    self.share.give_back(page);
                    BudgetError::TableFull
                })
            });
            if let Err(error) = appended {
                self.give_back_last(added);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives back the last `page_count` pages; their contents are lost.
    ///
    /// # Errors
    /// [`BudgetError::NoPage`]: none would be left. The buffer is unchanged.
    pub fn shrink(&mut self, page_count: usize) -> Result<(), BudgetError> {
        if page_count >= self.page_count() {
            return Err(BudgetError::NoPage);
        }
        self.give_back_last(page_count);
        Ok(())
    }

    fn give_back_last(&mut self, page_count: usize) {
        for _ in 0..page_count {
            if let Some(page) = self.pages.remove_last(&self.share) {
                self.share.give_back(page);
            }
        }
    }

    /// Copies `bytes` to `offset` on, in the quickest way on this machine. Inlined, except when a page has to be searched.
    ///
    /// # Errors
    /// [`Beyond`].
    #[inline(always)]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Beyond> {
        self.write_by::<Native>(offset, bytes)
    }

    /// As [`Chain::write`], copied by `C`.
    ///
    /// # Errors
    /// [`Beyond`].
    #[inline(always)]
    pub fn write_by<C: CopyBytes>(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Beyond> {
        // SAFETY: the slice is readable, and the chain is borrowed exclusively.
        unsafe { self.write_shared::<C>(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// As [`Chain::write`], for a field that the caller has in registers. It stays there, except when a page has to be searched.
    ///
    /// # Errors
    /// [`Beyond`].
    #[inline(always)]
    pub fn write_array<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) -> Result<(), Beyond> {
        match self.pages.quick(Access::Write, offset, N) {
            Some(address) => {
                // SAFETY: so many bytes of the page, and the chain is borrowed exclusively.
                unsafe { Native::copy(address.as_ptr(), bytes.as_ptr(), N) };
                Ok(())
            }
            None => {
                // A copy, so that only this case needs the bytes in memory.
                let held = bytes;
                // SAFETY: the array is readable, and the chain is borrowed exclusively.
                unsafe { self.write_slow::<Native>(offset, held.as_ptr(), N) }
            }
        }
    }

    /// As [`Chain::write_by`], for writers that share the chain: threads, or a signal handler and the code that it has interrupted.
    ///
    /// # Errors
    /// [`Beyond`].
    ///
    /// # Safety
    /// `len` bytes may be read at `source`, which is not in the buffer. Nobody else reads or writes these bytes of the buffer meanwhile.
    #[inline(always)]
    pub unsafe fn write_shared<C: CopyBytes>(
        &self,
        offset: usize,
        source: *const u8,
        len: usize,
    ) -> Result<(), Beyond> {
        match self.pages.quick(Access::Write, offset, len) {
            Some(address) => {
                // SAFETY: the source by the caller's word; so many bytes of the page are the caller's.
                unsafe { C::copy(address.as_ptr(), source, len) };
                Ok(())
            }
            // SAFETY: handed on to the caller.
            None => unsafe { self.write_slow::<C>(offset, source, len) },
        }
    }

    /// # Safety
    /// As [`Chain::write_shared`].
    #[cold]
    #[inline(never)]
    unsafe fn write_slow<C: CopyBytes>(&self, offset: usize, source: *const u8, len: usize) -> Result<(), Beyond> {
        self.runs(Access::Write, offset, len, |run, done| {
            // SAFETY: the run is of one page, to which others write only as the caller's word allows; the source has room
            // for all runs together.
            unsafe { C::copy(run.address.as_ptr(), source.wrapping_add(done), run.size_bytes) }
        })
    }

    /// The contiguous runs of a part of the buffer, one after another, each with the number of bytes before it.
    fn runs(
        &self,
        access: Access,
        mut offset: usize,
        len: usize,
        mut each: impl FnMut(Run, usize),
    ) -> Result<(), Beyond> {
        self.check(offset, len)?;
        let mut done = 0;
        while done < len {
            let Run { address, size_bytes } = self.pages.find(access, offset).ok_or(Beyond)?;
            let size_bytes = size_bytes.min(len - done);
            each(Run { address, size_bytes }, done);
            done += size_bytes;
            offset += size_bytes;
        }
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), Beyond> {
        let left = self.size_bytes().checked_sub(offset).ok_or(Beyond)?;
        if len <= left { Ok(()) } else { Err(Beyond) }
    }

    /// Fills `bytes` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`Beyond`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Beyond> {
        let target = bytes.as_mut_ptr();
        if let Some(address) = self.pages.quick(Access::Read, offset, bytes.len()) {
            // SAFETY: the run holds all of the bytes in one page, initialised, which nobody writes while it is borrowed, or
            // by the word of those who write; the target has as many.
            unsafe { target.copy_from_nonoverlapping(address.as_ptr(), bytes.len()) };
            return Ok(());
        }
        self.runs(Access::Read, offset, bytes.len(), |run, done| {
            // SAFETY: the run is of one page, initialised, which nobody writes while it is borrowed, or by the word of those who write;
            // the target has room for all runs together.
            unsafe { target.wrapping_add(done).copy_from_nonoverlapping(run.address.as_ptr(), run.size_bytes) }
        })
    }

    /// The bytes from `offset` on, where they lie: one slice for each page.
    ///
    /// # Errors
    /// [`Beyond`].
    pub fn slices(&self, offset: usize, len: usize) -> Result<Slices<'_, 'a, P>, Beyond> {
        self.check(offset, len)?;
        Ok(Slices { chain: self, offset, len })
    }

    /// The address of the `len` bytes at `offset`: for example of a header that is filled in later.
    ///
    /// # Errors
    /// [`AddressError`].
    #[inline]
    pub fn address(&self, offset: usize, len: usize) -> Result<NonNull<u8>, AddressError> {
        match self.pages.quick(Access::Address, offset, len) {
            Some(address) => Ok(address),
            None => self.address_slow(offset, len),
        }
    }

    #[cold]
    #[inline(never)]
    fn address_slow(&self, offset: usize, len: usize) -> Result<NonNull<u8>, AddressError> {
        self.check(offset, len).map_err(|Beyond| AddressError::Beyond)?;
        // An empty range at the very end is in no page.
        let run = self.pages.find(Access::Address, offset).ok_or(AddressError::Beyond)?;
        if len <= run.size_bytes { Ok(run.address) } else { Err(AddressError::Crosses) }
    }
}

impl<'a, P: Pages<'a>> Drop for Chain<'a, P> {
    fn drop(&mut self) {
        self.give_back_last(self.page_count());
    }
}

/// Writes that are called, as Desnoyers (2009) has them before and between his changes. Not generic, so that no compiler makes
/// copies of them for the lengths that a program has.
macro_rules! called {
    ($pages:ident) => {
        impl<'a> Chain<'a, $pages<'a>> {
            /// As [`Chain::write`], in a function that is called.
            ///
            /// # Errors
            /// [`Beyond`].
            #[inline(never)]
            pub fn write_called(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Beyond> {
                self.write_by::<Specialised>(offset, bytes)
            }

            /// As [`Chain::write_called`], copied by a call of `memcpy`.
            ///
            /// # Errors
            /// [`Beyond`].
            #[inline(never)]
            pub fn write_called_memcpy(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Beyond> {
                self.write_by::<Plain>(offset, bytes)
            }
        }
    };
}

called!(Linked);
called!(Table);

/// Parts of a buffer, page by page. See [`Chain::slices`].
#[derive(Debug)]
pub struct Slices<'c, 'a, P: Pages<'a> = Linked<'a>> {
    chain: &'c Chain<'a, P>,
    offset: usize,
    len: usize,
}

impl<'c, 'a, P: Pages<'a>> Iterator for Slices<'c, 'a, P> {
    type Item = &'c [u8];

    fn next(&mut self) -> Option<&'c [u8]> {
        if self.len == 0 {
            return None;
        }
        let Run { address, size_bytes } = self.chain.pages.find(Access::Read, self.offset)?;
        let size_bytes = size_bytes.min(self.len);
        self.offset += size_bytes;
        self.len -= size_bytes;
        // SAFETY: initialised bytes of one page, which nobody writes while the chain is borrowed, or by the word of those who do
        // (`write_shared`).
        Some(unsafe { core::slice::from_raw_parts(address.as_ptr(), size_bytes) })
    }
}

//! Pages found by a table of their addresses: for comparison with the circle.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

use super::budget::{Drawn, Share};
use super::{Access, Pages, Run};

/// Where one page's bytes are.
#[repr(transparent)]
#[derive(Debug)]
pub struct Entry(AtomicPtr<u8>);

impl Entry {
    /// An entry without a page.
    pub const fn new() -> Entry {
        Entry(AtomicPtr::new(ptr::null_mut()))
    }
}

impl Default for Entry {
    fn default() -> Entry {
        Entry::new()
    }
}

/// Pages in a table: each is found in one step, but the table must be contiguous and as long as the chain may grow.
#[derive(Debug)]
pub struct Table<'a> {
    /// Entries of the pages that exist.
    entries: &'a [Entry],
    all: &'a [Entry],
    page_shift: u32,
    page_size_bytes: usize,
}

impl<'a> Table<'a> {
    pub(super) fn new(entries: &'a mut [Entry], page_size_bytes: usize) -> Table<'a> {
        let all: &'a [Entry] = entries;
        Table { entries: &[], all, page_shift: page_size_bytes.trailing_zeros(), page_size_bytes }
    }

    #[inline(always)]
    fn address(&self, offset: usize, within: usize) -> Option<NonNull<u8>> {
        let entry = self.entries.get(offset >> self.page_shift)?;
        let address = entry.0.load(Ordering::Relaxed).wrapping_add(within);
        // SAFETY: entries in use have the address of a page, and nothing of one is at address 0.
        Some(unsafe { NonNull::new_unchecked(address) })
    }
}

impl<'a> Pages<'a> for Table<'a> {
    #[inline(always)]
    fn quick(&self, _: Access, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let within = offset & self.page_size_bytes.wrapping_sub(1);
        let left = self.page_size_bytes.wrapping_sub(within);
        if len <= left { self.address(offset, within) } else { None }
    }

    fn find(&self, _: Access, offset: usize) -> Option<Run> {
        let within = offset & (self.page_size_bytes - 1);
        Some(Run { address: self.address(offset, within)?, size_bytes: self.page_size_bytes - within })
    }

    fn size_bytes(&self) -> usize {
        self.entries.len() << self.page_shift
    }

    fn page_size_bytes(&self) -> usize {
        self.page_size_bytes
    }

    fn append(&mut self, page: Drawn<'a>) -> Result<(), Drawn<'a>> {
        let len = self.entries.len();
        let Some(entry) = self.all.get(len) else { return Err(page) };
        entry.0.store(page.data().as_ptr(), Ordering::Relaxed);
        self.entries = &self.all[..len + 1];
        Ok(())
    }

    fn remove_last(&mut self, share: &Share<'a>) -> Option<Drawn<'a>> {
        let (last, others) = self.entries.split_last()?;
        self.entries = others;
        let link = share.budget().link_of(last.0.load(Ordering::Relaxed))?;
        Some(Drawn { link })
    }
}

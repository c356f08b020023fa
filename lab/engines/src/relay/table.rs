//! Pages that are found by a table of their addresses, for comparison with a page chain. A page is found in one step,
//! but the table must be contiguous, and as long as the buffer may grow.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use dormouse_relay_chain::{BudgetError, OutOfBounds, PageBudget, copy_bytes};

/// A buffer of a fixed set of pages.
pub struct Table {
    /// Addresses of the pages' bytes. They are atomic, like the words of a chain.
    entries: Box<[AtomicPtr<u8>]>,
    page_shift: u32,
    page_size_bytes: usize,
}

impl Table {
    /// Takes `page_count` pages of the budget and keeps them.
    pub fn new(budget: &'static PageBudget<'static>, page_count: usize) -> Result<Table, BudgetError> {
        let mut share = budget.share(page_count)?;
        let entry = |_| share.draw().map(|page| AtomicPtr::new(page.data().as_ptr()));
        let entries = (0..page_count).map(entry).collect::<Result<_, _>>()?;
        let page_size_bytes = budget.page_size_bytes();
        Ok(Table { entries, page_shift: page_size_bytes.trailing_zeros(), page_size_bytes })
    }

    pub fn size_bytes(&self) -> usize {
        self.entries.len() << self.page_shift
    }

    #[inline(always)]
    fn within(&self, offset: usize) -> usize {
        offset & self.page_size_bytes.wrapping_sub(1)
    }

    #[inline(always)]
    fn found(&self, offset: usize) -> Option<NonNull<u8>> {
        let entry = self.entries.get(offset >> self.page_shift)?;
        let address = entry.load(Ordering::Relaxed).wrapping_add(self.within(offset));
        // SAFETY: in a page of a budget, and no page of a budget contains address 0.
        Some(unsafe { NonNull::new_unchecked(address) })
    }

    /// Returns the address of bytes that are in one page. It has the name of a chain's function, which finds bytes
    /// without a search only in the cached page.
    #[inline(always)]
    pub fn cached(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let left = self.page_size_bytes.wrapping_sub(self.within(offset));
        if len <= left { self.found(offset) } else { None }
    }

    #[inline(always)]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        match self.cached(offset, bytes.len()) {
            Some(address) => {
                // SAFETY: `cached` returned the address of `bytes.len()` bytes in a page of this table, which is
                // borrowed exclusively; the source is a slice of that length.
                unsafe { copy_bytes(address.as_ptr(), bytes.as_ptr(), bytes.len()) };
                Ok(())
            }
            None => self.write_slow(offset, bytes),
        }
    }

    /// Writes bytes that are in registers. They stay there unless they cross a page's end.
    #[inline(always)]
    pub fn write_array<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) -> Result<(), OutOfBounds> {
        match self.cached(offset, N) {
            Some(address) => {
                // SAFETY: `cached` returned the address of `N` bytes in a page of this table, which is borrowed
                // exclusively; the source is an array of that length.
                unsafe { copy_bytes(address.as_ptr(), bytes.as_ptr(), N) };
                Ok(())
            }
            None => {
                // A copy, so that only this case needs the bytes in memory.
                let held = bytes;
                self.write_slow(offset, &held)
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn write_slow(&mut self, offset: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.runs(offset, bytes.len(), |run, done, len| {
            // SAFETY: `runs` passes `len` bytes of one page, and `done + len` is at most the length of the source.
            unsafe { copy_bytes(run.as_ptr(), bytes.as_ptr().wrapping_add(done), len) }
        })
    }

    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        let target = bytes.as_mut_ptr();
        self.runs(offset, bytes.len(), |run, done, len| {
            // SAFETY: `runs` passes `len` bytes of one page, which the budget's creator has initialised, and `done +
            // len` is at most the length of the target.
            unsafe { target.wrapping_add(done).copy_from_nonoverlapping(run.as_ptr(), len) }
        })
    }

    /// Calls `each` for the part in each page, with its address, the number of bytes before it, and its length.
    fn runs(
        &self,
        offset: usize,
        len: usize,
        mut each: impl FnMut(NonNull<u8>, usize, usize),
    ) -> Result<(), OutOfBounds> {
        let left = self.size_bytes().checked_sub(offset).ok_or(OutOfBounds)?;
        if len > left {
            return Err(OutOfBounds);
        }
        let mut done = 0;
        while done < len {
            let offset = offset + done;
            let of_page = (self.page_size_bytes - self.within(offset)).min(len - done);
            each(self.found(offset).ok_or(OutOfBounds)?, done, of_page);
            done += of_page;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dormouse_relay_chain::Link;

    use super::*;

    #[repr(C, align(4096))]
    #[derive(Clone)]
    struct OsPage([u8; 4096]);

    const PAGES: usize = 5;

    fn budget() -> &'static PageBudget<'static> {
        let region = vec![OsPage([0; 4096]); PAGES].leak();
        // SAFETY: the memory of all pages, as bytes, leaked and used by nothing else.
        let region = unsafe { std::slice::from_raw_parts_mut(region.as_mut_ptr().cast(), PAGES * 4096) };
        let links: Vec<Link> = (0..PAGES).map(|_| Link::default()).collect();
        Box::leak(Box::new(PageBudget::new(region, 4096, links.leak()).unwrap()))
    }

    /// Writes bytes of many lengths at many offsets, across page ends and past the last page, and compares with a list.
    #[test]
    fn a_table_matches_a_list() {
        let budget = budget();
        let mut table = Table::new(budget, PAGES).unwrap();
        assert_eq!((budget.free_count(), table.size_bytes()), (0, PAGES * 4096));
        assert!(Table::new(budget, 1).is_err());
        let mut held = vec![0; PAGES * 4096];
        let mut random = 1u64;
        let mut draw = |end: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % end
        };
        for round in 0..20_000 {
            let len = if round % 100 == 0 { draw(9_000) } else { draw(40) };
            let near_end = (1 + draw(PAGES)) * 4096 - draw(40);
            let offset = if round % 2 == 0 { near_end } else { draw(PAGES * 4096 + 40) };
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
            let written = match *bytes {
                [a] => table.write_array(offset, [a]),
                [a, b, c, d] => table.write_array(offset, [a, b, c, d]),
                [a, b, c, d, e, f, g, h] => table.write_array(offset, [a, b, c, d, e, f, g, h]),
                _ => table.write(offset, &bytes),
            };
            match held.get_mut(offset..offset + len) {
                Some(place) => {
                    place.copy_from_slice(&bytes);
                    assert_eq!(written, Ok(()));
                    let mut found = vec![0; len];
                    table.read(offset, &mut found).unwrap();
                    assert_eq!(found, bytes);
                    if let Some(address) = table.cached(offset, len).filter(|_| len > 0) {
                        // SAFETY: `len` bytes of one page, which nothing writes meanwhile.
                        let found = unsafe { std::slice::from_raw_parts(address.as_ptr(), len) };
                        assert_eq!(found, bytes);
                    }
                }
                None => {
                    assert_eq!(written, Err(OutOfBounds));
                    assert_eq!(table.read(offset, &mut vec![0; len]), Err(OutOfBounds));
                }
            }
        }
        let mut found = vec![0; held.len()];
        table.read(0, &mut found).unwrap();
        assert!(found == held);
        assert_eq!(table.write(usize::MAX, &[1, 2]), Err(OutOfBounds));
    }
}

//! A budget: pages that several chains draw from one region of memory, and how many each of them was promised.

use core::fmt;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::free::{Free, NONE};

/// Least and greatest size of a page.
pub const PAGE_SIZE_BYTES_MIN: usize = 4 << 10;
/// See [`PAGE_SIZE_BYTES_MIN`].
pub const PAGE_SIZE_BYTES_MAX: usize = 2 << 20;

/// A budget's record of a page: where its bytes are, and its place in a chain.
///
/// All words are read and written relaxed. A link's words are written by the chain that has drawn its page, while nobody else uses
/// that chain, or while the page is free.
#[repr(C, align(32))]
#[derive(Debug, Default)]
pub struct Link {
    /// Where in its chain's buffer the page begins. While the page is free: the number of the next free one.
    pub(crate) offset: AtomicUsize,
    /// Where the page's bytes are. Never changes.
    pub(crate) data: AtomicPtr<u8>,
    /// The pages beside it in the circle.
    pub(crate) next: AtomicPtr<Link>,
    pub(crate) prev: AtomicPtr<Link>,
}

/// Why a budget cannot be made, or has no page to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetError {
    /// The size of a page is not a power of two from [`PAGE_SIZE_BYTES_MIN`] to [`PAGE_SIZE_BYTES_MAX`].
    PageSize,
    /// The region does not begin at a multiple of [`PAGE_SIZE_BYTES_MIN`].
    Unaligned,
    /// The region has room for no page, or for more than 2³² − 2.
    PageCount,
    /// There are fewer links than pages.
    Links,
    /// There is no free page that is not promised to others.
    Exhausted,
    /// A chain has one page at least.
    NoPage,
}

impl fmt::Display for BudgetError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            BudgetError::PageSize => "the size of a page is not a power of two from 4 KiB to 2 MiB",
            BudgetError::Unaligned => "the region does not begin at a multiple of 4 KiB",
            BudgetError::PageCount => {
                "the region has room for no page, or for too many: take a larger page size for a larger region"
            }
            BudgetError::Links => "there are fewer links than pages",
            BudgetError::Exhausted => "the budget has no free page that is not promised to another chain",
            BudgetError::NoPage => "a chain has one page at least",
        })
    }
}

impl core::error::Error for BudgetError {}

/// Pages of one size in one region of memory, which chains draw and give back.
///
/// Lock-free; async-signal-safe.
#[derive(Debug)]
pub struct PageBudget<'a> {
    links: &'a [Link],
    free: Free,
    drawn: AtomicUsize,
    page_size_bytes: usize,
    region: PhantomData<&'a mut [u8]>,
}

impl<'a> PageBudget<'a> {
    /// All whole pages of `region`. Bytes behind the last whole page, and links that are too many, are not used.
    ///
    /// # Errors
    /// [`BudgetError`], of the first four.
    pub fn new(
        region: &'a mut [u8],
        page_size_bytes: usize,
        links: &'a mut [Link],
    ) -> Result<PageBudget<'a>, BudgetError> {
        let (size_bytes, region) = (region.len(), NonNull::from(region));
        // SAFETY: borrowed exclusively for as long as the budget lives.
        unsafe { PageBudget::from_raw(region.cast(), size_bytes, page_size_bytes, links) }
    }

    /// As [`PageBudget::new`], of memory that the caller manages.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// For the lifetime `'a`, `size_bytes` bytes at `region` are initialised, may be read and written, and nobody else does so.
    pub unsafe fn from_raw(
        region: NonNull<u8>,
        size_bytes: usize,
        page_size_bytes: usize,
        links: &'a mut [Link],
    ) -> Result<PageBudget<'a>, BudgetError> {
        if !page_size_bytes.is_power_of_two() || !(PAGE_SIZE_BYTES_MIN..=PAGE_SIZE_BYTES_MAX).contains(&page_size_bytes)
        {
            return Err(BudgetError::PageSize);
        }
        if !region.addr().get().is_multiple_of(PAGE_SIZE_BYTES_MIN) {
            return Err(BudgetError::Unaligned);
        }
        let page_count = size_bytes / page_size_bytes;
        if page_count == 0 || page_count >= NONE as usize {
            return Err(BudgetError::PageCount);
        }
        let links: &'a [Link] = links;
        let links = links.get(..page_count).ok_or(BudgetError::Links)?;
        for (index, link) in links.iter().enumerate() {
            link.data.store(region.as_ptr().wrapping_add(index * page_size_bytes), Ordering::Relaxed);
            let next = if index + 1 == page_count { NONE } else { index as u32 + 1 };
            link.offset.store(next as usize, Ordering::Relaxed);
        }
        Ok(PageBudget {
            links,
            free: Free::new(page_count),
            drawn: AtomicUsize::new(0),
            page_size_bytes,
            region: PhantomData,
        })
    }

    /// Bytes of a page.
    pub fn page_size_bytes(&self) -> usize {
        self.page_size_bytes
    }

    /// Pages, drawn or not.
    pub fn page_count(&self) -> usize {
        self.links.len()
    }

    /// Pages that nobody has drawn. A page that is drawn or given back at the same time may be counted or not.
    pub fn free_count(&self) -> usize {
        self.page_count() - self.drawn.load(Ordering::Relaxed)
    }

    /// Of these, pages that are not promised to anybody.
    pub fn available_count(&self) -> usize {
        self.free.available()
    }

    /// A share to draw by. Whatever other shares draw, this one always gets as many pages as it is promised.
    ///
    /// # Errors
    /// [`BudgetError::Exhausted`]: so many cannot be promised.
    pub fn share(&'a self, promised_count: usize) -> Result<Share<'a>, BudgetError> {
        self.take(promised_count)?;
        Ok(Share { budget: self, promised_count, drawn_count: 0 })
    }

    fn take(&self, count: usize) -> Result<(), BudgetError> {
        if self.free.take(count) { Ok(()) } else { Err(BudgetError::Exhausted) }
    }

    fn pop(&self) -> Option<&'a Link> {
        // While a page is free, its link's offset is the number of the page behind it.
        let next = |page: u32| self.links.get(page as usize).map(|link| link.offset.load(Ordering::Relaxed) as u32);
        let page = self.free.pop(next)?;
        self.drawn.fetch_add(1, Ordering::Relaxed);
        self.links.get(page as usize)
    }

    fn push(&self, link: &'a Link) {
        let page = (ptr::from_ref(link).addr() - self.links.as_ptr().addr()) / size_of::<Link>();
        self.drawn.fetch_sub(1, Ordering::Relaxed);
        self.free.push(page as u32, |next| link.offset.store(next as usize, Ordering::Relaxed));
    }

    fn has(&self, link: &Link) -> bool {
        self.links.as_ptr_range().contains(&ptr::from_ref(link))
    }
}

/// A page that is drawn, and not given back. If it is dropped instead, it is lost for the life of the budget.
#[derive(Debug)]
#[must_use = "a page that is not given back is lost"]
pub struct Drawn<'a> {
    pub(crate) link: &'a Link,
}

impl Drawn<'_> {
    /// The address of the page's bytes. They are those that the last owner left.
    pub fn data(&self) -> NonNull<u8> {
        // SAFETY: the budget has stored a region's address there.
        unsafe { NonNull::new_unchecked(self.link.data.load(Ordering::Relaxed)) }
    }
}

/// One chain's account with a budget: how many pages it has drawn, and how many it was promised.
///
/// ```text
///   free pages  =  available  +  Σ over shares of (promised − drawn, where that is more than 0)
/// ```
/// So a promised page is always there, and a share that wants more takes from what is available. Lock-free; async-signal-safe.
#[repr(C)]
#[derive(Debug)]
pub struct Share<'a> {
    budget: &'a PageBudget<'a>,
    /// Pages that it can always have, whatever others draw.
    pub(crate) promised_count: usize,
    /// Pages that it has drawn and not given back.
    pub(crate) drawn_count: usize,
}

impl<'a> Share<'a> {
    /// Pages that are kept free for it.
    fn kept_count(&self, promised_count: usize) -> usize {
        promised_count.saturating_sub(self.drawn_count)
    }

    /// Draws a page.
    ///
    /// # Errors
    /// [`BudgetError::Exhausted`]: it has drawn as many as it was promised, and every other free page is promised to others.
    pub fn draw(&mut self) -> Result<Drawn<'a>, BudgetError> {
        let is_promised = self.kept_count(self.promised_count) > 0;
        if !is_promised {
            self.budget.take(1)?;
        }
        match self.budget.pop() {
            Some(link) => {
                self.drawn_count += 1;
                Ok(Drawn { link })
            }
            // This happens only if somebody has overwritten the budget's words.
            None => {
                self.budget.free.make_available(usize::from(!is_promised));
                Err(BudgetError::Exhausted)
            }
        }
    }

    /// Gives a page back.
    ///
    /// # Panics
    /// The page is not of this budget, or another share's: this one has drawn none.
    pub fn give_back(&mut self, page: Drawn<'a>) {
        assert!(self.budget.has(page.link) && self.drawn_count > 0, "the page is somebody else's");
        self.budget.push(page.link);
        let was_promised = self.drawn_count <= self.promised_count;
        self.drawn_count -= 1;
        self.budget.free.make_available(usize::from(!was_promised));
    }

    /// Changes the promise.
    ///
    /// # Errors
    /// [`BudgetError::Exhausted`]: so many cannot be promised. The promise is unchanged.
    pub fn set_promised_count(&mut self, promised_count: usize) -> Result<(), BudgetError> {
        let (before, after) = (self.kept_count(self.promised_count), self.kept_count(promised_count));
        match after.checked_sub(before) {
            Some(more) => self.budget.take(more)?,
            None => self.budget.free.make_available(before - after),
        }
        self.promised_count = promised_count;
        Ok(())
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.budget.free.make_available(self.kept_count(self.promised_count));
    }
}

//! A budget: pages that several chains draw from one region of memory, and the number that each of them is promised.

use core::fmt;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::free::{Free, NONE};

/// Minimum size of a page, in bytes.
pub const PAGE_SIZE_BYTES_MIN: usize = 4 << 10;
/// Maximum size of a page, in bytes.
pub const PAGE_SIZE_BYTES_MAX: usize = 2 << 20;

/// A budget's record of a page: the address of its bytes, and its place in a chain.
///
/// All words are read and written relaxed. A link's words are written by the chain that has drawn its page, while
/// nothing else uses that chain, or while the page is free.
#[repr(C, align(32))]
#[derive(Debug, Default)]
pub struct Link {
    /// Offset of the page in its chain's buffer, in bytes. While the page is free: number of the next free page.
    pub(crate) offset: AtomicUsize,
    /// Address of the page's bytes. It never changes.
    pub(crate) data: AtomicPtr<u8>,
    /// Neighbouring pages in the circle.
    pub(crate) next: AtomicPtr<Link>,
    pub(crate) prev: AtomicPtr<Link>,
}

/// The reason why a budget cannot be made, or has no page to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetError {
    /// The size of a page is not a power of two from [`PAGE_SIZE_BYTES_MIN`] to [`PAGE_SIZE_BYTES_MAX`].
    PageSize,
    /// The region does not begin at a multiple of [`PAGE_SIZE_BYTES_MIN`].
    Unaligned,
    /// The region has room for no page, or for more than 2³² − 2 pages.
    PageCount,
    /// There are fewer links than pages.
    Links,
    /// No page is free that is not promised to others.
    Exhausted,
    /// A chain must have at least one page.
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
    /// Makes a budget of all whole pages of `region`. Bytes after the last whole page, and excess links, are not used.
    ///
    /// # Errors
    /// [`BudgetError`], one of the first four.
    pub fn new(
        region: &'a mut [u8],
        page_size_bytes: usize,
        links: &'a mut [Link],
    ) -> Result<PageBudget<'a>, BudgetError> {
        let (size_bytes, region) = (region.len(), NonNull::from(region));
        // SAFETY: the region is borrowed exclusively for as long as the budget lives.
        unsafe { PageBudget::from_raw(region.cast(), size_bytes, page_size_bytes, links) }
    }

    /// Makes a budget like [`PageBudget::new`], of memory that the caller manages.
    ///
    /// # Errors
    /// The errors of [`PageBudget::new`].
    ///
    /// # Safety
    /// For the lifetime `'a`, `size_bytes` bytes at `region` are initialised, may be read and written, and are accessed
    /// only through the budget.
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

    /// Returns the size of a page, in bytes.
    pub fn page_size_bytes(&self) -> usize {
        self.page_size_bytes
    }

    /// Returns the number of pages, drawn or not.
    pub fn page_count(&self) -> usize {
        self.links.len()
    }

    /// Returns the number of free pages. A page that is drawn or given back at the same time may be counted or not.
    pub fn free_count(&self) -> usize {
        self.page_count() - self.drawn.load(Ordering::Relaxed)
    }

    /// Returns the number of free pages that are not promised.
    pub fn available_count(&self) -> usize {
        self.free.available()
    }

    /// Makes a share that draws pages. It always gets the number of pages that it is promised, whatever other shares
    /// draw.
    ///
    /// # Errors
    /// [`BudgetError::Exhausted`]: this many pages cannot be promised.
    pub fn share(&'a self, promised_count: usize) -> Result<Share<'a>, BudgetError> {
        self.take(promised_count)?;
        Ok(Share { budget: self, promised_count, drawn_count: 0 })
    }

    fn take(&self, count: usize) -> Result<(), BudgetError> {
        if self.free.take(count) { Ok(()) } else { Err(BudgetError::Exhausted) }
    }

    fn pop(&self) -> Option<&'a Link> {
        // While a page is free, its link's offset is the number of the page after it.
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

/// A page that is drawn and not given back. If it is dropped, it is lost for the life of the budget.
#[derive(Debug)]
#[must_use = "a page that is not given back is lost"]
pub struct DrawnPage<'a> {
    pub(crate) link: &'a Link,
}

impl DrawnPage<'_> {
    /// Returns the address of the page's bytes, which contain what the last owner left.
    pub fn data(&self) -> NonNull<u8> {
        // SAFETY: the budget has stored an address in its region there, which is not null.
        unsafe { NonNull::new_unchecked(self.link.data.load(Ordering::Relaxed)) }
    }
}

/// The account of one chain with a budget: the number of pages that it has drawn, and the number it is promised.
///
/// ```text
///   free pages  =  available  +  Σ over shares of (promised − drawn, where that is more than 0)
/// ```
/// So a promised page is always available to its share, and a share that wants more takes from the available pages.
/// Lock-free; async-signal-safe.
#[repr(C)]
#[derive(Debug)]
pub struct Share<'a> {
    budget: &'a PageBudget<'a>,
    /// Number of pages that it can always have, whatever others draw.
    pub(crate) promised_count: usize,
    /// Number of pages that it has drawn and not given back.
    pub(crate) drawn_count: usize,
}

impl<'a> Share<'a> {
    /// Returns the number of pages that are kept free for it.
    fn kept_count(&self, promised_count: usize) -> usize {
        promised_count.saturating_sub(self.drawn_count)
    }

    /// Draws a page.
    ///
    /// # Errors
    /// [`BudgetError::Exhausted`]: it has drawn all promised pages, and every other free page is promised to others.
    pub fn draw(&mut self) -> Result<DrawnPage<'a>, BudgetError> {
        let is_promised = self.kept_count(self.promised_count) > 0;
        if !is_promised {
            self.budget.take(1)?;
        }
        match self.budget.pop() {
            Some(link) => {
                self.drawn_count += 1;
                Ok(DrawnPage { link })
            }
            // This happens only if the budget's words were overwritten.
            None => {
                self.budget.free.make_available(usize::from(!is_promised));
                Err(BudgetError::Exhausted)
            }
        }
    }

    /// Gives a page back.
    ///
    /// # Panics
    /// Panics if the page belongs to another budget, or if this share has drawn no page, so that it belongs to another
    /// one.
    pub fn give_back(&mut self, page: DrawnPage<'a>) {
        assert!(self.budget.has(page.link) && self.drawn_count > 0, "the page is somebody else's");
        self.budget.push(page.link);
        let was_promised = self.drawn_count <= self.promised_count;
        self.drawn_count -= 1;
        self.budget.free.make_available(usize::from(!was_promised));
    }

    /// Changes the promise.
    ///
    /// # Errors
    /// [`BudgetError::Exhausted`]: this many pages cannot be promised. The promise is unchanged.
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

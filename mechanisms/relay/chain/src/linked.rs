//! Pages linked in a circle, with a cached page for each kind of access.

use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::budget::{DrawnPage, Link, PAGE_SIZE_BYTES_MIN};

/// The purpose for which a page is searched. Each has a cached page of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Access {
    Write = 0,
    Read = 1,
    /// A request for an address.
    Address = 2,
}

/// Contiguous bytes of the buffer: up to the end of their page.
pub(crate) struct Run {
    /// Address of the first byte.
    pub(crate) address: NonNull<u8>,
    /// Number of bytes.
    pub(crate) size_bytes: usize,
}

/// A circle of pages. Its first members are those of C's `struct dormouse_relay_chain`.
///
/// The caches are hints: the page of an offset is found from any page of the circle that a cache names, and its own
/// offset identifies it. So a signal handler that writes between two writes of the thread that it interrupts needs no
/// agreement with it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Linked<'a> {
    /// Pages that were last written, read, or whose address was last requested.
    caches: [AtomicPtr<Link>; 3],
    page_size_bytes: usize,
    pub(crate) size_bytes: usize,
    /// Page at offset 0.
    first: &'a Link,
    chain: PhantomData<&'a mut Link>,
}

/// Offsets on which C relies, including those of the link's first two words.
#[doc(hidden)]
pub const LAYOUT: [(&str, usize); 5] = [
    ("caches", core::mem::offset_of!(Linked<'static>, caches)),
    ("page_size_bytes", core::mem::offset_of!(Linked<'static>, page_size_bytes)),
    ("size_bytes", core::mem::offset_of!(Linked<'static>, size_bytes)),
    ("link.offset", core::mem::offset_of!(Link, offset)),
    ("link.data", core::mem::offset_of!(Link, data)),
];

const WORD: usize = size_of::<usize>();
const _: () = assert!(LAYOUT[0].1 == 0 && LAYOUT[1].1 == 3 * WORD && LAYOUT[2].1 == 4 * WORD);
const _: () = assert!(LAYOUT[3].1 == 0 && LAYOUT[4].1 == WORD && size_of::<Link>() == 32);

impl<'a> Linked<'a> {
    pub(crate) fn new(page: DrawnPage<'a>, page_size_bytes: usize) -> Linked<'a> {
        let first = page.link;
        let pointer = ptr::from_ref(first).cast_mut();
        first.offset.store(0, Ordering::Relaxed);
        first.next.store(pointer, Ordering::Relaxed);
        first.prev.store(pointer, Ordering::Relaxed);
        Linked {
            caches: [pointer; 3].map(AtomicPtr::new),
            page_size_bytes,
            size_bytes: page_size_bytes,
            first,
            chain: PhantomData,
        }
    }

    #[inline(always)]
    fn link(word: &AtomicPtr<Link>) -> &'a Link {
        let pointer = word.load(Ordering::Relaxed);
        // SAFETY: caches, `next` and `prev` of a chain's pages are addresses of links in the budget's slice, which
        // outlives the chain.
        unsafe { &*pointer }
    }

    /// Returns the distance of `offset` from the start of the page, if it is in this page; otherwise at least a page's
    /// size.
    #[inline(always)]
    fn within(link: &Link, offset: usize) -> usize {
        offset.wrapping_sub(link.offset.load(Ordering::Relaxed))
    }

    /// Returns the bytes from `offset` on, which must be below the buffer's size.
    ///
    /// The page is found the shorter way around from the cached page of `access`. It becomes the cached one if it is
    /// found forward. A writer that finds its page backward was interrupted by another writer that is further on, and
    /// the next record is written there. If both ways are equally long, the search goes forward, because that result is
    /// cached.
    pub(crate) fn find(&self, access: Access, offset: usize) -> Option<Run> {
        let cache = &self.caches[access as usize];
        let mut link = Self::link(cache);
        let (page, size) = (self.page_size_bytes, self.size_bytes);
        // The distance is counted in pages: a search that compares bytes, like that of 2009, goes backward from a
        // page's second byte on.
        let to = offset & !(page - 1);
        let forward = match to.checked_sub(link.offset.load(Ordering::Relaxed)) {
            Some(bytes) => bytes,
            None => to + size - link.offset.load(Ordering::Relaxed),
        };
        let backward = size - forward;
        if forward > backward {
            for _ in 0..backward / page {
                link = Self::link(&link.prev);
            }
        } else if forward > 0 {
            for _ in 0..forward / page {
                link = Self::link(&link.next);
            }
            cache.store(ptr::from_ref(link).cast_mut(), Ordering::Relaxed);
        }
        let within = Self::within(link, offset);
        (within < page).then(|| Run { address: address(link, within), size_bytes: page - within })
    }

    /// Returns the address of the bytes, if they are in the cached page, so that no search is needed.
    #[inline(always)]
    pub(crate) fn quick(&self, access: Access, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let link = Self::link(&self.caches[access as usize]);
        let within = Self::within(link, offset);
        // A page has at least `PAGE_SIZE_BYTES_MIN` bytes, so one comparison is enough if the compiler knows a shorter length.
        let fits = if len <= PAGE_SIZE_BYTES_MIN {
            within <= self.page_size_bytes.wrapping_sub(len)
        } else {
            within < self.page_size_bytes && len <= self.page_size_bytes.wrapping_sub(within)
        };
        fits.then(|| address(link, within))
    }

    /// Appends a page.
    pub(crate) fn append(&mut self, page: DrawnPage<'a>) {
        let (link, first, last) = (page.link, self.first, Self::link(&self.first.prev));
        link.offset.store(self.size_bytes, Ordering::Relaxed);
        link.prev.store(ptr::from_ref(last).cast_mut(), Ordering::Relaxed);
        link.next.store(ptr::from_ref(first).cast_mut(), Ordering::Relaxed);
        last.next.store(ptr::from_ref(link).cast_mut(), Ordering::Relaxed);
        first.prev.store(ptr::from_ref(link).cast_mut(), Ordering::Relaxed);
        self.size_bytes += self.page_size_bytes;
    }

    /// Removes the last page. After the only page is removed, the circle must not be used.
    pub(crate) fn remove_last(&mut self) -> DrawnPage<'a> {
        let (first, last) = (self.first, Self::link(&self.first.prev));
        let before = Self::link(&last.prev);
        before.next.store(ptr::from_ref(first).cast_mut(), Ordering::Relaxed);
        first.prev.store(ptr::from_ref(before).cast_mut(), Ordering::Relaxed);
        self.size_bytes -= self.page_size_bytes;
        for cache in &self.caches {
            if ptr::eq(cache.load(Ordering::Relaxed), last) {
                cache.store(ptr::from_ref(before).cast_mut(), Ordering::Relaxed);
            }
        }
        DrawnPage { link: last }
    }

    /// Returns the offset of the cached page of `access`, in bytes.
    #[cfg(test)]
    pub(crate) fn cached_offset(&self, access: Access) -> usize {
        Self::link(&self.caches[access as usize]).offset.load(Ordering::Relaxed)
    }
}

#[inline(always)]
fn address(link: &Link, within: usize) -> NonNull<u8> {
    let address = link.data.load(Ordering::Relaxed).wrapping_add(within);
    // SAFETY: the address is inside a region, and no region contains address 0.
    unsafe { NonNull::new_unchecked(address) }
}

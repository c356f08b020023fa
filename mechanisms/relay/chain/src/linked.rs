//! Pages linked in a circle, with a cached page for each kind of access.

use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::budget::{Drawn, Link, PAGE_SIZE_BYTES_MIN};

/// The purpose for which a page is searched. Each has a cached page of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Access {
    Write = 0,
    Read = 1,
    /// Asking for an address.
    Address = 2,
}

/// Contiguous bytes of the buffer: up to the end of their page.
pub(crate) struct Run {
    /// Of the first.
    pub(crate) address: NonNull<u8>,
    /// How many.
    pub(crate) size_bytes: usize,
}

/// A circle of pages. C sees its first members as `struct dormouse_relay_chain`.
///
/// The caches are hints: from whichever page of the circle one of them names, the page of an offset is found, and its
/// own offset identifies it. So a signal handler that writes between two writes of the thread that it interrupts needs no agreement with it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Linked<'a> {
    /// The pages that were last written, read, or asked the address of.
    caches: [AtomicPtr<Link>; 3],
    page_size_bytes: usize,
    pub(crate) size_bytes: usize,
    /// The page at offset 0.
    first: &'a Link,
    chain: PhantomData<&'a mut Link>,
}

/// Offsets that C relies on, besides the link's first two words.
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
    pub(crate) fn new(page: Drawn<'a>, page_size_bytes: usize) -> Linked<'a> {
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
        // SAFETY: caches, `next` and `prev` of a chain's pages name links of the budget's slice, which outlives the chain.
        unsafe { &*pointer }
    }

    /// Bytes from the page's beginning to `offset`, if it lies in this page; otherwise at least a page's size.
    #[inline(always)]
    fn within(link: &Link, offset: usize) -> usize {
        offset.wrapping_sub(link.offset.load(Ordering::Relaxed))
    }

    /// The bytes from `offset` on, which must be below the buffer's size.
    ///
    /// Their page is found the shorter way around from where `access` was last. It becomes the cached one if it is found forward. A writer that finds its page behind the cached one was interrupted by another writer that is further on, and
    /// the next record goes there. Opposite in the circle both ways are equally long; then forward, because that result is cached.
    pub(crate) fn find(&self, access: Access, offset: usize) -> Option<Run> {
        let cache = &self.caches[access as usize];
        let mut link = Self::link(cache);
        let (page, size) = (self.page_size_bytes, self.size_bytes);
        // Counted in pages: a search that compares bytes, as that of 2009, goes back from a page's second byte on.
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

    /// The address of the bytes, if no search is needed and they are in one page of the buffer.
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

    /// Adds a page at the end.
    pub(crate) fn append(&mut self, page: Drawn<'a>) {
        let (link, first, last) = (page.link, self.first, Self::link(&self.first.prev));
        link.offset.store(self.size_bytes, Ordering::Relaxed);
        link.prev.store(ptr::from_ref(last).cast_mut(), Ordering::Relaxed);
        link.next.store(ptr::from_ref(first).cast_mut(), Ordering::Relaxed);
        last.next.store(ptr::from_ref(link).cast_mut(), Ordering::Relaxed);
        first.prev.store(ptr::from_ref(link).cast_mut(), Ordering::Relaxed);
        self.size_bytes += self.page_size_bytes;
    }

    /// Takes the last page away. After the only page is taken, the circle must not be used.
    pub(crate) fn remove_last(&mut self) -> Drawn<'a> {
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
        Drawn { link: last }
    }

    /// Where the cached page of `access` begins.
    #[cfg(test)]
    pub(crate) fn cached_offset(&self, access: Access) -> usize {
        Self::link(&self.caches[access as usize]).offset.load(Ordering::Relaxed)
    }
}

#[inline(always)]
fn address(link: &Link, within: usize) -> NonNull<u8> {
    let address = link.data.load(Ordering::Relaxed).wrapping_add(within);
    // SAFETY: inside a region, and nothing of one is at address 0.
    unsafe { NonNull::new_unchecked(address) }
}

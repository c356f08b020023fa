//! Memory to measure with: mapped anew, so that nobody has touched it.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes where a huge page may begin.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A mapping of its own, unmapped when dropped.
#[derive(Debug)]
pub(super) struct Buffer {
    mapped: NonNull<c_void>,
    start: NonNull<u64>,
    bytes: usize,
}

impl Buffer {
    /// Zeroes that nobody has touched, in small pages or, where the kernel has some, huge ones. `None`: there is no memory.
    pub(super) fn new(bytes: usize, is_huge: bool) -> Option<Buffer> {
        let bytes = bytes.next_multiple_of(4096);
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses (mmap(2)).
        let mapped = unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes + HUGE_PAGE_BYTES, access, flags) };
        let mapped = NonNull::new(mapped.ok()?)?;
        let skipped = mapped.addr().get().next_multiple_of(HUGE_PAGE_BYTES) - mapped.addr().get();
        let start = NonNull::new(mapped.as_ptr().wrapping_byte_add(skipped))?;
        let advice = if is_huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: inside the mapping; a matter of speed alone (madvise(2)). A kernel without huge pages refuses it.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr(), bytes, advice) };
        Some(Buffer { mapped, start: start.cast(), bytes })
    }

    /// Its words, as they are read.
    pub(super) fn words(&self) -> &[u64] {
        // The compiler is not to know what they hold.
        let start = std::hint::black_box(self.start).as_ptr();
        // SAFETY: inside the mapping, which is as old as this value; zeroes are words.
        unsafe { std::slice::from_raw_parts(start, self.bytes / 8) }
    }

    pub(super) fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: inside the mapping, which is as old as this value; zeroes are words, and nobody else has this value.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes / 8) }
    }

    /// Where it is.
    pub(super) fn addresses(&self) -> Range<usize> {
        let start = self.start.addr().get();
        start..start + self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping; slices of it have ended.
        let _ = unsafe { rustix::mm::munmap(self.mapped.as_ptr(), self.bytes + HUGE_PAGE_BYTES) };
    }
}

/// Adds the words up.
pub(super) fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum ^ word)
}

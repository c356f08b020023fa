//! Private, zeroed memory of the kernel's, cut from the front.

use core::ptr;

pub(crate) struct Mapping {
    base: *mut u8,
    size_bytes: usize,
    /// Bytes that were cut off.
    used_bytes: usize,
}

// SAFETY: memory that belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: nothing changes through a shared reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(size_bytes: usize) -> Option<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, wherever there is room.
        let base = unsafe { libc::mmap(ptr::null_mut(), size_bytes, access, flags, -1, 0) };
        (base != libc::MAP_FAILED).then_some(Mapping { base: base.cast(), size_bytes, used_bytes: 0 })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Makes all pages present.
    pub(crate) fn prefault(&self) {
        for offset in (0..self.size_bytes).step_by(4096) {
            // SAFETY: inside the mapping, whose zeroes nobody uses yet.
            unsafe { self.base.wrapping_add(offset).write_volatile(0) };
        }
    }

    /// The next bytes; `None` if there are not so many.
    pub(crate) fn cut(&mut self, size_bytes: usize) -> Option<*mut u8> {
        let start = self.used_bytes;
        self.used_bytes = start.checked_add(size_bytes).filter(|end| *end <= self.size_bytes)?;
        Some(self.base.wrapping_add(start))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping that was made above, which nobody uses any more.
        unsafe { libc::munmap(self.base.cast(), self.size_bytes) };
    }
}

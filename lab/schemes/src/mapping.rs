//! Zeroed memory, from the kernel or from the caller, cut from the front.

use core::ptr;

/// Memory in which objects are allocated.
#[derive(Debug, Clone, Copy)]
pub enum Room {
    /// Memory of the process itself. All its pages are present, or if it is lazy those that were touched.
    Own {
        /// Whether it is lazy.
        is_lazy: bool,
    },
    /// Memory from the caller.
    Given(Given),
}

/// Memory from the caller, usually shared with other processes.
#[derive(Debug, Clone, Copy)]
pub struct Given {
    base: *mut u8,
    size_bytes: usize,
}

const PAGE_BYTES: usize = 4096;

impl Given {
    /// Wraps the `size_bytes` bytes from `base`.
    ///
    /// # Safety
    /// The bytes must be zeroes, start at a page, and stay mapped, readable and writable, for as long as a scheme in
    /// them or any view of it is used. Nothing else may write to them except views of one scheme.
    pub const unsafe fn new(base: *mut u8, size_bytes: usize) -> Given {
        Given { base, size_bytes }
    }

    pub(crate) fn base(self) -> *mut u8 {
        self.base
    }

    pub(crate) fn size_bytes(self) -> usize {
        self.size_bytes
    }
}

impl Room {
    /// Splits off `size_bytes` bytes, in whole pages, and returns them and the rest. The process's own memory is not
    /// split: both parts may map more.
    pub(crate) fn split(self, size_bytes: usize) -> Option<(Room, Room)> {
        let Room::Given(Given { base, size_bytes: whole_bytes }) = self else { return Some((self, self)) };
        let size_bytes = size_bytes.next_multiple_of(PAGE_BYTES);
        let rest = Given { base: base.wrapping_add(size_bytes), size_bytes: whole_bytes.checked_sub(size_bytes)? };
        Some((Room::Given(Given { base, size_bytes }), Room::Given(rest)))
    }
}

pub(crate) struct Mapping {
    base: *mut u8,
    size_bytes: usize,
    /// Number of bytes that were cut off.
    used_bytes: usize,
    is_own: bool,
}

// SAFETY: memory that belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: nothing changes through a shared reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `size_bytes` bytes, or takes those that are given.
    pub(crate) fn new(size_bytes: usize, room: Room) -> Option<Mapping> {
        let is_lazy = match room {
            Room::Given(Given { base, size_bytes }) => {
                return Some(Mapping { base, size_bytes, used_bytes: 0, is_own: false });
            }
            Room::Own { is_lazy } => is_lazy,
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), size_bytes, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let mapping = Mapping { base: base.cast(), size_bytes, used_bytes: 0, is_own: true };
        for offset in (0..if is_lazy { 0 } else { size_bytes }).step_by(PAGE_BYTES) {
            // SAFETY: inside the new mapping, which nothing else uses yet.
            unsafe { mapping.base.wrapping_add(offset).write_volatile(0) };
        }
        Some(mapping)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Cuts off the next bytes. Returns `None` if there are not enough left.
    pub(crate) fn cut(&mut self, size_bytes: usize) -> Option<*mut u8> {
        let start = self.used_bytes;
        self.used_bytes = start.checked_add(size_bytes).filter(|end| *end <= self.size_bytes)?;
        Some(self.base.wrapping_add(start))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: the mapping that was made above, which nothing uses any more.
            unsafe { libc::munmap(self.base.cast(), self.size_bytes) };
        }
    }
}

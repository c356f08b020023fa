//! Zeroed memory, of the kernel's or of the caller's, cut from the front.

use core::ptr;

/// Whose memory objects lie in.
#[derive(Debug, Clone, Copy)]
pub enum Room {
    /// The process's own: every page is present, or if it is lazy what was touched.
    Own {
        /// Whether it is.
        is_lazy: bool,
    },
    /// The caller's.
    Given(Given),
}

/// Memory of the caller's, usually shared with other processes.
#[derive(Debug, Clone, Copy)]
pub struct Given {
    base: *mut u8,
    size_bytes: usize,
}

const PAGE_BYTES: usize = 4096;

impl Given {
    /// The `size_bytes` bytes from `base`.
    ///
    /// # Safety
    /// They are zeroes, begin with a page, and stay mapped, readable and writable, for as long as a scheme in them or any view of it is
    /// used. Nobody else writes to them, but through views of one scheme.
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
    /// So many bytes, in whole pages, and the rest. What is the process's own has no end.
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
    /// Bytes that were cut off.
    used_bytes: usize,
    is_own: bool,
}

// SAFETY: memory that belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: nothing changes through a shared reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// So many bytes, or those that are given.
    pub(crate) fn new(size_bytes: usize, room: Room) -> Option<Mapping> {
        let is_lazy = match room {
            Room::Given(Given { base, size_bytes }) => {
                return Some(Mapping { base, size_bytes, used_bytes: 0, is_own: false });
            }
            Room::Own { is_lazy } => is_lazy,
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, wherever there is room.
        let base = unsafe { libc::mmap(ptr::null_mut(), size_bytes, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let mapping = Mapping { base: base.cast(), size_bytes, used_bytes: 0, is_own: true };
        for offset in (0..if is_lazy { 0 } else { size_bytes }).step_by(PAGE_BYTES) {
            // SAFETY: inside the mapping, whose zeroes nobody uses yet.
            unsafe { mapping.base.wrapping_add(offset).write_volatile(0) };
        }
        Some(mapping)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
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
        if self.is_own {
            // SAFETY: the mapping that was made above, which nobody uses any more.
            unsafe { libc::munmap(self.base.cast(), self.size_bytes) };
        }
    }
}

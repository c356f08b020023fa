//! Where objects lie.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::error::{AllocError, FreeError, Shortage};
use super::scheme::Family;
use super::{OBJECT_SIZE_BYTES_MAX, PoolOptions};

pub(crate) struct Heap {
    base: *mut u8,
    len: usize,
    table: *mut usize,
    next: AtomicUsize,
    end: usize,
    family: Family,
    cpu_count: usize,
}

impl Heap {
    pub(crate) fn new(family: Family, options: &PoolOptions) -> Result<Heap, AllocError> {
        let cpu_count = options.cpu_count as usize;
        let len = options.stride_bytes * cpu_count;
        let map = |len: usize| {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a new mapping wherever there is room.
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }.map_err(
                |errno| {
                    let shortage = Shortage::Refused { size_bytes: len, errno: errno.raw_os_error() };
                    AllocError::Exhausted { size_bytes: 0, align_bytes: 0, shortage }
                },
            )
        };
        let base = map(len)?.cast::<u8>();
        let table = map(cpu_count * 8)?.cast::<usize>();
        for cpu in 0..cpu_count {
            // SAFETY: inside the table.
            unsafe { table.wrapping_add(cpu).write(cpu * options.stride_bytes) };
        }
        let end = if family == Family::Strided { options.stride_bytes } else { len };
        Ok(Heap { base, len, table, next: AtomicUsize::new(0), end, family, cpu_count })
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn table(&self) -> *const usize {
        self.table
    }

    pub(crate) fn alloc(&self, size: usize, align: usize) -> Result<NonNull<u8>, AllocError> {
        if size > OBJECT_SIZE_BYTES_MAX {
            return Err(AllocError::TooBig { size_bytes: size, size_bytes_max: OBJECT_SIZE_BYTES_MAX });
        }
        let line = size.max(align).max(64).next_power_of_two();
        let pointer = match self.family {
            Family::Strided => self.bump(size.next_multiple_of(8), align.max(8)),
            Family::SideBySide => self
                .bump(line * self.cpu_count, align.max(64))
                .map(|base| base.wrapping_add(line.trailing_zeros() as usize)),
            Family::Pointers => self.bump((self.cpu_count * 8).next_multiple_of(64), 64).and_then(|array| {
                for cpu in 0..self.cpu_count {
                    let copy = self.bump(size.next_multiple_of(64), align.max(64))?;
                    // SAFETY: inside the array, which is new.
                    unsafe { array.cast::<*mut u8>().wrapping_add(cpu).write(copy) };
                }
                Some(array)
            }),
        };
        let shortage = Shortage::Fixed { size_bytes: self.len };
        pointer.and_then(NonNull::new).ok_or(AllocError::Exhausted { size_bytes: size, align_bytes: align, shortage })
    }

    fn bump(&self, size: usize, align: usize) -> Option<*mut u8> {
        let place = |next: usize| Some(next.next_multiple_of(align)).filter(|offset| offset + size <= self.end);
        let next = self.next.fetch_update(Relaxed, Relaxed, |next| place(next).map(|offset| offset + size)).ok()?;
        Some(self.base.wrapping_add(place(next)?))
    }

    pub(crate) fn free(&self, _: *mut u8) -> Result<(), FreeError> {
        Ok(())
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: its own mapping, of which the pool's users promised to use nothing any more.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
        // SAFETY: as above.
        let _ = unsafe { munmap(self.table.cast(), self.cpu_count * 8) };
    }
}

use core::fmt;
use core::marker::PhantomData;

/// Memory with one stride for each CPU, interlaced: an object's address is `base + offset + (cpu << stride_shift)`.
///
/// A plain description, `Copy`. It does not own the memory, which is usually shared with other processes.
#[derive(Debug, Clone, Copy)]
pub struct Area {
    base: *mut u8,
    stride_shift: u32,
    count: u32,
}

// SAFETY: an address and two numbers. Whatever is done through the address is unsafe at the place where it is done, or
// goes through a type that is `Sync`, which `PerCpu::new` and `Offsets::alloc` ask for.
unsafe impl Send for Area {}
// SAFETY: nothing in an `Area` can be changed through a shared reference; what is done through the address is unsafe at its
// place, or goes through a type that is `Sync`.
unsafe impl Sync for Area {}

impl Area {
    /// Describes the area of `count` strides of `1 << stride_shift` bytes that starts at `base`.
    ///
    /// Size it by the possible CPUs, not by the affinity of the moment.
    ///
    /// # Safety
    /// All `count << stride_shift` bytes from `base` are mapped readable and writable, do not wrap around, hold values
    /// that are valid for every [`PerCpu`] used with the area, and stay so as long as any copy of it is used. Nobody
    /// holds a `&mut` into them.
    pub const unsafe fn new(base: *mut u8, stride_shift: u32, count: u32) -> Area {
        Area { base, stride_shift, count }
    }

    /// Strides.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of a stride.
    pub const fn stride_size_bytes(&self) -> usize {
        1 << self.stride_shift
    }

    /// The binary logarithm of [`Area::stride_size_bytes`].
    pub const fn stride_shift(&self) -> u32 {
        self.stride_shift
    }

    /// Where `cpu`'s object is; `None` if the area has no stride for that CPU or the object would leave its stride.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn ptr<T>(&self, object: PerCpu<T>, cpu: u32) -> Option<*mut T> {
        let fits = object.offset <= self.stride_size_bytes().checked_sub(size_of::<T>())?;
        if cpu >= self.count || !fits {
            return None;
        }
        // `wrapping_add` needs no promise; by `new`'s contract the result is inside the area.
        Some(self.base.wrapping_add(object.offset + ((cpu as usize) << self.stride_shift)).cast())
    }

    /// `cpu`'s object; `None` as for [`Area::ptr`].
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn get<T: Sync>(&self, object: PerCpu<T>, cpu: u32) -> Option<&T> {
        let ptr = self.ptr(object, cpu)?;
        if !ptr.is_aligned() {
            return None;
        }
        // SAFETY: inside the area and aligned; `new`'s caller promised valid values and that nobody holds a `&mut`.
        Some(unsafe { &*ptr })
    }
}

/// Handle of an object that every CPU has: its offset in each stride.
pub struct PerCpu<T> {
    offset: usize,
    object: PhantomData<fn() -> T>,
}

impl<T> PerCpu<T> {
    /// The object at `offset` in every stride, for layouts that are fixed elsewhere.
    ///
    /// # Safety
    /// In every area that the handle is used with, each stride holds a valid `T` there, and no other handle of another
    /// type overlaps it.
    pub const unsafe fn new(offset: usize) -> PerCpu<T> {
        PerCpu { offset, object: PhantomData }
    }

    /// Bytes from the stride's start.
    pub const fn offset(self) -> usize {
        self.offset
    }
}

impl<T> Clone for PerCpu<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PerCpu<T> {}

impl<T> fmt::Debug for PerCpu<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerCpu").field(&self.offset).finish()
    }
}

/// Hands out offsets inside a stride, one after another. What was handed out is not taken back.
#[derive(Debug)]
pub struct Offsets {
    next: usize,
    end: usize,
}

impl Offsets {
    /// Offsets from `start` up to the end of a stride of `1 << stride_shift` bytes.
    pub const fn new(start: usize, stride_shift: u32) -> Offsets {
        Offsets { next: start, end: 1 << stride_shift }
    }

    /// Room for a `T` in every stride, aligned as `T` wants it; `None` if the stride is full.
    ///
    /// Wait-free. Not async-signal-safe: it changes the allocator in place.
    ///
    /// # Safety
    /// In the area that the handle will be used with, those bytes are a valid `T` (for all of this crate's types, zeroes
    /// are), strides are aligned to `align_of::<T>()`, and no other `Offsets` hands out the same bytes.
    pub unsafe fn alloc<T>(&mut self) -> Option<PerCpu<T>> {
        let offset = self.next.checked_next_multiple_of(align_of::<T>())?;
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.end {
            return None;
        }
        self.next = end;
        // SAFETY: the caller's promise, and the bytes were not handed out before.
        Some(unsafe { PerCpu::new(offset) })
    }

    /// Bytes left, alignment aside.
    pub const fn remaining_size_bytes(&self) -> usize {
        self.end.saturating_sub(self.next)
    }
}

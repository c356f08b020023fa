use core::fmt;
use core::marker::PhantomData;

/// Memory with one stride for each CPU, interlaced: an object's address is `base + offset + (cpu << stride_shift)`.
///
/// A plain `Copy` description. It does not own the memory, which is usually shared with other processes.
#[derive(Debug, Clone, Copy)]
pub struct Area {
    base: *mut u8,
    stride_shift: u32,
    count: u32,
}

// SAFETY: an address and two numbers. Every access through the address is either unsafe where it is made, or through
// `get`, which requires a type that is `Sync`.
unsafe impl Send for Area {}
// SAFETY: nothing in an `Area` can be changed through a shared reference. Every access through the address is either
// unsafe where it is made, or through `get`, which requires a type that is `Sync`.
unsafe impl Sync for Area {}

impl Area {
    /// Describes the area of `count` strides of `1 << stride_shift` bytes that starts at `base`.
    ///
    /// Size it by the possible CPUs, not by the current affinity.
    ///
    /// # Safety
    /// All `count << stride_shift` bytes from `base` are mapped readable and writable, do not wrap around, hold values
    /// that are valid for every [`PerCpu`] used with the area, and stay so as long as any copy of it is used. No `&mut`
    /// into them exists.
    pub const unsafe fn new(base: *mut u8, stride_shift: u32, count: u32) -> Area {
        Area { base, stride_shift, count }
    }

    /// Returns the number of strides.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the size of a stride, in bytes.
    pub const fn stride_size_bytes(&self) -> usize {
        1 << self.stride_shift
    }

    /// Returns the binary logarithm of [`Area::stride_size_bytes`].
    pub const fn stride_shift(&self) -> u32 {
        self.stride_shift
    }

    /// Returns the address of `cpu`'s object; `None` if the area has no stride for that CPU or the object would exceed
    /// its stride.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn ptr<T>(&self, object: PerCpu<T>, cpu: u32) -> Option<*mut T> {
        let fits = object.offset <= self.stride_size_bytes().checked_sub(size_of::<T>())?;
        if cpu >= self.count || !fits {
            return None;
        }
        // `wrapping_add` has no safety conditions; by `new`'s contract the result is inside the area.
        Some(self.base.wrapping_add(object.offset + ((cpu as usize) << self.stride_shift)).cast())
    }

    /// Returns `cpu`'s object; `None` in the cases of [`Area::ptr`] and if the object is not aligned.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn get<T: Sync>(&self, object: PerCpu<T>, cpu: u32) -> Option<&T> {
        let ptr = self.ptr(object, cpu)?;
        if !ptr.is_aligned() {
            return None;
        }
        // SAFETY: inside the area and aligned; `new`'s caller guarantees valid values and that no `&mut` exists.
        Some(unsafe { &*ptr })
    }
}

/// Handle of an object that every CPU has: its offset in each stride, in bytes.
pub struct PerCpu<T> {
    offset: usize,
    object: PhantomData<fn() -> T>,
}

impl<T> PerCpu<T> {
    /// Returns the handle of the object at `offset` in every stride, for layouts that are fixed elsewhere.
    ///
    /// # Safety
    /// In every area that the handle is used with, each stride holds a valid `T` there, and no handle of another type
    /// overlaps it.
    pub const unsafe fn new(offset: usize) -> PerCpu<T> {
        PerCpu { offset, object: PhantomData }
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

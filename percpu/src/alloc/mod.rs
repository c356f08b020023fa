//! Pools: objects of which every CPU has a copy, allocated and freed while the program runs.

mod error;
mod heap;
mod scheme;
mod topology;

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub use error::{AllocError, Corruption, FreeError, Part, Shortage};
use heap::Heap;
use scheme::sealed::Parameters;
pub use scheme::{Contiguous, Interlaced, OffsetTable, PointerArray, Relocatable, Scheme, StaticAreas};
pub use topology::possible_cpus;

/// The largest object, per CPU, and the largest alignment.
pub const OBJECT_SIZE_BYTES_MAX: usize = 4096;

/// How a pool is made. `PoolOptions { is_robust: true, ..PoolOptions::default() }`
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// Copies of each object. Default: [`possible_cpus`]. Size it by those and not by the affinity of the moment.
    pub cpu_count: u32,
    /// Bytes that a chunk has for each CPU: whole pages, and for [`StaticAreas`] and [`Interlaced`] a power of two.
    /// Default: 64 KiB. [`PointerArray`] and [`Contiguous`] make chunks of as many bytes in all.
    pub stride_bytes: usize,
    /// The most memory for objects, all CPUs together, in bytes. Default: `usize::MAX`, none.
    pub limit_bytes: usize,
    /// Poison freed bytes, put red zones behind objects, and check both. Default: no.
    pub is_robust: bool,
    /// Leave memory untouched until it is used: CPUs that never run cost address space and no memory. Default: no, every
    /// page is there before the first object is handed out, and no access faults.
    pub is_lazy: bool,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            cpu_count: possible_cpus(),
            stride_bytes: 64 << 10,
            limit_bytes: usize::MAX,
            is_robust: false,
            is_lazy: false,
        }
    }
}

/// Memory that the caller gives to a pool, usually shared with other processes.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    base: *mut u8,
    size_bytes: usize,
}

impl Region {
    /// The `size_bytes` bytes from `base`.
    ///
    /// # Safety
    /// They are mapped readable and writable and stay so as long as the pool or the attachment that gets them, and any
    /// object of it, is used. Nobody else writes to them but through objects, and no other pool has them.
    pub const unsafe fn new(base: *mut u8, size_bytes: usize) -> Region {
        Region { base, size_bytes }
    }
}

/// Handle of an object: one word, `Copy`. What it means is the scheme's business.
#[repr(transparent)]
pub struct Object<S: Scheme = Interlaced> {
    word: NonNull<u8>,
    scheme: PhantomData<S>,
}

/// All that address computation needs. A small `Copy` value that is good as long as its pool.
pub struct View<S: Scheme = Interlaced> {
    data: S::Data,
    cpu_count: u32,
}

impl<S: Scheme> View<S> {
    /// Where `cpu`'s copy of `object` is. No locks, no search, no checks: what the scheme's formula says.
    ///
    /// Wait-free, async-signal-safe.
    ///
    /// # Safety
    /// `object` is of the pool (or attachment) that the view is of, and has not been freed; the pool lives;
    /// `cpu` is less than [`View::cpu_count`].
    #[inline(always)]
    pub unsafe fn address(self, object: Object<S>, cpu: u32) -> *mut u8 {
        debug_assert!(cpu < self.cpu_count);
        // SAFETY: the caller's promise.
        unsafe { S::address(self.data, object.word, cpu) }
    }

    /// Copies of each object.
    #[inline(always)]
    pub fn cpu_count(self) -> u32 {
        self.cpu_count
    }
}

/// Objects of which every CPU has a copy.
pub struct Pool<S: Scheme = Interlaced> {
    heap: Heap,
    view: View<S>,
    base_biased: *mut u8,
}

/// What the handles of the next pool whose handles are offsets start at. Two pools' handles do not meet before 2^31 pools.
static TAG: AtomicU32 = AtomicU32::new(1);

impl<S: Scheme> Pool<S> {
    /// A pool of private memory, which grows as far as the options and the kernel let it ([`StaticAreas`]: not at all).
    ///
    /// # Errors
    /// [`AllocError::BadOption`]; [`AllocError::Exhausted`] if the first chunk is over the limit or the kernel refuses it.
    pub fn new(options: &PoolOptions) -> Result<Pool<S>, AllocError> {
        let heap = Heap::new(S::FAMILY, options)?;
        let base = heap.base();
        let tag = if S::IS_OFFSET { (TAG.fetch_add(1, Relaxed) as usize) << 32 } else { 0 };
        let base_biased = base.wrapping_sub(tag);
        let parameters =
            Parameters { base_biased, stride_shift: options.stride_bytes.trailing_zeros(), table: heap.table() };
        Ok(Pool { view: View { data: S::data(&parameters), cpu_count: options.cpu_count }, heap, base_biased })
    }

    /// An object of `layout` for every CPU, zeroed on all of them.
    ///
    /// Blocking (a lock, and the kernel if the pool grows), from any thread.
    ///
    /// # Errors
    /// All of [`AllocError`] but [`AllocError::BadOption`].
    pub fn alloc(&self, layout: Layout) -> Result<Object<S>, AllocError> {
        let pointer = self.heap.alloc(layout.size(), layout.align())?;
        let word = if S::IS_OFFSET {
            ptr::without_provenance_mut(pointer.addr().get().wrapping_sub(self.base_biased.addr()))
        } else {
            pointer.as_ptr()
        };
        // A tag is not 0, and neither is an address of memory.
        Ok(Object { word: NonNull::new(word).unwrap_or(pointer), scheme: PhantomData })
    }

    /// An object that a `T` fits into, for every CPU. Its bytes are zeroes, which the caller has to know as a valid `T`.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub fn alloc_for<T>(&self) -> Result<Object<S>, AllocError> {
        self.alloc(Layout::new::<T>())
    }

    /// Takes an object back.
    ///
    /// # Errors
    /// [`FreeError`]: nothing has changed, except that a corrupted object is withdrawn.
    ///
    /// # Safety
    /// Nobody uses the object's bytes from now on. Handles of objects that were freed before or come from another pool are
    /// allowed: they are refused.
    pub unsafe fn free(&self, object: Object<S>) -> Result<(), FreeError> {
        self.heap.free(self.pointer(object))
    }

    /// All that address computation needs.
    pub fn view(&self) -> View<S> {
        self.view
    }

    fn pointer(&self, object: Object<S>) -> *mut u8 {
        if S::IS_OFFSET { self.base_biased.wrapping_add(object.word.addr().get()) } else { object.word.as_ptr() }
    }
}

impl<S: Scheme> Clone for Object<S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: Scheme> Copy for Object<S> {}
impl<S: Scheme> PartialEq for Object<S> {
    fn eq(&self, other: &Self) -> bool {
        self.word == other.word
    }
}
impl<S: Scheme> Eq for Object<S> {}
impl<S: Scheme> fmt::Debug for Object<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Object").field(&self.word).finish()
    }
}
// SAFETY: a word. What is done through the address that it leads to is unsafe where it is done.
unsafe impl<S: Scheme> Send for Object<S> {}
// SAFETY: as for `Send`; nothing in it can be changed through a shared reference.
unsafe impl<S: Scheme> Sync for Object<S> {}

impl<S: Scheme> Clone for View<S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: Scheme> Copy for View<S> {}
impl<S: Scheme> fmt::Debug for View<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("scheme", &S::NAME).field("cpu_count", &self.cpu_count).finish()
    }
}
// SAFETY: numbers, and addresses of what nobody writes while the pool lives.
unsafe impl<S: Scheme> Send for View<S> {}
// SAFETY: as for `Send`.
unsafe impl<S: Scheme> Sync for View<S> {}

// SAFETY: the heap takes its lock before it changes anything, and its memory belongs to no thread.
unsafe impl<S: Scheme> Send for Pool<S> {}
// SAFETY: as for `Send`.
unsafe impl<S: Scheme> Sync for Pool<S> {}

//! Pools: objects of which every CPU has a copy, allocated and freed while the program runs.
//!
//! # Layout
//!
//! ```text
//!   chunk   │ CPU 0: a₀ b₀ c₀ … │ CPU 1: a₁ b₁ c₁ … │ …        address = object + (cpu << stride_shift)
//! ```
//!
//! A handle is the address of the copy for CPU 0. The objects of one CPU share cache lines with one another, and none
//! with another CPU's.
//!
//! # Growth
//! A pool grows by chunks, each a mapping of its own, and returns no chunk before the pool is dropped. Computing an
//! address needs none of the pool's structures: the handle and the view are enough. Finding the chunk of a handle
//! (`size_of`) takes no lock either: chunks are published in a directory by a release store, which pairs with the
//! acquire of the lookup.
//!
//! # Memory
//! Each CPU's stride consists of whole os_pages, which prefer that CPU's node if there is more than one (mbind(2)), and
//! are present before the first object is allocated, unless the pool is lazy. A lazy pool has memory only where it was
//! touched: on a machine of many CPUs, a program that is confined to a few uses memory only for their strides.
//! Allocating does not change this, with two exceptions: a robust pool writes to all copies; and in a region of shared
//! memory, an os_page is present as soon as it was read.
//!
//! # Fork
//! A pool's private memory is copied, and the child's pool is its own from then on, with the same handles. A thread
//! that was inside `alloc` or `free` does not exist in the child, where it would hold the lock for ever: if other
//! threads use the pool, fork inside [`Pool::hold`]. A pool over shared memory has its records in private memory: after
//! a fork, parent and child use the same objects, and only one of them may allocate and free.
//!
//! # Robust pools
//! | place | contents | checked |
//! | --- | --- | --- |
//! | after each copy, 16 bytes or more | `0xb5` | when the object is freed, by `audit` |
//! | freed bytes, on every CPU | `0x5a` | when they are allocated again, by `audit` |
//! | bytes that were never used, except in a region | zero | when they are allocated, by `audit` |
//!
//! Corrupted memory is reported once and withdrawn: it is neither allocated nor free from then on.
//!
//! # Cost
//! Allocating and freeing take a lock (which, without contention, costs at most the time of two system calls) and a
//! first-fit search over a bitmap. Records take four bytes for every eight of a stride, in memory that is touched as it
//! is used.

mod bitmap;
mod directory;
mod error;
mod heap;
mod memory;
mod topology;

use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;

use dormouse_locks::Reentered;
pub use error::{AllocError, Corruption, MemoryKind, Requirement, Shortage};
use heap::Heap;
#[cfg(test)]
pub(crate) use memory::os_page_size_bytes;
pub(crate) use memory::{Mapping, keep_lazy};
pub use topology::possible_cpus;

use crate::area::Area;
use crate::rseq::Rseq;

/// Maximum size of an object on each CPU, and maximum alignment, in bytes.
pub const OBJECT_SIZE_BYTES_MAX: usize = 4096;

/// Options for a pool: `PoolOptions { is_robust: true, ..PoolOptions::default() }`.
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// Number of copies of each object. Default: [`possible_cpus`]. Size it by the possible CPUs, not by the current
    /// affinity.
    pub cpu_count: u32,
    /// Bytes that a chunk has for each CPU: a power of two, at least one os_page. Default: 64 KiB.
    pub stride_bytes: usize,
    /// Maximum memory for objects, over all CPUs, in bytes. Default: `usize::MAX`, no limit.
    pub limit_bytes: usize,
    /// Whether to poison freed bytes, put red zones after objects, and check both. Default: no.
    pub is_robust: bool,
    /// Whether memory is left untouched before it is used: CPUs that never run then cost address space and no memory.
    /// Default: no, every os_page is present before the first object is allocated, and no access faults.
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
    /// Returns the region of `size_bytes` bytes from `base`.
    ///
    /// # Safety
    /// The bytes are mapped readable and writable and stay so as long as the pool or the attachment that gets them, and
    /// any object of it, is used. They are only written through objects, and no other pool uses them.
    pub const unsafe fn new(base: *mut u8, size_bytes: usize) -> Region {
        Region { base, size_bytes }
    }
}

/// Handle of an object: the address of its copy for CPU 0, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Object(NonNull<u8>);

// SAFETY: a word. Every access through the address is unsafe where it is made.
unsafe impl Send for Object {}
// SAFETY: nothing in it can be changed through a shared reference; every access through the address is unsafe where it
// is made.
unsafe impl Sync for Object {}

impl Object {
    /// Returns the handle as a word, for other languages.
    pub fn into_raw(self) -> NonNull<u8> {
        self.0
    }

    /// Returns the handle of a word that [`Object::into_raw`] returned. Any other word is not a handle of an object:
    /// [`Pool::free`] refuses it.
    pub fn from_raw(word: NonNull<u8>) -> Object {
        Object(word)
    }

    fn address(self) -> usize {
        self.0.addr().get()
    }
}

/// The numbers that address computation needs. A small `Copy` value that is valid as long as its pool.
#[derive(Debug, Clone, Copy)]
pub struct View {
    stride_shift: u32,
    cpu_count: u32,
}

impl View {
    fn new(options: &PoolOptions) -> View {
        View { stride_shift: options.stride_bytes.trailing_zeros(), cpu_count: options.cpu_count }
    }

    /// Returns the view of an area of the caller's.
    pub fn of_area(area: Area) -> View {
        View { stride_shift: area.stride_shift(), cpu_count: area.count() }
    }

    /// Returns the address of `cpu`'s copy of `object`. No locks, no search, no checks: an addition and a shift.
    ///
    /// Wait-free, async-signal-safe.
    ///
    /// # Safety
    /// `object` belongs to the pool (or attachment) of this view, and has not been freed; the pool lives; `cpu` is less
    /// than [`View::cpu_count`].
    #[inline(always)]
    pub unsafe fn address(self, object: Object, cpu: u32) -> *mut u8 {
        debug_assert!(cpu < self.cpu_count);
        object.0.as_ptr().wrapping_add((cpu as usize) << (self.stride_shift & 63))
    }

    /// Adds `n`, wrapping, to the copy of the CPU that the thread is on. False: aborted, or the thread is not
    /// registered, or it is on a CPU without a copy; nothing has been added. The section computes the address by
    /// itself, which is the quickest way to add.
    ///
    /// Wait-free (one attempt), async-signal-safe.
    ///
    /// # Safety
    /// The conditions of [`View::address`], for every CPU. Each copy begins with an aligned `u64`, which only sections
    /// on that CPU write.
    #[inline(always)]
    #[must_use = "an aborted section has added nothing"]
    pub unsafe fn add(self, rseq: Rseq, object: Object, n: u64) -> bool {
        // SAFETY: the caller guarantees that each CPU's copy begins with an aligned word that only sections on that CPU
        // write.
        unsafe { rseq.add_by_stride(object.0.as_ptr().cast(), self.stride_shift, self.cpu_count, n) }
    }

    /// Returns the binary logarithm of the distance between copies, in bytes.
    #[inline(always)]
    pub fn stride_shift(self) -> u32 {
        self.stride_shift
    }

    /// Returns the number of copies of each object.
    #[inline(always)]
    pub fn cpu_count(self) -> u32 {
        self.cpu_count
    }
}

/// An allocator of objects of which every CPU has a copy.
pub struct Pool {
    heap: Heap,
    view: View,
}

// SAFETY: the heap takes its lock before it changes anything, and its memory belongs to no thread.
unsafe impl Send for Pool {}
// SAFETY: every change through a shared reference is made under the heap's lock, or to atomics.
unsafe impl Sync for Pool {}

/// Number of live objects of one size. Laid out like the C structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Leak {
    /// Size of each copy as requested, in bytes.
    pub size_bytes: usize,
    /// Number of objects.
    pub count: usize,
}

/// Contents and limits of a pool. Laid out like the C structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[non_exhaustive]
pub struct Usage {
    /// Number of live objects.
    pub object_count: usize,
    /// Sum of their sizes as requested, for one CPU, in bytes.
    pub object_bytes: usize,
    /// Number of chunks.
    pub chunk_count: usize,
    /// Memory for objects, over all CPUs, in bytes.
    pub mapped_bytes: usize,
    /// Memory that was found corrupted and is never allocated again, over all CPUs, in bytes.
    pub withdrawn_bytes: usize,
    /// Maximum size of an object that the pool can allocate, in bytes.
    pub size_bytes_max: usize,
    /// Maximum alignment that the pool can allocate, in bytes.
    pub align_bytes_max: usize,
}

impl Pool {
    /// Makes a pool of private memory, which grows as far as the options and the kernel allow.
    ///
    /// # Errors
    /// [`AllocError::BadOption`]; [`AllocError::Exhausted`] if the first chunk is over the limit or the kernel refuses
    /// it.
    pub fn new(options: &PoolOptions) -> Result<Pool, AllocError> {
        heap::check_options(options)?;
        Pool::with(options, None)
    }

    /// Makes a pool of memory that the caller gives: the first `cpu_count * stride_bytes` bytes of the region, which
    /// must be aligned to 8 bytes. The pool does not grow. It neither touches the memory in advance nor prefers nodes
    /// for it; the caller may do so. Allocating objects overwrites the contents of the region.
    ///
    /// Records are in this process's memory, so only this process allocates and frees. Other processes
    /// [attach](Attached) and receive offsets.
    ///
    /// # Errors
    /// [`AllocError::BadOption`], also for a region that is too small or not aligned; [`AllocError::Exhausted`] if the
    /// region is over the limit or the kernel refuses memory for the records.
    pub fn in_region(region: Region, options: &PoolOptions) -> Result<Pool, AllocError> {
        heap::check_options(options)?;
        heap::check_region(options, region)?;
        Pool::with(options, Some(region))
    }

    fn with(options: &PoolOptions, region: Option<Region>) -> Result<Pool, AllocError> {
        let heap = Heap::new(options, region, topology::nodes)?;
        Ok(Pool { heap, view: View::new(options) })
    }

    /// Allocates an object of `layout` for every CPU, zeroed on all of them. An object of no bytes has an address of
    /// its own too.
    ///
    /// Blocking (a lock, and the kernel if the pool grows), from any thread. Not async-signal-safe, but a handler that
    /// interrupts its own thread here gets an error instead of a deadlock. Never calls malloc.
    ///
    /// # Errors
    /// [`AllocError`], except [`AllocError::BadOption`] and the two about handles.
    pub fn alloc(&self, layout: Layout) -> Result<Object, AllocError> {
        self.heap.alloc(layout.size(), layout.align()).map(Object)
    }

    /// Allocates an object that a `T` fits into, for every CPU. Its bytes are zeroes; the caller must know that they
    /// are a valid `T`.
    ///
    /// # Errors
    /// The errors of [`Pool::alloc`].
    pub fn alloc_for<T>(&self) -> Result<Object, AllocError> {
        self.alloc(Layout::new::<T>())
    }

    /// Frees an object. A later object that fits may get its bytes.
    ///
    /// Blocking (a lock), from any thread. Not async-signal-safe, like [`Pool::alloc`].
    ///
    /// # Errors
    /// [`AllocError::DoubleFree`], [`AllocError::Foreign`], [`AllocError::Corrupted`], [`AllocError::Reentered`]. In
    /// each case nothing has changed, except that a corrupted object is withdrawn. A handle that was freed before is
    /// recognised until its place is given to another object; after that, if no object starts there, it is reported as
    /// foreign.
    ///
    /// # Safety
    /// The object's bytes are not used from now on. Handles of objects that were freed before or belong to another pool
    /// are allowed: they are refused.
    pub unsafe fn free(&self, object: Object) -> Result<(), AllocError> {
        self.heap.free(object.address())
    }

    /// Returns the numbers that address computation needs. Keep a copy where it is used.
    pub fn view(&self) -> View {
        self.view
    }

    /// Returns the size with which a live object was allocated, in bytes; `None` for any other handle.
    ///
    /// Wait-free, async-signal-safe.
    pub fn size_of(&self, object: Object) -> Option<usize> {
        self.heap.size_of(object.address())
    }

    /// Returns the offset of the object in the pool's memory, in bytes, for another process that has
    /// [attached](Attached) to it, or for [`Pool::object_at`]. `None` if the object is not allocated, or if the pool
    /// can grow, because its memory is then not contiguous.
    ///
    /// Wait-free, async-signal-safe.
    pub fn offset_of(&self, object: Object) -> Option<usize> {
        self.size_of(object)?;
        self.heap.is_fixed().then(|| object.address() - self.heap.base().addr())
    }

    /// Returns the live object at an offset that [`Pool::offset_of`] returned.
    ///
    /// Wait-free, async-signal-safe.
    pub fn object_at(&self, offset: usize) -> Option<Object> {
        let object = Object(NonNull::new(self.heap.base().wrapping_add(offset))?);
        (self.heap.is_fixed() && self.size_of(object).is_some()).then_some(object)
    }

    /// Iterates over the sizes of allocated objects, smallest first: just before the pool is dropped, these objects
    /// were never freed.
    ///
    /// Wait-free. An object that is allocated or freed at the same time may be counted or not.
    pub fn leaks(&self) -> impl Iterator<Item = Leak> {
        let mut from = 0;
        core::iter::from_fn(move || {
            let leak = self.heap.leak_from(from)?;
            from = leak.size_bytes + 1;
            Some(leak)
        })
    }

    /// Checks all red zones and free bytes, if the pool is robust. Nothing is withdrawn.
    ///
    /// Blocking: the pool is locked during the check.
    ///
    /// # Errors
    /// [`AllocError::Corrupted`] for the first byte that is wrong; [`AllocError::Reentered`].
    pub fn audit(&self) -> Result<(), AllocError> {
        self.heap.audit()
    }

    /// Returns the contents and limits of the pool. Wait-free; each number is read separately.
    pub fn usage(&self) -> Usage {
        self.heap.usage()
    }

    /// Runs `work` while no thread is inside `alloc` or `free`. If `work` forks, the child finds the pool in a
    /// consistent state, and in the child, too, the pool is unlocked when `work` returns. `work` must not call the
    /// loader, whose constructors may wait for the pool.
    ///
    /// Blocking.
    ///
    /// # Errors
    /// [`AllocError::Reentered`] if this thread is already inside the pool; `work` has not run.
    pub fn hold<R>(&self, work: impl FnOnce() -> R) -> Result<R, AllocError> {
        self.heap.hold(work).map_err(|Reentered| AllocError::Reentered)
    }
}

/// A region in which another process (or another pool of this process) allocates, mapped here at any address.
///
/// The allocating side passes offsets, from which addresses are computed here in the same way. Both sides need equal
/// options.
#[derive(Debug)]
pub struct Attached {
    region: Region,
    view: View,
}

// SAFETY: an address in memory that belongs to no thread, and which this type does not change.
unsafe impl Send for Attached {}
// SAFETY: a shared reference only returns addresses.
unsafe impl Sync for Attached {}

impl Attached {
    /// Attaches to `region`, whose pool was made with the same `cpu_count` and `stride_bytes`.
    ///
    /// # Errors
    /// [`AllocError::BadOption`], as for [`Pool::in_region`].
    pub fn new(region: Region, options: &PoolOptions) -> Result<Attached, AllocError> {
        heap::check_options(options)?;
        heap::check_region(options, region)?;
        let size_bytes = options.stride_bytes * options.cpu_count as usize;
        Ok(Attached { region: Region { size_bytes, ..region }, view: View::new(options) })
    }

    /// Returns the object at an offset that [`Pool::offset_of`] returned; `None` if no copy for CPU 0 can be there.
    /// Only its pool knows whether an object is allocated there.
    ///
    /// Wait-free, async-signal-safe.
    pub fn object_at(&self, offset: usize) -> Option<Object> {
        let at = NonNull::new(self.region.base.wrapping_add(offset));
        at.filter(|_| offset < self.region.size_bytes).map(Object)
    }

    /// Returns the numbers that address computation needs.
    pub fn view(&self) -> View {
        self.view
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("view", &self.view).field("usage", &self.usage()).finish()
    }
}

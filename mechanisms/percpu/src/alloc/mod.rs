//! Pools: objects of which every CPU has a copy, allocated and freed while the program runs.
//!
//! # The layout
//!
//! ```text
//!   chunk   │ CPU 0: a₀ b₀ c₀ … │ CPU 1: a₁ b₁ c₁ … │ …        address = object + (cpu << stride_shift)
//! ```
//!
//! A handle is the address of the copy for CPU 0. The objects of one CPU share cache lines with one another and none with another
//! CPU's.
//!
//! # Growth
//! A pool grows by chunks, each a mapping of its own, and gives none back before it is dropped. Computing an address
//! needs none of the pool's structures: the handle and the view are enough. Finding the chunk of a handle (`size_of`)
//! takes no lock either: chunks are published in a directory by a release store, which pairs with the acquire of the
//! lookup.
//!
//! # Which memory
//! Each CPU's stride consists of whole pages, which prefer that CPU's node if there is more than one (mbind(2)), and
//! are present before the first object is handed out, unless the pool is lazy. A lazy pool has memory only where it was touched: on
//! a machine of many CPUs, a program that is confined to a few pays for their strides alone. Allocating does not change
//! this. A robust pool does, because it writes to all copies, and so does a region of shared memory, of which a page is
//! present as soon as it was read.
//!
//! # Fork
//! A pool's private memory is copied, and the child's pool is its own from then on, with the same handles. A thread that
//! was inside `alloc` or `free` does not exist in the child, and would hold the lock there for ever: if other threads
//! use the pool, fork inside [`Pool::hold`]. A pool over shared memory has its records in private memory: after a fork
//! parent and child use the same objects, and only one of them may allocate and free.
//!
//! # Robust pools
//! | where | holds | checked |
//! | --- | --- | --- |
//! | behind each copy, 16 bytes or more | `0xb5` | when the object is freed, by `audit` |
//! | freed bytes, on every CPU | `0x5a` | when they are allocated again, by `audit` |
//! | bytes that were never used, except in a region | zero | when they are allocated, by `audit` |
//!
//! Corrupted memory is reported once and withdrawn: it is neither allocated nor free from then on.
//!
//! # Cost
//! Allocating and freeing take a lock (at most the time of two system calls when nobody waits) and a first-fit search over a
//! bitmap. Records cost four bytes for every eight of a stride, in memory that is touched as it is used.

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
pub use error::{AllocError, Corruption, Need, Part, Shortage};
use heap::Heap;
pub use topology::possible_cpus;

use crate::rseq::Rseq;

/// The largest object, per CPU, and the largest alignment.
pub const OBJECT_SIZE_BYTES_MAX: usize = 4096;

/// How a pool is made. `PoolOptions { is_robust: true, ..PoolOptions::default() }`
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// Copies of each object. Default: [`possible_cpus`]. Size it by those and not by the affinity of the moment.
    pub cpu_count: u32,
    /// Bytes that a chunk has for each CPU: a power of two, at least a page. Default: 64 KiB.
    pub stride_bytes: usize,
    /// The most memory for objects, all CPUs together, in bytes. Default: `usize::MAX`, no limit.
    pub limit_bytes: usize,
    /// Poison freed bytes, put red zones behind objects, and check both. Default: no.
    pub is_robust: bool,
    /// Do not touch memory before it is used: CPUs that never run cost address space and no memory. Default: no, every
    /// page is present before the first object is handed out, and no access faults.
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
    /// object of it, is used. Nobody else writes to them except through objects, and no other pool uses them.
    pub const unsafe fn new(base: *mut u8, size_bytes: usize) -> Region {
        Region { base, size_bytes }
    }
}

/// Handle of an object: the address of its copy for CPU 0, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Object(NonNull<u8>);

// SAFETY: a word. What is done through the address is unsafe where it is done.
unsafe impl Send for Object {}
// SAFETY: nothing in it can be changed through a shared reference; what is done through the address is unsafe where it is
// done.
unsafe impl Sync for Object {}

impl Object {
    /// The handle as a word, for other languages.
    pub fn into_raw(self) -> NonNull<u8> {
        self.0
    }

    /// The handle of a word that [`Object::into_raw`] gave. Any other word is a handle of no object: [`Pool::free`] refuses
    /// it.
    pub fn from_raw(word: NonNull<u8>) -> Object {
        Object(word)
    }

    fn address(self) -> usize {
        self.0.addr().get()
    }
}

/// Everything that address computation needs. A small `Copy` value that is valid as long as its pool.
#[derive(Debug, Clone, Copy)]
pub struct View {
    stride_shift: u32,
    cpu_count: u32,
}

impl View {
    fn new(options: &PoolOptions) -> View {
        View { stride_shift: options.stride_bytes.trailing_zeros(), cpu_count: options.cpu_count }
    }

    /// The address of `cpu`'s copy of `object`. No locks, no search, no checks: an addition and a shift.
    ///
    /// Wait-free, async-signal-safe.
    ///
    /// # Safety
    /// `object` is of the pool (or attachment) that the view is of, and has not been freed; the pool lives;
    /// `cpu` is less than [`View::cpu_count`].
    #[inline(always)]
    pub unsafe fn address(self, object: Object, cpu: u32) -> *mut u8 {
        debug_assert!(cpu < self.cpu_count);
        object.0.as_ptr().wrapping_add((cpu as usize) << (self.stride_shift & 63))
    }

    /// Adds `n`, wrapping, to the copy of the CPU that the thread is on. False: aborted, or the thread is not registered;
    /// nothing has been added. The section computes the address by itself, which is the quickest way to add.
    ///
    /// Wait-free (one attempt), async-signal-safe.
    ///
    /// # Safety
    /// As [`View::address`]. The object begins with a `u64` on every CPU, aligned, which only sections on
    /// that CPU write.
    #[inline(always)]
    #[must_use = "an aborted section has added nothing"]
    pub unsafe fn add(self, rseq: Rseq, object: Object, n: u64) -> bool {
        // SAFETY: the caller's promise.
        unsafe { rseq.add_by_stride(object.0.as_ptr().cast(), self.stride_shift, self.cpu_count, n) }
    }

    #[inline(always)]
    pub(crate) fn stride_shift(self) -> u32 {
        self.stride_shift
    }

    /// Copies of each object.
    #[inline(always)]
    pub fn cpu_count(self) -> u32 {
        self.cpu_count
    }
}

/// Objects of which every CPU has a copy.
pub struct Pool {
    heap: Heap,
    view: View,
}

// SAFETY: the heap takes its lock before it changes anything, and its memory belongs to no thread.
unsafe impl Send for Pool {}
// SAFETY: every change through a shared reference is made under the heap's lock, or to atomics.
unsafe impl Sync for Pool {}

/// Live objects of one size. Laid out as C does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Leak {
    /// Bytes of each copy, as asked for.
    pub size_bytes: usize,
    /// Objects.
    pub count: usize,
}

/// What a pool contains, and what it can allocate. Laid out as C does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
#[non_exhaustive]
pub struct Usage {
    /// Live objects.
    pub object_count: usize,
    /// Their sizes as asked for, added up, for one CPU.
    pub object_bytes: usize,
    /// Chunks.
    pub chunk_count: usize,
    /// Memory for objects, all CPUs together.
    pub mapped_bytes: usize,
    /// Bytes of that memory that were found corrupted and are never allocated again.
    pub withdrawn_bytes: usize,
    /// The largest object that the pool can allocate.
    pub size_bytes_max: usize,
    /// The largest alignment that the pool can allocate.
    pub align_bytes_max: usize,
}

impl Pool {
    /// A pool of private memory, which grows as far as the options and the kernel allow.
    ///
    /// # Errors
    /// [`AllocError::BadOption`]; [`AllocError::Exhausted`] if the first chunk is over the limit or the kernel refuses it.
    pub fn new(options: &PoolOptions) -> Result<Pool, AllocError> {
        heap::check_options(options)?;
        Pool::with(options, None)
    }

    /// A pool of memory that the caller gives: of its first `cpu_count * stride_bytes` bytes, aligned to 8 bytes. It does not
    /// grow. The pool neither touches the memory in advance nor prefers nodes for it: the caller may. The contents of the region
    /// are overwritten as objects are allocated.
    ///
    /// Records lie in this process: only this process allocates and frees. Others [attach](Attached) and are told offsets.
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

    /// An object of `layout` for every CPU, zeroed on all of them. An object of no bytes has an address of its own too.
    ///
    /// Blocking (a lock, and the kernel if the pool grows), from any thread. Not async-signal-safe, but a handler that
    /// interrupts its own thread here gets an error instead of a deadlock. Never calls malloc.
    ///
    /// # Errors
    /// [`AllocError`], but neither [`AllocError::BadOption`] nor the two of handles.
    pub fn alloc(&self, layout: Layout) -> Result<Object, AllocError> {
        self.heap.alloc(layout.size(), layout.align()).map(Object)
    }

    /// An object that a `T` fits into, for every CPU. Its bytes are zeroes; the caller must know that they are a valid `T`.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub fn alloc_for<T>(&self) -> Result<Object, AllocError> {
        self.alloc(Layout::new::<T>())
    }

    /// Frees an object. Its bytes are given to a later object that fits.
    ///
    /// Blocking (a lock), from any thread. Not async-signal-safe, as [`Pool::alloc`].
    ///
    /// # Errors
    /// [`AllocError::DoubleFree`], [`AllocError::Foreign`], [`AllocError::Corrupted`], [`AllocError::Reentered`]. Nothing has changed, except that a corrupted object is withdrawn. A handle that was freed before is
    /// recognised until its place is given to another object; after that, if no object starts there, it counts as foreign.
    ///
    /// # Safety
    /// Nobody uses the object's bytes from now on. Handles of objects that were freed before or come from another pool are
    /// allowed: they are refused.
    pub unsafe fn free(&self, object: Object) -> Result<(), AllocError> {
        self.heap.free(object.address())
    }

    /// Everything that address computation needs. Keep it where it is used.
    pub fn view(&self) -> View {
        self.view
    }

    /// The size with which a live object was allocated, in bytes; `None` for any other handle.
    ///
    /// Wait-free, async-signal-safe.
    pub fn size_of(&self, object: Object) -> Option<usize> {
        self.heap.size_of(object.address())
    }

    /// The offset of the object in the pool's memory, for another process that has [attached](Attached) to it, or for
    /// [`Pool::object_at`]. `None` if the object is not allocated, or if the pool's memory is not of one piece (it grows).
    ///
    /// Wait-free, async-signal-safe.
    pub fn offset_of(&self, object: Object) -> Option<usize> {
        self.size_of(object)?;
        self.heap.is_fixed().then(|| object.address() - self.heap.base().addr())
    }

    /// The live object whose offset this is.
    ///
    /// Wait-free, async-signal-safe.
    pub fn object_at(&self, offset: usize) -> Option<Object> {
        let object = Object(NonNull::new(self.heap.base().wrapping_add(offset))?);
        (self.heap.is_fixed() && self.size_of(object).is_some()).then_some(object)
    }

    /// Allocated objects by size, smallest first: just before the pool is dropped, these were never freed.
    ///
    /// Wait-free. An object that others allocate or free at the same time may be in it or not.
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
    /// Blocking: the pool is locked meanwhile.
    ///
    /// # Errors
    /// [`AllocError::Corrupted`] for the first byte that is wrong; [`AllocError::Reentered`].
    pub fn audit(&self) -> Result<(), AllocError> {
        self.heap.audit()
    }

    /// What the pool contains, and what it can allocate. Wait-free; each number is read by itself.
    pub fn usage(&self) -> Usage {
        self.heap.usage()
    }

    /// Runs `work` while no thread is inside `alloc` or `free`. If `work` forks, the child finds the pool in a consistent state.
    /// In the child, too, the pool is unlocked when `work` returns. `work` must not call the loader, whose
    /// constructors may wait for the pool.
    ///
    /// Blocking.
    ///
    /// # Errors
    /// [`AllocError::Reentered`] if this thread is inside the pool already; `work` has not run.
    pub fn hold<R>(&self, work: impl FnOnce() -> R) -> Result<R, AllocError> {
        self.heap.hold(work).map_err(|Reentered| AllocError::Reentered)
    }
}

/// A region in which another process (or another pool of this process) allocates, mapped here at any address.
///
/// The allocating side tells it offsets, and it computes addresses from them in the same way. Both sides need the same
/// options.
#[derive(Debug)]
pub struct Attached {
    region: Region,
    view: View,
}

// SAFETY: an address in memory that belongs to no thread, and which it does not change.
unsafe impl Send for Attached {}
// SAFETY: through a shared reference it only tells addresses.
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

    /// The object at an offset that [`Pool::offset_of`] gave; `None` if no copy for CPU 0 can be there. Only its pool knows whether an
    /// object is allocated there.
    ///
    /// Wait-free, async-signal-safe.
    pub fn object_at(&self, offset: usize) -> Option<Object> {
        let at = NonNull::new(self.region.base.wrapping_add(offset));
        at.filter(|_| offset < self.region.size_bytes).map(Object)
    }

    /// All that address computation needs.
    pub fn view(&self) -> View {
        self.view
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("view", &self.view).field("usage", &self.usage()).finish()
    }
}

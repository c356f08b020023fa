//! Pools: objects of which every CPU has a copy, allocated and freed while the program runs.
//!
//! # The five schemes
//!
//! ```text
//!   StaticAreas    base + offset + (cpu << shift)      │ a₀ b₀ c₀ │ a₁ b₁ c₁ │          one area, for ever
//!   Interlaced     object + (cpu << shift)             │ a₀ b₀ c₀ │ a₁ b₁ c₁ │          by chunks
//!   OffsetTable    object + table[cpu]                 │ a₀ b₀ c₀ │ a₁ b₁ c₁ │          by chunks; one table for all
//!   Contiguous     object + (cpu << shift of object)   │ a₀ . │ a₁ . │ b₀ . │ b₁ . │    whole cache lines
//!   PointerArray   object[cpu]                         │ a[] │ a₀ . │ a₁ . │ b[] │ …    whole cache lines, and an array
//! ```
//!
//! Interlaced, the objects of one CPU share cache lines with one another and none with another CPU's. In the last two,
//! every copy has lines to itself.
//!
//! # Growth
//! A pool grows by chunks, each a mapping of its own, and gives none back before it is dropped. Computing an address
//! needs none of the pool's structures: the handle and the view are enough. Finding the chunk of a handle (`size_of`,
//! `area_of`) takes no lock either: chunks are published in a directory by a release store, which pairs with the acquire
//! of the lookup.
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
//! bitmap. Records cost four bytes for every eight of a stride (for every cache line where copies fill lines), in memory
//! that is touched as it is used.

mod bitmap;
mod directory;
mod error;
mod heap;
mod memory;
mod scheme;
mod topology;

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use dormouse_locks::Reentered;
pub use error::{AllocError, Corruption, FreeError, Need, Part, Shortage};
use heap::Heap;
use memory::Mapping;
use scheme::sealed::Parameters;
pub use scheme::{Contiguous, Interlaced, OffsetTable, PointerArray, Relocatable, Scheme, StaticAreas};
pub use topology::possible_cpus;

use crate::area::{Area, PerCpu};
use crate::rseq::Rseq;

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

/// Handle of an object: one word, `Copy`. Its meaning depends on the scheme.
#[repr(transparent)]
pub struct Object<S: Scheme = Interlaced> {
    word: NonNull<u8>,
    scheme: PhantomData<S>,
}

/// Everything that address computation needs. A small `Copy` value that is valid as long as its pool.
pub struct View<S: Scheme = Interlaced> {
    data: S::Data,
    cpu_count: u32,
}

impl<S: Scheme> View<S> {
    /// The address of `cpu`'s copy of `object`. No locks, no search, no checks: only the scheme's formula.
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
    pub unsafe fn add(self, rseq: Rseq, object: Object<S>, n: u64) -> bool {
        // SAFETY: the caller's promise.
        unsafe { S::add(self.data, object.word, self.cpu_count, rseq, n) }
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
    /// What offsets are added to if handles are offsets: the base minus the pool's tag.
    base_biased: *mut u8,
}

/// Live objects of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leak {
    /// Bytes of each copy, as asked for.
    pub size_bytes: usize,
    /// Objects.
    pub count: usize,
}

/// What a pool contains, and what it can allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// What the handles of the next pool with offsets as handles start at, in units of [`TAG_STEP_BYTES`].
static TAG: AtomicU32 = AtomicU32::new(1);
/// No area is that long, so the handles of two pools never overlap: a handle of another pool is recognised.
const TAG_STEP_BYTES: usize = 1 << 41;
/// Tags start over after so many pools.
const TAG_COUNT: u32 = 1 << 20;

/// `base`, minus the tag of a new pool if handles are offsets.
fn bias<S: Scheme>(base: *mut u8) -> *mut u8 {
    if !S::IS_OFFSET {
        return base;
    }
    // Not 0: a handle is not a null pointer.
    let tag = TAG.fetch_add(1, Relaxed) % TAG_COUNT + 1;
    base.wrapping_sub(tag as usize * TAG_STEP_BYTES)
}

/// The handle of what lies at `at`, in a pool or attachment with this bias.
fn handle<S: Scheme>(at: *mut u8, base_biased: *mut u8) -> Option<Object<S>> {
    let word = if S::IS_OFFSET { ptr::without_provenance_mut(at.addr().wrapping_sub(base_biased.addr())) } else { at };
    NonNull::new(word).map(|word| Object { word, scheme: PhantomData })
}

impl<S: Scheme> Pool<S> {
    /// A pool of private memory, which grows as far as the options and the kernel allow ([`StaticAreas`]: not at all).
    ///
    /// # Errors
    /// [`AllocError::BadOption`]; [`AllocError::Exhausted`] if the first chunk is over the limit or the kernel refuses it.
    pub fn new(options: &PoolOptions) -> Result<Pool<S>, AllocError> {
        heap::check_options(S::FAMILY, S::IS_SHIFTED, options)?;
        Pool::with(options, None)
    }

    /// A pool of memory that the caller gives: of its first `cpu_count * stride_bytes` bytes, aligned to 8 bytes, for
    /// [`PointerArray`] and [`Contiguous`] to 64. It does not grow. The pool neither touches the memory in advance nor prefers nodes for it: the
    /// caller may. The contents of the region are overwritten as objects are allocated.
    ///
    /// Records lie in this process: only this process allocates and frees. Others [attach](Attached) and are told offsets.
    ///
    /// # Errors
    /// [`AllocError::BadOption`], also for a region that is too small or not aligned; [`AllocError::Exhausted`] if the
    /// region is over the limit or the kernel refuses memory for the records.
    pub fn in_region(region: Region, options: &PoolOptions) -> Result<Pool<S>, AllocError> {
        heap::check_options(S::FAMILY, S::IS_SHIFTED, options)?;
        heap::check_region(S::FAMILY, options, region)?;
        Pool::with(options, Some(region))
    }

    fn with(options: &PoolOptions, region: Option<Region>) -> Result<Pool<S>, AllocError> {
        let heap = Heap::new(S::FAMILY, S::IS_FIXED, options, region, topology::nodes)?;
        let base_biased = bias::<S>(heap.base());
        let stride_shift = options.stride_bytes.trailing_zeros();
        let parameters = Parameters { base_biased, stride_shift, table: heap.table() };
        Ok(Pool { view: View { data: S::data(&parameters), cpu_count: options.cpu_count }, heap, base_biased })
    }

    /// An object of `layout` for every CPU, zeroed on all of them. An object of no bytes has an address of its own too.
    ///
    /// Blocking (a lock, and the kernel if the pool grows), from any thread. Not async-signal-safe, but a handler that
    /// interrupts its own thread here gets an error instead of a deadlock. Never calls malloc.
    ///
    /// # Errors
    /// All of [`AllocError`] but [`AllocError::BadOption`].
    pub fn alloc(&self, layout: Layout) -> Result<Object<S>, AllocError> {
        let at = self.heap.alloc(layout.size(), layout.align())?;
        // Tags are not 0, so the handle is no null pointer.
        Ok(handle(at.as_ptr(), self.base_biased).unwrap_or(Object { word: at, scheme: PhantomData }))
    }

    /// An object that a `T` fits into, for every CPU. Its bytes are zeroes; the caller must know that they are a valid `T`.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub fn alloc_for<T>(&self) -> Result<Object<S>, AllocError> {
        self.alloc(Layout::new::<T>())
    }

    /// Frees an object. Its bytes are given to a later object that fits.
    ///
    /// Blocking (a lock), from any thread. Not async-signal-safe, as [`Pool::alloc`].
    ///
    /// # Errors
    /// [`FreeError`]. Nothing has changed, except that a corrupted object is withdrawn. A handle that was freed before is
    /// recognised until its place is given to another object or, for [`PointerArray`], has been tried for one; after that, if
    /// no object starts there, it counts as foreign.
    ///
    /// # Safety
    /// Nobody uses the object's bytes from now on. Handles of objects that were freed before or come from another pool are
    /// allowed: they are refused.
    pub unsafe fn free(&self, object: Object<S>) -> Result<(), FreeError> {
        self.heap.free(self.at(object).addr())
    }

    /// Everything that address computation needs. Keep it where it is used.
    pub fn view(&self) -> View<S> {
        self.view
    }

    /// The size with which a live object was allocated, in bytes; `None` for any other handle.
    ///
    /// Wait-free, async-signal-safe.
    pub fn size_of(&self, object: Object<S>) -> Option<usize> {
        self.heap.size_of(self.at(object).addr())
    }

    /// The offset of the object in the pool's memory, for another process that has [attached](Attached) to it, or for
    /// [`Pool::object_at`]. `None` if the object is not allocated, or if the pool's memory is not of one piece (it grows).
    ///
    /// Wait-free, async-signal-safe.
    pub fn offset_of(&self, object: Object<S>) -> Option<usize> {
        let at = self.at(object).addr();
        self.heap.size_of(at)?;
        self.heap.is_fixed().then(|| at - self.heap.base().addr())
    }

    /// The live object whose offset this is.
    ///
    /// Wait-free, async-signal-safe.
    pub fn object_at(&self, offset: usize) -> Option<Object<S>> {
        let at = self.heap.base().wrapping_add(offset);
        let is_live = self.heap.is_fixed() && self.heap.size_of(at.addr()).is_some();
        handle(at, self.base_biased).filter(|_| is_live)
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

    /// Drops the pool, and first reports what was never freed, by size, smallest first.
    pub fn close(self, leaked: impl FnMut(Leak)) {
        self.leaks().for_each(leaked);
    }

    /// Checks all red zones and free bytes (robust), and all arrays of pointers. Nothing is withdrawn.
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

    /// The address of the handle in the pool's memory.
    fn at(&self, object: Object<S>) -> *mut u8 {
        if S::IS_OFFSET { self.base_biased.wrapping_add(object.word.addr().get()) } else { object.word.as_ptr() }
    }
}

/// A scheme whose chunks are [`Area`]s: [`StaticAreas`] and [`Interlaced`].
pub trait AreaScheme: Relocatable {}
impl AreaScheme for StaticAreas {}
impl AreaScheme for Interlaced {}

impl<S: AreaScheme> Pool<S> {
    /// The object in the form that code over an [`Area`] takes: the area of its chunk, and its place there. `None` if the object
    /// is not allocated, or is too small or not aligned for a `T`.
    ///
    /// Wait-free, async-signal-safe.
    ///
    /// # Safety
    /// Both are used only as long as the object lives; what its copies hold is valid for `T`; and nobody holds a `&mut` into
    /// them.
    pub unsafe fn area_of<T>(&self, object: Object<S>) -> Option<(Area, PerCpu<T>)> {
        let at = self.at(object);
        let size_bytes = self.heap.size_of(at.addr())?;
        let base = self.heap.chunk_base(at.addr())?;
        if size_bytes < size_of::<T>() || !at.cast::<T>().is_aligned() {
            return None;
        }
        // SAFETY: a chunk has a stride for each CPU, of whole pages, which stay as long as the pool.
        let area = unsafe { Area::new(base, self.heap.stride_shift(), self.view.cpu_count) };
        // SAFETY: the object's place; the caller promises the values.
        let place = unsafe { PerCpu::new(at.addr() - base.addr()) };
        Some((area, place))
    }
}

/// A region in which another process (or another pool of this process) allocates, mapped here at any address.
///
/// The allocating side tells it offsets, and it computes addresses from them in the same way. Both sides need the same
/// options.
pub struct Attached<S: Relocatable = Interlaced> {
    region: Region,
    view: View<S>,
    base_biased: *mut u8,
    /// A table of offsets belongs to the process that uses it.
    _table: Mapping,
}

impl<S: Relocatable> Attached<S> {
    /// Attaches to `region`, whose pool was made with the same `cpu_count` and `stride_bytes`.
    ///
    /// # Errors
    /// [`AllocError::BadOption`], as for [`Pool::in_region`]; [`AllocError::Exhausted`] if the kernel refuses memory for a
    /// table.
    pub fn new(region: Region, options: &PoolOptions) -> Result<Attached<S>, AllocError> {
        heap::check_options(S::FAMILY, S::IS_SHIFTED, options)?;
        heap::check_region(S::FAMILY, options, region)?;
        let table = heap::map_table(options)?;
        let base_biased = bias::<S>(region.base);
        let stride_shift = options.stride_bytes.trailing_zeros();
        let parameters = Parameters { base_biased, stride_shift, table: table.base().cast() };
        let view = View { data: S::data(&parameters), cpu_count: options.cpu_count };
        let size_bytes = options.stride_bytes * options.cpu_count as usize;
        Ok(Attached { region: Region { size_bytes, ..region }, view, base_biased, _table: table })
    }

    /// The object at an offset that [`Pool::offset_of`] gave; `None` if no copy for CPU 0 can be there. Only its pool knows whether an
    /// object is allocated there.
    ///
    /// Wait-free, async-signal-safe.
    pub fn object_at(&self, offset: usize) -> Option<Object<S>> {
        if offset >= self.region.size_bytes {
            return None;
        }
        handle(self.region.base.wrapping_add(offset), self.base_biased)
    }

    /// All that address computation needs.
    pub fn view(&self) -> View<S> {
        self.view
    }
}

impl<S: Scheme> Object<S> {
    /// The handle as a word, for other languages.
    pub fn into_raw(self) -> NonNull<u8> {
        self.word
    }

    /// The handle of a word that [`Object::into_raw`] gave. Any other word is a handle of no object: [`Pool::free`] refuses
    /// it.
    pub fn from_raw(word: NonNull<u8>) -> Object<S> {
        Object { word, scheme: PhantomData }
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
// SAFETY: nothing in it can be changed through a shared reference; what is done through the address is unsafe where it is
// done.
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
// SAFETY: nothing in it can be changed through a shared reference, and nobody writes what its addresses lead to while the
// pool lives.
unsafe impl<S: Scheme> Sync for View<S> {}

impl<S: Scheme> fmt::Debug for Pool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("view", &self.view).field("usage", &self.usage()).finish()
    }
}
impl<S: Relocatable> fmt::Debug for Attached<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached").field("region", &self.region).field("view", &self.view).finish()
    }
}

// SAFETY: addresses of mappings that belong to no thread, and which it does not change.
unsafe impl<S: Relocatable> Send for Attached<S> {}
// SAFETY: through a shared reference it only tells addresses in its mappings, which stay until it is dropped.
unsafe impl<S: Relocatable> Sync for Attached<S> {}

// SAFETY: the heap takes its lock before it changes anything, and its memory belongs to no thread.
unsafe impl<S: Scheme> Send for Pool<S> {}
// SAFETY: every change through a shared reference is made under the heap's lock, or to atomics.
unsafe impl<S: Scheme> Sync for Pool<S> {}

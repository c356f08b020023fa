//! The heap of a pool: chunks, their free granules, and the checks of a robust pool.
//!
//! ```text
//!   chunk       │ CPU 0: a₀ b₀ … │ CPU 1: a₁ b₁ … │ …     a granule is 8 bytes, at one offset in every stride
//!   metadata    used, dirty, poisoned: a bit for each granule       records: a word for each granule
//! ```
//!
//! | granule | used | dirty | poisoned | its bytes |
//! | --- | --- | --- | --- | --- |
//! | never used | 0 | 0 | 0 | zeroes, as the kernel gave them |
//! | in an object, or withdrawn | 1 | 1 | 0 | any value |
//! | freed | 0 | 1 | 0, robust 1 | any value, robust [`POISON`] |
//!
//! All of it changes under the pool's lock. Some is read without the lock: the directory of chunks, the constant part
//! of a chunk's description, and records.

use core::ops::Range;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use dormouse_locks::{OwnerLock, Rank, Reentered};

use super::bitmap;
use super::directory::{self, DirectoryFull};
use super::error::{AllocError, Corruption, MemoryKind, Requirement, Shortage};
use super::memory::{self, Mapping};
use super::{Leak, OBJECT_SIZE_BYTES_MAX, PoolOptions, Region, Usage};

/// Value of freed bytes in a robust pool.
pub(crate) const POISON: u8 = 0x5a;
/// Value of the bytes after an object in a robust pool.
pub(crate) const RED_ZONE: u8 = 0xb5;
/// Minimum size of a red zone, in bytes.
pub(crate) const RED_ZONE_SIZE_BYTES: usize = 16;

/// Size of a granule, in bytes; objects start and end at multiples of it in their strides.
const GRANULE: usize = 8;
const STRIDE_SIZE_BYTES_MAX: usize = 1 << if cfg!(target_pointer_width = "64") { 40 } else { 26 };
const CPU_COUNT_MAX: u32 = 1 << 16;
/// Maximum number of chunks in a pool. The directory has twice as many slots, of which only the os_pages that are used
/// take memory.
const CHUNK_COUNT_MAX: usize = 1 << 15;

/// A granule's record: it describes the object that starts there, or the last one that did.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Record {
    state: GranuleState,
    size: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GranuleState {
    None,
    Object,
    Freed,
}

impl Record {
    const NONE: Record = Record { state: GranuleState::None, size: 0 };

    fn to_word(self) -> u32 {
        self.size as u32 | (self.state as u32) << 16
    }

    fn from_word(word: u32) -> Record {
        let state = match word >> 16 {
            0 => GranuleState::None,
            1 => GranuleState::Object,
            _ => GranuleState::Freed,
        };
        Record { state, size: (word & 0xffff) as usize }
    }
}

/// Enumerates CPUs and their nodes, as `topology::nodes` does; tests replace it.
pub(crate) type Nodes = fn(&mut dyn FnMut(u32, u32)) -> u32;

/// Constants of a pool.
struct Shape {
    cpu_count: usize,
    stride_bytes: usize,
    chunk_bytes: usize,
    /// Number of the lowest address bit that is equal in all addresses of a chunk, as are the bits above it.
    hash_key_shift: u32,
    /// Number of granules in a stride.
    granule_count: usize,
    /// Calls back with each CPU and its node, and returns the number of nodes.
    nodes: Nodes,
    node_count: u32,
    limit_bytes: usize,
    chunk_count_max: usize,
    is_robust: bool,
    /// Minimum size of the red zone after an object, in bytes.
    red_zone_bytes: usize,
    is_lazy: bool,
    is_fixed: bool,
    size_bytes_max: usize,
    align_bytes_max: usize,
}

impl Shape {
    /// Returns the number of granules that an object and its red zone take in each stride.
    fn granules(&self, size: usize) -> usize {
        (size.max(1) + self.red_zone_bytes).div_ceil(GRANULE)
    }

    /// Returns the size of that many granules on all CPUs, in bytes.
    fn bytes(&self, granules: usize) -> usize {
        granules * GRANULE * self.cpu_count
    }
}

/// A chunk's description. It is at the start of a mapping of its own, followed by the bitmaps and records.
pub(crate) struct PoolChunk {
    base: *mut u8,
    used: NonNull<[AtomicU64]>,
    dirty: NonNull<[AtomicU64]>,
    poisoned: NonNull<[AtomicU64]>,
    records: NonNull<[AtomicU32]>,
    /// Memory of the chunk, unless the caller gave it.
    memory: Option<Mapping>,
    /// Mapping that contains this description, the bitmaps and the records.
    metadata: Mapping,
    // The fields below are written only under the lock.
    next: AtomicPtr<PoolChunk>,
    free_count: AtomicUsize,
    /// Lower bound of the free granules: no granule below it is free.
    first_free: AtomicUsize,
    /// Upper bound of the free runs: no run of this many free granules exists.
    unfit_count: AtomicUsize,
}

impl PoolChunk {
    fn used(&self) -> &[AtomicU64] {
        // SAFETY: in the chunk's metadata mapping, which lives as long as the chunk; zeroes are valid atomics.
        unsafe { self.used.as_ref() }
    }

    fn dirty(&self) -> &[AtomicU64] {
        // SAFETY: in the chunk's metadata mapping, which lives as long as the chunk; zeroes are valid atomics.
        unsafe { self.dirty.as_ref() }
    }

    fn poisoned(&self) -> &[AtomicU64] {
        // SAFETY: in the chunk's metadata mapping, which lives as long as the chunk; zeroes are valid atomics.
        unsafe { self.poisoned.as_ref() }
    }

    fn records(&self) -> &[AtomicU32] {
        // SAFETY: in the chunk's metadata mapping, which lives as long as the chunk; zeroes are valid atomics.
        unsafe { self.records.as_ref() }
    }

    fn record(&self, granule: usize) -> Record {
        Record::from_word(self.records()[granule].load(Relaxed))
    }

    fn set_record(&self, granule: usize, record: Record) {
        self.records()[granule].store(record.to_word(), Relaxed);
    }
}

/// Contiguous bytes of a stride: a red zone, or a run of granules.
#[derive(Clone, Copy)]
struct Bytes {
    start: *mut u8,
    len: usize,
    cpu: u32,
    kind: MemoryKind,
}

impl Bytes {
    /// Checks that all bytes are `expected`; the error names the first one that is not.
    fn check(self, expected: u8) -> Result<(), Corruption> {
        let wrong = (0..self.len).find_map(|offset| {
            let at = self.start.wrapping_add(offset);
            // SAFETY: inside the chunk. A faulty program may write to these bytes at the same time: hence atomic.
            let found = unsafe { AtomicU8::from_ptr(at) }.load(Relaxed);
            (found != expected).then_some((at.addr(), found))
        });
        match wrong {
            None => Ok(()),
            Some((address, found)) => Err(Corruption { kind: self.kind, cpu: self.cpu, address, found, expected }),
        }
    }

    fn fill(self, value: u8) {
        // SAFETY: inside the chunk. The caller holds the pool's lock, and the bytes are in no object, or in one that is
        // being allocated or freed.
        unsafe { ptr::write_bytes(self.start, value, self.len) };
    }

    /// Zeroes the words that are not zero, for granules only. Reading an os_page that was never touched does not give
    /// it memory of its own.
    fn zero_lazily(self) {
        for offset in (0..self.len).step_by(8) {
            let word = self.start.wrapping_add(offset).cast::<u64>();
            // SAFETY: inside the chunk. The caller holds the pool's lock, and the bytes are in no object, or in one
            // that is being allocated or freed. Granules are aligned to words and multiples of them.
            if unsafe { word.read() } != 0 {
                // SAFETY: the word that was just read; no other thread accesses it while the caller holds the pool's
                // lock.
                unsafe { word.write(0) };
            }
        }
    }
}

/// Totals of the heap, each written only under the lock.
#[derive(Default)]
struct Totals {
    chunk_count: AtomicUsize,
    object_count: AtomicUsize,
    object_bytes: AtomicUsize,
    withdrawn_bytes: AtomicUsize,
}

fn add(total: &AtomicUsize, n: usize) {
    total.store(total.load(Relaxed) + n, Relaxed);
}

fn subtract(total: &AtomicUsize, n: usize) {
    total.store(total.load(Relaxed) - n, Relaxed);
}

pub(crate) struct Heap {
    shape: Shape,
    lock: OwnerLock,
    totals: Totals,
    first: AtomicPtr<PoolChunk>,
    last: AtomicPtr<PoolChunk>,
    directory: NonNull<[AtomicPtr<PoolChunk>]>,
    /// Number of allocated objects, indexed by size.
    live: NonNull<[AtomicUsize]>,
    /// Mapping that contains `directory` and `live`.
    _metadata: Mapping,
}

/// Cuts slices out of a mapping, one after another.
struct Cutter {
    base: *mut u8,
    next: usize,
}

impl Cutter {
    fn layout<T>(next: usize, count: usize) -> usize {
        next.next_multiple_of(align_of::<T>()) + count * size_of::<T>()
    }

    fn cut<T>(&mut self, count: usize) -> NonNull<[T]> {
        let start = self.next.next_multiple_of(align_of::<T>());
        self.next = Cutter::layout::<T>(self.next, count);
        let start = NonNull::new(self.base.wrapping_add(start).cast::<T>()).unwrap_or(NonNull::dangling());
        NonNull::slice_from_raw_parts(start, count)
    }
}

/// Returns the shortage for a mapping that the kernel refused.
fn refused(size_bytes: usize, errno: rustix::io::Errno) -> Shortage {
    Shortage::Refused { size_bytes, errno: errno.raw_os_error() }
}

fn check_option(option: &'static str, value: usize, is_met: bool, need: Requirement) -> Result<(), AllocError> {
    if is_met { Ok(()) } else { Err(AllocError::BadOption { option, value, need }) }
}

/// Checks the options that every party that computes addresses in the area must agree on.
pub(crate) fn check_options(options: &PoolOptions) -> Result<(), AllocError> {
    let PoolOptions { cpu_count, stride_bytes, .. } = *options;
    let cpus = Requirement::Between { least: 1, most: CPU_COUNT_MAX as usize };
    check_option("cpu_count", cpu_count as usize, (1..=CPU_COUNT_MAX).contains(&cpu_count), cpus)?;
    let os_page = memory::os_page_size_bytes();
    let strides = Requirement::Between { least: os_page, most: STRIDE_SIZE_BYTES_MAX };
    check_option("stride_bytes", stride_bytes, (os_page..=STRIDE_SIZE_BYTES_MAX).contains(&stride_bytes), strides)?;
    check_option("stride_bytes", stride_bytes, stride_bytes.is_power_of_two(), Requirement::PowerOfTwo)
}

/// Checks that a region is aligned and large enough for the options.
pub(crate) fn check_region(options: &PoolOptions, region: Region) -> Result<(), AllocError> {
    let base = region.base.addr();
    check_option("region.base", base, base != 0 && base.is_multiple_of(GRANULE), Requirement::MultipleOf(GRANULE))?;
    let need = options.stride_bytes * options.cpu_count as usize;
    let most = usize::MAX - base;
    let fits = (need..=most).contains(&region.size_bytes);
    check_option("region.size_bytes", region.size_bytes, fits, Requirement::Between { least: need, most })
}

impl Heap {
    /// Makes a heap from options that [`check_options`] and [`check_region`] have accepted.
    pub(crate) fn new(options: &PoolOptions, region: Option<Region>, nodes: Nodes) -> Result<Heap, AllocError> {
        let PoolOptions { stride_bytes, limit_bytes, is_robust, is_lazy, .. } = *options;
        let cpu_count = options.cpu_count as usize;
        let chunk_bytes = stride_bytes * cpu_count;
        let is_fixed = region.is_some();
        let chunk_count_max = if is_fixed { 1 } else { (limit_bytes / chunk_bytes).clamp(1, CHUNK_COUNT_MAX) };
        let slot_count = (2 * chunk_count_max).next_power_of_two();

        let len = Cutter::layout::<AtomicPtr<PoolChunk>>(0, slot_count);
        let len = Cutter::layout::<AtomicUsize>(len, OBJECT_SIZE_BYTES_MAX + 1);
        let nothing = |shortage| AllocError::Exhausted { size_bytes: 0, align_bytes: 0, shortage };
        let metadata = Mapping::new(len, 1).map_err(|errno| nothing(refused(len, errno)))?;
        let mut cutter = Cutter { base: metadata.base(), next: 0 };
        let directory = cutter.cut(slot_count);
        let live = cutter.cut(OBJECT_SIZE_BYTES_MAX + 1);

        let lowest_bit = |value: usize| 1 << value.trailing_zeros();
        let base_align = region.map_or(OBJECT_SIZE_BYTES_MAX, |region| lowest_bit(region.base.addr()));
        let red_zone_bytes = if is_robust { RED_ZONE_SIZE_BYTES } else { 0 };
        let shape = Shape {
            cpu_count,
            stride_bytes,
            chunk_bytes,
            hash_key_shift: chunk_bytes.next_power_of_two().trailing_zeros(),
            granule_count: stride_bytes / GRANULE,
            nodes,
            node_count: nodes(&mut |_, _| ()),
            limit_bytes,
            chunk_count_max,
            is_robust,
            red_zone_bytes,
            is_lazy,
            is_fixed,
            size_bytes_max: OBJECT_SIZE_BYTES_MAX.min(stride_bytes - red_zone_bytes),
            align_bytes_max: OBJECT_SIZE_BYTES_MAX.min(base_align),
        };
        let heap = Heap {
            shape,
            lock: OwnerLock::new(Rank::Pool),
            totals: Totals::default(),
            first: AtomicPtr::default(),
            last: AtomicPtr::default(),
            directory,
            live,
            _metadata: metadata,
        };
        heap.grow(region).map_err(nothing)?;
        Ok(heap)
    }

    /// Returns the address of the first chunk.
    pub(crate) fn base(&self) -> *mut u8 {
        self.first_chunk().map_or(ptr::null_mut(), |chunk| chunk.base)
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.shape.is_fixed
    }

    /// Runs `work` while no thread is inside an allocation.
    pub(crate) fn hold<R>(&self, work: impl FnOnce() -> R) -> Result<R, Reentered> {
        self.lock.with(work)
    }

    fn first_chunk(&self) -> Option<&PoolChunk> {
        // SAFETY: null, or a chunk, which lives as long as the heap. It is written once, before the heap is shared.
        unsafe { self.first.load(Relaxed).as_ref() }
    }

    /// Iterates over all chunks, oldest first. The caller holds the lock.
    fn chunks(&self) -> impl Iterator<Item = &PoolChunk> {
        // SAFETY: null, or a chunk, which lives as long as the heap; the lock orders the write of its description
        // before this.
        core::iter::successors(self.first_chunk(), |chunk| unsafe { chunk.next.load(Relaxed).as_ref() })
    }

    fn directory(&self) -> &[AtomicPtr<PoolChunk>] {
        // SAFETY: in the heap's metadata mapping, which lives as long as the heap; zeroes are null pointers.
        unsafe { self.directory.as_ref() }
    }

    fn live(&self) -> &[AtomicUsize] {
        // SAFETY: in the heap's metadata mapping, which lives as long as the heap; zeroes are valid atomics.
        unsafe { self.live.as_ref() }
    }

    /// Returns the chunk in which `address` may be the start of an object. Wait-free.
    fn chunk_of(&self, address: usize) -> Option<&PoolChunk> {
        // Handles of objects point into the stride of CPU 0.
        let stride = |chunk: &PoolChunk| chunk.base.addr()..chunk.base.addr() + self.shape.stride_bytes;
        let holds = |chunk: &PoolChunk| stride(chunk).contains(&address);
        if self.shape.is_fixed {
            return self.first_chunk().filter(|chunk| holds(chunk));
        }
        // SAFETY: the directory contains only complete chunks, which live as long as the heap.
        let is_it = |chunk: *mut PoolChunk| holds(unsafe { &*chunk });
        let chunk = directory::find(self.directory(), address >> self.shape.hash_key_shift, is_it)?;
        // SAFETY: the directory contains only complete chunks, which live as long as the heap.
        Some(unsafe { &*chunk })
    }

    /// Returns chunk, granule and record of the object that the handle belongs to, or belonged to before it was freed.
    /// Wait-free.
    fn look_up(&self, address: usize) -> Option<(&PoolChunk, usize, Record)> {
        let chunk = self.chunk_of(address)?;
        let offset = address - chunk.base.addr();
        let granule = offset / GRANULE;
        let record = chunk.record(granule);
        let is_handle = offset.is_multiple_of(GRANULE) && record.state != GranuleState::None;
        is_handle.then_some((chunk, granule, record))
    }

    /// Returns the size with which an allocated object was allocated, in bytes. Wait-free.
    pub(crate) fn size_of(&self, address: usize) -> Option<usize> {
        let (_, _, record) = self.look_up(address)?;
        (record.state == GranuleState::Object).then_some(record.size)
    }

    // Adds a chunk.
    //
    // ```text
    //   memory = mmap; each stride prefers its CPU's node; touch, unless lazy
    //   metadata = mmap; write the description
    //   last.next = chunk
    //   directory[key] = chunk        ◀─ release: lookups without the lock find it from here on
    // ```
    fn grow(&self, region: Option<Region>) -> Result<&PoolChunk, Shortage> {
        let shape = &self.shape;
        let chunk_count = self.totals.chunk_count.load(Relaxed);
        let (limit_bytes, chunk_bytes) = (shape.limit_bytes, shape.chunk_bytes);
        let mapped_bytes = chunk_count * chunk_bytes;
        if shape.is_fixed && chunk_count > 0 {
            return Err(Shortage::Fixed { size_bytes: chunk_bytes });
        }
        if mapped_bytes.checked_add(chunk_bytes).is_none_or(|bytes| bytes > limit_bytes) {
            return Err(Shortage::Limit { limit_bytes, mapped_bytes, chunk_bytes });
        }
        if chunk_count >= shape.chunk_count_max {
            return Err(Shortage::Chunks { chunk_count_max: shape.chunk_count_max });
        }
        let memory = match region {
            Some(_) => None,
            None => Some(self.map_chunk().map_err(|errno| refused(chunk_bytes, errno))?),
        };
        let base = region.map_or_else(|| memory.as_ref().map_or(ptr::null_mut(), Mapping::base), |region| region.base);

        let words = bitmap::words(shape.granule_count);
        let len = Cutter::layout::<PoolChunk>(0, 1);
        let len = (0..3).fold(len, |len, _| Cutter::layout::<AtomicU64>(len, words));
        let len = Cutter::layout::<AtomicU32>(len, shape.granule_count);
        let metadata = Mapping::new(len, 1).map_err(|errno| refused(len, errno))?;
        let mut cutter = Cutter { base: metadata.base(), next: 0 };
        let place: NonNull<[PoolChunk]> = cutter.cut(1);
        let place = place.as_ptr().cast::<PoolChunk>();
        let description = PoolChunk {
            base,
            used: cutter.cut(words),
            dirty: cutter.cut(words),
            poisoned: cutter.cut(words),
            records: cutter.cut(shape.granule_count),
            memory,
            metadata,
            next: AtomicPtr::default(),
            free_count: AtomicUsize::new(shape.granule_count),
            first_free: AtomicUsize::new(0),
            unfit_count: AtomicUsize::new(usize::MAX),
        };
        // SAFETY: the first bytes of the mapping just made, aligned to an os_page.
        unsafe { place.write(description) };
        // SAFETY: just written; the description is not written as a whole until the heap is dropped.
        let chunk = unsafe { &*place };
        if region.is_some() {
            // The caller may have left any bytes there.
            bitmap::fill(chunk.dirty(), 0..shape.granule_count, true);
        }
        // SAFETY: null, or a chunk, which lives as long as the heap.
        match unsafe { self.last.load(Relaxed).as_ref() } {
            Some(last) => last.next.store(place, Relaxed),
            None => self.first.store(place, Relaxed),
        }
        self.last.store(place, Relaxed);
        add(&self.totals.chunk_count, 1);
        if !shape.is_fixed {
            let inserted = directory::insert(self.directory(), base.addr() >> shape.hash_key_shift, place);
            // There are twice as many slots as chunks.
            debug_assert!(!matches!(inserted, Err(DirectoryFull)));
        }
        Ok(chunk)
    }

    /// Maps a chunk's memory, and prefers each CPU's node for its stride.
    fn map_chunk(&self) -> Result<Mapping, rustix::io::Errno> {
        let shape = &self.shape;
        let memory = Mapping::new(shape.chunk_bytes, 1 << shape.hash_key_shift)?;
        let base = memory.base();
        if shape.is_lazy {
            memory::keep_lazy(base, shape.chunk_bytes);
        }
        if shape.node_count > 1 {
            (shape.nodes)(&mut |cpu, node| {
                let cpu = cpu as usize;
                if cpu < shape.cpu_count {
                    memory::prefer_node(base.wrapping_add(cpu * shape.stride_bytes), shape.stride_bytes, node);
                }
            });
        }
        if !shape.is_lazy {
            memory::prefault(base, shape.chunk_bytes);
        }
        Ok(memory)
    }

    /// Returns the address of a new object's copy for CPU 0.
    pub(crate) fn alloc(&self, size: usize, align: usize) -> Result<NonNull<u8>, AllocError> {
        let shape = &self.shape;
        if size > shape.size_bytes_max {
            return Err(AllocError::TooBig { size_bytes: size, size_bytes_max: shape.size_bytes_max });
        }
        if align > shape.align_bytes_max {
            return Err(AllocError::BadAlignment { align_bytes: align, align_bytes_max: shape.align_bytes_max });
        }
        let exhausted = |shortage| AllocError::Exhausted { size_bytes: size, align_bytes: align, shortage };
        let align = (align / GRANULE).max(1);
        let work = || {
            // The loop ends: an empty chunk has room for every object.
            loop {
                for chunk in self.chunks() {
                    if let Some(start) = self.place(chunk, size, align)? {
                        return Ok(self.at(chunk, start));
                    }
                }
                self.grow(None).map_err(exhausted)?;
            }
        };
        let at = self.lock.with(work).map_err(|Reentered| AllocError::Reentered)??;
        Ok(NonNull::new(at).unwrap_or(NonNull::dangling()))
    }

    /// Allocates a zeroed object in `chunk` and returns its first granule; `None` if there is no room. The caller holds
    /// the lock.
    fn place(&self, chunk: &PoolChunk, size: usize, align: usize) -> Result<Option<usize>, AllocError> {
        let shape = &self.shape;
        let count = shape.granules(size);
        let first_free = chunk.first_free.load(Relaxed);
        if chunk.free_count.load(Relaxed) < count || chunk.unfit_count.load(Relaxed) <= count {
            return Ok(None);
        }
        let Some(start) = bitmap::find_clear(chunk.used(), first_free..shape.granule_count, count, align) else {
            if align == 1 {
                chunk.unfit_count.store(count, Relaxed);
            }
            return Ok(None);
        };
        let granules = start..start + count;
        bitmap::fill(chunk.used(), granules.clone(), true);
        subtract(&chunk.free_count, count);
        if start == first_free {
            chunk.first_free.store(granules.end, Relaxed);
        }
        granules.clone().for_each(|granule| chunk.set_record(granule, Record::NONE));
        if shape.is_robust
            && let Err(corruption) = self.check_free(chunk, granules.clone())
        {
            // The faulty code may write there again, so the granules stay used.
            bitmap::fill(chunk.poisoned(), granules, false);
            add(&self.totals.withdrawn_bytes, shape.bytes(count));
            return Err(AllocError::Corrupted(corruption));
        }
        for (run, is_dirty) in bitmap::runs(chunk.dirty(), granules.clone()) {
            if is_dirty {
                self.images(chunk, run)
                    .for_each(|bytes| if shape.is_lazy { bytes.zero_lazily() } else { bytes.fill(0) });
            }
        }
        bitmap::fill(chunk.dirty(), granules.clone(), true);
        bitmap::fill(chunk.poisoned(), granules, false);
        if shape.is_robust {
            self.red_zones(chunk, start, size).for_each(|bytes| bytes.fill(RED_ZONE));
        }
        chunk.set_record(start, Record { state: GranuleState::Object, size });
        add(&self.totals.object_count, 1);
        add(&self.totals.object_bytes, size);
        add(&self.live()[size], 1);
        Ok(Some(start))
    }

    pub(crate) fn free(&self, address: usize) -> Result<(), AllocError> {
        self.lock.with(|| self.free_locked(address)).map_err(|Reentered| AllocError::Reentered)?
    }

    fn free_locked(&self, address: usize) -> Result<(), AllocError> {
        let shape = &self.shape;
        let (chunk, start, record) = self.look_up(address).ok_or(AllocError::Foreign { address })?;
        if record.state == GranuleState::Freed {
            return Err(AllocError::DoubleFree { address });
        }
        chunk.set_record(start, Record { state: GranuleState::Freed, ..record });
        subtract(&self.totals.object_count, 1);
        subtract(&self.totals.object_bytes, record.size);
        subtract(&self.live()[record.size], 1);
        let count = shape.granules(record.size);
        let granules = start..start + count;
        if shape.is_robust
            && let Err(corruption) = self.check_red_zones(chunk, start, record.size)
        {
            // The granules stay used without an object: neither allocated nor free.
            add(&self.totals.withdrawn_bytes, shape.bytes(count));
            return Err(AllocError::Corrupted(corruption));
        }
        if shape.is_robust {
            self.images(chunk, granules.clone()).for_each(|bytes| bytes.fill(POISON));
            bitmap::fill(chunk.poisoned(), granules.clone(), true);
        }
        bitmap::fill(chunk.used(), granules, false);
        add(&chunk.free_count, count);
        chunk.first_free.store(chunk.first_free.load(Relaxed).min(start), Relaxed);
        chunk.unfit_count.store(usize::MAX, Relaxed);
        Ok(())
    }

    /// Returns the address of a granule in the stride of CPU 0.
    fn at(&self, chunk: &PoolChunk, granule: usize) -> *mut u8 {
        chunk.base.wrapping_add(granule * GRANULE)
    }

    /// Returns the bytes after each copy of an object of that size.
    fn red_zones(&self, chunk: &PoolChunk, start: usize, size: usize) -> impl Iterator<Item = Bytes> {
        let len = self.shape.granules(size) * GRANULE - size;
        self.on_each_cpu(self.at(chunk, start).wrapping_add(size), len, MemoryKind::RedZone)
    }

    /// Returns the bytes of granules in every stride, for granules that are free or are being freed or allocated.
    fn images(&self, chunk: &PoolChunk, granules: Range<usize>) -> impl Iterator<Item = Bytes> {
        self.on_each_cpu(self.at(chunk, granules.start), granules.len() * GRANULE, MemoryKind::Free)
    }

    /// Returns the `len` bytes from `start`, which is in the stride of CPU 0, and their counterparts in the other
    /// strides.
    fn on_each_cpu(&self, start: *mut u8, len: usize, kind: MemoryKind) -> impl Iterator<Item = Bytes> {
        (0..self.shape.cpu_count).map(move |cpu| {
            let start = start.wrapping_add(cpu * self.shape.stride_bytes);
            Bytes { start, len, cpu: cpu as u32, kind }
        })
    }

    /// Checks that free granules have the contents that they should.
    fn check_free(&self, chunk: &PoolChunk, granules: Range<usize>) -> Result<(), Corruption> {
        for (run, is_poisoned) in bitmap::runs(chunk.poisoned(), granules) {
            if is_poisoned {
                self.images(chunk, run).try_for_each(|bytes| bytes.check(POISON))?;
                continue;
            }
            for (run, is_dirty) in bitmap::runs(chunk.dirty(), run) {
                if !is_dirty {
                    self.images(chunk, run).try_for_each(|bytes| bytes.check(0))?;
                }
            }
        }
        Ok(())
    }

    /// Checks that the red zones of an allocated object are intact.
    fn check_red_zones(&self, chunk: &PoolChunk, start: usize, size: usize) -> Result<(), Corruption> {
        self.red_zones(chunk, start, size).try_for_each(|bytes| bytes.check(RED_ZONE))
    }

    /// Checks everything that can be checked without freeing objects.
    pub(crate) fn audit(&self) -> Result<(), AllocError> {
        let work = || {
            if !self.shape.is_robust {
                return Ok(());
            }
            for chunk in self.chunks() {
                for (granules, is_used) in bitmap::runs(chunk.used(), 0..self.shape.granule_count) {
                    if !is_used {
                        self.check_free(chunk, granules)?;
                        continue;
                    }
                    for granule in granules {
                        let record = chunk.record(granule);
                        if record.state == GranuleState::Object {
                            self.check_red_zones(chunk, granule, record.size)?;
                        }
                    }
                }
            }
            Ok(())
        };
        self.lock.with(work).map_err(|Reentered| AllocError::Reentered)?.map_err(AllocError::Corrupted)
    }

    /// Returns the smallest size, from `size_bytes` on, of which objects are allocated. Wait-free.
    pub(crate) fn leak_from(&self, size_bytes: usize) -> Option<Leak> {
        (size_bytes..=OBJECT_SIZE_BYTES_MAX)
            .map(|size_bytes| Leak { size_bytes, count: self.live()[size_bytes].load(Relaxed) })
            .find(|leak| leak.count > 0)
    }

    /// Returns the heap's totals. Wait-free; each number is read separately.
    pub(crate) fn usage(&self) -> Usage {
        let totals = &self.totals;
        let chunk_count = totals.chunk_count.load(Relaxed);
        Usage {
            object_count: totals.object_count.load(Relaxed),
            object_bytes: totals.object_bytes.load(Relaxed),
            chunk_count,
            mapped_bytes: chunk_count * self.shape.chunk_bytes,
            withdrawn_bytes: totals.withdrawn_bytes.load(Relaxed),
            size_bytes_max: self.shape.size_bytes_max,
            align_bytes_max: self.shape.align_bytes_max,
        }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        let mut next = self.first.load(Relaxed);
        while !next.is_null() {
            // SAFETY: a chunk, which is not used any more because the heap is dropped; it is moved out of the mapping
            // that it owns.
            let PoolChunk { next: after, memory, metadata, .. } = unsafe { next.read() };
            next = after.load(Relaxed);
            drop(memory);
            drop(metadata);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three nodes, of which one has no CPU; most machines that run tests have one node.
    fn three_nodes(node_of: &mut dyn FnMut(u32, u32)) -> u32 {
        [(0, 0), (2, 0), (1, 2), (3, 2), (4, 2), (9, 2)].into_iter().for_each(|(cpu, node)| node_of(cpu, node));
        3
    }

    /// Two nodes with three online CPUs, of nine possible ones.
    fn few_of_many(node_of: &mut dyn FnMut(u32, u32)) -> u32 {
        [(0, 0), (1, 0), (8, 1)].into_iter().for_each(|(cpu, node)| node_of(cpu, node));
        2
    }

    #[test]
    fn offline_cpus_have_copies_too() {
        let options = PoolOptions {
            cpu_count: 9,
            stride_bytes: 2 * memory::os_page_size_bytes(),
            is_robust: true,
            ..PoolOptions::default()
        };
        let heap = Heap::new(&options, None, few_of_many).unwrap();
        let mut handles = Vec::new();
        let mut copies = Vec::new();
        for size in [8, 100, 1000, 8] {
            let handle = heap.alloc(size, 8).unwrap();
            for copy in heap.on_each_cpu(handle.as_ptr(), size, MemoryKind::Free) {
                copy.fill(copy.cpu as u8 + 1);
                copies.push((copy.start.addr(), copy.start.addr() + size));
            }
            handles.push(handle.addr().get());
        }
        copies.sort_unstable();
        assert!(copies.is_sorted_by(|former, next| former.1 <= next.0), "copies overlap");
        heap.audit().unwrap();
        for handle in handles {
            heap.free(handle).unwrap();
        }
        heap.audit().unwrap();
    }

    #[test]
    fn strides_prefer_their_nodes_and_hold_zeroes() {
        let options = PoolOptions {
            cpu_count: 5,
            stride_bytes: 2 * memory::os_page_size_bytes(),
            is_robust: true,
            ..PoolOptions::default()
        };
        let heap = Heap::new(&options, None, three_nodes).unwrap();
        let handle = heap.alloc(4000, 8).unwrap();
        heap.audit().unwrap();
        heap.free(handle.addr().get()).unwrap();
        heap.audit().unwrap();
    }

    #[test]
    fn records_are_what_they_were() {
        for state in [GranuleState::None, GranuleState::Object, GranuleState::Freed] {
            for size in [0, 1, 4095, OBJECT_SIZE_BYTES_MAX] {
                let record = Record { state, size };
                assert!(Record::from_word(record.to_word()) == record);
            }
        }
        assert!(Record::NONE.to_word() == 0, "a mapping's zeroes are no records");
    }
}

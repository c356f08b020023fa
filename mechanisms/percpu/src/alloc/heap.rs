//! Where objects lie: chunks, what is free in them, and what a robust pool checks.
//!
//! ```text
//!   chunk of a strided pool             │ CPU 0: a₀ b₀ … │ CPU 1: a₁ b₁ … │ …     a granule (8 bytes) is one in every stride
//!   chunk of side-by-side objects       │ a₀ a₁ … b₀ b₁ … │                      a granule is a cache line
//!   chunk of a pool of pointer arrays   │ a[] a₀ a₁ … b[] b₀ b₁ … │              a granule is a cache line
//!
//!   beside it       used, dirty, poisoned: a bit for each granule       records: a word for each granule
//! ```
//!
//! | granule | used | dirty | poisoned | its bytes |
//! | --- | --- | --- | --- | --- |
//! | never used | 0 | 0 | 0 | zeroes, as the kernel gave them |
//! | of an object, or withdrawn | 1 | 1 | 0 | anybody's |
//! | freed | 0 | 1 | 0, robust 1 | anything, robust [`POISON`] |
//!
//! All of it changes under the pool's lock. Read without the lock: the directory of chunks, the constant part of a chunk's description,
//! and records.

use core::ops::Range;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use dormouse_locks::{OwnerLock, Rank, Reentered};

use super::bitmap;
use super::directory::{self, Full};
use super::error::{AllocError, Corruption, FreeError, Need, Part, Shortage};
use super::memory::{self, Mapping};
use super::scheme::Family;
use super::{Leak, OBJECT_SIZE_BYTES_MAX, PoolOptions, Region, Usage};

/// Value of freed bytes in a robust pool.
pub(crate) const POISON: u8 = 0x5a;
/// Value of the bytes behind an object in a robust pool.
pub(crate) const RED_ZONE: u8 = 0xb5;
/// Least size of a red zone.
pub(crate) const RED_ZONE_SIZE_BYTES: usize = 16;

const CACHE_LINE: usize = 64;
const STRIDE_SIZE_BYTES_MAX: usize = 1 << 40;
const CPU_COUNT_MAX: u32 = 1 << 16;
/// Chunks of a pool. The directory has twice as many slots, of which only the pages that are used take memory.
const CHUNK_COUNT_MAX: usize = 1 << 15;

/// A granule's record: of the object that starts there, or of the last one that started there.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Record {
    kind: Kind,
    size: usize,
    /// The distance between the copies of an object whose copies are side by side, as a shift.
    shift: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    None,
    Object,
    /// One of the copies to which an object's array points.
    Copy,
    Freed,
}

impl Record {
    const NONE: Record = Record { kind: Kind::None, size: 0, shift: 0 };

    fn to_word(self) -> u32 {
        self.size as u32 | self.shift << 16 | (self.kind as u32) << 24
    }

    fn from_word(word: u32) -> Record {
        let kind = match word >> 24 {
            0 => Kind::None,
            1 => Kind::Object,
            2 => Kind::Copy,
            _ => Kind::Freed,
        };
        Record { kind, size: (word & 0xffff) as usize, shift: word >> 16 & 0xff }
    }
}

/// The machine's nodes; tests replace them.
pub(crate) type Nodes = fn(&mut dyn FnMut(u32, u32)) -> u32;

/// What does not change during the life of a pool.
#[derive(Clone, Copy)]
struct Shape {
    family: Family,
    cpu_count: usize,
    stride_bytes: usize,
    chunk_bytes: usize,
    /// All addresses of a chunk are the same from this bit on.
    key_shift: u32,
    granule_shift: u32,
    granule_count: usize,
    /// The chunk consists of so many images one after another that have the same granules: strides, or the chunk as a whole.
    image_count: usize,
    /// Calls back with each CPU and its node, and returns how many nodes there are.
    nodes: Nodes,
    node_count: u32,
    /// The nodes among which the chunk of a pool of pointer arrays is divided, and the most CPUs that one of them has.
    part_count: usize,
    cpus_of_part_max: usize,
    limit_bytes: usize,
    chunk_count_max: usize,
    is_robust: bool,
    is_lazy: bool,
    is_fixed: bool,
    size_bytes_max: usize,
    align_bytes_max: usize,
}

impl Shape {
    /// Least bytes behind an object that are its red zone.
    fn red(&self) -> usize {
        if self.is_robust { RED_ZONE_SIZE_BYTES } else { 0 }
    }

    fn granules(&self, bytes: usize) -> usize {
        bytes.div_ceil(1 << self.granule_shift)
    }

    /// Bytes of a pointer array.
    fn array_bytes(&self) -> usize {
        self.cpu_count * size_of::<*mut u8>()
    }

    /// From the start of a copy to the end of its red zone, in bytes.
    fn copy_bytes(&self, record: Record) -> usize {
        match self.family {
            Family::SideBySide => 1 << record.shift,
            _ => self.granules(record.size.max(1) + self.red()) << self.granule_shift,
        }
    }

    /// Granules that belong to the object or copy of this record.
    fn footprint(&self, record: Record) -> usize {
        match (self.family, record.kind) {
            (Family::SideBySide, _) => self.granules(self.cpu_count << record.shift),
            (Family::Pointers, Kind::Object) => self.granules(self.array_bytes()),
            _ => self.granules(self.copy_bytes(record)),
        }
    }

    /// Where the copies of node part `part` lie in a chunk, in granules.
    fn part(&self, part: usize) -> Range<usize> {
        let len = self.part_granules();
        part * len..(part + 1) * len
    }

    fn part_granules(&self) -> usize {
        let pages = self.chunk_bytes / self.part_count / memory::os_page_size_bytes();
        if self.part_count == 1 { self.granule_count } else { self.granules(pages * memory::os_page_size_bytes()) }
    }
}

/// One chunk's description. It lies at the start of a mapping of its own, with the bitmaps and records behind it.
pub(crate) struct Chunk {
    base: *mut u8,
    used: NonNull<[AtomicU64]>,
    dirty: NonNull<[AtomicU64]>,
    poisoned: NonNull<[AtomicU64]>,
    records: NonNull<[AtomicU32]>,
    /// The chunk's memory, unless the caller gave it.
    memory: Option<Mapping>,
    /// The mapping in which all this lies.
    metadata: Mapping,
    // The fields below are written under the lock only.
    next: AtomicPtr<Chunk>,
    free_count: AtomicUsize,
    /// No granule below this one is free.
    first_free: AtomicUsize,
    /// There is no free run of so many granules.
    unfit_count: AtomicUsize,
}

impl Chunk {
    fn used(&self) -> &[AtomicU64] {
        // SAFETY: in the same mapping as the chunk, atomics for which the mapping's zeroes are valid.
        unsafe { self.used.as_ref() }
    }

    fn dirty(&self) -> &[AtomicU64] {
        // SAFETY: in the same mapping as the chunk, which lives as long; atomics, for which the mapping's zeroes are valid.
        unsafe { self.dirty.as_ref() }
    }

    fn poisoned(&self) -> &[AtomicU64] {
        // SAFETY: in the same mapping as the chunk, which lives as long; atomics, for which the mapping's zeroes are valid.
        unsafe { self.poisoned.as_ref() }
    }

    fn records(&self) -> &[AtomicU32] {
        // SAFETY: in the same mapping as the chunk, which lives as long; atomics, for which the mapping's zeroes are valid.
        unsafe { self.records.as_ref() }
    }

    fn record(&self, granule: usize) -> Record {
        Record::from_word(self.records()[granule].load(Relaxed))
    }

    fn set_record(&self, granule: usize, record: Record) {
        self.records()[granule].store(record.to_word(), Relaxed);
    }
}

/// Bytes of a chunk that belong together: a copy with its red zone, or an image of a run of granules.
#[derive(Clone, Copy)]
struct Bytes {
    start: *mut u8,
    len: usize,
    cpu: Option<u32>,
    part: Part,
}

impl Bytes {
    /// The first byte that is not `expected`.
    fn check(self, expected: u8) -> Result<(), Corruption> {
        let wrong = (0..self.len).find_map(|offset| {
            let at = self.start.wrapping_add(offset);
            // SAFETY: inside the chunk. Who writes here has no right to, so it may happen meanwhile: hence atomic.
            let found = unsafe { AtomicU8::from_ptr(at) }.load(Relaxed);
            (found != expected).then_some((at.addr(), found))
        });
        match wrong {
            None => Ok(()),
            Some((address, found)) => Err(Corruption { part: self.part, cpu: self.cpu, address, found, expected }),
        }
    }

    fn fill(self, value: u8) {
        // SAFETY: inside the chunk, and nobody's: the caller holds the pool's lock and the bytes are of no object, or of
        // one that is being made or freed.
        unsafe { ptr::write_bytes(self.start, value, self.len) };
    }

    /// Zeroes what is not zero. Reading a page that was never touched does not give it memory of its own. Granules only.
    fn zero_lazily(self) {
        for offset in (0..self.len).step_by(8) {
            let word = self.start.wrapping_add(offset).cast::<u64>();
            // SAFETY: inside the chunk, and nobody's: the caller holds the pool's lock and the bytes are of no object, or of
            // one that is being made or freed; granules are aligned to words and multiples of them.
            if unsafe { word.read() } != 0 {
                // SAFETY: the word that was just read, which is nobody's while the caller holds the pool's lock.
                unsafe { word.write(0) };
            }
        }
    }
}

/// Numbers of the heap that change, each written under the lock only.
#[derive(Default)]
struct Totals {
    mapped_bytes: AtomicUsize,
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
    first: AtomicPtr<Chunk>,
    last: AtomicPtr<Chunk>,
    directory: NonNull<[AtomicPtr<Chunk>]>,
    /// Allocated objects, by size.
    live: NonNull<[AtomicUsize]>,
    /// From CPU 0's place to each CPU's.
    table: *mut usize,
    /// Each CPU's part of the nodes, where there is more than one node.
    parts: NonNull<[AtomicU32]>,
    /// The mapping that contains these four.
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

/// A mapping that the kernel refused: for an object, or for none while the pool is made.
fn refused(size_bytes: usize, errno: rustix::io::Errno) -> Shortage {
    Shortage::Refused { size_bytes, errno: errno.raw_os_error() }
}

fn check_option(option: &'static str, value: usize, is_met: bool, need: Need) -> Result<(), AllocError> {
    if is_met { Ok(()) } else { Err(AllocError::BadOption { option, value, need }) }
}

/// What an area for `family` must satisfy, for every party that computes addresses in it.
pub(crate) fn check_options(family: Family, is_shifted: bool, options: &PoolOptions) -> Result<(), AllocError> {
    let PoolOptions { cpu_count, stride_bytes, .. } = *options;
    let cpus = Need::Between { least: 1, most: CPU_COUNT_MAX as usize };
    check_option("cpu_count", cpu_count as usize, (1..=CPU_COUNT_MAX).contains(&cpu_count), cpus)?;
    let os_page = memory::os_page_size_bytes();
    let strides = Need::Between { least: os_page, most: STRIDE_SIZE_BYTES_MAX };
    check_option("stride_bytes", stride_bytes, (os_page..=STRIDE_SIZE_BYTES_MAX).contains(&stride_bytes), strides)?;
    let whole = Need::MultipleOf(os_page);
    check_option("stride_bytes", stride_bytes, stride_bytes.is_multiple_of(os_page), whole)?;
    let is_power = family != Family::Strided || !is_shifted || stride_bytes.is_power_of_two();
    check_option("stride_bytes", stride_bytes, is_power, Need::PowerOfTwo)
}

/// What a region for `family` must satisfy.
pub(crate) fn check_region(family: Family, options: &PoolOptions, region: Region) -> Result<(), AllocError> {
    let granule = granule_size_bytes(family);
    let base = region.base.addr();
    check_option("region.base", base, base != 0 && base.is_multiple_of(granule), Need::MultipleOf(granule))?;
    let need = options.stride_bytes * options.cpu_count as usize;
    let most = usize::MAX - base;
    let fits = (need..=most).contains(&region.size_bytes);
    check_option("region.size_bytes", region.size_bytes, fits, Need::Between { least: need, most })
}

fn granule_size_bytes(family: Family) -> usize {
    if family == Family::Strided { 8 } else { CACHE_LINE }
}

/// A table of each CPU's offset, in a mapping of its own.
pub(crate) fn map_table(options: &PoolOptions) -> Result<Mapping, AllocError> {
    let len = options.cpu_count as usize * size_of::<usize>();
    let nothing = |errno| AllocError::Exhausted { size_bytes: 0, align_bytes: 0, shortage: refused(len, errno) };
    let table = Mapping::new(len, 1).map_err(nothing)?;
    write_table(table.base().cast(), options);
    Ok(table)
}

fn write_table(table: *mut usize, options: &PoolOptions) {
    for cpu in 0..options.cpu_count as usize {
        // SAFETY: the caller has made room for every CPU, and nobody reads it yet.
        unsafe { table.wrapping_add(cpu).write(cpu * options.stride_bytes) };
    }
}

impl Heap {
    /// A heap of options that [`check_options`] and [`check_region`] have accepted.
    pub(crate) fn new(
        family: Family,
        is_fixed: bool,
        options: &PoolOptions,
        region: Option<Region>,
        nodes: Nodes,
    ) -> Result<Heap, AllocError> {
        let PoolOptions { stride_bytes, limit_bytes, is_robust, is_lazy, .. } = *options;
        let cpu_count = options.cpu_count as usize;
        let chunk_bytes = stride_bytes * cpu_count;
        let is_strided = family == Family::Strided;
        let granule = granule_size_bytes(family);
        let node_count = nodes(&mut |_, _| ());
        let is_fixed = is_fixed || region.is_some();
        let chunk_count_max = if is_fixed { 1 } else { (limit_bytes / chunk_bytes).clamp(1, CHUNK_COUNT_MAX) };
        let slot_count = (2 * chunk_count_max).next_power_of_two();

        let len = Cutter::layout::<AtomicPtr<Chunk>>(0, slot_count);
        let len = Cutter::layout::<AtomicUsize>(len, OBJECT_SIZE_BYTES_MAX + 1);
        let len = Cutter::layout::<usize>(len.next_multiple_of(CACHE_LINE), cpu_count);
        let len = Cutter::layout::<AtomicU32>(len, cpu_count);
        let nothing = |shortage| AllocError::Exhausted { size_bytes: 0, align_bytes: 0, shortage };
        let metadata = Mapping::new(len, 1).map_err(|errno| nothing(refused(len, errno)))?;
        let mut cutter = Cutter { base: metadata.base(), next: 0 };
        let directory = cutter.cut(slot_count);
        let live = cutter.cut(OBJECT_SIZE_BYTES_MAX + 1);
        cutter.next = cutter.next.next_multiple_of(CACHE_LINE);
        let table: NonNull<[usize]> = cutter.cut(cpu_count);
        let table = table.as_ptr().cast::<usize>();
        write_table(table, options);
        let parts: NonNull<[AtomicU32]> = cutter.cut(cpu_count);

        let image_bytes = if is_strided { stride_bytes } else { chunk_bytes };
        let mut shape = Shape {
            family,
            cpu_count,
            stride_bytes,
            chunk_bytes,
            key_shift: chunk_bytes.next_power_of_two().trailing_zeros(),
            granule_shift: granule.trailing_zeros(),
            granule_count: image_bytes / granule,
            image_count: if is_strided { cpu_count } else { 1 },
            nodes,
            node_count,
            part_count: 1,
            cpus_of_part_max: cpu_count,
            limit_bytes,
            chunk_count_max,
            is_robust,
            is_lazy,
            is_fixed,
            size_bytes_max: 0,
            align_bytes_max: 0,
        };
        if family == Family::Pointers && node_count > 1 && region.is_none() {
            // SAFETY: of the mapping just made, whose zeroes are valid.
            let parts = unsafe { parts.as_ref() };
            shape.cpus_of_part_max = divide(parts, nodes);
            shape.part_count = 1 + parts.iter().map(|part| part.load(Relaxed) as usize).max().unwrap_or(0);
        }
        let lowest_bit = |value: usize| 1 << value.trailing_zeros();
        let base_align = region.map_or(OBJECT_SIZE_BYTES_MAX, |region| lowest_bit(region.base.addr()));
        shape.align_bytes_max = OBJECT_SIZE_BYTES_MAX.min(base_align);
        shape.size_bytes_max = OBJECT_SIZE_BYTES_MAX.min(match family {
            Family::Strided => stride_bytes - shape.red(),
            Family::SideBySide => (1usize << stride_bytes.ilog2()) - shape.red(),
            Family::Pointers => {
                let lines =
                    shape.part_granules().saturating_sub(shape.granules(shape.array_bytes())) / shape.cpus_of_part_max;
                (lines * CACHE_LINE).saturating_sub(shape.red())
            }
        });
        if shape.size_bytes_max == 0 {
            let need = Need::MoreFor { cpu_count };
            return Err(AllocError::BadOption { option: "stride_bytes", value: stride_bytes, need });
        }
        let heap = Heap {
            shape,
            lock: OwnerLock::new(Rank::Pool),
            totals: Totals::default(),
            first: AtomicPtr::default(),
            last: AtomicPtr::default(),
            directory,
            live,
            table,
            parts,
            _metadata: metadata,
        };
        heap.grow(region).map_err(nothing)?;
        Ok(heap)
    }

    /// Where the first chunk starts.
    pub(crate) fn base(&self) -> *mut u8 {
        self.first_chunk().map_or(ptr::null_mut(), |chunk| chunk.base)
    }

    pub(crate) fn table(&self) -> *const usize {
        self.table
    }

    pub(crate) fn stride_shift(&self) -> u32 {
        self.shape.stride_bytes.trailing_zeros()
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.shape.is_fixed
    }

    /// Runs `work` while no thread is inside an allocation.
    pub(crate) fn hold<R>(&self, work: impl FnOnce() -> R) -> Result<R, Reentered> {
        self.lock.with(work)
    }

    fn first_chunk(&self) -> Option<&Chunk> {
        // SAFETY: null, or a chunk, which lives as long as the heap. Written once, before the heap is shared.
        unsafe { self.first.load(Relaxed).as_ref() }
    }

    /// All chunks, oldest first. Under the lock.
    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        // SAFETY: null, or a chunk, which lives as long as the heap; the lock orders its being written before this.
        core::iter::successors(self.first_chunk(), |chunk| unsafe { chunk.next.load(Relaxed).as_ref() })
    }

    fn directory(&self) -> &[AtomicPtr<Chunk>] {
        // SAFETY: in the heap's mapping, whose zeroes are null pointers.
        unsafe { self.directory.as_ref() }
    }

    fn live(&self) -> &[AtomicUsize] {
        // SAFETY: in the heap's mapping, whose zeroes are valid.
        unsafe { self.live.as_ref() }
    }

    fn part_of(&self, cpu: usize) -> usize {
        // SAFETY: in the heap's mapping, whose zeroes are valid.
        let parts = unsafe { self.parts.as_ref() };
        parts[cpu].load(Relaxed) as usize
    }

    /// The chunk in which `address` may be the start of an object. Wait-free.
    fn chunk_of(&self, address: usize) -> Option<&Chunk> {
        // Handles of objects point into the first image of the chunk.
        let len = self.shape.granule_count << self.shape.granule_shift;
        let holds = |chunk: &Chunk| (chunk.base.addr()..chunk.base.addr() + len).contains(&address);
        if self.shape.is_fixed {
            return self.first_chunk().filter(|chunk| holds(chunk));
        }
        // SAFETY: from the directory: whole, and as long-lived as the heap.
        let is_it = |chunk: *mut Chunk| holds(unsafe { &*chunk });
        let chunk = directory::find(self.directory(), address >> self.shape.key_shift, is_it)?;
        // SAFETY: the directory holds whole chunks, which live as long as the heap.
        Some(unsafe { &*chunk })
    }

    /// Chunk, granule and record of the object that the handle belongs to, or belonged to before it was freed. Wait-free.
    fn look_up(&self, address: usize) -> Option<(&Chunk, usize, Record)> {
        let chunk = self.chunk_of(address)?;
        let offset = address - chunk.base.addr();
        let granule = offset >> self.shape.granule_shift;
        let record = chunk.record(granule);
        let tag = offset - (granule << self.shape.granule_shift);
        let is_handle = matches!(record.kind, Kind::Object | Kind::Freed) && tag == record.shift as usize;
        is_handle.then_some((chunk, granule, record))
    }

    /// The size with which an allocated object was allocated. Wait-free.
    pub(crate) fn size_of(&self, address: usize) -> Option<usize> {
        let (_, _, record) = self.look_up(address)?;
        (record.kind == Kind::Object).then_some(record.size)
    }

    /// The start of the chunk into which the handle points. Wait-free.
    pub(crate) fn chunk_base(&self, address: usize) -> Option<*mut u8> {
        self.chunk_of(address).map(|chunk| chunk.base)
    }

    // Growth.
    //
    // ```text
    //   memory = mmap; each stride prefers its CPU's node; touch, unless lazy
    //   metadata = mmap; write the description
    //   last.next = chunk
    //   directory[key] = chunk        ◀─ release: those who look up without the lock find it from here on
    // ```
    fn grow(&self, region: Option<Region>) -> Result<&Chunk, Shortage> {
        let shape = &self.shape;
        let mapped_bytes = self.totals.mapped_bytes.load(Relaxed);
        let chunk_count = self.totals.chunk_count.load(Relaxed);
        let (limit_bytes, chunk_bytes) = (shape.limit_bytes, shape.chunk_bytes);
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
        let len = Cutter::layout::<Chunk>(0, 1);
        let len = (0..3).fold(len, |len, _| Cutter::layout::<AtomicU64>(len, words));
        let len = Cutter::layout::<AtomicU32>(len, shape.granule_count);
        let metadata = Mapping::new(len, 1).map_err(|errno| refused(len, errno))?;
        let mut cutter = Cutter { base: metadata.base(), next: 0 };
        let place: NonNull<[Chunk]> = cutter.cut(1);
        let place = place.as_ptr().cast::<Chunk>();
        let description = Chunk {
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
        // SAFETY: the first bytes of the mapping just made, aligned to a page.
        unsafe { place.write(description) };
        // SAFETY: just written; nobody writes to it as a whole before the heap is dropped.
        let chunk = unsafe { &*place };
        if region.is_some() {
            // The caller may have left anything there.
            bitmap::fill(chunk.dirty(), 0..shape.granule_count, true);
        }
        // SAFETY: null, or a chunk.
        match unsafe { self.last.load(Relaxed).as_ref() } {
            Some(last) => last.next.store(place, Relaxed),
            None => self.first.store(place, Relaxed),
        }
        self.last.store(place, Relaxed);
        add(&self.totals.mapped_bytes, chunk_bytes);
        add(&self.totals.chunk_count, 1);
        if !shape.is_fixed {
            let inserted = directory::insert(self.directory(), base.addr() >> shape.key_shift, place);
            // There are twice as many slots as chunks.
            debug_assert!(!matches!(inserted, Err(Full)));
        }
        Ok(chunk)
    }

    /// A chunk's memory, on the node where it should lie.
    fn map_chunk(&self) -> Result<Mapping, rustix::io::Errno> {
        let shape = &self.shape;
        let memory = Mapping::new(shape.chunk_bytes, 1 << shape.key_shift)?;
        let base = memory.base();
        if shape.is_lazy {
            memory::keep_lazy(base, shape.chunk_bytes);
        }
        if shape.node_count > 1 && shape.family != Family::SideBySide {
            (shape.nodes)(&mut |cpu, node| {
                let cpu = cpu as usize;
                if cpu >= shape.cpu_count {
                    return;
                }
                let (offset, len) = match shape.family {
                    Family::Strided => (cpu * shape.stride_bytes, shape.stride_bytes),
                    _ => {
                        let len = shape.part_granules() << shape.granule_shift;
                        (self.part_of(cpu) * len, len)
                    }
                };
                memory::prefer_node(base.wrapping_add(offset), len, node);
            });
        }
        if !shape.is_lazy {
            memory::prefault(base, shape.chunk_bytes);
        }
        Ok(memory)
    }

    /// An object's handle: the address of its copy for CPU 0 (or of its array), with the shift between copies that are side by side.
    pub(crate) fn alloc(&self, size: usize, align: usize) -> Result<NonNull<u8>, AllocError> {
        let shape = &self.shape;
        if size > shape.size_bytes_max {
            return Err(AllocError::TooBig { size_bytes: size, size_bytes_max: shape.size_bytes_max });
        }
        if align > shape.align_bytes_max {
            return Err(AllocError::BadAlignment { align_bytes: align, align_bytes_max: shape.align_bytes_max });
        }
        let granule = 1 << shape.granule_shift;
        let record = match shape.family {
            Family::SideBySide => {
                let copy = (size + shape.red()).max(align).max(CACHE_LINE).next_power_of_two();
                Record { kind: Kind::Object, size, shift: copy.trailing_zeros() }
            }
            _ => Record { kind: Kind::Object, size, shift: 0 },
        };
        let exhausted = |shortage| AllocError::Exhausted { size_bytes: size, align_bytes: align, shortage };
        let align = (align / granule).max(1);
        let too_small = Shortage::ChunkTooSmall { chunk_bytes: shape.chunk_bytes };
        if shape.family == Family::Pointers {
            // An array and its copies in an empty chunk.
            let copy = shape.granules(shape.copy_bytes(record));
            let array = shape.granules(shape.array_bytes()).next_multiple_of(align);
            if array + (shape.cpus_of_part_max - 1) * copy.next_multiple_of(align) + copy > shape.part_granules() {
                return Err(exhausted(too_small));
            }
        }
        let work = || {
            for chunk in self.chunks() {
                if let Some(start) = self.place(chunk, record, align)? {
                    return Ok((chunk, start));
                }
            }
            let chunk = self.grow(None).map_err(exhausted)?;
            let start = self.place(chunk, record, align)?;
            start.map(|start| (chunk, start)).ok_or(exhausted(too_small))
        };
        let (chunk, start) = self.lock.with(work).map_err(|Reentered| AllocError::Reentered)??;
        let handle = chunk.base.wrapping_add((start << shape.granule_shift) + record.shift as usize);
        Ok(NonNull::new(handle).unwrap_or(NonNull::dangling()))
    }

    /// Puts an object into `chunk`, if there is room: its first granule. Under the lock.
    fn place(&self, chunk: &Chunk, record: Record, align: usize) -> Result<Option<usize>, AllocError> {
        let shape = &self.shape;
        let is_pointers = shape.family == Family::Pointers;
        let start = match is_pointers {
            // An array is a block of cache lines, as copies are.
            true => self.take(chunk, record, 1, shape.part(self.part_of(0)))?,
            false => self.take(chunk, record, align, 0..shape.granule_count)?,
        };
        let Some(start) = start else { return Ok(None) };
        if is_pointers {
            let array = self.at(chunk, start).cast::<*mut u8>();
            for cpu in 0..shape.cpu_count {
                let copy = Record { kind: Kind::Copy, ..record };
                let place = self.take(chunk, copy, align, shape.part(self.part_of(cpu)));
                let Ok(Some(place)) = place else {
                    // The copies that were placed already are given back, unused.
                    for earlier in 0..cpu {
                        // SAFETY: inside the array, written below.
                        let address = unsafe { array.wrapping_add(earlier).read() };
                        self.give_back(chunk, self.granule_of(chunk, address), copy);
                    }
                    self.give_back(chunk, start, record);
                    // It was never handed out.
                    chunk.set_record(start, Record::NONE);
                    return place;
                };
                // SAFETY: inside the array, which is this object's.
                unsafe { array.wrapping_add(cpu).write(self.at(chunk, place)) };
            }
        }
        if shape.is_robust {
            for cpu in 0..shape.cpu_count {
                self.red_zone(chunk, start, record, cpu).fill(RED_ZONE);
            }
        }
        let totals = &self.totals;
        add(&totals.object_count, 1);
        add(&totals.object_bytes, record.size);
        add(&self.live()[record.size], 1);
        Ok(Some(start))
    }

    /// Takes free granules for `record` out of `within`, zeroed; `None` if there are none. Under the lock.
    fn take(
        &self,
        chunk: &Chunk,
        record: Record,
        align: usize,
        within: Range<usize>,
    ) -> Result<Option<usize>, AllocError> {
        let count = self.shape.footprint(record);
        let first_free = chunk.first_free.load(Relaxed);
        if chunk.free_count.load(Relaxed) < count || chunk.unfit_count.load(Relaxed) <= count {
            return Ok(None);
        }
        let range = within.start.max(first_free)..within.end;
        let Some(start) = bitmap::find_clear(chunk.used(), range, count, align) else {
            if align == 1 && within == (0..self.shape.granule_count) {
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
        if self.shape.is_robust
            && let Err(corruption) = self.check_free(chunk, granules.clone())
        {
            // Whoever wrote there may write again. The granules stay used.
            bitmap::fill(chunk.poisoned(), granules, false);
            add(&self.totals.withdrawn_bytes, (count << self.shape.granule_shift) * self.shape.image_count);
            return Err(AllocError::Corrupted(corruption));
        }
        for (run, is_dirty) in bitmap::runs(chunk.dirty(), granules.clone()) {
            if is_dirty {
                self.images(chunk, run)
                    .for_each(|bytes| if self.shape.is_lazy { bytes.zero_lazily() } else { bytes.fill(0) });
            }
        }
        bitmap::fill(chunk.dirty(), granules.clone(), true);
        bitmap::fill(chunk.poisoned(), granules, false);
        chunk.set_record(start, record);
        Ok(Some(start))
    }

    /// Makes granules free that were taken, whatever their contents. Under the lock.
    fn give_back(&self, chunk: &Chunk, start: usize, record: Record) {
        let count = self.shape.footprint(record);
        let granules = start..start + count;
        // Only objects that were handed out can be freed twice.
        let freed = if record.kind == Kind::Object { Record { kind: Kind::Freed, ..record } } else { Record::NONE };
        chunk.set_record(start, freed);
        if self.shape.is_robust {
            self.images(chunk, granules.clone()).for_each(|bytes| bytes.fill(POISON));
            bitmap::fill(chunk.poisoned(), granules.clone(), true);
        }
        bitmap::fill(chunk.used(), granules, false);
        add(&chunk.free_count, count);
        chunk.first_free.store(chunk.first_free.load(Relaxed).min(start), Relaxed);
        chunk.unfit_count.store(usize::MAX, Relaxed);
    }

    pub(crate) fn free(&self, address: usize) -> Result<(), FreeError> {
        self.lock.with(|| self.free_locked(address)).map_err(|Reentered| FreeError::Reentered)?
    }

    fn free_locked(&self, address: usize) -> Result<(), FreeError> {
        let shape = &self.shape;
        let (chunk, start, record) = self.look_up(address).ok_or(FreeError::Foreign { address })?;
        if record.kind == Kind::Freed {
            return Err(FreeError::DoubleFree { address });
        }
        subtract(&self.totals.object_count, 1);
        subtract(&self.totals.object_bytes, record.size);
        subtract(&self.live()[record.size], 1);
        if let Err(corruption) = self.check_object(chunk, start, record) {
            // Neither allocated nor free.
            chunk.set_record(start, Record { kind: Kind::Freed, ..record });
            let bytes = match shape.family {
                Family::Pointers => {
                    (shape.footprint(record) << shape.granule_shift) + shape.cpu_count * shape.copy_bytes(record)
                }
                _ => (shape.footprint(record) << shape.granule_shift) * shape.image_count,
            };
            add(&self.totals.withdrawn_bytes, bytes);
            return Err(FreeError::Corrupted(corruption));
        }
        if shape.family == Family::Pointers {
            for cpu in 0..shape.cpu_count {
                let place = self.granule_of(chunk, self.copy(chunk, start, record, cpu));
                let copy = Record { kind: Kind::Copy, ..record };
                // An array that names a copy twice has been overwritten; the copy is given back once.
                if chunk.record(place) == copy {
                    self.give_back(chunk, place, copy);
                }
            }
        }
        self.give_back(chunk, start, record);
        Ok(())
    }

    fn at(&self, chunk: &Chunk, granule: usize) -> *mut u8 {
        chunk.base.wrapping_add(granule << self.shape.granule_shift)
    }

    fn granule_of(&self, chunk: &Chunk, address: *mut u8) -> usize {
        (address.addr() - chunk.base.addr()) >> self.shape.granule_shift
    }

    /// The address of `cpu`'s copy of an allocated object.
    fn copy(&self, chunk: &Chunk, start: usize, record: Record, cpu: usize) -> *mut u8 {
        let at = self.at(chunk, start);
        match self.shape.family {
            Family::Strided => at.wrapping_add(cpu * self.shape.stride_bytes),
            Family::SideBySide => at.wrapping_add(cpu << record.shift),
            Family::Pointers => {
                // SAFETY: inside the object's array, which is aligned to a cache line.
                unsafe { at.cast::<*mut u8>().wrapping_add(cpu).read() }
            }
        }
    }

    fn red_zone(&self, chunk: &Chunk, start: usize, record: Record, cpu: usize) -> Bytes {
        let copy = self.copy(chunk, start, record, cpu);
        let len = self.shape.copy_bytes(record) - record.size;
        Bytes { start: copy.wrapping_add(record.size), len, cpu: Some(cpu as u32), part: Part::RedZone }
    }

    /// The bytes of granules that are free, or are being freed or taken, in every image.
    fn images(&self, chunk: &Chunk, granules: Range<usize>) -> impl Iterator<Item = Bytes> {
        let shape = self.shape;
        let start = self.at(chunk, granules.start);
        let len = granules.len() << shape.granule_shift;
        (0..shape.image_count).map(move |image| Bytes {
            start: start.wrapping_add(image * shape.stride_bytes),
            len,
            cpu: (shape.image_count > 1).then_some(image as u32),
            part: Part::Free,
        })
    }

    /// Whether free granules have the contents that they should.
    fn check_free(&self, chunk: &Chunk, granules: Range<usize>) -> Result<(), Corruption> {
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

    /// Whether the surroundings of an allocated object are intact.
    fn check_object(&self, chunk: &Chunk, start: usize, record: Record) -> Result<(), Corruption> {
        let shape = &self.shape;
        if shape.family == Family::Pointers {
            // The copies are about to be given back, wherever the array points.
            for cpu in 0..shape.cpu_count {
                let copy = self.copy(chunk, start, record, cpu);
                let offset = copy.addr().wrapping_sub(chunk.base.addr());
                let granule = offset >> shape.granule_shift;
                let is_copy = granule < shape.granule_count
                    && offset.is_multiple_of(1 << shape.granule_shift)
                    && chunk.record(granule) == (Record { kind: Kind::Copy, ..record });
                if !is_copy {
                    let address = self.at(chunk, start).addr() + cpu * size_of::<*mut u8>();
                    let found = copy.addr() as u8;
                    let cpu = Some(cpu as u32);
                    return Err(Corruption { part: Part::Pointers, cpu, address, found, expected: 0 });
                }
            }
        }
        if shape.is_robust {
            for cpu in 0..shape.cpu_count {
                self.red_zone(chunk, start, record, cpu).check(RED_ZONE)?;
            }
        }
        Ok(())
    }

    /// Checks all that can be checked without freeing anything.
    pub(crate) fn audit(&self) -> Result<(), AllocError> {
        let work = || {
            for chunk in self.chunks() {
                for (granules, is_used) in bitmap::runs(chunk.used(), 0..self.shape.granule_count) {
                    if !is_used {
                        if self.shape.is_robust {
                            self.check_free(chunk, granules)?;
                        }
                        continue;
                    }
                    for granule in granules {
                        let record = chunk.record(granule);
                        if record.kind == Kind::Object {
                            self.check_object(chunk, granule, record)?;
                        }
                    }
                }
            }
            Ok(())
        };
        self.lock.with(work).map_err(|Reentered| AllocError::Reentered)?.map_err(AllocError::Corrupted)
    }

    /// The smallest size from `size_bytes` on of which objects are allocated. Wait-free.
    pub(crate) fn leak_from(&self, size_bytes: usize) -> Option<Leak> {
        (size_bytes..=OBJECT_SIZE_BYTES_MAX)
            .map(|size_bytes| Leak { size_bytes, count: self.live()[size_bytes].load(Relaxed) })
            .find(|leak| leak.count > 0)
    }

    /// Wait-free; each number is read by itself.
    pub(crate) fn usage(&self) -> Usage {
        let totals = &self.totals;
        Usage {
            object_count: totals.object_count.load(Relaxed),
            object_bytes: totals.object_bytes.load(Relaxed),
            chunk_count: totals.chunk_count.load(Relaxed),
            mapped_bytes: totals.mapped_bytes.load(Relaxed),
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
            // SAFETY: a chunk, which nobody uses any more; it is moved out of the mapping that it owns.
            let Chunk { next: after, memory, metadata, .. } = unsafe { next.read() };
            next = after.load(Relaxed);
            drop(memory);
            drop(metadata);
        }
    }
}

/// Numbers the nodes that have CPUs, from 0 on, and returns how many CPUs the largest of them has.
fn divide(parts: &[AtomicU32], nodes: Nodes) -> usize {
    let mut last_node = None;
    let mut part = 0;
    nodes(&mut |cpu, node| {
        let Some(of_cpu) = parts.get(cpu as usize) else { return };
        part += u32::from(last_node.is_some_and(|last| last != node));
        last_node = Some(node);
        of_cpu.store(part, Relaxed);
    });
    (0..=part).map(|part| parts.iter().filter(|of_cpu| of_cpu.load(Relaxed) == part).count()).max().unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three nodes, of which one has no CPU; most machines that run tests have one.
    fn three_nodes(node_of: &mut dyn FnMut(u32, u32)) -> u32 {
        [(0, 0), (2, 0), (1, 2), (3, 2), (4, 2), (9, 2)].into_iter().for_each(|(cpu, node)| node_of(cpu, node));
        3
    }

    fn heap(family: Family, is_robust: bool) -> Heap {
        let options = PoolOptions { cpu_count: 5, stride_bytes: 8192, is_robust, ..PoolOptions::default() };
        Heap::new(family, false, &options, None, three_nodes).unwrap()
    }

    #[test]
    fn copies_behind_pointers_lie_in_their_node_s_part() {
        for is_robust in [false, true] {
            let heap = heap(Family::Pointers, is_robust);
            assert_eq!((heap.shape.part_count, heap.shape.cpus_of_part_max), (2, 3));
            assert_eq!((0..5).map(|cpu| heap.part_of(cpu)).collect::<Vec<_>>(), [0, 1, 0, 1, 1]);
            // 40,960 bytes are 10 pages, 5 for each part.
            let mut handles = Vec::new();
            for size in (0..60).map(|n| n * 37).chain([heap.shape.size_bytes_max]) {
                let handle = heap.alloc(size, 64).unwrap();
                let (chunk, start, record) = heap.look_up(handle.addr().get()).unwrap();
                for cpu in 0..5 {
                    let page = (heap.copy(chunk, start, record, cpu).addr() - chunk.base.addr()) / 4096;
                    assert_eq!(page / 5, heap.part_of(cpu), "CPU {cpu}");
                }
                handles.push(handle);
            }
            heap.audit().unwrap();
            assert!(heap.usage().chunk_count > 1);
            for handle in handles {
                heap.free(handle.addr().get()).unwrap();
            }
            heap.audit().unwrap();
            assert!(heap.chunks().all(|chunk| chunk.free_count.load(Relaxed) == heap.shape.granule_count));
        }
    }

    /// Two nodes with three CPUs, while nine may come.
    fn few_of_many(node_of: &mut dyn FnMut(u32, u32)) -> u32 {
        [(0, 0), (1, 0), (8, 1)].into_iter().for_each(|(cpu, node)| node_of(cpu, node));
        2
    }

    #[test]
    fn cpus_that_are_offline_have_copies_too() {
        for family in [Family::Strided, Family::SideBySide, Family::Pointers] {
            let options = PoolOptions { cpu_count: 9, stride_bytes: 8192, is_robust: true, ..PoolOptions::default() };
            let heap = Heap::new(family, false, &options, None, few_of_many).unwrap();
            let mut handles = Vec::new();
            let mut copies = Vec::new();
            for size in [8, 100, 1000, 8] {
                let handle = heap.alloc(size, 8).unwrap().addr().get();
                let (chunk, start, record) = heap.look_up(handle).unwrap();
                for cpu in 0..9 {
                    let copy = heap.copy(chunk, start, record, cpu);
                    Bytes { start: copy, len: size, cpu: None, part: Part::Free }.fill(cpu as u8 + 1);
                    copies.push((copy.addr(), copy.addr() + size));
                }
                handles.push(handle);
            }
            copies.sort_unstable();
            assert!(copies.is_sorted_by(|former, next| former.1 <= next.0), "copies overlap");
            heap.audit().unwrap();
            for handle in handles {
                heap.free(handle).unwrap();
            }
            heap.audit().unwrap();
        }
    }

    #[test]
    fn strides_prefer_their_nodes_and_hold_zeroes_all_the_same() {
        for family in [Family::Strided, Family::SideBySide] {
            let heap = heap(family, true);
            let handle = heap.alloc(4000, 8).unwrap();
            heap.audit().unwrap();
            heap.free(handle.addr().get()).unwrap();
            heap.audit().unwrap();
        }
    }

    #[test]
    fn records_are_what_they_were() {
        for kind in [Kind::None, Kind::Object, Kind::Copy, Kind::Freed] {
            for (size, shift) in [(0, 0), (1, 6), (4095, 12), (OBJECT_SIZE_BYTES_MAX, 13)] {
                let record = Record { kind, size, shift };
                assert!(Record::from_word(record.to_word()) == record);
            }
        }
        assert!(Record::NONE.to_word() == 0, "a mapping's zeroes are no records");
    }
}

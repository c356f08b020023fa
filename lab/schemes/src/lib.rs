//! Schemes to lay out per-CPU objects and to find them: the product's, and those that the experiment `percpu` compares
//! it with.
//!
//! ```text
//!   StaticAreas    variable + table[cpu]               │ a₀ b₀ c₀ │ a₁ b₁ c₁ │          variable and table at link-time addresses
//!   Interlaced     object + (cpu << shift)             │ a₀ b₀ c₀ │ a₁ b₁ c₁ │          the product's pool
//!   Segregated     object + (cpu << shift)             │ a₀ a′₀ . │ a₁ a′₁ . │ b₀ … │   same formula, a block for each size
//!   OffsetTable    object + table[cpu]                 │ a₀ b₀ c₀ │ a₁ b₁ c₁ │          one table for all
//!   Contiguous     object + (cpu << shift of object)   │ a₀ . │ a₁ . │ b₀ . │ b₁ . │    whole cache lines
//!   PointerArray   object[cpu]                         │ a[] │ a₀ . │ a₁ . │ b[] │ …    whole cache lines, and an array
//!   FewSets        as Contiguous                       │ a₀ . │ a₁ . │ b₀ . │ b₁ . │ . │ . │    a line free after each group
//!   AllSets        as Contiguous                       │ a₀ . │ a₁ . │ . │ b₀ . │ b₁ . │ . │    the same, one line further each
//! ```
//!
//! In `Interlaced`, the objects of one CPU share cache lines with one another and none with another CPU's; in
//! `Segregated`, only objects of one size do. These two and `OffsetTable` use the memory of the product's pool;
//! `Interlaced` and `OffsetTable` differ by the computation of the address alone. In `Contiguous` and `PointerArray`, every
//! copy has its own cache lines, which are cut off the front of one mapping.
//!
//! `FewSets` and `AllSets` take the same memory, as many lines of it, and the same instructions. A CPU's copies are a
//! power of two apart in the one, so that they share few sets of a cache, and one line further in the other, so that they
//! are in all sets. That holds of physical addresses in huge pages only.
//!
//! `StaticAreas` are Linux's of 2003 (2.5.69, `asm-generic/percpu.h`, `setup_per_cpu_areas`): the linker gives each
//! variable an address in one section. At boot the section is copied for each CPU, one copy after another in whole cache
//! lines, and `__per_cpu_offset[cpu]` is the distance from the section to the CPU's copy. An access loads the CPU's
//! number, its distance, and the word.
//!
//! Each scheme adds to an object's first word in one restartable sequence, which computes the address itself (x86-64;
//! on other architectures, the address is computed first). Objects are never freed, and nothing here calls malloc,
//! because the accounting library replaces malloc and uses these schemes.
//!
//! # Limits
//! * [`OBJECT_COUNT_MAX`] objects, of [`CACHE_LINE`] bytes at most.
//! * On machines with several memory nodes, the strides of a pool prefer their CPUs' nodes; the memory of static areas
//!   and of the last four schemes is on the node that first touched it.

#[cfg(target_arch = "x86_64")]
mod arch;
mod mapping;

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dormouse_percpu::{Object, Pool, PoolOptions, Region, Rseq};
use mapping::Mapping;
pub use mapping::{Given, Room};

/// Maximum number of objects of a scheme.
pub const OBJECT_COUNT_MAX: usize = 8_192;

/// Maximum size of an object for each CPU, in bytes.
pub const CACHE_LINE: usize = 64;

const WORD: usize = size_of::<u64>();

/// Memory for objects, which lives as long as the scheme.
pub trait Scheme: Sized + Send + Sync + 'static {
    /// Type of the views that find an object's first word.
    type View: View;

    /// Makes the memory for `cpu_count` CPUs. Returns `None` if there is no memory.
    fn new(cpu_count: u32, room: Room) -> Option<Self>;

    /// Allocates an object of zeroes for every CPU, from one word to [`CACHE_LINE`] bytes.
    fn alloc(&mut self, size_bytes: usize) -> Option<<Self::View as View>::Object>;

    /// Returns a view that computes addresses in this memory.
    fn view(&self) -> Self::View;
}

/// Computes an address from an object's handle and a CPU's number.
pub trait View: Copy + Send + Sync + 'static {
    /// An object, the same in all processes that have the memory at one address.
    type Object: Copy + Send + Sync + 'static;
    /// Handle by which a process's code finds an object; usually the object itself.
    type Handle: Copy + Send + Sync + 'static;

    /// Prepares this process for a view that another process has made of memory that both have at one address.
    fn attach(self) {}

    /// Returns an object's handle in this process.
    fn handle(self, object: Self::Object) -> Self::Handle;

    /// Returns the address of a CPU's copy of an object.
    ///
    /// # Safety
    /// The object must belong to the view's memory. That memory must be alive and have `cpu`.
    unsafe fn address(self, object: Self::Handle, cpu: u32) -> *mut u64;

    /// Adds `n`, wrapping, to the word of the CPU that the thread runs on. Returns false after an abort: nothing has
    /// been added.
    ///
    /// # Safety
    /// The object must belong to the view's memory, which must be alive. Only critical sections on its CPU may write a
    /// word.
    unsafe fn add(self, rseq: Rseq, object: Self::Handle, n: u64) -> bool;
}

fn pool(options: &PoolOptions, room: Room) -> Option<Pool> {
    match room {
        Room::Own { is_lazy } => Pool::new(&PoolOptions { is_lazy, ..*options }),
        // SAFETY: `Given::new` guarantees memory that lives and that nothing else uses.
        Room::Given(given) => Pool::in_region(unsafe { Region::new(given.base(), given.size_bytes()) }, options),
    }
    .ok()
}

fn of_cpus(cpu_count: u32) -> PoolOptions {
    PoolOptions { cpu_count, ..PoolOptions::default() }
}

fn object(pool: &Pool, size_bytes: usize) -> Option<Object> {
    pool.alloc(Layout::from_size_align(size_bytes, WORD).ok()?).ok()
}

/// The product's pool.
pub struct Interlaced(Pool);

/// View of [`Interlaced`].
#[derive(Clone, Copy)]
pub struct InterlacedView(dormouse_percpu::View);

impl Scheme for Interlaced {
    type View = InterlacedView;

    fn new(cpu_count: u32, room: Room) -> Option<Interlaced> {
        pool(&of_cpus(cpu_count), room).map(Interlaced)
    }

    fn alloc(&mut self, size_bytes: usize) -> Option<Object> {
        object(&self.0, size_bytes)
    }

    fn view(&self) -> InterlacedView {
        InterlacedView(self.0.view())
    }
}

impl View for InterlacedView {
    type Object = Object;
    type Handle = Object;

    fn handle(self, object: Object) -> Object {
        object
    }

    #[inline(always)]
    unsafe fn address(self, object: Object, cpu: u32) -> *mut u64 {
        // SAFETY: the object belongs to the view's memory, which is alive and has `cpu`, as the caller guarantees.
        unsafe { self.0.address(object, cpu) }.cast()
    }

    #[inline(always)]
    unsafe fn add(self, rseq: Rseq, object: Object, n: u64) -> bool {
        // SAFETY: the object belongs to the view's memory, which is alive, and only critical sections on its CPU write
        // a word, as the caller guarantees.
        unsafe { self.0.add(rseq, object, n) }
    }
}

/// The product's pool, in blocks whose objects all have one size.
pub struct Segregated {
    pool: Pool,
    /// Rest of the last block, by object size in words.
    left: [Left; CACHE_LINE / WORD],
}

/// The rest of a block: its start, and its size in bytes.
#[derive(Clone, Copy)]
struct Left {
    next: *mut u8,
    size_bytes: usize,
}

// SAFETY: addresses in memory that belongs to no thread.
unsafe impl Send for Segregated {}
// SAFETY: nothing changes through a shared reference.
unsafe impl Sync for Segregated {}

/// Size of a block for each CPU, in bytes: one page.
const BLOCK_BYTES: usize = 4096;

impl Scheme for Segregated {
    type View = InterlacedView;

    fn new(cpu_count: u32, room: Room) -> Option<Segregated> {
        let none = Left { next: core::ptr::null_mut(), size_bytes: 0 };
        Some(Segregated { pool: pool(&of_cpus(cpu_count), room)?, left: [none; CACHE_LINE / WORD] })
    }

    fn alloc(&mut self, size_bytes: usize) -> Option<Object> {
        let words = size_bytes.div_ceil(WORD);
        let left = self.left.get_mut(words.checked_sub(1)?)?;
        if left.size_bytes < words * WORD {
            let block = self.pool.alloc(Layout::from_size_align(BLOCK_BYTES, CACHE_LINE).ok()?).ok()?;
            *left = Left { next: block.into_raw().as_ptr(), size_bytes: BLOCK_BYTES };
        }
        let object = NonNull::new(left.next).map(Object::from_raw);
        *left = Left { next: left.next.wrapping_add(words * WORD), size_bytes: left.size_bytes - words * WORD };
        object
    }

    fn view(&self) -> InterlacedView {
        InterlacedView(self.pool.view())
    }
}

/// The product's pool, limited to one area.
struct Strides {
    pool: Pool,
    stride_shift: u32,
    cpu_count: u32,
}

impl Strides {
    fn new(cpu_count: u32, room: Room) -> Option<Strides> {
        let options = of_cpus(cpu_count);
        let limit_bytes = options.stride_bytes * cpu_count as usize;
        let pool = pool(&PoolOptions { limit_bytes, ..options }, room)?;
        Some(Strides { pool, stride_shift: options.stride_bytes.trailing_zeros(), cpu_count })
    }

    fn alloc(&mut self, size_bytes: usize) -> Option<*mut u8> {
        let object = object(&self.pool, size_bytes)?;
        // SAFETY: the object lives as long as the pool, which has CPU 0.
        Some(unsafe { self.pool.view().address(object, 0) })
    }
}

/// Number of link-time areas. A program uses each for one [`StaticAreas`] at a time.
const AREA_COUNT: usize = 3;
/// Size of an area in bytes: enough for [`OBJECT_COUNT_MAX`] words. As that of a kernel's section, it is no power of two.
const AREA_BYTES: usize = OBJECT_COUNT_MAX * WORD + 10 * CACHE_LINE;
/// Maximum number of CPUs of an area: that of Linux on x86-64.
const AREA_CPUS_MAX: usize = 8_192;

/// A section with variables. Only its address is used: its content is copied for each CPU, and then it is not needed.
#[repr(align(64))]
struct Area(UnsafeCell<[u8; AREA_BYTES]>);

// SAFETY: nothing reads or writes it.
unsafe impl Sync for Area {}

static AREAS: [Area; AREA_COUNT] = [const { Area(UnsafeCell::new([0; AREA_BYTES])) }; AREA_COUNT];

/// Returns the link-time address of a section.
#[inline(always)]
fn section(area: usize) -> *mut u8 {
    AREAS[area].0.get().cast()
}

/// Distance of each CPU's copy from the section, in bytes, for each area.
static PER_CPU_OFFSETS: [[AtomicUsize; AREA_CPUS_MAX]; AREA_COUNT] =
    [const { [const { AtomicUsize::new(0) }; AREA_CPUS_MAX] }; AREA_COUNT];

/// Whether an area is in use.
static IS_USED: [AtomicBool; AREA_COUNT] = [const { AtomicBool::new(false) }; AREA_COUNT];

/// Variables of the link-time area `AREA`, copied for each CPU.
pub struct StaticAreas<const AREA: usize> {
    copies: Mapping,
    cpu_count: u32,
    /// Number of bytes of the area that have variables.
    used_bytes: usize,
}

/// View of [`StaticAreas`]. Its first member is for other processes, whose area is at another address.
#[derive(Clone, Copy)]
pub struct StaticView<const AREA: usize> {
    copies: *mut u8,
    cpu_count: u32,
}

// SAFETY: an address and a number; every use of the address is unsafe and argued there.
unsafe impl<const AREA: usize> Send for StaticView<AREA> {}
// SAFETY: nothing changes through a shared reference.
unsafe impl<const AREA: usize> Sync for StaticView<AREA> {}

impl<const AREA: usize> Scheme for StaticAreas<AREA> {
    type View = StaticView<AREA>;

    /// Returns `None` also if the area is in use.
    fn new(cpu_count: u32, room: Room) -> Option<StaticAreas<AREA>> {
        if cpu_count as usize > AREA_CPUS_MAX || IS_USED[AREA].swap(true, Ordering::Relaxed) {
            return None;
        }
        let Some(copies) = Mapping::new(AREA_BYTES * cpu_count as usize, room) else {
            IS_USED[AREA].store(false, Ordering::Relaxed);
            return None;
        };
        let areas = StaticAreas { cpu_count, used_bytes: 0, copies };
        areas.view().attach();
        Some(areas)
    }

    fn alloc(&mut self, size_bytes: usize) -> Option<usize> {
        let offset = self.used_bytes;
        self.used_bytes = offset.checked_add(size_bytes.next_multiple_of(WORD)).filter(|end| *end <= AREA_BYTES)?;
        Some(offset)
    }

    fn view(&self) -> StaticView<AREA> {
        StaticView { copies: self.copies.base(), cpu_count: self.cpu_count }
    }
}

impl<const AREA: usize> Drop for StaticAreas<AREA> {
    fn drop(&mut self) {
        IS_USED[AREA].store(false, Ordering::Relaxed);
    }
}

impl<const AREA: usize> View for StaticView<AREA> {
    /// Bytes from the start of the area.
    type Object = usize;
    /// The variable's link-time address.
    type Handle = Place;

    fn attach(self) {
        for (cpu, distance) in PER_CPU_OFFSETS[AREA].iter().take(self.cpu_count as usize).enumerate() {
            let copy = self.copies.addr() + cpu * AREA_BYTES;
            distance.store(copy.wrapping_sub(section(AREA).addr()), Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn handle(self, offset: usize) -> Place {
        // SAFETY: `alloc` returns offsets inside of the area.
        Place(unsafe { NonNull::new_unchecked(section(AREA).wrapping_add(offset)) })
    }

    // variable + table[cpu]
    #[inline(always)]
    unsafe fn address(self, Place(variable): Place, cpu: u32) -> *mut u64 {
        let distance = PER_CPU_OFFSETS[AREA][cpu as usize].load(Ordering::Relaxed);
        self.copies.with_addr(variable.addr().get().wrapping_add(distance)).cast()
    }

    #[inline(always)]
    unsafe fn add(self, rseq: Rseq, Place(variable): Place, n: u64) -> bool {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the object belongs to the view's memory, which is alive, and only critical sections on its CPU write
        // a word, as the caller guarantees; `attach` has written the table's entry for each CPU.
        return unsafe {
            let table = PER_CPU_OFFSETS[AREA].as_ptr().cast();
            arch::rseq_cpu_load_add(rseq, variable.as_ptr(), table, self.cpu_count, n)
        };
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the object belongs to the view's memory for `cpu_count` CPUs, which is alive, and only critical
        // sections on its CPU write a word, as the caller guarantees.
        return unsafe { add_at(self, rseq, Place(variable), self.cpu_count, n) };
    }
}

/// Address of a word for CPU 0, or of its array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(NonNull<u8>);

// SAFETY: an address; every use of it is unsafe and argued there.
unsafe impl Send for Place {}
// SAFETY: nothing changes through a shared reference.
unsafe impl Sync for Place {}

/// Areas, with a table of each CPU's distance from the first.
pub struct OffsetTable {
    strides: Strides,
    table: Mapping,
}

/// Offset of the table in its mapping, in bytes.
const TABLE_OFFSET_BYTES: usize = 2_112;

/// View of [`OffsetTable`].
#[derive(Clone, Copy)]
pub struct TableView {
    table: *const usize,
    cpu_count: u32,
}

// SAFETY: an address of memory that nothing writes, and a number.
unsafe impl Send for TableView {}
// SAFETY: nothing changes through a shared reference.
unsafe impl Sync for TableView {}

impl Scheme for OffsetTable {
    type View = TableView;

    fn new(cpu_count: u32, room: Room) -> Option<OffsetTable> {
        let table_bytes = TABLE_OFFSET_BYTES + cpu_count as usize * size_of::<usize>();
        let (of_table, of_areas) = room.split(table_bytes)?;
        let strides = Strides::new(cpu_count, of_areas)?;
        // The table starts in a part of a page that differs from that of the counter of the experiment's `hot`: a load
        // waits for a store whose address has the same lowest twelve bits.
        let mut table = Mapping::new(table_bytes, of_table)?;
        table.cut(TABLE_OFFSET_BYTES)?;
        for cpu in 0..cpu_count as usize {
            let entry = table.cut(size_of::<usize>())?.cast::<usize>();
            // SAFETY: just cut out of the mapping, one entry after another, and aligned.
            unsafe { entry.write(cpu << strides.stride_shift) };
        }
        Some(OffsetTable { strides, table })
    }

    fn alloc(&mut self, size_bytes: usize) -> Option<Place> {
        self.strides.alloc(size_bytes).and_then(NonNull::new).map(Place)
    }

    fn view(&self) -> TableView {
        TableView {
            table: self.table.base().wrapping_add(TABLE_OFFSET_BYTES).cast(),
            cpu_count: self.strides.cpu_count,
        }
    }
}

impl View for TableView {
    type Object = Place;
    type Handle = Place;

    fn handle(self, object: Place) -> Place {
        object
    }

    // object + table[cpu]
    #[inline(always)]
    unsafe fn address(self, Place(object): Place, cpu: u32) -> *mut u64 {
        // SAFETY: the table has an entry for each CPU, was written before the view was made, and lives as long as the memory.
        let offset = unsafe { self.table.wrapping_add(cpu as usize).read() };
        object.as_ptr().wrapping_add(offset).cast()
    }

    #[inline(always)]
    unsafe fn add(self, rseq: Rseq, Place(object): Place, n: u64) -> bool {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the object belongs to the view's memory, which is alive, and only critical sections on its CPU write
        // a word, as the caller guarantees; the table has an entry for each CPU.
        return unsafe { arch::rseq_cpu_load_add(rseq, object.as_ptr(), self.table, self.cpu_count, n) };
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the object belongs to the view's memory for `cpu_count` CPUs, which is alive, and only critical
        // sections on its CPU write a word, as the caller guarantees.
        return unsafe { add_at(self, rseq, Place(object), self.cpu_count, n) };
    }
}

/// All copies of a word next to each other, each with a cache line of its own.
pub struct Contiguous {
    memory: Mapping,
    cpu_count: u32,
}

/// View of [`Contiguous`].
#[derive(Clone, Copy)]
pub struct ContiguousView {
    cpu_count: u32,
}

/// Bits of a [`Contiguous`] handle that contain the shift between copies. They are free because copies are whole lines.
const SHIFT_BITS: usize = CACHE_LINE - 1;

impl Contiguous {
    /// Returns the handle of an object whose copies are from `first` on, a line each.
    fn place(first: *mut u8) -> Option<Place> {
        NonNull::new(first.wrapping_add(CACHE_LINE.trailing_zeros() as usize)).map(Place)
    }
}

impl Scheme for Contiguous {
    type View = ContiguousView;

    fn new(cpu_count: u32, room: Room) -> Option<Contiguous> {
        let memory = Mapping::new(OBJECT_COUNT_MAX * cpu_count as usize * CACHE_LINE, room)?;
        Some(Contiguous { memory, cpu_count })
    }

    fn alloc(&mut self, size_bytes: usize) -> Option<Place> {
        if size_bytes > CACHE_LINE {
            return None;
        }
        Contiguous::place(self.memory.cut(self.cpu_count as usize * CACHE_LINE)?)
    }

    fn view(&self) -> ContiguousView {
        ContiguousView { cpu_count: self.cpu_count }
    }
}

impl View for ContiguousView {
    type Object = Place;
    type Handle = Place;

    fn handle(self, object: Place) -> Place {
        object
    }

    // (object & !63) + (cpu << (object & 63))
    #[inline(always)]
    unsafe fn address(self, Place(object): Place, cpu: u32) -> *mut u64 {
        let first = object.as_ptr().map_addr(|address| address & !SHIFT_BITS);
        first.wrapping_add((cpu as usize).wrapping_shl(object.addr().get() as u32)).cast()
    }

    #[inline(always)]
    unsafe fn add(self, rseq: Rseq, Place(object): Place, n: u64) -> bool {
        let first = object.as_ptr().map_addr(|address| address & !SHIFT_BITS).cast();
        // SAFETY: the object belongs to the view's memory, which is alive, and only critical sections on its CPU write
        // a word, as the caller guarantees. The shift instruction uses the lowest six bits of its count.
        unsafe { rseq.add_by_stride(first, object.addr().get() as u32, self.cpu_count, n) }
    }
}

/// Objects of [`Contiguous`] whose copies for a CPU are in few sets of a cache.
pub type FewSets = Spaced<0>;
/// Objects of [`Contiguous`] whose copies for a CPU are in all sets of a cache.
pub type AllSets = Spaced<1>;

/// Groups of objects, as many as an object has lines, with room for one object more. Each object of a group is `TURN` lines
/// further from the one before than its own size.
pub struct Spaced<const TURN: usize> {
    memory: Mapping,
    cpu_count: u32,
    count: usize,
    group: *mut u8,
}

// SAFETY: an address in memory that belongs to no thread.
unsafe impl<const TURN: usize> Send for Spaced<TURN> {}
// SAFETY: nothing changes through a shared reference.
unsafe impl<const TURN: usize> Sync for Spaced<TURN> {}

impl<const TURN: usize> Spaced<TURN> {
    /// Returns the number of bytes that `count` objects for `cpu_count` CPUs take.
    pub fn size_bytes(count: usize, cpu_count: u32) -> usize {
        let lines = (cpu_count as usize).next_power_of_two();
        count.div_ceil(lines) * (lines + 1) * lines * CACHE_LINE
    }
}

impl<const TURN: usize> Scheme for Spaced<TURN> {
    type View = ContiguousView;

    fn new(cpu_count: u32, room: Room) -> Option<Spaced<TURN>> {
        let memory = Mapping::new(Self::size_bytes(OBJECT_COUNT_MAX, cpu_count), room)?;
        Some(Spaced { memory, cpu_count, count: 0, group: core::ptr::null_mut() })
    }

    fn alloc(&mut self, size_bytes: usize) -> Option<Place> {
        if size_bytes > CACHE_LINE {
            return None;
        }
        let lines = (self.cpu_count as usize).next_power_of_two();
        let index = self.count % lines;
        if index == 0 {
            self.group = self.memory.cut(Self::size_bytes(lines, self.cpu_count))?;
        }
        self.count += 1;
        Contiguous::place(self.group.wrapping_add(index * (lines + TURN) * CACHE_LINE))
    }

    fn view(&self) -> ContiguousView {
        ContiguousView { cpu_count: self.cpu_count }
    }
}

/// An array of pointers for each word, one for each CPU, to copies with a cache line each.
pub struct PointerArray {
    memory: Mapping,
    cpu_count: u32,
}

/// View of [`PointerArray`].
#[derive(Clone, Copy)]
pub struct PointerView {
    cpu_count: u32,
}

fn array_bytes(cpu_count: u32) -> usize {
    (cpu_count as usize * size_of::<*mut u64>()).next_multiple_of(CACHE_LINE)
}

impl Scheme for PointerArray {
    type View = PointerView;

    fn new(cpu_count: u32, room: Room) -> Option<PointerArray> {
        let bytes = array_bytes(cpu_count) + cpu_count as usize * CACHE_LINE;
        let memory = Mapping::new(OBJECT_COUNT_MAX * bytes, room)?;
        Some(PointerArray { memory, cpu_count })
    }

    fn alloc(&mut self, size_bytes: usize) -> Option<Place> {
        if size_bytes > CACHE_LINE {
            return None;
        }
        let array = self.memory.cut(array_bytes(self.cpu_count))?;
        for cpu in 0..self.cpu_count as usize {
            let copy = self.memory.cut(CACHE_LINE)?.cast::<u64>();
            let entry = array.cast::<*mut u64>().wrapping_add(cpu);
            // SAFETY: inside the array that was just cut out, to which nothing else has a pointer yet.
            unsafe { entry.write(copy) };
        }
        NonNull::new(array).map(Place)
    }

    fn view(&self) -> PointerView {
        PointerView { cpu_count: self.cpu_count }
    }
}

impl View for PointerView {
    type Object = Place;
    type Handle = Place;

    fn handle(self, object: Place) -> Place {
        object
    }

    // object[cpu]
    #[inline(always)]
    unsafe fn address(self, Place(object): Place, cpu: u32) -> *mut u64 {
        let entry = object.as_ptr().cast::<*mut u64>().wrapping_add(cpu as usize);
        // SAFETY: an array with an entry for each CPU, which nothing writes after `alloc` has returned it.
        unsafe { entry.read() }
    }

    #[inline(always)]
    unsafe fn add(self, rseq: Rseq, Place(object): Place, n: u64) -> bool {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the object belongs to the view's memory, which is alive, and only critical sections on its CPU write
        // a word, as the caller guarantees; the array has an entry for each CPU.
        return unsafe { arch::rseq_cpu_deref_add(rseq, object.as_ptr().cast(), self.cpu_count, n) };
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: the object belongs to the view's memory for `cpu_count` CPUs, which is alive, and only critical
        // sections on its CPU write a word, as the caller guarantees.
        return unsafe { add_at(self, rseq, Place(object), self.cpu_count, n) };
    }
}

/// Adds `n` to the word of the CPU that the thread runs on. Returns false after an abort.
///
/// # Safety
/// The object must belong to the view's memory for `cpu_count` CPUs, which must be alive. Only critical sections on its
/// CPU may write a word.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn add_at<V: View>(view: V, rseq: Rseq, object: V::Handle, cpu_count: u32, n: u64) -> bool {
    let cpu = rseq.cpu_id_start();
    if cpu >= cpu_count {
        return false;
    }
    // SAFETY: the object belongs to the view's memory, which is alive, as the caller guarantees, and `cpu` is below
    // `cpu_count`.
    let word = unsafe { view.address(object, cpu) };
    // SAFETY: the word of `cpu`, which only critical sections on that CPU write, as the caller guarantees.
    unsafe { rseq.add(cpu, word, n) }
}

#[cfg(test)]
mod tests;

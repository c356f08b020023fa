//! How an object's handle and a CPU's number become an address: the five schemes and nothing more.

use core::ptr::NonNull;

use crate::rseq::Rseq;

/// A way to lay copies out and to find them. Implemented by [`StaticAreas`], [`PointerArray`], [`Contiguous`],
/// [`OffsetTable`] and [`Interlaced`], and by nothing else.
pub trait Scheme: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The scheme's name in texts.
    const NAME: &'static str;
}

/// A scheme whose copies are found from an offset alone, so that another process may map the memory elsewhere. All except
/// [`PointerArray`], whose arrays contain addresses of the process that allocates.
pub trait Relocatable: Scheme {}

/// One area at a fixed place, for objects that are known when the program is linked or starts: offset + (cpu << shift). It
/// does not grow. The linker may have laid out its memory: see [`Pool::in_region`](super::Pool::in_region). A handle is an
/// offset that only its own pool's views understand.
#[derive(Debug, Clone, Copy)]
pub struct StaticAreas;

/// Each object is an array of pointers, one for each CPU, to copies that are allocated one by one and fill whole cache
/// lines: one more dereference, not interlaced.
#[derive(Debug, Clone, Copy)]
pub struct PointerArray;

/// The copies of one object stand next to each other, a power of two of whole cache lines apart: pointer arithmetic, not
/// interlaced.
#[derive(Debug, Clone, Copy)]
pub struct Contiguous;

/// Blocks, interlaced: `pointer + table[cpu]`, with one table for all objects of the pool.
#[derive(Debug, Clone, Copy)]
pub struct OffsetTable;

/// Interlaced with pointer arithmetic: pointer + (cpu << shift). The default.
#[derive(Debug, Clone, Copy)]
pub struct Interlaced;

/// Which of the two ways to place copies a scheme uses, and what its handles are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// A chunk has a stride for each CPU, and an object the same offset in each.
    Strided,
    /// A chunk is one heap, and an object's copies stand side by side in it.
    SideBySide,
    /// A chunk is one heap, out of which arrays and copies are cut one by one.
    Pointers,
}

pub(crate) mod sealed {
    use super::{Family, NonNull, Rseq};

    pub trait Sealed: Sized {
        /// What address computation needs besides the handle.
        type Data: Copy;
        const FAMILY: Family;
        /// The pool's memory is one chunk for ever.
        const IS_FIXED: bool;
        /// Strides are found by a shift.
        const IS_SHIFTED: bool;
        /// Handles are offsets, biased by the pool's tag, and not addresses.
        const IS_OFFSET: bool;

        fn data(parameters: &Parameters) -> Self::Data;

        /// # Safety
        /// `object` is a live object of the pool that `data` is of, and the pool has `cpu`.
        unsafe fn address(data: Self::Data, object: NonNull<u8>, cpu: u32) -> *mut u8;

        /// Adds to the copy of whatever CPU the thread is on.
        ///
        /// # Safety
        /// `object` is a live object of the pool that `data` is of, with `cpu_count` CPUs; its first eight bytes are a word,
        /// aligned, that only sections on its CPU write.
        unsafe fn add(data: Self::Data, object: NonNull<u8>, cpu_count: u32, rseq: Rseq, n: u64) -> bool;
    }

    /// What a pool knows about itself when it makes a view.
    pub struct Parameters {
        /// Of a fixed pool: its memory, less the tag that its handles carry.
        pub base_biased: *mut u8,
        pub stride_shift: u32,
        pub table: *const usize,
    }
}

use sealed::{Parameters, Sealed};

/// The bits of a [`Contiguous`] handle that contain the shift between copies. Objects are aligned to cache lines, so these
/// bits are free. The shift instruction uses only these bits of its count, so they cost no instruction.
pub(crate) const SHIFT_BITS: usize = 63;

impl Scheme for StaticAreas {
    const NAME: &'static str = "static areas";
}
impl Relocatable for StaticAreas {}
impl Sealed for StaticAreas {
    type Data = (*mut u8, u32);
    const FAMILY: Family = Family::Strided;
    const IS_FIXED: bool = true;
    const IS_SHIFTED: bool = true;
    const IS_OFFSET: bool = true;

    fn data(parameters: &Parameters) -> Self::Data {
        (parameters.base_biased, parameters.stride_shift)
    }

    // base + offset + (cpu << shift)
    #[inline(always)]
    unsafe fn address((base, shift): Self::Data, object: NonNull<u8>, cpu: u32) -> *mut u8 {
        base.wrapping_add(object.addr().get()).wrapping_add((cpu as usize) << (shift & 63))
    }

    #[inline(always)]
    unsafe fn add((base, shift): Self::Data, object: NonNull<u8>, cpu_count: u32, rseq: Rseq, n: u64) -> bool {
        let first = base.wrapping_add(object.addr().get()).cast();
        // SAFETY: the caller's promise.
        unsafe { rseq.add_by_stride(first, shift, cpu_count, n) }
    }
}

impl Scheme for PointerArray {
    const NAME: &'static str = "pointer array";
}
impl Sealed for PointerArray {
    type Data = ();
    const FAMILY: Family = Family::Pointers;
    const IS_FIXED: bool = false;
    const IS_SHIFTED: bool = false;
    const IS_OFFSET: bool = false;

    fn data(_: &Parameters) -> Self::Data {}

    // object[cpu]
    #[inline(always)]
    unsafe fn address((): Self::Data, object: NonNull<u8>, cpu: u32) -> *mut u8 {
        let entry = object.as_ptr().cast::<*mut u8>().wrapping_add(cpu as usize);
        // SAFETY: a live object is an array with an entry for each CPU of the pool, aligned to a cache line, which nobody
        // writes while the object lives.
        unsafe { entry.read() }
    }

    #[inline(always)]
    unsafe fn add((): Self::Data, object: NonNull<u8>, cpu_count: u32, rseq: Rseq, n: u64) -> bool {
        // SAFETY: the caller's promise; the object is an array with an entry for each CPU.
        unsafe { rseq.add_by_array(object.as_ptr().cast(), cpu_count, n) }
    }
}

impl Scheme for Contiguous {
    const NAME: &'static str = "contiguous";
}
impl Relocatable for Contiguous {}
impl Sealed for Contiguous {
    type Data = ();
    const FAMILY: Family = Family::SideBySide;
    const IS_FIXED: bool = false;
    const IS_SHIFTED: bool = false;
    const IS_OFFSET: bool = false;

    fn data(_: &Parameters) -> Self::Data {}

    // (object & !63) + (cpu << (object & 63))
    #[inline(always)]
    unsafe fn address((): Self::Data, object: NonNull<u8>, cpu: u32) -> *mut u8 {
        let tagged = object.as_ptr();
        let base = tagged.map_addr(|address| address & !SHIFT_BITS);
        base.wrapping_add((cpu as usize).wrapping_shl(tagged.addr() as u32))
    }

    #[inline(always)]
    unsafe fn add((): Self::Data, object: NonNull<u8>, cpu_count: u32, rseq: Rseq, n: u64) -> bool {
        let tagged = object.as_ptr();
        let first = tagged.map_addr(|address| address & !SHIFT_BITS).cast();
        // SAFETY: the caller's promise.
        unsafe { rseq.add_by_stride(first, tagged.addr() as u32, cpu_count, n) }
    }
}

impl Scheme for OffsetTable {
    const NAME: &'static str = "offset table";
}
impl Relocatable for OffsetTable {}
impl Sealed for OffsetTable {
    type Data = *const usize;
    const FAMILY: Family = Family::Strided;
    const IS_FIXED: bool = false;
    const IS_SHIFTED: bool = false;
    const IS_OFFSET: bool = false;

    fn data(parameters: &Parameters) -> Self::Data {
        parameters.table
    }

    // object + table[cpu]
    #[inline(always)]
    unsafe fn address(table: Self::Data, object: NonNull<u8>, cpu: u32) -> *mut u8 {
        // SAFETY: the table has an entry for each CPU of the pool, is written before the first view exists, and lives as
        // long as the pool.
        let offset = unsafe { table.wrapping_add(cpu as usize).read() };
        object.as_ptr().wrapping_add(offset)
    }

    #[inline(always)]
    unsafe fn add(table: Self::Data, object: NonNull<u8>, cpu_count: u32, rseq: Rseq, n: u64) -> bool {
        // SAFETY: the caller's promise; the table has an entry for each CPU.
        unsafe { rseq.add_by_table(object.as_ptr(), table, cpu_count, n) }
    }
}

impl Scheme for Interlaced {
    const NAME: &'static str = "interlaced";
}
impl Relocatable for Interlaced {}
impl Sealed for Interlaced {
    type Data = u32;
    const FAMILY: Family = Family::Strided;
    const IS_FIXED: bool = false;
    const IS_SHIFTED: bool = true;
    const IS_OFFSET: bool = false;

    fn data(parameters: &Parameters) -> Self::Data {
        parameters.stride_shift
    }

    // object + (cpu << shift)
    #[inline(always)]
    unsafe fn address(shift: Self::Data, object: NonNull<u8>, cpu: u32) -> *mut u8 {
        object.as_ptr().wrapping_add((cpu as usize) << (shift & 63))
    }

    #[inline(always)]
    unsafe fn add(shift: Self::Data, object: NonNull<u8>, cpu_count: u32, rseq: Rseq, n: u64) -> bool {
        // SAFETY: the caller's promise.
        unsafe { rseq.add_by_stride(object.as_ptr().cast(), shift, cpu_count, n) }
    }
}

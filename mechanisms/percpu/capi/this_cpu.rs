//! Areas and per-CPU variables for C: the functions of `dormouse/this_cpu.h`. Most operations are inline in the header.
//!
//! ```text
//!   one mapping   │ head: CArea │ stride 0: copy of the section │ stride 1: copy of the section │ …
//!                               ▲ first                         delta = first copy of a variable - variable
//! ```
//!
//! The copies of a library that was unloaded stay mapped: a thread may still run in it while the process ends. The next
//! object whose variables need strides of the same size uses them again.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr};

use dormouse_percpu::{
    Area, FenceError, List, ListSlot, Node, Object, Rseq, Update, View, Width, WordError, Words, fence, possible_cpus,
};

/// `struct dormouse_percpu_area`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CDescription {
    rseq_offset: isize,
    index_offset: isize,
    first: *mut u8,
    delta: isize,
    stride_shift: u32,
    count: u32,
    whole: *const CArea,
    /// `rseq_offset` for the header's sections of variables; 0 if the library takes their place.
    here_offset: isize,
}

/// An area: what C sees of it, followed by what only the library uses.
#[repr(C)]
pub struct CArea {
    seen: CDescription,
    view: View,
    rseq: Option<Rseq>,
    /// Words of the area; `None` if copies belong to concurrency ids, or if processes share the memory and this process
    /// has no rseq.
    words: Option<Words>,
    is_by_concurrency_id: bool,
    /// Number of copies for which there is room.
    reserved: u32,
    /// Whether the area is in [`UNUSED`].
    is_unused: AtomicBool,
    /// Next area there.
    next: AtomicPtr<CArea>,
}

const BY_CONCURRENCY_ID: c_uint = 1;

/// Offset of `cpu_id` in the rseq structure.
const CPU_ID: isize = 4;

impl CArea {
    /// Describes a pool's memory. Objects of a pool have addresses of their own, so `first` is not used.
    pub(super) fn of_pool(view: View, words: Option<Words>, rseq: Option<Rseq>) -> CArea {
        CArea::new(null_mut(), view, words, rseq)
    }

    /// Makes C find the area, which stays where it is from now on.
    pub(super) fn settle(&mut self) {
        self.seen.whole = self;
    }

    fn new(first: *mut u8, view: View, words: Option<Words>, rseq: Option<Rseq>) -> CArea {
        let (stride_shift, count) = (view.stride_shift(), view.cpu_count());
        let rseq_offset = rseq.map_or_else(Rseq::unregistered_offset, Rseq::offset);
        let index_offset = rseq_offset + CPU_ID;
        let seen = CDescription {
            rseq_offset,
            index_offset,
            first,
            delta: 0,
            stride_shift,
            count,
            whole: ptr::null(),
            here_offset: 0,
        };
        CArea {
            seen,
            view,
            rseq,
            words,
            is_by_concurrency_id: false,
            reserved: count,
            is_unused: AtomicBool::new(false),
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// Maps an area with zeroed copies of at least `size_bytes` bytes, each aligned to a page, and with room for
    /// `reserved` copies, if these are more.
    fn map(size_bytes: usize, reserved: u32) -> Option<NonNull<CArea>> {
        let stride = size_bytes.checked_next_power_of_two()?.max(super::STRIDES);
        let count = possible_cpus();
        let reserved = reserved.max(count);
        let strides_bytes = stride.checked_mul(reserved as usize)?;
        let mapping = super::map(strides_bytes.checked_add(super::STRIDES)?)?;
        let first = mapping.as_ptr().wrapping_byte_add(super::STRIDES).cast::<u8>();
        // SAFETY: the mapping has `count` zeroed strides from there on, and stays until `dormouse_percpu_area_destroy`.
        let area = unsafe { Area::new(first, stride.trailing_zeros(), count) };
        let rseq = super::detect();
        let head = CArea { reserved, ..CArea::new(first, View::of_area(area), Some(Words::of_area(area, rseq)), rseq) };
        let place = mapping.cast::<CArea>();
        // SAFETY: the start of the mapping, which no other thread knows, is aligned for a head and has room for it.
        unsafe { place.write(head) };
        // SAFETY: it was written just now.
        unsafe { &mut *place.as_ptr() }.settle();
        Some(place)
    }

    /// Returns the size of all copies, in bytes.
    fn size_bytes(&self) -> usize {
        (self.seen.count as usize) << self.seen.stride_shift
    }

    /// Returns the list whose slot in the first copy is at `first`.
    ///
    /// # Safety
    /// A list's slot is there, in every copy.
    unsafe fn list(&self, first: NonNull<ListSlot>) -> List {
        // SAFETY: the caller guarantees that slots are there, which only lists write.
        unsafe { List::of_object(self.view, Object::from_raw(first.cast()), 0) }
    }
}

const _: () = assert!(size_of::<CArea>() <= super::STRIDES && core::mem::offset_of!(CArea, view) == 56);

/// Areas of objects that were unloaded.
static UNUSED: AtomicPtr<CArea> = AtomicPtr::new(null_mut());

/// Puts an area on the list of those that are not used.
fn put_aside(area: &CArea) {
    area.is_unused.store(true, Relaxed);
    let mut first = UNUSED.load(Relaxed);
    loop {
        area.next.store(first, Relaxed);
        // (U) pairs with (V): what the last user wrote is visible to the next.
        match UNUSED.compare_exchange_weak(first, ptr::from_ref(area).cast_mut(), Release, Relaxed) {
            Ok(_) => return,
            Err(now) => first = now,
        }
    }
}

/// Takes an area with strides of that size, and room for `reserved` of them, from the list, zeroed.
fn take_unused(stride: usize, reserved: u32) -> Option<NonNull<CArea>> {
    // The whole list, so that no other thread can change what this one reads. (V) pairs with (U).
    let mut next = UNUSED.swap(null_mut(), Acquire);
    let mut found = None;
    while let Some(area) = NonNull::new(next) {
        // SAFETY: areas on the list are never unmapped, and only this thread has this one.
        let head = unsafe { area.as_ref() };
        next = head.next.load(Relaxed);
        if found.is_none() && 1 << head.seen.stride_shift == stride && head.reserved >= reserved {
            found = Some(area);
        } else {
            put_aside(head);
        }
    }
    let found = found?;
    // SAFETY: this thread alone has the area.
    let head = unsafe { found.as_ref() };
    // SAFETY: the copies are anonymous memory from `first` on, at a multiple of a page, and nothing refers to them.
    if unsafe { libc::madvise(head.seen.first.cast(), head.size_bytes(), libc::MADV_DONTNEED) } != 0 {
        // SAFETY: the copies are mapped and writable from `first` on.
        unsafe { ptr::write_bytes(head.seen.first, 0, head.size_bytes()) };
    }
    head.is_unused.store(false, Relaxed);
    Some(found)
}

/// Makes copies of an object's variables, once. Without memory for them, the description stays empty.
///
/// # Safety
/// `description` is the object's, `start` and `stop` are the bounds of its section. The object's constructors have not
/// all run, so no other thread uses its variables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_register(description: &mut CDescription, start: *const u8, stop: *const u8) {
    if !description.whole.is_null() {
        return;
    }
    // Copies keep the alignment of variables, up to a page.
    let lead = start.addr() % super::STRIDES;
    let len = stop.addr() - start.addr();
    let stride = (lead + len).next_power_of_two().max(super::STRIDES);
    let make = |stride, reserved| take_unused(stride, reserved).or_else(|| CArea::map(stride, reserved));
    let inline = (stride <= INLINE_STRIDE).then(|| make(INLINE_STRIDE, INLINE_COUNT)).flatten();
    let Some(mut made) = inline.or_else(|| make(stride, 0)) else { return };
    // SAFETY: this thread alone has the area.
    let seen = unsafe { &mut made.as_mut().seen };
    seen.delta = (seen.first.addr() + lead).wrapping_sub(start.addr()).cast_signed();
    // SAFETY: the caller guarantees that the section has these bytes, and nothing writes to it.
    let image = unsafe { core::slice::from_raw_parts(start, len) };
    for cpu in 0..seen.count as usize {
        let copy = seen.first.wrapping_add((cpu << seen.stride_shift) + lead);
        for (offset, piece) in (0..len).step_by(super::STRIDES).zip(image.chunks(super::STRIDES)) {
            // Zeroes are there already, so CPUs that never run use no memory for them.
            if piece.iter().any(|byte| *byte != 0) {
                // SAFETY: the copy has `len` bytes from there on, and the section is elsewhere.
                unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), copy.wrapping_add(offset), piece.len()) };
            }
        }
    }
    *description = CDescription { here_offset: if inline.is_some() { seen.rseq_offset } else { 0 }, ..*seen };
}

/// Distance of copies, and the number of them, that are constants in the header's sections of variables. (The memory is
/// taken by the CPUs that run.)
const INLINE_STRIDE: usize = 1 << 18;
const INLINE_COUNT: u32 = 1024;

/// Gives the copies of an object that is being unloaded to the next one.
///
/// # Safety
/// An area of `dormouse_percpu_register`. The loader runs the destructors of the object's translation units, which call
/// this, one after another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_forget(area: &CArea) {
    if !area.is_unused.load(Relaxed) {
        put_aside(area);
    }
}

/// Creates an area; NULL and `errno` on failure.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_area_create(size_bytes: usize, flags: c_uint) -> Option<NonNull<CArea>> {
    let made = if size_bytes == 0 || flags & !BY_CONCURRENCY_ID != 0 {
        Err(libc::EINVAL)
    } else {
        CArea::map(size_bytes, 0).ok_or(libc::ENOMEM)
    };
    super::answer(made).map(|mut made| {
        // SAFETY: this thread alone has the area.
        let head = unsafe { made.as_mut() };
        if flags & BY_CONCURRENCY_ID != 0
            && let Some(offset) = head.rseq.and_then(Rseq::concurrency_id_offset)
        {
            (head.seen.index_offset, head.words, head.is_by_concurrency_id) = (offset, None, true);
        }
        made
    })
}

/// Whether copies belong to concurrency ids.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_area_is_by_concurrency_id(area: &CArea) -> c_int {
    c_int::from(area.is_by_concurrency_id)
}

/// Unmaps an area.
///
/// # Safety
/// NULL, or an area that was created and not destroyed, and that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_area_destroy(area: Option<NonNull<CArea>>) {
    if let Some(area) = area {
        // SAFETY: the caller guarantees that it was created and is not used any more.
        let size_bytes = super::STRIDES + unsafe { area.as_ref() }.size_bytes();
        super::unmap(area.as_ptr().cast(), size_bytes);
    }
}

/// Changes a word for an inline operation whose section did not commit; returns 0 or a negative errno, -EAGAIN for
/// another section.
///
/// # Safety
/// The word whose first copy is at `first` is in the area, aligned to its size, and written only by operations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_update(
    area: &CArea,
    first: NonNull<u8>,
    operation: c_uint,
    size_bytes: usize,
    operand: u64,
    expected: u64,
    old: &mut MaybeUninit<u64>,
) -> c_int {
    let update = match operation {
        0 => Update::Add(operand),
        1 => Update::Exchange(operand),
        _ => Update::CompareExchange { expected, value: operand },
    };
    let width = if size_bytes == 4 { Width::Four } else { Width::Eight };
    let Some(words) = area.words else {
        return if area.is_by_concurrency_id { AGAIN } else { -libc::ENOTSUP };
    };
    // SAFETY: the caller guarantees that the word is in the area, aligned, and written only by operations.
    match unsafe { words.update(Object::from_raw(first), 0, width, update) } {
        Ok(value) => {
            old.write(value);
            0
        }
        Err(WordError::NoCopy { .. }) => -libc::ERANGE,
        Err(_) => -libc::ENOTSUP,
    }
}

const AGAIN: c_int = -libc::EAGAIN;

/// [`List::push`].
///
/// # Safety
/// A list's slot is at `first`, in every copy; the node belongs to the caller and is on no list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_push(area: &CArea, first: NonNull<ListSlot>, node: NonNull<Node>) {
    // SAFETY: the caller guarantees that the slot is there.
    let list = unsafe { area.list(first) };
    // SAFETY: the caller gives the node to the list.
    unsafe { list.push(area.rseq_of_cpus(), node) };
}

/// [`List::pop`]; NULL if no node was found.
///
/// # Safety
/// A list's slot is at `first`, in every copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_pop(area: &CArea, first: NonNull<ListSlot>) -> Option<NonNull<Node>> {
    // SAFETY: the caller guarantees that the slot is there.
    unsafe { area.list(first) }.pop(area.rseq_of_cpus())
}

/// [`List::drain`].
///
/// # Safety
/// The conditions of [`List::drain`]; a list's slot is at `first`, in every copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_percpu_drain(
    area: &CArea,
    first: NonNull<ListSlot>,
    take: extern "C" fn(NonNull<Node>, *mut c_void),
    argument: *mut c_void,
) {
    // SAFETY: the caller guarantees that the slot is there.
    let list = unsafe { area.list(first) };
    // SAFETY: the caller guarantees that no other thread uses the list.
    unsafe { list.drain(|node| take(node, argument)) };
}

impl CArea {
    /// Returns the rseq for sections that compare CPUs: none in an area by concurrency ids, whose lists the library
    /// changes by atomic instructions.
    fn rseq_of_cpus(&self) -> Option<Rseq> {
        self.rseq.filter(|_| !self.is_by_concurrency_id)
    }
}

/// Returns the number of the copy of the CPU that the thread was on a moment ago, less than the number of copies.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_index(area: &CArea) -> u32 {
    dormouse_percpu::current_cpu(area.rseq) % area.seen.count
}

/// [`fence`]; returns 0 or a negative errno. `errno` keeps its value.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_percpu_fence(cpu: c_int) -> c_int {
    // SAFETY: the call has no arguments; the address is the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own `errno`, which is valid as long as the thread lives.
    let kept = unsafe { errno.read() };
    let cpu = match u32::try_from(cpu) {
        Ok(cpu) => Some(cpu),
        Err(_) if cpu == -1 => None,
        Err(_) => return -libc::EINVAL,
    };
    let result = match fence(cpu) {
        Ok(()) => 0,
        Err(FenceError::NoSuchCpu { .. }) => -libc::EINVAL,
        Err(FenceError::Unsupported) => -libc::ENOTSUP,
    };
    // SAFETY: the thread's own `errno`, which is valid as long as the thread lives.
    unsafe { errno.write(kept) };
    result
}

//! `malloc`, `calloc`, `realloc`, `free`, and the allocator of this library's own Rust code.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;

use dormouse::event;
use libc::size_t;

use crate::real::{self, wrappers};
use crate::{arena, sanitizer};

wrappers! {
    /// `malloc(3)`.
    malloc(size: size_t) -> *mut c_void: ptr => event!(libc.malloc, size, ptr);
    /// `calloc(3)`.
    calloc(count: size_t, size: size_t) -> *mut c_void: ptr => event!(libc.calloc, count, size, ptr);
}

/// `realloc(3)`.
///
/// # Safety
/// The conditions of libc's `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn realloc(old: *mut c_void, size: size_t) -> *mut c_void {
    if sanitizer::is_there() && !arena::contains(old) {
        // SAFETY: the caller satisfies the conditions of libc's `realloc`.
        return unsafe { real::realloc::alone(old, size) };
    }
    let ptr = if arena::contains(old) {
        // SAFETY: the arena contains `old`, and the caller guarantees that it is a block.
        unsafe { move_out(old, size) }
    } else {
        // SAFETY: the caller satisfies the conditions of libc's `realloc`, and the block is not of the arena.
        unsafe { real::realloc::call(old, size) }
    };
    event!(libc.realloc, old, size, ptr);
    ptr
}

/// `free(3)`. Its event precedes the call, because afterwards another thread may be given the same address.
///
/// # Safety
/// The conditions of libc's `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn free(ptr: *mut c_void) {
    if sanitizer::is_there() && !arena::contains(ptr) {
        // SAFETY: the caller satisfies the conditions of libc's `free`.
        return unsafe { real::free::alone(ptr) };
    }
    event!(libc.free, ptr);
    // SAFETY: the caller satisfies the conditions of libc's `free`.
    unsafe { release(ptr) };
}

/// Moves a block out of the arena.
///
/// # Safety
/// `old` is a block of the arena.
#[cold]
unsafe fn move_out(old: *mut c_void, size: size_t) -> *mut c_void {
    // SAFETY: malloc(3) accepts any size.
    let ptr = unsafe { real::malloc::call(size) };
    if !ptr.is_null() {
        // SAFETY: the caller guarantees a block of the arena.
        let old_size = unsafe { arena::size_of_block(old) };
        // SAFETY: both blocks have at least that size, and do not overlap because one of them is new.
        unsafe { ptr.copy_from_nonoverlapping(old, old_size.min(size)) };
    }
    ptr
}

/// # Safety
/// The conditions of libc's `free`, or `ptr` is a block of the arena.
#[inline(always)]
unsafe fn release(ptr: *mut c_void) {
    if !arena::contains(ptr) {
        // SAFETY: the block is not of the arena, so the caller satisfies the conditions of libc's `free`.
        unsafe { real::free::call(ptr) };
    }
}

/// Allocator that uses the real functions, not the wrappers, because the tracer's own allocations are not the
/// program's.
struct RealAllocator;

/// Alignment that `malloc` guarantees (C11 7.22.3, x86-64 and AArch64 psABI: `max_align_t`).
const MALLOC_ALIGN_BYTES: usize = 16;

// SAFETY: malloc(3), posix_memalign(3) and free(3) form an allocator, and come from the same library.
unsafe impl GlobalAlloc for RealAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= MALLOC_ALIGN_BYTES {
            // SAFETY: malloc(3) accepts any size.
            return unsafe { real::malloc::call(layout.size()) }.cast();
        }
        let mut ptr = core::ptr::null_mut();
        // SAFETY: the alignment is a power of two and, being greater than 16, a multiple of a pointer's size.
        match unsafe { real::posix_memalign::call(&mut ptr, layout.align(), layout.size()) } {
            0 => ptr.cast(),
            _ => core::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, _layout: Layout) {
        // SAFETY: the caller guarantees that this allocator has returned `ptr`, so it is a block of the real `malloc`
        // or of the arena.
        unsafe { release(ptr.cast()) };
    }
}

#[global_allocator]
static ALLOCATOR: RealAllocator = RealAllocator;

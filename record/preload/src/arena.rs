//! Memory for allocations while the real allocator is being looked up: `dlsym` itself allocates.
//!
//! ```text
//!   ARENA  ┌──────┬──────────┬──────┬────────────────┬─────────
//!          │ size │ block    │ size │ block          │ unused    blocks are 16-aligned, never freed
//!          └──────┴──────────┴──────┴────────────────┴─────────
//! ```
//! `free` leaves a block of the arena alone and `realloc` copies it out. Wait-free; async-signal-safe.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

/// `dlsym` needs some hundred bytes, once.
const SIZE_BYTES: usize = 16 << 10;
/// Alignment of blocks, and size of the header of each.
const GRAIN_BYTES: usize = 16;

#[repr(C, align(16))]
struct Arena(UnsafeCell<[u8; SIZE_BYTES]>);

// SAFETY: each part of the bytes is handed to one caller only, by an atomic counter.
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena(UnsafeCell::new([0; SIZE_BYTES]));
static USED: AtomicUsize = AtomicUsize::new(0);

fn base() -> *mut u8 {
    ARENA.0.get().cast()
}

/// Zeroed memory, or null when the arena is used up.
pub(crate) fn allocate(size: usize) -> *mut c_void {
    let Some(rounded) = size.max(1).checked_next_multiple_of(GRAIN_BYTES).filter(|size| *size < SIZE_BYTES) else {
        return null_mut();
    };
    let take = |used: usize| Some(used + GRAIN_BYTES + rounded).filter(|end| *end <= SIZE_BYTES);
    let Ok(offset) = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) else { return null_mut() };
    let head = base().wrapping_add(offset);
    // SAFETY: aligned, inside the arena, and this caller's alone.
    unsafe { head.cast::<usize>().write(rounded) };
    head.wrapping_add(GRAIN_BYTES).cast()
}

/// Whether a block lies in the arena.
#[inline(always)]
pub(crate) fn contains(block: *mut c_void) -> bool {
    (block as usize).wrapping_sub(base() as usize) < SIZE_BYTES
}

/// The size of a block of the arena: at least what was requested.
///
/// # Safety
/// [`allocate`] returned it.
pub(crate) unsafe fn size_of_block(block: *mut c_void) -> usize {
    // SAFETY: every block is preceded by its size.
    unsafe { block.cast::<u8>().wrapping_sub(GRAIN_BYTES).cast::<usize>().read() }
}

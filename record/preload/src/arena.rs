//! Memory for allocations during the look-up of the real allocator: `dlsym` itself allocates.
//!
//! ```text
//!   ARENA  ┌──────┬──────────┬──────┬────────────────┬─────────
//!          │ size │ block    │ size │ block          │ unused    blocks are 16-aligned, never freed
//!          └──────┴──────────┴──────┴────────────────┴─────────
//! ```
//! `free` ignores blocks of the arena, and `realloc` copies them out. Wait-free; async-signal-safe.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Size of the arena. `dlsym` needs some hundred bytes, once.
const SIZE_BYTES: usize = 16 << 10;
/// Alignment of blocks, and size of the header of each.
const GRAIN_BYTES: usize = 16;

#[repr(C, align(16))]
struct Arena(UnsafeCell<[u8; SIZE_BYTES]>);

// SAFETY: an atomic counter gives each part of the bytes to one caller only.
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena(UnsafeCell::new([0; SIZE_BYTES]));
static USED: AtomicUsize = AtomicUsize::new(0);

fn base() -> *mut u8 {
    ARENA.0.get().cast()
}

/// Returns zeroed memory, or null when the arena is full.
pub(crate) fn allocate(size: usize) -> *mut c_void {
    let Some(rounded) = size.max(1).checked_next_multiple_of(GRAIN_BYTES).filter(|size| *size < SIZE_BYTES) else {
        return null_mut();
    };
    let take = |used: usize| Some(used + GRAIN_BYTES + rounded).filter(|end| *end <= SIZE_BYTES);
    let Ok(offset) = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) else { return null_mut() };
    let head = base().wrapping_add(offset);
    // SAFETY: aligned, inside the arena, and given to this caller alone.
    unsafe { head.cast::<usize>().write(rounded) };
    head.wrapping_add(GRAIN_BYTES).cast()
}

/// Whether a block belongs to the arena.
#[inline(always)]
pub(crate) fn contains(block: *mut c_void) -> bool {
    (block as usize).wrapping_sub(base() as usize) < SIZE_BYTES
}

/// Returns the size of a block of the arena, which is at least the requested size.
///
/// # Safety
/// `block` was returned by [`allocate`].
pub(crate) unsafe fn size_of_block(block: *mut c_void) -> usize {
    // SAFETY: the caller guarantees a block of the arena; its size precedes it.
    unsafe { block.cast::<u8>().wrapping_sub(GRAIN_BYTES).cast::<usize>().read() }
}

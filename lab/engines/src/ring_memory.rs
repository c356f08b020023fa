//! Memory of the rings that are measured.

use std::sync::atomic::AtomicU64;

use dormouse_abi::vring::RingLayout;
use dormouse_lab_harness::ring::SIZE;
use dormouse_vring::{Direct, RingError, split};

/// A pair of cache lines of a ring's memory.
#[repr(align(128))]
struct Lines(#[expect(dead_code, reason = "reached by address")] [AtomicU64; 16]);

/// Returns memory that lasts as long as the engine.
pub fn memory(bytes: usize) -> *mut u8 {
    let lines: Vec<Lines> =
        (0..bytes.div_ceil(size_of::<Lines>())).map(|_| Lines([const { AtomicU64::new(0) }; 16])).collect();
    dormouse_lab_harness::assure_backed("a ring's memory", &lines);
    lines.leak().as_mut_ptr().cast()
}

/// Returns a bus to a split queue of [`SIZE`] entries.
pub fn split_bus() -> Result<Direct, RingError> {
    let base = memory(RingLayout { size: SIZE.into() }.size_bytes());
    let areas = split::contiguous(base, SIZE.into())?;
    // SAFETY: memory of the layout's size, which is never freed, consists of atomics, and belongs to this ring alone.
    let bus = unsafe { Direct::new(areas) };
    split::init(&bus, SIZE.into())?;
    Ok(bus)
}

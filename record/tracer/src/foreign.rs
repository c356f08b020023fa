//! The way in for events of other languages: what libdormouse calls. Not part of the Rust interface.

use dormouse_abi::class::CClass;
use dormouse_abi::site::EventRecord;

pub use crate::start::keep_loaded;
pub use dormouse_relay::Segment;

use crate::{control, record, thread};

/// Writes one record of `class`, whose fields are the `len` bytes at `fields`.
///
/// Wait-free and async-signal-safe, as the Rust `event!`.
///
/// # Safety
/// `class` is a class of static storage; the bytes are the fields that it describes, and seven bytes after them may be read
/// too. `fields` may be null if `len` is 0.
#[inline(always)]
pub unsafe fn record_words(class: *const CClass, fields: *const u8, len: usize) {
    // SAFETY: the caller's word.
    let class = unsafe { &*class };
    // SAFETY: the caller's word; a word that begins within the fields ends at most seven bytes after them.
    let word = |index: usize| unsafe { fields.cast::<u64>().wrapping_add(index).read_unaligned() };
    match len {
        0 => record::record_words(&class.id, len, [0; 3]),
        1..=8 => record::record_words(&class.id, len, [word(0), 0, 0]),
        9..=16 => record::record_words(&class.id, len, [word(0), word(1), 0]),
        17..=24 => record::record_words(&class.id, len, [word(0), word(1), word(2)]),
        // SAFETY: the caller's word.
        _ => unsafe { record::record_segments(&class.id, &[Segment::padded(fields, len)]) },
    }
}

/// Writes one record of `class`, whose fields are the `count` runs at `segments`.
///
/// Wait-free and async-signal-safe, as the Rust `event!`.
///
/// # Safety
/// `class` is a class of static storage; each segment's source may be read until this returns, and their bytes are the
/// fields that the class describes, less than 4 GiB of them.
#[inline(always)]
pub unsafe fn record_segments(class: *const CClass, segments: *const Segment, count: usize) {
    // SAFETY: the caller's word.
    let class = unsafe { &*class };
    // SAFETY: the caller's word.
    let segments = unsafe { core::slice::from_raw_parts(segments, count) };
    // SAFETY: the caller's word.
    unsafe { record::record_segments(&class.id, segments) };
}

/// Adds an object's event classes, and announces them to the session that the process is in. Again changes nothing.
///
/// Blocking; not async-signal-safe.
///
/// # Safety
/// `start..stop` is the `dormouse_events` section of a loaded object, which stays mapped until [`unregister`] returns.
pub unsafe fn register(start: *const EventRecord, stop: *const EventRecord) {
    let inside = thread::enter_tracer();
    // SAFETY: the caller's word.
    unsafe { control::lock().register(start, stop) };
    drop(inside);
}

/// Forgets the classes of the object whose section starts here. Unknown ones are ignored. Blocking; not async-signal-safe.
pub fn unregister(start: *const EventRecord) {
    let inside = thread::enter_tracer();
    control::lock().unregister(start);
    drop(inside);
}

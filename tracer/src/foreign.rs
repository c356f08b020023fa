//! The way in for events of other languages: what libdormouse calls. Not part of the Rust interface.

use core::sync::atomic::Ordering;

use dormouse_abi::class::{CClass, CLASS_ID_MAX};
use dormouse_abi::site::EventRecord;

pub use dormouse_relay::Segment;

use crate::{control, thread, write};

/// Writes one record of `class`, whose fields are the `count` runs at `segments`.
///
/// Wait-free as the Rust `event!`; async-signal-safe.
///
/// # Safety
/// `class` is a class of static storage; every one of the segments' sources may be read until this returns, and their
/// bytes are the fields that the class describes. `segments` may be null if `count` is 0.
#[inline(always)]
pub unsafe fn record(class: *const CClass, segments: *const Segment, count: usize) {
    // SAFETY: the caller's word.
    let class = unsafe { &*class };
    // Relaxed: the id is a number of its own.
    let id = class.id.load(Ordering::Relaxed);
    // A gate that was passed just before the class left its session, or a class that a full session gave no id.
    if id > CLASS_ID_MAX as u32 {
        return;
    }
    if count == 0 {
        return write::record(id, &[]);
    }
    // SAFETY: the caller's word.
    write::record(id, unsafe { core::slice::from_raw_parts(segments, count) });
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

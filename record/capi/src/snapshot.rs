//! Functions of `include/dormouse/snapshot.h`.

use core::ffi::{CStr, c_char, c_int};
use std::time::Duration;

use tracer::{Snapshot, SnapshotError, Trigger};

const DIR_SIZE: usize = 4096;
const ERROR_SIZE: usize = 256;

/// Options of a snapshot.
#[repr(C)]
#[derive(Debug)]
pub struct Options {
    dir: *const c_char,
    last_ns: u64,
    bytes_max: u64,
}

/// Result of a snapshot.
#[repr(C)]
#[derive(Debug)]
pub struct SnapshotResult {
    events: u64,
    bytes: u64,
    span_ns: u64,
    pages_missed: u64,
    dir: [c_char; DIR_SIZE],
    error: [c_char; ERROR_SIZE],
}

const _: () = assert!(size_of::<Options>() == 24 && size_of::<SnapshotResult>() == 32 + DIR_SIZE + ERROR_SIZE);

/// Takes a snapshot, and waits for it.
///
/// # Safety
/// Each pointer is null, or valid in the sense of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_snapshot(options: *const Options, taken: *mut SnapshotResult) -> c_int {
    let none =
        SnapshotResult { events: 0, bytes: 0, span_ns: 0, pages_missed: 0, dir: [0; DIR_SIZE], error: [0; ERROR_SIZE] };
    // SAFETY: the caller guarantees that `taken` is null or valid.
    let mut taken = unsafe { taken.as_mut() };
    if let Some(taken) = taken.as_deref_mut() {
        *taken = none;
    }
    let mut fail = |errno: c_int, text: &str| {
        if let Some(taken) = taken.as_deref_mut() {
            taken.error = crate::imv::text(text);
        }
        -errno
    };
    let mut snapshot = Snapshot::new();
    // SAFETY: the caller guarantees that `options` is null or valid.
    if let Some(options) = unsafe { options.as_ref() } {
        if !options.dir.is_null() {
            // SAFETY: the caller guarantees valid options, whose `dir` is null or NUL-terminated.
            let Ok(dir) = unsafe { CStr::from_ptr(options.dir) }.to_str() else {
                return fail(libc::EINVAL, "the directory's name is not UTF-8");
            };
            snapshot = snapshot.dir(dir);
        }
        if options.last_ns != 0 {
            snapshot = snapshot.last(Duration::from_nanos(options.last_ns));
        }
        if options.bytes_max != 0 {
            snapshot = snapshot.bytes_max(options.bytes_max);
        }
    }
    match snapshot.take() {
        Ok(found) => {
            if let Some(taken) = taken {
                taken.events = found.events;
                taken.bytes = found.bytes;
                taken.span_ns = found.span.as_nanos().min(u64::MAX.into()) as u64;
                taken.pages_missed = found.pages_missed;
                taken.dir = crate::imv::text(&found.dir.to_string_lossy());
            }
            0
        }
        Err(error @ SnapshotError::NoSession) => fail(libc::ENOTCONN, &error.to_string()),
        Err(error @ SnapshotError::Refused(_)) => fail(libc::EIO, &error.to_string()),
    }
}

/// Installs triggers of snapshots. Returns 0 or a negative errno.
///
/// # Safety
/// `triggers` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_snapshot_on(triggers: *const c_char) -> c_int {
    // SAFETY: the caller guarantees that `triggers` is NUL-terminated.
    let Ok(text) = unsafe { CStr::from_ptr(triggers) }.to_str() else { return -libc::EINVAL };
    let parsed: Option<Vec<Trigger>> = text.split(',').map(|part| Trigger::parse(part.trim()).ok()).collect();
    let Some(triggers) = parsed else { return -libc::EINVAL };
    // C programs do not panic.
    if triggers.contains(&Trigger::Panic) {
        return -libc::EINVAL;
    }
    for trigger in triggers {
        if let Err(error) = Snapshot::new().on(trigger) {
            return -error.raw_os_error().unwrap_or(libc::EINVAL);
        }
    }
    0
}

//! Conversion of a call's result to the form that events have.
//!
//! `errno` keeps the value that the call has set, without being saved: the record path and the
//! clock call no libc function that could change it. The tests `files.c` and `storm.c` check that.

use core::ffi::c_int;

pub(crate) fn errno() -> c_int {
    // SAFETY: has no conditions; returns the address of the calling thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid while the thread lives, and no other thread uses it.
    unsafe { place.read() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: has no conditions; returns the address of the calling thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid while the thread lives, and no other thread uses it.
    unsafe { place.write(errno) };
}

/// Converts the result of a call that returns -1 and sets `errno` when it fails. The value is `-errno` then, as for
/// system calls.
#[inline(always)]
pub(crate) fn of_call(result: c_int) -> c_int {
    if result == -1 { -errno() } else { result }
}

/// Converts a count of bytes like [`of_call`].
#[inline(always)]
pub(crate) fn of_transfer(result: isize) -> i64 {
    if result == -1 { -i64::from(errno()) } else { result as i64 }
}

/// Converts the result of a call that returns an error number when it fails.
#[inline(always)]
pub(crate) fn of_pthread(result: c_int) -> c_int {
    -result
}

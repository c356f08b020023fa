//! The result of a call, in the form that events have.
//!
//! `errno` stays as the call has left it, without being saved: the record path calls no function of libc that could
//! change it. `files.c` and `storm.c` of the tests check that.

use core::ffi::c_int;

pub(crate) fn errno() -> c_int {
    // SAFETY: the address of the thread's own errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is valid while the thread lives, and no other thread is given it.
    unsafe { place.read() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the address of the thread's own errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is valid while the thread lives, and no other thread is given it.
    unsafe { place.write(errno) };
}

/// A result of a call that returns -1 and sets `errno` when it fails: `-errno` then, as system calls have it.
#[inline(always)]
pub(crate) fn of_call(result: c_int) -> c_int {
    if result == -1 { -errno() } else { result }
}

/// The same for counts of bytes.
#[inline(always)]
pub(crate) fn of_transfer(result: isize) -> i64 {
    if result == -1 { -i64::from(errno()) } else { result as i64 }
}

/// A result of a call that returns an error number when it fails.
#[inline(always)]
pub(crate) fn of_pthread(result: c_int) -> c_int {
    -result
}

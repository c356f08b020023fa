//! What a call has returned, in the form in which events carry it, and `errno` as the call has left it.

use core::ffi::c_int;

use dormouse::Value;

/// A value of an event that was made after the call. When it is dropped, after the record has been written, `errno` is what
/// it was: the record path calls nothing of libc and leaves `errno` alone, and this makes it no matter of faith.
#[derive(Debug)]
pub(crate) struct After<T> {
    value: T,
    errno: c_int,
}

impl<T> After<T> {
    #[inline(always)]
    pub(crate) fn new(value: T) -> After<T> {
        After { value, errno: errno() }
    }
}

impl<T> Drop for After<T> {
    #[inline(always)]
    fn drop(&mut self) {
        set_errno(self.errno);
    }
}

impl<T: Value> Value for After<T> {
    type Type = T::Type;
    #[inline(always)]
    fn put<const BYTES: usize, const RUNS: usize>(&self, payload: &mut dormouse::__private::Payload<BYTES, RUNS>) {
        self.value.put(payload);
    }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the address of the thread's own errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { place.read() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the address of the thread's own errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { place.write(errno) };
}

/// A result of a call that returns -1 and sets `errno` when it fails: `-errno` then, as system calls have it.
pub(crate) fn of_call(result: c_int) -> After<c_int> {
    After::new(if result == -1 { -errno() } else { result })
}

/// The same for counts of bytes.
pub(crate) fn of_transfer(result: isize) -> After<i64> {
    After::new(if result == -1 { -i64::from(errno()) } else { result as i64 })
}

/// A result of a call that returns an error number when it fails.
pub(crate) fn of_pthread(result: c_int) -> After<c_int> {
    After::new(-result)
}

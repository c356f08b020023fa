//! `pthread_mutex_lock`, `pthread_mutex_trylock`, `pthread_mutex_unlock`.

use core::ffi::c_int;

use dormouse::event;
use libc::pthread_mutex_t;

use crate::outcome::of_pthread;
use crate::real;

/// Locks a mutex.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller's word.
    let result = unsafe { real::pthread_mutex_lock::call(mutex) };
    event!(libc.mutex_lock, mutex, result = of_pthread(result));
    result
}

/// Locks a mutex if it is free.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_mutex_trylock(mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller's word.
    let result = unsafe { real::pthread_mutex_trylock::call(mutex) };
    event!(libc.mutex_trylock, mutex, result = of_pthread(result));
    result
}

/// Unlocks a mutex. The mutex may no longer exist when the event is recorded: only its address is recorded.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_mutex_unlock(mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller's word.
    let result = unsafe { real::pthread_mutex_unlock::call(mutex) };
    event!(libc.mutex_unlock, mutex, result = of_pthread(result));
    result
}

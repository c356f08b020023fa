//! `pthread_mutex_lock`, `…_timedlock`, `…_clocklock`, `…_trylock`, `…_unlock`.
//!
//! A call that has to wait has two events, before and after it; one that gets the mutex immediately has one. To know
//! which, a wrapper with an armed `mutex_lock_begin` tries to lock first. That changes nothing for the program: a try
//! succeeds, or fails with anything but `EBUSY`, exactly when the call itself would without waiting.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering};

use dormouse::event;
use libc::{clockid_t, pthread_mutex_t, timespec};

use crate::outcome::of_pthread;
use crate::real::{self, wrappers};
use crate::sanitizer;

wrappers! {
    /// Locks a mutex if it is free.
    pthread_mutex_trylock(mutex: *mut pthread_mutex_t) -> c_int: result =>
        event!(libc.mutex_trylock, mutex, result = of_pthread(result));
}

/// Locks a mutex.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int {
    if sanitizer::is_there() {
        // SAFETY: the caller satisfies the conditions of libc's function.
        return unsafe { real::pthread_mutex_lock::alone(mutex) };
    }
    // SAFETY: the caller passes a mutex.
    if let Some(result) = unsafe { locked_immediately(mutex) } {
        return result;
    }
    // SAFETY: the caller satisfies the conditions of libc's function.
    locked(mutex, unsafe { real::pthread_mutex_lock::call(mutex) })
}

/// Locks a mutex, or fails at a time.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_mutex_timedlock(mutex: *mut pthread_mutex_t, until: *const timespec) -> c_int {
    if sanitizer::is_there() {
        // SAFETY: the caller satisfies the conditions of libc's function.
        return unsafe { real::pthread_mutex_timedlock::alone(mutex, until) };
    }
    // SAFETY: the caller passes a mutex.
    if let Some(result) = unsafe { locked_immediately(mutex) } {
        return result;
    }
    // SAFETY: the caller satisfies the conditions of libc's function.
    locked(mutex, unsafe { real::pthread_mutex_timedlock::call(mutex, until) })
}

/// Locks a mutex, or fails at a time of a clock.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_mutex_clocklock(
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    if sanitizer::is_there() {
        // SAFETY: the caller satisfies the conditions of libc's function.
        return unsafe { real::pthread_mutex_clocklock::alone(mutex, clock, until) };
    }
    // Another clock is an error even if the mutex is free.
    let is_known = matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC);
    // SAFETY: the caller passes a mutex.
    if is_known && let Some(result) = unsafe { locked_immediately(mutex) } {
        return result;
    }
    // SAFETY: the caller satisfies the conditions of libc's function.
    locked(mutex, unsafe { real::pthread_mutex_clocklock::call(mutex, clock, until) })
}

/// Unlocks a mutex. The event precedes the call, because afterwards another thread may lock the mutex, or destroy it. A
/// call that fails has a second event.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_mutex_unlock(mutex: *mut pthread_mutex_t) -> c_int {
    if sanitizer::is_there() {
        // SAFETY: the caller satisfies the conditions of libc's function.
        return unsafe { real::pthread_mutex_unlock::alone(mutex) };
    }
    event!(libc.mutex_unlock, mutex);
    // SAFETY: the caller satisfies the conditions of libc's function.
    let result = unsafe { real::pthread_mutex_unlock::call(mutex) };
    if result != 0 {
        event!(libc.mutex_unlock_failed, mutex, result = of_pthread(result));
    }
    result
}

/// Returns the result of a lock that need not wait; `None` if it must, after the event that says so, or if that event
/// is not armed.
///
/// # Safety
/// `mutex` is a mutex that the program locks.
#[inline(always)]
unsafe fn locked_immediately(mutex: *mut pthread_mutex_t) -> Option<c_int> {
    event!(
        libc.mutex_lock_begin,
        // SAFETY: the caller passes a mutex that the program locks.
        mutex = match unsafe { real::pthread_mutex_trylock::call(mutex) } {
            libc::EBUSY => mutex,
            result => return Some(locked(mutex, result)),
        },
        // SAFETY: the mutex is valid during the program's call.
        owner = unsafe { owner(mutex) },
    );
    None
}

/// Records a lock after it has returned, and returns its result.
#[inline(always)]
fn locked(mutex: *mut pthread_mutex_t, result: c_int) -> c_int {
    event!(libc.mutex_lock, mutex, result = of_pthread(result));
    result
}

/// Returns the id of the thread that holds a mutex, as that thread sees it; 0 if none does or glibc does not know.
///
/// # Safety
/// `mutex` is valid.
unsafe fn owner(mutex: *mut pthread_mutex_t) -> c_int {
    /// Index of `__owner` in glibc's `struct __pthread_mutex_s` (`__lock`, `__count`, `__owner`), which is part of its
    /// binary interface.
    const OWNER: usize = 2;
    // SAFETY: the word is inside the mutex.
    let word = unsafe { mutex.cast::<c_int>().add(OWNER) };
    // SAFETY: the word is aligned, and other threads may change it only as a whole.
    unsafe { AtomicI32::from_ptr(word) }.load(Ordering::Relaxed)
}

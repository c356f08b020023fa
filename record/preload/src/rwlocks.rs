//! `pthread_rwlock_rdlock`, `…_wrlock`, their timed forms and tries, `…_unlock`.
//!
//! As for mutexes, a call that has to wait has two events, and one that need not has one. glibc before 2.30 can hang in
//! a lock after a try that the program did not make (bug 23844), so that each call has two events there.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use dormouse::event;
use libc::{clockid_t, pthread_rwlock_t, timespec};

use crate::outcome::of_pthread;
use crate::real::{self, wrappers};
use crate::sanitizer;

/// Whether libc's tries leave a lock as it was.
static CAN_TRY: AtomicBool = AtomicBool::new(false);

/// Looks at the version of glibc. Call it before the program runs.
pub(crate) fn prepare() {
    // SAFETY: has no conditions.
    let version = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: the function returns a constant C string.
    let version = unsafe { CStr::from_ptr(version) };
    let mut numbers = version.to_str().unwrap_or_default().split('.').map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    CAN_TRY.store(version >= (2, 30), Ordering::Relaxed);
}

wrappers! {
    /// Locks for reading if that needs no waiting.
    pthread_rwlock_tryrdlock(rwlock: *mut pthread_rwlock_t) -> c_int: result =>
        event!(libc.rwlock_tryrdlock, rwlock, result = of_pthread(result));
    /// Locks for writing if that needs no waiting.
    pthread_rwlock_trywrlock(rwlock: *mut pthread_rwlock_t) -> c_int: result =>
        event!(libc.rwlock_trywrlock, rwlock, result = of_pthread(result));
}

/// Exports locks of one kind: the names of libc's functions (its try last), and of the events.
macro_rules! locks {
    ($module:ident: $try:ident, $begin:ident, $end:ident;
     $($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) $(if $clock:ident)?;)*) => {
        mod $module {
            use super::*;

            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// The conditions of libc's function.
                #[unsafe(no_mangle)]
                pub unsafe extern "C-unwind" fn $name(rwlock: *mut pthread_rwlock_t $(, $argument: $type)*) -> c_int {
                    if sanitizer::is_there() {
                        // SAFETY: the caller satisfies the conditions of libc's function.
                        return unsafe { real::$name::alone(rwlock $(, $argument)*) };
                    }
                    // Another clock is an error even if the lock is free.
                    let can_try = true $(&& matches!($clock, libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC))?;
                    // SAFETY: the caller passes a lock.
                    if can_try && let Some(result) = unsafe { immediately(rwlock) } {
                        return result;
                    }
                    // SAFETY: the caller satisfies the conditions of libc's function.
                    locked(rwlock, unsafe { real::$name::call(rwlock $(, $argument)*) })
                }
            )*

            /// Returns the result of a lock that need not wait; `None` if it must, after the event that says so, or if
            /// that event is not armed.
            ///
            /// # Safety
            /// `rwlock` is a lock that the program locks.
            #[inline(always)]
            unsafe fn immediately(rwlock: *mut pthread_rwlock_t) -> Option<c_int> {
                event!(
                    libc.$begin,
                    rwlock = if CAN_TRY.load(Ordering::Relaxed) {
                        // SAFETY: the caller passes a lock that the program locks.
                        match unsafe { real::$try::call(rwlock) } {
                            libc::EBUSY => rwlock,
                            result => return Some(locked(rwlock, result)),
                        }
                    } else {
                        rwlock
                    },
                    // SAFETY: the lock is valid during the program's call.
                    writer = unsafe { writer(rwlock) },
                );
                None
            }

            /// Records a lock after it has returned, and returns its result.
            #[inline(always)]
            fn locked(rwlock: *mut pthread_rwlock_t, result: c_int) -> c_int {
                event!(libc.$end, rwlock, result = of_pthread(result));
                result
            }
        }
    };
}

locks! {
    reading: pthread_rwlock_tryrdlock, rwlock_rdlock_begin, rwlock_rdlock;
    /// Locks for reading.
    pthread_rwlock_rdlock();
    /// Locks for reading, or fails at a time.
    pthread_rwlock_timedrdlock(until: *const timespec);
    /// Locks for reading, or fails at a time of a clock.
    pthread_rwlock_clockrdlock(clock: clockid_t, until: *const timespec) if clock;
}

locks! {
    writing: pthread_rwlock_trywrlock, rwlock_wrlock_begin, rwlock_wrlock;
    /// Locks for writing.
    pthread_rwlock_wrlock();
    /// Locks for writing, or fails at a time.
    pthread_rwlock_timedwrlock(until: *const timespec);
    /// Locks for writing, or fails at a time of a clock.
    pthread_rwlock_clockwrlock(clock: clockid_t, until: *const timespec) if clock;
}

/// Unlocks. The event precedes the call, because afterwards another thread may take the lock, or destroy it. A call that
/// fails has a second event.
///
/// # Safety
/// The conditions of libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_rwlock_unlock(rwlock: *mut pthread_rwlock_t) -> c_int {
    if sanitizer::is_there() {
        // SAFETY: the caller satisfies the conditions of libc's function.
        return unsafe { real::pthread_rwlock_unlock::alone(rwlock) };
    }
    event!(libc.rwlock_unlock, rwlock);
    // SAFETY: the caller satisfies the conditions of libc's function.
    let result = unsafe { real::pthread_rwlock_unlock::call(rwlock) };
    if result != 0 {
        event!(libc.rwlock_unlock_failed, rwlock, result = of_pthread(result));
    }
    result
}

/// Returns the id of the thread that holds a lock for writing, as that thread sees it; 0 if none does.
///
/// # Safety
/// `rwlock` is valid.
unsafe fn writer(rwlock: *mut pthread_rwlock_t) -> c_int {
    /// Index of `__cur_writer` in glibc's `struct __pthread_rwlock_arch_t` of 64-bit platforms, which is part of its
    /// binary interface: six words precede it.
    const WRITER: usize = 6;
    if cfg!(target_pointer_width = "32") {
        return 0;
    }
    // SAFETY: the word is inside the lock.
    let word = unsafe { rwlock.cast::<c_int>().add(WRITER) };
    // SAFETY: the word is aligned, and other threads may change it only as a whole.
    unsafe { AtomicI32::from_ptr(word) }.load(Ordering::Relaxed)
}

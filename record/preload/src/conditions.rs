//! `pthread_cond_wait`, `pthread_cond_timedwait`, `pthread_cond_clockwait`: they release a mutex, wait, and lock it
//! again, all inside libc.
//!
//! One event is recorded before the call, when the mutex is still held, and one when it is held again. A cancelled wait
//! has no second event.

use core::ffi::c_int;

use dormouse::event;
use libc::{clockid_t, pthread_cond_t, pthread_mutex_t, timespec};

use crate::outcome::of_pthread;
use crate::{real, sanitizer};

macro_rules! waiting {
    ($($(#[$doc:meta])* $name:ident(condition, mutex $(, $argument:ident: $type:ty)*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The conditions of libc's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            condition: *mut pthread_cond_t,
            mutex: *mut pthread_mutex_t $(, $argument: $type)*
        ) -> c_int {
            if sanitizer::is_there() {
                // SAFETY: the caller satisfies the conditions of libc's function.
                return unsafe { real::$name::alone(condition, mutex $(, $argument)*) };
            }
            begun(condition, mutex);
            // SAFETY: the caller satisfies the conditions of libc's function.
            let result = unsafe { real::$name::call(condition, mutex $(, $argument)*) };
            ended(condition, mutex, result);
            result
        }
    )*};
}

waiting! {
    /// Waits for a condition.
    pthread_cond_wait(condition, mutex);
    /// Waits for a condition until a time.
    pthread_cond_timedwait(condition, mutex, until: *const timespec);
    /// Waits for a condition until a time of a clock.
    pthread_cond_clockwait(condition, mutex, clock: clockid_t, until: *const timespec);
}

#[inline(always)]
fn begun(cond: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) {
    event!(libc.cond_wait_begin, cond, mutex);
}

#[inline(always)]
fn ended(cond: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, result: c_int) {
    event!(libc.cond_wait_end, cond, mutex, result = of_pthread(result));
}

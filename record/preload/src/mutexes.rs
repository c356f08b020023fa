//! `pthread_mutex_lock`, `pthread_mutex_trylock`, `pthread_mutex_unlock`.

use core::ffi::c_int;

use dormouse::event;
use libc::pthread_mutex_t;

use crate::outcome::of_pthread;
use crate::real::{self, wrappers};

wrappers! {
    /// Locks a mutex.
    pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int: result =>
        event!(libc.mutex_lock, mutex, result = of_pthread(result));
    /// Locks a mutex if it is free.
    pthread_mutex_trylock(mutex: *mut pthread_mutex_t) -> c_int: result =>
        event!(libc.mutex_trylock, mutex, result = of_pthread(result));
    /// Unlocks a mutex. The mutex may no longer exist when the event is recorded: only its address is recorded.
    pthread_mutex_unlock(mutex: *mut pthread_mutex_t) -> c_int: result =>
        event!(libc.mutex_unlock, mutex, result = of_pthread(result));
}

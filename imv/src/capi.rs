//! The C entry points of `include/dormouse/static_key.h`. Each answers 0 or a negative errno.

use core::ffi::c_int;

use dormouse_abi::site::SiteRecord;

use crate::{Error, StaticKey};

fn errno_of(answer: Result<(), Error>) -> c_int {
    match answer {
        Ok(()) => 0,
        Err(Error::Reentered) => -libc::EDEADLK,
        Err(Error::TooManyObjects) => -libc::ENOSPC,
        Err(Error::Unbalanced) => -libc::EINVAL,
        Err(Error::Asleep) => -libc::EACCES,
    }
}

/// [`register_object`](crate::register_object).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_imv_register(start: *const SiteRecord, stop: *const SiteRecord) -> c_int {
    // SAFETY: handed on to the caller.
    errno_of(unsafe { crate::register_object(start, stop) })
}

/// [`unregister_object`](crate::unregister_object).
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_imv_unregister(start: *const SiteRecord) -> c_int {
    errno_of(crate::unregister_object(start))
}

/// [`enable`](crate::enable).
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_static_key_enable(key: &StaticKey) -> c_int {
    errno_of(crate::enable(key))
}

/// [`disable`](crate::disable).
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_static_key_disable(key: &StaticKey) -> c_int {
    errno_of(crate::disable(key))
}

//! Tunables for C: what `dormouse/tunable.h` does differently with a tracer.

use core::ffi::c_int;

use dormouse_abi::site::TunableRecord;
use tracer::Listen;

use crate::imv::errno_of;

/// Starts the tracer if it was not started, so that operators reach the program, and adds an object's tunables. Returns
/// 0 or a negative errno.
///
/// # Safety
/// The conditions of [`dormouse_imv::register_tunables`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_register_tunables(start: *const TunableRecord, stop: *const TunableRecord) -> c_int {
    tracer::start(Listen::ByDefault);
    // SAFETY: the caller satisfies the conditions of `dormouse_imv::register_tunables`.
    errno_of(unsafe { dormouse_imv::register_tunables(start, stop) })
}

//! libdormouse_imv: immediate values and static branches for C and C++, for programs without a tracer.
//!
//! Its functions are those that libdormouse has for the headers `dormouse/imv.h`, `dormouse/static_key.h` and
//! `dormouse/tunable.h`, compiled from that source, except that an object's tunables start no tracer. The crates
//! `dormouse-imv` and `dormouse-imv-control` document them.

#[path = "face.rs"]
mod imv;
#[path = "listen.rs"]
mod listen;

use core::ffi::c_int;

use dormouse_abi::site::TunableRecord;

/// Adds an object's tunables. Returns 0 or a negative errno.
///
/// # Safety
/// The conditions of [`dormouse_imv::register_tunables`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_register_tunables(start: *const TunableRecord, stop: *const TunableRecord) -> c_int {
    // SAFETY: the caller satisfies the conditions of `dormouse_imv::register_tunables`.
    imv::errno_of(unsafe { dormouse_imv::register_tunables(start, stop) })
}

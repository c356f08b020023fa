//! Access for operators: the functions of `dormouse/tunable.h` that a program calls.

use core::ffi::c_int;

use crate::imv::errno_of_io;

/// [`dormouse_imv_control::listen`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_imv_listen() -> c_int {
    errno_of_io(dormouse_imv_control::listen())
}

/// [`dormouse_imv_control::stop_listening`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_imv_stop_listening() -> c_int {
    errno_of_io(dormouse_imv_control::stop_listening())
}

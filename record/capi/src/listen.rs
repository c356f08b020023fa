//! Functions of `dormouse/dormouse.h` that control whether tools can reach the program.

use core::ffi::c_int;

use crate::imv::errno_of_io;
#[cfg(feature = "listen")]
use tracer::{listen, stop_listening};

#[cfg(not(feature = "listen"))]
fn listen() -> std::io::Result<()> {
    Err(std::io::Error::from_raw_os_error(libc::ENOSYS))
}

#[cfg(not(feature = "listen"))]
fn listen_by_number(_: c_int) -> std::io::Result<()> {
    listen()
}

#[cfg(feature = "listen")]
fn listen_by_number(mode: c_int) -> std::io::Result<()> {
    match mode {
        1 => tracer::listen_by(tracer::ListenMode::Thread),
        2 => tracer::listen_by(tracer::ListenMode::Signal),
        _ => Err(std::io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

#[cfg(not(feature = "listen"))]
fn stop_listening() -> std::io::Result<()> {
    Ok(())
}

/// Without a listener there is no access for operators either.
#[cfg(not(feature = "listen"))]
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_imv_listen() -> c_int {
    errno_of_io(listen())
}

/// Ends nothing.
#[cfg(not(feature = "listen"))]
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_imv_stop_listening() -> c_int {
    errno_of_io(stop_listening())
}

/// Lets tools reach the program from now on. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_listen() -> c_int {
    errno_of_io(listen())
}

/// Lets tools reach the program by a thread (1) or a signal (2), the numbers of the header. Returns 0 or a negative
/// errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_listen_by(mode: c_int) -> c_int {
    errno_of_io(listen_by_number(mode))
}

/// Ends listening, thread and socket. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_stop_listening() -> c_int {
    errno_of_io(stop_listening())
}

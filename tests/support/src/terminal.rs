//! A terminal for programs that tests run.

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};

/// Returns a pseudo-terminal of 24 rows: the user's side and the program's side. `columns` is 0 if the terminal should
/// not tell its width.
///
/// # Panics
/// If none can be created.
pub fn terminal(columns: u16) -> (File, OwnedFd) {
    let (mut person, mut program) = (-1, -1);
    let (name, settings) = (std::ptr::null_mut(), std::ptr::null());
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: openpty(3) writes one descriptor through each of the first two pointers and reads the size through the
    // last; all three point to live variables. Name and settings may be null.
    let result = unsafe { libc::openpty(&raw mut person, &raw mut program, name, settings, &raw const size) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: openpty has just created this descriptor, and it has no other owner.
    let person = unsafe { File::from_raw_fd(person) };
    // SAFETY: openpty has just created this descriptor, and it has no other owner.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    (person, program)
}

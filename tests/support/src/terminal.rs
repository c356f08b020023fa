//! A terminal for programs that tests run.

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};

/// A pseudo-terminal of 24 rows: the side that a person looks at and types on, and the side of the program. `columns`: 0 if it does not say.
///
/// # Panics
/// There is none to be had.
pub fn terminal(columns: u16) -> (File, OwnedFd) {
    let (mut person, mut program) = (-1, -1);
    let (name, settings) = (std::ptr::null_mut(), std::ptr::null());
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: both descriptors are written where they are said to be, and the size is read from where it is; name and settings may be
    // null (openpty(3)).
    let result = unsafe { libc::openpty(&raw mut person, &raw mut program, name, settings, &raw const size) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: openpty made this descriptor just now, and nobody else has it.
    let person = unsafe { File::from_raw_fd(person) };
    // SAFETY: openpty made this descriptor just now, and nobody else has it.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    (person, program)
}

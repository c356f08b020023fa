//! The inherited descriptor of a session's memory, which the program should not find among its own descriptors.
//!
//! The memory is mapped, so the program itself does not need the descriptor; programs that it executes do. The
//! descriptor stays open until the program lists its descriptors. It is closed just before, and programs executed
//! afterwards ask at the session's socket.
//!
//! A child of `vfork` may list descriptors as well, with its parent's data and a descriptor table of its own. So
//! closing is not recorded; each time the number is checked for still being that file. A program that closes the number
//! and opens its own file there between check and close would lose that file.

use core::ffi::{CStr, c_char};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::OnceLock;

use crate::session::SLOT_COUNT;
use crate::thread;

/// A descriptor, and the identity of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Inherited {
    descriptor: RawFd,
    device: u64,
    inode: u64,
}

impl Inherited {
    /// Returns the file that is open at a descriptor number, or `None`.
    fn at(descriptor: RawFd) -> Option<Inherited> {
        // SAFETY: the descriptor is used in this call only; if the number is not open, the call fails.
        let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(descriptor) }).ok()?;
        Some(Inherited { descriptor, device: stat.st_dev, inode: stat.st_ino })
    }
}

static INHERITED: [OnceLock<Inherited>; SLOT_COUNT] = [const { OnceLock::new() }; SLOT_COUNT];

/// Remembers that a session's memory is at this descriptor number. The numbers of the first calls are kept.
pub(crate) fn remember(descriptor: RawFd) {
    if let Some(inherited) = Inherited::at(descriptor) {
        let _ = INHERITED.iter().find(|known| known.set(inherited).is_ok());
    }
}

/// Closes the descriptor if `path` is a directory that lists this process's descriptors. Preserves `errno`;
/// async-signal-safe.
///
/// # Safety
/// `path` ends in NUL, or is null.
#[inline]
pub unsafe fn hide_from(path: *const c_char) {
    // SAFETY: the caller guarantees that `path` ends in NUL or is null.
    if unsafe { may_list(path) } {
        // SAFETY: the caller guarantees that `path` ends in NUL or is null, and `may_list` returns false for null.
        hide(unsafe { CStr::from_ptr(path) });
    }
}

/// Whether a path begins like a directory of descriptors. Most paths do not.
///
/// # Safety
/// `path` ends in NUL, or is null.
#[inline]
unsafe fn may_list(path: *const c_char) -> bool {
    let path = path.cast::<u8>();
    // SAFETY: the caller guarantees that a path that is not null ends in NUL, so it has a first byte.
    let is_absolute = !path.is_null() && unsafe { path.read() } == b'/';
    // SAFETY: the byte before is `/`, not NUL, so another byte follows.
    is_absolute && matches!(unsafe { path.wrapping_add(1).read() }, b'p' | b'd' | b'/' | b'.')
}

#[cold]
fn hide(path: &CStr) {
    if INHERITED[0].get().is_none() || !lists_descriptors(path.to_bytes(), thread::own_pid()) {
        return;
    }
    for inherited in INHERITED.iter().map_while(OnceLock::get) {
        if Inherited::at(inherited.descriptor) == Some(*inherited) {
            // SAFETY: the number is still the session's memory, whose descriptor the environment has given to this
            // library.
            unsafe { rustix::io::close(inherited.descriptor) };
        }
    }
}

/// Whether a path names the descriptor directory of process `pid` (proc_pid_fd(5)).
fn lists_descriptors(path: &[u8], pid: u32) -> bool {
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let is_own = |name: &[u8]| matches!(name, b"self" | b"thread-self") || number(name) == Some(pid);
    match names.next() {
        Some(b"dev") => names.eq([b"fd"]),
        Some(b"proc") if names.next().is_some_and(is_own) => {
            let mut name = names.next();
            if name == Some(b"task") {
                name = names.next().and_then(number).and_then(|_| names.next());
            }
            matches!(name, Some(b"fd" | b"fdinfo")) && names.next().is_none()
        }
        _ => false,
    }
}

fn number(name: &[u8]) -> Option<u32> {
    core::str::from_utf8(name).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_own_descriptors_are_recognised() {
        let own = [
            "/proc/self/fd",
            "/proc/self/fd/",
            "//proc/./self//fdinfo/.",
            "/proc/thread-self/fd",
            "/proc/70/fd",
            "/proc/self/task/71/fd",
            "/proc/70/task/71/fdinfo/",
            "/dev/fd",
            "/dev/fd/",
        ];
        for path in own {
            assert!(lists_descriptors(path.as_bytes(), 70), "{path}");
        }
        let others = [
            "",
            "/",
            "/proc",
            "/proc/self",
            "/proc/self/fd/3",
            "/proc/self/fds",
            "/proc/self/task",
            "/proc/self/task/fd",
            "/proc/self/task/71",
            "/proc/7/fd",
            "/proc/701/fd",
            "/dev/fd/0",
            "/dev",
            "/home/proc/self/fd",
        ];
        for path in others {
            assert!(!lists_descriptors(path.as_bytes(), 70), "{path}");
        }
    }
}

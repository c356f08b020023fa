//! Detection of a filter of system calls (seccomp).
//!
//! A program that starts under a filter may be killed for any call that the loader and libc do not make themselves. So
//! the detection uses only such calls: openat(2), read(2) and close(2) on a file of proc(5).

use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};

use rustix::fd::{IntoRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;
static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether a filter of system calls was in force at the first call of this function: then no system call is made that
/// the filter may not permit. If proc(5) gives no answer, the result is true. With `DORMOUSE_SECCOMP=0` the user states
/// that the filter does not kill, but returns an error for a call that it does not permit, like those of containers:
/// then the result is false.
///
/// Lock-free; async-signal-safe.
pub fn is_filtered() -> bool {
    // Relaxed, here and below: threads that call this at the same time find equal results.
    match ANSWER.load(Ordering::Relaxed) {
        UNKNOWN => {
            let answer = !is_said_to_be_lenient() && field(c"/proc/thread-self/status", b"\nSeccomp:\t") != Some(b'0');
            ANSWER.store(if answer { YES } else { NO }, Ordering::Relaxed);
            answer
        }
        answer => answer == YES,
    }
}

fn is_said_to_be_lenient() -> bool {
    // SAFETY: reads an entry of the auxiliary vector. The caller controls the environment of a program with elevated
    // privileges.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return false;
    }
    // SAFETY: getenv(3) with a NUL-terminated name; the result is only read, immediately.
    let value = unsafe { libc::getenv(c"DORMOUSE_SECCOMP".as_ptr()) };
    // SAFETY: a non-null result of getenv(3) is NUL-terminated.
    !value.is_null() && unsafe { CStr::from_ptr(value) } == c"0"
}

/// Returns the byte after `name` in a file; `b'0'` if the name is not in it, and `None` if it cannot be read.
fn field(path: &CStr, name: &[u8; 10]) -> Option<u8> {
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let found = find(&file, name);
    // SAFETY: opened above, and not used otherwise. (In a debug build, dropping it would call fcntl(2) to check that it
    // is open.)
    unsafe { rustix::io::close(file.into_raw_fd()) };
    found
}

fn find(file: &OwnedFd, name: &[u8; 10]) -> Option<u8> {
    let mut text = [0; 4096];
    let mut len = 0;
    loop {
        match rustix::io::read(file, &mut text[len..]).ok()? {
            // A kernel without filters has no such line.
            0 => return Some(b'0'),
            count => len += count,
        }
        let read = &text[..len];
        if let Some(at) = read.windows(name.len() + 1).position(|window| window.starts_with(name)) {
            return Some(text[at + name.len()]);
        }
        // The name may span two reads.
        let kept = len.min(name.len());
        text.copy_within(len - kept..len, 0);
        len = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_at_any_position() {
        let place = std::env::temp_dir().join(format!("dormouse-filter-{}", std::process::id()));
        let path = std::ffi::CString::new(place.to_str().unwrap()).unwrap();
        for before in [0, 1, 10, 4084, 4085, 4086, 4095, 4096, 9000] {
            std::fs::write(&place, format!("{}\nSeccomp:\t2\nSeccomp_filters:\t1\n", "x".repeat(before))).unwrap();
            assert_eq!(field(&path, b"\nSeccomp:\t"), Some(b'2'), "{before}");
            std::fs::write(&place, "x".repeat(before)).unwrap();
            assert_eq!(field(&path, b"\nSeccomp:\t"), Some(b'0'), "{before}");
        }
        std::fs::remove_file(&place).unwrap();
        assert_eq!(field(&path, b"\nSeccomp:\t"), None);
    }
}

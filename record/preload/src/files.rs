//! `open` and related functions, `read`, `write`, `close`.
//!
//! `open` and `openat` are variadic in C: the mode is present only if the flags require it. Stable Rust cannot define a
//! variadic function, and need not: the System V ABI of x86-64 and the AAPCS64 pass the first variadic integers in the
//! registers of ordinary arguments, so a function with a mode can always read the register. Without `O_CREAT` and
//! `O_TMPFILE` its contents are passed on, which libc ignores, and are not recorded.

use core::ffi::{CStr, c_char, c_int, c_void};

use dormouse::event;
use dormouse::interpose::monotonic_ns;
use libc::{mode_t, size_t, ssize_t};

use crate::outcome::{errno, of_call, of_transfer};
use crate::real::{self, wrappers};

/// Flags with which `open` acts like `creat`.
const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

/// Defines [`wrappers!`] of functions that open a file.
macro_rules! opening {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) => $traced:ident($($value:expr),*);)*) => {
        wrappers! {$(
            $(#[$doc])*
            $name($($argument: $type),*) -> c_int: fd => {
                // SAFETY: `fd` is the result of the call with the path.
                unsafe { $traced($($value,)* fd) }
            };
        )*}
    };
}

opening! {
    /// `open(2)`.
    open(path: *const c_char, flags: c_int, mode: mode_t) => opened(path, flags, mode);
    /// `open(2)` with `O_LARGEFILE`.
    open64(path: *const c_char, flags: c_int, mode: mode_t) => opened(path, flags, mode);
    /// `creat(2)`.
    creat(path: *const c_char, mode: mode_t) => opened(path, CREAT, mode);
    /// `creat(2)` with `O_LARGEFILE`.
    creat64(path: *const c_char, mode: mode_t) => opened(path, CREAT, mode);
    /// `open(2)` without a mode, under `_FORTIFY_SOURCE`.
    __open_2(path: *const c_char, flags: c_int) => opened(path, flags, 0);
    /// `open(2)` without a mode, under `_FORTIFY_SOURCE`.
    __open64_2(path: *const c_char, flags: c_int) => opened(path, flags, 0);
    /// `openat(2)`.
    openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) => opened_at(dirfd, path, flags, mode);
    /// `openat(2)` with `O_LARGEFILE`.
    openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) => opened_at(dirfd, path, flags, mode);
    /// `openat(2)` without a mode, under `_FORTIFY_SOURCE`.
    __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) => opened_at(dirfd, path, flags, 0);
    /// `openat(2)` without a mode, under `_FORTIFY_SOURCE`.
    __openat64_2(dirfd: c_int, path: *const c_char, flags: c_int) => opened_at(dirfd, path, flags, 0);
}

/// Exports functions whose event has the time that the call took. The call is the expression of a field: the clock is
/// read only if the event is armed when the call begins.
macro_rules! timed {
    ($(
        $(#[$doc:meta])*
        $name:ident($($argument:ident: $type:ty),*) -> $output:ty: $event:ident($($field:ident),*), $of:ident;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The conditions of libc's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $output {
            if $crate::sanitizer::is_there() {
                // SAFETY: the caller satisfies the conditions of libc's function.
                return unsafe { real::$name::alone($($argument),*) };
            }
            let mut returned = None;
            let duration_ns: u64;
            event!(
                libc.$event,
                $($field,)*
                result = {
                    let begin_ns = monotonic_ns();
                    // SAFETY: the caller satisfies the conditions of libc's function.
                    let result = unsafe { real::$name::call($($argument),*) };
                    duration_ns = monotonic_ns().saturating_sub(begin_ns);
                    returned = Some(result);
                    $of(result)
                },
                duration_ns,
            );
            match returned {
                Some(result) => result,
                // SAFETY: the caller satisfies the conditions of libc's function.
                None => unsafe { real::$name::call($($argument),*) },
            }
        }
    )*};
}

timed! {
    /// `read(2)`.
    read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t: read(fd, buf, count), of_transfer;
    /// `read(2)` under `_FORTIFY_SOURCE`.
    __read_chk(fd: c_int, buf: *mut c_void, count: size_t, size: size_t) -> ssize_t: read(fd, buf, count), of_transfer;
    /// `write(2)`.
    write(fd: c_int, buf: *const c_void, count: size_t) -> ssize_t: write(fd, buf, count), of_transfer;
    /// `close(2)`.
    close(fd: c_int) -> c_int: close(fd), of_call;
}

/// # Safety
/// The conditions of [`path_of`].
#[inline(always)]
unsafe fn opened(path: *const c_char, flags: c_int, mode: mode_t, fd: c_int) {
    // SAFETY: the caller guarantees that a call that opens `path` has just returned `fd`.
    unsafe { opened_to_list(path, fd) };
    event!(
        libc.open,
        // SAFETY: the caller guarantees that a call that opens `path` has just returned `fd`, with its `errno`.
        path = unsafe { path_of(path, fd) },
        flags,
        mode = mode_of(flags, mode),
        fd = of_call(fd),
    );
}

/// # Safety
/// The conditions of [`path_of`].
#[inline(always)]
unsafe fn opened_at(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t, fd: c_int) {
    // SAFETY: the caller guarantees that a call that opens `path` has just returned `fd`.
    unsafe { opened_to_list(path, fd) };
    event!(
        libc.openat,
        dirfd,
        // SAFETY: the caller guarantees that a call that opens `path` has just returned `fd`, with its `errno`.
        path = unsafe { path_of(path, fd) },
        flags,
        mode = mode_of(flags, mode),
        fd = of_call(fd),
    );
}

/// Hides the session's memory if the program has opened a directory that lists its descriptors.
///
/// # Safety
/// The conditions of [`path_of`].
#[inline(always)]
unsafe fn opened_to_list(path: *const c_char, fd: c_int) {
    if fd >= 0 {
        // SAFETY: the call succeeded, so the kernel has read the path up to its NUL.
        unsafe { dormouse::interpose::hide_from(path) };
    }
}

fn mode_of(flags: c_int, mode: mode_t) -> mode_t {
    let has_mode = flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
    if has_mode { mode } else { 0 }
}

/// Returns the path that was passed to a call; empty if the kernel may have refused the call before it read the path,
/// because the path need not be readable then.
///
/// # Safety
/// A call that opens `path` has just returned `fd`, with its `errno`.
pub(crate) unsafe fn path_of<'a>(path: *const c_char, fd: c_int) -> &'a CStr {
    let unread = [libc::EFAULT, libc::EINVAL, libc::ENAMETOOLONG, libc::ENOSYS, libc::EPERM];
    if path.is_null() || fd < 0 && unread.contains(&errno()) {
        return c"";
    }
    // SAFETY: the kernel has read the path up to its NUL.
    unsafe { CStr::from_ptr(path) }
}

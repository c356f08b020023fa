//! `fopen` and related functions, which open and close files inside libc.

use core::ffi::{c_char, c_int};

use dormouse::event;
use libc::{DIR, FILE};

use crate::files::path_of;
use crate::outcome::{errno, of_call, set_errno};
use crate::real::{self, wrappers};

wrappers! {
    /// `fopen(3)`.
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE: stream => {
        // SAFETY: `stream` is the result of the call with the path.
        unsafe { opened(path, stream) }
    };
    /// `fopen(3)` with `O_LARGEFILE`.
    fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE: stream => {
        // SAFETY: `stream` is the result of the call with the path.
        unsafe { opened(path, stream) }
    };
    /// `fdopen(3)`.
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE: stream =>
        event!(libc.fdopen, fd, result = if stream.is_null() { -errno() } else { 0 });
}

/// Exports functions that take a stream and close it. Its descriptor is read before the call.
macro_rules! ending {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*), $fd_of:ident $stream:ident -> $output:ty:
        $fd:ident $result:ident => $traced:expr;)*) => {$(
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
            // SAFETY: the caller satisfies the conditions of libc's function, so this is an open stream, or null.
            let $fd = unsafe { $fd_of($stream) };
            // SAFETY: the caller satisfies the conditions of libc's function.
            let $result = unsafe { real::$name::call($($argument),*) };
            $traced;
            $result
        }
    )*};
}

ending! {
    /// `freopen(3)`.
    freopen(path: *const c_char, mode: *const c_char, old: *mut FILE), fd_of old -> *mut FILE: oldfd stream => {
        // SAFETY: `stream` is the result of the call with the path.
        unsafe { reopened(path, oldfd, stream) }
    };
    /// `freopen(3)` with `O_LARGEFILE`.
    freopen64(path: *const c_char, mode: *const c_char, old: *mut FILE), fd_of old -> *mut FILE: oldfd stream => {
        // SAFETY: `stream` is the result of the call with the path.
        unsafe { reopened(path, oldfd, stream) }
    };
    /// `fclose(3)`.
    fclose(stream: *mut FILE), fd_of stream -> c_int: fd result => closed(fd, result);
    /// `pclose(3)`.
    pclose(stream: *mut FILE), fd_of stream -> c_int: fd _result => closed(fd, 0);
    /// `closedir(3)`.
    closedir(directory: *mut DIR), fd_of_directory directory -> c_int: fd result => closed(fd, result);
}

/// # Safety
/// The conditions of [`path_of`], for a call that opens a stream.
#[inline(always)]
unsafe fn opened(path: *const c_char, stream: *mut FILE) {
    event!(
        libc.fopen,
        // SAFETY: the caller guarantees that a call that opens `path` has just returned `stream`, with its `errno`.
        path = unsafe { path_of(path, result_of(stream)) },
        // SAFETY: the call has just returned `stream`, so it is open or null.
        fd = unsafe { fd_of_opened(stream) },
    );
}

/// # Safety
/// The conditions of [`path_of`], for a call that reopens a stream.
#[inline(always)]
unsafe fn reopened(path: *const c_char, oldfd: c_int, stream: *mut FILE) {
    event!(
        libc.freopen,
        // SAFETY: the caller guarantees that a call that opens `path` has just returned `stream`, with its `errno`.
        path = unsafe { path_of(path, result_of(stream)) },
        oldfd,
        // SAFETY: the call has just returned `stream`, so it is open or null.
        fd = unsafe { fd_of_opened(stream) },
    );
}

#[inline(always)]
fn closed(fd: c_int, result: c_int) {
    event!(libc.fclose, fd, result = of_call(result));
}

fn result_of(stream: *mut FILE) -> c_int {
    if stream.is_null() { -1 } else { 0 }
}

/// Returns the descriptor of a stream that a call has just returned, or `-errno` if it failed.
///
/// # Safety
/// `stream` is open, or null.
unsafe fn fd_of_opened(stream: *mut FILE) -> c_int {
    // SAFETY: the caller guarantees that the stream, which is not null here, is open.
    if stream.is_null() { -errno() } else { unsafe { fd_of(stream) } }
}

/// Returns the descriptor of a stream, or `-EBADF` if it has none. Preserves `errno`.
///
/// # Safety
/// `stream` is open, or null.
#[inline(always)]
unsafe fn fd_of(stream: *mut FILE) -> c_int {
    // SAFETY: the caller guarantees that the stream is open unless it is null, for which the closure is not called.
    keeping_errno(stream.is_null(), || unsafe { libc::fileno(stream) })
}

/// Returns the descriptor of a directory, or `-EBADF` if it has none. Preserves `errno`.
///
/// # Safety
/// `directory` is open, or null.
#[inline(always)]
unsafe fn fd_of_directory(directory: *mut DIR) -> c_int {
    // SAFETY: the caller guarantees that the directory is open unless it is null, for which the closure is not called.
    keeping_errno(directory.is_null(), || unsafe { libc::dirfd(directory) })
}

#[inline(always)]
fn keeping_errno(is_null: bool, fd: impl FnOnce() -> c_int) -> c_int {
    if is_null {
        return -libc::EBADF;
    }
    let before = errno();
    let fd = fd();
    if fd < 0 {
        set_errno(before);
        return -libc::EBADF;
    }
    fd
}

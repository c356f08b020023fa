//! Functions that create, copy and close descriptors without a path: `dup` and related functions, `pipe`, `socket`,
//! `accept`, `close_range`.
//!
//! `fcntl` is variadic in C, like `open`: see `files`. Its third argument is an integer or a pointer; the register is
//! passed on unchanged.

use core::ffi::{c_int, c_uint, c_ulong};

use dormouse::event;
use libc::{sockaddr, socklen_t};

use crate::outcome::of_call;
use crate::real::{self, wrappers};

wrappers! {
    /// `dup(2)`.
    dup(oldfd: c_int) -> c_int: fd => duplicated(oldfd, fd);
    /// `dup2(2)`.
    dup2(oldfd: c_int, newfd: c_int) -> c_int: fd => duplicated(oldfd, fd);
    /// `dup3(2)`.
    dup3(oldfd: c_int, newfd: c_int, flags: c_int) -> c_int: fd => duplicated(oldfd, fd);
    /// `fcntl(2)`. Only its copies of descriptors are traced.
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int: result => controlled(fd, command, result);
    /// `fcntl(2)` with `O_LARGEFILE`.
    fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int: result => controlled(fd, command, result);
    /// `pipe(2)`.
    pipe(ends: *mut c_int) -> c_int: result => {
        // SAFETY: `result` is the result of the call with `ends`.
        unsafe { piped(ends, 0, result) }
    };
    /// `pipe2(2)`.
    pipe2(ends: *mut c_int, flags: c_int) -> c_int: result => {
        // SAFETY: `result` is the result of the call with `ends`.
        unsafe { piped(ends, flags, result) }
    };
    /// `socket(2)`.
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int: fd =>
        event!(libc.socket, domain, kind, protocol, fd = of_call(fd));
    /// `socketpair(2)`.
    socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int: result => {
        // SAFETY: `result` is the result of the call with `ends`.
        let [fd, other_fd] = unsafe { both(ends, result) };
        event!(libc.socketpair, domain, kind, protocol, fd, other_fd, result = of_call(result))
    };
    /// `accept(2)`.
    accept(sockfd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int: fd => accepted(sockfd, 0, fd);
    /// `accept4(2)`.
    accept4(sockfd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int: fd =>
        accepted(sockfd, flags, fd);
    /// `close_range(2)`.
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int: result =>
        closed_range(first, last, flags, of_call(result));
    /// `closefrom(3)`.
    closefrom(first: c_int) -> (): _done => closed_range(first.max(0).cast_unsigned(), c_uint::MAX, 0, 0);
}

#[inline(always)]
fn duplicated(oldfd: c_int, fd: c_int) {
    event!(libc.dup, oldfd, fd = of_call(fd));
}

#[inline(always)]
fn controlled(fd: c_int, command: c_int, result: c_int) {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        duplicated(fd, result);
    }
}

#[inline(always)]
fn accepted(sockfd: c_int, flags: c_int, fd: c_int) {
    event!(libc.accept, sockfd, flags, fd = of_call(fd));
}

#[inline(always)]
fn closed_range(first: c_uint, last: c_uint, flags: c_int, result: c_int) {
    event!(libc.close_range, first, last, flags, result);
}

/// # Safety
/// The conditions of [`both`].
#[inline(always)]
unsafe fn piped(ends: *const c_int, flags: c_int, result: c_int) {
    // SAFETY: the caller guarantees that a call with `ends` has just returned `result`.
    let [read_fd, write_fd] = unsafe { both(ends, result) };
    event!(libc.pipe, read_fd, write_fd, flags, result = of_call(result));
}

/// Returns the two descriptors that a call has created, or -1 for each if it failed.
///
/// # Safety
/// A call that puts two descriptors at `ends` has just returned `result`.
#[inline(always)]
unsafe fn both(ends: *const c_int, result: c_int) -> [c_int; 2] {
    if result != 0 {
        return [-1; 2];
    }
    // SAFETY: the call has succeeded, so it has written both descriptors.
    unsafe { ends.cast::<[c_int; 2]>().read() }
}

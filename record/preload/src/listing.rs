//! `scandir` and related functions, which open a directory inside libc. A program that lists its descriptors by them does not find the session's
//! memory among them; nothing is traced. `opendir` is the tracer's to export, as for libdormouse.

use core::ffi::{c_char, c_int, c_void};

use crate::real;

/// Exports functions that list the directory `path`.
macro_rules! listing {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's word; libc's reads the path too.
            unsafe { dormouse::interpose::hide_from(listing!(path $($argument)*)) };
            // SAFETY: the caller's word.
            unsafe { real::$name::alone($($argument),*) }
        }
    )*};
    (path dirfd $path:ident $($rest:ident)*) => { $path };
    (path $path:ident $($rest:ident)*) => { $path };
}

listing! {
    /// `scandir(3)`.
    scandir(path: *const c_char, list: *mut c_void, filter: *const c_void, compare: *const c_void);
    /// `scandir(3)` with `O_LARGEFILE`.
    scandir64(path: *const c_char, list: *mut c_void, filter: *const c_void, compare: *const c_void);
    /// `scandirat(3)`.
    scandirat(dirfd: c_int, path: *const c_char, list: *mut c_void, filter: *const c_void, compare: *const c_void);
    /// `scandirat(3)` with `O_LARGEFILE`.
    scandirat64(dirfd: c_int, path: *const c_char, list: *mut c_void, filter: *const c_void, compare: *const c_void);
}

//! `scandir` and related functions, which open a directory inside libc. A program that lists its descriptors by them
//! does not find the session's memory among them; nothing is traced. The tracer exports `opendir`, as in libdormouse.

use core::ffi::{c_char, c_int, c_void};

use crate::real;

/// Exports functions that list the directory `path`.
macro_rules! listing {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The conditions of libc's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller satisfies the conditions of libc's function, for which the path must end in NUL.
            unsafe { dormouse::interpose::hide_from(listing!(path $($argument)*)) };
            // SAFETY: the caller satisfies the conditions of libc's function.
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

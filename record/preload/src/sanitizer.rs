//! Programs with a sanitizer's runtime, which the library does not trace.
//!
//! The runtime has its own allocator, accounts for every block and descriptor, and reports them with the calls that led
//! to them. So nothing is recorded, and the wrappers jump to the real functions, which see the program's own stack.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, Ordering};

/// Whether a sanitizer's runtime was found. Relaxed: the constructor stores it, and it stands alone.
static IS_THERE: AtomicBool = AtomicBool::new(false);

/// Whether the process contains a sanitizer's runtime, as found by [`detect`].
#[inline(always)]
pub(crate) fn is_there() -> bool {
    IS_THERE.load(Ordering::Relaxed)
}

/// Looks for a function that each runtime with its own allocator exports (`sanitizer/allocator_interface.h`). A runtime
/// that is linked into the program exports nothing; then the program's own calls do not reach the wrappers.
pub(crate) fn detect() -> bool {
    // SAFETY: looks up a name, which is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__sanitizer_get_ownership".as_ptr()) };
    if found.is_null() {
        // Clears the error, which the program has not caused and must not find.
        // SAFETY: has no conditions; the result is not used.
        unsafe { libc::dlerror() };
    }
    IS_THERE.store(!found.is_null(), Ordering::Relaxed);
    is_there()
}

/// Returns the options that AddressSanitizer asks a program for before it reads `ASAN_OPTIONS`
/// (`sanitizer/asan_interface.h`). By default it ends each program in which another library is loaded before it.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    const OPTIONS: &CStr = c"verify_asan_link_order=0";
    OPTIONS.as_ptr()
}

//! Programs with the runtime of a sanitizer: the library steps aside.
//!
//! Such a runtime has an allocator of its own, accounts for every block and every descriptor, and reports them with the calls that lead to them.
//! So nothing is recorded here, and the wrappers jump to the real functions, which see the program's own stack.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, Ordering};

/// Relaxed: stored by the constructor, and a number of its own.
static IS_THERE: AtomicBool = AtomicBool::new(false);

/// Whether the runtime of a sanitizer is in the process, as [`look`] has found.
#[inline(always)]
pub(crate) fn is_there() -> bool {
    IS_THERE.load(Ordering::Relaxed)
}

/// Looks for a function that each runtime with an allocator of its own exports (`sanitizer/allocator_interface.h`). A runtime that is a part of the
/// program exports nothing: the program's own calls do not come here then.
pub(crate) fn look() -> bool {
    // SAFETY: a C string; looks a name up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__sanitizer_get_ownership".as_ptr()) };
    if found.is_null() {
        // The program is not to find an error that it did not make.
        // SAFETY: has no conditions; what it returns is not read.
        unsafe { libc::dlerror() };
    }
    IS_THERE.store(!found.is_null(), Ordering::Relaxed);
    is_there()
}

/// What AddressSanitizer asks a program for before it reads `ASAN_OPTIONS` (`sanitizer/asan_interface.h`): otherwise it would end each program in
/// which another library comes before it.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    const OPTIONS: &CStr = c"verify_asan_link_order=0";
    OPTIONS.as_ptr()
}

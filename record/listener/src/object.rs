//! The loaded object that contains an address.

use core::ffi::{c_char, c_int, c_void};

use dormouse_locks::call_loader;

/// Returns the loaded object that contains an address.
pub fn object_of(address: usize) -> Option<libc::Dl_info> {
    let mut info = core::mem::MaybeUninit::uninit();
    // SAFETY: dladdr(3) takes any address, and `info` has room for the answer.
    let found = call_loader(|| unsafe { libc::dladdr(core::ptr::without_provenance(address), info.as_mut_ptr()) });
    // SAFETY: a nonzero result says that the structure was filled in.
    (found != 0).then(|| unsafe { info.assume_init() })
}

/// Keeps the loaded object with this name mapped for ever.
///
/// `dlopen` is looked up at run time, because the linker warns about every static program that refers to it. A static
/// program has no object to keep.
///
/// # Safety
/// `name` ends in NUL.
pub unsafe fn keep_loaded(name: *const c_char) {
    // SAFETY: looks up a name.
    let dlopen = call_loader(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlopen".as_ptr()) });
    if dlopen.is_null() {
        return;
    }
    // SAFETY: the type of dlopen(3).
    let dlopen: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void = unsafe { core::mem::transmute(dlopen) };
    // SAFETY: the caller guarantees that the name ends in NUL; for an object that is loaded already, only its count
    // changes.
    call_loader(|| unsafe { dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) });
}

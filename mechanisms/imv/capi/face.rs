//! Immediate values and static branches for C: the functions of `dormouse/static_key.h` and `dormouse/imv.h`.

use core::ffi::{c_char, c_int, c_void};

use dormouse_abi::site::SiteRecord;
use dormouse_imv::{Change, Error, StaticKey};

/// `struct dormouse_imv_state`. Texts are NUL-terminated, and cut if they are too long.
#[repr(C)]
pub struct State {
    writer: [c_char; 16],
    reason: [c_char; 112],
    objects: usize,
    sites: usize,
    patched: usize,
}

pub(crate) fn errno_of(answer: Result<(), Error>) -> c_int {
    match answer {
        Ok(()) => 0,
        Err(Error::Reentered) => -libc::EDEADLK,
        Err(Error::TooManyObjects) => -libc::ENOSPC,
        Err(Error::Unbalanced) => -libc::EINVAL,
        Err(Error::Asleep | Error::Stale | Error::Elsewhere) => -libc::EACCES,
    }
}

/// [`dormouse_imv::register_object`]; returns 0 or a negative errno.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_imv_register(start: *const SiteRecord, stop: *const SiteRecord) -> c_int {
    // An archive's own constructor may not have been linked. If this call is refused, so is the next one.
    let _ = dormouse_imv::ensure_registered();
    // SAFETY: handed on to the caller.
    errno_of(unsafe { dormouse_imv::register_object(start, stop) })
}

/// [`dormouse_imv::unregister_object`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_imv_unregister(start: *const SiteRecord) -> c_int {
    errno_of(dormouse_imv::unregister_object(start))
}

/// [`dormouse_imv::enable`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_static_key_enable(key: &'static StaticKey) -> c_int {
    errno_of(dormouse_imv::enable(key))
}

/// [`dormouse_imv::disable`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_static_key_disable(key: &'static StaticKey) -> c_int {
    errno_of(dormouse_imv::disable(key))
}

/// [`dormouse_imv::update`]; returns 0 or a negative errno.
///
/// # Safety
/// `changes` are `count` changes, which nobody else uses during the call. They name static keys, and variables that only the library
/// changes, all of which stay loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_imv_update(changes: *const Change, count: usize) -> c_int {
    if count == 0 {
        return 0;
    }
    // SAFETY: the caller's word; whatever the fields hold, they are integers.
    let changes = unsafe { core::slice::from_raw_parts(changes, count) };
    if !changes.iter().all(Change::is_valid) {
        return -libc::EINVAL;
    }
    errno_of(dormouse_imv::update(changes))
}

/// [`dormouse_imv::update`] of one value; returns 0 or a negative errno.
///
/// # Safety
/// `value` points to `size_bytes` bytes. The variable stays loaded, and only the library changes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_imv_set(variable: *mut c_void, value: *const c_void, size_bytes: usize) -> c_int {
    let mut bits = [0; 8];
    let Some(bytes) = bits.get_mut(..size_bytes) else { return -libc::EINVAL };
    // SAFETY: the caller's word, and there is room for so many.
    unsafe { core::ptr::copy_nonoverlapping(value.cast::<u8>(), bytes.as_mut_ptr(), size_bytes) };
    // SAFETY: handed on to the caller.
    let change = unsafe { Change::value(variable.addr(), size_bytes, u64::from_le_bytes(bits)) };
    // SAFETY: one change, of what the caller vouches for.
    unsafe { dormouse_imv_update(&change, 1) }
}

/// [`dormouse_imv::status`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_imv_status(state: &mut State) -> c_int {
    let status = match dormouse_imv::status() {
        Ok(status) => status,
        Err(error) => return errno_of(Err(error)),
    };
    *state = State {
        writer: text(status.writer.name()),
        reason: text(status.reason),
        objects: status.objects,
        sites: status.count.sites,
        patched: status.count.patched,
    };
    0
}

/// `text`, cut between two characters to what fits before a NUL.
pub(crate) fn text<const LEN: usize>(text: &str) -> [c_char; LEN] {
    let mut chars = [0; LEN];
    let mut len = text.len().min(LEN - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    chars.iter_mut().zip(text[..len].bytes()).for_each(|(char, byte)| *char = byte as c_char);
    chars
}

//! Immediate values and static branches for C: the functions of `dormouse/static_key.h` and `dormouse/imv.h`, and those of
//! `dormouse/tunable.h` that are the same with a tracer.

use core::ffi::{c_char, c_int, c_void};

use dormouse_abi::site::{SiteRecord, TunableRecord};
use dormouse_imv::{Change, DeferredKey, Error, StaticKey};

/// `struct dormouse_imv_state`. Texts are NUL-terminated, and truncated if they are too long.
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
        Err(Error::Unpatched | Error::Stale | Error::Elsewhere) => -libc::EACCES,
    }
}

/// Returns 0 or a negative errno.
pub(crate) fn errno_of_io(answer: std::io::Result<()>) -> c_int {
    use std::io::ErrorKind;
    answer.map_or_else(
        |error| match error.kind() {
            ErrorKind::PermissionDenied => -libc::EPERM,
            ErrorKind::TimedOut => -libc::ETIMEDOUT,
            _ => -error.raw_os_error().unwrap_or(libc::EIO),
        },
        |()| 0,
    )
}

/// [`dormouse_imv::register_object`]; returns 0 or a negative errno.
///
/// # Safety
/// The conditions of [`dormouse_imv::register_object`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_imv_register(start: *const SiteRecord, stop: *const SiteRecord) -> c_int {
    // An archive's own constructor may not have been linked. If this call is refused, so is the next one.
    let _ = dormouse_imv::ensure_registered();
    // SAFETY: the caller guarantees that the records are a loaded object's, which stays until it is unregistered.
    errno_of(unsafe { dormouse_imv::register_object(start, stop) })
}

/// [`dormouse_imv::unregister_object`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_imv_unregister(start: *const SiteRecord) -> c_int {
    errno_of(dormouse_imv::unregister_object(start))
}

/// [`dormouse_imv::unregister_tunables`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_unregister_tunables(start: *const TunableRecord) -> c_int {
    errno_of(dormouse_imv::unregister_tunables(start))
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

/// [`DeferredKey::enable`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_static_key_deferred_enable(deferred: &'static DeferredKey) -> c_int {
    errno_of(deferred.enable())
}

/// [`DeferredKey::disable`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_static_key_deferred_disable(deferred: &'static DeferredKey, now_ns: u64) -> c_int {
    errno_of(deferred.disable(now_ns))
}

/// [`DeferredKey::expire`]; returns 0 or a negative errno, and stores what is left of the period, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_static_key_deferred_expire(
    deferred: &'static DeferredKey,
    now_ns: u64,
    left_ns: Option<&mut u64>,
) -> c_int {
    let answer = deferred.expire(now_ns);
    if let Some(left_ns) = left_ns {
        *left_ns = answer.ok().flatten().unwrap_or(0);
    }
    errno_of(answer.map(|_| ()))
}

/// [`dormouse_imv::update`]; returns 0 or a negative errno.
///
/// # Safety
/// `changes` are `count` changes, which are not used otherwise during the call. They name static keys, and variables
/// that only the library changes, all of which stay loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_imv_update(changes: *const Change, count: usize) -> c_int {
    if count == 0 {
        return 0;
    }
    // SAFETY: the caller guarantees `count` changes; their fields are integers, for which all values are valid.
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
    // SAFETY: the caller guarantees `size_bytes` bytes at `value`, and `bytes` has that length.
    unsafe { core::ptr::copy_nonoverlapping(value.cast::<u8>(), bytes.as_mut_ptr(), size_bytes) };
    // SAFETY: the caller guarantees that the variable stays loaded, and that only the library changes it.
    let change = unsafe { Change::value(variable.addr(), size_bytes, u64::from_le_bytes(bits)) };
    // SAFETY: one change, of a variable for which the caller guarantees that.
    unsafe { dormouse_imv_update(&change, 1) }
}

/// Whether there are sites of a variable or key, and all agree with it; returns 0, 1 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_imv_is_patched(variable: *const c_void) -> c_int {
    match dormouse_imv::sites_of(variable.addr()) {
        Ok(count) => (count.sites > 0 && count.patched == count.sites).into(),
        Err(error) => errno_of(Err(error)),
    }
}

/// [`dormouse_imv::set_patch_rate`]; returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_imv_set_patch_rate(per_second: u32) -> c_int {
    errno_of(dormouse_imv::set_patch_rate(per_second))
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

/// Returns `text`, truncated at a character boundary so that a NUL follows.
pub(crate) fn text<const LEN: usize>(text: &str) -> [c_char; LEN] {
    let mut chars = [0; LEN];
    let mut len = text.len().min(LEN - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    chars.iter_mut().zip(text[..len].bytes()).for_each(|(char, byte)| *char = byte as c_char);
    chars
}

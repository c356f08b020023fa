//! Fork handling: a forked child continues as a process of its own in the same session.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dormouse_locks::call_loader;

use crate::control::{Locked, lock};
use crate::{crash, thread, watch};

static FORK_HANDLERS: AtomicBool = AtomicBool::new(false);

/// The control lock, held by the forking thread during the fork.
static FORKING: Mutex<Forking> = Mutex::new(Forking(None));

struct Forking(Option<Locked>);

// SAFETY: the guard is made and dropped by the thread that forks; in the child that thread is the only one.
unsafe impl Send for Forking {}

/// Installs the fork handlers.
pub(crate) fn follow_forks() {
    if !FORK_HANDLERS.swap(true, Ordering::Relaxed) {
        // SAFETY: the handlers are functions of this object, which is never unloaded (`pin`).
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_parent), Some(after_fork_child)) };
    }
}

fn forking() -> MutexGuard<'static, Forking> {
    FORKING.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn before_fork() {
    let locked = lock();
    forking().0 = Some(locked);
}

extern "C" fn after_fork_parent() {
    let locked = forking().0.take();
    drop(locked);
}

extern "C" fn after_fork_child() {
    let _inside = thread::enter_tracer();
    let parent = thread::own_pid();
    thread::forget();
    let Some(mut locked) = forking().0.take() else { return };
    locked.hold_again();
    crash::after_fork();
    watch::after_fork();
    locked.after_fork(parent);
    drop(locked);
    #[cfg(feature = "listen")]
    crate::listen::after_fork();
}

/// Returns the address of the real `vfork`. Must not be called from Rust, because it returns twice.
///
/// In a static program there is no next `vfork`; the result is `fork`, which satisfies the same contract.
pub fn real_vfork() -> *const c_void {
    static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let known = ADDRESS.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: looks up a name.
    let found = call_loader(|| unsafe { libc::dlsym(libc::RTLD_NEXT, c"vfork".as_ptr()) });
    let real = if found.is_null() { libc::fork as *mut c_void } else { found };
    ADDRESS.store(real, Ordering::Relaxed);
    real
}

/// Prepares the thread's data for a child that runs on them as another process, and returns [`real_vfork`]. Called by
/// [`define_vfork!`](crate::define_vfork).
pub extern "C" fn announce_vfork() -> *const c_void {
    thread::before_vfork();
    real_vfork()
}

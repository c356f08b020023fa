//! How tracing starts: a constructor of the object that contains the crate.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicU8, Ordering};
use std::path::PathBuf;

use dormouse_abi::environment::{ENV_LISTEN, ENV_NO_RSEQ, ENV_SESSION};
use dormouse_locks::call_loader;

use crate::{control, fork, listen, membarrier, thread, trigger};

/// Whether a program listens when its environment does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// A linked program: yes.
    ByDefault,
    /// A preloaded library in somebody else's program: no, because that costs a thread.
    OnRequest,
}

const BEFORE: u8 = 0;
const UNDER_WAY: u8 = 1;
const DONE: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(BEFORE);

/// Starts tracing in this object, once: registers classes, joins the session that the environment names, registers sites, follows
/// forks and listens. Runs by itself as a constructor; a library that is called before constructors calls it earlier.
///
/// Returns whether it has been done. Not async-signal-safe.
pub fn start(listen: Listen) -> bool {
    // (N) pairs with (N'): who finds it done finds everything registered.
    if STATE.compare_exchange(BEFORE, UNDER_WAY, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return STATE.load(Ordering::Acquire) == DONE;
    }
    let inside = thread::enter_tracer();
    // Before the process has threads, registering costs microseconds.
    membarrier::register();
    pin();
    // The first time it calls the loader, and this constructor may come before that of `dormouse_percpu`.
    let _ = dormouse_percpu::Rseq::of_libc();
    {
        let mut control = control::lock();
        control.joining.no_rseq = flag(ENV_NO_RSEQ) == Some(true);
        let (first, last) = crate::arch::own_records();
        // SAFETY: this object's own section; it is pinned.
        unsafe { control.register(first, last) };
        if let Some(socket) = std::env::var_os(ENV_SESSION).filter(|path| !path.is_empty()) {
            // A session that cannot be joined leaves the program as it is without one; the owner counts who came.
            let _ = control.join(&PathBuf::from(socket));
        }
    }
    // After joining: sites are born as armed ones are, so what the session wants armed need not be written at all, let alone
    // twice. Refused only within a registration of this very thread; sites that stay unpatched read their key.
    let _ = dormouse_imv::ensure_registered();
    fork::follow_forks();
    if flag(ENV_LISTEN).unwrap_or(listen == Listen::ByDefault) {
        listen::start();
        // SAFETY: the handler is a function of this object, which is pinned.
        unsafe { libc::atexit(listen::at_exit) };
    }
    trigger::from_environment();
    drop(inside);
    // (N') pairs with (N).
    STATE.store(DONE, Ordering::Release);
    true
}

/// `0` and `1`; anything else is as good as nothing.
fn flag(name: &str) -> Option<bool> {
    match std::env::var(name).as_deref() {
        Ok("0") => Some(false),
        Ok("1") => Some(true),
        _ => None,
    }
}

/// Keeps this object mapped although it may have come by `dlopen`: a thread and handlers run its code from now on.
fn pin() {
    if let Some(object) = object_of((crate::arch::own_records as fn() -> _ as *const c_void).addr()) {
        // SAFETY: a name by `dladdr`. The program itself is not found by its name, and stays in any case.
        unsafe { keep_loaded(object.dli_fname) };
    }
}

/// The loaded object that an address lies in.
pub fn object_of(address: usize) -> Option<libc::Dl_info> {
    let mut info = core::mem::MaybeUninit::uninit();
    // SAFETY: dladdr(3) takes any address, and has room for its answer.
    let found = call_loader(|| unsafe { libc::dladdr(core::ptr::without_provenance(address), info.as_mut_ptr()) });
    // SAFETY: an answer other than 0 says that it was filled in.
    (found != 0).then(|| unsafe { info.assume_init() })
}

/// Keeps the loaded object of this name mapped for good.
///
/// `dlopen` is looked up and not named: the linker warns of every static program that names it. Such a program has nothing to keep.
///
/// # Safety
/// `name` ends in NUL.
pub unsafe fn keep_loaded(name: *const c_char) {
    // SAFETY: looks a name up.
    let dlopen = call_loader(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlopen".as_ptr()) });
    if dlopen.is_null() {
        return;
    }
    // SAFETY: the type of dlopen(3).
    let dlopen: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void = unsafe { core::mem::transmute(dlopen) };
    // SAFETY: a name, by the caller's word; an object that is loaded already is only counted once more.
    call_loader(|| unsafe { dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) });
}

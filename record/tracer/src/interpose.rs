//! Functions that libdormouse and the preload library export in place of libc's. Each calls the next function of the
//! same name: that of the first object after this one in the loader's order. In a static program there is none, and the
//! kernel is called.
//!
//! An object other than a library would replace libc's functions for the whole program, so a Rust program does not
//! export them.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use dormouse_locks::call_loader;

pub use crate::clock::monotonic_ns;
use crate::control;
use crate::crash::{self, OwnHandler};
use crate::disposition::Disposition;
pub use crate::inherited::hide_from;
use crate::{session, thread};

/// The next object's function with a given name.
struct Next {
    name: &'static CStr,
    /// Address of the function; null if it was not looked up yet.
    address: AtomicPtr<c_void>,
}

/// Marks a function that no object has.
const NONE: *mut c_void = core::ptr::dangling_mut::<u8>().cast();

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Returns the function. The first call looks it up, which is not async-signal-safe; [`prepare`] does that in
    /// advance.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function with this name.
    unsafe fn get<F: Copy>(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            // SAFETY: looks up a name.
            let found = call_loader(|| unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) });
            address = if found.is_null() { NONE } else { found };
            self.address.store(address, Ordering::Relaxed);
        }
        // SAFETY: the address is a function's, and the caller guarantees that `F` is its pointer type.
        (address != NONE).then(|| unsafe { core::mem::transmute_copy(&address) })
    }
}

static SIGACTION: Next = Next::new(c"sigaction");
static SIGNAL: Next = Next::new(c"signal");
static SYSV_SIGNAL: Next = Next::new(c"__sysv_signal");
static EXIT: Next = Next::new(c"_exit");
static MLOCKALL: Next = Next::new(c"mlockall");
static OPENDIR: Next = Next::new(c"opendir");

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Signal = unsafe extern "C" fn(c_int, usize) -> usize;
type Exit = unsafe extern "C" fn(c_int) -> !;
type Opendir = unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;

/// Looks up all functions, so that no signal handler does.
pub fn prepare() {
    for next in [&SIGACTION, &SIGNAL, &SYSV_SIGNAL, &EXIT, &MLOCKALL, &OPENDIR] {
        // SAFETY: a pointer type; the function is not called.
        let _ = unsafe { next.get::<*const c_void>() };
    }
}

/// Implements `sigaction(2)`. The program sees the disposition that it has set, not the one that the tracer installs
/// for it.
///
/// # Safety
/// The conditions of libc's `sigaction`.
pub unsafe fn sigaction(signal: c_int, action: *const libc::sigaction, former: *mut libc::sigaction) -> c_int {
    let own = OwnHandler::of_signal(signal);
    // SAFETY: `Sigaction` is the function's type.
    let result = match unsafe { SIGACTION.get::<Sigaction>() } {
        // SAFETY: the caller satisfies the conditions of libc's `sigaction`.
        Some(next) => unsafe { next(signal, action, former) },
        // SAFETY: the caller satisfies the conditions of libc's `sigaction`.
        None => unsafe { sigaction_of_kernel(signal, action, former) },
    };
    // SAFETY: the caller guarantees that `former` is null or writable; a call that succeeded has initialised it.
    if let Some(former) = unsafe { former.as_mut() }.filter(|_| result == 0) {
        own.tell(former);
    }
    if result == 0 && !action.is_null() {
        crash::settle(signal);
    }
    result
}

/// # Safety
/// The conditions of [`sigaction`].
unsafe fn sigaction_of_kernel(signal: c_int, action: *const libc::sigaction, former: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller guarantees that `action` is null or a readable action.
    let next = unsafe { action.as_ref() }.map(Disposition::of_libc);
    let present = match next {
        Some(next) => next.replace(signal),
        None => Disposition::of(signal),
    };
    let Some(present) = present else { return -1 };
    if !former.is_null() {
        // SAFETY: the caller guarantees that `former`, which is not null, is writable.
        unsafe { former.write(present.to_libc()) };
    }
    0
}

/// Implements `signal(2)`.
///
/// # Safety
/// The conditions of libc's `signal`.
pub unsafe fn signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller satisfies the conditions of libc's `signal`, and `SIGNAL` is a function of that type.
    unsafe { signal_by(&SIGNAL, signal, handler, libc::SA_RESTART) }
}

/// Implements System V's `signal(2)`, which programs in strict C mode use.
///
/// # Safety
/// The conditions of libc's `sysv_signal`.
pub unsafe fn sysv_signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller satisfies the conditions of libc's `sysv_signal`, and `SYSV_SIGNAL` is a function of
    // `signal`'s type.
    unsafe { signal_by(&SYSV_SIGNAL, signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// # Safety
/// The conditions of `signal`; `next` names a function of its type.
unsafe fn signal_by(next: &Next, signal: c_int, handler: usize, flags: c_int) -> usize {
    let own = OwnHandler::of_signal(signal);
    // SAFETY: the caller guarantees that `next` names a function of this type.
    let former = match unsafe { next.get::<Signal>() } {
        // SAFETY: the caller satisfies the conditions of `signal`.
        Some(next) => unsafe { next(signal, handler) },
        None => {
            let former = Disposition::new(handler, flags).replace(signal);
            former.map_or(libc::SIG_ERR, |former| former.handler)
        }
    };
    if former != libc::SIG_ERR {
        crash::settle(signal);
    }
    own.told(former)
}

/// Implements `_exit(2)`.
pub fn exit(status: c_int) -> ! {
    crash::ending();
    // SAFETY: `Exit` is the function's type.
    match unsafe { EXIT.get::<Exit>() } {
        // SAFETY: has no conditions.
        Some(next) => unsafe { next(status) },
        None => loop {
            // SAFETY: exit_group(2), which does not return.
            unsafe { libc::syscall(libc::SYS_exit_group, status) };
        },
    }
}

/// Implements `mlockall(2)`: returns what it would return without a session, and locks nothing of the session's memory.
///
/// The kernel refuses `MCL_CURRENT` to a process whose address space is larger than it may lock, and a session's memory
/// alone exceeds most limits. So the memory is out of the address space during the call, except for one page that keeps
/// the file. That page is unlocked afterwards, and a mapping that grows from an unlocked page stays unlocked, even
/// after `MCL_FUTURE` (mremap(2)).
pub fn mlockall(flags: c_int) -> c_int {
    let call = || {
        // SAFETY: this is the function's type.
        match unsafe { MLOCKALL.get::<unsafe extern "C" fn(c_int) -> c_int>() } {
            // SAFETY: the function takes numbers only.
            Some(next) => unsafe { next(flags) },
            // SAFETY: mlockall(2) takes numbers.
            None => unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int },
        }
    };
    // Only `MCL_CURRENT` is about existing mappings.
    if flags & libc::MCL_CURRENT == 0 || session::sessions().next().is_none() {
        return call();
    }
    let Some(inside) = thread::enter_tracer() else { return call() };
    // Keeps the program's signal handlers, which might jump out, from running in between.
    let signals = block_signals();
    let result = match (0..LOCK_TRIES).find_map(|_| control::try_lock().or_else(wait_a_moment)) {
        Some(mut control) => {
            let result = control.joining.apart(|| (call(), errno()));
            drop(control);
            result
        }
        // The lock is held by a constructor, or by this very thread, which a signal has interrupted.
        None => (call(), errno()),
    };
    restore_signals(signals);
    drop(inside);
    set_errno(result.1);
    result.0
}

/// Number of attempts to take the lock, a millisecond apart.
const LOCK_TRIES: u32 = 50;

fn wait_a_moment<T>() -> Option<T> {
    std::thread::sleep(core::time::Duration::from_millis(1));
    None
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

fn set_errno(errno: c_int) {
    // SAFETY: has no conditions; returns the calling thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the thread's errno, which lives as long as the thread.
    unsafe { place.write(errno) };
}

/// Blocks all signals in this thread, including libc's own. Returns the former mask.
fn block_signals() -> u64 {
    let (all, mut before) = (u64::MAX, 0_u64);
    let (how, size) = (libc::SIG_SETMASK, size_of::<u64>());
    // SAFETY: rt_sigprocmask(2) with sets of eight bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const all, &raw mut before, size) };
    before
}

fn restore_signals(before: u64) {
    let (how, none, size) = (libc::SIG_SETMASK, core::ptr::null_mut::<u64>(), size_of::<u64>());
    // SAFETY: rt_sigprocmask(2) with a set of eight bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const before, none, size) };
}

/// Implements `opendir(3)`: a program that lists its descriptors does not find the session's memory among them.
///
/// # Safety
/// The conditions of libc's `opendir`.
pub unsafe fn opendir(path: *const c_char) -> *mut libc::DIR {
    // SAFETY: the caller guarantees that `path` ends in NUL, as libc's `opendir` requires.
    unsafe { hide_from(path) };
    // SAFETY: `Opendir` is the function's type.
    match unsafe { OPENDIR.get::<Opendir>() } {
        // SAFETY: the caller satisfies the conditions of libc's `opendir`.
        Some(next) => unsafe { next(path) },
        // SAFETY: the caller satisfies the conditions of libc's `opendir`.
        None => unsafe { opendir_of_kernel(path) },
    }
}

/// # Safety
/// The conditions of [`opendir`].
unsafe fn opendir_of_kernel(path: *const c_char) -> *mut libc::DIR {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the caller guarantees that `path` ends in NUL.
    let file = unsafe { libc::open(path, flags) };
    if file < 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: opened above; the directory stream takes ownership.
    let directory = unsafe { libc::fdopendir(file) };
    if directory.is_null() {
        let failed = errno();
        // SAFETY: opened above, and not used elsewhere.
        unsafe { libc::close(file) };
        set_errno(failed);
    }
    directory
}

/// Installs a crash hook that another copy of the tracer in this process has made. Returns 0 or an errno.
/// Async-signal-safe.
///
/// # Safety
/// The other copy is of this version, made the hook for this call, and gives up ownership of it.
pub unsafe fn install_crash_hook(hook: *mut c_void) -> c_int {
    // SAFETY: the caller guarantees a hook of this version that no other code owns.
    unsafe { crash::install(hook) }
}

/// Exports the functions of this module from a library.
#[doc(hidden)]
#[macro_export]
macro_rules! define_libc_functions {
    () => {
        const _: () = {
            use ::core::ffi::c_int;

            /// `sigaction(2)`.
            ///
            /// # Safety
            /// The conditions of libc's `sigaction`.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn sigaction(
                signal: c_int,
                action: *const $crate::interpose::libc::sigaction,
                former: *mut $crate::interpose::libc::sigaction,
            ) -> c_int {
                // SAFETY: the caller satisfies the conditions of libc's `sigaction`.
                unsafe { $crate::interpose::sigaction(signal, action, former) }
            }

            /// `signal(2)`.
            ///
            /// # Safety
            /// The conditions of libc's `signal`.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
                // SAFETY: the caller satisfies the conditions of libc's `signal`.
                unsafe { $crate::interpose::signal(signal, handler) }
            }

            /// `sysv_signal(3)`, under the name that glibc's header uses. Its own name follows.
            ///
            /// # Safety
            /// The conditions of libc's `sysv_signal`.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn __sysv_signal(signal: c_int, handler: usize) -> usize {
                // SAFETY: the caller satisfies the conditions of libc's `sysv_signal`.
                unsafe { $crate::interpose::sysv_signal(signal, handler) }
            }

            /// See `__sysv_signal`.
            ///
            /// # Safety
            /// The conditions of libc's `sysv_signal`.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn sysv_signal(signal: c_int, handler: usize) -> usize {
                // SAFETY: the caller satisfies the conditions of libc's `sysv_signal`.
                unsafe { $crate::interpose::sysv_signal(signal, handler) }
            }

            /// `mlockall(2)`.
            #[unsafe(no_mangle)]
            extern "C" fn mlockall(flags: c_int) -> c_int {
                $crate::interpose::mlockall(flags)
            }

            /// `opendir(3)`.
            ///
            /// # Safety
            /// The conditions of libc's `opendir`.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn opendir(path: *const ::core::ffi::c_char) -> *mut $crate::interpose::libc::DIR {
                // SAFETY: the caller satisfies the conditions of libc's `opendir`.
                unsafe { $crate::interpose::opendir(path) }
            }

            /// Installs a crash hook for another copy of the tracer in the process.
            ///
            /// # Safety
            /// The conditions of [`interpose::install_crash_hook`]($crate::interpose::install_crash_hook).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn dormouse_i_install_crash_hook(hook: *mut ::core::ffi::c_void) -> c_int {
                // SAFETY: the caller satisfies the conditions of `interpose::install_crash_hook`.
                unsafe { $crate::interpose::install_crash_hook(hook) }
            }

            /// `_exit(2)`.
            #[unsafe(no_mangle)]
            extern "C" fn _exit(status: c_int) -> ! {
                $crate::interpose::exit(status)
            }

            /// `_Exit(3)`.
            #[unsafe(no_mangle)]
            extern "C" fn _Exit(status: c_int) -> ! {
                $crate::interpose::exit(status)
            }
        };
    };
}

#[doc(hidden)]
pub use libc;

//! Functions that libdormouse and the preload library export in libc's place, each of which goes on to the next object's: of the same name, behind
//! this object in the loader's order. In a static program there is none, and the kernel is called.
//!
//! Elsewhere they would replace libc's for the whole program, so a Rust program does without.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use dormouse_locks::call_loader;

use crate::control;
use crate::crash::{self, Own};
use crate::disposition::Disposition;
pub use crate::inherited::hide_from;
use crate::{session, thread};

/// The next object's function of a name.
struct Next {
    name: &'static CStr,
    /// Null: it was not looked up yet.
    address: AtomicPtr<c_void>,
}

/// There is none.
const NONE: *mut c_void = core::ptr::dangling_mut::<u8>().cast();

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Looks it up the first time, which is not async-signal-safe: [`prepare`] does so before.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function.
    unsafe fn get<F: Copy>(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            // SAFETY: looks a name up.
            let found = call_loader(|| unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) });
            address = if found.is_null() { NONE } else { found };
            self.address.store(address, Ordering::Relaxed);
        }
        // SAFETY: the caller's word: a pointer, and to a function.
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

/// Looks all of them up, so that no signal handler has to.
pub fn prepare() {
    for next in [&SIGACTION, &SIGNAL, &SYSV_SIGNAL, &EXIT, &MLOCKALL, &OPENDIR] {
        // SAFETY: a function; it is not called.
        let _ = unsafe { next.get::<*const c_void>() };
    }
}

/// `sigaction(2)`. The program is told what it has set, and not what stands for that.
///
/// # Safety
/// As libc's.
pub unsafe fn sigaction(signal: c_int, action: *const libc::sigaction, former: *mut libc::sigaction) -> c_int {
    let own = Own::of_signal(signal);
    // SAFETY: the function's type.
    let result = match unsafe { SIGACTION.get::<Sigaction>() } {
        // SAFETY: the caller's word.
        Some(next) => unsafe { next(signal, action, former) },
        // SAFETY: the caller's word.
        None => unsafe { sigaction_of_kernel(signal, action, former) },
    };
    // SAFETY: the caller's word; it has been written to.
    if let Some(former) = unsafe { former.as_mut() }.filter(|_| result == 0) {
        own.tell(former);
    }
    if result == 0 && !action.is_null() {
        crash::settle(signal);
    }
    result
}

/// # Safety
/// As [`sigaction`].
unsafe fn sigaction_of_kernel(signal: c_int, action: *const libc::sigaction, former: *mut libc::sigaction) -> c_int {
    // SAFETY: the caller's word.
    let next = unsafe { action.as_ref() }.map(Disposition::of_libc);
    let present = match next {
        Some(next) => next.replace(signal),
        None => Disposition::of(signal),
    };
    let Some(present) = present else { return -1 };
    if !former.is_null() {
        // SAFETY: the caller's word.
        unsafe { former.write(present.to_libc()) };
    }
    0
}

/// `signal(2)`.
///
/// # Safety
/// As libc's.
pub unsafe fn signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller's word.
    unsafe { signal_by(&SIGNAL, signal, handler, libc::SA_RESTART) }
}

/// `signal(2)` of System V: what programs get that ask for strict C.
///
/// # Safety
/// As libc's.
pub unsafe fn sysv_signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the caller's word.
    unsafe { signal_by(&SYSV_SIGNAL, signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// # Safety
/// As `signal`; `next` is a function of its type.
unsafe fn signal_by(next: &Next, signal: c_int, handler: usize, flags: c_int) -> usize {
    let own = Own::of_signal(signal);
    // SAFETY: the caller's word.
    let former = match unsafe { next.get::<Signal>() } {
        // SAFETY: the caller's word.
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

/// `_exit(2)`.
pub fn exit(status: c_int) -> ! {
    crash::ending();
    // SAFETY: the function's type.
    match unsafe { EXIT.get::<Exit>() } {
        // SAFETY: has no conditions.
        Some(next) => unsafe { next(status) },
        None => loop {
            // SAFETY: exit_group(2), which does not return.
            unsafe { libc::syscall(libc::SYS_exit_group, status) };
        },
    }
}

/// `mlockall(2)`: what it says is what it would without a session, and of the session's memory nothing is locked.
///
/// The kernel refuses `MCL_CURRENT` to a process that has more addresses than it may lock, and a session's memory alone is more than most may. So the
/// memory is out of the address space while the kernel looks, but for the one page that keeps the file; that page is unlocked afterwards, and what
/// grows from a page that is not locked is not locked either, also after `MCL_FUTURE` (mremap(2)).
pub fn mlockall(flags: c_int) -> c_int {
    let call = || {
        // SAFETY: the function's type.
        match unsafe { MLOCKALL.get::<unsafe extern "C" fn(c_int) -> c_int>() } {
            // SAFETY: takes numbers.
            Some(next) => unsafe { next(flags) },
            // SAFETY: mlockall(2) takes numbers.
            None => unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int },
        }
    };
    // Mappings that there are matter to `MCL_CURRENT` alone.
    if flags & libc::MCL_CURRENT == 0 || session::current().is_none() {
        return call();
    }
    let Some(inside) = thread::enter_tracer() else { return call() };
    // No handler of the program's comes in between, which might jump away.
    let signals = block_signals();
    let result = match (0..LOCK_TRIES).find_map(|_| control::try_lock().or_else(wait_a_moment)) {
        Some(mut control) => {
            let result = control.joining.apart(|| (call(), errno()));
            drop(control);
            result
        }
        // Somebody in a constructor, or this very thread, which has interrupted itself.
        None => (call(), errno()),
    };
    restore_signals(signals);
    drop(inside);
    set_errno(result.1);
    result.0
}

/// How often, and how long apart, the lock is asked for.
const LOCK_TRIES: u32 = 50;

fn wait_a_moment<T>() -> Option<T> {
    std::thread::sleep(core::time::Duration::from_millis(1));
    None
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

fn set_errno(errno: c_int) {
    // SAFETY: this thread's own.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the thread's errno, which lives as long as the thread.
    unsafe { place.write(errno) };
}

/// Blocks all signals in this thread, libc's own too. Gives those that were blocked before.
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

/// `opendir(3)`: a program that lists its descriptors does not find the session's memory among them.
///
/// # Safety
/// As libc's.
pub unsafe fn opendir(path: *const c_char) -> *mut libc::DIR {
    // SAFETY: the caller's word; libc's reads the path here too.
    unsafe { hide_from(path) };
    // SAFETY: the function's type.
    match unsafe { OPENDIR.get::<Opendir>() } {
        // SAFETY: the caller's word.
        Some(next) => unsafe { next(path) },
        // SAFETY: the caller's word.
        None => unsafe { opendir_of_kernel(path) },
    }
}

/// # Safety
/// As [`opendir`].
unsafe fn opendir_of_kernel(path: *const c_char) -> *mut libc::DIR {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the caller's word.
    let file = unsafe { libc::open(path, flags) };
    if file < 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: opened above; what is made of it owns it.
    let directory = unsafe { libc::fdopendir(file) };
    if directory.is_null() {
        let failed = errno();
        // SAFETY: opened above, and nobody else knows of it.
        unsafe { libc::close(file) };
        set_errno(failed);
    }
    directory
}

/// Installs what a copy of the tracer that is not in this object has a crash's signal do. 0, or an errno. Async-signal-safe.
///
/// # Safety
/// The other copy is of this version, and this is a hook that it has made for this call.
pub unsafe fn install_crash_hook(hook: *mut c_void) -> c_int {
    // SAFETY: the caller's word.
    unsafe { crash::install(hook) }
}

/// Exports them from a library.
#[doc(hidden)]
#[macro_export]
macro_rules! define_libc_functions {
    () => {
        const _: () = {
            use ::core::ffi::c_int;

            /// `sigaction(2)`.
            ///
            /// # Safety
            /// As libc's.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn sigaction(
                signal: c_int,
                action: *const $crate::interpose::libc::sigaction,
                former: *mut $crate::interpose::libc::sigaction,
            ) -> c_int {
                // SAFETY: the caller's word.
                unsafe { $crate::interpose::sigaction(signal, action, former) }
            }

            /// `signal(2)`.
            ///
            /// # Safety
            /// As libc's.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
                // SAFETY: the caller's word.
                unsafe { $crate::interpose::signal(signal, handler) }
            }

            /// `sysv_signal(3)`, by the name that glibc's header gives it, and by its own.
            ///
            /// # Safety
            /// As libc's.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn __sysv_signal(signal: c_int, handler: usize) -> usize {
                // SAFETY: the caller's word.
                unsafe { $crate::interpose::sysv_signal(signal, handler) }
            }

            /// See `__sysv_signal`.
            ///
            /// # Safety
            /// As libc's.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn sysv_signal(signal: c_int, handler: usize) -> usize {
                // SAFETY: the caller's word.
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
            /// As libc's.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn opendir(path: *const ::core::ffi::c_char) -> *mut $crate::interpose::libc::DIR {
                // SAFETY: the caller's word.
                unsafe { $crate::interpose::opendir(path) }
            }

            /// For other copies of the tracer in the process.
            ///
            /// # Safety
            /// As [`interpose::install_crash_hook`]($crate::interpose::install_crash_hook).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn dormouse_i_install_crash_hook(hook: *mut ::core::ffi::c_void) -> c_int {
                // SAFETY: the caller's word.
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

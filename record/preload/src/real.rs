//! The real functions that wrappers call: those that the program would call without this library.
//!
//! Each is a pointer. At first it points to a function of this library that looks up the real one (`dlsym(RTLD_NEXT)`,
//! which finds an allocator that the program has linked before libc's), stores its address and calls it. The
//! constructor looks up all of them, so that no signal handler has to. A pointer changes once, from one correct value
//! to another, and points to code, so relaxed accesses are enough.

use core::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use libc::{
    DIR, FILE, clockid_t, mode_t, pthread_cond_t, pthread_mutex_t, pthread_rwlock_t, size_t, sockaddr, socklen_t,
    ssize_t, timespec,
};

use crate::{arena, outcome};

/// Whether a look-up is in progress that may allocate.
static LOOKING_UP: AtomicBool = AtomicBool::new(false);

/// Version of glibc's condition variables on x86-64, which also has older ones. Without a version, `dlsym` would find
/// the oldest ones after this library.
const COND: Option<&CStr> = if cfg!(target_arch = "x86_64") { Some(c"GLIBC_2.3.2") } else { None };

/// Looks up a function. Returns null if there is none, or if an allocation function is requested during a look-up.
fn look_up(name: &CStr, version: Option<&CStr>, is_allocation: bool) -> *mut c_void {
    let was_looking_up = LOOKING_UP.swap(true, Ordering::Relaxed);
    if was_looking_up && is_allocation {
        return core::ptr::null_mut();
    }
    let found = match version {
        // SAFETY: C strings; RTLD_NEXT is relative to this library, which contains the call.
        Some(version) => unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), version.as_ptr()) },
        // SAFETY: a C string; RTLD_NEXT is relative to this library, which contains the call.
        None => unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) },
    };
    LOOKING_UP.store(was_looking_up, Ordering::Relaxed);
    found
}

/// Result of a call of a function that libc does not have.
fn missing() -> c_int {
    outcome::set_errno(libc::ENOSYS);
    -1
}

/// Result of a call of a missing function that returns a stream.
fn no_stream() -> *mut FILE {
    missing();
    core::ptr::null_mut()
}

/// `"C-unwind"`: `pthread_cancel` and exceptions thrown by signal handlers pass through these calls.
macro_rules! real {
    ($(
        $(#[$allocation:ident])?
        $name:ident($($argument:ident: $type:ty),*) -> $output:ty, else $fallback:expr $(, of $version:ident)?;
    )*) => {
        $(
            pub(crate) mod $name {
                use super::*;
                use core::sync::atomic::AtomicPtr;

                static ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(FIRST);
                const FIRST: *mut c_void = first as *const () as *mut c_void;

                /// Looks up the real function unless that was done before.
                pub(crate) fn prepare() -> bool {
                    if ADDRESS.load(Ordering::Relaxed) == FIRST {
                        let found = look_up(
                            const { match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                                Ok(name) => name,
                                Err(_) => panic!(),
                            } },
                            version!($($version)?),
                            is_allocation!($($allocation)?),
                        );
                        if found.is_null() {
                            return false;
                        }
                        ADDRESS.store(found, Ordering::Relaxed);
                    }
                    true
                }

                #[cold]
                unsafe extern "C-unwind" fn first($($argument: $type),*) -> $output {
                    if prepare() {
                        // SAFETY: the caller satisfies the conditions of the real function.
                        unsafe { call($($argument),*) }
                    } else {
                        $(let _ = $argument;)*
                        $fallback
                    }
                }

                /// Calls the real function by a tail call: the compiler makes it a jump, so that the real function's
                /// caller is the program. If this were inlined, the compiler would merge it with the wrapper's other
                /// call, which is not a tail call.
                ///
                /// # Safety
                /// The conditions of the real function.
                #[cold]
                #[inline(never)]
                #[allow(dead_code, reason = "what has no wrapper is only called")]
                pub(crate) unsafe extern "C-unwind" fn alone($($argument: $type),*) -> $output {
                    // SAFETY: the caller satisfies the conditions of the real function.
                    unsafe { call($($argument),*) }
                }

                /// Calls the real function.
                ///
                /// # Safety
                /// The conditions of the real function.
                #[inline(always)]
                pub(crate) unsafe fn call($($argument: $type),*) -> $output {
                    let address = ADDRESS.load(Ordering::Relaxed);
                    type Function = unsafe extern "C-unwind" fn($($type),*) -> $output;
                    // SAFETY: the address is `first`, or that of the function that dlsym found under this name; both
                    // have this prototype.
                    let function = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
                    // SAFETY: the caller satisfies the conditions of the real function.
                    unsafe { function($($argument),*) }
                }
            }
        )*

        /// Looks up all functions. A caller of a function that is missing gets an error.
        pub(crate) fn prepare_all() {
            $($name::prepare();)*
        }
    };
}

macro_rules! version {
    () => {
        None
    };
    ($version:ident) => {
        $version
    };
}

macro_rules! is_allocation {
    () => {
        false
    };
    (allocation) => {
        true
    };
}

real! {
    #[allocation] malloc(size: size_t) -> *mut c_void, else arena::allocate(size);
    #[allocation] calloc(count: size_t, size: size_t) -> *mut c_void,
        else count.checked_mul(size).map_or(core::ptr::null_mut(), arena::allocate);
    // At this time only blocks of the arena exist, and those are not passed here.
    #[allocation] realloc(block: *mut c_void, size: size_t) -> *mut c_void, else arena::allocate(size);
    #[allocation] free(block: *mut c_void) -> (), else ();
    posix_memalign(block: *mut *mut c_void, align: size_t, size: size_t) -> c_int, else libc::ENOMEM;

    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else missing();
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else missing();
    creat(path: *const c_char, mode: mode_t) -> c_int, else missing();
    creat64(path: *const c_char, mode: mode_t) -> c_int, else missing();
    openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else missing();
    openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, else missing();
    __open_2(path: *const c_char, flags: c_int) -> c_int, else missing();
    __open64_2(path: *const c_char, flags: c_int) -> c_int, else missing();
    __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int, else missing();
    __openat64_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int, else missing();
    read(fd: c_int, buf: *mut c_void, count: size_t) -> ssize_t, else missing() as ssize_t;
    __read_chk(fd: c_int, buf: *mut c_void, count: size_t, size: size_t) -> ssize_t, else missing() as ssize_t;
    write(fd: c_int, buf: *const c_void, count: size_t) -> ssize_t, else missing() as ssize_t;
    close(fd: c_int) -> c_int, else missing();

    dup(oldfd: c_int) -> c_int, else missing();
    dup2(oldfd: c_int, newfd: c_int) -> c_int, else missing();
    dup3(oldfd: c_int, newfd: c_int, flags: c_int) -> c_int, else missing();
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int, else missing();
    fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int, else {
        // SAFETY: the caller satisfies the conditions of `fcntl64`, which is the same function on 64-bit platforms.
        unsafe { fcntl::call(fd, command, argument) }
    };
    pipe(ends: *mut c_int) -> c_int, else missing();
    pipe2(ends: *mut c_int, flags: c_int) -> c_int, else missing();
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int, else missing();
    socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int, else missing();
    accept(sockfd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int, else missing();
    accept4(sockfd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int, else missing();
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, else missing();
    closefrom(first: c_int) -> (), else {
        // SAFETY: close_range(2) closes the descriptors that the missing function would close.
        unsafe { libc::syscall(libc::SYS_close_range, first.max(0), c_uint::MAX, 0) };
    };

    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, else no_stream();
    fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE, else no_stream();
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE, else no_stream();
    freopen(path: *const c_char, mode: *const c_char, old: *mut FILE) -> *mut FILE, else no_stream();
    freopen64(path: *const c_char, mode: *const c_char, old: *mut FILE) -> *mut FILE, else no_stream();
    fclose(stream: *mut FILE) -> c_int, else missing();
    pclose(stream: *mut FILE) -> c_int, else missing();
    closedir(directory: *mut DIR) -> c_int, else missing();
    scandir(path: *const c_char, list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int,
        else missing();
    scandir64(path: *const c_char, list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int,
        else missing();
    scandirat(
        dirfd: c_int, path: *const c_char, list: *mut c_void, filter: *const c_void, compare: *const c_void
    ) -> c_int, else missing();
    scandirat64(
        dirfd: c_int, path: *const c_char, list: *mut c_void, filter: *const c_void, compare: *const c_void
    ) -> c_int, else missing();

    pthread_cond_wait(condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) -> c_int, else libc::ENOSYS, of COND;
    pthread_cond_timedwait(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, until: *const timespec
    ) -> c_int, else libc::ENOSYS, of COND;
    pthread_cond_clockwait(
        condition: *mut pthread_cond_t, mutex: *mut pthread_mutex_t, clock: clockid_t, until: *const timespec
    ) -> c_int, else libc::ENOSYS;

    pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int, else libc::ENOSYS;
    // Before glibc 2.34 a program without libpthread has these names only as weak references, and one thread.
    pthread_mutex_timedlock(mutex: *mut pthread_mutex_t, until: *const timespec) -> c_int, else 0;
    pthread_mutex_clocklock(mutex: *mut pthread_mutex_t, clock: clockid_t, until: *const timespec) -> c_int,
        else libc::ENOSYS;
    pthread_mutex_trylock(mutex: *mut pthread_mutex_t) -> c_int, else libc::ENOSYS;
    pthread_mutex_unlock(mutex: *mut pthread_mutex_t) -> c_int, else libc::ENOSYS;

    pthread_rwlock_rdlock(rwlock: *mut pthread_rwlock_t) -> c_int, else 0;
    pthread_rwlock_timedrdlock(rwlock: *mut pthread_rwlock_t, until: *const timespec) -> c_int, else 0;
    pthread_rwlock_clockrdlock(rwlock: *mut pthread_rwlock_t, clock: clockid_t, until: *const timespec) -> c_int,
        else libc::ENOSYS;
    pthread_rwlock_tryrdlock(rwlock: *mut pthread_rwlock_t) -> c_int, else 0;
    pthread_rwlock_wrlock(rwlock: *mut pthread_rwlock_t) -> c_int, else 0;
    pthread_rwlock_timedwrlock(rwlock: *mut pthread_rwlock_t, until: *const timespec) -> c_int, else 0;
    pthread_rwlock_clockwrlock(rwlock: *mut pthread_rwlock_t, clock: clockid_t, until: *const timespec) -> c_int,
        else libc::ENOSYS;
    pthread_rwlock_trywrlock(rwlock: *mut pthread_rwlock_t) -> c_int, else 0;
    pthread_rwlock_unlock(rwlock: *mut pthread_rwlock_t) -> c_int, else 0;
}

/// Exports functions that call the real ones of the same name, and then trace the result.
macro_rules! wrappers {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $output:ty: $result:ident => $traced:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The conditions of libc's function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $output {
            if $crate::sanitizer::is_there() {
                // SAFETY: the caller satisfies the conditions of libc's function.
                return unsafe { real::$name::alone($($argument),*) };
            }
            // SAFETY: the caller satisfies the conditions of libc's function.
            let $result = unsafe { real::$name::call($($argument),*) };
            $traced;
            $result
        }
    )*};
}
pub(crate) use wrappers;

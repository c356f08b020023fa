//! Traces libc's functions in unmodified programs: `dormouse record --libc -e 'libc:*' -- CMD`.
//!
//! # The problem
//! A program that cannot be rebuilt should show what it allocates, opens, reads, writes and locks. The loader can place
//! a library before libc (`LD_PRELOAD`). But then all code calls that library, including its own tracer: it must not
//! trace itself, not allocate during the look-up of the allocator, not change `errno`, and add neither threads nor
//! descriptors of its own.
//!
//! # Structure
//! ```text
//!   program ── malloc ──▶ wrapper ── pointer ──▶ the real malloc (the program's own allocator, or libc's)
//!                            │ gate: dormant, the result is returned immediately
//!                            ▼ armed
//!                         record path of the tracer, which calls no libc function
//!
//!   tracer's own work (start, fork) ── Rust's allocator ────▶ the real malloc
//!                                   ── open, read, close ───▶ wrapper, whose events are dropped while the thread is inside
//! ```
//!
//! # Events
//! | event | fields |
//! | --- | --- |
//! | `libc:malloc` | `size`, `ptr` |
//! | `libc:calloc` | `count`, `size`, `ptr` |
//! | `libc:realloc` | `old`, `size`, `ptr` |
//! | `libc:free` | `ptr` |
//! | `libc:open` (`open`, `open64`, `creat`, …) | `path`, `flags`, `mode`, `fd` |
//! | `libc:openat` | `dirfd`, `path`, `flags`, `mode`, `fd` |
//! | `libc:read`, `libc:write` | `fd`, `buf`, `count`, `result`, `duration_ns` |
//! | `libc:close` | `fd`, `result`, `duration_ns` |
//! | `libc:close_range` (`close_range`, `closefrom`) | `first`, `last`, `flags`, `result` |
//! | `libc:dup` (`dup`, `dup2`, `dup3`, `fcntl` with `F_DUPFD` or `F_DUPFD_CLOEXEC`) | `oldfd`, `fd` |
//! | `libc:fopen` | `path`, `fd` |
//! | `libc:fdopen` | `fd`, `result` |
//! | `libc:freopen` | `path`, `oldfd`, `fd` |
//! | `libc:fclose` (`fclose`, `pclose`, `closedir`) | `fd`, `result` |
//! | `libc:pipe` (`pipe`, `pipe2`) | `read_fd`, `write_fd`, `flags`, `result` |
//! | `libc:socket` | `domain`, `kind`, `protocol`, `fd` |
//! | `libc:socketpair` | `domain`, `kind`, `protocol`, `fd`, `other_fd`, `result` |
//! | `libc:accept` (`accept`, `accept4`) | `sockfd`, `flags`, `fd` |
//! | `libc:fork_begin`, before a fork | `number` |
//! | `libc:fork_child`, in the child | `parent`, `number` |
//! | `libc:mutex_lock_begin`, if the call must wait | `mutex`, `owner` |
//! | `libc:mutex_lock` (`pthread_mutex_lock`, `…_timedlock`, `…_clocklock`), `libc:mutex_trylock` | `mutex`, `result` |
//! | `libc:mutex_unlock` | `mutex` |
//! | `libc:mutex_unlock_failed` | `mutex`, `result` |
//! | `libc:cond_wait_begin` (`pthread_cond_wait`, `…_timedwait`, `…_clockwait`) | `cond`, `mutex` |
//! | `libc:cond_wait_end` | `cond`, `mutex`, `result` |
//! | `libc:rwlock_rdlock_begin`, `libc:rwlock_wrlock_begin`, if the call must wait | `rwlock`, `writer` |
//! | `libc:rwlock_rdlock`, `libc:rwlock_wrlock` (also timed), `libc:rwlock_tryrdlock`, `libc:rwlock_trywrlock` | `rwlock`, `result` |
//! | `libc:rwlock_unlock` | `rwlock` |
//! | `libc:rwlock_unlock_failed` | `rwlock`, `result` |
//!
//! There is one event for each call, after it has returned, with four exceptions. A fork has an event in the parent and
//! one in the child, with the same number. `free` and unlocks are recorded
//! before the call, because afterwards another thread may be given the address or take the lock. A wait for a condition
//! has two events, because it releases the mutex and locks it again. A lock that must wait has two events; if its
//! `…_begin` is not armed, it has the second one only. `owner` and `writer` are the id of the thread that holds the lock
//! (0 if unknown). `duration_ns` is the time that the call took, by `CLOCK_MONOTONIC`; a call that began before its event
//! was armed has no event. The result (`fd`, `result`) of a call that failed is `-errno`, as in system
//! call tracers; a `ptr` is null. `mode` is 0 if the flags do not require one. `path` is empty if the call failed with
//! `EFAULT`, `EINVAL`, `ENAMETOOLONG`, `ENOSYS` or `EPERM`, which the kernel may have returned before it read the path.
//!
//! # Start-up
//! ```text
//!   loader: maps, relocates    calls of malloc by the loader: wrapper ── looks up ──▶ real malloc, not traced
//!   constructor of this library: look everything up, join the session, arm      DF_1_INITFIRST: before all other objects
//!   preinit functions, constructors, main, atexit, destructors                  traced
//! ```
//! Joining inside the first traced call would be too early: that call may come from `dlopen`, `atexit` or
//! `pthread_atfork`, whose locks joining needs. So the library is linked to be initialised first (`-z initfirst`), and
//! only the loader's own calls precede that. If another object is initialised first instead, constructors that run
//! before ours are not traced. libc's constructor, which runs later, sets `environ`, so ours sets it too, to the same
//! value.
//!
//! `dlsym` may allocate during the look-up of `malloc`. That memory comes from a static arena; `free` ignores its
//! blocks, and `realloc` moves them out.
//!
//! # Cost
//! Dormant: a call through a pointer, a comparison of a byte, and the gate's `nop`; `free` and `realloc` also compare
//! an address. Armed: one event; `read`, `write` and `close` also read the clock twice. A process that starts, and a forked child, enter themselves in the session's memory.
//!
//! # What stays the same
//! * Cancellation, exceptions and `longjmp` pass through the wrappers, which have nothing to clean up around the call.
//! * Each wrapper is async-signal-safe if the original is. A signal handler's calls are recorded whatever code it
//!   interrupts, except while its thread joins a session (at start and in a forked child).
//! * There is no additional thread (unless `DORMOUSE_LISTEN=thread` or a trigger by event requests one), no additional
//!   descriptor except the session's memory, which `dormouse record` passes on, and no output.
//! * A program that lists its descriptors (`/proc/self/fd`, `/dev/fd`, `fdinfo`, by its id or a thread's) by `opendir`,
//!   `scandir`, `scandirat`, `open` or `openat` does not find that descriptor: it is closed just before. Programs
//!   executed afterwards ask at the session's socket.
//! * `vfork` has a wrapper that informs the tracer; the child's events have the child's ids.
//! * `sigaction`, `signal`, `sysv_signal`, `_exit`, `_Exit`, `mlockall` and `opendir` have wrappers by which the tracer
//!   reports crashes, and keeps a session's memory from being locked and listed. Their effects and results are those of
//!   libc's functions.
//!
//! # Limits
//! * Programs that the loader does not preload into are not traced: static programs, set-user-ID programs, programs
//!   with a libc other than glibc, and children with an environment without `LD_PRELOAD` or `DORMOUSE_SESSION`.
//! * If musl is installed (`/lib/ld-musl-*`), `dormouse record` names the library through the system's library
//!   directory (`/$LIB/../…`). glibc's loader finds it; musl's does not, and starts the program without it. With the
//!   plain path in `LD_PRELOAD`, a dynamic program with musl would not start.
//! * Under valgrind, tools that replace `malloc` and related functions (memcheck, helgrind, drd, massif, dhat) handle these calls themselves.
//! * Under a seccomp filter that was installed before `exec`, recording makes only system calls that the loader also
//!   makes; if musl is installed, the loader also calls `readlink`, because of `$LIB` in the library's name.
//! * Calls inside libc are not traced: the reads of `fread`, the opens of `getaddrinfo`, the closes of `posix_spawn`.
//!   Their allocations are.
//! * On x86-64, condition variables are those of glibc 2.3.2 and later; a program that was linked with an older version
//!   has other ones.
//! * `posix_memalign` and related functions are not traced; freeing their blocks is.
//! * A program finds the descriptor of the session's memory if it lists descriptors by raw system calls, a relative
//!   path, or `glob`, `nftw` and `fts_open` inside libc, or checks each number for being open; with a sanitizer's
//!   runtime, also by `open` and `openat`.
//! * Locks that do not call libc's functions are not traced, such as those of Rust's standard library and of Go.
//! * `_Fork`, `clone` and raw system calls bypass the fork handlers: their children record under the parent's ids.
//! * A program that defines `malloc` or another of these functions itself calls its own function.
//! * Programs with a library of AddressSanitizer, LeakSanitizer or ThreadSanitizer are not traced, because these
//!   account for memory themselves. The session is told of these programs.
//!
//! # Source
//! ld.so(8), `LD_PRELOAD`; glibc manual, "Replacing malloc"; System V gABI, "Dynamic Section", `DF_1_INITFIRST`
//! (Solaris Linker and Libraries Guide); pthreads(7), "Cancellation points".

mod arena;
mod conditions;
mod descriptors;
mod files;
mod forks;
mod listing;
mod memory;
mod mutexes;
mod outcome;
mod real;
mod rwlocks;
mod sanitizer;
mod streams;

use core::ffi::{c_char, c_int};

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
dormouse::define_vfork!();

dormouse::define_libc_functions!();

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// Runs before the tracer crate's own constructor, which would start listening.
#[used]
#[unsafe(link_section = ".init_array.00100")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = {
    extern "C" fn constructor(_count: c_int, _arguments: *const *const c_char, environment: *const *const c_char) {
        real::prepare_all();
        rwlocks::prepare();
        dormouse::real_vfork();
        dormouse::interpose::prepare();
        // SAFETY: the process has one thread, and a word is read.
        let known = unsafe { environ };
        if known.is_null() {
            // SAFETY: the process has one thread. glibc passes constructors the value that its own constructor will
            // store there.
            unsafe { environ = environment };
        }
        if sanitizer::detect() {
            dormouse::leave_to_sanitizer();
        } else {
            dormouse::start(dormouse::Listen::Preloaded);
            forks::follow();
        }
    }
    constructor
};

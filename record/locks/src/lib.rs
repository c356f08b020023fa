//! The locks that a traced program can encounter, their order, and a check of the order in debug builds.
//!
//! # The problem
//! The loader runs an object's constructors and destructors while it holds its own lock, and ours take our locks there.
//! So a thread that holds one of our locks and calls the loader may wait for a thread in `dlopen` that waits for our
//! lock: a deadlock.
//!
//! # The order
//! A thread that holds a lock takes only locks that are below it in this order:
//! ```text
//!   the program's own locks
//!     │
//!   the loader's     held    by dlopen and dlclose, while they run constructors and destructors
//!     │              taken   by dlsym, dladdr, dlopen, dlclose, dl_iterate_phdr; by unwinding (panics, backtraces); by the first use of a
//!     │                      thread-local value with a destructor; before glibc 2.35 also by pthread_create, and by a thread's first
//!     │                      access to thread-local data of a library
//!     │
//!   Pool             `percpu`: a thread that allocates from an object pool, or holds the pool for a fork
//!     │
//!   Control          `tracer`: event classes, the session, what is armed. Held from before a fork until after it
//!     │
//!   Registry         `imv`: objects with sites, and the text while it is patched. Held from before a fork until after it
//!     │
//!   the C library's  malloc, stdio, the environment, the lists of `atexit` and `pthread_atfork`
//! ```
//! So nothing calls the loader while it holds one of our locks: libc's symbols are looked up at load time
//! (`dormouse_percpu::Rseq::of_libc`), the text of an object is found before it is registered, the tracer's threads are
//! started after the lock is released, and no error is converted to libc's text under a lock, because `strerror` may
//! load a character set converter.
//!
//! Locks that are held when the program or libc calls the tracer:
//! * **Constructors and destructors** (registering and forgetting objects, `start`) are called with the loader's lock and take Control,
//!   then Registry.
//! * **`atexit` handlers** are called without a lock; they take none of ours.
//! * **Thread-local destructors** (a thread's rseq structure) are called without a lock and take none.
//! * **Fork handlers** take Control, then Registry; libc's own locks are taken after them.
//! * **`malloc`** is called under Control. A `malloc` that calls the loader, for example to unwind, must have done so
//!   before, or must work while another thread holds the loader's lock: this is a limit.
//! * **Signal handlers** of the program may change keys and allocate from pools, whatever code they have interrupted.
//!   So they may take Registry under Registry of another copy, or Pool under Control; they never take Control.
//!
//! # The check
//! In debug builds each thread that holds locks has a slot in a table. [`Rank::hold`] and [`call_loader`] check it, and
//! end the program with the reason if the order is violated, whether or not a thread waits at that moment. In release
//! builds both do nothing.
//!
//! # Limits
//! The check sees calls that go through [`call_loader`], not calls that libraries make themselves. For those, a test
//! keeps a thread in a constructor while the program is asked for everything that it can do (`capi/tests/loader.rs`): a
//! call of the loader would then hang. Under Control the program also waits for the owner's answer, for at most 50 ms
//! each time.
//!
//! # Source
//! glibc 2.36, `elf/dl-open.c`, `elf/dl-iteratephdr.c`, `elf/dl-tls.c`, `stdlib/cxa_thread_atexit_impl.c`, `sysdeps/nptl/fork.h`;
//! glibc bugs 19329 and 28357.
#![no_std]

mod order;
mod owner;

pub use order::{HeldLock, Rank, call_loader};
pub use owner::{OwnerLock, Reentered};

//! The locks that a traced program can meet, their order, and in debug builds the check of it.
//!
//! # The problem
//! The loader runs constructors and destructors of an object while it holds its own lock, and ours take locks of ours there. So a thread
//! that holds a lock of ours and calls the loader may wait for a thread that is in `dlopen` and waits for that lock: both wait for ever.
//!
//! # The order
//! A thread that holds a lock takes only those that stand below it.
//! ```text
//!   the program's own locks
//!     │
//!   the loader's     held    by dlopen and dlclose, while they run constructors and destructors
//!     │              taken   by dlsym, dladdr, dlopen, dlclose, dl_iterate_phdr; by unwinding (panics, backtraces); by the first use of a
//!     │                      thread-local value with a destructor; before glibc 2.35 also by pthread_create, and by a thread's first
//!     │                      access to thread-local data of a library
//!     │
//!   Pool             `percpu`: who allocates from a pool, or holds it for a fork
//!     │
//!   Control          `tracer`: event classes, the session, what is armed. Held from before a fork until after it
//!     │
//!   Registry         `imv`: objects with sites, and the text while it is patched. Held from before a fork until after it
//!     │
//!   the C library's  malloc, stdio, the environment, the lists of `atexit` and `pthread_atfork`
//! ```
//! So nothing calls the loader while it holds a lock of ours: what libc knows is looked up at load time (`dormouse_percpu::Rseq::of_libc`),
//! the text of an object is found before it is registered, a thread of the tracer is started when the lock is given back, and
//! no error is turned into libc's words under a lock, because `strerror` may load a converter of character sets.
//!
//! Who is called back:
//! * **Constructors and destructors** (registering and forgetting objects, `start`) come with the loader's lock and take Control, then Registry.
//! * **`atexit` handlers** come with no lock; they take none of ours.
//! * **Thread-local destructors** (a thread's rseq area, its alternate stack) come with no lock and take none.
//! * **Fork handlers** take Control, then Registry; libc's own come after them.
//! * **`malloc`** is called under Control. One that calls the loader, say to unwind, must have done so before for the first time, or be
//!   prepared to find the loader's lock taken: that is a limit.
//! * **Signal handlers** of the program may change keys and allocate from pools, whatever they have interrupted. So they may take Registry
//!   under Registry of another copy, or Pool under Control; they never take Control.
//!
//! # The check
//! In debug builds each thread that holds locks has a slot in a table. [`Rank::hold`] and [`call_loader`] look there and end the program with
//! the reason if the order is broken, whether or not anybody waits at that moment. In release builds both do nothing.
//!
//! # Limits
//! The check sees calls that go through [`call_loader`]; what libraries do by themselves it does not see. A test has a thread stay in a
//! constructor while the program is asked for everything that it can do (`capi/tests/loader.rs`), which would wait.
//! Under Control the program also waits for the owner's answer, for some seconds at most.
//!
//! # Source
//! glibc 2.36, `elf/dl-open.c`, `elf/dl-iteratephdr.c`, `elf/dl-tls.c`, `stdlib/cxa_thread_atexit_impl.c`, `sysdeps/nptl/fork.h`; glibc bugs 19329 and 28357.
#![no_std]

mod order;
mod owner;

pub use order::{Held, Rank, call_loader};
pub use owner::{OwnerLock, Reentered};

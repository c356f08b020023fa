//! Static branches: gates that sleep in the instruction stream and are patched while the program runs.
//!
//! # The problem
//!
//! A tracepoint that is compiled into a program should cost nothing while nobody listens. A test of a global variable
//! costs a load, which misses the cache just when the program is busy with its own data. A static branch has no data to
//! load: whether it is taken is written into the instruction itself.
//!
//! # Picture
//!
//! ```text
//!    text of the object                                 registry (one per copy of this crate)
//!   ┌───────────────────────────────┐                  ┌─────────────────────────────────────┐
//!   │ site  E9|A9 dd dd dd dd       │◀──┐              │ object: sites, text segment         │
//!   │ next  …program goes on        │   │  register    │ object: …                           │
//!   │       ⋮                       │   │  ┌──────────▶│ writer: mprotect, procmem, none     │
//!   │ slow  KEY.enabled > 0 ?       │   │  │           └─────────────────────────────────────┘
//!   └───────────────────────────────┘   │  │
//!    section dormouse_sites, read-only  │  │
//!   ┌───────────────────────────────┐   │  │
//!   │ SiteRecord: site, kind, key   │───┘──┘      key ──▶ static KEY: StaticKey (a count)
//!   └───────────────────────────────┘
//! ```
//!
//! # States of a site
//!
//! ```text
//!   born     E9 rel32   jmp slow        the linker's; also where text cannot be written
//!   dormant  A9 rel32   test eax, imm32 the registry's, when the key is disabled
//!   armed    E9 rel32   jmp slow        the registry's, when the key is enabled
//!
//!   born ──object registered, key disabled──▶ dormant ◀──disable── armed
//!                                                └───────enable──────▶┘
//! ```
//!
//! Only the owner of the registry's lock moves a site, and only its first byte differs between the states: the four
//! displacement bytes are the immediate of the `test`. So a processor that fetches the site meanwhile decodes one of two
//! whole instructions, wherever the site lies in a cache line.
//!
//! # Ordering
//!
//! The key is the truth and the site is a hint which may only err towards reading the key. A jumping site is always
//! right, because the slow block reads the key. A dormant site is right while the key is disabled. So:
//!
//! * *Enable*: the key is set, then the byte is stored, then `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)` makes every
//!   running thread of the process execute a core-serialising instruction, and threads that are not running execute one
//!   before they return to user mode. When it returns no thread can execute the old instruction any more.
//! * *Disable*: the key is cleared first, so gates answer `false` from then on; the rest is only speed.
//! * A program whose text cannot be written, or a site that runs before the constructor, reads the key and is right.
//! * The slow block's load of the key is an acquire (A) and the store is a release (B): what was prepared before
//!   [`enable`] is visible to code behind the gate.
//!
//! Without that barrier (Linux before 4.16, some sandboxes and emulators) nothing is written at all: Intel's manual (vol. 3,
//! "Handling Self- and Cross-Modifying Code") asks each processor for a serialising instruction after the change, and
//! there would be no way to have other threads execute one. It is one reason for the rung "none", whose programs are
//! only slower.
//!
//! # Cost
//!
//! Dormant: one instruction of five bytes, no data access, no branch; it clobbers the flags. Armed: a jump, a load and a
//! test. An update: two `mprotect` calls per object with a site that changes, one store per site, one barrier. Updates
//! never allocate, so an allocator may be traced.
//!
//! # Limits
//!
//! * x86-64 Linux is patched. Elsewhere, and with the feature `generic`, gates read their key and there are no sites.
//! * A key and its gates lie in one object (program or shared library); a gate in another object needs its own key.
//! * A Rust crate of type `dylib` exports its statics, which the linker then refuses in records; link it with `-Bsymbolic`.
//!   `rlib`, `cdylib`, `staticlib` and programs need nothing.
//! * Records keep the code that they describe from `--gc-sections`.
//! * Sites outside the object's executable segment are written through `/proc/self/mem` or not at all.
//! * While an update runs, the pages between its first and last site are writable as well as executable.
//! * `fork` waits for a running update, and the child has its own text. A child made by a raw `clone` amid another
//!   thread's update cannot change keys.
//! * A key is changed by this crate only.
//!
//! # Source
//!
//! Mathieu Desnoyers, "Immediate Values", Linux kernel documentation of the 2008 LTTng patch set; the kernel's jump labels
//! (`Documentation/staging/static-keys.rst`). The one-byte encoding is this crate's own: no breakpoint, no signal.

#![cfg_attr(not(test), no_std)]

mod arch;
mod lock;
mod registry;
mod segment;
#[cfg_attr(
    not(all(target_arch = "x86_64", target_pointer_width = "64", target_os = "linux", not(feature = "generic"))),
    allow(dead_code, reason = "a build that patches nothing has no sites")
)]
mod site;
mod value;
mod writer;

use core::fmt;
use core::sync::atomic::{AtomicI32, Ordering};

pub use registry::{
    Change, ForeignUpdate, OBJECT_COUNT_MAX, SiteCount, Status, apply, disable, enable, ensure_registered, hand_over,
    key_sites, register_object, status, unregister_object, update, visit_key_sites,
};
pub use site::Width;
pub use value::{Address, Imv, Value, set_raw, shape_of, value_of};
pub use writer::Writer;

/// The key of static branches: a count of those who want them taken. Shared with C as `struct dormouse_static_key`.
///
/// It must be a `static`, because its sites refer to it by address.
#[repr(C)]
#[derive(Debug, Default)]
pub struct StaticKey {
    enabled: AtomicI32,
}

impl StaticKey {
    /// A disabled key.
    pub const fn new() -> StaticKey {
        StaticKey { enabled: AtomicI32::new(0) }
    }

    /// A key that one has enabled.
    pub const fn new_enabled() -> StaticKey {
        StaticKey { enabled: AtomicI32::new(1) }
    }

    /// Whether the key is enabled. Wait-free; async-signal-safe.
    #[inline(always)]
    pub fn is_enabled(&self) -> bool {
        // (A) pairs with (B) in `apply`.
        self.enabled.load(Ordering::Acquire) > 0
    }
}

const _: () = assert!(size_of::<StaticKey>() == 4 && align_of::<StaticKey>() == 4);

/// Why an update is not, or not wholly, done. The program is right in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// The calling thread is amid an update already: it is in a signal handler that interrupted one. Nothing was changed.
    Reentered,
    /// More than [`OBJECT_COUNT_MAX`] objects: the sites of this one read their keys.
    TooManyObjects,
    /// A key would be disabled more often than enabled, or its count is exhausted.
    Unbalanced,
    /// The key is enabled, but the text can no longer be written and some of its sites still sleep.
    Asleep,
    /// A value was left as it was, because some of its sites hold it in text that can no longer be written.
    Stale,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Error::Reentered => "refused: this thread is amid an update already",
            Error::TooManyObjects => "too many objects with sites: those of this object stay unpatched",
            Error::Unbalanced => "a key was disabled more often than enabled",
            Error::Asleep => "program text can no longer be written: some sites of an enabled key still sleep",
            Error::Stale => "program text can no longer be written: the value stays as it was",
        })
    }
}

impl core::error::Error for Error {}

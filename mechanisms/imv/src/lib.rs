//! Immediate values and static branches: data that lies in the instruction stream, and is patched while the program runs.
//!
//! # The problem
//!
//! A tracepoint that is compiled into a program should cost nothing while nobody listens, and a setting that is read a
//! million times for each time that it is changed should not take a cache line. A global variable costs a load, which misses
//! the cache just when the program is busy with its own data. Here there is no data to load: whether a branch is taken, and
//! what a value is, is written into the instruction itself.
//!
//! # Picture
//!
//! ```text
//!    text of the object                                 registry (one per copy of this crate)
//!   ┌───────────────────────────────┐                  ┌─────────────────────────────────────┐
//!   │ gate  .. 1F E9|A9 dd dd dd dd │◀──┐              │ object: sites, text segment         │
//!   │ next  …program goes on        │   │  register    │ object: …                           │
//!   │       mov eax, 16             │◀─┐│  ┌──────────▶│ writer: mprotect, procmem, none     │
//!   │       ⋮                       │  ││  │           └─────────────────────────────────────┘
//!   │ slow  KEY.enabled > 0 ?       │  ││  │
//!   └───────────────────────────────┘  ││  │
//!    section dormouse_sites, read-only ││  │
//!   ┌───────────────────────────────┐  ││  │
//!   │ SiteRecord: site, kind, key   │───┘──┘      key ──▶ static KEY: StaticKey (a count)
//!   │ SiteRecord: site, kind, key   │──┘              ──▶ static BATCH_SIZE: Imv<u32> (the value)
//!   └───────────────────────────────┘
//! ```
//!
//! | to have | define | read | change |
//! | --- | --- | --- | --- |
//! | a branch that is seldom taken | `static KEY: StaticKey` | [`static_branch!`] | [`enable`], [`disable`] |
//! | a value | [`imv!`] | [`imv_read!`] | [`Imv::set`] |
//! | several at once | | | [`update`] |
//! | a setting that operators change | [`tunable!`] for a key or a value | as these | `dormouse imv set`, [`set_tunables`] |
//!
//! A boolean that decides a branch should be a key: its gate is one instruction, and a value's test two.
//!
//! # States of a site
//!
//! ```text
//!   branch         born     E9 rel32            jmp slow                     the linker's; also where text cannot be written
//!                  dormant  0F 1F 44 00 00      nop                          the registry's, when the key is disabled
//!                  between  A9 any four bytes   test eax, imm32              the registry's, on the way from one to the other
//!                  armed    E9 rel32            jmp slow                     the registry's, when the key is enabled
//!
//!   value of 1,    born     3E.. 8B /r          mov r32, [variable]   (or movzx, movsx)
//!   2, 4 bytes     patched  3E.. REX C7 imm32   mov r32, imm32
//!
//!   value of       born     E9 rel32  B8+r 0    jmp slow, which loads the variable and jumps behind the mov
//!   8 bytes        patched  A9 rel32  B8+r imm  test eax, imm32; mov r64, imm64
//! ```
//!
//! Only the owner of the registry's lock moves a site, by steps that each replace a whole instruction by a whole instruction, with
//! a barrier after each:
//!
//! * A *branch* takes three steps, over the state between: its first byte makes it a `test` of five bytes; the other four, which
//!   are now an immediate that nobody looks at, become those of the state to come (the record tells the jump's distance); and
//!   the first byte makes it that state. So a processor that fetches meanwhile decodes an instruction of five bytes, wherever it
//!   lies in a cache line. Any writer can do it, and a `nop` takes no unit of a processor to execute.
//! * A *value's instruction* ends on eight aligned bytes that hold all that differs, and is written by one store of these.
//!   Prefixes that mean nothing to it (`3E`) give it that length and place, so there is no `nop` to execute.
//! * *Eight bytes* of value fill the aligned word, so the opcode would be outside. The immediate is written while the gate in front of it
//!   jumps past it, or as one store from one value to the next.
//!
//! # Ordering
//!
//! The variable is the truth. A site that reads it is always right. For the others:
//!
//! * *Enable*: the key is set, then the bytes are stored, after each of which `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)` makes every
//!   running thread of the process execute a core-serialising instruction, and threads that are not running execute one
//!   before they return to user mode. When it returns no thread can execute the old instruction any more.
//! * *Disable*: the key is cleared first, so gates answer `false` from then on; the rest is only speed.
//! * *Set*: the variable is set, then the instructions, then the same barrier. Until it returns, a thread may read the old
//!   value or the new one, at each site on its own; afterwards the new one. Reads are relaxed: a value is a number of its own, and
//!   what has to be there when it is seen has to be ordered otherwise.
//! * A program whose text cannot be written, or a site that runs before the constructor, reads the variable and is right.
//! * The slow block's load of a key is an acquire (A) and the store is a release (B): what was prepared before
//!   [`enable`] is visible to code behind the gate.
//!
//! Without that barrier (Linux before 4.16, some sandboxes and emulators) nothing is written at all: Intel's manual (vol. 3,
//! "Handling Self- and Cross-Modifying Code") asks each processor for a serialising instruction after the change, and
//! there would be no way to have other threads execute one. It is one reason for the rung "none", whose programs are
//! only slower.
//!
//! # Writers
//!
//! | writer | gates | values of 1, 2, 4 bytes | values of 8 bytes |
//! | --- | --- | --- | --- |
//! | mprotect | patched | patched | patched |
//! | procmem (text may not be made writable) | patched | loads | read behind the gate |
//! | none | read the key | loads | read behind the gate |
//!
//! Through `/proc/self/mem` bytes arrive in an order that nobody promises, so what needs one is not written there. A process that
//! forbids the change of text *after* values have been patched cannot change those any more: [`Imv::set`] says
//! [`Error::Stale`], and the value stays as it was everywhere. [`status`] names the writer and the reason.
//!
//! # Cost
//!
//! Dormant gate: a `nop` of five bytes, no data access, no branch; the compiler takes the flags for clobbered. Armed: a jump, a
//! load and a test. Value: one instruction of eight to fifteen bytes, or a `test` and a `mov` of eight bytes. An update
//! of values: two `mprotect` calls per object with a site that changes, one store per site, one barrier; of keys: all of
//! that three times. Updates never allocate, so an allocator may be traced.
//!
//! # Limits
//!
//! * x86-64 Linux is patched. On AArch64 Linux gates are (`b slow` when born or armed, `nop` when dormant; not through
//!   `/proc/self/mem`), and values are loads. Elsewhere, and with the feature `generic`, gates read their key, values are loads,
//!   and there are no sites.
//! * A key or value and its sites lie in one object (program or shared library) in Rust; C can share them between objects.
//! * A Rust crate of type `dylib` exports its statics, which the linker then refuses in records; link it with `-Bsymbolic`.
//!   `rlib`, `cdylib`, `staticlib` and programs need nothing.
//! * Records keep the code that they describe from `--gc-sections`.
//! * Sites outside the object's executable segment are written through `/proc/self/mem` or not at all.
//! * While an update runs, the pages between its first and last site are writable as well as executable.
//! * `fork` waits for a running update, and the child has its own text. A child made by a raw `clone` amid another
//!   thread's update cannot change keys.
//! * Under an emulator that translates ahead (valgrind, qemu's user mode) a thread may execute a site once more as it was after an
//!   update has returned: the kernel's barrier does not reach the emulator's translations.
//!   valgrind, which would go on with the old text for ever, is told of each store.
//! * Keys and values are changed by this crate only.
//! * Tunables are those of the objects that this copy of the crate has registered: a Rust library brings its own copy, and C
//!   libraries register with libdormouse. They are set from outside only where a tracer listens. A tunable is a number, a
//!   `bool` or a key: whoever wants an enumeration exports its number and a range.
//!
//! # Source
//!
//! Mathieu Desnoyers, "Immediate Values - Documentation", patch 6/7 of the series of 2 February 2008; the kernel's jump labels
//! (`Documentation/staging/static-keys.rst`). The encodings are this crate's own: no breakpoint, no signal.

#![cfg_attr(not(test), no_std)]

mod arch;
mod records;
mod registry;
mod segment;
#[cfg_attr(
    any(feature = "generic", not(target_arch = "x86_64")),
    allow(dead_code, reason = "what patches nothing, or branches only, has no use for some of it")
)]
mod site;
mod tunable;
mod value;
mod writer;

use core::fmt;
use core::sync::atomic::{AtomicI32, Ordering};

pub use dormouse_abi::site::TunableRecord;
pub use dormouse_abi::tunable::{TunableRange, TunableValue, Unfit};
pub use registry::{
    Change, ForeignUpdate, SiteCount, Status, apply, disable, enable, ensure_registered, hand_over, key_sites,
    register_object, status, unregister_object, update, visit_key_sites,
};
pub use site::{OBJECT_COUNT_MAX, Width};
#[doc(hidden)]
pub use tunable::tunable_parts;
pub use tunable::{
    Assignment, Export, Refusal, Scalar, Tunable, TunableError, register_tunables, set_tunable, set_tunables,
    unregister_tunables, visit_tunables,
};
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
    /// Tunables were left as they were, because the sites are in the hands of another library ([`hand_over`]).
    Elsewhere,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Error::Reentered => "refused: this thread is amid an update already",
            Error::TooManyObjects => "too many objects with sites: those of this object stay unpatched",
            Error::Unbalanced => "a key was disabled more often than enabled",
            Error::Asleep => "program text can no longer be written: some sites of an enabled key still sleep",
            Error::Stale => "program text can no longer be written: the value stays as it was",
            Error::Elsewhere => {
                "libdormouse and libdormouse_imv are both in the program, and sites went to the other: link it with one of them"
            }
        })
    }
}

impl core::error::Error for Error {}

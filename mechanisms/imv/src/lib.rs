//! Immediate values and static branches: data that is stored in the instruction stream, and patched while the program
//! runs.
//!
//! # The problem
//!
//! A tracepoint that is compiled into a program should cost nothing while no tracer listens, and a setting that is read
//! a million times for each change should not take a cache line. A global variable costs a load, which misses the cache
//! just when the program is busy with its own data. Here no data is loaded: the instruction itself contains the value,
//! and decides whether a branch is taken.
//!
//! # Picture
//!
//! ```text
//!    text of the object                                 registry (one per copy of this crate)
//!   ┌───────────────────────────────┐                  ┌─────────────────────────────────────┐
//!   │ gate  0F|A9|E9 .. .. .. ..    │◀──┐              │ object: sites, text segment         │
//!   │ next  …program continues      │   │  register    │ object: …                           │
//!   │       mov eax, 16             │◀─┐│  ┌──────────▶│ writer: mprotect, procmem, none     │
//!   │       ⋮                       │  ││  │           └─────────────────────────────────────┘
//!   │ target  …behind the gate      │  ││  │
//!   │ slow  KEY.enabled > 0 ?       │  ││  │
//!   └───────────────────────────────┘  ││  │
//!    section dormouse_sites, read-only ││  │
//!   ┌───────────────────────────────┐  ││  │
//!   │ SiteRecord: site, kind, key   │───┘──┘      key ──▶ static KEY: StaticKey (a count)
//!   │ SiteRecord: site, kind, key   │──┘              ──▶ static BATCH_SIZE: Imv<u32> (the value)
//!   └───────────────────────────────┘
//! ```
//!
//! | purpose | define | read | change |
//! | --- | --- | --- | --- |
//! | a branch that is seldom taken | `static KEY: StaticKey` | [`static_branch!`] | [`enable`], [`disable`] |
//! | a branch that is usually taken | the same | [`static_branch_likely!`] | the same |
//! | a key whose users come and go | [`DeferredKey`] | like its key | [`DeferredKey::enable`], … |
//! | a value | [`imv!`] | [`imv_read!`] | [`Imv::set`] |
//! | a call of a function that changes | [`static_call!`] | `name::call` | `name::update` |
//! | several changes at once | | | [`update`] |
//! | a setting that operators change | [`tunable!`] for a key or a value | like the key or value | `dormouse imv set`, [`set_tunables`] |
//!
//! A boolean that decides a branch should be a key: its gate is one instruction, and the test of a value two.
//!
//! # States of a site
//!
//! ```text
//!   branch         born     E9 rel32            jmp slow                     as linked; also if text cannot be written
//!                  between  A9 any four bytes   test eax, imm32              set by the registry between two states
//!     unlikely     dormant  0F 1F 44 00 00      nop                          set by the registry while the key is disabled
//!                  armed    E9 rel32            jmp target                   set by the registry while the key is enabled
//!     likely       dormant  E9 rel32            jmp target                   set by the registry while the key is disabled
//!                  armed    0F 1F 44 00 00      nop                          set by the registry while the key is enabled
//!     announced    like an unlikely one, but `slow` is its target: while it is armed it reads its key
//!
//!   value of 1,    born     3E.. 8B /r          mov r32, [variable]   (or movzx, movsx)
//!   2, 4 bytes     patched  3E.. REX C7 imm32   mov r32, imm32
//!
//!   call           born     E9 rel32            jmp slow, which jumps to the address in the variable
//!                  patched  E9 rel32            jmp function                 one store of the aligned word that contains it
//!
//!   value of       born     E9 rel32  B8+r 0    jmp slow, which loads the variable and jumps past the mov
//!   8 bytes        patched  A9 rel32  B8+r imm  test eax, imm32; mov r64, imm64
//! ```
//!
//! `slow` reads the key and goes to the block or past it. `target` is what the `nop` does not lead to: the block, or what
//! is past it. So a patched branch reads no data. The record contains the target; the distance of `slow` is only in the
//! instruction as linked, because the registry never restores that. (A copy of this crate that does not know such
//! records skips them, and their sites stay as they were born.)
//!
//! Only the owner of the registry's lock changes a site. Each step replaces a whole instruction by a whole instruction,
//! and is followed by a barrier:
//!
//! * A *branch* takes three steps, through the intermediate state: its first byte makes it a `test` of five bytes; the
//!   other four bytes, which are now an immediate without effect, become those of the next state; and the first byte
//!   makes it that state. So a CPU that fetches at any moment decodes an
//!   instruction of five bytes, at any place in a cache line. Any writer can do it, and a `nop` takes no execution unit
//!   of a CPU.
//! * A *value's instruction* ends on eight aligned bytes that contain everything that changes, and is written by one
//!   store of these. A prefix without effect (`3E`) gives it that length and place, so there is no `nop` to execute.
//! * *Eight bytes* of value fill the aligned word, so the opcode is outside it. The immediate is written while its gate
//!   jumps past it, or by one store from one value to the next.
//!
//! # Ordering
//!
//! A site that reads its variable is always correct. For the other sites, the *barrier*,
//! `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`, makes every running thread of the process execute a memory barrier and a
//! core-serialising instruction; threads that are not running execute both before they return to user mode. So after the
//! barrier that follows a store, no thread executes the old instruction any more; and code that a thread reaches only by
//! an instruction that was stored after a barrier sees all that was written before that barrier.
//!
//! ```text
//!   enable        key := enabled                                      a born or announced gate opens
//!                 a likely branch:     barrier; E9 → A9               opens
//!                                      barrier; other bytes; barrier; A9 → nop
//!                 an unlikely branch:  nop → A9; barrier; other bytes; barrier; A9 → E9      opens
//!                 barrier; return
//!   disable       key := disabled                                     a born or announced gate closes
//!                 a likely branch:     nop → A9; barrier; other bytes; barrier; A9 → E9      closes
//!                 an unlikely branch:  E9 → A9                        closes
//!                                      barrier; other bytes; barrier; A9 → nop
//!                 barrier; return
//! ```
//!
//! * *When an update has returned*, every execution of a gate gives the new answer, in every thread: the store that opens
//!   or closes it is followed by a barrier. *Until then*, each execution separately may give the old answer or the new
//!   one: different gates of one key change at different times, and a thread may see the new answer at one and then the
//!   old answer at another. A thread that entered the block before its key was disabled stays in it for as long as the
//!   block takes, also after [`disable`] has returned: before what the block uses is freed, such threads must be waited
//!   for by other means.
//! * *Data that was prepared before [`enable`]* is visible to code behind the gate. On the way through `slow` the load of
//!   the key is an acquire (A), and the store is a release (B). Without that load, a barrier lies between the preparation
//!   and the store that opens the gate: for an unlikely branch the barriers of its first two steps, for a likely one, and
//!   on AArch64, a barrier before the first step (E). A fence behind the gate (D) keeps the compiler from moving accesses
//!   to before it.
//! * *A negative answer orders nothing*, like a relaxed load.
//! * *Set*: the variable is set, then the instructions, then the barrier. Until it returns, a thread may read the old
//!   value or the new one, at each site separately; afterwards the new one. Reads are relaxed: a value orders no other
//!   data, so data that belongs to it needs an ordering of its own. References are the exception: what one refers to is
//!   visible to a thread that reads it, by the load (F) of a variable that was set after a fence (G), or by a barrier (I)
//!   before the store and a compiler fence behind the instruction (H).
//! * *A value that is set often* is a variable: after 64 changes in a row, more than [200 a second](set_patch_rate)
//!   would interrupt each thread too often, so its sites become loads, and setting it is a store. They become immediates
//!   again when it is set after a time with few changes. A thread that was interrupted between the gate and the move of an
//!   eight-byte value, before the change, still reads the former value.
//! * *If text cannot be written any more*, sites as they were born and announced gates still follow their variables, but
//!   an announced gate that is dormant does not open. Any other site that gives the former answer makes the update fail:
//!   with [`Error::Unpatched`] for a key, with [`Error::Stale`] for a value.
//!
//! Without that barrier (Linux before 4.16, some sandboxes and emulators) nothing is written at all: Intel's manual
//! (volume 3, "Handling Self- and Cross-Modifying Code") requires a serialising instruction on each CPU after the
//! change, and there would be no way to make other threads execute one. It is one reason for the last rung, "none", on
//! which programs are only slower.
//!
//! # Code writers
//!
//! | writer | gates | values of 1, 2, 4 bytes, calls | values of 8 bytes |
//! | --- | --- | --- | --- |
//! | mprotect | patched | patched | patched |
//! | procmem (text may not be made writable) | patched | loads | read by the gate's slow path |
//! | none | read the key | loads | read by the gate's slow path |
//!
//! Through `/proc/self/mem` bytes become visible in an unspecified order, so no store that needs an order is made
//! there. A process that forbids changes of its text *after* values have been patched cannot change those any more:
//! [`Imv::set`] returns [`Error::Stale`], and the value stays the old one everywhere. [`status`] returns the writer and
//! the reason.
//!
//! # Cost
//!
//! Gate: a `nop` or a jump of five bytes and no data access; the compiler assumes that the flags change. In C by clang
//! before 17 also a move and a test of a register. An announced gate, armed: a jump, a load and a test. Value: one instruction of eight to fifteen bytes, or a `test` and a `mov` for eight bytes.
//! An update of values: two `mprotect` calls for each object with a site that changes, one store for each site, one
//! barrier; of keys: all of that three times, and one more barrier if a likely branch is enabled. Updates never allocate, so an allocator may be traced.
//!
//! # Limits
//!
//! * Gates and values are patched on x86-64 Linux. On AArch64 Linux gates and calls are patched (`b` and `nop`, by one store; not
//!   through `/proc/self/mem`), and values are loads. Elsewhere, and with the feature `generic`, gates read their key, values are loads,
//!   and there are no sites.
//! * In Rust, a key or value and its sites are in one object (program or shared library); C can share them between
//!   objects. Each Rust object that uses this crate contains a copy of it, with a registry of its own, and a change made
//!   by one copy does not reach the sites that another has registered: Rust has no stable ABI by which they could share
//!   one. Objects of C use the registry of one library, libdormouse_imv or libdormouse. So a Rust library shares a setting
//!   by a function that changes it.
//! * A Rust crate of type `dylib` exports its statics, which the linker then refuses in records; link it with
//!   `-Bsymbolic`.
//!   `rlib`, `cdylib`, `staticlib` and programs need no option.
//! * Records keep the code that they describe from `--gc-sections`.
//! * Sites outside the object's executable segment are written through `/proc/self/mem` or not at all.
//! * While an update runs, the pages between its first and last site are writable as well as executable.
//! * `fork` waits for a running update, and the child has its own text. A child made by a raw `clone` during another
//!   thread's update cannot change keys.
//! * Under an emulator that translates ahead (valgrind, qemu's user mode) a thread may execute the old instruction once more after an
//!   update has returned: the kernel's barrier does not reach the emulator's translations.
//!   valgrind, which would otherwise keep using the old text, is told of each store.
//! * Only this crate may change keys and values.
//! * Tunables are those of the objects that this copy of the crate has registered: a Rust library has a copy of its
//!   own, and C libraries register with libdormouse_imv or libdormouse. They can be set from outside only if the program
//!   listens, by the crate `dormouse-imv-control` or a tracer. A tunable is a number, a `bool` or a key: for an
//!   enumeration, export its number with a range.
//!
//! # Source
//!
//! Mathieu Desnoyers, "Immediate Values - Documentation", patch 6/7 of the series of 2 February 2008; the kernel's jump labels
//! (`Documentation/staging/static-keys.rst`). The encodings are this crate's own: no breakpoint, no signal.

#![cfg_attr(not(test), no_std)]

mod arch;
mod call;
mod code_writer;
mod deferral;
mod filter;
mod pace;
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

use core::fmt;
use core::sync::atomic::{AtomicI32, Ordering};

#[doc(hidden)]
pub use arch::is_same_text;
pub use code_writer::CodeWriter;
pub use deferral::DeferredKey;
pub use dormouse_abi::site::TunableRecord;
pub use dormouse_abi::tunable::{TunableRange, TunableValue, Unfit};
pub use filter::is_filtered;
pub use registry::{
    Change, ForeignUpdate, SiteCount, Status, disable, enable, ensure_registered, hand_over, key_sites,
    register_object, register_tunables, set_patch_rate, sites_of, status, unregister_object, unregister_tunables,
    update, visit_key_sites,
};
pub use segment::{LoadedSegment, visit_segment};
pub use site::OBJECT_COUNT_MAX;
#[doc(hidden)]
pub use tunable::tunable_parts;
pub use tunable::{Assignment, Export, Refusal, Scalar, Tunable, TunableError, set_tunables, visit_tunables};
pub use value::{Imv, Value, shape_of, value_of};

/// The key of static branches: the number of users that have enabled it. Shared with C as `struct dormouse_static_key`.
///
/// It must be a `static`, because its sites refer to it by address.
#[repr(C)]
#[derive(Debug, Default)]
pub struct StaticKey {
    enabled: AtomicI32,
}

impl StaticKey {
    /// Returns a disabled key.
    pub const fn new() -> StaticKey {
        StaticKey { enabled: AtomicI32::new(0) }
    }

    /// Returns a key that one user has enabled.
    pub const fn new_enabled() -> StaticKey {
        StaticKey { enabled: AtomicI32::new(1) }
    }

    /// Returns the number of users that have enabled the key. Wait-free; async-signal-safe.
    pub fn count(&self) -> u32 {
        // Relaxed: the number says nothing about other data.
        self.enabled.load(Ordering::Relaxed).unsigned_abs()
    }

    /// Whether the key is enabled, by a load of it: for code that runs too seldom to have a site, and before the
    /// constructors. Wait-free; async-signal-safe.
    #[inline(always)]
    pub fn is_enabled(&self) -> bool {
        // (A) pairs with (B) in `update`.
        self.enabled.load(Ordering::Acquire) > 0
    }
}

const _: () = assert!(size_of::<StaticKey>() == 4 && align_of::<StaticKey>() == 4);

/// The reason why an update was not done, or not completely. The program is correct in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// The calling thread is already inside an update: it is in a signal handler that interrupted one. Nothing was
    /// changed.
    Reentered,
    /// More than [`OBJECT_COUNT_MAX`] objects: the sites of this one read their keys.
    TooManyObjects,
    /// A key would be disabled more often than enabled, or its count would overflow.
    Unbalanced,
    /// A key was changed, but the text can no longer be written and some of its sites still give the former answer.
    Unpatched,
    /// A value was not changed, because some of its sites contain it in text that can no longer be written.
    Stale,
    /// Another library has the sites ([`hand_over`]); nothing was set.
    Elsewhere,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Error::Reentered => "refused: this thread is amid an update already",
            Error::TooManyObjects => "too many objects with sites: those of this object stay unpatched",
            Error::Unbalanced => "a key was disabled more often than enabled",
            Error::Unpatched => "program text can no longer be written: some sites of a changed key still give the former answer",
            Error::Stale => "program text can no longer be written: the value stays as it was",
            Error::Elsewhere => {
                "libdormouse and libdormouse_imv are both in the program, and sites went to the other: link it with one of them"
            }
        })
    }
}

impl core::error::Error for Error {}

//! AArch64: a gate is `b` or `nop`, and the entry of a static call is a `b`. Values are loads.
//!
//! # Which instructions change while threads execute them
//!
//! Arm Architecture Reference Manual, B2.2.5 "Concurrent modification and execution of instructions": if the instruction before
//! a change and the instruction after it are both of a list (`B`, `NOP` and some others), a thread that
//! executes the address during the change executes one of the two, and nothing else. `nop` and `b` are the only
//! instructions that this crate writes. An instruction is one aligned word within a cache line, written by one store.
//!
//! Moves of immediates are not in the list, and a value takes up to four of them (`movz`, `movk`), between any two of which a
//! thread may have stopped. A gate before them would keep new threads out, but not tell when the last one is past them:
//! the barrier below makes every thread serialise, and none leave. So a value is a load of its variable, in C too.
//!
//! # When a change is visible
//!
//! The same chapter ("Synchronization and coherency issues between data and instruction accesses") has the steps after which no
//! thread executes the former instruction:
//!
//! ```text
//!   writer                                                           every other thread of the process
//!     store the instruction
//!     dc cvau     the line, to the point of unification
//!     dsb ish     the clean is complete, for all CPUs
//!     ic ivau     the line, in the instruction caches of all CPUs
//!     dsb ish     the invalidation is complete, for all CPUs
//!     isb                                                            context synchronisation event:
//!     membarrier(PRIVATE_EXPEDITED_SYNC_CORE) ── interrupt ────────▶   return from an exception, if it runs,
//!     return                                                           or is scheduled later
//! ```
//!
//! `CTR_EL0.IDC` and `DIC` say that a CPU needs no `dc cvau`, or no `ic ivau`. They are not asked: the instructions cost little
//! beside the system calls of an update, and are always right (Neoverse N1 has `DIC` and, by erratum 1542419, needs more than
//! `ic ivau`: Linux traps that and does the rest). Linux ends a context switch with `dsb ish`, so that the writer may be moved to
//! another CPU between the steps.
//!
//! # Emulated CPUs
//!
//! QEMU translates instructions, and discards a translation just before a store to the instruction, not after
//! (`notdirty_write` in accel/tcg/cputlb.c). A CPU that executes the address in between translates the former instruction again,
//! and executes that translation until something else is stored there: no cache maintenance and no barrier discards it. So
//! an update makes its stores once more, with the same words:
//!
//! ```text
//!   text := rwx; stores; text := r-x      may leave translations of former instructions
//!   membarrier                            each CPU has left what it was translating or executing; later translations are of
//!                                         the new instructions
//!   text := rwx; stores; text := r-x      discards the translations that were left; the changes of protection make QEMU look
//!                                         whether the page has any, which its cache of addresses may not know
//!   membarrier                            each CPU has left what was discarded
//! ```
//!
//! For a CPU the second half changes nothing, and costs the system calls. A program cannot know whether it is emulated.

use core::arch::asm;

use dormouse_abi::site::SITE_CALL;

use crate::site::{Form, Site, Store};

/// Whether sites exist and can be patched.
pub(crate) const PATCHED: bool = true;
/// Size of a gate, in bytes.
pub(crate) const GATE_LEN: usize = 4;

const NOP: u32 = 0xD503_201F;
const B: u32 = 0x1400_0000;

/// Granularity of `mprotect`: 4, 16 or 64 KiB; returned in bytes.
pub(crate) fn os_page_bytes() -> usize {
    // SAFETY: sysconf(3) with a name that it knows.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Makes a store to text visible to instruction fetches, which do not read the data cache: the writer's steps above. A
/// store is within one line, because it is an aligned word.
pub(crate) fn publish_store(store: Store) {
    // SAFETY: maintenance of the cache line of an address that was just written; user space may do it (Linux sets
    // SCTLR_EL1.UCI), and it changes no data.
    unsafe {
        asm!(
            "dc cvau, {address}",
            "dsb ish",
            "ic ivau, {address}",
            "dsb ish",
            "isb",
            address = in(reg) store.span().start,
            options(nostack, preserves_flags),
        );
    }
}

/// Bits of an instruction that make it a `b`; the others are the distance, in words.
const B_MASK: u32 = 0xFC00_0000;
/// Distance that a `b` reaches backwards, and one word more than it reaches forwards, in bytes: 128 MiB.
const REACH: isize = 1 << 27;

/// Returns the `b` of a site to an address; `None` if that is out of reach.
fn jump_to(site: Site, address: usize) -> Option<u32> {
    let distance = address.wrapping_sub(site.address) as isize;
    let is_reached = (-REACH..REACH).contains(&distance) && distance % 4 == 0;
    is_reached.then_some(B | (distance >> 2) as u32 & !B_MASK)
}

fn seen(site: Site) -> u32 {
    u32::from_le_bytes(site.bytes())
}

/// Returns the store that makes a site agree with its variable, if it needs one and is in a state that allows one. All four
/// bytes change, so there is no store if only single bytes can be written.
///
/// With `reads_variable`, the site of a call goes back to the state in which it was born.
pub(crate) fn next_store(site: Site, bytes_only: bool, reads_variable: bool) -> Option<Store> {
    if bytes_only || !site.address.is_multiple_of(4) {
        return None;
    }
    let seen = seen(site);
    let (wanted, is_known) = match site.form() {
        // A direct branch may also be as it was born. Its record does not contain the distance of its slow path.
        Form::DirectBranch => (wanted(site)?, seen == NOP || seen & B_MASK == B),
        Form::Branch => (wanted(site)?, seen == NOP || Some(seen) == jump_to(site, site.target)),
        Form::Call if reads_variable => (jump_to(site, site.target)?, seen & B_MASK == B),
        Form::Call => (call_entry(site)?, seen & B_MASK == B),
        Form::Value | Form::GatedValue => return None,
    };
    (seen != wanted && is_known).then_some(Store::Word(site.address, wanted))
}

/// Whether an update makes its stores twice.
pub(crate) const STORES_TWICE: bool = true;

/// Returns the store that writes the instruction of a patched site again.
pub(crate) fn repeated_store(site: Site) -> Option<Store> {
    is_in_line(site).then(|| Store::Word(site.address, seen(site)))
}

/// Returns a gate's instruction in the state that its key requires; `None` if its target is out of reach, which no linker
/// makes: it is in the same function.
fn wanted(site: Site) -> Option<u32> {
    if (site.wanted() != 0) == site.is_likely() { Some(NOP) } else { jump_to(site, site.target) }
}

/// Returns a call's entry, which jumps to the current function or, if that is out of reach, to the slow path, which loads its
/// address.
fn call_entry(site: Site) -> Option<u32> {
    jump_to(site, site.wanted() as usize).or_else(|| jump_to(site, site.target))
}

/// Whether the next store to a gate lets threads into the code of an enabled key without a load of the key.
pub(crate) fn opens_at_once(site: Site) -> bool {
    site.form() == Form::DirectBranch && site.wanted() != 0 && next_store(site, false, false).is_some()
}

/// Whether a site gives another answer than its key or variable. A site that reads it never does.
pub(crate) fn is_stale(site: Site) -> bool {
    let seen = seen(site);
    let is_jump_to = |address| Some(seen) == jump_to(site, address);
    match site.form() {
        Form::Branch | Form::DirectBranch => {
            let answer = match seen {
                NOP => Some(site.is_likely()),
                _ if site.form() == Form::DirectBranch && is_jump_to(site.target) => Some(!site.is_likely()),
                _ => None,
            };
            answer.is_some_and(|answer| answer != (site.wanted() != 0))
        }
        Form::Call => !is_jump_to(site.target) && !is_jump_to(site.wanted() as usize),
        Form::Value | Form::GatedValue => false,
    }
}

/// Whether a site is in the state that its key or variable requires.
pub(crate) fn is_in_line(site: Site) -> bool {
    match site.form() {
        Form::Branch | Form::DirectBranch => Some(seen(site)) == wanted(site),
        Form::Call => Some(seen(site)) == jump_to(site, site.wanted() as usize),
        Form::Value | Form::GatedValue => false,
    }
}

/// The entry of a static call: a function without a prologue, which jumps to another of the same type. `x16` belongs to
/// linkers between functions; a `br` by it may end at any landing pad of a function.
///
/// ```text
///   site:  b slow                              born       b function      patched
///   slow:  x16 = target (acquire); br x16
///   section dormouse_sites += { site - ., SITE_CALL, target - ., slow - . }
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __call_entry {
    ($target:path, ($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        #[unsafe(naked)]
        extern "C" fn entry($($argument: $type),*) $(-> $result)? {
            ::core::arch::naked_asm!(
                "2:",
                "b 4f",
                "4:",
                "adrp x16, {target}",
                "add x16, x16, :lo12:{target}",
                // (F) pairs with (G): what was written before the update is visible to the function.
                "ldar x16, [x16]",
                "br x16",
                $crate::__site_record!("143", "{target}", "4b - ."),
                target = sym $target,
            )
        }
    };
}
const _: () = assert!(SITE_CALL == 143);

#[doc(hidden)]
#[macro_export]
macro_rules! __gate {
    ($form:tt $gate:tt) => {
        $crate::__patched_gate!($form $gate { "b {slow}", } (nomem, nostack, preserves_flags))
    };
}

//! AArch64: a gate is `b` or `nop`. Both are among the instructions that may be changed while other
//! threads execute them (Arm Architecture Reference Manual, B2.2.5 "Concurrent modification and execution of
//! instructions"); moves of immediates are not, so values are loads.

use core::arch::asm;

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

/// Makes a store to text visible to instruction fetches, which do not read the data cache.
///
/// ```text
///   clean the data line to the point of unification; wait; invalidate the instruction line everywhere; wait
/// ```
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

/// Returns `b target`.
fn jump(site: Site) -> u32 {
    B | (site.target.wrapping_sub(site.address) >> 2) as u32 & !B_MASK
}

fn seen(site: Site) -> u32 {
    u32::from_le_bytes(site.bytes())
}

/// Returns the store that makes a gate agree with its key, if it needs one and is in a state that allows one. All four
/// bytes change, so there is no store if only single bytes can be written.
pub(crate) fn next_store(site: Site, bytes_only: bool, _reads_variable: bool) -> Option<Store> {
    if bytes_only || !site.is_branch() || !site.address.is_multiple_of(4) {
        return None;
    }
    let (seen, wanted) = (seen(site), wanted(site));
    // A direct branch may also be as it was born. Its record does not contain the distance of its slow path.
    let is_born = site.form() == Form::DirectBranch && seen & B_MASK == B;
    (seen != wanted && (seen == NOP || seen == jump(site) || is_born)).then_some(Store::Word(site.address, wanted))
}

/// Returns a gate's instruction in the state that its key requires.
fn wanted(site: Site) -> u32 {
    if (site.wanted() != 0) == site.is_likely() { NOP } else { jump(site) }
}

/// Whether the next store to a gate lets threads into the code of an enabled key without a load of the key.
pub(crate) fn opens_at_once(site: Site) -> bool {
    site.form() == Form::DirectBranch && site.wanted() != 0 && next_store(site, false, false).is_some()
}

/// Whether a gate gives another answer than its key.
pub(crate) fn is_stale(site: Site) -> bool {
    let answer = match seen(site) {
        NOP => Some(site.is_likely()),
        seen if site.form() == Form::DirectBranch && seen == jump(site) => Some(!site.is_likely()),
        _ => None,
    };
    site.is_branch() && answer.is_some_and(|answer| answer != (site.wanted() != 0))
}

/// Whether a gate is in the state that its key requires.
pub(crate) fn is_in_line(site: Site) -> bool {
    site.is_branch() && seen(site) == wanted(site)
}

#[doc(hidden)]
#[macro_export]
macro_rules! __gate {
    ($form:tt $gate:tt) => {
        $crate::__patched_gate!($form $gate { "b {slow}", } (nomem, nostack, preserves_flags))
    };
}

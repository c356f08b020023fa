//! AArch64: a gate is `b slow` or, dormant, `nop`. Both are among the instructions that may be changed while other threads execute
//! them (Arm Architecture Reference Manual, B2.2.5 "Concurrent modification and execution of instructions"); moves of
//! immediates are not, so values are loads.

use core::arch::asm;

use dormouse_abi::site::{SITE_BRANCH, SITES_SECTION, SiteRecord};

use crate::site::{Form, Site, Store};

/// Whether sites exist and can be patched.
pub(crate) const PATCHED: bool = true;
/// Bytes of a gate.
pub(crate) const GATE_LEN: usize = 4;

const NOP: u32 = 0xD503_201F;
const B: u32 = 0x1400_0000;

/// Granularity of `mprotect`: 4, 16 or 64 KiB.
pub(crate) fn os_page_bytes() -> usize {
    // SAFETY: sysconf(3) of a number that it knows.
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

/// `b slow`: 26 bits of the distance, in words.
fn jump(site: Site) -> u32 {
    B | (site.slow.wrapping_sub(site.address) >> 2) as u32 & 0x03FF_FFFF
}

fn seen(site: Site) -> u32 {
    u32::from_le_bytes(site.bytes())
}

/// The store that makes a gate agree with its key, if it needs one and is in a state that allows one. All four bytes change, so there is
/// none if only single bytes can be written.
pub(crate) fn next_store(site: Site, bytes_only: bool) -> Option<Store> {
    if bytes_only || site.form() != Form::Branch || !site.address.is_multiple_of(4) {
        return None;
    }
    let wanted = if site.wanted() != 0 { jump(site) } else { NOP };
    let seen = seen(site);
    (seen != wanted && (seen == NOP || seen == jump(site))).then_some(Store::Word(site.address, wanted))
}

/// Whether a gate gives another answer than its key.
pub(crate) fn is_stale(site: Site) -> bool {
    site.form() == Form::Branch && site.wanted() != 0 && seen(site) == NOP
}

/// Whether a gate is in the state that its key requires.
pub(crate) fn is_in_line(site: Site) -> bool {
    site.form() == Form::Branch && seen(site) == if site.wanted() != 0 { jump(site) } else { NOP }
}

/// First and one-past-last record of the object that contains this code.
///
/// ```text
///   section dormouse_sites += nothing      so the object has the section, and the linker its bounds
///   start = &__start_dormouse_sites        hidden: never another object's
///   stop  = &__stop_dormouse_sites
/// ```
pub(crate) fn own_sites() -> (*const SiteRecord, *const SiteRecord) {
    let start;
    let stop;
    // SAFETY: two address computations; the symbols are defined by the linker for the section that the same block opens.
    unsafe {
        asm!(
            ".pushsection dormouse_sites,\"aR\",%progbits",
            ".balign 8",
            ".popsection",
            ".weak __start_dormouse_sites",
            ".hidden __start_dormouse_sites",
            ".weak __stop_dormouse_sites",
            ".hidden __stop_dormouse_sites",
            "adrp {start}, __start_dormouse_sites",
            "add {start}, {start}, :lo12:__start_dormouse_sites",
            "adrp {stop}, __stop_dormouse_sites",
            "add {stop}, {stop}, :lo12:__stop_dormouse_sites",
            start = out(reg) start,
            stop = out(reg) stop,
            options(nomem, nostack, preserves_flags),
        );
    }
    (start, stop)
}

/// The gate of a static branch: `false` while its key is disabled, at the cost of one instruction and no data access.
///
/// ```text
///   static_branch!(KEY)
///   static_branch!(KEY, announce("section", function))
/// ```
///
/// `KEY` is the path of a `static` [`StaticKey`](crate::StaticKey), which may be private to a block. The second form also
/// appends a 16-byte pair to a section of the object: the address of the key and of a function, each minus the address of its own
/// field. It is announced whether or not the gate is ever reached.
///
/// ```text
///   site:      b slow                      born, armed        nop: dormant
///              answer = false
///   slow:      answer = KEY.enabled > 0
///   section dormouse_sites += { site - ., SITE_BRANCH, KEY - ., slow - . }
///   section "section"      += { KEY - ., function - . }
/// ```
///
/// Wait-free; async-signal-safe.
#[macro_export]
macro_rules! static_branch {
    ($key:path $(,)?) => {
        $crate::static_branch!(@gate $key, {}, {})
    };
    ($key:path, announce($section:literal, $function:path $(,)?) $(,)?) => {
        $crate::static_branch!(@gate $key, {
            ::core::concat!(".pushsection ", $section, ",\"aR?\",%progbits"),
            ".balign 8",
            ".8byte {key} - .",
            ".8byte {function} - .",
            ".popsection",
        }, {
            function = sym $function,
        })
    };
    (@gate $key:path, { $($template:tt)* }, { $($operand:tt)* }) => {
        'gate: {
            // SAFETY: both states of the site are one instruction that touches neither memory nor stack nor flags; they either
            // fall through or go to `slow`, which are the block's two declared exits. The directives add read-only data to
            // other sections.
            unsafe {
                ::core::arch::asm!(
                    "2:",
                    "b {slow}",
                    ".pushsection dormouse_sites,\"aR?\",%progbits",
                    ".balign 8",
                    ".long 2b - .",
                    ".long 0",
                    ".long {key} - .",
                    ".long {slow} - .",
                    ".popsection",
                    $($template)*
                    key = sym $key,
                    $($operand)*
                    slow = label { break 'gate $crate::StaticKey::is_enabled(&$key) },
                    options(nomem, nostack, preserves_flags),
                );
            }
            false
        }
    };
}

// The literals of the template, which cannot name constants.
const _: () = assert!(SITE_BRANCH == 0 && size_of::<SiteRecord>() == 16);
const _: () = assert!(SITES_SECTION.len() == "dormouse_sites".len());

//! x86-64: a site is `E9 rel32` or, dormant, `A9` with the same four bytes.

use core::arch::asm;

use dormouse_abi::site::{SITE_BRANCH, SITES_SECTION, SiteRecord, X86_JMP, X86_SITE_LEN, X86_TEST};

/// Whether sites exist and can be patched.
pub(crate) const PATCHED: bool = true;
/// Granularity of `mprotect`; x86-64 has no other base page.
pub(crate) const OS_PAGE_BYTES: usize = 4096;

/// The first byte of a site whose key is enabled or not.
pub(crate) const fn byte_when(enabled: bool) -> u8 {
    if enabled { X86_JMP } else { X86_TEST }
}

/// Whether a byte may begin a site. Anything else (a debugger's breakpoint, say) is left alone.
pub(crate) const fn is_site(byte: u8) -> bool {
    matches!(byte, X86_JMP | X86_TEST)
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
    // SAFETY: two address computations; the symbols are defined by the linker for the section that the same block
    // opens (GNU ld manual, "Input Section Wildcards"; ELF linkers define `__start_`/`__stop_` for C-named sections).
    unsafe {
        asm!(
            ".pushsection dormouse_sites,\"aR\",@progbits",
            ".balign 8",
            ".popsection",
            ".weak __start_dormouse_sites",
            ".hidden __start_dormouse_sites",
            ".weak __stop_dormouse_sites",
            ".hidden __stop_dormouse_sites",
            "lea {start}, [rip + __start_dormouse_sites]",
            "lea {stop}, [rip + __stop_dormouse_sites]",
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
/// `KEY` is the path of a `static` [`StaticKey`](crate::StaticKey), which may be private to a block. The gate may stand
/// in generic functions, closures and inline functions; each copy that the compiler makes is a site of its own.
///
/// The second form also announces: it appends a 16-byte pair to a section of the object, the address of the key and of
/// a function, each minus the address of its own field (the layout of `dormouse_abi::site::EventRecord`). The function
/// may be generic over the parameters of the function around it, so each instance announces its own. It is announced
/// whether or not the gate is ever reached.
///
/// ```text
///   site:      E9 (slow - next)            born, armed: jmp slow        A9 …: dormant
///   next:      answer = false
///   slow:      answer = KEY.enabled > 0
///   section dormouse_sites += { site - ., SITE_BRANCH, KEY - . }
///   section "section"      += { KEY - ., function - . }
/// ```
///
/// Why these operands and options:
///
/// * Not `pure`: the answer changes behind the compiler's back, so the block may not be merged with another or moved
///   out of a loop.
/// * `nomem`: the site itself reads and writes no memory that the program knows. The compiler may keep values in
///   registers and move accesses across a *dormant* answer; that is what makes the gate cheap, and it is right, because
///   a dormant answer synchronises with nothing, like a relaxed load. An *armed* answer passes through the slow block,
///   whose acquire load of the key is ordinary Rust and orders everything after it.
/// * `nostack`: nothing is pushed, so the red zone is safe in both states.
/// * Flags are clobbered, because `A9` is `test`.
///
/// Wait-free; async-signal-safe.
///
/// ```
/// use dormouse_imv::{StaticKey, disable, enable, static_branch};
///
/// static VERBOSE: StaticKey = StaticKey::new();
/// fn answer() -> u32 {
///     if static_branch!(VERBOSE) { 1 } else { 0 }
/// }
///
/// assert_eq!(answer(), 0);
/// enable(&VERBOSE).unwrap();
/// assert_eq!(answer(), 1);
/// disable(&VERBOSE).unwrap();
/// assert_eq!(answer(), 0);
/// ```
#[macro_export]
macro_rules! static_branch {
    ($key:path $(,)?) => {
        $crate::static_branch!(@gate $key, {}, {})
    };
    ($key:path, announce($section:literal, $function:path $(,)?) $(,)?) => {
        $crate::static_branch!(@gate $key, {
            ::core::concat!(".pushsection ", $section, ",\"aR?\",@progbits"),
            ".balign 8",
            ".quad {key} - .",
            ".quad {function} - .",
            ".popsection",
        }, {
            function = sym $function,
        })
    };
    (@gate $key:path, { $($template:tt)* }, { $($operand:tt)* }) => {
        'gate: {
            // SAFETY: both states of the site are one whole instruction that touches neither memory nor stack; they
            // either fall through or go to `slow`, which are the block's two declared exits. The directives add
            // read-only data to other sections.
            unsafe {
                ::core::arch::asm!(
                    "2:",
                    ".byte 0xe9",
                    ".long {slow} - 3f",
                    "3:",
                    ".pushsection dormouse_sites,\"aR?\",@progbits",
                    ".balign 8",
                    ".long 2b - .",
                    ".long 0",
                    ".quad {key} - .",
                    ".popsection",
                    $($template)*
                    key = sym $key,
                    $($operand)*
                    slow = label { break 'gate $crate::StaticKey::is_enabled(&$key) },
                    options(nomem, nostack),
                );
            }
            false
        }
    };
}

// The literals of the template, which cannot name constants.
const _: () = assert!(X86_JMP == 0xE9 && SITE_BRANCH == 0 && X86_SITE_LEN == 5 && size_of::<SiteRecord>() == 16);
const _: () = {
    let (written, meant) = (b"dormouse_sites", SITES_SECTION.as_bytes());
    assert!(written.len() == meant.len());
    let mut index = 0;
    while index < meant.len() {
        assert!(written[index] == meant[index]);
        index += 1;
    }
};

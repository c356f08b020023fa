//! The gate of a static branch, except for its instruction, which the architecture's `__gate!` defines.

use dormouse_abi::site::{SITE_BRANCH, SiteRecord};

/// The gate of a static branch: `false` while its key is disabled, at the cost of one instruction and no data access.
///
/// ```text
///   static_branch!(KEY)
///   static_branch!(KEY, announce("section", function))
/// ```
///
/// `KEY` is the path of a `static` [`StaticKey`](crate::StaticKey), which may be private to a block. The gate may be
/// used in generic functions, closures and inline functions; each copy that the compiler makes is a site of its own.
///
/// The second form also announces: it appends a 16-byte pair to a section of the object, the address of the key and of
/// a function, each minus the address of its own field (the layout of `dormouse_abi::site::EventRecord`). The function
/// may be generic over the parameters of the enclosing function, so each instance announces its own. It is announced
/// whether or not the gate is ever reached.
///
/// ```text
///   site:      jmp slow                    born, armed        a nop of that length: dormant
///   next:      answer = false
///   slow:      answer = KEY.enabled > 0
///   section dormouse_sites += { site - ., SITE_BRANCH, KEY - ., slow - . }
///   section "section"      += { KEY - ., function - . }
/// ```
///
/// On architectures without a patcher there is no site: the gate reads its key with an acquire load.
///
/// Reasons for the operands and options:
///
/// * Not `pure`: the answer changes without the compiler's knowledge, so the block may not be merged with another or moved
///   out of a loop.
/// * `nomem`: the site itself reads and writes no memory that the program knows. The compiler may keep values in
///   registers and move accesses across a *dormant* answer. That makes the gate cheap, and is correct, because
///   a dormant answer synchronises with nothing, like a relaxed load. An *armed* answer passes through the slow block,
///   whose acquire load of the key is ordinary Rust and orders everything after it.
/// * `nostack`: nothing is pushed, so the red zone is safe in both states.
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
        $crate::__gate!($key, {}, {})
    };
    ($key:path, announce($section:literal, $function:path $(,)?) $(,)?) => {
        $crate::__gate!($key, {
            ::core::concat!(".pushsection ", $section, ",\"aR?\",%progbits"),
            ".balign 8",
            ".8byte {key} - .",
            ".8byte {function} - .",
            ".popsection",
        }, {
            function = sym $function,
        })
    };
}

/// A gate with a site: the instruction that jumps to `{slow}`, and the options that its states allow.
#[doc(hidden)]
#[macro_export]
macro_rules! __patched_gate {
    (
        $key:path, { $($jump:tt)* }, { $($announcement:tt)* }, { $($operand:tt)* }, ($($option:ident),*)
    ) => {
        'gate: {
            // SAFETY: every state of the site is one instruction that accesses neither memory nor stack; it either
            // falls through or jumps to `slow`, which are the block's two declared exits. The directives add read-only
            // data to other sections.
            unsafe {
                ::core::arch::asm!(
                    "2:",
                    $($jump)*
                    $crate::__site_record!("0", "{key}", "{slow} - ."),
                    $($announcement)*
                    key = sym $key,
                    $($operand)*
                    slow = label { break 'gate $crate::StaticKey::is_enabled(&$key) },
                    options($($option),*),
                );
            }
            false
        }
    };
}

/// Returns the directives that append a record of the site at label `2`; the arguments are assembler text for its
/// fields.
#[doc(hidden)]
#[macro_export]
macro_rules! __site_record {
    ($kind:literal, $key:literal, $slow:literal) => {
        ::core::concat!(
            ".pushsection dormouse_sites,\"aR?\",%progbits\n",
            ".balign 8\n",
            ".long 2b - .\n",
            ".long ",
            $kind,
            "\n",
            ".long ",
            $key,
            " - .\n",
            ".long ",
            $slow,
            "\n",
            ".popsection",
        )
    };
}

// The templates contain these literals, because they cannot name constants.
const _: () = assert!(SITE_BRANCH == 0 && size_of::<SiteRecord>() == 16);

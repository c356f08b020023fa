//! The gate of a static branch, except for its instruction, which the architecture's `__gate!` defines.

use dormouse_abi::site::{SITE_BRANCH, SITE_DIRECT_BRANCH, SITE_LIKELY, SiteRecord};

/// The gate of a static branch that is seldom taken: one instruction and no data access, whether its key is disabled (a
/// `nop`) or enabled (a jump). [`static_branch_likely!`](crate::static_branch_likely) is the opposite.
///
/// ```text
///   static_branch!(KEY)
///   static_branch!(KEY, announce("section", function))
/// ```
///
/// `KEY` is the path of a `static` [`StaticKey`](crate::StaticKey), which may be private to a block. The gate may be
/// used in generic functions, closures and inline functions; each copy that the compiler makes is a site of its own.
///
/// ```text
///   site:      jmp slow                    born               dormant: a nop of that length        armed: jmp target
///   next:      answer = false
///   target:    answer = true
///   slow:      answer = KEY.enabled > 0
///   section dormouse_sites += { site - ., SITE_DIRECT_BRANCH, KEY - ., target - . }
/// ```
///
/// The second form also announces: it appends a 16-byte pair to a section of the object, the address of the key and of
/// a function, each minus the address of its own field (the layout of `dormouse_abi::site::EventRecord`). The function
/// may be generic over the parameters of the enclosing function, so each instance announces its own. It is announced
/// whether or not the gate is ever reached. Such a gate reads its key while it is enabled, so a disabled key closes it
/// even if text can no longer be written. That is for a tracer, which must be able to leave, and whose code behind the
/// gate uses data that is in the key's cache line:
///
/// ```text
///   site:      jmp slow                    born, armed        a nop of that length: dormant
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
///   a dormant answer synchronises with nothing, like a relaxed load. An *armed* answer passes a compiler fence at
///   `target`, or the acquire load of the key at `slow`, so no access moves from behind the gate to before it.
/// * `nostack`: nothing is pushed, so the red zone is safe in all states.
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
        $crate::__gate!(unlikely ($key))
    };
    ($key:path, announce($section:literal, $function:path $(,)?) $(,)?) => {
        $crate::__gate!(announced ($key, {
            ::core::concat!(".pushsection ", $section, ",\"aR?\",%progbits"),
            // Fields have 64 bits. Where addresses have 32, assemblers have no 64-bit differences: the rest is zero.
            ".balign 8",
            ".{address_bytes}byte {key} - .",
            ".balign 8",
            ".{address_bytes}byte {function} - .",
            ".balign 8",
            ".popsection",
        }, {
            function = sym $function,
            address_bytes = const ::core::mem::size_of::<usize>(),
        }))
    };
}

/// The gate of a static branch that is usually taken: a `nop` while its key is enabled, and a jump while it is disabled.
/// Otherwise like [`static_branch!`](crate::static_branch).
///
/// ```text
///   site:      jmp slow                    born               armed: a nop of that length          dormant: jmp target
///   next:      answer = true
///   target:    answer = false
///   slow:      answer = KEY.enabled > 0
///   section dormouse_sites += { site - ., SITE_DIRECT_BRANCH | SITE_LIKELY, KEY - ., target - . }
/// ```
///
/// Wait-free; async-signal-safe.
///
/// ```
/// use dormouse_imv::{StaticKey, disable, static_branch_likely};
///
/// static CACHED: StaticKey = StaticKey::new_enabled();
/// fn answer() -> u32 {
///     if static_branch_likely!(CACHED) { 1 } else { 0 }
/// }
///
/// assert_eq!(answer(), 1);
/// disable(&CACHED).unwrap();
/// assert_eq!(answer(), 0);
/// ```
#[macro_export]
macro_rules! static_branch_likely {
    ($key:path $(,)?) => {
        $crate::__gate!(likely($key))
    };
}

/// A gate with a site: its form, the instruction that jumps to `{slow}`, and the options that its states allow.
#[doc(hidden)]
#[macro_export]
macro_rules! __patched_gate {
    (
        announced ($key:path, { $($announcement:tt)* }, { $($operand:tt)* })
        { $($jump:tt)* } ($($option:ident),*)
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
    (unlikely ($key:path) $jump:tt $options:tt) => {
        'gate: {
            $crate::__patched_gate!(@direct 'gate "3", $key, $jump, $options, {
                // (D) pairs with (E): code behind the gate stays behind it.
                ::core::sync::atomic::compiler_fence(::core::sync::atomic::Ordering::Acquire);
                break 'gate true
            });
            false
        }
    };
    (likely ($key:path) $jump:tt $options:tt) => {
        'gate: {
            $crate::__patched_gate!(@direct 'gate "67", $key, $jump, $options, { break 'gate false });
            // (D) pairs with (E): code behind the gate stays behind it.
            ::core::sync::atomic::compiler_fence(::core::sync::atomic::Ordering::Acquire);
            true
        }
    };
    (@direct $gate:lifetime $kind:literal, $key:path, { $($jump:tt)* }, ($($option:ident),*), $target:block) => {
        // SAFETY: every state of the site is one instruction that accesses neither memory nor stack; it falls through,
        // or jumps to `slow` or to `target`, which are the block's three declared exits. The directives add read-only
        // data to another section.
        unsafe {
            ::core::arch::asm!(
                "2:",
                $($jump)*
                $crate::__site_record!($kind, "{key}", "{target} - ."),
                key = sym $key,
                slow = label { break $gate $crate::StaticKey::is_enabled(&$key) },
                target = label $target,
                options($($option),*),
            );
        }
    };
}

/// Returns the directives that append a record of the site at label `2`; the arguments are assembler text for its
/// fields.
#[doc(hidden)]
#[macro_export]
macro_rules! __site_record {
    ($kind:literal, $key:literal, $target:literal) => {
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
            $target,
            "\n",
            ".popsection",
        )
    };
}

// The templates contain these literals, because they cannot name constants.
const _: () = assert!(SITE_BRANCH == 0 && SITE_DIRECT_BRANCH == 3 && SITE_DIRECT_BRANCH | SITE_LIKELY == 67);
const _: () = assert!(size_of::<SiteRecord>() == 16);

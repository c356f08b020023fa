//! Architectures without a patcher: the gate reads its key, and an object has no sites.

use dormouse_abi::site::SiteRecord;

/// Whether sites exist and can be patched.
pub(crate) const PATCHED: bool = false;
/// Unused granularity: nothing is ever made writable.
pub(crate) const OS_PAGE_BYTES: usize = 4096;

/// The first byte of a site: there are none.
pub(crate) const fn byte_when(_enabled: bool) -> u8 {
    0
}

/// Whether a byte may begin a site: none does.
pub(crate) const fn is_site(_byte: u8) -> bool {
    false
}

/// An empty range.
pub(crate) fn own_sites() -> (*const SiteRecord, *const SiteRecord) {
    (core::ptr::null(), core::ptr::null())
}

/// The gate of a static branch: `false` while its key is disabled. Here it reads the key with an acquire load.
///
/// ```text
///   static_branch!(KEY)
///   static_branch!(KEY, announce("section", function))
/// ```
///
/// `KEY` is the path of a `static` [`StaticKey`](crate::StaticKey). The second form also appends a 16-byte pair to a
/// section of the object: the address of the key and of a function, each minus the address of its own field.
///
/// Wait-free; async-signal-safe.
#[macro_export]
macro_rules! static_branch {
    ($key:path $(,)?) => {
        $crate::StaticKey::is_enabled(&$key)
    };
    ($key:path, announce($section:literal, $function:path $(,)?) $(,)?) => {{
        // SAFETY: no instruction; the directives add read-only data to another section.
        unsafe {
            ::core::arch::asm!(
                ::core::concat!(".pushsection ", $section, ",\"aR?\",%progbits"),
                ".balign 8",
                ".8byte {key} - .",
                ".8byte {function} - .",
                ".popsection",
                key = sym $key,
                function = sym $function,
                options(nomem, nostack, preserves_flags),
            );
        }
        $crate::StaticKey::is_enabled(&$key)
    }};
}

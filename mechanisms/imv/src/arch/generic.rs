//! Architectures without a patcher: the gate reads its key, and an object has no sites.

use dormouse_abi::site::SiteRecord;

use crate::site::{Site, Store};

/// Whether sites exist and can be patched.
pub(crate) const PATCHED: bool = false;
/// Bytes of a gate: there are none.
pub(crate) const GATE_LEN: usize = 0;

/// Unused granularity: nothing is ever made writable.
pub(crate) const fn os_page_bytes() -> usize {
    4096
}

/// Nothing is ever stored.
pub(crate) const fn publish_store(_store: Store) {}

/// The store that a site needs: none does.
pub(crate) fn next_store(_site: Site, _bytes_only: bool) -> Option<Store> {
    None
}

/// Whether a site gives another answer than its variable: none does.
pub(crate) fn is_stale(_site: Site) -> bool {
    false
}

/// Whether a site is in the state that its variable requires.
pub(crate) fn is_in_line(_site: Site) -> bool {
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

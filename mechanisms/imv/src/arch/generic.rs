//! Architectures without a patcher: the gate reads its key, and no code leaves sites.

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

#[doc(hidden)]
#[macro_export]
macro_rules! __gate {
    ($key:path, {}, {}) => {
        $crate::StaticKey::is_enabled(&$key)
    };
    ($key:path, { $($announcement:tt)* }, { $($operand:tt)* }) => {{
        // SAFETY: no instruction; the directives add read-only data to another section.
        unsafe {
            ::core::arch::asm!(
                $($announcement)*
                key = sym $key,
                $($operand)*
                options(nomem, nostack, preserves_flags),
            );
        }
        $crate::StaticKey::is_enabled(&$key)
    }};
}

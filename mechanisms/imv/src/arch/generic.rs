//! Architectures without a patcher: the gate reads its key, and code has no sites.

use crate::site::{Site, Store};

/// Whether sites exist and can be patched.
pub(crate) const PATCHED: bool = false;
/// Size of a gate, in bytes: there are no gates.
pub(crate) const GATE_LEN: usize = 0;

/// Granularity of `mprotect`, in bytes; unused, because text is never made writable.
pub(crate) const fn os_page_bytes() -> usize {
    4096
}

/// Does nothing, because nothing is ever stored.
pub(crate) const fn publish_store(_store: Store) {}

/// Returns the store that a site needs: none.
pub(crate) fn next_store(_site: Site, _bytes_only: bool, _reads_variable: bool) -> Option<Store> {
    None
}

/// Whether an update makes its stores twice: there are none.
pub(crate) const STORES_TWICE: bool = false;

/// Returns the store that writes the instruction of a patched site again: none.
pub(crate) fn repeated_store(_site: Site) -> Option<Store> {
    None
}

/// Whether a site gives another answer than its variable: never.
pub(crate) fn is_stale(_site: Site) -> bool {
    false
}

/// Whether the next store to a gate lets threads into the code of an enabled key: never, because there is no store.
pub(crate) fn opens_at_once(_site: Site) -> bool {
    false
}

/// Whether a site is in the state that its variable requires: never, because there are no sites.
pub(crate) fn is_in_line(_site: Site) -> bool {
    false
}

#[doc(hidden)]
#[macro_export]
macro_rules! __gate {
    (announced ($key:path, { $($announcement:tt)* }, { $($operand:tt)* })) => {{
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
    ($form:ident ($key:path)) => {
        $crate::StaticKey::is_enabled(&$key)
    };
}

/// The entry of a static call. Here it is a function that loads the address of another.
#[doc(hidden)]
#[macro_export]
macro_rules! __call_entry {
    ($target:path, ($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        #[inline(always)]
        extern "C" fn entry($($argument: $type),*) $(-> $result)? {
            let function = $crate::Imv::read(&$target);
            // (F) pairs with (G): what was written before the update is visible to the function.
            ::core::sync::atomic::fence(::core::sync::atomic::Ordering::Acquire);
            function($($argument),*)
        }
    };
}

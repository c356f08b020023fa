//! What differs between architectures: the gate, the two states of a site, and where an object keeps its records.

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", target_os = "linux", not(feature = "generic")))]
#[path = "x86_64.rs"]
mod imp;

#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", target_os = "linux", not(feature = "generic"))))]
#[path = "generic.rs"]
mod imp;

pub(crate) use imp::{OS_PAGE_BYTES, PATCHED, is_in_line, is_stale, next_store, own_sites};

mod tunable;
pub(crate) use tunable::own_tunables;

//! The differences between architectures: the gate and the value, their states, and the bounds of an object's records.

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", target_os = "linux", not(feature = "generic")))]
#[path = "x86_64.rs"]
mod imp;

#[cfg(all(target_arch = "aarch64", target_endian = "little", target_os = "linux", not(feature = "generic")))]
#[path = "aarch64.rs"]
mod imp;

#[cfg(not(all(
    any(
        all(target_arch = "x86_64", target_pointer_width = "64"),
        all(target_arch = "aarch64", target_endian = "little")
    ),
    target_os = "linux",
    not(feature = "generic")
)))]
#[path = "generic.rs"]
mod imp;

mod gate;
#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64", target_os = "linux", not(feature = "generic"))))]
mod load;
mod sections;

pub(crate) use imp::{
    GATE_LEN, PATCHED, STORES_TWICE, is_in_line, is_stale, next_store, opens_at_once, os_page_bytes, publish_store,
    repeated_store,
};
#[doc(hidden)]
pub use sections::is_same_text;
pub(crate) use sections::{own_sites, own_tunables};

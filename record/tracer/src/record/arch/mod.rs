//! Code between a site and its record: one module for all architectures that have direct sections, with macros of each of
//! them, and one for all others.

#[cfg(target_arch = "aarch64")]
#[macro_use]
mod aarch64;
#[cfg(target_arch = "x86_64")]
#[macro_use]
mod x86_64;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod direct;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub use direct::{record_segments, record_segments_of_key, record_words, record_words_of_key};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod generic;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub use generic::{record_segments, record_segments_of_key, record_words, record_words_of_key};

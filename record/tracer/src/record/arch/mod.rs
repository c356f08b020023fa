//! Code between a site and its record: one module for each architecture that has direct sections, and one for all
//! others.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{record_segments, record_segments_of_key, record_words, record_words_of_key};

#[cfg(not(target_arch = "x86_64"))]
mod generic;
#[cfg(not(target_arch = "x86_64"))]
pub use generic::{record_segments, record_segments_of_key, record_words, record_words_of_key};

//! Other ways to write what a tracepoint leaves in registers, for the lab: the third seed's steps, before the fields were
//! written where the site's call leads.
//!
//! ```text
//!   feature            a record of up to three words of fields
//!   (none)             the section that the site calls: reserves, stamps, stores the words, commits        `crate::arch`
//!   write-specialised  a function that takes the fields from memory by single stores of eight bytes
//!   write-called       a function that calls memcpy for the fields
//! ```
//! A critical section may call nothing: the kernel would not take an interruption in the called function for one of the
//! section. So `memcpy` is called before it, into memory that the section copies. Records of other fields are written as
//! always.

use core::sync::atomic::AtomicU32;

use crate::write::WORDS_MAX;

/// Whether one of them takes the usual one's place.
pub(crate) const IS_CHOSEN: bool = cfg!(any(feature = "write-called", feature = "write-specialised"));

/// As [`crate::write::record_words`].
#[inline(never)]
pub(crate) fn record_words(id: &AtomicU32, len: usize, words: [u64; WORDS_MAX]) {
    if cfg!(feature = "write-called") {
        let mut copied = [0u64; WORDS_MAX];
        let len = core::hint::black_box(len.min(size_of_val(&copied)));
        // SAFETY: `len` bytes of one array, into another of the same size. The compiler does not know how many, so it is a
        // call.
        unsafe { libc::memcpy(copied.as_mut_ptr().cast(), words.as_ptr().cast(), len) };
        crate::write::record_bytes(id, copied.as_ptr().cast(), len);
    } else {
        crate::write::record_bytes(id, words.as_ptr().cast(), len);
    }
}

//! Architectures without direct sections: every record takes the slow path. `direct` documents the functions.

use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::AtomicU32;

use dormouse_abi::record::HEADER_SIZE_BYTES;
use dormouse_relay::Segment;

use super::super::slow::{record_runs_slowly, record_words_slowly};
use crate::class::EventKey;
use crate::value::WORDS_MAX;

#[inline(always)]
pub fn record_words(id: &AtomicU32, len: usize, [w0, w1, w2]: [u64; WORDS_MAX]) {
    // SAFETY: the id is a reference, and the words hold `len` bytes.
    unsafe { record_words_slowly(id.as_ptr(), HEADER_SIZE_BYTES + len, MaybeUninit::uninit(), w0, w1, w2) }
}

#[inline(always)]
pub fn record_words_of_key(key: &EventKey, fingerprint: u64, len: usize, words: [u64; WORDS_MAX]) {
    if let Some(id) = key.id(fingerprint) {
        record_words(id, len, words);
    }
}

/// # Safety
/// The segments' sources are readable.
#[inline(always)]
pub unsafe fn record_segments(id: &AtomicU32, segments: &[Segment]) {
    let Range { start, end } = segments.as_ptr_range();
    // SAFETY: the id is a reference, the segments are a slice, and the caller guarantees that their sources are
    // readable.
    unsafe { record_runs_slowly(id.as_ptr(), 0, MaybeUninit::uninit(), start, end) }
}

/// # Safety
/// The segments' sources are readable.
#[inline(always)]
pub unsafe fn record_segments_of_key(key: &EventKey, fingerprint: u64, segments: &[Segment]) {
    if let Some(id) = key.id(fingerprint) {
        // SAFETY: the caller guarantees that the segments' sources are readable.
        unsafe { record_segments(id, segments) }
    }
}

//! The record path: how the bytes of an event's fields become a record in the session that the process is in.

mod arch;
mod slow;

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;

use dormouse_relay::Segment;

use crate::class::EventKey;
use crate::value::{Fields, Payload, Recorded, TypeList, Values, WORDS_MAX};

pub(crate) use slow::on_marked;
#[cfg(not(target_arch = "x86_64"))]
use slow::{record_runs_slowly, record_words_slowly};

impl<All: Values> Fields<All> {
    /// Writes the record.
    #[inline(always)]
    pub fn record<const WORDS: usize, const RUNS: usize>(self, key: &'static EventKey) -> Recorded<All::List> {
        let fingerprint = const { All::List::DESCRIPTION.fingerprint() };
        match const { All::List::WORDS_SIZE_BYTES } {
            Some(len) => record_words_of_key(key, fingerprint, len, self.words()),
            None => {
                let mut scratch = [MaybeUninit::uninit(); WORDS];
                let mut runs = [const { MaybeUninit::uninit() }; RUNS];
                let mut payload = Payload::new(&mut scratch, &mut runs);
                self.0.put(&mut payload);
                // SAFETY: the payload and what the values refer to are alive.
                unsafe { record_segments_of_key(key, fingerprint, payload.runs()) }
            }
        }
        Recorded::list()
    }
}

/// Writes one record of the class whose id is at `id`, whose fields are the first `len` bytes of `words`, into the session that the
/// process is in, if any. `len` is at most 24 and best known to the compiler.
///
/// Wait-free but for aborts; the page switch in between is lock-free. Async-signal-safe. Allocates nothing, locks nothing,
/// cannot fail: what finds no room is counted in the session's memory.
#[inline(always)]
pub fn record_words(id: &AtomicU32, len: usize, words: [u64; WORDS_MAX]) {
    let size_bytes = dormouse_abi::record::HEADER_SIZE_BYTES + len;
    #[cfg(target_arch = "x86_64")]
    arch::record(id, size_bytes, words);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let [w0, w1, w2] = words;
        // SAFETY: the id is a reference, and the words hold `len` bytes.
        unsafe { record_words_slowly(id.as_ptr(), size_bytes, MaybeUninit::uninit(), w0, w1, w2) }
    }
}

/// As `record_words`, of the key's class with this fingerprint.
#[inline(always)]
pub fn record_words_of_key(key: &EventKey, fingerprint: u64, len: usize, words: [u64; WORDS_MAX]) {
    #[cfg(target_arch = "x86_64")]
    arch::record_key(key, fingerprint, dormouse_abi::record::HEADER_SIZE_BYTES + len, words);
    #[cfg(not(target_arch = "x86_64"))]
    if let Some(id) = key.id(fingerprint) {
        record_words(id, len, words);
    }
}

/// As `record_words`, for fields in several runs.
///
/// # Safety
/// The segments' sources may be read.
#[inline(always)]
pub unsafe fn record_segments(id: &AtomicU32, segments: &[Segment]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's word.
    unsafe {
        arch::record_runs(id, size_bytes(segments), segments)
    };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let core::ops::Range { start, end } = segments.as_ptr_range();
        // SAFETY: the id is a reference, the segments are a slice, and their sources may be read by the caller's word.
        unsafe { record_runs_slowly(id.as_ptr(), 0, MaybeUninit::uninit(), start, end) }
    }
}

/// The same of the key's class with this fingerprint.
///
/// # Safety
/// The segments' sources may be read.
#[inline(always)]
unsafe fn record_segments_of_key(key: &EventKey, fingerprint: u64, segments: &[Segment]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's word.
    unsafe {
        arch::record_key_runs(key, fingerprint, size_bytes(segments), segments)
    };
    #[cfg(not(target_arch = "x86_64"))]
    if let Some(id) = key.id(fingerprint) {
        // SAFETY: the caller's word.
        unsafe { record_segments(id, segments) }
    }
}

/// Bytes of a record with context that has these fields.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn size_bytes(segments: &[Segment]) -> usize {
    let mut size_bytes = dormouse_abi::record::HEADER_SIZE_BYTES;
    for segment in segments {
        size_bytes += segment.len();
    }
    size_bytes
}

//! The record path: how the bytes of an event's fields become a record in the session that the process is in.

mod arch;
mod slow;

#[cfg(not(target_arch = "x86_64"))]
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};

use dormouse_abi::class::CLASS_ID_MAX;
use dormouse_relay::{Record, Segment, Written};

use crate::class::EventKey;
use crate::session::current_before_id;
use crate::value::{Fields, Payload, Recorded, TypeList, Values, WORDS_MAX};

pub(crate) use slow::on_marked;
use slow::record_slowly;
#[cfg(not(target_arch = "x86_64"))]
use slow::record_words_slowly;

impl<All: Values> Fields<All> {
    /// Writes the record.
    #[inline(always)]
    pub fn record<const BYTES: usize, const RUNS: usize>(self, key: &'static EventKey) -> Recorded<All::List> {
        let fingerprint = const { All::List::DESCRIPTION.fingerprint() };
        match const { All::List::WORDS_SIZE_BYTES } {
            Some(len) => record_words_of_key(key, fingerprint, len, self.words()),
            None => {
                // Before the id is looked up: values that outlived a call would have the dormant site's function save registers.
                let mut payload = Payload::<BYTES, RUNS>::new();
                self.0.put(&mut payload);
                if let Some(id) = key.id(fingerprint) {
                    record_payload(payload, id);
                }
            }
        }
        Recorded::list()
    }
}

#[inline(always)]
fn record_payload<const BYTES: usize, const RUNS: usize>(mut payload: Payload<BYTES, RUNS>, id: &AtomicU32) {
    match payload.single_run() {
        Some((source, len)) => record_bytes(id, source, len),
        None => record_segments(id, payload.runs()),
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

/// As [`record_words`], of the key's class with this fingerprint.
#[inline(always)]
pub fn record_words_of_key(key: &EventKey, fingerprint: u64, len: usize, words: [u64; WORDS_MAX]) {
    #[cfg(target_arch = "x86_64")]
    arch::record_key(key, fingerprint, dormouse_abi::record::HEADER_SIZE_BYTES + len, words);
    #[cfg(not(target_arch = "x86_64"))]
    if let Some(id) = key.id(fingerprint) {
        record_words(id, len, words);
    }
}

/// As [`record_words`], for fields that are `len` bytes at `source`. Up to seven bytes beyond them are read.
#[inline(never)]
pub fn record_bytes(id: &AtomicU32, source: *const u8, len: usize) {
    let Some(attached) = current_before_id() else { return };
    // Relaxed: the id is a number of its own, and the session has been asked for before.
    let id = id.load(Ordering::Relaxed);
    #[cfg(target_arch = "x86_64")]
    if let (Some(rseq), true) = (attached.fast_rseq, id <= CLASS_ID_MAX as u32) {
        let context = crate::arch::context();
        let words = dormouse_relay::arch::Words {
            id: id.into(),
            context,
            size_bytes: dormouse_abi::record::HEADER_SIZE_BYTES + len,
            source,
        };
        // One attempt: whatever comes in between is sorted out on the slow path, which keeps this one short.
        if context != 0
            && let Some(site) = attached.site(rseq, rseq.cpu_id_start())
            // SAFETY: `site` describes the session that `CURRENT` held; the section itself checks that it still does.
            && unsafe { dormouse_relay::arch::rseq_write_words(site, words) } == Written::Done
        {
            return;
        }
    }
    record_slowly(attached, id, &[Segment::padded(source, len)]);
}

/// As [`record_words`], for fields in several runs.
#[inline(never)]
pub fn record_segments(id: &AtomicU32, segments: &[Segment]) {
    let Some(attached) = current_before_id() else { return };
    // Relaxed: as in `record_bytes`.
    let id = id.load(Ordering::Relaxed);
    #[cfg(target_arch = "x86_64")]
    if let (Some(rseq), true) = (attached.fast_rseq, id <= CLASS_ID_MAX as u32) {
        let context = crate::arch::context();
        let record = Record::new(id as u16, context, segments);
        if context != 0
            && let Some(site) = attached.site(rseq, rseq.cpu_id_start())
            // SAFETY: as in `record_bytes`.
            && unsafe { dormouse_relay::arch::rseq_write(site, &record) } == Written::Done
        {
            return;
        }
    }
    record_slowly(attached, id, segments);
}

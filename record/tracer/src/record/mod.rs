//! The record path: writes the bytes of an event's fields as a record into the sessions that the process is in.

mod arch;
mod slow;

use core::mem::MaybeUninit;

use crate::class::EventKey;
use crate::plan::Again;
use crate::value::{Fields, Payload, Recorded, TypeList, Values};

pub use arch::{record_segments, record_words};
use arch::{record_segments_of_key, record_words_of_key};
pub(crate) use slow::on_marked;

/// How an event is written that a plan has accepted.
pub(crate) const AGAIN: Again = Again { words: record_words, segments: record_segments };

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
                // SAFETY: the payload is borrowed until the call returns, and the values that its runs refer to are
                // alive.
                unsafe { record_segments_of_key(key, fingerprint, payload.runs()) }
            }
        }
        Recorded::list()
    }
}

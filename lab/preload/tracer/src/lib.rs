//! The tracer with other ways to write the fields that a tracepoint has in registers. They are the steps that
//! Desnoyers, Zhaolei and Lai Jiangshan ("LTTng optimize write to page function", 2009) compare, before fields were
//! written inline behind the site's call.
//!
//! ```text
//!   feature       a record of up to three words of fields
//!   specialised   a function that copies the fields from memory by single stores of eight bytes
//!   memcpy        a function that calls memcpy for the fields
//! ```
//! A critical section must not call a function: the kernel would not recognise an interruption in the called function
//! as one of the section. So `memcpy` is called before it, into memory that the section copies. Records with other
//! fields are written as usual.

pub use dormouse::*;

use dormouse::__private::{EventKey, Fields, Recorded, Segment, TypeList, Values, record_segments};

#[cfg(not(any(feature = "memcpy", feature = "specialised")))]
compile_error!("choose a way to write: `--features memcpy` or `--features specialised`");

/// [`dormouse::event!`], written the other way.
#[macro_export]
macro_rules! event {
    ($($event:tt)*) => {
        $crate::__event!([$crate::Other::record] [] $($event)*)
    };
}

/// Recorder of fields of these types, written the other way.
#[doc(hidden)]
pub struct Other<All>(core::marker::PhantomData<All>);

impl<All: Values> Other<All> {
    /// Writes the record.
    #[inline(always)]
    pub fn record<const WORDS: usize, const RUNS: usize>(
        fields: Fields<All>,
        key: &'static EventKey,
    ) -> Recorded<All::List> {
        match const { <All::List as TypeList>::WORDS_SIZE_BYTES } {
            Some(len) => write(key, const { <All::List as TypeList>::DESCRIPTION.fingerprint() }, len, fields.words()),
            None => return fields.record::<WORDS, RUNS>(key),
        }
        Recorded::list()
    }
}

#[inline(never)]
fn write(key: &'static EventKey, fingerprint: u64, len: usize, words: [u64; 3]) {
    let Some(id) = key.id(fingerprint) else { return };
    let mut copied = [0u64; 3];
    let source = if cfg!(feature = "memcpy") {
        let len = core::hint::black_box(len.min(size_of_val(&copied)));
        // SAFETY: copies `len` bytes of one array into another of the same size, and `len` is at most that size. The
        // compiler does not know `len`, so this is a call.
        unsafe { libc::memcpy(copied.as_mut_ptr().cast(), words.as_ptr().cast(), len) };
        copied.as_ptr()
    } else {
        words.as_ptr()
    };
    // SAFETY: `source` points to an array of words that has at least `len` bytes, and lives until the call returns.
    unsafe { record_segments(id, &[Segment::padded(source.cast(), len)]) };
}

//! Entry of a plan: what a section does with an event of a class whose events are not all recorded.
//!
//! ```text
//!   x = source × scale − first
//!
//!   x ≤ span      the event is recorded
//!   x > span      the event is counted in its CPU's table of events that are not
//! ```
//! Numbers are 64 bits and wrap. The scale moves a field to the upper end of its word, so that one comparison decides
//! whether a signed or unsigned integer of any size is in a range, whether a text begins with certain bytes, or whether
//! the event is one in so many.
//!
//! A plan has an entry for each session that wants the class's events, and they are a chain. An entry belongs to one plan
//! and one session's slot for ever, so a writer that is between two entries finds those of its class, whatever changes
//! meanwhile.

use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::abi::session::{Reason, Unrecorded};

use super::Session;

/// Kind of the number that a section compares with the range of an entry.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Nothing: the slow path decides.
    None = 0,
    /// Nothing: the session does not want the event, and does not count it.
    Nobody = 1,
    /// Nothing: the event is recorded.
    Everybody = 2,
    /// Word `word` of the fields, or of a run.
    Word = 3,
    /// The same with its bytes in reverse order, so that text is compared by its first bytes.
    Text = 4,
    /// The CPU's next random number.
    Random = 5,
}

/// A comparison that decides about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    /// The number that is compared.
    pub source: Source,
    /// Size of the first run, in bytes, if the word is in the second one; 0 if it is in the first. Sections for words of
    /// fields do not look at it.
    pub first_run_size_bytes: u32,
    /// Index of the word in its run, or among the words of fields.
    pub word: u32,
    /// Number of bytes that its run must have.
    pub run_size_bytes_min: u32,
    /// Factor.
    pub scale: u64,
    /// Beginning of the range.
    pub first: u64,
    /// Distance of the range's last number from the first.
    pub span: u64,
    /// Reason for which an event beyond the range is not recorded.
    pub reason: Reason,
}

/// Binary logarithm of the distance between the random numbers of two CPUs, in bytes.
pub const RANDOM_STRIDE_SHIFT: u32 = 6;

/// An entry, which sections read while it is changed.
///
/// A change has three steps: [`Entry::stop`]; membarrier(2), which restarts all running sections; [`Entry::set`]. Events
/// take the slow path meanwhile.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Entry {
    /// Id of the class in the session. First field: sections read it where they read a class's id.
    id: AtomicU32,
    source: AtomicU32,
    /// Word with the session that is written to.
    session_word: AtomicPtr<AtomicPtr<Session>>,
    scale: AtomicU64,
    first: AtomicU64,
    span: AtomicU64,
    /// Next entry of the plan, or null.
    next: AtomicPtr<Entry>,
    /// Offset of the counter of events that are not recorded in a CPU's table, in bytes.
    counter_offset: AtomicU32,
    word: AtomicU32,
    first_run_size_bytes: AtomicU32,
    run_size_bytes_min: AtomicU32,
}

/// Binary logarithm of an entry's size.
#[doc(hidden)]
pub const ENTRY_SHIFT: u32 = size_of::<Entry>().trailing_zeros();

const _: () = assert!(size_of::<Entry>() == 64 && offset_of!(Entry, id) == 0);

impl Entry {
    /// Makes events take the slow path.
    pub fn stop(&self) {
        self.source.store(Source::None as u32, Ordering::Relaxed);
    }

    /// Makes sections go on to the next entry: the session does not want the class. The conditions of [`Entry::set`] on
    /// the change hold.
    pub fn pass(&self) {
        self.source.store(Source::Nobody as u32, Ordering::Release);
    }

    /// Whether sections decide about events.
    pub fn is_set(&self) -> bool {
        self.source.load(Ordering::Relaxed) != Source::None as u32
    }

    /// Makes the entry that follows in the plan, or that none does, known. It may be changed at any time.
    pub fn link(&self, next: Option<&'static Entry>) {
        let next = next.map_or(core::ptr::null_mut(), |next| core::ptr::from_ref(next).cast_mut());
        // (E) Release pairs with the sections' load of the source, or of this word.
        self.next.store(next, Ordering::Release);
    }

    /// Makes sections decide about events of the class with this id, in the session that the word points to.
    ///
    /// # Safety
    /// The entry was stopped, and all sections that ran then have been restarted. As long as it is set, the session is
    /// one that [`define_record`](crate::define_record) allows, and there are random numbers of as many CPUs as it has.
    pub unsafe fn set(&self, id: u16, comparison: &Comparison, session_word: &'static AtomicPtr<Session>) {
        let Comparison { source, first_run_size_bytes, word, run_size_bytes_min, scale, first, span, reason } =
            *comparison;
        let counter_offset = Unrecorded::counter_offset(reason, id);
        self.id.store(id.into(), Ordering::Relaxed);
        self.session_word.store(core::ptr::from_ref(session_word).cast_mut(), Ordering::Relaxed);
        self.scale.store(scale, Ordering::Relaxed);
        self.first.store(first, Ordering::Relaxed);
        self.span.store(span, Ordering::Relaxed);
        self.counter_offset.store(counter_offset as u32, Ordering::Relaxed);
        self.word.store(word, Ordering::Relaxed);
        self.first_run_size_bytes.store(first_run_size_bytes, Ordering::Relaxed);
        self.run_size_bytes_min.store(run_size_bytes_min, Ordering::Relaxed);
        // (E) Release pairs with the sections' load of the source.
        self.source.store(source as u32, Ordering::Release);
    }
}

/// Offsets that sections use.
#[doc(hidden)]
pub mod offset {
    use core::mem::offset_of;

    use super::Entry;

    pub const SOURCE: usize = offset_of!(Entry, source);
    pub const SESSION_WORD: usize = offset_of!(Entry, session_word);
    pub const SCALE: usize = offset_of!(Entry, scale);
    pub const FIRST: usize = offset_of!(Entry, first);
    pub const SPAN: usize = offset_of!(Entry, span);
    pub const NEXT: usize = offset_of!(Entry, next);
    pub const COUNTER: usize = offset_of!(Entry, counter_offset);
    pub const WORD: usize = offset_of!(Entry, word);
    pub const FIRST_RUN: usize = offset_of!(Entry, first_run_size_bytes);
    pub const RUN_MIN: usize = offset_of!(Entry, run_size_bytes_min);
}

// AArch64 loads these pairs at once.
const _: () = assert!(offset::SPAN == offset::FIRST + 8);

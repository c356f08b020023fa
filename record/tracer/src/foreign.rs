//! Entry points for events of other languages, called by libdormouse. Not part of the Rust interface.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU8;

use dormouse_abi::class::{CClass, FIELD_COUNT_MAX, Kind, LABELLED, SEQUENCE};
use dormouse_abi::site::EventRecord;
use dormouse_relay::Segment;

use crate::{control, record, tag, thread};
pub use dormouse_listener::{keep_loaded, object_of};

/// Writes one record of `class`, whose fields are the `len` bytes at `fields`.
///
/// Wait-free and async-signal-safe, like the Rust `event!`.
///
/// # Safety
/// `class` is a class of static storage. The bytes are the fields that it describes, and the seven bytes after them are
/// readable. `fields` may be null if `len` is 0.
#[inline(always)]
pub unsafe fn record_words(class: *const CClass, fields: *const u8, len: usize) {
    // SAFETY: the caller guarantees a class of static storage.
    let class = unsafe { &*class };
    // SAFETY: the caller guarantees that the fields and the seven bytes after them are readable; a word that begins
    // within the fields ends there.
    let word = |index: usize| unsafe { u64::from_le(fields.cast::<u64>().wrapping_add(index).read_unaligned()) };
    match len {
        0 => record::record_words(&class.id, len, [0; 3]),
        1..=8 => record::record_words(&class.id, len, [word(0), 0, 0]),
        9..=16 => record::record_words(&class.id, len, [word(0), word(1), 0]),
        17..=24 => record::record_words(&class.id, len, [word(0), word(1), word(2)]),
        // SAFETY: the caller guarantees that `len` bytes and the seven bytes after them are readable.
        _ => unsafe { record::record_segments(&class.id, &[Segment::padded(fields, len)]) },
    }
}

/// Representation of texts in values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Texts {
    /// An address. The text ends before the first NUL; null is an empty text.
    Terminated,
    /// An address and a length. The text contains no NUL.
    Counted,
}

/// Size of a value by type byte, in bytes; with [`COUNTED`], the size of each element; 0 if there is no such type; or
/// [`TEXT`].
const SIZES: [u8; 256] = {
    let mut sizes = [0; 256];
    let mut index = 0;
    while index < Kind::ALL.len() {
        let kind = Kind::ALL[index];
        let size_bytes = kind.element_size_bytes() as u8;
        match kind {
            Kind::Str => sizes[kind as usize] = TEXT,
            Kind::Bytes => sizes[kind as usize] = COUNTED | size_bytes,
            _ => {
                sizes[kind as usize] = size_bytes;
                sizes[(kind as u8 | LABELLED) as usize] = size_bytes;
                sizes[(kind as u8 | SEQUENCE) as usize] = COUNTED | size_bytes;
            }
        }
        index += 1;
    }
    sizes
};
/// See [`SIZES`].
const COUNTED: u8 = 0x10;
/// See [`SIZES`].
const TEXT: u8 = 0x20;

/// Terminator of a text that has no NUL of its own.
static NUL: u64 = 0;

/// Writes one record of `class` from the `len` bytes of values at `values`, in order and without gaps. A field of fixed
/// size is its value, a text is represented as `texts` says, and bytes and sequences are an address and a count.
///
/// ```text
///   values    n  address  m  address count  k                 each run of numbers is a segment in place,
///   record    n  text NUL m  count elements k                 and so is a count: its first four bytes
/// ```
///
/// Wait-free and async-signal-safe, like the Rust `event!`.
///
/// # Safety
/// `class` is a class of static storage that its description follows. The values are those that it describes. The seven
/// bytes after them are readable, and the memory that values refer to is readable until this returns.
#[inline(always)]
pub unsafe fn record_values(class: *const CClass, values: *const u8, len: usize, texts: Texts) {
    let description = CClass::description(class);
    // SAFETY: the caller guarantees that a description follows the class; its first byte is the count.
    let field_count = usize::from(unsafe { description.read() }).min(FIELD_COUNT_MAX);
    let mut segments = [const { MaybeUninit::uninit() }; 3 * FIELD_COUNT_MAX];
    let mut count = 0;
    let mut add = |segment: Segment| {
        segments[count].write(segment);
        count += 1;
    };
    // SAFETY: the description has a field with a word at this offset, and the caller guarantees that the values are
    // those described.
    let word = |at: usize| unsafe { values.wrapping_add(at).cast::<u64>().read_unaligned() } as usize;
    let (mut run_start, mut at) = (0, 0);
    for index in 0..field_count {
        // SAFETY: the caller guarantees a description, which has `field_count` type bytes after its count.
        let type_byte = unsafe { description.wrapping_add(1 + index).read() };
        let size = SIZES[usize::from(type_byte)];
        if size < COUNTED {
            // No session has a class with an unknown type, so no record of it is written.
            at += usize::from(size);
            continue;
        }
        if run_start < at {
            add(Segment::padded(values.wrapping_add(run_start), at - run_start));
        }
        let source = word(at) as *const u8;
        at += 8;
        if size != TEXT {
            add(Segment::padded(values.wrapping_add(at), 4));
            // A length that no page can hold is refused by the write, which checks it in bytes.
            add(Segment::exact(source, word(at).saturating_mul(usize::from(size - COUNTED))));
            at += 8;
        } else if texts == Texts::Terminated && !source.is_null() {
            // SAFETY: the caller guarantees that a value of this type is a text that ends in NUL.
            add(Segment::exact(source, unsafe { libc::strlen(source.cast()) } + 1));
        } else {
            if texts == Texts::Counted {
                add(Segment::exact(source, word(at)));
                at += 8;
            }
            add(Segment::padded((&raw const NUL).cast(), 1));
        }
        run_start = at;
    }
    if run_start < at {
        add(Segment::padded(values.wrapping_add(run_start), at - run_start));
    }
    debug_assert_eq!(at, len, "values are those of the class");
    // SAFETY: the first `count` segments have been written, and `MaybeUninit` has the layout of its element.
    let segments = unsafe { core::slice::from_raw_parts(segments.as_ptr().cast::<Segment>(), count) };
    // SAFETY: the caller guarantees a class of static storage. Only its atomics change.
    let class = unsafe { &*class };
    // SAFETY: the caller guarantees that the values, seven bytes after them, and what they refer to are readable until
    // this returns.
    unsafe { record::record_segments(&class.id, segments) };
}

/// Sets a tag in the calling thread, and returns its former value. `known`: what the tag knows of its word, 0 at first.
/// If the process has no such tag, nothing is set, and the result is 0. Wait-free, unless it is the tag's first value.
#[inline(always)]
pub fn set_tag<'a>(name: impl FnOnce() -> &'a str, known: &AtomicU8, value: u64) -> u64 {
    tag::word_in(name, known).map_or(0, |word| thread::tags()[word].replace(value))
}

/// Returns the number that represents a text of this tag. Blocking if the text is new.
pub fn tag_text<'a>(name: impl FnOnce() -> &'a str, known: &AtomicU8, text: &[u8]) -> u64 {
    tag::word_in(name, known).map_or(0, |word| tag::number_of_text(word, text))
}

/// Sets all tags of the calling thread. Wait-free; async-signal-safe.
pub fn set_tags(tags: tag::Tags) {
    tags.set();
}

/// Adds an object's event classes, and announces them to the process's session. A repeated call changes nothing.
///
/// Blocking; not async-signal-safe.
///
/// # Safety
/// `start..stop` is the `dormouse_events` section of a loaded object, which stays mapped until [`unregister`] returns.
pub unsafe fn register(start: *const EventRecord, stop: *const EventRecord) {
    let inside = thread::enter_tracer();
    // SAFETY: the caller guarantees that this is an object's event section, which stays mapped until `unregister`
    // returns.
    unsafe { control::lock().register(start, stop) };
    drop(inside);
}

/// Forgets the classes of the object whose section starts here. Ignores unknown sections. Blocking; not
/// async-signal-safe.
pub fn unregister(start: *const EventRecord) {
    let inside = thread::enter_tracer();
    control::lock().unregister(start);
    drop(inside);
}

//! Tags: values that a thread gives to all of its events, such as the request that it works on.
//!
//! ```text
//!   tag!(request = id) ─▶ thread-local word of the tag ─┐
//!                                                       ├─▶ each record of a session that asks for it: --context tag.request
//!   tag!(user = "…")   ─▶ number of the text ───────────┘
//!                              └─▶ register of the session: the text, once
//! ```
//! A tag gets one of [`TAG_COUNT_MAX`] words when it is first set, by its name, and keeps it. Sections find the words by
//! their distance from the thread pointer, which each session has for the tags that it asks for. Rules find them by name,
//! whether their session asks for the tags or not.

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use dormouse_abi::tag::{TAG_COUNT_MAX, cut, is_tag_name, text_value};

use crate::known_texts::KNOWN;
use crate::name::{cooked, refuse};
use crate::session::{Attached, sessions};
use crate::{control, tag_words, thread};

/// A tag: [`tag!`](crate::tag!) declares one.
#[derive(Debug)]
pub struct Tag {
    name: &'static str,
    /// 0 as long as the tag has no word, the word's index plus one, or [`WITHOUT_WORD`].
    word: AtomicU8,
}

/// State of a tag that found all words taken.
const WITHOUT_WORD: u8 = u8::MAX;

impl Tag {
    /// Makes a tag.
    ///
    /// # Panics
    /// At compile time, for a name that no trace can hold, or of more than 31 bytes.
    #[doc(hidden)]
    #[track_caller]
    pub const fn new(identifier: &'static str) -> Tag {
        let name = cooked(identifier);
        if !is_tag_name(name) {
            refuse("a tag's name consists of ASCII letters, digits and `_`, at most 31, no digit first", identifier);
        }
        Tag { name, word: AtomicU8::new(0) }
    }

    /// Sets the tag in the calling thread until the result is dropped.
    #[doc(hidden)]
    #[inline]
    pub fn enter<Value: TagValue + ?Sized>(&self, value: &Value) -> TagScope {
        let word = self.word();
        let former = word.map_or(0, |word| thread::tags()[word].replace(value.number(self)));
        TagScope { word, former, _of_thread: PhantomData }
    }

    /// Returns the index of the tag's word, if it has one.
    #[inline(always)]
    fn word(&self) -> Option<usize> {
        word_in(|| self.name, &self.word)
    }
}

/// Returns the index of the word of the tag with this name, if it has one. `known`: what the tag knows of it, 0 at first.
#[inline(always)]
pub(crate) fn word_in<'a>(name: impl FnOnce() -> &'a str, known: &AtomicU8) -> Option<usize> {
    // Relaxed: the index is a number by itself.
    match known.load(Ordering::Relaxed) {
        0 => find_word(name(), known),
        word => Some(usize::from(word) - 1).filter(|word| *word < TAG_COUNT_MAX),
    }
}

/// Gives the tag with this name a word, unless it has one or all are taken.
#[cold]
fn find_word(name: &str, known: &AtomicU8) -> Option<usize> {
    let inside = thread::enter_tracer();
    let control = control::lock();
    let word = tag_words::give(name);
    sessions().for_each(Attached::find_tags);
    known.store(word.map_or(WITHOUT_WORD, |word| word as u8 + 1), Ordering::Relaxed);
    drop(control);
    drop(inside);
    word
}

/// Restores the tag's former value in its thread when it is dropped.
#[must_use = "the tag ends at once: bind it, as in `let _request = tag!(request = id);`"]
#[derive(Debug)]
pub struct TagScope {
    word: Option<usize>,
    former: u64,
    /// The word is the thread's, so the scope stays in its thread.
    _of_thread: PhantomData<*const Cell<u64>>,
}

impl Drop for TagScope {
    #[inline]
    fn drop(&mut self) {
        if let Some(word) = self.word {
            thread::tags()[word].set(self.former);
        }
    }
}

/// The tags of a thread at some time, to be set in another thread that goes on with the same work.
///
/// ```
/// let _request = dormouse::tag!(request = 7u64);
/// let tags = dormouse::Tags::current();
/// std::thread::spawn(move || {
///     let _tags = tags.enter();
///     dormouse::event!(shop.packed);
/// });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Tags([u64; TAG_COUNT_MAX]);

impl Tags {
    /// Returns the tags of the calling thread. Wait-free; async-signal-safe.
    #[inline]
    pub fn current() -> Tags {
        Tags(thread::tags().each_ref().map(Cell::get))
    }

    /// Sets the calling thread's tags until the result is dropped. Wait-free; async-signal-safe.
    #[inline]
    pub fn enter(self) -> TagsScope {
        let former = Tags::current();
        self.set();
        TagsScope { former, _of_thread: PhantomData }
    }

    #[inline]
    pub(crate) fn set(self) {
        thread::tags().iter().zip(self.0).for_each(|(word, value)| word.set(value));
    }
}

/// Restores the former tags of its thread when it is dropped.
#[must_use = "the tags end at once: bind them, as in `let _tags = tags.enter();`"]
#[derive(Debug)]
pub struct TagsScope {
    former: Tags,
    _of_thread: PhantomData<*const Cell<u64>>,
}

impl Drop for TagsScope {
    #[inline]
    fn drop(&mut self) {
        self.former.set();
    }
}

/// A value that a tag may have: an unsigned integer, of which 0 means that there is none, or a text.
pub trait TagValue {
    /// Returns the number that represents the value.
    #[doc(hidden)]
    fn number(&self, tag: &Tag) -> u64;
}

macro_rules! tag_values {
    ($($type:ty),*) => {$(
        impl TagValue for $type {
            #[inline(always)]
            fn number(&self, _: &Tag) -> u64 {
                *self as u64
            }
        }
    )*};
}
tag_values!(u8, u16, u32, u64, usize);

impl TagValue for str {
    #[inline]
    fn number(&self, tag: &Tag) -> u64 {
        tag.word().map_or(0, |word| number_of_text(word, self.as_bytes()))
    }
}

impl TagValue for String {
    #[inline]
    fn number(&self, tag: &Tag) -> u64 {
        self.as_str().number(tag)
    }
}

impl<Value: TagValue + ?Sized> TagValue for &Value {
    #[inline(always)]
    fn number(&self, tag: &Tag) -> u64 {
        (**self).number(tag)
    }
}

impl<Value: TagValue> TagValue for Option<Value> {
    #[inline(always)]
    fn number(&self, tag: &Tag) -> u64 {
        self.as_ref().map_or(0, |value| value.number(tag))
    }
}

/// Whether the process's tags have had as many texts as sessions have room for. New ones are numbers only.
static IS_FULL: AtomicBool = AtomicBool::new(false);

/// Returns the number that represents a text of the tag with this word, and makes the text known to sessions.
#[inline]
pub(crate) fn number_of_text(word: usize, text: &[u8]) -> u64 {
    let text = cut(text);
    if text.is_empty() {
        return 0;
    }
    let number = text_value(text);
    // Relaxed: a thread that sees it late finds that there is no room.
    if !KNOWN.has(word, number) && !IS_FULL.load(Ordering::Relaxed) {
        make_known(word, text, number);
    }
    number
}

/// Makes a new text known to rules, and to the sessions that ask for its tag.
#[cold]
fn make_known(word: usize, text: &[u8], number: u64) {
    let inside = thread::enter_tracer();
    let mut control = control::lock();
    if let Some(text) = control.tag_texts.add(word, text) {
        KNOWN.add(word, number, text);
    }
    IS_FULL.store(control.tag_texts.is_full(), Ordering::Relaxed);
    drop(control);
    drop(inside);
}

#[cfg(test)]
mod tests {
    use dormouse_abi::register::TAG_TEXT_COUNT;

    use super::*;

    /// The process's tags are those of this test.
    #[test]
    fn a_process_has_four_tags_and_each_thread_its_own_values() {
        let first = crate::tag!(first = 1_u8);
        assert_eq!(Tags::current(), Tags([1, 0, 0, 0]));
        {
            let _again = crate::tag!(first = 2_usize);
            let second = "two";
            let _second = crate::tag!(second);
            let _third = crate::tag!(third = Some(3_u64));
            let _none = crate::tag!(first = None::<u64>);
            let _fourth = crate::tag!(fourth = String::from("four"));
            let _fifth = crate::tag!(fifth = 5_u64);
            let [two, four] = ["two", "four"].map(|text| text_value(text.as_bytes()));
            let tags = Tags::current();
            assert_eq!(tags, Tags([0, two, 3, four]));
            std::thread::spawn(move || {
                assert_eq!(Tags::current(), Tags::default());
                {
                    let _tags = tags.enter();
                    let _third = crate::tag!(third = 33_u32);
                    assert_eq!(Tags::current(), Tags([0, two, 33, four]));
                }
                assert_eq!(Tags::current(), Tags::default());
            })
            .join()
            .unwrap();
            let _empty = crate::tag!(second = "");
            assert_eq!(Tags::current(), Tags([0, 0, 3, four]));
        }
        assert_eq!(Tags::current(), Tags([1, 0, 0, 0]));
        drop(first);
        assert_eq!(Tags::current(), Tags::default());
        // Many texts: those beyond the bound have numbers as well.
        for index in 0..TAG_TEXT_COUNT + 10 {
            let text = format!("text {index}");
            let _text = crate::tag!(second = &text);
            assert_eq!(Tags::current().0[1], text_value(text.as_bytes()));
        }
        assert!(IS_FULL.load(Ordering::Relaxed));
    }
}

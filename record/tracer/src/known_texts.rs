//! Texts that the process's tags have had, by their numbers.
//!
//! Threads look a text up without the tracer's lock: the number of a text follows from it, and is in one of the places
//! from that of the number on. Texts are added under the lock, and never removed.

use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::OnceLock;

use dormouse_abi::register::TAG_TEXT_COUNT;
use dormouse_abi::rule::value::Labels;
use dormouse_abi::tag::TAG_COUNT_MAX;

/// Number of places, a power of two.
const PLACE_COUNT: usize = 2 * TAG_TEXT_COUNT;

/// The texts of this process.
pub(crate) static KNOWN: KnownTexts = KnownTexts(OnceLock::new());

/// Texts by their numbers; the places are absent before the first text. As labels of tags, 0 has an empty one.
pub(crate) struct KnownTexts(OnceLock<Box<[Place]>>);

/// Place of a text.
struct Place {
    /// Number of the text, by its tag; 0: there is none.
    number: AtomicU64,
    /// The text, if there is one. Never freed.
    text: AtomicPtr<&'static [u8]>,
}

/// Returns a number that differs for the tags that have a text.
fn of_tag(word: usize, number: u64) -> u64 {
    number ^ (word as u64) << 32
}

impl KnownTexts {
    /// Returns the places where the text with this number may be, up to the first one without a text.
    #[inline]
    fn places(&self, word: usize, number: u64) -> impl Iterator<Item = &Place> {
        let all = self.0.get();
        let first = of_tag(word, number) as usize;
        let places = (0..PLACE_COUNT).map_while(move |step| all?.get(first.wrapping_add(step) % PLACE_COUNT));
        places.take_while(|place| place.number.load(Ordering::Relaxed) != 0)
    }

    /// Returns the place of the text with this number, of the tag with this word.
    #[inline]
    fn find(&self, word: usize, number: u64) -> Option<&Place> {
        // (TT) Acquire pairs with (TT').
        self.places(word, number).find(|place| place.number.load(Ordering::Acquire) == of_tag(word, number))
    }

    /// Whether the tag with this word has had the text with this number. Wait-free; async-signal-safe.
    #[inline]
    pub(crate) fn has(&self, word: usize, number: u64) -> bool {
        self.find(word, number).is_some()
    }

    /// Adds a text of the tag with this word, which is new. Called under the tracer's lock, at most [`TAG_TEXT_COUNT`]
    /// times.
    pub(crate) fn add(&self, word: usize, number: u64, text: &'static [u8]) {
        let empty = |_| Place { number: AtomicU64::new(0), text: AtomicPtr::new(core::ptr::null_mut()) };
        let all = self.0.get_or_init(|| (0..PLACE_COUNT).map(empty).collect());
        // Only the holder of the lock adds texts, and there are more places than texts.
        let after = self.places(word, number).count();
        let place = &all[(of_tag(word, number) as usize).wrapping_add(after) % PLACE_COUNT];
        place.text.store(Box::into_raw(Box::new(text)), Ordering::Relaxed);
        // (TT') Release pairs with (TT): the text is stored before its number.
        place.number.store(of_tag(word, number), Ordering::Release);
    }
}

/// Wait-free; async-signal-safe.
impl Labels for KnownTexts {
    fn any(&self, number: i128, is_it: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let Ok(number) = u64::try_from(number) else { return false };
        if number == 0 {
            return is_it(&[]);
        }
        // A number is that of one text, whichever tag has had it.
        let Some(place) = (0..TAG_COUNT_MAX).find_map(|word| self.find(word, number)) else { return false };
        // SAFETY: null, or a text that is never freed, stored before its number (TT).
        let text = unsafe { place.text.load(Ordering::Relaxed).as_ref() };
        text.is_some_and(|text| is_it(text))
    }
}

impl fmt::Debug for KnownTexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KnownTexts")
    }
}

#[cfg(test)]
mod tests {
    use dormouse_abi::tag::text_value;

    use super::*;

    #[test]
    fn texts_are_found_by_their_numbers() {
        let known = KnownTexts(OnceLock::new());
        let number = |text: &str| text_value(text.as_bytes());
        let is = |number: u64, text: &str| known.any(number.into(), &mut |label| label == text.as_bytes());
        let texts: Vec<String> = (0..TAG_TEXT_COUNT).map(|index| format!("text {index}")).collect();
        for (index, text) in texts.iter().enumerate() {
            let word = index % TAG_COUNT_MAX;
            assert!(!known.has(word, number(text)) && !is(number(text), text));
            known.add(word, number(text), Box::leak(text.as_bytes().into()));
        }
        for (index, text) in texts.iter().enumerate() {
            assert!(known.has(index % TAG_COUNT_MAX, number(text)) && !known.has((index + 1) % 4, number(text)));
            assert!(is(number(text), text) && !is(number(text), "text"));
        }
        assert!(is(0, "") && !is(0, "text 0") && !is(7, "") && !is(number("other"), "other"));
        assert!(!known.any(-1, &mut |_| true));
    }
}

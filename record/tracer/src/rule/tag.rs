//! Tags in rules: values of the thread that records an event.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::{tag_words, thread};

/// A tag that a rule names. The process may set it later, or never.
#[derive(Debug)]
pub(crate) struct NamedTag {
    name: Box<str>,
    /// Index of the tag's word plus one, or 0: it had none so far.
    word: AtomicU8,
}

/// Tags are compared in tests, by their names.
impl PartialEq for NamedTag {
    fn eq(&self, other: &NamedTag) -> bool {
        self.name == other.name
    }
}

impl NamedTag {
    pub(crate) fn new(name: &str) -> NamedTag {
        NamedTag { name: name.into(), word: AtomicU8::new(0) }
    }

    /// Returns the name.
    #[cfg(test)]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the tag's value in the calling thread; 0 if it has none. Wait-free; async-signal-safe.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        // Relaxed: the index is a number by itself. A tag keeps its word.
        let word = match self.word.load(Ordering::Relaxed) {
            0 => tag_words::word_of(&self.name).inspect(|word| self.word.store(*word as u8 + 1, Ordering::Relaxed)),
            word => Some(usize::from(word) - 1),
        };
        word.and_then(|word| thread::tags().get(word)).map_or(0, core::cell::Cell::get)
    }
}

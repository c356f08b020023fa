//! Names of the process's tags: which thread-local word each has.

use std::sync::OnceLock;

use dormouse_abi::tag::{TAG_COUNT_MAX, is_tag_name};

/// Names of the tags, by the indices of their words.
static NAMES: [OnceLock<Box<str>>; TAG_COUNT_MAX] = [const { OnceLock::new() }; TAG_COUNT_MAX];

/// Returns the index of the word of the tag with this name, which gets one if it has none and not all are taken. Called
/// under the tracer's lock.
pub(crate) fn give(name: &str) -> Option<usize> {
    // Only the holder of the lock adds names, so the first place without one follows the last name.
    let mut words = (0..TAG_COUNT_MAX).filter(|_| is_tag_name(name));
    words.find(|word| &**NAMES[*word].get_or_init(|| name.into()) == name)
}

/// Returns the index of the word of the tag with this name, if it has one.
pub(crate) fn word_of(name: &str) -> Option<usize> {
    NAMES.iter().position(|known| known.get().is_some_and(|known| **known == *name))
}

/// Returns the name of the tag with this word; an empty one if there is none.
pub(crate) fn name_of(word: usize) -> &'static str {
    NAMES.get(word).and_then(OnceLock::get).map_or("", |name| name)
}

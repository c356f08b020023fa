//! Texts that the process's tags have had, for sessions.

use dormouse_abi::register::TAG_TEXT_COUNT;

use crate::session::{Attached, Guard, in_slot, sessions};
use crate::tag_words;

/// Texts of the process's tags, and the indices of their tags' words. At most [`TAG_TEXT_COUNT`].
#[derive(Debug)]
pub(crate) struct TagTexts(Vec<(usize, &'static [u8])>);

impl TagTexts {
    pub(crate) const fn new() -> TagTexts {
        TagTexts(Vec::new())
    }

    /// Adds a text, and makes it known to the sessions that ask for its tag. Returns a copy that is never freed, or `None` if
    /// the text is not new, or if there is no room.
    pub(crate) fn add(&mut self, word: usize, text: &[u8]) -> Option<&'static [u8]> {
        let is_new = !self.is_full() && !self.0.contains(&(word, text));
        let added: Option<&'static [u8]> = is_new.then(|| &*Box::leak(text.into()));
        self.0.extend(added.map(|text| (word, text)));
        sessions().for_each(|attached| tell(attached, word, text));
        added
    }

    /// Whether there is room for no other text.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= TAG_TEXT_COUNT
    }

    /// Makes the texts known to a session that asks for their tags.
    pub(crate) fn tell(&self, attached: &Attached) {
        self.0.iter().for_each(|(word, text)| tell(attached, *word, text));
    }
}

/// Adds a text to a session's register, if the session asks for the tag.
fn tell(attached: &Attached, word: usize, text: &[u8]) {
    let Some(guard) = in_slot(attached.slot).and_then(Guard::enter) else { return };
    let name = tag_words::name_of(word);
    if let Some(register) = guard.memory.register().filter(|_| guard.memory.tags().iter().any(|tag| tag == name)) {
        register.add_tag_text(guard.process, name, text);
    }
}

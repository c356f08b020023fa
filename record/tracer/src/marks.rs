//! Marks in the id words of classes: they tell which classes a trigger waits for.
//!
//! ```text
//!   id word of a class    31 ─ marks: a bit for each trigger pattern that it matches ─ 16 15 ─ id ─ 0
//! ```
//! A class without marks costs the same as without triggers: its word is compared with [`CLASS_ID_MAX`] in any case.
//! Marks are part of the id word, so they follow a class into another session, a forked child, and an object that is
//! loaded later.

use core::sync::atomic::{AtomicBool, Ordering};

use dormouse_abi::class::{self, CLASS_ID_MAX, CLASS_ID_NONE, CLASS_MARKS_SHIFT, ClassDecl};
use dormouse_abi::trigger::PATTERN_COUNT_MAX;

const _: () = assert!(PATTERN_COUNT_MAX as u32 + CLASS_MARKS_SHIFT <= u32::BITS);

/// Whether a class of this process has had marks.
static ARE_USED: AtomicBool = AtomicBool::new(false);

/// Whether a class has had marks since the process began. Relaxed: the calling thread has the tracer's lock, or had it
/// after the class was marked.
pub(crate) fn are_used() -> bool {
    ARE_USED.load(Ordering::Relaxed)
}

/// Resets the flag in a forked child that is in no session: no class has an id, or marks.
pub(crate) fn after_fork() {
    ARE_USED.store(false, Ordering::Relaxed);
}

/// Returns the id and the marks in a class's word. [`CLASS_ID_NONE`] gives an id that no class has.
pub(crate) fn split(word: u32) -> (u32, u32) {
    (word & ((1 << CLASS_MARKS_SHIFT) - 1), word >> CLASS_MARKS_SHIFT)
}

/// Patterns of events, by mark.
#[derive(Debug)]
pub(crate) struct Marks([Option<String>; PATTERN_COUNT_MAX]);

impl Marks {
    /// Returns marks that no event has.
    pub(crate) const fn new() -> Marks {
        Marks([const { None }; PATTERN_COUNT_MAX])
    }

    /// Assigns mark `mark` to events that match this pattern.
    pub(crate) fn set(&mut self, mark: usize, pattern: &str) {
        self.0[mark] = Some(pattern.into());
    }

    /// Returns the word of a class with this id.
    pub(crate) fn id_word(&self, id: u32, decl: &ClassDecl) -> u32 {
        if id > CLASS_ID_MAX.into() {
            return CLASS_ID_NONE;
        }
        let name = decl.full_name();
        let is_match =
            |pattern: &Option<String>| pattern.as_ref().is_some_and(|pattern| class::matches(pattern, &name));
        let matching = self.0.iter().enumerate().filter(|(_, pattern)| is_match(pattern));
        let marks = matching.fold(0u32, |marks, (mark, _)| marks | 1 << mark);
        if marks != 0 {
            ARE_USED.store(true, Ordering::Relaxed);
        }
        id | marks << CLASS_MARKS_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_without_an_id_belongs_to_no_class() {
        assert!(split(CLASS_ID_NONE).0 > CLASS_ID_MAX.into());
        assert_eq!(split(u32::from(CLASS_ID_MAX)), (CLASS_ID_MAX.into(), 0));
        assert_eq!(split(5 << CLASS_MARKS_SHIFT | 7), (7, 5));
    }
}

//! Plans: what a record of a class needs besides a direct section, because of rules or triggers.
//!
//! ```text
//!   id word of a class    31 ─ number of its plan, or 0 ─ 16 15 ─ id ─ 0
//!
//!   site ─▶ direct section: the word is above CLASS_ID_MAX ─▶ section of the plan's entry: one comparison decides?
//!                                                                 │ yes: recorded, or counted as not recorded
//!                                                                 └─ no ─▶ slow path
//!
//!   slow path ─▶ plan: rules? ─▶ direct section, with the plan's own id word
//!                          └─ no: counted in the session
//! ```
//! A class without a plan costs the same as without rules: its word is compared with `CLASS_ID_MAX` in any case. The
//! number is part of the id word, so plans follow a class into a forked child.
//!
//! A class keeps its number for ever, as do other classes with the same declaration. Its plan is replaced when rules or
//! triggers change, and freed when no thread uses it any more ([`crate::readers`]). A plan has the id of its class too,
//! so that an accepted event enters the section like any other; it is reset when the process leaves the session, like
//! those of classes.
//!
//! If the tests are one comparison of a number with a range, as most conditions and all samples by chance are, the plan's
//! entry has it (`entries`), and a section decides without the plan: nothing is counted for [`crate::readers`].

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod entries;

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::collections::BTreeMap;
use std::sync::OnceLock;

use dormouse_abi::class::{self, CLASS_ID_NONE, CLASS_PLAN_SHIFT, ClassDecl};
use dormouse_abi::trigger::PATTERN_COUNT_MAX;
use dormouse_relay::Segment;

use crate::readers;
use crate::rule::Tests;
use crate::session::{Attached, in_slot};
use crate::value::WORDS_MAX;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use entries::{FIRST_ENTRIES, slot_of};

/// Plan of a class.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Triggers that wait for the class: a bit for each pattern that it matches.
    pub(crate) marks: u32,
    /// The class in each session that records it, by ascending slots.
    pub(crate) wanted: Vec<Wanted>,
    /// Functions that write an accepted event into the session in slot 0. Without them, the slow path does.
    pub(crate) again: Option<Again>,
}

/// A class in a session that records it: its id, and the condition on its events.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Slot of the session.
    pub(crate) slot: usize,
    /// Id of the class in the session, or [`CLASS_ID_NONE`].
    pub(crate) id: AtomicU32,
    /// Condition on the class's events.
    pub(crate) tests: Option<Tests>,
}

/// Functions that write a record by a direct section, where there are any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Again {
    /// Fields in the first bytes of the words, of which there are at most 24.
    pub(crate) words: fn(&AtomicU32, usize, [u64; WORDS_MAX]),
    /// Fields in runs, whose sources are readable.
    pub(crate) segments: unsafe fn(&AtomicU32, &[Segment]),
}

static AGAIN: OnceLock<Again> = OnceLock::new();

/// Makes plans write accepted events by these functions. Those of the first call are kept.
pub(crate) fn record_by(again: Again) {
    let _ = AGAIN.set(again);
}

/// Whether a class of this process has had marks.
static HAS_MARKS: AtomicBool = AtomicBool::new(false);

/// Whether a class has had marks since the process began. Relaxed: the calling thread has the tracer's lock, or had it
/// after the class was marked.
pub(crate) fn has_marks() -> bool {
    HAS_MARKS.load(Ordering::Relaxed)
}

/// Resets that in a forked child that is in no session: no class has an id, or marks.
pub(crate) fn forget_marks() {
    HAS_MARKS.store(false, Ordering::Relaxed);
}

/// Number of plans in a block.
const BLOCK_LEN: usize = 256;
/// Number of numbers of plans. 0 is no plan, and the last one is that of [`CLASS_ID_NONE`].
const PLAN_COUNT_MAX: usize = 1 << (u32::BITS - CLASS_PLAN_SHIFT);

/// Plans. Never freed.
type Block = [AtomicPtr<Plan>; BLOCK_LEN];

static BLOCKS: [AtomicPtr<Block>; PLAN_COUNT_MAX / BLOCK_LEN] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; PLAN_COUNT_MAX / BLOCK_LEN];

fn block(number: u32) -> Option<&'static Block> {
    // (O) Acquire pairs with (O').
    // SAFETY: null, or never freed.
    unsafe { BLOCKS.get(number as usize / BLOCK_LEN)?.load(Ordering::Acquire).as_ref() }
}

/// Returns the id and the number of the plan in a class's word. [`CLASS_ID_NONE`] gives an id that no class has.
#[inline(always)]
pub(crate) fn split(word: u32) -> (u32, u32) {
    (word & ((1 << CLASS_PLAN_SHIFT) - 1), word >> CLASS_PLAN_SHIFT)
}

/// Whether a number is that of a plan. That of [`CLASS_ID_NONE`] belongs to no class.
#[inline(always)]
pub(crate) fn is_number(number: u32) -> bool {
    number != 0 && number < PLAN_COUNT_MAX as u32 - 1
}

/// Returns the plan with this number. It stays until the use ends.
#[inline(always)]
pub(crate) fn find(number: u32, _: &readers::Using) -> Option<&Plan> {
    let slot = block(number)?.get(number as usize % BLOCK_LEN)?;
    // (O) Acquire pairs with (O'). SAFETY: null, or a plan that is not freed before the use ends.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

/// Plans of the process's classes, and the patterns that triggers wait for.
#[derive(Debug)]
pub(crate) struct Plans {
    /// Number of each class that has had a plan, by its announcement.
    numbers: BTreeMap<Vec<u8>, u32>,
    /// Patterns of triggers, by mark.
    patterns: [Option<String>; PATTERN_COUNT_MAX],
    /// Plans that were replaced, and that a thread may still use.
    replaced: Vec<Replaced>,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    stopped: entries::Stopped,
    /// Number of CPUs that the session counts.
    pub(crate) cpu_count: u32,
}

/// A plan that was replaced.
#[derive(Debug)]
struct Replaced(*mut Plan);

// SAFETY: a plan is not bound to a thread.
unsafe impl Send for Replaced {}

impl Plans {
    pub(crate) const fn new() -> Plans {
        let patterns = [const { None }; PATTERN_COUNT_MAX];
        Plans {
            numbers: BTreeMap::new(),
            patterns,
            replaced: Vec::new(),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            stopped: entries::Stopped::new(),
            cpu_count: 0,
        }
    }

    /// Assigns mark `mark` to events that match this pattern.
    pub(crate) fn set_mark(&mut self, mark: usize, pattern: &str) {
        self.patterns[mark] = Some(pattern.into());
    }

    /// Returns the marks of a class.
    fn marks(&self, decl: &ClassDecl) -> u32 {
        if self.patterns.iter().all(Option::is_none) {
            return 0;
        }
        let name = decl.full_name();
        let is_match =
            |pattern: &Option<String>| pattern.as_ref().is_some_and(|pattern| class::matches(pattern, &name));
        let matching = self.patterns.iter().enumerate().filter(|(_, pattern)| is_match(pattern));
        matching.fold(0, |marks, (mark, _)| marks | 1 << mark)
    }

    /// Returns the word of a class that these sessions want. `announced` returns its announcement.
    pub(crate) fn word(&mut self, decl: &ClassDecl, announced: impl FnOnce() -> Vec<u8>, wanted: Vec<Wanted>) -> u32 {
        let first = wanted.first().filter(|wanted| wanted.slot == 0);
        let id = first.map_or(CLASS_ID_NONE, |wanted| wanted.id.load(Ordering::Relaxed));
        let marks = self.marks(decl);
        if marks != 0 {
            HAS_MARKS.store(true, Ordering::Relaxed);
        }
        let is_plain = |wanted: &Wanted| {
            let has_tags = || in_slot(wanted.slot).is_some_and(Attached::has_tags);
            wanted.slot == 0 && wanted.tests.is_none() && !has_tags()
        };
        let needs_plan = !wanted.is_empty() && (marks != 0 || !wanted.iter().all(is_plain));
        if !needs_plan && self.numbers.is_empty() {
            return id;
        }
        let text = announced();
        let known = self.numbers.get(&text).copied();
        let number = if needs_plan { known.or_else(|| self.add(text)) } else { known };
        if let Some(number) = number {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            self.stopped.add(number, &wanted, marks != 0);
            // A class that needs no plan any more has an empty one for threads that have read its former word.
            let again = AGAIN.get().copied();
            self.replace(number, Plan { marks, wanted, again });
        }
        match number {
            Some(number) if needs_plan => id & ((1 << CLASS_PLAN_SHIFT) - 1) | number << CLASS_PLAN_SHIFT,
            // All numbers are taken: what the rules say cannot be obeyed.
            None if needs_plan => CLASS_ID_NONE,
            _ => id,
        }
    }

    /// Returns a new number; `None` if all are taken.
    fn add(&mut self, text: Vec<u8>) -> Option<u32> {
        let number = self.numbers.len() + 1;
        if !is_number(number as u32) {
            return None;
        }
        let slot = &BLOCKS[number / BLOCK_LEN];
        if slot.load(Ordering::Relaxed).is_null() {
            readers::prepare(self.cpu_count);
            let plans: Block = [const { AtomicPtr::new(core::ptr::null_mut()) }; BLOCK_LEN];
            // (O') Release pairs with (O).
            slot.store(Box::into_raw(Box::new(plans)), Ordering::Release);
        }
        self.numbers.insert(text, number as u32);
        Some(number as u32)
    }

    fn replace(&mut self, number: u32, plan: Plan) {
        let Some(slot) = block(number).map(|block| &block[number as usize % BLOCK_LEN]) else { return };
        // (O') Release pairs with (O).
        let former = slot.swap(Box::into_raw(Box::new(plan)), Ordering::AcqRel);
        if !former.is_null() {
            self.replaced.push(Replaced(former));
        }
    }

    /// Ends a change of plans: frees replaced ones that no thread uses any more. Returns false if a thread may still use
    /// one.
    pub(crate) fn end_change(&mut self) -> bool {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        self.stopped.set(self.cpu_count);
        if !self.replaced.is_empty() && readers::wait() {
            for Replaced(plan) in self.replaced.drain(..) {
                // SAFETY: made from a box, found by nobody since it was replaced, and no thread uses it any more.
                drop(unsafe { Box::from_raw(plan) });
            }
        }
        self.replaced.is_empty()
    }

    /// Takes all plans out of the session that was in a slot. No thread can find the session any more.
    pub(crate) fn leave(&mut self, slot: usize) {
        let slots = self.numbers.values().filter_map(|number| Some(&block(*number)?[*number as usize % BLOCK_LEN]));
        let current = slots.map(|slot| slot.load(Ordering::Relaxed));
        for plan in current.chain(self.replaced.iter().map(|replaced| replaced.0)) {
            // SAFETY: null, or a plan that is not freed before this function returns: only the holder of the tracer's
            // lock frees plans.
            let wanted = unsafe { plan.as_ref() }.into_iter().flat_map(|plan| &plan.wanted);
            wanted
                .filter(|wanted| wanted.slot == slot)
                .for_each(|wanted| wanted.id.store(CLASS_ID_NONE, Ordering::Relaxed));
        }
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if self.numbers.values().filter(|number| entries::stop(slot, **number)).count() > 0 {
            // Sections that have found an entry set must not find the next session. If the kernel has no barrier, no
            // entry was set.
            crate::membarrier::restart_sections();
        }
    }
}

#[cfg(test)]
mod tests {
    use dormouse_abi::class::CLASS_ID_MAX;

    use super::*;

    #[test]
    fn a_word_without_an_id_belongs_to_no_class() {
        assert!(split(CLASS_ID_NONE).0 > CLASS_ID_MAX.into());
        assert_eq!(split(u32::from(CLASS_ID_MAX)), (CLASS_ID_MAX.into(), 0));
        assert_eq!(split(5 << CLASS_PLAN_SHIFT | 7), (7, 5));
    }
}

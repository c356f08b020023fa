//! Losses by event class.

use dormouse_abi::page::STREAM_EVENTS;
use dormouse_abi::session::LOST_CLASS_COUNT;
use dormouse_ctf::{Classes, StateRecord};
use dormouse_relay::Memory;

/// What was lost of which class, the most first. The counts are a program's word: those of an id that no class has are shown as other classes'.
pub(crate) fn by_class(memory: &Memory, classes: &Classes) -> Vec<(String, u64)> {
    name_counts((0..).map_while(|index| memory.discarded_by_class(index)), classes)
}

pub(crate) fn name_counts(counts: impl IntoIterator<Item = u64>, classes: &Classes) -> Vec<(String, u64)> {
    let counts = counts.into_iter().enumerate().filter(|(_, count)| *count > 0);
    let named = counts.map(|(id, count)| {
        let class = if id + 1 < LOST_CLASS_COUNT { classes.get(STREAM_EVENTS, id as u16) } else { None };
        (class.map_or_else(|| "(other classes)".into(), |class| class.full_name.clone()), count)
    });
    let mut named: Vec<(String, u64)> = named.collect();
    named.sort_by(|(name_a, a), (name_b, b)| b.cmp(a).then_with(|| name_a.cmp(name_b)));
    named
}

/// What the state stream tells of losses: how many no packet could state, and whose all of them were.
pub(crate) fn records(unstated: u64, by_class: &[(String, u64)]) -> impl Iterator<Item = StateRecord<'_>> {
    let reason = "no page was free, nor could a packet be written that says so";
    let unstated = (unstated > 0).then_some(StateRecord::Lost { reason, count: unstated });
    unstated.into_iter().chain(by_class.iter().map(|(class, count)| StateRecord::LostClass { class, count: *count }))
}

//! Losses by event class.

use dormouse_abi::page::STREAM_EVENTS;
use dormouse_abi::session::LOST_CLASS_COUNT;
use dormouse_ctf::Classes;
use dormouse_format::{Cause, Losses, StateRecord};
use dormouse_relay::Memory;

/// Returns the number of lost events for each class, the greatest first. Programs write the counts: those of an unknown
/// id are shown as other classes'.
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

/// Returns the state stream's records about losses: the number that no packet could state, losses that packets do not
/// record, and the classes of the events that found no page.
pub(crate) fn records<'a>(
    unstated: u64,
    losses: &Losses,
    by_class: &'a [(String, u64)],
) -> impl Iterator<Item = StateRecord<'a>> {
    let unstated = (unstated > 0).then_some(Cause::NoPage.record(unstated));
    let by_class = by_class.iter().map(|(class, count)| StateRecord::LostClass { class, count: *count });
    let losses: Vec<StateRecord<'_>> = losses.records().collect();
    unstated.into_iter().chain(losses).chain(by_class)
}

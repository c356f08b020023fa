//! Losses by event class, and events that the session's rules left out.

use dormouse_abi::page::STREAM_EVENTS;
use dormouse_abi::session::{LOST_CLASS_COUNT, Reason};
use dormouse_ctf::Classes;
use dormouse_format::{Cause, Losses, StateRecord};
use dormouse_relay::Memory;

use crate::ledger::NotKept;
use crate::summary::UnrecordedClass;

/// Returns the number of lost events for each class, the greatest first. Programs write the counts: those of an unknown
/// id are shown as other classes'.
pub(crate) fn by_class(memory: &Memory, classes: &Classes) -> Vec<(String, u64)> {
    name_counts((0..).map_while(|index| memory.discarded_by_class(index)), classes)
}

pub(crate) fn name_counts(counts: impl IntoIterator<Item = u64>, classes: &Classes) -> Vec<(String, u64)> {
    let counts = counts.into_iter().enumerate().filter(|(_, count)| *count > 0);
    let mut named: Vec<(String, u64)> = counts.map(|(index, count)| (name_of(index, classes), count)).collect();
    named.sort_by(|(name_a, a), (name_b, b)| b.cmp(a).then_with(|| name_a.cmp(name_b)));
    named
}

/// Returns the name of the class with a counter of this index.
fn name_of(index: usize, classes: &Classes) -> String {
    let class = if index + 1 < LOST_CLASS_COUNT { classes.get(STREAM_EVENTS, index as u16) } else { None };
    class.map_or_else(|| "(other classes)".into(), |class| class.full_name.clone())
}

/// Returns the numbers of events that the session's rules left out, for each class, the greatest first. Programs write
/// most of the counts: those of an unknown id are shown as other classes'.
pub(crate) fn unrecorded_by_class(memory: &Memory, classes: &Classes, not_kept: &NotKept) -> Vec<UnrecordedClass> {
    let Some(counts) = memory.unrecorded_by_class() else { return Vec::new() };
    let of = |index: usize| UnrecordedClass {
        class: name_of(index, classes),
        rejected: counts[Reason::Rejected as usize][index],
        sampled_out: counts[Reason::SampledOut as usize][index],
        not_kept: not_kept.0[index],
    };
    let mut all: Vec<UnrecordedClass> = (0..LOST_CLASS_COUNT).map(of).filter(|class| class.count() > 0).collect();
    all.sort_by(|a, b| b.count().cmp(&a.count()).then_with(|| a.class.cmp(&b.class)));
    all
}

/// Returns the numbers of events of all classes that the session's rules have left out so far: rejected, and sampled
/// out.
pub(crate) fn unrecorded(memory: &Memory) -> (u64, u64) {
    let sum = |counts: &[u64; LOST_CLASS_COUNT]| counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
    memory
        .unrecorded_by_class()
        .map_or((0, 0), |counts| (sum(&counts[Reason::Rejected as usize]), sum(&counts[Reason::SampledOut as usize])))
}

/// Returns the state stream's records about events that the session's rules left out.
pub(crate) fn unrecorded_records(all: &[UnrecordedClass]) -> impl Iterator<Item = StateRecord<'_>> {
    let in_programs = all.iter().filter(|class| (class.rejected, class.sampled_out) != (0, 0));
    let in_programs = in_programs.map(|UnrecordedClass { class, rejected, sampled_out, .. }| StateRecord::Unrecorded {
        class,
        rejected: *rejected,
        sampled_out: *sampled_out,
    });
    let by_tails = all.iter().filter(|class| class.not_kept != 0);
    in_programs.chain(by_tails.map(|class| StateRecord::NotKept { class: &class.class, count: class.not_kept }))
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

//! A process is killed at any instruction: exactly the events that it had finished are there, and no other process is
//! affected.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, Recording};
use dormouse_e2e::seed;

use crate::{AMPLE, TINY, TRACED};

const ROUNDS: u64 = 5;
const EVENTS: u64 = 10_000;

/// Returns the number of events that a victim's thread had finished, by its own count.
fn finished(place: &std::path::Path, round: usize, thread: u32) -> u64 {
    let bytes = std::fs::read(place.join(format!("victim-{round}"))).expect("the victim's account");
    let word = bytes[8 * thread as usize..][..8].try_into().expect("a word");
    u64::from_le_bytes(word)
}

fn kill(budget: &str, rseq: bool, context: &str) {
    let name = format!("{budget} rseq={rseq} context={context}");
    kill_with(Record::new().budget(budget).rseq(rseq).context(context), budget == AMPLE, &name);
}

/// Kills processes in a recording, and checks the account of their events. With an ample budget nothing is lost. Returns
/// the recording, and how many events the processes may have finished.
pub(crate) fn kill_with(record: Record, is_ample: bool, name: &str) -> (Recording, RangeInclusive<u64>) {
    let seed = seed(&format!("kill, {name}"));
    let place = record.place().to_str().expect("a path of text").to_owned();
    let command = [TRACED, "kill", &place, &seed.to_string(), &ROUNDS.to_string(), &EVENTS.to_string()];
    let recording = record.run(&command).succeeded();
    let (trace, events, lost) = check(&recording);
    let steps = trace.steps();
    let none = Vec::new();
    let mut in_flight = 0;
    let mut emitted = 0;
    for (round, victim) in recording.numbers("victim").into_iter().enumerate() {
        for thread in 0..2 {
            let finished = finished(recording.place(), round, thread);
            let numbers = steps.get(&(victim as u32, thread)).unwrap_or(&none);
            // The last event may have been written or lost without the victim having lived to count it.
            assert!(numbers.last().is_none_or(|last| *last <= finished), "{numbers:?} after {finished}");
            if lost == 0 {
                let count = numbers.len() as u64;
                assert!(numbers.iter().copied().eq(0..count), "a gap in round {round}, thread {thread}");
                assert!(count == finished || count == finished + 1, "{count} received, {finished} finished");
            }
            emitted += finished;
            in_flight += 1;
        }
    }
    let siblings: BTreeSet<u64> = recording.numbers("sibling").into_iter().collect();
    assert_eq!(siblings.len() as u64, 2 * ROUNDS);
    for sibling in &siblings {
        for thread in 0..2 {
            let numbers = steps.get(&(*sibling as u32, thread)).unwrap_or(&none);
            if lost == 0 {
                assert!(numbers.iter().copied().eq(0..EVENTS), "sibling {sibling}, thread {thread}");
            }
            emitted += EVENTS;
        }
    }
    println!("{name}: {events} received, {lost} lost, {emitted} finished");
    let emitted = emitted..=emitted + in_flight;
    assert!(emitted.contains(&(events + lost)), "{events} + {lost}, {emitted:?} finished");
    if is_ample {
        assert_eq!(lost, 0);
    }
    (recording, emitted)
}

/// A flight recorder's contents are whole although processes died while they wrote to it.
#[test]
fn a_flight_recorder_survives_its_programs() {
    for (rseq, context) in [(true, "ids"), (false, "ids"), (true, "none"), (false, "none")] {
        let seed = seed(&format!("kill, overwrite, rseq {rseq}, context {context}"));
        let record = Record::new().budget("256K").mode("overwrite").rseq(rseq).context(context);
        let place = record.place().to_str().expect("a path of text").to_owned();
        let command = [TRACED, "kill", &place, &seed.to_string(), &ROUNDS.to_string(), &EVENTS.to_string()];
        let recording = record.run(&command).succeeded();
        let (trace, events, _) = check(&recording);
        let steps = trace.steps();
        assert_eq!(steps.values().map(Vec::len).sum::<usize>(), events as usize);
        for (round, victim) in recording.numbers("victim").into_iter().enumerate() {
            for thread in 0..2 {
                let last = steps.get(&(victim as u32, thread)).and_then(|numbers| numbers.last());
                assert!(last.is_none_or(|last| *last <= finished(recording.place(), round, thread)));
            }
        }
    }
}

#[test]
fn ample_budget_under_rseq() {
    kill(AMPLE, true, "ids");
}

#[test]
fn ample_budget_without_rseq() {
    kill(AMPLE, false, "ids");
}

#[test]
fn tiny_budget_under_rseq() {
    kill(TINY, true, "ids");
}

#[test]
fn tiny_budget_without_rseq() {
    kill(TINY, false, "ids");
}

#[test]
fn compact_records() {
    for (budget, rseq) in [(AMPLE, true), (AMPLE, false), (TINY, true), (TINY, false)] {
        kill(budget, rseq, "none");
    }
}

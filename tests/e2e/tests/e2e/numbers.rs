//! Received and lost events together are exactly those that were emitted.

use std::collections::BTreeMap;

use dormouse_e2e::check::check;
use dormouse_e2e::run::Record;
use dormouse_e2e::trace::Steps;

use crate::{AMPLE, TINY, TRACED};

pub(crate) const THREADS: u64 = 4;
pub(crate) const EVENTS: u64 = 40_000;

pub(crate) fn received(steps: &Steps) -> u64 {
    steps.values().map(|numbers| numbers.len() as u64).sum()
}

/// Returns the counts of the summary for the classes that lost events, by name.
fn lost_by_class(summary: &str) -> BTreeMap<String, u64> {
    let classes = summary.split_once("; lost: ").map_or("", |(_, rest)| rest.split(';').next().unwrap_or_default());
    let losses = classes.trim().split(", ").filter_map(|loss| loss.rsplit_once(' '));
    losses.map(|(name, count)| (name.to_string(), count.parse().expect("a number"))).collect()
}

fn record(budget: &str, mode: &str, rseq: bool) -> (Steps, u64) {
    record_with("ids", budget, mode, rseq)
}

/// Records with or without context, and checks everything that all recordings have in common.
pub(crate) fn record_with(context: &str, budget: &str, mode: &str, rseq: bool) -> (Steps, u64) {
    let record = Record::new().context(context).budget(budget).mode(mode).rseq(rseq);
    let recording = record.run(&[TRACED, "numbers", &THREADS.to_string(), &EVENTS.to_string()]).succeeded();
    assert_eq!(recording.numbers("emitted"), [THREADS * EVENTS]);
    assert_eq!(recording.summary().processes, 1);
    let (trace, events, lost) = check(&recording);
    let steps = trace.steps();
    assert_eq!(received(&steps), events);
    println!("{context} {budget} {mode} rseq={rseq}: {events} received, {lost} lost");
    // No process was killed, so each lost event is also counted by its class. In discard mode no other is missing.
    let lost_by_class = lost_by_class(&recording.stderr);
    assert_eq!(lost_by_class.values().sum::<u64>(), lost, "{}", recording.stderr);
    if mode == "discard" {
        let is_filled = |number: &&u64| **number % 4 == 3;
        let received_filled =
            steps.values().map(|numbers| numbers.iter().filter(is_filled).count() as u64).sum::<u64>();
        let lost_filled = lost_by_class.get("e2e:filled").copied().unwrap_or(0);
        assert_eq!(received_filled + lost_filled, THREADS * EVENTS / 4, "{}", recording.stderr);
    }
    (steps, lost)
}

#[test]
fn an_ample_budget_loses_nothing() {
    for mode in ["discard", "overwrite"] {
        for rseq in [true, false] {
            let (steps, lost) = record(AMPLE, mode, rseq);
            assert_eq!(lost, 0, "{mode}, rseq {rseq}");
            assert_eq!(steps.len() as u64, THREADS);
            assert!(steps.values().all(|numbers| numbers.iter().copied().eq(0..EVENTS)), "{mode}, rseq {rseq}");
        }
    }
}

#[test]
fn a_tiny_budget_counts_what_it_drops() {
    for rseq in [true, false] {
        let (steps, lost) = record(TINY, "discard", rseq);
        assert_eq!(received(&steps) + lost, THREADS * EVENTS, "rseq {rseq}");
    }
}

#[test]
fn a_tiny_flight_recorder_keeps_the_end() {
    for rseq in [true, false] {
        let (steps, lost) = record(TINY, "overwrite", rseq);
        let received = received(&steps);
        assert!(received > 0 && received + lost <= THREADS * EVENTS, "rseq {rseq}: {received}, {lost}");
        // The last writer has written to a page that was not overwritten since.
        let ends = steps.values().filter(|numbers| numbers.last() == Some(&(EVENTS - 1))).count();
        assert!(ends > 0 || lost > 0, "rseq {rseq}: {received} received, none of them the last");
    }
}

#[test]
fn other_clocks_write_the_same_numbers() {
    for rseq in [true, false] {
        let record = Record::new().budget(AMPLE).rseq(rseq).env("DORMOUSE_CLOCK", "monotonic");
        let recording = record.run(&[TRACED, "numbers", "3", "10000"]).succeeded();
        let (trace, events, lost) = check(&recording);
        assert_eq!((events, lost), (30_000, 0));
        assert_eq!(received(&trace.steps()), events);
    }
}

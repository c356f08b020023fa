//! A process is killed at every instruction of a write and of a page switch, in a session that it shares with two
//! others: they continue, everything that it had finished is there, and the trace is valid. Or it is overtaken there
//! and continues itself: then no page is lost either.

use std::collections::BTreeMap;

use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, Recording};
use dormouse_e2e::seed;
use dormouse_e2e::trace::Trace;
use dormouse_testing::{Lack, skip};

use crate::{AMPLE, POINTS};

/// Distance between the instructions outside of critical sections at which a process dies, unless the environment
/// variable of this name sets another; with 1, all are used, each time that they are reached. Inside sections all are
/// used in any case.
const STRIDE: (&str, usize) = ("DORMOUSE_KILL_STRIDE", 120);

/// How many times as many instructions are used at which a writer is overtaken in the middle of a page switch.
const OVERTAKEN_DENSITY: usize = 10;

/// Number of recordings that share the work if all instructions are used.
const PARTS: usize = 16;

/// The largest budget that has pages of 4 KiB.
const BUDGET: &str = "500K";

/// The event at which victims die, and whether it finds its page full.
const SCENES: [[&str; 2]; 5] =
    [["step", "fits"], ["filled", "fits"], ["step", "full"], ["filled", "full"], ["big", "fits"]];

/// Sums of reached points, by name.
type Reached = BTreeMap<String, u64>;

fn stride() -> usize {
    std::env::var(STRIDE.0).ok().and_then(|text| text.parse().ok()).filter(|stride| *stride > 0).unwrap_or(STRIDE.1)
}

/// Returns the victims, with the numbers of events that they had finished and seen counted as lost.
fn victims(recording: &Recording) -> Vec<(u32, u64, u64)> {
    let victim = |line: &str| {
        let words: Vec<u64> = line.strip_prefix("victim ")?.split(' ').map(|word| word.parse().unwrap()).collect();
        Some((words[0] as u32, words[1], words[2]))
    };
    recording.stdout.lines().filter_map(victim).collect()
}

/// Returns the siblings, with the numbers of events that they had finished.
fn siblings(recording: &Recording) -> Vec<(u32, u64)> {
    let sibling = |line: &str| {
        let (pid, finished) = line.strip_prefix("sibling ")?.split_once(' ')?;
        Some((pid.parse().unwrap(), finished.parse().unwrap()))
    };
    recording.stdout.lines().filter_map(sibling).collect()
}

/// Asserts that everything that was finished is in a trace or counted as lost; each victim may have one event more.
/// `has_room`: the session has room for the events that are too big for the others.
fn check_discard(recording: &Recording, trace: &Trace, has_room: bool) {
    let stats = trace.stats();
    let (events, lost) = (stats.events, stats.events_lost);
    let mut steps = trace.steps();
    let victims = victims(recording);
    let (mut finished_all, mut lost_all, mut missing) = (0, 0, 0);
    for (pid, finished, lost) in &victims {
        let numbers = steps.remove(&(*pid, 0)).unwrap_or_default();
        assert!(numbers.last().is_none_or(|last| last <= finished), "{pid}: {:?} after {finished}", numbers.last());
        finished_all += finished;
        lost_all += lost;
        missing += finished.saturating_sub(numbers.len() as u64);
    }
    for (pid, finished) in siblings(recording) {
        let numbers = steps.remove(&(pid, 0)).unwrap_or_default();
        assert!(numbers.last().is_none_or(|last| *last < finished));
        finished_all += finished;
        missing += finished - numbers.len() as u64;
    }
    assert!(steps.is_empty(), "events of nobody: {:?}", steps.keys());
    let too_big = if has_room { 0 } else { lost_all };
    assert!(missing + too_big <= lost, "{missing} events are missing, {lost} counted");
    let in_flight = victims.len() as u64;
    let expected = finished_all + lost_all..=finished_all + lost_all + in_flight;
    assert!(expected.contains(&(events + lost)), "{events} + {lost}, {expected:?} emitted");
}

/// Asserts that each snapshot is whole, and has the newest events of all processes that wrote since the previous one.
fn check_overwrite(recording: &Recording, trace: &Trace) {
    trace.steps();
    let siblings = siblings(recording);
    let lines = recording.stdout.lines().filter_map(|line| line.strip_prefix("snapshot ")?.split_once('\t'));
    let mut count = 0;
    for (dir, kept) in lines {
        count += 1;
        let trace = Trace::read(dir.as_ref());
        assert!(trace.stats().warnings.is_empty(), "{dir}: {:?}", trace.stats());
        let steps = trace.steps();
        let last = |pid: u32| *steps.get(&(pid, 0)).unwrap_or_else(|| panic!("{dir}: none of {pid}")).last().unwrap();
        for ((pid, _), finished) in siblings.iter().zip(kept.split(' ')) {
            assert_eq!(last(*pid) + 1, finished.parse::<u64>().unwrap(), "{dir}");
        }
        for victim in kept.split(' ').skip(siblings.len()) {
            let (pid, finished) = victim.split_once('=').unwrap();
            let finished: u64 = finished.parse().unwrap();
            let last = last(pid.parse().unwrap());
            assert!(
                (finished - 1..=finished).contains(&last),
                "{dir}: {pid} has finished {finished}, {last} is the last"
            );
        }
        for ((pid, _), numbers) in trace.steps_since(trace.complete_since()) {
            let hole = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
            assert_eq!(hole, None, "{dir}, {pid}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
    assert!(count > 0);
}

/// Sessions of the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sessions {
    /// One, which records all events.
    One,
    /// One with a condition, which is true.
    Condition,
    /// One with a condition, which is true, and tags.
    Tags,
    /// Another one in the other mode around it. Its pages are large, so that victims do not switch them.
    Two,
}

/// Runs all scenes. Returns `None` if processes may not be traced.
fn run(mode: &str, rseq: bool, fate: &str, sessions: Sessions) -> Option<Reached> {
    let mut reached = Reached::new();
    let other = if mode == "discard" { "overwrite" } else { "discard" };
    for [fatal, room] in SCENES {
        // A page that is lost because its writer was overtaken is lost at one of only a few instructions.
        let stride = if fate == "wait" && room == "full" { stride().div_ceil(OVERTAKEN_DENSITY) } else { stride() };
        let parts = PARTS.div_ceil(stride);
        let offset = seed(&format!("points, {mode}, rseq {rseq}, {fate}")) as usize % stride;
        let choice = if stride == 1 { "all" } else { "first" };
        for part in 0..parts {
            let (stride, offset) = ((stride * parts).to_string(), (offset + stride * part).to_string());
            let sections = if part == 0 { "sections" } else { "-" };
            let record = Record::new().budget(BUDGET).mode(mode).rseq(rseq).env("DORMOUSE_LISTEN", "0");
            let record = match sessions {
                Sessions::One => record,
                Sessions::Condition => record.option("-e").option("e2e:* where number >= 0"),
                Sessions::Tags => record.context("tag.request,tag.user").option("-e").option("e2e:* where number >= 0"),
                Sessions::Two => record.within_recording(&["--budget", AMPLE, "--mode", other]),
            };
            let recording = record.run(&[POINTS, fate, fatal, room, choice, &stride, &offset, sections]).succeeded();
            if let Some(reason) = recording.stdout.lines().find_map(|line| line.strip_prefix("cannot: ")) {
                skip(Lack::machine(reason, "run the tests on x86-64 or AArch64, where ptrace(2) is allowed"));
                return None;
            }
            let trace = check(&recording).0;
            match mode {
                "discard" => check_discard(&recording, &trace, false),
                _ => check_overwrite(&recording, &trace),
            }
            if sessions == Sessions::Two {
                let outer = Trace::read(&recording.place().join("outer"));
                outer.check_times();
                if other == "discard" {
                    check_discard(&recording, &outer, true);
                }
            }
            for line in recording.stdout.lines() {
                let Some((name, Ok(count))) = line.rsplit_once(' ').map(|(name, count)| (name, count.parse::<u64>()))
                else {
                    continue;
                };
                if name.chars().all(|c| c.is_ascii_lowercase() || c == ' ') {
                    *reached.entry(format!("{name}, {fatal} {room}")).or_default() += count;
                    *reached.entry(name.into()).or_default() += count;
                }
            }
        }
    }
    for (name, count) in &reached {
        println!("{mode}, rseq {rseq}, {fate}, {sessions:?}: {name}: {count}");
    }
    Some(reached)
}

fn at_least(reached: &Reached, name: &str, count: u64) {
    assert!(reached.get(name).is_some_and(|reached| *reached >= count), "{name}: fewer than {count} of {reached:?}");
}

fn under_rseq(mode: &str, sessions: Sessions) {
    let Some(reached) = run(mode, true, "die", sessions) else { return };
    // The sections of a write, and those of the transactions that switch pages, in which each store is the last one
    // once.
    at_least(&reached, "section addresses, step fits", 30);
    at_least(&reached, "section addresses, filled fits", 30);
    for scene in ["step full", "filled full"] {
        at_least(&reached, &format!("section addresses, {scene}"), 60);
        at_least(&reached, &format!("switch, {scene}"), 10);
        at_least(&reached, &format!("half, {scene}"), 10);
    }
    // Both counters, and a death after each section's abort.
    at_least(&reached, "section addresses, big fits", 8);
    // Behind an abort there are a few hundred instructions: a greater stride than usual leaves fewer of them.
    at_least(&reached, "aborted", (10 * STRIDE.1.min(stride()) / stride()) as u64);
    at_least(&reached, "outside", 5 * 300 / stride() as u64);
}

fn without_rseq(mode: &str) {
    let Some(reached) = run(mode, false, "die", Sessions::One) else { return };
    for scene in ["step full", "filled full"] {
        at_least(&reached, &format!("half, {scene}"), 10);
    }
    at_least(&reached, "outside", 5 * 300 / stride() as u64);
}

/// Only with rseq: without it a thread has its stream for itself, and cannot be overtaken there.
fn overtaken(mode: &str) {
    let Some(reached) = run(mode, true, "wait", Sessions::One) else { return };
    for scene in SCENES.map(|scene| scene.join(" ")) {
        at_least(&reached, &format!("overtaken, {scene}"), 10);
    }
}

#[test]
fn discard_overtaken() {
    overtaken("discard");
}

#[test]
fn overwrite_overtaken() {
    overtaken("overwrite");
}

#[test]
fn discard_under_rseq() {
    under_rseq("discard", Sessions::One);
}

#[test]
fn discard_without_rseq() {
    without_rseq("discard");
}

#[test]
fn overwrite_under_rseq() {
    under_rseq("overwrite", Sessions::One);
}

#[test]
fn discard_with_a_condition() {
    under_rseq("discard", Sessions::Condition);
}

#[test]
fn overwrite_with_a_condition() {
    under_rseq("overwrite", Sessions::Condition);
}

#[test]
fn discard_with_tags() {
    under_rseq("discard", Sessions::Tags);
}

#[test]
fn overwrite_with_tags() {
    under_rseq("overwrite", Sessions::Tags);
}

#[test]
fn discard_within_another_session() {
    under_rseq("discard", Sessions::Two);
}

#[test]
fn overwrite_within_another_session() {
    under_rseq("overwrite", Sessions::Two);
}

#[test]
fn overwrite_without_rseq() {
    without_rseq("overwrite");
}

//! Signal handlers trace while the thread that they interrupt is in the middle of a write.

use std::process::Command;

use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, dormouse};
use rustix::process::Signal;

use crate::{AMPLE, TINY, TRACED};

const THREADS: u64 = 2;
const EVENTS: u64 = 30_000;

fn record(budget: &str, rseq: bool, context: &str) {
    let record = Record::new().budget(budget).rseq(rseq).context(context);
    let recording = record.run(&[TRACED, "signals", &THREADS.to_string(), &EVENTS.to_string()]).succeeded();
    let (trace, events, lost) = check(&recording);
    let handled = recording.numbers("handled")[0];
    println!("{budget} rseq={rseq} context={context}: {handled} signals, {events} received, {lost} lost");
    assert!(handled > 0);
    assert_eq!(events + lost, THREADS * EVENTS + handled);
    let (steps, signals) = (trace.steps(), trace.signals());
    assert_eq!(steps.values().map(Vec::len).sum::<usize>() + signals.len(), events as usize);
    if budget == AMPLE {
        assert_eq!(lost, 0);
        assert!(steps.values().all(|numbers| numbers.iter().copied().eq(0..EVENTS)));
        assert!(signals.iter().copied().eq(0..handled));
    }
}

/// Asserts that a flight recorder's contents are whole, whatever interrupted what.
fn retain(rseq: bool, context: &str) {
    let record = Record::new().budget(TINY).mode("overwrite").rseq(rseq).context(context);
    let recording = record.run(&[TRACED, "signals", &THREADS.to_string(), &EVENTS.to_string()]).succeeded();
    let (trace, events, lost) = check(&recording);
    let handled = recording.numbers("handled")[0];
    assert!(events > 0 && events + lost <= THREADS * EVENTS + handled);
    assert_eq!(trace.steps().values().map(Vec::len).sum::<usize>() + trace.signals().len(), events as usize);
}

#[test]
fn a_flight_recorder_is_interrupted() {
    for (rseq, context) in [(true, "ids"), (false, "ids"), (true, "none"), (false, "none")] {
        retain(rseq, context);
    }
}

#[test]
fn handlers_interrupt_sections() {
    for context in ["ids", "none"] {
        record(AMPLE, true, context);
        record(TINY, true, context);
    }
}

#[test]
fn handlers_interrupt_claimants() {
    for context in ["ids", "none"] {
        record(AMPLE, false, context);
        record(TINY, false, context);
    }
}

/// Models a command under `nohup`.
#[test]
fn ignored_signals_stay_ignored_in_the_command() {
    let place = tempfile::tempdir().unwrap();
    let script = r#"trap '' HUP USR1; exec "$0" record -o "$1" -- grep SigIgn /proc/self/status"#;
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(dormouse()).arg(place.path().join("trace"));
    let output = command.env("XDG_RUNTIME_DIR", place.path()).output().unwrap();
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let ignored = line.split_whitespace().last().and_then(|mask| u64::from_str_radix(mask, 16).ok());
    let bit = |signal: Signal| 1 << (signal.as_raw() - 1);
    let wanted: u64 = bit(Signal::HUP) | bit(Signal::USR1);
    assert_eq!(
        ignored.map(|ignored| ignored & (wanted | bit(Signal::PIPE) | bit(Signal::TERM))),
        Some(wanted),
        "{output:?}"
    );
}

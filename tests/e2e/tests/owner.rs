//! A session whose owner is killed and started again: what programs have committed is in its trace once, or is counted as lost.
//!
//! No time is asserted. The moments at which owners are killed are drawn.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dormouse_e2e::run::{PATIENCE, Record, Recording, Running};
use dormouse_e2e::trace::has_joined;
use dormouse_e2e::{Random, seed};
use rustix::process::Signal;

/// The program that forks and starts others while its threads emit.
const CROWD: &str = env!("CARGO_BIN_EXE_e2e-crowd");

/// How many owners are killed in each test: as many as there are seconds, in the exhaustive form.
fn kill_count() -> u64 {
    let name = "DORMOUSE_OWNER_KILLS";
    std::env::var(name).map_or(10, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// How long the test lets each owner live, at most.
fn life() -> Duration {
    if kill_count() > 10 { Duration::from_millis(1990) } else { Duration::from_millis(600) }
}

/// A family that is recorded, whose owner is killed again and again while it emits. Gives how many events it says to have emitted, and how many
/// owners were killed.
fn killed(record: Record, name: &str) -> (Recording, u64, u64) {
    let mut random = Random(seed(name));
    let end = record.place().join("end");
    let end_text = end.to_str().expect("a path of text").to_owned();
    let mut running = record.patience(PATIENCE).start(&[CROWD, "family", &end_text, "2"]);
    running.wait_for("ready");
    let mut kills = 0;
    while kills < kill_count() {
        // A moment of the owner's life, from its first instructions on.
        std::thread::sleep(Duration::from_micros(random.below(life().as_micros() as u64)));
        kills += u64::from(running.kill_owner_alone(Signal::KILL));
    }
    std::fs::write(&end, "").expect("a file");
    let recording = running.wait().succeeded();
    let emitted = recording.numbers("events ")[0];
    (recording, emitted, kills)
}

fn assert_restarts_are_told(recording: &Recording, kills: u64) {
    let times = if kills == 1 { "time" } else { "times" };
    let told = format!("its owner was started again {kills} {times}");
    // One that was killed before it had taken the session up is not counted by the session.
    let count: u64 = recording
        .stderr
        .split_once("its owner was started again ")
        .map_or(0, |(_, rest)| rest.split(' ').next().and_then(|number| number.parse().ok()).expect("a number"));
    assert!(count > 0 && count <= kills, "{told}: {}", recording.stderr);
}

/// In discard mode every event is in the trace once, or counted.
fn all_or_counted(record: Record, name: &str) {
    let (recording, emitted, kills) = killed(record, name);
    assert_restarts_are_told(&recording, kills);
    let trace = recording.trace();
    // Each at most once, and whole.
    let recorded: u64 = trace.steps().values().map(|numbers| numbers.len() as u64).sum();
    let (stats, summary) = (trace.stats(), recording.summary());
    println!("{name}: {kills} owners killed, {emitted} events emitted, {recorded} recorded, {} lost", summary.lost);
    assert_eq!(recorded + summary.lost, emitted, "{}", recording.stderr);
    assert_eq!((summary.events, stats.events_lost), (recorded, summary.lost), "{}", recording.stderr);
    assert!(!recording.stderr.contains("at least"), "{}", recording.stderr);
    assert!(stats.warnings.is_empty() && stats.loss_possible.is_empty(), "{:?}", stats.warnings);
    // Each process once, by its number and id.
    let mut processes: BTreeMap<u32, u32> = BTreeMap::new();
    trace.processes().iter().for_each(|process| *processes.entry(process.vpid).or_default() += 1);
    assert_eq!(trace.processes().len() as u64, summary.processes);
}

#[test]
fn an_owner_that_is_killed_again_and_again_loses_nothing() {
    all_or_counted(Record::new(), "owners killed, discard");
}

#[test]
fn nor_does_one_with_next_to_no_memory() {
    all_or_counted(Record::new().budget("256K"), "owners killed, little memory");
}

#[test]
fn nor_does_one_whose_buffers_are_a_file() {
    let place = tempfile::tempdir_in("/dev/shm").expect("a directory of tmpfs");
    let buffers = place.path().join("buffers");
    all_or_counted(Record::new().option("--buffers").option(&buffers), "owners killed, buffers");
    assert!(!buffers.exists(), "the file of the buffers stays");
}

#[test]
fn nor_does_one_without_rseq() {
    all_or_counted(Record::new().rseq(false), "owners killed, atomics");
}

/// A flight recorder keeps what its memory holds: of each thread that it has anything of, everything since then.
#[test]
fn a_flight_recorder_keeps_all_that_it_retains() {
    let (recording, emitted, kills) = killed(Record::new().mode("overwrite"), "owners killed, overwrite");
    assert_restarts_are_told(&recording, kills);
    let trace = recording.trace();
    let since = trace.complete_since();
    let mut recorded = 0;
    for ((process, thread), numbers) in trace.steps_since(since) {
        let hole = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
        assert_eq!(hole, None, "process {process}, thread {thread}");
        recorded += numbers.len() as u64;
    }
    println!("{kills} owners killed, {emitted} events emitted, {recorded} retained");
    assert!(recorded > 0 && recorded <= emitted && recording.summary().lost == 0, "{}", recording.stderr);
}

/// A session whose program waits, and has been taken in.
fn waiting() -> Running {
    let mut running = Record::new().start(&["sh", "-c", &format!("{CROWD} one; echo over; read line")]);
    let dir = running.dir().to_owned();
    running.wait_until("the program's joining", || has_joined(&dir, "e2e-crowd"));
    running
}

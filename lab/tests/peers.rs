//! Every peer that is built answers, runs each of its cases, and has its events counted correctly.
//!
//! Peers are looked for in `DORMOUSE_LAB_PEERS` only, which `cargo xtask ci peers` sets, so that the test does not
//! depend on what else has been built.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;

use dormouse_lab::RunOptions;
use dormouse_lab::engine::Engine;
use dormouse_lab::engines::{DIRECTORY, PEERS, Peer, Start};
use dormouse_lab_harness::{Run, Walk};
use dormouse_testing::{Lack, skip, skip_part, write_script};

/// Number of iterations, small enough for a peer's ring to keep all events.
const ITERATIONS: u64 = 1000;

/// Prefixes of cases without events.
const SILENT: [&str; 4] = ["empty", "dormant", "rejected", "branch"];

/// Drives a peer's engine through each of its cases. Panics if it does not answer correctly, or if an event is not
/// accounted for.
fn check(peer: &Peer, name: &str, (command, count): Start) {
    let options = RunOptions { cpus: vec![0], ..RunOptions::new(true) };
    let mut engine = Engine::start(command, &options).unwrap();
    let description = engine.description().clone();
    assert_eq!(description.name, peer.name);
    assert!(!description.version.is_empty() && description.version != "?", "{name}: {description:?}");
    // The empty loop is subtracted from others; nothing is subtracted where threads wait for one another.
    let has_empty = description.cases.iter().any(|case| case.starts_with("empty"));
    assert!(has_empty || peer.experiment == "vring", "{name}: {description:?}");
    let mut emitted = 0;
    for case in &description.cases {
        // The case runs as a whole, and iteration by iteration. A key that is toggled may take a tenth of a second each
        // time.
        let is_toggled = case.starts_with("toggle");
        let iterations = if is_toggled { [5, 5] } else { [ITERATIONS, 100] };
        for (walk, iterations) in [Walk::None, Walk::Linear { bytes: 4096 }].into_iter().zip(iterations) {
            let run = Run { case: case.clone(), iterations, threads: 1, walk, beside: None };
            let timing = engine.run(run).unwrap();
            let has_events = !SILENT.iter().any(|start| case.starts_with(start));
            assert_eq!(timing.events > 0, has_events, "{name}: {case}: {timing:?}");
            // Two sessions record the events of this case.
            let is_recorded_twice = case.ends_with("_both") && peer.has_second_session();
            emitted += timing.events * if is_recorded_twice { 2 } else { 1 };
        }
    }
    let verification = count(engine).unwrap();
    println!("{}", verification.note(name));
    assert!(verification.holds() && verification.emitted == emitted, "{verification:?}");
    // This few events are all there, whatever the mode.
    assert_eq!(verification.arrived.unwrap_or(0), emitted, "{verification:?}");
}

#[test]
fn every_event_of_every_case_arrives() {
    let remedy = "`cargo xtask ci peers`";
    let Some(dir) = std::env::var_os(DIRECTORY).map(PathBuf::from) else {
        return skip(Lack::machine(format!("{DIRECTORY} is not set"), remedy));
    };
    let (mut missing, mut arrived_count) = (Vec::new(), 0);
    for peer in PEERS {
        for mode in peer.modes() {
            let name = format!("{} ({mode:?})", peer.name);
            let scratch = tempfile::tempdir().unwrap();
            match peer.start(*mode, &dir, scratch.path()) {
                Ok(start) => check(&peer, &name, start),
                Err(why) => {
                    missing.push((name, why));
                    continue;
                }
            }
            arrived_count += 1;
        }
    }
    if arrived_count == 0 {
        return skip(Lack::machine("no peer is built", remedy));
    }
    for (name, why) in missing {
        skip_part(name, Lack::machine(why, remedy));
    }
}

/// An engine that counts the events that it emits, and reports that all except `LOST` of them have arrived.
const STAND_IN: &str = r#"#!/bin/sh
sum=0
while read -r line; do
    case $line in
    *describe*)
        echo '{"description":{"name":"tracing","version":"1","cases":["empty","armed"],"processors":[0],"policy":"other",'\
            '"tsc_cycles_per_ns":null,"counters_refused":[]}}' ;;
    *'"run"'*)
        count=${line#*'"iterations":'}
        count=${count%%[,\}]*}
        case $line in *'"empty"'*) events=0 ;; *) events=$count ;; esac
        sum=$((sum + events))
        echo '{"timing":{"ns":1.0,"iterations":'$count',"events":'$events',"counters":[]}}' ;;
    *arrived*)
        echo '{"arrived":{"events":'$((sum - LOST))',"why":null}}' ;;
    esac
done
"#;

/// Checks the check itself, even if no peer is built.
#[test]
fn an_event_that_does_not_arrive_is_found() {
    for (lost, is_fine) in [(0, true), (1, false), (-1, false)] {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("tracing");
        write_script(&program, &STAND_IN.replace("LOST", &format!("({lost})")));
        let peer = PEERS.into_iter().find(|peer| peer.name == "tracing").unwrap();
        let start = peer.start(peer.modes()[0], dir.path(), dir.path()).unwrap();
        let checked = std::panic::catch_unwind(AssertUnwindSafe(|| check(&peer, "stand-in", start)));
        assert_eq!(checked.is_ok(), is_fine, "{lost} lost");
    }
}

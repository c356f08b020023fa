//! Every peer that is built answers, runs each of its cases, and has its events counted rightly.
//!
//! Peers are looked for in `DORMOUSE_LAB_PEERS`, or where `cargo xtask peers` puts them.

use std::io::{BufRead, BufReader, Write};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::Stdio;

use dormouse_lab::peers::{self, Peer, Prepared};
use dormouse_lab_harness::{Answer, Arrived, Request, Run, Walk};
use dormouse_testing::{Lack, skip, skip_part, write_script};

/// Few enough that a peer's ring keeps them all.
const ITERATIONS: u64 = 1000;

/// How the names of cases without events begin.
const SILENT: [&str; 3] = ["empty", "dormant", "branch"];

/// `target/release/peers`, from `target/debug/deps/THIS`.
fn dir() -> PathBuf {
    let target = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.parent()?.parent()?.to_path_buf()));
    let built = target.unwrap_or_default().join("release/peers");
    std::env::var_os(peers::DIRECTORY).map_or(built, PathBuf::from)
}

/// Drives a peer's engine through each of its cases. Panics when it does not answer as it has to, or when an event is not accounted for.
fn check(peer: &Peer, name: &str, prepared: Prepared) {
    let (mut command, prepared) = prepared.into_parts();
    let mut engine = command.args(["--cpus", "0"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = engine.stdin.take().unwrap();
    let mut output = BufReader::new(engine.stdout.take().unwrap()).lines();
    let mut ask = |request: Request| -> Answer {
        writeln!(input, "{}", serde_json::to_string(&request).unwrap()).unwrap();
        let line = output.next().unwrap_or_else(|| panic!("{name} ended")).unwrap();
        serde_json::from_str(&line).unwrap()
    };
    let Answer::Description(description) = ask(Request::Describe) else { panic!("{name} says not who it is") };
    assert_eq!(description.name, peer.name());
    assert!(!description.version.is_empty() && description.version != "?", "{name}: {description:?}");
    // What others are compared with; nothing is subtracted where threads wait for one another.
    let has_empty = description.cases.iter().any(|case| case.starts_with("empty"));
    assert!(has_empty || peer.experiment() == "vring", "{name}: {description:?}");
    let mut emitted = 0;
    for case in &description.cases {
        // As a whole, and iteration by iteration.
        // A key that is switched on and off may take a tenth of a second each time.
        let is_toggled = case.starts_with("toggle");
        let iterations = if is_toggled { [5, 5] } else { [ITERATIONS, 100] };
        for (walk, iterations) in [Walk::None, Walk::Linear { bytes: 4096 }].into_iter().zip(iterations) {
            let run = Run { case: case.clone(), iterations, threads: 1, walk, beside: None };
            let Answer::Timing(timing) = ask(Request::Run(run)) else { panic!("{name} does not run {case}") };
            let has_events = !SILENT.iter().any(|start| case.starts_with(start));
            assert_eq!(timing.events > 0, has_events, "{name}: {case}: {timing:?}");
            emitted += timing.events;
        }
    }
    let arrived = match ask(Request::Arrived) {
        Answer::Arrived(arrived) => arrived,
        _ => Arrived { events: None, why: None },
    };
    let verification = prepared.finish(emitted, &arrived);
    println!("{}", verification.note(name));
    assert!(verification.holds(), "{verification:?}");
    // So few are all there, whatever the mode.
    assert_eq!(verification.arrived.unwrap_or(0), emitted, "{verification:?}");
    drop(input);
    assert!(engine.wait().unwrap().success(), "{name}");
}

#[test]
fn every_event_of_every_case_arrives() {
    let dir = dir();
    let (mut missing, mut arrived_count) = (Vec::new(), 0);
    for peer in peers::all_in(&dir) {
        for mode in peer.modes() {
            let name = format!("{} ({mode:?})", peer.name());
            let scratch = tempfile::tempdir().unwrap();
            match peer.prepare(*mode, scratch.path()) {
                Ok(prepared) => check(&peer, &name, prepared),
                Err(why) => {
                    missing.push((name, why));
                    continue;
                }
            }
            arrived_count += 1;
        }
    }
    let remedy = "`cargo xtask peers`";
    if arrived_count == 0 {
        return skip(Lack::machine("no peer is built", remedy));
    }
    for (name, why) in missing {
        skip_part(name, Lack::machine(why, remedy));
    }
}

/// An engine that counts what it emits and says that all of it, but for `LOST` events, has arrived.
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

/// Also where no peer is built: what the check of the others is worth.
#[test]
fn an_event_that_does_not_arrive_is_found() {
    for (lost, is_fine) in [(0, true), (1, false), (-1, false)] {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("tracing");
        write_script(&program, &STAND_IN.replace("LOST", &format!("({lost})")));
        let peers = peers::all_in(dir.path());
        let peer = peers.iter().find(|peer| peer.name() == "tracing").unwrap();
        let prepared = peer.prepare(peer.modes()[0], dir.path()).unwrap();
        let checked = std::panic::catch_unwind(AssertUnwindSafe(|| check(peer, "stand-in", prepared)));
        assert_eq!(checked.is_ok(), is_fine, "{lost} lost");
    }
}

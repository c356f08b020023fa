//! Two hosts whose clocks are aligned by the messages between them. Both are recorded on this machine. Then one trace
//! is changed as if its host had another clock; the computed correction is compared with the real times.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Output};

use dormouse_e2e::run::{Record, dormouse};
use serde_json::Value as Json;

const COUNT: u64 = 2_000;

fn run(arguments: &[&str]) -> Output {
    Command::new(dormouse()).args(arguments).output().expect("dormouse runs")
}

fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the times of a trace's messages, with their classes and numbers.
fn times(trace: &str, options: &[&str]) -> Vec<(String, u64, i64)> {
    let text = printed(&[&["view", trace, "-e", "msg:*", "--format", "json"], options].concat());
    let of = |line: &str| {
        let event: Json = serde_json::from_str(line).expect("JSON");
        let name = event["event"].as_str().expect("a name").to_string();
        (name, event["fields"]["id"].as_u64().expect("an id"), event["time_ns"].as_i64().expect("a time"))
    };
    text.lines().map(of).collect()
}

/// Changes the number after a name in metadata.
fn change(metadata: &str, name: &str, by: impl Fn(i64) -> i64) -> String {
    let (before, rest) = metadata.split_once(&format!("{name} = ")).expect("the clock has it");
    let (number, behind) = rest.split_once(';').expect("it ends");
    format!("{before}{name} = {};{behind}", by(number.parse().expect("a number")))
}

#[test]
fn the_error_of_a_recorded_clock_is_within_the_reported_bound() {
    let place = tempfile::tempdir().expect("a directory");
    let path = |name: &str| place.path().join(name).to_str().expect("text").to_string();
    let socket = path("socket");
    let program = env!("CARGO_BIN_EXE_e2e-messages");
    let answer = Record::new().start(&[program, &socket, "answer"]);
    let asked = Record::new().run(&[program, &socket, "ask", &COUNT.to_string()]).succeeded();
    let answered = answer.wait().succeeded();
    let [asking, answering] = [&asked, &answered].map(|recording| recording.dir.to_str().expect("text"));
    let truth = times(answering, &[]);
    assert_eq!(truth.len() as u64, 2 * COUNT);

    let file = Path::new(answering).join("metadata");
    let metadata = std::fs::read_to_string(&file).expect("metadata");
    let corrections = path("clocks.json");
    for (later_s, drift_ppm) in [(0, 0), (3, 50), (-86_400, -120), (100_000_000, 0)] {
        let changed = change(&metadata, "offset_s", |seconds| seconds + later_s);
        let changed = change(&changed, "freq", |hz| hz + hz * drift_ppm / 1_000_000);
        std::fs::write(&file, changed).expect("metadata");
        let found = printed(&[
            "clocks",
            asking,
            answering,
            "--messages",
            "msg:sent..msg:received",
            "--key",
            "id",
            "--json",
            "-o",
            &corrections,
        ]);
        let found: Json = serde_json::from_str(&found).expect("JSON");
        let stored: Json = serde_json::from_slice(&std::fs::read(&corrections).expect("a file")).expect("JSON");
        assert_eq!(found, stored);
        let error_ns = found["clocks"][0]["error_ns"].as_u64().expect("an error");
        let corrected = times(answering, &["--clocks", &corrections]);
        let wrong_ns = corrected.iter().zip(&truth).map(|(found, true_one)| {
            assert_eq!((&found.0, found.1), (&true_one.0, true_one.1));
            found.2.abs_diff(true_one.2)
        });
        let wrong_ns = wrong_ns.max().expect("events");
        assert!(
            wrong_ns <= error_ns,
            "{later_s} s, {drift_ppm} ppm: wrong by {wrong_ns}, told to be {error_ns} at most"
        );
        // No message arrives before it was sent, and the events of both hosts are in one order.
        let latencies = [
            "stats",
            asking,
            answering,
            "--clocks",
            &corrections,
            "--latency",
            "msg:sent..msg:received",
            "--key",
            "id",
            "--json",
        ];
        let latencies: Json = serde_json::from_str(&printed(&latencies)).expect("JSON");
        assert_eq!(latencies["rows"][0]["count"], 2 * COUNT, "{latencies}");
    }
}

//! Anything that a session does not record is reported once, with the program and the reason, and has no other effect.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use dormouse_abi::message::VERSION;
use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, Recording, dormouse};

use crate::failures::SmallDisk;

const UNFIT: &str = env!("CARGO_BIN_EXE_e2e-unfit");

/// Returns the reported refusals, sorted: class, program, reason.
fn refusals(text: &str) -> Vec<(String, String, String)> {
    let refusal = |line: &str| {
        let (class, rest) = line.trim_start_matches("dormouse: ").strip_prefix("not recorded: ")?.split_once(" of ")?;
        let (program, reason) = rest.split_once(": ")?;
        Some((class.to_string(), program.to_string(), reason.to_string()))
    };
    let mut refusals: Vec<_> = text.lines().filter_map(refusal).collect();
    refusals.sort();
    refusals
}

fn told(recording: &Recording) -> Vec<(String, String, String)> {
    refusals(&recording.stderr)
}

/// Returns the refusals from `dormouse stats --json`, whose exit code reports refusals too.
fn stated(recording: &Recording) -> Vec<(String, String, String)> {
    let output =
        Command::new(dormouse()).args(["stats", "--json"]).arg(&recording.dir).output().expect("dormouse runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |refusal: &serde_json::Value, name: &str| refusal[name].as_str().expect("text").to_string();
    let refusals = json["classes_refused"].as_array().expect("a list").iter();
    let mut stated: Vec<_> =
        refusals.map(|refusal| (text(refusal, "name"), text(refusal, "program"), text(refusal, "reason"))).collect();
    stated.sort();
    stated
}

#[test]
fn classes_that_no_trace_can_hold_are_named_once() {
    // Two processes of one program.
    let record = Record::new().option("-e").option("unfit:*");
    let recording = record.run(&["sh", "-c", &format!("{UNFIT} by-library; {UNFIT} by-library; exit 3")]);
    assert_eq!(recording.code(), 3, "the command's own: {}", recording.stderr);
    let rule = "write ASCII letters, digits and `_`, no digit first, at most 255 bytes";
    let name = |name: &str| format!("`{name}` is no name that a trace can hold: {rule}");
    let long = "n".repeat(256);
    let mut expected = [
        ("größe:provider".into(), name("größe")),
        ("unfit:größe".into(), name("größe")),
        ("unfit:field".into(), name("a b")),
        ("unfit:many".into(), "it has 33 fields, and a class at most 32".into()),
        (
            "unfit:kind".into(),
            "its field odd is of the unknown type 77; build the program with the headers of its libdormouse".into(),
        ),
        (format!("unfit:{long}"), name(&long)),
        ("unfit:\u{fffd}[2J".into(), name("\u{fffd}[2J")),
        ("unfit:".into(), name("")),
    ]
    .map(|(class, reason): (String, String)| (class, UNFIT.to_string(), reason));
    expected.sort();
    assert_eq!(told(&recording), expected);
    assert_eq!(stated(&recording), expected);

    // The other classes are recorded, and the trace has no problems.
    let (trace, events, lost) = check(&recording);
    assert_eq!((events, lost), (20, 0), "{}", recording.stderr);
    let numbers: Vec<String> = (0..10).map(|number| format!("n=u64 {number}")).collect();
    assert_eq!(trace.values("unfit:fit"), [numbers.clone(), numbers].concat());
    let stats = Command::new(dormouse()).arg("stats").arg(&recording.dir).output().expect("dormouse runs");
    assert_eq!(refusals(&String::from_utf8_lossy(&stats.stdout)), expected);
}

/// If no user watches a session, the user who ends it is told of refusals.
#[test]
fn refusals_are_reported_when_the_last_event_is_disarmed() {
    let place = tempfile::tempdir().expect("a directory");
    let mut program = Command::new(UNFIT);
    program.args(["by-library", "wait"]).env("XDG_RUNTIME_DIR", place.path()).env("DORMOUSE_LISTEN", "thread");
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program runs");
    let mut line = String::new();
    BufReader::new(program.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let dormouse = |arguments: &[&str]| {
        let mut command = Command::new(dormouse());
        let output = command.args(arguments).env("XDG_RUNTIME_DIR", place.path()).output().expect("dormouse runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let (pid, trace) = (program.id().to_string(), place.path().join("trace"));
    let armed = dormouse(&["arm", &pid, "unfit:*", "-o", trace.to_str().expect("a path")]);
    assert!(armed.starts_with("armed 1 event class "), "{armed}");
    let disarmed = dormouse(&["disarm", &pid, "*"]);
    drop(program.stdin.take());
    assert!(program.wait().expect("it ends").success());
    let refusals = refusals(&disarmed);
    assert!(refusals.len() == 8 && refusals.iter().all(|(_, program, _)| program == UNFIT), "{disarmed}");
    assert!(disarmed.ends_with("; refused event classes are named above\n"), "{disarmed}");
}

#[test]
fn classes_beyond_the_maximum_are_named() {
    let recording = Record::new().run(&[UNFIT, "crowd"]).succeeded();
    let reason = "a trace has at most 65520 classes; record fewer programs at once";
    let expected = [("(3 classes)".to_string(), "(any program)".to_string(), reason.to_string())];
    assert_eq!(told(&recording), expected);
    assert_eq!(stated(&recording), expected);
}

/// If it were armed, its events would be lost silently.
#[test]
fn a_class_beyond_the_maximum_is_not_armed() {
    let record = Record::new().env(dormouse_abi::environment::ENV_LISTEN, "thread");
    let script = format!("{UNFIT} crowd; mkfifo $0; exec {UNFIT} by-library wait < $0");
    let fifo = record.place().join("fifo");
    let mut running = record.start(&["sh", "-c", &script, fifo.to_str().expect("a path")]);
    running.wait_until("waiting for the pipe", || fifo.exists());
    let end = std::fs::File::options().write(true).open(&fifo).expect("a pipe");
    running.wait_for("ready ");
    let stdout = running.stdout();
    let pid = stdout.trim().strip_prefix("ready ").expect("an id");
    let armed = running.dormouse(&["arm", pid, "unfit:*"]);
    let text = String::from_utf8_lossy(&armed.stderr);
    assert_eq!(armed.status.code(), Some(2), "{text}");
    assert!(text.contains("the session has no room for 1 of the event classes that match"), "{text}");
    drop(end);
    let recording = running.wait().succeeded();
    let reason = "a trace has at most 65520 classes; record fewer programs at once";
    // Three of the crowd, and all of the other program.
    let expected = ("(12 classes)".into(), "(any program)".into(), reason.into());
    assert!(told(&recording).contains(&expected), "{}", recording.stderr);
}

/// Too many for each to be named.
#[test]
fn classes_that_a_full_disk_refuses_are_named() {
    let places = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(&places.path().join("disk"), "size=2M") else { return };
    let recording = Record::new().output(disk.0.join("trace")).run(&[UNFIT, "crowd"]).succeeded();
    let told = told(&recording);
    assert_eq!(told.len(), 1_001, "{}", recording.stderr);
    assert_eq!(told[0], ("(other classes)".into(), "(any program)".into(), "only the first 1000 are named".into()));
    let is_full = |(class, program, reason): &(String, String, String)| {
        class.starts_with("crowd:e")
            && program == UNFIT
            && reason.starts_with("the metadata cannot be written: No space")
    };
    assert!(told[1..].iter().all(is_full), "{}", recording.stderr);
    // There may be no room to state them in the trace; its contents can be read.
    recording.trace().stats();
}

#[test]
fn programs_of_other_versions_are_named() {
    let spoken = |version: u32, remedy: &str| {
        format!("the program speaks version {version} of the protocol, this dormouse {VERSION}: {remedy}")
    };
    let older = spoken(VERSION - 1, "rebuild the program, or use the dormouse that it was built with");
    let newer = spoken(VERSION + 1, "install the dormouse that the program was built with");
    for (way, reason) in [
        ("older", older.as_str()),
        ("newer", &newer),
        ("stranger", "the other side speaks another protocol than Dormouse's"),
        ("nonsense", "malformed message: it ends too early"),
    ] {
        let recording = Record::new().run(&[UNFIT, way]).succeeded();
        let expected = [("(all classes)".to_string(), UNFIT.to_string(), reason.to_string())];
        assert_eq!(told(&recording), expected);
        assert_eq!(stated(&recording), expected);
    }
}

#[test]
fn without_refusals_nothing_is_printed() {
    let recording = Record::new().run(&[crate::TRACED, "numbers", "1", "10"]).succeeded();
    assert_eq!(told(&recording), []);
    assert!(!recording.stderr.contains("refused"), "{}", recording.stderr);
    let output = Command::new(dormouse()).arg("stats").arg(&recording.dir).output().expect("dormouse runs");
    assert!(output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("not recorded"), "{output:?}");
}

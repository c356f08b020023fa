//! Traces of other tracers: this crate prints exactly what `babeltrace2` prints, byte for byte.
//!
//! The traces are made by these tests, by babeltrace2's own writer, and by LTTng. Tests whose program is missing are
//! skipped.

mod ctf2;
mod hostile;
mod made;
mod mutated;
mod quirks;
mod recorded;
mod refused;
mod suite;
mod times;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dormouse_ctf::{Merge, Stats, StreamReader, Trace, TraceRef};
use dormouse_print::{ClockFormat, Formatter};

/// Returns the output of a program. If it is not installed, returns `None`, and the test is skipped.
fn output(command: &mut Command, program: &str) -> Option<std::process::Output> {
    // An emulator of single programs reports a program that it cannot start as one that failed.
    if !dormouse_testing::has(program) {
        return None;
    }
    let output = command.stdin(Stdio::null()).output();
    Some(output.unwrap_or_else(|error| panic!("{program}: {error}")))
}

/// Whether babeltrace2, if it is there, is the version that these tests take as their reference; otherwise the calling test
/// is skipped. Version 2.1 refuses other metadata, reads more of damaged traces, and ends with a failed assertion for packets
/// whose times have no clock.
#[track_caller]
fn is_reference() -> bool {
    let version = Command::new("babeltrace2").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let version = String::from_utf8_lossy(&version).lines().next().unwrap_or_default().to_owned();
    let is_reference = !version.contains(" 2.1");
    if !is_reference {
        let reason = format!("the reference of this test is version 2.0; here is {version}");
        dormouse_testing::skip(dormouse_testing::Lack::machine(reason, "run it on Debian 12"));
    }
    is_reference
}

/// Returns the output of `babeltrace2` for the traces in a directory.
fn babeltrace2(directory: &Path) -> Option<Vec<u8>> {
    let mut command = Command::new("babeltrace2");
    let output = output(command.arg(directory).env("TZ", "UTC").env("LC_ALL", "C.UTF-8"), "babeltrace2")?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

/// Returns the directories with metadata at or below this one, sorted.
fn traces_below(directory: &Path) -> Vec<PathBuf> {
    if directory.join("metadata").is_file() {
        return vec![directory.into()];
    }
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut below: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    below.sort();
    below.iter().flat_map(|path| traces_below(path)).collect()
}

/// Returns this crate's output for the traces in a directory: events, and notices. Checks that counting finds as many
/// events.
fn view(directory: &Path) -> (Vec<u8>, Vec<String>) {
    let mut traces = Vec::new();
    for path in traces_below(directory) {
        let trace =
            Trace::decode(&std::fs::read(path.join("metadata")).unwrap()).unwrap_or_else(|error| panic!("{error}"));
        let entries = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
        let is_stream = |path: &PathBuf| path.is_file() && !path.ends_with("metadata");
        let mut files: Vec<_> = entries.filter(is_stream).collect();
        files.sort();
        let streams: Vec<_> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
        traces.push((trace, streams));
    }
    let printed = print(&traces);
    // With metadata in CTF 2, the traces must print the same.
    let translated: Vec<_> = traces.into_iter().map(|(trace, streams)| (in_ctf2(&trace), streams)).collect();
    assert_same(&print(&translated).0, &printed.0);
    printed
}

/// Returns the trace with its metadata converted to CTF 2.
fn in_ctf2(trace: &Trace) -> Trace {
    let text = trace.in_ctf2().unwrap_or_else(|why| panic!("{why}"));
    Trace::decode(text.as_bytes()).unwrap()
}

/// Returns this crate's output for traces with their streams: events, and notices. Checks that counting finds as many
/// events.
fn print(traces: &[(Trace, Vec<Vec<u8>>)]) -> (Vec<u8>, Vec<String>) {
    let all = || {
        traces
            .iter()
            .enumerate()
            .flat_map(|(index, (trace, streams))| streams.iter().map(move |bytes| (index, trace, bytes)))
    };
    let mut formatter = Formatter::new(ClockFormat::TimeOfDay, |_| 0);
    let (mut out, mut notices) = (Vec::new(), Vec::new());
    let readers = all().enumerate().map(|(index, (_, trace, bytes))| StreamReader::new(trace, index, bytes));
    for item in Merge::new(readers) {
        match item {
            Ok(event) => formatter.event(&event, &mut out),
            Err(notice) => notices.push(notice.to_string()),
        }
    }
    let refs: Vec<TraceRef<'_>> = traces.iter().map(|(trace, _)| trace.into()).collect();
    let stats = Stats::of_traces(&refs, all().map(|(index, _, bytes)| (index, "stream", bytes.as_slice())));
    assert_eq!(stats.events, out.iter().filter(|byte| **byte == b'\n').count() as u64);
    (out, notices)
}

/// Compares both readers, and returns this crate's notices.
fn agree(directory: &Path) -> Option<Vec<String>> {
    let theirs = babeltrace2(directory)?;
    let (ours, notices) = view(directory);
    assert_same(&ours, &theirs);
    assert!(!theirs.is_empty());
    Some(notices)
}

/// Checks that two texts are the same, and shows the first difference.
fn assert_same(ours: &[u8], theirs: &[u8]) {
    let lines = |text: &[u8]| String::from_utf8_lossy(text).lines().map(str::to_string).collect::<Vec<_>>();
    for (ours, theirs) in lines(ours).into_iter().zip(lines(theirs)) {
        let same = ours.bytes().zip(theirs.bytes()).take_while(|(a, b)| a == b).count().saturating_sub(60);
        let part = |line: &str| String::from_utf8_lossy(&line.as_bytes()[same.min(line.len())..]).into_owned();
        assert!(ours == theirs, "ours:\n{}\ntheirs:\n{}", part(&ours), part(&theirs));
    }
    assert!(ours == theirs, "one text is longer, or they differ in bytes that are no UTF-8");
}

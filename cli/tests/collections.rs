//! Compares public traces of other tracers, if a directory with them exists. `tests/TRACES.md` describes each trace and
//! the expected result.
//!
//! `DORMOUSE_COLLECTIONS=DIR cargo test -p dormouse-cli --test collections` compares `dormouse view` with babeltrace2 for each trace in DIR.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dormouse_testing::{Lack, has, skip};

const MANIFEST: &str = include_str!("../../tests/TRACES.md");

/// Expected result for a trace.
#[derive(Debug, PartialEq)]
struct Row<'a> {
    hash: &'a str,
    /// Number of events that `dormouse view` prints.
    events: usize,
    expected: &'a str,
    why: &'a str,
}

/// Returns the rows of all tables, by path of the trace.
fn rows() -> BTreeMap<&'static str, Row<'static>> {
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>();
    let row = |line: &'static str| match cells(line)[..] {
        [place, hash, events, expected, why] if hash.len() == 16 => {
            let events = events.parse().unwrap_or_else(|_| panic!("{line}: no number of events"));
            Some((place, Row { hash, events, expected, why }))
        }
        _ => None,
    };
    MANIFEST.lines().filter(|line| line.starts_with('|')).filter_map(row).collect()
}

#[test]
fn the_manifest_gives_a_reason_for_every_difference() {
    let is_row =
        |line: &&str| line.starts_with("| ") && line.split('|').nth(1).is_some_and(|place| place.contains('/'));
    let (rows, lines) = (rows(), MANIFEST.lines().filter(is_row).count());
    assert_eq!(rows.len(), lines, "a trace is there twice, or a row has another form");
    for (place, row) in rows {
        let expected = ["same", "said", "part", "refused", "strict", "alone"];
        assert!(expected.contains(&row.expected), "{place}: {row:?}");
        assert!(row.expected == "same" || !row.why.is_empty(), "{place}: {row:?}");
        assert!(row.hash.bytes().all(|digit| digit.is_ascii_hexdigit()), "{place}: {row:?}");
    }
}

/// Adds the directories with metadata to `found`, by path below the first `dir`.
fn traces(dir: &Path, place: &str, found: &mut BTreeMap<String, PathBuf>) {
    if dir.join("metadata").is_file() {
        found.insert(place.to_string(), dir.to_path_buf());
        return;
    }
    for entry in std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry")) {
        if entry.path().is_dir() {
            let name = entry.file_name().into_string().expect("text");
            let below = if place.is_empty() { name } else { format!("{place}/{name}") };
            traces(&entry.path(), &below, found);
        }
    }
}

/// Returns the first 16 digits of the hash of the hashes of all files, in order of their names.
fn hash(dir: &Path) -> String {
    let mut shell = Command::new("sh");
    shell.args(["-c", "find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum"]).current_dir(dir);
    String::from_utf8(shell.output().expect("a shell").stdout).expect("text")[..16].to_string()
}

fn run(program: &str, arguments: &[&str], trace: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).arg(trace).env("TZ", "UTC").env("LC_ALL", "C.UTF-8");
    command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Returns the result of the comparison, in the words of the manifest.
fn judge(ours: &Output, theirs: &Output) -> &'static str {
    let is_same = ours.stdout == theirs.stdout;
    match (theirs.status.success(), ours.status.code()) {
        (true, Some(0)) if is_same => "same",
        (true, Some(1)) if is_same && !ours.stderr.is_empty() => "said",
        (false, Some(1)) if ours.stdout.starts_with(&theirs.stdout) && !ours.stderr.is_empty() => "part",
        (false, Some(2)) if ours.stdout.is_empty() && theirs.stdout.is_empty() && has_place(ours) => "refused",
        (true, Some(2)) if ours.stdout.is_empty() && has_place(ours) => "strict",
        (false, Some(0)) if theirs.status.signal().is_some() => "alone",
        _ => "another",
    }
}

/// Whether a message names the location of an error: a line, or the byte of a packet.
fn has_place(output: &Output) -> bool {
    let said = String::from_utf8_lossy(&output.stderr);
    ["line ", "byte "].iter().any(|place| said.contains(place))
}

/// Returns the trace that babeltrace2 reads: for a trace in CTF 2, which babeltrace2 2.0 does not read, its copy in
/// CTF 1.8.
fn of_babeltrace2(dir: &Path, place: &str, trace: &Path) -> PathBuf {
    let name = place.strip_prefix("ctf2/");
    name.map_or(trace.to_path_buf(), |name| dir.join("babeltrace2/succeed").join(name))
}

#[test]
fn public_traces_are_read_as_babeltrace2_reads_them() {
    let Some(dir) = std::env::var_os("DORMOUSE_COLLECTIONS").map(PathBuf::from).filter(|dir| dir.is_dir()) else {
        let what = "DORMOUSE_COLLECTIONS names no directory with public traces";
        return skip(Lack::machine(what, "tests/TRACES.md says how one is made"));
    };
    if !has("babeltrace2") {
        return;
    }
    let (rows, mut found, mut wrong) = (rows(), BTreeMap::new(), Vec::new());
    traces(&dir, "", &mut found);
    assert!(!found.is_empty(), "there is no trace in {}", dir.display());
    for (place, trace) in &found {
        let ours = run(env!("CARGO_BIN_EXE_dormouse"), &["view"], trace);
        let judged = judge(&ours, &run("babeltrace2", &[], &of_babeltrace2(&dir, place, trace)));
        let (hash, events) = (hash(trace), ours.stdout.iter().filter(|byte| **byte == b'\n').count());
        let row = rows.get(place.as_str());
        if row.is_none_or(|row| (row.hash, row.events, row.expected) != (&hash, events, judged)) {
            let why = row.map_or("", |row| row.why);
            wrong.push(format!("| {place} | {hash} | {events} | {judged} | {why} |"));
        }
        if judged == "same" {
            let again = written_again(trace);
            if again.is_some_and(|(ours, theirs)| !["same", "said"].contains(&judge(&ours, &theirs))) {
                wrong.push(format!("{place}, as babeltrace2 writes it again, is read otherwise"));
            }
        }
    }
    let missing = rows.keys().filter(|place| !found.contains_key(**place)).count();
    println!("{} traces compared, {missing} of the manifest are not there", found.len());
    assert!(wrong.is_empty(), "these are not as the manifest says:\n{}", wrong.join("\n"));
}

/// Writes a trace again with babeltrace2, and returns the outputs of both readers, if that succeeds.
fn written_again(trace: &Path) -> Option<(Output, Output)> {
    let to = tempfile::tempdir().expect("a directory");
    let to = to.path().join("trace");
    let params = format!("--params=path=\"{}\",assume-single-trace=true,quiet=true", to.display());
    let written = run("babeltrace2", &["convert", "--component=s:sink.ctf.fs", &params], trace);
    let is_written = written.status.success() && to.join("metadata").is_file();
    is_written.then(|| (run(env!("CARGO_BIN_EXE_dormouse"), &["view"], &to), run("babeltrace2", &[], &to)))
}

//! `dormouse lab run`: what it writes, which neighbours it names, and what it refuses before it measures.
//!
//! One run of `event`, beside a neighbour that is busy on purpose, serves for all checks of a run. The neighbour
//! affects the figures, but not which figures there are and how events were counted. One run of `imv` has tables and
//! counts of its own.

use std::collections::HashSet;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use dormouse_lab::statistics::quantile;
use dormouse_lab::{Experiment, Report, RunOptions};
use dormouse_testing::{Lack, skip};
use serde_json::Value;

use crate::common::{LAB, lab, refuse, succeed};

/// Name of the process, as the kernel derives it from the executed file.
const NOISY: &str = "noisy-tester";

/// A program that is busy doing nothing. It is not a descendant of the lab. It ends when this value is dropped or, at
/// the latest, with this process.
struct Neighbour(Child);

impl Neighbour {
    fn start(dir: &Path) -> Neighbour {
        let program = dir.join(NOISY);
        symlink("/bin/sh", &program).expect("a link in a directory of ours");
        let mut command = Command::new(program);
        command.args(["-c", "while kill -0 $PPID; do :; done"]).stderr(Stdio::null());
        Neighbour(command.spawn().expect("a shell runs"))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_run_has_its_figures_and_names_its_noisy_neighbour() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (json, html) = (dir.path().join("result.json"), dir.path().join("result.html"));
    let neighbour = Neighbour::start(dir.path());
    let mut command = lab();
    command
        .args(["run", "event", "--quick", "--rounds", "2", "--no-peers", "--json"])
        .arg(&json)
        .arg("--html")
        .arg(&html);
    let output = succeed(&mut command);
    let pid = neighbour.0.id();
    drop(neighbour);

    let text = std::fs::read_to_string(&json).expect("the figures are written");
    let written: Value = serde_json::from_str(&text).expect("they are JSON");
    let report: Report = serde_json::from_value(written.clone()).expect("and a result");
    assert_members(&written);
    let [experiment] = report.experiments.as_slice() else { panic!("one experiment: {text}") };
    assert_figures(experiment);
    assert_cases(experiment, &report);
    assert_counts(&experiment.notes);

    let found = report.host.neighbours.iter().find(|neighbour| neighbour.pid == pid);
    assert_eq!(found.map(|neighbour| neighbour.command.as_str()), Some(NOISY), "{:?}", report.host.neighbours);
    let stdout = String::from_utf8_lossy(&output.stdout);
    // Long lines are wrapped.
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains(&format!("noisy neighbour: `{NOISY}` (pid {pid})")) && words.contains("stop it"),
        "{stdout}"
    );
    assert!(std::fs::read_to_string(&html).expect("the report is written").contains(NOISY));
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// Checks the members that readers of other versions rely on.
fn assert_members(report: &Value) {
    assert_eq!(keys(report).into_iter().collect::<HashSet<_>>(), HashSet::from(["schema", "host", "experiments"]));
    assert_eq!(report["schema"], 1);
    for member in ["cpu", "caches", "kernel", "facts", "virtualised", "counters"] {
        assert!(!report["host"][member].is_null(), "host.{member}");
    }
    let experiment = &report["experiments"][0];
    assert_eq!(experiment["name"], "event");
    assert_eq!(
        keys(experiment).into_iter().collect::<HashSet<_>>(),
        HashSet::from(["name", "measurements", "ratios", "notes"])
    );
    for (list, members) in [
        ("measurements", ["name", "unit", "n", "median", "mad", "mean", "stddev", "ci95"].as_slice()),
        ("ratios", ["name", "value", "ci95"].as_slice()),
    ] {
        for row in experiment[list].as_array().expect("a list") {
            for member in members {
                // NaN and infinity are written as null, and so is an interval of too few rounds.
                let is_there = |value: &Value| *member == "ci95" || !value.is_null();
                assert!(row.get(member).is_some_and(is_there), "{list}: {member} of {row}");
            }
        }
    }
}

fn assert_unique<'a>(names: impl Iterator<Item = &'a String>) {
    let mut seen = HashSet::new();
    for name in names {
        assert!(seen.insert(name), "{name} is there twice");
    }
}

/// Checks that all figures are plausible.
fn assert_figures(experiment: &Experiment) {
    assert_unique(experiment.measurements.iter().map(|measurement| &measurement.name));
    assert_unique(experiment.ratios.iter().map(|ratio| &ratio.name));
    for measurement in &experiment.measurements {
        let [low, high] = measurement.ci95.unwrap_or([0.0, 1.0].map(|share| quantile(&measurement.samples, share)));
        let all = [measurement.median, measurement.mad, measurement.mean, measurement.stddev, low, high];
        assert!(all.iter().all(|figure| figure.is_finite()), "{measurement:?}");
        assert!(measurement.n > 0 && measurement.n == measurement.samples.len(), "{measurement:?}");
        assert!(low <= measurement.median && measurement.median <= high, "{measurement:?}");
        // By noise, a cost may be zero or negative; a loop's time may not.
        let is_loop = measurement.labels.get("state").is_some_and(|state| state == "empty");
        assert!(!is_loop || low > 0.0, "{measurement:?}");
    }
    for ratio in &experiment.ratios {
        assert!(ratio.value.is_finite() && ratio.ci95.is_none_or(|[low, high]| low <= high), "{ratio:?}");
    }
}

/// Checks that the cases that the documents mention are there, as far as this machine supports them.
fn assert_cases(experiment: &Experiment, report: &Report) {
    let mut cases = vec![
        "dormouse.armed.u64",
        "dormouse.dormant.u64",
        "floor.armed.u64",
        "dormouse.armed.u64.discard",
        "dormouse.armed.u64.1000-sites",
    ];
    if RunOptions::new(true).cpus.len() > 1 {
        cases.push("dormouse.armed.u64.2-threads");
    }
    if report.host.caches_bytes()[1].is_some() {
        cases.push("dormouse.dormant.u64.L2");
    }
    for case in cases {
        assert!(experiment.measurements.iter().any(|measurement| measurement.name == case), "there is no {case}");
    }
    // The noise may be so great that there is no ratio; then a note must say so.
    let has_ratio = experiment.ratios.iter().any(|ratio| ratio.name == "armed_vs_floor");
    let is_explained = || experiment.notes.iter().any(|note| note.starts_with("armed_vs_floor: no ratio"));
    assert!(has_ratio || is_explained(), "{:?}", experiment.ratios);
}

/// Returns the numbers in the note that starts with `start`.
fn numbers(notes: &[String], start: &str) -> Vec<u64> {
    let note = notes.iter().find(|note| note.starts_with(start));
    let note = note.unwrap_or_else(|| panic!("no note begins with `{start}`: {notes:#?}"));
    note.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// Checks that every emitted event is in the trace, or known to be lost.
fn assert_counts(notes: &[String]) {
    let [emitted, kept] = numbers(notes, "dormouse, overwrite: ")[..] else { panic!("two counts: {notes:#?}") };
    assert!(0 < kept && kept <= emitted, "{kept} of {emitted}");
    let [emitted, kept, lost] = numbers(notes, "dormouse, discard: ")[..] else { panic!("three counts: {notes:#?}") };
    assert!(0 < emitted && kept + lost == emitted, "{kept} and {lost} of {emitted}");
}

#[test]
fn imv_has_its_tables_and_its_figures() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (json, html) = (dir.path().join("result.json"), dir.path().join("result.html"));
    let mut command = lab();
    command
        .args(["run", "imv", "--quick", "--rounds", "2", "--no-peers", "--json"])
        .arg(&json)
        .arg("--html")
        .arg(&html);
    // Not on the CPU that `event` is measured on meanwhile.
    let cpus: Vec<String> = RunOptions::new(true).cpus.iter().rev().map(u32::to_string).collect();
    command.args(["--cpu", &cpus.join(",")]);
    let output = succeed(&mut command);
    let text = std::fs::read_to_string(&json).expect("the figures are written");
    let report: Report = serde_json::from_str(&text).expect("they are a result");
    let [experiment] = report.experiments.as_slice() else { panic!("one experiment: {text}") };
    assert_eq!(experiment.name, "imv");
    assert_figures(experiment);
    assert_imv_cases(experiment, &report);

    // Each update was followed by a question to a gate, and every site matches its key.
    let updates = numbers(&experiment.notes, "dormouse: a key enabled and disabled ");
    let [emitted, right, patched, sites, ..] = updates[..] else { panic!("four counts: {:#?}", experiment.notes) };
    assert!(0 < emitted && right == emitted, "{right} of {emitted}");
    let is_patched = experiment.notes.iter().any(|note| note.contains("writer mprotect"));
    assert!(!is_patched || (sites > 1000 && patched == sites), "{patched} of {sites}");

    // In the text, the tables come first.
    let stdout = String::from_utf8_lossy(&output.stdout);
    // A warning, which precedes everything, may name a case.
    let at = |part: &str| stdout.find(part).unwrap_or_else(|| panic!("{part} in {stdout}"));
    for row in ["What the paper says", "The loop: a number modulo", "two static branches", "Bytes that one site takes"]
    {
        assert!(
            at(row)
                < at("
  branch.static-branch "),
            "{row}"
        );
    }
    let html = std::fs::read_to_string(&html).expect("the report is written");
    for part in ["What the paper says", "The loop: a number modulo", "Every round", "Medians against sites"] {
        assert!(html.contains(part), "{part}");
    }
}

/// Checks the cases that the documents mention, and their ratios or the notes on missing ones.
fn assert_imv_cases(experiment: &Experiment, report: &Report) {
    let find = |name: &str| experiment.measurements.iter().find(|measurement| measurement.name == name);
    let has = |name: &str| assert!(find(name).is_some(), "there is no {name}");
    for tool in ["none", "static-branch", "immediate-value", "variable"] {
        has(&format!("loop.{tool}"));
        has(&format!("getppid.{tool}"));
    }
    ["loop.variable-in-memory", "loop.variable-awaited", "getppid.timestamps", "getppid.variables-in-a-line"]
        .into_iter()
        .for_each(has);
    if cfg!(target_arch = "x86_64") {
        // Bytes of code, of data, and lines: a patched value is in its instruction, otherwise it is read from memory.
        let count = |name: &str| find(name).map(|count| count.median).unwrap_or_else(|| panic!("there is no {name}"));
        let is_patched = experiment.notes.iter().any(|note| note.contains("writer mprotect"));
        let read = if is_patched { 0.0 } else { 1.0 };
        for (name, data) in [("static-branch", 0.0), ("immediate-value", read), ("variable", 1.0)] {
            assert!(!is_patched && name == "static-branch" || count(&format!("hot-data.{name}")) == data, "{name}");
            assert!(count(&format!("hot-code.{name}")) >= 5.0, "{name}");
        }
        for (name, bytes) in [("u8", 1.0), ("u64", 8.0)] {
            assert_eq!(count(&format!("hot-data.variable.{name}")), bytes);
            assert_eq!(count(&format!("hot-lines.variable.{name}")), 1.0);
        }
    }
    assert_eq!(find("wrong-answers.static-branch").is_some(), RunOptions::new(true).cpus.len() > 1);
    assert_eq!(find("loop.none").map(|measurement| measurement.n), Some(7));
    assert_eq!(find("getppid.none").map(|measurement| measurement.n), Some(7));
    let mut ratios = vec!["branch_hot_vs_global", "value_hot_vs_global", "update_1000_sites_vs_1"];
    let mut pressures = vec![""];
    if report.host.caches_bytes()[1].is_some() {
        ["getppid.variable.L2", "getppid.variable.linear-L2", "branch.variable.linear-L2.16-sites"]
            .into_iter()
            .for_each(has);
        ratios.extend(["branch_cold_vs_global", "branch_cold_code_vs_global", "value_cold_vs_global"]);
        pressures.push(".L2");
    }
    for pressure in pressures {
        for tool in ["static-branch", "variable"] {
            has(&format!("branch.{tool}{pressure}"));
            has(&format!("branch.{tool}{pressure}.16-sites"));
            has(&format!("call.{tool}{pressure}.1000-sites"));
        }
        for width in ["u8", "u16", "i32", "u64"] {
            has(&format!("value.immediate-value.{width}{pressure}.16-sites"));
            has(&format!("value.variable.{width}{pressure}.16-sites"));
        }
    }
    for tool in ["c-static-branch", "c-armed", "c-variable"] {
        has(&format!("branch.{tool}"));
        has(&format!("branch.{tool}.16-sites"));
    }
    for tool in ["constant", "immediate-value", "variable"] {
        has(&format!("value.{tool}.i32.16-sites"));
        has(&format!("chain.{tool}.i32.16-sites"));
    }
    ratios.extend(["value_hot_vs_constant", "constant_hot_vs_global", "value_chain_vs_global"]);
    ["value.c-immediate-value.i32.16-sites", "value.c-variable.i32.16-sites"].into_iter().for_each(has);
    assert!(experiment.notes.iter().any(|note| note.starts_with("dormouse in C: ")), "{:#?}", experiment.notes);
    if cfg!(target_arch = "x86_64") {
        ["branch.c-jump", "branch.c-jump.16-sites"].into_iter().for_each(has);
        for way in ["mov-5-bytes", "mov-7-bytes", "mov-8-bytes", "mov-8-bytes-aligned", "load"] {
            has(&format!("encoding.{way}.16-sites"));
        }
        ratios.extend(["mov_8_bytes_aligned_vs_5", "mov_5_bytes_vs_load"]);
        ratios.extend(["c_branch_hot_vs_global", "c_armed_vs_jump", "c_armed_1_site_vs_jump", "c_value_hot_vs_global"]);
    }
    for sites in ["", ".100-sites", ".1000-sites"] {
        has(&format!("update.static-branch{sites}"));
        if RunOptions::new(true).cpus.len() > 1 {
            has(&format!("update.static-branch{sites}.busy"));
        }
    }
    if RunOptions::new(true).cpus.len() > 1 {
        for rate in ["idle", "10-a-second", "1000-a-second", "100000-a-second", "1000-patched", "100000-patched"] {
            ["reads", "reads-without", "batch.p50", "batch.p99", "batch.p99.9", "batch.max", "updates"]
                .into_iter()
                .for_each(|state| has(&format!("{state}.{rate}")));
        }
        assert_eq!(find("wrong-answers.immediate-value").map(|count| count.median), Some(0.0));
        ratios.extend(["reads_at_1000_updates_vs_idle", "reads_at_1000_patches_vs_idle"]);
    }
    for ratio in ratios {
        let is_explained = || experiment.notes.iter().any(|note| note.starts_with(&format!("{ratio}: no ratio")));
        assert!(experiment.ratios.iter().any(|found| found.name == ratio) || is_explained(), "{ratio}");
    }
}

/// An updater that says too early that its update has ended is found out by the reader.
#[test]
fn an_old_value_after_an_update_is_found() {
    let [reader, updater, ..] = RunOptions::new(true).cpus[..] else {
        return skip(Lack::machine("one CPU", "two CPUs"));
    };
    let engine = Path::new(LAB).with_file_name("dormouse-lab-engine-imv");
    let violations = |milliseconds: u32, mistake: &[&str]| {
        let mut command = Command::new(&engine);
        let cpus = [reader, updater].map(|cpu| cpu.to_string());
        command.arg("updates").args(cpus).args(["2000", &milliseconds.to_string(), "other"]).args(mistake);
        let figures: Value = serde_json::from_slice(&succeed(&mut command).stdout).expect("JSON");
        assert!(figures["updates"].as_f64() > Some(0.0), "{figures}");
        figures["violations"].as_u64().expect("a number")
    };
    assert_eq!(violations(200, &[]), 0);
    // On a busy machine, the reader may not run during any update of a short time.
    let lengths = std::iter::successors(Some(200), |milliseconds| Some(2 * milliseconds));
    assert!(lengths.take(8).any(|milliseconds| violations(milliseconds, &["early"]) > 0));
}

#[test]
fn an_unknown_experiment_is_refused_before_the_others_run() {
    let error = refuse(lab().args(["run", "event", "evnet"]));
    assert!(error.contains("`evnet`") && error.contains("`dormouse lab list`"), "{error}");
}

#[test]
fn an_absent_cpu_is_refused() {
    let error = refuse(lab().args(["run", "event", "--cpu", "4096"]));
    assert!(error.contains("CPU 4096"), "{error}");
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_anything_runs() {
    let file = "/nonexistent/dir/f";
    for option in ["--json", "--html"] {
        let error = refuse(lab().args(["run", "event", option, file]));
        assert!(error.contains(&format!("cannot write {file}")), "{error}");
    }
}

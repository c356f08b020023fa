//! `dormouse lab run query`: missing programs are named, and available ones are measured.
//!
//! The lab is copied to a directory in which there is nothing except what the test puts there, so that it does not
//! depend on what else has been built.

use std::fs;
use std::path::Path;
use std::process::Command;

use dormouse_lab::{Experiment, Report, Verdict};
use dormouse_testing::{copy_program, has, printed, write_script};

use crate::common::{LAB, succeed};

/// Runs the experiment with the lab in this directory.
fn run(dir: &Path, arguments: &[&str]) -> Experiment {
    let json = dir.join("result.json");
    let mut lab = Command::new(dir.join("dormouse-lab"));
    lab.args(["run", "query", "--quick", "--rounds", "2", "--no-peers", "--json"]).arg(&json).args(arguments);
    // The library need not trace, for its events are not counted: any library that can be preloaded will do.
    lab.env_remove("DORMOUSE_LAB_PROJECT").env("DORMOUSE_LIBC_LIBRARY", dir.join("library.so"));
    succeed(&mut lab);
    let text = fs::read_to_string(&json).expect("the figures are written");
    let report: Report = serde_json::from_str(&text).expect("they are a result");
    let [experiment] = report.experiments.try_into().unwrap_or_else(|_| panic!("one experiment: {text}"));
    experiment
}

/// Returns the names that its notes report as missing.
fn missing(experiment: &Experiment) -> Vec<&str> {
    experiment.notes.iter().filter_map(|note| Some(note.split_once(" not measured: ")?.0)).collect()
}

#[test]
fn missing_programs_are_named() {
    if !has("cc") || !has("make") {
        return;
    }
    let place = tempfile::tempdir().expect("a temporary directory");
    // Programs that are one directory further up are found, too.
    let dir = place.path().join("bin");
    let (project, python) = (dir.join("project"), dir.join("duckdb/bin/python"));
    for path in [&project, python.parent().expect("a directory")] {
        fs::create_dir_all(path).expect("a directory");
    }
    copy_program(LAB.as_ref(), &dir.join("dormouse-lab"));
    write_script(&dir.join("dormouse-lab-engine-timer"), "#!/bin/sh\n\"$@\" > /dev/null && echo '[0.5, 0.5, 1]'\n");
    let answer = |program: &Path| write_script(program, "#!/bin/sh\nprintf 'a,b,c\\n1,2,3\\n'\n");

    let experiment = run(&dir, &[]);
    assert_eq!(missing(&experiment), ["query"], "{:#?}", experiment.notes);
    assert!(experiment.measurements.is_empty(), "without a project nothing is recorded");

    fs::write(project.join("Makefile"), "program: program.c\n\tcc -o $@ $<\n").expect("a Makefile");
    fs::write(project.join("program.c"), "int main(void) { return 0; }\n").expect("a source");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-x", "c", "/dev/null", "-o"]).arg(dir.join("library.so"));
    printed(&mut cc, "cc").expect("a library");
    let start = if cfg!(debug_assertions) { "unoptimised-" } else { "" };
    let alone = [format!("{start}view.wall"), format!("{start}perfetto.wall")];
    let answers = ["counts", "pairs", "files", "wide"].into_iter().flat_map(|question| {
        let tools = [format!("{start}trace"), format!("{start}parquet"), "duckdb".into()];
        tools.map(|tool| format!("{question}.{tool}.wall"))
    });
    let answers: Vec<String> = answers.collect();
    // Programs are added one by one.
    for (program, still_missing, is_alone, is_answered) in [
        (None, &["perfetto", "trace and parquet"][..], false, false),
        (Some(dir.join("dormouse")), &["trace and parquet"], true, false),
        (Some(dir.join("dormouse-query")), &["duckdb"], true, false),
        (Some(python), &[], true, true),
    ] {
        program.iter().for_each(|program| answer(program));
        let experiment = run(&dir, &["--project", project.to_str().expect("a path of text")]);
        assert_eq!(missing(&experiment), still_missing, "{:#?}", experiment.notes);
        let has = |name: &String| experiment.measurements.iter().any(|figure| figure.name == *name);
        assert!(alone.iter().all(|name| has(name) == is_alone), "{program:?}: {:#?}", experiment.measurements);
        assert!(answers.iter().all(|name| has(name) == is_answered), "{program:?}: {:#?}", experiment.measurements);
        let judged = experiment.statements.iter().filter(|judged| judged.verdict != Verdict::NotMeasured);
        assert!(!cfg!(debug_assertions) || judged.count() == 0, "no statement is judged by what is not optimised");
    }
}

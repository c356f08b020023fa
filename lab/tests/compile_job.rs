//! The experiment `compile-job` on a project of two files: it works, and its counts are complete.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dormouse_lab::experiments::{VARIANTS, run_compile_job};
use dormouse_lab::{Host, LabError, Report, RunOptions, SCHEMA};

/// Returns the path of the preload library, built by cargo in the directory of this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile_dir = test.parent().unwrap().parent().unwrap();
    let profile = match profile_dir.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        other => other,
    };
    // Already built by `cargo xtask test`.
    if std::env::var_os("DORMOUSE_BUILT").is_some() {
        return profile_dir.join("libdormouse_libc.so");
    }
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "-p", "dormouse-preload", "--profile", profile]);
    build.arg("--target-dir").arg(profile_dir.parent().unwrap());
    assert!(build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).status().unwrap().success());
    profile_dir.join("libdormouse_libc.so")
}

const MAKEFILE: &str = "all: program\n\nprogram: one.o two.o\n\tcc -o $@ one.o two.o\n\n%.o: %.c\n\tcc -c -o $@ $<\n";

fn project(makefile: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    file("Makefile", makefile);
    file("one.c", "int two(void);\nint main(void) { return two() - 2; }\n");
    file("two.c", "int two(void) { return 2; }\n");
    dir
}

fn options(project: &Path, is_quick: bool) -> RunOptions {
    RunOptions { has_peers: false, project: Some(project.into()), ..RunOptions::new(is_quick) }
}

#[test]
fn a_project_is_built_in_all_ways_and_nothing_is_lost() {
    let project = project(MAKEFILE);
    let experiment = run_compile_job(&options(project.path(), true), &library(), None).unwrap();
    let of = |name: &str| {
        let found = experiment.measurements.iter().find(|measurement| measurement.name == name);
        found.unwrap_or_else(|| panic!("no measurement {name}"))
    };
    for way in ["none", "dormant", "armed-overwrite", "armed-discard"] {
        for suffix in ["wall", "cpu"] {
            let figures = of(&format!("{way}.{suffix}"));
            assert_eq!((figures.n, figures.unit.as_str()), (2, "s"));
            assert!(figures.median > 0.0);
            assert_eq!(figures.labels["way"], way);
        }
    }
    for way in ["armed-overwrite", "armed-discard"] {
        assert!(of(&format!("{way}.events")).samples.iter().all(|events| *events > 0.0));
        assert_eq!(of(&format!("{way}.events_lost")).samples, [0.0, 0.0]);
        assert!(of(&format!("{way}.programs")).median > 1.0 && of(&format!("{way}.trace")).median > 0.0);
    }
    let ratios: Vec<&str> = experiment.ratios.iter().map(|ratio| ratio.name.as_str()).collect();
    let names = ["dormant_vs_none", "armed_overwrite_vs_none", "armed_discard_vs_none"];
    assert_eq!(ratios, names.map(|name| [name.to_owned(), format!("{name}_cpu")]).concat());
    // The project's own directory is left alone.
    assert_eq!(fs::read_dir(project.path()).unwrap().count(), 3);
}

#[test]
fn variants_of_the_write_are_measured_where_they_are_there() {
    let (project, variants) = (project(MAKEFILE), tempfile::tempdir().unwrap());
    // The library is the same for all, because the test checks only that each is used.
    for feature in VARIANTS {
        fs::copy(library(), variants.path().join(format!("libdormouse_libc-{feature}.so"))).unwrap();
    }
    let options = RunOptions { rounds_max: 1, ..options(project.path(), false) };
    let experiment = run_compile_job(&options, &library(), Some(variants.path())).unwrap();
    for way in ["armed-overwrite-memcpy", "armed-overwrite-specialised"] {
        let events = format!("{way}.events");
        assert!(experiment.measurements.iter().any(|found| found.name == events && found.median > 0.0), "{way}");
    }
    let sampled_count = experiment.measurements.iter().filter(|found| found.name.starts_with("profile.")).count();
    let is_refused = experiment.notes.iter().any(|note| note.starts_with("profile not available: "));
    assert_eq!(sampled_count, if is_refused { 0 } else { 4 }, "{:?}", experiment.notes);
    let experiments = vec![experiment];
    let report = Report { schema: SCHEMA, host: Host::default(), experiments };
    assert!(dormouse_lab::report::text(&report, false).contains("1m31.135s"));
}

#[test]
fn a_failing_build_is_reported_with_its_cause() {
    let fails = project("all:\n\t@echo out of ideas >&2; false\n");
    let idle = project("all:\n");
    let empty = tempfile::tempdir().unwrap();
    for (dir, why) in [(fails, "out of ideas"), (idle, "has made nothing"), (empty, "has no Makefile")] {
        let error = run_compile_job(&options(dir.path(), false), &library(), None).unwrap_err();
        assert!(matches!(&error, LabError::Project(text) if text.contains(why)), "{error}");
    }
}

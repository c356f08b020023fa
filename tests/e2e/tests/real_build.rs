//! A real C project, built by the system's unmodified compiler under the recorder.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dormouse_e2e::run::{dormouse, libc_library};
use dormouse_e2e::trace::Trace;

/// Variable with a directory of Lua's sources, for machines where cargo cannot fetch them.
const ENV_LUA: &str = "DORMOUSE_LUA";

/// Fetches Lua's sources with the project's Makefile into this directory.
fn fetch_lua(dir: &Path) -> PathBuf {
    if let Some(sources) = std::env::var_os(ENV_LUA) {
        std::fs::create_dir(dir).expect("a new directory");
        for entry in std::fs::read_dir(sources).expect("a directory of sources") {
            let entry = entry.expect("an entry");
            std::fs::copy(entry.path(), dir.join(entry.file_name())).expect("a file that can be copied");
        }
        return dir.into();
    }
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let output = Command::new(cargo)
        .args(["run", "--quiet", "--package", "xtask", "--", "fetch-lua"])
        .arg(dir)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    dir.into()
}

fn make(dir: &Path, trace: Option<&Path>, target: &[&str]) -> Output {
    let mut command = match trace {
        None => Command::new("make"),
        Some(trace) => {
            let mut command = Command::new(dormouse());
            // Enough for two compilers at full speed: the test is about the build, not about losses.
            command.args(["record", "--libc", "--budget", "256M", "-o"]).arg(trace).args(["--", "make"]);
            command.env("DORMOUSE_LIBC_LIBRARY", libc_library());
            command
        }
    };
    command.args(["-j2", "--output-sync=target", "--no-print-directory"]).args(target).current_dir(dir);
    command.output().expect("make runs")
}

/// Returns the lines in a fixed order, because the output of two jobs is interleaved arbitrarily.
fn lines(output: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8_lossy(output).lines().map(String::from).collect();
    lines.sort();
    lines
}

#[test]
fn a_build_is_one_trace_and_has_the_same_output() {
    let place = tempfile::tempdir().unwrap();
    let plain = fetch_lua(&place.path().join("plain"));
    let traced = fetch_lua(&place.path().join("traced"));
    let trace = place.path().join("trace");
    let expected = make(&plain, None, &[]);
    let output = make(&traced, Some(&trace), &[]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(expected.status.success() && output.status.success(), "{stderr}");
    assert_eq!(lines(&output.stdout), lines(&expected.stdout));
    // There is one line more than the build's own: the recorder's.
    let (own, said): (Vec<&str>, Vec<&str>) = stderr.lines().partition(|line| !line.starts_with("dormouse: "));
    assert_eq!(own.join("\n"), String::from_utf8_lossy(&expected.stderr).trim_end());
    assert_eq!(said.len(), 1, "{stderr}");
    // The built files are the same to the byte.
    let archive = |dir: &Path| std::fs::read(dir.join("liblua.a")).unwrap();
    assert!(archive(&plain) == archive(&traced), "the traced build has built something else");

    // All compilers, assemblers and linkers of the build are in it, and every event is counted.
    let trace = Trace::read(&trace);
    let stats = trace.stats();
    let programs = trace.processes();
    let runs = |name: &str| programs.iter().filter(|process| process.program.ends_with(name)).count();
    assert!(runs("/cc1") >= 32, "{} compilers", runs("/cc1"));
    assert!(runs("make") == 1 && runs("as") >= 32);
    assert!(stats.events > 1_000_000, "{} events", stats.events);
    println!("{} events, {} lost", stats.events, stats.events_lost);
    let said = format!("dormouse: {} events, {} lost,", stats.events, stats.events_lost);
    assert!(stderr.contains(&said), "{stderr} does not say `{said}`");
}

#[test]
fn a_failing_build_fails_in_the_same_way() {
    let place = tempfile::tempdir().unwrap();
    let plain = fetch_lua(&place.path().join("plain"));
    let traced = fetch_lua(&place.path().join("traced"));
    let trace = place.path().join("trace");
    let expected = make(&plain, None, &["no-such-target"]);
    let output = make(&traced, Some(&trace), &["no-such-target"]);
    assert!(!expected.status.success());
    assert_eq!(output.status.code(), expected.status.code());
    assert_eq!(output.stdout, expected.stdout);
}

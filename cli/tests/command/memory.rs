//! `--memory` of `dormouse export` and `dormouse report`, with traces of which everything must be kept.

use std::path::Path;
use std::process::{Command, Output};

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::{StateRecord, Value};
use dormouse_testing::{Lack, is_emulated, skip};
use dormouse_traces::TraceBuilder;
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::DORMOUSE;

/// Value of `--memory`.
const LIMIT: &str = "8M";
/// Data limit of the process, in KiB. It includes windows and blocks of the reader, stacks of threads, and output.
const DATA_KIB: u64 = 40 << 10;
/// Why these tests are skipped in an emulator of single programs.
const EMULATED: &str = "the emulator's memory counts as the program's";

/// Returns the number of events of a trace, which `DORMOUSE_HOSTILE` overrides.
fn count() -> u64 {
    std::env::var("DORMOUSE_HOSTILE").ok().and_then(|count| count.parse().ok()).unwrap_or(100_000)
}

fn written(builder: TraceBuilder) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    builder.finish().write(dir.path());
    dir
}

/// Returns a trace of nested begins without an end, in as many threads as needed.
fn begins(count: u64) -> TempDir {
    let mut builder = TraceBuilder::new();
    let class = builder.class("a", "x_begin", &[("n", FieldType::scalar(Kind::U64))]);
    builder.class("a", "x_end", &[]);
    let stream = builder.stream(0);
    for n in 0..count {
        builder.event(stream, n, 7, 1 + (n / 4000) as u32, class, &[Value::U64(n)]);
    }
    written(builder)
}

/// Returns a trace of processes, each with a name and a thread.
fn names() -> TempDir {
    let mut builder = TraceBuilder::new();
    let class = builder.class("a", "x_begin", &[]);
    builder.class("a", "x_end", &[]);
    let stream = builder.stream(0);
    for n in 1..=count() as u32 {
        let name = format!("{n:0100}");
        let process = StateRecord::Process { process: n, pid: n, vpid: n, name: &name, program: "", command_line: "" };
        builder.state(n.into(), &process);
        builder.event(stream, n.into(), n, n, class, &[]);
    }
    written(builder)
}

/// Returns a trace of begins without an end, each with a key of its own, in as many processes as needed.
fn keys() -> TempDir {
    let mut builder = TraceBuilder::new();
    let class = builder.class("a", "x_in", &[("id", FieldType::scalar(Kind::Str))]);
    builder.class("a", "x_out", &[("id", FieldType::scalar(Kind::Str))]);
    let stream = builder.stream(0);
    for n in 0..count() {
        let process = 1 + (n / 4000) as u32;
        builder.event(stream, n, process, process, class, &[Value::Str(format!("{n:060}").as_bytes())]);
    }
    written(builder)
}

/// Runs the command with a limit of `data_kib` on its data (`ulimit -d`).
fn run(command: &str, trace: &Path, options: &[&str], data_kib: u64) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -d \"$0\" && exec \"$@\"", &data_kib.to_string(), DORMOUSE, command]);
    shell.arg(trace).args(options).output().expect("sh runs")
}

/// Returns the totals of the timeline from the command's JSON.
fn told(output: &Output, what: &str) -> Json {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{what}: {:?} {errors}", output.status);
    let told: Json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{what}: {error} {errors}"));
    told["timeline"].clone()
}

#[test]
fn items_beyond_the_memory_limit_are_counted_and_reported() {
    if is_emulated() {
        return skip(Lack::emulated(EMULATED));
    }
    let pairs: &[&str] = &["--pairs", "a:x_in..a:x_out", "--key", "id"];
    for (trace, options, key) in [
        (begins(count()), &[][..], "begins_not_followed"),
        (names(), &[], "names_not_kept"),
        (keys(), pairs, "begins_not_followed"),
    ] {
        let out = trace.path().with_extension("out");
        let out = out.to_str().unwrap();
        for format in ["perfetto", "chrome", "folded", "otlp"] {
            let format = ["--to", format, "-o", out, "--json", "--memory", LIMIT];
            let output = run("export", trace.path(), &[&format[..], options].concat(), DATA_KIB);
            let told = told(&output, &format!("{format:?} {key}"));
            assert_eq!(told["events"], count(), "{format:?} {told}");
            assert!(told[key].as_u64().unwrap() > count() / 2, "{format:?} {told}");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(errors.contains("--memory"), "{errors}");
        }
        // A report also keeps its items in memory.
        let report = ["-o", out, "--json", "--memory", LIMIT];
        let output = run("report", trace.path(), &[&report[..], options].concat(), DATA_KIB);
        let told = told(&output, "report");
        assert!(told["items_not_kept"].as_u64().unwrap() > count() / 2, "{told}");
        std::fs::remove_file(out).unwrap();
    }
}

#[test]
fn without_memory_the_export_exceeds_the_limit() {
    if is_emulated() {
        return skip(Lack::emulated(EMULATED));
    }
    // Without --memory, the export exceeds the limit.
    let trace = begins(1_000_000);
    let output = run("export", trace.path(), &["--to", "perfetto", "-o", "/dev/null"], DATA_KIB);
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

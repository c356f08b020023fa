//! Times, sums and names at the limits of numbers and file names.

use std::path::Path;
use std::process::{Command, Output};

use dormouse_traces::BitWriter;
use serde_json::Value as Json;

use crate::DORMOUSE;

const MAGIC: u64 = 0xC1FC_1FC1;

/// Writes a trace of another tracer: events called `name`, 7 microseconds apart, with `values` in a 64-bit field `n`.
fn write(dir: &Path, offset_s: i64, name: &str, is_signed: bool, values: &[u64]) {
    let metadata = format!(
        "/* CTF 1.8 */
        typealias integer {{ size = 32; align = 8; }} := u32;
        typealias integer {{ size = 64; align = 8; }} := u64;
        typealias integer {{ size = 64; align = 8; signed = {is_signed}; }} := value;
        trace {{ major = 1; minor = 8; byte_order = le; packet.header := struct {{ u32 magic; }}; }};
        clock {{ name = wall; freq = 1000000000; offset_s = {offset_s}; }};
        stream {{ packet.context := struct {{ u64 packet_size; u64 content_size; }};
            event.header := struct {{ integer {{ size = 64; align = 8; map = clock.wall.value; }} timestamp; }}; }};
        event {{ name = \"{name}\"; fields := struct {{ value n; }}; }};"
    );
    let size_bytes = 20 + 16 * values.len();
    let mut writer = BitWriter::new(false);
    writer.number(32, MAGIC).number(64, 8 * size_bytes as u64).number(64, 8 * size_bytes as u64);
    for (index, value) in (0..).zip(values) {
        writer.number(64, 7_000 * index).number(64, *value);
    }
    std::fs::create_dir(dir).expect("a directory");
    std::fs::write(dir.join("metadata"), metadata).expect("metadata");
    std::fs::write(dir.join("stream"), writer.finish(size_bytes)).expect("a stream");
}

/// Returns a directory that contains a trace written by `write`, called `t`.
fn place(offset_s: i64, name: &str, is_signed: bool, values: &[u64]) -> tempfile::TempDir {
    let place = tempfile::tempdir().expect("a directory");
    write(&place.path().join("t"), offset_s, name, is_signed, values);
    place
}

fn run(place: &tempfile::TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(DORMOUSE);
    command.args(arguments).current_dir(place.path()).env("TZ", "UTC").output().expect("dormouse runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn exit(output: &Output) -> Option<i32> {
    output.status.code()
}

/// Formats that `export` writes to files.
const FORMATS: [&str; 7] = ["perfetto", "chrome", "folded", "otlp", "json", "csv", "ctf2"];

#[test]
fn every_command_reports_a_clock_beyond_2262() {
    let place = place(10_000_000_000, "e", false, &[1, 2, 3, 4]);
    let named = "by the clock `wall`, whose offset is 10000000000 s, is outside of the years 1678 to 2262";
    let readers = [
        &["view", "t"][..],
        &["view", "t", "--format", "json"],
        &["view", "t", "--reverse"],
        &["view", "t", "--since", "2020-01-01"],
        &["stats", "t"],
        &["stats", "t", "--by", "event"],
        &["report", "t", "-o", "html"],
    ];
    for arguments in readers {
        let output = run(&place, arguments);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(exit(&output), Some(1), "{arguments:?}: {said}");
        assert_eq!(said.matches(named).count(), 1, "{arguments:?}: {said}");
        assert!(arguments[0] != "view" || output.stdout.is_empty(), "{arguments:?}: {said}");
    }
    for format in FORMATS.iter().filter(|format| **format != "ctf2") {
        let output = run(&place, &["export", "t", "--to", format, "-o", format]);
        assert_eq!((exit(&output), text(&output.stderr).matches(named).count()), (Some(1), 1), "{format}: {output:?}");
    }
    // Times relative to the first or last event, or on the day of the first.
    for option in [["--since", "+1s"], ["--last", "1s"], ["--until", "12:00"]] {
        let output = run(&place, &[&["view", "t"], &option[..]].concat());
        assert_eq!(
            (exit(&output), text(&output.stderr).matches(named).count()),
            (Some(2), 1),
            "{option:?}: {output:?}"
        );
    }
    // An export to CTF 2 copies the streams as they are.
    assert_eq!(exit(&run(&place, &["export", "t", "--to", "ctf2", "-o", "c"])), Some(0));
    assert_eq!(
        std::fs::read(place.path().join("c/stream")).unwrap(),
        std::fs::read(place.path().join("t/stream")).unwrap()
    );
}

#[test]
fn times_before_1970_are_correct_or_refused() {
    const BEGIN_NS: i64 = -100_000_000_000;
    let place = place(-100, "e", false, &[1, 2, 3, 4]);
    let times: Vec<i64> = (0..4).map(|index| BEGIN_NS + 7_000 * index).collect();
    let export = |format: &str, options: &[&str]| {
        let _ = std::fs::remove_file(place.path().join(format));
        let output = run(&place, &[&["export", "t", "--to", format, "-o", format], options].concat());
        (exit(&output), text(&output.stderr), std::fs::read(place.path().join(format)).ok())
    };
    let json = |bytes: &[u8]| serde_json::from_slice::<Json>(bytes).expect("JSON");
    let (code, said, lines) = export("json", &[]);
    let lines = lines.expect("a file");
    let found: Vec<_> = text(&lines).lines().map(|line| json(line.as_bytes())["time_ns"].as_i64()).collect();
    assert_eq!((code, found), (Some(0), times.iter().map(|ns| Some(*ns)).collect()), "{said}");
    // The expected time is that of GNU date: `date -u -d @-100`.
    assert!(text(&lines).starts_with(r#"{"time":"1969-12-31T23:58:20.000000000Z","#), "{}", text(&lines));
    let (_, said, table) = export("csv", &[]);
    let table = text(&table.expect("a file"));
    assert!(times.iter().all(|ns| table.contains(&format!(",{ns},"))), "{table}{said}");
    let (_, said, chrome) = export("chrome", &[]);
    let chrome = json(&chrome.expect("a file"));
    assert_eq!(chrome["otherData"]["begin_ns"], BEGIN_NS.to_string(), "{said}");
    let since: Vec<_> =
        chrome["traceEvents"].as_array().expect("events").iter().filter(|event| event["ph"] == "i").collect();
    assert_eq!(since.iter().map(|event| event["ts"].as_f64()).collect::<Vec<_>>(), [0.0, 7.0, 14.0, 21.0].map(Some));
    assert_eq!(export("folded", &[]).0, Some(0));
    for (format, named) in [("perfetto", "Perfetto's format"), ("otlp", "OTLP")] {
        let (code, said, file) = export(format, &[]);
        let expected =
            format!("{named} holds no time before 1970, and there is one of 1969-12-31 ({BEGIN_NS} ns since 1970)");
        assert_eq!((code, file), (Some(2), None), "{said}");
        assert!(said.contains(&expected), "{said}");
        // The remedy that the message names works.
        assert_eq!(export(format, &["--since", "1970-01-01T00:00:00Z"]).0, Some(0));
    }
    let copied = run(&place, &["export", "t", "--to", "ctf2", "-o", "c"]);
    assert_eq!(exit(&copied), Some(0), "{copied:?}");
    let again = run(&place, &["view", "c", "--format", "json"]);
    assert_eq!(text(&again.stdout), text(&lines));
    assert_eq!(exit(&run(&place, &["report", "t", "-o", "html"])), Some(0));
    let page = std::fs::read(place.path().join("html")).expect("a page");
    assert!(text(&page).len() > 1000);
    let stats = json(&run(&place, &["stats", "t", "--json"]).stdout);
    assert_eq!(
        (stats["span"]["begin_ns"].as_i64(), stats["span"]["duration_ns"].as_u64()),
        (Some(BEGIN_NS), Some(21_000))
    );
}

/// The expected sums were computed with Python's unbounded integers.
#[test]
fn sums_are_printed_with_all_digits() {
    let least = i64::MIN as u64;
    for (is_signed, values, sum) in [
        (false, &[u64::MAX, u64::MAX, u64::MAX, 5][..], "55340232221128654850"),
        (true, &[least, least, least, 5], "-27670116110564327419"),
        (true, &[i64::MAX as u64, i64::MAX as u64, i64::MAX as u64], "27670116110564327421"),
        (true, &[least, i64::MAX as u64], "-1"),
        (false, &[(1 << 53) + 1, 0], "9007199254740993"),
    ] {
        let place = place(1_700_000_000, "e", is_signed, values);
        for options in
            [&["--field", "n", "--json"][..], &["--field", "n"], &["--field", "n", "--interval", "1h", "--json"]]
        {
            let output = run(&place, &[&["stats", "t"], options].concat());
            let is_there = text(&output.stdout).split([' ', ',', '\n']).any(|word| word == sum);
            assert!(is_there, "{sum} {options:?}: {}", text(&output.stdout));
        }
    }
}

#[test]
fn every_format_exports_long_names() {
    for name in ["n".repeat(250), format!("a/../b c;\u{e9}{}", "n".repeat(20_000))] {
        let place = place(1_700_000_000, &name, false, &[1, 2]);
        for format in FORMATS {
            let output = run(&place, &["export", "t", "--to", format, "-o", format]);
            assert_eq!(exit(&output), Some(0), "{format}: {output:?}");
            let file = place.path().join(format);
            let bytes = std::fs::read(if format == "ctf2" { file.join("metadata") } else { file }).expect("a file");
            // These formats contain only slices.
            let has_names = !["folded", "otlp"].contains(&format);
            assert!(!has_names || text(&bytes).contains(&"n".repeat(250)), "{format}");
        }
        assert_eq!(exit(&run(&place, &["report", "t", "-o", "html"])), Some(0));
        let copied = run(&place, &["view", "ctf2"]);
        assert_eq!(text(&copied.stdout), text(&run(&place, &["view", "t"]).stdout));
    }
}

/// The name of a temporary file must not exceed the maximum length of a file name.
#[test]
fn files_can_have_names_of_the_maximum_length() {
    let place = place(1_700_000_000, "e", false, &[1, 2]);
    for name in ["x".repeat(255), "\u{e9}".repeat(127)] {
        for format in FORMATS {
            let output = run(&place, &["export", "t", "--to", format, "-o", &name]);
            assert_eq!(exit(&output), Some(0), "{format}: {output:?}");
            let path = place.path().join(&name);
            let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
            removed.expect("it is there");
        }
        assert_eq!(exit(&run(&place, &["report", "t", "-o", &name])), Some(0));
        std::fs::remove_file(place.path().join(&name)).expect("it is there");
    }
}

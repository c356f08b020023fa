//! Traces in archives are read without change.

use std::io::{Cursor, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::Value;
use dormouse_reader::spool::spool;
use dormouse_reader::{Counts, TraceFiles};
use dormouse_testing::has;
use dormouse_traces::TraceBuilder;

/// Set for the child process of the test.
const ENV_CHILD: &str = "DORMOUSE_TEST_CHILD";

/// Writes a trace to `DIR/traces/one`.
fn write(place: &Path) -> std::path::PathBuf {
    let mut builder = TraceBuilder::new();
    let class = builder.class("p", "e", &[("text", FieldType::scalar(Kind::Str))]);
    let stream = builder.stream(0);
    for n in 0..5000 {
        builder.event(stream, n, 1, 2, class, &[Value::Str(&vec![b'x'; n as usize % 300])]);
    }
    let trace = builder.finish();
    let dir = place.join("traces/one");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("metadata"), &trace.metadata).unwrap();
    std::fs::write(dir.join("cpu_0"), &trace.streams[1]).unwrap();
    std::fs::write(dir.join(".session"), "text").unwrap();
    place.join("traces")
}

/// Runs a program in a directory. If it is not installed, returns false, and the test is skipped.
fn run(place: &Path, program: &'static str, arguments: &[&str]) -> bool {
    // An emulator of single programs reports a program that it cannot start as one that failed.
    if !has(program) {
        return false;
    }
    let status = Command::new(program).args(arguments).current_dir(place).stdin(Stdio::null()).status();
    let status = status.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(status.success(), "{program} {arguments:?}");
    true
}

fn counts(path: &Path) -> Counts {
    let files = TraceFiles::open(path).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(files.left_out, [""; 0]);
    let counts = files.counts();
    assert_eq!(files.stats().events, counts.events());
    counts
}

#[test]
fn archives_are_read_like_directories() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let expected = counts(&write(place));
    assert_eq!((expected.events(), expected.warnings.len()), (5000, 0));
    for (name, options) in [("a.tar", "-cf"), ("a.tgz", "-czf")] {
        if run(place, "tar", &[options, name, "traces"]) {
            assert_eq!(counts(&place.join(name)), expected, "{name}");
        }
    }
    // Two frames, one after the other, with a skippable frame between them.
    if run(place, "tar", &["-cf", "b.tar", "./traces/one"]) && run(place, "zstd", &["-q", "b.tar"]) {
        assert_eq!(counts(&place.join("b.tar.zst")), expected);
        let tar = std::fs::read(place.join("b.tar")).unwrap();
        let (a, b) = tar.split_at(tar.len() / 2);
        std::fs::write(place.join("p1"), a).unwrap();
        std::fs::write(place.join("p2"), b).unwrap();
        assert!(run(place, "zstd", &["-q", "p1", "p2"]));
        let parts = ["p1.zst", "p2.zst"].map(|part| std::fs::read(place.join(part)).unwrap());
        let passed_over = [&[0x53, 0x2A, 0x4D, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        std::fs::write(place.join("c.tar.zst"), [&parts[0][..], &passed_over, &parts[1]].concat()).unwrap();
        assert_eq!(counts(&place.join("c.tar.zst")), expected);
        let mut damaged = std::fs::read(place.join("b.tar.zst")).unwrap();
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        std::fs::write(place.join("e.tar.zst"), damaged).unwrap();
        let error = TraceFiles::open(&place.join("e.tar.zst")).unwrap_err().to_string();
        assert!(error.ends_with("its checksum is not that of what is in it"), "{error}");
        // Streams and metadata that were compressed by zstd one by one.
        assert!(run(&place.join("traces/one"), "zstd", &["-q", "--rm", "metadata", "cpu_0"]));
        assert_eq!(counts(&place.join("traces")), expected);
        assert!(run(place, "tar", &["-cf", "d.tar", "traces"]));
        assert_eq!(counts(&place.join("d.tar")), expected);
    }
}

#[test]
fn an_archive_on_standard_input_is_read() {
    if std::env::var_os(ENV_CHILD).is_some() {
        println!("{} events", counts(Path::new("-")).events());
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let expected = counts(&write(place.path()));
    if !run(place.path(), "tar", &["-czf", "a.tgz", "traces"]) {
        return;
    }
    // A process has one standard input, so a child process reads it.
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "an_archive_on_standard_input_is_read", "--nocapture"])
        .env(ENV_CHILD, "1")
        .stdin(std::fs::File::open(place.path().join("a.tgz")).unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(said.contains(&format!("{} events", expected.events())), "{said}");
}

#[test]
fn truncated_archives_and_archives_without_a_trace_are_errors() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    write(place.path());
    if !run(place.path(), "tar", &["-cf", "a.tar", "traces"]) {
        return;
    }
    let error = |name: &str, bytes: &[u8]| {
        std::fs::write(at(name), bytes).unwrap();
        TraceFiles::open(&at(name)).unwrap_err().to_string()
    };
    let tar = std::fs::read(at("a.tar")).unwrap();
    let said = error("text", &b"no archive at all\n".repeat(99));
    assert!(said.contains("text is neither the directory of a trace nor an archive"), "{said}");
    assert!(error("empty", b"").contains("there is no trace in"));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).unwrap();
    let gzip = gzip.finish().unwrap();
    assert!(error("cut.tgz", &gzip[..gzip.len() / 2]).starts_with("cannot unpack "));
    // A stream that the end of the archive cuts off is left out, and the others are read.
    let cut = &tar[..tar.len() * 2 / 3 / 512 * 512];
    std::fs::write(at("cut.tar"), cut).unwrap();
    match TraceFiles::open(&at("cut.tar")) {
        Ok(files) => assert!(files.left_out.iter().any(|line| line.contains("the archive ends before it does"))),
        Err(error) => assert!(error.to_string().contains("cut.tar"), "{error}"),
    }
}

#[test]
fn archives_that_unpack_to_more_than_the_free_space_are_refused() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..64 {
        gzip.write_all(&[0; 1 << 20]).unwrap();
    }
    let bomb = gzip.finish().unwrap();
    assert!(bomb.len() < 1 << 17);
    let unpack =
        |bytes_max| spool(Cursor::new(&bomb), Path::new("bomb.tgz"), bytes_max).map(|extent| extent.size_bytes);
    assert_eq!(unpack(64 << 20), Ok(64 << 20));
    let error = unpack((64 << 20) - 1).unwrap_err().to_string();
    assert!(error.starts_with("cannot unpack bomb.tgz: it has more than 67108863 bytes"), "{error}");
}

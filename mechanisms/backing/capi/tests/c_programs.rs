//! Memory in C and C++: one program, compiled and linked in every common way, with either library. Its checks are in
//! `c_programs/main.c`. The example of the manual page, and those of the crate, are compiled and run too.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::OnceLock;

use dormouse_testing::c_library::Library;
use dormouse_testing::c_programs::{stdout, succeed};

static BACKING: Library = Library {
    name: "backing",
    source: concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c_programs/main.c"),
    inline: &[],
    header_flags: &["-UNDEBUG"],
    prefix: OnceLock::new(),
};

/// Returns flags for the library without the tracer.
fn alone() -> Vec<String> {
    BACKING.package("dormouse-backing")
}

#[test]
fn c_programs() {
    BACKING.run("gcc", "-std=gnu11 -O0", &BACKING.package("dormouse"));
    BACKING.run("gcc", "-std=gnu17 -O2", &alone());
    BACKING.run("clang", "-std=gnu11 -O2", &alone());
}

#[test]
fn cpp_programs() {
    BACKING.run("g++", "-std=gnu++20 -O2", &alone());
    BACKING.run("clang++", "-std=gnu++11 -O0", &alone());
}

#[test]
fn programs_with_the_archive() {
    BACKING.run("gcc", "-std=gnu11 -O2", &BACKING.archive(None));
}

/// A failed assertion ends the benchmark with file and line; if the buffer is backed by memory, the benchmark
/// continues.
#[test]
fn an_assertion_names_its_place_and_aborts() {
    if !dormouse_testing::has("gcc") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("main");
    BACKING.compile("gcc", "-std=gnu11 -O2", &alone(), &program);
    let output = Command::new(&program).arg("assert").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(6), "{text}");
    assert!(text.contains("main.c:") && text.contains("are not memory of its own"), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "written\n");
}

#[test]
fn the_header_asks_for_no_extension() {
    BACKING.check_languages();
}

#[test]
fn the_libraries_export_what_the_header_declares() {
    BACKING.check_exports(11);
}

#[test]
fn the_example_of_the_manual_page_runs() {
    BACKING.check_examples();
}

#[test]
fn the_manual_page_tells_of_every_function() {
    BACKING.check_manual();
}

/// The example in C, and the one in Rust: both show the fiction, and the truth once the array is populated.
#[test]
fn the_examples_run() {
    let directory = tempfile::tempdir().unwrap();
    for program in BACKING.examples("", "bandwidth", directory.path()) {
        let text = stdout(&succeed(Command::new(&program).arg("16")));
        let missing_bytes = |name: &str| -> u64 {
            let line =
                text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {text}"));
            line.split_whitespace().nth(2).unwrap().parse().unwrap()
        };
        // The allocator has written to the page in which the array begins.
        assert!(missing_bytes("never written:") >= (16 << 20) - 8192, "{text}");
        assert_eq!(missing_bytes("populated:"), 0, "{text}");
    }
}

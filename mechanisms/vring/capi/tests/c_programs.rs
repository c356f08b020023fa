//! Virtqueues in C and C++: one program, compiled and linked in every common way, with either library. Its checks are
//! in `c_programs/main.c`. The example of the manual page is compiled and run too.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

#[path = "c_programs/devices.rs"]
mod devices;

use std::process::Command;
use std::sync::OnceLock;

use dormouse_testing::c_library::Library;
use dormouse_testing::c_programs::{stdout, succeed};

static VRING: Library = Library {
    name: "vring",
    source: concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c_programs/main.c"),
    inline: &[],
    header_flags: &["-UNDEBUG"],
    prefix: OnceLock::new(),
};

/// Returns flags for the library without the tracer.
fn alone() -> Vec<String> {
    VRING.package("dormouse-vring")
}

#[test]
fn c_programs() {
    VRING.run("gcc", "-std=gnu11 -O0", &VRING.package("dormouse"));
    VRING.run("gcc", "-std=gnu17 -O2", &alone());
    VRING.run("clang", "-std=gnu11 -O2", &alone());
}

#[test]
fn cpp_programs() {
    VRING.run("g++", "-std=gnu++20 -O2", &alone());
    VRING.run("clang++", "-std=gnu++11 -O0", &alone());
}

#[test]
fn programs_with_the_archive() {
    VRING.run("gcc", "-std=gnu11 -O2", &VRING.archive(None));
}

#[test]
fn the_header_asks_for_no_extension() {
    VRING.check_languages();
}

#[test]
fn the_libraries_export_what_the_header_declares() {
    VRING.check_exports(37);
}

#[test]
fn the_examples_of_the_manual_page_run() {
    VRING.check_examples();
}

/// Each prints `N requests, N workers killed, N requests handed out again, N wrong answers`.
#[test]
fn the_examples_run() {
    let directory = tempfile::tempdir().unwrap();
    for program in VRING.examples("", "restart", directory.path()) {
        for [requests, each] in [[20_000, 500], [30, 7]] {
            let arguments = [requests, each].map(|number: u64| number.to_string());
            let text = stdout(&succeed(Command::new(&program).args(arguments)));
            let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            assert_eq!((numbers[0], numbers[3]), (requests, 0), "{text}");
            // A worker that is killed can have finished what would have killed the next one.
            assert!((1..=(requests - 1) / each).contains(&numbers[1]) && numbers[2] <= 64 * numbers[1], "{text}");
        }
    }
}

#[test]
fn the_manual_page_tells_of_every_function() {
    VRING.check_manual();
}

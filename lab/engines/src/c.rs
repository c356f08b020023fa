//! The cases of an engine in C, which `build.rs` compiles and links, as cases of the harness.

use std::process::ExitCode;

use dormouse_lab_harness::{CCase, Case, Engine};

unsafe extern "C" {
    /// Prepares the engine. Returns the first of its cases, whose number it stores in `count`; null if that is impossible.
    fn dormouse_lab_c_cases(count: *mut usize) -> *const CCase;
    safe fn dormouse_lab_c_arrived() -> u64;
}

/// Returns what the engine in C has counted.
pub fn arrived() -> u64 {
    dormouse_lab_c_arrived()
}

/// Runs the engine. `verify` reports to the lab what has arrived.
pub fn main(name: &'static str, verify: fn() -> Result<u64, String>) -> ExitCode {
    let mut count = 0;
    // SAFETY: the function stores the number of cases; it is called once, before any loop.
    let first = unsafe { dormouse_lab_c_cases(&raw mut count) };
    if first.is_null() {
        eprintln!("{name}: no memory for its cases, or a change of them was refused");
        return ExitCode::FAILURE;
    }
    // SAFETY: an array of `count` cases that lives as long as the program.
    let cases = unsafe { core::slice::from_raw_parts(first, count) };
    let case = |case: &CCase| {
        // SAFETY: a text that ends with NUL and lives as long as the program.
        let name = unsafe { core::ffi::CStr::from_ptr::<'static>(case.name) };
        let name = name.to_str().expect("a name in ASCII");
        Case { name, run: case.run, events_per_iteration: case.events_per_iteration }
    };
    let version = env!("CARGO_PKG_VERSION").into();
    dormouse_lab_harness::main(&Engine {
        name,
        version,
        cases: cases.iter().map(case).collect(),
        arrived: Some(verify),
    })
}

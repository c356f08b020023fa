//! The harness for engines in C and C++; `include/lab_harness.h` declares it.

use core::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use crate::{Case, Engine, Loop};

/// A [`Case`] in C's representation.
#[repr(C)]
#[derive(Debug)]
pub struct CCase {
    /// Name of the case, NUL-terminated.
    pub name: *const c_char,
    /// Loop of the case.
    pub run: Loop,
    /// Number of events that one iteration emits.
    pub events_per_iteration: u64,
}

/// A function that ends the tracing and returns the number of events that arrived, or -1 if that is unknown.
pub type CArrived = extern "C" fn() -> i64;

static ARRIVED: OnceLock<CArrived> = OnceLock::new();

fn arrived() -> Result<u64, String> {
    let count = ARRIVED.get().map_or(-1, |count| count());
    u64::try_from(count).map_err(|_| "its reader did not count them".into())
}

/// Runs the engine's `main` and returns its exit code.
///
/// # Safety
/// `name`, `version` and the names of the cases are NUL-terminated strings, `cases` has `count` members, and all of it
/// stays for the life of the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_lab_main(
    name: *const c_char,
    version: *const c_char,
    cases: *const CCase,
    count: usize,
    counter: Option<CArrived>,
) -> c_int {
    // SAFETY: `name`, `version` and the names of the cases are NUL-terminated and stay for the life of the program, as
    // the caller guarantees.
    let text = |pointer: *const c_char| unsafe { CStr::from_ptr::<'static>(pointer) }.to_str().unwrap_or("?");
    // SAFETY: `cases` has `count` members and stays for the life of the program, as the caller guarantees.
    let cases = unsafe { core::slice::from_raw_parts(cases, count) };
    let cases = cases
        .iter()
        .map(|case| Case { name: text(case.name), run: case.run, events_per_iteration: case.events_per_iteration })
        .collect();
    if let Some(counter) = counter {
        let _ = ARRIVED.set(counter);
    }
    let arrived = counter.map(|_| arrived as fn() -> Result<u64, String>);
    let code = crate::main(&Engine { name: text(name), version: text(version).into(), cases, arrived });
    if code == std::process::ExitCode::SUCCESS { 0 } else { 2 }
}

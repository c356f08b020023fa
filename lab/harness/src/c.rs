//! The harness for engines in C and C++; `include/lab_harness.h` declares it.

use core::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use crate::{Case, Engine, Loop};

/// A [`Case`], as C has it.
#[repr(C)]
#[derive(Debug)]
pub struct CCase {
    /// Terminated by zero.
    pub name: *const c_char,
    /// The loop.
    pub run: Loop,
    /// Events that one iteration emits.
    pub events_per_iteration: u64,
}

/// Ends the tracing and counts what arrived; -1 where that cannot be told.
pub type CArrived = extern "C" fn() -> i64;

static ARRIVED: OnceLock<CArrived> = OnceLock::new();

fn arrived() -> Result<u64, String> {
    let count = ARRIVED.get().map_or(-1, |count| count());
    u64::try_from(count).map_err(|_| "its reader did not count them".into())
}

/// The engine's `main`. Returns its exit code.
///
/// # Safety
/// `name` and `version` are strings, `cases` has `count` members, and all of it stays for the life of the program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_lab_main(
    name: *const c_char,
    version: *const c_char,
    cases: *const CCase,
    count: usize,
    counter: Option<CArrived>,
) -> c_int {
    // SAFETY: the caller's word, for all three.
    let text = |pointer: *const c_char| unsafe { CStr::from_ptr::<'static>(pointer) }.to_str().unwrap_or("?");
    // SAFETY: the caller's word.
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

//! Traced programs end to end: each module covers a question, each test a recording (or a few) whose numbers must add
//! up.
#![cfg(target_os = "linux")]

mod budgets;
mod compact;
mod dormant;
mod ends;
mod failures;
mod faults;
mod forks;
mod formats;
mod hostile;
mod kills;
mod mappings;
mod numbers;
mod older;
mod points;
mod refused;
mod rules;
mod salvage;
mod sessions;
mod signals;
mod snapshots;
mod tags;
mod tails;
mod threads;
mod values;

/// A program that emits events when it is told to.
const BOX: &str = env!("CARGO_BIN_EXE_e2e-box");
/// A program that enters a sandbox and executes another program there.
const ENTER: &str = env!("CARGO_BIN_EXE_e2e-box-enter");
/// The program that kills processes at chosen instructions.
const POINTS: &str = env!("CARGO_BIN_EXE_e2e-points");
/// The program with many modes.
const TRACED: &str = env!("CARGO_BIN_EXE_e2e-traced");
/// The program that runs until its input ends.
const LIVE: &str = env!("CARGO_BIN_EXE_e2e-live");
/// The program that emits every kind of value.
const VALUES: &str = env!("CARGO_BIN_EXE_e2e-values");

/// A budget that holds everything, and one that holds almost nothing.
const AMPLE: &str = "64M";
/// See [`AMPLE`].
const TINY: &str = "64K";

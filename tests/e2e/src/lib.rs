//! End-to-end tests of the tracer: programs are traced by the command `dormouse`, and every number in the trace must
//! add up.
//!
//! ```text
//!   test ──▶ dormouse record ──▶ e2e-traced, e2e-values      the programs, with the events of [`emit`]
//!     │            │
//!     │            ▼ trace
//!     └─▶ [`trace`] (dormouse-ctf) and babeltrace2           received + lost == emitted, nothing torn, nothing twice
//! ```
//! * [`emit`]: events that can be verified by their own contents: a number, and a check made of it.
//! * [`run`]: builds and runs the command; a process that hangs is killed, and the test fails with a message.
//! * [`memory`]: the memory of a process's session.
//! * [`program`]: a program that no recording has started.
//! * [`trace`]: reads a trace.
//! * [`check`]: checks that apply to every trace.
//!
//! Verdicts do not depend on timing. Random values are drawn from a seed ([`seed`]) that is printed, and that
//! `DORMOUSE_E2E_SEED` sets. `DORMOUSE_REQUIRE_TOOLS=1` makes a missing `babeltrace2` an error.

pub mod check;
pub mod emit;
pub mod memory;
pub mod program;
pub mod run;
pub mod trace;

/// Returns a pseudo-random number for each number (SplitMix64).
pub fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// Random numbers from a seed.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// Returns the next number below `limit`, which must not be zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }
}

/// Returns the run's seed: `DORMOUSE_E2E_SEED`, or one derived from the time. Prints it, so that a failure can be
/// repeated.
pub fn seed(test: &str) -> u64 {
    let given = std::env::var("DORMOUSE_E2E_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let seed = given.unwrap_or_else(|| mix(now().tv_nsec as u64) >> 32);
    println!("{test}: DORMOUSE_E2E_SEED={seed}");
    seed
}

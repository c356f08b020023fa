//! `cargo xtask soak`: runs the randomised and sampling tests in their exhaustive form.

use anyhow::{Result, bail};

use crate::fuzz::Fuzz;
use crate::programs::Failed;
use crate::tally::show;
use crate::test::Test;

/// Duration of each fuzz target, in seconds.
const FUZZ_SECONDS: u64 = 600;

/// Parts that can be soaked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// A process is killed at every instruction of a write and of a page switch, each time it reaches the instruction
    Kills,
    /// Ten million events of each kind, none of which may fault
    Faults,
    /// A process writes at random over every kind of session that it shares with others
    Hostile,
    /// A gate is toggled a million times while threads run through it
    Toggles,
    /// A thousand snapshots of each flight recorder
    Snapshots,
    /// Plugins are loaded and unloaded for ten minutes while their program is listed, armed and snapshot
    Plugins,
    /// Ten thousand forks, starts and loads of traced programs, in each state of their session's owner
    Waits,
    /// A thousand processes join and leave a session for ten minutes
    Crowd,
    /// A session's owner is killed under load sixty times, and restarted
    Owners,
    /// A session's owner and its supervisor are killed under load sixty times, and what they leave is salvaged
    Recorders,
    /// A million conversations of a session's server with hostile clients, and of tools with hostile programs
    Clients,
    /// A million changes of rules, and of what is armed, in sessions of a program with eight busy threads
    Sessions,
    /// A million conversations of programs with hostile owners and hostile tools, into whose memory they record
    Programs,
    /// 16 GiB through the queues of qemu-storage-daemon
    Device,
    /// Ten thousand cases of each property of the virtqueues
    Queues,
    /// Each fuzz target for ten minutes
    Fuzz,
}

/// Tests of a part: package, file of `tests/` (`None`: tests of the library), filter, and the variable that makes them
/// exhaustive.
type Tests = (&'static str, Option<&'static str>, &'static str, (&'static str, &'static str));

impl Part {
    /// Returns the tests of a part, or `None` for fuzz targets, which are not tests.
    fn tests(self) -> Option<Tests> {
        Some(match self {
            Part::Kills => ("dormouse-e2e", Some("e2e"), "points::", ("DORMOUSE_KILL_STRIDE", "1")),
            Part::Faults => ("dormouse-e2e", Some("e2e"), "faults::", ("DORMOUSE_FAULT_EVENTS", "10000000")),
            Part::Hostile => ("dormouse-e2e", Some("e2e"), "hostile::", ("DORMOUSE_HOSTILE_KINDS", "4")),
            Part::Toggles => ("dormouse-imv", Some("update"), "toggled", ("DORMOUSE_TOGGLES", "1000000")),
            Part::Snapshots => ("dormouse-e2e", Some("e2e"), "snapshots::", ("DORMOUSE_SNAPSHOTS", "1000")),
            Part::Plugins => ("dormouse-capi", Some("loader"), "storm", ("DORMOUSE_STORM_SECONDS", "600")),
            Part::Waits => ("dormouse-e2e", Some("control"), "waits::", ("DORMOUSE_WAITS", "10000")),
            Part::Crowd => ("dormouse-e2e", Some("control"), "join_and_leave", ("DORMOUSE_CROWD_SECONDS", "600")),
            Part::Owners => ("dormouse-e2e", Some("owner"), "killed::", ("DORMOUSE_OWNER_KILLS", "60")),
            Part::Recorders => ("dormouse-e2e", Some("control"), "killed_under_load", ("DORMOUSE_OWNER_KILLS", "60")),
            Part::Clients => ("dormouse-control", None, "whatever", ("DORMOUSE_CONVERSATIONS", "1000000")),
            Part::Sessions => ("dormouse", None, "sessions_that_change", ("DORMOUSE_SESSION_CHANGES", "1000000")),
            Part::Programs => ("dormouse", None, "whatever", ("DORMOUSE_CONVERSATIONS", "1000000")),
            Part::Device => ("dormouse-vring-vhost", Some("qsd"), "", ("DORMOUSE_VRING_MIB", "16384")),
            Part::Queues => ("dormouse-vring", None, "", ("PROPTEST_CASES", "10000")),
            Part::Fuzz => return None,
        })
    }
}

/// Parts to soak.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A failure prints the seed or the input that replays it. All parts together take hours.

Examples:
  cargo xtask soak                   all parts, one after the other
  cargo xtask soak kills plugins     these two")]
pub(crate) struct Soak {
    /// Parts to soak [default: all]
    #[arg(value_enum, value_name = "PART")]
    parts: Vec<Part>,
}

impl Soak {
    /// Runs the task. If a part fails, the next ones run nevertheless.
    ///
    /// # Errors
    /// Something does not build, or a part fails.
    pub(crate) fn run(&self) -> Result<()> {
        let all = <Part as clap::ValueEnum>::value_variants();
        let parts = if self.parts.is_empty() { all } else { &self.parts };
        let mut failed_parts = Vec::new();
        for part in parts {
            show(&format!("\n== {part:?}"));
            let result = match part.tests() {
                Some(tests) => Test::exhaustive(tests).run(),
                None => Fuzz::all_for(FUZZ_SECONDS).run(),
            };
            match result {
                Ok(()) => (),
                Err(error) if error.is::<Failed>() => failed_parts.push(format!("{part:?}")),
                Err(error) => {
                    show(&format!("{error:#}"));
                    failed_parts.push(format!("{part:?}"));
                }
            }
        }
        if !failed_parts.is_empty() {
            bail!("failed: {}", failed_parts.join(", "));
        }
        Ok(())
    }
}

//! Kernels without some of what Dormouse uses: everything still works and nothing is lost, or one line says what is
//! missing.
//!
//! ```text
//!   e2e-box-enter KERNEL exec ── a filter answers like that kernel ──▶ dormouse record ──▶ the traced program
//! ```
//! A filter sees the numbers of a call, not its memory: what only changes the contents of proc(5), or what older kernels
//! ignore (`MAP_FIXED_NOREPLACE`), is as on this kernel.

use std::path::Path;
use std::process::{Command, Output};

use dormouse_e2e::check::check;
use dormouse_e2e::program::Program;
use dormouse_e2e::run::{PATIENCE, Record, dormouse, libc_library, watched};
use dormouse_e2e::trace::Trace;
use dormouse_testing::wait_until;
use serde_json::Value;

use crate::kills::kill_with;
use crate::salvage::{abandoned, check_whole, pids, run_within};
use crate::{AMPLE, BOX, ENTER, TRACED, snapshots};

/// Tells programs that no filter of system calls kills them.
const MILD: (&str, &str) = ("DORMOUSE_SECCOMP", "0");

const EVENTS: u64 = 20_000;

/// A kernel, and the facts of `dormouse doctor` that are warnings there, with words of each.
struct Kernel(&'static str, &'static [(&'static str, &'static str)]);

impl Kernel {
    fn prefix(&self) -> [&'static str; 3] {
        [ENTER, self.0, "exec"]
    }

    fn record(&self) -> Record {
        Record::new().budget(AMPLE).within(&self.prefix()).env(MILD.0, MILD.1)
    }

    /// Runs the command under this kernel.
    fn dormouse(&self, arguments: &[&str], runtime_dir: &Path) -> Output {
        let [enter, words @ ..] = self.prefix();
        let mut command = Command::new(enter);
        command.args(words).arg(dormouse()).args(arguments).env("XDG_RUNTIME_DIR", runtime_dir).env(MILD.0, MILD.1);
        watched(&mut command, PATIENCE)
    }

    /// The doctor warns of exactly what is missing; what it needs is said in the value, and a remedy is there.
    fn told(&self) {
        let place = tempfile::tempdir().unwrap();
        let findings = |output: Output| {
            let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
            findings.into_iter().filter(|finding| finding["group"] == "tracing").collect::<Vec<Value>>()
        };
        let usual =
            watched(Command::new(dormouse()).args(["doctor", "--json"]).env("XDG_RUNTIME_DIR", place.path()), PATIENCE);
        let usual = findings(usual);
        for finding in findings(self.dormouse(&["doctor", "--json"], place.path())) {
            let fact = finding["fact"].as_str().unwrap();
            let expected = self.1.iter().find(|(known, _)| *known == fact);
            match expected {
                Some((_, words)) => {
                    assert_eq!(finding["mark"], "warning", "{finding}");
                    assert!(finding["value"].as_str().unwrap().contains(words), "{finding}");
                    assert!(finding["remedy"].is_string(), "{finding}");
                }
                None => {
                    let usual = usual.iter().find(|usual| usual["fact"] == fact).unwrap();
                    assert_eq!((&finding["mark"], &finding["value"]), (&usual["mark"], &usual["value"]));
                }
            }
        }
    }

    fn recorded(&self) {
        for mode in ["discard", "overwrite"] {
            let command = [TRACED, "numbers", "2", &EVENTS.to_string()];
            let recording = self.record().mode(mode).run(&command).succeeded();
            let (trace, events, lost) = check(&recording);
            assert_eq!((events, lost), (2 * EVENTS, 0), "{}", recording.stderr);
            assert!(trace.steps().into_values().all(|numbers| numbers.into_iter().eq(0..EVENTS)));
        }
    }

    fn libc(&self) {
        let command = [ENTER, "none", "calls", &EVENTS.to_string()];
        let record = self.record().option("--libc").option("-e").option("libc:write").input(b"\n");
        let recording = record.env("DORMOUSE_LIBC_LIBRARY", libc_library()).run(&command).succeeded();
        let (trace, _, lost) = check(&recording);
        let writes = trace.values("libc:write").iter().filter(|line| line.contains(" count=u64 0 ")).count();
        assert_eq!((writes as u64, lost), (EVENTS, 0), "{}", recording.stderr);
    }

    /// A program that no recording has started.
    fn attached(&self) {
        for listen in [&[MILD][..], &[MILD, ("DORMOUSE_LISTEN", "thread")]] {
            let events = EVENTS.to_string();
            let command = [&self.prefix()[..], &[BOX, "none", &events]].concat();
            let mut program = Program::start_with(&command, listen, PATIENCE);
            program.wait_for_ready();
            let (pid, dir, run) =
                (program.pid().to_string(), program.place().join("trace"), program.place().join("run"));
            let arm = ["arm", &pid, "e2e:boxed", "-o", dir.to_str().unwrap()];
            let armed = std::thread::scope(|scope| {
                let armed = scope.spawn(|| self.dormouse(&arm, &run));
                while !armed.is_finished() {
                    // It passes a tracepoint, where it notices the tool's signal.
                    program.step_by(b'p');
                }
                armed.join().unwrap()
            });
            assert!(armed.status.success(), "{armed:?}");
            program.step();
            let disarmed = self.dormouse(&["disarm", &pid, "e2e:boxed"], &run);
            assert!(disarmed.status.success(), "{disarmed:?}");
            let trace = Trace::read(&dir);
            assert_eq!(
                (trace.values("e2e:boxed").len() as u64, trace.stats().events_lost),
                (EVENTS, 0),
                "{disarmed:?}"
            );
            assert!(program.end().status.success());
        }
    }

    /// A session ends with the program that it was made for, even if that is killed.
    fn attached_and_killed(&self) {
        let command = [&self.prefix()[..], &[BOX, "none", "1000"]].concat();
        let mut program = Program::start_with(&command, &[MILD, ("DORMOUSE_LISTEN", "thread")], PATIENCE);
        program.wait_for_ready();
        let (pid, dir, run) = (program.pid(), program.place().join("trace"), program.place().join("run"));
        let armed = self.dormouse(&["arm", &pid.to_string(), "e2e:boxed", "-o", dir.to_str().unwrap()], &run);
        assert!(armed.status.success(), "{armed:?}");
        program.step();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid as i32).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        wait_until("the session has ended", || !dir.join(".session").exists());
        let trace = Trace::read(&dir);
        assert!(trace.stats().is_closed);
        assert_eq!((trace.values("e2e:boxed").len(), trace.stats().events_lost), (1_000, 0));
    }

    fn snapshot(&self) {
        let session = snapshots::hold(self.record().mode("overwrite"));
        let dir = session.0.place().join("snapshot");
        let taken = session.0.dormouse_within(&self.prefix(), &["snapshot", "--json", "-o", dir.to_str().unwrap()]);
        assert!(taken.status.success(), "{taken:?}");
        assert_eq!(snapshots::check(&Trace::read(&dir)), 1_000);
        snapshots::finish(session);
    }

    /// Programs of a session are killed.
    fn killed(&self) {
        kill_with(self.record(), true, self.0);
    }

    /// The session's owner is killed, and its supervisor.
    fn salvaged(&self) {
        let mut running = abandoned(self.record().env("DORMOUSE_LISTEN", "thread"), true);
        let (code, json, dir) = run_within(&self.prefix(), &running, "salvaged", &[]);
        check_whole(&dir, (code, &json));
        running.kill_programs(&pids(running.dir()));
    }

    /// A recording is refused with one line that names the missing call, and leaves no trace.
    fn refused(&self, words: &str) {
        let recording = self.record().run(&[TRACED, "numbers", "1", "1"]);
        let said: Vec<&str> = recording.stderr.lines().collect();
        assert_ne!(recording.code(), 0);
        assert!(said.len() == 1 && said[0].starts_with("dormouse: ") && said[0].contains(words), "{said:?}");
        assert!(recording.stdout.is_empty() && !recording.dir.join("metadata").exists());
    }
}

macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident: $kernel:literal, $warnings:expr;)*) => {$(
        $(#[$doc])*
        mod $name {
            use super::*;

            const KERNEL: Kernel = Kernel($kernel, &$warnings);

            #[test]
            fn told() {
                KERNEL.told();
            }

            #[test]
            fn recorded() {
                KERNEL.recorded();
            }

            #[test]
            fn libc() {
                KERNEL.libc();
            }

            #[test]
            fn attached() {
                KERNEL.attached();
            }

            #[test]
            fn attached_and_killed() {
                KERNEL.attached_and_killed();
            }

            #[test]
            fn snapshot() {
                KERNEL.snapshot();
            }

            #[test]
            fn killed() {
                KERNEL.killed();
            }

            #[test]
            fn salvaged() {
                KERNEL.salvaged();
            }
        }
    )*};
}

/// Warnings where sites cannot be patched.
const PATCHING: (&str, &str) = ("patching", "the kernel offers no membarrier(PRIVATE_EXPEDITED_SYNC_CORE)");
const BARRIER: (&str, &str) = ("membarrier", "older than Linux 4.16");
const NO_RSEQ: (&str, &str) = ("restartable sequences", "the kernel (or valgrind, or qemu) has no rseq(2)");
const ENDS: (&str, &str) = ("process ends", "older than Linux 5.3");

kernels! {
    without_rseq: "without-rseq", [NO_RSEQ];
    without_membarrier: "without-membarrier", [
        PATCHING, ("membarrier", "has no membarrier(2)"), ("restartable sequences", "has no membarrier(2)"),
    ];
    without_close_range: "without-close-range", [];
    without_pidfd: "without-pidfd", [ENDS];
    without_huge_pages: "without-huge-pages", [];
    linux_5_4: "linux-5.4", [("restartable sequences", "older than Linux 5.10")];
    linux_4_15: "linux-4.15", [PATCHING, BARRIER, NO_RSEQ, ENDS];
    linux_4_4: "linux-4.4", [PATCHING, BARRIER, NO_RSEQ, ENDS];
}

/// Before Linux 3.17.
#[test]
fn memory_files_are_needed() {
    Kernel("without-memfd", &[])
        .refused("needs sealed memory files (Linux 3.17 or later), and memfd_create(2) is missing");
}

#[test]
fn seals_are_needed() {
    Kernel("without-seals", &[])
        .refused("needs sealed memory files (Linux 3.17 or later), and fcntl(F_ADD_SEALS) is missing");
}

//! Programs under valgrind, which has no restartable sequences, hides the vDSO, and executes translations of the
//! program's text.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, dormouse};
use dormouse_e2e::trace::Trace;
use dormouse_testing::{has, may_unshare, wait_until};

const LIVE: &str = env!("CARGO_BIN_EXE_e2e-live");
const TRACED: &str = env!("CARGO_BIN_EXE_e2e-traced");

/// Threads take turns; a program that accesses memory wrongly ends with 99.
const VALGRIND: [&str; 4] = ["valgrind", "-q", "--fair-sched=yes", "--error-exitcode=99"];

/// Options of unshare(1): a PID namespace, in which ids can be chosen.
const NAMESPACE: [&str; 4] = ["-r", "--pid", "--fork", "--mount-proc"];

/// Returns the command line that makes valgrind run a program.
fn guest<'a>(program: &[&'a str]) -> Vec<&'a str> {
    [&VALGRIND, program].concat()
}

#[test]
fn dormant_programs_behave_the_same() {
    if !has("valgrind") {
        return;
    }
    let run = |command: &[&str]| Command::new(command[0]).args(&command[1..]).output().unwrap();
    for program in [&[TRACED, "numbers", "2", "500"], &[TRACED, "dormant", "500", ""], &[TRACED, "no such", "", ""]] {
        let (plain, guest) = (run(program), run(&guest(program)));
        assert_eq!((guest.status.code(), guest.stdout), (plain.status.code(), plain.stdout), "{program:?}");
    }
}

#[test]
fn every_event_and_process_is_recorded() {
    if !has("valgrind") {
        return;
    }
    for (context, rseq, clock) in [("ids", true, "tsc"), ("ids", false, "monotonic"), ("none", true, "tsc")] {
        let record = Record::new().context(context).rseq(rseq).env("DORMOUSE_CLOCK", clock);
        let recording = record.run(&guest(&[TRACED, "numbers", "3", "2000"])).succeeded();
        let (trace, events, lost) = check(&recording);
        assert_eq!((events, lost), (6000, 0));
        assert!(trace.steps().values().all(|numbers| numbers.iter().copied().eq(0..2000)));
    }
    let recording = Record::new().budget("64M").run(&guest(&[TRACED, "fork", "3", "100"])).succeeded();
    let (trace, _, lost) = check(&recording);
    assert_eq!((lost, recording.numbers("child").len()), (0, 3));
    let steps = trace.steps();
    for child in recording.numbers("child") {
        assert!(steps[&(child as u32, 20)].iter().copied().eq(0..100));
    }
}

/// Process ids wrap after the largest: a child's id is then smaller than its parent's.
#[test]
fn children_may_have_smaller_ids() {
    if !has("valgrind") || !may_unshare(&NAMESPACE) {
        return;
    }
    // Two threads, a child, a child with the largest id, and its child.
    let last = "max=$(cat /proc/sys/kernel/pid_max) && echo $((max - 5)) > /proc/sys/kernel/ns_last_pid && echo max $max && exec \"$@\"";
    let command =
        [&["unshare"], &NAMESPACE[..], &["sh", "-c", last, "sh"], &guest(&[TRACED, "fork", "3", "100"])].concat();
    let recording = Record::new().budget("64M").run(&command).succeeded();
    let (max, children) = (recording.numbers("max")[0], recording.numbers("child"));
    assert_eq!((children[0], children[1]), (max - 2, max - 1));
    assert!(children[2] < children[0], "{children:?}");
    assert_eq!(recording.summary().lost, 0);
}

#[test]
fn the_exit_code_is_the_programs() {
    if !has("valgrind") {
        return;
    }
    let recording = Record::new().run(&guest(&[TRACED, "die", "15"]));
    assert_eq!((recording.code(), recording.summary().events), (128 + 15, 1), "{}", recording.stderr);
}

/// A program that is killed with the test, even if the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Code that was translated before must not be executed afterwards.
#[test]
fn a_running_program_is_armed_and_disarmed() {
    if !has("valgrind") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let rounds = place.path().join("rounds");
    let mut child = Command::new(VALGRIND[0]);
    child.args(&VALGRIND[1..]).arg(LIVE).arg(&rounds).env("XDG_RUNTIME_DIR", place.path());
    let Killed(child) = &mut Killed(child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    let wait_for_rounds = || {
        let round = || u64::from_le_bytes(std::fs::read(&rounds).unwrap().try_into().unwrap());
        let first = round();
        wait_until("the program goes on", || round() >= first + 3);
    };
    let (pid, dir) = (child.id().to_string(), place.path().join("trace"));
    let succeed = |arguments: &[&str]| {
        let output = Command::new(dormouse()).args(arguments).env("XDG_RUNTIME_DIR", place.path()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // Dormant rounds, which valgrind translates unpatched.
    wait_for_rounds();
    succeed(&["arm", &pid, "live:*", "-o", dir.to_str().unwrap()]);
    wait_for_rounds();
    let summary = succeed(&["disarm", &pid, "*"]);
    assert!(summary.contains(" events, 0 lost, 1 process,"), "{summary}");
    // Nothing is evaluated any more once each thread has completed its round.
    wait_for_rounds();
    drop(child.stdin.take());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let evaluated: u64 = rest.trim().strip_prefix("evaluated ").unwrap().parse().unwrap();
    let stats = Trace::read(&dir).stats();
    let ticks: u64 = stats.classes.iter().filter(|class| class.name == "live:tick").map(|class| class.count).sum();
    // The arguments of an event may be evaluated once more while the program leaves its session.
    assert!(ticks > 0 && (ticks..=ticks + 1).contains(&evaluated), "{ticks} of {evaluated}");
}

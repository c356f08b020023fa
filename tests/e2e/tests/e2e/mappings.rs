//! A session's memory is not in core dumps of the program and is not locked, as the kernel reports for each mapping
//! (`VmFlags`, proc(5)).

use std::time::Duration;

use dormouse_e2e::program::Program;
use dormouse_e2e::run::{Record, libc_library};
use dormouse_testing::has_part;

use crate::LIVE;

/// Returns for each mapping of a session's memory in an `smaps` file whether core dumps include it. Asserts that none
/// is locked.
fn are_dumped(smaps: &str) -> Vec<bool> {
    let mut dumped = Vec::new();
    let mut is_session = false;
    for line in smaps.lines() {
        let name = line.split_ascii_whitespace().next().unwrap_or_default();
        if !name.ends_with(':') {
            is_session = line.contains("dormouse-session") || line.ends_with(".buffers");
        } else if name == "VmFlags:" && is_session {
            let has = |flag| line.split_ascii_whitespace().any(|word| word == flag);
            assert!(!has("lo"), "{smaps}");
            dumped.push(!has("dd"));
        }
    }
    dumped
}

#[test]
fn core_dumps_have_the_sessions_memory_only_with_dump_buffers() {
    libc_library();
    // A program, and a forked child of another.
    let script = "cat /proc/self/smaps; (while read -r line; do echo \"$line\"; done < /proc/self/smaps); :";
    let file = tempfile::tempdir().unwrap();
    for (options, is_dumped) in [(&[][..], false), (&["--dump-buffers"], true), (&["--buffers"], false)] {
        let mut record = Record::new().option("--libc");
        for option in options {
            record = record.option(option);
            if *option == "--buffers" {
                record = record.option(file.path().join("memory.buffers"));
            }
        }
        let recording = record.run(&["sh", "-c", script]).succeeded();
        assert_eq!(are_dumped(&recording.stdout), [is_dumped; 2], "{options:?}: {}", recording.stdout);
    }
}

/// Also tests a program that locks everything that it maps, whether it may lock as much as a session's memory or not.
#[test]
fn core_dumps_of_an_armed_program_lack_the_sessions_memory() {
    let restricted: &[&str] = &["setpriv", "--bounding-set", "-ipc_lock"];
    let ways: [(&[&str], &[&str], &[&str]); 4] = [
        (&[], &[], &[]),
        (&[], &[], &["--dump-buffers"]),
        (&[], &["8388608"], &[]),
        // Otherwise root may lock everything without a limit.
        (restricted, &["8388608"], &[]),
    ];
    for (prefix, locks, options) in ways {
        let may_restrict = || has_part(prefix[0]) && rustix::process::geteuid().is_root();
        if !prefix.is_empty() && !may_restrict() {
            continue;
        }
        let place = tempfile::tempdir().unwrap();
        let rounds = place.path().join("rounds");
        let rounds = [LIVE, rounds.to_str().unwrap()];
        let command = [prefix, &rounds, locks].concat();
        let mut program = Program::start(&command, Duration::from_secs(60));
        program.wait_for_ready();
        let pid = program.pid().to_string();
        let trace = place.path().join("trace");
        let mut arm = vec!["arm", "-o", trace.to_str().unwrap()];
        arm.extend(options);
        arm.extend([&pid, "*"]);
        let output = program.dormouse(&arm, &program.place().join("run"));
        assert!(output.status.success(), "{output:?}");
        let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        assert_eq!(are_dumped(&smaps), [!options.is_empty()], "{command:?}: {smaps}");
        program.end();
    }
}

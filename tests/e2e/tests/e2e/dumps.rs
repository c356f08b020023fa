//! A core dump of a traced program is as large as without a session: the kernel says of each mapping whether dumps have it (`VmFlags`, proc(5)).

use std::time::Duration;

use dormouse_e2e::program::Program;
use dormouse_e2e::run::{Record, libc_library};

use crate::LIVE;

/// Of each mapping of a session's memory in such a file, whether dumps have it.
fn are_dumped(smaps: &str) -> Vec<bool> {
    let mut dumped = Vec::new();
    let mut is_session = false;
    for line in smaps.lines() {
        let name = line.split_ascii_whitespace().next().unwrap_or_default();
        if !name.ends_with(':') {
            is_session = line.contains("dormouse-session") || line.ends_with(".buffers");
        } else if name == "VmFlags:" && is_session {
            dumped.push(!line.split_ascii_whitespace().any(|flag| flag == "dd"));
        }
    }
    dumped
}

#[test]
fn dumps_have_the_memory_of_a_session_only_if_that_was_asked_for() {
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

#[test]
fn dumps_of_a_program_that_is_armed_have_it_neither() {
    for (option, is_dumped) in [(None, false), (Some("--dump-buffers"), true)] {
        let place = tempfile::tempdir().unwrap();
        let rounds = place.path().join("rounds");
        let mut program = Program::start(&[LIVE.as_ref(), rounds.as_os_str()], Duration::from_secs(60));
        program.wait_for_ready();
        let pid = program.pid().to_string();
        let trace = place.path().join("trace");
        let mut arm = vec!["arm", "-o", trace.to_str().unwrap()];
        arm.extend(option);
        arm.extend([&pid, "*"]);
        let output = program.dormouse(&arm, &program.place().join("run"));
        assert!(output.status.success(), "{output:?}");
        let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        assert_eq!(are_dumped(&smaps), [is_dumped], "{option:?}: {smaps}");
        program.end();
    }
}

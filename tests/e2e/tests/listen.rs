//! Programs that listen by a signal: who reaches them, when, and what is said where nobody does.
#![cfg(target_os = "linux")]

use std::process::Output;

use dormouse_e2e::program::Program;
use dormouse_e2e::run::PATIENCE;

const SIGNAL: &str = env!("CARGO_BIN_EXE_e2e-signal");

fn start(mode: &str) -> Program {
    let mut program = Program::start_with(&[SIGNAL, mode], &[("DORMOUSE_LISTEN", "signal")], PATIENCE);
    program.wait_for_ready();
    program
}

/// What `dormouse list` says of it while it does one step after another, or none.
fn list(program: &mut Program, byte: Option<u8>) -> Output {
    let (pid, run) = (program.pid().to_string(), program.place().join("run"));
    match byte {
        Some(byte) => program.dormouse_amid_steps(&["list", &pid], &run, byte),
        None => program.dormouse(&["list", &pid], &run),
    }
}

fn assert_reached(output: &Output) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout.contains("e2e:passed"), "{output:?}");
}

fn assert_passed_none(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("has passed no tracepoint"), "{output:?}");
}

fn threads(program: &Program) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", program.pid())).expect("a process that lives").count()
}

#[test]
fn a_program_that_passes_a_tracepoint_is_reached() {
    let mut program = start("alone");
    assert_eq!(threads(&program), 1, "before a tool has come");
    assert_reached(&list(&mut program, Some(b'p')));
}

#[test]
fn one_that_passes_none_is_told_of_and_is_reached_later() {
    let mut program = start("alone");
    assert_passed_none(&list(&mut program, None));
    assert_passed_none(&list(&mut program, Some(b'n')));
    assert_eq!(threads(&program), 1, "without a tracepoint");
    assert_reached(&list(&mut program, Some(b'p')));
}

/// In a handler no thread is started: it may have interrupted an allocator.
#[test]
fn a_tracepoint_in_a_handler_does_not_count() {
    let mut program = start("alone");
    assert_passed_none(&list(&mut program, Some(b'h')));
    assert_eq!(threads(&program), 1, "passed in handlers alone");
    assert_reached(&list(&mut program, Some(b'p')));
}

#[test]
fn a_forked_child_has_a_socket_and_a_signal_of_its_own() {
    let mut program = start("fork");
    assert_reached(&list(&mut program, Some(b'p')));
    assert!(program.end().status.success());
}

#[test]
fn a_program_that_handles_the_signal_itself_keeps_it() {
    let program = start("taken");
    assert!(program.stdout().contains("refused: "), "{}", program.stdout());
    let ended = program.end();
    assert!(ended.status.success(), "{ended:?}");
}

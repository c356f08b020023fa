//! Programs that listen by a signal, as programs linked with Dormouse do: their state while no tool comes, which tools
//! reach them and when, the effects of a call on them, and the message if they are not reached.
#![cfg(target_os = "linux")]

use std::process::Output;

use dormouse_e2e::program::Program;
use dormouse_e2e::run::PATIENCE;
use dormouse_testing::wait_until;
use rustix::process::{Pid, Signal, kill_process};

const SIGNAL: &str = env!("CARGO_BIN_EXE_e2e-signal");

fn start(mode: &str) -> Program {
    let mut program = Program::start(&[SIGNAL, mode], PATIENCE);
    program.wait_for_ready();
    program
}

/// Returns the output of a command about the program. Meanwhile the program repeats the step of `byte`, or does none.
fn ask(program: &mut Program, command: &str, more: &[&str], byte: Option<u8>) -> Output {
    let (pid, run) = (program.pid().to_string(), program.place().join("run"));
    let arguments = [&[command, &pid], more].concat();
    match byte {
        Some(byte) => program.dormouse_amid_steps(&arguments, &run, byte),
        None => program.dormouse(&arguments, &run),
    }
}

fn list(program: &mut Program, byte: Option<u8>) -> Output {
    ask(program, "list", &["--wait", "60s"], byte)
}

fn list_shortly(program: &mut Program, byte: Option<u8>) -> Output {
    ask(program, "list", &["--wait", "2s"], byte)
}

fn assert_reached(output: &Output) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout.contains("e2e:passed"), "{output:?}");
}

fn assert_says(output: &Output, words: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains(words), "{output:?}");
}

/// Returns a field of `/proc/PID/status`.
fn status(program: &Program, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid())).expect("a process that lives");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
    line.trim().into()
}

fn files(program: &Program, directory: &str) -> usize {
    std::fs::read_dir(format!("/proc/{}/{directory}", program.pid())).expect("a process that lives").count()
}

#[test]
fn a_program_that_no_tool_asks_has_only_a_handler() {
    let mut silent = Program::start_with(&[SIGNAL, "pause"], &[("DORMOUSE_LISTEN", "0")], PATIENCE);
    silent.wait_for_ready();
    let program = start("pause");
    for directory in ["task", "fd", "map_files"] {
        assert_eq!(files(&program, directory), files(&silent, directory), "{directory}");
    }
    // Expects SIGURG, and the program's own SIGUSR1. Rust's runtime has handlers for faults.
    let caught = u64::from_str_radix(&status(&program, "SigCgt:"), 16).expect("a set of signals");
    let faults = [Signal::SEGV, Signal::BUS].map(|signal| 1 << (signal.as_raw() - 1)).iter().sum::<u64>();
    let expected = [Signal::URG, Signal::USR1].map(|signal| 1 << (signal.as_raw() - 1)).iter().sum::<u64>();
    assert_eq!(caught & !faults, expected, "{caught:x}");
    assert!(!program.place().join("run/dormouse").exists(), "a directory of sockets");
}

#[test]
fn a_program_that_passes_a_tracepoint_is_reached_and_then_left_alone() {
    let mut program = start("alone");
    let count_before = files(&program, "fd");
    assert_eq!(files(&program, "task"), 1, "before a tool has come");
    assert_reached(&list(&mut program, Some(b'p')));
    wait_until("the thread ends after the last tool", || files(&program, "task") == 1);
    assert_eq!(files(&program, "fd"), count_before);
    // It can be reached again.
    assert_reached(&list(&mut program, Some(b'p')));
}

#[test]
fn a_program_that_passes_no_tracepoint_is_reported_and_reached_later() {
    let mut program = start("alone");
    for byte in [None, Some(b'n')] {
        assert_says(&list_shortly(&mut program, byte), "has passed no tracepoint since the tool's signal");
    }
    assert_eq!(files(&program, "task"), 1, "without a tracepoint");
    assert_reached(&list(&mut program, Some(b'p')));
}

/// No thread is started in a handler, which may have interrupted an allocator.
#[test]
fn a_tracepoint_in_a_handler_does_not_count() {
    for mode in ["alone", "no-defer", "small-stack"] {
        let mut program = start(mode);
        assert_says(&list_shortly(&mut program, Some(b'h')), "has passed no tracepoint");
        assert_eq!(files(&program, "task"), 1, "{mode}: passed in handlers alone");
        assert_reached(&list(&mut program, Some(b'p')));
    }
}

#[test]
fn threads_that_block_signals_and_programs_whose_first_thread_has_ended_are_reached() {
    for mode in ["workers", "leaves"] {
        let mut program = start(mode);
        assert_reached(&list(&mut program, Some(b'p')));
        // The program's end does not wait for a thread of the tracer.
        let ended = program.end();
        assert!(ended.status.success(), "{mode}: {ended:?}");
    }
}

#[test]
fn a_forked_child_is_called_like_its_parent() {
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

#[test]
fn a_program_that_ignores_the_signal_is_reported_at_once() {
    let mut program = start("given-up");
    assert_says(&list(&mut program, None), "have replaced the handler of SIGURG");
}

/// A call would make `pause` return.
#[test]
fn a_program_that_waits_for_signals_is_not_called() {
    let mut program = start("pause");
    assert_says(&list_shortly(&mut program, None), "each of its threads waits for signals");
    let pid = Pid::from_raw(program.pid() as i32).expect("an id");
    kill_process(pid, Signal::USR1).expect("it lives");
    let ended = program.end();
    let own = format!("signal {}\n", Signal::USR1.as_raw());
    assert!(ended.status.success() && ended.stdout.ends_with(&own), "{ended:?}");
}

/// Returns the number of tools that come to each program.
fn call_count() -> u64 {
    std::env::var("DORMOUSE_CALLS").map_or(3, |count| count.parse().expect("a number"))
}

/// A call interrupts the program's own once at most, and none that the kernel or libc begins again. What returns `EINTR` is in docs/footprint.md.
#[test]
fn a_call_interrupts_at_most_one_system_call() {
    let count = call_count();
    for (mode, is_interrupted) in [
        ("read", false),
        ("cond", false),
        ("poll", true),
        ("epoll", true),
        ("select", true),
        ("nanosleep", true),
        ("sem", true),
    ] {
        let mut program = start(mode);
        for _ in 0..count {
            assert_reached(&list(&mut program, None));
            program.step_by(b'r');
        }
        let ended = program.end();
        let text = ended.stdout.lines().last().and_then(|line| line.strip_prefix("interrupted ")).expect("a count");
        println!("{count} calls of a program in {mode}: interrupted {text}");
        let interrupted: u64 = text.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
        assert!(interrupted <= if is_interrupted { count } else { 0 }, "{mode}: {text} by {count} calls");
    }
}

/// The program must be called again each time: `r` ends the listener.
#[test]
fn repeated_arming_by_signals_loses_nothing() {
    let count = call_count();
    let mut program = start("nanosleep");
    for round in 0..count {
        let dir = program.place().join("trace");
        let text = dir.to_string_lossy().into_owned();
        let armed = ask(&mut program, "arm", &["e2e:passed", "-o", &text], None);
        assert!(armed.status.success(), "round {round}: {armed:?}");
        let disarmed = ask(&mut program, "disarm", &["*"], None);
        let said = String::from_utf8_lossy(&disarmed.stdout);
        assert!(disarmed.status.success() && said.contains(", 0 lost, "), "round {round}: {disarmed:?}");
        std::fs::remove_dir_all(&dir).expect("a trace");
        program.step_by(b'r');
    }
    assert!(program.end().status.success());
}

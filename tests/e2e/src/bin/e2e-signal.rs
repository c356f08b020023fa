//! A traced program that listens by a signal, if `DORMOUSE_LISTEN` says so: `e2e-signal alone | fork | taken`.
//!
//! At a byte `p` it passes a tracepoint, at `h` it passes one in a signal's handler, at any other none. `fork`: it is a child that does so. `taken`: the
//! signal is the program's own by then, and it says what came of asking to be listened to.

use std::io::{Read, Write};

extern "C" fn passing(_: libc::c_int) {
    dormouse::event!(e2e.handled);
}

fn handle(signal: libc::c_int) {
    // SAFETY: integers, a set of bits and a pointer that may be null, of which zeroes are values.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = passing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the action is filled in, and lives for the call. Its function does what a handler may: a tracepoint is async-signal-safe.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }, 0);
}

fn main() {
    let mode = std::env::args().nth(1).expect("a mode");
    handle(libc::SIGUSR1);
    match mode.as_str() {
        "alone" => (),
        "fork" => {
            // SAFETY: no tool has come yet, so a program that listens by a signal has no other thread, whose locks the child could find taken.
            let child = unsafe { libc::fork() };
            if child != 0 {
                let mut status = 0;
                // SAFETY: room for an answer (waitpid(2)).
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                return;
            }
        }
        "taken" => {
            dormouse::stop_listening().expect("it stops");
            handle(libc::SIGURG);
            let refused = dormouse::listen_by(dormouse::Way::Signal).expect_err("the signal is the program's");
            println!("refused: {refused}");
        }
        other => panic!("no mode `{other}`"),
    }
    println!("ready");
    let mut byte = [0];
    while std::io::stdin().read(&mut byte).is_ok_and(|count| count > 0) {
        match byte[0] {
            b'p' => dormouse::event!(e2e.passed),
            // SAFETY: takes a number; the signal has a handler, which does what a handler may.
            b'h' => drop(unsafe { libc::raise(libc::SIGUSR1) }),
            _ => (),
        }
        println!("ready");
        std::io::stdout().flush().expect("somebody reads");
    }
}

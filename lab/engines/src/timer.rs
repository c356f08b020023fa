//! Runs a program, discards its output, and prints its cost: `[wall time in s, CPU time in s, peak memory in MiB]`.
//!
//! `wait4` reports the peak memory of a process from its start on, when it was still a copy of its parent. So this is a
//! process of its own, which is small.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Instant;

/// Runs a program to its end. Returns its status, wall time in seconds, CPU time in seconds, and peak memory in MiB.
fn timed(command: &mut Command) -> std::io::Result<(ExitStatus, [f64; 3])> {
    let started = Instant::now();
    let child = command.spawn()?;
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: room for both answers; nothing else waits for this child, so the id is still its own (wait4(2)).
    while unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, usage.as_mut_ptr()) } < 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let wall_s = started.elapsed().as_secs_f64();
    // SAFETY: all zeroes is a valid `rusage`, and so is the value that the kernel has written over them.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let (cpu_s, peak_mib) = (seconds(usage.ru_utime) + seconds(usage.ru_stime), usage.ru_maxrss as f64 / 1024.0);
    Ok((ExitStatus::from_raw(status), [wall_s, cpu_s, peak_mib]))
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("dormouse-lab-engine-timer PROGRAM ARGUMENT…");
        return ExitCode::from(2);
    };
    match timed(Command::new(&program).args(words).stdin(Stdio::null()).stdout(Stdio::null())) {
        Ok((status, [wall_s, cpu_s, peak_mib])) if status.success() => {
            println!("[{wall_s},{cpu_s},{peak_mib}]");
            ExitCode::SUCCESS
        }
        Ok((status, _)) => {
            eprintln!("{}: {status}", program.display());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{}: {error}", program.display());
            ExitCode::FAILURE
        }
    }
}

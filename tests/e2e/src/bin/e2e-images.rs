//! Programs that execute other programs. The first argument names the program.

use std::ffi::{CStr, CString};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Number of events of each program after `exec`.
const BEHIND: u64 = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments[index].parse::<u64>().expect("a number");
    match arguments[0].as_str() {
        "replaced" => replaced(Path::new(&arguments[1]), number(2), number(3)),
        "behind" => behind(number(1)),
        "executes" => executes(&arguments[1..]),
        "daemon" => daemon(Path::new(&arguments[1])),
        "locked-out" => locked_out(Path::new(&arguments[1])),
        "lingers" => wait_until_there(Path::new(&arguments[1])),
        other => panic!("no program `{other}`"),
    }
}

/// Runs `count` children, `at_once` of them concurrently, that emit an event, close what they have inherited, and
/// execute a program.
fn replaced(program: &Path, count: u64, at_once: u64) {
    let program = CString::new(program.as_os_str().as_encoded_bytes()).expect("no NUL");
    for number in 0..count {
        // SAFETY: there is only one thread, so the child may continue like any program.
        match unsafe { libc::fork() } {
            0 => {
                dormouse::event!(images.before, number);
                become_behind(&program, number)
            }
            pid => assert!(pid > 0, "cannot fork: {}", std::io::Error::last_os_error()),
        }
        if number >= at_once {
            wait_for_one();
        }
    }
    (0..at_once.min(count)).for_each(|_| wait_for_one());
}

fn become_behind(program: &CStr, number: u64) -> ! {
    // SAFETY: no code uses these descriptors any more: the process is about to execute another program.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    let number = CString::new(number.to_string()).expect("no NUL");
    let arguments = [c"behind".as_ptr(), c"behind".as_ptr(), number.as_ptr(), core::ptr::null()];
    // SAFETY: the path and the arguments end in NUL, and the list ends in null.
    unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) };
    // SAFETY: _exit(2) ends the process.
    unsafe { libc::_exit(9) }
}

fn wait_for_one() {
    let mut status = 0;
    // SAFETY: `status` has room for the answer (waitpid(2)).
    let pid = unsafe { libc::wait(&mut status) };
    assert!(pid > 0 && status == 0, "process {pid}: {status}");
}

/// Emits until there is something to read, and then executes another program.
fn executes(program: &[String]) {
    while !may_read() {
        dormouse::event!(images.tick, pid = std::process::id());
    }
    if let [path, arguments @ ..] = program {
        let mut byte = [0];
        let _ = std::io::stdin().read(&mut byte);
        panic!("cannot execute {path}: {}", Command::new(path).args(arguments).exec());
    }
}

/// Waits a moment for something to read, or for the end of input.
fn may_read() -> bool {
    let mut stdin = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
    // SAFETY: poll(2) accesses one live entry.
    unsafe { libc::poll(&mut stdin, 1, 10) == 1 }
}

/// Continues without the process that was started, until a file exists. Prints the number of events.
fn daemon(end: &Path) {
    let starter = std::process::id();
    // SAFETY: there is only one thread, so the child may continue like any program.
    if unsafe { libc::fork() } != 0 {
        return;
    }
    rustix::process::setsid().expect("a child leads no group");
    println!("starter {starter}\ndaemon {}", std::process::id());
    let mut count = 0;
    while is_awaited(end) {
        dormouse::event!(images.tick, pid = std::process::id());
        count += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("ticks {count}");
}

/// Executes a program that knows of no session: without environment, and with three descriptors.
fn locked_out(end: &Path) {
    let mut command = Command::new(std::env::current_exe().expect("a program has a path"));
    let close = || {
        // SAFETY: close_range(2) only sets a flag of descriptors that are not used after `exec`.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        Ok(())
    };
    // SAFETY: `close` only makes one system call between fork and exec.
    unsafe { command.pre_exec(close) };
    panic!("{}", command.arg("lingers").arg(end).env_clear().exec());
}

/// Whether a file does not exist yet. False once the test's directory is gone, because the file cannot appear any more.
fn is_awaited(file: &Path) -> bool {
    !file.exists() && file.parent().is_some_and(Path::exists)
}

fn wait_until_there(end: &Path) {
    while is_awaited(end) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn behind(number: u64) {
    (0..BEHIND).for_each(|index| dormouse::event!(images.behind, number, index));
}

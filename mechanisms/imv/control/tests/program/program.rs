//! Program that the tests list and set: it does what each line of its input says, and answers with a line.

use std::io::stdin;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use dormouse_imv::{StaticKey, imv, imv_read, static_branch, tunable};

imv! {
    static BATCH: u32 = 16;
    static RATIO: f64 = 0.5;
}
static AUDIT: StaticKey = StaticKey::new();
tunable!(BATCH, "steered.batch", "requests at once", 1..=1024);
tunable!(RATIO, "steered.ratio", "of something", 0.0..=1.0);
tunable!(AUDIT, "steered.audit", "note who asks");

/// Returns what the program's own instructions say.
fn values() -> String {
    let audit = if static_branch!(AUDIT) { "on" } else { "off" };
    format!("{} {:?} {audit}", imv_read!(BATCH), imv_read!(RATIO))
}

fn said(result: std::io::Result<()>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "done".into())
}

fn count(directory: &str) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

/// Prints the values each 10 ms, until it is killed.
fn print() -> ! {
    loop {
        println!("{}", values());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Forks. The parent returns the child's id; the child ends once it has been set.
fn fork() -> String {
    // SAFETY: no other thread of this program holds a lock that the child takes.
    let child = unsafe { libc::fork() };
    if child != 0 {
        return child.to_string();
    }
    while imv_read!(BATCH) == 16 {
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("child {}", values());
    std::process::exit(0)
}

pub fn run() {
    println!("ready");
    for line in stdin().lines() {
        let answer = match line.unwrap().as_str() {
            "listen" => said(dormouse_imv_control::listen()),
            "stop" => said(dormouse_imv_control::stop_listening()),
            "values" => values(),
            "threads" => count("/proc/self/task").to_string(),
            "descriptors" => count("/proc/self/fd").to_string(),
            // SAFETY: the program itself uses none of these.
            "close" => unsafe { libc::close_range(3, u32::MAX, 0) }.to_string(),
            "fork" => fork(),
            "print" => print(),
            "exec" => said(Err(Command::new(std::env::current_exe().unwrap()).exec())),
            word => panic!("{word}"),
        };
        println!("{answer}");
    }
}

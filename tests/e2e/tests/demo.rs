//! Recordings of `cargo xtask demo`, where only tests run: examples in Rust and C that are already running are armed and disarmed,
//! and babeltrace2 counts their events. The demo's build is compiled by the tests in `real_build`.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use dormouse_e2e::run::{babeltrace2_lines, dormouse};
use dormouse_e2e::trace::Trace;
use dormouse_testing::c_programs::succeed;
use dormouse_testing::programs::{build, profile_dir};
use dormouse_testing::{has, include_dirs, wait_until};

/// How long a program runs, in seconds: long enough for the commands below, in emulation too.
const PROGRAM_SECONDS: &str = "12";
/// How long its events are armed: some thousands are recorded, and how many is only told when the recording ends.
const ARMED: Duration = Duration::from_millis(1500);

/// Arms and disarms all events of a program while it runs, and counts what was recorded.
fn record_live(place: &Path, program: &Path, provider: &str) {
    // It is built before the program starts, which does not wait.
    let tool = dormouse();
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(tool);
        command.args(arguments).env("XDG_RUNTIME_DIR", place);
        command
    };
    let mut running = Command::new(program);
    running.arg(PROGRAM_SECONDS).env("XDG_RUNTIME_DIR", place).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut running = running.spawn().expect("the program runs");
    let mut stdout = BufReader::new(running.stdout.take().expect("a pipe"));
    let mut pid = String::new();
    stdout.read_line(&mut pid).expect("its first line");
    let (pid, pattern, trace) = (pid.trim(), format!("{provider}:*"), place.join(provider));
    wait_until("the program listens", || ask(&["list", pid]).output().expect("dormouse runs").status.success());
    succeed(ask(&["arm", pid, &pattern, "-o"]).arg(&trace));
    thread::sleep(ARMED);
    succeed(&mut ask(&["disarm", pid, &pattern]));
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("its output");
    assert!(running.wait().expect("it ends").success(), "{rest}");

    let stats = Trace::read(&trace).stats();
    assert!(stats.events > 0, "nothing was recorded");
    let Some(lines) = babeltrace2_lines(&trace) else { return };
    // The session's own records are events too, for babeltrace2.
    let is_own = |line: &&str| line.split('{').next().is_some_and(|head| head.contains(" dormouse:"));
    let theirs = lines.lines().filter(|line| !is_own(line)).count() as u64;
    println!("{provider}: {} events, {} lost; babeltrace2 counts {theirs}", stats.events, stats.events_lost);
    assert_eq!(theirs, stats.events);
}

#[test]
fn a_rust_program_that_is_already_running() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let bakery = build(&["dormouse", "--example", "bakery"]).join("examples/bakery");
    record_live(place.path(), &bakery, "bakery");
}

#[test]
fn a_c_program_that_is_already_running() {
    if !has("cc") {
        return;
    }
    let place = tempfile::tempdir().expect("a temporary directory");
    let (shop, library) = (place.path().join("shop-program"), profile_dir().join("libdormouse.so"));
    build(&["dormouse-capi"]);
    // The program looks for the library by the name that it has where it is installed.
    symlink(&library, place.path().join("libdormouse.so.0")).expect("a link");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-pthread", "-o"]).arg(&shop);
    compile.args(include_dirs().map(|dir| format!("-I{}", dir.display())));
    compile.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../record/capi/examples/shop.c"));
    compile.arg(&library).arg(format!("-Wl,-rpath,{}", place.path().display()));
    succeed(&mut compile);
    record_live(place.path(), &shop, "shop");
}

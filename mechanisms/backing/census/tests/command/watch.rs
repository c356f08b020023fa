//! `dormouse pages -- CMD` and `--watch`: the mistake of the benchmark of 2008 is found, its repaired version is not,
//! and the command is not disturbed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use dormouse_testing::{Lack, copy_program, skip, skip_part};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

use crate::PAGES;

/// Checks that the command prints nothing but one line, and exits with 2. Returns the line.
#[track_caller]
fn refuse(command: &mut Command) -> String {
    let output = command.output().expect("dormouse-pages runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{command:?}: {error}");
    assert!(output.stdout.is_empty() && error.lines().count() == 1, "{command:?}: {output:?}");
    error
}

const SIZE: u64 = 4 << 20;

/// A codec that decodes frames from a static buffer, which was never filled; with `-DREPAIRED` it is filled. The first
/// argument says how the program ends.
const CODEC: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { SIZE = 4 << 20 };
static unsigned char frame[SIZE];
static volatile unsigned long sum;
static void *by_a_thread(void *nothing) { exit(0); }
int main(int argc, char **argv) {
    const char *end = argc > 1 ? argv[1] : "";
#ifdef REPAIRED
    memset(frame, 1, SIZE);
#endif
    for (int pass = 0; pass < 8; pass++)
        for (long size = 4096; size <= SIZE; size *= 2)
            for (long i = 0; i < size; i += 64) sum += ((volatile unsigned char *)frame)[i];
    puts("decoded");
    fflush(stdout);
    pthread_t thread;
    if (!strcmp(end, "thread")) { pthread_create(&thread, 0, by_a_thread, 0); for (;;) pause(); }
    if (!strcmp(end, "abort")) { signal(SIGABRT, SIG_DFL); abort(); }
    if (!strcmp(end, "fail")) return 7;
    return 0;
}
"#;

/// A program that waits for a signal and reports it, or copies its input until that ends.
const PATIENT: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    if (!strcmp(argv[1], "signal")) sigprocmask(SIG_BLOCK, &wanted, 0);
    printf("%d\n", getpid());
    fflush(stdout);
    if (!strcmp(argv[1], "signal")) {
        int found = 0;
        sigwait(&wanted, &found);
        printf("took %d\n", found);
        return 9;
    }
    char line[64];
    while (fgets(line, sizeof line, stdin)) { fputs(line, stdout); fflush(stdout); }
    return 0;
}
"#;

fn build(dir: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let (file, program) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&file, source).unwrap();
    let built = Command::new("cc").args(["-O1", "-pthread"]).args(options).arg(&file).arg("-o").arg(&program).status();
    assert!(built.unwrap().success());
    program
}

fn codec(dir: &Path) -> PathBuf {
    build(dir, "codec", CODEC, &[])
}

fn pages(arguments: &[&str], command: &[&Path]) -> Output {
    Command::new(PAGES).args(arguments).arg("--").args(command).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether `dormouse pages --watch` can tell the zero page here. If not, it says so, which another test checks.
fn sees_zero() -> bool {
    let output = pages(&["--watch"], &[Path::new("true")]);
    let sees = output.status.code() == Some(0);
    if !sees {
        skip(Lack::machine(text(&output.stderr), "run the tests as root, or on Linux 6.7 or later"));
    }
    sees
}

#[test]
fn a_buffer_on_the_zero_page_is_found_and_a_written_one_is_not() {
    if !sees_zero() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (wrong, right) = (codec(dir.path()), build(dir.path(), "repaired", CODEC, &["-DREPAIRED"]));
    for more in [&[][..], &["--period", "1ms"], &["--without-scan"]] {
        let output = pages(&[&["--watch"], more].concat(), &[&wrong]);
        let report = text(&output.stderr);
        if more == ["--without-scan"] && !geteuid().is_root() {
            let lack = Lack::machine("without PAGEMAP_SCAN only root sees the zero page", "run the tests as root");
            skip_part("--without-scan", lack);
            continue;
        }
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(3), "decoded\n"), "{report}");
        let line = report.lines().find(|line| line.contains("frame in codec")).unwrap_or_else(|| panic!("{report}"));
        assert!(line.contains("4.0M") && line.ends_with("← found"), "{report}");
        assert!(report.contains("times as fast as memory [") && report.contains("found: 1 buffer"), "{report}");
        let output = pages(&[&["--watch"], more].concat(), &[&right]);
        let report = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "decoded\n"), "{report}");
        assert!(report.contains("found: nothing") && !report.contains("times as fast"), "{report}");
    }
}

fn json(arguments: &[&str], command: &[&Path]) -> (Option<i32>, Value) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.json");
    let name = file.display().to_string();
    let output = pages(&[arguments, &["--json", "--output", &name]].concat(), command);
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    (output.status.code(), serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap())
}

#[test]
fn the_json_report_is_complete() {
    if !sees_zero() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let codec = codec(dir.path());
    let (code, report) = json(&["--watch", "--period", "1ms"], &[&codec]);
    assert_eq!((code, report["verdict"].as_str(), report["exit_code"].as_i64()), (Some(3), Some("found"), Some(0)));
    let buffers = report["buffers"].as_array().unwrap();
    let found: Vec<&Value> = buffers.iter().filter(|buffer| buffer["is_found"] == true).collect();
    assert_eq!(found.len(), 1, "{buffers:#?}");
    assert_eq!((found[0]["what"]["name"].as_str(), found[0]["size"].as_u64()), (Some("frame"), Some(SIZE)));
    // A page that it shares with another variable may be written.
    assert!(
        found[0]["zero"].as_u64().unwrap() >= SIZE - 8192 && found[0]["zero_at_end"] == found[0]["zero"],
        "{report:#}"
    );
    let number = |value: &Value| value.as_f64().unwrap();
    let speed = &report["speed"];
    assert!(number(&speed["factor"]) > 0.0 && number(&speed["factor_ci95"][0]) <= number(&speed["factor_ci95"][1]));
    // Each page was a fault, unless the kernel has used huge pages.
    assert!(number(&report["whole"]["faults_minor"]) > 0.0 && report["measured"] == report["whole"]);
    assert!(number(&report["whole"]["first_touches"]) > 0.0);
    assert!(number(&report["whole"]["touched"]) >= (SIZE - 8192) as f64, "{:#}", report["whole"]);
    let times: Vec<f64> =
        report["samples"].as_array().unwrap().iter().map(|sample| number(&sample["time_ms"])).collect();
    assert!(times.is_sorted() && !times.is_empty(), "{times:?}");
    assert_eq!(report["census"]["command"], "codec");
    assert_eq!(report["worst"]["zero_variables"][0]["name"], "frame");

    let (code, report) = json(&["--watch", "--share", "100"], &[&codec]);
    assert_eq!((code, report["verdict"].as_str(), &report["speed"]), (Some(0), Some("not-found"), &Value::Null));
    let (code, _) = json(&["--watch", "--size", "1G"], &[&codec]);
    assert_eq!(code, Some(0));
    // Nothing was measured: the command ended before the measured time began.
    let (code, report) = json(&["--watch", "--from", "10m"], &[&codec]);
    assert_eq!((code, report["buffers"].as_array().unwrap().len()), (Some(0), 0));
    assert_eq!(report["measured"]["faults_minor"], 0);
    assert!(report["unseen"][0].as_str().unwrap().contains("measured time"));
}

/// With a very long period, only the last look remains.
#[test]
fn the_last_sample_is_just_before_the_end() {
    if !sees_zero() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let codec = codec(dir.path());
    for (end, code) in [("", 3), ("thread", 3), ("fail", 7), ("abort", 134)] {
        let (found, report) = json(&["--watch", "--period", "60m"], &[&codec, Path::new(end)]);
        if report["unseen"].as_array().unwrap().iter().any(|line| line.as_str().unwrap().contains("not traced")) {
            return skip(Lack::machine(&report["unseen"], "run the tests where ptrace(2) is allowed"));
        }
        assert_eq!((found, report["verdict"].as_str()), (Some(code), Some("found")), "{end}");
        // If another thread ends the process, there is one more look when the first thread ends.
        assert!(report["sample_count"].as_u64().unwrap() <= 2, "{end}");
    }
    // By children of fork, of vfork, and after an exec.
    let name = codec.display();
    for script in [
        format!("{name}; true"),
        format!("exec {name}"),
        format!("({name} & wait)"),
        format!("sh -c '{name}; true'; true"),
    ] {
        let (found, report) =
            json(&["--watch", "--period", "60m"], &[Path::new("sh"), Path::new("-c"), Path::new(&script)]);
        assert_eq!((found, report["verdict"].as_str()), (Some(3), Some("found")), "{script}: {report:#}");
        let buffer = report["buffers"].as_array().unwrap().iter().find(|buffer| buffer["is_found"] == true).unwrap();
        assert_eq!((buffer["command"].as_str(), buffer["what"]["name"].as_str()), (Some("codec"), Some("frame")));
    }
}

#[test]
fn without_ptrace_only_samples_are_taken() {
    let output = pages(&["--watch", "--no-ptrace"], &[Path::new("true")]);
    let report = text(&output.stderr);
    assert!(report.contains("not seen: the command is not traced"), "{report}");
    let dir = tempfile::tempdir().unwrap();
    let patient = build(dir.path(), "patient", PATIENT, &[]);
    let mut running = Running::new(&["--no-ptrace", "--period", "1ms"], &[&patient, Path::new("read")], dir.path());
    let family = fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.pid));
    assert!(family.is_ok(), "the command runs");
    drop(running.child.stdin.take());
    let (code, report) = running.end();
    assert!(matches!(code, Some(0 | 2)), "{report}");
}

/// The signal that [`PATIENT`] itself blocks until it waits for it.
const TERM: u64 = 1 << 14;

/// Returns the signals that a process blocks, signal 1 in bit 0.
fn blocked(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

/// A running command that has printed its process id.
struct Running {
    child: Child,
    output: std::io::Lines<BufReader<std::process::ChildStdout>>,
    pid: i32,
    report: PathBuf,
}

impl Running {
    fn new(arguments: &[&str], command: &[&Path], dir: &Path) -> Running {
        let report = dir.join("report");
        let mut dormouse = Command::new(PAGES);
        dormouse.args(["--watch", "--output"]).arg(&report).args(arguments).arg("--").args(command);
        // Its own process group, with a parent in another group: in a group without one, stops from a terminal (TSTP)
        // are ignored.
        dormouse.process_group(0);
        // A process that was started in the background of a script ignores SIGINT, and so do all processes that it
        // starts.
        let heed = || {
            // SAFETY: the call sets a signal's disposition to the default, which is valid for SIGINT (signal(2)).
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
        unsafe { dormouse.pre_exec(heed) };
        let mut child = dormouse.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let pid = output.next().unwrap().unwrap().parse().unwrap();
        Running { child, output, pid, report }
    }

    fn line(&mut self) -> String {
        self.output.next().unwrap().unwrap()
    }

    fn end(mut self) -> (Option<i32>, String) {
        // Kept open, because `wait` would close it.
        let _input = self.child.stdin.take();
        let status = self.child.wait().unwrap();
        (status.code(), fs::read_to_string(self.report).unwrap())
    }
}

#[test]
fn signals_reach_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let patient = build(dir.path(), "patient", PATIENT, &[]);
    // The signal is sent to dormouse, and to the command.
    for is_passed_on in [true, false] {
        let mut running = Running::new(&[], &[&patient, Path::new("signal")], dir.path());
        // Signals that were blocked before the exec are no longer blocked, except the command's own.
        assert_eq!(blocked(running.pid) & !TERM, 0);
        let target = if is_passed_on { Pid::from_child(&running.child) } else { Pid::from_raw(running.pid).unwrap() };
        kill_process(target, Signal::TERM).unwrap();
        assert_eq!(running.line(), "took 15");
        let (code, report) = running.end();
        assert_eq!(code, Some(9), "{report}");
    }
    // A signal that ends the command.
    let running = Running::new(&[], &[&patient, Path::new("read")], dir.path());
    kill_process(Pid::from_child(&running.child), Signal::INT).unwrap();
    let (code, report) = running.end();
    assert_eq!(code, Some(130), "{report}");
    assert!(report.contains("with exit code 130"), "{report}");
}

#[test]
fn a_stopped_command_stays_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let patient = build(dir.path(), "patient", PATIENT, &[]);
    let mut running = Running::new(&[], &[&patient, Path::new("read")], dir.path());
    let pid = Pid::from_raw(running.pid).unwrap();
    let say = |running: &mut Running, line: &str| {
        std::io::Write::write_all(running.child.stdin.as_mut().unwrap(), line.as_bytes()).unwrap();
    };
    say(&mut running, "before\n");
    assert_eq!(running.line(), "before");
    for signal in [Signal::STOP, Signal::TSTP] {
        kill_process(pid, signal).unwrap();
        let is_stopped = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", running.pid)).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with(['T', 't'])
        };
        while !is_stopped() {
            std::thread::yield_now();
        }
        kill_process(pid, Signal::CONT).unwrap();
        say(&mut running, "after\n");
        assert_eq!(running.line(), "after");
    }
    drop(running.child.stdin.take());
    let (code, report) = running.end();
    assert_eq!(code, Some(0), "{report}");
}

/// A process that the command leaves behind runs on.
#[test]
fn processes_that_outlive_the_command_are_detached() {
    let script = "exec 3<&0; cat <&3 & echo $!";
    let mut dormouse = Command::new(PAGES);
    dormouse.args(["--watch", "--", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = dormouse.stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let pid = output.next().unwrap().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("TracerPid:\t0\n"), "{status}");
    std::io::Write::write_all(&mut input, b"alive\n").unwrap();
    assert_eq!(output.next().unwrap().unwrap(), "alive");
}

/// A program that makes the kernel refuse ptrace(2), as containers do, and executes its arguments.
const REFUSED: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 77;
    execv(argv[1], argv + 1);
    return 78;
}
"#;

#[test]
fn if_ptrace_is_forbidden_only_samples_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (refused, patient) = (build(dir.path(), "refused", REFUSED, &[]), build(dir.path(), "patient", PATIENT, &[]));
    let mut dormouse = Command::new(refused);
    dormouse.args([PAGES, "--watch", "--"]).arg(patient).arg("signal");
    let mut child = dormouse.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let Some(Ok(pid)) = output.next() else {
        let reason = format!("this machine has no seccomp: {:?}", child.wait());
        return skip(Lack::machine(reason, "a kernel with CONFIG_SECCOMP_FILTER"));
    };
    // The command's signals are not left blocked by the attempt to trace it.
    assert_eq!(blocked(pid.parse().unwrap()) & !TERM, 0);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(output.next().unwrap().unwrap(), "took 15");
    let output = child.wait_with_output().unwrap();
    let report = text(&output.stderr);
    assert_eq!(output.status.code(), Some(9), "{report}");
    assert!(report.contains("not seen: the command is not traced (Operation not permitted"), "{report}");
    // Nothing can be populated then, and the command runs as it is.
    let output =
        Command::new(dir.path().join("refused")).args([PAGES, "--fix", "--once", "--", "echo", "said"]).output();
    let output = output.unwrap();
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "said\n"));
    let report = text(&output.stderr);
    assert!(report.contains("not seen: no memory is populated: the command is not traced"), "{report}");
    assert!(report.ends_with("not mended: no memory was populated; the lines above say why\n"), "{report}");
}

#[test]
fn without_watch_the_census_at_the_end_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let codec = codec(dir.path());
    let page = dir.path().join("page.html");
    let output = pages(&["--html", &page.display().to_string()], &[&codec, Path::new("fail")]);
    let report = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(7), "decoded\n"), "{report}");
    for part in ["codec, process ", "unbacked", ".bss of codec", "\nall "] {
        assert!(report.contains(part), "{part} is not in {report}");
    }
    if sees_zero() {
        assert!(report.contains("frame in codec"), "{report}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains(".bss of codec") && !page.contains("Over time"));
    let (page, me) = (dir.path().join("me.html"), std::process::id().to_string());
    let output = Command::new(PAGES).args([&me, "--html"]).arg(&page).output().unwrap();
    assert!(output.status.success());
    assert!(fs::read_to_string(page).unwrap().contains(&format!("process {me}")));
}

#[test]
fn the_picture_of_a_run_has_a_time_axis() {
    if !sees_zero() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (codec, page) = (codec(dir.path()), dir.path().join("page.html"));
    pages(&["--watch", "--period", "1ms", "--html", &page.display().to_string()], &[&codec]);
    let page = fs::read_to_string(page).unwrap();
    for part in ["Over time", "when most of it was the zero page", "frame in codec", "at its end", "<details>"] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    // The page makes no request and has no script.
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("<script"));
}

#[test]
fn wrong_arguments_are_one_line_errors() {
    let dormouse = |arguments: &[&str]| {
        let mut command = Command::new(PAGES);
        command.args(arguments);
        command
    };
    let error = refuse(&mut dormouse(&["--", "/no/such/program"]));
    assert!(error.contains("cannot run `/no/such/program`: No such file"), "{error}");
    let error = refuse(&mut dormouse(&["--output", "/no/such/dir/file", "--", "true"]));
    assert!(error.contains("/no/such/dir/file"), "{error}");
    let error = refuse(&mut dormouse(&["--watch", "--from", "2s", "--until", "1s", "--", "true"]));
    assert!(error.contains("--until must be later"), "{error}");
    for arguments in [
        &[][..],
        &["--watch"],
        &["--watch", "1"],
        &["--watch", "--period", "10", "--", "true"],
        &["1", "--share", "5"],
        &["--watch", "--share", "101", "--", "true"],
        &["--fix"],
        &["--fix", "--watch", "--", "true"],
        &["--once", "--", "true"],
        &["--explain", "--", "true"],
        &["--watch", "--explain", "--no-ptrace", "--", "true"],
        &["--all", "1"],
        &["--every", "1s", "1"],
        &["--all", "--count", "1"],
        &["--fix", "--compare", "5", "--", "true"],
        &["--fix", "--html", "page.html", "--", "true"],
    ] {
        let output = dormouse(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{arguments:?}");
    }
}

/// Permissions and limits of the user `nobody`: a process of root is refused, and without PAGEMAP_SCAN the zero page
/// cannot be told.
#[test]
fn an_unprivileged_user_is_told_what_is_not_visible() {
    const NOBODY: u32 = 65534;
    if !geteuid().is_root() {
        return skip(Lack::machine("only root can become another user", "run the tests as root"));
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (dormouse, codec) = (dir.path().join("dormouse"), codec(dir.path()));
    copy_program(PAGES.as_ref(), &dormouse);
    let as_nobody = |arguments: &[&str], command: &[&Path]| {
        let mut process = Command::new(&dormouse);
        process.args(arguments);
        if !command.is_empty() {
            process.arg("--").args(command);
        }
        process.uid(NOBODY).gid(NOBODY).current_dir("/");
        process
    };
    let error = refuse(&mut as_nobody(&[&std::process::id().to_string()], &[]));
    assert!(error.contains("another user") && error.contains("run this command as root"), "{error}");
    // The user's own processes are seen as by root.
    if sees_zero() {
        let output = as_nobody(&["--watch"], &[&codec]).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    }
    let output = as_nobody(&["--watch", "--without-scan"], &[&codec]).output().unwrap();
    let report = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{report}");
    assert!(
        report.contains("not seen: this kernel has no PAGEMAP_SCAN")
            && report.contains("the zero page could not be seen"),
        "{report}"
    );
}

//! `dormouse pages --fix -- CMD`: programs that read memory which nothing has written have memory of their own afterwards,
//! as the kernel tells them, and run as before.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use dormouse_testing::{Lack, copy_program, has_part, skip, skip_part, wait_until};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

use crate::PAGES;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns whether there is a zero page that the kernel tells of; otherwise says what is skipped.
fn sees_zero() -> bool {
    let sees = dormouse_backing::page_table::PageTable::of(None).is_ok_and(|table| table.interface().sees_zero());
    if !sees {
        skip(Lack::machine("the zero page cannot be seen here", "run the tests as root, or on Linux 6.7 or later"));
    }
    sees
}

fn build(dir: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let file = dir.join(format!("{name}.c"));
    fs::write(&file, source).unwrap();
    compile(&file, &dir.join(name), options)
}

fn compile(file: &Path, program: &Path, options: &[&str]) -> PathBuf {
    let built = Command::new("cc").args(["-O1", "-pthread"]).args(options).arg(file).arg("-o").arg(program).status();
    assert!(built.unwrap().success());
    program.into()
}

/// Runs a command with `--fix` and these options. Returns its output and the report as JSON.
fn fix(dir: &Path, options: &[&str], command: &[&str]) -> (Output, Value) {
    let report = dir.join("report.json");
    let mut dormouse = Command::new(PAGES);
    dormouse.args(["--fix", "--json", "-o"]).arg(&report).args(options).arg("--").args(command);
    let output = dormouse.output().unwrap();
    let report = fs::read(report).unwrap();
    let report = serde_json::from_slice(&report);
    let report = report.unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    (output, report)
}

/// A program that obtains memory in every way, reads it, and prints how much of its memory the kernel counts as its own. The
/// kernel does not count the zero page. The argument says how it ends.
const WITNESS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { SIZE = 8 << 20, PART = 100000 };
static char frame[SIZE], initialised[SIZE] = { 5 };
static volatile long sum;
static void read_all(const char *at, long size) { for (long i = 0; i < size; i += 64) sum += at[i]; }
static void *thread(void *nothing) { char *own = malloc(SIZE); read_all(own, SIZE); return own; }
static long own_kib(void) {
    long kib = 0;
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file)) sscanf(line, "RssAnon: %ld", &kib);
    fclose(file);
    return kib;
}
int main(int argc, char **argv) {
    int private = MAP_PRIVATE | MAP_ANONYMOUS;
    read_all(frame, SIZE);
    read_all(calloc(1, SIZE), SIZE);
    for (int block = 0; block < 20; block++) read_all(calloc(1, PART), PART);
    read_all(realloc(malloc(SIZE / 2), SIZE), SIZE);
    char *reserved = mmap(0, SIZE, PROT_NONE, private, -1, 0);
    mprotect(reserved, SIZE, PROT_READ | PROT_WRITE);
    read_all(reserved, SIZE);
    read_all(mmap(0, SIZE, PROT_READ | PROT_WRITE, private, -1, 0), SIZE);
    pthread_t one;
    void *kept;
    pthread_create(&one, 0, thread, 0);
    pthread_join(one, &kept);
    if (initialised[0] != 5 || sum != 5 * 0) return 99;
    printf("%ld KiB\n", own_kib());
    fflush(stdout);
    if (!fork()) { char *own = malloc(SIZE); read_all(own, SIZE); _exit(own == 0); }
    int status = 0;
    wait(&status);
    if (status) return 98;
    if (argc > 1 && !strcmp(argv[1], "abort")) { signal(SIGABRT, SIG_DFL); abort(); }
    return argc > 1 ? atoi(argv[1]) : 0;
}
"#;
/// Memory that the program above reads: six buffers, and the small blocks.
const WITNESSED_KIB: u64 = 6 * 8192 + 20 * 100_000 / 1024;

fn kib(line: &str) -> u64 {
    line.strip_suffix(" KiB").and_then(|kib| kib.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn the_kernel_counts_the_memory_that_was_populated() {
    if !sees_zero() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, options) in [("dynamic", &[][..]), ("static", &["-static"])] {
        let program = build(dir.path(), name, WITNESS, options);
        let (output, report) = fix(dir.path(), &[], &[program.to_str().unwrap(), "7"]);
        assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
        assert!(output.stderr.is_empty());
        let lines = text(&output.stdout);
        let [before, after] = lines.lines().map(kib).collect::<Vec<_>>()[..] else { panic!("{lines}") };
        assert!(before < WITNESSED_KIB / 4, "{name}: {before} KiB");
        assert!(after >= WITNESSED_KIB, "{name}: {after} KiB");
        let zero = |run: &str| report[run]["zero_max"].as_u64().unwrap() >> 10;
        assert!(zero("before") >= WITNESSED_KIB * 9 / 10, "{name}: {report:#}");
        assert!(zero("after") < 256, "{name}: {report:#}");
        assert!(report["after"]["populated"]["size"].as_u64().unwrap() >> 10 >= WITNESSED_KIB, "{name}: {report:#}");
        assert_eq!((&report["before"]["populated"], &report["comparison"]), (&Value::Null, &Value::Null));
        let left_alone = &report["after"]["populated"]["left_alone"];
        assert!(left_alone.to_string().contains("stacks of threads"), "{left_alone}");
    }
}

/// Nothing of this needs privilege.
#[test]
fn an_unprivileged_user_can_do_the_same() {
    const NOBODY: u32 = 65534;
    if !sees_zero() {
        return;
    }
    if !geteuid().is_root() {
        return skip(Lack::machine("only root can become another user", "run the tests as root"));
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (program, dormouse) = (build(dir.path(), "witness", WITNESS, &[]), dir.path().join("dormouse"));
    copy_program(PAGES.as_ref(), &dormouse);
    let mut command = Command::new(dormouse);
    command.args(["--fix", "--"]).arg(program).uid(NOBODY).gid(NOBODY).current_dir("/");
    let output = command.output().unwrap();
    let (lines, report) = (text(&output.stdout), text(&output.stderr));
    let [before, after] = lines.lines().map(kib).collect::<Vec<_>>()[..] else { panic!("{lines}{report}") };
    assert!(before < WITNESSED_KIB / 4 && after >= WITNESSED_KIB, "{lines}{report}");
}

/// Programs in other languages, each of which reads an array of 16 MiB that it does not write, and prints `RssAnon` in KiB.
#[test]
fn programs_in_other_languages_are_populated() {
    if !sees_zero() {
        return;
    }
    let programs = [
        (
            "g++",
            "cc",
            r##"
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
int main() {
    long sum = 0, size = 16 << 20;
    std::unique_ptr<volatile char[]> bytes(new volatile char[size]);
    for (long i = 0; i < size; i += 64) sum += bytes[i];
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.rfind("RssAnon:", 0) == 0) std::cout << std::stol(line.substr(8)) << " KiB\n";
    return sum != 0;
}
"##,
        ),
        (
            "rustc",
            "rs",
            r##"
fn main() {
    let bytes = vec![0_u8; 16 << 20];
    let read = |at: usize| unsafe { bytes.as_ptr().add(at).read_volatile() };
    assert_eq!((0..bytes.len()).step_by(64).map(|at| u64::from(read(at))).sum::<u64>(), 0);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    println!("{} KiB", line.trim().trim_end_matches(" kB"));
}
"##,
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (compiler, ending, source) in programs {
        if !has_part(compiler) {
            continue;
        }
        let (file, program) = (dir.path().join(format!("main.{ending}")), dir.path().join(compiler));
        fs::write(&file, source).unwrap();
        assert!(Command::new(compiler).arg("-o").arg(&program).arg(file).status().unwrap().success());
        let (output, report) = fix(dir.path(), &[], &[program.to_str().unwrap()]);
        let lines = text(&output.stdout);
        let [before, after] = lines.lines().map(kib).collect::<Vec<_>>()[..] else { panic!("{compiler}: {output:?}") };
        assert!(before < 8 << 10 && after >= 16 << 10, "{compiler}: {before} and {after} KiB: {report:#}");
    }
}

/// Three kinds of benchmark: what they read is the zero page, and with `--fix` is not.
#[test]
fn benchmarks_of_reading_are_mended() {
    if !sees_zero() {
        return;
    }
    const MIB: u64 = 16;
    let dir = tempfile::tempdir().unwrap();
    for name in ["stream_sum", "bw_mem_rd", "hash_probe"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/benchmarks/{name}.c"));
        let program = compile(&source, &dir.path().join(name), &["-O2"]);
        let (output, report) = fix(dir.path(), &[], &[program.to_str().unwrap(), &MIB.to_string()]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout).lines().count(), 2);
        let [before, after] = ["before", "after"].map(|run| &report[run]);
        assert_eq!(
            (before["verdict"].as_str(), after["verdict"].as_str()),
            (Some("found"), Some("not-found")),
            "{name}"
        );
        // A hash table's slots are read at random, so that some pages may be missed.
        assert!(before["zero_max"].as_u64().unwrap() >= (MIB << 20) * 95 / 100, "{name}: {before:#}");
        assert!(before["zero_entries_max"].as_u64().unwrap() >= (MIB << 8) * 95 / 100, "{name}: {before:#}");
        assert!(after["zero_max"].as_u64().unwrap() < 256 << 10, "{name}: {after:#}");
    }
}

#[test]
fn the_report_says_what_changed() {
    if !sees_zero() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "witness", WITNESS, &[]);
    let run = |options: &[&str], argument: &str| {
        let output =
            Command::new(PAGES).arg("--fix").args(options).arg("--").arg(&program).arg(argument).output().unwrap();
        (output.status.code(), text(&output.stdout).lines().count(), text(&output.stderr))
    };
    let (code, lines, report) = run(&[], "abort");
    assert_eq!((code, lines), (Some(134), 2), "{report}");
    for part in
        ["as it is ", "populated ", "8.0M       –  frame in witness", "stacks of threads", "\nmended: no buffer"]
    {
        assert!(report.contains(part), "{part} is not in {report}");
    }
    let (code, lines, report) = run(&["--once"], "0");
    assert_eq!((code, lines), (Some(0), 1), "{report}");
    assert!(!report.contains("as it is") && report.ends_with("\nno buffer is read from the zero page\n"), "{report}");
    let (code, lines, report) = run(&["--compare", "6"], "0");
    assert_eq!((code, lines), (Some(0), 14), "{report}");
    for part in ["median of 6 runs of each", "populated, it takes ", " times as long ["] {
        assert!(report.contains(part), "{part} is not in {report}");
    }
    let output = Command::new(PAGES).args(["--fix", "--", "true"]).output().unwrap();
    assert!(text(&output.stderr).ends_with("\nnothing to mend: no buffer was read from the zero page\n"));
}

/// Memory that cannot be populated, or was given back, is named.
#[test]
fn what_is_not_mended_is_said() {
    if !sees_zero() {
        return;
    }
    const UNMENDED: &str = r"
#include <sys/mman.h>
enum { SIZE = 8 << 20 };
static volatile long sum;
int main(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *huge = mmap(0, 1L << 40, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (huge == MAP_FAILED) return 77;
    char *given_back = mmap(0, SIZE, PROT_READ | PROT_WRITE, flags, -1, 0);
    madvise(given_back, SIZE, MADV_DONTNEED);
    for (long i = 0; i < SIZE; i += 64) sum += given_back[i];
    return 0;
}
";
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "unmended", UNMENDED, &[]);
    let output = Command::new(PAGES).args(["--fix", "--"]).arg(program).output().unwrap();
    if output.status.code() == Some(77) {
        return skip(Lack::machine("a terabyte of addresses is refused", "vm.overcommit_memory=0"));
    }
    let report = text(&output.stderr);
    assert!(output.status.success(), "{report}");
    for part in
        ["left alone: 1.0T in 1 range: more than half of the available memory", "\nnot mended: 8.0M are still read"]
    {
        assert!(report.contains(part), "{part} is not in {report}");
    }
}

/// The filter of system calls cannot be removed, so nothing is left without its tracer.
#[test]
fn processes_that_outlive_the_command_are_populated_to_their_end() {
    if !sees_zero() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "witness", WITNESS, &[]);
    let script = format!("(sleep 0.2; exec {}) & exit 5", program.display());
    let output = Command::new(PAGES).args(["--fix", "--once", "--", "sh", "-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert!(kib(text(&output.stdout).trim()) >= WITNESSED_KIB, "{output:?}");
}

#[test]
fn a_killed_dormouse_takes_the_command_with_it() {
    let mut child = Command::new(PAGES);
    child.args(["--fix", "--", "sh", "-c", "echo $$; exec sleep 1000"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    let stat = format!("/proc/{}/stat", line.trim());
    let has_ended =
        || fs::read_to_string(&stat).map_or(true, |stat| stat.rsplit_once(") ").unwrap().1.starts_with('Z'));
    wait_until("the command has ended", has_ended);
}

/// Signals while memory is populated are not lost, and arrive in handlers.
#[test]
fn signals_are_not_lost() {
    const SIGNALLED: &str = r"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
static volatile sig_atomic_t ticks;
static void tick(int signal) { (void)signal; ticks++; }
int main(void) {
    struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, 0);
    struct itimerval each = { { 0, 200 }, { 0, 200 } };
    setitimer(ITIMER_REAL, &each, 0);
    for (int round = 0; round < 200 || ticks < 20; round++) {
        char *at = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED || at[4096] != 0) return 99;
        at[4096] = 1;
        munmap(at, 1 << 20);
    }
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, 0, &blocked);
    for (int signal = 1; signal < 32; signal++) if (sigismember(&blocked, signal)) return 98;
    return 0;
}
";
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "signalled", SIGNALLED, &[]);
    // Also while the program steps out of the C library.
    let explained = Command::new(PAGES).args(["--watch", "--explain", "--"]).arg(&program).output().unwrap();
    assert_ne!(explained.status.code(), Some(98), "{explained:?}");
    assert_ne!(explained.status.code(), Some(99), "{explained:?}");
    let (output, report) = fix(dir.path(), &["--once"], &[program.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    if report["after"]["populated"]["calls"].as_u64().is_none_or(|calls| calls < 200) {
        skip_part("population", Lack::machine(&report["after"]["unseen"], "a kernel with seccomp and ptrace"));
    }
}

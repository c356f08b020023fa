//! A C program that is not linked dynamically with glibc, but statically or with musl. It is run dormant, recorded, and
//! armed while it runs, and every event is counted.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", target_env = "gnu"))]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use dormouse_testing::c_programs::{install, pkg_config, stdout, succeed};
use dormouse_testing::programs::dormouse;
use dormouse_testing::{Lack, has, has_target, include_dirs, skip, wait_until};

/// Returns the prefix where libdormouse is installed, once for all tests.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| install("linked-prefix"))
}

const MUSL: &str =
    if cfg!(target_arch = "x86_64") { "x86_64-unknown-linux-musl" } else { "aarch64-unknown-linux-musl" };

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/counted.c")
}

fn compiler(name: &str) -> Command {
    let mut command = Command::new(name);
    command.args(["-std=c11", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror"]).arg(source());
    command
}

/// Returns the output of `dormouse stats --json` for a trace.
fn stats(trace: &Path) -> serde_json::Value {
    serde_json::from_str(&stdout(&succeed(Command::new(dormouse()).args(["stats", "--json"]).arg(trace)))).unwrap()
}

/// A program that is killed at the end of the test, even if the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the program in every way; `runner` is a command that precedes its name.
fn exercise(runner: &[&str], program: &Path) {
    let place = tempfile::tempdir().unwrap();
    let words = || runner.iter().map(std::ffi::OsStr::new).chain([program.as_os_str()]);
    let command = || {
        let mut command = Command::new(words().next().unwrap());
        command.args(words().skip(1)).env("XDG_RUNTIME_DIR", place.path());
        command
    };
    let dormant = command().arg("1000").output().unwrap();
    assert_eq!((dormant.status.code(), stdout(&dormant).as_str()), (Some(7), "ready\nevaluated 0\n"), "{dormant:?}");

    let trace = place.path().join("recorded");
    let mut record = Command::new(dormouse());
    record.args(["record", "-o"]).arg(&trace).arg("--").args(words()).arg("20000");
    let recorded = record.output().unwrap();
    assert_eq!((recorded.status.code(), stdout(&recorded).as_str()), (Some(7), "ready\nevaluated 20000\n"));
    let counted = stats(&trace);
    assert_eq!((counted["events"].as_u64(), counted["events_lost"].as_u64()), (Some(20000), Some(0)), "{counted}");

    let trace = place.path().join("live");
    let Killed(child) = &mut Killed(command().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(line(), "ready\n");
    let pid = child.id().to_string();
    let ask = |arguments: &[&str]| {
        stdout(&succeed(Command::new(dormouse()).args(arguments).env("XDG_RUNTIME_DIR", place.path())))
    };
    // Under a tool that runs one thread at a time, the listening thread may not have run yet.
    let mut asked = Command::new(dormouse());
    asked.args(["list", &pid]).env("XDG_RUNTIME_DIR", place.path());
    wait_until("the program listens", || asked.output().unwrap().status.success());
    let list = ask(&["list", &pid]);
    assert!(list.contains("1 of 1 sites patched") && list.contains("dormant  counted:tick"), "{list}");
    ask(&["arm", &pid, "counted:*", "-o", trace.to_str().unwrap()]);
    assert_eq!(line(), "hundred\n");
    let summary = ask(&["disarm", &pid, "*"]);
    assert!(summary.contains(" events, 0 lost, 1 process,"), "{summary}");
    drop(child.stdin.take());
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(7));
    let evaluated: u64 = rest.trim().strip_prefix("evaluated ").unwrap().parse().unwrap();
    let counted = stats(&trace)["events"].as_u64().unwrap();
    // One more event may be evaluated while the program leaves its session.
    assert!(counted >= 100 && (counted..=counted + 1).contains(&evaluated), "{counted} of {evaluated}");
}

/// Whether a compiler finds a libc for static linking.
fn has_static_libc(dir: &Path) -> bool {
    std::fs::write(dir.join("empty.c"), "int main(void) { return 0; }\n").unwrap();
    let mut link = Command::new("gcc");
    let has = link.args(["-static", "-o"]).arg(dir.join("empty")).arg(dir.join("empty.c")).output();
    let has = has.is_ok_and(|output| output.status.success());
    if !has {
        skip(Lack::tool("gcc finds no static libc", "`apt-get install libc6-dev`"));
    }
    has
}

#[test]
fn a_static_program_is_traced() {
    let dir = tempfile::tempdir().unwrap();
    if !has_static_libc(dir.path()) {
        return;
    }
    let program = dir.path().join("counted");
    let flags = pkg_config(prefix(), &["--static", "--cflags", "--libs", "dormouse"]);
    let linked = succeed(compiler("gcc").args(["-static", "-o"]).arg(&program).args(flags));
    let warnings = String::from_utf8_lossy(&linked.stderr);
    assert!(!warnings.contains("dlopen"), "{warnings}");
    exercise(&[], &program);
    // Its libc has registered it for restartable sequences, so each event has a CPU.
    if dormouse_percpu::Rseq::of_libc().is_some() {
        let trace = dir.path().join("trace");
        succeed_with(7, Command::new(dormouse()).args(["record", "-o"]).arg(&trace).arg("--").arg(&program).arg("100"));
        let cpus = stats(&trace)["cpus"].clone();
        assert!(cpus.as_array().unwrap().iter().all(|cpu| cpu["cpu"].is_u64()), "{cpus}");
    }
}

fn succeed_with(code: i32, command: &mut Command) {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{output:?}");
}

#[test]
fn the_shared_library_starts_on_a_libc_without_restartable_sequences() {
    let library = prefix().join("lib/libdormouse.so");
    if !has("readelf") {
        return;
    }
    let needed = stdout(&succeed(Command::new("readelf").args(["-VW"]).arg(library)));
    assert!(needed.contains("GLIBC_2.") && !needed.contains("GLIBC_2.35"), "{needed}");
}

#[test]
fn a_program_is_traced_under_valgrind() {
    if !has("valgrind") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("counted");
    let flags = pkg_config(prefix(), &["--cflags", "--libs", "dormouse"]);
    let run_path = format!("-Wl,-rpath,{}", prefix().join("lib").display());
    succeed(compiler("gcc").arg("-o").arg(&program).args(flags).arg(run_path));
    exercise(&["valgrind", "-q", "--fair-sched=yes", "--error-exitcode=99"], &program);
}

#[test]
fn a_program_with_musl_is_traced() {
    if !has_target(MUSL) || !has("musl-gcc") {
        return;
    }
    let target = succeed(Command::new("rustc").args(["--print", "target-libdir", "--target", MUSL]));
    let target = PathBuf::from(stdout(&target).trim());
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("musl");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--offline", "--package", "dormouse-capi", "--lib", "--target", MUSL]);
    succeed(build.arg("--target-dir").arg(&built).current_dir(env!("CARGO_MANIFEST_DIR")));
    let library = built.join(MUSL).join("debug/libdormouse.a");
    // Debian's musl-gcc uses glibc's unwinder; the Rust toolchain has one for musl.
    let unwinder = target.join("self-contained/libunwind.a");
    let dir = tempfile::tempdir().unwrap();
    for form in [&["-static"][..], &[]] {
        let program = dir.path().join("counted");
        let mut link = compiler("musl-gcc");
        include_dirs().for_each(|dir| {
            link.arg("-I").arg(dir);
        });
        link.args(form).arg(&library).arg(&unwinder).arg("-o").arg(&program);
        succeed(&mut link);
        exercise(&[], &program);
    }
}

/// The headers of every library, which C programs with musl include; their libraries need Rust's for musl.
#[test]
fn headers_compile_with_musl() {
    if !has("musl-gcc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let headers = include_dirs().flat_map(|dir| std::fs::read_dir(dir.join("dormouse")).into_iter().flatten());
    let names = headers.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let headers: Vec<_> = names.filter(|name| name.ends_with(".h")).collect();
    assert!(headers.iter().any(|name| name == "event.h"), "{headers:?}");
    for name in headers {
        let source = dir.path().join("included.c");
        std::fs::write(&source, format!("#include <dormouse/{name}>\nint main(void) {{ return 0; }}\n")).unwrap();
        let mut compile = Command::new("musl-gcc");
        compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
        include_dirs().for_each(|dir| {
            compile.arg("-I").arg(dir);
        });
        succeed(compile.arg(&source));
    }
}

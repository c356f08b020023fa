//! Programs in C and C++ that listen without a tracer, or with one beside: listed and set by `dormouse imv`.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;

use dormouse_testing::c_programs::{install, pkg_config, succeed};
use dormouse_testing::has_part;
use dormouse_testing::programs::dormouse;
use tempfile::TempDir;

const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"];

fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| install("imv-listens-prefix"))
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/listens").join(name)
}

/// Compiles a source with flags and links it with libraries.
fn build(compiler: &str, name: &str, flags: &[&str], libraries: &[&str], output: &Path) {
    let lib = prefix().join("lib");
    let mut command = Command::new(compiler);
    if compiler.ends_with("++") {
        command.args(["-x", "c++", "-std=c++11"]);
    } else {
        command.arg("-std=gnu11");
    }
    command.args(WARNINGS).arg("-O2").arg(format!("-I{}", prefix().join("include").display())).args(flags);
    command.arg(source(name)).args(["-x", "none", "-o"]).arg(output);
    command.arg(format!("-L{}", lib.display())).arg(format!("-Wl,-rpath,{}", lib.display())).args(libraries);
    succeed(&mut command);
}

/// Returns the flags that link the archive.
fn archive() -> Vec<String> {
    let flags = pkg_config(prefix(), &["--static", "--libs", "dormouse-imv"]);
    let of_archive = |flag: String| if flag == "-ldormouse_imv" { "-l:libdormouse_imv.a".into() } else { flag };
    flags.into_iter().map(of_archive).collect()
}

/// A running program, with its own directory of sockets.
struct Running {
    place: TempDir,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn start(program: &Path, argument: &Path) -> Running {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command.arg(argument).env("XDG_RUNTIME_DIR", place.path()).env_remove("DORMOUSE_LISTEN");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Running { place, child, stdin, stdout }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    fn ask(&mut self, question: &str) -> String {
        writeln!(self.stdin, "{question}").unwrap();
        self.line()
    }

    fn imv(&self, command: &str, arguments: &[&str]) -> Output {
        let mut dormouse = Command::new(dormouse());
        dormouse.args(["imv", command, &self.child.id().to_string()]).args(arguments);
        dormouse.env("XDG_RUNTIME_DIR", self.place.path()).output().unwrap()
    }

    fn set(&self, values: &[&str]) {
        let output = self.imv("set", values);
        assert!(output.status.success(), "{values:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns name, type and value of each tunable.
    fn list(&self) -> Vec<String> {
        let output = self.imv("list", &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let rows = text.lines().filter(|line| line.starts_with("  ") && !line.contains(" exports no tunables"));
        let row = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
        rows.map(row).filter(|row| row != "NAME TYPE VALUE").collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const OWN: [&str; 4] = ["c.audit key off", "c.batch u32 16", "c.cached key on", "c.ratio f64 0.5"];

/// Lists and sets the program `steered` with its plugin.
fn exercise(running: &mut Running, has_plugins: bool) {
    assert_eq!(running.line(), "ready");
    assert_eq!(running.ask("listen"), "0");
    assert_eq!(running.list(), OWN);
    assert_eq!(running.ask("values"), "16 0.5 0 1");
    running.set(&["c.audit", "on", "c.batch", "64", "c.cached", "off", "c.ratio", "0.25"]);
    assert_eq!(running.ask("values"), "64 0.25 1 0");
    let refused = running.imv("set", &["c.cached", "on", "c.batch", "0"]);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("`c.batch` takes a whole number from 1 to 1024"), "{text}");
    assert_eq!(running.ask("values"), "64 0.25 1 0");
    running.set(&["c.audit", "off", "c.batch", "16", "c.cached", "on", "c.ratio", "0.5"]);
    assert_eq!(running.ask("values"), "16 0.5 0 1");
    for _ in 0..if has_plugins { 3 } else { 0 } {
        assert_eq!(running.ask("open"), "opened");
        assert_eq!(running.list(), [&OWN[..], &["plugin.depth i32 9"]].concat());
        running.set(&["plugin.depth", "-1"]);
        assert_eq!(running.ask("close"), "closed");
        assert_eq!(running.list(), OWN);
    }
    assert_eq!(running.ask("stop"), "0");
    assert!(!running.imv("list", &[]).status.success());
}

#[test]
fn programs_with_the_library_alone_are_listed_and_set() {
    for compiler in ["gcc", "g++", "clang", "clang++"].into_iter().filter(|compiler| has_part(compiler)) {
        let dir = tempfile::tempdir().unwrap();
        let (program, plugin) = (dir.path().join("steered"), dir.path().join("plugin.so"));
        build(compiler, "plugin.c", &["-fPIC", "-shared"], &["-ldormouse_imv"], &plugin);
        build(compiler, "steered.c", &["-fPIE", "-pie"], &["-ldormouse_imv"], &program);
        exercise(&mut Running::start(&program, &plugin), true);
    }
}

#[test]
fn static_programs_are_listed_and_set() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("steered");
    let libraries = archive();
    let libraries: Vec<&str> = libraries.iter().map(String::as_str).collect();
    build("gcc", "steered.c", &["-DWITHOUT_PLUGINS", "-static"], &libraries, &program);
    exercise(&mut Running::start(&program, dir.path()), false);
}

/// A program with the tracer beside, in either order of the libraries: whichever the loader finds first has the
/// tunables.
#[test]
fn with_a_tracer_each_tunable_is_listed_once() {
    for libraries in [["-ldormouse_imv", "-ldormouse"], ["-ldormouse", "-ldormouse_imv"]] {
        let dir = tempfile::tempdir().unwrap();
        let (program, plugin) = (dir.path().join("steered"), dir.path().join("plugin.so"));
        let libraries = [&["-Wl,--no-as-needed"][..], &libraries].concat();
        build("gcc", "plugin.c", &["-fPIC", "-shared"], &["-ldormouse_imv"], &plugin);
        build("gcc", "steered.c", &["-DWITH_EVENTS", "-fPIE", "-pie"], &libraries, &program);
        let mut running = Running::start(&program, &plugin);
        let exercised = |running: &mut Running| {
            assert_eq!(running.line(), "ready");
            assert_eq!(running.ask("listen"), "0");
            assert_eq!(running.list(), OWN, "{libraries:?}");
            running.set(&["c.audit", "on", "c.batch", "64"]);
            assert_eq!(running.ask("values"), "64 0.5 1 1", "{libraries:?}");
            assert_eq!(running.ask("open"), "opened");
            assert_eq!(running.list().len(), OWN.len() + 1);
            assert_eq!(running.ask("close"), "closed");
        };
        exercised(&mut running);
    }
}

/// The thread's code stays when the plugin that has started it is unloaded.
#[test]
fn a_plugin_that_listens_may_be_unloaded() {
    let dir = tempfile::tempdir().unwrap();
    let host = dir.path().join("host");
    build("gcc", "host.c", &[], &["-ldl"], &host);
    let archive = archive();
    let archive: Vec<&str> = archive.iter().map(String::as_str).collect();
    // With the archive the plugin itself stays, and with the shared library that does.
    for (libraries, expected) in [(&archive[..], &["plugin.depth i32 9"][..]), (&["-ldormouse_imv"], &[])] {
        let plugin = dir.path().join("plugin.so");
        build("gcc", "plugin.c", &["-fPIC", "-shared"], libraries, &plugin);
        let mut running = Running::start(&host, &plugin);
        assert_eq!(running.line(), "0 0");
        assert_eq!(running.list(), expected, "{libraries:?}");
        if let [_] = expected {
            running.set(&["plugin.depth", "4"]);
        }
        assert_eq!(running.child.try_wait().unwrap(), None);
    }
}

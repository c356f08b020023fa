//! A program that is linked with libdormouse and not traced behaves the same as without: threads, descriptors,
//! mappings, locked memory, signals and system calls are compared for programs in several forms, each compiled with
//! tracepoints and without (`-DDORMOUSE_DISABLE`). All permitted differences are listed here. Each program is then
//! reached at its next tracepoint. `--nocapture` prints the table.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_testing::c_programs::{install, pkg_config, stdout, succeed};
use dormouse_testing::programs::dormouse;
use dormouse_testing::{Lack, has_part, skip_part};

/// Returns the prefix where libdormouse is installed, once for all tests.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| install("dormant-prefix"))
}

/// Way in which a program gets its tracepoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Shared,
    /// The archive, in a program that is otherwise dynamic.
    Archive,
    /// The archive, in a static program.
    Static,
    /// The shared library, through a library that the program loads by dlopen.
    Plugin,
}

struct Form {
    name: &'static str,
    link: Link,
    /// Arguments of the program, except for a plugin's path.
    argument: &'static str,
    /// Command that runs the program, with its arguments.
    runner: &'static [&'static str],
}

impl Form {
    /// Whether the program has privileges that its caller does not have, so that it does not listen.
    fn obeys_nobody(&self) -> bool {
        self.runner == NOBODY
    }

    fn thread_count(&self) -> usize {
        if self.argument == "threads" { 5 } else { 1 }
    }

    fn file_name(&self) -> String {
        self.name.replace(' ', "-")
    }
}

/// A Python program that acts like `dormant.c`, with the tracepoint in a library.
const PYTHON: &str = "\
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[2])
library.pass_ = library['pass']
library.pass_()
if sys.argv[-1] != 'once':
    os.write(1, b'ready %d\\n' % os.getpid())
    while os.read(0, 1):
        library.pass_()
";

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

const FORMS: [Form; 8] = [
    Form { name: "alone", link: Link::Shared, argument: "alone", runner: &[] },
    Form { name: "with four threads", link: Link::Shared, argument: "threads", runner: &[] },
    Form { name: "with the archive", link: Link::Archive, argument: "alone", runner: &[] },
    Form { name: "static", link: Link::Static, argument: "alone", runner: &[] },
    Form { name: "daemon", link: Link::Shared, argument: "daemon", runner: &[] },
    Form { name: "plugin", link: Link::Plugin, argument: "plugin", runner: &[] },
    Form { name: "python", link: Link::Plugin, argument: "plugin", runner: &["python3", "-c", PYTHON] },
    Form { name: "set-user-ID", link: Link::Archive, argument: "alone", runner: &NOBODY },
];

/// Builds a form's program, with tracepoints or without, and returns the command that starts it.
fn build(form: &Form, has_tracepoints: bool, dir: &Path) -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/dormant.c");
    let name = format!("{}-{has_tracepoints}", form.file_name());
    let (program, library) = (dir.join(&name), dir.join(format!("{name}.so")));
    let static_form: &[&str] = if form.link == Link::Static { &["--static"] } else { &[] };
    // A program without tracepoints is linked with no library.
    let part = if has_tracepoints { &["--cflags", "--libs"][..] } else { &["--cflags"] };
    let flags = pkg_config(prefix(), &[part, static_form, &["dormouse"]].concat()).into_iter().map(|flag| {
        let is_archive = form.link == Link::Archive && flag == "-ldormouse";
        if is_archive { "-l:libdormouse.a".into() } else { flag }
    });
    let flags: Vec<String> = flags.chain((form.link == Link::Archive).then(|| "-lm".into())).collect();
    let compile = |output: &Path, more: &[&str], flags: &[String]| {
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=c11", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror"]).args(more).arg("-o").arg(output);
        gcc.args((!has_tracepoints).then_some("-DDORMOUSE_DISABLE")).arg(&source).args(flags);
        succeed(gcc.arg(format!("-Wl,-rpath,{}", prefix().join("lib").display())));
    };
    let include = pkg_config(prefix(), &["--cflags", "dormouse"]);
    let mut words: Vec<String> = form.runner.iter().map(ToString::to_string).collect();
    if form.link == Link::Plugin {
        compile(&library, &["-DLIBRARY", "-shared", "-fPIC"], &flags);
        compile(&program, &["-DPLUGIN"], &include);
    } else {
        compile(&program, if form.link == Link::Static { &["-static"] } else { &[] }, &flags);
    }
    if form.argument != "plugin" || form.runner.is_empty() {
        words.push(program.to_str().unwrap().into());
    }
    words.push(form.argument.into());
    words.extend((form.link == Link::Plugin).then(|| library.to_str().unwrap().into()));
    if form.obeys_nobody() {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    }
    words
}

/// A waiting program, which ends when this is dropped.
struct Running {
    /// First process; for a daemon, it has ended.
    child: Child,
    pid: u32,
    input: Option<ChildStdin>,
}

impl Running {
    fn start(words: &[String], run: &Path) -> Running {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("XDG_RUNTIME_DIR", run).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = line.trim().strip_prefix("ready ").unwrap_or_else(|| panic!("{words:?}: {line}"));
        Running { pid: pid.parse().unwrap(), input: child.stdin.take(), child }
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.pid)).unwrap()
    }

    fn count(&self, directory: &str) -> usize {
        std::fs::read_dir(format!("/proc/{}/{directory}", self.pid)).unwrap().count()
    }

    /// Returns a field of `/proc/PID/status`.
    fn status(&self, name: &str) -> String {
        let status = self.read("status");
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().into()
    }

    fn measure(&self) -> Measured {
        let maps = self.read("maps");
        let mut mappings: BTreeMap<String, usize> = BTreeMap::new();
        for line in maps.lines() {
            let path: Vec<&str> = line.split_whitespace().skip(5).collect();
            let name = path.join(" ");
            *mappings.entry(name.rsplit('/').next().unwrap().into()).or_default() += 1;
        }
        Measured {
            thread_count: self.count("task"),
            descriptor_count: self.count("fd"),
            mappings,
            locked: self.status("VmLck:"),
            address_space_kib: self.status("VmSize:").trim_end_matches(" kB").parse().unwrap(),
            caught: u64::from_str_radix(&self.status("SigCgt:"), 16).unwrap(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
struct Measured {
    thread_count: usize,
    descriptor_count: usize,
    /// Number of mappings by file name; those without a file are under an empty name.
    mappings: BTreeMap<String, usize>,
    locked: String,
    address_space_kib: u64,
    caught: u64,
}

/// Files that a linked program maps in addition, with the maximum number of mappings of each: the library, and what it
/// needs from the toolchain.
const OBJECTS: [(&str, isize); 2] = [("libdormouse.so.0", 5), ("libgcc_s.so.1", 5)];

impl Measured {
    /// Returns the differences in the number of mappings by file name. The program's own files are under one name.
    fn mappings_besides(&self, former: &Measured, form: &Form) -> BTreeMap<String, isize> {
        let mut besides: BTreeMap<String, isize> = BTreeMap::new();
        for (mappings, sign) in [(&self.mappings, 1), (&former.mappings, -1)] {
            for (name, count) in mappings {
                let name = name.replace("-true", "").replace("-false", "");
                let name = if name == form.file_name() { "program" } else { &name };
                *besides.entry(name.into()).or_default() += sign * *count as isize;
            }
        }
        besides.retain(|_, count| *count != 0);
        besides
    }
}

/// Counts the system calls from a program's start to its end, by name.
fn system_calls(words: &[String], place: &Path) -> BTreeMap<String, u64> {
    let output = place.join("strace");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-c", "-U", "calls,name", "-o"]).arg(&output).args(words).arg("once");
    succeed(strace.env("XDG_RUNTIME_DIR", place).stdin(Stdio::null()));
    let table = std::fs::read_to_string(output).unwrap();
    let rows = table.lines().filter_map(|line| line.trim().split_once(' '));
    let rows = rows.filter_map(|(count, name)| Some((name.trim().to_string(), count.parse().ok()?)));
    rows.filter(|(name, _)| name != "total").collect()
}

/// System calls that a linked program makes in addition (`docs/limits.md`), those of libc's `malloc`, and those of its
/// loader for more objects.
const CALLS: [&str; 15] = [
    "brk",
    "close",
    "getpid",
    "getrandom",
    "gettid",
    "membarrier",
    "mmap",
    "mprotect",
    "munmap",
    "newfstatat",
    "openat",
    "pread64",
    "read",
    "rt_sigaction",
    "fstat",
];

const SIGURG: u64 = 1 << (libc::SIGURG - 1);

fn skips_form(form: &Form) -> bool {
    // SAFETY: geteuid(2) has no conditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    if form.runner == NOBODY && !is_root {
        skip_part(form.name, Lack::machine("only root can have another user start it", "run it as root"));
        return true;
    }
    form.runner.first().is_some_and(|runner| !has_part(runner))
}

/// Returns a directory that other users may enter.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    place
}

#[test]
fn a_program_that_is_linked_and_not_traced_is_what_it_was() {
    let has_strace = has_part("strace");
    for form in FORMS.iter().filter(|form| !skips_form(form)) {
        let place = place();
        let [without, linked] = [false, true].map(|has_tracepoints| build(form, has_tracepoints, place.path()));
        let [former, measured] =
            [&without, &linked].map(|words| Running::start(words, &place.path().join("run")).measure());
        println!("{}\n  without {former:?}\n  linked  {measured:?}", form.name);
        assert_eq!(measured.thread_count, former.thread_count, "{}", form.name);
        assert_eq!(measured.descriptor_count, former.descriptor_count, "{}", form.name);
        assert_eq!(measured.locked, former.locked, "{}", form.name);
        // The library's own code and data; one more thread's heap would be 64 MiB.
        let more_kib = measured.address_space_kib.saturating_sub(former.address_space_kib);
        assert!(more_kib < 8 << 10, "{}: {more_kib} KiB", form.name);
        let handler = if form.obeys_nobody() { 0 } else { SIGURG };
        assert_eq!(measured.caught, former.caught | handler, "{}", form.name);
        assert!(!place.path().join("run/dormouse").exists(), "{}: a directory of sockets", form.name);
        let besides = measured.mappings_besides(&former, form);
        let most = |name: &str| match name {
            // Adjacent mappings are merged, so their count may vary; their size is part of the address space.
            "" => isize::MAX,
            // With the archive: its tables, which are made read-only.
            "program" => 2,
            _ => OBJECTS.iter().find(|(object, _)| *object == name).map_or(0, |(_, count)| *count),
        };
        assert!(besides.iter().all(|(name, count)| *count <= most(name)), "{}: {besides:?}", form.name);
        // strace(1) removes a program's privileges.
        if has_strace && !form.obeys_nobody() {
            let [former, calls] = [&without, &linked].map(|words| system_calls(words, place.path()));
            let more = calls.iter().filter_map(|(name, count)| {
                let more = count.saturating_sub(former.get(name).copied().unwrap_or(0));
                (more > 0).then_some((name.as_str(), more))
            });
            let mut more: BTreeMap<&str, u64> = more.collect();
            // Joined threads may have ended by then, or not.
            if form.thread_count() > 1 {
                more.remove("futex");
            }
            println!("  calls more: {more:?}");
            assert!(more.keys().all(|name| CALLS.contains(name)), "{}: {more:?}", form.name);
        }
    }
}

#[test]
fn each_of_them_is_reached_at_its_next_tracepoint() {
    for form in FORMS.iter().filter(|form| !skips_form(form)) {
        let place = place();
        let run = place.path().join("run");
        let mut program = Running::start(&build(form, true, place.path()), &run);
        let mut list = Command::new(dormouse());
        list.args(["list", &program.pid.to_string(), "--wait", if form.obeys_nobody() { "0s" } else { "60s" }]);
        let list = list.env("XDG_RUNTIME_DIR", &run).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let is_over = AtomicBool::new(false);
        let output = std::thread::scope(|scope| {
            let pass = || {
                let input = program.input.as_mut().unwrap();
                // A step every 20 ms, because the tool looks for a moment when the program sleeps in `read`; ends with
                // the tool.
                while !is_over.load(Ordering::Relaxed) {
                    input.write_all(b"+").unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            };
            scope.spawn(pass);
            let output = list.wait_with_output().unwrap();
            is_over.store(true, Ordering::Relaxed);
            output
        });
        let said = format!("{}: {output:?}", form.name);
        if form.obeys_nobody() {
            assert!(!output.status.success() && !output.stderr.is_empty(), "{said}");
        } else {
            assert!(output.status.success() && stdout(&output).contains("dormant:pass"), "{said}");
        }
        // The program has its former threads again some seconds later.
        dormouse_testing::wait_until("it is as it was", || program.count("task") == form.thread_count());
    }
}

//! Behaviour of every command, in every mode, if its output is not read or goes to a full disk.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use dormouse_e2e::run::{Record, Running, dormouse_with_programs, pantry};
use dormouse_testing::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const TRACED: &str = env!("CARGO_BIN_EXE_e2e-traced");
/// A traced command whose own output does not matter.
const QUIET: &str = concat!(env!("CARGO_BIN_EXE_e2e-traced"), " numbers 1 10 > /dev/null; exit 1");

/// All commands except those of [`APART`]. [`Place::run`] replaces words in braces.
const COMMANDS: &[&[&str]] = &[
    &["--help"],
    &["--version"],
    &["no-such-command"],
    &["list", "{pid}"],
    &["list", "{pid}", "--json"],
    &["list", "4194304"],
    &["arm", "{pid}", "pantry:*"],
    &["disarm", "{pid}", "nobody:*"],
    &["record", "-o", "{new}", "--", "true"],
    &["record", "-e", "nobody:*", "-o", "{new}", "--", "sh", "-c", QUIET],
    &["snapshot", "{pid}", "-o", "{new}"],
    &["snapshot", "{pid}", "-o", "{new}", "--json"],
    &["status", "{pid}"],
    &["status", "{pid}", "--json"],
    &["rule", "{pid}"],
    &["rule", "{pid}", "--json"],
    &["rule", "{pid}", "pantry:*", "!nobody:*"],
    &["rule", "{pid}", "*", "--json"],
    &["budget", "{pid}"],
    &["budget", "{pid}", "--set", "8M", "--json"],
    &["salvage", "{dead}", "-o", "{new}"],
    &["salvage", "{dead}", "-o", "{new}", "--json"],
    &["imv", "list", "{pid}"],
    &["imv", "list", "{pid}", "--json"],
    &["imv", "set", "{pid}", "pantry.batch_size", "64"],
    &["view", "{trace}"],
    &["stats", "{trace}"],
    &["stats", "{cut}", "--json"],
    &["export", "{trace}", "--to", "perfetto", "-o", "-"],
    &["export", "{trace}", "--to", "folded", "-o", "-"],
    &["export", "{trace}", "--to", "csv", "-o", "-"],
    &["export", "{trace}", "--to", "chrome", "-o", "{new}", "--json"],
    &["report", "{trace}", "-o", "-"],
    &["report", "{trace}", "-o", "{new}", "--json"],
    &["clocks", "{trace}", "{cut}", "--messages", "pantry:batch..pantry:batch", "--key", "port"],
    &["open", "{trace}", "--no-browser", "--idle-timeout", "1s"],
    &["pages", "{pid}"],
    &["pages", "{pid}", "--json"],
    &["pages", "--", "true"],
    &["pages", "--json", "--", "true"],
    &["vring", "bench", "--socket", "{disk}", "--requests", "100"],
    &["vring", "bench", "--socket", "{disk}", "--requests", "100", "--json"],
    &["doctor"],
    &["doctor", "--json"],
];

/// Commands that take long, or do not end by themselves, have tests of their own.
const APART: &[&[&str]] = &[&["vring", "serve"]];

/// Target of a command's output.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Target {
    /// The output is read.
    Read,
    /// Standard output is closed by its reader.
    Closed,
    /// Both outputs are closed by their reader: `2>&1 | true`.
    BothClosed,
    /// Standard output is a full disk.
    Full,
}

fn closed() -> Stdio {
    rustix::pipe::pipe().unwrap().1.into()
}

impl Target {
    fn stdio(self) -> (Stdio, Stdio) {
        match self {
            Target::Read => (Stdio::piped(), Stdio::piped()),
            Target::Closed => (closed(), Stdio::piped()),
            Target::BothClosed => (closed(), closed()),
            Target::Full => (File::options().write(true).open("/dev/full").unwrap().into(), Stdio::piped()),
        }
    }
}

/// A process that is killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Arguments of commands: a program, traces, a disk.
struct Place {
    dir: TempDir,
    pantry: Killed,
    /// Keeps the program alive whose session's owner was killed.
    dead: Running,
    trace: PathBuf,
    new_count: std::cell::Cell<u32>,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let pantry = Command::new(pantry())
            .env("XDG_RUNTIME_DIR", dir.path())
            .env("DORMOUSE_LISTEN", "thread")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut pantry = Killed(pantry.unwrap());
        let mut line = String::new();
        BufReader::new(pantry.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let record = Record::new();
        let end = record.place().join("end");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &end, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let mut dead = record.start(&[TRACED.as_ref(), "hold".as_ref(), end.as_os_str(), "1000".as_ref()]);
        dead.wait_for("ready");
        dead.kill_owner();
        let recording = Record::new().output(dir.path().join("trace")).run(&[TRACED, "numbers", "1", "20000"]);
        let trace = recording.succeeded().dir;
        let cut = dir.path().join("cut");
        std::fs::create_dir(&cut).unwrap();
        for entry in std::fs::read_dir(&trace).unwrap().flatten() {
            let mut bytes = std::fs::read(entry.path()).unwrap();
            if entry.file_name().to_string_lossy().starts_with("cpu_") {
                bytes.truncate(bytes.len() - 100);
            }
            std::fs::write(cut.join(entry.file_name()), bytes).unwrap();
        }
        Place { dir, pantry, dead, trace, new_count: 0.into() }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }

    fn pid(&self) -> String {
        self.pantry.0.id().to_string()
    }

    fn replaced(&self, word: &str) -> String {
        match word {
            "{pid}" => self.pid(),
            "{new}" => {
                self.new_count.update(|count| count + 1);
                self.path(&format!("new-{}", self.new_count.get()))
            }
            "{trace}" => self.trace.to_string_lossy().into_owned(),
            "{cut}" | "{disk}" => self.path(word.trim_matches(['{', '}'])),
            "{dead}" => self.dead.dir().to_string_lossy().into_owned(),
            word => word.into(),
        }
    }

    fn command<S: AsRef<str>>(&self, words: &[S], target: Target) -> Command {
        let (stdout, stderr) = target.stdio();
        let mut command = Command::new(dormouse_with_programs());
        command.args(words.iter().map(|word| self.replaced(word.as_ref()))).env("XDG_RUNTIME_DIR", self.dir.path());
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        command
    }

    fn run<S: AsRef<str>>(&self, words: &[S], target: Target) -> Output {
        self.command(words, target).output().unwrap()
    }

    /// Runs it with each target, and compares its messages and its exit code with those of a run whose output is read.
    fn check<S: AsRef<str> + std::fmt::Debug>(&self, words: &[S]) {
        let read = self.run(words, Target::Read);
        let said = String::from_utf8_lossy(&read.stderr);
        assert!(read.status.code().is_some_and(|code| code < 3), "{words:?}: {:?}: {said}", read.status);
        for target in [Target::Closed, Target::BothClosed, Target::Full] {
            let output = self.run(words, target);
            let text = String::from_utf8_lossy(&output.stderr);
            let is_told = target == Target::Full && !read.stdout.is_empty();
            let code = if is_told { Some(2) } else { read.status.code() };
            assert_eq!(output.status.code(), code, "{words:?} into {target:?}: {text}");
            assert_eq!(text.lines().last() == Some(FULL), is_told, "{words:?} into {target:?}: {text}");
            assert!(!text.contains("panicked"), "{words:?} into {target:?}: {text}");
        }
    }
}

const FULL: &str = "dormouse: cannot write to standard output: No space left on device (os error 28)";

/// Waits until a process listens at the socket.
fn wait_for(socket: &Path) {
    wait_until("somebody listens", || UnixStream::connect(socket).is_ok());
}

/// Returns the commands that have no subcommands, as the help lists them. Programs of other workspaces may be installed
/// too; those have tests of their own.
fn leaves(place: &Place, above: &[String]) -> BTreeSet<Vec<String>> {
    let output = place.run(&[above, &["--help".into()]].concat(), Target::Read);
    let text = String::from_utf8(output.stdout).unwrap();
    let Some((_, list)) = text.split_once("\nCommands:\n") else { return BTreeSet::from([above.to_vec()]) };
    let list = list.split("\n\n").next().unwrap_or_default();
    let names = list.lines().filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let names = names.filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| !["help", "lab", "cluster", "query", "ship"].contains(name));
    names.flat_map(|name| leaves(place, &[above, &[name.to_string()]].concat())).collect()
}

#[test]
fn a_closed_output_does_not_change_the_exit_code() {
    let place = Place::new();
    let mut disk = place.command(&["vring", "serve", "--memory", "1M", "--socket", "{disk}"], Target::Closed);
    let _disk = Killed(disk.spawn().unwrap());
    wait_for(Path::new(&place.path("disk")));
    let armed = place.run(&["arm", &place.pid(), "*", "--mode", "overwrite", "-o", &place.path("live")], Target::Read);
    assert!(armed.status.success(), "{}", String::from_utf8_lossy(&armed.stderr));
    for words in COMMANDS {
        place.check(words);
    }

    let leaves = leaves(&place, &[]);
    assert!(leaves.len() > 10, "{leaves:?}");
    for leaf in leaves {
        let is_tried = COMMANDS
            .iter()
            .chain(APART)
            .any(|words| words.iter().zip(&leaf).filter(|(a, b)| a == b).count() == leaf.len());
        assert!(is_tried, "`dormouse {}` is missing in the table of this test", leaf.join(" "));
        place.check(&[&leaf[..], &["--help".into()]].concat());
    }
    let disarmed = place.run(&["disarm", &place.pid(), "*"], Target::Read);
    assert!(disarmed.status.success(), "{}", String::from_utf8_lossy(&disarmed.stderr));
}

#[test]
fn a_command_with_a_closed_output_has_its_effect() {
    let place = Place::new();
    let is_in_session = || {
        let output = place.run(&["list", "{pid}", "--json"], Target::Read);
        !String::from_utf8(output.stdout).unwrap().contains("\"sessions\": []")
    };
    for target in [Target::Closed, Target::BothClosed, Target::Full] {
        let code = Some(if target == Target::Full { 2 } else { 0 });
        let trace = place.path(&format!("trace-{target:?}"));
        let armed = place.run(&["arm", "{pid}", "*", "-o", &trace], target);
        assert_eq!(armed.status.code(), code, "{target:?}: {}", String::from_utf8_lossy(&armed.stderr));
        assert!(is_in_session(), "{target:?}");
        let disarmed = place.run(&["disarm", "{pid}", "*"], target);
        assert_eq!(disarmed.status.code(), code, "{target:?}: {}", String::from_utf8_lossy(&disarmed.stderr));
        assert!(!is_in_session(), "{target:?}");
        let stats = place.run(&["stats", &trace], Target::Read);
        assert!(stats.status.success(), "{target:?}: {}", String::from_utf8_lossy(&stats.stderr));

        // The exit code of the recorded command is kept, and its trace is complete.
        let trace = place.path(&format!("recorded-{target:?}"));
        let recorded = place.run(&["record", "-o", &trace, "--", "sh", "-c", QUIET], target);
        assert_eq!(recorded.status.code(), Some(1), "{target:?}");
        let stats = place.run(&["stats", &trace, "--json"], Target::Read);
        assert!(String::from_utf8_lossy(&stats.stdout).contains("\"events\": 10,"), "{target:?}");

        // A device continues to serve.
        let socket = place.path(&format!("disk-{target:?}"));
        let mut serve = place.command(&["vring", "serve", "--memory", "1M", "--socket", &socket], target);
        let mut serve = Killed(serve.spawn().unwrap());
        wait_for(Path::new(&socket));
        let bench = place.run(&["vring", "bench", "--requests", "100", "--socket", &socket], Target::Read);
        assert!(bench.status.success(), "{target:?}: {}", String::from_utf8_lossy(&bench.stderr));
        kill_process(Pid::from_child(&serve.0), Signal::TERM).unwrap();
        let mut text = String::new();
        serve.0.stderr.take().into_iter().for_each(|mut stderr| drop(stderr.read_to_string(&mut text)));
        assert_eq!(serve.0.wait().unwrap().code(), code, "{target:?}: {text}");
    }
}

/// The pipe is closed while the command writes, not before.
#[test]
fn a_reader_that_closes_the_output_is_not_an_error() {
    let place = Place::new();
    let mut view = place.command(&["view", "{trace}"], Target::Read).spawn().unwrap();
    let mut first = String::new();
    BufReader::with_capacity(64, view.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("dormouse:"), "{first}");
    let output = view.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    // The damage is after the part that was read.
    let output = place.run(&["view", "{cut}"], Target::Closed);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

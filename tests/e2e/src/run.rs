//! Builds and runs the command.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dormouse_ctf::{Format, Metadata, MetadataOptions};
use dormouse_testing::programs::build;
pub use dormouse_testing::programs::dormouse;
use dormouse_testing::{Lack, skip_part};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

use crate::emit;
use crate::trace::Trace;

/// Watchdog: nothing that a test runs takes longer unless it hangs, not even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Returns the command `dormouse`, after building the programs beside it that `dormouse vring` and `dormouse pages`
/// run, once.
pub fn dormouse_with_programs() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        ["dormouse-vring-vhost", "dormouse-census"].iter().for_each(|package| drop(build(&[package, "--bins"])));
        dormouse().into()
    })
}

/// Returns the library that traces libc, built once.
pub fn libc_library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build(&["dormouse-preload"]).join("libdormouse_libc.so"))
}

/// Returns the example of a server that has tunables, built once.
pub fn pantry() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build(&["dormouse", "--example", "pantry"]).join("examples/pantry"))
}

/// Returns the plugin, built once.
pub fn plugin() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| build(&["dormouse-e2e-plugin"]).join("libdormouse_e2e_plugin.so"))
}

/// Options of a run of `dormouse record`.
#[derive(Debug)]
pub struct Record {
    place: TempDir,
    dormouse: PathBuf,
    output: Option<PathBuf>,
    options: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    input: Vec<u8>,
    within: Vec<OsString>,
    patience: Duration,
}

impl Default for Record {
    fn default() -> Record {
        Record::new()
    }
}

impl Record {
    /// Returns the command's own defaults, with a new directory.
    pub fn new() -> Record {
        let place = tempfile::tempdir().expect("a temporary directory");
        Record {
            place,
            dormouse: dormouse().into(),
            output: None,
            options: Vec::new(),
            environment: Vec::new(),
            input: Vec::new(),
            within: Vec::new(),
            patience: PATIENCE,
        }
    }

    /// Runs this copy of the command.
    pub fn dormouse(mut self, path: impl Into<PathBuf>) -> Record {
        self.dormouse = path.into();
        self
    }

    /// Adds an option.
    pub fn option(mut self, option: impl AsRef<OsStr>) -> Record {
        self.options.push(option.as_ref().into());
        self
    }

    /// Sets the session's memory.
    pub fn budget(self, size: &str) -> Record {
        self.option("--budget").option(size)
    }

    /// Sets the mode: `discard` or `overwrite`.
    pub fn mode(self, mode: &str) -> Record {
        self.option("--mode").option(mode)
    }

    /// Sets the context: `ids` or `none`. Without ids, the events of [`crate::emit::step`] name their process
    /// themselves.
    pub fn context(self, context: &str) -> Record {
        let is_marked = if context == "none" { "1" } else { "0" };
        self.option("--context").option(context).env(emit::ENV_MARKED, is_marked)
    }

    /// Sets the format of the metadata.
    pub fn format(self, format: Format) -> Record {
        self.option("--format").option(format.name())
    }

    /// Sets an environment variable for the command and the traced program.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Record {
        self.environment.push((name.into(), value.as_ref().into()));
        self
    }

    /// Sets whether restartable sequences may be used.
    pub fn rseq(self, rseq: bool) -> Record {
        if rseq { self } else { self.env(dormouse_abi::environment::ENV_NO_RSEQ, "1") }
    }

    /// Sets a prefix for the command: a program and its arguments, which executes the command that follows.
    pub fn within<S: AsRef<OsStr>>(mut self, prefix: &[S]) -> Record {
        self.within = prefix.iter().map(|word| word.as_ref().into()).collect();
        self
    }

    /// Has the programs be in another session too, recorded with these options into the directory `outer` of
    /// [`Record::place`]. What that recording says is in the file `outer.txt` there.
    pub fn within_recording(self, options: &[&str]) -> Record {
        let place = self.place().to_path_buf();
        let script = "exec 3>&2 2> \"$0\"; exec \"$@\"";
        let inner = "exec \"$@\" 2>&3 3>&-";
        let outer: Vec<OsString> = [
            "sh".into(),
            "-c".into(),
            script.into(),
            place.join("outer.txt").into(),
            dormouse().into(),
            "record".into(),
            "-o".into(),
            place.join("outer").into(),
        ]
        .into_iter()
        .chain(options.iter().map(OsString::from))
        .chain(["--", "sh", "-c", inner, "sh"].map(OsString::from))
        .collect();
        self.within(&outer)
    }

    /// Sets the control group in which the command and the traced program run.
    pub fn cgroup(self, dir: &Path) -> Record {
        // A shell that moves itself there and then executes the command.
        let script = "echo $$ > \"$0\" && exec \"$@\"";
        self.within(&["sh".as_ref(), "-c".as_ref(), script.as_ref(), dir.join("cgroup.procs").as_os_str()])
    }

    /// Sets the time after which the command counts as hanging.
    pub fn patience(mut self, patience: Duration) -> Record {
        self.patience = patience;
        self
    }

    /// Sets the trace's directory.
    pub fn output(mut self, dir: impl Into<PathBuf>) -> Record {
        self.output = Some(dir.into());
        self
    }

    /// Sets the traced command's input.
    pub fn input(mut self, input: &[u8]) -> Record {
        self.input = input.into();
        self
    }

    /// Returns a directory that lasts as long as the recording, and is not the trace's.
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// Starts the command.
    pub fn start<S: AsRef<OsStr>>(self, command: &[S]) -> Running {
        let place = self.place.path();
        let file = |name: &str| File::create(place.join(name)).expect("a file");
        std::fs::write(place.join("stdin"), &self.input).expect("a file");
        std::fs::create_dir_all(place.join("run")).expect("a directory");
        let dir = self.output.unwrap_or_else(|| place.join("trace"));
        let mut words = self.within.iter().map(OsString::as_os_str).chain([self.dormouse.as_os_str()]);
        let mut child = Command::new(words.next().expect("the command at least"));
        child.args(words);
        // The process that runs the tests may ignore signals, and programs would inherit that.
        let default_signals = || {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTERM] {
                // SAFETY: signal(2) restores a default action, without a handler; it is async-signal-safe.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: between fork and exec, the function only calls signal(2), which is async-signal-safe.
        unsafe { child.pre_exec(default_signals) };
        let child = child
            .arg("record")
            .arg("-o")
            .arg(&dir)
            .args(&self.options)
            .arg("--")
            .args(command)
            .env("XDG_RUNTIME_DIR", place.join("run"))
            .envs(self.environment)
            .stdin(Stdio::from(File::open(place.join("stdin")).expect("a file")))
            .stdout(Stdio::from(file("stdout")))
            .stderr(Stdio::from(file("stderr")))
            .process_group(0)
            .spawn()
            .expect("dormouse runs");
        let (group, started) = (Group(Pid::from_child(&child)), Instant::now());
        Running { group, child, dir, place: self.place, started, patience: self.patience }
    }

    /// Runs the command to its end.
    pub fn run<S: AsRef<OsStr>>(self, command: &[S]) -> Recording {
        self.start(command).wait()
    }
}

/// A process group that ends with the test, even if the test fails.
#[derive(Debug)]
struct Group(Pid);

impl Group {
    fn kill(&self) {
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A running `dormouse record` with a process group of its own.
#[derive(Debug)]
pub struct Running {
    group: Group,
    child: Child,
    dir: PathBuf,
    place: TempDir,
    /// Time at which the test began to wait for something.
    started: Instant,
    patience: Duration,
}

impl Running {
    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.place.path().join(name)).unwrap_or_default()).into_owned()
    }

    /// Returns the session's socket.
    pub fn session(&self) -> PathBuf {
        self.place.path().join(format!("run/dormouse/session-{}-0.sock", self.child.id()))
    }

    /// Runs another command of `dormouse` that finds the session.
    pub fn dormouse<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Output {
        self.dormouse_within(&[], arguments)
    }

    /// Runs a command like [`Running::dormouse`], by the program and arguments that are its prefix.
    pub fn dormouse_within<S: AsRef<OsStr>>(&self, prefix: &[&str], arguments: &[S]) -> Output {
        let mut words = prefix.iter().map(OsStr::new).chain([dormouse().as_os_str()]);
        let mut command = Command::new(words.next().expect("the command at least"));
        command.args(words).args(arguments).env("XDG_RUNTIME_DIR", self.place.path().join("run"));
        command.output().expect("dormouse runs")
    }

    /// Returns the number of bytes of the session's memory that are allocated, in whatever process they are mapped.
    pub fn memory_bytes(&self) -> u64 {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("dormouse is there");
        let is_memory =
            |path: &Path| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("dormouse-session"));
        let path = descriptors.flatten().map(|entry| entry.path()).find(|path| is_memory(path));
        std::fs::metadata(path.expect("the session's memory")).expect("it is open").blocks() * 512
    }

    /// Returns a directory that lasts as long as the recording, and is not the trace's.
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// Returns the traced command's output so far.
    pub fn stdout(&self) -> String {
        self.text("stdout")
    }

    /// Waits until the traced command has written this text.
    pub fn wait_for(&mut self, text: &str) {
        let path = self.place.path().join("stdout");
        self.wait_until("waiting for its output", || {
            String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).contains(text)
        });
    }

    /// Waits until a condition is met.
    pub fn wait_until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) {
        self.started = Instant::now();
        while !is_so() {
            self.check_patience(what);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the process id of `dormouse` itself.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the process that owns the session, which `dormouse` has started; `None` between two of them.
    pub fn owner(&self) -> Option<u32> {
        owner_of(self.child.id())
    }

    /// Sends a signal to `dormouse` itself. SIGSTOP and SIGCONT also go to the session's owner.
    pub fn kill(&self, signal: Signal) {
        if [Signal::STOP, Signal::CONT].contains(&signal) {
            self.kill_owner_alone(signal);
        }
        kill_process(Pid::from_child(&self.child), signal).expect("dormouse is there");
    }

    /// Sends a signal only to the session's owner. Returns false if there was none.
    pub fn kill_owner_alone(&self, signal: Signal) -> bool {
        let owner = self.owner().and_then(|pid| Pid::from_raw(pid as i32));
        owner.is_some_and(|owner| kill_process(owner, signal).is_ok())
    }

    /// Kills `dormouse` itself and the session's owner, but no other process that it has started, and waits for their
    /// ends.
    pub fn kill_owner(&mut self) {
        // Once all of its threads have stopped, it starts no other process.
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("dormouse is there");
        let tasks = format!("/proc/{}/task", self.child.id());
        let has_stopped = |task: &Path| {
            let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
            stat.rsplit_once(')').is_none_or(|(_, fields)| fields.starts_with(" T"))
        };
        self.wait_until("dormouse's being stopped", || {
            std::fs::read_dir(&tasks).is_ok_and(|tasks| tasks.flatten().all(|task| has_stopped(&task.path())))
        });
        let owner = self.owner();
        self.kill_owner_alone(Signal::KILL);
        self.kill_supervisor();
        self.wait_until("the owner's end", || owner.is_none_or(has_ended));
    }

    /// Kills `dormouse` itself, but no process that it has started, and waits for its end.
    pub fn kill_supervisor(&mut self) {
        self.kill(Signal::KILL);
        self.child.wait().expect("the child can be awaited");
    }

    /// Kills all processes that the traced command has left running, and waits until they have ended.
    pub fn kill_programs(&mut self, pids: &[u32]) {
        self.kill_all();
        self.wait_until("killing programs", || pids.iter().all(|pid| has_ended(*pid)));
    }

    /// Returns the numbers after a word at the beginning of a line of the traced command's output so far.
    pub fn numbers(&self, word: &str) -> Vec<u64> {
        numbers_after(&self.stdout(), word)
    }

    /// Returns the trace's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn kill_all(&self) {
        self.group.kill();
    }

    fn check_patience(&mut self, doing: &str) {
        if self.started.elapsed() > self.patience {
            self.kill_all();
            panic!("hangs while {doing}; stdout: {:?}; stderr: {:?}", self.stdout(), self.text("stderr"));
        }
    }

    /// Waits for the end of `dormouse`, then kills all processes that the traced command has left running.
    pub fn wait(mut self) -> Recording {
        self.started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the child can be awaited") {
                break status;
            }
            self.check_patience("running");
            std::thread::sleep(Duration::from_millis(2));
        };
        self.kill_all();
        Recording {
            status,
            stdout: self.stdout(),
            stderr: self.text("stderr"),
            dir: self.dir.clone(),
            place: self.place,
        }
    }
}

fn numbers_after(text: &str, word: &str) -> Vec<u64> {
    text.lines().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok()).collect()
}

/// Runs a command to its end, and kills it if it takes longer than `patience`.
///
/// # Panics
/// If it hangs, or does not run.
pub fn watched(command: &mut Command, patience: Duration) -> Output {
    let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().expect("a command runs");
    let started = Instant::now();
    let mut hangs = false;
    while child.try_wait().expect("the child can be awaited").is_none() && !hangs {
        hangs = started.elapsed() > patience;
        // Pause between two looks.
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    let output = child.wait_with_output().expect("the child can be awaited");
    assert!(!hangs, "{command:?} hangs; stderr: {:?}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Returns the process that owns the session that process `pid` has started.
pub fn owner_of(pid: u32) -> Option<u32> {
    let is_owner = |owner: &u32| {
        let proc = PathBuf::from(format!("/proc/{owner}"));
        let command_line = std::fs::read(proc.join("cmdline")).unwrap_or_default();
        let stat = std::fs::read_to_string(proc.join("stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        // In an emulator of programs, the emulator's words come first.
        let mut words = command_line.split(|byte| *byte == 0).skip(1).take(3);
        parent == Some(pid) && words.any(|word| word == b"session-owner")
    };
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_owner)
}

/// Whether a process has ended, possibly as a zombie: its files are closed once the last of its threads has ended.
pub fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']) && threads <= 1)
}

/// Result of a recording.
#[derive(Debug)]
pub struct Recording {
    /// Exit status of `dormouse`.
    pub status: ExitStatus,
    /// Output of the command.
    pub stdout: String,
    /// Error output of `dormouse` and the command.
    pub stderr: String,
    /// Directory of the trace.
    pub dir: PathBuf,
    place: TempDir,
}

/// Contents of the last line of `dormouse record`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Number of events in the trace.
    pub events: u64,
    /// Number of lost events.
    pub lost: u64,
    /// Number of processes that joined.
    pub processes: u64,
}

impl Recording {
    /// Returns a directory that lasts as long as the recording, and is not the trace's.
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// Returns the exit code.
    pub fn code(&self) -> i32 {
        match self.status.code() {
            Some(code) => code,
            None => panic!("dormouse was ended by signal {:?}: {}", self.status.signal(), self.stderr),
        }
    }

    /// Asserts that the command has succeeded.
    pub fn succeeded(self) -> Recording {
        assert_eq!(self.code(), 0, "stdout: {}; stderr: {}", self.stdout, self.stderr);
        self
    }

    /// Returns the summary line. Panics if there is none.
    pub fn summary(&self) -> Summary {
        let line = self.stderr.lines().rfind(|line| line.starts_with("dormouse: "));
        let Some(line) = line else { panic!("no summary: {:?}", self.stderr) };
        let number = |word: &str| {
            let before =
                line.split_once(word).and_then(|(before, _)| before.rsplit([' ', ',']).find(|w| !w.is_empty()));
            match before.and_then(|number| number.parse().ok()) {
                Some(number) => number,
                None => panic!("no number before {word:?} in {line:?}"),
            }
        };
        // An unknown number counts as none.
        let lost = if line.contains("unknown how many lost") { 0 } else { number(" lost") };
        Summary { events: number(" events"), lost, processes: number(" process") }
    }

    /// Returns the trace.
    pub fn trace(&self) -> Trace {
        Trace::read(&self.dir)
    }

    /// Returns the numbers after a word at the beginning of a line of the output: `emitted 7`.
    pub fn numbers(&self, word: &str) -> Vec<u64> {
        numbers_after(&self.stdout, word)
    }
}

/// Returns the number of events that `babeltrace2` finds in a trace; `None`, with a note, if it is not installed and
/// not required.
pub fn babeltrace2_count(dir: &Path) -> Option<u64> {
    babeltrace2_lines(dir).map(|lines| lines.lines().count() as u64)
}

/// Returns the output of `babeltrace2` for a trace; `None`, with a note, if it is not installed and not required.
/// Versions before 2.1 do not read CTF 2: of a trace in that format it gets the same streams with metadata in CTF 1.8.
pub fn babeltrace2_lines(dir: &Path) -> Option<String> {
    let other = in_ctf18(dir);
    let given = other.as_ref().map_or(dir, |other| other.path());
    let output = match Command::new("timeout").args(["600", "babeltrace2"]).arg(given).output() {
        Ok(output) if output.status.code() != Some(127) => output,
        _ => {
            skip_part("what babeltrace2 reads", Lack::program("babeltrace2"));
            return None;
        }
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "babeltrace2 cannot read {}: {stderr}", dir.display());
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Makes a copy of a trace in CTF 2 with metadata in CTF 1.8; `None` for another trace.
fn in_ctf18(dir: &Path) -> Option<tempfile::TempDir> {
    let metadata = Metadata::decode(&std::fs::read(dir.join("metadata")).expect("metadata")).expect("metadata");
    if metadata.options.format == Format::Ctf18 {
        return None;
    }
    let options = MetadataOptions { format: Format::Ctf18, ..metadata.options.clone() };
    let other = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(other.path().join("metadata"), Metadata { options, ..metadata }.text()).expect("metadata");
    for entry in std::fs::read_dir(dir).expect("a trace") {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).expect("an entry");
        if name != "metadata" {
            std::os::unix::fs::symlink(std::path::absolute(path).expect("a path"), other.path().join(name))
                .expect("a link");
        }
    }
    Some(other)
}

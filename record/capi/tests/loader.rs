//! Programs whose threads are in the loader while tools send them requests: constructors and destructors of plugins run
//! under the loader's lock.
//!
//! `DORMOUSE_STORM_SECONDS=600` makes the storm last ten minutes, `DORMOUSE_STORM_SEED=N` repeats one.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use dormouse_testing::c_programs::{install, pkg_config, stdout, succeed};
use dormouse_testing::programs::dormouse;

/// Maximum time of a wait. Only a hang takes as long; even the first file of a session on a busy disk does not.
const PATIENCE: Duration = Duration::from_secs(300);

/// Returns the directory with the program and its plugins, built once.
fn programs() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let prefix = install("loader-prefix");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loader");
        std::fs::create_dir_all(&dir).unwrap();
        let flags = pkg_config(&prefix, &["--cflags", "--libs", "dormouse"]);
        let compile = |name: &str, output: &str, options: &[&str]| {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/loader").join(name);
            let mut compiler = Command::new("cc");
            compiler.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o"]);
            compiler.arg(dir.join(output)).arg(source).args(options).args(&flags);
            compiler.arg("-pthread").arg(format!("-Wl,-rpath,{}:{}", dir.display(), prefix.join("lib").display()));
            succeed(&mut compiler);
        };
        let library_dir = format!("-L{}", dir.display());
        compile("program.c", "program", &["-ldl"]);
        compile("plugin.c", "plugin.so", &["-shared", "-fPIC"]);
        compile("gate.c", "libgate.so", &["-shared", "-fPIC"]);
        compile("held.c", "held.so", &["-shared", "-fPIC", &library_dir, "-lgate"]);
        dir
    })
}

/// Makes copies of the plugin that differ in their provider's name, and so in their classes.
fn make_plugins(dir: &Path, count: usize) {
    let plugin = std::fs::read(programs().join("plugin.so")).unwrap();
    let name = b"storm_000";
    let places: Vec<usize> = (0..plugin.len() - name.len()).filter(|at| plugin[*at..].starts_with(name)).collect();
    assert!(!places.is_empty());
    for number in 0..count {
        let mut copy = plugin.clone();
        for place in &places {
            copy[*place..][..name.len()].copy_from_slice(format!("storm_{number:03}").as_bytes());
        }
        std::fs::write(dir.join(format!("plugin-{number:03}.so")), copy).unwrap();
    }
}

/// A running program.
struct Running {
    place: TempDir,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Running {
    fn start(plugin_count: usize, thread_count: usize, environment: &[(&str, &str)]) -> Running {
        let place = tempfile::tempdir().unwrap();
        make_plugins(place.path(), plugin_count);
        std::fs::copy(programs().join("held.so"), place.path().join("held.so")).unwrap();
        let mut child = Command::new(programs().join("program"))
            .arg(place.path())
            .args([plugin_count.to_string(), thread_count.to_string()])
            .arg(place.path().join("progress"))
            .env("XDG_RUNTIME_DIR", place.path())
            // Its threads are blocked in the loader while tools connect.
            .env("DORMOUSE_LISTEN", "thread")
            .env("GATE", place.path().join("gate"))
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let running = Running { place, child, stdin, lines };
        running.expect_line("ready");
        running
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn expect_line(&self, expected: &str) {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => assert_eq!(line, expected),
            Err(_) => panic!("the program does not say `{expected}`\n{}", stacks(self.child.id())),
        }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{command}").unwrap();
    }

    fn obey(&mut self, command: &str) {
        self.tell(command);
        self.expect_line(&format!("done: {command}"));
    }

    /// Runs a command of `dormouse`. Returns whether it succeeded, and its output.
    fn dormouse(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(dormouse());
        command.args(arguments).env("XDG_RUNTIME_DIR", self.place.path()).stdin(Stdio::null());
        // A session that starts without a directory records into one of its own there.
        command.current_dir(self.place.path());
        let mut tool = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Both pipes are read, so that the command does not block on them.
        let (mut out, mut err) = (tool.stdout.take().unwrap(), tool.stderr.take().unwrap());
        let said = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = out.read_to_string(&mut text);
            text
        });
        let failed = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = err.read_to_string(&mut text);
            text
        });
        let started = Instant::now();
        let status = loop {
            if let Some(status) = tool.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > PATIENCE {
                panic!("{arguments:?} hangs\n{}\n{}", stacks(tool.id()), stacks(self.child.id()));
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let (said, failed) = (said.join().unwrap(), failed.join().unwrap());
        let is_answer = status.code().is_some_and(|code| code == 0 || code == 2) && !failed.contains("did not answer");
        assert!(is_answer, "{arguments:?}: {status}: {failed}\n{}", stacks(self.child.id()));
        (status.success(), if status.success() { said } else { failed })
    }

    fn succeed(&self, arguments: &[&str]) -> String {
        let (is_well, text) = self.dormouse(arguments);
        assert!(is_well, "{arguments:?}: {text}");
        text
    }

    /// Returns the progress of each thread.
    fn progress(&self) -> Vec<u64> {
        let mut bytes = [0; 512];
        File::open(self.place.path().join("progress")).unwrap().read_exact_at(&mut bytes, 0).unwrap();
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    fn is_in_session(&self) -> bool {
        !self.succeed(&["list", &self.pid(), "--json"]).contains("\"sessions\": []")
    }

    fn end(&mut self) {
        self.stdin = None;
        let started = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < PATIENCE, "the program does not end\n{}", stacks(self.child.id()));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the stack of each thread of a process, by gdb or, without gdb, with the kernel's information.
fn stacks(pid: u32) -> String {
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-nx", "-ex", "set debuginfod enabled off", "-ex", "thread apply all bt", "-p"]);
    if let Ok(output) = gdb.arg(pid.to_string()).stdin(Stdio::null()).output()
        && output.status.success()
    {
        return String::from_utf8_lossy(&output.stdout).into_owned();
    }
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let told = tasks.map(|task| {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let (name, waits_in, call) = (read("comm"), read("wchan"), read("syscall"));
        format!("thread {} {} {waits_in} {}\n{}", task.file_name().display(), name.trim(), call.trim(), read("stack"))
    });
    format!("process {pid} (gdb would tell more):\n{}", told.collect::<String>())
}

/// A program answers all requests while one of its threads is in a constructor, for any length of time.
#[test]
fn a_program_in_a_constructor_answers() {
    // Each record of that event requests a snapshot, by a thread that is started when the class is armed.
    let mut running = Running::start(1, 0, &[("DORMOUSE_SNAPSHOT_ON", "event:app:fired")]);
    let pid = running.pid();
    let place = running.place.path().to_owned();
    let path = |name: &str| place.join(name).to_str().unwrap().to_owned();
    let gate = place.join("gate");
    succeed(Command::new("mkfifo").arg(&gate));

    running.tell("load");
    running.expect_line("in the constructor");

    running.succeed(&["list", &pid]);
    running.succeed(&["imv", "list", &pid]);
    running.succeed(&["arm", &pid, "*", "-o", &path("first"), "--mode", "overwrite", "--budget", "4M"]);
    running.obey("fire 5");
    running.obey("fork");
    running.succeed(&["imv", "set", &pid, "storm.pace", "7"]);
    running.succeed(&["snapshot", &pid, "-o", &path("snapshot")]);
    running.succeed(&["disarm", &pid, "app:f*d"]);
    running.succeed(&["arm", &pid, "app:*"]);
    running.succeed(&["disarm", &pid, "*"]);
    // The program leaves the first session and joins another.
    running.succeed(&["arm", &pid, "*", "-o", &path("second"), "--budget", "4M"]);
    running.obey("fire 3");
    running.obey("fork");

    // The constructor returns, and that of the plugin registers its event in the session, where it is armed like the
    // others.
    drop(File::options().write(true).open(&gate).unwrap());
    running.obey("loaded");
    running.succeed(&["arm", &pid, "*"]);
    running.succeed(&["disarm", &pid, "*"]);
    running.end();

    assert_eq!(count(&place.join("first"), "app:fired"), 5);
    assert_eq!(count(&place.join("first"), "app:forked"), 1);
    assert_eq!(count(&place.join("snapshot"), "app:fired"), 5);
    assert_eq!(count(&place.join("second"), "app:fired"), 3);
    assert_eq!(count(&place.join("second"), "app:forked"), 1);
    assert_eq!(count(&place.join("second"), "held:work"), 1);
}

/// Returns the number of events in a trace whose class begins with this text. No event may be lost.
fn count(trace: &Path, class: &str) -> u64 {
    let stats = succeed(Command::new(dormouse()).arg("stats").arg(trace).arg("--json"));
    let stats: serde_json::Value = serde_json::from_str(&stdout(&stats)).unwrap();
    assert_eq!(stats["events_lost"], 0, "{stats}");
    let classes = stats["classes"].as_array().unwrap().iter();
    classes
        .filter(|row| row["name"].as_str().unwrap().starts_with(class))
        .map(|row| row["count"].as_u64().unwrap())
        .sum()
}

/// xorshift64 (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn one_of<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// Threads load and unload plugins, fork and walk the list of objects while the program is armed, disarmed, listed,
/// tuned and asked for snapshots, at random. No thread hangs, and afterwards no event is missing.
#[test]
fn a_storm_of_plugins_is_survived() {
    const PLUGIN_COUNT: usize = 300;
    const THREAD_COUNT: usize = 4;
    let seconds = number("DORMOUSE_STORM_SECONDS").unwrap_or(20);
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    let seed = number("DORMOUSE_STORM_SEED").unwrap_or_else(|| clock().into());
    println!("DORMOUSE_STORM_SEED={seed}");
    let mut random = Random(seed | 1 << 40);

    let mut running = Running::start(PLUGIN_COUNT, THREAD_COUNT, &[("DORMOUSE_SNAPSHOT_ON", "event:storm_007:e0")]);
    let (pid, place) = (running.pid(), running.place.path().to_owned());
    let trace = place.join("trace");
    let snapshot = place.join("snapshot");
    let patterns =
        ["*", "storm_*:e3", "storm_1??:*", "app:*", "storm_0*:e?", "*:forked", "storm_2*:e[0]", "storm_007:*"];
    let is_known = |refusal: &str| {
        ["no event of process", "is in no session", "nothing", "it is not in a session", "in discard mode"]
            .iter()
            .any(|known| refusal.contains(known))
    };
    let (mut asked, mut refused, mut sessions) = (0u64, 0u64, 0u64);
    let started = Instant::now();
    let mut moved = (Instant::now(), running.progress());
    while started.elapsed() < Duration::from_secs(seconds) {
        let pattern = random.one_of(&patterns);
        let (is_well, text) = match random.below(8) {
            0..3 if running.is_in_session() => running.dormouse(&["arm", &pid, pattern]),
            0..3 => {
                sessions += 1;
                let _ = std::fs::remove_dir_all(&trace);
                let mode = random.one_of(&["overwrite", "overwrite", "discard"]);
                running.dormouse(&[
                    "arm",
                    &pid,
                    pattern,
                    "-o",
                    trace.to_str().unwrap(),
                    "--mode",
                    mode,
                    "--budget",
                    "8M",
                ])
            }
            3 => running.dormouse(&["disarm", &pid, pattern]),
            4 => running.dormouse(&["disarm", &pid, "*"]),
            5 => running.dormouse(&["list", &pid]),
            6 => {
                let _ = std::fs::remove_dir_all(&snapshot);
                running.dormouse(&["snapshot", &pid, "-o", snapshot.to_str().unwrap()])
            }
            _ => running.dormouse(&["imv", "set", &pid, "storm.pace", &random.below(1000).to_string()]),
        };
        asked += 1;
        refused += u64::from(!is_well);
        assert!(is_well || is_known(&text), "{text}");
        // Each of the program's threads makes progress.
        let progress = running.progress();
        if progress[..THREAD_COUNT + 2].iter().zip(&moved.1).all(|(now, before)| now > before) {
            moved = (Instant::now(), progress.clone());
        }
        if moved.0.elapsed() > PATIENCE {
            panic!("a thread stands still: {:?} {progress:?}\n{}", moved.1, stacks(running.child.id()));
        }
    }
    let rounds = running.progress();
    println!(
        "{asked} questions, {refused} refused, {sessions} sessions, rounds of the threads {:?}",
        &rounds[..THREAD_COUNT + 2]
    );
    assert!(rounds[..THREAD_COUNT + 2].iter().all(|rounds| *rounds > 0), "{rounds:?}");

    running.obey("calm");
    let _ = running.dormouse(&["disarm", &pid, "*"]);
    let last = place.join("last");
    running.succeed(&["arm", &pid, "*", "-o", last.to_str().unwrap(), "--budget", "64M"]);
    running.obey("fire 5");
    running.obey("round");
    running.succeed(&["disarm", &pid, "*"]);
    running.end();
    assert_eq!(count(&last, "app:fired"), 5);
    // Objects that are loaded during a session are armed by the patterns with which it was started.
    assert_eq!(count(&last, "storm_"), PLUGIN_COUNT as u64 * 10);
}

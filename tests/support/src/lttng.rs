//! Traces of LTTng-UST, recorded while a test runs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Lack, skip};

/// A session daemon of LTTng, ended with its children.
struct SessionDaemon(std::process::Child);

impl Drop for SessionDaemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// What is recorded.
#[derive(Debug, Clone, Copy)]
pub struct Session<'a> {
    /// Of the directory.
    pub name: &'a str,
    /// An option of `lttng enable-channel`.
    pub buffers: &'a str,
    /// Patterns of events.
    pub events: &'a str,
    /// Contexts that all events have.
    pub contexts: &'a [&'a str],
    /// How it ends.
    pub kind: Kind,
}

/// How a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It is stopped.
    Plain,
    /// A snapshot is taken of it.
    Snapshot,
    /// Its trace is rotated, and the program runs once more.
    Rotation,
}

impl Default for Session<'_> {
    fn default() -> Self {
        let contexts = &["vpid", "vtid", "procname"];
        Session { name: "uid", buffers: "--buffers-uid", events: "mine:*", contexts, kind: Kind::Plain }
    }
}

/// Records `lttng/lttng.c` once for each of the sessions, into a directory of its name below this one. The program writes `mine:ev` with `i` from 0 to
/// 19, and as many events of other classes. False, and the test is skipped, where LTTng is not installed.
///
/// # Panics
/// LTTng is there and does not record.
pub fn record(directory: &Path, sessions: &[Session<'_>]) -> bool {
    let at = |name: &str| directory.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("lttng");
    let lacks = |what: &str| {
        skip(Lack::program(what));
        false
    };
    let program = at("program");
    let mut compiler = Command::new("cc");
    compiler.arg("-I").arg(&source).arg("-o").arg(&program).arg(source.join("lttng.c")).args(["-llttng-ust", "-ldl"]);
    if !compiler.output().is_ok_and(|output| output.status.success()) {
        return lacks("liblttng-ust-dev");
    }
    let mut daemon = Command::new("lttng-sessiond");
    daemon.args(["--no-kernel", "--pidfile"]).arg(at("ready")).env("LTTNG_HOME", directory);
    daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(daemon) = daemon.spawn() else { return lacks("lttng-sessiond") };
    let mut daemon = SessionDaemon(daemon);
    let lttng = |arguments: &[&str]| {
        let mut command = Command::new("lttng");
        command.arg("--no-sessiond").args(arguments).env("LTTNG_HOME", directory).stdin(Stdio::null());
        command.output().expect("lttng runs")
    };
    // It answers when it is ready. One that runs already ends ours, and answers too.
    let deadline = Instant::now() + Duration::from_secs(30);
    while !lttng(&["list"]).status.success() && Instant::now() < deadline {
        // Nothing tells when it listens: its signal would go to a parent, and this process has other children.
        std::thread::sleep(Duration::from_millis(50));
        let _ = daemon.0.try_wait();
    }
    for Session { name, buffers, events, contexts, kind } in sessions {
        let session = format!("dormouse-test-{name}-{}", std::process::id());
        let create = format!("--output={}", at(name).display());
        let contexts: Vec<&str> = contexts.iter().flat_map(|context| ["-t", *context]).collect();
        let step = |arguments: &[&str]| {
            let output = lttng(arguments);
            assert!(output.status.success(), "{arguments:?}: {output:?}");
        };
        let run = || {
            let output = Command::new(&program).env("LTTNG_HOME", directory).output().expect("the program runs");
            assert!(output.status.success(), "{output:?}");
        };
        let how: &[&str] = if *kind == Kind::Snapshot { &["--snapshot"] } else { &[] };
        step(&[&["create", &session, &create], how].concat());
        step(&["enable-channel", "-s", &session, "-u", buffers, "--subbuf-size=4096", "channel"]);
        step(&["enable-event", "-s", &session, "-u", "-c", "channel", events]);
        if !contexts.is_empty() {
            step(&[&["add-context", "-s", &session, "-u", "-c", "channel"], &contexts[..]].concat());
        }
        step(&["start", &session]);
        run();
        match kind {
            Kind::Plain => {}
            Kind::Snapshot => step(&["snapshot", "record", "-s", &session]),
            Kind::Rotation => {
                step(&["rotate", &session]);
                run();
            }
        }
        step(&["stop", &session]);
        step(&["destroy", &session]);
    }
    true
}

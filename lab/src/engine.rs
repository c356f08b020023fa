//! The lab's end of an engine: a process with loops, driven over its standard input and output.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use dormouse_lab_harness::{Answer, Arrived, Description, Request, Run, Timing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::LabError;

/// How long an answer may take before the engine is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Where a part of the lab is: beside this program or, for tests, one directory further up, or where `cargo xtask install` puts it. `None`:
/// nowhere.
pub(crate) fn find_part(name: &str) -> Option<PathBuf> {
    let dir = std::env::current_exe().ok()?.parent()?.to_owned();
    let places = [dir.join(name), dir.join("..").join(name), dir.join("../lib/dormouse/lab").join(name)];
    places.into_iter().find(|path| path.exists())
}

/// Where an engine of ours is.
///
/// # Errors
/// It is not there.
pub(crate) fn engine_path(name: &str) -> Result<PathBuf, LabError> {
    find_part(name).ok_or_else(|| LabError::NoEngine(name.into()))
}

/// A running engine. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Engine {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    description: Description,
    emitted: u64,
}

impl Engine {
    /// Starts one. `command` is complete but for the processors and the policy.
    pub(crate) fn start(mut command: Command, cpus: &[u32], policy: &str) -> Result<Engine, LabError> {
        let name = command.get_program().to_string_lossy().into_owned();
        let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
        command.args(["--cpus", &cpus.join(","), "--policy", policy]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let failed = |what: &str| LabError::Engine(format!("{name}: {what}"));
        let mut child = command.spawn().map_err(|error| failed(&error.to_string()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("no pipes"));
        };
        let unknown = Description {
            name,
            version: String::new(),
            cases: Vec::new(),
            processors: Vec::new(),
            policy: String::new(),
            tsc_cycles_per_ns: None,
            counters_refused: Vec::new(),
        };
        let mut engine =
            Engine { child, input: Some(input), output: BufReader::new(output), description: unknown, emitted: 0 };
        match engine.ask(&Request::Describe)? {
            Answer::Description(description) => engine.description = description,
            other => return Err(engine.failed(&format!("an answer to another question: {other:?}"))),
        }
        Ok(engine)
    }

    fn failed(&self, what: &str) -> LabError {
        LabError::Engine(format!("{}: {what}", self.description.name))
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, LabError> {
        let text = serde_json::to_string(request).map_err(|error| self.failed(&error.to_string()))?;
        let sent = self.input.as_mut().map(|input| writeln!(input, "{text}").and_then(|()| input.flush()));
        if !matches!(sent, Some(Ok(()))) {
            return Err(self.ended());
        }
        let timeout = Timespec { tv_sec: ANSWER_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
        // An engine says one line at a time, so nothing is left in the buffer from before.
        let mut fds = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
        if matches!(poll(&mut fds, Some(&timeout)), Ok(0)) {
            return Err(self.failed(&format!("no answer in {} s", ANSWER_TIMEOUT.as_secs())));
        }
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(0) | Err(_) => Err(self.ended()),
            Ok(_) => match serde_json::from_str(&line) {
                Ok(Answer::Refused(why)) => Err(self.failed(&why)),
                Ok(answer) => Ok(answer),
                Err(error) => Err(self.failed(&format!("cannot be understood ({error}): {}", line.trim()))),
            },
        }
    }

    fn ended(&mut self) -> LabError {
        self.input = None;
        match self.child.wait() {
            Ok(status) => self.failed(&format!("has ended early: {status}")),
            Err(error) => self.failed(&error.to_string()),
        }
    }

    /// What it has said of itself.
    pub(crate) fn description(&self) -> &Description {
        &self.description
    }

    /// Whether it has a case.
    pub(crate) fn has(&self, case: &str) -> bool {
        self.description.cases.iter().any(|name| name == case)
    }

    /// Times a case.
    pub(crate) fn run(&mut self, run: Run) -> Result<Timing, LabError> {
        match self.ask(&Request::Run(run))? {
            Answer::Timing(timing) => {
                self.emitted += timing.events;
                Ok(timing)
            }
            other => Err(self.failed(&format!("an answer to another question: {other:?}"))),
        }
    }

    /// Events that it has emitted so far.
    pub(crate) fn emitted(&self) -> u64 {
        self.emitted
    }

    /// Events that arrived, as far as the tracer's own reader is asked.
    pub(crate) fn arrived(&mut self) -> Result<Arrived, LabError> {
        match self.ask(&Request::Arrived)? {
            Answer::Arrived(arrived) => Ok(arrived),
            other => Err(self.failed(&format!("an answer to another question: {other:?}"))),
        }
    }

    /// Lets it end by itself, so that a tracer may say good-bye.
    pub(crate) fn finish(mut self) -> Result<(), LabError> {
        self.input = None;
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.failed(&format!("ended with {status}"))),
            Err(error) => Err(self.failed(&error.to_string())),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.input = None;
        // One that answers no more does not end by itself either. Both fail only when it has ended.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

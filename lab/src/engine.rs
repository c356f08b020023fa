//! The lab's end of an engine: a process with loops, driven over its standard input and output.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use dormouse_lab_harness::{Answer, Arrived, Description, Request, Run, Timing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{LabError, RunOptions};

/// Maximum time for an answer, in seconds, before the lab gives up on the engine.
const ANSWER_TIMEOUT_S: i64 = 120;

const WRONG_ANSWER: &str = "the answer belongs to another question";

/// Returns the path of a part of the lab: beside this program; for tests, one directory further up; or in the directory
/// to which `cargo xtask install` installs it. Returns `None` if it is in none of them.
pub(crate) fn find_part(name: &str) -> Option<PathBuf> {
    let dir = std::env::current_exe().ok()?.parent()?.to_owned();
    let places = ["", "..", "../lib/dormouse/lab"].map(|place| dir.join(place).join(name));
    places.into_iter().find(|path| path.exists())
}

/// Returns the path of one of our engines.
pub(crate) fn engine_path(name: &str) -> Result<PathBuf, LabError> {
    find_part(name).ok_or_else(|| LabError::NoEngine(name.into()))
}

/// A running engine. Dropping it ends the process.
#[derive(Debug)]
pub struct Engine {
    child: Child,
    output: BufReader<ChildStdout>,
    description: Description,
    /// Number of events that it has emitted so far.
    pub emitted: u64,
    emitted_by: BTreeMap<String, u64>,
}

impl Engine {
    /// Starts an engine. `command` is complete except for the CPUs and the policy.
    pub fn start(mut command: Command, options: &RunOptions) -> Result<Engine, LabError> {
        let name = command.get_program().to_string_lossy().into_owned();
        let cpus: Vec<String> = options.cpus.iter().map(u32::to_string).collect();
        command.args(["--cpus", &cpus.join(","), "--policy", options.policy.as_str()]);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| LabError::Engine(format!("{name}: {error}")))?;
        let Some(output) = child.stdout.take() else { return Err(LabError::Engine(format!("{name}: no pipe to it"))) };
        let description = Description { name, ..Description::default() };
        let (output, emitted_by) = (BufReader::new(output), BTreeMap::new());
        let mut engine = Engine { child, output, description, emitted: 0, emitted_by };
        let Answer::Description(description) = engine.ask(&Request::Describe)? else {
            return Err(engine.failed(WRONG_ANSWER));
        };
        engine.description = description;
        Ok(engine)
    }

    fn failed(&self, what: impl Display) -> LabError {
        LabError::Engine(format!("{}: {what}", self.description.name))
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, LabError> {
        let text = serde_json::to_string(request).map_err(|error| self.failed(error))?;
        let sent = self.child.stdin.as_mut().map(|input| writeln!(input, "{text}"));
        if !matches!(sent, Some(Ok(()))) {
            return Err(self.ended());
        }
        let timeout = Timespec { tv_sec: ANSWER_TIMEOUT_S, tv_nsec: 0 };
        // An engine answers one line at a time, so the buffer has no rest of an earlier answer.
        let mut fds = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
        if matches!(poll(&mut fds, Some(&timeout)), Ok(0)) {
            return Err(self.failed(format!("no answer within {ANSWER_TIMEOUT_S} s")));
        }
        let mut line = String::new();
        if matches!(self.output.read_line(&mut line), Ok(0) | Err(_)) {
            return Err(self.ended());
        }
        match serde_json::from_str(&line) {
            Ok(Answer::Refused(why)) => Err(self.failed(why)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(format!("its answer is not valid ({error}): {}", line.trim()))),
        }
    }

    fn ended(&mut self) -> LabError {
        match self.child.wait() {
            Ok(status) => self.failed(format!("it ended early: {status}")),
            Err(error) => self.failed(error),
        }
    }

    /// The engine's description of itself.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Whether the engine has a case.
    pub fn has(&self, case: &str) -> bool {
        self.description.cases.iter().any(|name| name == case)
    }

    /// Times a case.
    pub fn run(&mut self, run: Run) -> Result<Timing, LabError> {
        let case = run.case.clone();
        let Answer::Timing(timing) = self.ask(&Request::Run(run))? else { return Err(self.failed(WRONG_ANSWER)) };
        self.emitted += timing.events;
        *self.emitted_by.entry(case).or_default() += timing.events;
        Ok(timing)
    }

    /// Returns the number of events that a case has emitted so far.
    pub fn emitted_by(&self, case: &str) -> u64 {
        self.emitted_by.get(case).copied().unwrap_or(0)
    }

    /// Asks for the number of events that arrived, if the tracer's own reader counts them.
    pub fn arrived(&mut self) -> Result<Arrived, LabError> {
        let Answer::Arrived(arrived) = self.ask(&Request::Arrived)? else { return Err(self.failed(WRONG_ANSWER)) };
        Ok(arrived)
    }

    /// Lets the engine exit by itself, so that a tracer can shut down.
    pub fn finish(mut self) -> Result<(), LabError> {
        // Waiting closes its input.
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.failed(format!("ended with {status}"))),
            Err(error) => Err(self.failed(error)),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // An engine that no longer answers does not exit by itself. Both calls fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

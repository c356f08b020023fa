//! The supervisor of a session's owner: a thread that starts the owner as a process, notices its end, and starts it again.
//!
//! ```text
//!   dormouse record ── NewSession: directory, memory, socket, ledger ──┐ descriptors, kept open
//!     │ supervisor ── starts ──▶ owner ── takes up, serves, drains ────┤
//!     │      ▲                     │ dies                              │
//!     │      └─────────────────────┘                                   │
//!     │      └─────── starts ──▶ owner ── takes up where the first had got to
//!     └─ command: its parent, its signals, its exit code
//! ```
//! The supervisor reads nothing that a program can write: no session memory, no message, no trace. A line from the
//! owner tells it when the session is over.
//!
//! An owner that dies is replaced at once. If owners die repeatedly without making progress, the supervisor waits
//! longer each time and finally gives up. Everything that programs have committed stays where `dormouse salvage` finds
//! it.
//!
//! An owner whose supervisor dies continues ([`crate::supervised`]).

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dormouse_control::{open, send_signal, start_of};
use dormouse_tools::ProgramError;
use rustix::process::Signal;

use crate::begin::{Entrance, NewSession};
use crate::error::{Error, no_thread};
use crate::inheritance::{Inheritance, Joined, OwnerMessage, Recording, SupervisorMessage, from_line, to_line};
use crate::ledger::Ledger;
use crate::notify;

/// Maximum number of consecutive owners that die without progress.
const FAILURE_COUNT_MAX: u32 = 10;

/// An owner that has lived this long without having work does not count as a failure.
const CALM: Duration = Duration::from_secs(10);

/// Returns how long to wait before the next owner, after this many consecutive failures: their cause should not recur
/// continuously.
fn pause(failures: u32) -> Duration {
    match failures {
        // A single failure may be accidental.
        0 | 1 => Duration::ZERO,
        _ => Duration::from_millis(10 << failures.min(7)).min(Duration::from_secs(1)),
    }
}

/// How the ownership of a session has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The trace is complete; contains the exit code.
    Done(u8),
    /// The session could not begin. Only an empty directory is left.
    Failed(String),
    /// None of the programs to be attached can join. Only an empty directory is left.
    Refused(ProgramError),
    /// Its owners have died without making progress. Everything that programs have committed can be salvaged.
    GivenUp(String),
}

/// Messages of the supervisor's thread.
#[derive(Debug)]
enum Event {
    Ready,
    Armed(Joined),
    Over(Outcome),
}

/// Handle by which a session's supervisor is controlled, even before the session begins.
#[derive(Debug, Clone, Default)]
pub struct Remote(Arc<Mutex<RemoteState>>);

#[derive(Debug, Default)]
struct RemoteState {
    owner: Option<CurrentOwner>,
    /// The request that the owner has been sent, or that the next one will be sent.
    asked: Option<SupervisorMessage>,
    /// No further owner may be started.
    is_over: bool,
}

/// An owner that runs.
#[derive(Debug)]
struct CurrentOwner {
    control: UnixStream,
    /// See [`open`].
    process: OwnedFd,
    pid: u32,
}

impl Remote {
    fn lock(&self) -> MutexGuard<'_, RemoteState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the session's end, with the exit code of the recorded command.
    pub fn finish(&self, code: u8) {
        notify::stopping();
        self.ask(SupervisorMessage::Finish(code));
    }

    /// Asks for the session's end with this exit code once no process is in the session.
    pub fn finish_with_the_last(&self, code: u8) {
        self.ask(SupervisorMessage::FinishWhenEmpty(code));
    }

    fn ask(&self, asked: SupervisorMessage) {
        let mut state = self.lock();
        state.asked = Some(asked);
        state.tell();
    }

    /// Kills the owner at once and prevents another one from being started.
    pub fn kill(&self) {
        let mut state = self.lock();
        state.is_over = true;
        if let Some(CurrentOwner { process, pid, .. }) = &state.owner {
            let _ = send_signal(process, *pid, Signal::KILL);
        }
    }
}

impl RemoteState {
    fn tell(&mut self) {
        if let (Some(CurrentOwner { control, .. }), Some(asked)) = (&mut self.owner, self.asked) {
            // If the owner is dead, the next one is told.
            let _ = control.write_all(to_line(&asked).as_bytes());
        }
    }
}

/// A session whose owner is another process.
#[derive(Debug)]
pub struct Supervisor {
    session: Arc<NewSession>,
    remote: Remote,
    events: Receiver<Event>,
    thread: JoinHandle<()>,
}

impl Supervisor {
    /// Starts an owner and waits until it serves programs. The owner is this program itself. It learns `recording`, and
    /// inherits the file `summary`.
    ///
    /// # Errors
    /// The reason; only an empty directory is left.
    pub fn start(
        mut session: NewSession,
        recording: Recording,
        summary: Option<File>,
        remote: &Remote,
    ) -> Result<Supervisor, ProgramError> {
        // The owner must remove them.
        session.parts.files.leave();
        let session = Arc::new(session);
        let (sender, events) = channel();
        let runner =
            SupervisorThread { session: Arc::clone(&session), recording, summary, remote: remote.clone(), sender };
        let thread = std::thread::Builder::new().name("dormouse-owner".into()).spawn(move || runner.run());
        let supervisor = Supervisor { session, remote: remote.clone(), events, thread: thread.map_err(no_thread)? };
        match supervisor.events.recv() {
            Ok(Event::Over(outcome)) => Err(supervisor.failed(outcome)),
            _ => Ok(supervisor),
        }
    }

    /// Returns why a session that is over has failed.
    fn failed(self, outcome: Outcome) -> ProgramError {
        self.abandon();
        match outcome {
            Outcome::Refused(error) => error,
            Outcome::Failed(text) | Outcome::GivenUp(text) => text.into(),
            Outcome::Done(_) => "the session has ended before it began".to_string().into(),
        }
    }

    /// Returns how programs join.
    pub fn entrance(&self) -> Entrance<'_> {
        self.session.entrance()
    }

    /// Notes the recorded command. If this process dies, the session lasts as long as the command.
    pub fn note_command(&self, pid: u32) {
        let ledger = &self.session.parts.ledger;
        ledger.set_command_start(start_of(pid).parse().unwrap_or(0));
        ledger.set_command(pid.into());
    }

    /// Waits until the programs to be attached have joined.
    ///
    /// # Errors
    /// The reason why none of them can join; only an empty directory is left.
    pub fn attached(self) -> Result<(Supervisor, Joined), ProgramError> {
        loop {
            match self.events.recv() {
                Ok(Event::Armed(joined)) => return Ok((self, joined)),
                Ok(Event::Ready) => {}
                Ok(Event::Over(outcome)) => return Err(self.failed(outcome)),
                Err(_) => return Err(self.failed(Outcome::Failed("the owner's supervisor has failed".into()))),
            }
        }
    }

    /// Waits for the session's end.
    pub fn wait(self) -> Outcome {
        let over = self.events.iter().find_map(|event| match event {
            Event::Over(outcome) => Some(outcome),
            Event::Ready | Event::Armed(_) => None,
        });
        let _ = self.thread.join();
        over.unwrap_or_else(|| Outcome::GivenUp("its supervisor has failed".into()))
    }

    /// Ends a session that no program has joined and removes it; only an empty directory is left.
    pub fn abandon(self) {
        self.remote.kill();
        let _ = self.thread.join();
        self.session.abandon();
    }
}

/// The supervisor's thread.
struct SupervisorThread {
    session: Arc<NewSession>,
    recording: Recording,
    summary: Option<File>,
    remote: Remote,
    sender: Sender<Event>,
}

impl SupervisorThread {
    fn run(self) {
        let (mut failures, mut was_ready, mut restarts) = (0, false, 0_u64);
        let mut reason = String::new();
        loop {
            let (before, began) = (self.ledger().progress(), Instant::now());
            match self.start() {
                Ok((child, control)) => {
                    if let Some(outcome) = self.listen(child, control, &mut was_ready, &mut reason) {
                        return self.tell(Event::Over(outcome));
                    }
                }
                Err(error) => reason = error.to_string(),
            }
            if self.remote.lock().is_over {
                return self.tell(Event::Over(Outcome::GivenUp("it was ended at once".into())));
            }
            let has_progressed = self.ledger().progress() != before || began.elapsed() >= CALM;
            failures = if has_progressed { 0 } else { failures + 1 };
            if failures >= FAILURE_COUNT_MAX {
                let text = format!("its owner has ended {failures} times without getting anything done: {reason}");
                return self.tell(Event::Over(Outcome::GivenUp(text)));
            }
            restarts += 1;
            notify::status(&format!("the owner was started again {restarts} times"));
            // The cause of the death may be gone in a moment: a shortage of memory, or a full file system.
            std::thread::sleep(pause(failures));
        }
    }

    fn ledger(&self) -> &Ledger {
        &self.session.parts.ledger
    }

    fn tell(&self, event: Event) {
        let _ = self.sender.send(event);
    }

    /// Starts an owner: this program's own file, even if another file is at its path by now.
    fn start(&self) -> Result<(Child, UnixStream), Error> {
        let failed = |error: std::io::Error| Error::from(format!("cannot start the session's owner: {error}"));
        let (control, of_owner) = UnixStream::pair().map_err(failed)?;
        let inheritance = Inheritance::of(&self.session.parts, &of_owner, self.summary.as_ref(), &self.recording);
        let file = inheritance.to_file().map_err(failed)?;
        let mut command = Command::new("/proc/self/exe");
        // The directory is there for people who list processes.
        command.arg0("dormouse").arg(COMMAND).arg(file.as_raw_fd().to_string()).arg(inheritance.dir());
        // A terminal's signals are meant for the command, and the supervisor responds to them.
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let descriptors = inheritance.descriptors().into_iter().chain([file.as_raw_fd()]);
        // SAFETY: between fork and exec, `prepare` only calls fcntl(2) and signal(2), which are async-signal-safe, with
        // numbers as arguments.
        unsafe { command.pre_exec(move || prepare(descriptors.clone())) };
        let child = command.spawn().map_err(failed)?;
        Ok((child, control))
    }

    /// Handles an owner's messages until it has ended. `None` if it has ended before the session.
    fn listen(
        &self,
        mut child: Child,
        control: UnixStream,
        was_ready: &mut bool,
        reason: &mut String,
    ) -> Option<Outcome> {
        let lines = control.try_clone().ok().map(|control| BufReader::new(control).lines());
        // The child has not been waited for, so the id is still its own.
        let pid = child.id();
        let process = open(pid).ok();
        let mut state = self.remote.lock();
        state.owner = process.map(|process| CurrentOwner { control, process, pid });
        if state.is_over || state.owner.is_none() {
            let _ = child.kill();
        }
        state.tell();
        drop(state);
        let mut over = None;
        for message in lines.into_iter().flatten().map_while(Result::ok).filter_map(|line| from_line(&line)) {
            match message {
                OwnerMessage::Ready => {
                    if !std::mem::replace(was_ready, true) {
                        notify::ready(self.session.dir());
                        self.tell(Event::Ready);
                    }
                }
                OwnerMessage::Armed(joined) => self.tell(Event::Armed(joined)),
                OwnerMessage::Refused(error) => over = Some(Outcome::Refused(error)),
                OwnerMessage::Failed(text) if !*was_ready => over = Some(Outcome::Failed(text)),
                // The next owner may succeed.
                OwnerMessage::Failed(text) => *reason = text,
                OwnerMessage::Done(code) => over = Some(Outcome::Done(code)),
            }
        }
        let status = child.wait();
        self.remote.lock().owner = None;
        if over.is_none() && reason.is_empty() {
            *reason = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        }
        over
    }
}

/// The hidden sub-command that runs an owner.
const COMMAND: &str = "session-owner";

/// Signals that a terminal, or a process that ends a process group, sends to all processes of a group. The owner
/// ignores them: the supervisor decides.
const IGNORED: [libc::c_int; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

/// Prepares the process that will be the owner, between `fork` and `exec`.
fn prepare(descriptors: impl IntoIterator<Item = RawFd>) -> std::io::Result<()> {
    for fd in descriptors.into_iter().filter(|fd| *fd >= 0) {
        // SAFETY: fcntl(2) clears a descriptor's flags and accesses no memory; it is async-signal-safe.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } == -1 {
            return Err(std::io::Error::last_os_error());
        }
    }
    for signal in IGNORED {
        // SAFETY: signal(2) sets a signal to be ignored, without a handler; it is async-signal-safe.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_restart_is_immediate_and_none_waits_over_a_second() {
        assert_eq!([pause(0), pause(1)], [Duration::ZERO; 2]);
        let pauses: Vec<Duration> = (2..FAILURE_COUNT_MAX).map(pause).collect();
        assert!(pauses.is_sorted() && pauses.iter().all(|pause| *pause <= Duration::from_secs(1)));
    }
}

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
//! The supervisor reads nothing that a program can write: no memory of the session, no message, no trace. It is told when the session is over, by a line.
//!
//! An owner that dies is replaced at once. One that dies again and again, and gets nothing done in between, is waited with longer each time,
//! and at last given up: everything that programs have committed stays where `dormouse salvage` finds it.
//!
//! An owner whose supervisor dies goes on ([`crate::supervised`]).

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dormouse_control::{no_thread, open, start_of};
use rustix::process::{Signal, pidfd_send_signal};

use crate::begin::{Entrance, NewSession};
use crate::error::Error;
use crate::inheritance::{Asked, Inheritance, Said};
use crate::ledger::Ledger;
use crate::notify;

/// Owners in a row that may die without having got anything done.
const FAILURE_COUNT_MAX: u32 = 10;

/// An owner that has lived so long, and had nothing to do, is no failure.
const CALM: Duration = Duration::from_secs(10);

/// How long the next owner is waited with after so many failures in a row: whatever ends them should not have to do so all the time.
fn pause(failures: u32) -> Duration {
    match failures {
        // Once may be by chance.
        0 | 1 => Duration::ZERO,
        _ => Duration::from_millis(10 << failures.min(7)).min(Duration::from_secs(1)),
    }
}

/// How a session's ownership has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The trace is complete; the exit code is this one.
    Done(u8),
    /// The session could not begin. Nothing is left behind but an empty directory.
    Failed(String),
    /// Its owners have died without getting anything done. What programs have committed can be salvaged.
    GivenUp(String),
}

/// What the supervisor's thread tells.
#[derive(Debug)]
enum Event {
    Ready,
    Armed(u32),
    Over(Outcome),
}

/// By which the supervision of a session is told things, also before it has begun.
#[derive(Debug, Clone, Default)]
pub struct Remote(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The connection to the owner that there is, and what it is ended by.
    owner: Option<(UnixStream, OwnedFd)>,
    /// What the owner is, or is to be, told.
    asked: Option<Asked>,
    /// No owner is to be started any more.
    is_over: bool,
}

impl Remote {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the session's end, with the exit code of what was recorded.
    pub fn finish(&self, code: u8) {
        notify::stopping();
        self.ask(Asked::Finish(code));
    }

    /// The same, once no process is in the session.
    pub fn finish_with_the_last(&self, code: u8) {
        self.ask(Asked::Await(code));
    }

    fn ask(&self, asked: Asked) {
        let mut state = self.lock();
        state.asked = Some(asked);
        state.tell();
    }

    /// Ends the owner at once, and starts none any more.
    pub fn kill(&self) {
        let mut state = self.lock();
        state.is_over = true;
        if let Some((_, pidfd)) = &state.owner {
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }
}

impl State {
    fn tell(&mut self) {
        if let (Some((control, _)), Some(asked)) = (&mut self.owner, self.asked) {
            // One that is dead is replaced, and the next is told.
            let _ = control.write_all(asked.to_line().as_bytes());
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
    /// Starts an owner, and waits until it serves programs: this program itself, with `arguments` behind what the owner inherits. `summary` is inherited
    /// too.
    ///
    /// # Errors
    /// One line; nothing is left behind but an empty directory.
    pub fn start(
        mut session: NewSession,
        arguments: Vec<OsString>,
        summary: Option<File>,
        remote: &Remote,
    ) -> Result<Supervisor, Error> {
        // They are the owner's to remove.
        session.estate.files.leave();
        let session = Arc::new(session);
        let (sender, events) = channel();
        let watch = Watch { session: Arc::clone(&session), arguments, summary, remote: remote.clone(), sender };
        let thread = std::thread::Builder::new().name("dormouse-owner".into()).spawn(move || watch.run());
        let supervisor = Supervisor { session, remote: remote.clone(), events, thread: thread.map_err(no_thread)? };
        match supervisor.events.recv() {
            Ok(Event::Over(outcome)) => Err(supervisor.failed(outcome)),
            _ => Ok(supervisor),
        }
    }

    /// Why a session that is over has failed.
    fn failed(self, outcome: Outcome) -> Error {
        let text = match outcome {
            Outcome::Failed(text) | Outcome::GivenUp(text) => text,
            Outcome::Done(_) => "the session has ended before it began".into(),
        };
        self.abandon();
        text.into()
    }

    /// How programs join.
    pub fn entrance(&self) -> Entrance<'_> {
        self.session.entrance()
    }

    /// The command that is recorded. If this process dies, the session goes on as long as that.
    pub fn note_command(&self, pid: u32) {
        let ledger = &self.session.estate.ledger;
        ledger.set_command_start(start_of(pid).parse().unwrap_or(0));
        ledger.set_command(pid.into());
    }

    /// Waits until the program that is to be attached has joined. Gives how many of its events are armed.
    ///
    /// # Errors
    /// It cannot; nothing is left behind but an empty directory.
    pub fn attached(self) -> Result<(Supervisor, u32), Error> {
        loop {
            match self.events.recv() {
                Ok(Event::Armed(count)) => return Ok((self, count)),
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

    /// Ends a session that nobody has joined, and takes it away: nothing is left behind but an empty directory.
    pub fn abandon(self) {
        self.remote.kill();
        let _ = self.thread.join();
        self.session.abandon();
    }
}

/// The supervisor's thread.
struct Watch {
    session: Arc<NewSession>,
    arguments: Vec<OsString>,
    summary: Option<File>,
    remote: Remote,
    sender: Sender<Event>,
}

impl Watch {
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
            // What has killed it at once may be over in a moment: memory that was short, a file system that was full.
            std::thread::sleep(pause(failures));
        }
    }

    fn ledger(&self) -> &Ledger {
        &self.session.estate.ledger
    }

    fn tell(&self, event: Event) {
        let _ = self.sender.send(event);
    }

    /// Starts an owner: this program's file, whatever is at its path by now.
    fn start(&self) -> Result<(Child, UnixStream), Error> {
        let failed = |error: std::io::Error| Error::from(format!("cannot start the session's owner: {error}"));
        let (control, of_owner) = UnixStream::pair().map_err(failed)?;
        let inheritance = Inheritance::of(&self.session.estate, &of_owner, self.summary.as_ref());
        let mut command = Command::new("/proc/self/exe");
        command.arg0("dormouse").arg(COMMAND).args(inheritance.to_arguments()).args(&self.arguments);
        // A terminal's signals are the command's, and the supervisor's to answer.
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let descriptors = inheritance.descriptors();
        // SAFETY: between fork and exec only async-signal-safe functions run: fcntl(2) and signal(2), on numbers.
        unsafe { command.pre_exec(move || prepare(descriptors)) };
        let child = command.spawn().map_err(failed)?;
        Ok((child, control))
    }

    /// Hears what an owner says until it has ended. `None`: it has ended before the session.
    fn listen(
        &self,
        mut child: Child,
        control: UnixStream,
        was_ready: &mut bool,
        reason: &mut String,
    ) -> Option<Outcome> {
        let lines = control.try_clone().ok().map(|control| BufReader::new(control).lines());
        // It has not been waited for, so the id is its own.
        let pidfd = open(child.id()).ok();
        let mut state = self.remote.lock();
        state.owner = Some(control).zip(pidfd);
        if state.is_over || state.owner.is_none() {
            let _ = child.kill();
        }
        state.tell();
        drop(state);
        let mut over = None;
        for said in lines.into_iter().flatten().map_while(Result::ok).filter_map(|line| Said::from_line(&line)) {
            match said {
                Said::Ready => {
                    if !std::mem::replace(was_ready, true) {
                        notify::ready(self.session.dir());
                        self.tell(Event::Ready);
                    }
                }
                Said::Armed(count) => self.tell(Event::Armed(count)),
                Said::Refused(text) => over = Some(Outcome::Failed(text)),
                Said::Failed(text) if !*was_ready => over = Some(Outcome::Failed(text)),
                // The next owner may have better luck.
                Said::Failed(text) => *reason = text,
                Said::Done(code) => over = Some(Outcome::Done(code)),
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

/// The hidden sub-command that is an owner.
pub const COMMAND: &str = "session-owner";

/// Signals that a terminal, or whoever ends a group of processes, sends to all of them: the supervisor decides.
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

/// In the process that is to be the owner.
fn prepare(descriptors: impl IntoIterator<Item = RawFd>) -> std::io::Result<()> {
    for fd in descriptors.into_iter().filter(|fd| *fd >= 0) {
        // SAFETY: clears a flag of a descriptor; async-signal-safe.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } == -1 {
            return Err(std::io::Error::last_os_error());
        }
    }
    for signal in IGNORED {
        // SAFETY: no handler; async-signal-safe.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_end_costs_no_time_and_none_costs_more_than_a_second() {
        assert_eq!([pause(0), pause(1)], [Duration::ZERO; 2]);
        let pauses: Vec<Duration> = (2..FAILURE_COUNT_MAX).map(pause).collect();
        assert!(pauses.is_sorted() && pauses.iter().all(|pause| *pause <= Duration::from_secs(1)));
    }
}

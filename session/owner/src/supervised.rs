//! The side of an owner process that deals with its supervisor.
//!
//! The owner ends the session when its supervisor tells it to. If the supervisor dies, the owner continues, because the
//! programs do. It then ends the session when the recorded command and all processes in the session have ended, or when
//! a signal asks for the end.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use dormouse_control::{is_dead, open, start_of};
use dormouse_tools::{Program, ProgramError};

use crate::command::on_ending_signals;
use crate::error::{Error, no_thread};
use crate::inheritance::{Inheritance, Joined, OwnerMessage, SupervisorMessage, from_line, to_line};
use crate::owner::Session;

/// Interval at which it checks for an end that no message announces: a tool has asked for it, or the session's programs
/// have ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What ends the wait of an owner.
#[derive(Debug)]
enum WakeUp {
    Message(SupervisorMessage),
    /// The supervisor's connection is closed, or a signal asks for the end.
    End,
}

/// Why a session must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its end was requested. Contains the exit code of the recorded command, or 0.
    Asked(u8),
    /// All its processes have ended.
    Deserted,
}

/// A session's owner, and its connection to the supervisor.
#[derive(Debug)]
pub(crate) struct SupervisedOwner {
    session: Session,
    control: UnixStream,
    wake_ups: Receiver<WakeUp>,
    sender: Sender<WakeUp>,
    /// File that the summary is written to for other programs.
    summary: Option<File>,
}

impl SupervisedOwner {
    /// Takes up the session that this process has inherited.
    ///
    /// # Errors
    /// One line with the reason, which has been sent to the supervisor.
    pub(crate) fn take_up(inheritance: Inheritance) -> Result<SupervisedOwner, Error> {
        let (parts, mut control, summary) = inheritance.take()?;
        let session = Session::take_up(parts)
            .inspect_err(|error| tell(&mut control, &OwnerMessage::Failed(error.to_string())))?;
        let (sender, wake_ups) = channel();
        let (lines, to) = (control.try_clone().map_err(|error| error.to_string())?, sender.clone());
        let hear = move || {
            let messages = BufReader::new(lines).lines().map_while(Result::ok).filter_map(|line| from_line(&line));
            messages.map(WakeUp::Message).chain([WakeUp::End]).for_each(|wake_up| drop(to.send(wake_up)));
        };
        std::thread::Builder::new().name("dormouse-hear".into()).spawn(hear).map_err(no_thread)?;
        tell(&mut control, &OwnerMessage::Ready);
        Ok(SupervisedOwner { session, control, wake_ups, sender, summary })
    }

    /// Makes programs join, unless an earlier owner has done so. [`SupervisedOwner::tell_armed`] sends the result to the
    /// supervisor.
    ///
    /// # Errors
    /// The reason why the first of them cannot join, if none can. It has been sent to the supervisor; only an empty
    /// directory is left.
    pub(crate) fn attach(self, pids: &[u32]) -> Result<(SupervisedOwner, Joined), ProgramError> {
        let ledger = self.session.ledger();
        if let Some(count) = ledger.attached().checked_sub(1) {
            return Ok((self, Joined { armed_count: count as u32, refused: Vec::new() }));
        }
        let mut joined = Joined::default();
        for pid in pids {
            match Program::find(*pid).and_then(|program| self.session.attach(&program)) {
                Ok(count) => joined.armed_count += count,
                Err(error) => joined.refused.push(error),
            }
        }
        if joined.refused.len() == pids.len() && !pids.is_empty() {
            let SupervisedOwner { session, mut control, .. } = self;
            session.abandon();
            let error = joined.refused.swap_remove(0);
            tell(&mut control, &OwnerMessage::Refused(error.clone()));
            return Err(error);
        }
        ledger.set_attached(u64::from(joined.armed_count) + 1);
        Ok((self, joined))
    }

    /// Tells the supervisor which programs have joined.
    pub(crate) fn tell_armed(&mut self, joined: Joined) {
        tell(&mut self.control, &OwnerMessage::Armed(joined));
    }

    /// Waits until the session must end. If `is_attached`, it ends with its processes.
    pub(crate) fn wait(&self, is_attached: bool) -> Ending {
        let mut orphan: Option<Orphan> = None;
        let mut awaited = None;
        loop {
            match self.wake_ups.recv_timeout(LOOK_INTERVAL) {
                Ok(WakeUp::Message(SupervisorMessage::Finish(code))) => return Ending::Asked(code),
                Ok(WakeUp::Message(SupervisorMessage::FinishWhenEmpty(code))) => awaited = Some(code),
                Ok(WakeUp::End) if orphan.is_some() => return Ending::Asked(0),
                Ok(WakeUp::End) | Err(RecvTimeoutError::Disconnected) => {
                    orphan.get_or_insert_with(|| Orphan::new(&self.session, self.sender.clone()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.session.is_ending() || self.session.is_stop_requested() {
                return Ending::Asked(0);
            }
            if let Some(code) = awaited.filter(|_| self.session.is_empty()) {
                return Ending::Asked(code);
            }
            if is_attached && self.session.is_deserted()
                || orphan.as_ref().is_some_and(|orphan| orphan.is_over(&self.session))
            {
                return Ending::Deserted;
            }
        }
    }

    /// Returns the session, the file for the summary, and a function that tells the supervisor that everything is done.
    pub(crate) fn into_parts(self) -> (Session, Option<File>, impl FnOnce(u8)) {
        let SupervisedOwner { session, mut control, summary, .. } = self;
        (session, summary, move |code| tell(&mut control, &OwnerMessage::Done(code)))
    }
}

/// An owner without a supervisor.
struct Orphan {
    /// The recorded command, if it is alive.
    command: Option<OwnedFd>,
}

impl Orphan {
    fn new(session: &Session, sender: Sender<WakeUp>) -> Orphan {
        let ledger = session.ledger();
        let pid = u32::try_from(ledger.command()).ok().filter(|pid| *pid != 0);
        // Its id may belong to another process by now.
        let is_same = |pid: &u32| start_of(*pid) == ledger.command_start().to_string();
        let command = pid.and_then(|pid| open(pid).ok().filter(|_| is_same(&pid)));
        // Handles signals, which was the supervisor's task. If no thread can be created for it, the signals stay
        // ignored.
        let _ = on_ending_signals(move || drop(sender.send(WakeUp::End)), |signal| std::process::exit(128 + signal));
        Orphan { command }
    }

    fn is_over(&self, session: &Session) -> bool {
        self.command.as_ref().is_none_or(is_dead) && session.is_empty()
    }
}

fn tell(control: &mut UnixStream, message: &OwnerMessage) {
    // An error means that the supervisor is gone; the session goes on.
    let _ = control.write_all(to_line(message).as_bytes());
}

//! What an owner process is started with, and the messages between it and its supervisor.
//!
//! Both are the same program, so everything is JSON:
//! ```text
//!   a file without a name     Inheritance: descriptors, paths, and what the owner must know of the command line
//!   owner ──▶ supervisor      OwnerMessage, one in each line
//!   supervisor ──▶ owner      SupervisorMessage, one in each line
//! ```
//! The file is inherited: other processes cannot read it, unlike arguments, and it can have any length. The end of the
//! connection means that the other process has ended.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use dormouse_control::SessionListener;
use dormouse_tools::ProgramError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::begin::SessionParts;
use crate::dir::Dir;
use crate::error::Error;
use crate::ledger::Ledger;
use crate::session_file::OwnerFiles;

/// Messages of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OwnerMessage {
    /// Programs are served.
    Ready,
    /// Programs to be attached have joined.
    Armed(Joined),
    /// None of them can join, for this reason, and the session has been removed.
    Refused(ProgramError),
    /// The session cannot be taken up, for this reason.
    Failed(String),
    /// The trace is complete, and everything has been reported. Contains the exit code.
    Done(u8),
}

/// Result of attaching programs to a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// Number of armed events of the programs that have joined.
    pub armed_count: u32,
    /// Why others have not joined.
    pub refused: Vec<ProgramError>,
}

/// Messages of a supervisor, with the exit code of the recorded command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SupervisorMessage {
    /// The session must end.
    Finish(u8),
    /// The session must end once no process is in it.
    FinishWhenEmpty(u8),
}

/// Encodes a message as a line.
pub(crate) fn to_line(message: &impl Serialize) -> String {
    // These types have no map with keys that JSON does not have, so that encoding does not fail.
    serde_json::to_string(message).unwrap_or_default() + "\n"
}

/// Decodes a message. `None` if the line is not one.
pub(crate) fn from_line<T: DeserializeOwned>(line: &str) -> Option<T> {
    serde_json::from_str(line).ok()
}

/// What an owner process must know of the command line of `dormouse record`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// Ids of the running programs that are recorded. None: a command is run.
    pub attached: Vec<u32>,
    /// Whether the owner detaches from the terminal and reports nothing.
    pub is_background: bool,
    /// Whether the exit code says that events were lost.
    pub fails_on_loss: bool,
    /// Whether the functions of libc are traced.
    pub has_libc: bool,
    /// Patterns of event classes in the rules that the user has given.
    pub patterns: Vec<String>,
    /// Patterns of event classes in the triggers that the user has given.
    pub trigger_patterns: Vec<String>,
    /// The command and its arguments; empty for a running program.
    pub command: Vec<OsString>,
}

/// Number of descriptors that an owner inherits: the session's, then the connection to the supervisor, then the file of
/// the summary.
const FD_COUNT: usize = 6;

/// What an owner process is started with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inheritance {
    fds: [RawFd; FD_COUNT],
    // As `OsString`: a path need not be UTF-8, and serde refuses such a `PathBuf`.
    dir: OsString,
    socket: OsString,
    buffers: Option<OsString>,
    recording: Recording,
}

/// Stands for a missing descriptor.
const NO_FD: RawFd = -1;

impl Inheritance {
    pub(crate) fn of(
        parts: &SessionParts,
        control: &UnixStream,
        summary: Option<&File>,
        recording: &Recording,
    ) -> Inheritance {
        let SessionParts { dir, memory, ledger, listener, buffers, .. } = parts;
        let fds = [
            dir.fd().as_raw_fd(),
            memory.as_raw_fd(),
            ledger.file().as_raw_fd(),
            listener.socket().as_raw_fd(),
            control.as_raw_fd(),
            summary.map_or(NO_FD, AsRawFd::as_raw_fd),
        ];
        Inheritance {
            fds,
            dir: dir.path.clone().into(),
            socket: listener.path().into(),
            buffers: buffers.clone().map(OsString::from),
            recording: recording.clone(),
        }
    }

    /// Returns the trace's directory.
    pub fn dir(&self) -> &Path {
        Path::new(&self.dir)
    }

    /// Returns what the owner must know of the command line.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Returns the descriptors that must stay open in the owner.
    pub(crate) fn descriptors(&self) -> [RawFd; FD_COUNT] {
        self.fds
    }

    /// Writes it to a new file without a name.
    pub(crate) fn to_file(&self) -> std::io::Result<File> {
        let file = rustix::fs::memfd_create("dormouse-inheritance", rustix::fs::MemfdFlags::CLOEXEC)?;
        let mut file = File::from(file);
        file.write_all(&serde_json::to_vec(self)?)?;
        Ok(file)
    }

    /// Reads it from the file that the first argument names by its descriptor. Must be called only once.
    ///
    /// # Errors
    /// One line: only a supervisor starts an owner.
    pub fn from_arguments(arguments: &[OsString]) -> Result<Inheritance, Error> {
        let fd = arguments.first().and_then(|fd| fd.to_str()?.parse().ok());
        let inheritance = fd.and_then(own).and_then(|file| Inheritance::from_file(file.into()));
        inheritance.ok_or_else(|| "`dormouse record` starts this by itself".to_string().into())
    }

    fn from_file(mut file: File) -> Option<Inheritance> {
        let mut bytes = Vec::new();
        // The supervisor's descriptor has the same position, which is at the end.
        file.rewind().ok()?;
        file.read_to_end(&mut bytes).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Takes the inherited things. Must be called only once.
    pub(crate) fn take(self) -> Result<(SessionParts, UnixStream, Option<File>), Error> {
        let Inheritance { fds, dir, socket, buffers, .. } = self;
        let [dir_fd, memory, ledger, listener, control, summary] = fds.map(own);
        let wrong = || Error::from("a descriptor of the session was not inherited".to_string());
        let (dir, buffers) = (Dir::inherited(dir_fd.ok_or_else(wrong)?, Path::new(&dir)), buffers.map(Into::into));
        let files = OwnerFiles::inherited(&dir, buffers.clone());
        let ledger = Ledger::inherited(ledger.ok_or_else(wrong)?)?;
        let listener = SessionListener::inherited(Path::new(&socket), listener.ok_or_else(wrong)?)?;
        let parts = SessionParts { dir, memory: memory.ok_or_else(wrong)?, ledger, listener, buffers, files };
        Ok((parts, control.ok_or_else(wrong)?.into(), summary.map(Into::into)))
    }
}

/// Returns the inherited descriptor with this number.
fn own(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: fcntl(2) only sets a flag, and fails if nothing is open at the number.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
        return None;
    }
    // SAFETY: the descriptor is open, by the line before; no other code of this process, which has just begun, owns it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn messages_are_read_back() {
        for message in [
            OwnerMessage::Ready,
            OwnerMessage::Armed(Joined { armed_count: 7, refused: vec!["no".to_string().into()] }),
            OwnerMessage::Failed("no room\nat all".into()),
            OwnerMessage::Refused("x".to_string().into()),
            OwnerMessage::Done(255),
        ] {
            let line = to_line(&message);
            assert_eq!(line.find('\n'), Some(line.len() - 1));
            assert_eq!(from_line(&line), Some(message));
        }
        for message in [SupervisorMessage::Finish(130), SupervisorMessage::FinishWhenEmpty(0)] {
            assert_eq!(from_line(&to_line(&message)), Some(message));
        }
        assert_eq!([r#"{"Done":256}"#, r#""Armed""#, "", "x"].map(from_line::<OwnerMessage>), [const { None }; 4]);
    }

    #[test]
    fn an_inheritance_comes_back_from_its_file() {
        let not_utf8 = || OsString::from_vec(vec![b'/', 0xff]);
        let recording = Recording { command: vec!["a b".into(), not_utf8()], ..Recording::default() };
        let (dir, socket, buffers) = ("a\nb".into(), not_utf8(), Some("/dev/shm/x".into()));
        let some = Inheritance { fds: [3, 4, 5, 6, 7, NO_FD], dir, socket, buffers, recording };
        for inheritance in [Inheritance { buffers: None, ..some.clone() }, some] {
            assert_eq!(Inheritance::from_file(inheritance.to_file().unwrap()), Some(inheritance));
        }
        let wrong = [vec![], vec!["x".into()], vec!["-1".into()], vec!["99999".into()]];
        assert!(wrong.iter().all(|arguments| Inheritance::from_arguments(arguments).is_err()));
    }
}

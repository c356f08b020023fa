//! The arguments that an owner process is started with, and the messages between it and its supervisor.
//!
//! Both are the same program, so lines of text suffice:
//! ```text
//!   owner ──▶ supervisor      ready                programs are served
//!                             armed N              the program to be attached has joined
//!                             refused TEXT         it cannot join, and the session has been removed
//!                             failed TEXT          the session cannot be taken up
//!                             done CODE            the trace is complete, and everything has been reported
//!   supervisor ──▶ owner      finish CODE          the command has ended with this code, or the end was requested
//!                             await CODE           the command has ended with this code; its descendants should end too
//! ```
//! The end of the connection means that the other process has ended.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use dormouse_control::SessionListener;

use crate::begin::Estate;
use crate::dir::Dir;
use crate::error::Error;
use crate::ledger::Ledger;
use crate::session_file::OwnerFiles;

/// Messages of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Ready,
    Armed(u32),
    Refused(String),
    Failed(String),
    Done(u8),
}

impl Said {
    pub(crate) fn to_line(&self) -> String {
        match self {
            Said::Ready => "ready\n".into(),
            Said::Armed(count) => format!("armed {count}\n"),
            // The text must be one line.
            Said::Refused(text) => format!("refused {}\n", text.replace('\n', " ")),
            Said::Failed(text) => format!("failed {}\n", text.replace('\n', " ")),
            Said::Done(code) => format!("done {code}\n"),
        }
    }

    pub(crate) fn from_line(line: &str) -> Option<Said> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some(match word {
            "ready" => Said::Ready,
            "armed" => Said::Armed(rest.parse().ok()?),
            "refused" => Said::Refused(rest.into()),
            "failed" => Said::Failed(rest.into()),
            "done" => Said::Done(rest.parse().ok()?),
            _ => return None,
        })
    }
}

/// Messages of a supervisor, with the exit code of the recorded command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The session must end.
    Finish(u8),
    /// The session must end once no process is in it.
    Await(u8),
}

impl Asked {
    pub(crate) fn to_line(self) -> String {
        match self {
            Asked::Finish(code) => format!("finish {code}\n"),
            Asked::Await(code) => format!("await {code}\n"),
        }
    }

    pub(crate) fn from_line(line: &str) -> Option<Asked> {
        let (word, code) = line.split_once(' ')?;
        let code = code.parse().ok()?;
        match word {
            "finish" => Some(Asked::Finish(code)),
            "await" => Some(Asked::Await(code)),
            _ => None,
        }
    }
}

/// Number of descriptors that an owner inherits, in the order of its arguments: the session's, then the connection to
/// the supervisor, then the file of the summary.
const FD_COUNT: usize = 6;

/// Arguments that an owner is started with, before those of the command that started it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inheritance {
    fds: [RawFd; FD_COUNT],
    dir: PathBuf,
    socket: PathBuf,
    buffers: Option<PathBuf>,
}

/// Stands for a missing descriptor.
const NO_FD: RawFd = -1;

impl Inheritance {
    /// Number of arguments.
    pub const ARGUMENT_COUNT: usize = FD_COUNT + 3;

    pub(crate) fn of(estate: &Estate, control: &UnixStream, summary: Option<&std::fs::File>) -> Inheritance {
        let Estate { dir, memory, ledger, listener, buffers, .. } = estate;
        let fds = [
            dir.fd().as_raw_fd(),
            memory.as_raw_fd(),
            ledger.file().as_raw_fd(),
            listener.socket().as_raw_fd(),
            control.as_raw_fd(),
            summary.map_or(NO_FD, AsRawFd::as_raw_fd),
        ];
        Inheritance { fds, dir: dir.path.clone(), socket: listener.path(), buffers: buffers.clone() }
    }

    /// Returns the trace's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the descriptors that must stay open in the owner.
    pub(crate) fn descriptors(&self) -> [RawFd; FD_COUNT] {
        self.fds
    }

    /// Encodes it as arguments.
    pub(crate) fn to_arguments(&self) -> Vec<OsString> {
        let buffers = self.buffers.as_ref().map_or(OsStr::new(""), |path| path.as_os_str());
        let paths = [self.dir.as_os_str(), self.socket.as_os_str(), buffers].map(OsString::from);
        self.fds.iter().map(|fd| fd.to_string().into()).chain(paths).collect()
    }

    /// Decodes the arguments.
    ///
    /// # Errors
    /// One line: only a supervisor starts an owner.
    pub fn from_arguments(arguments: &[OsString]) -> Result<Inheritance, Error> {
        let wrong = || Error::from("`dormouse record` starts this by itself".to_string());
        let (fds, paths) = arguments.split_first_chunk::<FD_COUNT>().ok_or_else(wrong)?;
        let fds = fds.each_ref().map(|fd| fd.to_str().and_then(|fd| fd.parse().ok()));
        let [dir, socket, buffers] = paths else { return Err(wrong()) };
        if fds.iter().any(Option::is_none) {
            return Err(wrong());
        }
        let buffers = Some(buffers).filter(|path| !path.as_bytes().is_empty()).map(PathBuf::from);
        Ok(Inheritance { fds: fds.map(|fd| fd.unwrap_or(NO_FD)), dir: dir.into(), socket: socket.into(), buffers })
    }

    /// Takes the inherited things. Must be called only once.
    pub(crate) fn take(self) -> Result<(Estate, UnixStream, Option<std::fs::File>), Error> {
        let Inheritance { fds, dir, socket, buffers } = self;
        let [dir_fd, memory, ledger, listener, control, summary] = fds.map(own);
        let wrong = || Error::from("a descriptor of the session was not inherited".to_string());
        let dir = Dir::inherited(dir_fd.ok_or_else(wrong)?, &dir);
        let files = OwnerFiles::inherited(&dir, buffers.clone());
        let ledger = Ledger::inherited(ledger.ok_or_else(wrong)?)?;
        let listener = SessionListener::inherited(&socket, listener.ok_or_else(wrong)?)?;
        let estate = Estate { dir, memory: memory.ok_or_else(wrong)?, ledger, listener, buffers, files };
        Ok((estate, control.ok_or_else(wrong)?.into(), summary.map(Into::into)))
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
    use super::*;

    #[test]
    fn messages_are_read_back() {
        for said in [
            Said::Ready,
            Said::Armed(7),
            Said::Failed("no room, so none".into()),
            Said::Refused("x".into()),
            Said::Done(255),
        ] {
            assert_eq!(Said::from_line(said.to_line().trim_end()), Some(said));
        }
        assert_eq!(Said::Failed("a\nb".into()).to_line(), "failed a b\n");
        assert_eq!([Said::from_line("done 256"), Said::from_line("armed"), Said::from_line("")], [None, None, None]);
        for asked in [Asked::Finish(130), Asked::Await(0)] {
            assert_eq!(Asked::from_line(asked.to_line().trim_end()), Some(asked));
        }
        assert_eq!([Asked::from_line("finish 300"), Asked::from_line("await"), Asked::from_line("x 1")], [None; 3]);
    }

    #[test]
    fn arguments_are_read_back() {
        let path = |text: &str| PathBuf::from(OsStr::from_bytes(text.as_bytes()));
        let some = Inheritance {
            fds: [3, 4, 5, 6, 7, NO_FD],
            dir: path("a b"),
            socket: PathBuf::from(OsStr::from_bytes(b"\xff")),
            buffers: Some(path("/dev/shm/x")),
        };
        for inheritance in [Inheritance { buffers: None, ..some.clone() }, some] {
            let arguments = inheritance.to_arguments();
            assert_eq!(arguments.len(), Inheritance::ARGUMENT_COUNT);
            assert_eq!(Inheritance::from_arguments(&arguments).unwrap(), inheritance);
            assert!(Inheritance::from_arguments(&arguments[1..]).is_err());
        }
    }
}

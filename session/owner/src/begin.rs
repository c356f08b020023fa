//! A new session: its directory, memory, socket and ledger, which outlive its owners.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dormouse_control::{SessionListener, socket_dir};

use crate::clock::Clock;
use crate::dir::Dir;
use crate::error::Error;
use crate::fault;
use crate::ledger::Ledger;
use crate::memory::{SessionMemory, create_pool, setup};
use crate::options::{Options, Plan};
use crate::session_file::{FILE_NAME, OwnerFiles};
use crate::trace::{Trace, remove_files};

/// The parts of a session that its owner takes up; it derives all other state from them.
#[derive(Debug)]
pub(crate) struct SessionParts {
    pub(crate) dir: Dir,
    pub(crate) memory: OwnedFd,
    pub(crate) ledger: Ledger,
    pub(crate) listener: SessionListener,
    /// Path of the file with the memory, if it has one.
    pub(crate) buffers: Option<PathBuf>,
    /// Files that exist as long as the session.
    pub(crate) files: OwnerFiles,
}

/// How programs join a session: the things that a command's processes inherit.
#[derive(Debug, Clone, Copy)]
pub struct Entrance<'a> {
    pub(crate) memory: BorrowedFd<'a>,
    pub(crate) uuid: [u8; 16],
    pub(crate) socket: &'a Path,
}

/// A session without an owner yet. Programs can join; nothing is drained.
#[derive(Debug)]
pub struct NewSession {
    pub(crate) parts: SessionParts,
    socket: PathBuf,
    uuid: [u8; 16],
}

impl NewSession {
    /// Makes the directory, the memory and the socket.
    ///
    /// # Errors
    /// One line with the reason; only an empty directory is left.
    pub fn create(options: &Options) -> Result<NewSession, Error> {
        let plan = options.plan()?;
        fault::survive_file_size_limits();
        let (clock, uuid) = (Clock::new(), new_uuid()?);
        let ledger = Arc::new(Ledger::create(setup(&plan, clock.source, uuid).layout(&plan.geometry))?);
        ledger.set_may_be_stopped(plan.options.may_be_stopped.into());
        let trace = Trace::create(&plan, clock, uuid, Arc::clone(&ledger))?;
        // Errors from here on remove the trace's files again.
        let made = NewSession::beside(&plan, &ledger, &trace).inspect_err(|_| trace.remove());
        let (memory, listener, files) = made?;
        let (dir, socket, buffers) = (trace.dir, listener.path(), plan.options.buffers);
        let ledger = Ledger::inherited(ledger.file().try_clone_to_owned().map_err(|error| error.to_string())?)?;
        Ok(NewSession { parts: SessionParts { dir, memory, ledger, listener, buffers, files }, socket, uuid })
    }

    /// Makes the memory and the socket for a trace.
    fn beside(
        plan: &Plan,
        ledger: &Arc<Ledger>,
        trace: &Trace,
    ) -> Result<(OwnedFd, SessionListener, OwnerFiles), Error> {
        let pool = create_pool(plan).map_err(|error| match plan.options.buffers.clone() {
            Some(path) => Error::from(format!("cannot put the buffers into {}: {error}", path.display())),
            None if fault::is_limit_of_file_sizes(&error) => {
                Error::from(format!("{error}; raise the limit of file sizes (ulimit -f), which counts for memory too"))
            }
            None => Error::from(error.to_string()),
        })?;
        let mut files = OwnerFiles::new(plan.options.buffers.clone());
        let memory = SessionMemory::new(pool, plan, Arc::clone(ledger)).map_err(|error| error.to_string())?;
        let listener = SessionListener::create(&socket_dir())?;
        // No program joins before the session's path is known.
        let written = files.write(&trace.dir, trace.uuid, &listener.path());
        written.inspect_err(|_| listener.remove())?;
        Ok((memory.into_file(), listener, files))
    }

    /// Returns the path where programs join: the value of `DORMOUSE_SESSION`.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the trace's directory.
    pub fn dir(&self) -> &Path {
        &self.parts.dir.path
    }

    /// Returns how programs join.
    pub fn entrance(&self) -> Entrance<'_> {
        Entrance { memory: self.parts.memory.as_fd(), uuid: self.uuid, socket: &self.socket }
    }

    /// Removes everything, unless an owner has done so; only an empty directory is left. No owner may be alive.
    pub(crate) fn abandon(&self) {
        let SessionParts { dir, listener, buffers, .. } = &self.parts;
        if dir.read(FILE_NAME).is_ok() {
            listener.remove();
            remove_files(dir);
            OwnerFiles::inherited(dir, buffers.clone()).remove();
        }
    }
}

fn new_uuid() -> Result<[u8; 16], Error> {
    let mut uuid = [0u8; 16];
    rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| format!("random numbers: {error}"))?;
    // RFC 9562, version 4.
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    Ok(uuid)
}

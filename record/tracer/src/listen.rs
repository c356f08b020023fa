//! The socket on which tools talk to the program, and the one thread that sleeps on it.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io::ErrorKind;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dormouse_abi::environment::{program_socket_name, socket_dir};
use dormouse_abi::message::{Edge, ProgramToTool};
use dormouse_transport::{Conversation, Deadline, Error, Peer, is_answered};

use crate::spawn::spawn;
use crate::{control, thread};

static LISTENING: AtomicBool = AtomicBool::new(false);

/// How long a tool may take over its question, and over the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Starts to listen. Without a place for the socket or a thread, the program simply cannot be reached.
pub(crate) fn start() {
    if LISTENING.swap(true, Ordering::Relaxed) {
        return;
    }
    if !bind().is_some_and(|(listener, path)| spawn(c"dormouse", move || serve(listener, &path))) {
        LISTENING.store(false, Ordering::Relaxed);
    }
}

/// In a forked child, which has no such thread: starts one when the parent had one.
pub(crate) fn after_fork() {
    if LISTENING.swap(false, Ordering::Relaxed) {
        start();
    }
}

/// Removes the socket at the end of the process.
pub(crate) extern "C" fn at_exit() {
    if LISTENING.load(Ordering::Relaxed)
        && let Some(dir) = directory()
    {
        for number in 0..NUMBER_COUNT {
            let path = dir.join(program_socket_name(std::process::id(), number));
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A process has hardly more than a few objects with a tracer of their own.
const NUMBER_COUNT: u32 = 8;

fn directory() -> Option<PathBuf> {
    let xdg = std::env::var("XDG_RUNTIME_DIR").ok();
    let dir = PathBuf::from(socket_dir(xdg.as_deref(), rustix::process::geteuid().as_raw()));
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&dir);
    // In /tmp anybody could have made it: only a directory of this user that nobody else can write to will do.
    let metadata = std::fs::symlink_metadata(&dir).ok()?;
    let ours =
        metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    ours.then_some(dir)
}

fn bind() -> Option<(UnixListener, PathBuf)> {
    let dir = directory()?;
    for number in 0..NUMBER_COUNT {
        let path = dir.join(program_socket_name(std::process::id(), number));
        // A socket that nobody answers is left over from an earlier process of this id.
        if path.exists() && !is_answered(&path) {
            let _ = std::fs::remove_file(&path);
        }
        if let Ok(listener) = UnixListener::bind(&path) {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).ok()?;
            return Some((listener, path));
        }
    }
    None
}

fn serve(listener: UnixListener, path: &Path) {
    let _inside = thread::enter_tracer();
    // A program that closes descriptors it does not know may put another file in this one's place.
    while still_ours(&listener, path) {
        match listener.accept() {
            Ok((stream, _)) => {
                let _ = converse(stream);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    LISTENING.store(false, Ordering::Relaxed);
    if !still_ours(&listener, path) {
        // The descriptor is the program's by now.
        let _ = listener.into_raw_fd();
    }
}

fn still_ours(listener: &UnixListener, path: &Path) -> bool {
    listener.local_addr().is_ok_and(|address| address.as_pathname() == Some(path))
}

fn converse(stream: UnixStream) -> Result<(), Error> {
    let is_allowed = Peer::of(&stream)?.is_own_user_or_root();
    let deadline = Deadline::after(PATIENCE);
    if !is_allowed {
        let text = "only the program's own user may talk to it".into();
        return Conversation::begin(stream.into(), Edge::ToolProgram, deadline).send(&ProgramToTool::Error { text });
    }
    let mut conversation = Conversation::answer(stream.into(), &[Edge::ToolProgram], deadline)?;
    // The memory of a session that it is asked to join comes as a descriptor, which is not needed: it is asked for at the session's socket.
    let answer = match conversation.receive_with_fd() {
        Ok((question, _memory)) => control::answer(question),
        Err(Error::Malformed(malformed)) => ProgramToTool::Error { text: malformed.to_string() },
        Err(error) => return Err(error),
    };
    // What the answer took is not the tool's fault.
    let mut conversation = conversation.until(Deadline::after(PATIENCE));
    match conversation.send(&answer) {
        Err(error @ Error::TooLong) => conversation.send(&ProgramToTool::Error { text: error.to_string() }),
        sent => sent,
    }
}

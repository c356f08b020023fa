//! Talking to a program that runs: finding its sockets, asking it.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dormouse_abi::wire::{self, FRAME_SIZE_MAX_BYTES, Message};

use crate::error::Error;

/// The directory of the sockets of the calling user's programs.
pub fn socket_dir() -> PathBuf {
    let xdg = std::env::var("XDG_RUNTIME_DIR").ok();
    wire::socket_dir(xdg.as_deref(), rustix::process::geteuid().as_raw()).into()
}

/// A process that listens, perhaps on several sockets: one for each of its objects that carries a tracer of its own.
#[derive(Debug)]
pub struct Program {
    /// Its id.
    pub pid: u32,
    /// One for each tracer in it.
    pub(crate) sockets: Vec<PathBuf>,
}

impl Program {
    /// Finds a process's sockets.
    ///
    /// # Errors
    /// One line.
    pub fn find(pid: u32) -> Result<Program, Error> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let uid = std::fs::metadata(&proc)
            .map_err(|_| format!("there is no process {pid}; `pgrep -a NAME` finds a program's id"))?
            .uid();
        let me = rustix::process::geteuid();
        if uid != me.as_raw() && !me.is_root() {
            let text = format!("process {pid} belongs to user {uid}; run dormouse as that user or as root");
            return Err(text.into());
        }
        let dir = program_socket_dir(&proc, uid);
        // A program that has become another user has no place where its environment says. One that writes a title over its environment
        // (setproctitle) no longer says where: perhaps where this one would.
        let dirs = [dir.clone(), wire::socket_dir(None, uid).into(), socket_dir()];
        let mut sockets: Vec<PathBuf> = dirs[..if uid == me.as_raw() { 3 } else { 2 }]
            .iter()
            .flat_map(std::fs::read_dir)
            .flatten()
            .flatten()
            .filter(|entry| wire::is_program_socket(&entry.file_name().to_string_lossy(), pid))
            .map(|entry| entry.path())
            .filter(|path| UnixStream::connect(path).is_ok())
            .collect();
        sockets.sort();
        sockets.dedup();
        if sockets.is_empty() {
            let text = format!(
                "process {pid} does not listen in {}; it has no Dormouse tracepoints, was started with DORMOUSE_LISTEN=0 (or by `dormouse \
                 record` or with libdormouse_libc.so, and without DORMOUSE_LISTEN=thread), has stopped listening, or has another \
                 XDG_RUNTIME_DIR",
                dir.display()
            );
            return Err(text.into());
        }
        Ok(Program { pid, sockets })
    }

    /// Asks one of the tracers in the process, by its place in the answers of [`Program::ask`].
    ///
    /// # Errors
    /// One line, if it does not answer.
    pub(crate) fn ask_one(&self, index: usize, question: &Message) -> Result<Message, Error> {
        let answer = ask(&self.sockets[index], question, Duration::from_secs(5));
        answer.map_err(|reason| format!("process {} did not answer: {reason}; is it stopped?", self.pid).into())
    }

    /// Asks every tracer in the process, and gives the answers in the order of its sockets.
    ///
    /// # Errors
    /// One line, if it does not answer.
    pub fn ask(&self, question: &Message) -> Result<Vec<Message>, Error> {
        (0..self.sockets.len()).map(|index| self.ask_one(index, question)).collect()
    }

    /// What it says instead of the answer that was asked for.
    pub fn refusal(&self, answer: Message) -> Error {
        let pid = self.pid;
        match answer {
            // What a program says to a question that it cannot read.
            Message::Error { text } if text != wire::Malformed.to_string() => format!("process {pid}: {text}").into(),
            _ => format!("process {pid} answered something else; are it and dormouse of the same version?").into(),
        }
    }
}

/// How old a socket is that has certainly been listened to, if it ever will be.
const LISTENED_TO_AFTER: Duration = Duration::from_secs(2);

/// Removes the sockets at which no process answers any more: of programs and session owners that were killed.
pub(crate) fn sweep(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_socket = path.extension().is_some_and(|extension| extension == "sock");
        // One that was made just now refuses connections too, until its owner listens.
        let age = entry.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|made| made.elapsed().ok());
        let is_old = age.is_some_and(|age| age >= LISTENED_TO_AFTER);
        let is_dead =
            || matches!(UnixStream::connect(&path), Err(error) if error.kind() == ErrorKind::ConnectionRefused);
        if is_socket && is_old && is_dead() {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// The program's own environment says where it listens.
fn program_socket_dir(proc: &Path, uid: u32) -> PathBuf {
    let environment = std::fs::read(proc.join("environ")).unwrap_or_default();
    let xdg = environment
        .split(|byte| *byte == 0)
        .find_map(|entry| std::str::from_utf8(entry).ok()?.strip_prefix("XDG_RUNTIME_DIR="));
    wire::socket_dir(xdg, uid).into()
}

/// One question, one answer.
pub(crate) fn ask(socket: &Path, question: &Message, patience: Duration) -> Result<Message, String> {
    let converse = || -> std::io::Result<Message> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(&question.encode())?;
        read_message(&mut stream)
    };
    converse().map_err(|error| error.to_string())
}

/// Reads one frame.
pub(crate) fn read_message(stream: &mut impl Read) -> std::io::Result<Message> {
    let mut head = [0u8; 4];
    stream.read_exact(&mut head)?;
    let len = u32::from_le_bytes(head) as usize;
    if len > FRAME_SIZE_MAX_BYTES {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the message is too long"));
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    Message::decode(&body).map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
}

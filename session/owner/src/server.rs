//! The session's socket, on which programs join and tools ask.

use std::io::{IoSlice, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dormouse_abi::class::CLASS_ID_NONE;
use dormouse_abi::wire::{self, Announcement, Grant, Message};
use dormouse_ctf::StateRecord;

use crate::allowance::Allowance;
use crate::error::Error;
use crate::memory::SessionMemory;
use crate::options::Plan;
use crate::program::{read_message, socket_dir, sweep};
use crate::registry::Processes;
use crate::snapshot::{self, Take};
use crate::sys::Stat;
use crate::trace::{ALL_CLASSES, Trace, refusal_of};

/// How long a program may take over its hello.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the session's threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: SessionMemory,
    pub(crate) trace: Trace,
    pub(crate) processes: Processes,
    /// A tool that has asked for the session's end, and waits for it.
    stopper: Mutex<Option<UnixStream>>,
    /// Snapshots that programs asked for and that were too many.
    pub(crate) snapshots_refused: AtomicU64,
}

impl Shared {
    /// Of a session that nobody has joined.
    pub(crate) fn new(memory: SessionMemory, trace: Trace) -> Shared {
        let (processes, stopper) = (Processes::default(), Mutex::default());
        Shared { memory, trace, processes, stopper, snapshots_refused: AtomicU64::new(0) }
    }

    fn stopper(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.stopper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_stop_requested(&self) -> bool {
        self.stopper().is_some()
    }

    /// Tells the tool that asked for the end how it ended.
    pub(crate) fn answer_stop(&self, summary: String) {
        let stopper = self.stopper().take();
        if let Some(mut stream) = stopper {
            let _ = stream.write_all(&Message::Stopped { summary }.encode());
        }
    }
}

/// The server's thread and its socket.
#[derive(Debug)]
pub(crate) struct ServerThread {
    pub(crate) path: PathBuf,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Makes the socket and the thread.
    pub(crate) fn start(plan: &Plan, shared: Arc<Shared>) -> Result<ServerThread, Error> {
        let (listener, path) = session_socket(&socket_dir())?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(no_socket(&path))?;
        let listener = Arc::new(listener);
        let server = Server {
            shared,
            listener: Arc::clone(&listener),
            patterns: plan.options.patterns.clone(),
            may_be_stopped: plan.options.may_be_stopped,
            answering: Vec::new(),
            allowance: Allowance::new(Instant::now()),
        };
        let thread = std::thread::Builder::new()
            .name("dormouse-serve".into())
            .spawn(move || server.serve())
            .map_err(no_thread)?;
        Ok(ServerThread { path, listener, thread: Some(thread) })
    }

    /// Closes the socket: no program can join any more.
    pub(crate) fn close(&mut self) {
        // Once: afterwards the path may be another session's.
        if let Some(thread) = self.thread.take() {
            let _ = std::fs::remove_file(&self.path);
            // Ends the thread's wait for a connection, once it has answered those that have come.
            let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
            let _ = thread.join();
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.close();
    }
}

fn no_socket(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let text = "set XDG_RUNTIME_DIR to a directory of your own";
    move |error| format!("cannot make the session's socket {}: {error}; {text}", path.display()).into()
}

/// Why a thread cannot be made.
pub(crate) fn no_thread(error: std::io::Error) -> Error {
    format!("cannot start a thread: {error}; is the limit of processes (ulimit -u) reached?").into()
}

/// A socket that is listened to, in the directory of sockets, which is this user's alone.
fn session_socket(dir: &Path) -> Result<(UnixListener, PathBuf), Error> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(no_socket(dir))?;
    let metadata = std::fs::symlink_metadata(dir).map_err(no_socket(dir))?;
    if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
        return Err(no_socket(dir)(std::io::Error::other("it is another user's, or others may write to it")));
    }
    sweep(dir);
    let pid = std::process::id();
    for number in 0_u32.. {
        let path = dir.join(format!("session-{pid}-{number}.sock"));
        match UnixListener::bind(&path) {
            Ok(listener) => return Ok((listener, path)),
            // Of another session of this process, or left by one of the same id.
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(no_socket(&path)(error)),
        }
    }
    Err(no_socket(dir)(std::io::ErrorKind::AddrInUse.into()))
}

/// What the server's thread has.
struct Server {
    shared: Arc<Shared>,
    listener: Arc<UnixListener>,
    patterns: Vec<String>,
    may_be_stopped: bool,
    /// Threads that take their time to answer.
    answering: Vec<JoinHandle<()>>,
    /// Of snapshots that programs ask for.
    allowance: Allowance,
}

impl Server {
    /// Answers until the socket is closed, and waits for the answers that were begun.
    fn serve(mut self) {
        loop {
            match self.listener.accept() {
                // A peer that breaks off, or sends what is no message, gets no session; all others go on.
                Ok((stream, _)) => drop(self.converse(stream)),
                // What accept(2) says of a socket that is shut down.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => break,
                Err(_) => {}
            }
        }
        for thread in self.answering {
            let _ = thread.join();
        }
    }

    fn converse(&mut self, mut stream: UnixStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
            return refuse(&mut stream, "the session belongs to another user");
        }
        let pid = peer.pid.as_raw_nonzero().get() as u32;
        let message = match read_message(&mut stream) {
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
                return self.refuse_program(&mut stream, &program.to_string_lossy(), OTHER_VERSION);
            }
            message => message?,
        };
        match message {
            Message::Hello { version, program, .. } if version != wire::VERSION => {
                self.refuse_program(&mut stream, &program, OTHER_VERSION)
            }
            Message::Hello { vpid, program, command_line, classes, .. } => {
                let pidfd = rustix::process::pidfd_open(peer.pid, rustix::process::PidfdFlags::empty())?;
                let stat = Stat::of(pid);
                let Some(process) =
                    self.shared.processes.add(&self.shared.memory.view(), pid, &program, pidfd, stat.as_ref())
                else {
                    return self.refuse_program(&mut stream, &program, "too many processes are in the session");
                };
                // Where the kernel does not tell, the program's file is named after it.
                let name = stat.map_or_else(|| program.rsplit('/').next().unwrap_or_default().into(), |stat| stat.name);
                let record = StateRecord::Process {
                    process: process.into(),
                    pid,
                    vpid,
                    name: &name,
                    program: &program,
                    command_line: &command_line,
                };
                // Without its record the process's events are in the trace all the same, under its bare id.
                let _ = self.shared.trace.state(&[record]);
                let welcome = Message::Welcome { process, grants: self.grants(&classes, &program) };
                send_with_fd(&stream, &welcome.encode(), self.shared.memory.file())
            }
            Message::MoreClasses { process, classes } => {
                let grants = self.grants(&classes, &self.shared.processes.program(process));
                let welcome = Message::Welcome { process, grants };
                stream.write_all(&welcome.encode())
            }
            Message::Stop if self.may_be_stopped => {
                *self.shared.stopper() = Some(stream);
                Ok(())
            }
            Message::Stop => refuse(&mut stream, "the session ends with its command"),
            Message::Snapshot { dir, last_ns, bytes_max, trigger } => {
                let wanted = Take {
                    dir: Some(PathBuf::from(dir)).filter(|dir| !dir.as_os_str().is_empty()),
                    last: Some(Duration::from_nanos(last_ns)).filter(|last| !last.is_zero()),
                    bytes_max: Some(bytes_max).filter(|bytes| *bytes != 0),
                    trigger,
                };
                self.snapshot(stream, wanted)
            }
            Message::Budget { bytes } => self.budget(stream, bytes),
            _ => refuse(&mut stream, "a session owner does not answer this"),
        }
    }

    /// One after another, for each has room for all that is retained.
    fn snapshot(&mut self, mut stream: UnixStream, wanted: Take) -> std::io::Result<()> {
        if wanted.dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            return refuse(&mut stream, "a snapshot's directory has to be an absolute path");
        }
        // Whoever runs `dormouse snapshot` looks at what they get; what programs trigger has to be bounded.
        let is_by_program = wanted.trigger != "command";
        if is_by_program && !self.allowance.take(Instant::now()) {
            self.shared.snapshots_refused.fetch_add(1, Ordering::Relaxed);
            return refuse(&mut stream, "programs have asked for too many snapshots; `dormouse snapshot` takes one");
        }
        let shared = Arc::clone(&self.shared);
        self.answer_from_thread("dormouse-snapshot", stream, move || {
            let _turn = shared.memory.turn();
            match snapshot::take(&shared.memory, &shared.trace, &wanted) {
                Ok(snapshot) => Message::Snapshotted { snapshot },
                Err(error) => Message::Error { text: error.to_string() },
            }
        })
    }

    /// Sets the budget, unless `bytes` is 0, and tells what is where.
    fn budget(&mut self, stream: UnixStream, bytes: u64) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        self.answer_from_thread("dormouse-budget", stream, move || {
            let resized = if bytes == 0 { Ok(()) } else { shared.memory.resize(bytes) };
            match resized {
                Ok(()) => Message::BudgetIs { state: shared.memory.describe() },
                Err(error) => Message::Error { text: error.to_string() },
            }
        })
    }

    /// Programs that join must not wait for a disk, or for memory.
    fn answer_from_thread(
        &mut self,
        name: &str,
        mut stream: UnixStream,
        answer: impl FnOnce() -> Message + Send + 'static,
    ) -> std::io::Result<()> {
        let mut refused = stream.try_clone()?;
        // Whoever has asked may be gone.
        let run = move || drop(stream.write_all(&answer().encode()));
        match std::thread::Builder::new().name(name.into()).spawn(run) {
            Ok(thread) => {
                self.answering.retain(|thread| !thread.is_finished());
                self.answering.push(thread);
                Ok(())
            }
            Err(error) => refuse(&mut refused, &String::from(no_thread(error))),
        }
    }

    /// Classes that are to be armed get their ids first, because small ids take fewer bytes in records without context.
    fn grants(&self, announced: &[Announcement], program: &str) -> Vec<Grant> {
        let is_wanted = |class: &Announcement| {
            let name = class.full_name();
            self.patterns.iter().any(|pattern| wire::matches(pattern, &name))
        };
        let wanted: Vec<bool> = announced.iter().map(is_wanted).collect();
        let mut grants = vec![Grant { id: CLASS_ID_NONE, armed: false }; announced.len()];
        let mut refused = Vec::new();
        for armed in [true, false] {
            for index in (0..announced.len()).filter(|index| wanted[*index] == armed) {
                let class = &announced[index];
                match class.check().and_then(|decl| self.shared.trace.class_id(&decl)) {
                    Ok(id) => grants[index] = Grant { id, armed },
                    Err(reason) => refused.push(refusal_of(&class.full_name(), program, &reason)),
                }
            }
        }
        self.shared.trace.refuse(refused);
        grants
    }

    /// None of a program's classes is recorded.
    fn refuse_program(&self, stream: &mut UnixStream, program: &str, reason: &str) -> std::io::Result<()> {
        self.shared.trace.refuse([refusal_of(ALL_CLASSES, program, reason)]);
        refuse(stream, reason)
    }
}

const OTHER_VERSION: &str = "the program and dormouse are of different versions; rebuild the older one";

fn refuse(stream: &mut UnixStream, text: &str) -> std::io::Result<()> {
    stream.write_all(&Message::Error { text: text.into() }.encode())
}

/// The descriptor goes with the first bytes.
fn send_with_fd(stream: &UnixStream, bytes: &[u8], fd: BorrowedFd<'_>) -> std::io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    let mut stream = stream;
    stream.write_all(&bytes[sent..])
}

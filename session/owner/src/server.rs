//! The session's socket, on which programs join and tools ask.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dormouse_abi::message::{
    Edge, Message, Mismatch, OwnerToProgram, OwnerToTool, ProgramToOwner, Snapshot, SnapshotRequest, ToolToOwner,
};
use dormouse_abi::register::{Entrant, NAME_SIZE_BYTES};
use dormouse_transport::{Conversation, Deadline, Error as Failure, Peer};

use crate::allowance::Allowance;
use crate::error::Error;
use crate::memory::SessionMemory;
use crate::options::Plan;
use crate::program::{socket_dir, sweep};
use crate::register;
use crate::registry::Processes;
use crate::snapshot::{self, Take};
use crate::sys::{boot_ns, process_name};
use crate::trace::{Trace, refusal_of};

/// How long a peer may take over its question, and over the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the session's threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: SessionMemory,
    pub(crate) trace: Trace,
    pub(crate) processes: Processes,
    /// A tool that has asked for the session's end, and waits for it.
    stopper: Mutex<Option<Conversation<'static>>>,
    /// Snapshots that events asked for and that were too many.
    pub(crate) snapshots_refused: AtomicU64,
}

impl Shared {
    /// Of a session that nobody has joined.
    pub(crate) fn new(memory: SessionMemory, trace: Trace) -> Shared {
        let (processes, stopper) = (Processes::default(), Mutex::default());
        Shared { memory, trace, processes, stopper, snapshots_refused: AtomicU64::new(0) }
    }

    fn stopper(&self) -> MutexGuard<'_, Option<Conversation<'static>>> {
        self.stopper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_stop_requested(&self) -> bool {
        self.stopper().is_some()
    }

    /// Tells the tool that asked for the end how it ended.
    pub(crate) fn answer_stop(&self, summary: String) {
        let stopper = self.stopper().take();
        if let Some(conversation) = stopper {
            let _ = conversation.until(Deadline::after(PATIENCE)).send(&OwnerToTool::Stopped { summary });
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

/// What a process calls itself; where the kernel does not tell, its program's file.
fn name_of(pid: u32, program: &str) -> [u8; NAME_SIZE_BYTES] {
    let name = process_name(pid).unwrap_or_else(|| program.rsplit('/').next().unwrap_or_default().into());
    let mut bytes = [0; NAME_SIZE_BYTES];
    bytes.iter_mut().zip(name.bytes()).for_each(|(target, byte)| *target = byte);
    bytes
}

/// What the server's thread has.
struct Server {
    shared: Arc<Shared>,
    listener: Arc<UnixListener>,
    may_be_stopped: bool,
    /// Threads that take their time to answer.
    answering: Vec<JoinHandle<()>>,
    /// Of snapshots that events ask for.
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

    fn converse(&mut self, stream: UnixStream) -> Result<(), Failure> {
        let peer = Peer::of(&stream)?;
        let served = [Edge::ProgramOwner, Edge::ToolOwner];
        let mut conversation = match Conversation::answer(stream.into(), &served, Deadline::after(PATIENCE)) {
            Err(Failure::Mismatch(mismatch)) => {
                let is_tool =
                    matches!(mismatch, Mismatch::Version { edge: Some(Edge::ToolOwner), .. } | Mismatch::Edge);
                if !is_tool && peer.is_own_user_or_root() {
                    self.tell_refused(&program_of(peer), &mismatch.to_string());
                }
                return Err(mismatch.into());
            }
            conversation => conversation?,
        };
        if !peer.is_own_user_or_root() {
            return refuse(conversation, "the session belongs to another user");
        }
        if conversation.edge() == Edge::ToolOwner {
            return match conversation.receive() {
                Ok(question) => self.answer_tool(conversation, question),
                Err(Failure::Malformed(malformed)) => refuse(conversation, &malformed.to_string()),
                Err(failure) => Err(failure),
            };
        }
        match conversation.receive() {
            Ok(question) => self.answer_program(conversation, peer, question),
            Err(Failure::Malformed(malformed)) => {
                self.refuse_program(conversation, &program_of(peer), &malformed.to_string())
            }
            Err(failure) => Err(failure),
        }
    }

    fn answer_program(
        &mut self,
        mut conversation: Conversation<'static>,
        peer: Peer,
        question: ProgramToOwner,
    ) -> Result<(), Failure> {
        match question {
            ProgramToOwner::Hello { vpid, image, program, command_line } => {
                let Some(peer_pid) = peer.pid else {
                    let reason =
                        "it runs in another PID namespace, where its process has no id here; record it from within";
                    return self.refuse_program(conversation, &program, reason);
                };
                let pid = peer_pid.as_raw_nonzero().get() as u32;
                let memory = self.shared.memory.view();
                let entrant = Entrant {
                    vpid,
                    image,
                    joined_ns: boot_ns(),
                    joined_at: self.shared.trace.clock.now(),
                    pid,
                    name: name_of(pid, &program),
                    program: program.as_bytes(),
                    command_line: command_line.as_bytes(),
                    ..Entrant::default()
                };
                let entered = memory.register().and_then(|register| {
                    let number = register.claim_process(vpid)?;
                    register.enter(number, &entrant).then_some(number)
                });
                let Some(process) = entered else {
                    return self.refuse_program(conversation, &program, "too many processes are in the session");
                };
                register::take_in(&memory, &self.shared.trace, &self.shared.processes);
                conversation.send_with_fd(&OwnerToProgram::Welcome { process }, self.shared.memory.file())
            }
            ProgramToOwner::Snapshot { request } => self.snapshot(conversation, request, |taken| match taken {
                Ok(snapshot) => OwnerToProgram::Snapshotted { snapshot },
                Err(error) => OwnerToProgram::Error { text: error.into() },
            }),
        }
    }

    fn answer_tool(&mut self, conversation: Conversation<'static>, question: ToolToOwner) -> Result<(), Failure> {
        match question {
            ToolToOwner::Stop if self.may_be_stopped => {
                *self.shared.stopper() = Some(conversation);
                Ok(())
            }
            ToolToOwner::Stop => refuse(conversation, "the session ends with its command"),
            ToolToOwner::Snapshot { request } => self.snapshot(conversation, request, |taken| match taken {
                Ok(snapshot) => OwnerToTool::Snapshotted { snapshot },
                Err(error) => OwnerToTool::Error { text: error.into() },
            }),
            ToolToOwner::Budget { bytes } => self.budget(conversation, bytes),
        }
    }

    /// One after another, for each has room for all that is retained.
    fn snapshot<A: Message + 'static>(
        &mut self,
        conversation: Conversation<'static>,
        request: SnapshotRequest,
        answer: fn(Result<Snapshot, Error>) -> A,
    ) -> Result<(), Failure> {
        let SnapshotRequest { dir, last_ns, bytes_max, trigger } = request;
        let wanted = Take {
            dir: Some(PathBuf::from(dir)).filter(|dir| !dir.as_os_str().is_empty()),
            last: Some(Duration::from_nanos(last_ns)).filter(|last| !last.is_zero()),
            bytes_max: Some(bytes_max).filter(|bytes| *bytes != 0),
            trigger,
        };
        if wanted.dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            return refuse(conversation, "a snapshot's directory has to be an absolute path");
        }
        let is_by_event = ["event:", "duration:"].iter().any(|kind| wanted.trigger.starts_with(kind));
        if is_by_event && !self.allowance.take(Instant::now()) {
            self.shared.snapshots_refused.fetch_add(1, Ordering::Relaxed);
            return refuse(conversation, "events have asked for too many snapshots; `dormouse snapshot` takes one");
        }
        let shared = Arc::clone(&self.shared);
        self.answer_from_thread("dormouse-snapshot", conversation, move || {
            let _turn = shared.memory.turn();
            answer(snapshot::take(&shared.memory, &shared.trace, &wanted))
        })
    }

    /// Sets the budget, unless `bytes` is 0, and tells what is where.
    fn budget(&mut self, conversation: Conversation<'static>, bytes: u64) -> Result<(), Failure> {
        let shared = Arc::clone(&self.shared);
        self.answer_from_thread("dormouse-budget", conversation, move || {
            let resized = if bytes == 0 { Ok(()) } else { shared.memory.resize(bytes) };
            match resized {
                Ok(()) => OwnerToTool::BudgetIs { state: shared.memory.describe() },
                Err(error) => OwnerToTool::Error { text: error.to_string() },
            }
        })
    }

    /// Programs that join must not wait for a disk, or for memory.
    fn answer_from_thread<A: Message>(
        &mut self,
        name: &str,
        conversation: Conversation<'static>,
        answer: impl FnOnce() -> A + Send + 'static,
    ) -> Result<(), Failure> {
        // Handed over once the thread is there: who has asked is told if it is not.
        let (hand_over, handed_over) = std::sync::mpsc::channel::<Conversation<'static>>();
        let run = move || {
            if let Ok(conversation) = handed_over.recv() {
                let answer = answer();
                // Whoever has asked may be gone.
                let _ = conversation.until(Deadline::after(PATIENCE)).send(&answer);
            }
        };
        match std::thread::Builder::new().name(name.into()).spawn(run) {
            Ok(thread) => {
                let _ = hand_over.send(conversation);
                self.answering.retain(|thread| !thread.is_finished());
                self.answering.push(thread);
                Ok(())
            }
            Err(error) => refuse(conversation, &String::from(no_thread(error))),
        }
    }

    /// None of a program's classes is recorded.
    fn refuse_program(&self, conversation: Conversation<'_>, program: &str, reason: &str) -> Result<(), Failure> {
        self.tell_refused(program, reason);
        refuse(conversation, reason)
    }

    /// The session's end names the program.
    fn tell_refused(&self, program: &str, reason: &str) {
        self.shared.trace.refuse([refusal_of("(all classes)", program, reason)]);
    }
}

/// The program of a peer that has not said which it is.
fn program_of(peer: Peer) -> String {
    let pid = peer.pid.map_or(0, |pid| pid.as_raw_nonzero().get());
    std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default().to_string_lossy().into_owned()
}

fn refuse(mut conversation: Conversation<'_>, text: &str) -> Result<(), Failure> {
    let text = text.into();
    match conversation.edge() {
        Edge::ProgramOwner => conversation.send(&OwnerToProgram::Error { text }),
        _ => conversation.send(&OwnerToTool::Error { text }),
    }
}

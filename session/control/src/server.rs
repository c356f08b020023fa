//! What a session's owner answers, whatever its clients do: who may ask, what, and how much of it.
//!
//! Neither a listening socket nor a clock is in here: connections are given, with who is at their other end, and so is the time. A test can hold
//! any number of conversations, at any time, with clients that send anything.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse_abi::message::{
    BudgetState, Edge, Message, Mismatch, OwnerToProgram, OwnerToTool, Preamble, ProgramToOwner, Snapshot,
    SnapshotRequest, Status, ToolToOwner,
};
use dormouse_transport::{Conversation, Deadline, Error as Failure, Incoming, Outgoing, Peer};

use crate::allowance::Allowance;
use crate::error::Error;
use crate::limits;
use crate::peer;
use crate::process::process_name;
use crate::processes::Processes;

/// What a snapshot takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Take {
    /// The new trace's directory, absolute, which must not exist or be empty. `None`: beside the session's, numbered.
    pub dir: Option<PathBuf>,
    /// Events that are older are left out. `None`: none is.
    pub last: Option<Duration>,
    /// The newest pages up to so many bytes. `None`: all.
    pub bytes_max: Option<u64>,
    /// Who asks, for the trace: `command`, `program`, a signal's name.
    pub trigger: String,
}

/// Why a session of a command is not ended by a tool.
pub const ENDS_WITH_COMMAND: &str = "the session ends with its command";

/// How long a client may take over all of its conversation.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Clients that are served at once. A client beyond them takes the place of the one that has taken longest over its question.
pub(crate) const CLIENT_COUNT_MAX: usize = 64;

/// Answers that take their time, at once: each has a thread. More than the snapshots that events may ask for at once.
pub(crate) const THREAD_COUNT_MAX: usize = 64;

/// Threads that are kept for those who ask for the status.
const THREAD_COUNT_FOR_STATUS: usize = 2;

/// Edges on which an owner is asked.
const SERVED: [Edge; 2] = [Edge::ProgramOwner, Edge::ToolOwner];

/// What a process says of itself as it joins.
#[derive(Debug)]
pub struct Joining<'a> {
    /// Its id here; 0 if it is in a PID namespace that cannot be seen from here.
    pub pid: u32,
    /// Its id as it sees it itself.
    pub vpid: u32,
    /// A number of its program: see [`dormouse_abi::register::Process::image`].
    pub image: u64,
    /// What it calls itself.
    pub name: &'a str,
    /// Path of its executable.
    pub program: &'a str,
    /// Its command line.
    pub command_line: &'a str,
}

/// The session that a server serves. Its calls come from the server's threads, several at a time.
pub trait Service: Send + Sync + 'static {
    /// What the session's servers have counted, this one and those before it.
    fn counts(&self) -> &Counts;
    /// The session's memory, as programs map it.
    fn memory(&self) -> BorrowedFd<'_>;
    /// Enters a process in the session's register, under the number that is returned, and takes it in.
    ///
    /// # Errors
    /// Why it cannot join, in a line.
    fn enter(&self, joining: &Joining<'_>, pidfd: OwnedFd) -> Result<u16, String>;
    /// None of a program's classes is recorded.
    fn refuse(&self, program: &str, reason: &str);
    /// Processes have ended: `ended` takes them off the list and gives their numbers, which are nobody's any more. What they held comes back, before
    /// anybody is taken in who is not on the list.
    fn leave(&self, ended: &dyn Fn() -> Vec<u16>);
    /// Takes a snapshot. It may wait for a disk.
    ///
    /// # Errors
    /// One line.
    fn snapshot(&self, wanted: &Take) -> Result<Snapshot, Error>;
    /// Sets the budget, unless `bytes` is 0, and tells what is where. It may wait for memory.
    ///
    /// # Errors
    /// One line.
    fn budget(&self, bytes: u64) -> Result<BudgetState, Error>;
    /// Fills in what the server does not know: classes, disk. It may wait for a disk.
    fn describe(&self, status: &mut Status);
}

/// What servers of a session count. All zeroes at first.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Counts {
    /// Programs that asked to join and were refused.
    pub programs_refused: AtomicU64,
    /// Conversations that were ended because they were slow.
    pub clients_dropped: AtomicU64,
    /// Snapshots that were written.
    pub snapshots_taken: AtomicU64,
    /// Of these, those that events have asked for.
    pub snapshots_triggered: AtomicU64,
    /// Snapshots that were too many.
    pub snapshots_refused: AtomicU64,
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// An answer, on either edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Program(OwnerToProgram),
    Tool(OwnerToTool),
}

impl Answer {
    /// What is wrong, to whoever asks on an edge.
    pub(crate) fn refusal(edge: Edge, text: String) -> Answer {
        match edge {
            Edge::ProgramOwner => Answer::Program(OwnerToProgram::Error { text }),
            _ => Answer::Tool(OwnerToTool::Error { text }),
        }
    }

    /// As it goes out, behind the preamble. One that is too long for a frame is replaced by the reason.
    fn outgoing(&self) -> Outgoing {
        fn of<M: Message>(message: &M, refusal: &M) -> Outgoing {
            let mut outgoing = Outgoing::preamble(Preamble::of(M::EDGE));
            let _ = outgoing.add(message).or_else(|_| outgoing.add(refusal));
            outgoing
        }
        let text = Failure::TooLong.to_string();
        match self {
            Answer::Program(message) => of(message, &OwnerToProgram::Error { text }),
            Answer::Tool(message) => of(message, &OwnerToTool::Error { text }),
        }
    }

    /// Sends it over a socket that nobody waits for in the loop any more. Whoever has asked may be gone, or not listen.
    pub(crate) fn tell(&self, socket: OwnedFd) {
        let deadline = Deadline::after(PATIENCE);
        let _ = match self {
            Answer::Program(message) => Conversation::begin(socket, Edge::ProgramOwner, deadline).send(message),
            Answer::Tool(message) => Conversation::begin(socket, Edge::ToolOwner, deadline).send(message),
        };
    }
}

/// An answer that takes its time.
pub(crate) type Job = Box<dyn FnOnce() -> Answer + Send>;

/// What is to be done with a client that had its turn.
pub(crate) enum Next {
    /// It is waited for: until there is something to read, or room to write.
    Wait { to_write: bool },
    /// Its conversation is over.
    Closed,
    /// Somebody else is to answer it.
    Later(OwnedFd, Edge, Job),
    /// It waits for the session's end.
    Stop(OwnedFd),
}

/// One conversation.
struct Client {
    socket: OwnedFd,
    peer: Peer,
    deadline: Instant,
    incoming: Incoming,
    state: State,
}

enum State {
    /// It has not said on which edge it asks.
    Unknown,
    Asking(Edge),
    Answering {
        outgoing: Outgoing,
        with_memory: bool,
    },
}

fn not_watched(error: std::io::Error) -> String {
    let remedy = "too many files are open in the session's owner; raise `ulimit -Hn`, or record fewer programs at once";
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => remedy.into(),
        _ => format!("the session's owner cannot watch the process: {error}"),
    }
}

/// How a pidfd of the process at the other end of a connection is had: another way in tests.
pub(crate) type FindPidfd = fn(&OwnedFd, &Peer) -> std::io::Result<Option<OwnedFd>>;

/// All conversations.
pub(crate) struct Server<S> {
    service: Arc<S>,
    processes: Arc<Processes>,
    /// Whether tools may end the session.
    may_be_stopped: bool,
    processes_max: u32,
    /// Of snapshots that programs ask for.
    allowance: Allowance,
    /// In the order of their deadlines.
    clients: BTreeMap<u64, Client>,
    last_token: u64,
    /// Answers under way.
    pub(crate) threads: usize,
    pub(crate) find_pidfd: FindPidfd,
}

impl<S: Service> Server<S> {
    pub(crate) fn new(
        service: Arc<S>,
        processes: Arc<Processes>,
        may_be_stopped: bool,
        processes_max: u32,
        now: Instant,
    ) -> Server<S> {
        // What a server before this one has granted is not granted again.
        let granted = service.counts().snapshots_triggered.load(Ordering::Relaxed);
        Server {
            service,
            processes,
            may_be_stopped,
            processes_max,
            allowance: Allowance::after(granted, now),
            clients: BTreeMap::new(),
            last_token: 0,
            threads: 0,
            find_pidfd: peer::pidfd,
        }
    }

    pub(crate) fn service(&self) -> Arc<S> {
        Arc::clone(&self.service)
    }

    pub(crate) fn processes(&self) -> Arc<Processes> {
        Arc::clone(&self.processes)
    }

    pub(crate) fn client_count(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn socket(&self, token: u64) -> Option<&OwnedFd> {
        self.clients.get(&token).map(|client| &client.socket)
    }

    /// The time until which the next client has to be done.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.clients.first_key_value().map(|(_, client)| client.deadline)
    }

    /// Takes a client in, whose turn is when there is something to read. Its token.
    pub(crate) fn accept(&mut self, socket: OwnedFd, peer: Peer, now: Instant) -> u64 {
        if self.clients.len() >= CLIENT_COUNT_MAX {
            self.drop_slowest();
        }
        self.last_token += 1;
        let (deadline, incoming, state) = (now + PATIENCE, Incoming::new(), State::Unknown);
        self.clients.insert(self.last_token, Client { socket, peer, deadline, incoming, state });
        self.last_token
    }

    /// One that has had all the time that it takes to ask is slow, or has other intentions; one that does not take its answer likewise.
    fn drop_slowest(&mut self) {
        if self.clients.pop_first().is_some() {
            add(&self.service.counts().clients_dropped);
        }
    }

    /// Ends conversations whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.drop_slowest();
        }
    }

    /// A client's turn.
    pub(crate) fn turn(&mut self, token: u64, now: Instant) -> Next {
        let Some(mut client) = self.clients.remove(&token) else { return Next::Closed };
        let to_write = match self.advance(&mut client, now) {
            Ok(Step::Waits { to_write }) => to_write,
            Ok(Step::Over) | Err(_) => return Next::Closed,
            Ok(Step::Later(edge, job)) => {
                self.threads += 1;
                return Next::Later(client.socket, edge, job);
            }
            Ok(Step::Stop) => return Next::Stop(client.socket),
        };
        self.clients.insert(token, client);
        Next::Wait { to_write }
    }

    /// As far as it goes without waiting.
    fn advance(&mut self, client: &mut Client, now: Instant) -> Result<Step, Failure> {
        if matches!(client.state, State::Unknown) {
            let Some(preamble) =
                client.incoming.preamble(&client.socket).or_else(|failure| self.strange(client, failure))?
            else {
                return Ok(Step::Waits { to_write: false });
            };
            match preamble.check_asker(&SERVED) {
                Ok(edge) => client.state = State::Asking(edge),
                Err(mismatch) => {
                    // Then both can say which versions met.
                    if matches!(mismatch, Mismatch::Version { .. }) {
                        let own = Preamble { edge: preamble.edge, ..Preamble::of(Edge::ProgramOwner) };
                        let _ = Outgoing::preamble(own).send(&client.socket, None);
                    }
                    self.strange(client, mismatch.into())?;
                }
            }
        }
        if let State::Asking(edge) = client.state {
            let is_believed = client.peer.is_own_user_or_root();
            let question = match edge {
                // Not even listened to.
                _ if !is_believed => Ok(Some(refuse(edge, "the session belongs to another user"))),
                Edge::ProgramOwner => {
                    let asked = client.incoming.message(&client.socket);
                    asked.map(|question| question.map(|question| self.answer_program(client, question, now)))
                }
                _ => {
                    let asked = client.incoming.message(&client.socket);
                    asked.map(|question| question.map(|question| self.answer_tool(question, now)))
                }
            };
            let planned = match question {
                Ok(None) => return Ok(Step::Waits { to_write: false }),
                Ok(Some(planned)) => planned,
                Err(Failure::Malformed(malformed)) if edge == Edge::ProgramOwner => {
                    self.refuse_program(&program_of(&client.peer), &malformed.to_string())
                }
                Err(Failure::Malformed(malformed)) => refuse(edge, &malformed.to_string()),
                Err(failure) => return Err(failure),
            };
            let (answer, with_memory) = match planned {
                Planned::Now(answer) => (answer, false),
                Planned::Memory(answer) => (answer, true),
                Planned::Later(job) => return Ok(Step::Later(edge, job)),
                Planned::Stop => return Ok(Step::Stop),
            };
            client.state = State::Answering { outgoing: answer.outgoing(), with_memory };
        }
        let State::Answering { outgoing, with_memory } = &mut client.state else { return Ok(Step::Over) };
        let memory = Some(self.service.memory()).filter(|_| *with_memory);
        Ok(if outgoing.send(&client.socket, memory)? { Step::Over } else { Step::Waits { to_write: true } })
    }

    /// Who speaks another version, or no version at all. A program of this user is told of at the session's end.
    fn strange<T>(&self, client: &Client, failure: Failure) -> Result<T, Failure> {
        if let Failure::Mismatch(mismatch) = failure {
            let is_tool = matches!(mismatch, Mismatch::Version { edge: Some(Edge::ToolOwner), .. } | Mismatch::Edge);
            if !is_tool && client.peer.is_own_user_or_root() {
                add(&self.service.counts().programs_refused);
                self.service.refuse(&program_of(&client.peer), &mismatch.to_string());
            }
        }
        Err(failure)
    }

    fn answer_program(&mut self, client: &Client, question: ProgramToOwner, now: Instant) -> Planned {
        match question {
            ProgramToOwner::Hello { vpid, image, program, command_line } => {
                let joined = self.join(client, vpid, image, &program, &command_line);
                joined.unwrap_or_else(|reason| self.refuse_program(&program, &reason))
            }
            ProgramToOwner::Snapshot { request } => self.snapshot(Edge::ProgramOwner, request, now),
        }
    }

    fn answer_tool(&mut self, question: ToolToOwner, now: Instant) -> Planned {
        match question {
            ToolToOwner::Stop { .. } if !self.may_be_stopped => refuse(Edge::ToolOwner, ENDS_WITH_COMMAND),
            ToolToOwner::Stop { pid } if !self.processes.has(pid) => {
                refuse(Edge::ToolOwner, &format!("process {pid} is not in this session, which goes on"))
            }
            ToolToOwner::Stop { .. } => Planned::Stop,
            ToolToOwner::Snapshot { request } => self.snapshot(Edge::ToolOwner, request, now),
            ToolToOwner::Budget { bytes } => {
                let service = Arc::clone(&self.service);
                self.later(Edge::ToolOwner, THREAD_COUNT_MAX, move || {
                    Answer::Tool(match service.budget(bytes) {
                        Ok(state) => OwnerToTool::BudgetIs { state },
                        Err(error) => OwnerToTool::Error { text: error.into() },
                    })
                })
            }
            ToolToOwner::Status => {
                let (service, mut status) = (Arc::clone(&self.service), self.status());
                self.later(Edge::ToolOwner, THREAD_COUNT_MAX + THREAD_COUNT_FOR_STATUS, move || {
                    status.descriptors = limits::descriptors();
                    service.describe(&mut status);
                    Answer::Tool(OwnerToTool::StatusIs { status })
                })
            }
        }
    }

    fn join(
        &self,
        client: &Client,
        vpid: u32,
        image: u64,
        program: &str,
        command_line: &str,
    ) -> Result<Planned, String> {
        let pid = peer::process_id(&client.peer);
        let max = self.processes_max;
        if self.processes.count() >= max && pid.is_none_or(|pid| !self.processes.has(pid)) {
            return Err(format!(
                "there are {max} processes in the session already, as many as its owner's limit of open files allows; raise `ulimit -Hn`"
            ));
        }
        let pidfd = (self.find_pidfd)(&client.socket, &client.peer).map_err(not_watched)?.ok_or(
            "the program is in a PID namespace that the session's owner cannot see; run dormouse in that namespace or in one above it",
        )?;
        // Where the kernel does not tell, the program's file is named after it.
        let name = pid.and_then(process_name);
        let name = name.as_deref().unwrap_or_else(|| program.rsplit('/').next().unwrap_or_default());
        let joining = Joining { pid: pid.unwrap_or(0), vpid, image, name, program, command_line };
        let process = self.service.enter(&joining, pidfd)?;
        Ok(Planned::Memory(Answer::Program(OwnerToProgram::Welcome { process })))
    }

    fn snapshot(&mut self, edge: Edge, request: SnapshotRequest, now: Instant) -> Planned {
        let SnapshotRequest { dir, last_ns, bytes_max, trigger } = request;
        let wanted = Take {
            dir: Some(PathBuf::from(dir)).filter(|dir| !dir.as_os_str().is_empty()),
            last: Some(Duration::from_nanos(last_ns)).filter(|last| !last.is_zero()),
            bytes_max: Some(bytes_max).filter(|bytes| *bytes != 0),
            trigger,
        };
        if wanted.dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            return refuse(edge, "a snapshot's directory has to be an absolute path");
        }
        // Whoever asks for one, by `dormouse snapshot` or in a program's code, looks at what they get; what is triggered has to be bounded.
        let is_by_program = !["command", "program"].contains(&wanted.trigger.as_str());
        if is_by_program && self.threads < THREAD_COUNT_MAX {
            if !self.allowance.take(now) {
                add(&self.service.counts().snapshots_refused);
                return refuse(edge, "programs have asked for too many snapshots; `dormouse snapshot` takes one");
            }
            add(&self.service.counts().snapshots_triggered);
        }
        let service = Arc::clone(&self.service);
        let planned = self.later(edge, THREAD_COUNT_MAX, move || {
            let taken = service.snapshot(&wanted);
            if taken.is_ok() {
                add(&service.counts().snapshots_taken);
            }
            match (taken, edge) {
                (Ok(snapshot), Edge::ProgramOwner) => Answer::Program(OwnerToProgram::Snapshotted { snapshot }),
                (Ok(snapshot), _) => Answer::Tool(OwnerToTool::Snapshotted { snapshot }),
                (Err(error), edge) => Answer::refusal(edge, error.into()),
            }
        });
        if matches!(planned, Planned::Now(_)) {
            add(&self.service.counts().snapshots_refused);
        }
        planned
    }

    /// Programs that join must not wait for a disk, or for memory.
    fn later(&mut self, edge: Edge, threads_max: usize, job: impl FnOnce() -> Answer + Send + 'static) -> Planned {
        if self.threads >= threads_max {
            return refuse(edge, &format!("the session's owner is at work on {} answers; try again", self.threads));
        }
        Planned::Later(Box::new(job))
    }

    /// None of a program's classes is recorded.
    fn refuse_program(&self, program: &str, reason: &str) -> Planned {
        add(&self.service.counts().programs_refused);
        self.service.refuse(program, reason);
        refuse(Edge::ProgramOwner, reason)
    }

    fn status(&self) -> Status {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Status {
            owner: std::process::id(),
            descriptors_max: limits::descriptors_max(),
            processes: self.processes.count(),
            processes_max: self.processes_max,
            processes_joined: self.processes.joined(),
            programs_refused: count(&self.service.counts().programs_refused),
            clients: self.clients.len() as u32 + 1,
            clients_max: CLIENT_COUNT_MAX as u32,
            clients_dropped: count(&self.service.counts().clients_dropped),
            snapshots_taken: count(&self.service.counts().snapshots_taken),
            snapshots_refused: count(&self.service.counts().snapshots_refused),
            ..Status::default()
        }
    }
}

/// What a question comes to.
enum Planned {
    Now(Answer),
    /// With the session's memory.
    Memory(Answer),
    Later(Job),
    Stop,
}

/// How far a turn got.
enum Step {
    Waits { to_write: bool },
    Over,
    Later(Edge, Job),
    Stop,
}

fn refuse(edge: Edge, text: &str) -> Planned {
    Planned::Now(Answer::refusal(edge, text.into()))
}

/// The program of a peer that has not said which it is.
fn program_of(peer: &Peer) -> String {
    let exe = peer::process_id(peer).and_then(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).ok());
    exe.unwrap_or_default().to_string_lossy().into_owned()
}

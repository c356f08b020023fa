//! Answers of a session's owner: which clients may ask, what they may ask, and how often, whatever else they do.
//!
//! This module contains neither a listening socket nor a clock: the caller passes connections, with the peer of each,
//! and the time. So a test can hold any number of conversations, at any time, with clients that send anything.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse_abi::message::{
    BudgetState, Edge, Message, Mismatch, OwnerToProgram, OwnerToTool, Preamble, ProgramToOwner, RulesState, Snapshot,
    SnapshotRequest, Status, ToolToOwner,
};
use dormouse_transport::{Conversation, Deadline, Error as Failure, Incoming, Outgoing, Peer};

use crate::allowance::Allowance;
use crate::limits;
use crate::peer;
use crate::process::process_name;
use crate::processes::Processes;

/// Options of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Take {
    /// Absolute path of the new trace's directory, which must be empty or not exist. `None`: a numbered directory
    /// beside the session's.
    pub dir: Option<PathBuf>,
    /// Events older than this are left out. `None`: none are.
    pub last: Option<Duration>,
    /// Maximum number of bytes: only the newest pages up to this size are taken. `None`: all.
    pub bytes_max: Option<u64>,
    /// Origin of the request, for the trace: `command`, `program`, or a signal's name.
    pub trigger: String,
}

/// Reason why a tool cannot end a command's session.
pub const ENDS_WITH_COMMAND: &str = "the session ends with its command";

/// Maximum duration of a client's whole conversation.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Maximum number of clients served at once. A further client replaces the one whose conversation began first.
pub(crate) const CLIENT_COUNT_MAX: usize = 64;

/// Maximum number of slow answers at once; each has a thread. More than the snapshots that events may ask for at once.
pub(crate) const THREAD_COUNT_MAX: usize = 64;

/// Threads reserved for requests of the status and the rules.
const THREAD_COUNT_FOR_STATUS: usize = 2;

/// Edges on which an owner is asked.
const SERVED: [Edge; 2] = [Edge::ProgramOwner, Edge::ToolOwner];

/// Description of a process, by the process itself, as it joins.
#[derive(Debug)]
pub struct Joining<'a> {
    /// Its id as the owner sees it; 0 if it is in a PID namespace that the owner cannot see.
    pub pid: u32,
    /// Its id as the process itself sees it.
    pub vpid: u32,
    /// Identifies its program: see [`dormouse_abi::register::Process::image`].
    pub image: u64,
    /// Its name.
    pub name: &'a str,
    /// Path of its executable.
    pub program: &'a str,
    /// Its command line.
    pub command_line: &'a str,
}

/// The session that a server serves. The server's threads call it, several at a time.
pub trait Service: Send + Sync + 'static {
    /// Returns the counts of the session's servers, this one and its predecessors.
    fn counts(&self) -> &Counts;
    /// Returns the session's memory, as programs map it.
    fn memory(&self) -> BorrowedFd<'_>;
    /// Enters a process in the session's register and takes it in. Returns its number there.
    ///
    /// # Errors
    /// One line with the reason why it cannot join.
    fn enter(&self, joining: &Joining<'_>, pidfd: OwnedFd) -> Result<u16, String>;
    /// Notes that none of a program's classes is recorded.
    fn refuse(&self, program: &str, reason: &str);
    /// Removes ended processes: `ended` takes them off the list and returns their numbers, which are free now. What
    /// they held is returned before a process that is not on the list can be taken in.
    fn leave(&self, ended: &dyn Fn() -> Vec<u16>);
    /// Takes a snapshot. May wait for a disk.
    ///
    /// # Errors
    /// One line with the reason.
    fn snapshot(&self, wanted: &Take) -> Result<Snapshot, String>;
    /// Sets the budget, unless `bytes` is 0, and returns the budget's state. May wait for memory.
    ///
    /// # Errors
    /// One line with the reason.
    fn budget(&self, bytes: u64) -> Result<BudgetState, String>;
    /// Replaces the session's rules, if new ones are given, and returns the rules and which processes follow them. May
    /// wait for a disk.
    ///
    /// # Errors
    /// One line with the reason; the rules are unchanged.
    fn rules(&self, new: Option<&[String]>) -> Result<RulesState, String>;
    /// Fills in the parts of a status that the server does not know: classes, disk. May wait for a disk.
    fn describe(&self, status: &mut Status);
}

/// Counts of a session's servers. All are zero at first.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Counts {
    /// Programs that asked to join and were refused.
    pub programs_refused: AtomicU64,
    /// Conversations that were ended because they were slow.
    pub clients_dropped: AtomicU64,
    /// Snapshots that were written.
    pub snapshots_taken: AtomicU64,
    /// Snapshots that events have asked for, a part of `snapshots_taken`.
    pub snapshots_triggered: AtomicU64,
    /// Snapshots that were refused because there were too many.
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
    /// Returns an error message for a client on this edge.
    pub(crate) fn refusal(edge: Edge, text: String) -> Answer {
        match edge {
            Edge::ProgramOwner => Answer::Program(OwnerToProgram::Error { text }),
            _ => Answer::Tool(OwnerToTool::Error { text }),
        }
    }

    /// Returns the answer as it is sent, after the preamble. If it is too long for a frame, the reason replaces it.
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

    /// Sends it over a socket that the event loop does not wait for any more. Ignores errors: the client may be gone,
    /// or may not read.
    pub(crate) fn tell(&self, socket: OwnedFd) {
        let deadline = Deadline::after(PATIENCE);
        let _ = match self {
            Answer::Program(message) => Conversation::begin(socket, Edge::ProgramOwner, deadline).send(message),
            Answer::Tool(message) => Conversation::begin(socket, Edge::ToolOwner, deadline).send(message),
        };
    }
}

/// Makes an answer that takes time.
pub(crate) type Job = Box<dyn FnOnce() -> Answer + Send>;

/// Work for the event loop after a client's turn.
pub(crate) enum Next {
    /// Wait until there is something to read, or room to write.
    Wait { to_write: bool },
    /// Its conversation is over.
    Closed,
    /// Another thread must make and send the answer.
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
    state: ConversationState,
}

enum ConversationState {
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

/// Function that finds a pidfd of the process at the other end of a connection; tests use another one.
pub(crate) type FindPidfd = fn(&OwnedFd, &Peer) -> std::io::Result<Option<OwnedFd>>;

/// All conversations.
pub(crate) struct Server<S> {
    service: Arc<S>,
    processes: Arc<Processes>,
    /// Whether tools may end the session.
    may_be_stopped: bool,
    processes_max: u32,
    /// Allowance for snapshots that programs ask for.
    allowance: Allowance,
    /// Clients in the order of their deadlines.
    clients: BTreeMap<u64, Client>,
    last_token: u64,
    /// Number of answers under way.
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
        // Snapshots that an earlier server has granted count against the allowance.
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

    /// Returns the next client's deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.clients.first_key_value().map(|(_, client)| client.deadline)
    }

    /// Takes a client in; its turn comes when there is something to read. Returns its token.
    pub(crate) fn accept(&mut self, socket: OwnedFd, peer: Peer, now: Instant) -> u64 {
        if self.clients.len() >= CLIENT_COUNT_MAX {
            self.drop_slowest();
        }
        self.last_token += 1;
        let (deadline, incoming, state) = (now + PATIENCE, Incoming::new(), ConversationState::Unknown);
        self.clients.insert(self.last_token, Client { socket, peer, deadline, incoming, state });
        self.last_token
    }

    /// Drops the client whose conversation began first. A client that is still asking then is slow or hostile, and so
    /// is one that does not read its answer.
    fn drop_slowest(&mut self) {
        if self.clients.pop_first().is_some() {
            add(&self.service.counts().clients_dropped);
        }
    }

    /// Ends conversations whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.drop_slowest();
        }
    }

    /// Gives a client its turn.
    pub(crate) fn turn(&mut self, token: u64, now: Instant) -> Next {
        let Some(mut client) = self.clients.remove(&token) else { return Next::Closed };
        let to_write = match self.advance(&mut client, now) {
            Ok(Progress::Waits { to_write }) => to_write,
            Ok(Progress::Over) | Err(_) => return Next::Closed,
            Ok(Progress::Later(edge, job)) => {
                self.threads += 1;
                return Next::Later(client.socket, edge, job);
            }
            Ok(Progress::Stop) => return Next::Stop(client.socket),
        };
        self.clients.insert(token, client);
        Next::Wait { to_write }
    }

    /// Advances the conversation as far as possible without waiting.
    fn advance(&mut self, client: &mut Client, now: Instant) -> Result<Progress, Failure> {
        if matches!(client.state, ConversationState::Unknown) {
            let Some(preamble) =
                client.incoming.preamble(&client.socket).or_else(|failure| self.strange(client, failure))?
            else {
                return Ok(Progress::Waits { to_write: false });
            };
            match preamble.check_asker(&SERVED) {
                Ok(edge) => client.state = ConversationState::Asking(edge),
                Err(mismatch) => {
                    // The own version is sent, so that both sides can name the two versions.
                    if matches!(mismatch, Mismatch::Version { .. }) {
                        let own = Preamble { edge: preamble.edge, ..Preamble::of(Edge::ProgramOwner) };
                        let _ = Outgoing::preamble(own).send(&client.socket, None);
                    }
                    self.strange(client, mismatch.into())?;
                }
            }
        }
        if let ConversationState::Asking(edge) = client.state {
            let is_believed = client.peer.is_own_user_or_root();
            let question = match edge {
                // Its question is not even read.
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
            let reply = match question {
                Ok(None) => return Ok(Progress::Waits { to_write: false }),
                Ok(Some(reply)) => reply,
                Err(Failure::Malformed(malformed)) if edge == Edge::ProgramOwner => {
                    self.refuse_program(&program_of(&client.peer), &malformed.to_string())
                }
                Err(Failure::Malformed(malformed)) => refuse(edge, &malformed.to_string()),
                Err(failure) => return Err(failure),
            };
            let (answer, with_memory) = match reply {
                Reply::Now(answer) => (answer, false),
                Reply::WithMemory(answer) => (answer, true),
                Reply::Later(job) => return Ok(Progress::Later(edge, job)),
                Reply::Stop => return Ok(Progress::Stop),
            };
            client.state = ConversationState::Answering { outgoing: answer.outgoing(), with_memory };
        }
        let ConversationState::Answering { outgoing, with_memory } = &mut client.state else {
            return Ok(Progress::Over);
        };
        let memory = Some(self.service.memory()).filter(|_| *with_memory);
        Ok(if outgoing.send(&client.socket, memory)? { Progress::Over } else { Progress::Waits { to_write: true } })
    }

    /// Handles a client that speaks another version of the protocol, or another protocol. If it may be a program of
    /// this user or root, it is reported at the session's end.
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

    fn answer_program(&mut self, client: &Client, question: ProgramToOwner, now: Instant) -> Reply {
        match question {
            ProgramToOwner::Hello { vpid, image, program, command_line } => {
                let joined = self.join(client, vpid, image, &program, &command_line);
                joined.unwrap_or_else(|reason| self.refuse_program(&program, &reason))
            }
            ProgramToOwner::Snapshot { request } => self.snapshot(Edge::ProgramOwner, request, now),
        }
    }

    fn answer_tool(&mut self, question: ToolToOwner, now: Instant) -> Reply {
        match question {
            ToolToOwner::Stop { .. } if !self.may_be_stopped => refuse(Edge::ToolOwner, ENDS_WITH_COMMAND),
            ToolToOwner::Stop { pid } if !self.processes.has(pid) => {
                refuse(Edge::ToolOwner, &format!("process {pid} is not in this session, which goes on"))
            }
            ToolToOwner::Stop { .. } => Reply::Stop,
            ToolToOwner::Snapshot { request } => self.snapshot(Edge::ToolOwner, request, now),
            ToolToOwner::Budget { bytes } => {
                let service = Arc::clone(&self.service);
                self.later(Edge::ToolOwner, THREAD_COUNT_MAX, move || {
                    Answer::Tool(match service.budget(bytes) {
                        Ok(state) => OwnerToTool::BudgetIs { state },
                        Err(text) => OwnerToTool::Error { text },
                    })
                })
            }
            ToolToOwner::Rules => self.rules(None),
            ToolToOwner::SetRules { rules } => self.rules(Some(rules)),
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

    fn join(&self, client: &Client, vpid: u32, image: u64, program: &str, command_line: &str) -> Result<Reply, String> {
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
        // If the kernel does not tell its name, the program's file name is used.
        let name = pid.and_then(process_name);
        let name = name.as_deref().unwrap_or_else(|| program.rsplit('/').next().unwrap_or_default());
        let joining = Joining { pid: pid.unwrap_or(0), vpid, image, name, program, command_line };
        let process = self.service.enter(&joining, pidfd)?;
        Ok(Reply::WithMemory(Answer::Program(OwnerToProgram::Welcome { process })))
    }

    fn snapshot(&mut self, edge: Edge, request: SnapshotRequest, now: Instant) -> Reply {
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
        // A user or a program's code that asks for a snapshot (`command`, `program`) looks at the result; triggered
        // ones must be limited.
        let is_by_program = !["command", "program"].contains(&wanted.trigger.as_str());
        if is_by_program && self.threads < THREAD_COUNT_MAX {
            if !self.allowance.take(now) {
                add(&self.service.counts().snapshots_refused);
                return refuse(edge, "programs have asked for too many snapshots; `dormouse snapshot` takes one");
            }
            add(&self.service.counts().snapshots_triggered);
        }
        let service = Arc::clone(&self.service);
        let reply = self.later(edge, THREAD_COUNT_MAX, move || {
            let taken = service.snapshot(&wanted);
            if taken.is_ok() {
                add(&service.counts().snapshots_taken);
            }
            match (taken, edge) {
                (Ok(snapshot), Edge::ProgramOwner) => Answer::Program(OwnerToProgram::Snapshotted { snapshot }),
                (Ok(snapshot), _) => Answer::Tool(OwnerToTool::Snapshotted { snapshot }),
                (Err(text), edge) => Answer::refusal(edge, text),
            }
        });
        if matches!(reply, Reply::Now(_)) {
            add(&self.service.counts().snapshots_refused);
        }
        reply
    }

    fn rules(&mut self, new: Option<Vec<String>>) -> Reply {
        let service = Arc::clone(&self.service);
        // Rules are a part of what a user calls the status.
        let threads_max = if new.is_none() { THREAD_COUNT_MAX + THREAD_COUNT_FOR_STATUS } else { THREAD_COUNT_MAX };
        self.later(Edge::ToolOwner, threads_max, move || {
            Answer::Tool(match service.rules(new.as_deref()) {
                Ok(state) => OwnerToTool::RulesAre { state },
                Err(text) => OwnerToTool::Error { text },
            })
        })
    }

    /// Leaves an answer to a thread: programs that join must not wait for a disk or for memory.
    fn later(&mut self, edge: Edge, threads_max: usize, job: impl FnOnce() -> Answer + Send + 'static) -> Reply {
        if self.threads >= threads_max {
            return refuse(edge, &format!("the session's owner is at work on {} answers; try again", self.threads));
        }
        Reply::Later(Box::new(job))
    }

    /// Notes that none of a program's classes is recorded, and returns the refusal.
    fn refuse_program(&self, program: &str, reason: &str) -> Reply {
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

/// How a question will be answered.
enum Reply {
    Now(Answer),
    /// With the session's memory.
    WithMemory(Answer),
    Later(Job),
    Stop,
}

/// How far a client's turn got.
enum Progress {
    Waits { to_write: bool },
    Over,
    Later(Edge, Job),
    Stop,
}

fn refuse(edge: Edge, text: &str) -> Reply {
    Reply::Now(Answer::refusal(edge, text.into()))
}

/// Returns the program of a peer that has not named it.
fn program_of(peer: &Peer) -> String {
    let exe = peer::process_id(peer).and_then(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).ok());
    exe.unwrap_or_default().to_string_lossy().into_owned()
}

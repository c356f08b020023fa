//! What a session's owner answers, whatever its clients do: who may ask, what, and how much of it.
//!
//! Neither a socket nor a clock is in here: connections are a [`Connection`], and the time is given. So a test can hold any number of
//! conversations, at any time, with clients that send anything.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse_abi::wire::{self, Announcement, BudgetState, Grant, Malformed, Message, Snapshot, Status};

use crate::allowance::Allowance;
use crate::client::Take;
use crate::error::Error;
use crate::frame::{Connection, Incoming};
use crate::limits;
use crate::peer::Peer;
use crate::process::Stat;
use crate::processes::Processes;

/// How long a client may take over all of its conversation.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Clients that are served at once. A client beyond them takes the place of the one that has taken longest over its question.
pub(crate) const CLIENT_COUNT_MAX: usize = 64;

/// Answers that take their time, at once: each has a thread. More than the snapshots that events may ask for at once.
pub(crate) const THREAD_COUNT_MAX: usize = 64;

/// Threads that are kept for those who ask for the status.
const THREAD_COUNT_FOR_STATUS: usize = 2;

const OTHER_VERSION: &str = "the program and dormouse are of different versions; rebuild the older one";

/// What a process says of itself as it joins.
#[derive(Debug)]
pub struct Joining<'a> {
    /// The session's number for it.
    pub number: u16,
    /// Its id here; 0 if it is in a PID namespace that cannot be seen from here.
    pub pid: u32,
    /// Its id as it sees it itself.
    pub vpid: u32,
    /// What it calls itself.
    pub name: &'a str,
    /// Path of its executable.
    pub program: &'a str,
    /// Its command line.
    pub command_line: &'a str,
}

/// The session that a server serves. Its calls come from the server's threads, several at a time.
pub trait Service: Send + Sync + 'static {
    /// The session's memory, as programs map it.
    fn memory(&self) -> BorrowedFd<'_>;
    /// A process joins.
    fn join(&self, joining: &Joining<'_>);
    /// Ids for classes of a program, in their order. `wanted` says of a name whether the class is to be armed.
    fn grants(&self, classes: &[Announcement], program: &str) -> Vec<Grant>;
    /// None of a program's classes is recorded.
    fn refuse(&self, program: &str, reason: &str);
    /// A number is nobody's any more: what its process held comes back.
    fn leave(&self, number: u16);
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

/// What a server counts.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) programs_refused: AtomicU64,
    pub(crate) clients_dropped: AtomicU64,
    pub(crate) snapshots_taken: AtomicU64,
    pub(crate) snapshots_refused: AtomicU64,
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// An answer that takes its time.
pub(crate) type Job = Box<dyn FnOnce() -> Message + Send>;

/// What is to be done with a client that had its turn.
pub(crate) enum Next<C> {
    /// It is waited for: until there is something to read, or room to write.
    Wait { to_write: bool },
    /// Its conversation is over.
    Closed,
    /// Somebody else is to answer it.
    Later(C, Job),
    /// It waits for the session's end.
    Stop(C),
}

/// One conversation.
struct Client<C> {
    connection: C,
    peer: Peer,
    deadline: Instant,
    state: State,
}

enum State {
    Asking(Incoming),
    Answering { bytes: Vec<u8>, sent: usize, with_memory: bool },
}

/// A connection of which the kernel tells who is at its other end.
pub(crate) trait Accepted: Connection {
    /// A pidfd of that process; `None` if it cannot be seen.
    fn pidfd(&self, peer: &Peer) -> std::io::Result<Option<OwnedFd>>;
}

/// All conversations.
pub(crate) struct Server<H, C> {
    service: Arc<H>,
    processes: Arc<Processes>,
    pub(crate) counts: Arc<Counts>,
    /// Whether tools may end the session.
    may_be_stopped: bool,
    processes_max: u32,
    /// Of snapshots that programs ask for.
    allowance: Allowance,
    /// In the order of their deadlines.
    clients: BTreeMap<u64, Client<C>>,
    last_token: u64,
    /// Answers under way.
    pub(crate) threads: usize,
}

impl<H: Service, C: Accepted> Server<H, C> {
    pub(crate) fn new(
        service: Arc<H>,
        processes: Arc<Processes>,
        may_be_stopped: bool,
        processes_max: u32,
        now: Instant,
    ) -> Server<H, C> {
        Server {
            service,
            processes,
            counts: Arc::default(),
            may_be_stopped,
            processes_max,
            allowance: Allowance::new(now),
            clients: BTreeMap::new(),
            last_token: 0,
            threads: 0,
        }
    }

    pub(crate) fn service(&self) -> Arc<H> {
        Arc::clone(&self.service)
    }

    pub(crate) fn processes(&self) -> Arc<Processes> {
        Arc::clone(&self.processes)
    }

    pub(crate) fn client_count(&self) -> usize {
        self.clients.len()
    }

    pub(crate) fn connection(&self, token: u64) -> Option<&C> {
        self.clients.get(&token).map(|client| &client.connection)
    }

    /// The time until which the next client has to be done.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.clients.first_key_value().map(|(_, client)| client.deadline)
    }

    /// Takes a client in, whose turn is when there is something to read. Its token.
    pub(crate) fn accept(&mut self, connection: C, peer: Peer, now: Instant) -> u64 {
        if self.clients.len() >= CLIENT_COUNT_MAX {
            self.drop_slowest();
        }
        self.last_token += 1;
        let state = State::Asking(Incoming::default());
        self.clients.insert(self.last_token, Client { connection, peer, deadline: now + PATIENCE, state });
        self.last_token
    }

    /// One that has had all the time that it takes to ask is slow, or has other intentions; one that does not take its answer likewise.
    fn drop_slowest(&mut self) {
        if self.clients.pop_first().is_some() {
            add(&self.counts.clients_dropped);
        }
    }

    /// Ends conversations whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.drop_slowest();
        }
    }

    /// A client's turn.
    pub(crate) fn turn(&mut self, token: u64, now: Instant) -> Next<C> {
        let Some(client) = self.clients.get_mut(&token) else { return Next::Closed };
        let next = match &mut client.state {
            State::Asking(incoming) => match hear(incoming, &mut client.connection) {
                Ok(None) => return Next::Wait { to_write: false },
                Ok(Some(question)) => return self.question(token, question, now),
                Err(_) => Next::Closed,
            },
            State::Answering { .. } => client.tell(self.service.memory()),
        };
        if matches!(next, Next::Closed) {
            self.clients.remove(&token);
        }
        next
    }

    fn question(&mut self, token: u64, question: Result<Message, Malformed>, now: Instant) -> Next<C> {
        let Some(mut client) = self.clients.remove(&token) else { return Next::Closed };
        let (answer, with_memory) = match self.answer(&client, question, now) {
            Answer::Now(answer) => (answer, false),
            Answer::Memory(answer) => (answer, true),
            Answer::Later(job) => {
                self.threads += 1;
                return Next::Later(client.connection, job);
            }
            Answer::Stop => return Next::Stop(client.connection),
        };
        client.state = State::Answering { bytes: answer.encode(), sent: 0, with_memory };
        let next = client.tell(self.service.memory());
        if matches!(next, Next::Wait { .. }) {
            self.clients.insert(token, client);
        }
        next
    }

    fn answer(&mut self, client: &Client<C>, question: Result<Message, Malformed>, now: Instant) -> Answer {
        let peer = client.peer;
        if peer.uid != 0 && peer.uid != rustix::process::geteuid().as_raw() {
            return refuse("the session belongs to another user");
        }
        match question {
            Err(Malformed) => {
                let exe = peer.pid.map(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default());
                self.refuse_program(&exe.unwrap_or_default().to_string_lossy(), OTHER_VERSION)
            }
            Ok(Message::Hello { version, program, .. }) if version != wire::VERSION => {
                self.refuse_program(&program, OTHER_VERSION)
            }
            Ok(Message::Hello { vpid, program, command_line, classes, .. }) => {
                self.join(client, vpid, &program, &command_line, &classes)
            }
            Ok(Message::MoreClasses { process, classes }) => {
                let grants = self.service.grants(&classes, &self.processes.program(process));
                Answer::Now(Message::Welcome { process, grants })
            }
            Ok(Message::Stop { .. }) if !self.may_be_stopped => refuse("the session ends with its command"),
            Ok(Message::Stop { pid }) if !self.processes.has(pid) => {
                refuse(&format!("process {pid} is not in this session, which goes on"))
            }
            Ok(Message::Stop { .. }) => Answer::Stop,
            Ok(Message::Snapshot { dir, last_ns, bytes_max, trigger }) => {
                let wanted = Take {
                    dir: Some(PathBuf::from(dir)).filter(|dir| !dir.as_os_str().is_empty()),
                    last: Some(Duration::from_nanos(last_ns)).filter(|last| !last.is_zero()),
                    bytes_max: Some(bytes_max).filter(|bytes| *bytes != 0),
                    trigger,
                };
                self.snapshot(wanted, now)
            }
            Ok(Message::Budget { bytes }) => {
                let service = Arc::clone(&self.service);
                self.later(THREAD_COUNT_MAX, move || match service.budget(bytes) {
                    Ok(state) => Message::BudgetIs { state },
                    Err(error) => Message::Error { text: error.into() },
                })
            }
            Ok(Message::Status) => {
                let (service, mut status) = (Arc::clone(&self.service), self.status());
                self.later(THREAD_COUNT_MAX + THREAD_COUNT_FOR_STATUS, move || {
                    status.descriptors = limits::descriptors();
                    service.describe(&mut status);
                    Message::StatusIs { status }
                })
            }
            Ok(_) => refuse("a session owner does not answer this"),
        }
    }

    fn join(
        &mut self,
        client: &Client<C>,
        vpid: u32,
        program: &str,
        command_line: &str,
        classes: &[Announcement],
    ) -> Answer {
        let peer = client.peer;
        let stat = peer.pid.and_then(Stat::of);
        let pidfd = || client.connection.pidfd(&peer);
        let added = match self.processes.add(peer.pid, program, stat.as_ref(), self.processes_max, pidfd) {
            Ok(added) => added,
            Err(reason) => return self.refuse_program(program, &reason),
        };
        added.former.iter().for_each(|number| self.service.leave(*number));
        // Where the kernel does not tell, the program's file is named after it.
        let name = stat.map_or_else(|| program.rsplit('/').next().unwrap_or_default().into(), |stat| stat.name);
        let (number, pid) = (added.number, peer.pid.unwrap_or(0));
        self.service.join(&Joining { number, pid, vpid, name: &name, program, command_line });
        Answer::Memory(Message::Welcome { process: number, grants: self.service.grants(classes, program) })
    }

    fn snapshot(&mut self, wanted: Take, now: Instant) -> Answer {
        if wanted.dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
            return refuse("a snapshot's directory has to be an absolute path");
        }
        let is_by_event = ["event:", "duration:"].iter().any(|kind| wanted.trigger.starts_with(kind));
        if is_by_event && self.threads < THREAD_COUNT_MAX && !self.allowance.take(now) {
            add(&self.counts.snapshots_refused);
            return refuse("events have asked for too many snapshots; `dormouse snapshot` takes one");
        }
        let (service, counts) = (Arc::clone(&self.service), Arc::clone(&self.counts));
        let answer = self.later(THREAD_COUNT_MAX, move || match service.snapshot(&wanted) {
            Ok(snapshot) => {
                add(&counts.snapshots_taken);
                Message::Snapshotted { snapshot }
            }
            Err(error) => Message::Error { text: error.into() },
        });
        if matches!(answer, Answer::Now(_)) {
            add(&self.counts.snapshots_refused);
        }
        answer
    }

    /// Programs that join must not wait for a disk, or for memory.
    fn later(&mut self, threads_max: usize, job: impl FnOnce() -> Message + Send + 'static) -> Answer {
        if self.threads >= threads_max {
            return refuse(&format!("its owner is at work on {} answers; try again", self.threads));
        }
        Answer::Later(Box::new(job))
    }

    /// None of a program's classes is recorded.
    pub(crate) fn refuse_program(&self, program: &str, reason: &str) -> Answer {
        add(&self.counts.programs_refused);
        self.service.refuse(program, reason);
        refuse(reason)
    }

    fn status(&self) -> Status {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Status {
            owner: std::process::id(),
            descriptors_max: limits::descriptors_max(),
            processes: self.processes.count(),
            processes_max: self.processes_max,
            processes_joined: self.processes.joined(),
            programs_refused: count(&self.counts.programs_refused),
            clients: self.clients.len() as u32 + 1,
            clients_max: CLIENT_COUNT_MAX as u32,
            clients_dropped: count(&self.counts.clients_dropped),
            snapshots_taken: count(&self.counts.snapshots_taken),
            snapshots_refused: count(&self.counts.snapshots_refused),
            ..Status::default()
        }
    }
}

pub(crate) enum Answer {
    Now(Message),
    /// With the session's memory.
    Memory(Message),
    Later(Job),
    Stop,
}

fn refuse(text: &str) -> Answer {
    Answer::Now(Message::Error { text: text.into() })
}

/// Pieces of a client that are taken in one turn, so that others have theirs.
const PIECE_COUNT_MAX: usize = 16;

/// Takes in what has come of a question.
fn hear(
    incoming: &mut Incoming,
    connection: &mut impl Connection,
) -> std::io::Result<Option<Result<Message, Malformed>>> {
    for _ in 0..PIECE_COUNT_MAX {
        match incoming.receive(connection) {
            Ok(None) => {}
            Err(error) if is_for_later(&error) => return Ok(None),
            result => return result,
        }
    }
    Ok(None)
}

fn is_for_later(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted)
}

impl<C: Connection> Client<C> {
    /// Sends what there is room for.
    fn tell(&mut self, memory: BorrowedFd<'_>) -> Next<C> {
        let State::Answering { bytes, sent, with_memory } = &mut self.state else { return Next::Closed };
        while let Some(rest) = bytes.get(*sent..).filter(|rest| !rest.is_empty()) {
            match self.connection.send(rest, Some(memory).filter(|_| *with_memory)) {
                Ok(0) => return Next::Closed,
                // The descriptor goes with the first bytes.
                Ok(count) => (*sent, *with_memory) = (*sent + count, false),
                Err(error) if is_for_later(&error) => return Next::Wait { to_write: true },
                Err(_) => return Next::Closed,
            }
        }
        Next::Closed
    }
}

//! A session's server at its descriptor limit. Runs alone in its process, because it takes all descriptors.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dormouse_abi::message::{
    BudgetState, OwnerToProgram, OwnerToTool, ProgramToOwner, Question, RulesState, Snapshot, Status, ToolToOwner,
};
use dormouse_control::{Counts, Joining, NewProcess, Processes, Service, SessionListener, SessionServer, Take};
use dormouse_transport::{Conversation, Deadline};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A session without memory and trace.
#[derive(Debug)]
struct Nothing {
    processes: Arc<Processes>,
    joined: AtomicU64,
    refused: AtomicU64,
    left: AtomicU64,
    counts: Counts,
}

impl Service for Nothing {
    fn counts(&self) -> &Counts {
        &self.counts
    }
    fn memory(&self) -> BorrowedFd<'_> {
        rustix::stdio::stdin()
    }
    fn enter(&self, joining: &Joining<'_>, pidfd: OwnedFd) -> Result<u16, String> {
        let number = self.joined.fetch_add(1, Ordering::Relaxed) as u16 + 1;
        let pid = Some(joining.pid);
        self.processes.admit(NewProcess {
            number,
            pid,
            image: joining.image,
            name: joining.name.into(),
            pidfd: Some(pidfd),
        });
        Ok(number)
    }
    fn refuse(&self, _program: &str, _reason: &str) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
    fn leave(&self, ended: &dyn Fn() -> Vec<u16>) {
        self.left.fetch_add(ended().len() as u64, Ordering::Relaxed);
    }
    fn snapshot(&self, _wanted: &Take) -> Result<Snapshot, String> {
        Err("none".to_string())
    }
    fn budget(&self, _bytes: u64) -> Result<BudgetState, String> {
        Err("none".to_string())
    }
    fn rules(&self, _new: Option<&[String]>) -> Result<RulesState, String> {
        Err("none".to_string())
    }
    fn describe(&self, _status: &mut Status) {}
}

fn socket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

/// Watchdog: no answer takes this long.
const HANGS: Duration = Duration::from_secs(60);

/// Begins a conversation on a socket that was made before.
fn connect<Q: Question>(socket: OwnedFd, server: &SessionServer) -> Conversation<'static> {
    rustix::net::connect(&socket, &SocketAddrUnix::new(server.path()).unwrap()).unwrap();
    Conversation::begin(socket, Q::EDGE, Deadline::after(HANGS))
}

fn hello() -> ProgramToOwner {
    ProgramToOwner::Hello { vpid: 7, image: 8, program: "/bin/x".into(), command_line: "x".into() }
}

#[test]
fn a_client_at_the_descriptor_limit_is_answered_and_counted() {
    let place = tempfile::tempdir().unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), ..limit }).unwrap();
    let processes = Arc::new(Processes::new().unwrap());
    let [joined, refused, left] = [0; 3].map(AtomicU64::new);
    let service =
        Arc::new(Nothing { processes: Arc::clone(&processes), joined, refused, left, counts: Counts::default() });
    let mut server = SessionServer::start(
        SessionListener::create(place.path()).unwrap(),
        Arc::clone(&service),
        Arc::clone(&processes),
        true,
        0,
    )
    .unwrap();
    let sockets: Vec<OwnedFd> = (0..9).map(|_| socket()).collect();
    let mut taken: Vec<OwnedFd> = Vec::new();
    while let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(&sockets[0], 0) {
        taken.push(fd);
    }
    let mut sockets = sockets.into_iter();
    // Sends nothing, and occupies the reserved descriptor.
    let slow = connect::<ToolToOwner>(sockets.next().unwrap(), &server);
    let (mut refused, mut kept) = (0, Vec::new());
    for socket in sockets.by_ref().take(5) {
        let mut conversation = connect::<ProgramToOwner>(socket, &server);
        let OwnerToProgram::Error { text } = conversation.ask(&hello()).unwrap() else {
            panic!("a program has joined")
        };
        assert!(text.starts_with("too many files are open in the session's owner; raise `ulimit -Hn`"), "{text}");
        // Keeping it open means that its descriptor is not available to the next client.
        kept.push(conversation);
        refused += 1;
    }
    assert_eq!(
        (service.counts.programs_refused.load(Ordering::Relaxed), service.refused.load(Ordering::Relaxed)),
        (refused, refused)
    );
    let mut conversation = connect::<ToolToOwner>(sockets.next().unwrap(), &server);
    let answer = conversation.ask(&ToolToOwner::Status).unwrap();
    let OwnerToTool::StatusIs { status } = answer else { panic!("{answer:?}") };
    assert_eq!((status.programs_refused, status.descriptors_max, status.processes), (refused, 100, 0));
    assert_eq!(status.processes_max, 50);
    // Once there are free descriptors again, programs join.
    taken.truncate(taken.len() / 2);
    let mut conversation = connect::<ProgramToOwner>(sockets.next().unwrap(), &server);
    let (answer, memory) = conversation.ask_with_fd(&hello()).unwrap();
    assert!(matches!(answer, OwnerToProgram::Welcome { process: 1, .. }) && memory.is_some(), "{answer:?}");
    assert_eq!(processes.count(), 1);
    drop(slow);
    server.close();
    assert!(!server.path().exists());
}

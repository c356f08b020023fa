//! A session's server at its limit of descriptors. Alone in its process, all of whose descriptors it takes.

use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dormouse_abi::wire::{Announcement, BudgetState, Grant, Message, Snapshot, Status, VERSION};
use dormouse_control::{Error, Joining, Processes, Service, SessionServer, Take};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A session without memory and trace.
#[derive(Debug, Default)]
struct Nothing {
    refused: AtomicU64,
    left: AtomicU64,
}

impl Service for Nothing {
    fn memory(&self) -> BorrowedFd<'_> {
        rustix::stdio::stdin()
    }
    fn join(&self, _joining: &Joining<'_>) {}
    fn grants(&self, _classes: &[Announcement], _program: &str) -> Vec<Grant> {
        Vec::new()
    }
    fn refuse(&self, _program: &str, _reason: &str) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
    fn leave(&self, _number: u16) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }
    fn snapshot(&self, _wanted: &Take) -> Result<Snapshot, Error> {
        Err("none".to_string().into())
    }
    fn budget(&self, _bytes: u64) -> Result<BudgetState, Error> {
        Err("none".to_string().into())
    }
    fn describe(&self, _status: &mut Status) {}
}

fn socket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
}

/// A watchdog: no answer takes so long.
const HANGS: Duration = Duration::from_secs(60);

fn connect(socket: OwnedFd, server: &SessionServer) -> UnixStream {
    rustix::net::connect(&socket, &SocketAddrUnix::new(server.path()).unwrap()).unwrap();
    let stream = UnixStream::from(socket);
    stream.set_read_timeout(Some(HANGS)).unwrap();
    stream
}

fn ask(stream: &mut UnixStream, question: &Message) -> Message {
    stream.write_all(&question.encode()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    Message::decode(&answer[4..]).unwrap()
}

fn hello() -> Message {
    Message::Hello { version: VERSION, vpid: 7, program: "/bin/x".into(), command_line: "x".into(), classes: vec![] }
}

#[test]
fn who_comes_at_the_limit_of_descriptors_is_answered_and_counted() {
    let place = tempfile::tempdir().unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), ..limit }).unwrap();
    let (service, processes) = (Arc::new(Nothing::default()), Arc::new(Processes::new().unwrap()));
    let mut server = SessionServer::start(place.path(), Arc::clone(&service), Arc::clone(&processes), true, 0).unwrap();
    let sockets: Vec<OwnedFd> = (0..9).map(|_| socket()).collect();
    let mut taken: Vec<OwnedFd> = Vec::new();
    while let Ok(fd) = rustix::io::fcntl_dupfd_cloexec(&sockets[0], 0) {
        taken.push(fd);
    }
    let mut sockets = sockets.into_iter();
    // Says nothing, and has what was kept in reserve.
    let slow = connect(sockets.next().unwrap(), &server);
    let mut refused = 0;
    for socket in sockets.by_ref().take(5) {
        // Its end gives back a descriptor that the next one is to find taken.
        let mut stream = connect(socket, &server);
        let Message::Error { text } = ask(&mut stream, &hello()) else { panic!("a program has joined") };
        assert!(text.starts_with("too many files are open in the session's owner; raise `ulimit -Hn`"), "{text}");
        std::mem::forget(stream);
        refused += 1;
    }
    assert_eq!((server.counts().programs_refused, service.refused.load(Ordering::Relaxed)), (refused, refused));
    let mut stream = connect(sockets.next().unwrap(), &server);
    let Message::StatusIs { status } = ask(&mut stream, &Message::Status) else { panic!("no status") };
    assert_eq!((status.programs_refused, status.descriptors_max, status.processes), (refused, 100, 0));
    assert_eq!(status.processes_max, 50);
    // Once there are some again, programs join.
    taken.truncate(taken.len() / 2);
    let mut stream = connect(sockets.next().unwrap(), &server);
    let mut answer = [0; 7];
    stream.write_all(&hello().encode()).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert!(matches!(answer, [.., 2, 1, 0]), "{answer:?}");
    assert_eq!(processes.count(), 1);
    drop(slow);
    server.close();
    assert!(!server.path().exists());
}

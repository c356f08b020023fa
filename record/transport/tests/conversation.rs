//! Tests with peers that differ in version, descriptors, sizes and identity.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use dormouse_abi::message::{
    Edge, HEAD_SIZE_BYTES, Message, Mismatch, OwnerToProgram, OwnerToTool, Preamble, ProgramToOwner, ProgramToTool,
    ToolToOwner, ToolToProgram, VERSION,
};
use dormouse_testing::{Lack, skip};
use dormouse_transport::{Conversation, Deadline, Error, Incoming, Outgoing, Peer};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Returns a deadline that only a hanging test reaches.
fn deadline() -> Deadline<'static> {
    Deadline::after(Duration::from_secs(60))
}

fn pair(edge: Edge) -> (Conversation<'static>, UnixStream) {
    let (own, peer) = UnixStream::pair().expect("sockets");
    (Conversation::begin(own.into(), edge, deadline()), peer)
}

fn error(text: &str) -> OwnerToProgram {
    OwnerToProgram::Error { text: text.into() }
}

#[test]
fn sides_of_different_versions_both_report_them() {
    for version in [VERSION - 1, VERSION + 1] {
        let (own, mut asker) = UnixStream::pair().expect("sockets");
        asker.write_all(&Preamble { version, ..Preamble::of(Edge::ProgramOwner) }.encode()).expect("a peer");
        let answered = Conversation::answer(own.into(), &[Edge::ProgramOwner, Edge::ToolOwner], deadline());
        let expected = Mismatch::Version { edge: Some(Edge::ProgramOwner), asker: version, answerer: VERSION };
        assert_eq!(answered.map(|_| ()), Err(Error::Mismatch(expected)));
        // The other side receives the preamble that tells it the same.
        let mut told = Vec::new();
        asker.read_to_end(&mut told).expect("all of it");
        assert_eq!(told, Preamble::of(Edge::ProgramOwner).encode());

        let (mut conversation, mut answerer) = pair(Edge::ToolProgram);
        answerer.write_all(&Preamble { version, ..Preamble::of(Edge::ToolProgram) }.encode()).expect("a peer");
        let expected = Mismatch::Version { edge: Some(Edge::ToolProgram), asker: VERSION, answerer: version };
        assert_eq!(conversation.ask(&ToolToProgram::List), Err(Error::Mismatch(expected)));
    }
}

#[test]
fn foreign_peers_are_detected() {
    let (own, mut asker) = UnixStream::pair().expect("sockets");
    // Less than a preamble, and nothing follows.
    asker.write_all(b"GET /").expect("a peer");
    let answered = Conversation::answer(own.into(), &[Edge::ToolProgram], deadline());
    assert_eq!(answered.map(|_| ()), Err(Error::Mismatch(Mismatch::NoDormouse)));

    let (mut conversation, mut answerer) = pair(Edge::ToolOwner);
    answerer.write_all(b"HTTP/1.1 400 Bad Request\r\n").expect("a peer");
    assert_eq!(conversation.ask(&ToolToOwner::Stop { pid: 1 }), Err(Error::Mismatch(Mismatch::NoDormouse)));

    // A tool connects to a session's socket instead of a program's.
    let (own, asker) = UnixStream::pair().expect("sockets");
    let mut conversation = Conversation::begin(asker.into(), Edge::ToolProgram, deadline());
    conversation.send(&ToolToProgram::List).expect("a peer");
    let answered = Conversation::answer(own.into(), &[Edge::ProgramOwner, Edge::ToolOwner], deadline());
    assert_eq!(answered.map(|_| ()), Err(Error::Mismatch(Mismatch::Edge)));
    assert_eq!(conversation.receive::<ProgramToTool>(), Err(Error::Closed));
}

/// A peer that has closed the connection must not end this process by SIGPIPE, which Rust's runtime ignores and C
/// programs do not.
#[test]
fn a_peer_that_hangs_up_is_an_error() {
    // SAFETY: sets a signal's default action.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let (mut conversation, peer) = pair(Edge::ProgramOwner);
    drop(peer);
    let question = ProgramToOwner::Hello { vpid: 1, image: 2, program: "".into(), command_line: "".into() };
    assert_eq!(conversation.send(&question), Err(Error::Closed));

    // A peer that answers without reading the question.
    let (mut conversation, mut peer) = pair(Edge::ProgramOwner);
    peer.write_all(&Preamble::of(Edge::ProgramOwner).encode()).expect("a peer");
    peer.write_all(&error("too many").encode()).expect("a peer");
    drop(peer);
    assert_eq!(conversation.ask(&question), Ok(error("too many")));
    assert_eq!(conversation.receive::<OwnerToProgram>(), Err(Error::Closed));
}

#[test]
fn messages_longer_than_the_readers_bound_are_refused() {
    let (mut conversation, peer) = pair(Edge::ToolProgram);
    let patterns = vec!["x".repeat(200); 2_000];
    assert_eq!(conversation.send(&ToolToProgram::Arm { session: String::new(), patterns }), Err(Error::TooLong));
    // Another message can be sent instead.
    conversation.send(&ToolToProgram::List).expect("a peer");
    let mut other = Conversation::begin(peer.into(), Edge::ToolProgram, deadline());
    assert_eq!(other.receive(), Ok(ToolToProgram::List));

    let (mut conversation, mut peer) = pair(Edge::ToolOwner);
    peer.write_all(&Preamble::of(Edge::ToolOwner).encode()).expect("a peer");
    // The head is enough.
    peer.write_all(&[1, 255, 255, 255, 255]).expect("a peer");
    assert!(matches!(conversation.receive::<OwnerToTool>(), Err(Error::Malformed(_))));
}

/// A pipe whose reader notices when no process has the other end any more.
struct Watched(PipeReader);

impl Watched {
    fn new() -> (Watched, PipeWriter) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        (Watched(reader), writer)
    }

    fn check_closed(mut self, writer: PipeWriter) {
        drop(writer);
        // If a descriptor were left open, this would wait for ever.
        assert_eq!(self.0.read(&mut [0]).expect("a pipe"), 0);
    }
}

fn send_raw(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    let sent = sendmsg(socket, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::empty());
    assert_eq!(sent, Ok(bytes.len()));
}

#[test]
fn a_descriptor_comes_with_its_message() {
    let (own, peer) = UnixStream::pair().expect("sockets");
    let (watched, mut writer) = Watched::new();
    let mut answerer = Conversation::begin(own.into(), Edge::ProgramOwner, deadline());
    answerer.send_with_fd(&error("first"), writer.as_fd()).expect("a peer");
    answerer.send(&error("second")).expect("a peer");
    let mut asker = Conversation::begin(peer.into(), Edge::ProgramOwner, deadline());
    let (message, fd) = asker.receive_with_fd::<OwnerToProgram>().expect("a message");
    let fd = fd.expect("a descriptor");
    assert_eq!(message, error("first"));
    // It is the same pipe, and executed programs do not inherit it.
    let flags = rustix::io::fcntl_getfd(&fd).expect("flags");
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    std::fs::File::from(fd).write_all(b"x").expect("a pipe");
    writer.write_all(b"y").expect("a pipe");
    let (message, fd) = asker.receive_with_fd::<OwnerToProgram>().expect("a message");
    assert!(message == error("second") && fd.is_none());
    drop(writer);
    let mut written = String::new();
    let Watched(mut reader) = watched;
    reader.read_to_string(&mut written).expect("a pipe");
    assert_eq!(written, "xy");
}

#[test]
fn unrequested_descriptors_are_closed() {
    let preamble = Preamble::of(Edge::ProgramOwner).encode();
    let frame = error("here").encode();
    let whole = [&preamble[..], &frame].concat();
    // More than one; many; one with the preamble; one for a reader that accepts none.
    for (count, cut, takes_fd) in [(2, 16, true), (40, 16, true), (1, 0, true), (1, 16, false)] {
        let (mut conversation, peer) = pair(Edge::ProgramOwner);
        let (watched, writer) = Watched::new();
        (&peer).write_all(&whole[..cut]).expect("a peer");
        send_raw(&peer, &whole[cut..], &vec![writer.as_fd(); count]);
        let received = if takes_fd {
            conversation.receive_with_fd::<OwnerToProgram>().map(|(message, _)| message)
        } else {
            conversation.receive::<OwnerToProgram>()
        };
        assert_eq!(received, Err(Error::Descriptors), "{count} {cut} {takes_fd}");
        drop((conversation, peer));
        watched.check_closed(writer);
    }
    // One with each part of a message.
    let (mut conversation, peer) = pair(Edge::ProgramOwner);
    let (watched, writer) = Watched::new();
    (&peer).write_all(&preamble).expect("a peer");
    send_raw(&peer, &frame[..HEAD_SIZE_BYTES], &[writer.as_fd()]);
    send_raw(&peer, &frame[HEAD_SIZE_BYTES..], &[writer.as_fd()]);
    assert_eq!(conversation.receive_with_fd::<OwnerToProgram>().map(|_| ()), Err(Error::Descriptors));
    drop((conversation, peer));
    watched.check_closed(writer);
}

/// Acts like an event loop: takes the available bytes, and never waits.
#[test]
fn partial_messages_are_assembled_without_blocking() {
    let (own, peer) = UnixStream::pair().expect("sockets");
    let mut incoming = Incoming::new();
    let mut outgoing = Outgoing::preamble(Preamble::of(Edge::ProgramOwner));
    outgoing.add(&error("one")).expect("short enough");
    outgoing.add(&error("two")).expect("short enough");
    let mut messages = Vec::new();
    let mut preamble = None;
    assert_eq!(incoming.preamble(&own), Ok(None));
    for byte in outgoing.bytes() {
        (&peer).write_all(&[*byte]).expect("a peer");
        if preamble.is_none() {
            preamble = incoming.preamble(&own).expect("a preamble");
        } else {
            messages.extend(incoming.message::<OwnerToProgram>(&own).expect("a message"));
        }
    }
    assert_eq!(preamble, Some(Preamble::of(Edge::ProgramOwner)));
    assert_eq!(messages, [error("one"), error("two")]);
    assert_eq!(incoming.message::<OwnerToProgram>(&own), Ok(None));

    // More than the socket's buffer holds, then the rest.
    let part = ProgramToTool::MemoryPart { memory_size_bytes: 0, bytes: vec![7; 256 << 10] };
    let mut outgoing = Outgoing::default();
    (0..4).for_each(|_| outgoing.add(&part).expect("short enough"));
    let (mut incoming, mut arrived, mut is_sent, mut attempts) = (Incoming::new(), 0, false, 0);
    while arrived < 4 {
        is_sent = is_sent || outgoing.send(&own, None).expect("a peer");
        if let Some(message) = incoming.message::<ProgramToTool>(&peer).expect("a message") {
            assert_eq!(message, part);
            arrived += 1;
        }
        attempts += 1;
        assert!(attempts < 10_000);
    }
    assert!(is_sent && attempts > 4);
}

const ENV_PLACE: &str = "DORMOUSE_TEST_PEER";

#[test]
fn a_peer_has_the_credentials_of_the_kernel() {
    let (own, peer) = UnixStream::pair().expect("sockets");
    let credentials = Peer::of(&own).expect("credentials");
    assert_eq!(credentials.pid.map(|pid| pid.as_raw_nonzero().get() as u32), Some(std::process::id()));
    assert_eq!(credentials, Peer::of(&peer).expect("credentials"));
    assert!(credentials.is_own_user_or_root());
    assert!(!Peer { uid: 12_345_678, ..credentials }.is_own_user_or_root());
    assert!(Peer { uid: 0, ..credentials }.is_own_user_or_root());
    let file = std::fs::File::open("/dev/null").expect("a file");
    assert_eq!(Peer::of(&file), Err(rustix::io::Errno::NOTSOCK));
}

/// The kernel has no number for a process outside the asking process's PID namespace, and writes 0.
#[test]
fn a_peer_in_another_pid_namespace_has_no_process_id() {
    let name = "a_peer_in_another_pid_namespace_has_no_process_id";
    if let Some(path) = std::env::var_os(ENV_PLACE) {
        let stream = UnixStream::connect(path).expect("a socket");
        assert_eq!(Peer::of(&stream).expect("credentials").pid, None);
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("socket");
    let _listener = UnixListener::bind(&path).expect("a socket");
    let own = std::env::current_exe().expect("this program");
    let unshare = |command: &std::path::Path, arguments: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--pid", "--fork"]).arg(command).args(arguments);
        unshare.env(ENV_PLACE, &path).output()
    };
    if !unshare("true".as_ref(), &[]).is_ok_and(|output| output.status.success()) {
        return skip(Lack::machine("no PID namespace can be made", "allow user namespaces, and install util-linux"));
    }
    let output = unshare(&own, &["--exact", name, "--nocapture"]).expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

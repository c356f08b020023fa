//! Talking to a program that runs: finding its sockets, knowing that it is the program that answers, asking it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dormouse_abi::environment;
use dormouse_abi::message::{Edge, ProgramToTool, ToolToProgram};
use dormouse_abi::text::shown;
use dormouse_transport::{Conversation, Deadline, Error as Failure, Peer};
use rustix::io::Errno;

use crate::directory::{ENV_SOCKET_DIR, Refusal, SocketDirectory, directories_of};
use crate::error::Error;
use crate::peer;
use crate::process::{self, Identity, is_dead};

/// How long a program may take over an answer, all in all.
const PATIENCE: Duration = Duration::from_secs(5);

/// How the identity of a process is looked up: another way in tests.
type Lookup = fn(u32) -> Option<Identity>;

/// A process that listens, perhaps on several sockets: one for each of its objects that carries a tracer of its own.
#[derive(Debug)]
pub struct Program {
    /// Its id.
    pub pid: u32,
    identity: Identity,
    /// Its id stays its own as long as this is of a process that is alive.
    pidfd: OwnedFd,
    lookup: Lookup,
    /// One for each tracer in it.
    sockets: Vec<(Arc<SocketDirectory>, String)>,
}

/// Whether a process has a handler for the signal by which it may listen.
fn handles_sigurg(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    caught.is_some_and(|caught| caught >> (libc::SIGURG - 1) & 1 == 1)
}

/// Whether a process has entered a filter of system calls, as far as it can be seen.
fn has_filter(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0"))
}

impl Program {
    /// Finds a process's sockets: those that the process itself listens to, in directories where its user's sockets may be.
    ///
    /// # Errors
    /// One line.
    pub fn find(pid: u32) -> Result<Program, Error> {
        Program::find_by(pid, Identity::of, directories_of)
    }

    fn find_by(pid: u32, lookup: Lookup, directories_of: impl Fn(u32) -> Vec<PathBuf>) -> Result<Program, Error> {
        let none = || Error::from(format!("there is no process {pid}; `pgrep -a NAME` finds a program's id"));
        // The pidfd first: what is looked up by the id afterwards is of the same process, as long as that is alive.
        let pidfd = process::open(pid).map_err(|_| none())?;
        let identity = lookup(pid).ok_or_else(none)?;
        if is_dead(&pidfd) {
            return Err(none());
        }
        let (uid, me) = (identity.uid, rustix::process::geteuid());
        if uid != me.as_raw() && !me.is_root() {
            let text = format!("process {pid} belongs to user {uid}; run dormouse as that user or as root");
            return Err(text.into());
        }
        let mut program = Program { pid, identity, pidfd, lookup, sockets: Vec::new() };
        let mut reasons: Vec<String> = Vec::new();
        let paths = directories_of(uid);
        for path in &paths {
            let directory = match SocketDirectory::open(path, uid) {
                Ok(Some(directory)) => Arc::new(directory),
                Ok(None) => continue,
                Err(error) => {
                    reasons.push(error.into());
                    continue;
                }
            };
            let mut names = directory.names();
            names.retain(|name| program.may_have(name));
            for name in names {
                let socket = (Arc::clone(&directory), name);
                match program.connect(&socket, &Deadline::after(PATIENCE)) {
                    Ok(_) => program.sockets.push(socket),
                    // Left by a process of this id that is dead.
                    Err(Refusal::Failed(Failure::System(Errno::CONNREFUSED))) => {}
                    Err(error) => reasons
                        .push(format!("its socket {} was not used: {error}", directory.path_of(&socket.1).display())),
                }
            }
        }
        if program.sockets.is_empty() {
            return Err(program.not_found(&paths, reasons));
        }
        Ok(program)
    }

    /// Whether the process may have given this name to a socket: it knows itself by its id in its own PID namespace.
    fn may_have(&self, name: &str) -> bool {
        let number = name.split_once('.').and_then(|(number, _)| number.parse::<u32>().ok());
        number.is_some_and(|number| self.identity.ids.contains(&number))
    }

    fn not_found(&self, paths: &[PathBuf], reasons: Vec<String>) -> Error {
        let pid = self.pid;
        if has_filter(pid) {
            let text = format!(
                "process {pid} has entered a filter of system calls (seccomp), and does not listen: a program that is executed under one does not by \
                 itself. Start it with DORMOUSE_LISTEN=thread if the filter permits threads and sockets, or with DORMOUSE_SECCOMP=0 if it answers with \
                 errors, as that of a container does"
            );
            return text.into();
        }
        let looked = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        let elsewhere = self.other_directory(paths).map_or_else(
            || format!("has another XDG_RUNTIME_DIR: {ENV_SOCKET_DIR}=DIR/dormouse names it to dormouse"),
            |dir| format!("has its sockets elsewhere: it was started with another XDG_RUNTIME_DIR; {ENV_SOCKET_DIR}={dir} has dormouse look there"),
        );
        let reasons = reasons.iter().map(|reason| format!("; {reason}")).collect::<String>();
        let text = format!(
            "process {pid} does not listen in {looked}; it has no Dormouse tracepoints, was started with DORMOUSE_LISTEN=0 (or by `dormouse \
             record` or with libdormouse_libc.so, and without DORMOUSE_LISTEN=thread), has stopped listening, or {elsewhere}{reasons}"
        );
        text.into()
    }

    /// Where the program's environment says that its sockets are: to be told, not to be believed.
    fn other_directory(&self, paths: &[PathBuf]) -> Option<String> {
        let environment = std::fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let xdg = environment
            .split(|byte| *byte == 0)
            .find_map(|entry| std::str::from_utf8(entry).ok()?.strip_prefix("XDG_RUNTIME_DIR="))?;
        let dir = PathBuf::from(environment::socket_dir(Some(xdg), self.identity.uid));
        (!paths.contains(&dir)).then(|| shown(&dir.to_string_lossy()))
    }

    /// Connects, and makes sure that it is this process that listens.
    fn connect(
        &self,
        (directory, name): &(Arc<SocketDirectory>, String),
        deadline: &Deadline<'_>,
    ) -> Result<OwnedFd, Refusal> {
        // A program that has given up root's rights may have made its socket before.
        let socket = directory.connect(name, &[self.identity.uid, 0], deadline)?;
        let peer = Peer::of(&socket).map_err(Failure::System)?;
        let seen = Seen {
            pid: peer::process_id(&peer),
            uid: peer.uid,
            is_peer_dead: peer::is_dead(&socket),
            identity: (self.lookup)(self.pid),
            is_dead: is_dead(&self.pidfd),
        };
        seen.check(self.pid, &self.identity).map_err(Refusal::Unfit)?;
        Ok(socket)
    }

    /// How many tracers are in it.
    pub fn tracer_count(&self) -> usize {
        self.sockets.len()
    }

    /// Asks one of the tracers in the process, by its place in the answers of [`Program::ask`].
    ///
    /// # Errors
    /// One line, if it does not answer.
    pub fn ask_one(&self, index: usize, question: &ToolToProgram) -> Result<ProgramToTool, Error> {
        self.ask_with(index, question, None, PATIENCE)
    }

    /// The same, with a descriptor for the program, and so long at most.
    ///
    /// # Errors
    /// One line, if it does not answer.
    pub fn ask_with(
        &self,
        index: usize,
        question: &ToolToProgram,
        with: Option<BorrowedFd<'_>>,
        patience: Duration,
    ) -> Result<ProgramToTool, Error> {
        let deadline = Deadline::after(patience);
        let converse = || {
            let mut conversation =
                Conversation::begin(self.connect(&self.sockets[index], &deadline)?, Edge::ToolProgram, deadline);
            match with {
                None => Ok(conversation.ask(question)?),
                Some(fd) => {
                    conversation.send_with_fd(question, fd)?;
                    Ok(conversation.receive()?)
                }
            }
        };
        converse().map_err(|refusal| match refusal {
            Refusal::Failed(Failure::TimedOut) if handles_sigurg(self.pid) => {
                let seconds = patience.as_secs();
                format!(
                    "process {} did not answer: if it listens by a signal (DORMOUSE_LISTEN=signal), it has passed no tracepoint within {seconds} s",
                    self.pid
                )
                .into()
            }
            Refusal::Failed(Failure::TimedOut) => {
                format!("process {} did not answer in time; is it stopped?", self.pid).into()
            }
            refusal => format!("process {}: {refusal}", self.pid).into(),
        })
    }

    /// Asks every tracer in the process, and gives the answers in the order of its sockets.
    ///
    /// # Errors
    /// One line, if it does not answer.
    pub fn ask(&self, question: &ToolToProgram) -> Result<Vec<ProgramToTool>, Error> {
        (0..self.sockets.len()).map(|index| self.ask_one(index, question)).collect()
    }

    /// What it says instead of the answer that was asked for.
    pub fn refusal(&self, answer: ProgramToTool) -> Error {
        let pid = self.pid;
        match answer {
            ProgramToTool::Error { text } => format!("process {pid}: {text}").into(),
            _ => format!("process {pid} answered something else than it was asked").into(),
        }
    }

    /// Users whose session the program may be in: its own, and the caller, who may have armed it.
    pub(crate) fn owners(&self) -> [u32; 2] {
        [self.identity.uid, rustix::process::geteuid().as_raw()]
    }
}

/// What is known of a process at the other end of a connection, after it was connected.
struct Seen {
    /// Its id, if it can be seen, and its user.
    pid: Option<u32>,
    uid: u32,
    is_peer_dead: bool,
    /// Of the process that has the id.
    identity: Option<Identity>,
    /// Whether the process that had it at first is dead.
    is_dead: bool,
}

impl Seen {
    /// Whether it is still the process that was looked for.
    fn check(&self, pid: u32, identity: &Identity) -> Result<(), String> {
        if self.is_dead || self.identity.as_ref().is_none_or(|now| now.start != identity.start) {
            return Err("the process has ended meanwhile".into());
        }
        match self.pid {
            Some(other) if other != pid => return Err(format!("it is process {other} that listens there")),
            None => return Err("a process in another PID namespace listens there".into()),
            Some(_) if self.is_peer_dead => {
                return Err("a process listens there that has inherited it from a dead one".into());
            }
            Some(_) => {}
        }
        let (listens, runs) = (self.uid, self.identity.as_ref().map_or(identity.uid, |now| now.uid));
        if listens != runs || runs != identity.uid {
            return Err(format!("the process made it as user {listens}, and runs as user {runs}"));
        }
        Ok(())
    }
}

/// A path that was said, as one of a directory of these and a plain name.
pub(crate) fn within<'a>(path: &'a str, directories: &[PathBuf]) -> Option<(usize, &'a str)> {
    let (parent, name) = path.rsplit_once('/')?;
    let is_plain = name.starts_with("session-") && name.ends_with(".sock") && !name.contains('\0');
    // Compared as text: a path that leads to the same place by other names is not the session's own.
    let index = directories
        .iter()
        .position(|directory| directory.as_path() == Path::new(parent) && directory.as_os_str() == parent)?;
    is_plain.then_some((index, name))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn directories(dir: &Path) -> impl Fn(u32) -> Vec<PathBuf> {
        let dir = dir.to_owned();
        move |_| vec![dir.clone()]
    }

    fn listen(dir: &Path, name: &str) -> UnixListener {
        let listener = SocketDirectory::create(dir).unwrap().listen(name).unwrap();
        let listener = UnixListener::from(listener);
        listener.set_nonblocking(false).unwrap();
        listener
    }

    /// A program's listener, which gives each question this answer. It ends with a connection that says what no Dormouse says.
    fn answer_all(listener: &UnixListener, answer: &ProgramToTool) {
        loop {
            let (stream, _) = listener.accept().unwrap();
            match Conversation::answer(stream.into(), &[Edge::ToolProgram], Deadline::after(PATIENCE)) {
                Ok(mut conversation) => {
                    let _question: ToolToProgram = conversation.receive().unwrap();
                    conversation.send(answer).unwrap();
                }
                Err(Failure::Mismatch(_)) => return,
                // Whoever only looks whether somebody is there asks nothing.
                Err(_) => {}
            }
        }
    }

    #[test]
    fn a_program_is_found_by_any_of_its_ids_and_answers() {
        let place = tempfile::tempdir().unwrap();
        let me = std::process::id();
        let listener = listen(place.path(), &format!("{me}.0.sock"));
        // Of this process too, which has no such id in any namespace.
        let _other = listen(place.path(), "4200000.0.sock");
        std::thread::scope(|scope| {
            scope.spawn(|| answer_all(&listener, &ProgramToTool::Error { text: "no\u{1b}[2J".into() }));
            let program = Program::find_by(me, Identity::of, directories(place.path())).unwrap();
            assert_eq!(program.tracer_count(), 1);
            let answer = program.ask(&ToolToProgram::List).unwrap().remove(0);
            assert_eq!(program.refusal(answer).to_string(), format!("process {me}: no\u{fffd}[2J"));
            UnixStream::connect(place.path().join(format!("{me}.0.sock"))).unwrap().write_all(&[0]).unwrap();
        });
        // As in a container: the process knows itself by another id.
        let inside = |pid| Identity::of(pid).map(|identity| Identity { ids: vec![pid, 4_200_000], ..identity });
        let program = Program::find_by(me, inside, directories(place.path())).unwrap();
        assert_eq!(program.tracer_count(), 2);
    }

    #[test]
    fn an_id_that_is_another_process_by_now_is_refused() {
        thread_local! {
            static LOOKED: Cell<u32> = const { Cell::new(0) };
        }
        /// The process ends, and another one gets its id, after it was found.
        fn lookup(pid: u32) -> Option<Identity> {
            let count = LOOKED.get();
            LOOKED.set(count + 1);
            Identity::of(pid).map(|identity| Identity { start: if count < 2 { "1" } else { "2" }.into(), ..identity })
        }
        let place = tempfile::tempdir().unwrap();
        let me = std::process::id();
        let _listener = listen(place.path(), &format!("{me}.0.sock"));
        let program = Program::find_by(me, lookup, directories(place.path())).unwrap();
        let error = program.ask(&ToolToProgram::List).unwrap_err().to_string();
        assert!(error.contains("the process has ended meanwhile"), "{error}");
        // Between its look-up and the first connection.
        LOOKED.set(1);
        let error = Program::find_by(me, lookup, directories(place.path())).unwrap_err().to_string();
        assert!(error.contains("the process has ended meanwhile"), "{error}");
    }

    #[test]
    fn somebody_else_who_listens_in_a_programs_name_is_not_asked() {
        let place = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("infinity").spawn().unwrap();
        let _listener = listen(place.path(), &format!("{}.0.sock", child.id()));
        let error = Program::find_by(child.id(), Identity::of, directories(place.path())).unwrap_err().to_string();
        let me = std::process::id();
        assert!(
            error.contains("does not listen in") && error.contains(&format!("it is process {me} that listens there")),
            "{error}"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        let error = Program::find(child.id()).unwrap_err().to_string();
        assert!(error.contains("there is no process"), "{error}");
    }

    #[test]
    fn a_program_with_another_runtime_directory_is_told_how_to_be_named() {
        let place = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("infinity")
            .env("XDG_RUNTIME_DIR", "/else\u{7}where")
            .spawn()
            .unwrap();
        let environment = format!("/proc/{}/environ", child.id());
        // Until it has become the other program.
        while !std::fs::read(&environment).is_ok_and(|bytes| bytes.windows(5).any(|window| window == b"/else")) {
            std::thread::yield_now();
        }
        let error = Program::find_by(child.id(), Identity::of, directories(place.path())).unwrap_err().to_string();
        assert!(error.contains("DORMOUSE_SOCKET_DIR=/else\u{fffd}where/dormouse has dormouse look there"), "{error}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn what_is_seen_has_to_be_the_process_that_was_looked_for() {
        let identity = Identity { uid: 7, start: "9".into(), ids: vec![5] };
        let good =
            || Seen { pid: Some(5), uid: 7, is_peer_dead: false, identity: Some(identity.clone()), is_dead: false };
        let check =
            |seen: Seen| seen.check(5, &identity).map_err(|text| text.split(' ').take(4).collect::<Vec<_>>().join(" "));
        assert_eq!(check(good()), Ok(()));
        let ended = Err("the process has ended".to_string());
        assert_eq!(check(Seen { is_dead: true, ..good() }), ended);
        assert_eq!(check(Seen { identity: None, ..good() }), ended);
        assert_eq!(check(Seen { identity: Some(Identity { start: "8".into(), ..identity.clone() }), ..good() }), ended);
        assert_eq!(check(Seen { is_peer_dead: true, ..good() }), Err("a process listens there".into()));
        assert_eq!(check(Seen { pid: None, uid: 7, ..good() }), Err("a process in another".into()));
        assert_eq!(check(Seen { pid: Some(6), uid: 7, ..good() }), Err("it is process 6".into()));
        let made_it = Err("the process made it".to_string());
        assert_eq!(check(Seen { pid: Some(5), uid: 0, ..good() }), made_it);
        let dropped = Identity { uid: 8, ..identity.clone() };
        assert_eq!(check(Seen { pid: Some(5), uid: 8, identity: Some(dropped), ..good() }), made_it);
    }
}

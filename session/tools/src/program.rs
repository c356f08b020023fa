//! Communication with a running program: finds its sockets, verifies that the program answers there, and asks it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dormouse_abi::message::{Edge, ProgramToTool, ToolToProgram};
use dormouse_transport::{Conversation, Deadline, Error as Failure, Peer};
use rustix::io::Errno;

use crate::call::{Cost, PATIENCE_FOR_MOMENT, cheapest_thread, send};
use crate::error::Error;
use crate::facts::{inner_directories, is_running, listener_of, names_otherwise};
use crate::reason::{
    ProgramError, Silence, TriedSockets, Unreachable, WhyUnreachable, why_none, why_silent, why_unreachable,
};
use dormouse_control::directory::{ProcessRoot, SocketDirectory, directories_of, directory_besides};
use dormouse_control::peer;
use dormouse_control::process::{self, Identity, Stat, image_place, is_dead};
use dormouse_control::{Error as SocketError, Refusal};

/// Maximum duration of a program's answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Age up to which a process that does not listen may be about to, and the interval between looks.
const YOUNG: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

/// Time after which the caller is told that a program is waited for.
const SAID_AFTER: Duration = Duration::from_secs(1);
/// Interval between looks at a program that is called: while a moment for the signal is awaited, and then while its
/// socket is.
const LOOK_FOR_MOMENT: Duration = Duration::from_micros(200);
const LOOK_FOR_SOCKET: Duration = Duration::from_millis(5);
/// How long a listening thread may exist before its socket is found, and the least number of looks in that time: on a
/// busy machine the caller may not run in between.
const PATIENCE_FOR_SOCKET: Duration = Duration::from_millis(500);
const LOOKS_FOR_SOCKET: u32 = 50;
/// The same while a thread of the program runs or waits for a CPU, and may be about to make or remove the socket.
const PATIENCE_FOR_RUNNING: Duration = Duration::from_secs(5);

/// How long to wait for a program that listens by a signal: it answers once it passes a tracepoint.
pub struct Wait<'a> {
    /// Maximum duration. `None`: no limit.
    pub limit: Option<Duration>,
    /// Called once with the program's id after a second of waiting.
    pub on_wait: &'a mut dyn FnMut(u32),
}

/// Function that looks up a process's identity; tests use another one.
type Lookup = fn(u32) -> Option<Identity>;

/// A process that listens, possibly on several sockets: one for each of its objects with a tracer of its own.
#[derive(Debug)]
pub struct Program {
    /// Its process id.
    pub pid: u32,
    identity: Identity,
    /// Its pidfd: the id remains its own as long as this process is alive.
    pidfd: OwnedFd,
    lookup: Lookup,
    /// One socket for each tracer in it.
    sockets: Vec<(Arc<SocketDirectory>, String)>,
}

/// Repeats a failed look while the process is young, since the result may change.
fn while_young<T, E>(mut look: impl FnMut() -> Result<T, E>, mut is_young: impl FnMut() -> bool) -> Result<T, E> {
    loop {
        match look() {
            // No event signals that it begins to listen. The loop ends when the process is older than `YOUNG`.
            Err(_) if is_young() => std::thread::sleep(LOOK),
            found => return found,
        }
    }
}

impl Program {
    /// Finds a process's sockets: those that the process itself listens to, in the directories where its user's sockets
    /// may be. A program that listens by a signal is called, and has five seconds to pass a tracepoint.
    ///
    /// # Errors
    /// The reason.
    pub fn find(pid: u32) -> Result<Program, ProgramError> {
        Program::find_by(pid, Identity::of, directories_of, &mut Wait { limit: Some(PATIENCE), on_wait: &mut |_| {} })
    }

    /// Finds a process's sockets like [`Program::find`], but waits for a program that listens by a signal as `wait`
    /// says, and gives a process that has just started time to listen.
    ///
    /// # Errors
    /// The reason.
    pub fn find_soon(pid: u32, wait: &mut Wait<'_>) -> Result<Program, ProgramError> {
        while_young(|| Program::find_by(pid, Identity::of, directories_of, wait), || process::is_young(pid, YOUNG))
    }

    /// Returns the program if it currently listens. Does not call it, and looks for no reason.
    pub fn listening(pid: u32) -> Option<Program> {
        Program::look_for(pid, Identity::of, directories_of)
            .ok()
            .flatten()
            .map(|(program, _)| program)
            .filter(Program::has_socket)
    }

    fn find_by(
        pid: u32,
        lookup: Lookup,
        directories_of: impl Fn(u32) -> Vec<PathBuf>,
        wait: &mut Wait<'_>,
    ) -> Result<Program, ProgramError> {
        let started = Instant::now();
        let mut call = Call::default();
        let mut is_said = false;
        let (mut listener, mut listens_since, mut looks) = (None, Instant::now(), 0);
        loop {
            let (program, tried) = Program::look_for(pid, lookup, &directories_of)?.ok_or_else(|| why_none(pid))?;
            if program.has_socket() {
                return Ok(program);
            }
            let is_late = wait.limit.is_some_and(|limit| started.elapsed() >= limit);
            let now = listener_of(pid);
            if now.is_none() || now != listener {
                (listener, listens_since, looks) = (now, Instant::now(), 0);
            }
            looks += 1;
            let patience = if is_running(pid) { PATIENCE_FOR_RUNNING } else { PATIENCE_FOR_SOCKET };
            let listens_elsewhere = looks >= LOOKS_FOR_SOCKET && listens_since.elapsed() >= patience;
            let is_long = !is_said && started.elapsed() >= SAID_AFTER;
            // The reason is looked for before the first call, after the process has executed another program, when its
            // socket is not found, before the caller is told of the wait (it may have been stopped since), and at the end.
            if is_late || is_long || listens_elsewhere || !call.is_under_way(pid) {
                match why_unreachable(pid, tried) {
                    Silence::Callable(why) if is_late => return Err(why.into()),
                    Silence::Callable(_) if call.is_under_way(pid) => {}
                    Silence::Callable(_) => call = Call::to(pid),
                    // Its socket is being made or removed, which no event signals.
                    Silence::Because(_)
                        if !is_late && !listens_elsewhere && (now.is_some() || listener_of(pid).is_some()) =>
                    {
                        std::thread::sleep(LOOK_FOR_SOCKET);
                        continue;
                    }
                    Silence::Because(why) => return Err(why.into()),
                }
            }
            if is_long {
                is_said = true;
                (wait.on_wait)(pid);
            }
            // No event signals a better moment or a socket.
            std::thread::sleep(if call.go_on(pid) { LOOK_FOR_SOCKET } else { LOOK_FOR_MOMENT });
        }
    }

    /// Looks for a process's sockets. Returns `None` if there is no such process.
    fn look_for(
        pid: u32,
        lookup: Lookup,
        directories_of: impl Fn(u32) -> Vec<PathBuf>,
    ) -> Result<Option<(Program, TriedSockets)>, ProgramError> {
        // The pidfd is opened first: later look-ups by the id concern the same process as long as it is alive.
        let Ok(pidfd) = process::open(pid) else { return Ok(None) };
        let Some(identity) = lookup(pid).filter(|_| !is_dead(&pidfd)) else { return Ok(None) };
        let (uid, me) = (identity.uid, rustix::process::geteuid());
        if uid != me.as_raw() && !me.is_root() {
            return Err(Unreachable::new(pid, WhyUnreachable::OtherUser(uid)).into());
        }
        let mut program = Program { pid, identity, pidfd, lookup, sockets: Vec::new() };
        let mut tried = TriedSockets { paths: directories_of(uid), ..TriedSockets::default() };
        for path in tried.paths.clone() {
            program.look_into(SocketDirectory::open(&path, uid), &mut tried);
        }
        // The names may mean something else to the process: in another mount namespace, below another root, or with
        // another user id.
        if program.sockets.is_empty()
            && names_otherwise(pid)
            && let Ok(root) = ProcessRoot::of(pid)
        {
            for path in inner_directories(pid, uid).into_iter().chain(directory_besides()) {
                program.look_into(SocketDirectory::open_in(&root, &path, uid), &mut tried);
                tried.paths.push(path);
            }
        }
        Ok(Some((program, tried)))
    }

    fn has_socket(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// Adds its sockets in a directory.
    fn look_into(&mut self, directory: Result<Option<SocketDirectory>, SocketError>, tried: &mut TriedSockets) {
        let directory = match directory {
            Ok(Some(directory)) => Arc::new(directory),
            Ok(None) => return,
            Err(error) => return tried.directories_unfit.push(error.to_string()),
        };
        let mut names = directory.names();
        names.retain(|name| self.identity.may_have(name));
        for name in names {
            let socket = (Arc::clone(&directory), name);
            match self.connect(&socket, &Deadline::after(PATIENCE)) {
                Ok(_) => self.sockets.push(socket),
                // The socket was left by a dead process of this id, or belongs to a process that has this id in another
                // PID namespace.
                Err(Refusal::Failed(Failure::System(Errno::CONNREFUSED)) | Refusal::Namesake) => {}
                Err(error) => tried
                    .sockets_unfit
                    .push(format!("its socket {} was not used: {error}", directory.path_of(&socket.1).display())),
            }
        }
    }

    /// Connects, and verifies that this process listens there.
    fn connect(
        &self,
        (directory, name): &(Arc<SocketDirectory>, String),
        deadline: &Deadline<'_>,
    ) -> Result<OwnedFd, Refusal> {
        // A program that has dropped root's privileges may have made its socket before that.
        let socket = directory.connect(name, &[self.identity.uid, 0], deadline)?;
        let peer = Peer::of(&socket).map_err(Failure::System)?;
        let seen = Seen {
            pid: peer::process_id(&peer),
            uid: peer.uid,
            is_peer_dead: peer::is_dead(&socket),
            identity: (self.lookup)(self.pid),
            is_dead: is_dead(&self.pidfd),
        };
        if seen.pid.is_some_and(|pid| pid != self.pid && Identity::of(pid).is_some_and(|other| other.may_have(name))) {
            return Err(Refusal::Namesake);
        }
        seen.check(self.pid, &self.identity).map_err(Refusal::OtherListener)?;
        Ok(socket)
    }

    /// Returns the number of tracers in it.
    pub fn tracer_count(&self) -> usize {
        self.sockets.len()
    }

    /// Asks one of the tracers in the process, by its index in the answers of [`Program::ask`].
    ///
    /// # Errors
    /// The reason, if it does not answer.
    pub fn ask_one(&self, index: usize, question: &ToolToProgram) -> Result<ProgramToTool, ProgramError> {
        self.ask_with(index, question, None, PATIENCE)
    }

    /// Asks one of the tracers, passes a descriptor along if given, and waits for at most `patience`.
    ///
    /// # Errors
    /// The reason, if it does not answer.
    pub fn ask_with(
        &self,
        index: usize,
        question: &ToolToProgram,
        with: Option<BorrowedFd<'_>>,
        patience: Duration,
    ) -> Result<ProgramToTool, ProgramError> {
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
            Refusal::Failed(Failure::TimedOut) => why_silent(self.pid, patience).into(),
            refusal => format!("process {}: {refusal}", self.pid).into(),
        })
    }

    /// Asks every tracer in the process, and returns the answers in the order of its sockets.
    ///
    /// # Errors
    /// The reason, if one does not answer.
    pub fn ask(&self, question: &ToolToProgram) -> Result<Vec<ProgramToTool>, ProgramError> {
        (0..self.sockets.len()).map(|index| self.ask_one(index, question)).collect()
    }

    /// Returns the error for an answer of another kind than was asked for.
    pub fn refusal(&self, answer: ProgramToTool) -> Error {
        let pid = self.pid;
        match answer {
            ProgramToTool::Error { text } => format!("process {pid}: {text}").into(),
            _ => format!("process {pid} answered something else than it was asked").into(),
        }
    }

    /// Users whose session the program may be in: its own user, and the caller, who may have armed it.
    pub(crate) fn owners(&self) -> [u32; 2] {
        [self.identity.uid, rustix::process::geteuid().as_raw()]
    }
}

/// A call of a program that listens by a signal.
#[derive(Debug, Default)]
struct Call {
    /// Identifies the process's program, to tell it from one that it executes later.
    image: Option<u64>,
    /// Time at which the call began. `None`: no program is called.
    started: Option<Instant>,
    /// The thread that was sent the signal.
    thread: Option<u32>,
}

impl Call {
    fn to(pid: u32) -> Call {
        Call { image: image_place(pid), started: Some(Instant::now()), thread: None }
    }

    fn is_under_way(&self, pid: u32) -> bool {
        self.started.is_some() && image_place(pid) == self.image
    }

    /// Sends the signal if this is a good moment. Returns whether it has been sent.
    fn go_on(&mut self, pid: u32) -> bool {
        // A thread that has ended may not have run the handler.
        if self.thread.is_some_and(|tid| Stat::of_task(pid, tid).is_some()) {
            return true;
        }
        let is_late = self.started.is_some_and(|started| started.elapsed() >= PATIENCE_FOR_MOMENT);
        let thread = cheapest_thread(pid).filter(|(cost, _)| is_late || *cost <= Cost::Restarted);
        // If the caller may not send it, no socket is found, and the caller gets the reason.
        self.thread = thread.map(|(_, tid)| tid).filter(|tid| send(pid, *tid).is_ok());
        self.thread.is_some()
    }
}

/// Facts about the process at the other end of a connection, after connecting.
struct Seen {
    /// Its id, if it is visible, and its user.
    pid: Option<u32>,
    uid: u32,
    is_peer_dead: bool,
    /// Identity of the process that has the program's id now.
    identity: Option<Identity>,
    /// Whether the process that had the id at first is dead.
    is_dead: bool,
}

impl Seen {
    /// Checks that it is still the process that was looked for.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;

    use super::*;
    use crate::reason::{NoTracepoints, Reason};

    fn find_by(pid: u32, lookup: Lookup, dir: &Path) -> Result<Program, ProgramError> {
        let wait = &mut Wait { limit: Some(Duration::ZERO), on_wait: &mut |_| {} };
        Program::find_by(pid, lookup, |_| vec![dir.to_owned()], wait)
    }

    /// Returns why a process does not listen, and the problems besides the reason.
    fn why_unreached(found: Result<Program, ProgramError>) -> (Reason, Vec<String>) {
        let error = found.unwrap_err();
        match error {
            ProgramError::Unreachable(unreachable) => match unreachable.why {
                WhyUnreachable::DoesNotListen { reason, problems, .. } => (reason, problems),
                why => panic!("{why:?}"),
            },
            error => panic!("{error:?}"),
        }
    }

    fn listen(dir: &Path, name: &str) -> UnixListener {
        let listener = SocketDirectory::create(dir).unwrap().listen(name).unwrap();
        let listener = UnixListener::from(listener);
        listener.set_nonblocking(false).unwrap();
        listener
    }

    /// Answers each question to a program's listener with `answer`. Ends when a connection sends something that is not
    /// Dormouse's protocol.
    fn answer_all(listener: &UnixListener, answer: &ProgramToTool) {
        loop {
            let (stream, _) = listener.accept().unwrap();
            match Conversation::answer(stream.into(), &[Edge::ToolProgram], Deadline::after(PATIENCE)) {
                Ok(mut conversation) => {
                    let _question: ToolToProgram = conversation.receive().unwrap();
                    conversation.send(answer).unwrap();
                }
                Err(Failure::Mismatch(_)) => return,
                // A client that only checks whether a process listens asks nothing.
                Err(_) => {}
            }
        }
    }

    #[test]
    fn a_program_is_found_by_any_of_its_ids_and_answers() {
        let place = tempfile::tempdir().unwrap();
        let me = std::process::id();
        let listener = listen(place.path(), &format!("{me}.0.sock"));
        // This process listens there too, but has no such id in any namespace.
        let _other = listen(place.path(), "4200000.0.sock");
        std::thread::scope(|scope| {
            scope.spawn(|| answer_all(&listener, &ProgramToTool::Error { text: "no\u{1b}[2J".into() }));
            let program = find_by(me, Identity::of, place.path()).unwrap();
            assert_eq!(program.tracer_count(), 1);
            let answer = program.ask(&ToolToProgram::List).unwrap().remove(0);
            assert_eq!(program.refusal(answer).to_string(), format!("process {me}: no\u{fffd}[2J"));
            UnixStream::connect(place.path().join(format!("{me}.0.sock"))).unwrap().write_all(&[0]).unwrap();
        });
        // Models a container: the process knows itself by another id.
        let inside = |pid| Identity::of(pid).map(|identity| Identity { ids: vec![pid, 4_200_000], ..identity });
        let program = find_by(me, inside, place.path()).unwrap();
        assert_eq!(program.tracer_count(), 2);
    }

    #[test]
    fn a_program_whose_socket_just_changed_is_read_again() {
        let (place, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let me = std::process::id();
        let _listener = listen(place.path(), &format!("{me}.0.sock"));
        let (end, is_over) = std::sync::mpsc::channel::<()>();
        let wait_for_end = move || is_over.recv().unwrap_err();
        let thread = std::thread::Builder::new().name("dormouse".into()).spawn(wait_for_end).unwrap();
        dormouse_testing::wait_until("the thread has its name", || listener_of(me).is_some());
        let looks = Cell::new(0);
        let directories_of = |_| {
            looks.set(looks.get() + 1);
            vec![if looks.get() < 3 { empty.path().to_owned() } else { place.path().to_owned() }]
        };
        let wait = &mut Wait { limit: None, on_wait: &mut |_| {} };
        let program = Program::find_by(me, Identity::of, directories_of, wait).unwrap();
        assert_eq!((program.tracer_count(), looks.get()), (1, 3));
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn the_id_of_another_process_is_refused() {
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
        let program = find_by(me, lookup, place.path()).unwrap();
        let error = program.ask(&ToolToProgram::List).unwrap_err();
        let ended = "the process has ended meanwhile";
        assert!(matches!(&error, ProgramError::Failed(text) if text.contains(ended)), "{error:?}");
        // The process is replaced between its look-up and the first connection.
        LOOKED.set(1);
        let (_, problems) = why_unreached(find_by(me, lookup, place.path()));
        assert!(problems.iter().any(|problem| problem.contains(ended)), "{problems:?}");
    }

    #[test]
    fn a_process_that_just_started_is_read_again() {
        let mut looks = 0;
        let mut look = |enough: u32| {
            looks += 1;
            if looks < enough { Err(looks) } else { Ok(looks) }
        };
        assert_eq!(while_young(|| look(3), || true), Ok(3));
        let mut ages = [true, false].into_iter();
        assert_eq!(while_young(|| look(99), || ages.next().unwrap()), Err(5));
        let mut child = std::process::Command::new("sleep").arg("infinity").spawn().unwrap();
        let year = Duration::from_secs(365 * 86_400);
        assert!(process::is_young(child.id(), year) && !process::is_young(child.id(), Duration::ZERO));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process::is_young(child.id(), year));
    }

    #[test]
    fn an_impostor_at_a_programs_socket_is_not_asked() {
        let place = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sleep").arg("infinity").spawn().unwrap();
        let _listener = listen(place.path(), &format!("{}.0.sock", child.id()));
        let unreached = why_unreached(find_by(child.id(), Identity::of, place.path()));
        child.kill().unwrap();
        // The child is a zombie now.
        let dead = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        let child_pid = rustix::process::Pid::from_child(&child);
        rustix::process::waitid(rustix::process::WaitId::Pid(child_pid), dead).unwrap();
        assert_eq!(why_unreached(Program::find(child.id())).0, Reason::Zombie);
        let (reason, problems) = unreached;
        if dormouse_testing::is_emulated() {
            let lack = dormouse_testing::Lack::emulated("`sleep` is a program of another machine");
            dormouse_testing::skip_part("the program's own reason", lack);
        } else {
            assert_eq!(reason, Reason::NoTracepoints(NoTracepoints::InProcess(0)));
        }
        let stranger = format!("it is process {} that listens there", std::process::id());
        assert!(problems.iter().any(|problem| problem.contains(&stranger)), "{problems:?}");
        child.wait().unwrap();
        let none = Unreachable::new(child.id(), WhyUnreachable::NoProcess);
        assert_eq!(Program::find(child.id()).unwrap_err(), ProgramError::Unreachable(none));
    }

    #[test]
    fn only_the_requested_process_is_accepted() {
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

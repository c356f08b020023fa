//! The server's thread: one `epoll` for the session's socket, its clients, and the ends of processes.
//!
//! # At the limit of descriptors
//! One descriptor is kept in reserve. If accept(2) finds no free descriptor, the reserve is closed, one client is
//! accepted in its place, and the socket is ignored until that client has its answer: a program is refused with the
//! reason, and tools are answered. So the thread does not spin, every client gets an answer, and refused ones are
//! counted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dormouse_abi::message::{Edge, OwnerToTool};
use dormouse_transport::Peer;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::directory::SocketDirectory;
use crate::error::Error;
use crate::limits::{descriptors_max, processes_max};
use crate::processes::{Processes, WATCHED};
use crate::server::{Answer, CLIENT_COUNT_MAX, Job, Next, Server, Service, THREAD_COUNT_MAX};
use crate::unheard::UnheardFile;

/// Maximum number of sockets of dead programs tried in one sweep: when a session begins or ends, and while it is live.
const SWEPT_COUNT_MAX: usize = 1_000;
const SWEPT_COUNT_MEANWHILE: usize = 100;
/// Interval between sweeps while a session is live.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// How long the socket is ignored when it cannot be accepted from.
const PAUSE: Duration = Duration::from_millis(100);

/// How long clients that connected before a session's end are served after it.
const PATIENCE_AT_END: Duration = Duration::from_millis(500);

/// Number of events that are taken at a time.
const EVENT_COUNT: usize = 64;

const LISTENER: u64 = WATCHED - 1;
const END: u64 = WATCHED - 2;

/// A session's listening socket. It outlives its server: clients that connect without one wait.
#[derive(Debug)]
pub struct SessionListener {
    directory: SocketDirectory,
    name: String,
    listener: OwnedFd,
    unheard: Arc<UnheardFile>,
}

impl SessionListener {
    /// Makes the socket, in a directory that belongs to this user alone.
    ///
    /// # Errors
    /// The errors of [`SocketDirectory::create`]; [`Error::Listen`], [`Error::TooManySessions`].
    pub fn create(dir: &Path) -> Result<SessionListener, Error> {
        let directory = SocketDirectory::create(dir)?;
        directory.sweep(SWEPT_COUNT_MAX);
        let (listener, name) = session_socket(&directory)?;
        Ok(SessionListener::of(directory, name, listener, true))
    }

    /// Takes over the socket at this path, which another process has made and this one has inherited.
    ///
    /// # Errors
    /// The errors of [`SocketDirectory::create`]; [`Error::Unnamed`].
    pub fn inherited(path: &Path, listener: OwnedFd) -> Result<SessionListener, Error> {
        let (dir, name) = (path.parent(), path.file_name().and_then(|name| name.to_str()));
        let (Some(dir), Some(name)) = (dir, name) else {
            return Err(Error::Unnamed);
        };
        Ok(SessionListener::of(SocketDirectory::create(dir)?, name.into(), listener, false))
    }

    fn of(directory: SocketDirectory, name: String, listener: OwnedFd, is_new: bool) -> SessionListener {
        let unheard = Arc::new(UnheardFile::beside(&directory, &name, is_new));
        SessionListener { directory, name, listener, unheard }
    }

    /// Returns the count of programs that have not reached the socket in time.
    pub fn unheard(&self) -> Arc<UnheardFile> {
        Arc::clone(&self.unheard)
    }

    /// Returns the path where programs join.
    pub fn path(&self) -> PathBuf {
        self.directory.path_of(&self.name)
    }

    /// Returns the socket, for a process that inherits it.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Removes the socket, so that no client can connect any more.
    pub fn remove(&self) {
        self.directory.remove(&self.name);
    }
}

/// A session's socket, and the thread that serves it.
#[derive(Debug)]
pub struct SessionServer {
    path: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the thread and its creator.
#[derive(Debug)]
struct Shared {
    directory: SocketDirectory,
    name: String,
    /// Readable once the thread must end.
    end: OwnedFd,
    /// Connection of a tool that has asked for the session's end and waits for it.
    stopper: Mutex<Option<OwnedFd>>,
}

impl Shared {
    fn stopper(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.stopper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionServer {
    /// Starts the thread. `descriptors_kept` is the number of descriptors reserved for files that the session opens
    /// later.
    ///
    /// # Errors
    /// [`Error::Serve`], [`Error::Thread`].
    pub fn start(
        listening: SessionListener,
        service: Arc<impl Service>,
        processes: Arc<Processes>,
        may_be_stopped: bool,
        descriptors_kept: u64,
    ) -> Result<SessionServer, Error> {
        let SessionListener { directory, name, listener, .. } = listening;
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::Serve)?;
        let others = descriptors_kept + (CLIENT_COUNT_MAX + THREAD_COUNT_MAX) as u64;
        let server =
            Server::new(service, processes, may_be_stopped, processes_max(descriptors_max(), others), Instant::now());
        let path = directory.path_of(&name);
        let shared = Arc::new(Shared { directory, name, end, stopper: Mutex::default() });
        let serving = EventLoop::new(server, listener, Arc::clone(&shared)).map_err(Error::Serve)?;
        let thread = std::thread::Builder::new().name("dormouse-serve".into()).spawn(move || serving.run());
        Ok(SessionServer { path, shared, thread: Some(thread.map_err(Error::Thread)?) })
    }

    /// Returns the path where programs join.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a tool has asked for the session's end.
    pub fn is_stop_requested(&self) -> bool {
        self.shared.stopper().is_some()
    }

    /// Sends the session's summary to the tool that asked for its end.
    pub fn answer_stop(&self, summary: String) {
        let stopper = self.shared.stopper().take();
        if let Some(stopper) = stopper {
            Answer::Tool(OwnerToTool::Stopped { summary }).tell(stopper);
        }
    }

    /// Closes the socket, so that no program can join any more. The returned function waits for answers under way.
    pub fn closing(&mut self) -> impl FnOnce() + Send + 'static {
        // Only once: afterwards the name may belong to another session.
        let thread = self.thread.take();
        if thread.is_some() {
            self.shared.directory.remove(&self.shared.name);
            let _ = rustix::io::write(&self.shared.end, &1_u64.to_ne_bytes());
        }
        let shared = Arc::clone(&self.shared);
        move || {
            if let Some(thread) = thread {
                let _ = thread.join();
                shared.directory.sweep(SWEPT_COUNT_MAX);
            }
        }
    }

    /// Closes the socket, and waits for answers under way.
    pub fn close(&mut self) {
        self.closing()();
    }
}

impl Drop for SessionServer {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns a listening socket and its name.
fn session_socket(directory: &SocketDirectory) -> Result<(OwnedFd, String), Error> {
    let pid = std::process::id();
    for number in 0_u32.. {
        let name = format!("session-{pid}-{number}.sock");
        match directory.listen(&name) {
            Ok(listener) => return Ok((listener, name)),
            // The name belongs to another session of this process, or was left by a process of the same id.
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(Error::Listen { path: directory.path_of(&name), error }),
        }
    }
    Err(Error::TooManySessions)
}

struct EventLoop<S: Service> {
    server: Server<S>,
    listener: OwnedFd,
    shared: Arc<Shared>,
    processes: Arc<Processes>,
    service: Arc<S>,
    /// The descriptor in reserve; `None` while a client uses it, or if none could be opened.
    reserve: Option<OwnedFd>,
    /// Time until which the socket is ignored.
    paused_until: Option<Instant>,
    answering: Vec<JoinHandle<()>>,
    swept_at: Instant,
    /// Time until which clients are served, once the session ends.
    ends_at: Option<Instant>,
}

impl<S: Service> EventLoop<S> {
    fn new(server: Server<S>, listener: OwnedFd, shared: Arc<Shared>) -> Result<EventLoop<S>, Errno> {
        let (processes, service) = (server.processes(), server.service());
        let wait_for = |fd: &OwnedFd, token| {
            epoll::add(processes.epoll(), fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        };
        wait_for(&listener, LISTENER)?;
        wait_for(&shared.end, END)?;
        let reserve = Some(in_reserve()?);
        Ok(EventLoop {
            server,
            listener,
            shared,
            processes,
            service,
            reserve,
            paused_until: None,
            answering: Vec::new(),
            swept_at: Instant::now(),
            ends_at: None,
        })
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENT_COUNT);
        while !self.is_over() {
            let timeout = self.timeout();
            events.clear();
            match epoll::wait(self.processes.epoll(), spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                // No wait that is set up like this one fails otherwise.
                Err(_) => break,
            }
            self.answering.retain(|thread| !thread.is_finished());
            self.server.threads = self.answering.len();
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    END => self.begin_end(),
                    serial if serial & WATCHED != 0 => {
                        self.service.leave(&|| self.processes.ended(serial & !WATCHED));
                    }
                    token => self.turn(token),
                }
            }
            self.keep_up();
        }
        for thread in self.answering {
            let _ = thread.join();
        }
    }

    fn is_over(&self) -> bool {
        self.ends_at.is_some_and(|at| self.server.client_count() == 0 || at <= Instant::now())
    }

    fn timeout(&self) -> Timespec {
        let sweeps_at = Some(self.swept_at + SWEEP_INTERVAL);
        let next = [self.server.next_deadline(), self.paused_until, self.ends_at, sweeps_at];
        let left =
            next.into_iter().flatten().min().map_or(SWEEP_INTERVAL, |at| at.saturating_duration_since(Instant::now()));
        // The deadline must have passed when the wait ends.
        let left = left + Duration::from_micros(1);
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
    }

    /// Does periodic work.
    fn keep_up(&mut self) {
        let now = Instant::now();
        self.server.expire(now);
        if self.paused_until.is_some_and(|until| until <= now || self.server.client_count() == 0) {
            self.resume(now);
        }
        if now.saturating_duration_since(self.swept_at) >= SWEEP_INTERVAL {
            self.swept_at = now;
            self.shared.directory.sweep(SWEPT_COUNT_MEANWHILE);
        }
    }

    /// Accepts waiting clients.
    fn accept(&mut self) {
        for _ in 0..EVENT_COUNT {
            if self.paused_until.is_some() {
                return;
            }
            match self.accept_one() {
                Ok(socket) => self.take_in(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE) => {
                    // The client accepted in its place has its turn at once, or soon.
                    drop(self.reserve.take());
                    let accepted = self.accept_one();
                    self.pause();
                    accepted.into_iter().for_each(|socket| self.take_in(socket));
                }
                Err(Errno::AGAIN) => return,
                Err(_) => self.pause(),
            }
        }
    }

    fn accept_one(&self) -> Result<OwnedFd, Errno> {
        rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    fn take_in(&mut self, socket: OwnedFd) {
        let Ok(peer) = Peer::of(&socket) else { return };
        let token = self.server.accept(socket, peer, Instant::now());
        if let Some(socket) = self.server.socket(token) {
            let (epoll, data) = (self.processes.epoll(), epoll::EventData::new_u64(token));
            // A client that cannot be waited for is ended by its deadline.
            let _ = epoll::add(epoll, socket, data, epoll::EventFlags::IN);
        }
        // Most clients have sent their question already.
        self.turn(token);
    }

    /// Ignores the socket for a while.
    fn pause(&mut self) {
        let _ = epoll::delete(self.processes.epoll(), &self.listener);
        self.paused_until = Some(Instant::now() + PAUSE);
    }

    /// Watches the socket again, if there is a descriptor in reserve.
    fn resume(&mut self, now: Instant) {
        if self.reserve.is_none() {
            self.reserve = in_reserve().ok();
        }
        // Without one, new clients wait in the backlog.
        self.paused_until = Some(now + PAUSE).filter(|_| self.reserve.is_none());
        if self.paused_until.is_none() && self.ends_at.is_none() {
            let data = epoll::EventData::new_u64(LISTENER);
            let _ = epoll::add(self.processes.epoll(), &self.listener, data, epoll::EventFlags::IN);
        }
    }

    fn turn(&mut self, token: u64) {
        match self.server.turn(token, Instant::now()) {
            Next::Wait { to_write } => {
                let Some(socket) = self.server.socket(token) else { return };
                let flags = if to_write { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
                let _ = epoll::modify(self.processes.epoll(), socket, epoll::EventData::new_u64(token), flags);
            }
            Next::Closed => {}
            Next::Later(socket, edge, job) => {
                let _ = epoll::delete(self.processes.epoll(), &socket);
                self.answer_from_thread(socket, edge, job);
            }
            Next::Stop(socket) => {
                let _ = epoll::delete(self.processes.epoll(), &socket);
                *self.shared.stopper() = Some(socket);
            }
        }
    }

    fn answer_from_thread(&mut self, socket: OwnedFd, edge: Edge, job: Job) {
        // The socket is handed over once the thread exists; if it cannot be created, the client is told.
        let (hand_over, handed_over) = std::sync::mpsc::channel::<OwnedFd>();
        let run = move || {
            if let Ok(socket) = handed_over.recv() {
                job().tell(socket);
            }
        };
        match std::thread::Builder::new().name("dormouse-answer".into()).spawn(run) {
            Ok(thread) => {
                let _ = hand_over.send(socket);
                self.answering.push(thread);
            }
            // Does not block: there is room for a line in the socket's buffer.
            Err(error) => Answer::refusal(edge, Error::Thread(error).to_string()).tell(socket),
        }
    }

    /// Shuts the socket down, so that no client can connect any more, and answers those that have connected.
    fn begin_end(&mut self) {
        if self.ends_at.is_some() {
            return;
        }
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        let _ = epoll::delete(self.processes.epoll(), self.shared.end.as_fd());
        self.ends_at = Some(Instant::now() + PATIENCE_AT_END);
        while self.paused_until.is_none()
            && let Ok(socket) = self.accept_one()
        {
            self.take_in(socket);
        }
        let _ = epoll::delete(self.processes.epoll(), &self.listener);
    }
}

/// Opens a descriptor whose only use is to be closed.
fn in_reserve() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/null", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

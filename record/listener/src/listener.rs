//! The thread that listens, its states, and how it is stopped.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use dormouse_transport::{Deadline, Monotonic, try_connect};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::thread::futex::{self, Timespec};

use crate::conversation::{Answer, converse};
use crate::socket::{Socket, directories, leave_descriptors, sweep};
use crate::spawn::{is_last, spawn};

/// No thread.
pub const IDLE: u32 = 0;
/// The thread was started, and has no socket yet.
pub const STARTING: u32 = 1;
/// The thread has its socket.
pub const LISTENING: u32 = 2;
/// The thread should end.
pub const STOPPING: u32 = 3;
/// No thread: the tracer starts it when a tool has sent a signal and a tracepoint is passed.
pub const SIGNAL: u32 = 4;

/// Maximum wait for the thread to end, since it may be serving a tool.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum wait for a thread that is ending already.
const WAKE_PATIENCE: Duration = Duration::from_millis(500);
/// Pause when the system is out of descriptors or memory. The pending connection would end a wait for connections at
/// once.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Interval at which the thread checks whether the program has other threads.
pub const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The listening thread of an object, and its state.
#[derive(Debug)]
pub struct Listener {
    /// One of the states above; a futex.
    pub state: AtomicU32,
    /// Path of the thread's socket. Never freed: one for each time that the thread starts to listen.
    place: AtomicPtr<PathBuf>,
    /// Id of the thread.
    tid: AtomicU32,
}

/// What the thread does beside accepting connections.
pub struct Service<'a> {
    /// Time without a connection after which the thread checks whether it should end.
    pub pause: Timespec,
    /// Whether it moves to another socket as soon as the program has changed its user, or only after a pause.
    pub moves_at_once: bool,
    /// Called when its socket can be found.
    pub on_listening: &'a dyn Fn(),
    /// Whether it should end when no tool has connected for a pause.
    pub is_idle: &'a dyn Fn() -> bool,
    /// Answers a tool.
    pub answer: Answer<'a>,
}

/// Why the thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// [`Listener::stop`] was called.
    Stopped,
    /// The program has changed its user, and there is no directory for a socket of the new one.
    UserHasChanged,
    /// No tool has connected for some time and [`Service::is_idle`] said so, or the program has no other threads any
    /// more.
    Idle,
    /// The descriptor no longer refers to the socket, or there is no directory for one.
    Lost,
}

impl Default for Listener {
    fn default() -> Listener {
        Listener::new()
    }
}

impl Listener {
    /// Returns a listener without a thread.
    pub const fn new() -> Listener {
        Listener { state: AtomicU32::new(IDLE), place: AtomicPtr::new(core::ptr::null_mut()), tid: AtomicU32::new(0) }
    }

    /// Changes the state, and wakes the threads that wait for that.
    pub fn change_to(&self, state: u32) {
        // (S') Release pairs with (S).
        self.state.store(state, Ordering::Release);
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, u32::MAX);
    }

    /// Starts the thread, for the caller that has changed the state from [`IDLE`] to [`STARTING`].
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(&self, run: fn()) -> std::io::Result<()> {
        if spawn(c"dormouse", run) {
            return Ok(());
        }
        self.state.store(IDLE, Ordering::Relaxed);
        Err(Error::other("cannot start a thread; is the limit of processes (ulimit -u) reached?"))
    }

    /// Waits until the deadline for the thread's socket. That the thread does not run in time is not reported.
    ///
    /// # Errors
    /// There is no directory for the socket.
    pub fn wait_for_socket(&self, deadline: &Deadline<'_>) -> std::io::Result<()> {
        let _ = self.wait_for_change(STARTING, deadline);
        if self.state.load(Ordering::Relaxed) == IDLE {
            return Err(Error::other("no directory for a socket; set XDG_RUNTIME_DIR to a directory of your own"));
        }
        Ok(())
    }

    /// Waits until the state is another one.
    ///
    /// # Errors
    /// The deadline has passed.
    pub fn wait_for_change(&self, from: u32, deadline: &Deadline<'_>) -> std::io::Result<()> {
        while self.state.load(Ordering::Relaxed) == from {
            let waited = deadline.spend(|left| {
                let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                // The state tells the result, whatever ended the wait.
                let _ = futex::wait(&self.state, futex::Flags::PRIVATE, from, Some(&timeout));
                Ok(())
            });
            waited.map_err(|_| ErrorKind::TimedOut)?;
        }
        Ok(())
    }

    /// Ends the thread, and waits until it has ended, for at most five seconds. `end_signals` replaces that in the state
    /// [`SIGNAL`], and changes the state to [`IDLE`].
    ///
    /// # Errors
    /// The thread cannot be reached: the directory of its socket is removed, or not accessible after `chroot`.
    pub fn stop(&self, end_signals: impl Fn()) -> std::io::Result<()> {
        let deadline = Deadline::after(STOP_PATIENCE);
        let state = &self.state;
        loop {
            // (S) Acquire pairs with (S').
            match state.load(Ordering::Acquire) {
                IDLE => break,
                STOPPING => self.wait_for_change(STOPPING, &deadline)?,
                SIGNAL => {
                    if state.compare_exchange(SIGNAL, STOPPING, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                        end_signals();
                    }
                }
                from if state.compare_exchange(from, STOPPING, Ordering::Relaxed, Ordering::Relaxed).is_err() => {}
                // The thread checks the state once it has a socket.
                STARTING => {}
                _ => self.wake()?,
            }
        }
        // The kernel removes parts of a thread after its last instruction.
        let (pid, tid) = (std::process::id(), self.tid.load(Ordering::Relaxed));
        // SAFETY: tgkill(2) with signal 0 only checks.
        while tid != 0 && unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) } == 0 {
            if deadline.left().is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Ends the thread's wait by connecting to its socket.
    fn wake(&self) -> std::io::Result<()> {
        // (Q) Acquire pairs with (Q'). SAFETY: null, or never freed.
        let place = unsafe { self.place.load(Ordering::Acquire).as_ref() }.ok_or(ErrorKind::NotFound)?;
        match try_connect(place) {
            // If other connections are pending, the thread is awake.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            // The thread was awake, has seen the request to stop, and has removed its socket.
            Err(_) if self.wait_for_change(STOPPING, &Deadline::after(WAKE_PATIENCE)).is_ok() => Ok(()),
            Err(error) => {
                // Restores the state: the thread keeps listening.
                let _ = self.state.compare_exchange(STOPPING, LISTENING, Ordering::Relaxed, Ordering::Relaxed);
                let text = format!("cannot reach the listener at {}: {error}", place.display());
                Err(Error::new(Error::from(error).kind(), text))
            }
        }
    }

    /// Returns the state, and forgets the thread, in a forked child, which does not have it.
    pub fn after_fork(&self) -> u32 {
        self.tid.store(0, Ordering::Relaxed);
        self.state.swap(IDLE, Ordering::Relaxed)
    }

    /// Listens, and returns when there is a reason to end. Called by the thread, which then leaves the state
    /// [`LISTENING`] or [`STARTING`].
    pub fn serve(&self, service: &Service<'_>) -> End {
        self.tid.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
        let is_shared = !leave_descriptors();
        let mut end = End::Lost;
        while let Some(socket) = directories().find_map(|dir| Socket::bind(&dir, is_shared)) {
            let place = Box::into_raw(Box::new(socket.path.clone()));
            // (Q') Release pairs with (Q).
            self.place.store(place, Ordering::Release);
            // Unless it should stop meanwhile. (S') Release pairs with (S).
            let _ = self.state.compare_exchange(STARTING, LISTENING, Ordering::Release, Ordering::Relaxed);
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, u32::MAX);
            (service.on_listening)();
            sweep(&socket.path);
            end = self.accept(&socket, service);
            self.remove(socket, service);
            if end != End::UserHasChanged {
                break;
            }
        }
        end
    }

    /// Answers tools until there is a reason to end. Checks for one when no tool has connected for a pause.
    fn accept(&self, socket: &Socket, service: &Service<'_>) -> End {
        loop {
            if self.state.load(Ordering::Relaxed) == STOPPING {
                return End::Stopped;
            }
            if !socket.is_own() {
                return End::Lost;
            }
            match rustix::net::accept_with(&socket.fd, SocketFlags::CLOEXEC) {
                // A connection from this process only ends the wait.
                Ok(_) if self.state.load(Ordering::Relaxed) == STOPPING => {}
                Ok(stream) => drop(converse(stream, &Monotonic, service.answer)),
                Err(Errno::AGAIN) => {
                    // A change of user also interrupts the wait.
                    let has_changed = || rustix::process::geteuid().as_raw() != socket.uid;
                    if service.moves_at_once && has_changed() {
                        return End::UserHasChanged;
                    }
                    if poll(&mut [PollFd::new(&socket.fd, PollFlags::IN)], Some(&service.pause)) == Ok(0) {
                        if is_last() || (service.is_idle)() {
                            return End::Idle;
                        }
                        if has_changed() {
                            return End::UserHasChanged;
                        }
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    let _ = futex::wait(&self.state, futex::Flags::PRIVATE, LISTENING, Some(&NAP));
                }
                Err(_) => return End::Lost,
            }
        }
    }

    /// Removes the socket, unless the descriptor is the program's by now. The name is removed first, so that no tool
    /// finds a dead socket. Tools that have connected before are answered, unless the thread should stop.
    fn remove(&self, socket: Socket, service: &Service<'_>) {
        let Some(fd) = socket.unlink() else { return };
        while self.state.load(Ordering::Relaxed) != STOPPING
            && let Ok(stream) = rustix::net::accept_with(&fd, SocketFlags::CLOEXEC)
        {
            let _ = converse(stream, &Monotonic, service.answer);
        }
    }
}

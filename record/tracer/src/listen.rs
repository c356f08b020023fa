//! The socket on which tools talk to the program, and the one thread that sleeps on it.
//!
//! ```text
//!   IDLE ──start──▶ STARTING ──bound──▶ LISTENING ──stop──▶ STOPPING ──the thread──▶ IDLE
//!     ▲                │   └───stop───────────────────────────▲
//!     └──no socket─────┘
//! ```
//! By a signal, the thread is there only while tools talk, or the program is in a session (`wake`):
//!
//! ```text
//!   IDLE ──socket, handler──▶ SIGNAL ──a tool connects, a tracepoint is passed──▶ STARTING ──▶ LISTENING ──nobody comes──▶ SIGNAL
//!     ▲                         │ stop
//!     └─────────────────────────┘
//! ```
//! The thread has a table of descriptors of its own, where only its socket is: the program has no descriptor more than without it, cannot close or
//! replace the thread's, and may be at its limit. Where the kernel refuses such a table (before Linux 5.9, some containers) the program's
//! is used: there the socket is never one of the first three, and before each use the thread looks whether the number still stands for it.
//!
//! A socket says on whose behalf it listens: its user at the time of listen(2). When the program becomes another user, libc has every thread
//! change, which interrupts the thread's wait; it then listens anew, where that user's programs do. So does a forked child.
//!
//! Nothing is done at the program's end, where a filter of system calls may be in force. What remains of a dead program's socket is a name
//! that refuses connections; the next program that listens there takes it away.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use dormouse_abi::environment::{is_program_socket, program_socket_name, socket_dir};
use dormouse_abi::message::{Edge, ProgramToTool};
use dormouse_transport::{Clock, Conversation, Deadline, Monotonic, Peer, is_answered};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;
use rustix::thread::futex;

use crate::environment::Way;
use crate::spawn::spawn;
use crate::{clock, control, environment, join, thread, wake};

const IDLE: u32 = 0;
const STARTING: u32 = 1;
const LISTENING: u32 = 2;
const STOPPING: u32 = 3;
/// No thread: there will be one when a tool has connected and a tracepoint is passed.
const SIGNAL: u32 = 4;
/// Futex.
static STATE: AtomicU32 = AtomicU32::new(IDLE);
/// Whether the program has said that it is not to be listened to unless it says so.
static IS_DECLINED: AtomicBool = AtomicBool::new(false);
/// Where the thread listens. Never freed: one for each time that it begins to.
static PLACE: AtomicPtr<PathBuf> = AtomicPtr::new(core::ptr::null_mut());
/// The socket, while the state is [`SIGNAL`]; null otherwise.
static WAITING: AtomicPtr<Socket> = AtomicPtr::new(core::ptr::null_mut());
/// The number of that socket, also while the thread that it has called listens to it; -1 without one.
static SIGNALLING_FD: AtomicI32 = AtomicI32::new(-1);
/// The thread's id.
static TID: AtomicU32 = AtomicU32::new(0);

/// How long a tool may take over its question.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// How long the end of the thread may take: it may be talking to a tool.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// How long a thread may take that is ending already.
const WAKE_PATIENCE: Duration = Duration::from_millis(500);
/// How long the thread waits where the system has no descriptors or memory left: the connection waits too, and a wait for it would be none.
const NAP: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Connections that may wait.
const BACKLOG: i32 = 16;
/// How long a thread that a signal has called stays when nobody comes.
const STAY: futex::Timespec = futex::Timespec { tv_sec: 2, tv_nsec: 0 };
/// How old a socket is that has certainly been listened to, if it ever will be.
const LISTENED_TO_AFTER: Duration = Duration::from_secs(2);

/// Lets tools reach the program from now on, also in children that it forks: starts a thread that sleeps on a socket, in
/// `$XDG_RUNTIME_DIR/dormouse` or `/tmp/dormouse-UID`. A linked program does so by itself before `main`, unless it is in a session of
/// `dormouse record`; a program that enters a sandbox stops that by [`stop_listening`].
///
/// Blocking, for 50 ms at most; not async-signal-safe.
///
/// # Errors
/// `DORMOUSE_LISTEN=0` forbids it; the program runs with privileges that its caller has not (`AT_SECURE`); there is no thread to be had,
/// or no directory for the socket.
pub fn listen() -> std::io::Result<()> {
    listen_by(environment::way_to_listen().flatten().unwrap_or(Way::Thread))
}

/// As [`listen`], in this way, whatever the environment says but for `DORMOUSE_LISTEN=0`. What listens in the other way is stopped before.
///
/// # Errors
/// As [`listen`] and [`stop_listening`]; the program has a handler of its own for `SIGURG`.
pub fn listen_by(way: Way) -> std::io::Result<()> {
    let refused = |text: &str| Err(Error::new(ErrorKind::PermissionDenied, text));
    if environment::is_secure() {
        return refused("a program with privileges that its caller has not does not listen");
    }
    if environment::way_to_listen() == Some(None) {
        return refused("DORMOUSE_LISTEN=0 forbids to listen");
    }
    let is_by_signal = SIGNALLING_FD.load(Ordering::Relaxed) >= 0;
    if STATE.load(Ordering::Relaxed) != IDLE && is_by_signal != (way == Way::Signal) {
        stop_listening()?;
    }
    IS_DECLINED.store(false, Ordering::Relaxed);
    match way {
        Way::Thread => begin(Some(join::deadline())),
        Way::Signal => wait_for_signal(),
    }
}

/// Ends what [`listen`] has begun, or what a program that is linked with Dormouse does by itself: when this returns there is neither thread nor
/// socket. To be called before a program enters a sandbox: the thread would stay outside of it, `unshare(CLONE_NEWUSER)` would refuse a
/// process that has it, and a change of user would have to be one that all threads can make.
///
/// Recording goes on. Blocking, for as long as the answer to a tool takes, five seconds at most; not async-signal-safe.
///
/// # Errors
/// The thread cannot be reached: the directory of its socket is gone, or out of reach after `chroot`.
pub fn stop_listening() -> std::io::Result<()> {
    IS_DECLINED.store(true, Ordering::Relaxed);
    let deadline = Deadline::after(STOP_PATIENCE);
    loop {
        // (S) Acquire pairs with (S').
        match STATE.load(Ordering::Acquire) {
            IDLE => break,
            STOPPING => wait_for_change(STOPPING, &deadline)?,
            SIGNAL => {
                if STATE.compare_exchange(SIGNAL, STOPPING, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    take_waiting().into_iter().for_each(Socket::remove);
                    end_signals();
                }
            }
            state if STATE.compare_exchange(state, STOPPING, Ordering::Relaxed, Ordering::Relaxed).is_err() => {}
            // It looks at the state once it has a socket.
            STARTING => {}
            _ => wake()?,
        }
    }
    // Of what it was, the kernel takes some down after its last instruction.
    let (pid, tid) = (thread::own_pid(), TID.load(Ordering::Relaxed));
    // SAFETY: tgkill(2) of no signal asks only.
    while tid != 0 && unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) } == 0 {
        if deadline.left().is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Listens unless the program has said that it does not want that. Without a place for the socket or a thread, it simply cannot be reached. Waits
/// for the thread to have its socket, so that the program can be reached from `main` on.
pub(crate) fn start_by_default(way: Way, deadline: Deadline<'_>) {
    if !IS_DECLINED.load(Ordering::Relaxed) && STATE.load(Ordering::Relaxed) == IDLE {
        let _ = match way {
            Way::Thread => begin(Some(deadline)),
            Way::Signal => wait_for_signal(),
        };
    }
}

/// In a forked child, which has no such thread: starts one when the parent had one.
pub(crate) fn after_fork() {
    wake::after_fork();
    let is_listening = matches!(STATE.swap(IDLE, Ordering::Relaxed), STARTING | LISTENING | SIGNAL);
    let signalling = SIGNALLING_FD.swap(-1, Ordering::Relaxed);
    if signalling >= 0 {
        WAITING.store(core::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the parent's socket, whose value is forgotten here. If the program has put another file there, it has closed a descriptor that it
        // does not know.
        unsafe { libc::close(signalling) };
    }
    if is_listening {
        // A child does not wait: whoever wants to reach it has to find it first.
        let _ = if signalling >= 0 { wait_for_signal() } else { begin(None) };
    }
}

/// Has the kernel send a signal when a tool connects.
fn wait_for_signal() -> std::io::Result<()> {
    if STATE.compare_exchange(IDLE, STARTING, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return Ok(());
    }
    let begun = begin_signals();
    if begun.is_err() {
        // (S') Release pairs with (S).
        STATE.store(IDLE, Ordering::Release);
    }
    begun
}

fn begin_signals() -> std::io::Result<()> {
    // SAFETY: integers, sets of bits and a pointer that may be null, of which zeroes are values.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: only asks, with room for the answer.
    unsafe { libc::sigaction(libc::SIGURG, core::ptr::null(), &raw mut action) };
    let ours = on_signal as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    if ![libc::SIG_DFL, libc::SIG_IGN, ours as usize].contains(&action.sa_sigaction) {
        return Err(Error::new(ErrorKind::PermissionDenied, "the program has a handler of its own for SIGURG"));
    }
    let socket = bind_signalling()?;
    wake::prepare();
    control::lock().follow();
    action.sa_sigaction = ours as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler is of this type, async-signal-safe, and of this object, which is pinned.
    unsafe { libc::sigaction(libc::SIGURG, &raw const action, core::ptr::null_mut()) };
    wait_again(socket);
    Ok(())
}

/// A socket that can send this process the signal, and does not yet.
fn bind_signalling() -> std::io::Result<Socket> {
    let socket = directories().find_map(|dir| Socket::bind(&dir, true));
    let socket = socket
        .ok_or_else(|| Error::other("no directory for a socket; set XDG_RUNTIME_DIR to a directory of your own"))?;
    let fd = socket.fd.as_raw_fd();
    // SAFETY: numbers only, as fcntl(2) wants them; the socket is this process's.
    unsafe { libc::fcntl(fd, libc::F_SETOWN, thread::own_pid() as c_int) };
    // SAFETY: numbers only, as fcntl(2) wants them.
    unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) };
    SIGNALLING_FD.store(fd, Ordering::Relaxed);
    Ok(socket)
}

/// `F_SETSIG` of fcntl(2), which the crate `libc` does not have for every libc.
const F_SETSIG: c_int = 10;

/// Leaves the socket to the signal; whoever has connected in between has sent none.
fn wait_again(socket: Socket) {
    let fd = socket.fd.as_raw_fd();
    // SAFETY: numbers only, as fcntl(2) wants them.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK | libc::O_ASYNC) };
    let place = Box::into_raw(Box::new(socket.path.clone()));
    // (Q') Release pairs with (Q).
    PLACE.store(place, Ordering::Release);
    WAITING.store(Box::into_raw(Box::new(socket)), Ordering::Relaxed);
    // (S') Release pairs with (S), and with (T).
    let is_wanted = [STARTING, LISTENING]
        .into_iter()
        .any(|from| STATE.compare_exchange(from, SIGNAL, Ordering::AcqRel, Ordering::Relaxed).is_ok());
    if !is_wanted {
        take_waiting().into_iter().for_each(Socket::remove);
        return end_signals();
    }
    let _ = futex::wake(&STATE, futex::Flags::PRIVATE, u32::MAX);
    // SAFETY: looked at as a number: if it is another file by now, nothing is done but a look at a tracepoint.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // Does not wait.
    let now = futex::Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)) == Ok(1) {
        wake::want();
    }
}

fn take_waiting() -> Option<Socket> {
    let waiting = WAITING.swap(core::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: null, or of `wait_again`, and whoever swaps it away has it alone.
    (!waiting.is_null()).then(|| *unsafe { Box::from_raw(waiting) })
}

/// After the socket is gone.
fn end_signals() {
    SIGNALLING_FD.store(-1, Ordering::Relaxed);
    wake::rest();
    // The handler stays: a signal may be under way, which would be none of the program's.
    // (S') Release pairs with (S).
    STATE.store(IDLE, Ordering::Release);
    let _ = futex::wake(&STATE, futex::Flags::PRIVATE, u32::MAX);
}

/// Somebody has connected, or has sent the program such a signal for another reason, which it ignores.
extern "C" fn on_signal(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the thread's errno, which lives as long as the thread.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: this thread alone reads and writes its errno.
    let errno = unsafe { errno_at.read() };
    // SAFETY: the kernel's word for what has happened. Those that are sent by programs have a code of at most 0.
    let is_of_descriptor = unsafe { (*info).si_code } > 0;
    if is_of_descriptor && STATE.load(Ordering::Relaxed) == SIGNAL {
        wake::want();
    }
    // SAFETY: this thread's errno, which nobody else reads or writes.
    unsafe { errno_at.write(errno) };
}

/// A thread that passes a tracepoint, in ordinary context, while somebody waits: starts the listening thread.
#[cold]
pub(crate) fn start_woken() {
    // (T) Acquire pairs with (S'): the socket is there.
    if STATE.compare_exchange(SIGNAL, STARTING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    let inside = thread::enter_tracer();
    let Some(socket) = take_waiting() else { return };
    let socket = Box::into_raw(Box::new(socket));
    let run_there = SendPtr(socket);
    if !spawn(c"dormouse", move || run_woken(run_there)) {
        // The next tracepoint tries again.
        WAITING.store(socket, Ordering::Relaxed);
        let _ = STATE.compare_exchange(STARTING, SIGNAL, Ordering::Release, Ordering::Relaxed);
    }
    drop(inside);
}

struct SendPtr(*mut Socket);
// SAFETY: a box that the thread alone has once it runs.
unsafe impl Send for SendPtr {}

/// The thread that a signal has called.
fn run_woken(socket: SendPtr) {
    let SendPtr(socket) = socket;
    // SAFETY: made by `start_woken` for this thread alone.
    let mut socket = *unsafe { Box::from_raw(socket) };
    let _inside = thread::enter_tracer();
    TID.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
    wake::rest();
    // No more signals while it is looked at.
    // SAFETY: numbers only, as fcntl(2) wants them.
    unsafe { libc::fcntl(socket.fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    // Unless it is to stop meanwhile. (S') Release pairs with (S).
    let _ = STATE.compare_exchange(STARTING, LISTENING, Ordering::Release, Ordering::Relaxed);
    sweep(&socket.path);
    loop {
        let end = socket.serve(Some(&STAY));
        if end == End::Idle {
            return wait_again(socket);
        }
        socket.remove();
        socket = match end {
            End::UserHasChanged => match bind_signalling() {
                Ok(other) => other,
                Err(_) => return end_signals(),
            },
            _ => return end_signals(),
        };
        let place = Box::into_raw(Box::new(socket.path.clone()));
        // (Q') Release pairs with (Q).
        PLACE.store(place, Ordering::Release);
    }
}

/// Starts the thread, and waits until the deadline for what comes of it.
fn begin(deadline: Option<Deadline<'_>>) -> std::io::Result<()> {
    if STATE.compare_exchange(IDLE, STARTING, Ordering::Relaxed, Ordering::Relaxed).is_ok() && !spawn(c"dormouse", run)
    {
        STATE.store(IDLE, Ordering::Relaxed);
        return Err(Error::other("cannot start a thread; is the limit of processes (ulimit -u) reached?"));
    }
    if let Some(deadline) = deadline {
        // Whoever started it, and a thread that does not run in time is told of by nobody.
        let _ = wait_for_change(STARTING, &deadline);
        if STATE.load(Ordering::Relaxed) == IDLE {
            return Err(Error::other("no directory for a socket; set XDG_RUNTIME_DIR to a directory of your own"));
        }
    }
    Ok(())
}

fn wait_for_change(from: u32, deadline: &Deadline<'_>) -> std::io::Result<()> {
    while STATE.load(Ordering::Relaxed) == from {
        let waited = deadline.spend(|left| {
            let timeout = futex::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            // Whatever ended the wait, the state says what has come of it.
            let _ = futex::wait(&STATE, futex::Flags::PRIVATE, from, Some(&timeout));
            Ok(())
        });
        waited.map_err(|_| ErrorKind::TimedOut)?;
    }
    Ok(())
}

/// Ends the thread's wait by a connection.
fn wake() -> std::io::Result<()> {
    // (Q) Acquire pairs with (Q'). SAFETY: null, or never freed.
    let place = unsafe { PLACE.load(Ordering::Acquire).as_ref() }.ok_or(ErrorKind::NotFound)?;
    let told = |error: Errno| {
        // As it was: it goes on.
        let _ = STATE.compare_exchange(STOPPING, LISTENING, Ordering::Relaxed, Ordering::Relaxed);
        Error::new(Error::from(error).kind(), format!("cannot reach the listener at {}: {error}", place.display()))
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(told)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(place.as_path()).map_err(told)?) {
        // Where others wait already, it is awake.
        Ok(()) | Err(Errno::AGAIN) => Ok(()),
        // It was awake, has seen that it is to stop, and has taken its socket down.
        Err(_) if wait_for_change(STOPPING, &Deadline::after(WAKE_PATIENCE)).is_ok() => Ok(()),
        Err(error) => Err(told(error)),
    }
}

/// The thread.
fn run() {
    let _inside = thread::enter_tracer();
    TID.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
    let is_shared = !leave_descriptors();
    while let Some(socket) = directories().find_map(|dir| Socket::bind(&dir, is_shared)) {
        let place = Box::into_raw(Box::new(socket.path.clone()));
        // (Q') Release pairs with (Q).
        PLACE.store(place, Ordering::Release);
        // Unless it is to stop meanwhile. (S') Release pairs with (S).
        let _ = STATE.compare_exchange(STARTING, LISTENING, Ordering::Release, Ordering::Relaxed);
        let _ = futex::wake(&STATE, futex::Flags::PRIVATE, u32::MAX);
        sweep(&socket.path);
        let end = socket.serve(None);
        socket.remove();
        if end != End::UserHasChanged {
            break;
        }
    }
    // (S') Release pairs with (S).
    STATE.store(IDLE, Ordering::Release);
    let _ = futex::wake(&STATE, futex::Flags::PRIVATE, u32::MAX);
}

/// Gives the calling thread an empty table of descriptors of its own. False where the kernel refuses.
fn leave_descriptors() -> bool {
    // SAFETY: close_range(2) on a table that no other thread has: nobody else's descriptors are closed, and this thread has none yet.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) == 0 }
}

/// Where this user's sockets may be: where the environment says, unless that is another user's since the program has changed its own.
fn directories() -> impl Iterator<Item = PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let xdg = environment::variable("XDG_RUNTIME_DIR");
    let dirs = [socket_dir(xdg.as_deref(), uid), socket_dir(None, uid)];
    dirs.into_iter().map(PathBuf::from).filter(move |dir| {
        let _ = std::fs::DirBuilder::new().mode(0o700).create(dir);
        // In /tmp anybody could have made it: only a directory of this user that nobody else can write to will do.
        let metadata = std::fs::symlink_metadata(dir);
        metadata.is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == uid && metadata.mode() & 0o022 == 0)
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Stopped,
    UserHasChanged,
    /// Nobody has come for a while, and nobody has to be waited for.
    Idle,
    /// The descriptor is not the socket any more.
    Lost,
}

/// A socket that is listened to.
struct Socket {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode, by which it is known.
    identity: (u64, u64),
    uid: u32,
}

impl Socket {
    fn bind(dir: &Path, is_shared: bool) -> Option<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        if is_shared {
            // Programs give the first three to others, closed or not.
            fd = rustix::io::fcntl_dupfd_cloexec(&fd, 3).ok()?;
        }
        // Before it has a name: at no time may others connect.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).ok()?;
        // By the time too, because programs of several PID namespaces may share the directory and have the same id.
        let path = (0..8).find_map(|_| {
            let number = clock::monotonic_ns() as u32;
            let path = dir.join(program_socket_name(std::process::id(), number));
            rustix::net::bind(&fd, &SocketAddrUnix::new(&path).ok()?).is_ok().then_some(path)
        })?;
        let socket = Socket { identity: identity(&fd)?, fd, path, uid: rustix::process::geteuid().as_raw() };
        if rustix::net::listen(&socket.fd, BACKLOG).is_err() {
            socket.remove();
            return None;
        }
        Some(socket)
    }

    /// Answers tools until there is a reason to end; where it is said how long to stay, also that nobody comes.
    fn serve(&self, stay: Option<&futex::Timespec>) -> End {
        loop {
            if STATE.load(Ordering::Relaxed) == STOPPING {
                return End::Stopped;
            }
            if identity(&self.fd) != Some(self.identity) {
                return End::Lost;
            }
            match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC) {
                // One of this very process only ends a wait.
                Ok(_) if STATE.load(Ordering::Relaxed) == STOPPING => {}
                Ok(stream) => drop(converse(stream, &Monotonic)),
                // Interrupted by a change of user too.
                // A thread that a signal has called stays where tools have found it until none comes: in a user namespace that the program has
                // entered since, its user looks like another.
                Err(Errno::AGAIN) => {
                    let has_changed = rustix::process::geteuid().as_raw() != self.uid;
                    let is_over = has_changed && stay.is_none()
                        || poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], stay) == Ok(0);
                    if is_over && (has_changed || crate::session::current().is_none()) {
                        return if has_changed { End::UserHasChanged } else { End::Idle };
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    let _ = futex::wait(&STATE, futex::Flags::PRIVATE, LISTENING, Some(&NAP));
                }
                Err(_) => return End::Lost,
            }
        }
    }

    /// Takes it down, unless the descriptor is the program's by now. The name goes first: nobody is to find it dead.
    fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
        if identity(&self.fd) != Some(self.identity) {
            let _ = self.fd.into_raw_fd();
        }
    }
}

fn identity(fd: impl AsFd) -> Option<(u64, u64)> {
    rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Removes the names of sockets of processes that are not there any more, beside this one.
fn sweep(own: &Path) {
    let own_pid = std::process::id();
    for entry in own.parent().into_iter().flat_map(std::fs::read_dir).flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let pid = name.to_str().and_then(|name| {
            let pid = name.split_once('.')?.0.parse().ok()?;
            is_program_socket(name, pid).then_some(pid)
        });
        let Some(pid) = pid else { continue };
        let is_gone = || {
            let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
            pid == own_pid || raw.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH))
        };
        // A process of another PID namespace is not seen here, but it answers; unless it has bound the socket just now.
        let is_old = || {
            let made = entry.metadata().and_then(|metadata| metadata.modified());
            made.is_ok_and(|made| SystemTime::now().duration_since(made).is_ok_and(|age| age >= LISTENED_TO_AFTER))
        };
        if path != own && is_gone() && is_old() && !is_answered(&path) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Answers a tool, within twice [`PATIENCE`] by the clock, apart from what the answer takes.
pub(crate) fn converse(stream: OwnedFd, clock: &dyn Clock) -> Result<(), dormouse_transport::Error> {
    let is_allowed = Peer::of(&stream)?.is_own_user_or_root();
    let deadline = Deadline::by(clock, PATIENCE);
    if !is_allowed {
        let text = "only the program's own user may talk to it".into();
        return Conversation::begin(stream, Edge::ToolProgram, deadline).send(&ProgramToTool::Error { text });
    }
    let mut conversation = Conversation::answer(stream, &[Edge::ToolProgram], deadline)?;
    // The memory of a session that it is asked to join comes as a descriptor.
    let answer = match conversation.receive_with_fd() {
        Ok((question, memory)) => control::answer(question, memory),
        Err(dormouse_transport::Error::Malformed(malformed)) => ProgramToTool::Error { text: malformed.to_string() },
        Err(error) => return Err(error),
    };
    // What the answer took is not the tool's fault.
    let mut conversation = conversation.until(Deadline::by(clock, PATIENCE));
    match conversation.send(&answer) {
        Err(error @ dormouse_transport::Error::TooLong) => {
            conversation.send(&ProgramToTool::Error { text: error.to_string() })
        }
        sent => sent,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_socket_is_its_users_from_its_first_moment() {
        const COUNT: usize = 200;
        let place = tempfile::tempdir().unwrap();
        let sockets = |dir: &Path| {
            let entries = std::fs::read_dir(dir).unwrap().flatten().filter_map(|entry| entry.metadata().ok());
            entries.map(|metadata| metadata.mode() & 0o777).collect::<Vec<u32>>()
        };
        let modes = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut modes = BTreeSet::new();
                loop {
                    let seen = sockets(place.path());
                    modes.extend(&seen);
                    if seen.len() == COUNT {
                        return modes;
                    }
                }
            });
            let made: Vec<Socket> = (0..COUNT).map(|_| Socket::bind(place.path(), false).unwrap()).collect();
            let modes = watcher.join().unwrap();
            made.into_iter().for_each(Socket::remove);
            modes
        });
        assert_eq!(modes, BTreeSet::from([0o600]));
        assert_eq!(sockets(place.path()), Vec::<u32>::new());
    }
}

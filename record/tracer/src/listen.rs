//! Access for tools: the socket that a thread of the program listens on, and what starts that thread.
//!
//! With a thread (`ListenMode::Thread`) the socket exists from the start:
//! ```text
//!   IDLE ──start──▶ STARTING ──bound──▶ LISTENING ──stop──▶ STOPPING ──the thread──▶ IDLE
//!     ▲                │   └───stop───────────────────────────▲
//!     └──no socket─────┘
//! ```
//! With a signal (`ListenMode::Signal`, the default) the program has only a handler for `SIGURG`. The thread exists only
//! while tools use it or the program is in a session:
//! ```text
//!   IDLE ──handler──▶ SIGNAL ──a tool's signal, then a tracepoint (`wake`)──▶ STARTING ──▶ LISTENING ──no tool──▶ SIGNAL
//!     ▲                 │ stop
//!     └─────────────────┘
//! ```
//! Each object of the program that contains a tracer listens separately. Their handlers form a chain: each calls the
//! handler installed before it. When the thread of one starts to listen it makes the others start too, so a tool finds
//! all of them.
//!
//! The thread has a descriptor table of its own that contains only its socket. So the program has no additional
//! descriptor, cannot close or replace the thread's, and may be at its limit. If the kernel refuses a separate table
//! (before Linux 5.9, some containers), the program's is used: the socket is then never one of the first three
//! descriptors, and before each use the thread checks whether the number is still its socket.
//!
//! A socket belongs to the user at the time of listen(2). When the program changes its user, libc makes every thread
//! change, which interrupts the thread's wait; it then listens again, in the directory for programs of the new user. A
//! forked child of a program that listens with a thread also listens again. A child of one that listens with a signal
//! has inherited the handler, and needs nothing.
//!
//! Nothing is done at the program's end, when a filter of system calls may be in force. A dead program leaves a socket
//! name that refuses connections; the next program that listens in that directory removes it. A program whose other
//! threads have all ended, its first one by `pthread_exit`, should end: the thread checks for this once a second, and
//! ends itself.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use dormouse_abi::call::{CALL, MARKED_SIGNALS, is_marked};
use dormouse_abi::environment::{is_program_socket, program_socket_name, socket_dir};
use dormouse_abi::message::{Edge, ProgramToTool};
use dormouse_transport::{Clock, Conversation, Deadline, Monotonic, Peer, is_answered};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;
use rustix::thread::futex;

use dormouse_listener::{is_last, spawn};

use crate::environment::ListenMode;
use crate::{clock, control, environment, join, thread, wake};

const IDLE: u32 = 0;
const STARTING: u32 = 1;
const LISTENING: u32 = 2;
const STOPPING: u32 = 3;
/// No thread: it is started when a tool has sent the signal and a tracepoint is passed.
const SIGNAL: u32 = 4;
/// State of the listener, one of the constants above; a futex.
static STATE: AtomicU32 = AtomicU32::new(IDLE);
/// Whether the program has called [`stop_listening`], which turns off listening by default.
static IS_DECLINED: AtomicBool = AtomicBool::new(false);
/// Whether the thread ends when no tool connects, and a signal requests a new one.
static IS_BY_SIGNAL: AtomicBool = AtomicBool::new(false);
/// Path of the thread's socket. Never freed: one for each time that the thread starts to listen.
static PLACE: AtomicPtr<PathBuf> = AtomicPtr::new(core::ptr::null_mut());
/// Id of the thread.
static TID: AtomicU32 = AtomicU32::new(0);
/// Former action of the signal: `SIG_DFL`, `SIG_IGN`, or the handler of another tracer.
static FORMER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
/// Whether a tool has called since the thread has its socket. The tool may have found no socket because the thread is
/// about to end.
static IS_CALLED: AtomicBool = AtomicBool::new(false);
/// Whether this tracer's handler is installed, or is called by the installed handler of another tracer.
static IS_IN_CHAIN: AtomicBool = AtomicBool::new(false);

/// Maximum time for a tool to send its question.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum wait for the thread to end, since it may be serving a tool.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum wait for a thread that is ending already.
const WAKE_PATIENCE: Duration = Duration::from_millis(500);
/// Pause when the system is out of descriptors or memory. The pending connection would end a wait for connections at
/// once.
const NAP: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// Time that a thread started by a signal stays without a connection.
const STAY: futex::Timespec = futex::Timespec { tv_sec: 2, tv_nsec: 0 };
/// Interval at which the thread checks whether the program has other threads.
const CHECK_INTERVAL: futex::Timespec = futex::Timespec { tv_sec: 1, tv_nsec: 0 };
/// Age at which a socket that will ever be listened to has certainly reached listen(2).
const LISTENED_TO_AFTER: Duration = Duration::from_secs(2);

/// Lets tools reach the program from now on, and children that it forks, in the mode that `DORMOUSE_LISTEN` selects; by
/// default, by a signal. A linked program does this before `main`, unless it is in a session of `dormouse record`. A
/// program that enters a sandbox stops it by [`stop_listening`].
///
/// Blocks for at most 50 ms; not async-signal-safe.
///
/// # Errors
/// The errors of [`listen_by`].
pub fn listen() -> std::io::Result<()> {
    listen_by(environment::listen_mode().flatten().unwrap_or(ListenMode::Signal))
}

/// Like [`listen`], but in the given mode. The environment is ignored, except for `DORMOUSE_LISTEN=0`. A listener of the
/// other mode is stopped first.
///
/// # Errors
/// `DORMOUSE_LISTEN=0` forbids listening; the program has privileges that its caller does not have (`AT_SECURE`). By a
/// signal: the program has its own handler for `SIGURG`. By a thread: no thread can be started, or there is no
/// directory for the socket. Also the errors of [`stop_listening`].
pub fn listen_by(mode: ListenMode) -> std::io::Result<()> {
    let refused = |text: &str| Err(Error::new(ErrorKind::PermissionDenied, text));
    if environment::is_secure() {
        return refused("a program with privileges that its caller has not does not listen");
    }
    if environment::listen_mode() == Some(None) {
        return refused("DORMOUSE_LISTEN=0 forbids to listen");
    }
    let is_by_signal = IS_BY_SIGNAL.load(Ordering::Relaxed);
    if STATE.load(Ordering::Relaxed) != IDLE && is_by_signal != (mode == ListenMode::Signal) {
        stop_listening()?;
    }
    IS_DECLINED.store(false, Ordering::Relaxed);
    match mode {
        ListenMode::Thread => begin(Some(join::deadline())),
        ListenMode::Signal => wait_for_signal(),
    }
}

/// Ends listening that [`listen`] or the constructor of a linked program has started: when this returns there is no
/// thread, socket or handler. Call it before a program enters a sandbox whose rules forbid system calls that answering
/// a tool makes. A listening thread would also stay outside the sandbox, `unshare(CLONE_NEWUSER)` would fail in a
/// process that has one, and a change of user would have to be permitted to all threads.
///
/// Recording continues. Blocks until the answer to a tool is complete, for at most five seconds; not async-signal-safe.
///
/// # Errors
/// The thread cannot be reached: the directory of its socket is removed, or not accessible after `chroot`.
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
                    end_signals();
                }
            }
            state if STATE.compare_exchange(state, STOPPING, Ordering::Relaxed, Ordering::Relaxed).is_err() => {}
            // The thread checks the state once it has a socket.
            STARTING => {}
            _ => wake()?,
        }
    }
    // The kernel removes parts of a thread after its last instruction.
    let (pid, tid) = (thread::own_pid(), TID.load(Ordering::Relaxed));
    // SAFETY: tgkill(2) with signal 0 only checks.
    while tid != 0 && unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) } == 0 {
        if deadline.left().is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Listens unless the program has turned that off. Without a directory for the socket or a thread, tools cannot reach
/// the program. Waits until the thread has its socket, so that the program can be reached from `main` on.
pub(crate) fn start_by_default(mode: ListenMode, deadline: Deadline<'_>) {
    if !IS_DECLINED.load(Ordering::Relaxed) && STATE.load(Ordering::Relaxed) == IDLE {
        let _ = match mode {
            ListenMode::Thread => begin(Some(deadline)),
            ListenMode::Signal => wait_for_signal(),
        };
    }
}

/// Restarts listening in a forked child, which has no thread, if the parent listened with a thread. The signal handler
/// is inherited.
pub(crate) fn after_fork() {
    wake::after_fork();
    TID.store(0, Ordering::Relaxed);
    let is_by_signal = IS_BY_SIGNAL.load(Ordering::Relaxed);
    match STATE.swap(IDLE, Ordering::Relaxed) {
        LISTENING | SIGNAL if is_by_signal => STATE.store(SIGNAL, Ordering::Relaxed),
        // The parent may have been forked before it installed its handler.
        STARTING if is_by_signal => drop(wait_for_signal()),
        // A child does not wait: a tool must first find it.
        STARTING | LISTENING => drop(begin(None)),
        _ => {}
    }
}

/// Installs the handler of the signal that a tool sends.
fn wait_for_signal() -> std::io::Result<()> {
    if STATE.compare_exchange(IDLE, STARTING, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return Ok(());
    }
    IS_BY_SIGNAL.store(true, Ordering::Relaxed);
    wake::prepare();
    control::lock().follow();
    if let Err(error) = handle_signal() {
        // (S') Release pairs with (S).
        STATE.store(IDLE, Ordering::Release);
        return Err(error);
    }
    if STATE.compare_exchange(STARTING, SIGNAL, Ordering::Release, Ordering::Relaxed).is_err() {
        end_signals();
    }
    Ok(())
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
/// This tracer's handler.
const HANDLER: Handler = on_signal;

/// Returns the process's action for the signal.
fn action_now() -> libc::sigaction {
    // SAFETY: the fields are integers, bit sets and a nullable pointer, for which zeroes are valid.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: only queries; `action` has room for the answer.
    unsafe { libc::sigaction(libc::SIGURG, core::ptr::null(), &raw mut action) };
    action
}

/// Whether an action is that of a tracer, in this object or another, recognised by the signals that it blocks.
fn is_of_tracer(action: &libc::sigaction) -> bool {
    let is_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    // SAFETY: a set that the kernel has filled in, and valid signal numbers.
    is_handler && is_marked(|signal| unsafe { libc::sigismember(&raw const action.sa_mask, signal) } == 1)
}

fn set_action(handler: usize) {
    // SAFETY: the fields are integers, bit sets and a nullable pointer, for which zeroes are valid.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    if ![libc::SIG_DFL, libc::SIG_IGN].contains(&handler) {
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        for signal in MARKED_SIGNALS {
            // SAFETY: an initialised set and a valid signal number.
            unsafe { libc::sigaddset(&raw mut action.sa_mask, signal) };
        }
    }
    // SAFETY: `handler` is `SIG_DFL`, `SIG_IGN`, or an async-signal-safe handler of this type in an object that is
    // never unloaded.
    unsafe { libc::sigaction(libc::SIGURG, &raw const action, core::ptr::null_mut()) };
}

fn handle_signal() -> std::io::Result<()> {
    let now = action_now();
    let is_of_tracer = is_of_tracer(&now);
    if is_of_tracer && IS_IN_CHAIN.load(Ordering::Relaxed) {
        return Ok(());
    }
    if !is_of_tracer && ![libc::SIG_DFL, libc::SIG_IGN].contains(&now.sa_sigaction) {
        return Err(Error::new(ErrorKind::PermissionDenied, "the program has a handler of its own for SIGURG"));
    }
    FORMER.store(now.sa_sigaction, Ordering::Relaxed);
    IS_IN_CHAIN.store(true, Ordering::Relaxed);
    set_action(HANDLER as usize);
    Ok(())
}

/// Ends calls by signal. Uninstalls the handler, unless another tracer's handler calls it, or the program has set its
/// own.
fn end_signals() {
    if action_now().sa_sigaction == HANDLER as usize {
        set_action(FORMER.swap(libc::SIG_DFL, Ordering::Relaxed));
        IS_IN_CHAIN.store(false, Ordering::Relaxed);
    }
    wake::rest();
    // (S') Release pairs with (S).
    STATE.store(IDLE, Ordering::Release);
    let _ = futex::wake(&STATE, futex::Flags::PRIVATE, u32::MAX);
}

/// Handles the call of a tool, or a signal sent for another reason, which is ignored. A null context marks a direct
/// call by the thread of another tracer: see [`call_others`].
extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: has no conditions; returns the calling thread's errno.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: this thread alone reads and writes its errno.
    let errno = unsafe { errno_at.read() };
    if context.is_null() {
        start_woken();
        let _ = wait_for_change(STARTING, &join::deadline());
    // SAFETY: with a context, `info` is the kernel's signal information.
    } else if is_call(unsafe { &*info }) {
        // SeqCst: (C) pairs with (C'): stored before the state is checked. The thread checks this after it has changed
        // the state.
        IS_CALLED.store(true, Ordering::SeqCst);
        answer_call();
    }
    let former = FORMER.load(Ordering::Relaxed);
    if ![libc::SIG_DFL, libc::SIG_IGN].contains(&former) {
        // SAFETY: the handler of another tracer, which has this type; its object is never unloaded.
        let former: Handler = unsafe { core::mem::transmute(former) };
        former(signal, info, context);
    }
    // SAFETY: this thread's errno, which no other thread accesses.
    unsafe { errno_at.write(errno) };
}

/// Makes the next tracepoint start the thread, if a tool has called and there is no thread. Async-signal-safe.
fn answer_call() {
    // SeqCst: (C') pairs with (C).
    if STATE.load(Ordering::SeqCst) == SIGNAL && IS_CALLED.swap(false, Ordering::SeqCst) {
        wake::want();
    }
}

/// Whether the signal is one that a tool sends.
fn is_call(info: &libc::siginfo_t) -> bool {
    // SAFETY: this code says that the sender has given a value (sigaction(2)).
    info.si_code == libc::SI_QUEUE && unsafe { info.si_value() }.sival_ptr.addr() == CALL
}

/// Makes the other tracers of the process listen too, and waits for their sockets.
fn call_others() {
    let action = action_now();
    if is_of_tracer(&action) {
        // SAFETY: the handler of a tracer, which has this type; its object is never unloaded.
        let chain: Handler = unsafe { core::mem::transmute(action.sa_sigaction) };
        chain(libc::SIGURG, core::ptr::null_mut(), core::ptr::null_mut());
    }
}

/// Starts the listening thread. Called in ordinary context, by a thread that passes a tracepoint while a tool waits, or
/// by another tracer's.
#[cold]
pub(crate) fn start_woken() {
    // (T) Acquire pairs with (S').
    if STATE.compare_exchange(SIGNAL, STARTING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    let inside = thread::enter_tracer();
    // At once, so that no further event evaluates its arguments in vain.
    wake::rest();
    if !spawn(c"dormouse", run)
        && STATE.compare_exchange(STARTING, SIGNAL, Ordering::Release, Ordering::Relaxed).is_ok()
    {
        // The next tracepoint tries again.
        wake::want();
    }
    drop(inside);
}

/// Starts the thread, and waits until the deadline for the result.
fn begin(deadline: Option<Deadline<'_>>) -> std::io::Result<()> {
    if STATE.compare_exchange(IDLE, STARTING, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        IS_BY_SIGNAL.store(false, Ordering::Relaxed);
        if !spawn(c"dormouse", run) {
            STATE.store(IDLE, Ordering::Relaxed);
            return Err(Error::other("cannot start a thread; is the limit of processes (ulimit -u) reached?"));
        }
    }
    if let Some(deadline) = deadline {
        // Also if another thread has started it. That the thread does not run in time is not reported.
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
            // The state tells the result, whatever ended the wait.
            let _ = futex::wait(&STATE, futex::Flags::PRIVATE, from, Some(&timeout));
            Ok(())
        });
        waited.map_err(|_| ErrorKind::TimedOut)?;
    }
    Ok(())
}

/// Ends the thread's wait by connecting to its socket.
fn wake() -> std::io::Result<()> {
    // (Q) Acquire pairs with (Q'). SAFETY: null, or never freed.
    let place = unsafe { PLACE.load(Ordering::Acquire).as_ref() }.ok_or(ErrorKind::NotFound)?;
    let told = |error: Errno| {
        // Restores the state: the thread keeps listening.
        let _ = STATE.compare_exchange(STOPPING, LISTENING, Ordering::Relaxed, Ordering::Relaxed);
        Error::new(Error::from(error).kind(), format!("cannot reach the listener at {}: {error}", place.display()))
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(told)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(place.as_path()).map_err(told)?) {
        // If other connections are pending, the thread is awake.
        Ok(()) | Err(Errno::AGAIN) => Ok(()),
        // The thread was awake, has seen the request to stop, and has removed its socket.
        Err(_) if wait_for_change(STOPPING, &Deadline::after(WAKE_PATIENCE)).is_ok() => Ok(()),
        Err(error) => Err(told(error)),
    }
}

/// Runs the listening thread.
fn run() {
    let _inside = thread::enter_tracer();
    TID.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
    let is_by_signal = IS_BY_SIGNAL.load(Ordering::Relaxed);
    if is_by_signal {
        call_others();
    }
    let is_shared = !leave_descriptors();
    let mut end = End::Lost;
    while let Some(socket) = directories().find_map(|dir| Socket::bind(&dir, is_shared)) {
        let place = Box::into_raw(Box::new(socket.path.clone()));
        // (Q') Release pairs with (Q).
        PLACE.store(place, Ordering::Release);
        // Unless it should stop meanwhile. (S') Release pairs with (S).
        let _ = STATE.compare_exchange(STARTING, LISTENING, Ordering::Release, Ordering::Relaxed);
        let _ = futex::wake(&STATE, futex::Flags::PRIVATE, u32::MAX);
        // Tools that have called find the socket now.
        IS_CALLED.store(false, Ordering::Relaxed);
        sweep(&socket.path);
        end = socket.serve(if is_by_signal { STAY } else { CHECK_INTERVAL }, is_by_signal);
        socket.remove();
        if end != End::UserHasChanged {
            break;
        }
    }
    // The next tool calls again. Also without a directory for a socket, since one may be created.
    let is_called_again = is_by_signal && end != End::Stopped && {
        // SeqCst: (C') pairs with (C).
        let is_left = |from| STATE.compare_exchange(from, SIGNAL, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        is_left(LISTENING) || is_left(STARTING)
    };
    if is_called_again {
        let _ = futex::wake(&STATE, futex::Flags::PRIVATE, u32::MAX);
        answer_call();
    } else if is_by_signal {
        end_signals();
    } else {
        // (S') Release pairs with (S).
        STATE.store(IDLE, Ordering::Release);
        let _ = futex::wake(&STATE, futex::Flags::PRIVATE, u32::MAX);
    }
}

/// Gives the calling thread an empty descriptor table of its own. Returns false if the kernel refuses.
fn leave_descriptors() -> bool {
    // SAFETY: close_range(2) unshares the table first, so no other thread's descriptors are closed; this thread has
    // opened none.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) == 0 }
}

/// Returns the possible directories for this user's sockets. One that the environment names is left out if it belongs
/// to another user because the program has changed its own.
fn directories() -> impl Iterator<Item = PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let xdg = environment::variable("XDG_RUNTIME_DIR");
    let dirs = [socket_dir(xdg.as_deref(), uid), socket_dir(None, uid)];
    dirs.into_iter().map(PathBuf::from).filter(move |dir| {
        let _ = std::fs::DirBuilder::new().mode(0o700).create(dir);
        // In /tmp any user could have created it: only a directory of this user that no other user can write to is
        // accepted.
        let metadata = std::fs::symlink_metadata(dir);
        metadata.is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == uid && metadata.mode() & 0o022 == 0)
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Stopped,
    UserHasChanged,
    /// No tool has connected for some time and the program is in no session, or the program has no other threads any
    /// more.
    Idle,
    /// The descriptor no longer refers to the socket.
    Lost,
}

/// A listening socket.
struct Socket {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode, which identify the socket.
    identity: (u64, u64),
    uid: u32,
}

impl Socket {
    fn bind(dir: &Path, is_shared: bool) -> Option<Socket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        if is_shared {
            // Programs pass on the first three descriptors, closed or not.
            fd = rustix::io::fcntl_dupfd_cloexec(&fd, 3).ok()?;
        }
        // Before it has a name: other users must not be able to connect at any time.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).ok()?;
        // The name contains the time as well, because programs in several PID namespaces may share the directory and
        // have the same id.
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

    /// Answers tools until there is a reason to end. Checks for one when no tool has connected for `pause`.
    fn serve(&self, pause: futex::Timespec, is_by_signal: bool) -> End {
        loop {
            if STATE.load(Ordering::Relaxed) == STOPPING {
                return End::Stopped;
            }
            if identity(&self.fd) != Some(self.identity) {
                return End::Lost;
            }
            match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC) {
                // A connection from this process only ends the wait.
                Ok(_) if STATE.load(Ordering::Relaxed) == STOPPING => {}
                Ok(stream) => drop(converse(stream, &Monotonic)),
                Err(Errno::AGAIN) => {
                    // A change of user also interrupts the wait. A thread started by a signal stays where tools have
                    // found it until no more connect: in a user namespace that the program has entered since, its user
                    // id looks different.
                    let has_changed = || rustix::process::geteuid().as_raw() != self.uid;
                    if !is_by_signal && has_changed() {
                        return End::UserHasChanged;
                    }
                    if poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&pause)) == Ok(0) {
                        if is_last() || is_by_signal && crate::session::current().is_none() {
                            return End::Idle;
                        }
                        if has_changed() {
                            return End::UserHasChanged;
                        }
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

    /// Removes the socket, unless the descriptor is the program's by now. The name is removed first, so that no tool
    /// finds a dead socket. Tools that have connected before are answered, unless the thread should stop.
    fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
        if identity(&self.fd) != Some(self.identity) {
            let _ = self.fd.into_raw_fd();
            return;
        }
        while STATE.load(Ordering::Relaxed) != STOPPING
            && let Ok(stream) = rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC)
        {
            let _ = converse(stream, &Monotonic);
        }
    }
}

fn identity(fd: impl AsFd) -> Option<(u64, u64)> {
    rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Removes the socket names of processes that have ended from the directory of this socket.
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
        // A process in another PID namespace is not visible here, but it answers, unless it has bound the socket just
        // now.
        let is_old = || {
            let made = entry.metadata().and_then(|metadata| metadata.modified());
            made.is_ok_and(|made| SystemTime::now().duration_since(made).is_ok_and(|age| age >= LISTENED_TO_AFTER))
        };
        if path != own && is_gone() && is_old() && !is_answered(&path) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Answers a tool, within twice [`PATIENCE`] by the clock, not counting the time that the answer takes.
pub(crate) fn converse(stream: OwnedFd, clock: &dyn Clock) -> Result<(), dormouse_transport::Error> {
    let is_allowed = Peer::of(&stream)?.is_own_user_or_root();
    let deadline = Deadline::by(clock, PATIENCE);
    if !is_allowed {
        let text = "only the program's own user may talk to it".into();
        return Conversation::begin(stream, Edge::ToolProgram, deadline).send(&ProgramToTool::Error { text });
    }
    let mut conversation = Conversation::answer(stream, &[Edge::ToolProgram], deadline)?;
    // The memory of a session to join is sent as a descriptor.
    let answer = match conversation.receive_with_fd() {
        Ok((question, memory)) => control::answer(question, memory),
        Err(dormouse_transport::Error::Malformed(malformed)) => ProgramToTool::Error { text: malformed.to_string() },
        Err(error) => return Err(error),
    };
    // The time for the answer is not charged to the tool.
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
    fn a_socket_belongs_to_its_user_from_the_start() {
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

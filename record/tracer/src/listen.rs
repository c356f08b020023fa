//! How tools reach the program: the socket that a thread of the program listens on, and what starts that thread.
//!
//! By a thread (`Way::Thread`) it is there from the start:
//! ```text
//!   IDLE ──start──▶ STARTING ──bound──▶ LISTENING ──stop──▶ STOPPING ──the thread──▶ IDLE
//!     ▲                │   └───stop───────────────────────────▲
//!     └──no socket─────┘
//! ```
//! By a signal (`Way::Signal`, the default) the program has a handler of `SIGURG` and nothing else. The thread is there only while tools talk to the
//! program, or the program is in a session:
//! ```text
//!   IDLE ──handler──▶ SIGNAL ──a tool sends the signal, a tracepoint is passed (`wake`)──▶ STARTING ──▶ LISTENING ──nobody comes──▶ SIGNAL
//!     ▲                 │ stop
//!     └─────────────────┘
//! ```
//! Each object of the program that contains a tracer listens by itself. Their handlers form a chain: each calls the one that was installed before it.
//! When the thread of one begins to listen it has the others begin too, so a tool finds all of them.
//!
//! The thread has a table of descriptors of its own, where only its socket is: the program has no descriptor more than without it, cannot close or
//! replace the thread's, and may be at its limit. Where the kernel refuses such a table (before Linux 5.9, some containers) the program's
//! is used: there the socket is never one of the first three, and before each use the thread looks whether the number still stands for it.
//!
//! A socket says on whose behalf it listens: its user at the time of listen(2). When the program becomes another user, libc has every thread
//! change, which interrupts the thread's wait; it then listens anew, where that user's programs do. So does a forked child of a program that listens
//! by a thread. A child of one that listens by a signal has inherited the handler, and nothing is done in it.
//!
//! Nothing is done at the program's end, where a filter of system calls may be in force. What remains of a dead program's socket is a name
//! that refuses connections; the next program that listens there takes it away. A program whose other threads have all ended, its first one by
//! `pthread_exit`, ends: the thread looks once a second, and ends itself.

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

use crate::environment::Way;
use crate::spawn::{is_last, spawn};
use crate::{clock, control, environment, join, thread, wake};

const IDLE: u32 = 0;
const STARTING: u32 = 1;
const LISTENING: u32 = 2;
const STOPPING: u32 = 3;
/// No thread: there will be one when a tool has sent the signal and a tracepoint is passed.
const SIGNAL: u32 = 4;
/// Futex.
static STATE: AtomicU32 = AtomicU32::new(IDLE);
/// Whether the program has said that it is not to be listened to unless it says so.
static IS_DECLINED: AtomicBool = AtomicBool::new(false);
/// Whether the thread goes away when nobody comes, and the signal calls it again.
static IS_BY_SIGNAL: AtomicBool = AtomicBool::new(false);
/// Where the thread listens. Never freed: one for each time that it begins to.
static PLACE: AtomicPtr<PathBuf> = AtomicPtr::new(core::ptr::null_mut());
/// The thread's id.
static TID: AtomicU32 = AtomicU32::new(0);
/// Action of the signal before this tracer's: `SIG_DFL`, `SIG_IGN`, or the handler of another tracer.
static FORMER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
/// Whether a tool has called since the thread has its socket: it may have found none because the thread is about to end.
static IS_CALLED: AtomicBool = AtomicBool::new(false);
/// Whether this tracer's handler is in place, or below another tracer's.
static IS_IN_CHAIN: AtomicBool = AtomicBool::new(false);

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
/// From one look whether the program has other threads to the next.
const LOOK: futex::Timespec = futex::Timespec { tv_sec: 1, tv_nsec: 0 };
/// How old a socket is that has certainly been listened to, if it ever will be.
const LISTENED_TO_AFTER: Duration = Duration::from_secs(2);

/// Lets tools reach the program from now on, also in children that it forks, in the way that `DORMOUSE_LISTEN` says: by a signal, if it says
/// nothing. A linked program does so by itself before `main`, unless it is in a session of `dormouse record`; a program that enters a sandbox
/// stops that by [`stop_listening`].
///
/// Blocking, for 50 ms at most; not async-signal-safe.
///
/// # Errors
/// As [`listen_by`].
pub fn listen() -> std::io::Result<()> {
    listen_by(environment::way_to_listen().flatten().unwrap_or(Way::Signal))
}

/// As [`listen`], in this way, whatever the environment says but for `DORMOUSE_LISTEN=0`. What listens in the other way is stopped before.
///
/// # Errors
/// `DORMOUSE_LISTEN=0` forbids it; the program runs with privileges that its caller has not (`AT_SECURE`). By a signal: the program has a handler of
/// its own for `SIGURG`. By a thread: there is none to be had, or no directory for the socket. As [`stop_listening`].
pub fn listen_by(way: Way) -> std::io::Result<()> {
    let refused = |text: &str| Err(Error::new(ErrorKind::PermissionDenied, text));
    if environment::is_secure() {
        return refused("a program with privileges that its caller has not does not listen");
    }
    if environment::way_to_listen() == Some(None) {
        return refused("DORMOUSE_LISTEN=0 forbids to listen");
    }
    let is_by_signal = IS_BY_SIGNAL.load(Ordering::Relaxed);
    if STATE.load(Ordering::Relaxed) != IDLE && is_by_signal != (way == Way::Signal) {
        stop_listening()?;
    }
    IS_DECLINED.store(false, Ordering::Relaxed);
    match way {
        Way::Thread => begin(Some(join::deadline())),
        Way::Signal => wait_for_signal(),
    }
}

/// Ends what [`listen`] has begun, or what a program that is linked with Dormouse does by itself: when this returns there is neither thread, socket
/// nor handler. To be called before a program enters a sandbox whose rules forbid what answering a tool needs. Where a thread listens, it would also
/// stay outside of the sandbox, `unshare(CLONE_NEWUSER)` would refuse a process that has it, and a change of user would have to be one that all
/// threads can make.
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

/// In a forked child, which has no such thread: starts one when the parent had one by itself. The handler of the signal is inherited.
pub(crate) fn after_fork() {
    wake::after_fork();
    TID.store(0, Ordering::Relaxed);
    let is_by_signal = IS_BY_SIGNAL.load(Ordering::Relaxed);
    match STATE.swap(IDLE, Ordering::Relaxed) {
        LISTENING | SIGNAL if is_by_signal => STATE.store(SIGNAL, Ordering::Relaxed),
        // The parent may not have come to install its handler.
        STARTING if is_by_signal => drop(wait_for_signal()),
        // A child does not wait: whoever wants to reach it has to find it first.
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
/// This tracer's.
const HANDLER: Handler = on_signal;

/// Action that the process has for the signal.
fn action_now() -> libc::sigaction {
    // SAFETY: integers, sets of bits and a pointer that may be null, of which zeroes are values.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: only asks, with room for the answer.
    unsafe { libc::sigaction(libc::SIGURG, core::ptr::null(), &raw mut action) };
    action
}

/// Whether an action is that of a tracer, of this object or another: by the signals that it blocks.
fn is_of_tracer(action: &libc::sigaction) -> bool {
    let is_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    // SAFETY: a set that the kernel has filled in, and signals that there are.
    is_handler && is_marked(|signal| unsafe { libc::sigismember(&raw const action.sa_mask, signal) } == 1)
}

fn set_action(handler: usize) {
    // SAFETY: integers, sets of bits and a pointer that may be null, of which zeroes are values.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    if ![libc::SIG_DFL, libc::SIG_IGN].contains(&handler) {
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        for signal in MARKED_SIGNALS {
            // SAFETY: an initialised set, and a signal that there is.
            unsafe { libc::sigaddset(&raw mut action.sa_mask, signal) };
        }
    }
    // SAFETY: a handler of this type, async-signal-safe, of an object that is pinned; or none.
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

/// Nobody is to call any more. The handler goes, unless another tracer's is above it, or the program has set its own.
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

/// A tool calls, or somebody has sent the signal for another reason, which the program ignores. Without a context it is no signal, but a call by the
/// thread of another tracer: see [`call_others`].
extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the thread's errno, which lives as long as the thread.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: this thread alone reads and writes its errno.
    let errno = unsafe { errno_at.read() };
    if context.is_null() {
        start_woken();
        let _ = wait_for_change(STARTING, &join::deadline());
    // SAFETY: the kernel's word for what has happened.
    } else if is_call(unsafe { &*info }) {
        // SeqCst: (C) pairs with (C'): stored before the state is looked at, as the thread looks after it has changed the state.
        IS_CALLED.store(true, Ordering::SeqCst);
        answer_call();
    }
    let former = FORMER.load(Ordering::Relaxed);
    if ![libc::SIG_DFL, libc::SIG_IGN].contains(&former) {
        // SAFETY: the handler of another tracer, whose object stays loaded: a function of this type.
        let former: Handler = unsafe { core::mem::transmute(former) };
        former(signal, info, context);
    }
    // SAFETY: this thread's errno, which nobody else reads or writes.
    unsafe { errno_at.write(errno) };
}

/// Has the next tracepoint start the thread, if a tool has called and there is none. Async-signal-safe.
fn answer_call() {
    // SeqCst: (C') pairs with (C).
    if STATE.load(Ordering::SeqCst) == SIGNAL && IS_CALLED.swap(false, Ordering::SeqCst) {
        wake::want();
    }
}

/// Whether this is what a tool sends.
fn is_call(info: &libc::siginfo_t) -> bool {
    // SAFETY: this code says that the sender has given a value (sigaction(2)).
    info.si_code == libc::SI_QUEUE && unsafe { info.si_value() }.sival_ptr.addr() == CALL
}

/// Has the other tracers of the process listen too, and waits for their sockets.
fn call_others() {
    let action = action_now();
    if is_of_tracer(&action) {
        // SAFETY: the handler of a tracer, whose object stays loaded: a function of this type.
        let chain: Handler = unsafe { core::mem::transmute(action.sa_sigaction) };
        chain(libc::SIGURG, core::ptr::null_mut(), core::ptr::null_mut());
    }
}

/// Starts the listening thread, in ordinary context: a thread that passes a tracepoint while a tool waits, or another tracer's.
#[cold]
pub(crate) fn start_woken() {
    // (T) Acquire pairs with (S').
    if STATE.compare_exchange(SIGNAL, STARTING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    let inside = thread::enter_tracer();
    // At once, so that no further event evaluates its arguments for nobody.
    wake::rest();
    if !spawn(c"dormouse", run)
        && STATE.compare_exchange(STARTING, SIGNAL, Ordering::Release, Ordering::Relaxed).is_ok()
    {
        // The next tracepoint tries again.
        wake::want();
    }
    drop(inside);
}

/// Starts the thread, and waits until the deadline for what comes of it.
fn begin(deadline: Option<Deadline<'_>>) -> std::io::Result<()> {
    if STATE.compare_exchange(IDLE, STARTING, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        IS_BY_SIGNAL.store(false, Ordering::Relaxed);
        if !spawn(c"dormouse", run) {
            STATE.store(IDLE, Ordering::Relaxed);
            return Err(Error::other("cannot start a thread; is the limit of processes (ulimit -u) reached?"));
        }
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
        // Unless it is to stop meanwhile. (S') Release pairs with (S).
        let _ = STATE.compare_exchange(STARTING, LISTENING, Ordering::Release, Ordering::Relaxed);
        let _ = futex::wake(&STATE, futex::Flags::PRIVATE, u32::MAX);
        // Whoever has called finds the socket.
        IS_CALLED.store(false, Ordering::Relaxed);
        sweep(&socket.path);
        end = socket.serve(if is_by_signal { STAY } else { LOOK }, is_by_signal);
        socket.remove();
        if end != End::UserHasChanged {
            break;
        }
    }
    // The next tool calls again; also where there was no directory for a socket, which may come.
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
    /// Nobody has come for a while, and nobody has to be waited for; or the program has no other thread any more.
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

    /// Answers tools until there is a reason to end. It looks for one when nobody has come for `pause`.
    fn serve(&self, pause: futex::Timespec, is_by_signal: bool) -> End {
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
                Err(Errno::AGAIN) => {
                    // Also interrupted by a change of user. A thread that a signal has called stays where tools have found it until none comes: in a
                    // user namespace that the program has entered since, its user looks like another.
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

    /// Takes it down, unless the descriptor is the program's by now. The name goes first: nobody is to find it dead. A tool that has found it before
    /// is answered, unless the thread is to stop.
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

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
//! The thread and the socket are those of [`dormouse_listener`]. A forked child of a program that listens with a thread
//! also listens again. A child of one that listens with a signal has inherited the handler, and needs nothing.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::io::{Error, ErrorKind};

use dormouse_abi::call::{CALL, MARKED_SIGNALS, is_marked};
use dormouse_imv_control::Host;
use dormouse_listener::{CHECK_INTERVAL, End, IDLE, LISTENING, Listener, SIGNAL, STARTING, Service, spawn};
use dormouse_transport::Deadline;
use rustix::thread::futex;

use crate::environment::ListenMode;
use crate::{control, environment, join, thread, wake};

static LISTENER: Listener = Listener::new();
/// State of the listener.
static STATE: &AtomicU32 = &LISTENER.state;
/// Whether the program has called [`stop_listening`], which turns off listening by default.
static IS_DECLINED: AtomicBool = AtomicBool::new(false);
/// Whether the thread ends when no tool connects, and a signal requests a new one.
static IS_BY_SIGNAL: AtomicBool = AtomicBool::new(false);
/// Former action of the signal: `SIG_DFL`, `SIG_IGN`, or the handler of another tracer.
static FORMER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
/// Whether a tool has called since the thread has its socket. The tool may have found no socket because the thread is
/// about to end.
static IS_CALLED: AtomicBool = AtomicBool::new(false);
/// Whether this tracer's handler is installed, or is called by the installed handler of another tracer.
static IS_IN_CHAIN: AtomicBool = AtomicBool::new(false);

/// The functions by which `dormouse_imv_control::listen` and `stop_listening` use this listener.
pub(crate) static HOST: Host = Host { listen: || listen_by(ListenMode::Thread), stop_listening };

/// Time that a thread started by a signal stays without a connection.
const STAY: futex::Timespec = futex::Timespec { tv_sec: 2, tv_nsec: 0 };

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
    LISTENER.stop(end_signals)
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
    let is_by_signal = IS_BY_SIGNAL.load(Ordering::Relaxed);
    match LISTENER.after_fork() {
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
    LISTENER.change_to(IDLE);
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
        let _ = LISTENER.wait_for_change(STARTING, &join::deadline());
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
        LISTENER.start(run)?;
    }
    // Also if another thread has started it.
    deadline.map_or(Ok(()), |deadline| LISTENER.wait_for_socket(&deadline))
}

/// Runs the listening thread.
fn run() {
    let _inside = thread::enter_tracer();
    let is_by_signal = IS_BY_SIGNAL.load(Ordering::Relaxed);
    if is_by_signal {
        call_others();
    }
    let end = LISTENER.serve(&Service {
        pause: if is_by_signal { STAY } else { CHECK_INTERVAL },
        // A thread started by a signal stays where tools have found it until no more connect: in a user namespace that
        // the program has entered since, its user id looks different.
        moves_at_once: !is_by_signal,
        // Tools that have called find the socket now.
        on_listening: &|| IS_CALLED.store(false, Ordering::Relaxed),
        is_idle: &|| is_by_signal && crate::session::sessions().next().is_none(),
        answer: &control::answer,
    });
    // The next tool calls again. Also without a directory for a socket, since one may be created.
    let is_called_again = is_by_signal && end != End::Stopped && {
        // SeqCst: (C') pairs with (C).
        let is_left = |from| STATE.compare_exchange(from, SIGNAL, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        is_left(LISTENING) || is_left(STARTING)
    };
    if is_called_again {
        let _ = futex::wake(STATE, futex::Flags::PRIVATE, u32::MAX);
        answer_call();
    } else if is_by_signal {
        end_signals();
    } else {
        LISTENER.change_to(IDLE);
    }
}

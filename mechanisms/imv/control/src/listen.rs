//! Listening without a tracer: the thread, from the program's request on.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::io::{Error, ErrorKind};
use std::time::Duration;

use dormouse_abi::environment::ENV_LISTEN;
use dormouse_listener::{
    CHECK_INTERVAL, IDLE, LISTENING, Listener, STARTING, Service, is_secure, keep_loaded, object_of, variable,
};
use dormouse_transport::Deadline;

use crate::answer;

static LISTENER: Listener = Listener::new();
/// The tracer of this object, if it has one.
static HOST: AtomicPtr<Host> = AtomicPtr::new(core::ptr::null_mut());

/// Maximum wait for the thread's socket.
const PATIENCE: Duration = Duration::from_secs(1);

/// A tracer in the same object, which listens instead of this crate: so a process has one socket for each object, and a
/// tool finds each value once.
#[derive(Debug)]
pub struct Host {
    /// Lets tools reach the program by a thread.
    pub listen: fn() -> std::io::Result<()>,
    /// Ends that.
    pub stop_listening: fn() -> std::io::Result<()>,
}

fn host() -> Option<&'static Host> {
    // (H) Acquire pairs with (H'). SAFETY: null, or from `set_host`, which is given a reference for ever.
    unsafe { HOST.load(Ordering::Acquire).as_ref() }
}

/// Lets the tracer of this object listen from now on, also for a program that listens already.
#[doc(hidden)]
pub fn set_host(host: &'static Host) {
    // (H') Release pairs with (H).
    HOST.store(core::ptr::from_ref(host).cast_mut(), Ordering::Release);
    if LISTENER.state.load(Ordering::Relaxed) != IDLE && LISTENER.stop(|| ()).is_ok() {
        let _ = (host.listen)();
    }
}

/// Lets the program's user and root list and set its tunables by `dormouse imv`, from now on, and those of children that
/// it forks. A thread sleeps on a socket, and no other thread is affected. A second call changes nothing.
///
/// If the object (program or shared library) contains Dormouse's tracer too, that listens, as with `dormouse::listen_by`
/// in the mode `Thread`. A shared library that calls this is never unloaded afterwards.
///
/// Blocks until the socket can be found, for at most a second; not async-signal-safe.
///
/// # Errors
/// `DORMOUSE_LISTEN=0` forbids listening; the program has privileges that its caller does not have (`AT_SECURE`); no
/// thread can be started; there is no directory for the socket.
pub fn listen() -> std::io::Result<()> {
    if let Some(host) = host() {
        return (host.listen)();
    }
    let refused = |text: &str| Err(Error::new(ErrorKind::PermissionDenied, text));
    if is_secure() {
        return refused("a program with privileges that its caller has not does not listen");
    }
    if variable(ENV_LISTEN).as_deref() == Some("0") {
        return refused("DORMOUSE_LISTEN=0 forbids to listen");
    }
    pin();
    follow_forks();
    begin()?;
    LISTENER.wait_for_socket(&Deadline::after(PATIENCE))
}

/// Ends [`listen`]: when this returns there is neither thread nor socket. Call it before a program enters a sandbox
/// that forbids the system calls of an answer.
///
/// Blocks until the answer to a tool is complete, for at most five seconds; not async-signal-safe.
///
/// # Errors
/// The thread cannot be reached: the directory of its socket is removed, or not accessible after `chroot`.
pub fn stop_listening() -> std::io::Result<()> {
    match host() {
        Some(host) => (host.stop_listening)(),
        None => LISTENER.stop(|| ()),
    }
}

/// Starts the thread, if there is none.
fn begin() -> std::io::Result<()> {
    match LISTENER.state.compare_exchange(IDLE, STARTING, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => LISTENER.start(run),
        Err(_) => Ok(()),
    }
}

/// Runs the listening thread.
fn run() {
    LISTENER.serve(&Service {
        pause: CHECK_INTERVAL,
        moves_at_once: true,
        on_listening: &|| (),
        is_idle: &|| false,
        answer: &|question, _| answer(question),
    });
    LISTENER.change_to(IDLE);
}

/// Keeps this object mapped even if it was loaded by `dlopen`: a thread runs its code from now on.
fn pin() {
    if let Some(object) = object_of((run as fn() as *const c_void).addr()) {
        // SAFETY: `dladdr` returned the name, which ends in NUL. The program itself is not found by its name, and is
        // never unloaded.
        unsafe { keep_loaded(object.dli_fname) };
    }
}

/// Lets forked children listen too, once.
fn follow_forks() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function of this object, which is never unloaded (`pin`).
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    }
}

/// Runs in a forked child, which has no thread. It does not wait for its socket: a tool must first find the child.
extern "C" fn after_fork() {
    if let STARTING | LISTENING = LISTENER.after_fork() {
        let _ = begin();
    }
}

//! Snapshots that the program itself asks for: at once, or when something happens to it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use dormouse_abi::trigger::SIGNAL_MAX;
pub use dormouse_abi::trigger::Trigger;
use dormouse_abi::wire::Message;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::process;

/// How long an owner may take to write a snapshot.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A snapshot to ask for: what the session's flight recorder (`--mode overwrite`) holds, of all programs in it.
///
/// ```no_run
/// use std::time::Duration;
///
/// let taken = dormouse::Snapshot::new().last(Duration::from_secs(5)).dir("/tmp/slow-request").take()?;
/// eprintln!("{} events in {}", taken.events, taken.dir.display());
/// # Ok::<(), dormouse::SnapshotError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    dir: Option<PathBuf>,
    last: Option<Duration>,
    bytes_max: Option<u64>,
}

/// What a snapshot came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The trace.
    pub dir: PathBuf,
    /// Events in it.
    pub events: u64,
    /// Bytes of its streams.
    pub bytes: u64,
    /// From its oldest event to the snapshot.
    pub span: Duration,
    /// Pages that were overwritten before they could be copied.
    pub pages_missed: u64,
}

/// Why there is no snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotError {
    /// The program is in no session.
    NoSession,
    /// The session's owner could not be asked, or refused; in its words.
    Refused(String),
}

impl core::fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SnapshotError::NoSession => {
                f.write_str("the program is in no session; `dormouse record --mode overwrite -- CMD` starts one")
            }
            SnapshotError::Refused(text) => f.write_str(text),
        }
    }
}

impl core::error::Error for SnapshotError {}

/// Takes a snapshot of everything that is retained, into a fresh directory beside the session's. See [`Snapshot::take`].
///
/// # Errors
/// See [`SnapshotError`].
pub fn snapshot() -> Result<Taken, SnapshotError> {
    Snapshot::new().take()
}

impl Snapshot {
    /// Of everything that is retained, into a fresh directory beside the session's.
    pub fn new() -> Snapshot {
        Snapshot::default()
    }

    /// Into this directory, which must not exist or be empty. A relative one is taken from the program's current directory.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Snapshot {
        self.dir = Some(dir.into());
        self
    }

    /// Leaves out events that are older.
    pub fn last(mut self, last: Duration) -> Snapshot {
        self.last = Some(last);
        self
    }

    /// Takes the newest pages up to so many bytes. Goes before [`Snapshot::last`].
    pub fn bytes_max(mut self, bytes: u64) -> Snapshot {
        self.bytes_max = Some(bytes);
        self
    }

    fn question(&self, trigger: &str) -> Message {
        // Where there is no current directory, the owner refuses a relative one.
        let dir = self.dir.as_ref().map(|dir| std::path::absolute(dir).unwrap_or_else(|_| dir.clone()));
        Message::Snapshot {
            dir: dir.map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default(),
            last_ns: self.last.map_or(0, |last| (last.as_nanos().min(u64::MAX.into()) as u64).max(1)),
            bytes_max: self.bytes_max.map_or(0, |bytes| bytes.max(1)),
            trigger: trigger.into(),
        }
    }

    fn crashes(&self) -> impl Iterator<Item = Box<Hook>> {
        CRASHES.iter().map(|&(signal, name)| Hook::new(signal, self.prepare(name), true))
    }

    /// Asks the session's owner, and waits until the trace is complete. Blocking; not async-signal-safe.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub fn take(&self) -> Result<Taken, SnapshotError> {
        let _inside = crate::enter_tracer();
        let session = process::current().ok_or(SnapshotError::NoSession)?;
        let (answer, _) =
            process::ask(&session.socket, &self.question("program"), PATIENCE).map_err(SnapshotError::Refused)?;
        match answer {
            Message::Snapshotted { dir, events, bytes, span_ns, pages_missed, .. } => {
                Ok(Taken { dir: dir.into(), events, bytes, span: Duration::from_nanos(span_ns), pages_missed })
            }
            answer => Err(SnapshotError::Refused(process::refusal(answer))),
        }
    }

    /// A request that can be sent from a signal handler. `trigger` is for the trace.
    pub fn prepare(&self, trigger: &str) -> Prepared {
        Prepared { frame: self.question(trigger).encode() }
    }

    /// Sends such a request whenever something happens, from now on and in forked children too. A later call for the same
    /// trigger takes the place of an earlier one.
    ///
    /// [`Trigger::Crash`] and [`Trigger::Signal`] install signal handlers. For an overflow of its stack a thread needs an
    /// alternate one: the calling thread, and threads that trace an event from now on, get one if they have none. After a crash
    /// what was installed before takes over, so the program ends as it would have; after another signal a former handler runs.
    /// [`Trigger::Panic`] sends before the former hook runs.
    ///
    /// [`Trigger::Event`] and [`Trigger::Duration`] wait for events that are armed in the session; such an event's record is
    /// written first, so that it is in the snapshot, by a path that is slower than that of other events. A thread of the
    /// tracer, which is started where there are such classes, sends the request and waits for the snapshot; what fires
    /// meanwhile is counted, and the next snapshot says how often it was. A trigger asks at most once a second, and each time
    /// that it fires again within as long as it had to wait, it waits for twice as long, up to an hour. What has fired is asked
    /// for at the latest when the program ends by `exit`; a program that is killed, or crashes without [`Trigger::Crash`], may
    /// take it along.
    ///
    /// # Errors
    /// What sigaction(2) says; more triggers by event than there is room for (16, of which one by duration takes two).
    pub fn on(&self, trigger: Trigger) -> std::io::Result<()> {
        match trigger {
            Trigger::Crash => {
                want_stacks();
                ensure_alternate_stack();
                self.crashes().try_for_each(Hook::install)
            }
            Trigger::Signal(signal) => Hook::new(signal, self.prepare(&format!("signal {signal}")), false).install(),
            Trigger::Exit => {
                // (V') pairs with (V). The one before is left where it is: an exit may be under way.
                AT_EXIT.store(Box::into_raw(Box::new(self.prepare("exit"))), Ordering::Release);
                if !EXIT_HANDLED.swap(true, Ordering::Relaxed) {
                    // SAFETY: the handler is a function of this object, which is pinned.
                    unsafe { libc::atexit(at_exit) };
                }
                Ok(())
            }
            Trigger::Panic => {
                let prepared = self.prepare("panic");
                let former = std::panic::take_hook();
                std::panic::set_hook(Box::new(move |info| {
                    prepared.request();
                    former(info);
                }));
                Ok(())
            }
            Trigger::Event(_) | Trigger::Duration { .. } => crate::watch::add(trigger, self),
        }
    }
}

/// A request for a snapshot, ready to be sent.
#[derive(Debug, Clone)]
pub struct Prepared {
    frame: Vec<u8>,
}

impl Prepared {
    /// Sends it to the owner of the session that the process is in, and does not wait for the snapshot: the session's memory
    /// outlives the program. Returns whether it was sent.
    ///
    /// Wait-free but for the kernel; async-signal-safe; leaves errno as it is.
    pub fn request(&self) -> bool {
        self.send().is_ok()
    }

    /// The same, and gives the socket on which the answer will come. Where the owner has too much to do, the error is `AGAIN`.
    pub(crate) fn send(&self) -> rustix::io::Result<OwnedFd> {
        // rustix reaches the kernel past libc, and errno with it.
        let session = process::current().ok_or(rustix::io::Errno::NOTCONN)?;
        // A path of a session's socket is short, so no memory is allocated for it.
        let address = SocketAddrUnix::new(&*session.socket)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &address)?;
        // The socket's buffer holds a frame of this size whole.
        let len = rustix::net::send(&socket, &self.frame, SendFlags::NOSIGNAL)?;
        if len == self.frame.len() { Ok(socket) } else { Err(rustix::io::Errno::MSGSIZE) }
    }
}

/// Signals of [`Trigger::Crash`].
const CRASHES: [(c_int, &str); 7] = [
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGTRAP, "SIGTRAP"),
    (libc::SIGSYS, "SIGSYS"),
    (libc::SIGABRT, "SIGABRT"),
];

/// What a signal has to do. Never freed once its handler is installed, which may be under way.
struct Hook {
    signal: c_int,
    prepared: Prepared,
    is_crash: bool,
    /// What was installed before.
    former: libc::sigaction,
}

static HOOKS: [AtomicPtr<Hook>; SIGNAL_MAX as usize + 1] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SIGNAL_MAX as usize + 1];
/// Hooks of crashes that the environment asks for, until the first event. As `main` starts, Rust's runtime looks whether
/// anybody handles SIGSEGV, and if so does without its own handler, which tells of overflows of stacks.
static UNTIL_FIRST_EVENT: AtomicPtr<Hooks> = AtomicPtr::new(core::ptr::null_mut());
/// Each where it will stay: installing one allocates nothing.
type Hooks = Vec<Box<Hook>>;
/// Whether threads are to have alternate stacks.
static ARE_STACKS_WANTED: AtomicBool = AtomicBool::new(false);
/// Whether a crash has been told of: a handler that was installed before may abort, which is the same crash.
static CRASHED: AtomicBool = AtomicBool::new(false);
static AT_EXIT: AtomicPtr<Prepared> = AtomicPtr::new(core::ptr::null_mut());
static EXIT_HANDLED: AtomicBool = AtomicBool::new(false);

fn hook(signal: c_int) -> Option<&'static Hook> {
    let slot = HOOKS.get(usize::try_from(signal).ok()?)?;
    // (V) pairs with (V'). SAFETY: null, or never freed.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

impl Hook {
    fn new(signal: c_int, prepared: Prepared, is_crash: bool) -> Box<Hook> {
        // SAFETY: an empty mask and no flags are a valid action.
        let former = unsafe { core::mem::zeroed() };
        Box::new(Hook { signal, prepared, is_crash, former })
    }

    /// Installs the handler, or changes what it sends. Allocates nothing; async-signal-safe.
    fn install(mut self: Box<Self>) -> std::io::Result<()> {
        let signal = self.signal;
        let failed = std::io::Error::last_os_error;
        // SAFETY: sigaction(2) with room for the answer.
        if unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut self.former) } != 0 {
            return Err(failed());
        }
        let ours = on_signal as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        let is_installed = self.former.sa_sigaction == ours as usize;
        if let (true, Some(hook)) = (is_installed, hook(signal)) {
            self.former = hook.former;
        }
        // (V') pairs with (V). The one before is left where it is: a handler may be reading it.
        HOOKS[signal as usize].store(Box::into_raw(self), Ordering::Release);
        if is_installed {
            return Ok(());
        }
        // SAFETY: as for `former`.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = ours as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the handler is async-signal-safe, and of this object, which is pinned.
        if unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) } != 0 {
            return Err(failed());
        }
        Ok(())
    }
}

/// To be called for each thread that writes an event, when it does so first. Async-signal-safe.
pub(crate) fn meet_thread() {
    // (W) pairs with (W').
    let hooks = UNTIL_FIRST_EVENT.load(Ordering::Acquire);
    if !hooks.is_null()
        && UNTIL_FIRST_EVENT
            .compare_exchange(hooks, core::ptr::null_mut(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    {
        // SAFETY: made by `from_environment`, and this thread's alone now. It is not freed, because a handler may be running.
        let hooks: &mut Hooks = unsafe { &mut *hooks };
        while let Some(hook) = hooks.pop() {
            // One that the system refuses is none.
            let _ = hook.install();
        }
    }
    if ARE_STACKS_WANTED.load(Ordering::Relaxed) {
        ensure_alternate_stack();
    }
}

/// Bytes of an alternate stack, most of which are never touched.
const STACK_SIZE_BYTES: usize = 64 << 10;

/// Gives the calling thread an alternate stack if it has none, so that an overflow of its own can be told of.
/// Async-signal-safe.
fn ensure_alternate_stack() {
    // SAFETY: zeroes are a valid description.
    let mut stack: libc::stack_t = unsafe { core::mem::zeroed() };
    // SAFETY: sigaltstack(2) with room for the answer.
    if unsafe { libc::sigaltstack(core::ptr::null(), &raw mut stack) } != 0 || stack.ss_flags & libc::SS_DISABLE == 0 {
        return;
    }
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
    // SAFETY: a fresh mapping wherever there is room.
    let base = unsafe { libc::mmap(core::ptr::null_mut(), STACK_SIZE_BYTES, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return;
    }
    (stack.ss_sp, stack.ss_size, stack.ss_flags) = (base, STACK_SIZE_BYTES, 0);
    // SAFETY: memory that nobody else uses, until `STACK_KEY`'s destructor takes it back at the thread's end.
    let is_set = unsafe { libc::sigaltstack(&raw const stack, core::ptr::null_mut()) } == 0;
    // SAFETY: the key was made before stacks were wanted; the value is this thread's.
    if is_set && unsafe { libc::pthread_setspecific(STACK_KEY.load(Ordering::Relaxed), base) } == 0 {
        return;
    }
    if !is_set {
        // SAFETY: nobody uses it.
        unsafe { libc::munmap(base, STACK_SIZE_BYTES) };
    }
}

static STACK_KEY: AtomicU32 = AtomicU32::new(0);

/// From now on threads get alternate stacks.
fn want_stacks() {
    extern "C" fn take_back(base: *mut c_void) {
        // SAFETY: zeroes are a valid description.
        let mut stack: libc::stack_t = unsafe { core::mem::zeroed() };
        // SAFETY: sigaltstack(2) with room for the answer.
        let is_known = unsafe { libc::sigaltstack(core::ptr::null(), &raw mut stack) } == 0;
        if !is_known || stack.ss_sp != base {
            // Somebody has put another in its place, and may put this one back: it stays.
            return;
        }
        stack.ss_flags = libc::SS_DISABLE;
        // SAFETY: this thread's own.
        let is_disabled = unsafe { libc::sigaltstack(&raw const stack, core::ptr::null_mut()) } == 0;
        if is_disabled {
            // SAFETY: mapped by `ensure_alternate_stack`; handlers run on the thread's own stack again.
            unsafe { libc::munmap(base, STACK_SIZE_BYTES) };
        }
    }
    static IS_MADE: AtomicBool = AtomicBool::new(false);
    if IS_MADE.swap(true, Ordering::Relaxed) {
        return;
    }
    let mut key = 0;
    // SAFETY: the destructor is a function of this object, which is pinned.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(take_back)) } == 0 {
        STACK_KEY.store(key, Ordering::Relaxed);
        ARE_STACKS_WANTED.store(true, Ordering::Relaxed);
    }
}

/// Async-signal-safe: system calls, and memory that is never freed.
extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(hook) = hook(signal) else { return };
    // SAFETY: this thread's own.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let errno = unsafe { errno_at.read() };
    if !hook.is_crash || !CRASHED.swap(true, Ordering::Relaxed) {
        hook.prepared.request();
    }
    if hook.is_crash {
        // SAFETY: what was installed before.
        unsafe { libc::sigaction(signal, &raw const hook.former, core::ptr::null_mut()) };
        // SAFETY: the kernel's word for what has happened.
        if unsafe { (*info).si_code } <= 0 {
            // Sent by a process: nothing raises it again when this returns. (A fault does.)
            // SAFETY: sends a signal to this very thread, where it waits for the handler's end.
            unsafe { libc::raise(signal) };
        }
    } else {
        call(&hook.former, signal, info, context);
    }
    // SAFETY: as above.
    unsafe { errno_at.write(errno) };
}

/// Calls a handler, if the action is one.
fn call(action: &libc::sigaction, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let address = action.sa_sigaction;
    if address == libc::SIG_DFL || address == libc::SIG_IGN {
        return;
    }
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: so flagged, it is a function of this type.
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = unsafe { core::mem::transmute(address) };
        handler(signal, info, context);
    } else {
        // SAFETY: otherwise of this one.
        let handler: extern "C" fn(c_int) = unsafe { core::mem::transmute(address) };
        handler(signal);
    }
}

extern "C" fn at_exit() {
    // (V) pairs with (V'). SAFETY: never freed.
    if let Some(prepared) = unsafe { AT_EXIT.load(Ordering::Acquire).as_ref() } {
        prepared.request();
    }
}

/// Installs what the environment asks for; handlers of crashes when the first event is written.
pub(crate) fn from_environment() {
    let Ok(text) = std::env::var(dormouse_abi::trigger::ENV_SNAPSHOT_ON) else { return };
    for trigger in Trigger::parse_list(&text) {
        if trigger == Trigger::Crash {
            want_stacks();
            let hooks = Box::into_raw(Box::new(Snapshot::new().crashes().collect::<Hooks>()));
            // (W') pairs with (W). One that is listed twice is left where it is.
            UNTIL_FIRST_EVENT.store(hooks, Ordering::Release);
        } else {
            // One that the system refuses is none.
            let _ = Snapshot::new().on(trigger);
        }
    }
}

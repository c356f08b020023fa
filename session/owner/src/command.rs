//! Runs the traced command: its environment, its signals, its end.

use std::ffi::{OsStr, OsString, c_int};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use dormouse_abi::environment::{ENV_MEMORY, ENV_SESSION, memory_name, with_session};
use dormouse_abi::requests::Requests;
use dormouse_abi::trigger::{ENV_SNAPSHOT_ON, Trigger};
use dormouse_control::restore_descriptor_limit;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin, Sent};

use crate::begin::Entrance;
use crate::error::{Error, no_thread};

/// File name of the library that traces libc's functions in unmodified programs.
pub const LIBC_LIBRARY: &str = "libdormouse_libc.so";
/// Environment variable: path of that library, if it is not beside the program.
pub const ENV_LIBC_LIBRARY: &str = "DORMOUSE_LIBC_LIBRARY";

/// Finds the preload library: at the path in the environment, beside this program, in `../lib/dormouse` or in `../lib`.
///
/// # Errors
/// One line, if there is none.
pub fn find_libc_library() -> Result<PathBuf, Error> {
    let named = std::env::var_os(ENV_LIBC_LIBRARY).map(PathBuf::from);
    let here = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    let beside = here.iter().flat_map(|dir| {
        [dir.join(LIBC_LIBRARY), dir.join("../lib/dormouse").join(LIBC_LIBRARY), dir.join("../lib").join(LIBC_LIBRARY)]
    });
    let places: Vec<PathBuf> = match named {
        Some(path) => vec![path],
        None => beside.collect(),
    };
    let found = places.iter().find(|path| path.is_file()).and_then(|path| path.canonicalize().ok());
    let not_found = || {
        let looked = places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        format!(
            "cannot find {LIBC_LIBRARY} (looked for {looked}); `cargo xtask install --prefix DIR` in Dormouse's sources installs it with \
             the command, or set {ENV_LIBC_LIBRARY} to its path"
        )
    };
    Ok(found.ok_or_else(not_found)?)
}

/// Directory beside the library with a subdirectory for each value that `$LIB` has for a kind of program. 32-bit
/// programs find an empty subdirectory; without it, their loader would write an error to standard error. `cargo xtask
/// install` creates it.
const BY_LIB: &str = "libc-by-lib";

/// Returns the library's name through that directory, if the name leads programs like this one to the library.
fn name_by_lib(library: &Path) -> Option<OsString> {
    let (libc, tree, name) = (libc_path()?, library.parent()?.join(BY_LIB), library.file_name()?);
    let dir = libc.parent()?;
    // The path from the prefix of `$LIB` to libc's directory is the same in the tree.
    let mut prefixes = dir.ancestors().skip(1).take(2);
    let prefix = prefixes
        .find(|prefix| is_loaded(prefix.join("$LIB").join(libc.file_name().unwrap_or_default()).as_os_str()))?;
    let lib = dir.strip_prefix(prefix).ok()?;
    let leads = tree.join(lib).join(name).canonicalize().is_ok_and(|found| found == library);
    leads.then(|| tree.join("$LIB").join(name).into_os_string())
}

/// Returns the name of a library for `LD_PRELOAD`. It contains `$LIB`, which glibc's loader replaces by the name of the
/// system's library directory, such as `lib64`. musl's loader takes it literally, finds no such file, and continues
/// without. With the plain path, musl's loader would find the library and not start the program, because the library
/// needs glibc.
fn preload_name(library: &Path) -> Result<OsString, Error> {
    let path = library.to_string_lossy();
    if let Some(character) = path.chars().find(|character| matches!(character, ' ' | ':' | '$')) {
        let text = format!(
            "cannot preload {path}: the loader takes `{character}` in LD_PRELOAD for something else; move it to another path"
        );
        return Err(text.into());
    }
    if let Some(name) = name_by_lib(library) {
        return Ok(name);
    }
    // Some systems have no such directory.
    let leads_back = libc_path().is_none_or(|libc| is_loaded(&through_lib(&libc)));
    Ok(if leads_back { through_lib(library) } else { library.into() })
}

/// Returns an absolute path by way of the system's library directory, and back from there to the root, even if links
/// lead there.
fn through_lib(path: &Path) -> OsString {
    let mut name = OsString::from("/$LIB");
    name.push("/..".repeat(16));
    name.push(path);
    name
}

/// Returns the file of this program's libc, if that is glibc.
#[cfg(target_env = "gnu")]
fn libc_path() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr(3) only looks up the address, and fills `info`, which is writable, when it returns non-zero.
    if unsafe { libc::dladdr(libc::gnu_get_libc_version as *const libc::c_void, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr(3) has filled it, since it did not return 0.
    let name = unsafe { info.assume_init() }.dli_fname;
    // SAFETY: dladdr(3) returns a name that ends in NUL and lives as long as the loaded object; libc is never unloaded.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    Path::new(OsStr::from_bytes(name.to_bytes())).canonicalize().ok()
}

#[cfg(not(target_env = "gnu"))]
fn libc_path() -> Option<PathBuf> {
    None
}

/// Whether the loader finds an object by this name that is loaded already.
fn is_loaded(name: &OsStr) -> bool {
    let Ok(name) = std::ffi::CString::new(name.as_bytes()) else { return false };
    // SAFETY: the name ends in NUL; with RTLD_NOLOAD, dlopen(3) loads nothing and runs no code of the object.
    let object = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    // SAFETY: the handle is not null and was returned by `dlopen` just now; it is closed once.
    !object.is_null() && unsafe { libc::dlclose(object) } == 0
}

/// A running traced command.
#[derive(Debug)]
pub struct Traced {
    pid: u32,
    ended: Receiver<CommandEnd>,
    phase: Arc<Phase>,
}

/// State of the command for the thread that receives signals. It publishes no other data: all orderings are Relaxed.
#[derive(Debug, Default)]
struct Phase {
    is_command_over: AtomicBool,
    /// Whether the count of requests starts anew: signals that have asked for the end so far were meant for the
    /// command.
    begins_anew: AtomicBool,
}

/// How a command, or its recording, has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandEnd {
    /// The command has exited with this code; as in shells, 128 plus the signal's number if a signal has ended it.
    Exited(i32),
    /// The command has not ended: this signal has asked for its end, but it cannot take the signal, because it is
    /// frozen, stopped or traced. It goes on.
    Frozen(i32),
    /// The command had ended before, and a signal asks for the recording's end.
    Interrupted,
}

/// How long a command may leave a signal pending that asks for its end. A running command takes it at once, whatever it
/// then does.
const SIGNAL_PENDING_MAX: Duration = Duration::from_secs(1);

/// Signals that ask a recording to end.
const ENDING: [c_int; 3] = [SIGHUP, SIGINT, SIGTERM];

/// Meaning of a signal that asks for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndRequest {
    First,
    /// Belongs to a request that was received before, or is meant for the command.
    Known,
    /// Means that this process must end at once.
    AtOnce,
}

/// Requests for the end by signals so far.
#[derive(Debug)]
struct EndRequests<C> {
    /// Returns the time since a fixed moment.
    clock: C,
    requests: Requests,
    is_asked: bool,
}

impl EndRequests<()> {
    fn new() -> EndRequests<impl Fn() -> Duration> {
        let begun = Instant::now();
        EndRequests { clock: move || begun.elapsed(), requests: Requests::default(), is_asked: false }
    }
}

impl<C: Fn() -> Duration> EndRequests<C> {
    /// Notes a signal that asks for the end.
    ///
    /// A terminal's signals while the command runs are meant for the command, however many there are, and so are those
    /// that a wrapper passes on.
    fn hear(&mut self, is_from_terminal: bool, is_command_over: bool) -> EndRequest {
        if !self.requests.is_new((self.clock)()) {
            return EndRequest::Known;
        }
        match std::mem::replace(&mut self.is_asked, true) {
            false => EndRequest::First,
            true if is_from_terminal && !is_command_over => EndRequest::Known,
            true => EndRequest::AtOnce,
        }
    }
}

/// Calls `first` at the first request for the end by a signal, and `at_once` at each later one
/// ([`dormouse_abi::requests`]).
///
/// # Errors
/// One line with the reason.
pub fn on_ending_signals(
    first: impl Fn() + Send + 'static,
    at_once: impl Fn(i32) + Send + 'static,
) -> Result<(), Error> {
    let mut signals = SignalsInfo::<WithOrigin>::new(ENDING).map_err(no_signals)?;
    let mut requests = EndRequests::new();
    let run = move || {
        for origin in signals.forever() {
            match requests.hear(is_from_terminal(&origin), true) {
                EndRequest::First => first(),
                EndRequest::Known => {}
                EndRequest::AtOnce => at_once(origin.signal),
            }
        }
    };
    std::thread::Builder::new().name("dormouse-signal".into()).spawn(run).map(drop).map_err(no_thread)
}

fn no_signals(error: std::io::Error) -> Error {
    format!("cannot handle signals: {error}").into()
}

impl Traced {
    /// Starts `command` (program and arguments, not empty) so that it and its descendants join the session, and ask for
    /// a snapshot at each of `triggers`, if any. They inherit the session's memory at a descriptor number so high that
    /// no program expects to get it. From now on, signals are passed on to the command as long as this process lives.
    ///
    /// `at_once` is called with the signal of a second request for the end ([`dormouse_abi::requests`]): the process
    /// must not wait for anything any more.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn start(
        command: &[OsString],
        entrance: Entrance<'_>,
        preload: Option<&Path>,
        triggers: &[Trigger],
        at_once: impl Fn(i32) + Send + 'static,
    ) -> Result<Traced, Error> {
        let (program, arguments) = match command {
            [program, arguments @ ..] => (program.as_os_str(), arguments),
            [] => (OsStr::new(""), command),
        };
        // Set up before the command runs: a signal in between must not end the session without the command.
        let forwarded = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT];
        // Signals that `nohup` or a shell has set to be ignored must also be ignored in the command.
        let forwarded = forwarded.into_iter().filter(|signal| !is_ignored(*signal));
        let signals = SignalsInfo::<WithOrigin>::new(forwarded).map_err(no_signals)?;
        let mut process = Command::new(program);
        let Entrance { memory, uuid, socket } = entrance;
        let (memory, inherited) = (memory.as_raw_fd(), free_descriptor());
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        // Sessions that this process would inherit are those of the command too.
        let others = (&*variable(ENV_SESSION), &*variable(ENV_MEMORY));
        let (sockets, memories) = with_session(others, &socket.to_string_lossy(), &memory_name(inherited, &uuid));
        process.args(arguments).env(ENV_SESSION, sockets).env(ENV_MEMORY, memories);
        if !triggers.is_empty() {
            process.env(ENV_SNAPSHOT_ON, triggers.iter().map(Trigger::to_string).collect::<Vec<_>>().join(","));
        }
        if let Some(library) = preload {
            let mut list = preload_name(library)?;
            if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
                list.push(":");
                list.push(others);
            }
            process.env("LD_PRELOAD", list);
        }
        // SAFETY: between fork and exec, `inherit` only calls `dup2`, which is async-signal-safe, with numbers as
        // arguments.
        unsafe { process.pre_exec(move || inherit(memory, inherited)) };
        let signals_before = SignalState::of_this_thread();
        // After that: the number may be above the command's own limit, which does not invalidate an open descriptor.
        // SAFETY: between fork and exec, `restore` only calls async-signal-safe functions.
        unsafe { process.pre_exec(move || signals_before.restore()) };
        let failed = |error| format!("cannot run `{}`: {error}", program.to_string_lossy());
        let mut child = process.spawn().map_err(failed)?;
        let (sender, ended) = channel();
        let (pid, phase, of_waiter) = (child.id(), Arc::new(Phase::default()), sender.clone());
        let wait = move || {
            // No other thread waits for the child, so its exit code is available here.
            let code = child.wait().map_or(1, exit_code);
            let _ = of_waiter.send(CommandEnd::Exited(code));
        };
        std::thread::Builder::new().name("dormouse-wait".into()).spawn(wait).map_err(no_thread)?;
        let forwarder = Forwarder { pid, signals, phase: Arc::clone(&phase), ended: sender };
        let forward = move || forwarder.run(&at_once);
        std::thread::Builder::new().name("dormouse-signal".into()).spawn(forward).map_err(no_thread)?;
        Ok(Traced { pid, ended, phase })
    }

    /// Returns the command's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for the command's end, or for a request to end while it is frozen.
    pub fn wait(&self) -> CommandEnd {
        // The waiting thread sends its message before it ends.
        let ended = self.ended.recv().unwrap_or(CommandEnd::Exited(1));
        self.phase.is_command_over.store(true, Ordering::Relaxed);
        ended
    }

    /// Calls `function` at the first signal that asks for the end from now on, after the command has ended. Earlier
    /// signals were meant for the command.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn on_interrupt(self, function: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        self.phase.begins_anew.store(true, Ordering::Relaxed);
        let wait = move || {
            if self.ended.iter().any(|ended| ended == CommandEnd::Interrupted) {
                function();
            }
        };
        std::thread::Builder::new().name("dormouse-interrupt".into()).spawn(wait).map(drop).map_err(no_thread)
    }
}

/// Returns the highest free descriptor number below the limit.
fn free_descriptor() -> RawFd {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    // SAFETY: fcntl(2) only asks for flags; it fails if nothing is open at the number.
    let is_free = |number: &RawFd| unsafe { libc::fcntl(*number, libc::F_GETFD) } == -1;
    (3..limit.min(DESCRIPTOR_COUNT_MAX) as RawFd).rev().find(is_free).unwrap_or(3)
}

/// Returns a descriptor of a file that all processes started by this one inherit as long as it is open.
pub(crate) fn inheritable(file: BorrowedFd<'_>) -> std::io::Result<OwnedFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(file, free_descriptor())?;
    rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty())?;
    Ok(copy)
}

/// A higher number would make a program's descriptor table grow.
const DESCRIPTOR_COUNT_MAX: u64 = 1024;

/// Duplicates a file to a descriptor number, where executed programs have it.
fn inherit(file: RawFd, number: RawFd) -> std::io::Result<()> {
    // SAFETY: dup2(2) takes numbers only. A file that is open at the second number is closed only in this process,
    // which is about to execute another program.
    match unsafe { libc::dup2(file, number) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Passes signals on to the command.
struct Forwarder {
    pid: u32,
    signals: SignalsInfo<WithOrigin>,
    phase: Arc<Phase>,
    ended: Sender<CommandEnd>,
}

impl Forwarder {
    /// Passes signals on. A terminal's signals (to the whole foreground group) reach the command by themselves and are
    /// not repeated.
    fn run(mut self, at_once: &dyn Fn(i32)) {
        let mut requests = EndRequests::new();
        for origin in self.signals.forever() {
            let signal = origin.signal;
            let is_from_terminal = is_from_terminal(&origin);
            let is_over = self.phase.is_command_over.load(Ordering::Relaxed);
            if self.phase.begins_anew.swap(false, Ordering::Relaxed) {
                requests.is_asked = false;
            }
            if ENDING.contains(&signal) && requests.hear(is_from_terminal, is_over) == EndRequest::AtOnce {
                at_once(signal);
            }
            if is_over {
                if ENDING.contains(&signal) {
                    let _ = self.ended.send(CommandEnd::Interrupted);
                }
                // Its process id may belong to another process by now.
                continue;
            }
            let pid = rustix::process::Pid::from_raw(self.pid as i32);
            if let Some((pid, signal)) =
                pid.zip(rustix::process::Signal::from_named_raw(signal)).filter(|_| !is_from_terminal)
            {
                let _ = rustix::process::kill_process(pid, signal);
            }
            if ENDING.contains(&signal) {
                let (pid, ended) = (self.pid, self.ended.clone());
                let look = move || {
                    // The kernel does not report that a signal was not taken.
                    std::thread::sleep(SIGNAL_PENDING_MAX);
                    if is_left_pending(&status_of(pid), signal) {
                        let _ = ended.send(CommandEnd::Frozen(signal));
                    }
                };
                // Without a thread for it, only the command's own end is awaited.
                let _ = std::thread::Builder::new().name("dormouse-frozen".into()).spawn(look);
            }
        }
    }
}

fn status_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

/// Whether a process, by its proc_pid_status(5), has not taken a signal that it does not block, and so does not run.
fn is_left_pending(status: &str, signal: c_int) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    let bit = 1 << (signal - 1);
    (mask("SigPnd:") | mask("ShdPnd:")) & bit != 0 && mask("SigBlk:") & bit == 0
}

/// Signal state that this process was started with, and that the command must find.
#[derive(Debug, Clone, Copy)]
struct SignalState {
    mask: libc::sigset_t,
    ignored: [(c_int, bool); 3],
}

/// Signals that this process, or the language's start-up code, handles differently than they were on entry.
const CHANGED: [c_int; 3] = [libc::SIGPIPE, libc::SIGXFSZ, libc::SIGBUS];

/// Bit mask of the [`CHANGED`] signals that were ignored when this process began, in their order.
static IGNORED: AtomicU32 = AtomicU32::new(0);

extern "C" fn note_ignored() {
    for (index, signal) in CHANGED.into_iter().enumerate() {
        IGNORED.fetch_or(u32::from(is_ignored(signal)) << index, Ordering::Relaxed);
    }
}

/// Run by the loader, before the language's start-up code sets SIGPIPE to be ignored.
#[used]
// SAFETY: the section is an array of pointers to functions of this type (System V ABI, "Initialization and Termination
// Functions"), and this function needs nothing that is initialised later.
#[unsafe(link_section = ".init_array")]
static NOTE_IGNORED: extern "C" fn() = note_ignored;

impl SignalState {
    /// Reads the state. The mask is that of the calling thread; in the first thread it is unchanged.
    fn of_this_thread() -> SignalState {
        let mut mask = std::mem::MaybeUninit::uninit();
        // SAFETY: pthread_sigmask(3) without a new mask only fills `mask` with the old one, and does not fail.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr()) };
        // SAFETY: `mask` was filled by the call above.
        let mask = unsafe { mask.assume_init() };
        let word = IGNORED.load(Ordering::Relaxed);
        let mut index = 0;
        let ignored = CHANGED.map(|signal| {
            index += 1;
            (signal, word >> (index - 1) & 1 != 0)
        });
        SignalState { mask, ignored }
    }

    fn restore(self) -> std::io::Result<()> {
        restore_descriptor_limit();
        for (signal, is_ignored) in self.ignored {
            // SAFETY: signal(2) sets a disposition without a handler; it is async-signal-safe.
            unsafe { libc::signal(signal, if is_ignored { libc::SIG_IGN } else { libc::SIG_DFL }) };
        }
        // SAFETY: the mask was read by `of_this_thread`; the function is async-signal-safe (signal-safety(7)).
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut()) };
        Ok(())
    }
}

fn is_ignored(signal: c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: sigaction(2) without a new action only writes the old one to `action`, which has room for it.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: sigaction(2) has filled it, since it returned 0.
    unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

fn is_from_terminal(origin: &Origin) -> bool {
    matches!(origin.cause, Cause::Kernel)
        || !matches!(origin.cause, Cause::Sent(Sent::User | Sent::TKill | Sent::Queue))
}

/// Returns the exit code, as in shells: 128 plus the signal's number for a command that a signal has ended.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the meaning of each signal, given its time in milliseconds, whether it comes from a terminal, and
    /// whether the command is over.
    fn heard(signals: &[(u64, bool, bool)]) -> Vec<EndRequest> {
        let now = std::cell::Cell::new(Duration::ZERO);
        let mut requests = EndRequests { clock: || now.get(), requests: Requests::default(), is_asked: false };
        let hear = |(ms, is_from_terminal, is_over): &(u64, bool, bool)| {
            now.set(Duration::from_millis(*ms));
            requests.hear(*is_from_terminal, *is_over)
        };
        signals.iter().map(hear).collect()
    }

    #[test]
    fn the_second_request_to_the_recording_ends_it() {
        use EndRequest::{AtOnce, First, Known};
        const SENT: bool = false;
        const TERMINAL: bool = true;
        // The user presses Ctrl-C repeatedly at a prompt of the command; only a signal to the recorder itself counts.
        let prompt = [(0, TERMINAL, false), (900, TERMINAL, false), (1_800, TERMINAL, false), (3_000, SENT, false)];
        assert_eq!(heard(&prompt), [First, Known, Known, AtOnce]);
        // A wrapper in the foreground group passes each of them on.
        let wrapped = [(0, TERMINAL, false), (1, SENT, false), (900, TERMINAL, false), (903, SENT, false)];
        assert_eq!(heard(&wrapped), [First, Known, Known, Known]);
        // timeout(1) sends signals, and later the user does.
        for is_over in [false, true] {
            let timeout = [
                (5, SENT, is_over),
                (5, SENT, is_over),
                (60, SENT, is_over),
                (2_000, SENT, is_over),
                (2_000, SENT, is_over),
            ];
            assert_eq!(heard(&timeout), [First, Known, Known, AtOnce, Known]);
        }
        assert_eq!(heard(&[(0, TERMINAL, true), (150, TERMINAL, true), (400, TERMINAL, true)]), [First, Known, AtOnce]);
    }

    #[test]
    fn a_stopped_process_leaves_a_signal_and_a_blocking_one_does_not() {
        let status = |pending: &str, shared: &str, blocked: &str| {
            format!("Name:\tx\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n")
        };
        let none = "0000000000000000";
        let term = "0000000000004000";
        let of = |pending, shared, blocked| is_left_pending(&status(pending, shared, blocked), SIGTERM);
        assert!(of(none, term, none) && of(term, none, none));
        assert!(!of(none, term, term) && !of(none, none, none) && !of(none, "0000000000000002", none));
        assert!(!is_left_pending("", SIGTERM));
    }
}

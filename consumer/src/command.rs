//! Running the traced command: its environment, its signals, its end.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use dormouse_abi::trigger::{ENV_SNAPSHOT_ON, Trigger};
use dormouse_abi::wire::ENV_SESSION;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin, Sent};

/// File name of the library that traces libc's functions in unmodified programs.
pub const LIBC_LIBRARY: &str = "libdormouse_libc.so";
/// Environment variable: where that library is, if not beside the program.
pub const ENV_LIBC_LIBRARY: &str = "DORMOUSE_LIBC_LIBRARY";

/// Why a command cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It cannot be started.
    #[error("cannot run `{program}`: {error}")]
    Start {
        /// Which.
        program: String,
        /// Why.
        error: std::io::Error,
    },
    /// The preload library is missing.
    #[error("cannot find {LIBC_LIBRARY} (looked in {looked}); set {ENV_LIBC_LIBRARY} to its path")]
    NoLibrary {
        /// Where it was looked for.
        looked: String,
    },
    /// Signals cannot be handled.
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
    /// Its end cannot be awaited.
    #[error("cannot wait for the command: {0}")]
    Wait(std::io::Error),
}

/// Finds the preload library: where the environment says, beside this program, or in `../lib/dormouse`.
///
/// # Errors
/// [`CommandError::NoLibrary`].
pub fn find_libc_library() -> Result<PathBuf, CommandError> {
    let named = std::env::var_os(ENV_LIBC_LIBRARY).map(PathBuf::from);
    let here = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    let beside = here.iter().flat_map(|dir| {
        [dir.join(LIBC_LIBRARY), dir.join("../lib/dormouse").join(LIBC_LIBRARY), dir.join("../lib").join(LIBC_LIBRARY)]
    });
    let places: Vec<PathBuf> = match named {
        Some(path) => vec![path],
        None => beside.collect(),
    };
    if let Some(path) = places.iter().find(|path| path.is_file()) {
        return path.canonicalize().map_err(|_| CommandError::NoLibrary { looked: path.display().to_string() });
    }
    let looked = places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    Err(CommandError::NoLibrary { looked })
}

/// A traced command that runs.
#[derive(Debug)]
pub struct Traced {
    child: Child,
    signals: SignalsInfo<WithOrigin>,
}

impl Traced {
    /// Starts `command` (program and arguments, not empty) so that it and its descendants join the session at `socket`, and ask for
    /// a snapshot at each of `triggers`, if there are any.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub fn start(
        command: &[OsString],
        socket: &Path,
        preload: Option<&Path>,
        triggers: &[Trigger],
    ) -> Result<Traced, CommandError> {
        let (program, arguments) = match command {
            [program, arguments @ ..] => (program.as_os_str(), arguments),
            [] => (OsStr::new(""), command),
        };
        // Before the command runs: a signal in between must not end the session without it.
        let forwarded = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT];
        // What `nohup` or a shell has had ignored, the command is to find ignored.
        let forwarded = forwarded.into_iter().filter(|signal| !is_ignored(*signal));
        let signals = SignalsInfo::<WithOrigin>::new(forwarded).map_err(CommandError::Signals)?;
        let mut process = Command::new(program);
        process.args(arguments).env(ENV_SESSION, socket);
        if !triggers.is_empty() {
            process.env(ENV_SNAPSHOT_ON, triggers.iter().map(Trigger::to_string).collect::<Vec<_>>().join(","));
        }
        if let Some(library) = preload {
            let mut list = library.as_os_str().to_owned();
            if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
                list.push(":");
                list.push(others);
            }
            process.env("LD_PRELOAD", list);
        }
        // SAFETY: between fork and exec only async-signal-safe functions run; `signal` is one.
        unsafe { process.pre_exec(reset_sigpipe) };
        let child = process
            .spawn()
            .map_err(|error| CommandError::Start { program: program.to_string_lossy().into_owned(), error })?;
        Ok(Traced { child, signals })
    }

    /// Waits for the command's end and passes signals on to it meanwhile.
    ///
    /// What a terminal sends (to the whole foreground group) reaches the command by itself and is not repeated.
    ///
    /// # Errors
    /// [`CommandError::Wait`].
    pub fn wait(mut self) -> Result<i32, CommandError> {
        let handle = self.signals.handle();
        let pid = rustix::process::Pid::from_child(&self.child);
        let mut signals = self.signals;
        let forwarder = std::thread::spawn(move || {
            for origin in signals.forever() {
                if !is_from_terminal(&origin)
                    && let Some(signal) = rustix::process::Signal::from_named_raw(origin.signal)
                {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
        });
        let status = self.child.wait().map_err(CommandError::Wait);
        handle.close();
        let _ = forwarder.join();
        status.map(exit_code)
    }
}

fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: sigaction(2) with room for the answer.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: filled.
    unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Rust programs ignore SIGPIPE; the command is to find it as a shell would leave it.
fn reset_sigpipe() -> std::io::Result<()> {
    // SAFETY: restores a default disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    Ok(())
}

fn is_from_terminal(origin: &Origin) -> bool {
    matches!(origin.cause, Cause::Kernel)
        || !matches!(origin.cause, Cause::Sent(Sent::User | Sent::TKill | Sent::Queue))
}

/// As shells do: 128 and the signal's number for a command that a signal ended.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

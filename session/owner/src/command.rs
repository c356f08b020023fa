//! Running the traced command: its environment, its signals, its end.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use dormouse_abi::environment::{ENV_MEMORY, ENV_SESSION, memory_name};
use dormouse_abi::trigger::{ENV_SNAPSHOT_ON, Trigger};
use dormouse_control::restore_descriptor_limit;
use object::read::elf::ProgramHeader;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin, Sent};

use crate::error::Error;
use crate::owner::Session;

/// File name of the library that traces libc's functions in unmodified programs.
pub const LIBC_LIBRARY: &str = "libdormouse_libc.so";
/// Environment variable: where that library is, if not beside the program.
pub const ENV_LIBC_LIBRARY: &str = "DORMOUSE_LIBC_LIBRARY";

/// Finds the preload library: where the environment says, beside this program, or in `../lib/dormouse`.
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

/// What `LD_PRELOAD` names a library by: through `$LIB`, where glibc's loader puts the name of the system's directory of libraries, such as
/// `lib64`. musl's loader takes it as it stands, finds no such file, and goes on without. By its plain path it would find the library, and not
/// start the program, because what the library needs is glibc's.
fn preload_name(library: &Path) -> Result<OsString, Error> {
    let path = library.to_string_lossy();
    if let Some(character) = path.chars().find(|character| matches!(character, ' ' | ':' | '$')) {
        let text = format!(
            "cannot preload {path}: the loader takes `{character}` in LD_PRELOAD for something else; move it to another path"
        );
        return Err(text.into());
    }
    // There are systems without such a directory.
    let leads_back = libc_path().is_none_or(|libc| is_loaded(&through_lib(&libc)));
    Ok(if leads_back { through_lib(library) } else { library.into() })
}

/// An absolute path, by way of the system's directory of libraries: back from there to the root, whatever links lead there.
fn through_lib(path: &Path) -> OsString {
    let mut name = OsString::from("/$LIB");
    name.push("/..".repeat(16));
    name.push(path);
    name
}

/// The file of the libc that this program runs, if that is glibc.
#[cfg(target_env = "gnu")]
fn libc_path() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: looks an address up; fills `info` when it returns non-zero.
    if unsafe { libc::dladdr(libc::gnu_get_libc_version as *const libc::c_void, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr(3) has filled it, since it did not return 0.
    let name = unsafe { info.assume_init() }.dli_fname;
    // SAFETY: dladdr(3) gives a name that ends in NUL and stays as long as the object.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    Path::new(OsStr::from_bytes(name.to_bytes())).canonicalize().ok()
}

#[cfg(not(target_env = "gnu"))]
fn libc_path() -> Option<PathBuf> {
    None
}

/// Whether the loader finds, by this name, an object that is loaded.
fn is_loaded(name: &OsStr) -> bool {
    let Ok(name) = std::ffi::CString::new(name.as_bytes()) else { return false };
    // SAFETY: a name that ends in NUL; nothing is loaded (dlopen(3), RTLD_NOLOAD).
    let object = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    // SAFETY: a handle of `dlopen`.
    !object.is_null() && unsafe { libc::dlclose(object) } == 0
}

/// Why the preload library does not reach a program, if that can be told from its file.
pub fn why_not_preloaded(program: &OsStr) -> Option<String> {
    let shown = program.to_string_lossy();
    let path = if shown.contains('/') {
        PathBuf::from(program)
    } else {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.is_file())?
    };
    let file = std::fs::File::open(path).ok()?;
    let data = object::ReadCache::new(file);
    let program = object::read::elf::ElfFile64::<object::Endianness, _>::parse(&data).ok()?;
    let interpreter = program.elf_program_headers().iter().find_map(|header| {
        header.interpreter(program.endian(), program.data()).ok().flatten().map(String::from_utf8_lossy)
    });
    let what = match interpreter {
        None => "is static".to_string(),
        Some(loader) if loader.contains("/ld-musl") => "has musl for its libc".to_string(),
        Some(_) => return None,
    };
    Some(format!("`{shown}` {what}: `--libc` does not reach it, so what it calls of libc is not traced"))
}

/// A traced command that runs.
#[derive(Debug)]
pub struct Traced {
    child: Child,
    signals: SignalsInfo<WithOrigin>,
}

impl Traced {
    /// Starts `command` (program and arguments, not empty) so that it and its descendants join the session, and ask for a snapshot at each of
    /// `triggers`, if there are any. They inherit the session's memory, at a descriptor so high that no program expects to get it.
    ///
    /// # Errors
    /// One line.
    pub fn start(
        command: &[OsString],
        session: &Session,
        preload: Option<&Path>,
        triggers: &[Trigger],
    ) -> Result<Traced, Error> {
        let (program, arguments) = match command {
            [program, arguments @ ..] => (program.as_os_str(), arguments),
            [] => (OsStr::new(""), command),
        };
        // Before the command runs: a signal in between must not end the session without it.
        let forwarded = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT];
        // What `nohup` or a shell has had ignored, the command is to find ignored.
        let forwarded = forwarded.into_iter().filter(|signal| !is_ignored(*signal));
        let signals =
            SignalsInfo::<WithOrigin>::new(forwarded).map_err(|error| format!("cannot handle signals: {error}"))?;
        let mut process = Command::new(program);
        let (memory, uuid) = session.memory();
        let (memory, inherited) = (memory.as_raw_fd(), free_descriptor());
        process.args(arguments).env(ENV_SESSION, session.socket()).env(ENV_MEMORY, memory_name(inherited, &uuid));
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
        // SAFETY: between fork and exec only async-signal-safe functions run; `signal` and `setrlimit` are such.
        unsafe { process.pre_exec(reset_for_command) };
        // SAFETY: between fork and exec only async-signal-safe functions run; `dup2` is one, and both descriptors are numbers.
        unsafe { process.pre_exec(move || inherit(memory, inherited)) };
        let failed = |error| format!("cannot run `{}`: {error}", program.to_string_lossy());
        let child = process.spawn().map_err(failed)?;
        Ok(Traced { child, signals })
    }

    /// Waits for the command's end and passes signals on to it meanwhile.
    ///
    /// What a terminal sends (to the whole foreground group) reaches the command by itself and is not repeated.
    ///
    /// # Errors
    /// One line, if its end cannot be awaited.
    pub fn wait(mut self) -> Result<i32, Error> {
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
        let status = self.child.wait().map_err(|error| format!("cannot wait for the command: {error}").into());
        handle.close();
        let _ = forwarder.join();
        status.map(exit_code)
    }
}

/// The highest number below the limit that nothing is open at.
fn free_descriptor() -> RawFd {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    // SAFETY: asks for flags; at a number that nothing is open at, it fails (fcntl(2)).
    let is_free = |number: &RawFd| unsafe { libc::fcntl(*number, libc::F_GETFD) } == -1;
    (3..limit.min(DESCRIPTOR_COUNT_MAX) as RawFd).rev().find(is_free).unwrap_or(3)
}

/// Above this a program's table of descriptors would have to grow for it.
const DESCRIPTOR_COUNT_MAX: u64 = 1024;

/// Puts a file at a number at which programs that are executed have it.
fn inherit(file: RawFd, number: RawFd) -> std::io::Result<()> {
    // SAFETY: numbers; where there is a file at the second one, it is not this process's any more, which is about to execute another program.
    match unsafe { libc::dup2(file, number) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: sigaction(2) with room for the answer.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: sigaction(2) has filled it, since it returned 0.
    unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Rust programs ignore SIGPIPE; the command is to find it as a shell would leave it. And its limit of descriptors as it was.
fn reset_for_command() -> std::io::Result<()> {
    restore_descriptor_limit();
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

//! LTTng-UST beside us: a daemon of the experiment's own, which no other session on the machine sees.
//!
//! ```text
//!   user   LTTNG_HOME=temporary directory                   the daemon's sockets, its client and programs are in there
//!   root   the same, and a mount namespace in which         because for root they are in /var/run/lttng, whatever
//!          a temporary directory is /var/run/lttng          LTTNG_HOME says
//! ```
//! The daemon ends with this value, and by the kernel's hand if this process ends otherwise.

use std::ffi::CString;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::LabError;

/// LTTng's library in front of libc, as the loader finds it.
pub(super) const LIBRARY: &str = "liblttng-ust-libc-wrapper.so";
/// What has it all on Debian and Ubuntu.
const INSTALL: &str = "apt-get install lttng-tools liblttng-ust-dev";
/// Where a daemon of root has its sockets.
const ROOT_DIRECTORY: &std::ffi::CStr = c"/var/run/lttng";
const SESSION: &str = "dormouse-lab";
const PATIENCE: Duration = Duration::from_secs(10);

/// A daemon that runs.
#[derive(Debug)]
pub(super) struct Lttng {
    home: tempfile::TempDir,
    /// What is mounted in place of [`ROOT_DIRECTORY`], for root.
    mounted: Option<CString>,
    daemon: Option<Child>,
}

impl Lttng {
    /// Starts a daemon.
    ///
    /// # Errors
    /// Why there is none, in one line.
    pub(super) fn start() -> Result<Option<Lttng>, String> {
        for program in ["lttng-sessiond", "lttng"] {
            if !is_on_path(program) {
                return Err(format!("{program} is not installed ({INSTALL})"));
            }
        }
        if !has_library() {
            return Err(format!("{LIBRARY} is not installed ({INSTALL})"));
        }
        let home = tempfile::Builder::new().prefix("dormouse-lttng-").tempdir().map_err(|error| error.to_string())?;
        let mounted = if rustix::process::geteuid().is_root() {
            let dir = home.path().join("run");
            let made = std::fs::create_dir(&dir)
                .and_then(|()| std::fs::create_dir_all(std::ffi::OsStr::from_bytes(ROOT_DIRECTORY.to_bytes())));
            made.map_err(|error| format!("no directory for its sockets: {error}"))?;
            Some(CString::new(dir.as_os_str().as_bytes()).map_err(|error| error.to_string())?)
        } else {
            None
        };
        let mut lttng = Lttng { home, mounted, daemon: None };
        let mut daemon = lttng.command("lttng-sessiond");
        daemon.args(["--no-kernel", "--quiet"]).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: between fork and exec `end_with_parent` makes one system call.
        unsafe { daemon.pre_exec(end_with_parent) };
        lttng.daemon = Some(daemon.spawn().map_err(|error| format!("lttng-sessiond cannot be run: {error}"))?);
        let started = Instant::now();
        while lttng.lttng(&["list"]).is_err() {
            let ended = lttng.daemon.as_mut().is_none_or(|daemon| !matches!(daemon.try_wait(), Ok(None)));
            if ended || started.elapsed() > PATIENCE {
                return Err("lttng-sessiond does not answer (as root it needs a mount namespace of its own)".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Some(lttng))
    }

    /// The value of `LTTNG_HOME`.
    pub(super) fn home(&self) -> &Path {
        self.home.path()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("LTTNG_HOME", self.home.path()).env("HOME", self.home.path()).env_remove("LD_PRELOAD");
        command.stdin(Stdio::null());
        self.enter(&mut command);
        command
    }

    /// Has a command see the daemon's sockets where it looks for them.
    pub(super) fn enter<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let mounted = self.mounted.clone();
        // SAFETY: between fork and exec `mount_over` makes system calls only; the string was allocated before.
        unsafe { command.pre_exec(move || mounted.as_ref().map_or(Ok(()), mount_over)) }
    }

    fn lttng(&self, arguments: &[&str]) -> Result<(), String> {
        let output = self.command("lttng").arg("--no-sessiond").args(arguments).output();
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(format!("`lttng {}` fails: {}", arguments.join(" "), text.lines().next().unwrap_or_default()))
    }

    /// Makes a session that keeps the last events, of all of libc's, in memory.
    ///
    /// # Errors
    /// LTTng refuses.
    pub(super) fn arm(&self, dir: &Path) -> Result<(), LabError> {
        let output = format!("--output={}", dir.join("lttng").display());
        let session = format!("--session={SESSION}");
        let steps: [&[&str]; 4] = [
            &["create", SESSION, "--snapshot", &output],
            &["enable-channel", "-u", "--overwrite", &session, "libc"],
            &["enable-event", "-u", &session, "--channel=libc", "lttng_ust_libc:*"],
            &["start", SESSION],
        ];
        steps.iter().try_for_each(|step| self.lttng(step)).map_err(|error| {
            self.disarm();
            LabError::Project(error)
        })
    }

    /// Ends the session.
    pub(super) fn disarm(&self) {
        // One that is not there need not be ended.
        let _ = self.lttng(&["destroy", SESSION]);
    }

    /// How many events the buffers hold: babeltrace2's count of a snapshot, or without it the snapshot's bytes.
    ///
    /// # Errors
    /// LTTng refuses.
    pub(super) fn count_events(&self, dir: &Path) -> Result<u64, LabError> {
        self.lttng(&["snapshot", "record", &format!("--session={SESSION}")]).map_err(LabError::Project)?;
        let dir = dir.join("lttng");
        let reader = Command::new("babeltrace2").arg(&dir).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let count = match reader {
            Ok(mut reader) => {
                let lines = reader.stdout.take().map_or(0, |stdout| BufReader::new(stdout).split(b'\n').count());
                let _ = reader.wait();
                lines as u64
            }
            Err(_) => size_of_streams(&dir),
        };
        let _ = std::fs::remove_dir_all(&dir);
        Ok(count)
    }
}

impl Drop for Lttng {
    fn drop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        let pid = rustix::process::Pid::from_child(&daemon);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let started = Instant::now();
        while matches!(daemon.try_wait(), Ok(None)) {
            if started.elapsed() > PATIENCE {
                let _ = daemon.kill();
                let _ = daemon.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Has the calling process end when the one that started it does. Async-signal-safe.
fn end_with_parent() -> std::io::Result<()> {
    let signal = Some(rustix::process::Signal::TERM);
    rustix::process::set_parent_process_death_signal(signal).map_err(Into::into)
}

/// In a mount namespace of its own, mounts a directory over [`ROOT_DIRECTORY`]. Async-signal-safe.
fn mount_over(dir: &CString) -> std::io::Result<()> {
    let done = |result: libc::c_int| if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
    // SAFETY: the process has one thread, which is about to become another program (unshare(2)).
    done(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let none = std::ptr::null();
    // What is mounted here is to be seen by nobody else.
    // SAFETY: C strings, and null where mount(2) takes none.
    done(unsafe { libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) })?;
    // SAFETY: as above.
    done(unsafe { libc::mount(dir.as_ptr(), ROOT_DIRECTORY.as_ptr(), none, libc::MS_BIND, none.cast()) })
}

fn is_on_path(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Whether the loader finds the library: it says so on standard error, and goes on without.
fn has_library() -> bool {
    let output = Command::new("true").env("LD_PRELOAD", LIBRARY).stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success() && output.stderr.is_empty())
}

fn size_of_streams(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => size_of_streams(&entry.path()),
            _ if entry.file_name() == "metadata" => 0,
            _ => entry.metadata().map_or(0, |metadata| metadata.len()),
        })
        .sum()
}

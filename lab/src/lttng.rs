//! LTTng-UST beside us: a recording session with a daemon of its own, which touches no other session of the machine.
//!
//! ```text
//!   user   LTTNG_HOME is a temporary directory: the daemon's sockets are in there, and its client and programs look there
//!   root   the same, but the daemon and its client run in user namespaces in which they are not root: for root they would take
//!          /var/run/lttng, whatever LTTNG_HOME says; the traced program stays outside, and finds them by LTTNG_HOME
//! ```
//! The daemon ends with this value, and by the kernel's hand when the thread that started it ends.
//!
//! # Configuration
//! Buffers for each user and processor, four sub-buffers of 1 MiB each, no timers, no contexts, the default clock. In discard mode
//! the consumer daemon writes full sub-buffers to disk; in overwrite mode the session is one for snapshots, which keeps
//! the last events in memory. Sources: lttng-create(1), lttng-enable-channel(1), lttng-sessiond(8).
//!
//! # Limits
//! A program of root's registers with a daemon at /var/run/lttng too, if there is one; what that one's sessions have enabled for
//! all programs is traced there as well.

use std::ffi::OsString;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What has it all on Debian and Ubuntu.
pub const INSTALL: &str = "apt-get install lttng-tools liblttng-ust-dev babeltrace2";
/// How its sessions are set up, in words.
pub const CONFIGURATION: &str = "buffers for each user and processor, four sub-buffers of 1 MiB";
const SESSION: &str = "dormouse-lab";
const CHANNEL: &str = "lab";
const SUBBUF_SIZE: &str = "--subbuf-size=1M";
const SUBBUF_COUNT: &str = "--num-subbuf=4";
/// How long the daemon may take to answer for the first time, and to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a traced program waits for its session at its start.
const REGISTER_TIMEOUT_MS: &str = "20000";
/// Who root is in the namespaces. Nobody, so that no file of a person's is in the way.
const NAMESPACE_ID: &str = "47011";
/// Where a daemon of that user has programs wait that start before it.
const NAMESPACE_SHM: &str = "/dev/shm/lttng-ust-wait-8-47011";

/// How a full buffer is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LttngMode {
    /// The last events stay in memory; a snapshot is taken at the end.
    Overwrite,
    /// What is new is lost when the consumer daemon does not keep up.
    Discard,
}

/// What a session came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LttngCounts {
    /// Events that babeltrace2 reads in the trace.
    pub arrived: u64,
    /// Events that LTTng says were discarded.
    pub discarded: u64,
    /// Bytes of the trace's streams: neither metadata nor indices.
    pub bytes: u64,
}

/// A session that records.
#[derive(Debug)]
pub struct LttngSession {
    home: tempfile::TempDir,
    daemon: Option<Child>,
    mode: LttngMode,
    trace: PathBuf,
}

impl LttngSession {
    /// Starts a daemon and a session with `patterns` enabled, such as `lab:armed_*`. Its trace goes to a new directory in `dir`.
    ///
    /// # Errors
    /// Why there is none, in one line.
    pub fn start(mode: LttngMode, patterns: &[&str], dir: &Path) -> Result<LttngSession, String> {
        let missing: Vec<&str> =
            ["lttng-sessiond", "lttng", "babeltrace2"].into_iter().filter(|program| !is_on_path(program)).collect();
        if !missing.is_empty() {
            return Err(format!("not installed: {} ({INSTALL})", missing.join(", ")));
        }
        let text = |error: std::io::Error| error.to_string();
        // A short path: its sockets' paths may have 107 bytes.
        let home = tempfile::Builder::new().prefix("dormouse-lttng-").tempdir().map_err(text)?;
        let trace = tempfile::Builder::new().prefix("lttng-").tempdir_in(dir).map_err(text)?.keep();
        let mut session = LttngSession { home, daemon: None, mode, trace };
        session.start_daemon()?;
        let output = format!("--output={}", session.trace.display());
        let in_session = format!("--session={SESSION}");
        match mode {
            LttngMode::Overwrite => session.lttng(&["create", SESSION, "--snapshot", &output])?,
            LttngMode::Discard => session.lttng(&["create", SESSION, &output])?,
        };
        let loss = if mode == LttngMode::Overwrite { "--overwrite" } else { "--discard" };
        session.lttng(&[
            "enable-channel",
            "--userspace",
            &in_session,
            loss,
            "--buffers-uid",
            SUBBUF_SIZE,
            SUBBUF_COUNT,
            CHANNEL,
        ])?;
        let in_channel = format!("--channel={CHANNEL}");
        for pattern in patterns {
            session.lttng(&["enable-event", "--userspace", &in_session, &in_channel, pattern])?;
        }
        session.lttng(&["start", SESSION])?;
        Ok(session)
    }

    fn start_daemon(&mut self) -> Result<(), String> {
        // It is to end by the kernel's hand if nobody else ends it; setpriv comes after what would undo that.
        let mut daemon = self.command("setpriv");
        daemon.args(["--pdeathsig", "TERM", "lttng-sessiond", "--no-kernel", "--quiet"]);
        daemon.stdout(Stdio::null()).stderr(Stdio::null());
        self.daemon = Some(daemon.spawn().map_err(|error| format!("lttng-sessiond cannot be run: {error}"))?);
        let started = Instant::now();
        // Until then its client would look elsewhere, and it says so.
        let socket = self.home.path().join(".lttng/client-lttng-sessiond");
        loop {
            let is_there = std::fs::metadata(&socket).is_ok_and(|socket| socket.file_type().is_socket());
            if is_there && self.lttng(&["list"]).is_ok() {
                return Ok(());
            }
            let has_ended = self.daemon.as_mut().is_none_or(|daemon| !matches!(daemon.try_wait(), Ok(None)));
            if has_ended || started.elapsed() > PATIENCE {
                let hint =
                    if is_root() { "; as root it needs a user namespace, which containers may refuse" } else { "" };
                return Err(format!("lttng-sessiond does not answer{hint}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Variables with which the traced program finds this session.
    pub fn env(&self) -> [(&'static str, OsString); 2] {
        [("LTTNG_HOME", self.home.path().into()), ("LTTNG_UST_REGISTER_TIMEOUT", REGISTER_TIMEOUT_MS.into())]
    }

    /// A command that runs where the daemon runs.
    fn command(&self, program: &str) -> Command {
        let mut command = if is_root() {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-user", NAMESPACE_ID, "--map-group", NAMESPACE_ID, "--", program]);
            command
        } else {
            Command::new(program)
        };
        command.env("LTTNG_HOME", self.home.path()).env("LC_ALL", "C").env_remove("LD_PRELOAD").stdin(Stdio::null());
        command
    }

    fn lttng(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = self.command("lttng");
        succeed(command.arg("--no-sessiond").args(arguments), &format!("lttng {}", arguments.join(" ")))
    }

    /// Ends the recording and counts what arrived; the trace is then removed.
    ///
    /// # Errors
    /// LTTng or babeltrace2 fails.
    pub fn finish(self) -> Result<LttngCounts, String> {
        if self.mode == LttngMode::Overwrite {
            self.lttng(&["stop", SESSION])?;
            self.lttng(&["snapshot", "record", &format!("--session={SESSION}")])?;
        } else {
            self.lttng(&["stop", SESSION])?;
        }
        let discarded = discarded(&self.lttng(&["list", SESSION])?);
        self.lttng(&["destroy", SESSION])?;
        let mut reader = Command::new("babeltrace2");
        reader.arg(&self.trace).args(["--component=sink.utils.counter", "--params=step=+0"]).stdin(Stdio::null());
        let arrived = counted(&succeed(&mut reader, "babeltrace2")?).ok_or("babeltrace2 tells no count of events")?;
        Ok(LttngCounts { arrived, discarded, bytes: stream_bytes(&self.trace) })
    }
}

impl Drop for LttngSession {
    fn drop(&mut self) {
        // Nothing of this is worth a complaint: what stays is in temporary directories.
        let _ = std::fs::remove_dir_all(&self.trace);
        let Some(mut daemon) = self.daemon.take() else { return };
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), rustix::process::Signal::TERM);
        let started = Instant::now();
        while matches!(daemon.try_wait(), Ok(None)) && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        // It has ended, and this is in vain, or it never will by itself.
        let _ = daemon.kill();
        let _ = daemon.wait();
        if is_root() {
            let _ = std::fs::remove_file(NAMESPACE_SHM);
        }
    }
}

fn succeed(command: &mut Command, name: &str) -> Result<String, String> {
    let Output { status, stdout, stderr } = command.output().map_err(|error| format!("`{name}`: {error}"))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&stderr);
    Err(format!("`{name}` fails: {}", stderr.lines().next().unwrap_or_default()))
}

/// Bytes of the streams in a trace's directory.
fn stream_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match (entry.file_type(), entry.file_name().to_str()) {
        (_, Some("metadata" | "index")) => 0,
        (Ok(kind), _) if kind.is_dir() => stream_bytes(&entry.path()),
        _ => entry.metadata().map_or(0, |metadata| metadata.len()),
    });
    bytes.sum()
}

/// The events that a session's channels discarded, of what `lttng list SESSION` prints.
fn discarded(listing: &str) -> u64 {
    let counts = listing.lines().filter_map(|line| line.trim().strip_prefix("Discarded events:"));
    counts.filter_map(|count| count.trim().parse::<u64>().ok()).sum()
}

/// The events that babeltrace2's component `sink.utils.counter` counted.
fn counted(text: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| {
        let (count, what) = line.trim().split_once(' ')?;
        what.starts_with("Event message").then(|| count.parse().ok())?
    })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn is_on_path(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_what_programs_print() {
        assert_eq!(counted("   10 Event messages\n\n  12 Event messages\n  2 Stream beginning messages\n"), Some(12));
        assert_eq!(counted("   1 Event message\n"), Some(1));
        assert_eq!(counted("no such thing\n"), None);
        assert_eq!(discarded("  Discarded events: 7\n - ch\n  Discarded events: 5\n  Lost packets: 3\n"), 12);
        assert_eq!(discarded(""), 0);
    }
}

//! LTTng-UST, which the lab measures for comparison and whose traces tests read: a recording session with a daemon of
//! its own, which does not affect other sessions of the machine.
//!
//! ```text
//!   user   LTTNG_HOME is a temporary directory: it has the daemon's sockets, and its client and programs look there
//!   root   the daemon and its client also run in user namespaces in which they are not root: for root they would use
//!          /var/run/lttng, even with LTTNG_HOME; the traced program stays outside, and finds them by LTTNG_HOME
//! ```
//! A daemon ends with its last session; the kernel ends it if the thread that started it ends. The daemon takes a
//! second to start, and so does its consumer at the first session: consecutive sessions share one daemon. There are no
//! timers, no contexts, and the default clock. In discard mode the consumer daemon writes full sub-buffers to disk; in
//! overwrite mode the session is a snapshot session, which keeps the last events in memory. Sources: lttng-create(1),
//! lttng-enable-channel(1), lttng-sessiond(8).
//!
//! A program of root also registers with a daemon at /var/run/lttng, if there is one; events that its sessions have
//! enabled for all programs are traced there as well.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::{Lack, has, is_installed, printed, skip};

/// Command that installs everything on Debian and Ubuntu.
pub const INSTALL: &str = "apt-get install lttng-tools liblttng-ust-dev babeltrace2";
/// Description of the lab's session settings.
pub const CONFIGURATION: &str = "buffers for each user and processor, four sub-buffers of 1 MiB";
/// The lab's session settings as options of `lttng enable-channel`.
pub const BUFFERS: &str = "--buffers-uid --subbuf-size=1M --num-subbuf=4";
/// Names of a daemon's sessions.
const SESSIONS: [&str; 2] = ["dormouse-lab", "dormouse-lab-second"];
const CHANNEL: &str = "lab";
/// How long the daemon may take for its first answer, and to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between checks meanwhile.
const INTERVAL: Duration = Duration::from_millis(20);
/// User that root becomes in the namespaces: an unused id, so that no user's files interfere.
const NAMESPACE_ID: &str = "47011";

/// Counts of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LttngCounts {
    /// Number of events that babeltrace2 reads in the trace.
    pub arrived: u64,
    /// Number of discarded events, by LTTng's report.
    pub discarded: u64,
    /// Bytes of the trace's streams, without metadata and indices.
    pub bytes: u64,
}

/// A daemon, which may not answer yet.
#[derive(Debug)]
pub struct LttngDaemon {
    home: tempfile::TempDir,
    child: Child,
}

/// A recording session.
#[derive(Debug)]
pub struct LttngSession {
    daemon: Rc<LttngDaemon>,
    name: &'static str,
    is_snapshot: bool,
    trace: PathBuf,
}

impl LttngDaemon {
    /// Starts a daemon, and does not wait for it.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn start() -> Result<Rc<LttngDaemon>, String> {
        let missing: Vec<&str> =
            ["lttng-sessiond", "lttng", "babeltrace2"].into_iter().filter(|program| !is_installed(program)).collect();
        if !missing.is_empty() {
            return Err(format!("not installed: {} ({INSTALL})", missing.join(", ")));
        }
        // The path must be short: the sockets' paths may have 107 bytes.
        let home = tempfile::Builder::new().prefix("dormouse-lttng-").tempdir().map_err(|error| error.to_string())?;
        // The kernel must end it if no process does; setpriv runs after the program that would undo that.
        let mut daemon = command(home.path(), "setpriv");
        daemon.args(["--pdeathsig", "TERM", "lttng-sessiond", "--no-kernel", "--quiet"]);
        let child = daemon.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("lttng-sessiond cannot be run: {error}"))?;
        Ok(Rc::new(LttngDaemon { home, child }))
    }

    /// Waits for the daemon's first answer.
    fn answered(&self) -> Result<(), String> {
        let started = Instant::now();
        // Until the daemon's socket exists, its client looks elsewhere and prints that.
        let socket = self.home.path().join(".lttng/client-lttng-sessiond");
        while !(socket.exists() && self.lttng("list", &[]).is_ok()) {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let has_ended = !matches!(waitid(WaitId::Pid(Pid::from_child(&self.child)), options), Ok(None));
            if has_ended || started.elapsed() > PATIENCE {
                let hint =
                    if is_root() { "; as root it needs a user namespace, which containers may refuse" } else { "" };
                return Err(format!("lttng-sessiond does not answer{hint}"));
            }
            std::thread::sleep(INTERVAL); // No event signals its first answer, so this polls.
        }
        Ok(())
    }

    /// Runs the client with the words of a command, and further arguments that may contain blanks.
    fn lttng(&self, words: &str, further: &[&str]) -> Result<String, String> {
        let mut command = command(self.home.path(), "lttng");
        command.arg("--no-sessiond").args(words.split(' ')).args(further);
        printed(&mut command, format!("lttng {words} {}", further.join(" ")).trim_end())
    }
}

impl LttngSession {
    /// Starts a daemon, and a session of it with [`LttngSession::of`].
    ///
    /// # Errors
    /// One line with the reason.
    pub fn start(options: &str, patterns: &[&str], contexts: &[&str], dir: &Path) -> Result<LttngSession, String> {
        let events: Vec<_> = patterns.iter().map(|pattern| (*pattern, "")).collect();
        LttngSession::of(LttngDaemon::start()?, options, &events, contexts, dir)
    }

    /// Starts a session of a daemon that has no other. Enables `events`, which are patterns such as `lab:armed_*`, each
    /// with its filter or an empty text, with `options` for its channel, such as [`BUFFERS`]. Its trace goes to a new
    /// directory in `dir`; with `--overwrite` among the options, it is written as a snapshot at the end.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn of(
        daemon: Rc<LttngDaemon>,
        options: &str,
        events: &[(&str, &str)],
        contexts: &[&str],
        dir: &Path,
    ) -> Result<LttngSession, String> {
        daemon.answered()?;
        LttngSession::named(SESSIONS[0], daemon, options, events, contexts, dir)
    }

    /// Starts a second session of the same daemon. The arguments are those of [`LttngSession::of`].
    ///
    /// # Errors
    /// One line with the reason.
    pub fn beside(&self, options: &str, events: &[(&str, &str)], dir: &Path) -> Result<LttngSession, String> {
        LttngSession::named(SESSIONS[1], Rc::clone(&self.daemon), options, events, &[], dir)
    }

    fn named(
        name: &'static str,
        daemon: Rc<LttngDaemon>,
        options: &str,
        events: &[(&str, &str)],
        contexts: &[&str],
        dir: &Path,
    ) -> Result<LttngSession, String> {
        let trace =
            tempfile::Builder::new().prefix("lttng-").tempdir_in(dir).map_err(|error| error.to_string())?.keep();
        let output = format!("--output={}", trace.display());
        let session = LttngSession { daemon, name, is_snapshot: options.contains("--overwrite"), trace };
        let lttng = |words: &str, further: &[&str]| session.daemon.lttng(words, further);
        let kind = if session.is_snapshot { " --snapshot" } else { "" };
        lttng(&format!("create {name}{kind}"), &[&output])?;
        let in_session = format!("--userspace --session={name}");
        lttng(&format!("enable-channel {in_session} {options} {CHANNEL}"), &[])?;
        for &(pattern, filter) in events {
            let filter: &[&str] = if filter.is_empty() { &[] } else { &["--filter", filter] };
            lttng(&format!("enable-event {in_session} --channel={CHANNEL}"), &[&[pattern][..], filter].concat())?;
        }
        for context in contexts {
            lttng(&format!("add-context {in_session} --channel={CHANNEL} --type={context}"), &[])?;
        }
        lttng("start", &[name])?;
        Ok(session)
    }

    /// Returns variables with which the traced program finds this session, and waits for it for up to 20 s at its
    /// start.
    pub fn env(&self) -> [(&'static str, OsString); 2] {
        [("LTTNG_HOME", self.daemon.home.path().into()), ("LTTNG_UST_REGISTER_TIMEOUT", "20000".into())]
    }

    /// Continues in another directory of the trace.
    ///
    /// # Errors
    /// If LTTng fails.
    pub fn rotate(&self) -> Result<(), String> {
        self.daemon.lttng(&format!("rotate {}", self.name), &[]).map(drop)
    }

    /// Ends the recording and counts the events that arrived; removes the trace afterwards.
    ///
    /// # Errors
    /// If LTTng or babeltrace2 fails.
    pub fn finish(self) -> Result<LttngCounts, String> {
        let discarded = self.end()?;
        Ok(LttngCounts { arrived: events_in(&self.trace)?, discarded, bytes: stream_bytes(&self.trace) })
    }

    /// Ends the recording and leaves the trace where it is. Returns the trace's directory.
    ///
    /// # Errors
    /// If LTTng fails.
    pub fn keep(mut self) -> Result<PathBuf, String> {
        self.end()?;
        Ok(std::mem::take(&mut self.trace))
    }

    /// Ends the recording. Returns the number of discarded events.
    fn end(&self) -> Result<u64, String> {
        let lttng = |words: &str, further: &[&str]| self.daemon.lttng(words, further);
        lttng("stop", &[self.name])?;
        if self.is_snapshot {
            lttng("snapshot record", &[&format!("--session={}", self.name)])?;
        }
        let discarded = discarded(&lttng("list", &[self.name])?);
        lttng("destroy", &[self.name])?;
        Ok(discarded)
    }
}

/// Returns the number of events in a trace.
///
/// # Errors
/// If babeltrace2 fails.
pub fn events_in(trace: &Path) -> Result<u64, String> {
    let mut reader = Command::new("babeltrace2");
    reader.arg(trace).args(["--component=sink.utils.counter", "--params=step=+0"]);
    counted(&printed(&mut reader, "babeltrace2")?).ok_or_else(|| "babeltrace2 tells no count of events".into())
}

impl Drop for LttngSession {
    fn drop(&mut self) {
        // Errors are ignored: any remainder is in a temporary directory.
        let _ = std::fs::remove_dir_all(&self.trace);
    }
}

impl Drop for LttngDaemon {
    fn drop(&mut self) {
        // Errors of these steps are ignored.
        let daemon = &mut self.child;
        let _ = kill_process(Pid::from_child(daemon), Signal::TERM);
        let started = Instant::now();
        while matches!(daemon.try_wait(), Ok(None)) && started.elapsed() < PATIENCE {
            std::thread::sleep(INTERVAL); // A child can only be awaited with a deadline by polling.
        }
        // It has ended, and this has no effect, or it does not end by itself.
        let _ = daemon.kill();
        let _ = daemon.wait();
        if is_root() {
            // File by which a daemon of that user makes programs wait that start before it.
            let _ = std::fs::remove_file(format!("/dev/shm/lttng-ust-wait-8-{NAMESPACE_ID}"));
        }
    }
}

/// Returns a command that runs in the daemon's namespaces.
fn command(home: &Path, program: &str) -> Command {
    let mut command = Command::new(if is_root() { "unshare" } else { program });
    if is_root() {
        command.args(["--user", "--map-user", NAMESPACE_ID, "--map-group", NAMESPACE_ID, "--", program]);
    }
    command.env("LTTNG_HOME", home).env("LC_ALL", "C").env_remove("LD_PRELOAD").stdin(Stdio::null());
    command
}

/// Returns the streams in a trace's directory, without metadata and indices.
pub fn streams(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let streams = entries.flat_map(|entry| match (entry.file_type(), entry.file_name().to_str()) {
        (_, Some("metadata" | "index")) => vec![],
        (Ok(kind), _) if kind.is_dir() => streams(&entry.path()),
        _ => vec![entry.path()],
    });
    streams.collect()
}

fn stream_bytes(dir: &Path) -> u64 {
    streams(dir).iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// Returns the number of events that a session's channels discarded, from the output of `lttng list SESSION`.
fn discarded(listing: &str) -> u64 {
    let counts = listing.lines().filter_map(|line| line.trim().strip_prefix("Discarded events:"));
    counts.filter_map(|count| count.trim().parse::<u64>().ok()).sum()
}

/// Returns the number of events that babeltrace2's component `sink.utils.counter` counted.
fn counted(text: &str) -> Option<u64> {
    let mut counts = text.lines().rev().filter_map(|line| line.trim().split_once(' '));
    counts.find(|(_, what)| what.starts_with("Event message"))?.0.parse().ok()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Compiles `lttng/lttng.c`: a program that writes `mine:ev` with `i` from 0 to 19, and as many events of other
/// classes. If LTTng is not installed, returns `None` and skips the test.
pub fn sample_program(directory: &Path) -> Option<PathBuf> {
    let (source, program) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("lttng"), directory.join("program"));
    let mut compiler = Command::new("cc");
    compiler.arg("-I").arg(&source).arg("-o").arg(&program).arg(source.join("lttng.c")).args(["-llttng-ust", "-ldl"]);
    if !compiler.output().is_ok_and(|output| output.status.success()) {
        skip(Lack::program("liblttng-ust-dev"));
        return None;
    }
    ["lttng-sessiond", "lttng", "babeltrace2"].iter().all(|name| has(name)).then_some(program)
}

/// Records that program, and returns the directory of its trace below this one.
///
/// # Panics
/// If the program fails, or the session does not end.
pub fn sample(directory: &Path) -> Option<PathBuf> {
    let program = sample_program(directory)?;
    let options = "--buffers-uid --subbuf-size=4096";
    match LttngSession::start(options, &["mine:*"], &["vpid", "vtid", "procname"], directory) {
        Ok(session) => {
            let status = Command::new(program).envs(session.env()).status();
            assert!(status.is_ok_and(|status| status.success()), "the program fails");
            Some(session.keep().expect("the session ends"))
        }
        Err(why) => {
            skip(Lack::machine(why, "run it outside of containers"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_what_programs_print() {
        assert_eq!(counted("   10 Event messages\n\n  12 Event messages\n  2 Stream beginning messages\n"), Some(12));
        assert_eq!((counted("   1 Event message\n"), counted("no such thing\n")), (Some(1), None));
        assert_eq!(discarded("  Discarded events: 7\n - ch\n  Discarded events: 5\n  Lost packets: 3\n"), 12);
    }
}

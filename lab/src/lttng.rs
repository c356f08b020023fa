//! A second recording session of LTTng-UST, with the daemon of a first one ([`dormouse_testing::lttng`]).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use dormouse_testing::lttng::{LttngCounts, LttngSession, events_in, streams};
use dormouse_testing::printed;

const SESSION: &str = "dormouse-lab-second";

/// A second session. The first one must outlive it.
#[derive(Debug)]
pub(crate) struct SecondSession {
    /// Where its daemon is found.
    home: OsString,
    is_snapshot: bool,
    trace: PathBuf,
}

impl SecondSession {
    /// Starts it with the daemon of `first`. The other arguments are those of [`LttngSession::of`].
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn beside(
        first: &LttngSession,
        options: &str,
        events: &[(&str, &str)],
        dir: &Path,
    ) -> Result<SecondSession, String> {
        let [(_, home), _] = first.env();
        let (is_snapshot, trace) = (options.contains("--overwrite"), dir.join("lttng-second"));
        let second = SecondSession { home, is_snapshot, trace };
        let kind = if is_snapshot { " --snapshot" } else { "" };
        second.lttng(&format!("create {SESSION}{kind}"), &[&format!("--output={}", second.trace.display())])?;
        let in_session = format!("--userspace --session={SESSION}");
        second.lttng(&format!("enable-channel {in_session} {options} lab"), &[])?;
        for &(pattern, filter) in events {
            let filter: &[&str] = if filter.is_empty() { &[] } else { &["--filter", filter] };
            second.lttng(&format!("enable-event {in_session} --channel=lab"), &[&[pattern][..], filter].concat())?;
        }
        second.lttng("start", &[SESSION])?;
        Ok(second)
    }

    /// Ends the recording and counts the events that arrived, like [`LttngSession::finish`].
    ///
    /// # Errors
    /// If LTTng or babeltrace2 fails.
    pub(crate) fn finish(self) -> Result<LttngCounts, String> {
        self.lttng("stop", &[SESSION])?;
        if self.is_snapshot {
            self.lttng("snapshot record", &[&format!("--session={SESSION}")])?;
        }
        let listing = self.lttng("list", &[SESSION])?;
        self.lttng("destroy", &[SESSION])?;
        let discarded = listing.lines().filter_map(|line| line.trim().strip_prefix("Discarded events:"));
        let discarded = discarded.filter_map(|count| count.trim().parse::<u64>().ok()).sum();
        let sizes = streams(&self.trace).into_iter().filter_map(|file| Some(file.metadata().ok()?.len()));
        let counts = LttngCounts { arrived: events_in(&self.trace)?, discarded, bytes: sizes.sum() };
        // The rest is in a temporary directory.
        let _ = std::fs::remove_dir_all(&self.trace);
        Ok(counts)
    }

    /// Runs the client with the words of a command, and further arguments that may contain blanks; for root in a user
    /// namespace, like the daemon.
    fn lttng(&self, words: &str, further: &[&str]) -> Result<String, String> {
        let is_root = rustix::process::geteuid().is_root();
        let mut command = Command::new(if is_root { "unshare" } else { "lttng" });
        if is_root {
            command.args(["--user", "--map-user=1", "--map-group=1", "--", "lttng"]);
        }
        command.env("LTTNG_HOME", &self.home).env("LC_ALL", "C").env_remove("LD_PRELOAD");
        command.arg("--no-sessiond").args(words.split(' ')).args(further);
        printed(&mut command, format!("lttng {words} {}", further.join(" ")).trim_end())
    }
}

//! Prints what a session's owner reports: mistakes in patterns, refusals, what has not joined, and the summary.

use std::ffi::OsString;

use dormouse_doctor::{explain_not_joined, explain_unjoined};
use dormouse_owner::{Error, NAMED_SHOWN_MAX, Recorded, Recording, Report, find_libc_library};
use dormouse_terminal::say;
use dormouse_tools::{Unjoined, why_not_joined, why_not_preloaded};

use crate::patterns::{say_needs_libc, say_unmatched, unmatched};

/// Reports on standard error.
pub(crate) struct Terminal;

impl Report for Terminal {
    fn program_ended(&self, pid: u32) {
        say(format_args!("process {pid} has ended"));
    }

    /// Prints messages about the recording, and the summary as the last line.
    fn recorded(&self, recorded: &Recorded<'_>) {
        let Recorded { recording, dir, summary, class_names } = recorded;
        say_unmatched_of(recording, class_names);
        for refusal in &summary.classes_refused {
            say(refusal);
        }
        say_first(summary.unjoined.iter().map(explain_unjoined));
        say_first(summary.executed.iter());
        let dir = dir.display();
        if summary.processes > 0 || !summary.classes_refused.is_empty() {
            say(format_args!(
                "{summary}; look at it with `dormouse stats {dir}`, `dormouse view {dir}` or babeltrace2"
            ));
        } else {
            let Recording { command, has_libc, .. } = recording;
            // If the command's file shows why the library is not preloaded, `dormouse record` has said so already.
            let is_open = |program: &OsString| !has_libc || why_not_preloaded(program).is_none();
            let is_told = !summary.unjoined.is_empty() || !command.first().is_some_and(is_open);
            let library = if *has_libc { find_libc_library().ok() } else { None };
            let why = || format!(": {}", explain_not_joined(&why_not_joined(command, library.as_deref())));
            let why = if is_told { String::new() } else { why() };
            say(format_args!("{summary}; no process joined{why}"));
        }
    }

    fn failed(&self, error: &Error) {
        say(error);
    }

    fn reason(&self, unjoined: &Unjoined) -> String {
        explain_unjoined(unjoined)
    }
}

/// Prints a line for each given pattern that matches no class that a program has announced.
fn say_unmatched_of(recording: &Recording, class_names: &[String]) {
    let patterns = recording.patterns.iter().map(String::as_str);
    let (libc, patterns): (Vec<&str>, Vec<&str>) =
        patterns.partition(|pattern| pattern.starts_with("libc") && !recording.has_libc);
    say_unmatched(&patterns, class_names, "");
    for pattern in unmatched(&libc, class_names) {
        say_needs_libc(pattern);
    }
    let triggers: Vec<&str> = recording.trigger_patterns.iter().map(String::as_str).collect();
    say_unmatched(&triggers, class_names, " of --snapshot-on");
}

/// Prints the first `NAMED_SHOWN_MAX` lines, and the number of the others.
fn say_first(lines: impl ExactSizeIterator<Item = impl std::fmt::Display>) {
    let others = lines.len().saturating_sub(NAMED_SHOWN_MAX);
    lines.take(NAMED_SHOWN_MAX).for_each(say);
    if others > 0 {
        say(format_args!("and {others} others, which the file of --summary names"));
    }
}

//! Programs with tracepoints that a recorded command has started and that have not joined its session. They are found
//! by looks at the command's descendants, each with the reason, as far as it can be seen from outside.
//! `dormouse-doctor` has a sentence for each reason.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use dormouse_control::MappedFile;
use dormouse_control::Processes;
use dormouse_control::process::image_place;
use serde::Serialize;

use crate::facts::Process;

/// Maximum number of descendants inspected in one look, and of close inspections among them.
const DESCENDANT_COUNT_MAX: usize = 10_000;
const CLOSE_COUNT_MAX: usize = 16;

/// Maximum number of programs that are named.
const NAMED_COUNT_MAX: usize = 100;

/// A program that has not joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unjoined {
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Why it has not joined.
    pub reason: UnjoinedReason,
}

/// Why a program has not joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum UnjoinedReason {
    /// It runs with privileges that its caller did not have, and ignores its environment.
    Privileged,
    /// Its environment does not name the session.
    EnvironmentCleared,
    /// It runs as another user than the session's owner.
    OtherUser {
        /// User that it runs as.
        runs_as: u32,
        /// User of the session.
        session_of: u32,
    },
    /// It has closed the descriptor of the session's memory, and cannot find the session's socket in its mount namespace
    /// or chroot.
    OtherMountNamespace,
}

/// State of the search over several looks.
#[derive(Debug, Default)]
pub struct Descendants {
    /// For each process, the address that identifies its program, and whether that program has been inspected closely.
    known: BTreeMap<u32, (u64, bool)>,
    found: Vec<Unjoined>,
}

impl Descendants {
    /// Returns the programs that were found.
    pub fn found(&self) -> &[Unjoined] {
        &self.found
    }

    /// Looks once at the process `command` and its descendants. A process that at a second look is still the same
    /// program and not in the session is inspected closely, once. `session` is the session's socket, `processes` are
    /// those in the session, and `memory` is the file that they have mapped.
    pub fn look(&mut self, command: u32, session: &Path, processes: &Processes, memory: &MappedFile) {
        let mut known = BTreeMap::new();
        let mut close = 0;
        for pid in with_descendants(command) {
            let Some(place) = image_place(pid).filter(|_| !processes.is_seen_joined(pid)) else { continue };
            let before = self.known.get(&pid).filter(|(known, _)| *known == place);
            let is_closely = before.is_some_and(|(_, is_closely)| *is_closely);
            let is_due = before.is_some() && !is_closely && close < CLOSE_COUNT_MAX;
            if is_due && self.found.len() < NAMED_COUNT_MAX {
                close += 1;
                let process = Process::look(pid).filter(|_| memory.is_mapped_by(pid) == Some(false));
                self.found.extend(process.and_then(|process| unjoined(&process, session)));
            }
            known.insert(pid, (place, is_closely || is_due));
        }
        self.known = known;
    }
}

/// Whether a process's program has a tracer or tracepoints, as far as that can be seen.
pub fn has_tracepoints(pid: u32) -> bool {
    Process::look(pid).is_some_and(|process| !process.tracers.is_empty())
}

/// Returns a process and all its descendants, at most [`DESCENDANT_COUNT_MAX`].
fn with_descendants(pid: u32) -> Vec<u32> {
    let (mut all, mut next) = (Vec::new(), VecDeque::from([pid]));
    while let Some(pid) = next.pop_front().filter(|_| all.len() < DESCENDANT_COUNT_MAX) {
        all.push(pid);
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        for children in children {
            next.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    all
}

/// Returns why a process is not in the session, or `None` if it could not have joined or the reason cannot be seen.
fn unjoined(process: &Process, session: &Path) -> Option<Unjoined> {
    if process.tracers.is_empty() || process.unseen.is_some() {
        return None;
    }
    let me = rustix::process::geteuid().as_raw();
    let reason = if process.is_secure {
        UnjoinedReason::Privileged
    } else if process.sessions.iter().all(|named| Path::new(named) != session) {
        UnjoinedReason::EnvironmentCleared
    } else if process.uid != me {
        UnjoinedReason::OtherUser { runs_as: process.uid, session_of: me }
    } else if process.namespaces.contains(&"mount namespace") || process.is_in_chroot {
        UnjoinedReason::OtherMountNamespace
    } else {
        // The session has told it the reason, or it has not got so far yet.
        return None;
    };
    Some(Unjoined { pid: process.pid, name: process.name.clone(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Process)) -> Option<Unjoined> {
        let uid = rustix::process::geteuid().as_raw();
        let (name, tracers) = ("shop".into(), vec!["/opt/shop".into()]);
        let mut process =
            Process { pid: 7, name, uid, tracers, sessions: vec!["/other".into(), "/s".into()], ..Process::default() };
        change(&mut process);
        unjoined(&process, Path::new("/s"))
    }

    #[test]
    fn what_keeps_a_program_from_the_session_is_found_where_it_is_seen() {
        type Change = fn(&mut Process);
        let me = rustix::process::geteuid().as_raw();
        let cases: [(Change, UnjoinedReason); 4] = [
            (|process| process.sessions.truncate(1), UnjoinedReason::EnvironmentCleared),
            (|process| process.uid += 1, UnjoinedReason::OtherUser { runs_as: me + 1, session_of: me }),
            (|process| process.namespaces.push("mount namespace"), UnjoinedReason::OtherMountNamespace),
            (|process| process.is_secure = true, UnjoinedReason::Privileged),
        ];
        for (change, reason) in cases {
            assert_eq!(with(change), Some(Unjoined { pid: 7, name: "shop".into(), reason }));
        }
        assert_eq!(with(|_| ()), None);
        assert_eq!(with(|process| (process.sessions, process.tracers) = (Vec::new(), Vec::new())), None);
    }

    #[test]
    fn descendants_are_found() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
        let grandchild = loop {
            match with_descendants(child.id())[..] {
                [_, grandchild] => break grandchild,
                _ => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        };
        assert!(with_descendants(std::process::id()).contains(&grandchild));
        child.kill().unwrap();
        child.wait().unwrap();
        let grandchild = rustix::process::Pid::from_raw(grandchild.cast_signed()).unwrap();
        let _ = rustix::process::kill_process(grandchild, rustix::process::Signal::KILL);
    }
}

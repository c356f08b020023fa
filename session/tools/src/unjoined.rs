//! Programs with tracepoints that a recorded command has started and that have not joined its session. They are found
//! by looks at the command's descendants, each with the reason, as far as it can be seen from outside.

use std::collections::{BTreeMap, VecDeque};

use dormouse_abi::environment::{ENV_MEMORY, ENV_SESSION};
use dormouse_abi::text::shown;

use crate::facts::Process;
use dormouse_control::MappedFile;
use dormouse_control::Processes;
use dormouse_control::process::image_place;

/// Maximum number of descendants inspected in one look, and of close inspections among them.
const DESCENDANT_COUNT_MAX: usize = 10_000;
const CLOSE_COUNT_MAX: usize = 16;

/// Maximum number of programs that are named.
const NAMED_COUNT_MAX: usize = 100;

/// A program that has not joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unjoined {
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Why it has not joined, with a remedy.
    pub reason: String,
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
    /// program and not in the session is inspected closely, once. `processes` are those in the session, and `memory` is
    /// the file that they have mapped.
    pub fn look(&mut self, command: u32, processes: &Processes, memory: &MappedFile) {
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
                self.found.extend(process.and_then(|process| unjoined(&process)));
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
fn unjoined(process: &Process) -> Option<Unjoined> {
    if process.tracers.is_empty() || process.unseen.is_some() {
        return None;
    }
    let me = rustix::process::geteuid().as_raw();
    let named =
        format!("process {} ({}) has Dormouse tracepoints and has not joined", process.pid, shown(&process.name));
    let why = if process.is_secure {
        "it runs with privileges that its caller had not, and obeys no environment; start it as the user whose privileges it has".into()
    } else if process.session.is_none() {
        format!("its environment was cleared, and lacks {ENV_SESSION}; {}", keep_environment())
    } else if process.uid != me {
        let uid = process.uid;
        format!(
            "it runs as user {uid}, and the session is user {me}'s; run dormouse as user {uid}, below what changes the user"
        )
    } else if process.namespaces.contains(&"mount namespace") || process.is_in_chroot {
        "it has closed the descriptor of the session's memory, and is in another mount namespace, where the session's socket is not; run \
         dormouse inside of it"
            .into()
    } else {
        // The session has told it the reason, or it has not got so far yet.
        return None;
    };
    Some(Unjoined { pid: process.pid, name: process.name.clone(), reason: format!("{named}: {why}") })
}

/// Returns the remedy that lets a program's children keep what they need to join.
pub(crate) fn keep_environment() -> String {
    format!(
        "have what starts it keep that and {ENV_MEMORY}, as `sudo --preserve-env={ENV_SESSION},{ENV_MEMORY}` does, or run dormouse behind what clears \
         the environment (`env -i dormouse record -- CMD`)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Process)) -> Option<Unjoined> {
        let uid = rustix::process::geteuid().as_raw();
        let (name, tracers) = ("shop".into(), vec!["/opt/shop".into()]);
        let mut process = Process { pid: 7, name, uid, tracers, session: Some("/s".into()), ..Process::default() };
        change(&mut process);
        unjoined(&process)
    }

    #[test]
    fn what_keeps_a_program_from_the_session_is_said_where_it_is_seen() {
        type Change = fn(&mut Process);
        let cases: [(Change, &str); 4] = [
            (|process| process.session = None, "its environment was cleared, and lacks DORMOUSE_SESSION"),
            (|process| process.uid += 1, "the session is user"),
            (|process| process.namespaces.push("mount namespace"), "another mount namespace"),
            (|process| process.is_secure = true, "obeys no environment"),
        ];
        for (change, words) in cases {
            let said = with(change).unwrap().reason;
            assert!(said.starts_with("process 7 (shop) has Dormouse tracepoints") && said.contains(words), "{said}");
            assert!(!said.contains('\n'));
        }
        assert_eq!(with(|_| ()), None);
        assert_eq!(with(|process| (process.session, process.tracers) = (None, Vec::new())), None);
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

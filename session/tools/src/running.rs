//! The traceable programs that run: processes that have mapped a file with tracepoints.
//!
//! They are found by proc(5) and by the files alone. No program is asked, called or otherwise disturbed, so programs that
//! do not listen are found too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use dormouse_abi::message::{ProgramToTool, ToolToProgram};
use dormouse_control::directory::ProcessRoot;
use dormouse_control::process::{Stat, Status};
use rustix::param::clock_ticks_per_second;
use rustix::time::{ClockId, clock_gettime};

use crate::classes::tracepoint_count;
use crate::client::{SessionSocket, live_sessions};
use crate::facts::{MappedName, PF_KTHREAD, mapped_files, open_mapped, read};
use crate::program::Program;

/// Name of the memory files of sessions, as proc_pid_maps(5) shows it.
const MEMORY_FILE: &str = "/memfd:dormouse-session";

/// A running program with tracepoints.
#[derive(Debug, Clone)]
pub struct RunningProgram {
    /// Its process id.
    pub pid: u32,
    /// Its name, as `ps` shows it.
    pub name: String,
    /// Path of its executable; empty if the kernel does not show it.
    pub program: PathBuf,
    /// Number of tracepoints in all files that it has mapped.
    pub tracepoint_count: u64,
    /// When it started.
    pub started: SystemTime,
    /// The sessions that it is in.
    pub sessions: Vec<Membership>,
}

/// A session of a program.
#[derive(Debug, Clone)]
pub enum Membership {
    /// A live session, and the directory of its trace.
    Live(SessionSocket, PathBuf),
    /// One whose owner is dead, or belongs to another user, or is not found by its socket.
    Unknown,
}

/// The traceable programs of a user.
#[derive(Debug, Default)]
pub struct RunningPrograms {
    /// The caller's own, by process id.
    pub programs: Vec<RunningProgram>,
    /// Number of traceable programs of other users, if the caller may inspect those.
    pub of_others: usize,
    /// Number of processes of other users that the caller may not inspect.
    pub unseen_of_others: usize,
    /// Ids of the caller's own processes that it may not inspect.
    pub unseen: Vec<u32>,
}

impl RunningProgram {
    /// Whether it has this name: its own, or the file name of its executable.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.program.file_name() == Some(OsStr::new(name))
    }
}

impl RunningPrograms {
    /// Looks at all processes.
    pub fn find() -> RunningPrograms {
        let mut search = Search { sessions: sessions_by_memory(), counts: HashMap::new() };
        let me = rustix::process::geteuid().as_raw();
        let mut found = RunningPrograms::default();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        for pid in pids.into_iter().filter(|pid| *pid != std::process::id()) {
            let Some((stat, uid)) = Stat::of(pid).zip(Status::of(pid).and_then(|status| status.number("Uid:", 1)))
            else {
                continue;
            };
            let is_kernel_thread = stat.field(9).parse::<u32>().is_ok_and(|flags| flags & PF_KTHREAD != 0);
            if is_kernel_thread || stat.field(3) == "Z" {
                continue;
            }
            let is_own = uid == u64::from(me);
            match search.look(pid, &stat) {
                Ok(program) if is_own => found.programs.extend(program),
                Ok(program) => found.of_others += usize::from(program.is_some()),
                // It has ended meanwhile.
                Err(_) if Stat::of(pid).is_none() => {}
                Err(_) if is_own => found.unseen.push(pid),
                Err(_) => found.unseen_of_others += 1,
            }
        }
        found
    }
}

/// Returns the other programs in a session that say that their events are armed in it, if `pid` is in it too. A program
/// that does not listen is not called.
pub fn others_armed(session: &SessionSocket, pid: u32) -> Vec<u32> {
    let path = session.path();
    let is_it = |membership: &Membership| matches!(membership, Membership::Live(other, _) if other.path() == path);
    let is_member = |program: &RunningProgram| program.sessions.iter().any(is_it);
    let members: Vec<u32> = RunningPrograms::find()
        .programs
        .iter()
        .filter(|program| is_member(program))
        .map(|program| program.pid)
        .collect();
    let is_armed = |answer: &ProgramToTool| match answer {
        ProgramToTool::Classes { sessions, classes, .. } => {
            let index = sessions.iter().position(|session| Path::new(session) == path);
            index.is_some_and(|index| classes.iter().any(|class| class.is_armed_in(index)))
        }
        _ => false,
    };
    let says_so = |pid: &u32| {
        let answers = Program::listening(*pid).and_then(|program| program.ask(&ToolToProgram::List).ok());
        answers.is_some_and(|answers| answers.iter().any(is_armed))
    };
    let others = members.iter().copied().filter(|other| *other != pid && members.contains(&pid));
    others.filter(says_so).collect()
}

/// What is known while processes are looked at.
struct Search {
    /// Sessions by device and inode of the files that their owners share with programs.
    sessions: HashMap<(String, u64), Membership>,
    /// Number of tracepoints by device and inode of mapped files; `None` for those without any section of events.
    counts: HashMap<(String, u64), Option<u64>>,
}

impl Search {
    /// Returns the process as a program if it has tracepoints.
    ///
    /// # Errors
    /// The process may not be inspected, or has ended.
    fn look(&mut self, pid: u32, stat: &Stat) -> std::io::Result<Option<RunningProgram>> {
        let maps = read(format!("/proc/{pid}/maps"))?;
        let maps = String::from_utf8_lossy(&maps);
        let root = ProcessRoot::of(pid)?;
        let exe = format!("/proc/{pid}/exe");
        let exe_inode = std::fs::metadata(&exe).ok().map(|exe| exe.ino());
        let (mut total, mut sessions) = (0, BTreeMap::new());
        for MappedName { range, device, inode, name, is_shared } in mapped_files(&maps) {
            let place = (device.to_string(), inode);
            if is_shared {
                let unknown = || name.starts_with(MEMORY_FILE).then_some(Membership::Unknown);
                if let Some(membership) = self.sessions.get(&place).cloned().or_else(unknown) {
                    // An owner maps several files. A memory may be mapped in several parts.
                    let name = match &membership {
                        Membership::Live(session, _) => (session.path(), 0),
                        Membership::Unknown => (PathBuf::new(), inode),
                    };
                    sessions.insert(name, membership);
                }
                continue;
            }
            let count = *self.counts.entry(place).or_insert_with(|| {
                // The executable's file may be deleted.
                let file = if exe_inode == Some(inode) { File::open(&exe).ok() } else { None };
                tracepoint_count(&file.or_else(|| open_mapped(pid, &root, range, inode, name))?)
            });
            total += count.unwrap_or(0);
        }
        Ok((total > 0).then(|| RunningProgram {
            pid,
            name: stat.name.clone(),
            program: std::fs::read_link(&exe).unwrap_or_default(),
            tracepoint_count: total,
            started: started(stat),
            sessions: sessions.into_values().collect(),
        }))
    }
}

/// Returns when a process started.
fn started(stat: &Stat) -> SystemTime {
    let ticks = stat.field(22).parse::<u64>().unwrap_or(0);
    let start = Duration::from_millis(ticks.saturating_mul(1000) / clock_ticks_per_second().max(1));
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0));
    SystemTime::now() - now.saturating_sub(start)
}

/// Returns the live sessions of this user, each under the files that its owner has mapped to share them: the session's
/// memory among them.
fn sessions_by_memory() -> HashMap<(String, u64), Membership> {
    let mut sessions = HashMap::new();
    for (socket, status) in live_sessions() {
        let maps = read(format!("/proc/{}/maps", status.owner)).unwrap_or_default();
        let maps = String::from_utf8_lossy(&maps);
        let shared: BTreeSet<(&str, u64)> =
            mapped_files(&maps).iter().filter(|file| file.is_shared).map(|file| (file.device, file.inode)).collect();
        let membership = Membership::Live(socket, status.dir.into());
        sessions.extend(shared.into_iter().map(|(device, inode)| ((device.to_string(), inode), membership.clone())));
    }
    sessions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_tracepoints_is_not_found_and_says_when_it_started() {
        let before = SystemTime::now();
        let mut child = std::process::Command::new("sleep").arg("infinity").spawn().unwrap();
        let stat = Stat::of(child.id()).unwrap();
        // The kernel counts ticks, and both clocks are read one after the other.
        let tick = Duration::from_millis(2 * 1000 / clock_ticks_per_second());
        let started = started(&stat);
        assert!(started + 2 * tick >= before && started <= SystemTime::now() + 2 * tick, "{started:?} {before:?}");
        let found = RunningPrograms::find();
        assert!(found.programs.iter().all(|program| program.pid != child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

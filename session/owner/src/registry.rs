//! Who has joined a session.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dormouse_abi::message::ToolToProgram;
use dormouse_ctf::StateRecord;
use dormouse_relay::Memory;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::program::Program;
use crate::sys::{Stat, is_dead};
use crate::trace::Trace;

/// Everybody who has joined.
#[derive(Debug, Default)]
pub(crate) struct Processes(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// By the session's number.
    live: BTreeMap<u16, Process>,
    /// Of the register, when it was looked at last.
    changes: Option<u32>,
    /// Entries that were claimed, and not filled, at the last look.
    claimed: BTreeSet<u16>,
    joined: u64,
    /// The last whose name was looked at.
    last_named: u16,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    watch: Watch,
    /// See [`dormouse_abi::register::Process::image`].
    image: u64,
    /// See [`layout`].
    layout: String,
    /// See [`crate::process_name`].
    name: String,
}

/// How a process's end is noticed.
#[derive(Debug)]
pub(crate) enum Watch {
    /// It was dead when the owner first looked.
    Dead,
    By(OwnedFd),
    /// There is no descriptor left: by its id.
    ById(Pid),
}

impl Watch {
    /// Of the process that has this id now.
    pub(crate) fn of(pid: u32) -> Watch {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Watch::Dead };
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Watch::By(pidfd),
            Err(Errno::SRCH | Errno::INVAL) => Watch::Dead,
            Err(_) => Watch::ById(pid),
        }
    }

    fn is_dead(&self) -> bool {
        match self {
            Watch::Dead => true,
            Watch::By(pidfd) => is_dead(pidfd),
            Watch::ById(pid) => rustix::process::test_kill_process(*pid) == Err(Errno::SRCH),
        }
    }
}

/// A process that joins.
pub(crate) struct Joined {
    /// As the owner sees it, or, if it does not see it, as it sees itself.
    pub(crate) pid: u32,
    /// See [`Process::image`].
    pub(crate) image: u64,
    pub(crate) watch: Watch,
    /// Of the process, while it lives.
    pub(crate) stat: Option<Stat>,
}

/// Processes whose names are looked at in one round: a system call or three for each.
pub(crate) const NAMED_COUNT_MAX: usize = 16;

impl Processes {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the register has changed since the last look, or has entries that wait to be filled.
    pub(crate) fn is_changed(&self, changes: u32) -> bool {
        let mut table = self.lock();
        table.changes.replace(changes) != Some(changes) || !table.claimed.is_empty()
    }

    pub(crate) fn is_known(&self, number: u16) -> bool {
        self.lock().live.contains_key(&number)
    }

    /// Takes a process in under the number that it has in the register.
    ///
    /// A process that has become another program leaves its former number behind, and what that held is taken back: its
    /// threads ended amid their writes, as those of a killed process do, but its pidfd does not say so.
    pub(crate) fn add(&self, memory: &Memory, number: u16, joined: Joined) {
        let Joined { pid, image, watch, stat } = joined;
        let layout = stat.as_ref().map(layout).unwrap_or_default();
        let name = stat.map(|stat| stat.name).unwrap_or_default();
        let mut table = self.lock();
        table.claimed.remove(&number);
        table.live.retain(|number, process| {
            let is_former = process.pid == pid && process.image != image;
            if is_former {
                take_back(memory, *number);
            }
            !is_former
        });
        table.live.insert(number, Process { pid, watch, image, layout, name });
        table.joined += 1;
    }

    /// Lets go of a process that has left.
    pub(crate) fn remove(&self, memory: &Memory, number: u16) {
        self.lock().live.remove(&number);
        take_back(memory, number);
    }

    /// An entry that was claimed before the last look already, and whose process is gone, is free.
    pub(crate) fn watch_claimed(&self, memory: &Memory, number: u16, vpid: u32) {
        let is_gone = !Path::new(&format!("/proc/{vpid}")).exists();
        let mut table = self.lock();
        if !table.claimed.insert(number) && is_gone {
            table.claimed.remove(&number);
            take_back(memory, number);
        }
    }

    pub(crate) fn joined(&self) -> u64 {
        self.lock().joined
    }

    pub(crate) fn are_all_dead(&self) -> bool {
        let table = self.lock();
        table.joined > 0 && table.live.is_empty()
    }

    /// Removes dead processes, and takes back what they held: pages drawn and not linked, streams claimed.
    pub(crate) fn remove_dead(&self, memory: &Memory) {
        let mut dead = Vec::new();
        self.lock().live.retain(|number, process| {
            let is_dead = process.watch.is_dead();
            dead.extend(is_dead.then_some(*number));
            !is_dead
        });
        dead.into_iter().for_each(|number| take_back(memory, number));
    }

    /// Notes in the trace what processes, at most so many, call themselves otherwise than before. Others have their turn the next time.
    pub(crate) fn record_names(&self, trace: &Trace, count_max: usize) {
        for (number, name) in self.renamed(count_max) {
            // Without the record the process has its former name.
            let _ = trace.state(&[StateRecord::ProcessName { process: number.into(), name: &name }]);
        }
    }

    fn renamed(&self, count_max: usize) -> Vec<(u16, String)> {
        let mut table = self.lock();
        let Table { live, last_named, .. } = &mut *table;
        let behind = (Bound::Excluded(*last_named), Bound::Unbounded);
        let numbers: Vec<u16> =
            live.range(behind).chain(live.range(..=*last_named)).map(|(number, _)| *number).take(count_max).collect();
        let mut renamed = Vec::new();
        for number in numbers {
            *last_named = number;
            let Some(process) = live.get_mut(&number) else { continue };
            // A program that it has become by `exec` joins by itself, or is none of the session's.
            let stat = Stat::of(process.pid).filter(|stat| layout(stat) == process.layout && stat.name != process.name);
            if let Some(Stat { name, .. }) = stat {
                process.name.clone_from(&name);
                renamed.push((number, name));
            }
        }
        renamed
    }

    /// Asks every program that listens to leave the session.
    pub(crate) fn detach_all(&self) {
        let pids: Vec<u32> =
            self.lock().live.values().filter(|process| !process.watch.is_dead()).map(|process| process.pid).collect();
        for pid in pids {
            // One that does not listen leaves at its next page switch.
            if let Ok(program) = Program::find(pid) {
                let _ = program.ask(&ToolToProgram::Detach);
            }
        }
    }
}

/// Where code, stack and arguments start, as the kernel has placed them: otherwise for most programs that a process becomes by `exec`.
fn layout(stat: &Stat) -> String {
    [26, 28, 48].map(|number| stat.field(number)).join(" ")
}

/// Takes back what a process held that writes no more, its number last.
fn take_back(memory: &Memory, number: u16) {
    memory.release_claims(number);
    memory.reclaim_drawn(number);
    if let Some(register) = memory.register() {
        register.free(number);
    }
}

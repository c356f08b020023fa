//! Who has joined a session.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dormouse_abi::session::claim;
use dormouse_ctf::StateRecord;
use dormouse_relay::Memory;

use crate::sys::{Stat, is_dead};
use crate::trace::Trace;

/// Everybody who has joined.
#[derive(Debug, Default)]
pub(crate) struct Processes(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// By the session's number.
    live: BTreeMap<u16, Process>,
    last_number: u16,
    joined: u64,
    /// The last whose name was looked at.
    last_named: u16,
    /// Streams that were claimed by processes that had ended.
    ended_amid_write: u64,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    /// Path of the executable, as it says itself.
    program: String,
    pidfd: OwnedFd,
    /// See [`image`].
    image: String,
    /// See [`crate::process_name`].
    name: String,
}

/// Processes whose names are looked at in one round: a system call or three for each.
pub(crate) const NAMED_COUNT_MAX: usize = 16;

impl Processes {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a process that joins: never 0, never that of one that is alive.
    ///
    /// A process that has become another program leaves its former number behind, and what that held is taken back: its
    /// threads ended amid their writes, as those of a killed process do, but its pidfd does not say so.
    pub(crate) fn add(
        &self,
        memory: &Memory,
        pid: u32,
        program: &str,
        pidfd: OwnedFd,
        stat: Option<&Stat>,
    ) -> Option<u16> {
        let image = stat.map(image).unwrap_or_default();
        let name = stat.map(|stat| stat.name.clone()).unwrap_or_default();
        let mut table = self.lock();
        let is_former = |process: &Process| process.pid == pid && process.image != image;
        let Table { live, ended_amid_write, .. } = &mut *table;
        live.retain(|number, process| {
            let is_former = is_former(process);
            if is_former {
                *ended_amid_write += take_back(memory, *number);
            }
            !is_former
        });
        let number = (1..=u16::MAX)
            .map(|step| table.last_number.wrapping_add(step))
            .find(|number| *number != 0 && !table.live.contains_key(number))?;
        table.last_number = number;
        table.live.insert(number, Process { pid, program: program.into(), pidfd, image, name });
        table.joined += 1;
        Some(number)
    }

    /// The program of a process.
    pub(crate) fn program(&self, number: u16) -> String {
        self.lock().live.get(&number).map_or_else(|| "an unknown program".into(), |process| process.program.clone())
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
            let is_dead = is_dead(&process.pidfd);
            dead.extend(is_dead.then_some(*number));
            !is_dead
        });
        let ended_amid_write: u64 = dead.into_iter().map(|number| take_back(memory, number)).sum();
        self.lock().ended_amid_write += ended_amid_write;
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
            let stat = Stat::of(process.pid).filter(|stat| image(stat) == process.image && stat.name != process.name);
            if let Some(Stat { name, .. }) = stat {
                process.name.clone_from(&name);
                renamed.push((number, name));
            }
        }
        renamed
    }

    /// Process ids of those that are alive.
    pub(crate) fn live_pids(&self) -> Vec<u32> {
        self.lock().live.values().filter(|process| !is_dead(&process.pidfd)).map(|process| process.pid).collect()
    }

    /// Threads that have ended amid a write.
    pub(crate) fn ended_amid_write(&self) -> u64 {
        self.lock().ended_amid_write
    }
}

/// Tells the programs apart that a process becomes one after the other by `exec`, also where they are the same file: where
/// code, stack and arguments start, as the kernel has placed them. Where it does not tell, or places everything alike, all
/// are one, and what a former program held comes back at the end of the process.
fn image(stat: &Stat) -> String {
    [26, 28, 48].map(|number| stat.field(number)).join(" ")
}

/// Takes back what a process held that writes no more. Gives how many streams it had claimed, each for a write that it has not ended.
fn take_back(memory: &Memory, number: u16) -> u64 {
    let geometry = memory.geometry();
    let mut claimed_count = 0;
    for stream in memory.used_streams().filter(|stream| *stream >= geometry.cpu_count) {
        let claimed = &memory.stream(stream).claim;
        // (H) pairs with (I), the claimant's last.
        let word = claimed.load(Ordering::Acquire);
        if claim::process(word) == Some(number) {
            // What the dead claimant had not committed is above the stream's offset, and means nothing.
            // (I) pairs with (H), the next claimant's.
            let taken = claimed.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
            claimed_count += u64::from(taken.is_ok());
        }
    }
    memory.reclaim_drawn(number);
    claimed_count
}

//! Who has joined a session.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dormouse_abi::message::ToolToProgram;
use rustix::event::epoll;

use crate::process::{Stat, is_dead, process_name};
use crate::program::Program;

/// Numbers that one process may have at once: one for each tracer in it, and those of programs that it was before and that look alike.
const NUMBERS_OF_PROCESS_MAX: usize = 1_024;

/// How long all programs together may take to leave at a session's end. Those that do not answer leave at their next page switch.
const PATIENCE_TO_LEAVE: Duration = Duration::from_secs(2);

/// Everybody who has joined.
#[derive(Debug)]
pub struct Processes {
    /// Wakes the server when one of the pidfds in it is readable; its data are numbers of processes, with [`WATCHED`].
    epoll: OwnedFd,
    table: Mutex<Table>,
}

/// Tells, in what the server waits for, a process from anything else.
pub(crate) const WATCHED: u64 = 1 << 63;

#[derive(Debug, Default)]
struct Table {
    processes: HashMap<u64, Process>,
    /// Keys of processes whose id can be seen.
    by_pid: HashMap<u32, u64>,
    last_key: u64,
    /// By the session's number.
    live: BTreeMap<u16, Joined>,
    last_number: u16,
    joined: u64,
    /// The last whose name was looked at.
    last_named: u16,
}

#[derive(Debug)]
struct Process {
    pid: Option<u32>,
    /// One a process, however often it joins.
    pidfd: OwnedFd,
    numbers: Vec<u16>,
}

#[derive(Debug)]
struct Joined {
    pid: Option<u32>,
    /// Path of the executable, as it says itself.
    program: String,
    /// See [`Stat::image`].
    image: String,
    /// See [`crate::process_name`].
    name: String,
}

/// A process that has joined.
#[derive(Debug)]
pub(crate) struct Added {
    pub(crate) number: u16,
    /// Numbers that the process had as another program, and that are nobody's any more.
    pub(crate) former: Vec<u16>,
}

impl Processes {
    /// Nobody.
    ///
    /// # Errors
    /// Without a descriptor.
    pub fn new() -> std::io::Result<Processes> {
        Ok(Processes { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, table: Mutex::default() })
    }

    /// What the server waits with.
    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a process that joins: never 0, never that of one that is alive.
    ///
    /// A process that has become another program leaves its former number behind: its threads ended amid their writes, as those of a killed
    /// process do, but its pidfd does not say so.
    ///
    /// # Errors
    /// Why it cannot join, in a line.
    pub(crate) fn add(
        &self,
        pid: Option<u32>,
        program: &str,
        stat: Option<&Stat>,
        processes_max: u32,
        pidfd: impl FnOnce() -> std::io::Result<Option<OwnedFd>>,
    ) -> Result<Added, String> {
        let mut table = self.lock();
        let mut former = Vec::new();
        let known = pid.and_then(|pid| table.by_pid.get(&pid).copied());
        // One whose id is another's by now is not heard of yet.
        let is_former =
            known.is_some_and(|key| table.processes.get(&key).is_none_or(|process| is_dead(&process.pidfd)));
        if let Some(key) = known.filter(|_| is_former) {
            former.extend(table.remove(key));
        }
        let key = match known.filter(|_| !is_former) {
            Some(key) => key,
            None if table.processes.len() >= processes_max as usize => {
                return Err(format!(
                    "there are {processes_max} processes in the session already, as many as its owner's limit of open files allows; raise \
                     `ulimit -Hn`"
                ));
            }
            None => {
                let pidfd = pidfd().map_err(not_watched)?;
                let pidfd = pidfd.ok_or(
                    "the program is in a PID namespace that the session's owner cannot see; run dormouse in that namespace or in one above it",
                )?;
                self.watch(&mut table, pid, pidfd)?
            }
        };
        let image = stat.map(Stat::image).unwrap_or_default();
        if !image.is_empty() {
            former.extend(table.remove_images(key, &image));
        }
        let number = table.number(key);
        let Some(number) = number else {
            table.remove_if_unused(key);
            return Err("too many processes are in the session".into());
        };
        let name = stat.map(|stat| stat.name.clone()).unwrap_or_default();
        table.live.insert(number, Joined { pid, program: program.into(), image, name });
        table.joined += 1;
        Ok(Added { number, former })
    }

    fn watch(&self, table: &mut Table, pid: Option<u32>, pidfd: OwnedFd) -> Result<u64, String> {
        table.last_key += 1;
        let key = table.last_key;
        epoll::add(&self.epoll, &pidfd, epoll::EventData::new_u64(WATCHED | key), epoll::EventFlags::IN)
            .map_err(|error| not_watched(error.into()))?;
        table.by_pid.extend(pid.map(|pid| (pid, key)));
        table.processes.insert(key, Process { pid, pidfd, numbers: Vec::new() });
        Ok(key)
    }

    /// A process has ended, says the kernel. Numbers that it had.
    pub(crate) fn ended(&self, key: u64) -> Vec<u16> {
        let mut table = self.lock();
        // Closed, a pidfd is not waited for any more.
        if table.processes.get(&key).is_some_and(|process| is_dead(&process.pidfd)) {
            table.remove(key)
        } else {
            Vec::new()
        }
    }

    /// The program of a process.
    pub(crate) fn program(&self, number: u16) -> String {
        self.lock().live.get(&number).map_or_else(|| "an unknown program".into(), |process| process.program.clone())
    }

    /// Whether a process is in the session.
    pub(crate) fn has(&self, pid: u32) -> bool {
        self.lock().by_pid.contains_key(&pid)
    }

    /// How many processes are in the session.
    pub fn count(&self) -> u32 {
        self.lock().processes.len() as u32
    }

    /// How many have joined so far.
    pub fn joined(&self) -> u64 {
        self.lock().joined
    }

    /// Whether there were some, and there are none.
    pub fn are_all_dead(&self) -> bool {
        let table = self.lock();
        table.joined > 0 && table.live.is_empty()
    }

    /// What processes call themselves otherwise than before, of so many that are looked at. Others have their turn the next time.
    pub fn renamed(&self, count_max: usize) -> Vec<(u16, String)> {
        let looked_at = self.lock().next_named(count_max);
        // Files are read without the lock: it is the server's too.
        let differs = |(number, pid, known, image): (u16, u32, String, String)| {
            let name = process_name(pid).filter(|name| *name != known)?;
            // A program that it has become by `exec` joins by itself, or is none of the session's.
            Stat::of(pid).filter(|stat| stat.image() == image).map(|_| (number, pid, name))
        };
        let renamed: Vec<(u16, u32, String)> = looked_at.into_iter().filter_map(differs).collect();
        let mut table = self.lock();
        let mut named = |(number, pid, name): (u16, u32, String)| {
            // Its number may be another's by now.
            let process = table.live.get_mut(&number).filter(|process| process.pid == Some(pid))?;
            process.name.clone_from(&name);
            Some((number, name))
        };
        renamed.into_iter().filter_map(&mut named).collect()
    }

    /// Asks every program that listens to leave the session.
    pub fn detach_all(&self) {
        let deadline = Instant::now() + PATIENCE_TO_LEAVE;
        let pids: Vec<u32> = {
            let table = self.lock();
            let alive = table.processes.values().filter(|process| !is_dead(&process.pidfd));
            alive.filter_map(|process| process.pid).collect()
        };
        for pid in pids {
            // One that does not listen, or whose turn does not come, leaves at its next page switch.
            let Ok(program) = Program::find(pid) else { continue };
            for index in 0..program.tracer_count() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return;
                }
                let _ = program.ask_with(index, &ToolToProgram::Detach, None, left.min(PATIENCE_TO_LEAVE / 4));
            }
        }
    }
}

fn not_watched(error: std::io::Error) -> String {
    let remedy = "too many files are open in the session's owner; raise `ulimit -Hn`, or record fewer programs at once";
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => remedy.into(),
        _ => format!("the session's owner cannot watch the process: {error}"),
    }
}

impl Table {
    fn remove(&mut self, key: u64) -> Vec<u16> {
        let Some(process) = self.processes.remove(&key) else { return Vec::new() };
        if let Some(pid) = process.pid.filter(|pid| self.by_pid.get(pid) == Some(&key)) {
            self.by_pid.remove(&pid);
        }
        process.numbers.iter().for_each(|number| drop(self.live.remove(number)));
        process.numbers
    }

    fn remove_if_unused(&mut self, key: u64) {
        if self.processes.get(&key).is_some_and(|process| process.numbers.is_empty()) {
            self.remove(key);
        }
    }

    /// Takes the numbers from a process that it had as another program.
    fn remove_images(&mut self, key: u64, image: &str) -> Vec<u16> {
        let Table { processes, live, .. } = self;
        let Some(process) = processes.get_mut(&key) else { return Vec::new() };
        // Of one whose image could not be looked at, nothing is known.
        let is_former = |number: &mut u16| live.get(number).is_none_or(|it| !it.image.is_empty() && it.image != image);
        let former: Vec<u16> = process.numbers.extract_if(.., is_former).collect();
        former.iter().for_each(|number| drop(live.remove(number)));
        former
    }

    fn number(&mut self, key: u64) -> Option<u16> {
        let process = self.processes.get_mut(&key).filter(|process| process.numbers.len() < NUMBERS_OF_PROCESS_MAX)?;
        let number = (1..=u16::MAX)
            .map(|step| self.last_number.wrapping_add(step))
            .find(|number| *number != 0 && !self.live.contains_key(number))?;
        process.numbers.push(number);
        self.last_number = number;
        Some(number)
    }

    /// Whose names are looked at next: number, id, and what is known.
    fn next_named(&mut self, count_max: usize) -> Vec<(u16, u32, String, String)> {
        let Table { live, last_named, .. } = self;
        let behind = (Bound::Excluded(*last_named), Bound::Unbounded);
        let entry =
            |(number, joined): (&u16, &Joined)| (*number, joined.pid, joined.name.clone(), joined.image.clone());
        let all = live.range(behind).chain(live.range(..=*last_named)).map(entry).take(count_max);
        let looked_at: Vec<(u16, Option<u32>, String, String)> = all.collect();
        *last_named = looked_at.last().map_or(*last_named, |(number, ..)| *number);
        looked_at.into_iter().filter_map(|(number, pid, name, image)| Some((number, pid?, name, image))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::{Child, Command};

    use rustix::buffer::spare_capacity;

    use super::*;
    use crate::process;

    fn sleep() -> Child {
        Command::new("sleep").arg("infinity").spawn().unwrap()
    }

    /// Numbers of those that have ended, as the server hears of them; `count` ends are waited for.
    fn ends(processes: &Processes, count: usize) -> Vec<u16> {
        let mut numbers = Vec::new();
        for _ in 0..count {
            let mut events = Vec::with_capacity(1);
            // No timeout: a watchdog of the test runner's ends a test that hangs.
            epoll::wait(processes.epoll(), spare_capacity(&mut events), None).unwrap();
            numbers.extend(processes.ended(events[0].data.u64() & !WATCHED));
        }
        numbers.sort();
        numbers
    }

    #[test]
    fn a_process_has_one_pidfd_and_its_end_is_heard_of() {
        let processes = Processes::new().unwrap();
        let opened = Cell::new(0);
        let add = |pid: u32| {
            let pidfd = || {
                opened.set(opened.get() + 1);
                Ok(Some(process::open(pid)?))
            };
            processes.add(Some(pid), "/bin/sleep", Stat::of(pid).as_ref(), 10, pidfd)
        };
        let mut children = [sleep(), sleep()];
        let [first, second] = children.each_ref().map(Child::id);
        // Until they have become what they stay: a process that becomes another program leaves its number.
        while [first, second].iter().any(|pid| process_name(*pid).as_deref() != Some("sleep")) {
            std::thread::yield_now();
        }
        let numbers: Vec<u16> =
            [first, first, second, first].map(|pid| add(pid).unwrap()).iter().map(|added| added.number).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
        assert_eq!((opened.get(), processes.count(), processes.joined()), (2, 2, 4));
        assert!(processes.has(first) && !processes.are_all_dead());
        // Nobody's end: nothing is removed.
        assert_eq!(processes.ended(1), []);
        children[0].kill().unwrap();
        assert_eq!(ends(&processes, 1), [1, 2, 4]);
        assert!(!processes.has(first) && processes.has(second));
        children[1].kill().unwrap();
        assert_eq!(ends(&processes, 1), [3]);
        assert!(processes.are_all_dead() && processes.count() == 0);
        for child in &mut children {
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_process_that_becomes_another_program_leaves_its_number() {
        let processes = Processes::new().unwrap();
        let me = std::process::id();
        let stat = Stat::of(me).unwrap();
        let add = |stat: Option<&Stat>| {
            let added = processes.add(Some(me), "/bin/x", stat, 10, || Ok(Some(process::open(me)?)));
            let added = added.unwrap();
            (added.number, added.former)
        };
        assert_eq!(add(Some(&stat)), (1, vec![]));
        // Not looked at, for want of a descriptor: nothing is known, nothing is taken back.
        assert_eq!(add(None), (2, vec![]));
        assert_eq!(add(Some(&stat)), (3, vec![]));
        let other = Stat::of(1).unwrap();
        assert_ne!(other.image(), stat.image());
        assert_eq!(add(Some(&other)), (4, vec![1, 3]));
    }

    #[test]
    fn there_is_a_bound_for_processes_and_for_numbers_of_each() {
        let processes = Processes::new().unwrap();
        let me = std::process::id();
        let add = |pid: Option<u32>, max: u32| {
            processes.add(pid, "/bin/x", None, max, || Ok(Some(process::open(me)?))).map(|added| added.number)
        };
        for number in 1..=NUMBERS_OF_PROCESS_MAX as u16 {
            assert_eq!(add(Some(me), 1), Ok(number));
        }
        assert_eq!(add(Some(me), 1), Err("too many processes are in the session".into()));
        // One that cannot be seen is none of those that are known.
        let error = add(None, 1).unwrap_err();
        assert!(
            error.starts_with("there are 1 processes in the session already") && error.ends_with("raise `ulimit -Hn`"),
            "{error}"
        );
        assert_eq!(add(None, 3), Ok(NUMBERS_OF_PROCESS_MAX as u16 + 1));
        assert_eq!(add(None, 3), Ok(NUMBERS_OF_PROCESS_MAX as u16 + 2));
        assert_eq!(processes.count(), 3);
        let none = processes.add(Some(1), "/bin/x", None, 9, || Err(std::io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(none.unwrap_err().starts_with("too many files are open"));
        assert_eq!(processes.count(), 3);
    }
}

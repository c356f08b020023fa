//! The processes that have joined a session.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dormouse_abi::register::place_of;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::process::{
    further_threads, image_place, is_dead, is_image, is_other_image, process_name, thread_name, vtid_of,
};

/// All processes that have joined.
#[derive(Debug)]
pub struct Processes {
    /// Wakes the server when one of its pidfds is readable. The event data is the process's serial number with
    /// [`WATCHED`] set.
    epoll: OwnedFd,
    table: Mutex<Table>,
    threads: Mutex<Threads>,
}

/// Bit that marks event data of a process, to tell it from all other event data.
pub(crate) const WATCHED: u64 = 1 << 63;

#[derive(Debug, Default)]
struct Table {
    /// Processes by serial number.
    processes: HashMap<u64, Process>,
    /// Serial numbers of processes whose id is visible.
    by_pid: HashMap<u32, u64>,
    /// Serial number of the last process that was added.
    last_serial: u64,
    /// Live processes, by their number in the session's register.
    live: BTreeMap<u16, JoinedProcess>,
    joined: u64,
    /// Where processes that are being attached had their random bytes before, by id: see [`image_place`].
    attached_places: HashMap<u32, u64>,
    /// Number of the process whose name was checked last.
    last_named: u16,
}

/// A live process that is visible: its number in the session's register, its id, and its image.
type Visible = (u16, u32, u64);

/// Names of threads. Only one thread looks at them at a time.
#[derive(Debug, Default)]
struct Threads {
    /// Each thread's id in its own PID namespace, and its name, by process and by the id that the owner sees.
    known: BTreeMap<Visible, BTreeMap<u32, (u32, String)>>,
    /// The thread whose name was checked last; [`u32::MAX`] after all threads of that process.
    last: (Visible, u32),
}

/// Maximum number of threads whose names are known at once. Further threads have none in the trace.
const THREADS_MAX: usize = 1 << 16;

/// A thread that has a name of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedThread {
    /// Number of its process in the session's register.
    pub process: u16,
    /// Its id in its own PID namespace.
    pub vtid: u32,
    /// Its name, as `ps -L` shows it.
    pub name: String,
}

#[derive(Debug)]
struct Process {
    pid: Option<u32>,
    /// One for each process, however often it joins. `None` if there was no descriptor left; the process is then
    /// checked by its id.
    pidfd: Option<OwnedFd>,
    /// Whether the kernel signals its end; otherwise it is looked for.
    is_watched: bool,
    numbers: Vec<u16>,
}

impl Process {
    fn is_dead(&self) -> bool {
        match (&self.pidfd, self.pid) {
            (Some(pidfd), _) => is_dead(pidfd),
            (None, Some(pid)) => !is_there(pid),
            (None, None) => false,
        }
    }
}

#[derive(Debug)]
struct JoinedProcess {
    pid: Option<u32>,
    /// Identifies the process's program: see [`dormouse_abi::register::Process::image`].
    image: u64,
    /// See [`crate::process_name`].
    name: String,
    /// Whether the process was seen to be that program. Some tools (valgrind) show a program another stack than the
    /// kernel does.
    is_seen: bool,
}

/// A process that joins.
#[derive(Debug)]
pub struct NewProcess {
    /// Its number in the session's register.
    pub number: u16,
    /// Its id as the owner sees it, if it is visible.
    pub pid: Option<u32>,
    /// Identifies the process's program: see [`dormouse_abi::register::Process::image`].
    pub image: u64,
    /// Its name when it joined.
    pub name: String,
    /// See [`open`](crate::open); `None` if there is no descriptor left.
    pub pidfd: Option<OwnedFd>,
}

impl Processes {
    /// Returns an empty set of processes.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn new() -> std::io::Result<Processes> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Processes { epoll, table: Mutex::default(), threads: Mutex::default() })
    }

    /// Returns the epoll descriptor that the server waits on.
    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a process in. Returns the numbers it had as another program, which are free now.
    ///
    /// A process that has executed another program leaves its former number behind: its threads ended in the middle of
    /// their writes, like those of a killed process, but its pidfd does not report that.
    pub fn admit(&self, NewProcess { number, pid, image, name, pidfd }: NewProcess) -> Vec<u16> {
        let mut table = self.lock();
        let mut former = Vec::new();
        let known = pid.and_then(|pid| table.by_pid.get(&pid).copied());
        // The process that had this id before is dead, but its end has not been handled yet.
        let is_former = known.is_some_and(|serial| table.processes.get(&serial).is_none_or(Process::is_dead));
        if let Some(serial) = known.filter(|_| is_former) {
            former.extend(table.remove(serial));
        }
        let serial = known.filter(|_| !is_former).unwrap_or_else(|| self.watch(&mut table, pid, pidfd));
        former.extend(table.remove_images(serial, image));
        if let Some(process) = table.processes.get_mut(&serial) {
            process.numbers.push(number);
        }
        let was_seen = |pid| table.attached_places.get(&pid) == Some(&place_of(image));
        let is_seen = pid.is_some_and(|pid| was_seen(pid) || is_image(pid, image));
        table.live.insert(number, JoinedProcess { pid, image, name, is_seen });
        former
    }

    /// Has a process attached. It may execute another program after it has joined and before it is taken in: the place
    /// of its image is read before it joins.
    pub fn while_attached<T>(&self, pid: u32, attach: impl FnOnce() -> T) -> T {
        let place = image_place(pid);
        self.lock().attached_places.extend(place.map(|place| (pid, place)));
        let answer = attach();
        self.lock().attached_places.remove(&pid);
        answer
    }

    /// Counts further processes that have joined, whether they still exist or not.
    pub fn count_joined(&self, count: u64) {
        self.lock().joined += count;
    }

    fn watch(&self, table: &mut Table, pid: Option<u32>, pidfd: Option<OwnedFd>) -> u64 {
        table.last_serial += 1;
        let serial = table.last_serial;
        // Fails before Linux 5.3: see `open`.
        let is_watched = pidfd.as_ref().is_some_and(|pidfd| {
            let data = epoll::EventData::new_u64(WATCHED | serial);
            epoll::add(&self.epoll, pidfd, data, epoll::EventFlags::IN).is_ok()
        });
        table.by_pid.extend(pid.map(|pid| (pid, serial)));
        table.processes.insert(serial, Process { pid, pidfd, is_watched, numbers: Vec::new() });
        serial
    }

    /// Handles the end of a process that the kernel has reported. Returns the numbers that it had.
    pub(crate) fn ended(&self, serial: u64) -> Vec<u16> {
        let mut table = self.lock();
        // Closing a pidfd removes it from the epoll.
        if table.processes.get(&serial).is_some_and(Process::is_dead) { table.remove(serial) } else { Vec::new() }
    }

    /// Returns and removes the numbers of ended processes whose end the kernel does not signal.
    pub fn ended_unwatched(&self) -> Vec<u16> {
        let mut table = self.lock();
        let is_gone =
            |(serial, process): (&u64, &Process)| (!process.is_watched && process.is_dead()).then_some(*serial);
        let gone: Vec<u64> = table.processes.iter().filter_map(is_gone).collect();
        gone.into_iter().flat_map(|serial| table.remove(serial)).collect()
    }

    /// Removes the process that has left under this number.
    pub fn forget(&self, number: u16) {
        let mut table = self.lock();
        table.live.remove(&number);
        let of = |(serial, process): (&u64, &mut Process)| {
            let count = process.numbers.len();
            process.numbers.retain(|other| *other != number);
            (process.numbers.len() < count && process.numbers.is_empty()).then_some(*serial)
        };
        if let Some(serial) = table.processes.iter_mut().find_map(of) {
            table.remove(serial);
        }
    }

    /// Whether a number belongs to a process that has been taken in.
    pub fn is_known(&self, number: u16) -> bool {
        self.lock().live.contains_key(&number)
    }

    /// Whether a live process has joined as the program with this image. It may join again as that program: each object
    /// with a tracer of its own does.
    pub fn has_program(&self, pid: u32, image: u64) -> bool {
        let table = self.lock();
        let process = table.by_pid.get(&pid).and_then(|serial| table.processes.get(serial));
        let is_it = |number: &u16| table.live.get(number).is_some_and(|joined| joined.image == image);
        process.is_some_and(|process| process.numbers.iter().any(is_it) && !process.is_dead())
    }

    /// Whether a process is in the session.
    pub fn has(&self, pid: u32) -> bool {
        self.lock().by_pid.contains_key(&pid)
    }

    /// Returns how many processes are in the session.
    pub fn count(&self) -> u32 {
        self.lock().processes.len() as u32
    }

    /// Returns how many processes have joined so far.
    pub fn joined(&self) -> u64 {
        self.lock().joined
    }

    /// Whether processes have joined and none of them is left.
    pub fn are_all_dead(&self) -> bool {
        let table = self.lock();
        table.joined > 0 && table.live.is_empty()
    }

    /// Returns the new names of processes that were renamed. Checks at most `count_max` processes; the others are
    /// checked by later calls.
    pub fn renamed(&self, count_max: usize) -> Vec<(u16, String)> {
        let looked_at = self.lock().next_named(count_max);
        // Files are read without the lock, which the server needs too.
        let differs = |(number, pid, known, image): (u16, u32, String, u64)| {
            let name = process_name(pid).filter(|name| *name != known)?;
            // The program that a process has become by `exec` joins by itself, or does not belong to the session.
            is_image(pid, image).then_some((number, pid, name))
        };
        let renamed: Vec<(u16, u32, String)> = looked_at.into_iter().filter_map(differs).collect();
        let mut table = self.lock();
        let mut named = |(number, pid, name): (u16, u32, String)| {
            // Its number may belong to another process by now.
            let process = table.live.get_mut(&number).filter(|process| process.pid == Some(pid))?;
            process.name.clone_from(&name);
            Some((number, name))
        };
        renamed.into_iter().filter_map(&mut named).collect()
    }

    /// Returns the threads that have got a name since the last look: one that is not the process's, or another one than
    /// before. Reads the names of at most `count_max` threads, or the lists of as many processes; the others are checked
    /// by later calls.
    pub fn renamed_threads(&self, count_max: usize) -> Vec<NamedThread> {
        let visible = |(number, joined): (&u16, &JoinedProcess)| {
            Some(((*number, joined.pid?, joined.image), joined.name.clone()))
        };
        let live: BTreeMap<Visible, String> = self.lock().live.iter().filter_map(visible).collect();
        // Files are read without the lock of the table, which the server needs too.
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.look(&live, count_max)
    }

    /// Whether a process has joined the session as the program that it currently is, by the address of its stack.
    pub fn is_seen_joined(&self, pid: u32) -> bool {
        let image = |joined: &JoinedProcess| (joined.pid == Some(pid)).then_some(joined.image);
        let images: Vec<u64> = self.lock().live.values().filter_map(image).collect();
        images.into_iter().any(|image| is_image(pid, image))
    }

    /// Returns ids of processes that have executed another program since they joined, if the new program has not
    /// joined.
    pub fn executed(&self) -> Vec<u32> {
        let seen = |joined: &JoinedProcess| joined.pid.filter(|_| joined.is_seen).map(|pid| (pid, joined.image));
        let mut all: Vec<(u32, u64)> = self.lock().live.values().filter_map(seen).collect();
        all.sort();
        all.dedup();
        // Files are read without the lock, which the server needs too. A process that may not be inspected counts as
        // unchanged.
        all.retain(|(pid, image)| is_other_image(*pid, *image));
        all.into_iter().map(|(pid, _)| pid).collect()
    }

    /// Returns the numbers of live processes in the session's register, each with the id of the process if it is
    /// visible. A process has a number for each of its tracers.
    pub fn live_numbers(&self) -> Vec<(u16, Option<u32>)> {
        self.lock().live.iter().map(|(number, joined)| (*number, joined.pid)).collect()
    }

    /// Returns ids of processes that are alive and visible.
    pub fn live_pids(&self) -> Vec<u32> {
        let table = self.lock();
        let alive = table.processes.values().filter(|process| !process.is_dead());
        alive.filter_map(|process| process.pid).collect()
    }
}

impl Threads {
    /// Returns threads with new names, and goes on behind the last one in the next call. Without a limit, looks at all.
    fn look(&mut self, live: &BTreeMap<Visible, String>, count_max: usize) -> Vec<NamedThread> {
        self.known.retain(|process, _| live.contains_key(process));
        let (last, last_tid) = if count_max == usize::MAX { Default::default() } else { self.last };
        let is_done = last_tid == u32::MAX;
        let first = live.get_key_value(&last).filter(|_| !is_done).map(|entry| (entry, last_tid));
        let behind = live.range((Bound::Excluded(last), Bound::Unbounded));
        let end = if is_done { Bound::Included(last) } else { Bound::Excluded(last) };
        let before = live.range((Bound::Unbounded, end));
        let (mut named, mut count) = (Vec::new(), 0);
        for ((process, process_name), from) in first.into_iter().chain(behind.chain(before).map(|entry| (entry, 0))) {
            let tids = further_threads(process.1);
            if let Some(known) = self.known.get_mut(process) {
                known.retain(|tid, _| tids.binary_search(tid).is_ok());
            }
            for tid in tids.into_iter().filter(|tid| *tid > from) {
                if count >= count_max {
                    return named;
                }
                count += 1;
                self.last = (*process, tid);
                named.extend(self.look_at(process, process_name, tid));
            }
            self.last = (*process, u32::MAX);
            count += 1;
            if count >= count_max {
                break;
            }
        }
        named
    }

    fn look_at(&mut self, process: &Visible, process_name: &str, tid: u32) -> Option<NamedThread> {
        let (number, pid, image) = *process;
        let name = thread_name(pid, tid)?;
        let known = self.known.get(process).and_then(|threads| threads.get(&tid));
        if known.map_or(process_name, |(_, name)| name) == name {
            return None;
        }
        let vtid = match known {
            Some((vtid, _)) => *vtid,
            None if self.known.values().map(BTreeMap::len).sum::<usize>() < THREADS_MAX => vtid_of(pid, tid)?,
            None => return None,
        };
        // A thread of the program that the process has become by `exec` is not one of this program.
        if !is_image(pid, image) {
            return None;
        }
        self.known.entry(*process).or_default().insert(tid, (vtid, name.clone()));
        Some(NamedThread { process: number, vtid, name })
    }
}

/// Whether there is a process with this id.
fn is_there(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

impl Table {
    fn remove(&mut self, serial: u64) -> Vec<u16> {
        let Some(process) = self.processes.remove(&serial) else { return Vec::new() };
        if let Some(pid) = process.pid.filter(|pid| self.by_pid.get(pid) == Some(&serial)) {
            self.by_pid.remove(&pid);
        }
        process.numbers.iter().for_each(|number| drop(self.live.remove(number)));
        process.numbers
    }

    /// Removes from a process the numbers that it had as another program, and returns them.
    fn remove_images(&mut self, serial: u64, image: u64) -> Vec<u16> {
        let Table { processes, live, .. } = self;
        let Some(process) = processes.get_mut(&serial) else { return Vec::new() };
        let is_former = |number: &mut u16| live.get(number).is_none_or(|joined| joined.image != image);
        let former: Vec<u16> = process.numbers.extract_if(.., is_former).collect();
        former.iter().for_each(|number| drop(live.remove(number)));
        former
    }

    /// Returns the processes whose names are checked next: number, id, known name and image.
    fn next_named(&mut self, count_max: usize) -> Vec<(u16, u32, String, u64)> {
        let Table { live, last_named, .. } = self;
        let behind = (Bound::Excluded(*last_named), Bound::Unbounded);
        let entry = |(number, joined): (&u16, &JoinedProcess)| (*number, joined.pid, joined.name.clone(), joined.image);
        let all = live.range(behind).chain(live.range(..=*last_named)).map(entry).take(count_max);
        let looked_at: Vec<(u16, Option<u32>, String, u64)> = all.collect();
        *last_named = looked_at.last().map_or(*last_named, |(number, ..)| *number);
        looked_at.into_iter().filter_map(|(number, pid, name, image)| Some((number, pid?, name, image))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::sync::mpsc::channel;

    use dormouse_testing::{Lack, is_emulated, skip};
    use rustix::buffer::spare_capacity;

    use super::*;
    use crate::process;

    fn sleep() -> Child {
        Command::new("sleep").arg("infinity").spawn().unwrap()
    }

    /// Waits for `count` ends as the server does, and returns the numbers of the processes that have ended.
    fn ends(processes: &Processes, count: usize) -> Vec<u16> {
        let mut numbers = Vec::new();
        for _ in 0..count {
            let mut events = Vec::with_capacity(1);
            // No timeout: the test runner's watchdog ends a test that hangs.
            epoll::wait(processes.epoll(), spare_capacity(&mut events), None).unwrap();
            numbers.extend(processes.ended(events[0].data.u64() & !WATCHED));
        }
        numbers.sort();
        numbers
    }

    /// Each thread with another name than its process is named once, whatever the number of threads at a time, and again
    /// after it was renamed.
    #[test]
    fn threads_are_named_once_for_each_name() {
        let own = std::process::id();
        let processes = Processes::new().unwrap();
        processes.admit(entering(5, own, process::image_place(own).unwrap()));
        let (tell, told) = channel();
        let threads = [0, 1, 2].map(|index| {
            let (rename, renamed) = channel::<&core::ffi::CStr>();
            let tell = tell.clone();
            let run = move || {
                tell.send((index, rustix::thread::gettid().as_raw_nonzero().get() as u32)).unwrap();
                for name in renamed {
                    rustix::thread::set_name(name).unwrap();
                    tell.send((index, 0)).unwrap();
                }
            };
            (rename, std::thread::Builder::new().name(format!("named {index}")).spawn(run).unwrap())
        });
        let tids: BTreeMap<u32, u32> = told.iter().take(3).map(|(index, tid)| (tid, index)).collect();
        // Other tests have threads too.
        let of_ours = |count_max: usize| -> Vec<(u32, String)> {
            let found =
                processes.renamed_threads(count_max).into_iter().inspect(|thread| assert_eq!(thread.process, 5));
            found.filter_map(|thread| Some((*tids.get(&thread.vtid)?, thread.name))).collect()
        };
        let mut found = Vec::new();
        while found.len() < 3 {
            found.extend(of_ours(1));
        }
        found.sort();
        assert_eq!(found, [0, 1, 2].map(|index| (index, format!("named {index}"))));
        assert_eq!(of_ours(usize::MAX), []);
        threads[1].0.send(c"again").unwrap();
        told.recv().unwrap();
        assert_eq!(of_ours(usize::MAX), [(1, "again".to_string())]);
        for (rename, thread) in threads {
            drop(rename);
            thread.join().unwrap();
        }
    }

    fn entering(number: u16, pid: u32, image: u64) -> NewProcess {
        NewProcess { number, pid: Some(pid), image, name: "x".into(), pidfd: process::open(pid).ok() }
    }

    #[test]
    fn a_process_is_watched_once_and_its_end_is_noticed() {
        let processes = Processes::new().unwrap();
        let mut children = [sleep(), sleep()];
        let [first, second] = children.each_ref().map(Child::id);
        for (number, pid) in [(1, first), (2, first), (3, second), (4, first)] {
            assert_eq!(processes.admit(entering(number, pid, 7)), [0_u16; 0]);
            processes.count_joined(1);
        }
        assert_eq!((processes.count(), processes.joined()), (2, 4));
        assert!(processes.has(first) && !processes.are_all_dead() && processes.is_known(3));
        // No process has this serial number: nothing is removed.
        assert_eq!(processes.ended(1), [0_u16; 0]);
        processes.forget(2);
        assert!(!processes.is_known(2) && processes.has(first));
        children[0].kill().unwrap();
        assert_eq!(ends(&processes, 1), [1, 4]);
        assert!(!processes.has(first) && processes.has(second));
        processes.forget(3);
        assert!(processes.are_all_dead() && processes.count() == 0);
        for child in &mut children {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    #[test]
    fn exec_frees_the_numbers_of_a_process() {
        let processes = Processes::new().unwrap();
        let me = std::process::id();
        for (number, image, former) in [(1, 5, vec![]), (2, 5, vec![]), (3, 6, vec![1, 2]), (4, 6, vec![])] {
            assert_eq!(processes.admit(entering(number, me, image)), former);
        }
        assert_eq!(processes.count(), 1);
        // Two tracers of one program, the one that it is now.
        assert!(processes.has_program(me, 6) && !processes.has_program(me, 5) && !processes.has_program(1, 6));
    }

    #[test]
    fn exec_between_joining_and_the_next_look_is_noticed() {
        if is_emulated() {
            return skip(Lack::emulated("auxiliary vectors are those of the emulator and in its byte order"));
        }
        for is_attached in [true, false] {
            let processes = Processes::new().unwrap();
            let mut shell = Command::new("sh");
            let mut child = shell.args(["-c", "read line; exec sleep infinity"]).stdin(Stdio::piped()).spawn().unwrap();
            let pid = child.id();
            let image_of = |name: &str| loop {
                let is_it = process_name(pid).as_deref() == Some(name);
                if let Some(image) = image_place(pid).filter(|_| is_it) {
                    return image;
                }
                std::thread::yield_now();
            };
            let image = image_of("sh");
            let mut join = || {
                drop(child.stdin.take());
                image_of("sleep");
                processes.admit(entering(1, pid, image));
            };
            if is_attached {
                processes.while_attached(pid, join);
            } else {
                join();
            }
            // Nothing tells the program that was not attached from one to which a tool shows another stack.
            assert_eq!(processes.executed(), if is_attached { vec![pid] } else { vec![] });
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_process_without_a_descriptor_is_polled() {
        let processes = Processes::new().unwrap();
        let mut child = sleep();
        processes.admit(NewProcess { pidfd: None, ..entering(1, child.id(), 5) });
        // This one is not visible at all: its end cannot be noticed.
        processes.admit(NewProcess { pid: None, pidfd: None, ..entering(2, 1, 5) });
        assert_eq!(processes.ended_unwatched(), [0_u16; 0]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(processes.ended_unwatched(), [1]);
        assert_eq!(processes.count(), 1);
    }
}

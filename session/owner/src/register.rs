//! The session's register, as its owner reads it: takes in processes that have entered themselves, and removes those
//! that are gone.

use std::collections::{BTreeSet, VecDeque};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dormouse_abi::register::{
    CROWDED, Entrant, NAME_SIZE_BYTES, NAMESPACE_UNKNOWN, PROCESS_COUNT, Phase, Process, Register, SANITIZED,
    SESSION_COUNT_MAX, Unmapped,
};
use dormouse_abi::text::printable;
use dormouse_control::{
    Joining, NewProcess, Processes, Stat, is_image, open, pid_in_namespace, pid_namespace, process_name,
};
use dormouse_format::{Refusal, StateRecord};
use dormouse_relay::Memory;
use rustix::io::Errno;

use crate::announced::refusal_of;
use crate::context::Context;
use crate::ledger::Ledger;
use crate::trace::{ALL_CLASSES, Trace};

/// A tick of `starttime` in proc_pid_stat(5) is a hundredth of a second in everything that it reports to programs.
const TICK_NS: u64 = 10_000_000;

/// Maximum number of passes over the register in one look, because processes have joined meanwhile. A program may write
/// to the register at any time.
const LOOK_COUNT_MAX: usize = 8;

/// Reads the register. Only one thread reads it at a time.
#[derive(Debug, Default)]
pub(crate) struct RegisterReader {
    last_look: Mutex<LastLook>,
}

/// Returns the number of threads of a session's processes that have ended in the middle of a write.
pub(crate) fn ended_amid_write(memory: &Memory, ledger: &Ledger) -> u64 {
    let by_programs = memory.register().map_or(0, Register::ended_amid_write);
    ledger.ended_amid_write().load(Ordering::Relaxed).saturating_add(by_programs)
}

/// The parts of a session that a look at the register needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionRefs<'a> {
    pub(crate) memory: Memory,
    pub(crate) trace: &'a Trace,
    pub(crate) processes: &'a Processes,
}

/// What the reader has found at its last look.
#[derive(Debug, Default)]
struct LastLook {
    /// Change count of the register at the last look.
    changes: Option<u32>,
    /// Entries that were claimed then, and not filled.
    claimed: BTreeSet<u16>,
    /// The programs that were counted last, the newest at the end.
    counted: VecDeque<ProgramIdentity>,
}

/// What identifies the program that a process executes: process id, the PID namespace that has the id, and image.
type ProgramIdentity = (u32, u64, u64);

/// Number of programs that are remembered after their processes have ended. A process id is not given again so soon.
const COUNTED_MAX: usize = 256;

impl LastLook {
    /// Whether this program was not counted before. A process with several tracers enters itself once for each: a
    /// preloaded library and the program itself. `pid` is the process's id in the owner's namespace, if it exists.
    fn is_first_entry(&mut self, processes: &Processes, pid: Option<u32>, process: (u32, u64), image: u64) -> bool {
        let (id, namespace) = pid.map_or(process, |pid| (pid, pid_namespace()));
        let is_known = pid.is_some_and(|pid| processes.has_program(pid, image));
        // Ids of namespaces that are not known may be those of several processes.
        if is_known || namespace != NAMESPACE_UNKNOWN && self.counted.contains(&(id, namespace, image)) {
            return false;
        }
        self.counted.push_back((id, namespace, image));
        let excess = self.counted.len().saturating_sub(COUNTED_MAX);
        self.counted.drain(..excess);
        true
    }
}

impl RegisterReader {
    fn lock(&self) -> MutexGuard<'_, LastLook> {
        self.last_look.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the processes that have joined since the last look, in the order in which they joined. Removes those
    /// that have left, and those whose end was not reported.
    pub(crate) fn look(&self, session: SessionRefs<'_>) {
        self.look_anew(&mut self.lock(), session);
    }

    fn look_anew(&self, last_look: &mut LastLook, session: SessionRefs<'_>) {
        let SessionRefs { memory, trace, processes } = session;
        processes.ended_unwatched().into_iter().for_each(|number| self.take_back(session, number));
        let Some(register) = memory.register() else { return };
        // Their entries cannot increment the change count.
        trace.refuse(register.take_unmapped().iter().map(|unmapped| refusal_of_unmapped(&memory, unmapped)));
        // Read before the counter: a process that is not found below writes its first event later than this.
        let mut begun = trace.clock.now();
        let changes = register.changes();
        if last_look.changes.replace(changes) == Some(changes) && last_look.claimed.is_empty() {
            return trace.know_processes_until(begun);
        }
        let all = || (1..PROCESS_COUNT as u16).filter_map(|number| Some((number, register.process(number)?)));
        let mut found: Vec<(u16, Process)> = all().collect();
        for _ in 0..LOOK_COUNT_MAX {
            let is_later = |(_, process): &(u16, Process)| process.phase != Phase::Claimed && process.joined_at > begun;
            if !found.iter().any(is_later) {
                break;
            }
            // A process has joined meanwhile, and another one may have joined before it in an entry that was passed
            // already.
            begun = trace.clock.now();
            found = all().collect();
        }
        let claimed_before = std::mem::take(&mut last_look.claimed);
        let mut fresh: Vec<(u16, Process)> = Vec::new();
        for (number, process) in found {
            match (process.phase, processes.is_known(number)) {
                (Phase::Ready | Phase::Offered | Phase::Left, false) => fresh.push((number, process)),
                (Phase::Left, true) => {
                    processes.forget(number);
                    self.take_back(session, number);
                }
                // It was killed in the middle of its entry.
                (Phase::Claimed, _) if claimed_before.contains(&number) && is_gone(process.vpid) => {
                    self.take_back(session, number);
                }
                (Phase::Claimed, _) => drop(last_look.claimed.insert(number)),
                (Phase::Ready | Phase::Offered, true) => {}
            }
        }
        fresh.sort_by_key(|(_, process)| process.joined_at);
        fresh.into_iter().for_each(|(number, process)| self.admit(last_look, session, number, &process));
        trace.know_processes_until(begun);
    }

    /// Enters a process that has asked at the socket, and takes it in.
    ///
    /// # Errors
    /// One line with the reason why it cannot join.
    pub(crate) fn enter(&self, session: SessionRefs<'_>, joining: &Joining<'_>, pidfd: OwnedFd) -> Result<u16, String> {
        let SessionRefs { memory, trace, processes } = session;
        let Joining { pid, vpid, image, name, program, command_line } = *joining;
        // Processes that enter themselves meanwhile wait for the next look. The program that this process was before
        // `exec` is handled first.
        let mut last_look = self.lock();
        self.look_anew(&mut last_look, session);
        let register = memory.register().ok_or("the session takes no programs in")?;
        let full = || format!("a session has at most {} processes at once", PROCESS_COUNT - 1);
        let number = register.claim_process(vpid).ok_or_else(full)?;
        let mut name_bytes = [0; NAME_SIZE_BYTES];
        name_bytes.iter_mut().zip(name.bytes()).for_each(|(target, byte)| *target = byte);
        // The current time, as far as records go: after the program that this process was before `exec`.
        let joined_at = trace.processes_known_until();
        let entrant = Entrant {
            vpid,
            joined_ns: boot_ns(),
            joined_at,
            image,
            pid,
            name: name_bytes,
            program: program.as_bytes(),
            command_line: command_line.as_bytes(),
            ..Entrant::default()
        };
        if !register.offer(number, &entrant) {
            return Err("a program has damaged the session's register".into());
        }
        let pid_seen = Some(pid).filter(|pid| *pid != 0);
        let (name, pidfd) = (name.to_string(), Some(pidfd));
        let is_first = last_look.is_first_entry(processes, pid_seen, (vpid, NAMESPACE_UNKNOWN), image);
        let entering = NewProcess { number, pid: pid_seen, image, name, pidfd };
        processes.admit(entering).into_iter().for_each(|number| self.take_back(session, number));
        let record =
            StateRecord::Process { process: number.into(), pid, vpid, name: joining.name, program, command_line };
        let context = pid_seen.and_then(Context::of).unwrap_or_default();
        trace.note_program(number, program);
        trace.note_process(number, joined_at, &[record, context.record(number)], is_first);
        processes.count_joined(is_first.into());
        Ok(number)
    }

    fn admit(&self, last_look: &mut LastLook, session: SessionRefs<'_>, number: u16, process: &Process) {
        let SessionRefs { trace, processes, .. } = session;
        let is_noted = trace.ledger.is_noted(number, process.joined_at);
        let program = printable(&process.program);
        let found = find(process);
        let pid = found.as_ref().map_or(process.vpid, |(pid, _)| *pid);
        let seen = found.as_ref().map(|(pid, _)| (process_name(*pid), command_line(*pid)));
        // Checked after these were read, which belong to another program if the process has executed one meanwhile.
        let is_same = is_image(pid, process.image);
        let (name, whole) = seen.filter(|_| is_same).unwrap_or_default();
        let name = name.filter(|_| process.is_forked).unwrap_or_else(|| printable(&process.name));
        let command_line = whole.unwrap_or_else(|| printable(&process.command_line));
        let record = StateRecord::Process {
            process: number.into(),
            pid,
            vpid: process.vpid,
            name: &name,
            program: &program,
            command_line: &command_line,
        };
        let is_first = last_look.is_first_entry(
            processes,
            found.as_ref().map(|(pid, _)| *pid),
            (process.vpid, process.namespace),
            process.image,
        );
        if !is_noted {
            let context = found.as_ref().and_then(|(pid, _)| Context::of(*pid)).unwrap_or_default();
            trace.note_program(number, &program);
            trace.note_process(number, process.joined_at, &[record, context.record(number)], is_first);
            processes.count_joined(is_first.into());
        }
        match found {
            Some((pid, pidfd)) if process.phase != Phase::Left => {
                let entering = NewProcess { number, pid: Some(pid), image: process.image, name, pidfd };
                processes.admit(entering).into_iter().for_each(|number| self.take_back(session, number));
            }
            // A dead owner had its pidfd, and it cannot be found any more: it counts as in the session until it leaves.
            None if is_noted
                && process.pid == 0
                && process.namespace == NAMESPACE_UNKNOWN
                && process.phase != Phase::Left =>
            {
                let entering = NewProcess { number, pid: None, image: process.image, name, pidfd: None };
                processes.admit(entering);
            }
            _ => self.take_back(session, number),
        }
    }

    /// Takes back what ended processes held. `ended` returns their numbers and removes them from the list of known
    /// processes: a look at the register before they are taken back would take them in again.
    pub(crate) fn leave(&self, session: SessionRefs<'_>, ended: &dyn Fn() -> Vec<u16>) {
        let _looked = self.lock();
        ended().into_iter().for_each(|number| self.take_back(session, number));
    }

    /// Returns the processes that were let in and do not exist when the session ends.
    pub(crate) fn late(&self, memory: &Memory) -> Vec<Refusal> {
        let _looked = self.lock();
        (1..PROCESS_COUNT as u16).filter_map(|number| refusal_of_late(memory, number)).collect()
    }

    /// Takes back what a process held that no longer writes, its number last.
    fn take_back(&self, SessionRefs { memory, trace, .. }: SessionRefs<'_>, number: u16) {
        let late = refusal_of_late(&memory, number);
        trace.ledger.late().fetch_add(late.is_some().into(), Ordering::Relaxed);
        trace.refuse(late);
        trace.ledger.ended_amid_write().fetch_add(memory.take_back(number), Ordering::Relaxed);
    }
}

/// Returns the refusal of a program that asked for the memory and did not wait long enough to get it.
fn refusal_of_late(memory: &Memory, number: u16) -> Option<Refusal> {
    let process = memory.register()?.process(number).filter(|process| process.phase == Phase::Offered)?;
    let reason = format!(
        "process {} asked for the session's memory, because it has closed the descriptor of it, and its time was over before it was answered",
        process.vpid
    );
    Some(refusal_of(ALL_CLASSES, &printable(&process.program), &reason))
}

/// Returns the refusal of a program that is not in the session because its address space has no room for the memory, or
/// because of a sanitizer or of other sessions.
fn refusal_of_unmapped(memory: &Memory, unmapped: &Unmapped) -> Refusal {
    let Unmapped { vpid, errno, program } = unmapped;
    if *errno == SANITIZED {
        let reason = format!(
            "process {vpid} has the runtime of a sanitizer, to which `--libc` leaves its calls of libc; build it without -fsanitize"
        );
        return refusal_of(ALL_CLASSES, program, &reason);
    }
    if *errno == CROWDED {
        let reason = format!(
            "process {vpid} is in {SESSION_COUNT_MAX} other sessions, the most that a program can be in; end one of them first"
        );
        return refusal_of(ALL_CLASSES, program, &reason);
    }
    let error = Errno::from_raw_os_error(*errno);
    let remedy =
        if error == Errno::NOMEM { "; raise its limit (ulimit -v), or record with a smaller --budget-max" } else { "" };
    let size_mib = memory.geometry().size_bytes().div_ceil(1 << 20);
    let reason = format!("process {vpid} cannot map the session's memory of {size_mib} MiB: {error}{remedy}");
    refusal_of(ALL_CLASSES, program, &reason)
}

fn is_gone(vpid: u32) -> bool {
    !Path::new(&format!("/proc/{vpid}")).exists()
}

/// Returns the process's id as the owner sees it, and its pidfd, if the process exists. A process outside of the
/// owner's PID namespace and those below counts as dead: programs of such namespaces join by the socket, or not at all.
fn find(process: &Process) -> Option<(u32, Option<OwnedFd>)> {
    let joined = process.joined_ns / TICK_NS;
    let pid = match process.pid {
        0 if process.namespace == pid_namespace() => process.vpid,
        0 => pid_in_namespace(process.vpid, process.namespace, joined)?,
        pid => pid,
    };
    let pidfd = match open(pid) {
        Ok(pidfd) => Some(pidfd),
        Err(Errno::SRCH | Errno::INVAL) => return None,
        // There is no descriptor left.
        Err(_) => None,
    };
    // A process that started after this one joined has only its id. The answer is about the process that is watched, or
    // about a later process with its id, which started later still.
    let started = Stat::of(pid).and_then(|stat| stat.field(22).parse::<u64>().ok());
    started.is_none_or(|started| started <= joined).then_some((pid, pidfd))
}

/// Returns the nanoseconds since the boot, by the clock that process start times use.
fn boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Maximum length of a noted command line, in bytes.
const COMMAND_LINE_SIZE_BYTES_MAX: u64 = 64 << 10;

fn command_line(pid: u32) -> Option<String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/cmdline")).ok()?;
    file.take(COMMAND_LINE_SIZE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let arguments = bytes.split(|byte| *byte == 0).filter(|argument| !argument.is_empty());
    let text = arguments.map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then(|| printable(&text))
}

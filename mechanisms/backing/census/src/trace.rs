//! A command and its descendants under `ptrace(2)`. It reports each process, and stops a process that is about to lose
//! its memory.
//!
//! ```text
//!   supervisor (a thread of its own: the kernel knows a tracer by its thread)        watcher
//!   spawn ─▶ seize ─▶ wait for any of them                                              │
//!              clone, fork, vfork ────────────── Forked ──────────────────────────────▶ │
//!              exec: the memory is new ───────── Execed ──────────────────────────────▶ │
//!              about to exit, stopped ────────── Exiting ──▶ takes a census, answers ─▶ │
//!              about to give back zero pages ─── GivingBack ─▶ takes a census, answers ▶ │    with a fix
//!              has new addresses ─────────────── Mapping ───▶ says which code allocates ▶ │    with a fix, if explained
//!              is behind the call for them ───── Mapped ────▶ names that place, answers ─▶ │
//!              gone ──────────────────────────── Gone ────────────────────────────────▶ │
//!              a signal ─▶ passed on;  a stop ─▶ kept, until another process continues it
//!              the command itself is gone ────── Ended ───────────────────────────────▶ │
//! ```
//! No system call is traced, so the command runs at its own speed between these events. When the supervisor ends, the
//! kernel lets the remaining descendants run on, untraced (`ptrace(2)`, "Attaching and detaching").
//!
//! With a [`Fix`], the calls that obtain memory or give it back stop too, by a filter that cannot be removed: the supervisor goes on until all
//! descendants have ended, and if it is killed, so are they.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Sender, SyncSender, sync_channel};

use dormouse_backing::page_table::{KernelInterface, PageKind, PageTable};
use libc::{c_int, pid_t};
use rustix::process::{Pid, Signal, kill_process};

use crate::faults::Faults;
use crate::inject::{Left, SYSTEM_CALL_STOP};
use crate::populate::{Fix, Populated, Populator, given_back, mapped};
use crate::ptrace::{self, SystemCall, event_message, ptrace, wait};
use crate::{filter, inject, process};

/// An event of the command or of its descendants.
#[derive(Debug)]
pub(crate) enum Event {
    /// The command runs.
    Started(Started),
    /// The command could not be started.
    Failed(io::Error),
    /// A new process was created.
    Forked {
        pid: u32,
        /// Whether it shares its parent's memory instead of having a copy.
        is_shared: bool,
    },
    /// A process has executed another program.
    Execed { pid: u32 },
    /// A thread is about to end, and waits until the answer is dropped.
    Exiting { pid: u32, thread: u32, answer: SyncSender<()> },
    /// A thread is about to give back memory on the zero page, and waits until the answer is dropped.
    GivingBack { pid: u32, thread: u32, answer: SyncSender<()> },
    /// A thread has obtained new addresses, and waits for the addresses of the code of allocators, which it then leaves.
    Mapping { thread: u32, answer: SyncSender<Vec<Range<u64>>> },
    /// A thread has obtained new addresses for a function that is about to go on at `address`, and waits until the answer is
    /// dropped.
    Mapped { pid: u32, thread: u32, range: Range<u64>, address: u64, answer: SyncSender<()> },
    /// A process has ended.
    Gone { pid: u32 },
    /// The command has ended, and what it obtained was populated, if this was requested.
    Ended(ExitStatus, Option<Populated>),
}

/// The started command.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) pid: u32,
    /// Page faults, minor and major, of the command's process before its exec.
    pub(crate) faults: [u64; 2],
    /// Reason why it is not traced, if it is not.
    pub(crate) untraced: Option<String>,
    /// Its page faults from its first instruction on, or why they are not recorded; `None` if this was not requested.
    pub(crate) recorded: Option<io::Result<Faults>>,
    /// Reason why its calls that obtain memory are not stopped, although this was requested.
    pub(crate) unfixed: Option<String>,
}

/// How a command is supervised.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Supervision {
    pub(crate) is_traced: bool,
    /// Action at each call by which it obtains memory; `None`: it is not stopped there.
    pub(crate) fix: Option<Fix>,
    /// Whether its page faults are recorded.
    pub(crate) is_explained: bool,
}

/// Starts the command and supervises it until it ends, or with a fix until all its descendants have ended. The receiver of
/// the events may be dropped.
pub(crate) fn supervise(command: Command, supervision: Supervision, events: &Sender<Event>) {
    let end = start(command, supervision).and_then(|started| {
        let pid = started.pid as pid_t;
        let (is_traced, is_fixed) = (started.untraced.is_none(), started.unfixed.is_none());
        let _ = events.send(Event::Started(started));
        if is_traced {
            let populator = supervision.fix.filter(|_| is_fixed).map(Populator::new);
            Supervisor {
                main: pid,
                threads: BTreeMap::from([(pid, pid)]),
                populator,
                is_explained: supervision.is_explained,
                events,
            }
            .run()
        } else {
            let (_, status) = wait(pid, libc::__WALL)?;
            let _ = events.send(Event::Ended(ExitStatus::from_raw(status), None));
            Ok(())
        }
    });
    if let Err(error) = end {
        let _ = events.send(Event::Failed(error));
    }
}

const OPTIONS: c_int = libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE;

/// Options of a program with a filter of system calls. It cannot run without its tracer.
const OPTIONS_OF_FILTER: c_int = libc::PTRACE_O_TRACESECCOMP | libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;

/// Starts the command, and stops it before its first instruction until it is traced.
///
/// Only `PTRACE_SEIZE` does not interfere with stops by a terminal or a shell, and only another process can seize. So
/// the child asks to be traced, which stops it at the exec. There it is put into an ordinary stop, seized, and
/// continued.
fn start(mut command: Command, supervision: Supervision) -> io::Result<Started> {
    let is_fixed = supervision.fix.is_some();
    let untraced = |pid, reason: String| {
        let unfixed = is_fixed.then(|| "the command is not traced".into());
        let recorded = supervision.is_explained.then(|| Err(io::Error::other("the command is not traced")));
        Started { pid, faults: [0; 2], untraced: Some(reason), recorded, unfixed }
    };
    if !supervision.is_traced {
        return Ok(untraced(command.spawn()?.id(), "this was asked for".into()));
    }
    let (reader, writer) = io::pipe()?;
    let told = writer.try_clone()?;
    let ask = move || {
        // A signal would stop it before the exec, where no process would continue it.
        block_signals(true);
        // If tracing is forbidden, the command runs without it.
        let answer = ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
        let errno_of = |answer: io::Result<()>| answer.err().and_then(|error| error.raw_os_error()).unwrap_or(0);
        let errno = errno_of(answer);
        // Without a tracer, the filtered calls would fail.
        let filtered = if is_fixed && errno == 0 { errno_of(filter::install()) } else { 0 };
        if errno != 0 {
            block_signals(false);
        }
        io::Write::write_all(&mut &told, &(i64::from(errno) << 32 | i64::from(filtered)).to_ne_bytes())
    };
    // SAFETY: between fork and exec only async-signal-safe functions run: ptrace(2), sigprocmask(2), prctl(2), seccomp(2) and
    // write(2), and nothing is allocated.
    unsafe { command.pre_exec(ask) };
    let pid = command.spawn()?.id() as pid_t;
    // The command's copies are closed by its exec.
    drop((writer, command));
    let mut answers = [0; 8];
    io::Read::read_exact(&mut &reader, &mut answers)?;
    let answers = i64::from_ne_bytes(answers);
    let reason = |errno: i64| io::Error::from_raw_os_error(errno as i32).to_string();
    let (errno, filtered) = (answers >> 32, answers & i64::from(u32::MAX));
    if errno != 0 {
        return Ok(untraced(pid as u32, reason(errno)));
    }
    let (_, status) = wait(pid, libc::__WALL)?;
    alive(status)?;
    // A program that std starts has no signal blocked.
    ptrace::set_signal_mask(pid, 0)?;
    ptrace(libc::PTRACE_DETACH, pid, 0, libc::SIGSTOP as usize)?;
    let (_, status) = wait(pid, libc::__WALL | libc::WUNTRACED)?;
    alive(status)?;
    let faults = process::faults(pid as u32).unwrap_or_default();
    let recorded = supervision.is_explained.then(|| Faults::record(pid as u32));
    let is_filtered = is_fixed && filtered == 0;
    let options = if is_filtered { OPTIONS | OPTIONS_OF_FILTER } else { OPTIONS };
    let seized = ptrace(libc::PTRACE_SEIZE, pid, 0, options as usize);
    if let Some(process) = Pid::from_raw(pid) {
        if let Err(error) = &seized
            && is_filtered
        {
            // It cannot run: its calls that obtain memory would fail.
            kill_process(process, Signal::KILL)?;
            return Err(io::Error::new(error.kind(), format!("it cannot be traced: {error}")));
        }
        kill_process(process, Signal::CONT)?;
    }
    let unfixed = (filtered != 0).then(|| format!("its system calls cannot be filtered: {}", reason(filtered)));
    Ok(Started { pid: pid as u32, faults, untraced: seized.err().map(|error| error.to_string()), recorded, unfixed })
}

/// Blocks all signals of this thread except SIGTRAP, which reports the exec; or unblocks all.
fn block_signals(are_blocked: bool) {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    let fill: unsafe extern "C" fn(*mut libc::sigset_t) -> c_int =
        if are_blocked { libc::sigfillset } else { libc::sigemptyset };
    // SAFETY: the call fills the set, which has room for all signals, and cannot fail.
    unsafe { fill(set.as_mut_ptr()) };
    // SAFETY: the set was filled above.
    unsafe { libc::sigdelset(set.as_mut_ptr(), libc::SIGTRAP) };
    // SAFETY: the set was filled above; the old set is not requested.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut()) };
}

/// Returns an error for a command that was killed before it ran, because its end is not reported again.
fn alive(status: c_int) -> io::Result<()> {
    if libc::WIFSTOPPED(status) { Ok(()) } else { Err(io::Error::other(ExitStatus::from_raw(status).to_string())) }
}

/// Minimum size of memory on the zero page that is reported before it is given back, in bytes.
const REPORTED_BYTES_MIN: u64 = 64 << 10;

/// Returns the number of bytes in the range that are the zero page; 0 if the kernel does not tell it at once (before Linux
/// 6.7).
fn zero_bytes(thread: pid_t, range: &Range<u64>) -> u64 {
    let mut zero_bytes = 0;
    if range.end - range.start >= REPORTED_BYTES_MIN
        && let Ok(table) = PageTable::by(Some(thread as u32), &[KernelInterface::Scan])
    {
        // A process that was killed meanwhile has no pages.
        let _ = table.runs(range.clone(), &mut |run| {
            zero_bytes += if run.kind.is(PageKind::ZERO) { run.range.end - run.range.start } else { 0 };
        });
    }
    zero_bytes
}

struct Supervisor<'a> {
    main: pid_t,
    /// Process of each thread.
    threads: BTreeMap<pid_t, pid_t>,
    /// Populates memory; `None`: the command is not stopped where it obtains memory.
    populator: Option<Populator>,
    /// Whether it is reported which functions obtain memory.
    is_explained: bool,
    events: &'a Sender<Event>,
}

impl Supervisor<'_> {
    fn run(mut self) -> io::Result<()> {
        loop {
            let (thread, status) = match wait(-1, libc::__WALL) {
                // All have ended, after the command itself.
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) && self.populator.is_some() => return Ok(()),
                waited => waited?,
            };
            let mut status = Some(status);
            while let Some(now) = status.take() {
                if libc::WIFSTOPPED(now) {
                    status = self.stopped(thread, libc::WSTOPSIG(now), now >> 16);
                    continue;
                }
                // The first thread of a process is reported last.
                self.threads.remove(&thread);
                if thread == self.main {
                    let populated = self.populator.as_ref().map(|populator| populator.populated.clone());
                    let _ = self.events.send(Event::Ended(ExitStatus::from_raw(now), populated));
                    if self.populator.is_none() {
                        return Ok(());
                    }
                    continue;
                }
                self.emptied(thread);
                let _ = self.events.send(Event::Gone { pid: thread as u32 });
            }
        }
    }

    /// Handles a stop of a thread: reports its reason, and continues the thread. Returns the thread's next status if it is
    /// known already.
    fn stopped(&mut self, thread: pid_t, signal: c_int, event: c_int) -> Option<c_int> {
        let is_stop = matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
        let (request, data) = match event {
            0 if signal == SYSTEM_CALL_STOP => {
                let status = self.answered(thread);
                if status.is_some() {
                    return status;
                }
                (libc::PTRACE_CONT, 0)
            }
            0 => (libc::PTRACE_CONT, signal),
            libc::PTRACE_EVENT_SECCOMP => (self.asked(thread), 0),
            // Stopped by a terminal or a shell: it stays stopped until they continue it.
            libc::PTRACE_EVENT_STOP if is_stop => (libc::PTRACE_LISTEN, 0),
            _ => {
                self.tell(thread, event);
                (libc::PTRACE_CONT, 0)
            }
        };
        // A thread that was killed meanwhile no longer exists; its end will be reported.
        let _ = ptrace(request, thread, 0, data as usize);
        None
    }

    /// Reports an event, and waits until the watcher drops the answer.
    fn hold(&self, event: impl FnOnce(SyncSender<()>) -> Event) {
        let (answer, answered) = sync_channel(0);
        if self.events.send(event(answer)).is_ok() {
            let _ = answered.recv();
        }
    }

    /// Notes the call that a thread is about to make, and reports memory on the zero page that it gives back. Returns the
    /// request that continues it; if the call may obtain memory, to the call's end.
    fn asked(&mut self, thread: pid_t) -> ptrace::Request {
        let Ok(Some(SystemCall::Asked { number, arguments })) = ptrace::system_call(thread) else {
            return libc::PTRACE_CONT;
        };
        if let Some(range) = given_back(number, arguments) {
            if zero_bytes(thread, &range) >= REPORTED_BYTES_MIN
                && let Some(pid) = self.process_of(thread)
            {
                self.hold(|answer| Event::GivingBack { pid: pid as u32, thread: thread as u32, answer });
            }
            return libc::PTRACE_CONT;
        }
        if let Some(populator) = &mut self.populator {
            populator.asked(thread, number, arguments);
        }
        libc::PTRACE_SYSCALL
    }

    /// Populates what the call of a thread has obtained.
    fn answered(&mut self, thread: pid_t) -> Option<c_int> {
        let pid = self.process_of(thread)?;
        let Ok(Some(SystemCall::Answered(value))) = ptrace::system_call(thread) else { return None };
        let populator = self.populator.as_mut()?;
        let call = populator.returned(thread)?;
        if let Some(status) = populator.answered(pid, thread, call, value) {
            return Some(status);
        }
        let is_reported = |range: &Range<u64>| self.is_explained && range.end - range.start >= REPORTED_BYTES_MIN;
        let range = mapped(call, value).filter(is_reported)?;
        let (answer, answered) = sync_channel(1);
        self.events.send(Event::Mapping { thread: thread as u32, answer }).ok()?;
        match inject::leave(pid, thread, &answered.recv().ok()?) {
            Ok(Left::At(address)) => {
                self.hold(|answer| Event::Mapped { pid: pid as u32, thread: thread as u32, range, address, answer });
                None
            }
            Ok(Left::Interrupted(status)) => Some(status),
            Ok(Left::Nowhere) | Err(_) => None,
        }
    }

    fn emptied(&mut self, pid: pid_t) {
        if let Some(populator) = &mut self.populator {
            populator.emptied(pid);
        }
    }

    /// Returns the process of a thread, and keeps it.
    fn process_of(&mut self, thread: pid_t) -> Option<pid_t> {
        let known = self.threads.get(&thread).copied();
        let pid = known.or_else(|| process::of_thread(thread as u32).map(|pid| pid as pid_t))?;
        self.threads.insert(thread, pid);
        Some(pid)
    }

    fn tell(&mut self, thread: pid_t, event: c_int) {
        let Some(pid) = self.process_of(thread) else { return };
        let message = || event_message(thread).ok().and_then(|message| pid_t::try_from(message).ok());
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                let Some(other) = message() else { return };
                let of = process::of_thread(other as u32).map(|pid| pid as pid_t).unwrap_or(other);
                self.threads.insert(other, of);
                // A clone event may be a process that shares memory, such as posix_spawn creates.
                if of != pid {
                    let is_shared = event != libc::PTRACE_EVENT_FORK;
                    if let Some(populator) = &mut self.populator {
                        populator.forked(pid, of);
                    }
                    let _ = self.events.send(Event::Forked { pid: of as u32, is_shared });
                }
            }
            libc::PTRACE_EVENT_EXEC => {
                // Any thread may have called exec; afterwards the process has only its first thread.
                self.threads.retain(|_, process| *process != pid);
                self.threads.insert(pid, pid);
                self.emptied(pid);
                let _ = self.events.send(Event::Execed { pid: pid as u32 });
            }
            libc::PTRACE_EVENT_EXIT => {
                self.hold(|answer| Event::Exiting { pid: pid as u32, thread: thread as u32, answer });
            }
            _ => {}
        }
    }
}

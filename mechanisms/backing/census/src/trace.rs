//! A command and its descendants under `ptrace(2)`. It reports each process, and stops a process that is about to lose
//! its memory.
//!
//! ```text
//!   supervisor (a thread of its own: the kernel knows a tracer by its thread)        watcher
//!   spawn ─▶ seize ─▶ wait for any of them                                              │
//!              clone, fork, vfork ────────────── Forked ──────────────────────────────▶ │
//!              exec: the memory is new ───────── Execed ──────────────────────────────▶ │
//!              about to exit, stopped ────────── Exiting ──▶ takes a census, answers ─▶ │
//!              gone ──────────────────────────── Gone ────────────────────────────────▶ │
//!              a signal ─▶ passed on;  a stop ─▶ kept, until another process continues it
//!              the command itself is gone ────── Ended ───────────────────────────────▶ │
//! ```
//! No system call is traced, so the command runs at its own speed between these events. When the supervisor ends, the
//! kernel lets the remaining descendants run on, untraced (`ptrace(2)`, "Attaching and detaching").

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Sender, SyncSender, sync_channel};

use libc::{c_int, c_ulong, pid_t};
use rustix::process::{Pid, Signal, kill_process};

use crate::process;
use crate::ptrace::{Request, ptrace, wait};

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
    /// A process has ended.
    Gone { pid: u32 },
    /// The command has ended, and so does the supervisor.
    Ended(ExitStatus),
}

/// The started command.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) pid: u32,
    /// Page faults, minor and major, of the command's process before its exec.
    pub(crate) faults: [u64; 2],
    /// Reason why it is not traced, if it is not.
    pub(crate) untraced: Option<String>,
}

/// Starts the command and supervises it until it ends. The receiver of the events may be dropped.
pub(crate) fn supervise(command: Command, is_traced: bool, events: &Sender<Event>) {
    let end = start(command, is_traced).and_then(|started| {
        let (pid, is_traced) = (started.pid as pid_t, started.untraced.is_none());
        let _ = events.send(Event::Started(started));
        if is_traced {
            Supervisor { main: pid, threads: BTreeMap::from([(pid, pid)]), events }.run()
        } else {
            wait(pid, libc::__WALL).map(|(_, status)| ExitStatus::from_raw(status))
        }
    });
    let _ = events.send(end.map_or_else(Event::Failed, Event::Ended));
}

fn event_message(thread: pid_t) -> io::Result<c_ulong> {
    let mut message: c_ulong = 0;
    ptrace(libc::PTRACE_GETEVENTMSG, thread, 0, (&raw mut message).expose_provenance())?;
    Ok(message)
}

/// Value from `include/uapi/linux/ptrace.h`.
const PTRACE_SETSIGMASK: Request = 0x420b;

const OPTIONS: c_int = libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE;

/// Starts the command, and stops it before its first instruction until it is traced.
///
/// Only `PTRACE_SEIZE` does not interfere with stops by a terminal or a shell, and only another process can seize. So
/// the child asks to be traced, which stops it at the exec. There it is put into an ordinary stop, seized, and
/// continued.
fn start(mut command: Command, is_traced: bool) -> io::Result<Started> {
    if !is_traced {
        let pid = command.spawn()?.id();
        return Ok(Started { pid, faults: [0; 2], untraced: Some("this was asked for".into()) });
    }
    let (reader, writer) = io::pipe()?;
    let told = writer.try_clone()?;
    let ask = move || {
        // A signal would stop it before the exec, where no process would continue it.
        block_signals(true);
        // If tracing is forbidden, the command runs without it.
        let answer = ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
        let errno = answer.err().and_then(|error| error.raw_os_error()).unwrap_or(0);
        if errno != 0 {
            block_signals(false);
        }
        io::Write::write_all(&mut &told, &errno.to_ne_bytes())
    };
    // SAFETY: between fork and exec only async-signal-safe functions run: ptrace(2), sigprocmask(2) and write(2), and nothing is
    // allocated.
    unsafe { command.pre_exec(ask) };
    let pid = command.spawn()?.id() as pid_t;
    // The command's copies are closed by its exec.
    drop((writer, command));
    let mut errno = [0; 4];
    io::Read::read_exact(&mut &reader, &mut errno)?;
    let errno = i32::from_ne_bytes(errno);
    if errno != 0 {
        let reason = io::Error::from_raw_os_error(errno).to_string();
        return Ok(Started { pid: pid as u32, faults: [0; 2], untraced: Some(reason) });
    }
    let (_, status) = wait(pid, libc::__WALL)?;
    alive(status)?;
    // A program that std starts has no signal blocked.
    let no_signals = 0_u64;
    let address_of_mask = (&raw const no_signals).expose_provenance();
    ptrace(PTRACE_SETSIGMASK, pid, size_of_val(&no_signals), address_of_mask)?;
    ptrace(libc::PTRACE_DETACH, pid, 0, libc::SIGSTOP as usize)?;
    let (_, status) = wait(pid, libc::__WALL | libc::WUNTRACED)?;
    alive(status)?;
    let faults = process::faults(pid as u32).unwrap_or_default();
    let seized = ptrace(libc::PTRACE_SEIZE, pid, 0, OPTIONS as usize);
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, Signal::CONT)?;
    }
    Ok(Started { pid: pid as u32, faults, untraced: seized.err().map(|error| error.to_string()) })
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

struct Supervisor<'a> {
    main: pid_t,
    /// Process of each thread.
    threads: BTreeMap<pid_t, pid_t>,
    events: &'a Sender<Event>,
}

impl Supervisor<'_> {
    fn run(mut self) -> io::Result<ExitStatus> {
        loop {
            let (thread, status) = wait(-1, libc::__WALL)?;
            if libc::WIFSTOPPED(status) {
                self.stopped(thread, libc::WSTOPSIG(status), status >> 16);
                continue;
            }
            // The first thread of a process is reported last.
            self.threads.remove(&thread);
            if thread == self.main {
                return Ok(ExitStatus::from_raw(status));
            }
            let _ = self.events.send(Event::Gone { pid: thread as u32 });
        }
    }

    /// Handles a stop of a thread: reports its reason, and continues the thread.
    fn stopped(&mut self, thread: pid_t, signal: c_int, event: c_int) {
        let is_stop = matches!(signal, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
        let (request, data) = match event {
            0 => (libc::PTRACE_CONT, signal),
            // Stopped by a terminal or a shell: it stays stopped until they continue it.
            libc::PTRACE_EVENT_STOP if is_stop => (libc::PTRACE_LISTEN, 0),
            _ => {
                self.tell(thread, event);
                (libc::PTRACE_CONT, 0)
            }
        };
        // A thread that was killed meanwhile no longer exists; its end will be reported.
        let _ = ptrace(request, thread, 0, data as usize);
    }

    fn tell(&mut self, thread: pid_t, event: c_int) {
        let Some(pid) =
            self.threads.get(&thread).copied().or_else(|| process::of_thread(thread as u32).map(|pid| pid as pid_t))
        else {
            return;
        };
        self.threads.insert(thread, pid);
        let message = || event_message(thread).ok().and_then(|message| pid_t::try_from(message).ok());
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                let Some(other) = message() else { return };
                let of = process::of_thread(other as u32).map(|pid| pid as pid_t).unwrap_or(other);
                self.threads.insert(other, of);
                // A clone event may be a process that shares memory, such as posix_spawn creates.
                if of != pid {
                    let is_shared = event != libc::PTRACE_EVENT_FORK;
                    let _ = self.events.send(Event::Forked { pid: of as u32, is_shared });
                }
            }
            libc::PTRACE_EVENT_EXEC => {
                // Any thread may have called exec; afterwards the process has only its first thread.
                self.threads.retain(|_, process| *process != pid);
                self.threads.insert(pid, pid);
                let _ = self.events.send(Event::Execed { pid: pid as u32 });
            }
            libc::PTRACE_EVENT_EXIT => {
                let (answer, answered) = sync_channel(0);
                let exiting = Event::Exiting { pid: pid as u32, thread: thread as u32, answer };
                if self.events.send(exiting).is_ok() {
                    // Returns when the watcher drops the answer.
                    let _ = answered.recv();
                }
            }
            _ => {}
        }
    }
}

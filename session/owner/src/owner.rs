//! The owner of a session, from its creation to its end.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use dormouse_abi::environment::{ENV_MEMORY, ENV_SESSION, memory_name};
use dormouse_abi::message::ToolToProgram;
use dormouse_abi::register::Register;
use dormouse_control::{Processes, SessionListener, SessionServer, is_dead, process_name};
use dormouse_format::{Cause, Losses};
use dormouse_relay::Memory;
use dormouse_tools::{Program, ProgramError};

use crate::begin::{NewSession, SessionParts};
use crate::command::inheritable;
use crate::drain::{self, DrainResult, Drainer};
use crate::end::{Deadline, END_MAX, since};
use crate::error::{Error, no_thread};
use crate::fault;
use crate::follow;
use crate::followed::FollowedProcesses;
use crate::ledger::Ledger;
use crate::losses;
use crate::memory::SessionMemory;
use crate::options::Options;
use crate::register::{RegisterReader, ended_amid_write};
use crate::service::{NAMED_COUNT_MAX, Shared};
use crate::session_file::OwnerFiles;
use crate::summary::{NAMED_SHOWN_MAX, Running, Summary};
use crate::trace::Trace;

/// Descriptors that a session needs beside those of its processes and streams: its own files, a snapshot's, those that
/// its command is started with.
const DESCRIPTORS_BESIDE: u64 = 64;

/// Memory, threads and files of an open session.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
    files: OwnerFiles,
    server: SessionServer,
    stop: Arc<AtomicBool>,
    drainer: Option<JoinHandle<DrainResult>>,
    /// The memory, at a descriptor that processes started by this one inherit.
    inheritable: OnceLock<OwnedFd>,
}

impl Session {
    /// Makes the directory, the memory and the socket, and starts to serve and to drain.
    ///
    /// # Errors
    /// One line with the reason; only an empty directory is left.
    pub fn create(options: &Options) -> Result<Session, Error> {
        let NewSession { parts, .. } = NewSession::create(options)?;
        Session::take_up(parts)
    }

    /// Takes up a session without an owner: a new one, or one whose owner was killed. Continues from the progress of
    /// that owner.
    ///
    /// # Errors
    /// One line with the reason. If nothing has happened in the session yet, only an empty directory is left.
    pub(crate) fn take_up(parts: SessionParts) -> Result<Session, Error> {
        let SessionParts { dir, memory, ledger, listener, buffers, files } = parts;
        let ledger = Arc::new(ledger);
        fault::survive_file_size_limits();
        ledger.count_owner();
        let is_new = ledger.restarts() == 0;
        let trace = Trace::take_up(dir, Arc::clone(&ledger))?;
        let memory = SessionMemory::take_up(memory, Arc::clone(&ledger), buffers.is_some());
        let memory = memory.inspect_err(|_| {
            if is_new {
                trace.remove()
            }
        })?;
        let processes = Processes::new().map_err(|error| format!("cannot watch processes: {error}"))?;
        processes.count_joined(ledger.written().joined);
        trace.follow(memory.view());
        let (register, unheard) = (RegisterReader::default(), listener.unheard());
        let shared = Arc::new(Shared {
            memory,
            trace,
            processes: Arc::new(processes),
            register,
            unheard,
            followed: FollowedProcesses::default(),
            rules_turn: Mutex::default(),
        });
        Session::open(listener, Arc::clone(&shared), files).inspect_err(|_| {
            if is_new {
                shared.trace.remove()
            }
        })
    }

    fn open(listener: SessionListener, shared: Arc<Shared>, files: OwnerFiles) -> Result<Session, Error> {
        // Processes that have joined are watched before new ones join.
        shared.look();
        // Each stream has a file.
        let descriptors_kept = u64::from(shared.memory.view().geometry().stream_count) + DESCRIPTORS_BESIDE;
        let may_be_stopped = shared.trace.ledger.may_be_stopped() != 0;
        let processes = Arc::clone(&shared.processes);
        let server = SessionServer::start(listener, Arc::clone(&shared), processes, may_be_stopped, descriptors_kept)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (of_drainer, stopped) = (Arc::clone(&shared), Arc::clone(&stop));
        let (is_ready, ready) = channel();
        let run = move || {
            let Shared { memory, trace, .. } = &*of_drainer;
            let drainer = match Drainer::new(memory.view(), trace) {
                Ok(drainer) => drainer,
                Err(error) => {
                    let _ = is_ready.send(Err(error));
                    return DrainResult::default();
                }
            };
            let _ = is_ready.send(Ok(()));
            drain::run(drainer, &stopped, || {
                of_drainer.look();
                trace.take_in();
                of_drainer.record_names(NAMED_COUNT_MAX);
                memory.keep_up();
            })
        };
        let drainer = std::thread::Builder::new().name("dormouse-drain".into()).spawn(run).map_err(no_thread)?;
        ready.recv().map_err(|_| "the drain thread has failed".to_string())??;
        follow::start(Arc::clone(&shared), server.path().into())?;
        Ok(Session { shared, files, server, stop, drainer: Some(drainer), inheritable: OnceLock::new() })
    }

    /// Returns the path where programs join: the value of `DORMOUSE_SESSION`.
    pub fn socket(&self) -> &Path {
        self.server.path()
    }

    /// Returns environment variables by which programs that this process starts find the session. From now on until the
    /// session ends, they inherit its memory.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn environment(&self) -> Result<[(&'static str, OsString); 2], Error> {
        let told = |error| format!("cannot have programs inherit the session's memory: {error}");
        if self.inheritable.get().is_none() {
            let _ = self.inheritable.set(inheritable(self.shared.memory.file()).map_err(told)?);
        }
        let number = self.inheritable.get().map_or(-1, AsRawFd::as_raw_fd);
        let name = memory_name(number, &self.shared.trace.uuid);
        Ok([(ENV_SESSION, self.socket().into()), (ENV_MEMORY, name.into())])
    }

    /// Returns the names, `provider:name`, of the classes that programs have announced so far, sorted.
    pub fn class_names(&self) -> Vec<String> {
        let classes = self.shared.trace.classes();
        classes.events().map(|class| class.full_name.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Makes a running program join and arm the session's classes. Returns the number of armed classes.
    ///
    /// # Errors
    /// The reason if the program cannot be reached or refuses.
    pub fn attach(&self, program: &Program) -> Result<u32, ProgramError> {
        self.shared.followed.set_attached(program.pid);
        follow::attach(&self.shared, self.socket(), program)
    }

    /// Whether an earlier owner was killed while it ended the session.
    pub(crate) fn is_ending(&self) -> bool {
        self.shared.trace.ledger.is_ending() != 0
    }

    /// Whether a tool has asked for the session's end.
    pub(crate) fn is_stop_requested(&self) -> bool {
        self.server.is_stop_requested()
    }

    /// Whether processes have joined and none of them is left.
    pub(crate) fn is_deserted(&self) -> bool {
        self.shared.processes.are_all_dead()
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.shared.trace.ledger
    }

    /// Whether no process is in the session.
    pub(crate) fn is_empty(&self) -> bool {
        // The kernel is asked once none is known: a child that was just forked has not entered itself yet.
        self.shared.processes.count() == 0 && self.shared.members().is_empty()
    }

    /// Ends a session whose command cannot run, and removes its trace; only an empty directory is left.
    pub fn abandon(self) {
        let shared = Arc::clone(&self.shared);
        self.finish();
        shared.trace.remove();
    }

    /// Ends the session: no program can join any more, committed pages are written, and the trace is complete.
    ///
    /// Waits for programs and tools for at most 1.5 s in total. If a program has not left by then, its later events are
    /// not in the trace, and the summary says so. Waits for a disk without limit.
    pub fn finish(self) -> Summary {
        let Session { shared, mut files, mut server, stop, drainer, inheritable } = self;
        drop(inheritable);
        shared.trace.ledger.set_ending(1);
        let clock = since(Instant::now());
        let deadline = Deadline::after(END_MAX, &clock);
        let mut losses = Losses::default();
        // A peer may take its time over a conversation. A conversation that is left behind is refused, because the
        // trace is finished then.
        deadline.bound("dormouse-close", server.closing());
        let socket = server.path().to_path_buf();
        let Shared { memory, trace, processes, register, unheard, followed, .. } = &*shared;
        let ledger = &trace.ledger;
        // These wait for a disk.
        memory.wait_for_turns();
        shared.look();
        shared.record_names(usize::MAX);
        let members = if ledger.command() == 0 { Vec::new() } else { shared.members() };
        losses.add(Cause::NotDetached, deadline.ask_all(processes.live_pids(), move |pid| detach(pid, &socket)) as u64);
        // An owner that was killed while it ended the session has told them already.
        let is_told = ledger.is_stopped() != 0;
        ledger.set_stopped(1);
        // (P') pairs with (P): a producer that sees it leaves.
        let was_stopped = memory.view().header().stopped.0.swap(1, Ordering::SeqCst) != 0 && !is_told;
        losses.add(Cause::Scribbled, u64::from(was_stopped) + u64::from(!memory.is_layout_intact()));
        // (R') pairs with (R): when the drain thread sees it, the thread drains what was committed before.
        stop.store(true, Ordering::SeqCst);
        drainer.iter().for_each(|drainer| drainer.thread().unpark());
        let drained = drainer.and_then(|drainer| drainer.join().ok()).unwrap_or_else(|| {
            losses.add(Cause::Unfinished, 1);
            let write_error = Some("the drain thread has failed; the trace ends where it did".into());
            DrainResult { summary: Summary { write_error, ..Summary::default() }, ..DrainResult::default() }
        });
        // Every process whose events were drained has its record: even a program that a process executed last of all.
        shared.look();
        let late = register.late(&memory.view());
        let late_count = ledger.late().load(Ordering::Relaxed).saturating_add(late.len() as u64);
        trace.refuse_at_end(late);
        trace.refuse_uncounted(unheard.count());
        let (classes_refused, refused) = trace.refusals();
        losses.extend(&refused);
        losses.extend(&drained.summary.losses);
        losses.add(Cause::AmidWrite, ended_amid_write(&memory.view(), ledger));
        losses.add(Cause::MemoryGone, memory.gone());
        let (unjoined, executed) = followed.end();
        let alive = members.into_iter().filter(|(_, pidfd)| !is_dead(pidfd));
        let named = |(pid, _)| Running { pid, name: process_name(pid).unwrap_or_default() };
        let mut summary = Summary {
            still_running: alive.map(named).collect(),
            executed,
            unjoined,
            processes: processes.joined().saturating_sub(late_count),
            snapshots_refused: ledger.counts().snapshots_refused.load(Ordering::Relaxed),
            owner_restarts: ledger.restarts(),
            classes_refused,
            tags_not_set: tags_not_set(&memory.view()),
            tag_texts_refused: memory.view().register().map_or(0, Register::tag_texts_refused),
            losses,
            ..drained.summary
        };
        let records: Vec<_> = losses::records(drained.lost_unstated, &summary.losses, &summary.lost_by_class).collect();
        let unrecorded: Vec<_> = losses::unrecorded_records(&summary.unrecorded).collect();
        if let Err(error) = trace.finish(&records, &unrecorded, drained.totals) {
            summary.write_error.get_or_insert(error.to_string());
        }
        files.remove();
        let refused = summary.classes_refused.iter().map(|refusal| format!("{refusal}\n"));
        let executed = summary.executed.iter().take(NAMED_SHOWN_MAX).map(|executed| format!("{executed}\n"));
        server.answer_stop(refused.chain(executed).collect::<String>() + &summary.to_string());
        summary
    }
}

/// Returns the tags that the session asks for and that no process has set.
fn tags_not_set(memory: &Memory) -> Vec<String> {
    let Some(register) = memory.register() else { return Vec::new() };
    let tags = memory.tags().iter().enumerate().filter(|(tag, _)| !register.is_tag_set(*tag));
    tags.map(|(_, name)| name.into()).collect()
}

/// Makes a process leave the session at `socket`. Returns false if it is unknown whether it has left. A process that
/// does not listen leaves at its next page switch.
///
/// A program that is not in the session is left alone.
fn detach(pid: u32, socket: &Path) -> bool {
    let session = socket.to_string_lossy().into_owned();
    // The reason why a program does not listen does not matter here.
    Program::listening(pid).is_some_and(|program| program.ask(&ToolToProgram::Detach { session }).is_ok())
}

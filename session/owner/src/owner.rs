//! The owner of a session, from its making to its end.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dormouse_abi::message::{ProgramToTool, ToolToProgram};
use dormouse_control::{Processes, Program, SessionServer, no_thread, socket_dir};
use dormouse_ctf::{Cause, Losses};

use crate::clock::Clock;
use crate::drain::{self, Drained};
use crate::end::{Deadline, END_MAX, since};
use crate::error::Error;
use crate::fault;
use crate::losses;
use crate::memory::{SessionMemory, create_pool};
use crate::options::{Options, Plan};
use crate::register::TakenIn;
use crate::service::{NAMED_COUNT_MAX, Shared};
use crate::session_file::OwnerFiles;
use crate::summary::Summary;
use crate::trace::Trace;

/// How often a waiting owner looks whether its session is over. It looks because one of its three questions is any function of its
/// caller's ([`Session::wait`]), which nothing can wait for. The end of a session is noticed so much later; nothing is lost meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Descriptors that a session needs beside those of its processes and streams: its own files, a snapshot's, what its command is started with.
const DESCRIPTORS_BESIDE: u64 = 64;

/// How long a program may take to join when it is asked to.
const PATIENCE_TO_ATTACH: Duration = Duration::from_secs(5);

/// Memory, threads and files of a session that is open.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
    files: OwnerFiles,
    server: SessionServer,
    stop: Arc<AtomicBool>,
    drainer: Option<JoinHandle<Drained>>,
}

impl Session {
    /// Makes the directory, the memory and the socket, and starts to serve and to drain.
    ///
    /// # Errors
    /// One line; nothing is left behind but an empty directory.
    pub fn create(options: &Options) -> Result<Session, Error> {
        let plan = options.plan()?;
        fault::survive_file_size_limits();
        let trace = Trace::create(&plan, Clock::new(), new_uuid()?)?;
        // What fails from here on takes the trace's files away again.
        match Session::memory(&plan, &trace) {
            Ok((memory, files)) => {
                let processes = Processes::new().map_err(|error| {
                    trace.remove();
                    format!("cannot watch processes: {error}")
                })?;
                trace.follow(memory.view());
                let register = TakenIn::default();
                let shared = Arc::new(Shared { memory, trace, processes: Arc::new(processes), register });
                Session::open(&plan, Arc::clone(&shared), files).inspect_err(|_| shared.trace.remove())
            }
            Err(error) => {
                trace.remove();
                Err(error)
            }
        }
    }

    fn memory(plan: &Plan, trace: &Trace) -> Result<(SessionMemory, OwnerFiles), Error> {
        let pool = create_pool(plan).map_err(|error| match plan.options.buffers.clone() {
            Some(path) => Error::from(format!("cannot put the buffers into {}: {error}", path.display())),
            None if fault::is_limit_of_file_sizes(&error) => {
                Error::from(format!("{error}; raise the limit of file sizes (ulimit -f), which counts for memory too"))
            }
            None => Error::from(error.to_string()),
        })?;
        let files = OwnerFiles::new(plan.options.buffers.clone());
        let memory = SessionMemory::new(pool, plan, trace.clock.source, trace.uuid);
        Ok((memory.map_err(|error| error.to_string())?, files))
    }

    fn open(plan: &Plan, shared: Arc<Shared>, mut files: OwnerFiles) -> Result<Session, Error> {
        // A file for each stream.
        let descriptors_kept = u64::from(plan.geometry.stream_count) + DESCRIPTORS_BESIDE;
        let server = SessionServer::start(
            &socket_dir(),
            Arc::clone(&shared),
            Arc::clone(&shared.processes),
            plan.options.may_be_stopped,
            descriptors_kept,
        )?;
        // Nobody joins before the session's path is known.
        files.write(&shared.trace.dir, shared.trace.uuid, server.path())?;
        let stop = Arc::new(AtomicBool::new(false));
        let (of_drainer, stopped) = (Arc::clone(&shared), Arc::clone(&stop));
        let run = move || {
            let Shared { memory, trace, .. } = &*of_drainer;
            drain::run(memory, trace, &stopped, || {
                of_drainer.look();
                trace.take_in();
                of_drainer.record_names(NAMED_COUNT_MAX);
                memory.give_back_excess();
            })
        };
        let drainer = std::thread::Builder::new().name("dormouse-drain".into()).spawn(run);
        let drainer = Some(drainer.map_err(no_thread)?);
        Ok(Session { shared, files, server, stop, drainer })
    }

    /// Where programs join: the value of `DORMOUSE_SESSION`.
    pub fn socket(&self) -> &Path {
        self.server.path()
    }

    /// Its memory, and what names it to those who inherit it.
    pub(crate) fn memory_to_inherit(&self) -> (BorrowedFd<'_>, [u8; 16]) {
        (self.shared.memory.file(), self.shared.trace.uuid)
    }

    /// The names, `provider:name`, of the classes that programs have announced so far, sorted.
    pub fn class_names(&self) -> Vec<String> {
        let classes = self.shared.trace.classes();
        classes.events().map(|class| class.full_name.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Has a program that runs join, and arm the session's classes. Returns how many are armed.
    ///
    /// # Errors
    /// When the program cannot be reached or refuses.
    pub fn attach(&self, program: &Program) -> Result<u32, Error> {
        let session = self.socket().to_string_lossy().into_owned();
        let mut total = 0;
        let (question, memory) = (ToolToProgram::Attach { session }, self.shared.memory.file());
        for index in 0..program.tracer_count() {
            match program.ask_with(index, &question, Some(memory), PATIENCE_TO_ATTACH)? {
                ProgramToTool::Changed { armed, .. } => total += armed,
                other => return Err(program.refusal(other)),
            }
        }
        // Who asks about it next finds it.
        self.shared.look();
        Ok(total)
    }

    /// Waits until `is_over`, a tool asks for the session's end, or every process is dead. True in the last case.
    pub fn wait(&self, is_over: impl Fn() -> bool) -> bool {
        loop {
            if is_over() || self.server.is_stop_requested() {
                return false;
            }
            if self.shared.processes.are_all_dead() {
                return true;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Ends a session whose command cannot run, and takes its trace away: nothing is left behind but an empty directory.
    pub fn abandon(self) {
        let shared = Arc::clone(&self.shared);
        self.finish();
        shared.trace.remove();
    }

    /// Ends the session: no program can join any more, what is committed is written, the trace is complete.
    ///
    /// Programs and tools are waited for 1.5 s at most, all together; what a program writes that has not left by then is not in the trace,
    /// and the summary says so. A disk is waited for as long as it takes.
    pub fn finish(self) -> Summary {
        let Session { shared, mut files, mut server, stop, drainer } = self;
        let clock = since(Instant::now());
        let deadline = Deadline::after(END_MAX, &clock);
        let mut losses = Losses::default();
        // A peer may take its time over a conversation. One that is left behind is refused: the trace is finished then.
        deadline.bound("dormouse-close", server.closing());
        let socket = server.path().to_path_buf();
        let Shared { memory, trace, processes, register, .. } = &*shared;
        // These wait for a disk.
        memory.wait_for_turns();
        shared.look();
        shared.record_names(usize::MAX);
        losses.add(Cause::NotDetached, deadline.ask_all(processes.live_pids(), move |pid| detach(pid, &socket)) as u64);
        // (P') pairs with (P): a producer that sees it leaves.
        let was_stopped = memory.view().header().stopped.0.swap(1, Ordering::SeqCst) != 0;
        losses.add(Cause::Scribbled, u64::from(was_stopped) + u64::from(!memory.is_layout_intact()));
        // (R') pairs with (R): the drain thread, when it sees it, drains what was committed before.
        stop.store(true, Ordering::SeqCst);
        memory.wake();
        let drained = drainer.and_then(|drainer| drainer.join().ok()).unwrap_or_else(|| {
            losses.add(Cause::Unfinished, 1);
            let write_error = Some("the drain thread has failed; the trace ends where it did".into());
            Drained { summary: Summary { write_error, ..Summary::default() }, ..Drained::default() }
        });
        trace.refuse_excess();
        let (classes_refused, refused) = trace.refusals();
        losses.extend(&refused);
        losses.extend(&drained.summary.losses);
        losses.add(Cause::AmidWrite, register.ended_amid_write(&memory.view()));
        losses.add(Cause::MemoryGone, memory.gone());
        let mut summary = Summary {
            processes: processes.joined(),
            snapshots_refused: server.counts().snapshots_refused,
            classes_refused,
            losses,
            ..drained.summary
        };
        let records: Vec<_> = losses::records(drained.lost_unstated, &summary.losses, &summary.lost_by_class).collect();
        if let Err(error) = trace.finish(&records, drained.totals) {
            summary.write_error.get_or_insert(error.to_string());
        }
        files.remove();
        let refused = summary.classes_refused.iter().map(|refusal| format!("{refusal}\n"));
        server.answer_stop(refused.collect::<String>() + &summary.to_string());
        summary
    }
}

/// Has a process leave the session at `socket`. False: nobody knows whether it has. One that does not listen leaves at its next page switch.
///
/// Who is in the session is a program's word. One that is not, or is in another session, is let be.
fn detach(pid: u32, socket: &Path) -> bool {
    let is_here = |answer: &ProgramToTool| matches!(answer, ProgramToTool::Classes { session, .. } if Path::new(session) == socket);
    let leave = |program: Program| {
        let is_member = program.ask(&ToolToProgram::List)?.iter().any(is_here);
        if is_member { program.ask(&ToolToProgram::Detach).map(|_| ()) } else { Ok(()) }
    };
    // Why one does not listen is nobody's question here.
    Program::listening(pid).is_some_and(|program| leave(program).is_ok())
}

fn new_uuid() -> Result<[u8; 16], Error> {
    let mut uuid = [0u8; 16];
    rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| format!("random numbers: {error}"))?;
    // RFC 9562, version 4.
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    Ok(uuid)
}

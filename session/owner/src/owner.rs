//! The owner of a session, from its making to its end.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use dormouse_abi::message::{ProgramToTool, ToolToProgram};
use dormouse_control::{Processes, Program, SessionServer, no_thread, socket_dir};
use dormouse_ctf::StateRecord;

use crate::clock::Clock;
use crate::drain::{self, Drained};
use crate::error::Error;
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
        let trace = Trace::create(&plan, Clock::new(), new_uuid()?)?;
        Session::open(&plan, trace).inspect_err(|_| Trace::remove(&options.dir))
    }

    fn open(plan: &Plan, trace: Trace) -> Result<Session, Error> {
        let pool = create_pool(plan).map_err(|error| match plan.options.buffers.clone() {
            Some(path) => format!("cannot put the buffers into {}: {error}", path.display()).into(),
            None => Error::from(error.to_string()),
        })?;
        let mut files = OwnerFiles::new(plan.options.buffers.clone());
        let memory =
            SessionMemory::new(pool, plan, trace.clock.source, trace.uuid).map_err(|error| error.to_string())?;
        let processes = Processes::new().map_err(|error| format!("cannot watch processes: {error}"))?;
        let processes = Arc::new(processes);
        trace.follow(memory.view());
        let shared =
            Arc::new(Shared { memory, trace, processes: Arc::clone(&processes), register: TakenIn::default() });
        // A file for each stream.
        let descriptors_kept = u64::from(plan.geometry.stream_count) + DESCRIPTORS_BESIDE;
        let server = SessionServer::start(
            &socket_dir(),
            Arc::clone(&shared),
            processes,
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
                of_drainer.register.look(&of_drainer);
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
    pub(crate) fn memory(&self) -> (BorrowedFd<'_>, [u8; 16]) {
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
        Trace::remove(&shared.trace.dir);
    }

    /// Ends the session: no program can join any more, what is committed is written, the trace is complete.
    pub fn finish(mut self) -> Summary {
        self.server.close();
        self.shared.register.look(&self.shared);
        self.shared.record_names(usize::MAX);
        self.shared.processes.detach_all();
        // (P') pairs with (P): a producer that sees it leaves.
        self.shared.memory.view().header().stopped.0.store(1, Ordering::SeqCst);
        // (R') pairs with (R): the drain thread, when it sees it, drains what was committed before.
        self.stop.store(true, Ordering::SeqCst);
        self.shared.memory.wake();
        let drained = self.drainer.take().and_then(|drainer| drainer.join().ok()).unwrap_or_else(|| {
            let write_error = Some("the drain thread has failed; the trace ends where it did".into());
            Drained { summary: Summary { write_error, ..Summary::default() }, ..Drained::default() }
        });
        self.shared.trace.refuse_excess();
        let counts = self.server.counts();
        let mut summary = Summary {
            processes: self.shared.processes.joined(),
            programs_refused: counts.programs_refused,
            snapshots_refused: counts.snapshots_refused,
            classes_refused: self.shared.trace.refusals(),
            ..drained.summary
        };
        let refused = format!("{} packets were not valid and were left out", summary.packets_refused);
        let mut records = Vec::new();
        if summary.lost_on_disk > 0 {
            let reason = "the trace could not be written";
            records.push(StateRecord::Lost { reason, count: summary.lost_on_disk });
        }
        if summary.packets_refused > 0 {
            records.push(StateRecord::Lost { reason: &refused, count: 0 });
        }
        records.extend(losses::records(drained.lost_unstated, &summary.lost_by_class));
        if let Err(error) = self.shared.trace.finish(&records, drained.totals) {
            summary.write_error.get_or_insert(error.to_string());
        }
        self.files.remove();
        let refused = summary.classes_refused.iter().map(|refusal| format!("{refusal}\n"));
        self.server.answer_stop(refused.collect::<String>() + &summary.to_string());
        summary
    }
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

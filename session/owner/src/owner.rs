//! The owner of a session, from its making to its end.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use dormouse_abi::wire::Message;
use dormouse_ctf::{Refusal, StateRecord};

use crate::clock::Clock;
use crate::drain::{self, Drained};
use crate::error::Error;
use crate::losses;
use crate::memory::{SessionMemory, create_pool};
use crate::options::{Options, Plan};
use crate::program::Program;
use crate::registry::NAMED_COUNT_MAX;
use crate::server::{ServerThread, Shared, no_thread};
use crate::session_file::OwnerFiles;
use crate::streams::Tally;
use crate::trace::Trace;

/// How often a waiting owner looks whether its session is over. It looks because one of its three questions is any function of its
/// caller's ([`Session::wait`]), which nothing can wait for. The end of a session is noticed so much later; nothing is lost meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What a session came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Events in the trace.
    pub events: u64,
    /// Events that found no free page or were larger than a page.
    pub lost: u64,
    /// Whose events those were, the greatest count first. A program that was killed, or was losing events while the session ended,
    /// may have left some out.
    pub lost_by_class: Vec<(String, u64)>,
    /// Events that were committed but could not be written to the trace.
    pub lost_on_disk: u64,
    /// Packets that failed a check, and are not in the trace.
    pub packets_refused: u64,
    /// The first stream in whose ring a producer has violated the protocol, and how. Its pages were found without the ring.
    pub ring_violation: Option<String>,
    /// Processes that joined.
    pub processes: u64,
    /// Bytes of the trace's streams.
    pub bytes: u64,
    /// Snapshots that events asked for and that were too many.
    pub snapshots_refused: u64,
    /// Classes whose events are not in the trace, each once.
    pub classes_refused: Vec<Refusal>,
    /// Why something could not be written, the first time.
    pub write_error: Option<String>,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = |count: u64| if count == 1 { "" } else { "es" };
        let Summary { events, lost, processes, bytes, .. } = self;
        write!(
            f,
            "{events} events, {} lost, {processes} process{}, {bytes} bytes",
            lost.saturating_add(self.lost_on_disk),
            plural(*processes)
        )?;
        if self.snapshots_refused > 0 {
            write!(f, "; {} snapshots that events asked for were too many", self.snapshots_refused)?;
        }
        if !self.classes_refused.is_empty() {
            f.write_str("; refused event classes are named above")?;
        }
        if let Some(error) = &self.write_error {
            write!(f, "; {} events could not be written: {error}", self.lost_on_disk)?;
        }
        if self.packets_refused > 0 {
            write!(f, "; {} packets were not valid and were left out", self.packets_refused)?;
        }
        if let Some(violation) = &self.ring_violation {
            write!(f, "; protocol violation in the ring of {violation}")?;
        }
        let (first, rest) = self.lost_by_class.split_at(self.lost_by_class.len().min(LOST_CLASSES_SHOWN_MAX));
        for (index, (name, count)) in first.iter().enumerate() {
            write!(f, "{} {name} {count}", if index == 0 { "; lost:" } else { "," })?;
        }
        if !rest.is_empty() {
            write!(
                f,
                ", {} other classes {}",
                rest.len(),
                rest.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
            )?;
        }
        Ok(())
    }
}

/// Classes that a summary names in its line.
const LOST_CLASSES_SHOWN_MAX: usize = 5;

/// Memory, threads and files of a session that is open.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
    files: OwnerFiles,
    server: ServerThread,
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
            None => Error::from(error),
        })?;
        let mut files = OwnerFiles::new(plan.options.buffers.clone());
        let memory = SessionMemory::new(pool, plan, trace.clock.source, trace.uuid)?;
        let shared = Arc::new(Shared::new(memory, trace));
        let server = ServerThread::start(plan, Arc::clone(&shared))?;
        // Nobody joins before the session's path is known.
        files.write(&shared.trace.dir, shared.trace.uuid, &server.path)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (of_drainer, stopped) = (Arc::clone(&shared), Arc::clone(&stop));
        let run = move || {
            let Shared { memory, trace, processes, .. } = &*of_drainer;
            drain::run(memory, trace, &stopped, || {
                processes.remove_dead(&memory.view());
                processes.record_names(trace, NAMED_COUNT_MAX);
                memory.give_back_excess();
            })
        };
        let drainer = std::thread::Builder::new().name("dormouse-drain".into()).spawn(run);
        let drainer = Some(drainer.map_err(no_thread)?);
        Ok(Session { shared, files, server, stop, drainer })
    }

    /// Where programs join: the value of `DORMOUSE_SESSION`.
    pub fn socket(&self) -> &Path {
        &self.server.path
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
        for answer in program.ask(&Message::Attach { session })? {
            match answer {
                Message::Changed { armed, .. } => total += armed,
                other => return Err(program.refusal(other)),
            }
        }
        Ok(total)
    }

    /// Waits until `is_over`, a tool asks for the session's end, or every process is dead. True in the last case.
    pub fn wait(&self, is_over: impl Fn() -> bool) -> bool {
        loop {
            if is_over() || self.shared.is_stop_requested() {
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
        self.shared.processes.record_names(&self.shared.trace, usize::MAX);
        self.shared.processes.detach_all();
        // (P') pairs with (P): a producer that sees it leaves.
        self.shared.memory.view().header().stopped.0.store(1, Ordering::SeqCst);
        // (R') pairs with (R): the drain thread, when it sees it, drains what was committed before.
        self.stop.store(true, Ordering::SeqCst);
        self.shared.memory.wake();
        let drained = self.drainer.take().and_then(|drainer| drainer.join().ok()).unwrap_or_else(|| {
            let write_error = Some("the drain thread has failed; the trace ends where it did".into());
            Drained { written: Tally { write_error, ..Tally::default() }, ..Drained::default() }
        });
        let written = drained.written;
        let mut summary = Summary {
            events: written.events,
            lost: drained.lost,
            lost_by_class: drained.lost_by_class,
            lost_on_disk: written.lost_on_disk,
            packets_refused: written.packets_refused,
            ring_violation: drained.violation.map(|(stream, error)| format!("stream {stream}: {error}")),
            processes: self.shared.processes.joined(),
            bytes: written.bytes,
            snapshots_refused: self.shared.snapshots_refused.load(Ordering::Relaxed),
            classes_refused: self.shared.trace.refusals(),
            write_error: written.write_error,
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
        self.shared.answer_stop(refused.collect::<String>() + &summary.to_string());
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

#[cfg(test)]
mod tests {
    use dormouse_abi::session::LOST_CLASS_COUNT;
    use dormouse_abi::wire::ClassDecl;
    use dormouse_ctf::Classes;

    use super::*;

    #[test]
    fn a_summary_names_the_classes_that_lost_most() {
        let mut classes = Classes::new();
        let decl = |name: &str| ClassDecl { provider: "shop".into(), name: name.into(), fields: vec![] };
        assert!(classes.insert(0, decl("order")) && classes.insert(1, decl("item")));
        let mut counts = vec![0; LOST_CLASS_COUNT];
        let mut summary = |losses: &[(usize, u64)]| {
            losses.iter().for_each(|&(index, count)| counts[index] = count);
            Summary { lost_by_class: losses::name_counts(counts.clone(), &classes), ..Summary::default() }.to_string()
        };
        let nothing = "0 events, 0 lost, 0 processes, 0 bytes";
        assert_eq!(summary(&[]), nothing);
        assert_eq!(summary(&[(0, 3), (1, 40)]), format!("{nothing}; lost: shop:item 40, shop:order 3"));
        // Whatever a program has written there, it is said, and saturates.
        let strange = [(7, u64::MAX), (8, u64::MAX), (9, 50), (255, 2), (254, 1)];
        let none = "(other classes)";
        assert_eq!(
            summary(&strange),
            format!(
                "{nothing}; lost: {none} {max}, {none} {max}, {none} 50, shop:item 40, shop:order 3, 2 other classes 3",
                max = u64::MAX
            )
        );
    }
}

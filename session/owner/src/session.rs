//! A session from its making to its end.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use dormouse_abi::page::STREAM_EVENTS;
use dormouse_abi::record::RecordKind;
use dormouse_abi::session::{
    Geometry, LOST_CLASS_COUNT, MODE_DISCARD, MODE_OVERWRITE, PAGE_COUNT_MAX, STREAM_COUNT_MAX,
};
use dormouse_backing::{BackingError, MemoryOptions, Pool};
use dormouse_ctf::{Classes, StateRecord};
use dormouse_relay::{Memory, Setup};

use crate::budget::Budget;
use crate::clock::Clock;
use crate::drain::{self, Drained};
use crate::packets::Tally;
use crate::program::{Program, ProgramError};
use crate::server::Server;
use crate::trace::{Refusal, Trace, TraceError};
use crate::whereabouts::{LeftBehind, buffers_file};

/// What happens when no page is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// New events are dropped and counted.
    #[default]
    Discard,
    /// The oldest page is overwritten.
    Overwrite,
}

impl Mode {
    /// As the command line and the trace write it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Discard => "discard",
            Mode::Overwrite => "overwrite",
        }
    }
}

/// What records tell of their writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Context {
    /// Process and thread.
    #[default]
    Ids,
    /// Nothing: records are compact.
    None,
}

impl Context {
    /// As the command line writes it.
    pub fn name(self) -> &'static str {
        match self {
            Context::Ids => "ids",
            Context::None => "none",
        }
    }

    pub(crate) fn record_kind(self) -> RecordKind {
        match self {
            Context::Ids => RecordKind::Ids,
            Context::None => RecordKind::Compact,
        }
    }
}

/// How a session is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// The trace's directory, which must not exist or be empty.
    pub dir: PathBuf,
    /// Memory of all pages in bytes.
    pub budget_bytes: u64,
    /// What the budget may grow to while the session is live ([`dormouse_abi::wire::Message::Budget`]). `None`: four times
    /// the budget; the budget itself where there are many processors.
    pub budget_max_bytes: Option<u64>,
    /// The machine's processors, or pretended ones.
    pub cpus: Cpus,
    /// What happens when no page is free.
    pub mode: Mode,
    /// What records tell of their writer.
    pub context: Context,
    /// Patterns of the classes to arm, matched against `provider:name`.
    pub patterns: Vec<String>,
    /// The command that is traced, for the trace.
    pub command_line: String,
    /// Whether a tool may end the session ([`dormouse_abi::wire::Message::Stop`]).
    pub may_be_stopped: bool,
    /// Where the memory lies on a file system, so that it outlives the owner: a new file, or a directory for one. `None`: in a
    /// memory file without a name, which ends with the last process that maps it.
    pub buffers: Option<PathBuf>,
}

impl Options {
    /// A trace in `dir` of all classes, in discard mode, with a budget of 16 MiB and this machine's processors.
    pub fn new(dir: PathBuf) -> Options {
        Options {
            dir,
            budget_bytes: 16 << 20,
            budget_max_bytes: None,
            cpus: Cpus::of_machine(),
            mode: Mode::Discard,
            context: Context::default(),
            patterns: vec!["*".into()],
            command_line: String::new(),
            may_be_stopped: false,
            buffers: None,
        }
    }
}

/// Smallest budget: sixteen pages of 4 KiB.
pub const BUDGET_BYTES_MIN: u64 = 64 << 10;
/// Largest budget that any number of processors leaves room for.
const BUDGET_BYTES_MAX: u64 = 32 << 30;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The budget is out of range.
    #[error("a budget of {0} bytes is too small; give at least 64K")]
    BudgetTooSmall(u64),
    /// The budget is out of range.
    #[error("a budget of {0} bytes is more than a session can address; give at most 32G")]
    BudgetTooLarge(u64),
    /// The budget is more than it may become.
    #[error("a budget of {budget} bytes is more than the {max} bytes that it may grow to; give a larger --budget-max")]
    BudgetMax {
        /// The budget.
        budget: u64,
        /// What it may grow to.
        max: u64,
    },
    /// The memory is not to be had.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The memory cannot be where it was wanted.
    #[error("cannot put the buffers into {path}: {error}")]
    Buffers {
        /// Where.
        path: PathBuf,
        /// Why.
        error: BackingError,
    },
    /// The trace cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The socket cannot be made.
    #[error("cannot make the session's socket {path}: {error}; set XDG_RUNTIME_DIR to a directory of your own")]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A thread cannot be made.
    #[error("cannot start a thread: {0}; is the limit of processes (ulimit -u) reached?")]
    Thread(std::io::Error),
    /// Something else that the system refused.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
}

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
    /// Packets that were not a producer's honest work, and are not in the trace.
    pub packets_refused: u64,
    /// The first stream in whose ring a producer wrote what cannot be, and what that is. Its pages were found without the ring.
    pub ring_lie: Option<String>,
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
        if let Some(lie) = &self.ring_lie {
            write!(f, "; a producer has scribbled over the ring of {lie}")?;
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

/// What was lost of which class, the most first. The counts are a program's word: one of a class that there is not is nobody's.
pub(crate) fn name_losses(counts: &[u64], classes: &Classes) -> Vec<(String, u64)> {
    let mut named: Vec<(String, u64)> = counts
        .iter()
        .enumerate()
        .filter(|&(_, &count)| count > 0)
        .map(|(id, &count)| {
            let class = if id + 1 < LOST_CLASS_COUNT { classes.get(STREAM_EVENTS, id as u16) } else { None };
            (class.map_or_else(|| "(other classes)".into(), |class| class.full_name.clone()), count)
        })
        .collect();
    named.sort_by(|(name_a, a), (name_b, b)| b.cmp(a).then_with(|| name_a.cmp(name_b)));
    named
}

/// Why a session of attached programs is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The user wants it.
    Interrupted,
    /// A tool has asked for it.
    StopRequested,
    /// Every process is dead.
    Deserted,
}

/// Memory, threads and files of a session that is open.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
    server: Server,
    drainer: Option<JoinHandle<Drained>>,
}

/// What the session's threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) memory: Memory,
    pub(crate) clock: Clock,
    pub(crate) trace: Trace,
    /// What a proper end removes.
    pub(crate) left: LeftBehind,
    pub(crate) stop: AtomicBool,
    /// Held by whoever takes a snapshot, or moves pages.
    pub(crate) snapshots: Mutex<()>,
    pub(crate) budget: Budget,
}

impl Shared {
    /// Notes what processes call themselves now, by the session's numbers.
    pub(crate) fn tell_names(&self, renamed: Vec<(u16, String)>) {
        for (process, name) in renamed {
            // Without the record the process has its former name.
            let _ = self.trace.state(&self.clock, &[StateRecord::ProcessName { process: process.into(), name: &name }]);
        }
    }
}

impl Session {
    /// Makes the directory, the memory and the socket, and starts to serve and to drain.
    ///
    /// # Errors
    /// See [`SessionError`]; nothing is left behind but an empty directory.
    pub fn create(options: &Options) -> Result<Session, SessionError> {
        let (geometry, page_limit) = geometry(options)?;
        let clock = Clock::new();
        let uuid = new_uuid()?;
        let trace = Trace::create(options, &clock, uuid, geometry.page_size_bytes)?;
        Session::open(options, (geometry, page_limit), clock, trace).inspect_err(|_| Trace::remove(&options.dir))
    }

    fn open(
        options: &Options,
        (geometry, page_limit): (Geometry, u32),
        clock: Clock,
        trace: Trace,
    ) -> Result<Session, SessionError> {
        let uuid = trace.uuid();
        let buffers = options.buffers.as_deref().map(buffers_file).transpose()?;
        let pool = match &buffers {
            Some(path) => {
                let promised_bytes = geometry.pages_offset() + page_limit as usize * geometry.page_size_bytes as usize;
                Pool::on_file_system(path, geometry.size_bytes(), promised_bytes)
                    .map_err(|error| SessionError::Buffers { path: path.clone(), error })?
            }
            None => Pool::new("dormouse-session", geometry.size_bytes(), MemoryOptions::new().prefault(false))?,
        };
        let left = LeftBehind::new(buffers);
        let budget = Budget::new(&pool, geometry, page_limit, &options.cpus)?;
        let setup = Setup {
            mode: if options.mode == Mode::Overwrite { MODE_OVERWRITE } else { MODE_DISCARD },
            clock: clock.source,
            uuid,
            kind: options.context.record_kind(),
            page_limit,
            reserved_for: &options.cpus.online,
            reserve_each: reserve_each(page_limit, options.cpus.online.len()),
        };
        // SAFETY: this process's alone until the server hands it out, mapped as long as the pool, which `Shared` keeps together
        // with the view; the geometry is valid, and its pages and streams are what the setup goes by.
        let memory = unsafe { Memory::initialise(pool.base(), &geometry, &setup) };
        budget.tell(&memory);
        let shared = Arc::new(Shared {
            pool,
            memory,
            clock,
            trace,
            left,
            stop: AtomicBool::new(false),
            snapshots: Mutex::new(()),
            budget,
        });
        let server = Server::start(options, Arc::clone(&shared))?;
        // Nobody joins before the session's path is known.
        shared.left.tell(shared.trace.dir(), uuid, server.path())?;
        let drainer = {
            let shared = Arc::clone(&shared);
            let processes = server.processes();
            let run = move || drain::run(&shared, &processes);
            std::thread::Builder::new().name("dormouse-drain".into()).spawn(run).map_err(SessionError::Thread)?
        };
        Ok(Session { shared, server, drainer: Some(drainer) })
    }

    /// Where programs join: the value of `DORMOUSE_SESSION`.
    pub fn socket(&self) -> &Path {
        self.server.path()
    }

    /// How many processes have joined so far.
    pub fn process_count(&self) -> u64 {
        self.server.processes().joined()
    }

    /// The names, `provider:name`, of the classes that programs have announced so far, sorted.
    pub fn class_names(&self) -> Vec<String> {
        let classes = self.shared.trace.classes();
        classes.events().map(|class| class.full_name.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Whether every process that ever joined is dead.
    pub fn is_deserted(&self) -> bool {
        self.server.processes().are_all_dead()
    }

    /// Whether a tool has asked the session to end.
    pub fn is_stop_requested(&self) -> bool {
        self.server.is_stop_requested()
    }

    /// Has a program that runs join, and arm the session's classes. Returns how many are armed.
    ///
    /// # Errors
    /// When the program cannot be reached or refuses.
    pub fn attach(&self, program: &Program) -> Result<u32, ProgramError> {
        use dormouse_abi::wire::Message;
        let session = self.socket().to_string_lossy().into_owned();
        let mut total = 0;
        for answer in program.ask(&Message::Attach { session })? {
            match answer {
                Message::Changed { armed, .. } => total += armed,
                Message::Error { text } => return Err(ProgramError::Refused { pid: program.pid, text }),
                _ => return Err(ProgramError::Refused { pid: program.pid, text: "it answered something else".into() }),
            }
        }
        Ok(total)
    }

    /// Waits until `is_over`, the session is deserted, or a tool asks for its end.
    pub fn wait(&self, is_over: impl Fn() -> bool) -> End {
        loop {
            if is_over() {
                return End::Interrupted;
            }
            if self.is_stop_requested() {
                return End::StopRequested;
            }
            if self.is_deserted() {
                return End::Deserted;
            }
            // A signal, a socket and the deaths of processes: nothing but looking tells of all three.
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Ends a session whose command cannot run, and takes its trace away: nothing is left behind but an empty directory.
    pub fn abandon(self) {
        let shared = Arc::clone(&self.shared);
        self.finish();
        Trace::remove(shared.trace.dir());
    }

    /// Ends the session: nobody joins any more, what is committed is written, the trace is complete.
    pub fn finish(mut self) -> Summary {
        self.server.close();
        self.shared.tell_names(self.server.processes().renamed(usize::MAX));
        self.server.processes().detach_all();
        // (P') pairs with (P): a producer that sees it leaves.
        self.shared.memory.header().stopped.0.store(1, Ordering::SeqCst);
        // (R') pairs with (R): whoever sees it drains what was committed before.
        self.shared.stop.store(true, Ordering::SeqCst);
        drain::wake(&self.shared.memory);
        let drained = self.drainer.take().and_then(|drainer| drainer.join().ok()).unwrap_or_else(|| {
            let write_error = Some("the drain thread has failed; the trace ends where it did".into());
            Drained { written: Tally { write_error, ..Tally::default() }, ..Drained::default() }
        });
        let written = drained.written;
        let mut summary = Summary {
            events: written.events,
            lost: drained.lost,
            lost_by_class: name_losses(&drained.lost_by_class, &self.shared.trace.classes()),
            lost_on_disk: written.lost_on_disk,
            packets_refused: written.packets_refused,
            ring_lie: drained.lie.map(|(stream, error)| format!("stream {stream}: {error}")),
            processes: self.server.processes().joined(),
            bytes: written.bytes,
            snapshots_refused: self.server.snapshots_refused(),
            classes_refused: self.shared.trace.refusals(),
            write_error: written.write_error,
        };
        if let Err(error) = self.shared.trace.finish(
            &self.shared.clock,
            (summary.lost_on_disk, drained.lost_unstated),
            &summary.lost_by_class,
            summary.packets_refused,
            drained.totals,
        ) {
            summary.write_error.get_or_insert(error.to_string());
        }
        self.shared.left.remove();
        self.server.answer_stop(&summary);
        summary
    }
}

fn new_uuid() -> Result<[u8; 16], SessionError> {
    let mut uuid = [0u8; 16];
    rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| SessionError::System { what: "random numbers", error: error.into() })?;
    // RFC 9562, version 4.
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    Ok(uuid)
}

/// The processors that a session has streams for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpus {
    /// How many there may ever be.
    pub possible_count: u32,
    /// Those whose streams have memory from the beginning, and pages of their own.
    pub online: Vec<u32>,
}

impl Cpus {
    /// This machine's.
    pub fn of_machine() -> Cpus {
        let read = |name: &str| {
            let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}")).unwrap_or_default();
            parse_cpus(&text)
        };
        let some = || (0..std::thread::available_parallelism().map_or(1, |count| count.get() as u32)).collect();
        let online = Some(read("online")).filter(|cpus| !cpus.is_empty()).unwrap_or_else(some);
        let last = read("possible").into_iter().chain(online.iter().copied()).max().unwrap_or(0);
        Cpus { possible_count: last + 1, online }
    }

    /// As if there were so many.
    pub fn pretended(possible_count: u32, online_count: u32) -> Cpus {
        Cpus { possible_count, online: (0..online_count.min(possible_count)).collect() }
    }
}

/// Reads a list such as `0-3,8`, which Linux writes. Nonsense is nothing.
fn parse_cpus(text: &str) -> Vec<u32> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().take(STREAM_COUNT_MAX as usize).collect()
}

/// Pages that an online processor has for itself, if all of them together are not more than an eighth of what there is.
fn reserve_each(page_limit: u32, online_count: usize) -> u32 {
    (page_limit as usize / 8 / online_count.max(1)).min(RESERVE_EACH_MAX) as u32
}

/// One that is written to, and one that the consumer has.
const RESERVE_EACH_MAX: usize = 2;

/// On machines with more streams the rings, which have room for as many pages as there may ever be, cost more than they are worth.
const GROWING_STREAM_COUNT_MAX: u32 = 64;

/// Room for what the budget may grow to, and how many pages the budget is at first: of 64 KiB, smaller where they would be fewer than 64, or
/// fewer than four for each processor that is online.
fn geometry(options: &Options) -> Result<(Geometry, u32), SessionError> {
    let (budget, cpus) = (options.budget_bytes, &options.cpus);
    if budget < BUDGET_BYTES_MIN {
        return Err(SessionError::BudgetTooSmall(budget));
    }
    let cpu_count = cpus.possible_count.min(STREAM_COUNT_MAX - CLAIMED_COUNT_MAX);
    let stream_count = cpu_count + cpu_count.clamp(16, CLAIMED_COUNT_MAX);
    let grown = if stream_count <= GROWING_STREAM_COUNT_MAX {
        budget.saturating_mul(4).min(BUDGET_BYTES_MAX.max(budget))
    } else {
        budget
    };
    let max = options.budget_max_bytes.unwrap_or(grown);
    if budget > max {
        return Err(SessionError::BudgetMax { budget, max });
    }
    let page_count_min = 64.max(4 * cpus.online.len() as u64);
    let mut page_size_bytes = (64u64 << 10).min((budget / page_count_min + 1).next_power_of_two() / 2).max(4096);
    while max / page_size_bytes > PAGE_COUNT_MAX as u64 && page_size_bytes < 2 << 20 {
        page_size_bytes *= 2;
    }
    let page_count = |bytes: u64| (bytes / page_size_bytes).min(u32::MAX as u64) as u32;
    let geometry =
        Geometry { page_size_bytes: page_size_bytes as u32, page_count: page_count(max), cpu_count, stream_count };
    if geometry.is_valid() { Ok((geometry, page_count(budget))) } else { Err(SessionError::BudgetTooLarge(max)) }
}

/// Streams of writers without rseq, at most.
const CLAIMED_COUNT_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use dormouse_abi::wire::ClassDecl;

    use super::*;

    #[test]
    fn a_summary_names_the_classes_that_lost_most() {
        let mut classes = Classes::new();
        let decl = |name: &str| ClassDecl { provider: "shop".into(), name: name.into(), fields: vec![] };
        assert!(classes.insert(0, decl("order")) && classes.insert(1, decl("item")));
        let mut counts = vec![0; LOST_CLASS_COUNT];
        let mut summary = |losses: &[(usize, u64)]| {
            losses.iter().for_each(|&(index, count)| counts[index] = count);
            Summary { lost_by_class: name_losses(&counts, &classes), ..Summary::default() }.to_string()
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

    fn of(budget_bytes: u64, cpus: Cpus) -> Options {
        Options { budget_bytes, cpus, ..Options::new(PathBuf::new()) }
    }

    #[test]
    fn every_budget_has_a_geometry_or_an_error() {
        for budget in [64u64 << 10, 100_000, 1 << 20, 16 << 20, (16 << 20) + 1, 1 << 30, 32 << 30] {
            for (possible, online) in [(1, 1), (2, 2), (256, 4), (256, 256), (1_000, 2), (20_000, 20_000)] {
                let (geometry, page_limit) = geometry(&of(budget, Cpus::pretended(possible, online))).unwrap();
                assert!((16..=geometry.page_count).contains(&page_limit), "{budget}: {geometry:?}");
                assert!(page_limit as u64 * geometry.page_size_bytes as u64 <= budget);
                let reserved = reserve_each(page_limit, online as usize) * online;
                assert!(reserved <= page_limit / 8);
            }
        }
        let two = Cpus::pretended(2, 2);
        assert!(geometry(&of(1, two.clone())).is_err());
        assert!(geometry(&of(1 << 40, two.clone())).is_err());
        let options = Options { budget_max_bytes: Some(1 << 20), ..of(2 << 20, two) };
        assert!(matches!(geometry(&options), Err(SessionError::BudgetMax { .. })));
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse_cpus("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_cpus("5"), [5]);
        assert_eq!(parse_cpus("").len(), 0);
        assert_eq!(parse_cpus("0-4294967295").len(), STREAM_COUNT_MAX as usize);
    }
}

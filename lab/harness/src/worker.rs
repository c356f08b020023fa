//! The threads that run the loops.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::backed::{self, faults};
use crate::counters::Counters;
use crate::walk::{Walk, Walker};
use crate::{Case, Run, Timing, clock};

/// Scheduling policy of the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// SCHED_OTHER, as for any program.
    Other,
    /// SCHED_FIFO at the lowest real-time priority, which runs before every ordinary program.
    Fifo,
}

impl Policy {
    /// Returns the name of the policy.
    pub fn as_str(self) -> &'static str {
        match self {
            Policy::Other => "other",
            Policy::Fifo => "fifo",
        }
    }
}

impl std::str::FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        match text {
            "other" => Ok(Policy::Other),
            "fifo" => Ok(Policy::Fifo),
            _ => Err(format!("no scheduling policy `{text}`; there are other and fifo")),
        }
    }
}

/// Place of a thread among those that run a case at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Index of the thread, from 0, in the order of the CPUs.
    pub index: usize,
    /// Number of threads.
    pub count: usize,
}

std::thread_local! {
    static SEAT: Cell<Seat> = const { Cell::new(Seat { index: 0, count: 1 }) };
}

/// Returns the calling thread's place among those that run a case at once, for loops in which each thread has work of
/// its own.
pub fn seat() -> Seat {
    SEAT.get()
}

/// A worker's order.
struct Job {
    case: Case,
    run: Run,
    first: u64,
    seat: Seat,
    /// Number of workers that are not ready yet.
    waiting: Arc<AtomicUsize>,
    /// Set for a case that runs beside others: flag that tells it to end.
    until: Option<Arc<AtomicBool>>,
}

/// A worker's result.
struct Done {
    cycles: f64,
    iterations: u64,
    counters: BTreeMap<String, f64>,
    faults: u64,
}

/// A worker's report when it starts.
struct Hello {
    processor: Option<u32>,
    policy: String,
    refused: Vec<(String, String)>,
}

struct Worker {
    jobs: Sender<Job>,
    done: Receiver<Result<Done, String>>,
    hello: Hello,
}

/// All workers of an engine.
pub(crate) struct Workers {
    workers: Vec<Worker>,
    next: u64,
}

impl Workers {
    pub(crate) fn start(processors: &[u32], policy: Policy) -> Workers {
        Workers { workers: processors.iter().map(|processor| Worker::start(*processor, policy)).collect(), next: 0 }
    }

    pub(crate) fn processors(&self) -> Vec<Option<u32>> {
        self.workers.iter().map(|worker| worker.hello.processor).collect()
    }

    pub(crate) fn policy(&self) -> String {
        self.workers.first().map(|worker| worker.hello.policy.clone()).unwrap_or_default()
    }

    pub(crate) fn counters_refused(&self) -> Vec<(String, String)> {
        self.workers.first().map(|worker| worker.hello.refused.clone()).unwrap_or_default()
    }

    /// Runs the case on the first `run.threads` workers at once, and `beside` on the next one meanwhile.
    pub(crate) fn run(&mut self, case: &Case, beside: Option<&Case>, run: &Run) -> Result<Timing, String> {
        let wanted = run.threads + usize::from(beside.is_some());
        if run.threads == 0 || wanted > self.workers.len() {
            return Err(format!("{wanted} threads are asked for, processors are given for {}", self.workers.len()));
        }
        if run.iterations == 0 {
            return Err("no iterations".into());
        }
        let (chosen, others) = self.workers.split_at(run.threads);
        let waiting = Arc::new(AtomicUsize::new(wanted));
        let job = |case: &Case, first, seat, until| Job {
            case: *case,
            run: run.clone(),
            first,
            seat,
            waiting: waiting.clone(),
            until,
        };
        let is_over = Arc::new(AtomicBool::new(false));
        if let Some((case, worker)) = beside.zip(others.first()) {
            worker
                .jobs
                .send(job(case, self.next, Seat { index: 0, count: 1 }, Some(is_over.clone())))
                .map_err(|_| "a worker has ended")?;
        }
        for (index, worker) in chosen.iter().enumerate() {
            let seat = Seat { index, count: run.threads };
            worker.jobs.send(job(case, self.next, seat, None)).map_err(|_| "a worker has ended")?;
            // Threads get disjoint numbers, however many the warm-up takes.
            self.next = self.next.wrapping_add(run.iterations * 2);
        }
        let all: Vec<_> = chosen.iter().map(|worker| worker.done.recv()).collect();
        // The flag publishes nothing else.
        is_over.store(true, Ordering::Relaxed);
        if let Some(worker) = others.first().filter(|_| beside.is_some()) {
            worker.done.recv().map_err(|_| "a worker has ended")??;
        }
        let mut timing = Timing { untold: backed::verdict()?, ..Timing::default() };
        let threads = run.threads as f64;
        for done in all {
            let done = done.map_err(|_| "a worker has ended")??;
            timing.ns += done.cycles / clock::cycles_per_ns() / threads;
            timing.iterations += done.iterations;
            timing.faults += done.faults;
            timing.events += done.iterations * case.events_per_iteration;
            let counters = done.counters.into_iter().map(|(name, count)| (name, count / run.iterations as f64));
            timing.counters.push(counters.collect());
        }
        Ok(timing)
    }
}

impl Worker {
    fn start(processor: u32, policy: Policy) -> Worker {
        let (jobs, orders) = channel::<Job>();
        let (results, done) = channel();
        let (hellos, hello) = channel();
        std::thread::spawn(move || {
            let mut counters = Counters::open();
            let refused = counters.refused().iter().map(|(name, why)| (name.to_string(), why.clone())).collect();
            let _ = hellos.send(Hello { processor: pin(processor), policy: schedule(policy), refused });
            let mut walker = Walker::default();
            while let Ok(job) = orders.recv() {
                if results.send(work(&job, &mut walker, &mut counters)).is_err() {
                    break;
                }
            }
        });
        let ended = || Hello { processor: None, policy: "the worker has ended".into(), refused: Vec::new() };
        Worker { jobs, done, hello: hello.recv().unwrap_or_else(|_| ended()) }
    }
}

fn pin(processor: u32) -> Option<u32> {
    // A number above the set's capacity is a CPU that does not exist.
    if processor as usize >= CpuSet::MAX_CPU {
        return None;
    }
    let mut set = CpuSet::new();
    set.set(processor as usize);
    sched_setaffinity(None, &set).ok().map(|()| processor)
}

/// Gives the calling thread a scheduling policy and priority.
///
/// # Errors
/// The system's error.
pub fn set_scheduler(policy: libc::c_int, priority: libc::c_int) -> std::io::Result<()> {
    // SAFETY: plain numbers, for which zeroes are valid; musl has more members than glibc.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = priority;
    // SAFETY: sched_setscheduler(2) changes the calling thread only, and reads `parameters` only.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Sets the calling thread's policy. Returns the policy that is in force then.
fn schedule(policy: Policy) -> String {
    if policy == Policy::Other {
        return policy.as_str().into();
    }
    match set_scheduler(libc::SCHED_FIFO, 1) {
        Ok(()) => policy.as_str().into(),
        Err(error) => format!("other (fifo: {error})"),
    }
}

/// A warm-up iteration is run for each this many timed ones.
const WARM_SHARE: u64 = 8;

fn work(job: &Job, walker: &mut Walker, counters: &mut Counters) -> Result<Done, String> {
    let Job { case, run, first, seat, waiting, until } = job;
    SEAT.set(*seat);
    if let Some(until) = until {
        return Ok(beside(case, *first, waiting, until));
    }
    let prepared = walker.prepare(run.walk);
    let is_hot = run.walk == Walk::None;
    // Another engine has just used the CPU, so caches and predictors must be warmed up.
    let warm = if is_hot { (run.iterations / WARM_SHARE).max(1) } else { 0 };
    if warm > 0 {
        (case.run)(warm, *first);
    }
    // All threads start when the last one is ready. The counter publishes nothing else.
    waiting.fetch_sub(1, Ordering::Relaxed);
    while waiting.load(Ordering::Relaxed) > 0 {
        std::hint::spin_loop();
    }
    prepared?;
    let faults_before = faults();
    counters.start();
    let cycles = if is_hot {
        let begun = clock::begin();
        (case.run)(run.iterations, first + warm);
        (clock::end() - begun) as f64 / run.iterations as f64
    } else {
        cold(case, run, *first, walker)
    };
    let counters = counters.stop();
    Ok(Done { cycles, iterations: run.iterations + warm, counters, faults: faults() - faults_before })
}

/// Number of iterations of a case that runs beside others, between two checks of the flag.
const BESIDE_ITERATIONS: u64 = 64;

fn beside(case: &Case, first: u64, waiting: &AtomicUsize, until: &AtomicBool) -> Done {
    (case.run)(BESIDE_ITERATIONS, first);
    waiting.fetch_sub(1, Ordering::Relaxed);
    while !until.load(Ordering::Relaxed) {
        (case.run)(BESIDE_ITERATIONS, first);
    }
    Done { cycles: 0.0, iterations: 0, counters: BTreeMap::new(), faults: 0 }
}

/// Maximum size of a loop's code, in bytes.
const CODE_BYTES: usize = 2048;
/// Maximum time to fetch that code from memory, in nanoseconds.
const FETCH_NS: f64 = 1_000.0;

/// Brings a loop's code back into the caches, as far as it is contiguous. A walk evicts code as well, and two loops
/// would differ only because the linker has placed their code differently.
fn fetch_code(run: crate::Loop) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..CODE_BYTES).step_by(64) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = (run as *const i8).wrapping_add(offset);
        // SAFETY: a prefetch is a hint; for an address that is not mapped it is ignored.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    }
    let begun = clock::begin();
    while clock::begin() - begun < (FETCH_NS * clock::cycles_per_ns()) as u64 {
        std::hint::spin_loop();
    }
}

/// Times each iteration alone, after a walk. Returns the mean of the middle half, in cycles: interrupted iterations do
/// not count, and the counter's coarse steps average out, which they would not in a median.
fn cold(case: &Case, run: &Run, first: u64, walker: &mut Walker) -> f64 {
    // Written, so that its pages cause no faults between the iterations.
    let mut cycles = vec![u64::MAX; run.iterations as usize];
    for (number, cycles) in (first..).zip(&mut cycles) {
        walker.walk(run.walk);
        fetch_code(case.run);
        let begun = clock::begin();
        (case.run)(1, number);
        *cycles = clock::end() - begun;
    }
    cycles.sort_unstable();
    let quarter = cycles.len() / 4;
    let middle = &cycles[quarter..cycles.len() - quarter];
    middle.iter().sum::<u64>() as f64 / middle.len() as f64
}

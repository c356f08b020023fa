//! Threads that use a plan at the moment, counted so that a plan that was replaced can be freed.
//!
//! ```text
//!   reader   begun[phase] += 1 ── finds the plan, uses it ── ended[phase] += 1
//!
//!   writer   replaces the plan
//!            twice: other phase; until barrier, sum of ended, barrier, sum of begun give equal sums
//!            frees the plan
//! ```
//! This is how the kernel's sleepable RCU finds out. A reader that begins after the barrier finds the new plan, so the
//! writer waits only for readers that began before. In the same way, the session's memory is unmapped only when no
//! reader that can have found the session still counts an event there. Each CPU has counters of its own, which readers
//! change in restartable sequences without any barrier: the writer's barrier is membarrier(2). Threads without
//! restartable sequences, and all threads if the kernel has no such barrier, share the last counters.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

use dormouse_abi::rule::value::Value;
use dormouse_abi::rule::{mixed, random};
use dormouse_abi::session::Line;
use dormouse_percpu::Rseq;

use crate::clock::{coarse_ns, monotonic_ns};
use crate::known_texts::KNOWN;
use crate::membarrier;
use crate::rule::{Circumstances, NamedTag};

/// Counters of one CPU: begun and ended uses, by phase.
#[derive(Debug, Default)]
struct Counters {
    begun: [AtomicU64; 2],
    ended: [AtomicU64; 2],
    /// Place in the sequence of the CPU's random numbers.
    random: AtomicU64,
}

impl Counters {
    #[inline(always)]
    fn counter(&self, count: Count, phase: usize) -> &AtomicU64 {
        match count {
            Count::Begun => &self.begun[phase],
            Count::Ended => &self.ended[phase],
        }
    }
}

/// Counters of each CPU, and of threads without restartable sequences. Never freed.
#[derive(Debug)]
struct AllCounters(Vec<Line<Counters>>);

impl AllCounters {
    /// Begins a sequence of random numbers for each CPU that no other process has.
    fn seed(&self) {
        let seed = mixed(monotonic_ns() ^ u64::from(std::process::id()) << 32);
        for (index, line) in self.0.iter().enumerate() {
            line.0.random.store(mixed(seed ^ index as u64), Ordering::Relaxed);
        }
    }
}

/// Null until there is a plan.
static COUNTERS: AtomicPtr<AllCounters> = AtomicPtr::new(core::ptr::null_mut());
/// Number of times that a writer has looked; its lowest bit is the phase in which readers begin.
static PHASE: AtomicU32 = AtomicU32::new(0);

fn counters() -> Option<&'static AllCounters> {
    // (Q) Acquire pairs with (Q').
    // SAFETY: null, or never freed.
    unsafe { COUNTERS.load(Ordering::Acquire).as_ref() }
}

/// Makes the counters, before the first plan is found. Called under the tracer's lock.
pub(crate) fn prepare(cpu_count: u32) {
    if counters().is_none() {
        let all = AllCounters((0..=cpu_count).map(|_| Line::default()).collect());
        all.seed();
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        RANDOM.store((&raw const all.0[0].0.random).cast_mut(), Ordering::Release);
        // (Q') Release pairs with (Q).
        COUNTERS.store(Box::into_raw(Box::new(all)), Ordering::Release);
    }
}

/// The first CPU's place in a sequence of random numbers, which has those of other CPUs at distances of a line; null until
/// there is a plan.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) static RANDOM: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// Whether so many CPUs have random numbers.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn has_random(cpu_count: u32) -> bool {
    counters().is_some_and(|all| (cpu_count as usize) < all.0.len())
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const _: () = assert!(LINE_SHIFT == dormouse_relay::arch::RANDOM_STRIDE_SHIFT);

/// An event that readers count: a use of a plan begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    Begun,
    Ended,
}

/// The steps of readers and writers, which the model of this module replaces.
trait Words {
    /// Returns the phase in which readers begin.
    fn phase(&self) -> usize;
    /// Makes readers begin in the other phase. Returns the former one.
    fn change_phase(&self) -> usize;
    /// Counts.
    fn add(&self, count: Count, phase: usize);
    /// Returns the sum of all CPUs.
    fn sum(&self, count: Count, phase: usize) -> u64;
    /// Makes every running thread execute a memory barrier. Returns false if that is impossible.
    fn barrier(&self) -> bool;
}

/// Begins a use. Returns its phase.
#[inline(always)]
fn begin(words: &impl Words) -> usize {
    let phase = words.phase();
    words.add(Count::Begun, phase);
    phase
}

/// Waits until all uses that began before the call have ended, at most `looks` times for each phase.
fn wait_for(words: &impl Words, looks: u32) -> bool {
    // Two phases: a reader may have read the phase before last and count only now.
    (0..2).all(|_| {
        let phase = words.change_phase();
        let is_unused = || {
            // Ends before begins: if the sums are equal, no use was in progress in between.
            let ended = words.barrier().then(|| words.sum(Count::Ended, phase));
            ended.is_some_and(|ended| words.barrier() && words.sum(Count::Begun, phase) == ended)
        };
        (0..looks).any(|_| {
            let found = is_unused();
            if !found {
                std::thread::yield_now();
            }
            found
        })
    })
}

/// The counters, for a thread that may use restartable sequences or not.
struct OfThread(&'static AllCounters, Option<Rseq>);

/// Binary logarithm of the distance between the counters of two CPUs, in bytes.
const LINE_SHIFT: u32 = size_of::<Line<Counters>>().trailing_zeros();

/// Maximum number of attempts to count in a restartable sequence.
const ATTEMPTS_MAX: u32 = 4;

/// Whether one of a few attempts succeeds.
#[inline(always)]
pub(crate) fn any_attempt(mut attempt: impl FnMut() -> bool) -> bool {
    for _ in 0..ATTEMPTS_MAX {
        if attempt() {
            return true;
        }
    }
    false
}

impl Words for OfThread {
    #[inline(always)]
    fn phase(&self) -> usize {
        (PHASE.load(Ordering::Relaxed) & 1) as usize
    }

    fn change_phase(&self) -> usize {
        // Relaxed: a barrier follows.
        (PHASE.fetch_add(1, Ordering::Relaxed) & 1) as usize
    }

    #[inline(always)]
    fn add(&self, count: Count, phase: usize) {
        let Some((last, cpus)) = self.0.0.split_last() else { return };
        // (G) pairs with (G'): the processor may exchange a count with what is before and after it, but nothing passes
        // the barrier that the writer makes every thread execute.
        compiler_fence(Ordering::SeqCst);
        let is_counted = self.1.is_some_and(|rseq| {
            let Some(first) = cpus.first() else { return false };
            let word = first.0.counter(count, phase).as_ptr();
            // SAFETY: the counters of all CPUs are aligned, at distances of a line, and never freed; only sections on its
            // CPU write each.
            let add = || unsafe { rseq.add_by_stride(word, LINE_SHIFT, cpus.len() as u32, 1) };
            any_attempt(add)
        });
        if !is_counted {
            // (G) SeqCst pairs with (G'), for threads without restartable sequences.
            last.0.counter(count, phase).fetch_add(1, Ordering::SeqCst);
        }
        compiler_fence(Ordering::SeqCst);
    }

    fn sum(&self, count: Count, phase: usize) -> u64 {
        self.0.0.iter().map(|line| line.0.counter(count, phase).load(Ordering::SeqCst)).fold(0, u64::wrapping_add)
    }

    fn barrier(&self) -> bool {
        // (G') pairs with (G).
        fence(Ordering::SeqCst);
        // Without the kernel's barrier no thread counts in restartable sequences.
        !membarrier::is_ready() || membarrier::restart_sections()
    }
}

/// A use of a plan by the calling thread.
pub(crate) struct Using {
    words: OfThread,
    phase: usize,
}

impl Using {
    /// Begins a use: plans that are found from now on stay until it ends, and so does the memory of the session that is
    /// found from now on. `None` if there has been no plan. `rseq`: restartable sequences, if the calling thread may use
    /// them. Wait-free; async-signal-safe.
    #[inline(always)]
    pub(crate) fn begin(rseq: Option<Rseq>) -> Option<Using> {
        let words = OfThread(counters()?, rseq.filter(|_| membarrier::is_ready()));
        let phase = begin(&words);
        Some(Using { words, phase })
    }
}

impl Circumstances for Using {
    #[inline(always)]
    fn random(&self) -> u64 {
        let OfThread(all, rseq) = &self.words;
        let cpu = rseq.and_then(|rseq| rseq.cpu_id()).map_or(usize::MAX, |cpu| cpu as usize);
        let Some((last, cpus)) = all.0.split_last() else { return 0 };
        let place = &cpus.get(cpu).unwrap_or(last).0.random;
        // Two threads that meet here draw the same number, which does no harm.
        let (next, number) = random(place.load(Ordering::Relaxed));
        place.store(next, Ordering::Relaxed);
        number
    }

    #[inline(always)]
    fn now_ns(&self) -> u64 {
        coarse_ns()
    }

    fn tag(&self, tag: &NamedTag) -> Value<'_> {
        Value::Enumeration(tag.number().into(), &KNOWN)
    }
}

impl Drop for Using {
    #[inline(always)]
    fn drop(&mut self) {
        self.words.add(Count::Ended, self.phase);
    }
}

/// Waits until no thread uses a plan that was replaced before the call, or counts an event in a session that could no
/// longer be found before it. Returns false if one still does after [`LOOKS_MAX`] looks: it was stopped, or the machine
/// is overloaded. Called under the tracer's lock.
pub(crate) fn wait() -> bool {
    counters().is_none_or(|counters| wait_for(&OfThread(counters, None), LOOKS_MAX))
}

/// Maximum number of looks for the end of uses, each a system call and the others' turn.
const LOOKS_MAX: u32 = 1_000;

/// Resets the counts in a forked child, which has no other thread.
pub(crate) fn after_fork() {
    // Siblings must not draw the numbers of each other.
    counters().into_iter().for_each(AllCounters::seed);
    let all = counters().into_iter().flat_map(|counters| &counters.0);
    for counter in all.flat_map(|line| line.0.begun.iter().chain(&line.0.ended)) {
        counter.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[cfg(target_pointer_width = "64")]
mod model;

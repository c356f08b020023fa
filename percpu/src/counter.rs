use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::area::{Area, PerCpu};
use crate::rseq::Rseq;

/// A word that only critical sections on its CPU write, and anybody reads.
///
/// It has no atomic addition: one that fell between a section's load and store would be lost.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct RseqU64(UnsafeCell<u64>);

// SAFETY: it is written only by sections on its CPU (`add`'s contract), of which the kernel lets none overlap, with a
// single aligned 8-byte store, and read with an atomic load.
unsafe impl Sync for RseqU64 {}

impl RseqU64 {
    /// Adds `n`, wrapping, in one attempt on `cpu`. False: aborted, nothing added.
    ///
    /// Wait-free, async-signal-safe.
    ///
    /// # Safety
    /// This is `cpu`'s word: nobody adds to it naming another CPU.
    #[inline]
    #[must_use = "an aborted section has added nothing"]
    pub unsafe fn add(&self, rseq: Rseq, cpu: u32, n: u64) -> bool {
        // SAFETY: the cell is aligned and writable; its type lets nothing but this write it; the CPU is the caller's.
        unsafe { rseq.add(cpu, self.0.get(), n) }
    }

    /// What it holds.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn load(&self) -> u64 {
        // SAFETY: aligned, valid, and accessed by Rust code atomically only.
        let word = unsafe { AtomicU64::from_ptr(self.0.get()) };
        word.load(Relaxed)
    }
}

/// One CPU's part of a [`Counter`]: a word for those with rseq and one for those without, so that processes of both
/// kinds can share an area. Zeroes are a valid, empty slot.
#[repr(C)]
#[derive(Debug, Default)]
pub struct CounterSlot {
    by_rseq: RseqU64,
    by_atomics: AtomicU64,
}

/// Attempts under rseq before an addition goes to the atomic word. Aborts are rare, and a second one right after the
/// first rarer; the bound makes additions wait-free.
const ATTEMPTS_MAX: u32 = 8;

/// A counter with a slot on each CPU: cheap to add to, exact to sum.
#[derive(Debug, Clone, Copy)]
pub struct Counter {
    area: Area,
    slot: PerCpu<CounterSlot>,
}

impl Counter {
    /// The counter whose slots are `slot` in `area`; `None` if the slots do not lie inside the strides or not aligned.
    pub fn new(area: Area, slot: PerCpu<CounterSlot>) -> Option<Counter> {
        for cpu in 0..area.count() {
            area.get(slot, cpu)?;
        }
        (area.count() > 0).then_some(Counter { area, slot })
    }

    /// Adds `n`. The ladder: rseq on the CPU's slot, at most 8 attempts → atomic addition on the CPU's slot.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn add(&self, rseq: Option<Rseq>, n: u64) {
        if let Some(rseq) = rseq {
            for _ in 0..ATTEMPTS_MAX {
                let cpu = rseq.cpu_id_start();
                let Some(slot) = self.area.get(self.slot, cpu) else { break };
                // SAFETY: `slot` is `cpu`'s: every counter of an area finds its slots by the same arithmetic.
                if unsafe { slot.by_rseq.add(rseq, cpu, n) } {
                    return;
                }
            }
        }
        self.add_by_atomics(rseq, n);
    }

    #[cold]
    fn add_by_atomics(&self, rseq: Option<Rseq>, n: u64) {
        let cpu = match rseq {
            Some(rseq) => rseq.cpu_id_start(),
            None => current_cpu(),
        };
        // Any slot is right, the CPU's own is near. A CPU that the area does not know shares one.
        if let Some(slot) = self.area.get(self.slot, cpu % self.area.count()) {
            slot.by_atomics.fetch_add(n, Relaxed);
        }
    }

    /// The sum of all additions, modulo 2^64: exact for those that happened before the call; of those that run
    /// meanwhile, each is in it or not.
    ///
    /// Wait-free, async-signal-safe.
    pub fn sum(&self) -> u64 {
        (0..self.area.count())
            .filter_map(|cpu| self.area.get(self.slot, cpu))
            .fold(0, |sum, slot| sum.wrapping_add(slot.by_rseq.load()).wrapping_add(slot.by_atomics.load(Relaxed)))
    }
}

/// The CPU that the thread was on a moment ago, by libc; 0 where libc cannot tell.
#[inline]
fn current_cpu() -> u32 {
    // SAFETY: no arguments; getcpu(2) writes nothing of ours. glibc and musl call the vDSO, which takes no lock.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).unwrap_or(0)
}

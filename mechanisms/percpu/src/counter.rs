//! Counters with a slot on each CPU, whose sum is also known approximately by one load: [`PerCpuCounter`].
//!
//! # How it folds
//! ```text
//!   slot of a CPU   by_rseq   running total, added to by sections, never taken back     ┐
//!                   epoch     how often it was folded                                  │ unfolded = by_rseq - folded[epoch & 1]
//!                   folded[2] how much of by_rseq is folded; the one that epoch names  ┘
//!                   by_atomics  running total of those without rseq, never taken back
//!                   unfolded    how much of by_atomics is not folded yet
//!   shared          approximate  what was folded                ◀─ one load reads it
//!                   big          additions of a threshold or more, which go here and into approximate at once
//! ```
//!
//! `sum` reads `by_rseq`, `by_atomics` and `big`. Nothing is ever subtracted from these to be added elsewhere. So a thread
//! that is killed anywhere leaves the sum exact: its addition is in it or not. Only the approximation can suffer from a kill.
//!
//! ```text
//!   add(n):                                             fold:
//!     n is as big as a threshold:                         section on cpu: if epoch == e
//!       big += n, approximate += n, done                    folded[(e + 1) & 1] = total       nobody looks there yet
//!     look: cpu, e = epoch, f = folded[e & 1], total        epoch = e + 1                     ◀─ commits: the claim
//!     |total + n - f| is as big: fold, look again         approximate += total - f            ◀─ the landing
//!     section on cpu: by_rseq += n
//! ```
//!
//! The thread that commits the epoch has the claim, and lands it; nobody else can claim the same amount. The look comes before the addition, on
//! the CPU whose section makes the addition: a thread that is moved in between is aborted and looks again. So no CPU is left
//! with more than it may hold because the thread that ought to fold is elsewhere. The guard is the epoch and not the folded value,
//! because a value may come back: then the claim would include additions that another thread has claimed.
//!
//! Threads without rseq add to `by_atomics` and to `unfolded`. The thread that brings the latter to a threshold takes it (`swap`)
//! and lands it.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering::Acquire, Ordering::Relaxed};

use dormouse_abi::txn::{Store, Txn};

use crate::area::{Area, PerCpu};
use crate::rseq::{Rseq, near};
use crate::txn::Commit;

/// A word that only critical sections on its CPU write, and anybody reads.
///
/// It has no atomic addition, because one between a section's load and store would be lost.
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
    /// This is `cpu`'s word: nobody adds to it with another CPU's number.
    #[inline]
    #[must_use = "an aborted section has added nothing"]
    pub unsafe fn add(&self, rseq: Rseq, cpu: u32, n: u64) -> bool {
        // SAFETY: the cell is aligned and writable; its type lets nothing but this write it; the CPU is the caller's.
        unsafe { rseq.add(cpu, self.0.get(), n) }
    }

    /// Its value.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn load(&self) -> u64 {
        // SAFETY: aligned, valid, and accessed by Rust code atomically only.
        let word = unsafe { AtomicU64::from_ptr(self.0.get()) };
        word.load(Relaxed)
    }

    #[inline]
    fn load_acquire(&self) -> u64 {
        // SAFETY: aligned and valid as a field of `self`, and accessed by Rust code atomically only.
        let word = unsafe { AtomicU64::from_ptr(self.0.get()) };
        // (A) pairs with the sections' final stores.
        word.load(Acquire)
    }
}

/// Attempts under rseq before an addition goes to the atomic word. Aborts are rare, and a second one right after the
/// first is rarer. The bound makes additions wait-free.
pub(crate) const ATTEMPTS_MAX: u32 = 8;

/// One CPU's part of a [`PerCpuCounter`]. Zeroes are a valid, empty slot.
#[repr(C)]
#[derive(Debug, Default)]
pub struct PerCpuCounterSlot {
    by_rseq: RseqU64,
    epoch: RseqU64,
    folded: [RseqU64; 2],
    by_atomics: AtomicU64,
    unfolded: AtomicI64,
}

/// The part of a [`PerCpuCounter`] that all CPUs share, on cache lines of its own. Zeroes are valid.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct PerCpuCounterShared {
    approximate: AtomicI64,
    big: AtomicI64,
}

/// What a thread saw of a slot before it adds.
#[derive(Debug, Clone, Copy)]
struct Look {
    cpu: u32,
    epoch: u64,
    folded: u64,
    total: u64,
}

/// The words of a counter, as the fold sees them: the real ones, or a model's.
trait Words {
    /// The contents of the CPU's slot, the epoch read before the rest; `None` if the CPU has no slot.
    fn look(&self) -> Option<Look>;
    /// One section on `look.cpu`: `by_rseq += n`. False: aborted, nothing added.
    fn add_by_section(&self, look: &Look, n: i64) -> bool;
    /// One section on `look.cpu`: if `epoch == look.epoch`, `folded[(epoch + 1) & 1] = look.total` and `epoch += 1`. Whether it was
    /// committed.
    fn claim(&self, look: &Look) -> bool;
    /// `by_atomics += n` in some slot, then `unfolded += n` there. Returns the slot and the new `unfolded`.
    fn add_by_atomics(&self, n: i64) -> (usize, i64);
    /// Takes what is unfolded in that slot.
    fn take(&self, slot: usize) -> i64;
    /// `approximate += n`.
    fn land(&self, n: i64);
    /// `big += n`.
    fn add_big(&self, n: i64);
}

fn reaches(n: i64, threshold: u64) -> bool {
    n.unsigned_abs() >= threshold
}

/// See the module's documentation for the pseudo-code.
#[inline]
fn add(words: &impl Words, has_rseq: bool, threshold: u64, n: i64) {
    if !reaches(n, threshold) && has_rseq {
        for _ in 0..ATTEMPTS_MAX {
            let Some(look) = words.look() else { break };
            let unfolded = look.total.wrapping_sub(look.folded).cast_signed();
            if reaches(unfolded.wrapping_add(n), threshold) {
                fold(words, &look);
            } else if words.add_by_section(&look, n) {
                return;
            }
        }
    }
    add_slowly(words, threshold, n);
}

#[cold]
fn fold(words: &impl Words, look: &Look) {
    if words.claim(look) {
        words.land(look.total.wrapping_sub(look.folded).cast_signed());
    }
}

#[cold]
fn add_slowly(words: &impl Words, threshold: u64, n: i64) {
    if reaches(n, threshold) {
        words.add_big(n);
        words.land(n);
        return;
    }
    let (slot, unfolded) = words.add_by_atomics(n);
    if reaches(unfolded, threshold) {
        words.land(words.take(slot));
    }
}

/// A signed counter with a slot on each CPU: cheap to add to, known approximately by one load, and exactly by a sum over the CPUs.
///
/// It lies in an [`Area`], so it may be private memory or shared by processes, some with rseq and some without. All
/// of them must use the same slots and the same shared words. They may use different thresholds: the largest counts.
///
/// Values wrap modulo 2^64, as [`i64::wrapping_add`] does.
///
/// # How far the approximation is off
/// Let `t` be the threshold, `p` the CPUs of the area (twice as many if some use rseq and some do not), and consider the threads
/// that are inside `add` at the same time, `a` at most.
/// * If none of them is interrupted there by another addition on the same CPU: less than `t` per CPU, so `p × (t - 1)`.
/// * A thread that is interrupted between its look and its section adds less than `t` to what others added meanwhile, and
///   other such threads do too: a slot holds `(a + 1) × (t - 1)` at most when somebody who was not interrupted folded it.
///   A fold that was interrupted after its look leaves the slot at most that much on either side of what it folded to, twice as much,
///   and interrupted threads can add `a × (t - 1)` again. So a slot holds, and a claim is, `b = (3a + 2) × (t - 1)` at most.
/// * A claim counts until it has landed: `a` of them at most. If its thread is killed before, it counts for ever.
/// * An addition of `t` or more is off by itself while it is between the two words, and for ever if its thread is killed
///   there.
///
/// Together [`PerCpuCounter::error_max`]: `(p + a + killed) × b`, plus the unfinished big ones. Everything wraps modulo 2^64, and
/// the bound is of differences modulo 2^64.
#[derive(Debug, Clone, Copy)]
pub struct PerCpuCounter {
    area: Area,
    slot: PerCpu<PerCpuCounterSlot>,
    shared: PerCpu<PerCpuCounterShared>,
    threshold: u64,
}

impl PerCpuCounter {
    /// The counter whose slots are `slot` in `area`, and whose shared words are what the stride of CPU 0 has at `shared`
    /// (there alone; what other strides have there is not used).
    ///
    /// `threshold` is in the counter's unit, from 1 to [`i64::MAX`]: what a CPU has counted for itself stays below it. `None` if it is
    /// not in that range, if the area has no stride, or if slots or shared words are not aligned or not inside the strides.
    pub fn new(
        area: Area,
        slot: PerCpu<PerCpuCounterSlot>,
        shared: PerCpu<PerCpuCounterShared>,
        threshold: u64,
    ) -> Option<PerCpuCounter> {
        area.get(shared, 0)?;
        for cpu in 0..area.count() {
            area.get(slot, cpu)?;
        }
        (1..=i64::MAX.cast_unsigned()).contains(&threshold).then_some(PerCpuCounter { area, slot, shared, threshold })
    }

    /// Adds `n`, wrapping. First by rseq on the CPU's slot, at most 8 attempts; then by atomics on the CPU's slot. An addition as big
    /// as the threshold goes to the shared words.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn add(&self, rseq: Option<Rseq>, n: i64) {
        add(&InArea { counter: self, rseq }, rseq.is_some(), self.threshold, n);
    }

    /// Approximately the sum of all additions, by one load. It is off by at most [`PerCpuCounter::error_max`].
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn approximate(&self) -> i64 {
        self.shared().map_or(0, |shared| shared.approximate.load(Relaxed))
    }

    /// The sum of all additions. It contains every addition that happened before the call; one that runs at the same time, or whose thread was
    /// killed in it, may be in it or not. One step for each CPU.
    ///
    /// Wait-free, async-signal-safe.
    pub fn sum(&self) -> i64 {
        let big = self.shared().map_or(0, |shared| shared.big.load(Relaxed));
        (0..self.area.count()).filter_map(|cpu| self.area.get(self.slot, cpu)).fold(big, |sum, slot| {
            let total = slot.by_rseq.load().wrapping_add(slot.by_atomics.load(Relaxed));
            sum.wrapping_add(total.cast_signed())
        })
    }

    /// How far [`PerCpuCounter::approximate`] may be from the exact sum at the same moment, saturating at [`u64::MAX`].
    ///
    /// `adders` is how many threads, of all processes, are inside [`PerCpuCounter::add`] at the same time at most, and `killed` how many
    /// were killed in there so far. Additions of a threshold or more that are unfinished, or whose thread was killed, come on top, each
    /// with its amount. The type's documentation derives the bound. If nobody was interrupted inside `add`, the error is less than a
    /// threshold for each CPU.
    pub fn error_max(&self, adders: u64, killed: u64) -> u64 {
        let slots = 2 * u64::from(self.area.count());
        let claims = slots.saturating_add(adders).saturating_add(killed);
        let claim_max = adders.saturating_mul(3).saturating_add(2).saturating_mul(self.threshold - 1);
        claims.saturating_mul(claim_max)
    }

    #[inline]
    fn shared(&self) -> Option<&PerCpuCounterShared> {
        self.area.get(self.shared, 0)
    }
}

/// The words of a counter, and how the thread reaches them.
struct InArea<'a> {
    counter: &'a PerCpuCounter,
    rseq: Option<Rseq>,
}

impl InArea<'_> {
    #[inline]
    fn slot(&self, cpu: u32) -> Option<&PerCpuCounterSlot> {
        self.counter.area.get(self.counter.slot, cpu)
    }
}

impl Words for InArea<'_> {
    #[inline]
    fn look(&self) -> Option<Look> {
        let cpu = self.rseq?.cpu_id_start();
        let slot = self.slot(cpu)?;
        let epoch = slot.epoch.load_acquire();
        let [even, odd] = &slot.folded;
        let folded = if epoch & 1 == 0 { even } else { odd }.load();
        Some(Look { cpu, epoch, folded, total: slot.by_rseq.load() })
    }

    #[inline]
    fn add_by_section(&self, look: &Look, n: i64) -> bool {
        let (Some(rseq), Some(slot)) = (self.rseq, self.slot(look.cpu)) else { return false };
        // SAFETY: `slot` is the CPU's: every counter of an area finds its slots by the same arithmetic.
        unsafe { slot.by_rseq.add(rseq, look.cpu, n.cast_unsigned()) }
    }

    fn claim(&self, look: &Look) -> bool {
        let (Some(rseq), Some(slot)) = (self.rseq, self.slot(look.cpu)) else { return false };
        let epoch = slot.epoch.0.get();
        let next = look.epoch.wrapping_add(1);
        let mut txn = Txn::new(epoch, look.epoch, Store { target: epoch.cast(), value: next, width: 8 });
        let [even, odd] = &slot.folded;
        let folded = if next & 1 == 0 { even } else { odd };
        txn.store(folded.0.get().cast(), look.total, 8);
        // SAFETY: guard and targets are the slot's words, aligned and mapped by `Area::new`'s contract. Their type lets nothing but
        // sections write them, and these name the slot's own CPU. The plain store goes where the present epoch does not look.
        unsafe { rseq.commit(look.cpu, &txn) == Commit::Done }
    }

    fn add_by_atomics(&self, n: i64) -> (usize, i64) {
        let cpu = near(self.rseq);
        // Any slot is correct; the CPU's own is near. A CPU that the area does not have uses another CPU's.
        let cpu = cpu % self.counter.area.count();
        let Some(slot) = self.slot(cpu) else { return (0, 0) };
        slot.by_atomics.fetch_add(n.cast_unsigned(), Relaxed);
        (cpu as usize, slot.unfolded.fetch_add(n, Relaxed).wrapping_add(n))
    }

    fn take(&self, slot: usize) -> i64 {
        self.slot(slot as u32).map_or(0, |slot| slot.unfolded.swap(0, Relaxed))
    }

    fn land(&self, n: i64) {
        if let Some(shared) = self.counter.shared() {
            shared.approximate.fetch_add(n, Relaxed);
        }
    }

    fn add_big(&self, n: i64) {
        if let Some(shared) = self.counter.shared() {
            shared.big.fetch_add(n, Relaxed);
        }
    }
}

#[cfg(test)]
mod model;

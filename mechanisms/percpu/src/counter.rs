//! Counters with a slot on each CPU, whose sum is also known approximately by one load: [`PerCpuCounter`].
//!
//! # Folding
//! ```text
//!   slot of a CPU   by_rseq   running total; sections add to it, nothing is subtracted       ┐
//!                   epoch     number of folds                                                │ unfolded = by_rseq - folded[epoch & 1]
//!                   folded[2] part of by_rseq that is folded; epoch selects the valid one    ┘
//!                   by_atomics  running total of threads without rseq; nothing is subtracted
//!                   unfolded    part of by_atomics that is not folded yet
//!   shared          approximate  sum of the folded amounts     ◀─ one load reads it
//!                   big          additions of a threshold or more, which are added here and to approximate at once
//! ```
//!
//! `sum` reads `by_rseq`, `by_atomics` and `big`. Nothing is ever subtracted from one of these to be added elsewhere.
//! So a thread that is killed anywhere leaves the sum exact: it contains the thread's addition or it does not. Only the
//! approximation can suffer from a kill.
//!
//! ```text
//!   add(n):                                             fold:
//!     n is as big as a threshold:                         section on cpu: if epoch == e
//!     big += n, approximate += n, done                    folded[(e + 1) & 1] = total       no thread reads it yet
//!     read: cpu, e = epoch, f = folded[e & 1], total        epoch = e + 1                     ◀─ commits: the claim
//!     |total + n - f| is as big: fold, read again         approximate += total - f            ◀─ the landing
//!     section on cpu: by_rseq += n
//! ```
//!
//! The thread that commits the epoch has the claim, and lands it; no other thread can claim that amount. The read
//! precedes the addition, on the CPU whose section makes the addition: a thread that is moved in between is aborted and
//! reads again. So no CPU keeps more than its limit because the thread that should fold is elsewhere. The guard is the
//! epoch and not the folded value, because a folded value may recur: then the claim would include additions that
//! another thread has claimed.
//!
//! Threads without rseq add to `by_atomics` and to `unfolded`. The thread that brings `unfolded` to a threshold takes
//! it (`swap`) and lands it.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering::Acquire, Ordering::Relaxed};

use dormouse_abi::txn::{Store, Txn};

use crate::area::{Area, PerCpu};
use crate::rseq::{Rseq, near};
use crate::txn::Commit;

/// A word that only critical sections on its CPU write, and any thread may read.
///
/// It has no atomic addition, because one between a section's load and its store would be lost.
// As atomics of 64 bits are, also where integers of 64 bits are not.
#[repr(C, align(8))]
#[derive(Debug, Default)]
pub struct RseqU64(UnsafeCell<u64>);

// SAFETY: only sections on its CPU write it (`add`'s contract), each with a single aligned 8-byte store, and the kernel
// lets no two of them overlap; it is read with an atomic load.
unsafe impl Sync for RseqU64 {}

impl RseqU64 {
    /// Adds `n`, wrapping, in one attempt on `cpu`. False: aborted, nothing was added.
    ///
    /// Wait-free, async-signal-safe.
    ///
    /// # Safety
    /// This is `cpu`'s word: no thread adds to it with another CPU's number.
    #[inline]
    #[must_use = "an aborted section has added nothing"]
    pub unsafe fn add(&self, rseq: Rseq, cpu: u32, n: u64) -> bool {
        // SAFETY: the cell is aligned and writable, and its type lets only this method write it; the caller guarantees
        // that it is `cpu`'s word.
        unsafe { rseq.add(cpu, self.0.get(), n) }
    }

    /// Returns the word's value.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn load(&self) -> u64 {
        // SAFETY: aligned and valid as a field of `self`, and accessed by Rust code only atomically.
        let word = unsafe { AtomicU64::from_ptr(self.0.get()) };
        word.load(Relaxed)
    }

    #[inline]
    fn load_acquire(&self) -> u64 {
        // SAFETY: aligned and valid as a field of `self`, and accessed by Rust code only atomically.
        let word = unsafe { AtomicU64::from_ptr(self.0.get()) };
        // (A) pairs with the sections' final stores.
        word.load(Acquire)
    }
}

/// Maximum number of attempts under rseq before an addition uses the atomic word. Aborts are rare, and a second one
/// right after the first is rarer. The bound makes additions wait-free.
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

/// The state of a slot that a thread has read before it adds.
#[derive(Debug, Clone, Copy)]
struct SlotState {
    cpu: u32,
    epoch: u64,
    folded: u64,
    total: u64,
}

/// The words of a counter, as the fold uses them: the real ones, or a model's.
trait Words {
    /// Reads the CPU's slot, the epoch before the rest; `None` if the CPU has no slot.
    fn read_slot(&self) -> Option<SlotState>;
    /// Runs one section on `state.cpu`: `by_rseq += n`. False: aborted, nothing was added.
    fn add_by_section(&self, state: &SlotState, n: i64) -> bool;
    /// Runs one section on `state.cpu`: if `epoch == state.epoch`, `folded[(epoch + 1) & 1] = state.total` and
    /// `epoch += 1`. Returns whether it was committed.
    fn claim(&self, state: &SlotState) -> bool;
    /// Adds `n` to `by_atomics` in some slot, then to `unfolded` there. Returns the slot and the new `unfolded`.
    fn add_by_atomics(&self, n: i64) -> (usize, i64);
    /// Takes the unfolded amount of that slot, leaving 0.
    fn take(&self, slot: usize) -> i64;
    /// Adds `n` to `approximate`.
    fn land(&self, n: i64);
    /// Adds `n` to `big`.
    fn add_big(&self, n: i64);
}

fn reaches(n: i64, threshold: u64) -> bool {
    n.unsigned_abs() >= threshold
}

/// Adds `n` as the pseudo-code in the module's documentation does.
#[inline]
fn add(words: &impl Words, has_rseq: bool, threshold: u64, n: i64) {
    if !reaches(n, threshold) && has_rseq {
        for _ in 0..ATTEMPTS_MAX {
            let Some(state) = words.read_slot() else { break };
            let unfolded = state.total.wrapping_sub(state.folded).cast_signed();
            if reaches(unfolded.wrapping_add(n), threshold) {
                fold(words, &state);
            } else if words.add_by_section(&state, n) {
                return;
            }
        }
    }
    add_slowly(words, threshold, n);
}

#[cold]
fn fold(words: &impl Words, state: &SlotState) {
    if words.claim(state) {
        words.land(state.total.wrapping_sub(state.folded).cast_signed());
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

/// A signed counter with a slot on each CPU: cheap to add to, known approximately by one load, and exactly by a sum
/// over the CPUs.
///
/// It is stored in an [`Area`], in private memory or in memory shared by processes, some with rseq and some without.
/// All of them must use the same slots and the same shared words. They may use different thresholds: the largest one
/// determines the error.
///
/// Values wrap modulo 2^64, as [`i64::wrapping_add`] does.
///
/// # Error of the approximation
/// Let `t` be the threshold, `p` the number of CPUs of the area (twice that number if some threads use rseq and others
/// do not), and `a` the maximum number of threads that are inside `add` at one time.
/// * If none of them is interrupted there by another addition on the same CPU, a slot holds less than `t`, and all
///   slots at most `p × (t - 1)`.
/// * A thread that is interrupted between its read and its section adds less than `t` to what other threads have added
///   since, and other interrupted threads may do so too: a slot holds at most `(a + 1) × (t - 1)` when a thread that
///   was not interrupted folds it. A fold that was interrupted after its read leaves the slot at most that far on
///   either side of the folded value, which doubles the amount, and interrupted threads can add `a × (t - 1)` again. So
///   a slot holds, and a claim is, at most `b = (3a + 2) × (t - 1)`.
/// * A claim counts until it has landed: there are at most `a` of them. If its thread is killed before, it counts for
///   ever.
/// * An addition of `t` or more is off by its own amount while only one of its two words is updated, and for ever if
///   its thread is killed at that point.
///
/// The total is [`PerCpuCounter::error_max`]: `(p + a + killed) × b`, plus the unfinished big additions. Everything
/// wraps modulo 2^64, and the bound applies to differences modulo 2^64.
#[derive(Debug, Clone, Copy)]
pub struct PerCpuCounter {
    area: Area,
    slot: PerCpu<PerCpuCounterSlot>,
    shared: PerCpu<PerCpuCounterShared>,
    threshold: u64,
}

impl PerCpuCounter {
    /// Returns the counter whose slots are `slot` in `area`, and whose shared words are at `shared` in the stride of
    /// CPU 0 (only there; other strides' bytes at `shared` are not used).
    ///
    /// `threshold` is in the counter's unit, from 1 to [`i64::MAX`]: the unfolded amount of a CPU stays below it.
    /// `None` if it is not in that range, if the area has no stride, or if slots or shared words are not aligned or not
    /// inside the strides.
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

    /// Adds `n`, wrapping: by rseq on the CPU's slot, in at most 8 attempts; if all fail, by atomics on the CPU's slot.
    /// An addition whose magnitude reaches the threshold is made on the shared words.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn add(&self, rseq: Option<Rseq>, n: i64) {
        add(&InArea { counter: self, rseq }, rseq.is_some(), self.threshold, n);
    }

    /// Returns approximately the sum of all additions, by one load. It is off by at most [`PerCpuCounter::error_max`].
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn approximate(&self) -> i64 {
        self.shared().map_or(0, |shared| shared.approximate.load(Relaxed))
    }

    /// Returns the sum of all additions. It contains every addition that happened before the call. It may or may not
    /// contain one that runs during the call, or whose thread was killed in it. Takes one step for each CPU.
    ///
    /// Wait-free, async-signal-safe.
    pub fn sum(&self) -> i64 {
        let big = self.shared().map_or(0, |shared| shared.big.load(Relaxed));
        (0..self.area.count()).filter_map(|cpu| self.area.get(self.slot, cpu)).fold(big, |sum, slot| {
            let total = slot.by_rseq.load().wrapping_add(slot.by_atomics.load(Relaxed));
            sum.wrapping_add(total.cast_signed())
        })
    }

    /// Returns the maximum distance of [`PerCpuCounter::approximate`] from the exact sum at the same moment, saturating
    /// at [`u64::MAX`].
    ///
    /// `adders` is the maximum number of threads, of all processes, that are inside [`PerCpuCounter::add`] at one time,
    /// and `killed` the number of threads that were killed in it so far. Each addition of a threshold or more that is
    /// unfinished, or whose thread was killed, adds its own amount to the bound. The type's documentation derives the
    /// bound. If no thread was interrupted inside `add`, the error is less than a threshold for each CPU.
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

/// The words of a counter, and the thread's way to reach them.
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
    fn read_slot(&self) -> Option<SlotState> {
        let cpu = self.rseq?.cpu_id_start();
        let slot = self.slot(cpu)?;
        let epoch = slot.epoch.load_acquire();
        let [even, odd] = &slot.folded;
        let folded = if epoch & 1 == 0 { even } else { odd }.load();
        Some(SlotState { cpu, epoch, folded, total: slot.by_rseq.load() })
    }

    #[inline]
    fn add_by_section(&self, state: &SlotState, n: i64) -> bool {
        let (Some(rseq), Some(slot)) = (self.rseq, self.slot(state.cpu)) else { return false };
        // SAFETY: `slot` is the CPU's: every counter of an area finds its slots by the same arithmetic.
        unsafe { slot.by_rseq.add(rseq, state.cpu, n.cast_unsigned()) }
    }

    fn claim(&self, state: &SlotState) -> bool {
        let (Some(rseq), Some(slot)) = (self.rseq, self.slot(state.cpu)) else { return false };
        let epoch = slot.epoch.0.get();
        let next = state.epoch.wrapping_add(1);
        let mut txn = Txn::new(epoch, state.epoch, Store { target: epoch.cast(), value: next, width: 8 });
        let [even, odd] = &slot.folded;
        let folded = if next & 1 == 0 { even } else { odd };
        txn.store(folded.0.get().cast(), state.total, 8);
        // SAFETY: guard and targets are the slot's words, aligned and mapped by `Area::new`'s contract. Their type lets
        // only sections write them, and these name the slot's own CPU. The plain store writes the word that the current
        // epoch does not select.
        unsafe { rseq.commit(state.cpu, &txn) == Commit::Done }
    }

    fn add_by_atomics(&self, n: i64) -> (usize, i64) {
        let cpu = near(self.rseq);
        // Any slot is correct; the CPU's own is the nearest. A CPU that the area does not have uses another CPU's.
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
#[cfg(target_pointer_width = "64")]
mod model;

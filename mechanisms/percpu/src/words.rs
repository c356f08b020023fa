//! Operations on words of a pool's objects, on the CPU that the thread is on; each is retried until it succeeds.
//!
//! ```text
//!   the process has rseq   sections, one after another, until one is not aborted
//!   it has none            plain loads and stores under a lock of the CPU, with signals blocked
//! ```
//!
//! A section loads and stores, and so does a thread that holds a lock: a change by one of them between the other's two
//! accesses would be lost. So all threads of a process use one method, and memory that processes share needs rseq. A
//! single thread without rseq in a process that has it (the thread is ending, or another library has registered it)
//! gets an error.
//!
//! The lock's word names its holder. A forked child takes over locks that other threads of its parent held: the holder
//! has either made its final store or not.

use core::error::Error;
use core::fmt;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use dormouse_abi::txn::{Store, Txn};
use rustix::thread::{gettid, sched_yield};

use crate::alloc::{Object, Pool, View};
use crate::arch::Handle;
use crate::area::Area;
use crate::rseq::{Rseq, commit, is_done, near};
use crate::signals::without_signals;
use crate::txn::Commit;

/// The words of a pool's objects, changed on the CPU that the thread is on. `Copy`, valid as long as the pool.
///
/// All operations start over when they are aborted. With rseq they are lock-free (a thread starts over because another
/// thread or a handler has run) and async-signal-safe; without, blocking and async-signal-safe. Do not use them between
/// `vfork` and `exec`.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    view: View,
    rseq: Option<Rseq>,
}

/// The reason why an operation did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WordError {
    /// The thread has no rseq, but the process has.
    Unregistered,
    /// The thread is on a CPU for which the pool has no copies.
    NoCopy {
        /// That CPU.
        cpu: u32,
    },
    /// The kernel has no memory for the copies of a [`Variable`](crate::Variable), which are made when it is first used.
    NoMemory,
}

/// Arguments of [`Words::copy_and_store`]: if the word at `guard` holds `expected`, `size_bytes` bytes are copied from
/// `from` to `to`, and then `value` is stored in the word at `last`. All except `from` are offsets in bytes from the
/// start of a copy of the object. Laid out like the C structure.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Copying {
    /// Offset of the word that is compared, in bytes.
    pub guard: usize,
    /// Value that the word at `guard` must have.
    pub expected: u64,
    /// Offset of the bytes that are written, in bytes.
    pub to: usize,
    /// Address of the bytes that are copied.
    pub from: *const u8,
    /// Number of bytes that are copied.
    pub size_bytes: usize,
    /// Offset of the word that is stored last, in bytes.
    pub last: usize,
    /// Value that is stored in the word at `last`.
    pub value: u64,
}

/// Width of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// Four bytes, aligned to four.
    Four,
    /// Eight bytes, aligned to eight.
    Eight,
}

/// A change of one word, for [`Words::update`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Adds, wrapping.
    Add(u64),
    /// Stores a value.
    Exchange(u64),
    /// Stores `value` if the word holds `expected`.
    CompareExchange {
        /// Value that the word must have.
        expected: u64,
        /// Value that is stored.
        value: u64,
    },
}

impl Update {
    /// Returns the new value of a word that holds `old`; `None` if it stays as it is. Only the low bytes of a narrow
    /// word count.
    fn apply(self, old: u64, width: Width) -> Option<u64> {
        let low = |value: u64| if width == Width::Four { value & u64::from(u32::MAX) } else { value };
        match self {
            Update::Add(n) => Some(low(old.wrapping_add(n))),
            Update::Exchange(value) => Some(low(value)),
            Update::CompareExchange { expected, value } => (old == low(expected)).then_some(low(value)),
        }
    }
}

impl Words {
    /// Returns the words of an area of private memory, whose objects are made by [`Object::from_raw`] from the address
    /// of the first copy.
    pub fn of_area(area: Area, rseq: Option<Rseq>) -> Words {
        Words { view: View::of_area(area), rseq }
    }

    /// Returns the words of a pool of private memory.
    ///
    /// Not async-signal-safe, for the reason that [`Rseq::detect`] gives; call it once.
    pub fn new(pool: &Pool) -> Words {
        Words { view: pool.view(), rseq: Rseq::detect() }
    }

    /// Returns the words of memory that processes share; `None` if this process has no rseq.
    ///
    /// Not async-signal-safe, for the reason that [`Rseq::detect`] gives; call it once.
    pub fn shared(view: View) -> Option<Words> {
        Rseq::detect().map(|rseq| Words { view, rseq: Some(rseq) })
    }

    /// Returns the words as a process without rseq uses them.
    #[cfg(test)]
    pub(crate) fn by_locks(view: View) -> Words {
        Words { view, rseq: None }
    }

    /// Adds `n`, wrapping, to the word `offset` bytes from the start of the copy.
    ///
    /// # Errors
    /// [`WordError`] if nothing was added.
    ///
    /// # Safety
    /// `object` lives, in the pool of these words. The word is aligned to 8 bytes, inside the object, and only these
    /// operations write it.
    #[inline]
    pub unsafe fn add(self, object: Object, offset: usize, n: u64) -> Result<(), WordError> {
        if offset == 0
            && let Some(rseq) = self.rseq
        {
            // SAFETY: the caller guarantees that `object` lives and that only these operations write its word at offset
            // 0.
            let is_added = unsafe { self.view.add(rseq, object, n) };
            if is_added {
                return Ok(());
            }
        }
        let section = |rseq: Rseq, cpu, copy: *mut u8| {
            // SAFETY: the caller guarantees that the word is aligned, inside the object and written only by these
            // operations; the copy is the CPU's.
            unsafe { rseq.add(cpu, copy.wrapping_add(offset).cast(), n) }.then_some(())
        };
        let plain = |copy: *mut u8| {
            // SAFETY: the caller guarantees that the word is aligned and inside a live object.
            let word = unsafe { word(copy, offset) };
            word.store(word.load(Relaxed).wrapping_add(n), Release); // (A) pairs with the acquire of readers on other CPUs
        };
        // SAFETY: the caller guarantees that `object` lives, in the pool of these words.
        unsafe { self.run(object, section, plain) }
    }

    /// Returns the value of the word `offset` bytes from the start of the copy. When it returns, the thread may be on
    /// another CPU.
    ///
    /// # Errors
    /// [`WordError`] if nothing was read.
    ///
    /// # Safety
    /// The conditions of [`Words::add`].
    #[inline]
    pub unsafe fn load(self, object: Object, offset: usize) -> Result<u64, WordError> {
        let section = |rseq: Rseq, cpu, copy: *mut u8| {
            // SAFETY: the caller guarantees that the word is aligned and inside a live object.
            unsafe { rseq.load(cpu, copy.wrapping_add(offset).cast()) }
        };
        // SAFETY: the caller guarantees that the word is aligned and inside a live object.
        let plain = |copy: *mut u8| unsafe { word(copy, offset) }.load(Relaxed);
        // SAFETY: the caller guarantees that `object` lives, in the pool of these words.
        unsafe { self.run(object, section, plain) }
    }

    /// Stores `value` in the word `offset` bytes from the start of the copy: a release for readers on other CPUs.
    ///
    /// # Errors
    /// [`WordError`] if nothing was stored.
    ///
    /// # Safety
    /// The conditions of [`Words::add`].
    #[inline]
    pub unsafe fn store(self, object: Object, offset: usize, value: u64) -> Result<(), WordError> {
        let section = |rseq: Rseq, cpu, copy: *mut u8| {
            // SAFETY: the caller guarantees that the word is aligned, inside the object and written only by these
            // operations; the copy is the CPU's.
            unsafe { rseq.store(cpu, copy.wrapping_add(offset).cast(), value) }.then_some(())
        };
        // SAFETY: the caller guarantees that the word is aligned and inside a live object.
        let plain = |copy: *mut u8| unsafe { word(copy, offset) }.store(value, Release); // (A), as in `add`
        // SAFETY: the caller guarantees that `object` lives, in the pool of these words.
        unsafe { self.run(object, section, plain) }
    }

    /// Stores `value` in the word `offset` bytes from the start of the copy if it holds `expected`; returns whether it
    /// did.
    ///
    /// # Errors
    /// [`WordError`] if nothing was compared.
    ///
    /// # Safety
    /// The conditions of [`Words::add`].
    #[inline]
    pub unsafe fn compare_and_store(
        self,
        object: Object,
        offset: usize,
        expected: u64,
        value: u64,
    ) -> Result<bool, WordError> {
        let section = |rseq: Rseq, cpu, copy: *mut u8| {
            // SAFETY: the caller guarantees that the word is aligned, inside the object and written only by these
            // operations; the copy is the CPU's.
            is_stored(unsafe { rseq.compare_and_store(cpu, copy.wrapping_add(offset).cast(), expected, value) })
        };
        let plain = |copy: *mut u8| {
            // SAFETY: the caller guarantees that the word is aligned and inside a live object.
            let word = unsafe { word(copy, offset) };
            let is_expected = word.load(Relaxed) == expected;
            if is_expected {
                word.store(value, Release); // (A), as in `add`
            }
            is_expected
        };
        // SAFETY: the caller guarantees that `object` lives, in the pool of these words.
        unsafe { self.run(object, section, plain) }
    }

    /// Copies bytes if the guard has the expected value, and publishes them by a final store; returns whether the guard
    /// had that value. An aborted attempt may have left bytes at the destination.
    ///
    /// # Errors
    /// [`WordError`] if nothing was copied.
    ///
    /// # Safety
    /// The conditions of [`Words::add`] for the guard, the last word and the destination. The source is readable,
    /// nothing writes it during the call, and it does not overlap the destination.
    #[inline]
    pub unsafe fn copy_and_store(self, object: Object, copying: &Copying) -> Result<bool, WordError> {
        let Copying { guard, expected, to, from, size_bytes, last, value } = *copying;
        let section = |rseq: Rseq, cpu, copy: *mut u8| {
            let [guard, to, last] = [guard, to, last].map(|offset| copy.wrapping_add(offset));
            // SAFETY: the caller guarantees that guard, destination and last word are inside the object and written
            // only by these operations, and that the source is readable and does not overlap the destination; the copy
            // is the CPU's.
            is_stored(unsafe {
                rseq.copy_and_store(cpu, guard.cast(), expected, to, from, size_bytes, last.cast(), value)
            })
        };
        let plain = |copy: *mut u8| {
            // SAFETY: the caller guarantees that the guard is aligned and inside a live object.
            if unsafe { word(copy, guard) }.load(Relaxed) != expected {
                return false;
            }
            // SAFETY: the caller guarantees that the source is readable, and that the destination is inside the object
            // and does not overlap it.
            unsafe { ptr::copy_nonoverlapping(from, copy.wrapping_add(to), size_bytes) };
            // SAFETY: the caller guarantees that the last word is aligned and inside a live object.
            unsafe { word(copy, last) }.store(value, Release); // (A), as in `add`
            true
        };
        // SAFETY: the caller guarantees that `object` lives, in the pool of these words.
        unsafe { self.run(object, section, plain) }
    }

    /// Changes the word `offset` bytes from the start of the copy, and returns its old value. If it is stored, the
    /// store is a release for readers on other CPUs. Neighbouring words may be written in any way.
    ///
    /// # Errors
    /// [`WordError`] if nothing was changed.
    ///
    /// # Safety
    /// The conditions of [`Words::add`]; the word has that width. The eight bytes that contain a narrow word, from a
    /// multiple of eight on, are readable.
    pub unsafe fn update(self, object: Object, offset: usize, width: Width, update: Update) -> Result<u64, WordError> {
        let section = |rseq: Rseq, cpu, copy: *mut u8| {
            // SAFETY: the caller guarantees that the word is aligned, inside the object, in eight readable bytes, and
            // written only by these operations; the copy is the CPU's.
            unsafe { update_once(rseq.handle(), cpu, copy.wrapping_add(offset), width, update) }
        };
        let plain = |copy: *mut u8| match width {
            Width::Eight => {
                // SAFETY: the caller guarantees that the word is aligned and inside a live object.
                let word = unsafe { word(copy, offset) };
                let old = word.load(Relaxed);
                if let Some(value) = update.apply(old, width) {
                    word.store(value, Release); // (A), as in `add`
                }
                old
            }
            Width::Four => {
                // SAFETY: the caller guarantees that the word is aligned and inside a live object, and that only these
                // operations write it.
                let word = unsafe { AtomicU32::from_ptr(copy.wrapping_add(offset).cast()) };
                let old = u64::from(word.load(Relaxed));
                if let Some(value) = update.apply(old, width) {
                    word.store(value as u32, Release); // (A), as in `add`
                }
                old
            }
        };
        // SAFETY: the caller guarantees that `object` lives, in the pool of these words.
        unsafe { self.run(object, section, plain) }
    }

    /// # Safety
    /// `object` lives, in the pool of these words.
    #[inline]
    unsafe fn run<R>(
        self,
        object: Object,
        section: impl Fn(Rseq, u32, *mut u8) -> Option<R>,
        plain: impl FnOnce(*mut u8) -> R,
    ) -> Result<R, WordError> {
        let copy_of = |cpu| {
            if cpu >= self.view.cpu_count() {
                return Err(WordError::NoCopy { cpu });
            }
            // SAFETY: the caller guarantees that `object` lives, and the pool has the CPU.
            Ok(unsafe { self.view.address(object, cpu) })
        };
        let Some(rseq) = self.rseq else { return with_lock(|cpu| Ok(plain(copy_of(cpu)?))) };
        loop {
            let cpu = rseq.cpu_id_start();
            if let Some(result) = section(rseq, cpu, copy_of(cpu)?) {
                return Ok(result);
            }
            if rseq.cpu_id().is_none() && !rseq.register_thread() {
                return Err(WordError::Unregistered);
            }
        }
    }
}

/// # Safety
/// `copy + offset` is an aligned word of a live object, which Rust code accesses only atomically as long as the
/// reference is used.
unsafe fn word<'a>(copy: *mut u8, offset: usize) -> &'a AtomicU64 {
    // SAFETY: the caller guarantees that it is an aligned word of a live object, accessed only atomically.
    unsafe { AtomicU64::from_ptr(copy.wrapping_add(offset).cast()) }
}

/// Changes a word of the CPU or concurrency id `index` in one attempt, by two sections; returns the old value. `None`:
/// aborted, or the eight bytes that contain the word have changed in between.
///
/// # Safety
/// The word is aligned and writable, and only sections of that number write it. The eight bytes that contain a narrow
/// word, from a multiple of eight on, are readable.
pub(crate) unsafe fn update_once<const INDEX: usize>(
    handle: Handle<INDEX>,
    index: u32,
    word: *mut u8,
    width: Width,
    update: Update,
) -> Option<u64> {
    // The guard is the eight bytes that contain the word.
    let (guard, shift) = (word.map_addr(|address| address & !7).cast::<u64>(), (word.addr() & 7) * 8);
    // SAFETY: the caller guarantees that these eight bytes are readable; they are aligned.
    let (outcome, seen) = unsafe { handle.rseq_load(index, guard) };
    if !is_done(outcome) {
        return None;
    }
    let old = if width == Width::Four { seen >> shift & u64::from(u32::MAX) } else { seen };
    let Some(value) = update.apply(old, width) else { return Some(old) };
    let last = Store { target: word, value, width: if width == Width::Four { 4 } else { 8 } };
    // SAFETY: the caller guarantees that the guard is readable, and that the word is aligned, writable and written only
    // by sections of that number.
    let outcome = unsafe { handle.commit(index, &Txn::new(guard, seen, last)) };
    (commit(outcome) == Commit::Done).then_some(old)
}

fn is_stored(commit: Commit) -> Option<bool> {
    match commit {
        Commit::Done => Some(true),
        Commit::GuardChanged => Some(false),
        Commit::Aborted => None,
    }
}

/// Locks of this process, one for each CPU modulo their number: `pid << 32 | tid` of the holder, or 0.
static LOCKS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Number of times that a thread yields before it sleeps.
const YIELDS_MAX: u32 = 64;

/// Runs `work` with the number of the CPU that the thread was on a moment ago, while no other thread of the process
/// runs it with that number. Signals are blocked during that time, so no handler can wait for a lock of the thread that
/// it interrupted.
#[cold]
fn with_lock<R>(work: impl FnOnce(u32) -> R) -> R {
    without_signals(|| {
        let cpu = near(None);
        let lock = &LOCKS[cpu as usize % LOCKS.len()];
        // SAFETY: the call has no arguments, and does not fail.
        let pid = u64::from(unsafe { libc::getpid() }.cast_unsigned()) << 32;
        let me = pid | u64::from(gettid().as_raw_nonzero().get().cast_unsigned());
        let mut waits = 0;
        loop {
            let seen = lock.load(Relaxed);
            let is_free = seen == 0 || seen & !u64::from(u32::MAX) != pid;
            // (W) pairs with (X): what the previous holder did is visible.
            if is_free && lock.compare_exchange(seen, me, Acquire, Relaxed).is_ok() {
                break;
            }
            wait(waits);
            waits += 1;
        }
        let result = work(cpu);
        lock.store(0, Release); // (X) pairs with (W)
        result
    })
}

/// Lets the holder of a lock run. After `YIELDS_MAX` turns it sleeps, because the holder may have a lower priority, and
/// a real-time thread yields only to threads of its own priority. There is no wake-up: the holder has signals blocked
/// and needs few instructions, and waking waiters would cost each unlock a system call.
fn wait(turn: u32) {
    if turn < YIELDS_MAX {
        sched_yield();
        return;
    }
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
    // SAFETY: a valid time; the remaining time is not asked for. The call returns its error, and leaves `errno` alone.
    unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &raw const pause, ptr::null_mut()) };
}

impl fmt::Display for WordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WordError::Unregistered => {
                write!(f, "this thread has no restartable sequences, though others of its process have")
            }
            WordError::NoCopy { cpu } => write!(f, "the pool has no copies for CPU {cpu}, on which this thread is"),
            WordError::NoMemory => {
                write!(f, "there is no memory for this variable's copies: raise the limit on address space")
            }
        }
    }
}

impl Error for WordError {}

//! Variables of which every CPU has a copy: [`per_cpu!`](crate::per_cpu) and
//! [`per_concurrency_id!`](crate::per_concurrency_id).
//!
//! ```text
//!   block   base           base + stride       base + 2 × stride           one stride of 64 KiB for each possible CPU
//!           │ used a₀ b₀ … │ ─ a₁ b₁ …         │ ─ a₂ b₂ …
//!                  ▲ `first` of a: null until its first use
//! ```
//!
//! A variable takes eight bytes of each stride when it is first used, for ever. No lock is taken: threads that use it
//! first at the same time both take a place, and one of the places stays unused. A full block is followed by another.
//!
//! | word | written by |
//! | --- | --- |
//! | `DECISION` | the first thread that uses a variable: whether the process has rseq |
//! | `SECTIONS`, the copies' initial values | any thread that makes copies, before it publishes `first`; equal values each time |
//! | `first` | the thread that makes the copies |
//! | a copy | operations on its CPU or concurrency id, by sections or under locks, as `DECISION` says |

use core::fmt;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use crate::alloc::{Mapping, Object, keep_lazy, possible_cpus};
use crate::arch::Handle;
use crate::area::Area;
use crate::rseq::{Rseq, add_by_stride, add_u32_by_stride, current_cpu};
use crate::words::{Update, Width, WordError, Words, update_once};

/// Defines variables of which every CPU has a copy: [`Variable`]s, which begin with the same value on every CPU.
///
/// ```
/// use dormouse_percpu::per_cpu;
///
/// per_cpu! {
///     /// Requests that were served.
///     static REQUESTS: u64 = 0;
///     static OPEN_FILES: i32 = 0;
/// }
///
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| {
///             for _ in 0..1000 {
///                 OPEN_FILES.add(1).unwrap();
///                 REQUESTS.add(1).unwrap();
///                 OPEN_FILES.sub(1).unwrap();
///             }
///         });
///     }
/// });
/// assert_eq!((REQUESTS.sum(), OPEN_FILES.sum()), (4000, 0));
/// ```
#[macro_export]
macro_rules! per_cpu {
    ($($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty = $initial:expr;)*) => {
        $($(#[$attribute])* $visibility static $name: $crate::Variable<$type> = $crate::Variable::new($initial);)*
    };
}

/// Defines variables of which every concurrency id has a copy. Threads of a process that run at the same time have
/// different ids, the smallest that are free, so a process with few threads uses few copies, however many CPUs there
/// are. Where the kernel gives no such ids ([`Rseq::concurrency_id_offset`]), copies belong to CPUs.
///
/// ```
/// dormouse_percpu::per_concurrency_id! {
///     static PARSED: u64 = 0;
/// }
/// PARSED.add(3).unwrap();
/// assert_eq!(PARSED.sum(), 3);
/// ```
#[macro_export]
macro_rules! per_concurrency_id {
    ($($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty = $initial:expr;)*) => {
        $($(#[$attribute])* $visibility static $name: $crate::Variable<$type, true> = $crate::Variable::new($initial);)*
    };
}

/// A variable of which every CPU has a copy, or every concurrency id: defined by [`per_cpu!`](crate::per_cpu) or
/// [`per_concurrency_id!`](crate::per_concurrency_id).
///
/// # Progress
/// The first use of any variable looks up rseq, reads the number of CPUs and maps memory: it is not async-signal-safe,
/// for the reason that [`Rseq::detect`] gives. After that, operations are like those of [`Words`]: with rseq lock-free
/// and async-signal-safe; without, blocking and async-signal-safe. Do not use them between `vfork` and `exec`.
///
/// # Limits
/// The copies stay for the life of the process, also those of a library that is unloaded.
///
/// # Errors
/// An operation that did nothing returns a [`WordError`]: on a thread that has no rseq though its process has (it is
/// ending, or another library has registered it), and when there is no memory for the copies.
pub struct Variable<T: Word, const BY_CONCURRENCY_ID: bool = false> {
    /// Address of the copy of number 0; null before the first use.
    first: AtomicPtr<u8>,
    /// Value with which every copy begins.
    initial: T,
}

/// A word of 4 or 8 bytes: an integer.
pub trait Word: Copy + Send + Sync + sealed::Sealed + 'static {
    #[doc(hidden)]
    const WIDTH: Width;
    #[doc(hidden)]
    fn to_bits(self) -> u64;
    #[doc(hidden)]
    fn from_bits(bits: u64) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! words {
    ($($type:ty)*) => {
        $(
            impl sealed::Sealed for $type {}
            impl Word for $type {
                const WIDTH: Width = if size_of::<$type>() == 4 { Width::Four } else { Width::Eight };
                #[inline]
                fn to_bits(self) -> u64 {
                    self as u64
                }
                #[inline]
                fn from_bits(bits: u64) -> $type {
                    bits as $type
                }
            }
        )*
    };
}

words! { u32 i32 u64 i64 usize isize }

/// Binary logarithm of the distance between copies, in bytes.
const STRIDE_SHIFT: u32 = 16;
/// Bytes of each stride that a variable takes, whatever its width.
const PLACE_BYTES: usize = 8;
/// Offset of the first variable: the first stride begins with the number of bytes in use.
const FIRST_PLACE: usize = 64;

/// Block in which places are free, at whose start is the number of bytes in use of each stride; null before the first.
static BLOCK: AtomicPtr<AtomicUsize> = AtomicPtr::new(null_mut());

/// Whether operations use sections: the offset of [`Rseq`], or one of the two values below, which no offset has.
static DECISION: AtomicIsize = AtomicIsize::new(UNDECIDED);
const UNDECIDED: isize = isize::MIN;
const LOCKS: isize = isize::MIN + 1;

/// Operands of sections. They are written before any `first`.
struct Sections {
    /// Offset of the rseq structure, or of one whose `cpu_id` is negative.
    offset: AtomicIsize,
    /// Number of copies; 0 if the process uses locks, so that no section finds a copy.
    count: AtomicU32,
    /// Whether the kernel gives concurrency ids.
    has_concurrency_ids: AtomicBool,
}

static SECTIONS: Sections =
    Sections { offset: AtomicIsize::new(0), count: AtomicU32::new(0), has_concurrency_ids: AtomicBool::new(false) };

/// How this process changes copies.
#[derive(Clone, Copy)]
struct Process {
    rseq: Option<Rseq>,
    count: u32,
}

impl Process {
    /// Returns the same for all threads, also if some of them are not registered.
    fn get() -> Process {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut decision = DECISION.load(Relaxed);
        if decision == UNDECIDED {
            let own = Rseq::detect().map_or(LOCKS, Rseq::offset);
            decision = DECISION.compare_exchange(UNDECIDED, own, Relaxed, Relaxed).map_or_else(|first| first, |_| own);
        }
        let mut count = COUNT.load(Relaxed);
        if count == 0 {
            let own = possible_cpus();
            count = COUNT.compare_exchange(0, own, Relaxed, Relaxed).map_or_else(|first| first, |_| own);
        }
        // SAFETY: the offset of an `Rseq` of this process.
        let rseq = if decision == LOCKS { None } else { unsafe { Rseq::at(decision) } };
        Process { rseq, count }
    }

    /// Stores what sections need.
    fn publish(self) {
        SECTIONS.offset.store(self.rseq.map_or_else(Rseq::unregistered_offset, Rseq::offset), Relaxed);
        SECTIONS.count.store(if self.rseq.is_some() { self.count } else { 0 }, Relaxed);
        let has_concurrency_ids = self.rseq.and_then(Rseq::concurrency_id_offset).is_some();
        SECTIONS.has_concurrency_ids.store(has_concurrency_ids, Relaxed);
    }

    fn words(self, first: NonNull<u8>) -> Words {
        // SAFETY: a copy of eight bytes is at `first` in each of `count` strides, which are never unmapped.
        let area = unsafe { Area::new(first.as_ptr(), STRIDE_SHIFT, self.count) };
        Words::of_area(area, self.rseq)
    }
}

/// Takes eight zeroed bytes in each of `count` strides; `None` without memory.
fn take_place(count: u32) -> Option<NonNull<u8>> {
    loop {
        // (G) pairs with (H): the block's number of bytes in use is visible.
        let block = BLOCK.load(Acquire);
        if let Some(used) = NonNull::new(block) {
            // SAFETY: a published block stays mapped, and begins with this number.
            let used = unsafe { used.as_ref() };
            let at = used.fetch_add(PLACE_BYTES, Relaxed);
            if at + PLACE_BYTES <= 1 << STRIDE_SHIFT {
                return NonNull::new(block.cast::<u8>().wrapping_add(at));
            }
        }
        let size_bytes = (count as usize).checked_shl(STRIDE_SHIFT)?;
        let mapping = Mapping::new(size_bytes, 1).ok()?;
        // One huge page would make the copies of CPUs present that never run.
        keep_lazy(mapping.base(), size_bytes);
        let used = mapping.base().cast::<AtomicUsize>();
        // SAFETY: the start of the mapping, which is aligned to a page and which no other thread knows.
        unsafe { used.write(AtomicUsize::new(FIRST_PLACE)) };
        // (H) pairs with (G). A block that another thread has put there first is as good.
        if BLOCK.compare_exchange(block, used, Release, Relaxed).is_ok() {
            core::mem::forget(mapping);
        }
    }
}

impl<T: Word, const BY_CONCURRENCY_ID: bool> Variable<T, BY_CONCURRENCY_ID> {
    /// Returns a variable whose copies begin with that value.
    pub const fn new(initial: T) -> Self {
        Variable { first: AtomicPtr::new(null_mut()), initial }
    }

    /// Adds `n`, wrapping.
    ///
    /// # Errors
    /// [`WordError`] if nothing was added.
    #[inline]
    pub fn add(&'static self, n: T) -> Result<(), WordError> {
        // (E) pairs with (F): the initial values and what sections need are visible.
        let first = self.first.load(Acquire);
        if !first.is_null() && self.add_by_section(first, n) {
            return Ok(());
        }
        self.update(Update::Add(n.to_bits())).map(drop)
    }

    /// Subtracts `n`, wrapping.
    ///
    /// # Errors
    /// [`WordError`] if nothing was subtracted.
    #[inline]
    pub fn sub(&'static self, n: T) -> Result<(), WordError> {
        self.add(T::from_bits(n.to_bits().wrapping_neg()))
    }

    /// Adds `n`, wrapping, and returns the sum.
    ///
    /// # Errors
    /// [`WordError`] if nothing was added.
    pub fn add_return(&'static self, n: T) -> Result<T, WordError> {
        self.update(Update::Add(n.to_bits())).map(|old| T::from_bits(old.wrapping_add(n.to_bits())))
    }

    /// Stores `value`, and returns the old value.
    ///
    /// # Errors
    /// [`WordError`] if nothing was stored.
    pub fn exchange(&'static self, value: T) -> Result<T, WordError> {
        self.update(Update::Exchange(value.to_bits())).map(T::from_bits)
    }

    /// Stores `value` if the copy holds `expected`, and returns the old value: `expected` if it was stored.
    ///
    /// # Errors
    /// [`WordError`] if nothing was compared.
    pub fn compare_exchange(&'static self, expected: T, value: T) -> Result<T, WordError> {
        let update = Update::CompareExchange { expected: expected.to_bits(), value: value.to_bits() };
        self.update(update).map(T::from_bits)
    }

    /// Returns the copy's value. When it returns, the thread may be elsewhere.
    ///
    /// # Errors
    /// [`WordError`] if there is no copy.
    pub fn read(&'static self) -> Result<T, WordError> {
        self.this_ptr().map(load)
    }

    /// Returns the value of the copy of that CPU or concurrency id; `None` if there is none.
    ///
    /// Wait-free, async-signal-safe.
    pub fn read_on(&'static self, index: u32) -> Option<T> {
        if self.first.load(Relaxed).is_null() {
            // No copy was ever changed.
            return (index < Process::get().count).then_some(self.initial);
        }
        self.ptr(index).map(load)
    }

    /// Returns the sum of all copies, wrapping. It includes every addition that happened before the call.
    ///
    /// Wait-free, async-signal-safe.
    pub fn sum(&'static self) -> T {
        let copies = (0..).map_while(|index| self.read_on(index));
        T::from_bits(copies.fold(0, |sum, value| sum.wrapping_add(value.to_bits())))
    }

    /// Returns the address of the copy of the CPU or concurrency id that the thread had a moment ago. Only operations
    /// write copies while other threads may use them; read it atomically.
    ///
    /// # Errors
    /// [`WordError`] if there is no copy.
    pub fn this_ptr(&'static self) -> Result<*mut T, WordError> {
        self.copies()?;
        let rseq = Process::get().rseq;
        let index = match self.ids(rseq) {
            Some(rseq) => rseq.handle().by_concurrency_id().index(),
            None => current_cpu(rseq),
        };
        self.ptr(index).ok_or(WordError::NoCopy { cpu: index })
    }

    /// Returns the address of the copy of that CPU or concurrency id; `None` if there is none. Only operations write
    /// copies while other threads may use them; read it atomically.
    pub fn ptr(&'static self, index: u32) -> Option<*mut T> {
        let first = self.copies().ok()?;
        let copy = first.as_ptr().wrapping_add((index as usize) << STRIDE_SHIFT);
        (index < Process::get().count).then_some(copy.cast())
    }

    /// Returns rseq if the copies belong to concurrency ids.
    #[inline]
    fn ids(&self, rseq: Option<Rseq>) -> Option<Rseq> {
        rseq.filter(|_| BY_CONCURRENCY_ID && SECTIONS.has_concurrency_ids.load(Relaxed))
    }

    #[inline]
    fn add_by_section(&self, first: *mut u8, n: T) -> bool {
        let count = SECTIONS.count.load(Relaxed);
        // SAFETY: `publish` has stored one of these offsets before `first` was published.
        let Some(rseq) = (unsafe { Rseq::at(SECTIONS.offset.load(Relaxed)) }) else { return false };
        if self.ids(Some(rseq)).is_some() {
            // The kernel aborts no sections in a thread that libc could not register, whose id is 0.
            return rseq.cpu_id().is_some() && add::<T, _>(rseq.handle().by_concurrency_id(), first, count, n);
        }
        add::<T, _>(rseq.handle(), first, count, n)
    }

    /// Changes the copy, and returns its old value.
    #[cold]
    fn update(&'static self, update: Update) -> Result<u64, WordError> {
        let first = self.copies()?;
        let process = Process::get();
        if let Some(rseq) = self.ids(process.rseq) {
            return update_by_id(rseq, process.count, first, T::WIDTH, update);
        }
        // SAFETY: the copies are never unmapped, and each is an aligned word in eight bytes of its own, which only
        // operations write.
        unsafe { process.words(first).update(Object::from_raw(first), 0, T::WIDTH, update) }
    }

    /// Returns the address of the copy of number 0; makes the copies if this is the first use.
    fn copies(&'static self) -> Result<NonNull<u8>, WordError> {
        // (E) pairs with (F).
        if let Some(first) = NonNull::new(self.first.load(Acquire)) {
            return Ok(first);
        }
        let process = Process::get();
        process.publish();
        let place = take_place(process.count).ok_or(WordError::NoMemory)?;
        if self.initial.to_bits() != 0 {
            for index in 0..process.count as usize {
                let copy = place.as_ptr().wrapping_add(index << STRIDE_SHIFT).cast::<T>();
                // SAFETY: an aligned place in the stride, which no other thread knows.
                unsafe { copy.write(self.initial) };
            }
        }
        // (F) pairs with (E).
        match self.first.compare_exchange(null_mut(), place.as_ptr(), Release, Acquire) {
            Ok(_) => Ok(place),
            Err(other) => Ok(NonNull::new(other).unwrap_or(place)),
        }
    }
}

/// Adds `n` to the copy by one section; false if it was aborted or the thread has no copy.
#[inline]
fn add<T: Word, const INDEX: usize>(handle: Handle<INDEX>, first: *mut u8, count: u32, n: T) -> bool {
    match T::WIDTH {
        // SAFETY: `count` copies of eight bytes, aligned to eight, begin at `first`, and only operations write them:
        // all by sections of the same kind of number, because `count` is 0 in a process that uses locks.
        Width::Eight => unsafe { add_by_stride(handle, first.cast(), STRIDE_SHIFT, count, n.to_bits()) },
        // SAFETY: as many copies of four bytes, in places aligned to eight, of which the rest is not used; only
        // operations write them, all by sections of the same kind of number, because `count` is 0 in a process that
        // uses locks.
        Width::Four => unsafe { add_u32_by_stride(handle, first.cast(), STRIDE_SHIFT, count, n.to_bits() as u32) },
    }
}

/// [`Words::update`] for copies of concurrency ids.
fn update_by_id(rseq: Rseq, count: u32, first: NonNull<u8>, width: Width, update: Update) -> Result<u64, WordError> {
    let handle = rseq.handle().by_concurrency_id();
    loop {
        if rseq.cpu_id().is_none() {
            return Err(WordError::Unregistered);
        }
        let index = handle.index();
        if index >= count {
            return Err(WordError::NoCopy { cpu: index });
        }
        let copy = first.as_ptr().wrapping_add((index as usize) << STRIDE_SHIFT);
        // SAFETY: the copy is a place of eight bytes, which only sections by concurrency id write.
        if let Some(old) = unsafe { update_once(handle, index, copy, width, update) } {
            return Ok(old);
        }
    }
}

/// Returns the value of a copy.
fn load<T: Word>(copy: *mut T) -> T {
    // (A) pairs with the operations' final stores.
    T::from_bits(match T::WIDTH {
        // SAFETY: an aligned copy of eight bytes, which is never unmapped and is accessed atomically.
        Width::Eight => unsafe { AtomicU64::from_ptr(copy.cast()) }.load(Acquire),
        // SAFETY: an aligned copy of four bytes, which is never unmapped and is accessed atomically.
        Width::Four => u64::from(unsafe { AtomicU32::from_ptr(copy.cast()) }.load(Acquire)),
    })
}

impl<T: Word + fmt::Debug, const BY_CONCURRENCY_ID: bool> fmt::Debug for Variable<T, BY_CONCURRENCY_ID> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Variable").field("initial", &self.initial).finish_non_exhaustive()
    }
}

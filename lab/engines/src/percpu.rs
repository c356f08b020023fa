//! Dormouse's engine for the experiment `percpu`: additions to counters in different memory layouts.
//!
//! ```text
//!   SHAPE_WAY          hot       one counter, again and again
//!                      random    4,096 counters, in random order
//!                      one       one of them, after a walk that has driven it out of the cache
//!                      eight     eight that were allocated one after another, after the same walk
//!                      subsystems  objects of four sizes that were allocated one after another, each for another subsystem
//!                      subsystem   four objects of one size, all of one subsystem
//!   empty_SHAPE        the same loop without an addition
//!   WAY                atomic          one word for all CPUs, `lock add`
//!                      thread-local    a word for each thread, plain
//!                      lock            a word for each CPU, `lock add`
//!                      static, pointer-array, contiguous, offset-table, interlaced
//!                                      a word for each CPU, by a restartable sequence; the five allocators
//!                      relative        the words of interlaced, whose handles are distances from the first of them
//!                      segregated      interlaced, and only objects of one size share lines; for subsystems only
//!                      few-sets, all-sets   contiguous, in huge pages: the same lines but for their sets; for random only
//!                      counter-32, counter-1024   a `PerCpuCounter` of that threshold, whose sum one load approximates; for hot only
//!                   WAY_of_32          the same schemes in memory for 32 CPUs, most of which do not exist
//! ```
//! Each addition is an event. It has arrived if the sum of all words includes it.
//!
//! # Common to all ways
//! The counter is looked up in a table of handles, in an order that no prefetcher guesses. Ways that need no handle
//! share a table of numbers, which the empty loop reads as well. Its entries have four bytes; a handle may be larger.

use std::cell::Cell;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use dormouse_backing::{Huge, MemoryOptions, PrivatePool};
use dormouse_lab_harness::{Case, Engine, Loop, opaque, report};
use dormouse_lab_schemes::{
    AllSets, Contiguous, FewSets, Given, Interlaced, OffsetTable, PointerArray, Room, Scheme, Segregated, StaticAreas,
    View,
};
use dormouse_percpu::{Area, PerCpu, PerCpuCounter, PerCpuCounterShared, PerCpuCounterSlot, Rseq, possible_cpus};

/// Number of counters in a working set.
const COUNT: usize = 4_096;
/// Number of counters that one iteration of `eight` adds to.
const ADJACENT: usize = 8;
/// Sizes of the subsystems' objects, in bytes. Each object starts with a counter.
const SIZES_BYTES: [usize; 4] = [8, 16, 24, 32];
/// Number of objects of the subsystems: as many as fit in a stride of the pools. The table of handles has each of them twice.
const OBJECT_COUNT: usize = COUNT / 2;

/// A way of counting.
trait Way: Send + Sync + 'static {
    /// Handle by which a counter is found.
    type Handle: Copy;

    /// Returns the handles of all counters, in the order of allocation.
    fn handles() -> &'static [Self::Handle; COUNT];

    /// Returns the state that a loop looks up once.
    fn ready() -> Self;

    /// Adds one to a counter.
    fn add(&self, counter: Self::Handle);

    /// Returns the sum of all counters.
    fn sum() -> u64;
}

/// A way that adds nothing.
struct Nothing;

/// Indexes of counters, for ways without handles.
static NUMBERS: [u32; COUNT] = {
    let mut numbers = [0; COUNT];
    let mut index = 0;
    while index < COUNT {
        numbers[index] = index as u32;
        index += 1;
    }
    numbers
};

impl Way for Nothing {
    type Handle = u32;

    fn handles() -> &'static [u32; COUNT] {
        &NUMBERS
    }

    fn ready() -> Nothing {
        Nothing
    }

    #[inline(always)]
    fn add(&self, counter: u32) {
        opaque(counter.into());
    }

    fn sum() -> u64 {
        0
    }
}

struct Atomic;

static ATOMICS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

impl Way for Atomic {
    type Handle = &'static AtomicU64;

    fn handles() -> &'static [&'static AtomicU64; COUNT] {
        static HANDLES: OnceLock<Box<[&AtomicU64; COUNT]>> = OnceLock::new();
        HANDLES.get_or_init(|| Box::new(ATOMICS.each_ref()))
    }

    fn ready() -> Atomic {
        Atomic
    }

    #[inline(always)]
    fn add(&self, counter: &'static AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn sum() -> u64 {
        ATOMICS.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }
}

/// Counters of a thread, which the main thread reads at the end.
type Locals = [Cell<u64>; COUNT];

std::thread_local! {
    static LOCALS: Locals = const { [const { Cell::new(0) }; COUNT] };
    static IS_KNOWN: Cell<bool> = const { Cell::new(false) };
}

/// Addresses of each thread's counters. The harness's threads live as long as the engine.
static THREADS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

struct ThreadLocal(*const Locals);

// SAFETY: one thread makes, uses and drops it.
unsafe impl Send for ThreadLocal {}
// SAFETY: one thread makes, uses and drops it.
unsafe impl Sync for ThreadLocal {}

impl Way for ThreadLocal {
    type Handle = u32;

    fn handles() -> &'static [u32; COUNT] {
        &NUMBERS
    }

    fn ready() -> ThreadLocal {
        let locals = LOCALS.with(core::ptr::from_ref);
        if !IS_KNOWN.replace(true)
            && let Ok(mut threads) = THREADS.lock()
        {
            threads.push(locals.addr());
        }
        ThreadLocal(locals)
    }

    #[inline(always)]
    fn add(&self, counter: u32) {
        // The address is the thread pointer plus a constant, computed anew each time as a program would.
        LOCALS.with(|locals| {
            let cell = &locals[counter as usize % COUNT];
            cell.set(cell.get().wrapping_add(1));
        });
        opaque(self.0.addr() as u64);
    }

    fn sum() -> u64 {
        let threads = THREADS.lock().map(|threads| threads.clone()).unwrap_or_default();
        let of_thread = |address: &usize| {
            // SAFETY: the counters of a thread that lives as long as the engine. It sleeps until the next request, and
            // its last answer came after its last addition.
            let locals = unsafe { &*(*address as *const Locals) };
            locals.iter().map(Cell::get).sum::<u64>()
        };
        threads.iter().map(of_thread).sum()
    }
}

/// A counter of a scheme.
type Object<S> = <<S as Scheme>::View as View>::Handle;

/// An allocator, its counters, and the view that computes their addresses.
struct Bed<S: Scheme> {
    view: S::View,
    objects: Box<[Object<S>; COUNT]>,
    /// Number of different objects among them.
    count: usize,
    cpu_count: u32,
    /// Memory of the objects, kept alive.
    _memory: S,
}

impl<S: Scheme> Bed<S> {
    fn new(kind: Kind) -> Result<Bed<S>, String> {
        let (cpu_count_min, count, sizes_bytes): (_, _, &[usize]) = match kind {
            Kind::Words => (0, COUNT, &[8]),
            Kind::OfMany | Kind::Huge => (MANY, COUNT, &[8]),
            Kind::Sizes => (0, OBJECT_COUNT, &SIZES_BYTES),
        };
        let cpu_count = possible_cpus().max(cpu_count_min);
        let room = if kind == Kind::Huge { huge_pages(cpu_count)? } else { Room::Own { is_lazy: false } };
        let mut memory = S::new(cpu_count, room).ok_or("no memory for the counters")?;
        let sizes = sizes_bytes.iter().cycle().take(count);
        let view = memory.view();
        let objects: Option<Vec<_>> = sizes.map(|size_bytes| Some(view.handle(memory.alloc(*size_bytes)?))).collect();
        let objects = objects.ok_or("no room for the counters")?.repeat(COUNT / count);
        let objects = objects.into_boxed_slice().try_into().map_err(|_| "another number of objects")?;
        let bed = Bed { view, objects, count, cpu_count, _memory: memory };
        bed.assure_backed();
        Ok(bed)
    }

    /// Checks that the pages of all words of all CPUs are backed.
    fn assure_backed(&self) {
        const PAGE_BYTES: usize = 4096;
        // SAFETY: one of the pool's objects, and one of its CPUs.
        let word = |object: &Object<S>, cpu| unsafe { self.view.address(*object, cpu) }.cast_const().cast::<u8>();
        let words = self.objects.iter().flat_map(|object| (0..self.cpu_count).map(move |cpu| word(object, cpu)));
        let mut pages: Vec<*const u8> = words.map(|word| word.wrapping_sub(word.addr() % PAGE_BYTES)).collect();
        pages.sort_unstable();
        pages.dedup();
        for run in pages.chunk_by(|a, b| a.wrapping_add(PAGE_BYTES) == *b) {
            dormouse_lab_harness::assure_backed_raw("the processors' areas", run[0], run.len() * PAGE_BYTES);
        }
    }

    fn sum(&self) -> u64 {
        let of_object = |object: &Object<S>| {
            (0..self.cpu_count)
                .map(|cpu| {
                    // SAFETY: one of the pool's objects, and one of its CPUs.
                    let word = unsafe { self.view.address(*object, cpu) };
                    // SAFETY: the object is a word on every CPU, for as long as the pool lives; only critical sections
                    // and locked additions write it.
                    unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed)
                })
                .sum::<u64>()
        };
        self.objects[..self.count].iter().map(of_object).sum()
    }
}

/// Content of a bed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Words, for the machine's CPUs.
    Words,
    /// Words, for [`MANY`] CPUs.
    OfMany,
    /// Objects of subsystems, for the machine's CPUs.
    Sizes,
    /// Words in huge pages, for [`MANY`] CPUs.
    Huge,
}

const WORDS: usize = Kind::Words as usize;
const OF_MANY: usize = Kind::OfMany as usize;
const SIZES: usize = Kind::Sizes as usize;
const HUGE: usize = Kind::Huge as usize;
const KINDS: usize = 4;

/// A scheme that has beds, one for each kind.
trait Bedded: Scheme {
    fn beds() -> &'static [OnceLock<Bed<Self>>; KINDS];
}

/// Returns memory in huge pages alone, which lives as long as the engine.
fn huge_pages(cpu_count: u32) -> Result<Room, String> {
    let size_bytes = FewSets::size_bytes(COUNT, cpu_count);
    let memory = PrivatePool::new(size_bytes, MemoryOptions::new().huge(Huge::Require));
    let memory = std::mem::ManuallyDrop::new(memory.map_err(|error| error.to_string())?);
    // SAFETY: a new mapping, of zeroes, which starts at a page and is never unmapped, and which nothing else refers to.
    Ok(Room::Given(unsafe { Given::new(memory.base(), memory.size_bytes()) }))
}

/// Number of CPUs that kernels were configured for when the paper was written, on machines with four.
const MANY: u32 = 32;

macro_rules! bedded {
    ($($scheme:ty),+) => {$(
        impl Bedded for $scheme {
            fn beds() -> &'static [OnceLock<Bed<$scheme>>; KINDS] {
                static BEDS: [OnceLock<Bed<$scheme>>; KINDS] = [const { OnceLock::new() }; KINDS];
                &BEDS
            }
        }
    )+};
}

bedded!(
    StaticAreas<WORDS>,
    StaticAreas<OF_MANY>,
    StaticAreas<SIZES>,
    PointerArray,
    Contiguous,
    OffsetTable,
    Interlaced,
    Segregated,
    FewSets,
    AllSets
);

fn bed<S: Bedded>(kind: usize) -> &'static Bed<S> {
    S::beds()[kind].get().expect("made before the first loop")
}

/// libc's rseq registration, looked up once.
static RSEQ: OnceLock<Rseq> = OnceLock::new();

fn rseq() -> Rseq {
    *RSEQ.get().expect("looked for before the first loop")
}

struct Sections<S: Scheme, const KIND: usize> {
    view: S::View,
    rseq: Rseq,
}

impl<S: Bedded, const KIND: usize> Way for Sections<S, KIND> {
    type Handle = Object<S>;

    fn handles() -> &'static [Object<S>; COUNT] {
        &bed::<S>(KIND).objects
    }

    fn ready() -> Sections<S, KIND> {
        Sections { view: bed::<S>(KIND).view, rseq: rseq() }
    }

    #[inline(always)]
    fn add(&self, counter: Object<S>) {
        // SAFETY: an object of this pool, with a word on every CPU that only critical sections on that CPU write.
        while !unsafe { self.view.add(self.rseq, counter, 1) } {}
    }

    fn sum() -> u64 {
        bed::<S>(KIND).sum()
    }
}

/// The words of `interlaced`, found by their distance from the first one: one instruction more before each section.
struct Relative {
    first: NonNull<u8>,
    sections: Sections<Interlaced, WORDS>,
}

// SAFETY: an address in memory that belongs to no thread.
unsafe impl Send for Relative {}
// SAFETY: nothing changes through a shared reference.
unsafe impl Sync for Relative {}

impl Way for Relative {
    type Handle = usize;

    fn handles() -> &'static [usize; COUNT] {
        static HANDLES: OnceLock<Box<[usize; COUNT]>> = OnceLock::new();
        HANDLES.get_or_init(|| {
            let address = |object: Object<Interlaced>| object.into_raw().addr().get();
            let objects = <Sections<Interlaced, WORDS>>::handles();
            Box::new(objects.map(|object| address(object) - address(objects[0])))
        })
    }

    fn ready() -> Relative {
        let first = <Sections<Interlaced, WORDS>>::handles()[0].into_raw();
        // Hidden from the compiler, so that it adds the distance to it in each iteration.
        Relative { first: std::hint::black_box(first), sections: Sections::ready() }
    }

    #[inline(always)]
    fn add(&self, distance: usize) {
        // SAFETY: the distance of another object in the stride of CPU 0, which all of them share.
        self.sections.add(dormouse_percpu::Object::from_raw(unsafe { self.first.add(distance) }));
    }

    /// The sum of `interlaced` has these additions.
    fn sum() -> u64 {
        0
    }
}

/// Bed of the way `lock`. It is separate, because a word must be written by critical sections or by locked
/// instructions, never by both.
static LOCKED: OnceLock<Bed<Interlaced>> = OnceLock::new();

struct Locked {
    view: <Interlaced as Scheme>::View,
    rseq: Rseq,
}

fn locked() -> &'static Bed<Interlaced> {
    LOCKED.get().expect("made before the first loop")
}

impl Way for Locked {
    type Handle = Object<Interlaced>;

    fn handles() -> &'static [Object<Interlaced>; COUNT] {
        &locked().objects
    }

    fn ready() -> Locked {
        Locked { view: locked().view, rseq: rseq() }
    }

    #[inline(always)]
    fn add(&self, counter: Object<Interlaced>) {
        // SAFETY: one of the pool's objects; the pool has every possible CPU.
        let word = unsafe { self.view.address(counter, self.rseq.cpu_id_start()) };
        // SAFETY: the CPU's word of an object of this pool, which only this function writes.
        unsafe { AtomicU64::from_ptr(word) }.fetch_add(1, Ordering::Relaxed);
    }

    fn sum() -> u64 {
        locked().sum()
    }
}

/// A counter with an approximation, as Linux has for `vm_enough_memory`: what a CPU has counted is added to the common
/// word whenever it reaches `THRESHOLD`.
struct Approximate<const THRESHOLD: u64>(&'static PerCpuCounter, Rseq);

impl<const THRESHOLD: u64> Approximate<THRESHOLD> {
    /// Returns the counter, which lives as long as the engine.
    fn counter() -> &'static PerCpuCounter {
        static COUNTERS: Mutex<Vec<(u64, &PerCpuCounter)>> = Mutex::new(Vec::new());
        let mut counters = COUNTERS.lock().expect("nothing panics in it");
        if let Some((_, counter)) = counters.iter().find(|(threshold, _)| *threshold == THRESHOLD) {
            return counter;
        }
        const SLOT: usize = size_of::<PerCpuCounterShared>();
        let stride_shift = (SLOT + size_of::<PerCpuCounterSlot>()).next_power_of_two().ilog2();
        let size_bytes = (possible_cpus() as usize) << stride_shift;
        let memory = std::mem::ManuallyDrop::new(PrivatePool::new(size_bytes, MemoryOptions::new()).expect("memory"));
        // SAFETY: zeroes, which are valid for a counter, and which are never unmapped; nothing else refers to them.
        let area = unsafe { Area::new(memory.base(), stride_shift, possible_cpus()) };
        // SAFETY: zeroes are valid shared words, and no other handle overlaps them.
        let shared = unsafe { PerCpu::<PerCpuCounterShared>::new(0) };
        // SAFETY: zeroes are a valid slot, behind the shared words.
        let slot = unsafe { PerCpu::<PerCpuCounterSlot>::new(SLOT) };
        let counter = PerCpuCounter::new(area, slot, shared, THRESHOLD).expect("aligned, and inside the strides");
        counters.push((THRESHOLD, Box::leak(Box::new(counter))));
        counters[counters.len() - 1].1
    }
}

impl<const THRESHOLD: u64> Way for Approximate<THRESHOLD> {
    type Handle = u32;

    fn handles() -> &'static [u32; COUNT] {
        &NUMBERS
    }

    fn ready() -> Approximate<THRESHOLD> {
        Approximate(Self::counter(), rseq())
    }

    #[inline(always)]
    fn add(&self, _: u32) {
        self.0.add(Some(self.1), 1);
    }

    /// Returns the sum, or 0 if the approximation is further from it than the counter promises.
    fn sum() -> u64 {
        let (sum, approximate) = (Self::counter().sum(), Self::counter().approximate());
        let is_near = sum.abs_diff(approximate) <= Self::counter().error_max(possible_cpus().into(), 0);
        if is_near { sum as u64 } else { 0 }
    }
}

/// A multiplier whose high bits make a good random number (P. L'Ecuyer, "Tables of linear congruential generators", 1999).
const MULTIPLIER: u64 = 2_862_933_555_777_941_757;

/// Returns an index below [`COUNT`] that is unrelated to the one for the previous number.
#[inline(always)]
fn scattered(number: u64) -> usize {
    (number.wrapping_mul(MULTIPLIER) >> 40) as usize % COUNT
}

extern "C" fn hot<W: Way>(iterations: u64, first: u64) {
    let way = W::ready();
    // Hidden from the compiler, so that the counter is known at run time only, as in the other loops.
    let counter = std::hint::black_box(W::handles()[COUNT / 2]);
    let end = first.wrapping_add(iterations);
    let mut number = first;
    dormouse_lab_harness::align();
    while end.wrapping_sub(number) >= 8 {
        // Eight in a row, so that the alignment of the loop hardly matters.
        for _ in 0..8 {
            opaque(number);
            way.add(counter);
        }
        number += 8;
    }
    while number != end {
        opaque(number);
        way.add(counter);
        number += 1;
    }
}

extern "C" fn random<W: Way>(iterations: u64, first: u64) {
    let (way, handles) = (W::ready(), W::handles());
    dormouse_lab_harness::align();
    for number in first..first.wrapping_add(iterations) {
        way.add(handles[scattered(opaque(number))]);
    }
}

extern "C" fn eight<W: Way>(iterations: u64, first: u64) {
    let (way, handles) = (W::ready(), W::handles());
    for number in first..first.wrapping_add(iterations) {
        let start = scattered(opaque(number)) & !(ADJACENT - 1);
        for index in 0..ADJACENT {
            way.add(handles[start + index]);
        }
    }
}

/// Ends one subsystem's turn before the next one's starts. In a kernel the turns are system calls or more apart, so one
/// does not wait for memory together with the next.
#[inline(always)]
fn end_turn() {
    // Only for its cost; it publishes nothing.
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Adds to one counter of each subsystem.
extern "C" fn subsystems<W: Way>(iterations: u64, first: u64) {
    let (way, handles) = (W::ready(), W::handles());
    dormouse_lab_harness::align();
    for number in first..first.wrapping_add(iterations) {
        let start = scattered(opaque(number)) & !(SIZES_BYTES.len() - 1);
        for index in 0..SIZES_BYTES.len() {
            way.add(handles[start + index]);
            end_turn();
        }
    }
}

/// Adds to as many counters of one subsystem, the one with the smallest objects.
extern "C" fn subsystem<W: Way>(iterations: u64, first: u64) {
    let (way, handles) = (W::ready(), W::handles());
    dormouse_lab_harness::align();
    for number in first..first.wrapping_add(iterations) {
        let start = scattered(opaque(number)) & !(SIZES_BYTES.len() * SIZES_BYTES.len() - 1);
        for index in 0..SIZES_BYTES.len() {
            way.add(handles[start + SIZES_BYTES.len() * index]);
            end_turn();
        }
    }
}

/// Cases and sum functions of all ways.
struct Ways {
    cases: Vec<Case>,
    sums: Vec<fn() -> u64>,
}

/// A loop: its name, its function, and the number of additions in an iteration.
type Shape = (&'static str, Loop, u64);

fn words<W: Way>() -> [Shape; 4] {
    [("hot", hot::<W>, 1), ("random", random::<W>, 1), ("one", random::<W>, 1), ("eight", eight::<W>, ADJACENT as u64)]
}

fn sizes<W: Way>() -> [Shape; 2] {
    let count = SIZES_BYTES.len() as u64;
    [("subsystems", subsystems::<W>, count), ("subsystem", subsystem::<W>, count)]
}

impl Ways {
    /// Adds the cases of a way in the given shapes. Their names live as long as the engine.
    fn add<W: Way>(&mut self, way: &str, shapes: &[Shape]) {
        for (shape, run, events) in shapes {
            self.cases.push(Case { name: format!("{shape}_{way}").leak(), run: *run, events_per_iteration: *events });
        }
        self.sums.push(W::sum);
    }

    /// Adds loops without additions.
    fn add_empty(&mut self, shapes: &[Shape]) {
        for (shape, run, _) in shapes {
            self.cases.push(Case { name: format!("empty_{shape}").leak(), run: *run, events_per_iteration: 0 });
        }
    }

    /// Adds a scheme's words: `S` for the machine's CPUs, and `M`, the same with memory of its own, for [`MANY`].
    fn add_scheme<S: Bedded, M: Bedded>(&mut self, way: &str) -> Result<(), String> {
        make::<S>(Kind::Words)?;
        make::<M>(Kind::OfMany)?;
        self.add::<Sections<S, WORDS>>(way, &words::<Sections<S, WORDS>>());
        self.add::<Sections<M, OF_MANY>>(&format!("{way}_of_{MANY}"), &words::<Sections<M, OF_MANY>>());
        Ok(())
    }

    /// Adds the cases that compare sets of a cache, if there are huge pages for both.
    fn add_sets(&mut self) -> Result<(), String> {
        make::<FewSets>(Kind::Huge).and_then(|()| make::<AllSets>(Kind::Huge))?;
        type Few = Sections<FewSets, HUGE>;
        type All = Sections<AllSets, HUGE>;
        self.add::<Few>("few-sets", &[("random", random::<Few>, 1)]);
        self.add::<All>("all-sets", &[("random", random::<All>, 1)]);
        Ok(())
    }

    /// Adds a scheme's objects of subsystems.
    fn add_sizes<S: Bedded>(&mut self, way: &str) -> Result<(), String> {
        make::<S>(Kind::Sizes)?;
        self.add::<Sections<S, SIZES>>(way, &sizes::<Sections<S, SIZES>>());
        Ok(())
    }
}

static SUMS: OnceLock<Vec<fn() -> u64>> = OnceLock::new();

/// Reason why there are no huge pages.
static NO_HUGE_PAGES: OnceLock<String> = OnceLock::new();

fn verify() -> Result<u64, String> {
    let sum = SUMS.get().map_or(0, |sums| sums.iter().map(|sum| sum()).sum());
    let how = match RSEQ.get() {
        Some(_) => "restartable sequences",
        None => "no restartable sequences here, so only atomics and thread-local words were measured",
    };
    let without = NO_HUGE_PAGES.get().map(|why| format!("; no cases of few and all sets: {why}")).unwrap_or_default();
    report(sum, 0, &format!("{how}{without}"))
}

fn make<S: Bedded>(kind: Kind) -> Result<(), String> {
    S::beds()[kind as usize].set(Bed::new(kind)?).map_err(|_| "made twice".to_string())
}

fn prepare(ways: &mut Ways) -> Result<(), String> {
    ways.add_empty(&words::<Nothing>());
    ways.add_empty(&sizes::<Nothing>());
    ways.add::<Atomic>("atomic", &words::<Atomic>());
    ways.add::<ThreadLocal>("thread-local", &words::<ThreadLocal>());
    let Some(rseq) = Rseq::of_libc() else { return Ok(()) };
    let _ = RSEQ.set(rseq);
    LOCKED.set(Bed::new(Kind::Words)?).map_err(|_| "made twice".to_string())?;
    ways.add::<Locked>("lock", &words::<Locked>());
    ways.add_scheme::<StaticAreas<WORDS>, StaticAreas<OF_MANY>>("static")?;
    ways.add_scheme::<PointerArray, PointerArray>("pointer-array")?;
    ways.add_scheme::<Contiguous, Contiguous>("contiguous")?;
    ways.add_scheme::<OffsetTable, OffsetTable>("offset-table")?;
    ways.add_scheme::<Interlaced, Interlaced>("interlaced")?;
    ways.add::<Relative>("relative", &words::<Relative>());
    ways.add::<Approximate<32>>("counter-32", &[("hot", hot::<Approximate<32>>, 1)]);
    ways.add::<Approximate<1024>>("counter-1024", &[("hot", hot::<Approximate<1024>>, 1)]);
    ways.add_sizes::<StaticAreas<SIZES>>("static")?;
    ways.add_sizes::<Interlaced>("interlaced")?;
    ways.add_sizes::<Segregated>("segregated")?;
    if let Err(why) = ways.add_sets() {
        let _ = NO_HUGE_PAGES.set(why);
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut ways = Ways { cases: Vec::new(), sums: Vec::new() };
    if let Err(error) = prepare(&mut ways) {
        eprintln!("dormouse: {error}");
        return ExitCode::FAILURE;
    }
    let _ = SUMS.set(ways.sums);
    dormouse_lab_harness::main(&Engine {
        name: "dormouse",
        version: env!("CARGO_PKG_VERSION").into(),
        cases: ways.cases,
        arrived: Some(verify),
    })
}

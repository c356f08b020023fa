//! A layer that accounts for memory, put in front of `malloc` by `LD_PRELOAD`, and a sampler that tells what share of a
//! program's time it takes.
//!
//! # The problem
//! Thirumalai (2003) compared allocators of per-CPU memory by an application: the kernel's accounting of committed memory, which
//! every mapping crosses, during a build; and judged by the profile's ticks in that one function. Here the application is a
//! library of its own: each block that is allocated or freed crosses two counters, the bytes in use and the number of blocks
//! of its size that came or went.
//!
//! # The picture
//! ```text
//!   cc1 ── malloc ──▶ libc ──▶ account(+bytes)  ─┐  section dormouse_account: one function for each way, called through a pointer
//!       ── free ────▶ account(−bytes) ──▶ libc  ─┘      bytes  += ±usable size
//!                                                       class[log₂ size] += 1
//!   perf event cpu-clock ── SIGURG, so many times a second ──▶ tick: is the interrupted instruction in that section?
//!                                                                 │
//!   DORMOUSE_ACCOUNT_FILE, shared by all processes of the build ◀─┘  ticks, ticks within, crossings, processes
//! ```
//! `DORMOUSE_ACCOUNT` names the way: `none` (the call alone), `atomic`, `static`, `pointer-array`, `contiguous`,
//! `offset-table`, `interlaced`. Without it, or where something cannot be had, nothing is accounted for, and the file says why.
//!
//! By `library`, nothing is accounted for either: samples are counted in another library, the first that has a `malloc`, and in `memcpy` that it
//! has called. So `compile-job` finds the tracer's share.
//!
//! # Limits
//! * Main threads are sampled, in user mode. A build's compilers have no other.
//! * A process that ends by `_exit` or a signal does not add its crossings to the file. Its ticks are there.

use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dormouse_lab_schemes::{Contiguous, Interlaced, OffsetTable, PointerArray, Scheme, StaticAreas, View};
use dormouse_percpu::{Rseq, possible_cpus};

/// What the file holds, eight bytes each. The lab reads the same.
#[repr(C)]
struct Ledger {
    /// Samples.
    ticks: AtomicU64,
    /// Those in the accounting functions.
    ticks_within: AtomicU64,
    /// Blocks that were accounted for, by the counters' own sum.
    crossings: AtomicU64,
    /// Processes that were sampled.
    processes: AtomicU64,
    /// Processes that could not be, and the last cause as an errno.
    refused: AtomicU64,
    errno: AtomicU64,
}

/// Samples a second of processor time. Some are lost where the kernel's timer is late.
const TICKS_PER_S: u64 = 10_000;

/// Sizes of blocks: 16 bytes to 2^63.
const CLASSES: usize = 64;

/// Blocks that came, or went: their bytes.
type Account = fn(bytes: i64, class: usize);

/// The way that was chosen, or null.
static ACCOUNT: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static LEDGER: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
/// Whose counters these are: a forked child has its parent's.
static PROCESS: AtomicU32 = AtomicU32::new(0);

static ATOMIC_BYTES: AtomicI64 = AtomicI64::new(0);
static ATOMIC_CLASSES: [AtomicU64; CLASSES] = [const { AtomicU64::new(0) }; CLASSES];

#[inline(never)]
#[unsafe(link_section = "dormouse_account")]
fn account_none(_: i64, _: usize) {}

#[inline(never)]
#[unsafe(link_section = "dormouse_account")]
fn account_atomic(bytes: i64, class: usize) {
    ATOMIC_BYTES.fetch_add(bytes, Ordering::Relaxed);
    ATOMIC_CLASSES[class].fetch_add(1, Ordering::Relaxed);
}

fn crossings_atomic() -> u64 {
    ATOMIC_CLASSES.iter().map(|class| class.load(Ordering::Relaxed)).sum()
}

/// A counter of this scheme.
type Object<S> = <<S as Scheme>::View as View>::Object;

/// Counters of one allocator.
struct Counters<S: Scheme> {
    rseq: Rseq,
    view: S::View,
    bytes: Object<S>,
    classes: [Object<S>; CLASSES],
    cpu_count: u32,
    _memory: S,
}

impl<S: Scheme> Counters<S> {
    fn new() -> Option<Counters<S>> {
        // Of every thread, without asking.
        let rseq = Rseq::of_libc()?;
        // Most processes of a build are short, and have little memory of their own.
        let cpu_count = possible_cpus();
        let mut memory = S::new(cpu_count, true)?;
        let bytes = memory.alloc()?;
        let mut classes = [bytes; CLASSES];
        for class in &mut classes {
            *class = memory.alloc()?;
        }
        Some(Counters { rseq, view: memory.view(), bytes, classes, cpu_count, _memory: memory })
    }

    #[inline(always)]
    fn add(&self, counter: Object<S>, n: u64) {
        // SAFETY: an object of this pool, a word on every processor, which nothing but sections on it writes.
        while !unsafe { self.view.add(self.rseq, counter, n) } {}
    }

    fn crossings(&self) -> u64 {
        let of_class = |class: &Object<S>| {
            let of_cpu = |cpu| {
                // SAFETY: the pool's object and one of its processors.
                let word = unsafe { self.view.address(*class, cpu) };
                // SAFETY: a word of the pool, written by sections only.
                unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed)
            };
            (0..self.cpu_count).map(of_cpu).sum::<u64>()
        };
        self.classes.iter().map(of_class).sum()
    }
}

/// Defines the counters of an allocator, its accounting function and its sum.
macro_rules! way {
    ($module:ident, $scheme:ty) => {
        mod $module {
            use super::*;

            static COUNTERS: AtomicPtr<Counters<$scheme>> = AtomicPtr::new(core::ptr::null_mut());
            static PLACE: Place<Counters<$scheme>> = Place::new();

            pub(super) fn prepare() -> bool {
                let Some(counters) = Counters::new() else { return false };
                // (R) pairs with the loads below, by way of `ACCOUNT`.
                COUNTERS.store(PLACE.put(counters), Ordering::Release);
                true
            }

            #[inline(never)]
            #[unsafe(link_section = "dormouse_account")]
            pub(super) fn account(bytes: i64, class: usize) {
                // SAFETY: prepared before `ACCOUNT` said so, and never taken back.
                let counters = unsafe { &*COUNTERS.load(Ordering::Relaxed) };
                counters.add(counters.bytes, bytes as u64);
                counters.add(counters.classes[class], 1);
            }

            pub(super) fn crossings() -> u64 {
                // (R) as above.
                // SAFETY: null, or prepared and never taken back.
                unsafe { COUNTERS.load(Ordering::Acquire).as_ref() }.map_or(0, Counters::crossings)
            }
        }
    };
}

/// Room for a value that is made once, without `malloc`.
struct Place<T>(core::cell::UnsafeCell<core::mem::MaybeUninit<T>>);

// SAFETY: written once, by the constructor, before anybody else is told where it is.
unsafe impl<T> Sync for Place<T> {}

impl<T> Place<T> {
    const fn new() -> Place<T> {
        Place(core::cell::UnsafeCell::new(core::mem::MaybeUninit::uninit()))
    }

    fn put(&self, value: T) -> *mut T {
        let place: *mut T = self.0.get().cast();
        // SAFETY: the constructor runs once, and nobody knows the place yet.
        unsafe { place.write(value) };
        place
    }
}

way!(static_areas, StaticAreas);
way!(pointer_array, PointerArray);
way!(contiguous, Contiguous);
way!(offset_table, OffsetTable);
way!(interlaced, Interlaced);

/// A way: its name, what makes it ready, its function, and its sum.
struct Way {
    name: &'static [u8],
    prepare: fn() -> bool,
    account: Account,
    crossings: fn() -> u64,
}

const WAYS: [Way; 7] = [
    Way { name: b"none", prepare: || true, account: account_none, crossings: || 0 },
    Way { name: b"atomic", prepare: || true, account: account_atomic, crossings: crossings_atomic },
    of(b"static", static_areas::prepare, static_areas::account, static_areas::crossings),
    of(b"pointer-array", pointer_array::prepare, pointer_array::account, pointer_array::crossings),
    of(b"contiguous", contiguous::prepare, contiguous::account, contiguous::crossings),
    of(b"offset-table", offset_table::prepare, offset_table::account, offset_table::crossings),
    of(b"interlaced", interlaced::prepare, interlaced::account, interlaced::crossings),
];

const fn of(name: &'static [u8], prepare: fn() -> bool, account: Account, crossings: fn() -> u64) -> Way {
    Way { name, prepare, account, crossings }
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a NUL-terminated name; the constructor runs before anybody changes the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: a variable of the environment is NUL-terminated, and stays for as long as the constructor runs.
    Some(unsafe { CStr::from_ptr(value) })
}

fn errno() -> c_int {
    // SAFETY: no arguments.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's, as long as it runs.
    unsafe { errno.read() }
}

/// The ledger, mapped.
fn open_ledger(path: &CStr) -> Option<&'static Ledger> {
    // SAFETY: a NUL-terminated path.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, anywhere.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), size_of::<Ledger>(), protection, libc::MAP_SHARED, file, 0) };
    // SAFETY: opened above.
    unsafe { libc::close(file) };
    if at == libc::MAP_FAILED {
        return None;
    }
    LEDGER.store(at.cast(), Ordering::Release);
    // SAFETY: mapped for as long as the process runs; the lab has made the file large enough, and all access is atomic.
    Some(unsafe { &*at.cast::<Ledger>() })
}

/// Addresses of code, of which nobody asks before sampling begins.
struct Code([AtomicUsize; 2]);

impl Code {
    const fn new() -> Code {
        Code([const { AtomicUsize::new(0) }; 2])
    }

    fn set(&self, range: Range<usize>) {
        self.0[0].store(range.start, Ordering::Relaxed);
        self.0[1].store(range.end, Ordering::Relaxed);
    }

    fn contains(&self, at: usize) -> bool {
        (self.0[0].load(Ordering::Relaxed)..self.0[1].load(Ordering::Relaxed)).contains(&at)
    }
}

/// In which samples are counted: the accounting functions, or another library.
static WATCHED: Code = Code::new();
/// Of libc's, which is watched where that library has called it.
static MEMCPY: Code = Code::new();
/// It is at most so long in glibc; other functions lie in that too, but the library does not call them and has no others' return address.
const MEMCPY_BYTES: usize = 2 << 10;

/// The accounting functions.
fn section() -> Range<usize> {
    unsafe extern "C" {
        #[link_name = "__start_dormouse_account"]
        static START: u8;
        #[link_name = "__stop_dormouse_account"]
        static STOP: u8;
    }
    (&raw const START).addr()..(&raw const STOP).addr()
}

/// Where a function is that the program finds first.
fn function(name: &CStr) -> usize {
    // SAFETY: a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.addr()
}

/// A function's address, and the code of the object that it is in.
struct Search {
    function: usize,
    code: Range<usize>,
}

/// For `dl_iterate_phdr`: looks for the segment that has the function.
unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: handed on by `dl_iterate_phdr` from `library`.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: the loader's description of an object, for the length of this call.
    let object = unsafe { &*object };
    // SAFETY: so many headers of that object.
    let headers = unsafe { core::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let start = (object.dlpi_addr + header.p_vaddr) as usize;
        let code = start..start + header.p_memsz as usize;
        if code.contains(&search.function) {
            search.code = code;
            return 1;
        }
    }
    0
}

/// The code of the library whose `malloc` the program calls.
fn library() -> Range<usize> {
    let mut search = Search { function: function(c"malloc"), code: 0..0 };
    // SAFETY: dl_iterate_phdr(3) with what `look` expects.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.code
}

/// `perf_event_attr` up to its first published size.
#[repr(C)]
struct EventAttributes {
    kind: u32,
    size_bytes: u32,
    config: u64,
    frequency: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

/// Starts sampling the calling thread.
///
/// # Errors
/// An errno.
fn sample() -> Result<(), c_int> {
    const SOFTWARE: u32 = 1;
    const CPU_CLOCK: u64 = 0;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    const IS_FREQUENCY: u64 = 1 << 10;
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    /// fcntl(2): which signal, in place of SIGIO.
    const SET_SIGNAL: c_int = 10;
    let attributes = EventAttributes {
        kind: SOFTWARE,
        size_bytes: size_of::<EventAttributes>() as u32,
        config: CPU_CLOCK,
        frequency: TICKS_PER_S,
        sample_type: 0,
        read_format: 0,
        flags: EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR | IS_FREQUENCY,
        wakeup_events: 1,
        breakpoint_type: 0,
        breakpoint_address: 0,
    };
    // SAFETY: all zeroes is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = tick as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: sigaction(2) with a handler of the kind that SA_SIGINFO asks for.
    let failed = unsafe { libc::sigaction(libc::SIGURG, &action, core::ptr::null_mut()) };
    if failed != 0 {
        return Err(errno());
    }
    // SAFETY: perf_event_open(2): attributes of the size that they state, this thread, any processor, no group.
    let event =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, CLOSE_ON_EXEC) } as c_int;
    if event < 0 {
        return Err(errno());
    }
    // SAFETY: getpid(2).
    let process = unsafe { libc::getpid() };
    for (command, argument) in
        [(SET_SIGNAL, libc::SIGURG), (libc::F_SETOWN, process), (libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK)]
    {
        // SAFETY: fcntl(2) on the event, with a number.
        if unsafe { libc::fcntl(event, command, argument) } < 0 {
            return Err(errno());
        }
    }
    Ok(())
}

/// A sample: where was the program?
extern "C" fn tick(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // (S) pairs with the store in `open_ledger`.
    // SAFETY: null, or mapped for as long as the process runs.
    let Some(ledger) = (unsafe { LEDGER.load(Ordering::Acquire).as_ref() }) else { return };
    // SAFETY: SA_SIGINFO: the third argument is a `ucontext_t`.
    let (at, caller) = unsafe { interrupted(context.cast()) };
    let is_within = WATCHED.contains(at) || (MEMCPY.contains(at) && WATCHED.contains(caller));
    ledger.ticks.fetch_add(1, Ordering::Relaxed);
    ledger.ticks_within.fetch_add(is_within.into(), Ordering::Relaxed);
}

/// The interrupted instruction, and where it would return to if its function had put nothing on the stack: as memcpy of few bytes.
///
/// # Safety
/// The context of an interrupted thread, in a signal's handler.
unsafe fn interrupted(context: *const libc::ucontext_t) -> (usize, usize) {
    // SAFETY: the caller's word.
    let machine = unsafe { &(*context).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    {
        let at = machine.gregs[libc::REG_RIP as usize] as usize;
        let top = machine.gregs[libc::REG_RSP as usize] as usize;
        // A thread of libc's always has a stack below its top word.
        // SAFETY: the top word of the interrupted stack.
        (at, unsafe { core::ptr::with_exposed_provenance::<usize>(top).read_unaligned() })
    }
    #[cfg(target_arch = "aarch64")]
    (machine.pc as usize, machine.regs[30] as usize)
}

fn start() -> Option<()> {
    let path = variable(c"DORMOUSE_ACCOUNT_FILE")?;
    let name = variable(c"DORMOUSE_ACCOUNT")?.to_bytes();
    let ledger = open_ledger(path)?;
    let way = WAYS.iter().find(|way| way.name == name);
    let is_library = name == b"library";
    if is_library {
        let memcpy = function(c"memcpy");
        MEMCPY.set(memcpy..memcpy + MEMCPY_BYTES);
    }
    WATCHED.set(if is_library { library() } else { section() });
    let sampled = match way {
        None if is_library => sample(),
        Some(way) if (way.prepare)() => sample(),
        Some(_) => Err(libc::ENOSYS),
        None => Err(libc::EINVAL),
    };
    if let Err(errno) = sampled {
        ledger.errno.store(errno as u64, Ordering::Relaxed);
        ledger.refused.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    ledger.processes.fetch_add(1, Ordering::Relaxed);
    // SAFETY: getpid(2).
    PROCESS.store(unsafe { libc::getpid() } as u32, Ordering::Relaxed);
    // (T) pairs with the load in `account`: the counters are there.
    ACCOUNT.store(way?.account as *mut (), Ordering::Release);
    Some(())
}

extern "C" fn constructor() {
    let _ = start();
}

extern "C" fn destructor() {
    // SAFETY: getpid(2).
    let is_mine = PROCESS.load(Ordering::Relaxed) == unsafe { libc::getpid() } as u32;
    // (S) as above.
    // SAFETY: null, or mapped for as long as the process runs.
    if let (true, Some(ledger)) = (is_mine, unsafe { LEDGER.load(Ordering::Acquire).as_ref() }) {
        let account = ACCOUNT.load(Ordering::Relaxed);
        let way = WAYS.iter().find(|way| way.account as *mut () == account);
        ledger.crossings.fetch_add(way.map_or(0, |way| (way.crossings)()), Ordering::Relaxed);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
}

/// Accounts for a block that came (1) or goes (−1).
#[inline(always)]
fn account(block: *mut c_void, sign: i64) {
    // (T) pairs with the store in `start`.
    let account = ACCOUNT.load(Ordering::Acquire);
    if account.is_null() || block.is_null() {
        return;
    }
    // SAFETY: null, or one of the functions in `WAYS`.
    let account = unsafe { core::mem::transmute::<*mut (), Account>(account) };
    // SAFETY: a block of libc's, which is in use.
    let bytes = unsafe { libc::malloc_usable_size(block) };
    account(sign * bytes as i64, bytes.max(1).ilog2() as usize % CLASSES);
}

/// As malloc(3).
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: libc's own.
    let block = unsafe { __libc_malloc(size) };
    account(block, 1);
    block
}

/// As calloc(3).
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: libc's own.
    let block = unsafe { __libc_calloc(count, size) };
    account(block, 1);
    block
}

/// As realloc(3).
///
/// # Safety
/// `block` is null or in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    account(block, -1);
    // SAFETY: the caller's word.
    let moved = unsafe { __libc_realloc(block, size) };
    // Where it failed, the old one is still there.
    account(if moved.is_null() && size > 0 { block } else { moved }, 1);
    moved
}

/// As free(3).
///
/// # Safety
/// `block` is null or in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    account(block, -1);
    // SAFETY: the caller's word.
    unsafe { __libc_free(block) }
}

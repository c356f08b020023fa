//! A layer that accounts for memory, put in front of `malloc` by `LD_PRELOAD`, and a sampler that tells what share of a
//! program's time it takes.
//!
//! # The problem
//! Thirumalai (2003) compared allocators of per-CPU memory by an application: the kernel's accounting of committed memory, which
//! every mapping crosses, during a build; and judged by the profile's ticks in that one function. Here the application is a
//! library of its own: each block that is allocated or freed crosses two counters, the bytes in use and the number of blocks
//! of its size that came or went; now and then the bytes in use are compared with what the machine has. As in a kernel, the counters are
//! those of all processes.
//!
//! # The picture
//! ```text
//!   cc1 ── malloc ──▶ libc ──▶ account(+bytes)  ─┐  section dormouse_account: one function for each way, called through a pointer
//!       ── free ────▶ account(−bytes) ──▶ libc  ─┘      bytes  += ±usable size
//!                                                       class[log₂ size] += 1
//!                                                       every 64th time: sum of bytes over all CPUs > memory? → refusals += 1
//!   perf event cpu-clock ── SIGURG, so many times a second ──▶ tick: is the interrupted instruction in that section?
//!                                                                 │
//!   DORMOUSE_ACCOUNT_FILE, at one and the same address in all ◀───┘
//!   processes of the build:   ledger │ handles │ the counters, where the scheme lays them
//! ```
//! The first process, make, prepares the counters; all others are its descendants and find them ready. When it ends, it adds up what they
//! have counted. A process that ends gives back the bytes that it still has.
//!
//! `DORMOUSE_ACCOUNT` names the way: `none` (the call alone), `atomic` (one word for all CPUs), `static`,
//! `pointer-array`, `contiguous`, `offset-table`, `interlaced`. Without it, or where something cannot be had, nothing is accounted for, and
//! the file says why.
//!
//! By `library`, nothing is accounted for either: samples are counted in another library, the first that has a `malloc`, and in `memcpy` that it
//! has called. So `compile-job` finds the tracer's share.
//!
//! # Limits
//! * Main threads are sampled, in user mode. A build's compilers have no other.
//! * A process that ends by `_exit`, `exec` or a signal does not give its bytes back.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dormouse_lab_schemes::{Contiguous, Given, Interlaced, OffsetTable, PointerArray, Room, Scheme, StaticAreas, View};
use dormouse_percpu::{Rseq, possible_cpus};

/// What the file begins with, eight bytes each. The lab reads the same.
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
    /// How often more was in use than the machine has.
    refusals: AtomicU64,
    /// The process that prepared the counters, and whether it is done.
    owner: AtomicU64,
    is_ready: AtomicU64,
}

/// Where the file is mapped, so that an address in it is the same in every process. Linux puts programs, libraries and stacks elsewhere.
const BASE: usize = 0x20_0000_0000;
/// Bytes of it, most of which are never touched.
const SHARED_BYTES: usize = 256 << 20;
/// Bytes of the ledger, and of the handles behind it.
const PAGE_BYTES: usize = 4096;

/// Samples a second of processor time. Some are lost where the kernel's timer is late.
const TICKS_PER_S: u64 = 10_000;

/// Sizes of blocks: 16 bytes to 2^63.
const CLASSES: usize = 64;

/// Of how many calls one compares what is in use with what there is.
const CALLS_PER_CHECK: u32 = 64;

/// Blocks that came, or went: their bytes.
type Account = fn(bytes: i64, class: usize);

/// The way that was chosen, or null.
static ACCOUNT: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static LEDGER: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
/// Whose the words below are: a forked child has its parent's.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Bytes that this process has. A lost addition of a second thread does no harm.
static MINE_BYTES: AtomicI64 = AtomicI64::new(0);
static CALLS: AtomicU32 = AtomicU32::new(0);
/// More bytes in use than this are too many.
static LIMIT_BYTES: AtomicI64 = AtomicI64::new(i64::MAX);

/// libc's registration, which lies elsewhere in each program.
struct Registration(UnsafeCell<MaybeUninit<Rseq>>);

// SAFETY: written once, by the constructor, before `ACCOUNT` sends anybody to read it.
unsafe impl Sync for Registration {}

static RSEQ: Registration = Registration(UnsafeCell::new(MaybeUninit::uninit()));

/// What a process keeps for itself. Whether all CPUs are to be looked at.
#[inline(always)]
fn keep(bytes: i64) -> bool {
    MINE_BYTES.store(MINE_BYTES.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    let calls = CALLS.load(Ordering::Relaxed).wrapping_add(1);
    CALLS.store(calls, Ordering::Relaxed);
    calls.is_multiple_of(CALLS_PER_CHECK)
}

/// Whether there is so much memory; if not, it is noted.
#[inline(always)]
fn check(bytes_in_use: i64) {
    if bytes_in_use > LIMIT_BYTES.load(Ordering::Relaxed) {
        // SAFETY: mapped before `ACCOUNT` said so, for as long as the process runs.
        unsafe { &*LEDGER.load(Ordering::Relaxed) }.refusals.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline(never)]
#[unsafe(link_section = "dormouse_account")]
fn account_none(_: i64, _: usize) {}

/// One word for all CPUs.
#[repr(C)]
struct Atomics {
    bytes: AtomicI64,
    classes: [AtomicU64; CLASSES],
}

fn atomics() -> &'static Atomics {
    // SAFETY: behind the ledger, mapped before `ACCOUNT` said so; the file's zeroes are valid.
    unsafe { &*core::ptr::with_exposed_provenance::<Atomics>(BASE + PAGE_BYTES) }
}

#[inline(never)]
#[unsafe(link_section = "dormouse_account")]
fn account_atomic(bytes: i64, class: usize) {
    let atomics = atomics();
    atomics.bytes.fetch_add(bytes, Ordering::Relaxed);
    atomics.classes[class].fetch_add(1, Ordering::Relaxed);
    if keep(bytes) {
        check(atomics.bytes.load(Ordering::Relaxed));
    }
}

fn crossings_atomic() -> u64 {
    atomics().classes.iter().map(|class| class.load(Ordering::Relaxed)).sum()
}

/// A counter of this scheme.
type Object<S> = <<S as Scheme>::View as View>::Object;

/// Counters of one scheme: they lie behind the ledger, and are as valid in every process, since the file has one address.
struct Counters<S: Scheme> {
    view: S::View,
    bytes: Object<S>,
    classes: [Object<S>; CLASSES],
    cpu_count: u32,
}

impl<S: Scheme> Counters<S> {
    const AT: *mut Counters<S> = {
        assert!(size_of::<Ledger>() <= PAGE_BYTES && size_of::<Counters<S>>() <= PAGE_BYTES);
        core::ptr::without_provenance_mut(BASE + PAGE_BYTES)
    };

    fn prepare() -> bool {
        let cpu_count = possible_cpus();
        let base = core::ptr::with_exposed_provenance_mut(BASE + 2 * PAGE_BYTES);
        // SAFETY: the file's zeroes, from a page's begin; this process alone prepares them, and nothing unmaps them.
        let given = unsafe { Given::new(base, SHARED_BYTES - 2 * PAGE_BYTES) };
        let Some(mut memory) = S::new(cpu_count, Room::Given(given)) else { return false };
        let Some(bytes) = memory.alloc(size_of::<u64>()) else { return false };
        let mut classes = [bytes; CLASSES];
        for class in &mut classes {
            let Some(object) = memory.alloc(size_of::<u64>()) else { return false };
            *class = object;
        }
        let counters = Counters { view: memory.view(), bytes, classes, cpu_count };
        core::mem::forget(memory);
        // SAFETY: a page of the file, which is large enough and which nobody else knows yet.
        unsafe { Counters::<S>::AT.write(counters) };
        true
    }

    #[inline(always)]
    fn of_all() -> &'static Counters<S> {
        // SAFETY: prepared before `ACCOUNT` said so, and never changed since.
        unsafe { &*Counters::<S>::AT }
    }

    #[inline(always)]
    fn add(&self, rseq: Rseq, counter: Object<S>, n: u64) {
        // SAFETY: an object of this scheme, a word on every processor, which nothing but sections on it writes.
        while !unsafe { self.view.add(rseq, counter, n) } {}
    }

    #[inline(always)]
    fn sum(&self, counter: Object<S>) -> u64 {
        let mut sum = 0_u64;
        let mut cpu = 0;
        while cpu < self.cpu_count {
            // SAFETY: the scheme's object and one of its processors.
            let word = unsafe { self.view.address(counter, cpu) };
            // SAFETY: a word of the scheme's, written by sections only.
            sum = sum.wrapping_add(unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed));
            cpu += 1;
        }
        sum
    }
}

#[inline(never)]
#[unsafe(link_section = "dormouse_account")]
fn account_of<S: Scheme>(bytes: i64, class: usize) {
    let counters = Counters::<S>::of_all();
    // SAFETY: the constructor has written it before `ACCOUNT` said so, and nobody writes it since.
    let rseq = unsafe { RSEQ.0.get().cast::<Rseq>().read() };
    counters.add(rseq, counters.bytes, bytes as u64);
    counters.add(rseq, counters.classes[class], 1);
    if keep(bytes) {
        check(counters.sum(counters.bytes) as i64);
    }
}

fn crossings_of<S: Scheme>() -> u64 {
    let counters = Counters::<S>::of_all();
    counters.classes.iter().map(|class| counters.sum(*class)).sum()
}

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
    of::<StaticAreas>(b"static"),
    of::<PointerArray>(b"pointer-array"),
    of::<Contiguous>(b"contiguous"),
    of::<OffsetTable>(b"offset-table"),
    of::<Interlaced>(b"interlaced"),
];

const fn of<S: Scheme>(name: &'static [u8]) -> Way {
    Way { name, prepare: Counters::<S>::prepare, account: account_of::<S>, crossings: crossings_of::<S> }
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

/// The file, mapped where it is in every process.
fn open_ledger(path: &CStr) -> Option<&'static Ledger> {
    // SAFETY: a NUL-terminated path.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: opened above; a file that is as long already stays as it is.
    let is_long_enough = unsafe { libc::ftruncate(file, SHARED_BYTES as libc::off_t) } == 0;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    let wanted = core::ptr::with_exposed_provenance_mut(BASE);
    // SAFETY: a new mapping, which replaces no other.
    let at = unsafe { libc::mmap(wanted, SHARED_BYTES, protection, flags, file, 0) };
    // SAFETY: opened above.
    unsafe { libc::close(file) };
    if !is_long_enough || at != wanted {
        return None;
    }
    at.expose_provenance();
    // (S) pairs with the loads in `tick` and `destructor`.
    LEDGER.store(at.cast(), Ordering::Release);
    // SAFETY: mapped for as long as the process runs, as long as the file, and all access is atomic.
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
    for (command, argument) in [
        (SET_SIGNAL, libc::SIGURG),
        (libc::F_SETOWN, process() as c_int),
        (libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK),
    ] {
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
        // SAFETY: the stack pointer of an interrupted thread points into its stack, whose word it may read; code that has none of its own (which
        // moves the register elsewhere) is not in a build's compilers.
        (at, unsafe { core::ptr::with_exposed_provenance::<usize>(top).read_unaligned() })
    }
    #[cfg(target_arch = "aarch64")]
    (machine.pc as usize, machine.regs[30] as usize)
}

fn process() -> u64 {
    // SAFETY: it takes nothing, writes nothing, and cannot fail: getpid(2).
    unsafe { libc::getpid() as u64 }
}

/// Makes the counters ready, or finds that they are.
///
/// # Errors
/// An errno.
fn prepare(ledger: &Ledger, way: &Way) -> Result<(), c_int> {
    let rseq = Rseq::of_libc().ok_or(libc::ENOSYS)?;
    // SAFETY: the constructor runs once, before anybody is sent to read it.
    unsafe { RSEQ.0.get().cast::<Rseq>().write(rseq) };
    // SAFETY: it takes a number and writes nothing: sysconf(3).
    let [pages, page_bytes] = [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|of| unsafe { libc::sysconf(of) });
    LIMIT_BYTES.store(pages.saturating_mul(page_bytes), Ordering::Relaxed);
    if ledger.owner.compare_exchange(0, process(), Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        if !(way.prepare)() {
            return Err(libc::ENOMEM);
        }
        // (P) pairs with the load below: the counters are there.
        ledger.is_ready.store(1, Ordering::Release);
    }
    // (P) pairs with the store above. Descendants of the first process never come too early.
    if ledger.is_ready.load(Ordering::Acquire) == 1 { Ok(()) } else { Err(libc::EAGAIN) }
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
    let prepared = match way {
        Some(way) => prepare(ledger, way),
        None if is_library => Ok(()),
        None => Err(libc::EINVAL),
    };
    let sampled = prepared.and_then(|()| sample());
    if let Err(errno) = sampled {
        ledger.errno.store(errno as u64, Ordering::Relaxed);
        ledger.refused.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    ledger.processes.fetch_add(1, Ordering::Relaxed);
    PROCESS.store(process() as u32, Ordering::Relaxed);
    // (T) pairs with the load in `account`: the counters are there.
    ACCOUNT.store(way?.account as *mut (), Ordering::Release);
    Some(())
}

extern "C" fn constructor() {
    let _ = start();
}

extern "C" fn destructor() {
    if u64::from(PROCESS.load(Ordering::Relaxed)) != process() {
        return;
    }
    // (T) pairs with the store in `start`.
    let account = ACCOUNT.swap(core::ptr::null_mut(), Ordering::Acquire);
    let Some(way) = WAYS.iter().find(|way| way.account as *mut () == account) else { return };
    // What is still there is the process's end of it: no block of any size.
    (way.account)(-MINE_BYTES.load(Ordering::Relaxed), CLASSES - 1);
    // (S) pairs with the store in `open_ledger`.
    // SAFETY: null, or mapped for as long as the process runs.
    let Some(ledger) = (unsafe { LEDGER.load(Ordering::Acquire).as_ref() }) else { return };
    // All others are its descendants, and it has waited for them.
    if ledger.owner.load(Ordering::Relaxed) == process() {
        ledger.crossings.store((way.crossings)(), Ordering::Relaxed);
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

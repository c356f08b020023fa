//! An `LD_PRELOAD` library that accounts for memory in front of `malloc`, and a sampler that measures the share of a
//! program's time that the accounting takes.
//!
//! # The problem
//! Thirumalai (2003) compared allocators of per-CPU memory by an application: the kernel's accounting of committed
//! memory, which every mapping crosses, during a build. The measure was the number of profile ticks in that one
//! function. Here the application is a library of its own. Each block that is allocated or freed crosses two counters:
//! the bytes in use, and the number of blocks of its size that were allocated or freed. Every 64th time, the bytes in
//! use are compared with the machine's memory. All processes share the counters, as in a kernel.
//!
//! # The picture
//! ```text
//!   cc1 ── malloc ──▶ libc ──▶ account(+bytes)  ─┐  section dormouse_account: one function for each way, called through a pointer
//!       ── free ────▶ account(−bytes) ──▶ libc  ─┘      bytes  += ±usable size
//!                                                       class[log₂ size] += 1
//!                                                       every 64th time: sum of bytes over all CPUs > memory? → refusals += 1
//!   perf event cpu-clock ── SIGURG, DORMOUSE_ACCOUNT_TICKS ────▶ tick: is the interrupted instruction in that section?
//!                           times a second of CPU time            │
//!   DORMOUSE_ACCOUNT_FILE, at one and the same address in all ◀───┘
//!   processes of the build:   ledger │ handles │ the counters, as the scheme lays them out
//! ```
//! The first process, make, prepares the counters. All others are its descendants and find them ready. When the first
//! process ends, it adds up the counters. Each process subtracts the bytes that it still has when it ends.
//!
//! `DORMOUSE_ACCOUNT` names the way: `none` (the call alone), `atomic` (one word for all CPUs), `static`,
//! `pointer-array`, `contiguous`, `offset-table`, `interlaced`. If it is not set, or if something cannot be had,
//! nothing is accounted for, and the file says why.
//!
//! `library` accounts for nothing either. It counts samples in another library, the first one that has a `malloc`, and
//! in `memcpy` when that library has called it. `compile-job` uses it to find the tracer's share.
//!
//! # Limits
//! * Only main threads are sampled, in user mode. A build's compilers have no other threads.
//! * A process that ends by `_exit`, `exec` or a signal does not subtract its bytes.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dormouse_lab_schemes::{Contiguous, Given, Interlaced, OffsetTable, PointerArray, Room, Scheme, StaticAreas, View};
use dormouse_percpu::{Rseq, possible_cpus};

/// Layout of the start of the file, eight bytes a field. The lab reads the same layout.
#[repr(C)]
struct Ledger {
    /// Number of samples.
    ticks: AtomicU64,
    /// Number of samples in the accounting functions.
    ticks_within: AtomicU64,
    /// Number of blocks that were accounted for: the sum of the counters.
    crossings: AtomicU64,
    /// Number of processes that were sampled.
    processes: AtomicU64,
    /// Number of processes that could not be sampled.
    refused: AtomicU64,
    /// Last cause of a refusal, as an errno.
    errno: AtomicU64,
    /// Number of checks that found more bytes in use than the machine has.
    refusals: AtomicU64,
    /// Process that prepared the counters.
    owner: AtomicU64,
    /// 1 when the counters are ready.
    is_ready: AtomicU64,
}

/// Address at which every process maps the file, so that an address in it is valid in all of them. Linux puts programs,
/// libraries and stacks elsewhere.
const BASE: usize = 0x20_0000_0000;
/// Size of the file, in bytes. Most pages are never touched.
const SHARED_BYTES: usize = 256 << 20;
/// Size of the ledger, and of the handles after it, in bytes.
const PAGE_BYTES: usize = 4096;

/// Number of size classes: one for each power of two up to 2^63 bytes.
const CLASSES: usize = 64;

/// Number of calls from one comparison of the bytes in use with the limit to the next.
const CALLS_PER_CHECK: u32 = 64;

/// An accounting function: takes the bytes that were allocated (positive) or freed (negative), and their size class.
type Account = fn(bytes: i64, class: usize);

/// Accounting function of the chosen way, or null.
static ACCOUNT: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static LEDGER: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
/// Process that the statics below belong to. A forked child inherits its parent's value.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Bytes that this process has in use. If a second thread's addition is lost, it does no harm.
static MINE_BYTES: AtomicI64 = AtomicI64::new(0);
static CALLS: AtomicU32 = AtomicU32::new(0);
/// Limit of the bytes in use: the machine's memory.
static LIMIT_BYTES: AtomicI64 = AtomicI64::new(i64::MAX);

/// Copy of libc's rseq registration, whose location differs from program to program.
struct Registration(UnsafeCell<MaybeUninit<Rseq>>);

// SAFETY: written once, by the constructor, before `ACCOUNT` is set; only functions in `ACCOUNT` read it.
unsafe impl Sync for Registration {}

static RSEQ: Registration = Registration(UnsafeCell::new(MaybeUninit::uninit()));

/// Adds to the bytes of this process and counts the call. Returns whether the caller should sum up all CPUs now.
#[inline(always)]
fn keep(bytes: i64) -> bool {
    MINE_BYTES.store(MINE_BYTES.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    let calls = CALLS.load(Ordering::Relaxed).wrapping_add(1);
    CALLS.store(calls, Ordering::Relaxed);
    calls.is_multiple_of(CALLS_PER_CHECK)
}

/// Counts a refusal if more bytes are in use than the limit.
#[inline(always)]
fn check(bytes_in_use: i64) {
    if bytes_in_use > LIMIT_BYTES.load(Ordering::Relaxed) {
        // SAFETY: called only through `ACCOUNT`, which is set after the ledger is mapped; the mapping stays for as long
        // as the process runs.
        unsafe { &*LEDGER.load(Ordering::Relaxed) }.refusals.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline(never)]
#[unsafe(link_section = "dormouse_account")]
fn account_none(_: i64, _: usize) {}

/// Counters of the way `atomic`: one word for all CPUs.
#[repr(C)]
struct Atomics {
    bytes: AtomicI64,
    classes: [AtomicU64; CLASSES],
}

fn atomics() -> &'static Atomics {
    // SAFETY: the page after the ledger; callers run through `ACCOUNT`, which is set after the file is mapped; the
    // file's zeroes are valid.
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

/// A counter of a scheme.
type Object<S> = <<S as Scheme>::View as View>::Object;

/// Counters of one scheme. They are in the file, after the ledger. They are valid in every process, since all map the
/// file at one address.
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
        // SAFETY: zeroes of the file, from the start of a page; this process alone prepares them, and nothing unmaps
        // them.
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
        // SAFETY: a page of the file, which is large enough; no other process uses it before `is_ready` is set.
        unsafe { Counters::<S>::AT.write(counters) };
        true
    }

    #[inline(always)]
    fn of_all() -> &'static Counters<S> {
        // SAFETY: prepared before `ACCOUNT` was set, and never changed since.
        unsafe { &*Counters::<S>::AT }
    }

    #[inline(always)]
    fn add(&self, rseq: Rseq, counter: Object<S>, n: u64) {
        // SAFETY: an object of this scheme, with a word on every CPU that only critical sections on that CPU write.
        while !unsafe { self.view.add(rseq, self.view.handle(counter), n) } {}
    }

    #[inline(always)]
    fn sum(&self, counter: Object<S>) -> u64 {
        let mut sum = 0_u64;
        let mut cpu = 0;
        while cpu < self.cpu_count {
            // SAFETY: the scheme's object and one of its CPUs.
            let word = unsafe { self.view.address(self.view.handle(counter), cpu) };
            // SAFETY: a word of the scheme, which only critical sections write.
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
    // SAFETY: the constructor wrote it before it set `ACCOUNT`, and nothing writes it since.
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

/// A way of accounting: its name, and the functions that prepare the counters, that prepare a further process, that
/// account for a block, and that sum up all blocks.
struct Way {
    name: &'static [u8],
    prepare: fn() -> bool,
    attach: fn(),
    account: Account,
    crossings: fn() -> u64,
}

const WAYS: [Way; 7] = [
    Way { name: b"none", prepare: || true, attach: || (), account: account_none, crossings: || 0 },
    Way { name: b"atomic", prepare: || true, attach: || (), account: account_atomic, crossings: crossings_atomic },
    of::<StaticAreas<0>>(b"static"),
    of::<PointerArray>(b"pointer-array"),
    of::<Contiguous>(b"contiguous"),
    of::<OffsetTable>(b"offset-table"),
    of::<Interlaced>(b"interlaced"),
];

const fn of<S: Scheme>(name: &'static [u8]) -> Way {
    let attach = || Counters::<S>::of_all().view.attach();
    Way { name, prepare: Counters::<S>::prepare, attach, account: account_of::<S>, crossings: crossings_of::<S> }
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: a NUL-terminated name; the constructor runs before any code changes the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: an environment variable is NUL-terminated, and stays for as long as the constructor runs.
    Some(unsafe { CStr::from_ptr(value) })
}

fn errno() -> c_int {
    // SAFETY: no arguments.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's errno, valid for as long as the thread runs.
    unsafe { errno.read() }
}

/// Opens the file and maps it at [`BASE`].
fn open_ledger(path: &CStr) -> Option<&'static Ledger> {
    // SAFETY: a NUL-terminated path.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: opened above; a file that already has this length stays as it is.
    let is_long_enough = unsafe { libc::ftruncate(file, SHARED_BYTES as libc::off_t) } == 0;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    let wanted = core::ptr::with_exposed_provenance_mut(BASE);
    // SAFETY: a new mapping, which replaces no other (MAP_FIXED_NOREPLACE).
    let at = unsafe { libc::mmap(wanted, SHARED_BYTES, protection, flags, file, 0) };
    // SAFETY: opened above.
    unsafe { libc::close(file) };
    if !is_long_enough || at != wanted {
        return None;
    }
    at.expose_provenance();
    // (S) pairs with the loads in `tick` and `destructor`.
    LEDGER.store(at.cast(), Ordering::Release);
    // SAFETY: mapped for as long as the process runs, in the file's full length, and all access is atomic.
    Some(unsafe { &*at.cast::<Ledger>() })
}

/// A range of code addresses, set before sampling starts.
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

/// Code in which samples are counted: the accounting functions, or another library.
static WATCHED: Code = Code::new();
/// libc's memcpy. Samples in it count if the watched library has called it.
static MEMCPY: Code = Code::new();
/// Maximum size of memcpy in glibc, in bytes. The range also has other functions, but the watched library does not call
/// them, so their return addresses are not in it.
const MEMCPY_BYTES: usize = 2 << 10;

/// Returns the address range of the accounting functions.
fn section() -> Range<usize> {
    unsafe extern "C" {
        #[link_name = "__start_dormouse_account"]
        static START: u8;
        #[link_name = "__stop_dormouse_account"]
        static STOP: u8;
    }
    (&raw const START).addr()..(&raw const STOP).addr()
}

/// Returns the address of the first definition that the program finds for a name.
fn function(name: &CStr) -> usize {
    // SAFETY: a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.addr()
}

/// A function's address, and the code of the loaded object that has it.
struct Search {
    function: usize,
    code: Range<usize>,
}

/// Callback of `dl_iterate_phdr`: looks for the segment that has the function.
unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: `dl_iterate_phdr` passes on the pointer that `library` gave it.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: the loader's description of a loaded object, valid for the length of this call.
    let object = unsafe { &*object };
    // SAFETY: `dlpi_phdr` points to `dlpi_phnum` headers of that object.
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

/// Returns the code of the library whose `malloc` the program calls.
fn library() -> Range<usize> {
    let mut search = Search { function: function(c"malloc"), code: 0..0 };
    // SAFETY: dl_iterate_phdr(3) with the `Search` that `look` expects.
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

/// Starts sampling the calling thread, so many times for each second of CPU time. Some samples are lost when the kernel's
/// timer is late.
///
/// # Errors
/// An errno.
fn sample(ticks_per_s: u64) -> Result<(), c_int> {
    const SOFTWARE: u32 = 1;
    const CPU_CLOCK: u64 = 0;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    const IS_FREQUENCY: u64 = 1 << 10;
    const CLOSE_ON_EXEC: libc::c_ulong = 8;
    /// fcntl(2), F_SETSIG: sets the signal that is sent in place of SIGIO.
    const SET_SIGNAL: c_int = 10;
    let attributes = EventAttributes {
        kind: SOFTWARE,
        size_bytes: size_of::<EventAttributes>() as u32,
        config: CPU_CLOCK,
        frequency: ticks_per_s,
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
    // SAFETY: perf_event_open(2): attributes of the size that they state, this thread, any CPU, no group.
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

/// Signal handler: counts a sample, and whether the interrupted instruction is in the watched code.
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

/// Returns the address of the interrupted instruction, and its function's return address. The latter is right if the
/// function has put nothing on the stack, as memcpy of few bytes.
///
/// # Safety
/// `context` is the context of an interrupted thread, and the caller is in the signal's handler.
unsafe fn interrupted(context: *const libc::ucontext_t) -> (usize, usize) {
    // SAFETY: `context` is valid while the handler runs: the caller is in the handler that received it.
    let machine = unsafe { &(*context).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    {
        let at = machine.gregs[libc::REG_RIP as usize] as usize;
        let top = machine.gregs[libc::REG_RSP as usize] as usize;
        // SAFETY: the stack pointer of an interrupted thread points into its stack, which the thread may read. A
        // build's compilers have no code that uses the register for something else.
        (at, unsafe { core::ptr::with_exposed_provenance::<usize>(top).read_unaligned() })
    }
    #[cfg(target_arch = "aarch64")]
    (machine.pc as usize, machine.regs[30] as usize)
}

fn process() -> u64 {
    // SAFETY: getpid(2) takes nothing, writes nothing, and cannot fail.
    unsafe { libc::getpid() as u64 }
}

/// Prepares the counters, or checks that they are ready.
///
/// # Errors
/// An errno.
fn prepare(ledger: &Ledger, way: &Way) -> Result<(), c_int> {
    let rseq = Rseq::of_libc().ok_or(libc::ENOSYS)?;
    // SAFETY: the constructor runs once, before it sets `ACCOUNT`; only functions in `ACCOUNT` read the registration.
    unsafe { RSEQ.0.get().cast::<Rseq>().write(rseq) };
    // SAFETY: sysconf(3) takes a number and writes nothing.
    let [pages, page_bytes] = [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|of| unsafe { libc::sysconf(of) });
    LIMIT_BYTES.store(pages.saturating_mul(page_bytes), Ordering::Relaxed);
    if ledger.owner.compare_exchange(0, process(), Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        if !(way.prepare)() {
            return Err(libc::ENOMEM);
        }
        // (P) pairs with the load below: publishes the counters.
        ledger.is_ready.store(1, Ordering::Release);
    }
    // (P) pairs with the store above. Descendants of the first process always find the counters ready.
    if ledger.is_ready.load(Ordering::Acquire) != 1 {
        return Err(libc::EAGAIN);
    }
    (way.attach)();
    Ok(())
}

fn start() -> Option<()> {
    let path = variable(c"DORMOUSE_ACCOUNT_FILE")?;
    let name = variable(c"DORMOUSE_ACCOUNT")?.to_bytes();
    let ticks_per_s = variable(c"DORMOUSE_ACCOUNT_TICKS")?.to_str().ok()?.parse().ok()?;
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
    let sampled = prepared.and_then(|()| sample(ticks_per_s));
    if let Err(errno) = sampled {
        ledger.errno.store(errno as u64, Ordering::Relaxed);
        ledger.refused.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    ledger.processes.fetch_add(1, Ordering::Relaxed);
    PROCESS.store(process() as u32, Ordering::Relaxed);
    // (T) pairs with the load in `account`: publishes the counters.
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
    // Subtracts the bytes that the process still has. The last class stands for no size of block.
    (way.account)(-MINE_BYTES.load(Ordering::Relaxed), CLASSES - 1);
    // (S) pairs with the store in `open_ledger`.
    // SAFETY: null, or mapped for as long as the process runs.
    let Some(ledger) = (unsafe { LEDGER.load(Ordering::Acquire).as_ref() }) else { return };
    // All other processes are descendants of the owner, and it has waited for them.
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

/// Accounts for a block that was allocated (1) or is about to be freed (−1).
#[inline(always)]
fn account(block: *mut c_void, sign: i64) {
    // (T) pairs with the store in `start`.
    let account = ACCOUNT.load(Ordering::Acquire);
    if account.is_null() || block.is_null() {
        return;
    }
    // SAFETY: not null, so one of the functions in `WAYS`.
    let account = unsafe { core::mem::transmute::<*mut (), Account>(account) };
    // SAFETY: a block of libc's allocator that is in use.
    let bytes = unsafe { libc::malloc_usable_size(block) };
    account(sign * bytes as i64, bytes.max(1).ilog2() as usize % CLASSES);
}

/// malloc(3), with accounting.
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: libc's own malloc.
    let block = unsafe { __libc_malloc(size) };
    account(block, 1);
    block
}

/// calloc(3), with accounting.
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: libc's own calloc.
    let block = unsafe { __libc_calloc(count, size) };
    account(block, 1);
    block
}

/// realloc(3), with accounting.
///
/// # Safety
/// `block` must be null or in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    account(block, -1);
    // SAFETY: `block` is null or in use, as the caller guarantees.
    let moved = unsafe { __libc_realloc(block, size) };
    // If it failed, the old block is still in use.
    account(if moved.is_null() && size > 0 { block } else { moved }, 1);
    moved
}

/// free(3), with accounting.
///
/// # Safety
/// `block` must be null or in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    account(block, -1);
    // SAFETY: `block` is null or in use, as the caller guarantees.
    unsafe { __libc_free(block) }
}

//! Snapshots on signals: handlers of crashes and of other signals, and the alternate stacks that handlers run on.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use dormouse_abi::trigger::SIGNAL_MAX;

use crate::snapshot::{Prepared, Snapshot};
use crate::thread;

/// Signals of [`Trigger::Crash`].
const CRASHES: [(c_int, &str); 7] = [
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGTRAP, "SIGTRAP"),
    (libc::SIGSYS, "SIGSYS"),
    (libc::SIGABRT, "SIGABRT"),
];

/// Has `snapshot` asked for when the program crashes.
///
/// # Errors
/// What sigaction(2) says.
pub(crate) fn on_crash(snapshot: &Snapshot) -> std::io::Result<()> {
    want_stacks();
    ensure_alternate_stack();
    hooks(snapshot).try_for_each(Hook::install)
}

/// The same from the first event on.
pub(crate) fn on_crash_after_first_event(snapshot: &Snapshot) {
    want_stacks();
    let hooks = Box::into_raw(Box::new(hooks(snapshot).collect::<Hooks>()));
    // (W') pairs with (W). One that is listed twice is left where it is.
    UNTIL_FIRST_EVENT.store(hooks, Ordering::Release);
    // Also where there are no stacks to be had.
    thread::at_first_event(meet_thread);
}

/// Has `snapshot` asked for when a signal arrives that is no crash.
///
/// # Errors
/// What sigaction(2) says.
pub(crate) fn on_other_signal(signal: c_int, snapshot: &Snapshot) -> std::io::Result<()> {
    Hook::new(signal, snapshot.prepare(&format!("signal {signal}")), false).install()
}

fn hooks(snapshot: &Snapshot) -> impl Iterator<Item = Box<Hook>> {
    CRASHES.iter().map(|&(signal, name)| Hook::new(signal, snapshot.prepare(name), true))
}

/// What a signal has to do. Never freed once its handler is installed, which may be under way.
struct Hook {
    signal: c_int,
    prepared: Prepared,
    is_crash: bool,
    /// What was installed before.
    former: libc::sigaction,
}

static HOOKS: [AtomicPtr<Hook>; SIGNAL_MAX as usize + 1] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SIGNAL_MAX as usize + 1];
/// Hooks of crashes that the environment asks for, until the first event. As `main` starts, Rust's runtime looks whether
/// anybody handles SIGSEGV, and if so does without its own handler, which tells of overflows of stacks.
static UNTIL_FIRST_EVENT: AtomicPtr<Hooks> = AtomicPtr::new(core::ptr::null_mut());
/// Each where it will stay: installing one allocates nothing.
type Hooks = Vec<Box<Hook>>;
/// Whether threads are to have alternate stacks.
static ARE_STACKS_WANTED: AtomicBool = AtomicBool::new(false);
/// Whether a crash has been told of: a handler that was installed before may abort, which is the same crash.
static CRASHED: AtomicBool = AtomicBool::new(false);

fn hook(signal: c_int) -> Option<&'static Hook> {
    let slot = HOOKS.get(usize::try_from(signal).ok()?)?;
    // (V) pairs with (V'). SAFETY: null, or never freed.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

impl Hook {
    fn new(signal: c_int, prepared: Prepared, is_crash: bool) -> Box<Hook> {
        // SAFETY: an empty mask and no flags are a valid action.
        let former = unsafe { core::mem::zeroed() };
        Box::new(Hook { signal, prepared, is_crash, former })
    }

    /// Installs the handler, or changes what it sends. Allocates nothing; async-signal-safe.
    fn install(mut self: Box<Self>) -> std::io::Result<()> {
        let signal = self.signal;
        let failed = std::io::Error::last_os_error;
        // SAFETY: sigaction(2) with room for the answer.
        if unsafe { libc::sigaction(signal, core::ptr::null(), &raw mut self.former) } != 0 {
            return Err(failed());
        }
        let ours = on_signal as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        let is_installed = self.former.sa_sigaction == ours as usize;
        if let (true, Some(hook)) = (is_installed, hook(signal)) {
            self.former = hook.former;
        }
        // (V') pairs with (V). The one before is left where it is: a handler may be reading it.
        HOOKS[signal as usize].store(Box::into_raw(self), Ordering::Release);
        if is_installed {
            return Ok(());
        }
        // SAFETY: a struct of integers, a set of bits and a pointer that may be null: zeroes are a valid one.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = ours as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the handler is async-signal-safe, and of this object, which is pinned.
        if unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) } != 0 {
            return Err(failed());
        }
        Ok(())
    }
}

/// To be called for each thread that writes an event, when it does so first. Async-signal-safe.
fn meet_thread() {
    // (W) pairs with (W').
    let hooks = UNTIL_FIRST_EVENT.load(Ordering::Acquire);
    if !hooks.is_null()
        && UNTIL_FIRST_EVENT
            .compare_exchange(hooks, core::ptr::null_mut(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    {
        // SAFETY: made by `on_crash_after_first_event`, and this thread's alone now. It is not freed, because a handler may be running.
        let hooks: &mut Hooks = unsafe { &mut *hooks };
        while let Some(hook) = hooks.pop() {
            // One that the system refuses is none.
            let _ = hook.install();
        }
    }
    if ARE_STACKS_WANTED.load(Ordering::Relaxed) {
        ensure_alternate_stack();
    }
}

/// Bytes of an alternate stack, most of which are never touched.
const STACK_SIZE_BYTES: usize = 64 << 10;

/// What the calling thread has for an alternate stack. Async-signal-safe.
fn alternate_stack() -> Option<libc::stack_t> {
    let mut stack = core::mem::MaybeUninit::uninit();
    // SAFETY: sigaltstack(2) with room for the answer.
    let is_known = unsafe { libc::sigaltstack(core::ptr::null(), stack.as_mut_ptr()) } == 0;
    // SAFETY: filled in, since the answer was 0.
    is_known.then(|| unsafe { stack.assume_init() })
}

/// The last bytes of an alternate stack's mapping.
struct StackEnd {
    /// The thread that has it: its id, for as long as it lives.
    owner: AtomicU32,
    /// The one that was mapped before it, or null. Written before others see it.
    next: *const StackEnd,
}

/// All alternate stacks that were ever mapped; as many as threads had one at a time. Never freed: a thread that ends takes nothing back, because
/// what could have it do so (`pthread_setspecific`, a thread-local value with a destructor) may allocate, and this runs in handlers.
static STACKS: AtomicPtr<StackEnd> = AtomicPtr::new(core::ptr::null_mut());

fn stacks() -> impl Iterator<Item = &'static StackEnd> {
    // (K) pairs with (K'). SAFETY: null, or never freed.
    let first = unsafe { STACKS.load(Ordering::Acquire).as_ref() };
    // SAFETY: null, or never freed; written before (K').
    core::iter::successors(first, |stack| unsafe { stack.next.as_ref() })
}

/// Gives the calling thread an alternate stack if it has none, so that an overflow of its own can be told of.
/// Async-signal-safe; allocates by mmap(2) alone.
fn ensure_alternate_stack() {
    let Some(mut stack) = alternate_stack().filter(|stack| stack.ss_flags & libc::SS_DISABLE != 0) else { return };
    let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let is_free = |stack: &&StackEnd| {
        let owner = stack.owner.load(Ordering::Relaxed);
        // This thread has none, so one with its id is of a thread that had the id before.
        // SAFETY: tgkill(2) of no signal asks only.
        let is_gone = || owner == me || unsafe { libc::syscall(libc::SYS_tgkill, pid, owner, 0) } != 0;
        // Relaxed: a thread that is gone does not write to its stack any more, and nobody reads what it wrote.
        is_gone() && stack.owner.compare_exchange(owner, me, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    let Some(end) = stacks().find(is_free).or_else(|| map_stack(me)) else { return };
    let size_bytes = STACK_SIZE_BYTES - size_of::<StackEnd>();
    let base = core::ptr::from_ref(end).cast::<u8>().wrapping_sub(size_bytes).cast_mut();
    (stack.ss_sp, stack.ss_size, stack.ss_flags) = (base.cast(), size_bytes, 0);
    // SAFETY: memory below the end, which is this thread's alone as long as it lives.
    if unsafe { libc::sigaltstack(&raw const stack, core::ptr::null_mut()) } != 0 {
        end.owner.store(0, Ordering::Relaxed);
    }
}

/// A fresh alternate stack. Async-signal-safe.
fn map_stack(owner: u32) -> Option<&'static StackEnd> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
    // SAFETY: a fresh mapping wherever there is room.
    let base = unsafe { libc::mmap(core::ptr::null_mut(), STACK_SIZE_BYTES, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    let end = base.cast::<u8>().wrapping_add(STACK_SIZE_BYTES - size_of::<StackEnd>()).cast::<StackEnd>();
    let mut next = STACKS.load(Ordering::Relaxed);
    loop {
        // SAFETY: inside the fresh mapping, aligned because its end is; nobody else has it until the exchange.
        unsafe { end.write(StackEnd { owner: AtomicU32::new(owner), next }) };
        // (K') Release pairs with (K); so does every later exchange of the word, by which this one stays published.
        match STACKS.compare_exchange_weak(next, end, Ordering::Release, Ordering::Relaxed) {
            // SAFETY: written above, and never unmapped.
            Ok(_) => return unsafe { end.as_ref() },
            Err(now) => next = now,
        }
    }
}

/// In a forked child: its one thread keeps the stack that it had under another id, and the others have nobody.
pub(crate) fn after_fork() {
    // No system call where there are none.
    let mut stacks = stacks().peekable();
    let own = stacks.peek().and_then(|_| alternate_stack()).map(|stack| stack.ss_sp.addr() + stack.ss_size);
    for stack in stacks {
        let is_own = own == Some(core::ptr::from_ref(stack).addr());
        stack.owner.store(if is_own { thread::own_pid() } else { 0 }, Ordering::Relaxed);
    }
}

/// From now on threads get alternate stacks.
fn want_stacks() {
    ARE_STACKS_WANTED.store(true, Ordering::Relaxed);
    thread::at_first_event(meet_thread);
}

/// Async-signal-safe: system calls, and memory that is never freed.
extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(hook) = hook(signal) else { return };
    // SAFETY: this thread's own.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: the thread's errno, which lives as long as the thread.
    let errno = unsafe { errno_at.read() };
    if !hook.is_crash || !CRASHED.swap(true, Ordering::Relaxed) {
        hook.prepared.request();
    }
    if hook.is_crash {
        // SAFETY: the kernel's word for what has happened.
        let is_sent = unsafe { (*info).si_code } <= 0;
        let mut former = hook.former;
        if !is_sent && former.sa_sigaction == libc::SIG_IGN {
            // Nobody can ignore what an instruction of his own has done: the kernel then takes the default action.
            former.sa_sigaction = libc::SIG_DFL;
        }
        // SAFETY: what was installed before, or the default.
        unsafe { libc::sigaction(signal, &raw const former, core::ptr::null_mut()) };
        // An instruction that faults does so again when this returns; after a trap, a forbidden system call, or a signal that was sent,
        // the program would go on.
        let comes_again = !is_sent && matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE);
        if !comes_again {
            send_again(signal, info);
        }
    } else {
        call(&hook.former, signal, info, context);
    }
    // SAFETY: the thread's errno, which lives as long as the thread.
    unsafe { errno_at.write(errno) };
}

/// Sends a signal, with what the kernel has said of it, to this very thread, where it waits for the handler's end.
fn send_again(signal: c_int, info: *const libc::siginfo_t) {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    // SAFETY: rt_tgsigqueueinfo(2), which reads the kernel's own description. A thread may say of a signal to itself whatever it likes.
    if unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info) } != 0 {
        // SAFETY: sends a signal to this very thread.
        unsafe { libc::raise(signal) };
    }
}

/// Calls a handler, if the action is one.
fn call(action: &libc::sigaction, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let address = action.sa_sigaction;
    if address == libc::SIG_DFL || address == libc::SIG_IGN {
        return;
    }
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: so flagged, it is a function of this type.
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = unsafe { core::mem::transmute(address) };
        handler(signal, info, context);
    } else {
        // SAFETY: otherwise of this one.
        let handler: extern "C" fn(c_int) = unsafe { core::mem::transmute(address) };
        handler(signal);
    }
}

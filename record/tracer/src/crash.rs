//! Snapshots on signals: crashes, other signals, and the alternate stacks that handlers run on.
//!
//! A crash is a signal that ends the process. A fault alone is not a crash, because programs handle faults of their own
//! in normal operation. A crash is reported at the moment at which the default action would be taken: our handler
//! replaces the default action.
//!
//! ```text
//!   the program has set     the kernel has      when the signal arrives
//!   SIG_DFL                 on_default          snapshot, then the default action
//!   SIG_IGN                 on_ignored          a fault: as above, because the kernel does not ignore it; else nothing
//!   a handler               around              calls that handler, then settles the disposition that it has left
//! ```
//! `settle` installs what the second column lists: when the trigger is installed, after each call by which the program
//! changes a disposition (only where those functions are ours, [`crate::interpose`]), and after each of the program's
//! handlers. So a handler that resets its signal and returns leaves `on_default`, which runs if the fault repeats. For
//! a handler with `SA_RESETHAND`, `around` is installed without that flag and does the reset itself. A program that
//! asks libc for a disposition is told the first column.
//!
//! A handler that does not return ends the process or jumps out of itself. Each thread remembers which handler was
//! called last, and where on the stack: if the thread exits below that address with the signal still blocked, the
//! process ends because of the signal. `abort` takes the default action itself after a handler of SIGABRT returns. That
//! `abort` has raised the signal is recognised by its address on the stack.
//!
//! Not reported: a fault while its signal is blocked (also in a handler of the same signal), for which the kernel ends
//! the process at once; a stack overflow if the program's own handler runs on no alternate stack; dispositions that are
//! changed to the default without libc or without our functions.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

use dormouse_abi::trigger::SIGNAL_MAX;
use dormouse_locks::call_loader;

use crate::arch;
use crate::disposition::{Disposition, Handler, is_blocked};
use crate::snapshot::{PreparedRequest, Snapshot};
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

/// Requests `snapshot` when the program crashes.
///
/// # Errors
/// The error of sigaction(2).
pub(crate) fn on_crash(snapshot: &Snapshot) -> std::io::Result<()> {
    prepare();
    ensure_alternate_stack();
    hooks(snapshot).try_for_each(Hook::install_anywhere)
}

/// Requests `snapshot` when the program crashes, from the program's first event on.
pub(crate) fn on_crash_after_first_event(snapshot: &Snapshot) {
    prepare();
    let hooks = Box::into_raw(Box::new(hooks(snapshot).collect::<Hooks>()));
    // (W') pairs with (W). A list that an earlier call stored is leaked.
    UNTIL_FIRST_EVENT.store(hooks, Ordering::Release);
    // Also registered if no alternate stacks can be had.
    thread::at_first_event(meet_thread);
}

/// Requests `snapshot` when a signal arrives that is not a crash.
///
/// # Errors
/// The error of sigaction(2).
pub(crate) fn on_other_signal(signal: c_int, snapshot: &Snapshot) -> std::io::Result<()> {
    Hook::new(signal, snapshot.prepare(&format!("signal {signal}")), false).install()
}

fn hooks(snapshot: &Snapshot) -> impl Iterator<Item = Box<Hook>> {
    CRASHES.iter().map(|&(signal, name)| Hook::new(signal, snapshot.prepare(name), true))
}

/// Action for a signal. Never freed once installed, because its handler may be running. Another copy of the tracer may
/// have made it.
#[repr(C)]
struct Hook {
    signal: c_int,
    is_crash: bool,
    /// Disposition before installation, for a signal that is not a crash.
    former: Disposition,
    /// Requests the snapshot in the session of the copy that made the hook.
    ask: unsafe extern "C" fn(*const Hook),
    /// Prepared request, used by `ask` alone.
    prepared: PreparedRequest,
}

/// # Safety
/// This copy of the tracer made the hook.
unsafe extern "C" fn ask(hook: *const Hook) {
    // SAFETY: the caller guarantees that this copy made the hook, so it is a `Hook` of this layout. Installed hooks are
    // never freed.
    unsafe { &*hook }.prepared.request();
}

static HOOKS: [AtomicPtr<Hook>; SIGNAL_MAX as usize + 1] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SIGNAL_MAX as usize + 1];
/// Hooks for crashes that the environment requests, kept until the first event. Before `main`, Rust's runtime checks
/// whether SIGSEGV has a handler; if it has one, the runtime does not install its own, which reports stack overflows.
static UNTIL_FIRST_EVENT: AtomicPtr<Hooks> = AtomicPtr::new(core::ptr::null_mut());
/// Boxed hooks have their final address, so installing one allocates nothing.
type Hooks = Vec<Box<Hook>>;
/// Whether threads should get alternate stacks.
static ARE_STACKS_WANTED: AtomicBool = AtomicBool::new(false);

fn hook(signal: c_int) -> Option<&'static Hook> {
    let slot = HOOKS.get(usize::try_from(signal).ok()?)?;
    // (V) pairs with (V'). SAFETY: null, or never freed.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

impl Hook {
    fn ask(&self) {
        // SAFETY: `ask` was set by the copy that made the hook.
        unsafe { (self.ask)(self) };
    }

    fn new(signal: c_int, prepared: PreparedRequest, is_crash: bool) -> Box<Hook> {
        Box::new(Hook { signal, is_crash, former: Disposition::new(libc::SIG_DFL, 0), ask, prepared })
    }

    /// Installs the hook through the tracer copy whose functions the program calls instead of libc's, or here if there
    /// is no such copy. See [`Hook::install`].
    fn install_anywhere(self: Box<Self>) -> std::io::Result<()> {
        let elsewhere = INSTALLER.load(Ordering::Relaxed);
        if elsewhere.is_null() {
            return self.install();
        }
        // SAFETY: the function that is exported under this name has this type.
        let install =
            unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(elsewhere) };
        // SAFETY: a hook of this version, which this function owns.
        match unsafe { install(Box::into_raw(self).cast()) } {
            0 => Ok(()),
            errno => Err(std::io::Error::from_raw_os_error(errno)),
        }
    }

    /// Installs the handler, or replaces its hook. Allocates nothing; async-signal-safe.
    fn install(self: Box<Self>) -> std::io::Result<()> {
        Box::leak(self).install_here()
    }

    fn install_here(&'static mut self) -> std::io::Result<()> {
        let (signal, is_crash) = (self.signal, self.is_crash);
        let present = Disposition::of(signal).ok_or_else(std::io::Error::last_os_error)?;
        let ours = on_signal as Handler as usize;
        let is_installed = present.handler == ours;
        self.former = match hook(signal) {
            Some(hook) if is_installed => hook.former,
            _ => present,
        };
        // (V') pairs with (V). The former hook is not freed: a handler may be reading it.
        HOOKS[signal as usize].store(self, Ordering::Release);
        if is_crash {
            settle(signal);
        } else if !is_installed && !Disposition::new(ours, FLAGS).install(signal) {
            return Err(std::io::Error::last_os_error());
        }
        Ok(())
    }
}

/// [`install`] of the tracer copy that manages the process's dispositions, or null. It is the copy whose functions the
/// program calls instead of libc's.
static INSTALLER: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Installs a hook that a copy of the tracer has made. Returns 0 or an errno.
///
/// # Safety
/// The hook was made by [`Hook::new`] of the same version, and the caller gives up ownership of it.
pub(crate) unsafe fn install(hook: *mut c_void) -> c_int {
    // SAFETY: the caller guarantees a hook of this version and gives up ownership, so the reference is exclusive. The
    // hook is never freed, even on failure.
    let installed = unsafe { &mut *hook.cast::<Hook>() }.install_here();
    installed.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EINVAL))
}

/// Flags of the tracer's own handlers.
const FLAGS: c_int = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;

/// The program's handler of a signal, as one word: its address, which uses only the bits below these flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnHandler(u64);

/// The handler takes three arguments (`SA_SIGINFO`).
const TAKES_INFO: u64 = 1 << 63;
/// The handler is called once (`SA_RESETHAND`).
const IS_RESET: u64 = 1 << 62;

/// Program's handler that `around` calls, by signal, or 0. Relaxed: each is a word of its own.
static OWN: [AtomicU64; SIGNAL_MAX as usize + 1] = [const { AtomicU64::new(0) }; SIGNAL_MAX as usize + 1];

impl OwnHandler {
    fn of(disposition: &Disposition) -> OwnHandler {
        let bit = |flag, bit| if disposition.has(flag) { bit } else { 0 };
        OwnHandler(disposition.handler as u64 | bit(libc::SA_SIGINFO, TAKES_INFO) | bit(libc::SA_RESETHAND, IS_RESET))
    }

    /// Returns the program's handler of a signal; its word is 0 if there is none. Wait-free; async-signal-safe.
    pub(crate) fn of_signal(signal: c_int) -> OwnHandler {
        let slot = usize::try_from(signal).ok().and_then(|signal| OWN.get(signal));
        OwnHandler(slot.map_or(0, |slot| slot.load(Ordering::Relaxed)))
    }

    fn address(self) -> usize {
        (self.0 & !(TAKES_INFO | IS_RESET)) as usize
    }

    /// Returns the handler that the program has set, given the kernel's `handler`; `self` is the program's handler of
    /// the signal at that time. A handler that is not the tracer's is returned unchanged.
    pub(crate) fn told(self, handler: usize) -> usize {
        match handler {
            _ if handler == on_default as Handler as usize => libc::SIG_DFL,
            _ if handler == on_ignored as Handler as usize => libc::SIG_IGN,
            _ if handler == around as Handler as usize => self.address(),
            handler => handler,
        }
    }

    /// Replaces the tracer's handler and flags in a libc `sigaction` by those that the program has set.
    pub(crate) fn tell(self, action: &mut libc::sigaction) {
        let told = self.told(action.sa_sigaction);
        if told == action.sa_sigaction {
            return;
        }
        let is_handler = action.sa_sigaction == around as Handler as usize;
        let flag = |bit, flag| if is_handler && self.0 & bit != 0 { flag } else { 0 };
        let flags = if is_handler { action.sa_flags & !libc::SA_SIGINFO } else { 0 };
        action.sa_flags = flags | flag(TAKES_INFO, libc::SA_SIGINFO) | flag(IS_RESET, libc::SA_RESETHAND);
        action.sa_sigaction = told;
    }

    /// # Safety
    /// The conditions for calling the handler for this signal.
    unsafe fn call(self, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the caller guarantees that this is the address of a handler. On all 64-bit machines that Linux runs
        // on, a function may be passed more arguments than it takes.
        let handler = unsafe { core::mem::transmute::<usize, Handler>(self.address()) };
        // SAFETY: the caller guarantees what calling the handler for this signal requires.
        unsafe { handler(signal, info, context) };
    }
}

/// Reinstalls the tracer's handler after the program may have changed a disposition, if crashes of this signal are
/// reported. Async-signal-safe.
pub(crate) fn settle(signal: c_int) {
    if !hook(signal).is_some_and(|hook| hook.is_crash) {
        return;
    }
    let Some(present) = Disposition::of(signal) else { return };
    let settled = match present.handler {
        libc::SIG_DFL => Disposition::new(on_default as Handler as usize, FLAGS),
        libc::SIG_IGN => Disposition::new(on_ignored as Handler as usize, FLAGS),
        handler if OwnHandler(0).told(handler) != handler => return,
        _ => {
            OWN[signal as usize].store(OwnHandler::of(&present).0, Ordering::Relaxed);
            present.changed(around as Handler as usize, libc::SA_SIGINFO, libc::SA_RESETHAND)
        }
    };
    settled.install(signal);
}

/// Runs in each thread when it first writes an event. Async-signal-safe.
fn meet_thread() {
    // (W) pairs with (W').
    let hooks = UNTIL_FIRST_EVENT.load(Ordering::Acquire);
    if !hooks.is_null()
        && UNTIL_FIRST_EVENT
            .compare_exchange(hooks, core::ptr::null_mut(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    {
        // SAFETY: made by `on_crash_after_first_event`; the exchange gave it to this thread alone. It is not freed,
        // because a handler may be running.
        let hooks: &mut Hooks = unsafe { &mut *hooks };
        while let Some(hook) = hooks.pop() {
            // If the system refuses a hook, that crash is not reported.
            let _ = hook.install_anywhere();
        }
    }
    if ARE_STACKS_WANTED.load(Ordering::Relaxed) {
        ensure_alternate_stack();
    }
}

/// Bytes of an alternate stack, most of which are never touched.
const STACK_SIZE_BYTES: usize = 64 << 10;

/// Returns the calling thread's alternate stack, with `SS_DISABLE` if it has none. Async-signal-safe.
fn alternate_stack() -> Option<libc::stack_t> {
    let mut stack = core::mem::MaybeUninit::uninit();
    // SAFETY: sigaltstack(2) with room for the answer.
    let is_known = unsafe { libc::sigaltstack(core::ptr::null(), stack.as_mut_ptr()) } == 0;
    // SAFETY: the call returned 0, so it has filled the structure in.
    is_known.then(|| unsafe { stack.assume_init() })
}

/// The last bytes of an alternate stack's mapping.
struct StackEnd {
    /// Id of the thread that has the stack, as long as it lives.
    owner: AtomicU32,
    /// Stack that was mapped before this one, or null. Written before the stack is published.
    next: *const StackEnd,
}

/// List of all alternate stacks ever mapped; at most as many as threads had one at the same time. Never freed: a thread
/// that ends does not return its stack, because the means for that (`pthread_setspecific`, a thread-local value with a
/// destructor) may allocate, and this runs in handlers.
static STACKS: AtomicPtr<StackEnd> = AtomicPtr::new(core::ptr::null_mut());

fn stacks() -> impl Iterator<Item = &'static StackEnd> {
    // (K) pairs with (K'). SAFETY: null, or never freed.
    let first = unsafe { STACKS.load(Ordering::Acquire).as_ref() };
    // SAFETY: null, or never freed; written before (K').
    core::iter::successors(first, |stack| unsafe { stack.next.as_ref() })
}

/// Gives the calling thread an alternate stack if it has none, so that its stack overflows can be reported.
/// Async-signal-safe; allocates by mmap(2) alone.
fn ensure_alternate_stack() {
    if alternate_stack().is_none_or(|stack| stack.ss_flags & libc::SS_DISABLE == 0) {
        return;
    }
    // This thread has no alternate stack, so a stack with its id belonged to an earlier thread with the same id.
    let Some(end) = take_stack() else { return };
    let stack = end.stack();
    // SAFETY: memory below the end, which belongs to this thread alone as long as it lives.
    if unsafe { libc::sigaltstack(&raw const stack, core::ptr::null_mut()) } != 0 {
        end.owner.store(0, Ordering::Relaxed);
    }
}

/// Minimum free space on an alternate stack, in bytes: for the frame of another signal, whose registers take 11 KiB on
/// some CPUs, and for its handler.
const ROOM_BYTES: usize = 32 << 10;

/// Prepares for the program's handler. If it runs on an alternate stack that has no room for another signal, such as
/// the one by which the handler ends the process, that signal gets another stack. The kernel restores the thread's own
/// when the handler returns (sigreturn(2)). Async-signal-safe.
fn make_room() {
    let here = 0_u8;
    let is_narrow = |stack: &libc::stack_t| {
        stack.ss_flags & libc::SS_ONSTACK != 0 && core::ptr::from_ref(&here).addr() - stack.ss_sp.addr() < ROOM_BYTES
    };
    if alternate_stack().is_some_and(|stack| is_narrow(&stack))
        && let Some(end) = take_stack()
    {
        let stack = end.stack();
        // SAFETY: memory below the end, which belongs to this thread alone as long as it lives, and nothing runs on it.
        unsafe { arch::set_alternate_stack(&stack) };
    }
}

impl StackEnd {
    /// Returns the stack that ends at this address.
    fn stack(&self) -> libc::stack_t {
        let size_bytes = STACK_SIZE_BYTES - size_of::<StackEnd>();
        let base = core::ptr::from_ref(self).cast::<u8>().wrapping_sub(size_bytes).cast_mut();
        libc::stack_t { ss_sp: base.cast(), ss_flags: 0, ss_size: size_bytes }
    }
}

/// Returns a stack for the calling thread: one with its id, one of a thread that has ended, or a fresh one.
/// Async-signal-safe.
fn take_stack() -> Option<&'static StackEnd> {
    let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let is_free = |stack: &&StackEnd| {
        let owner = stack.owner.load(Ordering::Relaxed);
        // SAFETY: tgkill(2) with signal 0 only checks.
        let is_gone = || owner == me || unsafe { libc::syscall(libc::SYS_tgkill, pid, owner, 0) } != 0;
        // Relaxed: a thread that has ended does not write to its stack any more, and no thread reads its data there.
        is_gone() && stack.owner.compare_exchange(owner, me, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    stacks()
        .find(|stack| stack.owner.load(Ordering::Relaxed) == me)
        .or_else(|| stacks().find(is_free))
        .or_else(|| map_stack(me))
}

/// Maps a fresh alternate stack. Async-signal-safe.
fn map_stack(owner: u32) -> Option<&'static StackEnd> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
    // SAFETY: a fresh mapping at an address that the kernel chooses.
    let base = unsafe { libc::mmap(core::ptr::null_mut(), STACK_SIZE_BYTES, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    // Undoes `mlockall(MCL_FUTURE)` of the program, which did not ask for this memory.
    // SAFETY: the fresh mapping; munlock(2) preserves its contents.
    unsafe { libc::munlock(base, STACK_SIZE_BYTES) };
    let end = base.cast::<u8>().wrapping_add(STACK_SIZE_BYTES - size_of::<StackEnd>()).cast::<StackEnd>();
    let mut next = STACKS.load(Ordering::Relaxed);
    loop {
        // SAFETY: inside the fresh mapping, and aligned because the mapping's end is. No other thread knows it until
        // the exchange.
        unsafe { end.write(StackEnd { owner: AtomicU32::new(owner), next }) };
        // (K') Release pairs with (K). Later exchanges are Release as well, so this node stays published.
        match STACKS.compare_exchange_weak(next, end, Ordering::Release, Ordering::Relaxed) {
            // SAFETY: written above, and never unmapped.
            Ok(_) => return unsafe { end.as_ref() },
            Err(now) => next = now,
        }
    }
}

/// Resets state in a forked child: it has not crashed, and its one thread is in no handler whose end would be the
/// parent's. That thread keeps its stack under its new id; the other stacks become free.
pub(crate) fn after_fork() {
    ASKING.store(NOBODY, Ordering::Relaxed);
    thread::in_handler(None);
    // No system call if no stacks were mapped.
    let mut stacks = stacks().peekable();
    let own = stacks.peek().and_then(|_| alternate_stack()).map(|stack| stack.ss_sp.addr() + stack.ss_size);
    for stack in stacks {
        let is_own = own == Some(core::ptr::from_ref(stack).addr());
        stack.owner.store(if is_own { thread::own_pid() } else { 0 }, Ordering::Relaxed);
    }
}

/// Lets threads get alternate stacks and checks exits from now on. Calls the loader.
fn prepare() {
    know_abort();
    // SAFETY: looks up a name.
    let installer =
        call_loader(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dormouse_i_install_crash_hook".as_ptr()) });
    INSTALLER.store(installer, Ordering::Relaxed);
    ARE_STACKS_WANTED.store(true, Ordering::Relaxed);
    thread::at_first_event(meet_thread);
    static EXIT_HANDLED: AtomicBool = AtomicBool::new(false);
    if !EXIT_HANDLED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function of this object, which is never unloaded.
        unsafe { libc::atexit(at_exit) };
    }
}

extern "C" fn at_exit() {
    ending();
}

/// Handler of a signal that is not a crash. Async-signal-safe: system calls, and memory that is never freed.
unsafe extern "C-unwind" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(hook) = hook(signal) else { return };
    hook.ask();
    if ![libc::SIG_DFL, libc::SIG_IGN].contains(&hook.former.handler) {
        // SAFETY: the program had installed this handler for this signal.
        unsafe { OwnHandler::of(&hook.former).call(signal, info, context) };
    }
}

/// Handler for signals whose default action the program wants. Async-signal-safe.
unsafe extern "C-unwind" fn on_default(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    tell(handled(stack_pointer(context)).unwrap_or(signal));
    Disposition::new(libc::SIG_DFL, 0).install(signal);
    // An instruction that faults does so again when this handler returns. After a trap, a forbidden system call, or a
    // signal that was sent, the program would continue.
    let comes_again = !is_sent(info) && matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE);
    if !comes_again {
        send_again(signal, info);
    }
}

/// Handler for signals that the program ignores. Async-signal-safe.
unsafe extern "C-unwind" fn on_ignored(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if !is_sent(info) {
        // A fault of the program's own instruction cannot be ignored: the kernel takes the default action.
        // SAFETY: passes on the kernel's arguments of this handler.
        unsafe { on_default(signal, info, context) };
    } else {
        keep_errno(|| {
            if signal == libc::SIGABRT && is_of_abort(context) {
                tell(signal);
            }
        });
    }
}

/// Handler for signals that the program handles. As async-signal-safe as the program's handler.
unsafe extern "C-unwind" fn around(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let own = OwnHandler::of_signal(signal);
    let is_once = own.0 & IS_RESET != 0;
    let slot = &OWN[signal as usize];
    let is_gone = is_once && slot.compare_exchange(own.0, 0, Ordering::Relaxed, Ordering::Relaxed).is_err();
    if is_gone || own.0 == 0 {
        // Another thread has called the one-time handler first; without the tracer, the kernel would find the default
        // action here.
        // SAFETY: passes on the kernel's arguments of this handler.
        return unsafe { on_default(signal, info, context) };
    }
    if is_once {
        Disposition::new(on_default as Handler as usize, FLAGS).install(signal);
    }
    keep_errno(make_room);
    let here = 0_u8;
    let former = thread::in_handler(Some((core::ptr::from_ref(&here).addr(), signal)));
    // SAFETY: the program has installed this handler for this signal, and the arguments are the kernel's.
    unsafe { own.call(signal, info, context) };
    thread::in_handler(former);
    keep_errno(|| {
        if signal == libc::SIGABRT && is_of_abort(context) {
            tell(signal);
        }
        settle(signal);
    });
}

/// Calls `function` and restores errno.
fn keep_errno(function: impl FnOnce()) {
    // SAFETY: has no conditions; returns the calling thread's errno.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: the thread's errno, which lives as long as the thread.
    let errno = unsafe { errno_at.read() };
    function();
    // SAFETY: the thread's errno, which lives as long as the thread.
    unsafe { errno_at.write(errno) };
}

/// Reports a crash if the calling thread is in a handler of a crash signal. Called before `exit` or `_exit` ends the
/// process. Async-signal-safe.
pub(crate) fn ending() {
    let here = 0_u8;
    if let Some(signal) = handled(core::ptr::from_ref(&here).addr()).filter(|_| !is_other_process()) {
        tell(signal);
    }
}

/// Maximum distance, in bytes, between a handler's frame and code that is taken as part of the handler.
const HANDLER_STACK_BYTES_MAX: usize = 1 << 20;

/// Returns the signal whose handler the calling thread is in, given its stack pointer. A handler that was left by a
/// jump does not count: the jump moved the stack pointer up, or to another stack, and has most likely unblocked the
/// signal.
fn handled(stack_pointer: usize) -> Option<c_int> {
    let (frame, signal) = thread::handler()?;
    let is_below = stack_pointer <= frame && frame - stack_pointer < HANDLER_STACK_BYTES_MAX;
    let is_open = || Disposition::of(signal).is_some_and(|present| present.has(libc::SA_NODEFER));
    (is_below && (is_blocked(signal) || is_open())).then_some(signal)
}

/// Id of the thread that requests the snapshot of the crash, or one of the constants below.
static ASKING: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = 0;
const DONE: u32 = u32::MAX;
/// Number and length of the waits for another thread's request, since this thread would otherwise end the process
/// before it.
const NAP_COUNT: u32 = 100;
const NAP: Duration = Duration::from_millis(1);

/// Whether this process is a child without fork handlers, such as that of `vfork`: it has the parent's data or a copy
/// of them.
fn is_other_process() -> bool {
    rustix::process::getpid().as_raw_nonzero().get() as u32 != thread::own_pid()
}

/// Requests the snapshot, once in the process, before this returns.
fn tell(signal: c_int) {
    let Some(hook) = hook(signal) else { return };
    if is_other_process() {
        return hook.ask();
    }
    let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    // Relaxed, here and below: the waiting threads wait for a system call, which happens before the store.
    match ASKING.compare_exchange(NOBODY, me, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            hook.ask();
            ASKING.store(DONE, Ordering::Relaxed);
        }
        // This thread crashed while it made the request.
        Err(asking) if asking == me => {}
        Err(_) => {
            let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
            for _ in 0..NAP_COUNT {
                if ASKING.load(Ordering::Relaxed) == DONE {
                    break;
                }
                // SAFETY: nanosleep(2) with a valid time, and null for the remaining time.
                unsafe { libc::syscall(libc::SYS_nanosleep, &raw const nap, core::ptr::null::<libc::timespec>()) };
            }
        }
    }
}

/// Whether a thread or process has sent the signal; otherwise an instruction caused it.
fn is_sent(info: *const libc::siginfo_t) -> bool {
    // SAFETY: the kernel's signal information, which lives as long as the handler runs.
    unsafe { (*info).si_code <= 0 }
}

/// Returns the stack pointer of the interrupted code, as the kernel has saved it.
fn stack_pointer(context: *const c_void) -> usize {
    // SAFETY: the context that the kernel gives to a handler with `SA_SIGINFO`, valid as long as the handler runs.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    let pointer = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    let pointer = context.uc_mcontext.sp as usize;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let pointer = core::ptr::from_ref(context).addr();
    pointer
}

/// First address of `abort` and the address after its end; both 0 if not known.
static ABORT: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Makes dladdr1(3) return the symbol table entry (dlfcn.h).
#[cfg(target_env = "gnu")]
const RTLD_DL_SYMENT: c_int = 1;

/// Finds the addresses of `abort`. Calls the loader.
fn know_abort() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: looks up a name.
        let abort = call_loader(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"abort".as_ptr()) });
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
        let mut symbol: *mut libc::Elf64_Sym = core::ptr::null_mut();
        let symbol_at = (&raw mut symbol).cast();
        // SAFETY: dladdr1(3) takes any address, and both outputs have room.
        let is_found = call_loader(|| unsafe { libc::dladdr1(abort, info.as_mut_ptr(), symbol_at, RTLD_DL_SYMENT) });
        // SAFETY: null, or an entry in the symbol table of a loaded object: libc, which is not unloaded.
        if let Some(symbol) = unsafe { symbol.as_ref() }.filter(|_| is_found != 0) {
            ABORT[0].store(abort.addr(), Ordering::Relaxed);
            ABORT[1].store(abort.addr() + symbol.st_size as usize, Ordering::Relaxed);
        }
    }
}

/// Number of stack words above libc's system call that are searched for a return address in `abort`.
const ABORT_WORD_COUNT: usize = 64;

/// Whether `abort` has raised the signal. Async-signal-safe.
fn is_of_abort(context: *const c_void) -> bool {
    let mut words = [0_usize; ABORT_WORD_COUNT];
    let local = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of_val(&words) };
    let remote = libc::iovec { iov_base: core::ptr::without_provenance_mut(stack_pointer(context)), ..local };
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // Through the kernel, because the stack may end earlier.
    let (count, flags, number) = (1_usize, 0_usize, libc::SYS_process_vm_readv);
    // `flags` is passed on the stack, where a narrower value would leave the upper half of its word undefined.
    // SAFETY: process_vm_readv(2) reads this process's memory into `words`, which has room for it.
    let read = unsafe { libc::syscall(number, pid, &raw const local, count, &raw const remote, count, flags) };
    let [begin, end] = [&ABORT[0], &ABORT[1]].map(|word| word.load(Ordering::Relaxed));
    read > 0 && words.iter().any(|word| (begin..end).contains(&unsigned(*word)))
}

/// Returns a return address without the signature that it may have in memory: with pointer authentication on AArch64 it
/// is above the 48 bits of user addresses (Linux, Documentation/arch/arm64/pointer-authentication.rst).
fn unsigned(address: usize) -> usize {
    if cfg!(target_arch = "aarch64") { address & ((1 << 48) - 1) } else { address }
}

/// Sends a signal, with the kernel's information about it, to this thread, where it stays pending until the handler
/// ends.
fn send_again(signal: c_int, info: *const libc::siginfo_t) {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    // SAFETY: rt_tgsigqueueinfo(2) reads the kernel's own description. A thread may send itself any signal information.
    if unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info) } != 0 {
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(signal) };
    }
}

//! Snapshots on signals: crashes, other signals, and the alternate stacks that handlers run on.
//!
//! A crash is a signal that ends the process. Programs handle faults of their own as a matter of course, so a fault alone is none. What is told of
//! is the moment at which the default action would be taken: our function stands in its place.
//!
//! ```text
//!   the program has set     the kernel has      when the signal comes
//!   SIG_DFL                 on_default          snapshot, then the default action
//!   SIG_IGN                 on_ignored          if it was sent nothing; otherwise as above, because the kernel does not ignore a fault
//!   a handler               around              that handler; then what it has left behind is settled again
//! ```
//! `settle` brings the second column about: when the trigger is installed, after each of the program's calls that change a disposition
//! ([`crate::interpose`]; where these are not ours, not), and after each of its handlers. So whoever resets a signal and returns gets `on_default`,
//! which is called if the fault repeats. A handler with `SA_RESETHAND` is `around` without it, which resets by itself. Who asks for a disposition
//! through libc is told the first column.
//!
//! A handler that does not return ends the process, or jumps out of itself. In each thread it is kept which handler was called last, and where on the
//! stack: who exits below that, with the signal still blocked, ends the process because of it. `abort` takes the default action by itself if a handler
//! of SIGABRT returns: that it has raised the signal is seen by its address on the stack.
//!
//! Not seen: a fault while its signal is blocked, in a handler of the same signal too, which the kernel ends the process for at once; an overflow of
//! the stack if the program's own handler has no alternate one; dispositions that are changed past libc, or past our functions, to the default.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

use dormouse_abi::trigger::SIGNAL_MAX;
use dormouse_locks::call_loader;

use crate::arch;
use crate::disposition::{Disposition, Handler, is_blocked};
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
    prepare();
    ensure_alternate_stack();
    hooks(snapshot).try_for_each(Hook::install_anywhere)
}

/// The same from the first event on.
pub(crate) fn on_crash_after_first_event(snapshot: &Snapshot) {
    prepare();
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

/// What a signal has to do. Never freed once its handler is installed, which may be under way. Another copy of the tracer may have made it.
#[repr(C)]
struct Hook {
    signal: c_int,
    is_crash: bool,
    /// What was installed before, of a signal that is no crash.
    former: Disposition,
    /// Has the snapshot asked for in the session of the copy that has made it.
    ask: unsafe extern "C" fn(*const Hook),
    /// For `ask` alone.
    prepared: Prepared,
}

/// # Safety
/// This copy of the tracer has made the hook.
unsafe extern "C" fn ask(hook: *const Hook) {
    // SAFETY: the caller's word; never freed.
    unsafe { &*hook }.prepared.request();
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

fn hook(signal: c_int) -> Option<&'static Hook> {
    let slot = HOOKS.get(usize::try_from(signal).ok()?)?;
    // (V) pairs with (V'). SAFETY: null, or never freed.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

impl Hook {
    fn ask(&self) {
        // SAFETY: of the copy that has made it.
        unsafe { (self.ask)(self) };
    }

    fn new(signal: c_int, prepared: Prepared, is_crash: bool) -> Box<Hook> {
        Box::new(Hook { signal, is_crash, former: Disposition::new(libc::SIG_DFL, 0), ask, prepared })
    }

    /// As [`Hook::install`], where the copy of the tracer installs it whose functions the program calls in libc's place, if there is one.
    fn install_anywhere(self: Box<Self>) -> std::io::Result<()> {
        let elsewhere = INSTALLER.load(Ordering::Relaxed);
        if elsewhere.is_null() {
            return self.install();
        }
        // SAFETY: what was found under this name is of this type.
        let install =
            unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(elsewhere) };
        // SAFETY: a hook that nobody else has.
        match unsafe { install(Box::into_raw(self).cast()) } {
            0 => Ok(()),
            errno => Err(std::io::Error::from_raw_os_error(errno)),
        }
    }

    /// Installs the handler, or changes what it sends. Allocates nothing; async-signal-safe.
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
        // (V') pairs with (V). The one before is left where it is: a handler may be reading it.
        HOOKS[signal as usize].store(self, Ordering::Release);
        if is_crash {
            settle(signal);
        } else if !is_installed && !Disposition::new(ours, FLAGS).install(signal) {
            return Err(std::io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Of all copies of the tracer in a process, the one whose functions the program calls in libc's place stands for its dispositions: here is its
/// [`install`], or null.
static INSTALLER: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Installs a hook that a copy of the tracer has made. 0, or an errno.
///
/// # Safety
/// It was made by [`Hook::new`] of the same version, and nobody else has it.
pub(crate) unsafe fn install(hook: *mut c_void) -> c_int {
    // SAFETY: the caller's word: the hook stays, whatever comes of it.
    let installed = unsafe { &mut *hook.cast::<Hook>() }.install_here();
    installed.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EINVAL))
}

/// Of handlers that the program does not have.
const FLAGS: c_int = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;

/// The program's handler of a signal, as one word: its address, which is below these bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Own(u64);

/// It takes three arguments (`SA_SIGINFO`).
const TAKES_INFO: u64 = 1 << 63;
/// It is called once (`SA_RESETHAND`).
const IS_RESET: u64 = 1 << 62;

/// By signal: the handler that is `around`, or 0. Relaxed: each is a word of its own.
static OWN: [AtomicU64; SIGNAL_MAX as usize + 1] = [const { AtomicU64::new(0) }; SIGNAL_MAX as usize + 1];

impl Own {
    fn of(disposition: &Disposition) -> Own {
        let bit = |flag, bit| if disposition.has(flag) { bit } else { 0 };
        Own(disposition.handler as u64 | bit(libc::SA_SIGINFO, TAKES_INFO) | bit(libc::SA_RESETHAND, IS_RESET))
    }

    /// That of a signal, if it has one. Wait-free; async-signal-safe.
    pub(crate) fn of_signal(signal: c_int) -> Own {
        let slot = usize::try_from(signal).ok().and_then(|signal| OWN.get(signal));
        Own(slot.map_or(0, |slot| slot.load(Ordering::Relaxed)))
    }

    fn address(self) -> usize {
        (self.0 & !(TAKES_INFO | IS_RESET)) as usize
    }

    /// What the program has set, where the kernel has this handler: `self` is what the signal had then. Otherwise it is as the kernel says.
    pub(crate) fn told(self, handler: usize) -> usize {
        match handler {
            _ if handler == on_default as Handler as usize => libc::SIG_DFL,
            _ if handler == on_ignored as Handler as usize => libc::SIG_IGN,
            _ if handler == around as Handler as usize => self.address(),
            handler => handler,
        }
    }

    /// The same of all that libc tells.
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
    /// As calling the handler for this signal.
    unsafe fn call(self, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the caller's word; on all machines that Linux runs on with 64 bits, a function may get more arguments than it takes.
        let handler = unsafe { core::mem::transmute::<usize, Handler>(self.address()) };
        // SAFETY: the caller's word.
        unsafe { handler(signal, info, context) };
    }
}

/// After the program may have changed a disposition: has our function stand for it, if a crash of this signal is told of. Async-signal-safe.
pub(crate) fn settle(signal: c_int) {
    if !hook(signal).is_some_and(|hook| hook.is_crash) {
        return;
    }
    let Some(present) = Disposition::of(signal) else { return };
    let settled = match present.handler {
        libc::SIG_DFL => Disposition::new(on_default as Handler as usize, FLAGS),
        libc::SIG_IGN => Disposition::new(on_ignored as Handler as usize, FLAGS),
        handler if Own(0).told(handler) != handler => return,
        _ => {
            OWN[signal as usize].store(Own::of(&present).0, Ordering::Relaxed);
            present.changed(around as Handler as usize, libc::SA_SIGINFO, libc::SA_RESETHAND)
        }
    };
    settled.install(signal);
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
            let _ = hook.install_anywhere();
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
    if alternate_stack().is_none_or(|stack| stack.ss_flags & libc::SS_DISABLE == 0) {
        return;
    }
    // This thread has none, so one with its id is of a thread that had the id before.
    let Some(end) = take_stack() else { return };
    let stack = end.stack();
    // SAFETY: memory below the end, which is this thread's alone as long as it lives.
    if unsafe { libc::sigaltstack(&raw const stack, core::ptr::null_mut()) } != 0 {
        end.owner.store(0, Ordering::Relaxed);
    }
}

/// What is left of an alternate stack, at least, for another signal's frame, of which the registers of some CPUs take 11 KiB, and what is done on it.
const ROOM_BYTES: usize = 32 << 10;

/// Before the program's handler runs: where that is on an alternate stack of its own that has no room for another signal, such as the one by which the
/// handler ends the process, that signal gets another. The kernel gives the thread its own back when the handler returns (sigreturn(2)).
/// Async-signal-safe.
fn make_room() {
    let here = 0_u8;
    let is_narrow = |stack: &libc::stack_t| {
        stack.ss_flags & libc::SS_ONSTACK != 0 && core::ptr::from_ref(&here).addr() - stack.ss_sp.addr() < ROOM_BYTES
    };
    if alternate_stack().is_some_and(|stack| is_narrow(&stack))
        && let Some(end) = take_stack()
    {
        let stack = end.stack();
        // SAFETY: memory below the end, which is this thread's alone as long as it lives, and on which nothing of it runs.
        unsafe { arch::set_alternate_stack(&stack) };
    }
}

impl StackEnd {
    /// The stack that ends here.
    fn stack(&self) -> libc::stack_t {
        let size_bytes = STACK_SIZE_BYTES - size_of::<StackEnd>();
        let base = core::ptr::from_ref(self).cast::<u8>().wrapping_sub(size_bytes).cast_mut();
        libc::stack_t { ss_sp: base.cast(), ss_flags: 0, ss_size: size_bytes }
    }
}

/// A stack for the calling thread: one that has its id, one of a thread that is gone, or a fresh one. Async-signal-safe.
fn take_stack() -> Option<&'static StackEnd> {
    let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let is_free = |stack: &&StackEnd| {
        let owner = stack.owner.load(Ordering::Relaxed);
        // SAFETY: tgkill(2) of no signal asks only.
        let is_gone = || owner == me || unsafe { libc::syscall(libc::SYS_tgkill, pid, owner, 0) } != 0;
        // Relaxed: a thread that is gone does not write to its stack any more, and nobody reads what it wrote.
        is_gone() && stack.owner.compare_exchange(owner, me, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    stacks()
        .find(|stack| stack.owner.load(Ordering::Relaxed) == me)
        .or_else(|| stacks().find(is_free))
        .or_else(|| map_stack(me))
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
    // If the program locks all that it maps, it has not asked for this.
    // SAFETY: the fresh mapping; what it holds stays (munlock(2)).
    unsafe { libc::munlock(base, STACK_SIZE_BYTES) };
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

/// In a forked child: it has not crashed, and its one thread is in no handler whose end would be the parent's; that thread keeps the stack that it had under another id, and the others have nobody.
pub(crate) fn after_fork() {
    ASKING.store(NOBODY, Ordering::Relaxed);
    thread::in_handler(None);
    // No system call where there are none.
    let mut stacks = stacks().peekable();
    let own = stacks.peek().and_then(|_| alternate_stack()).map(|stack| stack.ss_sp.addr() + stack.ss_size);
    for stack in stacks {
        let is_own = own == Some(core::ptr::from_ref(stack).addr());
        stack.owner.store(if is_own { thread::own_pid() } else { 0 }, Ordering::Relaxed);
    }
}

/// From now on threads get alternate stacks, and exits are looked at. Calls the loader.
fn prepare() {
    know_abort();
    // SAFETY: looks a name up.
    let installer =
        call_loader(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dormouse_i_install_crash_hook".as_ptr()) });
    INSTALLER.store(installer, Ordering::Relaxed);
    ARE_STACKS_WANTED.store(true, Ordering::Relaxed);
    thread::at_first_event(meet_thread);
    static EXIT_HANDLED: AtomicBool = AtomicBool::new(false);
    if !EXIT_HANDLED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function of this object, which is pinned.
        unsafe { libc::atexit(at_exit) };
    }
}

extern "C" fn at_exit() {
    ending();
}

/// A signal that is no crash. Async-signal-safe: system calls, and memory that is never freed.
unsafe extern "C-unwind" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(hook) = hook(signal) else { return };
    hook.ask();
    if ![libc::SIG_DFL, libc::SIG_IGN].contains(&hook.former.handler) {
        // SAFETY: it was installed for this signal.
        unsafe { Own::of(&hook.former).call(signal, info, context) };
    }
}

/// The default action is to be taken. Async-signal-safe.
unsafe extern "C-unwind" fn on_default(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    tell(handled(stack_pointer(context)).unwrap_or(signal));
    Disposition::new(libc::SIG_DFL, 0).install(signal);
    // An instruction that faults does so again when this returns; after a trap, a forbidden system call, or a signal that was sent,
    // the program would go on.
    let comes_again = !is_sent(info) && matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE);
    if !comes_again {
        send_again(signal, info);
    }
}

/// The program ignores the signal. Async-signal-safe.
unsafe extern "C-unwind" fn on_ignored(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if !is_sent(info) {
        // Nobody can ignore what an instruction of his own has done: the kernel then takes the default action.
        // SAFETY: what the kernel has given to this function.
        unsafe { on_default(signal, info, context) };
    } else {
        keep_errno(|| {
            if signal == libc::SIGABRT && is_of_abort(context) {
                tell(signal);
            }
        });
    }
}

/// The program has a handler. As async-signal-safe as that.
unsafe extern "C-unwind" fn around(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let own = Own::of_signal(signal);
    let is_once = own.0 & IS_RESET != 0;
    let slot = &OWN[signal as usize];
    let is_gone = is_once && slot.compare_exchange(own.0, 0, Ordering::Relaxed, Ordering::Relaxed).is_err();
    if is_gone || own.0 == 0 {
        // Another thread has come first: then the kernel would have found the default.
        // SAFETY: what the kernel has given to this function.
        return unsafe { on_default(signal, info, context) };
    }
    if is_once {
        Disposition::new(on_default as Handler as usize, FLAGS).install(signal);
    }
    keep_errno(make_room);
    let here = 0_u8;
    let former = thread::in_handler(Some((core::ptr::from_ref(&here).addr(), signal)));
    // SAFETY: the program has installed it for this signal.
    unsafe { own.call(signal, info, context) };
    thread::in_handler(former);
    keep_errno(|| {
        if signal == libc::SIGABRT && is_of_abort(context) {
            tell(signal);
        }
        settle(signal);
    });
}

/// The interrupted code's errno is as it was, or as the program's handler has left it.
fn keep_errno(function: impl FnOnce()) {
    // SAFETY: this thread's own.
    let errno_at = unsafe { libc::__errno_location() };
    // SAFETY: the thread's errno, which lives as long as the thread.
    let errno = unsafe { errno_at.read() };
    function();
    // SAFETY: the thread's errno, which lives as long as the thread.
    unsafe { errno_at.write(errno) };
}

/// The process is about to end by the calling thread's `exit` or `_exit`: that is a crash if it is in a handler of one. Async-signal-safe.
pub(crate) fn ending() {
    let here = 0_u8;
    if let Some(signal) = handled(core::ptr::from_ref(&here).addr()).filter(|_| !is_other_process()) {
        tell(signal);
    }
}

/// Farther from where a handler was called nothing is taken for a part of it.
const HANDLER_STACK_BYTES_MAX: usize = 1 << 20;

/// The signal whose handler the calling thread is in, with its stack at this address. Not one that was left by a jump: that has gone back on the stack,
/// or to another, and has most likely given the signals back.
fn handled(stack_pointer: usize) -> Option<c_int> {
    let (frame, signal) = thread::handler()?;
    let is_below = stack_pointer <= frame && frame - stack_pointer < HANDLER_STACK_BYTES_MAX;
    let is_open = || Disposition::of(signal).is_some_and(|present| present.has(libc::SA_NODEFER));
    (is_below && (is_blocked(signal) || is_open())).then_some(signal)
}

/// Who asks for the snapshot of the crash: a thread's id, or one of the numbers below.
static ASKING: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = 0;
const DONE: u32 = u32::MAX;
/// How often, and for how long each time, a thread waits for another to have asked: it would end the process before.
const NAP_COUNT: u32 = 100;
const NAP: Duration = Duration::from_millis(1);

/// Whether this is a child that the fork handlers do not know of, as of `vfork`: with the parent's data, or a copy of them.
fn is_other_process() -> bool {
    rustix::process::getpid().as_raw_nonzero().get() as u32 != thread::own_pid()
}

/// Has the snapshot asked for, once in the process, before this returns.
fn tell(signal: c_int) {
    let Some(hook) = hook(signal) else { return };
    if is_other_process() {
        return hook.ask();
    }
    let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    // Relaxed, here and below: what others wait for is a system call, which comes before the store.
    match ASKING.compare_exchange(NOBODY, me, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            hook.ask();
            ASKING.store(DONE, Ordering::Relaxed);
        }
        // This thread's own: it has crashed amid asking.
        Err(asking) if asking == me => {}
        Err(_) => {
            let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
            for _ in 0..NAP_COUNT {
                if ASKING.load(Ordering::Relaxed) == DONE {
                    break;
                }
                // SAFETY: nanosleep(2) with a time, and without room for what is left of it.
                unsafe { libc::syscall(libc::SYS_nanosleep, &raw const nap, core::ptr::null::<libc::timespec>()) };
            }
        }
    }
}

/// Whether somebody has sent the signal, and no instruction has caused it.
fn is_sent(info: *const libc::siginfo_t) -> bool {
    // SAFETY: the kernel's word for what has happened, which lives as long as the handler runs.
    unsafe { (*info).si_code <= 0 }
}

/// Where the stack of the interrupted code ends, as the kernel has saved it.
fn stack_pointer(context: *const c_void) -> usize {
    // SAFETY: what the kernel gives to a handler with `SA_SIGINFO`, for as long as that runs.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    let pointer = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    let pointer = context.uc_mcontext.sp as usize;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let pointer = core::ptr::from_ref(context).addr();
    pointer
}

/// Where `abort` begins and ends; nowhere where that is not known.
static ABORT: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Has dladdr1(3) give the entry of the table of symbols (dlfcn.h).
#[cfg(target_env = "gnu")]
const RTLD_DL_SYMENT: c_int = 1;

/// Finds out where `abort` is. Calls the loader.
fn know_abort() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: looks a name up.
        let abort = call_loader(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"abort".as_ptr()) });
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
        let mut symbol: *mut libc::Elf64_Sym = core::ptr::null_mut();
        let symbol_at = (&raw mut symbol).cast();
        // SAFETY: dladdr1(3) takes any address, and has room for both of its answers.
        let is_found = call_loader(|| unsafe { libc::dladdr1(abort, info.as_mut_ptr(), symbol_at, RTLD_DL_SYMENT) });
        // SAFETY: null, or an entry of a loaded object's table of symbols: libc's, which stays.
        if let Some(symbol) = unsafe { symbol.as_ref() }.filter(|_| is_found != 0) {
            ABORT[0].store(abort.addr(), Ordering::Relaxed);
            ABORT[1].store(abort.addr() + symbol.st_size as usize, Ordering::Relaxed);
        }
    }
}

/// Words of the stack above libc's system call among which the address is that returns to `abort`.
const ABORT_WORD_COUNT: usize = 64;

/// Whether `abort` has raised the signal. Async-signal-safe.
fn is_of_abort(context: *const c_void) -> bool {
    let mut words = [0_usize; ABORT_WORD_COUNT];
    let local = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of_val(&words) };
    let remote = libc::iovec { iov_base: core::ptr::without_provenance_mut(stack_pointer(context)), ..local };
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // By the kernel, because the stack may end before.
    // SAFETY: process_vm_readv(2) with room for what is read of this process.
    let read = unsafe { libc::syscall(libc::SYS_process_vm_readv, pid, &raw const local, 1, &raw const remote, 1, 0) };
    let [begin, end] = [&ABORT[0], &ABORT[1]].map(|word| word.load(Ordering::Relaxed));
    read > 0 && words.iter().any(|word| (begin..end).contains(word))
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

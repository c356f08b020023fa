//! Signal dispositions in the kernel, set and queried without libc, whose functions may be ours ([`crate::interpose`]).

use core::ffi::{c_int, c_ulong, c_void};

use crate::arch::RETURN_FROM_SIGNAL;

/// The kernel's `struct sigaction` (rt_sigaction(2)).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disposition {
    /// [`libc::SIG_DFL`], [`libc::SIG_IGN`], or a function.
    pub(crate) handler: usize,
    flags: c_ulong,
    restorer: Option<unsafe extern "C" fn()>,
    mask: u64,
}

/// A signal handler with `SA_SIGINFO`.
pub(crate) type Handler = unsafe extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// `SA_RESTORER` of x86-64 (asm/signal.h).
const SA_RESTORER: c_ulong = 0x0400_0000;

impl Disposition {
    /// Returns a disposition whose handler blocks nothing but its own signal.
    pub(crate) fn new(handler: usize, flags: c_int) -> Disposition {
        Disposition { handler, flags: 0, restorer: None, mask: 0 }.with_flags(flags as c_ulong)
    }

    /// Converts from libc's structure.
    pub(crate) fn of_libc(action: &libc::sigaction) -> Disposition {
        // SAFETY: libc's set begins with the kernel's set of 64 signals, and is at least as long.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() };
        Disposition { mask, ..Disposition::new(action.sa_sigaction, action.sa_flags) }
    }

    /// Converts to libc's structure.
    pub(crate) fn to_libc(self) -> libc::sigaction {
        // SAFETY: the fields are integers, a bit set and a nullable pointer, for which zeroes are valid.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        (action.sa_sigaction, action.sa_flags) = (self.handler, (self.flags & !SA_RESTORER) as c_int);
        // SAFETY: libc's set begins with the kernel's set of 64 signals, and is at least as long.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write_unaligned(self.mask) };
        action
    }

    fn with_flags(self, flags: c_ulong) -> Disposition {
        let restorer = if RETURN_FROM_SIGNAL.is_some() { SA_RESTORER } else { 0 };
        Disposition { flags: flags | restorer, restorer: RETURN_FROM_SIGNAL, ..self }
    }

    /// Returns a copy with another handler, with the flags of `with` added and those of `without` removed.
    pub(crate) fn changed(self, handler: usize, with: c_int, without: c_int) -> Disposition {
        Disposition { handler, ..self }.with_flags((self.flags | with as c_ulong) & !(without as c_ulong))
    }

    pub(crate) fn has(&self, flag: c_int) -> bool {
        self.flags & flag as c_ulong != 0
    }

    /// Returns a signal's present disposition, or `None` if there is no such signal. Async-signal-safe.
    pub(crate) fn of(signal: c_int) -> Option<Disposition> {
        let mut present = Disposition::new(libc::SIG_DFL, 0);
        set(signal, None, Some(&mut present)).then_some(present)
    }

    /// Installs the disposition for a signal. Returns false if there is no such signal. Async-signal-safe.
    pub(crate) fn install(&self, signal: c_int) -> bool {
        set(signal, Some(self), None)
    }

    /// Installs the disposition for a signal, and returns the former one. Async-signal-safe.
    pub(crate) fn replace(&self, signal: c_int) -> Option<Disposition> {
        let mut former = *self;
        set(signal, Some(self), Some(&mut former)).then_some(former)
    }
}

fn set(signal: c_int, next: Option<&Disposition>, former: Option<&mut Disposition>) -> bool {
    let next = next.map_or(core::ptr::null(), core::ptr::from_ref);
    let former = former.map_or(core::ptr::null_mut(), core::ptr::from_mut);
    // SAFETY: rt_sigaction(2): each pointer is null or to the kernel's layout, and sets have eight bytes. Handlers are
    // ours or the program's own.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, next, former, size_of::<u64>()) == 0 }
}

/// Whether the calling thread blocks a signal. Async-signal-safe.
pub(crate) fn is_blocked(signal: c_int) -> bool {
    let mut mask = 0_u64;
    // SAFETY: rt_sigprocmask(2) without a new set only queries; `mask` has room for the eight bytes of the answer.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_BLOCK,
            core::ptr::null::<u64>(),
            &raw mut mask,
            size_of::<u64>(),
        )
    };
    mask >> (signal - 1) & 1 != 0
}

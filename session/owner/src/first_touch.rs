//! Finds which code touches a page first: libc, whose `memcpy` copies by plain loads, or this program.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether the instruction that first reads or writes the `os_page` at `page` during `action` is this program's own. An
/// instruction of libc's would be part of `memcpy`, which copies by plain loads of any width, in any order, and more
/// than once.
pub(crate) fn is_first_touched_by_this_program(page: *mut u8, action: impl FnOnce()) -> bool {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    WATCHED.store(page, Ordering::Relaxed);
    INSTRUCTION.store(std::ptr::null_mut(), Ordering::Relaxed);
    let handler = on_fault as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    // SAFETY: zeroes are a valid sigaction: the default action with an empty mask.
    let mut action_on_fault: libc::sigaction = unsafe { std::mem::zeroed() };
    (action_on_fault.sa_sigaction, action_on_fault.sa_flags) = (handler as usize, libc::SA_SIGINFO);
    let mut former = MaybeUninit::uninit();
    // SAFETY: the handler has the type that SA_SIGINFO requires and only makes async-signal-safe calls; `former` has
    // room for the former action.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &action_on_fault, former.as_mut_ptr()) }, 0);
    // SAFETY: the page belongs to a test's memory, and the handler makes it accessible again at the first access.
    assert_eq!(unsafe { libc::mprotect(page.cast(), 4096, libc::PROT_NONE) }, 0);
    action();
    // SAFETY: `former` was filled in by sigaction(2) above.
    unsafe { libc::sigaction(libc::SIGSEGV, former.as_ptr(), std::ptr::null_mut()) };
    let instruction = INSTRUCTION.load(Ordering::Relaxed);
    assert!(!instruction.is_null(), "nothing has touched the page");
    object_of(instruction) == object_of(handler as *const c_void)
}

static WATCHED: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static INSTRUCTION: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Stores the instruction's address and lets the instruction continue. A fault elsewhere ends the program.
extern "C" fn on_fault(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let page = WATCHED.load(Ordering::Relaxed);
    // SAFETY: the kernel passes a valid description of the fault (sigaction(2), SA_SIGINFO).
    let info = unsafe { &*info };
    // SAFETY: for SIGSEGV, the description contains the address.
    let address = unsafe { info.si_addr() };
    if address.addr().wrapping_sub(page.addr()) >= 4096 {
        // SAFETY: signal(2) only restores the default action, by which the repeated instruction ends the program.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    // SAFETY: with SA_SIGINFO, the third argument points to the interrupted context.
    let registers = &unsafe { &*context.cast::<libc::ucontext_t>() }.uc_mcontext;
    #[cfg(target_arch = "x86_64")]
    let instruction = registers.gregs[libc::REG_RIP as usize];
    #[cfg(target_arch = "aarch64")]
    let instruction = registers.pc;
    INSTRUCTION.store(instruction as *mut c_void, Ordering::Relaxed);
    // SAFETY: this is the page that `is_first_touched_by_this_program` has protected; making it accessible again
    // invalidates nothing.
    unsafe { libc::mprotect(page.cast(), 4096, libc::PROT_READ | libc::PROT_WRITE) };
}

/// Returns the base of the loaded object that contains an address.
fn object_of(address: *const c_void) -> *mut c_void {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr(3) accepts any address, and `info` has room for the result.
    assert_ne!(unsafe { libc::dladdr(address, info.as_mut_ptr()) }, 0);
    // SAFETY: dladdr(3) has filled it, since it did not return 0.
    unsafe { info.assume_init() }.dli_fbase
}

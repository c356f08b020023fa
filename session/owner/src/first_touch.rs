//! Which code touches a page first: libc, whose `memcpy` copies by plain loads, or this program.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether the instruction that first reads or writes the `os_page` at `page` during `action` is this program's own. One of libc's is part of
/// `memcpy`, which copies by plain loads of any width, in any order, and more than once.
pub(crate) fn is_first_touched_by_this_program(page: *mut u8, action: impl FnOnce()) -> bool {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    WATCHED.store(page, Ordering::Relaxed);
    INSTRUCTION.store(std::ptr::null_mut(), Ordering::Relaxed);
    let handler = on_fault as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    // SAFETY: zeroes are an action with an empty mask.
    let mut action_on_fault: libc::sigaction = unsafe { std::mem::zeroed() };
    (action_on_fault.sa_sigaction, action_on_fault.sa_flags) = (handler as usize, libc::SA_SIGINFO);
    let mut former = MaybeUninit::uninit();
    // SAFETY: the handler is of this type and async-signal-safe; there is room for the former action.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &action_on_fault, former.as_mut_ptr()) }, 0);
    // SAFETY: a page of a test's memory, which the handler makes accessible again.
    assert_eq!(unsafe { libc::mprotect(page.cast(), 4096, libc::PROT_NONE) }, 0);
    action();
    // SAFETY: what sigaction(2) has filled in above.
    unsafe { libc::sigaction(libc::SIGSEGV, former.as_ptr(), std::ptr::null_mut()) };
    let instruction = INSTRUCTION.load(Ordering::Relaxed);
    assert!(!instruction.is_null(), "nothing has touched the page");
    object_of(instruction) == object_of(handler as *const c_void)
}

static WATCHED: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static INSTRUCTION: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Remembers the instruction, and lets it go on. A fault elsewhere ends the program.
extern "C" fn on_fault(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let page = WATCHED.load(Ordering::Relaxed);
    // SAFETY: the kernel's description of the fault.
    let info = unsafe { &*info };
    // SAFETY: of a fault, it has the address.
    let address = unsafe { info.si_addr() };
    if address.addr().wrapping_sub(page.addr()) >= 4096 {
        // SAFETY: restores the default, by which the instruction ends the program.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    // SAFETY: with SA_SIGINFO the third argument is the interrupted context.
    let registers = &unsafe { &*context.cast::<libc::ucontext_t>() }.uc_mcontext.gregs;
    INSTRUCTION.store(registers[libc::REG_RIP as usize] as *mut c_void, Ordering::Relaxed);
    // SAFETY: the page that `is_first_touched_by_this_program` has protected.
    unsafe { libc::mprotect(page.cast(), 4096, libc::PROT_READ | libc::PROT_WRITE) };
}

/// Where the loaded object begins that an address lies in.
fn object_of(address: *const c_void) -> *mut c_void {
    let mut info = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr(3) takes any address.
    assert_ne!(unsafe { libc::dladdr(address, info.as_mut_ptr()) }, 0);
    // SAFETY: filled in, since the answer was not 0.
    unsafe { info.assume_init() }.dli_fbase
}

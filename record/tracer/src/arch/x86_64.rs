//! x86-64: 104 bytes in the static TLS block, where a signal handler returns to, and the function that `vfork` goes through.

use super::Tls;
use core::arch::{asm, global_asm};

global_asm!(
    ".pushsection .tbss.dormouse_i_tls, \"awT\", @nobits",
    ".hidden dormouse_i_tls",
    ".globl dormouse_i_tls",
    ".type dormouse_i_tls, @object",
    ".size dormouse_i_tls, 104",
    ".balign 16",
    "dormouse_i_tls:",
    ".zero 104",
    ".popsection",
);

const _: () = assert!(size_of::<Tls>() == 104 && core::mem::offset_of!(Tls, context) == 0);

/// Where signal handlers return to that are installed past libc: `rt_sigreturn`.
pub(crate) const RETURN_FROM_SIGNAL: Option<unsafe extern "C" fn()> = Some(return_from_signal);

#[unsafe(naked)]
unsafe extern "C" fn return_from_signal() {
    // Unwinders and debuggers know the frame of a signal by these very bytes: 48 C7 C0 0F 00 00 00 0F 05.
    core::arch::naked_asm!(".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0", "syscall")
}

/// Makes this the thread's alternate stack, although the thread may run on another one: the kernel refuses that by the stack pointer.
///
/// ```text
///   stack pointer = top of the new stack;  sigaltstack(stack);  stack pointer = what it was
/// ```
///
/// # Safety
/// The stack is the calling thread's alone, and nothing runs on it.
pub(crate) unsafe fn set_alternate_stack(stack: &libc::stack_t) {
    let top = stack.ss_sp.wrapping_byte_add(stack.ss_size).map_addr(|top| top & !15);
    // SAFETY: between the two exchanges the stack pointer is in memory that is this thread's, by the caller's word, so a signal may come there too;
    // the call reads `stack`, and changes rax, rcx and r11 alone (psABI, A.2.1).
    unsafe {
        asm!(
            "xchg rsp, {top}",
            "syscall",
            "xchg rsp, {top}",
            top = inout(reg) top => _,
            inlateout("rax") libc::SYS_sigaltstack => _,
            in("rdi") core::ptr::from_ref(stack),
            in("rsi") 0_usize,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
}

/// The calling thread's words. They live as long as the thread.
#[inline(always)]
pub(crate) fn tls() -> *const Tls {
    let address: *const Tls;
    // SAFETY: reads the thread pointer and a linker-made constant; psABI TLS, initial-exec model.
    unsafe {
        asm!(
            "mov {address}, qword ptr fs:[0]",
            "add {address}, qword ptr [rip + dormouse_i_tls@GOTTPOFF]",
            address = out(reg) address,
            options(nostack, readonly),
        );
    }
    address
}

/// Exports `vfork` from a library: announces it to the tracer, then goes on in the real one.
///
/// ```text
///   vfork:  real = announce_vfork()     on the caller's stack, given back at once
///           jump real                   the return address is the caller's: vfork returns twice, and the child
///                                       overwrites whatever frame were left in between
/// ```
///
/// It is for libraries: elsewhere it would replace libc's for the whole program. Where it is preloaded, a child of `vfork` is traced under its own id; without it, under its parent's.
#[doc(hidden)]
#[macro_export]
macro_rules! define_vfork {
    () => {
        const _: () = {
            /// `vfork(2)`.
            ///
            /// # Safety
            /// As libc's: the child runs on its parent's memory until it calls `execve` or `_exit`.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn vfork() -> ::core::ffi::c_int {
                // The function has no arguments, and a call may change every register that `announce_vfork` may.
                ::core::arch::naked_asm!(
                    "endbr64",
                    "sub rsp, 8",
                    "call {announce}",
                    "add rsp, 8",
                    "jmp rax",
                    announce = sym $crate::announce_vfork,
                )
            }
        };
    };
}

//! x86-64: 128 bytes in the static TLS block, the return address of signal handlers, and the `vfork` wrapper.

use super::Tls;
use core::arch::{asm, global_asm};

global_asm!(
    ".pushsection .tbss.dormouse_i_tls, \"awT\", @nobits",
    ".hidden dormouse_i_tls",
    ".globl dormouse_i_tls",
    ".type dormouse_i_tls, @object",
    ".size dormouse_i_tls, 128",
    ".balign 16",
    "dormouse_i_tls:",
    ".zero 128",
    ".popsection",
);

const _: () = assert!(size_of::<Tls>() == 128 && core::mem::offset_of!(Tls, context) == 0);

/// Return address (`rt_sigreturn`) of signal handlers that are installed without libc.
pub(crate) const RETURN_FROM_SIGNAL: Option<unsafe extern "C" fn()> = Some(return_from_signal);

#[unsafe(naked)]
unsafe extern "C" fn return_from_signal() {
    // Unwinders and debuggers recognise a signal frame by exactly these bytes: 48 C7 C0 0F 00 00 00 0F 05.
    core::arch::naked_asm!(".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0", "syscall")
}

/// Sets the thread's alternate stack, even if the thread runs on an alternate stack. The kernel would refuse that by
/// the stack pointer.
///
/// ```text
///   stack pointer = top of the new stack;  sigaltstack(stack);  stack pointer = its former value
/// ```
///
/// # Safety
/// The stack's memory is the calling thread's alone, and nothing runs on it.
pub(crate) unsafe fn set_alternate_stack(stack: &libc::stack_t) {
    let top = stack.ss_sp.wrapping_byte_add(stack.ss_size).map_addr(|top| top & !15);
    // SAFETY: the caller guarantees that the stack's memory is this thread's alone and that nothing runs on it, so
    // between the two exchanges a signal frame may be pushed there. The call reads `stack`, and changes only rax, rcx
    // and r11 (psABI, A.2.1).
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

/// Returns the calling thread's words. They live as long as the thread.
#[inline(always)]
pub(crate) fn tls() -> *const Tls {
    let address: *const Tls;
    // SAFETY: reads the thread pointer and an offset that the linker supplies (psABI TLS, initial-exec model).
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

/// Returns the distance of the words from the thread pointer, in bytes, which is the same in each thread.
pub(crate) fn tls_offset() -> isize {
    let offset: isize;
    // SAFETY: reads an offset that the linker supplies (psABI TLS, initial-exec model).
    unsafe {
        asm!(
            "mov {offset}, qword ptr [rip + dormouse_i_tls@GOTTPOFF]",
            offset = out(reg) offset,
            options(nostack, readonly, preserves_flags),
        );
    }
    offset
}

/// Exports `vfork` from a library: announces it to the tracer, then jumps to the real `vfork`.
///
/// ```text
///   vfork:  real = announce_vfork()     uses the caller's stack, and releases it before the jump
///           jump real                   returns to the caller itself: vfork returns twice, and the child
///                                       would overwrite a frame that was left in between
/// ```
///
/// For libraries only: in a program it would replace libc's `vfork`. If the library is preloaded, a child of `vfork` is
/// traced under its own id; otherwise under its parent's.
#[doc(hidden)]
#[macro_export]
macro_rules! define_vfork {
    () => {
        const _: () = {
            /// `vfork(2)`.
            ///
            /// # Safety
            /// The conditions of libc's `vfork`: the child runs on its parent's memory until it calls `execve` or
            /// `_exit`.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn vfork() -> ::core::ffi::c_int {
                // The function has no arguments, and its caller expects every register that `announce_vfork` may change
                // to be changed.
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

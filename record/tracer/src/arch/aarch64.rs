//! AArch64: 128 bytes in the static TLS block, and the `vfork` wrapper.

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

/// The kernel supplies its own return address, in the vDSO (Linux, arch/arm64/kernel/signal.c, `setup_return`).
pub(crate) const RETURN_FROM_SIGNAL: Option<unsafe extern "C" fn()> = None;

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
    // while the stack pointer is there a signal frame may be pushed there. The call reads `stack`, and changes only x0.
    unsafe {
        asm!(
            "mov {former}, sp",
            "mov sp, {top}",
            "svc 0",
            "mov sp, {former}",
            former = out(reg) _,
            top = in(reg) top,
            inlateout("x0") core::ptr::from_ref(stack) => _,
            in("x1") 0_usize,
            in("x8") libc::SYS_sigaltstack,
        );
    }
}

/// Returns the calling thread's words. They live as long as the thread.
#[inline(always)]
pub(crate) fn tls() -> *const Tls {
    let address: *const Tls;
    // SAFETY: reads the thread pointer and an offset that the linker supplies (TLS ABI for AArch64, initial-exec
    // model).
    unsafe {
        asm!(
            "adrp {offset}, :gottprel:dormouse_i_tls",
            "ldr {offset}, [{offset}, :gottprel_lo12:dormouse_i_tls]",
            "mrs {address}, tpidr_el0",
            "add {address}, {address}, {offset}",
            offset = out(reg) _,
            address = out(reg) address,
            options(nostack, readonly, preserves_flags),
        );
    }
    address
}

/// Returns the distance of the words from the thread pointer, in bytes, which is the same in each thread.
pub(crate) fn tls_offset() -> isize {
    let offset: isize;
    // SAFETY: reads an offset that the linker supplies (TLS ABI for AArch64, initial-exec model).
    unsafe {
        asm!(
            "adrp {offset}, :gottprel:dormouse_i_tls",
            "ldr {offset}, [{offset}, :gottprel_lo12:dormouse_i_tls]",
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
                // to be changed. The return address is signed while it is in memory (`paciasp`, `autiasp`; the first
                // is a landing pad as well). A landing pad for calls accepts a jump through x16.
                ::core::arch::naked_asm!(
                    ".cfi_startproc",
                    "hint 25",
                    ".cfi_negate_ra_state",
                    "stp x29, x30, [sp, -16]!",
                    ".cfi_def_cfa_offset 16",
                    ".cfi_offset x29, -16",
                    ".cfi_offset x30, -8",
                    "mov x29, sp",
                    "bl {announce}",
                    "mov x16, x0",
                    "ldp x29, x30, [sp], 16",
                    ".cfi_def_cfa_offset 0",
                    ".cfi_restore x29",
                    ".cfi_restore x30",
                    "hint 29",
                    ".cfi_negate_ra_state",
                    "br x16",
                    ".cfi_endproc",
                    announce = sym $crate::announce_vfork,
                )
            }
        };
    };
}

//! x86-64: 88 bytes in the static TLS block, and the function that `vfork` goes through.

use super::Tls;
use core::arch::{asm, global_asm};

global_asm!(
    ".pushsection .tbss.dormouse_i_tls, \"awT\", @nobits",
    ".hidden dormouse_i_tls",
    ".globl dormouse_i_tls",
    ".type dormouse_i_tls, @object",
    ".size dormouse_i_tls, 88",
    ".balign 16",
    "dormouse_i_tls:",
    ".zero 88",
    ".popsection",
);

const _: () = assert!(size_of::<Tls>() == 88 && core::mem::offset_of!(Tls, context) == 0);

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

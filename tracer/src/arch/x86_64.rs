//! x86-64: 16 bytes in the static TLS block, and the door through which `vfork` goes.

use super::Tls;
use core::arch::{asm, global_asm};

global_asm!(
    ".pushsection .tbss.dormouse_i_tls, \"awT\", @nobits",
    ".hidden dormouse_i_tls",
    ".globl dormouse_i_tls",
    ".type dormouse_i_tls, @object",
    ".size dormouse_i_tls, 16",
    ".balign 16",
    "dormouse_i_tls:",
    ".zero 16",
    ".popsection",
);

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

/// The calling thread's context word.
#[inline(always)]
pub(crate) fn context() -> u64 {
    let word: u64;
    // SAFETY: reads eight bytes of the thread's own block.
    unsafe {
        asm!(
            "mov {word}, qword ptr [rip + dormouse_i_tls@GOTTPOFF]",
            "mov {word}, qword ptr fs:[{word}]",
            word = out(reg) word,
            options(nostack, readonly, preserves_flags),
        );
    }
    word
}

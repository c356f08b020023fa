//! The instructions of a gate on this architecture.

use dormouse_abi::site::{X86_JMP, X86_NOP};

/// AArch64's `nop`, and the bits that make an instruction a `b`.
const NOP: u32 = 0xD503_201F;
const B: u32 = 0x1400_0000;
const B_MASK: u32 = 0xFC00_0000;

fn instruction(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(*bytes.first_chunk().expect("an instruction"))
}

/// Whether a gate's bytes are a `nop`: it falls through.
pub fn is_nop(bytes: &[u8]) -> bool {
    if cfg!(target_arch = "x86_64") { bytes == X86_NOP } else { bytes.len() == 4 && instruction(bytes) == NOP }
}

/// Whether a gate's bytes are a jump.
pub fn is_jump(bytes: &[u8]) -> bool {
    if cfg!(target_arch = "x86_64") { bytes[0] == X86_JMP } else { instruction(bytes) & B_MASK == B }
}

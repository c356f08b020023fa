//! x86-64.

pub use iced_x86::Register;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
pub use libc::user_regs_struct as Registers;

use super::{Body, Flow, STORE_COUNT, STORES, text};

/// The instruction `int3`.
pub const BREAKPOINT: u64 = 0xCC;
/// Bits of a word in memory that a breakpoint takes.
pub const BREAKPOINT_BITS: u64 = 0xFF;
/// Distance by which a thread is behind the breakpoint that has stopped it.
pub const BREAKPOINT_PASSED: u64 = 1;

/// Returns the address of the next instruction.
pub fn ip(registers: &Registers) -> u64 {
    registers.rip
}

/// Sets the address of the next instruction.
pub fn set_ip(registers: &mut Registers, ip: u64) {
    registers.rip = ip;
}

/// Returns the value of a register that points to a transaction.
pub fn value(all: &Registers, register: Register) -> u64 {
    match register {
        Register::RAX => all.rax,
        Register::RBX => all.rbx,
        Register::RCX => all.rcx,
        Register::RDX => all.rdx,
        Register::RSI => all.rsi,
        Register::RDI => all.rdi,
        Register::RBP => all.rbp,
        Register::R8 => all.r8,
        Register::R9 => all.r9,
        Register::R10 => all.r10,
        Register::R11 => all.r11,
        Register::R12 => all.r12,
        Register::R13 => all.r13,
        Register::R14 => all.r14,
        Register::R15 => all.r15,
        other => panic!("{other:?} points to no transaction"),
    }
}

/// Executes a breakpoint of the program's own.
#[inline(never)]
pub fn stop() {
    // SAFETY: the parent traces this process, and receives the SIGTRAP.
    unsafe { core::arch::asm!("int3", options(nostack)) };
}

/// Returns where a thread can be stopped after the instruction at an address, if it cannot be right behind it.
pub fn stops_after(_: u64, _: impl Fn(u64) -> u64) -> Vec<u64> {
    Vec::new()
}

/// Returns what the instruction at an address of this program does.
pub fn flow(ip: u64) -> Flow {
    /// Maximum length of an instruction.
    const LEN_MAX: usize = 15;
    match Decoder::with_ip(64, text(ip, LEN_MAX), ip, DecoderOptions::NONE).decode().mnemonic() {
        Mnemonic::Call => Flow::Call,
        Mnemonic::Ret => Flow::Return,
        _ => Flow::Other,
    }
}

/// Decodes the instructions from `start` to `end`.
pub fn decode(start: u64, end: u64) -> Body {
    let bytes = text(start, (end - start) as usize);
    let instructions: Vec<Instruction> = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).iter().collect();
    assert_eq!(instructions.last().map(Instruction::next_ip), Some(end), "a section ends within an instruction");
    let branches = instructions.iter().filter(|instruction| instruction.op0_kind() == OpKind::NearBranch64);
    let targets = branches.map(Instruction::near_branch_target).collect();
    let txn = instructions.windows(2).find_map(|pair| {
        let base = pair[0].memory_base();
        let counts = pair[0].mnemonic() == Mnemonic::Mov && pair[0].memory_displacement64() == STORE_COUNT;
        let lists = pair[1].mnemonic() == Mnemonic::Lea && pair[1].memory_displacement64() == STORES;
        (counts && lists && base != Register::None && pair[1].memory_base() == base).then_some(base)
    });
    Body { instructions: instructions.iter().map(Instruction::ip).collect(), targets, txn }
}

/// Returns the instruction before a section's first: it stores a register to the thread's rseq structure.
pub fn arm(start: u64) -> u64 {
    let is_arming = |begin: &u64| {
        let len = (start - begin) as usize;
        let instruction = Decoder::with_ip(64, text(*begin, len), *begin, DecoderOptions::NONE).decode();
        instruction.len() == len
            && instruction.mnemonic() == Mnemonic::Mov
            && instruction.segment_prefix() == Register::FS
            && instruction.op0_kind() == OpKind::Memory
    };
    (4..=12).map(|len| start - len).find(is_arming).expect("a section is armed just before it begins")
}

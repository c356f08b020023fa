//! AArch64, by the encodings of the Arm Architecture Reference Manual, C4.1.

use std::collections::BTreeSet;

pub use libc::user_regs_struct as Registers;

use super::{Body, Flow, STORE_COUNT, STORES, text};

/// The instruction `brk 0`.
pub const BREAKPOINT: u64 = 0xD420_0000;
/// Bits of a word in memory that a breakpoint takes.
pub const BREAKPOINT_BITS: u64 = 0xFFFF_FFFF;
/// Distance by which a thread is behind the breakpoint that has stopped it.
pub const BREAKPOINT_PASSED: u64 = 0;

/// Maximum number of instructions between an exclusive load and its store.
const EXCLUSIVE_LEN_MAX: u64 = 16;

/// Number of a general register.
pub type Register = u32;

/// Returns the address of the next instruction.
pub fn ip(registers: &Registers) -> u64 {
    registers.pc
}

/// Sets the address of the next instruction.
pub fn set_ip(registers: &mut Registers, ip: u64) {
    registers.pc = ip;
}

/// Returns the value of a register that points to a transaction.
pub fn value(all: &Registers, register: Register) -> u64 {
    all.regs.get(register as usize).copied().unwrap_or(all.sp)
}

/// Executes a breakpoint of the program's own.
#[inline(never)]
pub fn stop() {
    // SAFETY: the parent traces this process, receives the SIGTRAP, and continues behind the instruction.
    unsafe { core::arch::asm!("brk 0", options(nostack)) };
}

/// Returns the signed number of `count` bits at bit `from` of an instruction, in bytes: it counts instructions.
fn distance(code: u32, from: u32, count: u32) -> i64 {
    i64::from((code << (32 - from - count)).cast_signed() >> (32 - count)) * 4
}

/// Returns the distance to the target of a branch that goes to a fixed place and does not return.
fn branch(code: u32) -> Option<i64> {
    match code {
        // b
        _ if code & 0xFC00_0000 == 0x1400_0000 => Some(distance(code, 0, 26)),
        // b.cond, bc.cond
        _ if code & 0xFF00_0000 == 0x5400_0000 => Some(distance(code, 5, 19)),
        // cbz, cbnz
        _ if code & 0x7E00_0000 == 0x3400_0000 => Some(distance(code, 5, 19)),
        // tbz, tbnz
        _ if code & 0x7E00_0000 == 0x3600_0000 => Some(distance(code, 5, 14)),
        _ => None,
    }
}

/// Returns what an instruction of this program does.
pub fn flow(ip: u64) -> Flow {
    flow_of(u32::from_le_bytes(text(ip, 4).try_into().expect("four bytes")))
}

fn flow_of(code: u32) -> Flow {
    match code {
        // bl; blr, also with authentication
        _ if code & 0xFC00_0000 == 0x9400_0000 || code & 0xFEFF_F000 == 0xD63F_0000 => Flow::Call,
        // ret, also with authentication
        _ if code & 0xFFFF_F000 == 0xD65F_0000 => Flow::Return,
        _ => Flow::Other,
    }
}

/// Whether it is a call, a return, or a branch to an address in a register.
fn leaves_otherwise(code: u32) -> bool {
    flow_of(code) != Flow::Other || code & 0xFE00_0000 == 0xD600_0000
}

/// Whether it is an exclusive load (ldxr, ldaxr, of any size, or of a pair).
fn is_exclusive_load(code: u32) -> bool {
    code & 0x3FC0_0000 == 0x0840_0000 && !is_exchange_of_pair(code)
}

/// Whether it is an exclusive store.
fn is_exclusive_store(code: u32) -> bool {
    code & 0x3FC0_0000 == 0x0800_0000 && !is_exchange_of_pair(code)
}

/// Whether an instruction of this group is one of casp.
fn is_exchange_of_pair(code: u32) -> bool {
    code & 0x8020_0000 == 0x0020_0000
}

/// Returns where a thread can be stopped after the instruction at an address, if it cannot be right behind it; `peek`
/// returns an aligned word of its memory. After an exclusive load it is behind the exclusive store, or where the
/// instructions in between may branch to: an exception between the two makes the store fail, each time.
pub fn stops_after(ip: u64, peek: impl Fn(u64) -> u64) -> Vec<u64> {
    let instruction = |address: u64| (peek(address & !7) >> ((address & 7) * 8)) as u32;
    if !is_exclusive_load(instruction(ip)) {
        return Vec::new();
    }
    let places = || (1..=EXCLUSIVE_LEN_MAX).map(|index| ip + 4 * index);
    let Some(store) = places().find(|at| is_exclusive_store(instruction(*at))) else { return Vec::new() };
    let targets = places().take_while(|at| *at < store).filter_map(|at| {
        let target = at.wrapping_add_signed(branch(instruction(at))?);
        (!(ip..=store).contains(&target)).then_some(target)
    });
    targets.chain([store + 4]).collect::<BTreeSet<u64>>().into_iter().collect()
}

/// Decodes the instructions from `start` to `end`.
pub fn decode(start: u64, end: u64) -> Body {
    let codes = text(start, (end - start) as usize).as_chunks::<4>().0;
    let instructions: Vec<(u64, u32)> =
        (start..).step_by(4).zip(codes.iter().map(|code| u32::from_le_bytes(*code))).collect();
    assert_eq!(4 * instructions.len() as u64, end - start, "a section ends within an instruction");
    assert!(!instructions.iter().any(|(_, code)| leaves_otherwise(*code)), "a section calls or returns");
    let targets = instructions.iter().filter_map(|(ip, code)| Some(ip.wrapping_add_signed(branch(*code)?))).collect();
    // Both the number of its stores and their list are taken from the same base.
    let lists = |base| instructions.iter().any(|(_, code)| sum(*code) == Some((base, STORES)));
    let txn = instructions.iter().find_map(|(_, code)| {
        let (base, at) = load(*code)?;
        (at == STORE_COUNT && lists(base)).then_some(base)
    });
    Body { instructions: instructions.into_iter().map(|(ip, _)| ip).collect(), targets, txn }
}

fn base_of(code: u32) -> Register {
    code >> 5 & 31
}

/// Returns base and offset of a load of eight bytes.
fn load(code: u32) -> Option<(Register, u64)> {
    (code & 0xFFC0_0000 == 0xF940_0000).then(|| (base_of(code), u64::from(code >> 10 & 0xFFF) * 8))
}

/// Returns register and addend of an addition of a constant.
fn sum(code: u32) -> Option<(Register, u64)> {
    (code & 0xFFC0_0000 == 0x9100_0000).then(|| (base_of(code), u64::from(code >> 10 & 0xFFF)))
}

/// Returns the instruction before a section's first: it stores a register to the thread's rseq structure.
pub fn arm(start: u64) -> u64 {
    let code = u32::from_le_bytes(text(start - 4, 4).try_into().expect("four bytes"));
    // str x, [x, offset]
    assert_eq!(code & 0xFFC0_0000, 0xF900_0000, "a section is armed just before it begins: {code:#x}");
    start - 4
}

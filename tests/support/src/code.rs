//! Machine code of a running program, as `objdump` shows it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::c_programs::{stdout, succeed};

/// Maximum size of an instruction, in bytes.
const INSTRUCTION_LEN_MAX: u64 = if IS_X86 { 15 } else { 4 };
/// Whether the code is x86-64's; otherwise it is AArch64's.
const IS_X86: bool = cfg!(target_arch = "x86_64");

/// Name of this architecture for `objdump -m`.
pub const OBJDUMP_MACHINE: &str = if IS_X86 { "i386:x86-64" } else { "aarch64" };
/// A gate that falls through, as text.
pub const NOP: &str = if IS_X86 { "nopl 0x0(%rax,%rax,1)" } else { "nop" };
/// Mnemonic of a jump without a condition.
pub const JUMP: &str = if IS_X86 { "jmp" } else { "b" };

/// Returns the instructions of a function that can be reached from its start, each once, without addresses: after a
/// conditional jump first those that follow it. `bytes` is the memory from the function's start on, and `directory` is
/// writable.
pub fn reachable_instructions(directory: &Path, bytes: &[u8]) -> Vec<String> {
    let file = directory.join("code");
    std::fs::write(&file, bytes).unwrap();
    let (mut found, mut seen, mut pending) = (Vec::new(), BTreeSet::new(), vec![0]);
    while let Some(mut at) = pending.pop() {
        while seen.insert(at) {
            let (text, next) = instruction(&file, at);
            let (mnemonic, operands) = text.split_once(' ').unwrap_or((&text, ""));
            // AArch64's conditional branches have the target behind what they test.
            let operand = operands.rsplit(' ').next().unwrap_or_default();
            let target = u64::from_str_radix(operand.trim_start_matches("0x"), 16);
            let is_jump = mnemonic == JUMP || is_conditional(mnemonic);
            found.push(if is_jump { mnemonic.to_string() } else { text.clone() });
            at = match (mnemonic, target) {
                ("ret", _) => break,
                (JUMP, target) => target.expect("a direct jump"),
                (jump, target) if is_conditional(jump) => {
                    pending.push(target.expect("a direct jump"));
                    next
                }
                _ => next,
            };
        }
    }
    found
}

/// Returns the instruction at an offset of a file, with single spaces, and the offset of the next one.
fn instruction(file: &Path, at: u64) -> (String, u64) {
    let mut command = Command::new("objdump");
    command.args(["-D", "-z", "-w", "-b", "binary", "-m", OBJDUMP_MACHINE]);
    command.arg(format!("--start-address={at}")).arg(format!("--stop-address={}", at + INSTRUCTION_LEN_MAX)).arg(file);
    let text = stdout(&succeed(&mut command));
    let line = text.lines().find(|line| line.contains(":\t")).unwrap_or_else(|| panic!("no code at {at}: {text}"));
    let mut columns = line.split('\t').skip(1);
    let bytes = columns.next().expect("bytes").split_whitespace().count() as u64;
    // AArch64's bytes are shown as one word, and an operand has several columns.
    let len = if IS_X86 { bytes } else { INSTRUCTION_LEN_MAX };
    let text = columns.collect::<Vec<_>>().join(" ");
    let text = text.split(if IS_X86 { "#" } else { "//" }).next().expect("an instruction");
    (text.split_whitespace().collect::<Vec<_>>().join(" "), at + len)
}

/// Returns each line of a program's output `NAME BYTES`, with the bytes in hexadecimal digits, as name and reachable instructions.
pub fn listed_functions(directory: &Path, printed: &str) -> Vec<(String, Vec<String>)> {
    let function = |line: &str| {
        let (name, digits) = line.rsplit_once(' ').expect("a name and bytes");
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
        let bytes: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
        (name.to_string(), reachable_instructions(directory, &bytes))
    };
    printed.lines().map(function).collect()
}

/// Whether an instruction, or its mnemonic, is a jump with a condition.
pub fn is_conditional(instruction: &str) -> bool {
    let mnemonic = instruction.split(' ').next().unwrap_or_default();
    if IS_X86 {
        mnemonic.starts_with('j') && mnemonic != JUMP
    } else {
        mnemonic.starts_with("b.") || matches!(mnemonic, "cbz" | "cbnz" | "tbz" | "tbnz")
    }
}

/// Whether an instruction reads or writes data, except the stack on return.
pub fn has_memory_operand(instruction: &str) -> bool {
    if !IS_X86 {
        return instruction.contains('[');
    }
    !instruction.starts_with("nop") && !instruction.starts_with("lea") && instruction.contains('(')
}

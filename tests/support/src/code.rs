//! Machine code of a running program, as `objdump` shows it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::c_programs::{stdout, succeed};

/// Maximum size of an x86-64 instruction, in bytes.
const INSTRUCTION_LEN_MAX: u64 = 15;

/// Returns the instructions of an x86-64 function that can be reached from its start, each once, without addresses: after a
/// conditional jump first those that follow it. `bytes` is the memory from the function's start on, and `directory` is
/// writable.
pub fn reachable_instructions(directory: &Path, bytes: &[u8]) -> Vec<String> {
    let file = directory.join("code");
    std::fs::write(&file, bytes).unwrap();
    let (mut found, mut seen, mut pending) = (Vec::new(), BTreeSet::new(), vec![0]);
    while let Some(mut at) = pending.pop() {
        while seen.insert(at) {
            let (text, next) = instruction(&file, at);
            let (mnemonic, operand) = text.split_once(' ').unwrap_or((&text, ""));
            let target = u64::from_str_radix(operand.trim().trim_start_matches("0x"), 16);
            found.push(if mnemonic.starts_with('j') { mnemonic.to_string() } else { text.clone() });
            at = match (mnemonic, target) {
                ("ret", _) => break,
                ("jmp", target) => target.expect("a direct jump"),
                (jump, target) if jump.starts_with('j') => {
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
    command.args(["-D", "-z", "-w", "-b", "binary", "-m", "i386:x86-64"]);
    command.arg(format!("--start-address={at}")).arg(format!("--stop-address={}", at + INSTRUCTION_LEN_MAX)).arg(file);
    let text = stdout(&succeed(&mut command));
    let line = text.lines().find(|line| line.contains(":\t")).unwrap_or_else(|| panic!("no code at {at}: {text}"));
    let mut columns = line.split('\t').skip(1);
    let len = columns.next().expect("bytes").split_whitespace().count() as u64;
    let text = columns.next().expect("an instruction").split('#').next().expect("a text");
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

/// Whether an instruction reads or writes data, except the stack on return.
pub fn has_memory_operand(instruction: &str) -> bool {
    !instruction.starts_with("nop") && !instruction.starts_with("lea") && instruction.contains('(')
}

//! Counts the bytes of code and data that one gate, value or variable takes, in this program's own machine code.
//!
//! ```text
//!   as linked (the file)        every reachable instruction:             hot and cold
//!   as patched (the memory)     no conditional jump taken:               hot
//!                                 ├ bytes of instructions, minus those of an empty function                         hot-code
//!                                 └ bytes and lines of the variables that they read                                 hot-data, hot-lines
//!   cold-code = reachable as linked, less hot        site-table = the records that only an update reads
//! ```
//! The functions of gates jump to `behind`, which is not part of the gate and not counted.
//!
//! # Limits
//! * x86-64 only.
//! * Padding before a site, which lets one store replace it, depends on the site's address. A function that starts with
//!   its site has no padding.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use dormouse_abi::site::SiteRecord;
use dormouse_imv::{StaticKey, imv, imv_read, static_branch};
use iced_x86::{Decoder, DecoderOptions, Instruction, MemorySize, Mnemonic, OpKind, Register};
use object::{Object, ObjectSection};

use crate::Flag;

imv! {
    static IS_WANTED: bool = false;
    static BYTE: u8 = 1;
    static WORD: u64 = 1;
}

static KEY: StaticKey = StaticKey::new();
static FLAG: Flag = Flag::new();
static GLOBAL_BYTE: AtomicU8 = AtomicU8::new(1);
static GLOBAL_WORD: AtomicU64 = AtomicU64::new(1);

/// Function that gates here guard. It does not unwind, so its callers need no code for that.
#[cold]
#[inline(never)]
extern "C" fn behind() {
    black_box(());
}

extern "C" fn nothing() {}

extern "C" fn branch() {
    if static_branch!(KEY) {
        behind();
    }
}

extern "C" fn branch_on_value() {
    if imv_read!(IS_WANTED) {
        behind();
    }
}

extern "C" fn branch_on_variable() {
    if FLAG.read() {
        behind();
    }
}

extern "C" fn value_u8() -> u8 {
    imv_read!(BYTE)
}

extern "C" fn value_u64() -> u64 {
    imv_read!(WORD)
}

extern "C" fn variable_u8() -> u8 {
    GLOBAL_BYTE.load(Ordering::Relaxed)
}

extern "C" fn variable_u64() -> u64 {
    GLOBAL_WORD.load(Ordering::Relaxed)
}

/// Returns for each probe its name, the address of its function, and the number of sites in it.
fn probes() -> [(&'static str, u64, usize); 7] {
    [
        ("static-branch", branch as *const () as u64, 1),
        ("immediate-value", branch_on_value as *const () as u64, 1),
        ("variable", branch_on_variable as *const () as u64, 0),
        ("immediate-value.u8", value_u8 as *const () as u64, 1),
        ("immediate-value.u64", value_u64 as *const () as u64, 1),
        ("variable.u8", variable_u8 as *const () as u64, 0),
        ("variable.u64", variable_u64 as *const () as u64, 0),
    ]
}

/// Maximum length of an x86-64 instruction, in bytes.
const INSTRUCTION_BYTES_MAX: usize = 15;

/// A source of machine code.
trait Code {
    /// Returns the bytes at an address, enough for any instruction.
    fn read(&self, address: u64) -> Option<[u8; INSTRUCTION_BYTES_MAX]>;
}

/// The code in this process's memory, as patched.
struct Patched(File);

impl Code for Patched {
    fn read(&self, address: u64) -> Option<[u8; INSTRUCTION_BYTES_MAX]> {
        let mut bytes = [0; INSTRUCTION_BYTES_MAX];
        self.0.read_at(&mut bytes, address).ok().map(|_| bytes)
    }
}

/// The code in the file, as the linker left it.
struct Linked<'a> {
    text: &'a [u8],
    /// Address at which the loader has mapped it.
    address: u64,
}

impl Code for Linked<'_> {
    fn read(&self, address: u64) -> Option<[u8; INSTRUCTION_BYTES_MAX]> {
        let rest = self.text.get(address.checked_sub(self.address)? as usize..)?;
        rest.first_chunk().copied()
    }
}

/// Returns the instructions that are executed from `start` on, by address. With `has_jumps`, both outcomes of
/// conditional jumps are followed; otherwise only the fall-through.
fn reached(code: &impl Code, start: u64, has_jumps: bool) -> Result<BTreeMap<u64, Instruction>, String> {
    let behind = behind as *const () as u64;
    let mut found = BTreeMap::new();
    let mut ways = vec![start];
    while let Some(address) = ways.pop() {
        if address == behind || found.contains_key(&address) {
            continue;
        }
        let bytes = code.read(address).ok_or("code that cannot be read")?;
        let instruction = Decoder::with_ip(64, &bytes, address, DecoderOptions::NONE).decode();
        let is_jump = instruction.op0_kind() == OpKind::NearBranch64;
        match instruction.mnemonic() {
            Mnemonic::INVALID => return Err(format!("no instruction at {:#x} beyond its start", address - start)),
            Mnemonic::Ret => {}
            Mnemonic::Jmp if is_jump => ways.push(instruction.near_branch_target()),
            Mnemonic::Jmp => return Err("a jump to nobody knows where".into()),
            mnemonic => {
                ways.push(instruction.next_ip());
                if is_jump && has_jumps && mnemonic != Mnemonic::Call {
                    ways.push(instruction.near_branch_target());
                }
            }
        }
        found.insert(address, instruction);
    }
    Ok(found)
}

/// Returns the number of bytes that a memory operand reads.
fn size(memory: MemorySize) -> Result<usize, String> {
    match memory {
        MemorySize::UInt8 | MemorySize::Int8 => Ok(1),
        MemorySize::UInt64 | MemorySize::Int64 => Ok(8),
        other => Err(format!("a variable is read as {other:?}")),
    }
}

/// Returns the entry point, from the auxiliary vector.
fn entry() -> Option<u64> {
    const AT_ENTRY: u64 = 9;
    let bytes = std::fs::read("/proc/self/auxv").ok()?;
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    words.as_chunks().0.iter().find(|[name, _]| *name == AT_ENTRY).map(|[_, value]| *value)
}

/// Returns all counts, by name.
///
/// # Errors
/// If code cannot be read or understood; the text says which.
pub fn counts() -> Result<BTreeMap<String, usize>, String> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err("bytes of code are counted on x86-64 only".into());
    }
    // Nothing sets them, but the compiler must not know.
    black_box((&FLAG, &GLOBAL_BYTE, &GLOBAL_WORD));
    let file = std::fs::read("/proc/self/exe").map_err(|error| format!("/proc/self/exe: {error}"))?;
    let file = object::File::parse(&*file).map_err(|error| error.to_string())?;
    let section = file.section_by_name(".text").ok_or("no section .text")?;
    let text = section.data().map_err(|error| error.to_string())?;
    let bias = entry().ok_or("no entry point")?.wrapping_sub(file.entry());
    let linked = Linked { text, address: section.address().wrapping_add(bias) };
    let memory = File::open("/proc/self/mem").map_err(|error| format!("/proc/self/mem: {error}"))?;
    let patched = Patched(memory);

    let bytes = |code: &BTreeMap<u64, Instruction>| code.values().map(Instruction::len).sum::<usize>();
    let bare = bytes(&reached(&patched, nothing as *const () as u64, false)?);
    let mut counts = BTreeMap::new();
    for (name, start, sites) in probes() {
        let hot = reached(&patched, start, false)?;
        let cold =
            reached(&linked, start, true)?.into_iter().filter(|(address, _)| !hot.contains_key(address)).collect();
        let read = hot.values().filter(|instruction| instruction.memory_base() == Register::RIP);
        let data: Result<BTreeMap<u64, usize>, String> = read
            .map(|instruction| Ok((instruction.ip_rel_memory_address(), size(instruction.memory_size())?)))
            .collect();
        let data = data?;
        let lines: BTreeSet<u64> = data.keys().map(|address| address / 64).collect();
        for (what, count) in [
            ("hot-code", bytes(&hot) - bare),
            ("hot-data", data.values().sum()),
            ("hot-lines", lines.len()),
            ("cold-code", bytes(&cold)),
            ("site-table", sites * size_of::<SiteRecord>()),
        ] {
            counts.insert(format!("{what}.{name}"), count);
        }
    }
    Ok(counts)
}

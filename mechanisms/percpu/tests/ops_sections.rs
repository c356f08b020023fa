//! Checks the assembled critical sections: the last instruction before the post-commit label is the final store, and
//! the descriptor has the form of the kernel's ABI.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "generic")))]

use std::collections::BTreeMap;
use std::process::Command;
use std::ptr::NonNull;

use dormouse_abi::rseq::CriticalSection;
use dormouse_abi::txn::Txn;
use dormouse_percpu::{Commit, Node, PopOutcome, Rseq};

/// Defines a function for each section, so that the disassembly has names. They are never called.
macro_rules! sections {
    ($($name:ident($rseq:ident $(, $argument:ident: $type:ty)*) -> $result:ty = $call:expr;)*) => {
        $(
            /// # Safety
            /// Never called.
            #[inline(never)]
            #[unsafe(no_mangle)]
            unsafe fn $name($rseq: Rseq $(, $argument: $type)*) -> $result {
                // SAFETY: never called.
                unsafe { $call }
            }
        )*
        /// Keeps the functions in the program.
        fn keep() {
            $(std::hint::black_box($name as *const ());)*
        }
    };
}

sections! {
    section_load(rseq, word: *const u64) -> Option<u64> = rseq.load(0, word);
    section_store(rseq, word: *mut u64) -> bool = rseq.store(0, word, 1);
    section_add(rseq, word: *mut u64) -> bool = rseq.add(0, word, 1);
    section_compare_and_store(rseq, word: *mut u64) -> Commit = rseq.compare_and_store(0, word, 1, 2);
    section_push(rseq, head: *mut *mut Node, node: NonNull<Node>) -> bool = rseq.push(0, head, node);
    section_pop(rseq, head: *mut *mut Node) -> PopOutcome = rseq.pop(0, head);
    section_copy_and_store(rseq, word: *mut u64, to: *mut u8, from: *const u8, len: usize) -> Commit =
        rseq.copy_and_store(0, word, 1, to, from, len, word, 2);
    section_add_by_stride(rseq, first: *mut u64, shift: u32) -> bool = rseq.add_by_stride(first, shift, 8, 1);
    section_commit(rseq, txn: &Txn) -> Commit = rseq.commit(0, txn);
}

unsafe extern "C" {
    #[link_name = "__start___rseq_cs"]
    static FIRST: CriticalSection;
    #[link_name = "__stop___rseq_cs"]
    static END: CriticalSection;
    #[link_name = "__executable_start"]
    static PROGRAM: u8;
}

fn descriptors() -> &'static [CriticalSection] {
    let (first, end) = (&raw const FIRST, &raw const END);
    let count = (end.addr() - first.addr()) / size_of::<CriticalSection>();
    // SAFETY: the linker defines the two symbols around the section's contents, which are only descriptors.
    unsafe { std::slice::from_raw_parts(first, count) }
}

#[cfg(target_arch = "x86_64")]
const OBJDUMPS: [&str; 1] = ["objdump"];
#[cfg(target_arch = "aarch64")]
const OBJDUMPS: [&str; 2] = ["aarch64-linux-gnu-objdump", "objdump"];

/// Returns the name of the function that a section is in, and the section's last instruction.
fn disassembly(section: &CriticalSection) -> Option<(String, String)> {
    let base = (&raw const PROGRAM).addr() as u64;
    // A program that is not relocatable is at the address for which it was linked, so its addresses are the file's.
    let start = section.start_ip.wrapping_sub(if is_relocated() { base } else { 0 });
    let output = OBJDUMPS.iter().find_map(|objdump| {
        let mut command = Command::new(objdump);
        command.args(["-d", "-w", "--no-show-raw-insn"]).args((cfg!(target_arch = "x86_64")).then_some("-Mintel"));
        command.arg(format!("--start-address={start}"));
        command.arg(format!("--stop-address={}", start + section.post_commit_offset));
        let output = command.arg(std::env::current_exe().unwrap()).output().ok()?;
        output.status.success().then_some(output)
    })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // `0000000000012345 <function+0x12>:`, then `   12345:	instruction	operands`.
    let name = text.lines().find_map(|line| line.split_once(" <")?.1.strip_suffix(">:"))?;
    let last = text.lines().rfind(|line| line.contains(":\t"))?.split_once(":\t")?.1;
    Some((name.to_string(), last.split_whitespace().collect::<Vec<_>>().join(" ")))
}

/// Whether the loader has chosen the program's address: the addresses in its headers are then small.
fn is_relocated() -> bool {
    let header = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    // e_type of the ELF header: ET_DYN.
    header[16] == 3
}

#[test]
fn the_last_instruction_of_each_section_is_its_final_store() {
    keep();
    let mut last: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for section in descriptors() {
        let Some((name, instruction)) = disassembly(section) else {
            return dormouse_testing::skip(dormouse_testing::Lack::machine(
                "there is no objdump for this architecture",
                "`apt-get install binutils-multiarch`",
            ));
        };
        let name = name.split_once('+').map_or(name.as_str(), |(name, _)| name);
        last.entry(name.to_string()).or_default().push(instruction);
    }
    // (function, name of the section if it was not inlined there, minimum number of sections, kind of the last
    // instruction)
    let (load, store, release) =
        if cfg!(target_arch = "x86_64") { ("load", "store", "store") } else { ("load", "store", "release") };
    let expected = [
        ("section_load", "9rseq_load17", 1, load),
        ("section_store", "10rseq_store17", 1, release),
        ("section_add", "19rseq_load_add_store17", 1, store),
        ("section_compare_and_store", "20rseq_load_cbne_store17", 1, release),
        ("section_push", "21rseq_load_store_store17", 1, release),
        ("section_pop", "25rseq_load_cbeq_load_store17", 1, release),
        ("section_copy_and_store", "27rseq_load_cbne_memcpy_store17", 1, release),
        ("section_add_by_stride", "18rseq_cpu_shift_add17", 1, store),
        ("section_commit", "rseq_load_cbne_stores_store_", 3, release),
    ];
    for (function, section, count, kind) in expected {
        let found: Vec<&String> = last
            .iter()
            .filter(|(name, _)| *name == function || name.contains(section))
            .flat_map(|(_, all)| all)
            .collect();
        assert!(found.len() >= count, "{function}: {last:#?}");
        for instruction in found {
            assert_eq!(kind_of(instruction), kind, "{function} ends in {instruction}");
        }
    }
    // Compilers inline sections into other functions of the library too.
    for (function, instruction) in last.iter().flat_map(|(name, all)| all.iter().map(move |one| (name, one))) {
        assert_ne!(kind_of(instruction), "something else", "{function} ends in {instruction}");
    }
}

/// Returns whether an instruction loads a register from memory or stores to memory, and how.
fn kind_of(instruction: &str) -> &'static str {
    let (mnemonic, operands) = instruction.split_once(' ').unwrap_or((instruction, ""));
    if cfg!(target_arch = "aarch64") {
        return match mnemonic {
            "stlr" | "stlrh" => "release",
            "str" => "store",
            "ldr" => "load",
            _ => "something else",
        };
    }
    let (to, from) = operands.split_once(',').unwrap_or((operands, ""));
    match (mnemonic, to.contains('['), from.contains('[')) {
        // An instruction that adds in memory both reads and stores.
        ("mov" | "add", true, false) => "store",
        ("mov", false, true) => "load",
        _ => "something else",
    }
}

#[test]
fn descriptors_are_the_abis() {
    keep();
    assert!(descriptors().len() >= 10);
    let signature = if cfg!(target_arch = "x86_64") { 0x5305_3053 } else { 0xd428_bc00_u32 };
    for section in descriptors() {
        assert_eq!((section.version, section.flags), (0, 0));
        assert_eq!((&raw const *section).addr() % 32, 0);
        let abort = section.abort_ip.wrapping_sub(section.start_ip);
        assert!(abort >= section.post_commit_offset, "the abort handler is outside of the section");
        let before = std::ptr::with_exposed_provenance::<u32>(section.abort_ip as usize - 4);
        // SAFETY: code of this program, before one of its labels.
        assert_eq!(unsafe { before.read_unaligned() }, signature);
    }
}

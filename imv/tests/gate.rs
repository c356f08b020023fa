//! What a gate is in the binary.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(feature = "generic")))]

use std::process::Command;

use dormouse_abi::site::{X86_JMP, X86_TEST};
use dormouse_imv::{StaticKey, Writer, disable, enable, key_sites, static_branch, status, visit_key_sites};

fn bytes_of(key: &StaticKey) -> Vec<[u8; 5]> {
    let mut all = Vec::new();
    visit_key_sites(key, |_, bytes| all.push(bytes)).unwrap();
    all
}

#[test]
fn the_constructor_has_put_sites_to_sleep() {
    static KEY: StaticKey = StaticKey::new();
    #[inline(never)]
    fn gate() -> bool {
        static_branch!(KEY)
    }
    let dormant = bytes_of(&KEY);
    assert!(!dormant.is_empty());
    assert!(dormant.iter().all(|bytes| bytes[0] == X86_TEST));
    assert!(!gate());
    let status = status().unwrap();
    assert_eq!(status.writer, Writer::Mprotect, "{}", status.reason);
}

#[test]
fn only_the_first_byte_differs_between_the_states() {
    static KEY: StaticKey = StaticKey::new();
    #[inline(never)]
    fn gate() -> bool {
        static_branch!(KEY)
    }
    let dormant = bytes_of(&KEY);
    assert!(!gate());
    enable(&KEY).unwrap();
    let armed = bytes_of(&KEY);
    assert!(gate());
    disable(&KEY).unwrap();
    assert_eq!(bytes_of(&KEY), dormant);
    assert!(!gate());
    assert_eq!(armed.len(), dormant.len());
    for (armed, dormant) in armed.iter().zip(&dormant) {
        assert_eq!((armed[0], dormant[0]), (X86_JMP, X86_TEST));
        assert_eq!(armed[1..], dormant[1..]);
    }
}

#[test]
fn a_key_that_starts_enabled_is_armed() {
    static KEY: StaticKey = StaticKey::new_enabled();
    let gate = || static_branch!(KEY);
    assert!(gate());
    let count = key_sites(&KEY).unwrap();
    assert!(count.sites > 0 && count.patched == count.sites);
    disable(&KEY).unwrap();
    assert!(!gate());
    assert!(bytes_of(&KEY).iter().all(|bytes| bytes[0] == X86_TEST));
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn golden_gate(value: u64) -> u64 {
    static KEY: StaticKey = StaticKey::new();
    if static_branch!(KEY) { value.wrapping_mul(3) } else { value }
}

/// As the compiler and linker left it: the born state, in a function that touches no memory before it.
#[test]
fn the_file_holds_born_sites() {
    assert_eq!(golden_gate(5), 5);
    let Ok(output) = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn", "--disassemble=golden_gate"])
        .arg(std::env::current_exe().unwrap())
        .output()
    else {
        eprintln!("skipped: no objdump");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let instructions: Vec<&str> =
        text.lines().filter_map(|line| line.split_once(":\t")).map(|(_, instruction)| instruction.trim()).collect();
    let site = instructions.iter().position(|instruction| instruction.starts_with("jmp")).expect(&text);
    assert!(instructions[site].contains("<golden_gate+"), "{text}");
    // The dormant path is straight: no load, no other jump, then return.
    let dormant: Vec<_> = instructions[..].iter().take_while(|instruction| !instruction.starts_with("ret")).collect();
    assert!(dormant.iter().all(|instruction| !instruction.contains("(%rip)")), "{text}");
    assert_eq!(dormant.iter().filter(|instruction| instruction.starts_with('j')).count(), 1, "{text}");

    let raw = Command::new("objdump")
        .args(["-d", "--disassemble=golden_gate"])
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let raw = String::from_utf8(raw.stdout).unwrap();
    assert_eq!(raw.lines().filter(|line| line.contains("\te9 ")).count(), 1, "{raw}");
}

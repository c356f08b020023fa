//! A dormant event does nothing, and consists of exactly the bytes that the documents promise.

use std::process::Command;

use dormouse_e2e::check::check;
use dormouse_e2e::run::Record;
use dormouse_testing::{Lack, skip, skip_part};

use crate::{POINTS, TRACED};

#[test]
fn a_dormant_event_evaluates_nothing() {
    let recording = Record::new().option("-e").option("other:*").run(&[TRACED, "dormant", "1000"]).succeeded();
    assert_eq!(recording.numbers("evaluated"), [0]);
    assert_eq!(check(&recording).1, 0);
    // Without any session.
    let output = Command::new(TRACED).args(["dormant", "1000"]).output().expect("the program runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "evaluated 0\n");
    let recording = Record::new().run(&[TRACED, "dormant", "1000"]).succeeded();
    assert_eq!(recording.numbers("evaluated"), [1_000]);
    assert_eq!(check(&recording).1, 1_000);
}

/// A site's bytes of the program's text, which differ between memory and file.
#[derive(Debug)]
struct Difference {
    file_offset: u64,
    what: String,
}

fn differences(stdout: &str) -> Vec<Difference> {
    let line = |line: &str| {
        let (offset, what) = line.strip_prefix("differs 0x")?.split_once(": ")?;
        Some(Difference { file_offset: u64::from_str_radix(offset, 16).ok()?, what: what.into() })
    };
    stdout.lines().filter_map(line).collect()
}

fn number(stdout: &str, word: &str) -> usize {
    let line = stdout.lines().find_map(|line| line.strip_prefix(word));
    line.and_then(|number| number.trim().parse().ok()).expect("a number")
}

/// Checks that every site of an untraced program, and no other byte, differs. In the file it is a jump, in memory a nop:
/// `E9` and a distance, and `0F 1F 44 00 00`, on x86-64; `b` and `nop` on AArch64.
#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn dormant_sites_are_the_documented_bytes() {
    let output = Command::new(TRACED).arg("golden").output().expect("the program runs");
    assert!(output.status.success());
    let stdout = String::from_utf8_lossy(&output.stdout);
    let differences = differences(&stdout);
    let sites = number(&stdout, "sites");
    assert!(sites >= 6, "{stdout}");
    if number(&stdout, "patched") == 0 {
        let reason = "the text of programs cannot be patched here";
        return skip(Lack::machine(reason, "`dormouse doctor` tells what forbids it"));
    }
    assert_eq!(differences.len(), sites, "{stdout}");
    for Difference { what, .. } in &differences {
        let (on_disk, in_memory) = what.split_once(" on disk, ").expect("both");
        let is_documented = if cfg!(target_arch = "aarch64") {
            // The upper six bits of `b` are in the last byte.
            let is_branch = ["14", "15", "16", "17"].iter().any(|byte| on_disk.ends_with(byte));
            is_branch && in_memory == "1f 20 03 d5 in memory"
        } else {
            on_disk.starts_with("e9 ") && in_memory == "0f 1f 44 00 00 in memory"
        };
        assert!(is_documented, "{what}");
    }
    golden_function(&differences);
}

/// Whether an instruction is a jump to a fixed place.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn is_jump(code: &str) -> bool {
    code.split_whitespace().next() == Some(if cfg!(target_arch = "aarch64") { "b" } else { "jmp" })
}

/// Whether an instruction neither branches nor calls.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn is_quiet(code: &str) -> bool {
    if cfg!(target_arch = "aarch64") {
        let name = code.split_whitespace().next().unwrap_or_default();
        !(["b", "bl", "blr", "br", "cbz", "cbnz", "tbz", "tbnz"].contains(&name) || name.starts_with("b."))
    } else {
        !code.starts_with('j') && !code.starts_with("call")
    }
}

/// Checks that the function has one site, and that its dormant path continues straight from the site: no load, no other
/// jump or call.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn golden_function(differences: &[Difference]) {
    let output =
        Command::new("objdump").args(["-d", "--file-offsets", "--disassemble=dormouse_e2e_golden", TRACED]).output();
    let Ok(output) = output else {
        return skip_part("the function", Lack::program("objdump"));
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let head = text.lines().find(|line| line.contains("<dormouse_e2e_golden> (File Offset: 0x")).expect("the function");
    let address = u64::from_str_radix(head.split_whitespace().next().expect("an address"), 16).expect("an address");
    let offset = head.rsplit_once("Offset: 0x").and_then(|(_, rest)| rest.split_once(')')).expect("an offset").0;
    let offset = u64::from_str_radix(offset, 16).expect("an offset");
    let is_site = |at: u64| differences.iter().any(|difference| difference.file_offset == at - address + offset);
    let mut sites = 0;
    for line in text.lines().filter(|line| line.contains(":\t")) {
        let (at, rest) = line.split_once(":\t").expect("an address");
        let at = u64::from_str_radix(at.trim(), 16).expect("an address");
        let code = rest.split_once('\t').map_or("", |(_, code)| code);
        if is_site(at) {
            sites += 1;
            assert!(is_jump(code), "{line}");
            continue;
        }
        // The dormant path extends to the return; the slow one follows.
        assert!(is_quiet(code) || sites > 0 && is_jump(code), "{text}");
        if code.starts_with("ret") {
            break;
        }
    }
    assert_eq!(sites, 1, "{text}");
}

/// Number of instructions that write a record of one word, from the first of the function that a site calls to its
/// return, on x86-64 and on AArch64.
const RECORD_LEN: (u64, u64) = (44, 49);

/// Counts the instructions of a record by executing them one by one.
#[test]
fn an_armed_event_is_few_instructions() {
    // The machines' instructions are comparable: neither needs many more.
    const { assert!(100 * RECORD_LEN.1 <= 115 * RECORD_LEN.0) };
    let record = Record::new().budget("500K").env("DORMOUSE_LISTEN", "0");
    let recording = record.run(&[POINTS, "count"]).succeeded();
    let Some(len) = recording.numbers("instructions").first().copied() else {
        let reason = recording.stdout.lines().find_map(|line| line.strip_prefix("cannot: "));
        let reason = reason.unwrap_or("records are not written by critical sections here");
        return skip(Lack::machine(reason, "ptrace(2), and what `dormouse doctor` says of restartable sequences"));
    };
    assert_eq!(len, if cfg!(target_arch = "aarch64") { RECORD_LEN.1 } else { RECORD_LEN.0 });
}

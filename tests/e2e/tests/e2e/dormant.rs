//! A dormant event does nothing, and consists of exactly the bytes that the documents promise.

use std::process::Command;

use dormouse_e2e::check::check;
use dormouse_e2e::run::Record;
use dormouse_testing::{Lack, skip, skip_part};

use crate::TRACED;

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

/// Five bytes of the program's text, the first of which differs between memory and file.
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

/// Checks that every site of an untraced program, and no other byte, differs: `E9` and a distance (jmp) in the file,
/// `0F 1F 44 00 00` (nop) in memory.
#[test]
#[cfg(target_arch = "x86_64")]
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
        assert!(what.starts_with("e9 ") && what.ends_with(" on disk, 0f 1f 44 00 00 in memory"), "{what}");
    }
    golden_function(&differences);
}

/// Checks that the function has one site, and that its dormant path continues straight from the site: no load, no other
/// jump or call.
#[cfg(target_arch = "x86_64")]
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
            assert!(rest.starts_with("e9 ") && code.starts_with("jmp"), "{line}");
            continue;
        }
        // The dormant path extends to the return; the slow one follows.
        let is_quiet = !code.starts_with('j') && !code.starts_with("call");
        assert!(is_quiet || sites > 0 && code.starts_with("jmp"), "{text}");
        if code.starts_with("ret") {
            break;
        }
    }
    assert_eq!(sites, 1, "{text}");
}

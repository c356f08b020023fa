//! `dormouse pages PID`: a table, JSON, and an error with its reason.

use std::process::Command;

use crate::PAGES;

/// An array of this program that is read and never written.
static FRAME: [std::sync::atomic::AtomicU8; 1 << 20] = [const { std::sync::atomic::AtomicU8::new(0) }; 1 << 20];

#[test]
fn a_process_is_shown_with_the_backing_of_its_memory() {
    let sum: u64 = std::hint::black_box(&FRAME)
        .iter()
        .map(|byte| u64::from(byte.load(std::sync::atomic::Ordering::Relaxed)))
        .sum();
    assert_eq!(sum, 0);
    let pid = std::process::id().to_string();
    let output = Command::new(PAGES).arg(&pid).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in [&format!("process {pid}"), "unbacked", "swapped", "r-x of command-", ".bss of command-", "\nall "] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let output = Command::new(PAGES).args([&pid, "--json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mappings = json["areas"].as_array().unwrap();
    let sum = |field: &str| mappings.iter().map(|mapping| mapping["pages"][field].as_u64().unwrap()).sum::<u64>();
    for field in ["unbacked", "zero", "small", "huge", "swapped"] {
        assert_eq!(json["total"][field].as_u64(), Some(sum(field)), "{field}");
    }
    // Checked only if the kernel tells the zero page.
    if json["unseen"]
        .as_array()
        .unwrap()
        .iter()
        .all(|line| !line.as_str().unwrap().contains("the zero page and huge pages count"))
    {
        let variables = json["zero_variables"].as_array().unwrap();
        assert!(
            variables.iter().any(|variable| variable["name"].as_str().unwrap().contains("FRAME")
                && variable["zero"].as_u64().unwrap() >= (1 << 20) - 8192),
            "{variables:#?}"
        );
    }
}

#[test]
fn a_missing_process_is_refused() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id().to_string();
    child.wait().unwrap();
    let output = Command::new(PAGES).arg(&pid).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains(&format!("there is no process {pid}")) && output.stdout.is_empty(), "{error}");
}

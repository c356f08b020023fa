//! Result of `dormouse export` for a recording: slices by the names of libc's functions, counted again by `dormouse
//! view`.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use dormouse_e2e::run::{Record, dormouse, libc_library};
use dormouse_testing::has;
use serde_json::Value as Json;

fn output(arguments: &[&str], trace: &Path) -> String {
    let output = Command::new(dormouse()).args(&arguments[..1]).arg(trace).args(&arguments[1..]).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_recording_of_libc_has_slices_of_files_and_mutexes() {
    libc_library();
    if !has("python3") {
        return;
    }
    let script = "import threading\ndef read():\n  for _ in range(50): open('/dev/null').close()\n\
                  threads = [threading.Thread(target=read) for _ in range(3)]\n\
                  for thread in threads: thread.start()\nfor thread in threads: thread.join()";
    let recording = Record::new().option("--libc").run(&["python3", "-c", script]).succeeded();
    let trace = recording.dir.clone();
    let count =
        |options: &[&str]| output(&[&["view", "--format", "logfmt"], options].concat(), &trace).lines().count() as u64;
    let file = recording.place().join("out.json");
    let file_name = file.to_str().unwrap();
    let told: Json =
        serde_json::from_str(&output(&["export", "--to", "chrome", "-o", file_name, "--json"], &trace)).unwrap();
    assert_eq!(told["events"], count(&["-e", "libc:*"]));
    assert_eq!(told["timeline"]["events_lost"], 0);
    let whole: Json = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = whole["traceEvents"].as_array().unwrap();
    let begins = |name: &str| events.iter().filter(|event| event["ph"] == "B" && event["name"] == name).count() as u64;
    // A class that no call has armed is not in the trace.
    let classes = output(&["stats", "--json"], &trace);
    let sum = |names: &[&str], options: &[&str]| -> u64 {
        let there = names.iter().filter(|name| classes.contains(&format!("\"{name}\"")));
        there.map(|name| count(&[&["-e", name], options].concat())).sum()
    };
    let opened = sum(&["libc:open", "libc:openat", "libc:fopen"], &["--where", "fd >= 0"]);
    assert!(opened >= 150);
    assert_eq!(begins("libc:file open"), opened);
    // A thread that has waited for a condition holds the mutex again.
    let locks = ["libc:mutex_lock", "libc:mutex_trylock"];
    let mutexes = sum(&locks, &["--where", "result == 0"]) + sum(&["libc:cond_wait_end"], &[]);
    assert_eq!(begins("libc:mutex held"), mutexes);
    let locks = ["libc:rwlock_rdlock", "libc:rwlock_wrlock", "libc:rwlock_tryrdlock", "libc:rwlock_trywrlock"];
    let rwlocks = sum(&locks, &["--where", "result == 0"]);
    assert_eq!(begins("libc:rwlock held"), rwlocks);
    let locked = mutexes + rwlocks;
    let conditions = sum(&["libc:cond_wait_begin"], &[]);
    assert_eq!(begins("libc:cond_wait"), conditions);
    let lock_waits = sum(&["libc:mutex_lock_begin", "libc:rwlock_rdlock_begin", "libc:rwlock_wrlock_begin"], &[]);
    assert_eq!(begins("libc:mutex wait") + begins("libc:rwlock wait"), lock_waits);
    let waits = conditions + lock_waits;
    let timeline = |key: &str| told["timeline"][key].as_u64().unwrap();
    assert_eq!(timeline("slices") + timeline("slices_unfinished"), opened + locked + waits);
    // A second close or unlock, or one of something that was opened otherwise, ends no slice.
    let ends = [
        "libc:close",
        "libc:fclose",
        "libc:mutex_unlock",
        "libc:rwlock_unlock",
        "libc:cond_wait_begin",
        "libc:cond_wait_end",
    ];
    assert_eq!(timeline("slices") + timeline("ends_unpaired"), sum(&ends, &[]) + lock_waits);
    // The pairs of files are those that `stats` finds.
    let files = ["stats", "--latency", "libc:open*..libc:close", "--key", "pid,fd", "--where", "fd >= 0", "--json"];
    let stats: Json = serde_json::from_str(&output(&files, &trace)).unwrap();
    let pairs = stats["rows"][0]["count"].as_u64().unwrap();
    let slices = timeline("slices");
    let others = locked + waits + sum(&["libc:fopen"], &[]);
    assert!(pairs >= 150 && (pairs..=pairs + others).contains(&slices), "{pairs} pairs, {slices} slices");
}

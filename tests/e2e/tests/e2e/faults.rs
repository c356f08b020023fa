//! A record path never faults: a million events in each mode and for each way to write a record, by the kernel's own
//! count.

use dormouse_backing::{MemoryOptions, Pool};
use dormouse_e2e::run::{Record, Recording};

use crate::TRACED;

/// Number of events of each recording after the warm-up, unless the environment variable of this name sets another.
const EVENTS: (&str, u64) = ("DORMOUSE_FAULT_EVENTS", 1_000_000);
/// Budget of the session; a whole number of huge pages.
const BUDGET_BYTES: usize = 16 << 20;
const HUGE_PAGE_BYTES: usize = 2 << 20;

fn event_count() -> u64 {
    std::env::var(EVENTS.0).ok().and_then(|text| text.parse().ok()).unwrap_or(EVENTS.1)
}

/// Whether sessions have huge pages on this machine.
fn has_huge_pages() -> bool {
    let pool = Pool::new("dormouse-e2e", HUGE_PAGE_BYTES, MemoryOptions::new()).unwrap();
    pool.use_huge_pages(0..HUGE_PAGE_BYTES) == HUGE_PAGE_BYTES
}

/// Returns the maximum number of faults of a process: zero. If the kernel has no huge pages for memory files, the
/// faults that it counts while it maps a drawn page into the page table, one for each 4 KiB.
fn faults_max() -> u64 {
    if has_huge_pages() {
        return 0;
    }
    println!(
        "no huge pages for memory files here: pages are taken into the page table as they are drawn, and count as faults"
    );
    BUDGET_BYTES as u64 / 4096 + 64
}

/// Returns the counts that the programs have printed.
fn faults(recording: &Recording) -> Vec<u64> {
    let lines = recording.stdout.lines().filter_map(|line| line.strip_prefix("faults "));
    lines.map(|count| count.parse().unwrap()).collect()
}

fn never_faults(mode: &str, rseq: bool) {
    let max = faults_max();
    for (kind, context, clock, rules) in WAYS {
        let record = Record::new().mode(mode).rseq(rseq).context(context).env("DORMOUSE_CLOCK", clock);
        let record = match rules {
            "condition" => record.option("-e").option("e2e:* where number >= 0"),
            "another session" => record.within_recording(&["--budget", "64M", "--budget-max", "64M"]),
            _ => record,
        };
        let recording = record.run(&[TRACED, "faults", kind, &event_count().to_string()]).succeeded();
        let summary = recording.summary();
        let total = recording.numbers("emitted").iter().sum::<u64>();
        // Overwritten events are not losses.
        assert!(summary.events > 0 && (mode == "overwrite" || summary.events + summary.lost == total), "{summary:?}");
        let found = faults(&recording);
        println!(
            "{mode}, rseq {rseq}, {kind}, context {context}, clock {clock}, {rules}: record_path_faults {found:?}"
        );
        assert!(
            found.len() == 1 && found[0] <= max,
            "{mode}, rseq {rseq}, {kind}, {context}, {clock}, {rules}: {found:?} faults"
        );
    }
}

/// All ways that the tracer has to write a record: fields in registers, in one run of bytes, in several; with and
/// without context; with the clock read outside of the section; with a condition; and in another session too.
const WAYS: [(&str, &str, &str, &str); 8] = [
    ("words", "ids", "", ""),
    ("bytes", "ids", "", ""),
    ("segments", "ids", "", ""),
    ("words", "none", "", ""),
    ("words", "ids", "monotonic", ""),
    ("words", "ids", "", "condition"),
    ("bytes", "none", "", "condition"),
    ("words", "ids", "", "another session"),
];

#[test]
fn discard_by_rseq_never_faults() {
    never_faults("discard", true);
}

#[test]
fn discard_by_atomics_never_faults() {
    never_faults("discard", false);
}

#[test]
fn overwrite_by_rseq_never_faults() {
    never_faults("overwrite", true);
}

#[test]
fn overwrite_by_atomics_never_faults() {
    never_faults("overwrite", false);
}

/// Pages that another process has opened are in this process's page table too; and so they are in a child's, although
/// `fork` gives it an empty one.
#[test]
fn processes_that_share_pages_never_fault() {
    let max = faults_max();
    for mode in ["discard", "overwrite"] {
        let events = (event_count() / 2).to_string();
        let script = "\"$0\" faults words $1 & \"$0\" faults-of-child words $1 & wait";
        let recording = Record::new().mode(mode).run(&["sh", "-c", script, TRACED, &events]).succeeded();
        let found = faults(&recording);
        println!("{mode}: record_path_faults {found:?}");
        // Without huge pages, the kernel may fault again because of what other processes did to a page.
        assert!(found.len() == 2 && found.iter().all(|found| *found <= max), "{mode}: {found:?} faults");
    }
}

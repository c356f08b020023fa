//! One budget for all CPUs: its distribution, its cost, and how it changes while a session is live.

use std::path::{Path, PathBuf};

use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, Running};
use dormouse_e2e::trace::Trace;
use dormouse_testing::{Lack, skip, skip_part};
use dormouse_tools::{SessionSocket, ask_for_budget};
use rustix::fs::{FileType, Mode};

use crate::TRACED;

/// Starts a program that emits some events, and then waits at a FIFO until [`finish`].
fn hold(record: Record, events: &str) -> (Running, PathBuf) {
    let end = record.place().join("end");
    rustix::fs::mknodat(rustix::fs::CWD, &end, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut running = record.start(&[TRACED.as_ref(), "hold".as_ref(), end.as_os_str(), events.as_ref()]);
    running.wait_for("ready");
    (running, end)
}

/// Ends the program, and returns the sums of its trace.
fn finish((running, end): (Running, PathBuf)) -> (u64, u64) {
    std::fs::write(end, "").unwrap();
    let (_, events, lost) = check(&running.wait().succeeded());
    (events, lost)
}

/// Returns the answer of `dormouse budget`, or its standard error.
fn budget(running: &Running, set: Option<&str>) -> Result<serde_json::Value, String> {
    let session = running.session();
    let mut arguments = vec!["budget", session.to_str().unwrap(), "--json"];
    arguments.extend(set.iter().flat_map(|size| ["--set", size]));
    let output = running.dormouse(&arguments);
    if output.status.success() {
        Ok(serde_json::from_slice(&output.stdout).expect("JSON"))
    } else {
        assert_eq!(output.status.code(), Some(2));
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn number(answer: &serde_json::Value, name: &str) -> u64 {
    answer[name].as_u64().unwrap_or_else(|| panic!("no {name} in {answer}"))
}

#[test]
fn a_busy_cpu_leaves_the_others_their_pages() {
    let recording = Record::new().budget("1M").run(&[TRACED, "starve", "200000", "300"]).succeeded();
    let (trace, events, lost) = check(&recording);
    assert!(lost > 0, "{events} events of 1 MiB and nobody who drains");
    if recording.numbers("quiet").is_empty() {
        return skip(Lack::machine("there is one processor only", "a machine with two"));
    }
    let quiet: Vec<u64> =
        trace.steps().into_iter().filter(|((_, thread), _)| *thread == 1).flat_map(|(_, n)| n).collect();
    assert!(quiet.iter().copied().eq(0..300), "{} of 300 events", quiet.len());
}

#[test]
fn possible_cpus_take_hardly_any_memory() {
    let bytes_of = |cpus: &str| {
        let session = hold(Record::new().option("--pretend-cpus").option(cpus), "100000");
        let bytes = session.0.memory_bytes();
        assert_eq!(finish(session), (100_000, 0));
        bytes
    };
    let (of_two, of_thousand) = (bytes_of("2:2"), bytes_of("1000:2"));
    println!("{of_two} bytes for 2 processors, {of_thousand} for 1,000 possible ones");
    assert!(of_thousand <= of_two + of_two / 20);
}

/// A control group with a memory limit, if one may be created.
struct Limited(PathBuf);

impl Limited {
    fn new(name: &str, bytes: u64) -> Option<Limited> {
        let name = format!("dormouse-{name}-{}", std::process::id());
        [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")].iter().find_map(
            |(root, file)| {
                let limited = Limited(Path::new(root).join(&name));
                std::fs::create_dir(&limited.0).ok()?;
                // Dropped, and so removed, if it has no such file.
                let set =
                    limited.0.join(file).exists() && std::fs::write(limited.0.join(file), bytes.to_string()).is_ok();
                set.then_some(limited)
            },
        )
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Everything fits into 64 MiB with the default settings: the recorder, the traced program, and the session's memory.
#[test]
fn a_small_container_on_a_large_machine_is_enough() {
    const LIMIT: u64 = 64 << 20;
    for (mode, rseq) in [("discard", true), ("overwrite", true), ("discard", false)] {
        let record = Record::new().mode(mode).rseq(rseq).option("--pretend-cpus").option("256:256");
        let limited = Limited::new(mode, LIMIT);
        let record = match &limited {
            Some(limited) => record.cgroup(&limited.0),
            None => {
                let lack =
                    Lack::machine("no control group may be made here", "run the tests as root, with cgroups mounted");
                skip_part("what others than the session need", lack);
                record
            }
        };
        let session = hold(record, "400000");
        let state = budget(&session.0, None).unwrap();
        assert_eq!((number(&state, "budget_bytes"), number(&state, "page_size_bytes")), (16 << 20, 16 << 10));
        assert!(session.0.memory_bytes() < LIMIT / 2, "{}", session.0.memory_bytes());
        if mode == "overwrite" {
            let dir = session.0.place().join("snapshot");
            let taken = session.0.dormouse(&["snapshot".as_ref(), "-o".as_ref(), dir.as_os_str()]);
            assert!(taken.status.success(), "{taken:?}");
            assert!(Trace::read(&dir).stats().events > 100_000);
        }
        let (events, lost) = finish(session);
        assert!(mode == "overwrite" || events + lost == 400_000, "{events} + {lost}");
        assert!(events > 100_000, "{events} of 400,000 in 16 MiB");
    }
}

#[test]
fn a_live_flight_recorder_grows_and_shrinks() {
    let record = Record::new().mode("overwrite").budget("4M");
    let end = record.place().join("end");
    let mut running = record.start(&[TRACED.as_ref(), "until".as_ref(), end.as_os_str(), "3".as_ref()]);
    running.wait_for("ready");
    let before = running.memory_bytes();
    for (size, bytes) in [("16M", 16 << 20), ("1M", 1 << 20), ("8M", 8 << 20), ("2M", 2 << 20)] {
        let state = budget(&running, Some(size)).unwrap();
        assert_eq!((number(&state, "budget_bytes"), number(&state, "budget_max_bytes")), (bytes, 16 << 20));
        if bytes == 16 << 20 {
            assert!(running.memory_bytes() >= before + (12 << 20));
        }
        if bytes == 2 << 20 {
            break;
        }
        // A snapshot needs more memory for a while; the next size takes it back.
        let dir = running.place().join(size);
        let taken = running.dormouse(&["snapshot".as_ref(), "-o".as_ref(), dir.as_os_str()]);
        assert!(taken.status.success(), "{taken:?}");
        let stats = Trace::read(&dir).stats();
        assert!(stats.warnings.is_empty(), "{stats:?}");
    }
    // Pages beyond the budget are returned at the next switches.
    let session = SessionSocket::at(&running.session()).unwrap();
    running.wait_until("waiting for pages to go", || ask_for_budget(&session, None).unwrap().beyond == 0);
    assert!(running.memory_bytes() < before, "{} of {before}", running.memory_bytes());
    std::fs::write(end, "").unwrap();
    let (_, events, lost) = check(&running.wait().succeeded());
    assert!(events > 0 && lost == 0);
}

#[test]
fn a_live_session_grows_and_shrinks() {
    let mut session = hold(Record::new().budget("4M"), "50000");
    let before = session.0.memory_bytes();
    budget(&session.0, Some("16M")).unwrap();
    assert!(session.0.memory_bytes() >= before + (12 << 20));
    budget(&session.0, Some("1M")).unwrap();
    // The current and the next page of each stream stay; pages that the drain thread has not looked at yet are returned
    // soon.
    let socket = SessionSocket::at(&session.0.session()).unwrap();
    session.0.wait_until("waiting for pages to go", || {
        let state = ask_for_budget(&socket, None).unwrap();
        state.beyond <= 2 * u64::from(state.streams) * u64::from(state.page_size_bytes)
    });
    assert!(session.0.memory_bytes() < before);
    assert_eq!(finish(session), (50_000, 0));
}

#[test]
fn an_impossible_budget_is_refused() {
    let session = hold(Record::new().budget("1M").option("--budget-max").option("2M"), "10");
    for (size, reason) in [("3M", "--budget-max"), ("1K", "too small"), ("many", "not a size")] {
        let error = budget(&session.0, Some(size)).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(number(&budget(&session.0, None).unwrap(), "budget_bytes"), 1 << 20);
    assert_eq!(finish(session), (10, 0));
    let too_small = Record::new().budget("4M").option("--budget-max").option("2M").run(&[TRACED, "idle"]);
    assert_eq!(too_small.code(), 2);
    assert!(too_small.stderr.contains("larger --budget-max"), "{}", too_small.stderr);
}

//! The recorder is killed, possibly with its programs: the events that they had finished are found where they still
//! exist, and nothing is invented.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dormouse_ctf::Format;
use dormouse_e2e::run::{Record, Running, babeltrace2_count};
use dormouse_e2e::trace::{Trace, has_joined};
use dormouse_e2e::{Random, seed};
use dormouse_owner::salvage;
use dormouse_testing::{Lack, has, is_emulated, skip, skip_part};
use rustix::fs::{FileType, Mode};

use crate::{TINY, TRACED};

/// Enough for a dozen pages.
const EVENTS: u64 = 20_000;

fn fifo(record: &Record) -> PathBuf {
    let end = record.place().join("end");
    rustix::fs::mknodat(rustix::fs::CWD, &end, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    end
}

/// Returns a program that has emitted its events, some of which are on disk in discard mode, and waits; its recorder is
/// dead.
pub(crate) fn abandoned(record: Record, is_discard: bool) -> Running {
    let end = fifo(&record);
    let running = record.start(&[TRACED.as_ref(), "hold".as_ref(), end.as_os_str(), EVENTS.to_string().as_ref()]);
    kill_owner(running, is_discard)
}

fn kill_owner(mut running: Running, is_discard: bool) -> Running {
    running.wait_for("ready");
    let dir = running.dir().to_owned();
    let has_packets = || files(&dir).iter().any(|(name, bytes)| name.starts_with('c') && !bytes.is_empty());
    running.wait_until("waiting for packets on disk", || !is_discard || has_packets());
    running.wait_until("the program's being taken in", || has_joined(&dir, "e2e-traced"));
    running.kill_owner();
    running
}

pub(crate) fn pids(dir: &Path) -> Vec<u32> {
    Trace::read(dir).processes().iter().map(|process| process.vpid).collect()
}

/// Reason why no other process reads a program's memory in emulation. Whether a program writes is then only known from its
/// own answer.
const NO_MEMORY_IN_EMULATION: &str = "QEMU has no process_vm_readv(2)";

/// Returns the record of a program that a salvage reaches: by its memory, or by its answer where that cannot be read.
fn reachable(record: Record) -> Record {
    if !is_emulated() {
        return record;
    }
    skip_part("a program that does not listen", Lack::emulated(NO_MEMORY_IN_EMULATION));
    record.env(dormouse_abi::environment::ENV_LISTEN, "thread")
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
}

/// Runs the command, and returns its exit code, its output, and the trace.
fn run(running: &Running, name: &str, options: &[&str]) -> (i32, serde_json::Value, PathBuf) {
    run_within(&[], running, name, options)
}

/// Runs the command like [`run`], by the program and arguments that are its prefix.
pub(crate) fn run_within(
    prefix: &[&str],
    running: &Running,
    name: &str,
    options: &[&str],
) -> (i32, serde_json::Value, PathBuf) {
    let output = running.place().join(name);
    let mut arguments = vec!["salvage", "--json", "-o", output.to_str().unwrap(), running.dir().to_str().unwrap()];
    arguments.extend(options);
    let done = running.dormouse_within(prefix, &arguments);
    let json = serde_json::from_slice(&done.stdout);
    let json = json.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&done.stderr)));
    (done.status.code().unwrap(), json, output)
}

/// Checks what holds for every salvaged trace: it is valid, and all readers agree.
fn check(dir: &Path, json: &serde_json::Value) -> Trace {
    let trace = Trace::read(dir);
    let stats = trace.stats();
    assert_eq!(json["events"], stats.events, "{stats:?}");
    assert_eq!(json["lost"], stats.events_lost, "{stats:?}");
    assert_eq!(json["bytes"], stats.bytes, "{stats:?}");
    assert!(stats.is_closed, "{stats:?}");
    if let Some(count) = babeltrace2_count(dir) {
        assert_eq!(count, stats.events + stats.state_events);
    }
    trace.steps();
    trace
}

/// Checks like [`check`], and also that the trace is complete: one process has emitted all of its events.
pub(crate) fn check_whole(dir: &Path, (code, json): (i32, &serde_json::Value)) {
    assert_eq!((code, &json["is_whole"]), (0, &true.into()), "{json}");
    let trace = check(dir, json);
    let stats = trace.stats();
    assert!(stats.warnings.is_empty(), "{stats:?}");
    assert_eq!(stats.events_lost, 0);
    assert_eq!(trace.steps().into_values().collect::<Vec<_>>(), [(0..EVENTS).collect::<Vec<u64>>()]);
}

const MODES: [(&str, bool); 2] = [("discard", true), ("overwrite", false)];

#[test]
fn a_program_that_lives_has_everything() {
    let listening = || Record::new().env(dormouse_abi::environment::ENV_LISTEN, "thread");
    let discard = || listening().mode("discard");
    let overwrite = || listening().mode("overwrite");
    for (record, is_discard) in [
        (discard(), true),
        (discard().rseq(false), true),
        (overwrite(), false),
        (overwrite().context("none"), false),
        (discard().format(Format::Ctf2), true),
    ] {
        let mut running = abandoned(record, is_discard);
        let pid = pids(running.dir())[0];
        let before = files(running.dir());
        // Other tools ignore names with a leading dot.
        babeltrace2_count(running.dir());
        let (code, json, dir) = run(&running, "salvaged", &[]);
        check_whole(&dir, (code, &json));
        assert_eq!(Trace::read(&dir).metadata.options, Trace::read(running.dir()).metadata.options);
        assert_eq!(json["memory"], format!("what process {pid} has sent"));
        assert_eq!(json["writers"], serde_json::json!([pid]));
        assert_eq!(json["packets_from_disk"].as_u64().unwrap() > 0, is_discard, "{json}");
        assert_eq!(files(running.dir()), before, "the old trace stays as it is");
        let record = Trace::read(&dir).values("dormouse:salvage").remove(0);
        assert!(record.contains("missing=str \"\""), "{record}");

        // A program that was told to stop can still be asked.
        assert!(running.dormouse(&["disarm", &pid.to_string(), "*"]).status.success());
        let (code, json, dir) = run(&running, "again", &[]);
        check_whole(&dir, (code, &json));
        assert_eq!(json["writers"], serde_json::json!([]));
        running.kill_programs(&[pid]);
    }
}

/// Returns a program that does not listen, and its id; its recorder is dead.
fn abandoned_silent() -> (Running, u32) {
    let running = abandoned(Record::new().env(dormouse_abi::environment::ENV_LISTEN, "0"), true);
    let pid = pids(running.dir())[0];
    (running, pid)
}

#[test]
fn a_program_that_does_not_listen_is_looked_into() {
    if is_emulated() {
        return skip(Lack::emulated(NO_MEMORY_IN_EMULATION));
    }
    let (mut running, pid) = abandoned_silent();
    // This process has the rights that the command has. The kernel asks for the same ones to open this file.
    if std::fs::File::open(format!("/proc/{pid}/mem")).is_err() {
        running.kill_programs(&[pid]);
        return skip(Lack::machine("this user may not read the memory of another process", "run the tests as root"));
    }
    let (code, json, dir) = run(&running, "salvaged", &[]);
    assert_eq!(json["memory"], format!("the memory of process {pid}"));
    check_whole(&dir, (code, &json));
    running.kill_programs(&[pid]);
}

/// Without the right to trace, the memory of a program that does not answer is out of reach: that is reported, and what
/// is on disk is salvaged.
#[test]
fn a_program_that_may_not_be_looked_into_keeps_its_memory() {
    const WITHOUT_RIGHT: [&str; 2] = ["setpriv", "--bounding-set=-sys_ptrace"];
    if !has(WITHOUT_RIGHT[0]) {
        return;
    }
    // Without the right, a process traces only processes that have no other rights than itself: root's have.
    let is_root = rustix::process::geteuid().is_root();
    let is_permitted = Command::new(WITHOUT_RIGHT[0]).args([WITHOUT_RIGHT[1], "true"]).status();
    if !is_root || !is_permitted.is_ok_and(|status| status.success()) {
        return skip(Lack::machine("this user cannot give up the right to trace", "run the tests as root"));
    }
    let (mut running, pid) = abandoned_silent();
    let (code, json, dir) = run_within(&WITHOUT_RIGHT, &running, "salvaged", &[]);
    assert_eq!((code, &json["is_whole"]), (1, &false.into()), "{json}");
    let memory = json["memory"].as_str().unwrap();
    assert!(memory.starts_with("none: ") && memory.contains(&format!("process {pid}")), "{json}");
    let events = check(&dir, &json).stats().events;
    assert!(events > 0 && events < EVENTS, "{events}");
    running.kill_programs(&[pid]);
}

/// Events of programs that ended long ago are in the memory that a live one still has.
#[test]
fn one_that_lives_is_enough_for_all() {
    let record = reachable(Record::new());
    let end = fifo(&record);
    let script = format!("{TRACED} numbers 2 5000; exec {TRACED} hold {} 5000", end.display());
    let mut running = kill_owner(record.start(&["sh", "-c", &script]), true);
    let (code, json, dir) = run(&running, "salvaged", &[]);
    assert_eq!(code, 0, "{json}");
    let steps = check(&dir, &json).steps();
    assert_eq!(steps.len(), 3);
    assert!(steps.into_values().all(|numbers| numbers.into_iter().eq(0..5_000)));
    let pids = pids(running.dir());
    running.kill_programs(&pids);
}

#[test]
fn programs_that_never_rest_are_salvaged() {
    // With the slow program, the moment of the salvage is in a page that is still written to.
    let walk = "until-at-a-walk";
    for (mode, budget, program) in [
        ("overwrite", "1M", walk),
        ("overwrite", "1M", "until"),
        ("overwrite", TINY, "until"),
        ("discard", TINY, "until"),
    ] {
        let record = reachable(Record::new().mode(mode).budget(budget));
        let end = record.place().join("end");
        let mut running = record.start(&[TRACED.as_ref(), program.as_ref(), end.as_os_str(), "4".as_ref()]);
        running.wait_for("ready");
        let dir = running.dir().to_owned();
        running.wait_until("the program's joining", || !pids(&dir).is_empty());
        running.kill_owner();
        let pids = pids(&dir);
        for round in 0..3 {
            let (code, json, dir) = run(&running, &format!("salvaged-{round}"), &[]);
            let trace = check(&dir, &json);
            let stats = trace.stats();
            if code == 1 {
                // Writers may overwrite everything between a question and its answer: that is reported, and nothing
                // else is wrong.
                let missing = json["missing"].as_array().unwrap();
                assert!(
                    mode == "overwrite" && missing.len() == 1 && missing[0].as_str().unwrap().contains("are faster"),
                    "{json}"
                );
                continue;
            }
            assert_eq!(code, 0, "{json}");
            assert!(stats.warnings.is_empty(), "{stats:?}");
            if mode == "overwrite" {
                assert_eq!(stats.events_lost, 0);
                for ((_, thread), numbers) in trace.steps_since(trace.complete_since()) {
                    let hole = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
                    assert_eq!(hole, None, "thread {thread} in round {round}");
                }
            }
        }
        std::fs::write(&end, "").unwrap();
        running.kill_programs(&pids);
    }
}

#[test]
fn buffers_on_a_file_system_outlive_everybody() {
    for (mode, is_discard) in MODES {
        let shm = tempfile::tempdir_in("/dev/shm").unwrap();
        let record = reachable(Record::new().mode(mode).option("--buffers").option(shm.path()));
        let mut running = abandoned(record, is_discard);
        let pids = pids(running.dir());
        // While the program lives, the file is as good as its memory.
        let (code, json, dir) = run(&running, "salvaged-alive", &[]);
        check_whole(&dir, (code, &json));
        assert_eq!(json["writers"], serde_json::json!(pids));
        running.kill_programs(&pids);
        let (code, json, dir) = run(&running, "salvaged", &[]);
        check_whole(&dir, (code, &json));
        let path = json["buffers"].as_str().unwrap().to_owned();
        assert_eq!(
            (Path::new(&path).parent(), &json["memory"]),
            (Some(shm.path()), &format!("the file {path}").into())
        );
        let (code, json, dir) = run(&running, "salvaged-and-removed", &["--remove-buffers"]);
        check_whole(&dir, (code, &json));
        assert!(json["buffers"].is_null() && !Path::new(&path).exists());
        // From now on only what reached the disk is left.
        let (code, json, dir) = run(&running, "salvaged-too-late", &[]);
        assert_eq!(code, 1, "{json}");
        check(&dir, &json);
    }
}

#[test]
fn a_proper_end_leaves_no_buffers() {
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = shm.path().join("buffers");
    let record = || Record::new().option("--buffers").option(&path);
    let recording = record().run(&[TRACED, "numbers", "1", "1000"]).succeeded();
    assert_eq!(dormouse_e2e::check::check(&recording).1, 1_000);
    assert_eq!(std::fs::read_dir(shm.path()).unwrap().count(), 0);
    assert!(!recording.dir.join(".session").exists());
    let ended = salvage(&recording.dir, &recording.place().join("salvaged")).unwrap_err();
    assert!(ended.to_string().contains("has ended properly"), "{ended}");

    // A session that cannot begin leaves no buffers, and does not replace an existing file.
    assert_eq!(record().run(&["/no/such/command"]).code(), 2);
    assert_eq!(std::fs::read_dir(shm.path()).unwrap().count(), 0);
    std::fs::write(&path, "precious").unwrap();
    let refused = record().run(&[TRACED, "idle"]);
    assert!(refused.code() == 2 && refused.stderr.contains("cannot put the buffers into"), "{}", refused.stderr);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn places_that_cannot_hold_buffers_are_refused() {
    let places = tempfile::tempdir().unwrap();
    for (kind, options, says) in
        [("ramfs", "rw", "does not promise"), ("tmpfs", "size=1M", "choose a smaller --budget")]
    {
        let at = places.path().join(kind);
        std::fs::create_dir(&at).unwrap();
        let mounted = Command::new("mount").args(["-t", kind, "-o", options, "dormouse-e2e"]).arg(&at).output();
        if !mounted.is_ok_and(|output: Output| output.status.success()) {
            return skip(Lack::machine("this user may not mount a file system", "run the tests as root"));
        }
        let refused = Record::new().option("--buffers").option(at.join("buffers")).run(&[TRACED, "idle"]);
        let left = std::fs::read_dir(&at).unwrap().count();
        let _ = Command::new("umount").arg("-l").arg(&at).output();
        assert!(refused.code() == 2 && refused.stderr.contains(says), "{}", refused.stderr);
        assert!(!refused.dir.join("metadata").exists());
        assert_eq!(left, 0);
    }
}

/// Without the programs, everything that was only in memory is lost: that is reported, and the rest is valid, whatever
/// is torn.
#[test]
fn without_the_memory_there_is_what_reached_the_disk() {
    let mut running = abandoned(Record::new(), true);
    let pids = pids(running.dir());
    running.kill_programs(&pids);
    let (code, json, dir) = run(&running, "salvaged", &[]);
    assert_eq!(code, 1, "{json}");
    assert!(json["memory"].as_str().unwrap().starts_with("none: "), "{json}");
    let trace = check(&dir, &json);
    let events = trace.stats().events;
    // The remains of a stream start at its beginning. The thread may have moved to another CPU, of whose stream less
    // had been written.
    assert!(events > 0 && events < EVENTS, "{events}");
    let numbers: Vec<u64> = trace.steps().into_values().flatten().collect();
    let stream_count = files(&dir).iter().filter(|(name, bytes)| name.starts_with('c') && !bytes.is_empty()).count();
    let is_from_begin = numbers.iter().copied().eq(0..events);
    assert!(is_from_begin || stream_count > 1, "{stream_count} streams: {numbers:?}");
    assert!(trace.stats().warnings.iter().any(|warning| warning.contains("only in memory")), "{:?}", trace.stats());

    let (name, bytes) =
        files(running.dir()).into_iter().find(|(name, bytes)| name.starts_with('c') && !bytes.is_empty()).unwrap();
    let mut left_bytes = bytes.len();
    let cut = |name: &str, len: usize| {
        std::fs::OpenOptions::new().write(true).open(running.dir().join(name)).unwrap().set_len(len as u64).unwrap();
    };
    for (round, len) in
        [bytes.len() - 1, bytes.len() - 100, bytes.len().saturating_sub(64_000), 65_536 + 79, 100, 10, 0]
            .into_iter()
            .enumerate()
    {
        // Never longer again: a kill does not leave zeroes.
        left_bytes = len.min(left_bytes);
        cut(&name, left_bytes);
        let (code, json, dir) = run(&running, &format!("torn-{round}"), &[]);
        assert_eq!(code, 1, "{json}");
        let trace = check(&dir, &json);
        let left: Vec<u64> = trace.steps().into_values().flatten().collect();
        // A torn packet's records are kept as far as they are whole.
        assert!(left.len() <= events as usize && left.windows(2).all(|pair| pair[0] < pair[1]));
    }

    for (name, least) in [("state", 0), ("metadata", 0)] {
        let bytes = std::fs::read(running.dir().join(name)).unwrap();
        for cut_bytes in [1, 40, bytes.len() - least] {
            cut(name, bytes.len() - cut_bytes);
            let output = running.place().join(format!("torn-{name}-{cut_bytes}"));
            match salvage(running.dir(), &output) {
                Ok(result) => {
                    assert!(!result.missing.is_empty());
                    Trace::read(&output).stats();
                    babeltrace2_count(&output);
                }
                Err(error) => assert!(name == "metadata" && cut_bytes > 1, "{error}"),
            }
        }
        std::fs::write(running.dir().join(name), &bytes).unwrap();
    }
}

/// The recorder was killed in the middle of a write: the packet that is torn on disk is whole in the memory.
#[test]
fn a_torn_packet_is_taken_from_the_memory() {
    let mut running = abandoned(reachable(Record::new()), true);
    let pids = pids(running.dir());
    let (_, _, whole) = run(&running, "salvaged", &[]);
    let whole = files(&whole);
    let before = files(running.dir());
    for len in [1, 79, 80, 100, 30_001] {
        for (name, bytes) in whole.iter().filter(|(name, _)| name.starts_with('c')) {
            let there = before.get(name).map_or(0, Vec::len);
            let torn = &bytes[..(there + len).min(bytes.len() - 1).max(there)];
            std::fs::write(running.dir().join(name), torn).unwrap();
        }
        let (code, json, dir) = run(&running, &format!("salvaged-{len}"), &[]);
        check_whole(&dir, (code, &json));
    }
    running.kill_programs(&pids);
}

/// With any bytes in the buffers, the result is a valid trace or an error, and the events on disk are not touched.
#[test]
fn hostile_buffers_harm_nobody() {
    let mut random = Random(seed("salvage, hostile"));
    for (mode, is_discard) in MODES {
        let shm = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = shm.path().join("buffers");
        let record = Record::new().mode(mode).budget("1M").option("--buffers").option(&path);
        let record = if is_discard { record } else { record.context("none") };
        let mut running = abandoned(record, is_discard);
        let pids = pids(running.dir());
        running.kill_programs(&pids);
        let honest = std::fs::read(&path).unwrap();
        let pages = honest.len() - (1 << 20);
        for round in 0..40 {
            let mut bytes = honest.clone();
            let header = if round % 2 == 0 { 4096 } else { 0 };
            for _ in 0..[1, 30, 3_000][round % 3] {
                let limit = if round % 4 < 2 { pages } else { bytes.len() };
                let at = (header + random.below((limit - header - 8) as u64) as usize) & !7;
                let word: [u8; 8] = bytes[at..at + 8].try_into().unwrap();
                let value = match random.below(5) {
                    0 => 0,
                    1 => u64::MAX,
                    2 => u64::from_le_bytes(word).wrapping_add(1),
                    3 => u64::from_le_bytes(word) ^ 1 << random.below(64),
                    _ => random.number(),
                };
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            if round % 10 == 9 {
                bytes.truncate(random.below(bytes.len() as u64) as usize);
            }
            std::fs::write(&path, &bytes).unwrap();
            let output = running.place().join(format!("salvaged-{round}"));
            let result = salvage(running.dir(), &output).unwrap();
            let stats = Trace::read(&output).stats();
            assert_eq!((result.events, result.bytes), (stats.events, stats.bytes), "round {round}: {stats:?}");
            // Losses stated in the buffers are reported, whichever process has written them.
            let told = ["salvaged, but not whole", "was expected", "no page was free", "amid a write"];
            let wrong = stats.warnings.iter().find(|line| !told.iter().any(|told| line.contains(told)));
            assert_eq!(wrong, None, "round {round}");
            if round % 4 == 1 {
                babeltrace2_count(&output);
            }
            std::fs::remove_dir_all(&output).unwrap();
        }
    }
}

#[test]
fn what_is_no_dead_session_is_refused() {
    let record = Record::new().env(dormouse_abi::environment::ENV_LISTEN, "thread");
    let end = fifo(&record);
    let mut running = record.start(&[TRACED.as_ref(), "hold".as_ref(), end.as_os_str(), "10".as_ref()]);
    running.wait_for("ready");
    let output = running.place().join("salvaged");
    let refused = |running: &Running, dir: &Path, output: &Path, says: &str| {
        let done = running.dormouse(&["salvage".as_ref(), "-o".as_ref(), output.as_os_str(), dir.as_os_str()]);
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(2) && stderr.contains(says), "{says:?} in {stderr:?}");
    };
    refused(&running, running.dir(), &output, "is alive");
    refused(&running, running.place(), &output, "there is no trace");
    assert!(!output.exists());
    let dir = running.dir().to_path_buf();
    running.wait_until("taking the program in", || has_joined(&dir, "e2e-traced"));
    running.kill_owner();
    refused(&running, running.dir(), running.place(), "is not empty");
    let pids = pids(running.dir());
    // A new session of the program can begin in the place of the dead one.
    let arm = running.place().join("armed");
    let pid = pids[0].to_string();
    let armed = running.dormouse(&["arm".as_ref(), pid.as_ref(), "*".as_ref(), "-o".as_ref(), arm.as_os_str()]);
    assert!(armed.status.success(), "{armed:?}");
    assert!(running.dormouse(&["disarm", &pid, "*"]).status.success());
    running.kill_programs(&pids);
}

//! Unmodified programs under `dormouse record --libc`: the trace contains their calls, and their behaviour does not
//! change.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_ctf::{Merge, Metadata, StreamReader, Value};
use dormouse_testing::programs::build;
use dormouse_testing::{Lack, has, skip};

/// Returns the directory that cargo has built into; the command and the library are built once.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let profile_dir = build(&["dormouse-cli", "--package", "dormouse-preload"]);
        assert!(profile_dir.join("libdormouse_libc.so").is_file());
        profile_dir
    })
}

/// Compiles a program of `tests/programs`.
fn compiled(directory: &Path, source: &str) -> PathBuf {
    let program = directory.join(source.split('.').next().unwrap());
    let compiler = if source.ends_with(".cc") { "c++" } else { "cc" };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let mut command = Command::new(compiler);
    command.args(["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-w", "-pthread", "-fno-builtin", "-o"]);
    assert!(command.arg(&program).arg(source).status().unwrap().success());
    program
}

/// An event with its fields as numbers and text.
#[derive(Debug, Clone)]
struct Event {
    name: String,
    pid: u32,
    tid: u32,
    cpu: u32,
    /// Time in nanoseconds since the epoch.
    ns: i64,
    numbers: BTreeMap<String, i64>,
    text: String,
}

impl Event {
    fn number(&self, field: &str) -> i64 {
        self.numbers[field]
    }
}

struct Trace {
    output: Output,
    events: Vec<Event>,
    lost: u64,
    _directory: tempfile::TempDir,
}

impl Trace {
    fn stdout(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    /// Returns the program's output as numbers, line by line.
    fn printed(&self) -> Vec<Vec<i64>> {
        let number = |word: &str| match word.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16).unwrap(),
            None => word.parse().unwrap(),
        };
        self.stdout().lines().map(|line| line.split(' ').map(number).collect()).collect()
    }

    fn named(&self, name: &str) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.name == name)
    }

    fn count(&self, name: &str, field: &str, value: i64) -> usize {
        self.named(name).filter(|event| event.number(field) == value).count()
    }
}

/// Runs a command in a session and reads the trace.
fn record(options: &[&str], command: &[&OsStr]) -> Trace {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("trace");
    let mut dormouse = Command::new(built().join("dormouse"));
    dormouse.args(["record", "--libc", "-o"]).arg(&dir).args(options).arg("--").args(command);
    let output = dormouse.output().unwrap();
    let metadata = Metadata::parse(&std::fs::read_to_string(dir.join("metadata")).unwrap()).unwrap();
    let mut names: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let streams: Vec<Vec<u8>> =
        names.iter().filter(|path| !path.ends_with("metadata")).map(|path| std::fs::read(path).unwrap()).collect();
    let readers = streams.iter().enumerate().map(|(index, bytes)| StreamReader::new(&metadata, index, bytes));
    let mut merge = Merge::new(readers);
    let mut events = vec![];
    for item in merge.by_ref() {
        match item {
            Ok(event) => events.extend(own(&event)),
            Err(notice) => {
                assert!(matches!(notice.problem, dormouse_ctf::Problem::Discarded { .. }), "{}", notice.problem)
            }
        }
    }
    let lost = merge.streams().iter().filter_map(StreamReader::totals).map(|totals| totals.events_discarded).sum();
    Trace { output, events, lost, _directory: directory }
}

/// Returns an event of a program, or `None` for one of the session owner.
fn own(event: &dormouse_ctf::Event<'_>) -> Option<Event> {
    let (pid, tid) = event.context?;
    let mut numbers = BTreeMap::new();
    let mut text = String::new();
    for (name, value) in event.fields() {
        let name = name.trim_start_matches('_');
        match value {
            Value::U64(number) | Value::Pointer(number) => drop(numbers.insert(name.into(), number as i64)),
            Value::I64(number) => drop(numbers.insert(name.into(), number)),
            Value::I32(number) => drop(numbers.insert(name.into(), number.into())),
            Value::U32(number) => drop(numbers.insert(name.into(), number.into())),
            Value::Str(bytes) => text = String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{other:?}"),
        }
    }
    let ns = event.time_ns.unwrap();
    Some(Event { name: event.class.full_name.clone(), pid, tid, cpu: event.cpu_id, ns, numbers, text })
}

/// Compiles and records a program, with a budget that has room for all events.
fn trace(source: &str, options: &[&str]) -> Trace {
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), source);
    let options = [&["--budget", "256M"], options].concat();
    let trace = record(&options, &[program.as_os_str(), directory.path().as_os_str()]);
    assert_eq!(trace.lost, 0);
    trace
}

fn succeeded(trace: &Trace) {
    assert!(trace.output.status.success(), "{:?}", trace.output);
}

#[test]
fn memory_calls_of_several_threads_are_traced() {
    let trace = trace("memory.c", &["-e", "libc:*"]);
    succeeded(&trace);
    assert_eq!(trace.count("libc:malloc", "size", 12345), 20_000);
    assert_eq!(trace.count("libc:calloc", "size", 4567), 20_000);
    assert_eq!(trace.count("libc:realloc", "size", 23456), 20_000);
    let mut threads: BTreeMap<u32, Vec<&Event>> = BTreeMap::new();
    for event in trace.events.iter().filter(|event| event.tid != event.pid) {
        threads.entry(event.tid).or_default().push(event);
    }
    assert_eq!(threads.len(), 4);
    for events in threads.values() {
        let first = events.iter().position(|e| e.numbers.get("size") == Some(&12345)).unwrap();
        for round in events[first..].chunks(5).take(5000) {
            let names: Vec<_> = round.iter().map(|event| event.name.as_str()).collect();
            assert_eq!(names, ["libc:malloc", "libc:free", "libc:calloc", "libc:realloc", "libc:free"]);
            assert_eq!(round[0].number("ptr"), round[1].number("ptr"));
            assert_eq!(round[2].number("count"), 3);
            assert_eq!(round[2].number("ptr"), round[3].number("old"));
            assert_eq!(round[3].number("ptr"), round[4].number("ptr"));
        }
    }
}

#[test]
fn calls_on_files_and_their_failures_are_traced() {
    let trace = trace("files.c", &["-e", "libc:*"]);
    succeeded(&trace);
    let of = |name: &str, path: &str| -> Vec<[i64; 3]> {
        let of_path = trace.named(name).filter(|event| event.text == path);
        of_path.map(|event| ["flags", "mode", "fd"].map(|field| event.number(field))).collect()
    };
    let (rdonly, creat) = (0, i64::from(libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC));
    assert_eq!(of("libc:open", "no-such-file"), [[rdonly, 0, -i64::from(libc::ENOENT)]]);
    assert_eq!(of("libc:open", ""), [[rdonly, 0, -i64::from(libc::EFAULT)]]);
    let made = of("libc:open", "made");
    let fd = made[0][2];
    assert_eq!(made, [[creat, 0o640, fd], [rdonly, 0, fd]]);
    assert_eq!(of("libc:open", "made-too"), [[creat, 0o600, fd]]);
    assert_eq!(of("libc:openat", "made"), [[rdonly, 0, fd]]);
    assert_eq!(trace.named("libc:openat").next().unwrap().number("dirfd"), i64::from(libc::AT_FDCWD));
    let results = |name| -> Vec<i64> { trace.named(name).map(|event| event.number("result")).collect() };
    assert_eq!(results("libc:write"), [5]);
    assert_eq!(results("libc:read"), [-i64::from(libc::EBADF), 3]);
    assert_eq!(results("libc:close"), [0, -i64::from(libc::EBADF), 0, 0, 0]);
    assert!(trace.named("libc:close").all(|event| event.number("fd") == fd));
}

#[test]
fn mutex_calls_are_traced() {
    let trace = trace("mutexes.c", &["-e", "libc:mutex_*"]);
    succeeded(&trace);
    let mutex = trace.printed()[0][0];
    let count = |name, field, value: i32| {
        let of_mutex = trace.named(name).filter(|event| event.number("mutex") == mutex);
        of_mutex.filter(|event| event.number(field) == i64::from(value)).count()
    };
    assert_eq!(count("libc:mutex_lock", "result", 0), 1000);
    assert_eq!(count("libc:mutex_lock", "result", -libc::EDEADLK), 1000);
    // A thread that holds the mutex would wait for itself.
    let tid = trace.named("libc:mutex_lock").next().unwrap().tid;
    assert_eq!(count("libc:mutex_lock_begin", "owner", tid as i32), 1000);
    assert_eq!(count("libc:mutex_trylock", "result", -libc::EBUSY), 1000);
    assert_eq!(trace.count("libc:mutex_unlock", "mutex", mutex), 2000);
    assert_eq!(count("libc:mutex_unlock_failed", "result", -libc::EPERM), 1000);
}

/// The program prints, for each wait, how long it waited at least and at most, by its own clock.
#[test]
fn waits_for_locks_are_those_that_the_program_counts() {
    let trace = trace("waits.c", &["-e", "libc:mutex_*", "-e", "libc:rwlock_*"]);
    succeeded(&trace);
    let printed = trace.printed();
    assert_eq!(printed.len(), 8);
    for line in printed {
        let [lock, waiter, holder, surely_ns, call_ns] = line[..] else { panic!("{line:?}") };
        let is_of_lock =
            |event: &&Event| ["mutex", "rwlock"].iter().any(|field| event.numbers.get(*field) == Some(&lock));
        let of_waiter: Vec<&Event> =
            trace.events.iter().filter(|event| i64::from(event.tid) == waiter).filter(is_of_lock).collect();
        let [begin, end, unlock] = of_waiter[..] else { panic!("{line:?}: {of_waiter:?}") };
        assert_eq!(begin.name, format!("{}_begin", end.name), "{line:?}");
        let owner = if begin.numbers.contains_key("owner") { "owner" } else { "writer" };
        assert_eq!(begin.number(owner), holder, "{line:?}");
        assert_eq!(end.number("result"), 0, "{line:?}");
        let waited_ns = end.ns - begin.ns;
        assert!((surely_ns..=call_ns).contains(&waited_ns), "{waited_ns}: {line:?}");
        assert!(unlock.name.ends_with("_unlock"), "{line:?}");
        // The holder's unlock is recorded before the waiter's lock.
        let unlocks = trace.events.iter().filter(is_of_lock).filter(|event| i64::from(event.tid) != waiter);
        assert!(
            unlocks
                .filter(|event| event.name.ends_with("_unlock"))
                .any(|event| (begin.ns..=end.ns).contains(&event.ns))
        );
    }
    // A lock that is free is one event: the holder's eight, and no begin.
    let begins = trace.events.iter().filter(|event| event.name.ends_with("_begin")).count();
    assert_eq!(begins, 8);
}

/// The program prints how long a read of an empty pipe and a write to a full one waited at least and at most, by its own
/// clock.
#[test]
fn durations_of_calls_are_those_that_the_program_counts() {
    let trace = trace("durations.c", &["-e", "libc:*"]);
    succeeded(&trace);
    let printed = trace.printed();
    assert_eq!(printed.len(), 2);
    for line in printed {
        let [fd, is_write, surely_ns, call_ns] = line[..] else { panic!("{line:?}") };
        let of_fd =
            trace.named(["libc:read", "libc:write"][is_write as usize]).filter(|event| event.number("fd") == fd);
        let found: Vec<_> = of_fd.filter(|event| event.tid != event.pid).collect();
        assert_eq!(found.len(), 1, "{line:?}");
        assert_eq!((found[0].number("count"), found[0].number("result")), (1, 1));
        let duration_ns = found[0].number("duration_ns");
        assert!((surely_ns..=call_ns).contains(&duration_ns), "{duration_ns}: {line:?}");
    }
    // A failed call has a duration too.
    assert!(trace.named("libc:close").all(|event| event.number("duration_ns") > 0));
}

/// The program prints, for each write, the file that the kernel reported for the descriptor. Following the events gives
/// the same file.
#[test]
fn paths_of_descriptors_agree_with_the_kernel() {
    for no_rseq in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let program = compiled(directory.path(), "descriptors.c");
        let variable = format!("DORMOUSE_NO_RSEQ={}", u8::from(no_rseq));
        let command = ["env".as_ref(), variable.as_ref(), program.as_os_str(), directory.path().as_os_str()];
        let trace = record(&["-e", "libc:*", "--budget", "64M"], &command);
        succeeded(&trace);
        let mut paths: BTreeMap<i64, String> = BTreeMap::new();
        let mut writes = Vec::new();
        for event in &trace.events {
            let number = |field| event.number(field);
            match event.name.as_str() {
                "libc:open" | "libc:openat" | "libc:fopen" if number("fd") >= 0 => {
                    drop(paths.insert(number("fd"), event.text.clone()));
                }
                "libc:freopen" => {
                    let former = paths.remove(&number("oldfd"));
                    let path = if event.text.is_empty() { former } else { Some(event.text.clone()) };
                    paths.extend(path.filter(|_| number("fd") >= 0).map(|path| (number("fd"), path)));
                }
                "libc:close" | "libc:fclose" if number("result") == 0 => drop(paths.remove(&number("fd"))),
                "libc:close_range" => paths.retain(|fd, _| !(number("first")..=number("last")).contains(fd)),
                "libc:dup" if number("fd") >= 0 => match paths.get(&number("oldfd")).cloned() {
                    Some(path) => drop(paths.insert(number("fd"), path)),
                    None => drop(paths.remove(&number("fd"))),
                },
                "libc:pipe" => ["read_fd", "write_fd"].iter().for_each(|end| drop(paths.remove(&number(end)))),
                "libc:socket" | "libc:accept" => drop(paths.remove(&number("fd"))),
                "libc:socketpair" => ["fd", "other_fd"].iter().for_each(|end| drop(paths.remove(&number(end)))),
                "libc:write" if number("fd") != 1 => {
                    writes.push((number("fd"), number("count"), paths.get(&number("fd")).cloned()));
                }
                _ => {}
            }
        }
        let text = trace.stdout();
        let said = text.lines().map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let path = words[2].strip_prefix(directory.path().to_str().unwrap()).map(|path| path[1..].to_string());
            (words[0].parse().unwrap(), words[1].parse().unwrap(), path)
        });
        assert_eq!(writes, said.collect::<Vec<_>>());
        // Events of failed calls contain the error.
        let failed =
            |name: &str, field: &str, errno: i32| assert!(trace.count(name, field, -i64::from(errno)) > 0, "{name}");
        failed("libc:dup", "fd", libc::EBADF);
        failed("libc:fopen", "fd", libc::ENOENT);
        failed("libc:freopen", "fd", libc::ENOENT);
        failed("libc:fdopen", "result", libc::EBADF);
        failed("libc:fclose", "fd", libc::EBADF);
    }
}

/// The events of a fork say which descriptors a child has inherited: the files of its reads are those that the kernel
/// reports.
#[test]
fn a_child_has_the_descriptors_that_its_parent_had_when_it_forked() {
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), "inherited.c");
    let trace = record(&["-e", "libc:*"], &[program.as_os_str(), directory.path().as_os_str()]);
    succeeded(&trace);
    let mut paths: BTreeMap<i64, BTreeMap<i64, String>> = BTreeMap::new();
    let mut forks = BTreeMap::new();
    let mut reads = BTreeSet::new();
    let mut events: Vec<&Event> = trace.events.iter().collect();
    events.sort_by_key(|event| event.ns);
    for event in events {
        let (pid, number) = (i64::from(event.pid), |field| event.number(field));
        match event.name.as_str() {
            "libc:open" if number("fd") >= 0 => {
                drop(paths.entry(pid).or_default().insert(number("fd"), event.text.clone()));
            }
            "libc:close" => drop(paths.entry(pid).or_default().remove(&number("fd"))),
            "libc:fork_begin" => {
                drop(forks.insert((pid, number("number")), paths.get(&pid).cloned().unwrap_or_default()));
            }
            "libc:fork_child" => {
                let inherited = forks.remove(&(number("parent"), number("number"))).expect("a fork has a begin");
                assert!(paths.insert(pid, inherited).is_none(), "the child's first event is its fork");
            }
            "libc:read" if number("count") == 16 => {
                let path = paths[&pid].get(&number("fd")).cloned().unwrap_or_default();
                reads.insert(format!("{pid} {} {} {path}", number("fd"), number("result")));
            }
            _ => {}
        }
    }
    let printed: BTreeSet<String> = trace.stdout().lines().map(String::from).collect();
    assert_eq!((reads, printed.len()), (printed, 15));
    assert!(forks.is_empty(), "{forks:?}");
}

#[test]
fn a_condition_wait_unlocks_and_locks_the_mutex() {
    let trace = trace("conditions.c", &["-e", "libc:mutex_*", "-e", "libc:cond_*"]);
    succeeded(&trace);
    let [mutex, condition, waiter] = trace.printed()[0][..] else { panic!() };
    let of_mutex: Vec<&Event> =
        trace.events.iter().filter(|event| event.numbers.get("mutex") == Some(&mutex)).collect();
    // Each thread's own events must be consistent.
    for tid in of_mutex.iter().map(|event| event.tid).collect::<BTreeSet<_>>() {
        let mut is_held = false;
        for event in of_mutex.iter().filter(|event| event.tid == tid) {
            if event.name == "libc:mutex_lock_begin" {
                continue;
            }
            let takes = matches!(event.name.as_str(), "libc:mutex_lock" | "libc:cond_wait_end");
            assert_eq!(is_held, !takes, "{event:?}");
            assert!(event.numbers.get("cond").is_none_or(|cond| *cond == condition), "{event:?}");
            is_held = takes;
        }
        assert!(!is_held);
    }
    let waits = trace.named("libc:cond_wait_end").filter(|event| i64::from(event.tid) == waiter);
    let results: Vec<i64> = waits.map(|event| event.number("result")).collect();
    assert_eq!(results[0], -i64::from(libc::ETIMEDOUT));
    assert!(results.len() >= 4 && results[1..].iter().all(|result| *result == 0), "{results:?}");
}

#[test]
fn calls_before_and_after_main_are_traced() {
    let trace = trace("before_and_after.c", &["-e", "libc:*"]);
    assert_eq!(trace.output.status.code(), Some(7));
    let sizes: Vec<i64> =
        trace.named("libc:malloc").map(|e| e.number("size")).filter(|size| (30_000..30_010).contains(size)).collect();
    assert_eq!(sizes, [30_001, 30_002, 30_003, 30_004, 30_005]);
}

#[test]
fn forked_children_are_processes_of_their_own() {
    let trace = trace("forks.c", &["-e", "libc:malloc"]);
    succeeded(&trace);
    let printed = trace.printed();
    assert_eq!(printed.len(), 4);
    for line in printed {
        let mine: Vec<_> = trace.named("libc:malloc").filter(|event| event.number("size") == line[1]).collect();
        assert_eq!(mine.len(), line[2] as usize);
        assert!(mine.iter().all(|event| (event.pid, event.tid) == (line[0] as u32, line[0] as u32)));
    }
}

#[test]
fn vforked_children_write_under_their_own_ids() {
    for no_rseq in [false, true] {
        let trace = if no_rseq { trace_without_rseq("vforks.c") } else { trace("vforks.c", &["-e", "libc:*"]) };
        succeeded(&trace);
        let [parent, sink] = trace.printed()[0][..] else { panic!() };
        let writes = trace.named("libc:write").filter(|event| event.number("fd") == sink);
        let (of_parent, of_children): (Vec<_>, Vec<_>) = writes.partition(|event| i64::from(event.pid) == parent);
        assert_eq!((of_parent.len(), of_children.len()), (22, 22));
        assert!(of_parent.iter().all(|event| event.number("count") == 6 && event.tid == event.pid));
        assert!(of_children.iter().all(|event| event.number("count") == 5 && event.tid == event.pid));
        // A child has no restartable sequences: it claims a stream that belongs to no CPU. Its parent uses CPUs'
        // streams again.
        assert!(of_children.iter().all(|event| event.cpu == CPU_UNKNOWN));
        assert!(of_parent.iter().all(|event| (event.cpu == CPU_UNKNOWN) == no_rseq));
        let pids: BTreeSet<_> = of_children.iter().map(|event| event.pid).collect();
        assert_eq!(pids.len(), 22);
        let closes: Vec<_> = trace.named("libc:close").filter(|event| event.number("fd") == sink + 1).collect();
        assert_eq!(closes.iter().filter(|event| pids.contains(&event.pid)).count(), 20);
    }
}

/// Compiles and records a program like [`trace`], on the path for machines without restartable sequences.
fn trace_without_rseq(source: &str) -> Trace {
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), source);
    let command = ["env", "DORMOUSE_NO_RSEQ=1"].map(OsStr::new);
    record(&["-e", "libc:*", "--budget", "256M"], &[&command[..], &[program.as_os_str()]].concat())
}

#[test]
fn handlers_that_interrupt_the_tracer_are_traced() {
    for no_rseq in [false, true] {
        let trace = if no_rseq { trace_without_rseq("signals.c") } else { trace("signals.c", &["-e", "libc:*"]) };
        succeeded(&trace);
        let [handled, sink] = trace.printed()[0][..] else { panic!() };
        assert!(handled > 0);
        let received = trace.count("libc:write", "fd", sink) + trace.count("libc:malloc", "size", 50_001);
        if trace.lost == 0 {
            assert_eq!(received, handled as usize + 100_000);
        } else {
            assert!(received as u64 + trace.lost >= handled as u64 + 100_000);
        }
    }
}

#[test]
fn lost_events_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), "storm.c");
    for variable in ["DORMOUSE_NO_RSEQ=0", "DORMOUSE_NO_RSEQ=1", "DORMOUSE_IMV_WRITER=none"] {
        for budget in ["64K", "64M"] {
            let command = [OsStr::new("env"), OsStr::new(variable), program.as_os_str()];
            let trace = record(&["-e", "libc:write", "--budget", budget], &command);
            succeeded(&trace);
            assert_eq!(trace.events.len() as u64 + trace.lost, 40_000, "{variable} {budget}");
        }
    }
}

#[test]
fn cancellation_passes_through() {
    let trace = trace("cancel.c", &["-e", "libc:*"]);
    succeeded(&trace);
    assert_eq!(trace.stdout(), "cleaned up\n");
}

/// Runs a command alone and traced, and checks that its output and exit code are the same.
fn alike(command: &[&OsStr]) -> Trace {
    let plain = Command::new(command[0]).args(&command[1..]).output().unwrap();
    let trace = record(&["-e", "libc:*", "--budget", "64M"], command);
    assert_eq!(trace.stdout(), String::from_utf8(plain.stdout).unwrap());
    // The exit code in a shell: 128 plus the number of the signal.
    let code = plain.status.code().or(plain.status.signal().map(|signal| 128 + signal));
    assert_eq!(trace.output.status.code(), code);
    assert!(trace.events.iter().any(|event| event.name == "libc:malloc"));
    trace
}

#[test]
fn a_traced_program_leaves_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let residue = compiled(directory.path(), "residue.c");
    alike(&[residue.as_os_str()]);
    let mut command = Command::new(&residue);
    let plain = command.output().unwrap();
    let without_session = command.env("LD_PRELOAD", built().join("libdormouse_libc.so")).output().unwrap();
    assert_eq!(without_session, plain);
    alike(&["sh".as_ref(), "-c".as_ref(), format!("{0}; ({0}); kill -9 $$", residue.display()).as_ref()]);
}

/// A program that lists its descriptors does not find the session's memory; the programs that it executes are recorded.
#[test]
fn descriptors_are_listed_as_without_a_session() {
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), "lists.c");
    for way in ["opendir", "open", "openat", "scandir", "scandirat"] {
        let trace = alike(&[program.as_os_str(), way.as_ref()]);
        succeeded(&trace);
        assert_eq!(trace.stdout().lines().count(), 4, "{way}");
        let pids: BTreeSet<_> = trace.named("libc:malloc").map(|event| event.pid).collect();
        assert_eq!(pids.len(), 3, "{way}");
    }
    let filesystem = compiled(directory.path(), "filesystem.cc");
    alike(&[filesystem.as_os_str()]);
    let script = "import os; print(os.listdir('/proc/self/fd'), sorted(entry.name for entry in os.scandir('/dev/fd')))";
    alike(&["python3".as_ref(), "-c".as_ref(), script.as_ref()]);
    alike(&["sh".as_ref(), "-c".as_ref(), "ls /proc/self/fd; echo /proc/self/fd/*; find /dev/fd/".as_ref()]);
}

#[test]
fn programs_in_other_languages_are_traced() {
    let directory = tempfile::tempdir().unwrap();
    let throws = compiled(directory.path(), "throws.cc");
    assert_eq!(alike(&[throws.as_os_str()]).stdout(), "4000 2\n");
    let script = "import subprocess, threading, json\n\
        t = [threading.Thread(target=lambda: json.dumps([{}] * 10000)) for _ in range(4)]\n\
        [x.start() for x in t]; [x.join() for x in t]\n\
        print(subprocess.run(['echo', 'hello'], capture_output=True).stdout)\n\
        raise SystemExit(3)";
    let trace = alike(&["python3".as_ref(), "-c".as_ref(), script.as_ref()]);
    assert_eq!((trace.stdout().as_str(), trace.output.status.code()), ("b'hello\\n'\n", Some(3)));
}

#[test]
fn a_traced_build_has_the_same_output() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("a.c"), "#include <stdio.h>\nvoid a(void) { printf(\"a\\n\"); }\n").unwrap();
    std::fs::write(at("b.c"), "#include <stdlib.h>\nvoid *b(void) { return malloc(1); }\n").unwrap();
    std::fs::write(at("bad.c"), "int main(void) { return nonsense }\n").unwrap();
    let makefile = "all: a.o b.o\n%.o: %.c\n\t@$(CC) -g -c $< -o $@\n";
    std::fs::write(at("Makefile"), makefile).unwrap();
    let made = |command: &[&OsStr]| {
        let _ = std::fs::remove_file(at("a.o"));
        let _ = std::fs::remove_file(at("b.o"));
        alike(command);
        let objects = ["a.o", "b.o"].map(|object| std::fs::read(at(object)).unwrap());
        for object in ["a.o", "b.o"] {
            std::fs::remove_file(at(object)).unwrap();
        }
        let plain = Command::new(command[0]).args(&command[1..]).output().unwrap();
        assert!(plain.status.success());
        assert_eq!(objects, ["a.o", "b.o"].map(|object| std::fs::read(at(object)).unwrap()));
    };
    made(&["make".as_ref(), "-s".as_ref(), "-B".as_ref(), "-j2".as_ref(), "-C".as_ref(), directory.path().as_ref()]);
    let bad = at("bad.c");
    let failed = alike(&["cc".as_ref(), "-c".as_ref(), bad.as_ref(), "-o".as_ref(), at("bad.o").as_ref()]);
    assert_eq!(failed.output.status.code(), Some(1));
}

#[test]
fn only_the_wrappers_are_exported() {
    let library = built().join("libdormouse_libc.so");
    let nm = Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library).output().unwrap();
    let text = String::from_utf8(nm.stdout).unwrap();
    let mut exported: Vec<_> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    exported.sort_unstable();
    let expected = [
        "_Exit",
        "__asan_default_options",
        "__open64_2",
        "__open_2",
        "__openat64_2",
        "__openat_2",
        "__read_chk",
        "__sysv_signal",
        "_exit",
        "accept",
        "accept4",
        "calloc",
        "close",
        "close_range",
        "closedir",
        "closefrom",
        "creat",
        "creat64",
        "dormouse_i_install_crash_hook",
        "dup",
        "dup2",
        "dup3",
        "fclose",
        "fcntl",
        "fcntl64",
        "fdopen",
        "fopen",
        "fopen64",
        "free",
        "freopen",
        "freopen64",
        "malloc",
        "mlockall",
        "open",
        "open64",
        "openat",
        "openat64",
        "opendir",
        "pclose",
        "pipe",
        "pipe2",
        "pthread_cond_clockwait",
        "pthread_cond_timedwait",
        "pthread_cond_wait",
        "pthread_mutex_clocklock",
        "pthread_mutex_lock",
        "pthread_mutex_timedlock",
        "pthread_mutex_trylock",
        "pthread_mutex_unlock",
        "pthread_rwlock_clockrdlock",
        "pthread_rwlock_clockwrlock",
        "pthread_rwlock_rdlock",
        "pthread_rwlock_timedrdlock",
        "pthread_rwlock_timedwrlock",
        "pthread_rwlock_tryrdlock",
        "pthread_rwlock_trywrlock",
        "pthread_rwlock_unlock",
        "pthread_rwlock_wrlock",
        "read",
        "realloc",
        "scandir",
        "scandir64",
        "scandirat",
        "scandirat64",
        "sigaction",
        "signal",
        "socket",
        "socketpair",
        "sysv_signal",
        "vfork",
        "write",
    ];
    assert_eq!(exported, expected);
}

#[test]
fn programs_beside_a_module_of_ld_audit_are_traced() {
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), "audited.c");
    let module = directory.path().join("module.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/audited.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-DAUDIT", "-o"]).arg(&module).arg(source);
    assert!(compiler.status().unwrap().success());
    let variable = format!("LD_AUDIT={}", module.display());
    let trace = record(&["-e", "libc:malloc"], &["env".as_ref(), variable.as_ref(), program.as_os_str()]);
    succeeded(&trace);
    let pid = trace.printed()[0][0];
    assert!(trace.named("libc:malloc").any(|event| i64::from(event.pid) == pid), "{:?}", trace.events);
}

/// Returns a program's exit code and output on both streams, without process ids and addresses.
fn outcome(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    let is_varying = |word: &&str| !word.contains("==") && !word.starts_with("0x");
    let kept = |line: &str| line.split(' ').filter(is_varying).collect::<Vec<_>>().join(" ") + "\n";
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().map(kept).collect::<String>();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A sanitizer's report is the same as without the library, with the same calls, and the recording reports that the
/// program is not in it.
#[test]
fn programs_with_a_sanitizer_behave_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/leaks.c");
    let kinds = [("address", "AddressSanitizer"), ("leak", "LeakSanitizer"), ("thread", "ThreadSanitizer")];
    for (kind, name) in kinds {
        let program = directory.path().join(kind);
        let mut compiler = Command::new("gcc");
        compiler.args(["-g", "-fno-omit-frame-pointer", &format!("-fsanitize={kind}"), "-o"]).arg(&program);
        if !compiler.arg(&source).output().unwrap().status.success() {
            skip(Lack::tool(format!("gcc has no -fsanitize={kind}"), "`apt-get install gcc`"));
            return;
        }
        let plain = outcome(&mut Command::new(&program));
        let library = built().join("libdormouse_libc.so");
        let preloaded = outcome(Command::new(&program).env("LD_PRELOAD", library));
        assert_eq!(preloaded, plain, "{kind}");
        // As the recorded command, and as a program that it starts.
        let trace = record(&[], &[program.as_os_str()]);
        let told = String::from_utf8_lossy(&trace.output.stderr).into_owned();
        let reason =
            format!("dormouse: `{}` has the runtime of a sanitizer ({name}): `--libc` does", program.display());
        assert_eq!((trace.output.status.code(), trace.stdout().as_str()), (plain.0, plain.1.as_str()), "{told}");
        assert!(trace.events.is_empty() && told.contains(&reason), "{told}");
        let trace = record(&[], &["sh".as_ref(), "-c".as_ref(), format!("{}; :", program.display()).as_ref()]);
        let told = String::from_utf8_lossy(&trace.output.stderr).into_owned();
        assert_eq!((trace.output.status.code(), trace.stdout().as_str()), (Some(0), plain.1.as_str()), "{told}");
        let of_child = format!("of {}: process ", program.display());
        assert!(
            !trace.events.is_empty() && told.contains(&of_child) && told.contains("runtime of a sanitizer"),
            "{told}"
        );
    }
}

/// Links a program that prints `hello` and ends with 7, by a compiler with these flags.
fn hello(directory: &Path, compiler: &str, flags: &[&str]) -> Option<PathBuf> {
    let (source, program) = (directory.join("hello.c"), directory.join(format!("hello-{compiler}")));
    let text = "#include <stdio.h>\n#include <stdlib.h>\n\
        int main(void) { char *p = malloc(9); puts(p ? \"hello\" : \"\"); free(p); return 7; }\n";
    std::fs::write(&source, text).unwrap();
    let linked = Command::new(compiler).args(flags).arg("-o").arg(&program).arg(source).output().unwrap();
    linked.status.success().then_some(program)
}

/// Records a program that the library does not reach: it behaves as usual, and the reason why it is not traced is
/// reported.
fn runs_untraced(program: &Path, reason: &str) {
    let trace = record(&[], &[program.as_os_str()]);
    let told = String::from_utf8_lossy(&trace.output.stderr).into_owned();
    assert_eq!((trace.output.status.code(), trace.stdout().as_str()), (Some(7), "hello\n"), "{told}");
    assert!(
        trace.events.is_empty() && told.starts_with(&format!("dormouse: `{}` {reason}", program.display())),
        "{told}"
    );
}

#[test]
fn programs_with_musl_behave_the_same() {
    if !has("musl-gcc") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = hello(directory.path(), "musl-gcc", &[]).expect("musl-gcc links");
    runs_untraced(&program, "uses musl as its libc: `--libc` does not reach it");
    // Together with programs with glibc, which are traced, and with a library of the user's.
    let user = directory.path().join("user.so");
    let source = directory.path().join("user.c");
    std::fs::write(&source, "int user;\n").unwrap();
    assert!(
        Command::new("cc")
            .args(["-shared", "-fPIC", "-nostdlib", "-o"])
            .arg(&user)
            .arg(&source)
            .status()
            .unwrap()
            .success()
    );
    let dir = directory.path().join("trace");
    let mut dormouse = Command::new(built().join("dormouse"));
    dormouse.args(["record", "--libc", "-o"]).arg(&dir).args(["--", "sh", "-c"]);
    dormouse.arg(format!("{}; grep -c user.so /proc/self/maps; exit 3", program.display())).env("LD_PRELOAD", &user);
    let output = dormouse.output().unwrap();
    let (text, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(3), "{told}");
    let (hello, maps) = text.trim().split_once('\n').expect("two programs");
    assert_eq!((hello, maps != "0"), ("hello", true), "{text}{told}");
    assert!(told.contains(" 0 lost, 2 processes,"), "{told}");
}

#[test]
fn static_programs_behave_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = hello(directory.path(), "gcc", &["-static"]) else {
        skip(Lack::tool("gcc links no static program", "`apt-get install gcc libc6-dev`"));
        return;
    };
    runs_untraced(&program, "is statically linked: `--libc` does not reach it");
}

#[test]
fn a_library_path_unfit_for_ld_preload_is_refused() {
    let directory = tempfile::Builder::new().prefix("with space").tempdir().unwrap();
    let library = directory.path().join("a library.so");
    std::fs::copy(built().join("libdormouse_libc.so"), &library).unwrap();
    let mut dormouse = Command::new(built().join("dormouse"));
    dormouse.args(["record", "--libc", "-o"]).arg(directory.path().join("trace")).args(["--", "true"]);
    let output = dormouse.env("DORMOUSE_LIBC_LIBRARY", &library).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
    assert!(told.contains("the loader takes ` ` in LD_PRELOAD for something else"), "{told}");
}

/// valgrind's own start is traced too, with the same process id, so only calls that the program alone makes are
/// compared.
#[test]
fn calls_under_valgrind_are_counted() {
    if !has("valgrind") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), "mutexes.c");
    let counts = |runner: &[&str]| {
        let command: Vec<_> = runner.iter().map(OsStr::new).chain([program.as_os_str()]).collect();
        let trace = record(&["--budget", "64M"], &command);
        succeeded(&trace);
        assert_eq!(trace.lost, 0);
        ["lock", "trylock", "unlock"].map(|name| trace.named(&format!("libc:mutex_{name}")).count())
    };
    let plain = counts(&[]);
    assert!(plain.iter().all(|count| *count > 0));
    for tool in ["none", "memcheck"] {
        assert_eq!(counts(&["valgrind", "-q", &format!("--tool={tool}"), "--fair-sched=yes"]), plain, "{tool}");
    }
}

/// Tests of libdormouse check for all ends of the same program, with its own events, whether they are crashes.
#[test]
fn a_crash_of_an_unmodified_program_leaves_a_snapshot_and_a_fault_that_it_handles_does_not() {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("crashes");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi/tests/programs/crashes.c");
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-O1", "-w", "-pthread", "-DDORMOUSE_DISABLE", "-o"]).arg(&program).arg(source);
    assert!(compile.status().unwrap().success());
    let ends = [
        ("fix", None),
        ("jump", None),
        ("chain", None),
        ("raise-handled", None),
        ("fix-then-trap", Some("SIGILL")),
        ("reset", Some("SIGSEGV")),
        ("once-then-fault", Some("SIGSEGV")),
        ("exit-at-once", Some("SIGSEGV")),
        ("abort-handled", Some("SIGABRT")),
        ("threads", Some("SIGSEGV")),
    ];
    for (end, signal) in ends {
        let trace = place.path().join(end);
        let mut dormouse = Command::new(built().join("dormouse"));
        dormouse.args(["record", "--libc", "--mode", "overwrite", "--snapshot-on", "crash", "-o"]).arg(&trace);
        let recorded = dormouse.arg("--").arg(&program).args([end, "after"]).output().unwrap();
        let alone = Command::new(&program).args([end, "after"]).output().unwrap();
        let code = alone.status.code().or_else(|| Some(128 + alone.status.signal()?));
        assert_eq!((recorded.status.code(), &recorded.stdout), (code, &alone.stdout), "{end}: {recorded:?}");
        let snapshot = |number: u32| place.path().join(format!("{end}-snapshot-{number}"));
        assert!(!snapshot(1 + u32::from(signal.is_some())).exists(), "{end}: {recorded:?}");
        let Some(signal) = signal else { continue };
        let view = Command::new(built().join("dormouse")).arg("view").arg(snapshot(1)).output().unwrap();
        let text = String::from_utf8(view.stdout).unwrap();
        assert!(text.contains("\"/last\"") && text.contains(&format!("trigger = \"{signal}\"")), "{end}: {text}");
    }
}

/// Tests of libdormouse count every one of the program's own events.
#[test]
fn an_unmodified_program_locks_its_memory_as_without_a_session() {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("locks");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi/tests/programs/locks.c");
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-O1", "-w", "-pthread", "-fno-builtin", "-DDORMOUSE_DISABLE", "-o"]).arg(&program);
    assert!(compile.arg(source).status().unwrap().success());
    for flags in [libc::MCL_CURRENT, libc::MCL_CURRENT | libc::MCL_FUTURE] {
        let flags = flags.to_string();
        let alone = Command::new(&program).arg(&flags).output().unwrap();
        if alone.status.code() == Some(77) {
            return skip(Lack::machine("the limit of locked memory is too low", "raise it (`ulimit -l`)"));
        }
        let recorded = record(&[], &[program.as_os_str(), OsStr::new(&flags)]);
        assert_eq!(recorded.output.stdout, alone.stdout, "{flags}: {recorded:?}", recorded = recorded.output);
        let said = String::from_utf8_lossy(&recorded.output.stderr);
        assert!(said.contains("\nlocked 0\nless 0\n"), "{flags}: {said}");
    }
}

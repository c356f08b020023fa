//! The time that a program waits, whatever its session's owner does; the number of programs that an owner has room for;
//! and what both leave behind.
//!
//! No time is asserted: tables of times are printed (`--nocapture`). An action that takes seconds instead of
//! milliseconds counts as a hang.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dormouse_abi::message::{Edge, ProgramToTool, ToolToProgram};
use dormouse_ctf::Cause;
use dormouse_e2e::program::Program;
use dormouse_e2e::run::{PATIENCE, Record, Recording, Running, dormouse, plugin, watched};
use dormouse_e2e::trace::{Trace, has_joined};
use dormouse_e2e::{Random, seed};
use dormouse_testing::{Lack, for_everybody, has, skip, wait_until};
use dormouse_transport::{Conversation, Deadline};
use rustix::fs::{FileType, Mode};
use rustix::process::Signal;

/// The program for tests of process numbers, process ends and waiting times.
const CROWD: &str = env!("CARGO_BIN_EXE_e2e-crowd");
/// The program with tracepoints that waits for input.
const BOX: &str = env!("CARGO_BIN_EXE_e2e-box");
/// The program that checks effects of the tracer on its process.
const HOST: &str = env!("CARGO_BIN_EXE_e2e-host");
/// The program without tracepoints, which also enters sandboxes for other programs.
const ENTER: &str = env!("CARGO_BIN_EXE_e2e-box-enter");

/// Action of that program: it forks while another of its threads joins.
const AMID_JOINS: &str = "amid-joins";

/// Maximum number of tracers that join for each fork and start in a measurement of waits: those of the forked child, of
/// the started program, and of the library that it loads.
const TRACERS_OF_EACH: u64 = 3;

/// Watchdog: an action that is bounded to seconds and takes longer than this hangs.
const BOUND: Duration = Duration::from_secs(30);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn fifo(record: &Record) -> PathBuf {
    let path = record.place().join("phases");
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    path
}

fn writer(fifo: &Path) -> std::fs::File {
    std::fs::File::options().write(true).open(fifo).expect("somebody reads")
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Makes a program answer at once, whether it passes tracepoints or not.
const BY_THREAD: [(&str, &str); 1] = [("DORMOUSE_LISTEN", "thread")];

/// State of a session's owner while a program forks, starts others and loads a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// The program is in no session, and does not listen: measures the actions by themselves.
    None,
    Well,
    Stopped,
    Killed,
    /// Stopped, with as many connections waiting for it as possible.
    BacklogFull,
}

/// Connects until no connection is accepted any more. Returns `None` if this process has too few descriptors.
fn fill_backlog(socket: &Path) -> Option<Vec<OwnedFd>> {
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("a limit up to the hard one");
    let address = SocketAddrUnix::new(socket).expect("a path that is not too long");
    let mut waiting = Vec::new();
    loop {
        let (flags, kind) = (SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, SocketType::STREAM);
        let Ok(socket) = socket_with(AddressFamily::UNIX, kind, flags, None) else { return None };
        match connect(&socket, &address) {
            Ok(()) => waiting.push(socket),
            Err(Errno::AGAIN) => return Some(waiting),
            Err(error) => panic!("cannot connect: {error}"),
        }
    }
}

/// Runs the program that measures `count` times, and prints the worst and the median of its measurements.
fn measure(what: &str, owner: Owner, count: u64) {
    // For each fork, start and load: generous compared to what is promised, and far below a wait of seconds for each.
    let patience = Duration::from_secs(10) + Duration::from_millis(250) * count as u32;
    plugin();
    let record = Record::new();
    let fifo = fifo(&record);
    let plugin = plugin().to_str().expect("a path of text");
    let fifo_text = fifo.to_str().expect("a path of text");
    let command = words(&[CROWD, what, fifo_text, &count.to_string(), plugin]);
    let apart = words(&["env", "-u", "DORMOUSE_SESSION", "DORMOUSE_LISTEN=0"]);
    let mut running = record.start(&if owner == Owner::None { [apart, command].concat() } else { command });
    running.wait_for("ready");
    let mut waiting = None;
    match owner {
        Owner::None | Owner::Well => (),
        Owner::Killed => running.kill_owner(),
        Owner::Stopped => running.kill(Signal::STOP),
        Owner::BacklogFull => {
            running.kill(Signal::STOP);
            waiting = fill_backlog(&running.session());
            if waiting.is_none() {
                return skip(Lack::machine("too few descriptors to fill a backlog", "raise `ulimit -Hn`"));
            }
        }
    }
    drop(writer(&fifo));
    let started = Instant::now();
    let mut hangs = false;
    while !running.stdout().ends_with("finished\n") && !hangs {
        hangs = started.elapsed() > patience;
        // Pause between two looks, each of which reads everything that was written so far.
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut samples: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let lines = running.stdout();
    for line in lines.lines().filter_map(|line| line.split_once(' ')).filter(|line| line.0 != "emitted") {
        samples.entry(line.0.into()).or_default().push(line.1.parse().expect("a number"));
    }
    let mut table =
        format!("{what}, owner {owner:?}\n{:14} {:>6} {:>12} {:>12} {:>8}\n", "µs", "n", "median", "worst", "> 50 ms");
    for (what, times) in &mut samples {
        times.sort_unstable();
        let us = |ns: u64| ns as f64 / 1000.0;
        let (median, worst) = (us(times[times.len() / 2]), us(times[times.len() - 1]));
        let over = times.iter().filter(|ns| **ns > 50_000_000).count();
        table += &format!("{what:14} {:6} {median:12.1} {worst:12.1} {over:8}\n", times.len());
    }
    print!("{table}");
    assert!(!hangs, "hangs: not {count} of each within {patience:?}\n{table}");
    let forks = samples["fork,parent"].len() as u64;
    if what == AMID_JOINS {
        // A load takes as long as the owner makes its tracer wait, and the first fork need not wait for its end.
        assert!(owner == Owner::Well || forks >= 2 * count, "{forks} forks amid {count} joins\n{table}");
    } else {
        assert_eq!(forks, count);
    }
    if matches!(owner, Owner::Well | Owner::Stopped | Owner::BacklogFull) {
        drop(waiting);
        running.kill(Signal::CONT);
        let recording = running.wait().succeeded();
        // A library's tracer whose time is over before the owner answers is refused, and so is a process for which the
        // register has no room: an owner that is stopped does not take out the entries of dead ones.
        let is_full = TRACERS_OF_EACH * count >= dormouse_abi::register::PROCESS_COUNT as u64;
        let is_refused = owner != Owner::Well && (what == AMID_JOINS || is_full);
        let provoked = if is_refused { &[Cause::ProgramRefused][..] } else { &[] };
        let (recorded, emitted) = (recording.trace().values("e2e:word").len() as u64, emitted(&recording));
        check_all(&recording, recorded, emitted, provoked);
        // One event before, and one of each forked child that has joined.
        assert!(emitted == forks + 1 || is_refused && emitted <= forks, "{emitted} events, {forks} forks");
        if (what, owner) == (AMID_JOINS, Owner::BacklogFull) {
            // The owner does not hear of programs that ask then.
            assert_eq!(refused(&recording), count, "{}", recording.stderr);
        }
    }
}

/// Asserts that a recording has all of these events, and that every loss that it states has a cause that the test has
/// provoked.
fn check_all(recording: &Recording, recorded: u64, emitted: u64, provoked: &[Cause]) {
    let lost = recording.summary().lost;
    assert_eq!((recorded, lost), (emitted, 0), "recorded and lost, of {emitted} emitted: {}", recording.stderr);
    let stated = recording.trace().stats().loss_possible;
    let is_provoked = |cause: &str| provoked.iter().any(|provoked| provoked.text() == cause);
    assert!(stated.iter().all(|stated| is_provoked(&stated.cause)), "{provoked:?} provoked: {stated:?}");
}

/// Returns the number of events that the programs of a recording have emitted by their own count.
fn emitted(recording: &Recording) -> u64 {
    recording.numbers("emitted ").into_iter().sum()
}

/// Durations of constructors, `fork`, `exec` and `dlopen` in traced programs, whatever the owner does.
mod waits {
    use super::*;

    fn each(owner: Owner) {
        measure("waits", owner, setting("DORMOUSE_WAITS", 200));
    }

    #[test]
    fn without_an_owner() {
        each(Owner::None);
    }

    #[test]
    fn with_an_owner_that_is_well() {
        each(Owner::Well);
    }

    #[test]
    fn with_an_owner_that_is_stopped() {
        each(Owner::Stopped);
    }

    #[test]
    fn with_an_owner_that_is_killed() {
        each(Owner::Killed);
    }

    #[test]
    fn with_an_owner_whose_backlog_is_full() {
        each(Owner::BacklogFull);
    }

    /// Forks while the listener's thread, at a tool's request, asks a session's owner for its memory until a timeout.
    #[test]
    fn of_a_fork_while_a_tool_has_the_program_join() {
        let count = setting("DORMOUSE_WAITS", 200) / 10;
        let place = tempfile::tempdir().expect("a directory");
        let session = place.path().join("session");
        let _silent = std::os::unix::net::UnixListener::bind(&session).expect("a socket");
        let mut program = Program::start_with(&[CROWD, "forks"], &BY_THREAD, BOUND);
        program.wait_for_ready();
        let run = program.place().join("run");
        let [socket] = &sockets(&run)[..] else { panic!("{:?}", sockets(&run)) };
        let socket = run.join("dormouse").join(socket);
        program.step();
        let forked = |program: &Program| program.stdout().matches("fork,parent").count() as u64;
        let mut amid = 0;
        for _ in 0..count {
            let before = forked(&program);
            let conversation = Conversation::connect(&socket, Edge::ToolProgram, Deadline::after(BOUND));
            let question = ToolToProgram::Attach { session: session.to_string_lossy().into_owned() };
            let answer = conversation.expect("it listens").ask(&question).expect("it answers");
            assert!(matches!(&answer, ProgramToTool::Error { text } if text.contains("no answer")), "{answer:?}");
            amid += forked(&program) - before;
        }
        let ended = program.end();
        assert!(ended.status.success(), "{ended:?}");
        println!("{amid} forks amid {count} joins");
        // If forks had to wait for the end of a join, there would be one or two for each join.
        assert!(amid > 3 * count, "{amid} forks amid {count} joins");
    }

    /// Forks while another thread is in `dlopen`, where a tracer asks the owner for the session's memory until a
    /// timeout.
    #[test]
    fn of_a_fork_while_another_thread_joins() {
        for owner in [Owner::Stopped, Owner::BacklogFull] {
            measure(AMID_JOINS, owner, setting("DORMOUSE_WAITS", 200) / 10);
        }
    }
}

/// Resources that a process has for others, from `/proc`.
#[derive(Debug, Clone, Copy)]
struct Usage {
    /// Number of descriptors that are not files of the trace.
    descriptors: usize,
    threads: usize,
}

impl Usage {
    fn of(pid: u32) -> Usage {
        let entries =
            |dir: &str| std::fs::read_dir(format!("/proc/{pid}/{dir}")).expect("the owner is there").flatten();
        // Streams of the trace are opened when they are first written.
        let is_file = |link: &Path| link.is_absolute() && !link.starts_with("/dev") && !link.starts_with("/memfd:");
        let links = entries("fd").filter_map(|entry| std::fs::read_link(entry.path()).ok());
        Usage { descriptors: links.filter(|link| !is_file(link)).count(), threads: entries("task").count() }
    }
}

/// Returns the number of programs that the session has refused, from `dormouse status`.
fn refused_live(running: &Running) -> u64 {
    let status = running.dormouse(&["status", "--json", running.session().to_str().expect("a path of text")]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout)
        .unwrap_or_else(|_| panic!("no status: {}", String::from_utf8_lossy(&status.stderr)));
    status["programs_refused"].as_u64().expect("a number")
}

/// Records a crowd with an owner that may have this many descriptors. Some processes ask the owner for the session's
/// memory, which needs descriptors. The processes that it refuses are counted by the owner and by themselves, and the
/// others are in the trace. The owner keeps nothing of those that have ended.
fn crowd(descriptors: u64, live: u64, seconds: u64) {
    // A watchdog beyond the time that the crowd takes by itself.
    let record = Record::new().patience(PATIENCE + Duration::from_secs(2 * seconds));
    let limit = format!("ulimit -n {descriptors} && exec \"$@\"");
    let record = record.within(&["sh", "-c", &limit, "sh"]);
    let fifo = fifo(&record);
    let fifo_text = fifo.to_str().expect("a path of text");
    let mut running = record.start(&words(&[CROWD, "crowd", fifo_text, &live.to_string(), &seconds.to_string()]));
    running.wait_for("ready");
    let mut phases = writer(&fifo);
    let dir = running.dir().to_path_buf();
    running.wait_until("the first's being taken in", || has_joined(&dir, "e2e-crowd"));
    let pid = running.owner().expect("the session has an owner");
    let before = Usage::of(pid);
    for done in ["live\n", "churned\n", "gone\n"] {
        phases.write_all(&[0]).expect("the program reads");
        running.wait_for(done);
    }
    running.wait_until("the owner's letting go of those that have ended", || {
        let now = Usage::of(pid);
        now.descriptors <= before.descriptors && now.threads <= before.threads
    });
    let refused_live = refused_live(&running);
    phases.write_all(&[0]).expect("the program reads");
    let recording = running.wait().succeeded();
    println!("{}", recording.stderr.trim());
    check_refused(&recording, refused_live);
}

/// Returns the number of refused programs, from the trace.
fn refused(recording: &Recording) -> u64 {
    let causes = recording.trace().stats().loss_possible;
    causes.iter().find(|known| known.cause == Cause::ProgramRefused.text()).map_or(0, |known| known.count)
}

/// Asserts that each started process has joined or was refused, by the counts of the trace, of `dormouse status`, and
/// of the processes themselves.
fn check_refused(recording: &Recording, refused_live: u64) {
    let number = |word: &str| recording.numbers(word)[0];
    let (started, alone) = (number("started "), number("alone "));
    let (joined, refused, trace) = (recording.summary().processes, refused(recording), recording.trace());
    println!("started {started}, joined {joined}, refused {refused}; in no session, by their own count: {alone}");
    assert_eq!(refused_live, refused, "{}", recording.stderr);
    assert_eq!(joined + refused, started, "{}", recording.stderr);
    assert!((1..=alone).contains(&refused), "{}", recording.stderr);
    // A process that has given up when the owner's answer comes is in the session by the owner's count, and in none by
    // its own.
    check_all(recording, trace.values("e2e:one").len() as u64, started - 1 - alone, &[Cause::ProgramRefused]);
}

#[test]
fn a_session_that_has_no_room_for_more_processes_counts_those_that_it_refuses() {
    const MORE: u64 = 50;
    let count = dormouse_abi::register::PROCESS_COUNT as u64 - 1 + MORE;
    let record = Record::new();
    let fifo = fifo(&record);
    let fifo_text = fifo.to_str().expect("a path of text");
    // The first process has a number too, and so do its children.
    let mut running = record.start(&words(&[CROWD, "fill", fifo_text, &(count - 1).to_string()]));
    running.wait_for("live\n");
    if let Some(lack) = running.stdout().lines().find_map(|line| line.strip_prefix("lacking ").map(str::to_owned)) {
        return skip(Lack::machine(
            format!("no {count} processes: {lack}"),
            "raise `ulimit -u`, or the limit of the control group",
        ));
    }
    let refused_live = refused_live(&running);
    assert_eq!((refused_live, running.numbers("alone ")), (MORE, vec![MORE]));
    drop(writer(&fifo));
    let recording = running.wait().succeeded();
    println!("{}", recording.stderr.trim());
    check_refused(&recording, refused_live);
}

#[test]
fn processes_join_and_leave_and_nothing_stays() {
    crowd(1_100, 1_000, setting("DORMOUSE_CROWD_SECONDS", 3));
}

#[test]
fn an_owner_without_descriptors_counts_whom_it_refuses() {
    crowd(64, 200, 1);
}

/// Returns the sockets in a directory of sockets.
fn sockets(run: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(run.join("dormouse")).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".sock"))
        .collect()
}

/// Maximum number of sweeps until no dead process's id belongs to another process.
const SWEEPS_MAX: usize = 5;

/// Children that run no handler at their end leave nothing behind, in a session or outside.
#[test]
fn children_that_end_without_handlers_leave_no_sockets() {
    const CHILDREN: u64 = 500;
    let place = tempfile::tempdir().expect("a directory");
    let run = place.path().join("run");
    std::fs::create_dir(&run).expect("a directory");
    let children = [CROWD, "exits", &CHILDREN.to_string()];
    let record = || Record::new().env("XDG_RUNTIME_DIR", &run);
    let recording = record().run(&children).succeeded();
    assert_eq!(emitted(&recording), CHILDREN);
    check_all(&recording, recording.trace().values("e2e:word").len() as u64, CHILDREN, &[]);
    let after_session = sockets(&run);
    let alone = watched(Command::new(CROWD).args(&children[1..]).env("XDG_RUNTIME_DIR", &run), PATIENCE);
    assert!(alone.status.success(), "{alone:?}");
    let after_none = sockets(&run);
    println!("sockets after a session: {}; after none: {}", after_session.len(), after_none.len());
    // Makes them look old: a sweep does not remove sockets that may not be listened to yet.
    for name in &after_none {
        let long_ago = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: long_ago, last_modification: long_ago };
        let path = run.join("dormouse").join(name);
        rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            .expect("it is ours");
    }
    // The next session sweeps. A socket whose process's id belongs to another process by now is left to a later sweep:
    // live programs are not woken.
    let left = (0..SWEEPS_MAX).map(|_| {
        record().run(&["true"]).succeeded();
        sockets(&run)
    });
    let left: Vec<Vec<String>> = left.take_while(|left| !left.is_empty()).collect();
    assert!(left.len() < SWEEPS_MAX, "after each sweep: {left:?}");
    assert!(after_session.is_empty(), "{} sockets are left when a session has ended", after_session.len());
}

/// A program that was started without standard input must not get the tracer's socket as its standard input.
#[test]
fn the_first_three_descriptors_are_the_programs() {
    let closing = |closed: &str| format!("exec \"$0\" descriptors {closed}");
    for closed in ["<&-", "<&- 2>&-"] {
        let place = tempfile::tempdir().expect("a directory");
        let mut alone = Command::new("sh");
        alone.args(["-c", &closing(closed), CROWD]).env("XDG_RUNTIME_DIR", place.path());
        let alone = String::from_utf8(watched(&mut alone, BOUND).stdout).expect("a text");
        let recorded = Record::new().run(&["sh", "-c", &closing(closed), CROWD]).succeeded().stdout;
        for (how, stdout) in [("alone", alone), ("recorded", recorded)] {
            // Rust's standard library opens descriptors that are closed.
            assert!(stdout.starts_with("0 /dev/null\n"), "{how}, {closed}: {stdout:?}");
            assert!(!stdout.contains("socket") && !stdout.contains("memfd"), "{how}, {closed}: {stdout:?}");
        }
    }
}

#[test]
fn frozen_programs_do_not_keep_a_recording_from_ending() {
    const CHILDREN: u64 = 10;
    const EVENTS: u64 = 1_000;
    for listen in ["0", "1"] {
        let record = Record::new().patience(BOUND).env(dormouse_abi::environment::ENV_LISTEN, listen);
        let recording = record.run(&[CROWD, "freeze", &CHILDREN.to_string(), &EVENTS.to_string()]).succeeded();
        assert_eq!(emitted(&recording), CHILDREN * EVENTS);
        let recorded = recording.trace().values("e2e:word").len() as u64;
        check_all(&recording, recorded, CHILDREN * EVENTS, &[Cause::NotDetached]);
    }
}

/// A program that closes the tracer's descriptor and listens itself gets the same number: clients that connect there
/// mean the program.
#[test]
fn a_socket_of_the_programs_is_not_answered_by_the_tracer() {
    const CONNECTIONS: u64 = 100;
    for listen in ["0", "1"] {
        let record = Record::new().patience(BOUND).env(dormouse_abi::environment::ENV_LISTEN, listen);
        let own = record.place().join("own");
        let own_text = own.to_str().expect("a path of text");
        let mut running = record.start(&words(&[CROWD, "usurp", own_text, &CONNECTIONS.to_string()]));
        running.wait_for("ready");
        let dir = running.dir().to_path_buf();
        running.wait_until("the program's being taken in", || has_joined(&dir, "e2e-crowd"));
        let pid = Trace::read(&dir).processes()[0].vpid.to_string();
        for connection in 0..CONNECTIONS {
            if connection % 10 == 0 {
                // It does not matter here whether the program can still be listed.
                let run = running.place().join("run");
                watched(Command::new(dormouse()).args(["list", &pid]).env("XDG_RUNTIME_DIR", run), BOUND);
            }
            let mut stream = UnixStream::connect(&own).expect("the program listens");
            stream.set_read_timeout(Some(BOUND)).expect("a duration");
            stream.write_all(&[7]).expect("the program reads");
            let mut byte = [0];
            let answered = stream.read_exact(&mut byte);
            assert!(answered.is_ok() && byte == [7], "DORMOUSE_LISTEN={listen}, connection {connection}: {answered:?}");
        }
        let recording = running.wait().succeeded();
        assert_eq!(recording.stdout, "ready\nserved\n");
    }
}

/// The listener's socket is one of the program's descriptors here, and the program has no descriptor left for a
/// connection: the listener must wait between looks. A thread that never sleeps would have no further voluntary context
/// switch.
#[test]
fn a_listener_that_lacks_descriptors_sleeps() {
    let mut program = Program::start_with(&[HOST, "as-before-5.9", "limit"], &BY_THREAD, BOUND);
    program.wait_for_ready();
    let run = program.place().join("run");
    let threads = PathBuf::from(format!("/proc/{}/task", program.pid()));
    let is_listener =
        |thread: &PathBuf| std::fs::read_to_string(thread.join("comm")).is_ok_and(|name| name == "dormouse\n");
    let mut listener = None;
    // A thread has its name only once it runs.
    wait_until("the listener's thread", || {
        let all = std::fs::read_dir(&threads).expect("the program is there").flatten().map(|entry| entry.path());
        listener = all.filter(is_listener).last();
        listener.is_some()
    });
    let listener = listener.expect("waited for");
    let sleeps = || {
        let status = std::fs::read_to_string(listener.join("status")).expect("the thread is there");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|number| number.trim().parse::<u64>().ok()).expect("a number")
    };
    // The program has already listened before its `exec`.
    let connect = |name: &String| UnixStream::connect(run.join("dormouse").join(name)).ok();
    let _waits = sockets(&run).iter().find_map(connect).expect("it listens");
    let before = sleeps();
    wait_until("the listener sleeps", || sleeps() >= before + 10);
    assert!(program.end().status.success());
}

/// Both are process 1 in their own namespace.
#[test]
fn programs_of_two_pid_namespaces_are_told_apart() {
    let permitted = watched(Command::new(ENTER).args(["pid-namespace", "calls", "1"]), BOUND);
    if !permitted.status.success() {
        let reason = String::from_utf8_lossy(&permitted.stderr).trim().to_owned();
        return skip(Lack::machine(reason, "run the tests as root"));
    }
    let place = tempfile::tempdir().expect("a directory");
    let starts = [("boxed", [BOX, "none", "100"]), ("other", [CROWD, "listed", ""])];
    let programs = starts.map(|(_, program)| {
        let command = [&["env", "DORMOUSE_LISTEN=thread", ENTER, "pid-namespace", "exec"], &program[..]].concat();
        let mut program = Program::start_beside(&command, BOUND, place.path());
        program.wait_for_ready();
        program
    });
    for ((name, _), program) in starts.iter().zip(&programs) {
        let pid = program.pid().to_string();
        let listed = program.dormouse(&["list", &pid], place.path());
        let text = String::from_utf8_lossy(&listed.stdout);
        assert!(listed.status.success(), "process {pid}: {}", String::from_utf8_lossy(&listed.stderr));
        assert!(text.contains(&format!("process {pid} ")), "{text}");
        let is_own = text.contains("e2e:boxed") == (*name == "boxed");
        assert!(is_own, "process {pid} is answered for by another: {text}");
    }
}

#[test]
fn root_arms_the_program_of_another_user() {
    const EVENTS: u64 = 10_000;
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    if !has("setpriv") {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).expect("it is ours");
    let nobodys = place.path().join("run");
    std::fs::create_dir(&nobodys).expect("a directory");
    let is_given = std::os::unix::fs::chown(&nobodys, Some(65534), Some(65534)).is_ok();
    let [program, enter] = [BOX, ENTER].map(|built| for_everybody(Path::new(built), place.path()));
    if !is_given
        || !watched(Command::new(as_nobody[0]).args(&as_nobody[1..]).arg(enter).args(["none", "calls", "1"]), BOUND)
            .status
            .success()
    {
        return skip(Lack::machine("this user cannot become another", "run the tests as root"));
    }
    let events = EVENTS.to_string();
    let program = program.to_str().expect("a path of text");
    let by_thread = ["env", "DORMOUSE_LISTEN=thread"];
    let command = [&by_thread[..], &as_nobody, &[program, "none", &events]].concat();
    let mut program = Program::start_beside(&command, BOUND, &nobodys);
    program.wait_for_ready();
    let (pid, dir, roots) = (program.pid().to_string(), place.path().join("trace"), place.path().join("roots"));
    std::fs::create_dir(&roots).expect("a directory");
    // A program's own statement about its sockets is not believed: the tool is told the directory.
    let dormouse = |arguments: &[&str]| {
        let mut command = Command::new(dormouse());
        command.args(arguments).env("XDG_RUNTIME_DIR", &roots).env("DORMOUSE_SOCKET_DIR", nobodys.join("dormouse"));
        watched(&mut command, BOUND)
    };
    let armed = dormouse(&["arm", &pid, "e2e:boxed", "-o", dir.to_str().expect("a path of text")]);
    assert!(armed.status.success(), "{}", String::from_utf8_lossy(&armed.stderr));
    program.step();
    let disarmed = dormouse(&["disarm", &pid, "*"]);
    assert!(disarmed.status.success(), "{}", String::from_utf8_lossy(&disarmed.stderr));
    assert_eq!(Trace::read(&dir).values("e2e:boxed").len() as u64, EVENTS);
    let ended = program.end();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
}

/// The owner is killed under load, repeatedly. Events that programs have committed, and those that they emit
/// afterwards, must be in the salvaged trace or counted there.
#[test]
fn an_owner_that_is_killed_under_load_loses_nothing_unsaid() {
    let mut random = Random(seed("owners killed"));
    for round in 0..setting("DORMOUSE_OWNER_KILLS", 5) {
        let record = Record::new();
        let (fifo, end) = (fifo(&record), record.place().join("end"));
        let text = |path: &Path| path.to_str().expect("a path of text").to_owned();
        let mut running = record.start(&words(&[CROWD, "load", &text(&end), &text(&fifo), "2"]));
        running.wait_for("ready");
        let dir = running.dir().to_owned();
        running.wait_until("the program's joining", || has_joined(&dir, "e2e-crowd"));
        // From here on there is something to read.
        drop(writer(&fifo));
        // The moment is random, before or after the first packets.
        std::thread::sleep(Duration::from_micros(random.below(50_000)));
        running.kill_owner();
        // Programs continue without an owner for a while, also random.
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        std::fs::write(&end, "").expect("a file");
        // Waits for its last line to be complete.
        running.wait_for("emitted\n");
        let stdout = running.stdout();
        let emitted =
            stdout.lines().find_map(|line| line.strip_prefix("events ")).and_then(|number| number.parse().ok());
        let emitted: u64 = emitted.expect("a number of events");
        let salvaged = running.place().join("salvaged");
        let done = running.dormouse(&["salvage", "--json", "-o", &text(&salvaged), &text(&dir)]);
        let json: serde_json::Value = serde_json::from_slice(&done.stdout)
            .unwrap_or_else(|_| panic!("round {round}: {}", String::from_utf8_lossy(&done.stderr)));
        let trace = Trace::read(&salvaged);
        let stats = trace.stats();
        let counted: usize = trace.steps().into_values().map(|numbers| numbers.len()).sum();
        println!("round {round}: emitted {emitted}, in the trace {counted}, counted as lost {}", stats.events_lost);
        assert_eq!(counted as u64 + stats.events_lost, emitted, "round {round}: {json}");
        let pids: Vec<u32> = trace.processes().iter().map(|process| process.vpid).collect();
        running.kill_programs(&pids);
    }
}

//! A session whose owner is killed and started again: everything that programs have committed is in its trace once, or
//! is counted as lost.
//!
//! No time is asserted. The moments at which owners are killed are random.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use dormouse_e2e::emit::CHILD_EVENTS;
use dormouse_e2e::program::Program;
use dormouse_e2e::run::{PATIENCE, Record, Recording, Running, dormouse, has_ended, owner_of, watched};
use dormouse_e2e::trace::has_joined;
use dormouse_e2e::{Random, seed};
use dormouse_testing::{has, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// The program that forks and starts others while its threads emit.
const CROWD: &str = env!("CARGO_BIN_EXE_e2e-crowd");
/// The program with tracepoints that waits for input.
const BOX: &str = env!("CARGO_BIN_EXE_e2e-box");

/// Returns how many owners are killed in each test; in the exhaustive form, about one for each second.
fn kill_count() -> u64 {
    let name = "DORMOUSE_OWNER_KILLS";
    std::env::var(name).map_or(10, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Returns the maximum time for which the test lets an owner live.
fn life() -> Duration {
    if kill_count() > 10 { Duration::from_millis(1990) } else { Duration::from_millis(600) }
}

/// Records a family whose owner is killed repeatedly while it emits. Returns the recording, the number of events that
/// the family has emitted by its own count, and the number of owners killed.
fn record_killed(record: Record, name: &str) -> (Recording, u64, u64) {
    let mut random = Random(seed(name));
    let end = record.place().join("end");
    let end_text = end.to_str().expect("a path of text").to_owned();
    let mut running = record.patience(PATIENCE).start(&[CROWD, "family", &end_text, "2"]);
    running.wait_for("ready");
    let mut kills = 0;
    while kills < kill_count() {
        // The test tries random moments of the owner's life, from its first instructions on.
        std::thread::sleep(Duration::from_micros(random.below(life().as_micros() as u64)));
        kills += u64::from(running.kill_owner_alone(Signal::KILL));
    }
    std::fs::write(&end, "").expect("a file");
    // Also kills owners while the session ends, as long as there is one.
    for _ in 0..5 {
        // Random as above, because the duration of the end is not known.
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        kills += u64::from(running.kill_owner_alone(Signal::KILL));
    }
    let recording = running.wait().succeeded();
    let emitted = recording.numbers("events ")[0];
    (recording, emitted, kills)
}

fn assert_restarts_are_told(recording: &Recording, kills: u64) {
    let times = if kills == 1 { "time" } else { "times" };
    let told = format!("its owner was started again {kills} {times}");
    // An owner that was killed before it had taken the session up is not counted by the session.
    let count: u64 = recording
        .stderr
        .split_once("its owner was started again ")
        .map_or(0, |(_, rest)| rest.split(' ').next().and_then(|number| number.parse().ok()).expect("a number"));
    assert!(count > 0 && count <= kills, "{told}: {}", recording.stderr);
}

/// In discard mode every event is in the trace once, or counted.
fn all_or_counted(record: Record, name: &str) {
    let (recording, emitted, kills) = record_killed(record, name);
    assert_restarts_are_told(&recording, kills);
    let trace = recording.trace();
    // Each event is in the trace at most once, and whole.
    let recorded: u64 = trace.steps().values().map(|numbers| numbers.len() as u64).sum();
    let (stats, summary) = (trace.stats(), recording.summary());
    println!("{name}: {kills} owners killed, {emitted} events emitted, {recorded} recorded, {} lost", summary.lost);
    assert_eq!(recorded + summary.lost, emitted, "{}", recording.stderr);
    assert_eq!((summary.events, stats.events_lost), (recorded, summary.lost), "{}", recording.stderr);
    assert!(!recording.stderr.contains(" lost because "), "{}", recording.stderr);
    assert!(stats.warnings.is_empty() && stats.loss_possible.is_empty(), "{:?}", stats.warnings);
    // Each process is in the trace once, by its number and id.
    let mut processes: BTreeMap<u32, u32> = BTreeMap::new();
    trace.processes().iter().for_each(|process| *processes.entry(process.vpid).or_default() += 1);
    assert_eq!(trace.processes().len() as u64, summary.processes);
}

/// Owners are killed at random moments, while programs emit, fork and start others.
mod killed {
    use super::*;

    #[test]
    fn an_owner_that_is_killed_again_and_again_loses_nothing() {
        all_or_counted(Record::new(), "owners killed, discard");
    }

    #[test]
    fn nor_does_one_with_next_to_no_memory() {
        all_or_counted(Record::new().budget("256K"), "owners killed, little memory");
    }

    #[test]
    fn nor_does_one_whose_buffers_are_a_file() {
        let place = tempfile::tempdir_in("/dev/shm").expect("a directory of tmpfs");
        let buffers = place.path().join("buffers");
        all_or_counted(Record::new().option("--buffers").option(&buffers), "owners killed, buffers");
        assert!(!buffers.exists(), "the file of the buffers stays");
    }

    #[test]
    fn nor_does_one_without_rseq() {
        all_or_counted(Record::new().rseq(false), "owners killed, atomics");
    }

    /// A flight recorder keeps what its memory holds: of each thread with any events there, all events from then on.
    #[test]
    fn a_flight_recorder_keeps_all_that_it_retains() {
        let (recording, emitted, kills) = record_killed(Record::new().mode("overwrite"), "owners killed, overwrite");
        assert_restarts_are_told(&recording, kills);
        let trace = recording.trace();
        let since = trace.complete_since();
        let mut recorded = 0;
        for ((process, thread), numbers) in trace.steps_since(since) {
            // One id may have belonged to several children; each begins and ends with a multiple.
            let is_next_child =
                |pair: &[u64]| (pair[0] + 1).is_multiple_of(CHILD_EVENTS) && pair[1].is_multiple_of(CHILD_EVENTS);
            let hole = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1 && !is_next_child(pair));
            assert_eq!(hole, None, "process {process}, thread {thread}");
            recorded += numbers.len() as u64;
        }
        println!("{kills} owners killed, {emitted} events emitted, {recorded} retained");
        assert!(recorded > 0 && recorded <= emitted && recording.summary().lost == 0, "{}", recording.stderr);
    }
}

/// Returns a session whose program has joined and emitted some events; it emits more, and ends when the file `end`
/// exists.
fn waiting(record: Record) -> Running {
    let end = record.place().join("end");
    let end_text = end.to_str().expect("a path of text").to_owned();
    let mut running = record.start(&[CROWD, "family", &end_text, "1"]);
    let dir = running.dir().to_owned();
    running.wait_until("the program's joining", || has_joined(&dir, "e2e-crowd"));
    running
}

/// Lets the program of that session end.
fn let_end(running: &Running) {
    std::fs::write(running.place().join("end"), "").expect("a file");
}

fn status(running: &Running) -> serde_json::Value {
    let output = running.dormouse(&["status", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// Programs and tools that ask meanwhile wait at the same socket.
#[test]
fn the_next_owner_answers_at_the_same_socket_and_says_so() {
    let mut running = waiting(Record::new());
    let socket = std::fs::metadata(running.session()).expect("the session's socket").ino();
    let (first, before) = (running.owner(), status(&running));
    assert_eq!(before["owner"].as_u64(), first.map(u64::from));
    assert!(before["owner_restarts"] == 0 && running.kill_owner_alone(Signal::KILL));
    // The request may reach the owner that is being killed, which does not answer.
    let pid = running.pid().to_string();
    running.wait_until("the next owner", || {
        owner_of(pid.parse().expect("a number")).is_some_and(|owner| Some(owner) != first)
    });
    let after = status(&running);
    // The program still exists; its children come and go.
    assert!(after["owner_restarts"] == 1 && after["processes"].as_u64() >= Some(1), "{after}");
    let text = running.dormouse(&["status", &pid]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("(restarted once), trace "), "{text:?}");
    assert_eq!(std::fs::metadata(running.session()).expect("the session's socket").ino(), socket);
    let_end(&running);
    assert!(running.wait().succeeded().stderr.contains("; its owner was started again 1 time"));
}

/// The supervisor responds to signals that a terminal sends to all processes, and a service manager to all of a group.
#[test]
fn signals_do_not_end_an_owner_that_has_a_supervisor() {
    let running = waiting(Record::new());
    let owner = running.owner().expect("an owner");
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::TSTP] {
        assert!(running.kill_owner_alone(signal));
    }
    assert_eq!(
        (status(&running)["owner"].as_u64(), &status(&running)["owner_restarts"]),
        (Some(owner.into()), &0.into())
    );
    let_end(&running);
    all_there(&running.wait().succeeded());
}

fn all_there(recording: &Recording) {
    let emitted = recording.numbers("events ")[0];
    let recorded: u64 = recording.trace().steps().values().map(|numbers| numbers.len() as u64).sum();
    assert_eq!(recorded, emitted, "{}", recording.stderr);
}

/// An owner whose supervisor is killed continues as long as the command does, and completes the trace.
#[test]
fn an_owner_without_a_supervisor_goes_on_to_the_end() {
    let mut running = waiting(Record::new());
    running.kill_supervisor();
    // There is no supervisor that would start another owner.
    let session = running.session();
    assert_eq!(status(&running)["owner_restarts"], 0);
    let_end(&running);
    running.wait_for("emitted\n");
    running.wait_until("the session's end", || !session.exists());
    let dir = running.dir().to_owned();
    running.wait_until("the trace's completion", || !dir.join(".session").exists());
    let emitted = running.numbers("events ")[0];
    let trace = dormouse_e2e::trace::Trace::read(&dir);
    let recorded: u64 = trace.steps().values().map(|numbers| numbers.len() as u64).sum();
    assert_eq!((recorded, trace.stats().loss_possible.len()), (emitted, 0));
}

/// An owner that dies repeatedly without progress is given up. Everything that programs have committed can be salvaged.
#[test]
fn an_owner_that_gets_nothing_done_is_given_up() {
    let record = Record::new();
    let end = record.place().join("end");
    // While it is stopped, the program commits nothing.
    let script = format!("'{CROWD}' family '{}' 1 & echo program $!; wait", end.display());
    let mut running = record.start(&["sh", "-c", &script]);
    let dir = running.dir().to_owned();
    running.wait_until("the program's joining", || has_joined(&dir, "e2e-crowd"));
    // Only the files can be salvaged once the program, and its memory with it, is gone.
    running.wait_until("a packet of a processor", || {
        let mut files = std::fs::read_dir(&dir).expect("the trace's directory").flatten();
        files.any(|file| {
            file.file_name().to_string_lossy().starts_with("cpu_") && file.metadata().is_ok_and(|file| file.len() > 0)
        })
    });
    let program = Pid::from_raw(running.numbers("program ")[0] as i32).expect("a process id");
    kill_process(program, Signal::STOP).expect("the program is there");
    let supervisor = running.pid();
    let mut last = Instant::now();
    // Ten owners are started within seconds, then none any more. Each is killed before it can have lived long.
    running.wait_until("the owner's being given up", || {
        if running_owner_is_killed(supervisor) {
            last = Instant::now();
        }
        last.elapsed() > Duration::from_secs(5)
    });
    kill_process(program, Signal::CONT).expect("the program is there");
    let_end(&running);
    let place = tempfile::tempdir().expect("a directory");
    let recording = running.wait();
    let said = "its owner has ended 10 times without getting anything done: ";
    assert!(recording.code() == 2 && recording.stderr.contains(said), "{}", recording.stderr);
    let salvaged = dormouse_owner::salvage(&recording.dir, &place.path().join("salvaged")).expect("a trace");
    assert!(salvaged.events > 0, "{salvaged:?}");
}

fn running_owner_is_killed(supervisor: u32) -> bool {
    let owner = owner_of(supervisor).and_then(|pid| Pid::from_raw(pid as i32));
    owner.is_some_and(|owner| kill_process(owner, Signal::KILL).is_ok())
}

/// A program that is already running is also recorded further, and a tool ends its session.
#[test]
fn an_attached_program_stays_attached() {
    let mut program = Program::start_with(&[BOX, "none", "1000"], &[("DORMOUSE_LISTEN", "thread")], PATIENCE);
    program.wait_for_ready();
    let (pid, run, dir) = (program.pid().to_string(), program.place().join("run"), program.place().join("trace"));
    let succeed = |program: &Program, arguments: &[&str]| {
        let output = program.dormouse(arguments, &run);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    succeed(&program, &["arm", &pid, "e2e:boxed", "-o", dir.to_str().expect("a path of text")]);
    let owner = |program: &Program| -> u64 {
        let status: serde_json::Value =
            serde_json::from_str(&succeed(program, &["status", &pid, "--json"])).expect("JSON");
        status["owner"].as_u64().expect("a number")
    };
    let first = owner(&program);
    kill_process(Pid::from_raw(first as i32).expect("a process id"), Signal::KILL).expect("the owner is there");
    // The request may reach the owner that is being killed, which does not answer.
    wait_until("the end of the one that was killed", || has_ended(first as u32));
    assert_ne!(owner(&program), first);
    program.step();
    let said = succeed(&program, &["disarm", &pid, "*"]);
    assert!(said.contains("1000 events, 0 lost, 1 process, ") && said.contains("started again 1 time"), "{said}");
    assert_eq!(dormouse_e2e::trace::Trace::read(&dir).values("e2e:boxed").len(), 1000);
    let ended = program.end();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
}

/// A service manager that receives messages.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Manager {
        let socket = UnixDatagram::bind(path).expect("a socket");
        // A watchdog.
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Manager(socket)
    }

    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let len = self.0.recv(&mut bytes).expect("somebody says something");
        String::from_utf8(bytes[..len].to_vec()).expect("text")
    }

    fn has_heard_nothing(&self) -> bool {
        self.0.set_nonblocking(true).expect("a socket");
        self.0.recv(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

#[test]
fn a_service_manager_is_notified_of_readiness_and_end() {
    let record = Record::new();
    let notify = record.place().join("notify");
    let manager = Manager::at(&notify);
    let end = record.place().join("end");
    // The command runs until that file exists.
    let script = format!("while test ! -e '{}'; do sleep 0.05; done", end.display());
    let mut running = record.env("NOTIFY_SOCKET", &notify).start(&["sh", "-c", &script]);
    let first = manager.next();
    let lines: Vec<&str> = first.lines().collect();
    assert!(
        lines.contains(&"READY=1") && lines.iter().any(|line| line.starts_with("STATUS=recording into ")),
        "{first}"
    );
    // The message is true by then: the session's socket is answered.
    assert_eq!(status(&running)["owner_restarts"], 0);
    assert!(running.kill_owner_alone(Signal::KILL));
    assert_eq!(manager.next().trim_end(), "STATUS=the owner was started again 1 times");
    let session = running.session();
    running.wait_until("the next owner", || session.exists());
    let_end(&running);
    assert_eq!(manager.next().trim_end(), "STOPPING=1");
    running.wait().succeeded();
    assert!(manager.has_heard_nothing());
}

#[test]
fn a_service_manager_is_not_notified_of_a_failed_start() {
    let place = tempfile::tempdir().expect("a directory");
    let manager = Manager::at(&place.path().join("notify"));
    let mut other = Command::new("sleep").arg("infinity").spawn().expect("a program without Dormouse");
    let mut command = Command::new(dormouse());
    command.args(["record", "--attach", &other.id().to_string(), "-o"]).arg(place.path().join("trace"));
    command.env("NOTIFY_SOCKET", place.path().join("notify")).env("XDG_RUNTIME_DIR", place.path());
    let output = watched(&mut command, PATIENCE);
    let _ = other.kill();
    other.wait().expect("a child");
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(manager.has_heard_nothing());
}

/// The installed units are accepted by systemd.
#[test]
fn systemd_accepts_the_units() {
    if !has("systemd-analyze") {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cli/systemd");
    for (manager, name, instance) in
        [("user", "dormouse.service", "dormouse.service"), ("system", "dormouse@.service", "dormouse@x.service")]
    {
        let text = std::fs::read_to_string(units.join(manager).join(name)).expect("a unit");
        let program = dormouse().to_str().expect("a path of text");
        // The program is not installed where the unit looks for it.
        let found = text.replace("ExecStart=dormouse ", &format!("ExecStart={program} "));
        assert_ne!(found, text, "{name} does not start dormouse");
        let verify = |text: &str| {
            std::fs::write(place.path().join(instance), text).expect("a file");
            let mut command = Command::new("systemd-analyze");
            command.arg(format!("--{manager}")).args(["--man=no", "verify"]).arg(place.path().join(instance));
            let output = watched(command.env("XDG_RUNTIME_DIR", place.path()), PATIENCE);
            (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        assert_eq!(verify(&found), (true, String::new()), "{name}");
        // Checks that errors would be reported.
        assert!(verify(&found.replace("Type=notify", "Type=notifi")).1.contains("Failed to parse service type"));
    }
}

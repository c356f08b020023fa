//! How users find programs and sessions: by name, by file, by directory, several at once.
#![cfg(target_os = "linux")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use dormouse_e2e::run::{Record, Running, dormouse, has_ended, libc_library, plugin};
use dormouse_e2e::trace::Trace;
use dormouse_testing::{Lack, copy_program, for_everybody, skip, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

const LIVE: &str = env!("CARGO_BIN_EXE_e2e-live");
const CLASSES: &str = env!("CARGO_BIN_EXE_e2e-classes");
const VALUES: &str = env!("CARGO_BIN_EXE_e2e-values");
/// Events of `LIVE`, one tracepoint each.
const LIVE_TRACEPOINTS: u64 = 2;

/// Several processes of one program, which has a name of its own, with a directory of sockets of their own.
struct Instances {
    place: TempDir,
    name: String,
    running: Vec<(Child, BufReader<ChildStdout>)>,
}

impl Instances {
    fn start(name: &str, count: usize) -> Instances {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join(name);
        copy_program(Path::new(LIVE), &program);
        let start = |number: usize| {
            let mut child = Command::new(&program)
                .arg(place.path().join(format!("rounds-{number}")))
                .env("XDG_RUNTIME_DIR", place.path())
                // No tool causes an event to be evaluated.
                .env("DORMOUSE_LISTEN", "thread")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdout = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            (child, stdout)
        };
        let running = (0..count).map(start).collect();
        Instances { place, name: name.into(), running }
    }

    fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.running.iter().map(|(child, _)| child.id()).collect();
        pids.sort_unstable();
        pids
    }

    fn dormouse(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(dormouse());
        command.args(arguments).current_dir(self.place.path()).env("XDG_RUNTIME_DIR", self.place.path());
        command.output().unwrap()
    }

    /// Runs a command that must succeed, and returns its output and what it has said.
    fn succeed(&self, arguments: &[&str]) -> (String, String) {
        let output = self.dormouse(arguments);
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success(), "{arguments:?}: {out} {err}");
        (out, err)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.succeed(arguments).0).unwrap()
    }

    /// Returns what `dormouse list` says of these processes, by id.
    fn listed(&self) -> BTreeMap<u32, Value> {
        let list = self.json(&["list", "--json"]);
        let of = |program: &Value| (program["pid"].as_u64().unwrap() as u32, program.clone());
        let pids = self.pids();
        list["programs"].as_array().unwrap().iter().map(of).filter(|(pid, _)| pids.contains(pid)).collect()
    }

    /// Ends the processes. Returns how many ticks each has evaluated, by id.
    fn end(&mut self) -> BTreeMap<u32, u64> {
        let end = |(mut child, mut stdout): (Child, BufReader<ChildStdout>)| {
            drop(child.stdin.take());
            let mut text = String::new();
            stdout.read_to_string(&mut text).unwrap();
            assert!(child.wait().unwrap().success());
            (child.id(), text.trim().strip_prefix("evaluated ").unwrap().parse().unwrap())
        };
        self.running.drain(..).map(end).collect()
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        for (child, _) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the number of recorded events of each process.
fn events_by_process(dir: &Path) -> BTreeMap<u32, u64> {
    let processes = Trace::read(dir).stats().processes;
    processes.into_iter().map(|process| (process.vpid, process.count.unwrap())).collect()
}

/// Runs `dormouse list` of a file. Returns its classes, each with the number of its tracepoints and its fields.
fn list_file(file: &Path) -> BTreeSet<(String, u64, String)> {
    let output = Command::new(dormouse()).arg("list").arg(file).arg("--json").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    classes_in(&json["classes"])
}

/// Returns the labels of the enumerations in a file, each with the name of its class.
fn labels_in_file(file: &Path) -> Vec<(String, Value)> {
    let output = Command::new(dormouse()).arg("list").arg(file).arg("--json").output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let fields = |class: &Value| class["fields"].as_array().unwrap().clone();
    let classes = json["classes"].as_array().unwrap().iter();
    let labels = classes.flat_map(|class| fields(class).into_iter().map(|field| (class["name"].clone(), field)));
    let labels = labels.filter(|(_, field)| !field["labels"].is_null());
    labels.map(|(name, field)| (name.as_str().unwrap().into(), field["labels"].clone())).collect()
}

/// Returns the names of the classes in a file that have a level, each with that level.
fn levels_in_file(file: &Path) -> BTreeSet<(String, String)> {
    let output = Command::new(dormouse()).arg("list").arg(file).arg("--json").output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let classes = json["classes"].as_array().unwrap().iter();
    let level = |class: &Value| Some((class["name"].as_str()?.to_string(), class["level"].as_str()?.to_string()));
    classes.filter_map(level).collect()
}

fn classes_in(classes: &Value) -> BTreeSet<(String, u64, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_string();
    let field = |field: &Value| format!("{}: {}", text(&field["name"]), text(&field["type"]));
    let class = |class: &Value| {
        let fields: Vec<String> = class["fields"].as_array().unwrap().iter().map(field).collect();
        (text(&class["name"]), class["sites"].as_u64().unwrap(), fields.join(", "))
    };
    classes.as_array().unwrap().iter().map(class).collect()
}

#[test]
fn programs_of_one_name_are_recorded_together_until_the_last_is_disarmed() {
    let mut instances = Instances::start("e2e-trio", 3);
    let pids = instances.pids();
    let listed = instances.listed();
    assert_eq!(listed.keys().copied().collect::<Vec<_>>(), pids);
    for program in listed.values() {
        assert_eq!((&program["name"], &program["tracepoints"]), (&"e2e-trio".into(), &LIVE_TRACEPOINTS.into()));
        assert_eq!(program["sessions"], json!([]));
    }
    let all = pids.iter().map(u32::to_string).collect::<Vec<_>>();
    let (out, err) = instances.succeed(&["arm", &instances.name, "*", "-o", "trace"]);
    assert!(err.contains(&format!("e2e-trio is the name of 3 programs: processes {}", all.join(", "))), "{err}");
    assert!(
        out.contains(&format!("armed 6 event classes of processes {}, recording into trace", all.join(", "))),
        "{out}"
    );
    let dir = instances.place.path().canonicalize().unwrap().join("trace");
    for (pid, program) in instances.listed() {
        assert_eq!(program["sessions"][0]["dir"].as_str().map(PathBuf::from), Some(dir.clone()), "{pid}");
    }
    // The directory, a name and a process lead to the same session.
    let status = instances.json(&["status", "trace", "--json"]);
    assert_eq!(status["processes"], 3);
    for target in [instances.name.as_str(), &all[0], &all.join(",")] {
        assert_eq!(instances.json(&["status", target, "--json"])["session"], status["session"], "{target}");
    }
    let (out, _) = instances.succeed(&["disarm", &all[0], "*"]);
    let others = format!("the recording goes on: events of processes {}, {} are armed\n", all[1], all[2]);
    assert!(out.ends_with(&others), "{out}");
    // A program that does not exist hides nothing.
    let output = instances.dormouse(&["disarm", &format!("4200000,{},no-such-name", all[1]), "*"]);
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(output.status.code(), Some(2), "{out}{err}");
    assert!(err.contains("process 4200000") && err.contains("is called no-such-name"), "{err}");
    assert!(out.contains(&format!("disarmed 2 event classes of process {}, 0 still armed", all[1])), "{out}");
    let (out, _) = instances.succeed(&["disarm", &all[2], "*"]);
    assert!(out.contains(" 0 lost, 3 processes, "), "{out}");
    let output = instances.dormouse(&["status", "trace"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("its session has ended"), "{output:?}");
    assert!(instances.listed().values().all(|program| program["sessions"] == json!([])));

    let recorded = events_by_process(&dir);
    assert_eq!(recorded.keys().copied().collect::<Vec<_>>(), pids);
    // Each tenth tick has a tock.
    for (pid, ticks) in instances.end() {
        assert!(recorded[&pid] > 0 && recorded[&pid] <= ticks + ticks / 10 + 1, "{recorded:?}: {pid} {ticks}");
    }
}

#[test]
fn record_attaches_every_program_of_a_name() {
    let mut instances = Instances::start("e2e-pair", 2);
    let mut recorder = Command::new(dormouse())
        .args(["record", "--attach", "e2e-pair,4200000", "-e", "live:tick", "-e", "live:tikc", "-o", "trace"])
        .current_dir(instances.place.path())
        .env("XDG_RUNTIME_DIR", instances.place.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let dir = instances.place.path().join("trace");
    wait_until("both have joined", || {
        instances.listed().values().all(|program| program["sessions"] != json!([]))
            && instances.dormouse(&["status", "trace"]).status.success()
    });
    // The programs end, and the recording with them. One event of each may have been evaluated as it was armed.
    let evaluated = instances.end();
    let mut said = String::new();
    recorder.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(recorder.wait().unwrap().code(), Some(2), "one of the processes does not exist: {said}");
    assert!(said.contains("process 4200000") && said.contains(" 0 lost, 2 processes, "), "{said}");
    let (before, _) = said.split_once("recording 2 event classes of processes ").unwrap();
    assert!(before.contains("matches live:tikc; there are live:tick, live:tock"), "{said}");
    let recorded = events_by_process(&dir);
    assert_eq!(recorded.keys().collect::<Vec<_>>(), evaluated.keys().collect::<Vec<_>>());
    for (pid, ticks) in evaluated {
        assert!((recorded[&pid]..=recorded[&pid] + 1).contains(&ticks), "{recorded:?}: {pid} {ticks}");
    }
}

/// The events in a file are those that the program itself announces when it runs, and that its source has.
#[test]
fn the_events_of_a_file_are_those_of_the_program() {
    let live = list_file(Path::new(LIVE));
    let written = [("live:tick", "number: u64"), ("live:tock", "number: u64, text: str")];
    assert_eq!(live, written.map(|(name, fields)| (name.into(), 1, fields.into())).into_iter().collect());
    let instances = Instances::start("e2e-solo", 1);
    let of_process = instances.json(&["list", "e2e-solo", "--json"]);
    assert_eq!((&of_process[0]["pid"], classes_in(&of_process[0]["classes"])), (&instances.pids()[0].into(), live));

    let many = list_file(Path::new(CLASSES));
    assert_eq!(many.len(), 17 * 16);
    assert!(many.iter().all(|(_, sites, fields)| (*sites, fields.as_str()) == (1, "number: u64")), "{many:?}");

    let preloaded = list_file(libc_library());
    let open = preloaded.iter().find(|(name, ..)| name == "libc:open").unwrap();
    assert_eq!(open.2, "path: str, flags: i32, mode: u32, fd: i32");
    let recording =
        Record::new().option("--libc").env("DORMOUSE_LIBC_LIBRARY", libc_library()).run(&["ls", "/"]).succeeded();
    let names: BTreeSet<String> = preloaded.into_iter().map(|(name, ..)| name).collect();
    let trace = Trace::read(&recording.dir);
    let classes: BTreeSet<String> = trace.stats().classes.into_iter().map(|class| class.name).collect();
    assert!(!classes.is_empty() && classes.is_subset(&names), "{:?}", classes.difference(&names));

    // The labels are those of the source: two classes of one name have different ones.
    let labels = labels_in_file(Path::new(VALUES));
    let state = json!({ "Ready": 0, "Running": 300, "Failed": -1 });
    let seen = [json!({ "Red": 0, "Green": 1 }), json!({ "Open": 0, "Shut": 1 })];
    assert_eq!(labels.iter().filter(|(name, _)| name == "values:state").map(|of| &of.1).collect::<Vec<_>>(), [&state]);
    let of_seen: Vec<_> = labels.iter().filter(|(name, _)| name == "values:seen").map(|of| &of.1).collect();
    assert!(of_seen.len() == 2 && seen.iter().all(|one| of_seen.contains(&one)), "{of_seen:?}");
    let text = Command::new(dormouse()).arg("list").arg(VALUES).output().unwrap().stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("{ before: u8, state: i16 Ready|Running|Failed, after: str }"), "{text}");

    // What the trace's metadata say of a program with all kinds of fields.
    let values = list_file(Path::new(VALUES));
    let recording = Record::new().run(&[VALUES]).succeeded();
    let metadata = std::fs::read_to_string(recording.dir.join("metadata")).unwrap();
    let trace = Trace::read(&recording.dir);
    let levels = trace.metadata.classes.events().filter_map(|class| {
        let level = class.level?;
        Some((class.full_name.clone(), level.name().to_string()))
    });
    let levels: BTreeSet<(String, String)> = levels.collect();
    assert_eq!((levels_in_file(Path::new(VALUES)), levels.len()), (levels, 3));
    assert!(values.len() > 3 && values.iter().all(|(_, _, fields)| !fields.contains('?')), "{values:?}");
    for (name, _, fields) in &values {
        assert!(metadata.contains(&format!("name = \"{name}\"")), "{name}");
        for field in fields.split(", ").filter(|fields| !fields.is_empty()) {
            assert!(metadata.contains(field.split(':').next().unwrap()), "{name}: {field}");
        }
    }
    assert!(!list_file(plugin()).is_empty());
}

#[test]
fn what_is_not_there_to_list_says_so() {
    let fail = |arguments: &[&str]| {
        let output = Command::new(dormouse()).arg("list").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(fail(&["/bin/no-such-file"]).contains("No such file"));
    assert!(fail(&["/etc/passwd"]).contains("no program and no library"));
    assert!(
        fail(&["no-such-name"]).contains("no running program of this user with tracepoints is called no-such-name")
    );
    let place = tempfile::tempdir().unwrap();
    let asleep = place.path().join("e2e-asleep");
    copy_program(Path::new("/bin/sleep"), &asleep);
    let mut sleeper = Command::new(&asleep).arg("infinity").spawn().unwrap();
    let told = fail(&["e2e-asleep"]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(told.contains("which is the name of process"), "{told}");
    let output = Command::new(dormouse()).args(["list", "/bin/ls"]).output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("no events"), "{output:?}");
}

/// Another user sees its own programs only; root counts them.
#[test]
fn programs_of_other_users_are_counted_and_left_out() {
    if !rustix::process::geteuid().is_root() {
        return skip(Lack::machine("only root can run a program as another user", "run the test as root"));
    }
    let place = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let program = place.path().join("e2e-other");
    copy_program(Path::new(LIVE), &program);
    let command = for_everybody(dormouse(), place.path());
    let as_nobody = |program: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
        command.env("XDG_RUNTIME_DIR", place.path());
        command
    };
    let mut child = as_nobody(&program)
        .arg(place.path().join("rounds"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let list = |mut command: Command| -> Value {
        let output = command.args(["list", "--json"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let pid = child.id();
    let has_it = |list: &Value| list["programs"].as_array().unwrap().iter().any(|program| program["pid"] == pid);
    let (of_root, of_nobody) = (list(Command::new(dormouse())), list(as_nobody(&command)));
    let _ = child.kill();
    child.wait().unwrap();
    assert!(!has_it(&of_root) && of_root["programs_of_other_users"].as_u64() >= Some(1), "{of_root}");
    assert!(
        has_it(&of_nobody) && of_nobody["processes_of_other_users_not_inspected"].as_u64() >= Some(1),
        "{of_nobody}"
    );
}

#[test]
fn a_preloaded_program_with_tracepoints_of_its_own_is_one_process() {
    for rounds in ["1", "200"] {
        let record = Record::new().option("--libc").env("DORMOUSE_LIBC_LIBRARY", libc_library());
        let recording = record.run(&[CLASSES, rounds]).succeeded();
        assert_eq!(recording.summary().processes, 1, "{}", recording.stderr);
        let stats = Command::new(dormouse()).arg("stats").arg(&recording.dir).arg("--json").output().unwrap();
        let stats: Value = serde_json::from_slice(&stats.stdout).unwrap();
        assert_eq!(stats["processes"].as_array().unwrap().len(), 1, "{stats}");
        let trace = Trace::read(&recording.dir);
        assert!(trace.stats().classes.iter().any(|class| class.name == "a:a"), "both tracers have recorded");
    }
    let record = Record::new().option("--libc").env("DORMOUSE_LIBC_LIBRARY", libc_library());
    let recording = record.run(&["sh", "-c", &format!("{CLASSES} 1; {CLASSES} 1; true")]).succeeded();
    assert_eq!(recording.summary().processes, 3, "{}", recording.stderr);
}

/// Two recordings that begin in the same second get a directory each.
#[test]
fn recordings_without_a_name_do_not_collide() {
    let place = tempfile::tempdir().unwrap();
    let start = |number: usize| {
        let mut command = Command::new(dormouse());
        command.args(["record", "--", "sh", "-c", &format!("echo {number}")]);
        command.current_dir(place.path()).env("XDG_RUNTIME_DIR", place.path().join("run"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<Child> = (0..6).map(start).collect();
    for (number, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{number}\n"));
    }
    let names = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.starts_with("dormouse-")).count(), 6);
}

/// A pattern is compared with the events in the command's file and in the preloaded library before the command runs.
#[test]
fn a_pattern_that_matches_nothing_is_told_before_the_command_runs() {
    let place = tempfile::tempdir().unwrap();
    let mut command = Command::new(dormouse());
    command.args([
        "record",
        "-o",
        "trace",
        "--libc",
        "-e",
        "a:a",
        "-e",
        "a:zz",
        "-e",
        "libc:malloc",
        "-e",
        "libc:opne",
        "--",
    ]);
    command.args([CLASSES, "1"]).env("DORMOUSE_LIBC_LIBRARY", libc_library());
    // What `dormouse` says and what the command writes are in one file, in their order.
    let said = std::fs::File::create(place.path().join("said")).unwrap();
    let script = format!("echo begun >&2; exec {CLASSES} 1");
    let output = command.current_dir(place.path()).stderr(said.try_clone().unwrap()).status().unwrap();
    assert!(output.success());
    let text = || std::fs::read_to_string(place.path().join("said")).unwrap();
    assert!(text().contains(&format!("no event in {CLASSES} matches a:zz; a:p is the nearest of ")), "{}", text());
    assert!(text().contains("no event of --libc matches libc:opne; libc:open"), "{}", text());
    assert_eq!(
        text().matches("matches a:a;").count() + text().matches("matches libc:malloc;").count(),
        0,
        "{}",
        text()
    );
    // A shell has no events of its own: nothing is told before its command, which has the event.
    let mut command = Command::new(dormouse());
    command.args(["record", "-o", "other", "-e", "a:b", "--", "sh", "-c", &script]).stderr(said);
    assert!(command.current_dir(place.path()).status().unwrap().success());
    let text = text();
    let (_, of_shell) = text.rsplit_once("begun").unwrap();
    assert!(!of_shell.contains("matches a:b") && of_shell.contains("1 events"), "{text}");
}

/// Starts a recording of a command that has written events, and goes on until it is killed.
fn start_lasting(record: Record) -> Running {
    let mut running = record.start(&["sh", "-c", &format!("{CLASSES} 1 && echo ready && exec sleep infinity")]);
    running.wait_for("ready");
    running
}

/// In discard mode there is nothing to take a snapshot of, and the trace itself shows what is on disk.
#[test]
fn a_snapshot_of_a_session_in_discard_mode_says_where_its_events_are() {
    let running = start_lasting(Record::new());
    let refused = running.dormouse(&["snapshot"]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{told}");
    let (_, rest) = told.split_once("`dormouse view ").unwrap();
    let dir = Path::new(rest.split_once('`').unwrap().0);
    assert!(dir.is_absolute() && dir == running.dir(), "{told}");
    // The command that it names works, from anywhere.
    let viewed = Command::new(dormouse()).arg("view").arg(dir).current_dir("/").output().unwrap();
    assert!(viewed.status.code().is_some_and(|code| code < 2), "{viewed:?}");
    running.kill(Signal::TERM);
    running.wait();
}

/// A program that a recording has started does not listen, and its session is found nevertheless.
#[test]
fn the_session_of_a_program_that_does_not_listen_is_found() {
    let record = Record::new().option("--libc").env("DORMOUSE_LIBC_LIBRARY", libc_library());
    let mut running = record.start(&["sh", "-c", "echo $$; echo ready; sleep infinity; true"]);
    running.wait_for("ready");
    let pid = running.stdout().lines().next().unwrap().to_string();
    let status = running.dormouse(&["status", &pid, "--json"]);
    assert!(status.status.success(), "{status:?}");
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["dir"].as_str().map(Path::new), Some(running.dir()));
    assert!(!running.dormouse(&["list", &pid]).status.success(), "it does not listen");
    running.kill(Signal::TERM);
    running.wait();
}

/// Snapshots of several sessions go into a directory each; `-o` would be one for all.
#[test]
fn snapshots_of_all_sessions_have_a_directory_each() {
    let place = tempfile::tempdir().unwrap();
    let dormouse_there = |arguments: &[&str]| {
        let mut command = Command::new(dormouse());
        command.args(arguments).current_dir(place.path()).env("XDG_RUNTIME_DIR", place.path());
        command
    };
    let start = |number: usize| {
        let script = format!("{CLASSES} {number}; touch ready-{number}; exec sleep infinity");
        let dir = format!("trace-{number}");
        let mut command = dormouse_there(&["record", "--mode", "overwrite", "-o", &dir, "--", "sh", "-c", &script]);
        command.stderr(Stdio::null()).spawn().unwrap()
    };
    let mut recorders = [1, 2].map(start);
    wait_until("both have events", || {
        [1, 2].iter().all(|number| place.path().join(format!("ready-{number}")).exists())
    });
    let run = |arguments: &[&str]| dormouse_there(arguments).output().unwrap();
    let taken: Value = serde_json::from_slice(&run(&["snapshot", "--all", "--json"]).stdout).unwrap();
    let (one, both) = (run(&["snapshot", "trace-2", "--json"]), run(&["snapshot", "trace-1,trace-2", "-o", "both"]));
    let statuses: Value = serde_json::from_slice(&run(&["status", "--all", "--json"]).stdout).unwrap();
    for recorder in &mut recorders {
        kill_process(Pid::from_child(recorder), Signal::TERM).unwrap();
        recorder.wait().unwrap();
    }
    // Each round of the program writes each of its events once.
    let taken = taken.as_array().unwrap();
    let counts: BTreeSet<u64> = taken.iter().map(|snapshot| snapshot["events"].as_u64().unwrap()).collect();
    assert_eq!(counts, [1, 2].map(|rounds| rounds * 17 * 16).into_iter().collect());
    let dirs: BTreeSet<&str> = taken.iter().map(|snapshot| snapshot["dir"].as_str().unwrap()).collect();
    assert!(dirs.len() == 2 && dirs.iter().all(|dir| Path::new(dir).is_dir()), "{dirs:?}");
    assert_eq!(serde_json::from_slice::<Value>(&one.stdout).unwrap()["events"], 2 * 17 * 16);
    let told = String::from_utf8(both.stderr).unwrap();
    assert!(both.status.code() == Some(2) && told.contains("there are 2 sessions"), "{told}");
    assert_eq!(statuses.as_array().unwrap().len(), 2);
}

/// If the recorder is dead and its owner lives, salvage names the owner; if both are dead, it says so.
#[test]
fn salvage_says_who_owned_the_session() {
    let mut running = start_lasting(Record::new());
    let (recorder, owner) = (running.pid(), running.owner().unwrap());
    let output = running.place().join("salvaged");
    let salvage = |running: &Running| {
        let arguments = ["salvage".as_ref(), running.dir().as_os_str(), "-o".as_ref(), output.as_os_str()];
        let output = running.dormouse(&arguments);
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, err)
    };
    let (code, _, told) = salvage(&running);
    let started =
        format!("process {owner} owns it, which `dormouse record`, process {recorder}, has started; let it finish");
    assert!(code == Some(2) && told.contains(&started) && !told.contains("dormouse snapshot"), "{told}");
    running.kill_supervisor();
    let (code, _, told) = salvage(&running);
    let orphan = format!("process {owner} owns it, although `dormouse record`, process {recorder}, is dead");
    assert!(code == Some(2) && told.contains(&orphan) && told.contains(&format!("`kill {owner}`")), "{told}");
    kill_process(Pid::from_raw(owner.cast_signed()).unwrap(), Signal::KILL).unwrap();
    running.wait_until("the owner's end", || has_ended(owner));
    let (code, out, told) = salvage(&running);
    assert!(code.is_some_and(|code| code < 2), "{told}");
    assert!(out.contains(&format!("`dormouse record`, process {recorder}, and its owner; both are dead")), "{out}");
}

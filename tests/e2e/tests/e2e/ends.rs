//! How recordings end, whatever programs, disks and signals do; and that only proven losses are reported.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, Recording, Running, dormouse};
use dormouse_testing::{Lack, skip};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};

use crate::{AMPLE, TRACED};

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
}

/// Runs `dormouse`; if it waits forever, it is ended with an exit code of its own.
fn dormouse_in_time(arguments: &[&Path]) -> Output {
    Command::new("timeout").args(["-k", "1", "60"]).arg(dormouse()).args(arguments).output().expect("timeout runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a shell with `script`, in which `$0` is `dormouse`, `$1` a new directory and `$2` the traced program.
fn shell(script: &str) -> (tempfile::TempDir, Output) {
    let place = tempfile::tempdir().expect("a directory");
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(dormouse()).arg(place.path().join("trace")).arg(TRACED);
    let output = command.env("XDG_RUNTIME_DIR", place.path()).output().expect("a shell");
    (place, output)
}

/// Returns a stopped command that has written 100 events and waits.
fn stopped(record: Record) -> Running {
    let gate = record.place().join("gate");
    fifo(&gate);
    let script = format!("echo pid $$; exec {TRACED} hold {} 100", gate.display());
    let mut running = record.start(&["sh", "-c", &script]);
    running.wait_for("ready");
    let pid = Pid::from_raw(running.numbers("pid")[0] as i32).expect("a process");
    kill_process(pid, Signal::STOP).expect("it is there");
    running.wait_until("stopping a process", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        stat.contains(") T ")
    });
    running
}

#[test]
fn frozen_programs_are_counted_and_left_at_the_end() {
    let record = Record::new();
    let place = record.place().display().to_string();
    let script = format!(
        "for n in 1 2 3; do mkfifo {place}/gate$n; {TRACED} hold {place}/gate$n 100 > {place}/out$n & p=\"$p $!\"; done; \
         for n in 1 2 3; do while ! grep -q ready {place}/out$n; do sleep 0.01; done; done; kill -STOP $p; \
         for q in $p; do while grep -hL '^State:.T' /proc/$q/task/*/status | grep -q .; do sleep 0.01; done; done; echo stopped"
    );
    let recording = record.run(&["sh", "-c", &script]).succeeded();
    assert_eq!(recording.stdout, "stopped\n");
    let told =
        "300 events, unknown how many lost because programs have not confirmed that they left (3), 3 processes, ";
    assert!(recording.stderr.contains(told), "{}", recording.stderr);
    // Everything that they had committed is there.
    let (trace, events, lost) = check(&recording);
    assert_eq!((events, lost), (300, 0));
    assert!(!trace.stats().loss_possible.is_empty());
}

#[test]
fn a_command_that_cannot_take_a_signal_does_not_keep_its_recording_open() {
    let running = stopped(Record::new());
    running.kill(Signal::TERM);
    let recording = running.wait();
    assert_eq!(recording.code(), 128 + Signal::TERM.as_raw());
    let told = format!("has not taken signal {}, because it is frozen, stopped or traced", Signal::TERM.as_raw());
    assert!(recording.stderr.contains(&told), "{}", recording.stderr);
    assert_eq!(check(&recording).1, 100);
}

/// timeout(1) sends a signal to its child and to the group, and a wrapper passes on a signal that a terminal has sent
/// to all.
#[test]
fn two_signals_at_once_are_one_request() {
    let record = Record::new();
    let gate = record.place().join("gate");
    fifo(&gate);
    let mut running = record.start(&[TRACED, "hold", &gate.display().to_string(), "100"]);
    running.wait_for("ready");
    // All of them are pending when it continues.
    running.kill(Signal::STOP);
    for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
        running.kill(signal);
    }
    running.kill(Signal::CONT);
    let recording = running.wait();
    assert!(recording.stderr.contains("100 events, 0 lost, 1 process, "), "{}", recording.stderr);
    assert!(!recording.stderr.contains("at once"), "{}", recording.stderr);
    assert_eq!(check(&recording).1, 100);
}

#[test]
fn a_second_request_ends_at_once_and_salvage_has_what_was_committed() {
    let record = Record::new();
    let (buffers, gate) = (record.place().join("buffers"), record.place().join("gate"));
    fifo(&gate);
    // The program ignores what the shell ignores.
    let script = format!("trap '' TERM INT; exec {TRACED} hold {} 100", gate.display());
    let mut running = record.option("--buffers").option(&buffers).start(&["sh", "-c", &script]);
    running.wait_for("ready");
    assert_eq!(std::fs::metadata(&buffers).expect("buffers").mode() & 0o777, 0o600);
    // Models a user who sends signals until it has ended: those of the first moment are one request, a later one is the
    // second.
    let pid = Pid::from_raw(running.pid() as i32).expect("a process");
    running.wait_until("ending at once", || {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
        let has_ended = status.rsplit_once(')').is_none_or(|(_, fields)| fields.starts_with(" Z"));
        has_ended || kill_process(pid, Signal::TERM).is_err()
    });
    let recording = running.wait();
    let code = recording.code();
    assert!(recording.stderr.contains("ended at once by signal "), "{}", recording.stderr);
    assert_eq!(code, 128 + Signal::TERM.as_raw());
    let command = format!("`dormouse salvage {}`", recording.dir.display());
    assert!(recording.stderr.contains(&command), "{}", recording.stderr);
    let salvaged = recording.place().join("salvaged");
    let output = dormouse_in_time(&["salvage".as_ref(), &recording.dir, "-o".as_ref(), &salvaged]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).starts_with("100 events, 0 lost: "), "{output:?}");
    assert_private(&salvaged);
}

#[test]
fn buffers_that_are_truncated_do_not_end_the_recorder() {
    let record = Record::new();
    let (buffers, gate) = (record.place().join("buffers"), record.place().join("gate"));
    fifo(&gate);
    let gate_path = gate.display().to_string();
    let mut running = record.option("--buffers").option(&buffers).start(&[TRACED, "hold", &gate_path, "100"]);
    running.wait_for("ready");
    File::options().write(true).open(&buffers).expect("buffers").set_len(0).expect("a shorter file");
    running.wait_until("opening the gate", || File::options().write(true).open(&gate).is_ok());
    let recording = running.wait();
    // The program ends in its own way.
    assert!([0, 128 + libc::SIGBUS].contains(&recording.code()), "{}: {}", recording.code(), recording.stderr);
    let told = "units of 4 KiB of the buffers are gone";
    assert!(recording.stderr.contains(" lost because ") && recording.stderr.contains(told), "{}", recording.stderr);
    assert!(!recording.trace().stats().loss_possible.is_empty());
}

#[test]
fn a_limit_of_file_sizes_is_reported_and_its_losses_counted() {
    // 10 MB; the session's memory is smaller.
    let script = "ulimit -f 20000; \"$0\" record --budget 512K --budget-max 512K -o \"$1\" -- \"$2\" numbers 3 1600000; \
                  code=$?; grep '^Max file size' /proc/self/limits; exit $code";
    let (place, output) = shell(script);
    assert!(output.status.success(), "{output:?}");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("raise the limit of file sizes (ulimit -f)"), "{stderr}");
    let stats = dormouse_e2e::trace::Trace::read(&place.path().join("trace")).stats();
    assert_eq!((stats.events + stats.events_lost, stats.loss_possible.len()), (4_800_000, 0), "{stderr}");
    // Memory that is larger than the limit of file sizes.
    let (_, output) = shell("ulimit -f 2000; exec \"$0\" record -o \"$1\" -- \"$2\" numbers 1 10");
    let stderr = text(&output.stderr);
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
    assert!(stderr.contains("raise the limit of file sizes (ulimit -f)"), "{stderr}");
}

#[test]
fn the_command_inherits_signals_and_limits_unchanged() {
    let bit = |signal: i32| 1u64 << (signal - 1);
    let changed = bit(libc::SIGPIPE) | bit(libc::SIGXFSZ) | bit(libc::SIGBUS);
    for (trap, wanted) in [("", 0), ("trap '' PIPE XFSZ BUS;", changed)] {
        let script = format!(
            "{trap} ulimit -c 7; ulimit -S -n 99; exec \"$0\" record --buffers \"$1.buffers\" -o \"$1\" -- \
             sh -c 'grep SigIgn /proc/self/status; ulimit -c; ulimit -n'"
        );
        let (_place, output) = shell(&script);
        let stdout = text(&output.stdout);
        let words: Vec<&str> = stdout.split_whitespace().collect();
        let ["SigIgn:", ignored, "7", "99"] = words[..] else { panic!("{output:?}") };
        let ignored = u64::from_str_radix(ignored, 16).expect("a mask");
        assert_eq!(ignored & changed, wanted, "{trap}: {output:?}");
    }
}

/// Asserts that a trace and everything in it belong to their user alone.
fn assert_private(dir: &Path) {
    let mode = |path: &Path| std::fs::symlink_metadata(path).expect("metadata").mode() & 0o777;
    assert_eq!(mode(dir), 0o700, "{}", dir.display());
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[test]
fn traces_are_private_whatever_the_umask() {
    for umask in ["000", "022", "277"] {
        let script = format!(
            "umask {umask}; exec \"$0\" record --mode overwrite --snapshot-on exit -o \"$1\" -- \"$2\" numbers 1 100"
        );
        let (place, output) = shell(&script);
        assert!(output.status.success(), "{output:?}");
        assert_private(&place.path().join("trace"));
        assert_private(&place.path().join("trace-snapshot-1"));
    }
}

fn bytes_of(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").metadata().expect("metadata").len()).sum()
}

#[test]
fn disk_max_is_respected_and_losses_are_counted() {
    let record = |code_on_loss: bool| {
        let record = Record::new().budget(AMPLE).option("--disk-max").option("1M");
        let summary = record.place().join("summary.json");
        let record = record.option("--summary").option(&summary);
        let record = if code_on_loss { record.option("--fail-on-loss") } else { record };
        let recording = record.run(&[TRACED, "numbers", "3", "30000"]);
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(summary).expect("a file")).expect("JSON");
        (recording, json)
    };
    for code in [0, 3] {
        let (recording, json) = record(code == 3);
        assert_eq!(recording.code(), code, "{}", recording.stderr);
        let (_, events, lost) = check(&recording);
        assert!(events > 0 && lost > 0 && events + lost == 90_000, "{events} + {lost}");
        assert!(recording.stderr.contains("the trace has reached --disk-max"), "{}", recording.stderr);
        assert!(bytes_of(&recording.dir) <= 1 << 20);
        let told = ["events", "lost", "exit_code"].map(|name| json[name].as_u64().expect("a number"));
        assert_eq!((told, &json["is_lost_exact"]), ([events, lost, code as u64], &true.into()));
        assert!(json["losses"]["disk_max"].as_u64().is_some_and(|count| count > 0 && count <= lost), "{json}");
    }
    // Snapshots count too: together with the trace they do not exceed the maximum.
    let record = Record::new().mode("overwrite").budget("1M").option("--disk-max").option("2M");
    let record = record.option("--snapshot-on").option("exit");
    let script = format!("for n in 1 2 3 4 5 6; do {TRACED} numbers 1 30000; done");
    let recording = record.run(&["sh", "-c", &script]).succeeded();
    let snapshots = |number: u32| recording.place().join(format!("trace-snapshot-{number}"));
    let all: u64 = (1..=6).map(|number| bytes_of(&snapshots(number))).sum();
    assert!(snapshots(1).join("metadata").exists() && all + bytes_of(&recording.dir) <= 2 << 20, "{all}");
}

#[test]
fn disk_max_user_is_respected_and_losses_are_counted() {
    const MAX: u64 = 1 << 20;
    const PACKET: u64 = 64 << 10;
    const EVENTS: u64 = 60_000;
    let run = tempfile::tempdir().expect("a directory");
    let record = || Record::new().budget(AMPLE).env("XDG_RUNTIME_DIR", run.path());
    let open = |running: &mut Running, gate: &str| {
        let gate = running.place().join(gate);
        running.wait_until("opening a gate", || File::options().write(true).open(&gate).is_ok());
    };
    let status = |running: &Running| -> serde_json::Value {
        let socket = run.path().join(format!("dormouse/session-{}-0.sock", running.pid()));
        let mut command = Command::new(dormouse());
        let output = command.arg("status").arg(socket).arg("--json").output().expect("dormouse runs");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    };
    // A session that has begun, and writes later.
    let later = record().option("--disk-max-user").option("1M");
    let place = later.place().display().to_string();
    ["begin", "end"].iter().for_each(|gate| fifo(&later.place().join(gate)));
    let script =
        format!("echo here; read x <{place}/begin; {TRACED} numbers 1 {EVENTS}; echo wrote; read x <{place}/end");
    let mut later = later.start(&["sh", "-c", &script]);
    later.wait_for("here");
    // A session that writes as much as there is room for.
    let first = record().env("DORMOUSE_DISK_MAX_USER", "1M");
    let gate = first.place().join("gate");
    fifo(&gate);
    let mut first = first.start(&[TRACED, "hold", &gate.display().to_string(), &EVENTS.to_string()]);
    first.wait_for("ready");
    for restarts in [0, 1] {
        // The next owner of a session counts what the previous one has written.
        assert!(restarts == 0 || first.kill_owner_alone(Signal::KILL));
        let mut told = status(&first);
        let bytes = |told: &serde_json::Value| told["disk_bytes_user"].as_u64().unwrap_or(0);
        later.wait_until("filling the disk", || {
            told = status(&first);
            told["owner_restarts"] == restarts && bytes(&told) > MAX - PACKET
        });
        assert!(bytes(&told) <= MAX + 2 * PACKET && told["disk_bytes_user_max"] == MAX, "{told}");
    }
    // A session that allows less than is in use gets nothing, and its user is told.
    let refused = record().env("DORMOUSE_DISK_MAX_USER", "256K").run(&[TRACED, "numbers", "1", "10"]);
    assert_eq!(refused.code(), 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("as --disk-max-user allows (262144 bytes)"), "{}", refused.stderr);
    let wrong = record().env("DORMOUSE_DISK_MAX_USER", "much").run(&[TRACED, "numbers", "1", "10"]);
    assert!(
        wrong.code() != 0 && wrong.stderr.contains("DORMOUSE_DISK_MAX_USER: `much` is not a size"),
        "{}",
        wrong.stderr
    );
    open(&mut later, "begin");
    later.wait_for("wrote");
    open(&mut later, "end");
    let later = later.wait();
    open(&mut first, "gate");
    let first = first.wait();
    for recording in [&later, &first] {
        let (_, events, lost) = check(recording);
        assert!(lost > 0 && events + lost == EVENTS, "{events} + {lost}: {}", recording.stderr);
        assert!(recording.stderr.contains("or all sessions --disk-max-user"), "{}", recording.stderr);
    }
    let all = bytes_of(&later.dir) + bytes_of(&first.dir);
    assert!(all > MAX / 2 && all <= MAX + 2 * PACKET, "{all}");
    // The bytes of sessions that have ended do not count.
    let next = record().option("--disk-max-user").option("1M").run(&[TRACED, "numbers", "1", "20000"]).succeeded();
    let (_, events, lost) = check(&next);
    assert_eq!((events, lost), (20_000, 0));
}

#[test]
fn uncounted_losses_set_the_exit_code() {
    let code = |command: &[&str]| {
        let recording = Record::new().budget("4M").option("--fail-on-loss").run(command);
        (recording.code(), recording)
    };
    assert_eq!(code(&[TRACED, "numbers", "1", "100"]).0, 0);
    let (exit, recording) = code(&[TRACED, "lie", "20000"]);
    assert_eq!(exit, 3);
    let told = "20000 events, unknown how many lost because control words were written over (";
    assert!(recording.stderr.contains(told), "{}", recording.stderr);
    let output = dormouse_in_time(&["stats".as_ref(), &recording.dir]);
    let stdout = text(&output.stdout);
    assert!(stdout.contains("\nlost      unknown\n          because control words were written over ("), "{stdout}");
    let output = dormouse_in_time(&["view".as_ref(), &recording.dir]);
    assert!(text(&output.stderr).contains("unknown how many lost because control words"), "{output:?}");
    // The command's own exit code is not hidden.
    assert_eq!(code(&["sh", "-c", &format!("{TRACED} lie 20000; exit 9")]).0, 9);
}

/// Returns a trace whose owner was killed, with its session file.
fn killed() -> (Recording, PathBuf) {
    let record = Record::new();
    let (gate, buffers) = (record.place().join("gate"), record.place().join("buffers"));
    fifo(&gate);
    let gate = gate.display().to_string();
    let mut running = record.option("--buffers").option(&buffers).start(&[TRACED, "hold", &gate, "100"]);
    running.wait_for("ready");
    running.kill_owner();
    (running.wait(), buffers)
}

#[test]
fn readers_neither_wait_for_fifos_nor_follow_links() {
    let recording = Record::new().run(&[TRACED, "numbers", "1", "100"]).succeeded();
    let at = |name: &str| recording.dir.join(name);
    fifo(&at("cpu_98"));
    std::fs::write(recording.place().join("elsewhere"), "secret").expect("a file");
    symlink(recording.place().join("elsewhere"), at("cpu_99")).expect("a link");
    for command in ["stats", "view"] {
        let output = dormouse_in_time(&[command.as_ref(), &recording.dir]);
        let told = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        for name in ["cpu_98", "cpu_99"] {
            assert!(told.contains(&format!("{name}: it is not a regular file, and is left out")), "{told}");
        }
    }
    // The directory that the user names may be a link.
    std::fs::remove_file(at("cpu_98")).expect("a FIFO");
    std::fs::remove_file(at("cpu_99")).expect("a link");
    let link = recording.place().join("link");
    symlink(&recording.dir, &link).expect("a link");
    assert!(dormouse_in_time(&["stats".as_ref(), &link]).status.success());

    let (metadata, aside) = (at("metadata"), recording.place().join("aside"));
    std::fs::rename(&metadata, &aside).expect("metadata");
    for make in [fifo, |path: &Path| symlink("/dev/zero", path).expect("a link")] {
        make(&metadata);
        for command in ["stats", "view", "salvage"] {
            let output = dormouse_in_time(&[command.as_ref(), &recording.dir]);
            let stderr = text(&output.stderr);
            assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{command}: {stderr}");
            assert!(stderr.contains("metadata: it is not a regular file"), "{command}: {stderr}");
        }
        std::fs::remove_file(&metadata).expect("what was made");
    }
}

#[test]
fn salvage_neither_waits_for_fifos_nor_follows_links() {
    let (recording, _) = killed();
    let salvage = |output: &str| {
        let output = recording.place().join(output);
        dormouse_in_time(&["salvage".as_ref(), &recording.dir, "-o".as_ref(), &output])
    };
    let (state, aside) = (recording.dir.join("state"), recording.place().join("aside"));
    std::fs::rename(&state, &aside).expect("a state stream");
    for (output, make) in
        [("fifo", fifo as fn(&Path)), ("link", |path: &Path| symlink("/dev/zero", path).expect("a link"))]
    {
        make(&state);
        let told = salvage(output);
        assert_eq!(told.status.code(), Some(1), "{told:?}");
        assert!(text(&told.stdout).contains("missing: state: it is not a regular file"), "{told:?}");
        assert!(text(&told.stdout).starts_with("100 events, unknown how many lost because "), "{told:?}");
        std::fs::remove_file(&state).expect("what was made");
    }
    std::fs::rename(&aside, &state).expect("a state stream");
    let session = recording.dir.join(".session");
    std::fs::rename(&session, &aside).expect("a session file");
    fifo(&session);
    assert_eq!(salvage("no-session").status.code(), Some(2));
}

#[test]
fn root_cannot_be_made_to_salvage_a_third_users_files() {
    if !rustix::process::geteuid().is_root() {
        return skip(Lack::machine("files cannot be given to another user", "run the tests as root"));
    }
    const OTHER: u32 = 65_534;
    let (recording, buffers) = killed();
    for entry in std::fs::read_dir(&recording.dir).expect("a directory") {
        chown(entry.expect("an entry").path(), Some(OTHER), None).expect("another owner");
    }
    chown(&recording.dir, Some(OTHER), None).expect("another owner");
    let salvage = |output: &str, option: &str| {
        let output = recording.place().join(output);
        dormouse_in_time(&["salvage".as_ref(), &recording.dir, option.as_ref(), "-o".as_ref(), &output])
    };
    // The buffers belong to root, and the directory that names them does not.
    let output = salvage("refused", "--json");
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(told.contains("is another user's than the trace") && told.contains("\"events\": 0,"), "{told}");
    assert_private(&recording.place().join("refused"));
    // A directory that the other user could change is not acceptable as output.
    let theirs = recording.place().join("theirs");
    std::fs::create_dir(&theirs).expect("a directory");
    chown(&theirs, Some(OTHER), None).expect("another owner");
    let output = salvage("theirs", "--json");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("is another user's, who could change what is written there"), "{output:?}");
    // The other user's own buffers may be salvaged, and removed.
    chown(&buffers, Some(OTHER), None).expect("another owner");
    let output = salvage("theirs-too", "--remove-buffers");
    assert!(output.status.success() && text(&output.stdout).starts_with("100 events, 0 lost: "), "{output:?}");
    assert!(!buffers.exists());
}

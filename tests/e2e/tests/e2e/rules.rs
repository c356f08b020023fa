//! Rules: the trace has exactly the events that they select, by the program's own ledger.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use dormouse_abi::rule::value::Value;
use dormouse_abi::rule::{hash, is_in_sample};
use dormouse_ctf::StateRecord;
use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, Recording, Running, dormouse};
use dormouse_e2e::trace::Trace;
use rustix::fs::{FileType, Mode};
use rustix::process::{Pid, Signal, kill_process};

use crate::salvage::run_within;
use crate::{AMPLE, TRACED, VALUES};

/// A request in the program's ledger.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) round: u32,
    pub(crate) bytes: u32,
    pub(crate) path: &'a str,
}

/// Returns the requests that the program has written down.
pub(crate) fn ledger(stdout: &str) -> Vec<Request<'_>> {
    fn request(line: &str) -> Option<Request<'_>> {
        let words: Vec<&str> = line.split(' ').collect();
        let ["request", round, bytes, path] = words[..] else { return None };
        Some(Request { round: round.parse().unwrap(), bytes: bytes.parse().unwrap(), path })
    }
    stdout.lines().filter_map(request).collect()
}

/// Checks that the trace has the requests of the ledger for which `is_wanted` is true, and no others.
pub(crate) fn check_requests(trace: &Trace, stdout: &str, is_wanted: impl Fn(&Request<'_>) -> bool) {
    let all = ledger(stdout);
    let wanted = all.iter().filter(|&request| is_wanted(request));
    let told =
        |Request { round, bytes, path }: &Request<'_>| format!("round=u32 {round} bytes=u32 {bytes} path=str {path:?}");
    let wanted: Vec<String> = wanted.map(told).collect();
    assert!(!wanted.is_empty() && wanted.len() < all.len(), "{} of {}", wanted.len(), all.len());
    let found = trace.values("e2e:request");
    let different = wanted.iter().zip(&found).find(|(wanted, found)| wanted != found);
    assert!(found == wanted, "{} instead of {}, first {different:?}", found.len(), wanted.len());
}

/// Returns the rules that the trace says were in force, in order of time.
fn stated(trace: &Trace) -> Vec<String> {
    let rules = trace.events().filter_map(|event| match event.state_record() {
        Some(StateRecord::Rules { rules }) => Some(rules.to_string()),
        _ => None,
    });
    rules.collect()
}

/// Returns the trace's numbers of events that rules have left out: class, rejected, sampled out.
pub(crate) fn unrecorded(trace: &Trace) -> Vec<(String, u64, u64)> {
    let stated = trace.events().filter_map(|event| match event.state_record() {
        Some(StateRecord::Unrecorded { class, rejected, sampled_out }) => Some((class.into(), rejected, sampled_out)),
        _ => None,
    });
    let stated: Vec<(String, u64, u64)> = stated.collect();
    let stats = trace.stats().unrecorded.into_iter().map(|class| (class.name, class.rejected, class.sampled_out));
    assert_eq!(stats.collect::<Vec<_>>(), stated);
    stated
}

/// Records one round of requests by these rules.
pub(crate) fn recorded(record: Record, rules: &[&str]) -> Recording {
    let line = record.place().join("line");
    std::fs::write(&line, "\n").unwrap();
    let record = rules.iter().fold(record.budget(AMPLE), |record, rule| record.option("-e").option(rule));
    record.run(&[TRACED.as_ref(), "requests".as_ref(), line.as_os_str()]).succeeded()
}

#[test]
fn a_condition_selects_events() {
    let rule = r#"e2e:request where bytes >= 9000 and path ~ "/tmp/*""#;
    for (rseq, context) in [(true, "ids"), (false, "ids"), (true, "none"), (false, "none")] {
        let recording = recorded(Record::new().rseq(rseq).context(context), &[rule]);
        let (trace, _, lost) = check(&recording);
        assert_eq!((lost, stated(&trace)), (0, vec![rule.to_string()]), "an event that is left out is not lost");
        check_requests(&trace, &recording.stdout, |request| {
            request.bytes >= 9_000 && request.path.starts_with("/tmp/")
        });
        assert!(trace.values("e2e:ping").is_empty());
        let (emitted, recorded) = (ledger(&recording.stdout).len(), trace.values("e2e:request").len());
        // Classes that no rule matches are not armed, so their events are not counted.
        assert_eq!(unrecorded(&trace), [("e2e:request".to_string(), (emitted - recorded) as u64, 0)]);
    }
}

#[test]
fn one_of_several_conditions_is_enough() {
    let rules = ["e2e:request where bytes < 10", "e2e:re* where not (bytes < 9990) or path == \"/var/4\"", "e2e:ping"];
    let recording = recorded(Record::new(), &rules);
    let (trace, _, _) = check(&recording);
    check_requests(&trace, &recording.stdout, |request| request.bytes < 10 || request.bytes >= 9_990);
    assert_eq!(trace.values("e2e:ping").len(), 100);
}

/// Classes without a level are in no rule with a bound on levels.
#[test]
fn a_bound_on_levels_selects_classes() {
    let (failed, told, field) = (("failed", "code=i32 -5"), ("told", ""), ("level", "level=u8 3"));
    for (rule, wanted) in [
        ("values:* level<=INFO", &[failed, told][..]),
        ("values:* level==err", &[failed]),
        // A field of this name goes before the level.
        ("values:* level<=14 where level == 3", &[failed, field]),
    ] {
        let recording = Record::new().option("-e").option(rule).run(&[VALUES]).succeeded();
        let (trace, events, _) = check(&recording);
        assert_eq!(events, wanted.len() as u64, "{rule}");
        for (name, values) in wanted {
            assert_eq!(trace.values(&format!("values:{name}")), [*values], "{rule}");
        }
    }
    let recording = Record::new().option("-e").option("!values:* level==DEBUG").run(&[VALUES]).succeeded();
    let (trace, _, _) = check(&recording);
    assert_eq!(trace.values("values:level"), [""; 0]);
    assert_eq!((trace.values("values:failed").len(), trace.values("values:nothing").len()), (1, 1));
    let recording = Record::new().option("-e").option("values:* level<=ALERT").run(&[VALUES]).succeeded();
    let told = "no event that values:* matches has such a level; there are ERR, INFO, DEBUG";
    assert!(recording.stderr.contains(told), "{}", recording.stderr);
}

#[test]
fn an_exclusion_goes_before_all_other_rules() {
    for rules in [&["!e2e:ping"][..], &["e2e:ping", "e2e:request", "!e2e:p*"]] {
        let recording = recorded(Record::new(), rules);
        let (trace, events, _) = check(&recording);
        assert_eq!((trace.values("e2e:request").len(), events), (10_000, 10_000), "{rules:?}");
    }
    let recording = recorded(Record::new(), &["e2e:ping", "!nobody:*"]);
    assert!(recording.stderr.contains("matches nobody:*; "), "{}", recording.stderr);
}

/// A library may have other events, so the recording begins.
#[test]
fn a_field_that_the_commands_file_does_not_have_is_told() {
    let recording = recorded(Record::new(), &["e2e:request where byts > 5", "e2e:ping"]);
    let text = &recording.stderr;
    assert!(text.contains("-e: line 1, column ") && text.contains("no event has byts; bytes is the nearest"), "{text}");
    assert!(text.contains("byts > 5\n") && text.contains(&format!("in {TRACED}; ")), "{text}");
    let (trace, _, _) = check(&recording);
    assert_eq!((trace.values("e2e:request").len(), trace.values("e2e:ping").len()), (0, 100));
}

/// A program that emits a round of requests when it is told to.
pub(crate) struct Rounds {
    pub(crate) running: Running,
    fifo: File,
    count: u32,
}

impl Rounds {
    pub(crate) fn start(record: Record, rule: &str) -> Rounds {
        let path = record.place().join("lines");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let record = record.budget(AMPLE).option("-e").option(rule);
        let mut running = record.start(&[TRACED.as_ref(), "requests".as_ref(), path.as_os_str()]);
        running.wait_for("ready");
        let fifo = File::options().write(true).open(&path).unwrap();
        Rounds { running, fifo, count: 0 }
    }

    pub(crate) fn emit(&mut self) {
        self.fifo.write_all(b"\n").unwrap();
        self.running.wait_for(&format!("done {}\n", self.count));
        self.count += 1;
    }

    /// Runs `dormouse rule` for the session.
    pub(crate) fn rule(&self, arguments: &[&str]) -> Output {
        let session = self.running.session();
        self.running.dormouse(&[&["rule", session.to_str().unwrap()][..], arguments].concat())
    }

    /// Sets rules, which must succeed, and returns what the command says.
    pub(crate) fn set(&self, rules: &[&str]) -> String {
        let output = self.rule(rules);
        assert!(output.status.success(), "{rules:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Lets the program end.
    pub(crate) fn end(self) -> Recording {
        let Rounds { running, fifo, .. } = self;
        drop(fifo);
        running.wait().succeeded()
    }
}

/// Returns the lines that a command prints about a live session.
fn printed(dir: &Path, command: &[&str], running: &Running) -> String {
    let mut said = Command::new(dormouse());
    said.args(command).arg(dir).env("XDG_RUNTIME_DIR", running.place().join("run"));
    String::from_utf8(said.output().unwrap().stdout).unwrap()
}

#[test]
fn the_rules_of_a_live_session_are_replaced() {
    let mut rounds = Rounds::start(Record::new().env("DORMOUSE_LISTEN", "thread"), "e2e:request where bytes < 10");
    rounds.emit();
    assert_eq!(rounds.set(&[]), "e2e:request where bytes < 10\n");
    assert_eq!(rounds.set(&["e2e:*", "!e2e:request"]), "1 program follows\n");
    rounds.emit();
    let last = r#"e2e:request where path ~ "/tmpfs/*" and bytes >= 9990"#;
    assert_eq!(rounds.set(&[last]), "1 program follows\n");
    // Refused, with the place, and without any change.
    for (wrong, part) in [
        ("e2e:request where byts > 5", "no event has byts; bytes is the nearest"),
        ("e2e:request where path > 5", "text"),
        ("e2e:request where", "\n"),
    ] {
        let output = rounds.rule(&[wrong]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{wrong}: {text}");
        assert!(text.contains("line 1, column ") && text.contains(part) && text.contains('^'), "{wrong}: {text}");
    }
    rounds.emit();
    let json: serde_json::Value = serde_json::from_str(&rounds.set(&["--json"])).unwrap();
    assert_eq!(json["rules"], serde_json::json!([last]));
    assert_eq!(json["programs"], 1);
    assert_eq!(json["programs_following"], 1);
    let dir = rounds.running.dir().to_path_buf();
    let status = printed(&dir, &["status"], &rounds.running);
    assert!(status.lines().any(|line| line.trim_start().starts_with("rule ") && line.ends_with(last)), "{status}");
    let recording = rounds.end();
    let (trace, _, lost) = check(&recording);
    check_requests(&trace, &recording.stdout, |request| match request.round {
        0 => request.bytes < 10,
        1 => false,
        _ => request.bytes >= 9_990 && request.path.starts_with("/tmpfs/"),
    });
    assert_eq!((lost, trace.values("e2e:ping").len()), (0, 100));
    assert_eq!(stated(&trace), ["e2e:request where bytes < 10", "e2e:*\n!e2e:request", last]);
}

/// The counts of events that rules reject are in the session's memory: a program that is killed has counted them.
#[test]
fn rejected_events_of_a_killed_program_are_counted() {
    for rseq in [true, false] {
        let record = Record::new().rseq(rseq).env("DORMOUSE_LISTEN", "thread");
        let mut rounds = Rounds::start(record, "e2e:request where bytes < 10");
        rounds.emit();
        rounds.emit();
        let (running, emitted) = (&rounds.running, 20_000);
        let pid = running.numbers("process ")[0];
        let (session, rejected) = (running.session(), emitted - 20);
        let json = |arguments: &[&str]| -> serde_json::Value {
            serde_json::from_slice(&running.dormouse(arguments).stdout).unwrap()
        };
        let status = json(&["status", "--json", session.to_str().unwrap()]);
        assert_eq!((&status["events_rejected"], &status["events_sampled_out"]), (&rejected.into(), &0.into()));
        let text = running.dormouse(&["status", session.to_str().unwrap()]).stdout;
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(&format!("  events not recorded        {rejected} rejected by rules\n")), "{text}");
        let list = running.dormouse(&["list", &pid.to_string()]).stdout;
        let list = String::from_utf8(list).unwrap();
        let line = list.lines().find(|line| line.starts_with("  armed") && line.contains("e2e:request ")).unwrap();
        assert!(line.ends_with(&format!(" }}; {rejected} rejected by rules")), "{line}");
        assert_eq!(list.matches("rejected").count(), 1, "{list}");
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        let recording = rounds.running.wait();
        let (trace, recorded, lost) = check(&recording);
        assert_eq!((ledger(&recording.stdout).len() as u64, recorded, lost), (emitted, 20, 0));
        assert_eq!(unrecorded(&trace), [("e2e:request".to_string(), rejected, 0)]);
        let told = format!("; {rejected} events rejected by rules");
        assert!(recording.stderr.contains(&told), "{}", recording.stderr);
        let mut stats = Command::new(dormouse());
        let stats = stats.arg("stats").arg(&recording.dir).output().unwrap();
        let table = String::from_utf8(stats.stdout).unwrap();
        let block = "not recorded, by the session's rules\nREJECTED  SAMPLED OUT  NOT KEPT  CLASS\n";
        assert!(stats.status.success() && table.contains(block), "{table}");
    }
}

/// If the session's owner is killed too, the counts are salvaged with the events: from a program that lives, or from a
/// file.
#[test]
fn counts_of_rejected_events_are_salvaged() {
    let place = tempfile::tempdir().unwrap();
    let buffers = place.path().join("buffers");
    for is_file in [false, true] {
        let record = Record::new().env("DORMOUSE_LISTEN", "thread");
        let record = if is_file { record.option("--buffers").option(&buffers) } else { record };
        let mut rounds = Rounds::start(record, "e2e:request where bytes < 10");
        rounds.emit();
        rounds.running.kill_owner();
        // The program goes on.
        rounds.emit();
        let pid = rounds.running.numbers("process ")[0] as u32;
        if is_file {
            rounds.running.kill_programs(&[pid]);
        }
        let (code, json, dir) = run_within(&[], &rounds.running, "salvaged", &[]);
        assert_eq!((code, &json["lost"]), (0, &0.into()), "{json}");
        let trace = Trace::read(&dir);
        assert_eq!(trace.values("e2e:request").len(), 20);
        assert_eq!(unrecorded(&trace), [("e2e:request".to_string(), 19_980, 0)]);
        rounds.running.kill_programs(&[pid]);
    }
}

/// Without rules that leave events out, nothing about them is in the trace, and the tables take no memory.
#[test]
fn a_session_that_records_all_events_counts_none_as_left_out() {
    for rules in [&["*"][..], &["e2e:ping", "e2e:request"]] {
        let recording = recorded(Record::new(), rules);
        let (trace, _, _) = check(&recording);
        assert_eq!(unrecorded(&trace), []);
        assert!(!recording.stderr.contains("rejected"), "{}", recording.stderr);
    }
}

/// A program that does not listen is told, and follows when it joins again.
#[test]
fn programs_that_do_not_listen_are_counted() {
    let mut rounds = Rounds::start(Record::new().env("DORMOUSE_LISTEN", "0"), "e2e:ping");
    rounds.emit();
    let said = rounds.set(&["e2e:*"]);
    let told = "0 programs follow; 1 does not listen and follows when it next loads a library, forks or joins\n";
    assert_eq!(said, told);
    let recording = rounds.end();
    let (trace, _, _) = check(&recording);
    assert_eq!(stated(&trace), ["e2e:ping", "e2e:*"]);
}

/// Returns the program's events, as `view` prints them without their times: of this recording, for which `--where` is
/// true.
fn viewed(recording: &Recording, condition: Option<&str>) -> Vec<(serde_json::Value, serde_json::Value)> {
    let mut view = Command::new(dormouse());
    view.arg("view").arg(&recording.dir).args(["--format", "json", "-e", "values:*"]);
    view.args(condition.iter().flat_map(|condition| ["--where", condition]));
    let output = view.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    // Without a single event of the program there is no class that the pattern matches.
    assert!(output.status.success() || condition.is_none() && text.contains("values:*"), "{condition:?}: {text}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let event = |line: &str| {
        let mut event: serde_json::Value = serde_json::from_str(line).unwrap();
        (event["event"].take(), event["fields"].take())
    };
    lines.lines().map(event).collect()
}

/// The program selects as the reader does, for values of every kind. Only a pattern with text on both sides of a `*` is
/// not tried on texts longer than its bound.
#[test]
fn rules_select_what_view_selects() {
    let all = Record::new().run(&[VALUES]).succeeded();
    for condition in [
        "a == 254",
        "a > 1",
        "a < 0 or b < 0",
        "d >= 18446744073709551614",
        "d == -9223372036854775807",
        "a == 1.5",
        "c != 5",
        "not (c == 5)",
        "d <= 1e-300",
        "e < 0",
        "b == 0",
        "yes",
        "not no",
        "yes == true",
        "letter == 223",
        "address == 0xdeadbeef0000",
        "empty == \"\"",
        "plain ~ \"pl*n\"",
        "words ~ \"*世界 ?\"",
        "nul == \"before\"",
        "borrowed < owned",
        "long ~ \"*9\" and before == 1 and after == 2",
        "after == 2",
        "bytes[2] == 255",
        "bytes[3] == 255",
        "not (bytes[3] == 255)",
        "_array_length == 5",
        "b[0] == 3 or e[1] == 7",
        "e[0] == 0.5",
        "boxed > 4 and letters[1] > 200",
        "id == 7 and sum == 8",
        "f31 == 31 and f4 ~ \"4\" and f29 ~ \"2?\"",
        "fields.f9 == \"9\"",
        "event ~ \"*:text\" or event == \"values:nothing\"",
        "a == 1 or b == 2 or c == 3",
        "a == b",
        "a < b",
        "level <= 3",
        "level == \"INFO\" or code < 0",
        "not level < 6",
        "level ~ \"DEBUG*\"",
    ] {
        let rule = format!("values:* where {condition}");
        let recording = Record::new().option("-e").option(&rule).run(&[VALUES]).succeeded();
        let (expected, found) = (viewed(&all, Some(condition)), viewed(&recording, None));
        assert_eq!(found, expected, "{condition}");
    }
}

/// Returns what `dormouse stats` prints as JSON. The options are a question.
fn json_stats(recording: &Recording, question: &[&str]) -> serde_json::Value {
    let output =
        Command::new(dormouse()).args(["stats", "--json"]).arg(&recording.dir).args(question).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "a sample is no error: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the requests as a class of `dormouse stats --json`.
fn request_stats(recording: &Recording) -> serde_json::Value {
    let stats = json_stats(recording, &[]);
    let mut classes = stats["classes"].as_array().unwrap().iter();
    classes.find(|class| class["name"] == "e2e:request").expect("some were recorded").clone()
}

/// Checks an estimate against the ledger. Programs draw random numbers whose seed a test does not know, so an estimate
/// can be far off by chance: by more than six standard errors once in 500 million times.
fn check_estimate(estimated: &serde_json::Value, truth: f64, error: f64) {
    let estimated = estimated.as_f64().expect("a number");
    assert!((estimated - truth).abs() <= 6.0 * error, "{estimated} instead of {truth} ± {error}");
}

#[test]
fn samples_by_chance_are_scaled_back() {
    for context in ["ids", "none"] {
        let recording = recorded(Record::new().context(context), &["e2e:request sample 1/10"]);
        let (trace, events, _) = check(&recording);
        let emitted = ledger(&recording.stdout).len() as u64;
        assert_eq!(unrecorded(&trace), [("e2e:request".to_string(), 0, emitted - events)]);
        let (truth, found) = (emitted as f64, request_stats(&recording));
        assert!(found["count"].as_u64().unwrap() < 2_000, "{found}");
        assert_eq!(found["samples"], serde_json::json!(["1/10"]));
        // The variance of the estimate of n events by a sample of one in N is n (N - 1).
        let error = (truth * 9.0).sqrt();
        check_estimate(&found["estimated"], truth, error);
        let stated = found["estimated_error"].as_f64().unwrap();
        assert!(stated > error / 2.0 && stated < error * 2.0, "{stated} instead of {error}");
    }
}

#[test]
fn some_events_are_recorded_all_and_others_in_a_sample() {
    let rules = ["e2e:request where bytes >= 9000", "e2e:request sample 1/100"];
    let recording = recorded(Record::new(), &rules);
    let (trace, _, _) = check(&recording);
    let ledger = ledger(&recording.stdout);
    let is_large = |request: &&Request<'_>| request.bytes >= 9_000;
    let large = ledger.iter().filter(is_large).count();
    // `round=u32 ROUND bytes=u32 BYTES path=…`
    let is_large = |values: &&String| values.split(' ').nth(3).unwrap().parse::<u32>().unwrap() >= 9_000;
    let recorded = trace.values("e2e:request");
    assert_eq!(recorded.iter().filter(is_large).count(), large);
    let sampled_out = (ledger.len() - recorded.len()) as u64;
    assert_eq!(unrecorded(&trace), [("e2e:request".to_string(), 0, sampled_out)]);
    let found = request_stats(&recording);
    check_estimate(&found["estimated"], ledger.len() as f64, ((ledger.len() - large) as f64 * 99.0).sqrt());
    // The same for single groups: one that is recorded all, and all others.
    let of_large = json_stats(&recording, &["--by", "event", "--where", "bytes >= 9000"]);
    let row = &of_large["rows"][0];
    assert_eq!((row["estimated"].as_f64(), row["estimated_error"].as_f64()), (Some(large as f64), Some(0.0)));
}

/// The rules at the time of an event are its measure.
#[test]
fn samples_that_change_are_scaled_back() {
    let mut rounds = Rounds::start(Record::new().env("DORMOUSE_LISTEN", "thread"), "e2e:request sample 1/10");
    rounds.emit();
    for rule in ["e2e:request sample 1/2", "e2e:request", "e2e:request sample 7/s"] {
        assert_eq!(rounds.set(&[rule]), "1 program follows\n");
        rounds.emit();
    }
    let recording = rounds.end();
    let rows = json_stats(&recording, &["--by", "round", "-e", "e2e:request"])["rows"].as_array().unwrap().clone();
    let row = |round: u32| rows.iter().find(|row| row["key"]["round"] == round).expect("a row");
    let truth = |round: u32| ledger(&recording.stdout).iter().filter(|request| request.round == round).count() as f64;
    for (round, variance) in [(0, 9.0), (1, 1.0), (2, 0.0)] {
        check_estimate(&row(round)["estimated"], truth(round), (truth(round) * variance).sqrt());
    }
    assert_eq!((row(3)["count"].as_u64() < Some(100), &row(3)["estimated"]), (true, &serde_json::Value::Null));
    let found = request_stats(&recording);
    assert_eq!(found["samples"], serde_json::json!(["1/10", "1/2", "7/s"]));
    assert_eq!(found["estimated"], serde_json::Value::Null, "the number of one round is not known");
}

/// All programs choose the same values of a field, and record all of their events.
#[test]
fn a_sample_by_a_field_has_all_events_of_its_values() {
    const PROCESSES: usize = 3;
    let script = format!("for i in 1 2 {PROCESSES}; do \"$0\" requests \"$1\"; done");
    for (rule, chosen) in [
        ("e2e:request sample by bytes 1/4", &(|request: &Request<'_>| Value::Integer(request.bytes.into())) as Key<'_>),
        ("e2e:request sample by fields.path 1/4", &|request| Value::Text(request.path.as_bytes().to_vec().into())),
    ] {
        let record = Record::new().budget(AMPLE).option("-e").option(rule);
        let line = record.place().join("line");
        std::fs::write(&line, "\n").unwrap();
        let command = ["sh".as_ref(), "-c".as_ref(), script.as_ref(), TRACED.as_ref(), line.as_os_str()];
        let recording = record.run(&command).succeeded();
        let (trace, _, _) = check(&recording);
        let ledger = ledger(&recording.stdout);
        let mut of_value = BTreeMap::new();
        for values in trace.values("e2e:request") {
            *of_value.entry(values).or_insert(0) += 1;
        }
        assert!(of_value.values().all(|count| *count == PROCESSES), "a value is there in each process, or in none");
        let is_chosen = |request: &&Request<'_>| is_in_sample(hash(&chosen(request)), 4);
        let wanted: Vec<&Request<'_>> = ledger.iter().filter(is_chosen).collect();
        assert_eq!(wanted.len(), of_value.len() * PROCESSES);
        for Request { round, bytes, path } in &wanted {
            let values = format!("round=u32 {round} bytes=u32 {bytes} path=str {path:?}");
            assert!(of_value.contains_key(&values), "{values}");
        }
        let found = request_stats(&recording);
        assert_eq!(found["estimated"].as_f64(), Some(4.0 * wanted.len() as f64));
        assert_eq!(found["estimated_error"], serde_json::Value::Null);
        // The hash is the same in each run; a random choice of values has this standard error.
        let error = (3.0 * PROCESSES as f64 * ledger.len() as f64).sqrt();
        check_estimate(&found["estimated"], ledger.len() as f64, error);
    }
}

/// Returns the value by which a request is sampled.
type Key<'k> = &'k dyn Fn(&Request<'_>) -> Value<'static>;

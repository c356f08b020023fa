//! Events have the tags of their threads. The program's own fields say which these are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dormouse_abi::rule::value::Value as RuleValue;
use dormouse_abi::rule::{hash, is_in_sample};
use dormouse_ctf::Metadata;
use dormouse_e2e::check::check;
use dormouse_e2e::program::Program;
use dormouse_e2e::run::{Record, babeltrace2_lines, dormouse, owner_of};
use dormouse_e2e::trace::has_joined;
use rustix::fs::{FileType, Mode};
use rustix::process::Signal;
use serde_json::Value;

use crate::{AMPLE, TINY, TRACED};

const BOTH: &str = "tag.request,tag.user";

/// Returns the events of the program that a trace has, after a check of their tags against their fields.
fn tagged(dir: &Path, tags: &[&str]) -> Vec<Value> {
    let output = Command::new(dormouse()).arg("view").arg(dir).args(["--format", "json", "-e", "e2e:tagged*"]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for event in &events {
        let found = event["context"]["tag"].as_object().map(|found| found.keys().map(String::as_str).collect());
        let found: BTreeSet<&str> = found.unwrap_or_default();
        assert!(found.len() == tags.len() && tags.iter().all(|tag| found.contains(tag)), "{event}");
        for (tag, value) in event["context"]["tag"].as_object().into_iter().flatten() {
            let field = &event["fields"][tag];
            assert!(field.is_null() || field == value, "{event}");
        }
    }
    events
}

fn count(events: &[Value], is_it: impl Fn(&Value) -> bool) -> usize {
    events.iter().filter(|event| is_it(event)).count()
}

#[test]
fn events_have_the_tags_of_their_threads() {
    for (rseq, mode, format) in [
        (true, "discard", "ctf1.8"),
        (false, "discard", "ctf1.8"),
        (true, "overwrite", "ctf2"),
        (false, "overwrite", "ctf1.8"),
    ] {
        let record = Record::new().rseq(rseq).mode(mode).budget(AMPLE).context(BOTH).option("--format").option(format);
        let recording = record.run(&[TRACED, "tags", "3", "1200"]).succeeded();
        let (_, events, lost) = check(&recording);
        assert_eq!((vec![events], lost), (recording.numbers("emitted"), 0));
        let tagged = tagged(&recording.dir, &["request", "user"]);
        assert_eq!(tagged.len() as u64, events);
        // Each user has events, and so has nobody.
        for user in ["alice", "bob", "zoë \"z\"", "x", ""] {
            assert!(count(&tagged, |event| event["context"]["tag"]["user"] == user) > 100, "{user}");
        }
        assert!(count(&tagged, |event| event["context"]["tag"]["request"] == 0) > 0);
        if let Some(lines) = babeltrace2_lines(&recording.dir).filter(|_| format == "ctf1.8") {
            let is_alices = |line: &&str| line.contains("user = ( \"alice\" : container = 13044623851856333044 )");
            let alices = count(&tagged, |event| event["context"]["tag"]["user"] == "alice");
            assert_eq!(lines.lines().filter(is_alices).count(), alices);
        }
    }
}

/// Rules that sections decide, and one that the slow path does.
#[test]
fn rules_select_events_with_tags() {
    for rule in ["e2e:tagged_2 where request >= 900", "e2e:tagged_2 where request >= 900 and request != 1000"] {
        let record = Record::new().budget(AMPLE).context(BOTH).option("-e").option(rule);
        let recording = record.run(&[TRACED, "tags", "1", "1200"]).succeeded();
        let all = Record::new().budget(AMPLE).context(BOTH).run(&[TRACED, "tags", "1", "1200"]).succeeded();
        let request = |event: &Value| event["fields"]["request"].as_u64().unwrap();
        let is_it = |event: &Value| {
            event["event"] == "e2e:tagged_2"
                && request(event) >= 900
                && (request(event) != 1_000 || !rule.contains("!="))
        };
        let expected: Vec<Value> = tagged(&all.dir, &["request", "user"]).into_iter().filter(is_it).collect();
        let found = tagged(&recording.dir, &["request", "user"]);
        let without_time = |event: &Value| (event["context"]["tag"].clone(), event["fields"].clone());
        assert!(found.len() > 100);
        assert!(found.iter().map(without_time).eq(expected.iter().map(without_time)), "{rule}");
    }
}

/// Returns the events of the program that a trace has and for which `--where` is true, without times and contexts.
fn viewed(dir: &Path, condition: Option<&str>) -> Vec<(Value, Value)> {
    let mut view = Command::new(dormouse());
    view.arg("view").arg(dir).args(["--format", "json", "-e", "e2e:tagged*"]);
    view.args(condition.iter().flat_map(|condition| ["--where", condition]));
    let output = view.output().unwrap();
    assert!(output.status.success(), "{condition:?}: {output:?}");
    let event = |line: &str| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        (event["event"].take(), event["fields"].take())
    };
    String::from_utf8(output.stdout).unwrap().lines().map(event).collect()
}

/// Context of a recording that is to tell all of the program's tags, and one that it never sets.
const ALL_TAGS: &str = "tag.request,tag.user,tag.unused,tag.absent";

/// The program selects by its tags as the reader does, in sessions that do not record them.
#[test]
fn rules_on_tags_select_what_view_selects() {
    for (rseq, context) in [(true, "ids"), (false, "none")] {
        let program = [TRACED, "tags", "1", "300"];
        let all = Record::new().rseq(rseq).budget(AMPLE).context(ALL_TAGS).run(&program).succeeded();
        // These tags are those that the fields repeat.
        let events = tagged(&all.dir, &["request", "user", "unused", "absent"]).len();
        for condition in [
            "tag.user == \"alice\"",
            "\"bob\" != tag.user",
            "context.tag.user == \"zoë \\\"z\\\"\" and request > 100",
            "not (tag.user == \"alice\")",
            "tag.user == \"\"",
            "tag.user == \"nobody\" or tag.user == \"x\"",
            "not tag.user",
            "tag.user ~ \"*o*\"",
            "tag.user ~ \"z*\" or tag.user ~ \"*ice\" or tag.user ~ \"bob\"",
            "not (tag.user ~ \"?\")",
            "tag.user > 5 and tag.user == true",
            "tag.request >= 200",
            "tag.request == 7.0 or tag.request > 290.5",
            "tag.request == request and second == 2",
            "tag.user == user",
            "tag.request == 0",
            "tag.unused < 100 and tag.request != tag.unused",
            "tag.absent == 0 and tag.request == 5",
            "tag.absent",
            "event == \"e2e:tagged_0\" and tag.user == \"bob\"",
        ] {
            let rule = format!("e2e:tagged* where {condition}");
            let record = Record::new().rseq(rseq).budget(AMPLE).context(context).option("-e").option(&rule);
            let recording = record.run(&program).succeeded();
            let expected = viewed(&all.dir, Some(condition));
            let is_any = condition != "tag.absent";
            assert!(is_any != expected.is_empty() && expected.len() < events, "{condition}: {}", expected.len());
            if is_any {
                assert_eq!(viewed(&recording.dir, None), expected, "{condition}, {rseq}");
            } else {
                assert_eq!(check(&recording).1, 0);
            }
        }
    }
}

/// All events of some values of a tag are recorded, the same ones everywhere; nobody who lacks the tag can scale them back.
#[test]
fn samples_by_tags_have_all_events_of_a_value() {
    let program = [TRACED, "tags", "1", "600"];
    let all = Record::new().budget(AMPLE).context(ALL_TAGS).run(&program).succeeded();
    let all = tagged(&all.dir, &["request", "user", "unused", "absent"]);
    let is_in = |event: &&Value| {
        let request = event["context"]["tag"]["request"].as_u64().unwrap();
        is_in_sample(hash(&RuleValue::Integer(request.into())), 10)
    };
    let expected: Vec<(Value, Value)> =
        all.iter().filter(is_in).map(|event| (event["event"].clone(), event["fields"].clone())).collect();
    assert!(expected.len() > 100 && expected.len() < all.len() / 4, "{} of {}", expected.len(), all.len());
    for (rseq, context, is_known) in [(true, "ids", false), (false, "ids", false), (true, "tag.request", true)] {
        let record = Record::new().rseq(rseq).budget(AMPLE).context(context);
        let record = record.option("-e").option("e2e:tagged* sample by tag.request 1/10");
        let recording = record.run(&program).succeeded();
        assert_eq!(viewed(&recording.dir, None), expected);
        let stats = Command::new(dormouse()).args(["stats", "--json"]).arg(&recording.dir).output().unwrap();
        let stats: Value = serde_json::from_slice(&stats.stdout).unwrap();
        let classes = stats["classes"].as_array().unwrap();
        let class = classes.iter().find(|class| class["name"] == "e2e:tagged_1").unwrap();
        assert_eq!(class["samples"], serde_json::json!(["by tag.request 1/10"]));
        let estimated = class["count"].as_f64().filter(|_| is_known).map(|count| 10.0 * count);
        assert_eq!(class["estimated"].as_f64(), estimated, "{class}");
    }
}

/// Each of two sessions has the events that its own rule selects.
#[test]
fn each_session_has_its_own_rules_on_tags() {
    let program = [TRACED, "tags", "1", "300"];
    let all = Record::new().budget(AMPLE).context(ALL_TAGS).run(&program).succeeded();
    let (alices, late) = ("tag.user == \"alice\"", "tag.request > 200 or tag.user ~ \"b*\"");
    let [of_alice, of_late] = [alices, late].map(|condition| viewed(&all.dir, Some(condition)));
    for rseq in [true, false] {
        for (inner, outer, is_alice_inner) in [(alices, late, true), (late, alices, false)] {
            let [rule, outer] = [inner, outer].map(|condition| format!("e2e:tagged* where {condition}"));
            let record = Record::new().rseq(rseq).budget(AMPLE).option("-e").option(&rule);
            let outer = ["--context", "tag.unused,tag.user", "--budget", AMPLE, "-e", &outer];
            let recording = record.within_recording(&outer).run(&program).succeeded();
            let found = [viewed(&recording.dir, None), viewed(&recording.place().join("outer"), None)];
            let [in_inner, in_outer] = if is_alice_inner { [&of_alice, &of_late] } else { [&of_late, &of_alice] };
            assert!(found[0] == *in_inner && found[1] == *in_outer, "{rule}, {rseq}");
        }
    }
}

/// Each of two sessions has the tags that it asks for, and no others.
#[test]
fn each_session_has_its_own_tags() {
    let cases: [(&str, &[&str], &str, &[&str]); 4] = [
        (BOTH, &["request", "user"], "ids", &[]),
        ("ids", &[], BOTH, &["request", "user"]),
        ("tag.user", &["user"], "tag.user,tag.absent,tag.request", &["user", "absent", "request"]),
        ("none", &[], "tag.unused,tag.request", &["unused", "request"]),
    ];
    for (inner, inner_tags, outer, outer_tags) in cases {
        for rseq in [true, false] {
            let record = Record::new().rseq(rseq).budget(AMPLE).option("--context").option(inner);
            let record = record.within_recording(&["--context", outer, "--budget", AMPLE]);
            let recording = record.run(&[TRACED, "tags", "2", "600"]).succeeded();
            let emitted = recording.numbers("emitted")[0] as usize;
            // Those that the program never sets are named.
            let said = std::fs::read_to_string(recording.place().join("outer.txt")).unwrap();
            assert_eq!(said.contains("; no process has set the tag absent"), outer.contains("absent"), "{said}");
            assert!(!recording.stderr.contains("has set the tag"), "{}", recording.stderr);
            let in_inner = tagged(&recording.dir, inner_tags);
            let in_outer = tagged(&recording.place().join("outer"), outer_tags);
            assert_eq!((in_inner.len(), in_outer.len()), (emitted, emitted));
            assert_eq!(count(&in_outer, |event| event["context"]["tag"]["absent"] == 1), 0);
        }
    }
}

/// A running program that emits events when it is told to, and has set tags before.
struct Stepping {
    program: Program,
    pid: String,
    run: PathBuf,
}

impl Stepping {
    fn start(no_rseq: &str) -> Stepping {
        let variables = [("DORMOUSE_LISTEN", "thread"), ("DORMOUSE_NO_RSEQ", no_rseq)];
        let patience = dormouse_e2e::run::PATIENCE;
        let mut program = Program::start_with(&[TRACED, "tags-by-steps", "2", "300"], &variables, patience);
        program.wait_for_ready();
        let (pid, run) = (program.pid().to_string(), program.place().join("run"));
        program.step();
        Stepping { program, pid, run }
    }

    /// Runs a command, which must succeed, for the program.
    fn dormouse(&self, command: &str, arguments: &[&str]) {
        let output = self.program.dormouse(&[&[command, self.pid.as_str()][..], arguments].concat(), &self.run);
        assert!(output.status.success(), "{output:?}");
    }

    /// Records steps by rules, which replace one another. Returns the trace's directory.
    fn record(&mut self, part: &str, rules: &[&str], options: &[&str]) -> PathBuf {
        let dir = self.program.place().join(part);
        for (number, rule) in rules.iter().enumerate() {
            match number {
                0 => self.dormouse("arm", &[&[rule, "-o", dir.to_str().unwrap(), "--budget", AMPLE], options].concat()),
                _ => self.dormouse("rule", &[rule]),
            }
            self.program.step();
        }
        self.dormouse("disarm", &["*"]);
        dir
    }
}

/// Tags and texts that were set before the session began, and those of children.
#[test]
fn running_programs_have_the_tags_that_they_had() {
    for no_rseq in ["0", "1"] {
        let mut stepping = Stepping::start(no_rseq);
        for part in ["first", "second"] {
            let dir = stepping.record(part, &["e2e:tagged*"], &["--context", "tag.early,tag.user,tag.request"]);
            let found = tagged(&dir, &["early", "user", "request"]);
            let is_early = |event: &Value| event["event"] == "e2e:tagged_early";
            // The program and its child have emitted one each.
            assert_eq!(count(&found, is_early), 2);
            assert_eq!(count(&found, |event| event["context"]["tag"]["early"] == "before"), 2);
            let stdout = stepping.program.stdout();
            let emitted: u64 = stdout.lines().find_map(|line| line.strip_prefix("emitted ")?.parse().ok()).unwrap();
            assert_eq!(found.len() as u64, 2 + 2 * emitted);
        }
        assert!(stepping.program.end().status.success());
    }
}

/// A rule knows tags and texts that were set before its session began, in children too, and if it replaces another one.
#[test]
fn rules_know_tags_of_running_programs() {
    let conditions = [
        "tag.early ~ \"bef*\" and tag.user == \"everybody\"",
        "tag.early == \"before\" and tag.user == user",
        "tag.early != \"before\" and tag.user == \"alice\"",
    ];
    let rules = conditions.map(|condition| format!("e2e:tagged* where {condition}"));
    for no_rseq in ["0", "1"] {
        let mut stepping = Stepping::start(no_rseq);
        for (number, chosen) in [&[0][..], &[1], &[2], &[0, 2, 1], &[2, 0]].into_iter().enumerate() {
            let rules: Vec<&str> = chosen.iter().map(|rule| rules[*rule].as_str()).collect();
            let dir = stepping.record(&number.to_string(), &rules, &[]);
            let found = viewed(&dir, None);
            let early = found.iter().filter(|(event, _)| event == "e2e:tagged_early").count();
            let is_alices = |(event, fields): &&(Value, Value)| event == "e2e:tagged_text" && fields["user"] == "alice";
            let alices = found.iter().filter(is_alices).count();
            // The program and its child emit one early event each in a step; the last rule selects five of each request.
            assert_eq!(early, 2 * chosen.iter().filter(|rule| **rule < 2).count(), "{rules:?}");
            assert_eq!((alices > 100, found.len()), (chosen.contains(&2), early + 5 * alices), "{rules:?}");
        }
        assert!(stepping.program.end().status.success());
    }
}

/// Events without room are counted as lost, and the others are whole.
#[test]
fn a_session_without_room_has_whole_events() {
    for (rseq, mode) in [(true, "discard"), (true, "overwrite"), (false, "discard")] {
        let record = Record::new().rseq(rseq).budget(TINY).mode(mode).context(BOTH);
        let recording = record.run(&[TRACED, "tags", "2", "20000"]).succeeded();
        let (_, events, lost) = check(&recording);
        if mode == "discard" {
            assert_eq!(vec![events + lost], recording.numbers("emitted"));
        }
        tagged(&recording.dir, &["request", "user"]);
    }
}

/// A trace shows the texts to a reader that follows it, and after its owner was killed.
#[test]
fn texts_are_in_a_trace_that_is_being_written() {
    for (mode, format) in [("discard", "ctf1.8"), ("overwrite", "ctf2")] {
        let record = Record::new().mode(mode).budget(AMPLE).context(BOTH).option("--format").option(format);
        let gates = ["first", "second"].map(|name| record.place().join(name));
        for gate in &gates {
            rustix::fs::mknodat(rustix::fs::CWD, gate, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        }
        let [first, second] = gates.each_ref().map(|gate| gate.to_str().unwrap());
        let script = "echo begun; cat \"$1\"; \"$0\" tags 2 12000; echo ended; cat \"$2\"";
        let mut running = record.start(&["sh", "-c", script, TRACED, first, second]);
        running.wait_for("begun");
        let dir = running.dir().to_path_buf();
        let view = ["--follow", "--format", "json", "-e", "e2e:tagged_text"];
        let mut follow = Command::new(dormouse());
        let followed = running.place().join("followed");
        follow.arg("view").arg(&dir).args(view).stdout(std::fs::File::create(&followed).unwrap()).stderr(Stdio::null());
        let mut follow = follow.spawn().unwrap();
        std::fs::write(first, "").unwrap();
        running.wait_for("ended");
        let texts = || {
            let metadata = std::fs::read(dir.join("metadata")).unwrap();
            let tags = Metadata::decode(&metadata).map(|metadata| metadata.options.tags);
            tags.map_or(0, |tags| tags.iter().map(|tag| tag.texts.len()).sum())
        };
        // Four users, and nobody. The last page of each CPU is not on disk.
        running.wait_until("the texts", || texts() == 5);
        // The next owner goes on with the trace.
        let owner = running.owner();
        assert!(running.kill_owner_alone(Signal::KILL));
        let pid = running.pid();
        running.wait_until("the next owner", || owner_of(pid).is_some_and(|next| Some(next) != owner));
        running.kill_owner();
        running.wait_until("the end of what follows", || follow.try_wait().unwrap().is_some());
        let text = std::fs::read_to_string(followed).unwrap();
        let followed: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for event in &followed {
            assert_eq!(event["context"]["tag"]["user"], event["fields"]["user"], "{event}");
        }
        let metadata = Metadata::decode(&std::fs::read(dir.join("metadata")).unwrap()).unwrap();
        assert!(!metadata.totals.is_closed());
        if mode == "overwrite" {
            assert!(texts() == 5 && followed.is_empty());
            continue;
        }
        let found = tagged(&dir, &["request", "user"]);
        let texts = count(&found, |event| event["event"] == "e2e:tagged_text");
        assert!(texts > 1000 && texts == followed.len(), "{texts}, {}", followed.len());
        if let Some(lines) = babeltrace2_lines(&dir) {
            let alices = count(&found, |event| event["context"]["tag"]["user"] == "alice");
            assert!(alices > 100);
            assert_eq!(lines.lines().filter(|line| line.contains("user = ( \"alice\" : ")).count(), alices);
        }
    }
}

/// `id` and the kernel say the same.
#[test]
fn a_trace_says_where_its_processes_run() {
    let record = Record::new();
    let gate = record.place().join("gate");
    rustix::fs::mknodat(rustix::fs::CWD, &gate, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut running = record.start(&[TRACED, "hold", gate.to_str().unwrap(), "3"]);
    let dir = running.dir().to_path_buf();
    // A process that has ended before the owner looks at it has no context.
    running.wait_until("the program's entry", || has_joined(&dir, "e2e-traced"));
    std::fs::write(&gate, "").unwrap();
    let recording = running.wait().succeeded();
    let view = ["--format", "json", "-e", "dormouse:process_context"];
    let output = Command::new(dormouse()).arg("view").arg(&recording.dir).args(view).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let id = |option: &str| {
        let output = Command::new("id").arg(option).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let cgroup = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [event] = found.as_slice() else { panic!("{text}") };
    let fields = &event["fields"];
    assert_eq!(fields["uid"].to_string(), id("-u"));
    assert!(fields["user"] == "" || fields["user"] == id("-un"), "{fields}");
    assert_eq!(fields["cgroup"], cgroup);
    // They are names in conditions on events, and events are grouped by them.
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(dormouse());
        command.arg(arguments[0]).arg(&recording.dir).args(&arguments[1..]).args(["-e", "e2e:*"]);
        let output = command.output().unwrap();
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mut conditions = vec![(format!("uid == {}", id("-u")), true), (format!("uid != {}", id("-u")), false)];
    if fields["user"] != "" {
        conditions.push((format!("user == \"{}\" and not user == \"x\"", id("-un")), true));
    }
    if !cgroup.is_empty() {
        conditions.push((format!("context.cgroup == \"{cgroup}\""), true));
    }
    for (condition, is_it) in conditions {
        let found = ask(&["view", "--where", &condition]);
        assert_eq!(found.lines().count(), if is_it { 3 } else { 0 }, "{condition}: {found}");
    }
    let counted: Value = serde_json::from_str(&ask(&["stats", "--json", "--by", "uid"])).unwrap();
    let rows = counted["rows"].as_array().unwrap();
    assert_eq!((rows.len(), rows[0]["key"]["uid"].to_string(), &rows[0]["count"]), (1, id("-u"), &3.into()));
}

/// A field of an event goes before the user of its process, in rules too. A rule does not know the latter.
#[test]
fn a_field_called_user_is_no_user_of_a_process() {
    let record = Record::new().budget(AMPLE).context(BOTH).option("-e").option("e2e:tagged_text where user == \"bob\"");
    let recording = record.run(&[TRACED, "tags", "1", "1200"]).succeeded();
    let found = tagged(&recording.dir, &["request", "user"]);
    assert!(found.len() > 100 && count(&found, |event| event["fields"]["user"] == "bob") == found.len());
    let view = ["--where", "user == \"bob\"", "-e", "e2e:*"];
    let output = Command::new(dormouse()).arg("view").arg(&recording.dir).args(view).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), found.len());
    let record = Record::new().option("-e").option("e2e:tagged_1 where user == \"bob\"");
    let stderr = record.run(&[TRACED, "tags", "1", "3"]).stderr;
    assert!(stderr.contains("it knows fields, tags and `event`, but not user"), "{stderr}");
}

#[test]
fn tags_that_cannot_be_are_refused() {
    for (context, what) in [
        ("tag.a,tag.b,tag.c,tag.d,tag.e", "events have at most four tags"),
        ("tag.a,tag.a", "a tag is named twice"),
        ("tag.1", "the name of a tag consists of"),
        ("tag.", "the name of a tag consists of"),
        ("none,tag.a", "`none` leaves no place for tags"),
        ("request", "`request` is none of `ids`, `none` and tags"),
        ("perf:cycles", "does not record hardware counters"),
    ] {
        let refused = Record::new().option("--context").option(context).run(&[TRACED, "idle"]);
        assert!(refused.code() == 2 && refused.stderr.contains(what), "{context}: {}", refused.stderr);
    }
    for (rule, what) in [
        ("e2e:* where tag.user < \"bob\"", "the texts of tags have no order"),
        ("e2e:* where tag.1 == 5", "the name of a tag consists of"),
        ("e2e:* sample by tag.0a 1/10", "the name of a tag consists of"),
        ("e2e:tagged_1 where tags.user == 5", "no event has tags.user"),
    ] {
        let refused = Record::new().option("-e").option(rule).run(&[TRACED, "idle"]);
        let is_refused = refused.code() == 2 || rule.contains("tags.user");
        assert!(is_refused && refused.stderr.contains(what) && refused.stderr.contains('^'), "{}", refused.stderr);
    }
}

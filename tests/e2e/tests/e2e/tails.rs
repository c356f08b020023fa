//! Tails: the trace has all events of the requests for which a condition came true, and no others, by the trace of a
//! session around it that records everything.

use std::collections::BTreeMap;
use std::path::Path;

use dormouse_ctf::StateRecord;
use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, Recording, owner_of};
use dormouse_e2e::trace::{Trace, render};
use rustix::process::{Pid, Signal, kill_process};

use crate::rules::{Rounds, ledger, recorded};
use crate::{AMPLE, TINY, TRACED};

/// An event of a program that serves requests. No two of a program have the same class and values.
#[derive(Debug)]
struct Served {
    time_ns: i64,
    id: Option<String>,
    has_failed: bool,
}

/// Returns the events of a trace by class and values, each once.
fn served(trace: &Trace) -> BTreeMap<String, Served> {
    let mut all = BTreeMap::new();
    for event in trace.events().filter(|event| event.class.full_name.starts_with("e2e:")) {
        let fields: Vec<(&str, String)> = event.fields().map(|(name, value)| (name, render(&value))).collect();
        let of = |name: &str| fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.clone());
        let (id, has_failed) = (of("id"), of("status").is_some_and(|status| status == "u16 503"));
        let mut key = format!("{} {fields:?}", event.class.full_name);
        if id.is_none() {
            // Events without an id are told apart by their number.
            key += &format!(" {}", all.len());
        }
        let before = all.insert(key, Served { time_ns: event.time_ns.unwrap(), id, has_failed });
        assert!(before.is_none(), "an event is there twice");
    }
    all
}

/// Numbers of events by class.
fn by_class<'k>(keys: impl Iterator<Item = &'k String>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    keys.for_each(|key| *counts.entry(key.split(' ').next().unwrap().to_string()).or_default() += 1);
    counts
}

/// Returns the trace's numbers of events that no tail kept, by class.
fn not_kept(trace: &Trace) -> BTreeMap<String, u64> {
    let stated = trace.events().filter_map(|event| match event.state_record() {
        Some(StateRecord::NotKept { class, count }) => Some((class.to_string(), count)),
        _ => None,
    });
    let stated: BTreeMap<String, u64> = stated.collect();
    let stats = trace.stats().unrecorded.into_iter().filter(|class| class.not_kept > 0);
    assert_eq!(stats.map(|class| (class.name, class.not_kept)).collect::<BTreeMap<_, _>>(), stated);
    stated
}

/// Returns whether a tail keeps an event: it has failed, or a request with its id has within the window. `None` within half
/// a window of the window's edge: a thread may be held up between the two sessions' readings of the clock. `failures`: times
/// of failed requests, by id.
fn expected(event: &Served, failures: &BTreeMap<&String, Vec<i64>>) -> Option<bool> {
    let of_key = event.id.iter().filter_map(|id| failures.get(id)).flatten();
    match of_key.map(|time_ns| time_ns.abs_diff(event.time_ns)).min() {
        _ if event.has_failed => Some(true),
        Some(distance) if distance.abs_diff(WINDOW_NS) < WINDOW_NS / 2 => None,
        Some(distance) => Some(distance <= WINDOW_NS),
        None => Some(false),
    }
}

/// Checks a recording with a tail against the one around it. `keeps_more`: whether events may be kept beyond those that
/// the tail asks for.
fn check_tail(recording: &Recording, keeps_more: bool) {
    let (trace, events, lost) = check(recording);
    let outer = Trace::read(&recording.place().join("outer"));
    let (all, kept) = (served(&outer), served(&trace));
    assert_eq!((lost, outer.stats().events_lost), (0, 0));
    let mut failures: BTreeMap<&String, Vec<i64>> = BTreeMap::new();
    for event in all.values().filter(|event| event.has_failed) {
        event.id.iter().for_each(|id| failures.entry(id).or_default().push(event.time_ns));
    }
    let (mut wanted, mut unwanted) = (0, 0);
    for (key, event) in all.iter().filter(|(_, event)| event.id.is_some()) {
        match expected(event, &failures) {
            Some(true) => {
                wanted += 1;
                assert!(kept.contains_key(key), "{key} is missing of {}", kept.len());
            }
            Some(false) => {
                unwanted += 1;
                assert!(keeps_more || !kept.contains_key(key), "{key} is kept");
            }
            None => {}
        }
    }
    assert!(wanted > 100 && unwanted > 100, "{wanted} {unwanted}");
    assert!(keeps_more || !kept.values().any(|event| event.id.is_none()));
    // Every event is in the trace or counted.
    let mut sums = by_class(kept.keys());
    assert_eq!(sums.values().sum::<u64>(), events);
    not_kept(&trace).into_iter().for_each(|(class, count)| *sums.entry(class).or_default() += count);
    assert_eq!(sums, by_class(all.keys()));
    let count: u64 = not_kept(&trace).values().sum();
    assert!(count > 0 || keeps_more);
    if count > 0 {
        assert!(recording.stderr.contains(&format!("{count} events kept by no tail")), "{}", recording.stderr);
    }
}

const WINDOW_NS: u64 = 400_000_000;
const TAIL: &str = "e2e:* tail 400ms by id keep status >= 500";

#[test]
fn all_events_of_failed_requests_are_kept_and_no_others() {
    for (rseq, context) in [(true, "ids"), (false, "ids"), (true, "none"), (false, "none")] {
        let record = Record::new().rseq(rseq).context(context).budget(AMPLE).option("-e").option(TAIL);
        let record = record.within_recording(&["--budget", AMPLE, "--context", context]);
        let recording = record.run(&[TRACED, "served", "4", "3000", "30"]).succeeded();
        check_tail(&recording, false);
    }
}

/// Owners are killed while pages wait. The next one does not know the keys, and keeps everything for a while.
#[test]
fn no_event_is_missing_where_owners_are_killed() {
    for context in ["ids", "none"] {
        let record = Record::new().context(context).budget(AMPLE).option("-e").option(TAIL);
        let record = record.within_recording(&["--budget", AMPLE, "--context", context]);
        let mut running = record.start(&[TRACED, "served", "4", "9000", "30"]);
        running.wait_for("process ");
        let pid = running.pid();
        for _ in 0..5 {
            let owner = running.owner();
            assert!(running.kill_owner_alone(Signal::KILL));
            running.wait_until("the next owner", || owner_of(pid).is_some_and(|next| Some(next) != owner));
            // Each owner lives long enough to see events, and to write some pages.
            std::thread::sleep(std::time::Duration::from_millis(150));
        }
        let recording = running.wait().succeeded();
        check_tail(&recording, true);
    }
}

/// A session with little memory cannot wait: it writes pages early, and says so.
#[test]
fn a_session_with_little_memory_says_that_it_decided_early() {
    let record = Record::new().budget(TINY).option("-e").option("e2e:* tail 10m by id keep status >= 500");
    let recording =
        record.within_recording(&["--budget", AMPLE]).run(&[TRACED, "served", "2", "20000", "30"]).succeeded();
    let trace = Trace::read(&recording.dir);
    let stats = trace.stats();
    let causes: Vec<&str> = stats.loss_possible.iter().map(|possible| possible.cause.as_str()).collect();
    assert!(causes.iter().any(|cause| cause.starts_with("pages were written before")), "{causes:?}");
    assert!(recording.stderr.contains("give a larger --budget or shorter tails"), "{}", recording.stderr);
    let kept = served(&trace);
    let counted = not_kept(&trace).values().sum::<u64>() + stats.events_lost + kept.len() as u64;
    let all = served(&Trace::read(&recording.place().join("outer")));
    assert_eq!(counted, all.len() as u64);
    assert!(kept.values().filter(|event| event.has_failed).count() > 0);
}

/// Rules are replaced while pages wait: what was recorded by the earlier rules stays.
#[test]
fn a_tail_holds_from_the_time_on_at_which_it_is_set() {
    let mut rounds = Rounds::start(Record::new().env("DORMOUSE_LISTEN", "thread"), "e2e:request");
    rounds.emit();
    let tail = "e2e:request tail 50ms by bytes keep bytes < 10";
    assert_eq!(rounds.set(&[tail]), "1 program follows\n");
    rounds.emit();
    // A rule beside it does not disturb it, nor does one that takes its place.
    assert_eq!(rounds.set(&[tail, "e2e:ping"]), "1 program follows\n");
    rounds.emit();
    for (wrong, part) in [
        ("e2e:request tail 1s by byts keep bytes > 5", "has the field of this tail; there are bytes, path, round"),
        ("e2e:request tail 1s by bytes keep byts > 5", "no event has byts"),
        ("e2e:request tail 1s by tag.user keep bytes > 5", "add --context tag.user"),
        ("e2e:request tail 1h by bytes keep bytes > 5", "from 1ms to 10m"),
    ] {
        let output = rounds.rule(&[wrong]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(part), "{wrong}: {text}");
    }
    let recording = rounds.end();
    let (trace, _, lost) = check(&recording);
    let all = ledger(&recording.stdout);
    let wanted = all.iter().filter(|request| request.round == 0 || request.bytes < 10);
    let wanted: Vec<String> = wanted
        .map(|request| format!("round=u32 {} bytes=u32 {} path=str {:?}", request.round, request.bytes, request.path))
        .collect();
    assert!(trace.values("e2e:request") == wanted, "{}", trace.values("e2e:request").len());
    assert_eq!((lost, all.len(), wanted.len(), trace.values("e2e:ping").len()), (0, 30_000, 10_020, 100));
    assert_eq!(not_kept(&trace), BTreeMap::from([("e2e:request".to_string(), 19_980)]));
}

/// A program that is killed has nothing to say any more: its events are kept or not like all others.
#[test]
fn events_of_a_killed_program_are_decided_too() {
    for rseq in [true, false] {
        let record = Record::new().rseq(rseq).env("DORMOUSE_LISTEN", "thread");
        let mut rounds = Rounds::start(record, "e2e:request tail 10m by bytes keep bytes < 10");
        rounds.emit();
        let pid = rounds.running.numbers("process ")[0];
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        let recording = rounds.running.wait();
        let (trace, recorded, lost) = check(&recording);
        assert_eq!((recorded, lost), (10, 0));
        assert_eq!(not_kept(&trace), BTreeMap::from([("e2e:request".to_string(), 9_990)]));
    }
}

/// A live session's status tells how many events no tail has kept.
#[test]
fn a_status_tells_what_no_tail_has_kept() {
    let record = Record::new().env("DORMOUSE_LISTEN", "thread");
    let mut rounds = Rounds::start(record, "e2e:request tail 1ms by bytes keep bytes < 10");
    rounds.emit();
    let session = rounds.running.session();
    let status = |rounds: &Rounds, json: &[&str]| {
        let arguments = [&["status", session.to_str().unwrap()][..], json].concat();
        String::from_utf8(rounds.running.dormouse(&arguments).stdout).unwrap()
    };
    let count = |text: &str| -> u64 {
        let status: serde_json::Value = serde_json::from_str(text).unwrap();
        status["events_not_kept"].as_u64().unwrap()
    };
    // Full pages are written once their time is over; the current one stays.
    let begun = std::time::Instant::now();
    while count(&status(&rounds, &["--json"])) == 0 {
        assert!(begun.elapsed() < dormouse_e2e::run::PATIENCE, "no page was written");
        // Nothing tells when a page is written.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(status(&rounds, &[]).contains(" kept by no tail\n"), "{}", status(&rounds, &[]));
    check(&rounds.end());
}

#[test]
fn tags_are_keys_of_a_tail_where_they_are_recorded() {
    let rule = r#"e2e:tagged* tail 10m by tag.request keep tag.user == "alice""#;
    let record = Record::new().budget(AMPLE).option("--context").option("tag.request,tag.user");
    let recording = record.option("-e").option(rule).run(&[TRACED, "tags", "2", "600"]).succeeded();
    let (trace, events, lost) = check(&recording);
    let emitted = recording.numbers("emitted")[0];
    let not_kept: u64 = not_kept(&trace).values().sum();
    let texts = trace.values("e2e:tagged_text");
    assert!(texts.len() > 50 && texts.iter().all(|values| values.contains("user=str \"alice\"")), "{texts:?}");
    // All events of these requests, and no others.
    assert_eq!((events, lost), (5 * texts.len() as u64, 0));
    assert_eq!(events + not_kept, emitted);
}

#[test]
fn tails_that_a_session_cannot_have_are_refused() {
    let refused = |record: Record, rules: &[&str]| {
        let recording = recorded_or_refused(record, rules);
        assert_ne!(recording.code(), 0);
        recording.stderr
    };
    let told = refused(Record::new().mode("overwrite"), &[TAIL]);
    assert!(told.contains("a rule with a tail needs --mode discard"), "{told}");
    let told = refused(Record::new(), &["e2e:* tail 1s by tag.request keep status >= 500"]);
    assert!(told.contains("does not record tag.request; add --context tag.request") && told.contains('^'), "{told}");
    let told = refused(Record::new(), &[TAIL, "e2e:ping sample 5/s"]);
    assert!(told.contains("a sample of N/s is drawn in each process"), "{told}");
    let told = refused(Record::new(), &["e2e:* sample 1/10 tail 1s by id keep status >= 500"]);
    assert!(told.contains("`sample by FIELD 1/N` takes whole ones"), "{told}");
    let recording = recorded(Record::new(), &["e2e:request tail 1s by id keep bytes > 5"]);
    let told = "no event that e2e:request matches has the field of this tail; there are bytes, path, round";
    assert!(recording.stderr.contains(told), "{}", recording.stderr);
}

/// Records one round of requests by these rules, or not.
fn recorded_or_refused(record: Record, rules: &[&str]) -> Recording {
    let record = rules.iter().fold(record.budget(AMPLE), |record, rule| record.option("-e").option(rule));
    record.run(&[Path::new(TRACED), Path::new("idle")])
}

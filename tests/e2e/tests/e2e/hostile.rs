//! A process that writes garbage over the session's memory harms only the trace.

use dormouse_e2e::run::Record;
use dormouse_e2e::trace::Trace;
use dormouse_e2e::{Random, seed};

use crate::{AMPLE, TRACED};

/// How many of the four kinds of [`KINDS`] are tried with each way to write, unless the environment variable of this
/// name sets another number.
const KIND_COUNT: (&str, usize) = ("DORMOUSE_HOSTILE_KINDS", 2);

/// Sessions by their budget, and whether the session's header is spared. Neighbours differ in their budgets.
const KINDS: [(&str, bool); 4] = [("64K", true), ("1M", false), ("64K", false), ("1M", true)];

fn scribble(mode: &str, rseq: bool, context: &str) {
    let mut random = Random(seed(&format!("hostile, {mode}, rseq {rseq}, context {context}")));
    let count = std::env::var(KIND_COUNT.0).ok().and_then(|text| text.parse().ok()).unwrap_or(KIND_COUNT.1);
    let first = random.number() as usize % KINDS.len();
    for (budget, spares_header) in KINDS.into_iter().cycle().skip(first).take(count) {
        let seed = random.number() & !1 | !spares_header as u64;
        let hostile = format!("{TRACED} hostile {seed} 100000");
        let honest = format!("{TRACED} numbers 2 100000");
        let script = format!("{honest} & a=$!; {hostile}; b=$?; {honest} && wait $a && exit $b; exit 99");
        let record = Record::new().budget(budget).mode(mode).rseq(rseq).context(context);
        let recording = record.run(&["sh", "-c", &script]).succeeded();
        assert_eq!(recording.numbers("emitted"), [200_000, 200_000], "{}", recording.stderr);
        assert_eq!(recording.numbers("scribbled"), [100_000]);
        // The trace can be read to its end, with any contents.
        recording.summary();
        recording.trace().stats();
    }
}

#[test]
fn overwriting_shared_memory_harms_no_other_program() {
    for rseq in [true, false] {
        scribble("discard", rseq, "ids");
        scribble("discard", rseq, "none");
    }
}

#[test]
fn overwriting_shared_memory_harms_no_flight_recorder() {
    for rseq in [true, false] {
        scribble("overwrite", rseq, "ids");
        scribble("overwrite", rseq, "none");
    }
}

/// A process that is in two sessions spoils one of them.
#[test]
fn overwriting_one_sessions_memory_harms_no_other_session() {
    for rseq in [true, false] {
        let seed = Random(seed(&format!("hostile, two sessions, rseq {rseq}"))).number() & !1;
        let hostile = format!("{TRACED} hostile {seed} 100000");
        let honest = format!("{TRACED} numbers 2 100000");
        let script = format!("{honest} & a=$!; {hostile}; b=$?; wait $a && exit $b; exit 99");
        let record = Record::new().budget("1M").rseq(rseq).within_recording(&["--budget", AMPLE]);
        let recording = record.run(&["sh", "-c", &script]).succeeded();
        assert_eq!((recording.numbers("emitted"), recording.numbers("scribbled")), (vec![200_000], vec![100_000]));
        recording.trace().stats();
        let outer = Trace::read(&recording.place().join("outer"));
        outer.check_times();
        let stats = outer.stats();
        assert!(stats.is_closed && stats.warnings.is_empty(), "{stats:?}");
        let emitted = 200_000 + recording.numbers("between")[0];
        assert_eq!((stats.events, stats.events_lost), (emitted, 0));
        assert_eq!(outer.steps().values().map(Vec::len).sum::<usize>() as u64, emitted);
    }
}

#[test]
fn an_endless_ring_does_not_keep_the_session_open() {
    // The hostile process outlives the command, and cannot be told to leave.
    let record = Record::new().budget("256K");
    let ready = record.place().join("ready").display().to_string();
    let wait = format!("while ! [ -s {ready} ]; do sleep 0.01; done");
    let script = format!("DORMOUSE_LISTEN=0 {TRACED} flood > {ready} & {wait}; {TRACED} numbers 1 1000");
    let recording = record.run(&["sh", "-c", &script]).succeeded();
    assert_eq!(recording.numbers("emitted"), [1_000]);
    recording.trace().stats();
}

#[test]
fn a_protocol_violation_is_reported_and_loses_no_event() {
    let recording = Record::new().budget("4M").run(&[TRACED, "lie", "20000"]).succeeded();
    assert_eq!(recording.numbers("emitted"), [20_000]);
    let told = &recording.stderr;
    assert!(told.contains("; protocol violation in the ring of stream ") && told.contains("avail.idx is "), "{told}");
    // Everything that was committed is found without the ring.
    assert_eq!((recording.summary().events, recording.summary().lost), (20_000, 0), "{told}");
    assert_eq!(recording.trace().stats().events, 20_000);
}

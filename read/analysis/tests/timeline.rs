//! Timelines of generated traces.

use std::collections::{BTreeMap, BTreeSet};

use dormouse_abi::class::{FieldType, Kind};
use dormouse_analysis::timeline::{
    Begin, Counter, End, Flow, FoundKey, Instant, Loss, Options, Sink, Timeline, Totals, Track, What, find_keys,
    slice_rules,
};
use dormouse_ctf::{Merge, StateRecord, StreamReader, Trace, Value};
use dormouse_traces::TraceBuilder;

/// Epoch of the traces' clock, in nanoseconds since the Unix epoch.
const EPOCH_NS: i64 = 1_700_000_000 * 1_000_000_000;

/// Collects the items, a line each.
#[derive(Default)]
struct Lines(Vec<String>);

impl Sink for Lines {
    type Kept = String;

    fn track(&mut self, track: &Track<'_>) {
        self.0.push(format!("track {} in {:?}: {:?} {}", track.id, track.parent, track.kind, track.name));
    }
    fn begin(&mut self, begin: &Begin<'_>) -> String {
        self.0.push(format!("{} begin {} on {} depth {}", begin.ns - EPOCH_NS, begin.id, begin.track, begin.depth));
        begin.event.class.full_name.clone()
    }
    fn end(&mut self, end: &End<'_>, kept: String) {
        let what = [(end.doubt.is_some(), "?"), (end.event.is_none(), " unfinished")]
            .map(|(is, text)| if is { text } else { "" });
        let ns = [end.ns, end.begin_ns].map(|ns| ns - EPOCH_NS);
        self.0.push(format!("{} end {} since {} of {kept} above {}{}", ns[0], end.id, ns[1], end.above, what.concat()));
    }
    fn instant(&mut self, instant: &Instant<'_>) {
        let what = if instant.what == What::Plain { String::new() } else { format!(" {:?}", instant.what) };
        let name = &instant.event.class.full_name;
        self.0.push(format!("{} {name} on {}{what}", instant.ns - EPOCH_NS, instant.track));
    }
    fn counter(&mut self, counter: &Counter) {
        self.0.push(format!("{} counter {} {:?}", counter.ns - EPOCH_NS, counter.track, counter.value));
    }
    fn flow(&mut self, flow: &Flow) {
        self.0.push(format!("flow {} from {} to {}", flow.id, flow.from.0, flow.to.0));
    }
    fn loss(&mut self, loss: &Loss) {
        let [begin, end] = [loss.begin_ns, loss.end_ns].map(|ns| ns - EPOCH_NS);
        self.0.push(format!("loss on {} {begin}..{end} {:?}", loss.track, loss.count));
    }
}

/// Traces that are read together.
struct Traces<'t> {
    described: Vec<Trace>,
    /// Index of the trace, and bytes, of each stream.
    streams: Vec<(usize, &'t [u8])>,
}

impl<'t> Traces<'t> {
    fn of(traces: &[&'t dormouse_traces::Trace]) -> Traces<'t> {
        let described = traces.iter().map(|trace| Trace::decode(trace.metadata.as_bytes()).unwrap()).collect();
        let streams = traces.iter().enumerate();
        let streams =
            streams.flat_map(|(index, trace)| trace.streams.iter().map(move |bytes| (index, bytes.as_slice())));
        Traces { described, streams: streams.collect() }
    }

    fn described(&self) -> Vec<&Trace> {
        self.described.iter().collect()
    }

    fn events(&self) -> Merge<'_> {
        let streams = self.streams.iter().enumerate();
        Merge::new(streams.map(|(index, (trace, bytes))| StreamReader::new(&self.described[*trace], index, bytes)))
    }
}

fn timeline(options: &Options, trace: &dormouse_traces::Trace) -> Result<(Vec<String>, Totals), String> {
    timeline_of(options, &[trace])
}

fn timeline_of(options: &Options, traces: &[&dormouse_traces::Trace]) -> Result<(Vec<String>, Totals), String> {
    let (read, mut lines) = (Traces::of(traces), Lines::default());
    let names = read.streams.iter().map(|(trace, _)| ("s", *trace));
    let mut timeline = Timeline::new(options, &read.described(), names)?;
    let mut events = read.events();
    while let Some(next) = events.next_event() {
        match next {
            Ok(event) => timeline.event(&event, &mut lines),
            Err(notice) => timeline.notice(&notice, events.streams()[notice.stream].time_ns(), &mut lines),
        }
    }
    let totals = timeline.finish(&mut lines);
    Ok((lines.0, totals))
}

fn pairs(pairs: &[(&str, &str)], key: &[&str]) -> Options {
    let pair = |(begin, end): &(&str, &str)| format!("{begin}..{end}").parse().unwrap();
    Options {
        pairs: pairs.iter().map(pair).collect(),
        key: key.iter().map(|key| key.to_string()).collect(),
        ..Options::default()
    }
}

fn without_tracks(lines: &[String]) -> Vec<&str> {
    lines.iter().map(String::as_str).filter(|line| !line.starts_with("track")).collect()
}

#[test]
fn slices_of_a_thread_nest_by_the_names_of_their_ends() {
    let mut builder = TraceBuilder::new();
    let classes = ["request_entry", "request_exit", "query_begin", "query_end", "tick", "alone_start"];
    let [entry, exit, begin, end, tick, alone] = classes.map(|name| builder.class("app", name, &[]));
    let process =
        |name| StateRecord::Process { process: 1, pid: 9, vpid: 7, name, program: "/bin/app", command_line: "app" };
    builder.state(0, &process("app"));
    let streams = [builder.stream(0), builder.stream(1)];
    for (cpu, time, tid, class) in [
        (0, 10, 7, exit),
        (0, 20, 7, entry),
        (1, 25, 8, entry),
        (0, 30, 7, begin),
        (0, 35, 7, tick),
        (0, 36, 7, alone),
        (1, 40, 7, end),
        (1, 50, 7, exit),
        (1, 60, 7, begin),
        (1, 70, 7, entry),
        (1, 80, 7, end),
        (1, 90, 8, exit),
    ] {
        builder.event(streams[cpu], time, 7, tid, class, &[]);
    }
    builder.state(95, &process("other"));
    let (lines, totals) = timeline(&Options::default(), &builder.finish()).unwrap();
    assert_eq!(
        lines,
        [
            "track 0 in None: Process { pid: 7 } app",
            "track 1 in Some(0): Thread { pid: Some(7), tid: 7 } ",
            "10 app:request_exit on 1 EndAlone",
            "20 begin 1 on 1 depth 0",
            "track 2 in Some(0): Thread { pid: Some(7), tid: 8 } ",
            "25 begin 2 on 2 depth 0",
            "30 begin 3 on 1 depth 1",
            "35 app:tick on 1",
            // The trace has no class that would end it.
            "36 app:alone_start on 1",
            "40 end 3 since 30 of app:query_begin above 0",
            "50 end 1 since 20 of app:request_entry above 0",
            "60 begin 4 on 1 depth 0",
            "70 begin 5 on 1 depth 1",
            "80 end 4 since 60 of app:query_begin above 1",
            "90 end 2 since 25 of app:request_entry above 0",
            "track 0 in None: Process { pid: 7 } other",
            "90 end 5 since 70 of app:request_entry above 0 unfinished",
        ]
    );
    let expected =
        Totals { events: 12, slices: 4, slices_unfinished: 1, instants: 3, ends_unpaired: 1, ..Totals::default() };
    assert_eq!(totals, expected);
}

/// Begins that would give their slices the same name have slices of their own, called by both ends.
#[test]
fn begins_that_share_an_end_or_a_name_have_slices_of_their_own() {
    type Event = (u64, &'static str);
    let timeline = |events: &[Event]| {
        let mut builder = TraceBuilder::new();
        let names: BTreeSet<&str> = events.iter().map(|(_, name)| *name).collect();
        let classes: BTreeMap<&str, _> = names.iter().map(|name| (*name, builder.class("app", name, &[]))).collect();
        let stream = builder.stream(0);
        events.iter().for_each(|(time, name)| builder.event(stream, *time, 7, 7, classes[name], &[]));
        let trace = builder.finish();
        let (lines, totals) = timeline(&Options::default(), &trace).unwrap();
        let ends = lines.iter().filter(|line| line.contains(" end "));
        let ends = ends.map(|line| line.split(" of ").next().unwrap().to_string());
        let described = Trace::decode(trace.metadata.as_bytes()).unwrap();
        let rules = slice_rules((&described).into()).into_iter();
        let rules = rules.map(|rule| format!("{}: {} {}", rule.name, rule.begins.join(" "), rule.ends.join(" ")));
        (
            ends.collect::<BTreeSet<_>>(),
            rules.collect::<BTreeSet<_>>(),
            [totals.slices, totals.ends_unpaired, totals.instants],
        )
    };
    let set = |lines: &[&str]| lines.iter().map(|line| line.to_string()).collect::<BTreeSet<_>>();
    let both = set(&["app:x_begin..app:x_end: app:x_begin app:x_end", "app:x_start..app:x_end: app:x_start app:x_end"]);

    // One after the other, twice, and an end alone.
    let (ends, found, counts) = timeline(&[
        (1, "x_end"),
        (10, "x_begin"),
        (14, "x_start"),
        (20, "x_end"),
        (30, "x_begin"),
        (35, "x_start"),
        (50, "x_end"),
    ]);
    assert_eq!(found, both);
    assert_eq!(ends, set(&["20 end 1 since 10", "20 end 2 since 14", "50 end 3 since 30", "50 end 4 since 35"]));
    // The end alone counts once.
    assert_eq!(counts, [4, 1, 1]);

    // One or the other: no end is alone.
    let (ends, found, counts) = timeline(&[(10, "x_begin"), (20, "x_end"), (30, "x_start"), (50, "x_end")]);
    assert_eq!((found, counts), (both, [2, 0, 0]), "{ends:?}");

    // A begin takes the first end that is there, which the other begin cannot have.
    let (ends, found, counts) = timeline(&[(1, "x_begin"), (2, "x_start"), (4, "x_stop"), (8, "x_end")]);
    let expected =
        set(&["app:x_begin..app:x_end: app:x_begin app:x_end", "app:x_start..app:x_stop: app:x_start app:x_stop"]);
    assert_eq!((found, counts), (expected, [2, 0, 0]), "{ends:?}");

    // A begin with two ends is one slice, which either ends.
    let (ends, found, counts) = timeline(&[(1, "x_start"), (2, "x_stop"), (4, "x_start"), (8, "x_end")]);
    assert_eq!((found, counts), (set(&["app:x: app:x_start app:x_end app:x_stop"]), [2, 0, 0]), "{ends:?}");
}

#[test]
fn slices_with_a_key_are_on_lanes_and_flow_from_thread_to_thread() {
    let mut builder = TraceBuilder::new();
    let id = [("id", FieldType::scalar(Kind::U64))];
    let [begin, end] = ["in", "out"].map(|name| builder.class("req", name, &id));
    let stream = builder.stream(0);
    for (time, tid, class, id) in
        [(10, 7, begin, 1), (20, 8, begin, 2), (30, 8, end, 1), (40, 8, end, 2), (50, 7, begin, 3)]
    {
        builder.event(stream, time, 7, tid, class, &[Value::U64(id)]);
    }
    let trace = builder.finish();
    let (lines, totals) = timeline(&pairs(&[("req:in", "req:out")], &["id"]), &trace).unwrap();
    assert_eq!(
        lines[2..],
        [
            "track 2 in Some(0): Lane { name: 1, number: 0 } req:in..req:out",
            "10 begin 1 on 2 depth 0",
            "10 req:in on 1 Begins(1)",
            "track 3 in Some(0): Thread { pid: Some(7), tid: 8 } ",
            "track 4 in Some(0): Lane { name: 1, number: 1 } req:in..req:out",
            "20 begin 2 on 4 depth 0",
            "20 req:in on 3 Begins(2)",
            "30 end 1 since 10 of req:in above 0",
            "flow 1 from 1 to 3",
            "30 req:out on 3 EndsElsewhere(1)",
            "40 end 2 since 20 of req:in above 0",
            "40 req:out on 3 Ends(2)",
            "50 begin 3 on 2 depth 0",
            "50 req:in on 1 Begins(3)",
            "50 end 3 since 50 of req:in above 0 unfinished",
        ]
    );
    assert_eq!((totals.slices, totals.flows, totals.instants, totals.slices_unfinished), (2, 1, 5, 1));
    // Matched by thread, the end on thread 8 ends slice 2.
    let (lines, totals) = timeline(&Options::default(), &trace).unwrap();
    assert!(lines.contains(&"30 end 2 since 20 of req:in above 0".to_string()), "{lines:?}");
    assert_eq!((totals.slices, totals.flows, totals.ends_unpaired), (1, 0, 1));
}

#[test]
fn an_event_can_end_one_slice_and_begin_the_next() {
    let mut builder = TraceBuilder::new();
    let tick = builder.class("app", "tick", &[]);
    let stream = builder.stream(0);
    (1..4).for_each(|time| builder.event(stream, time, 7, 7, tick, &[]));
    let (lines, _) = timeline(&pairs(&[("app:tick", "app:tick")], &[]), &builder.finish()).unwrap();
    assert_eq!(
        without_tracks(&lines),
        [
            "1 begin 1 on 1 depth 0",
            "2 end 1 since 1 of app:tick above 0",
            "2 begin 2 on 1 depth 0",
            "3 end 2 since 2 of app:tick above 0",
            "3 begin 3 on 1 depth 0",
            "3 end 3 since 3 of app:tick above 0 unfinished",
        ]
    );
}

#[test]
fn a_mutex_is_held_from_a_successful_lock_to_its_unlock() {
    let mut builder = TraceBuilder::new();
    let fields = [("mutex", FieldType::scalar(Kind::U64)), ("result", FieldType::scalar(Kind::I32))];
    let names = ["mutex_lock", "mutex_trylock", "mutex_unlock"];
    let [lock, trylock, unlock] = names.map(|name| builder.class("libc", name, &fields));
    let stream = builder.stream(0);
    for (time, class, mutex, result) in
        [(1, lock, 5, 0), (2, trylock, 5, -16), (3, trylock, 6, 0), (4, unlock, 5, 0), (5, unlock, 6, 0)]
    {
        builder.event(stream, time, 7, 7, class, &[Value::U64(mutex), Value::I32(result)]);
    }
    let (lines, totals) = timeline(&Options::default(), &builder.finish()).unwrap();
    assert_eq!((totals.slices, totals.slices_unfinished, totals.instants), (2, 0, 5), "{lines:?}");
    let ends: Vec<_> = lines.iter().filter(|line| line.contains(" end ")).collect();
    assert_eq!(ends, ["4 end 1 since 1 of libc:mutex_lock above 0", "5 end 2 since 3 of libc:mutex_trylock above 0"]);
}

/// A wait for a condition is a slice of its own, during which the mutex is not held, whichever way it ends.
#[test]
fn a_mutex_is_not_held_while_its_holder_waits_for_a_condition() {
    let mut builder = TraceBuilder::new();
    let (mutex, result) = (("mutex", FieldType::scalar(Kind::U64)), ("result", FieldType::scalar(Kind::I32)));
    let cond = ("cond", FieldType::scalar(Kind::U64));
    let lock = builder.class("libc", "mutex_lock", &[mutex, result]);
    let unlock = builder.class("libc", "mutex_unlock", &[mutex, result]);
    let wait = builder.class("libc", "cond_wait_begin", &[cond, mutex]);
    let woken = builder.class("libc", "cond_wait_end", &[cond, mutex, result]);
    let stream = builder.stream(0);
    let (mutex, done, late) = (Value::U64(5), Value::I32(0), Value::I32(-110));
    for (time, tid, class, values) in [
        (1, 7, lock, &[mutex, done][..]),
        (2, 7, wait, &[Value::U64(9), mutex]),
        (3, 8, lock, &[mutex, done]),
        (5, 8, unlock, &[mutex, done]),
        (9, 7, woken, &[Value::U64(9), mutex, late]),
        (10, 7, unlock, &[mutex, done]),
    ] {
        builder.event(stream, time, 7, tid, class, values);
    }
    let (lines, totals) = timeline(&Options::default(), &builder.finish()).unwrap();
    assert_eq!((totals.slices, totals.slices_unfinished), (4, 0), "{lines:?}");
    let ends: Vec<_> = lines.iter().filter(|line| line.contains(" end ")).collect();
    let expected = [
        "2 end 1 since 1 of libc:mutex_lock above 0",
        "5 end 3 since 3 of libc:mutex_lock above 0",
        "9 end 2 since 2 of libc:cond_wait_begin above 0",
        "10 end 4 since 9 of libc:cond_wait_end above 0",
    ];
    assert_eq!(ends, expected, "{lines:?}");
}

/// A thread waits only if its lock has a begin; an unlock by another thread does not end what a thread holds, and a lock
/// that timed out is not held.
#[test]
fn a_wait_for_a_lock_is_on_its_thread_and_a_lock_is_held_by_the_thread_that_has_it() {
    for lock in ["mutex", "rwlock"] {
        let mut builder = TraceBuilder::new();
        let (field, result) = ((lock, FieldType::scalar(Kind::U64)), ("result", FieldType::scalar(Kind::I32)));
        let owner = (if lock == "mutex" { "owner" } else { "writer" }, FieldType::scalar(Kind::I32));
        let (begin, end) = match lock {
            "mutex" => ("mutex_lock_begin", "mutex_lock"),
            _ => ("rwlock_wrlock_begin", "rwlock_wrlock"),
        };
        let begin = builder.class("libc", begin, &[field, owner]);
        let end = builder.class("libc", end, &[field, result]);
        let unlock = builder.class("libc", &format!("{lock}_unlock"), &[field]);
        let stream = builder.stream(0);
        let (address, done, late) = (Value::U64(5), Value::I32(0), Value::I32(-110));
        for (time, tid, class, values) in [
            (1, 7, end, &[address, done][..]),
            (2, 8, begin, &[address, Value::I32(7)]),
            (3, 9, begin, &[address, Value::I32(7)]),
            (4, 9, end, &[address, late]),
            (5, 9, unlock, &[address]),
            (6, 7, unlock, &[address]),
            (7, 8, end, &[address, done]),
            (9, 8, unlock, &[address]),
        ] {
            builder.event(stream, time, 7, tid, class, values);
        }
        let (lines, totals) = timeline(&Options::default(), &builder.finish()).unwrap();
        assert_eq!((totals.slices, totals.slices_unfinished, totals.ends_unpaired), (4, 0, 1), "{lines:?}");
        let ends: Vec<_> = lines.iter().filter(|line| line.contains(" end ")).map(|line| line.as_str()).collect();
        let (begin, end) = match lock {
            "mutex" => ("libc:mutex_lock_begin", "libc:mutex_lock"),
            _ => ("libc:rwlock_wrlock_begin", "libc:rwlock_wrlock"),
        };
        let expected = [
            format!("4 end 3 since 3 of {begin} above 0"),
            format!("6 end 1 since 1 of {end} above 0"),
            format!("7 end 2 since 2 of {begin} above 0"),
            format!("9 end 4 since 7 of {end} above 0"),
        ];
        assert_eq!(ends, expected, "{lines:?}");
    }
}

/// A call begins before its event, but not before what encloses it, the end of the call before, or the first event.
#[test]
fn a_call_with_one_event_is_a_slice_if_it_is_asked_for() {
    let make = || {
        let mut builder = TraceBuilder::new();
        let duration = [("duration_ns", FieldType::scalar(Kind::U64))];
        let fd = [("fd", FieldType::scalar(Kind::I32)), ("duration_ns", FieldType::scalar(Kind::U64))];
        let path = [("path", FieldType::scalar(Kind::Str)), ("fd", FieldType::scalar(Kind::I32))];
        let read = builder.class("libc", "read", &duration);
        let close = builder.class("libc", "close", &fd);
        builder.class("libc", "open", &path);
        let own = builder.class("app", "read", &duration);
        let (begin, end) = (builder.class("app", "serve_begin", &[]), builder.class("app", "serve_end", &[]));
        let stream = builder.stream(0);
        for (time, tid, class, values) in [
            (100, 9, read, &[Value::U64(30)][..]),
            (110, 8, begin, &[]),
            (150, 8, read, &[Value::U64(30)]),
            (160, 8, read, &[Value::U64(11)]),
            (170, 9, read, &[Value::U64(60)]),
            (180, 8, end, &[]),
            (190, 8, read, &[Value::U64(1000)]),
            (200, 8, own, &[Value::U64(10)]),
            (210, 8, close, &[Value::I32(3), Value::U64(5)]),
        ] {
            builder.event(stream, time, 7, tid, class, values);
        }
        builder.finish()
    };
    let lines = |options: &Options| {
        let (lines, totals) = timeline(options, &make()).unwrap();
        (lines.into_iter().filter(|line| !line.starts_with("track")).collect::<Vec<_>>(), totals)
    };
    let (found, totals) = lines(&Options { has_calls: true, ..Options::default() });
    let expected = [
        "100 begin 1 on 1 depth 0",
        "100 end 1 since 100 of libc:read above 0",
        "110 begin 2 on 2 depth 0",
        "120 begin 3 on 2 depth 1",
        "150 end 3 since 120 of libc:read above 0",
        "150 begin 4 on 2 depth 1",
        "160 end 4 since 150 of libc:read above 0",
        "110 begin 5 on 1 depth 0",
        "170 end 5 since 110 of libc:read above 0",
        "180 end 2 since 110 of app:serve_begin above 0",
        "180 begin 6 on 2 depth 0",
        "190 end 6 since 180 of libc:read above 0",
        "200 app:read on 2",
        "210 libc:close on 2 EndAlone",
    ];
    assert_eq!((found.as_slice(), totals.slices, totals.instants), (&expected.map(String::from)[..], 6, 2));
    let (found, totals) = lines(&Options::default());
    assert_eq!((totals.slices, totals.instants), (1, 7), "{found:?}");
}

#[test]
fn losses_are_at_their_place_and_slices_across_them_are_marked() {
    let mut builder = TraceBuilder::new();
    let [begin, end] = ["begin", "end"].map(|name| builder.class("app", name, &[]));
    let stream = builder.stream(3);
    builder.event(stream, 10, 7, 7, begin, &[]);
    builder.event(stream, 20, 7, 7, end, &[]);
    builder.event(stream, 30, 7, 7, begin, &[]);
    builder.packet(stream, 0, 0);
    builder.event(stream, 50, 7, 7, end, &[]);
    builder.packet(stream, 0, 4);
    let (lines, totals) = timeline(&Options::default(), &builder.finish()).unwrap();
    let lines = without_tracks(&lines);
    assert!(lines.contains(&"20 end 1 since 10 of app:begin above 0"), "{lines:?}");
    assert!(lines.contains(&"loss on 2 30..50 Some(4)"), "{lines:?}");
    assert!(lines.contains(&"50 end 2 since 30 of app:begin above 0?"), "{lines:?}");
    assert_eq!((totals.losses, totals.events_lost, totals.slices_across_losses), (1, 4, 1));
}

#[test]
fn counters_are_the_requested_fields() {
    let mut builder = TraceBuilder::new();
    let fields = [("len", FieldType::scalar(Kind::I32)), ("name", FieldType::scalar(Kind::Str))];
    let queue = builder.class("net", "queue", &fields);
    let stream = builder.stream(0);
    for (time, pid, len) in [(1, 7, 5), (2, 8, -1), (3, 7, 6)] {
        builder.event(stream, time, pid, pid, queue, &[Value::I32(len), Value::Str(b"x")]);
    }
    let trace = builder.finish();
    let of =
        |pattern: &str, field: &str| Options { counters: vec![(pattern.into(), field.into())], ..Options::default() };
    let (lines, totals) = timeline(&of("net:*", "len"), &trace).unwrap();
    assert_eq!(
        lines.iter().filter(|line| line.contains("ounter")).collect::<Vec<_>>(),
        [
            "track 2 in Some(0): Counter { name: 1 } net:queue len",
            "1 counter 2 Whole(5)",
            "track 5 in Some(3): Counter { name: 1 } net:queue len",
            "2 counter 5 Whole(-1)",
            "3 counter 2 Whole(6)"
        ]
    );
    assert_eq!((totals.counter_values, totals.instants), (3, 3));
    let wrong = |options: &Options| timeline(options, &trace).unwrap_err();
    assert_eq!(wrong(&of("net:*", "name")), "the field `name` is text, which is no counter");
    assert!(wrong(&of("nat:*", "len")).contains("the nearest is `net:queue`"));
    assert!(wrong(&of("net:*", "lem")).contains("the nearest is `len`"));
    assert!(
        wrong(&pairs(&[("net:queue", "net:gone")], &[])).contains("no event class of the trace matches `net:gone`")
    );
    assert!(wrong(&pairs(&[("net:queue", "net:queue")], &["process"])).starts_with("`process` is no key"));
}

/// With any order of ends and any losses, each slice ends once, and within the slice that encloses it unless the end
/// says otherwise.
#[test]
fn every_slice_ends_once() {
    let mut random = 1u64;
    let mut below = |end: u64| {
        // Knuth's multiplier.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % end
    };
    let mut builder = TraceBuilder::new();
    let names = ["a_begin", "a_end", "b:start", "b_start", "b_stop", "c_enter", "c_exit", "d"];
    let classes = names.map(|name| builder.class("app", name, &[("id", FieldType::scalar(Kind::U64))]));
    let streams = [0, 1, 2].map(|cpu| builder.stream(cpu));
    let mut time = 0;
    for count in 1..20_000u64 {
        time += below(3);
        let stream = streams[below(3) as usize];
        let class = classes[below(8) as usize];
        builder.event(stream, time, 7, 7 + below(3) as u32, class, &[Value::U64(below(5))]);
        if count % 100 == 0 {
            builder.packet(stream, 0, below(2));
        }
    }
    let trace = builder.finish();
    for options in [Options::default(), pairs(&[("app:a_begin", "app:a_end"), ("app:d", "app:d")], &["id"])] {
        let (lines, totals) = timeline(&options, &trace).unwrap();
        let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count() as u64;
        assert_eq!(count(" begin "), totals.slices + totals.slices_unfinished);
        assert_eq!(count(" end "), count(" begin "));
        assert_eq!(count("unfinished"), totals.slices_unfinished);
        assert_eq!(count("loss on"), totals.losses);
        assert!(totals.slices_across_losses > 0 && totals.losses > 10 && totals.slices > 1000, "{totals:?}");
        let ids: BTreeSet<&str> =
            lines.iter().filter(|line| line.contains(" end ")).map(|line| line.split(' ').nth(2).unwrap()).collect();
        assert_eq!(ids.len() as u64, count(" begin "));
    }
}

/// Takes events of (time, thread, class, fields), and returns the keys that are found, and the ends of the timeline with
/// these keys.
fn surveyed(builder: TraceBuilder) -> (Vec<FoundKey>, Vec<String>, Totals) {
    surveyed_of(&[&builder.finish()])
}

fn surveyed_of(traces: &[&dormouse_traces::Trace]) -> (Vec<FoundKey>, Vec<String>, Totals) {
    let (read, options) = (Traces::of(traces), Options::default());
    let streams = read.streams.iter().map(|(trace, _)| *trace);
    let mut events = read.events();
    let found = find_keys(&options, &read.described, streams, usize::MAX, |survey| {
        while let Some(next) = events.next_event() {
            survey.take(next);
        }
    });
    let found = found.unwrap();
    let (lines, totals) = timeline_of(&Options { found: found.clone(), ..options }, traces).unwrap();
    (found, lines.into_iter().filter(|line| line.contains(" end ")).collect(), totals)
}

/// Tasks that move between threads: each has its request's number, and a size that differs between its ends.
#[test]
fn tasks_that_move_between_threads_are_paired_by_the_field_that_identifies_them() {
    let number = |name| (name, FieldType::scalar(Kind::U64));
    for (fields, key) in [(&["size", "id"][..], &["id"][..]), (&["size"], &[]), (&["id"], &["id"])] {
        let mut builder = TraceBuilder::new();
        let declared: Vec<_> = fields.iter().map(|name| number(*name)).collect();
        let [begin, end] = ["req_begin", "req_end"].map(|name| builder.class("app", name, &declared));
        let stream = builder.stream(0);
        let mut event = |time: u64, tid: u64, class, id: u64, size: u64| {
            let values: Vec<Value<'_>> =
                fields.iter().map(|name| Value::U64(if *name == "id" { id } else { size })).collect();
            builder.event(stream, time, 7, 10 + tid as u32, class, &values);
        };
        // Request i begins at 10 i on one thread, and ends 25 later on any.
        let mut times: Vec<(u64, bool, u64)> =
            (0..100).flat_map(|id| [(10 * id, true, id), (10 * id + 25, false, id)]).collect();
        times.sort();
        for (time, is_begin, id) in times {
            match is_begin {
                true => event(time, id % 3, begin, id, 5),
                false => event(time, id * id / 5 % 3, end, id, 6 + id % 2),
            }
        }
        let (found, ends, totals) = surveyed(builder);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].name == "app:req" && found[0].fields == key, "{found:?}");
        let right = (0..100).filter(|id| {
            ends.iter().any(|line| {
                line.starts_with(&format!("{} end {} since {} of", 10 * id + 25, id + 1, 10 * id))
                    && !line.contains('?')
            })
        });
        if key.is_empty() {
            assert_eq!(totals.slices_doubtful, totals.slices, "{ends:?}");
        } else {
            assert_eq!((right.count(), totals.slices, found[0].alone), (100, 100, 0), "{ends:?}");
            assert!(totals.flows > 50);
        }
    }
}

/// Two machines or containers can have processes with the same id, whose requests have the same numbers.
#[test]
fn what_begins_in_one_trace_does_not_end_in_another_unless_the_key_is_given() {
    // Request i begins at 100 i on one thread, and ends on any.
    let requests = |later: u64, length: u64| {
        let mut builder = TraceBuilder::new();
        let id = [("id", FieldType::scalar(Kind::U64))];
        let [begin, end] = ["req_begin", "req_end"].map(|name| builder.class("app", name, &id));
        let stream = builder.stream(0);
        for id in 0..100 {
            let time = 100 * id + later;
            builder.event(stream, time, 1, 10 + id as u32 % 3, begin, &[Value::U64(id)]);
            builder.event(stream, time + length, 1, 10 + (id * id / 5) as u32 % 3, end, &[Value::U64(id)]);
        }
        builder.finish()
    };
    let traces = [&requests(0, 25), &requests(3, 40)];
    let (found, ends, totals) = surveyed_of(&traces);
    assert_eq!(found.iter().map(|found| found.fields.concat()).collect::<Vec<_>>(), ["id"]);
    let lengths = |ends: &[String]| {
        let number = |line: &str, word: usize| line.split(' ').nth(word).unwrap().parse::<u64>().unwrap();
        let length = |line: &String| number(line, 0) - number(line, 4);
        [22, 25, 40, 43].map(|wanted| ends.iter().filter(|line| length(line) == wanted).count())
    };
    assert_eq!((lengths(&ends), totals.slices, totals.ends_unpaired), ([0, 100, 100, 0], 200, 0));
    // What the user says is a key is one in all traces: the last begin is ended first.
    let given = pairs(&[("app:req_begin", "app:req_end")], &["id"]);
    let lines = timeline_of(&given, &traces).unwrap().0;
    let ends: Vec<String> = lines.into_iter().filter(|line| line.contains(" end ")).collect();
    assert_eq!(lengths(&ends), [100, 0, 0, 100]);

    let lock = |later: u64| {
        let mut builder = TraceBuilder::new();
        let fields = [("mutex", FieldType::scalar(Kind::U64)), ("result", FieldType::scalar(Kind::I32))];
        let [lock, unlock] = ["mutex_lock", "mutex_unlock"].map(|name| builder.class("libc", name, &fields));
        let stream = builder.stream(0);
        [(later, lock), (later + 2, unlock)].into_iter().for_each(|(time, class)| {
            builder.event(stream, time, 1, 1, class, &[Value::U64(5), Value::I32(0)]);
        });
        builder.finish()
    };
    let (lines, totals) = timeline_of(&Options::default(), &[&lock(1), &lock(2)]).unwrap();
    let ends: Vec<_> = lines.iter().filter(|line| line.contains(" end ")).collect();
    let expected = ["3 end 1 since 1 of libc:mutex_lock above 0", "4 end 2 since 2 of libc:mutex_lock above 0"];
    assert_eq!(ends, expected, "{totals:?}");
}

/// Calls of threads stay paired by thread, whatever fields their ends share, and where the recording begins and ends
/// within calls.
#[test]
fn calls_of_threads_are_paired_by_thread() {
    let mut builder = TraceBuilder::new();
    let fields = ["depth", "bytes"].map(|name| (name, FieldType::scalar(Kind::U64)));
    let [begin, end] = ["call_begin", "call_end"].map(|name| builder.class("app", name, &fields));
    let stream = builder.stream(0);
    let mut time = 0;
    let mut event = |tid: u32, class, depth: u64, bytes: u64| {
        time += 1;
        builder.event(stream, time, 7, tid, class, &[Value::U64(depth), Value::U64(bytes)]);
    };
    // Each thread is within two calls at first.
    for round in 0..100u64 {
        for tid in 8..12 {
            for depth in 0..3 {
                event(tid, begin, depth, round);
            }
            for depth in (0..3).rev() {
                event(tid, end, depth, round + depth % 2);
            }
            if round == 1 {
                event(tid, end, 1, 0);
                event(tid, end, 0, 0);
            }
        }
    }
    let survey = |builder: TraceBuilder| surveyed(builder).0;
    let found = survey(builder);
    assert!(found.iter().all(|found| !found.fields.is_empty()), "{found:?}");
    assert!(found.is_empty(), "{found:?}");
}

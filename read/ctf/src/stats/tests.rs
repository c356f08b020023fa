use super::*;
use crate::testing::TraceBuilder;
use crate::value::Value;
use dormouse_abi::class::{FieldType, Kind};
use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_abi::record::RecordKind;
use dormouse_format::StateRecord;

#[test]
fn the_figures_of_a_trace_are_exact() {
    let mut trace = TraceBuilder::new();
    let u32 = FieldType::scalar(Kind::U32);
    let (request, idle) = (trace.class("http", "request", &[("id", u32)]), trace.class("sched", "idle", &[]));
    let (cpu3, unknown) = (trace.stream(3), trace.stream(CPU_UNKNOWN));
    let process =
        |vpid, name, program| StateRecord::Process { process: vpid, pid: 9, vpid, name, program, command_line: "" };
    trace.state(10, &process(7, "sh", "/bin/sh"));
    trace.state(30, &process(7, "ls", "/bin/ls"));
    trace.state(31, &process(8, "clear\n", "/bin/\x1b[2J"));
    trace.state(32, &StateRecord::ProcessName { process: 7, name: "list" });
    trace.state(32, &StateRecord::ProcessName { process: 6, name: "nobody" });
    trace.state(40, &StateRecord::Lost { reason: "the disk is full", count: 100 });
    trace.state(40, &StateRecord::LossPossible { cause: "a \x1b[2Jword", count: 2 });
    trace.state(41, &StateRecord::ClassRefused { class: "größe:a", program: "/bin/\x1b[ls", reason: "no name" });
    for (class, count) in [("http:request", 2), ("sched:idle", 3), ("(other classes)", 2), ("http:request", 1)] {
        trace.state(50, &StateRecord::LostClass { class, count });
    }
    for (class, rejected, sampled_out) in [("http:request", 4, 0), ("sched:idle", 1, 5), ("http:request", 0, 1)] {
        trace.state(50, &StateRecord::Unrecorded { class, rejected, sampled_out });
    }
    trace.state(50, &StateRecord::NotKept { class: "http:request", count: 9 });
    trace.event(cpu3, 20, 7, 7, request, &[Value::U32(1)]);
    trace.packet(cpu3, 256, 5);
    trace.event(cpu3, 35, 7, 70, request, &[Value::U32(1)]);
    trace.event(cpu3, 36, 8, 8, request, &[Value::U32(1)]);
    trace.packet(cpu3, 256, 2);
    trace.event(unknown, 25, 5, 5, idle, &[]);
    trace.event(unknown, 1_000_000_020, 7, 7, idle, &[]);
    trace.packet(unknown, 0, 1);
    let trace = trace.finish();
    let metadata = trace.parse();
    let names = ["state", "cpu3", "other"];
    let mut streams: Vec<_> = names.into_iter().zip(trace.streams.iter().map(Vec::as_slice)).collect();
    streams.push(("odd", b"?"));
    let stats = Stats::collect(&metadata, &streams);

    let bytes = trace.streams.iter().map(Vec::len).sum::<usize>() + 1;
    assert_eq!(
        serde_json::to_value(&stats).unwrap(),
        serde_json::json!({
            "events": 5, "state_events": 16, "events_lost": 108, "packets": 4, "bytes": bytes, "threads": 4,
            "events_per_s": 5.0,
            "loss_places": {
                "places": [
                    {
                        "stream": "cpu3", "begin_ns": 1_700_000_000_000_000_020u64,
                        "end_ns": 1_700_000_000_000_000_020u64, "events": 5, "packets": 0,
                    },
                    {
                        "stream": "cpu3", "begin_ns": 1_700_000_000_000_000_020u64,
                        "end_ns": 1_700_000_000_000_000_036u64, "events": 2, "packets": 0,
                    },
                    {
                        "stream": "other", "begin_ns": 1_700_000_000_000_000_025u64,
                        "end_ns": 1_700_000_001_000_000_020u64, "events": 1, "packets": 0,
                    },
                ],
                "more": 0,
            },
            "loss_possible": [
                {"cause": "a \x1b[2Jword", "count": 2},
                {"cause": "parts of the trace are missing or damaged", "count": 0},
                {"cause": "the trace was not closed: its session is live or was killed", "count": 0},
            ],
            "lost_by_class": [
                {"name": "http:request", "count": 3},
                {"name": "sched:idle", "count": 3},
                {"name": "(other classes)", "count": 2},
            ],
            "unrecorded": [
                {"name": "http:request", "rejected": 4, "sampled_out": 1, "not_kept": 9},
                {"name": "sched:idle", "rejected": 1, "sampled_out": 5, "not_kept": 0},
            ],
            "classes_refused": [{"name": "größe:a", "program": "/bin/\x1b[ls", "reason": "no name"}],
            "span": {
                "begin_ns": 1_700_000_000_000_000_020u64,
                "end_ns": 1_700_000_001_000_000_020u64,
                "duration_ns": 1_000_000_000,
            },
            "classes": [
                {
                    "name": "http:request", "id": 0, "count": 3, "bytes": 60,
                    "estimated": 3.0, "estimated_error": 0.0, "samples": [],
                },
                {
                    "name": "sched:idle", "id": 1, "count": 2, "bytes": 32,
                    "estimated": 2.0, "estimated_error": 0.0, "samples": [],
                },
            ],
            "cpus": [{"cpu": 3, "count": 3}, {"cpu": "unknown", "count": 2}],
            "processes": [
                {"vpid": 7, "name": "list", "program": "/bin/ls", "count": 2},
                {"vpid": 5, "name": "", "program": "", "count": 1},
                {"vpid": 7, "name": "sh", "program": "/bin/sh", "count": 1},
                {"vpid": 8, "name": "clear\n", "program": "/bin/\x1b[2J", "count": 1},
            ],
            "is_closed": false,
            "warnings": [
                "odd: packet 0 at byte 0 is cut off: 1 of 80 bytes",
                "state: 100 events lost: the disk is full",
                "state: an unknown number of events lost: a \x1b[2Jword (2)",
            ],
        })
    );
}

#[test]
fn events_without_context_have_no_process() {
    let mut trace = TraceBuilder::of_records(RecordKind::Compact);
    let idle = trace.class("sched", "idle", &[]);
    let stream = trace.stream(0);
    for (vpid, name, program) in [(9, "sh", "/bin/sh"), (3, "ls", "/bin/ls")] {
        trace.state(10, &StateRecord::Process { process: 1, pid: 9, vpid, name, program, command_line: "" });
    }
    trace.event(stream, 20, 9, 9, idle, &[]);
    let trace = trace.finish();
    let metadata = trace.parse();
    let streams: Vec<_> = ["state", "cpu"].into_iter().zip(trace.streams.iter().map(Vec::as_slice)).collect();
    let stats = Stats::collect(&metadata, &streams);
    assert_eq!((stats.events, stats.state_events), (1, 2));
    let json = serde_json::to_value(&stats).unwrap();
    assert_eq!(json["threads"], serde_json::Value::Null);
    assert_eq!(
        json["processes"],
        serde_json::json!([
            {"vpid": 9, "name": "sh", "program": "/bin/sh", "count": null},
            {"vpid": 3, "name": "ls", "program": "/bin/ls", "count": null},
        ])
    );
}

#[test]
fn events_before_the_name_count_for_the_process() {
    let mut trace = TraceBuilder::new();
    let idle = trace.class("sched", "idle", &[]);
    let cpu = trace.stream(0);
    let process =
        |program| StateRecord::Process { process: 1, pid: 9, vpid: 7, name: "cc1", program, command_line: "" };
    trace.event(cpu, 10, 7, 7, idle, &[]);
    trace.state(20, &process("/bin/cc1"));
    trace.event(cpu, 30, 7, 7, idle, &[]);
    trace.packet(cpu, 0, 0);
    let trace = trace.finish();
    let metadata = trace.parse();
    let streams: Vec<_> = ["state", "cpu"].into_iter().zip(trace.streams.iter().map(Vec::as_slice)).collect();
    let processes = Stats::collect(&metadata, &streams).processes;
    assert_eq!(processes, [ProcessStats { vpid: 7, name: "cc1".into(), program: "/bin/cc1".into(), count: Some(2) }]);
}

/// Several processes that become other programs, in packets of which some are missing and one is damaged.
#[test]
fn parallel_counts_equal_a_sequential_count() {
    let mut trace = TraceBuilder::new();
    let u32 = FieldType::scalar(Kind::U32);
    let classes = [trace.class("a", "one", &[("n", u32)]), trace.class("a", "two", &[])];
    let process =
        |vpid, program| StateRecord::Process { process: vpid, pid: 9, vpid, name: "p", program, command_line: "" };
    let streams = [trace.stream(0), trace.stream(1)];
    let mut random = 7u64;
    for time in 0..4000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (stream, vpid) = (streams[(random >> 60) as usize % 2], (random >> 50) as u32 % 100);
        match random >> 40 & 1 {
            0 => trace.event(stream, time, vpid, vpid + 1, classes[0], &[Value::U32(1)]),
            _ => trace.event(stream, time, vpid, vpid, classes[1], &[]),
        }
        match random >> 32 & 0xFF {
            0..8 => trace.packet(stream, 4096, time / 100),
            8..24 => trace.state(time, &process(vpid, ["/bin/a", "/bin/b"][(random >> 30 & 1) as usize])),
            24 => trace.state(time, &StateRecord::Lost { reason: "why", count: 1 }),
            _ => {}
        }
    }
    let trace = trace.finish();
    let metadata = trace.parse();
    let mut streams: Vec<Vec<u8>> = trace.streams.clone();
    // One packet is removed, and one record is overwritten with invalid bytes.
    streams[1].drain(4096..8192);
    streams[2][4096 + 90..4096 + 94].fill(0xFF);
    let named: Vec<_> = ["state", "cpu_0", "cpu_1"].into_iter().zip(streams.iter().map(Vec::as_slice)).collect();
    let expected = Stats::collect(&metadata, &named);
    assert!(expected.warnings.len() > 2 && expected.processes.len() > 100, "{expected:?}");

    assert_eq!(in_parts(&metadata, &named), expected);
}

/// Counts parts of the streams in turn by two tallies, and combines them.
fn in_parts(metadata: &Metadata, named: &[(&str, &[u8])]) -> Stats {
    let traces = [TraceRef::from(metadata)];
    let reader = |index: usize| StreamReader::new(metadata, index, named[index].1);
    let collector = Collector::new(&traces, (0..named.len()).map(|index| (0, named[index].0, reader(index))));
    let (mut tallies, mut parts) = ([Tally::default(), Tally::default()], Vec::new());
    for index in collector.others() {
        let mut whole = reader(index);
        while let Some(part) = whole.cut(5000, named[index].1) {
            parts.push((index, collector.count(&mut tallies[parts.len() % 2], part)));
        }
    }
    assert!(parts.len() > 10);
    let [mut tally, other] = tallies;
    tally.add(other);
    collector.finish(tally, parts)
}

/// Generator of pseudo-random numbers (SplitMix64; Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let number = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        number ^ number >> 31
    }

    /// Returns a number from 0 to 1.
    fn part(&mut self) -> f64 {
        self.next() as f64 / 2f64.powi(64)
    }
}

/// A million events are decided here, by an account of its own of what rules with samples select. The estimates must be
/// within five standard errors of the true numbers; the seed is fixed, so that the test does not fail by chance.
#[test]
fn estimates_are_near_the_true_numbers() {
    const EVENTS: u64 = 1_000_000;
    const KEYS: u64 = 4_000;
    let rules = [
        "a:chance sample 1/10",
        "a:both sample 1/100\na:both sample 1/7",
        "a:large where bytes >= 900\na:large sample 1/100",
        "a:parts where bytes < 500 sample 1/5\na:p* where bytes >= 250 sample 1/50",
        "a:keyed sample by user 1/4",
        "a:union sample by fields.user 1/4\na:union sample 1/10\na:union sample by user 1/8",
        "a:all",
        "a:rate sample 5/s\na:rate where bytes < 10",
    ];
    let names = ["chance", "both", "large", "parts", "keyed", "union", "all", "rate"];
    let mut trace = TraceBuilder::new();
    let fields = [("bytes", FieldType::scalar(Kind::U32)), ("user", FieldType::scalar(Kind::U16))];
    let classes = names.map(|name| trace.class("a", name, &fields));
    let streams = [trace.stream(0), trace.stream(1)];
    let mut random = Random(2026);
    let in_sample: Vec<bool> = (0..KEYS).map(|_| random.part() < 0.25).collect();
    trace.state(1, &StateRecord::Rules { rules: &rules.join("\n") });
    let (mut happened, mut of_key) = ([0u64; 8], vec![[0u64; 8]; KEYS as usize]);
    for time in 0..EVENTS {
        let at = random.next() as usize % 8;
        let (bytes, user, chance) = (random.next() % 1000, random.next() % KEYS, random.part());
        // None: no condition is true.
        let is_recorded = match names[at] {
            "chance" => Some(chance < 0.1),
            "both" => Some(chance < 1.0 / 7.0),
            "large" => Some(bytes >= 900 || chance < 0.01),
            "parts" => Some(bytes < 500 && chance < 0.2 || bytes >= 250 && chance < 0.02),
            "keyed" => Some(in_sample[user as usize]),
            "union" => Some(in_sample[user as usize] || chance < 0.1),
            "all" => Some(true),
            _ => Some(bytes < 10 || chance < 0.01),
        };
        happened[at] += u64::from(is_recorded.is_some());
        of_key[user as usize][at] += 1;
        if is_recorded == Some(true) {
            let stream = streams[(time % 3 / 2) as usize];
            trace.event(stream, 10 + time, 7, 7, classes[at], &[Value::U32(bytes as u32), Value::U16(user as u16)]);
        }
        if time % 2_000 == 0 {
            streams.iter().for_each(|stream| trace.packet(*stream, 0, 0));
        }
    }
    let trace = trace.finish();
    let metadata = trace.parse();
    let streams: Vec<_> = ["state", "0", "1"].into_iter().zip(trace.streams.iter().map(Vec::as_slice)).collect();
    let stats = Stats::collect(&metadata, &streams);
    for (at, name) in names.into_iter().enumerate() {
        let class = stats.classes.iter().find(|class| class.name == format!("a:{name}")).unwrap();
        let truth = happened[at] as f64;
        // Variance of the events of each value, which are together in a sample of one in four or not.
        let by_key: f64 = of_key.iter().map(|counts| (counts[at] * counts[at]) as f64 * 3.0).sum();
        match name {
            "all" => assert_eq!((class.estimated, class.estimated_error), (Some(truth), Some(0.0))),
            "rate" => assert_eq!((class.estimated, class.estimated_error), (None, None)),
            "keyed" | "union" => {
                let (estimated, error) = (class.estimated.unwrap(), by_key.sqrt());
                assert!((estimated - truth).abs() < 5.0 * error, "{name}: {estimated} ± {error}, {truth}");
                assert!(error < truth / 10.0 && class.estimated_error.is_none());
            }
            _ => {
                let (estimated, error) = (class.estimated.unwrap(), class.estimated_error.unwrap());
                assert!((estimated - truth).abs() < 5.0 * error, "{name}: {estimated} ± {error}, {truth}");
                assert!(error > 0.0 && error < truth / 10.0, "{name}: {error}");
            }
        }
    }
    let samples = |name: &str| &stats.classes.iter().find(|class| class.name == name).unwrap().samples;
    assert_eq!(samples("a:union"), &["1/10", "by fields.user 1/4", "by user 1/8"]);
    assert_eq!((samples("a:all").len(), samples("a:rate").join(" ")), (0, "5/s".into()));
    assert_eq!(in_parts(&metadata, &streams), stats);
}

/// The weight is that of the rules at the time of an event.
#[test]
fn rules_change_in_the_course_of_a_trace() {
    let stats = |times: &[u64]| {
        let mut trace = TraceBuilder::of_records(RecordKind::Compact);
        let text = [("text", FieldType::scalar(Kind::Str))];
        let (short, long) = (trace.class("a", "short", &[]), trace.class("a", "long", &text));
        let stream = trace.stream(0);
        for (time, rules) in [
            (100, "a:* sample 1/10"),
            (200, "a:long where text ~ \"x*\" sample 1/4\na:long where text == \"y\""),
            (300, "*\n!a:short"),
            (400, "a:short sample 1/1\na:long where text == \"z\" sample by text 1/3\na:long sample 1/5"),
            (500, "a rule of another version\na:long sample by text[7] 1/3"),
        ] {
            trace.state(time, &StateRecord::Rules { rules });
        }
        for time in times {
            trace.event(stream, time + 1, 9, 9, short, &[]);
            for text in ["x1", "y", "z"] {
                trace.event(stream, time + 99, 9, 9, long, &[Value::Str(text.as_bytes())]);
            }
        }
        let trace = trace.finish();
        let streams: Vec<_> = ["state", "cpu"].into_iter().zip(trace.streams.iter().map(Vec::as_slice)).collect();
        let mut stats = Stats::collect(&trace.parse(), &streams);
        let [long, short] = [0, 1].map(|index| std::mem::take(&mut stats.classes[index].samples));
        let estimates = |index: usize| (stats.classes[index].estimated, stats.classes[index].estimated_error);
        ([estimates(1), estimates(0)], short, long)
    };
    let exact = |count: f64| (Some(count), Some(0.0));
    assert_eq!(stats(&[0, 300]), ([exact(2.0), exact(6.0)], vec![], vec![]));
    let tenth = vec!["1/10".to_string()];
    let of_tenths = [(Some(10.0), Some(90f64.sqrt())), (Some(30.0), Some(270f64.sqrt()))];
    assert_eq!(stats(&[100]), (of_tenths, tenth.clone(), tenth));
    let (estimates, short, long) = stats(&[0, 100, 200, 300, 400]);
    // The last ones: a field 1/3 and chance 1/5, of which neither need select.
    let of_long = 3.0 + 30.0 + (4.0 + 1.0 + 1.0) + 3.0 + (5.0 + 5.0 + 15.0 / 7.0);
    assert_eq!(estimates[0], (Some(14.0), Some(90f64.sqrt())));
    assert!((estimates[1].0.unwrap() - of_long).abs() < 1e-9 && estimates[1].1.is_none(), "{estimates:?}");
    assert_eq!((short.join(" "), long.join(" ")), ("1/10".into(), "1/10 1/4 1/5 by text 1/3".into()));
    assert_eq!(stats(&[100, 500]).0, [(None, None); 2]);
}

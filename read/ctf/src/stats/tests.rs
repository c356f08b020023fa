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
            "events": 5, "state_events": 15, "events_lost": 108, "packets": 4, "bytes": bytes, "threads": 4,
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
                {"name": "sched:idle", "rejected": 1, "sampled_out": 5},
                {"name": "http:request", "rejected": 4, "sampled_out": 1},
            ],
            "classes_refused": [{"name": "größe:a", "program": "/bin/\x1b[ls", "reason": "no name"}],
            "span": {
                "begin_ns": 1_700_000_000_000_000_020u64,
                "end_ns": 1_700_000_001_000_000_020u64,
                "duration_ns": 1_000_000_000,
            },
            "classes": [
                {"name": "http:request", "id": 0, "count": 3, "bytes": 60},
                {"name": "sched:idle", "id": 1, "count": 2, "bytes": 32},
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

    let traces = [TraceRef::from(&metadata)];
    let reader = |index: usize| StreamReader::new(&metadata, index, named[index].1);
    let collector = Collector::new(&traces, (0..3).map(|index| (0, named[index].0, reader(index))));
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
    assert_eq!(collector.finish(tally, parts), expected);
}

//! Makes traces of many events: `many DIR TRACES EVENTS` writes TRACES traces below DIR, consecutive in time, with
//! EVENTS events each.
//!
//! Four threads on two CPUs handle requests with a query in each; durations vary. Every request has a key, and every
//! tenth waits for a lock.

use std::path::Path;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_abi::record::RecordKind;
use dormouse_ctf::{Clock, Format, MetadataOptions, StateRecord, Value};
use dormouse_traces::TraceBuilder;

/// Time from one trace to the next, in seconds.
const APART_S: i64 = 1000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, traces, events] = &arguments[..] else { panic!("usage: many DIR TRACES EVENTS") };
    let [traces, events] = [traces, events].map(|text| text.parse::<u64>().expect("a number"));
    for number in 0..traces {
        let dir = Path::new(dir).join(format!("{number:03}"));
        std::fs::create_dir_all(&dir).expect("a directory");
        write(&dir, number, events);
    }
}

fn write(dir: &Path, number: u64, events: u64) {
    let offset_s = 1_700_000_000 + APART_S * number as i64;
    let clock = Clock {
        name: "monotonic".into(),
        description: String::new(),
        frequency_hz: 1_000_000_000,
        offset_s,
        offset_cycles: 0,
    };
    let mut builder = TraceBuilder::with_options(MetadataOptions {
        uuid: [number as u8; 16],
        hostname: "made".into(),
        clock,
        tracer_version: (0, 1),
        start_time_s: offset_s,
        record_kind: RecordKind::Ids,
        tags: Vec::new(),
        format: Format::default(),
    });
    let id = [("id", FieldType::scalar(Kind::U64))];
    let mut pair = |name: &str| ["begin", "end"].map(|end| builder.class("app", &format!("{name}_{end}"), &id));
    let (request, query, lock) = (pair("request"), pair("query"), pair("lock"));
    let cpus = [0, 1].map(|cpu| builder.stream(cpu));
    builder.state(
        1,
        &StateRecord::Process { process: 1, pid: 7, vpid: 7, name: "app", program: "/bin/app", command_line: "" },
    );
    // The two threads of a CPU alternate, so that each stream is in order of time.
    let (mut times, mut put) = ([1000_u64; 2], 0);
    let mut at_id = 0;
    while put < events {
        at_id += 1;
        let cpu = (at_id % 2) as usize;
        let tid = 7 + (at_id % 4) as u32;
        let long = if at_id % 1000 == 0 { 100_000 } else { 500 + at_id * 7919 % 3000 };
        let mut event = |class: u16, after: u64| {
            times[cpu] += after;
            builder.event(cpus[cpu], times[cpu], 7, tid, class, &[Value::U64(at_id)]);
            put += 1;
        };
        event(request[0], 1000);
        event(query[0], 200);
        event(query[1], long);
        if at_id % 10 == 0 {
            event(lock[0], 100);
            event(lock[1], 400);
        }
        event(request[1], 300);
        if at_id % 500 == 0 {
            builder.packet(cpus[cpu], 0, 0);
        }
    }
    builder.finish().write(dir);
}

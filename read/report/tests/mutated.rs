//! Reports of traces whose bytes were changed.

use dormouse_abi::class::{FieldType, Kind};
use dormouse_analysis::timeline::{Options, Timeline};
use dormouse_ctf::{Merge, StateRecord, StreamReader, Trace, Value};
use dormouse_report::{Gather, PAGE_BYTES, Served};
use dormouse_testing::mutations::{Seed, alone};
use dormouse_traces::TraceBuilder;

/// Memory of a process that makes them.
const DATA_KIB: u64 = 96 << 10;
/// What is kept of a trace at most.
const LIMIT_BYTES: usize = 1 << 20;

/// Slices that nest, overlap and have a key, with fields of several kinds, counters and a loss.
fn builder() -> TraceBuilder {
    let mut builder = TraceBuilder::new();
    let s = FieldType::scalar;
    let fields = [("id", s(Kind::U64)), ("path", s(Kind::Str)), ("ratio", s(Kind::F64))];
    let request = ["request_entry", "request_exit"].map(|name| builder.class("http", name, &fields));
    let job = ["in", "out"].map(|name| builder.class("job", name, &[("id", s(Kind::U32))]));
    let queue = builder.class("net", "queue", &[("len", s(Kind::I64))]);
    let name = "</script>";
    builder.state(1, &StateRecord::Process { process: 7, pid: 7, vpid: 7, name, program: "", command_line: "" });
    let streams = [builder.stream(0), builder.stream(1)];
    for index in 0..40_u64 {
        let (stream, tid, time) = (streams[index as usize % 2], 7 + index as u32 % 3, 1000 * index);
        let values = [Value::U64(index), Value::Str(b"</script>\xFF"), Value::F64(0.5)];
        builder.event(stream, time, 7, tid, request[0], &values);
        builder.event(stream, time + 10, 7, tid, job[index as usize % 2], &[Value::U32(index as u32 / 2)]);
        builder.event(stream, time + 20, 7, tid, queue, &[Value::I64(index as i64)]);
        builder.event(stream, time + 30 + index, 7, tid, request[1], &values);
        if index % 10 == 9 {
            builder.packet(stream, 0, index);
        }
    }
    builder
}

/// Whatever is read, there is a page of it, no longer than it may be; and one that is served.
#[test]
fn mutated_traces_are_reported() {
    let Some((first, count)) = alone("mutated_traces_are_reported", 300, DATA_KIB) else { return };
    let whole = builder().finish();
    let (mut events, mut pages, mut script_ends) = (0, 0, None);
    for seed in first..first + count {
        let _seed = Seed(seed);
        let (metadata, streams) = whole.mutated(&mut dormouse_testing::random(seed));
        // Metadata that are none are refused before anything is read.
        let Ok(trace) = Trace::decode(&metadata) else { continue };
        let keyed = Options {
            pairs: vec![("job:in".into(), "job:out".into())],
            key: vec!["id".into()],
            counters: vec![("net:queue".into(), "len".into())],
        };
        for (options, is_served) in [(Options::default(), false), (keyed, true)] {
            let of_stream = [("s0", 0), ("s1", 0), ("s2", 0)];
            // Names of classes can have changed.
            let Ok(mut timeline) = Timeline::new(&options, &[&trace], of_stream) else { continue };
            timeline.limit(LIMIT_BYTES);
            let mut gather = Gather::new("mutated", timeline.names());
            gather.limit(LIMIT_BYTES);
            let readers =
                streams.iter().enumerate().map(|(index, bytes)| StreamReader::new(&trace, index, bytes.as_slice()));
            let mut read = Merge::new(readers);
            while let Some(next) = read.next_event() {
                match next {
                    Ok(event) => timeline.event(&event, &mut gather),
                    Err(notice) => {
                        let time_ns = read.streams()[notice.stream].time_ns();
                        timeline.notice(&notice, time_ns, &mut gather);
                    }
                }
            }
            let totals = timeline.finish(&mut gather);
            events += totals.events;
            let contents = gather.finish(&totals, Vec::new(), Vec::new());
            if is_served {
                assert!(Served::new(contents, PAGE_BYTES).is_ok(), "seed {seed}");
            } else {
                let mut page = Vec::new();
                let written =
                    contents.finish(PAGE_BYTES, &mut page).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                assert!(page.len() as u64 == written.size_bytes && written.size_bytes <= PAGE_BYTES, "seed {seed}");
                let text = String::from_utf8(page).expect("text");
                // No text of a trace ends the script.
                let ends = text.matches("</script>").count();
                assert_eq!(ends, *script_ends.get_or_insert(ends), "seed {seed}");
            }
            pages += 1;
        }
    }
    // One alone need not be readable.
    assert!(count < 100 || events > 10 * count && pages > count / 2, "{events} events of {pages} pages");
}

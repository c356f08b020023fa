//! Reports of traces with changed bytes.

use std::sync::Arc;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_analysis::timeline::{Options, Timeline};
use dormouse_ctf::{Merge, StateRecord, StreamReader, Trace, Value};
use dormouse_report::{Asked, Gather, Held, Kept, PAGE_BYTES, Part, Served, Show, Source, Survey};
use dormouse_testing::mutations::{Seed, alone};
use dormouse_traces::TraceBuilder;

/// Memory of a process that makes reports, in KiB.
const DATA_KIB: u64 = 96 << 10;
/// Maximum memory for the data of a trace, in bytes.
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

/// A mutated trace that can be read several times.
struct Mutated {
    trace: Trace,
    streams: Vec<Vec<u8>>,
}

impl Mutated {
    fn merge(&self) -> Merge<'_, &[u8]> {
        let readers = self.streams.iter().enumerate();
        Merge::new(readers.map(|(index, bytes)| StreamReader::new(&self.trace, index, bytes.as_slice())))
    }
}

/// A mutated trace as the source of a served report.
struct Again(Arc<Mutated>);

impl Source for Again {
    fn read(&self, first_ns: i64, last_ns: i64, show: Show<'_>) -> Result<(), String> {
        let mut read = self.0.merge();
        while let Some(next) = read.next_event() {
            match next {
                Ok(event) if event.time_ns.is_some_and(|ns| (first_ns..=last_ns).contains(&ns)) => show(&event, true),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Every trace that can be read gives a page within the size limit, and a served page that answers every request.
#[test]
fn mutated_traces_are_reported() {
    let Some((first, count)) = alone("mutated_traces_are_reported", 300, DATA_KIB) else { return };
    let whole = builder().finish();
    let (mut events, mut pages, mut found, mut script_ends) = (0, 0, 0, None);
    for seed in first..first + count {
        let _seed = Seed(seed);
        let (metadata, streams) = whole.mutated(&mut dormouse_testing::random(seed));
        // Unreadable metadata are rejected before anything else is read.
        let Ok(trace) = Trace::decode(&metadata) else { continue };
        let mutated = Arc::new(Mutated { trace, streams });
        let keyed = Options {
            pairs: vec!["job:in..job:out".parse().unwrap()],
            key: vec!["id".into()],
            counters: vec![("net:queue".into(), "len".into())],
            ..Options::default()
        };
        for (options, is_served) in [(Options::default(), false), (keyed, true)] {
            let of_stream = [("s0", 0), ("s1", 0), ("s2", 0)];
            // Names of classes can have changed.
            events += match is_served {
                false => {
                    let Ok(timeline) = Timeline::new(&options, &[&mutated.trace], of_stream) else { continue };
                    report(&mutated, timeline, seed, &mut script_ends)
                }
                true => {
                    let Ok(timeline) = Timeline::new(&options, &[&mutated.trace], of_stream) else { continue };
                    serve(&mutated, timeline, seed, &mut found)
                }
            };
            pages += 1;
        }
    }
    // A single trace may be unreadable.
    assert!(count < 100 || events > 10 * count && pages > count / 2, "{events} events of {pages} pages");
    assert!(count < 100 || found > 10, "fields of {found} items");
}

/// Makes a report and returns its number of events.
fn report(mutated: &Mutated, mut timeline: Timeline<Kept>, seed: u64, script_ends: &mut Option<usize>) -> u64 {
    timeline.limit(LIMIT_BYTES);
    let mut gather = Gather::new("mutated", timeline.names());
    gather.limit(LIMIT_BYTES);
    let mut read = mutated.merge();
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
    let contents = gather.finish(&totals, Vec::new(), Vec::new());
    let mut page = Vec::new();
    let written = contents.finish(PAGE_BYTES, &mut page).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert!(page.len() as u64 == written.size_bytes && written.size_bytes <= PAGE_BYTES, "seed {seed}");
    let text = String::from_utf8(page).expect("text");
    // No text of a trace ends the script.
    let ends = text.matches("</script>").count();
    assert_eq!(ends, *script_ends.get_or_insert(ends), "seed {seed}");
    totals.events
}

/// Makes a served report and returns its number of events. `found`: incremented for each item that has fields.
fn serve(mutated: &Arc<Mutated>, mut timeline: Timeline<Held>, seed: u64, found: &mut u64) -> u64 {
    timeline.limit(LIMIT_BYTES);
    // Room for only some of the entries.
    let mut survey = Survey::new("mutated", timeline, 64 << 10);
    let mut read = mutated.merge();
    while let Some(next) = read.next_event() {
        match next {
            Ok(event) => survey.event(&event, true),
            Err(notice) => survey.notice(&notice, read.streams()[notice.stream].time_ns()),
        }
    }
    let (surveyed, totals) = survey.finish();
    let surveyed = surveyed.told(&totals, Vec::new(), Vec::new(), false, None);
    let served = Served::new(surveyed, Box::new(Again(Arc::clone(mutated))), PAGE_BYTES);
    let served = served.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    for is_cpu in [false, true] {
        for (begin, end, step) in [(0, u64::MAX, 1), (0, 20_000, 1), (10_000, 10_100, 0), (u64::MAX, 0, u64::MAX)] {
            assert!(served.part(Part::Time { begin, end, is_cpu, step }).is_ok_and(|bytes| bytes.len() > 4));
        }
        for key in [1, 2, u32::MAX] {
            assert!(served.part(Part::Key { key, is_cpu, begin: 1000, end: 3000 }).is_ok());
        }
    }
    for (thread, name) in (0..3).flat_map(|thread| (0..5).map(move |name| (thread, name))) {
        for (is_slice, begin, duration) in [(false, 1020, 0), (false, 20_020, 0), (true, 0, 30), (true, 30_000, 60)] {
            let asked = Asked { thread, name, is_slice, begin, duration };
            *found += u64::from(served.fields(&asked).expect("it can be read").is_some());
        }
    }
    totals.events
}

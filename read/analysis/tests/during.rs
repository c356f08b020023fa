//! The events that belong to slices, in generated traces.

use dormouse_abi::class::{FieldType, Kind};
use dormouse_analysis::during::{Asked, Chooser, Contents, Slice, Windows};
use dormouse_analysis::timeline::{FoundKey, Options};
use dormouse_ctf::{Merge, PairEnd, StreamReader, Trace, Value};
use dormouse_filter::Filter;
use dormouse_traces::TraceBuilder;

/// Epoch of the traces' clock, in nanoseconds since the Unix epoch.
const EPOCH_NS: i64 = 1_700_000_000 * 1_000_000_000;
const PID: u32 = 7;

/// A trace in the making: each event has a thread and a number, and the next time.
struct Maker {
    builder: TraceBuilder,
    stream: usize,
    classes: Vec<(&'static str, u16)>,
    time: u64,
}

impl Maker {
    fn new() -> Maker {
        let mut builder = TraceBuilder::new();
        let id = [("id", FieldType::scalar(Kind::U64))];
        let names = ["req_begin", "req_end", "step_begin", "step_end", "part_begin", "part_end", "noise"];
        let mut classes = names.map(|name| (name, builder.class("app", name, &id))).to_vec();
        classes.push(("plain", builder.class("app", "plain", &[])));
        let stream = builder.stream(0);
        Maker { builder, stream, classes, time: 0 }
    }

    /// Adds an event and returns its time. A `plain` one has no id.
    fn put(&mut self, tid: u32, name: &str, id: u64) -> u64 {
        self.time += 10;
        let class = self.classes.iter().find(|(known, _)| *known == name).unwrap().1;
        let values: &[Value<'_>] = if name == "plain" { &[] } else { &[Value::U64(id)] };
        self.builder.event(self.stream, self.time, PID, tid, class, values);
        self.time
    }

    fn read(mut self) -> (Trace, Vec<u8>) {
        self.builder.packet(self.stream, 0, 0);
        let trace = self.builder.finish();
        (Trace::decode(trace.metadata.as_bytes()).unwrap(), trace.streams[self.stream].clone())
    }
}

/// A slice, and its events: time, depth, and name and duration of what the event ends.
type Told = (Slice, Vec<(u64, u32, Option<(String, u64)>)>);

const STREAMS: [(&str, usize); 1] = [("s", 0)];

/// Returns the slices and their events. `keyed`: names of slices that are paired by `id`.
fn during(
    (trace, bytes): &(Trace, Vec<u8>),
    asked: &Asked,
    given: &Options,
    keyed: &[&str],
) -> Result<Vec<Told>, String> {
    let found = keyed.iter().map(|name| FoundKey {
        name: name.to_string(),
        fields: vec!["id".into()],
        alone: 0,
        alone_by_thread: 1,
    });
    let options = Options { found: found.collect(), ..Options::default() };
    let given = Options { found: options.found.clone(), ..given.clone() };
    let events = || Merge::new([StreamReader::new(trace, 0, bytes.as_slice())]);
    let mut chooser = Chooser::new(asked, &given, &[trace], STREAMS)?;
    let mut all = events();
    while let Some(Ok(event)) = all.next_event() {
        chooser.event(&event);
    }
    let chosen = chooser.finish();
    assert!(chosen.count >= chosen.slices.len() as u64 && chosen.across_losses == 0);
    let mut told = Vec::new();
    for slice in chosen.slices {
        let is_within = |ns: Option<i64>| ns.is_some_and(|ns| (slice.begin_ns..=slice.end_ns()).contains(&ns));
        let (mut windows, mut reader) = Windows::new(&slice, &options, &[trace], &STREAMS)?;
        let (mut part, mut ends) = (events(), Vec::new());
        while let Some(Ok(event)) = part.next_event() {
            if is_within(event.time_ns) {
                ends.extend(windows.event(&event, &mut reader));
            }
        }
        assert_eq!(ends, [PairEnd::Begin, PairEnd::End]);
        let mut contents = Contents::new(&slice, windows.finish(), &options, &[trace], &STREAMS)?;
        let (mut part, mut lines) = (events(), Vec::new());
        while let Some(Ok(event)) = part.next_event() {
            let found = if is_within(event.time_ns) { contents.event(&event) } else { None };
            if let Some(found) = found {
                let time = (event.time_ns.unwrap() - EPOCH_NS) as u64;
                assert_eq!(found.since_ns, event.time_ns.unwrap().abs_diff(slice.begin_ns));
                lines.push((time, found.depth, found.ended));
            }
        }
        told.push((slice, lines));
    }
    Ok(told)
}

fn asked(name: &str, slowest: Option<usize>) -> Asked {
    Asked { name: name.into(), conditions: Vec::new(), slowest }
}

fn times(told: &Told) -> Vec<u64> {
    told.1.iter().map(|(time, ..)| *time).collect()
}

#[test]
fn a_slice_of_a_thread_has_the_events_of_its_thread() {
    let mut maker = Maker::new();
    maker.put(1, "req_begin", 1);
    maker.put(1, "plain", 0);
    maker.put(2, "plain", 0);
    maker.put(1, "step_begin", 5);
    maker.put(1, "plain", 0);
    maker.put(1, "step_end", 5);
    maker.put(1, "req_end", 1);
    maker.put(1, "plain", 0);
    let told = during(&maker.read(), &asked("app:req", None), &Options::default(), &[]).unwrap();
    assert_eq!(told.len(), 1);
    assert!(told[0].0.key.is_empty());
    let ended = |name: &str, ns| Some((name.to_string(), ns));
    let expected = [
        (10, 0, None),
        (20, 1, None),
        (40, 1, None),
        (50, 2, None),
        (60, 1, ended("app:step", 20)),
        (70, 0, ended("app:req", 60)),
    ];
    assert_eq!(told[0].1, expected);
}

/// A thread whose events have several keys meanwhile works on none of them alone.
#[test]
fn slices_that_share_a_thread_have_only_the_events_with_their_key() {
    let mut maker = Maker::new();
    for (name, id) in
        [("req_begin", 1), ("noise", 1), ("req_begin", 2), ("noise", 1), ("req_end", 1), ("noise", 1), ("req_end", 2)]
    {
        maker.put(1, name, id);
    }
    for (name, id) in [("req_begin", 3), ("req_begin", 4), ("noise", 4), ("req_end", 4), ("noise", 4), ("req_end", 3)] {
        maker.put(1, name, id);
    }
    for (tid, name) in [(1, "req_begin"), (2, "noise"), (1, "step_begin"), (1, "step_end"), (1, "req_end")] {
        maker.put(tid, name, 5);
    }
    let told = during(&maker.read(), &asked("app:req", None), &Options::default(), &["app:req"]).unwrap();
    let all: Vec<_> = told.iter().map(times).collect();
    let expected =
        [vec![10, 20, 40, 50], vec![30, 70], vec![80, 130], vec![90, 100, 110], (14..=18).map(|at| at * 10).collect()];
    assert_eq!(all, expected);
}

/// The event that ends the slice is within a slice of the same key that ends later, on a thread that began it elsewhere.
#[test]
fn a_slice_of_the_key_can_end_later_and_a_handed_over_one_is_no_work() {
    let mut maker = Maker::new();
    for (tid, name, id) in [
        (1, "req_begin", 1),
        (1, "part_begin", 1),
        (1, "plain", 0),
        (2, "part_end", 1),
        (2, "step_begin", 1),
        (2, "plain", 0),
        (1, "plain", 0),
        (2, "req_end", 1),
        (2, "plain", 0),
        (2, "step_end", 1),
    ] {
        maker.put(tid, name, id);
    }
    let keyed = ["app:req", "app:part"];
    let told = during(&maker.read(), &asked("app:req", None), &Options::default(), &keyed).unwrap();
    assert_eq!(told.iter().map(times).collect::<Vec<_>>(), [[10, 20, 40, 50, 60, 80]]);
}

#[test]
fn the_slowest_and_conditions_choose_slices() {
    let mut maker = Maker::new();
    for id in [3, 1, 4, 1, 5, 9, 2, 6] {
        maker.put(1, "req_begin", id);
        (0..id).for_each(|_| _ = maker.put(1, "plain", 0));
        maker.put(1, "req_end", id + 100);
    }
    let trace = maker.read();
    let ids = |slowest: Option<usize>, condition: &str, given: &Options, name: &str| {
        let filter = Filter::parse(condition).unwrap();
        let asked = Asked { conditions: vec![("--where".into(), filter)], ..asked(name, slowest) };
        let told = during(&trace, &asked, given, &[])?;
        Ok::<_, String>(
            told.iter()
                .map(|(slice, lines)| {
                    assert_eq!(slice.latency_ns, 10 * (lines.len() as u64 - 1));
                    lines.len() as u64 - 2
                })
                .collect::<Vec<_>>(),
        )
    };
    let none = Options::default();
    assert_eq!(ids(None, "id > 0", &none, "app:req").unwrap(), [3, 1, 4, 1, 5, 9, 2, 6]);
    assert_eq!(ids(Some(3), "id > 0", &none, "app:*").unwrap(), [9, 6, 5]);
    assert_eq!(ids(Some(3), "end.id < 105", &none, "app:req").unwrap(), [4, 3, 2]);
    assert_eq!(ids(None, "latency >= 60", &none, "app:req").unwrap(), [5, 9, 6]);
    let given = Options { pairs: vec!["app:req_b*..app:req_e*".parse().unwrap()], ..none.clone() };
    assert_eq!(ids(Some(2), "begin.id != 9", &given, "app:req_b*..app:req_e*").unwrap(), [6, 5]);
    for (condition, name, expected) in [
        ("ids == 1", "app:req", "--where: line 1, column 1: no event has ids; id is the nearest"),
        ("id == 1", "app:rec", "no slices of the trace are called `app:rec`; the nearest is `app:req`"),
        ("id == 1", "app:noise", "no slices of the trace are called `app:noise`"),
    ] {
        let error = ids(None, condition, &none, name).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// Requests that change threads step by step; every event knows to which request it belongs.
#[test]
fn random_requests_have_the_events_that_their_threads_wrote_for_them() {
    const THREADS: usize = 4;
    for seed in 0..100_u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |end: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) as usize % end
        };
        let mut maker = Maker::new();
        // Events and the begin of each request; the request that each thread works on.
        let mut events: Vec<(Vec<u64>, bool)> = Vec::new();
        let mut works: [Option<usize>; THREADS] = [None; THREADS];
        for _ in 0..300 {
            let thread = below(THREADS);
            let tid = 20 + thread as u32;
            let open: Vec<usize> =
                (0..events.len()).filter(|at| !events[*at].1 && !works.contains(&Some(*at))).collect();
            match (works[thread], below(5)) {
                (Some(at), 0) => {
                    let time = maker.put(tid, "step_end", at as u64);
                    events[at].0.push(time);
                    works[thread] = None;
                }
                (Some(at), 1..) => {
                    let time = maker.put(tid, "plain", 0);
                    events[at].0.push(time);
                }
                // With an id of its own: otherwise it would be part of a request that begins and ends on this thread.
                (None, 0) => _ = maker.put(tid, "noise", 1000),
                (None, 1) => {
                    let time = maker.put(tid, "req_begin", events.len() as u64);
                    events.push((vec![time], false));
                }
                (None, 2) if !open.is_empty() => {
                    let at = open[below(open.len())];
                    let time = maker.put(tid, "req_end", at as u64);
                    events[at].0.push(time);
                    events[at].1 = true;
                }
                (None, 3..) if !open.is_empty() => {
                    let at = open[below(open.len())];
                    let time = maker.put(tid, "step_begin", at as u64);
                    events[at].0.push(time);
                    works[thread] = Some(at);
                }
                (None, _) => {}
            }
        }
        let told = during(&maker.read(), &asked("app:req", None), &Options::default(), &["app:req"]).unwrap();
        let expected: Vec<Vec<u64>> =
            events.into_iter().filter(|(_, is_over)| *is_over).map(|(times, _)| times).collect();
        assert_eq!(told.iter().map(times).collect::<Vec<_>>(), expected, "seed {seed}");
    }
}

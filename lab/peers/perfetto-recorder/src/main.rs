//! Engine `perfetto-recorder`: spans of that crate, which keeps them in memory and converts them to a Perfetto trace
//! afterwards.
//!
//! # Configuration
//! Features `enable` and `fastant` (the timestamp counter as its clock), as its documentation recommends for low
//! overhead. Room for the next spans is reserved in the thread's list. The crate has no ring: its list grows until the
//! thread's data is taken. So the engine takes it every 1,000 spans, and keeps the last 16 portions, some 2 MB. That is
//! a flight recorder as an application would build it on this crate. A thousandth of the cost of taking and reserving
//! is part of each span's figure. Memory is reused and stays in the caches; a list that grows for minutes would also
//! pay for fresh pages.
//!
//! # Cases
//! One event is one span: entered and left, each with its time. Fields are the span's arguments. There is no dormant
//! case: once the crate has started to record, it never stops.
//!
//! # Counts
//! The crate converts the kept portions to a trace, and the packets that begin a span are counted. If a loop runs
//! iteration by iteration, the spans since the last taking are in the thread's own list, which no reader can reach;
//! they are counted as arrived.
//!
//! Source: the crate's documentation and `examples/benchmark.rs`.

use std::cell::Cell;
use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_lab_harness::Engine;
use dormouse_lab_peer::{EMPTY, EMPTY_SITES_CASES, Sites, cases, each, each_site, flat, report, sites, text, version};
use perfetto_recorder::{
    EVENTS_PER_ARG, EVENTS_PER_SPAN, ThreadTraceData, TraceBuilder, current_thread_reserve, scope,
};

/// Number of spans between two takings.
const SPANS: u64 = 1000;
/// Number of portions that are kept.
const KEPT: usize = 16;

static TAKEN: Mutex<VecDeque<ThreadTraceData>> = Mutex::new(VecDeque::new());
/// Number of spans that are not taken yet.
static OPEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OPEN_HERE: Cell<u64> = const { Cell::new(0) };
}

/// Takes the spans that this thread has recorded.
fn take() {
    let data = ThreadTraceData::take_current_thread();
    let oldest = TAKEN.lock().ok().and_then(|mut taken| {
        taken.push_back(data);
        if taken.len() > KEPT { taken.pop_front() } else { None }
    });
    drop(oldest);
    current_thread_reserve(SPANS as usize * (EVENTS_PER_SPAN + EVENTS_PER_ARG));
    OPEN.fetch_sub(OPEN_HERE.take(), Ordering::Relaxed);
}

/// Runs the loop in pieces between takings.
#[inline(always)]
fn spans(iterations: u64, first: u64, run: impl Fn(u64, u64)) {
    let mut done = 0;
    while done < iterations {
        if OPEN_HERE.get() >= SPANS {
            take();
        }
        let count = (iterations - done).min(SPANS - OPEN_HERE.get());
        OPEN_HERE.set(OPEN_HERE.get() + count);
        OPEN.fetch_add(count, Ordering::Relaxed);
        run(count, first + done);
        done += count;
    }
}

extern "C" fn armed_none(iterations: u64, first: u64) {
    spans(iterations, first, |iterations, first| {
        each(iterations, first, |_| {
            scope!("none");
        });
    });
}

extern "C" fn armed_u64(iterations: u64, first: u64) {
    spans(iterations, first, |iterations, first| {
        each(iterations, first, |number| {
            scope!("u64", number);
        });
    });
}

extern "C" fn armed_ints3(iterations: u64, first: u64) {
    spans(iterations, first, |iterations, first| {
        each(iterations, first, |number| {
            scope!("ints3", a = number, b = -(number as i64), c = number as u32);
        });
    });
}

extern "C" fn armed_str32(iterations: u64, first: u64) {
    spans(iterations, first, |iterations, first| {
        each(iterations, first, |number| {
            scope!("str32", text = text(number));
        });
    });
}

macro_rules! armed_site {
    ($a:literal $b:literal $c:literal) => {{
        #[inline(never)]
        fn site(value: u64) {
            // It contains its number, so that the compiler merges no two functions; the empty sites contain theirs too.
            std::hint::black_box(value ^ ($a * 100 + $b * 10 + $c));
            scope!("site", value);
        }
        site
    }};
}

static ARMED_SITES: Sites = sites!(armed_site);

extern "C" fn armed_sites_10(iterations: u64, first: u64) {
    spans(iterations, first, |iterations, first| each_site::<10>(iterations, first, flat(&ARMED_SITES)));
}

extern "C" fn armed_sites_1000(iterations: u64, first: u64) {
    spans(iterations, first, |iterations, first| each_site::<1000>(iterations, first, flat(&ARMED_SITES)));
}

// Numbers of fields in Perfetto's protocol: `Trace.packet`, `TracePacket.track_event`, `TrackEvent.type`; and the value
// TYPE_SLICE_BEGIN.
const PACKET: u64 = 1;
const TRACK_EVENT: u64 = 11;
const TYPE: u64 = 9;
const SLICE_BEGIN: u64 = 1;

/// Takes a varint off the front of an encoded message.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let len = bytes.iter().position(|byte| byte & 0x80 == 0)? + 1;
    let (encoded, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(encoded.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f)))
}

/// Number and value of a field: the value is a number, or bytes.
type Value<'a> = (u64, Option<u64>, &'a [u8]);

/// Takes the next field off the front of a message.
fn field<'a>(bytes: &mut &'a [u8]) -> Option<Value<'a>> {
    let tag = number(bytes)?;
    let len = match tag & 7 {
        0 => return Some((tag >> 3, Some(number(bytes)?), &[])),
        1 => 8,
        2 => number(bytes)? as usize,
        5 => 4,
        _ => return None,
    };
    let (value, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some((tag >> 3, None, value))
}

fn fields(mut bytes: &[u8], wanted: u64) -> impl Iterator<Item = Value<'_>> {
    std::iter::from_fn(move || field(&mut bytes)).filter(move |(number, ..)| *number == wanted)
}

fn arrived() -> Result<u64, String> {
    let mut trace = TraceBuilder::new().map_err(|error| format!("{error:?}"))?;
    for data in TAKEN.lock().map_err(|error| error.to_string())?.iter() {
        trace.process_thread_data(data);
    }
    let trace = trace.encode_to_vec();
    let events = fields(&trace, PACKET).flat_map(|(_, _, packet)| fields(packet, TRACK_EVENT));
    let begun = events.filter(|(_, _, event)| fields(event, TYPE).any(|(_, kind, _)| kind == Some(SLICE_BEGIN)));
    let (begun, open) = (begun.count() as u64, OPEN.load(Ordering::Relaxed));
    report(begun + open, 0, &format!("{open} of them not taken yet"))
}

fn main() -> ExitCode {
    if let Err(error) = perfetto_recorder::start() {
        eprintln!("perfetto-recorder: {error:?}");
        return ExitCode::from(2);
    }
    let mut cases = vec![EMPTY];
    cases.extend(EMPTY_SITES_CASES);
    cases.extend(cases![armed_none, armed_u64, armed_ints3, armed_str32, armed_sites_10, armed_sites_1000]);
    let (name, version) = ("perfetto-recorder", version("perfetto-recorder"));
    dormouse_lab_harness::main(&Engine { name, version, cases, arrived: Some(arrived) })
}

//! Engine `fastrace`: local spans of fastrace below a parent, as its documentation recommends for synchronous code.
//!
//! # Configuration
//! The reporter counts span records and drops them; the crate's collector thread calls it every 100 ms at the latest.
//! Every span is sampled. A thread's list of local spans holds 10,240 spans, and later ones are dropped silently. So a
//! parent has 1,000 spans. A thousandth of the parent's own cost, a root span with its guard, is part of each span's.
//!
//! # Cases
//! One event is one span: entered and left, with both times, in one record. Fields are properties, which are strings;
//! numbers are formatted, as an application must. Dormant: no parent, so the span records nothing.
//!
//! # Counts
//! Counts are the reporter's. If a loop runs iteration by iteration, the parent stays open between them. Its unfinished
//! spans, fewer than 1,000 for each thread, are in the thread's own list, which no reader can reach; they are counted
//! as arrived.
//!
//! # Limits
//! The collector takes longer for a span than a thread takes to record it. Measured without pause it falls behind. The
//! crate then keeps up to 10,240 parents in its channel (gigabytes, with 1,000 spans each) and drops others silently:
//! fewer events arrive than were emitted, and the lab reports it. When engines take turns, the collector has enough
//! time.
//!
//! Source: the crate's documentation of `LocalSpan`, `Config` and `Reporter`.

use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dormouse_lab_harness::Engine;
use dormouse_lab_peer::{EMPTY, cases, each, report, text, version};
use fastrace::Span;
use fastrace::collector::{Config, Reporter, SpanContext, SpanRecord};
use fastrace::local::{LocalParentGuard, LocalSpan};

/// Number of spans of a parent.
const SPANS: u64 = 1000;
const PARENT: &str = "parent";

static REPORTED: AtomicU64 = AtomicU64::new(0);
/// Number of spans whose parents are still open.
static OPEN: AtomicU64 = AtomicU64::new(0);

struct Counting;

impl Reporter for Counting {
    fn report(&mut self, spans: Vec<SpanRecord>) {
        let count = spans.iter().filter(|span| span.name != PARENT).count();
        REPORTED.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// A parent and the number of its spans. Fields drop in order: the guard first.
struct Parent {
    _guard: LocalParentGuard,
    _span: Span,
    count: u64,
}

thread_local! {
    static PARENT_HERE: RefCell<Option<Parent>> = const { RefCell::new(None) };
}

/// Ends this thread's parent, whose spans then go to the collector.
fn close() {
    PARENT_HERE.with_borrow_mut(|here| {
        if let Some(parent) = here.take() {
            OPEN.fetch_sub(parent.count, Ordering::Relaxed);
        }
    });
}

/// Ensures that there is a parent with room. Returns the number of spans that it has room for, at most `wanted`, and
/// counts them as used.
fn room(wanted: u64) -> u64 {
    PARENT_HERE.with_borrow_mut(|here| {
        if here.as_ref().is_some_and(|parent| parent.count == SPANS)
            && let Some(parent) = here.take()
        {
            OPEN.fetch_sub(parent.count, Ordering::Relaxed);
        }
        let parent = here.get_or_insert_with(|| {
            let span = Span::root(PARENT, SpanContext::random());
            Parent { _guard: span.set_local_parent(), _span: span, count: 0 }
        });
        let room = wanted.min(SPANS - parent.count);
        parent.count += room;
        OPEN.fetch_add(room, Ordering::Relaxed);
        room
    })
}

/// Runs the loop in pieces that a parent has room for.
#[inline(always)]
fn spans(iterations: u64, first: u64, body: impl Fn(u64)) {
    let mut done = 0;
    while done < iterations {
        let room = room(iterations - done);
        each(room, first + done, &body);
        done += room;
    }
    if iterations > 1 {
        close();
    }
}

extern "C" fn armed_none(iterations: u64, first: u64) {
    spans(iterations, first, |_| {
        let _span = LocalSpan::enter_with_local_parent("none");
    });
}

extern "C" fn armed_u64(iterations: u64, first: u64) {
    spans(iterations, first, |number| {
        let _span = LocalSpan::enter_with_local_parent("u64").with_property(|| ("number", number.to_string()));
    });
}

extern "C" fn armed_ints3(iterations: u64, first: u64) {
    spans(iterations, first, |number| {
        let _span = LocalSpan::enter_with_local_parent("ints3").with_properties(|| {
            [("a", number.to_string()), ("b", (-(number as i64)).to_string()), ("c", (number as u32).to_string())]
        });
    });
}

extern "C" fn armed_str32(iterations: u64, first: u64) {
    spans(iterations, first, |number| {
        let _span = LocalSpan::enter_with_local_parent("str32").with_property(|| ("text", text(number)));
    });
}

extern "C" fn dormant_u64(iterations: u64, first: u64) {
    close();
    each(iterations, first, |number| {
        let _span = LocalSpan::enter_with_local_parent("u64").with_property(|| ("number", number.to_string()));
    });
}

fn arrived() -> Result<u64, String> {
    fastrace::flush();
    let open = OPEN.load(Ordering::Relaxed);
    let text = format!("{open} of them below parents that are open; the crate counts none that it drops");
    report(REPORTED.load(Ordering::Relaxed) + open, 0, &text)
}

fn main() -> ExitCode {
    fastrace::set_reporter(Counting, Config::default().report_interval(Duration::from_millis(100)));
    let mut cases = vec![EMPTY];
    cases.extend(cases![armed_none, armed_u64, armed_ints3, armed_str32, dormant_u64]);
    dormouse_lab_harness::main(&Engine {
        name: "fastrace",
        version: version("fastrace"),
        cases,
        arrived: Some(arrived),
    })
}

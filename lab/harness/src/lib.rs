//! The measuring side of the lab: an engine is a process that has loops, and times them on request.
//!
//! # The problem
//! To compare tracers, each must run in a process of its own, and yet all must be measured in turn, by the same means,
//! on the same CPU. So all engines are the same program except for their loops, whatever their tracer and language.
//!
//! # The picture
//! ```text
//!   dormouse lab run                                       engine
//!        │ {"do":"describe"}                       ─────▶   name, version, cases, CPUs, counters
//!        │ {"do":"run","case":"armed_u64",
//!        │  "iterations":100000,"threads":1}       ─────▶   worker 0 … n, each pinned:  warm up, timed run
//!        │                         ◀─────  ns and cycles per iteration, events emitted, counters
//!        │ {"do":"arrived"}                        ─────▶   count of the tracer's own reader, if it has one
//!        └ end of input                            ─────▶   exit
//! ```
//! Each request and each answer is one line of JSON. An engine that has nothing to do blocks on its input and disturbs
//! no measurement.
//!
//! # What is timed
//! Hot ([`Walk::None`]): a whole loop is timed, after an untimed eighth of it. Under memory pressure: each iteration is
//! timed alone, after a walk over a buffer that drives other data out of the caches and a prefetch of the loop's code;
//! the middle half of the iterations is averaged. One more worker may run another case meanwhile ([`Run::beside`]),
//! from before the first timed iteration to after the last.
//!
//! # Memory
//! Buffers that loops use are checked before they are timed ([`assure_backed`]): if a buffer is not backed by memory,
//! the engine refuses to give figures. Page faults during the timed iterations are always counted.
//!
//! # Limits
//! Times are read from the timestamp counter between fences, and converted by a rate that is measured at the start
//! against `CLOCK_MONOTONIC_RAW`; without such a counter, that clock itself is read. The counter's frequency is not
//! assumed to be the core's.

mod backed;
mod c;
mod clock;
mod counters;
pub mod interrupts;
mod loops;
pub mod pages;
pub mod ring;
mod walk;
mod worker;

use std::io::{BufRead, Write};
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

pub use backed::{assure_backed, assure_backed_raw};
pub use c::CCase;
pub use clock::cycles_per_ns;
pub use counters::{Counters, counters};
pub use loops::{align, opaque, pad, scattered};
pub use walk::Walk;
pub use worker::{Policy, Seat, seat, set_scheduler};

use worker::Workers;

/// Runs a case's body `iterations` times. The loop records the numbers `first`, `first + 1`, … and uses them to choose
/// among its sites.
pub type Loop = extern "C" fn(iterations: u64, first: u64);

/// A loop that the lab can request.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Name in requests, for example `armed_u64`.
    pub name: &'static str,
    /// The loop.
    pub run: Loop,
    /// Number of events that one iteration emits.
    pub events_per_iteration: u64,
}

/// The parts in which engines differ.
#[derive(Debug)]
pub struct Engine {
    /// Name of the tracer.
    pub name: &'static str,
    /// Version of the tracer.
    pub version: String,
    /// Loops of the engine.
    pub cases: Vec<Case>,
    /// Ends the tracing and counts the events that arrived, or says why the number is unknown.
    pub arrived: Option<fn() -> Result<u64, String>>,
}

/// A request to an engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// Asks for a [`Description`].
    Describe,
    /// Asks to time a case.
    Run(Run),
    /// Asks how many of the emitted events have arrived.
    Arrived,
}

/// Parameters of a timed run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Name of the case.
    pub case: String,
    /// Number of timed iterations of each thread.
    pub iterations: u64,
    /// Number of threads that run the case at once.
    pub threads: usize,
    /// Walk before each iteration.
    pub walk: Walk,
    /// Name of a case that one more thread runs over and over meanwhile, untimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
}

/// An engine's description of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Name of the tracer.
    pub name: String,
    /// Version of the tracer.
    pub version: String,
    /// Names of its cases.
    pub cases: Vec<String>,
    /// CPU of each worker, or none if it could not be pinned.
    pub processors: Vec<Option<u32>>,
    /// Scheduling policy in force, with the reason if it is not the requested one.
    pub policy: String,
    /// Cycles of the timestamp counter per nanosecond; none without such a counter.
    pub tsc_cycles_per_ns: Option<f64>,
    /// Counters that are not available, with the cause.
    pub counters_refused: Vec<(String, String)>,
}

/// Result of a timed run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Time of one iteration in nanoseconds, mean over the threads.
    pub ns: f64,
    /// Number of iterations of all threads, including warm-up.
    pub iterations: u64,
    /// Number of events that these iterations emitted.
    pub events: u64,
    /// Counters of each thread, in the order of the CPUs, by name, each divided by the thread's iterations.
    pub counters: Vec<std::collections::BTreeMap<String, f64>>,
    /// Page faults of all threads during the timed iterations and the walks before them.
    #[serde(default)]
    pub faults: u64,
    /// Buffers for which the kernel does not report whether they are backed, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untold: Vec<String>,
}

/// Number of events that arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrived {
    /// Number that the tracer's own reader counted.
    pub events: Option<u64>,
    /// Reason why the number is unknown.
    pub why: Option<String>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Answer to [`Request::Describe`].
    Description(Description),
    /// Answer to [`Request::Run`].
    Timing(Timing),
    /// Answer to [`Request::Arrived`].
    Arrived(Arrived),
    /// The reason why the request was not met.
    Refused(String),
}

/// Options of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Options {
    processors: Vec<u32>,
    policy: Policy,
}

/// Environment variable with the path of a file to which an engine's `arrived` writes more than the count.
pub const COUNTS: &str = "DORMOUSE_LAB_COUNTS";

/// Reports to the lab how many events arrived and how many the tracer lost by its own count, in a line `ARRIVED LOST
/// TEXT` of the file that [`COUNTS`] names. Returns `arrived`.
///
/// # Errors
/// If the file cannot be written.
pub fn report(arrived: u64, lost: u64, text: &str) -> Result<u64, String> {
    if let Some(path) = std::env::var_os(COUNTS) {
        let line = format!("{arrived} {lost} {text}\n");
        std::fs::write(&path, line).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(arrived)
}

const USAGE: &str = "usage: ENGINE --cpus N[,N…] [--policy other|fifo]";

fn options(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options { processors: Vec::new(), policy: Policy::Other };
    let mut arguments = arguments.peekable();
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match name.as_str() {
            "--cpus" => {
                let numbers: Result<_, _> = value.split(',').map(str::parse).collect();
                options.processors = numbers.map_err(|_| USAGE)?;
            }
            "--policy" => options.policy = value.parse()?,
            _ => return Err(USAGE.into()),
        }
    }
    if options.processors.is_empty() { Err(USAGE.into()) } else { Ok(options) }
}

/// The engine's `main`: answers requests until input ends.
///
/// Exit codes: 0; 2 for a wrong command line, or if the answers cannot be written.
pub fn main(engine: &Engine) -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(text) => {
            eprintln!("{}: {text}", engine.name);
            return ExitCode::from(2);
        }
    };
    let mut workers = Workers::start(&options.processors, options.policy);
    let stdin = std::io::stdin().lock();
    for line in stdin.lines() {
        let Ok(line) = line else { break };
        let answer = match serde_json::from_str(&line) {
            Ok(request) => answer(engine, &mut workers, request),
            Err(error) => Answer::Refused(format!("not a request: {error}")),
        };
        let text = serde_json::to_string(&answer).unwrap_or_else(|error| format!("{{\"refused\":\"{error}\"}}"));
        let mut stdout = std::io::stdout().lock();
        if writeln!(stdout, "{text}").and_then(|()| stdout.flush()).is_err() {
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn answer(engine: &Engine, workers: &mut Workers, request: Request) -> Answer {
    match request {
        Request::Describe => Answer::Description(Description {
            name: engine.name.into(),
            version: engine.version.clone(),
            cases: engine.cases.iter().map(|case| case.name.into()).collect(),
            processors: workers.processors(),
            policy: workers.policy(),
            tsc_cycles_per_ns: clock::IS_TSC.then(cycles_per_ns),
            counters_refused: workers.counters_refused(),
        }),
        Request::Run(run) => {
            let find = |name: &String| {
                let found = engine.cases.iter().find(|case| case.name == name);
                found.ok_or_else(|| format!("there is no case `{name}`"))
            };
            let timing = find(&run.case).and_then(|case| {
                let beside = run.beside.as_ref().map(find).transpose()?;
                workers.run(case, beside, &run)
            });
            timing.map_or_else(Answer::Refused, Answer::Timing)
        }
        Request::Arrived => Answer::Arrived(match engine.arrived.map(|count| count()) {
            Some(Ok(events)) => Arrived { events: Some(events), why: None },
            Some(Err(why)) => Arrived { events: None, why: Some(why) },
            None => Arrived { events: None, why: Some("its reader is not asked".into()) },
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        options(line.split_whitespace().map(String::from))
    }

    #[test]
    fn command_lines_are_parsed() {
        assert_eq!(parse("--cpus 1,0"), Ok(Options { processors: vec![1, 0], policy: Policy::Other }));
        assert_eq!(parse("--cpus 3 --policy fifo").map(|options| options.policy), Ok(Policy::Fifo));
        for wrong in ["", "--cpus", "--cpus x", "--cpus 1 --policy deadline", "--speed 3"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_request_is_a_line_of_json() {
        let request = Request::Run(Run {
            case: "a".into(),
            iterations: 5,
            threads: 2,
            walk: Walk::Random { bytes: 64 },
            beside: None,
        });
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(text, r#"{"do":"run","case":"a","iterations":5,"threads":2,"walk":{"kind":"random","bytes":64}}"#);
        assert!(matches!(serde_json::from_str(&text), Ok(Request::Run(run)) if run.threads == 2));
    }

    extern "C" fn nothing(iterations: u64, first: u64) {
        for number in first..first + iterations {
            std::hint::black_box(number);
        }
    }

    #[test]
    fn runs_count_their_events() {
        let engine = Engine {
            name: "test",
            version: String::new(),
            cases: vec![Case { name: "nothing", run: nothing, events_per_iteration: 2 }],
            arrived: None,
        };
        let mut workers = Workers::start(&[0], Policy::Other);
        let run = |case: &str, threads, walk| {
            Request::Run(Run { case: case.into(), iterations: 80, threads, walk, beside: None })
        };
        let events = |answer| match answer {
            Answer::Timing(timing) => timing.events,
            other => panic!("{other:?}"),
        };
        // Eighty, and ten for warm-up.
        assert_eq!(events(answer(&engine, &mut workers, run("nothing", 1, Walk::None))), 180);
        assert_eq!(events(answer(&engine, &mut workers, run("nothing", 1, Walk::Random { bytes: 4096 }))), 160);
        assert!(matches!(answer(&engine, &mut workers, run("something", 1, Walk::None)), Answer::Refused(_)));
        assert!(matches!(answer(&engine, &mut workers, run("nothing", 2, Walk::None)), Answer::Refused(_)));
        assert!(matches!(answer(&engine, &mut workers, run("nothing", 0, Walk::None)), Answer::Refused(_)));
    }

    #[test]
    fn each_thread_has_a_seat_and_counters() {
        static SEATS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
        extern "C" fn sit(iterations: u64, _: u64) {
            let Seat { index, count } = seat();
            SEATS[index].fetch_add(iterations * count as u64, Ordering::Relaxed);
            if index == 0 {
                // Pages that were never touched: more than an allocator keeps for reuse.
                std::hint::black_box(vec![1_u8; 40 << 20]);
            }
        }
        let engine = Engine {
            name: "test",
            version: String::new(),
            cases: vec![Case { name: "sit", run: sit, events_per_iteration: 0 }],
            arrived: None,
        };
        let mut workers = Workers::start(&[0, 0], Policy::Other);
        for threads in [2, 1] {
            let run = Run { case: "sit".into(), iterations: 8, threads, walk: Walk::None, beside: None };
            let Answer::Timing(timing) = answer(&engine, &mut workers, Request::Run(run)) else { panic!("no timing") };
            assert_eq!(timing.counters.len(), threads);
            let faults: Vec<_> = timing.counters.iter().filter_map(|counters| counters.get("page_faults")).collect();
            // Only if the kernel counts them at all.
            if let [first, second] = faults[..] {
                assert!(first > second, "{faults:?}");
            }
        }
        // Eight and one for warm-up, by two threads and then by one.
        assert_eq!(SEATS.each_ref().map(|seat| seat.load(Ordering::Relaxed)), [18 + 9, 18]);
    }

    #[test]
    fn another_case_runs_beside_and_is_not_counted() {
        static BESIDE: AtomicU64 = AtomicU64::new(0);
        extern "C" fn count(iterations: u64, _: u64) {
            BESIDE.fetch_add(iterations, Ordering::Relaxed);
        }
        let case = |name, run: Loop| Case { name, run, events_per_iteration: 1 };
        let engine = Engine {
            name: "test",
            version: String::new(),
            cases: vec![case("nothing", nothing), case("count", count)],
            arrived: None,
        };
        let run = |threads, beside: &str| {
            let beside = Some(beside.into());
            Request::Run(Run { case: "nothing".into(), iterations: 80, threads, walk: Walk::None, beside })
        };
        let mut workers = Workers::start(&[0, 0], Policy::Other);
        let Answer::Timing(timing) = answer(&engine, &mut workers, run(1, "count")) else { panic!("no timing") };
        assert_eq!(timing.events, 90);
        let counted = BESIDE.load(Ordering::Relaxed);
        assert!(counted > 0);
        assert!(matches!(answer(&engine, &mut workers, run(1, "something")), Answer::Refused(_)));
        assert!(matches!(answer(&engine, &mut workers, run(2, "count")), Answer::Refused(_)), "two workers");
        assert_eq!(BESIDE.load(Ordering::Relaxed), counted, "it has ended");
    }
}

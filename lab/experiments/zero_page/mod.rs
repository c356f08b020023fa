//! The experiment `zero-page`: a codec's frames in a buffer that nobody has written, beside the same in memory that is there.
//!
//! ```text
//!   round: every slot once, in an order drawn anew ──▶ a process each ──▶ first pass, later passes, faults, census
//!     slot = part × pages × state of the buffer        read, decode × never, unasked, asked × four states: frames that grow
//!          | write, read at once, all of it            what the first touch costs
//!          | policy × never written, populated         whether the scheduler explains it
//!          | /dev/zero, private and shared             whether it is served by the zero page
//!          | codec                                     a decoder of Motion JPEG that others have made
//!          | threads, one and many                     touch memory and give it back, of the zero page and their own
//!   builds, by make -j4                                what their faults do to the zero page (`faults`)
//! ```
//!
//! # Source
//! Xinyu Chen, "ZERO PAGE removal influence: Codec Performance Differences between 2.6.19 and 2.6.24 kernel" (2008).

mod faults;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde::de::DeserializeOwned;

use dormouse_lab_harness::pages::{
    BUFFER_BYTES_MAX, Census, Frame, Memory, Order, Outcome, Part, Request, Scheduling, State, Thp,
};

use crate::engine::engine_path;
use crate::experiments::compile_job::{find_project, progress, project::Project};
use crate::plan::{self, Axis};
use crate::statistics::{ROUNDS_MIN, measurement, median, ratio};
use crate::{Experiment, Host, LabError, Labels, Measurement, Ratio, RunOptions};

/// Its name.
pub(crate) const NAME: &str = "zero-page";

const ENGINE: &str = "dormouse-lab-engine-pages";

/// Bytes that it has at least, so that real memory is what is read; half as many in a quick run.
const WHOLE_BYTES_MIN: usize = 64 << 20;

/// Frames are this part of the whole buffer, after one that any first-level cache holds.
const SHARES: [usize; 5] = [256, 64, 16, 4, 1];
const SHARES_QUICK: [usize; 2] = [16, 1];
const SMALL_BYTES: usize = 16 << 10;
/// A decoder's frames, which take longer.
const SHARES_CODEC: [usize; 2] = [64, 16];

const THPS: [Thp; 3] = [Thp::Never, Thp::Unasked, Thp::Asked];
const STATES: [State; 4] = [State::Never, State::Written, State::PopulateRead, State::PopulateWrite];
const POLICIES: [Scheduling; 3] = [Scheduling::Batch, Scheduling::Fifo, Scheduling::Rr];
const MAPPED: [Memory; 3] = [Memory::Anonymous, Memory::DevZeroPrivate, Memory::DevZeroShared];

const AXES: &[Axis] = &[
    Axis::plain("part"),
    Axis::plain("state"),
    Axis { name: "thp", silent: "never", shown: "thp-{}" },
    Axis::plain("pass"),
    Axis::without("size", "whole"),
    Axis::without("shape", "growing"),
    Axis::without("memory", "bss"),
    Axis::without("policy", "other"),
];

/// Jobs of the build, as in the paper.
const JOB_COUNT: usize = 4;

/// What is run in turn, and what came of it.
#[derive(Debug)]
struct Slot {
    order: Order,
    is_at_once: bool,
    outcomes: Vec<Outcome>,
}

impl Slot {
    fn new(cpu: u32, part: Part, state: State, sizes: Vec<usize>) -> Slot {
        let order = Order { cpu, policy: Scheduling::Other, memory: Memory::Bss, thp: Thp::Never, state, part, sizes };
        Slot { is_at_once: order.sizes.len() == 1, order, outcomes: Vec::new() }
    }

    fn with(mut self, change: impl FnOnce(&mut Order)) -> Slot {
        change(&mut self.order);
        self
    }

    /// The label of what it was to be; of what was refused, a label that says so.
    fn label(&self, axis: &str, value: &str) -> String {
        let is_refused = self.outcomes.iter().any(|outcome| outcome.refused.contains_key(axis));
        if is_refused { format!("{value}-refused") } else { value.into() }
    }

    fn labels(&self, pass: &str, size: &str) -> Labels {
        let Order { policy, memory, thp, state, part, .. } = &self.order;
        plan::labels(&[
            ("part", part.as_str()),
            ("state", &self.label("state", state.as_str())),
            ("thp", &self.label("thp", thp.as_str())),
            ("pass", pass),
            ("size", size),
            ("shape", if self.is_at_once { "at-once" } else { "growing" }),
            ("memory", memory.as_str()),
            ("policy", &self.label("policy", policy.as_str())),
        ])
    }

    fn whole(&self) -> usize {
        self.order.sizes.last().copied().unwrap_or(0)
    }
}

fn slots(cpu: u32, whole: usize, is_quick: bool) -> Vec<Slot> {
    let parts_of = |shares: &[usize]| shares.iter().map(|share| whole / share).collect::<Vec<_>>();
    let mut growing = vec![SMALL_BYTES];
    growing.extend(parts_of(if is_quick { &SHARES_QUICK } else { &SHARES }));
    let slot = |part, state, sizes: &[usize]| Slot::new(cpu, part, state, sizes.to_vec());
    let at_once = [whole];
    let mut slots = Vec::new();
    for state in STATES {
        for part in [Part::Read, Part::Decode] {
            let is_needed = |thp: &Thp| match (part, state) {
                _ if !is_quick => true,
                (Part::Read, State::Never | State::Written) => *thp != Thp::Unasked,
                (_, state) => *thp == Thp::Never && (part == Part::Read || state != State::PopulateRead),
            };
            slots.extend(
                THPS.into_iter().filter(is_needed).map(|thp| slot(part, state, &growing).with(|o| o.thp = thp)),
            );
        }
    }
    for state in [State::Never, State::PopulateWrite] {
        for part in [Part::Read, Part::Write] {
            slots.push(slot(part, state, &at_once));
            if !is_quick {
                slots.push(slot(part, state, &at_once).with(|order| order.thp = Thp::Asked));
            }
        }
        let policies = POLICIES.map(|policy| slot(Part::Read, state, &at_once).with(|order| order.policy = policy));
        slots.extend(policies);
    }
    for part in [Part::Read, Part::Write] {
        slots.extend(MAPPED.map(|memory| slot(part, State::Never, &at_once).with(|order| order.memory = memory)));
    }
    slots.push(slot(Part::Read, State::ReadFromDevZero, &at_once));
    let of_codec = parts_of(&SHARES_CODEC);
    slots.extend([State::Never, State::Written, State::PopulateWrite].map(|state| slot(Part::Codec, state, &of_codec)));
    slots
}

/// Threads that touch memory at once.
#[derive(Debug)]
struct Crowd {
    page: &'static str,
    name: &'static str,
    threads: usize,
    samples: Vec<f64>,
}

fn crowds(cpu_count: usize) -> Vec<Crowd> {
    let of = |page| {
        [("one", 1), ("each-cpu", cpu_count), ("four-each-cpu", 4 * cpu_count)].map(|(name, threads)| Crowd {
            page,
            name,
            threads,
            samples: Vec::new(),
        })
    };
    ["zero", "private"].into_iter().flat_map(of).collect()
}

/// What a page costs to touch and to give back, and how many times that of one thread alone.
fn crowd_figures(crowds: &[Crowd]) -> Vec<Measurement> {
    let costs =
        crowds.iter().map(|crowd| measurement(&format!("touch.{}.{}", crowd.page, crowd.name), "ns", &crowd.samples));
    let slowdowns = crowds.iter().filter(|crowd| crowd.name != "one").filter_map(|crowd| {
        let alone = crowds.iter().find(|one| one.page == crowd.page && one.name == "one")?;
        let times: Vec<f64> = crowd.samples.iter().zip(&alone.samples).map(|(many, one)| many / one).collect();
        Some(measurement(&format!("slowdown.{}.{}", crowd.page, crowd.name), "times", &times))
    });
    costs.chain(slowdowns).collect()
}

fn ask<T: DeserializeOwned>(request: &Request) -> Result<T, LabError> {
    let failed = |what: String| LabError::Engine(format!("{ENGINE}: {what}"));
    let text = serde_json::to_string(request).map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(engine_path(ENGINE)?);
    let output = command.arg(text).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

/// Runs all in turn, whole rounds of it.
fn measure(slots: &mut [Slot], crowds: &mut [Crowd], lasting: Duration, rounds_max: usize) -> Result<usize, LabError> {
    let bar = ProgressBar::new(lasting.as_secs()).with_message(NAME);
    if let Ok(style) = ProgressStyle::with_template("{msg:24} {wide_bar} {pos}/{len} s") {
        bar.set_style(style);
    }
    let mut random = SmallRng::from_os_rng();
    let begun = Instant::now();
    let mut rounds = 0;
    // Of the processes of the first round, some read their program from disk.
    let mut is_counted = false;
    while rounds < rounds_max && (rounds < ROUNDS_MIN || begun.elapsed() < lasting) {
        slots.shuffle(&mut random);
        for slot in &mut *slots {
            slot.outcomes.push(ask(&Request::Frames(slot.order.clone()))?);
            bar.set_position(begun.elapsed().as_secs());
        }
        for Crowd { page, threads, samples, .. } in &mut *crowds {
            samples.push(ask(&Request::Touch { threads: *threads, is_written: *page == "private" })?);
        }
        if is_counted {
            rounds += 1;
        } else {
            is_counted = true;
            slots.iter_mut().for_each(|slot| slot.outcomes.clear());
            crowds.iter_mut().for_each(|crowd| crowd.samples.clear());
        }
    }
    bar.finish_and_clear();
    Ok(rounds)
}

/// Builds a project again and again, and looks at the machine's zero pages before each.
fn builds(options: &RunOptions, notes: &mut Vec<String>) -> Result<Vec<Measurement>, LabError> {
    let rounds = options.rounds(ROUNDS_MIN, 2 * ROUNDS_MIN);
    let mappings = || (0..rounds).map(|_| ask(&Request::Machine)).collect::<Result<Option<Vec<f64>>, _>>();
    let mut measurements: Vec<Measurement> =
        mappings()?.map(|counts| measurement("machine.zero-mappings", "count", &counts)).into_iter().collect();
    let source = match (find_project(options.project.as_deref()), faults::refused()) {
        (Ok(source), None) => source,
        (project, refused) => {
            let why = refused.into_iter().chain(project.err().map(|error| error.to_string()));
            notes.extend(why.map(|why| format!("no build's faults were counted: {why}")));
            return Ok(measurements);
        }
    };
    let mut project = Project::copy(&source, options.is_quick.then_some(2))?;
    project.job_count = JOB_COUNT;
    notes.push(format!("faults: {}; every one counted, by perf", project.describe(&source)));
    let bar = progress("faults of a build", rounds);
    let mut counts = Vec::new();
    for _ in 0..rounds {
        counts.push(faults::count(&mut project)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    for name in ["faults", "zero-mapped", "zero-written", "zero-torn-down"] {
        let rate = |counts: &faults::Counts| {
            let count = match name {
                "faults" => counts.faults,
                "zero-mapped" => counts.mapped,
                "zero-written" => counts.written,
                _ => counts.torn_down,
            };
            count as f64 / counts.lasting_s
        };
        measurements.push(measurement(&format!("build.{name}"), "1/s", &counts.iter().map(rate).collect::<Vec<_>>()));
    }
    Ok(measurements)
}

fn counters(frames: &[&Frame], faults: &[f64]) -> BTreeMap<String, f64> {
    let census =
        |of: fn(&Census) -> u64| median(&frames.iter().map(|frame| of(&frame.census) as f64).collect::<Vec<_>>());
    let named = [
        ("faults", median(faults)),
        ("unbacked_bytes", census(|census| census.unbacked)),
        ("zero_bytes", census(|census| census.zero)),
        ("huge_zero_bytes", census(|census| census.huge_zero)),
        ("small_bytes", census(|census| census.small)),
        ("huge_bytes", census(|census| census.huge)),
    ];
    named.map(|(name, value)| (name.to_string(), value)).into()
}

pub(crate) fn size_name(bytes: usize) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{}-MiB", bytes >> 20) } else { format!("{}-KiB", bytes >> 10) }
}

/// The first pass, or the quickest of the later ones: whoever was on the CPU meanwhile is not in it.
fn of_pass(pass: &str, numbers: &[f64]) -> f64 {
    match (pass, numbers.split_first()) {
        ("first", Some((first, _))) => *first,
        (_, Some((_, later))) => later.iter().copied().min_by(f64::total_cmp).unwrap_or(f64::NAN),
        (_, None) => f64::NAN,
    }
}

/// A slot's figures, for a KiB of each size's frame; of one that is touched at once, besides: faults for a
/// page, the share that is the zero page, and the time by another clock.
fn figures(slot: &Slot) -> Vec<Measurement> {
    let mut measurements = Vec::new();
    for (index, &bytes) in slot.order.sizes.iter().enumerate() {
        let frames: Vec<&Frame> = slot.outcomes.iter().filter_map(|outcome| outcome.frames.get(index)).collect();
        let size = if bytes == slot.whole() { "whole".into() } else { size_name(bytes) };
        for pass in ["first", "later"] {
            let of = |of: fn(&Frame) -> Vec<f64>| -> Vec<f64> {
                frames.iter().map(|frame| of_pass(pass, &of(frame))).collect()
            };
            let of_kib = |ns: Vec<f64>| ns.iter().map(|ns| ns / (bytes >> 10) as f64).collect::<Vec<_>>();
            let faults = of(|frame| frame.faults.iter().map(|count| *count as f64).collect());
            let labels = slot.labels(pass, &size);
            let name = plan::name(AXES, &labels);
            let mut add = |what: &str, unit: &str, samples: &[f64]| {
                measurements.push(measurement(&format!("{what}.{name}"), unit, samples));
            };
            match pass {
                "first" if slot.is_at_once => {
                    let pages = (bytes / rustix::param::page_size()) as f64;
                    add("faults", "per page", &faults.iter().map(|count| count / pages).collect::<Vec<_>>());
                }
                "later" if slot.is_at_once => {
                    let zero = |census: &Census| (census.zero + census.huge_zero) as f64 / bytes as f64;
                    let shares: Vec<f64> = frames.iter().map(|frame| zero(&frame.census)).collect();
                    add("zero-share", "of 1", &shares);
                    add("time-of-day", "ns", &of_kib(of(|frame| frame.ns_by_time_of_day.clone())));
                }
                _ => {}
            }
            let ns = of_kib(of(|frame| frame.ns.clone()));
            measurements.push(Measurement {
                counters: counters(&frames, &faults),
                labels,
                ..measurement(&name, "ns", &ns)
            });
        }
    }
    measurements
}

/// Bytes of the largest frame: twice the last cache, as far as there is memory.
fn whole_bytes(l3_bytes: Option<u64>, available_bytes: Option<u64>) -> usize {
    let beyond_caches = l3_bytes.map_or(0, |bytes| 2 * bytes as usize).next_power_of_two();
    let wanted = beyond_caches.clamp(WHOLE_BYTES_MIN, BUFFER_BYTES_MAX);
    let room = available_bytes.map_or(usize::MAX, |bytes| (bytes / 4) as usize).max(8 << 20);
    // A power of two, so that each part of it is whole pages.
    if wanted <= room { wanted } else { 1 << room.ilog2() }
}

fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Runs the experiment.
///
/// # Errors
/// See [`LabError`].
pub fn run_zero_page(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let cpu = options.cpus.first().copied().unwrap_or(0);
    let whole = whole_bytes(host.l3_bytes(), available_bytes()) >> u32::from(options.is_quick);
    let mut slots = slots(cpu, whole, options.is_quick);
    let mut crowds = crowds(std::thread::available_parallelism().map_or(1, usize::from));
    let lasting = Duration::from_secs(if options.is_quick { 10 } else { 150 });
    let rounds = measure(&mut slots, &mut crowds, lasting, options.rounds_max)?;
    let outcomes = || slots.iter().flat_map(|slot| &slot.outcomes);
    let refused: BTreeSet<&String> = outcomes().flat_map(|outcome| outcome.refused.values()).collect();
    let mut notes: Vec<String> = refused.into_iter().map(|why| format!("not available: {why}")).collect();
    let sees_zero = outcomes().all(|outcome| outcome.sees_zero);
    if !sees_zero {
        notes.push(
            "the zero page cannot be told from memory here: this needs Linux 6.7, or root; in the census it counts as small pages".into(),
        );
    }
    notes.push(format!(
        "frames of up to {}, CPU {cpu}; {rounds} rounds, each run in a process of its own; transparent huge pages: {}, huge zero page: {}",
        size_name(whole).replace('-', " "),
        host.fact("memory.thp"),
        host.fact("memory.thp_zero_page"),
    ));
    let mut measurements: Vec<Measurement> = slots.iter().flat_map(figures).collect();
    if !sees_zero {
        measurements.retain(|measurement| !measurement.name.starts_with("zero-share."));
    }
    measurements.extend(crowd_figures(&crowds));
    measurements.extend(builds(options, &mut notes)?);
    measurements.sort_by(|a, b| a.name.cmp(&b.name));
    let ratios = ratios(&measurements);
    Ok(Experiment { name: NAME.into(), measurements, ratios, notes, ..Experiment::default() })
}

/// Name, numerator, denominator. What the paper says is in `paper.toml`.
const RATIOS: [(&str, &str, &str); 8] = [
    ("zero_page_read_vs_real", "read.never-written.later", "read.written.later"),
    ("zero_page_decode_vs_real", "decode.never-written.later", "decode.written.later"),
    ("huge_zero_page_read_vs_real", "read.never-written.thp-asked.later", "read.written.thp-asked.later"),
    ("populate_read_vs_real", "read.populate-read.later", "read.written.later"),
    ("huge_pages_vs_small", "read.written.thp-asked.later", "read.written.later"),
    ("first_touch_vs_prefaulted", "read.never-written.first.at-once", "read.populate-write.first.at-once"),
    ("first_write_vs_prefaulted", "write.never-written.first.at-once", "write.populate-write.first.at-once"),
    ("codec_first_touch_vs_prefaulted", "codec.never-written.first", "codec.populate-write.first"),
];

fn ratios(measurements: &[Measurement]) -> Vec<Ratio> {
    let find = |name: &str| measurements.iter().find(|measurement| measurement.name == name);
    let of = |(name, of, to)| ratio(name, &find(of)?.samples, &find(to)?.samples);
    RATIOS.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_largest_frame_is_beyond_the_caches_and_within_memory() {
        assert_eq!(whole_bytes(Some(32 * MIB), None), 64 << 20);
        assert_eq!(whole_bytes(Some(36 * MIB), Some(1 << 40)), 128 << 20);
        assert_eq!(whole_bytes(Some(1 << 40), Some(1 << 40)), BUFFER_BYTES_MAX);
        assert_eq!(whole_bytes(None, Some(200 * MIB)), 32 << 20);
        assert_eq!(whole_bytes(None, Some(0)), 8 << 20);
        assert!(SHARES.iter().all(|share| (8 << 20) % (share * 4096) == 0));
    }

    /// Every slot's outcome, as if each pass took as long as its bytes: of the zero page at four times the speed.
    fn outcome(order: &Order) -> Outcome {
        let is_zero = matches!(order.state, State::Never | State::PopulateRead) && order.part != Part::Write;
        let speed = if is_zero { 16.0 } else { 4.0 };
        let frame = |bytes: &usize| {
            let first = if order.state == State::Never { 3.0 } else { 1.0 };
            let ns = *bytes as f64 / speed;
            let zero = if is_zero { *bytes as u64 } else { 0 };
            let census = Census { zero, small: *bytes as u64 - zero, ..Census::default() };
            let ns = vec![ns * first, ns, 2.0 * ns, ns];
            Frame { bytes: *bytes, ns_by_time_of_day: ns.clone(), ns, faults: vec![7, 0, 0, 0], census }
        };
        Outcome { refused: BTreeMap::new(), frames: order.sizes.iter().map(frame).collect(), sees_zero: true }
    }

    type IsOf = fn(&Order) -> bool;

    fn measurements(refused: Option<(&str, IsOf)>) -> Vec<Measurement> {
        let mut slots = slots(0, 64 << 20, false);
        for slot in &mut slots {
            slot.outcomes = vec![outcome(&slot.order); 6];
            if let Some((axis, _)) = refused.filter(|(_, is_of)| is_of(&slot.order)) {
                slot.outcomes[3].refused.insert(axis.into(), "Invalid argument".into());
            }
        }
        slots.iter().flat_map(figures).collect()
    }

    fn has(measurements: &[Measurement], name: &str) -> bool {
        measurements.iter().any(|measurement| measurement.name == name)
    }

    #[test]
    fn figures_have_different_names_and_every_ratio_is_of_some() {
        let measurements = measurements(None);
        plan::assert_different_names(measurements.iter().map(|measurement| measurement.name.as_str()));
        let ratios = ratios(&measurements);
        assert_eq!(ratios.len(), RATIOS.len());
        let value = |name: &str| ratios.iter().find(|ratio| ratio.name == name).map(|ratio| ratio.value);
        assert_eq!(value("zero_page_read_vs_real"), Some(0.25));
        assert_eq!(value("populate_read_vs_real"), Some(0.25));
        assert_eq!(value("first_write_vs_prefaulted"), Some(3.0));
    }

    #[test]
    fn a_quick_run_has_what_the_paper_speaks_of() {
        let mut slots = slots(0, 64 << 20, true);
        slots.iter_mut().for_each(|slot| slot.outcomes = vec![outcome(&slot.order); 6]);
        let mut crowds = crowds(2);
        crowds.iter_mut().for_each(|crowd| crowd.samples = vec![crowd.threads as f64; 6]);
        let mut measurements: Vec<Measurement> = slots.iter().flat_map(figures).collect();
        measurements.extend(crowd_figures(&crowds));
        let experiment = Experiment { name: NAME.into(), measurements, ..Experiment::default() };
        let paper = crate::experiments::find(NAME).and_then(|known| known.paper()).expect("its paper");
        for judged in paper.judge(&experiment).iter().filter(|judged| !judged.range.is_empty()) {
            // Those of builds and of the machine are not made up here.
            let is_elsewhere = judged.ratio.contains("build.") || judged.ratio.contains("machine.");
            assert_eq!(judged.verdict == crate::result::Verdict::NotMeasured, is_elsewhere, "{judged:#?}");
        }
    }

    #[test]
    fn what_was_refused_is_no_figure_of_what_was_asked_for() {
        let all = measurements(None);
        for (axis, name, instead, is_of) in [
            (
                "thp",
                "read.written.thp-asked.later",
                "read.written.thp-asked-refused.later",
                (|o| o.thp == Thp::Asked) as IsOf,
            ),
            ("state", "read.populate-write.later", "read.populate-write-refused.later", |o| {
                o.state == State::PopulateWrite
            }),
            ("policy", "read.never-written.later.at-once.fifo", "read.never-written.later.at-once.fifo-refused", |o| {
                o.policy == Scheduling::Fifo
            }),
        ] {
            let some = measurements(Some((axis, is_of)));
            assert!(has(&all, name) && !has(&all, instead), "{name}");
            assert!(!has(&some, name) && has(&some, instead), "{instead}");
            plan::assert_different_names(some.iter().map(|measurement| measurement.name.as_str()));
        }
    }

    #[test]
    fn a_frame_has_its_faults_and_its_census_beside_it() {
        let measurements = measurements(None);
        let find = |name: &str| measurements.iter().find(|measurement| measurement.name == name).expect("a figure");
        let of = |name: &str, counter: &str| find(name).counters[counter];
        assert_eq!(of("read.never-written.first", "faults"), 7.0);
        assert_eq!(of("read.never-written.later", "faults"), 0.0);
        assert_eq!(of("read.never-written.later", "zero_bytes"), 64.0 * MIB as f64);
        assert_eq!(of("read.written.later.1-MiB", "small_bytes"), MIB as f64);
        assert_eq!(find("read.written.later").median, 256.0);
        assert_eq!(find("zero-share.read.never-written.later.at-once").median, 1.0);
        assert_eq!(find("zero-share.read.populate-write.later.at-once").median, 0.0);
    }

    #[test]
    fn many_threads_are_compared_with_one() {
        let mut crowds = crowds(2);
        crowds.iter_mut().for_each(|crowd| crowd.samples = vec![10.0 * crowd.threads as f64; 6]);
        let figures = crowd_figures(&crowds);
        let of = |name: &str| figures.iter().find(|figure| figure.name == name).map(|figure| figure.median);
        assert_eq!(of("touch.zero.one"), Some(10.0));
        assert_eq!(of("slowdown.zero.each-cpu"), Some(2.0));
        assert_eq!(of("slowdown.private.four-each-cpu"), Some(8.0));
        assert_eq!(of("slowdown.private.one"), None);
    }
}

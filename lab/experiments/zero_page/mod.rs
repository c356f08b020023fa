//! The experiment `zero-page`: a codec's frames in a buffer that nobody has written, beside the same in memory that is there.
//!
//! ```text
//!   round: every slot once, in an order drawn anew ──▶ a process each ──▶ first pass, later passes, faults, census
//!     slot = part × pages × state of the buffer        read, decode × never, unasked, asked × four states: frames that grow
//!          | write, read at once, all of it            what the first touch costs
//!          | policy × never written, written           whether the scheduler explains it
//! ```
//!
//! # Source
//! Xinyu Chen, "ZERO PAGE removal influence: Codec Performance Differences between 2.6.19 and 2.6.24 kernel" (2008).

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use dormouse_lab_harness::pages::{BUFFER_BYTES_MAX, Census, Frame, Order, Outcome, Part, Scheduling, State, Thp};

use crate::engine::engine_path;
use crate::plan::{self, Axis};
use crate::statistics::{measurement, median, ratio};
use crate::{Experiment, Host, LabError, Measurement, Ratio, RunOptions};

/// Its name.
pub(crate) const NAME: &str = "zero-page";

const ENGINE: &str = "dormouse-lab-engine-pages";

/// Bytes that it has at least, so that real memory is what is read.
const WHOLE_BYTES_MIN: usize = 64 << 20;

/// Frames are this part of the whole buffer.
const SHARES: [usize; 6] = [1024, 256, 64, 16, 4, 1];
const SHARES_QUICK: [usize; 3] = [256, 16, 1];

const THPS: [Thp; 3] = [Thp::Never, Thp::Unasked, Thp::Asked];
const STATES: [State; 4] = [State::Never, State::Written, State::PopulateRead, State::PopulateWrite];
const POLICIES: [Scheduling; 4] = [Scheduling::Batch, Scheduling::Idle, Scheduling::Fifo, Scheduling::Rr];

const AXES: &[Axis] = &[
    Axis::plain("part"),
    Axis::plain("state"),
    Axis { name: "thp", silent: "never", shown: "thp-{}" },
    Axis::plain("pass"),
    Axis::without("size", "whole"),
    Axis::without("shape", "growing"),
    Axis::without("policy", "other"),
];

const ROUNDS_MIN: usize = 3;

/// What is run in turn, and what came of it.
#[derive(Debug)]
struct Slot {
    order: Order,
    is_at_once: bool,
    outcomes: Vec<Outcome>,
}

fn slots(cpu: u32, whole: usize, is_quick: bool) -> Vec<Slot> {
    let shares: &[usize] = if is_quick { &SHARES_QUICK } else { &SHARES };
    let growing: Vec<usize> = shares.iter().map(|share| whole / share).collect();
    let mut slots = Vec::new();
    let mut add = |part, thp, state, policy, is_at_once| {
        let sizes = if is_at_once { vec![whole] } else { growing.clone() };
        slots.push(Slot { order: Order { cpu, policy, thp, state, part, sizes }, is_at_once, outcomes: Vec::new() });
    };
    for state in STATES {
        for thp in THPS {
            add(Part::Read, thp, state, Scheduling::Other, false);
            add(Part::Decode, thp, state, Scheduling::Other, false);
        }
    }
    for thp in [Thp::Never, Thp::Asked] {
        for state in [State::Never, State::PopulateWrite] {
            add(Part::Read, thp, state, Scheduling::Other, true);
            add(Part::Write, thp, state, Scheduling::Other, true);
        }
    }
    for policy in POLICIES {
        for state in [State::Never, State::Written] {
            add(Part::Read, Thp::Never, state, policy, true);
        }
    }
    add(Part::Read, Thp::Never, State::Written, Scheduling::Other, true);
    slots
}

fn run(order: &Order) -> Result<Outcome, LabError> {
    let failed = |what: String| LabError::Engine(format!("{ENGINE}: {what}"));
    let order = serde_json::to_string(order).map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(engine_path(ENGINE)?);
    let output = command.arg(order).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

/// Runs the slots in turn, whole rounds of them. One that is refused its policy is taken out, and is a note.
fn measure(
    slots: &mut Vec<Slot>,
    lasting: Duration,
    rounds_max: usize,
    notes: &mut Vec<String>,
) -> Result<usize, LabError> {
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
            let outcome = run(&slot.order)?;
            bar.set_position(begun.elapsed().as_secs());
            slot.outcomes.push(outcome);
        }
        if is_counted {
            rounds += 1;
            continue;
        }
        is_counted = true;
        for slot in &mut *slots {
            for refused in slot.outcomes.iter().flat_map(|outcome| &outcome.refused) {
                let note = format!("not available: {refused}");
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
        slots.retain(|slot| {
            let policy = slot.order.policy.as_str();
            let is_refused = |refused: &String| refused.starts_with(&format!("{policy}: "));
            !slot.outcomes.iter().flat_map(|outcome| &outcome.refused).any(is_refused)
        });
        slots.iter_mut().for_each(|slot| slot.outcomes.clear());
    }
    bar.finish_and_clear();
    Ok(rounds)
}

fn counters(frames: &[&Frame], faults: Vec<f64>, ns: f64) -> BTreeMap<String, f64> {
    let census =
        |of: fn(&Census) -> u64| median(&frames.iter().map(|frame| of(&frame.census) as f64).collect::<Vec<_>>());
    let bytes = frames.first().map_or(0.0, |frame| frame.bytes as f64);
    let named = [
        ("faults", median(&faults)),
        ("bytes_per_ns", bytes / ns),
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

/// A slot's figures: for each size its first pass, and the median of its later ones.
fn figures(slot: &Slot, whole: usize) -> Vec<Measurement> {
    let mut measurements = Vec::new();
    for (index, &bytes) in slot.order.sizes.iter().enumerate() {
        let frames: Vec<&Frame> = slot.outcomes.iter().filter_map(|outcome| outcome.frames.get(index)).collect();
        for pass in ["first", "later"] {
            let of = |numbers: &[f64]| match (pass, numbers.split_first()) {
                ("first", Some((first, _))) => *first,
                (_, Some((_, later))) => median(later),
                (_, None) => f64::NAN,
            };
            let samples: Vec<f64> = frames.iter().map(|frame| of(&frame.ns)).collect();
            let faults = frames.iter().map(|frame| of(&frame.faults.iter().map(|n| *n as f64).collect::<Vec<_>>()));
            let size = if bytes == whole { "whole".into() } else { size_name(bytes) };
            let Order { part, state, thp, policy, .. } = &slot.order;
            let labels = plan::labels(&[
                ("part", part.as_str()),
                ("state", state.as_str()),
                ("thp", thp.as_str()),
                ("pass", pass),
                ("size", &size),
                ("shape", if slot.is_at_once { "at-once" } else { "growing" }),
                ("policy", policy.as_str()),
            ]);
            let mut measurement = measurement(&plan::name(AXES, &labels), "ns", &samples);
            measurement.counters = counters(&frames, faults.collect(), measurement.median);
            measurement.labels = labels;
            measurements.push(measurement);
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
    let whole = whole_bytes(host.l3_bytes(), available_bytes());
    let mut notes = Vec::new();
    let mut slots = slots(cpu, whole, options.is_quick);
    let lasting = Duration::from_secs(if options.is_quick { 11 } else { 150 });
    let rounds = measure(&mut slots, lasting, options.rounds_max, &mut notes)?;
    let sees_zero = slots.iter().flat_map(|slot| &slot.outcomes).all(|outcome| outcome.sees_zero);
    if !sees_zero {
        notes.push(
            "the zero page cannot be told from memory here: this needs Linux 6.7, or root; in the census it counts as small pages".into(),
        );
    }
    notes.push(format!(
        "frames of up to {}, processor {cpu}; {rounds} rounds, each run in a process of its own; transparent huge pages: {}, huge zero page: {}",
        size_name(whole).replace('-', " "),
        host.fact("memory.thp"),
        host.fact("memory.thp_zero_page"),
    ));
    let mut measurements: Vec<Measurement> = slots.iter().flat_map(|slot| figures(slot, whole)).collect();
    measurements.sort_by(|a, b| a.name.cmp(&b.name));
    let ratios = ratios(&measurements);
    Ok(Experiment { name: NAME.into(), measurements, ratios, notes, ..Experiment::default() })
}

/// Name, numerator, denominator; for policies and sizes the name and both measurements have an ending.
const RATIOS: [(&str, &str, &str); 12] = [
    ("zero_page_read_vs_real", "read.never-written.later", "read.written.later"),
    ("zero_page_decode_vs_real", "decode.never-written.later", "decode.written.later"),
    ("huge_zero_page_read_vs_real", "read.never-written.thp-asked.later", "read.written.thp-asked.later"),
    ("huge_zero_page_decode_vs_real", "decode.never-written.thp-asked.later", "decode.written.thp-asked.later"),
    ("unasked_read_vs_real", "read.never-written.thp-unasked.later", "read.written.thp-unasked.later"),
    ("populate_read_vs_real", "read.populate-read.later", "read.written.later"),
    ("populate_write_vs_real", "read.populate-write.later", "read.written.later"),
    ("huge_pages_vs_small", "read.written.thp-asked.later", "read.written.later"),
    ("first_touch_vs_prefaulted", "read.never-written.first.at-once", "read.populate-write.first.at-once"),
    ("first_write_vs_prefaulted", "write.never-written.first.at-once", "write.populate-write.first.at-once"),
    (
        "huge_first_touch_vs_prefaulted",
        "read.never-written.thp-asked.first.at-once",
        "read.populate-write.thp-asked.first.at-once",
    ),
    (
        "huge_first_write_vs_prefaulted",
        "write.never-written.thp-asked.first.at-once",
        "write.populate-write.thp-asked.first.at-once",
    ),
];

fn ratios(measurements: &[Measurement]) -> Vec<Ratio> {
    let find = |name: &str| measurements.iter().find(|measurement| measurement.name == name);
    let of = |name: &str, of: &str, to: &str| ratio(name, &find(of)?.samples, &find(to)?.samples);
    let mut ratios: Vec<Ratio> = RATIOS.iter().filter_map(|(name, a, b)| of(name, a, b)).collect();
    for measurement in
        measurements.iter().filter(|measurement| measurement.name.starts_with("read.never-written.later."))
    {
        // What else is in such a name has no partner.
        let Some(size) = measurement.labels.get("size").filter(|size| *size != "whole") else { continue };
        let (a, b) = (format!("read.never-written.later.{size}"), format!("read.written.later.{size}"));
        ratios.extend(of(&format!("zero_page_read_vs_real_{}", size.replace('-', "_")), &a, &b));
    }
    for policy in POLICIES.map(Scheduling::as_str) {
        let (a, b) =
            (format!("read.never-written.later.at-once.{policy}"), format!("read.written.later.at-once.{policy}"));
        ratios.extend(of(&format!("zero_page_read_vs_real_{policy}"), &a, &b));
        ratios.extend(of(&format!("{policy}_vs_other"), &b, "read.written.later.at-once"));
    }
    ratios
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
            Frame { bytes: *bytes, ns: vec![ns * first, ns, ns, ns], faults: vec![7, 0, 0, 0], census }
        };
        Outcome { refused: Vec::new(), frames: order.sizes.iter().map(frame).collect(), sees_zero: true }
    }

    pub(crate) fn experiment() -> Experiment {
        let whole = 64 << 20;
        let mut slots = slots(0, whole, false);
        slots.iter_mut().for_each(|slot| slot.outcomes = vec![outcome(&slot.order); 6]);
        let measurements: Vec<Measurement> = slots.iter().flat_map(|slot| figures(slot, whole)).collect();
        let ratios = ratios(&measurements);
        Experiment { name: NAME.into(), measurements, ratios, ..Experiment::default() }
    }

    #[test]
    fn figures_have_different_names_and_every_ratio_is_of_some() {
        let experiment = experiment();
        plan::assert_different_names(experiment.measurements.iter().map(|measurement| measurement.name.as_str()));
        plan::assert_different_names(experiment.ratios.iter().map(|ratio| ratio.name.as_str()));
        // Sizes but the whole, and two for each policy.
        assert_eq!(experiment.ratios.len(), RATIOS.len() + SHARES.len() - 1 + 2 * POLICIES.len());
        let value = |name: &str| experiment.ratios.iter().find(|ratio| ratio.name == name).map(|ratio| ratio.value);
        assert_eq!(value("zero_page_read_vs_real"), Some(0.25));
        assert_eq!(value("zero_page_read_vs_real_64_KiB"), Some(0.25));
        assert_eq!(value("zero_page_read_vs_real_fifo"), Some(0.25));
        assert_eq!(value("fifo_vs_other"), Some(1.0));
        assert_eq!(value("populate_write_vs_real"), Some(1.0));
        assert_eq!(value("first_write_vs_prefaulted"), Some(3.0));
    }

    #[test]
    fn a_frame_has_its_faults_and_its_census_beside_it() {
        let experiment = experiment();
        let of = |name: &str, counter: &str| {
            let found = experiment.measurements.iter().find(|measurement| measurement.name == name);
            found.and_then(|measurement| measurement.counters.get(counter)).copied()
        };
        assert_eq!(of("read.never-written.first", "faults"), Some(7.0));
        assert_eq!(of("read.never-written.later", "faults"), Some(0.0));
        assert_eq!(of("read.never-written.later", "zero_bytes"), Some(64.0 * MIB as f64));
        assert_eq!(of("read.written.later.1-MiB", "small_bytes"), Some(MIB as f64));
        assert_eq!(of("read.written.later", "bytes_per_ns"), Some(4.0));
    }
}

//! The experiment `zero-page`: a codec's frames in a buffer that was never written, beside the same frames in real
//! memory.
//!
//! ```text
//!   round: every run once, in an order of its own ──▶ a process each ──▶ first pass, later passes, faults, census
//!     run = part × pages × state of the buffer         read, decode × never, unasked, asked × four states: frames that grow
//!         | write, read at once, all of it             cost of the first touch
//!         | policy × never written, populated          whether the scheduler explains it
//!         | /dev/zero, private and shared              whether it is served by the zero page
//!         | codec                                      a third-party decoder of Motion JPEG
//!     threads, one and many                            touch memory and give it back, of the zero page and of their own
//!   builds, by make -j4                                effect of their faults on the zero page (`faults`)
//!   a build, a browser, a database                     mappings in all processes meanwhile (`load`)
//! ```
//!
//! Source: Xinyu Chen, "ZERO PAGE removal influence: Codec Performance Differences between 2.6.19 and 2.6.24 kernel" (2008).

mod faults;
mod load;

use std::collections::BTreeSet;
use std::process::Command;

use dormouse_lab_harness::pages::{
    BUFFER_BYTES_MAX, Frame, Memory, Order, Outcome, Part, Request, Scheduling, State, Thp,
};
use serde::de::DeserializeOwned;

use dormouse_testing::printed;

use crate::engine::engine_path;
use crate::plan::{self, Axis, Samples, in_turn};
use crate::statistics::{measurement, median};
use crate::{Experiment, Host, LabError, Measurement, RunOptions};

const NAME: &str = "zero-page";
const ENGINE: &str = "dormouse-lab-engine-pages";

/// Returns the runs of a round, each in a process of its own. Frames grow from one that any first-level cache holds.
fn runs(cpu: u32, whole: usize, is_quick: bool) -> Vec<Order> {
    let parts_of_whole = |shares: &[usize]| shares.iter().map(|share| whole / share).collect::<Vec<_>>();
    let growing = parts_of_whole(if is_quick { &[16, 1] } else { &[256, 64, 16, 4, 1] });
    let growing = [vec![16 << 10], growing].concat();
    let (thp, state, part, sizes) = (Thp::Never, State::Never, Part::Read, vec![whole]);
    let base = Order { cpu, policy: Scheduling::Other, memory: Memory::Bss, thp, state, part, sizes };
    let states: &[State] = &[State::Never, State::Written, State::PopulateRead, State::PopulateWrite];
    let of_two: &[State] = &[State::Never, State::PopulateWrite];
    let thps: &[Thp] = if is_quick { &[Thp::Never, Thp::Asked] } else { &[Thp::Never, Thp::Unasked, Thp::Asked] };
    let thps_but_of_reads = if is_quick { &thps[..1] } else { thps };
    let mut runs = Vec::new();
    for (part, thps, states, sizes) in [
        (Part::Read, thps, states, &growing),
        (Part::Decode, thps_but_of_reads, states, &growing),
        (Part::Read, thps, of_two, &base.sizes),
        (Part::Write, thps_but_of_reads, of_two, &base.sizes),
    ] {
        let all = states.iter().flat_map(|state| thps.iter().map(|thp| (*state, *thp)));
        runs.extend(all.map(|(state, thp)| Order { thp, state, part, sizes: sizes.clone(), ..base }));
    }
    for &state in of_two {
        let policies = [Scheduling::Batch, Scheduling::Fifo, Scheduling::Rr];
        runs.extend(policies.map(|policy| Order { policy, state, ..base.clone() }));
    }
    for part in [Part::Read, Part::Write] {
        let memories = [Memory::Anonymous, Memory::DevZeroPrivate, Memory::DevZeroShared];
        runs.extend(memories.map(|memory| Order { memory, part, ..base.clone() }));
    }
    runs.push(Order { state: State::ReadFromDevZero, ..base.clone() });
    // Decoded frames are smaller, because they take longer.
    let of_codec = |state| Order { part: Part::Codec, state, sizes: parts_of_whole(&[64, 16]), ..base };
    runs.extend([State::Never, State::Written, State::PopulateWrite].map(of_codec));
    runs
}

fn ask<T: DeserializeOwned>(request: &Request) -> Result<T, LabError> {
    let failed = |error: serde_json::Error| LabError::Engine(format!("{ENGINE}: {error}"));
    let request = serde_json::to_string(request).map_err(failed)?;
    let text = printed(Command::new(engine_path(ENGINE)?).arg(request), ENGINE).map_err(LabError::Engine)?;
    serde_json::from_str(&text).map_err(failed)
}

fn size_name(bytes: usize) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{}-MiB", bytes >> 20) } else { format!("{}-KiB", bytes >> 10) }
}

/// Returns the value of the first pass, or the smallest of the later ones, which excludes disturbances.
fn of_pass(pass: &str, mut numbers: impl Iterator<Item = f64>) -> f64 {
    let first = numbers.next();
    let found = if pass == "first" { first } else { numbers.min_by(f64::total_cmp) };
    found.unwrap_or(f64::NAN)
}

/// Size of the written memory that is read beside each pass, in KiB.
const BESIDE_KIB: f64 = 16.0;

/// A function that returns a number of a frame.
type Number<'a> = &'a dyn Fn(&Frame) -> f64;

/// Returns the figures of a run, per KiB of each size's frame. A run that touches its frame at once also has the faults
/// for a page, the share of the zero page, and the time by another clock.
fn figures(run: &Order, outcomes: &[Outcome]) -> Vec<Measurement> {
    let shape = if run.sizes.len() == 1 { "at-once" } else { "growing" };
    // A setting that was refused must not appear as the one that was requested.
    let label = |axis: &str, value: &str| {
        let is_refused = outcomes.iter().any(|outcome| outcome.refused.contains_key(axis));
        if is_refused { format!("{value}-refused") } else { value.to_string() }
    };
    let sees_zero = outcomes.iter().all(|outcome| outcome.sees_zero);
    let mut measurements = Vec::new();
    for (index, bytes) in run.sizes.iter().enumerate() {
        let size = if index + 1 == run.sizes.len() { "whole".into() } else { size_name(*bytes) };
        let each = |of: Number<'_>| -> Vec<f64> {
            outcomes.iter().filter_map(|outcome| outcome.frames.get(index)).map(of).collect()
        };
        for pass in ["first", "later"] {
            let axes: [(Axis, &str); 8] = [
                (Axis::plain("part"), run.part.as_str()),
                (Axis::plain("state"), &label("state", run.state.as_str())),
                (Axis { name: "thp", silent: "never", shown: "thp-{}" }, &label("thp", run.thp.as_str())),
                (Axis::plain("pass"), pass),
                (Axis::without("size", "whole"), &size),
                (Axis::without("shape", "growing"), shape),
                (Axis::without("memory", "bss"), run.memory.as_str()),
                (Axis::without("policy", "other"), &label("policy", run.policy.as_str())),
            ];
            let labels = plan::labels(&axes.map(|(axis, value)| (axis.name, value)));
            let name = plan::name(&axes.map(|(axis, _)| axis), &labels);
            let (kib, pages) = ((bytes >> 10) as f64, (bytes / rustix::param::page_size()) as f64);
            let faults = |frame: &Frame| of_pass(pass, frame.faults.iter().map(|count| *count as f64));
            let zero_bytes = |frame: &Frame| (frame.census.zero + frame.census.huge_zero) as f64;
            let counters: [(&str, Number<'_>); 6] = [
                ("faults", &faults),
                ("unbacked_bytes", &|frame| frame.census.unbacked as f64),
                ("zero_bytes", &|frame| frame.census.zero as f64),
                ("huge_zero_bytes", &|frame| frame.census.huge_zero as f64),
                ("small_bytes", &|frame| frame.census.small as f64),
                ("huge_bytes", &|frame| frame.census.huge as f64),
            ];
            let times = each(&|frame| of_pass(pass, frame.ns.iter().copied()) / kib);
            measurements.push(Measurement {
                labels,
                counters: counters.map(|(name, of)| (name.to_string(), median(&each(of)))).into(),
                ..measurement(&name, "ns", &times)
            });
            let ns_beside = |frame: &Frame| of_pass(pass, frame.ns_beside.iter().copied()) / BESIDE_KIB;
            let ns_undisturbed =
                |frame: &Frame| frame.ns_undisturbed.iter().copied().min_by(f64::total_cmp).unwrap_or(f64::NAN) / kib;
            let in_witness = |frame: &Frame| of_pass(pass, frame.ns.iter().copied()) / kib / ns_beside(frame);
            let besides: [(&str, &str, &str, Number<'_>); 6] = [
                ("first", "faults", "per page", &|frame| faults(frame) / pages),
                ("later", "zero-share", "of 1", &|frame| zero_bytes(frame) / *bytes as f64),
                ("later", "beside", "ns", &ns_beside),
                ("later", "in-witness", "of 1", &in_witness),
                ("later", "undisturbed", "ns", &ns_undisturbed),
                ("later", "time-of-day", "ns", &|frame| of_pass(pass, frame.ns_by_time_of_day.iter().copied()) / kib),
            ];
            for (in_pass, what, unit, of) in besides {
                if shape == "at-once" && in_pass == pass && (sees_zero || what != "zero-share") {
                    // A run may have no part of a pass without an interrupt.
                    let samples: Vec<f64> = each(of).into_iter().filter(|sample| sample.is_finite()).collect();
                    measurements
                        .extend((!samples.is_empty()).then(|| measurement(&format!("{what}.{name}"), unit, &samples)));
                }
            }
        }
    }
    measurements
}

/// Measures the cost of touching a page and giving it back, for threads all at once, and its ratio to that of one
/// thread alone.
fn touch(samples: &mut Samples, cost: impl Fn(usize, bool) -> Result<f64, LabError>) -> Result<(), LabError> {
    let cpu_count = std::thread::available_parallelism().map_or(1, usize::from);
    for (page, is_written) in [("zero", false), ("private", true)] {
        let alone = cost(1, is_written)?;
        samples.entry((format!("touch.{page}.one"), "ns")).or_default().push(alone);
        for (crowd, threads) in [("each-cpu", cpu_count), ("four-each-cpu", 4 * cpu_count)] {
            let of_many = cost(threads, is_written)?;
            samples.entry((format!("touch.{page}.{crowd}"), "ns")).or_default().push(of_many);
            samples.entry((format!("slowdown.{page}.{crowd}"), "times")).or_default().push(of_many / alone);
        }
    }
    Ok(())
}

/// Returns the size of the largest frame in bytes: twice the last cache, and enough that real memory is read, as far as
/// there is memory. It is a power of two, so that each part of it consists of whole pages.
fn whole_bytes(l3_bytes: Option<u64>, available_bytes: u64) -> usize {
    let beyond_caches = (2 * l3_bytes.unwrap_or(0)).next_power_of_two();
    let wanted = beyond_caches.clamp(64 << 20, BUFFER_BYTES_MAX as u64);
    1 << wanted.min((available_bytes / 4).max(8 << 20)).ilog2()
}

fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.split_once("MemAvailable:")?.1.split_whitespace().next()?;
    Some(kib.parse::<u64>().ok()? << 10)
}

/// Runs the experiment.
///
/// # Errors
/// See [`LabError`]. A project that is not there to be built, or whose faults cannot be counted, is a note, not an
/// error.
pub fn run_zero_page(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let cpu = options.cpus.first().copied().unwrap_or(0);
    let whole =
        whole_bytes(host.caches_bytes()[2], available_bytes().unwrap_or(u64::MAX)) >> u32::from(options.is_quick);
    let runs = runs(cpu, whole, options.is_quick);
    let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); runs.len()];
    let mut samples = Samples::new();
    let rounds = options.rounds(7, 60);
    in_turn(NAME, rounds + 1, runs.len() + 1, None, |_, index, _| {
        if let Some(run) = runs.get(index) {
            outcomes[index].push(ask(&Request::Frames(run.clone()))?);
            return Ok(());
        }
        let zero_mappings: Option<f64> = ask(&Request::Machine)?;
        samples.entry(("machine.zero-mappings".into(), "count")).or_default().extend(zero_mappings);
        touch(&mut samples, |threads, is_written| ask(&Request::Touch { threads, is_written }))
    })?;

    let all = || outcomes.iter().flatten();
    let refused: BTreeSet<&String> = all().flat_map(|outcome| outcome.refused.values()).collect();
    let mut notes: Vec<String> = refused.into_iter().map(|why| format!("not available: {why}")).collect();
    if !all().all(|outcome| outcome.sees_zero) {
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
    let built = faults::of_builds(options, &mut samples);
    notes.push(built.unwrap_or_else(|why| format!("no build's faults were counted: {why}")));
    let mappings = || ask::<Option<f64>>(&Request::Machine).ok().flatten();
    if let Err(why) = load::measure(options, &mut samples, &mut notes, mappings) {
        notes.push(format!("no work was measured: {why}"));
    }
    // In the first round programs are read from disk. Some samples are unavailable in all rounds.
    samples.retain(|_, samples| samples.len() > 1);
    let of_samples = samples.iter().map(|((name, unit), samples)| measurement(name, unit, &samples[1..]));
    let of_runs = runs.iter().zip(&outcomes).flat_map(|(run, outcomes)| figures(run, &outcomes[1..]));
    let mut measurements: Vec<Measurement> = of_runs.chain(of_samples).collect();
    measurements.sort_by(|a, b| a.name.cmp(&b.name));
    let ratios = plan::ratios(&RATIOS, &measurements, &mut notes);
    Ok(Experiment { name: NAME.into(), measurements, ratios, notes, ..Experiment::default() })
}

/// Name, numerator and denominator of each ratio. The paper's statements are in `paper.toml`.
const RATIOS: [(&str, &str, &str); 7] = [
    ("zero_page_read_vs_real", "read.never-written.later", "read.written.later"),
    ("zero_page_decode_vs_real", "decode.never-written.later", "decode.written.later"),
    ("huge_zero_page_read_vs_real", "read.never-written.thp-asked.later", "read.written.thp-asked.later"),
    ("populate_read_vs_real", "read.populate-read.later", "read.written.later"),
    ("huge_pages_vs_small", "read.written.thp-asked.later", "read.written.later"),
    ("first_touch_vs_prefaulted", "read.never-written.first.at-once", "read.populate-write.first.at-once"),
    ("first_write_vs_prefaulted", "write.never-written.first.at-once", "write.populate-write.first.at-once"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use dormouse_lab_harness::pages::Census;

    #[test]
    fn the_largest_frame_is_beyond_the_caches_and_within_memory() {
        const MIB: u64 = 1 << 20;
        assert_eq!(whole_bytes(Some(32 * MIB), u64::MAX), 64 << 20);
        assert_eq!(whole_bytes(Some(36 * MIB), 1 << 40), 128 << 20);
        assert_eq!(whole_bytes(Some(1 << 40), 1 << 40), BUFFER_BYTES_MAX);
        assert_eq!(whole_bytes(None, 200 * MIB), 32 << 20);
        assert_eq!(whole_bytes(None, 0), 8 << 20);
    }

    /// Returns figures of six rounds of a quick run. The time of each pass is proportional to its bytes, and on the
    /// zero page a quarter of that. In one of the rounds, runs selected by `is_refused` were refused a setting.
    fn measurements(refused: &str, is_refused: fn(&Order) -> bool) -> Vec<Measurement> {
        let figures = |run: Order| {
            let is_zero = matches!(run.state, State::Never | State::PopulateRead) && run.part != Part::Write;
            let frame = |bytes: &usize| {
                let (zero, ns) = if is_zero { (*bytes as u64, *bytes as f64 / 16.0) } else { (0, *bytes as f64 / 4.0) };
                let ns = vec![if run.state == State::Never { 3.0 * ns } else { ns }, ns, 2.0 * ns, ns];
                let census = Census { zero, small: *bytes as u64 - zero, ..Census::default() };
                let ns_undisturbed = vec![3.0 * ns[1], 2.0 * ns[1]];
                Frame {
                    bytes: *bytes,
                    ns_by_time_of_day: ns.clone(),
                    ns,
                    ns_beside: vec![80.0; 4],
                    ns_undisturbed,
                    faults: vec![7, 0, 0, 0],
                    census,
                }
            };
            let frames = run.sizes.iter().map(frame).collect();
            let mut outcomes = vec![Outcome { refused: Default::default(), frames, sees_zero: true }; 6];
            if is_refused(&run) {
                outcomes[3].refused.insert(refused.into(), "Invalid argument".into());
            }
            figures(&run, &outcomes)
        };
        let measurements: Vec<_> = runs(0, 64 << 20, true).into_iter().flat_map(figures).collect();
        plan::assert_different_names(measurements.iter().map(|measurement| measurement.name.as_str()));
        measurements
    }

    #[test]
    fn a_quick_run_has_the_cases_of_the_paper() {
        let mut measurements = measurements("", |_| false);
        let mut samples = Samples::new();
        (0..6).for_each(|_| touch(&mut samples, |threads, _| Ok(10.0 * threads as f64)).expect("costs"));
        measurements.extend(samples.iter().map(|((name, unit), samples)| measurement(name, unit, samples)));
        let ratios = plan::ratios(&RATIOS, &measurements, &mut Vec::new());
        assert_eq!(ratios.len(), RATIOS.len());
        let experiment = Experiment { name: NAME.into(), measurements, ratios, ..Experiment::default() };
        let ratio = |name: &str| experiment.ratios.iter().find(|ratio| ratio.name == name).map(|ratio| ratio.value);
        assert_eq!(ratio("zero_page_read_vs_real"), Some(0.25));
        assert_eq!(ratio("first_write_vs_prefaulted"), Some(3.0));
        let find = |name: &str| experiment.measurements.iter().find(|figure| figure.name == name).expect("a figure");
        assert_eq!(find("read.written.later").median, 256.0);
        assert_eq!(find("zero-share.read.never-written.later.at-once").median, 1.0);
        assert_eq!(find("beside.read.never-written.later.at-once").median, 5.0);
        let quickest = find("read.never-written.later.at-once").median;
        assert_eq!(find("in-witness.read.never-written.later.at-once").median, quickest / 5.0);
        assert_eq!(find("undisturbed.read.never-written.later.at-once").median, 2.0 * quickest);
        assert_eq!(find("slowdown.zero.four-each-cpu").median, 4.0 * find("slowdown.zero.each-cpu").median);
        assert_eq!(["first", "later"].map(|pass| find(&format!("read.written.{pass}")).counters["faults"]), [7.0, 0.0]);
        let paper = crate::experiments::find(NAME).and_then(|known| known.paper()).expect("its paper");
        for judged in paper.judge(&experiment).iter().filter(|judged| !judged.range.is_empty()) {
            // Figures of works and of the machine are not made up here.
            let is_elsewhere =
                ["build.", "browser.", "database.", "machine."].iter().any(|of| judged.ratio.contains(of));
            assert_eq!(judged.verdict == crate::result::Verdict::NotMeasured, is_elsewhere, "{judged:#?}");
        }
    }

    #[test]
    fn figures_of_refused_requests_are_named_refused() {
        let never: fn(&Order) -> bool = |_| false;
        let check = |axis: &str, is_of: fn(&Order) -> bool, name: &str| {
            for (is_refused, label, other) in [(is_of, "-refused", ""), (never, "", "-refused")] {
                let all = measurements(axis, is_refused);
                let has = |label: &str| all.iter().any(|figure| figure.name == name.replace("{}", label));
                assert!(has(label) && !has(other), "{name}");
            }
        };
        check("thp", |run| run.thp == Thp::Asked, "read.written.thp-asked{}.later");
        check("state", |run| run.state == State::PopulateWrite, "read.populate-write{}.later");
        check("policy", |run| run.policy == Scheduling::Fifo, "read.never-written.later.at-once.fifo{}");
    }
}

//! Counts of the queues' model of two caches. It needs no counters, and its results are the same on each machine.
//!
//! ```text
//!   model.RING.BATCH[.migratory]                      lines that go from cache to cache, per buffer
//!   model.RING.1.avail-loads                          words of the ring that the device reads which the driver loads, per buffer
//!   model.RING.1.SIDE.loads, stores                   for the paper's two rings: words, of the ring's memory only
//!   model.RING.1.SIDE.load-misses, store-misses[.migratory]     lines that came for them
//!   model.RING.1.near-ns, far-ns[.waiting, .migratory]          ns of a buffer by clocks, where a line takes 28 or 160 ns, by MESI;
//!                                                                 `waiting`: stores wait for lines too
//!   model.RING.1.near-burst, far-burst[.waiting, .migratory]    buffers that the device finds in a row meanwhile
//! ```
//! Devices are those of `dormouse_vring`. MESI and MOESI move the same lines; in `migratory`, a read takes a line over.

use dormouse_lab_coherence::{Counts, Memory, Pace, Protocol, Side, Timed, Workload, run, run_packed, run_timed};
use dormouse_lab_rings::{PlainDriver, ReadBack};
use dormouse_vring::{Area, Bus, Features, RingError, split};

use super::{BATCHES, PAPERS, SIDES};
use crate::Measurement;
use crate::plan::labels;

/// Protocols that move different lines, and the endings of their names.
const PROTOCOLS: [(Protocol, &str); 2] = [(Protocol::Mesi, ""), (Protocol::Migratory, ".migratory")];
type Drive = fn(&Workload) -> Result<Counts, RingError>;

/// Rings with the engine's names: whether in order, whether notifications are suppressed and enabled again, and the
/// function that drives it.
const RINGS: [(&str, bool, bool, Drive); 9] = [
    ("noshadow", false, false, run_split::<true, false>),
    ("shadow", false, false, run_split::<true, true>),
    ("noshadow-flags", false, true, run_split::<true, false>),
    ("shadow-flags", false, true, run_split::<true, true>),
    ("noshadow-private", false, false, run_split::<false, false>),
    ("shadow-private", false, false, run_split::<false, true>),
    ("in-order", true, false, run_split::<false, true>),
    ("packed", false, false, run_packed),
    ("packed-in-order", true, false, run_packed),
];

/// Runs a workload with the driver of 2015 or today's, with or without a shadow.
fn run_split<const IS_PLAIN: bool, const HAS_SHADOW: bool>(workload: &Workload) -> Result<Counts, RingError> {
    let memory = Memory::split(workload.size)?;
    let [driver, device] = Side::ALL.map(|side| memory.view(side));
    if HAS_SHADOW {
        return run_on::<IS_PLAIN>(&memory, [driver, device], workload);
    }
    let ways = [ReadBack::driver(driver, workload.size), ReadBack::device(device, workload.size)];
    run_on::<IS_PLAIN>(&memory, ways, workload)
}

fn run_on<const IS_PLAIN: bool>(memory: &Memory, ways: [impl Bus; 2], of: &Workload) -> Result<Counts, RingError> {
    let [driver, device] = ways;
    let mut device = split::Device::new(device, of.size, of.features)?;
    if IS_PLAIN {
        run(memory, &mut PlainDriver::<_, false>::new(driver, of.size, of.features)?, &mut device, of)
    } else {
        run(memory, &mut split::Driver::new(driver, of.size, of.features)?, &mut device, of)
    }
}

/// Time of an access to a word in the model with clocks, in ns: what the paper's rings take here, for about as many words.
const WORD_NS: f64 = 0.5;
/// Time that a line takes, in ns, and how names have it: as measured between near and between far CPUs.
const DISTANCES: [(&str, f64); 2] = [("near", 28.0), ("far", 160.0)];

/// Runs one of the paper's rings with clocks.
fn timed(has_shadow: bool, pace: Pace) -> Result<Timed, RingError> {
    let of = Workload { items: 16_384, features: Features::default(), ..Workload::default() };
    let memory = Memory::split(of.size)?;
    let [driver, device] = Side::ALL.map(|side| memory.view(side));
    if has_shadow {
        return timed_on(&memory, [driver, device], &of, pace);
    }
    timed_on(&memory, [ReadBack::driver(driver, of.size), ReadBack::device(device, of.size)], &of, pace)
}

fn timed_on(memory: &Memory, ways: [impl Bus; 2], of: &Workload, pace: Pace) -> Result<Timed, RingError> {
    let [driver, device] = ways;
    let mut driver = PlainDriver::<_, false>::new(driver, of.size, of.features)?;
    let mut device = split::Device::new(device, of.size, of.features)?;
    run_timed(memory, &mut driver, &mut device, of, pace)
}

/// Returns the times of the paper's rings by clocks.
fn times() -> Vec<Measurement> {
    let mut all = Vec::new();
    for ((ring, has_shadow), (distance, transfer_ns)) in
        PAPERS.into_iter().zip([false, true]).flat_map(|ring| DISTANCES.map(|distance| (ring, distance)))
    {
        for (protocol, stores_wait, end) in [
            (Protocol::Mesi, false, ""),
            (Protocol::Mesi, true, ".waiting"),
            (Protocol::Migratory, false, ".migratory"),
        ] {
            let pace = Pace { protocol, word_ns: WORD_NS, transfer_ns, stores_wait };
            // The size is the model's own, so there is no error.
            let Ok(Timed { ns, burst, .. }) = timed(has_shadow, pace) else { continue };
            for (what, unit, value) in [("ns", "ns", ns), ("burst", "buffers", burst)] {
                let labels = labels(&[("state", "model"), ("tool", ring), ("batch", "1")]);
                let name = format!("model.{ring}.1.{distance}-{what}{end}");
                all.push(Measurement { labels, ..Measurement::exact(&name, unit, value) });
            }
        }
    }
    all
}

/// Returns all counts.
pub(super) fn counts() -> Vec<Measurement> {
    let mut all = Vec::new();
    let rings = RINGS.into_iter().flat_map(|ring| BATCHES.map(|batch| (ring, batch)));
    for ((ring, in_order, is_toggled, drive), batch) in rings {
        let features = Features { in_order, ..Features::default() };
        let workload = Workload { features, batch, is_toggled, is_notified: is_toggled, ..Workload::default() };
        // The sizes are the model's own, so there is no error.
        let Ok(counts) = drive(&workload) else { continue };
        let mut add = |what: &str, unit: &str, count: f64| {
            let labels = labels(&[("state", "model"), ("tool", ring), ("batch", &batch.to_string())]);
            let name = format!("model.{ring}.{batch}{what}");
            all.push(Measurement { labels, ..Measurement::exact(&name, unit, count) });
        };
        for (protocol, end) in PROTOCOLS {
            add(end, "lines", counts.transfers_per_item(protocol));
        }
        let each = |count: u64| count as f64 / counts.items as f64;
        if batch == 1 && !ring.starts_with("packed") {
            add(".avail-loads", "count", each(counts.area(Side::Driver, Area::Driver).loads));
        }
        if batch > 1 || !PAPERS.contains(&ring) {
            continue;
        }
        for (side, name) in Side::ALL.into_iter().zip(SIDES) {
            let tally = counts.side(side);
            add(&format!(".{name}.loads"), "count", each(tally.loads));
            add(&format!(".{name}.stores"), "count", each(tally.stores));
            for (protocol, end) in PROTOCOLS {
                let moves = tally.moves(protocol);
                add(&format!(".{name}.load-misses{end}"), "lines", each(moves.load_misses));
                // A line that both sides have is a miss of a store too.
                add(&format!(".{name}.store-misses{end}"), "lines", each(moves.store_misses + moves.upgrades));
            }
        }
    }
    all.extend(times());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shadow_saves_the_producer_all_loads_of_the_avail_line() {
        let counts = counts();
        crate::plan::assert_different_names(counts.iter().map(|measurement| measurement.name.as_str()));
        let of = |name: &str| {
            let found = counts.iter().find(|measurement| measurement.name == format!("model.{name}"));
            found.unwrap_or_else(|| panic!("{name}")).median
        };
        for shadowed in ["shadow", "shadow-flags", "shadow-private", "in-order"] {
            assert_eq!(of(&format!("{shadowed}.1.avail-loads")), 0.0, "{shadowed}");
        }
        // By clocks: where lines stay with both sides, a shadow saves hardly any time; where reads take them over, most of it.
        let ratio = |what: &str| of(&format!("shadow.1.{what}")) / of(&format!("noshadow.1.{what}"));
        let ratios = ["near-ns", "far-ns", "near-ns.waiting", "far-ns.waiting"].map(ratio);
        assert!(ratios.iter().all(|ratio| (0.9..1.02).contains(ratio)), "{ratios:?}");
        assert!(["near-ns.migratory", "far-ns.migratory"].map(ratio).iter().all(|ratio| *ratio < 0.5));
        assert!(of("noshadow.1.avail-loads") > 2.0);
        assert!(of("noshadow-flags.1.avail-loads") > of("noshadow.1.avail-loads"));
        let sides = SIDES.map(|side| of(&format!("shadow.1.{side}.load-misses")));
        assert!(sides.iter().all(|misses| *misses > 0.0) && sides.iter().sum::<f64>() <= of("shadow.1"), "{sides:?}");
    }
}

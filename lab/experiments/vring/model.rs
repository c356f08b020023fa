//! What the queues' model of two caches counts: it needs no counters, and is the same on each machine.
//!
//! ```text
//!   model.RING.BATCH[.migratory]                      lines that go from cache to cache for a buffer
//!   model.RING.1.avail-loads                          how often the driver loads words of the ring that the device reads, for a buffer
//!   model.RING.1.SIDE.loads, stores                   of the paper's two rings: words, of the ring's memory alone
//!   model.RING.1.SIDE.load-misses, store-misses[.migratory]     lines that came for them
//! ```
//! Devices are those of `dormouse_vring`. MESI and MOESI move the same lines; `migratory` has them go over to whoever reads them.

use dormouse_lab_coherence::{Counts, Memory, Protocol, Side, Workload, run, run_packed, run_split};
use dormouse_lab_rings::{PlainDriver, ReadBack};
use dormouse_vring::{Area, Bus, DriverSide, Features, RingError, split};

use super::PAPERS;
use crate::Measurement;
use crate::plan::labels;

/// Published at a time, as in [`super::BATCHES`].
const BATCHES: [u32; 4] = [1, 4, 16, 64];

/// Protocols that differ in what moves, and how names end.
const PROTOCOLS: [(Protocol, &str); 2] = [(Protocol::Mesi, ""), (Protocol::Migratory, ".migratory")];

/// How a queue of the experiment's size and kind is driven through the model.
type Drive = fn(&Workload) -> Result<Counts, RingError>;

/// Rings, as the engine has them: whether in order, and whether with notifications that are suppressed and asked for again.
const RINGS: [(&str, bool, bool, Drive); 9] = [
    ("noshadow", false, false, plain_read_back),
    ("shadow", false, false, plain),
    ("noshadow-flags", false, true, plain_read_back),
    ("shadow-flags", false, true, plain),
    ("noshadow-private", false, false, read_back),
    ("shadow-private", false, false, run_split),
    ("in-order", true, false, run_split),
    ("packed", false, false, run_packed),
    ("packed-in-order", true, false, run_packed),
];

fn driven(
    memory: &Memory,
    mut driver: impl DriverSide,
    bus: impl Bus,
    workload: &Workload,
) -> Result<Counts, RingError> {
    let mut device = split::Device::new(bus, workload.size, workload.features)?;
    run(memory, &mut driver, &mut device, workload)
}

fn plain(workload: &Workload) -> Result<Counts, RingError> {
    let memory = Memory::split(workload.size)?;
    let driver = PlainDriver::<_, false>::new(memory.view(Side::Driver), workload.size, workload.features)?;
    driven(&memory, driver, memory.view(Side::Device), workload)
}

/// Both ways to a ring's memory without a shadow.
fn ways<'a>(memory: &'a Memory, size: u32) -> [ReadBack<impl Bus + use<'a>>; 2] {
    [ReadBack::driver(memory.view(Side::Driver), size), ReadBack::device(memory.view(Side::Device), size)]
}

fn plain_read_back(workload: &Workload) -> Result<Counts, RingError> {
    let memory = Memory::split(workload.size)?;
    let [driver, device] = ways(&memory, workload.size);
    driven(&memory, PlainDriver::<_, false>::new(driver, workload.size, workload.features)?, device, workload)
}

fn read_back(workload: &Workload) -> Result<Counts, RingError> {
    let memory = Memory::split(workload.size)?;
    let [driver, device] = ways(&memory, workload.size);
    driven(&memory, split::Driver::new(driver, workload.size, workload.features)?, device, workload)
}

/// All that is counted.
pub(super) fn counts() -> Vec<Measurement> {
    let mut all = Vec::new();
    for (ring, in_order, is_toggled, drive) in RINGS {
        for batch in BATCHES {
            let features = Features { in_order, ..Features::default() };
            let workload = Workload { features, batch, is_toggled, is_notified: is_toggled, ..Workload::default() };
            // The sizes are the model's own: there is no error to be had.
            let Ok(counts) = drive(&workload) else { continue };
            let mut add = |what: &str, unit: &str, count: f64| {
                let labels = labels(&[("state", "model"), ("tool", ring), ("batch", &batch.to_string())]);
                let name = format!("model.{ring}.{batch}{what}");
                all.push(Measurement { labels, ..Measurement::exact(&name, unit, count) });
            };
            for (protocol, end) in PROTOCOLS {
                add(end, "lines", counts.transfers_per_item(protocol));
            }
            if batch > 1 {
                continue;
            }
            let each = |count: u64| count as f64 / counts.items as f64;
            if !ring.starts_with("packed") {
                add(".avail-loads", "count", each(counts.area(Side::Driver, Area::Driver).loads));
            }
            for (side, name) in [(Side::Driver, "driver"), (Side::Device, "device")] {
                if !PAPERS.contains(&ring) {
                    continue;
                }
                let tally = counts.side(side);
                add(&format!(".{name}.loads"), "count", each(tally.loads));
                add(&format!(".{name}.stores"), "count", each(tally.stores));
                for (protocol, end) in PROTOCOLS {
                    let moves = tally.moves(protocol);
                    add(&format!(".{name}.load-misses{end}"), "lines", each(moves.load_misses));
                    // A line that is there and not for this side alone is a miss of a store too.
                    add(&format!(".{name}.store-misses{end}"), "lines", each(moves.store_misses + moves.upgrades));
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shadow_spares_the_producer_all_loads_of_the_avail_line() {
        let counts = counts();
        let of = |name: &str| {
            let found = counts.iter().find(|measurement| measurement.name == format!("model.{name}"));
            found.unwrap_or_else(|| panic!("{name}")).median
        };
        for shadowed in ["shadow", "shadow-flags", "shadow-private", "in-order"] {
            assert_eq!(of(&format!("{shadowed}.1.avail-loads")), 0.0, "{shadowed}");
        }
        assert!(of("noshadow.1.avail-loads") > 2.0);
        assert!(of("noshadow-flags.1.avail-loads") > of("noshadow.1.avail-loads"));
        let sides = ["driver", "device"].map(|side| of(&format!("shadow.1.{side}.load-misses")));
        assert!(sides.iter().all(|misses| *misses > 0.0) && sides.iter().sum::<f64>() <= of("shadow.1"), "{sides:?}");
        let names: std::collections::BTreeSet<_> = counts.iter().map(|measurement| &measurement.name).collect();
        assert_eq!(names.len(), counts.len(), "no name comes twice");
    }
}

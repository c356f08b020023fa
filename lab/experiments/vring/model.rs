//! What the queues' model of two caches counts: it needs no counters, and is the same on each machine.

use dormouse_lab_coherence::{Counts, Memory, Protocol, Side, Workload, run, run_packed, run_split};
use dormouse_lab_rings::ReadBack;
use dormouse_vring::{Area, Features, RingError, split};

use crate::Measurement;
use crate::plan::labels;

/// Published at a time, as in [`super::BATCHES`].
const BATCHES: [u32; 4] = [1, 4, 16, 64];

/// How a queue of the experiment's size and kind is driven through the model.
type Drive = fn(&Workload) -> Result<Counts, RingError>;

/// Rings, as the engine has them.
const RINGS: [(&str, bool, Drive); 5] = [
    ("noshadow-private", false, run_read_back),
    ("shadow-private", false, run_split),
    ("in-order", true, run_split),
    ("packed", false, run_packed),
    ("packed-in-order", true, run_packed),
];

/// Through a split queue without a shadow.
fn run_read_back(workload: &Workload) -> Result<Counts, RingError> {
    let &Workload { size, features, .. } = workload;
    let memory = Memory::split(size)?;
    let driver = ReadBack::driver(memory.view(Side::Driver), size);
    let device = ReadBack::device(memory.view(Side::Device), size);
    let mut driver = split::Driver::new(driver, size, features)?;
    let mut device = split::Device::new(device, size, features)?;
    run(&memory, &mut driver, &mut device, workload)
}

/// A line of text for each ring, and for split ones how often the producer loads what the consumer reads.
pub(super) fn counts() -> (Vec<String>, Vec<Measurement>) {
    let (mut notes, mut measurements) = (Vec::new(), Vec::new());
    for (ring, in_order, drive) in RINGS {
        let counted = BATCHES.map(|batch| {
            let features = Features { in_order, event_idx: true, ..Features::default() };
            drive(&Workload { features, batch, ..Workload::default() })
        });
        // The sizes are the model's own: there is no error to be had.
        let counted: Vec<Counts> = counted.into_iter().flatten().collect();
        let by = |protocol: Protocol| {
            let lines = counted.iter().map(|counts| format!("{:.3}", counts.transfers_per_item(protocol)));
            format!("{} {}", protocol.name(), lines.collect::<Vec<_>>().join(" "))
        };
        let all = Protocol::ALL.map(by).join(", ");
        notes.push(format!(
            "model, {ring}: lines that go from cache to cache for a buffer, published 1, 4, 16, 64 at a time: {all}"
        ));
        if !ring.starts_with("packed") {
            let loads: u64 = counted.iter().map(|counts| counts.area(Side::Driver, Area::Driver).loads).sum();
            let labels = labels(&[("state", "model"), ("tool", ring)]);
            let name = format!("model_avail_loads.{ring}");
            measurements.push(Measurement { labels, ..Measurement::exact(&name, "count", loads as f64) });
        }
    }
    (notes, measurements)
}

/// Which of the model's protocols is the machine's: of a line that goes over to whoever reads it, `reread` is a transfer and more;
/// otherwise next to nothing. Both in nanoseconds, `transfer` one way.
pub(super) fn protocol(reread: f64, transfer: f64) -> String {
    let has_gone = reread > transfer / 2.0;
    let (words, columns) = if has_gone {
        ("it went over to that one, as the model has it under", [Protocol::Migratory].as_slice())
    } else {
        ("it was still there, as the model has it under", [Protocol::Mesi, Protocol::Moesi].as_slice())
    };
    let columns: Vec<&str> = columns.iter().map(|protocol| protocol.name()).collect();
    format!(
        "to read a line of one's own that the other processor has read meanwhile takes {reread:.0} ns: {words} {}",
        columns.join(" and ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shadow_spares_the_producer_all_loads_of_the_avail_line() {
        let (notes, measurements) = counts();
        assert_eq!(notes.len(), RINGS.len());
        let loads = |ring: &str| {
            let name = format!("model_avail_loads.{ring}");
            measurements.iter().find(|measurement| measurement.name == name).map(|measurement| measurement.median)
        };
        assert_eq!((loads("shadow-private"), loads("in-order")), (Some(0.0), Some(0.0)));
        assert!(loads("noshadow-private").is_some_and(|loads| loads > 4_096.0));
        assert!(notes[0].contains("MESI 5.1"), "{}", notes[0]);
    }

    #[test]
    fn a_line_that_must_be_waited_for_has_gone_over() {
        assert!(protocol(40.0, 30.0).ends_with("went over to that one, as the model has it under MOESI, migratory"));
        assert!(protocol(1.0, 30.0).ends_with("still there, as the model has it under MESI and MOESI"));
        assert!(protocol(-2.0, 150.0).contains("-2 ns"));
    }
}

//! Which counters of the processor and the kernel can be had, found by opening them.
//!
//! A counter that opens is not yet one that counts: under some hypervisors it stays at zero, and where all hardware counters are in use it
//! never gets its turn. So all are started, some work is done, and they are read.

use std::collections::BTreeMap;

use dormouse_lab_harness::{Counters, counters};

use super::{Fact, Facts};

/// Why a counter that opens is of no use, by what all of them counted; zero may be true of some.
fn cause_of(name: &str, counts: &BTreeMap<String, f64>, is_virtualised: bool) -> Option<String> {
    let is_zero = |name: &str| counts.get(name).is_none_or(|count| *count == 0.0);
    let is_suspicious = match name {
        "cycles" | "instructions" => true,
        // Prefetching may leave nothing to miss, where the processor's counters count at all.
        name if name.starts_with("l1d_") || name.starts_with("llc_") => is_zero("cycles"),
        // The work may find its memory there already, and nothing else to run.
        _ => false,
    };
    let cause = match (counts.contains_key(name), is_suspicious && is_zero(name)) {
        (false, _) => "it opens but never runs: other counters (the NMI watchdog, a profiler) hold the hardware",
        (true, true) if is_virtualised => {
            "it opens but stays at zero: the hypervisor of this virtual machine does not count"
        }
        (true, true) => "it opens but stays at zero",
        (true, false) => return None,
    };
    Some(cause.into())
}

/// Tries each counter on the calling thread. Names are those of `counters` in a measurement.
pub(super) fn read(is_virtualised: bool) -> Facts {
    let mut opened = Counters::open();
    opened.start();
    let mut memory = vec![0_u8; 1 << 20];
    memory.iter_mut().step_by(64).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
    let counts = opened.stop();
    let fact = |name: &str| {
        let refused = opened.refused().iter().find(|(refused, _)| *refused == name);
        let cause = refused.map(|(_, cause)| cause.clone());
        let cause = cause.or_else(|| cause_of(name, &counts, is_virtualised));
        (name.to_string(), cause.map_or_else(|| Fact::Told("available".into()), Fact::NotTold))
    };
    counters().iter().map(|(name, _)| fact(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_name_who_is_to_blame() {
        let of = |name: &str, counts: &[(&str, f64)], is_virtualised| {
            let counts = counts.iter().map(|(name, count)| (name.to_string(), *count)).collect();
            cause_of(name, &counts, is_virtualised).unwrap_or_default()
        };
        assert!(of("cycles", &[], true).contains("NMI watchdog"));
        assert!(of("cycles", &[("cycles", 0.0)], true).contains("hypervisor"));
        assert!(of("llc_load_misses", &[("llc_load_misses", 0.0)], false).ends_with("zero"));
        assert_eq!(of("llc_load_misses", &[("llc_load_misses", 0.0), ("cycles", 9.0)], true), "");
        assert_eq!(of("page_faults", &[("page_faults", 0.0)], true), "");
        assert_eq!(read(true).len(), counters().len());
    }
}

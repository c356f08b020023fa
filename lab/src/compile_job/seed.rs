//! Desnoyers's (2009) macrobenchmark (a kernel's build on eight processors, 2009) beside this machine's build.
//!
//! # Source
//! As in `relay_write::seed`, whose figures these are.

use std::fmt::Write;

use crate::relay_write::seed::{DORMANT_S_2009, NONE_S_2009, WAYS_2009};
use crate::statistics::ratio;
use crate::{Experiment, Measurement};

use super::{NAME, Way};

/// What it is, its seconds then, and the way of here.
fn rows() -> [(&'static str, f64, Way); 5] {
    let [memcpy, specialised, inlined] = WAYS_2009;
    [
        ("no tracing", NONE_S_2009, Way::None),
        ("dormant", DORMANT_S_2009, Way::Dormant),
        (memcpy.1, memcpy.2, Way::ArmedOverwriteMemcpy),
        (specialised.1, specialised.2, Way::ArmedOverwriteSpecialised),
        (inlined.1, inlined.2, Way::ArmedOverwrite),
    ]
}

/// The paper's table; nothing for another experiment, or without the variants of the write.
pub(crate) fn tables(experiment: &Experiment) -> String {
    let mut text = String::new();
    let wall = |way: Way| -> Option<&Measurement> {
        let name = format!("{}.wall", way.name());
        experiment.measurements.iter().find(|measurement| measurement.name == name)
    };
    let has_all = rows().iter().all(|(.., way)| wall(*way).is_some());
    let (Some(none), true) = (wall(Way::None), experiment.name == NAME && has_all) else { return text };
    // Writing to a String does not fail.
    let _ =
        writeln!(text, "  The kernel's build of 2009 and the build here, in seconds, and to that without tracing\n");
    let _ = writeln!(text, "  {:34} {:>8} {:>8} {:>12} {:>30}", "", "2009", "", "here", "");
    for (what, seconds, way) in rows() {
        let Some(here) = wall(way) else { continue };
        let share = ratio(what, &here.samples, &none.samples);
        let share = share.map_or_else(String::new, |share| {
            format!("{:.3} [{:.3}, {:.3}]", share.value, share.ci95[0], share.ci95[1])
        });
        let then = seconds / NONE_S_2009;
        let _ = writeln!(text, "  {what:34} {seconds:>8.3} {then:>8.3} {:>12.3} {share:>30}", here.median);
    }
    let _ = writeln!(text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::measurement;

    #[test]
    fn the_table_has_the_seeds_figures_and_what_was_measured() {
        let measurements = rows().map(|(_, seconds, way)| {
            measurement(&format!("{}.wall", way.name()), "s", &[seconds / 10.0, seconds / 10.0, seconds / 10.0])
        });
        let mut experiment =
            Experiment { name: NAME.into(), measurements: measurements.into(), ..Experiment::default() };
        let text = tables(&experiment);
        for figure in ["82.103", "84.667", "91.135", "90.440", "89.614", "1.031", "9.114", "1.091 [1.091, 1.091]"] {
            assert!(text.contains(figure), "{figure} is missing:\n{text}");
        }
        experiment.measurements.pop();
        assert_eq!(tables(&experiment), "");
    }
}

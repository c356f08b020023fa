//! Desnoyers's (2009) figures (a kernel's build on eight processors, 2009) beside this machine's.
//!
//! It measured a whole build with flight-recorder tracing active, and how much shorter it became by each change. Of such a build only
//! the difference to one with dormant instrumentation is tracing; what of that is the write itself, it does not say. So its shares and
//! those here, of the write alone, are not of the same thing: they agree in their order, or they do not.
//!
//! # Source
//! Mathieu Desnoyers, "LTTng optimize write to page function", 3 February 2009: "Compiling a 2.6.25 kernel using make -j10 on a 8-cores x86_64",
//! all tests cache-hot.

use std::fmt::Write;

use crate::statistics::ratio;
use crate::{Experiment, Measurement};

use super::NAME;

/// Seconds of the build: without tracing, and with dormant instrumentation.
pub(crate) const NONE_S_2009: f64 = 82.103;
pub(crate) const DORMANT_S_2009: f64 = 84.667;
/// With the flight recorder active, by way.
pub(crate) const WAYS_2009: [(&str, &str, f64); 3] = [
    ("memcpy", "memcpy called", 91.135),
    ("specialised", "specialised for 1, 2, 4, 8 bytes", 90.440),
    ("inlined", "… and inlined", 89.614),
];

fn find<'a>(experiment: &'a Experiment, name: &str) -> Option<&'a Measurement> {
    experiment.measurements.iter().find(|measurement| measurement.name == name)
}

/// Where: how a name ends, and what to call it.
const PLACES: [(&str, &str); 3] =
    [("mix.unaligned", "mix"), ("8-bytes", "8 bytes"), ("mix.unaligned.L2", "mix, L2 out")];

/// A way's cost, and its ratio to that of the called memcpy in words.
fn cell(experiment: &Experiment, way: &str, place: &str) -> Option<(f64, String)> {
    let here = find(experiment, &format!("write.{way}.{place}"))?;
    let memcpy = find(experiment, &format!("write.memcpy.{place}"))?;
    let share = ratio(way, &here.samples, &memcpy.samples)?;
    Some((here.median, format!("{:.3} [{:.3}, {:.3}]", share.value, share.ci95[0], share.ci95[1])))
}

/// The paper's table; nothing for another experiment.
pub(crate) fn tables(experiment: &Experiment) -> String {
    let mut text = String::new();
    let places: Vec<_> = PLACES.into_iter().filter(|(place, _)| cell(experiment, "memcpy", place).is_some()).collect();
    if experiment.name != NAME || places.is_empty() {
        return text;
    }
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "  The build of 2009 in seconds, and here one record's write in ns, with its ratio to memcpy called\n"
    );
    let heads: String = places.iter().map(|(_, what)| format!(" {what:>32}")).collect();
    let _ = writeln!(text, "  {:34} {:>8} {:>12}{heads}", "", "2009", "of tracing");
    for (what, seconds) in [("no tracing", NONE_S_2009), ("dormant", DORMANT_S_2009)] {
        let _ = writeln!(text, "  {what:34} {seconds:>8.3}");
    }
    let tracing = |seconds: f64| (seconds - DORMANT_S_2009) / (WAYS_2009[0].2 - DORMANT_S_2009);
    for (way, what, seconds) in WAYS_2009 {
        let cells: String = places
            .iter()
            .map(|(place, _)| {
                let found = cell(experiment, way, place);
                let found = found.map(|(ns, share)| format!("{ns:.2}   {share}"));
                format!(" {:>32}", found.unwrap_or_else(|| "–".into()))
            })
            .collect();
        let _ = writeln!(text, "  {what:34} {seconds:>8.3} {:>12.3}{cells}", tracing(seconds));
    }
    let _ = writeln!(text);
    text
}

/// The two changes in a line.
pub(crate) fn conclusion(experiment: &Experiment) -> Option<String> {
    let (place, _) = PLACES[0];
    let share = |way: &str| cell(experiment, way, place).map(|(_, share)| share);
    Some(format!(
        "the write of a mix of records takes {} of what it takes by a called memcpy when it is specialised, and {} when it is inlined \
         too; in the build of Desnoyers (2009), what tracing added fell to 0.893 and 0.765 of itself",
        share("specialised")?,
        share("inlined")?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::measurement;

    fn experiment() -> Experiment {
        let figures = [("memcpy", 40.0), ("specialised", 30.0), ("inlined", 20.0)];
        let measurements = figures
            .map(|(way, ns)| measurement(&format!("write.{way}.mix.unaligned"), "ns", &[ns, ns + 0.1, ns - 0.1, ns]));
        Experiment { name: NAME.into(), measurements: measurements.into(), ..Experiment::default() }
    }

    #[test]
    fn the_seeds_shares_of_tracing_are_what_the_conclusion_says() {
        let shares = WAYS_2009.map(|(_, _, seconds)| (seconds - DORMANT_S_2009) / (WAYS_2009[0].2 - DORMANT_S_2009));
        assert_eq!(shares.map(|share| format!("{share:.3}")), ["1.000", "0.893", "0.765"]);
    }

    #[test]
    fn the_table_has_the_seeds_figures_and_what_was_measured() {
        let experiment = experiment();
        let text = tables(&experiment);
        for figure in ["82.103", "84.667", "91.135", "90.440", "89.614", "40.00", "0.500", "0.750"] {
            assert!(text.contains(figure), "{figure} is missing:\n{text}");
        }
        assert!(!text.contains("L2 out"), "what was not measured has no column");
        assert!(conclusion(&experiment).is_some_and(|text| text.contains("0.500")));
        assert_eq!(tables(&Experiment { name: "imv".into(), ..experiment }), "");
    }
}

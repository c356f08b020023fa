//! Srinivas's (2015) figures beside this machine's.
//!
//! It counted elapsed seconds and misses of the first-level data cache of a program that sent so many buffers, without its change and
//! with it. Of these, what a machine without hardware counters can be held against is the time.
//!
//! # Source
//! Venkatesh Srinivas, "Re: \[PATCH\] virtio_ring: Shadow available ring flags & index", November 2015; core turbo disabled.

use std::fmt::Write;

use crate::statistics::ratio;
use crate::{Experiment, Measurement};

use super::NAME;

/// A pair of runs: machine and placement, buffers, seconds without and with, and misses of L1d by loads without and with.
type Row = (&'static str, &'static str, f64, [f64; 2], [f64; 2]);

pub(crate) const ROWS_2015: [Row; 7] = [
    ("Westmere W3690, 3.46 GHz", "hyperthreads", 1e9, [121.335699344, 121.206339656], [21_393_148.0, 15_787_778.0]),
    (
        "Westmere W3690, 3.46 GHz",
        "same socket",
        1e9,
        [146.585969976, 142.657327765],
        [8_868_334_693.0, 6_689_318_709.0],
    ),
    ("Sandy Bridge-EP, 2.6 GHz", "hyperthreads", 1e8, [17.029790809, 16.941001709], [6_416_246.0, 10_241_080.0]),
    ("Sandy Bridge-EP, 2.6 GHz", "same socket", 1e8, [15.020511218, 15.208420297], [809_933_091.0, 716_687_011.0]),
    ("Sandy Bridge-EP, 2.6 GHz", "sockets apart", 1e8, [46.340035651, 42.593259436], [821_746_755.0, 711_731_527.0]),
    ("Haswell-EP, 2.3 GHz", "hyperthreads", 1e10, [243.290969318, 242.146970822], [74_223_784.0, 80_859_208.0]),
    ("Haswell-EP, 2.3 GHz", "same socket", 1e10, [229.733047436, 230.850697668], [8_757_660_391.0, 8_348_013_630.0]),
];

fn find<'a>(experiment: &'a Experiment, name: &str) -> Option<&'a Measurement> {
    experiment.measurements.iter().find(|measurement| measurement.name == name)
}

/// The paper's two rings here: where, and how names end.
const PLACES: [(&str, &str); 5] = [
    ("here, same socket", ""),
    ("here, same socket, crowded", ".crowded"),
    ("here, same socket, far", ".far"),
    ("here, hyperthreads", ".hyperthreads"),
    ("here, sockets apart", ".sockets-apart"),
];

/// Nanoseconds of a buffer without and with, and their ratio in words.
fn found(experiment: &Experiment, batch: &str, suffix: &str) -> Option<([f64; 2], String)> {
    let of = |ring: &str| find(experiment, &format!("stream.{ring}.{batch}{suffix}"));
    let (without, with) = (of("noshadow")?, of("shadow")?);
    let ratio = ratio("shadow", &with.samples, &without.samples)?;
    let words = format!("{:.3} [{:.3}, {:.3}]", ratio.value, ratio.ci95[0], ratio.ci95[1]);
    Some(([without.median, with.median], words))
}

/// The paper's table; nothing for another experiment.
pub(crate) fn tables(experiment: &Experiment) -> String {
    let mut text = String::new();
    if experiment.name != NAME {
        return text;
    }
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "  The two rings of Srinivas (2015), then and here: ns of a buffer, and misses of L1d by its loads\n"
    );
    let columns = ["noshadow", "shadow", "ratio", "misses", "misses"];
    let [a, b, c, d, e] = columns;
    let _ = writeln!(text, "  {:46} {a:>9} {b:>9} {c:>22} {d:>9} {e:>9}", "");
    for (machine, placement, buffers, seconds, misses) in ROWS_2015 {
        let ns = seconds.map(|seconds| seconds * 1e9 / buffers);
        let [of, to] = misses.map(|misses| misses / buffers);
        let name = format!("{machine}, {placement}");
        let _ = writeln!(text, "  {name:46} {:>9.2} {:>9.2} {:>22.3} {of:>9.3} {to:>9.3}", ns[0], ns[1], ns[1] / ns[0]);
    }
    for (place, suffix) in PLACES {
        for batch in super::BATCHES {
            let Some((ns, ratio)) = found(experiment, batch, suffix) else { continue };
            let misses = ["noshadow", "shadow"].map(|ring| {
                let measurement = find(experiment, &format!("stream.{ring}.{batch}{suffix}"));
                let misses = measurement.and_then(|measurement| measurement.counters.get("l1d_misses"));
                misses.map_or_else(|| "–".into(), |misses| format!("{misses:.3}"))
            });
            let name = format!("{place}, stream, batches of {batch}");
            let _ = writeln!(
                text,
                "  {name:46} {:>9.2} {:>9.2} {ratio:>22} {:>9} {:>9}",
                ns[0], ns[1], misses[0], misses[1]
            );
        }
    }
    let _ = writeln!(text);
    text
}

/// In a line.
pub(crate) fn conclusion(experiment: &Experiment) -> Option<String> {
    let suffix = ["", ".crowded", ".far"].into_iter().find(|suffix| found(experiment, "1", suffix).is_some())?;
    let (_, alone) = found(experiment, "1", suffix)?;
    Some(format!(
        "the shadow alone, in the ring as Srinivas (2015) has it and one buffer at a time, makes a buffer's way take {alone} of what it \
         takes without; in the runs of 2015, 0.919 to 1.013"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::measurement;

    #[test]
    fn the_seeds_ratios_are_what_the_conclusion_says() {
        let ratios: Vec<f64> = ROWS_2015.iter().map(|(.., seconds, _)| seconds[1] / seconds[0]).collect();
        let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        assert_eq!([low, high].map(|ratio| format!("{ratio:.3}")), ["0.919", "1.013"]);
    }

    #[test]
    fn the_table_has_the_seeds_figures_and_what_was_measured() {
        let of = |ring: &str, ns: f64| measurement(&format!("stream.{ring}.1"), "ns", &[ns, ns + 0.1, ns - 0.1, ns]);
        let measurements = vec![of("noshadow", 100.0), of("shadow", 90.0)];
        let experiment = Experiment { name: NAME.into(), measurements, ..Experiment::default() };
        let text = tables(&experiment);
        for figure in ["146.59", "142.66", "0.973", "463.40", "425.93", "8.868", "0.900"] {
            assert!(text.contains(figure), "{figure} is missing:\n{text}");
        }
        assert!(!text.contains("batches of 4"), "what was not measured has no line");
        assert!(conclusion(&experiment).is_some_and(|text| text.contains("0.900")));
        assert_eq!(tables(&Experiment { name: "imv".into(), ..experiment }), "");
    }
}

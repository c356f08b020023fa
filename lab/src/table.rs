//! Results as text, for people.
//!
//! ```text
//!   event
//!     tables of the experiment's own, where it has any
//!     what departs from the plain case       median [95 %]   MAD   mean ± deviation   cycles
//!     …
//!     ratios                                  value [95 %]          of means ± deviation
//!     notes
//! ```

use std::fmt::Write;

use crate::statistics::Uncertain;
use crate::{Experiment, Measurement};

/// Axes whose values make a group of their own in the table, with what they are in the plain case.
const AXES: [(&str, &str); 5] =
    [("threads", "1"), ("pressure", "hot"), ("sites", "1"), ("busy", "0"), ("mode", "overwrite")];

/// What departs from the plain case, in words.
fn group(measurement: &Measurement) -> String {
    let departs = AXES.iter().filter_map(|(axis, plain)| {
        let value = measurement.labels.get(*axis)?;
        (value != plain).then(|| match *axis {
            "pressure" => format!("{value} driven out"),
            "busy" => format!("{value} thread in the sites"),
            "mode" => format!("{value} mode"),
            _ => format!("{value} {axis}"),
        })
    });
    departs.collect::<Vec<_>>().join(", ")
}

/// Notes that a reader has to see before the figures.
fn is_warning(note: &str) -> bool {
    ["noisy neighbour", "not steady", "outliers"].iter().any(|start| note.starts_with(start))
}

/// The experiment as a table of text, with a line break at its end.
pub fn table(experiment: &Experiment) -> String {
    let mut text = format!("{}\n", experiment.name);
    // Writing to a String does not fail.
    for note in experiment.notes.iter().filter(|note| is_warning(note)) {
        let _ = writeln!(text, "  WARNING: {note}");
    }
    let tables = crate::seed_tables(experiment);
    if !tables.is_empty() {
        let _ = write!(text, "\n{}", tables.trim_end_matches('\n'));
        text.push('\n');
    }
    let mut groups: Vec<String> = Vec::new();
    for group in experiment.measurements.iter().map(group) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let width =
        experiment.measurements.iter().map(|m| m.name.len()).chain(experiment.ratios.iter().map(|r| r.name.len()));
    let width = width.max().unwrap_or(0);
    for of in groups {
        let title = if of.is_empty() { "" } else { of.as_str() };
        let columns = ["median", "95 % interval", "MAD", "mean ± σ", "cycles"];
        let _ = writeln!(
            text,
            "\n  {title:width$} {:>9}    {:>19} {:>8} {:>17} {:>8}",
            columns[0], columns[1], columns[2], columns[3], columns[4]
        );
        for m in experiment.measurements.iter().filter(|m| group(m) == of) {
            let interval = format!("[{}, {}]", number(m.ci95[0]), number(m.ci95[1]));
            let means = Uncertain { mean: m.mean, stddev: m.stddev };
            let cycles = m.tsc_cycles.map(|cycles| format!("{cycles:.0}")).unwrap_or_default();
            let _ = writeln!(
                text,
                "  {:width$} {:>9} {:2} {interval:>19} {:>8} {:>17} {cycles:>8}",
                m.name,
                number(m.median),
                m.unit,
                number(m.mad),
                format!("{} ± {}", number(means.mean), number(means.stddev)),
            );
        }
    }
    if !experiment.ratios.is_empty() {
        let _ =
            writeln!(text, "\n  {:width$} {:>9}    {:>19} {:>26}", "ratios", "value", "95 % interval", "of means ± σ");
        for ratio in &experiment.ratios {
            let interval = format!("[{:.3}, {:.3}]", ratio.ci95[0], ratio.ci95[1]);
            let means = ratio.means.map(|[mean, stddev]| format!("{mean:.3} ± {stddev:.3}")).unwrap_or_default();
            let _ = writeln!(text, "  {:width$} {:>9.3}    {interval:>19} {means:>26}", ratio.name, ratio.value);
        }
    }
    text.push('\n');
    for note in experiment.notes.iter().filter(|note| !is_warning(note)) {
        let _ = writeln!(text, "  {note}");
    }
    text
}

/// With as many digits as a figure deserves: three or four.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Labels, Ratio};

    fn measurement(name: &str, labels: &[(&str, &str)]) -> Measurement {
        let labels: Labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Measurement { name: name.into(), unit: "ns".into(), median: 12.345, labels, ..Measurement::default() }
    }

    #[test]
    fn groups_follow_the_axes_and_warnings_come_first() {
        let experiment = Experiment {
            name: "event".into(),
            measurements: vec![
                measurement("a", &[("threads", "1"), ("pressure", "hot")]),
                measurement("b", &[("threads", "2"), ("pressure", "L2")]),
                measurement("c", &[]),
            ],
            ratios: vec![Ratio { name: "a_vs_b".into(), value: 0.5, ci95: [0.4, 0.6], means: Some([0.51, 0.02]) }],
            notes: vec!["processors [1]".into(), "outliers: many".into()],
        };
        let text = table(&experiment);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} in {text}"));
        assert!(at("WARNING: outliers") < at("12.35"));
        assert!(at("2 threads, L2 driven out") < at("\n  b "));
        assert!(at("\n  c ") < at("2 threads"), "c belongs to the plain group");
        assert!(at("0.500 ") < at("processors [1]"));
        assert!(text.contains("0.510 ± 0.020"));
    }

    #[test]
    fn digits() {
        assert_eq!(
            ["0.012", "12.35", "123.5", "1235", "-0.500"],
            [0.0123, 12.345, 123.456, 1234.6, -0.5].map(number).as_slice()
        );
    }
}

//! Results as text, for people.
//!
//! ```text
//!   event
//!     what the paper says, where it grew out of one
//!     what departs from the plain case       median [95 %]   MAD   mean ± deviation   cycles
//!     …
//!     ratios                                  value [95 %]          of means ± deviation
//!     notes
//! ```

use std::fmt::Write;

use dormouse_terminal::style::wrap;

use crate::experiments::{self, Known};
use crate::grid::{Grid, number};
use crate::statistics::Uncertain;
use crate::{Experiment, Measurement, paper};

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

/// `[1.000, 2.000]`
fn interval(ci95: Option<[f64; 2]>) -> String {
    ci95.map_or_else(|| "too few rounds".into(), |[low, high]| format!("[{}, {}]", number(low), number(high)))
}

fn row(m: &Measurement) -> Vec<String> {
    let means = format!("{} ± {}", number(m.mean), number(m.stddev));
    let cycles = m.tsc_cycles.map(|cycles| format!("{cycles:.0}")).unwrap_or_default();
    let spread = if m.is_exact {
        ["exact".into(), String::new(), String::new()]
    } else {
        [interval(m.ci95), number(m.mad), means]
    };
    [[m.name.clone(), number(m.median), m.unit.clone()].as_slice(), &spread, &[cycles]].concat()
}

/// The experiment as text, with a line break at its end.
pub fn table(experiment: &Experiment) -> String {
    let mut text = format!("{}\n", experiment.name);
    // Writing to a String does not fail.
    for note in experiment.notes.iter().filter(|note| is_warning(note)) {
        let _ = writeln!(text, "  WARNING: {note}");
    }
    if let Some(paper) = experiments::find(&experiment.name).and_then(Known::paper) {
        let _ = writeln!(text, "\n{}\n", wrap(&paper.heading(), "  "));
        for grid in paper.tables(experiment).iter().chain([&paper::grid(&experiment.statements)]) {
            let _ = writeln!(text, "{}", grid.text());
        }
    }
    let mut groups: Vec<String> = Vec::new();
    for group in experiment.measurements.iter().map(group) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for of in groups {
        let rows = experiment.measurements.iter().filter(|m| group(m) == of).map(row).collect();
        let mut head = ["", "median", "", "95 % interval", "MAD", "mean ± σ", "cycles"].map(String::from).to_vec();
        head[0] = of;
        let _ = writeln!(text, "\n{}", Grid { head, rows }.text().trim_end());
    }
    if !experiment.ratios.is_empty() {
        let rows = experiment.ratios.iter().map(|ratio| {
            let means = ratio.means.map(|[mean, stddev]| Uncertain { mean, stddev }.to_string()).unwrap_or_default();
            vec![ratio.name.clone(), number(ratio.value), interval(ratio.ci95), means]
        });
        let head = ["ratios", "value", "95 % interval", "of means ± σ"].map(String::from).to_vec();
        let _ = writeln!(text, "\n{}", Grid { head, rows: rows.collect() }.text().trim_end());
    }
    text.push('\n');
    for note in experiment.notes.iter().filter(|note| !is_warning(note)) {
        let _ = writeln!(text, "  {note}");
    }
    text
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
            ratios: vec![Ratio {
                name: "a_vs_b".into(),
                value: 0.5,
                ci95: Some([0.4, 0.6]),
                means: Some([0.51, 0.02]),
            }],
            statements: Vec::new(),
            notes: vec!["processors [1]".into(), "outliers: many".into()],
        };
        let text = table(&experiment);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} in {text}"));
        assert!(at("WARNING: outliers") < at("12.35"));
        assert!(at("2 threads, L2 driven out") < at("\n  b "));
        assert!(at("\n  c ") < at("2 threads"), "c belongs to the plain group");
        assert!(at("[0.400, 0.600]") < at("processors [1]"));
        assert!(text.contains("too few rounds"), "{text}");
        assert!(text.contains("0.51 ± 0.02"));
    }
}

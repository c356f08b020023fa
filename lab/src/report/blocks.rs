//! What is said of an experiment, in its order, whoever writes it.

use std::collections::BTreeSet;

use crate::experiments::{self, Known};
use crate::grid::{Grid, interval, number};
use crate::paper::{self, Paper};
use crate::report::plots::{self, Plot};
use crate::statistics::Uncertain;
use crate::{Experiment, Measurement};

/// A part of a report.
#[derive(Debug)]
pub(super) enum Block {
    Heading(String),
    Text(String),
    Warnings(Vec<String>),
    List(Vec<String>),
    /// With its title.
    Grid(String, Grid),
    /// On a page alone.
    Plot(Plot),
    /// On a page alone, and there when the reader asks. It says what is in it.
    Fold(String, Vec<Block>),
}

/// Axes whose values make a table of their own, with what they are in the plain case.
const AXES: [(&str, &str); 3] = [("threads", "1"), ("pressure", "hot"), ("mode", "overwrite")];

/// What departs from the plain case, in words.
fn group(measurement: &Measurement) -> String {
    let departs = AXES.iter().filter_map(|(axis, plain)| {
        let value = measurement.labels.get(*axis)?;
        (value != plain).then(|| match *axis {
            "pressure" => format!("{value} driven out"),
            "mode" => format!("{value} mode"),
            _ => format!("{value} {axis}"),
        })
    });
    departs.collect::<Vec<_>>().join(", ")
}

/// Each value once, in the order of its first.
fn each<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut seen, value| {
        if !seen.contains(&value) {
            seen.push(value);
        }
        seen
    })
}

/// Notes that a reader has to see before the figures.
pub(super) fn is_warning(note: &str) -> bool {
    ["noisy neighbour", "not steady", "outliers"].iter().any(|start| note.starts_with(start))
}

fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Measurements with what they have in common in the title.
fn measurements(title: &str, members: &[&Measurement]) -> Block {
    let measured: Vec<&&Measurement> = members.iter().filter(|m| !m.is_exact).collect();
    let rounds = each(measured.iter().map(|m| m.n));
    let units = each(members.iter().map(|m| m.unit.as_str()));
    let mut title = title.to_string();
    if let [unit] = units[..] {
        title += &format!(", {unit}");
    }
    if let [rounds] = rounds[..] {
        title += &format!(", {rounds} round{}", if rounds == 1 { "" } else { "s" });
    }
    let row = |m: &&Measurement| {
        let unit = if units.len() > 1 { m.unit.clone() } else { String::new() };
        let n = if rounds.len() > 1 && !m.is_exact { m.n.to_string() } else { String::new() };
        let [mad, means] = if m.is_exact {
            [String::new(), String::new()]
        } else {
            [number(m.mad), format!("{} ± {}", number(m.mean), number(m.stddev))]
        };
        let cycles = m.tsc_cycles.map(number).unwrap_or_default();
        vec![m.name.clone(), number(m.median), unit, interval(m.ci95, m.is_exact), mad, means, cycles, n]
    };
    let head = head(&["", "median", "unit", "95 % interval", "MAD", "mean ± σ", "cycles", "rounds"]);
    Block::Grid(title, Grid { head, rows: members.iter().map(row).collect() })
}

/// What the kernel and the processor counted.
fn counters(members: &[Measurement]) -> Option<Block> {
    let names: BTreeSet<&String> = members.iter().flat_map(|m| m.counters.keys()).collect();
    let row = |m: &Measurement| {
        let counts = names.iter().map(|name| m.counters.get(*name).copied().map(number).unwrap_or_default());
        std::iter::once(m.name.clone()).chain(counts).collect()
    };
    let rows = members.iter().filter(|m| !m.counters.is_empty()).map(row).collect();
    let head = std::iter::once(String::new()).chain(names.iter().map(|name| name.replace('_', " "))).collect();
    let title = "Counters, for each iteration";
    (!names.is_empty()).then(|| Block::Fold(title.into(), vec![Block::Grid(title.into(), Grid { head, rows })]))
}

/// The first plot, and the others where the reader asks for them.
fn folded(what: &str, plots: Vec<Plot>) -> Vec<Block> {
    let mut plots = plots.into_iter().map(Block::Plot);
    let mut blocks: Vec<Block> = plots.next().into_iter().collect();
    let others: Vec<Block> = plots.collect();
    if !others.is_empty() {
        blocks.push(Block::Fold(format!("{what}: {} more", others.len()), others));
    }
    blocks
}

/// What a paper says, and what the rounds of an experiment say to it.
pub(super) fn of_paper(paper: &Paper, experiment: &Experiment) -> Vec<Block> {
    let mut blocks = vec![Block::Text(paper.heading())];
    let statements = paper::grid(&paper.judge(experiment));
    let tables = paper.tables(experiment).into_iter().map(|mut grid| {
        let title = grid.head.get_mut(1).map(std::mem::take).unwrap_or_default();
        (title, grid)
    });
    let grids = std::iter::once(("Statements".to_string(), statements)).chain(tables);
    blocks.extend(grids.filter(|(_, grid)| !grid.rows.is_empty()).map(|(title, grid)| Block::Grid(title, grid)));
    blocks
}

/// An experiment: warnings, the paper, ratios, measurements, what else there is to know.
pub(super) fn of_experiment(experiment: &Experiment) -> Vec<Block> {
    let (warnings, notes): (Vec<String>, Vec<String>) = experiment.notes.iter().cloned().partition(|n| is_warning(n));
    let mut blocks = vec![Block::Warnings(warnings)];
    if let Some(paper) = experiments::find(&experiment.name).and_then(Known::paper) {
        blocks.push(Block::Heading("What the paper says".into()));
        blocks.extend(of_paper(&paper, experiment));
    }
    if !experiment.ratios.is_empty() {
        let rows = experiment.ratios.iter().map(|ratio| {
            let means = ratio.means.map(|[mean, stddev]| Uncertain { mean, stddev }.to_string()).unwrap_or_default();
            vec![ratio.name.clone(), number(ratio.value), interval(ratio.ci95, false), means]
        });
        let head = head(&["", "value", "95 % interval", "of means ± σ"]);
        blocks.push(Block::Heading("Ratios".into()));
        blocks.push(Block::Grid(
            "Median of the first over that of the second".into(),
            Grid { head, rows: rows.collect() },
        ));
        blocks.extend(folded("Ratios", plots::ratios(&experiment.ratios)));
    }
    let all = &experiment.measurements;
    blocks.push(Block::Heading("Measurements".into()));
    if all.is_empty() {
        blocks.push(Block::Text("There are no measurements of it in this result.".into()));
    }
    for plot in plots::against_axes(all) {
        blocks.extend(folded("Further lines", plot));
    }
    for of in each(all.iter().map(group)) {
        let members: Vec<&Measurement> = all.iter().filter(|m| group(m) == of).collect();
        let title = if of.is_empty() { "Plain case" } else { &of };
        blocks.push(measurements(title, &members));
        blocks.extend(folded("Further cases", plots::intervals(&format!("Medians: {title}"), members)));
    }
    blocks.extend(counters(all));
    let rounds = plots::rounds(all);
    if rounds.is_empty() && !all.is_empty() {
        blocks.push(Block::Text("There are no rounds in this result whose distribution could be shown.".into()));
    } else if !rounds.is_empty() {
        blocks.push(Block::Fold("Every round".into(), rounds.into_iter().map(Block::Plot).collect()));
    }
    if !notes.is_empty() {
        blocks.push(Block::Heading("Notes".into()));
        blocks.push(Block::List(notes));
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Labels;

    #[test]
    fn tables_follow_the_axes() {
        let measurement = |name: &str, labels: &[(&str, &str)]| {
            let labels: Labels = labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            Measurement { name: name.into(), unit: "ns".into(), n: 3, median: 12.345, labels, ..Measurement::default() }
        };
        let measurements = vec![
            measurement("a", &[("threads", "1"), ("pressure", "hot")]),
            measurement("b", &[("threads", "2"), ("pressure", "L2")]),
            Measurement::exact("c", "bytes", 7.0),
        ];
        let notes = vec!["processors [1]".into(), "outliers: many".into()];
        let blocks = of_experiment(&Experiment { measurements, notes, ..Experiment::default() });
        assert!(matches!(&blocks[0], Block::Warnings(notes) if notes == &["outliers: many"]));
        assert!(matches!(&blocks[blocks.len() - 1], Block::List(notes) if notes.len() == 1));
        let grids = blocks.iter().filter_map(|block| match block {
            Block::Grid(title, grid) => Some((title.as_str(), &grid.rows)),
            _ => None,
        });
        let grids: Vec<_> = grids.collect();
        assert_eq!(
            grids.iter().map(|grid| grid.0).collect::<Vec<_>>(),
            ["Plain case, 3 rounds", "2 threads, L2 driven out, ns, 3 rounds"]
        );
        assert_eq!(
            grids[0].1.iter().map(|row| [&row[1], &row[3]]).collect::<Vec<_>>(),
            [["12.35", "too few rounds"], ["7.000", "exact"]]
        );
    }
}

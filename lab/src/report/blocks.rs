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

/// What departs from the plain case, and the unit.
fn group(m: &Measurement) -> (String, &str) {
    let departs =
        AXES.iter().filter_map(|(axis, plain)| Some((axis, m.labels.get(*axis).filter(|value| value != plain)?)));
    let departs: Vec<String> = departs.map(|(axis, value)| format!("{axis} {value}")).collect();
    (if departs.is_empty() { "plain case".into() } else { departs.join(", ") }, &m.unit)
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

/// Measurements of one unit.
fn measurements(members: &[&Measurement]) -> Grid {
    let row = |m: &&Measurement| {
        let measured = |text: String| if m.is_exact { String::new() } else { text };
        let cycles = m.tsc_cycles.map(number).unwrap_or_default();
        let [interval, means] = [interval(m.ci95, m.is_exact), format!("{} ± {}", number(m.mean), number(m.stddev))];
        let [mad, means, rounds] = [number(m.mad), means, m.n.to_string()].map(measured);
        vec![m.name.clone(), number(m.median), interval, mad, means, cycles, rounds]
    };
    Grid::new(&["", "median", "95 % interval", "MAD", "mean ± σ", "cycles", "rounds"], members.iter().map(row))
}

/// What the kernel and the processor counted.
fn counters(members: &[Measurement]) -> Grid {
    let names: BTreeSet<&str> = members.iter().flat_map(|m| m.counters.keys()).map(String::as_str).collect();
    let row = |m: &Measurement| {
        let counts = names.iter().map(|name| m.counters.get(*name).copied().map(number).unwrap_or_default());
        std::iter::once(m.name.clone()).chain(counts).collect()
    };
    let head: Vec<&str> = std::iter::once("").chain(names.iter().copied()).collect();
    Grid::new(&head, members.iter().filter(|m| !m.counters.is_empty()).map(row))
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
        let grid = Grid::new(&["", "value", "95 % interval", "of means ± σ"], rows);
        blocks.push(Block::Heading("Ratios".into()));
        blocks.push(Block::Grid("Median of the first over that of the second".into(), grid));
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
        let title = format!("Medians, {}: {}", of.1, of.0);
        blocks.push(Block::Grid(title.clone(), measurements(&members)));
        blocks.extend(folded("Further cases", plots::intervals(&title, of.1, members)));
    }
    let counters = counters(all);
    if !counters.rows.is_empty() {
        let title = "Counters, for each iteration";
        blocks.push(Block::Fold(title.into(), vec![Block::Grid(title.into(), counters)]));
    }
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
            ["Medians, ns: plain case", "Medians, ns: threads 2, pressure L2", "Medians, bytes: plain case"]
        );
        let figures: Vec<[&str; 2]> =
            grids.iter().flat_map(|grid| grid.1).map(|row| [row[1].as_str(), &row[2]]).collect();
        assert_eq!(figures, [["12.35", "too few rounds"], ["12.35", "too few rounds"], ["7.000", "exact"]]);
    }
}

//! The content of a report on an experiment, in order, independent of the format.

use std::collections::BTreeSet;

use crate::experiments::{self, Known};
use crate::grid::{Grid, interval, number};
use crate::paper::{self, Paper};
use crate::report::plots::{self, Plot};
use crate::{Experiment, Measurement, Ratio};

/// A part of a report.
#[derive(Debug)]
pub(super) enum Block {
    Heading(&'static str),
    Text(String),
    /// Notes, with the text before each.
    Notes(&'static str, Vec<String>),
    /// A table with its title.
    Grid(String, Grid),
    /// A plot; on pages only.
    Plot(Plot),
    /// Blocks that the reader can unfold, with a summary; on pages only.
    Fold(String, Vec<Block>),
}

/// Axes whose values have tables of their own, with their values in the plain case.
const AXES: [(&str, &str); 3] = [("threads", "1"), ("pressure", "hot"), ("mode", "overwrite")];

/// Returns the title of a measurement's table: its unit, and its differences from the plain case.
fn table_title(m: &Measurement) -> String {
    let value = |axis: &str, plain: &str| m.labels.get(axis).filter(|value| *value != plain);
    let departs: Vec<String> =
        AXES.iter().filter_map(|(axis, plain)| Some(format!("{axis} {}", value(axis, plain)?))).collect();
    format!("Medians, {}: {}", m.unit, if departs.is_empty() { "plain case".into() } else { departs.join(", ") })
}

/// Adds the first plot, and the other plots folded.
fn add_plots(blocks: &mut Vec<Block>, what: &str, plots: Vec<Plot>) {
    let mut plots = plots.into_iter().map(Block::Plot);
    blocks.extend(plots.next());
    let others: Vec<Block> = plots.collect();
    if !others.is_empty() {
        blocks.push(Block::Fold(format!("{what}: {} more", others.len()), others));
    }
}

/// Returns a paper's statements and tables, judged by the rounds of an experiment.
pub(super) fn of_paper(paper: &Paper, experiment: &Experiment) -> Vec<Block> {
    let statements = Block::Grid("Statements".into(), paper::grid(&paper.judge(experiment)));
    let tables = paper.tables(experiment).into_iter().map(|mut grid| {
        let title = grid.head.get_mut(1).map(std::mem::take).unwrap_or_default();
        Block::Grid(title, grid)
    });
    [Block::Text(paper.heading(experiment)), statements].into_iter().chain(tables).collect()
}

fn add_ratios(blocks: &mut Vec<Block>, ratios: &[Ratio]) {
    let rows = ratios.iter().map(|ratio| {
        let means = ratio.means.map(|[mean, stddev]| format!("{mean:.2} ± {stddev:.2}")).unwrap_or_default();
        vec![ratio.name.clone(), number(ratio.value), interval(ratio.ci95, false), means]
    });
    let grid = Grid::new(&["", "value", "95 % interval", "of means ± σ"], rows);
    let title = "Median of the first over that of the second".into();
    blocks.extend([Block::Heading("Ratios"), Block::Grid(title, grid)]);
    add_plots(blocks, "Ratios", plots::ratios(ratios));
}

fn add_table(blocks: &mut Vec<Block>, title: String, members: &[&Measurement]) {
    let row = |m: &&Measurement| {
        let measured = |text: String| if m.is_exact { String::new() } else { text };
        let cycles = m.tsc_cycles.map(number).unwrap_or_default();
        let means = format!("{} ± {}", number(m.mean), number(m.stddev));
        let [mad, means, rounds] = [number(m.mad), means, m.n.to_string()].map(measured);
        vec![m.name.clone(), number(m.median), interval(m.ci95, m.is_exact), mad, means, cycles, rounds]
    };
    let head = ["", "median", "95 % interval", "MAD", "mean ± σ", "cycles", "rounds"];
    blocks.push(Block::Grid(title.clone(), Grid::new(&head, members.iter().map(row))));
    add_plots(blocks, "Further cases", plots::intervals(&title, &members[0].unit, members.iter().copied()));
}

/// Returns the counts of the kernel and the CPU.
fn counters(all: &[Measurement]) -> Grid {
    let names: BTreeSet<&str> = all.iter().flat_map(|m| m.counters.keys()).map(String::as_str).collect();
    let row = |m: &Measurement| {
        let counts = names.iter().map(|name| m.counters.get(*name).copied().map(number).unwrap_or_default());
        std::iter::once(m.name.clone()).chain(counts).collect()
    };
    let head: Vec<&str> = std::iter::once("").chain(names.iter().copied()).collect();
    Grid::new(&head, all.iter().filter(|m| !m.counters.is_empty()).map(row))
}

fn add_measurements(blocks: &mut Vec<Block>, all: &[Measurement], is_brief: bool) {
    blocks.push(Block::Heading("Measurements"));
    for plots in plots::against_axes(all) {
        add_plots(blocks, "Further lines", plots);
    }
    let mut tables: Vec<(String, Vec<&Measurement>)> = Vec::new();
    for m in all {
        let title = table_title(m);
        match tables.iter_mut().find(|(known, _)| *known == title) {
            Some((_, members)) => members.push(m),
            None => tables.push((title, vec![m])),
        }
    }
    for (title, members) in tables.into_iter().take(if is_brief { 1 } else { usize::MAX }) {
        add_table(blocks, title, &members);
    }
    let (title, counters) = ("Counters, for each iteration".to_string(), counters(all));
    if !counters.rows.is_empty() {
        blocks.push(Block::Fold(title.clone(), vec![Block::Grid(title, counters)]));
    }
    if all.is_empty() {
        blocks.push(Block::Text("This result has no measurements of this experiment.".into()));
    } else if all.iter().all(|m| m.samples.is_empty() || m.is_exact) {
        blocks.push(Block::Text("This result has no rounds to show.".into()));
    }
}

/// Returns the blocks of an experiment: warnings, the paper, ratios, measurements, notes. If `is_brief`, only warnings,
/// the paper or, without one, the ratios and the first table, and the notes on peers.
pub(super) fn of_experiment(experiment: &Experiment, is_brief: bool) -> Vec<Block> {
    let warnings = ["noisy neighbour", "not steady", "outliers"];
    let is_warning = |note: &String| warnings.iter().any(|start| note.starts_with(start));
    let (warnings, mut notes): (Vec<String>, Vec<String>) = experiment.notes.iter().cloned().partition(is_warning);
    let mut blocks = vec![Block::Notes("WARNING: ", warnings)];
    let paper = experiments::find(&experiment.name).and_then(Known::paper);
    if let Some(paper) = &paper {
        blocks.push(Block::Heading("What the paper says"));
        blocks.extend(of_paper(paper, experiment));
    }
    if !is_brief || paper.is_none() {
        if !experiment.ratios.is_empty() {
            add_ratios(&mut blocks, &experiment.ratios);
        }
        add_measurements(&mut blocks, &experiment.measurements, is_brief);
    }
    notes.retain(|note| !is_brief || note.starts_with("peer "));
    if !notes.is_empty() {
        blocks.extend([Block::Heading("Notes"), Block::Notes("", notes)]);
    }
    blocks
}

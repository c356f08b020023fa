//! `dormouse lab compare`.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use dormouse_lab::Report;
use dormouse_lab::compare::{Comparison, DifferentFact, compare, load};
use dormouse_lab::grid::{self, Grid, number};
use dormouse_lab::probes::Compared;
use dormouse_terminal::Output;
use dormouse_terminal::style::{BOLD, wrap};

/// Compare two results: which figures differ, and what differs between the two machines and runs
#[derive(Debug, Args)]
#[command(after_help = "\
First come the figures that both have: difference, ratio, their 95 % intervals, and the probability of such a difference by chance, \
corrected for all figures (Holm). Then what was measured of both machines beside the experiments, and all facts of machines and runs \
that are not the same. That a fact differs does not say that it matters.

JSON is an object: `differences`, `only_in_a`, `only_in_b`, `measured` (with `ratio`, `ratio_ci95`, `differs`), `facts` (`fact`, `a`, \
`b`), `notes`.

Exit code: 0, whatever differs; 2 if a file cannot be read.")]
pub(crate) struct Compare {
    /// A result of `dormouse lab run --json`
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// Another one
    #[arg(value_name = "B.json")]
    b: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Compare {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let (a, b) = (load(&self.a)?, load(&self.b)?);
        let comparison = compare(&a, &b);
        if self.json {
            out.json(&comparison)?;
        } else {
            print(&mut out.styled(), &comparison, [("A", &self.a, &a), ("B", &self.b, &b)])?;
        }
        Ok(0)
    }
}

fn interval(ci95: [f64; 2]) -> String {
    grid::interval(Some(ci95), false)
}

fn head(cells: &[&str]) -> Vec<String> {
    cells.iter().map(ToString::to_string).collect()
}

fn print(out: &mut impl Write, comparison: &Comparison, sides: [(&str, &PathBuf, &Report); 2]) -> std::io::Result<()> {
    for (name, path, report) in sides {
        writeln!(out, "{}", wrap(&format!("{}: {}", path.display(), report.host), &format!("{name}  ")))?;
    }
    for figures in comparison.differences.chunk_by(|a, b| a.experiment == b.experiment) {
        let row = |figure: &dormouse_lab::compare::Difference| {
            vec![
                format!("{} {}", figure.name, figure.unit).trim_end().into(),
                number(figure.a),
                number(figure.b),
                number(figure.difference),
                interval(figure.difference_ci95),
                figure.ratio.map(number).unwrap_or_default(),
                figure.ratio_ci95.map(interval).unwrap_or_default(),
                format!("{:.3}", figure.p_corrected),
                figure.verdict.name().into(),
            ]
        };
        let head = head(&["", "A", "B", "B − A", "95 %", "B / A", "95 %", "p", ""]);
        let grid = Grid { head, rows: figures.iter().map(row).collect() };
        writeln!(out, "\n{BOLD}{}{BOLD:#}\n{}", figures[0].experiment, grid.text().trim_end())?;
    }
    for (side, only) in [("A", &comparison.only_in_a), ("B", &comparison.only_in_b)] {
        if !only.is_empty() {
            writeln!(out, "\n{}", wrap(&only.join(", "), &format!("only in {side}: ")))?;
        }
    }
    print_hosts(out, &comparison.measured, &comparison.facts, ["A", "B"])?;
    writeln!(out)?;
    comparison.notes.iter().try_for_each(|note| writeln!(out, "{}", wrap(note, "note: ")))
}

/// What was measured of both machines, and which facts differ.
pub(crate) fn print_hosts(
    out: &mut impl Write,
    measured: &[Compared],
    facts: &[DifferentFact],
    [a, b]: [&str; 2],
) -> std::io::Result<()> {
    if !measured.is_empty() {
        let row = |figure: &Compared| {
            vec![
                format!("{} {}", figure.figure.replace(['.', '_'], " "), figure.unit),
                number(figure.there),
                number(figure.here),
                number(figure.ratio),
                interval(figure.ratio_ci95),
                figure.verdict(),
            ]
        };
        let head = head(&["", a, b, &format!("{b} / {a}"), "95 %", ""]);
        let grid = Grid { head, rows: measured.iter().map(row).collect() };
        writeln!(out, "\n{BOLD}measured of both machines{BOLD:#}\n{}", grid.text().trim_end())?;
    }
    if !facts.is_empty() {
        writeln!(out, "\n{BOLD}facts that differ, {a} → {b}{BOLD:#}")?;
    }
    facts
        .iter()
        .try_for_each(|DifferentFact { fact, a, b }| writeln!(out, "{}", wrap(&format!("{fact}: {a} → {b}"), "  ")))
}

//! `dormouse lab compare`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use dormouse_lab::compare::{Comparison, Difference, Loaded, Verdict, compare, load};
use dormouse_terminal::Output;
use dormouse_terminal::style::{BAD, BOLD, GOOD, KNOW, wrap};

/// Compare two results: what differs, how sure that is, and what to suspect
#[derive(Debug, Args)]
#[command(after_help = "\
Suspects are what differs between the two machines and runs, ordered by how likely it explains figures of the kind \
that differ. Each comes with a test that would strike it out.

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
        let mut comparison = compare(&a.report, &b.report);
        for (side, loaded) in [("A", &a), ("B", &b)] {
            comparison.notes.extend(loaded.notes.iter().map(|note| format!("of {side}: {note}")));
        }
        if self.json {
            out.json(&comparison)?;
        } else {
            print(&mut out.styled(), &comparison, [(&self.a, &a), (&self.b, &b)])?;
        }
        Ok(0)
    }
}

/// As many digits as tell something.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn interval([low, high]: [f64; 2]) -> String {
    format!("{} … {}", figure(low), figure(high))
}

fn row(difference: &Difference) -> [String; 6] {
    let times = |ratio: f64| format!("{}×", figure(ratio));
    let ratio_ci95 = difference.ratio_ci95.map(interval).unwrap_or_default();
    [
        format!("{} {}", difference.name, difference.unit).trim_end().into(),
        figure(difference.a),
        figure(difference.b),
        interval(difference.difference_ci95),
        difference.ratio.map(times).unwrap_or_else(|| "–".into()),
        ratio_ci95,
    ]
}

fn print(out: &mut impl Write, comparison: &Comparison, sides: [(&PathBuf, &Loaded); 2]) -> std::io::Result<()> {
    for (name, (path, loaded)) in ["A", "B"].into_iter().zip(sides) {
        let text = format!("{}: {}", Path::display(path), loaded.report.host);
        writeln!(out, "{}", wrap(&text, &format!("{name}  ")))?;
    }
    let head = ["", "A", "B", "B − A, 95 %", "B / A", "95 %"].map(String::from);
    let rows: Vec<[String; 6]> = comparison.differences.iter().map(row).collect();
    let mut widths = [0; 6];
    for row in rows.iter().chain([&head]) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |cells: &[String; 6]| {
        let mut text = String::from("  ");
        for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let cell = if index == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") };
            text.push_str(&cell);
        }
        text
    };
    let mut experiment = "";
    for (difference, row) in comparison.differences.iter().zip(&rows) {
        if experiment != difference.experiment {
            experiment = &difference.experiment;
            writeln!(out, "\n{BOLD}{experiment}{BOLD:#}\n{}", line(&head).trim_end())?;
        }
        let style = match difference.verdict {
            Verdict::Slower => BAD,
            Verdict::Faster => GOOD,
            Verdict::Higher | Verdict::Lower => KNOW,
            Verdict::NoDifferenceSeen => anstyle::Style::new(),
        };
        writeln!(out, "{}  {style}{}{style:#}", line(row), difference.verdict.name())?;
    }
    for (side, only) in [("A", &comparison.only_in_a), ("B", &comparison.only_in_b)] {
        if !only.is_empty() {
            writeln!(out, "\n{}", wrap(&only.join(", "), &format!("only in {side}: ")))?;
        }
    }
    if !comparison.judged.is_empty() {
        writeln!(out, "\n{BOLD}measured of both machines, from A to B{BOLD:#}")?;
        crate::doctor::print_judged(out, &comparison.judged)?;
    }
    if !comparison.suspects.is_empty() {
        writeln!(out, "\n{BOLD}suspects, likeliest first{BOLD:#}")?;
    }
    for (index, suspect) in comparison.suspects.iter().enumerate() {
        writeln!(
            out,
            "{}",
            wrap(&format!("{}: {} → {}", suspect.title, suspect.a, suspect.b), &format!("{:>3}. ", index + 1))
        )?;
        writeln!(out, "{}", wrap(&format!("{}.", suspect.why), "     why: "))?;
        if let Some(measured) = &suspect.struck_out {
            writeln!(out, "{}", wrap(measured, "     struck out by measurement: "))?;
        }
        writeln!(out, "{}", wrap(&suspect.test, "     test: "))?;
    }
    writeln!(out)?;
    for note in &comparison.notes {
        writeln!(out, "{}", wrap(note, "note: "))?;
    }
    Ok(())
}

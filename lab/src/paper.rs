//! Statements and figures of a paper, and the verdict of this machine's figures on them.
//!
//! ```text
//!   paper.toml ── tables: the paper's figures, beside the corresponding measurements ───────────────▶ Grid
//!              └─ statements: a ratio of two sums, and the range that it is in if the statement is true
//!                     │ over the rounds of an experiment
//!                     ▼
//!                  judge ── whole interval in the range: holds · outside: does not hold · otherwise: cannot be told ──▶ Grid
//! ```
//! A sum consists of names of measurements, each with an optional factor. If it is a side of a ratio, it is in
//! parentheses: `(2 * a - b) / (c + d)`. Rounds are paired, so that a disturbance of a round cancels.
//!
//! An interval is that of a median of this run. Rounds of different parts of an experiment have no common disturbance
//! that could cancel; they are drawn together all the same. If no run of the lab measures a statement, the paper's file
//! gives the reason.

use serde::Deserialize;

use crate::grid::{Grid, interval, number};
use crate::result::{Elsewhere, Judged, Verdict};
use crate::statistics::power::Precision;
use crate::statistics::{ROUNDS_MIN, measurement, ratio};
use crate::{Experiment, Measurement};

/// Content of a `paper.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Citation: `Desnoyers (2008)`.
    pub cite: String,
    /// Title and place of publication.
    pub title: String,
    /// Machine that the paper measured on.
    pub machine: String,
    /// Text whose lines are numbered.
    pub lines: String,
    /// Places at which statements are judged, with the values of `{0}`, `{1}` in their expressions.
    #[serde(default)]
    place: Vec<Place>,
    /// Reasons why measurements are missing, by a part of the name; the first match counts.
    #[serde(default)]
    absent: Vec<(String, String)>,
    /// Changes of what is measured.
    #[serde(default)]
    changed: Vec<Changed>,
    /// Tables of the paper's figures.
    #[serde(default)]
    table: Vec<Table>,
    /// Statements of the paper.
    #[serde(default)]
    statement: Vec<Statement>,
}

/// A change of what is measured, after which figures of earlier results are to be measured again.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Changed {
    /// Date of the change: `2026-11-28`.
    on: String,
    /// Part of the ratios of the statements that it concerns.
    part: String,
    /// Description of the measurement since then.
    now: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    name: String,
    parts: Vec<String>,
    /// The effect that verdicts name; none if they name none.
    effect: Option<Effect>,
}

/// The smallest effect that the rounds of a place show: a difference of a ratio's two sides, as a share of the divisor or of
/// another measurement.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Effect {
    /// The other measurement, and its name in texts; none for the divisor.
    of: Option<[String; 2]>,
}

/// Figures of the paper beside those of this machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    title: String,
    /// Unit of the paper's figures. `cycles` are compared with cycles of the timestamp counter here, other times with
    /// ns.
    unit: String,
    columns: Vec<String>,
    rows: Vec<Row>,
}

/// A row of a table, with lines and figures of the paper; a row without a line is ours.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    #[serde(default)]
    line: String,
    text: String,
    /// Figures of the paper, by column.
    #[serde(default)]
    paper: Vec<String>,
    /// Corresponding expressions over measurements here, by column.
    #[serde(default)]
    here: Vec<Expression>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    /// Line and summary of the statement: `72–73: A branch costs less.`
    says: String,
    /// Condition that decides; none if no measurement decides it.
    true_if: Option<Condition>,
    /// Value of the ratio in the paper.
    #[serde(default)]
    paper: String,
    /// Names of the places at which it is judged; if empty, all places with as many parts as the ratio uses.
    #[serde(default)]
    at: Vec<String>,
    /// Reason why it is not measured, in general or if its measurements are missing.
    absent: Option<String>,
}

/// A sum of measurements, or a ratio of two sums.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
struct Expression {
    text: String,
    of: Vec<Term>,
    /// Denominator; empty for a sum alone.
    to: Vec<Term>,
}

/// A factor and the name of a measurement.
type Term = (f64, String);

impl TryFrom<String> for Expression {
    type Error = String;

    fn try_from(text: String) -> Result<Expression, String> {
        // A sum that is a side of a ratio is in parentheses.
        let side = |sum: &str| match sum.strip_prefix('(').and_then(|sum| sum.strip_suffix(')')) {
            None if sum.contains(" + ") || sum.contains(" - ") => {
                Err(format!("`{text}`: a sum above or below another stands in parentheses"))
            }
            inner => terms(inner.unwrap_or(sum)),
        };
        let (of, to) = match text.split_once(" / ") {
            Some((of, to)) => (side(of)?, side(to)?),
            None => (terms(&text)?, Vec::new()),
        };
        Ok(Expression { of, to, text })
    }
}

fn terms(sum: &str) -> Result<Vec<Term>, String> {
    let term = |term: &str| {
        let (sign, term) = term.strip_prefix('-').map_or((1.0, term), |term| (-1.0, term));
        let (factor, name) = term.split_once(" * ").unwrap_or(("1", term));
        let factor = finite(factor).map_err(|error| format!("`{sum}`: {error}"))?;
        if name.contains([' ', '(', ')']) {
            return Err(format!("`{sum}`: `{name}` is not the name of a measurement"));
        }
        Ok((sign * factor, name.to_string()))
    };
    sum.replace(" - ", " + -").split(" + ").map(term).collect()
}

fn finite(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| format!("`{text}` is not a number"))
}

/// A ratio and the range in which a statement is true: `a / b is above 1`, `is below 1`, `is 0.9 to 1.1`.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
struct Condition {
    ratio: Expression,
    range: [f64; 2],
    range_text: String,
}

impl TryFrom<String> for Condition {
    type Error = String;

    fn try_from(text: String) -> Result<Condition, String> {
        let no_range = || format!("`{text}` ends in none of `is above 1`, `is below 1`, `is 1 to 2`");
        let (ratio, range) = text.rsplit_once(" is ").ok_or_else(no_range)?;
        let ends = match range.split_once(' ') {
            Some(("above", low)) => [finite(low)?, f64::INFINITY],
            Some(("below", high)) => [f64::NEG_INFINITY, finite(high)?],
            _ => {
                let (low, high) = range.split_once(" to ").ok_or_else(no_range)?;
                [finite(low)?, finite(high)?]
            }
        };
        Ok(Condition { ratio: ratio.to_string().try_into()?, range: ends, range_text: range.into() })
    }
}

/// Returns the verdict for an interval and the range of the ratio in which the statement is true.
fn verdict([low, high]: [f64; 2], [from, to]: [f64; 2]) -> Verdict {
    match () {
        () if low >= from && high <= to => Verdict::Holds,
        () if high < from || low > to => Verdict::DoesNotHold,
        () => Verdict::CannotBeTold,
    }
}

/// Reason why an expression has no value: not measured, with the name of the missing measurement; or it cannot be told,
/// with the cause.
type Lack = (Verdict, String);

/// Returns the rounds of a sum. An exact measurement has its value in every round.
fn sum(measurements: &[Measurement], terms: &[Term]) -> Result<Measurement, Lack> {
    let found = |(factor, name): &Term| {
        let measurement = measurements.iter().find(|m| m.name == *name);
        measurement.map(|m| (*factor, m)).ok_or_else(|| (Verdict::NotMeasured, name.clone()))
    };
    let terms = terms.iter().map(found).collect::<Result<Vec<_>, Lack>>()?;
    let count = terms.iter().filter(|(_, m)| !m.is_exact).map(|(_, m)| m.samples.len()).min();
    let in_round = |round: usize| -> f64 {
        terms.iter().map(|(factor, m)| factor * if m.is_exact { m.median } else { m.samples[round] }).sum()
    };
    let rounds: Vec<f64> = (0..count.unwrap_or(1)).map(in_round).collect();
    Ok(Measurement { is_exact: count.is_none(), ..measurement("", "", &rounds) })
}

impl Expression {
    /// Returns the expression at a place, with the place's parts in the names.
    fn at(&self, place: Option<&Place>) -> Expression {
        let parts = place.map_or(&[][..], |place| &place.parts);
        let fill = |text: &str| {
            (0..).zip(parts).fold(text.to_string(), |text, (index, part)| text.replace(&format!("{{{index}}}"), part))
        };
        let filled = |sum: &[Term]| sum.iter().map(|(factor, name)| (*factor, fill(name))).collect();
        Expression { text: fill(&self.text), of: filled(&self.of), to: filled(&self.to) }
    }

    /// Returns the value of the sum or ratio: median with interval, mean and standard deviation.
    fn value(&self, measurements: &[Measurement]) -> Result<Measurement, Lack> {
        let of = sum(measurements, &self.of)?;
        if self.to.is_empty() {
            return Ok(of);
        }
        let to = sum(measurements, &self.to)?;
        let by_zero =
            || (Verdict::CannotBeTold, "the divisor cannot be distinguished from zero, or is negative".to_string());
        if of.is_exact && to.is_exact {
            let ratio = Measurement::exact("", "", of.median / to.median);
            return if ratio.median.is_finite() { Ok(ratio) } else { Err(by_zero()) };
        }
        let count = of.n.min(to.n);
        if count < ROUNDS_MIN {
            let why = format!("too few rounds: {count}, and an interval needs {ROUNDS_MIN}");
            return Err((Verdict::CannotBeTold, why));
        }
        // A difference in the denominator that is negative would reverse the statement.
        let ratio = ratio("", &of.samples, &to.samples).filter(|_| to.median > 0.0).ok_or_else(by_zero)?;
        let [mean, stddev] = ratio.means.unwrap_or([f64::NAN; 2]);
        Ok(Measurement { median: ratio.value, ci95: ratio.ci95, mean, stddev, ..Measurement::default() })
    }

    /// Returns a phrase that names the smallest effect that the rounds show; none if these are too few or not all there.
    fn shown(&self, effect: &Effect, measurements: &[Measurement]) -> Option<String> {
        let [of, to] = [&self.of, &self.to].map(|terms| sum(measurements, terms).ok());
        let (of, to) = (of?, to?);
        let (precision, what) = match &effect.of {
            None => (Precision::of_ratio(&of.samples, &to.samples)?, "an effect of {}".to_string()),
            Some([whole, name]) => {
                let whole = measurements.iter().find(|measurement| measurement.name == *whole)?;
                let precision = Precision::of_difference(&of.samples, &to.samples, whole.median)?;
                (precision, format!("a difference of {{}} of {name}"))
            }
        };
        let rounds = of.n.min(to.n);
        let percent = format!("{:.2} %", 100.0 * precision.effect(rounds));
        Some(format!("{rounds} rounds show {}", what.replace("{}", &percent)))
    }

    /// Returns the value on this machine, or, if this machine has not measured it, on the first other one that has, with
    /// that machine. No value is of measurements of two machines.
    fn value_of<'a>(&self, experiment: &'a Experiment) -> (Result<Measurement, Lack>, Option<&'a Elsewhere>) {
        let here = self.value(&experiment.measurements);
        if !matches!(here, Err((Verdict::NotMeasured, _))) {
            return (here, None);
        }
        let there = experiment.elsewhere.iter().map(|there| (self.value(&there.measurements), Some(there)));
        let mut told = there.filter(|(value, _)| !matches!(value, Err((Verdict::NotMeasured, _))));
        told.next().unwrap_or((here, None))
    }

    /// Formats a cell of a table: the median, or, if the paper has an error, mean and standard deviation of the rounds. A
    /// value of another machine has that machine's mark. `rate` returns the factor for measurements of one machine.
    fn cell(&self, experiment: &Experiment, has_error: bool, rate: impl Fn(&[Measurement]) -> f64) -> String {
        let (Ok(value), there) = self.value_of(experiment) else { return "–".into() };
        let measurements = there.map_or(&experiment.measurements, |there| &there.measurements);
        let factor = if self.to.is_empty() { rate(measurements) } else { 1.0 };
        let median = value.median * factor;
        let text = match value.ci95 {
            _ if has_error => format!("{} ± {}", number(value.mean * factor), number(value.stddev * factor)),
            Some(_) => number(median),
            None => interval_text(median, None, value.is_exact),
        };
        there.map_or(text.clone(), |there| format!("{text} ({})", there.mark))
    }
}

/// Formats a value with its interval: `0.500 [0.480, 0.520]`.
fn interval_text(value: f64, ci95: Option<[f64; 2]>, is_exact: bool) -> String {
    let (value, interval) = (number(value), interval(ci95, is_exact));
    if interval.starts_with('[') { format!("{value} {interval}") } else { format!("{value} ({interval})") }
}

impl Paper {
    /// Reads a `paper.toml`.
    ///
    /// # Errors
    /// If the file is wrong; the error has the line.
    pub fn parse(text: &str) -> Result<Paper, toml::de::Error> {
        toml::from_str(text)
    }

    /// Returns citation, title, machine and text of the paper in one line, and the machines of marked rows.
    pub fn heading(&self, experiment: &Experiment) -> String {
        let marked = experiment.elsewhere.iter();
        let marked = marked.map(|there| format!(" Rows marked {} were measured on {}.", there.mark, there.machine));
        let marked: String = marked.collect();
        format!("{}: {}. {}. Lines are those of {}.{marked}", self.cite, self.title, self.machine, self.lines)
    }

    /// Returns a sentence for each change of what is measured since a result of this time, in RFC 3339: the lines whose figures
    /// are to be measured again.
    pub fn outdated(&self, measured: &str) -> Vec<String> {
        let sentence = |Changed { on, part, now }: &Changed| {
            let is_of = |statement: &&Statement| {
                statement.true_if.as_ref().is_some_and(|condition| condition.ratio.text.contains(part))
            };
            let line = |statement: &Statement| statement.says.split_once(": ").map(|(line, _)| line.to_string());
            let mut lines: Vec<String> = self.statement.iter().filter(is_of).filter_map(line).collect();
            lines.dedup();
            format!("To be measured again, lines {}: since {on} {now}.", lines.join(", "))
        };
        self.changed.iter().filter(|change| measured < change.on.as_str()).map(sentence).collect()
    }

    /// Judges every statement at every place, by the measurements of an experiment.
    pub fn judge(&self, experiment: &Experiment) -> Vec<Judged> {
        let mut judged = Vec::new();
        for statement in &self.statement {
            let ratio = statement.true_if.as_ref().map_or("", |condition| &condition.ratio.text);
            let parts = (0..).take_while(|part| ratio.contains(&format!("{{{part}}}"))).count();
            let is_there = |place: &&Place| match &statement.at[..] {
                [] => place.parts.len() == parts,
                at => at.contains(&place.name),
            };
            let places = self.place.iter().filter(|place| parts > 0 && is_there(place)).map(Some);
            let nowhere = (parts == 0).then_some(None);
            judged.extend(places.chain(nowhere).map(|place| self.judge_at(place, statement, experiment)));
        }
        judged
    }

    fn judge_at(&self, place: Option<&Place>, statement: &Statement, experiment: &Experiment) -> Judged {
        let (line, text) = statement.says.split_once(": ").unwrap_or(("", &statement.says));
        let mut judged = Judged {
            paper: self.cite.clone(),
            line: line.into(),
            text: text.into(),
            place: place.map(|place| place.name.clone()).unwrap_or_default(),
            there: statement.paper.clone(),
            ..Judged::default()
        };
        let Some(Condition { ratio, range, range_text }) = &statement.true_if else {
            judged.why = statement.absent.clone().unwrap_or_else(|| "nothing measures it".into());
            return judged;
        };
        let ratio = ratio.at(place);
        judged.ratio = ratio.text.replace(" / ", " ÷ ");
        judged.range = range_text.clone();
        let (value, there) = ratio.value_of(experiment);
        judged.mark = there.map(|there| there.mark.clone()).unwrap_or_default();
        let measurements = there.map_or(&experiment.measurements, |there| &there.measurements);
        let effect = place.and_then(|place| place.effect.as_ref());
        judged.shown = effect.and_then(|effect| ratio.shown(effect, measurements)).unwrap_or_default();
        (judged.verdict, judged.why) = match value {
            Ok(Measurement { median, ci95, is_exact, .. }) => {
                let ci95 = if is_exact { Some([median; 2]) } else { ci95 };
                (judged.value, judged.ci95, judged.is_exact) = (Some(median), ci95, is_exact);
                let verdict = ci95.map_or(Verdict::CannotBeTold, |ci95| verdict(ci95, *range));
                (verdict, format!("{}; true if {range_text}", interval_text(median, ci95, is_exact)))
            }
            Err((Verdict::NotMeasured, name)) => {
                let known = || self.absent.iter().find(|(part, _)| name.contains(part)).map(|(_, why)| why.clone());
                let unknown = || format!("{name} is not among the measurements of this run");
                (Verdict::NotMeasured, statement.absent.clone().or_else(known).unwrap_or_else(unknown))
            }
            Err(untold) => untold,
        };
        judged
    }

    /// Returns the paper's tables, with figures of this machine.
    pub fn tables(&self, experiment: &Experiment) -> Vec<Grid> {
        self.table.iter().map(|table| table.grid(experiment)).collect()
    }
}

/// Returns the cycles of the timestamp counter per nanosecond of the machine with these measurements, if known.
fn rate(measurements: &[Measurement]) -> Option<f64> {
    measurements.iter().find_map(Measurement::tsc_rate)
}

impl Table {
    fn grid(&self, experiment: &Experiment) -> Grid {
        let is_in_cycles = self.unit == "cycles" && rate(&experiment.measurements).is_some();
        let unit = if self.unit == "cycles" && !is_in_cycles { "ns here, cycles there" } else { &self.unit };
        let factor = |of: &[Measurement]| if is_in_cycles { rate(of).unwrap_or(f64::NAN) } else { 1.0 };
        let mut head = vec!["line".to_string(), format!("{} ({unit})", self.title)];
        for (index, column) in self.columns.iter().enumerate() {
            // A column without figures of the paper is left out.
            let has_figures = self.rows.iter().any(|row| row.paper.len() > index);
            let here = if has_figures { "here".into() } else { format!("{column}, here") };
            head.extend([format!("{column}, there"), here]);
        }
        let rows = self.rows.iter().map(|row| {
            let mut cells = vec![row.line.clone(), row.text.clone()];
            for column in 0..self.columns.len() {
                let there = row.paper.get(column).cloned().unwrap_or_default();
                let here = row.here.get(column).map(|here| here.cell(experiment, there.contains('±'), factor));
                cells.extend([there, here.unwrap_or_default()]);
            }
            cells
        });
        Grid { head, rows: rows.collect() }
    }
}

/// Formats verdicts as a table.
pub fn grid(judged: &[Judged]) -> Grid {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for statement in judged.chunk_by(|a, b| a.text == b.text) {
        for (index, one) in statement.iter().enumerate() {
            let mut row = vec![one.line.clone(), one.text.clone(), one.range.clone(), one.there.clone()];
            if !one.place.is_empty() {
                rows.extend((index == 0).then_some(row));
                row = ["", &format!("  {}", one.place), "", ""].map(String::from).to_vec();
            }
            let here = one.value.map(|value| interval_text(value, one.ci95, one.is_exact));
            let verdict = if one.mark.is_empty() { String::new() } else { format!(" ({})", one.mark) };
            let mut here = here.unwrap_or_else(|| one.why.clone());
            if !one.shown.is_empty() {
                here = format!("{here}; {}", one.shown);
            }
            row.extend([here, format!("{}{verdict}", one.verdict)]);
            rows.push(row);
        }
    }
    Grid::new(&["line", "statement", "true if", "there", "here", "verdict"], rows)
}

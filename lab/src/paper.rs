//! What a paper says, and what this machine says to it.
//!
//! ```text
//!   paper.toml ── tables: the paper's figures, beside the measurements that correspond ─────────────▶ Grid
//!              └─ statements: a ratio of two expressions, and the range that it is in if it is true
//!                     │ expressions over the rounds of an experiment
//!                     ▼
//!                  judge ── whole interval in the range: holds · outside: does not hold · else: cannot be told ──▶ Grid
//! ```
//! An expression is a sum of measurements, each with a factor before it or not, over another sum: `2 * a - 2 * b / c`. `name#counter` is a
//! counter of a measurement. Rounds are paired, so that what disturbs a round cancels.
//!
//! # Limits
//! An interval is that of a median of this run. Rounds of different parts of an experiment have nothing in common that could cancel;
//! they are drawn together all the same. What no run of the lab measures has its reason in the paper's file.

use serde::Deserialize;

use crate::grid::{Grid, interval, number};
use crate::result::{Judged, Verdict};
use crate::statistics::{self, ROUNDS_MIN, Uncertain, median_ci95};
use crate::{Experiment, Measurement};

/// A paper as its `paper.toml` has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// How it is cited: `Desnoyers (2008)`.
    pub cite: String,
    /// Title, and where it appeared.
    pub title: String,
    /// What it measured on.
    pub machine: String,
    /// What its line numbers count.
    pub lines: String,
    /// Places where statements are looked at: what `{0}`, `{1}` of their expressions are there.
    #[serde(default)]
    place: Vec<Place>,
    /// Its figures.
    #[serde(default)]
    table: Vec<Table>,
    /// What it says.
    #[serde(default)]
    statement: Vec<Statement>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    name: String,
    parts: Vec<String>,
}

/// Figures of the paper with those of here.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    title: String,
    /// Of the paper's figures: `cycles` are those of the timestamp counter here; other times are in ns here.
    unit: String,
    columns: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    text: String,
    /// None: the row is ours.
    #[serde(default)]
    line: Option<Lines>,
    /// The paper's figures, by column.
    #[serde(default)]
    paper: Vec<Number>,
    /// Expressions for the same here.
    #[serde(default)]
    here: Vec<String>,
    /// Why there are none here.
    #[serde(default)]
    absent: Option<String>,
}

/// A line of the paper's, or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Lines {
    One(u32),
    Range([u32; 2]),
}

impl std::fmt::Display for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Lines::One(line) => write!(f, "{line}"),
            Lines::Range([first, last]) => write!(f, "{first}–{last}"),
        }
    }
}

/// A figure of a paper's, as it is written there.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Number {
    Whole(i64),
    Real(f64),
    /// With an error, or not a plain number.
    Text(String),
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Number::Whole(number) => write!(f, "{number}"),
            Number::Real(number) => write!(f, "{number}"),
            Number::Text(text) => f.write_str(text),
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    text: String,
    line: Lines,
    /// The ratio that decides it: `of` over `to`, or a quantity alone.
    #[serde(default)]
    of: String,
    #[serde(default)]
    to: Option<String>,
    /// Names of the places where it is looked at; none given: all.
    #[serde(default)]
    at: Vec<String>,
    /// Where that is if the statement is true.
    #[serde(default)]
    range: Option<[f64; 2]>,
    /// The paper's own value of it.
    #[serde(default)]
    paper: Option<Number>,
    /// Why it is not measured, in general or where its measurements are missing.
    #[serde(default)]
    absent: Option<String>,
}

/// The rule: of an interval, and the range of a ratio whose statement is true.
fn verdict([low, high]: [f64; 2], [from, to]: [f64; 2]) -> Verdict {
    match () {
        () if low >= from && high <= to => Verdict::Holds,
        () if high < from || low > to => Verdict::DoesNotHold,
        () => Verdict::CannotBeTold,
    }
}

/// Why an expression has no value.
enum Lack {
    /// This measurement, or counter, is not there.
    Missing(String),
    /// It has its sum, and no rounds of it.
    Rounds(usize),
    Zero,
}

/// Rounds of an expression. Exact counts, of a model, have one that stands for all.
struct Series {
    rounds: Vec<f64>,
    is_exact: bool,
}

fn term(experiment: &Experiment, text: &str, sign: f64) -> Result<Series, Lack> {
    let (factor, name) = match text.split_once(" * ") {
        Some((factor, name)) => (factor.trim().parse().unwrap_or(f64::NAN), name.trim()),
        None => (1.0, text),
    };
    let (of, counter) = name.split_once('#').map_or((name, None), |(of, counter)| (of, Some(counter)));
    let missing = || Lack::Missing(name.into());
    let measurement = experiment.measurements.iter().find(|m| m.name == of).ok_or_else(missing)?;
    let is_exact = measurement.is_exact;
    let rounds = match counter {
        None => measurement.samples.clone(),
        Some(counter) => vec![*measurement.counters.get(counter).ok_or_else(missing)?],
    };
    Ok(Series { rounds: rounds.iter().map(|value| value * factor * sign).collect(), is_exact })
}

/// A sum of terms, round by round.
fn sum(experiment: &Experiment, text: &str) -> Result<Series, Lack> {
    let mut sum: Option<Series> = None;
    let mut sign = 1.0;
    let mut words = text.split_whitespace().peekable();
    while words.peek().is_some() {
        let mut name = String::new();
        while let Some(word) = words.next_if(|word| !matches!(*word, "+" | "-")) {
            name = if name.is_empty() { word.into() } else { format!("{name} {word}") };
        }
        if !name.is_empty() {
            let next = term(experiment, &name, sign)?;
            sum = Some(match sum {
                None => next,
                Some(sum) => paired(sum, next, |a, b| a + b),
            });
        }
        sign = if words.next() == Some("-") { -1.0 } else { 1.0 };
    }
    sum.ok_or_else(|| Lack::Missing(text.into()))
}

/// Of two series, round by round; one that is exact is so in every round.
fn paired(a: Series, b: Series, of: impl Fn(f64, f64) -> f64) -> Series {
    let count = match (a.is_exact, b.is_exact) {
        (true, false) => b.rounds.len(),
        (false, true) => a.rounds.len(),
        _ => a.rounds.len().min(b.rounds.len()),
    };
    let at = |series: &Series, round: usize| {
        let round = if series.is_exact { 0 } else { round };
        series.rounds.get(round).copied().unwrap_or(f64::NAN)
    };
    Series {
        rounds: (0..count).map(|round| of(at(&a, round), at(&b, round))).collect(),
        is_exact: a.is_exact && b.is_exact,
    }
}

/// A value with its interval; the interval is missing where nothing was repeated, and has no width where the value is exact.
struct Value {
    value: f64,
    ci95: Option<[f64; 2]>,
    is_exact: bool,
}

/// `of` over `to`, or `of` alone.
fn value(experiment: &Experiment, of: &str, to: Option<&str>) -> Result<Value, Lack> {
    let of = sum(experiment, of)?;
    let Some(to) = to else {
        let value = statistics::median(&of.rounds);
        let ci95 = if of.is_exact { Some([value; 2]) } else { median_ci95(&of.rounds) };
        return Ok(Value { value, ci95, is_exact: of.is_exact });
    };
    let to = sum(experiment, to)?;
    if of.is_exact && to.is_exact {
        let value = of.rounds.first().zip(to.rounds.first()).map_or(f64::NAN, |(of, to)| of / to);
        return if value.is_finite() {
            Ok(Value { value, ci95: Some([value; 2]), is_exact: true })
        } else {
            Err(Lack::Zero)
        };
    }
    let count = of.rounds.len().min(to.rounds.len());
    if count < ROUNDS_MIN {
        return Err(Lack::Rounds(count));
    }
    // A difference below that is negative would turn the statement round.
    if statistics::median(&to.rounds) <= 0.0 {
        return Err(Lack::Zero);
    }
    let ratio = statistics::ratio("", &of.rounds, &to.rounds).ok_or(Lack::Zero)?;
    Ok(Value { value: ratio.value, ci95: ratio.ci95, is_exact: false })
}

fn range_text([from, to]: [f64; 2]) -> String {
    match (from.is_finite(), to.is_finite()) {
        (true, true) => format!("{from} to {to}"),
        (true, false) => format!("above {from}"),
        (false, true) => format!("below {to}"),
        (false, false) => "any".into(),
    }
}

/// `0.500 [0.480, 0.520]`
fn interval_text(value: f64, ci95: Option<[f64; 2]>, is_exact: bool) -> String {
    let (value, interval) = (number(value), interval(ci95, is_exact));
    if interval.starts_with('[') { format!("{value} {interval}") } else { format!("{value} ({interval})") }
}

impl Statement {
    /// Of a place: the expressions with its parts in them.
    fn judge(&self, paper: &Paper, place: Option<&Place>, experiment: &Experiment) -> Judged {
        let filled = |text: &str| {
            let parts = place.map_or(&[][..], |place| &place.parts);
            (0..).zip(parts).fold(text.to_string(), |text, (index, part)| text.replace(&format!("{{{index}}}"), part))
        };
        let (of, to) = (filled(&self.of), self.to.as_deref().map(filled));
        let ratio = match &to {
            Some(to) if to.contains(' ') => format!("{of} ÷ ({to})"),
            Some(to) => format!("{of} ÷ {to}"),
            None => of.clone(),
        };
        let mut judged = Judged {
            paper: paper.cite.clone(),
            line: self.line.to_string(),
            text: self.text.clone(),
            place: place.map(|place| place.name.clone()).unwrap_or_default(),
            ratio,
            range: self.range.map(range_text).unwrap_or_default(),
            there: self.paper.as_ref().map(Number::to_string).unwrap_or_default(),
            value: None,
            ci95: None,
            is_exact: false,
            verdict: Verdict::NotMeasured,
            why: String::new(),
        };
        let absent = |why: String| self.absent.clone().unwrap_or(why);
        let Some(range) = self.range.filter(|_| !of.is_empty()) else {
            judged.why = absent("nothing measures it".into());
            return judged;
        };
        match value(experiment, &of, to.as_deref()) {
            Ok(Value { value, ci95, is_exact }) => {
                (judged.value, judged.ci95, judged.is_exact) = (Some(value), ci95, is_exact);
                judged.verdict = ci95.map_or(Verdict::CannotBeTold, |ci95| verdict(ci95, range));
                judged.why = format!("{}; true if {}", interval_text(value, ci95, is_exact), range_text(range));
            }
            Err(Lack::Missing(name)) => {
                judged.why = absent(format!("{name} is not among the measurements of this run"))
            }
            Err(Lack::Rounds(count)) => {
                judged.verdict = Verdict::CannotBeTold;
                judged.why = format!("too few rounds: {count}, and an interval needs {ROUNDS_MIN}");
            }
            Err(Lack::Zero) => {
                judged.verdict = Verdict::CannotBeTold;
                judged.why = "what it is divided by cannot be told from zero, or is negative".into();
            }
        }
        judged
    }
}

impl Paper {
    /// Reads a `paper.toml`.
    ///
    /// # Errors
    /// What is wrong with it, with its line.
    pub fn parse(text: &str) -> Result<Paper, toml::de::Error> {
        toml::from_str(text)
    }

    /// Every statement at every place, judged by what an experiment measured.
    pub fn judge(&self, experiment: &Experiment) -> Vec<Judged> {
        let judged = self.statement.iter().flat_map(|statement| {
            let has_places =
                [Some(&statement.of), statement.to.as_ref()].into_iter().flatten().any(|sum| sum.contains("{0}"));
            let is_there = |place: &&Place| statement.at.is_empty() || statement.at.contains(&place.name);
            let places: Vec<Option<&Place>> =
                if has_places { self.place.iter().filter(is_there).map(Some).collect() } else { vec![None] };
            places.into_iter().map(|place| statement.judge(self, place, experiment))
        });
        judged.collect()
    }

    /// What it is, in a line.
    pub fn heading(&self) -> String {
        format!("{}: {}. {}. Lines are those of {}.", self.cite, self.title, self.machine, self.lines)
    }

    /// Its figures beside those of here.
    pub fn tables(&self, experiment: &Experiment) -> Vec<Grid> {
        let rate = experiment.measurements.iter().find_map(Measurement::tsc_rate);
        self.table.iter().map(|table| table.grid(experiment, rate)).collect()
    }
}

impl Table {
    fn grid(&self, experiment: &Experiment, rate: Option<f64>) -> Grid {
        let (factor, unit) = match (self.unit.as_str(), rate) {
            ("cycles", Some(rate)) => (rate, "cycles"),
            ("cycles", None) => (1.0, "ns here, cycles there"),
            (unit, _) => (1.0, unit),
        };
        let mut head = vec!["line".to_string(), format!("{} ({unit})", self.title)];
        for (index, column) in self.columns.iter().enumerate() {
            // A column without figures of the paper's is not shown.
            let has_figures = self.rows.iter().any(|row| row.paper.len() > index);
            let here = if has_figures { "here".into() } else { format!("{column}, here") };
            head.extend([format!("{column}, there"), here]);
        }
        let rows = self.rows.iter().map(|row| {
            let mut cells = vec![row.line.as_ref().map(Lines::to_string).unwrap_or_default(), row.text.clone()];
            for column in 0..self.columns.len() {
                let there = row.paper.get(column).map(Number::to_string).unwrap_or_default();
                let here_of = |text: &String| match there.contains('±') {
                    true => here_with_error(experiment, text, factor),
                    false => here(experiment, text, factor),
                };
                let here = row.here.get(column).map(here_of).unwrap_or_default();
                cells.extend([there, here]);
            }
            if let (Some(absent), Some(first)) = (&row.absent, cells.get_mut(3).filter(|cell| cell.is_empty())) {
                *first = format!("– ({absent})");
            }
            cells
        });
        Grid { head, rows: rows.collect() }
    }
}

/// A cell: a median.
fn here(experiment: &Experiment, text: &str, factor: f64) -> String {
    let (of, to) = text.split_once(" / ").map_or((text, None), |(of, to)| (of, Some(to)));
    let factor = if to.is_some() { 1.0 } else { factor };
    value(experiment, of, to).map_or_else(
        |_| "–".into(),
        |Value { value, ci95, is_exact }| match ci95 {
            Some(_) if !is_exact => number(value * factor),
            ci95 => interval_text(value * factor, ci95, is_exact),
        },
    )
}

/// A cell where the paper has an error: mean and standard deviation of the rounds.
fn here_with_error(experiment: &Experiment, text: &str, factor: f64) -> String {
    let of = |text: &str| sum(experiment, text).map(|series| Uncertain::of(&series.rounds));
    let here = match text.split_once(" / ") {
        Some((a, b)) => of(a).and_then(|a| Ok(a / of(b)?)),
        None => of(text).map(|value| value * factor),
    };
    here.map_or_else(|_| "–".into(), |here| format!("{} ± {}", number(here.mean), number(here.stddev)))
}

/// Verdicts as a table.
pub fn grid(judged: &[Judged]) -> Grid {
    let head = ["line", "statement", "true if", "there", "here", "verdict"].map(String::from).to_vec();
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut last: Option<&Judged> = None;
    for one in judged {
        let is_new = last.is_none_or(|last| last.text != one.text);
        let (mut line, mut text) = (one.line.clone(), one.text.clone());
        if !one.place.is_empty() {
            if is_new {
                rows.push([line, text, one.range.clone(), one.there.clone()].into());
            }
            (line, text) = (String::new(), format!("  {}", one.place));
        }
        let is_first = one.place.is_empty();
        let once = |text: &String| if is_first { text.clone() } else { String::new() };
        let here = match (one.verdict, one.value) {
            (_, Some(value)) => interval_text(value, one.ci95, one.is_exact),
            (Verdict::NotMeasured | Verdict::CannotBeTold, None) => one.why.clone(),
            (_, None) => String::new(),
        };
        rows.push([line, text, once(&one.range), once(&one.there), here, one.verdict.as_str().into()].into());
        last = Some(one);
    }
    Grid { head, rows }
}

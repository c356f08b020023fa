//! Plots: tables of one kind, which `page.js` draws in one of three ways.
//!
//! ```text
//!   ratios, cases of a unit         ──▶ intervals   a row for each, on a logarithmic axis where they are far apart
//!   a quantity that varies alone    ──▶ lines       a line for each group of cases that differ in nothing else
//!   rounds                          ──▶ rounds      a row for each case: its rounds by size, or in their order
//! ```

use std::collections::BTreeMap;

use serde::Serialize;

use crate::grid::{interval, number};
use crate::{Labels, Measurement, Ratio};

/// Rows of a plot, and lines, of which there are as many as colours; more get more plots.
const ROWS_MAX: usize = 24;
const LINES_MAX: usize = 8;
/// Values that are farther apart are on a logarithmic axis.
const FAR: f64 = 8.0;
/// How far from the median a round is still in sight, in median absolute deviations.
const DEVIATIONS_MAX: f64 = 8.0;

/// One figure with what stands around it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plot {
    pub(super) kind: &'static str,
    pub(super) title: String,
    /// What it shows, made of its own figures.
    pub(super) sentence: String,
    /// What stands at the axis of values, with its unit.
    values: String,
    is_log: bool,
    /// What stands at the other axis, and its steps in their order.
    axis: String,
    steps: Vec<String>,
    /// A value to compare with, or the farthest from the middle.
    reference: Option<f64>,
    rows: Vec<Row>,
}

/// A row of the table that is drawn.
#[derive(Debug, Clone, Default, Serialize)]
struct Row {
    name: String,
    value: f64,
    ci95: Option<[f64; 2]>,
    /// A step of the axis, by its number, and the line that it is a point of.
    x: usize,
    series: String,
    /// The value with its unit and interval.
    said: String,
    /// Deviations from the median, in percent of it.
    rounds: Vec<f64>,
}

fn row(m: &Measurement) -> Row {
    let interval = interval(m.ci95, m.is_exact);
    let interval = if interval.starts_with('[') { interval } else { format!("({interval})") };
    let said = format!("{} {} {interval}", number(m.median), m.unit).replace("  ", " ");
    let ci95 = m.ci95.filter(|ends| ends.iter().all(|end| end.is_finite()));
    Row { name: m.name.clone(), value: m.median, ci95, said, ..Row::default() }
}

impl Plot {
    fn new(kind: &'static str, title: String, values: String, rows: Vec<Row>, sentence: String) -> Plot {
        let above: Vec<f64> = rows.iter().map(|row| row.value).filter(|value| *value > 0.0).collect();
        let (least, most) =
            (above.iter().copied().fold(f64::INFINITY, f64::min), above.iter().copied().fold(0.0, f64::max));
        let mut plot = Plot { kind, title, values, rows, sentence, ..Plot::default() };
        plot.is_log = most / least > FAR && above.len() * 2 >= plot.rows.len();
        if plot.is_log && above.len() < plot.rows.len() {
            plot.sentence += &format!(" Zero or less, and at the edge: {}.", plot.rows.len() - above.len());
        }
        plot
    }
}

fn times(low: f64, high: f64) -> String {
    if low > 0.0 && high > 0.0 { format!(", {} times as much", number(high / low)) } else { String::new() }
}

fn extremes(rows: &[Row]) -> String {
    let low = rows.iter().min_by(|a, b| a.value.total_cmp(&b.value));
    let high = rows.iter().max_by(|a, b| a.value.total_cmp(&b.value));
    let (Some(low), Some(high)) = (low, high) else { return String::new() };
    if rows.len() == 1 {
        return format!("{}: {}.", low.name, low.said);
    }
    let times = times(low.value, high.value);
    format!("Least: {}, {}. Most: {}, {}{times}.", low.name, low.said, high.name, high.said)
}

/// Cases of one unit with their intervals.
pub(super) fn intervals<'a>(title: &str, unit: &str, cases: impl IntoIterator<Item = &'a Measurement>) -> Vec<Plot> {
    let rows: Vec<Row> = cases.into_iter().filter(|m| m.median.is_finite()).map(row).collect();
    let plot =
        |rows: &[Row]| Plot::new("intervals", title.into(), format!("median, {unit}"), rows.to_vec(), extremes(rows));
    rows.chunks(ROWS_MAX).map(plot).collect()
}

/// Ratios with their intervals.
pub(super) fn ratios(ratios: &[Ratio]) -> Vec<Plot> {
    let case = |ratio: &Ratio| Measurement {
        name: ratio.name.clone(),
        median: ratio.value,
        ci95: ratio.ci95,
        ..Measurement::default()
    };
    let mut plots =
        intervals("Ratios with their 95 % intervals", "ratio", &ratios.iter().map(case).collect::<Vec<_>>());
    for plot in &mut plots {
        let count = |is: fn([f64; 2]) -> bool| plot.rows.iter().filter(|row| row.ci95.is_some_and(is)).count();
        let (below, above, all) = (count(|[_, high]| high < 1.0), count(|[low, _]| low > 1.0), plot.rows.len());
        let lacking = all - count(|_| true);
        plot.sentence = format!(
            "Of {all} intervals {below} are below 1, {above} above, {} include it, and {lacking} are missing. {}",
            all - below - above - lacking,
            plot.sentence
        );
        plot.reference = Some(1.0);
    }
    plots
}

/// Where a value stands on an axis of quantities; none for what is no quantity.
fn place(value: &str) -> Option<f64> {
    let level = ["hot", "L1", "L2", "L3", "memory"].iter().position(|known| *known == value);
    level.map(|level| level as f64).or_else(|| value.parse().ok()).filter(|place: &f64| place.is_finite())
}

/// A point of a line: where it stands, the value of its label, the case.
type Point<'a> = (f64, &'a str, &'a Measurement);

/// The parts that the names of a line's cases have in common.
fn common(line: &[Point]) -> String {
    let is_common = |part: &&str| line.iter().all(|(.., m)| m.name.split('.').any(|other| other == *part));
    line[0].2.name.split('.').filter(is_common).collect::<Vec<_>>().join(".")
}

/// How much a line goes up or down.
fn change(line: &[Point]) -> f64 {
    (line[line.len() - 1].2.median / line[0].2.median).ln().abs()
}

/// For each label of quantities that varies alone: its lines, of which each plot has some.
pub(super) fn against_axes(measurements: &[Measurement]) -> Vec<Vec<Plot>> {
    let mut groups: BTreeMap<(&str, &str), BTreeMap<Labels, Vec<Point>>> = BTreeMap::new();
    for m in measurements.iter().filter(|m| m.median.is_finite()) {
        for (axis, value) in m.labels.iter().filter(|(axis, _)| !["tool", "way", "state"].contains(&axis.as_str())) {
            let Some(place) = place(value) else { continue };
            let mut rest = m.labels.clone();
            rest.remove(axis);
            groups.entry((axis, &m.unit)).or_default().entry(rest).or_default().push((place, value, m));
        }
    }
    let plots = groups.into_iter().map(|((axis, unit), groups)| {
        let mut lines: Vec<Vec<Point>> = groups.into_values().collect();
        lines.iter_mut().for_each(|line| line.sort_by(|a, b| a.0.total_cmp(&b.0)));
        lines.retain(|line| line[0].0 < line[line.len() - 1].0);
        // Those that change most are seen first; of what is not above zero there is no change to tell.
        lines.sort_by(|a, b| change(b).max(-1.0).total_cmp(&change(a).max(-1.0)));
        lines.chunks(LINES_MAX).map(|lines| against(axis, unit, lines)).collect::<Vec<_>>()
    });
    plots.filter(|plots| !plots.is_empty()).collect()
}

fn against(axis: &str, unit: &str, lines: &[Vec<Point>]) -> Plot {
    let mut steps: Vec<(f64, &str)> = lines.iter().flatten().map(|(place, value, _)| (*place, *value)).collect();
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    steps.dedup();
    let names: Vec<String> = lines.iter().map(|line| common(line)).collect();
    let (mut rows, mut sentences) = (Vec::new(), Vec::new());
    for (line, name) in lines.iter().zip(&names) {
        let is_unique = !name.is_empty() && names.iter().filter(|other| *other == name).count() == 1;
        let ((_, from, first), (_, to, last)) = (line[0], line[line.len() - 1]);
        let series = if is_unique { name } else { &first.name };
        for (place, value, m) in line {
            let x = steps.iter().position(|step| *step == (*place, *value)).unwrap_or_default();
            rows.push(Row { x, series: series.clone(), ..row(m) });
        }
        let (low, high, times) = (number(first.median), number(last.median), times(first.median, last.median));
        sentences.push(format!("{series}, from {low} {unit} at {from} to {high} at {to}{times}"));
    }
    let told = lines.iter().filter(|line| change(line).is_finite()).count();
    let sentence = match &sentences[..told.max(1)] {
        [most, .., least] => format!("Largest change: {most}. Smallest: {least}."),
        one => format!("{}.", one[0]),
    };
    let (title, axis) = match axis {
        "pressure" => ("what memory pressure has driven out", "driven out, level of cache".into()),
        "busy" => ("threads in the sites meanwhile", "threads, number".into()),
        other => (other, format!("{other}, number")),
    };
    let plot = Plot::new("lines", format!("Medians against {title}"), format!("median, {unit}"), rows, sentence);
    Plot { axis, steps: steps.iter().map(|(_, value)| value.to_string()).collect(), ..plot }
}

/// The rounds of all cases that have some. What is exact has none, and of a median that is not above zero there is no percent.
pub(super) fn rounds(measurements: &[Measurement]) -> Vec<Plot> {
    let finite = |m: &Measurement| m.samples.iter().copied().filter(|sample| sample.is_finite()).collect::<Vec<_>>();
    let measured = measurements.iter().filter(|m| !m.is_exact && finite(m).len() > 1);
    let is_drawn = |m: &&Measurement| m.median.is_finite() && m.median > 0.0 && m.mad.is_finite();
    let (drawn, others): (Vec<&Measurement>, Vec<&Measurement>) = measured.partition(is_drawn);
    let plots = drawn.chunks(ROWS_MAX).map(|members| {
        let mut spreads: Vec<(f64, &str)> = members.iter().map(|m| (m.mad / m.median * 100.0, m.name.as_str())).collect();
        spreads.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (least, most) = (spreads[0], spreads[spreads.len() - 1]);
        let reach = most.0.clamp(0.1, 20.0) * DEVIATIONS_MAX;
        let (mut count, mut beyond) = (0, 0);
        let row = |m: &&Measurement| {
            let finite = finite(m);
            let percent: Vec<f64> = finite.iter().map(|ns| ((ns / m.median - 1.0) * 1e5).round() / 1e3).collect();
            count += percent.len();
            beyond += percent.iter().filter(|round| round.abs() > reach).count();
            Row { rounds: percent, ..row(m) }
        };
        let rows = members.iter().map(row).collect();
        let sentence = format!(
            "Half of the rounds are within {} % of the median in {}, within {} % in {}. Beyond {} %, and at the edge: {beyond} of {count} \
             rounds. Cases left out, since their median is not above zero: {}.",
            number(least.0),
            least.1,
            number(most.0),
            most.1,
            number(reach),
            others.len()
        );
        let (title, values) = ("Rounds, by size and in their order".into(), "deviation from the case’s median, %".into());
        let plot = Plot::new("rounds", title, values, rows, sentence);
        Plot { axis: "round, number".into(), reference: Some(reach), is_log: false, ..plot }
    });
    plots.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, median: f64, labels: &[(&str, &str)]) -> Measurement {
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let (name, unit, samples) = (name.into(), "ns".into(), vec![median * 0.9, median, median * 1.2]);
        Measurement { name, unit, labels, median, mad: median * 0.1, samples, ..Measurement::default() }
    }

    #[test]
    fn lines_are_of_labels_that_vary_alone() {
        let cases = [
            case("x.L3", 9.0, &[("tool", "x"), ("threads", "1"), ("pressure", "L3")]),
            case("x", 1.0, &[("tool", "x"), ("threads", "1"), ("pressure", "hot")]),
            case("x.linear-L2", 2.0, &[("tool", "x"), ("threads", "1"), ("pressure", "linear-L2")]),
            case("y.2", 1.0, &[("tool", "y"), ("threads", "2"), ("pressure", "hot")]),
        ];
        let plots = against_axes(&cases);
        let [[plot]] = plots.iter().map(Vec::as_slice).collect::<Vec<_>>()[..] else { panic!("{plots:?}") };
        assert_eq!((plot.steps.join(" ").as_str(), plot.is_log), ("hot L3", true));
        assert_eq!(plot.rows.iter().map(|row| (row.x, row.series.as_str())).collect::<Vec<_>>(), [(0, "x"), (1, "x")]);
        assert_eq!(plot.sentence, "x, from 1.000 ns at hot to 9.000 at L3, 9.000 times as much.");
    }

    #[test]
    fn many_cases_make_several_plots_and_each_says_what_it_shows() {
        let cases: Vec<Measurement> =
            (0..30).map(|number| case(&format!("c{number}"), f64::from(number), &[])).collect();
        let [first, second] = &intervals("all", "ns", &cases)[..] else { panic!("two") };
        assert_eq!((first.rows.len(), second.rows.len(), first.is_log, second.is_log), (24, 6, true, false));
        assert!(first.sentence.ends_with("Zero or less, and at the edge: 1."), "{}", first.sentence);
        let sentence =
            "Least: c24, 24.00 ns (too few rounds). Most: c29, 29.00 ns (too few rounds), 1.208 times as much.";
        assert_eq!(second.sentence, sentence);
    }

    #[test]
    fn rounds_are_deviations_and_what_is_exact_has_none() {
        let plots = rounds(&[case("a", 10.0, &[]), case("zero", 0.0, &[]), Measurement::exact("b", "bytes", 8.0)]);
        assert_eq!(plots[0].rows.iter().map(|row| row.rounds.as_slice()).collect::<Vec<_>>(), [[-10.0, 0.0, 20.0]]);
        assert!(plots[0].sentence.contains("0 of 3 rounds") && plots[0].sentence.ends_with("not above zero: 1."));
    }

    #[test]
    fn a_ratio_without_an_interval_is_not_counted_as_a_difference() {
        let ratio = |value, ci95| Ratio { name: "a_vs_b".into(), value, ci95, means: None };
        let plot = &ratios(&[ratio(0.5, Some([0.4, 0.6])), ratio(2.0, None), ratio(1.0, Some([0.9, 1.1]))])[0];
        assert!(plot.sentence.starts_with("Of 3 intervals 1 are below 1, 0 above, 1 include it, and 1 are missing."));
        assert!(plot.sentence.contains("2.000 (too few rounds)"), "{}", plot.sentence);
    }
}

//! Plots, which `page.js` draws. Ratios, and cases of a unit, have a row each, with its rounds. For each label whose
//! values are quantities, there is a line for each group of cases that differ in nothing else. Values that are far
//! apart are on a logarithmic axis.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::grid::{interval, number};
use crate::{Labels, Measurement, Ratio};

/// Maximum number of rows of a plot. More rows get more plots.
const ROWS_MAX: usize = 24;
/// Maximum number of lines of a plot: as many as there are colours.
const LINES_MAX: usize = 8;
/// Ratio of values above which the axis is logarithmic.
const FAR: f64 = 8.0;
/// Maximum distance from the median at which a round is drawn, in median absolute deviations.
const DEVIATIONS_MAX: f64 = 8.0;

/// A plot with its title and description.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plot {
    pub(super) title: String,
    /// Description in words, made of its own figures.
    pub(super) sentence: String,
    /// Title of the axis of values, with its unit.
    values: String,
    is_log: bool,
    /// For lines: title of the other axis.
    axis: Option<String>,
    /// For lines: steps of the other axis, in order.
    steps: Vec<String>,
    /// A value to compare with, drawn as a line.
    reference: Option<f64>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone, Default, Serialize)]
struct Row {
    name: String,
    value: f64,
    ci95: Option<[f64; 2]>,
    /// Value in words, with its unit and interval.
    said: String,
    /// For a line: index of the step of the axis.
    x: usize,
    /// For a line: name of the line that it is a point of.
    series: String,
    rounds: Vec<f64>,
}

fn row(m: &Measurement) -> Row {
    let interval = interval(m.ci95, m.is_exact);
    let interval = if interval.starts_with('[') { interval } else { format!("({interval})") };
    let said = format!("{} {} {interval}", number(m.median), m.unit).replace("  ", " ");
    let ci95 = m.ci95.filter(|ends| ends.iter().all(|end| end.is_finite()));
    Row { name: m.name.clone(), value: m.median, ci95, said, ..Row::default() }
}

fn plot(title: &str, unit: &str, rows: Vec<Row>) -> Plot {
    let mut above: Vec<f64> = rows.iter().map(|row| row.value).filter(|value| *value > 0.0).collect();
    above.sort_by(f64::total_cmp);
    let is_far = above.first().zip(above.last()).is_some_and(|(least, most)| most / least > FAR);
    let is_log = is_far && above.len() * 2 >= rows.len();
    let mut sentence = extremes(&rows);
    if is_log && above.len() < rows.len() {
        sentence += &format!(" Zero or less, and so not on this axis: {}.", rows.len() - above.len());
    }
    Plot { title: title.into(), sentence, values: format!("median, {unit}"), is_log, rows, ..Plot::default() }
}

fn extremes(rows: &[Row]) -> String {
    let by_value = |a: &&Row, b: &&Row| a.value.total_cmp(&b.value);
    match (rows.iter().min_by(by_value), rows.iter().max_by(by_value)) {
        (Some(low), Some(high)) if rows.len() > 1 => {
            let times = format!(", {} times as much", number(high.value / low.value));
            let times = if low.value > 0.0 { times } else { String::new() };
            format!("Least: {}, {}. Most: {}, {}{times}.", low.name, low.said, high.name, high.said)
        }
        _ => rows.iter().map(|row| format!("{}: {}.", row.name, row.said)).collect(),
    }
}

/// Returns plots of cases of one unit, with their intervals and rounds.
pub(super) fn intervals<'a>(title: &str, unit: &str, cases: impl IntoIterator<Item = &'a Measurement>) -> Vec<Plot> {
    let cases: Vec<&Measurement> = cases.into_iter().filter(|m| m.median.is_finite()).collect();
    let plots = cases.chunks(ROWS_MAX).map(|cases| {
        let (mut count, mut beyond) = (0, 0);
        let with_rounds = |m: &&Measurement| {
            let reach = (m.mad.abs() * DEVIATIONS_MAX).min(f64::MAX);
            let is_shown = |round: &f64| round.is_finite() && !m.is_exact;
            let mut rounds: Vec<f64> = m.samples.iter().copied().filter(is_shown).collect();
            count += rounds.len();
            beyond += rounds.iter().filter(|round| (*round - m.median).abs() > reach).count();
            rounds.iter_mut().for_each(|round| *round = round.clamp(m.median - reach, m.median + reach));
            Row { rounds, ..row(m) }
        };
        let mut plot = plot(title, unit, cases.iter().map(with_rounds).collect());
        if count > 0 {
            let far = format!("beyond {DEVIATIONS_MAX} median absolute deviations, and drawn at that distance");
            plot.sentence += &format!(" Every round is a small point; {far}: {beyond} of {count}.");
        }
        plot
    });
    plots.collect()
}

/// Returns plots of ratios, with their intervals.
pub(super) fn ratios(ratios: &[Ratio]) -> Vec<Plot> {
    let case = |ratio: &Ratio| {
        let (name, median, ci95) = (ratio.name.clone(), ratio.value, ratio.ci95);
        Measurement { name, median, ci95, ..Measurement::default() }
    };
    let cases: Vec<Measurement> = ratios.iter().map(case).collect();
    let plots = intervals("Ratios with their 95 % intervals", "ratio", &cases);
    plots.into_iter().map(|plot| Plot { reference: Some(1.0), ..plot }).collect()
}

/// Returns the position of a value on an axis of quantities; none if it is not a quantity.
fn place(value: &str) -> Option<f64> {
    let level = ["hot", "L1", "L2", "L3", "memory"].iter().position(|known| *known == value);
    level.map(|level| level as f64).or_else(|| value.parse().ok()).filter(|place: &f64| place.is_finite())
}

/// A point of a line: its position, the value of its label, the case.
type Point<'a> = (f64, &'a str, &'a Measurement);

/// Returns how much a line rises or falls, as a logarithm; -1 if that is undefined.
fn change(line: &[Point]) -> f64 {
    (line[line.len() - 1].2.median / line[0].2.median).ln().abs().max(-1.0)
}

/// Returns, for each label of quantities that varies alone, plots of its lines.
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
        // Lines that change most come first.
        lines.sort_by(|a, b| change(b).total_cmp(&change(a)));
        lines.chunks(LINES_MAX).map(|lines| against(axis, unit, lines)).collect::<Vec<_>>()
    });
    plots.filter(|plots| !plots.is_empty()).collect()
}

fn against(axis: &str, unit: &str, lines: &[Vec<Point>]) -> Plot {
    let mut steps: Vec<(f64, &str)> = lines.iter().flatten().map(|(place, value, _)| (*place, *value)).collect();
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    steps.dedup();
    let mut rows = Vec::new();
    for line in lines {
        rows.extend(line.iter().map(|(place, value, m)| {
            let x = steps.iter().position(|step| *step == (*place, *value)).unwrap_or_default();
            Row { x, series: line[0].2.name.clone(), ..row(m) }
        }));
    }
    let (title, axis) = match axis {
        "pressure" => ("the cache level that memory pressure evicted", "evicted, level of cache".into()),
        "busy" => ("threads in the sites at the same time", "threads, number".into()),
        other => (other, format!("{other}, number")),
    };
    let steps = steps.iter().map(|(_, value)| value.to_string()).collect();
    Plot { axis: Some(axis), steps, ..plot(&format!("Medians against {title}"), unit, rows) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, median: f64) -> Measurement {
        let (name, unit, samples) = (name.into(), "ns".into(), vec![median * 0.9, median, median * 1.2]);
        Measurement { name, unit, median, mad: median / 100.0, samples, ..Measurement::default() }
    }

    #[test]
    fn many_cases_make_several_plots_and_what_cannot_be_drawn_is_counted() {
        let cases: Vec<Measurement> = (0..30).map(|index| case(&format!("c{index}"), f64::from(index))).collect();
        let [first, second] = &intervals("all", "ns", &cases)[..] else { panic!("two") };
        assert_eq!((first.rows.len(), second.rows.len(), first.is_log, second.is_log), (24, 6, true, false));
        assert!(first.sentence.contains("Zero or less, and so not on this axis: 1."), "{}", first.sentence);
        let plots = intervals("all", "ns", &[case("a", 10.0), Measurement::exact("b", "ns", 8.0)]);
        assert_eq!(plots[0].rows[0].rounds, [9.2, 10.0, 10.8]);
        let sentence = "Least: b, 8.000 ns (exact). Most: a, 10.00 ns (too few rounds), 1.250 times as much.";
        assert!(
            plots[0].sentence.starts_with(sentence) && plots[0].sentence.ends_with("drawn at that distance: 2 of 3.")
        );
    }
}

//! Plots of an experiment, chosen by the labels of its measurements, as figures that `page.js` hands to plotly.js.
//!
//! ```text
//!   ratios                         ──▶ intervals on a logarithmic axis
//!   a label that varies alone      ──▶ lines, where its values are steps of a quantity; otherwise dots in rows
//!   rounds                         ──▶ distributions, and the rounds in their order
//! ```
//! Where plots have rows, row `i` is at `y = i`; the page writes the name of a row beside it, or above it on a phone.
//! Colours are names of the style sheet's variables (`--c0`), so that they follow the scheme.

use serde_json::{Value, json};

use super::cases::{self, Axis, Circumstances};
use super::text;
use crate::{Experiment, Measurement, Ratio};

/// Where there is no interval.
pub(super) const NONE: [f64; 2] = [f64::NAN; 2];

/// Rows of one plot; more cases get more plots.
const ROWS_MAX: usize = 24;
/// Points of one case that are drawn; all count in the figures.
const POINTS_MAX: usize = 250;
/// Up to this many lines, one plot has them all; beyond, each state has its own.
const LINES_MAX: usize = 6;
/// Half of the height of what a row shows.
const HALF: f64 = 0.3;

const SYMBOLS: [&str; 8] = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "hexagon"];

/// One figure with what stands around it.
#[derive(Debug)]
pub(super) struct Plot {
    pub(super) title: String,
    /// How to read it.
    pub(super) caption: String,
    /// What it shows, in words.
    pub(super) reading: String,
    pub(super) legend: Vec<Entry>,
    pub(super) views: Vec<View>,
    rows: Vec<String>,
}

/// One way to look at a figure; the first is shown until the reader takes another.
#[derive(Debug)]
pub(super) struct View {
    pub(super) label: String,
    traces: Traces,
    layout: Value,
}

#[derive(Debug)]
enum Traces {
    Own(Vec<Value>),
    /// Those of the view of this number.
    OfView(usize),
}

/// A line of the legend, and the traces that it stands for.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) text: String,
    pub(super) colour: usize,
    pub(super) symbol: &'static str,
    pub(super) is_open: bool,
    pub(super) traces: Vec<usize>,
}

impl Plot {
    /// What `page.js` reads.
    pub(super) fn figure(&self) -> Value {
        let rows: Vec<String> = self.rows.iter().map(|row| text::plot(row)).collect();
        let view = |view: &View| match &view.traces {
            Traces::Own(traces) => json!({ "traces": traces, "layout": view.layout }),
            Traces::OfView(number) => json!({ "traces": number, "layout": view.layout }),
        };
        let views = self.views.iter().map(view);
        json!({ "rows": rows, "views": views.collect::<Vec<_>>() })
    }
}

fn colour(number: usize) -> String {
    format!("--c{number}")
}

/// `dormouse armed: 14.5 ns [14.1, 14.9]`
fn reading(name: &str, m: &Measurement) -> String {
    format!("{name}: {} {}", text::quantity(m.median, &m.unit), text::interval(m.ci95.unwrap_or(NONE)))
}

fn readings(names: &[String], measurements: &[&Measurement]) -> String {
    let sentences: Vec<String> = names.iter().zip(measurements).map(|(name, m)| reading(name, m)).collect();
    text::digest(&sentences, 12)
}

/// Error bars of 95 % intervals.
fn bars<'a>(measurements: impl Iterator<Item = &'a Measurement> + Clone, colour: &str) -> Value {
    let distance = |length: f64| if length.is_finite() { length.max(0.0) } else { 0.0 };
    let up = measurements.clone().map(|m| distance(m.ci95.unwrap_or(NONE)[1] - m.median)).collect::<Vec<_>>();
    let down = measurements.map(|m| distance(m.median - m.ci95.unwrap_or(NONE)[0])).collect::<Vec<_>>();
    json!({
        "type": "data", "symmetric": false, "array": up, "arrayminus": down,
        "color": colour, "thickness": 1.5, "width": 3,
    })
}

/// Ticks of a logarithmic axis: equal steps within a narrow range, otherwise 1, 2, 5 of each decade, and powers of ten
/// alone over more than four.
fn log_ticks(low: f64, high: f64) -> Value {
    let mut ticks: Vec<(f64, i32)> = Vec::new();
    if high / low < 6.0 {
        let rough = (high - low) / 5.0;
        let decade = rough.log10().floor() as i32;
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * 10f64.powi(decade)).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let decade = step.log10().floor() as i32;
        let first = (low / step).ceil() as i64;
        ticks.extend((first..first + 8).map(|index| (index as f64 * step, decade)).filter(|(tick, _)| *tick <= high));
    } else {
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let steps: &[f64] = if high / low > 1e4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        ticks.extend(
            (first..=last).flat_map(|decade| steps.iter().map(move |step| (step * 10f64.powi(decade), decade))),
        );
    }
    let text = |(value, decade): &(f64, i32)| format!("{value:.*}", usize::try_from(-decade).unwrap_or(0));
    let texts: Vec<String> = ticks.iter().map(text).collect();
    let values: Vec<f64> = ticks.iter().map(|(value, _)| *value).collect();
    json!({ "type": "log", "tickmode": "array", "tickvals": values, "ticktext": texts })
}

/// Views of an axis of costs: logarithmic first, where all are above zero and far apart.
fn scales(key: &str, medians: &[f64], axis: &Value, layout: &Value) -> Vec<View> {
    let merged = |extra: Value| {
        let mut layout = layout.clone();
        layout[key] = merge(axis, &extra);
        layout
    };
    let linear = merged(json!({ "type": "linear", "rangemode": "tozero" }));
    let low = medians.iter().copied().fold(f64::INFINITY, f64::min);
    let high = medians.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if low > 0.0 && high / low > 8.0 {
        let log = merged(log_ticks(low / 2.0, high * 2.0));
        vec![
            View { label: "Logarithmic".into(), traces: Traces::OfView(0), layout: log },
            View { label: "Linear".into(), traces: Traces::OfView(0), layout: linear },
        ]
    } else {
        vec![View { label: "Linear".into(), traces: Traces::OfView(0), layout: linear }]
    }
}

fn merge(one: &Value, other: &Value) -> Value {
    let mut merged = one.clone();
    for (key, value) in other.as_object().into_iter().flatten() {
        merged[key] = value.clone();
    }
    merged
}

/// Cases of one unit and one state, with what to add to a title.
fn facets<'a>(measurements: &[&'a Measurement]) -> Vec<(String, Vec<&'a Measurement>)> {
    let state = |m: &Measurement| m.labels.get("state").cloned().unwrap_or_default();
    let states: Vec<String> = measurements.iter().map(|m| state(m)).collect();
    let states = cases::in_order("state", states.iter().map(String::as_str));
    let units = cases::in_order("unit", measurements.iter().map(|m| m.unit.as_str()));
    let mut facets = Vec::new();
    for unit in &units {
        for state_now in &states {
            let members = measurements.iter().filter(|m| m.unit == *unit && state(m) == *state_now);
            let members: Vec<&Measurement> = members.copied().collect();
            let mut suffix = Vec::new();
            if states.len() > 1 {
                suffix.push(if state_now.is_empty() { "without a state" } else { state_now });
            }
            if units.len() > 1 {
                suffix.push(unit);
            }
            let suffix = if suffix.is_empty() { String::new() } else { format!(": {}", suffix.join(", ")) };
            if !members.is_empty() {
                facets.push((suffix, members));
            }
        }
    }
    facets
}

/// What a ratio's interval says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Below,
    Unsure,
    Above,
    /// A cost was nothing or less than nothing, or there is no figure.
    None,
}

pub(super) fn verdict(ci95: [f64; 2]) -> Verdict {
    match ci95 {
        [low, high] if !(low > 0.0 && high.is_finite()) => Verdict::None,
        [_, high] if high < 1.0 => Verdict::Below,
        [low, _] if low > 1.0 => Verdict::Above,
        _ => Verdict::Unsure,
    }
}

/// The ratios of an experiment with their intervals; none where nothing can be drawn.
pub(super) fn ratios(experiment: &Experiment, title: &str) -> Option<Plot> {
    let is_drawn = |ratio: &&Ratio| {
        verdict(ratio.ci95.unwrap_or(NONE)) != Verdict::None && ratio.value.is_finite() && ratio.value > 0.0
    };
    let ratios = experiment.ratios.iter().filter(is_drawn);
    let ratios: Vec<(String, f64, [f64; 2])> =
        ratios.map(|r| (said(&r.name), r.value, r.ci95.unwrap_or(NONE))).collect();
    if ratios.is_empty() {
        return None;
    }
    let low = ratios.iter().map(|(.., ci95)| ci95[0]).fold(1.0, f64::min) / 1.3;
    let high = ratios.iter().map(|(.., ci95)| ci95[1]).fold(1.0, f64::max) * 1.3;
    let classes = [
        (Verdict::Below, 0, "circle", "below 1"),
        (Verdict::Unsure, 7, "diamond", "interval includes 1"),
        (Verdict::Above, 1, "square", "above 1"),
    ];
    let (mut traces, mut legend) = (Vec::new(), Vec::new());
    for (class, number, symbol, meaning) in classes {
        let members = ratios.iter().enumerate().filter(|(_, (.., ci95))| verdict(*ci95) == class).collect::<Vec<_>>();
        if members.is_empty() {
            continue;
        }
        let hover = |name: &str, value: f64, ci95| {
            format!("{}<br>{} {}", text::plot(name), text::digits(value, 3), text::interval(ci95))
        };
        let distances = |distance: fn(f64, [f64; 2]) -> f64| {
            let distances = members.iter().map(|(_, (_, value, ci95))| distance(*value, *ci95).max(0.0));
            distances.collect::<Vec<_>>()
        };
        legend.push(Entry { text: meaning.into(), colour: number, symbol, is_open: false, traces: vec![traces.len()] });
        traces.push(json!({
            "type": "scatter", "mode": "markers", "hovertemplate": "%{customdata}<extra></extra>",
            "x": members.iter().map(|(_, (_, value, _))| value).collect::<Vec<_>>(),
            "y": members.iter().map(|(row, _)| row).collect::<Vec<_>>(),
            "customdata": members.iter().map(|(_, (name, value, ci95))| hover(name, *value, *ci95)).collect::<Vec<_>>(),
            "marker": { "color": colour(number), "symbol": symbol, "size": 10 },
            "error_x": {
                "type": "data", "symmetric": false, "thickness": 2.5, "width": 5, "color": colour(number),
                "array": distances(|value, ci95| ci95[1] - value),
                "arrayminus": distances(|value, ci95| value - ci95[0]),
            },
        }));
    }
    let axis =
        merge(&log_ticks(low, high), &json!({ "range": [low.log10(), high.log10()], "title": { "text": "ratio" } }));
    let line = json!({
        "type": "line", "xref": "x", "yref": "paper", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "layer": "below",
        "line": { "color": "--ink", "width": 1.5 } });
    let sentences: Vec<String> = ratios
        .iter()
        .map(|(name, value, ci95)| format!("{name}: {} {}", text::digits(*value, 3), text::interval(*ci95)))
        .collect();
    Some(Plot {
        title: title.into(),
        caption:
            "Cost of the first as a multiple of the second, on a logarithmic axis. Left of the line at 1 the first \
                  is cheaper."
                .into(),
        reading: text::digest(&sentences, 12),
        legend,
        rows: ratios.iter().map(|(name, ..)| name.clone()).collect(),
        views: vec![View {
            label: String::new(),
            traces: Traces::Own(traces),
            layout: json!({ "xaxis": axis, "shapes": [line] }),
        }],
    })
}

/// `armed_vs_lttng_ust` → `armed vs lttng ust`
pub(super) fn said(name: &str) -> String {
    name.replace('_', " ")
}

/// Everything that is drawn of an experiment's measurements.
#[derive(Debug, Default)]
pub(super) struct Plots {
    /// Shown at once.
    pub(super) main: Vec<Plot>,
    /// Shown when the reader asks.
    pub(super) further: Vec<Plot>,
    /// Circumstances that names of cases leave out.
    pub(super) usual: String,
}

/// The plots of an experiment without its ratios.
pub(super) fn of(experiment: &Experiment) -> Plots {
    let mut plots = Plots::default();
    let figures: Vec<&Measurement> = experiment.measurements.iter().filter(|m| m.median.is_finite()).collect();
    let mut axes = cases::axes(&figures);
    let rank = |axis: &Axis| {
        ["fields", "pressure", "threads", "sites", "mode"].iter().position(|name| *name == axis.name).unwrap_or(9)
    };
    axes.sort_by_key(rank);
    for axis in &axes {
        let is_quantity = axis.name == "pressure" || axis.is_numeric();
        plots.main.extend(if is_quantity { lines(axis) } else { dots(axis) });
    }
    let with_rounds = experiment.measurements.iter().filter(|m| finite(m).next().is_some());
    let circumstances = Circumstances::of(&with_rounds.collect::<Vec<_>>());
    let rows = |members: &[&Measurement], plot| rows(&circumstances, members, plot);
    plots.main.extend(rows(&circumstances.under_usual, distribution));
    plots.main.extend(rows(&in_order(&circumstances.under_usual), lanes));
    plots.further.extend(rows(&circumstances.others, distribution));
    plots.further.extend(rows(&in_order(&circumstances.others), lanes));
    plots.usual = circumstances.said();
    plots
}

/// Those that have an order of rounds.
fn in_order<'a>(measurements: &[&'a Measurement]) -> Vec<&'a Measurement> {
    measurements.iter().copied().filter(|m| finite(m).nth(1).is_some()).collect()
}

type RowPlot = fn(&str, Vec<String>, &[&Measurement]) -> Plot;

fn rows(circumstances: &Circumstances, measurements: &[&Measurement], plot: RowPlot) -> Vec<Plot> {
    let plots = |(suffix, members): &(String, Vec<&Measurement>)| {
        let names = |chunk| circumstances.names(chunk);
        members.chunks(ROWS_MAX).map(|chunk| plot(suffix, names(chunk), chunk)).collect::<Vec<_>>()
    };
    facets(measurements).iter().flat_map(plots).collect()
}

fn finite(m: &Measurement) -> impl Iterator<Item = f64> {
    m.samples.iter().copied().filter(|sample| sample.is_finite())
}

/// A line of a plot: its name and its points, each at a step of the axis.
struct Line<'a> {
    name: String,
    is_linear_access: bool,
    points: Vec<(usize, &'a Measurement)>,
}

/// Of a value of `pressure`: how much, and whether memory was gone through in order (`linear-L2`).
fn pressure(value: &str) -> (&str, bool) {
    match value.strip_prefix("linear") {
        Some(rest) => (rest.trim_start_matches(['-', ':', ' ']), true),
        None => (value, false),
    }
}

/// Cost against steps of a quantity: a line for each group.
fn lines(axis: &Axis) -> Vec<Plot> {
    let split = |value| if axis.name == "pressure" { pressure(value) } else { (value, false) };
    let all = axis.values();
    let steps = cases::in_order(&axis.name, all.iter().map(|value| split(value).0));
    let members: Vec<&Measurement> = axis.groups.iter().flat_map(|group| &group.members).copied().collect();
    let varying = cases::varying(&members);
    let mut lines: Vec<Line> = Vec::new();
    for group in &axis.groups {
        for is_linear_access in [false, true] {
            let points = group.members.iter().filter_map(|m| {
                let (value, is_linear) = split(m.labels.get(&axis.name)?);
                (is_linear == is_linear_access).then_some((steps.iter().position(|step| *step == value)?, *m))
            });
            let mut points: Vec<(usize, &Measurement)> = points.collect();
            points.sort_by_key(|(step, _)| *step);
            let Some((_, first)) = points.first() else { continue };
            let mut name = cases::name(first, &varying, &[&axis.name]);
            if is_linear_access {
                name += ", linear access";
            }
            lines.push(Line { name, is_linear_access, points });
        }
    }
    let (is_faceted, all) =
        (lines.len() > LINES_MAX, lines.iter().flat_map(|line| line.points.iter().map(|(_, m)| *m)));
    let all: Vec<&Measurement> = all.collect();
    let facets = facets(&all);
    let is_one_unit = all.iter().all(|m| m.unit == all[0].unit);
    let facets = if is_faceted || !is_one_unit { facets } else { vec![(String::new(), all)] };
    let plot = |(suffix, members): (String, Vec<&Measurement>)| {
        let is_member = |line: &&Line| members.iter().any(|m| std::ptr::eq(*m, line.points[0].1));
        lines_of(axis, &steps, &suffix, &lines.iter().filter(is_member).collect::<Vec<_>>())
    };
    facets.into_iter().map(plot).collect()
}

fn lines_of(axis: &Axis, steps: &[&str], suffix: &str, lines: &[&Line]) -> Plot {
    let numbers: Option<Vec<f64>> =
        axis.is_numeric().then(|| steps.iter().filter_map(|step| step.parse().ok()).collect());
    let is_far = numbers.as_ref().is_some_and(|n| n[0] > 0.0 && n[n.len() - 1] / n[0] > 30.0);
    let x = |step: usize| numbers.as_ref().map_or(step as f64, |numbers| numbers[step]);
    let states: Vec<&Measurement> = lines.iter().map(|line| line.points[0].1).collect();
    let has_states = cases::varying(&states).contains("state");
    let (mut traces, mut legend, mut sentences) = (Vec::new(), Vec::new(), Vec::new());
    for (index, line) in lines.iter().enumerate() {
        let first = line.points[0].1;
        let is_dormant = has_states && first.labels.get("state").is_some_and(|state| state == "dormant");
        // A tool has one symbol as it has one colour; further lines of it differ by theirs.
        let number = cases::colour(first);
        let is_alike = |other: &&&Line| cases::colour(other.points[0].1) == number && !other.is_linear_access;
        let is_before = lines[..index].iter().filter(is_alike).count();
        let own = if line.is_linear_access { is_before.saturating_sub(1) } else { is_before };
        let symbol = SYMBOLS[(number + own) % SYMBOLS.len()];
        let is_open = is_dormant || line.is_linear_access;
        let dash = if line.is_linear_access {
            "dash"
        } else if is_dormant {
            "dot"
        } else {
            "solid"
        };
        let said = |step: usize, m| reading(&format!("{}, {}", line.name, cases::said(&axis.name, steps[step])), m);
        let points = line.points.iter().map(|(_, m)| *m);
        sentences.extend(line.points.iter().map(|(step, m)| said(*step, m)));
        legend.push(Entry { text: line.name.clone(), colour: number, symbol, is_open, traces: vec![index] });
        traces.push(json!({
            "type": "scatter", "mode": "lines+markers", "hovertemplate": "%{customdata}<extra></extra>",
            "x": line.points.iter().map(|(step, _)| x(*step)).collect::<Vec<_>>(),
            "y": points.clone().map(|m| m.median).collect::<Vec<_>>(),
            "customdata": line.points.iter().map(|(step, m)| text::plot(&said(*step, m))).collect::<Vec<_>>(),
            "error_y": bars(points, &colour(number)),
            "line": { "color": colour(number), "width": 2, "dash": dash },
            "marker": {
                "color": colour(number), "size": 9, "symbol": format!("{symbol}{}", if is_open { "-open" } else { "" }),
            },
        }));
    }
    let medians: Vec<f64> = lines.iter().flat_map(|line| line.points.iter().map(|(_, m)| m.median)).collect();
    let title = match axis.name.as_str() {
        "pressure" => "memory pressure",
        "busy" => "threads that run through the sites",
        other => other,
    };
    let xaxis = json!({
        "type": if is_far { "log" } else { "linear" }, "tickmode": "array",
        "title": { "text": text::plot(&axis_title(&axis.name)) },
        "tickvals": (0..steps.len()).map(x).collect::<Vec<_>>(),
        "ticktext": steps.iter().map(|step| text::plot(step)).collect::<Vec<_>>(),
        "showgrid": false, "zeroline": false,
    });
    let unit = lines[0].points[0].1.unit.as_str();
    let yaxis = json!({ "title": { "text": text::plot(unit) } });
    let mut views = scales("yaxis", &medians, &yaxis, &json!({ "xaxis": xaxis }));
    views[0].traces = Traces::Own(traces);
    Plot {
        title: format!("Cost against {title}{suffix}"),
        caption: format!(
            "Medians in {unit} with their 95 % intervals; a line joins cases that differ in nothing else."
        ),
        reading: text::digest(&sentences, 12),
        legend,
        rows: Vec::new(),
        views,
    }
}

fn axis_title(name: &str) -> String {
    match name {
        "pressure" => "where the work in between lives".into(),
        "busy" => "threads".into(),
        other => said(other),
    }
}

/// Cost by the values of a label that is no quantity: a row for each tool, a mark for each value.
fn dots(axis: &Axis) -> Vec<Plot> {
    let members: Vec<&Measurement> = axis.groups.iter().flat_map(|group| &group.members).copied().collect();
    let values = axis.values();
    let facets = facets(&members);
    let plot = |(suffix, members): &(String, Vec<&Measurement>)| {
        let varying = cases::varying(members);
        let without = if facets.len() > 1 { vec![axis.name.as_str(), "state"] } else { vec![axis.name.as_str()] };
        let mut rows: Vec<(String, f64)> = Vec::new();
        for m in members {
            let name = cases::name(m, &varying, &without);
            match rows.iter_mut().find(|(row, _)| *row == name) {
                Some((_, least)) => *least = least.min(m.median),
                None => rows.push((name, m.median)),
            }
        }
        rows.sort_by(|a, b| a.1.total_cmp(&b.1));
        let row = |m: &Measurement| rows.iter().position(|(row, _)| *row == cases::name(m, &varying, &without));
        let (mut traces, mut legend) = (Vec::new(), Vec::new());
        for (index, value) in values.iter().enumerate() {
            let points = members.iter().filter(|m| m.labels.get(&axis.name).is_some_and(|label| label == value));
            let points: Vec<(usize, &Measurement)> = points.filter_map(|m| Some((row(m)?, *m))).collect();
            // Beside each other within the row, so that none hides another.
            let shift = (index as f64 - (values.len() - 1) as f64 / 2.0) * (2.0 * HALF / values.len() as f64);
            let (number, symbol) = (index % 7, SYMBOLS[index % SYMBOLS.len()]);
            let said = |m| reading(&cases::name(m, &cases::varying(&members.to_vec()), &[]), m);
            legend.push(Entry {
                text: cases::said(&axis.name, value),
                colour: number,
                symbol,
                is_open: false,
                traces: vec![traces.len()],
            });
            traces.push(json!({
                "type": "scatter", "mode": "markers", "hovertemplate": "%{customdata}<extra></extra>",
                "x": points.iter().map(|(_, m)| m.median).collect::<Vec<_>>(),
                "y": points.iter().map(|(row, _)| *row as f64 + shift).collect::<Vec<_>>(),
                "customdata": points.iter().map(|(_, m)| text::plot(&said(m))).collect::<Vec<_>>(),
                "error_x": bars(points.iter().map(|(_, m)| *m), &colour(number)),
                "marker": { "color": colour(number), "size": 9, "symbol": symbol },
            }));
        }
        let medians: Vec<f64> = members.iter().map(|m| m.median).collect();
        let unit = members[0].unit.as_str();
        let mut views = scales("xaxis", &medians, &json!({ "title": { "text": text::plot(unit) } }), &json!({}));
        views[0].traces = Traces::Own(traces);
        let by = if axis.name == "fields" { "set of fields".into() } else { said(&axis.name) };
        Plot {
            title: format!("Cost by {by}{suffix}"),
            caption: format!("Medians in {unit} with their 95 % intervals; the cheapest on top."),
            reading: readings(&cases::names(members), members),
            legend,
            rows: rows.into_iter().map(|(row, _)| row).collect(),
            views,
        }
    };
    facets.iter().map(plot).collect()
}

const ROUND_HOVER: &str = "%{meta[0]}<br>round %{customdata[0]}: %{customdata[1]:.4g} %{meta[1]}<extra></extra>";

fn round_meta(name: &str, m: &Measurement) -> [String; 2] {
    [text::plot(name), text::plot(&m.unit)]
}

/// Six digits: more than a plot shows.
fn short(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

fn quartiles(sorted: &[f64]) -> [f64; 2] {
    [0.25, 0.75].map(|part| sorted[((sorted.len() - 1) as f64 * part).round() as usize])
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Beyond these, a sample is far from the others: three times the distance of the quartiles.
fn fences(samples: &[f64]) -> [f64; 2] {
    let sorted = sorted(samples);
    let [low, high] = quartiles(&sorted);
    let reach = 3.0 * (high - low);
    [(low - reach).max(sorted[0]), (high + reach).min(sorted[sorted.len() - 1])]
}

/// Of the kernel of a density: Silverman's rule by the quartiles, which a few far samples do not move.
fn bandwidth(samples: &[f64]) -> f64 {
    let [low, high] = quartiles(&sorted(samples));
    0.9 * (high - low) / 1.349 * (samples.len() as f64).powf(-0.2)
}

fn padded([low, high]: [f64; 2]) -> [f64; 2] {
    let pad = if high > low { (high - low) * 0.04 } else { (high.abs() * 0.01).max(1e-9) };
    [low - pad, high + pad]
}

fn union(ranges: impl Iterator<Item = [f64; 2]>) -> [f64; 2] {
    ranges.fold([f64::INFINITY, f64::NEG_INFINITY], |all, one| [all[0].min(one[0]), all[1].max(one[1])])
}

/// Where a round of a case stands on an axis.
type Scale = fn(&Measurement, f64) -> f64;

fn scaled(m: &Measurement, scale: Scale) -> Vec<f64> {
    finite(m).map(|sample| scale(m, sample)).collect()
}

/// Traces of distributions: the shape, the samples, and the median with its interval.
fn clouds(names: &[String], measurements: &[&Measurement], value: Scale) -> Vec<Value> {
    let mut traces = Vec::new();
    for (row, (name, m)) in names.iter().zip(measurements).enumerate() {
        let number = cases::colour(m);
        let samples = scaled(m, value);
        let [low, high] = fences(&samples);
        // Of a few rounds, or of equal ones, there is no shape to draw.
        if samples.len() >= 8 && low < high {
            traces.push(json!({
                "type": "violin", "orientation": "h", "x": samples.iter().map(|x| short(*x)).collect::<Vec<_>>(),
                "y0": row, "width": 2.0 * HALF, "points": false, "hoverinfo": "skip", "scalemode": "width",
                "spanmode": "manual", "span": [low, high], "bandwidth": bandwidth(&samples),
                "line": { "color": colour(number), "width": 1 }, "name": text::plot(name),
            }));
        }
        let step = samples.len().div_ceil(POINTS_MAX);
        let is_shown = |index: usize, x: f64| index.is_multiple_of(step) || x < low || x > high;
        let shown = samples.iter().copied().zip(finite(m)).enumerate().filter(|(index, (x, _))| is_shown(*index, *x));
        let shown: Vec<(usize, f64, f64)> = shown.map(|(index, (x, sample))| (index, x, sample)).collect();
        let jitter = |index: usize| ((index as f64 * 0.618_034).fract() - 0.5) * HALF;
        traces.push(json!({
            "type": "scatter", "mode": "markers", "hovertemplate": ROUND_HOVER, "meta": round_meta(name, m),
            "x": shown.iter().map(|(_, x, _)| short(*x)).collect::<Vec<_>>(),
            "y": shown.iter().map(|(index, ..)| short(row as f64 + jitter(*index))).collect::<Vec<_>>(),
            "customdata": shown.iter().map(|(index, _, sample)| (index + 1, short(*sample))).collect::<Vec<_>>(),
            "marker": { "color": colour(number), "size": 4, "opacity": 0.55 },
        }));
    }
    let drawn = || measurements.iter().enumerate().filter(|(_, m)| m.median.is_finite());
    let interval =
        |m: &Measurement| m.ci95.unwrap_or(NONE).map(|end| value(m, if end.is_finite() { end } else { m.median }));
    traces.push(json!({
        "type": "scatter", "mode": "markers", "hovertemplate": "%{customdata}<extra></extra>",
        "x": drawn().map(|(_, m)| value(m, m.median)).collect::<Vec<_>>(),
        "y": drawn().map(|(row, _)| row).collect::<Vec<_>>(),
        "customdata": drawn().map(|(row, m)| text::plot(&reading(&names[row], m))).collect::<Vec<_>>(),
        "marker": { "color": "--ink", "symbol": "line-ns", "size": 16, "line": { "color": "--ink", "width": 2.5 } },
        "error_x": {
            "type": "data", "symmetric": false, "color": "--ink", "thickness": 2.5, "width": 0,
            "array": drawn().map(|(_, m)| (interval(m)[1] - value(m, m.median)).max(0.0)).collect::<Vec<_>>(),
            "arrayminus": drawn().map(|(_, m)| (value(m, m.median) - interval(m)[0]).max(0.0)).collect::<Vec<_>>(),
        },
    }));
    traces
}

/// The rounds of each case by size.
fn distribution(suffix: &str, names: Vec<String>, measurements: &[&Measurement]) -> Plot {
    let unit = measurements[0].unit.as_str();
    let absolute: Scale = |_, sample| sample;
    let relative: Scale = |m, sample| (sample / m.median - 1.0) * 100.0;
    let view = |label: &str, title: &str, traces, range: [f64; 2]| View {
        label: label.into(),
        traces,
        layout: json!({ "xaxis": { "title": { "text": text::plot(title) }, "range": range, "zeroline": false } }),
    };
    let near = |scale: Scale| padded(union(measurements.iter().map(|m| fences(&scaled(m, scale)))));
    let own = |scale: Scale| Traces::Own(clouds(&names, measurements, scale));
    let in_unit = format!("In {unit}");
    let mut scales = vec![(absolute, in_unit.as_str(), unit)];
    let is_relative = |m: &&Measurement| m.median > 0.0 && m.median.is_finite() && m.mad < m.median / 2.0;
    if measurements.len() > 1 && measurements.iter().all(is_relative) {
        let medians = measurements.iter().map(|m| m.median);
        let is_far = medians.clone().fold(0.0, f64::max) > 3.0 * medians.fold(f64::INFINITY, f64::min);
        // Of costs that are far apart, only this shows a shape.
        scales.insert(usize::from(!is_far), (relative, "Relative", "% from the case’s own median"));
    }
    let mut views: Vec<View> =
        scales.iter().map(|(scale, label, title)| view(label, title, own(*scale), near(*scale))).collect();
    let (scale, _, title) = scales[0];
    let range = near(scale);
    let all: Vec<f64> = measurements.iter().flat_map(|m| scaled(m, scale)).collect();
    let outside = all.iter().filter(|x| **x < range[0] || **x > range[1]).count();
    let mut caption = String::from("Each point is a round; the upright bar is the median with its 95 % interval.");
    if outside > 0 {
        caption += &format!(
            " {outside} of {} lie far outside and out of view, but count in every figure; “Everything” shows them.",
            text::count(all.len(), "round")
        );
        views.push(view("Everything", title, Traces::OfView(0), padded(union(all.iter().map(|x| [*x, *x])))));
    }
    Plot {
        title: format!("Distribution of the rounds{suffix}"),
        caption,
        reading: readings(&names, measurements),
        legend: Vec::new(),
        rows: names,
        views,
    }
}

/// The rounds of each case as they came.
fn lanes(suffix: &str, names: Vec<String>, measurements: &[&Measurement]) -> Plot {
    let count = measurements.iter().map(|m| finite(m).count()).max().unwrap_or(0);
    let (mut traces, mut rows) = (Vec::new(), Vec::new());
    let (mut beyond_x, mut beyond_y, mut beyond_text) = (Vec::new(), Vec::new(), Vec::new());
    for (row, (name, m)) in names.iter().zip(measurements).enumerate() {
        let samples: Vec<f64> = finite(m).collect();
        let middle = if m.median.is_finite() { m.median } else { samples[0] };
        let reach = fences(&samples).map(|end| (end - middle).abs());
        let reach = reach[0].max(reach[1]);
        let scale = if reach > 0.0 { reach } else { f64::MIN_POSITIVE };
        rows.push(format!("{name} (±{})", text::spread(reach, &m.unit)));
        let y = |sample: f64| row as f64 - ((sample - middle) / scale).clamp(-1.0, 1.0) * HALF;
        let number = cases::colour(m);
        traces.push(json!({
            "type": "scatter", "mode": "lines+markers", "hovertemplate": ROUND_HOVER, "meta": round_meta(name, m),
            "x": (1..=samples.len()).collect::<Vec<_>>(),
            "y": samples.iter().map(|sample| short(y(*sample))).collect::<Vec<_>>(),
            "customdata": samples.iter().enumerate().map(|(index, s)| (index + 1, short(*s))).collect::<Vec<_>>(),
            "line": { "color": colour(number), "width": 1 }, "marker": { "color": colour(number), "size": 3 },
        }));
        for (index, sample) in samples.iter().enumerate().filter(|(_, sample)| (**sample - middle).abs() > scale) {
            beyond_x.push(index + 1);
            beyond_y.push(y(*sample));
            let said = text::quantity(*sample, &m.unit);
            beyond_text.push(text::plot(&format!("{name}, round {}: {said}", index + 1)));
        }
    }
    let mut legend = Vec::new();
    if !beyond_x.is_empty() {
        legend.push(Entry {
            text: "beyond its lane".into(),
            colour: 1,
            symbol: "x",
            is_open: false,
            traces: vec![traces.len()],
        });
        traces.push(json!({
            "type": "scatter", "mode": "markers", "hovertemplate": "%{customdata}<extra></extra>",
            "x": beyond_x, "y": beyond_y, "customdata": beyond_text,
            "marker": { "color": "--c1", "symbol": "x", "size": 7 },
        }));
    }
    Plot {
        title: format!("Rounds in their order{suffix}"),
        caption:
            "Shows warm-up, drift and disturbance. The middle of a lane is the median of its case, its height the \
                  distance in brackets."
                .into(),
        reading: readings(&names, measurements),
        legend,
        rows,
        views: vec![View {
            label: String::new(),
            traces: Traces::Own(traces),
            layout: json!({ "xaxis": {
                "title": { "text": "round" }, "rangemode": "tozero", "zeroline": false,
                "dtick": (count < 12).then_some(1),
            } }),
        }],
    }
}

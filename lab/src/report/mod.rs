//! A report for people: one HTML file with everything in it.
//!
//! # The problem
//! Figures in a terminal do not show a distribution, a knee or a drift, and the machine that they were measured on is
//! rarely the one that they are read on. A report is one file that opens anywhere, also on a phone, and asks the network
//! for nothing.
//!
//! # The picture
//! ```text
//!   Report ──▶ cases    what labels say: axes, names, the usual circumstances
//!                │
//!                ▼
//!              plots    figures: traces and views, as JSON ──▶ page.js ──▶ plotly.js ──▶ SVG in the browser
//!                │
//!                ▼
//!              html     headings, words, tables; page.css
//! ```
//!
//! # What is trusted
//! Nothing of a [`Report`]: names, labels, notes and members of the host are text, wherever they appear. Within HTML
//! they are escaped, figures stand in data blocks without `<`, and the page's policy (`Content-Security-Policy`) refuses
//! every load but images that the page has itself.
//!
//! # Limits
//! Plots need a script; without one, all figures are still in the words and tables. The plotting library is 1.5 MB of
//! each file. Names longer than some fifty characters are cut off beside plots on a phone, not in tables.

mod cases;
mod plots;
mod text;

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

use crate::experiments::Known;
use crate::{Experiment, Measurement, Ratio, Report};
use plots::{Entry, Plot, Verdict};

const CSS: &str = include_str!("page.css");
/// Before anything is painted: the scheme.
const SCHEME: &str = include_str!("scheme.js");
const SCRIPT: &str = include_str!("page.js");
const PLOTLY: &str = include_str!("vendor/plotly-cartesian.min.js");

/// A browser that obeys it makes no request for this page.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; \
                      base-uri 'none'; form-action 'none'";

/// Writes a report as HTML: one file that needs nothing else, for light and dark, for desk and phone.
///
/// # Errors
/// The host cannot be told as JSON.
pub fn html(report: &Report) -> Result<String, serde_json::Error> {
    let host = serde_json::to_value(&report.host)?;
    let mut page = Page::default();
    page.summary(report);
    for (index, experiment) in report.experiments.iter().enumerate() {
        page.experiment(index, experiment);
    }
    let machine = machine(&host);
    let names: Vec<&str> = report.experiments.iter().map(|experiment| experiment.name.as_str()).collect();
    let title = match names.len() {
        0 => "no experiments".into(),
        1..=3 => names.join(", "),
        count => text::count(count, "experiment"),
    };
    let mut links = String::new();
    for (index, name) in names.iter().enumerate() {
        let _ = write!(links, "<a href=\"#experiment-{index}\">{}</a>", text::html(name));
    }
    let (title, when) = (text::html(&title), text::html(&date(&host)));
    let (machine, body, host) = (text::html(&machine), page.html, tree(&host));
    let scripts = if page.plots == 0 {
        format!("<script>{SCRIPT}</script>")
    } else {
        format!("<script>{PLOTLY}</script>\n<script>{SCRIPT}</script>")
    };
    Ok(format!(
        r##"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="dormouse lab {version}">
<title>Dormouse lab: {title}</title>
<link rel="icon" href="data:,">
<style>{CSS}</style>
<script>{SCHEME}</script>
</head>
<body>
<header>
<div class="bar"><p class="mark">Dormouse lab</p><button type="button" id="scheme" hidden></button></div>
<h1>{title}</h1>
<p class="machine">{machine}</p>
<p class="date">{when}</p>
<nav aria-label="Sections"><a href="#summary">Summary</a>{links}<a href="#host">Machine</a></nav>
</header>
<main>
<noscript><p class="note warning">The plots need JavaScript; all figures are in the tables as well.</p></noscript>
{body}
<section id="host" aria-labelledby="host-title">
<h2 id="host-title">Machine</h2>
<details><summary>Everything that was read of it</summary>
{host}
</details>
</section>
</main>
<footer><p>Written by <code>dormouse lab</code> {version}; layout {schema} of the results. Intervals are those of the
median: distribution-free, 95 %. MAD is the median of the absolute deviations
from the median, SD the standard deviation.</p></footer>
{scripts}
</body>
</html>
"##,
        version = env!("CARGO_PKG_VERSION"),
        schema = report.schema,
    ))
}

/// What is written so far.
#[derive(Debug, Default)]
struct Page {
    html: String,
    plots: usize,
}

impl Page {
    fn line(&mut self, html: &str) {
        self.html.push_str(html);
        self.html.push('\n');
    }

    fn summary(&mut self, report: &Report) {
        self.line("<section id=\"summary\" aria-labelledby=\"summary-title\">\n<h2 id=\"summary-title\">Summary</h2>");
        let warnings =
            |experiment: &Experiment| experiment.notes.iter().filter(|note| kind(note) == Kind::Warning).count();
        for (index, experiment) in report.experiments.iter().enumerate().filter(|(_, e)| warnings(e) > 0) {
            let (count, name) = (text::count(warnings(experiment), "warning"), text::html(&experiment.name));
            self.line(&format!(
                "<p class=\"note warning\"><a href=\"#experiment-{index}\">{count}</a> about the rounds of {name}</p>"
            ));
        }
        let with_ratios: Vec<&Experiment> = report.experiments.iter().filter(|e| !e.ratios.is_empty()).collect();
        if with_ratios.is_empty() {
            self.line("<p class=\"quiet\">There are no ratios in this file.</p>");
        }
        for experiment in &with_ratios {
            let title = "Ratios with their 95 % intervals";
            let title = if with_ratios.len() == 1 { title.into() } else { format!("{}: {title}", experiment.name) };
            if with_ratios.len() > 1 {
                self.line(&format!("<h3>{}</h3>", text::html(&experiment.name)));
            }
            self.line("<ul class=\"ratios\">");
            experiment.ratios.iter().for_each(|r| self.line(&ratio(r)));
            self.line("</ul>");
            if let Some(plot) = plots::ratios(experiment, &title) {
                self.plot(&plot);
            }
        }
        if report.experiments.is_empty() {
            self.line("<p class=\"quiet\">There are no experiments in this file.</p>");
        }
        self.line("</section>");
    }

    fn experiment(&mut self, index: usize, experiment: &Experiment) {
        self.line(&format!(
            "<section id=\"experiment-{index}\" aria-labelledby=\"experiment-{index}-title\">\n\
             <h2 id=\"experiment-{index}-title\">{}</h2>",
            text::html(&experiment.name)
        ));
        self.notes(&experiment.notes);
        if let Some(paper) = crate::experiments::find(&experiment.name).and_then(Known::paper) {
            self.line(&format!("<h3>What the paper says</h3>\n<p>{}</p>", text::html(&paper.heading())));
            self.line(&crate::paper::grid(&experiment.statements).html("Statements of the paper", text::html));
            for grid in paper.tables(experiment) {
                self.line(&grid.html("Figures of the paper", text::html));
            }
        }
        if experiment.measurements.is_empty() {
            self.line("<p class=\"quiet\">There are no measurements of it in this file.</p>\n</section>");
            return;
        }
        let plots = plots::of(experiment);
        plots.main.iter().for_each(|plot| self.plot(plot));
        if !plots.further.is_empty() {
            let count = text::count(plots.further.len(), "plot");
            self.line(&format!(
                "<details class=\"further\"><summary>Rounds under other circumstances than {} ({count})</summary>",
                text::html(&plots.usual)
            ));
            plots.further.iter().for_each(|plot| self.plot(plot));
            self.line("</details>");
        }
        if experiment.measurements.iter().all(|m| m.samples.is_empty()) {
            self.line("<p class=\"quiet\">There are no rounds in this file: distributions cannot be shown.</p>");
        }
        self.table(experiment);
        self.line("</section>");
    }

    fn notes(&mut self, notes: &[String]) {
        /// Of many warnings, those that are shown at once.
        const SHOWN: usize = 4;
        let of = |wanted: Kind| notes.iter().filter(move |note| kind(note) == wanted);
        let warning = |note: &String| format!("<p class=\"note warning\"><b>Warning</b> {}</p>", text::html(note));
        let warnings: Vec<String> = of(Kind::Warning).map(warning).collect();
        let (shown, others) = warnings.split_at(warnings.len().min(SHOWN));
        shown.iter().for_each(|warning| self.line(warning));
        if !others.is_empty() {
            let count = text::count(others.len(), "more warning");
            self.line(&format!("<details><summary>{count}</summary>"));
            others.iter().for_each(|warning| self.line(warning));
            self.line("</details>");
        }
        let plain: Vec<String> = of(Kind::Plain).map(|note| format!("<li>{}</li>", text::html(note))).collect();
        let absent: Vec<String> =
            of(Kind::Absent).map(|note| format!("<li class=\"quiet\">{}</li>", text::html(note))).collect();
        if plain.len() + absent.len() > 0 {
            self.line(&format!("<ul class=\"notes\" aria-label=\"Notes\">{}{}</ul>", plain.concat(), absent.concat()));
        }
    }

    fn plot(&mut self, plot: &Plot) {
        let id = self.plots;
        self.plots += 1;
        let title = text::html(&plot.title);
        let label = text::html(&format!("{}. {}", plot.title, plot.reading));
        self.line(&format!(
            "<figure id=\"plot-{id}\">\n<figcaption><h3>{title}</h3><p>{}</p></figcaption>",
            text::html(&plot.caption)
        ));
        if plot.views.len() > 1 {
            self.line(&format!("<div class=\"views\" role=\"group\" aria-label=\"View of: {title}\">"));
            for (index, view) in plot.views.iter().enumerate() {
                let (pressed, name) = (index == 0, text::html(&view.label));
                self.line(&format!(
                    "<button type=\"button\" aria-pressed=\"{pressed}\" data-view=\"{index}\">{name}</button>"
                ));
            }
            self.line("</div>");
        }
        self.line(&format!("<div class=\"plot\" role=\"img\" aria-label=\"{label}\"></div>"));
        if !plot.legend.is_empty() {
            let entries: String = plot.legend.iter().map(legend_entry).collect();
            self.line(&format!(
                "<ul class=\"legend\" aria-label=\"Legend: shows and hides what it names\">{entries}</ul>"
            ));
        }
        let figure = text::script_json(&plot.figure());
        self.line(&format!("<script type=\"application/json\">{figure}</script>\n</figure>"));
    }

    fn table(&mut self, experiment: &Experiment) {
        let measurements = &experiment.measurements;
        let units: BTreeSet<&str> = measurements.iter().map(|m| m.unit.as_str()).collect();
        let one_unit = if units.len() == 1 { units.first().copied() } else { None };
        let has_cycles = measurements.iter().any(|m| m.tsc_cycles.is_some());
        let counters: BTreeSet<&String> = measurements.iter().flat_map(|m| m.counters.keys()).collect();
        let mut head: Vec<String> = ["case", "median", "95 % interval", "MAD", "mean ± SD"].map(String::from).into();
        if one_unit.is_none() {
            head.insert(1, "unit".into());
        }
        if has_cycles {
            head.push("TSC cycles".into());
        }
        head.push("rounds".into());
        head.extend(counters.iter().map(|counter| text::html(&plots::said(counter))));
        let head: String = head.iter().map(|name| format!("<th scope=\"col\">{name}</th>")).collect();
        let name = text::html(&experiment.name);
        let unit = one_unit.map(|unit| format!(", in {}", text::html(unit))).unwrap_or_default();
        let each = if counters.is_empty() { "" } else { "; counters for each iteration" };
        self.line(&format!(
            "<h3>Figures</h3>\n\
             <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Figures of {name}\">\n<table>\
             <caption><span>{}{unit}{each}</span></caption>\n<thead><tr>{head}</tr></thead>\n<tbody>",
            text::count(measurements.len(), "case"),
        ));
        for m in measurements {
            self.line(&row(m, one_unit.is_none(), has_cycles, &counters));
        }
        self.line("</tbody></table>\n</div>");
    }
}

fn ratio(ratio: &Ratio) -> String {
    let verdict = match plots::verdict(ratio.ci95.unwrap_or(plots::NONE)) {
        Verdict::Below => "cheaper",
        Verdict::Above => "costs more",
        Verdict::Unsure => "no difference shown",
        Verdict::None => "lost in the noise",
    };
    let (first, second) = ratio.name.split_once("_vs_").unwrap_or((&ratio.name, ""));
    let mut words = text::html(&plots::said(first));
    if !second.is_empty() {
        words += &format!(" <span class=\"quiet\">vs</span> {}", text::html(&plots::said(second)));
    }
    let [low, high] = ratio.ci95.unwrap_or(plots::NONE).map(|end| text::digits(end, 3));
    format!(
        "<li><span class=\"value\">{}<span class=\"times\">×</span></span> <span class=\"words\">{words}\
         <span class=\"quiet\">95 % interval {low} … {high}: <b>{verdict}</b></span></span></li>",
        text::digits(ratio.value, 3)
    )
}

fn row(m: &Measurement, has_unit: bool, has_cycles: bool, counters: &BTreeSet<&String>) -> String {
    let mut cells = Vec::new();
    if has_unit {
        cells.push(text::html(&m.unit));
    }
    cells.push(format!("<b>{}</b>", text::number(m.median)));
    cells.push(format!(
        "{} … {}",
        text::number(m.ci95.unwrap_or(plots::NONE)[0]),
        text::number(m.ci95.unwrap_or(plots::NONE)[1])
    ));
    cells.push(text::digits(m.mad, 2));
    cells.push(format!("{} ± {}", text::number(m.mean), text::digits(m.stddev, 2)));
    let optional = |value: Option<f64>| value.map_or_else(|| "–".into(), text::number);
    if has_cycles {
        cells.push(optional(m.tsc_cycles));
    }
    cells.push(m.n.to_string());
    let count =
        |counter: &&String| m.counters.get(*counter).map_or_else(|| "–".into(), |count| text::digits(*count, 3));
    cells.extend(counters.iter().map(count));
    let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
    // Long names break where words end.
    format!("<tr><th scope=\"row\">{}</th>{cells}</tr>", text::html(&m.name).replace('_', "_<wbr>"))
}

fn legend_entry(entry: &Entry) -> String {
    let path = match entry.symbol {
        "square" => "M-4-4h8v8h-8z",
        "diamond" => "M0-5.5L5.5 0L0 5.5L-5.5 0z",
        "triangle-up" => "M0-5L5 4H-5z",
        "triangle-down" => "M0 5L5-4H-5z",
        "cross" => "M-1.7-5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
        "x" => "M-5-3.2L-3.2-5L0-1.8L3.2-5L5-3.2L1.8 0L5 3.2L3.2 5L0 1.8L-3.2 5L-5 3.2L-1.8 0z",
        "hexagon" => "M-2.7-4.7h5.4L5.4 0L2.7 4.7h-5.4L-5.4 0z",
        _ => "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
    };
    let fill = if entry.is_open { "none" } else { "currentColor" };
    let traces = entry.traces.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    format!(
        "<li><button type=\"button\" aria-pressed=\"true\" data-traces=\"{traces}\"><svg viewBox=\"-8 -8 16 16\" \
         aria-hidden=\"true\" style=\"color:var(--c{colour})\"><path d=\"{path}\" fill=\"{fill}\" stroke=\"currentColor\" \
         stroke-width=\"1.6\"/></svg>{}</button></li>",
        text::html(&entry.text),
        colour = entry.colour,
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The figures may be worse than they look.
    Warning,
    /// Something that the machine does not offer.
    Absent,
    Plain,
}

fn kind(note: &str) -> Kind {
    let is_warning = ["noisy neighbour", "outliers", "not steady"].iter().any(|start| note.starts_with(start));
    match note {
        _ if is_warning => Kind::Warning,
        _ if note.contains("not available") => Kind::Absent,
        _ => Kind::Plain,
    }
}

/// What the machine is called: its processor, however deep the host tells it.
fn machine(host: &Value) -> String {
    let cpu = &host["cpu"];
    let model = ["model", "model_name", "name"].iter().find_map(|member| cpu[member].as_str());
    let cpu = cpu.as_str().or(model).filter(|text| !text.trim().is_empty()).unwrap_or("a processor without a name");
    let mut parts = match host["cpu_count"].as_u64() {
        Some(count) => vec![format!("{count} × {cpu}")],
        None => vec![cpu.to_string()],
    };
    parts.extend(host["kernel"].as_str().map(|kernel| format!("Linux {kernel}")));
    parts.extend(host["virtualised"].as_bool().filter(|is| *is).map(|_| "virtualised".to_string()));
    parts.join(" · ")
}

/// When it was measured: the first member of the host that begins with a date.
fn date(host: &Value) -> String {
    let is_date = |text: &&str| {
        let day = text.as_bytes().get(..10).unwrap_or_default();
        let pattern =
            |(index, byte): (usize, &u8)| if matches!(index, 4 | 7) { *byte == b'-' } else { byte.is_ascii_digit() };
        day.len() == 10 && day.iter().enumerate().all(pattern)
    };
    let date = host.as_object().into_iter().flatten().filter_map(|(_, value)| value.as_str()).find(is_date);
    date.map_or_else(|| "The file does not say when it was measured.".into(), |date| format!("Measured {date}"))
}

/// Any JSON as lists of names and values.
fn tree(value: &Value) -> String {
    let is_flat = |value: &Value| !value.is_object() && !value.is_array();
    match value {
        Value::Null => "<span class=\"quiet\">not known</span>".into(),
        Value::Bool(is) => if *is { "yes" } else { "no" }.into(),
        Value::Number(number) => text::html(&number.to_string()),
        Value::String(text) if text.is_empty() => "<span class=\"quiet\">not known</span>".into(),
        Value::String(text) => text::html(text),
        Value::Array(items) if items.is_empty() => "<span class=\"quiet\">none</span>".into(),
        Value::Array(items) if items.iter().all(is_flat) => items.iter().map(tree).collect::<Vec<_>>().join(", "),
        Value::Array(items) => {
            format!("<ul>{}</ul>", items.iter().map(|item| format!("<li>{}</li>", tree(item))).collect::<String>())
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("<div><dt>{}</dt><dd>{}</dd></div>", text::html(&plots::said(name)), tree(value))
            };
            format!("<dl>{}</dl>", members.iter().map(member).collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance of `#rrggbb`, by <https://www.w3.org/TR/WCAG22/#dfn-relative-luminance>.
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).expect("two digits")) / 255.0;
        let linear = |value: f64| if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) };
        0.2126 * linear(channel(1)) + 0.7152 * linear(channel(3)) + 0.0722 * linear(channel(5))
    }

    #[test]
    fn everything_can_be_read_in_both_schemes() {
        let schemes: Vec<&str> =
            CSS.split("color-scheme:").skip(1).map(|part| part.split('}').next().unwrap()).collect();
        assert_eq!(schemes.len(), 2);
        for scheme in schemes {
            let colour = |name: &str| {
                let start = scheme.find(&format!("--{name}: #")).unwrap_or_else(|| panic!("--{name}")) + name.len() + 4;
                luminance(&scheme[start..start + 7])
            };
            let text = ["ink", "quiet", "link", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];
            let pairs = text.iter().flat_map(|text| [(*text, "paper"), (*text, "page")]);
            for (text, ground) in pairs.chain([("warn-ink", "warn"), ("ink", "raised")]) {
                let (a, b) = (colour(text), colour(ground));
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(contrast >= 4.5, "{text} on {ground}: {contrast:.2} in{scheme}");
            }
        }
    }

    #[test]
    fn notes_are_told_apart() {
        assert_eq!(kind("noisy neighbour: 2 %"), Kind::Warning);
        assert_eq!(kind("not steady"), Kind::Warning);
        assert_eq!(kind("hardware counters not available: …"), Kind::Absent);
        assert_eq!(kind("one thread on processor 1"), Kind::Plain);
    }

    #[test]
    fn a_host_may_be_anything() {
        let host = serde_json::json!({
            "cpu": { "model": "A", "caches": [{ "level": 1 }, { "level": 2 }] }, "cpu_count": 2,
            "started": "2026-11-21 22:17",
            "empty": [], "nothing": null, "flags": ["a", "b"], "virtualised": true,
        });
        assert_eq!(machine(&host), "2 × A · virtualised");
        assert_eq!(date(&host), "Measured 2026-11-21 22:17");
        let tree = tree(&host);
        assert!(tree.contains("<dt>flags</dt><dd>a, b</dd>") && tree.contains("<dt>level</dt><dd>2</dd>"));
        assert_eq!(machine(&Value::Null), "a processor without a name");
        assert_eq!(date(&serde_json::json!([1])), "The file does not say when it was measured.");
    }
}

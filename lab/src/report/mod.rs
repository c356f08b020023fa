//! Reports: results written for a terminal, for a browser, for a document.
//!
//! ```text
//!   Experiment ──▶ blocks, plots   headings, text, grids, plots with a description in words, in order
//!                    │
//!                    ▼
//!   text · html · markdown         page.css, page.js ──▶ plotly.js ──▶ SVG in the browser
//! ```
//! All three formats write the same blocks, so that they cannot contradict each other; plots and folded blocks are on
//! pages only. A page is one file that opens anywhere, also on a phone, and makes no network request. Without scripts,
//! all figures are in the tables.
//!
//! A [`Report`] is not trusted: its names, labels, notes and members of the host are treated as text everywhere. In
//! HTML they are escaped, figures are in a data block without `<`, and the page's policy (`Content-Security-Policy`)
//! refuses every load except images in the page.

mod blocks;
mod plots;

use dormouse_terminal::style::wrap;
use flate2::read::GzDecoder;

use crate::compare::facts_of_host;
use crate::experiments::EXPERIMENTS;
use crate::grid::{Grid, escaped};
use crate::{Experiment, Report};
use blocks::{Block, of_experiment, of_paper};
use plots::Plot;

const CSS: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const PLOTLY_GZIP: &[u8] = include_bytes!("vendor/plotly-cartesian.min.js.gz");
/// Content security policy: with it a browser makes no request for this page.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; \
                      base-uri 'none'; form-action 'none'";

/// Formats a report for a terminal. If `is_brief`, each experiment has only its paper or, without one, its ratios and
/// first table, and its peers.
pub fn text(report: &Report, is_brief: bool) -> String {
    let mut text = format!("{}\n", report.host);
    for experiment in &report.experiments {
        text += &format!("\n{}\n", experiment.name);
        text.extend(of_experiment(experiment, is_brief).iter().map(block_text));
    }
    text
}

fn block_text(block: &Block) -> String {
    match block {
        Block::Heading(heading) => format!("\n{heading}\n"),
        Block::Text(text) => format!("{}\n", wrap(text, "  ")),
        Block::Notes(start, notes) => notes.iter().map(|note| wrap(note, &format!("  {start}")) + "\n").collect(),
        Block::Grid(title, grid) => format!("\n{}\n{}", wrap(title, "  "), grid.text()),
        Block::Plot(_) | Block::Fold(..) => String::new(),
    }
}

/// Formats the papers' statements and figures, with the verdicts of a report, as markdown.
pub fn papers(report: Option<&Report>) -> String {
    let mut text = String::from("# What the papers say, and what was measured\n\n");
    text += &match report {
        Some(Report { host, .. }) => format!(
            "Measured {}: {host}. `dormouse lab run --json RESULT.json` measures, `dormouse lab papers RESULT.json` writes this page. A \
             statement holds if the whole 95 % interval of the ratio that decides it is in the range in which it is true.\n",
            host.measured
        ),
        None => "Nothing was measured; `dormouse lab papers RESULT.json` writes what a result says.\n".into(),
    };
    for (known, paper) in EXPERIMENTS.iter().filter_map(|known| Some((known, known.paper()?))) {
        let found = report.and_then(|report| report.experiments.iter().find(|found| found.name == known.name));
        let is_missing = if report.is_some() && found.is_none() { "It is not in this result. " } else { "" };
        text += &format!("\n## {}\n\nExperiment: `{}`. {is_missing}", paper.cite, known.name);
        let nothing = Experiment { name: known.name.into(), ..Experiment::default() };
        let outdated = report.filter(|_| found.is_some()).map(|report| paper.outdated(&report.host.measured));
        text.extend(outdated.into_iter().flatten().map(|sentence| sentence + " "));
        text.extend(of_paper(&paper, found.unwrap_or(&nothing)).iter().map(|block| match block {
            Block::Grid(title, grid) => format!("\n### {title}\n\n{}", grid.markdown()),
            Block::Text(text) => format!("{text}\n"),
            // A paper has no other blocks.
            _ => String::new(),
        }));
    }
    text
}

/// Formats a report as HTML: one self-contained file, for light and dark, for desktop and phone.
///
/// # Errors
/// If a plot cannot be serialised as JSON.
pub fn html(report: &Report) -> Result<String, serde_json::Error> {
    let names: Vec<&str> = report.experiments.iter().map(|experiment| experiment.name.as_str()).collect();
    let title = if names.is_empty() { "This result has no experiments.".into() } else { names.join(", ") };
    let mut parts = Vec::new();
    for (index, experiment) in report.experiments.iter().enumerate() {
        parts.push((format!("experiment-{index}"), experiment.name.as_str(), of_experiment(experiment, false)));
    }
    let facts = facts_of_host(&report.host).into_iter().map(|(name, value)| vec![name, value]);
    let facts = Block::Grid("Machine".into(), Grid::new(&["fact", "value"], facts));
    parts.push(("machine".into(), "Machine", vec![Block::Fold("Everything that was read".into(), vec![facts])]));
    let (mut body, mut links, mut plots) = (String::new(), String::new(), Vec::new());
    for (id, title, blocks) in &parts {
        let title = escaped(title);
        links += &format!("<a href=\"#{id}\">{title}</a>\n");
        body += &format!("<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{title}</h2>\n");
        body.extend(blocks.iter().map(|block| block_html(block, &mut plots)));
        body += "</section>\n";
    }
    let plotly =
        || std::io::read_to_string(GzDecoder::new(PLOTLY_GZIP)).expect("the file is text that gzip has packed");
    let library = if plots.is_empty() { String::new() } else { format!("<script>{}</script>\n", plotly()) };
    Ok(format!(
        r##"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Dormouse lab: {title}</title>
<link rel="icon" href="data:,">
<style>{CSS}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>{host}</p>
<p class="quiet">Measured {when}; report of Dormouse lab {version}, layout {schema} of results</p>
<nav aria-label="Sections">{links}</nav>
</header>
<main>
<noscript><p>The plots need JavaScript; all figures are in the tables as well.</p></noscript>
{body}</main>
{library}<script type="application/json" id="plots">{plots}</script>
<script>{SCRIPT}</script>
</body>
</html>
"##,
        title = escaped(&title),
        version = env!("CARGO_PKG_VERSION"),
        schema = report.schema,
        host = escaped(&report.host.to_string()),
        when = escaped(&report.host.measured),
        // JSON within a script must not contain `</script` or `<!--`.
        plots = serde_json::to_string(&plots)?.replace('<', "\\u003c"),
    ))
}

fn block_html<'a>(block: &'a Block, plots: &mut Vec<&'a Plot>) -> String {
    match block {
        Block::Heading(text) => format!("<h3>{text}</h3>\n"),
        Block::Text(text) => format!("<p>{}</p>\n", escaped(text)),
        Block::Notes(start, notes) => {
            let notes = notes.iter().map(|note| format!("<li>{start}{}</li>\n", escaped(note))).collect::<String>();
            format!("<ul class=\"{}\">\n{notes}</ul>\n", if start.is_empty() { "notes" } else { "warnings" })
        }
        Block::Grid(title, grid) => format!("<h4>{}</h4>\n{}\n", escaped(title), grid.html(title)),
        Block::Fold(summary, blocks) => {
            let blocks: String = blocks.iter().map(|block| block_html(block, plots)).collect();
            format!("<details><summary>{}</summary>\n{blocks}</details>\n", escaped(summary))
        }
        Block::Plot(plot) => {
            plots.push(plot);
            let (title, sentence) = (escaped(&plot.title), escaped(&plot.sentence));
            format!(
                "<figure>\n<h4>{title}</h4>\n<div class=\"plot\" role=\"img\" aria-label=\"{title}. {sentence}\"></div>\n\
                 <figcaption>{sentence}</figcaption>\n</figure>\n"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the relative luminance of `#rrggbb`, by <https://www.w3.org/TR/WCAG22/#dfn-relative-luminance>.
    fn luminance(scheme: &str, name: &str) -> f64 {
        let colour = scheme.split(&format!("--{name}: #")).nth(1).unwrap_or_else(|| panic!("--{name}"));
        let channel = |at: usize| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).expect("two digits")) / 255.0;
        let linear = |value: f64| if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) };
        0.2126 * linear(channel(0)) + 0.7152 * linear(channel(2)) + 0.0722 * linear(channel(4))
    }

    #[test]
    fn text_has_contrast_in_both_colour_schemes() {
        let schemes: Vec<&str> = CSS.split("  color-scheme:").skip(1).collect();
        assert_eq!(schemes.len(), 2);
        let text = ["ink", "quiet", "link", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];
        let pairs = text.iter().flat_map(|text| [(*text, "paper"), (*text, "page")]).chain([("warn-ink", "warn")]);
        for ((text, ground), scheme) in pairs.flat_map(|pair| schemes.iter().map(move |scheme| (pair, scheme))) {
            let (a, b) = (luminance(scheme, text), luminance(scheme, ground));
            let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
            assert!(contrast >= 4.5, "{text} on {ground}: {contrast:.2} in{}", &scheme[..6]);
        }
    }
}

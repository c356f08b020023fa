//! What was measured, written for a terminal, for a browser, for a document.
//!
//! ```text
//!   Experiment ──▶ blocks   headings, words, grids, plots, in their order
//!                    │ ▲
//!                    │ └ plots   which cases are drawn, in which way, and what they show, in words
//!                    ▼
//!   text · html · markdown       page.css, page.js ──▶ plotly.js ──▶ SVG in the browser
//! ```
//! All three write the same blocks, so that they cannot say different things; plots, and what is folded, are on a page alone. A page is
//! one file that opens anywhere, also on a phone, and asks the network for nothing.
//!
//! # What is trusted
//! Nothing of a [`Report`]: names, labels, notes and members of the host are text, wherever they appear. Within HTML they are escaped,
//! figures stand in data blocks without `<`, and the page's policy (`Content-Security-Policy`) refuses every load but images that the
//! page has itself.
//!
//! # Limits
//! Plots need a script; without one, all figures are in the tables. The plotting library is 1.5 MB of each file.

mod blocks;
mod plots;

use std::fmt::Write;

use dormouse_terminal::style::wrap;
use serde_json::Value;

use crate::experiments::{self, EXPERIMENTS, Known};
use crate::grid::{Grid, escaped};
use crate::{Experiment, Report, Verdict};
use blocks::{Block, is_warning, of_experiment, of_paper};
use plots::Plot;

const CSS: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const PLOTLY: &str = include_str!("vendor/plotly-cartesian.min.js");

/// A browser that obeys it makes no request for this page.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; \
                      base-uri 'none'; form-action 'none'";

/// A report for a terminal.
pub fn text(report: &Report) -> String {
    written(report, of_experiment)
}

/// The same in short: of each experiment what a paper says or, without one, its ratios and its first table, and who its peers were.
pub fn brief(report: &Report) -> String {
    written(report, |experiment| {
        let has_paper = experiments::find(&experiment.name).is_some_and(Known::has_paper);
        let mut blocks: Vec<Block> = of_experiment(experiment);
        let heading = |wanted: &[&str]| {
            let is_it = |block: &Block| matches!(block, Block::Heading(heading) if wanted.contains(&heading.as_str()));
            blocks.iter().position(is_it).unwrap_or(blocks.len())
        };
        let end = if has_paper {
            heading(&["Ratios", "Measurements"])
        } else {
            let from = heading(&["Measurements"]);
            let table = blocks[from..].iter().position(|block| matches!(block, Block::Grid(..)));
            table.map_or(blocks.len(), |table| from + table + 1)
        };
        blocks.truncate(end);
        let peers = experiment.notes.iter().filter(|note| note.starts_with("peer ")).cloned().collect();
        blocks.push(Block::List(peers));
        blocks
    })
}

fn written(report: &Report, blocks: impl Fn(&Experiment) -> Vec<Block>) -> String {
    let experiment = |e: &Experiment| format!("\n{}\n{}", e.name, blocks(e).iter().map(block_text).collect::<String>());
    format!("{}\n{}", report.host, report.experiments.iter().map(experiment).collect::<String>())
}

fn block_text(block: &Block) -> String {
    match block {
        Block::Heading(heading) => format!("\n{heading}\n"),
        Block::Text(text) => format!("{}\n", wrap(text, "  ")),
        Block::Warnings(notes) => notes.iter().map(|note| format!("{}\n", wrap(note, "  WARNING: "))).collect(),
        Block::List(items) => items.iter().map(|item| format!("{}\n", wrap(item, "  "))).collect(),
        Block::Grid(title, grid) => format!("\n{}\n{}", wrap(title, "  "), grid.text()),
        Block::Plot(_) | Block::Fold(..) => String::new(),
    }
}

/// What papers say, and what a report says to it, as markdown.
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
        let found =
            report.and_then(|report| report.experiments.iter().find(|experiment| experiment.name == known.name));
        let empty = Experiment { name: known.name.into(), ..Experiment::default() };
        let _ = write!(text, "\n## {}\n\nExperiment: `{}`. ", paper.cite, known.name);
        if report.is_some() && found.is_none() {
            text += "It is not in this result. ";
        }
        of_paper(&paper, found.unwrap_or(&empty)).iter().for_each(|block| text += &block_markdown(block));
    }
    text
}

fn block_markdown(block: &Block) -> String {
    match block {
        Block::Text(text) => format!("{text}\n"),
        Block::Grid(title, grid) => format!("\n### {title}\n\n{}", grid.markdown()),
        // A paper has no others.
        _ => String::new(),
    }
}

/// A report as HTML: one file that needs nothing else, for light and dark, for desk and phone.
///
/// # Errors
/// The host cannot be told as JSON.
pub fn html(report: &Report) -> Result<String, serde_json::Error> {
    let mut page = Page::default();
    page.section("summary", "Summary", &[summary(report)]);
    for (index, experiment) in report.experiments.iter().enumerate() {
        page.section(&format!("experiment-{index}"), &experiment.name, &of_experiment(experiment));
    }
    let names: Vec<&str> = report.experiments.iter().map(|experiment| experiment.name.as_str()).collect();
    let title = if (1..=3).contains(&names.len()) { names.join(", ") } else { format!("{} experiments", names.len()) };
    let link = |(index, name): (usize, &&str)| format!("<a href=\"#experiment-{index}\">{}</a>", escaped(name));
    let links: String = names.iter().enumerate().map(link).collect();
    let library = if page.plots.is_empty() { String::new() } else { format!("<script>{PLOTLY}</script>\n") };
    Ok(format!(
        r##"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Dormouse lab: {title}</title>
<link rel="icon" href="data:,">
<style>{CSS}</style>
</head>
<body>
<header>
<p class="quiet">Dormouse lab {version}, layout {schema} of results</p>
<h1>{title}</h1>
<p>{host}</p>
<p class="quiet">Measured {when}</p>
<nav aria-label="Sections">{links}<a href="#machine">Machine</a></nav>
</header>
<main>
<noscript><p class="warning">The plots need JavaScript; all figures are in the tables as well.</p></noscript>
{body}<section id="machine">
<h2>Machine</h2>
<details><summary>Everything that was read of it</summary><pre class="scroll" tabindex="0">{facts}</pre></details>
</section>
</main>
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
        body = page.html,
        facts = escaped(&serde_json::to_string_pretty(&report.host)?),
        // Of JSON within a script, only `</script` and `<!--` mean something.
        plots = Value::Array(page.plots).to_string().replace('<', "\\u003c"),
    ))
}

/// Of each experiment, how much there is and what is to be known first.
fn summary(report: &Report) -> Block {
    if report.experiments.is_empty() {
        return Block::Text("There are no experiments in this result.".into());
    }
    let verdicts = [Verdict::Holds, Verdict::DoesNotHold, Verdict::CannotBeTold, Verdict::NotMeasured];
    let some = |count: usize| if count == 0 { String::new() } else { count.to_string() };
    let row = |experiment: &Experiment| {
        let warnings = experiment.notes.iter().filter(|note| is_warning(note)).count();
        let judged = verdicts.map(|verdict| experiment.statements.iter().filter(|one| one.verdict == verdict).count());
        let counts = [experiment.measurements.len(), experiment.ratios.len(), warnings].into_iter().chain(judged);
        std::iter::once(experiment.name.clone()).chain(counts.map(some)).collect()
    };
    let head = ["experiment", "measurements", "ratios", "warnings"].into_iter().map(String::from);
    let head = head.chain(verdicts.map(|verdict| format!("statements: {}", verdict.as_str()))).collect();
    Block::Grid("Experiments".into(), Grid { head, rows: report.experiments.iter().map(row).collect() })
}

/// What is written so far.
#[derive(Debug, Default)]
struct Page {
    html: String,
    plots: Vec<Value>,
}

impl Page {
    fn section(&mut self, id: &str, title: &str, blocks: &[Block]) {
        // Writing to a String does not fail.
        let _ = writeln!(self.html, "<section id=\"{id}\" aria-labelledby=\"{id}-title\">");
        let _ = writeln!(self.html, "<h2 id=\"{id}-title\">{}</h2>", escaped(title));
        blocks.iter().for_each(|block| self.block(block));
        self.html.push_str("</section>\n");
    }

    fn block(&mut self, block: &Block) {
        let html = match block {
            Block::Heading(text) => format!("<h3>{}</h3>", escaped(text)),
            Block::Text(text) => format!("<p>{}</p>", escaped(text)),
            Block::Warnings(notes) => {
                let notes =
                    notes.iter().map(|note| format!("<p class=\"warning\"><b>Warning</b> {}</p>", escaped(note)));
                format!("<div class=\"warnings\">{}</div>", notes.collect::<String>())
            }
            Block::List(items) => {
                let items = items.iter().map(|item| format!("<li>{}</li>", escaped(item)));
                format!("<ul>{}</ul>", items.collect::<String>())
            }
            Block::Grid(title, grid) => format!("<h4>{}</h4>\n{}", escaped(title), grid.html(title)),
            Block::Plot(plot) => self.plot(plot),
            Block::Fold(summary, blocks) => {
                let _ = writeln!(self.html, "<details><summary>{}</summary>", escaped(summary));
                blocks.iter().for_each(|block| self.block(block));
                "</details>".into()
            }
        };
        self.html.push_str(&html);
        self.html.push('\n');
    }

    fn plot(&mut self, plot: &Plot) -> String {
        let Ok(table) = serde_json::to_value(plot) else { return String::new() };
        self.plots.push(table);
        let (title, sentence) = (escaped(&plot.title), escaped(&plot.sentence));
        let button = "<button type=\"button\" aria-pressed=\"false\">In their order</button>";
        format!(
            "<figure>\n<h4>{title}</h4>\n{}<div class=\"plot\" role=\"img\" aria-label=\"{title}. {sentence}\"></div>\n\
             <figcaption>{sentence}</figcaption>\n</figure>",
            if plot.kind == "rounds" { button } else { "" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance of `#rrggbb`, by <https://www.w3.org/TR/WCAG22/#dfn-relative-luminance>.
    fn luminance(scheme: &str, name: &str) -> f64 {
        let colour = scheme.split(&format!("--{name}: #")).nth(1).unwrap_or_else(|| panic!("--{name}"));
        let channel = |at: usize| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).expect("two digits")) / 255.0;
        let linear = |value: f64| if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) };
        0.2126 * linear(channel(0)) + 0.7152 * linear(channel(2)) + 0.0722 * linear(channel(4))
    }

    #[test]
    fn everything_can_be_read_in_both_schemes() {
        let schemes: Vec<&str> =
            CSS.split("  color-scheme:").skip(1).map(|part| part.split('}').next().unwrap()).collect();
        assert_eq!(schemes.len(), 2);
        let text = ["ink", "quiet", "link", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];
        let pairs = text.iter().flat_map(|text| [(*text, "paper"), (*text, "page")]).chain([("warn-ink", "warn")]);
        for ((text, ground), scheme) in pairs.flat_map(|pair| schemes.iter().map(move |scheme| (pair, scheme))) {
            let (a, b) = (luminance(scheme, text), luminance(scheme, ground));
            let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
            assert!(contrast >= 4.5, "{text} on {ground}: {contrast:.2} in{scheme}");
        }
    }

    #[test]
    fn papers_are_written_with_and_without_a_result() {
        let report = Report { schema: 1, host: crate::Host::default(), experiments: Vec::new() };
        let (without, with) = (papers(None), papers(Some(&report)));
        for known in EXPERIMENTS.iter().filter(|known| known.has_paper()) {
            assert!(without.contains(&format!("`{}`", known.name)), "{}", known.name);
        }
        assert!(without.contains("Nothing was measured") && with.contains("It is not in this result."));
        assert!(without.contains("| not measured |") && !without.contains("| holds |"));
    }
}

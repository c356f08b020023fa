//! Reports as text, and as a real browser shows them.
//!
//! Without Chromium, the tests that need it are skipped. The pages stay in `target/tmp/report` for inspection.

mod fixture;

use std::path::PathBuf;

use dormouse_lab::{Report, report};
use dormouse_testing::browser::{self, Browser};
use serde_json::{Value, json};

fn html(report: &Report) -> String {
    report::html(report).expect("a report is written")
}

fn write(name: &str, text: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("report");
    std::fs::create_dir_all(&dir).expect("the directory is made");
    let path = dir.join(name);
    std::fs::write(&path, text).expect("the page is written");
    path
}

/// Returns the texts between each `start` and the next `end`.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Vec<&'a str> {
    text.split(start).skip(1).map(|part| part.split(end).next().expect("a part")).collect()
}

/// Returns the plots that `page.js` draws.
fn plots(html: &str) -> Vec<Value> {
    let block = between(html, "<script type=\"application/json\" id=\"plots\">", "</script>")[0];
    serde_json::from_str(block).expect("the block is JSON")
}

#[test]
fn brief_output_has_statements_or_ratios_and_one_table() {
    let full = fixture::full();
    let (text, brief) = (report::text(&full, false), report::text(&full, true));
    let [of_event, of_builds] = brief.split("\ncompile-job\n").collect::<Vec<_>>()[..] else { panic!("{brief}") };
    assert!(full.experiments[0].ratios.iter().all(|ratio| of_event.contains(&ratio.name)), "{of_event}");
    assert!(of_event.contains("Medians, ns: plain case") && !of_event.contains("Medians, ns: threads"), "{of_event}");
    assert!(of_builds.contains("Statements") && !of_builds.contains("Measurements"), "{of_builds}");
    assert!(brief.lines().count() < text.lines().count(), "{brief}");
}

#[test]
fn text_and_page_agree() {
    let full = fixture::full();
    let (html, text) = (html(&full), report::text(&full, false));
    for experiment in &full.experiments {
        for m in &experiment.measurements {
            assert!(text.contains(&m.name) && html.contains(&m.name.replace('.', ".<wbr>")), "{}", m.name);
        }
        for note in &experiment.notes {
            assert!(html.contains(note.as_str()));
            assert!(note.split(' ').all(|word| text.contains(word)), "{note}");
        }
    }
    let in_a_fold = ["Counters, for each iteration", "Machine", "Experiments"];
    let words: String = text.split_whitespace().collect();
    let is_told = |title: &&str| words.contains(&title.replace("&#39;", "'").replace(' ', ""));
    let titles = between(&html, "role=\"region\" aria-label=\"", "\"");
    assert!(titles.len() > 10 && titles.iter().all(|title| is_told(title) || in_a_fold.contains(title)), "{titles:?}");
    assert!(text.find("WARNING") < text.find("Ratios") && text.find("Ratios") < text.rfind("Notes"), "{text}");
    for title in ["plain case", "threads 2", "pressure L2", "mode discard"] {
        assert_eq!(text.matches(&format!("\n  Medians, ns: {title}\n")).count(), 1, "{title}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
}

#[test]
fn plots_are_chosen_by_labels_and_say_what_they_show() {
    let plots = plots(&html(&fixture::full()));
    let of = |title: &str| plots.iter().filter(|plot| plot["title"] == title).collect::<Vec<_>>();
    let pressure = of("Medians against the cache level that memory pressure evicted");
    assert_eq!(pressure[0]["steps"], json!(["hot", "L1", "L2", "L3"]));
    for title in [
        "Medians against threads",
        "Medians against sites",
        "Ratios with their 95 % intervals",
        "Medians, ns: plain case",
    ] {
        assert!(!of(title).is_empty(), "{title}");
    }
    for plot in &plots {
        let (sentence, rows) = (plot["sentence"].as_str().unwrap(), plot["rows"].as_array().unwrap());
        assert!(rows.iter().any(|row| sentence.contains(row["name"].as_str().unwrap())), "{sentence}");
        assert!(plot["axis"].is_string() || rows.len() <= 24, "{}", rows.len());
        assert!(plot["values"].as_str().is_some_and(|axis| axis.len() > 4), "{plot}");
    }
}

#[test]
fn a_report_survives_its_file_and_says_what_is_missing() {
    let odd = fixture::odd();
    let read: Report =
        serde_json::from_str(&serde_json::to_string(&odd).unwrap()).expect("what is no number can be read");
    assert!(read.experiments[5].measurements[0].median.is_nan());
    for text in [between(&html(&read), "<main>", "</main>")[0], &report::text(&read, false)] {
        assert!(text.contains("This result has no measurements of this experiment."));
        assert!(text.contains("This result has no rounds to show"));
        assert!(text.contains("too few rounds") && text.contains("exact") && !text.contains("NaN"));
    }
    let empty = html(&Report { experiments: Vec::new(), ..odd });
    assert!(empty.contains("This result has no experiments.") && empty.len() < 1 << 16);
}

#[test]
fn hostile_text_stays_text() {
    let html = html(&fixture::hostile());
    assert!(!html.contains("<script>window.hit") && !html.contains("<img src=x"));
    assert!(html.contains("window.hit"), "the text itself is shown");
    assert!(!plots(&html).is_empty());
    assert!(between(&html, "id=\"plots\">", "</script>").iter().all(|block| !block.contains('<')));
}

/// Script: whether all visible plots are drawn, at the present width and in the present scheme.
const DRAWN: &str = r#"document.documentElement.dataset.plots === "drawn"
&& [...document.querySelectorAll("figure")].every((figure) => {
    const box = figure.querySelector(".plot"), scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    return !box.clientWidth || figure.dataset.drawn === scheme
        && box.querySelector(".main-svg")?.getBoundingClientRect().width === box.clientWidth;
})"#;

/// Script: returns the faults of a page: plots without marks, axes without a title, text that is cut, tables that are
/// wider than their container.
const FAULTS: &str = r#"(() => {
    const faults = [], isNarrow = innerWidth <= 640;
    const within = (inner, outer) =>
        inner.left >= outer.left - 1 && inner.right <= outer.right + 1 && inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
    const scroll = document.scrollingElement.scrollWidth;
    if (scroll > innerWidth) faults.push(`the page is ${scroll} wide`);
    for (const figure of document.querySelectorAll("figure")) {
        const box = figure.querySelector(".plot"), outer = box.getBoundingClientRect(), title = figure.querySelector("h4").textContent;
        const has = (selector) => box.querySelectorAll(selector).length > 0;
        if (outer.height < 60 || outer.width < 200) faults.push(`${title}: ${outer.width} × ${outer.height}`);
        if (!has(".cartesianlayer .trace path")) faults.push(`${title}: nothing is drawn`);
        if (!has(".xtitle") || !has(".xtick")) faults.push(`${title}: an axis says nothing`);
        if (figure.querySelector("figcaption").textContent.length < 20) faults.push(`${title}: no sentence`);
        for (const text of box.querySelectorAll("text")) {
            if (text.textContent && !within(text.getBoundingClientRect(), outer)) faults.push(`${title}: ${text.textContent} is cut`);
        }
    }
    for (const box of document.querySelectorAll(".scroll:has(table)")) {
        const table = box.querySelector("table");
        const isWide = table.scrollWidth > box.clientWidth + 1;
        if (isNarrow && isWide) faults.push(`a table is wider than ${box.clientWidth}`);
        if (isWide && getComputedStyle(box).overflowX !== "auto") faults.push("a table leaves its box");
    }
    if (document.querySelectorAll("table").length !== document.querySelectorAll(".scroll > table").length) faults.push("a table has no box");
    return faults;
})()"#;

fn open(browser: &mut Browser, name: &str, html: &str) {
    browser.emulate(1280, 900, "light");
    browser.open(&write(name, html));
    browser.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })");
}

/// Checks all of a page in two sizes and both schemes.
fn assert_fits(browser: &mut Browser, name: &str) {
    let mut grounds = Vec::new();
    for (width, scheme) in [(1280, "light"), (1280, "dark"), (390, "dark"), (390, "light")] {
        browser.emulate(width, 900, scheme);
        browser.wait(&format!("innerWidth === {width} && {DRAWN}"));
        assert_eq!(browser.evaluate(FAULTS), json!([]), "{name}, {width} {scheme}");
        grounds.push(browser.evaluate("getComputedStyle(document.body).backgroundColor"));
    }
    assert!(grounds[0] != grounds[1] && grounds[0] == grounds[3], "{grounds:?}");
    assert_eq!(browser.script_errors(), Vec::<String>::new(), "{name}");
}

#[test]
fn a_browser_shows_all_plots_and_tables() {
    let Some(program) = browser::program() else { return };
    let mut browser = Browser::start(&program);
    for (name, report) in
        [("full.html", fixture::full()), ("odd.html", fixture::odd()), ("hostile.html", fixture::hostile())]
    {
        open(&mut browser, name, &html(&report));
        assert_fits(&mut browser, name);
        assert_eq!(browser.evaluate("typeof window.hit"), "undefined", "{name}");
        assert_eq!(browser.evaluate("document.querySelectorAll('.plot a, main img').length"), 0, "{name}");
    }
    let requests = browser.requests();
    assert!(requests.iter().all(|url| url.starts_with("file://") || url.starts_with("data:")), "{requests:?}");
}

#[test]
fn every_round_is_shown_beside_its_median() {
    let Some(program) = browser::program() else { return };
    let mut browser = Browser::start(&program);
    let html = html(&fixture::full());
    open(&mut browser, "rounds.html", &html);
    browser.wait(DRAWN);
    let count = "(figure) => figure.querySelectorAll('.trace path.point').length";
    let points = browser.evaluate(&format!("[...document.querySelectorAll('figure')].map({count})"));
    let mut count = 0;
    for (index, plot) in plots(&html).iter().enumerate().filter(|(_, plot)| plot["title"] == "Medians, s: plain case") {
        let rows = plot["rows"].as_array().expect("rows");
        let rounds: usize = rows.iter().map(|row| row["rounds"].as_array().expect("rounds").len()).sum();
        assert_eq!(points[index], json!(rounds + rows.len()), "{plot}");
        let sentence = plot["sentence"].as_str().expect("a sentence");
        assert!(sentence.contains("Every round is a small point"), "{sentence}");
        count += rounds;
    }
    assert_eq!(count, 6 * 12);
}

/// Finding no faults proves something only if planted ones are found.
#[test]
fn faults_are_found() {
    let Some(program) = browser::program() else { return };
    let mut browser = Browser::start(&program);
    let whole = html(&fixture::full());
    let planted = [
        ("exception", "setTimeout(() => { throw new Error('planted'); });"),
        ("console", "console.error('planted');"),
        ("load", "fetch('https://planted.invalid/').catch(() => {});"),
    ];
    for (name, script) in planted {
        let page = whole.replace("</body>", &format!("<script>{script} window.isPlanted = true;</script></body>"));
        open(&mut browser, &format!("planted-{name}.html"), &page);
        browser.wait(&format!("window.isPlanted && {DRAWN}"));
        let errors = browser.script_errors();
        assert!(errors.iter().any(|error| error.contains("planted")), "{name}: {errors:?}");
    }
    for (from, to, fault) in [
        ("<main>", "<main><div style=\"width: 2000px\">.</div>", "the page is"),
        ("automargin: true", "automargin: false", "is cut"),
        (".scroll thead { display: none; }", "td { white-space: nowrap !important; }", "a table is wider"),
    ] {
        assert!(whole.contains(from), "{from}");
        open(&mut browser, "planted-fault.html", &whole.replace(from, to));
        browser.emulate(if fault == "is cut" { 1280 } else { 390 }, 900, "light");
        browser.wait(DRAWN);
        let faults = browser.evaluate(FAULTS).to_string();
        assert!(faults.contains(fault), "{fault}: {faults}");
    }
    // A page whose plots cannot be drawn must not count as one that shows them.
    browser.open(&write("planted-library.html", &whole.replace("Plotly.react(", "void (")));
    browser.wait("document.documentElement.dataset.plots === 'drawn'");
    assert_eq!(browser.evaluate(&format!("Boolean({DRAWN})")), false);
}

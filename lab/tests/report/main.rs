//! Reports as text, and as a real browser shows them.
//!
//! Without Chromium the tests that need it are skipped.
//! The pages stay in `target/tmp/report`, to be looked at.

mod browser;
mod fixture;

use std::path::PathBuf;

use browser::Browser;
use dormouse_lab::{Report, report};
use serde_json::Value;

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

/// The figures of a page, as `page.js` reads them.
fn figures(html: &str) -> Vec<Value> {
    let parts = html.split("<script type=\"application/json\">").skip(1);
    let parts = parts.map(|part| part.split("</script>").next().expect("the block ends"));
    parts.map(|json| serde_json::from_str(json).expect("the block is JSON")).collect()
}

fn titles(html: &str) -> Vec<&str> {
    let parts = html.split("<figcaption><h3>").skip(1);
    parts.map(|part| part.split("</h3>").next().expect("the heading ends")).collect()
}

#[test]
fn plots_are_chosen_by_labels() {
    let html = html(&fixture::full());
    let expected = [
        "event: Ratios with their 95 % intervals",
        "compile-job: Ratios with their 95 % intervals",
        "Cost by set of fields: armed",
        "Cost by set of fields: dormant",
        "Cost against memory pressure: armed",
        "Cost against memory pressure: dormant",
        "Cost against threads: armed",
        "Cost against threads: dormant",
        "Cost against sites",
        "Cost by mode",
        "Distribution of the rounds: armed",
        "Distribution of the rounds: dormant",
        "Rounds in their order: armed",
        "Rounds in their order: dormant",
    ];
    assert_eq!(titles(&html)[..expected.len()], expected);
    assert_eq!(titles(&html).last(), Some(&"Rounds in their order"), "the compile job has them too");
    assert_eq!(figures(&html).len(), titles(&html).len());
    assert!(html.len() < 5 << 20, "{} bytes", html.len());
}

#[test]
fn memory_pressure_goes_from_hot_to_far() {
    let html = html(&fixture::full());
    let figures = figures(&html);
    let place = titles(&html).iter().position(|title| *title == "Cost against memory pressure: armed").unwrap();
    let view = &figures[place]["views"][0];
    assert_eq!(view["layout"]["xaxis"]["ticktext"], serde_json::json!(["hot", "L1", "L2", "L3"]));
    let traces = view["traces"].as_array().unwrap();
    // Four tools, each at random and in order; the latter at L2 alone.
    assert_eq!(traces.len(), 8);
    assert_eq!(traces[0]["x"], serde_json::json!([0.0, 1.0, 2.0, 3.0]));
    assert_eq!(traces[1]["x"], serde_json::json!([2.0]));
    assert!(traces[0]["error_y"]["array"].as_array().unwrap().iter().all(|bar| bar.as_f64().unwrap() > 0.0));
}

#[test]
fn words_and_tables_have_every_figure() {
    let full = fixture::full();
    let html = html(&full);
    for experiment in &full.experiments {
        assert!(
            experiment
                .measurements
                .iter()
                .all(|m| html.contains(&format!("<th scope=\"row\">{}</th>", m.name.replace('_', "_<wbr>"))))
        );
        assert!(experiment.notes.iter().all(|note| html.contains(note.as_str())));
    }
    assert!(html.contains("<a href=\"#experiment-0\">2 warnings</a>"));
    assert!(html.contains("<li class=\"quiet\">hardware counters not available"));
    assert!(html.contains("armed <span class=\"quiet\">vs</span> lttng ust"));
    assert!(html.matches("<b>cheaper</b>").count() >= 3 && html.contains("<b>no difference shown</b>"));
    assert!(html.contains("dormouse armed, u64: 14"), "plots are said in words");
    assert!(html.contains("TSC cycles") && html.contains("branch misses"));
}

#[test]
fn a_report_survives_its_file() {
    let odd = fixture::odd();
    let read: Report =
        serde_json::from_str(&serde_json::to_string(&odd).unwrap()).expect("what is no number can be read");
    assert!(read.experiments[5].measurements[0].median.is_nan());
    html(&read);
}

#[test]
fn what_is_missing_is_said() {
    let html = html(&fixture::odd());
    assert!(html.contains("There are no measurements of it in this file."));
    assert_eq!(html.matches("There are no rounds in this file").count(), 1);
    let empty = Report { experiments: Vec::new(), ..fixture::odd() };
    let html = self::html(&empty);
    assert!(html.contains("There are no experiments in this file.") && html.len() < 1 << 16);
}

#[test]
fn hostile_text_stays_text() {
    let html = html(&fixture::hostile());
    // Of tags, only those that the page has anyway.
    assert!(!html.contains("<script>window.hit") && !html.contains("<img src=x"));
    assert!(!figures(&html).is_empty());
    let with_hostile = |text: &str| text.contains("window.hit");
    for block in
        html.split("<script type=\"application/json\">").skip(1).map(|part| part.split("</script>").next().unwrap())
    {
        assert!(!block.contains('<'), "{block}");
    }
    assert!(with_hostile(&html), "the text itself is shown");
}

/// What a browser draws of a page: for each figure its title, traces, marks and sizes.
const LOOK: &str = r#"[...document.querySelectorAll("figure")].filter((figure) => {
    return figure.querySelector(".plot").clientWidth;
}).map((figure) => {
    const box = figure.querySelector(".plot");
    const outer = box.getBoundingClientRect();
    const svg = box.querySelector(".plotly .main-svg");
    const inner = svg?.getBoundingClientRect();
    const marks = [...box.querySelectorAll(".cartesianlayer .trace")].filter((trace) => {
        const { width, height, left, right } = trace.getBoundingClientRect();
        return (width > 0 || height > 0) && right > outer.left && left < outer.right;
    });
    return {
        title: figure.querySelector("h3").textContent,
        traces: box.data?.length ?? 0,
        marks: marks.length,
        width: inner?.width ?? 0, height: inner?.height ?? 0,
        boxWidth: box.clientWidth,
        background: svg ? getComputedStyle(svg).backgroundColor : "",
        ink: getComputedStyle(box.querySelector(".xtick text") ?? box).fill,
        labels: box.querySelectorAll(".xtick text").length,
        alternative: box.getAttribute("aria-label"),
    };
})"#;

/// All that is in sight is drawn, at the present width and in the present scheme.
const DRAWN: &str = r#"document.documentElement.dataset.plots === "drawn"
&& [...document.querySelectorAll("figure")].every((figure) => {
    const box = figure.querySelector(".plot");
    return !box.clientWidth || figure.dataset.drawn === document.documentElement.dataset.scheme
        && box.querySelector(".main-svg")?.getBoundingClientRect().width === box.clientWidth;
})"#;

/// Looks at all plots in one size and scheme, and returns what was seen with the colours of the page.
fn look(browser: &mut Browser, width: u32, scheme: &str) -> (Vec<Value>, String) {
    browser.emulate(width, 900, scheme);
    browser
        .wait(&format!("innerWidth === {width} && document.documentElement.dataset.scheme === '{scheme}' && {DRAWN}"));
    let scroll = browser.evaluate("document.scrollingElement.scrollWidth").as_u64().unwrap();
    assert!(scroll <= u64::from(width), "the page is {scroll} wide at {width}");
    let seen = browser.evaluate(LOOK);
    let page = browser.evaluate("getComputedStyle(document.body).backgroundColor");
    (seen.as_array().unwrap().clone(), page.as_str().unwrap().into())
}

fn check(seen: &[Value]) {
    for plot in seen {
        assert!(plot["width"].as_f64() > Some(200.0) && plot["height"].as_f64() > Some(60.0), "{plot}");
        assert_eq!(plot["width"], plot["boxWidth"], "{plot}");
        assert!(plot["traces"].as_u64() > Some(0), "{plot}");
        assert!(plot["labels"].as_u64() > Some(1), "{plot}");
        assert!(plot["alternative"].as_str().unwrap().len() > 30, "{plot}");
    }
}

#[test]
fn a_browser_shows_every_plot() {
    let Some(program) = browser::program() else { return };
    let html = html(&fixture::full());
    let page = write("full.html", &html);
    let mut browser = Browser::start(&program);
    browser.emulate(1280, 900, "light");
    browser.open(&page);
    browser.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })");
    let mut colours = Vec::new();
    for width in [1280, 360] {
        for scheme in ["light", "dark"] {
            let (seen, background) = look(&mut browser, width, scheme);
            let seen_titles: Vec<&str> = seen.iter().map(|plot| plot["title"].as_str().unwrap()).collect();
            assert_eq!(seen_titles, titles(&html), "{width} {scheme}");
            check(&seen);
            // All cases of this file are in sight: each trace has marks.
            seen.iter().for_each(|plot| assert_eq!(plot["marks"], plot["traces"], "{plot}"));
            let of = |member: &str| seen[0][member].as_str().unwrap().to_string();
            assert!(seen.iter().all(|plot| plot["background"] == of("background") && plot["ink"] == of("ink")));
            colours.push((background, of("background"), of("ink")));
        }
    }
    assert!(colours[0] == colours[2] && colours[1] == colours[3], "{colours:?}");
    assert!(
        colours[0].0 != colours[1].0 && colours[0].1 != colours[1].1 && colours[0].2 != colours[1].2,
        "{colours:?}"
    );
    assert_eq!(browser.script_errors(), Vec::<String>::new());
    assert!(
        browser.requests().iter().all(|url| url.starts_with("file://") || url.starts_with("data:")),
        "{:?}",
        browser.requests()
    );
}

#[test]
fn readers_can_choose() {
    let Some(program) = browser::program() else { return };
    let page = write("choose.html", &html(&fixture::full()));
    let mut browser = Browser::start(&program);
    browser.emulate(1280, 900, "light");
    browser.open(&page);
    browser.wait(DRAWN);
    // Every view of every plot in sight.
    let count =
        browser.evaluate("document.querySelectorAll('main > section > figure .views button').length").as_u64().unwrap();
    assert!(count > 10, "{count}");
    for number in 0..count {
        let button = format!("document.querySelectorAll('main > section > figure .views button')[{number}]");
        browser.evaluate(&format!("{button}.click()"));
        assert_eq!(browser.evaluate(&format!("{button}.getAttribute('aria-pressed')")), "true");
        let marks = format!("{button}.closest('figure').querySelectorAll('.cartesianlayer .trace').length");
        assert!(browser.evaluate(&marks).as_u64() > Some(0), "view {number}");
    }
    // What the legend names is hidden and comes back.
    let marks = "document.querySelector('#plot-2 .plot').querySelectorAll('.cartesianlayer .trace').length";
    let before = browser.evaluate(marks).as_u64().unwrap();
    for expected in [before - 1, before] {
        browser.evaluate("document.querySelector('#plot-2 .legend button').click()");
        assert_eq!(browser.evaluate(marks), expected);
    }
    // The reader's scheme goes before the system's, also when the page is opened again.
    assert_eq!(browser.evaluate("document.documentElement.dataset.scheme"), "light");
    browser.evaluate("document.getElementById('scheme').click()");
    browser.wait(&format!("document.documentElement.dataset.scheme === 'dark' && {DRAWN}"));
    browser.open(&page);
    browser.wait(&format!("document.documentElement.dataset.scheme === 'dark' && {DRAWN}"));
    assert_eq!(browser.script_errors(), Vec::<String>::new());
}

#[test]
fn odd_and_hostile_files_give_a_page() {
    let Some(program) = browser::program() else { return };
    let mut browser = Browser::start(&program);
    for (name, report) in [("odd.html", fixture::odd()), ("hostile.html", fixture::hostile())] {
        let html = html(&report);
        browser.emulate(360, 900, "light");
        browser.open(&write(name, &html));
        browser.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })");
        let (seen, _) = look(&mut browser, 360, "dark");
        assert_eq!(seen.len(), titles(&html).len(), "{name}");
        check(&seen);
        assert_eq!(browser.evaluate("typeof window.hit"), "undefined", "{name}");
        assert_eq!(browser.evaluate("document.querySelectorAll('.plot a, main img').length"), 0, "{name}");
        assert_eq!(browser.script_errors(), Vec::<String>::new(), "{name}");
    }
}

/// That nothing is found says something only if something would be.
#[test]
fn errors_of_scripts_are_found() {
    let Some(program) = browser::program() else { return };
    let planted = [
        ("exception", "setTimeout(() => { throw new Error('planted'); });"),
        ("console", "console.error('planted');"),
        ("load", "fetch('https://planted.invalid/').catch(() => {});"),
    ];
    let whole = html(&fixture::odd());
    for (name, script) in planted {
        let mut browser = Browser::start(&program);
        let page = whole.replace("</body>", &format!("<script>{script} window.isPlanted = true;</script></body>"));
        browser.open(&write(&format!("planted-{name}.html"), &page));
        browser.wait(&format!("window.isPlanted && {DRAWN}"));
        let errors = browser.script_errors();
        assert!(errors.iter().any(|error| error.contains("planted")), "{name}: {errors:?}");
    }
    // And a page whose plots cannot be drawn is not taken for one that shows them.
    let mut browser = Browser::start(&program);
    browser.open(&write("planted-library.html", &whole.replace("Plotly.react(", "void (")));
    browser.wait("document.documentElement.dataset.plots === 'drawn'");
    assert_eq!(browser.evaluate(&format!("Boolean({DRAWN})")), false);
}

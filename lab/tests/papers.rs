//! Every statement of every paper, judged by made-up rounds: each verdict occurs when the rounds require it.

use std::collections::BTreeMap;

use dormouse_lab::experiments::EXPERIMENTS;
use dormouse_lab::paper::Paper;
use dormouse_lab::statistics::measurement;
use dormouse_lab::{Experiment, Judged, Verdict};

const ROUNDS: usize = 12;

/// Parses a sum: measurements with their factors.
fn terms(sum: &str) -> BTreeMap<String, f64> {
    let mut terms = BTreeMap::new();
    let mut sign = 1.0;
    for part in sum.replace(" + ", " ; + ; ").replace(" - ", " ; - ; ").split(" ; ") {
        match part {
            "+" => sign = 1.0,
            "-" => sign = -1.0,
            term => {
                let (factor, name) = term.split_once(" * ").unwrap_or(("1", term));
                *terms.entry(name.to_string()).or_default() += sign * factor.parse::<f64>().unwrap();
            }
        }
    }
    terms
}

/// Returns values of measurements for which a ratio has the value `target`.
fn solve(ratio: &str, target: f64) -> BTreeMap<String, f64> {
    let (of, to) = ratio.split_once(" ÷ ").map_or((ratio, None), |(of, to)| (of, Some(to)));
    let side = |sum: &str| terms(sum.trim_matches(['(', ')']));
    let (of, to) = (side(of), to.map(side).unwrap_or_default());
    let mut values: BTreeMap<String, f64> = BTreeMap::new();
    for (name, factor) in of.iter().chain(&to) {
        values.insert(name.clone(), if *factor > 0.0 { 3.0 } else { 1.0 });
    }
    let sum = |terms: &BTreeMap<String, f64>, values: &BTreeMap<String, f64>| -> f64 {
        terms.iter().map(|(name, factor)| factor * values[name]).sum()
    };
    let divisor = if to.is_empty() { 1.0 } else { sum(&to, &values) };
    let (free, factor) =
        of.iter().find(|(name, _)| !to.contains_key(*name)).expect("a measurement that is not below too");
    let rest = sum(&of, &values) - factor * values[free];
    values.insert(free.clone(), (target * divisor - rest) / factor);
    values
}

/// Returns an experiment in which a statement's ratio has these values, round by round.
fn experiment(name: &str, ratio: &str, targets: &[f64]) -> Experiment {
    let mut rounds: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for target in targets {
        for (name, value) in solve(ratio, *target) {
            rounds.entry(name).or_default().push(value);
        }
    }
    let measurements = rounds.iter().map(|(name, rounds)| measurement(name, "ns", rounds)).collect();
    Experiment { name: name.into(), measurements, ..Experiment::default() }
}

/// Returns a value in the range, and one outside of it.
fn inside_and_outside(range: &str) -> [f64; 2] {
    let number = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("{range}"));
    let beyond = |edge: f64| 0.5 * edge.abs().max(1.0);
    match (range.strip_prefix("above "), range.strip_prefix("below "), range.split_once(" to ")) {
        (Some(low), ..) => [number(low) + beyond(number(low)), number(low) - beyond(number(low))],
        (_, Some(high), _) => [number(high) - beyond(number(high)), number(high) + beyond(number(high))],
        (.., Some((low, high))) => [(number(low) + number(high)) / 2.0, number(high) + beyond(number(high))],
        _ => panic!("a range that is none: {range}"),
    }
}

fn judge(paper: &Paper, index: usize, experiment: &Experiment) -> Judged {
    paper.judge(experiment).swap_remove(index)
}

#[test]
fn every_verdict_depends_on_the_measurements() {
    let mut count = 0;
    for known in EXPERIMENTS {
        let Some(paper) = known.paper() else { continue };
        let nothing = Experiment { name: known.name.into(), ..Experiment::default() };
        for (index, unmeasured) in paper.judge(&nothing).into_iter().enumerate() {
            assert_eq!(unmeasured.verdict, Verdict::NotMeasured, "{unmeasured:?}");
            assert!(!unmeasured.why.is_empty(), "{unmeasured:?}");
            if unmeasured.range.is_empty() {
                continue;
            }
            count += 1;
            let [inside, outside] = inside_and_outside(&unmeasured.range);
            let mixed: Vec<f64> = (0..ROUNDS).map(|round| if round % 2 == 0 { inside } else { outside }).collect();
            for (targets, verdict) in [
                (vec![inside; ROUNDS], Verdict::Holds),
                (vec![outside; ROUNDS], Verdict::DoesNotHold),
                (mixed, Verdict::CannotBeTold),
                (vec![inside; 5], Verdict::CannotBeTold),
            ] {
                let judged = judge(&paper, index, &experiment(known.name, &unmeasured.ratio, &targets));
                assert_eq!(judged.verdict, verdict, "by {targets:?}: {judged:#?}");
            }
        }
    }
    assert!(count > 0);
}

/// Reads its `paper.toml` again, so that errors in it are reported.
fn read(name: &str) -> Paper {
    let file = format!("{}/experiments/{}/paper.toml", env!("CARGO_MANIFEST_DIR"), name.replace('-', "_"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let paper = Paper::parse(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
    let table: toml::Table = text.parse().unwrap();
    let array =
        |of: &toml::Table, key: &str| of.get(key).and_then(|value| value.as_array().cloned()).unwrap_or_default();
    let places: Vec<_> = array(&table, "place").iter().map(|place| place["name"].clone()).collect();
    for statement in array(&table, "statement") {
        for place in array(statement.as_table().unwrap(), "at") {
            assert!(places.contains(&place), "{file}: there is no place {place}, which {statement} names");
        }
    }
    paper
}

/// Checks that the page of the papers was made from the stored result of this machine and the current papers.
#[test]
fn the_page_of_the_papers_is_current() {
    let root = env!("CARGO_MANIFEST_DIR");
    let result = dormouse_lab::compare::load(format!("{root}/results/full.json.gz").as_ref()).unwrap();
    let page = std::fs::read_to_string(format!("{root}/PAPERS.md")).unwrap();
    let written = dormouse_lab::report::papers(Some(&result));
    let line = page.lines().zip(written.lines()).take_while(|(there, now)| there == now).count() + 1;
    let remedy = "`dormouse lab papers lab/results/full.json.gz -o lab/PAPERS.md` writes it anew";
    assert!(page == written, "lab/PAPERS.md is not current, from line {line} on: {remedy}");
}

fn is_line(text: &str) -> bool {
    let ends = text.split('–').map(|line| line.parse::<u32>().ok()).collect::<Option<Vec<_>>>();
    ends.is_some_and(|ends| ends.len() <= 2 && ends.is_sorted_by(|first, last| first < last))
}

#[test]
fn every_paper_can_be_read_and_says_where_its_figures_come_from() {
    for known in EXPERIMENTS.iter().filter(|known| known.paper().is_some()) {
        let paper = read(known.name);
        for text in [&paper.cite, &paper.title, &paper.machine, &paper.lines] {
            assert!(text.len() > 1, "{}: {paper:?}", known.name);
        }
        let nothing = Experiment { name: known.name.into(), ..Experiment::default() };
        for judged in paper.judge(&nothing) {
            assert!(is_line(&judged.line), "{judged:?}");
        }
        for table in paper.tables(&nothing) {
            assert!(!table.rows.is_empty(), "{table:?}");
            for row in &table.rows {
                assert!(row.len() == table.head.len() && (row[0].is_empty() || is_line(&row[0])), "{row:?}");
                // Nothing was measured: a cell of the paper is as the paper has it, and a cell of this machine has no
                // figure.
                assert!(row.iter().skip(3).step_by(2).all(|here| ["", "–"].contains(&here.as_str())), "{row:?}");
            }
        }
    }
}

#[test]
fn a_verdict_names_the_effect_that_its_rounds_show_and_an_older_result_the_lines_that_have_changed() {
    let text = "cite = 'A'\ntitle = 'B'\nmachine = 'C'\nlines = 'D'\n\
                place = [{ name = 'ratio', parts = ['time'], effect = {} }, \
                         { name = 'difference', parts = ['cost'], effect = { of = ['whole', \"a build's time\"] } }]\n\
                [[changed]]\non = '2026-11-29'\npart = '{0}.a'\nnow = 'a is another'\n\
                [[statement]]\nsays = '1–2: S'\ntrue_if = '{0}.a / {0}.b is above 1'\n";
    let paper = Paper::parse(text).unwrap();
    // The deviation of a is a hundredth of its median; by the bootstrap of these twelve rounds the effect is about
    // 2.8 standard errors of that median.
    let spread: Vec<f64> = (0..ROUNDS).map(|round| 100.0 + (round as f64 - 5.5) * 0.29).collect();
    let rounds = |name: &str, rounds: &[f64]| measurement(name, "s", rounds);
    let measurements = vec![
        rounds("time.a", &spread),
        rounds("time.b", &[100.0; ROUNDS]),
        rounds("cost.a", &spread),
        rounds("cost.b", &[99.0; ROUNDS]),
        rounds("whole", &[1_000.0; ROUNDS]),
    ];
    let judged = paper.judge(&Experiment { measurements, ..Experiment::default() });
    let percent = |index: usize, after: &str, end: &str| -> f64 {
        let shown = &judged[index].shown;
        let number = shown.strip_prefix(after).and_then(|rest| rest.strip_suffix(end));
        number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{shown}"))
    };
    let effect = percent(0, "12 rounds show an effect of ", " %");
    let share = percent(1, "12 rounds show a difference of ", " % of a build's time");
    assert!((0.7..1.7).contains(&effect) && (share - effect / 10.0).abs() < 0.02, "{judged:#?}");
    assert!(dormouse_lab::paper::grid(&judged).text().contains("; 12 rounds show an effect of "));
    assert_eq!(
        paper.outdated("2026-11-25T18:38:30Z"),
        ["To be measured again, lines 1–2: since 2026-11-29 a is another."]
    );
    assert_eq!(paper.outdated("2026-11-29T12:00:00Z"), [""; 0]);
}

#[test]
fn errors_in_expressions_are_reported() {
    let paper = |true_if: &str, cell: &str| {
        let text = format!(
            "cite = 'A'\ntitle = 'B'\nmachine = 'C'\nlines = 'D'\n\
             [[table]]\ntitle = 'T'\nunit = 'ns'\ncolumns = ['c']\nrows = [{{ text = 'r', here = ['{cell}'] }}]\n\
             [[statement]]\nsays = '1: S'\ntrue_if = '{true_if}'\n"
        );
        Paper::parse(&text).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(paper("(2 * a - b) / (c + 1e9 * d) is 0.9 to 1.1", "(-1 * a + b) / 2 * c"), Ok(()));
    for (true_if, cell, why) in [
        ("a is above 1", "1,000 * a", "`1,000` is not a number"),
        ("a is above 1", "inf * a", "`inf` is not a number"),
        ("a is above 1", "a / b - c", "stands in parentheses"),
        ("a - b / c is above 1", "", "stands in parentheses"),
        ("a is above 1", "a b", "`a b` is not the name"),
        ("x * a is above 1", "", "`x` is not a number"),
        ("a is above all", "", "`all` is not a number"),
        ("a", "", "`a` ends in none of"),
        ("a is 1", "", "`a is 1` ends in none of"),
    ] {
        let error = paper(true_if, cell).expect_err("a mistake");
        assert!(error.contains(why), "{true_if}, {cell}: {error}");
    }
}

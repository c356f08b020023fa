//! Every statement of every paper, judged by made-up rounds: the verdict follows the rounds, each way.

use std::collections::BTreeMap;

use dormouse_lab::experiments::EXPERIMENTS;
use dormouse_lab::paper::Paper;
use dormouse_lab::statistics::measurement;
use dormouse_lab::{Experiment, Judged, Verdict};

const ROUNDS: usize = 12;

/// What a sum is of: measurements with their factors.
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

/// Values of measurements by which a ratio has this value.
fn solve(ratio: &str, target: f64) -> BTreeMap<String, f64> {
    let (of, to) = ratio.split_once(" ÷ ").map_or((ratio, None), |(of, to)| (of, Some(to)));
    let of = terms(of);
    let to = to.map(|to| terms(to.trim_matches(['(', ')']))).unwrap_or_default();
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

/// An experiment in which a statement's ratio has these values, round by round.
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

/// A value in the range, and one that is not.
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
fn no_verdict_stays_the_same_whatever_is_measured() {
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

#[test]
fn every_paper_can_be_read_and_says_where_its_figures_come_from() {
    for known in EXPERIMENTS.iter().filter(|known| known.has_paper()) {
        let paper = known.paper().unwrap_or_else(|| panic!("the paper of {}", known.name));
        for text in [&paper.cite, &paper.title, &paper.machine, &paper.lines] {
            assert!(text.len() > 1, "{}: {paper:?}", known.name);
        }
    }
}

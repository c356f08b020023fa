//! Merges two results: rows that this machine cannot measure, such as those of hyperthreads or two sockets, come from
//! another machine's.
//!
//! ```text
//!   A: measurements ── a statement or cell of a table is of A, if A has all its measurements
//!   B: measurements ── otherwise of B, if B has them all, marked; never of both
//! ```

use crate::experiments::EXPERIMENTS;
use crate::{Elsewhere, Experiment, Report, Verdict};

/// Letters of the machines whose rows are marked.
const MARKS: &str = "BCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Adds the measurements of `b` to `a`, as those of another machine, and judges the statements of their papers anew.
///
/// # Errors
/// If `a` has as many machines as there are letters.
pub fn merge(mut a: Report, b: Report) -> Result<Report, String> {
    let used = a.experiments.iter().flat_map(|experiment| &experiment.elsewhere).map(|there| there.mark.as_str());
    let used: Vec<&str> = used.collect();
    let mark = MARKS.split("").find(|mark| !mark.is_empty() && !used.contains(mark));
    let mark = mark.ok_or("the result has as many machines as the alphabet has letters")?.to_string();
    let machine = format!("{}, {}", b.host, b.host.measured);
    for experiment in b.experiments {
        let there = Elsewhere { mark: mark.clone(), machine: machine.clone(), measurements: experiment.measurements };
        match a.experiments.iter_mut().find(|found| found.name == experiment.name) {
            Some(found) => found.elsewhere.push(there),
            None => {
                let elsewhere = vec![there];
                a.experiments.push(Experiment { name: experiment.name, elsewhere, ..Experiment::default() });
            }
        }
    }
    for experiment in a.experiments.iter_mut().filter(|found| found.elsewhere.last().is_some_and(|of| of.mark == mark))
    {
        experiment.statements = judged(experiment);
    }
    Ok(a)
}

/// Returns the statements of an experiment's paper, judged by its measurements.
fn judged(experiment: &Experiment) -> Vec<crate::Judged> {
    let paper = crate::experiments::find(&experiment.name).and_then(|known| known.paper());
    paper.map(|paper| paper.judge(experiment)).unwrap_or_default()
}

/// Returns what a result has not measured and an experiment could: experiment, statement, place and reason.
pub fn unmeasured(report: &Report) -> Vec<[String; 4]> {
    let mut rows = Vec::new();
    for known in &EXPERIMENTS {
        let nothing = Experiment { name: known.name.into(), ..Experiment::default() };
        let experiment = report.experiments.iter().find(|found| found.name == known.name).unwrap_or(&nothing);
        let judged = judged(experiment).into_iter();
        let missing = judged.filter(|judged| judged.verdict == Verdict::NotMeasured && !judged.range.is_empty());
        rows.extend(missing.map(|judged| [known.name.into(), judged.text, judged.place, judged.why]));
    }
    rows
}

/// Returns the command that measures these rows on another machine.
pub fn command(rows: &[[String; 4]]) -> String {
    let mut names: Vec<&str> = rows.iter().map(|[experiment, ..]| experiment.as_str()).collect();
    names.dedup();
    format!("dormouse lab run {} --json B.json", names.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Host;
    use crate::statistics::measurement;

    fn report(experiments: Vec<Experiment>, kernel: &str) -> Report {
        Report { schema: 1, host: Host { kernel: kernel.into(), ..Host::default() }, experiments }
    }

    fn experiment(name: &str, figures: &[(&str, f64)]) -> Experiment {
        let figures = figures.iter().map(|(name, value)| measurement(name, "ns", &[*value; 8]));
        Experiment { name: name.into(), measurements: figures.collect(), ..Experiment::default() }
    }

    #[test]
    fn a_row_is_of_one_machine_and_marked_if_it_is_the_other() {
        // The statement on hyperthreads takes both rings. A has one of them, which B must not complete.
        let of_a = experiment(
            "vring",
            &[("stream.shadow.1", 1.0), ("stream.noshadow.1", 2.0), ("stream.shadow.1.hyperthreads", 9.0)],
        );
        let of_b = experiment(
            "vring",
            &[
                ("stream.shadow.1", 5.0),
                ("stream.noshadow.1", 1.0),
                ("stream.shadow.1.hyperthreads", 1.0),
                ("stream.noshadow.1.hyperthreads", 1.0),
            ],
        );
        let merged =
            merge(report(vec![of_a], "6.1"), report(vec![of_b.clone(), experiment("imv", &[("x", 1.0)])], "6.2"))
                .unwrap();
        assert_eq!(merged.experiments[0].measurements.len(), 3);
        let statements = &merged.experiments[0].statements;
        let of = |place: &str| statements.iter().find(|judged| judged.place == place && judged.value.is_some());
        let (near, apart) = (of("near").unwrap(), of("hyperthreads").unwrap());
        assert_eq!((near.mark.as_str(), near.value), ("", Some(0.5)));
        assert_eq!((apart.mark.as_str(), apart.value), ("B", Some(1.0)));
        assert!(crate::report::text(&merged, true).contains("(B)"));
        assert!(crate::report::papers(Some(&merged)).contains("Rows marked B were measured on"));
        assert_eq!(merged.experiments[1].elsewhere[0].mark, "B");
        // A third machine has the next letter, and the second one still comes first.
        let again = merge(merged, report(vec![of_b], "6.3")).unwrap();
        let marks: Vec<&str> = again.experiments[0].elsewhere.iter().map(|there| there.mark.as_str()).collect();
        assert_eq!(marks, ["B", "C"]);
        let text = serde_json::to_string(&again).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), again);
    }

    #[test]
    fn the_command_names_the_experiments_with_rows_that_are_missing() {
        let rows = unmeasured(&report(vec![experiment("vring", &[])], ""));
        assert!(rows.iter().any(|[name, _, place, why]| name == "vring" && place == "hyperthreads" && !why.is_empty()));
        let names: Vec<_> =
            EXPERIMENTS.iter().filter(|known| known.paper().is_some()).map(|known| known.name).collect();
        let command = command(&rows);
        assert!(command.starts_with("dormouse lab run ") && command.ends_with(" --json B.json"), "{command}");
        assert!(names.iter().filter(|name| command.contains(*name)).count() >= 5, "{command}");
    }
}

//! Thirumalai's (2003) four statements, and what this machine says to each.
//!
//! ```text
//!   statement   two ways, and the range in which their ratio is if it is true
//!   figures     hot; 4,096 counters; one, eight, driven out of L2; a build's accounting
//!   verdict     the whole interval is in the range: holds; it is outside: does not hold; else: cannot be told
//! ```
//!
//! # Source
//! Ravikiran G. Thirumalai, "Re: \[PATCH 4/3\] Replace dynamic percpu implementation", 22 May 2003: four processors (Pentium III
//! Xeon), kernbench, profile ticks in `vm_enough_memory`.

use std::fmt::Write;

use crate::statistics::ratio;
use crate::{Experiment, Measurement, Ratio};

/// A statement: in words, the ratio that it is about, and where that is if it is true.
struct Statement {
    words: &'static str,
    of: &'static str,
    to: &'static str,
    is: fn(f64) -> bool,
    claim: &'static str,
}

/// As good as equal.
fn is_similar(ratio: f64) -> bool {
    (0.9..=1.1).contains(&ratio)
}

const STATEMENTS: [Statement; 5] = [
    Statement {
        words: "1. Static areas are better than an array of pointers (there: by 6.5 %).",
        of: "static",
        to: "pointer-array",
        is: |ratio| ratio < 1.0,
        claim: "below 1",
    },
    Statement {
        words: "2. Pointer arithmetic without interlacing and static areas are similar.",
        of: "contiguous",
        to: "static",
        is: is_similar,
        claim: "0.9 to 1.1",
    },
    Statement {
        words: "3. Blocks with a shared offset table are similar to static areas.",
        of: "offset-table",
        to: "static",
        is: is_similar,
        claim: "0.9 to 1.1",
    },
    Statement {
        words: "4. The offset table's dereference is not significant: interlacing offsets it against pointer arithmetic.",
        of: "offset-table",
        to: "contiguous",
        is: |ratio| ratio <= 1.1,
        claim: "up to 1.1",
    },
    Statement {
        words: "Its todo: pointer arithmetic with interlacing is at least as good as blocks with an offset table.",
        of: "interlaced",
        to: "offset-table",
        is: |ratio| ratio <= 1.05,
        claim: "up to 1.05",
    },
];

/// Where it is looked: a shape or the application, and what is said of it.
const PLACES: [(&str, &str, &str); 8] = [
    ("hot", "", "one counter, hot"),
    ("random", "", "4,096 counters"),
    ("one", ".L2", "one, cold"),
    ("eight", ".L2", "eight together, cold"),
    ("random", ".of-32", "4,096 counters, of 32 CPUs"),
    ("one", ".L2.of-32", "one, cold, of 32 CPUs"),
    ("eight", ".L2.of-32", "eight, cold, of 32 CPUs"),
    ("account", "", "a build's accounting"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Holds,
    DoesNotHold,
    CannotBeTold,
}

impl Verdict {
    fn of(ratio: &Ratio, is: fn(f64) -> bool) -> Verdict {
        let [low, high] = ratio.ci95;
        // The ranges have no gaps, so an interval whose ends and middle are outside on one side is outside.
        match (is(low), is(high), is(ratio.value)) {
            (true, true, _) => Verdict::Holds,
            (false, false, false) if (low > 1.0) == (high > 1.0) => Verdict::DoesNotHold,
            _ => Verdict::CannotBeTold,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::DoesNotHold => "does not hold",
            Verdict::CannotBeTold => "cannot be told",
        }
    }
}

fn compared(experiment: &Experiment, statement: &Statement, place: (&str, &str, &str)) -> Option<(Ratio, Verdict)> {
    let (shape, pressure, _) = place;
    let find = |way: &str| -> Option<&Measurement> {
        let name = format!("{shape}.{way}{pressure}");
        experiment.measurements.iter().find(|measurement| measurement.name == name)
    };
    let ratio = ratio(shape, &find(statement.of)?.samples, &find(statement.to)?.samples)?;
    let verdict = Verdict::of(&ratio, statement.is);
    Some((ratio, verdict))
}

/// Tables of the statements; nothing for another experiment.
pub(crate) fn tables(experiment: &Experiment) -> String {
    let mut text = String::new();
    if experiment.name != "percpu" {
        return text;
    }
    // Writing to a String does not fail.
    for statement in &STATEMENTS {
        let found: Vec<_> =
            PLACES.into_iter().filter_map(|place| Some((place.2, compared(experiment, statement, place)?))).collect();
        if found.is_empty() {
            continue;
        }
        let Statement { words, of, to, claim, .. } = statement;
        let _ = writeln!(text, "  {words}\n    {of} ÷ {to}, {claim} if it is true:");
        for (place, (ratio, verdict)) in found {
            let interval = format!("[{:.3}, {:.3}]", ratio.ci95[0], ratio.ci95[1]);
            let _ = writeln!(text, "      {place:27} {:>8.3} {interval:>18}   {}", ratio.value, verdict.words());
        }
        let _ = writeln!(text);
    }
    text
}

/// In a line.
pub(crate) fn conclusion(experiment: &Experiment) -> Option<String> {
    let verdicts = |statement: &Statement| {
        let all = PLACES.into_iter().filter_map(|place| Some((place.2, compared(experiment, statement, place)?.1)));
        let holding: Vec<&str> =
            all.filter(|(_, verdict)| *verdict == Verdict::Holds).map(|(place, _)| place).collect();
        holding
    };
    let hold = |statement: &Statement| match verdicts(statement).as_slice() {
        [] => "nowhere".to_string(),
        places => places.join(", "),
    };
    let found = STATEMENTS
        .iter()
        .any(|statement| PLACES.into_iter().any(|place| compared(experiment, statement, place).is_some()));
    found.then(|| {
        let [first, second, third, fourth, todo] = STATEMENTS.each_ref().map(hold);
        format!(
            "of the statements of Thirumalai (2003) holds: the first ({first}), the second ({second}), the third ({third}), the fourth \
             ({fourth}), its todo ({todo})"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::measurement;

    fn ratio_of(low: f64, value: f64, high: f64) -> Ratio {
        Ratio { name: String::new(), value, ci95: [low, high], means: None }
    }

    #[test]
    fn a_verdict_is_the_whole_intervals() {
        assert_eq!(Verdict::of(&ratio_of(0.95, 1.0, 1.05), is_similar), Verdict::Holds);
        assert_eq!(Verdict::of(&ratio_of(0.85, 1.0, 1.05), is_similar), Verdict::CannotBeTold);
        assert_eq!(Verdict::of(&ratio_of(0.5, 1.0, 1.5), is_similar), Verdict::CannotBeTold);
        assert_eq!(Verdict::of(&ratio_of(0.5, 0.6, 0.8), is_similar), Verdict::DoesNotHold);
        assert_eq!(Verdict::of(&ratio_of(1.2, 1.3, 1.5), |ratio| ratio < 1.0), Verdict::DoesNotHold);
    }

    #[test]
    fn statements_are_judged_where_they_were_measured() {
        let samples = |value: f64| -> Vec<f64> { (0..40).map(|index| value + 0.001 * f64::from(index % 5)).collect() };
        let figures = [("random.static", 1.0), ("random.pointer-array", 20.0), ("random.contiguous", 5.0)];
        let measurements = figures.iter().map(|(name, value)| measurement(name, "ns", &samples(*value))).collect();
        let experiment = Experiment { name: "percpu".into(), measurements, ..Experiment::default() };
        let text = tables(&experiment);
        assert!(text.contains("4,096 counters                 0.050") && text.contains("holds"), "{text}");
        assert!(text.contains("does not hold") && !text.contains("3."), "{text}");
        assert!(conclusion(&experiment).unwrap().contains("the first (4,096 counters), the second (nowhere)"));
        assert!(tables(&Experiment::default()).is_empty() && conclusion(&Experiment::default()).is_none());
    }
}

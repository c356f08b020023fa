//! Samples and estimates as text for people.

use std::borrow::Borrow;

/// Returns the samples of a class as text. Those without a known probability say that they are not scaled.
pub(crate) fn clauses<S: Borrow<str>>(samples: &[S]) -> String {
    let clause = |sample: &S| match (sample.borrow(), sample.borrow().strip_suffix("/s")) {
        (_, Some(count)) => format!("at most {count} a second: not scaled"),
        ("unknown", _) => "by a rule of another version: not scaled".into(),
        (sample, _) => sample.into(),
    };
    samples.iter().map(clause).collect::<Vec<_>>().join(", ")
}

/// Returns an estimate, rounded.
pub(crate) fn estimate(estimate: Option<f64>) -> String {
    estimate.map_or("-".into(), |estimate| format!("{estimate:.0}"))
}

/// Note below tables with these columns.
pub(crate) const NOTE: &str = "\
note: the trace is a sample. ESTIMATED is about how many events happened for which a rule's condition was true, ERROR its
standard error; - is not known. All other figures are those of recorded events";

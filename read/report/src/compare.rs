//! Differences between two traces, for each event class and each name of slices: how often it occurred, how long it
//! took, and whether a difference can be told.
//!
//! The figures and their intervals are those of `dormouse stats --diff` ([`dormouse_analysis::Diff`]): the first trace
//! is A, the other B, and a ratio is B/A.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use dormouse_abi::text::printable;
use dormouse_analysis::{Figure, QuickMap, Sample};
use dormouse_ctf::Event;
use dormouse_ctf::time::since_ns;
use serde::Serialize;

use crate::bins::{self, bin};

/// Data of a trace that is compared, except its call trees.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// Times of the first and the last event that was read.
    span_ns: Option<(i64, i64)>,
    /// Index into `classes`, by the address of the class.
    number_by_class: QuickMap<usize, usize>,
    classes: Vec<(String, Sample)>,
    /// Durations of slices, by the number of their name.
    pairs: BTreeMap<u32, Durations>,
}

/// Durations of the slices of one name.
#[derive(Debug, Default)]
struct Durations {
    sample: Sample,
    bins: BTreeMap<u64, u64>,
}

impl Samples {
    /// Takes the next event. `is_wanted`: whether it is counted; other events only extend the trace's duration.
    pub(crate) fn event(&mut self, event: &Event<'_>, is_wanted: bool) {
        if event.is_state() {
            return;
        }
        if let Some(ns) = event.time_ns {
            self.span_ns = Some(self.span_ns.map_or((ns, ns), |(begin, end)| (begin.min(ns), end.max(ns))));
        }
        if !is_wanted {
            return;
        }
        let since_ns = self.since_ns(event.time_ns.unwrap_or_default());
        let classes = &mut self.classes;
        let number = self.number_by_class.entry(std::ptr::from_ref(event.class).addr()).or_insert_with(|| {
            classes.push((event.class.full_name.clone(), Sample::default()));
            classes.len() - 1
        });
        classes[*number].1.add(since_ns, None);
    }

    /// Adds a slice with a trusted end.
    pub(crate) fn pair(&mut self, name: u32, begin_ns: i64, duration_ns: u64) {
        let since_ns = self.since_ns(begin_ns);
        let of_name = self.pairs.entry(name).or_default();
        of_name.sample.add(since_ns, Some(duration_ns));
        *of_name.bins.entry(bin(duration_ns)).or_default() += 1;
    }

    fn since_ns(&self, ns: i64) -> u64 {
        since_ns(ns, self.span_ns.map_or(ns, |(begin, _)| begin))
    }

    fn duration_ns(&self) -> u64 {
        self.span_ns.map_or(0, |(begin, end)| end.abs_diff(begin))
    }

    /// Returns the samples by kind and name. Classes of the same name are merged.
    fn by_text(self, names: &[String]) -> BTreeMap<(bool, String), Durations> {
        let classes = self.classes.into_iter();
        let classes =
            classes.map(|(name, sample)| ((false, printable(&name)), Durations { sample, bins: BTreeMap::new() }));
        let pairs = self.pairs.into_iter().map(|(name, of_name)| ((true, names[name as usize].clone()), of_name));
        let mut by_text = BTreeMap::<_, Durations>::new();
        for (key, of_name) in classes.chain(pairs) {
            let sum = by_text.entry(key).or_default();
            sum.sample.merge(&of_name.sample);
            of_name.bins.into_iter().for_each(|(bin, count)| *sum.bins.entry(bin).or_default() += count);
        }
        by_text
    }
}

/// The data of the other trace that is compared.
#[derive(Debug, Default)]
pub struct Beside {
    pub(crate) title: String,
    pub(crate) about: Vec<String>,
    pub(crate) notes: Vec<String>,
    pub(crate) losses: Vec<LostBeside>,
    pub(crate) events: u64,
    pub(crate) names: Vec<String>,
    pub(crate) samples: Samples,
    pub(crate) nodes: Vec<bins::Node>,
    pub(crate) nodes_left_out: u64,
}

/// A loss in the other trace.
#[derive(Debug, Serialize)]
pub(crate) struct LostBeside {
    /// Begin of the loss, in nanoseconds since the begin of the trace.
    pub begin: u64,
    pub end: u64,
    pub events: u64,
    /// CPU of the loss, or the stream that reports it.
    pub stream: String,
    pub text: String,
}

/// The difference in one class or name of slices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Name of the class or of the slices.
    pub name: String,
    /// Whether it is about slices, not about events of a class.
    pub is_pair: bool,
    /// Counts in the first trace and in the other.
    pub counts: [u64; 2],
    /// Figures as `dormouse stats --diff` reports them.
    pub figures: Vec<Figure>,
}

/// A difference and its histogram: the number of slices per bin of durations, in each trace.
#[derive(Debug, Serialize)]
struct Drawn {
    #[serde(flatten)]
    difference: Difference,
    bins: [Vec<(u64, u64)>; 2],
}

/// Parent (its index plus 1; 0 for none), name, and counts and total times in both traces.
type Node = (u32, u32, [u64; 2], [u128; 2]);

/// The comparison of two traces, as the page receives it.
#[derive(Debug, Serialize)]
pub(crate) struct Compared {
    title: String,
    about: Vec<String>,
    notes: Vec<String>,
    losses: Vec<LostBeside>,
    events: u64,
    /// Duration of each trace, in nanoseconds.
    durations_ns: [u64; 2],
    /// Differences, the greatest first.
    rows: Vec<Drawn>,
    /// Names that the nodes refer to.
    names: Vec<String>,
    nodes: Vec<Node>,
    nodes_left_out: u64,
}

impl Compared {
    /// Compares. `names` and `nodes`: those of the first trace.
    pub(crate) fn new(samples: Samples, names: &[String], nodes: &[bins::Node], other: Beside) -> Compared {
        let durations_ns = [&samples, &other.samples].map(Samples::duration_ns);
        let mut sides: BTreeMap<(bool, String), [Option<Durations>; 2]> = BTreeMap::new();
        let (all_names, all_nodes) = trees([nodes, &other.nodes], [names, &other.names]);
        for (side, by_text) in [samples.by_text(names), other.samples.by_text(&other.names)].into_iter().enumerate() {
            by_text.into_iter().for_each(|(key, of_name)| sides.entry(key).or_default()[side] = Some(of_name));
        }
        let row = |((is_pair, name), sides): ((bool, String), [Option<Durations>; 2])| {
            let samples = sides.each_ref().map(|side| side.as_ref().map(|side| &side.sample));
            let counts = samples.map(|sample| sample.map_or(0, Sample::count));
            let figures = Sample::figures(samples, durations_ns);
            let bins = sides.map(|side| side.map(|side| side.bins.into_iter().collect()).unwrap_or_default());
            Drawn { difference: Difference { name, is_pair, counts, figures }, bins }
        };
        let mut rows: Vec<Drawn> = sides.into_iter().map(row).collect();
        rows.sort_by(|a, b| by_difference(&a.difference, &b.difference));
        Compared {
            title: printable(&other.title),
            about: other.about,
            notes: other.notes,
            losses: other.losses,
            events: other.events,
            durations_ns,
            rows,
            names: all_names,
            nodes: all_nodes,
            nodes_left_out: other.nodes_left_out,
        }
    }

    /// Returns the differences without their histograms.
    pub(crate) fn differences(self) -> Vec<Difference> {
        self.rows.into_iter().map(|row| row.difference).collect()
    }
}

/// Orders the greatest difference first: by the end of an interval that is nearer to 1, then by the measured ratio.
fn by_difference(a: &Difference, b: &Difference) -> Ordering {
    let most = |of: fn(&Figure) -> f64, row: &Difference| row.figures.iter().map(of).fold(0.0, f64::max);
    let by = |of: fn(&Figure) -> f64| most(of, b).total_cmp(&most(of, a));
    let count = |row: &Difference| row.counts[0].saturating_add(row.counts[1]);
    by(told).then(by(measured)).then(count(b).cmp(&count(a)))
}

/// Returns the smallest difference that a figure's interval allows, as a logarithm; 0 if it cannot be told.
fn told(figure: &Figure) -> f64 {
    match (figure.verdict, figure.ci95) {
        ("larger", Some([Some(low), _])) => low.ln(),
        ("smaller", Some([_, Some(high)])) => -high.ln(),
        _ => 0.0,
    }
}

/// Returns the measured difference, as a logarithm.
fn measured(figure: &Figure) -> f64 {
    figure.ratio.filter(|ratio| *ratio > 0.0).map_or(0.0, |ratio| ratio.ln().abs())
}

/// Merges the call trees of both traces: nodes with the same path of names are one.
fn trees(nodes: [&[bins::Node]; 2], names: [&[String]; 2]) -> (Vec<String>, Vec<Node>) {
    let mut all_names: Vec<String> = Vec::new();
    let mut number_by_name: HashMap<&str, u32> = HashMap::new();
    let mut all: Vec<Node> = Vec::new();
    let mut number_by_place: HashMap<(u32, u32), u32> = HashMap::new();
    for (side, (nodes, names)) in nodes.into_iter().zip(names).enumerate() {
        // A node comes after its parent.
        let mut numbers: Vec<u32> = Vec::with_capacity(nodes.len());
        for &(parent, name, count, total, _) in nodes {
            let parent = if parent == 0 { 0 } else { numbers[parent as usize - 1] + 1 };
            let text = names[name as usize].as_str();
            let name = *number_by_name.entry(text).or_insert_with(|| {
                all_names.push(text.into());
                all_names.len() as u32 - 1
            });
            let number = *number_by_place.entry((parent, name)).or_insert_with(|| {
                all.push((parent, name, [0; 2], [0; 2]));
                all.len() as u32 - 1
            });
            let (_, _, counts, totals) = &mut all[number as usize];
            (counts[side], totals[side]) = (counts[side] + count, totals[side] + total);
            numbers.push(number);
        }
    }
    (all_names, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_trees_are_merged_by_path() {
        let [a, b] = [["job", "step"], ["step", "job"]].map(|names| names.map(String::from));
        let of_a = [(0, 0, 2, 100, 50), (1, 1, 2, 50, 50)];
        // An equal path under other numbers, and a step at the top.
        let of_b = [(0, 0, 1, 5, 5), (0, 1, 4, 400, 100), (2, 0, 4, 300, 300)];
        let (names, nodes) = trees([&of_a, &of_b], [&a, &b]);
        assert_eq!(names, ["job", "step"]);
        assert_eq!(nodes, [(0, 0, [2, 4], [100, 400]), (1, 1, [2, 4], [50, 300]), (0, 1, [0, 1], [0, 5])]);
    }

    #[test]
    fn largest_differences_come_first_and_undecided_ones_last() {
        let mut samples = [Samples::default(), Samples::default()];
        let names: Vec<String> = ["same", "slower", "few"].map(String::from).into();
        for (side, of) in samples.iter_mut().enumerate() {
            of.span_ns = Some((0, 1_000_000_000));
            for index in 0..2000_i64 {
                let (begin, spread) = (index * 500_000, index as u64 * 7919 % 1000);
                of.pair(0, begin, 10_000 + spread);
                of.pair(1, begin, (10_000 + spread) * (1 + side as u64));
                if index < 5 {
                    of.pair(2, begin, 100 * (1 + 50 * side as u64));
                }
            }
        }
        let [a, b] = samples;
        let other = Beside { names: names.clone(), samples: b, ..Beside::default() };
        let rows = Compared::new(a, &names, &[], other).differences();
        let order: Vec<_> = rows.iter().map(|row| (row.name.as_str(), row.counts[0])).collect();
        assert_eq!(order, [("slower", 2000), ("few", 5), ("same", 2000)]);
        let verdicts = |row: &Difference| row.figures.iter().map(|figure| figure.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(&rows[0]), ["cannot be told", "larger", "larger", "larger", "larger"]);
        assert!(verdicts(&rows[2]).iter().all(|verdict| *verdict == "cannot be told"));
    }
}

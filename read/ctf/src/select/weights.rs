//! Weights of events of a session whose rules have samples: how many events that happened a recorded event stands for.
//!
//! ```text
//!   rules in force ─▶ those that match a class ─▶ Weigher ─▶ one Weight for all of its events, if no condition matters
//!                                                    └─────▶ conditions, asked for each event ─▶ Weight
//! ```
//! The weight is 1 / p, where p is the probability that the event was recorded. An event is recorded if any rule selects
//! it. Only rules count whose condition is true for it. All samples by chance look at one random number, and all samples
//! by a field look at one hash of its value. So the greatest sample of such a group decides for the group, and groups are
//! independent of one another:
//!
//! ```text
//!   a rule without a sample                             p = 1
//!   sample 1/10, sample 1/100                           p = 1/10
//!   sample 1/10, sample by user 1/4, sample by id 1/2   p = 1 - (1 - 1/10) (1 - 1/4) (1 - 1/2)
//!   sample 50/s, a tail, or a tag that events lack      p is not known
//!   no rule                                             p = 1: the program recorded by earlier or later rules
//! ```
//! The sum of the weights of recorded events estimates the number of events for which a condition was true, without
//! bias. If all samples are by chance, the sum of w (w - 1) estimates its variance without bias. A sample by a field
//! selects all events of a value at once, so their number has a greater variance, which is not estimated.
//!
//! # Limits
//! The session owner records new rules after they are in force, and programs follow them a moment later. Events of that
//! moment get the weights of the rules that the trace states for their time.
//!
//! # Source
//! D. G. Horvitz, D. J. Thompson, *A generalization of sampling without replacement from a finite universe*, 1952.

use std::collections::{BTreeMap, BTreeSet};

use dormouse_abi::rule::{Name, Part, RULE_COUNT_MAX, Sample, hash, is_in_sample};
use dormouse_filter::{Fields, Filter, RuleText, Test};

use super::{ClassRef, Place, Values, Writer};
use crate::hash::QuickMap;
use crate::stream::{Event, EventFields, Scratch};

/// Weight of an event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Weight {
    /// The event stands for this many.
    Known {
        /// 1 / the probability that the event was recorded.
        factor: f64,
        /// Whether chance alone decided, for each event anew.
        is_independent: bool,
    },
    /// The probability is not known.
    Unknown,
}

impl Weight {
    /// Weight of an event that was certain to be recorded.
    pub const ONE: Weight = Weight::Known { factor: 1.0, is_independent: true };
}

/// Maximum number of different weights that [`WeightCounts`] keeps. Events of further ones count as those of no known weight.
const WEIGHTS_MAX: usize = 1024;

/// Numbers of events by their weights. Sums of them do not depend on the order in which events were added.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WeightCounts {
    /// Numbers of events by the bits of their factor, and whether they are independent.
    known: BTreeMap<(u64, bool), u64>,
    /// Number of events whose weight is not known.
    unknown: u64,
}

/// Estimate of a number of events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The estimated number.
    pub events: f64,
    /// Its standard error; `None` if a sample by a field had a part in it.
    pub error: Option<f64>,
}

impl WeightCounts {
    /// Adds events of one weight.
    pub fn add(&mut self, weight: Weight, count: u64) {
        match weight {
            Weight::Known { factor, is_independent } => {
                let key = (factor.to_bits(), is_independent);
                let has_room = self.known.len() < WEIGHTS_MAX;
                match self.known.get_mut(&key) {
                    Some(sum) => *sum += count,
                    None if has_room => drop(self.known.insert(key, count)),
                    None => self.unknown += count,
                }
            }
            Weight::Unknown => self.unknown += count,
        }
    }

    /// Adds all events of `other`.
    pub fn merge(&mut self, other: &WeightCounts) {
        for ((bits, is_independent), count) in &other.known {
            let weight = Weight::Known { factor: f64::from_bits(*bits), is_independent: *is_independent };
            self.add(weight, *count);
        }
        self.unknown += other.unknown;
    }

    /// Returns the estimate for `count` events, of which those without a weight here have the weight 1. `None` if a
    /// weight is not known.
    pub fn estimate(&self, count: u64) -> Option<Estimate> {
        let weighed: u64 = self.known.values().sum();
        let (mut events, mut variance, mut is_independent) = (count.saturating_sub(weighed) as f64, 0.0, true);
        for ((bits, is_alone), count) in &self.known {
            let (factor, count) = (f64::from_bits(*bits), *count as f64);
            events += factor * count;
            variance += factor * (factor - 1.0) * count;
            is_independent &= is_alone;
        }
        let error = is_independent.then(|| variance.sqrt());
        (self.unknown == 0).then_some(Estimate { events, error })
    }
}

/// Rules of a session.
#[derive(Debug, Clone, Default)]
pub struct SampledRules {
    /// The rules; `None`: one that this version does not understand.
    rules: Vec<Option<RuleText>>,
}

impl SampledRules {
    /// Parses the rules of a session, one a line. A rule that this version does not understand has a sample without a
    /// known probability, for all classes. So have rules beyond [`RULE_COUNT_MAX`] together.
    pub fn parse(text: &str) -> SampledRules {
        let parsed = |(index, line)| if index < RULE_COUNT_MAX { RuleText::parse(line).ok() } else { None };
        SampledRules { rules: text.lines().enumerate().take(RULE_COUNT_MAX + 1).map(parsed).collect() }
    }

    /// Whether a rule has a sample or a tail. Without them, all events have the weight 1.
    pub fn has_samples(&self) -> bool {
        let is_sample = |rule: &RuleText| rule.sample.is_some() || rule.tail.is_some();
        self.rules.iter().any(|rule| rule.as_ref().is_none_or(is_sample))
    }

    fn of_class<'s>(&'s self, class: &ClassRef<'_>) -> impl Iterator<Item = Option<&'s RuleText>> {
        let (name, level) = (&class.class.full_name, class.class.level);
        let matches = move |rule: &RuleText| {
            dormouse_abi::class::matches(&rule.pattern, name) && rule.levels.is_none_or(|levels| levels.admits(level))
        };
        self.rules.iter().map(Option::as_ref).filter(move |rule| rule.is_none_or(matches))
    }

    /// Returns the samples in the rules that match a class, as rules have them: `1/100`, `50/s`, `by user 1/4`; and
    /// tails, by what keeps an event: `tail by id`.
    pub fn samples(&self, class: &ClassRef<'_>) -> BTreeSet<String> {
        let text = |rule: Option<&RuleText>| match rule {
            Some(RuleText { tail: Some(tail), .. }) => Some(format!("tail by {}", tail.key)),
            Some(rule) => Some(match rule.sample.as_ref()? {
                Sample::OneIn(count) => format!("1/{count}"),
                Sample::PerSecond(count) => format!("{count}/s"),
                Sample::By(name, count) => format!("by {name} 1/{count}"),
            }),
            None => Some("unknown".to_string()),
        };
        self.of_class(class).filter_map(text).collect()
    }

    /// Returns what weighs the events of a class. `given`: names of values that the weighed events have in common, so
    /// that samples by them are no matter of chance: all events of a value were recorded, or none.
    pub fn weigher(&self, class: &ClassRef<'_>, given: &[Name]) -> Weigher {
        let mut asked = Conditions::default();
        for rule in self.of_class(class) {
            let Some(rule) = rule else {
                asked.rules.push(Condition { test: Test::Always, places: Vec::new(), part: Taken::Some });
                continue;
            };
            if rule.is_exclusion {
                return Weigher::Same(Weight::ONE);
            }
            if !tells_tags(rule, class) {
                asked.rules.push(Condition { test: Test::Always, places: Vec::new(), part: Taken::Some });
                continue;
            }
            let part = match &rule.sample {
                _ if rule.tail.is_some() => Taken::Some,
                None => Taken::All,
                Some(Sample::OneIn(count)) => Taken::ByChance(*count),
                Some(Sample::PerSecond(_)) => Taken::Some,
                Some(Sample::By(name, count)) => {
                    let place = class.find_as_rule(name);
                    match (class.constant(&place), place) {
                        (Some(value), _) if is_in_sample(hash(&value), *count) => Taken::All,
                        (Some(_), _) | (None, None) => continue,
                        (None, Some((place, _))) => Taken::ByHash(asked.field(class, name, place, given), *count),
                    }
                }
            };
            let (test, places) = match &rule.filter {
                Some(filter) => class.bind_filter(filter, |name| class.find_as_rule(name)),
                None => (Test::Always, Vec::new()),
            };
            match (&test, &part) {
                (Test::Never, _) => {}
                (Test::Always, Taken::All) => return Weigher::Same(Weight::ONE),
                _ => asked.rules.push(Condition { test, places, part }),
            }
        }
        let is_open = asked.rules.iter().any(|rule| rule.test != Test::Always)
            || asked.fields.iter().any(|field| field.is_given || field.can_be_missing);
        match is_open {
            true => Weigher::Ask(Box::new(asked)),
            false => Weigher::Same(asked.weight_of_all()),
        }
    }
}

/// Weights of the events of a class.
#[derive(Debug)]
pub enum Weigher {
    /// All events have this weight.
    Same(Weight),
    /// Conditions decide.
    Ask(Box<Conditions>),
}

impl Weigher {
    /// Whether no sample can have left out events of the class.
    pub fn is_one(&self) -> bool {
        matches!(self, Weigher::Same(weight) if *weight == Weight::ONE)
    }

    /// Returns the weight of an event of the class. Its fields are not looked at if they do not matter.
    #[inline(always)]
    pub fn weigh<'e>(&mut self, fields: impl FnOnce() -> Option<EventFields<'e>>, scratch: &mut Scratch) -> Weight {
        match self {
            Weigher::Same(weight) => *weight,
            Weigher::Ask(conditions) => fields().map_or(Weight::Unknown, |fields| conditions.weigh(&fields, scratch)),
        }
    }
}

/// Rules that match a class, with their conditions.
#[derive(Debug, Default)]
pub struct Conditions {
    rules: Vec<Condition>,
    /// Fields by which rules sample.
    fields: Vec<SampledField>,
    /// Least number of the samples by each field whose rule selects the event; 0: none does.
    least: Vec<u32>,
}

#[derive(Debug)]
struct Condition {
    test: Test,
    places: Vec<Option<Place>>,
    part: Taken,
}

/// Part that a rule takes of the events for which its condition is true.
#[derive(Debug, Clone, Copy)]
enum Taken {
    All,
    ByChance(u32),
    /// By the hash of the field with this index.
    ByHash(usize, u32),
    /// Some of them, with a probability that is not known.
    Some,
}

#[derive(Debug)]
struct SampledField {
    place: [Option<Place>; 1],
    is_given: bool,
    can_be_missing: bool,
}

impl Conditions {
    /// Returns the index of a field by which a rule samples.
    fn field(&mut self, class: &ClassRef<'_>, name: &Name, place: Place, given: &[Name]) -> usize {
        let place = [Some(place)];
        self.fields.iter().position(|field| field.place == place).unwrap_or_else(|| {
            let is_given = given.iter().any(|given| class.find_as_rule(given).map(|(place, _)| place) == place[0]);
            let can_be_missing = name.parts.iter().any(|part| matches!(part, Part::Index(_)));
            self.fields.push(SampledField { place, is_given, can_be_missing });
            self.least.push(0);
            self.fields.len() - 1
        })
    }

    /// Returns the weight of events for which all conditions are true, if no field's value matters.
    fn weight_of_all(&mut self) -> Weight {
        self.least.fill(0);
        let (mut by_chance, mut is_unknown) = (0, false);
        for rule in &self.rules {
            match rule.part {
                Taken::All => return Weight::ONE,
                Taken::ByChance(count) => reduce(&mut by_chance, count),
                Taken::ByHash(field, count) => reduce(&mut self.least[field], count),
                Taken::Some => is_unknown = true,
            }
        }
        if is_unknown { Weight::Unknown } else { weight_of(by_chance, &self.least) }
    }

    fn weigh(&mut self, event: &EventFields<'_>, scratch: &mut Scratch) -> Weight {
        let Conditions { rules, fields, least, .. } = self;
        least.fill(0);
        let (mut by_chance, mut is_unknown) = (0, false);
        // Rules do not know the writer, and the name of the class is a constant.
        let mut values = Values { event, name: &[], writer: Writer::default(), places: &[], scratch };
        for rule in &*rules {
            values.places = &rule.places;
            if !rule.test.wants(&mut values) {
                continue;
            }
            match rule.part {
                Taken::All => return Weight::ONE,
                Taken::ByChance(count) => reduce(&mut by_chance, count),
                Taken::Some => is_unknown = true,
                Taken::ByHash(index, count) => {
                    let field = &fields[index];
                    let value = || {
                        values.places = &field.place;
                        values.value(0)
                    };
                    match (field.is_given || field.can_be_missing).then(value) {
                        None => reduce(&mut least[index], count),
                        Some(None) => {}
                        Some(Some(value)) if field.is_given => {
                            if is_in_sample(hash(&value), count) {
                                return Weight::ONE;
                            }
                        }
                        Some(Some(_)) => reduce(&mut least[index], count),
                    }
                }
            }
        }
        if is_unknown { Weight::Unknown } else { weight_of(by_chance, least) }
    }
}

/// Whether the events of a class have the tags in a rule. As long as a trace is being written, they do not have their texts.
fn tells_tags(rule: &RuleText, class: &ClassRef<'_>) -> bool {
    let kinds = |name: &Name| class.find(name).map(|(_, kind)| kind).into_iter().collect();
    let is_comparable = |filter: &Filter| {
        let names: Vec<&Name> = filter.names().collect();
        filter.mismatch(|name| kinds(names[name])).is_none()
    };
    rule.tags().next().is_none()
        || rule.tags().all(|tag| class.has(tag)) && rule.filter.as_ref().is_none_or(is_comparable)
}

/// Notes a sample of one in `count` in the least number so far.
fn reduce(least: &mut u32, count: u32) {
    *least = if *least == 0 { count } else { (*least).min(count) };
}

/// Returns the weight of an event that samples by chance, and by fields, select. 0: there is none.
fn weight_of(by_chance: u32, by_hash: &[u32]) -> Weight {
    let mut counts = [by_chance].into_iter().chain(by_hash.iter().copied()).filter(|count| *count > 0);
    let is_independent = by_hash.iter().all(|count| *count == 0);
    let factor = match (counts.next(), counts.next()) {
        (None, _) => 1.0,
        // Exactly this number.
        (Some(count), None) => count.into(),
        (Some(first), Some(second)) => {
            let left_out = [first, second].into_iter().chain(counts).map(|count| 1.0 - 1.0 / f64::from(count));
            1.0 / (1.0 - left_out.product::<f64>())
        }
    };
    if factor == 1.0 { Weight::ONE } else { Weight::Known { factor, is_independent } }
}

/// Rules of a trace by time.
#[derive(Debug, Clone, Default)]
pub struct RuleTimes {
    /// Times in ticks from which rules are in force, in ascending order.
    since: Vec<u64>,
    rules: Vec<SampledRules>,
}

/// Rules that are in force in a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InForce<'r> {
    pub rules: Option<&'r SampledRules>,
    /// Begin and end of the time, in ticks.
    pub times: (u64, u64),
}

impl RuleTimes {
    /// Notes a record of rules. Records must be noted in the order of time.
    pub fn note(&mut self, ticks: u64, text: &str) {
        self.since.push(ticks);
        self.rules.push(SampledRules::parse(text));
    }

    /// Whether there was a sample at any time.
    pub fn have_samples(&self) -> bool {
        self.rules.iter().any(SampledRules::has_samples)
    }

    /// Returns the rules at a time.
    pub(crate) fn at(&self, ticks: u64) -> InForce<'_> {
        let next = self.since.partition_point(|since| *since <= ticks);
        let begin = next.checked_sub(1).map_or(0, |index| self.since[index]);
        let end = self.since.get(next).copied().unwrap_or(u64::MAX);
        InForce { rules: next.checked_sub(1).map(|index| &self.rules[index]), times: (begin, end) }
    }
}

/// Weights of events that are read in the order of time.
#[derive(Debug, Default)]
pub struct Weights {
    given: Vec<Name>,
    /// Rules that are in force, by index of the trace.
    rules: BTreeMap<usize, SampledRules>,
    /// Weighers by address of the class.
    bound: QuickMap<usize, Weigher>,
    /// Samples of the classes whose events were weighed, by their names.
    samples: BTreeMap<String, BTreeSet<String>>,
    scratch: Scratch,
}

impl Weights {
    /// Returns weights of events. `given`: see [`SampledRules::weigher`].
    pub fn new(given: Vec<Name>) -> Weights {
        Weights { given, ..Weights::default() }
    }

    /// Notes a record of rules in a trace.
    pub fn note(&mut self, trace: usize, text: &str) {
        let rules = SampledRules::parse(text);
        match rules.has_samples() {
            true => drop(self.rules.insert(trace, rules)),
            false => drop(self.rules.remove(&trace)),
        }
        self.bound.clear();
    }

    /// Returns the weight of an event of a trace.
    #[inline]
    pub fn of(&mut self, trace: usize, event: &Event<'_>) -> Weight {
        if self.rules.is_empty() {
            return Weight::ONE;
        }
        let Some(rules) = self.rules.get(&trace) else { return Weight::ONE };
        let class = ClassRef::of(event);
        let weigher = self.bound.entry(class.key()).or_insert_with(|| {
            let weigher = rules.weigher(&class, &self.given);
            if !weigher.is_one() {
                self.samples.entry(class.class.full_name.clone()).or_default().extend(rules.samples(&class));
            }
            weigher
        });
        weigher.weigh(|| Some(event.body()), &mut self.scratch)
    }

    /// Returns the samples of the classes whose events were weighed, by their names.
    pub fn samples(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.samples
    }
}

//! A session's rules, bound to an event class, and asked for each of its events.
//!
//! ```text
//!   rules ─▶ those that match the class ─▶ tests on its fields, without what the class alone decides
//!                                              │
//!               no rule, or never true ────────┼──▶ Bound::Never    the class is not armed
//!               a rule without condition ──────┼──▶ Bound::Always   recorded as if there were no rules
//!                                              └──▶ Bound::If       the tests, for each event
//! ```
//! A tag is a value of the thread, found by its name when the event is there. It is a number whose label is its text, so a
//! text is compared by its number, and is looked up without a lock for what its number does not tell.
//!
//! A sample is a test like others, behind those of its rule's condition; if it leaves an event out, the next rule follows.
//! All samples by chance look at one random number, so that one in 100 events is also one of one in 10.
//!
//! An event costs at most [`COST_MAX`] units, whatever the rules and its fields are: another process wrote the rules.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod comparison;
mod event;
mod rate;
mod tag;

use std::cmp::Ordering;

use dormouse_abi::class::{ClassDecl, Kind, Level};
use dormouse_abi::rule::value::{Operator, Value, matches_within};
use dormouse_abi::rule::{
    Condition, Literal, Name, Next, Operand, Part, Question, Rule, Sample, Test, hash, is_in_sample,
};
use dormouse_abi::tag::{TAG_COUNT_MAX, is_tag_name, text_value};

pub(crate) use event::Event;
use event::{Place, extended, is_signed};
use rate::Rate;
pub(crate) use tag::NamedTag;

/// The rules of a session, as they concern a class.
#[derive(Debug, PartialEq)]
pub(crate) enum Bound {
    /// No event is recorded.
    Never,
    /// All events are recorded.
    Always,
    /// The tests decide.
    If(Tests),
}

/// Tests of the events of a class, in order.
#[derive(Debug, PartialEq)]
pub(crate) struct Tests(Vec<Step>);

#[derive(Debug, PartialEq)]
struct Step {
    ask: Ask,
    wanted: bool,
    /// Index of the next step, or [`ACCEPT`] or [`REJECT`].
    passed: u32,
    failed: u32,
}

const ACCEPT: u32 = u32::MAX;
const REJECT: u32 = u32::MAX - 1;

/// A question about an event.
#[derive(Debug, PartialEq)]
enum Ask {
    /// Whether a relation holds between an integer at a constant offset and a constant.
    Integer {
        offset: usize,
        kind: Kind,
        operator: Operator,
        constant: i64,
    },
    /// Whether a number is one of these, in ascending order.
    IsOneOf(Place, Vec<i128>),
    IsTrue(Place),
    Compare(Source, Operator, Source),
    /// Whether a text matches, or whether it does not.
    Matches(Place, Pattern, bool),
    /// Whether the text of a tag matches.
    TagMatches(NamedTag, Pattern),
    /// The answer for an event that has this element.
    Given(Place, bool),
    /// Whether the event is one in this many, by chance.
    Chance(u32),
    /// Whether a value is one in this many, by its hash.
    Hash(Source, u32),
    /// Whether there were not too many events before.
    Rate(Rate),
}

/// Circumstances of an event on which samples and conditions on tags depend.
pub(crate) trait Circumstances {
    /// Returns a random number of 64 bits.
    fn random(&self) -> u64;
    /// Returns the time, in nanoseconds. A resolution of milliseconds is enough.
    fn now_ns(&self) -> u64;
    /// Returns the value of a tag in the thread of the event: a number, whose label is its text.
    fn tag(&self, tag: &NamedTag) -> Value<'_>;
}

/// The answer of rules to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepted,
    /// No condition is true.
    Rejected,
    /// A condition is true, and the rule's sample leaves the event out.
    SampledOut,
    /// It would cost too much to find out.
    TooDear,
}

/// A pattern of text. All but the last need no search, however long a text is.
#[derive(Debug, PartialEq)]
enum Pattern {
    Exactly(Vec<u8>),
    Prefix(Vec<u8>),
    Suffix(Vec<u8>),
    Other(Vec<u8>),
}

impl Pattern {
    fn new(pattern: &[u8]) -> Pattern {
        let is_plain = |text: &[u8]| !text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'\\'));
        match pattern {
            text if is_plain(text) => Pattern::Exactly(text.into()),
            [prefix @ .., b'*'] if is_plain(prefix) => Pattern::Prefix(prefix.into()),
            [b'*', suffix @ ..] if is_plain(suffix) => Pattern::Suffix(suffix.into()),
            _ => Pattern::Other(pattern.into()),
        }
    }

    /// Whether a text matches. `None`: it costs more than `cost`.
    fn matches(&self, text: &[u8], cost: &mut u32) -> Option<bool> {
        let (is_match, len) = match self {
            Pattern::Exactly(pattern) => (text == pattern, pattern.len()),
            Pattern::Prefix(prefix) => (text.starts_with(prefix), prefix.len()),
            Pattern::Suffix(suffix) => (text.ends_with(suffix), suffix.len()),
            Pattern::Other(pattern) => return matches_within(pattern, text, cost),
        };
        *cost = cost.checked_sub(len as u32 / 8)?;
        Some(is_match)
    }
}

/// A value in a question.
#[derive(Debug, PartialEq)]
enum Source {
    Place(Place),
    Tag(NamedTag),
    Literal(Literal),
    /// Level of the class.
    Level(Level),
}

/// Maximum cost of an event: a unit is a test, eight bytes of compared text, a label, a step of a pattern, or the search
/// for the text of a tag.
const COST_MAX: u32 = 4_096;

/// Cost of the search for the text of a tag: it is looked for among those of each of the process's tags.
const TAG_COST: u32 = TAG_COUNT_MAX as u32;

/// Maximum number of steps in which labels of a class are compared with the patterns of all rules.
const BINDING_STEPS_MAX: u32 = 1 << 16;

/// Names of a record's parts other than its fields and tags. A rule, which is asked before there is a record, does not have
/// them.
const OTHER_PARTS: [&str; 6] = ["time", "cpu", "pid", "tid", "process", "comm"];

impl Bound {
    /// Binds rules to a class.
    pub(crate) fn new(rules: &[Rule], decl: &ClassDecl) -> Bound {
        let name = decl.full_name();
        let matching: Vec<&Rule> = rules.iter().filter(|rule| rule.matches(&name, decl.level)).collect();
        if matching.iter().any(|rule| rule.is_exclusion) {
            return Bound::Never;
        }
        let (mut steps, mut left) = (Vec::new(), BINDING_STEPS_MAX);
        for rule in matching {
            // The first steps of the next rule follow where this one rejects.
            let first = steps.len() as u32;
            match bind_rule(rule, decl, &name, first, &mut left) {
                Bound::Always => return Bound::Always,
                Bound::Never => {}
                Bound::If(Tests(more)) => {
                    redirect(&mut steps, REJECT, first);
                    steps.extend(more);
                }
            }
        }
        if steps.is_empty() { Bound::Never } else { Bound::If(Tests(steps)) }
    }
}

/// Binds a rule, whose pattern matches, to a class. The index of its first step is `first`.
fn bind_rule(rule: &Rule, decl: &ClassDecl, full_name: &str, first: u32, left: &mut u32) -> Bound {
    let sample = match rule.sample.as_ref().map(|sample| bind_sample(sample, decl, full_name)) {
        None | Some(Asked::Known(Some(true))) => None,
        Some(Asked::Known(_)) => return Bound::Never,
        Some(Asked::Open(ask)) => Some(Step { ask: *ask, wanted: true, passed: ACCEPT, failed: REJECT }),
    };
    match (bind_condition(&rule.condition, decl, full_name, first, left), sample) {
        (Bound::Always, Some(sample)) => Bound::If(Tests(vec![sample])),
        (Bound::If(Tests(mut steps)), Some(sample)) => {
            let behind = first + steps.len() as u32;
            redirect(&mut steps, ACCEPT, behind);
            steps.push(sample);
            Bound::If(Tests(steps))
        }
        (bound, _) => bound,
    }
}

/// Makes steps that lead to `from` lead to `to`.
fn redirect(steps: &mut [Step], from: u32, to: u32) {
    for next in steps.iter_mut().flat_map(|step| [&mut step.passed, &mut step.failed]) {
        if *next == from {
            *next = to;
        }
    }
}

fn bind_sample(sample: &Sample, decl: &ClassDecl, full_name: &str) -> Asked {
    match sample {
        Sample::OneIn(count) => Asked::open(Ask::Chance(*count)),
        Sample::PerSecond(count) => Asked::open(Ask::Rate(Rate::new(*count))),
        Sample::By(name, count) => match find_name(name, decl, full_name) {
            Found::Missing => Asked::Known(None),
            found @ (Found::Place(_) | Found::Tag(_)) => Asked::open(Ask::Hash(found.into_source(), *count)),
            constant => Asked::Known(constant.constant().map(|value| is_in_sample(hash(&value), *count))),
        },
    }
}

/// Binds a condition to a class. The index of its first step is `first`. `left`: see [`BINDING_STEPS_MAX`].
fn bind_condition(condition: &Condition, decl: &ClassDecl, full_name: &str, first: u32, left: &mut u32) -> Bound {
    if condition.tests.is_empty() {
        return Bound::Always;
    }
    let asked: Vec<Asked> =
        condition.tests.iter().map(|test| bind_test(test, condition, decl, full_name, left)).collect();
    // Where a chain of tests that the class decides leads to.
    let resolve = |mut next: Next| loop {
        let Next::Test(index) = next else { return next };
        match (&asked[usize::from(index)], &condition.tests[usize::from(index)]) {
            (Asked::Known(answer), test) => {
                next = if *answer == Some(test.wanted) { test.passed } else { test.failed };
            }
            (Asked::Open(_), _) => return next,
        }
    };
    let Next::Test(start) = resolve(Next::Test(0)) else {
        return if resolve(Next::Test(0)) == Next::Accept { Bound::Always } else { Bound::Never };
    };
    // Only the tests that can be reached from there are kept.
    let mut is_reached = vec![false; condition.tests.len()];
    is_reached[usize::from(start)] = true;
    for (index, test) in condition.tests.iter().enumerate() {
        for next in [test.passed, test.failed] {
            if let (true, Next::Test(next)) = (is_reached[index], resolve(next)) {
                is_reached[usize::from(next)] = true;
            }
        }
    }
    let position = |next: Next| match resolve(next) {
        Next::Accept => ACCEPT,
        Next::Reject => REJECT,
        Next::Test(index) => {
            first + is_reached[..usize::from(index)].iter().filter(|is_reached| **is_reached).count() as u32
        }
    };
    let targets: Vec<(u32, u32)> =
        condition.tests.iter().map(|test| (position(test.passed), position(test.failed))).collect();
    let steps = asked.into_iter().enumerate().filter_map(|(index, asked)| match asked {
        Asked::Open(ask) if is_reached[index] => {
            let ask = *ask;
            let (passed, failed) = targets[index];
            Some(Step { ask, wanted: condition.tests[index].wanted, passed, failed })
        }
        _ => None,
    });
    Bound::If(Tests(steps.collect()))
}

/// A question, bound to a class.
enum Asked {
    /// The class decides: true, false or unknown.
    Known(Option<bool>),
    /// The event decides.
    Open(Box<Ask>),
}

impl Asked {
    fn open(ask: Ask) -> Asked {
        Asked::Open(Box::new(ask))
    }
}

/// A value, bound to a class.
enum Found<'a> {
    Missing,
    /// Text that all events of the class have.
    Name(&'a str),
    /// Level of the class.
    Level(Level),
    Literal(&'a Literal),
    Place(Place),
    /// Tag with this name.
    Tag(&'a str),
}

impl Found<'_> {
    /// Returns the value, if the class decides it.
    fn constant(&self) -> Option<Value<'_>> {
        match self {
            Found::Name(name) => Some(Value::Text(name.as_bytes().into())),
            Found::Level(level) => Some((*level).into()),
            Found::Literal(literal) => Some(literal.value()),
            Found::Missing | Found::Place(_) | Found::Tag(_) => None,
        }
    }

    fn into_source(self) -> Source {
        match self {
            Found::Place(place) => Source::Place(place),
            Found::Tag(name) => Source::Tag(NamedTag::new(name)),
            Found::Name(name) => Source::Literal(Literal::Text(name.into())),
            Found::Level(level) => Source::Level(level),
            Found::Literal(literal) => Source::Literal(literal.clone()),
            Found::Missing => Source::Literal(Literal::Boolean(false)),
        }
    }
}

fn bind_test(test: &Test, condition: &Condition, decl: &ClassDecl, full_name: &str, left: &mut u32) -> Asked {
    let find = |operand| find(operand, condition, decl, full_name);
    match &test.question {
        Question::IsTrue(operand) => match find(operand) {
            Found::Missing => Asked::Known(None),
            Found::Place(place) if place.kind() == Kind::Str => Asked::Known(None),
            Found::Place(place) => Asked::open(Ask::IsTrue(place)),
            Found::Tag(name) => compare_tag(name, Operator::NotEqual, &Literal::Integer(0)),
            constant => Asked::Known(constant.constant().and_then(|value| value.is_true())),
        },
        Question::Matches(operand, pattern) => match find(operand) {
            Found::Missing => Asked::Known(None),
            Found::Place(place) => match place.labels() {
                Some(labels) => {
                    let numbers = labels.numbers(|label| matches_within(pattern, label, left) == Some(true));
                    is_one_of(place, numbers)
                }
                None if place.kind() == Kind::Str => Asked::open(Ask::Matches(place, Pattern::new(pattern), true)),
                None => Asked::Known(None),
            },
            Found::Tag(name) => Asked::open(Ask::TagMatches(NamedTag::new(name), Pattern::new(pattern))),
            constant => Asked::Known(constant.constant().and_then(|value| value.matches(pattern))),
        },
        Question::Compare(left, operator, right) => match (find(left), find(right)) {
            (Found::Missing, _) | (_, Found::Missing) => Asked::Known(None),
            (Found::Place(place), Found::Literal(literal)) => compare_to(place, *operator, literal),
            (Found::Literal(literal), Found::Place(place)) => compare_to(place, reversed(*operator), literal),
            (Found::Tag(name), Found::Literal(literal)) => compare_tag(name, *operator, literal),
            (Found::Literal(literal), Found::Tag(name)) => compare_tag(name, reversed(*operator), literal),
            (left, right) => match (left.constant(), right.constant()) {
                (Some(left), Some(right)) => Asked::Known(left.compare(*operator, &right)),
                _ => Asked::open(Ask::Compare(left.into_source(), *operator, right.into_source())),
            },
        },
    }
}

/// Returns the relation of the right side to the left one.
fn reversed(operator: Operator) -> Operator {
    match operator {
        Operator::Less => Operator::Greater,
        Operator::LessOrEqual => Operator::GreaterOrEqual,
        Operator::Greater => Operator::Less,
        Operator::GreaterOrEqual => Operator::LessOrEqual,
        Operator::Equal | Operator::NotEqual => operator,
    }
}

fn is_one_of(place: Place, mut numbers: Vec<i128>) -> Asked {
    numbers.sort_unstable();
    numbers.dedup();
    Asked::open(Ask::IsOneOf(place, numbers))
}

/// Compares a tag with a constant: with the number of a text, which need not be known to the process.
fn compare_tag(name: &str, operator: Operator, literal: &Literal) -> Asked {
    let constant = match (literal, operator) {
        // The value of a thread without the tag.
        (Literal::Text(text), Operator::Equal | Operator::NotEqual) if text.is_empty() => Literal::Integer(0),
        (Literal::Text(text), Operator::Equal | Operator::NotEqual) => Literal::Integer(text_value(text).into()),
        // Labels have no order.
        (Literal::Text(_), _) => return Asked::Known(None),
        (literal, _) => literal.clone(),
    };
    Asked::open(Ask::Compare(Source::Tag(NamedTag::new(name)), operator, Source::Literal(constant)))
}

fn compare_to(place: Place, operator: Operator, literal: &Literal) -> Asked {
    match (literal, place.labels()) {
        (Literal::Text(text), Some(labels)) => {
            // Labels have no order.
            let is_equality = matches!(operator, Operator::Equal | Operator::NotEqual);
            if !is_equality {
                return Asked::Known(None);
            }
            if operator == Operator::Equal {
                let numbers = labels.numbers(|label| label == text);
                return is_one_of(place, numbers);
            }
        }
        (Literal::Text(text), None) if place.kind() == Kind::Str && operator == Operator::Equal => {
            return Asked::open(Ask::Matches(place, Pattern::Exactly(text.clone()), true));
        }
        (Literal::Text(text), None) if place.kind() == Kind::Str && operator == Operator::NotEqual => {
            return Asked::open(Ask::Matches(place, Pattern::Exactly(text.clone()), false));
        }
        (Literal::Integer(constant), None) if !matches!(place.kind(), Kind::F32 | Kind::F64 | Kind::Str) => {
            if let Some(asked) = compare_integers(&place, operator, *constant) {
                return asked;
            }
        }
        _ => {}
    }
    Asked::open(Ask::Compare(Source::Place(place), operator, Source::Literal(literal.clone())))
}

/// Compares an integer at a constant offset with a constant. `None`: it is not at a constant offset.
fn compare_integers(place: &Place, operator: Operator, constant: i128) -> Option<Asked> {
    let kind = place.kind();
    let (min, max) =
        if is_signed(kind) { (i128::from(i64::MIN), i128::from(i64::MAX)) } else { (0, i128::from(u64::MAX)) };
    if constant < min || constant > max {
        // Every value is on the same side of the constant.
        let order = if constant < min { Ordering::Greater } else { Ordering::Less };
        let answer = operator.holds(Some(order));
        let is_known = place.is_always_there();
        return Some(if is_known {
            Asked::Known(Some(answer))
        } else {
            Asked::open(Ask::Given(place.clone(), answer))
        });
    }
    let offset = place.fixed_offset()?;
    Some(Asked::open(Ask::Integer { offset, kind, operator, constant: constant as i64 }))
}

/// Finds the meaning of an operand in a class.
fn find<'a>(operand: &'a Operand, condition: &'a Condition, decl: &ClassDecl, full_name: &'a str) -> Found<'a> {
    match operand {
        Operand::Literal(literal) => Found::Literal(literal),
        Operand::Name(index) => match condition.names.get(usize::from(*index)) {
            Some(name) => find_name(name, decl, full_name),
            None => Found::Missing,
        },
    }
}

/// Finds the meaning of a name in a class.
fn find_name<'a>(name: &'a Name, decl: &ClassDecl, full_name: &'a str) -> Found<'a> {
    if let Some(tag) = name.tag() {
        return if is_tag_name(tag) { Found::Tag(tag) } else { Found::Missing };
    }
    let Name { parts } = name;
    // A field of this name goes before the class's level.
    let is_level = matches!(parts.as_slice(), [Part::Member(word)] if word == "level");
    let parts = match parts.as_slice() {
        [Part::Member(scope), rest @ ..] if scope == "fields" && !rest.is_empty() => rest,
        [Part::Member(scope), rest @ ..] if scope == "context" && !rest.is_empty() => return Found::Missing,
        [Part::Member(word)] if word == "event" => return Found::Name(full_name),
        [Part::Member(word)] if OTHER_PARTS.contains(&word.as_str()) => return Found::Missing,
        parts => parts,
    };
    let (name, element) = match parts {
        [Part::Member(name)] => (name, None),
        [Part::Member(name), Part::Index(element)] => (name, Some(*element)),
        _ => return Found::Missing,
    };
    let field = |name: &str| decl.fields.iter().position(|(field, _)| field == name);
    let place = match field(name) {
        Some(index) => Place::find(&decl.fields, index, decl.labels.get(&index), false, element),
        // The count of a sequence has a field of its own in traces.
        None => {
            name.strip_prefix('_').and_then(|name| name.strip_suffix("_length")).and_then(field).and_then(|index| {
                let is_whole = element.is_none();
                is_whole.then(|| Place::find(&decl.fields, index, None, true, None))?
            })
        }
    };
    match (place, decl.level) {
        (Some(place), _) => Found::Place(place),
        (None, Some(level)) if is_level => Found::Level(level),
        (None, _) => Found::Missing,
    }
}

impl Tests {
    /// Returns the answer to an event. Wait-free; async-signal-safe; allocates nothing.
    #[inline]
    pub(crate) fn ask(&self, event: &Event<'_>, circumstances: &impl Circumstances) -> Answer {
        self.within(event, circumstances, COST_MAX).unwrap_or(Answer::TooDear)
    }

    /// Returns the answer to an event; `None` if it costs more than `cost`.
    #[inline(always)]
    fn within(&self, event: &Event<'_>, circumstances: &impl Circumstances, mut cost: u32) -> Option<Answer> {
        let (mut next, mut random, mut otherwise) = (0, None, Answer::Rejected);
        loop {
            // Steps only lead to later ones.
            let Some(step) = self.0.get(next as usize) else {
                return Some(if next == ACCEPT { Answer::Accepted } else { otherwise });
            };
            cost = cost.checked_sub(1)?;
            let answer = match &step.ask {
                Ask::Chance(count) => {
                    let number = *random.get_or_insert_with(|| circumstances.random());
                    Some(is_in_sample(number, *count))
                }
                Ask::Rate(rate) => Some(rate.has_room(circumstances.now_ns())),
                ask => ask.answer(event, circumstances, &mut cost)?,
            };
            let is_passed = answer == Some(step.wanted);
            if !is_passed && matches!(step.ask, Ask::Chance(_) | Ask::Rate(_) | Ask::Hash(..)) {
                otherwise = Answer::SampledOut;
            }
            next = if is_passed { step.passed } else { step.failed };
        }
    }
}

impl Ask {
    /// Returns the answer for an event: true, false or unknown. The outer `None`: it costs more than `cost`.
    #[inline(always)]
    fn answer(&self, event: &Event<'_>, circumstances: &impl Circumstances, cost: &mut u32) -> Option<Option<bool>> {
        Some(match self {
            Ask::Integer { offset, kind, operator, constant } => {
                let size_bytes = kind.element_size_bytes();
                let bits = event.bits(*offset, size_bytes);
                bits.map(|bits| {
                    let value = extended(bits, size_bytes, *kind);
                    let order = match is_signed(*kind) {
                        true => value.cmp(constant),
                        false => value.cast_unsigned().cmp(&constant.cast_unsigned()),
                    };
                    operator.holds(Some(order))
                })
            }
            Ask::IsTrue(place) => event.value(place).and_then(|value| value.is_true()),
            Ask::IsOneOf(place, numbers) => match event.value(place) {
                Some(Value::Enumeration(number, _)) => Some(numbers.binary_search(&number).is_ok()),
                _ => None,
            },
            Ask::Given(place, answer) => event.value(place).map(|_| *answer),
            Ask::Hash(source, count) => {
                let value = source.value(event, circumstances);
                if let Some(Value::Text(text)) = &value {
                    *cost = cost.checked_sub((text.len() / 8).min(u32::MAX as usize) as u32)?;
                }
                value.map(|value| is_in_sample(hash(&value), *count))
            }
            // Samples that ask nothing of the event.
            Ask::Chance(_) | Ask::Rate(_) => None,
            Ask::Matches(place, pattern, wanted) => match event.value(place) {
                Some(Value::Text(text)) => Some(pattern.matches(&text, cost)? == *wanted),
                _ => None,
            },
            Ask::TagMatches(tag, pattern) => {
                *cost = cost.checked_sub(TAG_COST)?;
                match circumstances.tag(tag) {
                    Value::Enumeration(number, texts) => {
                        let mut is_too_dear = false;
                        let is_match = texts.any(number, &mut |text| {
                            let found = pattern.matches(text, cost);
                            is_too_dear |= found.is_none();
                            found == Some(true)
                        });
                        if is_too_dear {
                            return None;
                        }
                        Some(is_match)
                    }
                    _ => None,
                }
            }
            Ask::Compare(left, operator, right) => {
                let (left, right) = (left.value(event, circumstances), right.value(event, circumstances));
                let size = |value: &Option<Value<'_>>| match value {
                    Some(Value::Text(text)) => text.len() / 8,
                    _ => 0,
                };
                // A text is compared with another, or with the labels of a number.
                let mut units = size(&left).min(size(&right));
                for source in [self.labels(0), self.labels(1)].into_iter().flatten() {
                    units += source;
                }
                *cost = cost.checked_sub(units.min(u32::MAX as usize) as u32)?;
                left.zip(right).and_then(|(left, right)| left.compare(*operator, &right))
            }
        })
    }

    /// Returns the number of labels of one side of a comparison.
    fn labels(&self, side: usize) -> Option<usize> {
        let Ask::Compare(left, _, right) = self else { return None };
        match [left, right][side] {
            Source::Place(place) => Some(place.labels()?.labels.len()),
            Source::Level(_) => Some(1),
            Source::Tag(_) => Some(TAG_COST as usize),
            Source::Literal(_) => None,
        }
    }
}

impl Source {
    #[inline(always)]
    fn value<'a>(&'a self, event: &Event<'a>, circumstances: &'a impl Circumstances) -> Option<Value<'a>> {
        match self {
            Source::Place(place) => event.value(place),
            Source::Tag(tag) => Some(circumstances.tag(tag)),
            Source::Literal(literal) => Some(literal.value()),
            Source::Level(level) => Some((*level).into()),
        }
    }
}

#[cfg(test)]
mod tests;

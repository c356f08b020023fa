//! Rules bound to random classes, and asked for random events, agree with the conditions that they were made of.

use std::collections::BTreeMap;

use dormouse_abi::class::{FieldType, Label};
use dormouse_abi::rule::value::{Fields, Labels};
use dormouse_abi::rule::{LevelBound, NAME_COUNT_MAX, TEST_COUNT_MAX};
use dormouse_relay::Segment;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::event::LabelList;
use super::*;

/// A value of a field, as a program has it.
#[derive(Debug, Clone)]
enum Given {
    Bits(u64),
    Text(Vec<u8>),
    Elements(Vec<u64>),
}

/// Bytes of an event, and where they are from: fixed-size values in runs, text and elements each in a run of its own.
struct Bytes {
    runs: Vec<Vec<u8>>,
}

impl Bytes {
    fn new(fields: &[(String, FieldType)], values: &[Given], rng: &mut SmallRng) -> Bytes {
        let mut runs: Vec<Vec<u8>> = vec![Vec::new()];
        let last = |runs: &mut Vec<Vec<u8>>, bytes: &[u8]| runs.last_mut().unwrap().extend(bytes);
        for ((_, field_type), value) in fields.iter().zip(values) {
            let size_bytes = field_type.kind.element_size_bytes();
            match value {
                Given::Bits(bits) => last(&mut runs, &bits.to_le_bytes()[..size_bytes]),
                Given::Text(text) => {
                    // As in Rust, with the NUL in the next run; or as in C, with the NUL in its own.
                    let (mut own, mut next) = (text.clone(), vec![]);
                    if rng.random() {
                        own.push(0)
                    } else {
                        next.push(0)
                    }
                    runs.extend([own, next]);
                }
                Given::Elements(elements) => {
                    last(&mut runs, &(elements.len() as u32).to_le_bytes());
                    runs.push(elements.iter().flat_map(|bits| bits.to_le_bytes()[..size_bytes].to_vec()).collect());
                    runs.push(Vec::new());
                }
            }
        }
        Bytes { runs }
    }

    fn segments(&self) -> Vec<Segment> {
        self.runs.iter().map(|run| Segment::exact(run.as_ptr(), run.len())).collect()
    }
}

/// The values of an event by the names of a condition: an account of its own of what names mean.
struct Answers<'a> {
    names: &'a [Name],
    decl: &'a ClassDecl,
    full_name: &'a str,
    values: &'a [Given],
    labels: &'a BTreeMap<usize, LabelList>,
    tags: &'a Tags,
}

impl<'a> Fields<'a> for Answers<'a> {
    fn value(&mut self, name: usize) -> Option<Value<'a>> {
        let mut parts = &self.names[name].parts[..];
        let shown = self.names[name].to_string();
        if let Some((_, tag)) = shown.split_once("tag.") {
            return Some(Value::Enumeration(self.tags.number(tag).into(), &AllTexts));
        } else if parts[0] == Part::Member("fields".into()) {
            parts = &parts[1..];
        } else if parts == [Part::Member("event".into())] {
            return Some(Value::Text(self.full_name.as_bytes().into()));
        } else if parts == [Part::Member("level".into())] {
            return self.decl.level.map(Value::from);
        }
        let Part::Member(name) = &parts[0] else { return None };
        let find = |name: &str| self.decl.fields.iter().position(|(field, _)| field == name);
        let Some(index) = find(name) else {
            let Given::Elements(elements) = &self.values[find(name.strip_prefix('_')?.strip_suffix("_length")?)?]
            else {
                return None;
            };
            return Some(Value::Integer(elements.len() as i128));
        };
        let kind = self.decl.fields[index].1.kind;
        let bits = match (&self.values[index], &parts[1..]) {
            (Given::Text(text), []) => return Some(Value::Text(text.into())),
            (Given::Bits(bits), []) => *bits,
            (Given::Elements(elements), [Part::Index(at)]) => *elements.get(*at as usize)?,
            _ => return None,
        };
        let integer = |size_bits: u32| {
            let bits = bits << (64 - size_bits);
            if is_signed(kind) {
                i128::from(bits.cast_signed() >> (64 - size_bits))
            } else {
                i128::from(bits >> (64 - size_bits))
            }
        };
        Some(match kind {
            Kind::F32 => Value::Float(format!("{}", f32::from_bits(bits as u32)).parse().unwrap()),
            Kind::F64 => Value::Float(f64::from_bits(bits)),
            _ => {
                let number = integer(8 * kind.element_size_bytes() as u32);
                match self.labels.get(&index) {
                    Some(labels) => Value::Enumeration(number, labels),
                    None => Value::Integer(number),
                }
            }
        })
    }
}

const TEXTS: [&[u8]; 9] = [b"", b"a", b"ab", b"abc", b"/tmp/x", b"\xff\xfe", b"LOW", b"HIGH", b"CRIT"];

fn bits(kind: Kind, rng: &mut SmallRng) -> u64 {
    match kind {
        Kind::F32 => {
            [0.0, -0.0, 0.1, 1.0, 2.5, f32::NAN, f32::INFINITY, f32::MIN][rng.random_range(0..8)].to_bits().into()
        }
        Kind::F64 => [0.0, -0.0, 0.1, 1.0, 2.5, f64::NAN, f64::NEG_INFINITY, 1e300][rng.random_range(0..8)].to_bits(),
        Kind::Bool => rng.random_range(0..2),
        _ => {
            let bits = [0, 1, 2, 3, 100, u64::MAX, u64::MAX - 1, 1 << 63, i64::MAX as u64, rng.random()]
                [rng.random_range(0..10)];
            bits & (u64::MAX >> (64 - 8 * kind.element_size_bytes()))
        }
    }
}

fn class(rng: &mut SmallRng) -> ClassDecl {
    let field_type = |rng: &mut SmallRng| loop {
        let byte =
            Kind::ALL[rng.random_range(0..Kind::ALL.len())] as u8 | if rng.random_range(0..4) == 0 { 0x80 } else { 0 };
        if let Some(field_type) = FieldType::from_u8(byte) {
            return field_type;
        }
    };
    let count = rng.random_range(1..=32);
    let fields: Vec<_> = (0..count).map(|index| (format!("f{index}"), field_type(rng))).collect();
    let labels = |rng: &mut SmallRng, kind: Kind| -> Vec<Label> {
        let names = ["LOW", "HIGH", "ab", "x"];
        names
            .iter()
            .map(|name| Label {
                name: name.to_string(),
                bits: extended(bits(kind, rng), kind.element_size_bytes(), kind),
            })
            .collect()
    };
    let mut of_fields = BTreeMap::new();
    for (index, (_, FieldType { kind, sequence })) in fields.iter().enumerate() {
        if !sequence && kind.is_integer() && rng.random_range(0..3) == 0 {
            of_fields.insert(index, labels(rng, *kind));
        }
    }
    let level = Level::from_number(rng.random_range(0..6)).filter(|level| *level <= Level::Err);
    ClassDecl { provider: "p".into(), name: "e".into(), fields, labels: of_fields, level }
}

/// Returns a bound that one rule in eight has.
fn levels(rng: &mut SmallRng) -> Option<LevelBound> {
    match rng.random_range(0..16) {
        0 => Some(LevelBound::AtMost(Level::Crit)),
        1 => Some(LevelBound::Only(Level::Err)),
        _ => None,
    }
}

/// Returns a sample that one rule in two has.
fn sample(decl: &ClassDecl, rng: &mut SmallRng) -> Option<Sample> {
    let count = rng.random_range(1..4);
    let member = |text: String| Part::Member(text);
    let field = format!("f{}", rng.random_range(0..decl.fields.len() + 1));
    let tag = format!("t{}", rng.random_range(0..4));
    match rng.random_range(0..14) {
        12 => Some(Sample::By(Name { parts: vec![member("tag".into()), member(tag)] }, count)),
        0..3 => Some(Sample::OneIn(count)),
        3 => Some(Sample::By(Name { parts: vec![member("event".into())] }, count)),
        4 => Some(Sample::By(Name { parts: vec![member(field), Part::Index(rng.random_range(0..4))] }, count)),
        5 => Some(Sample::By(Name { parts: vec![member(field)] }, count)),
        _ => None,
    }
}

/// Values of the tags `t0`, `t1` and so on.
#[derive(Debug, Clone, Default)]
struct Tags(Vec<u64>);

impl Tags {
    fn drawn(rng: &mut SmallRng) -> Tags {
        let number = |rng: &mut SmallRng| match rng.random_range(0..3) {
            0 => 0,
            1 => text_value(TEXTS[rng.random_range(1..TEXTS.len())]),
            _ => [1, 2, 100, u64::MAX, 1 << 63][rng.random_range(0..5)],
        };
        Tags((0..3).map(|_| number(rng)).collect())
    }

    /// Returns the value of a tag; 0 for one that the process does not have.
    fn number(&self, name: &str) -> u64 {
        let index: Option<usize> = name.strip_prefix('t').and_then(|index| index.parse().ok());
        index.and_then(|index| self.0.get(index).copied()).unwrap_or(0)
    }
}

/// The texts of all tags.
#[derive(Debug)]
struct AllTexts;

impl Labels for AllTexts {
    fn any(&self, number: i128, is_it: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let of_text = |text: &[u8]| if text.is_empty() { 0 } else { i128::from(text_value(text)) };
        TEXTS.iter().any(|text| of_text(text) == number && is_it(text))
    }
}

/// A random number that was drawn before, a time, and the tags of a thread.
struct Fixed(u64, u64, Tags);

impl Circumstances for Fixed {
    fn random(&self) -> u64 {
        self.0
    }

    fn now_ns(&self) -> u64 {
        self.1
    }

    fn tag(&self, tag: &NamedTag) -> Value<'_> {
        Value::Enumeration(self.2.number(tag.name()).into(), &AllTexts)
    }
}

fn values(decl: &ClassDecl, rng: &mut SmallRng) -> Vec<Given> {
    let value = |(_, field_type): &(String, FieldType)| match field_type {
        FieldType { sequence: true, kind } | FieldType { kind: kind @ Kind::Bytes, .. } => {
            let count = rng.random_range(0..4);
            let kind = if *kind == Kind::Bytes { Kind::U8 } else { *kind };
            Given::Elements((0..count).map(|_| bits(kind, rng)).collect())
        }
        FieldType { kind: Kind::Str, .. } => Given::Text(TEXTS[rng.random_range(0..TEXTS.len())].into()),
        FieldType { kind, .. } => Given::Bits(bits(*kind, rng)),
    };
    decl.fields.iter().map(value).collect()
}

fn condition(decl: &ClassDecl, rng: &mut SmallRng) -> Condition {
    let name = |rng: &mut SmallRng| {
        let field = format!("f{}", rng.random_range(0..decl.fields.len() + 1));
        let tag = format!("t{}", rng.random_range(0..4));
        let member = |text: &str| Part::Member(text.into());
        Name {
            parts: match rng.random_range(0..12) {
                9 => vec![member("context"), member("tag"), member(&tag)],
                10 | 11 => vec![member("tag"), member(&tag)],
                0 => vec![member("event")],
                8 => vec![member("level")],
                1 => vec![member("fields"), member(&field)],
                2 => vec![member(&field), Part::Index(rng.random_range(0..4))],
                3 => vec![member(&format!("_{field}_length"))],
                _ => vec![member(&field)],
            },
        }
    };
    let names: Vec<Name> = (0..rng.random_range(1..8)).map(|_| name(rng)).collect();
    let literal = |rng: &mut SmallRng| match rng.random_range(0..5) {
        0 => Literal::Float([0.0, 0.1, 1.0, 2.5, -1e300, 18446744073709551616.0][rng.random_range(0..6)]),
        1 => Literal::Text(TEXTS[rng.random_range(0..TEXTS.len())].into()),
        2 => Literal::Boolean(rng.random()),
        _ => {
            let numbers = [0, 1, 2, 3, 100, -1, i64::MAX.into(), i64::MIN.into(), u64::MAX.into(), 1 << 64, -1 << 64];
            Literal::Integer(numbers[rng.random_range(0..numbers.len())])
        }
    };
    let operand = |rng: &mut SmallRng| match rng.random_range(0..3) {
        0 => Operand::Literal(literal(rng)),
        _ => Operand::Name(rng.random_range(0..names.len()) as u8),
    };
    let count = rng.random_range(1..6);
    let next = |rng: &mut SmallRng, index: usize| match rng.random_range(0..3) {
        0 => Next::Accept,
        1 => Next::Reject,
        _ if index + 1 < count => Next::Test(rng.random_range(index + 1..count) as u8),
        _ => Next::Reject,
    };
    let test = |index, rng: &mut SmallRng| Test {
        question: match rng.random_range(0..5) {
            0 => Question::IsTrue(operand(rng)),
            1 => Question::Matches(
                operand(rng),
                [&b"*"[..], b"a*", b"*b", b"?", b"L*", b"*b*"][rng.random_range(0..6)].into(),
            ),
            _ => Question::Compare(operand(rng), Operator::ALL[rng.random_range(0..6)], operand(rng)),
        },
        wanted: rng.random(),
        passed: next(rng, index),
        failed: next(rng, index),
    };
    let tests = (0..count).map(|index| test(index, rng)).collect();
    Condition { tests, names }
}

#[test]
fn bound_rules_agree_with_their_conditions() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    const { assert!(TEST_COUNT_MAX >= 6 && NAME_COUNT_MAX >= 8) };
    let (mut kept, mut open, mut left_out) = (0, 0, 0);
    for _ in 0..20_000 {
        let decl = class(&mut rng);
        let full_name = decl.full_name();
        let labels: BTreeMap<usize, LabelList> = decl
            .labels
            .iter()
            .map(|(index, labels)| (*index, LabelList::new(decl.fields[*index].1.kind, labels)))
            .collect();
        let rules: Vec<Rule> = (0..rng.random_range(1..4))
            .map(|_| {
                let (levels, sample) = (levels(&mut rng), sample(&decl, &mut rng));
                let condition =
                    if rng.random_range(0..8) == 0 { Condition::default() } else { condition(&decl, &mut rng) };
                Rule { levels, condition, sample, ..Rule::all("p:*") }
            })
            .collect();
        let bound = Bound::new(&rules, &decl);
        for _ in 0..5 {
            let values = values(&decl, &mut rng);
            let tags = Tags::drawn(&mut rng);
            let random: u64 = rng.random();
            let answers = rules.iter().map(|rule| {
                let is_within = match rule.levels {
                    None => true,
                    Some(LevelBound::AtMost(max)) => decl.level.is_some() && decl.level <= Some(max),
                    Some(LevelBound::Only(only)) => decl.level == Some(only),
                };
                let (decl, full_name, values, labels, tags) = (&decl, full_name.as_str(), &values[..], &labels, &tags);
                let answers = |names| Answers { names, decl, full_name, values, labels, tags };
                if !is_within || !rule.condition.holds(&mut answers(&rule.condition.names)) {
                    return Answer::Rejected;
                }
                let is_in = match &rule.sample {
                    None => true,
                    Some(Sample::OneIn(count)) => (random as f64) < 2f64.powi(64) / f64::from(*count),
                    Some(Sample::By(name, count)) => {
                        let value = answers(std::slice::from_ref(name)).value(0);
                        let is_in =
                            value.is_some_and(|value| (hash(&value) as f64) < 2f64.powi(64) / f64::from(*count));
                        // The class decides, and is not armed.
                        if !is_in && !matches!(find_name(name, decl, full_name), Found::Place(_) | Found::Tag(_)) {
                            return Answer::Rejected;
                        }
                        is_in
                    }
                    Some(Sample::PerSecond(_)) => unreachable!("no rule has such a sample"),
                };
                if is_in { Answer::Accepted } else { Answer::SampledOut }
            });
            let answers: Vec<Answer> = answers.collect();
            let first = |wanted| answers.contains(&wanted).then_some(wanted);
            let expected = first(Answer::Accepted).or(first(Answer::SampledOut)).unwrap_or(Answer::Rejected);
            let bytes = Bytes::new(&decl.fields, &values, &mut rng);
            let segments = bytes.segments();
            let found = match &bound {
                Bound::Always => Answer::Accepted,
                // Nobody counts events of a class that is not armed.
                Bound::Never if expected == Answer::SampledOut => expected,
                Bound::Never => Answer::Rejected,
                Bound::If(tests) => {
                    open += 1;
                    // SAFETY: the sources live in `bytes`.
                    let event = unsafe { Event::new(&segments) };
                    tests.ask(&event, &Fixed(random, 0, tags.clone()))
                }
            };
            assert_eq!(found, expected, "{rules:?}\n{decl:?}\n{values:?}\n{tags:?}\n{bound:?}");
            kept += u32::from(found == Answer::Accepted);
            left_out += u32::from(found == Answer::SampledOut);
        }
    }
    let counts = format!("{kept} kept, {open} by tests, {left_out} not in a sample");
    assert!(kept > 10_000 && open > 10_000 && left_out > 2_000, "{counts}");
}

#[test]
fn an_event_of_a_smaller_sample_is_one_of_a_larger_sample() {
    let decl = class_of_level(None);
    let sampled = |count| Rule { sample: Some(Sample::OneIn(count)), ..Rule::all("p:*") };
    let ask = |counts: &[u32], random| {
        let rules: Vec<Rule> = counts.iter().map(|count| sampled(*count)).collect();
        let Bound::If(tests) = Bound::new(&rules, &decl) else { panic!("chance decides") };
        // SAFETY: there is no source.
        let event = unsafe { Event::new(&[]) };
        tests.ask(&event, &Fixed(random, 0, Tags::default()))
    };
    let last_of = |count: u64| u64::MAX / count;
    for (random, of_10, of_100) in [
        (0, Answer::Accepted, Answer::Accepted),
        (last_of(100), Answer::Accepted, Answer::Accepted),
        (last_of(100) + 1, Answer::Accepted, Answer::SampledOut),
        (last_of(10), Answer::Accepted, Answer::SampledOut),
        (last_of(10) + 1, Answer::SampledOut, Answer::SampledOut),
        (u64::MAX, Answer::SampledOut, Answer::SampledOut),
    ] {
        assert_eq!((ask(&[10], random), ask(&[100], random)), (of_10, of_100), "{random}");
        // Both together are the larger one, in either order.
        assert_eq!((ask(&[10, 100], random), ask(&[100, 10], random)), (of_10, of_10), "{random}");
    }
    let rules = [sampled(10), Rule::all("p:e")];
    assert_eq!(Bound::new(&rules, &decl), Bound::Always);
}

#[test]
fn a_rate_is_of_all_events_of_a_class() {
    let rules = [Rule { sample: Some(Sample::PerSecond(2)), ..Rule::all("p:*") }];
    let Bound::If(tests) = Bound::new(&rules, &class_of_level(None)) else { panic!("the time decides") };
    // SAFETY: there is no source.
    let event = unsafe { Event::new(&[]) };
    let answers =
        [0, 0, 0, 500_000_000, 500_000_000].map(|now_ns| tests.ask(&event, &Fixed(0, now_ns, Tags::default())));
    let (accepted, out) = (Answer::Accepted, Answer::SampledOut);
    assert_eq!(answers, [accepted, accepted, out, accepted, out]);
}

/// Returns the class `p:e`, without fields.
fn class_of_level(level: Option<Level>) -> ClassDecl {
    ClassDecl { provider: "p".into(), name: "e".into(), fields: vec![], labels: BTreeMap::new(), level }
}

/// Returns a rule without a condition.
fn rule_of_levels(pattern: &str, levels: Option<LevelBound>, is_exclusion: bool) -> Rule {
    Rule { levels, is_exclusion, ..Rule::all(pattern) }
}

/// A rule does not match a class outside its bound, and a class without a level is outside every bound.
#[test]
fn levels_are_bounds_on_classes() {
    let bound = |rules: &[Rule], level: Option<Level>| Bound::new(rules, &class_of_level(level));
    let important = rule_of_levels("p:*", Some(LevelBound::AtMost(Level::Warning)), false);
    let debugging = rule_of_levels("*", Some(LevelBound::Only(Level::Debug)), true);
    let all = rule_of_levels("*", None, false);
    for (level, by_important, by_all) in [
        (None, Bound::Never, Bound::Always),
        (Some(Level::Emerg), Bound::Always, Bound::Always),
        (Some(Level::Warning), Bound::Always, Bound::Always),
        (Some(Level::Notice), Bound::Never, Bound::Always),
        (Some(Level::Debug), Bound::Never, Bound::Never),
    ] {
        assert_eq!(bound(std::slice::from_ref(&important), level), by_important, "{level:?}");
        assert_eq!(bound(&[all.clone(), debugging.clone()], level), by_all, "{level:?}");
    }
}

/// A condition on the level is decided with the class; a field of that name goes before the level.
#[test]
fn a_level_is_a_name_in_conditions() {
    let test = |operator, literal| Test {
        question: Question::Compare(Operand::Name(0), operator, Operand::Literal(literal)),
        wanted: true,
        passed: Next::Accept,
        failed: Next::Reject,
    };
    let rule = |operator, literal| {
        let names = vec![Name { parts: vec![Part::Member("level".into())] }];
        let condition = Condition { tests: vec![test(operator, literal)], names };
        Rule { condition, ..rule_of_levels("*", None, false) }
    };
    let at_most = rule(Operator::LessOrEqual, Literal::Integer(4));
    let named = rule(Operator::Equal, Literal::Text(b"ERR".into()));
    let bound = |rule: &Rule, decl: &ClassDecl| Bound::new(std::slice::from_ref(rule), decl);
    let (error, debug) = (class_of_level(Some(Level::Err)), class_of_level(Some(Level::Debug)));
    for rule in [&at_most, &named] {
        assert_eq!(bound(rule, &error), Bound::Always);
        assert_eq!(bound(rule, &debug), Bound::Never);
        assert_eq!(bound(rule, &class_of_level(None)), Bound::Never);
    }
    let fields = vec![("level".to_string(), FieldType::scalar(Kind::U8))];
    assert!(matches!(bound(&at_most, &ClassDecl { fields, ..error }), Bound::If(_)));
}

/// Conditions on tags are decided for each event, by the tags and texts that the thread has then.
#[test]
fn tags_are_values_of_the_thread() {
    let ask = |question: Question, wanted, name: &[&str], tags: &[u64]| {
        let name = Name { parts: name.iter().map(|word| Part::Member((*word).into())).collect() };
        let test = Test { question, wanted, passed: Next::Accept, failed: Next::Reject };
        let condition = Condition { tests: vec![test], names: vec![name] };
        match Bound::new(&[Rule { condition, ..Rule::all("p:*") }], &class_of_level(None)) {
            // SAFETY: there is no source.
            Bound::If(tests) => tests.ask(&unsafe { Event::new(&[]) }, &Fixed(0, 0, Tags(tags.into()))),
            Bound::Never => Answer::Rejected,
            Bound::Always => Answer::Accepted,
        }
    };
    let text = |text: &str| Operand::Literal(Literal::Text(text.into()));
    let compare = |operator, text| Question::Compare(Operand::Name(0), operator, text);
    let new = "not in the list";
    let is_new = |operator| compare(operator, text(new));
    let (yes, no) = (Answer::Accepted, Answer::Rejected);
    for (question, tag, expected) in [
        (is_new(Operator::Equal), text_value(new.as_bytes()), yes),
        (is_new(Operator::NotEqual), text_value(new.as_bytes()), no),
        (is_new(Operator::Equal), text_value(b"abc"), no),
        (is_new(Operator::Equal), 0, no),
        (is_new(Operator::NotEqual), 0, yes),
        (is_new(Operator::Less), 0, no),
        (compare(Operator::Equal, text("")), 0, yes),
        (compare(Operator::Equal, text("")), 1, no),
        (compare(Operator::Greater, Operand::Literal(Literal::Integer(i64::MAX.into()))), u64::MAX, yes),
        (Question::Compare(Operand::Literal(Literal::Integer(7)), Operator::Less, Operand::Name(0)), 8, yes),
        (Question::Matches(Operand::Name(0), b"a*".into()), text_value(b"abc"), yes),
        (Question::Matches(Operand::Name(0), b"a*".into()), text_value(b"LOW"), no),
        // Its text is not known.
        (Question::Matches(Operand::Name(0), b"*".into()), text_value(new.as_bytes()), no),
        (Question::Matches(Operand::Name(0), b"*".into()), 0, yes),
        (Question::IsTrue(Operand::Name(0)), 5, yes),
        (Question::IsTrue(Operand::Name(0)), 0, no),
    ] {
        for name in [&["tag", "t0"][..], &["context", "tag", "t0"]] {
            assert_eq!(ask(question.clone(), true, name, &[tag]), expected, "{question:?} {tag}");
        }
        // Unknown: there is no such tag.
        for wanted in [true, false] {
            assert_eq!(ask(question.clone(), wanted, &["tag", "no-tag"], &[tag]), no);
            assert_eq!(ask(question.clone(), wanted, &["fields", "tag", "t0"], &[tag]), no);
        }
    }
}

#[test]
fn an_exclusion_decides() {
    let decl = class_of_level(None);
    let rule = |pattern: &str, is_exclusion| rule_of_levels(pattern, None, is_exclusion);
    assert_eq!(Bound::new(&[rule("*", false)], &decl), Bound::Always);
    assert_eq!(Bound::new(&[rule("*", false), rule("p.e", true)], &decl), Bound::Never);
    assert_eq!(Bound::new(&[rule("*", false), rule("q:*", true)], &decl), Bound::Always);
    assert_eq!(Bound::new(&[rule("q:*", false)], &decl), Bound::Never);
    assert_eq!(Bound::new(&[], &decl), Bound::Never);
}

#[test]
fn the_worst_rule_costs_a_bounded_number_of_steps() {
    let field = ("text".to_string(), FieldType::scalar(Kind::Str));
    let decl = ClassDecl { fields: vec![field], ..class_of_level(None) };
    let text = vec![b'a'; 60_000];
    let segments = [Segment::exact(text.as_ptr(), text.len()), Segment::exact([0].as_ptr(), 1)];
    // SAFETY: the sources are alive.
    let event = unsafe { Event::new(&segments) };
    let name = Name { parts: vec![Part::Member("text".into())] };
    let ask = |question: Question, count: usize| {
        let test = |index: usize| {
            let next = if index + 1 < count { Next::Test(index as u8 + 1) } else { Next::Accept };
            Test { question: question.clone(), wanted: true, passed: next, failed: next }
        };
        let condition = Condition { tests: (0..count).map(test).collect(), names: vec![name.clone()] };
        let rules = [Rule { condition, ..rule_of_levels("*", None, false) }];
        let Bound::If(tests) = Bound::new(&rules, &decl) else { panic!("the event decides") };
        tests.ask(&event, &Fixed(0, 0, Tags::default()))
    };
    let long = Operand::Literal(Literal::Text(vec![b'a'; 30_000]));
    assert_eq!(ask(Question::Matches(Operand::Name(0), b"*a*a*a*b".into()), 1), Answer::TooDear);
    assert_eq!(ask(Question::Compare(Operand::Name(0), Operator::Less, long.clone()), 1), Answer::Accepted);
    assert_eq!(ask(Question::Compare(Operand::Name(0), Operator::Less, long), 256), Answer::TooDear);
    assert_eq!(ask(Question::Compare(Operand::Name(0), Operator::Less, Operand::Name(0)), 1), Answer::TooDear);
    assert_eq!(ask(Question::Matches(Operand::Name(0), b"*a".into()), 256), Answer::Accepted);
}

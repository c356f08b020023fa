//! Rules as bytes.
//!
//! ```text
//!   rules     count of rules, then each:
//!     rule      0, or 1 for an exclusion, plus 2 for a greatest level or 4 for a single one, plus 8, 16 or 24 for a
//!               sample by chance, by time or by a field; that level, if there is one (1 byte); text of the pattern;
//!               names; tests; of a sample the number, and after it the field's name (1 name)
//!     names     count of names, then each: count of parts, then each: 0 and a text, or 1 and a number
//!     tests     count of tests, then each:
//!       test      number of the question, with the highest bit for a wanted answer of true
//!                   0  operand                        whether it is true
//!                   1  operand, relation, operand     whether the relation holds
//!                   2  operand, text                  whether the pattern matches
//!                 what follows if the test is passed, and if not: 0 accepts, 1 rejects, 2 + N is test N
//!       operand   0 and the index of a name (1 byte), or a constant:
//!                   1  integer: a number, of which the lowest bit is the sign
//!                   2  float: 8 bytes, little-endian
//!                   3  text
//!                   4  false
//!                   5  true
//! ```
//! A number, and so a count and a length, has 7 bits in each byte, the lowest first. The highest bit of a byte says
//! that another one follows; the last of several bytes is not 0. A text is its length and its bytes. So a list of rules
//! is encoded in one way only: bytes that are decoded are those that are encoded again.
//!
//! The decoder accepts any bytes, and returns `None` for those that no encoder writes. It never panics, and allocates
//! in proportion to the size of its input: nothing is allocated for a count before its items are there.

use alloc::string::String;
use alloc::vec::Vec;

use super::value::Operator;
use super::{
    Condition, LevelBound, Literal, NAME_COUNT_MAX, Name, Next, Operand, PART_COUNT_MAX, Part, Question,
    RULE_COUNT_MAX, RULES_SIZE_BYTES_MAX, Rule, SAMPLE_MAX, Sample, TEST_COUNT_MAX, Test,
};
use crate::class::Level;

/// Bits of a rule's first byte.
const EXCLUSION: u8 = 1;
const AT_MOST: u8 = 2;
const ONLY: u8 = 4;
const LEVELS: u8 = AT_MOST | ONLY;
const ONE_IN: u8 = 8;
const PER_SECOND: u8 = 16;
const BY: u8 = 24;
const SAMPLE: u8 = ONE_IN | PER_SECOND;

const MEMBER: u8 = 0;
const INDEX: u8 = 1;

const IS_TRUE: u8 = 0;
const COMPARE: u8 = 1;
const MATCHES: u8 = 2;
/// Bit of a question's byte: the wanted answer is true.
const WANTED: u8 = 0x80;

const NAME: u8 = 0;
const INTEGER: u8 = 1;
const FLOAT: u8 = 2;
const TEXT: u8 = 3;
const FALSE: u8 = 4;
const TRUE: u8 = 5;

const ACCEPT: usize = 0;
const REJECT: usize = 1;
/// The number of test 0.
const FIRST_TEST: usize = 2;

/// Encodes rules. Rules that exceed a limit of [`rule`](crate::rule) are encoded too, but not decoded.
pub fn to_bytes(rules: &[Rule]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_count(&mut bytes, rules.len());
    for Rule { pattern, levels, is_exclusion, condition, sample } in rules {
        let exclusion = if *is_exclusion { EXCLUSION } else { 0 };
        let head = exclusion
            | match sample {
                None => 0,
                Some(Sample::OneIn(_)) => ONE_IN,
                Some(Sample::PerSecond(_)) => PER_SECOND,
                Some(Sample::By(..)) => BY,
            };
        match levels {
            None => bytes.push(head),
            Some(LevelBound::AtMost(level)) => bytes.extend([head | AT_MOST, *level as u8]),
            Some(LevelBound::Only(level)) => bytes.extend([head | ONLY, *level as u8]),
        }
        put_text(&mut bytes, pattern.as_bytes());
        put_count(&mut bytes, condition.names.len());
        condition.names.iter().for_each(|name| put_name(&mut bytes, name));
        put_count(&mut bytes, condition.tests.len());
        condition.tests.iter().for_each(|test| put_test(&mut bytes, test));
        match sample {
            None => {}
            Some(Sample::OneIn(count) | Sample::PerSecond(count)) => put_number(&mut bytes, (*count).into()),
            Some(Sample::By(name, count)) => {
                put_number(&mut bytes, (*count).into());
                put_name(&mut bytes, name);
            }
        }
    }
    bytes
}

fn put_name(bytes: &mut Vec<u8>, name: &Name) {
    put_count(bytes, name.parts.len());
    for part in &name.parts {
        match part {
            Part::Member(member) => {
                bytes.push(MEMBER);
                put_text(bytes, member.as_bytes());
            }
            Part::Index(index) => {
                bytes.push(INDEX);
                put_number(bytes, (*index).into());
            }
        }
    }
}

fn put_test(bytes: &mut Vec<u8>, test: &Test) {
    let wanted = if test.wanted { WANTED } else { 0 };
    match &test.question {
        Question::IsTrue(operand) => {
            bytes.push(IS_TRUE | wanted);
            put_operand(bytes, operand);
        }
        Question::Compare(left, operator, right) => {
            bytes.push(COMPARE | wanted);
            put_operand(bytes, left);
            bytes.push(*operator as u8);
            put_operand(bytes, right);
        }
        Question::Matches(operand, pattern) => {
            bytes.push(MATCHES | wanted);
            put_operand(bytes, operand);
            put_text(bytes, pattern);
        }
    }
    for next in [test.passed, test.failed] {
        let number = match next {
            Next::Accept => ACCEPT,
            Next::Reject => REJECT,
            Next::Test(index) => FIRST_TEST + usize::from(index),
        };
        put_count(bytes, number);
    }
}

fn put_operand(bytes: &mut Vec<u8>, operand: &Operand) {
    match operand {
        Operand::Name(index) => bytes.extend([NAME, *index]),
        Operand::Literal(Literal::Integer(integer)) => {
            bytes.push(INTEGER);
            let integer = *integer;
            put_number(bytes, ((integer << 1) ^ (integer >> 127)).cast_unsigned());
        }
        Operand::Literal(Literal::Float(float)) => {
            bytes.push(FLOAT);
            bytes.extend(float.to_bits().to_le_bytes());
        }
        Operand::Literal(Literal::Text(text)) => {
            bytes.push(TEXT);
            put_text(bytes, text);
        }
        Operand::Literal(Literal::Boolean(boolean)) => bytes.push(if *boolean { TRUE } else { FALSE }),
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    put_count(bytes, text.len());
    bytes.extend_from_slice(text);
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    put_number(bytes, count as u128);
}

fn put_number(bytes: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Decodes rules. Returns `None` for bytes that are not rules within the limits of [`rule`](crate::rule): then
/// conditions end, and their tests refer to names that they have.
pub fn from_bytes(bytes: &[u8]) -> Option<Vec<Rule>> {
    if bytes.len() > RULES_SIZE_BYTES_MAX {
        return None;
    }
    let mut rest = Rest(bytes);
    let rules = rest.list(RULE_COUNT_MAX, take_rule)?;
    rest.0.is_empty().then_some(rules)
}

fn take_rule(rest: &mut Rest<'_>) -> Option<Rule> {
    let head = rest.byte()?;
    let is_exclusion = head & EXCLUSION != 0;
    if head & !(EXCLUSION | LEVELS | SAMPLE) != 0 {
        return None;
    }
    let levels = match head & LEVELS {
        0 => None,
        AT_MOST => Some(LevelBound::AtMost(Level::from_number(rest.byte()?)?)),
        ONLY => Some(LevelBound::Only(Level::from_number(rest.byte()?)?)),
        _ => return None,
    };
    let pattern = rest.text()?;
    let names = rest.list(NAME_COUNT_MAX, take_name)?;
    let test_count = rest.count(TEST_COUNT_MAX)?;
    let mut tests = Vec::new();
    for index in 0..test_count {
        tests.push(take_test(rest, index, test_count, names.len())?);
    }
    let sample = take_sample(rest, head & SAMPLE)?;
    let is_plain = tests.is_empty() && names.is_empty() && sample.is_none();
    let condition = Condition { tests, names };
    (!is_exclusion || is_plain).then_some(Rule { pattern, levels, is_exclusion, condition, sample })
}

/// Decodes a sample of this kind, or none.
fn take_sample(rest: &mut Rest<'_>, kind: u8) -> Option<Option<Sample>> {
    if kind == 0 {
        return Some(None);
    }
    let count = u32::try_from(rest.number()?).ok().filter(|count| (1..=SAMPLE_MAX).contains(count))?;
    Some(Some(match kind {
        ONE_IN => Sample::OneIn(count),
        PER_SECOND => Sample::PerSecond(count),
        _ => Sample::By(take_name(rest)?, count),
    }))
}

fn take_name(rest: &mut Rest<'_>) -> Option<Name> {
    let parts = rest.list(PART_COUNT_MAX, take_part)?;
    (!parts.is_empty()).then_some(Name { parts })
}

fn take_part(rest: &mut Rest<'_>) -> Option<Part> {
    match rest.byte()? {
        MEMBER => Some(Part::Member(rest.text()?)),
        INDEX => Some(Part::Index(rest.number()?.try_into().ok()?)),
        _ => None,
    }
}

fn take_test(rest: &mut Rest<'_>, index: usize, test_count: usize, name_count: usize) -> Option<Test> {
    let head = rest.byte()?;
    let question = match head & !WANTED {
        IS_TRUE => Question::IsTrue(take_operand(rest, name_count)?),
        COMPARE => {
            let left = take_operand(rest, name_count)?;
            let operator = *Operator::ALL.get(usize::from(rest.byte()?))?;
            Question::Compare(left, operator, take_operand(rest, name_count)?)
        }
        MATCHES => {
            let operand = take_operand(rest, name_count)?;
            Question::Matches(operand, rest.counted()?.to_vec())
        }
        _ => return None,
    };
    let passed = take_next(rest, index, test_count)?;
    let failed = take_next(rest, index, test_count)?;
    Some(Test { question, wanted: head & WANTED != 0, passed, failed })
}

/// Decodes what follows the test with this index.
fn take_next(rest: &mut Rest<'_>, index: usize, test_count: usize) -> Option<Next> {
    match rest.count(FIRST_TEST + TEST_COUNT_MAX)? {
        ACCEPT => Some(Next::Accept),
        REJECT => Some(Next::Reject),
        number => {
            let next = number - FIRST_TEST;
            let is_later = index < next && next < test_count;
            Some(Next::Test(u8::try_from(next).ok().filter(|_| is_later)?))
        }
    }
}

fn take_operand(rest: &mut Rest<'_>, name_count: usize) -> Option<Operand> {
    Some(Operand::Literal(match rest.byte()? {
        NAME => {
            let index = rest.byte()?;
            return (usize::from(index) < name_count).then_some(Operand::Name(index));
        }
        INTEGER => {
            let number = rest.number()?;
            Literal::Integer((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
        }
        FLOAT => Literal::Float(f64::from_bits(u64::from_le_bytes(rest.take(8)?.try_into().ok()?))),
        TEXT => Literal::Text(rest.counted()?.to_vec()),
        FALSE => Literal::Boolean(false),
        TRUE => Literal::Boolean(true),
        _ => return None,
    }))
}

/// Bytes that are not decoded yet.
#[derive(Debug)]
struct Rest<'b>(&'b [u8]);

impl<'b> Rest<'b> {
    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn number(&mut self) -> Option<u128> {
        let mut number = 0;
        for shift in (0..u128::BITS).step_by(7) {
            let byte = self.byte()?;
            let digit = u128::from(byte & 0x7F);
            let part = digit << shift;
            // Bits beyond those of a number.
            if part >> shift != digit {
                return None;
            }
            number |= part;
            if byte < 0x80 {
                return (byte != 0 || shift == 0).then_some(number);
            }
        }
        None
    }

    fn count(&mut self, max: usize) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|count| *count <= max)
    }

    /// Takes a length, and as many bytes.
    fn counted(&mut self) -> Option<&'b [u8]> {
        let len = self.count(RULES_SIZE_BYTES_MAX)?;
        self.take(len)
    }

    fn text(&mut self) -> Option<String> {
        core::str::from_utf8(self.counted()?).ok().map(String::from)
    }

    fn list<T>(&mut self, count_max: usize, take_item: impl Fn(&mut Rest<'b>) -> Option<T>) -> Option<Vec<T>> {
        let count = self.count(count_max)?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(take_item(self)?);
        }
        Some(items)
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec;

    use proptest::collection::vec as list;
    use proptest::prelude::*;

    use super::*;
    use crate::rule::value::{Fields, Value};

    fn part() -> impl Strategy<Value = Part> {
        prop_oneof![3 => "[a-zß]{0,8}".prop_map(Part::Member), 1 => any::<u64>().prop_map(Part::Index)]
    }

    fn name() -> impl Strategy<Value = Name> {
        let member = |word: &str| Part::Member(word.into());
        let tag = move |(is_of_context, name)| {
            let scopes = if is_of_context { vec![member("context"), member("tag")] } else { vec![member("tag")] };
            Name { parts: [scopes, vec![Part::Member(name)]].concat() }
        };
        prop_oneof![
            3 => list(part(), 1..4).prop_map(|parts| Name { parts }),
            1 => (any::<bool>(), "[a-z0-9_ ß]{0,40}").prop_map(tag),
        ]
    }

    fn literal() -> impl Strategy<Value = Literal> {
        prop_oneof![
            any::<i128>().prop_map(Literal::Integer),
            any::<i64>().prop_map(|integer| Literal::Integer(integer.into())),
            (-100i128..100).prop_map(Literal::Integer),
            any::<u64>().prop_map(|bits| Literal::Float(f64::from_bits(bits))),
            list(any::<u8>(), 0..20).prop_map(Literal::Text),
            any::<bool>().prop_map(Literal::Boolean),
        ]
    }

    /// Number of names that the operands use. Conditions have at least as many.
    const NAME_COUNT: u8 = 4;

    fn operand() -> impl Strategy<Value = Operand> {
        prop_oneof![(0..NAME_COUNT).prop_map(Operand::Name), literal().prop_map(Operand::Literal)]
    }

    fn question() -> impl Strategy<Value = Question> {
        let operator = proptest::sample::select(&Operator::ALL[..]);
        prop_oneof![
            operand().prop_map(Question::IsTrue),
            (operand(), operator, operand())
                .prop_map(|(left, operator, right)| Question::Compare(left, operator, right)),
            (operand(), list(any::<u8>(), 0..20)).prop_map(|(operand, pattern)| Question::Matches(operand, pattern)),
        ]
    }

    /// Returns one of the things that may follow a test.
    fn next(draw: u8, index: usize, test_count: usize) -> Next {
        match usize::from(draw) % (test_count - index + 1) {
            0 => Next::Accept,
            1 => Next::Reject,
            distance => Next::Test((index + distance - 1) as u8),
        }
    }

    fn condition() -> impl Strategy<Value = Condition> {
        let names = list(name(), usize::from(NAME_COUNT)..8);
        let tests = list((question(), any::<bool>(), any::<u8>(), any::<u8>()), 0..12);
        (names, tests).prop_map(|(names, drawn)| {
            let test_count = drawn.len();
            let drawn = drawn.into_iter().enumerate();
            let tests = drawn.map(|(index, (question, wanted, passed, failed))| Test {
                question,
                wanted,
                passed: next(passed, index, test_count),
                failed: next(failed, index, test_count),
            });
            Condition { tests: tests.collect(), names }
        })
    }

    fn levels() -> impl Strategy<Value = Option<LevelBound>> {
        let level = || proptest::sample::select(&Level::ALL[..]);
        prop_oneof![
            2 => Just(None),
            1 => level().prop_map(|level| Some(LevelBound::AtMost(level))),
            1 => level().prop_map(|level| Some(LevelBound::Only(level))),
        ]
    }

    fn sample() -> impl Strategy<Value = Option<Sample>> {
        let count = 1..=SAMPLE_MAX;
        prop_oneof![
            2 => Just(None),
            1 => count.clone().prop_map(|count| Some(Sample::OneIn(count))),
            1 => count.clone().prop_map(|count| Some(Sample::PerSecond(count))),
            1 => (name(), count).prop_map(|(name, count)| Some(Sample::By(name, count))),
        ]
    }

    fn rules() -> impl Strategy<Value = Vec<Rule>> {
        let drawn = (any::<bool>(), "[a-zß*?:]{0,12}", levels(), condition(), sample());
        let rule = drawn.prop_map(|(is_exclusion, pattern, levels, condition, sample)| match is_exclusion {
            true => Rule { levels, is_exclusion, ..Rule::all(pattern) },
            false => Rule { pattern, levels, is_exclusion, condition, sample },
        });
        list(rule, 0..6)
    }

    /// Some events have some of the fields.
    struct Event(u8);

    impl<'a> Fields<'a> for Event {
        fn value(&mut self, name: usize) -> Option<Value<'a>> {
            match (usize::from(self.0) + name) % 5 {
                0 => Some(Value::Integer(i128::from(u64::MAX))),
                1 => Some(Value::Float(f64::NAN)),
                2 => Some(Value::Text(b"a\xffb"[..].into())),
                3 => Some(Value::Boolean(true)),
                _ => None,
            }
        }
    }

    /// Checks that bytes that are decoded are encoded again, and that the conditions end.
    fn check(bytes: &[u8]) {
        let Some(rules) = from_bytes(bytes) else { return };
        assert_eq!(to_bytes(&rules), bytes);
        for rule in &rules {
            for event in 0..5 {
                let _ = rule.condition.holds(&mut Event(event));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn rules_are_decoded_as_encoded(rules in rules(), bit: usize, cut: usize) {
            let bytes = to_bytes(&rules);
            let decoded = from_bytes(&bytes).expect("valid rules");
            // As text, because NaN is not equal to itself.
            prop_assert_eq!(format!("{decoded:?}"), format!("{rules:?}"));
            check(&bytes);
            // A count comes first, so that no beginning is whole.
            prop_assert_eq!(from_bytes(&bytes[..cut % bytes.len()]), None);
            prop_assert_eq!(from_bytes(&[&bytes[..], &[0]].concat()), None);
            let mut changed = bytes;
            let len = changed.len();
            changed[bit / 8 % len] ^= 1 << (bit % 8);
            check(&changed);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(
            bytes in list(any::<u8>(), 0..200),
            small in list(prop_oneof![8 => 0u8..6, 1 => Just(WANTED), 1 => Just(WANTED | COMPARE)], 0..40),
        ) {
            check(&bytes);
            check(&small);
        }

        #[test]
        fn numbers_have_one_encoding(number: u128, shift in 0..u128::BITS, bytes in list(any::<u8>(), 0..24)) {
            let number = number >> shift;
            let mut encoded = Vec::new();
            put_number(&mut encoded, number);
            let mut rest = Rest(&encoded);
            prop_assert_eq!((rest.number(), rest.0.len()), (Some(number), 0));
            let mut rest = Rest(&bytes);
            if let Some(number) = rest.number() {
                let mut again = Vec::new();
                put_number(&mut again, number);
                prop_assert_eq!(&again[..], &bytes[..bytes.len() - rest.0.len()]);
            }
        }
    }

    fn rule(tests: Vec<Test>, names: Vec<Name>) -> Rule {
        Rule { condition: Condition { tests, names }, ..Rule::all("shop:*") }
    }

    fn test(passed: Next, failed: Next) -> Test {
        Test { question: Question::IsTrue(Operand::Literal(Literal::Boolean(true))), wanted: true, passed, failed }
    }

    fn is_decoded(rules: &[Rule]) -> bool {
        from_bytes(&to_bytes(rules)).is_some_and(|decoded| decoded == rules)
    }

    #[test]
    fn limits_are_checked() {
        let word = |len: usize| Name { parts: vec![Part::Member("a".into()); len] };
        for (count, expected) in [(RULE_COUNT_MAX, true), (RULE_COUNT_MAX + 1, false)] {
            assert_eq!(is_decoded(&vec![rule(Vec::new(), Vec::new()); count]), expected, "{count} rules");
        }
        for (count, expected) in [(TEST_COUNT_MAX, true), (TEST_COUNT_MAX + 1, false)] {
            let mut tests: Vec<Test> = (1..count).map(|next| test(Next::Accept, Next::Test(next as u8))).collect();
            tests.push(test(Next::Accept, Next::Reject));
            assert_eq!(is_decoded(&[rule(tests, Vec::new())]), expected, "{count} tests");
            let tests = vec![test(Next::Accept, Next::Reject); count];
            assert_eq!(is_decoded(&[rule(tests, Vec::new())]), expected, "{count} tests");
        }
        for (count, expected) in [(0, true), (NAME_COUNT_MAX, true), (NAME_COUNT_MAX + 1, false)] {
            assert_eq!(is_decoded(&[rule(Vec::new(), vec![word(1); count])]), expected, "{count} names");
        }
        for (count, expected) in [(0, false), (1, true), (PART_COUNT_MAX, true), (PART_COUNT_MAX + 1, false)] {
            assert_eq!(is_decoded(&[rule(Vec::new(), vec![word(count)])]), expected, "{count} parts");
        }
        let long = |len: usize| Rule { pattern: "a".repeat(len), ..rule(Vec::new(), Vec::new()) };
        let room = RULES_SIZE_BYTES_MAX - (to_bytes(&[long(RULES_SIZE_BYTES_MAX)]).len() - RULES_SIZE_BYTES_MAX);
        assert!(is_decoded(&[long(room)]));
        assert!(!is_decoded(&[long(room + 1)]));
        assert!(!is_decoded(&[long(usize::from(u16::MAX) + 1)]));
    }

    #[test]
    fn tests_come_later_and_have_their_names() {
        for (next, expected) in [(0, false), (1, false), (2, true), (3, false), (255, false)] {
            let middle = test(Next::Reject, Next::Test(next));
            let tests = vec![test(Next::Accept, Next::Test(1)), middle, test(Next::Accept, Next::Reject)];
            assert_eq!(is_decoded(&[rule(tests, Vec::new())]), expected, "{next}");
        }
        for (name, expected) in [(0, true), (1, false), (255, false)] {
            let question = Question::IsTrue(Operand::Name(name));
            let asked = Test { question, ..test(Next::Accept, Next::Reject) };
            let names = vec![Name { parts: vec![Part::Index(u64::MAX)] }];
            assert_eq!(is_decoded(&[rule(vec![asked], names)]), expected, "{name}");
        }
        let exclusion = |rule: Rule| Rule { is_exclusion: true, ..rule };
        assert!(is_decoded(&[exclusion(rule(Vec::new(), Vec::new()))]));
        assert!(!is_decoded(&[exclusion(rule(vec![test(Next::Accept, Next::Reject)], Vec::new()))]));
    }

    #[test]
    fn levels_are_those_that_there_are() {
        let plain = rule(Vec::new(), Vec::new());
        for level in Level::ALL {
            for (levels, head) in [(LevelBound::AtMost(level), 2), (LevelBound::Only(level), 4)] {
                for (is_exclusion, bit) in [(false, 0), (true, 1)] {
                    let rule = Rule { levels: Some(levels), is_exclusion, ..plain.clone() };
                    let bytes = to_bytes(core::slice::from_ref(&rule));
                    assert_eq!(bytes[..3], [1, head | bit, level as u8]);
                    assert_eq!(from_bytes(&bytes), Some(vec![rule]));
                    for (index, byte) in [(1, 6), (1, 32), (2, 15), (2, 0xFF)] {
                        let mut changed = bytes.clone();
                        changed[index] = byte;
                        assert_eq!(from_bytes(&changed), None, "{changed:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn samples_are_those_that_there_are() {
        let plain = rule(Vec::new(), Vec::new());
        let name = |len: usize| Name { parts: vec![Part::Member("a".into()); len] };
        let sampled = |sample: Sample| Rule { sample: Some(sample), ..plain.clone() };
        for count in [1, 100, SAMPLE_MAX] {
            for sample in [Sample::OneIn(count), Sample::PerSecond(count), Sample::By(name(2), count)] {
                assert!(is_decoded(&[sampled(sample.clone())]), "{sample:?}");
                assert!(!is_decoded(&[Rule { is_exclusion: true, ..sampled(sample) }]));
            }
        }
        for count in [0, SAMPLE_MAX + 1, u32::MAX] {
            assert!(!is_decoded(&[sampled(Sample::OneIn(count))]), "{count}");
        }
        assert!(!is_decoded(&[sampled(Sample::By(name(0), 100))]));
    }

    #[test]
    fn numbers_of_every_size_are_kept() {
        for integer in [0, 1, -1, 63, 64, -64, -65, i64::MIN.into(), u64::MAX.into(), i128::MIN, i128::MAX] {
            let question = Question::IsTrue(Operand::Literal(Literal::Integer(integer)));
            assert!(is_decoded(&[rule(vec![Test { question, ..test(Next::Accept, Next::Reject) }], Vec::new())]));
        }
    }

    #[test]
    fn bytes_that_are_no_rules_are_refused() {
        assert_eq!(from_bytes(&[0]), Some(Vec::new()));
        let valid = [1, 0, 1, b'a', 0, 1, WANTED, 5, 0, 1];
        assert_eq!(from_bytes(&valid).map(|rules| to_bytes(&rules)), Some(valid.to_vec()));
        let with = |index: usize, byte: u8| {
            let mut bytes = valid.to_vec();
            bytes[index] = byte;
            bytes
        };
        for bytes in [
            vec![],
            // Numbers that are too long, too large, or without an end.
            vec![0x80, 0],
            [&[0xFFu8; 18][..], &[0x04]].concat(),
            vec![0xFF; 40],
            // Unknown numbers.
            with(1, 32),
            with(6, WANTED | 3),
            with(7, 6),
            // A relation, a pattern that is not UTF-8, and its length.
            vec![1, 0, 1, b'a', 0, 1, WANTED | COMPARE, 5, 6, 5, 0, 1],
            with(3, 0xFF),
            with(2, 100),
            // A part of a name.
            vec![1, 0, 1, b'a', 1, 1, 2, 0, 0],
            // An index beyond 64 bits.
            [&[1, 0, 1, b'a', 1, 1, INDEX][..], &[0xFF; 9], &[0x02, 0]].concat(),
        ] {
            assert_eq!(from_bytes(&bytes), None, "{bytes:?}");
        }
    }
}

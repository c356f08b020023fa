//! Rules: which events of which classes a session records.
//!
//! ```text
//!   -e 'http:* where bytes > 4K'                      session owner            program
//!      │ parse (read/filter)                             │                        │
//!      ▼                                                 ▼                        ▼
//!   Rule: pattern, condition ──▶ to_bytes ──▶ rules in the register ──▶ from_bytes ──▶ bound to each class
//! ```
//! A condition is a list of tests. Each test has two successors, which come later in the list, so that a condition ends
//! after at most as many steps as it has tests:
//!
//! ```text
//!   bytes > 4096 or not path ~ "/tmp/*"
//!
//!   0  bytes > 4096       is true    yes ▶ accept    no ▶ 1
//!   1  path ~ "/tmp/*"    is false   yes ▶ accept    no ▶ reject
//! ```
//! A comparison can be *unknown*, which is neither true nor false; see [`value`]. So a test asks for one of the two.
//!
//! Rules reach a program from another process, which may have written anything: [`from_bytes`] checks every byte.

mod code;
pub mod published;
mod sample;
pub mod value;

pub use code::{from_bytes, to_bytes};
pub use sample::{RANDOM_KEYS, SAMPLE_MAX, Sample, hash, is_in_sample, mixed, random};

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::class::{Level, matches};
use value::{Fields, Operator, Value};

/// Text of a rule without a condition for all classes.
pub const ALL: &str = "*";
/// Maximum number of rules of a session.
pub const RULE_COUNT_MAX: usize = 64;
/// Maximum number of tests of a condition.
pub const TEST_COUNT_MAX: usize = 256;
/// Maximum number of names of a condition.
pub const NAME_COUNT_MAX: usize = 64;
/// Maximum number of parts of a name.
pub const PART_COUNT_MAX: usize = 8;
/// Maximum size of all rules of a session, in bytes.
pub const RULES_SIZE_BYTES_MAX: usize = 32 << 10;

/// A rule. A class is armed if a rule that is no exclusion matches it, and no exclusion does. One of its events is
/// recorded if one of these rules selects it: its condition is true, and the event is in its sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Pattern of `provider:name`; see [`matches()`].
    pub pattern: String,
    /// Levels of the classes that the rule matches; `None`: any, or no level.
    pub levels: Option<LevelBound>,
    /// Whether classes that match are not recorded.
    pub is_exclusion: bool,
    /// Condition on events; [`Condition::default`] is true for all. An exclusion has no other.
    pub condition: Condition,
    /// Sample of the events for which the condition is true; `None`: all of them. An exclusion has none.
    pub sample: Option<Sample>,
}

impl Rule {
    /// Returns a rule that selects all events of the classes that match `pattern`.
    pub fn all(pattern: impl Into<String>) -> Rule {
        let (pattern, condition) = (pattern.into(), Condition::default());
        Rule { pattern, levels: None, is_exclusion: false, condition, sample: None }
    }

    /// Whether the rule matches a class with this `provider:name` and level.
    pub fn matches(&self, full_name: &str, level: Option<Level>) -> bool {
        matches(&self.pattern, full_name) && self.levels.is_none_or(|levels| levels.admits(level))
    }
}

/// A bound on the levels of event classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LevelBound {
    /// This level and those that are more important.
    AtMost(Level),
    /// This level only.
    Only(Level),
}

impl LevelBound {
    /// Whether a class of this level is within the bound. A class without a level is within none.
    pub fn admits(self, level: Option<Level>) -> bool {
        match self {
            LevelBound::AtMost(max) => level.is_some_and(|level| level <= max),
            LevelBound::Only(only) => level == Some(only),
        }
    }
}

/// A condition on events of any class. Without tests it is true.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Condition {
    /// The tests; the first one comes first.
    pub tests: Vec<Test>,
    /// Names of fields and tags, which the tests refer to by index.
    pub names: Vec<Name>,
}

impl Condition {
    /// Returns a condition that is true for no event.
    pub fn never() -> Condition {
        let question = Question::IsTrue(Operand::Literal(Literal::Boolean(false)));
        let test = Test { question, wanted: true, passed: Next::Accept, failed: Next::Reject };
        Condition { tests: vec![test], names: Vec::new() }
    }

    /// Whether the condition is true for an event. Ends after at most as many steps as there are tests: a jump that
    /// does not go forward rejects.
    pub fn holds<'a>(&'a self, fields: &mut impl Fields<'a>) -> bool {
        let mut index = 0;
        while let Some(test) = self.tests.get(index) {
            let is_passed = test.question.answer(fields) == Some(test.wanted);
            let next = if is_passed { test.passed } else { test.failed };
            match next {
                Next::Accept => return true,
                Next::Test(later) if usize::from(later) > index => index = usize::from(later),
                Next::Test(_) | Next::Reject => return false,
            }
        }
        self.tests.is_empty()
    }
}

/// A test, and what follows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Test {
    /// The question.
    pub question: Question,
    /// The answer that passes the test: true or false. An unknown answer passes no test.
    pub wanted: bool,
    /// Next step if the test is passed.
    pub passed: Next,
    /// Next step if it is not.
    pub failed: Next,
}

/// A question about an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Question {
    /// Whether a value is true: a number other than 0.
    IsTrue(Operand),
    /// Whether a relation between two values holds.
    Compare(Operand, Operator, Operand),
    /// Whether text, or a label, matches a pattern.
    Matches(Operand, Vec<u8>),
}

impl Question {
    /// Returns the answer for an event; `None` if it is unknown.
    pub fn answer<'a>(&'a self, fields: &mut impl Fields<'a>) -> Option<bool> {
        match self {
            Question::IsTrue(operand) => operand.value(fields)?.is_true(),
            Question::Compare(left, operator, right) => {
                let left = left.value(fields)?;
                left.compare(*operator, &right.value(fields)?)
            }
            Question::Matches(operand, pattern) => operand.value(fields)?.matches(pattern),
        }
    }
}

/// A value in a question.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// Value of the field or tag with this index in [`Condition::names`].
    Name(u8),
    /// A constant.
    Literal(Literal),
}

impl Operand {
    /// Returns the value for an event; `None` if the event has none.
    pub fn value<'a>(&'a self, fields: &mut impl Fields<'a>) -> Option<Value<'a>> {
        match self {
            Operand::Name(name) => fields.value(usize::from(*name)),
            Operand::Literal(literal) => Some(literal.value()),
        }
    }
}

/// A constant.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Literal {
    Integer(i128),
    Float(f64),
    Text(Vec<u8>),
    Boolean(bool),
}

impl Literal {
    /// Returns the value.
    pub fn value(&self) -> Value<'_> {
        match self {
            Literal::Integer(integer) => Value::Integer(*integer),
            Literal::Float(float) => Value::Float(*float),
            Literal::Text(text) => Value::Text(text.into()),
            Literal::Boolean(boolean) => Value::Boolean(*boolean),
        }
    }
}

/// Step after a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The test with this index, which is greater than that of the test before it.
    Test(u8),
    /// The event is recorded.
    Accept,
    /// It is not.
    Reject,
}

/// Name of a field, `a.b[2]`, or of a tag, `tag.user`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The parts, at least one.
    pub parts: Vec<Part>,
}

/// A part of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Member of a structure or variant.
    Member(String),
    /// Element of an array.
    Index(u64),
}

impl Name {
    /// Returns the name if it has a single part.
    pub fn word(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [Part::Member(word)] => Some(word),
            _ => None,
        }
    }

    /// Returns the name of the tag that `tag.NAME` or `context.tag.NAME` stands for, which may be one that no tag may
    /// have. No field of a program has such a name.
    pub fn tag(&self) -> Option<&str> {
        let parts = match self.parts.as_slice() {
            [Part::Member(scope), rest @ ..] if scope == "context" => rest,
            parts => parts,
        };
        match parts {
            [Part::Member(scope), Part::Member(name)] if scope == "tag" => Some(name),
            _ => None,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().enumerate().try_for_each(|(at, part)| match part {
            Part::Member(member) => write!(f, "{}{member}", if at > 0 { "." } else { "" }),
            Part::Index(index) => write!(f, "[{index}]"),
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    /// Values by the index of their names.
    struct Event<'e>(&'e [Option<Value<'static>>]);

    impl<'a> Fields<'a> for Event<'_> {
        fn value(&mut self, name: usize) -> Option<Value<'a>> {
            self.0.get(name)?.clone()
        }
    }

    fn test(question: Question, wanted: bool, passed: Next, failed: Next) -> Test {
        Test { question, wanted, passed, failed }
    }

    fn is_true(name: u8) -> Question {
        Question::IsTrue(Operand::Name(name))
    }

    /// `bytes > 4096 or not path ~ "/tmp/*"`.
    #[test]
    fn unknown_answers_pass_no_test() {
        let bytes = Question::Compare(Operand::Name(0), Operator::Greater, Operand::Literal(Literal::Integer(4096)));
        let path = Question::Matches(Operand::Name(1), b"/tmp/*".into());
        let tests = vec![test(bytes, true, Next::Accept, Next::Test(1)), test(path, false, Next::Accept, Next::Reject)];
        let condition = Condition { tests, names: Vec::new() };
        let text = |text: &'static [u8]| Some(Value::Text(text.into()));
        for (bytes, path, expected) in [
            (Some(Value::Integer(4097)), None, true),
            (Some(Value::Integer(4096)), None, false),
            (Some(Value::Integer(4096)), text(b"/tmp/a"), false),
            (None, text(b"/tmp/a"), false),
            (None, text(b"/var/a"), true),
            (text(b"4097"), text(b"/var/a"), true),
            (text(b"4097"), Some(Value::Integer(1)), false),
            (Some(Value::Float(4096.5)), None, true),
            (Some(Value::Float(f64::NAN)), None, false),
            (None, None, false),
        ] {
            assert_eq!(condition.holds(&mut Event(&[bytes.clone(), path.clone()])), expected, "{bytes:?} {path:?}");
        }
    }

    #[test]
    fn conditions_end() {
        assert!(Condition::default().holds(&mut Event(&[])));
        assert!(!Condition::never().holds(&mut Event(&[])));
        // Tests that no decoder returns: backwards, to itself, beyond the end.
        for next in [0, 1, 2, 255] {
            let first = test(is_true(0), true, Next::Test(1), Next::Accept);
            let second = test(is_true(0), true, Next::Test(next), Next::Accept);
            let condition = Condition { tests: vec![first, second], names: Vec::new() };
            assert!(!condition.holds(&mut Event(&[Some(Value::Boolean(true))])), "{next}");
        }
    }

    #[test]
    fn a_bound_admits_levels_that_are_as_important() {
        let rule = |levels| Rule { levels, ..Rule::all("p:*") };
        let admitted = |levels: Option<LevelBound>| -> Vec<u8> {
            let is_in = |number: &u8| rule(levels).matches("p:e", Level::from_number(*number));
            // The last number is that of no level.
            (0..16).filter(is_in).collect()
        };
        assert_eq!(admitted(None), (0..16).collect::<Vec<u8>>());
        assert_eq!(admitted(Some(LevelBound::AtMost(Level::Err))), [0, 1, 2, 3]);
        assert_eq!(admitted(Some(LevelBound::AtMost(Level::Debug))), (0..15).collect::<Vec<u8>>());
        assert_eq!(admitted(Some(LevelBound::Only(Level::Info))), [6]);
        assert!(!rule(Some(LevelBound::Only(Level::Info))).matches("q:e", Some(Level::Info)));
    }

    #[test]
    fn names_are_shown_as_written() {
        let member = |text: &str| Part::Member(text.into());
        let name = Name { parts: vec![member("a"), member("b"), Part::Index(2)] };
        assert_eq!((name.to_string().as_str(), name.word()), ("a.b[2]", None));
        assert_eq!(Name { parts: vec![member("a")] }.word(), Some("a"));
    }

    #[test]
    fn tags_have_names_of_their_own() {
        for (words, tag) in [
            (&["tag", "user"][..], Some("user")),
            (&["context", "tag", "user"], Some("user")),
            (&["tag", "tag"], Some("tag")),
            (&["fields", "tag", "user"], None),
            (&["context", "user"], None),
            (&["tag"], None),
            (&["tag", "user", "name"], None),
            (&["user", "tag"], None),
        ] {
            let mut name = Name { parts: words.iter().map(|word| Part::Member((*word).into())).collect() };
            assert_eq!(name.tag(), tag, "{name}");
            name.parts.push(Part::Index(0));
            assert_eq!(name.tag(), None, "{name}");
        }
    }
}

//! Rules: a filter as the list of tests that programs evaluate, and the text of a rule.
//!
//! ```text
//!   shop:* level<=INFO where bytes > 4K sample 1/10 ──▶ RuleText (pattern, levels, Filter, sample)
//!                                      ┌──────────────────────┘
//!                                      └──▶ Rule (pattern, levels, Condition, sample) ──▶ to_bytes, of `abi`
//! ```
//! A condition accepts an event if the expression is *true*, and asks of each part either whether it is true or whether
//! it is false: `not` swaps the two, and an unknown part is neither. So each comparison becomes one test:
//!
//! ```text
//!   true(a and b)     true(a), then true(b)           false(a and b)     false(a), or else false(b)
//!   true(a or b)      true(a), or else true(b)        false(a or b)      false(a), then false(b)
//!   true(not a)       false(a)                        false(not a)       true(a)
//! ```
//! A rule knows the tags of the thread that records an event, `tag.NAME` or `context.tag.NAME`, whether the session records
//! them or not. A text has a number that follows from it, so it is compared for equality without the text.

use dormouse_abi::class::Level;
use dormouse_abi::rule;
use dormouse_abi::rule::value::Operator;
use dormouse_abi::rule::{
    Condition, LevelBound, Literal, NAME_COUNT_MAX, Name, Next, PART_COUNT_MAX, Part, Question, Rule, SAMPLE_MAX,
    Sample, TEST_COUNT_MAX,
};
use dormouse_abi::tag::{NO_TAG_NAME, is_tag_name};

use crate::error::FilterError;
use crate::grammar::{after_word, is_word_char, parse_name};
use crate::program::{Binding, Filter, Kind, simplify};
use crate::syntax::{Comparison, Expression, Operand};
use crate::tail::{Tail, take_tail};

/// Names of the parts of a record other than its fields and tags.
const OTHER_PARTS: [&str; 10] = ["time", "cpu", "pid", "tid", "process", "comm", "cpu_id", "vpid", "vtid", "procname"];

/// Text of a rule, taken apart: `PATTERN`, or `!PATTERN` for an exclusion, and clauses in any order, each at most once:
/// `level<=LEVEL` (`level==LEVEL` is that level only), `where EXPR`, and `sample 1/N`, `sample N/s` or
/// `sample by FIELD 1/N`, where a tag may be in the place of a field, and `tail TIME by FIELD keep EXPR`, beside which
/// there is no sample by chance. An exclusion has the first one only.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleText {
    /// The whole text.
    text: String,
    /// Position of the bound on levels.
    levels_at: usize,
    /// Position of the sample.
    sample_at: usize,
    /// Position of the tail.
    tail_at: usize,
    /// Pattern of the names of event classes; see [`matches`](dormouse_abi::class::matches).
    pub pattern: String,
    /// Levels of the event classes; `None`: any, or no level.
    pub levels: Option<LevelBound>,
    /// Whether classes that match are not recorded.
    pub is_exclusion: bool,
    /// Condition on events; an exclusion has none.
    pub filter: Option<Filter>,
    /// Sample of the events that the condition selects; an exclusion has none.
    pub sample: Option<Sample>,
    /// Which of the selected events are kept; an exclusion has none.
    pub tail: Option<Tail>,
}

/// The clauses of a rule.
const CLAUSES: &str = "`where CONDITION`, `level<=LEVEL`, `sample 1/N` or `tail 10s by FIELD keep CONDITION`";

/// Whether a text behind a complete condition begins another clause.
fn begins_clause(text: &str) -> bool {
    ["level", "sample", "tail", "where"].iter().any(|word| after_word(text, word).is_some())
}

impl RuleText {
    /// Parses the text of a rule.
    ///
    /// # Errors
    /// The text is not a rule; the error has its position. Later errors of the filter have positions in this text too.
    pub fn parse(text: &str) -> Result<RuleText, FilterError> {
        let wrong = |rest: &str, what: &str| Err(FilterError::at(text, text.len() - rest.len(), what));
        let trimmed = text.trim_start();
        let (is_exclusion, named) = match trimmed.strip_prefix('!') {
            Some(named) => (true, named),
            None => (false, trimmed),
        };
        let (pattern, behind) = named.split_at(named.find(char::is_whitespace).unwrap_or(named.len()));
        let mut rest = behind.trim_start();
        // A class may be named `level` or `where`; but in front of an expression the word begins what follows a pattern.
        let is_level = named.strip_prefix("level").is_some_and(|rest| starts_bound(rest.trim_start()));
        let is_where = pattern == "where" && !rest.is_empty() && !begins_clause(rest);
        if pattern.is_empty() || is_level || is_where {
            return wrong(named, "expected a pattern of event classes, such as `shop:*`");
        }
        let mut rule = RuleText {
            text: text.to_string(),
            levels_at: 0,
            sample_at: 0,
            tail_at: 0,
            pattern: pattern.to_string(),
            levels: None,
            is_exclusion,
            filter: None,
            sample: None,
            tail: None,
        };
        while !rest.is_empty() {
            let at = text.len() - rest.len();
            let is_again = if let Some(behind) = after_word(rest, "level") {
                rule.levels_at = at;
                let (levels, behind) = take_levels(text, behind.trim_start())?;
                rest = behind;
                rule.levels.replace(levels).is_some()
            } else if is_exclusion {
                let what = "an exclusion has no condition, no sample and no tail; write the condition with the pattern \
                            that it excludes from, and `not`";
                return wrong(rest, what);
            } else if let Some(behind) = after_word(rest, "where") {
                let (filter, end) = Filter::parse_from(text, text.len() - behind.len(), begins_clause)?;
                rest = &text[end..];
                rule.filter.replace(filter).is_some()
            } else if let Some(behind) = after_word(rest, "sample") {
                rule.sample_at = at;
                let (sample, behind) = take_sample(text, behind.trim_start())?;
                rest = behind;
                rule.sample.replace(sample).is_some()
            } else if let Some(behind) = after_word(rest, "tail") {
                rule.tail_at = at;
                let (tail, behind) = take_tail(text, behind.trim_start(), begins_clause)?;
                rest = behind;
                rule.tail.replace(tail).is_some()
            } else {
                return wrong(rest, &format!("expected {CLAUSES}"));
            };
            if is_again {
                return Err(FilterError::at(text, at, "a rule has at most one clause of this kind"));
            }
        }
        if rule.tail.is_some() && matches!(rule.sample, Some(Sample::OneIn(_) | Sample::PerSecond(_))) {
            let what = "a sample by chance would take events away from the requests that the tail keeps; \
                        `sample by FIELD 1/N` takes whole ones";
            return Err(FilterError::at(text, rule.sample_at, what));
        }
        Ok(rule)
    }

    /// Returns the error that the events have no field by which the rule samples. `known`: the fields that they have.
    pub fn no_key<'k>(&self, known: impl IntoIterator<Item = &'k str>) -> FilterError {
        self.lacks("the field of this sample", self.sample_at, known)
    }

    /// Returns the error that the events have no field by which the tail finds those that belong together.
    pub fn no_tail_key<'k>(&self, known: impl IntoIterator<Item = &'k str>) -> FilterError {
        self.lacks("the field of this tail", self.tail_at, known)
    }

    /// Returns the error that a session owner does not see this tag, because the session does not record it.
    pub fn tag_not_recorded(&self, tag: &str) -> FilterError {
        let what = format!(
            "where a rule has a tail, the session decides by what it has recorded, and it does not record tag.{tag}; \
             add --context tag.{tag}"
        );
        FilterError::at(&self.text, self.text.find(tag).unwrap_or(0), what)
    }

    /// Returns the error that another rule has a tail, beside which this one has no rate.
    pub fn rate_beside_tail(&self) -> FilterError {
        let what = "a sample of N/s is drawn in each process, and cannot be told from the events of a tail in another \
                    rule; `sample 1/N` can";
        FilterError::at(&self.text, self.sample_at, what)
    }

    fn lacks<'k>(&self, field: &str, at: usize, known: impl IntoIterator<Item = &'k str>) -> FilterError {
        let mut known: Vec<&str> = known.into_iter().collect();
        known.sort_unstable();
        known.dedup();
        let there = match known.as_slice() {
            [] => "they have none".to_string(),
            names => format!("there are {}", names.join(", ")),
        };
        let what = format!("no event that {} matches has {field}; {there}", self.pattern);
        FilterError::at(&self.text, at, what)
    }

    /// Returns the names of tags in the condition, the sample and the tail.
    pub fn tags(&self) -> impl Iterator<Item = &Name> {
        let by = match &self.sample {
            Some(Sample::By(name, _)) => Some(name),
            _ => None,
        };
        let of_tail = self.tail.iter().flat_map(|tail| tail.keep.names().chain([&tail.key]));
        let all = self.filter.iter().flat_map(Filter::names).chain(by).chain(of_tail);
        all.filter(|name| name.tag().is_some())
    }

    /// Returns the error that no class that the pattern matches has a level within the bound. `known`: the levels that
    /// these classes have.
    pub fn outside(&self, known: impl IntoIterator<Item = Level>) -> FilterError {
        let mut known: Vec<Level> = known.into_iter().collect();
        known.sort();
        known.dedup();
        let names: Vec<&str> = known.into_iter().map(Level::name).collect();
        let there = match names.as_slice() {
            [] => "they have none".to_string(),
            names => format!("there are {}", names.join(", ")),
        };
        let what = format!("no event that {} matches has such a level; {there}", self.pattern);
        FilterError::at(&self.text, self.levels_at, what)
    }

    /// Returns the rule that programs evaluate. They do not know of tails.
    ///
    /// # Errors
    /// The filter cannot be the condition of a rule, nor can that of the tail; see [`Filter::condition`]. Or sample or
    /// tail are by a part of the record that is no field and no tag.
    pub fn to_rule(&self) -> Result<Rule, FilterError> {
        let condition = self.filter.as_ref().map(Filter::condition).transpose()?.unwrap_or_default();
        if let Some(Sample::By(name, _)) = &self.sample {
            check_name(&self.text, self.sample_at, name)?;
        }
        if let Some(Tail { key, keep, .. }) = &self.tail {
            check_name(&self.text, self.tail_at, key)?;
            keep.condition()?;
        }
        let (pattern, sample) = (self.pattern.clone(), self.sample.clone());
        Ok(Rule { pattern, levels: self.levels, is_exclusion: self.is_exclusion, condition, sample })
    }
}

/// Makes a bound of a level.
type BoundOf = fn(Level) -> LevelBound;

/// Relations in a bound on levels.
const BOUNDS: [(&str, BoundOf); 2] = [("<=", LevelBound::AtMost), ("==", LevelBound::Only)];

/// Whether a text begins with a relation, right or wrong.
fn starts_bound(text: &str) -> bool {
    text.starts_with(['<', '=', '>'])
}

/// Parses a bound on levels behind `level`. `rest` is the end of `text`. Returns what follows too.
fn take_levels<'t>(text: &str, rest: &'t str) -> Result<(LevelBound, &'t str), FilterError> {
    let wrong = |rest: &str, what: String| Err(FilterError::at(text, text.len() - rest.len(), what));
    let found = BOUNDS.into_iter().find_map(|(written, bound)| Some((bound, rest.strip_prefix(written)?)));
    let Some((bound, name)) = found else {
        return wrong(rest, "expected `<=` or `==`, such as `level<=WARNING`".into());
    };
    let name = name.trim_start();
    let (word, behind) = name.split_at(name.find(|c: char| !is_word_char(c)).unwrap_or(name.len()));
    match Level::parse(word) {
        Some(level) => Ok((bound(level), behind.trim_start())),
        None if word.is_empty() => wrong(name, format!("expected a level; there are {}", Level::LIST)),
        None => wrong(name, format!("there is no level {word}; there are {}", Level::LIST)),
    }
}

/// Parses a sample behind `sample`. `rest` is the end of `text`. Returns what follows too.
fn take_sample<'t>(text: &str, rest: &'t str) -> Result<(Sample, &'t str), FilterError> {
    let wrong = |rest: &str, what: &str| Err(FilterError::at(text, text.len() - rest.len(), what));
    let word = |rest: &'t str| rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
    let (name, written) = match after_word(rest, "by").map(str::trim_start) {
        Some(behind) => {
            let (name, behind) = word(behind);
            if !name.starts_with(is_word_char) {
                return wrong(
                    &rest[rest.len() - name.len() - behind.len()..],
                    "expected a field or a tag, such as `by user 1/100`",
                );
            }
            (Some(parse_name(name)), behind.trim_start())
        }
        None => (None, rest),
    };
    let (fraction, behind) = word(written);
    let expected = if name.is_some() { "`1/N`" } else { "`1/N`, `N/s` or `by FIELD 1/N`" };
    let count = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        is_number.then(|| digits.parse().ok().filter(|count| (1..=SAMPLE_MAX).contains(count)))
    };
    let found = match (fraction.split_once('/'), name) {
        (Some(("1", digits)), Some(name)) => count(digits).map(|count| count.map(|count| Sample::By(name, count))),
        (Some((digits, "s")), None) => count(digits).map(|count| count.map(Sample::PerSecond)),
        (Some(("1", digits)), None) => count(digits).map(|count| count.map(Sample::OneIn)),
        _ => None,
    };
    match found {
        Some(Some(sample)) => Ok((sample, behind.trim_start())),
        Some(None) => wrong(written, &format!("the number of a sample is from 1 to {SAMPLE_MAX}")),
        None => wrong(written, &format!("expected {expected}, such as `sample 1/100`")),
    }
}

/// Whether a name is that of a part of a record which is no field and no tag.
fn is_other_part(name: &Name) -> bool {
    match name.parts.as_slice() {
        [Part::Member(word)] => OTHER_PARTS.contains(&word.as_str()),
        [Part::Member(scope), ..] => scope == "context" && name.tag().is_none(),
        _ => false,
    }
}

/// Returns the error that a rule does not know such a part.
fn other_part(text: &str, offset: usize, name: &Name) -> FilterError {
    let what = format!(
        "a rule is asked before there is a record, so it knows fields, tags and `event`, but not {name}; \
         a field of that name is fields.{name}"
    );
    FilterError::at(text, offset, what)
}

/// Checks a name in a rule, which is at `offset` of the text.
///
/// # Errors
/// A rule does not know such a part of a record, or no tag may have that name.
fn check_name(text: &str, offset: usize, name: &Name) -> Result<(), FilterError> {
    match name.tag() {
        Some(tag) if !is_tag_name(tag) => Err(FilterError::at(text, offset, NO_TAG_NAME)),
        None if is_other_part(name) => Err(other_part(text, offset, name)),
        _ => Ok(()),
    }
}

impl Filter {
    /// Returns the error that a rule does not know the name with this index, which is no field.
    pub fn not_in_rules(&self, name: usize) -> FilterError {
        let (name, offset) = &self.names[name];
        other_part(&self.text, *offset, name)
    }

    /// Returns the condition that is true for the events that the filter selects, in any class. It has the filter's
    /// names, unless it is the same for all events.
    ///
    /// # Errors
    /// The filter has too many comparisons, too many names, or a name with too many parts. Or it asks what a program does
    /// not know before there is a record, or for the order of a tag and a text.
    pub fn condition(&self) -> Result<Condition, FilterError> {
        let limit = |what: String| Err(FilterError::at(&self.text, 0, what));
        if self.names.len() > NAME_COUNT_MAX {
            return limit(format!("a rule has at most {NAME_COUNT_MAX} names"));
        }
        if self.names.iter().any(|(name, _)| name.parts.len() > PART_COUNT_MAX) {
            return limit(format!("a name in a rule has at most {PART_COUNT_MAX} parts"));
        }
        self.names.iter().try_for_each(|(name, offset)| check_name(&self.text, *offset, name))?;
        if let Some(offset) = self.order_of_tag() {
            let what = "the texts of tags have no order; `==`, `!=` and `~` compare them";
            return Err(FilterError::at(&self.text, offset, what));
        }
        // Afterwards no first term of `and` or `or` is known, so that the first test is the last one to be emitted.
        let expression = simplify(&self.expression, &vec![Binding::Field(Kind::Any); self.names.len()]);
        match expression {
            Expression::Known(Some(true)) => return Ok(Condition::default()),
            Expression::Known(_) => return Ok(Condition::never()),
            _ => {}
        }
        let mut emitter = Emitter::default();
        emitter.emit(&expression, true, Target::Accept, Target::Reject);
        if emitter.tests.len() > TEST_COUNT_MAX {
            return limit(format!("a rule has at most {TEST_COUNT_MAX} comparisons"));
        }
        let names = self.names.iter().map(|(name, _)| name.clone()).collect();
        Ok(Condition { tests: emitter.in_order(), names })
    }
}

impl Filter {
    /// Returns the position of the first comparison that asks for the order of a tag and a text.
    fn order_of_tag(&self) -> Option<usize> {
        let is_tag = |operand: &Operand| matches!(operand, Operand::Name(name) if self.names[*name].0.tag().is_some());
        let is_text = |operand: &Operand| matches!(operand, Operand::Literal(Literal::Text(_)));
        let mut found = None;
        self.expression.each_comparison(&mut |Comparison { left, operator, right, offset }| {
            let is_order = !matches!(operator, Operator::Equal | Operator::NotEqual);
            if is_order && (is_tag(left) && is_text(right) || is_text(left) && is_tag(right)) {
                found = found.or(Some(*offset));
            }
        });
        found
    }
}

/// Step after a test.
#[derive(Debug, Clone, Copy)]
enum Target {
    Accept,
    Reject,
    /// The test that was emitted with this number.
    Test(usize),
}

/// A test that is not in its place yet.
#[derive(Debug)]
struct Emitted {
    question: Question,
    wanted: bool,
    passed: Target,
    failed: Target,
}

/// Emits the tests of an expression, the last one first: a test is emitted after those that may follow it.
#[derive(Debug, Default)]
struct Emitter {
    tests: Vec<Emitted>,
}

impl Emitter {
    /// Emits the tests of whether an expression has the wanted answer. `passed` follows if it has, `failed` if it has
    /// the other one or is unknown. Returns the first test, or what follows without one.
    fn emit(&mut self, expression: &Expression, wanted: bool, passed: Target, failed: Target) -> Target {
        let question = match expression {
            Expression::Or(terms) | Expression::And(terms) => {
                // A single term decides: a true one `or`, a false one `and`.
                let is_any = matches!(expression, Expression::Or(_)) == wanted;
                let mut next = if is_any { failed } else { passed };
                for term in terms.iter().rev() {
                    next = match is_any {
                        true => self.emit(term, wanted, passed, next),
                        false => self.emit(term, wanted, next, failed),
                    };
                }
                return next;
            }
            Expression::Not(inner) => return self.emit(inner, !wanted, passed, failed),
            Expression::Known(answer) => return if *answer == Some(wanted) { passed } else { failed },
            Expression::IsTrue(operand) => Question::IsTrue(emitted(operand)),
            Expression::Matches(operand, pattern) => Question::Matches(emitted(operand), pattern.clone()),
            Expression::Compare(Comparison { left, operator, right, .. }) => {
                Question::Compare(emitted(left), *operator, emitted(right))
            }
        };
        self.tests.push(Emitted { question, wanted, passed, failed });
        Target::Test(self.tests.len() - 1)
    }

    /// Returns the tests, the first one first. There are at most [`TEST_COUNT_MAX`].
    fn in_order(self) -> Vec<rule::Test> {
        let count = self.tests.len();
        let next = |target| match target {
            Target::Accept => Next::Accept,
            Target::Reject => Next::Reject,
            Target::Test(number) => Next::Test((count - 1 - number) as u8),
        };
        let tests = self.tests.into_iter().rev().map(|Emitted { question, wanted, passed, failed }| rule::Test {
            question,
            wanted,
            passed: next(passed),
            failed: next(failed),
        });
        tests.collect()
    }
}

/// Returns an operand as it is in a rule, which has at most [`NAME_COUNT_MAX`] names.
fn emitted(operand: &Operand) -> rule::Operand {
    match operand {
        Operand::Name(name) => rule::Operand::Name(*name as u8),
        Operand::Literal(literal) => rule::Operand::Literal(literal.clone()),
    }
}

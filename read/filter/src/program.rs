//! A filter, compiled for the fields of an event class and evaluated for its events.

use dormouse_abi::rule::value::{Fields, Value};
use dormouse_abi::rule::{Literal, Name};

use crate::error::FilterError;
use crate::grammar;
use crate::syntax::{Comparison, Expression, Operand};

/// A filter of events.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    /// The text that the filter is part of.
    pub(crate) text: String,
    pub(crate) expression: Expression,
    /// Each name with the position of its first occurrence in the text.
    pub(crate) names: Vec<(Name, usize)>,
}

/// Meaning of a filter's name for an event class.
#[derive(Debug, Clone)]
pub enum Binding<'a> {
    /// The class does not have the field.
    Missing,
    /// All events of the class have this value.
    Constant(Value<'a>),
    /// A field of this kind; [`Fields`] returns its value for an event, by the index of its name in [`Filter::names`].
    Field(Kind),
}

/// Kind of a field's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Number,
    Text,
    Enumeration,
    /// Any of these, depending on the event.
    Any,
}

/// A filter compiled for the events of one class.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// All events are selected.
    Always,
    /// No event is selected.
    Never,
    /// The values of the event decide.
    Ask(Question),
}

/// The part of a filter that is evaluated for each event.
#[derive(Debug, Clone, PartialEq)]
pub struct Question(Expression);

impl Filter {
    /// Parses a filter.
    ///
    /// # Errors
    /// The text is not a filter; the error has its position.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        Ok(Filter::parse_from(text, 0, |_| false)?.0)
    }

    /// Parses the filter that begins at a byte of a text, and ends where `ends` says that something else begins.
    /// Returns the position of that too. Positions in its errors are those in the whole text.
    pub(crate) fn parse_from(
        text: &str,
        start: usize,
        ends: impl Fn(&str) -> bool,
    ) -> Result<(Filter, usize), FilterError> {
        let grammar::Found { expression, names, end } = grammar::parse(text, start, ends)?;
        Ok((Filter { text: text.to_string(), expression, names }, end))
    }

    /// Returns the names in the filter, each once.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &Name> {
        self.names.iter().map(|(name, _)| name)
    }

    /// Compiles the filter for a class. `bindings`: meaning of each name, by its index.
    pub fn compile<'a>(&self, bindings: &[Binding<'a>]) -> Test {
        match simplify(&self.expression, bindings) {
            Expression::Known(Some(true)) => Test::Always,
            Expression::Known(_) => Test::Never,
            expression => Test::Ask(Question(expression)),
        }
    }

    /// Returns the error that no event has the name with this index. `known`: the existing names.
    pub fn unknown<'n>(&self, name: usize, known: impl IntoIterator<Item = &'n str>) -> FilterError {
        let (name, offset) = &self.names[name];
        let name = name.to_string();
        let known: Vec<&str> = known.into_iter().collect();
        let what = match known.contains(&name.as_str()) {
            true => format!("{name} has parts, and is compared by one of them: {name}.MEMBER or {name}[0]"),
            false => format!("no event has {name}{}", nearest(&name, known)),
        };
        FilterError::at(&self.text, *offset, what)
    }

    /// Returns the error for a comparison that is unknown for every event, because its sides never have comparable
    /// kinds. `kinds`: returns the kinds that a name has, by its index.
    pub fn mismatch(&self, kinds: impl Fn(usize) -> Vec<Kind>) -> Option<FilterError> {
        let of = |operand: &Operand| match operand {
            Operand::Name(name) => kinds(*name),
            Operand::Literal(Literal::Text(_)) => vec![Kind::Text],
            Operand::Literal(Literal::Boolean(_)) => vec![Kind::Enumeration],
            Operand::Literal(_) => vec![Kind::Number],
        };
        let mut found = None;
        self.expression.each_comparison(&mut |Comparison { left, right, offset, .. }| {
            let (left, right) = (of(left), of(right));
            let fits = left.iter().any(|left| right.iter().any(|right| left.fits(*right)));
            if found.is_none() && !fits && !left.is_empty() && !right.is_empty() {
                let what = format!("the left side is {}, the right side is {}", left[0].told(), right[0].told());
                found = Some(FilterError::at(&self.text, *offset, what));
            }
        });
        found
    }
}

impl Kind {
    fn fits(self, other: Kind) -> bool {
        let is_text = |kind| kind == Kind::Text;
        matches!(self, Kind::Any | Kind::Enumeration)
            || matches!(other, Kind::Any | Kind::Enumeration)
            || is_text(self) == is_text(other)
    }

    fn told(self) -> &'static str {
        match self {
            Kind::Number => "a number",
            Kind::Text => "text",
            Kind::Enumeration => "a label or number",
            Kind::Any => "a value",
        }
    }
}

/// Returns `; NAME is the nearest`, or a list of the existing names.
fn nearest(name: &str, mut known: Vec<&str>) -> String {
    const NEAR: f64 = 0.4;
    const SHOWN_MAX: usize = 12;
    known.sort();
    known.dedup();
    let likeness = |known| (strsim::normalized_damerau_levenshtein(name, known), known);
    let best = known.iter().copied().map(likeness).max_by(|a, b| a.0.total_cmp(&b.0));
    match best.filter(|(likeness, _)| *likeness > NEAR) {
        Some((_, nearest)) => format!("; {nearest} is the nearest"),
        None if known.is_empty() => String::new(),
        None => {
            let more = if known.len() > SHOWN_MAX { ", …" } else { "" };
            known.truncate(SHOWN_MAX);
            format!("; there are {}{more}", known.join(", "))
        }
    }
}

impl Expression {
    pub(crate) fn each_comparison(&self, see: &mut impl FnMut(&Comparison)) {
        match self {
            Expression::Or(terms) | Expression::And(terms) => terms.iter().for_each(|term| term.each_comparison(see)),
            Expression::Not(inner) => inner.each_comparison(see),
            Expression::Compare(comparison) => see(comparison),
            Expression::Known(_) | Expression::IsTrue(_) | Expression::Matches(..) => {}
        }
    }
}

/// Returns the part of an expression that the bindings do not decide.
pub(crate) fn simplify(expression: &Expression, bindings: &[Binding<'_>]) -> Expression {
    let known = |operands: &[&Operand], answer: &dyn Fn(&[Value<'_>]) -> Option<bool>| {
        let mut values = Vec::new();
        for operand in operands {
            match operand {
                Operand::Literal(literal) => values.push(literal.value()),
                Operand::Name(name) => match bindings.get(*name) {
                    Some(Binding::Constant(value)) => values.push(value.clone()),
                    Some(Binding::Field(_)) => return None,
                    Some(Binding::Missing) | None => return Some(Expression::Known(None)),
                },
            }
        }
        Some(Expression::Known(answer(&values)))
    };
    let found = match expression {
        // A true term decides `or`, a false term decides `and`.
        Expression::Or(terms) => return combine(terms, bindings, true, Expression::Or),
        Expression::And(terms) => return combine(terms, bindings, false, Expression::And),
        Expression::Not(inner) => {
            return match simplify(inner, bindings) {
                Expression::Known(answer) => Expression::Known(answer.map(|answer| !answer)),
                inner => Expression::Not(Box::new(inner)),
            };
        }
        Expression::Known(_) => None,
        Expression::IsTrue(operand) => known(&[operand], &|values| values[0].is_true()),
        Expression::Matches(operand, pattern) => known(&[operand], &|values| values[0].matches(pattern)),
        Expression::Compare(Comparison { left, operator, right, .. }) => {
            // A missing side decides, even if the other side is not known yet.
            match known(&[left], &|_| None).is_some_and(|_| is_missing(left, bindings)) || is_missing(right, bindings) {
                true => Some(Expression::Known(None)),
                false => known(&[left, right], &|values| values[0].compare(*operator, &values[1])),
            }
        }
    };
    found.unwrap_or_else(|| expression.clone())
}

fn is_missing(operand: &Operand, bindings: &[Binding<'_>]) -> bool {
    matches!(operand, Operand::Name(name) if matches!(bindings.get(*name), None | Some(Binding::Missing)))
}

fn combine(
    terms: &[Expression],
    bindings: &[Binding<'_>],
    decisive: bool,
    whole: fn(Vec<Expression>) -> Expression,
) -> Expression {
    let (mut rest, mut is_unknown) = (Vec::new(), false);
    for term in terms {
        match simplify(term, bindings) {
            Expression::Known(Some(answer)) if answer == decisive => return Expression::Known(Some(decisive)),
            Expression::Known(Some(_)) => {}
            Expression::Known(None) => is_unknown = true,
            term => rest.push(term),
        }
    }
    if rest.is_empty() {
        return Expression::Known(if is_unknown { None } else { Some(!decisive) });
    }
    if is_unknown {
        rest.push(Expression::Known(None));
    }
    if rest.len() == 1 { rest.remove(0) } else { whole(rest) }
}

impl Question {
    /// Evaluates the filter for an event. `None` is unknown: the event is not selected.
    pub fn ask<'a>(&'a self, fields: &mut impl Fields<'a>) -> Option<bool> {
        evaluate(&self.0, fields)
    }
}

impl Test {
    /// Whether an event is selected.
    pub fn wants<'a>(&'a self, fields: &mut impl Fields<'a>) -> bool {
        match self {
            Test::Always => true,
            Test::Never => false,
            Test::Ask(question) => question.ask(fields) == Some(true),
        }
    }
}

fn evaluate<'a>(expression: &'a Expression, fields: &mut impl Fields<'a>) -> Option<bool> {
    match expression {
        Expression::Or(terms) => decide(terms, true, fields),
        Expression::And(terms) => decide(terms, false, fields),
        Expression::Not(inner) => evaluate(inner, fields).map(|answer| !answer),
        Expression::Known(answer) => *answer,
        Expression::IsTrue(operand) => value(operand, fields)?.is_true(),
        Expression::Matches(operand, pattern) => value(operand, fields)?.matches(pattern),
        Expression::Compare(Comparison { left, operator, right, .. }) => {
            // The most frequent comparison.
            if let (Operand::Name(name), Operand::Literal(Literal::Integer(right))) = (left, right)
                && let Some(left) = fields.integer(*name)
            {
                return Some(operator.holds(Some(left.cmp(right))));
            }
            let left = value(left, fields)?;
            left.compare(*operator, &value(right, fields)?)
        }
    }
}

fn decide<'a>(terms: &'a [Expression], decisive: bool, fields: &mut impl Fields<'a>) -> Option<bool> {
    let mut answer = Some(!decisive);
    for term in terms {
        match evaluate(term, fields) {
            Some(found) if found == decisive => return Some(decisive),
            Some(_) => {}
            None => answer = None,
        }
    }
    answer
}

fn value<'a>(operand: &'a Operand, fields: &mut impl Fields<'a>) -> Option<Value<'a>> {
    match operand {
        Operand::Literal(literal) => Some(literal.value()),
        Operand::Name(name) => fields.value(*name),
    }
}

//! The grammar of the language: parses a text into [`super::syntax`].

use winnow::combinator::{alt, opt, peek};
use winnow::error::{ErrMode, ParserError};
use winnow::prelude::*;
use winnow::stream::{LocatingSlice, Location, Stateful};
use winnow::token::{any, literal, take_while};

use dormouse_abi::rule::value::Operator;
use dormouse_abi::rule::{Literal, Name, Part};

use crate::error::FilterError;
use crate::syntax::{Comparison, Expression, Operand};

/// Maximum size of a filter, in bytes.
const SIZE_BYTES_MAX: usize = 64 << 10;
/// Maximum depth of nested parentheses and `not`.
const DEPTH_MAX: u32 = 64;
/// Maximum number of different names.
const NAMES_MAX: usize = 256;
/// Maximum number of digits of a number; more than any number has.
const DIGITS_MAX: usize = 40;

/// Names so far, each with the position of its first occurrence.
#[derive(Debug, Default)]
struct State {
    depth: u32,
    names: Vec<(Name, usize)>,
}

type Input<'a> = Stateful<LocatingSlice<&'a str>, State>;
type Parsed<T> = Result<T, ErrMode<Wrong>>;

/// An error and its position.
#[derive(Debug, Clone, Default)]
struct Wrong {
    offset: usize,
    what: String,
}

impl<'a> ParserError<Input<'a>> for Wrong {
    type Inner = Self;

    fn from_input(input: &Input<'a>) -> Self {
        Wrong { offset: input.current_token_start(), what: String::new() }
    }

    fn into_inner(self) -> Result<Self, Self> {
        Ok(self)
    }
}

/// A parsed filter.
pub(crate) struct Found {
    pub(crate) expression: Expression,
    /// The names, with the positions of their first occurrences.
    pub(crate) names: Vec<(Name, usize)>,
    /// Position of what follows the filter.
    pub(crate) end: usize,
}

/// Parses the filter that begins at a byte of a text. It ends with the text, or where `ends` says that something else
/// begins. Positions are those in the whole text.
pub(crate) fn parse(text: &str, start: usize, ends: impl Fn(&str) -> bool) -> Result<Found, FilterError> {
    if text.len() - start > SIZE_BYTES_MAX {
        return Err(FilterError::at(text, start, format!("the filter is longer than {SIZE_BYTES_MAX} bytes")));
    }
    let mut input = Input { input: LocatingSlice::new(text), state: State::default() };
    input.next_slice(start);
    let parsed = blank(&mut input).and_then(|()| disjunction(&mut input)).and_then(|expression| {
        if opt(peek(any)).parse_next(&mut input)?.is_some() && !ends(input.input.as_ref()) {
            return expected(&input, "`and`, `or` or the end");
        }
        Ok(expression)
    });
    match parsed {
        Ok(expression) => Ok(Found { expression, end: input.current_token_start(), names: input.state.names }),
        Err(error) => {
            let Wrong { offset, what } = error.into_inner().unwrap_or_default();
            Err(FilterError::at(text, offset, what))
        }
    }
}

fn wrong<T>(offset: usize, what: impl Into<String>) -> Parsed<T> {
    Err(ErrMode::Cut(Wrong { offset, what: what.into() }))
}

/// Returns the error that says what was expected at this position, and what is there.
fn expected<T>(input: &Input<'_>, what: &str) -> Parsed<T> {
    let rest = input.input.as_ref();
    let word: String = rest.chars().take_while(|c| is_word_char(*c)).take(40).collect();
    let found = match (word.as_str(), rest.chars().next()) {
        ("", None) => "the filter ends".to_string(),
        ("", Some('=')) if !rest.starts_with("==") => "found `=`, which is written `==`".to_string(),
        ("", Some('\'')) => "found `'`: text is written in double quotes".to_string(),
        ("", Some(c)) => format!("found `{}`", c.escape_debug()),
        (word, _) => format!("found `{word}`"),
    };
    wrong(input.current_token_start(), format!("expected {what}, {found}"))
}

fn blank(input: &mut Input<'_>) -> Parsed<()> {
    take_while(0.., char::is_whitespace).void().parse_next(input)
}

fn is_word_start(c: char) -> bool {
    c.is_alphabetic() || c == '_' || c == '$'
}

pub(crate) fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// Returns the rest of a text that begins with a word.
pub(crate) fn after_word<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    text.strip_prefix(word).filter(|rest| !rest.starts_with(is_word_char))
}

/// Parses a symbol and the blanks after it, if it is next.
fn sign(input: &mut Input<'_>, sign: &'static str) -> Parsed<bool> {
    let found = opt(literal(sign)).parse_next(input)?.is_some();
    if found {
        blank(input)?;
    }
    Ok(found)
}

/// Parses a keyword, if it is next.
fn keyword(input: &mut Input<'_>, word: &'static str) -> Parsed<bool> {
    if after_word(input.input.as_ref(), word).is_none() {
        return Ok(false);
    }
    sign(input, word)
}

fn disjunction(input: &mut Input<'_>) -> Parsed<Expression> {
    let mut terms = vec![conjunction(input)?];
    while keyword(input, "or")? || sign(input, "||")? {
        terms.push(conjunction(input)?);
    }
    Ok(if terms.len() == 1 { terms.remove(0) } else { Expression::Or(terms) })
}

fn conjunction(input: &mut Input<'_>) -> Parsed<Expression> {
    let mut terms = vec![negation(input)?];
    while keyword(input, "and")? || sign(input, "&&")? {
        terms.push(negation(input)?);
    }
    Ok(if terms.len() == 1 { terms.remove(0) } else { Expression::And(terms) })
}

fn negation(input: &mut Input<'_>) -> Parsed<Expression> {
    let offset = input.current_token_start();
    if input.state.depth >= DEPTH_MAX {
        return wrong(offset, format!("more than {DEPTH_MAX} parentheses and `not` in one another"));
    }
    input.state.depth += 1;
    let found = if keyword(input, "not")? || (!input.input.as_ref().starts_with("!=") && sign(input, "!")?) {
        Expression::Not(Box::new(negation(input)?))
    } else if sign(input, "(")? {
        let inner = disjunction(input)?;
        if !sign(input, ")")? {
            return expected(input, "`and`, `or` or `)`");
        }
        inner
    } else {
        comparison(input)?
    };
    input.state.depth -= 1;
    Ok(found)
}

const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

fn comparison(input: &mut Input<'_>) -> Parsed<Expression> {
    let left = operand(input)?;
    let offset = input.current_token_start();
    if sign(input, "~")? {
        return match opt(text).parse_next(input)? {
            Some(pattern) => Ok(Expression::Matches(left, pattern)),
            None => expected(input, "a pattern in double quotes"),
        };
    }
    for (written, operator) in OPERATORS {
        if sign(input, written)? {
            let right = operand(input)?;
            return Ok(Expression::Compare(Comparison { left, operator, right, offset }));
        }
    }
    match left {
        Operand::Name(_) | Operand::Literal(Literal::Boolean(_)) => {
            // A wrong operator is reported here, where the valid ones are known.
            let next = input.input.as_ref().chars().next();
            if next.is_some_and(|c| "=<>!~+-*/%&|^".contains(c)) && !starts_connective(input.input.as_ref()) {
                return expected(input, "a comparison (`==` `!=` `<` `<=` `>` `>=` `~`)");
            }
            Ok(Expression::IsTrue(left))
        }
        Operand::Literal(_) => expected(input, "a comparison (`==` `!=` `<` `<=` `>` `>=` `~`)"),
    }
}

fn starts_connective(rest: &str) -> bool {
    rest.starts_with("&&") || rest.starts_with("||")
}

fn operand(input: &mut Input<'_>) -> Parsed<Operand> {
    for (word, boolean) in [("true", true), ("false", false)] {
        if keyword(input, word)? {
            return Ok(Operand::Literal(Literal::Boolean(boolean)));
        }
    }
    let rest = input.input.as_ref();
    let is_keyword = ["and", "or", "not"].iter().any(|word| after_word(rest, word).is_some());
    match rest.chars().next() {
        Some('"') => Ok(Operand::Literal(Literal::Text(text(input)?))),
        Some(c) if c.is_ascii_digit() || c == '-' || c == '.' => Ok(Operand::Literal(number(input)?)),
        Some(c) if (is_word_start(c) && !is_keyword) || c == '`' => name(input),
        _ => expected(input, "a field or a value"),
    }
}

/// Parses a text in quotes.
fn text(input: &mut Input<'_>) -> Parsed<Vec<u8>> {
    let start = input.current_token_start();
    literal('"').void().parse_next(input)?;
    let mut bytes = Vec::new();
    loop {
        let offset = input.current_token_start();
        match opt(any).parse_next(input)? {
            None => return wrong(start, "this text does not end: `\"` is missing"),
            Some('"') => break,
            Some('\\') => match opt(any).parse_next(input)? {
                Some('n') => bytes.push(b'\n'),
                Some('t') => bytes.push(b'\t'),
                Some('r') => bytes.push(b'\r'),
                Some('"') => bytes.push(b'"'),
                Some('\\') => bytes.push(b'\\'),
                // Escapes of patterns.
                Some(c @ ('*' | '?')) => bytes.extend([b'\\', c as u8]),
                Some('x') => {
                    let digits = opt(take_while(2, |c: char| c.is_ascii_hexdigit())).parse_next(input)?;
                    match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                        Some(byte) => bytes.push(byte),
                        None => return expected(input, "two hexadecimal digits"),
                    }
                }
                _ => return wrong(offset, "unknown escape; there are \\\" \\\\ \\n \\t \\r \\* \\? and \\xFF"),
            },
            Some(c) => bytes.extend(c.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    blank(input)?;
    Ok(bytes)
}

/// Units of numbers, and their factors.
const UNITS: [(&str, i128); 12] = [
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

fn number(input: &mut Input<'_>) -> Parsed<Literal> {
    let offset = input.current_token_start();
    let is_negative = opt(literal('-')).parse_next(input)?.is_some();
    let factor = if is_negative { -1 } else { 1 };
    let is_digit = |c: char| c.is_ascii_digit() || c == '_';
    let too_large = || wrong(offset, "the number is too large");
    if opt(alt((literal("0x"), literal("0X")))).parse_next(input)?.is_some() {
        let digits: &str = take_while(0.., |c: char| c.is_ascii_alphanumeric() || c == '_').parse_next(input)?;
        blank(input)?;
        let digits = digits.replace('_', "");
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return wrong(offset, "expected hexadecimal digits behind `0x`");
        }
        let number = if digits.len() <= 30 { i128::from_str_radix(&digits, 16).ok() } else { None };
        return number.map_or_else(too_large, |number| Ok(Literal::Integer(factor * number)));
    }
    let whole: &str = take_while(0.., is_digit).parse_next(input)?;
    let mut digits = whole.replace('_', "");
    let mut is_whole = true;
    if opt(literal('.')).parse_next(input)?.is_some() {
        let fraction: &str = take_while(0.., is_digit).parse_next(input)?;
        if fraction.is_empty() {
            return expected(input, "digits behind the point");
        }
        digits += &format!(".{}", fraction.replace('_', ""));
        is_whole = false;
    }
    if digits.is_empty() {
        return expected(input, "a number");
    }
    if digits.len() > DIGITS_MAX {
        return too_large();
    }
    let rest = input.input.as_ref();
    if let Some(exponent) = rest.strip_prefix(['e', 'E'])
        && exponent.trim_start_matches(['+', '-']).starts_with(|c: char| c.is_ascii_digit())
    {
        any.void().parse_next(input)?;
        let sign: &str = take_while(0..=1, ['+', '-']).parse_next(input)?;
        let exponent: &str = take_while(1.., |c: char| c.is_ascii_digit()).parse_next(input)?;
        digits += &format!("e{sign}{exponent}");
        is_whole = false;
    }
    let unit_offset = input.current_token_start();
    let unit: &str = take_while(0.., is_word_char).parse_next(input)?;
    blank(input)?;
    let scale = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, scale)) => Some(*scale),
        None if unit.is_empty() => None,
        None => {
            let units = UNITS.map(|(name, _)| name).join(" ");
            return wrong(unit_offset, format!("`{unit}` is no unit; there are {units}"));
        }
    };
    if is_whole {
        let number = digits.parse::<i128>().ok().and_then(|number| number.checked_mul(factor * scale.unwrap_or(1)));
        return number.map_or_else(too_large, |number| Ok(Literal::Integer(number)));
    }
    let float = factor as f64 * digits.parse::<f64>().unwrap_or(f64::NAN);
    match scale {
        None if float.is_finite() => Ok(Literal::Float(float)),
        Some(scale) if (float * scale as f64).abs() < 1e30 => {
            Ok(Literal::Integer((float * scale as f64).round() as i128))
        }
        _ => too_large(),
    }
}

/// Parses the whole number, with or without a unit, that begins at a byte of a text. Returns the position of what
/// follows it and its blanks too.
pub(crate) fn parse_integer(text: &str, start: usize) -> Result<(i128, usize), FilterError> {
    let mut input = Input { input: LocatingSlice::new(text), state: State::default() };
    input.next_slice(start);
    match number(&mut input) {
        Ok(Literal::Integer(number)) => Ok((number, input.current_token_start())),
        Ok(_) => Err(FilterError::at(text, start, "expected a whole number")),
        Err(error) => {
            let Wrong { offset, what } = error.into_inner().unwrap_or_default();
            Err(FilterError::at(text, offset, what))
        }
    }
}

/// Parses a word, or any text between backquotes.
fn member(input: &mut Input<'_>) -> Parsed<String> {
    let start = input.current_token_start();
    if opt(literal('`')).parse_next(input)?.is_some() {
        let word: &str = take_while(0.., |c: char| c != '`').parse_next(input)?;
        return match opt(literal('`')).parse_next(input)? {
            Some(_) => Ok(word.to_string()),
            None => wrong(start, "this name does not end: a backquote is missing"),
        };
    }
    let word: &str = take_while(0.., is_word_char).parse_next(input)?;
    if word.is_empty() { expected(input, "a name") } else { Ok(word.to_string()) }
}

fn path(input: &mut Input<'_>) -> Parsed<Name> {
    let mut parts = vec![Part::Member(member(input)?)];
    loop {
        if opt(literal('.')).parse_next(input)?.is_some() {
            parts.push(Part::Member(member(input)?));
        } else if opt(literal('[')).parse_next(input)?.is_some() {
            let digits: &str = take_while(0.., |c: char| c.is_ascii_digit()).parse_next(input)?;
            match digits.parse() {
                Ok(index) => parts.push(Part::Index(index)),
                Err(_) => return expected(input, "the number of an element"),
            }
            if opt(literal(']')).parse_next(input)?.is_none() {
                return expected(input, "`]`");
            }
        } else {
            break;
        }
    }
    Ok(Name { parts })
}

/// Parses the name `a.b[2]`. Here a part that is not a word needs no backquotes, unless it contains a dot.
pub fn parse_name(text: &str) -> Name {
    let mut input = Input { input: LocatingSlice::new(text), state: State::default() };
    let found = path(&mut input).ok().filter(|_| input.input.as_ref().is_empty());
    found.unwrap_or_else(|| Name { parts: text.split('.').map(|part| Part::Member(part.into())).collect() })
}

fn name(input: &mut Input<'_>) -> Parsed<Operand> {
    let offset = input.current_token_start();
    let name = path(input)?;
    blank(input)?;
    let names = &mut input.state.names;
    let index = names.iter().position(|(known, _)| *known == name).unwrap_or(names.len());
    if index == NAMES_MAX {
        return wrong(offset, format!("more than {NAMES_MAX} names"));
    }
    if index == names.len() {
        names.push((name, offset));
    }
    Ok(Operand::Name(index))
}

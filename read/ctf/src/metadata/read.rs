//! Reads the TSDL that [`super::write`] writes.
//!
//! The text is cut into declarations, each a list of tokens. `env`, `clock` and `event` are understood; all others must be,
//! token for token, those that a preamble with the same options has.

use std::collections::BTreeMap;

use dormouse_abi::class::{CLASS_ID_MAX, ClassDecl, FIELD_COUNT_MAX, FieldType, Kind};
use dormouse_abi::page::{STREAM_EVENTS, STREAM_STATE};
use dormouse_abi::record::RecordKind;

use super::write::{FIRST_LINE, identifier, type_name};
use super::{Metadata, MetadataError, MetadataOptions};
use crate::class::Classes;
use crate::time::Clock;
use crate::totals::Totals;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token<'a> {
    /// Identifiers, numbers and paths such as `packet.header`.
    Word(&'a str),
    /// A string literal, unescaped.
    Text(String),
    /// A single character, or `:=`.
    Sign(&'a str),
}

/// A top-level declaration without its semicolon.
struct Declaration<'a> {
    /// Where it starts, from 1.
    line: usize,
    tokens: Vec<Token<'a>>,
}

fn foreign(line: usize, what: impl std::fmt::Display) -> MetadataError {
    MetadataError::Unreadable(format!(
        "line {line}: {what}: Dormouse did not write these metadata; read this trace with babeltrace2"
    ))
}

pub(super) fn parse(text: &str) -> Result<Metadata, MetadataError> {
    if text.lines().next() != Some(FIRST_LINE) {
        return Err(foreign(1, format!("the first line is not {FIRST_LINE:?}")));
    }
    let declarations = declarations(text)?;
    let entries = |block| Entries::new(text, &declarations, block);
    // Whichever of the two it is, what it has to look like is compared below.
    let has_variant = |declaration: &Declaration<'_>| {
        declaration.tokens.first() == Some(&Token::Word("stream"))
            && declaration.tokens.contains(&Token::Word("variant"))
    };
    let record_kind = if declarations.iter().any(has_variant) { RecordKind::Compact } else { RecordKind::Ids };
    let env = entries("env")?;
    let options = options(&entries("trace")?, &env, &entries("clock")?, record_kind)?;
    let mut totals = Totals::default();
    for (name, value) in &env.entries {
        if let Token::Text(value) = value
            && !totals.read(name, value)
        {
            return Err(foreign(env.line, format!("the value of {name} has another form")));
        }
    }

    let expected_text = Metadata::new(options.clone()).preamble();
    let expected = self::declarations(&expected_text)?;
    let is_layout = |declaration: &&Declaration<'_>| {
        !matches!(declaration.tokens.first(), Some(Token::Word("env" | "clock" | "event")))
    };
    let mut expected = expected.iter().filter(is_layout);
    for declaration in declarations.iter().filter(is_layout) {
        if expected.next().is_none_or(|expected| expected.tokens != declaration.tokens) {
            return Err(foreign(declaration.line, "this declaration is not the one that belongs here"));
        }
    }
    if expected.next().is_some() {
        return Err(foreign(1, "there is a declaration missing"));
    }

    let mut classes = Classes::empty(record_kind);
    for declaration in &declarations {
        if declaration.tokens.first() == Some(&Token::Word("event")) {
            let (id, decl) = event(&declaration.tokens)
                .ok_or_else(|| foreign(declaration.line, "this event declaration has another form"))?;
            if !classes.insert(id, decl) {
                let text = format!("line {}: event id {id} is declared twice", declaration.line);
                return Err(MetadataError::Unreadable(text));
            }
        }
    }
    if !classes.has_state() {
        return Err(foreign(1, "the events of the state stream are missing or of another form"));
    }
    Ok(Metadata { options, classes, totals })
}

fn options(
    trace: &Entries<'_>,
    env: &Entries<'_>,
    clock: &Entries<'_>,
    record_kind: RecordKind,
) -> Result<MetadataOptions, MetadataError> {
    let frequency_hz: u64 = clock.number("freq")?;
    if frequency_hz == 0 {
        return Err(foreign(clock.line, "the clock stands still"));
    }
    Ok(MetadataOptions {
        uuid: uuid(&trace.text("uuid")?).ok_or_else(|| foreign(trace.line, "the uuid has another form"))?,
        hostname: env.text("hostname")?,
        tracer_version: (env.number("tracer_major")?, env.number("tracer_minor")?),
        start_time_s: env.number("trace_creation_time_s")?,
        clock: Clock {
            name: clock.text("name")?,
            description: clock.text("description")?,
            frequency_hz,
            offset_s: clock.number("offset_s")?,
            offset_cycles: clock.number("offset")?,
        },
        record_kind,
    })
}

/// The `name = value;` entries of all blocks of one kind.
struct Entries<'a> {
    /// Of the first block.
    line: usize,
    entries: BTreeMap<&'a str, &'a Token<'a>>,
}

impl<'a> Entries<'a> {
    /// Structures between the entries, such as `packet.header`, are passed over.
    fn new(text: &str, declarations: &'a [Declaration<'a>], block: &str) -> Result<Entries<'a>, MetadataError> {
        let is_wanted = |declaration: &&Declaration<'_>| declaration.tokens.first() == Some(&Token::Word(block));
        let mut blocks = declarations.iter().filter(is_wanted).peekable();
        let missing = || foreign(1, format!("there is no {block} declaration"));
        let line = blocks.peek().ok_or_else(missing)?.line;
        let mut entries = BTreeMap::new();
        for window in blocks.flat_map(|declaration| declaration.tokens.windows(4)) {
            if let [Token::Word(name), Token::Sign("="), value, Token::Sign(";")] = window
                && entries.insert(*name, value).is_some()
            {
                let (line, column) = place(text, name);
                return Err(MetadataError::Unreadable(format!(
                    "line {line}, column {column}: the key {name} is in the {block} declaration twice; take one of the two away"
                )));
            }
        }
        Ok(Entries { line, entries })
    }

    fn text(&self, name: &str) -> Result<String, MetadataError> {
        match self.entries.get(name) {
            Some(Token::Text(text)) => Ok(text.clone()),
            _ => Err(foreign(self.line, format!("there is no text {name:?} in this declaration"))),
        }
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, MetadataError> {
        let number = match self.entries.get(name) {
            Some(Token::Word(number)) => number.parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| foreign(self.line, format!("there is no number {name:?} in this declaration")))
    }
}

/// Line and column, from 1, of a part of `text`.
fn place(text: &str, part: &str) -> (usize, usize) {
    let offset = part.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    let before = text.get(..offset).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// `event { name = "provider:name"; id = 7; stream_id = 0; fields := struct { … } align(8); }`
fn event(tokens: &[Token<'_>]) -> Option<(u16, ClassDecl)> {
    use Token::{Sign, Text, Word};
    #[rustfmt::skip]
    let [
        Word("event"), Sign("{"),
        Word("name"), Sign("="), Text(full_name), Sign(";"),
        Word("id"), Sign("="), Word(id), Sign(";"),
        Word("stream_id"), Sign("="), Word(stream_id), Sign(";"),
        Word("fields"), Sign(":="), Word("struct"), Sign("{"),
        fields @ ..,
        Sign("}"), Word("align"), Sign("("), Word("8"), Sign(")"), Sign(";"),
        Sign("}"),
    ] = tokens
    else {
        return None;
    };
    let (provider, name) =
        full_name.split_once(':').filter(|(provider, name)| is_identifier(provider) && is_identifier(name))?;
    let id: u16 = id.parse().ok()?;
    if stream_id.parse() != Ok(if id <= CLASS_ID_MAX { STREAM_EVENTS } else { STREAM_STATE }) {
        return None;
    }
    Some((id, ClassDecl { provider: provider.into(), name: name.into(), fields: struct_fields(fields)? }))
}

fn struct_fields(mut tokens: &[Token<'_>]) -> Option<Vec<(String, FieldType)>> {
    use Token::{Sign, Word};
    let kind_of = |name: &str| Kind::ALL.into_iter().find(|kind| *kind != Kind::Str && type_name(*kind) == name);
    let mut fields = Vec::new();
    while !tokens.is_empty() && fields.len() < FIELD_COUNT_MAX {
        let (name, field_type, rest) = match tokens {
            #[rustfmt::skip]
            [
                Word("uint32_t"), Word(length), Sign(";"),
                Word(element), Word(name), Sign("["), Word(count), Sign("]"), Sign(";"),
                rest @ ..,
            ] => {
                if length != count || *length != format!("_{name}_length") {
                    return None;
                }
                let kind = kind_of(element)?;
                (name, FieldType { kind, sequence: kind != Kind::Bytes }, rest)
            }
            #[rustfmt::skip]
            [
                Word("string"), Sign("{"), Word("encoding"), Sign("="), Word("UTF8"), Sign(";"), Sign("}"),
                Word(name), Sign(";"),
                rest @ ..,
            ] => (name, FieldType::scalar(Kind::Str), rest),
            [Word(kind), Word(name), Sign(";"), rest @ ..] => {
                (name, FieldType::scalar(kind_of(kind).filter(|kind| *kind != Kind::Bytes)?), rest)
            }
            _ => return None,
        };
        let name = name.strip_prefix('_').filter(|name| is_identifier(name))?;
        fields.push((name.to_string(), field_type));
        tokens = rest;
    }
    tokens.is_empty().then_some(fields)
}

fn is_identifier(name: &str) -> bool {
    identifier(name) == name
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let number = (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok())?;
    number.map(u128::to_be_bytes)
}

/// Cuts the text at the semicolons outside of all braces.
fn declarations(text: &str) -> Result<Vec<Declaration<'_>>, MetadataError> {
    let (mut declarations, mut tokens, mut depth) = (Vec::new(), Vec::new(), 0u32);
    // Lines are counted as far as the declaration at hand.
    let (mut line, mut counted) = (1, 0);
    let mut rest = text;
    loop {
        rest = skip_blank(rest).ok_or(MetadataError::CutOff { line })?;
        if tokens.is_empty() {
            let offset = text.len() - rest.len();
            line += text.as_bytes()[counted..offset].iter().filter(|byte| **byte == b'\n').count();
            counted = offset;
        }
        if rest.is_empty() {
            break;
        }
        let (token, tail) = token(rest).ok_or(MetadataError::CutOff { line })?;
        rest = tail;
        match token {
            Token::Sign("{") => depth += 1,
            Token::Sign("}") => {
                depth = depth.checked_sub(1).ok_or_else(|| foreign(line, "a brace closes that none has opened"))?;
            }
            Token::Sign(";") if depth == 0 => {
                declarations.push(Declaration { line, tokens: std::mem::take(&mut tokens) });
                continue;
            }
            _ => {}
        }
        tokens.push(token);
    }
    if tokens.is_empty() { Ok(declarations) } else { Err(MetadataError::CutOff { line }) }
}

/// Passes over white space and comments; `None` if a comment does not end.
fn skip_blank(mut text: &str) -> Option<&str> {
    loop {
        text = text.trim_start();
        text = match (text.strip_prefix("/*"), text.strip_prefix("//")) {
            (Some(comment), _) => comment.split_once("*/")?.1,
            (_, Some(comment)) => comment.split_once('\n').map_or("", |(_, tail)| tail),
            _ => return Some(text),
        };
    }
}

/// The token at the start of a text that is not empty; `None` if a string literal does not end.
fn token(text: &str) -> Option<(Token<'_>, &str)> {
    if let Some(tail) = text.strip_prefix('"') {
        return string_literal(tail);
    }
    let word_len =
        text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))).unwrap_or(text.len());
    if word_len > 0 {
        let (word, tail) = text.split_at(word_len);
        return Some((Token::Word(word), tail));
    }
    let sign_len = if text.starts_with(":=") { 2 } else { text.chars().next()?.len_utf8() };
    let (sign, tail) = text.split_at(sign_len);
    Some((Token::Sign(sign), tail))
}

/// The escapes are those that the writer uses: `\"`, `\\` and three octal digits.
fn string_literal(text: &str) -> Option<(Token<'_>, &str)> {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((index, c)) = chars.next() {
        match c {
            '"' => return Some((Token::Text(out), &text[index + 1..])),
            '\\' => match text.get(index + 1..index + 4).map(|digits| u8::from_str_radix(digits, 8)) {
                Some(Ok(byte)) if byte.is_ascii() => {
                    out.push(byte.into());
                    chars.nth(2);
                }
                _ => out.push(chars.next()?.1),
            },
            c => out.push(c),
        }
    }
    None
}

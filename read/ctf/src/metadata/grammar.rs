//! The grammar of TSDL (clause 7). It parses a text into the tree of [`super::syntax`].

use std::borrow::Cow;

use winnow::combinator::{alt, delimited, opt, peek, preceded, repeat, terminated};
use winnow::error::{ErrMode, ParserError};
use winnow::prelude::*;
use winnow::stream::{LocatingSlice, Location, Stateful};
use winnow::token::{any, literal, take_till, take_until, take_while};

use super::error::{MetadataError, line_of};
use super::syntax::*;

/// Maximum depth of nested braces.
const DEPTH_MAX: u32 = 64;

/// Text, with the number of open braces.
type Input<'a> = Stateful<LocatingSlice<&'a str>, u32>;
type Parsed<T> = Result<T, ErrMode<Wrong>>;
/// Name of a field, and its position.
type Name<'a> = (At, &'a str);

/// A parse error and its position.
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

/// Parses all declarations of a text.
pub(super) fn parse(text: &str) -> Result<Vec<Declaration<'_>>, MetadataError> {
    let mut input = Input { input: LocatingSlice::new(text), state: 0 };
    let mut declarations = Vec::new();
    let mut start = 0;
    loop {
        let declaration = blank(&mut input).and_then(|()| {
            start = input.current_token_start();
            input.state = 0;
            opt(peek(any)).parse_next(&mut input)?.map(|_| declaration(&mut input)).transpose()
        });
        match declaration {
            Ok(Some(declaration)) => declarations.push(declaration),
            Ok(None) => return Ok(declarations),
            Err(_) if is_cut_off(&text[start..]) => return Err(MetadataError::CutOff { line: line_of(text, start) }),
            Err(error) => {
                let Wrong { offset, what } = error.into_inner().unwrap_or_default();
                return Err(MetadataError::at(text, offset, what));
            }
        }
    }
}

/// Whether the declaration at the start of this text lacks its final semicolon.
fn is_cut_off(mut text: &str) -> bool {
    let mut depth = 0u32;
    loop {
        let mut input = Input { input: LocatingSlice::new(text), state: 0 };
        if blank(&mut input).is_err() {
            return true;
        }
        text = &text[input.current_token_start()..];
        let mut rest = text.chars();
        match rest.next() {
            None => return true,
            Some(quote @ ('"' | '\'')) => match behind_literal(rest.as_str(), quote) {
                Some(behind) => {
                    text = behind;
                    continue;
                }
                // A literal must end on its line. Only on the last line can it be cut off.
                None => return !text.contains('\n'),
            },
            Some('{') => depth += 1,
            Some('}') if depth == 0 => return false,
            Some('}') => depth -= 1,
            Some(';') if depth == 0 => return false,
            Some(_) => {}
        }
        text = rest.as_str();
    }
}

/// Returns the text after a literal whose opening quote has been passed, if the literal ends on its line.
fn behind_literal(text: &str, quote: char) -> Option<&str> {
    let mut chars = text.chars();
    loop {
        match chars.next()? {
            '\n' => return None,
            '\\' => drop(chars.next()),
            c if c == quote => return Some(chars.as_str()),
            _ => {}
        }
    }
}

fn wrong<T>(input: &Input<'_>, what: impl Into<String>) -> Parsed<T> {
    Err(ErrMode::Cut(Wrong { offset: input.current_token_start(), what: what.into() }))
}

fn expected<T>(input: &Input<'_>, what: &str) -> Parsed<T> {
    let rest = input.input.as_ref();
    let word: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').take(40).collect();
    let found = match (word.as_str(), rest.chars().next()) {
        ("", None) => "the text ends".to_string(),
        ("", Some(c)) => format!("found `{}`", c.escape_debug()),
        (word, _) => format!("found `{word}`"),
    };
    wrong(input, format!("expected {what}, {found}"))
}

/// Skips white space and comments.
fn blank(input: &mut Input<'_>) -> Parsed<()> {
    loop {
        take_while(0.., |c: char| c.is_whitespace()).void().parse_next(input)?;
        if input.input.as_ref().starts_with("/*") {
            let comment = delimited(literal("/*"), take_until::<_, _, ErrMode<Wrong>>(0.., "*/"), literal("*/"));
            if comment.void().parse_next(input).is_err() {
                return wrong(input, "this comment does not end");
            }
        } else if input.input.as_ref().starts_with("//") {
            take_till(0.., '\n').void().parse_next(input)?;
        } else {
            return Ok(());
        }
    }
}

/// Parses `sign` if it is next. Returns whether it was there.
fn sign(sign: &'static str) -> impl for<'a> FnMut(&mut Input<'a>) -> Parsed<bool> {
    move |input| opt(terminated(literal(sign), blank)).map(|found| found.is_some()).parse_next(input)
}

fn expect(input: &mut Input<'_>, text: &'static str) -> Parsed<()> {
    if sign(text)(input)? { Ok(()) } else { expected(input, &format!("`{text}`")) }
}

/// Words that name types. An alias can be declared for one or more of them.
const TYPE_WORDS: [&str; 12] = [
    "char",
    "double",
    "float",
    "int",
    "long",
    "short",
    "signed",
    "unsigned",
    "void",
    "_Bool",
    "_Complex",
    "_Imaginary",
];
/// Other words that cannot be names.
const KEYWORDS: [&str; 16] = [
    "align",
    "callsite",
    "clock",
    "const",
    "enum",
    "env",
    "event",
    "floating_point",
    "integer",
    "stream",
    "string",
    "struct",
    "trace",
    "typealias",
    "typedef",
    "variant",
];

/// Checks that a word is a name and not a word of the language.
fn name<'a>((at, word): Name<'a>, has_type_words: bool) -> Parsed<Name<'a>> {
    if KEYWORDS.contains(&word) || !has_type_words && TYPE_WORDS.contains(&word) {
        return Err(ErrMode::Cut(Wrong {
            offset: at.0,
            what: format!("`{word}` is a word of the language, and no name"),
        }));
    }
    Ok((at, word))
}

/// Parses an identifier if one is next.
fn word<'a>(input: &mut Input<'a>) -> Parsed<&'a str> {
    let first = take_while(1, |c: char| c.is_ascii_alphabetic() || c == '_');
    let rest = take_while(0.., |c: char| c.is_ascii_alphanumeric() || c == '_');
    terminated((first, rest).take(), blank).parse_next(input)
}

fn next_word<'a>(input: &mut Input<'a>) -> Parsed<Option<&'a str>> {
    opt(peek(word)).parse_next(input)
}

/// Parses identifiers that are separated by dots.
fn path<'a>(input: &mut Input<'a>, what: &str) -> Parsed<Cow<'a, str>> {
    let Some(first) = opt(word).parse_next(input)? else { return expected(input, what) };
    let mut path = Cow::Borrowed(first);
    while sign(".")(input)? {
        let Some(next) = opt(word).parse_next(input)? else { return expected(input, "a name behind the dot") };
        let path = path.to_mut();
        path.push('.');
        path.push_str(next);
    }
    Ok(path)
}

fn at(input: &Input<'_>) -> At {
    At(input.current_token_start())
}

/// Parses the content of braces up to the closing brace. The opening brace has been read.
fn in_braces<'a, T>(input: &mut Input<'a>, mut one: impl FnMut(&mut Input<'a>) -> Parsed<T>) -> Parsed<Vec<T>> {
    if input.state == DEPTH_MAX {
        return wrong(input, format!("more than {DEPTH_MAX} braces are open"));
    }
    input.state += 1;
    let mut all = Vec::new();
    while !sign("}")(input)? {
        all.push(one(input)?);
    }
    input.state -= 1;
    Ok(all)
}

const BLOCKS: [&str; 6] = ["trace", "env", "clock", "stream", "event", "callsite"];

fn declaration<'a>(input: &mut Input<'a>) -> Parsed<Declaration<'a>> {
    let block_at = at(input);
    let declaration = match next_word(input)? {
        Some(keyword) if BLOCKS.contains(&keyword) => {
            word.parse_next(input)?;
            expect(input, "{")?;
            Declaration::Block(Block { at: block_at, keyword, entries: in_braces(input, entry)? })
        }
        _ => match type_declaration(input)? {
            Some(declaration) => Declaration::Type(declaration),
            None => return expected(input, "a declaration (trace, env, clock, stream, event, typealias, …)"),
        },
    };
    // The grammar permits consecutive definitions without a semicolon between them.
    let is_definition = matches!(declaration, Declaration::Type(TypeDeclaration::Definition(_)));
    if !is_definition || !matches!(next_word(input)?, Some("struct" | "variant" | "enum")) {
        expect(input, ";")?;
    }
    Ok(declaration)
}

/// Parses `typealias`, `typedef`, or the definition of a structure, variant or enumeration, without its semicolon.
fn type_declaration<'a>(input: &mut Input<'a>) -> Parsed<Option<TypeDeclaration<'a>>> {
    Ok(match next_word(input)? {
        Some("typealias") => {
            word.parse_next(input)?;
            let original = type_of(input, false)?.0;
            expect(input, ":=")?;
            let name_at = at(input);
            let name = type_name(input)?;
            Some(TypeDeclaration::Alias(original, name_at, name))
        }
        Some("typedef") => {
            word.parse_next(input)?;
            let (original, declarators) = fields(input)?;
            Some(TypeDeclaration::Typedef(original, declarators))
        }
        Some("struct" | "variant" | "enum") => Some(TypeDeclaration::Definition(type_of(input, false)?.0)),
        _ => None,
    })
}

/// Parses the name that an alias declares: words and asterisks, or a tag such as `struct x`.
fn type_name(input: &mut Input<'_>) -> Parsed<String> {
    let (mut all, mut last) = (String::new(), None);
    loop {
        let part_at = at(input);
        let part = match opt(word).parse_next(input)? {
            Some(word) => {
                last = Some((part_at, word));
                word
            }
            None if sign("*")(input)? => "*",
            None => break,
        };
        if !all.is_empty() {
            all.push(' ');
        }
        all += part;
    }
    match last {
        Some(last) => name(last, true).map(|_| all),
        None => expected(input, "the name of a type"),
    }
}

fn entry<'a>(input: &mut Input<'a>) -> Parsed<Entry<'a>> {
    let entry_at = at(input);
    let entry = match type_declaration(input)? {
        Some(declaration) => Entry::Type(declaration),
        None => {
            let key = path(input, "a key or `}`")?;
            if sign(":=")(input)? {
                Entry::Class(entry_at, key, type_of(input, false)?.0)
            } else if sign("=")(input)? {
                let value_at = at(input);
                Entry::Value(Assignment { at: entry_at, key, value_at, value: value(input)? })
            } else {
                return expected(input, "`=` or `:=`");
            }
        }
    };
    expect(input, ";")?;
    Ok(entry)
}

/// Parses one `key = value;`, as in `integer { … }`.
fn assignment<'a>(input: &mut Input<'a>) -> Parsed<Assignment<'a>> {
    let entry_at = at(input);
    let key = path(input, "a key or `}`")?;
    expect(input, "=")?;
    let value_at = at(input);
    let value = value(input)?;
    expect(input, ";")?;
    Ok(Assignment { at: entry_at, key, value_at, value })
}

fn value<'a>(input: &mut Input<'a>) -> Parsed<Value<'a>> {
    match input.input.as_ref().chars().next() {
        Some('"' | '\'') => string(input).map(Value::Text),
        Some('-' | '+' | '0'..='9') => number(input).map(Value::Number),
        _ => path(input, "a value").map(Value::Word),
    }
}

/// Parses an integer in C syntax.
fn number(input: &mut Input<'_>) -> Parsed<i128> {
    let start = *input;
    let is_negative = opt(terminated(alt((literal("-"), literal("+"))), blank)).parse_next(input)? == Some("-");
    let word: &str = take_while(0.., |c: char| c.is_ascii_alphanumeric() || c == '_').parse_next(input)?;
    let digits = word.trim_end_matches(['u', 'U', 'l', 'L']);
    let number = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        _ if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(&digits[1..], 8),
        _ => digits.parse(),
    };
    blank(input)?;
    match number {
        Ok(number) => Ok(if is_negative { -i128::from(number) } else { number.into() }),
        Err(_) => expected(&start, "a whole number of at most 64 bits"),
    }
}

/// Parses a string or character literal with C escapes. Bytes that are not UTF-8 are replaced by the replacement
/// character.
fn string(input: &mut Input<'_>) -> Parsed<String> {
    let start = *input;
    let quote = any.parse_next(input)?;
    let mut out = Vec::new();
    loop {
        let plain: &str = take_till(0.., [quote, '\\', '\n']).parse_next(input)?;
        out.extend_from_slice(plain.as_bytes());
        match opt(any).parse_next(input)? {
            Some(end) if end == quote => break,
            Some('\\') => escape(input, &mut out)?,
            // A literal cannot span lines.
            _ => return wrong(&start, "this text does not end in its line"),
        }
    }
    blank(input)?;
    Ok(String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

fn escape(input: &mut Input<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    // Three digits of either base can exceed a byte. Only the low eight bits count.
    let byte = |base| move |digits: &str| u32::from_str_radix(digits, base).unwrap_or(0) as u8;
    let octal = take_while(1..=3, '0'..='7').map(byte(8));
    let hexadecimal = preceded(literal("x"), take_while(1..=3, |c: char| c.is_ascii_hexdigit())).map(byte(16));
    if let Some(byte) = opt(alt((octal, hexadecimal))).parse_next(input)? {
        out.push(byte);
        return Ok(());
    }
    out.push(match peek(opt(any)).parse_next(input)? {
        Some('a') => 7,
        Some('b') => 8,
        Some('f') => 12,
        Some('n') => b'\n',
        Some('r') => b'\r',
        Some('t') => b'\t',
        Some('v') => 11,
        Some(c @ ('\\' | '\'' | '"' | '?')) => c as u8,
        _ => return expected(input, "one of the escapes of C behind `\\`"),
    });
    any.void().parse_next(input)
}

/// Parses a type and, if `has_name` is set and a field's name follows the words of the type, that name.
fn type_of<'a>(input: &mut Input<'a>, has_name: bool) -> Parsed<(Type<'a>, Option<Name<'a>>)> {
    while opt(peek(word)).parse_next(input)? == Some("const") {
        word.parse_next(input)?;
    }
    let type_at = at(input);
    let kind = match next_word(input)? {
        Some("integer") => TypeKind::Integer(properties(input, true)?),
        Some("floating_point") => TypeKind::Float(properties(input, true)?),
        Some("string") => TypeKind::Text(properties(input, false)?),
        Some("struct") => structure(input)?,
        Some("variant") => variant(input)?,
        Some("enum") => enumeration(input)?,
        Some(_) => {
            let (words, name) = words(input, has_name)?;
            return Ok((Type { at: type_at, kind: TypeKind::Named(words) }, name));
        }
        None => return expected(input, "a type"),
    };
    Ok((Type { at: type_at, kind }, None))
}

/// Parses the words of a type's name. If `has_name` is set, the last word is the field's name.
fn words<'a>(input: &mut Input<'a>, has_name: bool) -> Parsed<(Cow<'a, str>, Option<Name<'a>>)> {
    let mut last = (at(input), word.parse_next(input)?);
    let mut words = Cow::Borrowed("");
    let push = |words: &mut Cow<'a, str>, word: &'a str| match words.is_empty() {
        true => *words = Cow::Borrowed(word),
        false => *words = Cow::Owned(format!("{words} {word}")),
    };
    loop {
        let next_at = at(input);
        match opt(word).parse_next(input)? {
            Some("const") => continue,
            Some(next) => push(&mut words, std::mem::replace(&mut last, (next_at, next)).1),
            None => break,
        }
    }
    let is_pointer = input.input.as_ref().starts_with('*');
    if !has_name || is_pointer {
        push(&mut words, last.1);
        while sign("*")(input)? {
            push(&mut words, "*");
        }
        // The name after the asterisks.
        let behind_at = at(input);
        let behind = if has_name && is_pointer { opt(word).parse_next(input)? } else { None };
        return Ok((words, behind.map(|word| name((behind_at, word), false)).transpose()?));
    }
    if words.is_empty() {
        return expected(input, "the name of a field behind its type");
    }
    Ok((words, Some(name(last, false)?)))
}

fn properties<'a>(input: &mut Input<'a>, are_needed: bool) -> Parsed<Vec<Assignment<'a>>> {
    word.parse_next(input)?;
    if sign("{")(input)? {
        return in_braces(input, assignment);
    }
    if are_needed { expected(input, "`{`") } else { Ok(Vec::new()) }
}

/// Skips the keyword that was peeked, and parses a name if one follows.
fn keyword_and_tag<'a>(input: &mut Input<'a>) -> Parsed<Option<&'a str>> {
    word.parse_next(input)?;
    let tag_at = at(input);
    let tag = opt(word).parse_next(input)?;
    tag.map(|tag| Ok(name((tag_at, tag), false)?.1)).transpose()
}

fn structure<'a>(input: &mut Input<'a>) -> Parsed<TypeKind<'a>> {
    let name = keyword_and_tag(input)?;
    let members = if sign("{")(input)? { Some(in_braces(input, member)?) } else { None };
    if members.is_none() && name.is_none() {
        return expected(input, "`{` or the name of a structure");
    }
    let align = match next_word(input)? {
        Some("align") => {
            word.parse_next(input)?;
            expect(input, "(")?;
            let align = (at(input), number(input)?);
            expect(input, ")")?;
            Some(align)
        }
        _ => None,
    };
    Ok(TypeKind::Struct { name, members, align })
}

fn variant<'a>(input: &mut Input<'a>) -> Parsed<TypeKind<'a>> {
    let own_name = keyword_and_tag(input)?;
    let tag = if sign("<")(input)? {
        let (tag_at, tag) = (at(input), path(input, "the name of a tag")?);
        // Absolute paths contain words of the language, but never as the whole path.
        if !tag.contains('.') {
            name((tag_at, &tag), false)?;
        }
        expect(input, ">")?;
        Some((tag_at, tag))
    } else {
        None
    };
    let options = if sign("{")(input)? { Some(in_braces(input, member)?) } else { None };
    if options.is_none() && own_name.is_none() {
        return expected(input, "`{` or the name of a variant");
    }
    Ok(TypeKind::Variant { name: own_name, tag, options })
}

fn enumeration<'a>(input: &mut Input<'a>) -> Parsed<TypeKind<'a>> {
    let name = keyword_and_tag(input)?;
    let container = if sign(":")(input)? { Some(Box::new(type_of(input, false)?.0)) } else { None };
    let labels = if sign("{")(input)? {
        let mut labels = Vec::new();
        loop {
            labels.push(label(input)?);
            let has_more = sign(",")(input)?;
            if sign("}")(input)? {
                break;
            }
            if !has_more {
                return expected(input, "`,` or `}`");
            }
        }
        Some(labels)
    } else {
        None
    };
    if labels.is_none() && (name.is_none() || container.is_some()) {
        return expected(input, "`{`");
    }
    Ok(TypeKind::Enum { name, container, labels })
}

fn label<'a>(input: &mut Input<'a>) -> Parsed<Label<'a>> {
    let label_at = at(input);
    let label_name = match input.input.as_ref().starts_with('"') {
        true => Cow::Owned(string(input)?),
        false => match opt(word).parse_next(input)? {
            Some(word) => Cow::Borrowed(word),
            None => return expected(input, "a label"),
        },
    };
    let mut range = None;
    if sign("=")(input)? {
        let first = number(input)?;
        let last = if sign("...")(input)? { number(input)? } else { first };
        range = Some((first, last));
    }
    Ok(Label { at: label_at, name: label_name, range })
}

fn member<'a>(input: &mut Input<'a>) -> Parsed<Member<'a>> {
    let member = match next_word(input)? {
        Some("typealias" | "typedef") => {
            let Some(declaration) = type_declaration(input)? else { return expected(input, "a field") };
            Member::Type(declaration)
        }
        // A definition without a field only declares the type.
        Some("struct" | "variant" | "enum") => {
            let definition = type_of(input, false)?.0;
            if input.input.as_ref().starts_with(';') {
                Member::Type(TypeDeclaration::Definition(definition))
            } else {
                Member::Fields(definition, declarators(input, None)?)
            }
        }
        Some(_) => {
            let (class, declarators) = fields(input)?;
            Member::Fields(class, declarators)
        }
        None => return expected(input, "a field or `}`"),
    };
    expect(input, ";")?;
    Ok(member)
}

/// Parses a type and the fields or names that have this type.
fn fields<'a>(input: &mut Input<'a>) -> Parsed<(Type<'a>, Vec<Declarator<'a>>)> {
    let (class, name) = type_of(input, true)?;
    Ok((class, declarators(input, name)?))
}

/// Parses names with their lengths. The first name may already have been read.
fn declarators<'a>(input: &mut Input<'a>, mut first: Option<Name<'a>>) -> Parsed<Vec<Declarator<'a>>> {
    let mut declarators = Vec::new();
    loop {
        let (name_at, found) = match first.take() {
            Some(first) => first,
            None => {
                sign("*")(input)?;
                let name_at = at(input);
                match opt(word).parse_next(input)? {
                    Some(word) => name((name_at, word), false)?,
                    None => return expected(input, "the name of a field"),
                }
            }
        };
        let lengths = repeat(0.., length).parse_next(input)?;
        declarators.push(Declarator { at: name_at, name: Cow::Borrowed(found), lengths });
        if !sign(",")(input)? {
            return Ok(declarators);
        }
    }
}

/// Parses `[3]` or `[length]`. A missing bracket ends the caller's list of lengths.
fn length<'a>(input: &mut Input<'a>) -> Parsed<(At, Length<'a>)> {
    terminated(literal("["), blank).void().parse_next(input)?;
    let length_at = at(input);
    let length = match input.input.as_ref().chars().next() {
        Some('0'..='9' | '-' | '+') => Length::Number(number(input)?),
        _ => Length::Field(path(input, "a number or the name of a field")?),
    };
    expect(input, "]")?;
    Ok((length_at, length))
}

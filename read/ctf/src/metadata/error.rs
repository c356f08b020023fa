//! What is wrong with metadata, and where.

use std::fmt;

use super::syntax::At;

/// Why text is not metadata that this crate reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// The text ends within a declaration that starts on this line.
    #[error("the declaration on line {line} is cut off; take the text from that line on away to read the rest")]
    CutOff {
        /// Where, from 1.
        line: usize,
    },
    /// The text is wrong at one place.
    #[error("{0}")]
    Text(Box<TextError>),
    /// Anything else.
    #[error("{0}")]
    Unreadable(String),
}

/// What is wrong at one place of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextError {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// What is wrong there.
    pub what: String,
    /// The line.
    pub excerpt: String,
}

/// Characters of a line that are shown before and behind the place.
const EXCERPT_CHARS: usize = 70;

impl fmt::Display for TextError {
    /// What is wrong, the line, and a caret below the place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TextError { line, column, what, excerpt } = self;
        let start = (column - 1).saturating_sub(EXCERPT_CHARS);
        let shown: String = excerpt.chars().skip(start).take(2 * EXCERPT_CHARS).map(blank_control).collect();
        write!(f, "line {line}, column {column}: {what}\n  {shown}\n  {:>width$}", '^', width = column - start)
    }
}

/// Tabs and the like are one column wide.
fn blank_control(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

impl MetadataError {
    pub(super) fn at(text: &str, offset: usize, what: impl Into<String>) -> MetadataError {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let rest = &text[line_start..];
        MetadataError::Text(Box::new(TextError {
            line: line_of(text, offset),
            column: text[line_start..before.len()].chars().count() + 1,
            what: what.into(),
            excerpt: rest.split(['\n', '\r']).next().unwrap_or_default().to_string(),
        }))
    }
}

/// The line of a place, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// A failure, and where.
pub(super) type Failure = (At, String);
pub(super) type Checked<T> = Result<T, Failure>;

pub(super) fn fail<T>(at: At, what: impl Into<String>) -> Checked<T> {
    Err((at, what.into()))
}

//! Errors in metadata, with their position.

use std::fmt;

use super::syntax::At;

/// A reason why a text is not metadata that this crate reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// The text ends within a declaration.
    #[error("the declaration on line {line} is cut off; take the text from that line on away to read the rest")]
    CutOff {
        /// Line on which the declaration starts, from 1.
        line: usize,
    },
    /// The text has an error at a known position.
    #[error("{0}")]
    Text(Box<TextError>),
    /// Any other error.
    #[error("{0}")]
    Unreadable(String),
}

/// An error at a position of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Description of the error.
    pub what: String,
    /// Text of the line.
    pub excerpt: String,
}

/// Maximum number of characters shown on each side of the position.
const EXCERPT_CHARS: usize = 70;

impl fmt::Display for TextError {
    /// Writes the error, the line, and a caret below the position.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TextError { line, column, what, excerpt } = self;
        let start = (column - 1).saturating_sub(EXCERPT_CHARS);
        let shown: String = excerpt.chars().skip(start).take(2 * EXCERPT_CHARS).map(blank_control).collect();
        write!(f, "line {line}, column {column}: {what}\n  {shown}\n  {:>width$}", '^', width = column - start)
    }
}

/// Replaces control characters such as tabs by a space, so that each is one column wide.
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

/// Returns the line of an offset, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// An error and its position.
pub(super) type Failure = (At, String);
pub(super) type Checked<T> = Result<T, Failure>;

pub(super) fn fail<T>(at: At, what: impl Into<String>) -> Checked<T> {
    Err((at, what.into()))
}

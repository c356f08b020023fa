//! Errors in a filter, with their position.

use std::fmt;

/// Error: a text is not a filter, or not a filter of these events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct FilterError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The error.
    pub what: String,
    /// The text of the line.
    pub excerpt: String,
}

/// Number of characters of a line that are shown before and after the position.
const EXCERPT_CHARS: usize = 60;

impl FilterError {
    /// Creates an error at a byte of the text.
    pub(crate) fn at(text: &str, offset: usize, what: impl Into<String>) -> FilterError {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        FilterError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            what: what.into(),
            excerpt: text[line_start..].lines().next().unwrap_or_default().to_string(),
        }
    }
}

impl fmt::Display for FilterError {
    /// Writes the error, the line, and a caret below the position.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FilterError { line, column, what, excerpt } = self;
        let start = (column - 1).saturating_sub(EXCERPT_CHARS);
        let blank = |c: char| if c.is_control() { ' ' } else { c };
        let shown: String = excerpt.chars().skip(start).take(2 * EXCERPT_CHARS).map(blank).collect();
        write!(f, "line {line}, column {column}: {what}\n  {shown}\n  {:>width$}", '^', width = column - start)
    }
}

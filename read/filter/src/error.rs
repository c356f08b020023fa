//! What is wrong with a filter, and where.

use std::fmt;

/// Why a text is no filter, or not one of these events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct FilterError {
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
const EXCERPT_CHARS: usize = 60;

impl FilterError {
    /// At a byte of the text.
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
    /// What is wrong, the line, and a caret below the place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FilterError { line, column, what, excerpt } = self;
        let start = (column - 1).saturating_sub(EXCERPT_CHARS);
        let blank = |c: char| if c.is_control() { ' ' } else { c };
        let shown: String = excerpt.chars().skip(start).take(2 * EXCERPT_CHARS).map(blank).collect();
        write!(f, "line {line}, column {column}: {what}\n  {shown}\n  {:>width$}", '^', width = column - start)
    }
}

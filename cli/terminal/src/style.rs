//! Colour and width of what is printed. Colour only on a terminal and without `NO_COLOR`: `anstream` strips it
//! otherwise.

use anstyle::{AnsiColor, Style};

/// Headings.
pub const BOLD: Style = Style::new().bold();
/// What is as it should be.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// What is to be known.
pub const KNOW: Style = AnsiColor::Cyan.on_default();
/// What is to be mended.
pub const BAD: Style = AnsiColor::Yellow.on_default().bold();

const COLUMNS_MAX: usize = 100;

/// Whether standard output shows colours: it is a terminal, and nobody has said otherwise (`NO_COLOR`).
pub fn has_color() -> bool {
    anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
}

/// Columns of the terminal, if standard output is one that says how many it has.
pub fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Columns to print in.
pub fn columns() -> usize {
    width().map_or(COLUMNS_MAX, |columns| columns.min(COLUMNS_MAX))
}

/// Text in lines that start with `first`, later ones with as many blanks.
pub fn wrap(text: &str, first: &str) -> String {
    let later = " ".repeat(first.chars().count());
    let options =
        textwrap::Options::new(columns().max(later.len() + 20)).initial_indent(first).subsequent_indent(&later);
    // A command is to be copied: it is broken at blanks alone.
    textwrap::fill(text, options.break_words(false).word_splitter(textwrap::WordSplitter::NoHyphenation))
}

//! Colours and widths of printed text. Colours are printed only on a terminal and without `NO_COLOR`; `anstream` strips
//! them otherwise.

use anstyle::{AnsiColor, Style};

/// Style of headings.
pub const BOLD: Style = Style::new().bold();
/// Style of facts that are in order.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Style of facts that the user should know.
pub const KNOW: Style = AnsiColor::Cyan.on_default();
/// Style of facts that the user should fix.
pub const BAD: Style = AnsiColor::Yellow.on_default().bold();

const COLUMNS_MAX: usize = 100;

/// Whether standard output shows colours: it is a terminal, and `NO_COLOR` is not set.
pub fn has_color() -> bool {
    anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
}

/// Returns the width of the terminal in columns, if standard output is a terminal with a known width.
pub fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Returns the width for printed text, in columns.
pub fn columns() -> usize {
    width().map_or(COLUMNS_MAX, |columns| columns.min(COLUMNS_MAX))
}

/// Wraps text. The first line starts with `first`, and later lines with as many blanks.
pub fn wrap(text: &str, first: &str) -> String {
    let later = " ".repeat(first.chars().count());
    let options =
        textwrap::Options::new(columns().max(later.len() + 20)).initial_indent(first).subsequent_indent(&later);
    // Lines are broken only at blanks, so that commands can be copied.
    textwrap::fill(text, options.break_words(false).word_splitter(textwrap::WordSplitter::NoHyphenation))
}

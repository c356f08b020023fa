//! Conversion of text from other processes for printing.

use alloc::string::String;

/// Whether a character may be sent to a terminal or a log: it moves no cursor, and does not change the order in which
/// others are shown.
///
/// Not printable are control characters including C1 (general category Cc), Unicode's line and paragraph separators,
/// and the controls of bidirectional text (Unicode Standard Annex 9, section 2).
pub const fn is_printable(c: char) -> bool {
    let is_control = matches!(c, '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{2028}' | '\u{2029}');
    let is_bidi = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !is_control && !is_bidi
}

/// Returns text from a program in a form that may be printed for people: in one line, and without characters that move
/// a terminal's cursor.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_printable(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// Returns the printable text, cut after 300 characters.
pub fn shown(text: &str) -> String {
    let mut chars = text.chars();
    let mut shown = printable(&chars.by_ref().take(300).collect::<String>());
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_bidirectional_characters_are_not_printed() {
        assert_eq!(shown(&"ß".repeat(301)), "ß".repeat(300) + "…");
        assert_eq!(printable("a\nb\u{9b}2J"), "a\u{fffd}b\u{fffd}2J");
        assert_eq!(printable("\u{202e}txt.exe\u{2066}\u{61c}"), "\u{fffd}txt.exe\u{fffd}\u{fffd}");
        assert_eq!(printable("größe 日本 ‘a’…"), "größe 日本 ‘a’…");
        assert!((0..=0x10ffff).filter_map(char::from_u32).all(|c| !is_printable(c) || !c.is_control()));
    }
}

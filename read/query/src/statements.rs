//! Splits a text into queries at its semicolons.

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

/// Returns each query, padded with blanks so that it keeps its lines and columns in the text.
pub(crate) fn of(text: &str) -> Vec<String> {
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, text).tokenize_with_location() else {
        // The parser reports the error.
        return vec![text.into()];
    };
    let mut all = Vec::new();
    let (mut blank, mut is_empty) = (String::new(), true);
    let (mut rest, mut line, mut column) = (text.char_indices().peekable(), 1, 1);
    let mut begin = 0;
    for token in tokens {
        match token.token {
            Token::Whitespace(_) | Token::EOF => continue,
            Token::SemiColon => {}
            _ => {
                is_empty = false;
                continue;
            }
        }
        let end = token.span.start;
        while (line, column) != (end.line, end.column)
            && let Some((_, character)) = rest.next()
        {
            (line, column) = if character == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        let at = rest.peek().map_or(text.len(), |(at, _)| *at);
        if !is_empty {
            all.push(format!("{blank}{}", &text[begin..at]));
        }
        blank.extend(text[begin..at].chars().map(|character| if character == '\n' { '\n' } else { ' ' }));
        (begin, is_empty) = (at + 1, true);
        blank.push(' ');
        rest.next();
        column += 1;
    }
    if !is_empty || all.is_empty() {
        all.push(format!("{blank}{}", text.get(begin..).unwrap_or_default()));
    }
    all
}

#[cfg(test)]
mod tests {
    #[test]
    fn statements_keep_their_positions() {
        assert_eq!(super::of("select 1"), ["select 1"]);
        assert_eq!(super::of("select 1;"), ["select 1"]);
        assert_eq!(super::of("a ';' b;\n; -- c;\nü \"x;y\";"), ["a ';' b", "        \n  -- c;\nü \"x;y\""]);
        assert_eq!(super::of("select 'open"), ["select 'open"]);
        assert_eq!(super::of(" "), [" "]);
    }
}

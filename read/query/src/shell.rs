//! The interactive shell: queries, completion of names, and a history.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use dormouse_terminal::{Output, say};
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context as LineContext, Editor, Helper};

use crate::fault::quoted;
use crate::functions::FUNCTIONS;
use crate::named::{self, ALL, Named};
use crate::output::Format;
use crate::run::{INTERRUPTED, Session, TERMINATED};

/// SQL words for completion.
const WORDS: [&str; 34] = [
    "and",
    "as",
    "asc",
    "between",
    "by",
    "case",
    "cast",
    "count(*)",
    "desc",
    "describe",
    "distinct",
    "else",
    "end",
    "explain",
    "from",
    "group",
    "having",
    "in",
    "interval",
    "is",
    "join",
    "left",
    "like",
    "limit",
    "not",
    "null",
    "on",
    "or",
    "order",
    "over",
    "partition",
    "select",
    "then",
    "where",
];
/// Maximum number of lines in the history.
const HISTORY_MAX: usize = 10_000;

const HELP: &str = "\
A query ends with a semicolon, and can have several lines. Tab completes names of tables, columns and functions.
  .tables        lists the tables
  .named         lists the named queries; .named NAME runs one
  .quit          leaves the shell, like Ctrl-D; Ctrl-C cancels a line or a query
";

/// Completer of words.
pub(crate) struct Words {
    words: Vec<String>,
}

impl Words {
    /// Creates a completer for functions, SQL words, and these names of tables and columns.
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Words {
        let functions =
            FUNCTIONS.iter().filter_map(|(text, _)| text.split_once('(')).map(|(name, _)| format!("{name}("));
        let mut words: Vec<String> = names.into_iter().map(|name| quoted(&name)).collect();
        words.extend(functions);
        words.extend(WORDS.iter().map(ToString::to_string));
        words.sort();
        words.dedup();
        Words { words }
    }

    /// Returns the start of the word before the cursor, and its completions.
    pub(crate) fn complete_word(&self, line: &str, at: usize) -> (usize, Vec<String>) {
        let before = &line[..at];
        // After an open quote, the word is a name that can have colons.
        let is_quoted = before.matches('"').count() % 2 == 1;
        let start = match is_quoted {
            true => before.rfind('"').unwrap_or(0),
            false => before
                .rfind(|c: char| !(c.is_alphanumeric() || c == '_'))
                .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8)),
        };
        let word = &before[start..];
        // Names that need quotes are also found without them.
        let fits = |candidate: &&String| {
            candidate.starts_with(word)
                || (!is_quoted && !word.is_empty() && candidate.trim_start_matches('"').starts_with(word))
        };
        (start, self.words.iter().filter(fits).cloned().collect())
    }
}

impl Completer for Words {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &LineContext<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, found) = self.complete_word(line, at);
        Ok((start, found.into_iter().map(|word| Pair { display: word.clone(), replacement: word }).collect()))
    }
}

impl Validator for Words {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let line = context.input().trim();
        let is_whole = line.is_empty() || line.starts_with('.') || line.ends_with(';');
        Ok(if is_whole { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Hinter for Words {
    type Hint = String;
}

impl Highlighter for Words {}

impl Helper for Words {}

/// Returns the path of the history file, in the user's state directory.
fn history_path() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = base.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
    Some(base.join("dormouse/query-history"))
}

/// Reads queries and runs them until the input ends.
///
/// # Errors
/// The terminal cannot be read.
pub(crate) fn run(session: &Session, rows: usize, out: &mut Output) -> Result<u8> {
    let config = Config::builder().max_history_size(HISTORY_MAX)?.auto_add_history(true).build();
    let mut editor: Editor<Words, FileHistory> = Editor::with_config(config).context("cannot use the terminal")?;
    editor.set_helper(Some(Words::new(session.names())));
    let history = history_path();
    if let Some(path) = &history {
        // The file does not exist the first time.
        let _ = editor.load_history(path);
    }
    writeln!(out, "{HELP}")?;
    let mut code = 0;
    loop {
        match editor.readline("dormouse> ") {
            Ok(line) => {
                let (text, sql): (&str, String);
                match line.trim().trim_end_matches(';').trim() {
                    "" => continue,
                    ".quit" | ".exit" => break,
                    ".help" => {
                        out.write_all(HELP.as_bytes())?;
                        continue;
                    }
                    ".tables" => text = "select table_name from information_schema.tables where table_schema = 'trace'",
                    ".named" => {
                        for named in ALL {
                            writeln!(out, "{:<20}{}", named.name, named.about())?;
                        }
                        continue;
                    }
                    other => match other.strip_prefix(".named ").map(|name| (name.trim(), Named::find(name.trim()))) {
                        Some((_, Some(found))) => {
                            sql = found.text(session.source().is_a_store());
                            text = &sql;
                        }
                        Some((name, None)) => {
                            say(format_args!("no query is called {name}{}", named::nearest(name)));
                            continue;
                        }
                        None => {
                            sql = other.to_string();
                            text = &sql;
                        }
                    },
                }
                match session.run(text, Format::Table, rows, None, None, out) {
                    Ok(INTERRUPTED) => say("interrupted"),
                    Ok(TERMINATED) => {
                        code = TERMINATED;
                        break;
                    }
                    Ok(_) => {}
                    Err(error) => say(format_args!("{error:#}")),
                }
            }
            // Ctrl-C discards the line.
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error).context("cannot read the terminal"),
        }
    }
    if let Some(path) = &history {
        let _ = path.parent().map(std::fs::create_dir_all);
        if let Err(error) = editor.save_history(path) {
            say(format_args!("cannot save the history in {}: {error}", path.display()));
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_with_their_quotes() {
        let words = Words::new(["events", "http:request", "http:end", "bytes"].map(String::from));
        let found = |line: &str| words.complete_word(line, line.len());
        assert_eq!(found("select * from ht"), (14, vec!["\"http:end\"".into(), "\"http:request\"".into()]));
        assert_eq!(found("select * from \"http:r"), (14, vec!["\"http:request\"".into()]));
        assert_eq!(found("select byt"), (7, vec!["bytes".into()]));
        assert_eq!(found("select dura"), (7, vec!["duration_text(".into()]));
        assert!(found("é").1.is_empty());
    }
}

//! Comments and documents say plainly what a thing is: the openings that had to be read twice do not come back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Openings of comments, list items and paragraphs that name no subject.
const RIDDLES: [&str; 8] = ["Of ", "That of ", "Those of ", "The same of ", "Who ", "Whoever ", "Whose ", "Whatever "];

/// Phrases that are no argument. A `SAFETY:` comment argues where it stands.
const NO_ARGUMENTS: [&str; 4] = ["the caller's word", "as above", "As above", "see above"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Calls `check` with each file of the project that has one of these extensions, and its text.
fn for_each(extensions: &[&str], mut check: impl FnMut(&Path, &str)) {
    fn visit(dir: &Path, extensions: &[&str], check: &mut dyn FnMut(&Path, &str)) {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if entry.file_type().unwrap().is_dir() {
                let is_ours =
                    !name.starts_with('.') && !["target", "node_modules", "vendor", "results"].contains(&&*name);
                if is_ours {
                    visit(&path, extensions, check);
                }
            } else if extensions.iter().any(|extension| path.extension().is_some_and(|found| found == *extension)) {
                check(&path, &std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    visit(&root(), extensions, &mut check);
}

/// Returns the text of a line that is a comment of Rust, C or C++, or `None` for code.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = ["///", "//!", "//", "/**", "/*", "* "].iter().find_map(|start| line.strip_prefix(start))?;
    Some(text.trim())
}

/// Returns the text without the mark of a list item.
fn item(text: &str) -> &str {
    ["* ", "- "].iter().find_map(|mark| text.strip_prefix(mark)).unwrap_or(text)
}

/// Returns the riddles in a text, as `FILE:LINE: text`. `comment` returns the words of a line, or `None` where it has none.
fn riddles(path: &Path, text: &str, words: impl Fn(&str) -> Option<&str>) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_inside = false;
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        let Some(words) = words(line).filter(|words| !words.is_empty()) else {
            is_inside = false;
            continue;
        };
        if words.starts_with("```") {
            is_code = !is_code;
        }
        let is_item = item(words) != words;
        // A line that goes on with a sentence may begin with any word.
        if !is_code && (!is_inside || is_item) && RIDDLES.iter().any(|riddle| item(words).starts_with(riddle)) {
            found.push(format!("{}:{}: {words}", path.display(), index + 1));
        }
        is_inside = true;
    }
    found
}

#[test]
fn comments_name_their_subject() {
    let mut found = Vec::new();
    for_each(&["rs", "c", "h", "cc", "cpp", "hpp"], |path, text| found.extend(riddles(path, text, comment)));
    assert!(found.is_empty(), "{} comments begin without a subject:\n{}", found.len(), found.join("\n"));
}

#[test]
fn documents_name_their_subject() {
    let mut found = Vec::new();
    for_each(&["md"], |path, text| {
        // The history stays as it was written.
        if !path.ends_with("CHANGELOG.md") {
            found.extend(riddles(path, text, |line| Some(line.trim())));
        }
    });
    assert!(found.is_empty(), "{} paragraphs begin without a subject:\n{}", found.len(), found.join("\n"));
}

#[test]
fn a_riddle_is_found_where_a_sentence_begins() {
    let text = "/// Of the slice.\nfn a() {}\n/// The name\n/// Of all.\n///\n/// * Who asks.\n// Whoever.\n";
    let lines = riddles(Path::new("a.rs"), text, comment);
    assert_eq!(lines, ["a.rs:1: Of the slice.", "a.rs:6: * Who asks."]);
}

#[test]
fn safety_is_argued_where_it_stands() {
    let mut found = Vec::new();
    for_each(&["rs"], |path, text| {
        // This file has them as text.
        if path.ends_with("xtask/tests/language.rs") {
            return;
        }
        let mut is_safety = false;
        for (index, line) in text.lines().enumerate() {
            let Some(words) = comment(line) else {
                is_safety = false;
                continue;
            };
            is_safety |= words.starts_with("SAFETY:");
            if is_safety && NO_ARGUMENTS.iter().any(|phrase| words.contains(phrase)) {
                found.push(format!("{}:{}: {words}", path.display(), index + 1));
            }
        }
    });
    assert!(found.is_empty(), "{} arguments are elsewhere:\n{}", found.len(), found.join("\n"));
}

#[test]
fn the_glossary_defines_each_word_once() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let (glossary, methodology) = (read("GLOSSARY.md"), read("lab/METHODOLOGY.md"));
    let (_, words) = methodology.split_once("\n## Words\n").unwrap();
    let text = format!("{glossary}\n{words}");
    let mut lines_of = BTreeMap::<&str, Vec<usize>>::new();
    for (index, line) in text.lines().enumerate() {
        // The table of words with qualifiers has a third column.
        let cells: Vec<&str> = line.trim_matches(['|', ' ']).split(" | ").collect();
        let [word, _] = cells[..] else { continue };
        if word != "word" && !word.starts_with("---") {
            word.split(", ").for_each(|word| lines_of.entry(word).or_default().push(index + 1));
        }
    }
    assert!(lines_of.len() > 100, "GLOSSARY.md has {} words", lines_of.len());
    lines_of.retain(|_, lines| lines.len() > 1);
    assert!(lines_of.is_empty(), "words with more than one meaning, and their lines: {lines_of:?}");
}

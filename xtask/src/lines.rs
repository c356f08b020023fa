//! `cargo xtask lines`: how long the product is.
//!
//! ```text
//!   files of a revision ─▶ room (by folder) ─▶ text without comments, items of tests and blank lines ─▶ table
//! ```
//! A lexer that knows comments, literals and braces does: the count must work on revisions whose code no longer builds.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::run::root;

/// Count product code: Rust and C headers, without the lab, automation, tests, comments and blank lines
///
/// The table has a row for each room and the total. What is no product is counted in the same way
/// and shown below it: the lab, the automation, and tests. Tests are folders called tests, fuzz,
/// benches or examples, and modules and other items under `#[cfg(test)]`.
///
/// Rooms are the same in every revision: what lay in other folders formerly is counted in the room
/// that has it today.
///
///     cargo xtask lines                        the files as they are now, as far as git knows them
///     cargo xtask lines --revision main~20     a commit, branch or tag
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Lines {
    /// The revision to count, as git names it [default: the files of the work tree]
    #[arg(long, value_name = "REV")]
    revision: Option<String>,
}

/// Folders of the layout with one level, and where their code lies today. The first that fits counts.
const FORMER: [(&str, &str); 28] = [
    ("abi/", "record/abi/"),
    ("locks/", "record/locks/"),
    ("tracer/", "record/tracer/"),
    ("preload/", "record/preload/"),
    ("capi/src/percpu", "mechanisms/percpu/capi/"),
    ("capi/src/backing", "mechanisms/backing/capi/"),
    ("capi/src/imv", "mechanisms/imv/capi/"),
    ("capi/src/relay", "mechanisms/relay/capi/"),
    ("capi/src/vring", "mechanisms/vring/capi/"),
    ("capi/backing/", "mechanisms/backing/capi/"),
    ("capi/imv/", "mechanisms/imv/capi/"),
    ("capi/relay/", "mechanisms/relay/capi/"),
    ("capi/vring/", "mechanisms/vring/capi/"),
    ("capi/", "record/capi/"),
    ("include/dormouse/abi/", "record/abi/include/"),
    ("include/dormouse/backing", "mechanisms/backing/include/"),
    ("include/dormouse/imv", "mechanisms/imv/include/"),
    ("include/dormouse/static_key", "mechanisms/imv/include/"),
    ("include/dormouse/percpu", "mechanisms/percpu/include/"),
    ("include/dormouse/relay", "mechanisms/relay/include/"),
    ("include/dormouse/vring", "mechanisms/vring/include/"),
    ("include/", "record/capi/include/"),
    ("consumer/", "session/owner/"),
    ("ctf/", "read/ctf/"),
    ("pages/", "mechanisms/backing/census/"),
    ("e2e/", "tests/e2e/"),
    ("fuzz/", "tests/fuzz/"),
    ("testing/", "tests/support/"),
];

/// The mechanisms, each a folder of its own formerly too.
const MECHANISMS: [&str; 5] = ["backing/", "imv/", "percpu/", "relay/", "vring/"];
/// Rooms that lie in the folder of another.
const INNER_ROOMS: [&str; 2] = ["mechanisms/backing/census", "mechanisms/vring/vhost"];
/// What is no product.
const BESIDE: [&str; 3] = ["lab", "tests", "xtask"];

/// The room of a file.
fn room(path: &str) -> String {
    let path = match FORMER.iter().find_map(|(former, now)| Some((path.strip_prefix(former)?, now))) {
        Some((rest, now)) => format!("{now}{rest}"),
        None if MECHANISMS.iter().any(|name| path.starts_with(name)) => format!("mechanisms/{path}"),
        None => path.to_string(),
    };
    let mut parts: Vec<&str> = path.split('/').collect();
    let file = parts.pop().unwrap_or_default();
    if file == "tests.rs" || parts.iter().any(|folder| ["tests", "fuzz", "benches", "examples"].contains(folder)) {
        return "tests".into();
    }
    let inner = INNER_ROOMS.iter().find(|room| path.strip_prefix(*room).is_some_and(|rest| rest.starts_with('/')));
    match (inner, parts.as_slice()) {
        (Some(room), _) => room.to_string(),
        (None, [house @ ("mechanisms" | "record" | "session" | "read"), room, ..]) => format!("{house}/{room}"),
        (None, [room, ..]) => room.to_string(),
        (None, []) => String::new(),
    }
}

/// A file's lines of code, and the modules in files of their own that it declares for tests alone.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    lines: usize,
    tests: Vec<String>,
}

impl Counted {
    fn of(text: &str, is_rust: bool) -> Counted {
        let mut code = without_comments(text, is_rust);
        let mut tests = Vec::new();
        if is_rust {
            for attribute in ["#[cfg(test)]", "#[cfg(all(test,"] {
                let mut from = 0;
                while let Some(at) = code[from..].find(attribute).map(|at| from + at) {
                    let (end, module) = item_end(&code, at);
                    tests.extend(module);
                    code.replace_range(at..end, "");
                    from = at + usize::from(end == at);
                }
            }
        }
        Counted { lines: code.lines().filter(|line| !line.trim().is_empty()).count(), tests }
    }
}

/// Where the item ends that has the attribute at `at`, and the module's name if the item is one in a file of its own. The place itself,
/// if it is no item: a field, a statement.
fn item_end(code: &str, at: usize) -> (usize, Option<String>) {
    const ITEMS: [&str; 14] = [
        "mod",
        "fn",
        "use",
        "impl",
        "struct",
        "enum",
        "const",
        "static",
        "pub",
        "unsafe",
        "extern",
        "type",
        "trait",
        "macro_rules",
    ];
    let mut start = at;
    // This attribute and further ones.
    while code[start..].starts_with('#') {
        let mut depth = 0;
        let end = code[start..].char_indices().find(|(_, c)| {
            depth += i32::from(*c == '[') - i32::from(*c == ']');
            *c == ']' && depth == 0
        });
        let Some((len, _)) = end else { return (at, None) };
        start += len + 1;
        start += code[start..].len() - code[start..].trim_start().len();
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words: Vec<&str> = code[start..].split(|c| !is_word(c)).filter(|word| !word.is_empty()).take(6).collect();
    if !words.first().is_some_and(|word| ITEMS.contains(word)) {
        return (at, None);
    }
    let mut depth = 0;
    let end = code[start..].char_indices().find(|(_, c)| {
        depth += i32::from("{([".contains(*c)) - i32::from("})]".contains(*c));
        depth == 0 && matches!(c, '}' | ';')
    });
    let end = end.map_or(code.len(), |(len, _)| start + len + 1);
    let is_declaration = code[..end].ends_with(';');
    let name = words.iter().position(|word| *word == "mod").and_then(|at| words.get(at + 1));
    (end, name.filter(|_| is_declaration).map(|name| name.to_string()))
}

/// The text with comments taken out, and the characters of literals made harmless. Lines stay.
fn without_comments(text: &str, is_rust: bool) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let mut code = String::with_capacity(text.len());
    let mut index = 0;
    while index < chars.len() {
        match (at(index), at(index + 1)) {
            ('/', '/') => {
                while index < chars.len() && at(index) != '\n' {
                    index += 1;
                }
            }
            ('/', '*') => {
                let mut depth = 0;
                loop {
                    match (at(index), at(index + 1)) {
                        ('/', '*') if is_rust || depth == 0 => (depth, index) = (depth + 1, index + 2),
                        ('*', '/') => (depth, index) = (depth - 1, index + 2),
                        (c, _) => {
                            code.extend((c == '\n').then_some(c));
                            index += 1;
                        }
                    }
                    if depth == 0 || index >= chars.len() {
                        break;
                    }
                }
            }
            ('"', _) => {
                let hashes = if is_rust { raw_hashes(&chars[..index]) } else { None };
                index += 1;
                code.push('_');
                while index < chars.len() {
                    let c = at(index);
                    index += 1;
                    match hashes {
                        None if c == '\\' => {
                            code.extend((at(index) == '\n').then_some('\n'));
                            index += 1;
                        }
                        None if c == '"' => break,
                        Some(hashes) if c == '"' && (0..hashes).all(|hash| at(index + hash) == '#') => break,
                        _ => code.push(if c.is_whitespace() { c } else { '_' }),
                    }
                }
                code.push('_');
            }
            // A character, and not a lifetime.
            ('\'', next) if !is_rust || next == '\\' || at(index + 2) == '\'' => {
                index += if next == '\\' { 3 } else { 2 };
                while index < chars.len() && at(index) != '\'' && at(index) != '\n' {
                    index += 1;
                }
                index += 1;
                code.push('_');
            }
            (c, _) => {
                code.push(c);
                index += 1;
            }
        }
    }
    code
}

/// How many `#` stand between the `r` of a raw literal and its quotation mark, which follows `before`.
fn raw_hashes(before: &[char]) -> Option<usize> {
    let hashes = before.iter().rev().take_while(|c| **c == '#').count();
    let rest = &before[..before.len() - hashes];
    let word: String = rest.iter().rev().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
    matches!(word.as_str(), "r" | "rb" | "rc").then_some(hashes)
}

/// Lines of code by room. `files`: path and text.
fn count(files: &[(String, String)]) -> BTreeMap<String, usize> {
    let counted: Vec<(&str, Counted)> =
        files.iter().map(|(path, text)| (path.as_str(), Counted::of(text, path.ends_with(".rs")))).collect();
    let of_tests: Vec<String> = counted
        .iter()
        .flat_map(|(path, counted)| {
            let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
            let dir = match file.trim_end_matches(".rs") {
                "lib" | "main" | "mod" => dir.to_string(),
                module => format!("{dir}/{module}"),
            };
            counted.tests.iter().map(move |module| format!("{dir}/{module}"))
        })
        .collect();
    let mut rooms = BTreeMap::new();
    for (path, counted) in &counted {
        let is_of = |module: &String| {
            path.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        let room = if of_tests.iter().any(is_of) { "tests".into() } else { room(path) };
        *rooms.entry(room).or_default() += counted.lines;
    }
    rooms
}

fn table(rooms: &BTreeMap<String, usize>) -> String {
    let (beside, product): (Vec<_>, Vec<_>) = rooms.iter().partition(|(room, _)| BESIDE.contains(&room.as_str()));
    let row = |(name, lines): (&String, &usize)| format!("{name:26} {lines:>7}\n");
    let total: usize = product.iter().map(|(_, lines)| **lines).sum();
    let mut text: String = product.into_iter().map(row).collect();
    text += &row((&"total".into(), &total));
    let names = beside.into_iter().map(|(room, lines)| (format!("beside it: {room}"), lines));
    text.extend(names.map(|(name, lines)| row((&name, lines))));
    text
}

fn git(arguments: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(root()).args(arguments);
    git
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().context("cannot run git")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn is_counted(path: &str) -> bool {
    path.ends_with(".rs") || path.ends_with(".h")
}

/// The files that git knows, as they lie in the work tree.
fn files_of_work_tree() -> Result<Vec<(String, String)>> {
    let names = output(&mut git(&["ls-files"]))?;
    // What was deleted and is not committed yet is not there.
    let read = |name: &str| Some((name.to_string(), std::fs::read_to_string(root().join(name)).ok()?));
    Ok(names.lines().filter(|name| is_counted(name)).filter_map(read).collect())
}

fn files_of(revision: &str) -> Result<Vec<(String, String)>> {
    // `<mode> blob <object>\t<path>`.
    let tree = output(&mut git(&["ls-tree", "-r", "--full-tree", revision]))?;
    let entries = tree.lines().filter_map(|line| line.split_once('\t')).filter(|(_, path)| is_counted(path));
    let entries: Vec<(&str, &str)> =
        entries.filter_map(|(entry, path)| Some((entry.split(' ').nth(2)?, path))).collect();
    let mut show = git(&["cat-file", "--batch"]);
    let mut child = show.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot run git")?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (mut stdin, mut stdout) = stdin.zip(stdout).context("git has no input")?;
    let objects: String = entries.iter().map(|(object, _)| format!("{object}\n")).collect();
    // By a thread, because git waits for its output to be read.
    let writer = std::thread::spawn(move || stdin.write_all(objects.as_bytes()));
    let mut all = Vec::new();
    stdout.read_to_end(&mut all).context("cannot read from git")?;
    writer.join().ok().context("the thread that asks git has failed")?.context("cannot write to git")?;
    child.wait().context("git has not ended")?;
    // Each answer is `<object> blob <size>\n`, the bytes, and `\n`.
    let mut files = Vec::with_capacity(entries.len());
    let mut rest = all.as_slice();
    for (_, path) in entries {
        let end = rest.iter().position(|byte| *byte == b'\n').context("git has ended early")?;
        let head = String::from_utf8_lossy(&rest[..end]);
        let size = head.rsplit(' ').next().and_then(|size| size.parse().ok());
        let size: usize = size.with_context(|| format!("git says of {path}: {head}"))?;
        let text = rest.get(end + 1..end + 1 + size).context("git has ended early")?;
        files.push((path.to_string(), String::from_utf8_lossy(text).into_owned()));
        rest = rest.get(end + 2 + size..).unwrap_or_default();
    }
    Ok(files)
}

impl Lines {
    pub(crate) fn run(&self) -> Result<()> {
        let files = match &self.revision {
            Some(revision) => files_of(revision)?,
            None => files_of_work_tree()?,
        };
        print!("{}", table(&count(&files)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> usize {
        Counted::of(text, true).lines
    }

    #[test]
    fn comments_and_blank_lines_are_no_code() {
        let text = r##"
//! Documentation.

/* A comment /* within one */
   over lines */ use a::b; // counts
/// No code.
fn f(x: &'static str) -> char {
    let url = "https://a"; /* one */ let y = '"'; // "
    let raw = r#"// no " comment

        in two lines that count"#;
    let open = "{ /* \" // ";

    '\''
}
"##;
        assert_eq!(lines(text), 8);
        assert_eq!(lines("let a = \"one \\\n    two\";\n"), 2);
        assert_eq!(lines("// only\n\n/* this */\n"), 0);
        assert_eq!(Counted::of("/* a /* b */\nint x; // y\n#define Z '\"' /* c */\n", false).lines, 2);
    }

    #[test]
    fn what_is_compiled_for_tests_is_no_product() {
        let text = r#"
use a;
#[cfg(test)]
use b;
struct S {
    #[cfg(test)]
    counted: u32,
}
#[cfg(test)]
#[allow(dead_code)]
pub(crate) mod inline {
    fn brace() -> &'static str { "}" }
}
#[cfg(all(test, unix))]
fn helper() -> [u8; 2] {
    [1; 2]
}
#[cfg(any(test, feature = "inject"))]
mod inject;
#[cfg(test)]
mod model;
fn f() {}
"#;
        let found = Counted::of(text, true);
        assert_eq!((found.lines, found.tests), (8, vec!["model".to_string()]));
    }

    #[test]
    fn code_is_counted_in_its_room() {
        let file = |path: &str, text: &str| (path.to_string(), text.to_string());
        let rooms = count(&[
            file("mechanisms/imv/src/lib.rs", "#[cfg(test)]\nmod model;\nmod a;\nmod b;\n"),
            file("mechanisms/imv/src/model.rs", "fn f() {}"),
            file("mechanisms/imv/capi/face.rs", "fn f() {}"),
            file("mechanisms/imv/tests/all.rs", "fn f() {}"),
            file("lab/src/lib.rs", "fn f() {}"),
            file("xtask/src/main.rs", "fn f() {}"),
        ]);
        let expected = [("lab", 1), ("mechanisms/imv", 3), ("tests", 2), ("xtask", 1)];
        assert_eq!(rooms, expected.map(|(room, lines)| (room.to_string(), lines)).into());
        let table = table(&rooms);
        assert!(table.contains("mechanisms/imv                   3\ntotal                            3\n"), "{table}");
        assert!(table.ends_with("beside it: xtask                 1\n"), "{table}");
    }

    #[test]
    fn rooms_are_the_same_in_both_layouts() {
        for (former, now) in [
            ("imv/src/lib.rs", "mechanisms/imv/src/lib.rs"),
            ("capi/imv/lib.rs", "mechanisms/imv/capi/lib.rs"),
            ("capi/src/percpu/pool.rs", "mechanisms/percpu/capi/pool.rs"),
            ("include/dormouse/static_key.h", "mechanisms/imv/include/dormouse/static_key.h"),
            ("include/dormouse/event.h", "record/capi/include/dormouse/event.h"),
            ("include/dormouse/abi/site.h", "record/abi/include/dormouse/abi/site.h"),
            ("vring/vhost/src/back.rs", "mechanisms/vring/vhost/src/back.rs"),
            ("pages/src/census.rs", "mechanisms/backing/census/src/census.rs"),
            ("consumer/src/drain.rs", "session/owner/src/drain.rs"),
            ("ctf/src/testing.rs", "read/ctf/src/testing.rs"),
            ("relay/src/chain/tests.rs", "mechanisms/relay/src/chain/tests.rs"),
            ("fuzz/targets/read.rs", "tests/fuzz/targets/read.rs"),
            ("testing/src/lib.rs", "tests/support/src/lib.rs"),
            ("capi/examples/shop.rs", "record/capi/examples/shop.rs"),
        ] {
            assert_eq!(room(former), room(now), "{former}");
        }
        assert_eq!(room("vring/vhost/src/back.rs"), "mechanisms/vring/vhost");
        assert_eq!(room("cli/src/main.rs"), "cli");
        assert_eq!(room("consumer/src/drain.rs"), "session/owner");
        assert_eq!(room("relay/src/chain/tests.rs"), "tests");
    }
}

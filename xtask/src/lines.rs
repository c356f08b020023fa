//! `cargo xtask lines`: counts the product's lines of code.
//!
//! ```text
//!   files of a revision ─▶ room (by folder) ─▶ text without comments, items of tests and blank lines ─▶ table
//! ```
//! The count only needs tokens: it must work on revisions whose code no longer builds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use proc_macro2::{Delimiter, LexError, Span, TokenStream, TokenTree};
use regex_lite::{Captures, Regex};

use crate::run::root;

/// Count product code: Rust and C headers, without the lab, automation, tests, comments and blank lines
///
/// The table has a row for each room, and the total. The lab, the automation and tests are counted
/// in the same way and shown below the product. Tests are folders called tests, fuzz, benches or
/// examples, and modules and other items under `#[cfg(test)]`.
///
/// Rooms are the same in every revision: code that was once in another folder is counted in its
/// present room.
///
///     cargo xtask lines                        the files that git tracks, as in the work tree
///     cargo xtask lines --revision main~20     a commit, branch or tag
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Lines {
    /// The revision to count, as git names it [default: the files of the work tree]
    #[arg(long, value_name = "REV")]
    revision: Option<String>,
}

/// Folders of the former flat layout, and where their code is today. The first matching entry counts.
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

/// Files of a room that became rooms of their own, and the rooms.
const SPLIT: [(&str, &str); 17] = [
    ("read/ctf/src/loss.rs", "session/format/"),
    ("read/ctf/src/metadata/json/value.rs", "session/format/"),
    ("read/ctf/src/metadata/json/write.rs", "session/format/"),
    ("read/ctf/src/metadata/write.rs", "session/format/"),
    ("read/ctf/src/packet.rs", "session/format/"),
    ("read/ctf/src/state.rs", "session/format/"),
    ("read/ctf/src/totals.rs", "session/format/"),
    ("read/ctf/src/text/", "read/print/"),
    ("read/reader/src/dir.rs", "read/directory/"),
    ("session/control/src/call.rs", "session/tools/"),
    ("session/control/src/client.rs", "session/tools/"),
    ("session/control/src/executable.rs", "session/tools/"),
    ("session/control/src/facts.rs", "session/tools/"),
    ("session/control/src/program.rs", "session/tools/"),
    ("session/control/src/tunable.rs", "session/tools/"),
    ("session/control/src/unjoined.rs", "session/tools/"),
    ("session/control/src/why.rs", "session/tools/"),
];

/// Folders of the mechanisms in the former layout.
const MECHANISMS: [&str; 5] = ["backing/", "imv/", "percpu/", "relay/", "vring/"];
/// Rooms in the folder of another room.
const INNER_ROOMS: [&str; 2] = ["mechanisms/backing/census", "mechanisms/vring/vhost"];
/// Rooms that are not part of the product.
const BESIDE: [&str; 3] = ["lab", "tests", "xtask"];

/// Returns the room of a file.
fn room(path: &str) -> String {
    let path = match FORMER.iter().find_map(|(former, now)| Some((path.strip_prefix(former)?, now))) {
        Some((rest, now)) => format!("{now}{rest}"),
        None if MECHANISMS.iter().any(|name| path.starts_with(name)) => format!("mechanisms/{path}"),
        None => path.to_string(),
    };
    let path = match SPLIT.iter().find_map(|(former, now)| Some((path.strip_prefix(former)?, now))) {
        Some((rest, now)) => format!("{now}{rest}"),
        None => path,
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

/// A file's lines of code, and the modules that it declares only for tests and that have their own files.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    lines: usize,
    tests: Vec<String>,
}

impl Counted {
    /// Counts the code of a Rust file.
    ///
    /// # Errors
    /// The text is not Rust.
    fn of_rust(text: &str) -> Result<Counted, LexError> {
        let (mut found, mut tests) = (BTreeSet::new(), Vec::new());
        collect(text.parse()?, &mut found, &mut tests);
        let is_blank = |number: usize| text.lines().nth(number - 1).is_none_or(|line| line.trim().is_empty());
        // Literals can contain blank lines.
        Ok(Counted { lines: found.into_iter().filter(|number| !is_blank(*number)).count(), tests })
    }

    fn of_c(text: &str) -> Counted {
        let lines = without_comments(text).lines().filter(|line| !line.trim().is_empty()).count();
        Counted { lines, tests: Vec::new() }
    }
}

/// Collects the lines that have tokens, except for documentation and test items, and the test modules with their own
/// files.
fn collect(tokens: TokenStream, lines: &mut BTreeSet<usize>, tests: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut rest = tokens.as_slice();
    while let [first, after @ ..] = rest {
        rest = match attribute(rest) {
            Some((text, after)) if is_documentation(&text) => after,
            Some((text, after)) if is_for_tests(&text) && is_item(after) => {
                let (item, after) = split_item(after);
                tests.extend(declared_module(item));
                after
            }
            _ => {
                let mut note = |span: Span| lines.extend(span.start().line..=span.end().line);
                match first {
                    TokenTree::Group(group) => {
                        note(group.span_open());
                        note(group.span_close());
                        collect(group.stream(), lines, tests);
                    }
                    token => note(token.span()),
                }
                after
            }
        };
    }
}

/// Returns an attribute's tokens without spaces, and the tokens after it.
fn attribute(tokens: &[TokenTree]) -> Option<(String, &[TokenTree])> {
    let is_punct = |token: &TokenTree, c| matches!(token, TokenTree::Punct(punct) if punct.as_char() == c);
    let [first, rest @ ..] = tokens else { return None };
    let rest = match rest {
        [second, rest @ ..] if is_punct(second, '!') => rest,
        rest => rest,
    };
    match rest {
        [TokenTree::Group(group), rest @ ..] if is_punct(first, '#') && group.delimiter() == Delimiter::Bracket => {
            Some((group.stream().to_string().replace(' ', ""), rest))
        }
        _ => None,
    }
}

/// The lexer turns documentation into attributes.
fn is_documentation(attribute: &str) -> bool {
    attribute.starts_with("doc=")
}

fn is_for_tests(attribute: &str) -> bool {
    attribute == "cfg(test)" || attribute.starts_with("cfg(all(test,")
}

/// Whether these tokens begin with an item, possibly after further attributes, and not with a field or a statement.
fn is_item(tokens: &[TokenTree]) -> bool {
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
    match attribute(tokens) {
        Some((_, rest)) => is_item(rest),
        None => tokens.first().is_some_and(|token| ITEMS.contains(&token.to_string().as_str())),
    }
}

/// Splits off an item, which ends with its block or at a semicolon.
fn split_item(tokens: &[TokenTree]) -> (&[TokenTree], &[TokenTree]) {
    let is_end = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    };
    tokens.split_at(tokens.iter().position(is_end).map_or(tokens.len(), |at| at + 1))
}

/// Returns the name of the module that an item declares, if the module has its own file.
fn declared_module(item: &[TokenTree]) -> Option<String> {
    match item {
        [.., TokenTree::Ident(keyword), TokenTree::Ident(name), TokenTree::Punct(_)] if keyword == "mod" => {
            Some(name.to_string())
        }
        _ => None,
    }
}

/// Returns C code without comments and with placeholders for literals. Line numbers stay the same.
fn without_comments(text: &str) -> String {
    static COMMENT_OR_LITERAL: LazyLock<Regex> = LazyLock::new(|| {
        let literals = r#"(?s)//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"#;
        Regex::new(literals).expect("the expression is valid")
    });
    let harmless = |found: &Captures<'_>| match found[0].as_bytes() {
        [b'/', ..] => "\n".repeat(found[0].matches('\n').count()),
        _ => "_".into(),
    };
    COMMENT_OR_LITERAL.replace_all(text, harmless).into_owned()
}

/// Counts lines of code by room. `files` has paths and texts.
///
/// # Errors
/// A file with a Rust name is not Rust.
fn count(files: &[(String, String)]) -> Result<BTreeMap<String, usize>> {
    let of = |(path, text): &(String, String)| match path.ends_with(".rs") {
        true => Counted::of_rust(text).map_err(|error| anyhow!("{path} is not valid Rust: {error}")),
        false => Ok(Counted::of_c(text)),
    };
    let counted: Vec<(&str, Counted)> =
        files.iter().map(|file| Ok((file.0.as_str(), of(file)?))).collect::<Result<_>>()?;
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
    Ok(rooms)
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

/// Returns the files that git tracks, with their text in the work tree.
fn files_of_work_tree() -> Result<Vec<(String, String)>> {
    let names = output(&mut git(&["ls-files"]))?;
    // Files that were deleted without a commit are missing.
    let read = |name: &str| Some((name.to_string(), std::fs::read_to_string(root().join(name)).ok()?));
    Ok(names.lines().filter(|name| is_counted(name)).filter_map(read).collect())
}

fn files_of(revision: &str) -> Result<Vec<(String, String)>> {
    // Entries have the form `<mode> blob <object>\t<path>`.
    let tree = output(&mut git(&["ls-tree", "-r", "--full-tree", revision]))?;
    let entries = tree.lines().filter_map(|line| line.split_once('\t')).filter(|(_, path)| is_counted(path));
    let entries: Vec<(&str, &str)> =
        entries.filter_map(|(entry, path)| Some((entry.split(' ').nth(2)?, path))).collect();
    let mut show = git(&["cat-file", "--batch"]);
    let mut child = show.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot run git")?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (mut stdin, mut stdout) = stdin.zip(stdout).context("git has no input")?;
    let objects: String = entries.iter().map(|(object, _)| format!("{object}\n")).collect();
    // A separate thread writes, because git waits for its output to be read.
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
        print!("{}", table(&count(&files)?));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> usize {
        Counted::of_rust(text).unwrap().lines
    }

    #[test]
    fn comments_and_blank_lines_are_not_counted() {
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
        assert_eq!(Counted::of_c("/* a /* b */\nint x; // y\n#define Z '\"' /* c */\n").lines, 2);
    }

    #[test]
    fn test_code_is_not_product_code() {
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
        let found = Counted::of_rust(text).unwrap();
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
        ])
        .unwrap();
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
        for (former, now) in [
            ("ctf/src/packet.rs", "session/format/src/packet.rs"),
            ("read/ctf/src/metadata/write.rs", "session/format/src/metadata/tsdl.rs"),
            ("read/ctf/src/text/mod.rs", "read/print/src/events/mod.rs"),
            ("read/reader/src/dir.rs", "read/directory/src/dir.rs"),
            ("session/control/src/why.rs", "session/tools/src/reason.rs"),
        ] {
            assert_eq!(room(former), room(now), "{former}");
        }
        assert_eq!(room("read/ctf/src/plan/packet.rs"), "read/ctf");
        assert_eq!(room("vring/vhost/src/back.rs"), "mechanisms/vring/vhost");
        assert_eq!(room("cli/src/main.rs"), "cli");
        assert_eq!(room("consumer/src/drain.rs"), "session/owner");
        assert_eq!(room("relay/src/chain/tests.rs"), "tests");
    }
}

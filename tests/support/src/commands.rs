//! The reference of commands, `docs/commands.md`: each of its blocks has the usage, the purpose and the options of one
//! command, taken from its help. The headings and the text between the blocks are written by hand.
//!
//! ```text
//!   program ── --help, of each command ──┬─▶ check, in the program's own tests: every block is current, none is missing
//!                                        └─▶ write, by `cargo xtask commands`
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Commands that are programs of their own, or belong to one: a block belongs to the longest of them that it begins with.
const PROGRAMS: [&str; 7] = [
    "dormouse",
    "dormouse cluster",
    "dormouse lab",
    "dormouse pages",
    "dormouse query",
    "dormouse ship",
    "dormouse vring",
];

/// Beginning and end of a block.
const FENCES: [&str; 2] = ["```text", "```"];
/// Maximum width of a line of options, in characters.
const WIDTH: usize = 120;

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md")
}

/// Splits a usage into the words of its command and its arguments.
fn split_usage(usage: &str) -> (String, &str) {
    let is_name = |word: &&str| word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-');
    let words: Vec<&str> = usage.split(' ').take_while(is_name).collect();
    let command = words.join(" ");
    let arguments = &usage[command.len()..];
    (command, arguments)
}

/// Returns the command of a block's first line, if the block belongs to `program`.
fn command_of(line: &str, program: &str) -> Option<String> {
    let (command, _) = split_usage(line);
    let begins =
        |name: &&&str| command.strip_prefix(**name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    let owner = PROGRAMS.iter().filter(begins).max_by_key(|name| name.len())?;
    (*owner == program).then_some(command)
}

/// Returns the block of a command: usage, purpose and options, from its help.
fn block(command: &str, help: &str) -> String {
    let purpose: Vec<&str> = help.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let usage = help.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap_or(command);
    let mut text = format!("{command}{}\n    {}\n", split_usage(usage).1, purpose.join(" "));
    let mut column = 0;
    for option in help.lines().filter_map(option_of) {
        let width = option.chars().count();
        let is_first = column == 0 || column + 2 + width > WIDTH;
        let separator = if is_first { "\n    " } else { "  " };
        text += separator.strip_prefix('\n').filter(|_| column == 0).unwrap_or(separator);
        text += option;
        column = if is_first { 4 } else { column + 2 } + width;
    }
    if column > 0 { text + "\n" } else { text }
}

/// Returns the long name and the value of an option, from its line in a help; `None` for other lines.
fn option_of(line: &str) -> Option<&str> {
    let indented = line.strip_prefix("  ")?;
    let long = &indented[indented.find("--").filter(|at| matches!(at, 0 | 4))?..];
    let option = long.split("  ").next()?;
    (!matches!(option, "--help" | "--version" | "--")).then_some(option)
}

/// Returns the document with the blocks of `program` replaced by `helps`, which has the help of each of its commands.
///
/// # Errors
/// Returns a message if a command has no block, or a block no command.
fn rewritten(document: &str, program: &str, helps: &BTreeMap<String, String>) -> Result<String, String> {
    let (mut text, mut found) = (String::new(), Vec::new());
    let mut lines = document.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        text += line;
        let first = lines.peek().filter(|_| line.trim_end() == FENCES[0]);
        let Some(command) = first.and_then(|line| command_of(line.trim_end(), program)) else { continue };
        let help = helps.get(&command).ok_or_else(|| format!("`{command}` is not a command; remove its block"))?;
        text += &format!("{}{}\n", block(&command, help), FENCES[1]);
        found.push(command);
        lines.by_ref().find(|line| line.trim_end() == FENCES[1]);
    }
    match helps.keys().find(|command| !found.contains(command)) {
        Some(command) => Err(format!("`{command}` has no block; add one that begins with `{command}`")),
        None => Ok(text),
    }
}

/// Adds the help of a command and of its sub-commands. `arguments`: the command's words after the program's name.
fn add(helps: &mut BTreeMap<String, String>, program: &Path, name: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    // The help of a command is as wide as the terminal, and lists the programs `dormouse-X` on the PATH.
    command.args(arguments).arg("--help").env_remove("COLUMNS").env("PATH", "").stdin(Stdio::null());
    let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(output.status.success(), "{command:?}: {output:?}");
    let help = String::from_utf8(output.stdout).expect("a help is UTF-8");
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Further lines of a description are indented more.
    let names = commands.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    for word in names.filter_map(|line| line.split(' ').next()).filter(|word| *word != "help") {
        add(helps, program, name, &[arguments, &[word]].concat());
    }
    let name = [&[name], arguments].concat().join(" ");
    helps.insert(name, help.lines().map(|line| format!("{}\n", line.trim_end())).collect());
}

/// Returns the document, and the document with the current help of a program's commands.
fn documents(program: &Path, name: &str) -> Result<[String; 2], String> {
    // In a directory of its own, `dormouse` finds no other programs, whose commands it would list.
    let dir = tempfile::tempdir_in(program.parent().unwrap_or(program)).expect("a directory beside the program");
    let alone = dir.path().join(program.file_name().unwrap_or_default());
    std::fs::hard_link(program, &alone).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let mut helps = BTreeMap::new();
    add(&mut helps, &alone, name, &[]);
    let old = std::fs::read_to_string(document()).expect("docs/commands.md is text");
    let new = rewritten(&old, name, &helps).map_err(|error| format!("docs/commands.md: {error}"))?;
    Ok([old, new])
}

/// Checks that `docs/commands.md` has the current help of all commands of a program, which `name` runs.
///
/// # Panics
/// If it has not.
#[track_caller]
pub fn check(program: impl AsRef<Path>, name: &str) {
    let [old, new] = documents(program.as_ref(), name).unwrap_or_else(|error| panic!("{error}"));
    let line = old.lines().zip(new.lines()).take_while(|(old, new)| old == new).count() + 1;
    assert!(old == new, "docs/commands.md is not current, from line {line} on: `cargo xtask commands` writes it anew");
}

/// Writes the help of all commands of a program into `docs/commands.md`.
///
/// # Errors
/// Returns a message if a command has no block, a block no command, or the document cannot be written.
///
/// # Panics
/// If the program does not run.
pub fn write(program: impl AsRef<Path>, name: &str) -> Result<(), String> {
    let [_, new] = documents(program.as_ref(), name)?;
    std::fs::write(document(), new).map_err(|error| format!("cannot write docs/commands.md: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str =
        "# A\n\n```text\ndormouse view [OPTIONS]\n    old\n```\n\n```text\ndormouse lab run\n    old\n```\nend\n";

    fn helps(commands: &[&str]) -> BTreeMap<String, String> {
        let help = |command: &str| format!("new\n\nUsage: {command} [OPTIONS]\n");
        commands.iter().map(|command| (command.to_string(), help(command))).collect()
    }

    #[test]
    fn only_the_blocks_of_the_program_are_replaced() {
        let text = rewritten(DOCUMENT, "dormouse", &helps(&["dormouse view"])).unwrap();
        assert_eq!(text, DOCUMENT.replacen("old", "new", 1));
        let text = rewritten(DOCUMENT, "dormouse lab", &helps(&["dormouse lab run"])).unwrap();
        assert_eq!(text, DOCUMENT.replace("lab run\n    old", "lab run [OPTIONS]\n    new"));
    }

    #[test]
    fn missing_and_obsolete_blocks_are_errors() {
        let error = rewritten(DOCUMENT, "dormouse", &helps(&["dormouse view", "dormouse arm"])).unwrap_err();
        assert_eq!(error, "`dormouse arm` has no block; add one that begins with `dormouse arm`");
        let error = rewritten(DOCUMENT, "dormouse", &helps(&[])).unwrap_err();
        assert_eq!(error, "`dormouse view` is not a command; remove its block");
    }

    #[test]
    fn a_block_has_usage_purpose_and_options() {
        let help = "Print events\n\nUsage: dormouse-view [OPTIONS] <TRACE>...\n\nArguments:\n  <TRACE>...  A trace -- or several\n\n\
                    Options:\n  -o, --output <DIR>  The directory; --json is another\n      --json\n          As JSON\n  -h, --help  Help\n";
        let expected = "dormouse view [OPTIONS] <TRACE>...\n    Print events\n    --output <DIR>  --json\n";
        assert_eq!(block("dormouse view", help), expected);
    }
}

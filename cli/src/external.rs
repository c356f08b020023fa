//! `dormouse X` runs the program `dormouse-X` if X is not a sub-command of `dormouse`.
//!
//! The program is looked for in the directory of this one, then in those of `PATH`. It replaces this process (exec), so
//! its arguments, output and exit code are its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// Prefix of the names of these programs.
const PREFIX: &str = "dormouse-";

/// A program that Dormouse has: its name after the prefix, what it does, the package that builds it, and the option with which
/// `cargo xtask install` installs it.
struct Known {
    name: &'static str,
    about: &'static str,
    build: &'static str,
    option: &'static str,
}

/// All programs that Dormouse has.
const KNOWN: [Known; 6] = [
    Known {
        name: "cluster",
        about: "Start a scheduler or an executor of a query cluster",
        build: "--manifest-path read/query/Cargo.toml --workspace",
        option: " --with-query",
    },
    Known {
        name: "lab",
        about: "Measure what tracing costs on this machine",
        build: "--manifest-path lab/Cargo.toml --workspace",
        option: " --with-lab",
    },
    Known {
        name: "pages",
        about: "Show what backs a program's memory: pages of its own, the zero page, or nothing",
        build: "-p dormouse-census",
        option: "",
    },
    Known {
        name: "query",
        about: "Query traces in SQL",
        build: "--manifest-path read/query/Cargo.toml",
        option: " --with-query",
    },
    Known {
        name: "ship",
        about: "Copy closed traces into a Parquet store, in a directory or in S3",
        build: "--manifest-path read/query/Cargo.toml -p dormouse-ship",
        option: " --with-query",
    },
    Known {
        name: "vring",
        about: "Test and serve block devices over vhost-user, with Dormouse's virtqueues",
        build: "-p dormouse-vring-vhost",
        option: "",
    },
];

/// Returns the directories in which programs are looked for, in order of precedence.
fn dirs() -> Vec<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside.into_iter().chain(std::env::split_paths(&path)).collect()
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn find(name: &str) -> Option<PathBuf> {
    dirs().into_iter().map(|dir| dir.join(format!("{PREFIX}{name}"))).find(|path| is_program(path))
}

/// Whether a word can name an external sub-command: it is not an option, not a path, not a file name with an extension,
/// and not clap's own `help`.
fn is_name(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    word != "help" && word.starts_with(|c: char| c.is_ascii_alphanumeric()) && word.chars().all(is_plain)
}

/// Becomes the program that the arguments name. Returns if they name none: they are then for `dormouse` itself, whose
/// sub-commands are those of `own`.
///
/// # Errors
/// The program is one of Dormouse's and is not installed, or it cannot be run.
pub(crate) fn run(own: &clap::Command, arguments: &[OsString]) -> anyhow::Result<()> {
    let word = |index: usize| arguments.get(index).and_then(|word| word.to_str());
    let help = [OsString::from("--help")];
    // `dormouse help X` is `dormouse-X --help`.
    let (name, rest) = match (word(0), word(1)) {
        (Some("help"), Some(name)) => (name, &help[..]),
        (Some(name), _) => (name, &arguments[1..]),
        (None, _) => return Ok(()),
    };
    if own.find_subcommand(name).is_some() || !is_name(name) {
        return Ok(());
    }
    become_program(name, rest)
}

/// Becomes the program of this name. Returns if there is none, and none of Dormouse's has this name.
///
/// # Errors
/// The errors of [`run`].
pub(crate) fn become_program(name: &str, arguments: &[OsString]) -> anyhow::Result<()> {
    if let Some(path) = find(name) {
        let error = Command::new(&path).args(arguments).exec();
        return Err(error).with_context(|| format!("cannot run {}", path.display()));
    }
    let Some(Known { build, option, .. }) = KNOWN.iter().find(|known| known.name == name) else { return Ok(()) };
    bail!(
        "`dormouse {name}` runs the program {PREFIX}{name}, which is neither beside dormouse nor on PATH; in Dormouse's sources \
         `cargo xtask install --prefix DIR{option}` installs it, and `cargo build --release {build}` builds it"
    )
}

/// Adds the installed programs to the sub-commands, for the list in the help and for suggestions after a wrong name.
pub(crate) fn add_to(command: clap::Command) -> clap::Command {
    let mut found = BTreeMap::new();
    for entry in dirs().iter().filter_map(|dir| dir.read_dir().ok()).flatten().flatten() {
        let file_name = entry.file_name();
        let Some(name) = file_name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        // Engines of the lab, such as `dormouse-lab-engine`, are not run by users.
        let is_part = KNOWN.iter().any(|known| name.strip_prefix(known.name).is_some_and(|rest| rest.starts_with('-')));
        if is_name(name) && !is_part && command.find_subcommand(name).is_none() && is_program(&entry.path()) {
            found.entry(name.to_owned()).or_insert_with(|| entry.path());
        }
    }
    let own_count = command.get_subcommands().count();
    found.into_iter().enumerate().fold(command, |command, (index, (name, path))| {
        let known = KNOWN.iter().find(|known| known.name == name);
        let about = known.map_or_else(|| format!("Run {}", path.display()), |known| known.about.into());
        command.subcommand(clap::Command::new(name).about(about).display_order(own_count + index))
    })
}

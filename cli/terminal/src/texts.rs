//! Manual pages and completions. They are generated from the command's own description, so that they match what it
//! accepts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

/// Option by which `cargo xtask install` requests a command's texts. It is the only option, followed by a directory.
pub(crate) const OPTION: &str = "--write-texts";

/// Shells, each with the directory below a prefix in which it looks for completions.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions"),
    (Shell::Zsh, "share/zsh/site-functions"),
    (Shell::Fish, "share/fish/vendor_completions.d"),
];

/// Writes manual pages and completions to their directories below a prefix.
pub(crate) fn write(command: Command, prefix: &Path) -> Result<()> {
    let dir = |name: &str| {
        let dir = prefix.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        anyhow::Ok(dir)
    };
    let name = command.get_name().to_owned();
    for (shell, place) in SHELLS {
        let dir = dir(place)?;
        let file = clap_complete::generate_to(shell, &mut command.clone(), &name, &dir);
        let file = file.with_context(|| format!("cannot write to {}", dir.display()))?;
        // Bash looks for a file with the name of the command.
        if shell == Shell::Bash {
            let named = dir.join(&name);
            fs::rename(&file, &named).with_context(|| format!("cannot write {}", named.display()))?;
        }
    }
    let pages = dir("share/man/man1")?;
    clap_mangen::generate_to(command, &pages).with_context(|| format!("cannot write to {}", pages.display()))?;
    for entry in pages.read_dir()? {
        let page = entry?.path();
        let text = fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
        fs::write(&page, in_ascii(&laid_out(&text))).with_context(|| format!("cannot write {}", page.display()))?;
    }
    Ok(())
}

/// Returns a manual page in which the section of the text after the help (`EXTRA`) keeps the layout of its examples and
/// tables. These are the lines that begin with blanks.
fn laid_out(page: &str) -> String {
    let (mut text, mut is_extra, mut is_kept) = (String::new(), false, false);
    for line in page.lines() {
        if line.starts_with(".SH") {
            is_extra = line == ".SH EXTRA";
        }
        if is_kept != (is_extra && line.starts_with("  ")) {
            text += if is_kept { ".fi\n" } else { ".nf\n" };
            is_kept = !is_kept;
        }
        text += if line == ".SH EXTRA" { ".SH NOTES" } else { line };
        text.push('\n');
    }
    text
}

/// Returns a manual page in ASCII, with other characters as groff escapes. The encoding that groff assumes depends on
/// how it is called.
fn in_ascii(page: &str) -> String {
    let ascii = |c: char| if c.is_ascii() { c.to_string() } else { format!("\\[u{:04X}]", u32::from(c)) };
    page.chars().map(ascii).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn examples_keep_their_lines() {
        let page = ".SH OPTIONS\n  a\n.SH EXTRA\nExamples:\n  b\n  c\nd\n  e\n.SH VERSION\n";
        let wanted = ".SH OPTIONS\n  a\n.SH NOTES\nExamples:\n.nf\n  b\n  c\n.fi\nd\n.nf\n  e\n.fi\n.SH VERSION\n";
        assert_eq!(super::laid_out(page), wanted);
    }

    #[test]
    fn pages_are_ascii() {
        assert_eq!(super::in_ascii("SIZE[,SIZE…]"), r"SIZE[,SIZE\[u2026]]");
    }
}

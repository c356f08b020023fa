//! Manual pages and completions, made of a command's own description, so that they tell what the command takes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

/// The option by which `cargo xtask install` asks a command for its texts. It stands alone, with a directory.
pub(crate) const OPTION: &str = "--write-texts";

/// The shells, with the directory of a prefix in which each looks for the completions of a command.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions"),
    (Shell::Zsh, "share/zsh/site-functions"),
    (Shell::Fish, "share/fish/vendor_completions.d"),
];

/// Writes pages and completions to where they belong below a prefix.
pub(crate) fn write(command: Command, prefix: &Path) -> Result<()> {
    let dir = |name: &str| {
        let dir = prefix.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        anyhow::Ok(dir)
    };
    let name = command.get_name().to_owned();
    for (shell, place) in SHELLS {
        let dir = dir(place)?;
        let file = clap_complete::generate_to(shell, &mut command.clone(), &name, &dir);
        let file = file.with_context(|| format!("cannot write to {}", dir.display()))?;
        // Bash looks for a file that is called as the command is.
        if shell == Shell::Bash {
            let named = dir.join(&name);
            fs::rename(&file, &named).with_context(|| format!("cannot write {}", named.display()))?;
        }
    }
    let pages = dir("share/man/man1")?;
    clap_mangen::generate_to(command, &pages).with_context(|| format!("cannot write to {}", pages.display()))
}

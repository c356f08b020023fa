//! `cargo xtask commands`: writes the help of all commands into `docs/commands.md`.

use anyhow::{Error, Result};
use clap::Args;
use dormouse_testing::commands::write;

use crate::run::{self, LAB, cargo, succeed};

/// Which programs' commands to write.
#[derive(Debug, Args)]
pub(crate) struct Commands {
    /// Also write the help of `dormouse query`, `dormouse ship` and `dormouse cluster`, which take minutes to build
    #[arg(long)]
    with_query: bool,
}

impl Commands {
    /// Builds the programs and writes the help of their commands.
    ///
    /// # Errors
    /// A program does not build, or the document lacks a command or has a command that does not exist.
    pub(crate) fn run(&self) -> Result<()> {
        succeed(cargo(["build"]).args(run::packages()))?;
        succeed(&mut cargo(["build", "--package", "dormouse-lab", "--manifest-path", LAB]))?;
        let mut names = vec!["dormouse", "dormouse lab", "dormouse pages", "dormouse vring"];
        if self.with_query {
            succeed(&mut run::build_query())?;
            names.extend(["dormouse cluster", "dormouse query", "dormouse ship"]);
        }
        let built = run::target_dir()?.join("debug");
        names.into_iter().try_for_each(|name| write(built.join(name.replace(' ', "-")), name)).map_err(Error::msg)
    }
}

//! `dormouse pages`.

use clap::Args;
use dormouse_pages::{Census, Options, table};

use crate::style;

/// What stands behind a program's memory: real pages, the zero page, or nothing
///
/// Memory that was read and never written is one page of zeroes, over and over: it fits in the first-level cache, and a benchmark that reads it
/// measures that. Each mapping is named as a person knows it, and so are the variables that lie on the zero page.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse pages 1234             every mapping of process 1234
  dormouse pages 1234 --each      with addresses, and neighbours of the same name apart
  dormouse pages 1234 --json      for scripts

Columns: unbacked: the next access faults; zero: the zero page; small, huge: memory, in pages of 4 KiB or of 2 MiB.

Exit code: 0; 2 if the process may not be looked into or is not there.")]
pub(crate) struct PagesCommand {
    /// The process: one's own, or as root anybody's
    #[arg(value_name = "PID")]
    pid: u32,
    /// Each mapping by itself, with its address
    #[arg(long)]
    each: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl PagesCommand {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let census = Census::of(self.pid, &Options::default())?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&census)?);
        } else {
            print!("{}", table(&census, style::columns(), self.each));
        }
        Ok(0)
    }
}

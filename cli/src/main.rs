//! The command `dormouse`: arguments in, text out. What it does is in `consumer` and `ctf`.

mod record;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Always-on tracing for native Linux programs.
#[derive(Debug, Parser)]
#[command(name = "dormouse", version, propagate_version = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    Record(record::Record),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Subcommands::Record(record) => record.run(),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("dormouse: {error:#}");
            ExitCode::from(2)
        }
    }
}

//! The command `dormouse`: parses arguments and prints text. The crates below `session/` and `read/` do the work.

// `println!` and `eprintln!` panic when the reader is gone. `Output` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod budget;
mod clocks;
mod doctor;
mod export;
mod external;
mod imv;
mod list;
mod live;
mod open;
mod pairing;
mod patterns;
mod program;
mod programs;
mod progress;
mod record;
mod recorded;
mod report;
mod rule;
mod salvage;
mod selection;
mod session_owner;
mod snapshot;
mod stats;
mod status;
mod target;
mod view;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use dormouse_terminal::{EXIT_CODES, Output, say};

/// Always-on tracing for native Linux programs
#[derive(Debug, Parser)]
#[command(name = "dormouse", version, propagate_version = true, max_term_width = 100, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Record(record::Record),
    List(list::List),
    Arm(live::Arm),
    Disarm(live::Disarm),
    Rule(rule::Rule),
    Snapshot(snapshot::Snapshot),
    Budget(budget::Budget),
    Status(status::Status),
    Salvage(salvage::Salvage),
    #[command(hide = true)]
    SessionOwner(session_owner::SessionOwner),
    Imv(imv::Imv),
    View(view::View),
    Stats(stats::StatsCommand),
    Report(report::ReportCommand),
    Open(open::Open),
    Export(export::Export),
    Clocks(clocks::Clocks),
    Doctor(doctor::Doctor),
}

impl Arguments {
    fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        match self.command {
            Command::Record(record) => record.run(out),
            Command::List(list) => list.run(out),
            Command::Arm(arm) => arm.run(out),
            Command::Disarm(disarm) => disarm.run(out),
            Command::Rule(rule) => rule.run(out),
            Command::Snapshot(snapshot) => snapshot.run(out),
            Command::Budget(budget) => budget.run(out),
            Command::Status(status) => status.run(out),
            Command::Salvage(salvage) => salvage.run(out),
            Command::SessionOwner(owner) => owner.run(),
            Command::Imv(imv) => imv.run(out),
            Command::View(view) => view.run(out),
            Command::Stats(stats) => stats.run(out),
            Command::Report(report) => report.run(out),
            Command::Open(open) => open.run(out),
            Command::Export(export) => export.run(out),
            Command::Clocks(clocks) => clocks.run(out),
            Command::Doctor(doctor) => doctor.run(out),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match external::run(&Arguments::command(), &arguments) {
        Ok(()) => dormouse_terminal::main(external::add_to, Arguments::run),
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

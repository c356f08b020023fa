//! The command `dormouse`: arguments in, text out. What it does is in `consumer` and `ctf`.

// They panic when nobody reads: `output` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod budget;
mod compare;
mod doctor;
mod imv;
mod lab;
mod live;
mod output;
mod pages;
mod patterns;
mod read;
mod record;
mod salvage;
mod snapshot;
mod style;
mod vring;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::output::{Output, say};

/// Always-on tracing for native Linux programs
#[derive(Debug, Parser)]
#[command(name = "dormouse", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Exit code: 0; 2 on an error, which is one line on standard error; others as each command's help says. A reader that closes standard \
output early (`dormouse view TRACE | head`) changes none of that, and nothing is said of it. If standard output cannot be \
written otherwise, as on a full disk, the command does what it has to do and exits with 2.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Record(record::Record),
    List(live::List),
    Arm(live::Arm),
    Disarm(live::Disarm),
    Snapshot(snapshot::Snapshot),
    Budget(budget::Budget),
    Salvage(salvage::Salvage),
    Imv(imv::Imv),
    View(read::View),
    Stats(read::StatsCommand),
    Lab(lab::Lab),
    Pages(pages::PagesCommand),
    Vring(vring::Vring),
    Doctor(doctor::Doctor),
}

impl Command {
    fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        match self {
            Command::Record(record) => record.run(out),
            Command::List(list) => list.run(out),
            Command::Arm(arm) => arm.run(out),
            Command::Disarm(disarm) => disarm.run(out),
            Command::Snapshot(snapshot) => snapshot.run(out),
            Command::Budget(budget) => budget.run(out),
            Command::Salvage(salvage) => salvage.run(out),
            Command::Imv(imv) => imv.run(out),
            Command::View(view) => view.run(out),
            Command::Stats(stats) => stats.run(out),
            Command::Lab(lab) => lab.run(out),
            Command::Pages(pages) => pages.run(out),
            Command::Vring(vring) => vring.run(out),
            Command::Doctor(doctor) => doctor.run(out),
        }
    }
}

fn main() -> ExitCode {
    let mut out = Output::new();
    let result = match Arguments::try_parse() {
        Ok(arguments) => arguments.command.run(&mut out),
        Err(error) => {
            let printed = error.print();
            // Help that was asked for, and the version.
            if !error.use_stderr() {
                out.note(printed);
            }
            Ok(error.exit_code() as u8)
        }
    };
    match result.and_then(|code| out.finish().map(|()| code)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

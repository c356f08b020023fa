//! The command `dormouse`: arguments in, text out. What it does is in `consumer` and `ctf`.

mod budget;
mod compare;
mod doctor;
mod imv;
mod lab;
mod live;
mod pages;
mod read;
mod record;
mod salvage;
mod snapshot;
mod style;
mod vring;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Always-on tracing for native Linux programs
#[derive(Debug, Parser)]
#[command(name = "dormouse", version, propagate_version = true, max_term_width = 100)]
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

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Record(record) => record.run(),
        Command::List(list) => list.run(),
        Command::Arm(arm) => arm.run(),
        Command::Disarm(disarm) => disarm.run(),
        Command::Snapshot(snapshot) => snapshot.run(),
        Command::Budget(budget) => budget.run(),
        Command::Salvage(salvage) => salvage.run(),
        Command::Imv(imv) => imv.run(),
        Command::View(view) => view.run(),
        Command::Stats(stats) => stats.run(),
        Command::Lab(lab) => lab.run(),
        Command::Pages(pages) => pages.run(),
        Command::Vring(vring) => vring.run(),
        Command::Doctor(doctor) => doctor.run(),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("dormouse: {error:#}");
            ExitCode::from(2)
        }
    }
}

//! `dormouse lab`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use dormouse_lab::{EXPERIMENTS, Report};

/// Measure what tracing costs on this machine
#[derive(Debug, Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Name the experiments
    List,
    /// Run experiments and print their figures
    Run {
        /// Names, as `dormouse lab list` gives them
        #[arg(required = true, value_name = "EXPERIMENT")]
        experiments: Vec<String>,
        /// A few seconds in place of a minute; wider intervals
        #[arg(long)]
        quick: bool,
        /// Also write the figures as JSON
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// A directory with a Makefile, for compile-job [default: $DORMOUSE_LAB_PROJECT, else Lua's sources if they are there]
        #[arg(long, value_name = "DIR")]
        project: Option<PathBuf>,
    },
}

impl Lab {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        match self.command {
            Command::List => {
                for (name, what) in EXPERIMENTS {
                    println!("{name:12} {what}");
                }
            }
            Command::Run { experiments, quick, json, project } => {
                let report = dormouse_lab::run(&experiments, quick, project.as_deref())?;
                print(&report);
                if let Some(path) = json {
                    let text = serde_json::to_string_pretty(&report)?;
                    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
                }
            }
        }
        Ok(0)
    }
}

fn print(report: &Report) {
    let host = &report.host;
    let virtualised = if host.virtualised { ", virtualised" } else { "" };
    println!("{} × {}{virtualised}, Linux {}, load {}", host.cpu_count, host.cpu, host.kernel, host.load);
    for experiment in &report.experiments {
        println!("\n{}", experiment.name);
        println!("  {:30} {:>9} {:>9} {:>19}", "", "median", "MAD", "95 %");
        for m in &experiment.measurements {
            let interval = format!("{:.2} … {:.2}", m.ci95[0], m.ci95[1]);
            println!("  {:30} {:>9.2} {:>9.2} {interval:>19} {}", m.name, m.median, m.mad, m.unit);
        }
        for ratio in &experiment.ratios {
            let interval = format!("{:.3} … {:.3}", ratio.ci95[0], ratio.ci95[1]);
            println!("  {:30} {:>9.3} {:>9} {interval:>19}", ratio.name, ratio.value, "");
        }
        for note in &experiment.notes {
            println!("  {note}");
        }
    }
}

//! `dormouse lab`.

use std::path::{Path, PathBuf};

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
        /// Also write a report as HTML: one file with tables and plots
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// Write a report as HTML of figures that `dormouse lab run --json` wrote
    Report {
        /// The figures
        #[arg(value_name = "RESULT.json")]
        result: PathBuf,
        /// The report; by default beside the figures, with `.html`
        #[arg(short, long, value_name = "FILE.html")]
        output: Option<PathBuf>,
    },
}

impl Lab {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        match self.command {
            Command::List => {
                for (name, what) in EXPERIMENTS {
                    println!("{name:10} {what}");
                }
            }
            Command::Run { experiments, quick, json, html } => {
                let report = dormouse_lab::run(&experiments, quick)?;
                print(&report);
                if let Some(path) = json {
                    let text = serde_json::to_string_pretty(&report)?;
                    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
                }
                html.map_or(Ok(()), |path| write_html(&report, &path))?;
            }
            Command::Report { result, output } => {
                let text = std::fs::read(&result).with_context(|| format!("cannot read {}", result.display()))?;
                let not_ours = || format!("{} is no result of `dormouse lab run --json`", result.display());
                let report: Report = serde_json::from_slice(&text).with_context(not_ours)?;
                let output = output.unwrap_or_else(|| result.with_extension("html"));
                write_html(&report, &output)?;
                println!("{}", output.display());
            }
        }
        Ok(0)
    }
}

fn write_html(report: &Report, path: &Path) -> anyhow::Result<()> {
    let html = dormouse_lab::report::html(report)?;
    std::fs::write(path, html).with_context(|| format!("cannot write {}", path.display()))
}

fn print(report: &Report) {
    let host = &report.host;
    let virtualised = if host.virtualised { ", virtualised" } else { "" };
    println!("{} × {}{virtualised}, Linux {}, load {}", host.cpu_count, host.cpu, host.kernel, host.load);
    for experiment in &report.experiments {
        println!("\n{}", experiment.name);
        println!("  {:28} {:>9} {:>9} {:>19}", "", "median", "MAD", "95 %");
        for m in &experiment.measurements {
            let interval = format!("{:.2} … {:.2}", m.ci95[0], m.ci95[1]);
            println!("  {:28} {:>9.2} {:>9.2} {interval:>19} {}", m.name, m.median, m.mad, m.unit);
        }
        for ratio in &experiment.ratios {
            let interval = format!("{:.2} … {:.2}", ratio.ci95[0], ratio.ci95[1]);
            println!("  {:28} {:>9.2} {:>9} {interval:>19}", ratio.name, ratio.value, "");
        }
        for note in &experiment.notes {
            println!("  {note}");
        }
    }
}

//! The command `dormouse-lab`, which `dormouse lab` runs: arguments in, text out.

mod compare;
mod doctor;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use dormouse_lab::report::{self, html};
use dormouse_lab::{EXPERIMENTS, Policy, Report, RunOptions};
use dormouse_terminal::{EXIT_CODES, Output};

/// Measure what tracing costs on this machine
#[derive(Debug, Parser)]
#[command(name = "dormouse-lab", bin_name = "dormouse lab", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = EXIT_CODES)]
struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the experiments
    List,
    Run(Run),
    /// Write a report as HTML of figures that `dormouse lab run --json` wrote
    Report {
        /// The figures
        #[arg(value_name = "RESULT.json")]
        result: PathBuf,
        /// The report; by default beside the figures, with `.html`
        #[arg(short, long, value_name = "FILE.html")]
        output: Option<PathBuf>,
    },
    Papers(Papers),
    Compare(compare::Compare),
    Doctor(doctor::Doctor),
}

/// Run experiments and print their figures
///
/// Cases take turns in every round, so that a disturbance of the machine affects all of them alike. Costs are what is added to the empty
/// loop, with 95 % intervals. `dormouse lab doctor` says which properties of this machine make figures less certain.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse lab run imv --quick                      one experiment, a few seconds
  dormouse lab run event --json a.json --html a.html
  dormouse lab run event --cpu 2,3 --policy fifo    on two CPUs, before ordinary programs")]
struct Run {
    /// Names, as `dormouse lab list` gives them [default: all]
    #[arg(value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// A few seconds for each in place of minutes; wider intervals
    #[arg(long)]
    quick: bool,
    /// At most N rounds of each case: a few show that it works, and say nothing of what it costs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Print what papers say, ratios and peers, and not each measurement
    #[arg(long)]
    brief: bool,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write a report as HTML: one file with tables and plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// CPUs to measure on; cases of one thread use the first [default: all that are allowed, the first of them last]
    #[arg(long, value_name = "N[,N…]", value_delimiter = ',')]
    cpu: Vec<u32>,
    /// How the kernel schedules what is measured; `fifo` needs a permission
    #[arg(long, value_enum, default_value = "other")]
    policy: SchedulingPolicy,
    /// Measure Dormouse alone
    #[arg(long)]
    no_peers: bool,
    /// A directory with a Makefile, for compile-job [default: $DORMOUSE_LAB_PROJECT, else Lua's sources if they are there]
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
}

/// Write what the papers say, and what figures say to it, as markdown
///
/// Every statement is judged anew by the rounds in the file. Without a file, nothing was measured.
#[derive(Debug, Args)]
struct Papers {
    /// The figures
    #[arg(value_name = "RESULT.json")]
    result: Option<PathBuf>,
    /// Where to write it [default: standard output]
    #[arg(short, long, value_name = "FILE.md", conflicts_with = "check")]
    output: Option<PathBuf>,
    /// Write nothing; fail unless this file is what would be written
    #[arg(long, value_name = "FILE.md")]
    check: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SchedulingPolicy {
    /// As any other program
    Other,
    /// Before all ordinary programs
    Fifo,
}

fn main() -> ExitCode {
    dormouse_terminal::main(std::convert::identity, Lab::run)
}

impl Lab {
    fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        match self.command {
            Command::List => {
                for known in EXPERIMENTS {
                    writeln!(out, "{:16} {}", known.name, known.what)?;
                }
            }
            Command::Run(run) => run.run(out)?,
            Command::Report { result, output } => {
                let report = read(&result)?;
                let output = output.unwrap_or_else(|| result.with_extension("html"));
                write(&output, &html(&report)?)?;
                writeln!(out, "{}", output.display())?;
            }
            Command::Papers(papers) => papers.run(out)?,
            Command::Compare(compare) => return compare.run(out),
            Command::Doctor(doctor) => return doctor.run(out),
        }
        Ok(0)
    }
}

impl Run {
    fn options(&self) -> anyhow::Result<RunOptions> {
        let mut options = RunOptions::new(self.quick);
        options.rounds_max = self.rounds.map_or(usize::MAX, |rounds| rounds as usize);
        if !self.cpu.is_empty() {
            if let Some(cpu) = self.cpu.iter().find(|cpu| !options.cpus.contains(cpu)) {
                bail!("this process may not use CPU {cpu}; it may use {:?}", options.cpus);
            }
            options.cpus = self.cpu.clone();
        }
        options.policy = match self.policy {
            SchedulingPolicy::Other => Policy::Other,
            SchedulingPolicy::Fifo => Policy::Fifo,
        };
        options.has_peers = !self.no_peers;
        options.project = self.project.clone();
        Ok(options)
    }

    fn run(self, out: &mut Output) -> anyhow::Result<()> {
        let options = self.options()?;
        let all = || EXPERIMENTS.iter().map(|known| known.name.to_string()).collect();
        let names = if self.experiments.is_empty() { all() } else { self.experiments };
        // Found out before minutes of measuring.
        for file in self.json.iter().chain(&self.html) {
            writable(file)?;
        }
        let report = dormouse_lab::run(&names, &options)?;
        let text = if self.brief { report::brief(&report) } else { report::text(&report) };
        write!(out, "{text}")?;
        if let Some(file) = &self.json {
            write(file, &serde_json::to_string_pretty(&report)?)?;
        }
        if let Some(file) = &self.html {
            write(file, &html(&report)?)?;
        }
        Ok(())
    }
}

impl Papers {
    fn run(self, out: &mut Output) -> anyhow::Result<()> {
        let report = self.result.as_deref().map(read).transpose()?;
        let text = report::papers(report.as_ref());
        if let Some(file) = &self.check {
            let there = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            let differs = (1..).zip(there.lines().map(Some).chain([None])).zip(text.lines().map(Some).chain([None]));
            if let Some(((line, _), _)) = { differs }.find(|((_, there), now)| there != now) {
                bail!(
                    "{} is not current, from line {line} on; `dormouse lab papers -o` writes it anew",
                    file.display()
                );
            }
        } else if let Some(file) = &self.output {
            write(file, &text)?;
        } else {
            write!(out, "{text}")?;
        }
        Ok(())
    }
}

fn writable(file: &Path) -> anyhow::Result<()> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    opened.map(drop).with_context(|| format!("cannot write {}", file.display()))
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn read(result: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read(result).with_context(|| format!("cannot read {}", result.display()))?;
    let not_ours = || format!("{} is not a result of `dormouse lab run --json`", result.display());
    serde_json::from_slice(&text).with_context(not_ours)
}

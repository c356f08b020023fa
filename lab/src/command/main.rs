//! The command `dormouse-lab`, which `dormouse lab` runs: arguments in, text out.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use dormouse_doctor::{print_findings, tracing_works};
use dormouse_lab::compare::{Comparison, compare, load};
use dormouse_lab::doctor::{diagnose, examine, examine_and_measure};
use dormouse_lab::grid::Grid;
use dormouse_lab::report::{self, html};
use dormouse_lab::statistics::ROUNDS_MIN;
use dormouse_lab::{EXPERIMENTS, Host, Policy, Report, RunOptions, SCHEMA, merge};
use dormouse_terminal::{EXIT_CODES, Output, say};

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
    /// Write a result as an HTML report
    Report {
        /// Result of `dormouse lab run --json`; a file whose name ends in `.gz` is unpacked
        #[arg(value_name = "RESULT.json")]
        result: PathBuf,
        /// File for the report [default: the result's name with `.html`]
        #[arg(short, long, value_name = "FILE.html")]
        output: Option<PathBuf>,
    },
    /// Write the papers' statements and the verdicts of a result as Markdown
    ///
    /// The rounds in the result decide on every statement anew. Without a result, all statements are listed as not measured.
    Papers {
        /// Result of `dormouse lab run --json`; a file whose name ends in `.gz` is unpacked
        #[arg(value_name = "RESULT.json")]
        result: Option<PathBuf>,
        /// File to write [default: standard output]
        #[arg(short, long, value_name = "FILE.md")]
        output: Option<PathBuf>,
    },
    /// Compare two results, and their machines and runs
    #[command(after_help = "\
The output lists first the figures that both have, with the probability of such a difference by chance, corrected for all figures (Holm); then what \
was measured on both machines besides the experiments; then all facts that differ, whether they matter or not.

JSON is an object: `differences`, `only_in_a`, `only_in_b`, `measured` (with `there`, `here`, `ratio`, `ratio_ci95`, `differs`), \
`facts` (`fact`, `a`, `b`), `notes`.

Exit code: 0, even if figures differ; 2 if a file cannot be read.")]
    Compare {
        /// A result of `dormouse lab run --json`; a file that ends in `.gz` is unpacked
        #[arg(value_name = "A.json")]
        a: PathBuf,
        /// Another one
        #[arg(value_name = "B.json")]
        b: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add the measurements of another machine
    ///
    /// Some rows need a machine with hyperthreads or two sockets, for example. The command fills the rows that A lacks with B's measurements, and
    /// marks them with B's letter. Each row comes from one machine: if A has measured part of a row and B all of it, the row is B's. With A alone,
    /// the command lists the missing rows, and prints the command that measures them on another machine.
    Merge {
        /// Result of `dormouse lab run --json` of this machine; a file that ends in `.gz` is unpacked
        #[arg(value_name = "A.json")]
        a: PathBuf,
        /// Result of the other machine
        #[arg(value_name = "B.json")]
        b: Option<PathBuf>,
        /// File to write [default: standard output]
        #[arg(short, long, value_name = "FILE.json", requires = "b")]
        output: Option<PathBuf>,
    },
    Doctor(Doctor),
}

/// Run experiments and print their figures
///
/// Cases take turns in every round, so that a disturbance of the machine affects all of them alike. A cost is the time added to the empty
/// loop, with a 95 % interval. `dormouse lab doctor` says which properties of this machine make figures less reliable.
#[derive(Debug, Args)]
struct Run {
    /// Names of experiments, as `dormouse lab list` prints them [default: all]
    #[arg(value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// Run each experiment for seconds instead of minutes; intervals are wider
    #[arg(long)]
    quick: bool,
    /// Run at most N rounds of each case; a few rounds only show that the experiment works
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Print the papers' statements, ratios and peers, but not each measurement
    #[arg(long)]
    brief: bool,
    /// Also write the result to FILE as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write an HTML report to FILE, with tables and plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// CPUs to measure on; cases of one thread use the first [default: all that are allowed, the first of them last]
    #[arg(long, value_name = "N[,N…]", value_delimiter = ',')]
    cpu: Vec<u32>,
    /// Scheduling policy of the measured programs: that of ordinary programs, or one with precedence over them, which needs a permission
    #[arg(long, default_value = "other")]
    #[arg(value_parser = PossibleValuesParser::new(["other", "fifo"]).try_map(|name| name.parse::<Policy>()))]
    policy: Policy,
    /// Measure only Dormouse, without peers
    #[arg(long)]
    no_peers: bool,
    /// Directory with a Makefile, for compile-job [default: $DORMOUSE_LAB_PROJECT, or Lua's sources if they are present]
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
}

/// Say how reliable measurements here are, and what differs elsewhere
///
/// With `--compare`, the command measures this machine as another one, or this one at another time, was measured, and lists what differs: core clock,
/// caches, scheduler, clock source, interruptions, page backing, and facts. The file is that of `--save` or of `dormouse lab run
/// --json`. A figure differs if 95 % of the ratios of measurements here to measurements there are on one side of 1.
#[derive(Debug, Args)]
#[command(after_help = "\
JSON is an array of objects: `group` (processor, clock, kernel, memory, permissions, tracing), `fact`, `mark` (ok, note, warning), \
`value` (starts with `not told: ` if nothing could be read), `meaning`, `remedy` (or null) and `prevents_tracing`. With --compare it \
is an object like that of `dormouse lab compare`, in which A is the other machine and B is this one.

Exit code: 0 if tracing works; 1 if it does not, or if sites cannot be patched; 2 on an error. With --compare: 0 if no figure \
differs, 3 if one does, 2 on an error.")]
struct Doctor {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also measure the machine, and write facts and figures to HOST.json, for a later --compare
    #[arg(long, value_name = "HOST.json", conflicts_with = "compare")]
    save: Option<PathBuf>,
    /// Measure the machine, and list what differs from the machine in HOST.json
    #[arg(long, value_name = "HOST.json")]
    compare: Option<PathBuf>,
}

fn main() -> ExitCode {
    dormouse_terminal::main(std::convert::identity, |lab: Lab, out| lab.command.run(out))
}

impl Command {
    fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        match self {
            Command::List => {
                EXPERIMENTS.iter().try_for_each(|known| writeln!(out, "{:16} {}", known.name, known.what))?;
            }
            Command::Run(run) => run.run(out)?,
            Command::Report { result, output } => {
                let output = output.unwrap_or_else(|| result.with_extension("html"));
                write(&output, &html(&load(&result)?)?)?;
                writeln!(out, "{}", output.display())?;
            }
            Command::Papers { result, output } => {
                let text = report::papers(result.as_deref().map(load).transpose()?.as_ref());
                output.map_or_else(|| Ok(write!(out, "{text}")?), |file| write(&file, &text))?;
            }
            Command::Compare { a, b, json } => {
                let (a, b) = (load(&a)?, load(&b)?);
                print(out, &compare(&a, &b), [("A", &a.host), ("B", &b.host)], json)?;
            }
            Command::Merge { a, b: None, .. } => {
                let rows = merge::unmeasured(&load(&a)?);
                if rows.is_empty() {
                    writeln!(out, "nothing is missing")?;
                } else {
                    writeln!(out, "{}\n", merge::command(&rows))?;
                    write!(
                        out,
                        "{}",
                        Grid::new(
                            &["experiment", "statement", "place", "why not"],
                            rows.iter().map(|row| row.to_vec())
                        )
                        .text()
                    )?;
                }
            }
            Command::Merge { a, b: Some(b), output } => {
                let merged = merge::merge(load(&a)?, load(&b)?).map_err(anyhow::Error::msg)?;
                let text = serde_json::to_string(&merged)?;
                output.map_or_else(|| Ok(writeln!(out, "{text}")?), |file| write(&file, &text))?;
            }
            Command::Doctor(doctor) => return doctor.run(out),
        }
        Ok(0)
    }
}

impl Run {
    fn run(self, out: &mut Output) -> anyhow::Result<()> {
        let mut options = RunOptions::new(self.quick);
        if let Some(cpu) = self.cpu.iter().find(|cpu| !options.cpus.contains(cpu)) {
            bail!("this process may not use CPU {cpu}; it may use {:?}", options.cpus);
        }
        if !self.cpu.is_empty() {
            options.cpus = self.cpu;
        }
        options.rounds_max = self.rounds.map_or(usize::MAX, |rounds| rounds as usize);
        (options.policy, options.has_peers, options.project) = (self.policy, !self.no_peers, self.project);
        let all = || EXPERIMENTS.iter().map(|known| known.name.to_string()).collect();
        let names = if self.experiments.is_empty() { all() } else { self.experiments };
        // Checked before minutes of measuring.
        for file in self.json.iter().chain(&self.html) {
            let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
            opened.with_context(|| format!("cannot write {}", file.display()))?;
        }
        let report = dormouse_lab::run(&names, &options)?;
        write!(out, "{}", report::text(&report, self.brief))?;
        if let Some(file) = &self.json {
            write(file, &serde_json::to_string(&report)?)?;
        }
        if let Some(file) = &self.html {
            write(file, &html(&report)?)?;
        }
        Ok(())
    }
}

impl Doctor {
    fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        if let Some(path) = &self.compare {
            return self.compare(path, out);
        }
        let host = if self.save.is_some() { examine_and_measure() } else { examine() };
        let findings = diagnose(&host);
        if let Some(path) = &self.save {
            let text = serde_json::to_string_pretty(&Report { schema: SCHEMA, host, experiments: Vec::new() })?;
            write(path, &text)?;
            say(format_args!("measured, and written to {}", path.display()));
        }
        if self.json {
            out.json(&findings)?;
        } else {
            print_findings(&mut out.styled(), &findings)?;
        }
        Ok((!tracing_works(&findings)).into())
    }

    fn compare(&self, path: &Path, out: &mut Output) -> anyhow::Result<u8> {
        // The file is checked before seconds of measuring.
        let there = Report { experiments: Vec::new(), ..load(path)? };
        if there.host.probes.figures.iter().all(|figure| figure.n < ROUNDS_MIN) {
            let remedy =
                format!("write it again on that machine, with `dormouse lab doctor --save {}`", path.display());
            bail!("{} has no measurements of its host that can be compared; {remedy}", path.display());
        }
        let here = Report { schema: SCHEMA, host: examine_and_measure(), experiments: Vec::new() };
        let comparison = compare(&there, &here);
        print(out, &comparison, [("there", &there.host), ("here", &here.host)], self.json)?;
        let differing = comparison.differing();
        let code = if differing.is_empty() { 0 } else { 3 };
        if !self.json {
            let verdict = if code == 0 { "no difference shown" } else { "differ: " };
            writeln!(out, "\n{verdict}{}", differing.join(", "))?;
        }
        Ok(code)
    }
}

fn print(out: &mut Output, comparison: &Comparison, sides: [(&str, &Host); 2], is_json: bool) -> anyhow::Result<()> {
    if is_json { out.json(comparison) } else { Ok(write!(out, "{}", comparison.text(sides))?) }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

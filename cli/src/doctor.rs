//! `dormouse doctor`.

use std::io::Write;

use anstream::stdout;
use clap::Args;
use dormouse_lab::doctor::{Finding, Mark, diagnose, examine, tracing_works};

use crate::read::unless_closed;
use crate::style::{BAD, BOLD, GOOD, KNOW, wrap};

/// Say what this machine is good for: whether programs can be traced, and what figures are worth
#[derive(Debug, Args)]
#[command(after_help = "\
JSON is an array of objects: `group` (processor, clock, kernel, memory, permissions, tracing), `fact`, `mark` (ok, note,
warning), `value` (starts with `not told: ` where nothing could be read), `meaning`, `remedy` (or null) and
`prevents_tracing`.

Exit code: 0 if tracing works; 1 if it does not, or if sites cannot be patched; 2 on an error.")]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        let findings = diagnose(&examine());
        let works = tracing_works(&findings);
        if self.json {
            let text = serde_json::to_string_pretty(&findings)?;
            unless_closed(writeln!(std::io::stdout(), "{text}"))?;
        } else {
            unless_closed(print(&findings, works))?;
        }
        Ok((!works).into())
    }
}

fn print(findings: &[Finding], works: bool) -> std::io::Result<()> {
    let mut out = stdout().lock();
    let mut group = None;
    for finding in findings {
        if group != Some(finding.group) {
            let gap = if group.is_some() { "\n" } else { "" };
            writeln!(out, "{gap}{BOLD}{}{BOLD:#}", finding.group.name())?;
            group = Some(finding.group);
        }
        let style = match finding.mark {
            Mark::Ok => GOOD,
            Mark::Note => KNOW,
            Mark::Warning => BAD,
        };
        let mark = finding.mark.name();
        // Wrapped without colour, so that its bytes do not count.
        let text = wrap(&format!("{}: {}", finding.fact, finding.value), &format!("  {mark:7}  "));
        let rest = text.get(2 + mark.len()..).unwrap_or_default();
        writeln!(out, "  {style}{mark}{style:#}{rest}")?;
        writeln!(out, "{}", wrap(&finding.meaning, "             "))?;
        if let Some(remedy) = &finding.remedy {
            writeln!(out, "{}", wrap(remedy, "           → "))?;
        }
    }
    let count = |mark: Mark| findings.iter().filter(|finding| finding.mark == mark).count();
    let counts = format!("{} ok, {} notes, {} warnings", count(Mark::Ok), count(Mark::Note), count(Mark::Warning));
    let verdict = if works { "programs can be traced here" } else { "tracing does not work here as it should" };
    writeln!(out, "\n{BOLD}{verdict}{BOLD:#}; {counts}")
}

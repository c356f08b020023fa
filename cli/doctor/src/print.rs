//! Prints findings as text for people.

use std::io::{Result, Write};

use dormouse_terminal::style::{BAD, BOLD, GOOD, KNOW, wrap};

use crate::finding::{Finding, Mark, tracing_works};

/// Prints findings by group, each with its meaning and its remedy, and finally whether programs can be traced.
///
/// # Errors
/// Returns errors of `out`.
pub fn print_findings(out: &mut impl Write, findings: &[Finding]) -> Result<()> {
    let mut group = None;
    for finding in findings {
        if group != Some(finding.group) {
            let gap = if group.is_some() { "\n" } else { "" };
            writeln!(out, "{gap}{BOLD}{}{BOLD:#}", finding.group)?;
            group = Some(finding.group);
        }
        let style = match finding.mark {
            Mark::Ok => GOOD,
            Mark::Note => KNOW,
            Mark::Warning => BAD,
        };
        let mark = finding.mark.name();
        // The text is wrapped without colour, because escape sequences would count as columns.
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
    let verdict =
        if tracing_works(findings) { "programs can be traced here" } else { "tracing does not fully work here" };
    writeln!(out, "\n{BOLD}{verdict}{BOLD:#}; {counts}")
}

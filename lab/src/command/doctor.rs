//! `dormouse lab doctor`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use dormouse_doctor::{print_findings, tracing_works};
use dormouse_lab::Host;
use dormouse_lab::compare::{Suspect, suspects_of_hosts};
use dormouse_lab::doctor::{diagnose, examine, examine_and_measure, load_host, save_host};
use dormouse_lab::probes::{Judged, Verdict, judge};
use dormouse_terminal::style::{BAD, BOLD, GOOD, KNOW, wrap};
use dormouse_terminal::{Output, say};

/// Say how far figures of this machine can be trusted, and why it is slower than another
///
/// With `--compare`: why something is slower on this machine than on another one, or slower now than before. Each suspect is measured on
/// both, and struck out or not: the core's clock, caches, scheduler, clock source, interruptions, and whether memory is there.
/// `dormouse doctor` says in short whether programs can be traced.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse lab doctor --save fast.json        on the machine, or at the time, that is fast: its facts, and measurements of some seconds
  dormouse lab doctor --compare fast.json     on the machine, or at the time, that is slow: the cause
  dormouse lab doctor --compare result.json   against the machine of `dormouse lab run --json result.json`

JSON is an array of objects: `group` (processor, clock, kernel, memory, permissions, tracing), `fact`, `mark` (ok, note, \
warning), `value` (starts with `not told: ` where nothing could be read), `meaning`, `remedy` (or null) and \
`prevents_tracing`. With --compare it is an object: `judged`, an array of suspects with `verdict` (differs, undecided, struck_out, \
not_measured) and `figures`; `suspects`, settings that differ; `notes`, what was seen here.

Exit code: 0 if tracing works; 1 if it does not, or if sites cannot be patched; 2 on an error. With --compare: 0 if no suspect \
differs, 3 if one does, 2 on an error.")]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also measure the machine, and write its facts and figures there, for a later --compare
    #[arg(long, value_name = "HOST.json", conflicts_with = "compare")]
    save: Option<PathBuf>,
    /// Measure the machine, and tell what differs from that one
    #[arg(long, value_name = "HOST.json")]
    compare: Option<PathBuf>,
}

impl Doctor {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        if let Some(path) = &self.compare {
            return self.compare(path, out);
        }
        let host = if self.save.is_some() { examine_and_measure() } else { examine() };
        if let Some(path) = &self.save {
            save_host(path, &host)?;
            say(format_args!("measured, and written to {}", path.display()));
        }
        let findings = diagnose(&host);
        if self.json {
            out.json(&findings)?;
        } else {
            print_findings(&mut out.styled(), &findings)?;
        }
        Ok((!tracing_works(&findings)).into())
    }

    fn compare(&self, path: &Path, out: &mut Output) -> anyhow::Result<u8> {
        // Before seconds of measuring, what is wrong with the file.
        let there = load_host(path)?;
        let here = examine_and_measure();
        let judged = judge(&there.probes, &here.probes);
        let suspects = suspects_of_hosts(&there, &here, &judged);
        if self.json {
            out.json(&serde_json::json!({"judged": judged, "suspects": suspects, "notes": here.probes.notes}))?;
        } else {
            print_comparison(&mut out.styled(), [&there, &here], path, &judged, &suspects)?;
        }
        Ok(if judged.iter().any(|judged| judged.verdict == Verdict::Differs) { 3 } else { 0 })
    }
}

fn print_comparison(
    out: &mut impl Write,
    hosts: [&Host; 2],
    path: &Path,
    judged: &[Judged],
    suspects: &[Suspect],
) -> std::io::Result<()> {
    for (host, place) in hosts.iter().zip([format!("there, {}", path.display()), "here".into()]) {
        let text = format!("{}, {}, Linux {}, CPU {}", host.measured, host.cpu, host.kernel, host.probes.cpu);
        writeln!(out, "{}", wrap(&text, &format!("{place}: ")))?;
    }
    writeln!(out, "\n{BOLD}suspects, measured there and here{BOLD:#}")?;
    print_judged(out, judged)?;
    if !suspects.is_empty() {
        writeln!(out, "\n{BOLD}settings and facts that differ, likeliest first{BOLD:#}")?;
    }
    for suspect in suspects {
        let struck = if suspect.struck_out.is_some() { " (struck out by measurement)" } else { "" };
        let text = format!("{}: {} → {}{struck}", suspect.title, suspect.a, suspect.b);
        writeln!(out, "{}", wrap(&text, "  "))?;
    }
    writeln!(out)?;
    for note in &hosts[1].probes.notes {
        writeln!(out, "{}", wrap(note, "here: "))?;
    }
    let names = |verdict: Verdict| {
        let of_it = judged.iter().filter(|judged| judged.verdict == verdict);
        of_it.map(|judged| judged.suspect.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (differ, undecided) = (names(Verdict::Differs), names(Verdict::Undecided));
    let text = match (differ.as_str(), undecided.as_str()) {
        ("", "") => "no cause found: no suspect differs".to_string(),
        ("", undecided) => format!("no cause found; measure again, because these are undecided: {undecided}"),
        (differ, _) => format!("suspects that remain: {differ}"),
    };
    writeln!(out, "\n{BOLD}{text}{BOLD:#}")
}

/// A line for each suspect's verdict and figures, and for those that remain what they do and what to do.
pub(crate) fn print_judged(out: &mut impl Write, all: &[Judged]) -> std::io::Result<()> {
    for judged in all {
        let style = match judged.verdict {
            Verdict::Differs => BAD,
            Verdict::StruckOut => GOOD,
            Verdict::Undecided | Verdict::NotMeasured => KNOW,
        };
        let verdict = judged.verdict.name();
        // Wrapped without colour, so that its bytes do not count.
        let text = wrap(&format!("{}: {}", judged.suspect, judged.text()), &format!("  {verdict:12}  "));
        let rest = text.get(2 + verdict.len()..).unwrap_or_default();
        writeln!(out, "  {style}{verdict}{style:#}{rest}")?;
        if judged.verdict == Verdict::Differs {
            writeln!(out, "{}", wrap(&judged.why, "                "))?;
            writeln!(out, "{}", wrap(&judged.remedy, "              → "))?;
        }
    }
    Ok(())
}

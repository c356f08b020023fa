//! `dormouse lab doctor`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use dormouse_doctor::{print_findings, tracing_works};
use dormouse_lab::compare::{different_facts, load};
use dormouse_lab::doctor::{diagnose, examine, examine_and_measure};
use dormouse_lab::{Report, SCHEMA, probes};
use dormouse_terminal::style::{BOLD, wrap};
use dormouse_terminal::{Output, say};

use crate::compare::print_hosts;

/// Say how far figures of this machine can be trusted, and what differs from another
///
/// With `--compare`: measures this machine as another one was measured, or this one at another time, and lists what differs: the core's
/// clock, caches, scheduler, clock source, interruptions, and whether memory is there; and the facts of both that are not the same.
/// `dormouse doctor` says in short whether programs can be traced.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse lab doctor --save fast.json        on the machine, or at the time, that is fast: its facts, and measurements of some seconds
  dormouse lab doctor --compare fast.json     on the machine, or at the time, that is slow: what differs
  dormouse lab doctor --compare result.json   against the machine of `dormouse lab run --json result.json`

A figure is measured in several looks. It differs if 95 % of the ratios of a look here to a look there are on one side of 1; else no \
difference is shown.

JSON is an array of objects: `group` (processor, clock, kernel, memory, permissions, tracing), `fact`, `mark` (ok, note, \
warning), `value` (starts with `not told: ` where nothing could be read), `meaning`, `remedy` (or null) and \
`prevents_tracing`. With --compare it is an object: `measured`, an array of figures with `there`, `here`, `ratio`, `ratio_ci95` and \
`differs`; `facts`, those that differ, with `fact`, `a` (there) and `b` (here); `notes`, what was seen here.

Exit code: 0 if tracing works; 1 if it does not, or if sites cannot be patched; 2 on an error. With --compare: 0 if no figure \
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
        let findings = diagnose(&host);
        if let Some(path) = &self.save {
            let text = serde_json::to_string_pretty(&Report { schema: SCHEMA, host, experiments: Vec::new() })?;
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
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
        use std::io::Write;
        // Before seconds of measuring, what is wrong with the file.
        let there = load(path)?.host;
        let shown = path.display();
        if there.probes.figures.is_empty() {
            anyhow::bail!(
                "{shown} has no measurements of its host; write it again there, with `dormouse lab doctor --save {shown}`"
            );
        }
        let here = examine_and_measure();
        let (measured, facts) = (probes::compare(&there.probes, &here.probes), different_facts(&there, &here));
        let mut differ: Vec<&str> = measured.iter().filter(|one| one.differs).map(|one| one.subject()).collect();
        differ.dedup();
        let code = if differ.is_empty() { 0 } else { 3 };
        if self.json {
            out.json(&serde_json::json!({"measured": measured, "facts": facts, "notes": here.probes.notes}))?;
            return Ok(code);
        }
        let out = &mut out.styled();
        for (host, place) in [(&there, format!("there, {shown}")), (&here, "here".into())] {
            let text = format!("{}, {host}, CPU {}", host.measured, host.probes.cpu);
            writeln!(out, "{}", wrap(&text, &format!("{place}: ")))?;
        }
        print_hosts(out, &measured, &facts, ["there", "here"])?;
        here.probes.notes.iter().try_for_each(|note| writeln!(out, "{}", wrap(note, "here: ")))?;
        let text =
            if differ.is_empty() { "no difference shown".into() } else { format!("differ: {}", differ.join(", ")) };
        writeln!(out, "\n{BOLD}{text}{BOLD:#}")?;
        Ok(code)
    }
}

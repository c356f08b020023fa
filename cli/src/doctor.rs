//! `dormouse doctor`.

use clap::Args;
use dormouse_doctor::{Findings, Mark, Tracing, diagnose, print_findings, tracing_works};
use dormouse_owner::find_libc_library;
use dormouse_terminal::Output;

/// Check whether programs can be traced on this machine; if not, say why and what to do
///
/// `dormouse lab doctor` also says how reliable measurements on this machine are, and why it is slower than another machine.
#[derive(Debug, Args)]
#[command(after_help = "\
JSON is an array of objects: `group`, `fact`, `mark` (ok, note, warning), `value` (starts with `not told: ` if nothing could be \
read), `meaning`, `remedy` (or null) and `prevents_tracing`.

Exit code: 0 if tracing works; 1 if it does not, or if sites cannot be patched; 2 on an error.")]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let mut findings = Findings::default();
        diagnose(&Tracing::read(), &mut findings);
        libc_library(&mut findings);
        if self.json {
            out.json(&findings.0)?;
        } else {
            print_findings(&mut out.styled(), &findings.0)?;
        }
        Ok((!tracing_works(&findings.0)).into())
    }
}

/// Adds the finding whether the library that `record --libc` needs is installed.
fn libc_library(findings: &mut Findings) {
    let (mark, value, meaning, remedy) = match find_libc_library() {
        Ok(path) => {
            let meaning = "`dormouse record --libc` uses it to trace unmodified programs.";
            (Mark::Ok, path.display().to_string(), meaning, "")
        }
        Err(_) => (
            Mark::Note,
            "not found".into(),
            "`dormouse record --libc` cannot trace unmodified programs. Programs with tracepoints can still be traced.",
            "`cargo xtask install --prefix DIR` in Dormouse's sources installs it beside the command.",
        ),
    };
    findings.add("installation", "library of --libc", mark, value, meaning, remedy);
}

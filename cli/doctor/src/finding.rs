//! What the facts mean, and what to do.

use serde::Serialize;

use crate::tracing::{Patching, Tracing};

/// How much a fact matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// Nothing to do.
    Ok,
    /// To be known when figures are read.
    Note,
    /// Figures suffer, or tracing does.
    Warning,
}

impl Mark {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Mark::Ok => "ok",
            Mark::Note => "note",
            Mark::Warning => "warning",
        }
    }
}

/// One fact, judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is about.
    pub group: &'static str,
    /// Its name.
    pub fact: String,
    /// How much it matters.
    pub mark: Mark,
    /// What was found; starts with `not told: ` where nothing was.
    pub value: String,
    /// What it means.
    pub meaning: String,
    /// What to do.
    pub remedy: Option<String>,
    /// Whether nothing can be traced, or dormant events are not patched.
    pub prevents_tracing: bool,
}

/// Findings, as they are made.
#[derive(Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Adds one that does not prevent tracing. An empty remedy is none.
    pub fn add(
        &mut self,
        group: &'static str,
        fact: &str,
        mark: Mark,
        value: impl ToString,
        meaning: &str,
        remedy: &str,
    ) {
        self.0.push(Finding {
            group,
            fact: fact.into(),
            mark,
            value: value.to_string(),
            meaning: meaning.into(),
            remedy: (!remedy.is_empty()).then(|| remedy.into()),
            prevents_tracing: false,
        });
    }

    /// Adds what was tried: its meaning where it works and where it does not, and the remedy where it does not.
    fn add_tried(&mut self, fact: &str, tried: &Result<(), String>, [works, fails]: [&str; 2], remedy: &str) {
        match tried {
            Ok(()) => self.add(TRACING, fact, Mark::Ok, "available", works, ""),
            Err(cause) => self.add(TRACING, fact, Mark::Warning, format!("not available: {cause}"), fails, remedy),
        }
    }

    /// The last one added prevents tracing.
    fn prevents(&mut self, prevents: bool) {
        if let Some(last) = self.0.last_mut() {
            last.prevents_tracing = prevents;
        }
    }
}

/// Whether programs can be traced here, with patched sites.
pub fn tracing_works(findings: &[Finding]) -> bool {
    !findings.iter().any(|finding| finding.prevents_tracing)
}

/// The group of what tracing needs.
const TRACING: &str = "tracing";

/// Judges what tracing needs.
pub fn diagnose(tracing: &Tracing, findings: &mut Findings) {
    let writer = tracing.patching.as_ref().map_or("", |patching| patching.writer.as_str());
    let is_patched = !matches!(writer, "" | "none");
    findings.add(
        TRACING,
        "patching",
        match writer {
            "mprotect" => Mark::Ok,
            "procmem" => Mark::Note,
            _ => Mark::Warning,
        },
        match &tracing.patching {
            Ok(Patching { writer, reason }) => format!("{writer}: {reason}"),
            Err(cause) => format!("not told: {cause}"),
        },
        if is_patched {
            "A dormant event is a `nop` of five bytes, patched when it is armed."
        } else {
            "Sites stay as they were built: a dormant event reads a variable. Events are recorded all the same."
        },
        match (is_patched, cfg!(target_arch = "x86_64")) {
            (true, _) => "",
            (false, false) => "Patching is for x86-64.",
            (false, true) => {
                "Unset DORMOUSE_IMV_WRITER; permit writing to program text (SELinux: execmod; systemd: no \
                 MemoryDenyWriteExecute=; a kernel without proc_mem.force_override=never)."
            }
        },
    );
    findings.prevents(!is_patched);
    findings.add_tried(
        "membarrier",
        &tracing.membarrier,
        ["Other threads see a patched site at once.", "Without it no site may be patched."],
        "Linux 4.16 or later has it; in a sandbox, allow membarrier(2) (seccomp).",
    );
    findings.prevents(tracing.membarrier.is_err());
    findings.add_tried(
        "restartable sequences",
        &tracing.rseq,
        [
            "An armed event is committed by one plain store.",
            "An armed event takes the slower path, with locked instructions; nothing is lost by it.",
        ],
        "Use glibc 2.35 or later on Linux 4.18 or later, and unset DORMOUSE_NO_RSEQ and glibc.pthread.rseq=0 in \
         GLIBC_TUNABLES.",
    );
    findings.add_tried(
        "socket directory",
        &tracing.sockets,
        [
            "Programs listen here for `dormouse list` and `arm`, and sessions for their programs.",
            "No program can be reached, and no session can be made.",
        ],
        "Set XDG_RUNTIME_DIR to a directory of your own, for dormouse and the traced programs alike.",
    );
    findings.prevents(tracing.sockets.is_err());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capable() -> Tracing {
        let patching = Ok(Patching { writer: "mprotect".into(), reason: "it may".into() });
        Tracing { patching, rseq: Ok(()), membarrier: Ok(()), sockets: Ok(()) }
    }

    fn found(tracing: &Tracing) -> Vec<Finding> {
        let mut findings = Findings::default();
        diagnose(tracing, &mut findings);
        findings.0
    }

    #[test]
    fn what_prevents_tracing_is_said() {
        let findings = found(&capable());
        assert!(tracing_works(&findings) && findings.iter().all(|finding| finding.mark == Mark::Ok), "{findings:?}");
        type Plant = fn(&mut Tracing);
        let plants: [(&str, bool, Plant); 4] = [
            ("patching", false, |tracing| {
                tracing.patching = Ok(Patching { writer: "none".into(), reason: "no".into() });
            }),
            ("membarrier", false, |tracing| tracing.membarrier = Err("no".into())),
            ("socket directory", false, |tracing| tracing.sockets = Err("no".into())),
            // Slower, but it works.
            ("restartable sequences", true, |tracing| tracing.rseq = Err("no".into())),
        ];
        for (fact, works, plant) in plants {
            let mut tracing = capable();
            plant(&mut tracing);
            let findings = found(&tracing);
            assert_eq!(tracing_works(&findings), works, "{fact}");
            let finding = findings.iter().find(|finding| finding.fact == fact).expect("each is judged");
            assert!(finding.mark == Mark::Warning && finding.remedy.is_some(), "{finding:?}");
        }
    }
}

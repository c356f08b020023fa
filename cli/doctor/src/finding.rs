//! Findings: the meaning of facts, and their remedies.

use serde::Serialize;

use crate::tracing::{HAS_SECTIONS, Patching, Tracing};

/// Severity of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// Nothing needs to be done.
    Ok,
    /// Matters for the interpretation of figures.
    Note,
    /// Figures or tracing are impaired.
    Warning,
}

impl Mark {
    /// Returns the name for people.
    pub fn name(self) -> &'static str {
        match self {
            Mark::Ok => "ok",
            Mark::Note => "note",
            Mark::Warning => "warning",
        }
    }
}

/// A judged fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Group of the fact.
    pub group: &'static str,
    /// Name of the fact.
    pub fact: String,
    /// Severity.
    pub mark: Mark,
    /// Value of the fact; starts with `not told: ` if it could not be read.
    pub value: String,
    /// Meaning of the value.
    pub meaning: String,
    /// Remedy, if there is one.
    pub remedy: Option<String>,
    /// Whether it prevents all tracing or the patching of dormant events.
    pub prevents_tracing: bool,
}

/// A list of findings under construction.
#[derive(Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Adds a finding that does not prevent tracing. An empty `remedy` means that there is none.
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

    /// Adds the result of a trial, with the meanings of success and failure, and the remedy for a failure.
    fn add_tried(&mut self, fact: &str, tried: &Result<(), String>, [works, fails]: [&str; 2], remedy: &str) {
        match tried {
            Ok(()) => self.add(TRACING, fact, Mark::Ok, "available", works, ""),
            Err(cause) => self.add(TRACING, fact, Mark::Warning, format!("not available: {cause}"), fails, remedy),
        }
    }

    /// Sets whether the last finding prevents tracing.
    fn prevents(&mut self, prevents: bool) {
        if let Some(last) = self.0.last_mut() {
            last.prevents_tracing = prevents;
        }
    }
}

/// Whether programs can be traced on this machine with patched sites.
pub fn tracing_works(findings: &[Finding]) -> bool {
    !findings.iter().any(|finding| finding.prevents_tracing)
}

/// Group of the facts that tracing depends on.
const TRACING: &str = "tracing";

/// Form of a dormant event on this architecture, as a sentence; empty if its sites cannot be patched.
const DORMANT: &str = if cfg!(target_arch = "x86_64") {
    "A dormant event is a `nop` of five bytes, patched when it is armed."
} else if cfg!(target_arch = "aarch64") {
    "A dormant event is one `nop`, patched when it is armed."
} else {
    ""
};

/// Judges the facts that tracing depends on.
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
            DORMANT
        } else {
            "Sites stay as they were built: a dormant event reads a variable. Events are still recorded."
        },
        match (is_patched, !DORMANT.is_empty()) {
            (true, _) => "",
            (false, false) => "Patching is for x86-64 and AArch64.",
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
        "Use Linux 4.16 or later; in a sandbox, allow membarrier(2) (seccomp).",
    );
    findings.prevents(tracing.membarrier.is_err());
    findings.add_tried(
        "restartable sequences",
        &tracing.rseq,
        [
            "An armed event is committed by one plain store.",
            "An armed event takes the slower path, with locked instructions; no events are lost.",
        ],
        if HAS_SECTIONS {
            "Use glibc 2.35 or later on Linux 5.10 or later, and unset DORMOUSE_NO_RSEQ and glibc.pthread.rseq=0 in \
             GLIBC_TUNABLES."
        } else {
            "Critical sections are for x86-64 and AArch64."
        },
    );
    findings.add_tried(
        "process ends",
        &tracing.ends,
        [
            "The kernel reports the end of a program to its session.",
            "The session looks for programs that have ended; no events are lost.",
        ],
        "Use Linux 5.3 or later; in a sandbox, allow pidfd_open(2) (seccomp).",
    );
    findings.add_tried(
        "socket directory",
        &tracing.sockets,
        [
            "Programs listen here for `dormouse list` and `dormouse arm`, and sessions listen for their programs.",
            "No program can be reached, and no session can start.",
        ],
        "Set XDG_RUNTIME_DIR to a directory that you own, both for dormouse and for the traced programs.",
    );
    findings.prevents(tracing.sockets.is_err());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capable() -> Tracing {
        let patching = Ok(Patching { writer: "mprotect".into(), reason: "it may".into() });
        Tracing { patching, rseq: Ok(()), membarrier: Ok(()), ends: Ok(()), sockets: Ok(()) }
    }

    fn found(tracing: &Tracing) -> Vec<Finding> {
        let mut findings = Findings::default();
        diagnose(tracing, &mut findings);
        findings.0
    }

    #[test]
    fn missing_mechanisms_are_warnings_with_a_remedy() {
        let findings = found(&capable());
        assert!(tracing_works(&findings) && findings.iter().all(|finding| finding.mark == Mark::Ok), "{findings:?}");
        type Plant = fn(&mut Tracing);
        let plants: [(&str, bool, Plant); 5] = [
            ("patching", false, |tracing| {
                tracing.patching = Ok(Patching { writer: "none".into(), reason: "no".into() });
            }),
            ("membarrier", false, |tracing| tracing.membarrier = Err("no".into())),
            ("socket directory", false, |tracing| tracing.sockets = Err("no".into())),
            // Tracing without it is slower, but works.
            ("restartable sequences", true, |tracing| tracing.rseq = Err("no".into())),
            ("process ends", true, |tracing| tracing.ends = Err("no".into())),
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

//! Results of a session, and their line for users.

use dormouse_format::{Cause, Losses, Refusal};
use dormouse_tools::Unjoined;
use serde::Serialize;

/// Results of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Number of events in the trace.
    pub events: u64,
    /// Events that are missing, by cause, and causes that may have lost more.
    pub losses: Losses,
    /// Classes of the events that found no free page or were larger than a page, with their counts, the greatest first.
    /// A program that was killed, or was losing events while the session ended, may have left some out.
    pub lost_by_class: Vec<(String, u64)>,
    /// Classes of the events that the session's rules left out, with their counts, the greatest first. These events are
    /// not lost.
    pub unrecorded: Vec<UnrecordedClass>,
    /// The first stream in whose ring a producer has violated the protocol, and the violation. Its pages were found
    /// without the ring.
    pub ring_violation: Option<String>,
    /// Number of processes that joined.
    pub processes: u64,
    /// Bytes of the trace's streams.
    pub bytes: u64,
    /// Number of snapshots that programs asked for and that were refused because there were too many.
    pub snapshots_refused: u64,
    /// Distinct classes whose events are not in the trace.
    pub classes_refused: Vec<Refusal>,
    /// Tags that the session asks for, and that no process has set.
    pub tags_not_set: Vec<String>,
    /// Number of texts of tags for which there was no room. Their events have numbers.
    pub tag_texts_refused: u64,
    /// Reason of the first write error.
    pub write_error: Option<String>,
    /// How often its owner was started again.
    pub owner_restarts: u64,
    /// Processes that were in the session at its end and continue unrecorded.
    pub still_running: Vec<Running>,
    /// Processes that have executed another program since they were attached.
    pub executed: Vec<Executed>,
    /// Programs with tracepoints that the command has started and that have not joined, as far as they were seen.
    pub unjoined: Vec<Unjoined>,
}

/// Events of a class that the session's rules left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnrecordedClass {
    /// `provider:name`, or `(other classes)`.
    pub class: String,
    /// Number of events that the rules' conditions rejected.
    pub rejected: u64,
    /// Number of events that sampling left out.
    pub sampled_out: u64,
    /// Number of events that programs recorded and no tail kept.
    pub not_kept: u64,
}

impl UnrecordedClass {
    /// Returns the number of all of them. Programs write the counts, so it saturates.
    pub(crate) fn count(&self) -> u64 {
        self.rejected.saturating_add(self.sampled_out).saturating_add(self.not_kept)
    }
}

/// A process that continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Running {
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

/// A process that has executed another program, and that program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Executed {
    /// Its process id.
    pub pid: u32,
    /// Path of the executable.
    pub program: String,
    /// Whether the program has joined.
    pub is_recorded: bool,
}

impl std::fmt::Display for Executed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Executed { pid, program, is_recorded } = self;
        write!(f, "process {pid} has executed {program}")?;
        f.write_str(if *is_recorded {
            ", which has joined a moment later; its events until then are not recorded"
        } else {
            " and is not recorded any more; `dormouse record -- CMD` records a program from its start, with all that it executes"
        })
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = |count: u64| if count == 1 { "" } else { "es" };
        let Summary { events, losses, processes, bytes, .. } = self;
        write!(f, "{events} events, {losses}, {processes} process{}, {bytes} bytes", plural(*processes))?;
        if self.snapshots_refused > 0 {
            write!(f, "; {} snapshots that programs asked for were too many", self.snapshots_refused)?;
        }
        if !self.classes_refused.is_empty() {
            f.write_str("; refused event classes are named above")?;
        }
        if let Some(error) = &self.write_error {
            write!(f, "; {} events could not be written: {error}", losses.of(Cause::WriteFailed))?;
        }
        if self.owner_restarts > 0 {
            let times = if self.owner_restarts == 1 { "time" } else { "times" };
            write!(f, "; its owner was started again {} {times}", self.owner_restarts)?;
        }
        let left_out = losses.of(Cause::DiskMax);
        if left_out > 0 {
            write!(f, "; {left_out} events were left out: {}", Cause::DiskMax.text())?;
        }
        if let Some(violation) = &self.ring_violation {
            write!(f, "; protocol violation in the ring of {violation}")?;
        }
        let (first, rest) = self.lost_by_class.split_at(self.lost_by_class.len().min(LOST_CLASSES_SHOWN_MAX));
        for (index, (name, count)) in first.iter().enumerate() {
            write!(f, "{} {name} {count}", if index == 0 { "; lost:" } else { "," })?;
        }
        if !rest.is_empty() {
            write!(
                f,
                ", {} other classes {}",
                rest.len(),
                rest.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
            )?;
        }
        self.unrecorded_line(f)?;
        if !self.tags_not_set.is_empty() {
            let plural = if self.tags_not_set.len() == 1 { "" } else { "s" };
            write!(f, "; no process has set the tag{plural} {}", self.tags_not_set.join(", "))?;
        }
        if self.tag_texts_refused > 0 {
            write!(f, "; {} texts of tags found no room, and are numbers in the trace", self.tag_texts_refused)?;
        }
        self.still_running_line(f)
    }
}

impl Summary {
    fn unrecorded_line(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = |count: fn(&UnrecordedClass) -> u64| {
            self.unrecorded.iter().fold(0, |sum: u64, class| sum.saturating_add(count(class)))
        };
        let told = [
            (sum(|class| class.rejected), "rejected by rules"),
            (sum(|class| class.sampled_out), "sampled out"),
            (sum(|class| class.not_kept), "kept by no tail"),
        ];
        let mut events = "events ";
        for (index, (count, how)) in told.iter().filter(|(count, _)| *count > 0).enumerate() {
            let separator = if index == 0 { ";" } else { "," };
            write!(f, "{separator} {count} {events}{how}")?;
            events = "";
        }
        Ok(())
    }

    fn still_running_line(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = &self.still_running;
        let names = all.iter().take(NAMED_SHOWN_MAX).map(|Running { pid, name }| format!("{name} ({pid})"));
        let names = names.collect::<Vec<_>>().join(", ");
        let others = match all.len().saturating_sub(NAMED_SHOWN_MAX) {
            0 => String::new(),
            count => format!(" and {count} others"),
        };
        match all.len() {
            0 => Ok(()),
            1 => write!(
                f,
                "; 1 process still running and not recorded any more (`--wait-all` records to its end): {names}"
            ),
            count => write!(
                f,
                "; {count} processes still running and not recorded any more (`--wait-all` records to their ends): {names}{others}"
            ),
        }
    }
}

/// Maximum number of processes named in a summary's line.
pub const NAMED_SHOWN_MAX: usize = 5;

/// Maximum number of classes named in a summary's line.
const LOST_CLASSES_SHOWN_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use dormouse_abi::class::{ClassDecl, Labels};
    use dormouse_abi::session::LOST_CLASS_COUNT;
    use dormouse_ctf::Classes;

    use super::*;
    use crate::losses;

    #[test]
    fn a_summary_counts_events_that_rules_left_out() {
        let class =
            |rejected, sampled_out| UnrecordedClass { class: "shop:order".into(), rejected, sampled_out, not_kept: 0 };
        let told = |unrecorded: Vec<UnrecordedClass>| Summary { unrecorded, ..Summary::default() }.to_string();
        let nothing = "0 events, 0 lost, 0 processes, 0 bytes";
        assert_eq!(told(vec![]), nothing);
        assert_eq!(told(vec![class(3, 0), class(2, 0)]), format!("{nothing}; 5 events rejected by rules"));
        assert_eq!(told(vec![class(0, 7)]), format!("{nothing}; 7 events sampled out"));
        let tailed = UnrecordedClass { not_kept: 4, ..class(1, 0) };
        assert_eq!(told(vec![tailed]), format!("{nothing}; 1 events rejected by rules, 4 kept by no tail"));
        // Any value that a program has written there is reported, and sums saturate.
        let max = u64::MAX;
        let expected = format!("{nothing}; {max} events rejected by rules, 9 sampled out");
        assert_eq!(told(vec![class(max, 4), class(1, 5)]), expected);
        assert_eq!(class(max, 4).count(), max);
    }

    #[test]
    fn a_summary_names_tags_that_nobody_has_set() {
        let told = |tags: &[&str], tag_texts_refused| {
            let tags_not_set = tags.iter().map(ToString::to_string).collect();
            Summary { tags_not_set, tag_texts_refused, ..Summary::default() }.to_string()
        };
        let nothing = "0 events, 0 lost, 0 processes, 0 bytes";
        assert_eq!(told(&["user"], 0), format!("{nothing}; no process has set the tag user"));
        let expected =
            "; no process has set the tags a, b; 3 texts of tags found no room, and are numbers in the trace";
        assert_eq!(told(&["a", "b"], 3), format!("{nothing}{expected}"));
    }

    #[test]
    fn a_summary_names_the_classes_that_lost_most() {
        let mut classes = Classes::new();
        let decl = |name: &str| ClassDecl {
            provider: "shop".into(),
            name: name.into(),
            fields: vec![],
            labels: Labels::new(),
            level: None,
        };
        assert!(classes.insert(0, decl("order")) && classes.insert(1, decl("item")));
        let mut counts = vec![0; LOST_CLASS_COUNT];
        let mut summary = |losses: &[(usize, u64)]| {
            losses.iter().for_each(|&(index, count)| counts[index] = count);
            Summary { lost_by_class: losses::name_counts(counts.clone(), &classes), ..Summary::default() }.to_string()
        };
        let nothing = "0 events, 0 lost, 0 processes, 0 bytes";
        assert_eq!(summary(&[]), nothing);
        assert_eq!(summary(&[(0, 3), (1, 40)]), format!("{nothing}; lost: shop:item 40, shop:order 3"));
        // Any value that a program has written there is reported, and sums saturate.
        let strange = [(7, u64::MAX), (8, u64::MAX), (9, 50), (255, 2), (254, 1)];
        let none = "(other classes)";
        assert_eq!(
            summary(&strange),
            format!(
                "{nothing}; lost: {none} {max}, {none} {max}, {none} 50, shop:item 40, shop:order 3, 2 other classes 3",
                max = u64::MAX
            )
        );
    }
}

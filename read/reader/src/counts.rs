//! Numbers of events by class, counted on several CPUs at once.

use dormouse_ctf::ClassCounts;

use crate::traces::TraceFiles;

/// Numbers of events by class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Classes that have events, the most frequent first.
    pub classes: Vec<ClassCount>,
    /// Notices of the streams (damage, discarded events), one line each, in the order of the streams.
    pub warnings: Vec<String>,
}

/// A class and its number of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassCount {
    /// Name of the class; in traces of Dormouse `provider:name`.
    pub name: String,
    /// Id of the class in its trace.
    pub id: u64,
    /// Number of events.
    pub events: u64,
}

impl Counts {
    /// Returns the number of events of all classes.
    pub fn events(&self) -> u64 {
        self.classes.iter().map(|class| class.events).sum()
    }
}

impl TraceFiles {
    /// Counts the events of each class from the headers of their records, on as many threads as there are CPUs.
    pub fn counts(&self) -> Counts {
        let (sums, parts) = self.in_parts((0..self.stream_count()).collect(), |counts, mut reader| {
            let (mut notices, end_bytes) = (Vec::new(), reader.end_bytes());
            reader.count_classes(counts, |notice| notices.push(notice));
            (notices, reader.end_bytes() < end_bytes)
        });
        let mut counts = ClassCounts::default();
        sums.iter().for_each(|sum| counts.add(sum));
        let names: Vec<&str> = self.names().collect();
        let (mut warnings, mut over) = (Vec::new(), None);
        for (stream, (notices, is_over)) in parts {
            // After a place where a stream cannot be read, its further parts have nothing to report.
            if over != Some(stream) {
                warnings.extend(notices.into_iter().map(|notice| format!("{}: {notice}", names[stream])));
                over = is_over.then_some(stream);
            }
        }
        let of_class =
            counts.iter().map(|(class, events)| ClassCount { name: class.full_name.clone(), id: class.id, events });
        let mut classes: Vec<ClassCount> = of_class.collect();
        classes.sort_by(|a, b| b.events.cmp(&a.events).then_with(|| (a.id, &a.name).cmp(&(b.id, &b.name))));
        Counts { classes, warnings }
    }
}

//! How many events of each class there are, on several processors at once.

use dormouse_ctf::ClassCounts;

use crate::traces::TraceFiles;

/// How many events of each class there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that have events, most frequent first.
    pub classes: Vec<ClassCount>,
    /// What the streams say besides (damage, discarded events), one line each, in the order of the streams.
    pub warnings: Vec<String>,
}

/// A class and its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassCount {
    /// Its name; of traces of Dormouse `provider:name`.
    pub name: String,
    /// In its trace.
    pub id: u64,
    /// How many.
    pub events: u64,
}

impl Counts {
    /// Events of all classes.
    pub fn events(&self) -> u64 {
        self.classes.iter().map(|class| class.events).sum()
    }
}

impl TraceFiles {
    /// Counts the events of each class by the headers of their records, on as many threads as there are processors for.
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
            // Behind a place where a stream cannot be read, there is nothing more to be said of it.
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

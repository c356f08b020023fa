//! How many events of each class there are, counted stream by stream, on several processors at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use dormouse_ctf::{ClassCounts, StreamReader};

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
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(self.stream_count());
        let mut order: Vec<usize> = (0..self.stream_count()).collect();
        // The longest first, so that none is left over at the end.
        order.sort_by_key(|index| std::cmp::Reverse(self.stream_size_bytes(*index)));
        let (next, done) = (AtomicUsize::new(0), Mutex::new((ClassCounts::default(), Vec::new())));
        let work = || {
            let (mut counts, mut warnings) = (ClassCounts::default(), Vec::new());
            // Relaxed: it only gives each number once. What is counted is handed over by the lock.
            while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let mut reader: StreamReader<'_, _> = self.reader(*index);
                reader.count_classes(&mut counts, |notice| warnings.push((*index, notice)));
            }
            let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            done.0.add(&counts);
            done.1.extend(warnings);
        };
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| {
                scope.spawn(work);
            });
            work();
        });
        let (counts, mut warnings) = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Stable: those of one stream stay in their order.
        warnings.sort_by_key(|(index, _)| *index);
        let of_class =
            counts.iter().map(|(class, events)| ClassCount { name: class.full_name.clone(), id: class.id, events });
        let mut classes: Vec<ClassCount> = of_class.collect();
        classes.sort_by(|a, b| b.events.cmp(&a.events).then_with(|| (a.id, &a.name).cmp(&(b.id, &b.name))));
        let names: Vec<&str> = self.names().collect();
        let line = |(index, notice): (usize, dormouse_ctf::Notice)| format!("{}: {notice}", names[index]);
        Counts { classes, warnings: warnings.into_iter().map(line).collect() }
    }
}

//! Rows at several levels of detail.
//!
//! ```text
//!   level 0    ▌▌ ▌▌▌   ████████  ▌▌▌▌ ▌      each item
//!   level 1    ██ ███   ████████  ██████      coarser resolution: shorter items within one step of it are one entry
//!   level 2    ██████████████████ ██████
//! ```
//! A page draws the level whose resolution is just below its pixels. The cost of a frame depends on its pixels, not on
//! the number of items.

/// An item, or several merged items, in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// Begin, in nanoseconds since the report's begin.
    pub begin: u64,
    /// Nanoseconds from the begin to the end of the last item.
    pub duration: u64,
    /// Name of the item; for merged items, the name with the most time.
    pub name: u32,
    /// Number of items.
    pub count: u32,
    /// See [`crate::Item::key`].
    pub key: u32,
    /// See [`crate::Item::fields`].
    pub fields: u32,
    /// In a thread's row the CPU, in a CPU's row the thread; plus 1.
    pub other: u32,
    /// Whether it must not be merged, because it is one of the slowest.
    pub is_kept: bool,
}

/// Rows with at most this many entries have no further levels.
const ENTRIES_FEW: usize = 2048;
/// Factor between the resolutions of two levels.
const STEP: u64 = 4;

/// A row at one resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// Resolution in nanoseconds: shorter items are merged; 0 if none are.
    pub resolution: u64,
    /// Entries in the order of their begins.
    pub entries: Vec<Entry>,
}

/// Entries that are being merged, up to the first one that does not fit.
#[derive(Debug)]
struct Group {
    entry: Entry,
    /// Time by name, in the order in which names occur.
    times: Vec<(u32, u64)>,
}

/// Maximum number of names that are distinguished within a group.
const NAMES_MAX: usize = 8;

impl Group {
    fn new(entry: Entry) -> Group {
        Group { entry, times: vec![(entry.name, entry.duration.max(1))] }
    }

    fn add(&mut self, entry: &Entry) {
        let end = self.entry.begin + self.entry.duration;
        self.entry.duration = end.max(entry.begin + entry.duration) - self.entry.begin;
        self.entry.count = self.entry.count.saturating_add(entry.count);
        // A merged entry has no key, fields or CPU of its own.
        (self.entry.key, self.entry.fields, self.entry.other) = (0, 0, 0);
        let time = entry.duration.max(1);
        match self.times.iter().position(|(name, _)| *name == entry.name) {
            Some(index) => self.times[index].1 += time,
            None if self.times.len() < NAMES_MAX => self.times.push((entry.name, time)),
            None => {}
        }
    }

    fn finish(mut self) -> Entry {
        let most = self.times.iter().max_by_key(|(_, time)| *time);
        self.entry.name = most.map_or(self.entry.name, |(name, _)| *name);
        self.entry
    }
}

/// Merges the entries of a row, which are pushed in the order of time.
#[derive(Debug, Default)]
pub(crate) struct Merger(Option<Group>);

impl Merger {
    /// Takes the next entry. `spares`: whether entries with `is_kept` are left alone.
    pub(crate) fn push(&mut self, entry: &Entry, resolution: u64, spares: bool, out: &mut Vec<Entry>) {
        let is_short = entry.duration < resolution && !(spares && entry.is_kept);
        match &mut self.0 {
            Some(group) if is_short && group.entry.begin / resolution == entry.begin / resolution => group.add(entry),
            _ => {
                self.finish(out);
                if is_short {
                    self.0 = Some(Group::new(*entry));
                } else {
                    out.push(*entry);
                }
            }
        }
    }

    /// Ends the current group: later entries are not merged with earlier ones.
    pub(crate) fn finish(&mut self, out: &mut Vec<Entry>) {
        out.extend(self.0.take().map(Group::finish));
    }
}

/// Returns the entries of a row at a resolution. `spares`: whether entries with `is_kept` are left alone.
pub fn merged(entries: &[Entry], resolution: u64, spares: bool) -> Vec<Entry> {
    let (mut out, mut merger) = (Vec::new(), Merger::default());
    entries.iter().for_each(|entry| merger.push(entry, resolution, spares, &mut out));
    merger.finish(&mut out);
    out
}

/// Returns the coarser levels of a row, the finest first.
pub fn above(entries: &[Entry]) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return levels };
    let span = (last.begin + last.duration - first.begin).max(1);
    let resolution = (span / entries.len() as u64).max(1);
    let mut resolution = resolution.checked_next_power_of_two().unwrap_or(1 << 63);
    loop {
        let below = levels.last().map_or(entries, |level| &level.entries);
        if below.len() <= ENTRIES_FEW || resolution > span {
            return levels;
        }
        // Damaged times can be as far apart as the range allows.
        let Some(coarser) = resolution.checked_mul(STEP) else { return levels };
        resolution = coarser;
        let above = merged(below, resolution, false);
        // A level that is hardly shorter is not worth its size.
        if above.len() < below.len() * 3 / 4 {
            levels.push(Level { resolution, entries: above });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(begin: u64, duration: u64, name: u32) -> Entry {
        Entry { begin, duration, name, count: 1, key: 1, fields: 1, other: 1, is_kept: false }
    }

    #[test]
    fn merged_neighbours_have_the_name_with_the_most_time() {
        let row = [entry(0, 10, 1), entry(20, 30, 2), entry(60, 10, 1), entry(110, 500, 3), entry(620, 1, 4)];
        let merged = merged(&row, 100, true);
        let shown: Vec<_> = merged.iter().map(|e| (e.begin, e.duration, e.name, e.count, e.fields)).collect();
        assert_eq!(shown, [(0, 70, 2, 3, 0), (110, 500, 3, 1, 1), (620, 1, 4, 1, 1)]);
        let mut kept = row;
        kept[1].is_kept = true;
        assert_eq!(super::merged(&kept, 100, true).len(), 5);
    }

    /// In random rows, each level has all items in fewer entries, and in the order of time.
    #[test]
    fn levels_lose_no_item() {
        let mut random = dormouse_testing::random(7);
        let mut at = 0;
        let row: Vec<Entry> = (0..20_000)
            .map(|_| {
                at += random(1000) as u64;
                let duration_max = if random(100) == 0 { 100_000 } else { 500 };
                let duration = random(duration_max) as u64;
                let entry = entry(at, duration, random(5) as u32);
                at += duration;
                entry
            })
            .collect();
        let levels = above(&row);
        assert!(levels.len() >= 2, "{}", levels.len());
        let mut before = row.len();
        for level in &levels {
            assert!(level.entries.len() < before);
            before = level.entries.len();
            assert_eq!(level.entries.iter().map(|entry| u64::from(entry.count)).sum::<u64>(), 20_000);
            assert!(level.entries.windows(2).all(|pair| pair[0].begin + pair[0].duration <= pair[1].begin));
        }
        assert!(before <= ENTRIES_FEW);
        assert!(above(&row[..ENTRIES_FEW]).is_empty());
    }

    #[test]
    fn times_of_the_whole_range_are_supported() {
        let row: Vec<Entry> = (0..=ENTRIES_FEW as u64)
            .map(|index| Entry { is_kept: true, ..entry(index * (u64::MAX / ENTRIES_FEW as u64), 0, 1) })
            .collect();
        assert!(
            above(&row)
                .iter()
                .all(|level| level.entries.iter().map(|entry| entry.count as usize).sum::<usize>() == row.len())
        );
    }
}

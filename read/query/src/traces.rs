//! The traces that are asked, and what was found out about them meanwhile.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::Result;
use dormouse_analysis::clocks::File;
use dormouse_columns::Damage;
use dormouse_ctf::{Merge, Notice, StateRecord, Stats, Writers};
use dormouse_reader::TraceFiles;
use dormouse_terminal::say;

/// Where the tables of traces are, as their full names say: `dormouse.trace.NAME`.
pub(crate) const CATALOG: &str = "dormouse";
pub(crate) const SCHEMA: &str = "trace";

/// Lines about damage that are kept.
const DAMAGE_MAX: usize = 100;

/// The traces that are asked. They are open as long as the program runs, so that scans on all threads can borrow them.
pub(crate) struct Traces {
    pub files: TraceFiles,
    stats: OnceLock<Stats>,
    /// What was wrong, one line each.
    damage: Mutex<BTreeSet<String>>,
    /// Whether some scan was told of lost events.
    has_lost: AtomicBool,
    /// Bytes of streams that scans have read, and that they will have read.
    pub read_bytes: AtomicU64,
    pub all_bytes: AtomicU64,
}

impl std::fmt::Debug for Traces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.files.names()).finish()
    }
}

/// Opens traces, their times corrected by a file.
///
/// # Errors
/// That of the first that cannot be opened, or of the file.
pub(crate) fn open(paths: &[PathBuf], clocks: Option<&Path>) -> Result<TraceFiles> {
    let mut files = TraceFiles::open_all(paths.iter().map(PathBuf::as_path))?;
    if let Some(path) = clocks {
        for (trace, correction, line) in File::read(path, files.described()).map_err(anyhow::Error::msg)? {
            say(line);
            files.correct(trace, correction);
        }
    }
    Ok(files)
}

impl Traces {
    /// # Errors
    /// As those of [`open`].
    pub(crate) fn open(paths: &[PathBuf], clocks: Option<&Path>) -> Result<&'static Traces> {
        Ok(Box::leak(Box::new(Traces {
            files: open(paths, clocks)?,
            stats: OnceLock::new(),
            damage: Mutex::default(),
            has_lost: AtomicBool::new(false),
            read_bytes: AtomicU64::new(0),
            all_bytes: AtomicU64::new(0),
        })))
    }

    /// What the whole traces hold. They are read once.
    pub(crate) fn stats(&self) -> &Stats {
        self.stats.get_or_init(|| self.files.stats())
    }

    /// The names of processes as they are at the end, as the state streams have them.
    pub(crate) fn writers(&self) -> Writers {
        let mut writers = Writers::default();
        let state = (0..self.files.stream_count()).filter(|index| self.files.is_state(*index));
        let mut events = Merge::new(state.map(|index| self.files.reader(index)));
        while let Some(item) = events.next_event() {
            if let Ok(event) = item
                && let Some(record) = StateRecord::decode(&event)
            {
                writers.note(&event, &record);
            }
        }
        writers
    }

    /// Takes note of what was wrong.
    pub(crate) fn note(&self, damage: &Damage) {
        if damage.lost > 0 {
            // No other memory depends on it.
            self.has_lost.store(true, Ordering::Relaxed);
        }
        if damage.count > 0 {
            let names: Vec<&str> = self.files.names().collect();
            let line = |notice: &Notice| format!("{}: {notice}", names.get(notice.stream).unwrap_or(&"a stream"));
            damage.notices.iter().for_each(|notice| self.warn(line(notice)));
        }
    }

    /// The same of something else.
    pub(crate) fn warn(&self, line: String) {
        let mut lines = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < DAMAGE_MAX {
            lines.insert(line);
        }
    }

    /// What was wrong since this was asked before, and whether events were lost.
    pub(crate) fn take_damage(&self) -> (BTreeSet<String>, bool) {
        let lines = std::mem::take(&mut *self.damage.lock().unwrap_or_else(PoisonError::into_inner));
        (lines, self.has_lost.swap(false, Ordering::Relaxed))
    }
}

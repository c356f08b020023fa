//! The traces that are queried, and the damage found in them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::Result;
use dormouse_analysis::clocks::File;
use dormouse_columns::Damage;
use dormouse_ctf::{Notice, Stats};
use dormouse_reader::TraceFiles;
use dormouse_terminal::say;

/// Catalog and schema of the tables, whose full names are `dormouse.trace.NAME`.
pub(crate) const CATALOG: &str = "dormouse";
pub(crate) const SCHEMA: &str = "trace";

/// Maximum number of lines about damage that are kept.
const DAMAGE_MAX: usize = 100;

/// The traces that are queried. They are never closed, so that scans on all threads can borrow them.
pub(crate) struct Traces {
    pub files: TraceFiles,
    stats: OnceLock<Stats>,
    /// Damage, one line each.
    damage: Mutex<BTreeSet<String>>,
    /// How pairs were found, one line for each name.
    notes: Mutex<BTreeSet<String>>,
    /// Whether a scan has found lost events.
    has_lost: AtomicBool,
    /// Bytes of streams that scans have read, and that they will have read in the end.
    pub read_bytes: AtomicU64,
    pub all_bytes: AtomicU64,
}

impl std::fmt::Debug for Traces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.files.names()).finish()
    }
}

/// Opens traces, and corrects their times by the file `clocks`.
///
/// # Errors
/// A trace cannot be opened, or the file is wrong.
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
    /// Opens traces that are never closed.
    ///
    /// # Errors
    /// See [`open`].
    pub(crate) fn open(paths: &[PathBuf], clocks: Option<&Path>) -> Result<&'static Traces> {
        Ok(Box::leak(Box::new(Traces {
            files: open(paths, clocks)?,
            stats: OnceLock::new(),
            damage: Mutex::default(),
            notes: Mutex::default(),
            has_lost: AtomicBool::new(false),
            read_bytes: AtomicU64::new(0),
            all_bytes: AtomicU64::new(0),
        })))
    }

    /// Returns statistics of the whole traces. They are read once.
    pub(crate) fn stats(&self) -> &Stats {
        self.stats.get_or_init(|| self.files.stats())
    }

    /// Records the damage and losses that a scan has found.
    pub(crate) fn note(&self, damage: &Damage) {
        if damage.lost > 0 {
            // Relaxed: no other memory depends on it.
            self.has_lost.store(true, Ordering::Relaxed);
        }
        if damage.count > 0 {
            let names: Vec<&str> = self.files.names().collect();
            let line = |notice: &Notice| format!("{}: {notice}", names.get(notice.stream).unwrap_or(&"a stream"));
            damage.notices.iter().for_each(|notice| self.warn(line(notice)));
        }
    }

    /// Records a line about damage.
    pub(crate) fn warn(&self, line: String) {
        let mut lines = self.damage.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < DAMAGE_MAX {
            lines.insert(line);
        }
    }

    /// Records a line that is not about damage.
    pub(crate) fn say_later(&self, line: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).insert(line);
    }

    /// Returns the lines of [`Traces::say_later`] since the last call.
    pub(crate) fn take_notes(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the damage since the last call, one line each, and whether events were lost.
    pub(crate) fn take_damage(&self) -> (BTreeSet<String>, bool) {
        let lines = std::mem::take(&mut *self.damage.lock().unwrap_or_else(PoisonError::into_inner));
        (lines, self.has_lost.swap(false, Ordering::Relaxed))
    }
}

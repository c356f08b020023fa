//! Finds the traces below a directory, and tells which of them are closed.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use dormouse_reader::{Dir, TraceFiles, open_dir};

/// Maximum depth of subdirectories that are searched for traces.
const DEPTH_MAX: usize = 32;
/// Names of the file that makes a directory a trace.
const METADATA: [&str; 2] = ["metadata", "metadata.zst"];
/// Name of the directory into which LTTng moves rotated chunks.
const ARCHIVES: &str = "archives";

/// The location of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub path: PathBuf,
    /// Path relative to the directory that the user has named. For that directory itself: its file name.
    pub name: String,
    /// Whether LTTng still writes the trace, and will move it into `archives`.
    pub is_rotated: bool,
    /// Device, inode and modification time of the metadata file or archive. They tell apart traces that were at the
    /// same path one after another.
    state: Option<(u64, u64, i64, i64)>,
}

/// Traces at a place, or the reason for which the place is passed over.
#[derive(Debug)]
pub(crate) enum Found {
    Closed(Vec<TraceFiles>),
    /// The trace is not closed, but may be later; with the reason.
    Written(String),
    Wrong(String),
}

/// Returns all places, and all directories in which new ones can appear.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn places(root: &Path) -> Result<(Vec<Place>, Vec<PathBuf>)> {
    let (mut found, mut dirs) = (Vec::new(), Vec::new());
    if std::fs::metadata(root).with_context(|| format!("cannot read {}", root.display()))?.is_file() {
        found.push(Place::new(root, "", false));
        return Ok((found, dirs));
    }
    let dir = open_dir(root)?;
    look(&dir, "", false, 0, &mut found, &mut dirs);
    Ok((found, dirs))
}

fn look(dir: &Dir, name: &str, is_rotated: bool, depth: usize, found: &mut Vec<Place>, dirs: &mut Vec<PathBuf>) {
    dirs.push(dir.path.clone());
    // The directory may have been removed meanwhile.
    let Ok(names) = dir.names() else { return };
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if METADATA.iter().any(|metadata| has(metadata) && !dir.has_dir(OsStr::new(metadata))) {
        found.push(Place::new(&dir.path, name, is_rotated));
        return;
    }
    let is_rotating = has(ARCHIVES) && dir.has_dir(OsStr::new(ARCHIVES));
    for below in names.iter().filter(|name| dir.has_dir(name)) {
        let Ok(below_dir) = dir.open_below(below) else { continue };
        let is_archive = below == ARCHIVES;
        let name = format!("{name}{}{}", if name.is_empty() { "" } else { "/" }, below.to_string_lossy());
        if depth < DEPTH_MAX {
            look(&below_dir, &name, (is_rotated || is_rotating) && !is_archive, depth + 1, found, dirs);
        }
    }
}

impl Place {
    fn new(path: &Path, name: &str, is_rotated: bool) -> Place {
        let files = METADATA.map(|metadata| path.join(metadata));
        let metadata = files.iter().map(PathBuf::as_path).chain([path]).find_map(|path| path.symlink_metadata().ok());
        let state = metadata.map(|is| (is.dev(), is.ino(), is.mtime(), is.mtime_nsec()));
        let own = || path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
        let name = if name.is_empty() { own() } else { name.to_owned() };
        Place { path: path.into(), name, is_rotated, state }
    }

    /// Opens the traces at this place, if they are closed.
    pub(crate) fn open(&self) -> Found {
        if self.is_rotated {
            return Found::Written("LTTng is still writing it, and moves it to `archives` when it rotates".into());
        }
        let files = match TraceFiles::open(&self.path) {
            Ok(files) => files,
            Err(error) => return Found::Wrong(error.to_string()),
        };
        let is_open = |files: &TraceFiles| {
            files.described().iter().any(|trace| trace.own.as_ref().is_some_and(|own| !own.totals.is_closed()))
        };
        match is_open(&files) {
            true => Found::Written(
                "its session has not closed it: it is still being written, or its recorder was killed (`dormouse salvage` repairs that)"
                    .into(),
            ),
            false => Found::Closed(files.each()),
        }
    }
}

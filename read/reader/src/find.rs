//! Finds the traces in directories, and the files of each.

use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;

use dormouse_directory::{Dir, Error, METADATA_BYTES_MAX, not_read};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::extent::Extent;
use crate::spool::unpacked;

/// Maximum depth of directories in which traces are looked for.
const DEPTH_MAX: usize = 32;

/// The contents of a trace's directory.
#[derive(Debug)]
pub(crate) struct Found {
    /// Path relative to the directory that the user has named: empty, or with a `/` at its end.
    pub prefix: String,
    /// Path of the metadata, for messages.
    pub path: PathBuf,
    pub metadata: Vec<u8>,
    /// Files that may be streams, by name: location, or reason why they are not.
    pub files: Vec<(String, Result<Extent, String>)>,
    /// Index files, by the name of their stream.
    pub indexes: Vec<(String, Extent)>,
    /// Names of other files, which are passed over.
    pub passed_over: Vec<String>,
}

/// Adds the traces in a directory. `prefix`: its name. A trace does not contain other traces.
pub(crate) fn find(dir: &Dir, prefix: &str, depth: usize, found: &mut Vec<Found>) -> Result<(), Error> {
    let names = dir.names().map_err(not_read(&dir.path))?;
    let is_file = |name: &str| names.iter().any(|other| other == name) && !dir.has_dir(OsStr::new(name));
    if let Some(metadata) = ["metadata", "metadata.zst"].into_iter().find(|name| is_file(name)) {
        found.push(trace(dir, prefix, metadata)?);
        return Ok(());
    }
    for name in names {
        if dir.has_dir(&name) && depth < DEPTH_MAX {
            let below = dir.open_below(&name).map_err(not_read(&dir.path_of(&name)))?;
            find(&below, &format!("{prefix}{}/", name.to_string_lossy()), depth + 1, found)?;
        }
    }
    Ok(())
}

fn trace(dir: &Dir, prefix: &str, metadata: &str) -> Result<Found, Error> {
    let path = dir.path_of(metadata);
    let unreadable = |error: std::io::Error| not_read(&path)(error);
    let extent = dir.read(metadata).and_then(Extent::all).map_err(unreadable)?;
    let extent = unpacked(extent, &path)?;
    let mut found = Found {
        prefix: prefix.into(),
        metadata: extent.read_all(METADATA_BYTES_MAX).map_err(unreadable)?,
        path,
        files: Vec::new(),
        indexes: Vec::new(),
        passed_over: Vec::new(),
    };
    for entry in dir.names().map_err(not_read(&dir.path))? {
        let (name, path) = (entry.to_string_lossy().into_owned(), dir.path_of(&entry));
        match dir.has_dir(&entry) {
            _ if name == metadata => {}
            true if name == "index" => found.indexes = indexes(dir, &entry),
            true => found.passed_over.push(name + "/"),
            false if is_hidden(&name) => found.passed_over.push(name),
            false => match open_one_of_many(dir, &entry) {
                Ok(file) => {
                    let extent = Extent::all(file).map_err(not_read(&path))?;
                    let extent = unpacked(extent, &path)?;
                    found.files.push((stream_name(&name).into(), Ok(extent)));
                }
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    found.files.push((name, Err(error.to_string())));
                }
                Err(error) => return Err(not_read(&path)(error)),
            },
        }
    }
    Ok(found)
}

/// Files of editors and file managers, and private files of a session.
pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with('.')
}

/// Returns the name of the stream in a file of this name, which may be compressed.
pub(crate) fn stream_name(name: &str) -> &str {
    name.strip_suffix(".zst").unwrap_or(name)
}

/// Returns the index files. They are optional, so unreadable ones are ignored.
fn indexes(dir: &Dir, name: &OsStr) -> Vec<(String, Extent)> {
    let Ok(below) = dir.open_below(name) else { return Vec::new() };
    let names = below.names().unwrap_or_default();
    let index = |name: std::ffi::OsString| {
        let stream = name.to_str()?.strip_suffix(".idx")?.to_string();
        Some((stream, Extent::all(open_one_of_many(&below, &name).ok()?).ok()?))
    };
    names.into_iter().filter_map(index).collect()
}

/// Opens a file of a trace. A trace can have more files than a process may open by default, so the process raises its
/// own limit if necessary.
fn open_one_of_many(dir: &Dir, name: &OsStr) -> std::io::Result<File> {
    dir.read(name).or_else(|error| {
        let mut limit = getrlimit(Resource::Nofile);
        if error.raw_os_error() != Some(rustix::io::Errno::MFILE.raw_os_error()) || limit.current == limit.maximum {
            return Err(error);
        }
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
        dir.read(name)
    })
}

//! Writes a trace with its metadata in CTF 2. The streams are copied as they are: both versions describe the same bits.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};
use dormouse_reader::TraceFiles;

use crate::target::{Watch, Watched, partial_prefix};

/// Writes a trace into a directory that does not exist yet. Returns the total size of its files, in bytes.
///
/// # Errors
/// `path` exists, there are several traces, CTF 2 cannot express the metadata, or a file cannot be read or written.
/// On an error nothing is left at `path`.
pub(super) fn write(files: &TraceFiles, path: &Path) -> anyhow::Result<u64> {
    let [trace] = files.described() else {
        bail!("--to ctf2 writes one trace, but {} were given; name one of them", files.described().len());
    };
    let metadata = trace.in_ctf2().map_err(|why| anyhow::anyhow!("CTF 2 cannot express this metadata: {why}"))?;
    if path.symlink_metadata().is_ok() {
        bail!("{} exists already; name a new directory with -o", path.display());
    }
    let failed = || format!("cannot write to {}", path.display());
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let watch = Watch::new().with_context(failed)?;
    // The directory is removed when it is dropped, unless `keep` is called.
    let mut partial = tempfile::Builder::new();
    let partial = partial.prefix(&partial_prefix(path)).permissions(Permissions::from_mode(0o700)).tempdir_in(parent);
    let partial = partial.with_context(failed)?;
    let watched = watch.over(partial.path()).with_context(failed)?;
    let written_bytes = in_directory(files, &metadata, partial.path(), &watched)?;
    let _making = watched.making();
    fs::rename(partial.path(), path).with_context(failed)?;
    // The directory was renamed: it must not be removed under its old name.
    let _ = partial.keep();
    Ok(written_bytes)
}

fn in_directory(files: &TraceFiles, metadata: &str, dir: &Path, watched: &Watched) -> anyhow::Result<u64> {
    // Names of streams may begin with the trace's directory below the one that was given. The copy has no such prefix.
    let names: Vec<&Path> = files.names().map(Path::new).collect();
    let prefix = names.first().and_then(|name| name.parent()).unwrap_or(Path::new(""));
    let mut written_bytes = metadata.len() as u64;
    let (mut file, place) = create(dir, Path::new("metadata"), watched)?;
    file.write_all(metadata.as_bytes()).with_context(|| format!("cannot write to {}", place.display()))?;
    for (index, name) in names.iter().enumerate() {
        let name = name.strip_prefix(prefix).unwrap_or(name);
        let (file, place) = create(dir, name, watched)?;
        let mut file = BufWriter::new(file);
        let copied = files.copy_stream(index, &mut file).and_then(|bytes| file.flush().map(|()| bytes));
        written_bytes += copied.with_context(|| format!("cannot copy {} to {}", name.display(), place.display()))?;
    }
    Ok(written_bytes)
}

/// Creates a file below a directory, with the private modes of traces (0700, 0600).
fn create(dir: &Path, name: &Path, watched: &Watched) -> anyhow::Result<(fs::File, PathBuf)> {
    // Names may come from archives, so they are checked.
    if !name.components().all(|part| matches!(part, Component::Normal(_))) {
        bail!("{} is not a valid name of a stream", name.display());
    }
    let path = dir.join(name);
    let failed = || format!("cannot write to {}", path.display());
    let parent = path.parent().unwrap_or(dir);
    let _making = watched.making();
    DirBuilder::new().recursive(true).mode(0o700).create(parent).with_context(failed)?;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).with_context(failed)?;
    Ok((file, path))
}

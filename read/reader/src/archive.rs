//! Finds the traces in an archive. Their files are read in place.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use tar::EntryType;

use crate::extent::Extent;
use crate::find::{Found, is_hidden, stream_name};
use crate::spool::{Reading, unpacked};
use dormouse_directory::{Error, METADATA_BYTES_MAX};

/// Maximum number of files in an archive.
const FILE_COUNT_MAX: usize = 1 << 20;

/// Location of a file in an archive, or the reason why it cannot be read.
type File = Result<Extent, String>;

/// Returns the traces in an archive. `path`: its name, for messages.
pub(crate) fn traces(archive: &Extent, path: &Path) -> Result<Vec<Found>, Error> {
    let mut dirs: BTreeMap<String, Vec<(String, File)>> = BTreeMap::new();
    let shown = path.display();
    // The error's text can contain bytes of the file.
    let failed = |error: std::io::Error| {
        let text: String = error.to_string().chars().take(200).flat_map(char::escape_debug).collect();
        Error(format!("cannot read the archive {shown}: {text}"))
    };
    let mut tar = tar::Archive::new(Reading { extent: archive, offset: 0 });
    for (count, entry) in tar.entries_with_seek().map_err(failed)?.enumerate() {
        let entry = entry.map_err(|error| match count {
            0 => Error(format!(
                "{shown} is neither the directory of a trace nor an archive (tar, gzip or zstd around it)"
            )),
            _ => failed(error),
        })?;
        if count >= FILE_COUNT_MAX {
            return Err(failed(std::io::Error::other(format!("it has more than {FILE_COUNT_MAX} files"))));
        }
        let (begin, size_bytes) = (entry.raw_file_position(), entry.size());
        let file = match entry.header().entry_type() {
            EntryType::Directory | EntryType::XGlobalHeader => continue,
            EntryType::Regular | EntryType::Continuous => archive
                .part(begin, size_bytes)
                .ok_or_else(|| format!("the archive ends before it does: it has {size_bytes} bytes")),
            EntryType::GNUSparse => Err("it is stored with holes (tar --sparse), which is not supported".into()),
            _ => Err("it is not a regular file".into()),
        };
        let (dir, name) = split(&entry.path().map_err(failed)?);
        dirs.entry(dir).or_default().push((name, file));
    }
    let names: Vec<String> = dirs.keys().cloned().collect();
    let mut found = Vec::new();
    for prefix in names {
        let Some(at) = dirs[&prefix].iter().position(|(name, _)| ["metadata", "metadata.zst"].contains(&name.as_str()))
        else {
            continue;
        };
        let mut files = dirs.remove(&prefix).unwrap_or_default();
        files.sort_by(|a, b| a.0.cmp(&b.0));
        let at = files.iter().position(|(name, _)| ["metadata", "metadata.zst"].contains(&name.as_str())).unwrap_or(at);
        let (name, metadata) = files.remove(at);
        let path = path.join(&prefix).join(name);
        let extent = metadata.map_err(|why| Error(format!("cannot read {}: {why}", path.display())))?;
        let metadata =
            unpacked(extent, &path)?.read_all(METADATA_BYTES_MAX).map_err(dormouse_directory::not_read(&path))?;
        let (hidden, files): (Vec<_>, Vec<_>) = files.into_iter().partition(|(name, _)| is_hidden(name));
        let files = files.into_iter().map(|(name, file)| match file {
            Ok(extent) => Ok((stream_name(&name).into(), Ok(unpacked(extent, &path.with_file_name(&name))?))),
            Err(why) => Ok((name, Err(why))),
        });
        let indexes = dirs.get(&format!("{prefix}index/")).into_iter().flatten();
        let indexes = indexes
            .filter_map(|(name, file)| Some((name.strip_suffix(".idx")?.to_string(), file.as_ref().ok()?.clone())));
        found.push(Found {
            metadata,
            files: files.collect::<Result<_, Error>>()?,
            indexes: indexes.collect(),
            passed_over: hidden.into_iter().map(|(name, _)| name).collect(),
            prefix,
            path,
        });
    }
    if found.is_empty() {
        let text = format!("there is no trace in {}: no directory in it has a file `metadata`", path.display());
        return Err(Error(text));
    }
    Ok(found)
}

/// Splits a path into its directory, with a `/` at its end unless it is empty, and the name of the file.
fn split(path: &Path) -> (String, String) {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_)));
    let path: PathBuf = parts.collect();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let dir = path.parent().map(|dir| dir.to_string_lossy().into_owned()).filter(|dir| !dir.is_empty());
    (dir.map_or(String::new(), |dir| dir + "/"), name)
}

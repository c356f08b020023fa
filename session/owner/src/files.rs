//! A trace's files, for those who read it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dormouse_ctf::{Merge, Metadata, Source, Stats, StreamReader};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::dir::{Dir, not_read};
use crate::error::Error;

/// No metadata of a trace are longer: all the classes that a trace may have, with long names and many fields.
const METADATA_BYTES_MAX: u64 = 1 << 30;

/// A trace on disk, opened.
#[derive(Debug)]
pub struct TraceFiles {
    /// The metadata.
    pub metadata: Metadata,
    /// What is not read, because another file has the same stream, or it is no regular file: one line each.
    pub left_out: Vec<String>,
    streams: Vec<Stream>,
}

#[derive(Debug)]
struct Stream {
    name: String,
    file: File,
    size_bytes: u64,
}

/// Memory of the windows of all streams together, if they are not too many.
const WINDOWS_BYTES: usize = 64 << 20;
/// Least and most of one: a system call should be worth it, and the second-level cache should hold it.
const WINDOW_BYTES: std::ops::RangeInclusive<usize> = 16 << 10..=128 << 10;

impl TraceFiles {
    /// Opens all files of a trace.
    ///
    /// # Errors
    /// One line.
    pub fn open(dir: &Path) -> Result<TraceFiles, Error> {
        let dir = open_dir(dir)?;
        let (path, bytes) = read_metadata(&dir)?;
        let metadata = Metadata::decode(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        let (mut streams, mut left_out) = (Vec::new(), Vec::new());
        for entry in dir.names().map_err(not_read(&dir.path))? {
            let (name, path) = (entry.to_string_lossy().into_owned(), dir.path_of(&entry));
            if name == "metadata" || name.starts_with('.') || dir.has_dir(&entry) {
                continue;
            }
            match open_one_of_many(&dir, &entry) {
                Ok(file) => {
                    let size_bytes = file.metadata().map_err(not_read(&path))?.len();
                    streams.push(Stream { name, file, size_bytes });
                }
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    left_out.push(format!("{name}: {error}, and is left out"))
                }
                Err(error) => return Err(not_read(&path)(error)),
            }
        }
        let mut files = TraceFiles { metadata, left_out, streams };
        files.leave_out_doubles();
        Ok(files)
    }

    /// Sorts the streams, and keeps one file of each: that with the name which the session gives it, if it is there.
    fn leave_out_doubles(&mut self) {
        let metadata = &self.metadata;
        let identified = std::mem::take(&mut self.streams).into_iter().map(|stream| {
            let identity = StreamReader::identity_of(metadata, stream.window(*WINDOW_BYTES.start()));
            let is_own_name = match metadata.totals.0.get(&stream.name) {
                Some(totals) => Some(totals.identity()) == identity,
                None => !metadata.totals.is_closed() && is_stream_name(&stream.name),
            };
            // The state stream first: a process has its name before its events of the same tick.
            let key = (stream.name != "state", !is_own_name, number_in(&stream.name), stream.name.clone());
            (key, identity, stream)
        });
        let mut identified: Vec<_> = identified.collect();
        identified.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        let mut first_of: HashMap<(u32, u32), String> = HashMap::new();
        for (_, identity, stream) in identified {
            let first = identity.and_then(|identity| first_of.get(&identity));
            if let Some(first) = first {
                let name = &stream.name;
                self.left_out.push(format!("{first} and {name} are the same stream: {name} is left out"));
                continue;
            }
            first_of.extend(identity.map(|identity| (identity, stream.name.clone())));
            self.streams.push(stream);
        }
    }

    /// Names of the streams, the state stream first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.streams.iter().map(|stream| stream.name.as_str())
    }

    fn windows(&self) -> impl Iterator<Item = Window<'_>> {
        let share = WINDOWS_BYTES / self.streams.len().max(1);
        let size_bytes = share.clamp(*WINDOW_BYTES.start(), *WINDOW_BYTES.end());
        self.streams.iter().map(move |stream| stream.window(size_bytes))
    }

    /// The events of all streams, which are numbered in the order of [`TraceFiles::names`].
    pub fn events(&self) -> Merge<'_, Window<'_>> {
        let windows = self.windows().enumerate();
        Merge::new(windows.map(|(index, window)| StreamReader::of_source(&self.metadata, index, window)))
    }

    /// What is missing in a trace whose [`TraceFiles::events`] have been read to the end, one line each.
    pub fn missing(&self, events: &Merge<'_, Window<'_>>) -> Vec<String> {
        let found = events.streams().iter().map(|stream| (stream.size_bytes(), stream.totals()));
        self.metadata.totals.compare(self.names().zip(found))
    }

    /// Reads all of it.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::of_sources(&self.metadata, self.names().zip(self.windows()));
        stats.warnings.splice(0..0, self.left_out.iter().cloned());
        stats
    }
}

/// Opens the directory of a trace that a user has named.
pub(crate) fn open_dir(path: &Path) -> Result<Dir, Error> {
    Dir::open(path).map_err(|error| no_trace(path, error))
}

fn no_trace(dir: &Path, error: std::io::Error) -> Error {
    if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
        return not_read(dir)(error);
    }
    let dir = dir.display();
    format!("there is no trace in {dir}: it has no file `metadata`; `dormouse record -o DIR -- CMD` makes one").into()
}

/// The metadata of a trace: where they are, and what is there.
pub(crate) fn read_metadata(dir: &Dir) -> Result<(PathBuf, Vec<u8>), Error> {
    let path = dir.path_of("metadata");
    match dir.read_all("metadata", METADATA_BYTES_MAX) {
        Ok(bytes) => Ok((path, bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(no_trace(&dir.path, error)),
        Err(error) => Err(not_read(&path)(error)),
    }
}

impl Stream {
    fn window(&self, size_bytes: usize) -> Window<'_> {
        Window { stream: self, size_bytes, offset: 0, bytes: Vec::new() }
    }
}

/// A stream's file, of which a part is in memory. Not mapped: who reads from a mapping that its file has become too short for is
/// killed (SIGBUS).
#[derive(Debug)]
pub struct Window<'a> {
    stream: &'a Stream,
    /// Bytes that are read at a time.
    size_bytes: usize,
    /// Where the part starts.
    offset: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    fn read(&mut self, offset: u64, size_bytes_min: usize) -> std::io::Result<()> {
        let rest_bytes = self.stream.size_bytes.saturating_sub(offset);
        let size_bytes = self.size_bytes.max(size_bytes_min).min(rest_bytes.try_into().unwrap_or(usize::MAX));
        self.offset = offset;
        self.bytes.resize(size_bytes, 0);
        let mut filled = 0;
        while filled < size_bytes {
            match self.stream.file.read_at(&mut self.bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.bytes.clear();
                    return Err(error);
                }
            }
        }
        self.bytes.truncate(filled);
        Ok(())
    }
}

impl Source for Window<'_> {
    fn size_bytes(&self) -> u64 {
        self.stream.size_bytes
    }

    fn fetch(&mut self, offset: u64, size_bytes_min: usize) -> std::io::Result<&[u8]> {
        let end = self.offset + self.bytes.len() as u64;
        if offset < self.offset || offset + size_bytes_min as u64 > end {
            self.read(offset, size_bytes_min)?;
        }
        Ok(self.fetched(offset))
    }

    fn fetched(&self, offset: u64) -> &[u8] {
        &self.bytes[(offset - self.offset) as usize..]
    }
}

/// Opens one of the files of a trace, which can be more than a process may have open by default. A process may raise that limit itself.
fn open_one_of_many(dir: &Dir, name: &OsStr) -> std::io::Result<File> {
    dir.read(name).or_else(|error| {
        let mut limit = getrlimit(Resource::Nofile);
        if error.raw_os_error() != Some(libc::EMFILE) || limit.current == limit.maximum {
            return Err(error);
        }
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
        dir.read(name)
    })
}

/// `cpu_3`, `claimed_0`.
pub(crate) fn is_stream_name(name: &str) -> bool {
    let number = name.strip_prefix("cpu_").or_else(|| name.strip_prefix("claimed_"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `cpu_10` comes after `cpu_9`.
fn number_in(name: &str) -> u32 {
    name.rsplit('_').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use dormouse_abi::class::{FieldType, Kind};
    use dormouse_ctf::Value;
    use dormouse_traces::TraceBuilder;

    use super::*;

    /// Text of every length, so that records stand across the ends of windows, and one that no window holds.
    #[test]
    fn windows_show_what_the_file_holds_until_it_is_shortened() {
        let mut trace = TraceBuilder::new();
        let class = trace.class("p", "e", &[("text", FieldType::scalar(Kind::Str))]);
        let stream = trace.stream(0);
        for number in 0..1000 {
            trace.event(stream, number, 1, 2, class, &[Value::Str(&vec![b'x'; number as usize])]);
        }
        trace.event(stream, 1000, 1, 2, class, &[Value::Str(&vec![b'x'; 3 * *WINDOW_BYTES.end()])]);
        trace.packet(stream, 0, 0);
        trace.event(stream, 1001, 1, 2, class, &[Value::Str(b"last")]);
        let trace = trace.finish();
        let bytes = &trace.streams[1];
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("metadata"), &trace.metadata).unwrap();
        std::fs::write(dir.path().join("cpu_0"), bytes).unwrap();

        let files = TraceFiles::open(dir.path()).unwrap();
        let expected = Stats::collect(&files.metadata, &[("cpu_0", bytes)]);
        assert_eq!((expected.events, expected.warnings.len()), (1002, 0));
        assert_eq!(files.stats(), expected);

        let shortened = OpenOptions::new().write(true).open(dir.path().join("cpu_0")).unwrap();
        shortened.set_len(300_000).unwrap();
        let stats = files.stats();
        let size_bytes = bytes.len();
        let warning = format!(
            "cpu_0: packet 0 at byte 0 cannot be read: the file was shortened from {size_bytes} to 300000 bytes meanwhile"
        );
        assert_eq!(stats.warnings, [warning]);
        // Each has 16 bytes of header, its text and a NUL.
        assert_eq!(stats.events, (1..).take_while(|n| 80 + 17 * n + n * (n - 1) / 2 <= 300_000).count() as u64);
    }
}

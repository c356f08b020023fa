//! A trace's files, for those who read it.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dormouse_ctf::{Merge, Source, Stats, StreamReader, Trace, TraceRef};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::dir::{Dir, not_read};
use crate::error::Error;

/// No metadata of a trace are longer: all the classes that a trace may have, with long names and many fields.
const METADATA_BYTES_MAX: u64 = 1 << 30;

/// A trace on disk, opened; or several that lie in one directory.
#[derive(Debug)]
pub struct TraceFiles {
    traces: Vec<Trace>,
    /// What is not read, because another file has the same stream, or it is no regular file: one line each.
    pub left_out: Vec<String>,
    streams: Vec<Stream>,
}

#[derive(Debug)]
struct Stream {
    /// Index of its trace.
    trace: usize,
    /// Its file, from the directory that the user has named.
    name: String,
    file: File,
    size_bytes: u64,
}

/// Directories in directories in which traces are looked for.
const DEPTH_MAX: usize = 32;

/// Memory of the windows of all streams together, if they are not too many.
const WINDOWS_BYTES: usize = 64 << 20;
/// Least and most of one: a system call should be worth it, and the second-level cache should hold it.
const WINDOW_BYTES: std::ops::RangeInclusive<usize> = 16 << 10..=128 << 10;

impl TraceFiles {
    /// Opens all files of a trace, or of all traces in the directories below.
    ///
    /// # Errors
    /// One line, and where metadata are wrong the place in their text.
    pub fn open(dir: &Path) -> Result<TraceFiles, Error> {
        let root = open_dir(dir)?;
        let mut files = TraceFiles { traces: Vec::new(), left_out: Vec::new(), streams: Vec::new() };
        files.find(&root, "", 0)?;
        if files.traces.is_empty() {
            return Err(no_trace(dir, ErrorKind::NotFound.into()));
        }
        Ok(files)
    }

    /// Opens what is in a directory, whose name is `prefix`. A trace has no other traces in it.
    fn find(&mut self, dir: &Dir, prefix: &str, depth: usize) -> Result<(), Error> {
        let names = dir.names().map_err(not_read(&dir.path))?;
        if names.iter().any(|name| name == "metadata" && !dir.has_dir(name)) {
            return self.open_trace(dir, prefix, names);
        }
        for name in names {
            if dir.has_dir(&name) && depth < DEPTH_MAX {
                let below = dir.open_below(&name).map_err(not_read(&dir.path_of(&name)))?;
                self.find(&below, &format!("{prefix}{}/", name.to_string_lossy()), depth + 1)?;
            }
        }
        Ok(())
    }

    fn open_trace(&mut self, dir: &Dir, prefix: &str, names: Vec<OsString>) -> Result<(), Error> {
        let (path, bytes) = read_metadata(dir)?;
        let trace = Trace::decode(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut streams = Vec::new();
        for entry in names {
            let (name, path) = (entry.to_string_lossy().into_owned(), dir.path_of(&entry));
            if name == "metadata" || name.starts_with('.') || dir.has_dir(&entry) {
                continue;
            }
            match open_one_of_many(dir, &entry) {
                Ok(file) => {
                    let size_bytes = file.metadata().map_err(not_read(&path))?.len();
                    let name = format!("{prefix}{name}");
                    streams.push(Stream { trace: self.traces.len(), name, file, size_bytes });
                }
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    self.left_out.push(format!("{prefix}{name}: {error}, and is left out"))
                }
                Err(error) => return Err(not_read(&path)(error)),
            }
        }
        self.leave_out_doubles(&trace, prefix, streams);
        self.traces.push(trace);
        Ok(())
    }

    /// Adds the streams of a trace. Of those of Dormouse it sorts them, and keeps one file of each: that with the name which the session
    /// gives it, if it is there.
    fn leave_out_doubles(&mut self, trace: &Trace, prefix: &str, streams: Vec<Stream>) {
        let Some(metadata) = &trace.own else { return self.streams.extend(streams) };
        let identified = streams.into_iter().map(|stream| {
            let identity = StreamReader::identity_of(metadata, stream.window(*WINDOW_BYTES.start()));
            let name = stream.name.strip_prefix(prefix).unwrap_or(&stream.name);
            let is_own_name = match metadata.totals.0.get(name) {
                Some(totals) => Some(totals.identity()) == identity,
                None => !metadata.totals.is_closed() && is_stream_name(name),
            };
            // The state stream first: a process has its name before its events of the same tick.
            let key = (name != "state", !is_own_name, number_in(name), name.to_string());
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

    /// The traces.
    pub fn traces(&self) -> impl Iterator<Item = TraceRef<'_>> {
        self.traces.iter().map(TraceRef::from)
    }

    /// A reader of each stream, in the order of [`TraceFiles::names`], with the index of its trace.
    pub fn readers(&self) -> impl Iterator<Item = (usize, StreamReader<'_, Window<'_>>)> {
        let windows = self.streams.iter().zip(self.windows()).enumerate();
        windows.map(|(index, (stream, window))| {
            (stream.trace, StreamReader::of_source(self.trace_of(stream), index, window))
        })
    }

    /// The trace of a stream.
    fn trace_of(&self, stream: &Stream) -> TraceRef<'_> {
        TraceRef::from(&self.traces[stream.trace])
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
        Merge::new(self.readers().map(|(_, reader)| reader))
    }

    /// What is missing in traces whose [`TraceFiles::events`] have been read to the end, one line each.
    pub fn missing(&self, events: &Merge<'_, Window<'_>>) -> Vec<String> {
        dormouse_ctf::stats::missing(self.traces.iter().map(TraceRef::from), self.names().zip(events.streams()))
    }

    /// Reads all of it.
    pub fn stats(&self) -> Stats {
        let traces: Vec<TraceRef<'_>> = self.traces.iter().map(TraceRef::from).collect();
        let streams = self.streams.iter().zip(self.windows());
        let streams = streams.map(|(stream, window)| (stream.trace, stream.name.as_str(), window));
        let mut stats = Stats::of_traces(&traces, streams);
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
    let shown = dir.display();
    if let Some(trace) = dir.ancestors().skip(1).find(|above| above.join("metadata").is_file()) {
        return format!("{shown} lies in the trace {0}: give its directory, {0}", trace.display()).into();
    }
    format!("there is no trace in {shown}: neither it nor a directory below has a file `metadata`; `dormouse record -o DIR -- CMD` makes one").into()
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
        let expected = Stats::collect(files.traces[0].own.as_ref().unwrap(), &[("cpu_0", bytes)]);
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

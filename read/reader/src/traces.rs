//! Opens traces on disk.

use std::path::Path;

use dormouse_ctf::stats::{Collector, Tally};
use dormouse_ctf::{Correction, Merge, StatedLosses, Stats, StreamReader, Trace, TraceRef, Writers};

use crate::extent::{WINDOW_BYTES, Window};
use crate::find::{Found, find};
use crate::index::Index;
use crate::streams::Stream;
use crate::{Error, archive, spool, streams};

/// One or several open traces on disk.
#[derive(Debug, Default)]
pub struct TraceFiles {
    traces: Vec<Trace>,
    /// Files that are not read, because another file has the same stream, or because they are not streams: one line
    /// each.
    pub left_out: Vec<String>,
    /// Files that are passed over, because they belong to a trace without being streams: one line each.
    pub notes: Vec<String>,
    pub(crate) streams: Vec<Stream>,
}

/// The events of streams in their order.
pub type Events<'a> = Merge<'a, Window<'a>>;

/// Memory of the windows of all streams together, unless there are too many streams.
const WINDOWS_BYTES: usize = 64 << 20;

/// Number of bytes at both ends of a stream that identify it.
const EDGE_BYTES: usize = 4 << 10;

/// Number of attempts to read metadata that end within a declaration, and the time between two attempts.
const ATTEMPTS: u32 = 25;
const MOMENT: std::time::Duration = std::time::Duration::from_millis(20);

impl TraceFiles {
    /// Opens all files of a trace, or of all traces in the directories below; an archive (tar, possibly compressed by
    /// gzip or zstd); or `-`, an archive on standard input.
    ///
    /// # Errors
    /// One line. For invalid metadata it includes the position in their text.
    pub fn open(path: &Path) -> Result<TraceFiles, Error> {
        TraceFiles::open_all([path])
    }

    /// Opens several traces, see [`TraceFiles::open`].
    ///
    /// # Errors
    /// The first error of opening one of them.
    pub fn open_all<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Result<TraceFiles, Error> {
        let mut files = TraceFiles::default();
        let paths: Vec<&Path> = paths.into_iter().collect();
        for path in &paths {
            let mut found = Vec::new();
            if *path == Path::new("-") {
                found = archive::traces(&spool::standard_input()?, Path::new("standard input"))?;
            } else if let Some(file) = open_archive(path) {
                found = archive::traces(&spool::file(path, file)?, path)?;
            } else {
                find(&dormouse_directory::open_dir(path)?, "", 0, &mut found)?;
            }
            if found.is_empty() {
                return Err(dormouse_directory::no_trace(path, std::io::ErrorKind::NotFound.into()));
            }
            for mut found in found {
                // With several paths, the names of streams include the path that the user has given.
                if paths.len() > 1 {
                    found.prefix = format!("{}/{}", path.display().to_string().trim_end_matches('/'), found.prefix);
                }
                files.add(found)?;
            }
        }
        Ok(files)
    }

    /// Opens a trace that is still written, see [`TraceFiles::open`]. It reads those packets that exist now and are
    /// complete. Metadata are read after the sizes of streams, so they declare everything in these packets.
    ///
    /// # Errors
    /// See [`TraceFiles::open`].
    pub fn open_growing(path: &Path) -> Result<TraceFiles, Error> {
        let before = TraceFiles::open_whole(path)?;
        let mut files = TraceFiles::open_whole(path)?;
        for stream in &mut files.streams {
            let known = before.streams.iter().find(|known| known.name == stream.name);
            stream.growing = Some(known.map_or(0, |known| known.extent.size_bytes));
        }
        Ok(files)
    }

    /// Opens a trace whose metadata may end within a declaration.
    fn open_whole(path: &Path) -> Result<TraceFiles, Error> {
        for _ in 0..ATTEMPTS {
            if let Ok(files) = TraceFiles::open(path) {
                return Ok(files);
            }
            // A declaration is written at once, so it is complete a moment later. There is no notification of that.
            std::thread::sleep(MOMENT);
        }
        TraceFiles::open(path)
    }

    fn add(&mut self, found: Found) -> Result<(), Error> {
        let Found { prefix, path, metadata, files, mut indexes, passed_over } = found;
        let trace = Trace::decode(&metadata).map_err(|error| format!("{}: {error}", path.display()))?;
        self.notes.extend(passed_over.iter().map(|name| format!("{prefix}{name} is no stream and is passed over")));
        let mut present = Vec::new();
        for (name, file) in files {
            match file {
                Ok(extent) => present.push((name, extent)),
                Err(why) => self.left_out.push(format!("{prefix}{name}: {why}, and is left out")),
            }
        }
        let mut streams = streams::of_trace(&trace, self.traces.len(), &prefix, present, &mut self.left_out);
        for stream in &mut streams {
            let name = stream.name.strip_prefix(&prefix).unwrap_or(&stream.name);
            let at = indexes.iter().position(|(of, _)| of == name);
            stream.index = at.map(|at| indexes.swap_remove(at).1);
        }
        self.streams.extend(streams);
        self.traces.push(trace);
        Ok(())
    }

    /// Splits into single traces. `left_out` and `notes` go to the first one.
    pub fn each(mut self) -> Vec<TraceFiles> {
        let mut all: Vec<TraceFiles> = Vec::new();
        for trace in self.traces.drain(..) {
            all.push(TraceFiles { traces: vec![trace], ..TraceFiles::default() });
        }
        for mut stream in self.streams.drain(..) {
            let of = &mut all[std::mem::take(&mut stream.trace)];
            of.streams.push(stream);
        }
        if let Some(first) = all.first_mut() {
            (first.left_out, first.notes) = (self.left_out, self.notes);
        }
        all
    }

    /// Passes what identifies the streams to `show`, independent of the trace's path: name in the directory, length,
    /// and the first and the last bytes.
    ///
    /// # Errors
    /// Reading failed.
    pub fn show_edges(&self, show: &mut dyn FnMut(&[u8])) -> std::io::Result<()> {
        let name = |stream: &Stream| stream.name.rsplit('/').next().unwrap_or_default().to_owned();
        let mut streams: Vec<(String, &Stream)> = self.streams.iter().map(|stream| (name(stream), stream)).collect();
        streams.sort_by(|a, b| (&a.0, a.1.extent.size_bytes).cmp(&(&b.0, b.1.extent.size_bytes)));
        let mut bytes = vec![0; EDGE_BYTES];
        for (name, stream) in streams {
            let size_bytes = stream.extent.size_bytes;
            show(name.as_bytes());
            show(&size_bytes.to_le_bytes());
            for begin in [0, size_bytes.saturating_sub(EDGE_BYTES as u64)] {
                let count = stream.extent.read_at(&mut bytes, begin)?;
                show(&bytes[..count]);
            }
        }
        Ok(())
    }

    /// Returns the trace of a stream.
    fn trace_of(&self, stream: &Stream) -> TraceRef<'_> {
        TraceRef::from(&self.traces[stream.trace])
    }

    /// Returns the traces.
    pub fn traces(&self) -> impl Iterator<Item = TraceRef<'_>> {
        self.traces.iter().map(TraceRef::from)
    }

    /// Sets the correction of a trace's times, by its index in [`TraceFiles::described`].
    pub fn correct(&mut self, trace: usize, correction: Correction) {
        self.traces[trace].correction = Some(correction);
    }

    /// Returns the metadata of each trace.
    pub fn described(&self) -> &[Trace] {
        &self.traces
    }

    /// Returns a reader of each stream, in the order of [`TraceFiles::names`], with the index of its trace.
    pub fn readers(&self) -> impl Iterator<Item = (usize, StreamReader<'_, Window<'_>>)> {
        self.streams.iter().enumerate().map(|(index, stream)| (stream.trace, self.reader(index)))
    }

    /// Returns the names of the streams, the state stream first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.streams.iter().map(|stream| stream.name.as_str())
    }

    /// Whether a stream, by its number in [`TraceFiles::names`], is the state stream of a Dormouse session, which has
    /// no events of programs.
    pub fn is_state(&self, index: usize) -> bool {
        let stream = &self.streams[index];
        self.traces[stream.trace].own.is_some() && stream.name.rsplit('/').next() == Some("state")
    }

    /// Writes the bytes of a stream, by its number in [`TraceFiles::names`], without change. Returns their number.
    ///
    /// # Errors
    /// Reading or writing failed.
    ///
    /// # Panics
    /// There is no such stream.
    pub fn copy_stream(&self, index: usize, to: &mut dyn std::io::Write) -> std::io::Result<u64> {
        let extent = &self.streams[index].extent;
        let (mut bytes, mut offset) = (vec![0; *WINDOW_BYTES.end()], 0);
        loop {
            let count = extent.read_at(&mut bytes, offset)?;
            if count == 0 {
                return Ok(offset);
            }
            to.write_all(&bytes[..count])?;
            offset += count as u64;
        }
    }

    /// Returns the processes of all traces with their last names, from the state streams.
    pub fn writers(&self) -> Writers {
        let mut writers = Writers::default();
        let state = (0..self.stream_count()).filter(|index| self.is_state(*index));
        let mut events = Merge::new(state.map(|index| self.reader(index)));
        while let Some(item) = events.next_event() {
            if let Ok(event) = item
                && let Some(record) = event.state_record()
            {
                writers.note(&event, &record);
            }
        }
        writers
    }

    /// Returns the number of streams.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    fn window_bytes(&self) -> usize {
        (WINDOWS_BYTES / self.streams.len().max(1)).clamp(*WINDOW_BYTES.start(), *WINDOW_BYTES.end())
    }

    /// Returns a reader of one stream, by its number in [`TraceFiles::names`].
    ///
    /// # Panics
    /// There is no such stream.
    pub fn reader(&self, index: usize) -> StreamReader<'_, Window<'_>> {
        self.reader_by(index, self.window_bytes())
    }

    /// Returns a reader of one stream with a window of this size.
    pub(crate) fn reader_by(&self, index: usize, window_bytes: usize) -> StreamReader<'_, Window<'_>> {
        let stream = &self.streams[index];
        let reader = StreamReader::of_source(self.trace_of(stream), index, stream.extent.window(window_bytes));
        match stream.growing {
            Some(size_bytes) => reader.growing(size_bytes),
            None => reader,
        }
    }

    /// Returns a window on a stream that reuses the memory of another.
    pub(crate) fn window_in(&self, index: usize, memory: Vec<u8>) -> Window<'_> {
        self.streams[index].extent.window_in(*WINDOW_BYTES.end(), memory)
    }

    /// Returns the events of all streams. Streams are numbered in the order of [`TraceFiles::names`].
    pub fn events(&self) -> Merge<'_, Window<'_>> {
        Merge::new(self.readers().map(|(_, reader)| reader))
    }

    /// Returns the events between two times, in nanoseconds since the epoch, see [`StreamReader::within`].
    pub fn events_within(&self, first_ns: i64, last_ns: i64) -> Merge<'_, Window<'_>> {
        self.range(first_ns, last_ns).0
    }

    /// Returns the events between two times, and the index files that cannot be used to find the begin, one line each.
    pub fn range(&self, first_ns: i64, last_ns: i64) -> (Merge<'_, Window<'_>>, Vec<String>) {
        let mut notes = Vec::new();
        let readers: Vec<_> = (0..self.streams.len())
            .map(|number| {
                let mut reader = self.reader(number).within(first_ns, last_ns);
                let Stream { name, index, .. } = &self.streams[number];
                let window =
                    index.as_ref().filter(|_| reader.is_bounded()).map(|index| index.window(*WINDOW_BYTES.start()));
                let seek = |window| Index::open(window)?.seek(&mut reader, first_ns);
                if let Some(Err(error)) = window.map(seek) {
                    notes.push(format!("the index of {name} {error}, and is passed over"));
                }
                reader
            })
            .collect();
        (Merge::new(readers), notes)
    }

    /// Returns the time of the last event, see [`StreamReader::end_ns`].
    pub fn end_ns(&self) -> Option<i64> {
        self.readers().filter_map(|(_, reader)| reader.end_ns()).max()
    }

    /// Returns the losses that the state streams report, up to their ends.
    pub fn stated_losses(&self) -> StatedLosses {
        let mut losses = StatedLosses::default();
        let readers = (0..self.streams.len()).filter(|index| self.is_state(*index)).map(|index| self.reader(index));
        let mut events = Merge::new(readers);
        while let Some(item) = events.next_event() {
            if let Some(record) = item.ok().and_then(|event| event.state_record()) {
                losses.note(&record);
            }
        }
        losses
    }

    /// Returns the missing parts of traces whose [`TraceFiles::events`] were read to the end, one line each; nothing if
    /// only a part of the time was selected.
    pub fn missing(&self, events: &Merge<'_, Window<'_>>) -> Vec<String> {
        if events.streams().iter().any(StreamReader::is_bounded) {
            return Vec::new();
        }
        dormouse_ctf::stats::missing(self.traces(), self.names().zip(events.streams()))
    }

    /// Reads everything, on several threads.
    pub fn stats(&self) -> Stats {
        let traces: Vec<TraceRef<'_>> = self.traces().collect();
        // Only the beginning of most streams is read here.
        let reader = |index: usize| self.reader_by(index, *WINDOW_BYTES.start());
        let streams = self.streams.iter().enumerate();
        let streams = streams.map(|(index, stream)| (stream.trace, stream.name.as_str(), reader(index)));
        let collector = Collector::new(&traces, streams);
        let (tallies, parts) = self.in_parts(collector.others().collect(), |tally, part| collector.count(tally, part));
        let mut tally = Tally::default();
        tallies.into_iter().for_each(|other| tally.add(other));
        let mut stats = collector.finish(tally, parts);
        stats.warnings.splice(0..0, self.left_out.iter().cloned());
        stats
    }
}

/// Opens a regular file that a user has named, unless it is a file in a trace's directory.
fn open_archive(path: &Path) -> Option<std::fs::File> {
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let is_in_trace = path.parent().is_some_and(|dir| dir.join("metadata").is_file());
    (is_file && !is_in_trace).then(|| std::fs::File::open(path).ok())?
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use dormouse_abi::class::{FieldType, Kind};
    use dormouse_ctf::Value;
    use dormouse_traces::TraceBuilder;

    use dormouse_ctf::Stats;

    use super::*;

    /// Texts of every length, so that records cross the ends of windows, and one that no window holds.
    #[test]
    fn windows_show_the_file_until_it_is_truncated() {
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
        // Each record has 16 bytes of header, its text and a NUL.
        assert_eq!(stats.events, (1..).take_while(|n| 80 + 17 * n + n * (n - 1) / 2 <= 300_000).count() as u64);
    }
}

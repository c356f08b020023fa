//! Cuts streams into parts, which several threads read at once.
//!
//! ```text
//!   streams ─▶ StreamReader::cut (only headers of packets, one thread at a time) ─▶ parts of 1 MiB ─▶ as many threads as CPUs
//! ```
//! One long stream keeps all CPUs as busy as many short ones. Results of parts are returned in the order of streams and
//! parts; sums are kept by each thread until the end.

use std::sync::{Mutex, PoisonError};

use dormouse_ctf::StreamReader;

use crate::extent::Window;
use crate::traces::TraceFiles;

/// Size of a part in bytes: reading it costs far more than finding its end, and the last part does not keep the other
/// threads waiting for long.
const PART_BYTES: u64 = 1 << 20;
/// Number of bytes that are read to find the next packet, most of which are not used.
const HEADER_WINDOW_BYTES: usize = 512;

/// Parts of streams. Several threads can take the next part, under a lock. Together the parts hold the whole streams.
#[derive(Debug)]
pub struct Parts<'f> {
    files: &'f TraceFiles,
    /// First and last selected time.
    times: (i64, i64),
    streams: std::vec::IntoIter<usize>,
    /// The stream that is being cut, its number, and the number of its last part.
    cut: Option<(StreamReader<'f, Window<'f>>, usize, u32)>,
}

impl TraceFiles {
    /// Cuts these streams into parts. `times`: the selected time, see [`StreamReader::within`].
    pub fn parts(&self, streams: Vec<usize>, times: (i64, i64)) -> Parts<'_> {
        Parts { files: self, times, streams: streams.into_iter(), cut: None }
    }

    /// Returns the size of a stream, by its number in [`TraceFiles::names`].
    pub fn stream_size_bytes(&self, index: usize) -> u64 {
        self.streams[index].extent.size_bytes
    }

    /// Reads these streams in parts, on as many threads as there are CPUs. `read` reads a part; each thread has its own
    /// `S` for sums. Returns all `S`, and the results of the parts with the numbers of their streams, in order.
    pub(crate) fn in_parts<'f, S: Default + Send, P: Send>(
        &'f self,
        streams: Vec<usize>,
        read: impl Fn(&mut S, StreamReader<'f, Window<'f>>) -> P + Sync,
    ) -> (Vec<S>, Vec<(usize, P)>) {
        let size_bytes: u64 = streams.iter().map(|index| self.stream_size_bytes(*index)).sum();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(usize::try_from(size_bytes / PART_BYTES).unwrap_or(usize::MAX)).max(1);
        let left = Mutex::new(self.parts(streams, (i64::MIN, i64::MAX)));
        let done = Mutex::new((Vec::new(), Vec::new()));
        let work = || {
            let (mut sum, mut found) = (S::default(), Vec::new());
            loop {
                let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(Part { stream, number: part, reader, .. }) = next else { break };
                found.push((stream, part, read(&mut sum, reader)));
            }
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.0.push(sum);
            done.1.extend(found);
        };
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        let (sums, mut parts) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        parts.sort_by_key(|(stream, part, _)| (*stream, *part));
        (sums, parts.into_iter().map(|(stream, _, found)| (stream, found)).collect())
    }
}

/// A part of a stream.
#[derive(Debug)]
pub struct Part<'f> {
    /// Number of the stream in [`TraceFiles::names`].
    pub stream: usize,
    /// Index of its trace.
    pub trace: usize,
    /// Number of the part within the stream.
    pub number: u32,
    /// Reader of the part.
    pub reader: StreamReader<'f, Window<'f>>,
}

impl<'f> Iterator for Parts<'f> {
    type Item = Part<'f>;

    fn next(&mut self) -> Option<Part<'f>> {
        loop {
            if let Some((cut, stream, number)) = &mut self.cut
                && let Some(reader) = cut.cut(PART_BYTES, self.files.window_in(*stream, Vec::new()))
            {
                *number += 1;
                let trace = self.files.streams[*stream].trace;
                return Some(Part { stream: *stream, trace, number: *number, reader });
            }
            let stream = self.streams.next()?;
            let (first_ns, last_ns) = self.times;
            let reader = self.files.reader_by(stream, HEADER_WINDOW_BYTES);
            let is_bounded = self.times != (i64::MIN, i64::MAX);
            let reader = if is_bounded { reader.within(first_ns, last_ns) } else { reader };
            self.cut = Some((reader, stream, 0));
        }
    }
}

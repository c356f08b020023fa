//! The event streams' files of a trace that is being written.

use std::path::{Path, PathBuf};

use dormouse_abi::page::HEADER_SIZE_BYTES;
use dormouse_ctf::{Classes, PacketHeader, StreamTotals, Totals, count_records};

use crate::error::Error;
use crate::pages::Pages;
use crate::summary::Summary;
use crate::trace::{GrowingFile, Trace, not_written};

/// Space that is set aside at a time in a stream's file: one look for free blocks for many pages, and all in one place. Next to none
/// in files that last as long as one input of a fuzzer.
const RESERVE_BYTES: u64 = if cfg!(feature = "fuzzing") { 1 } else { 4 << 20 };

/// The file of one event stream, made with its first packet.
pub(crate) struct StreamFile {
    path: PathBuf,
    file: Option<GrowingFile>,
    /// Up to where the file system has set space aside; `u64::MAX` where it cannot.
    set_aside: u64,
    /// `timestamp_begin` of the first packet.
    begin: u64,
    totals: StreamTotals,
}

impl StreamFile {
    /// None yet.
    pub(crate) fn new(path: PathBuf) -> StreamFile {
        StreamFile { path, file: None, set_aside: 0, begin: 0, totals: StreamTotals::default() }
    }

    /// Appends a packet of so many events, whose header is to be `header` and whose bytes are `packet`: all or nothing.
    pub(crate) fn append(&mut self, header: &PacketHeader, packet: &mut [u8], events: u64) -> Result<(), Error> {
        packet[..HEADER_SIZE_BYTES].copy_from_slice(&header.encode());
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(GrowingFile::create(&self.path, &[])?),
        };
        let size_bytes = packet.len() as u64;
        if file.len + size_bytes > self.set_aside {
            // Where no space can be set aside, the write itself will tell.
            let fresh = RESERVE_BYTES.max(size_bytes);
            self.set_aside = file.set_space_aside(fresh).map_or(u64::MAX, |()| file.len + fresh);
        }
        file.append(packet).map_err(|error| not_written(&self.path, error))?;
        if self.totals.packets == 0 {
            self.begin = header.timestamp_begin;
        }
        self.totals = StreamTotals {
            stream_id: header.stream_id,
            stream_instance_id: header.stream_instance_id,
            events: self.totals.events + events,
            packets: self.totals.packets + 1,
            events_discarded: header.events_discarded,
        };
        Ok(())
    }

    /// Gives back what was set aside and not used.
    pub(crate) fn finish(&self) {
        if let Some(file) = self.file.as_ref().filter(|file| self.set_aside > file.len) {
            file.release_space();
        }
    }

    /// Removes the file, if it was made.
    pub(crate) fn remove(&self) {
        if self.file.is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What such files hold, by their names.
pub(crate) fn totals_of<'a>(files: impl IntoIterator<Item = &'a StreamFile>) -> Totals {
    let files = files.into_iter().filter(|file| file.totals.packets > 0);
    let name = |file: &StreamFile| file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Totals(files.map(|file| (name(file), file.totals)).collect())
}

/// The event streams' files of a session's trace, or of a snapshot.
pub(crate) struct StreamFiles<'a> {
    trace: &'a Trace,
    files: Vec<StreamFile>,
    classes: Classes,
    /// What was written, and what was not.
    pub(crate) tally: Summary,
}

impl<'a> StreamFiles<'a> {
    /// None yet. `dir` is where they are to be; classes are those of the session's trace.
    pub(crate) fn new(pages: Pages, trace: &'a Trace, dir: &Path) -> StreamFiles<'a> {
        let streams = 0..pages.memory.geometry().stream_count;
        let files = streams.map(|stream| StreamFile::new(dir.join(pages.name_of(stream)))).collect();
        StreamFiles { trace, files, classes: trace.classes(), tally: Summary::default() }
    }

    /// What a stream has here so far.
    pub(crate) fn so_far(&self, stream: u32) -> &StreamTotals {
        &self.files[stream as usize].totals
    }

    /// Writes a packet whose header is to be `header`, and whose bytes, of the packet's size, are `packet`.
    pub(crate) fn write(&mut self, stream: u32, header: &PacketHeader, packet: &mut [u8]) {
        let content_len = header.content_size_bytes as usize;
        let mut counted = count_records(packet, content_len, &self.classes);
        if counted.is_err() {
            // A class that came since the last look.
            self.classes = self.trace.classes();
            counted = count_records(packet, content_len, &self.classes);
        }
        let Ok(events) = counted else {
            self.tally.packets_refused += 1;
            return;
        };
        match self.files[stream as usize].append(header, packet, events) {
            Ok(()) => {
                self.tally.bytes += packet.len() as u64;
                self.tally.events += events;
            }
            Err(error) => {
                self.tally.lost_on_disk += events;
                self.tally.write_error.get_or_insert(error.to_string());
            }
        }
    }

    /// Takes back what a stream has so far, and gives the number of packets. What cannot be taken back stays, and readers tell of
    /// the gap behind it.
    pub(crate) fn take_back(&mut self, stream: u32) -> u64 {
        let target = &mut self.files[stream as usize];
        let Some(file) = &mut target.file else { return 0 };
        let size_bytes = file.len;
        if file.clear().is_err() {
            return 0;
        }
        target.set_aside = 0;
        let StreamTotals { events, packets, .. } = std::mem::take(&mut target.totals);
        self.tally.bytes -= size_bytes;
        self.tally.events -= events;
        packets
    }

    /// `timestamp_begin` of the oldest packet.
    pub(crate) fn begin(&self) -> Option<u64> {
        self.files.iter().filter(|file| file.totals.packets > 0).map(|file| file.begin).min()
    }

    /// What the files hold.
    pub(crate) fn totals(&self) -> Totals {
        totals_of(&self.files)
    }

    /// Removes the files that were made.
    pub(crate) fn remove(&self) {
        self.files.iter().for_each(StreamFile::remove);
    }

    /// Gives back what was set aside and not used.
    pub(crate) fn finish(&self) {
        self.files.iter().for_each(StreamFile::finish);
    }
}

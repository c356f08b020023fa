//! The event streams' files of a trace that is being written.

use dormouse_abi::page::HEADER_SIZE_BYTES;
use dormouse_ctf::{Classes, count_records};
use dormouse_format::{Cause, PacketHeader, StreamTotals, Totals};

use crate::dir::{Dir, not_written};
use crate::error::Error;
use crate::ledger::{Entry, NotKept, Tally};
use crate::pages::Pages;
use crate::quota::KEPT_FOR_STATE_BYTES;
use crate::summary::Summary;
use crate::trace::{GrowingFile, Trace};

/// Space that is set aside at a time in a stream's file, in bytes: one allocation for many pages, and contiguous. Close
/// to zero for fuzzing, where files last as long as one input.
const RESERVE_BYTES: u64 = if cfg!(feature = "fuzzing") { 1 } else { 4 << 20 };

/// The file of one event stream, created with its first packet.
pub(crate) struct StreamFile {
    name: String,
    file: Option<GrowingFile>,
    /// File size up to which space has been set aside; `u64::MAX` if the file system cannot set space aside.
    set_aside: u64,
    /// `timestamp_begin` of the first packet.
    begin: u64,
    totals: StreamTotals,
}

impl StreamFile {
    /// Returns a stream without a file yet.
    pub(crate) fn new(name: String) -> StreamFile {
        StreamFile { name, file: None, set_aside: 0, begin: 0, totals: StreamTotals::default() }
    }

    /// Takes up the file in `dir`, as far as the ledger goes.
    fn take_up(dir: &Dir, name: String, stream: u32, entry: &Entry) -> Result<StreamFile, Error> {
        if entry.packets == 0 {
            // Removes what an owner that was killed has begun.
            dir.remove(&name);
            return Ok(StreamFile::new(name));
        }
        let file = GrowingFile::take_up(dir, &name, entry.len)?;
        Ok(StreamFile { name, file: Some(file), set_aside: 0, begin: entry.begin, totals: entry.totals(stream) })
    }

    /// Appends a packet with `events` events to the file in `dir`, completely or not at all. `packet` is its bytes, the
    /// beginning of which is replaced by `header`.
    pub(crate) fn append(
        &mut self,
        dir: &Dir,
        header: &PacketHeader,
        packet: &mut [u8],
        events: u64,
    ) -> Result<(), Error> {
        packet[..HEADER_SIZE_BYTES].copy_from_slice(&header.encode());
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(GrowingFile::create(dir, &self.name, &[])?),
        };
        let size_bytes = packet.len() as u64;
        if file.len + size_bytes > self.set_aside {
            // If no space can be set aside, the write itself reports a full disk.
            let fresh = RESERVE_BYTES.max(size_bytes);
            self.set_aside = file.set_space_aside(fresh).map_or(u64::MAX, |()| file.len + fresh);
        }
        file.append(packet).map_err(|error| not_written(&dir.path_of(&self.name), &error))?;
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

    /// Releases the space that was set aside and not used.
    pub(crate) fn finish(&self) {
        if let Some(file) = self.file.as_ref().filter(|file| self.set_aside > file.len) {
            file.release_space();
        }
    }

    /// Removes the file, if it was created.
    pub(crate) fn remove(&self, dir: &Dir) {
        if self.file.is_some() {
            dir.remove(&self.name);
        }
    }
}

/// Returns the contents of files, by their names.
pub(crate) fn totals_of<'a>(files: impl IntoIterator<Item = &'a StreamFile>) -> Totals {
    let files = files.into_iter().filter(|file| file.totals.packets > 0);
    Totals(files.map(|file| (file.name.clone(), file.totals)).collect())
}

/// The event streams' files of a session's trace, or of a snapshot.
pub(crate) struct StreamFiles<'a> {
    trace: &'a Trace,
    dir: &'a Dir,
    files: Vec<StreamFile>,
    classes: Classes,
    /// Whether the quota is used up. Nothing more is written then: packets after a gap are worth less than a complete
    /// beginning.
    is_full: bool,
    /// Counts of written events and of losses.
    pub(crate) tally: Summary,
    /// Counts of events that were not to be written.
    pub(crate) not_kept: NotKept,
}

impl<'a> StreamFiles<'a> {
    /// Returns streams without files yet. The files will be in `dir`; classes are those of the session's trace.
    pub(crate) fn new(pages: Pages, trace: &'a Trace, dir: &'a Dir) -> StreamFiles<'a> {
        let streams = 0..pages.memory.geometry().stream_count;
        let files = streams.map(|stream| StreamFile::new(pages.name_of(stream))).collect();
        let (tally, not_kept) = (Summary::default(), NotKept::default());
        StreamFiles { trace, dir, files, classes: trace.classes(), is_full: false, tally, not_kept }
    }

    /// Takes up the files of the session's trace, as far as its ledger goes.
    pub(crate) fn take_up(pages: Pages, trace: &'a Trace) -> Result<StreamFiles<'a>, Error> {
        let (dir, ledger) = (&trace.dir, &trace.ledger);
        let take_up = |stream| StreamFile::take_up(dir, pages.name_of(stream), stream, &ledger.entry(stream));
        let files = (0..pages.memory.geometry().stream_count).map(take_up).collect::<Result<_, _>>()?;
        let Tally { events, bytes, is_full, losses, not_kept } = ledger.tally();
        let text = "the owner before this one has ended since then, with the reason";
        let write_error = (losses.of(Cause::WriteFailed) > 0).then(|| text.to_string());
        let tally = Summary { events, bytes, losses, write_error, ..Summary::default() };
        Ok(StreamFiles { trace, dir, files, classes: trace.classes(), is_full, tally, not_kept })
    }

    /// Commits the result for a page of a stream, of which `taken` pages have been taken.
    pub(crate) fn commit(&self, stream: u32, taken: u64, is_refused: bool) {
        let StreamFile { file, begin, totals, .. } = &self.files[stream as usize];
        let StreamTotals { packets, events, events_discarded, .. } = *totals;
        let len = file.as_ref().map_or(0, |file| file.len);
        let entry = Entry { len, begin: *begin, packets, events, events_discarded, taken, is_refused };
        let Summary { events, bytes, losses, .. } = &self.tally;
        let (losses, not_kept) = (losses.clone(), self.not_kept.clone());
        let tally = Tally { events: *events, bytes: *bytes, is_full: self.is_full, losses, not_kept };
        self.trace.ledger.commit_drained(stream, entry, &tally);
    }

    /// Returns the totals of a stream so far.
    pub(crate) fn so_far(&self, stream: u32) -> &StreamTotals {
        &self.files[stream as usize].totals
    }

    /// Writes a packet. `packet` is its bytes, the beginning of which is replaced by `header`.
    pub(crate) fn write(&mut self, stream: u32, header: &PacketHeader, packet: &mut [u8]) {
        let content_len = header.content_size_bytes as usize;
        let mut counted = count_records(packet, content_len, &self.classes);
        if counted.is_err() {
            // The packet has a class that was declared since the last look.
            self.classes = self.trace.classes();
            counted = count_records(packet, content_len, &self.classes);
        }
        let Ok(events) = counted else {
            return self.tally.losses.add(Cause::PacketRefused, 1);
        };
        let size_bytes = packet.len() as u64;
        self.is_full = self.is_full || !self.trace.quota().take(size_bytes, KEPT_FOR_STATE_BYTES);
        if self.is_full {
            return self.tally.losses.add(Cause::DiskMax, events);
        }
        match self.files[stream as usize].append(self.dir, header, packet, events) {
            Ok(()) => {
                self.tally.bytes += size_bytes;
                self.tally.events += events;
            }
            Err(error) => {
                self.trace.quota().give_back(size_bytes);
                self.tally.losses.add(Cause::WriteFailed, events);
                self.tally.write_error.get_or_insert(error.to_string());
            }
        }
    }

    /// Removes what a stream has so far, and returns the number of packets. If it cannot be removed, it stays, and
    /// readers report the gap after it.
    pub(crate) fn take_back(&mut self, stream: u32) -> u64 {
        let target = &mut self.files[stream as usize];
        let Some(file) = &mut target.file else { return 0 };
        let size_bytes = file.len;
        if file.clear().is_err() {
            return 0;
        }
        self.trace.quota().give_back(size_bytes);
        target.set_aside = 0;
        let StreamTotals { events, packets, .. } = std::mem::take(&mut target.totals);
        self.tally.bytes -= size_bytes;
        self.tally.events -= events;
        packets
    }

    /// Returns `timestamp_begin` of the oldest packet.
    pub(crate) fn begin(&self) -> Option<u64> {
        self.files.iter().filter(|file| file.totals.packets > 0).map(|file| file.begin).min()
    }

    /// Returns the totals of the files.
    pub(crate) fn totals(&self) -> Totals {
        totals_of(&self.files)
    }

    /// Removes the files that were created.
    pub(crate) fn remove(&self) {
        self.files.iter().for_each(|file| file.remove(self.dir));
        self.trace.quota().give_back(self.tally.bytes);
    }

    /// Releases the space that was set aside and not used.
    pub(crate) fn finish(&self) {
        self.files.iter().for_each(StreamFile::finish);
    }
}

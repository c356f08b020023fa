//! The event streams' files of a trace that is being written.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dormouse_abi::page::STREAM_EVENTS;
use dormouse_ctf::{Classes, PacketHeader, StreamTotals, Totals, count_records};
use rustix::fs::FallocateFlags;

use crate::pages::{DISCARDED_MAX, Pages};
use crate::trace::{Trace, create_file};

/// Space that is set aside at a time in a stream's file: one look for free blocks for many pages, and all in one place. Next to none
/// in files that last as long as one input of a fuzzer.
const RESERVE_BYTES: u64 = if cfg!(feature = "fuzzing") { 1 } else { 4 << 20 };

/// What was written, and what was not.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    pub(crate) events: u64,
    /// Events that were committed and could not be written.
    pub(crate) lost_on_disk: u64,
    pub(crate) packets_refused: u64,
    pub(crate) bytes: u64,
    pub(crate) write_error: Option<String>,
}

/// The event streams' files of one trace, made as they are needed.
pub(crate) struct StreamFiles<'a> {
    pages: Pages,
    trace: &'a Trace,
    dir: PathBuf,
    files: Vec<StreamFile>,
    classes: Classes,
    pub(crate) tally: Tally,
}

/// One stream's.
#[derive(Default)]
struct StreamFile {
    file: Option<File>,
    len: u64,
    /// Up to where the file system has set space aside; `u64::MAX` where it cannot.
    reserved: u64,
    /// Events in it.
    events: u64,
    /// Packets in it.
    packets: u64,
    /// `timestamp_begin` of the first.
    begin: u64,
    /// `events_discarded` of the last packet that was written.
    discarded_last: u64,
}

impl<'a> StreamFiles<'a> {
    /// None yet. `dir` is where they are to be; classes are those of the session's trace.
    pub(crate) fn new(pages: Pages, trace: &'a Trace, dir: &Path) -> StreamFiles<'a> {
        let count = pages.memory().geometry().stream_count as usize;
        StreamFiles {
            pages,
            trace,
            dir: dir.into(),
            files: std::iter::repeat_with(StreamFile::default).take(count).collect(),
            classes: trace.classes(),
            tally: Tally::default(),
        }
    }

    /// `events_discarded` of a stream's last packet here.
    pub(crate) fn discarded_last(&self, stream: u32) -> u64 {
        self.files[stream as usize].discarded_last
    }

    /// Writes a packet whose header is `header` and whose bytes, of the packet's size, are `packet`.
    pub(crate) fn write(&mut self, stream: u32, header: &PacketHeader, packet: &[u8]) {
        let content_len = header.content_size_bytes as usize;
        let mut counted = count_records(packet, content_len, &self.classes);
        if counted.is_err() {
            // A class that came since the last look.
            self.classes = self.trace.classes();
            counted = count_records(packet, content_len, &self.classes);
        }
        let is_countable = header.events_discarded <= DISCARDED_MAX;
        let Some(events) = counted.ok().filter(|_| is_countable) else {
            self.tally.packets_refused += 1;
            return;
        };
        let target = &mut self.files[stream as usize];
        let name = || self.pages.name_of(stream);
        let written = target.open(&self.dir, name).and_then(|()| target.append(packet));
        match written {
            Ok(()) => {
                target.discarded_last = header.events_discarded;
                target.events += events;
                target.begin = if target.packets == 0 { header.timestamp_begin } else { target.begin };
                target.packets += 1;
                self.tally.bytes += packet.len() as u64;
                self.tally.events += events;
            }
            Err(error) => {
                self.tally.lost_on_disk += events;
                self.tally.write_error.get_or_insert(error);
            }
        }
    }

    /// Packets of a stream so far.
    pub(crate) fn packet_count(&self, stream: u32) -> u64 {
        self.files[stream as usize].packets
    }

    /// Takes back what a stream has so far, and gives the number of packets. What cannot be taken back stays, and readers tell of
    /// the gap behind it.
    pub(crate) fn take_back(&mut self, stream: u32) -> u64 {
        let target = &mut self.files[stream as usize];
        if target.file.as_ref().is_none_or(|file| file.set_len(0).is_err()) {
            return 0;
        }
        self.tally.bytes -= target.len;
        self.tally.events -= target.events;
        let packets = target.packets;
        *target = StreamFile { file: target.file.take(), ..StreamFile::default() };
        packets
    }

    /// `timestamp_begin` of the oldest packet.
    pub(crate) fn begin(&self) -> Option<u64> {
        self.files.iter().filter(|file| file.packets > 0).map(|file| file.begin).min()
    }

    /// What the files hold.
    pub(crate) fn totals(&self) -> Totals {
        let files = (0..).zip(&self.files).filter(|(_, file)| file.packets > 0);
        let totals = files.map(|(stream, file)| {
            let totals = StreamTotals {
                stream_id: STREAM_EVENTS,
                stream_instance_id: stream,
                events: file.events,
                packets: file.packets,
                events_discarded: file.discarded_last,
            };
            (self.pages.name_of(stream), totals)
        });
        Totals(totals.collect())
    }

    /// Removes the files that were made.
    pub(crate) fn remove(&self) {
        for (stream, target) in self.files.iter().enumerate() {
            if target.file.is_some() {
                let _ = std::fs::remove_file(self.dir.join(self.pages.name_of(stream as u32)));
            }
        }
    }

    /// Gives back what was set aside and not used.
    pub(crate) fn finish(&self) {
        for target in &self.files {
            if let Some(file) = target.file.as_ref().filter(|_| target.reserved > target.len) {
                let _ = file.set_len(target.len);
            }
        }
    }
}

impl StreamFile {
    fn open(&mut self, dir: &Path, name: impl FnOnce() -> String) -> Result<(), String> {
        if self.file.is_none() {
            self.file = Some(create_file(&dir.join(name()), &[]).map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    /// Appends all or nothing.
    fn append(&mut self, packet: &[u8]) -> Result<(), String> {
        self.set_space_aside(packet.len() as u64);
        let Some(file) = &self.file else { return Err("the stream's file is not open".into()) };
        if let Err(error) = file.write_all_at(packet, self.len) {
            let _ = file.set_len(self.len);
            return Err(format!("cannot write the trace: {error}; free space or give another directory with -o"));
        }
        self.len += packet.len() as u64;
        Ok(())
    }

    /// Before `more` bytes are written. Where no space can be set aside, the write itself will tell.
    fn set_space_aside(&mut self, more: u64) {
        let (Some(file), true) = (&self.file, self.len + more > self.reserved) else { return };
        // The size stays: readers see no more than what is written.
        let flags = FallocateFlags::KEEP_SIZE;
        let reserved = rustix::fs::fallocate(file, flags, self.len, RESERVE_BYTES.max(more));
        self.reserved = if reserved.is_ok() { self.len + RESERVE_BYTES.max(more) } else { u64::MAX };
    }
}

//! Packets on their way from a session's memory to a trace: copied, checked, appended.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

use dormouse_abi::page::{self, CPU_UNKNOWN, HEADER_SIZE_BYTES, STREAM_EVENTS};
use dormouse_abi::session::State;
use dormouse_ctf::{Classes, PacketHeader, StreamTotals, Totals, count_records};
use dormouse_relay::Memory;
use rustix::fs::FallocateFlags;

use crate::session::Shared;
use crate::trace::create_file;

/// Space that is set aside at a time in a stream's file: one look for free blocks for many pages, and all in one place. Next to none
/// in files that last as long as one input of a fuzzer.
const RESERVE_BYTES: u64 = if cfg!(feature = "fuzzing") { 1 } else { 4 << 20 };

/// The pages of a session, and what its packets have to be.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    pub(crate) memory: Memory,
    pub(crate) uuid: [u8; 16],
}

/// No clock gets there in a hundred years, and readers can still make nanoseconds since 1970 of what is below.
pub(crate) const TIMESTAMP_MAX: u64 = 1 << 62;

/// Events that a stream can have lost. No stream loses more, and other tools take 2^64 - 1 for no number.
pub(crate) const DISCARDED_MAX: u64 = u64::MAX - 1;

/// What packets come from while the session is open.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a>(pub(crate) &'a Shared, Pages);

impl<'a> Source<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Source<'a> {
        Source(shared, Pages { memory: shared.memory, uuid: shared.trace.uuid() })
    }
}

impl std::ops::Deref for Source<'_> {
    type Target = Pages;
    fn deref(&self) -> &Pages {
        &self.1
    }
}

impl Pages {
    pub(crate) fn memory(self) -> Memory {
        self.memory
    }

    /// Copies the beginning of a page: a producer that scribbles cannot change it after it is checked. False where there is no such
    /// page, or it is not so long, or `target` does not hold a header.
    pub(crate) fn copy_page(self, unit: u32, target: &mut [u8]) -> bool {
        let memory = self.memory();
        let Some(page) = memory.page(unit) else { return false };
        if !(HEADER_SIZE_BYTES..=memory.geometry().page_size_bytes as usize).contains(&target.len()) {
            return false;
        }
        // SAFETY: a page of the pool, mapped as long as the session, and a buffer that is no longer. Writers may write above
        // what is committed at the same time; bytes that are committed do not change, others are not interpreted.
        unsafe { core::ptr::copy_nonoverlapping(page, target.as_mut_ptr(), target.len()) };
        true
    }

    /// Whether page number `seq` of a stream was overwritten, or was about to be, by the end of what the caller has copied.
    pub(crate) fn is_overwritten(self, stream: u32, seq: u64) -> bool {
        // (E'') The copy comes before the look: pairs with (E), behind which the page gets new bytes.
        fence(Ordering::Acquire);
        self.memory().is_overwrite() && self.memory().stream(stream).reclaimed.load(Ordering::Acquire) > seq
    }

    /// Of a stream's file.
    pub(crate) fn name_of(self, stream: u32) -> String {
        let cpu_count = self.memory().geometry().cpu_count;
        if stream < cpu_count { format!("cpu_{stream}") } else { format!("claimed_{}", stream - cpu_count) }
    }

    /// The processor in the packets of a stream.
    fn cpu_of(self, stream: u32) -> u32 {
        if stream < self.memory().geometry().cpu_count { stream } else { CPU_UNKNOWN }
    }

    /// The header of a closed page of `content_len` bytes, if it is what the stream's writers leave.
    pub(crate) fn closed_header(self, stream: u32, bytes: &[u8], content_len: u64) -> Option<PacketHeader> {
        PacketHeader::decode(bytes).ok().filter(|header| {
            header.uuid == self.uuid
                && header.stream_id == STREAM_EVENTS
                && header.stream_instance_id == stream
                && header.cpu_id == self.cpu_of(stream)
                && header.content_size_bytes == content_len
                && header.packet_size_bytes == self.memory().geometry().page_size_bytes as u64
                && header.timestamp_begin <= header.timestamp_end
                && header.timestamp_end < TIMESTAMP_MAX
        })
    }

    /// The header of a page that is still written to, as `bytes` shows it, and of which `state` says how far it is committed.
    ///
    /// `now` and `discarded` were read after `state`.
    pub(crate) fn current_header(
        self,
        stream: u32,
        bytes: &[u8],
        state: State,
        seq: u64,
        now: u64,
        discarded: u64,
    ) -> PacketHeader {
        let begin = bytes.get(page::OFFSET_TIMESTAMP_BEGIN..).and_then(|rest| rest.first_chunk());
        // No page of honest writers has begun later.
        let timestamp_begin = u64::from_le_bytes(*begin.unwrap_or(&[0; 8])).min(now);
        PacketHeader {
            timestamp_begin,
            timestamp_end: now,
            content_size_bytes: state.offset.into(),
            packet_size_bytes: u64::from(state.offset).next_multiple_of(8),
            packet_seq_num: seq,
            ..self.empty_header(stream, now, discarded)
        }
    }

    /// The header of a packet that states nothing but losses.
    pub(crate) fn empty_header(self, stream: u32, now: u64, discarded: u64) -> PacketHeader {
        PacketHeader {
            uuid: self.uuid,
            stream_id: STREAM_EVENTS,
            stream_instance_id: stream,
            cpu_id: self.cpu_of(stream),
            timestamp_begin: now,
            timestamp_end: now,
            content_size_bytes: HEADER_SIZE_BYTES as u64,
            packet_size_bytes: HEADER_SIZE_BYTES as u64,
            packet_seq_num: 0,
            events_discarded: discarded.min(DISCARDED_MAX),
        }
    }
}

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
    source: Source<'a>,
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
    /// None yet. `dir` is where they are to be; classes are those of the session.
    pub(crate) fn new(source: Source<'a>, dir: &Path) -> StreamFiles<'a> {
        let count = source.memory().geometry().stream_count as usize;
        StreamFiles {
            source,
            dir: dir.into(),
            files: std::iter::repeat_with(StreamFile::default).take(count).collect(),
            classes: source.0.trace.classes(),
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
            self.classes = self.source.0.trace.classes();
            counted = count_records(packet, content_len, &self.classes);
        }
        let is_countable = header.events_discarded <= DISCARDED_MAX;
        let Some(events) = counted.ok().filter(|_| is_countable) else {
            self.tally.packets_refused += 1;
            return;
        };
        let target = &mut self.files[stream as usize];
        let name = || self.source.name_of(stream);
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
            (self.source.name_of(stream), totals)
        });
        Totals(totals.collect())
    }

    /// Removes the files that were made.
    pub(crate) fn remove(&self) {
        for (stream, target) in self.files.iter().enumerate() {
            if target.file.is_some() {
                let _ = std::fs::remove_file(self.dir.join(self.source.name_of(stream as u32)));
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
        use std::os::unix::fs::FileExt;
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

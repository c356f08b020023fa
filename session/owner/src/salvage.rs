//! Salvage: what is left of a session whose owner was killed, as a trace of its own.
//!
//! # How
//! ```text
//!   DIR/metadata, DIR/state, DIR/cpu_0, …     the trace as far as it got: whole declarations and packets, perhaps a torn one
//!   DIR/.session                              who the owner was, and where its memory is
//!   the memory                                a file; or programs that live still have it mapped
//!        │ read: header, control blocks, chains, then pages, those first that would be overwritten first
//!        ▼
//!   a copy that nobody changes ── pages behind those on disk, the current one as far as it is committed ──▶ DIR-salvaged
//! ```
//! Packets are known by their stream and `packet_seq_num`: what is on disk is taken from there, and of a packet that both have,
//! the longer. In discard mode nothing in the memory changes but by writers that go on behind what is committed, since pages
//! come back by their owner alone. In overwrite mode programs that live on may overwrite: after a page is copied its stream's
//! `reclaimed` is read again, as for a snapshot, and as there, events later than the moment at which the streams were looked at
//! are left out, so that no thread's story has a hole. A stream of which everything up to the moment was overwritten before it could be
//! copied would leave such holes in what others have, and none of its packets to tell; so the streams are looked at until the current page of
//! each is one of before the moment, and where that cannot be had, it is said.
//!
//! # What is checked
//! Everything: directory and memory are whatever somebody has made of them. Each packet is read to its end by the reader that
//! people will use, and has to follow the one before; what cannot be read is left out, and the trace says so
//! (`dormouse:salvage`).
//!
//! # Limits
//! The copy takes as much memory as the pages that are not on disk. The clock's pace is the one that was known when the session
//! began. Files that have lived through a crash of the machine are as whole as the kernel had written them: zeroes that it puts
//! in place of bytes can look like values.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use dormouse_abi::page::{self, HEADER_SIZE_BYTES, STREAM_EVENTS, STREAM_STATE};
use dormouse_abi::record::PACKET_SPAN_BITS;
use dormouse_abi::session::{Geometry, STREAM_STRIDE_BYTES, SessionHeader, State, UNIT_BYTES};
use dormouse_abi::wire::Message;
use dormouse_ctf::stream::Problem;
use dormouse_ctf::{
    Metadata, MetadataError, PacketHeader, PacketWriter, StateRecord, StreamReader, StreamTotals, Totals,
};
use dormouse_relay::Memory;
use memmap2::{Mmap, MmapOptions, MmapRaw};

use crate::clock::ticks;
use crate::files::{OpenError, is_stream_name};
use crate::packets::{DISCARDED_MAX, Pages, TIMESTAMP_MAX};
use crate::program::Program;
use crate::remains::{Remains, has_mapped};
use crate::session::name_losses;
use crate::trace::{TraceError, create_file, make_dir, with_state};
use crate::whereabouts::{FILE_NAME, Whereabouts, boot};

/// What a salvage came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salvage {
    /// The new trace.
    pub dir: PathBuf,
    /// Events in it.
    pub events: u64,
    /// Events that the session itself has lost, as far as is known.
    pub lost: u64,
    /// Bytes of its streams.
    pub bytes: u64,
    /// Packets of events that came from the directory.
    pub packets_from_disk: u64,
    /// Packets of events that came from the memory.
    pub packets_from_memory: u64,
    /// Packets that are nowhere, although there are later ones of their streams.
    pub packets_missing: u64,
    /// Packets that were not valid, or not to their end.
    pub packets_refused: u64,
    /// Pages that programs that live on have overwritten before they could be copied.
    pub pages_missed: u64,
    /// Where the memory was found, or why it was not.
    pub memory: String,
    /// What could not be had, one line each. Empty: everything that was committed is there.
    pub missing: Vec<String>,
    /// Programs that still write to the lost session.
    pub writers: Vec<u32>,
    /// The file that the memory lies in, if it is on a file system and was found.
    pub buffers: Option<PathBuf>,
}

/// Why nothing is salvaged. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// The owner is there.
    #[error(
        "the session of {dir} is alive, process {owner} owns it: let it finish, or take what it holds with \
         `dormouse snapshot {socket}`"
    )]
    Alive {
        /// The trace.
        dir: PathBuf,
        /// The owner.
        owner: u32,
        /// The session's socket.
        socket: PathBuf,
    },
    /// There is nothing to be done.
    #[error("the session of {0} has ended properly, and its trace is as whole as it can be: `dormouse view {0}`")]
    Ended(PathBuf),
    /// There is no trace to begin with.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new trace cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Makes a trace in `output` (which must not exist or be empty) of what is left of the one in `dir`, which stays as it is.
///
/// # Errors
/// See [`SalvageError`]; nothing is left behind but an empty directory.
pub fn salvage(dir: &Path, output: &Path) -> Result<Salvage, SalvageError> {
    let files = Files::open(dir)?;
    make_dir(output)?;
    let uuid = files.metadata.options.uuid;
    let mut assembly = Assembly {
        metadata: &files.metadata,
        dir: output,
        made: Vec::new(),
        totals: Totals::default(),
        result: Salvage { dir: output.into(), ..Salvage::default() },
    };
    if files.metadata_cut_bytes > 0 {
        let line =
            format!("the last {} bytes of the metadata, a declaration that is cut off", files.metadata_cut_bytes);
        assembly.result.missing.push(line);
    }
    let done = assembly.run(&files, uuid);
    if let Err(error) = done {
        assembly.made.iter().for_each(|path| drop(std::fs::remove_file(path)));
        return Err(error.into());
    }
    Ok(assembly.result)
}

/// A directory that an owner has left.
struct Files {
    metadata: Metadata,
    metadata_cut_bytes: usize,
    whereabouts: Option<Whereabouts>,
    state: Option<Mmap>,
    /// Of events, by name.
    streams: BTreeMap<String, Option<Mmap>>,
}

impl Files {
    fn open(dir: &Path) -> Result<Files, SalvageError> {
        let path = dir.join("metadata");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| OpenError::Read { path, error }
        };
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                return Err(OpenError::NoTrace(dir.into()).into());
            }
            Err(error) => return Err(OpenError::Read { path, error }.into()),
        };
        let (metadata, metadata_text) =
            whole_declarations(&bytes).map_err(|error| OpenError::Metadata { path, error })?;
        let whereabouts = match std::fs::read(dir.join(FILE_NAME)) {
            Ok(bytes) => Whereabouts::decode(&bytes).filter(|told| told.uuid == metadata.options.uuid),
            Err(_) => return Err(SalvageError::Ended(dir.into())),
        };
        if let Some(told) = whereabouts.as_ref().filter(|told| told.is_owner_alive()) {
            let (owner, socket) = (told.owner, told.socket.clone());
            return Err(SalvageError::Alive { dir: dir.into(), owner, socket });
        }
        let mut files = Files {
            metadata,
            metadata_cut_bytes: bytes.len() - metadata_text.len(),
            whereabouts,
            state: None,
            streams: BTreeMap::new(),
        };
        for entry in std::fs::read_dir(dir).map_err(failed(dir))? {
            let entry = entry.map_err(failed(dir))?;
            let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            if name == "state" {
                files.state = map(&path).map_err(failed(&path))?;
            } else if is_stream_name(&name) && path.is_file() {
                files.streams.insert(name, map(&path).map_err(failed(&path))?);
            }
        }
        Ok(files)
    }
}

fn map(path: &Path) -> std::io::Result<Option<Mmap>> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(None);
    }
    // SAFETY: a file of a session that is over, which nobody writes any more; who cuts it under a reader gets the reader
    // killed, not a wrong answer.
    unsafe { Mmap::map(&file) }.map(Some)
}

/// Metadata up to the declaration, if any, that is cut off.
fn whole_declarations(bytes: &[u8]) -> Result<(Metadata, String), MetadataError> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    };
    match Metadata::parse(text) {
        Ok(metadata) => Ok((metadata, text.into())),
        Err(MetadataError::CutOff { line }) => {
            let whole: String = text.split_inclusive('\n').take(line - 1).collect();
            Ok((Metadata::parse(&whole)?, whole))
        }
        Err(error) => Err(error),
    }
}

/// Packets one behind the other, as far as there are.
struct Packets<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Packets<'a> {
    /// A header, and what is there of its packet.
    type Item = (PacketHeader, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header = PacketHeader::decode(self.rest).ok()?;
        let len = usize::try_from(header.packet_size_bytes).unwrap_or(usize::MAX).min(self.rest.len());
        let (packet, rest) = self.rest.split_at(len);
        self.rest = rest;
        Some((header, packet))
    }
}

fn is_whole(header: &PacketHeader, packet: &[u8]) -> bool {
    header.packet_size_bytes == packet.len() as u64
}

/// What a reader finds in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Content {
    events: u64,
    /// Header and records that are whole, and not later than was asked for.
    len: usize,
    /// Of the last record, or the packet's begin.
    end: u64,
    /// Why it is not all.
    stop: Stop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    End,
    Later,
    Damage,
}

/// Reads a packet whose header is `header`; `packet` may be shorter than it says. `None` if that is no packet of this trace.
fn content(metadata: &Metadata, header: &PacketHeader, packet: &[u8], latest: u64) -> Option<Content> {
    let is_possible = header.timestamp_begin <= header.timestamp_end
        && header.timestamp_end < TIMESTAMP_MAX
        && header.events_discarded <= DISCARDED_MAX;
    if header.uuid != metadata.options.uuid || !is_possible {
        return None;
    }
    let wanted = usize::try_from(header.content_size_bytes).ok()?;
    // Read from a packet that is as long as it says, so that a record that is cut off is told of.
    let available = wanted.min(packet.len());
    let whole = PacketHeader { content_size_bytes: available as u64, packet_size_bytes: available as u64, ..*header };
    let mut bytes = packet.get(..available)?.to_vec();
    bytes.get_mut(..HEADER_SIZE_BYTES)?.copy_from_slice(&whole.encode());
    let mut found = Content { events: 0, len: HEADER_SIZE_BYTES, end: header.timestamp_begin, stop: Stop::End };
    for item in StreamReader::new(metadata, 0, &bytes) {
        match item {
            Ok(event) if event.timestamp > latest => return Some(Content { stop: Stop::Later, ..found }),
            Ok(event) => {
                found = Content { events: found.events + 1, len: found.len + event.size_bytes, ..found };
                found.end = event.timestamp;
            }
            Err(notice) if matches!(notice.problem, Problem::Discarded { .. }) => {}
            Err(_) => return Some(Content { stop: Stop::Damage, ..found }),
        }
    }
    if available < wanted {
        found.stop = Stop::Damage;
    }
    Some(found)
}

/// A packet that may go into the trace.
struct Candidate<'a> {
    header: PacketHeader,
    /// Its bytes, or as many as there are.
    packet: &'a [u8],
    is_from_disk: bool,
    /// Page that was never closed.
    is_current: bool,
}

/// A stream of events that is being written.
struct Stream {
    path: PathBuf,
    file: Option<File>,
    last: Option<PacketHeader>,
    /// Number of the next packet, where that is known.
    expected: Option<u64>,
    events: u64,
    packets: u64,
}

impl Stream {
    fn new(path: PathBuf) -> Stream {
        Stream { path, file: None, last: None, expected: None, events: 0, packets: 0 }
    }

    /// Whether a packet with this header may come next.
    fn goes_on_with(&self, header: &PacketHeader) -> bool {
        self.last.is_none_or(|last| {
            (last.stream_id, last.stream_instance_id, last.cpu_id)
                == (header.stream_id, header.stream_instance_id, header.cpu_id)
                && header.packet_seq_num > last.packet_seq_num
                && header.timestamp_begin >= last.timestamp_end
                && header.events_discarded >= last.events_discarded
        })
    }
}

/// What the state stream says, and as far as it is whole.
#[derive(Default)]
struct StateStream {
    bytes: Vec<u8>,
    last: Option<PacketHeader>,
    pids: Vec<u32>,
    is_discard: bool,
}

struct Assembly<'a> {
    metadata: &'a Metadata,
    dir: &'a Path,
    made: Vec<PathBuf>,
    /// Of the streams that are written.
    totals: Totals,
    result: Salvage,
}

impl Assembly<'_> {
    fn run(&mut self, files: &Files, uuid: [u8; 16]) -> Result<(), TraceError> {
        let state = self.read_state(files.state.as_deref().unwrap_or_default());
        let copied = self.find_memory(files, &state, uuid);
        self.put_together(files, state, copied, uuid)
    }

    /// Writes the trace.
    fn put_together(
        &mut self,
        files: &Files,
        state: StateStream,
        copied: Option<Copied>,
        uuid: [u8; 16],
    ) -> Result<(), TraceError> {
        let is_discard = copied.as_ref().map_or(state.is_discard, |copied| !copied.pages.memory.is_overwrite());
        let mut names: Vec<(String, Option<u32>)> = Vec::new();
        if let Some(copied) = &copied {
            self.result.pages_missed = copied.pages_missed;
            self.result.packets_refused += copied.pages_refused;
            if copied.streams_outrun > 0 {
                let line =
                    format!("{} streams, whose writers are faster than they can be copied", copied.streams_outrun);
                self.result.missing.push(line);
            }
            let streams = 0..copied.pages.memory.geometry().stream_count;
            names.extend(streams.map(|stream| (copied.pages.name_of(stream), Some(stream))));
        }
        let without = files.streams.keys().filter(|name| !names.iter().any(|(known, _)| known == *name));
        names.extend(without.map(|name| (name.clone(), None)).collect::<Vec<_>>());
        let mut unstated = 0u64;
        for (name, stream) in &names {
            let bytes = files.streams.get(name).and_then(|map| map.as_deref()).unwrap_or_default();
            let memory = copied.as_ref().zip(*stream);
            unstated = unstated.saturating_add(self.stream(name, bytes, memory, is_discard)?);
        }
        let Salvage { packets_missing, packets_refused, pages_missed, .. } = self.result;
        if packets_missing > 0 {
            self.result.missing.push(format!("{packets_missing} packets that are neither on disk nor in the memory"));
        }
        if packets_refused > 0 {
            self.result.missing.push(format!("{packets_refused} packets, or their ends, that were not valid"));
        }
        let missing = self.result.missing.join("; ");
        let memory = self.result.memory.clone();
        let record =
            StateRecord::Salvage { memory: &memory, missing: &missing, packets_missing, packets_refused, pages_missed };
        let mut records = vec![record];
        if unstated > 0 {
            let reason = "no page was free, nor could a packet be written that says so";
            records.push(StateRecord::Lost { reason, count: unstated });
            self.result.lost = self.result.lost.saturating_add(unstated);
        }
        let counts = copied
            .as_ref()
            .map(|copied| (0..).map_while(|index| copied.pages.memory.discarded_by_class(index)).collect::<Vec<u64>>());
        let by_class = name_losses(&counts.unwrap_or_default(), &self.metadata.classes);
        records.extend(by_class.iter().map(|(class, count)| StateRecord::LostClass { class, count: *count }));
        let now = copied.as_ref().and_then(|copied| copied.moment).unwrap_or(0);
        let now = now.max(state.last.map_or(0, |last| last.timestamp_end));
        let mut writer = state.last.map_or_else(|| PacketWriter::state(uuid), |last| PacketWriter::behind(&last));
        records.iter().for_each(|record| writer.push_state(now, record));
        let mut bytes = state.bytes;
        bytes.extend(writer.finish(0, 0));
        self.create("state", &bytes)?;
        self.result.bytes += bytes.len() as u64;
        let mut reader = StreamReader::new(self.metadata, 0, &bytes);
        reader.by_ref().for_each(drop);
        let totals = totals(STREAM_STATE, 0, reader.event_count(), reader.packet_count(), 0);
        let totals = with_state(std::mem::take(&mut self.totals), totals);
        // Last: a directory without metadata is no trace.
        let text = Metadata { totals, ..self.metadata.clone() }.text();
        self.create("metadata", text.as_bytes())?;
        Ok(())
    }

    fn create(&mut self, name: &str, bytes: &[u8]) -> Result<(), TraceError> {
        let path = self.dir.join(name);
        create_file(&path, bytes)?;
        self.made.push(path);
        Ok(())
    }

    /// The state stream's packets up to the first that is not valid.
    fn read_state(&mut self, bytes: &[u8]) -> StateStream {
        let mut state = StateStream::default();
        let mut stream = Stream::new(PathBuf::new());
        for (header, packet) in (Packets { rest: bytes }) {
            let found = content(self.metadata, &header, packet, u64::MAX);
            let is_valid = header.stream_id == STREAM_STATE
                && is_whole(&header, packet)
                && found.is_some_and(|found| found.stop == Stop::End)
                && stream.goes_on_with(&header);
            if !is_valid {
                break;
            }
            stream.last = Some(header);
            state.bytes.extend_from_slice(packet);
            for event in StreamReader::new(self.metadata, 0, packet).flatten() {
                match StateRecord::decode(&event) {
                    Some(StateRecord::Process { pid, .. }) if !state.pids.contains(&pid) => state.pids.push(pid),
                    Some(StateRecord::Session { mode, .. }) => state.is_discard = mode == "discard",
                    _ => {}
                }
            }
        }
        state.last = stream.last;
        let cut_bytes = bytes.len() - state.bytes.len();
        if cut_bytes > 0 {
            self.result
                .missing
                .push(format!("the last {cut_bytes} bytes of the state stream, which are no whole packet"));
        } else if state.last.is_none() {
            self.result.missing.push("the state stream".into());
        }
        state
    }

    /// Copies the memory from the first place that has it.
    fn find_memory(&mut self, files: &Files, state: &StateStream, uuid: [u8; 16]) -> Option<Copied> {
        let told = files.whereabouts.as_ref();
        let buffers = told.and_then(|told| told.buffers.as_deref());
        let mut reasons: Vec<String> = Vec::new();
        let mut found: Option<Copied> = None;
        let mut try_place = |place: Result<Remains, String>, result: &mut Salvage| {
            let copied = place.and_then(|remains| Ok((remains.to_string(), Copied::of(&remains, uuid, files)?)));
            match copied {
                Ok((memory, copied)) if found.is_none() => (result.memory, found) = (memory, Some(copied)),
                Ok(_) => {}
                Err(reason) => reasons.push(reason),
            }
            found.is_some()
        };
        let mut is_found = false;
        if let Some(path) = buffers {
            let remains = Remains::of_file(path, uuid);
            self.result.buffers = remains.is_ok().then(|| path.into());
            is_found = try_place(remains, &mut self.result);
        }
        for pid in state.pids.iter().copied().filter(|pid| Path::new("/proc").join(pid.to_string()).exists()) {
            let holder = Holder::of(pid, uuid, told);
            if holder.writes {
                self.result.writers.push(pid);
            }
            if !is_found && holder.answers {
                is_found = try_place(Remains::of_program(pid, uuid), &mut self.result);
            }
            // One whose id is another program's by now has nothing to do with it.
            if !is_found && has_mapped(pid, buffers) {
                is_found = try_place(Remains::of_process(pid, uuid, buffers), &mut self.result);
            }
        }
        // The state stream may have lost who else there is.
        for pid in if is_found { Vec::new() } else { processes() } {
            if !is_found && !state.pids.contains(&pid) && has_mapped(pid, buffers) {
                let place = Remains::of_program(pid, uuid).or_else(|_| Remains::of_process(pid, uuid, buffers));
                // Most likely it is in another session.
                is_found = place.is_ok() && try_place(place, &mut self.result);
            }
        }
        if found.is_none() {
            reasons.truncate(REASONS_MAX);
            if reasons.is_empty() {
                reasons.push("no program that had it mapped is alive".into());
            }
            let reasons = reasons.join("; ");
            self.result.memory = format!("none: {reasons}");
            // Where nobody has joined, there was nothing in it.
            if !state.pids.is_empty() || state.last.is_none() {
                self.result.missing.push(format!("what was only in memory, which is gone: {reasons}"));
            }
        }
        found
    }

    /// Writes one stream. Returns how many losses it could not state.
    fn stream(
        &mut self,
        name: &str,
        bytes: &[u8],
        memory: Option<(&Copied, u32)>,
        is_discard: bool,
    ) -> Result<u64, TraceError> {
        let mut packets = Packets { rest: bytes };
        let mut disk: Vec<(PacketHeader, &[u8])> = packets.by_ref().collect();
        let first = disk.first().map(|(header, _)| header.packet_seq_num);
        let mut stream = Stream::new(self.dir.join(name));
        stream.expected = if is_discard { Some(0) } else { first };
        let mut unread_bytes = packets.rest.len();
        // The last whole packet and what may follow it: the memory may have the same, or more of it.
        let is_torn = disk.last().is_some_and(|(header, packet)| !is_whole(header, packet));
        let tail = disk.split_off(disk.len().saturating_sub(1 + usize::from(is_torn)));
        for (header, packet) in disk {
            let candidate = Candidate { header, packet, is_from_disk: true, is_current: false };
            self.put(&mut stream, candidate, None)?;
        }
        let mut candidates: BTreeMap<u64, Candidate<'_>> = BTreeMap::new();
        for (header, packet) in tail {
            let candidate = Candidate { header, packet, is_from_disk: true, is_current: false };
            candidates.entry(header.packet_seq_num).or_insert(candidate);
        }
        let moment = memory.and_then(|(copied, _)| copied.moment);
        if let Some((copied, number)) = memory {
            if first.is_none() && !is_discard {
                stream.expected = copied.oldest.get(number as usize).copied().flatten();
            }
            for candidate in copied.candidates(number) {
                let seq = candidate.header.packet_seq_num;
                if stream.last.is_some_and(|last| seq <= last.packet_seq_num) {
                    continue;
                }
                let len =
                    |candidate: &Candidate<'_>| candidate.header.content_size_bytes.min(candidate.packet.len() as u64);
                if candidates.get(&seq).is_none_or(|other| len(other) < len(&candidate)) {
                    candidates.insert(seq, candidate);
                    // What the memory has of the torn packet is all of it.
                    unread_bytes = 0;
                }
            }
        }
        for candidate in candidates.into_values() {
            self.put(&mut stream, candidate, moment)?;
        }
        if unread_bytes > 0 {
            self.result.missing.push(format!("the last {unread_bytes} bytes of {name}, which are no packet"));
        }
        let stated = stream.last.map_or(0, |last| last.events_discarded);
        self.result.lost = self.result.lost.saturating_add(stated);
        let discarded = memory.map_or(0, |(copied, number)| copied.pages.memory.discarded(number).min(DISCARDED_MAX));
        let mut unstated = discarded.saturating_sub(stated);
        if let (Some((copied, number)), None, true) = (memory, stream.last, unstated > 0) {
            let now = copied.moment.unwrap_or(0);
            let header = copied.pages.empty_header(number, now, discarded);
            let packet = &header.encode()[..];
            stream.expected = None;
            self.put(&mut stream, Candidate { header, packet, is_from_disk: false, is_current: false }, None)?;
            self.result.lost = self.result.lost.saturating_add(discarded);
            unstated = 0;
        }
        let Stream { last, events, packets, .. } = stream;
        self.totals.0.extend(last.map(|last| {
            let PacketHeader { stream_id, stream_instance_id, events_discarded, .. } = last;
            (name.to_string(), totals(stream_id, stream_instance_id, events, packets, events_discarded))
        }));
        Ok(unstated)
    }

    /// Writes a packet, if it is one.
    fn put(&mut self, stream: &mut Stream, candidate: Candidate<'_>, moment: Option<u64>) -> Result<(), TraceError> {
        let Candidate { mut header, packet, is_from_disk, is_current } = candidate;
        let latest = moment.filter(|_| !is_from_disk).unwrap_or(u64::MAX);
        if header.timestamp_begin > latest {
            // Begun since, or never.
            self.result.packets_refused += u64::from(!is_begun_since(header.timestamp_begin, latest));
            return Ok(());
        }
        let found = content(self.metadata, &header, packet, latest)
            .filter(|_| header.stream_id == STREAM_EVENTS && stream.goes_on_with(&header));
        let Some(found) = found else {
            self.result.packets_refused += 1;
            return Ok(());
        };
        let discarded_last = stream.last.map_or(0, |last| last.events_discarded);
        let tells_losses = header.events_discarded != discarded_last;
        // Without its number, nobody knew from when on the stream has everything, or that a packet before it is missing.
        let tells_gap = header.packet_seq_num != stream.last.map_or(0, |last| last.packet_seq_num.wrapping_add(1));
        let tells_nothing = found.events == 0 && !tells_losses && (!tells_gap || found.stop == Stop::Damage);
        if tells_nothing && (is_current || found.stop != Stop::End) {
            self.result.packets_refused += u64::from(found.stop == Stop::Damage);
            return Ok(());
        }
        if is_current {
            // Losses have gone on until now, records have not.
            let until = moment.filter(|_| tells_losses).unwrap_or(found.end);
            header.timestamp_end = until.max(found.end);
        } else {
            // Closed since, or never: other tools reckon with no time that is centuries away.
            header.timestamp_end = latest.min(header.timestamp_end);
        }
        let is_shorter = found.stop != Stop::End || !is_whole(&header, packet);
        if is_shorter || is_current {
            header.content_size_bytes = found.len as u64;
            header.packet_size_bytes = header.content_size_bytes.next_multiple_of(8);
        }
        self.result.packets_refused += u64::from(found.stop == Stop::Damage);
        let gap = stream.expected.map_or(0, |expected| header.packet_seq_num.saturating_sub(expected));
        self.result.packets_missing = self.result.packets_missing.saturating_add(gap);
        self.append(stream, &header, &packet[..found.len])?;
        stream.events += found.events;
        stream.packets += 1;
        self.result.events += found.events;
        self.result.packets_from_disk += u64::from(is_from_disk);
        self.result.packets_from_memory += u64::from(!is_from_disk);
        stream.expected = Some(header.packet_seq_num.wrapping_add(1));
        stream.last = Some(header);
        Ok(())
    }

    /// Writes header and records, and zeroes behind them.
    fn append(&mut self, stream: &mut Stream, header: &PacketHeader, content: &[u8]) -> Result<(), TraceError> {
        let path = stream.path.clone();
        if stream.file.is_none() {
            stream.file = Some(create_file(&path, &[])?);
            self.made.push(path.clone());
        }
        // No packet is longer than a page, or than what is on disk of it.
        let mut packet = content.to_vec();
        packet[..HEADER_SIZE_BYTES].copy_from_slice(&header.encode());
        packet.resize(header.packet_size_bytes as usize, 0);
        if let Some(file) = &mut stream.file {
            file.write_all(&packet).map_err(|error| TraceError::File { path, error })?;
        }
        self.result.bytes += packet.len() as u64;
        Ok(())
    }
}

fn totals(stream_id: u32, stream_instance_id: u32, events: u64, packets: u64, events_discarded: u64) -> StreamTotals {
    StreamTotals { stream_id, stream_instance_id, events, packets, events_discarded }
}

/// Whether an honest page that begins so was begun since the moment.
fn is_begun_since(begin: u64, moment: u64) -> bool {
    begin > moment && begin >> PACKET_SPAN_BITS <= (moment >> PACKET_SPAN_BITS) + 1
}

/// Whether a stream that has nothing before page number `seq` may lack what it held at the moment. `begin` is that page's, `None` that of one
/// that was begun since for sure.
fn is_late(seq: u64, begin: Option<u64>, moment: Option<u64>) -> bool {
    seq > 0 && moment.is_some_and(|moment| begin.is_none_or(|begin| is_begun_since(begin, moment)))
}

/// Ids of all processes.
fn processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Reasons that are worth telling.
const REASONS_MAX: usize = 3;

/// A program that may have the memory mapped.
struct Holder {
    answers: bool,
    writes: bool,
}

impl Holder {
    fn of(pid: u32, uuid: [u8; 16], told: Option<&Whereabouts>) -> Holder {
        let socket = told.map(|told| told.socket.to_string_lossy());
        let Some(answers) = Program::find(pid).ok().and_then(|program| program.ask(&Message::List).ok()) else {
            let buffers = told.and_then(|told| told.buffers.as_deref());
            // It does not say whether it writes.
            return Holder { answers: false, writes: Remains::of_process(pid, uuid, buffers).is_ok() };
        };
        let writes = answers.iter().any(|answer| match answer {
            Message::Classes { session, classes, .. } => {
                socket.as_deref() == Some(session) && classes.iter().any(|class| class.armed)
            }
            _ => false,
        });
        Holder { answers: true, writes }
    }
}

/// How often the streams are looked at while writers open new pages in one of them.
const LOOKS_MAX: u32 = 100;

/// A session's memory, as far as it matters, in memory that nobody else has.
struct Copied {
    pages: Pages,
    /// Keeps `pages` mapped.
    _mapping: MmapRaw,
    /// The closed pages that were copied, and the current ones, by stream.
    found: Vec<Vec<Page>>,
    /// By stream: the number of the first page that had to be there. Overwrite mode only.
    oldest: Vec<Option<u64>>,
    /// When the streams were looked at, by the session's clock, if that still goes on.
    moment: Option<u64>,
    pages_missed: u64,
    pages_refused: u64,
    /// Streams of which nothing could be copied in time, or nothing from before the moment.
    streams_outrun: u64,
}

/// A page that was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    seq: u64,
    unit: u32,
    /// The stream's state and losses, if the page is the current one.
    current: Option<(State, u64)>,
}

impl Copied {
    /// Copies control blocks, chains, and the pages that are not on disk.
    fn of(remains: &Remains, uuid: [u8; 16], files: &Files) -> Result<Copied, String> {
        let mut copying = Copying::begin(remains, uuid)?;
        let memory = copying.memory;
        let geometry = *memory.geometry();
        let pages = Pages { memory, uuid };
        // A clock that has begun anew tells nothing of the session's.
        let is_same_boot = files.whereabouts.as_ref().is_some_and(|told| told.boot == boot());
        let has_clock = is_same_boot || remains.is_live();
        let mut looked = copying.look(has_clock)?;
        for _ in 1..LOOKS_MAX {
            if !looked.is_late {
                break;
            }
            looked = copying.look(has_clock)?;
        }
        let Looked { moment, currents, mut streams_outrun, pages_refused, .. } = looked;
        let mut found: Vec<Vec<Page>> = vec![Vec::new(); geometry.stream_count as usize];
        let mut oldest = vec![None; found.len()];
        // The current pages, also those that are not kept.
        let mut newest: Vec<(u32, u64)> = Vec::new();
        // Closed pages with the number of younger ones in their streams.
        let mut closed: Vec<(u64, u32, Page)> = Vec::new();
        for (stream, current, is_kept) in currents {
            let begin = if memory.is_overwrite() {
                // (E') pairs with (E), which came long before.
                memory.stream(stream).reclaimed.load(Ordering::Acquire)
            } else {
                // One that is on disk may have grown since.
                let bytes =
                    files.streams.get(&pages.name_of(stream)).and_then(|map| map.as_deref()).unwrap_or_default();
                Packets { rest: bytes }.last().map_or(0, |(header, _)| header.packet_seq_num.saturating_sub(1))
            };
            // A stream has no more pages than there are; anything else is scribbled.
            let count = current.seq.saturating_sub(begin).min(geometry.page_count.into());
            copying.chain(stream)?;
            for step in 1..=count {
                let seq = current.seq - step;
                let page = Page { seq, unit: memory.chain(stream, seq), current: None };
                closed.push((step, stream, page));
            }
            if memory.is_overwrite() {
                oldest[stream as usize] = Some(current.seq - count);
                newest.push((stream, current.seq));
            }
            if is_kept {
                found[stream as usize].push(current);
            }
        }
        // Those first that would be overwritten first.
        closed.sort_by_key(|(younger, stream, _)| (std::cmp::Reverse(*younger), *stream));
        let mut pages_missed = 0;
        for (_, stream, page) in closed {
            let Some(range) = copying.page_range(page.unit) else { continue };
            let mut bytes = vec![0; HEADER_SIZE_BYTES];
            remains.read(range.start as u64, &mut bytes)?;
            let is_there = word(&bytes, page::OFFSET_SEQ) == page.seq && copying.has_header(stream, &bytes);
            if !is_there && !memory.is_overwrite() {
                // It is on disk, and its page is another's; or the gap will tell.
                continue;
            }
            if is_there {
                bytes.resize(range.len(), 0);
                remains.read(range.start as u64, &mut bytes)?;
            }
            if copying.is_overwritten(stream, page, &bytes)? {
                // What came before it in its stream would stand before a gap.
                let kept = &mut found[stream as usize];
                let before = kept.len();
                kept.retain(|kept| kept.seq > page.seq);
                pages_missed += 1 + (before - kept.len()) as u64;
                oldest[stream as usize] = Some(page.seq + 1);
            } else if is_there && copying.keep(page.unit, &bytes) {
                found[stream as usize].push(page);
            }
        }
        for (stream, newest) in newest {
            let first = found[stream as usize].iter().min_by_key(|page| page.seq);
            let begin = first.map(|page| memory.page_field(page.unit, page::OFFSET_TIMESTAMP_BEGIN));
            let seq = first.map_or(newest, |page| page.seq);
            streams_outrun += u64::from(is_late(seq, begin, moment));
        }
        let Copying { mapping, .. } = copying;
        Ok(Copied { pages, _mapping: mapping, found, oldest, moment, pages_missed, pages_refused, streams_outrun })
    }

    /// The packets of a stream, in the order in which they were found.
    fn candidates(&self, stream: u32) -> impl Iterator<Item = Candidate<'_>> {
        let pages = self.found.get(stream as usize).map_or(&[][..], Vec::as_slice);
        pages.iter().filter_map(move |page| self.candidate(stream, page))
    }

    fn candidate(&self, stream: u32, page: &Page) -> Option<Candidate<'_>> {
        let memory = self.pages.memory;
        let start = memory.page(page.unit)?;
        // SAFETY: a page of the copy, which nobody changes any more and which lives as long as `self`.
        let bytes = unsafe { std::slice::from_raw_parts(start, memory.geometry().page_size_bytes as usize) };
        let Some((state, discarded)) = page.current else {
            let content_len = memory.page_field(page.unit, page::OFFSET_CONTENT_SIZE) / 8;
            let header = self
                .pages
                .closed_header(stream, bytes, content_len)
                .filter(|header| header.packet_seq_num == page.seq)?;
            return Some(Candidate { header, packet: bytes, is_from_disk: false, is_current: false });
        };
        let packet = bytes.get(..state.offset as usize)?;
        let begin = memory.page_field(page.unit, page::OFFSET_TIMESTAMP_BEGIN);
        // No record is later: writers open a new page before. Those since the moment are told from damage by their times, so the
        // moment is no end here.
        let end = begin.saturating_add(1 << PACKET_SPAN_BITS);
        let header = self.pages.current_header(stream, bytes, state, page.seq, end, discarded);
        Some(Candidate { header, packet, is_from_disk: false, is_current: true })
    }
}

/// A stream's current page.
enum Look {
    None,
    /// Not kept: another stream had the page when that one was looked at. This one has begun it since.
    Found {
        page: Page,
        is_kept: bool,
    },
    Refused,
    /// Its writers have overwritten it.
    Outrun,
}

/// All streams' current pages, as of one moment.
struct Looked {
    moment: Option<u64>,
    /// By stream, and whether they are kept.
    currents: Vec<(u32, Page, bool)>,
    streams_outrun: u64,
    pages_refused: u64,
    /// Whether a stream's current page was overwritten, or begun since the moment: all that it held then may be gone.
    is_late: bool,
}

/// A copy that is being filled, at the places that everything has in the session's memory.
struct Copying<'a> {
    remains: &'a Remains,
    mapping: MmapRaw,
    memory: Memory,
    /// The pages that are there, each as it was when a stream had it: what comes into it later is another stream's, and would be
    /// taken for records of the first.
    kept: HashSet<u32>,
    /// Streams that are used, as far as is known.
    used: Vec<u32>,
}

impl<'a> Copying<'a> {
    /// Copies the header and what follows it up to the control blocks.
    fn begin(remains: &'a Remains, uuid: [u8; 16]) -> Result<Copying<'a>, String> {
        let wrong = |reason: &str| format!("{remains}: {reason}");
        let room = |len: usize| {
            let map = MmapOptions::new().len(len).no_reserve_swap().map_anon();
            map.map(MmapRaw::from).map_err(|error| wrong(&format!("no room for a copy: {error}")))
        };
        let size_bytes = usize::try_from(remains.size_bytes()).unwrap_or(usize::MAX);
        let header_size_bytes = dormouse_abi::session::HEADER_SIZE_BYTES;
        if size_bytes < header_size_bytes {
            return Err(wrong("the session's memory is smaller than its header"));
        }
        let first = room(header_size_bytes)?;
        fill(remains, &first, 0..header_size_bytes)?;
        // SAFETY: mapped for this function alone, aligned to an `os_page`, filled, and any bytes are a header.
        let layout = unsafe { &*first.as_ptr().cast::<SessionHeader>() }.layout();
        let geometry = Geometry::from_layout(&layout, size_bytes).map_err(wrong)?;
        if layout.uuid != uuid {
            return Err(wrong("it is not the memory of this session"));
        }
        let mapping = room(geometry.size_bytes())?;
        // SAFETY: the header was filled above, and there is room for more.
        unsafe { std::ptr::copy_nonoverlapping(first.as_ptr(), mapping.as_mut_ptr(), header_size_bytes) };
        // SAFETY: mapped readable and writable with this length, aligned to an `os_page`, and kept with every copy of the view.
        let memory = unsafe { Memory::from_raw(mapping.as_mut_ptr(), mapping.len()) }.map_err(wrong)?;
        let copying = Copying { remains, mapping, memory, kept: HashSet::new(), used: Vec::new() };
        copying.fill(header_size_bytes..geometry.streams_offset())?;
        Ok(copying)
    }

    fn fill(&self, range: std::ops::Range<usize>) -> Result<(), String> {
        fill(self.remains, &self.mapping, range)
    }

    /// Where a page lies, if there is one.
    fn page_range(&self, unit: u32) -> Option<std::ops::Range<usize>> {
        self.memory.page(unit)?;
        let start = unit as usize * UNIT_BYTES;
        Some(start..start + self.memory.geometry().page_size_bytes as usize)
    }

    fn control(&self, stream: u32) -> std::ops::Range<usize> {
        let start = (&raw const *self.memory.stream(stream)).addr() - self.memory.base().addr();
        start..start + STREAM_STRIDE_BYTES
    }

    /// Copies a stream's chain.
    fn chain(&mut self, stream: u32) -> Result<(), String> {
        let geometry = self.memory.geometry();
        let start = self.memory.ring(stream).addr() - self.memory.base().addr() + geometry.chain_in_ring_region();
        self.fill(start..start + 4 * geometry.ring_size() as usize)
    }

    /// Copies control blocks, and those that lie side by side with one question.
    fn controls(&self, streams: &[u32]) -> Result<(), String> {
        let runs = streams.chunk_by(|one, next| one + 1 == *next);
        let mut ranges = runs.filter_map(|run| Some(self.control(*run.first()?).start..self.control(*run.last()?).end));
        ranges.try_for_each(|range| self.fill(range))
    }

    /// Looks at all streams, with as few questions as can be between the clock and each of them, and forgets what it has found before.
    fn look(&mut self, has_clock: bool) -> Result<Looked, String> {
        let memory = self.memory;
        self.kept.clear();
        let moment = has_clock.then(|| ticks(memory.clock()));
        self.controls(&self.used)?;
        // The streams that are used by now: who writes to another one later, does so after the moment.
        let used_at = std::mem::offset_of!(SessionHeader, used_streams);
        self.fill(used_at..used_at + size_of_val(&memory.header().used_streams))?;
        let used: Vec<u32> = memory.used_streams().collect();
        let more: Vec<u32> = used.iter().copied().filter(|stream| !self.used.contains(stream)).collect();
        self.controls(&more)?;
        let mut looked = Looked { moment, currents: Vec::new(), streams_outrun: 0, pages_refused: 0, is_late: false };
        for &stream in &used {
            match self.current(stream)? {
                Look::None => {}
                Look::Refused => looked.pages_refused += 1,
                Look::Outrun => {
                    looked.streams_outrun += 1;
                    looked.is_late = true;
                }
                Look::Found { page, is_kept } => {
                    let begin = is_kept.then(|| memory.page_field(page.unit, page::OFFSET_TIMESTAMP_BEGIN));
                    looked.is_late |= memory.is_overwrite() && is_late(page.seq, begin, moment);
                    looked.currents.push((stream, page, is_kept));
                }
            }
        }
        self.used = used;
        Ok(looked)
    }

    /// Copies a stream's current page, as far as it is committed.
    fn current(&mut self, stream: u32) -> Result<Look, String> {
        let control = self.memory.stream(stream);
        // (C) pairs with the writers' final stores, which came before the copy.
        let state = State::from_word(control.state.load(Ordering::Acquire));
        let discarded = self.memory.discarded(stream);
        let Some(range) = self.page_range(state.unit) else { return Ok(Look::None) };
        let offset = state.offset as usize;
        if !(HEADER_SIZE_BYTES..=range.len()).contains(&offset) {
            return Ok(Look::Refused);
        }
        let mut bytes = vec![0; offset];
        self.remains.read(range.start as u64, &mut bytes)?;
        let seq = word(&bytes, page::OFFSET_SEQ);
        let page = Page { seq, unit: state.unit, current: Some((state, discarded)) };
        if seq as u16 == state.seq && self.has_header(stream, &bytes) && !self.is_overwritten(stream, page, &bytes)? {
            return Ok(Look::Found { page, is_kept: self.keep(state.unit, &bytes) });
        }
        // The stream has gone on since, and its page is another's; or it is scribbled.
        self.fill(self.control(stream))?;
        let is_same = control.state.load(Ordering::Relaxed) == state.to_word();
        Ok(if is_same { Look::Refused } else { Look::Outrun })
    }

    /// Puts a page, or what is committed of it, where it belongs. False if there is one that was kept before.
    fn keep(&mut self, unit: u32, bytes: &[u8]) -> bool {
        let Some(range) = self.page_range(unit).filter(|range| bytes.len() <= range.len()) else { return false };
        let is_first = self.kept.insert(unit);
        if is_first {
            let target = self.mapping.as_mut_ptr().wrapping_add(range.start);
            // SAFETY: `page_range` lies inside the mapping and `bytes` is no longer; references into it are to atomics, or do not
            // live that long.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        }
        is_first
    }

    /// Whether a page that begins so is what whoever draws a page of this stream makes of it.
    fn has_header(&self, stream: u32, bytes: &[u8]) -> bool {
        let number = |offset: usize| {
            u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
        };
        number(page::OFFSET_MAGIC) == page::MAGIC
            && bytes[page::OFFSET_UUID..][..16] == self.memory.uuid()
            && number(page::OFFSET_STREAM_ID) == STREAM_EVENTS
            && number(page::OFFSET_INSTANCE) == stream
    }

    /// Whether a page may have been somebody else's before all of it was copied, as `bytes`: asked after the copy.
    fn is_overwritten(&self, stream: u32, page: Page, bytes: &[u8]) -> Result<bool, String> {
        let mut now = [0; 8];
        if self.memory.is_overwrite() {
            let control = self.control(stream).start;
            let offset = control + std::mem::offset_of!(dormouse_abi::session::StreamControl, reclaimed);
            self.remains.read(offset as u64, &mut now)?;
            return Ok(u64::from_le_bytes(now) > page.seq);
        }
        // Whoever draws a page begins with its header, without a time.
        self.remains.read((page.unit as usize * UNIT_BYTES + page::OFFSET_TIMESTAMP_BEGIN) as u64, &mut now)?;
        Ok(u64::from_le_bytes(now) != word(bytes, page::OFFSET_TIMESTAMP_BEGIN))
    }
}

/// A 64-bit field of a page's header.
fn word(header: &[u8], offset: usize) -> u64 {
    header.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |field| u64::from_le_bytes(*field))
}

/// Bytes that are copied at a time.
const STEP_BYTES: usize = 1 << 20;

fn fill(remains: &Remains, mapping: &MmapRaw, range: std::ops::Range<usize>) -> Result<(), String> {
    if range.start > range.end || range.end > mapping.len() {
        return Err(format!("{remains} contradicts itself"));
    }
    let mut step = vec![0; range.len().min(STEP_BYTES)];
    for start in range.clone().step_by(STEP_BYTES) {
        let step = &mut step[..STEP_BYTES.min(range.end - start)];
        remains.read(start as u64, step)?;
        let target = mapping.as_mut_ptr().wrapping_add(start);
        // SAFETY: inside the mapping by the check above; references into it are to atomics, or do not live that long.
        unsafe { std::ptr::copy_nonoverlapping(step.as_ptr(), target, step.len()) };
    }
    Ok(())
}

/// Programs that go on writing while they are asked for the memory, at each of the questions in turn.
#[cfg(test)]
mod overtaken {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use dormouse_abi::record::RecordKind;
    use dormouse_abi::session::{CLOCK_MONOTONIC, MODE_OVERWRITE};
    use dormouse_ctf::testing::TraceBuilder;
    use dormouse_relay::Setup;

    use super::*;
    use crate::testing::{EVERYTHING, FIELDS, GEOMETRY, Writer, assert_no_hole, numbers};

    #[repr(C, align(4096))]
    #[derive(Clone)]
    struct OsPage([u8; 4096]);

    struct Bench {
        files: Files,
        _backing: Vec<OsPage>,
        writer: Rc<RefCell<Writer>>,
    }

    impl Bench {
        fn new() -> Bench {
            let mut trace = TraceBuilder::new();
            let class_id = trace.class("p", "e", &FIELDS);
            let metadata = trace.finish().parse();
            let mut backing = vec![OsPage([0; 4096]); GEOMETRY.size_bytes().div_ceil(4096)];
            let setup = Setup {
                mode: MODE_OVERWRITE,
                clock: CLOCK_MONOTONIC,
                uuid: metadata.options.uuid,
                kind: RecordKind::Ids,
                page_limit: GEOMETRY.page_count,
                reserved_for: &[],
                reserve_each: 0,
            };
            // SAFETY: valid, zeroed, aligned, and moved together with the view without changing its address.
            let memory = unsafe { Memory::initialise(backing.as_mut_ptr().cast(), &GEOMETRY, &setup) };
            let writer = Rc::new(RefCell::new(Writer::new(memory, class_id)));
            let streams = BTreeMap::new();
            let files = Files { metadata, metadata_cut_bytes: 0, whereabouts: None, state: None, streams };
            Bench { files, _backing: backing, writer }
        }

        /// Salvages what is there, while the writer does something before each question, whose number it is told. Gives the result, the
        /// numbers in the trace from where on it has everything, and how many questions there were.
        fn salvage(&self, meanwhile: impl Fn(&mut Writer, u32) + 'static) -> (Salvage, Vec<u64>, u32) {
            let (writer, asked) = (Rc::clone(&self.writer), Rc::new(Cell::new(0)));
            let (counter, uuid) = (Rc::clone(&asked), self.files.metadata.options.uuid);
            let remains = Remains::of_writer(uuid, GEOMETRY.size_bytes() as u64, move |offset, target| {
                meanwhile(&mut writer.borrow_mut(), counter.replace(counter.get() + 1));
                let source = writer.borrow().memory.base().wrapping_add(offset as usize);
                // SAFETY: inside the memory, by the geometry; nobody writes meanwhile.
                unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
            });
            let place = tempfile::tempdir().unwrap();
            let result = Salvage { dir: place.path().into(), ..Salvage::default() };
            let mut assembly = Assembly {
                metadata: &self.files.metadata,
                dir: place.path(),
                made: Vec::new(),
                totals: Totals::default(),
                result,
            };
            let copied = Copied::of(&remains, uuid, &self.files).unwrap();
            assembly.put_together(&self.files, StateStream::default(), Some(copied), uuid).unwrap();
            (assembly.result, numbers(place.path()), asked.get())
        }
    }

    fn begun() -> Bench {
        let bench = Bench::new();
        bench.writer.borrow_mut().hop();
        bench
    }

    #[test]
    fn once_everything_is_had() {
        for busy in [&[1][..], &[0], &[1, 0], &[1, 0, 1]] {
            let mut question = 0;
            loop {
                let bench = begun();
                let written = bench.writer.borrow().next;
                let (result, numbers, asked) = bench.salvage(move |writer, number| {
                    if number == question {
                        busy.iter().for_each(|stream| writer.write(*stream, EVERYTHING));
                    }
                });
                let at = format!("streams {busy:?} overwritten before question {question}");
                assert_eq!(result.missing, Vec::<String>::new(), "{at}");
                assert_no_hole(&numbers, &at);
                assert!(
                    numbers.last().is_none_or(|last| *last + 1 >= written),
                    "{at}: {:?} of {written}",
                    numbers.last()
                );
                if question >= asked {
                    break;
                }
                question += 1;
            }
            assert!(question > 10, "{question}");
        }
    }

    #[test]
    fn again_and_again_it_is_said() {
        for first in [0, 2, 5, 9] {
            let bench = begun();
            let (result, numbers, _) = bench.salvage(move |writer, number| {
                if number >= first {
                    writer.write(1, EVERYTHING);
                }
            });
            let is_told = result.missing.len() == 1 && result.missing[0].contains("faster");
            if !is_told {
                assert_eq!(result.missing, Vec::<String>::new());
                assert_no_hole(&numbers, &format!("overwritten before every question from {first} on"));
            }
        }
    }

    #[test]
    fn a_stream_that_has_given_everything_up_says_so() {
        let bench = begun();
        bench.writer.borrow_mut().give_all_up(1);
        bench.writer.borrow_mut().write(0, 20);
        let (result, numbers, _) = bench.salvage(|_, _| {});
        assert_eq!(result.missing, Vec::<String>::new());
        let next = bench.writer.borrow().next;
        assert_eq!(numbers, (next - 20..next).collect::<Vec<u64>>());
    }
}

#[cfg(test)]
mod tests {
    use dormouse_abi::class::{FieldType, Kind};
    use dormouse_ctf::Value;
    use dormouse_ctf::testing::TraceBuilder;

    use super::*;

    /// Metadata, and a stream of two packets with three events each.
    fn trace() -> (String, Vec<u8>) {
        let mut trace = TraceBuilder::new();
        let class = trace.class("p", "e", &[("n", FieldType::scalar(Kind::U32))]);
        let stream = trace.stream(0);
        for number in 0..6 {
            trace.event(stream, 100 + 10 * number, 1, 2, class, &[Value::U32(number as u32)]);
            if number % 3 == 2 {
                trace.packet(stream, 4096, 0);
            }
        }
        let mut trace = trace.finish();
        // The state stream comes first.
        (trace.metadata, trace.streams.pop().unwrap())
    }

    #[test]
    fn metadata_are_kept_as_far_as_they_are_whole() {
        let (text, _) = trace();
        let whole = whole_declarations(text.as_bytes()).unwrap();
        assert_eq!(whole.1, text);
        let class = text.find("event {\n\tname = \"p:e\"").unwrap();
        for len in class + 1..text.len() - 1 {
            let (metadata, kept) = whole_declarations(&text.as_bytes()[..len]).unwrap();
            assert_eq!(kept, text[..class], "{len}");
            assert_eq!(metadata.classes.events().count(), 0);
        }
        // What is cut before is no trace, and neither is a part of a character.
        assert!(whole_declarations(&text.as_bytes()[..100]).is_err());
        let mut odd = text.clone().into_bytes();
        odd.extend("\nevent { name = \"\u{fc}".bytes());
        odd.pop();
        assert_eq!(whole_declarations(&odd).unwrap().1.trim_end(), text.trim_end());
    }

    #[test]
    fn packets_come_as_far_as_there_are_any() {
        let (_, bytes) = trace();
        let found = |bytes: &[u8]| {
            let mut packets = Packets { rest: bytes };
            let found: Vec<(u64, usize)> =
                packets.by_ref().map(|(header, packet)| (header.packet_seq_num, packet.len())).collect();
            (found, packets.rest.len())
        };
        assert_eq!(found(&bytes), (vec![(0, 4096), (1, 4096)], 0));
        assert_eq!(found(&bytes[..8000]), (vec![(0, 4096), (1, 3904)], 0));
        assert_eq!(found(&bytes[..4096 + 79]), (vec![(0, 4096)], 79));
        let mut odd = bytes.clone();
        odd[4096] ^= 1;
        assert_eq!(found(&odd), (vec![(0, 4096)], 4096));
        assert_eq!(found(&[]), (vec![], 0));
    }

    #[test]
    fn a_packet_is_read_to_its_end_or_to_what_is_wrong() {
        let (text, bytes) = trace();
        let metadata = Metadata::parse(&text).unwrap();
        let header = PacketHeader::decode(&bytes).unwrap();
        let of = |header: &PacketHeader, bytes: &[u8], latest| content(&metadata, header, bytes, latest);
        let whole = of(&header, &bytes[..4096], u64::MAX).unwrap();
        assert_eq!((whole.events, whole.len as u64, whole.end), (3, header.content_size_bytes, 120));
        assert_eq!(whole.stop, Stop::End);
        // Without padding it is as good.
        assert_eq!(of(&header, &bytes[..whole.len], u64::MAX), Some(whole));
        let size = (whole.len - HEADER_SIZE_BYTES) / 3;
        let two = Content { events: 2, len: whole.len - size, end: 110, stop: Stop::Later };
        assert_eq!(of(&header, &bytes[..4096], 119), Some(two));
        for cut in 1..=size {
            let torn = of(&header, &bytes[..whole.len - cut], u64::MAX);
            assert_eq!(torn, Some(Content { stop: Stop::Damage, ..two }), "{cut}");
        }
        assert_eq!(of(&header, &bytes[..79], u64::MAX), None);
        assert_eq!(of(&PacketHeader { uuid: [0; 16], ..header }, &bytes[..4096], u64::MAX), None);
        assert_eq!(of(&PacketHeader { timestamp_end: 0, ..header }, &bytes[..4096], u64::MAX), None);
        let mut odd = bytes.clone();
        odd[whole.len - size] ^= 0x55;
        let damaged = of(&header, &odd[..4096], u64::MAX);
        assert_eq!(damaged, Some(Content { stop: Stop::Damage, ..two }));
    }

    #[test]
    fn only_streams_are_streams() {
        for (name, is_one) in [
            ("cpu_0", true),
            ("claimed_17", true),
            ("cpu_", false),
            ("cpu_1x", false),
            ("state", false),
            (".session", false),
        ] {
            assert_eq!(is_stream_name(name), is_one, "{name}");
        }
    }
}

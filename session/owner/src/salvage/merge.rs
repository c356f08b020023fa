//! Combines directory and memory, packet by packet, into a new trace.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;

use dormouse_abi::page::STREAM_EVENTS;
use dormouse_abi::register::Process;
use dormouse_abi::text::printable;
use dormouse_ctf::{Metadata, StreamReader};
use dormouse_format::{Cause, Losses, PacketHeader, PacketWriter, StateRecord};
use serde::Serialize;

use super::copy::{CopiedMemory, is_begun_since};
use super::directory::Directory;
use super::find::SearchResult;
use super::packets::{Packets, Stop, content, is_whole, may_follow};
use crate::dir::{Dir, remove_opened};
use crate::error::Error;
use crate::ledger::NotKept;
use crate::losses;
use crate::pages::DISCARDED_MAX;
use crate::streams::{StreamFile, totals_of};
use crate::trace::{remove_files, with_state};

/// Result of a salvage.
#[derive(Debug, Default, Serialize)]
pub struct Salvage {
    /// Directory of the new trace.
    pub dir: PathBuf,
    /// Number of events in it.
    pub events: u64,
    /// Known events that the session itself has lost, by cause, and causes that may have lost more.
    pub losses: Losses,
    /// Bytes of its streams.
    pub bytes: u64,
    /// Packets of events that came from the directory.
    pub packets_from_disk: u64,
    /// Packets of events that came from the memory.
    pub packets_from_memory: u64,
    /// Packets that were not found, although there are later ones of their streams.
    pub packets_missing: u64,
    /// Packets that were not valid, or not to their end.
    pub packets_refused: u64,
    /// Pages that live programs had overwritten before they could be copied.
    pub pages_missed: u64,
    /// Description of the place where the memory was found, or of the reason why it was not.
    pub memory: String,
    /// Missing parts, one line each. Empty: everything that was committed is in the trace.
    pub missing: Vec<String>,
    /// Process id of the dead `dormouse record` that began the session, if its file says so.
    pub recorder: Option<u32>,
    /// Programs that still write to the lost session.
    pub writers: Vec<u32>,
    /// Path of the file with the memory, if it is on a file system and was found.
    pub buffers: Option<PathBuf>,
    /// The opened file at `buffers`.
    #[serde(skip)]
    buffers_file: Option<File>,
}

impl Salvage {
    /// Removes the file with the memory, if it was found and is still the same file.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn remove_buffers(&mut self) -> Result<(), Error> {
        if let Some((path, file)) = self.buffers.take().zip(self.buffers_file.take()) {
            remove_opened(&path, &file).map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
        }
        Ok(())
    }
}

/// Writes the trace to `output`, an empty directory.
///
/// # Errors
/// An error of the disk; nothing is left behind then.
pub(super) fn merge(directory: &Directory, search_result: SearchResult, output: &Dir) -> Result<Salvage, Error> {
    let SearchResult { copied, memory, missing, writers, buffers } = search_result;
    let (buffers, buffers_file) = buffers.unzip();
    let recorder = directory.session_file.as_ref().map(|file| file.recorder);
    let mut result =
        Salvage { dir: output.path.clone(), memory, recorder, writers, buffers, buffers_file, ..Salvage::default() };
    result.missing.extend(directory.missing.iter().cloned().chain(missing));
    let mut merge = Merge { directory, output, copied: copied.as_ref(), files: Vec::new(), result };
    merge.run().inspect_err(|_| {
        merge.files.iter().for_each(|file| file.remove(output));
        remove_files(output);
    })?;
    Ok(merge.result)
}

/// A packet that may become part of the trace.
struct Candidate<'a> {
    header: PacketHeader,
    /// Its bytes, as many as were found.
    packet: &'a [u8],
    is_from_disk: bool,
    /// Whether its page was never closed.
    is_current: bool,
}

/// A stream of events that is being written.
struct Stream {
    file: StreamFile,
    last: Option<PacketHeader>,
    /// Number of the next packet, if known.
    expected: Option<u64>,
}

struct Merge<'a> {
    directory: &'a Directory,
    output: &'a Dir,
    copied: Option<&'a CopiedMemory>,
    /// Files of the streams that have been written.
    files: Vec<StreamFile>,
    result: Salvage,
}

impl Merge<'_> {
    fn run(&mut self) -> Result<(), Error> {
        let Merge { directory, output, copied, .. } = *self;
        let is_discard = copied.map_or(directory.state.is_discard, |copied| !copied.pages.memory.is_overwrite());
        let mut names: BTreeMap<String, Option<u32>> =
            directory.streams.keys().map(|name| (name.clone(), None)).collect();
        if let Some(copied) = copied {
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
        let mut unstated = 0u64;
        for (name, stream_number) in &names {
            let file = StreamFile::new(name.clone());
            let mut stream = Stream { file, last: None, expected: None };
            let written = self.stream(&mut stream, name, copied.zip(*stream_number), is_discard);
            stream.file.finish();
            self.files.push(stream.file);
            unstated = unstated.saturating_add(written?);
        }
        let Salvage { packets_missing, packets_refused, pages_missed, .. } = self.result;
        if packets_missing > 0 {
            self.result.missing.push(format!("{packets_missing} packets that are neither on disk nor in the memory"));
        }
        if packets_refused > 0 {
            self.result.missing.push(format!("{packets_refused} packets, or their ends, that were not valid"));
        }
        let truncated = directory.truncated();
        if truncated > 0 {
            self.result.missing.push(format!("{truncated} units of 4 KiB of files that were truncated meanwhile"));
        }
        let missing = self.result.missing.join("; ");
        let memory = self.result.memory.clone();
        let record =
            StateRecord::Salvage { memory: &memory, missing: &missing, packets_missing, packets_refused, pages_missed };
        let texts =
            |process: &Process| [&process.name, &process.program, &process.command_line].map(|text| printable(text));
        let entered: Vec<_> =
            directory.entered.iter().map(|(number, process)| (number, process, texts(process))).collect();
        let mut records: Vec<StateRecord<'_>> = entered
            .iter()
            .map(|(number, process, [name, program, command_line])| StateRecord::Process {
                process: u32::from(**number),
                pid: process.vpid,
                vpid: process.vpid,
                name,
                program,
                command_line,
            })
            .chain([record])
            .collect();
        let losses = &mut self.result.losses;
        losses.add(Cause::NoPage, unstated);
        losses.add(Cause::AmidWrite, copied.map_or(0, |copied| copied.claimed_count()));
        let by_class = copied
            .map(|copied| losses::by_class(&copied.pages.memory, &directory.metadata.classes))
            .unwrap_or_default();
        records.extend(losses::records(unstated, losses, &by_class));
        let unrecorded = copied
            .map(|copied| {
                losses::unrecorded_by_class(&copied.pages.memory, &directory.metadata.classes, &NotKept::default())
            })
            .unwrap_or_default();
        records.extend(losses::unrecorded_records(&unrecorded));
        // The salvage's own record already has this.
        losses.add(Cause::OwnerKilled, self.result.missing.len() as u64);
        let now = copied.and_then(|copied| copied.moment).unwrap_or(0);
        let state = &directory.state;
        let now = now.max(state.last.map_or(0, |last| last.timestamp_end));
        let mut writer =
            state.last.map_or_else(|| PacketWriter::state(directory.uuid()), |last| PacketWriter::behind(&last));
        let mut moment = state.last.map_or(0, |last| last.timestamp_end);
        let joined = entered.iter().map(|(_, process, _)| process.joined_at).chain(std::iter::repeat(now));
        for (record, joined_at) in records.iter().zip(joined) {
            moment = joined_at.clamp(moment, now);
            writer.push(moment, record);
        }
        let mut bytes = state.bytes.clone();
        bytes.extend(writer.finish());
        output.create("state", &bytes)?;
        self.result.bytes += bytes.len() as u64;
        let mut reader = StreamReader::new(&directory.metadata, 0, &bytes);
        reader.by_ref().for_each(drop);
        let totals = with_state(totals_of(&self.files), reader.totals().unwrap_or_default());
        // Written last: a directory without metadata is not a trace.
        let text = Metadata { totals, ..directory.metadata.clone() }.text();
        output.create("metadata", text.as_bytes())?;
        Ok(())
    }

    /// Writes one stream. Returns the number of losses that no packet could state.
    fn stream(
        &mut self,
        stream: &mut Stream,
        name: &str,
        memory: Option<(&CopiedMemory, u32)>,
        is_discard: bool,
    ) -> Result<u64, Error> {
        let mut packets = Packets { rest: self.directory.stream(name) };
        let mut disk: Vec<(PacketHeader, &[u8])> = packets.by_ref().collect();
        let first = disk.first().map(|(header, _)| header.packet_seq_num);
        stream.expected = if is_discard { Some(0) } else { first };
        let mut unread_bytes = packets.rest.len();
        // The last whole packet and a torn one after it: the memory may have the same packets, or more of them.
        let is_torn = disk.last().is_some_and(|(header, packet)| !is_whole(header, packet));
        let tail = disk.split_off(disk.len().saturating_sub(1 + usize::from(is_torn)));
        for (header, packet) in disk {
            let candidate = Candidate { header, packet, is_from_disk: true, is_current: false };
            self.put(stream, candidate, None)?;
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
            for (header, packet, is_current) in copied.packets(number) {
                let candidate = Candidate { header, packet, is_from_disk: false, is_current };
                let seq = candidate.header.packet_seq_num;
                if stream.last.is_some_and(|last| seq <= last.packet_seq_num) {
                    continue;
                }
                let len =
                    |candidate: &Candidate<'_>| candidate.header.content_size_bytes.min(candidate.packet.len() as u64);
                if candidates.get(&seq).is_none_or(|other| len(other) < len(&candidate)) {
                    candidates.insert(seq, candidate);
                    // The memory has all of the torn packet.
                    unread_bytes = 0;
                }
            }
        }
        for candidate in candidates.into_values() {
            self.put(stream, candidate, moment)?;
        }
        if unread_bytes > 0 {
            self.result.missing.push(format!("the last {unread_bytes} bytes of {name}, which are no packet"));
        }
        let stated = stream.last.map_or(0, |last| last.events_discarded);
        self.result.losses.add(Cause::NoPage, stated);
        let discarded = memory.map_or(0, |(copied, number)| copied.pages.memory.discarded(number).min(DISCARDED_MAX));
        let mut unstated = discarded.saturating_sub(stated);
        if let (Some((copied, number)), None, true) = (memory, stream.last, unstated > 0) {
            let now = copied.moment.unwrap_or(0);
            let header = copied.pages.empty_header(number, now, discarded);
            let packet = &header.encode()[..];
            stream.expected = None;
            self.put(stream, Candidate { header, packet, is_from_disk: false, is_current: false }, None)?;
            self.result.losses.add(Cause::NoPage, discarded);
            unstated = 0;
        }
        Ok(unstated)
    }

    /// Writes a packet, if it is valid.
    fn put(&mut self, stream: &mut Stream, candidate: Candidate<'_>, moment: Option<u64>) -> Result<(), Error> {
        let Candidate { mut header, packet, is_from_disk, is_current } = candidate;
        let latest = moment.filter(|_| !is_from_disk).unwrap_or(u64::MAX);
        if header.timestamp_begin > latest {
            // The packet was begun after the moment, or is damaged.
            self.result.packets_refused += u64::from(!is_begun_since(header.timestamp_begin, latest));
            return Ok(());
        }
        let found = content(&self.directory.metadata, &header, packet, latest)
            .filter(|_| header.stream_id == STREAM_EVENTS && may_follow(stream.last.as_ref(), &header));
        let Some(found) = found else {
            self.result.packets_refused += 1;
            return Ok(());
        };
        let discarded_last = stream.last.map_or(0, |last| last.events_discarded);
        let tells_losses = header.events_discarded != discarded_last;
        // The packet's number shows from where the stream is complete, and whether an earlier packet is missing.
        let tells_gap = header.packet_seq_num != stream.last.map_or(0, |last| last.packet_seq_num.wrapping_add(1));
        let tells_nothing = found.events == 0 && !tells_losses && (!tells_gap || found.stop == Stop::Damage);
        if tells_nothing && (is_current || found.stop != Stop::End) {
            self.result.packets_refused += u64::from(found.stop == Stop::Damage);
            return Ok(());
        }
        if is_current {
            // Losses are counted up to the moment; records end earlier.
            let until = moment.filter(|_| tells_losses).unwrap_or(found.end);
            header.timestamp_end = until.max(found.end);
        } else {
            // The packet was closed after the moment, or is damaged: other tools cannot handle a time that is centuries
            // away.
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
        // A packet is no longer than its page, or than its part on disk. Zeroes follow the records.
        let mut packet = packet[..found.len].to_vec();
        packet.resize(header.packet_size_bytes as usize, 0);
        stream.file.append(self.output, &header, &mut packet, found.events)?;
        self.result.bytes += packet.len() as u64;
        self.result.events += found.events;
        self.result.packets_from_disk += u64::from(is_from_disk);
        self.result.packets_from_memory += u64::from(!is_from_disk);
        stream.expected = Some(header.packet_seq_num.wrapping_add(1));
        stream.last = Some(header);
        Ok(())
    }
}

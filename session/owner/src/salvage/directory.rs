//! The directory of a trace whose owner is dead.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use dormouse_abi::page::STREAM_STATE;
use dormouse_abi::register::{PROCESS_COUNT, Phase, Process, Register};
use dormouse_ctf::{Metadata, MetadataError, StreamReader};
use dormouse_format::{PacketHeader, StateRecord};
use dormouse_tools::{SessionSocket, ask_for_status};
use memmap2::Mmap;

use super::packets::{Packets, Stop, content, is_whole, may_follow};
use crate::announced::{class_of, name_texts, program_of};
use crate::dir::{Dir, not_read};
use crate::error::Error;
use crate::fault::Guard;
use crate::session_file::{FILE_NAME, LEN_MAX, SessionFile};

/// A directory that an owner has left behind.
pub(super) struct Directory {
    pub(super) metadata: Metadata,
    pub(super) session_file: Option<SessionFile>,
    pub(super) state: StateStream,
    /// Streams of events, by name.
    pub(super) streams: BTreeMap<String, Option<Mapped>>,
    /// Processes that are only in the memory's register, with their numbers.
    pub(super) entered: Vec<(u16, Process)>,
    /// Descriptions of incomplete parts, one line each.
    pub(super) missing: Vec<String>,
    /// User who owns the directory, and on whose word the session file and the state stream rest.
    pub(super) owner: u32,
}

/// A mapped file. Parts that are truncated meanwhile read as zeroes.
pub(super) struct Mapped {
    guard: Guard,
    map: Mmap,
}

/// The valid beginning of the state stream, and its contents.
#[derive(Default)]
pub(super) struct StateStream {
    pub(super) bytes: Vec<u8>,
    pub(super) last: Option<PacketHeader>,
    pub(super) pids: Vec<u32>,
    /// Processes with a record: the session's number, and the process id as the process sees it.
    pub(super) processes: BTreeSet<(u32, u32)>,
    pub(super) is_discard: bool,
}

impl Directory {
    pub(super) fn open(dir: &Path) -> Result<Directory, Error> {
        let dir = Dir::open(dir)?;
        let (path, bytes) = dormouse_directory::read_metadata(&dir).map_err(|error| error.to_string())?;
        let (metadata, metadata_text) =
            whole_declarations(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        let session_file = match dir.read_all(FILE_NAME, LEN_MAX) {
            Ok(bytes) => SessionFile::decode(&bytes).filter(|file| file.uuid == metadata.options.uuid),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(not_read(&dir.path_of(FILE_NAME))(error)),
            Err(_) => {
                let dir = dir.path.display();
                return Err(format!(
                    "the session of {dir} has ended properly, and its trace is as whole as it can be: `dormouse view {dir}`"
                )
                .into());
            }
        };
        let mut missing = Vec::new();
        let cut_bytes = bytes.len() - metadata_text.len();
        if cut_bytes > 0 {
            missing.push(format!("the last {cut_bytes} bytes of the metadata, a declaration that is cut off"));
        }
        let (mut state, mut streams) = (None, BTreeMap::new());
        for entry in dir.names().map_err(not_read(&dir.path))? {
            let name = entry.to_string_lossy().into_owned();
            let is_state = name == "state";
            if !is_state && !dormouse_directory::is_stream_name(&name) {
                continue;
            }
            match dir.read(&entry).and_then(|file| map(&file)) {
                Ok(mapped) if is_state => state = mapped,
                Ok(mapped) => drop(streams.insert(name, mapped)),
                Err(error) if error.kind() == ErrorKind::InvalidInput => missing.push(format!("{name}: {error}")),
                Err(error) => return Err(not_read(&dir.path_of(&name))(error)),
            }
        }
        let bytes = state.as_ref().map_or(&[][..], |state| &state.map);
        let state = StateStream::read(&metadata, bytes);
        if let Some(file) = session_file.as_ref().filter(|file| file.is_owner_alive()) {
            return Err(why_live(&dir.path, file, state.is_discard));
        }
        let cut_bytes = bytes.len() - state.bytes.len();
        if cut_bytes > 0 {
            missing.push(format!("the last {cut_bytes} bytes of the state stream, which are no whole packet"));
        } else if state.last.is_none() {
            missing.push("the state stream".into());
        }
        let owner = dir.owner().map_err(not_read(&dir.path))?;
        Ok(Directory { metadata, session_file, state, streams, entered: Vec::new(), missing, owner })
    }

    /// Adds classes and processes that the owner had not taken in when it was killed.
    pub(super) fn take_in(&mut self, register: &Register) {
        let known: BTreeSet<u64> = self.metadata.classes.events().map(|class| class.id).collect();
        for id in (0..register.class_count() as u16).filter(|id| !known.contains(&(*id).into())) {
            if let Some(Ok(decl)) = class_of(register, id, |number| program_of(register, number)) {
                self.metadata.classes.insert(id, decl);
            }
        }
        name_texts(&mut self.metadata.options.tags, register);
        let all = (1..PROCESS_COUNT as u16).filter_map(|number| Some((number, register.process(number)?)));
        let is_new = |number: u16, process: &Process| {
            process.phase != Phase::Claimed && !self.state.processes.contains(&(number.into(), process.vpid))
        };
        self.entered = all.filter(|(number, process)| is_new(*number, process)).collect();
        self.entered.sort_by_key(|(_, process)| process.joined_at);
    }

    /// Returns the existing part of a stream's file.
    pub(super) fn stream(&self, name: &str) -> &[u8] {
        self.streams.get(name).and_then(Option::as_ref).map_or(&[], |mapped| &mapped.map)
    }

    /// Returns the number of units of 4 KiB of the streams that were truncated while they were read.
    pub(super) fn truncated(&self) -> u64 {
        self.streams.values().flatten().map(|mapped| mapped.guard.replaced()).sum()
    }

    /// Whether the directory may name something of a user as part of its session. Otherwise a user who salvages another
    /// user's directory could be made to copy a third user's memory into the trace.
    pub(super) fn may_name(&self, user: u32) -> bool {
        self.owner == 0 || self.owner == rustix::process::geteuid().as_raw() || self.owner == user
    }

    /// Returns the session's UUID.
    pub(super) fn uuid(&self) -> [u8; 16] {
        self.metadata.options.uuid
    }

    /// Returns the path of the file with the session's memory, if it has one.
    pub(super) fn buffers(&self) -> Option<&Path> {
        self.session_file.as_ref().and_then(|file| file.buffers.as_deref())
    }
}

/// Returns the reason why a session with an owner is not salvaged, and what to do instead.
fn why_live(dir: &Path, file: &SessionFile, is_discard: bool) -> Error {
    let (dir, recorder, socket) = (dir.display(), file.recorder, file.socket.display());
    // The process that has begun the session listens at the socket, for the kernel, even if its owner answers there.
    let status = SessionSocket::at(&file.socket).and_then(|session| ask_for_status(&session));
    let owner = match status.map(|status| status.owner) {
        Ok(owner) if owner == recorder => format!("process {owner} owns it"),
        Ok(owner) if file.is_recorder_alive() => {
            format!("process {owner} owns it, which `dormouse record`, process {recorder}, has started")
        }
        Ok(owner) => format!(
            "process {owner} owns it, although `dormouse record`, process {recorder}, is dead; it ends with the session's processes, and \
             `kill {owner}` ends it now"
        ),
        Err(_) if file.is_recorder_alive() => {
            format!("`dormouse record`, process {recorder}, starts an owner again if it dies")
        }
        Err(error) => format!("a process listens at its socket, but does not answer ({error})"),
    };
    let remedy = if is_discard {
        format!("`dormouse view {dir}` shows what is on disk by now")
    } else {
        format!("`dormouse snapshot {socket}` takes what it holds")
    };
    format!("the session of {dir} is alive: {owner}; let it finish: {remedy}").into()
}

impl StateStream {
    /// Reads the packets up to the first invalid one.
    fn read(metadata: &Metadata, bytes: &[u8]) -> StateStream {
        let mut state = StateStream::default();
        for (header, packet) in (Packets { rest: bytes }) {
            let found = content(metadata, &header, packet, u64::MAX);
            let is_valid = header.stream_id == STREAM_STATE
                && is_whole(&header, packet)
                && found.is_some_and(|found| found.stop == Stop::End)
                && may_follow(state.last.as_ref(), &header);
            if !is_valid {
                break;
            }
            state.last = Some(header);
            state.bytes.extend_from_slice(packet);
            for event in StreamReader::new(metadata, 0, packet).flatten() {
                match event.state_record() {
                    Some(StateRecord::Process { process, pid, vpid, .. }) => {
                        state.processes.insert((process, vpid));
                        if !state.pids.contains(&pid) {
                            state.pids.push(pid);
                        }
                    }
                    Some(StateRecord::Session { mode, .. }) => state.is_discard = mode == "discard",
                    _ => {}
                }
            }
        }
        state
    }
}

fn map(file: &File) -> std::io::Result<Option<Mapped>> {
    if file.metadata()?.len() == 0 {
        return Ok(None);
    }
    // SAFETY: the file belongs to a session whose owner is dead, and no program of the session writes it. If it is
    // truncated meanwhile, the guard replaces the missing memory by zeroes.
    let map = unsafe { Mmap::map(file) }?;
    Ok(Some(Mapped { guard: Guard::new(map.as_ptr(), map.len()), map }))
}

/// Reads metadata up to the declaration that is cut off, if any.
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

#[cfg(test)]
mod tests {
    use super::super::packets::tests::trace;
    use super::*;
    use dormouse_format::{Format, MetadataOptions};

    #[test]
    fn metadata_are_kept_up_to_the_last_complete_declaration() {
        let (text, _) = trace();
        let whole = whole_declarations(text.as_bytes()).unwrap();
        assert_eq!(whole.1, text);
        let class = text.find("event {\n\tname = \"p:e\"").unwrap();
        for len in class + 1..text.len() - 1 {
            let (metadata, kept) = whole_declarations(&text.as_bytes()[..len]).unwrap();
            assert_eq!(kept, text[..class], "{len}");
            assert_eq!(metadata.classes.events().count(), 0);
        }
        // An earlier cut leaves no trace, and a cut inside a character is tolerated.
        assert!(whole_declarations(&text.as_bytes()[..100]).is_err());
        let mut odd = text.clone().into_bytes();
        odd.extend("\nevent { name = \"\u{fc}".bytes());
        odd.pop();
        assert_eq!(whole_declarations(&odd).unwrap().1.trim_end(), text.trim_end());
    }

    #[test]
    fn metadata_in_ctf2_are_kept_up_to_the_last_complete_fragment() {
        let (text, _) = trace();
        let metadata = Metadata::parse(&text).unwrap();
        let options = MetadataOptions { format: Format::Ctf2, ..metadata.options.clone() };
        let text = Metadata { options, ..metadata.clone() }.text();
        let class = text.rfind('\u{1e}').unwrap();
        assert_eq!(whole_declarations(text.as_bytes()).unwrap().1, text);
        for len in class + 2..text.len() - 1 {
            let (found, kept) = whole_declarations(&text.as_bytes()[..len]).unwrap();
            assert_eq!(kept, text[..class], "{len}");
            assert_eq!(found.classes.events().count() + 1, metadata.classes.events().count());
        }
        assert!(whole_declarations(&text.as_bytes()[..100]).is_err());
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
            assert_eq!(dormouse_directory::is_stream_name(name), is_one, "{name}");
        }
    }
}

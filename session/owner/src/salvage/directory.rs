//! The directory of a trace whose owner is dead.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;

use dormouse_abi::page::STREAM_STATE;
use dormouse_abi::register::{PROCESS_COUNT, Phase, Process, Register};
use dormouse_ctf::{Metadata, MetadataError, PacketHeader, StateRecord, StreamReader};
use memmap2::Mmap;

use super::packets::{Packets, Stop, content, is_whole, may_follow};
use crate::error::Error;
use crate::files::{is_stream_name, not_read, read_metadata};
use crate::register::class_of;
use crate::session_file::{FILE_NAME, SessionFile};

/// A directory that an owner has left.
pub(super) struct Directory {
    pub(super) metadata: Metadata,
    pub(super) session_file: Option<SessionFile>,
    pub(super) state: StateStream,
    /// Of events, by name.
    pub(super) streams: BTreeMap<String, Option<Mmap>>,
    /// Processes that only the memory's register knows, by their numbers.
    pub(super) entered: Vec<(u16, Process)>,
    /// What is not whole in it, one line each.
    pub(super) missing: Vec<String>,
}

/// What the state stream says, and as far as it is whole.
#[derive(Default)]
pub(super) struct StateStream {
    pub(super) bytes: Vec<u8>,
    pub(super) last: Option<PacketHeader>,
    pub(super) pids: Vec<u32>,
    /// The processes that are named: the session's number, and the id as the process sees it.
    pub(super) processes: BTreeSet<(u32, u32)>,
    pub(super) is_discard: bool,
}

impl Directory {
    pub(super) fn open(dir: &Path) -> Result<Directory, Error> {
        let (path, bytes) = read_metadata(dir)?;
        let (metadata, metadata_text) =
            whole_declarations(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        let session_file = match std::fs::read(dir.join(FILE_NAME)) {
            Ok(bytes) => SessionFile::decode(&bytes).filter(|file| file.uuid == metadata.options.uuid),
            Err(_) => {
                let dir = dir.display();
                return Err(format!(
                    "the session of {dir} has ended properly, and its trace is as whole as it can be: `dormouse view {dir}`"
                )
                .into());
            }
        };
        if let Some(file) = session_file.as_ref().filter(|file| file.is_owner_alive()) {
            let (dir, owner, socket) = (dir.display(), file.owner, file.socket.display());
            return Err(format!(
                "the session of {dir} is alive, process {owner} owns it: let it finish, or take what it holds with \
                 `dormouse snapshot {socket}`"
            )
            .into());
        }
        let mut missing = Vec::new();
        let cut_bytes = bytes.len() - metadata_text.len();
        if cut_bytes > 0 {
            missing.push(format!("the last {cut_bytes} bytes of the metadata, a declaration that is cut off"));
        }
        let (mut state, mut streams) = (None, BTreeMap::new());
        for entry in std::fs::read_dir(dir).map_err(not_read(dir))? {
            let entry = entry.map_err(not_read(dir))?;
            let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            if name == "state" {
                state = map(&path).map_err(not_read(&path))?;
            } else if is_stream_name(&name) && path.is_file() {
                streams.insert(name, map(&path).map_err(not_read(&path))?);
            }
        }
        let bytes = state.as_deref().unwrap_or_default();
        let state = StateStream::read(&metadata, bytes);
        let cut_bytes = bytes.len() - state.bytes.len();
        if cut_bytes > 0 {
            missing.push(format!("the last {cut_bytes} bytes of the state stream, which are no whole packet"));
        } else if state.last.is_none() {
            missing.push("the state stream".into());
        }
        Ok(Directory { metadata, session_file, state, streams, entered: Vec::new(), missing })
    }

    /// Adds what the owner was killed before it took it in: classes, and processes.
    pub(super) fn take_in(&mut self, register: &Register) {
        let known: BTreeSet<u16> = self.metadata.classes.events().map(|class| class.id).collect();
        for id in (0..register.class_count() as u16).filter(|id| !known.contains(id)) {
            if let Some(Ok(decl)) = class_of(register, id) {
                self.metadata.classes.insert(id, decl);
            }
        }
        let all = (1..PROCESS_COUNT as u16).filter_map(|number| Some((number, register.process(number)?)));
        let is_new = |number: u16, process: &Process| {
            process.phase != Phase::Claimed && !self.state.processes.contains(&(number.into(), process.vpid))
        };
        self.entered = all.filter(|(number, process)| is_new(*number, process)).collect();
    }

    /// What is there of a stream's file.
    pub(super) fn stream(&self, name: &str) -> &[u8] {
        self.streams.get(name).and_then(|map| map.as_deref()).unwrap_or_default()
    }

    /// The session's.
    pub(super) fn uuid(&self) -> [u8; 16] {
        self.metadata.options.uuid
    }

    /// The file that the session's memory lies in, if it has a name.
    pub(super) fn buffers(&self) -> Option<&Path> {
        self.session_file.as_ref().and_then(|file| file.buffers.as_deref())
    }
}

impl StateStream {
    /// The packets up to the first that is not valid.
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
                match StateRecord::decode(&event) {
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

fn map(path: &Path) -> std::io::Result<Option<Mmap>> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(None);
    }
    // SAFETY: a file of a session that is over, which no program writes any more. If it is truncated meanwhile, this process gets SIGBUS
    // and no wrong answer.
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

#[cfg(test)]
mod tests {
    use super::super::packets::tests::trace;
    use super::*;

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

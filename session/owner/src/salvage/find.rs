//! Finds the memory of a session whose owner is dead: in a file, or in live programs.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dormouse_abi::message::{ProgramToTool, ToolToProgram};
use dormouse_tools::Program;

use super::copy::CopiedMemory;
use super::directory::Directory;
use super::memory::{OwnerlessMemory, has_mapped};

/// Result of the search.
#[derive(Default)]
pub(super) struct SearchResult {
    pub(super) copied: Option<CopiedMemory>,
    /// Description of the place where it was found, or of the reason why it was not.
    pub(super) memory: String,
    /// Line that says what is missing because it was not found.
    pub(super) missing: Option<String>,
    /// Programs that still write to the session.
    pub(super) writers: Vec<u32>,
    /// The file with the memory, if there is one and it belongs to the session.
    pub(super) buffers: Option<(PathBuf, File)>,
}

/// Maximum number of reasons that are reported.
const REASONS_MAX: usize = 3;

impl SearchResult {
    /// Copies the memory from the first place that has it.
    pub(super) fn of(directory: &Directory) -> SearchResult {
        let (uuid, buffers, pids) = (directory.uuid(), directory.buffers(), &directory.state.pids);
        let mut found = SearchResult::default();
        let mut reasons: Vec<String> = Vec::new();
        if let Some(path) = buffers {
            let memory = OwnerlessMemory::of_file(path, uuid).and_then(|memory| {
                let file = memory.file().map_err(|error| format!("{}: {error}", path.display()))?;
                if !directory.may_name(file.metadata().map_or(u32::MAX, |metadata| metadata.uid())) {
                    return Err(format!("{} is another user's than the trace", path.display()));
                }
                found.buffers = Some((path.into(), file));
                Ok(memory)
            });
            found.copy(memory, directory, &mut reasons);
        }
        let may_be_its = |pid: &u32| {
            let process = std::fs::metadata(Path::new("/proc").join(pid.to_string()));
            process.is_ok_and(|process| directory.may_name(process.uid()))
        };
        for pid in pids.iter().copied().filter(may_be_its) {
            let (answers, writes) = question(pid, directory);
            found.writers.extend(writes.then_some(pid));
            if found.copied.is_none() && answers {
                found.copy(OwnerlessMemory::of_program(pid, uuid), directory, &mut reasons);
            }
            // A process whose id belongs to another program by now is not concerned.
            if found.copied.is_none() && has_mapped(pid, buffers) {
                found.copy(OwnerlessMemory::of_process(pid, uuid, buffers), directory, &mut reasons);
            }
        }
        // The state stream may lack other processes.
        let others = if found.copied.is_none() { processes() } else { Vec::new() };
        for pid in others.into_iter().filter(|pid| !pids.contains(pid)).filter(may_be_its) {
            if found.copied.is_none() && has_mapped(pid, buffers) {
                // A process that has another session's memory mapped is most likely in that session.
                let memory = OwnerlessMemory::of_program(pid, uuid);
                let memory = memory.or_else(|_| OwnerlessMemory::of_process(pid, uuid, buffers));
                memory.into_iter().for_each(|memory| found.copy(Ok(memory), directory, &mut reasons));
            }
        }
        if found.copied.is_none() {
            reasons.truncate(REASONS_MAX);
            if reasons.is_empty() {
                reasons.push("no program that had it mapped is alive".into());
            }
            let reasons = reasons.join("; ");
            found.memory = format!("none: {reasons}");
            // Also if the state stream names no process: a process is recorded a moment after it joins.
            found.missing = Some(format!("what was only in memory, which is gone: {reasons}"));
        }
        found
    }

    fn copy(&mut self, memory: Result<OwnerlessMemory, String>, directory: &Directory, reasons: &mut Vec<String>) {
        match memory.and_then(|memory| Ok((memory.to_string(), CopiedMemory::of(&memory, directory)?))) {
            Ok((memory, copied)) => (self.memory, self.copied) = (memory, Some(copied)),
            Err(reason) => reasons.push(reason),
        }
    }
}

/// Returns ids of all processes.
fn processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns whether a program that may have the memory mapped answers, and whether it still writes to the session.
fn question(pid: u32, directory: &Directory) -> (bool, bool) {
    let Some(answers) = Program::listening(pid).and_then(|program| program.ask(&ToolToProgram::List).ok()) else {
        // It does not tell whether it writes.
        let memory = OwnerlessMemory::of_process(pid, directory.uuid(), directory.buffers());
        return (false, memory.is_ok());
    };
    let socket = directory.session_file.as_ref().map(|file| file.socket.to_string_lossy());
    let writes = answers.iter().any(|answer| match answer {
        ProgramToTool::Classes { sessions, classes, .. } => {
            let index = sessions.iter().position(|session| socket.as_deref() == Some(session));
            index.is_some_and(|index| classes.iter().any(|class| class.is_armed_in(index)))
        }
        _ => false,
    });
    (true, writes)
}

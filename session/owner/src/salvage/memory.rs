//! A session's memory without its owner: in a file, or in a process that has it mapped. It is read, never mapped: it
//! may have become shorter.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dormouse_abi::message::{MEMORY_PART_SIZE_BYTES_MAX, ProgramToTool, ToolToProgram};
use dormouse_abi::session::SessionLayout;
use dormouse_backing::maps::{self, Map};
use dormouse_tools::{Program, ProgramError};

/// A session's memory without its owner, and where its bytes are read from.
#[derive(Debug)]
pub(crate) struct OwnerlessMemory {
    source: MemorySource,
    uuid: [u8; 16],
    /// Size in bytes, as reported by the file, the program or the kernel.
    pub(crate) size_bytes: u64,
}

#[derive(Debug)]
enum MemorySource {
    /// A file on a file system.
    File { file: File, path: PathBuf },
    /// A program that answers at its socket, and the index of its tracer.
    Program { program: Program, index: usize },
    /// A process that does not answer, but whose memory may be read.
    Process { pid: u32, start: u64 },
    /// A writer in a test.
    #[cfg(test)]
    Writer(Answer),
}

/// Fills a buffer with the bytes at an offset.
#[cfg(test)]
type Fill = dyn Fn(u64, &mut [u8]);

#[cfg(test)]
struct Answer(Box<Fill>);

#[cfg(test)]
impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answer")
    }
}

/// A mapping of a session's memory in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Region {
    start: u64,
    len: u64,
}

/// Name that the kernel shows for the memory files of sessions.
const MEMORY_FILE: &str = "/memfd:dormouse-session";

impl OwnerlessMemory {
    /// Opens the memory of session `uuid` in a file.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn of_file(path: &Path, uuid: [u8; 16]) -> Result<OwnerlessMemory, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        // Does not follow a link, and does not block on a FIFO.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(format!("{} is not a regular file", path.display()));
        }
        OwnerlessMemory { source: MemorySource::File { file, path: path.into() }, uuid, size_bytes: metadata.len() }
            .checked()
    }

    /// Finds the memory of session `uuid` in a program that answers.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn of_program(pid: u32, uuid: [u8; 16]) -> Result<OwnerlessMemory, String> {
        let program = Program::find(pid).map_err(why_not_read)?;
        let mut reason = String::new();
        for index in 0..program.tracer_count() {
            match part(&program, index, uuid, 0, 0) {
                Ok((size_bytes, _)) => {
                    return Ok(OwnerlessMemory { source: MemorySource::Program { program, index }, uuid, size_bytes });
                }
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    /// Finds the memory of session `uuid` that a process has mapped, if the kernel lets this process read it. `buffers`
    /// is the file with the memory, if there is one.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn of_process(pid: u32, uuid: [u8; 16], buffers: Option<&Path>) -> Result<OwnerlessMemory, String> {
        let mut reason = format!("process {pid} does not have it mapped");
        for Region { start, len } in regions(pid, buffers)? {
            match (OwnerlessMemory { source: MemorySource::Process { pid, start }, uuid, size_bytes: len }).checked() {
                Ok(memory) => return Ok(memory),
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    /// Returns the memory of a writer in this process, which acts before each read is answered.
    #[cfg(test)]
    pub(crate) fn of_writer(
        uuid: [u8; 16],
        size_bytes: u64,
        answer: impl Fn(u64, &mut [u8]) + 'static,
    ) -> OwnerlessMemory {
        OwnerlessMemory { source: MemorySource::Writer(Answer(Box::new(answer))), uuid, size_bytes }
    }

    /// Returns the memory if it belongs to this session.
    fn checked(self) -> Result<OwnerlessMemory, String> {
        let mut uuid = [0; 16];
        self.read(std::mem::offset_of!(SessionLayout, uuid) as u64, &mut uuid)?;
        if uuid == self.uuid { Ok(self) } else { Err(format!("{self} is not the memory of this session")) }
    }

    /// Returns a new handle of the file.
    pub(crate) fn file(&self) -> std::io::Result<File> {
        match &self.source {
            MemorySource::File { file, .. } => file.try_clone(),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    /// Whether it comes from a process, and not from a file.
    pub(crate) fn is_live(&self) -> bool {
        !matches!(self.source, MemorySource::File { .. })
    }

    /// Fills `target` with the bytes at `offset`.
    ///
    /// # Errors
    /// One line with the reason; `target` may have been filled in part.
    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), String> {
        match &self.source {
            MemorySource::File { file, .. } => {
                file.read_exact_at(target, offset).map_err(|error| format!("cannot read {self}: {error}"))
            }
            MemorySource::Program { program, index } => {
                let mut at = offset;
                for piece in target.chunks_mut(MEMORY_PART_SIZE_BYTES_MAX as usize) {
                    let (_, bytes) = part(program, *index, self.uuid, at, piece.len() as u32)?;
                    if bytes.len() != piece.len() {
                        return Err(format!("{self} is shorter than it says"));
                    }
                    piece.copy_from_slice(&bytes);
                    at += bytes.len() as u64;
                }
                Ok(())
            }
            MemorySource::Process { pid, start } => read_process(*pid, start.wrapping_add(offset), target)
                .map_err(|error| format!("cannot read {self}: {error}")),
            #[cfg(test)]
            MemorySource::Writer(Answer(answer)) => {
                answer(offset, target);
                Ok(())
            }
        }
    }
}

/// Describes the source.
impl std::fmt::Display for OwnerlessMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.source {
            MemorySource::File { path, .. } => write!(f, "the file {}", path.display()),
            MemorySource::Program { program, .. } => write!(f, "what process {} has sent", program.pid),
            MemorySource::Process { pid, .. } => write!(f, "the memory of process {pid}"),
            #[cfg(test)]
            MemorySource::Writer(_) => write!(f, "a writer's memory"),
        }
    }
}

/// Returns the size of the whole memory, and a part of it.
fn part(
    program: &Program,
    index: usize,
    uuid: [u8; 16],
    offset: u64,
    size_bytes: u32,
) -> Result<(u64, Vec<u8>), String> {
    let answer = program.ask_one(index, &ToolToProgram::ReadMemory { uuid, offset, size_bytes });
    match answer.map_err(why_not_read)? {
        ProgramToTool::MemoryPart { memory_size_bytes, bytes } => Ok((memory_size_bytes, bytes)),
        other => Err(program.refusal(other).into()),
    }
}

/// Returns, for the trace, why a program's memory is not read through the program.
fn why_not_read(error: ProgramError) -> String {
    match error {
        ProgramError::Unreachable(unreachable) => format!("process {} does not answer", unreachable.pid),
        ProgramError::Failed(text) => text,
    }
}

/// Fills the whole of `target` by `process_vm_readv(2)`.
fn read_process(pid: u32, start: u64, target: &mut [u8]) -> std::io::Result<()> {
    let mut done = 0;
    while done < target.len() {
        let rest = &mut target[done..];
        let local = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let address = start.wrapping_add(done as u64) as usize;
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: rest.len() };
        // SAFETY: the local buffer is `rest`, of the given length, which is borrowed exclusively; the remote address is
        // in another process, and the kernel checks it.
        match unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) } {
            ..=-1 => return Err(std::io::Error::last_os_error()),
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => done += count as usize,
        }
    }
    Ok(())
}

/// Whether a process is known to have a session's memory mapped.
pub(crate) fn has_mapped(pid: u32, buffers: Option<&Path>) -> bool {
    regions(pid, buffers).is_ok_and(|regions| !regions.is_empty())
}

/// Returns where a process has memory of sessions mapped.
fn regions(pid: u32, buffers: Option<&Path>) -> Result<Vec<Region>, String> {
    let maps = maps::read(pid).map_err(|error| format!("cannot read the mappings of process {pid}: {error}"))?;
    let name = buffers.map_or(MEMORY_FILE.as_bytes(), |path| path.as_os_str().as_bytes());
    Ok(regions_in(&maps, name))
}

/// Returns the complete mappings of the file `name`: the kernel may show one mapping in several lines.
fn regions_in(maps: &[Map], name: &[u8]) -> Vec<Region> {
    let mut regions: Vec<Region> = Vec::new();
    for Map { range, offset, name: found, .. } in maps {
        if found.strip_suffix(b" (deleted)").unwrap_or(found) != name || range.end < range.start {
            continue;
        }
        let len = range.end - range.start;
        match regions.last_mut() {
            _ if *offset == 0 => regions.push(Region { start: range.start, len }),
            Some(last) if last.start + last.len == range.start && last.len == *offset => last.len += len,
            _ => {}
        }
    }
    regions
}

#[cfg(test)]
mod tests {
    use dormouse_testing::{Lack, is_emulated, skip};

    use super::*;

    #[test]
    fn mappings_are_found_completely() {
        let maps = "\
00400000-00401000 r-xp 00000000 08:01 5                          /bin/x
7f0000000000-7f0000001000 rw-s 00000000 00:01 7                  /memfd:dormouse-session (deleted)
7f0000001000-7f0000003000 rw-s 00001000 00:01 7                  /memfd:dormouse-session (deleted)
7f0000005000-7f0000006000 rw-s 00003000 00:01 7                  /memfd:dormouse-session (deleted)
7f0000008000-7f0000009000 rw-s 00000000 00:01 9                  /memfd:dormouse-session (deleted)
7f000000a000-7f000000b000 rw-s 00000000 00:01 9                  /dev/shm/a b
x-y rw-s 00000000 00:01 9                  /memfd:dormouse-session
7f000000c000-7f000000d000 rw-s 00000000 00:01 9                  /memfd:dormouse-session-not
7fff00000000-7fff00001000 rw-p 00000000 00:00 0
";
        let region = |start, len| Region { start, len };
        let maps = maps::parse(maps.as_bytes());
        assert_eq!(
            regions_in(&maps, MEMORY_FILE.as_bytes()),
            [region(0x7f0000000000, 0x3000), region(0x7f0000008000, 0x1000)]
        );
        assert_eq!(regions_in(&maps, b"/dev/shm/a b"), [region(0x7f000000a000, 0x1000)]);
        assert_eq!(regions_in(&[], MEMORY_FILE.as_bytes()), []);
    }

    #[test]
    fn another_process_is_read_up_to_the_end_of_its_mapping() {
        if is_emulated() {
            return skip(Lack::emulated("QEMU has no process_vm_readv(2)"));
        }
        let bytes = [5u8, 6, 7];
        let mut target = [0; 3];
        let me = std::process::id();
        read_process(me, bytes.as_ptr().addr() as u64, &mut target).unwrap();
        assert_eq!(target, bytes);
        assert!(read_process(me, 8, &mut target).is_err());
        assert!(read_process(me, u64::MAX, &mut target).is_err());
    }

    #[test]
    fn files_that_are_not_the_sessions_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str| OwnerlessMemory::of_file(&dir.path().join(name), [7; 16]).map(|_| ());
        let mut bytes = vec![0; 4096];
        std::fs::write(dir.path().join("short"), [7; 10]).unwrap();
        std::fs::write(dir.path().join("other"), &bytes).unwrap();
        bytes[std::mem::offset_of!(SessionLayout, uuid)..][..16].fill(7);
        std::fs::write(dir.path().join("ours"), &bytes).unwrap();
        std::os::unix::fs::symlink("ours", dir.path().join("link")).unwrap();
        assert_eq!(of("ours"), Ok(()));
        for name in ["short", "other", "link", "none", "."] {
            assert!(of(name).is_err(), "{name}");
        }
    }
}

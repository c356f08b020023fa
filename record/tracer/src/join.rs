//! Joining and leaving a session.

use core::sync::atomic::Ordering;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use dormouse_abi::class::Announcement;
use dormouse_abi::message::{Edge, Grant, MEMORY_PART_SIZE_BYTES_MAX, OwnerToProgram, ProgramToOwner, ProgramToTool};
use dormouse_backing::{BackingError, Mapping};
use dormouse_percpu::Rseq;
use dormouse_relay::Memory;
use dormouse_transport::{Conversation, Deadline};

use crate::membarrier;
use crate::session::{Attached, forget_users, has_users, set_current};
#[cfg(target_arch = "x86_64")]
use crate::thread;

/// How this process joins sessions, found out once.
#[derive(Debug)]
pub(crate) struct Joining {
    /// `DORMOUSE_NO_RSEQ=1`.
    pub(crate) no_rseq: bool,
    /// The session's memory, and the mapping that it lives in.
    mapped: Option<(Mapping, Memory)>,
    /// Whether there may be threads that have written to a session before, whose next record may go the shortest way at once.
    has_threads_with_context: bool,
}

/// How long a program waits for its session's owner at most, in all that it asks to join, or to announce classes.
const PATIENCE: Duration = Duration::from_millis(50);

/// By when that is over which begins now.
pub(crate) fn deadline() -> Deadline<'static> {
    Deadline::after(PATIENCE)
}

impl Joining {
    /// In no session.
    pub(crate) const fn new() -> Joining {
        Joining { no_rseq: false, mapped: None, has_threads_with_context: false }
    }

    /// Joins the session at `socket`; the classes get the grants that are returned.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn join(
        &mut self,
        socket: &Path,
        classes: &[Announcement],
        deadline: Deadline<'_>,
    ) -> Result<(&'static Attached, Vec<Grant>), String> {
        let (first, rest) = part(classes, ProgramToOwner::HELLO_CLASSES_SIZE_BYTES_MAX);
        let hello = ProgramToOwner::Hello {
            vpid: std::process::id(),
            program: std::fs::read_link("/proc/self/exe").unwrap_or_default().to_string_lossy().into_owned(),
            command_line: command_line(),
            classes: first.to_vec(),
        };
        let (answer, fd) = ask(socket, &hello, deadline)?;
        let OwnerToProgram::Welcome { process, mut grants } = answer else { return Err(refusal(answer)) };
        grants.extend(announce(socket, process, rest, deadline)?);
        let fd = fd.ok_or("the session owner sent no memory")?;
        let memory = self.adopt(fd)?;
        // A thread's only registration is not a guest's to take: some allocators want it where libc does not.
        let rseq = if self.no_rseq { None } else { Rseq::of_libc() };
        let attached = Attached::new(memory, rseq, membarrier::is_ready(), process, socket.into())?;
        if self.has_threads_with_context {
            attached.make_ready();
        }
        self.has_threads_with_context = true;
        #[cfg(target_arch = "x86_64")]
        if let Some(rseq) = rseq {
            thread::RSEQ_OFFSET.store(rseq.offset(), Ordering::Relaxed);
        }
        let attached = Box::leak(Box::new(attached));
        set_current(Some(attached));
        Ok((attached, grants))
    }

    /// Maps the memory, or keeps the mapping when it is of the same session (in a forked child).
    fn adopt(&mut self, fd: OwnedFd) -> Result<Memory, String> {
        // The session's owner is this program's user or root, and has put its buffers where they are: `is_of_own_user`.
        let fresh = Mapping::map(&fd, false).or_else(|error| match error {
            BackingError::NotSealed | BackingError::NotMemory => Mapping::map_file(&fd),
            error => Err(error),
        });
        let fresh = fresh.map_err(|error| match error {
            // Not in libc's words, for which it may call the loader, under the tracer's lock.
            BackingError::System { purpose, errno } => {
                format!("{purpose}: {}", dormouse_transport::Error::System(errno))
            }
            error => error.to_string(),
        })?;
        // SAFETY: just mapped; kept in `self` until `leave` has waited for everybody who uses it, or dropped below.
        let memory = unsafe { Memory::from_raw(fresh.base(), fresh.len()) }?;
        match &self.mapped {
            Some((_, former)) if former.uuid() == memory.uuid() => Ok(*former),
            _ => {
                self.leave();
                self.mapped = Some((fresh, memory));
                Ok(memory)
            }
        }
    }

    /// A part of the mapped memory, for a tool that salvages what a dead owner has left. Whatever writers do meanwhile, the
    /// tool checks what it gets.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn read_memory(&self, uuid: [u8; 16], offset: u64, size_bytes: u32) -> Result<ProgramToTool, String> {
        // Not of a former session whose mapping could not be taken down: nobody would know its identity.
        let mapped = self.mapped.as_ref().filter(|(_, memory)| memory.uuid() == uuid);
        let (mapping, memory) = mapped.ok_or("the program is not in that session")?;
        if !mapping.is_sealed() {
            return Err("the session's buffers are a file, which may be shorter by now; read that".into());
        }
        let memory_size_bytes = memory.geometry().size_bytes() as u64;
        let begin = offset.min(memory_size_bytes) as usize;
        let len = (size_bytes.min(MEMORY_PART_SIZE_BYTES_MAX) as usize).min(memory_size_bytes as usize - begin);
        // Others write meanwhile: bytes that are committed do not change, others are not interpreted here. Sealed, so no access is a SIGBUS.
        let words = &memory.words()[begin / 8..(begin + len).div_ceil(8)];
        let bytes = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).skip(begin % 8).take(len);
        Ok(ProgramToTool::MemoryPart { memory_size_bytes, bytes: bytes.collect() })
    }

    /// Leaves the session, if any, and unmaps its memory once no thread uses it.
    pub(crate) fn leave(&mut self) {
        set_current(None);
        let Some((mapping, _)) = self.mapped.take() else { return };
        // Critical sections that have compared the word before are restarted, and compare it again.
        let fenced = membarrier::restart_sections();
        // Those outside of sections are counted; they take microseconds, unless one was killed or stopped in there.
        for _ in 0..1_000 {
            if !has_users() {
                break;
            }
            std::thread::yield_now();
        }
        if !fenced || has_users() {
            // Better a mapping too many than one too few.
            core::mem::forget(mapping);
        }
    }

    /// In a forked child: nobody else is at work, whatever the parent's threads were doing.
    pub(crate) fn after_fork(&mut self) {
        forget_users();
        // The one thread has forgotten its context. The mapping is there, and its page table is empty.
        self.has_threads_with_context = false;
    }
}

/// Announces more classes to the session in which this process has the number `process`.
///
/// # Errors
/// One line.
pub(crate) fn announce(
    socket: &Path,
    process: u16,
    classes: &[Announcement],
    deadline: Deadline<'_>,
) -> Result<Vec<Grant>, String> {
    let (mut grants, mut rest) = (Vec::new(), classes);
    while !rest.is_empty() {
        let (classes, others) = part(rest, ProgramToOwner::MORE_CLASSES_SIZE_BYTES_MAX);
        match ask(socket, &ProgramToOwner::MoreClasses { process, classes: classes.to_vec() }, deadline)?.0 {
            OwnerToProgram::Welcome { grants: more, .. } => grants.extend(more),
            other => return Err(refusal(other)),
        }
        rest = others;
    }
    Ok(grants)
}

/// As many classes as go into so many bytes, and the others.
fn part(classes: &[Announcement], size_bytes_max: usize) -> (&[Announcement], &[Announcement]) {
    let mut size_bytes = 0;
    let is_in = |class: &&Announcement| {
        size_bytes += class.size_bytes();
        size_bytes <= size_bytes_max
    };
    classes.split_at(classes.iter().take_while(is_in).count())
}

fn command_line() -> String {
    let bytes = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments = bytes.split(|byte| *byte == 0).filter(|argument| !argument.is_empty());
    arguments.map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ")
}

pub(crate) fn refusal(answer: OwnerToProgram) -> String {
    match answer {
        OwnerToProgram::Error { text } => text,
        _ => "the session owner answered something else".into(),
    }
}

/// One question, one answer, perhaps with a descriptor.
pub(crate) fn ask(
    socket: &Path,
    question: &ProgramToOwner,
    deadline: Deadline<'_>,
) -> Result<(OwnerToProgram, Option<OwnedFd>), String> {
    let told = |error| format!("session {}: {error}", socket.display());
    let mut conversation = Conversation::connect(socket, Edge::ProgramOwner, deadline).map_err(told)?;
    if !conversation.peer().map_err(told)?.is_own_user_or_root() {
        return Err(format!("session {}: it belongs to another user", socket.display()));
    }
    conversation.ask_with_fd(question).map_err(told)
}

#[cfg(test)]
mod tests {
    use dormouse_abi::message::Message;

    use super::*;

    #[test]
    fn no_frame_is_longer_than_its_reader_takes() {
        let fits = |question: ProgramToOwner| {
            let frame = question.encode();
            frame.first_chunk().is_some_and(|head| ProgramToOwner::frame_size_bytes(head) == Ok(frame.len()))
        };
        // As long as they are sent, with more fields than any class that is taken.
        let name = "n".repeat(1000);
        let class = Announcement { provider: name.clone(), name: name.clone(), fields: vec![(name.clone(), 4); 255] };
        let classes = vec![class; 100];
        let (first, mut rest) = part(&classes, ProgramToOwner::HELLO_CLASSES_SIZE_BYTES_MAX);
        let text = "x".repeat(10_000);
        let hello = |classes: &[Announcement]| ProgramToOwner::Hello {
            vpid: 1,
            program: text.clone(),
            command_line: text.clone(),
            classes: classes.to_vec(),
        };
        assert!(first.is_empty() && fits(hello(first)));
        let mut frames = 0;
        while !rest.is_empty() {
            let (first, others) = part(rest, ProgramToOwner::MORE_CLASSES_SIZE_BYTES_MAX);
            assert!(!first.is_empty() && fits(ProgramToOwner::MoreClasses { process: 1, classes: first.to_vec() }));
            (rest, frames) = (others, frames + 1);
        }
        assert!(frames > 1);

        let small = vec![Announcement { provider: "p".into(), name: "e".into(), fields: vec![] }; 100_000];
        let (first, rest) = part(&small, ProgramToOwner::HELLO_CLASSES_SIZE_BYTES_MAX);
        assert!(!first.is_empty() && !rest.is_empty() && fits(hello(first)));
        assert_eq!(part(&small[..3], 1000), (&small[..3], &[][..]));
        assert_eq!(part(&[], 1000), (&[][..], &[][..]));
    }
}

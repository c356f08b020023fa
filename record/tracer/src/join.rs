//! Joining and leaving a session.

use core::sync::atomic::Ordering;
use std::io::{Error, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use dormouse_abi::wire::{Announcement, FRAME_SIZE_MAX_BYTES, Grant, MEMORY_PART_SIZE_BYTES_MAX, Message, VERSION};
use dormouse_backing::{BackingError, Mapping};
use dormouse_percpu::Rseq;
use dormouse_relay::Memory;

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

/// How long a program waits for a session owner at most.
const PATIENCE: Duration = Duration::from_secs(2);

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
    ) -> Result<(&'static Attached, Vec<Grant>), String> {
        let (first, rest) = part(classes);
        let hello = Message::Hello {
            version: VERSION,
            vpid: std::process::id(),
            program: std::fs::read_link("/proc/self/exe").unwrap_or_default().to_string_lossy().into_owned(),
            command_line: command_line(),
            classes: first.to_vec(),
        };
        let (answer, fd) = ask(socket, &hello, PATIENCE)?;
        let Message::Welcome { process, mut grants } = answer else { return Err(refusal(answer)) };
        grants.extend(announce(socket, process, rest)?);
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
            BackingError::System { purpose, errno } => format!("{purpose}: {}", told(&errno.into())),
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
    pub(crate) fn read_memory(&self, uuid: [u8; 16], offset: u64, size_bytes: u32) -> Result<Message, String> {
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
        Ok(Message::MemoryPart { memory_size_bytes, bytes: bytes.collect() })
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
pub(crate) fn announce(socket: &Path, process: u16, classes: &[Announcement]) -> Result<Vec<Grant>, String> {
    let (mut grants, mut rest) = (Vec::new(), classes);
    while !rest.is_empty() {
        let (classes, others) = part(rest);
        match ask(socket, &Message::MoreClasses { process, classes: classes.to_vec() }, PATIENCE)?.0 {
            Message::Welcome { grants: more, .. } => grants.extend(more),
            other => return Err(refusal(other)),
        }
        rest = others;
    }
    Ok(grants)
}

/// As many classes as go into a frame together with what else a program says, at least one, and the others.
fn part(classes: &[Announcement]) -> (&[Announcement], &[Announcement]) {
    let mut size_bytes = 0;
    let is_in = |class: &&Announcement| {
        size_bytes += class.size_bytes();
        size_bytes <= FRAME_SIZE_MAX_BYTES / 2
    };
    classes.split_at(classes.iter().take_while(is_in).count().max(1).min(classes.len()))
}

fn command_line() -> String {
    let bytes = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments = bytes.split(|byte| *byte == 0).filter(|argument| !argument.is_empty());
    arguments.map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ")
}

pub(crate) fn refusal(answer: Message) -> String {
    match answer {
        Message::Error { text } => text,
        _ => "the session owner speaks another language".into(),
    }
}

/// What went wrong, not in libc's words: for these it may load a translation and a converter of character sets, and so call the loader,
/// under the tracer's lock.
fn told(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => format!("{} (os error {code})", error.kind()),
        None => error.to_string(),
    }
}

/// One question, one answer, perhaps with a descriptor.
pub(crate) fn ask(socket: &Path, question: &Message, patience: Duration) -> Result<(Message, Option<OwnedFd>), String> {
    let converse = || -> std::io::Result<(Message, Option<OwnedFd>)> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        if !is_of_own_user(&stream)? {
            return Err(Error::other("the session belongs to another user"));
        }
        stream.write_all(&question.encode())?;
        let mut head = [0u8; 4];
        let fd = receive_with_fd(&stream, &mut head)?;
        Ok((read_message(&mut stream, head)?, fd))
    };
    converse().map_err(|error| format!("session {}: {}", socket.display(), told(&error)))
}

/// Reads the rest of a frame that begins so. What is no message is [`ErrorKind::InvalidData`].
pub(crate) fn read_message(stream: &mut UnixStream, head: [u8; 4]) -> std::io::Result<Message> {
    let len = u32::from_le_bytes(head) as usize;
    if len > FRAME_SIZE_MAX_BYTES {
        return Err(Error::new(ErrorKind::InvalidData, "the message is too long"));
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    Message::decode(&body).map_err(|error| Error::new(ErrorKind::InvalidData, error))
}

/// Whether the other side is the same user or root: only these may own a session that a program joins, or talk to the program.
pub(crate) fn is_of_own_user(stream: &UnixStream) -> std::io::Result<bool> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    Ok(peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// Fills `head`, and takes a descriptor that comes with it.
fn receive_with_fd(stream: &UnixStream, head: &mut [u8; 4]) -> std::io::Result<Option<OwnedFd>> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut fd = None;
    let mut filled = 0;
    while filled < head.len() {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut head[filled..])];
        let received = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                fd = descriptors.into_iter().next().or(fd);
            }
        }
        if received.bytes == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        filled += received.bytes;
    }
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_frame_is_longer_than_its_reader_takes() {
        let name = "n".repeat(255);
        let class = Announcement { provider: name.clone(), name: name.clone(), fields: vec![(name, 4); 32] };
        let classes = vec![class; 1_000];
        let mut rest = classes.as_slice();
        let mut frames = 0;
        while !rest.is_empty() {
            let (first, others) = part(rest);
            let len = Message::MoreClasses { process: 1, classes: first.to_vec() }.encode().len();
            assert!(!first.is_empty() && len <= FRAME_SIZE_MAX_BYTES, "{len}");
            (rest, frames) = (others, frames + 1);
        }
        assert!(frames > 1);
        assert_eq!(part(&classes[..3]), (&classes[..3], &[][..]));
        assert_eq!(part(&[]), (&[][..], &[][..]));
    }
}

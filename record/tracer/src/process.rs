//! The session that this process is in: joining, leaving, and the word that the record path goes by.

#[cfg(target_arch = "x86_64")]
use core::sync::atomic::AtomicIsize;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dormouse_abi::record::RecordKind;
#[cfg(target_arch = "x86_64")]
use dormouse_abi::session::StreamControl;
use dormouse_abi::session::{CLOCK_TSC, Line, STREAM_STRIDE_BYTES};
use dormouse_abi::wire::{Announcement, FRAME_SIZE_MAX_BYTES, Grant, MEMORY_PART_SIZE_BYTES_MAX, Message, VERSION};
use dormouse_backing::{BackingError, Mapping};
#[cfg(target_arch = "x86_64")]
use dormouse_percpu::PerCpu;
use dormouse_percpu::{Area, Rseq};
use dormouse_relay::Memory;

use crate::presence::Presence;

/// A session as this process sees it. Never freed, because the record path may hold it at any time; its mapping is.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Attached {
    /// First field: critical sections read it through the pointers in [`CURRENT`] and [`CURRENT_SECTION`].
    #[cfg(target_arch = "x86_64")]
    session: dormouse_relay::arch::Session,
    pub(crate) memory: Memory,
    /// Restartable sequences, where the process has them.
    pub(crate) rseq: Option<Rseq>,
    /// The same, where the clock can be read inside a section as well, and records have context.
    pub(crate) fast_rseq: Option<Rseq>,
    /// The same, where records are compact.
    #[cfg(target_arch = "x86_64")]
    pub(crate) compact_rseq: Option<Rseq>,
    /// What headers records have.
    pub(crate) record_kind: RecordKind,
    /// The control blocks of the processors' streams.
    streams: Area,
    clock: u32,
    /// The session's number for this process.
    pub(crate) process: u16,
    /// The session's socket.
    pub(crate) socket: PathBuf,
    presence: Presence,
}

// SAFETY: plain data, written once; what the pointers lead to is shared memory (`Memory` is `Sync` for the same reason).
unsafe impl Sync for Attached {}
// SAFETY: as above.
unsafe impl Send for Attached {}

/// A stream's control block, first in its stride.
// SAFETY: offset 0 is aligned for anything, and the block fits the stride (const assert in `abi`).
#[cfg(target_arch = "x86_64")]
const CONTROL_BLOCK: PerCpu<StreamControl> = unsafe { PerCpu::new(0) };

/// The session, or null.
pub(crate) static CURRENT: AtomicPtr<Attached> = AtomicPtr::new(core::ptr::null_mut());

/// The session that the process is in. Wait-free; async-signal-safe.
pub(crate) fn current() -> Option<&'static Attached> {
    // (M) pairs with (M').
    // SAFETY: what `CURRENT` points to is never freed.
    unsafe { CURRENT.load(Ordering::SeqCst).as_ref() }
}

/// What the shortest write path reads of the session; [`NO_SESSION`] without one. It follows [`CURRENT`].
#[cfg(target_arch = "x86_64")]
pub(crate) static CURRENT_SECTION: AtomicPtr<dormouse_relay::arch::Session> =
    AtomicPtr::new((&raw const NO_SESSION).cast_mut());

#[cfg(target_arch = "x86_64")]
static NO_SESSION: dormouse_relay::arch::Session = dormouse_relay::arch::Session::none();

/// Joins a session, or none, as far as writers are concerned.
fn set_current(attached: Option<&'static Attached>) {
    let pointer = attached.map_or(core::ptr::null_mut(), |attached| core::ptr::from_ref(attached).cast_mut());
    // (M') pairs with (M): ids of the session before were taken back before. (L) pairs with (K).
    CURRENT.store(pointer, Ordering::SeqCst);
    #[cfg(target_arch = "x86_64")]
    {
        let section = attached.map_or(&raw const NO_SESSION, |attached| &raw const attached.session);
        // (X) Release pairs with the section's load in `define_record_words!`, which acquires on x86-64: what it points to is
        // written before. Leaving restarts sections before it goes on.
        CURRENT_SECTION.store(section.cast_mut(), Ordering::Release);
    }
}

/// Where threads' rseq areas lie from their thread pointers; 0 without rseq. Set before the first session and never changed, since
/// libc places them once for all. A thread has a context word only once it has seen another value than 0.
#[cfg(target_arch = "x86_64")]
pub(crate) static RSEQ_OFFSET: AtomicIsize = AtomicIsize::new(0);

/// How many threads touch the memory outside critical sections just now, in parts that lie in cache lines of their own, so that
/// threads that switch pages at once do not wait for each other.
static USERS: [Line<AtomicU64>; 16] = [const { Line(AtomicU64::new(0)) }; 16];

fn has_users() -> bool {
    // (L) pairs with (K), and with (L'): a thread counts in one part, which is either seen here or was counted after `CURRENT` changed.
    USERS.iter().any(|part| part.0.load(Ordering::SeqCst) != 0)
}

impl Attached {
    /// What the critical section needs for a processor; `None` for one that has no stream.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn site(&self, rseq: Rseq, cpu: u32) -> Option<dormouse_relay::arch::Site> {
        let control = self.streams.ptr(CONTROL_BLOCK, cpu)?;
        Some(dormouse_relay::arch::Site {
            rseq_offset: rseq.offset(),
            cpu,
            control,
            session_word: (&raw const CURRENT).cast(),
            session: &self.session,
        })
    }

    /// The session's clock.
    pub(crate) fn now(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if self.clock == CLOCK_TSC {
            return dormouse_relay::arch::timestamp();
        }
        monotonic_ns()
    }
}

/// Nanoseconds of the monotonic clock. Async-signal-safe; leaves errno as it is.
pub(crate) fn monotonic_ns() -> u64 {
    // Not by rustix: it looks for the vDSO by the kernel's auxiliary vector, and faults where valgrind has hidden it.
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that every Linux has, and room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Keeps the session's memory mapped while it is touched outside critical sections. Async-signal-safe.
pub(crate) struct Guard {
    attached: &'static Attached,
    users: &'static AtomicU64,
}

impl Attached {
    /// Records are about to be written. The caller holds a [`Guard`].
    pub(crate) fn make_ready(&self) {
        // SAFETY: the guard keeps the memory mapped.
        unsafe { self.presence.begin(&self.memory) };
    }

    /// Page `index` is about to be touched outside critical sections, or drawn for them. The caller holds a [`Guard`].
    pub(crate) fn make_page_ready(&self, index: u32) {
        // SAFETY: the guard keeps the memory mapped.
        unsafe { self.presence.make_page_ready(&self.memory, index) };
    }

    /// As [`Attached::make_page_ready`], of the page at `unit`, if there is one.
    pub(crate) fn make_unit_ready(&self, unit: u32) {
        self.memory.geometry().page_of_unit(unit).into_iter().for_each(|index| self.make_page_ready(index));
    }

    /// As [`Attached::make_page_ready`], of a stream's control block and ring.
    pub(crate) fn make_stream_ready(&self, stream: u32) {
        // SAFETY: as above.
        unsafe { self.presence.make_stream_ready(&self.memory, stream) };
    }
}

impl core::ops::Deref for Guard {
    type Target = Attached;
    fn deref(&self) -> &Attached {
        self.attached
    }
}

impl Guard {
    /// `None` when the process has left the session meanwhile.
    pub(crate) fn enter(attached: &'static Attached) -> Option<Guard> {
        // (K) SeqCst pairs with (L): either this thread sees that the session is left, or the leaver sees this user.
        let users = &USERS[crate::thread::number_below(USERS.len())].0;
        users.fetch_add(1, Ordering::SeqCst);
        let guard = Guard { attached, users };
        core::ptr::eq(CURRENT.load(Ordering::SeqCst), attached).then_some(guard)
    }

    /// Leaves a session that its owner has ended. The memory stays mapped until the next session is joined: unmapping waits
    /// for threads, which a record path must not.
    pub(crate) fn leave(&self) {
        let mine = core::ptr::from_ref(self.attached).cast_mut();
        // (M') pairs with (M).
        let _ = CURRENT.compare_exchange(mine, core::ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed);
        #[cfg(target_arch = "x86_64")]
        {
            let mine = (&raw const self.attached.session).cast_mut();
            let none = (&raw const NO_SESSION).cast_mut();
            // Relaxed: no session is a constant. Another session that was joined meanwhile stays.
            let _ = CURRENT_SECTION.compare_exchange(mine, none, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // (L') pairs with the loads in `leave`: what this user did comes before the unmapping.
        self.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How this process joins sessions, found out once.
#[derive(Debug)]
pub(crate) struct Joining {
    /// `DORMOUSE_NO_RSEQ=1`.
    pub(crate) no_rseq: bool,
    mapping: Option<Mapping>,
    /// The uuid of the session that `mapping` is of.
    uuid: [u8; 16],
    /// Whether there may be threads that have written to a session before, whose next record may go the shortest way at once.
    has_threads_with_context: bool,
}

/// How long a program waits for a session owner at most.
const PATIENCE: Duration = Duration::from_secs(2);

impl Joining {
    /// In no session.
    pub(crate) const fn new() -> Joining {
        Joining { no_rseq: false, mapping: None, uuid: [0; 16], has_threads_with_context: false }
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
        self.adopt(fd)?;
        let mapping = self.mapping.as_ref().ok_or("the session's memory is not mapped")?;
        // SAFETY: the mapping lives in `self` until `leave` has waited for everybody who uses it.
        let memory = unsafe { Memory::from_raw(mapping.base(), mapping.len()) }?;
        let presence = Presence::new(&memory);
        if self.has_threads_with_context {
            // SAFETY: as above.
            unsafe { presence.begin(&memory) };
        }
        self.has_threads_with_context = true;
        let clock = memory.clock();
        if clock == CLOCK_TSC && !cfg!(target_arch = "x86_64") {
            return Err("the session's clock is not to be had on this machine".into());
        }
        // SAFETY: the geometry places the control blocks there, one in each stride; they are all atomics.
        let streams = unsafe {
            Area::new(memory.streams_base(), STREAM_STRIDE_BYTES.trailing_zeros(), memory.geometry().cpu_count)
        };
        // A thread's only registration is not a guest's to take: some allocators want it where libc does not.
        let rseq = if self.no_rseq { None } else { Rseq::of_libc() };
        // Sections of the shortest kind read session and id by themselves, so leaving has to be able to wait for them.
        let is_fast = rseq.is_some() && clock == CLOCK_TSC && crate::membarrier::is_ready();
        #[cfg(target_arch = "x86_64")]
        if let Some(rseq) = rseq {
            RSEQ_OFFSET.store(rseq.offset(), Ordering::Relaxed);
        }
        let record_kind = memory.record_kind();
        let fast_for = |kind| rseq.filter(|_| is_fast && record_kind == kind);
        let attached = Box::leak(Box::new(Attached {
            #[cfg(target_arch = "x86_64")]
            session: dormouse_relay::arch::Session::new(&memory, is_fast),
            memory,
            rseq,
            fast_rseq: fast_for(RecordKind::Ids),
            #[cfg(target_arch = "x86_64")]
            compact_rseq: fast_for(RecordKind::Compact),
            record_kind,
            streams,
            clock,
            process,
            socket: socket.into(),
            presence,
        }));
        set_current(Some(attached));
        Ok((attached, grants))
    }

    /// Maps the memory, or keeps the mapping when it is of the same session (in a forked child).
    fn adopt(&mut self, fd: OwnedFd) -> Result<(), String> {
        // The session's owner is this program's user or root, and has put its buffers where they are: `check_owner`.
        let fresh = Mapping::map(&fd, false).or_else(|error| match error {
            BackingError::NotSealed | BackingError::NotMemory => Mapping::map_file(&fd),
            error => Err(error),
        });
        let fresh = fresh.map_err(|error| match error {
            BackingError::System { purpose, errno } => format!("{purpose}: {}", told(&errno.into())),
            error => error.to_string(),
        })?;
        // SAFETY: just mapped, and not unmapped before the end of the function.
        let uuid = unsafe { Memory::from_raw(fresh.base(), fresh.len()) }?.uuid();
        if self.mapping.is_none() || self.uuid != uuid {
            self.leave();
            self.mapping = Some(fresh);
            self.uuid = uuid;
        }
        Ok(())
    }

    /// A part of the mapped memory, for a tool that salvages what a dead owner has left. Whatever writers do meanwhile, the
    /// tool checks what it gets.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn read_memory(&self, uuid: [u8; 16], offset: u64, size_bytes: u32) -> Result<Message, String> {
        // Not of a former session whose mapping could not be taken down: nobody would know its identity.
        let mapping =
            self.mapping.as_ref().filter(|_| self.uuid == uuid).ok_or("the program is not in that session")?;
        if !mapping.is_sealed() {
            return Err("the session's buffers are a file, which may be shorter by now; read that".into());
        }
        let memory_size_bytes = mapping.len() as u64;
        let begin = offset.min(memory_size_bytes) as usize;
        let mut bytes = vec![0; (size_bytes.min(MEMORY_PART_SIZE_BYTES_MAX) as usize).min(mapping.len() - begin)];
        let source = mapping.base().wrapping_add(begin);
        // SAFETY: inside the mapping by the two bounds, which is unmapped by `leave` alone, and that needs `&mut self`; sealed,
        // so no access is a SIGBUS. Others write meanwhile: bytes that are committed do not change, others are not interpreted
        // here.
        unsafe { core::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) };
        Ok(Message::MemoryPart { memory_size_bytes, bytes })
    }

    /// Leaves the session, if any, and unmaps its memory once no thread uses it.
    pub(crate) fn leave(&mut self) {
        set_current(None);
        let Some(mapping) = self.mapping.take() else { return };
        // Critical sections that have compared the word before are restarted, and compare it again.
        let fenced = crate::membarrier::restart_sections();
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
        USERS.iter().for_each(|part| part.0.store(0, Ordering::Relaxed));
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
    let failed = |error: std::io::Error| format!("session {}: {}", socket.display(), told(&error));
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(patience)).map_err(failed)?;
    stream.set_write_timeout(Some(patience)).map_err(failed)?;
    check_owner(&stream)?;
    stream.write_all(&question.encode()).map_err(failed)?;
    let mut head = [0u8; 4];
    let fd = receive_with_fd(&stream, &mut head).map_err(failed)?;
    let len = u32::from_le_bytes(head) as usize;
    if len > FRAME_SIZE_MAX_BYTES {
        return Err("the session owner's answer is too long".into());
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).map_err(failed)?;
    Ok((Message::decode(&body).map_err(|error| error.to_string())?, fd))
}

/// Only the same user or root may own a session that a program joins.
fn check_owner(stream: &UnixStream) -> Result<(), String> {
    let peer = rustix::net::sockopt::socket_peercred(stream).map_err(|errno| told(&errno.into()))?;
    if peer.uid.is_root() || peer.uid == rustix::process::geteuid() {
        Ok(())
    } else {
        Err("the session belongs to another user".into())
    }
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
            return Err(std::io::ErrorKind::UnexpectedEof.into());
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

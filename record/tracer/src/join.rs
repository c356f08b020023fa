//! Joining and leaving a session.

use core::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dormouse_abi::message::{Edge, MEMORY_PART_SIZE_BYTES_MAX, OwnerToProgram, ProgramToOwner, ProgramToTool};
use dormouse_abi::register::{CROWDED, Entrant, NAME_SIZE_BYTES, NAMESPACE_UNKNOWN, SANITIZED, Unmapped, image};
use dormouse_abi::session::{Geometry, SessionLayout};
use dormouse_backing::{BackingError, Mapping};
use dormouse_imv::is_filtered;
use dormouse_percpu::Rseq;
use dormouse_relay::Memory;
use dormouse_transport::{Conversation, Deadline};
use rustix::io::Errno;

use crate::session::{
    Attached, SLOT_COUNT, forget_apart, forget_users, has_users, in_slot, sessions, set_apart, set_current,
    set_together,
};
use crate::{membarrier, own, readers, thread, unheard};

/// State of joining sessions, and this process's description of itself.
#[derive(Debug)]
pub(crate) struct Joining {
    /// Whether `DORMOUSE_NO_RSEQ=1` is set.
    pub(crate) no_rseq: bool,
    /// The sessions' memory, by slot, and its mappings.
    mapped: BTreeMap<usize, (Mapping, Memory)>,
    /// Whether there may be threads that have written to an earlier session, whose next record may take the direct
    /// section at once.
    has_threads_with_context: bool,
    /// Determined once; a forked child runs the same program.
    identity: Option<Identity>,
    /// Whether the session's owner has been told that this process cannot map its memory.
    pub(crate) has_told: bool,
}

/// A process's description of itself in a session's register.
#[derive(Debug)]
struct Identity {
    /// Inode of the namespace of process ids.
    namespace: u64,
    /// Identity of the program that the process executes. See [`dormouse_abi::register::image`].
    image: u64,
    name: [u8; NAME_SIZE_BYTES],
    is_forked: bool,
    program: Vec<u8>,
    command_line: Vec<u8>,
}

fn own_image() -> u64 {
    // SAFETY: reads an entry of the auxiliary vector; 0 if there is none.
    let address = unsafe { libc::getauxval(libc::AT_RANDOM) };
    let random = core::ptr::with_exposed_provenance::<u64>(address as usize);
    // SAFETY: `AT_RANDOM` is the address of 16 bytes that stay as long as the process runs (getauxval(3)).
    if random.is_null() { 0 } else { image(unsafe { random.read_unaligned() }, address) }
}

impl Identity {
    fn of_this_process() -> Identity {
        let program = if is_filtered() {
            own::lowest_mapping()
        } else {
            std::fs::read_link("/proc/self/exe").unwrap_or_default().into_os_string().into_vec()
        };
        Identity {
            namespace: rustix::fs::stat("/proc/self/ns/pid").map_or(NAMESPACE_UNKNOWN, |stat| stat.st_ino),
            image: own_image(),
            name: thread::program_name(),
            is_forked: false,
            program,
            command_line: own::command_line(),
        }
    }
}

/// Maximum time that a program waits for other processes, over all that its constructor does.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// Answer of a session's owner to a process that asks for the memory.
#[derive(Debug)]
pub(crate) struct OwnerAnswer {
    process: u16,
    memory: OwnedFd,
    identity: Identity,
}

/// Asks the session's owner at `socket` for its memory. Must be called without a lock.
///
/// # Errors
/// A message of one line.
pub(crate) fn ask_for_memory(socket: &Path, deadline: Deadline<'_>) -> Result<OwnerAnswer, String> {
    let identity = Identity::of_this_process();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let hello = ProgramToOwner::Hello {
        vpid: thread::own_pid(),
        image: identity.image,
        program: text(&identity.program),
        command_line: text(&identity.command_line),
    };
    let conversation = Conversation::connect(socket, Edge::ProgramOwner, deadline).inspect_err(|error| {
        // Once the socket has accepted the connection, the owner learns of this process from it.
        if *error == dormouse_transport::Error::TimedOut {
            unheard::say(socket);
        }
    });
    let (answer, fd) = ask(socket, conversation, &hello)?;
    let OwnerToProgram::Welcome { process } = answer else { return Err(refusal(answer)) };
    Ok(OwnerAnswer { process, memory: fd.ok_or("the session owner sent no memory")?, identity })
}

/// Returns the deadline for all waiting that begins now.
pub(crate) fn deadline() -> Deadline<'static> {
    Deadline::after(PATIENCE)
}

impl Joining {
    /// Returns the state of a process in no session.
    pub(crate) const fn new() -> Joining {
        Joining {
            no_rseq: false,
            mapped: BTreeMap::new(),
            has_threads_with_context: false,
            identity: None,
            has_told: false,
        }
    }

    /// Joins the session whose memory this program has inherited, if that memory is at this descriptor. Does not wait.
    ///
    /// # Errors
    /// A message of one line.
    pub(crate) fn join_inherited(
        &mut self,
        (descriptor, uuid): (i32, [u8; 16]),
        socket: &Path,
    ) -> Result<&'static Attached, String> {
        // SAFETY: used while this function runs, and not closed. If the program has put another file there, or closes
        // the descriptor at this moment, the seals, header and identity of a session's memory reveal it.
        let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let (slot, memory) = self.adopt(file, Some(uuid))?;
        let process = self.enter(&memory)?;
        self.attach(memory, slot, process, socket.into())
    }

    /// Joins the session whose memory a tool of the same user or of root has sent. Does not wait.
    ///
    /// # Errors
    /// A message of one line.
    pub(crate) fn join_brought(&mut self, memory: BorrowedFd<'_>, socket: &Path) -> Result<&'static Attached, String> {
        let (slot, memory) = self.adopt(memory, None)?;
        let process = self.enter(&memory)?;
        self.attach(memory, slot, process, socket.into())
    }

    /// Joins the session whose owner has sent its memory.
    ///
    /// # Errors
    /// A message of one line.
    pub(crate) fn join_answered(&mut self, answer: OwnerAnswer, socket: &Path) -> Result<&'static Attached, String> {
        let OwnerAnswer { process, memory, identity } = answer;
        self.identity = Some(identity);
        let (slot, memory) = self.adopt(memory.as_fd(), None)?;
        let register = memory.register().ok_or("the session has no register")?;
        let is_taken = register.take(process, thread::own_pid());
        is_taken.then_some(()).ok_or("the session owner takes this process for dead")?;
        self.attach(memory, slot, process, socket.into())
    }

    /// Enters this process in the session's register.
    fn enter(&mut self, memory: &Memory) -> Result<u16, String> {
        // (P) pairs with (P').
        if memory.header().stopped.0.load(Ordering::Acquire) != 0 {
            return Err("the session is over".into());
        }
        let identity = self.identity.get_or_insert_with(Identity::of_this_process);
        let vpid = thread::own_pid();
        let register = memory.register().ok_or("the session has no register")?;
        for (number, former) in register.namesakes(vpid) {
            // An entry of this process before `exec`: its threads have ended during their writes.
            if former.namespace == identity.namespace && former.image != identity.image {
                register.add_ended_amid_write(memory.release_claims(number));
                register.leave(number, vpid);
            }
        }
        let process = register.claim_process(vpid).ok_or("too many processes are in the session")?;
        let entrant = Entrant {
            vpid,
            joined_ns: crate::clock::boot_ns(),
            joined_at: crate::clock::of_session(memory.clock()),
            namespace: identity.namespace,
            image: identity.image,
            pid: 0,
            name: identity.name,
            is_forked: identity.is_forked,
            program: &identity.program,
            command_line: &identity.command_line,
        };
        let is_entered = register.enter(process, &entrant);
        is_entered.then_some(process).ok_or_else(|| "the session owner takes this process for dead".into())
    }

    /// Completes joining: the process is in the session from here on.
    fn attach(
        &mut self,
        memory: Memory,
        slot: usize,
        process: u16,
        socket: PathBuf,
    ) -> Result<&'static Attached, String> {
        // libc's registration only. If libc has none, a thread's single registration is left to allocators that want
        // it.
        let rseq = if self.no_rseq { None } else { Rseq::of_libc() };
        let attached = Attached::new(memory, slot, rseq, membarrier::is_ready(), process, socket)?;
        if self.has_threads_with_context {
            attached.make_ready();
        }
        self.has_threads_with_context = true;
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if let Some(rseq) = rseq {
            thread::RSEQ_OFFSET.store(rseq.offset(), Ordering::Relaxed);
        }
        let attached = Box::leak(Box::new(attached));
        set_current(slot, Some(attached));
        Ok(attached)
    }

    /// Returns the slot for a session: that of its mapping, or the first one without a session.
    fn slot_for(&mut self, uuid: [u8; 16]) -> Result<usize, String> {
        let own = self.mapped.iter().find(|(_, (_, memory))| memory.uuid() == uuid).map(|(slot, _)| *slot);
        let is_free = |slot: &usize| in_slot(*slot).is_none();
        match own.or_else(|| (0..SLOT_COUNT).find(is_free)) {
            Some(slot) if is_free(&slot) => Ok(slot),
            Some(_) => Err("the program is in the session already".into()),
            None => Err(format!("the program is in {SLOT_COUNT} sessions, the most that it can be in")),
        }
    }

    /// Maps the memory into a slot, or keeps the mapping if it is of the same session. With a uuid, the memory must be that
    /// session's.
    fn adopt(&mut self, fd: BorrowedFd<'_>, uuid: Option<[u8; 16]>) -> Result<(usize, Memory), String> {
        // The session's owner runs as this program's user or root, and has chosen the buffers' place: `is_of_own_user`
        // was checked, or the memory was inherited.
        let fresh = if is_filtered() { Mapping::map_inherited(fd, user()) } else { Mapping::map_unlocked(fd) };
        let fresh = fresh.inspect_err(|error| self.tell_of(*error, fd, uuid)).map_err(|error| match error {
            // Not libc's text for the errno: libc may call the loader for it, and this thread holds the tracer's lock.
            BackingError::System { purpose, errno } => {
                format!("{purpose}: {}", dormouse_transport::Error::System(errno))
            }
            error => error.to_string(),
        })?;
        // SAFETY: just mapped. `self` keeps the mapping until `leave` has waited for all users, or it is dropped below.
        let memory = unsafe { Memory::from_raw(fresh.base(), fresh.len()) }?;
        if uuid.is_some_and(|uuid| uuid != memory.uuid()) {
            return Err("what was inherited is not the session's memory".into());
        }
        // A filter of system calls that was installed before `exec` may kill for this call.
        if !is_filtered() && memory.header().is_dumped.load(Ordering::Relaxed) == 0 {
            // If the kernel or a sandbox refuses, core dumps contain the memory.
            let _ = fresh.leave_out_of_dumps();
        }
        let slot = self.slot_for(memory.uuid());
        if slot.is_err() && uuid.is_some_and(|uuid| !self.is_mapped(uuid)) {
            // Nobody else tells the owner of a session that was inherited.
            self.tell(CROWDED, fd, uuid);
        }
        let slot = slot?;
        match self.mapped.get(&slot) {
            Some((_, former)) if former.uuid() == memory.uuid() => Ok((slot, *former)),
            _ => {
                self.leave(slot);
                self.mapped.insert(slot, (fresh, memory));
                Ok((slot, memory))
            }
        }
    }

    /// Tells the session's owner why this process is not in the session, if its memory cannot be mapped. Tells nothing
    /// under a filter.
    fn tell_of(&mut self, error: BackingError, fd: BorrowedFd<'_>, uuid: Option<[u8; 16]>) {
        if let BackingError::System { errno: errno @ (Errno::NOMEM | Errno::AGAIN), .. } = error {
            self.tell(errno.raw_os_error(), fd, uuid);
        }
    }

    /// Tells the owner of the session whose memory this program has inherited that a sanitizer's runtime keeps the
    /// tracer out.
    pub(crate) fn tell_of_sanitizer(&mut self, (descriptor, uuid): (i32, [u8; 16])) {
        // SAFETY: used while this function runs, and not closed. The header of a session's memory reveals another file
        // at this number.
        let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
        self.tell(SANITIZED, file, Some(uuid));
    }

    /// Writes into a session's memory, which this process does not map, why it does not.
    fn tell(&mut self, errno: i32, fd: BorrowedFd<'_>, uuid: Option<[u8; 16]>) {
        let mut layout = [0; size_of::<SessionLayout>()];
        if is_filtered() || rustix::io::pread(fd, &mut layout, 0) != Ok(layout.len()) {
            return;
        }
        let layout = SessionLayout::from_bytes(&layout);
        let is_session = Geometry::from_layout(&layout, layout.size_bytes as usize).is_ok();
        if is_session && layout.register_offset != 0 && uuid.is_none_or(|uuid| uuid == layout.uuid) {
            let program = &self.identity.get_or_insert_with(Identity::of_this_process).program;
            let (offset, entry) = Unmapped::to_write(thread::own_pid(), errno, program);
            let begin = layout.register_offset + offset as u64;
            let may_write = unheard::may_write_up_to(begin + entry.len() as u64);
            self.has_told = may_write && rustix::io::pwrite(fd, &entry, begin).is_ok();
        }
    }

    /// Whether the memory of the session with this identity is mapped.
    pub(crate) fn is_mapped(&self, uuid: [u8; 16]) -> bool {
        self.mapped.values().any(|(_, memory)| memory.uuid() == uuid)
    }

    /// Returns a part of the mapped memory, for a tool that salvages the session of a dead owner. The tool checks the
    /// data, because writers may change them meanwhile.
    ///
    /// # Errors
    /// A message of one line.
    pub(crate) fn read_memory(&self, uuid: [u8; 16], offset: u64, size_bytes: u32) -> Result<ProgramToTool, String> {
        // Not a former session whose mapping could not be removed: its identity is no longer known.
        let mapped = self.mapped.values().find(|(_, memory)| memory.uuid() == uuid);
        let (mapping, memory) = mapped.ok_or("the program is not in that session")?;
        if !mapping.is_sealed() {
            return Err("the session's buffers are a file, which may be shorter by now; read that".into());
        }
        let memory_size_bytes = memory.geometry().size_bytes() as u64;
        let begin = offset.min(memory_size_bytes) as usize;
        let len = (size_bytes.min(MEMORY_PART_SIZE_BYTES_MAX) as usize).min(memory_size_bytes as usize - begin);
        // Other threads write meanwhile: committed bytes do not change, and others are not interpreted here. The memory
        // is sealed, so no access raises SIGBUS.
        let words = &memory.words()[begin / 8..(begin + len).div_ceil(8)];
        let bytes = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).skip(begin % 8).take(len);
        Ok(ProgramToTool::MemoryPart { memory_size_bytes, bytes: bytes.collect() })
    }

    /// Makes a call while the sessions' memory, except one `os_page` of each, is out of the address space, so that it is
    /// neither counted as this program's nor locked with it. Events meanwhile are lost and counted. If other threads
    /// cannot be kept from the memory, it stays mapped during the call.
    pub(crate) fn apart<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let former: Vec<&'static Attached> = sessions().collect();
        if former.is_empty() {
            return call();
        }
        former.iter().for_each(|former| set_apart(former.slot));
        let is_unused = is_unused();
        let fold = |former: &&'static Attached| {
            let mapping = self.mapped.get_mut(&former.slot).filter(|_| is_unused);
            let is_folded = mapping.is_some_and(|(mapping, _)| mapping.fold().is_ok());
            if !is_folded {
                set_together(former.slot, Some(former));
            }
            is_folded
        };
        let folded: Vec<&'static Attached> = former.into_iter().filter(fold).collect();
        let result = call();
        for former in folded {
            match self.unfold(former) {
                Ok(attached) => {
                    attached.make_ready();
                    set_together(former.slot, Some(Box::leak(Box::new(attached))));
                }
                // The memory could not be mapped again: the process leaves the session, as if it had ended.
                Err(_) => {
                    self.mapped.remove(&former.slot);
                    set_together(former.slot, None);
                }
            }
        }
        result
    }

    /// Maps a session's memory again, and returns its new view.
    fn unfold(&mut self, former: &Attached) -> Result<Attached, String> {
        let (mapping, memory) = self.mapped.get_mut(&former.slot).ok_or("the session has no memory")?;
        mapping.unfold().map_err(|error| error.to_string())?;
        // SAFETY: mapped again; `self` keeps the mapping until `leave` has waited for all users.
        *memory = unsafe { Memory::from_raw(mapping.base(), mapping.len()) }?;
        // None of it is in the page table any more, and its address may have changed.
        let ready = membarrier::is_ready();
        Attached::new(*memory, former.slot, former.rseq, ready, former.process, former.socket.clone())
    }

    /// Leaves the session in a slot, if any, and unmaps its memory if no thread uses it.
    pub(crate) fn leave(&mut self, slot: usize) {
        let former = in_slot(slot);
        set_current(slot, None);
        let Some((mapping, _)) = self.mapped.remove(&slot) else { return };
        let is_left = is_unused();
        if let Some(register) = former.filter(|_| is_left).and_then(|former| former.memory.register()) {
            register.leave(former.map_or(0, |former| former.process), thread::own_pid());
        }
        if !is_left {
            // A leaked mapping is better than one that is missing.
            core::mem::forget(mapping);
        }
    }

    /// Prepares a forked child of `parent`, which has inherited the mappings.
    pub(crate) fn after_fork(&mut self, parent: u32) {
        forget_users();
        forget_apart();
        // The one thread has no context word any more. The mappings were inherited; their page table entries were not.
        self.has_threads_with_context = false;
        if let Some(identity) = &mut self.identity {
            identity.is_forked = true;
            // Ids grow until they wrap. An id smaller than the parent's may be in a new namespace, in which the process
            // has no parent.
            // SAFETY: getppid(2) has no conditions. (With assertions, valgrind takes rustix's conversion of the result
            // for an uninitialised value.)
            if thread::own_pid() < parent && unsafe { libc::getppid() } == 0 {
                identity.namespace = NAMESPACE_UNKNOWN;
            }
        }
    }

    /// Enters a forked child in a session as a process of its own. Does not wait.
    ///
    /// # Errors
    /// A message of one line.
    pub(crate) fn join_after_fork(&mut self, former: &Attached) -> Result<(), String> {
        let process = self.enter(&former.memory)?;
        self.attach(former.memory, former.slot, process, former.socket.clone()).map(|_| ())
    }
}

/// Whether no thread uses the session's memory any more. Must be called after the session can no longer be found.
fn is_unused() -> bool {
    // Critical sections that have compared the word already are restarted, and compare it again.
    let fenced = membarrier::restart_sections();
    // Threads outside critical sections are counted. They take microseconds, unless one was killed or stopped there.
    for _ in 0..1_000 {
        if !has_users() {
            break;
        }
        std::thread::yield_now();
    }
    // Threads that count events which are not recorded are no users: they use a plan meanwhile. They have found the
    // session after they began, and the session could no longer be found when this wait begins. (G') pairs with (G), in
    // which they began.
    fenced && !has_users() && readers::wait()
}

/// Returns the user id that this program was executed as.
fn user() -> u32 {
    // SAFETY: reads an entry of the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_EUID) as u32 }
}

pub(crate) fn refusal(answer: OwnerToProgram) -> String {
    match answer {
        OwnerToProgram::Error { text } => text,
        _ => "the session owner answered something else".into(),
    }
}

/// Sends one question and returns the answer, with a descriptor if the answer has one.
pub(crate) fn ask(
    socket: &Path,
    conversation: Result<Conversation<'_>, dormouse_transport::Error>,
    question: &ProgramToOwner,
) -> Result<(OwnerToProgram, Option<OwnedFd>), String> {
    let told = |error| format!("session {}: {error}", socket.display());
    let mut conversation = conversation.map_err(told)?;
    if !conversation.peer().map_err(told)?.is_own_user_or_root() {
        return Err(format!("session {}: it belongs to another user", socket.display()));
    }
    conversation.ask_with_fd(question).map_err(told)
}

//! A session's register: its processes and event classes, in the session's memory, where programs enter themselves.
//!
//! ```text
//!   program                                       session owner
//!     takes an entry: FREE ──▶ CLAIMED(vpid)        checks when `changes` has changed:
//!     fills it, and sets READY ───────────────────▶   opens the process, notes it in the trace
//!     finds or adds its classes: an id each ──────▶   checks their texts, declares them in the trace
//!     arms what the rules record                      frees the entry of a process that is dead or has LEFT
//! ```
//! So a program that joins, forks, or loads a library waits neither for the owner, which may be stopped, nor for
//! another program. It takes no lock, makes no system call, and each step is one store, so a program that is killed
//! meanwhile leaves an entry that no other process has seen.
//!
//! A program that has asked at the socket is entered by the owner, as OFFERED; it sets READY once it has mapped the
//! memory. A program that does not was too late, and is counted as refused.
//!
//! A class is found by the fingerprint of its text, by open addressing. A program that adds a class takes the next id
//! first, writes the text, and publishes it by one compare-and-swap of a slot. If another program wins the slot, the id
//! stays unused.
//!
//! A program whose address space has no room for the memory reports that by one pwrite(2) of an [`Unmapped`] entry.
//!
//! A full table refuses new entries and counts them. Any process that has the memory can overwrite all of it, so a
//! reader loads each word once and checks it.

use alloc::string::String;
use alloc::vec::Vec;

use crate::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::class::CLASS_ID_MAX;
use crate::rule::published::Published;
use crate::rule::{self, RULES_SIZE_BYTES_MAX, Rule};

/// Number of process entries. The first is unused, because no process has the number 0.
pub const PROCESS_COUNT: usize = 4096;
/// Number of class ids.
pub const CLASS_COUNT: usize = CLASS_ID_MAX as usize + 1;
/// Number of slots by fingerprint, a power of two.
const CLASS_SLOT_COUNT: usize = 1 << 17;
/// Size of all classes' texts, in bytes.
pub const CLASS_TEXT_SIZE_BYTES: usize = 4 << 20;
/// Maximum number of texts that the tags of a session may have.
pub const TAG_TEXT_COUNT: usize = 4096;
/// Number of slots of tags' texts, a power of two.
const TAG_TEXT_SLOT_COUNT: usize = 2 * TAG_TEXT_COUNT;
/// Size of all tags' texts, with the names of the tags, in bytes.
const TAG_TEXTS_SIZE_BYTES: usize = 256 << 10;
/// Maximum size of the rules' text, in bytes.
pub const RULES_TEXT_SIZE_BYTES_MAX: usize = RULES_SIZE_BYTES_MAX;
/// Number of words for the size of the rules, the rules and their text.
const RULES_WORD_COUNT: usize = 1 + (RULES_SIZE_BYTES_MAX + RULES_TEXT_SIZE_BYTES_MAX) / 8;
/// Size of a process's texts, in bytes.
const PROCESS_TEXT_SIZE_BYTES: usize = 432;
/// Size of a process's name in bytes, filled up with NUL, as prctl(2) returns it.
pub const NAME_SIZE_BYTES: usize = 16;

/// Value for a PID namespace that is not known.
pub const NAMESPACE_UNKNOWN: u64 = 0;

/// Returns an identity of the program that a process executes; it changes with `exec`. It consists of 16 of the random
/// bits that the kernel has given the process, and their address on its stack (`AT_RANDOM`, getauxval(3)), which other
/// processes can look up.
pub const fn image(random: u64, address: u64) -> u64 {
    random << PLACE_BITS | place_of(address)
}

/// Returns the part of that address that an [`image`] contains.
pub const fn place_of(image: u64) -> u64 {
    image & ((1 << PLACE_BITS) - 1)
}

/// Number of bits of an address in a program.
const PLACE_BITS: u32 = 48;

const CLAIMED: u64 = 1;
const READY: u64 = 2;
const LEFT: u64 = 3;
const OFFERED: u64 = 4;

/// State of a process's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The process fills its entry.
    Claimed,
    /// The session owner has filled the entry, and the process has not taken it yet.
    Offered,
    /// The process is in the session.
    Ready,
    /// The process has left.
    Left,
}

const fn word(phase: u64, vpid: u32) -> u64 {
    phase << 32 | vpid as u64
}

#[repr(C)]
#[derive(Debug)]
struct ProcessEntry {
    /// Zero, or phase and id.
    state: AtomicU64,
    joined_ns: AtomicU64,
    joined_at: AtomicU64,
    namespace: AtomicU64,
    image: AtomicU64,
    pid: AtomicU32,
    is_forked: AtomicU32,
    /// Length of the program's path in bytes; the command line follows it.
    program_len: AtomicU32,
    command_line_len: AtomicU32,
    /// Version of the rules that the process follows.
    rules_followed: AtomicU64,
    name: [AtomicU8; NAME_SIZE_BYTES],
    text: [AtomicU8; PROCESS_TEXT_SIZE_BYTES],
}

const _: () = assert!(size_of::<ProcessEntry>() == 512);

#[repr(C)]
#[derive(Debug)]
struct TextEntry {
    /// Offset of the text, plus one; zero if there is no text (yet).
    begin: AtomicU32,
    /// Length of the text, in bytes.
    len: AtomicU32,
    /// Number of the process that has added it.
    process: AtomicU32,
    _unused: AtomicU32,
}

/// Texts that programs have added, each once. A text's number is the position of its entry.
#[repr(C)]
#[derive(Debug)]
struct Texts<const SLOT_COUNT: usize, const COUNT: usize, const SIZE_BYTES: usize> {
    next: AtomicU32,
    begin_next: AtomicU32,
    refused: AtomicU64,
    /// For each text the upper half of its fingerprint, and its number plus one.
    slots: [AtomicU64; SLOT_COUNT],
    entries: [TextEntry; COUNT],
    bytes: [AtomicU8; SIZE_BYTES],
}

/// A process's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// State of the entry.
    pub phase: Phase,
    /// Process id in the process's own namespace.
    pub vpid: u32,
    /// Time of joining, `CLOCK_BOOTTIME` in ns. A process with this id that started later is another process.
    pub joined_ns: u64,
    /// Time of joining by the session's clock.
    pub joined_at: u64,
    /// Inode of its PID namespace, or [`NAMESPACE_UNKNOWN`].
    pub namespace: u64,
    /// See [`image`].
    pub image: u64,
    /// Process id in the session owner's namespace, if the owner has made the entry; else zero.
    pub pid: u32,
    /// Name of the process when its program started, as `ps` shows it.
    pub name: String,
    /// Whether it is a forked child, whose name may have changed since its program started.
    pub is_forked: bool,
    /// Path of the executable.
    pub program: String,
    /// Command line, arguments separated by blanks; cut if there is no room for it.
    pub command_line: String,
}

/// A process that enters itself. The fields are those of [`Process`].
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct Entrant<'a> {
    pub vpid: u32,
    pub joined_ns: u64,
    pub joined_at: u64,
    pub namespace: u64,
    pub image: u64,
    pub pid: u32,
    pub name: [u8; NAME_SIZE_BYTES],
    pub is_forked: bool,
    pub program: &'a [u8],
    pub command_line: &'a [u8],
}

/// Number of entries for programs that could not map the memory.
const UNMAPPED_COUNT: usize = 256;
/// Size of an [`Unmapped`] entry, in bytes.
pub const UNMAPPED_SIZE_BYTES: usize = 128;
/// Size of the program's path in it, in bytes.
const UNMAPPED_TEXT_SIZE_BYTES: usize = UNMAPPED_SIZE_BYTES - 8;

#[repr(C)]
#[derive(Debug)]
struct UnmappedEntry {
    /// Zero, or the errno times 2^32, plus the process id.
    state: AtomicU64,
    /// Path of the program, filled up with NUL.
    program: [AtomicU8; UNMAPPED_TEXT_SIZE_BYTES],
}

const _: () = assert!(size_of::<UnmappedEntry>() == UNMAPPED_SIZE_BYTES);

/// A program that could not map the memory, or did not because of a sanitizer or of other sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unmapped {
    /// Process id in the program's own namespace.
    pub vpid: u32,
    /// Error of mmap(2), [`SANITIZED`] or [`CROWDED`].
    pub errno: i32,
    /// Path of the executable.
    pub program: String,
}

/// Value in place of an errno: the process contains a sanitizer's runtime, and the library of `--libc` does not trace
/// it.
pub const SANITIZED: i32 = -1;

/// Value in place of an errno: the process is in [`SESSION_COUNT_MAX`] other sessions.
pub const CROWDED: i32 = -2;

/// Maximum number of sessions that a process is in.
pub const SESSION_COUNT_MAX: usize = 32;

impl Unmapped {
    /// Returns the bytes that a program writes into memory that it cannot map, and their offset from the register's
    /// beginning. The process id selects one of a few entries; before the session owner has read it, a later program
    /// may overwrite it.
    pub fn to_write(vpid: u32, errno: i32, program: &[u8]) -> (usize, [u8; UNMAPPED_SIZE_BYTES]) {
        let mut entry = [0; UNMAPPED_SIZE_BYTES];
        let state = u64::from(errno.cast_unsigned()) << 32 | u64::from(vpid);
        entry[..8].copy_from_slice(&state.to_ne_bytes());
        // The end of a long path tells more.
        let program = &program[program.len().saturating_sub(UNMAPPED_TEXT_SIZE_BYTES)..];
        entry[8..8 + program.len()].copy_from_slice(program);
        let index = vpid as usize % UNMAPPED_COUNT;
        (core::mem::offset_of!(Register, unmapped) + index * UNMAPPED_SIZE_BYTES, entry)
    }
}

/// A class entered by a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Session's number of the process that has added it.
    pub process: u16,
    /// Text written by [`Announcement::to_text`](crate::class::Announcement::to_text), not checked.
    pub text: Vec<u8>,
}

/// The register. All zeroes is an empty register.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct Register {
    /// Counter that is incremented for each change that the session owner should see.
    changes: AtomicU32,
    processes_refused: AtomicU64,
    ended_amid_write: AtomicU64,
    /// Tags of the session that some process has set, a bit each.
    tags_set: AtomicU32,
    rules: Published<RULES_WORD_COUNT>,
    processes: [ProcessEntry; PROCESS_COUNT],
    unmapped: [UnmappedEntry; UNMAPPED_COUNT],
    classes: Texts<CLASS_SLOT_COUNT, CLASS_COUNT, CLASS_TEXT_SIZE_BYTES>,
    tag_texts: Texts<TAG_TEXT_SLOT_COUNT, TAG_TEXT_COUNT, TAG_TEXTS_SIZE_BYTES>,
}

/// Number of entries that [`Register::namesakes`] examines.
const NEAR_COUNT: usize = 16;

/// Returns all process numbers, beginning with one that depends on the process id.
fn numbers_of(vpid: u32) -> impl Iterator<Item = usize> {
    (0..PROCESS_COUNT - 1).map(move |step| 1 + (vpid as usize + step) % (PROCESS_COUNT - 1))
}

/// Returns FNV-1a with its upper half folded in: lower bits select a slot, upper bits tell entries apart.
fn fingerprint(text: &[u8]) -> u64 {
    let hash = text
        .iter()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3));
    hash ^ hash >> 32
}

fn store(target: &[AtomicU8], bytes: &[u8]) {
    target.iter().zip(bytes).for_each(|(target, byte)| target.store(*byte, Ordering::Relaxed));
}

fn load(source: &[AtomicU8]) -> Vec<u8> {
    source.iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
}

impl Register {
    /// Replaces the session's rules. `text`: the rules as their author wrote them, one a line. Returns false if there is
    /// no room. Only the session owner calls it.
    #[must_use]
    pub fn set_rules(&self, rules: &[Rule], text: &str) -> bool {
        let code = rule::to_bytes(rules);
        let fits = code.len() <= RULES_SIZE_BYTES_MAX && text.len() <= RULES_TEXT_SIZE_BYTES_MAX;
        let mut bytes = (code.len() as u64).to_le_bytes().to_vec();
        bytes.extend(code);
        bytes.extend(text.as_bytes());
        fits && self.rules.replace(&bytes)
    }

    /// Returns the version of the session's rules, which increases when they are replaced.
    pub fn rules_version(&self) -> u64 {
        self.rules.version()
    }

    /// Whether the session has, or has had, rules by which some event may not be recorded. A session without a register
    /// has none.
    pub fn has_had_rules(&self) -> bool {
        match self.rules_version() {
            0 => false,
            1 => self.rules_text() != rule::ALL,
            _ => true,
        }
    }

    /// Returns version, code and text of the rules.
    fn rules_parts(&self) -> Option<(u64, Vec<u8>, Vec<u8>)> {
        let (version, mut bytes) = self.rules.copy()?;
        let code_len = u64::from_le_bytes(*bytes.first_chunk()?);
        let text = bytes.split_off(usize::try_from(code_len).ok()?.checked_add(8).filter(|end| *end <= bytes.len())?);
        bytes.drain(..8);
        Some((version, bytes, text))
    }

    /// Returns the session's rules and their version. Rules that cannot be read are none: nothing is recorded.
    pub fn rules(&self) -> (u64, Vec<Rule>) {
        let read = || {
            let (version, code, _) = self.rules_parts()?;
            Some((version, rule::from_bytes(&code)?))
        };
        read().unwrap_or_else(|| (self.rules_version(), Vec::new()))
    }

    /// Returns the rules as their author wrote them, one a line.
    pub fn rules_text(&self) -> String {
        let text = self.rules_parts().map(|(_, _, text)| text).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Notes the version of the rules that a process follows.
    pub fn follow_rules(&self, number: u16, version: u64) {
        if let Some(entry) = self.processes.get(usize::from(number)) {
            // Relaxed: only told to people.
            entry.rules_followed.store(version, Ordering::Relaxed);
        }
    }

    /// Returns the version of the rules that a process follows.
    pub fn rules_followed(&self, number: u16) -> Option<u64> {
        self.processes.get(usize::from(number)).map(|entry| entry.rules_followed.load(Ordering::Relaxed))
    }

    /// Takes the first free entry, searching from a place that depends on the process id, so that successive processes
    /// get different entries. If all are taken, counts that and returns `None`. Lock-free.
    pub fn claim_process(&self, vpid: u32) -> Option<u16> {
        let mut numbers = numbers_of(vpid);
        let is_taken = |number: &usize| {
            let state = &self.processes[*number].state;
            // (R1) Acquire pairs with (R2): the former process's entry has been read.
            state.load(Ordering::Relaxed) == 0
                && state.compare_exchange(0, word(CLAIMED, vpid), Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let number = numbers.find(is_taken);
        if number.is_none() {
            self.processes_refused.fetch_add(1, Ordering::Relaxed);
            self.changed();
        }
        number.map(|number| number as u16)
    }

    /// Returns ready processes with this id near its first place in the table: entries of this process from before it
    /// executed another program.
    pub fn namesakes(&self, vpid: u32) -> impl Iterator<Item = (u16, Process)> {
        let is_ready = move |number: &usize| self.processes[*number].state.load(Ordering::Relaxed) == word(READY, vpid);
        let near = numbers_of(vpid).take(NEAR_COUNT).filter(is_ready).map(|number| number as u16);
        near.filter_map(|number| Some((number, self.process(number)?)))
    }

    /// Fills a claimed entry and publishes it. Texts that are too long are cut. Returns false if the session owner has
    /// taken the process for dead and freed the entry. Wait-free; allocates nothing.
    #[must_use]
    pub fn enter(&self, number: u16, entrant: &Entrant<'_>) -> bool {
        self.fill(number, entrant, READY)
    }

    /// Fills an entry that was claimed for another process, which must [`take`](Register::take) it. Returns false if a
    /// program has damaged the entry.
    #[must_use]
    pub fn offer(&self, number: u16, entrant: &Entrant<'_>) -> bool {
        self.fill(number, entrant, OFFERED)
    }

    /// Takes the entry that the session owner has made for this process. Returns false if the owner has freed it again.
    /// Wait-free; allocates nothing.
    #[must_use]
    pub fn take(&self, number: u16, vpid: u32) -> bool {
        let Some(entry) = self.processes.get(usize::from(number)) else { return false };
        let (offered, ready) = (word(OFFERED, vpid), word(READY, vpid));
        // (R6) Release pairs with (R4): the process is in the session.
        let is_taken = entry.state.compare_exchange(offered, ready, Ordering::Release, Ordering::Relaxed).is_ok();
        self.changed();
        is_taken
    }

    fn fill(&self, number: u16, entrant: &Entrant<'_>, phase: u64) -> bool {
        let Some(entry) = self.processes.get(usize::from(number)) else { return false };
        let Entrant { vpid, joined_ns, joined_at, namespace, image, pid, name, is_forked, program, command_line } =
            *entrant;
        let program = &program[..program.len().min(PROCESS_TEXT_SIZE_BYTES / 2)];
        let command_line = &command_line[..command_line.len().min(PROCESS_TEXT_SIZE_BYTES - program.len())];
        store(&entry.name, &name);
        store(&entry.text, program);
        store(&entry.text[program.len()..], command_line);
        entry.program_len.store(program.len() as u32, Ordering::Relaxed);
        entry.command_line_len.store(command_line.len() as u32, Ordering::Relaxed);
        entry.joined_ns.store(joined_ns, Ordering::Relaxed);
        entry.joined_at.store(joined_at, Ordering::Relaxed);
        entry.namespace.store(namespace, Ordering::Relaxed);
        entry.image.store(image, Ordering::Relaxed);
        entry.pid.store(pid, Ordering::Relaxed);
        entry.is_forked.store(is_forked.into(), Ordering::Relaxed);
        let (claimed, filled) = (word(CLAIMED, vpid), word(phase, vpid));
        // (R3) Release pairs with (R4): the entry is complete.
        let is_entered = entry.state.compare_exchange(claimed, filled, Ordering::Release, Ordering::Relaxed).is_ok();
        self.changed();
        is_entered
    }

    /// Marks a process as having left. The session owner frees its entry.
    pub fn leave(&self, number: u16, vpid: u32) {
        if let Some(entry) = self.processes.get(usize::from(number)) {
            // (R5) Release pairs with (R4): the process's writes to the session happen before.
            let _ =
                entry.state.compare_exchange(word(READY, vpid), word(LEFT, vpid), Ordering::Release, Ordering::Relaxed);
            self.changed();
        }
    }

    /// Returns a process's entry, if it is taken.
    pub fn process(&self, number: u16) -> Option<Process> {
        let entry = self.processes.get(usize::from(number))?;
        // (R4) Acquire pairs with (R3), (R5) and (R6).
        let state = entry.state.load(Ordering::Acquire);
        let phase = match state >> 32 {
            CLAIMED => Phase::Claimed,
            OFFERED => Phase::Offered,
            READY => Phase::Ready,
            LEFT => Phase::Left,
            _ => return None,
        };
        let len = |len: &AtomicU32| (len.load(Ordering::Relaxed) as usize).min(PROCESS_TEXT_SIZE_BYTES);
        let program_len = len(&entry.program_len);
        let end = (program_len + len(&entry.command_line_len)).min(PROCESS_TEXT_SIZE_BYTES);
        let text = |bytes: &[AtomicU8]| match phase {
            Phase::Claimed => String::new(),
            _ => String::from_utf8_lossy(&load(bytes)).trim_end_matches('\0').into(),
        };
        Some(Process {
            phase,
            vpid: state as u32,
            joined_ns: entry.joined_ns.load(Ordering::Relaxed),
            joined_at: entry.joined_at.load(Ordering::Relaxed),
            namespace: entry.namespace.load(Ordering::Relaxed),
            image: entry.image.load(Ordering::Relaxed),
            pid: entry.pid.load(Ordering::Relaxed),
            name: text(&entry.name),
            is_forked: entry.is_forked.load(Ordering::Relaxed) != 0,
            program: text(&entry.text[..program_len]),
            command_line: text(&entry.text[program_len..end]),
        })
    }

    /// Frees the entry of a process that has left the session.
    pub fn free(&self, number: u16) {
        if let Some(entry) = self.processes.get(usize::from(number)) {
            // (R2) Release pairs with (R1).
            entry.state.store(0, Ordering::Release);
        }
    }

    /// Returns the id of the class with this text, and adds the class if it is new. If there is no room, counts that
    /// and returns `None`. Lock-free.
    pub fn class_id(&self, process: u16, text: &[u8]) -> Option<u16> {
        let (id, is_changed) = self.classes.number(process, text);
        if is_changed {
            self.changed();
        }
        id.map(|id| id as u16)
    }

    /// Returns the class with this id, if there is one.
    pub fn class(&self, id: u16) -> Option<Class> {
        let text = load(self.classes.text(id.into())?);
        Some(Class { process: self.classes.entries[usize::from(id)].process.load(Ordering::Relaxed) as u16, text })
    }

    /// Returns the number of ids that have been taken; they are consecutive from 0.
    pub fn class_count(&self) -> usize {
        self.classes.count()
    }

    /// Notes that a process has set a tag of the session, by the tag's index.
    pub fn note_tag(&self, tag: usize) {
        // Relaxed: only told to people.
        self.tags_set.fetch_or(1 << tag, Ordering::Relaxed);
    }

    /// Whether some process has set a tag of the session, by the tag's index.
    pub fn is_tag_set(&self, tag: usize) -> bool {
        self.tags_set.load(Ordering::Relaxed) & 1 << tag != 0
    }

    /// Adds a text that a tag of this name has had. If there is no room, counts that. Lock-free.
    pub fn add_tag_text(&self, process: u16, name: &str, text: &[u8]) {
        let entry = [name.as_bytes(), &[0], text].concat();
        self.tag_texts.number(process, &entry);
    }

    /// Returns the number of texts of tags that were added. The last ones need not be there yet.
    pub fn tag_text_count(&self) -> usize {
        self.tag_texts.count()
    }

    /// Returns the texts that tags have had, with the tags' names, in the order in which they were added.
    pub fn tag_texts(&self) -> Vec<(String, Vec<u8>)> {
        let entry = |number: usize| {
            let entry = load(self.tag_texts.text(number as u32)?);
            let end = entry.iter().position(|byte| *byte == 0)?;
            Some((String::from_utf8_lossy(&entry[..end]).into_owned(), entry[end + 1..].to_vec()))
        };
        (0..self.tag_texts.count()).filter_map(entry).collect()
    }

    /// Returns the number of times that a tag's text found no room.
    pub fn tag_texts_refused(&self) -> u64 {
        self.tag_texts.refused.load(Ordering::Relaxed)
    }

    fn changed(&self) {
        // (R10) Release pairs with (R11): the change is written.
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of changes; a new value means that there is something to read.
    pub fn changes(&self) -> u32 {
        // (R11) Acquire pairs with (R10).
        self.changes.load(Ordering::Acquire)
    }

    /// Takes the entries of programs that could not map the memory.
    pub fn take_unmapped(&self) -> Vec<Unmapped> {
        let take = |entry: &UnmappedEntry| {
            let state = entry.state.load(Ordering::Relaxed);
            if state == 0 {
                return None;
            }
            let program = String::from_utf8_lossy(&load(&entry.program)).trim_end_matches('\0').into();
            // An entry that another program writes meanwhile stays for the next call. Relaxed: the kernel has written
            // the whole entry.
            let _ = entry.state.compare_exchange(state, 0, Ordering::Relaxed, Ordering::Relaxed);
            Some(Unmapped { vpid: state as u32, errno: ((state >> 32) as u32).cast_signed(), program })
        };
        self.unmapped.iter().filter_map(take).collect()
    }

    /// Counts threads of a process that have ended during a write.
    pub fn add_ended_amid_write(&self, count: u64) {
        self.ended_amid_write.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the known number of threads that have ended during a write.
    pub fn ended_amid_write(&self) -> u64 {
        self.ended_amid_write.load(Ordering::Relaxed)
    }

    /// Returns the number of processes that found no entry, and of classes that found no room.
    pub fn refused(&self) -> (u64, u64) {
        (self.processes_refused.load(Ordering::Relaxed), self.classes.refused.load(Ordering::Relaxed))
    }
}

impl<const SLOT_COUNT: usize, const COUNT: usize, const SIZE_BYTES: usize> Texts<SLOT_COUNT, COUNT, SIZE_BYTES> {
    /// Returns the number of a text, which is added if it is new; `None` if there is no room, which is counted. The second
    /// result is whether the table has changed. Lock-free.
    fn number(&self, process: u16, text: &[u8]) -> (Option<u32>, bool) {
        let fingerprint = fingerprint(text);
        let tag = fingerprint >> 32 << 32;
        let mut mine: Option<u32> = None;
        for step in 0..SLOT_COUNT {
            let slot = &self.slots[(fingerprint as usize).wrapping_add(step) % SLOT_COUNT];
            // (R6) Acquire pairs with (R7): the text of a number in a slot is written.
            let mut found = slot.load(Ordering::Acquire);
            if found == 0 {
                let Some(number) = mine.or_else(|| self.add(process, text)) else { break };
                mine = Some(number);
                // (R7) Release pairs with (R6); Acquire on failure, because another program's number is read (R6).
                match slot.compare_exchange(0, tag | (u64::from(number) + 1), Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return (Some(number), true),
                    Err(other) => found = other,
                }
            }
            let number = (found as u32).wrapping_sub(1);
            if found & !0xFFFF_FFFF == tag && self.text(number).is_some_and(|known| is_same(known, text)) {
                if let Some(mine) = mine {
                    // The number that was taken for the text is unused.
                    self.entries[mine as usize].begin.store(0, Ordering::Relaxed);
                }
                return (Some(number), false);
            }
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        (None, true)
    }

    /// Takes a number and writes the text.
    fn add(&self, process: u16, text: &[u8]) -> Option<u32> {
        let take = |next: &AtomicU32, count: usize, limit: usize| {
            let sum = |next: u32| next.checked_add(count as u32).filter(|sum| *sum as usize <= limit);
            next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).ok()
        };
        let begin = take(&self.begin_next, text.len(), SIZE_BYTES)?;
        let number = take(&self.next, 1, COUNT)?;
        let entry = &self.entries[number as usize];
        store(&self.bytes[begin as usize..], text);
        entry.len.store(text.len() as u32, Ordering::Relaxed);
        entry.process.store(process.into(), Ordering::Relaxed);
        // (R8) Release pairs with (R9): the text is complete.
        entry.begin.store(begin + 1, Ordering::Release);
        Some(number)
    }

    fn text(&self, number: u32) -> Option<&[AtomicU8]> {
        let entry = self.entries.get(number as usize)?;
        // (R9) Acquire pairs with (R8).
        let begin = entry.begin.load(Ordering::Acquire).checked_sub(1)? as usize;
        let len = entry.len.load(Ordering::Relaxed) as usize;
        self.bytes.get(begin..begin.checked_add(len)?)
    }

    /// Returns how many numbers have been taken; they are consecutive from 0.
    fn count(&self) -> usize {
        (self.next.load(Ordering::Relaxed) as usize).min(COUNT)
    }
}

fn is_same(known: &[AtomicU8], text: &[u8]) -> bool {
    known.len() == text.len() && known.iter().zip(text).all(|(known, byte)| known.load(Ordering::Relaxed) == *byte)
}

#[cfg(test)]
#[cfg(target_pointer_width = "64")]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Level;
    use crate::rule::LevelBound;
    use alloc::boxed::Box;
    use alloc::format;
    use alloc::vec;

    fn register() -> Box<Register> {
        // SAFETY: all zeroes is an empty register. It is too large for a stack.
        unsafe { Box::<Register>::new_zeroed().assume_init() }
    }

    #[test]
    fn a_process_keeps_its_entry_until_it_is_freed() {
        let register = register();
        let number = register.claim_process(7).unwrap();
        assert_eq!(register.process(number).map(|process| process.phase), Some(Phase::Claimed));
        let entrant = Entrant {
            vpid: 7,
            joined_ns: 99,
            joined_at: 5,
            namespace: 4,
            image: 6,
            pid: 70,
            name: *b"x\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            is_forked: true,
            program: b"/bin/x",
            command_line: b"x -y",
        };
        assert!(register.enter(number, &entrant) && !register.enter(number, &entrant));
        let expected = Process {
            phase: Phase::Ready,
            vpid: 7,
            joined_ns: 99,
            joined_at: 5,
            namespace: 4,
            image: 6,
            pid: 70,
            name: "x".into(),
            is_forked: true,
            program: "/bin/x".into(),
            command_line: "x -y".into(),
        };
        assert_eq!(register.process(number), Some(expected.clone()));
        register.leave(number, 8);
        assert_eq!(register.process(number), Some(expected));
        assert_eq!(register.namesakes(7).map(|(number, _)| number).collect::<Vec<_>>(), [number]);
        register.leave(number, 7);
        assert_eq!(register.namesakes(7).count(), 0);
        assert_eq!(register.process(number).map(|process| process.phase), Some(Phase::Left));
        register.free(number);
        assert_eq!(register.process(number), None);
        let long = vec![b'a'; 1_000];
        let number = register.claim_process(7).unwrap();
        assert!(register.enter(number, &Entrant { program: &long, command_line: &long, ..entrant }));
        let cut = register.process(number).unwrap();
        assert_eq!((cut.program.len(), cut.command_line.len()), (216, 216));
    }

    #[test]
    fn a_full_register_refuses_and_counts() {
        let register = register();
        let numbers: Vec<u16> = core::iter::from_fn(|| register.claim_process(1)).collect();
        assert_eq!((numbers.len(), register.refused()), (PROCESS_COUNT - 1, (1, 0)));
        assert!(!numbers.contains(&0));
        register.free(numbers[5]);
        assert_eq!(register.claim_process(1), Some(numbers[5]));
        let large = vec![b'x'; CLASS_TEXT_SIZE_BYTES];
        assert_eq!(register.class_id(1, &large), Some(0));
        assert_eq!((register.class_id(1, b"a"), register.class_id(1, &large)), (None, Some(0)));
        assert_eq!(register.refused(), (1, 1));
    }

    #[test]
    fn programs_that_add_the_same_classes_at_once_get_the_same_ids() {
        let register = register();
        let texts: Vec<Vec<u8>> = (0..500).map(|number| format!("provider\0name{number}\0").into_bytes()).collect();
        let add = || texts.iter().map(|text| register.class_id(3, text).unwrap()).collect::<Vec<_>>();
        let all: Vec<Vec<u16>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|ids| *ids == all[0]));
        for (text, id) in texts.iter().zip(&all[0]) {
            assert_eq!(register.class(*id), Some(Class { process: 3, text: text.clone() }));
        }
        let shown: Vec<usize> = (0..register.class_count()).filter(|id| register.class(*id as u16).is_some()).collect();
        assert_eq!(shown.len(), texts.len());
    }

    #[test]
    fn programs_that_cannot_map_the_memory_are_reported_once() {
        let register = register();
        let write = |vpid, errno, program: &[u8]| {
            let (offset, entry) = Unmapped::to_write(vpid, errno, program);
            assert!(offset.is_multiple_of(8) && offset + entry.len() <= size_of::<Register>());
            let target = core::ptr::from_ref(&*register).cast::<AtomicU8>().wrapping_add(offset);
            // SAFETY: inside the register, as asserted; all of it is atomics.
            store(unsafe { core::slice::from_raw_parts(target, entry.len()) }, &entry);
        };
        let unmapped = |vpid, program: &str| Unmapped { vpid, errno: 12, program: program.into() };
        assert_eq!(register.take_unmapped(), []);
        write(7, 12, b"/bin/a");
        write(8, 12, format!("/{}b", "x".repeat(200)).as_bytes());
        write(8 + UNMAPPED_COUNT as u32, 12, b"/bin/c");
        assert_eq!(register.take_unmapped(), [unmapped(7, "/bin/a"), unmapped(8 + UNMAPPED_COUNT as u32, "/bin/c")]);
        assert_eq!(register.take_unmapped(), []);
        write(9, 12, format!("/{}b", "x".repeat(200)).as_bytes());
        assert_eq!(register.take_unmapped(), [unmapped(9, &format!("{}b", "x".repeat(UNMAPPED_TEXT_SIZE_BYTES - 1)))]);
    }

    #[test]
    fn overwritten_words_are_never_followed() {
        let register = register();
        let id = register.class_id(1, b"class").unwrap();
        let entry = &register.classes.entries[usize::from(id)];
        for (begin, len) in [(u32::MAX, 5), (1, u32::MAX), (CLASS_TEXT_SIZE_BYTES as u32, 5)] {
            entry.begin.store(begin, Ordering::Relaxed);
            entry.len.store(len, Ordering::Relaxed);
            assert_eq!(register.class(id), None);
        }
        register.classes.next.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(register.class_count(), CLASS_COUNT);
        assert_eq!(register.class_id(1, b"other"), None);
        let number = register.claim_process(1).unwrap();
        assert!(register.enter(number, &Entrant { vpid: 1, program: b"p", command_line: b"c", ..Entrant::default() }));
        let entry = &register.processes[usize::from(number)];
        entry.program_len.store(u32::MAX, Ordering::Relaxed);
        entry.command_line_len.store(u32::MAX, Ordering::Relaxed);
        let process = register.process(number).unwrap();
        assert_eq!((process.program.len(), process.command_line.len()), (2, 0));
        entry.state.store(77 << 32, Ordering::Relaxed);
        assert_eq!(register.process(number), None);
        register.add_tag_text(1, "user", b"alice");
        register.add_tag_text(1, "user", b"alice");
        register.add_tag_text(2, "role", b"alice");
        let texts =
            [("user", "alice"), ("role", "alice")].map(|(tag, text)| (String::from(tag), text.as_bytes().to_vec()));
        assert_eq!(register.tag_texts(), texts);
        let texts = &register.tag_texts;
        for (begin, len) in [(u32::MAX, 5), (1, u32::MAX), (TAG_TEXTS_SIZE_BYTES as u32, 5), (1, 3)] {
            texts.entries[0].begin.store(begin, Ordering::Relaxed);
            texts.entries[0].len.store(len, Ordering::Relaxed);
            assert_eq!(register.tag_texts().len(), 1, "{begin} {len}");
        }
        texts.next.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(register.tag_texts().len(), 1);
        register.add_tag_text(1, "user", b"bob");
        assert_eq!((register.tag_texts().len(), register.tag_texts_refused()), (1, 1));
        texts.slots.iter().for_each(|slot| slot.store(u64::MAX, Ordering::Relaxed));
        register.add_tag_text(1, "user", b"carol");
        assert_eq!(register.tag_texts_refused(), 2);
        register.classes.slots.iter().for_each(|slot| slot.store(u64::MAX, Ordering::Relaxed));
        assert_eq!(register.class_id(1, b"third"), None);
    }

    #[test]
    fn rules_are_read_back() {
        let register = register();
        assert_eq!(register.rules(), (0, Vec::new()));
        assert!(!register.has_had_rules());
        let rule = |pattern: &str| Rule::all(pattern);
        let levels = Some(LevelBound::AtMost(Level::Info));
        let rules = [Rule { levels, ..rule("http:*") }, Rule { is_exclusion: true, ..rule("db:?") }];
        assert!(register.set_rules(&rules, "http:*\n!db:?"));
        assert_eq!(register.rules(), (1, rules.to_vec()));
        assert!(register.has_had_rules());
        assert_eq!(register.rules_text(), "http:*\n!db:?");
        assert!(!register.set_rules(&[rule(&"x".repeat(RULES_SIZE_BYTES_MAX + 1))], ""));
        assert!(!register.set_rules(&rules, &"x".repeat(RULES_SIZE_BYTES_MAX + 1)));
        assert_eq!(register.rules().0, 1);
        assert!(register.set_rules(&[], ""));
        assert_eq!(register.rules(), (2, Vec::new()));
        let register = self::register();
        assert!(register.set_rules(&[rule(rule::ALL)], rule::ALL) && !register.has_had_rules());
        assert!(register.set_rules(&[rule(rule::ALL)], rule::ALL) && register.has_had_rules());
    }
}

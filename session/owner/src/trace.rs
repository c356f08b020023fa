//! A trace that is being written: its directory, its growing metadata, and its state stream.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dormouse_abi::class::ClassDecl;
use dormouse_abi::page::{STREAM_EVENTS, STREAM_STATE};
use dormouse_abi::register::{CLASS_COUNT, PROCESS_COUNT, Register};
use dormouse_ctf::{Classes, Metadata, StreamReader};
use dormouse_format::{
    Cause, Losses, MetadataOptions, PacketHeader, PacketWriter, Refusal, StateRecord, StreamTotals, Tag, Totals,
};
use dormouse_relay::Memory;
use rustix::fs::FallocateFlags;

use crate::announced::{class_of, name_texts, program_of, refusal_of};
use crate::clock::Clock;
use crate::dir::{Dir, not_read, not_written};
use crate::error::Error;
use crate::ledger::{Ledger, TraceContents, identity_of};
use crate::options::{Options, Plan};
use crate::points::point;
use crate::quota::{KEPT_FOR_END_BYTES, KEPT_FOR_STATE_BYTES, Quota};
use crate::user_disk::UserDisk;

/// Reason for a refusal when there is no disk space left.
pub(crate) const DISK_MAX_REACHED: &str =
    "the session has written as much as its --disk-max allows, or all sessions as much as --disk-max-user";

/// Class name in a refusal that concerns all classes of a program.
pub(crate) const ALL_CLASSES: &str = "(all classes)";

/// Space set aside for the state stream, so that even a full disk can be reported.
const STATE_RESERVE_BYTES: u64 = 64 << 10;

fn refusal_record(Refusal { name, program, reason }: &Refusal) -> StateRecord<'_> {
    StateRecord::ClassRefused { class: name, program, reason }
}

fn identity_of_refusal(Refusal { name, program, reason }: &Refusal) -> [String; 3] {
    [name, program, reason].map(String::clone)
}

/// Number of bytes of metadata that are written again in a second for new texts of tags, after those of the first
/// [`TEXTS_BURST`].
const METADATA_BYTES_PER_S: u64 = 1 << 20;
/// Time whose bytes may be written at once.
const TEXTS_BURST: Duration = Duration::from_secs(1);
/// Time that a look at the texts counts for.
const TEXTS_LOOK: Duration = Duration::from_millis(1);

/// Maximum number of refusals that are reported one by one: programs may announce any number of classes.
pub(crate) const REFUSAL_COUNT_MAX: usize = 1_000;

/// The trace of a session.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) dir: Dir,
    pub(crate) clock: Clock,
    /// Progress of the trace, for the owner that takes the session up next.
    pub(crate) ledger: Arc<Ledger>,
    /// The trace's UUID.
    pub(crate) uuid: [u8; 16],
    /// Memory in which programs enter their classes. The holder of the trace keeps it mapped.
    memory: OnceLock<Memory>,
    /// Limit of all sessions of the user together, if there is one.
    pub(crate) user_disk: Option<UserDisk>,
    /// See [`Trace::know_processes_until`]. Relaxed: independent of other data.
    known_until: AtomicU64,
    /// See [`Trace::rules_since`].
    rules_since: Mutex<BTreeMap<String, u64>>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: MetadataOptions,
    /// Number of register ids that have been looked at, and those among them that had no text yet.
    seen_count: usize,
    unseen: Vec<u16>,
    /// Programs of the processes that have been taken in, by the processes' present or former numbers.
    programs: BTreeMap<u16, String>,
    changes: Option<u32>,
    classes: Classes,
    metadata: GrowingFile,
    /// Number of texts of tags in the register at the last look, and the time that the looks so far count up to.
    texts_seen: (usize, Option<Instant>),
    state: GrowingFile,
    state_totals: StreamTotals,
    state_writer: PacketWriter,
    state_last: u64,
    /// Distinct refusals, at most [`REFUSAL_COUNT_MAX`], and then one that stands for the others.
    refusals: Vec<Refusal>,
    /// Identities of the refusals, for quick look-up: programs may announce any number of classes, repeatedly.
    refused: HashSet<[String; 3]>,
    /// Count of all refusals, repeated ones included.
    losses: Losses,
    /// Whether the register has been looked at. An owner that takes a session up looks at all of it once more, and must
    /// not count again.
    has_looked: bool,
    /// Nothing may be written any more.
    is_finished: bool,
}

impl Trace {
    /// Creates the directory, the metadata's beginning, and the state stream with its first record.
    pub(crate) fn create(plan: &Plan, clock: Clock, uuid: [u8; 16], ledger: Arc<Ledger>) -> Result<Trace, Error> {
        let bytes_max = plan.options.disk_bytes_user_max;
        let user_disk = bytes_max.map(|max| UserDisk::claim(max, KEPT_FOR_STATE_BYTES)).transpose()?;
        if let Some(user_disk) = user_disk.as_ref().filter(|user_disk| !user_disk.take(0)) {
            let text = format!(
                "all live sessions together have written as much as --disk-max-user allows ({} bytes); end one, or allow more",
                user_disk.bytes_max
            );
            return Err(text.into());
        }
        ledger.set_disk_bytes_user_max(bytes_max.unwrap_or(0));
        ledger.user_kept_left().store(KEPT_FOR_STATE_BYTES, Ordering::Relaxed);
        let dir = Dir::make(&plan.options.dir)?;
        let options = metadata_options(&clock, uuid, &plan.options);
        let preamble = Metadata::new(options.clone()).preamble();
        // The process that has created this file has created the trace: only then may this session remove the rest.
        let metadata = GrowingFile::create(&dir, "metadata", preamble.as_bytes())?;
        let state = GrowingFile::create(&dir, "state", &[]).inspect_err(|_| remove_files(&dir))?;
        ledger.set_clock(clock.to_words());
        ledger.set_metadata_inode(metadata.inode());
        ledger.set_disk_bytes_max(plan.options.disk_bytes_max.unwrap_or(0));
        let trace = Trace::begin(clock, options, dir, ledger, [metadata, state], user_disk);
        trace.quota().begin(plan.options.disk_bytes_max);
        // There is room for it even with the smallest allowed maximum.
        trace.quota().take(preamble.len() as u64, 0);
        trace.ledger.commit_written(TraceContents { metadata_len: preamble.len() as u64, ..TraceContents::default() });
        let session = StateRecord::Session {
            mode: plan.options.mode.name(),
            budget_bytes: plan.options.budget_bytes,
            page_size_bytes: plan.geometry.page_size_bytes.into(),
            command_line: &plan.options.command_line,
        };
        let rules = (!plan.rules.is_all()).then_some(StateRecord::Rules { rules: plan.rules.text() });
        let records: Vec<StateRecord<'_>> = [session].into_iter().chain(rules).collect();
        trace.state(&records).inspect_err(|_| trace.remove())?;
        Ok(trace)
    }

    /// Takes up the trace in `dir`, as far as the ledger goes. Anything written after that is written again.
    pub(crate) fn take_up(dir: Dir, ledger: Arc<Ledger>) -> Result<Trace, Error> {
        let clock = Clock::from_words(ledger.clock());
        let TraceContents { metadata_len, state_len, .. } = ledger.written();
        let mut metadata = GrowingFile::take_up_if(&dir, "metadata", metadata_len, ledger.metadata_inode())?;
        let mut state = GrowingFile::take_up(&dir, "state", state_len)?;
        let text = metadata.read().map_err(not_read(&dir.path_of("metadata")))?;
        let parsed = Metadata::decode(&text);
        let parsed = parsed.map_err(|error| format!("{}: {error}", dir.path_of("metadata").display()))?;
        let bytes = state.read().map_err(not_read(&dir.path_of("state")))?;
        let (uuid, used) = (parsed.options.uuid, ledger.used_of_disk(metadata.len + state.len));
        let user_bytes = used.saturating_add(ledger.user_kept_left().load(Ordering::Relaxed));
        let bytes_max = Some(ledger.disk_bytes_user_max()).filter(|max| *max != 0);
        let user_disk = bytes_max.map(|max| UserDisk::claim(max, user_bytes)).transpose()?;
        let trace = Trace::begin(clock, parsed.options.clone(), dir, ledger, [metadata, state], user_disk);
        trace.quota().begin(trace.ledger.left_of_disk(used));
        let mut inner = trace.lock();
        inner.classes = parsed.classes.clone();
        inner.has_looked = false;
        inner.losses = trace.ledger.refused();
        let mut reader = StreamReader::new(&parsed, 0, &bytes);
        for record in reader.by_ref().flatten().filter_map(|event| event.state_record()) {
            match record {
                StateRecord::Process { process, program, .. } => {
                    drop(inner.programs.insert(process as u16, program.into()));
                }
                StateRecord::ClassRefused { class, program, reason } => {
                    drop(inner.note_refusal(refusal_of(class, program, reason)));
                }
                _ => {}
            }
        }
        inner.state_totals = reader.totals().unwrap_or(inner.state_totals);
        let mut last = None;
        let mut rest = &bytes[..];
        while let Ok(header) = PacketHeader::decode(rest) {
            rest = rest.get(header.packet_size_bytes as usize..).unwrap_or(&[]);
            last = Some(header);
        }
        let is_whole = rest.is_empty() && inner.state_totals.packets > 0;
        let Some(last) = last.filter(|last| is_whole && last.uuid == uuid) else {
            return Err(format!("{} was written over", trace.dir.path_of("state").display()).into());
        };
        (inner.state_writer, inner.state_last) = (PacketWriter::behind(&last), last.timestamp_end);
        // The owner before may have replaced the file.
        inner.commit_metadata(&trace.ledger);
        drop(inner);
        Ok(trace)
    }

    fn begin(
        clock: Clock,
        options: MetadataOptions,
        dir: Dir,
        ledger: Arc<Ledger>,
        [metadata, state]: [GrowingFile; 2],
        user_disk: Option<UserDisk>,
    ) -> Trace {
        let uuid = options.uuid;
        // If the file system cannot set space aside, a full disk may prevent the record about itself.
        let _ = state.set_space_aside(STATE_RESERVE_BYTES);
        let inner = Mutex::new(Inner {
            classes: Classes::of_records(options.record_kind, &options.tags),
            options,
            seen_count: 0,
            unseen: Vec::new(),
            programs: BTreeMap::new(),
            changes: None,
            metadata,
            texts_seen: (0, None),
            state,
            state_totals: StreamTotals { stream_id: STREAM_STATE, ..StreamTotals::default() },
            state_writer: PacketWriter::state(uuid),
            state_last: 0,
            refusals: Vec::new(),
            refused: HashSet::new(),
            losses: Losses::default(),
            has_looked: true,
            is_finished: false,
        });
        Trace {
            dir,
            clock,
            uuid,
            ledger,
            memory: OnceLock::new(),
            user_disk,
            known_until: AtomicU64::new(u64::MAX),
            rules_since: Mutex::default(),
            inner,
        }
    }

    /// Returns the register in which programs enter their classes, if there is one.
    fn register(&self) -> Option<&Register> {
        self.memory.get().and_then(Memory::register)
    }

    /// Returns the quota of the trace and of snapshots of its session.
    pub(crate) fn quota(&self) -> Quota<'_> {
        let user = self.user_disk.as_ref().map(|user_disk| (user_disk, self.ledger.user_kept_left()));
        Quota { left: self.ledger.quota_left(), user }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the files of a trace that has no streams of events.
    pub(crate) fn remove(&self) {
        remove_files(&self.dir);
    }

    /// Sets the memory in which programs enter their classes from now on.
    pub(crate) fn follow(&self, memory: Memory) {
        let _ = self.memory.set(memory);
    }

    /// Returns the current classes.
    pub(crate) fn classes(&self) -> Classes {
        self.take_in();
        self.lock().classes.clone()
    }

    /// Returns classes and tags with all names that programs have entered by now.
    pub(crate) fn metadata_by_now(&self) -> Metadata {
        self.take_in();
        let inner = self.lock();
        let mut metadata = inner.metadata_with(&self.clock, self.register(), Totals::default());
        if metadata.options.tags.iter().any(|tag| !tag.texts.is_empty()) {
            let declared = std::mem::replace(
                &mut metadata.classes,
                Classes::of_records(inner.options.record_kind, &metadata.options.tags),
            );
            for class in declared.events() {
                if let Some(decl) = &class.decl {
                    metadata.classes.insert(class.id as u16, (**decl).clone());
                }
            }
        }
        metadata
    }

    /// Replaces the session's rules, `before`, by others, and notes since when each of these is in force: no program
    /// follows them earlier.
    pub(crate) fn replace_rules(&self, before: &str, text: &str, replace: impl FnOnce() -> bool) -> bool {
        let mut since = self.rules_since();
        if !replace() {
            return false;
        }
        let now = self.clock.now();
        let of = |line: &str| match before.lines().any(|known| known == line) {
            true => since.get(line).copied().unwrap_or(0),
            false => now,
        };
        *since = text.lines().map(|line| (line.to_string(), of(line))).collect();
        true
    }

    /// Returns the times since which rules are in force, by their text; rules of the beginning are not listed. Rules are
    /// not replaced while it is held.
    pub(crate) fn rules_since(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.rules_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that changes when programs enter classes or texts of tags.
    pub(crate) fn names_version(&self) -> u64 {
        self.register().map_or(0, |register| u64::from(register.changes()) << 32 | register.tag_text_count() as u64)
    }

    /// Notes the program of the process with this number.
    pub(crate) fn note_program(&self, number: u16, program: &str) {
        self.lock().programs.insert(number, program.into());
    }

    /// Declares the classes and the texts of tags that programs have entered since the last look.
    pub(crate) fn take_in(&self) {
        let Some(register) = self.register() else { return };
        let (mut fresh, mut refused) = (Vec::new(), Vec::new());
        let mut inner = self.lock();
        inner.name_texts(register, self);
        let changes = register.changes();
        if inner.changes.replace(changes) == Some(changes) {
            return;
        }
        let count = register.class_count();
        let ids = std::mem::take(&mut inner.unseen).into_iter().chain((inner.seen_count..count).map(|id| id as u16));
        let mut unseen = Vec::new();
        for id in ids.filter(|id| inner.classes.get(STREAM_EVENTS, *id).is_none()) {
            match class_of(register, id, |number| inner.program_of(register, number)) {
                Some(Ok(decl)) => fresh.push((id, decl)),
                Some(Err(refusal)) => refused.push(refusal),
                None => unseen.push(id),
            }
        }
        inner.seen_count = count;
        inner.unseen = unseen;
        if let Err(reason) = inner.declare(&fresh, self) {
            let program = |id: u16| inner.program_of(register, register.class(id).map_or(0, |class| class.process));
            refused.extend(fresh.iter().map(|(id, decl)| refusal_of(&decl.full_name(), &program(*id), &reason)));
        }
        if !std::mem::replace(&mut inner.has_looked, true) {
            refused.retain(|refusal| !inner.refused.contains(&identity_of_refusal(refusal)));
        }
        drop(inner);
        self.refuse(refused);
    }

    /// Notes what programs have counted themselves: entries that found no room in the register, and programs that did
    /// not reach the session's socket.
    pub(crate) fn refuse_uncounted(&self, unheard: u64) {
        let (processes, classes) = self.register().map_or((0, 0), Register::refused);
        let late = "their 50 ms were over before the session's socket took them";
        let classes_full = format!("a trace has at most {CLASS_COUNT} classes; record fewer programs at once");
        let processes_full = format!("a session has at most {} processes at once", PROCESS_COUNT - 1);
        let all = [
            (classes, "classes", classes_full, Cause::ClassRefused),
            (processes, "processes", processes_full, Cause::ProgramRefused),
            (unheard, "processes", late.into(), Cause::ProgramRefused),
        ];
        for (count, what, why, cause) in all.iter().filter(|(count, ..)| *count > 0) {
            // Happens at the end, so it is not counted in the ledger.
            self.refuse_as(*cause, *count, refusal_of(&format!("({count} {what})"), "(any program)", why));
        }
    }

    /// Declares classes.
    ///
    /// # Errors
    /// See [`Inner::declare`].
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn declare(&self, classes: &[(u16, ClassDecl)]) -> Result<(), String> {
        self.lock().declare(classes, self)
    }

    /// Returns the number of classes.
    pub(crate) fn class_count(&self) -> u32 {
        self.take_in();
        self.lock().classes.events().count() as u32
    }

    /// Notes refusals, each distinct one once, in the trace too.
    pub(crate) fn refuse(&self, refused: impl IntoIterator<Item = Refusal>) {
        for refusal in refused {
            let is_program = refusal.name == ALL_CLASSES;
            let cause = if is_program { Cause::ProgramRefused } else { Cause::ClassRefused };
            self.ledger.add_refused(cause, 1);
            self.refuse_as(cause, 1, refusal);
        }
    }

    /// Notes refused programs at the session's end. Commits nothing: another owner may have to repeat the end.
    pub(crate) fn refuse_at_end(&self, programs: Vec<Refusal>) {
        programs.into_iter().for_each(|refusal| self.refuse_as(Cause::ProgramRefused, 1, refusal));
    }

    fn refuse_as(&self, cause: Cause, count: u64, refusal: Refusal) {
        let mut inner = self.lock();
        inner.losses.add(cause, count);
        let fresh = inner.note_refusal(refusal);
        drop(inner);
        if let Some(fresh) = fresh {
            // If the record cannot be written, the session's summary still has the refusal.
            let _ = self.state(&[refusal_record(&fresh)]);
        }
    }

    /// Returns the distinct refusals, and the count of all.
    pub(crate) fn refusals(&self) -> (Vec<Refusal>, Losses) {
        let inner = self.lock();
        (inner.refusals.clone(), inner.losses.clone())
    }

    /// Declares that every process that has written an event before this time has its record in the trace. Later
    /// records get at most this time. A process that is found next then has a record with the time at which it joined,
    /// not after its first events, which readers would otherwise attribute to the program that the process was before.
    pub(crate) fn know_processes_until(&self, moment: u64) {
        self.known_until.store(moment, Ordering::Relaxed);
    }

    /// Returns the time set by [`Trace::know_processes_until`]; the maximum before it is set.
    pub(crate) fn processes_known_until(&self) -> u64 {
        self.known_until.load(Ordering::Relaxed)
    }

    /// Appends a packet of state records with the current time or a little earlier ([`Trace::know_processes_until`]).
    pub(crate) fn state(&self, records: &[StateRecord<'_>]) -> Result<(), Error> {
        self.state_at(self.processes_known_until(), records)
    }

    /// Appends a packet of state records with a past time, but not before the last record.
    pub(crate) fn state_at(&self, moment: u64, records: &[StateRecord<'_>]) -> Result<(), Error> {
        let mut inner = self.lock();
        self.append(&mut inner, moment, records, KEPT_FOR_END_BYTES)?;
        self.ledger.commit_written(TraceContents { state_len: inner.state.len, ..self.ledger.written() });
        Ok(())
    }

    /// Notes an entry of a process that has joined, once, with its records. `is_first`: whether the process is counted,
    /// which has an entry for each of its tracers.
    pub(crate) fn note_process(&self, number: u16, joined_at: u64, records: &[StateRecord<'_>], is_first: bool) {
        let mut inner = self.lock();
        // Without its record, the process's events are still in the trace, under its bare id.
        let _ = self.append(&mut inner, joined_at, records, KEPT_FOR_END_BYTES);
        let written = self.ledger.written();
        let (joined, process) = (written.joined + u64::from(is_first), (number, identity_of(joined_at)));
        self.ledger.commit_written(TraceContents { state_len: inner.state.len, joined, process, ..written });
    }

    /// Appends a packet. It is kept once it is committed.
    fn append(&self, inner: &mut Inner, moment: u64, records: &[StateRecord<'_>], kept: u64) -> Result<(), Error> {
        if inner.is_finished {
            return Err(SESSION_OVER.to_string().into());
        }
        let before = inner.state_writer.clone();
        let now = self.clock.now().min(moment).max(inner.state_last);
        for record in records {
            inner.state_writer.push(now, record);
        }
        let packet = inner.state_writer.finish();
        let size_bytes = packet.len() as u64;
        let appended = if self.quota().take(size_bytes, kept) {
            let appended = inner.state.append(&packet).inspect_err(|_| self.quota().give_back(size_bytes));
            appended.map_err(|error| not_written(&self.dir.path_of("state"), &error))
        } else {
            Err(DISK_MAX_REACHED.to_string().into())
        };
        if appended.is_err() {
            // The next packet gets the number that this one would have had.
            inner.state_writer = before;
            return appended;
        }
        inner.state_totals.packets += 1;
        inner.state_totals.events += records.len() as u64;
        inner.state_last = now;
        Ok(())
    }

    /// Reports losses and events that rules left out, updates the clock's frequency in the metadata, and closes the trace
    /// with its totals. If the totals of the event streams are not known, the trace stays open. If there is no room for
    /// the records of what rules left out, they are missing. Nothing is written to it afterwards: requests
    /// that are still being answered are refused.
    ///
    /// # Errors
    /// One of the two could not be written. The trace is valid, but lacks its losses, or stays open.
    pub(crate) fn finish(
        &self,
        losses: &[StateRecord<'_>],
        unrecorded: &[StateRecord<'_>],
        totals: Option<Totals>,
    ) -> Result<(), Error> {
        let mut inner = self.lock();
        let mut append = |records: &[StateRecord<'_>]| match records {
            [] => Ok(()),
            records => self.append(&mut inner, self.processes_known_until(), records, 0),
        };
        // One packet: another owner may have to repeat the end, and must not find a part of it.
        let told = append(&[losses, unrecorded].concat());
        let told = if unrecorded.is_empty() { told } else { told.or_else(|_| append(losses)) };
        inner.is_finished = true;
        // Releases the space that was set aside and not used.
        inner.state.release_space();
        // A trace without its losses is not closed: readers would report that it has none.
        let totals = totals.filter(|_| told.is_ok()).map(|totals| with_state(totals, inner.state_totals));
        let metadata = inner.metadata_with(&self.clock, self.register(), totals.unwrap_or_default());
        drop(inner);
        point();
        // If this fails, the existing metadata are valid; their clock is a little less exact.
        told.and(write_metadata(&self.dir, &metadata).map(drop))
    }

    /// Makes another directory a trace of the same session, with the current state stream and one more record. The
    /// caller has written its event streams, which have the given `totals`.
    pub(crate) fn branch(&self, dir: &Dir, record: &StateRecord<'_>, totals: Totals) -> Result<(), Error> {
        self.branch_while(dir, record, totals, || {})
    }

    /// Does the work of [`Trace::branch`]. `meanwhile` is called before files are read and written; only tests use it.
    fn branch_while(
        &self,
        dir: &Dir,
        record: &StateRecord<'_>,
        totals: Totals,
        meanwhile: impl FnOnce(),
    ) -> Result<(), Error> {
        let (state_len, last_packet, metadata) = {
            let inner = self.lock();
            if inner.is_finished {
                return Err(SESSION_OVER.to_string().into());
            }
            let mut writer = inner.state_writer.clone();
            writer.push(self.clock.now().max(inner.state_last), record);
            let StreamTotals { events, packets, .. } = inner.state_totals;
            let state_totals = StreamTotals { events: events + 1, packets: packets + 1, ..inner.state_totals };
            (
                inner.state.len,
                writer.finish(),
                inner.metadata_with(&self.clock, self.register(), with_state(totals, state_totals)),
            )
        };
        // The lock is not held while waiting for a disk: the stream's contents stay, and other threads may append to it
        // meanwhile.
        meanwhile();
        let mut state = vec![0; state_len as usize];
        let read = self.dir.read("state").and_then(|mut file| file.read_exact(&mut state));
        read.map_err(not_read(&self.dir.path_of("state")))?;
        state.extend(last_packet);
        let size_bytes = (state.len() + metadata.text().len()) as u64;
        if !self.quota().take(size_bytes, KEPT_FOR_STATE_BYTES) {
            return Err(DISK_MAX_REACHED.to_string().into());
        }
        // The metadata are written last: a directory without them is not a trace.
        let written = dir.create("state", &state).and_then(|_| write_metadata(dir, &metadata));
        written.inspect_err(|_| {
            remove_files(dir);
            self.quota().give_back(size_bytes);
        })?;
        self.ledger.add_snapshot_bytes(size_bytes);
        Ok(())
    }
}

impl Inner {
    fn program_of(&self, register: &Register, number: u16) -> String {
        self.programs.get(&number).cloned().unwrap_or_else(|| program_of(register, number))
    }

    /// Declares classes, in the metadata too, with one write.
    ///
    /// # Errors
    /// The metadata on disk lack the classes, and get them only if there is space at the end.
    fn declare(&mut self, classes: &[(u16, ClassDecl)], trace: &Trace) -> Result<(), String> {
        let (quota, ledger) = (trace.quota(), &trace.ledger);
        if classes.is_empty() {
            return Ok(());
        }
        if self.is_finished {
            return Err(SESSION_OVER.into());
        }
        let blocks: String = classes.iter().map(|(id, decl)| self.options.format.class(*id, decl)).collect();
        let size_bytes = blocks.len() as u64;
        // The final metadata lack classes for which there was no room.
        if !quota.take(size_bytes, KEPT_FOR_END_BYTES) {
            return Err(DISK_MAX_REACHED.into());
        }
        for (id, decl) in classes {
            self.classes.insert(*id, decl.clone());
        }
        // Half a block would make all of the metadata unreadable.
        self.metadata.append(blocks.as_bytes()).map_err(|error| {
            quota.give_back(size_bytes);
            format!("the metadata cannot be written: {error}; free space or give another directory with -o")
        })?;
        ledger.commit_written(TraceContents { metadata_len: self.metadata.len, ..ledger.written() });
        Ok(())
    }

    /// Replaces the metadata by metadata with the texts of tags that programs have entered since the last look, for those
    /// who read the trace before it is finished. If there is no space, they get the texts at the end.
    fn name_texts(&mut self, register: &Register, trace: &Trace) {
        let (seen, counted) = self.texts_seen;
        if self.is_finished || register.tag_text_count() == seen {
            return;
        }
        let now = Instant::now();
        let counted = counted.map_or(now, |counted| counted.max(now));
        if counted > now + TEXTS_BURST {
            return;
        }
        let mut options = self.options.clone();
        let count = name_texts(&mut options.tags, register);
        let mut took = TEXTS_LOOK;
        if options.tags != self.options.tags {
            let metadata = Metadata { options, classes: self.classes.clone(), totals: Totals::default() };
            if let Some(file) = self.replace_metadata(&metadata, trace) {
                (self.metadata, self.options) = (file, metadata.options);
                self.commit_metadata(&trace.ledger);
            }
            took += Duration::from_millis(self.metadata.len * 1000 / METADATA_BYTES_PER_S);
        }
        self.texts_seen = (count, Some(counted + took));
    }

    /// Replaces the metadata on disk, if there is space.
    fn replace_metadata(&self, metadata: &Metadata, trace: &Trace) -> Option<GrowingFile> {
        let more_bytes = (metadata.text().len() as u64).saturating_sub(self.metadata.len);
        if !trace.quota().take(more_bytes, KEPT_FOR_END_BYTES) {
            return None;
        }
        write_metadata(&trace.dir, metadata).inspect_err(|_| trace.quota().give_back(more_bytes)).ok()
    }

    /// Notes the file with the metadata and its length. If the owner is killed between the two, the next one takes all
    /// of the file, which is whole.
    fn commit_metadata(&self, ledger: &Ledger) {
        ledger.commit_written(TraceContents { metadata_len: self.metadata.len, ..ledger.written() });
        point();
        ledger.set_metadata_inode(self.metadata.inode());
    }

    /// Adds a refusal if it is new. At the limit, adds the last one, which stands for all others. Returns what was
    /// added.
    fn note_refusal(&mut self, refusal: Refusal) -> Option<Refusal> {
        if self.refusals.len() > REFUSAL_COUNT_MAX || !self.refused.insert(identity_of_refusal(&refusal)) {
            return None;
        }
        let is_last = self.refusals.len() == REFUSAL_COUNT_MAX;
        let only_first = format!("only the first {REFUSAL_COUNT_MAX} are named");
        let others = || refusal_of("(other classes)", "(any program)", &only_first);
        let fresh = if is_last { others() } else { refusal };
        self.refusals.push(fresh.clone());
        Some(fresh)
    }

    /// Returns all classes, the latest calibration of the clock, the texts of tags in `register`, and the totals.
    fn metadata_with(&self, clock: &Clock, register: Option<&Register>, totals: Totals) -> Metadata {
        let mut options = MetadataOptions { clock: clock.last_calibration(), ..self.options.clone() };
        if let Some(register) = register {
            name_texts(&mut options.tags, register);
        }
        Metadata { options, classes: self.classes.clone(), totals }
    }
}

const SESSION_OVER: &str = "the session has ended";

/// Replaces the existing metadata, if any, atomically: no reader sees a part of them.
fn write_metadata(dir: &Dir, metadata: &Metadata) -> Result<GrowingFile, Error> {
    let fresh = ".metadata.new";
    // An owner that was killed meanwhile has left it.
    dir.remove(fresh);
    let file = GrowingFile::create(dir, fresh, metadata.text().as_bytes())?;
    point();
    dir.rename(fresh, "metadata").inspect_err(|_| dir.remove(fresh))?;
    point();
    Ok(file)
}

/// Removes the files that make a directory a trace.
pub(crate) fn remove_files(dir: &Dir) {
    ["metadata", "state"].iter().for_each(|name| dir.remove(name));
}

/// Returns the totals of all streams, including the state stream.
pub(crate) fn with_state(mut totals: Totals, state: StreamTotals) -> Totals {
    totals.0.insert("state".into(), state);
    totals
}

/// A file that grows by whole pieces or not at all.
#[derive(Debug)]
pub(crate) struct GrowingFile {
    file: File,
    /// Length of its contents, in bytes.
    pub(crate) len: u64,
}

impl GrowingFile {
    pub(crate) fn create(dir: &Dir, name: &str, bytes: &[u8]) -> Result<GrowingFile, Error> {
        Ok(GrowingFile { file: dir.create(name, bytes)?, len: bytes.len() as u64 })
    }

    /// Takes up the first `len` bytes of a file that another owner has begun. Cuts off the rest.
    pub(crate) fn take_up(dir: &Dir, name: &str, len: u64) -> Result<GrowingFile, Error> {
        GrowingFile::take_up_if(dir, name, len, 0)
    }

    /// Takes up the first `len` bytes if the file has this `inode` or `inode` is 0; otherwise all of the file.
    fn take_up_if(dir: &Dir, name: &str, len: u64, inode: u64) -> Result<GrowingFile, Error> {
        let opened = dir.go_on(name).and_then(|file| Ok((file.metadata()?, file)));
        let (found, file) = opened.map_err(|error| not_written(&dir.path_of(name), &error))?;
        let len = if inode == 0 || found.ino() == inode { len } else { found.len() };
        if found.len() < len {
            return Err(format!("{} was truncated", dir.path_of(name).display()).into());
        }
        let file = GrowingFile { file, len };
        file.release_space();
        Ok(file)
    }

    fn inode(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.ino())
    }

    /// Reads the whole contents.
    fn read(&mut self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len as usize];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        #[cfg(test)]
        {
            // A write may be interrupted halfway.
            self.file.write_all_at(&bytes[..bytes.len() / 2], self.len)?;
            point();
        }
        self.file.write_all_at(bytes, self.len).inspect_err(|_| self.release_space())?;
        point();
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Makes the file system reserve room for this many more bytes. The size stays the same: readers see only what was
    /// written.
    pub(crate) fn set_space_aside(&self, size_bytes: u64) -> std::io::Result<()> {
        Ok(rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.len, size_bytes)?)
    }

    /// Releases the space that was set aside and not used.
    pub(crate) fn release_space(&self) {
        let _ = self.file.set_len(self.len);
    }

    /// Removes the contents.
    pub(crate) fn clear(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.len = 0;
        Ok(())
    }
}

fn metadata_options(clock: &Clock, uuid: [u8; 16], options: &Options) -> MetadataOptions {
    let part = |text: &str| text.parse().unwrap_or(0);
    MetadataOptions {
        uuid,
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        clock: clock.first_calibration(),
        tracer_version: (part(env!("CARGO_PKG_VERSION_MAJOR")), part(env!("CARGO_PKG_VERSION_MINOR"))),
        start_time_s: rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec,
        record_kind: options.context,
        tags: Tag::all(&options.tags),
        format: options.format,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dormouse_abi::register::TAG_TEXT_COUNT;
    use dormouse_abi::tag::TagNames;

    use crate::memory::{SessionMemory, create_pool};
    use crate::options::Cpus;
    use crate::points::killed_at;
    use crate::quota::DISK_BYTES_MIN;

    fn trace(place: &std::path::Path, disk_bytes_max: Option<u64>) -> Trace {
        let plan = Options { disk_bytes_max, ..Options::new(place.join("trace")) }.plan().unwrap();
        Trace::create(&plan, Clock::new(), [7; 16], crate::testing::ledger(&plan)).unwrap()
    }

    fn read(dir: &Dir, name: &str) -> Vec<u8> {
        std::fs::read(dir.path_of(name)).unwrap()
    }

    const TAKEN: StateRecord<'_> = StateRecord::Snapshot { trigger: "test", pages_missed: 0, pages_refused: 0 };

    #[test]
    fn a_branch_reads_files_without_locking_the_trace() {
        let place = tempfile::tempdir().unwrap();
        let trace = trace(place.path(), None);
        let (state, branch) = (read(&trace.dir, "state"), Dir::make(&place.path().join("branch")).unwrap());
        let is_free = || assert!(trace.inner.try_lock().is_ok(), "the trace is locked while files are read");
        trace.branch_while(&branch, &TAKEN, Totals::default(), is_free).unwrap();
        let branched = read(&branch, "state");
        assert!(branched.starts_with(&state) && branched.len() > state.len());
        let metadata = Metadata::parse(&String::from_utf8(read(&branch, "metadata")).unwrap()).unwrap();
        assert_eq!(metadata.totals.0["state"].packets, 2);
    }

    #[test]
    fn nothing_is_written_to_a_trace_that_is_finished() {
        let place = tempfile::tempdir().unwrap();
        let trace = trace(place.path(), None);
        trace.finish(&[], &[], Some(Totals::default())).unwrap();
        let before = [read(&trace.dir, "metadata"), read(&trace.dir, "state")];
        let branch = Dir::make(&place.path().join("branch")).unwrap();
        assert!(trace.declare(&[(0, crate::testing::class())]).is_err() && trace.state(&[TAKEN]).is_err());
        assert!(trace.branch(&branch, &TAKEN, Totals::default()).is_err());
        trace.refuse([refusal_of("p:e", "program", "reason")]);
        assert_eq!([read(&trace.dir, "metadata"), read(&trace.dir, "state")], before);
        assert_eq!(branch.names().unwrap().len(), 0);
    }

    /// A session whose events have the tag `user`, and its memory, which has a register.
    fn tagged(place: &std::path::Path, disk_bytes_max: Option<u64>) -> (Trace, SessionMemory) {
        let (tags, cpus) = (TagNames::new(["user"]).unwrap(), Cpus::pretended(0, 0));
        let plan = Options { tags, cpus, disk_bytes_max, ..Options::new(place.join("trace")) }.plan().unwrap();
        let ledger = crate::testing::ledger(&plan);
        let trace = Trace::create(&plan, Clock::new(), [7; 16], Arc::clone(&ledger)).unwrap();
        let memory = SessionMemory::new(create_pool(&plan).unwrap(), &plan, ledger).unwrap();
        trace.follow(memory.view());
        (trace, memory)
    }

    fn users(metadata: &Metadata) -> Vec<&str> {
        metadata.options.tags[0].texts.iter().map(|label| label.name.as_str()).collect()
    }

    #[test]
    fn texts_of_tags_are_in_the_metadata_wherever_an_owner_is_killed() {
        for at in 0.. {
            let place = tempfile::tempdir().unwrap();
            let (trace, memory) = tagged(place.path(), None);
            let view = memory.view();
            let register = view.register().unwrap();
            let on_disk = || Metadata::decode(&read(&trace.dir, "metadata"));
            let take_up = || {
                let ledger = Ledger::inherited(trace.ledger.file().try_clone_to_owned().unwrap()).unwrap();
                let next = Trace::take_up(Dir::open(&place.path().join("trace")).unwrap(), Arc::new(ledger)).unwrap();
                next.follow(memory.view());
                next
            };
            let work = |trace: &Trace| {
                trace.take_in();
                if trace.lock().classes.get(STREAM_EVENTS, 0).is_none() {
                    trace.declare(&[(0, crate::testing::class())]).unwrap();
                }
            };
            register.add_tag_text(1, "user", b"alice");
            register.add_tag_text(1, "other", b"carol");
            let first = killed_at(at, || work(&trace));
            register.add_tag_text(1, "user", b"bob");
            let _ = killed_at(at / 2, || work(&take_up()));
            let last = take_up();
            work(&last);
            let metadata = on_disk().unwrap();
            assert_eq!(users(&metadata), ["", "alice", "bob"], "killed at {at}");
            assert_eq!(metadata.classes.events().filter(|class| class.id == 0).count(), 1, "killed at {at}");
            assert_eq!(metadata.options.clock, trace.lock().options.clock);
            // Nothing is new, so nothing is written.
            let inode = last.lock().metadata.inode();
            last.lock().texts_seen = (0, None);
            work(&last);
            assert_eq!(last.lock().metadata.inode(), inode);
            last.finish(&[], &[], Some(Totals::default())).unwrap();
            let metadata = on_disk().unwrap();
            assert_eq!((users(&metadata), metadata.totals.is_closed()), (vec!["", "alice", "bob"], true));
            if first.is_some() {
                assert!(at > 4, "{at}");
                return;
            }
        }
    }

    /// Programs may write anything, and a file system may be full.
    #[test]
    fn what_is_written_for_texts_of_tags_is_bounded() {
        let place = tempfile::tempdir().unwrap();
        let (trace, memory) = tagged(place.path(), Some(DISK_BYTES_MIN));
        let view = memory.view();
        let register = view.register().unwrap();
        let on_disk = || Metadata::decode(&read(&trace.dir, "metadata")).unwrap();
        register.add_tag_text(1, "user", b"alice");
        trace.take_in();
        assert_eq!(users(&on_disk()), ["", "alice"]);
        register.add_tag_text(1, "user", b"bob");
        trace.lock().texts_seen.1 = Some(Instant::now() + 1000 * TEXTS_BURST);
        trace.take_in();
        assert_eq!(users(&on_disk()), ["", "alice"], "as much was written as may be for now");
        trace.lock().texts_seen.1 = None;
        trace.take_in();
        assert_eq!(users(&on_disk()), ["", "alice", "bob"]);
        let counted = trace.lock().texts_seen.1.unwrap().saturating_duration_since(Instant::now());
        assert!(counted <= Duration::from_millis(1 + read(&trace.dir, "metadata").len() as u64 * 1000 / (1 << 20)));
        let mut count = 2;
        while register.tag_texts_refused() == 0 {
            register.add_tag_text(1, "user", format!("{count:0200}").as_bytes());
            count += 1;
            trace.lock().texts_seen.1 = None;
            trace.take_in();
        }
        let len = read(&trace.dir, "metadata").len() as u64;
        assert!(len + read(&trace.dir, "state").len() as u64 <= DISK_BYTES_MIN, "{len} bytes");
        assert!((3..count).contains(&users(&on_disk()).len()));
        // The trace's end has them.
        trace.finish(&[], &[], Some(Totals::default())).unwrap();
        assert_eq!(users(&on_disk()).len(), count);

        // Other texts in place of known ones.
        let mut tags = Tag::all(&TagNames::new(["user"]).unwrap());
        for turn in 0..10 {
            let (_trace, memory) = tagged(&place.path().join(turn.to_string()), None);
            let view = memory.view();
            let register = view.register().unwrap();
            (0..1000).for_each(|n| register.add_tag_text(1, "user", format!("{turn} {n}").as_bytes()));
            name_texts(&mut tags, register);
        }
        assert_eq!(tags[0].texts.len(), TAG_TEXT_COUNT + 1);
    }

    /// However many records there are, a session can report at its end what it has lost. What rules have left out is
    /// reported if there is room.
    #[test]
    fn a_trace_stays_below_its_maximum_and_has_room_for_its_end() {
        [(20, 20), (200, 0)].into_iter().for_each(|(count, reported)| ends_with_unrecorded(count, reported));
    }

    fn ends_with_unrecorded(count: usize, reported: usize) {
        let place = tempfile::tempdir().unwrap();
        let trace = trace(place.path(), Some(DISK_BYTES_MIN));
        let long = "x".repeat(1000);
        let name = StateRecord::ProcessName { process: 1, name: &long };
        let error = (0..).find_map(|_| trace.state(&[name]).err()).unwrap();
        assert_eq!(error.to_string(), DISK_MAX_REACHED);
        let class = |number: u16| ClassDecl { name: format!("n{number}"), ..crate::testing::class() };
        assert_eq!((0..).find_map(|number| trace.declare(&[(number, class(number))]).err()).unwrap(), DISK_MAX_REACHED);
        let names: Vec<String> = (0..count).map(|index| format!("{index}:{}", "x".repeat(200))).collect();
        let record = |class| StateRecord::Unrecorded { class, rejected: 3, sampled_out: 0 };
        let unrecorded: Vec<_> = names.iter().map(|name| record(name)).collect();
        trace.finish(&[Cause::DiskMax.record(7)], &unrecorded, Some(Totals::default())).unwrap();
        let (state, metadata) = (read(&trace.dir, "state"), read(&trace.dir, "metadata"));
        assert!(state.len() + metadata.len() <= DISK_BYTES_MIN as usize);
        let metadata = Metadata::parse(&String::from_utf8(metadata).unwrap()).unwrap();
        let stats = dormouse_ctf::Stats::collect(&metadata, &[("state", &state)]);
        assert_eq!((stats.events_lost, stats.unrecorded.len(), stats.is_closed), (7, reported, true));
        // There is no gap where a packet found no room.
        assert_eq!(stats.loss_possible, []);
    }
}

//! A trace that is being written: its directory, its metadata, which grow, and its state stream.

use std::collections::HashSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use dormouse_abi::class::ClassDecl;
use dormouse_abi::page::STREAM_STATE;
use dormouse_abi::record::RecordKind;
use dormouse_abi::register::{CLASS_COUNT, PROCESS_COUNT};
use dormouse_abi::text::shown;
use dormouse_ctf::{Classes, Metadata, MetadataOptions, PacketWriter, Refusal, StateRecord, StreamTotals, Totals};
use dormouse_relay::Memory;
use rustix::fs::FallocateFlags;

use crate::clock::Clock;
use crate::error::Error;
use crate::options::Plan;
use crate::register::{class_of, program_of};

/// Why a file of a trace cannot be written.
pub(crate) fn not_written(path: &Path, error: std::io::Error) -> Error {
    format!("cannot write {}: {error}; free space or give another directory with -o", path.display()).into()
}

/// Space that is set aside for the state stream, so that a full disk can still be told of.
const STATE_RESERVE_BYTES: u64 = 64 << 10;

/// What a program says is made fit to be printed; the reason is.
pub(crate) fn refusal_of(class: &str, program: &str, reason: &str) -> Refusal {
    Refusal { name: shown(class), program: shown(program), reason: reason.into() }
}

fn refusal_record(Refusal { name, program, reason }: &Refusal) -> StateRecord<'_> {
    StateRecord::ClassRefused { class: name, program, reason }
}

/// Refusals that are told one by one: programs may announce as many classes as they like.
pub(crate) const REFUSAL_COUNT_MAX: usize = 1_000;

/// The trace of a session.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) dir: PathBuf,
    pub(crate) clock: Clock,
    /// The trace's identity.
    pub(crate) uuid: [u8; 16],
    /// Where programs enter their classes. Whoever has the trace keeps it mapped.
    memory: OnceLock<Memory>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: MetadataOptions,
    /// Ids of the register that were looked at; of these, those that had no text yet.
    seen_count: usize,
    unseen: Vec<u16>,
    changes: Option<u32>,
    classes: Classes,
    metadata: GrowingFile,
    state: GrowingFile,
    state_totals: StreamTotals,
    state_writer: PacketWriter,
    state_last: u64,
    /// Each once, at most [`REFUSAL_COUNT_MAX`], and then one that says that there are others.
    refusals: Vec<Refusal>,
    /// The same, to be found quickly: programs may announce as many classes as they like, again and again.
    refused: HashSet<[String; 3]>,
}

impl Trace {
    /// Makes the directory, the metadata's beginning and the state stream with its first record.
    pub(crate) fn create(plan: &Plan, clock: Clock, uuid: [u8; 16]) -> Result<Trace, Error> {
        let dir = &plan.options.dir;
        make_dir(dir)?;
        let options = metadata_options(&clock, uuid, plan.options.context);
        let preamble = Metadata::new(options.clone()).preamble();
        // Whoever has made this file has made the trace: only then is the rest this session's to remove.
        let metadata = GrowingFile::create(&dir.join("metadata"), preamble.as_bytes())?;
        let begun = Trace::begin(plan, clock, options, metadata);
        begun.inspect_err(|_| Trace::remove(dir))
    }

    fn begin(plan: &Plan, clock: Clock, options: MetadataOptions, metadata: GrowingFile) -> Result<Trace, Error> {
        let (dir, uuid) = (plan.options.dir.clone(), options.uuid);
        let state = GrowingFile::create(&dir.join("state"), &[])?;
        // Where the file system cannot set space aside, a full disk may swallow the note about itself.
        let _ = state.set_space_aside(STATE_RESERVE_BYTES);
        let inner = Mutex::new(Inner {
            classes: Classes::of_records(options.record_kind),
            options,
            seen_count: 0,
            unseen: Vec::new(),
            changes: None,
            metadata,
            state,
            state_totals: StreamTotals { stream_id: STREAM_STATE, ..StreamTotals::default() },
            state_writer: PacketWriter::state(uuid),
            state_last: 0,
            refusals: Vec::new(),
            refused: HashSet::new(),
        });
        let trace = Trace { dir, clock, uuid, memory: OnceLock::new(), inner };
        let Plan { options, geometry, .. } = plan;
        trace.state(&[StateRecord::Session {
            mode: options.mode.name(),
            budget_bytes: options.budget_bytes,
            page_size_bytes: geometry.page_size_bytes.into(),
            command_line: &options.command_line,
        }])?;
        Ok(trace)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the files of a trace that has no streams of events.
    pub(crate) fn remove(dir: &Path) {
        for name in ["metadata", "state"] {
            let _ = std::fs::remove_file(dir.join(name));
        }
    }

    /// Programs enter their classes in this memory from now on.
    pub(crate) fn follow(&self, memory: Memory) {
        let _ = self.memory.set(memory);
    }

    /// The classes as they are now.
    pub(crate) fn classes(&self) -> Classes {
        self.take_in();
        self.lock().classes.clone()
    }

    /// Declares the classes that programs have entered since the last look.
    pub(crate) fn take_in(&self) {
        let Some(register) = self.memory.get().and_then(Memory::register) else { return };
        let (mut fresh, mut refused) = (Vec::new(), Vec::new());
        let mut inner = self.lock();
        let changes = register.changes();
        if inner.changes.replace(changes) == Some(changes) {
            return;
        }
        let count = register.class_count();
        let ids = std::mem::take(&mut inner.unseen).into_iter().chain((inner.seen_count..count).map(|id| id as u16));
        let mut unseen = Vec::new();
        for id in ids {
            match class_of(register, id) {
                Some(Ok(decl)) => fresh.push((id, decl)),
                Some(Err(refusal)) => refused.push(refusal),
                None => unseen.push(id),
            }
        }
        inner.seen_count = count;
        inner.unseen = unseen;
        if let Err(reason) = inner.declare(&fresh) {
            let of = fresh.iter().map(|(id, decl)| (decl, register.class(*id).map_or(0, |class| class.process)));
            refused.extend(
                of.map(|(decl, process)| refusal_of(&decl.full_name(), &program_of(register, process), &reason)),
            );
        }
        drop(inner);
        self.refuse(refused);
    }

    /// Notes what found no room in the register.
    pub(crate) fn refuse_excess(&self) {
        let Some(register) = self.memory.get().and_then(Memory::register) else { return };
        let (processes, classes) = register.refused();
        let classes_full = format!("a trace has at most {CLASS_COUNT} classes; record fewer programs at once");
        let processes_full = format!("a session has at most {} processes at once", PROCESS_COUNT - 1);
        let all = [(classes, "classes", classes_full), (processes, "processes", processes_full)];
        let refused = all.iter().filter(|(count, ..)| *count > 0);
        self.refuse(refused.map(|(count, what, why)| refusal_of(&format!("({count} {what})"), "(any program)", why)));
    }

    /// Declares classes.
    ///
    /// # Errors
    /// See [`Inner::declare`].
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn declare(&self, classes: &[(u16, ClassDecl)]) -> Result<(), String> {
        self.lock().declare(classes)
    }

    /// How many classes there are.
    pub(crate) fn class_count(&self) -> u32 {
        self.take_in();
        self.lock().classes.events().count() as u32
    }

    /// Notes what is refused, each once, in the trace too.
    pub(crate) fn refuse(&self, refused: impl IntoIterator<Item = Refusal>) {
        let only_first = format!("only the first {REFUSAL_COUNT_MAX} are named");
        let mut inner = self.lock();
        let known = inner.refusals.len();
        for refusal in refused {
            if inner.refusals.len() > REFUSAL_COUNT_MAX {
                break;
            }
            let Refusal { name, program, reason } = &refusal;
            if !inner.refused.insert([name.clone(), program.clone(), reason.clone()]) {
                continue;
            }
            let is_last = inner.refusals.len() == REFUSAL_COUNT_MAX;
            let others = || refusal_of("(other classes)", "(any program)", &only_first);
            inner.refusals.push(if is_last { others() } else { refusal });
        }
        let fresh: Vec<Refusal> = inner.refusals[known..].to_vec();
        drop(inner);
        if !fresh.is_empty() {
            // Where it cannot be written, the session's summary still has it.
            let _ = self.state(&fresh.iter().map(refusal_record).collect::<Vec<_>>());
        }
    }

    /// What has been refused.
    pub(crate) fn refusals(&self) -> Vec<Refusal> {
        self.lock().refusals.clone()
    }

    /// Appends a packet of state records, of now.
    pub(crate) fn state(&self, records: &[StateRecord<'_>]) -> Result<(), Error> {
        self.state_at(u64::MAX, records)
    }

    /// Appends a packet of state records of a moment that is past: not before what is there already.
    pub(crate) fn state_at(&self, moment: u64, records: &[StateRecord<'_>]) -> Result<(), Error> {
        let mut inner = self.lock();
        let now = self.clock.now().min(moment).max(inner.state_last);
        for record in records {
            inner.state_writer.push(now, record);
        }
        let packet = inner.state_writer.finish();
        let appended = inner.state.append(&packet);
        appended.map_err(|error| not_written(&self.dir.join("state"), error))?;
        inner.state_totals.packets += 1;
        inner.state_totals.events += records.len() as u64;
        inner.state_last = now;
        Ok(())
    }

    /// Tells what was lost, states the clock's pace as it is known by now, and closes the trace with what is in it. Where the totals of the event
    /// streams are not known, it stays open.
    pub(crate) fn finish(&self, losses: &[StateRecord<'_>], totals: Option<Totals>) -> Result<(), Error> {
        if !losses.is_empty() {
            self.state(losses)?;
        }
        let metadata = {
            let inner = self.lock();
            // Releases what was set aside and not used.
            inner.state.release_space();
            let totals = totals.map(|totals| with_state(totals, inner.state_totals)).unwrap_or_default();
            inner.metadata_with(&self.clock, totals)
        };
        // If this fails, the metadata that are there are valid; their clock is a little less exact.
        let _ = write_metadata(&self.dir, &metadata);
        Ok(())
    }

    /// Makes another directory a trace of the same session, with the state stream as it is now and one record more. Its event
    /// streams, which the caller has written, hold `totals`.
    pub(crate) fn branch(&self, dir: &Path, record: &StateRecord<'_>, totals: Totals) -> Result<(), Error> {
        let (state_len, last_packet, metadata) = {
            let inner = self.lock();
            let mut writer = inner.state_writer.clone();
            writer.push(self.clock.now().max(inner.state_last), record);
            let StreamTotals { events, packets, .. } = inner.state_totals;
            let state_totals = StreamTotals { events: events + 1, packets: packets + 1, ..inner.state_totals };
            (inner.state.len, writer.finish(), inner.metadata_with(&self.clock, with_state(totals, state_totals)))
        };
        // Nobody waits for a disk here: what is in the stream stays, and others may append to it meanwhile.
        let path = self.dir.join("state");
        let mut state = vec![0; state_len as usize];
        let read = File::open(&path).and_then(|mut file| file.read_exact(&mut state));
        read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        state.extend(last_packet);
        create_file(&dir.join("state"), &state)?;
        // Last: a directory without metadata is no trace.
        write_metadata(dir, &metadata).inspect_err(|_| Trace::remove(dir))
    }
}

impl Inner {
    /// Declares classes in the metadata too, with one write.
    ///
    /// # Errors
    /// The metadata on disk lack them, and get them only if there is space at the end.
    fn declare(&mut self, classes: &[(u16, ClassDecl)]) -> Result<(), String> {
        let blocks: String = classes.iter().map(|(id, decl)| Metadata::class(*id, decl)).collect();
        for (id, decl) in classes {
            self.classes.insert(*id, decl.clone());
        }
        // Half a block would make all of the metadata unreadable.
        self.metadata.append(blocks.as_bytes()).map_err(|error| {
            format!("the metadata cannot be written: {error}; free space or give another directory with -o")
        })
    }

    /// All classes, the clock as it is known by now, and what is in the trace.
    fn metadata_with(&self, clock: &Clock, totals: Totals) -> Metadata {
        let options = MetadataOptions { clock: clock.last_calibration(), ..self.options.clone() };
        Metadata { options, classes: self.classes.clone(), totals }
    }
}

/// Replaces the metadata that are there, if any.
fn write_metadata(dir: &Path, metadata: &Metadata) -> Result<(), Error> {
    let path = dir.join("metadata");
    let fresh = dir.join(".metadata.new");
    let written = create_file(&fresh, metadata.text().as_bytes())
        .and_then(|_| std::fs::rename(&fresh, &path).map_err(|error| not_written(&path, error)));
    written.inspect_err(|_| drop(std::fs::remove_file(&fresh)))
}

/// Totals of all streams.
pub(crate) fn with_state(mut totals: Totals, state: StreamTotals) -> Totals {
    totals.0.insert("state".into(), state);
    totals
}

/// Makes a trace's directory, which may be there if it is empty.
pub(crate) fn make_dir(dir: &Path) -> Result<(), Error> {
    let failed = |error| format!("cannot make the directory {}: {error}; give another one with -o", dir.display());
    DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(failed)?;
    if std::fs::read_dir(dir).map_err(failed)?.next().is_some() {
        let text = format!("{} exists and is not empty; give another directory with -o, or remove it", dir.display());
        return Err(text.into());
    }
    Ok(())
}

/// A file that grows by whole pieces, or not at all.
#[derive(Debug)]
pub(crate) struct GrowingFile {
    file: File,
    /// Bytes that are in it.
    pub(crate) len: u64,
}

impl GrowingFile {
    pub(crate) fn create(path: &Path, bytes: &[u8]) -> Result<GrowingFile, Error> {
        Ok(GrowingFile { file: create_file(path, bytes)?, len: bytes.len() as u64 })
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write_all_at(bytes, self.len).inspect_err(|_| self.release_space())?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Has the file system keep room for so many bytes more. The size stays: readers see no more than what is written.
    pub(crate) fn set_space_aside(&self, size_bytes: u64) -> std::io::Result<()> {
        Ok(rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.len, size_bytes)?)
    }

    /// Gives back what was set aside and not used.
    pub(crate) fn release_space(&self) {
        let _ = self.file.set_len(self.len);
    }

    /// Takes back what is in it.
    pub(crate) fn clear(&mut self) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.len = 0;
        Ok(())
    }
}

pub(crate) fn create_file(path: &Path, bytes: &[u8]) -> Result<File, Error> {
    let failed = |error| not_written(path, error);
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(bytes).map_err(failed).inspect_err(|_| drop(std::fs::remove_file(path)))?;
    Ok(file)
}

fn metadata_options(clock: &Clock, uuid: [u8; 16], record_kind: RecordKind) -> MetadataOptions {
    let part = |text: &str| text.parse().unwrap_or(0);
    MetadataOptions {
        uuid,
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        clock: clock.first_calibration(),
        tracer_version: (part(env!("CARGO_PKG_VERSION_MAJOR")), part(env!("CARGO_PKG_VERSION_MINOR"))),
        start_time_s: rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec,
        record_kind,
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::options::Options;

    /// Reads the state stream from a FIFO, so that it waits for the test in the middle.
    #[test]
    fn a_branch_keeps_nobody_waiting_for_files() {
        let place = tempfile::tempdir().unwrap();
        let plan = Options::new(place.path().join("trace")).plan().unwrap();
        let trace = Trace::create(&plan, Clock::new(), [7; 16]).unwrap();
        let (path, branch) = (plan.options.dir.join("state"), place.path().join("branch"));
        let state = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        make_dir(&branch).unwrap();
        let record = StateRecord::Snapshot { trigger: "test", pages_missed: 0, pages_refused: 0 };
        std::thread::scope(|scope| {
            let branching = scope.spawn(|| trace.branch(&branch, &record, Totals::default()));
            // Returns once the branch has opened it for reading.
            let mut fifo = OpenOptions::new().write(true).open(&path).unwrap();
            assert!(trace.inner.try_lock().is_ok(), "the trace is locked while a file is read");
            fifo.write_all(&state).unwrap();
            branching.join().unwrap().unwrap();
        });
        let branched = std::fs::read(branch.join("state")).unwrap();
        assert!(branched.starts_with(&state) && branched.len() > state.len());
        let metadata = Metadata::parse(&std::fs::read_to_string(branch.join("metadata")).unwrap()).unwrap();
        assert_eq!(metadata.totals.0["state"].packets, 2);
    }
}

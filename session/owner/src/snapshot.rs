//! Snapshots: what a flight recorder holds at one moment, as a trace of its own, while it goes on.
//!
//! # How
//! ```text
//!   read the clock                                                   the moment that the snapshot is of
//!   the state word of every stream                                   what is committed by then
//!   pages that are closed and retained, the current one of each      candidates
//!   limits of age and size                                           fewer of them
//!   hold those that are closed                                       writers go on with other pages
//!   oldest first: copy, let go; of one that is not held, ask whether it was overwritten meanwhile
//!   a page that was: dropped, with everything before it in its stream
//!   check, leave out events after the moment, write
//! ```
//! So that there are other pages, the budget is doubled first ([`crate::budget`]): the pages that are read are exchanged for fresh ones.
//! Where it may not grow, nothing is held, and only what was not overwritten before it was copied is in the snapshot.
//!
//! Writers are not stopped, and do not know of it: nothing that they read is written. What is committed below a state word's offset
//! never changes until its page is overwritten, and a page is given up (`reclaimed` moves on) before anything is written over
//! it; so a page that was still retained after it was copied was copied whole.
//!
//! A stream of which nothing is left that is old enough has a packet all the same, without events, whose number and time say that there
//! was more: without it nobody could tell that what others have has holes.
//!
//! State words cannot be read all at once. But who is at event n + 1 of a thread has committed event n, so if n was not committed
//! when its stream was looked at, n + 1 has a later time than the clock's that was read before: without such events, no
//! thread's story has a hole.
//!
//! # Why no barrier
//! A closed page is never written to, so a compare-and-swap of its owner word is all that holding it takes. A barrier would be needed to
//! take current pages away from writers, which belong to other processes, out of reach of a barrier of ours; current pages are copied
//! instead, below the state word's offset.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use dormouse_abi::page::{self, HEADER_SIZE_BYTES};
use dormouse_abi::session::State;
use dormouse_abi::wire::Message;
use dormouse_ctf::{Classes, PacketHeader, StateRecord, first_record_since};

use crate::packets::{Source, StreamFiles, Tally};
use crate::program::{Program, ask, socket_dir};
use crate::session::Shared;
use crate::trace::{TraceError, make_dir};

/// What to take.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Take {
    /// The new trace's directory, absolute, which must not exist or be empty. `None`: beside the session's, numbered.
    pub dir: Option<PathBuf>,
    /// Events that are older are left out. `None`: none is.
    pub last: Option<Duration>,
    /// The newest pages up to so many bytes. `None`: all.
    pub bytes_max: Option<u64>,
    /// Who asks, for the trace: `command`, `program`, a signal's name.
    pub trigger: String,
}

/// What a snapshot came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The trace.
    pub dir: PathBuf,
    /// Events in it.
    pub events: u64,
    /// Bytes of its streams.
    pub bytes: u64,
    /// From the beginning of its oldest page to now.
    pub span: Duration,
    /// Pages that were overwritten before they could be copied.
    pub pages_missed: u64,
    /// Pages that were not a program's honest work, and are left out.
    pub pages_refused: u64,
}

/// Why there is no snapshot. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The session keeps nothing.
    #[error("the session writes its events to {0} as they come and keeps none; a snapshot needs `--mode overwrite`")]
    NotRetained(PathBuf),
    /// The trace cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Part of it could not be written.
    #[error("{0}")]
    Write(String),
}

/// How long the asker waits: for a disk, and for those who have asked before.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that are copied before they are written. Writers that are quicker than a disk do not meet one.
const ARENA_BYTES_MAX: usize = 64 << 20;

/// The same of pages that are held: they wait for a disk where they are.
const ARENA_BYTES_HELD: usize = 4 << 20;

/// A page that is to be copied.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    stream: u32,
    seq: u64,
    unit: u32,
    len: usize,
    /// Of its last event, or now.
    end: u64,
    /// The stream's state, if the page is the current one.
    current: Option<Current>,
    /// Whether nobody overwrites it.
    is_held: bool,
}

#[derive(Debug, Clone, Copy)]
struct Current {
    state: State,
    discarded: u64,
}

/// A page that was copied.
#[derive(Debug)]
struct Copied {
    candidate: Candidate,
    begin: usize,
}

/// Takes one.
///
/// # Errors
/// See [`SnapshotError`]; nothing is left behind but an empty directory.
pub(crate) fn take(shared: &Shared, wanted: &Take) -> Result<Snapshot, SnapshotError> {
    take_while(shared, wanted, || {})
}

/// As [`take`]. What writers do `meanwhile`, once the pages are chosen, is nothing but in tests.
fn take_while(shared: &Shared, wanted: &Take, meanwhile: impl FnOnce()) -> Result<Snapshot, SnapshotError> {
    if !shared.memory.is_overwrite() {
        return Err(SnapshotError::NotRetained(shared.trace.dir().into()));
    }
    let dir = wanted.dir.clone().unwrap_or_else(|| free_dir_beside(shared.trace.dir()));
    make_dir(&dir)?;
    let source = Source::new(shared);
    let room = shared.budget.make_room(shared);
    let mut taking = Taking {
        source,
        files: StreamFiles::new(source, &dir),
        room,
        arena: arena(source, room.is_some()),
        used: 0,
        copied: Vec::new(),
        first_kept: vec![0; shared.memory.geometry().stream_count as usize],
        current: vec![Vec::new(); shared.memory.geometry().stream_count as usize],
        pages_missed: 0,
    };
    let moment = taking.run(wanted, meanwhile);
    let Taking { files, pages_missed, .. } = taking;
    files.finish();
    let Tally { events, bytes, packets_refused, write_error, .. } = &files.tally;
    if let Some(error) = write_error {
        files.remove();
        return Err(SnapshotError::Write(error.clone()));
    }
    let record = StateRecord::Snapshot { trigger: &wanted.trigger, pages_missed, pages_refused: *packets_refused };
    shared.trace.branch(&dir, &shared.clock, &record, files.totals()).inspect_err(|_| files.remove())?;
    let ticks = moment.saturating_sub(files.begin().unwrap_or(moment));
    let span = Duration::from_nanos(nanoseconds(ticks, shared.clock.last_calibration().frequency_hz));
    Ok(Snapshot { dir, events: *events, bytes: *bytes, span, pages_missed, pages_refused: *packets_refused })
}

/// Memory for copies, which is there before the streams are looked at: for what is retained now and for a little more or, where that is held,
/// for a part of it.
fn arena(source: Source<'_>, is_held: bool) -> Vec<u8> {
    let memory = source.memory();
    let page_count = memory.used_streams().fold(0, |sum: usize, stream| sum + memory.retained(stream) as usize + 2);
    let bytes_max = if is_held { ARENA_BYTES_HELD } else { ARENA_BYTES_MAX };
    vec![1; (page_count * memory.geometry().page_size_bytes as usize).min(bytes_max)]
}

/// `DIR-snapshot-1`, `DIR-snapshot-2`, … beside the session's directory.
fn free_dir_beside(dir: &Path) -> PathBuf {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let numbered = |number: u32| dir.with_file_name(format!("{name}-snapshot-{number}"));
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    (1..u32::MAX).map(numbered).find(is_free).unwrap_or_else(|| numbered(u32::MAX))
}

fn nanoseconds(ticks: u64, frequency_hz: u64) -> u64 {
    (u128::from(ticks) * 1_000_000_000 / u128::from(frequency_hz.max(1))).min(u64::MAX.into()) as u64
}

fn ticks(duration: Duration, frequency_hz: u64) -> u64 {
    (duration.as_nanos().saturating_mul(frequency_hz.into()) / 1_000_000_000).min(u64::MAX.into()) as u64
}

/// The newest of `candidates`, which are in the order of their ends.
fn within_limits(candidates: &[Candidate], earliest: u64, bytes_max: Option<u64>) -> &[Candidate] {
    let first = candidates.partition_point(|candidate| candidate.end < earliest);
    let mut room = bytes_max.unwrap_or(u64::MAX);
    let fit = candidates[first..].iter().rev().take_while(|candidate| {
        let rest = room.checked_sub(candidate.len as u64);
        room = rest.unwrap_or(room);
        rest.is_some()
    });
    &candidates[candidates.len() - fit.count()..]
}

/// Leaves out the packet's records before `earliest`. A packet that is not valid stays as it is, and is refused.
fn leave_out_earlier(header: &mut PacketHeader, packet: &mut [u8], classes: &Classes, earliest: u64) {
    let content_len = header.content_size_bytes as usize;
    let Ok(first) = first_record_since(packet, content_len, classes, header.timestamp_begin, earliest) else { return };
    let (offset, timestamp_begin) = first.unwrap_or((content_len, earliest));
    packet.copy_within(offset..content_len, HEADER_SIZE_BYTES);
    header.timestamp_begin = timestamp_begin.min(header.timestamp_end);
    header.content_size_bytes -= (offset - HEADER_SIZE_BYTES) as u64;
    header.packet_size_bytes = header.content_size_bytes.next_multiple_of(8);
}

/// Leaves out the packet's records after `moment`. Likewise.
fn leave_out_later(header: &mut PacketHeader, packet: &[u8], classes: &Classes, moment: u64) {
    let content_len = header.content_size_bytes as usize;
    let (begin, after) = (header.timestamp_begin, moment.saturating_add(1));
    let Ok(Some((offset, _))) = first_record_since(packet, content_len, classes, begin, after) else { return };
    header.timestamp_begin = begin.min(moment);
    header.timestamp_end = moment;
    header.content_size_bytes = offset as u64;
    header.packet_size_bytes = header.content_size_bytes.next_multiple_of(8);
}

/// From when to when, both included, events are taken. In ticks.
#[derive(Debug, Clone, Copy)]
struct Cut {
    earliest: u64,
    moment: u64,
}

struct Taking<'a> {
    source: Source<'a>,
    files: StreamFiles<'a>,
    /// How many pages may be held.
    room: Option<u32>,
    arena: Vec<u8>,
    used: usize,
    /// Copied and not yet written, oldest first.
    copied: Vec<Copied>,
    /// By stream: pages before this one are not kept, because one behind them is missing.
    first_kept: Vec<u64>,
    /// By stream: its current page, if it was copied before its turn.
    current: Vec<Vec<u8>>,
    pages_missed: u64,
}

impl Taking<'_> {
    /// Copies and writes, and gives the moment that the snapshot is of.
    fn run(&mut self, wanted: &Take, meanwhile: impl FnOnce()) -> u64 {
        let memory = self.source.memory();
        let frequency_hz = self.source.0.clock.last_calibration().frequency_hz;
        let mut candidates = Vec::with_capacity(memory.geometry().page_count as usize);
        let page_size_bytes = u64::from(memory.geometry().page_size_bytes);
        let room_bytes = self.room.map(|page_count| u64::from(page_count) * page_size_bytes);
        // A stream that has no page among the chosen ones says so.
        let headers_bytes = (HEADER_SIZE_BYTES * memory.used_streams().count()) as u64;
        let wanted_bytes = wanted.bytes_max.map(|bytes| bytes.saturating_sub(headers_bytes));
        let bytes_max = [wanted_bytes, room_bytes].into_iter().flatten().min();
        let moment = self.source.0.clock.now();
        for stream in memory.used_streams() {
            self.look(&mut candidates, stream, moment);
        }
        candidates.sort_by_key(|candidate| candidate.end);
        let earliest = wanted.last.map_or(0, |last| moment.saturating_sub(ticks(last, frequency_hz)));
        let cut = Cut { earliest, moment };
        let mut chosen = within_limits(&candidates, cut.earliest, bytes_max).to_vec();
        if !chosen.is_empty() {
            let left_out = &candidates[..candidates.len() - chosen.len()];
            left_out.iter().for_each(|candidate| self.leave_out(candidate));
        }
        // The newest, because the oldest may be given up already.
        for candidate in chosen.iter_mut().rev().take(self.room.unwrap_or(0) as usize) {
            candidate.is_held = match candidate.current {
                None => memory.hold(candidate.stream, candidate.seq, candidate.unit),
                Some(_) => self.keep_current(candidate),
            };
        }
        meanwhile();
        for candidate in &chosen {
            if self.used + candidate.len > self.arena.len() {
                self.write(cut);
            }
            self.copy(*candidate);
        }
        self.write(cut);
        self.write_empty(moment);
        moment
    }

    /// Of its stream, nothing up to this page is in the snapshot.
    fn leave_out(&mut self, candidate: &Candidate) {
        let first_kept = &mut self.first_kept[candidate.stream as usize];
        *first_kept = candidate.seq.wrapping_add(1).max(*first_kept);
    }

    /// Streams that never had a page, because none was free, have losses to tell all the same; those of which no page is here, that there
    /// were some.
    fn write_empty(&mut self, moment: u64) {
        let memory = self.source.memory();
        for stream in memory.used_streams().filter(|stream| self.files.packet_count(*stream) == 0).collect::<Vec<_>>() {
            let discarded = memory.discarded(stream);
            // (C) pairs with (A).
            let state = State::from_word(memory.stream(stream).state.load(Ordering::Acquire));
            let packet_seq_num = self.first_kept[stream as usize];
            if packet_seq_num > 0 || memory.page(state.unit).is_none() && discarded > 0 {
                let header = PacketHeader { packet_seq_num, ..self.source.empty_header(stream, moment, discarded) };
                self.files.write(stream, &header, &header.encode());
            }
        }
    }

    /// Adds a stream's pages.
    fn look(&self, all: &mut Vec<Candidate>, stream: u32, moment: u64) {
        let memory = self.source.memory();
        let control = memory.stream(stream);
        // (E') pairs with (E). Before the state word, so that it is not the greater one.
        let oldest = control.reclaimed.load(Ordering::Acquire);
        // (C) pairs with (A): every byte below the offset is there.
        let state = State::from_word(control.state.load(Ordering::Acquire));
        if memory.page(state.unit).is_none() {
            return;
        }
        let closed = state.seq.wrapping_sub(oldest as u16) as u64;
        let page_len_max = memory.geometry().page_size_bytes as u64;
        // A stream has no more pages than there are; anything else is scribbled.
        for seq in (oldest..).take(closed.min(memory.geometry().page_count.into()) as usize) {
            let unit = memory.chain(stream, seq);
            let len = (memory.page_field(unit, page::OFFSET_CONTENT_SIZE) / 8).min(page_len_max) as usize;
            let end = memory.page_field(unit, page::OFFSET_TIMESTAMP_END).min(moment);
            all.push(Candidate {
                stream,
                seq,
                unit,
                len: len.max(HEADER_SIZE_BYTES),
                end,
                current: None,
                is_held: false,
            });
        }
        let current = Some(Current { state, discarded: memory.discarded(stream) });
        let len = (state.offset as usize).max(HEADER_SIZE_BYTES);
        let seq = oldest.wrapping_add(closed);
        all.push(Candidate { stream, seq, unit: state.unit, len, end: moment, current, is_held: false });
    }

    /// Copies a current page before its turn: it cannot be held, and might be closed and given up until then.
    fn keep_current(&mut self, candidate: &Candidate) -> bool {
        let mut bytes = vec![0; candidate.len];
        let is_kept = self.source.copy_page(candidate.unit, &mut bytes)
            && !self.source.is_overwritten(candidate.stream, candidate.seq);
        if is_kept {
            self.current[candidate.stream as usize] = bytes;
        }
        is_kept
    }

    fn copy(&mut self, candidate: Candidate) {
        let begin = self.used;
        let Candidate { stream, seq, unit, is_held, .. } = candidate;
        let target = self.arena.get_mut(begin..begin + candidate.len);
        let is_copied = target.is_some_and(|target| match candidate.current {
            Some(_) if is_held => {
                target.copy_from_slice(&self.current[stream as usize]);
                true
            }
            _ => self.source.copy_page(unit, target),
        });
        if is_held && candidate.current.is_none() {
            self.source.memory().let_go(stream, seq, unit);
        }
        if !is_held && self.source.is_overwritten(stream, seq) {
            // What came before it in its stream is overwritten by now too, or was copied in time and would stand before a gap.
            self.pages_missed += 1 + self.files.take_back(candidate.stream);
            self.leave_out(&candidate);
        } else if is_copied {
            // A multiple of 8, as packets on disk are.
            self.used = begin + candidate.len.next_multiple_of(8);
            self.copied.push(Copied { candidate, begin });
        } else {
            self.files.tally.packets_refused += 1;
        }
    }

    /// Checks and writes what was copied, and empties the arena.
    fn write(&mut self, cut: Cut) {
        let classes = self.source.0.trace.classes();
        for Copied { candidate, begin } in std::mem::take(&mut self.copied) {
            if candidate.seq < self.first_kept[candidate.stream as usize] {
                self.pages_missed += 1;
                continue;
            }
            let end = (begin + candidate.len.next_multiple_of(8)).min(self.arena.len());
            let Some(mut header) = self.header(candidate, begin..end, cut.moment) else {
                self.files.tally.packets_refused += 1;
                continue;
            };
            // From its number and time on, the stream has everything.
            let is_first = self.files.packet_count(candidate.stream) == 0 && candidate.seq > 0;
            if header.timestamp_begin > cut.moment && !is_first {
                continue;
            }
            if header.timestamp_begin < cut.earliest {
                leave_out_earlier(&mut header, &mut self.arena[begin..end], &classes, cut.earliest);
            }
            if candidate.current.is_some() || header.timestamp_end > cut.moment {
                leave_out_later(&mut header, &self.arena[begin..end], &classes, cut.moment);
            }
            let is_empty = header.content_size_bytes == HEADER_SIZE_BYTES as u64;
            // A page that was closed without an event counts all the same: without its number, readers would tell of a gap.
            let is_between = candidate.current.is_none()
                && candidate.len == HEADER_SIZE_BYTES
                && self.files.packet_count(candidate.stream) > 0;
            if is_empty
                && !is_between
                && !is_first
                && header.events_discarded == self.files.discarded_last(candidate.stream)
            {
                continue;
            }
            let packet = &mut self.arena[begin..][..header.packet_size_bytes as usize];
            packet[..HEADER_SIZE_BYTES].copy_from_slice(&header.encode());
            let content_len = header.content_size_bytes as usize;
            packet[content_len..].fill(0);
            self.files.write(candidate.stream, &header, packet);
        }
        self.used = 0;
    }

    /// The header of a packet that ends with its content, if the page is a program's honest work.
    fn header(&self, candidate: Candidate, range: std::ops::Range<usize>, now: u64) -> Option<PacketHeader> {
        let Candidate { stream, seq, len, .. } = candidate;
        let packet = &self.arena[range];
        let header = match candidate.current {
            Some(Current { state, discarded }) => {
                self.source.current_header(stream, packet, state, seq, now, discarded)
            }
            None => {
                self.source.closed_header(stream, packet, len as u64).filter(|header| header.packet_seq_num == seq)?
            }
        };
        let packet_size_bytes = packet.len() as u64;
        Some(PacketHeader { packet_size_bytes, ..header }).filter(|header| header.content_size_bytes == len as u64)
    }
}

/// Asks a session's owner for a snapshot. `wanted.dir` is made absolute.
///
/// # Errors
/// One line.
pub fn ask_for_snapshot(session: &Path, wanted: &Take) -> Result<Snapshot, String> {
    let absolute = |dir: &PathBuf| std::path::absolute(dir).map_err(|error| format!("{}: {error}", dir.display()));
    let dir = wanted.dir.as_ref().map(absolute).transpose()?.unwrap_or_default();
    let question = Message::Snapshot {
        dir: dir.to_str().ok_or("the directory's name is not UTF-8")?.into(),
        last_ns: wanted.last.map_or(0, |last| (last.as_nanos().min(u64::MAX.into()) as u64).max(1)),
        bytes_max: wanted.bytes_max.map_or(0, |bytes| bytes.max(1)),
        trigger: wanted.trigger.clone(),
    };
    match ask(session, &question, PATIENCE)? {
        Message::Snapshotted { dir, events, bytes, span_ns, pages_missed, pages_refused } => Ok(Snapshot {
            dir: dir.into(),
            events,
            bytes,
            span: Duration::from_nanos(span_ns),
            pages_missed,
            pages_refused,
        }),
        Message::Error { text } => Err(text),
        _ => Err("the session owner answered something else; is it of the same version?".into()),
    }
}

/// The socket of the session that `target` names: a path, the process id of a program in the session, or that of its owner.
/// `None`: of the only session there is.
///
/// # Errors
/// One line that says what there is.
pub fn find_session(target: Option<&str>) -> Result<PathBuf, String> {
    let Some(target) = target else {
        let mut all = sessions(None);
        return match all.len() {
            1 => Ok(all.remove(0)),
            0 => Err("there is no session; `dormouse record --mode overwrite -- CMD` starts one".into()),
            _ => Err(format!("there are several sessions; name one: {}", names(&all))),
        };
    };
    let Ok(pid) = target.parse::<u32>() else {
        let path = PathBuf::from(target);
        let is_there = path.exists();
        return if is_there { Ok(path) } else { Err(format!("there is no session {target}{}", hint())) };
    };
    if let Some(session) = sessions(Some(pid)).into_iter().next() {
        return Ok(session);
    }
    let program = Program::find(pid).map_err(|error| error.to_string())?;
    let answers = program.ask(&Message::List).map_err(|error| error.to_string())?;
    let session = answers.into_iter().find_map(|answer| match answer {
        Message::Classes { session, .. } if !session.is_empty() => Some(PathBuf::from(session)),
        _ => None,
    });
    session.ok_or_else(|| format!("process {pid} is in no session{}", hint()))
}

fn hint() -> String {
    let all = sessions(None);
    if all.is_empty() { String::new() } else { format!("; there are {}", names(&all)) }
}

fn names(sessions: &[PathBuf]) -> String {
    sessions.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Sockets of the sessions of this user that are alive, or of those that process `owner` has.
fn sessions(owner: Option<u32>) -> Vec<PathBuf> {
    let is_owners = |name: &str| {
        let rest = name.strip_prefix("session-").and_then(|rest| rest.strip_suffix(".sock"));
        let number = rest.and_then(|rest| rest.split_once('-')).and_then(|(pid, _)| pid.parse::<u32>().ok());
        number.is_some_and(|number| owner.is_none_or(|owner| owner == number))
    };
    let entries = std::fs::read_dir(socket_dir()).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries
        .filter(|entry| is_owners(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .filter(|path| UnixStream::connect(path).is_ok())
        .collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use dormouse_abi::record::RecordKind;
    use dormouse_abi::session::MODE_OVERWRITE;
    use dormouse_abi::wire::ClassDecl;

    use super::*;
    use crate::fuzzing::Owner;
    use crate::testing::{EVERYTHING, FIELDS, GEOMETRY, Writer, assert_no_hole, numbers};

    /// A flight recorder that cannot grow, so that no page is held.
    struct Bench {
        place: tempfile::TempDir,
        owner: Owner,
        writer: Writer,
    }

    impl Bench {
        fn new() -> Bench {
            let place = tempfile::tempdir().unwrap();
            let owner = Owner::new(&place.path().join("trace"), GEOMETRY, RecordKind::Ids);
            let fields = FIELDS.map(|(name, field_type)| (name.into(), field_type)).into();
            let class_id = owner.declare(&ClassDecl { provider: "p".into(), name: "e".into(), fields });
            owner.reset(MODE_OVERWRITE);
            let writer = Writer::new(owner.memory(), class_id as u16);
            Bench { place, owner, writer }
        }

        /// Numbers in a snapshot from when on it has everything, of which none is missing.
        fn take(&mut self, wanted: &Take, meanwhile: impl FnOnce(&mut Writer)) -> (Snapshot, Vec<u64>) {
            let dir = self.place.path().join("snapshot");
            let wanted = Take { dir: Some(dir.clone()), ..wanted.clone() };
            let snapshot = take_while(&self.owner.shared.borrow(), &wanted, || meanwhile(&mut self.writer)).unwrap();
            assert_eq!(snapshot.pages_refused, 0);
            let numbers = numbers(&dir);
            std::fs::remove_dir_all(&dir).unwrap();
            assert_no_hole(&numbers, &format!("{wanted:?}"));
            (snapshot, numbers)
        }
    }

    #[test]
    fn a_stream_that_has_given_everything_up_says_so() {
        let mut bench = Bench::new();
        bench.writer.hop();
        bench.writer.give_all_up(1);
        bench.writer.write(0, 20);
        let next = bench.writer.next;
        let newest: Vec<u64> = (next - 20..next).collect();
        assert_eq!(bench.take(&Take::default(), |_| {}).1, newest);
        // At the session's end as well.
        bench.owner.drain();
        assert_eq!(numbers(&bench.place.path().join("trace")), newest);
    }

    /// Between the reading of the clock and the look at the streams, or between that and the copy.
    #[test]
    fn a_stream_that_is_overwritten_meanwhile_says_so() {
        for busy in [0, 1] {
            let mut bench = Bench::new();
            bench.writer.hop();
            // An hour later than the moment, as far as the snapshot can know.
            bench.writer.ahead =
                ticks(Duration::from_secs(3600), bench.owner.shared.borrow().clock.last_calibration().frequency_hz);
            bench.writer.write(busy, EVERYTHING);
            bench.take(&Take::default(), |_| {});

            let mut bench = Bench::new();
            bench.writer.hop();
            let (snapshot, _) = bench.take(&Take::default(), |writer| writer.write(busy, EVERYTHING));
            assert!(snapshot.pages_missed > 0);
        }
    }

    /// Whole streams, too.
    #[test]
    fn what_limits_leave_out_is_no_hole() {
        let mut bench = Bench::new();
        bench.writer.hop();
        let next = bench.writer.next;
        let all = bench.take(&Take::default(), |_| {}).0;
        let mut kept = Vec::new();
        for bytes_max in (0..=all.bytes).step_by(40) {
            let (snapshot, numbers) = bench.take(&Take { bytes_max: Some(bytes_max), ..Take::default() }, |_| {});
            assert!(snapshot.bytes <= bytes_max, "{snapshot:?}");
            assert!(numbers.last().is_none_or(|last| last + 1 == next));
            kept.push(numbers.len());
        }
        assert!(kept.iter().any(|count| *count > 0));
        // Of one stream, everything is older.
        bench.writer.write(1, 300);
        let limit = Take { last: Some(Duration::from_micros(50)), ..Take::default() };
        bench.take(&limit, |_| {});
    }

    #[test]
    fn the_newest_pages_are_within_the_limits() {
        let page =
            |seq: u64| Candidate { stream: 0, seq, unit: 1, len: 100, end: 10 * seq, current: None, is_held: false };
        let pages: Vec<Candidate> = (1..=5).map(page).collect();
        let kept = |earliest, bytes_max| {
            within_limits(&pages, earliest, bytes_max).iter().map(|page| page.seq).collect::<Vec<_>>()
        };
        assert_eq!(kept(0, None), [1, 2, 3, 4, 5]);
        assert_eq!(kept(30, None), [3, 4, 5]);
        assert_eq!(kept(0, Some(250)), [4, 5]);
        assert_eq!(kept(50, Some(250)), [5]);
        assert_eq!(kept(51, None), [0; 0]);
        assert_eq!(kept(0, Some(99)), [0; 0]);
    }

    #[test]
    fn directories_beside_the_trace_are_numbered() {
        let place = tempfile::tempdir().unwrap();
        let trace = place.path().join("trace");
        assert_eq!(free_dir_beside(&trace), place.path().join("trace-snapshot-1"));
        std::fs::create_dir(place.path().join("trace-snapshot-1")).unwrap();
        // Something is there, though it leads nowhere.
        std::os::unix::fs::symlink("nowhere", place.path().join("trace-snapshot-2")).unwrap();
        assert_eq!(free_dir_beside(&trace), place.path().join("trace-snapshot-3"));
    }

    #[test]
    fn ticks_and_nanoseconds_neither_overflow_nor_divide_by_zero() {
        assert_eq!(ticks(Duration::from_millis(1), 2_450_000_000), 2_450_000);
        assert_eq!(nanoseconds(2_450_000, 2_450_000_000), 1_000_000);
        assert_eq!((ticks(Duration::MAX, u64::MAX), nanoseconds(u64::MAX, 0)), (u64::MAX, u64::MAX));
    }
}

//! Snapshots: what a flight recorder retains at one moment, as a trace of its own, while it continues.
//!
//! # Method
//! ```text
//!   read the clock                                                   the moment that the snapshot shows
//!   the state word of every stream                                   finds what is committed by then
//!   closed and retained pages, and the current one of each stream    candidates
//!   limits of age and size                                           fewer candidates
//!   hold the closed ones                                             writers go on with other pages
//!   oldest first: copy, let go; if a page was not held, check whether it was overwritten meanwhile
//!   an overwritten page: dropped, with everything before it in its stream
//!   check, leave out events after the moment, write
//! ```
//! To provide other pages, the budget is doubled first ([`crate::memory`]): writers get fresh pages in exchange for
//! those that are read. If the budget may not grow, no page is held, and the snapshot contains only what was not
//! overwritten before it was copied.
//!
//! Writers are not stopped, and nothing that they read is written. Committed bytes below a state word's offset never
//! change until their page is overwritten. Before that, the page is given up: `reclaimed` advances. So a page that is
//! still retained after it was copied was copied completely.
//!
//! A stream with no page left that is old enough gets a packet without events. The packet's number and time show that
//! there were more: events missing there are not taken for events that never happened.
//!
//! State words cannot be read all at once. But a thread that writes event n + 1 has committed event n. If n was not
//! committed when its stream was looked at, then n + 1 has a later time than the clock reading, which was made before.
//! Such later events are left out, so that no event of a thread is missing before one that is present.
//!
//! # Why no barrier
//! A closed page is never written to, so one compare-and-swap of its owner word holds it. A barrier would be needed to
//! take current pages away from writers; but writers are in other processes, which no barrier of this process reaches.
//! So current pages are copied, up to the state word's offset.

use std::path::{Path, PathBuf};
use std::time::Duration;

use dormouse_abi::message::Snapshot;
use dormouse_abi::page::{self, HEADER_SIZE_BYTES};
use dormouse_control::Take;
use dormouse_ctf::{Classes, first_record_since};
use dormouse_format::{Cause, PacketHeader, StateRecord};

use crate::dir::Dir;
use crate::error::Error;
use crate::memory::SessionMemory;
use crate::options::first_free;
use crate::pages::{Page, Pages};
use crate::streams::StreamFiles;
use crate::summary::Summary;
use crate::trace::{DISK_MAX_REACHED, Trace};

/// Maximum number of bytes that are copied before they are written, so that writers that outrun a disk do not affect
/// the copy.
const ARENA_BYTES_MAX: usize = 64 << 20;

/// The limit if pages are held: they wait for the disk where they are.
const ARENA_BYTES_HELD: usize = 4 << 20;

/// A page that should be copied.
#[derive(Debug, Clone)]
struct Candidate {
    page: Page,
    /// Time of its last event, or now.
    end: u64,
    protection: PageProtection,
}

/// How writers are kept from overwriting a page before it is copied.
#[derive(Debug, Clone)]
enum PageProtection {
    Nothing,
    /// The page is closed and held.
    Held,
    /// The page is current and cannot be held, and might be closed and given up before its turn: this is its copy.
    Copied(Vec<u8>),
}

/// A copied page.
#[derive(Debug)]
struct CopiedPage {
    page: Page,
    /// Offset of its copy in the arena.
    begin: usize,
}

/// Takes a snapshot. The caller has the memory's turn. `look` makes the trace name the processes whose events were
/// copied.
///
/// # Errors
/// One line with the reason; only an empty directory is left.
pub(crate) fn take(
    memory: &SessionMemory,
    trace: &Trace,
    wanted: &Take,
    look: impl FnOnce(),
) -> Result<Snapshot, Error> {
    take_while(memory, trace, wanted, || {}, look)
}

/// Does the work of [`take`]. `meanwhile` is called once the pages are chosen; only tests use it.
fn take_while(
    memory: &SessionMemory,
    trace: &Trace,
    wanted: &Take,
    meanwhile: impl FnOnce(),
    look: impl FnOnce(),
) -> Result<Snapshot, Error> {
    let view = memory.view();
    if !view.is_overwrite() {
        let dir = std::path::absolute(&trace.dir.path).unwrap_or_else(|_| trace.dir.path.clone());
        let dir = dir.display();
        return Err(format!(
            "the session is in discard mode, in which all events go to its trace: `dormouse view {dir}` shows those on disk by now, the \
             others follow when their pages are full or the session ends; snapshots need `dormouse record --mode overwrite`"
        )
        .into());
    }
    let dir = wanted.dir.clone().unwrap_or_else(|| free_dir_beside(&trace.dir.path));
    let dir = Dir::make(&dir)?;
    let pages = Pages { memory: view };
    let room = memory.make_room();
    let stream_count = view.geometry().stream_count as usize;
    let mut job = SnapshotJob {
        pages,
        trace,
        files: StreamFiles::new(pages, trace, &dir),
        room,
        arena: arena(pages, room.is_some()),
        used: 0,
        copied: Vec::new(),
        first_kept: vec![0; stream_count],
        pages_missed: 0,
    };
    let moment = job.run(wanted, meanwhile);
    let SnapshotJob { files, pages_missed, .. } = job;
    files.finish();
    let Summary { events, bytes, losses, write_error, .. } = &files.tally;
    let no_room = || (losses.of(Cause::DiskMax) > 0).then(|| DISK_MAX_REACHED.to_string());
    if let Some(error) = write_error.clone().or_else(no_room) {
        files.remove();
        return Err(error.into());
    }
    let pages_refused = losses.of(Cause::PacketRefused);
    let record = StateRecord::Snapshot { trigger: &wanted.trigger, pages_missed, pages_refused };
    look();
    trace.branch(&dir, &record, files.totals()).inspect_err(|_| files.remove())?;
    trace.ledger.add_snapshot_bytes(*bytes);
    let ticks = moment.saturating_sub(files.begin().unwrap_or(moment));
    let span_ns = nanoseconds(ticks, trace.clock.last_calibration().frequency_hz);
    let (path, events, bytes) = (dir.path.to_string_lossy().into_owned(), *events, *bytes);
    Ok(Snapshot { dir: path, events, bytes, span_ns, pages_missed, pages_refused })
}

/// Allocates memory for copies before the streams are looked at. Its size is for the currently retained pages and a few
/// more; if pages are held, for a part of them. It has room for a page at least: streams can begin meanwhile.
fn arena(pages: Pages, is_held: bool) -> Vec<u8> {
    let memory = pages.memory;
    let page_count = memory.used_streams().fold(0, |sum: usize, stream| sum + memory.retained(stream) as usize + 2);
    let bytes_max = if is_held { ARENA_BYTES_HELD } else { ARENA_BYTES_MAX };
    let page_size_bytes = memory.geometry().page_size_bytes as usize;
    vec![1; (page_count * page_size_bytes).min(bytes_max).max(page_size_bytes)]
}

/// Returns the first free of `DIR-snapshot-1`, `DIR-snapshot-2`, … beside the session's directory.
fn free_dir_beside(dir: &Path) -> PathBuf {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    first_free(1, |number| dir.with_file_name(format!("{name}-snapshot-{number}")))
}

fn nanoseconds(ticks: u64, frequency_hz: u64) -> u64 {
    (u128::from(ticks) * 1_000_000_000 / u128::from(frequency_hz.max(1))).min(u64::MAX.into()) as u64
}

fn ticks(duration: Duration, frequency_hz: u64) -> u64 {
    (duration.as_nanos().saturating_mul(frequency_hz.into()) / 1_000_000_000).min(u64::MAX.into()) as u64
}

/// Returns the newest of `candidates` within the limits. They are sorted by their ends.
fn within_limits(candidates: &[Candidate], earliest: u64, bytes_max: Option<u64>) -> &[Candidate] {
    let first = candidates.partition_point(|candidate| candidate.end < earliest);
    let mut room = bytes_max.unwrap_or(u64::MAX);
    let fit = candidates[first..].iter().rev().take_while(|candidate| {
        let rest = room.checked_sub(candidate.page.len as u64);
        room = rest.unwrap_or(room);
        rest.is_some()
    });
    &candidates[candidates.len() - fit.count()..]
}

/// Leaves out the packet's records before `earliest`. An invalid packet stays unchanged, and is refused later.
fn leave_out_earlier(header: &mut PacketHeader, packet: &mut [u8], classes: &Classes, earliest: u64) {
    let content_len = header.content_size_bytes as usize;
    let Ok(first) = first_record_since(packet, content_len, classes, header.timestamp_begin, earliest) else { return };
    let (offset, timestamp_begin) = first.unwrap_or((content_len, earliest));
    packet.copy_within(offset..content_len, HEADER_SIZE_BYTES);
    header.timestamp_begin = timestamp_begin.min(header.timestamp_end);
    header.content_size_bytes -= (offset - HEADER_SIZE_BYTES) as u64;
    header.packet_size_bytes = header.content_size_bytes.next_multiple_of(8);
}

/// Leaves out the packet's records after `moment`. An invalid packet stays unchanged, and is refused later.
fn leave_out_later(header: &mut PacketHeader, packet: &[u8], classes: &Classes, moment: u64) {
    let content_len = header.content_size_bytes as usize;
    let (begin, after) = (header.timestamp_begin, moment.saturating_add(1));
    let Ok(Some((offset, _))) = first_record_since(packet, content_len, classes, begin, after) else { return };
    header.timestamp_begin = begin.min(moment);
    header.timestamp_end = moment;
    header.content_size_bytes = offset as u64;
    header.packet_size_bytes = header.content_size_bytes.next_multiple_of(8);
}

/// Range of times, both ends included, in which events are taken. In ticks.
#[derive(Debug, Clone, Copy)]
struct TimeRange {
    earliest: u64,
    moment: u64,
}

struct SnapshotJob<'a> {
    pages: Pages,
    trace: &'a Trace,
    files: StreamFiles<'a>,
    /// Number of pages that may be held.
    room: Option<u32>,
    arena: Vec<u8>,
    used: usize,
    /// Copied pages that are not written yet, oldest first.
    copied: Vec<CopiedPage>,
    /// By stream: pages before this one are not kept, because a later one is missing.
    first_kept: Vec<u64>,
    pages_missed: u64,
}

impl SnapshotJob<'_> {
    /// Copies and writes. Returns the moment that the snapshot shows.
    fn run(&mut self, wanted: &Take, meanwhile: impl FnOnce()) -> u64 {
        let memory = self.pages.memory;
        let frequency_hz = self.trace.clock.last_calibration().frequency_hz;
        let mut candidates = Vec::with_capacity(memory.geometry().page_count as usize);
        let page_size_bytes = u64::from(memory.geometry().page_size_bytes);
        let room_bytes = self.room.map(|page_count| u64::from(page_count) * page_size_bytes);
        // A stream without a page among the chosen ones has a packet that says so.
        let headers_bytes = (HEADER_SIZE_BYTES * memory.used_streams().count()) as u64;
        let wanted_bytes = wanted.bytes_max.map(|bytes| bytes.saturating_sub(headers_bytes));
        let bytes_max = [wanted_bytes, room_bytes].into_iter().flatten().min();
        let moment = self.trace.clock.now();
        for stream in memory.used_streams() {
            // The oldest page's number is read before the state word, so that it is not the greater one.
            let pages = self.pages.of_stream(stream, self.pages.oldest(stream));
            candidates.extend(pages.into_iter().flatten().map(|page| {
                let end = match page.current {
                    Some(_) => moment,
                    None => memory.page_field(page.unit, page::OFFSET_TIMESTAMP_END).min(moment),
                };
                Candidate { page, end, protection: PageProtection::Nothing }
            }));
        }
        candidates.sort_by_key(|candidate| candidate.end);
        let earliest = wanted.last.map_or(0, |last| moment.saturating_sub(ticks(last, frequency_hz)));
        let range = TimeRange { earliest, moment };
        let mut chosen = within_limits(&candidates, range.earliest, bytes_max).to_vec();
        if !chosen.is_empty() {
            let left_out = &candidates[..candidates.len() - chosen.len()];
            left_out.iter().for_each(|candidate| self.leave_out(&candidate.page));
        }
        // The newest pages are held first, because the oldest may have been given up already.
        for Candidate { page, protection, .. } in chosen.iter_mut().rev().take(self.room.unwrap_or(0) as usize) {
            if page.current.is_some() {
                let mut bytes = vec![0; page.len];
                if self.pages.copy(page.unit, &mut bytes) && !self.pages.is_overwritten(page.stream, page.seq) {
                    *protection = PageProtection::Copied(bytes);
                }
            } else if memory.hold(page.stream, page.seq, page.unit) {
                *protection = PageProtection::Held;
            }
        }
        meanwhile();
        for candidate in &chosen {
            if self.used + candidate.page.len > self.arena.len() {
                self.write(range);
            }
            self.copy(candidate);
        }
        self.write(range);
        self.write_empty(moment);
        moment
    }

    /// Notes that nothing of the stream up to this page is in the snapshot.
    fn leave_out(&mut self, page: &Page) {
        let first_kept = &mut self.first_kept[page.stream as usize];
        *first_kept = page.seq.wrapping_add(1).max(*first_kept);
    }

    /// Writes packets for streams without any: those that never had a page, because none was free, may have losses to
    /// report; those whose pages are all missing must show that there were some.
    fn write_empty(&mut self, moment: u64) {
        let memory = self.pages.memory;
        for stream in memory.used_streams().filter(|stream| self.files.so_far(*stream).packets == 0).collect::<Vec<_>>()
        {
            let discarded = memory.discarded(stream);
            let packet_seq_num = self.first_kept[stream as usize];
            if packet_seq_num > 0 || self.pages.of_stream(stream, 0).is_none() && discarded > 0 {
                let header = PacketHeader { packet_seq_num, ..self.pages.empty_header(stream, moment, discarded) };
                self.files.write(stream, &header, &mut header.encode());
            }
        }
    }

    fn copy(&mut self, candidate: &Candidate) {
        let begin = self.used;
        let Candidate { page, protection, .. } = candidate;
        let Page { stream, seq, unit, len, .. } = *page;
        let target = self.arena.get_mut(begin..begin + len);
        let is_copied = target.is_some_and(|target| match protection {
            PageProtection::Copied(copy) => {
                target.copy_from_slice(copy);
                true
            }
            PageProtection::Held | PageProtection::Nothing => self.pages.copy(unit, target),
        });
        if matches!(protection, PageProtection::Held) {
            self.pages.memory.let_go(stream, seq, unit);
        }
        if matches!(protection, PageProtection::Nothing) && self.pages.is_overwritten(stream, seq) {
            // Earlier pages of its stream have been overwritten too, or were copied in time and would precede a gap.
            self.pages_missed += 1 + self.files.take_back(stream);
            self.leave_out(page);
        } else if is_copied {
            // A multiple of 8, like packets on disk.
            self.used = begin + len.next_multiple_of(8);
            self.copied.push(CopiedPage { page: *page, begin });
        } else {
            self.files.tally.losses.add(Cause::PacketRefused, 1);
        }
    }

    /// Checks and writes the copied pages, and empties the arena.
    fn write(&mut self, range: TimeRange) {
        let classes = self.trace.classes();
        for CopiedPage { page, begin } in std::mem::take(&mut self.copied) {
            let Page { stream, seq, len, .. } = page;
            if seq < self.first_kept[stream as usize] {
                self.pages_missed += 1;
                continue;
            }
            let copy = &mut self.arena[begin..(begin + len.next_multiple_of(8))];
            let Some(header) = self.pages.check(&page, copy, range.moment) else {
                self.files.tally.losses.add(Cause::PacketRefused, 1);
                continue;
            };
            // The packet ends with its content.
            let mut header = PacketHeader { packet_size_bytes: copy.len() as u64, ..header };
            // The stream is complete from this packet's number and time on.
            let is_first = self.files.so_far(stream).packets == 0 && seq > 0;
            if header.timestamp_begin > range.moment && !is_first {
                continue;
            }
            if header.timestamp_begin < range.earliest {
                leave_out_earlier(&mut header, copy, &classes, range.earliest);
            }
            if page.current.is_some() || header.timestamp_end > range.moment {
                leave_out_later(&mut header, copy, &classes, range.moment);
            }
            let is_empty = header.content_size_bytes == HEADER_SIZE_BYTES as u64;
            // A page that was closed without an event counts too: without its number, readers would report a gap.
            let is_between =
                page.current.is_none() && len == HEADER_SIZE_BYTES && self.files.so_far(stream).packets > 0;
            let tells_losses = header.events_discarded != self.files.so_far(stream).events_discarded;
            if is_empty && !is_between && !is_first && !tells_losses {
                continue;
            }
            let packet = &mut copy[..header.packet_size_bytes as usize];
            packet[header.content_size_bytes as usize..].fill(0);
            self.files.write(stream, &header, packet);
        }
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use dormouse_abi::record::RecordKind;
    use dormouse_abi::session::MODE_OVERWRITE;

    use super::*;
    use crate::fuzzing::Owner;
    use crate::testing::{EVERYTHING, GEOMETRY, Writer, assert_no_hole, class, numbers};

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
            let class_id = owner.declare(&class());
            owner.reset(MODE_OVERWRITE);
            let writer = Writer::new(owner.memory(), class_id as u16);
            Bench { place, owner, writer }
        }

        /// Returns a snapshot, and the numbers in it from where it is complete on. Asserts that none of these is
        /// missing.
        fn take(&mut self, wanted: &Take, meanwhile: impl FnOnce(&mut Writer)) -> (Snapshot, Vec<u64>) {
            let dir = self.place.path().join("snapshot");
            let wanted = Take { dir: Some(dir.clone()), ..wanted.clone() };
            let snapshot = take_while(
                &self.owner.memory.borrow(),
                &self.owner.trace,
                &wanted,
                || meanwhile(&mut self.writer),
                || {},
            )
            .unwrap();
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
        // This also holds at the session's end.
        bench.owner.drain();
        assert_eq!(numbers(&bench.place.path().join("trace")), newest);
    }

    /// A stream that begins after the memory for copies was allocated has its pages in the snapshot.
    #[test]
    fn there_is_room_for_a_page_before_any_stream_begins() {
        let bench = Bench::new();
        let memory = bench.owner.memory();
        memory.header().used_streams.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        for is_held in [false, true] {
            assert_eq!(arena(Pages { memory }, is_held).len(), GEOMETRY.page_size_bytes as usize);
        }
    }

    /// Writers act between the reading of the clock and the look at the streams, or between that look and the copy.
    #[test]
    fn a_stream_that_is_overwritten_meanwhile_says_so() {
        for busy in [0, 1] {
            let mut bench = Bench::new();
            bench.writer.hop();
            // These events are an hour later than the moment, as far as the snapshot can know.
            bench.writer.ahead =
                ticks(Duration::from_secs(3600), bench.owner.trace.clock.last_calibration().frequency_hz);
            bench.writer.write(busy, EVERYTHING);
            bench.take(&Take::default(), |_| {});

            let mut bench = Bench::new();
            bench.writer.hop();
            let (snapshot, _) = bench.take(&Take::default(), |writer| writer.write(busy, EVERYTHING));
            assert!(snapshot.pages_missed > 0);
        }
    }

    /// The limits may leave out whole streams, too.
    #[test]
    fn limits_leave_no_gap_between_pages() {
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
        // Everything in one of the streams is older than the limit.
        bench.writer.write(1, 300);
        let limit = Take { last: Some(Duration::from_micros(50)), ..Take::default() };
        bench.take(&limit, |_| {});
    }

    #[test]
    fn the_newest_pages_are_within_the_limits() {
        let page = |seq: u64| {
            let page = Page { stream: 0, seq, unit: 1, len: 100, current: None };
            Candidate { page, end: 10 * seq, protection: PageProtection::Nothing }
        };
        let pages: Vec<Candidate> = (1..=5).map(page).collect();
        let kept = |earliest, bytes_max| {
            within_limits(&pages, earliest, bytes_max).iter().map(|kept| kept.page.seq).collect::<Vec<_>>()
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
        // A path with a dangling link is not free.
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

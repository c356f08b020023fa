//! Draining: writes pages from the rings to the trace, and at the end everything that the state words still cover.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dormouse_abi::page::HEADER_SIZE_BYTES;
use dormouse_abi::session::{STATE_EMPTY, State, UNIT_BYTES};
use dormouse_format::{Cause, PacketHeader, Totals};
use dormouse_relay::Memory;
use dormouse_vring::split::Device;
use dormouse_vring::{DeviceSide, Segment};

use crate::error::Error;
use crate::ledger::Entry;
use crate::losses;
#[cfg(any(test, feature = "fuzzing"))]
use crate::memory::SessionMemory;
use crate::pages::{Page, Pages};
use crate::points::point;
use crate::streams::StreamFiles;
use crate::summary::Summary;
use crate::tail::{SeenPage, Tails, Thinned};
use crate::trace::Trace;

/// Writers wake nobody, so the drain thread sleeps no longer than it takes for a burst to fill this part of the budget, at
/// [`BURST_BYTES_PER_MS`]. docs/footprint.md has what that costs and what is lost.
const BURST_PART: u64 = 2;

/// Rough rate at which one thread writes at full speed: 25 million events of 42 bytes a second.
const BURST_BYTES_PER_MS: u64 = 1 << 20;

/// Maximum interval between looks at the rings when no pages come: with a large budget too, offered pages are on disk
/// after this time.
const NAP_MAX: Duration = Duration::from_millis(50);

/// After pages have come, the interval is this part of that (one quarter).
const BUSY_PART: u32 = 4;

/// Interval between calls of the upkeep function.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(50);

/// Result of draining.
#[derive(Debug, Default)]
pub(crate) struct DrainResult {
    /// Summary of the events that the drainer has seen.
    pub(crate) summary: Summary,
    /// Contents of the streams' files; `None` if unknown.
    pub(crate) totals: Option<Totals>,
    /// Number of lost events that no packet on disk states.
    pub(crate) lost_unstated: u64,
}

/// Writes offered pages until `stop` is set, then the remaining ones. Calls `upkeep` every [`UPKEEP_INTERVAL`].
pub(crate) fn run(mut drainer: Drainer<'_>, stop: &AtomicBool, upkeep: impl Fn()) -> DrainResult {
    let mut kept_up_at = Instant::now();
    let mut has_come = false;
    // (R) pairs with (R').
    while !stop.load(Ordering::SeqCst) {
        let is_busy = drainer.drain();
        has_come |= is_busy;
        // Upkeep makes a system call for each live process, so it does not run after every page.
        if kept_up_at.elapsed() >= UPKEEP_INTERVAL {
            upkeep();
            kept_up_at = Instant::now();
        }
        if !is_busy {
            // A writer makes no system call and cannot wake this thread, so it polls. The thread that sets `stop`
            // unparks it.
            std::thread::park_timeout(drainer.nap(std::mem::take(&mut has_come)));
        }
    }
    drainer.finish()
}

/// Drains once, then does what [`run`] does at the end.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn run_once(memory: &SessionMemory, trace: &Trace) -> DrainResult {
    let mut drainer = Drainer::new(memory.view(), trace).expect("files of our own");
    drainer.drain();
    drainer.finish()
}

/// Returns how long to sleep with a budget of this many bytes.
fn nap(budget_bytes: u64, has_come: bool) -> Duration {
    let micros = budget_bytes.saturating_mul(1000) / BURST_PART / BURST_BYTES_PER_MS;
    let nap = Duration::from_micros(micros).min(NAP_MAX);
    if has_come { nap / BUSY_PART } else { nap }
}

/// Whether a stream's state word, or `oldest`, the number of its first wanted page, cannot have been stored by writers.
fn is_scribbled(memory: &Memory, stream: u32, oldest: u64) -> bool {
    let geometry = memory.geometry();
    // Relaxed: only the word itself is inspected.
    let word = memory.stream(stream).state.load(Ordering::Relaxed);
    let State { seq, unit, offset } = State::from_word(word);
    let offsets = HEADER_SIZE_BYTES..=geometry.page_size_bytes as usize;
    let is_possible = memory.page(unit).is_some()
        && offsets.contains(&(offset as usize))
        && u32::from(seq.wrapping_sub(oldest as u16)) <= geometry.page_count;
    word != STATE_EMPTY && !is_possible
}

/// The device side of one stream.
struct Stream {
    /// The ring, once the stream is in use.
    device: Option<Device>,
    /// Whether a producer has violated the ring's protocol; the ring is ignored from then on.
    is_refused: bool,
    /// Number of pages taken from the ring.
    taken: u64,
}

/// Drains a session's memory into its trace.
pub(crate) struct Drainer<'a> {
    memory: Memory,
    pages: Pages,
    trace: &'a Trace,
    streams: Vec<Stream>,
    files: StreamFiles<'a>,
    tails: Tails<'a>,
    /// The copy of a page, followed by zeroes.
    copy: Vec<u8>,
}

impl<'a> Drainer<'a> {
    /// Returns a drainer that continues from the trace's ledger; with a new ledger, from the beginning.
    ///
    /// # Errors
    /// One line if the trace's files cannot be continued.
    pub(crate) fn new(memory: Memory, trace: &'a Trace) -> Result<Drainer<'a>, Error> {
        let (pages, geometry) = (Pages { memory }, memory.geometry());
        let stream = |stream| {
            let Entry { taken, is_refused, .. } = trace.ledger.entry(stream);
            Stream { device: None, is_refused, taken }
        };
        let mut files = StreamFiles::take_up(pages, trace)?;
        let streams: Vec<Stream> = (0..geometry.stream_count).map(stream).collect();
        let refused = streams.iter().position(|stream| stream.is_refused);
        files.tally.ring_violation =
            refused.map(|stream| format!("stream {stream}: an owner before this one has found it"));
        let (tails, copy) = (Tails::new(pages, trace), vec![0; geometry.page_size_bytes as usize]);
        Ok(Drainer { memory, pages, trace, streams, files, tails, copy })
    }

    fn refuse(&mut self) {
        self.files.tally.losses.add(Cause::PacketRefused, 1);
    }

    /// Writes offered pages; in overwrite mode there are none. Returns whether there was any.
    fn drain(&mut self) -> bool {
        let memory = self.memory;
        if memory.is_overwrite() {
            return false;
        }
        self.tails.look(|stream| self.streams[stream as usize].taken);
        let mut any = false;
        // Takes no more pages at once than a ring holds: a ring that never runs dry must not delay the others, or the
        // end.
        let count_max = memory.geometry().ring_size();
        for stream in memory.used_streams() {
            for _ in 0..count_max {
                if !self.tails.is_ready(stream) {
                    break;
                }
                let Some((id, Segment { addr, len })) = self.pop(stream) else { break };
                any = true;
                let seen = self.tails.take(stream);
                self.write_offered(stream, addr, len, &seen);
                let Stream { device, is_refused, taken } = &mut self.streams[stream as usize];
                if let Some(device) = device {
                    device.push_used_id(id, 0);
                    // After the element, and before the index that shows it: see the ledger.
                    self.files.commit(stream, *taken, *is_refused);
                    device.publish_used();
                    point();
                }
                // (J') pairs with (J): stored after the used index, so a producer that sees the new count also sees
                // that index.
                memory.header().freed.0.fetch_add(1, Ordering::Release);
            }
        }
        any
    }

    fn pop(&mut self, stream: u32) -> Option<(u16, Segment)> {
        let memory = self.memory;
        let Stream { device, is_refused, taken } = &mut self.streams[stream as usize];
        if device.is_none() && !*is_refused {
            let (ring, size) = (memory.ring(stream), memory.geometry().ring_size());
            // SAFETY: the geometry places a ring of this size there, and it is mapped as long as the session. This is
            // its only device.
            *device = unsafe { Device::at_base(ring, size, *taken as u16) }.ok();
            // An owner that was killed may have committed the last page without publishing it.
            device.iter_mut().for_each(Device::publish_used);
        }
        match device.as_mut()?.pop_single() {
            Ok(buffer) => {
                *taken += u64::from(buffer.is_some());
                buffer
            }
            Err(error) => {
                // The ring is ignored from now on; committed pages are still found by the chain.
                (*device, *is_refused) = (None, true);
                self.files.tally.ring_violation.get_or_insert_with(|| format!("stream {stream}: {error}"));
                self.files.tally.losses.add(Cause::Scribbled, 1);
                self.files.commit(stream, *taken, true);
                None
            }
        }
    }

    /// Returns the time until the next look.
    fn nap(&self, has_come: bool) -> Duration {
        if self.memory.is_overwrite() {
            return NAP_MAX;
        }
        let budget_bytes =
            u64::from(self.memory.page_count_limit()) * u64::from(self.memory.geometry().page_size_bytes);
        // While pages wait, writers have half of the budget.
        nap(if self.tails.is_active() { budget_bytes / 2 } else { budget_bytes }, has_come)
    }

    fn write_offered(&mut self, stream: u32, address: u64, len: u32, seen: &SeenPage) {
        let unit = (address / UNIT_BYTES as u64).min(u32::MAX as u64) as u32;
        if !address.is_multiple_of(UNIT_BYTES as u64) || !self.copy(unit, len as usize) {
            return self.refuse();
        }
        let header = self.pages.check_closed(stream, &self.copy, len.into());
        self.write(stream, header, seen);
    }

    /// Copies `len` bytes of a page. Returns false if the page does not exist or is shorter.
    fn copy(&mut self, unit: u32, len: usize) -> bool {
        let Some((target, rest)) = self.copy.split_at_mut_checked(len) else { return false };
        rest.fill(0);
        self.pages.copy(unit, target)
    }

    /// Writes the copied packet, if the check has found a header for it.
    fn write(&mut self, stream: u32, header: Option<PacketHeader>, seen: &SeenPage) {
        let Some(header) = header else { return self.refuse() };
        // A concurrent reader must find the classes of its records declared; their programs have entered them before.
        self.trace.take_in();
        let packet = &mut self.copy[..header.packet_size_bytes as usize];
        match self.tails.thin(seen, &header, packet, &mut self.files.not_kept) {
            Some(Thinned { header, mut bytes, is_early }) => {
                self.files.write(stream, &header, &mut bytes);
                self.files.tally.losses.add(Cause::TailEarly, is_early.into());
            }
            None => self.files.write(stream, &header, packet),
        }
    }

    /// Finishes after the stop: writes offered pages, pages that are closed but not offered, and the current page of
    /// every stream.
    fn finish(mut self) -> DrainResult {
        self.tails.finish(|stream| self.streams[stream as usize].taken);
        self.drain();
        let memory = self.memory;
        let mut lost_unstated = 0u64;
        let used: Vec<u32> = memory.used_streams().collect();
        // A stream that has been used stays used.
        let forgotten =
            (0..).zip(&self.streams).filter(|(stream, state)| state.taken > 0 && used.binary_search(stream).is_err());
        self.files.tally.losses.add(Cause::Scribbled, forgotten.count() as u64);
        for stream in used {
            self.finish_stream(stream);
            let discarded = memory.discarded(stream);
            let unstated = discarded.saturating_sub(self.files.so_far(stream).events_discarded);
            self.files.tally.losses.add(Cause::NoPage, discarded);
            lost_unstated = lost_unstated.saturating_add(unstated);
        }
        self.files.finish();
        let classes = self.trace.classes();
        self.files.tally.lost_by_class = losses::by_class(&memory, &classes);
        self.files.tally.unrecorded = losses::unrecorded_by_class(&memory, &classes, &self.files.not_kept);
        DrainResult { totals: Some(self.files.totals()), summary: self.files.tally, lost_unstated }
    }

    fn finish_stream(&mut self, stream: u32) {
        let is_overwrite = self.memory.is_overwrite();
        let oldest = if is_overwrite { self.pages.oldest(stream) } else { self.streams[stream as usize].taken };
        let losses = &mut self.files.tally.losses;
        losses.add(Cause::Scribbled, is_scribbled(&self.memory, stream, oldest).into());
        // A claim is held for one write. (Relaxed: nothing that the claimant has written is read.)
        let is_claimed = self.memory.stream(stream).claim.load(Ordering::Relaxed) != 0;
        losses.add(Cause::AmidWrite, is_claimed.into());
        match self.pages.of_stream(stream, oldest) {
            Some(pages) => pages.for_each(|page| self.write_page(page)),
            // A stream that never got a page, because none was free, has losses to report nevertheless.
            None => {
                let discarded = self.memory.discarded(stream);
                let header = self.pages.empty_header(stream, self.trace.clock.now(), discarded);
                if discarded > 0 {
                    self.write(stream, Some(header), &SeenPage::default());
                }
            }
        }
    }

    fn write_page(&mut self, page: Page) {
        let Page { stream, seq, len, .. } = page;
        let seen = self.tails.take(stream);
        if let Some(current) = page.current {
            // The page's number shows that there was more: the earlier pages were overwritten.
            let is_first = self.memory.is_overwrite() && seq > 0 && self.files.so_far(stream).packets == 0;
            let tells_losses = current.discarded != self.files.so_far(stream).events_discarded;
            if len == HEADER_SIZE_BYTES && !is_first && !tells_losses {
                return;
            }
        }
        if !self.copy(page.unit, len) {
            return self.refuse();
        }
        // A live writer may have overwritten the page: it is then no longer retained, and not part of the trace.
        if !self.pages.is_overwritten(stream, seq) {
            let header = self.pages.check(&page, &self.copy, self.trace.clock.now());
            self.write(stream, header, &seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use dormouse_abi::record::RecordKind;
    use dormouse_abi::session::{Geometry, MODE_DISCARD, MODE_OVERWRITE, SessionLayout};
    use dormouse_reader::TraceFiles;

    use super::*;
    use crate::dir::Dir;
    use crate::fuzzing::Owner;
    use crate::ledger::Ledger;
    use crate::points::killed_at;
    use crate::rules::RuleSet;
    use crate::testing::{GEOMETRY, Writer, class, numbers};

    #[test]
    fn the_drain_sleeps_less_than_a_burst_takes_to_fill_the_budget() {
        for (mebibytes, at_rest, busy) in
            [(1, 500, 125), (16, 8_000, 2_000), (64, 32_000, 8_000), (4096, 50_000, 12_500)]
        {
            let naps = [false, true].map(|busy| nap(mebibytes << 20, busy).as_micros());
            assert_eq!(naps, [at_rest, busy]);
            assert!(at_rest as u64 * BURST_BYTES_PER_MS / 1000 <= (mebibytes << 20) / BURST_PART);
        }
        assert_eq!(nap(u64::MAX, false), NAP_MAX);
    }

    #[test]
    fn uncounted_losses_are_reported() {
        let drained = |harm: &dyn Fn(&mut Writer)| {
            let place = tempfile::tempdir().unwrap();
            let owner = Owner::new(&place.path().join("trace"), GEOMETRY, RecordKind::Ids);
            let mut writer = Writer::new(owner.memory(), owner.declare(&class()) as u16);
            writer.write(0, 300);
            harm(&mut writer);
            Drainer::new(owner.memory(), &owner.trace).unwrap().finish().summary.losses
        };
        let only = |cause: Cause| {
            let mut losses = dormouse_format::Losses::default();
            losses.add(cause, 1);
            losses
        };
        assert!(!drained(&|_| {}).is_any());
        // Models a thread that was killed in the middle of a write.
        let claimed = |writer: &mut Writer| writer.memory.stream(0).claim.store(1 << 63 | 1, Ordering::Relaxed);
        assert_eq!(drained(&claimed), only(Cause::AmidWrite));
        // A page that does not exist, and an offset that no page has.
        let first = GEOMETRY.unit_of_page(0);
        for state in [State { seq: 0, unit: 1, offset: 4096 }, State { seq: 0, unit: first, offset: 1 }] {
            let losses = drained(&|writer: &mut Writer| {
                writer.memory.stream(0).state.store(state.to_word(), Ordering::Relaxed);
            });
            assert!(losses.of(Cause::Scribbled) == 1 && !losses.is_exact(), "{state:?}: {losses:?}");
        }
    }

    /// Does an owner's work up to the end of its session, from where its ledger says.
    fn own(memory: Memory, trace: &Trace) -> DrainResult {
        let mut drainer = Drainer::new(memory, trace).unwrap();
        assert!(!memory.is_overwrite() || !drainer.drain());
        while drainer.drain() {}
        let drained = drainer.finish();
        trace.finish(&[Cause::PacketRefused.record(1)], &[], drained.totals.clone()).unwrap();
        drained
    }

    /// Kills an owner at each point, and the next one at another. A third owner completes the work.
    fn each_event_is_there_once(mode: u32) {
        for at in 0.. {
            let place = tempfile::tempdir().unwrap();
            let dir = place.path().join("trace");
            let owner = Owner::new(&dir, GEOMETRY, RecordKind::Ids);
            let class_id = owner.declare(&class());
            owner.reset(mode);
            let mut writer = Writer::new(owner.memory(), class_id as u16);
            for stream in [0, 1] {
                writer.write(stream, 300);
            }
            let all: Vec<u64> = (0..writer.next).collect();
            if mode != MODE_OVERWRITE {
                [0, 1].into_iter().for_each(|stream| writer.offer(stream));
            }
            let memory = owner.memory();
            let take_up = || {
                let ledger = Ledger::inherited(owner.trace.ledger.file().try_clone_to_owned().unwrap()).unwrap();
                Trace::take_up(Dir::open(&dir).unwrap(), Arc::new(ledger)).unwrap()
            };
            let first = killed_at(at, || own(memory, &owner.trace));
            killed_at(at / 2, || own(memory, &take_up()));
            let drained = own(memory, &take_up());
            assert_eq!(numbers(&dir), all, "killed at {at}");
            assert_eq!((drained.summary.events, drained.lost_unstated), (all.len() as u64, 0), "killed at {at}");
            assert!(!drained.summary.losses.is_any(), "killed at {at}: {drained:?}");
            let files = TraceFiles::open(&dir).unwrap();
            let stats = files.stats();
            // The end's record is written once.
            let said: Vec<u64> = stats.loss_possible.iter().map(|possible| possible.count).collect();
            assert_eq!((stats.warnings.len(), said), (1, vec![1]), "killed at {at}: {:?}", stats.warnings);
            if first.is_some() {
                assert!(at > 5, "{at}");
                return;
            }
        }
    }

    #[test]
    fn each_event_is_written_once_wherever_an_owner_is_killed() {
        each_event_is_there_once(MODE_DISCARD);
        each_event_is_there_once(MODE_OVERWRITE);
    }

    /// Events that no tail keeps are counted once, and pages that wait are not given back.
    #[test]
    fn each_event_is_kept_or_counted_wherever_an_owner_is_killed() {
        for at in 0.. {
            let place = tempfile::tempdir().unwrap();
            let dir = place.path().join("trace");
            let owner = Owner::new(&dir, Geometry { has_register: true, ..GEOMETRY }, RecordKind::Compact);
            let class_id = owner.declare(&class());
            owner.reset(MODE_DISCARD);
            let memory = owner.memory();
            let rules = RuleSet::parse(&["p:e tail 10m by n keep n < 100".to_string()]).unwrap();
            assert!(memory.register().unwrap().set_rules(rules.rules(), rules.text()));
            let mut writer = Writer::new(memory, class_id as u16);
            [0, 1].into_iter().for_each(|stream| writer.write(stream, 600));
            [0, 1].into_iter().for_each(|stream| writer.offer(stream));
            let take_up = || {
                let ledger = Ledger::inherited(owner.trace.ledger.file().try_clone_to_owned().unwrap()).unwrap();
                Trace::take_up(Dir::open(&dir).unwrap(), Arc::new(ledger)).unwrap()
            };
            let waits = |trace: &Trace| {
                let mut drainer = Drainer::new(memory, trace).unwrap();
                assert!(!drainer.drain(), "a page was written before it could be decided");
            };
            waits(&owner.trace);
            let first = killed_at(at, || own(memory, &owner.trace));
            killed_at(at / 2, || own(memory, &take_up()));
            let drained = own(memory, &take_up());
            assert_eq!(numbers(&dir), (0..100).collect::<Vec<u64>>(), "killed at {at}");
            let counts: Vec<u64> = drained.summary.unrecorded.iter().map(|class| class.not_kept).collect();
            assert_eq!((drained.summary.events, counts), (100, vec![1_100]), "killed at {at}");
            assert!(!drained.summary.losses.is_any(), "killed at {at}: {drained:?}");
            if first.is_some() {
                assert!(at > 5, "{at}");
                return;
            }
        }
    }

    #[test]
    fn a_stream_whose_used_word_was_cleared_is_counted() {
        let place = tempfile::tempdir().unwrap();
        let owner = Owner::new(&place.path().join("trace"), GEOMETRY, RecordKind::Ids);
        let mut writer = Writer::new(owner.memory(), owner.declare(&class()) as u16);
        writer.write(0, 300);
        writer.offer(0);
        let mut drainer = Drainer::new(owner.memory(), &owner.trace).unwrap();
        assert!(drainer.drain());
        owner.memory().header().used_streams[0].store(0, Ordering::Relaxed);
        assert_eq!(drainer.finish().summary.losses.of(Cause::Scribbled), 1);
    }

    #[test]
    fn an_overwritten_mode_does_not_stop_the_drain() {
        let place = tempfile::tempdir().unwrap();
        let owner = Owner::new(&place.path().join("trace"), GEOMETRY, RecordKind::Ids);
        let mut writer = Writer::new(owner.memory(), owner.declare(&class()) as u16);
        writer.write(0, 300);
        writer.offer(0);
        let memory = owner.memory();
        let mode = memory.base().wrapping_add(offset_of!(SessionLayout, mode)).cast();
        // SAFETY: inside the header and aligned, and only accessed as an atomic.
        unsafe { AtomicU32::from_ptr(mode) }.store(MODE_OVERWRITE, Ordering::Relaxed);
        // No page is given up in this mode either.
        memory.stream(0).reclaimed.store(u64::MAX, Ordering::Relaxed);
        let mut drainer = Drainer::new(memory, &owner.trace).unwrap();
        assert!(drainer.drain(), "pages are offered");
        let written = drainer.finish().summary;
        assert_eq!((written.events, written.losses.is_any()), (300, false));
    }
}

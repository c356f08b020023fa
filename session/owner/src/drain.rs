//! Draining: pages from the rings to the trace, and at the end whatever the state words still cover.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dormouse_abi::page::{self, HEADER_SIZE_BYTES};
use dormouse_abi::session::{State, UNIT_BYTES};
use dormouse_ctf::{PacketHeader, Totals};
use dormouse_relay::Memory;
use dormouse_vring::split::Device;
use dormouse_vring::{RingError, Segment};
use rustix::thread::futex;

use crate::packets::{Source, StreamFiles, Tally};
use crate::server::{NAMED_COUNT_MAX, Processes};
use crate::session::Shared;

/// How long the drain thread sleeps at most: pages of killed writers and dead processes are found by looking.
const NAP: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Pages of one stream that are worth waking up for: fewer come along at the next nap's end.
const WAKE_PAGE_COUNT_MAX: u32 = 8;

/// How often dead processes are looked for.
const BURY_INTERVAL: Duration = Duration::from_millis(50);

/// What draining came to.
#[derive(Debug, Default, Clone)]
pub(crate) struct Drained {
    pub(crate) written: Tally,
    /// What the streams' files hold; `None` if that is not known.
    pub(crate) totals: Option<Totals>,
    pub(crate) lost: u64,
    /// The same, by [`dormouse_abi::session::lost_class_index`].
    pub(crate) lost_by_class: Vec<u64>,
    /// The part of `lost` that no packet on disk states.
    pub(crate) lost_unstated: u64,
    /// The first stream whose ring holds what no producer writes, and what that is.
    pub(crate) lie: Option<(u32, RingError)>,
}

/// Wakes the drain thread.
pub(crate) fn wake(memory: &Memory) {
    let kick = &memory.header().kick.0;
    // (Q) pairs with (Q').
    kick.fetch_add(1, Ordering::SeqCst);
    let _ = futex::wake(kick, futex::Flags::empty(), 1);
}

/// Runs until the session is stopped, then writes what is left.
pub(crate) fn run(shared: &Shared, processes: &Processes) -> Drained {
    let memory = shared.memory;
    let mut drainer = Drainer::new(shared);
    let mut buried_at = Instant::now();
    // (R) pairs with (R').
    while !shared.stop.load(Ordering::SeqCst) {
        // (Q') pairs with (Q).
        let kick = memory.header().kick.0.load(Ordering::SeqCst);
        let busy = !memory.is_overwrite() && drainer.drain();
        // One system call for each live process: not at every page.
        if buried_at.elapsed() >= BURY_INTERVAL {
            processes.bury(&memory);
            shared.tell_names(processes.renamed(NAMED_COUNT_MAX));
            shared.budget.go_on(shared);
            buried_at = Instant::now();
        }
        if !busy && !drainer.arm_notifications() {
            // A kick between the load and the wait makes the wait return at once.
            let _ = futex::wait(&memory.header().kick.0, futex::Flags::empty(), kick, Some(&NAP));
        }
    }
    drainer.finish()
}

/// How many pages of a stream may wait for the consumer: with all streams that are in use, less than half of what there is.
fn wake_page_count(page_count: u32, stream_count: u32) -> u16 {
    (page_count / 2 / stream_count.max(1)).clamp(1, WAKE_PAGE_COUNT_MAX) as u16
}

/// The device side of one stream.
#[derive(Default)]
struct Stream {
    /// The ring, once the stream is in use.
    device: Option<Device>,
    /// Whether the ring has lied: it is not looked at again.
    is_refused: bool,
    /// Pages taken from the ring.
    taken: u64,
}

struct Drainer<'a> {
    source: Source<'a>,
    streams: Vec<Stream>,
    files: StreamFiles<'a>,
    /// A page, copied so that nobody changes it any more.
    scratch: Vec<u8>,
    lie: Option<(u32, RingError)>,
}

/// What [`run`] does of one round and at the end, without waiting in between.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn run_once(shared: &Shared) -> Drained {
    let mut drainer = Drainer::new(shared);
    if !shared.memory.is_overwrite() {
        drainer.drain();
    }
    drainer.finish()
}

impl<'a> Drainer<'a> {
    fn new(shared: &'a Shared) -> Drainer<'a> {
        let (source, geometry) = (Source::new(shared), shared.memory.geometry());
        Drainer {
            source,
            streams: std::iter::repeat_with(Stream::default).take(geometry.stream_count as usize).collect(),
            files: StreamFiles::new(source, shared.trace.dir()),
            scratch: vec![0; geometry.page_size_bytes as usize],
            lie: None,
        }
    }
}

impl Drainer<'_> {
    fn memory(&self) -> Memory {
        self.source.memory()
    }

    fn refuse(&mut self) {
        self.files.tally.packets_refused += 1;
    }

    /// Writes the pages that are offered. True when there was any.
    fn drain(&mut self) -> bool {
        let mut any = false;
        // No more at once than a ring holds: one that never runs dry must not keep the others, or the end, waiting.
        let count_max = self.memory().geometry().ring_size();
        for stream in self.memory().used_streams().map(|stream| stream as usize) {
            for _ in 0..count_max {
                let Some((id, Segment { addr, len })) = self.pop(stream) else { break };
                any = true;
                self.packet_offered(stream, addr, len);
                if let Some(device) = &mut self.streams[stream].device {
                    device.push_used_id(id, 0);
                    device.publish_used();
                }
                // (J') pairs with (J): after the used index, which a producer that sees the new count then sees too.
                self.memory().header().freed.0.fetch_add(1, Ordering::Release);
            }
        }
        any
    }

    fn pop(&mut self, stream: usize) -> Option<(u16, Segment)> {
        let memory = self.memory();
        let Stream { device, is_refused, .. } = &mut self.streams[stream];
        if device.is_none() && !*is_refused {
            // SAFETY: the geometry places a ring of this size there, mapped as long as the session; nobody else is its device.
            *device = unsafe { Device::at(memory.ring(stream as u32), memory.geometry().ring_size()) }.ok();
        }
        match device.as_mut()?.pop_single() {
            Ok(Some(buffer)) => {
                self.streams[stream].taken += 1;
                Some(buffer)
            }
            Ok(None) => None,
            Err(error) => {
                self.refuse();
                self.lie.get_or_insert((stream as u32, error));
                // A ring that lies is not looked at again; its committed pages are still found by the chain.
                self.streams[stream].device = None;
                self.streams[stream].is_refused = true;
                None
            }
        }
    }

    /// Asks for a kick when a stream has some pages. True when one has so many already.
    fn arm_notifications(&mut self) -> bool {
        if self.memory().is_overwrite() {
            return false;
        }
        let in_use = self.streams.iter().filter(|stream| stream.device.is_some()).count();
        let count = wake_page_count(self.memory().page_limit(), in_use as u32);
        self.streams.iter_mut().filter_map(|stream| stream.device.as_mut()).fold(false, |any, device| {
            // Every ring is armed, also after the first that has something.
            device.arm_notification_after(count) | any
        })
    }

    fn packet_offered(&mut self, stream: usize, address: u64, len: u32) {
        let unit = (address / UNIT_BYTES as u64).min(u32::MAX as u64) as u32;
        if !address.is_multiple_of(UNIT_BYTES as u64) || !self.copy_page(unit, len as usize) {
            return self.refuse();
        }
        match self.source.closed_header(stream as u32, &self.scratch, len.into()) {
            Some(header) => self.write(stream, &header),
            None => self.refuse(),
        }
    }

    /// Copies `len` bytes of a page to `scratch`, and zeroes behind them.
    fn copy_page(&mut self, unit: u32, len: usize) -> bool {
        let Some((target, rest)) = self.scratch.split_at_mut_checked(len) else { return false };
        rest.fill(0);
        self.source.copy_page(unit, target)
    }

    /// Writes the packet in `scratch`, whose header is `header`.
    fn write(&mut self, stream: usize, header: &PacketHeader) {
        let packet = &self.scratch[..header.packet_size_bytes as usize];
        self.files.write(stream as u32, header, packet);
    }

    /// After the stop: what is offered, what is closed and not offered, and the current page of every stream.
    fn finish(mut self) -> Drained {
        if !self.memory().is_overwrite() {
            self.drain();
        }
        let mut drained = Drained::default();
        for stream in self.memory().used_streams().map(|stream| stream as usize) {
            self.finish_stream(stream);
            let discarded = self.memory().discarded(stream as u32);
            let unstated = discarded.saturating_sub(self.files.discarded_last(stream as u32));
            drained.lost = drained.lost.saturating_add(discarded);
            drained.lost_unstated = drained.lost_unstated.saturating_add(unstated);
        }
        self.files.finish();
        drained.lost_by_class = (0..).map_while(|index| self.memory().discarded_by_class(index)).collect();
        drained.totals = Some(self.files.totals());
        Drained { written: self.files.tally, lie: self.lie, ..drained }
    }

    fn finish_stream(&mut self, stream: usize) {
        let memory = self.memory();
        let control = memory.stream(stream as u32);
        // (C) Acquire pairs with the writers' final stores: every byte below the offset is there.
        let state = State::from_word(control.state.load(Ordering::Acquire));
        if memory.page(state.unit).is_none() {
            self.write_losses_alone(stream);
            return;
        }
        let overwrite = memory.is_overwrite();
        // (E') pairs with (E).
        let oldest = if overwrite { control.reclaimed.load(Ordering::Acquire) } else { self.streams[stream].taken };
        let closed = state.seq.wrapping_sub(oldest as u16) as u64;
        // A stream has no more pages than there are; anything else is scribbled.
        for step in 0..closed.min(memory.geometry().page_count as u64) {
            self.write_closed(stream, oldest.wrapping_add(step));
        }
        self.write_current(stream, state, oldest.wrapping_add(closed));
    }

    fn write_closed(&mut self, stream: usize, seq: u64) {
        let memory = self.memory();
        let unit = memory.chain(stream as u32, seq);
        let len = memory.page_field(unit, page::OFFSET_CONTENT_SIZE) / 8;
        if !self.copy_page(unit, len.min(usize::MAX as u64) as usize) {
            return self.refuse();
        }
        // A writer that goes on may have overwritten the page: then it is no longer retained, and is none of the trace's.
        if self.source.is_overwritten(stream as u32, seq) {
            return;
        }
        let header = self.source.closed_header(stream as u32, &self.scratch, len);
        match header.filter(|header| header.packet_seq_num == seq) {
            Some(header) => self.write(stream, &header),
            None => self.refuse(),
        }
    }

    /// The page that was never closed: its header is filled in here.
    fn write_current(&mut self, stream: usize, state: State, seq: u64) {
        let memory = self.memory();
        let discarded = memory.discarded(stream as u32);
        let is_empty = state.offset as usize == HEADER_SIZE_BYTES;
        // Without its number, nobody knew that there was more: the pages before it were overwritten.
        let is_first = memory.is_overwrite() && seq > 0 && self.files.packet_count(stream as u32) == 0;
        if is_empty && !is_first && discarded == self.files.discarded_last(stream as u32) {
            return;
        }
        if !self.copy_page(state.unit, state.offset as usize) {
            return self.refuse();
        }
        if self.source.is_overwritten(stream as u32, seq) {
            return;
        }
        let now = self.source.0.clock.now();
        let header = self.source.current_header(stream as u32, &self.scratch, state, seq, now, discarded);
        self.scratch[..HEADER_SIZE_BYTES].copy_from_slice(&header.encode());
        self.write(stream, &header);
    }

    /// A stream that never had a page, because none was free, has losses to tell all the same.
    fn write_losses_alone(&mut self, stream: usize) {
        let discarded = self.memory().discarded(stream as u32);
        if discarded == 0 {
            return;
        }
        let header = self.source.empty_header(stream as u32, self.source.0.clock.now(), discarded);
        self.scratch[..HEADER_SIZE_BYTES].copy_from_slice(&header.encode());
        self.write(stream, &header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_wait_leave_half_of_them_to_writers() {
        for (page_count, stream_count, expected) in [(16, 18, 1), (256, 18, 7), (4096, 18, 8), (256, 256, 1)] {
            let count = wake_page_count(page_count, stream_count);
            assert_eq!(count, expected);
            assert!(count == 1 || u32::from(count - 1) * stream_count < page_count / 2);
        }
    }
}

//! Draining: pages from the rings to the trace, and at the end whatever the state words still cover.

use std::fs::File;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dormouse_abi::page::{self, CPU_UNKNOWN, HEADER_SIZE_BYTES, STREAM_EVENTS};
use dormouse_abi::session::{Geometry, State, UNIT_BYTES};
use dormouse_ctf::{Classes, PacketHeader, count_records};
use dormouse_relay::Memory;
use dormouse_vring::Device;
use rustix::fs::FallocateFlags;
use rustix::thread::futex;

use crate::server::Processes;
use crate::session::Shared;

/// How long the drain thread sleeps at most: pages of killed writers and dead processes are found by looking.
const NAP: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Pages of one stream that are worth waking up for: fewer come along at the next nap's end.
const WAKE_PAGE_COUNT_MAX: u32 = 8;

/// Space that is set aside at a time in a stream's file: one look for free blocks for many pages, and all in one place.
const RESERVE_BYTES: u64 = 4 << 20;

/// How often dead processes are looked for.
const BURY_INTERVAL: Duration = Duration::from_millis(50);

/// What draining came to.
#[derive(Debug, Default, Clone)]
pub(crate) struct Drained {
    pub(crate) events: u64,
    pub(crate) lost: u64,
    /// The same, by [`dormouse_abi::session::lost_class_index`].
    pub(crate) lost_by_class: Vec<u64>,
    pub(crate) lost_on_disk: u64,
    /// The part of `lost` that no packet on disk states.
    pub(crate) lost_unstated: u64,
    pub(crate) packets_refused: u64,
    pub(crate) bytes: u64,
    pub(crate) write_error: Option<String>,
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
    let mut drainer = Drainer {
        shared,
        streams: (0..memory.geometry().stream_count).map(|stream| Stream::new(&memory, stream)).collect(),
        classes: shared.trace.classes(),
        scratch: vec![0; memory.geometry().page_size_bytes as usize],
        wake_page_count: wake_page_count(memory.geometry()),
        drained: Drained::default(),
    };
    let mut buried_at = Instant::now();
    // (R) pairs with (R').
    while !shared.stop.load(Ordering::SeqCst) {
        // (Q') pairs with (Q).
        let kick = memory.header().kick.0.load(Ordering::SeqCst);
        let busy = !memory.is_overwrite() && drainer.drain();
        // One system call for each live process: not at every page.
        if buried_at.elapsed() >= BURY_INTERVAL {
            processes.bury(&memory);
            buried_at = Instant::now();
        }
        if !busy && !drainer.arm_notifications() {
            // A kick between the load and the wait makes the wait return at once.
            let _ = futex::wait(&memory.header().kick.0, futex::Flags::empty(), kick, Some(&NAP));
        }
    }
    drainer.finish()
}

/// How many pages of a stream may wait for the consumer: with all streams, less than half of what there is.
fn wake_page_count(geometry: &Geometry) -> u16 {
    (geometry.page_count / 2 / geometry.stream_count.max(1)).clamp(1, WAKE_PAGE_COUNT_MAX) as u16
}

/// The device side of one stream.
struct Stream {
    device: Option<Device>,
    /// Pages taken from the ring.
    taken: u64,
    file: Option<File>,
    len: u64,
    /// Up to where the file system has set space aside; `u64::MAX` where it cannot.
    reserved: u64,
    /// `events_discarded` of the last packet that was written.
    discarded_last: u64,
}

impl Stream {
    fn new(memory: &Memory, stream: u32) -> Stream {
        // SAFETY: the geometry places a ring of this size there, mapped as long as the session; nobody else is its device.
        let device = unsafe { Device::new(memory.ring(stream), memory.geometry().ring_size()) };
        Stream { device: device.ok(), taken: 0, file: None, len: 0, reserved: 0, discarded_last: 0 }
    }
}

impl Stream {
    /// Before `more` bytes are written. Where no space can be set aside, the write itself will tell.
    fn set_space_aside(&mut self, more: u64) {
        let (Some(file), true) = (&self.file, self.len + more > self.reserved) else { return };
        // The size stays: readers see no more than what is written.
        let flags = FallocateFlags::KEEP_SIZE;
        let reserved = rustix::fs::fallocate(file, flags, self.len, RESERVE_BYTES.max(more));
        self.reserved = if reserved.is_ok() { self.len + RESERVE_BYTES.max(more) } else { u64::MAX };
    }

    /// What was set aside and not used.
    fn give_back_space(&self) {
        if let Some(file) = self.file.as_ref().filter(|_| self.reserved > self.len) {
            let _ = file.set_len(self.len);
        }
    }
}

struct Drainer<'a> {
    shared: &'a Shared,
    streams: Vec<Stream>,
    classes: Classes,
    /// A page, copied so that nobody changes it any more.
    scratch: Vec<u8>,
    /// See [`wake_page_count`].
    wake_page_count: u16,
    drained: Drained,
}

impl Drainer<'_> {
    fn memory(&self) -> Memory {
        self.shared.memory
    }

    /// Writes the pages that are offered. True when there was any.
    fn drain(&mut self) -> bool {
        let mut any = false;
        // No more at once than a ring holds: one that never runs dry must not keep the others, or the end, waiting.
        let count_max = self.memory().geometry().ring_size();
        for stream in 0..self.streams.len() {
            for _ in 0..count_max {
                let Some(buffer) = self.pop(stream) else { break };
                any = true;
                self.packet_offered(stream, buffer.addr, buffer.len);
                if let Some(device) = &mut self.streams[stream].device {
                    device.push_used(buffer.id, 0);
                    device.publish_used();
                }
                // (J') pairs with (J): after the used index, which a producer that sees the new count then sees too.
                self.memory().header().freed.0.fetch_add(1, Ordering::Release);
            }
        }
        any
    }

    fn pop(&mut self, stream: usize) -> Option<dormouse_vring::Buffer> {
        let device = self.streams[stream].device.as_mut()?;
        match device.pop() {
            Ok(Some(buffer)) => {
                self.streams[stream].taken += 1;
                Some(buffer)
            }
            Ok(None) => None,
            Err(_) => {
                self.drained.packets_refused += 1;
                // A ring whose index lies is not looked at again; its committed pages are still found by the chain.
                self.streams[stream].device = None;
                None
            }
        }
    }

    /// Asks for a kick when a stream has some pages. True when one has so many already.
    fn arm_notifications(&mut self) -> bool {
        if self.memory().is_overwrite() {
            return false;
        }
        let count = self.wake_page_count;
        self.streams.iter_mut().filter_map(|stream| stream.device.as_mut()).fold(false, |any, device| {
            // Every ring is armed, also after the first that has something.
            device.arm_notification_after(count) | any
        })
    }

    fn packet_offered(&mut self, stream: usize, address: u64, len: u32) {
        let unit = (address / UNIT_BYTES as u64).min(u32::MAX as u64) as u32;
        if !address.is_multiple_of(UNIT_BYTES as u64) || !self.copy_page(unit, len as usize) {
            self.drained.packets_refused += 1;
            return;
        }
        match self.closed_header(stream, len as u64) {
            Some(header) => self.write(stream, header),
            None => self.drained.packets_refused += 1,
        }
    }

    /// The header of the closed page in `scratch`, if it is what the stream's writers leave in a page of `len` bytes.
    fn closed_header(&self, stream: usize, len: u64) -> Option<PacketHeader> {
        PacketHeader::decode(&self.scratch).ok().filter(|header| {
            self.is_from(stream, header)
                && header.content_size_bytes == len
                && header.packet_size_bytes == self.memory().geometry().page_size_bytes as u64
                && header.timestamp_begin <= header.timestamp_end
        })
    }

    /// Copies `len` bytes of a page; a producer that scribbles cannot change them after they are checked.
    fn copy_page(&mut self, unit: u32, len: usize) -> bool {
        let Some(page) = self.memory().page(unit) else { return false };
        if !(HEADER_SIZE_BYTES..=self.scratch.len()).contains(&len) {
            return false;
        }
        self.scratch[len..].fill(0);
        // SAFETY: a page of the pool, mapped as long as the session, and a buffer of a page's size. Writers may write above
        // what is committed at the same time; bytes that are committed do not change, others are not interpreted.
        unsafe { core::ptr::copy_nonoverlapping(page, self.scratch.as_mut_ptr(), len) };
        true
    }

    fn is_from(&self, stream: usize, header: &PacketHeader) -> bool {
        let cpu_count = self.memory().geometry().cpu_count as usize;
        let cpu = if stream < cpu_count { stream as u32 } else { CPU_UNKNOWN };
        header.uuid == self.shared.trace.uuid()
            && header.stream_id == STREAM_EVENTS
            && header.stream_instance_id == stream as u32
            && header.cpu_id == cpu
    }

    /// Writes the packet in `scratch`, whose header is `header`.
    fn write(&mut self, stream: usize, header: PacketHeader) {
        let content_len = header.content_size_bytes as usize;
        let mut counted = count_records(&self.scratch, content_len, &self.classes);
        if counted.is_err() {
            // A class that came since the last look.
            self.classes = self.shared.trace.classes();
            counted = count_records(&self.scratch, content_len, &self.classes);
        }
        let Ok(events) = counted else {
            self.drained.packets_refused += 1;
            return;
        };
        let packet = &self.scratch[..header.packet_size_bytes as usize];
        let target = &mut self.streams[stream];
        let written = open(self.shared, target, stream).and_then(|()| append(target, packet));
        match written {
            Ok(len) => {
                target.discarded_last = header.events_discarded;
                self.drained.bytes += len;
                self.drained.events += events;
            }
            Err(error) => {
                self.drained.lost_on_disk += events;
                self.drained.write_error.get_or_insert(error);
            }
        }
    }

    /// After the stop: what is offered, what is closed and not offered, and the current page of every stream.
    fn finish(mut self) -> Drained {
        if !self.memory().is_overwrite() {
            self.drain();
        }
        for stream in 0..self.streams.len() {
            self.finish_stream(stream);
            self.streams[stream].give_back_space();
            let discarded = self.memory().discarded(stream as u32);
            let unstated = discarded.saturating_sub(self.streams[stream].discarded_last);
            self.drained.lost = self.drained.lost.saturating_add(discarded);
            self.drained.lost_unstated = self.drained.lost_unstated.saturating_add(unstated);
        }
        self.drained.lost_by_class = (0..).map_while(|index| self.memory().discarded_by_class(index)).collect();
        self.drained
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
            self.drained.packets_refused += 1;
            return;
        }
        // A writer that goes on may have overwritten the page: then it is no longer retained, and is none of the trace's.
        // (E') pairs with (E).
        if memory.is_overwrite() && memory.stream(stream as u32).reclaimed.load(Ordering::Acquire) > seq {
            return;
        }
        match self.closed_header(stream, len).filter(|header| header.packet_seq_num == seq) {
            Some(header) => self.write(stream, header),
            None => self.drained.packets_refused += 1,
        }
    }

    /// The page that was never closed: its header is filled in here.
    fn write_current(&mut self, stream: usize, state: State, seq: u64) {
        let memory = self.memory();
        let discarded = memory.discarded(stream as u32);
        let is_empty = state.offset as usize == HEADER_SIZE_BYTES;
        if is_empty && discarded == self.streams[stream].discarded_last {
            return;
        }
        if !self.copy_page(state.unit, state.offset as usize) {
            self.drained.packets_refused += 1;
            return;
        }
        // (E') pairs with (E).
        if memory.is_overwrite() && memory.stream(stream as u32).reclaimed.load(Ordering::Acquire) > seq {
            return;
        }
        let fields = |offset: usize| {
            let bytes: [u8; 8] = self.scratch[offset..offset + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(bytes)
        };
        let timestamp_begin = fields(page::OFFSET_TIMESTAMP_BEGIN);
        let header = PacketHeader {
            uuid: self.shared.trace.uuid(),
            stream_id: STREAM_EVENTS,
            stream_instance_id: stream as u32,
            cpu_id: if (stream as u32) < memory.geometry().cpu_count { stream as u32 } else { CPU_UNKNOWN },
            timestamp_begin,
            timestamp_end: self.shared.clock.now().max(timestamp_begin),
            content_size_bytes: state.offset.into(),
            packet_size_bytes: (state.offset as u64).next_multiple_of(8),
            packet_seq_num: seq,
            events_discarded: discarded,
        };
        self.scratch[..HEADER_SIZE_BYTES].copy_from_slice(&header.encode());
        self.write(stream, header);
    }

    /// A stream that never had a page, because none was free, has losses to tell all the same.
    fn write_losses_alone(&mut self, stream: usize) {
        let discarded = self.memory().discarded(stream as u32);
        if discarded == 0 {
            return;
        }
        let now = self.shared.clock.now();
        let header = PacketHeader {
            uuid: self.shared.trace.uuid(),
            stream_id: STREAM_EVENTS,
            stream_instance_id: stream as u32,
            cpu_id: if (stream as u32) < self.memory().geometry().cpu_count { stream as u32 } else { CPU_UNKNOWN },
            timestamp_begin: now,
            timestamp_end: now,
            content_size_bytes: HEADER_SIZE_BYTES as u64,
            packet_size_bytes: HEADER_SIZE_BYTES as u64,
            packet_seq_num: 0,
            events_discarded: discarded,
        };
        self.scratch[..HEADER_SIZE_BYTES].copy_from_slice(&header.encode());
        self.write(stream, header);
    }
}

fn open(shared: &Shared, target: &mut Stream, stream: usize) -> Result<(), String> {
    if target.file.is_none() {
        let cpu_count = shared.memory.geometry().cpu_count as usize;
        let name = if stream < cpu_count { format!("cpu_{stream}") } else { format!("claimed_{}", stream - cpu_count) };
        target.file = Some(shared.trace.create_stream(&name).map_err(|error| error.to_string())?);
    }
    Ok(())
}

/// Appends all or nothing.
fn append(target: &mut Stream, packet: &[u8]) -> Result<u64, String> {
    use std::os::unix::fs::FileExt;
    target.set_space_aside(packet.len() as u64);
    let Some(file) = &target.file else { return Err("the stream's file is not open".into()) };
    if let Err(error) = file.write_all_at(packet, target.len) {
        let _ = file.set_len(target.len);
        return Err(format!("cannot write the trace: {error}; free space or give another directory with -o"));
    }
    target.len += packet.len() as u64;
    Ok(packet.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_wait_leave_half_of_them_to_writers() {
        for (page_count, stream_count, expected) in [(16, 18, 1), (256, 18, 7), (4096, 18, 8), (256, 256, 1)] {
            let geometry = Geometry { page_size_bytes: 65536, page_count, cpu_count: 2, stream_count };
            let count = wake_page_count(&geometry);
            assert_eq!(count, expected);
            assert!(count == 1 || u32::from(count - 1) * stream_count < page_count / 2);
        }
    }
}

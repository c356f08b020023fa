//! A thread that writes alternately to two streams of a session, and a property that every trace of it must have.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dormouse_abi::class::{ClassDecl, FieldType, Kind, Labels};
use dormouse_abi::page;
use dormouse_abi::record::context_word;
use dormouse_abi::session::{CLOCK_MONOTONIC, Geometry, State, UNIT_BYTES};
use dormouse_abi::txn::Txn;
use dormouse_ctf::{Merge, Metadata, StreamReader, Value};
use dormouse_format::PacketHeader;
use dormouse_relay::{Memory, Record, Segment, WriteOutcome, write_exclusive};
use dormouse_vring::split::PlannedDriver;

use crate::clock::ticks;
use crate::ledger::Ledger;
use crate::memory::setup;
use crate::options::Plan;

/// Geometry of the memory that is written to.
pub(crate) const GEOMETRY: Geometry =
    Geometry { page_size_bytes: 4096, page_count: 8, cpu_count: 0, stream_count: 2, has_register: false };

/// Returns the ledger of a new session with this plan.
pub(crate) fn ledger(plan: &Plan) -> Arc<Ledger> {
    Arc::new(Ledger::create(setup(plan, CLOCK_MONOTONIC, [7; 16]).layout(&plan.geometry)).unwrap())
}

/// Fields of the only class.
pub(crate) const FIELDS: [(&str, FieldType); 1] = [("n", FieldType::scalar(Kind::U64))];

/// Returns the class.
pub(crate) fn class() -> ClassDecl {
    let fields = FIELDS.map(|(name, field_type)| (name.into(), field_type)).into();
    ClassDecl { provider: "p".into(), name: "e".into(), fields, labels: Labels::new(), level: None }
}

/// Number of events that all pages together cannot hold.
pub(crate) const EVERYTHING: u64 = 1_500;

/// The thread.
pub(crate) struct Writer {
    pub(crate) memory: Memory,
    class_id: u16,
    /// Number of the next event.
    pub(crate) next: u64,
    /// How far its clock is ahead of the real one, in ticks.
    pub(crate) ahead: u64,
}

impl Writer {
    /// Returns a writer to memory of the geometry [`GEOMETRY`], which must outlive it.
    pub(crate) fn new(memory: Memory, class_id: u16) -> Writer {
        Writer { memory, class_id, next: 0, ahead: 0 }
    }

    fn now(&self) -> u64 {
        ticks(self.memory.clock()) + self.ahead
    }

    fn state_word(&self, stream: u32) -> u64 {
        self.memory.stream(stream).state.load(Ordering::Relaxed)
    }

    fn switch(&self, stream: u32) {
        let memory = self.memory;
        let used = |stream: u32| memory.stream(stream).reclaimed.load(Ordering::Relaxed);
        let evicted =
            || (0..GEOMETRY.page_count).find_map(|_| memory.draw_page(9, stream, memory.evict(stream)?, used));
        let unit = memory.draw(9, stream, used).or_else(evicted).expect("a page");
        let now = self.now();
        commit(&memory.plan_switch(stream, self.state_word(stream), unit, now));
        memory.open(stream, now);
    }

    /// Offers the closed pages of a stream that has offered none.
    pub(crate) fn offer(&self, stream: u32) {
        let memory = self.memory;
        let published = memory.stream(stream).published.0.as_ptr();
        // SAFETY: the geometry places a ring of this size there, and it is mapped as long as the memory.
        let driver = unsafe { PlannedDriver::new(memory.ring(stream), GEOMETRY.ring_size(), published) }.unwrap();
        let closed = State::from_word(self.state_word(stream)).seq.into();
        for seq in 0..closed {
            let unit = memory.chain(stream, seq);
            let len = memory.page_field(unit, page::OFFSET_CONTENT_SIZE) / 8;
            commit(&driver.plan_descriptor(seq, u64::from(unit) * UNIT_BYTES as u64, len as u32));
        }
        commit(&driver.plan_publish(closed));
    }

    /// Writes `count` events.
    pub(crate) fn write(&mut self, stream: u32, count: u64) {
        self.memory.use_stream(stream);
        for number in self.next..self.next + count {
            let bytes = number.to_le_bytes();
            let segments = [Segment::exact(bytes.as_ptr(), bytes.len())];
            let record = Record::new(self.class_id, context_word(1, 2), &segments);
            // SAFETY: only one thread writes, and the number that the segment points to lives during the call.
            while unsafe { write_exclusive(&self.memory, stream, &record, || self.now()) } != WriteOutcome::Done {
                self.switch(stream);
            }
        }
        self.next += count;
    }

    /// Writes to streams 0 and 1 alternately, so that events missing in one are a hole among those of the other.
    pub(crate) fn hop(&mut self) {
        for (stream, count) in [(0, 300), (1, 300), (0, 30), (1, 300), (0, 30)] {
            self.write(stream, count);
        }
    }

    /// Begins a page of a stream, and gives all earlier ones up.
    pub(crate) fn give_all_up(&mut self, stream: u32) {
        self.switch(stream);
        let closed = State::from_word(self.state_word(stream)).seq;
        self.memory.stream(stream).reclaimed.store(closed.into(), Ordering::Relaxed);
    }
}

/// Makes all planned stores in the memory of a [`Writer`], which is the only one.
fn commit(txn: &Txn) {
    for store in txn.stores[..txn.store_count as usize].iter().chain([&txn.last]) {
        let (bytes, width) = (store.value.to_ne_bytes(), store.width as usize);
        let lowest = if cfg!(target_endian = "big") { &bytes[bytes.len() - width..] } else { &bytes[..width] };
        // SAFETY: the target was planned in the writer's memory, and the caller is its only writer.
        unsafe { std::ptr::copy_nonoverlapping(lowest.as_ptr(), store.target, width) };
    }
}

/// Returns the numbers of a trace's events, in order of time, from the time on at which it is complete: no stream has
/// given up a page since.
pub(crate) fn numbers(dir: &Path) -> Vec<u64> {
    let metadata = Metadata::parse(&std::fs::read_to_string(dir.join("metadata")).unwrap()).unwrap();
    let streams =
        (0..GEOMETRY.stream_count).filter_map(|stream| std::fs::read(dir.join(format!("claimed_{stream}"))).ok());
    let streams: Vec<Vec<u8>> = streams.collect();
    let firsts = streams.iter().filter_map(|bytes| PacketHeader::decode(bytes).ok());
    let given_up = firsts.filter(|header| header.packet_seq_num > 0);
    let since = given_up.map(|header| header.timestamp_begin).max().unwrap_or(0);
    let readers = (0..).zip(&streams).map(|(index, bytes)| StreamReader::new(&metadata, index, bytes));
    let events = Merge::new(readers).map(|item| item.unwrap_or_else(|notice| panic!("{notice}")));
    let number = |event: dormouse_ctf::Event<'_>| match event.fields().next() {
        Some((_, Value::U64(number))) => number,
        other => panic!("{other:?}"),
    };
    events.filter(|event| event.timestamp >= since).map(number).collect()
}

/// Asserts that the numbers have no hole.
pub(crate) fn assert_no_hole(numbers: &[u64], at: &str) {
    let hole = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
    assert_eq!(hole, None, "{at}");
}

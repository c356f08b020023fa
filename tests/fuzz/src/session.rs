//! A session's writers and consumer, as operations on its memory, with lists of records as the oracle.
//!
//! The writers are those of the tracer without restartable sequences, in one thread: they claim every stream. Noise in
//! the memory invalidates the oracle; from then on only panics and planned stores outside the memory are errors.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use arbitrary::Arbitrary;
use dormouse_abi::page::{self, CPU_UNKNOWN, HEADER_SIZE_BYTES, STREAM_EVENTS};
use dormouse_abi::record;
use dormouse_abi::session::{Geometry, STATE_EMPTY, State, UNIT_BYTES, spare};
use dormouse_abi::txn::Txn;
use dormouse_ctf::{Metadata, PacketHeader};
use dormouse_owner::fuzzing::UUID;
use dormouse_relay::{Memory, Segment, WriteOutcome, write_exclusive};
use dormouse_vring::DeviceSide;
use dormouse_vring::split::{Device, PlannedDriver};

use crate::trace::{self, Record};

/// Small enough that pages are always scarce.
pub const GEOMETRY: Geometry =
    Geometry { page_size_bytes: 4096, page_count: 7, cpu_count: 0, stream_count: 3, has_register: false };

/// The process that lives, and the one that is killed repeatedly.
const PROCESSES: [u16; 2] = [9, 10];

/// An operation. Numbers are taken modulo the number of possibilities.
#[derive(Debug, Clone, Arbitrary)]
pub enum Operation {
    /// Writes a record of bytes, in up to three runs.
    Write {
        /// Stream.
        stream: u8,
        /// Number of bytes; may exceed a page.
        len: u16,
        /// Pattern of the bytes.
        fill: u8,
        /// Positions of the cuts.
        cuts: [u8; 2],
    },
    /// Writes many short records.
    Burst {
        /// Stream.
        stream: u8,
        /// Number of records.
        count: u8,
        /// Bytes of each.
        len: u8,
    },
    /// A page switch that breaks off: the page is drawn, and then this many stores are made.
    KilledSwitch {
        /// Stream.
        stream: u8,
        /// Whether it breaks off before the page is made the next one; otherwise it does while the page is made the
        /// current one.
        is_early: bool,
        /// Number of stores.
        stores: u8,
        /// Whether the owner has noticed.
        is_buried: bool,
    },
    /// An offer that breaks off after this many stores.
    KilledOffer {
        /// Stream.
        stream: u8,
        /// Number of stores.
        stores: u8,
    },
    /// The consumer uses pages (discard mode).
    Use {
        /// Stream.
        stream: u8,
        /// Maximum number of pages.
        count: u8,
    },
    /// Time passes: a power of two of ticks.
    Wait {
        /// Exponent.
        shift: u8,
    },
    /// The budget changes.
    Limit {
        /// Number of pages.
        page_count: u8,
    },
    /// Pages beyond the budget are returned.
    GiveBack,
}

/// Noise: changes a word.
#[derive(Debug, Clone, Arbitrary)]
pub struct Noise {
    area: u8,
    word: u16,
    how: u8,
    value: u64,
}

/// Expected contents of a stream.
#[derive(Debug, Default)]
pub struct Oracle {
    current: Vec<Record>,
    /// Closed pages that are neither used nor overwritten, from number `oldest` on.
    closed: VecDeque<Vec<Record>>,
    oldest: u64,
    has_page: bool,
    lost: u64,
}

impl Oracle {
    /// Returns the retained records, and the number of lost ones.
    pub fn retained(&self) -> (Vec<&Record>, u64) {
        (self.closed.iter().flatten().chain(&self.current).collect(), self.lost)
    }
}

/// A session's memory, its writers, and its expected contents.
#[derive(Debug)]
pub struct Bench {
    memory: Memory,
    metadata: Rc<Metadata>,
    devices: Vec<Device>,
    oracles: Vec<Oracle>,
    clock: u64,
    is_honest: bool,
}

impl Bench {
    /// Creates a bench for memory with the geometry [`GEOMETRY`], which was laid out just now and outlives the bench.
    pub fn new(memory: Memory) -> Bench {
        let geometry = *memory.geometry();
        let device = |stream| {
            // SAFETY: the geometry places a ring of this size there. The memory outlives the bench, as `new` requires
            // of its caller, and there is only one thread.
            unsafe { Device::at(memory.ring(stream), geometry.ring_size()) }.expect("a ring")
        };
        let streams = 0..geometry.stream_count;
        Bench {
            memory,
            metadata: trace::metadata_of_class(memory.record_kind()),
            devices: streams.clone().map(device).collect(),
            oracles: streams.map(|_| Oracle::default()).collect(),
            clock: 1,
            is_honest: true,
        }
    }

    /// Returns the oracles, by stream.
    pub fn oracles(&self) -> &[Oracle] {
        &self.oracles
    }

    /// Whether there has been no noise.
    pub fn is_honest(&self) -> bool {
        self.is_honest
    }

    fn driver(&self, stream: u32) -> PlannedDriver {
        let published = self.memory.stream(stream).published.0.as_ptr();
        // SAFETY: the geometry places a ring of this size there, and the memory outlives the bench, as `new` requires
        // of its caller.
        unsafe { PlannedDriver::new(self.memory.ring(stream), self.memory.geometry().ring_size(), published) }
            .expect("a ring")
    }

    fn state_word(&self, stream: u32) -> u64 {
        self.memory.stream(stream).state.load(Ordering::Relaxed)
    }

    fn used(&self, stream: u32) -> u64 {
        match self.memory.is_overwrite() {
            true => self.memory.stream(stream).reclaimed.load(Ordering::Relaxed),
            false => self.driver(stream).used_count(),
        }
    }

    /// Commits with plain stores, as a claimant does, unless it breaks off after `stores_max` stores. Asserts that
    /// every store is inside the memory.
    fn commit(&self, txn: &Txn, stores_max: Option<usize>) -> bool {
        let memory = self.memory.base().addr()..self.memory.base().addr() + self.memory.geometry().size_bytes();
        assert!(memory.contains(&txn.guard.addr()) && memory.contains(&(txn.guard.addr() + 7)));
        // SAFETY: inside the memory, by the assertion above.
        if unsafe { txn.guard.read() } != txn.expected {
            return false;
        }
        let plain = &txn.stores[..txn.store_count as usize];
        for (index, store) in plain.iter().chain([&txn.last]).enumerate() {
            if stores_max == Some(index) {
                return false;
            }
            let (begin, width) = (store.target.addr(), store.width as usize);
            assert!(matches!(width, 2 | 4 | 8) && begin.is_multiple_of(width));
            assert!(memory.contains(&begin) && memory.contains(&(begin + width - 1)), "a store leaves the memory");
            let bytes = store.value.to_le_bytes();
            // SAFETY: inside the memory, by the assertion above.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), store.target, width) };
        }
        true
    }

    /// Runs a function that may give pages up, and makes the oracle give up the same ones.
    fn follow<T>(&mut self, run: impl FnOnce(&Bench) -> T) -> T {
        let reclaimed = |bench: &Bench| -> Vec<u64> {
            let streams = 0..bench.memory.geometry().stream_count;
            streams.map(|stream| bench.memory.stream(stream).reclaimed.load(Ordering::Relaxed)).collect()
        };
        let before = reclaimed(self);
        let result = run(self);
        if self.is_honest {
            for (stream, (before, after)) in before.into_iter().zip(reclaimed(self)).enumerate() {
                for _ in before..after {
                    self.oracles[stream].closed.pop_front().expect("a page that is given up was retained");
                    self.oracles[stream].oldest += 1;
                }
            }
        }
        result
    }

    fn draw(&mut self, process: u16, stream: u32) -> Option<u32> {
        let memory = self.memory;
        self.follow(|bench| {
            let used = |stream: u32| bench.used(stream);
            let search = || memory.draw(process, stream, used);
            search().or_else(|| {
                let count = if memory.is_overwrite() { memory.geometry().page_count } else { 0 };
                (0..count).find_map(|_| {
                    let evicted = memory.evict(stream)?;
                    memory.draw_page(process, stream, evicted, used).or_else(search)
                })
            })
        })
    }

    /// Switches pages as the tracer does, or breaks off after a number of stores of its first or its second
    /// transaction. Returns false if no page is available.
    fn switch(&mut self, process: u16, stream: u32, breaks_off: Option<(bool, usize)>) -> bool {
        let memory = self.memory;
        let control = memory.stream(stream);
        let state = self.state_word(stream);
        let seq_next = State::from_word(state).seq.wrapping_add(1);
        let seen = control.spare.load(Ordering::Relaxed);
        let unit = match spare::unit_for(seen, seq_next) {
            Some(unit) => unit,
            None => {
                let Some(unit) = self.draw(process, stream) else { return false };
                let stores_max = breaks_off.filter(|(is_early, _)| *is_early).map(|(_, stores)| stores);
                let txn = memory.plan_spare(stream, seen, seq_next, unit);
                if !self.commit(&txn, stores_max) {
                    assert!(stores_max.is_some(), "nobody else writes to the stream");
                    return true;
                }
                unit
            }
        };
        self.clock += 1;
        let stores_max = breaks_off.filter(|(is_early, _)| !is_early).map(|(_, stores)| stores);
        if self.commit(&memory.plan_switch(stream, state, unit, self.clock), stores_max) {
            memory.open(stream, self.clock);
            let oracle = &mut self.oracles[stream as usize];
            let records = std::mem::take(&mut oracle.current);
            if oracle.has_page {
                oracle.closed.push_back(records);
            }
            oracle.has_page = true;
            if !memory.is_overwrite() && breaks_off.is_none() {
                self.offer(stream, None);
            }
        }
        true
    }

    /// Offers closed pages; breaks off after `stores_max` stores.
    fn offer(&self, stream: u32, mut stores_max: Option<usize>) {
        let driver = self.driver(stream);
        let published = &self.memory.stream(stream).published.0;
        let mut next = published.load(Ordering::Relaxed);
        let mut commit = |txn: &Txn| {
            let is_done = self.commit(txn, stores_max);
            if let Some(rest) = &mut stores_max {
                *rest = rest.saturating_sub(txn.store_count as usize + 1);
            }
            is_done
        };
        for _ in 0..self.memory.geometry().ring_size() {
            if next as u16 == State::from_word(self.state_word(stream)).seq {
                break;
            }
            let unit = self.memory.chain(stream, next);
            let len = self.memory.page_field(unit, page::OFFSET_CONTENT_SIZE) / 8;
            if !commit(&driver.plan_descriptor(next, unit as u64 * UNIT_BYTES as u64, len as u32)) {
                return;
            }
            next = next.wrapping_add(1);
        }
        commit(&driver.plan_publish(next));
    }

    fn lose(&mut self, stream: u32, is_big: bool) {
        let control = self.memory.stream(stream);
        let counter = if is_big { &control.records_lost_big } else { &control.records_lost_full.0 };
        counter.fetch_add(1, Ordering::Relaxed);
        self.oracles[stream as usize].lost += 1;
    }

    fn write(&mut self, stream: u32, bytes: &[u8], cuts: [usize; 2]) {
        let memory = self.memory;
        memory.use_stream(stream);
        let count = (bytes.len() as u32).to_le_bytes();
        let (first, rest) = bytes.split_at(cuts[0] % (bytes.len() + 1));
        let (second, third) = rest.split_at(cuts[1] % (rest.len() + 1));
        let segments = [&count[..], first, second, third].map(|run| Segment::exact(run.as_ptr(), run.len()));
        let record = dormouse_relay::Record::new(0, record::context_word(1, 2), &segments);
        let size_bytes_max = memory.record_kind().header_size_bytes_max() + record.fields_size_bytes;
        if size_bytes_max > page::record_size_max_bytes(memory.geometry().page_size_bytes as usize) {
            return self.lose(stream, true);
        }
        // Honest memory needs one switch.
        for _ in 0..3 {
            let now = self.clock + 1;
            // SAFETY: only one thread writes, and the runs live during the call.
            if unsafe { write_exclusive(&memory, stream, &record, || now) } == WriteOutcome::Done {
                self.clock = now;
                self.oracles[stream as usize].current.push((now, bytes.to_vec()));
                return;
            }
            if !self.switch(PROCESSES[0], stream, None) {
                return self.lose(stream, false);
            }
        }
        assert!(!self.is_honest, "a fresh page has no room");
    }

    /// Makes the consumer take the oldest offered page and give it back. Returns false if there is none.
    fn use_one(&mut self, stream: u32) -> bool {
        let device = &mut self.devices[stream as usize];
        let popped = device.pop_single();
        let Ok(Some((id, segment))) = popped else {
            assert!(!self.is_honest || popped == Ok(None), "{popped:?}");
            return false;
        };
        if self.is_honest {
            let oracle = &mut self.oracles[stream as usize];
            let records = oracle.closed.pop_front().expect("a page that is offered was closed");
            let unit = (segment.addr / UNIT_BYTES as u64) as u32;
            assert_eq!((segment.len as u64) * 8, self.memory.page_field(unit, page::OFFSET_CONTENT_SIZE));
            assert_eq!(self.memory.page_field(unit, page::OFFSET_SEQ), oracle.oldest);
            oracle.oldest += 1;
            let read = trace::read(&self.metadata, &self.page(unit));
            assert_eq!((read.records, read.problems), (records, vec![]));
        }
        let device = &mut self.devices[stream as usize];
        device.push_used_id(id, 0);
        device.publish_used();
        self.memory.header().freed.0.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Returns the bytes of a page.
    fn page(&self, unit: u32) -> Vec<u8> {
        let page = self.memory.page(unit).expect("a page of the pool");
        // SAFETY: `Memory::page` returns the start of a whole page, and no other thread writes meanwhile.
        unsafe { std::slice::from_raw_parts(page, self.memory.geometry().page_size_bytes as usize) }.to_vec()
    }

    /// Performs an operation.
    pub fn apply(&mut self, operation: &Operation) {
        let count = self.memory.geometry().stream_count;
        let of = |stream: u8| u32::from(stream) % count;
        match *operation {
            Operation::Write { stream, len, fill, cuts } => {
                // Some are longer than a page.
                let bytes: Vec<u8> = (0..len % 4_200).map(|at| fill ^ (at * 7) as u8).collect();
                self.write(of(stream), &bytes, cuts.map(|cut| usize::from(cut) * 16));
            }
            Operation::Burst { stream, count, len } => {
                let bytes = vec![count; len.into()];
                (0..count % 64).for_each(|_| self.write(of(stream), &bytes, [0, 0]));
            }
            Operation::KilledSwitch { stream, is_early, stores, is_buried } => {
                let stream = of(stream);
                self.memory.use_stream(stream);
                self.switch(PROCESSES[1], stream, Some((is_early, usize::from(stores) % 12)));
                if is_buried {
                    self.memory.reclaim_drawn(PROCESSES[1]);
                }
            }
            Operation::KilledOffer { stream, stores } => {
                // A writer that offers pages has switched pages before.
                if self.state_word(of(stream)) != STATE_EMPTY {
                    self.offer(of(stream), Some(stores.into()));
                }
            }
            Operation::Use { stream, count } => {
                if !self.memory.is_overwrite() {
                    let _ = (0..count).all(|_| self.use_one(of(stream)));
                }
            }
            Operation::Wait { shift } => self.clock = self.clock.saturating_add(1 << (shift % 50)),
            Operation::Limit { page_count } => {
                self.memory.set_page_count_limit(u32::from(page_count) % (GEOMETRY.page_count + 1));
            }
            Operation::GiveBack => self.follow(|bench| {
                let memory = bench.memory;
                for index in memory.page_count_limit()..memory.geometry().page_count {
                    let _ = memory.withhold(index, |stream| bench.used(stream))
                        || memory.is_overwrite() && memory.relocate(index);
                }
            }),
        }
    }

    /// Changes a word. Only writers are affected; the oracle is invalid from then on.
    pub fn disturb(&mut self, noise: &Noise) {
        let geometry = *self.memory.geometry();
        let areas = [
            (0, geometry.owners_offset()),
            (geometry.owners_offset(), geometry.streams_offset()),
            (geometry.streams_offset(), geometry.rings_offset()),
            (geometry.rings_offset(), geometry.pages_offset()),
            (geometry.pages_offset(), geometry.size_bytes()),
        ];
        let (begin, end) = areas[usize::from(noise.area) % areas.len()];
        let word = begin / 8 + usize::from(noise.word) % ((end - begin) / 8);
        let word = self.memory.base().cast::<u64>().wrapping_add(word);
        // SAFETY: the word is inside the memory, and there is only one thread.
        let before = unsafe { word.read() };
        let after = match noise.how % 6 {
            0 => 0,
            1 => u64::MAX,
            2 => before.wrapping_add(1),
            3 => before ^ 1 << (noise.value % 64),
            4 => before ^ noise.value & 0xFFFF,
            _ => noise.value,
        };
        // SAFETY: the word is inside the memory, and there is only one thread.
        unsafe { word.write(after) };
        self.is_honest = false;
    }

    /// Returns a stream's retained pages and its current one, as a trace contains them.
    fn stream_bytes(&self, stream: u32) -> Vec<u8> {
        let (oracle, memory) = (&self.oracles[stream as usize], self.memory);
        let mut bytes = Vec::new();
        for seq in oracle.oldest..oracle.oldest + oracle.closed.len() as u64 {
            let unit = memory.chain(stream, seq);
            assert_eq!(memory.page_field(unit, page::OFFSET_SEQ), seq);
            bytes.extend(self.page(unit));
        }
        let state = State::from_word(self.state_word(stream));
        let (begin, len) = (memory.page_field(state.unit, page::OFFSET_TIMESTAMP_BEGIN), u64::from(state.offset));
        let header = PacketHeader {
            uuid: UUID,
            stream_id: STREAM_EVENTS,
            stream_instance_id: stream,
            cpu_id: CPU_UNKNOWN,
            timestamp_begin: begin,
            timestamp_end: self.clock.max(begin),
            content_size_bytes: len,
            packet_size_bytes: len.next_multiple_of(8),
            packet_seq_num: oracle.oldest + oracle.closed.len() as u64,
            events_discarded: memory.discarded(stream),
        };
        assert_eq!(memory.page_field(state.unit, page::OFFSET_SEQ), header.packet_seq_num);
        bytes.extend(header.encode());
        bytes.extend(&self.page(state.unit)[HEADER_SIZE_BYTES..header.packet_size_bytes as usize]);
        bytes
    }

    /// Asserts that the memory contains what the oracle expects, as long as the oracle is valid.
    pub fn check(&self) {
        if !self.is_honest {
            return;
        }
        let memory = self.memory;
        let mut units = Vec::new();
        for (stream, oracle) in (0..).zip(&self.oracles) {
            assert_eq!(memory.discarded(stream), oracle.lost);
            let state = State::from_word(self.state_word(stream));
            let next = memory.stream(stream).spare.load(Ordering::Relaxed);
            units.extend(spare::unit_for(next, state.seq.wrapping_add(1)));
            if !oracle.has_page {
                assert_eq!(state.unit, 0);
                continue;
            }
            units.push(state.unit);
            let closed = oracle.oldest..oracle.oldest + oracle.closed.len() as u64;
            units.extend(closed.map(|seq| memory.chain(stream, seq)));
            let read = trace::read(&self.metadata, &self.stream_bytes(stream));
            let (records, lost) = oracle.retained();
            assert_eq!((read.records.iter().collect::<Vec<_>>(), read.lost), (records, lost));
            assert_eq!(read.problems, []);
        }
        let count = units.len();
        units.sort_unstable();
        units.dedup();
        assert_eq!(units.len(), count, "a page is in two places");
    }

    /// Asserts that nothing that a live process holds is taken from it.
    pub fn check_end(&self) {
        if self.is_honest {
            self.memory.reclaim_drawn(PROCESSES[1]);
            assert_eq!(self.memory.reclaim_drawn(PROCESSES[0]), 0);
        }
        self.check();
    }
}

/// Returns a new directory for files that last as long as one input: in memory if possible.
pub fn scratch_dir(name: &str) -> std::path::PathBuf {
    let memory = std::path::Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
    let dir = parent.join(format!("dormouse-fuzz-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory for files");
    dir
}

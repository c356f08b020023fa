//! Both sides of a queue in memory to which a hostile peer writes: between operations, and between any two accesses of
//! one.
//!
//! One side is the code under test, driven honestly, so that rings mostly have the right shape. Noise is written where
//! the other side could write if it were hostile. After the first noise there is no oracle for the exchanged data. But
//! the code under test must not panic, access addresses outside the memory, store where the other side does, loop
//! forever, or use a word other than the one that it checked; and each error must be counted.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering, Ordering::Relaxed};

use arbitrary::Arbitrary;
use dormouse_vring::{
    AddressSpace, Area, AreaLocation, Areas, Bus, Chain, DeviceSide, Direct, DriverSide, Features, IndirectTables,
    Region, Regions, RingError, Segment, Word, packed, split,
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

/// The side with a hostile peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// Noise is written where drivers write.
    Device,
    /// Noise is written where devices write.
    Driver,
}

/// A number, often small.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Value {
    /// Small, like indexes and ids.
    Small(u8),
    /// Any value.
    Any(u64),
}

impl Value {
    fn get(self) -> u64 {
        match self {
            Value::Small(value) => value.into(),
            Value::Any(value) => value,
        }
    }
}

/// An address of the driver.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Address {
    /// Offset in bytes into its memory, which consists of a present page, an absent one, and another present one.
    Inside(u16),
    /// Number of bytes before the end of one of the pages.
    End(bool, u8),
    /// Any address.
    Any(u64),
}

impl Address {
    fn get(self) -> u64 {
        match self {
            Address::Inside(offset) => MEMORY + u64::from(offset) % (3 * PAGE as u64),
            Address::End(is_first, before) => MEMORY + PAGE as u64 * if is_first { 1 } else { 3 } - u64::from(before),
            Address::Any(addr) => addr,
        }
    }
}

/// A descriptor of a ring or table. In a packed ring, `next` is the id.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Descriptor {
    addr: Address,
    len: Value,
    /// Bits from the lowest: NEXT, WRITE, INDIRECT, AVAIL, USED, and one without meaning.
    flags: u8,
    next: Value,
}

/// A write of the hostile peer.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Write {
    /// Two bytes of an area.
    Word(bool, u16, Value),
    /// The index of the peer's ring, or the value in a packed ring's event suppression: adds this to it.
    Index(i8),
    /// An entry of the avail ring, or an element of the used ring.
    Entry(u8, Value, Value),
    /// A descriptor of the ring.
    Descriptor(u8, Descriptor),
    /// Only the flags of a descriptor: those of a used or available descriptor of a packed ring in some lap.
    Flags(u8, u8),
    /// A descriptor of a table.
    Table(u8, Descriptor),
}

/// An operation of one of the two sides. Numbers are taken modulo the number of possibilities.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Operation {
    /// Adds a buffer with these numbers of segments to be read and written.
    Add(u8, u8, Value),
    /// Adds a buffer, and publishes all.
    AddAndPublish(u8, u8, Value),
    /// Publishes added buffers.
    Publish,
    /// Asks whether to kick.
    NeedsKick,
    /// Takes back up to this many buffers.
    Take(u8),
    /// Asks for an interrupt, or for none.
    ArmInterrupt(bool),
    /// Pops up to this many buffers.
    Pop(u8),
    /// Gives one back, the oldest or the newest, with bytes written.
    Push(bool, Value),
    /// Publishes used buffers.
    PublishUsed,
    /// Asks whether to interrupt.
    NeedsInterrupt,
    /// Asks for a kick, or for none.
    ArmNotification(bool),
    /// A write of the hostile peer.
    Write(Write),
}

/// A ring, and the operations on it.
#[derive(Debug, Clone, Arbitrary)]
pub struct Input {
    is_packed: bool,
    size: u8,
    /// For a split ring: how far before the wrap it begins.
    base: Option<u8>,
    is_indirect: bool,
    has_events: bool,
    is_in_order: bool,
    operations: Vec<Operation>,
    /// Writes of the peer, each after a number of accesses of either side.
    meddling: Vec<(u8, Write)>,
}

/// Address of the driver's memory, for the device.
const MEMORY: u64 = 0x10_0000;
const PAGE: usize = 4096;
/// Maximum number of operations of an input, and of entries of a ring.
const OPERATIONS_MAX: usize = 120;
const SIZE_MAX: u32 = 24;

/// A block of exactly this many bytes, so that the address sanitizer detects accesses outside of it.
struct Block(*mut u8, Layout);

impl Block {
    fn new(len: usize) -> Block {
        let layout = Layout::from_size_align(len, 16).expect("a short block");
        // SAFETY: the layout's size is not zero, because no ring has an empty area.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        Block(base, layout)
    }

    fn len(&self) -> usize {
        self.1.size()
    }

    fn word(&self, offset: usize) -> &AtomicU16 {
        assert!(offset.is_multiple_of(2) && offset + 2 <= self.len());
        // SAFETY: aligned and inside the block, by the assertion above; all accesses are atomic as long as the block
        // lives.
        unsafe { AtomicU16::from_ptr(self.0.wrapping_add(offset).cast()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with the same layout.
        unsafe { dealloc(self.0, self.1) };
    }
}

/// A present page, an absent page, a present page; and an absent one before and after them.
struct Pages(*mut u8);

impl Pages {
    fn new() -> Pages {
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), 5 * PAGE, ProtFlags::empty(), flags) };
        let base: *mut u8 = base.expect("five pages").cast();
        for page in [1, 3] {
            let at = base.wrapping_add(page * PAGE).cast();
            // SAFETY: the page belongs to the new mapping, and no other code uses it yet.
            unsafe { mprotect(at, PAGE, MprotectFlags::READ | MprotectFlags::WRITE) }.expect("a page of ours");
        }
        Pages(base.wrapping_add(PAGE))
    }

    fn regions(&self) -> Regions {
        let region = |page: usize| {
            let offset = page * PAGE;
            Region { addr: MEMORY + offset as u64, len: PAGE as u64, base: self.0.wrapping_add(offset) }
        };
        // SAFETY: the pages stay mapped as long as the thread lives.
        unsafe { Regions::new(vec![region(0), region(2)]) }.expect("pages apart")
    }

    /// Clears the first page, which contains the tables.
    fn clear(&self) {
        // SAFETY: the page is present and writable, and no reference into it exists.
        unsafe { ptr::write_bytes(self.0, 0, PAGE) };
    }
}

thread_local! {
    static PAGES: Pages = Pages::new();
}

/// Returns a descriptor's words, in the layout of a split ring or table, or of a packed ring.
fn words(descriptor: Descriptor, is_packed: bool) -> [u64; 2] {
    let (len, next) = (descriptor.len.get() as u32, descriptor.next.get() as u16);
    let flags = flags(descriptor.flags);
    let (third, fourth) = if is_packed { (next, flags) } else { (flags, next) };
    [descriptor.addr.get(), u64::from(len) | u64::from(third) << 32 | u64::from(fourth) << 48]
}

fn flags(bits: u8) -> u16 {
    let bit = |bit: u8, flag: u16| if bits >> bit & 1 == 1 { flag } else { 0 };
    bit(0, 1) | bit(1, 2) | bit(2, 4) | bit(3, 1 << 7) | bit(4, 1 << 15) | bit(5, 1 << 6)
}

/// A ring's memory, the driver's memory, and the peer's pending writes.
struct Memory {
    blocks: [Block; 3],
    bus: Direct,
    regions: Regions,
    tables: *mut u8,
    victim: Victim,
    is_packed: bool,
    size: u32,
    meddling: RefCell<std::vec::IntoIter<(u8, Write)>>,
    /// The next write of the peer, and the number of accesses before it.
    next: Cell<Option<(u8, Write)>>,
    /// Number of accesses in this call, and the loads of descriptors, by offset and value.
    accesses: Cell<u32>,
    loaded: RefCell<Vec<(usize, u64)>>,
    /// Slots of a split ring that the driver stores to in this call, and whether the device has each slot.
    stored: RefCell<Vec<usize>>,
    is_taken: RefCell<Vec<bool>>,
}

impl Memory {
    fn new(input: &Input, size: u32, victim: Victim, pages: &Pages) -> Memory {
        let len = if input.is_packed {
            [16 * size as usize, 4, 4]
        } else {
            [16 * size as usize, 6 + 2 * size as usize, 6 + 8 * size as usize]
        };
        let blocks = len.map(Block::new);
        let area = |index: usize| AreaLocation(blocks[index].0, blocks[index].len());
        let areas = Areas { descriptor: area(0), driver: area(1), device: area(2) };
        let mut meddling = input.meddling.clone().into_iter();
        Memory {
            // SAFETY: the blocks live as long as the value, and are only accessed atomically.
            bus: unsafe { Direct::new(areas) },
            blocks,
            regions: pages.regions(),
            tables: pages.0,
            victim,
            is_packed: input.is_packed,
            size,
            next: Cell::new(meddling.next()),
            meddling: RefCell::new(meddling),
            accesses: Cell::new(0),
            loaded: RefCell::default(),
            stored: RefCell::default(),
            is_taken: RefCell::new(vec![false; size as usize]),
        }
    }

    /// Returns the area that only the hostile side writes.
    fn of_peer(&self) -> &Block {
        &self.blocks[if self.victim == Victim::Device { 1 } else { 2 }]
    }

    fn put(&self, block: &Block, offset: usize, value: u64, width: usize) {
        for part in 0..width / 2 {
            block.word(offset + 2 * part).store((value >> (16 * part)) as u16, Relaxed);
        }
    }

    fn write(&self, write: Write) {
        let (descriptors, peer) = (&self.blocks[0], self.of_peer());
        match write {
            Write::Word(is_descriptor, at, value) => {
                let block = if is_descriptor { descriptors } else { peer };
                self.put(block, 2 * (at as usize % (block.len() / 2)), value.get(), 2);
            }
            Write::Index(more) => {
                let word = peer.word(if self.is_packed { 0 } else { 2 });
                word.store(word.load(Relaxed).wrapping_add_signed(more.into()), Relaxed);
            }
            Write::Entry(slot, id, len) if !self.is_packed => {
                let slot = slot as usize % self.size as usize;
                if self.victim == Victim::Device {
                    self.put(peer, 4 + 2 * slot, id.get(), 2);
                } else {
                    self.put(peer, 4 + 8 * slot, id.get(), 4);
                    self.put(peer, 8 + 8 * slot, len.get(), 4);
                }
            }
            // Writes id and length of a used descriptor.
            Write::Entry(slot, id, len) => {
                let at = 16 * (slot as usize % self.size as usize) + 8;
                self.put(descriptors, at, len.get(), 4);
                self.put(descriptors, at + 4, id.get(), 2);
            }
            Write::Descriptor(slot, descriptor) => {
                let at = 16 * (slot as usize % self.size as usize);
                let words = words(descriptor, self.is_packed);
                self.put(descriptors, at, words[0], 8);
                self.put(descriptors, at + 8, words[1], 8);
            }
            Write::Flags(slot, bits) => {
                let at = 16 * (slot as usize % self.size as usize) + if self.is_packed { 14 } else { 12 };
                self.put(descriptors, at, flags(bits).into(), 2);
            }
            Write::Table(entry, descriptor) => {
                let at = self.tables.wrapping_add(16 * entry as usize);
                for (index, word) in words(descriptor, self.is_packed).into_iter().enumerate() {
                    // SAFETY: a page holds 256 descriptors, it is mapped, and it is only accessed atomically.
                    let at = unsafe { AtomicU64::from_ptr(at.wrapping_add(8 * index).cast()) };
                    at.store(word, Relaxed);
                }
            }
        }
    }

    fn meddle(&self) {
        while let Some((after, write)) = self.next.get() {
            if after > 0 {
                return self.next.set(Some((after - 1, write)));
            }
            self.write(write);
            self.next.set(self.meddling.borrow_mut().next());
        }
    }

    fn begin(&self) {
        self.accesses.set(0);
        self.loaded.borrow_mut().clear();
        self.stored.borrow_mut().clear();
    }
}

// SAFETY: `translate` only returns addresses that the regions return, which are mapped as long as the value.
unsafe impl AddressSpace for Memory {
    fn translate(&self, addr: u64, len: u64) -> Option<*mut u8> {
        let found = self.regions.translate(addr, len);
        // The caller has checked the table's address and has not read the table yet.
        self.meddle();
        found
    }
}

/// One side's access to the memory, with checks of every access.
#[derive(Clone, Copy)]
struct Checked<'a> {
    memory: &'a Memory,
    is_driver: bool,
}

impl Checked<'_> {
    fn check<W>(&self, area: Area, offset: usize) {
        assert!(offset.is_multiple_of(size_of::<W>()) || area != Area::Descriptor, "{area:?} {offset}");
        assert!(offset + size_of::<W>() <= self.memory.blocks[area as usize].len(), "{area:?} {offset}");
        let accesses = self.memory.accesses.get() + 1;
        assert!(accesses <= 8 * self.memory.size + 16, "a call that does not end");
        self.memory.accesses.set(accesses);
        self.memory.meddle();
    }
}

impl Bus for Checked<'_> {
    fn len(&self, area: Area) -> usize {
        self.memory.bus.len(area)
    }

    fn load<W: Word>(&self, area: Area, offset: usize, order: Ordering) -> W {
        self.check::<W>(area, offset);
        let value = self.memory.bus.load::<W>(area, offset, order);
        if area == Area::Descriptor {
            self.memory.loaded.borrow_mut().push((offset, value.to_u64()));
        }
        value
    }

    fn store<W: Word>(&self, area: Area, offset: usize, value: W, order: Ordering) {
        self.check::<W>(area, offset);
        let may_store = match area {
            Area::Descriptor => self.is_driver || self.memory.is_packed,
            Area::Driver => self.is_driver,
            Area::Device => !self.is_driver,
        };
        assert!(may_store, "{area:?} is the other side's");
        if area == Area::Descriptor && self.is_driver {
            self.memory.stored.borrow_mut().push(offset / 16);
        }
        self.memory.bus.store(area, offset, value, order);
    }

    fn fence(&self) {
        self.memory.bus.fence();
    }
}

/// A buffer that the device has, or is about to have.
#[derive(Debug)]
struct Given {
    writable: u64,
    descriptors: u16,
    slots: Vec<usize>,
    is_published: bool,
}

struct Bench<'a, D, V> {
    memory: &'a Memory,
    driver: D,
    device: V,
    /// Buffers that the driver has given away, by token.
    given: BTreeMap<u64, Given>,
    tokens: u64,
    /// Descriptor chains that the device has popped.
    held: Vec<Chain>,
    chain: Chain,
    size: u16,
}

impl<D: DriverSide, V: DeviceSide> Bench<'_, D, V> {
    fn apply(&mut self, operation: Operation) {
        self.memory.begin();
        match operation {
            Operation::Add(readable, writable, len) => {
                self.add(readable, writable, len, D::add);
            }
            Operation::AddAndPublish(readable, writable, len) => {
                if self.add(readable, writable, len, D::add_and_publish) {
                    self.given.values_mut().for_each(|given| given.is_published = true);
                }
            }
            Operation::Publish => {
                self.driver.publish();
                self.given.values_mut().for_each(|given| given.is_published = true);
            }
            Operation::NeedsKick => {
                self.driver.needs_kick();
            }
            Operation::Take(count) => (0..count % 8).for_each(|_| self.take()),
            Operation::ArmInterrupt(true) => {
                self.driver.arm_interrupt();
            }
            Operation::ArmInterrupt(false) => self.driver.disarm_interrupt(),
            Operation::Pop(count) => (0..count % 8).for_each(|_| self.pop()),
            Operation::Push(is_newest, len) => {
                if !self.held.is_empty() {
                    let chain = if is_newest { self.held.pop() } else { Some(self.held.remove(0)) };
                    let chain = chain.expect("one is held");
                    // The length that an honest device reports. With in-order use it returns the oldest, which the
                    // lists here need not have.
                    let len = len.get() % (chain.writable_len() + 1);
                    self.device.push_used(&chain, len.min(u32::MAX.into()) as u32);
                }
            }
            Operation::PublishUsed => self.device.publish_used(),
            Operation::NeedsInterrupt => {
                self.device.needs_interrupt();
            }
            Operation::ArmNotification(true) => {
                self.device.arm_notification();
            }
            Operation::ArmNotification(false) => self.device.disarm_notification(),
            Operation::Write(write) => self.memory.write(write),
        }
        let given: u16 = self.given.values().map(|given| given.descriptors).sum();
        let total = u32::from(self.driver.free_count()) + u32::from(given);
        assert!(total == u32::from(self.size), "descriptors are free or given away");
        assert!(self.driver.free_count() <= self.size);
    }

    /// Adds a buffer. Returns whether it was added.
    fn add(
        &mut self,
        readable: u8,
        writable: u8,
        len: Value,
        add: impl FnOnce(&mut D, &[Segment], &[Segment], u64) -> Result<(), RingError>,
    ) -> bool {
        let (readable, writable) = (readable as usize % 5, writable as usize % 5);
        let segments: Vec<Segment> = (0..readable + writable)
            .map(|index| Segment { addr: MEMORY + 16 * index as u64, len: len.get() as u32 })
            .collect();
        let (readable, writable) = segments.split_at(readable);
        let bytes = |segments: &[Segment]| segments.iter().map(|segment| u64::from(segment.len)).sum::<u64>();
        let free = self.driver.free_count();
        let token = self.tokens;
        if let Err(error) = add(&mut self.driver, readable, writable, token) {
            assert_eq!(self.driver.free_count(), free);
            match error {
                RingError::Empty => assert!(segments.is_empty()),
                RingError::TooLong { .. } => assert!(segments.len() > self.size as usize),
                RingError::TotalLength => assert!(bytes(&segments) > 1 << 32),
                RingError::Full { .. } => assert!(segments.len() > free as usize),
                error => panic!("{error}"),
            }
            return false;
        }
        self.tokens += 1;
        let mut slots: Vec<usize> = Vec::new();
        if !self.memory.is_packed {
            slots = self.memory.stored.borrow().clone();
            slots.dedup();
            let mut is_taken = self.memory.is_taken.borrow_mut();
            for slot in &slots {
                assert!(!is_taken[*slot], "descriptor {slot} is the device's");
                is_taken[*slot] = true;
            }
        }
        let descriptors = free - self.driver.free_count();
        assert!(self.memory.is_packed || slots.len() == descriptors as usize);
        let writable = bytes(writable);
        self.given.insert(token, Given { writable, descriptors, slots, is_published: false });
        true
    }

    fn take(&mut self) {
        self.memory.begin();
        let violations = self.driver.violations();
        match self.driver.take_used() {
            Ok(None) => assert_eq!(self.driver.violations(), violations),
            Ok(Some(completion)) => {
                assert!(self.driver.violations() <= violations + 1, "one for a length");
                let given = self.given.remove(&completion.token).expect("the device had it");
                assert!(given.is_published, "the device could not know it");
                assert!(u64::from(completion.len) <= given.writable);
                let mut is_taken = self.memory.is_taken.borrow_mut();
                given.slots.iter().for_each(|slot| is_taken[*slot] = false);
            }
            Err(RingError::UsedId { .. } | RingError::UsedIndex { .. }) => {
                assert_eq!(self.driver.violations(), violations + 1)
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn pop(&mut self) {
        self.memory.begin();
        let violations = self.device.violations();
        let result = self.device.pop(self.memory, &mut self.chain);
        assert_eq!(self.device.violations(), violations + u64::from(result.is_err()), "each error is counted");
        if result != Ok(true) {
            return;
        }
        let chain = &self.chain;
        assert!(chain.id() < self.size);
        let segments = || chain.readable().iter().chain(chain.writable());
        assert!((1..=usize::from(self.size)).contains(&segments().count()));
        assert!(chain.readable_len() + chain.writable_len() <= 1 << 32);
        self.compare();
        for segment in segments() {
            // Translated memory must be accessible from the first byte to the last.
            if let Some(at) = self.memory.regions.translate(segment.addr, segment.len.into()) {
                for offset in [0, segment.len.wrapping_sub(1)].into_iter().filter(|_| segment.len > 0) {
                    // SAFETY: the regions say that it is mapped, which is under test.
                    let byte = unsafe { AtomicU8::from_ptr(at.wrapping_add(offset as usize)) };
                    byte.load(Relaxed);
                }
            }
        }
        self.held.push(chain.clone());
        assert!(self.held.len() <= self.size.into(), "no more than the ring has");
    }

    /// Asserts that what was popped is what was loaded: nothing is read again after the check.
    fn compare(&self) {
        let loaded = self.memory.loaded.borrow();
        let shift = if self.memory.is_packed { 48 } else { 32 };
        let (mut addresses, mut rests) = (Vec::new(), Vec::new());
        for (offset, value) in loaded.iter() {
            if offset.is_multiple_of(16) { addresses.push(*value) } else { rests.push(*value) }
        }
        assert_eq!(addresses.len(), rests.len(), "each word of a descriptor is read once");
        // Nothing follows a table in the ring, and the table's contents are not loaded here.
        let in_ring = rests.iter().take_while(|rest| (**rest >> shift) as u16 & 4 == 0).count();
        let (mut readable, mut writable) = (Vec::new(), Vec::new());
        for (addr, rest) in addresses.into_iter().zip(&rests).take(in_ring) {
            let is_writable = (*rest >> shift) as u16 & 2 != 0;
            let segments = if is_writable { &mut writable } else { &mut readable };
            segments.push(Segment { addr, len: *rest as u32 });
        }
        assert!(self.chain.readable().starts_with(&readable));
        assert!(self.chain.writable().starts_with(&writable));
        if in_ring == rests.len() {
            assert_eq!((self.chain.readable().len(), self.chain.writable().len()), (readable.len(), writable.len()));
        }
    }
}

fn split(input: &Input, memory: &Memory, features: Features, tables: Option<IndirectTables>) {
    let (size, base) = (memory.size, input.base.map_or(0, |before| u16::MAX - u16::from(before)));
    split::start_at(&memory.bus, size, base).expect("a ring");
    let [driver, device] = [true, false].map(|is_driver| Checked { memory, is_driver });
    memory.begin();
    // Writes that occur while a driver is made have no effect on it.
    let mut driver = split::Driver::with_base(driver, size, features, base).expect("a ring");
    if let Some(tables) = tables {
        // SAFETY: the tables fit into a page of the driver's memory, which is only accessed atomically.
        unsafe { driver.use_indirect(tables) }.expect("negotiated");
    }
    let device = split::Device::with_base(device, size, features, base).expect("a ring");
    run(input, memory, driver, device);
}

fn packed(input: &Input, memory: &Memory, features: Features, tables: Option<IndirectTables>) {
    packed::init(&memory.bus, memory.size).expect("a ring");
    let [driver, device] = [true, false].map(|is_driver| Checked { memory, is_driver });
    let mut driver: packed::Driver<_> = packed::Driver::new(driver, memory.size, features).expect("a ring");
    if let Some(tables) = tables {
        // SAFETY: the tables fit into a page of the driver's memory, which is only accessed atomically.
        unsafe { driver.use_indirect(tables) }.expect("negotiated");
    }
    let device: packed::Device<_> = packed::Device::new(device, memory.size, features).expect("a ring");
    run(input, memory, driver, device);
}

fn run(input: &Input, memory: &Memory, driver: impl DriverSide, device: impl DeviceSide) {
    let mut bench = Bench {
        memory,
        driver,
        device,
        given: BTreeMap::new(),
        tokens: 0,
        held: Vec::new(),
        chain: Chain::default(),
        size: memory.size as u16,
    };
    input.operations.iter().take(OPERATIONS_MAX).for_each(|operation| bench.apply(*operation));
}

/// Checks one input.
pub fn check(input: &Input, victim: Victim) {
    let size = if input.is_packed { u32::from(input.size) % SIZE_MAX + 1 } else { 1 << (input.size % 5) };
    let features = Features { indirect: input.is_indirect, event_idx: input.has_events, in_order: input.is_in_order };
    PAGES.with(|pages| {
        pages.clear();
        let memory = Memory::new(input, size, victim, pages);
        let entries = (PAGE / 16 / size as usize) as u16;
        let tables = input.is_indirect.then_some(IndirectTables { base: pages.0, addr: MEMORY, entries });
        let run = if input.is_packed { packed } else { split };
        run(input, &memory, features, tables);
    });
}

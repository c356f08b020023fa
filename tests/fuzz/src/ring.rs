//! Both sides of a queue in memory that somebody else writes to: between operations, and between any two accesses of one.
//!
//! One side is ours and honest, so that rings are mostly of the right shape. The noise falls where the other one, if it were hostile, could
//! write; from the first of it there is no oracle of what is exchanged, but nobody may panic, leave the memory, store where the other side
//! does, run for ever, or go by a word that was not the one that was checked; and each error is counted.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering, Ordering::Relaxed};

use arbitrary::Arbitrary;
use dormouse_vring::{
    AddressSpace, Area, Areas, Bus, Chain, DeviceSide, Direct, DriverSide, Features, IndirectTables, Part, Region,
    Regions, RingError, Segment, Word, packed, split,
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

/// Who has to do with a hostile peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// Noise falls where drivers write.
    Device,
    /// Noise falls where devices write.
    Driver,
}

/// A number, small or not.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Value {
    /// As indexes and ids are.
    Small(u8),
    /// Anything.
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

/// An address of the driver's.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Address {
    /// So many bytes into its memory, of which a page is there, a page is not, and another page is.
    Inside(u16),
    /// So many bytes before the end of one of the pages.
    End(bool, u8),
    /// Anywhere.
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

/// A descriptor of a ring or table. What is `next` there is the id in a packed ring.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Descriptor {
    addr: Address,
    len: Value,
    /// From the lowest bit: NEXT, WRITE, INDIRECT, AVAIL, USED, and one that means nothing.
    flags: u8,
    next: Value,
}

/// What somebody else writes.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Write {
    /// Two bytes of an area.
    Word(bool, u16, Value),
    /// The index of the peer's ring, or what is in a packed ring's event suppression: so much more than it was.
    Index(i8),
    /// An entry of the avail ring, or an element of the used ring.
    Entry(u8, Value, Value),
    /// A descriptor of the ring.
    Descriptor(u8, Descriptor),
    /// Only the flags of one: those of a used or available descriptor of a packed ring in some lap.
    Flags(u8, u8),
    /// A descriptor of a table.
    Table(u8, Descriptor),
}

/// What one of the two sides does. Numbers are taken modulo what there is.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Operation {
    /// Buffers of so many segments to be read and written.
    Add(u8, u8, Value),
    /// Likewise, and shows all.
    AddAndPublish(u8, u8, Value),
    /// Shows them.
    Publish,
    /// Asks whether to kick.
    NeedsKick,
    /// Takes up to so many back.
    Take(u8),
    /// Asks to be interrupted, or not to be.
    ArmInterrupt(bool),
    /// Pops up to so many.
    Pop(u8),
    /// Gives one back, the oldest or the newest, with bytes written.
    Push(bool, Value),
    /// Shows them.
    PublishUsed,
    /// Asks whether to interrupt.
    NeedsInterrupt,
    /// Asks to be kicked, or not to be.
    ArmNotification(bool),
    /// Is somebody else's.
    Write(Write),
}

/// A ring and what happens to it.
#[derive(Debug, Clone, Arbitrary)]
pub struct Input {
    is_packed: bool,
    size: u8,
    /// Of a split ring: how far before the wrap it begins.
    base: Option<u8>,
    is_indirect: bool,
    has_events: bool,
    is_in_order: bool,
    operations: Vec<Operation>,
    /// After so many accesses of either side, each.
    meddling: Vec<(u8, Write)>,
}

/// Where the driver's memory begins, for the device.
const MEMORY: u64 = 0x10_0000;
const PAGE: usize = 4096;
/// So many operations of each input, and entries of each ring.
const OPERATIONS_MAX: usize = 120;
const SIZE_MAX: u32 = 24;

/// Bytes, exactly so many: an address sanitizer sees who leaves them.
struct Block(*mut u8, Layout);

impl Block {
    fn new(len: usize) -> Block {
        let layout = Layout::from_size_align(len, 16).expect("a short block");
        // SAFETY: no ring has an area of no bytes.
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
        // SAFETY: aligned and inside, as was just checked; accessed atomically as long as it lives.
        unsafe { AtomicU16::from_ptr(self.0.wrapping_add(offset).cast()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with the same layout.
        unsafe { dealloc(self.0, self.1) };
    }
}

/// A page that is there, a page that is not, a page that is there; and before and behind it, one that is not.
struct Pages(*mut u8);

impl Pages {
    fn new() -> Pages {
        let flags = MapFlags::PRIVATE;
        // SAFETY: a mapping of its own.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), 5 * PAGE, ProtFlags::empty(), flags) };
        let base: *mut u8 = base.expect("five pages").cast();
        for page in [1, 3] {
            let at = base.wrapping_add(page * PAGE).cast();
            // SAFETY: a page of the mapping, which nobody uses yet.
            unsafe { mprotect(at, PAGE, MprotectFlags::READ | MprotectFlags::WRITE) }.expect("a page of ours");
        }
        Pages(base.wrapping_add(PAGE))
    }

    fn regions(&self) -> Regions {
        let region = |page: usize| {
            let offset = page * PAGE;
            Region { addr: MEMORY + offset as u64, len: PAGE as u64, base: self.0.wrapping_add(offset) }
        };
        // SAFETY: mapped as long as the thread lives.
        unsafe { Regions::new(vec![region(0), region(2)]) }.expect("pages apart")
    }

    /// Empties the first one, where the tables are.
    fn clear(&self) {
        // SAFETY: a page of ours; nobody has a reference into it.
        unsafe { ptr::write_bytes(self.0, 0, PAGE) };
    }
}

thread_local! {
    static PAGES: Pages = Pages::new();
}

/// A descriptor's words, as a split ring or table has them or a packed ring.
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

/// A ring's memory, the driver's, and who meddles.
struct Memory {
    blocks: [Block; 3],
    bus: Direct,
    regions: Regions,
    tables: *mut u8,
    victim: Victim,
    is_packed: bool,
    size: u32,
    meddling: RefCell<std::vec::IntoIter<(u8, Write)>>,
    /// Accesses until somebody meddles, and who.
    next: Cell<Option<(u8, Write)>>,
    /// Accesses of this call, by offset and value where they are loads of descriptors.
    accesses: Cell<u32>,
    loaded: RefCell<Vec<(usize, u64)>>,
    /// Slots of a split ring that the driver stores to in this call, and those that the device has.
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
        let area = |index: usize| Part(blocks[index].0, blocks[index].len());
        let areas = Areas { descriptor: area(0), driver: area(1), device: area(2) };
        let mut meddling = input.meddling.clone().into_iter();
        Memory {
            // SAFETY: the blocks live as long as the value, and are accessed atomically.
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

    /// The area that only the hostile side writes.
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
            // Id and length of a used descriptor.
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
                    // SAFETY: 256 descriptors are a page, which is mapped and accessed atomically.
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

// SAFETY: what the regions find.
unsafe impl AddressSpace for Memory {
    fn translate(&self, addr: u64, len: u64) -> Option<*mut u8> {
        let found = self.regions.translate(addr, len);
        // Whoever has checked the table's address has not yet read it.
        self.meddle();
        found
    }
}

/// One side's way to the memory, with every access checked.
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

/// A buffer that the device has, or is about to.
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
    /// What the driver has given away, by token.
    given: BTreeMap<u64, Given>,
    tokens: u64,
    /// What the device has popped.
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
                    // What an honest device says that it wrote; in order it gives back the oldest, which the lists here need not be.
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

    /// Whether it was added.
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
            // What is said to be there is there, from the first byte to the last.
            if let Some(at) = self.memory.regions.translate(segment.addr, segment.len.into()) {
                for offset in [0, segment.len.wrapping_sub(1)].into_iter().filter(|_| segment.len > 0) {
                    // SAFETY: what is under test: the regions say that it is mapped.
                    let byte = unsafe { AtomicU8::from_ptr(at.wrapping_add(offset as usize)) };
                    byte.load(Relaxed);
                }
            }
        }
        self.held.push(chain.clone());
        assert!(self.held.len() <= self.size.into(), "no more than the ring has");
    }

    /// What was popped is what was loaded: nothing is read again after it was checked.
    fn compare(&self) {
        let loaded = self.memory.loaded.borrow();
        let shift = if self.memory.is_packed { 48 } else { 32 };
        let (mut addresses, mut rests) = (Vec::new(), Vec::new());
        for (offset, value) in loaded.iter() {
            if offset.is_multiple_of(16) { addresses.push(*value) } else { rests.push(*value) }
        }
        assert_eq!(addresses.len(), rests.len(), "each word of a descriptor is read once");
        // Behind a table nothing is in the ring, and what is in it is not loaded here.
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
    // Writes that fall into making a driver are lost on it.
    let mut driver = split::Driver::with_base(driver, size, features, base).expect("a ring");
    if let Some(tables) = tables {
        // SAFETY: they fit into a page of the driver's memory, which is accessed atomically.
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
        // SAFETY: they fit into a page of the driver's memory, which is accessed atomically.
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

/// One input.
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

//! The device sides with an independent driver: the crate `virtio-driver`, on random operations, with plain queues as
//! the oracle.
//!
//! The crate publishes each buffer at once, and supports neither tables nor in-order use. Its packed queue has three
//! faults: a buffer of one segment seems to continue, a buffer that turns out to be too long leaves descriptors behind
//! that seem available, and a used buffer must be written completely. So buffers of packed queues have at least two
//! segments, fit, and are written completely.
//!
//! The ring is mapped twice, for the crate and for this test, as if each were in its own process. Only the crate's
//! transports create its type for device addresses, so one of them is connected to a socket of the test.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::ptr;
use std::thread;

use dormouse_vring::{AreaLocation, Areas, Chain, DeviceSide, Direct, Features, NoMemory, Segment, packed, split};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use virtio_driver::virtqueue::{Virtqueue, VirtqueueLayout};
use virtio_driver::{IovaTranslator, Le64, VhostUser, VirtioFeatureFlags, VirtioTransport, iovec};

#[path = "../src/tests/operation.rs"]
mod operation;

/// An operation whose buffers are given as the numbers of segments to read and to write.
type Operation = operation::Operation<(usize, usize)>;

fn operation() -> impl Strategy<Value = Operation> {
    operation::operation((0..4_usize, 0..4_usize), false, true)
}

/// Answers the front end's requests until it has all it needs: no ring features, and the minimum of protocol features.
fn answer(listener: &UnixListener) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut header = [0_u8; 12];
    while stream.read_exact(&mut header).is_ok() {
        let [request, _, size] = [0, 4, 8].map(|at| u32::from_le_bytes(header[at..at + 4].try_into().unwrap()));
        stream.read_exact(&mut vec![0; size as usize]).unwrap();
        let reply: u64 = match request {
            // GET_FEATURES: PROTOCOL_FEATURES.
            1 => 1 << 30,
            // GET_PROTOCOL_FEATURES: REPLY_ACK, CONFIG, CONFIGURE_MEM_SLOTS.
            15 => 1 << 3 | 1 << 9 | 1 << 15,
            // GET_MAX_MEM_SLOTS.
            36 => 1,
            _ => continue,
        };
        // Version 1, a reply.
        let reply = [request.to_le_bytes(), 5_u32.to_le_bytes(), 8_u32.to_le_bytes()]
            .concat()
            .into_iter()
            .chain(reply.to_le_bytes());
        stream.write_all(&reply.collect::<Vec<_>>()).unwrap();
    }
}

/// Returns a translator that does not change addresses, from a transport that was connected once and is already closed.
fn translator() -> Box<dyn IovaTranslator> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || answer(&listener));
    let transport: VhostUser<Le64, u64> = VhostUser::new(path.to_str().unwrap(), 0).unwrap();
    let translator = transport.iova_translator();
    drop(transport);
    server.join().unwrap();
    translator
}

/// Memory that is mapped twice.
struct Mapped {
    of_driver: *mut u8,
    of_device: *mut u8,
    len: usize,
}

impl Mapped {
    fn new(len: usize) -> Mapped {
        let file = memfd_create("ring", MemfdFlags::empty()).unwrap();
        ftruncate(&file, len as u64).unwrap();
        let [of_driver, of_device] = [(); 2].map(|()| {
            // SAFETY: a new mapping at an address that the kernel chooses.
            let at =
                unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0) };
            at.unwrap().cast()
        });
        Mapped { of_driver, of_device, len }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        for at in [self.of_driver, self.of_device] {
            // SAFETY: `new` created the mapping, and its users are gone.
            unsafe { munmap(at.cast(), self.len) }.unwrap();
        }
    }
}

/// The oracle's record of a buffer.
#[derive(Debug, Clone)]
struct Buffer {
    id: u16,
    token: u64,
    readable: Vec<Segment>,
    writable: Vec<Segment>,
}

/// One side's notification request, as a position that does not wrap: buffers of a split queue, descriptors of a packed
/// one.
#[derive(Debug, Clone, Copy)]
enum Wish {
    At(i64),
    Always,
    Never,
}

/// One side's progress since it last checked, and the other side's request.
#[derive(Debug)]
struct Announced {
    old: i64,
    new: i64,
    wish: Wish,
}

impl Announced {
    fn is_wanted(&self) -> bool {
        match self.wish {
            Wish::At(event) => self.old <= event && event < self.new,
            Wish::Always => self.new > self.old,
            Wish::Never => false,
        }
    }
}

struct Bench<'a, V> {
    queue: Virtqueue<'a, u64>,
    device: V,
    size: usize,
    is_packed: bool,
    has_events: bool,
    kicks: Announced,
    interrupts: Announced,
    /// Whether the driver renews its request with each buffer that it takes.
    follows: bool,
    popped: i64,
    taken: i64,
    tokens: u64,
    free: usize,
    available: VecDeque<Buffer>,
    held: VecDeque<(Buffer, Chain)>,
    pushed: VecDeque<Buffer>,
    used: VecDeque<Buffer>,
    chain: Chain,
}

impl<V: DeviceSide> Bench<'_, V> {
    /// Returns the distance by which a buffer advances positions.
    fn unit(&self, buffer: &Buffer) -> i64 {
        if self.is_packed { (buffer.readable.len() + buffer.writable.len()) as i64 } else { 1 }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Add((readable, writable)) => self.request(readable, writable),
            // The crate publishes by itself.
            Operation::Publish => {}
            Operation::Kick => {
                let says = self.queue.avail_notif_needed();
                let is_wanted = self.kicks.is_wanted();
                match self.kicks.wish {
                    Wish::Never => assert!(!says),
                    Wish::At(_) if !self.is_packed => assert_eq!(says, is_wanted),
                    // The crate's packed queue may count what it has announced before; more than a lap cannot be told
                    // apart.
                    Wish::At(event) if self.kicks.new - event > self.size as i64 => {}
                    // The crate's flags do not tell whether there is anything new.
                    _ => assert!(says || !is_wanted, "{:?}", self.kicks),
                }
                self.kicks.old = self.kicks.new;
            }
            Operation::Take { count } => (0..count).for_each(|_| self.take()),
            Operation::Pop { count } => (0..count).for_each(|_| self.pop()),
            Operation::Push { any, written } => self.push(any, written),
            Operation::PublishUsed => {
                self.device.publish_used();
                self.interrupts.new += self.pushed.iter().map(|buffer| self.unit(buffer)).sum::<i64>();
                self.used.append(&mut self.pushed);
            }
            Operation::Interrupt => {
                let says = self.device.needs_interrupt();
                // More than a lap cannot be told from less.
                let is_lap = self.is_packed && self.interrupts.new - self.interrupts.old > self.size as i64;
                assert!(says == self.interrupts.is_wanted() || says && is_lap, "{:?}: {says}", self.interrupts);
                self.interrupts.old = self.interrupts.new;
            }
            Operation::ArmNotification { is_wanted: true } => {
                assert_eq!(self.device.arm_notification(), !self.available.is_empty());
                self.kicks.wish = if self.has_events { Wish::At(self.popped) } else { Wish::Always };
            }
            Operation::ArmNotification { is_wanted: false } => {
                self.device.disarm_notification();
                let can_say_never = self.is_packed || !self.has_events;
                self.kicks.wish = if can_say_never { Wish::Never } else { Wish::At(self.popped - 1) };
            }
            Operation::ArmInterrupt { is_wanted } => {
                self.queue.set_used_notif_enabled(is_wanted);
                self.interrupts.wish = match (self.has_events, is_wanted) {
                    (true, true) => Wish::At(self.taken),
                    // The crate stores its position once, and does not update it.
                    (true, false) if !self.is_packed => Wish::At(self.taken),
                    (false, true) => Wish::Always,
                    (_, false) => Wish::Never,
                };
                self.follows = self.has_events && is_wanted;
            }
        }
    }

    fn request(&mut self, readable: usize, writable: usize) {
        let count = readable + writable;
        let count_min = if self.is_packed { 2 } else { 1 };
        if count < count_min || count > self.free {
            return;
        }
        let token = self.tokens;
        let segments: Vec<Segment> =
            (0..count).map(|index| Segment { addr: token << 8 | index as u64, len: 3 + index as u32 }).collect();
        let added = self.queue.add_request(|of_request, add| {
            *of_request = token;
            for (index, segment) in segments.iter().enumerate() {
                let base = ptr::without_provenance_mut(segment.addr as usize);
                add(iovec { iov_base: base, iov_len: segment.len as usize }, index >= readable)?;
            }
            Ok(())
        });
        let (readable, writable) = segments.split_at(readable);
        let id = added.expect("there is room");
        let buffer = Buffer { id, token, readable: readable.to_vec(), writable: writable.to_vec() };
        self.tokens += 1;
        self.free -= count;
        self.kicks.new += self.unit(&buffer);
        self.available.push_back(buffer);
    }

    fn pop(&mut self) {
        let expected = self.available.pop_front();
        assert_eq!(self.device.pop(&NoMemory, &mut self.chain), Ok(expected.is_some()));
        if let Some(buffer) = expected {
            assert_eq!(self.chain.id(), buffer.id);
            assert_eq!((self.chain.readable(), self.chain.writable()), (&buffer.readable[..], &buffer.writable[..]));
            self.popped += self.unit(&buffer);
            self.held.push_back((buffer, self.chain.clone()));
        }
    }

    fn push(&mut self, any: Option<prop::sample::Index>, written: Option<u32>) {
        let index = any.filter(|_| !self.held.is_empty()).map_or(0, |any| any.index(self.held.len()));
        if let Some((buffer, chain)) = self.held.remove(index) {
            let all = chain.writable_len() as u32;
            // The crate's packed queue requires that the buffer is written completely.
            let len = written.filter(|_| !self.is_packed).map_or(all, |written| written % (all + 1));
            self.device.push_used(&chain, len);
            self.pushed.push_back(buffer);
        }
    }

    fn take(&mut self) {
        let completion = self.queue.completions().next().map(|completion| (completion.id, completion.req));
        let expected = self.used.pop_front();
        assert_eq!(completion, expected.as_ref().map(|buffer| (buffer.id, buffer.token)));
        if let Some(buffer) = expected {
            self.free += buffer.readable.len() + buffer.writable.len();
            self.taken += self.unit(&buffer);
            if self.follows {
                self.interrupts.wish = Wish::At(self.taken);
            }
        }
    }
}

/// Creates both sides of a queue, and applies operations until there are no more.
fn run<V: DeviceSide>(
    size: u16,
    is_packed: bool,
    has_events: bool,
    device: impl FnOnce(Direct, Features) -> V,
    mut operations: impl FnMut(&Bench<'_, V>) -> Option<Operation>,
) {
    let mut features = VirtioFeatureFlags::VERSION_1;
    features.set(VirtioFeatureFlags::RING_EVENT_IDX, has_events);
    features.set(VirtioFeatureFlags::RING_PACKED, is_packed);
    let layout = VirtqueueLayout::new::<u64>(1, size.into(), features).unwrap();
    let mapped = Mapped::new(layout.end_offset);
    // SAFETY: no other code of this program uses this mapping by its address, and it outlives the queue.
    let of_driver = unsafe { std::slice::from_raw_parts_mut(mapped.of_driver, mapped.len) };
    let queue = Virtqueue::new(translator(), of_driver, size, features).unwrap();
    let at = |offset| mapped.of_device.wrapping_add(offset);
    let size = usize::from(size);
    let [driver_len, device_len] = if is_packed { [4, 4] } else { [6 + 2 * size, 6 + 8 * size] };
    let areas = Areas {
        descriptor: AreaLocation(at(0), 16 * size),
        driver: AreaLocation(at(layout.driver_area_offset), driver_len),
        device: AreaLocation(at(layout.device_area_offset), device_len),
    };
    // SAFETY: the areas are in the other mapping, which outlives the device.
    let bus = unsafe { Direct::new(areas) };
    let wish = if has_events && !is_packed { Wish::At(0) } else { Wish::Always };
    let announced = || Announced { old: 0, new: 0, wish };
    let mut bench = Bench {
        queue,
        device: device(bus, Features { event_idx: has_events, ..Features::default() }),
        size,
        is_packed,
        has_events,
        kicks: announced(),
        interrupts: announced(),
        follows: false,
        popped: 0,
        taken: 0,
        tokens: 0,
        free: size,
        available: VecDeque::new(),
        held: VecDeque::new(),
        pushed: VecDeque::new(),
        used: VecDeque::new(),
        chain: Chain::default(),
    };
    while let Some(operation) = operations(&bench) {
        bench.apply(operation);
    }
    assert_eq!(bench.device.violations(), 0);
}
fn split_device(size: u16) -> impl FnOnce(Direct, Features) -> split::Device {
    move |bus, features| split::Device::new(bus, size.into(), features).unwrap()
}

fn packed_device(size: u16) -> impl FnOnce(Direct, Features) -> packed::Device<Direct> {
    move |bus, features| packed::Device::new(bus, size.into(), features).unwrap()
}

proptest! {
    #[test]
    fn split_devices_and_virtio_driver_match_the_oracle(
        size_log2 in 0..6_u32,
        has_events: bool,
        operations in vec(operation(), 0..300),
    ) {
        let mut operations = operations.into_iter();
        run(1 << size_log2, false, has_events, split_device(1 << size_log2), |_| operations.next());
    }

    #[test]
    fn packed_devices_and_virtio_driver_match_the_oracle(
        size in 2..40_u16,
        has_events: bool,
        operations in vec(operation(), 0..300),
    ) {
        let mut operations = operations.into_iter();
        run(size, true, has_events, packed_device(size), |_| operations.next());
    }
}

/// Runs one ring of each kind for more than two wraps of 65,536, deterministically.
#[test]
fn two_wraps_of_the_index_go_unnoticed() {
    let (drawn, mut runner) = (operation(), TestRunner::deterministic());
    let mut next = |taken: i64| (taken < 2 * 65_536 + 1_000).then(|| drawn.new_tree(&mut runner).unwrap().current());
    run(32, false, true, split_device(32), |bench| next(bench.taken));
    run(32, true, true, packed_device(32), |bench| next(bench.taken));
}

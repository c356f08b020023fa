//! A device in another process, which is killed at any instruction, and continued from the record of buffers in flight.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use dormouse_vring::{
    Areas, Chain, DeviceSide, Direct, DriverSide, Features, InFlight, NoMemory, Segment, either, split,
};

const SIZE: u16 = 32;
const RECORD: usize = 8192;
/// Number of times that each buffer was executed, by its token.
const EXECUTIONS: usize = 16384;
const TOKENS: usize = 400_000;
const BYTES: usize = EXECUTIONS + 8 * TOKENS;

const KILLS: usize = 150;
/// Number of buffers that come back between two kills, at least.
const BETWEEN: u64 = 40;

/// Names of the environment variables that have the file to share, and the kind of the queue.
const ENV_FILE: &str = "DORMOUSE_TEST_SHARED";
const ENV_PACKED: &str = "DORMOUSE_TEST_PACKED";

/// Memory that both processes share, never unmapped.
#[derive(Clone, Copy)]
struct Shared(*mut u8);

impl Shared {
    fn map(path: &Path) -> Shared {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = File::options().read(true).write(true).open(path).unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap(std::ptr::null_mut(), BYTES, protection, MapFlags::SHARED, &file, 0) };
        Shared(base.unwrap().cast())
    }

    fn areas(self, is_packed: bool) -> Areas {
        either::contiguous(is_packed, self.0, SIZE.into()).unwrap()
    }

    fn bus(self, is_packed: bool) -> Direct {
        // SAFETY: the memory stays mapped, and is accessed only atomically.
        unsafe { Direct::new(self.areas(is_packed)) }
    }

    fn executions(self, token: u64) -> &'static AtomicU64 {
        assert!(token < TOKENS as u64);
        // SAFETY: the word is inside the memory, which stays mapped and is accessed only atomically.
        unsafe { AtomicU64::from_ptr(self.0.wrapping_add(EXECUTIONS + 8 * token as usize).cast()) }
    }
}

/// Not a test: the device, in a process that is killed. Without the environment variables it does nothing.
///
/// It returns a split queue's buffers in another order than it received them, some of them together.
#[test]
fn device_process() {
    let Some(path) = std::env::var_os(ENV_FILE) else { return };
    let is_packed = std::env::var(ENV_PACKED).unwrap() == "true";
    let shared = Shared::map(Path::new(&path));
    let bus = shared.bus(is_packed);
    // SAFETY: the record is inside the memory, which stays mapped and is accessed only atomically.
    let mut record = unsafe { InFlight::new(shared.0.wrapping_add(RECORD), is_packed, SIZE) }.unwrap();
    let from = record.resume(&bus, if is_packed { 1 << 15 } else { 0 }).unwrap();
    let mut device = either::Device::with_in_flight(is_packed, bus, SIZE.into(), Features::default(), &from).unwrap();
    let mut again = from.again.into_iter();
    let mut held: Vec<Chain> = Vec::new();
    let mut last_again = 0;
    let mut number = u64::from(std::process::id());
    loop {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut chain = Chain::default();
        let is_popped = match again.next() {
            Some(head) => {
                device.pop_again(head, &NoMemory, &mut chain).unwrap();
                // The oldest comes first.
                assert!(chain.readable()[0].addr >= last_again);
                last_again = chain.readable()[0].addr;
                true
            }
            None => device.pop(&NoMemory, &mut chain).unwrap(),
        };
        if is_popped {
            record.take(chain.id());
            held.push(chain);
        }
        let count = if is_packed { 1 } else { 1 + (number >> 60) as usize % 4 };
        if held.len() < count || (is_popped && !is_packed && held.len() < 8) {
            std::hint::spin_loop();
            continue;
        }
        for _ in 0..count {
            let place = if is_packed { 0 } else { (number >> 33) as usize % held.len() };
            let chain = held.swap_remove(place);
            shared.executions(chain.readable()[0].addr).fetch_add(1, SeqCst);
            device.push_used(&chain, 0);
            record.give_back(chain.id(), device.base());
        }
        device.publish_used();
        record.published();
    }
}

struct Device(Child);

impl Device {
    fn start(path: &Path, is_packed: bool) -> Device {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "device_process"]).env(ENV_FILE, path).env(ENV_PACKED, is_packed.to_string());
        Device(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Each buffer comes back once, and none is executed after it came back.
#[test]
fn a_killed_device_is_continued() {
    for is_packed in [false, true] {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(BYTES as u64).unwrap();
        let shared = Shared::map(file.path());
        let bus = shared.bus(is_packed);
        either::init(is_packed, &bus, SIZE.into()).unwrap();
        let mut driver = either::Driver::new(is_packed, bus, SIZE.into(), Features::default()).unwrap();
        let mut seen = vec![0; TOKENS];
        let (mut next, mut returned, mut repeated) = (0, 0_u64, 0);
        for kill in 0..KILLS {
            let mut device = Device::start(file.path(), is_packed);
            let end = returned + BETWEEN + kill as u64 % 7;
            let start = Instant::now();
            while returned < end {
                while next < TOKENS as u64
                    && driver.add_and_publish(&[Segment { addr: next, len: 8 }], &[], next).is_ok()
                {
                    next += 1;
                }
                match driver.take_used().unwrap() {
                    Some(done) => {
                        let executions = shared.executions(done.token).load(SeqCst);
                        assert!(executions > 0 && seen[done.token as usize] == 0, "token {}", done.token);
                        seen[done.token as usize] = executions;
                        repeated += executions - 1;
                        returned += 1;
                    }
                    None => {
                        assert!(device.0.try_wait().unwrap().is_none(), "the device has ended, packed {is_packed}");
                        assert!(start.elapsed() < Duration::from_secs(300), "nothing comes back");
                        std::thread::yield_now();
                    }
                }
            }
            // Dropping it kills it.
        }
        let taken = (0..next).filter(|token| seen[*token as usize] > 0);
        let late: Vec<u64> =
            taken.filter(|token| shared.executions(*token).load(Relaxed) != seen[*token as usize]).collect();
        assert!(late.is_empty(), "executed after they came back, packed {is_packed}: {late:?}");
        assert_eq!(driver.violations(), 0);
        assert!(repeated <= KILLS as u64 * u64::from(SIZE));
    }
}

/// The record has the offsets of vhost-user's `QueueRegionSplit` and `DescStateSplit`, so that other back ends can continue from it.
#[test]
fn the_record_has_the_layout_of_vhost_user() {
    #[repr(align(64))]
    struct Memory([AtomicU64; 256]);
    let (queue, record) = (Memory([const { AtomicU64::new(0) }; 256]), Memory([const { AtomicU64::new(0) }; 256]));
    let areas = split::contiguous(queue.0.as_ptr().cast_mut().cast(), 8).unwrap();
    // SAFETY: the memory outlives both sides, and its words are atomics.
    let bus = unsafe { Direct::new(areas) };
    split::init(&bus, 8).unwrap();
    let mut driver: split::Driver<Direct> = split::Driver::new(bus, 8, Features::default()).unwrap();
    let mut device: split::Device<Direct> = split::Device::new(bus, 8, Features::default()).unwrap();
    // SAFETY: the memory outlives the record, and its words are atomics.
    let mut in_flight = unsafe { InFlight::new(record.0.as_ptr().cast_mut().cast(), false, 8) }.unwrap();
    assert_eq!((InFlight::size_bytes(false, 8), InFlight::size_bytes(true, 8)), (192, 320));
    in_flight.resume(&bus, 0).unwrap();
    for token in 0..3 {
        driver.add_and_publish(&[Segment { addr: token, len: 8 }], &[], token).unwrap();
    }
    let mut chains = [Chain::default(), Chain::default(), Chain::default()];
    for chain in &mut chains {
        assert!(device.pop(&NoMemory, chain).unwrap());
        in_flight.take(chain.id());
    }
    for chain in [&chains[2], &chains[0]] {
        device.push_used(chain, 0);
        in_flight.give_back(chain.id(), device.base());
    }
    // Numbers are in the machine's byte order.
    let word = |byte: usize| record.0[byte / 8].load(Relaxed);
    let bytes = |byte: usize| word(byte).to_ne_bytes();
    let halves = |byte: usize| {
        let bytes = bytes(byte);
        [0, 2, 4, 6].map(|at| u16::from_ne_bytes([bytes[at], bytes[at + 1]]))
    };
    let heads: Vec<u16> = chains.iter().map(Chain::id).collect();
    let entry = |head: u16| 16 + 16 * usize::from(head);
    assert_eq!(word(0), 0, "features");
    assert_eq!(halves(8), [1, 8, heads[0], 0], "version, desc_num, last_batch_head, used_idx");
    assert_eq!(bytes(entry(heads[1])), [1, 0, 0, 0, 0, 0, 0, 0], "in flight");
    assert_eq!(bytes(entry(heads[0]))[..6], [1, 0, 0, 0, 0, 0], "in flight");
    assert_eq!(halves(entry(heads[0]))[3], heads[2], "before the third in the list");
    assert_eq!(heads.iter().map(|head| word(entry(*head) + 8)).collect::<Vec<_>>(), [0, 1, 2], "counters");
    device.publish_used();
    // A device that is killed here is continued: the batch is not executed again.
    // SAFETY: the memory outlives the record, and its words are atomics.
    let mut next = unsafe { InFlight::new(record.0.as_ptr().cast_mut().cast(), false, 8) }.unwrap();
    let from = next.resume(&bus, 0).unwrap();
    assert_eq!((from.base, from.again), (3, vec![heads[1]]));
    assert_eq!(halves(8)[3], 2, "used_idx");
    assert_eq!([heads[0], heads[2]].map(|head| bytes(entry(head))[0]), [0, 0]);
}

/// A packed queue's device that is killed at each of the steps of returning a buffer continues before the buffer or after
/// it, as the driver sees it: also if the driver has reused the buffer's place by then. Goes over several laps.
#[test]
fn a_packed_position_is_the_drivers() {
    #[repr(align(64))]
    struct Memory([AtomicU64; 256]);
    const PACKED_SIZE: u16 = 3;
    let (queue, record) = (Memory([const { AtomicU64::new(0) }; 256]), Memory([const { AtomicU64::new(0) }; 256]));
    let areas = either::contiguous(true, queue.0.as_ptr().cast_mut().cast(), PACKED_SIZE.into()).unwrap();
    // SAFETY: the memory outlives both sides, and its words are atomics.
    let bus = unsafe { Direct::new(areas) };
    either::init(true, &bus, PACKED_SIZE.into()).unwrap();
    let features = Features::default();
    let mut driver = either::Driver::new(true, bus, PACKED_SIZE.into(), features).unwrap();
    // SAFETY: the memory outlives the record, and its words are atomics.
    let open = || unsafe { InFlight::new(record.0.as_ptr().cast_mut().cast(), true, PACKED_SIZE) }.unwrap();
    let add = |driver: &mut either::Driver<Direct>, token| {
        driver.add_and_publish(&[Segment { addr: token, len: 8 }], &[], token).unwrap();
    };
    (0..3).for_each(|token| add(&mut driver, token));
    for token in 0..20 {
        let position = open().resume(&bus, 1 << 15).unwrap().base;
        // Killed after the record names the buffer, before the queue does: the buffer is popped again.
        for is_published in [false, true] {
            let mut in_flight = open();
            let from = in_flight.resume(&bus, 1 << 15).unwrap();
            assert_eq!(from.base, position, "buffer {token}");
            let mut device = either::Device::with_in_flight(true, bus, PACKED_SIZE.into(), features, &from).unwrap();
            let mut chain = Chain::default();
            assert!(device.pop(&NoMemory, &mut chain).unwrap());
            assert_eq!(chain.readable()[0].addr, token);
            device.push_used(&chain, 0);
            in_flight.give_back(chain.id(), device.base());
            if is_published {
                // Killed before the record says so.
                device.publish_used();
            }
        }
        assert_eq!(driver.take_used().unwrap().map(|done| done.token), Some(token));
        if token % 2 == 0 {
            assert_ne!(open().resume(&bus, 1 << 15).unwrap().base, position, "buffer {token} is back");
        }
        add(&mut driver, token + 3);
        assert_ne!(open().resume(&bus, 1 << 15).unwrap().base, position, "the place of buffer {token} is used again");
    }
}
